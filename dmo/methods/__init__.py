"""scikit-learn estimators: validate, call a method, keep the fitted arrays."""

import lazy_loader

from dmo.registry import REGISTRY

_modules: dict[str, list[str]] = {}
for _entry in REGISTRY.values():
    _modules.setdefault(_entry.module, []).append(_entry.name)
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_modules)
del lazy_loader, _entry, _modules
