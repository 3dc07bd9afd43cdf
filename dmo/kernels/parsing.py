"""Kernels from strings and JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from dmo.errors import UserError
from dmo.kernels.base import Kernel
from dmo.kernels.composite import Function, Precomputed, Product, Sum
from dmo.kernels.functions import DISTANCES, KERNELS, Euclidean
from dmo.kernels.rows import nearest

NAMED: dict[str, type] = {**KERNELS, Precomputed.name: Precomputed}
COMPOSITES: dict[str, type] = {"sum": Sum, "product": Product}
PREFIXES = ("hellinger", "l1", "l2")


def parse(spec: str | Kernel | dict[str, Any] | Callable[[Any, Any], Any]) -> Kernel:
    """Make the kernel that a name, a dict of `to_dict`, a function of two matrices, or a kernel itself stands for.

    Parameters
    ----------
    spec : str, Kernel, dict or callable
        A function: see `Function`. Names: "rbf", "laplacian", "exponential", "chi2", "intersection", "linear",
        "polynomial", "cosine", "precomputed", each (but the last) with a prefix "hellinger-", "l1-" or "l2-" for the
        normalization of rows: "hellinger-rbf".

    Returns
    -------
    Kernel
        The kernel.

    Raises
    ------
    UserError
        For an unknown name, with the nearest known one, and for a distance that is no kernel.

    Examples
    --------
    >>> from dmo.kernels import parse
    >>> parse("hellinger-rbf").normalize
    'hellinger'
    """
    if isinstance(spec, dict):
        spec = from_dict(spec)
    if isinstance(spec, Euclidean) or (isinstance(spec, str) and spec.rpartition("-")[2] in DISTANCES):
        raise UserError(
            "kernel 'euclidean' is a distance, not a positive semidefinite kernel; it serves as relation features, with "
            "n_landmarks; else take 'exponential'"
        )
    if isinstance(spec, Kernel):
        return spec
    if callable(spec) and not isinstance(spec, type):
        return Function(spec)
    if not isinstance(spec, str):
        raise TypeError(f"kernel must be a name, a kernel or a dict, got {type(spec).__name__}; pass e.g. 'rbf'")
    prefix, dash, name = spec.partition("-")
    if not dash:
        prefix, name = "", spec
    if name not in NAMED or (dash and (prefix not in PREFIXES or name == "precomputed")):
        known = [*NAMED, *(f"{p}-{n}" for p in PREFIXES for n in NAMED if n != "precomputed")]
        raise UserError(
            f"kernel {spec!r} is unknown{nearest(spec.lower(), known)}; known are {', '.join(NAMED)}, with a prefix "
            f"{', '.join(p + '-' for p in PREFIXES)} as in 'hellinger-rbf'"
        )
    return NAMED[name](normalize=prefix) if dash else NAMED[name]()


def is_pairwise(spec: Any) -> bool:
    """Tell whether a kernel, or that of a view, is a matrix that the user computed, whose rows and columns are samples."""
    if isinstance(spec, (list, tuple)) or (isinstance(spec, dict) and "kernel" not in spec):
        return any(is_pairwise(one) for one in (spec.values() if isinstance(spec, dict) else spec))
    try:
        return parse(spec).pairwise
    except (UserError, TypeError):  # what is no kernel is told by whoever takes it for one
        return False


def parse_relation(spec: str | Kernel | dict[str, Any]) -> Kernel:
    """Make the kernel or distance that gives relation features.

    Parameters
    ----------
    spec : str, Kernel or dict
        As for `parse`, and "euclidean" (or "l2-euclidean" ... of normalized rows).

    Returns
    -------
    Kernel
        The kernel, or `Euclidean`.

    Examples
    --------
    >>> from dmo.kernels import Euclidean, parse_relation
    >>> parse_relation("euclidean") == Euclidean()
    True
    """
    if isinstance(spec, Euclidean):
        return spec
    prefix, dash, name = spec.rpartition("-") if isinstance(spec, str) else ("", "", "")
    if name in DISTANCES and (prefix in PREFIXES or not dash):
        return DISTANCES[name](normalize=prefix or None)  # type: ignore[no-any-return]
    return parse(spec)


def rescaled(spec: Any, factor: float) -> Any:
    """Multiply the bandwidth of a kernel, or of the kernels of views.

    Parameters
    ----------
    spec : str, Kernel, dict, mapping of view to these, or list
        See `parse`.
    factor : float
        Above 0.

    Returns
    -------
    Kernel, dict or list
        As it was given, with other bandwidths.

    Raises
    ------
    UserError
        For a kernel that has none.

    Examples
    --------
    >>> from dmo.kernels import rescaled
    >>> rescaled("rbf", 0.5).scale
    0.5
    """
    if isinstance(spec, (list, tuple)):
        return [rescaled(part, factor) for part in spec]
    if isinstance(spec, dict) and "kernel" not in spec:
        return {view: rescaled(part, factor) for view, part in spec.items()}
    kernel: Any = parse(spec)
    if isinstance(kernel, (Sum, Product)):
        return replace(kernel, kernels=tuple(rescaled(part, factor) for part in kernel.kernels))
    if not hasattr(kernel, "scale"):
        raise UserError(f"kernel {kernel.name!r} has no bandwidth to scale; leave bandwidth out, or take 'rbf'")
    return replace(kernel, scale=factor * kernel.scale)


def from_dict(spec: dict[str, Any]) -> Kernel:
    """Make the kernel that `to_dict` wrote.

    Parameters
    ----------
    spec : dict
        JSON.

    Returns
    -------
    Kernel
        The kernel.

    Raises
    ------
    UserError
        For unknown kernels and parameters.

    Examples
    --------
    >>> from dmo.kernels import Linear, from_dict
    >>> from_dict(Linear().to_dict()) == Linear()
    True
    """
    rest = dict(spec)
    name = rest.pop("kernel", None)
    kinds = NAMED | DISTANCES | COMPOSITES
    if name not in kinds:
        known = list(kinds)
        raise UserError(f"kernel {name!r} is unknown{nearest(str(name), known)}; known are {', '.join(known)}")
    kind = kinds[name]
    parameters = [f.name for f in fields(kind)]
    wrong = [key for key in rest if key not in parameters]
    if wrong:
        hint = nearest(wrong[0], parameters)
        raise UserError(f"{name}: parameter {wrong[0]!r} is unknown{hint}; known are {', '.join(parameters) or 'none'}")
    if name in COMPOSITES:
        rest["kernels"] = tuple(from_dict(part) for part in rest["kernels"])
    return kind(**rest)
