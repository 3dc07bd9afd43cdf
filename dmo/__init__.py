"""Distributed multi-output learning: compact, label-aware representations from many views, and annotation."""

import lazy_loader

from dmo.registry import REGISTRY

# Dask schedulers and the `dask` command import this package but need no numerical code, so public names are imported on
# first use. The registry lists the estimators, and `__init__.pyi` lists all other names.
_public, _, _declared = lazy_loader.attach_stub(__name__, __file__)
__all__ = sorted({*_declared, *REGISTRY})
del lazy_loader


def __dir__() -> list[str]:
    return __all__.copy()


def __getattr__(name: str) -> object:
    """Import a public name on first use, and suggest a similar name if the name is unknown."""
    if name == "__version__":
        from importlib.metadata import version  # `importlib.metadata` is slow to import.

        return globals().setdefault(name, version("dmo-learn"))
    if name in REGISTRY:
        return globals().setdefault(name, getattr(_public("methods"), name))
    try:
        return _public(name)
    except AttributeError:
        if name.startswith("_"):
            raise
    from dmo.errors import meant  # Dask schedulers do not need `dmo.errors`.

    near = meant(name, __all__)
    hint = "" if near is None else f"; did you mean dmo.{near}?"
    raise AttributeError(f"module 'dmo' has no attribute {name!r}{hint}", name=name)
