"""Whether the root of a store says all that its kind needs, in the types and sizes that it needs: it may come from anyone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dmo.stores._errors import StoreError

LARGEST = 1 << 48
"""Rows or columns of an array."""
BLOCKS = 1 << 22
"""Blocks of an array: a list of their checksums takes 64 MiB."""
SMALL = {"features": ("labels", "label", "sample", "split"), "results": ("column", "sample", "split"), "kernel": ()}
"""The arrays that are written in one go, by kind of store."""
OF_VIEWS = ("feature", "present")
"""Names of a view's columns, and which samples it has: of a view "gist" gist_feature and gist_present."""


def check_attributes(url: str, root: Mapping[str, Any]) -> None:
    """Raise StoreError for the first part of a root's attributes that is missing or of another kind than it has to be.

    Arguments: `root`: the attributes of a document whose "kind" is known.
    """
    for name, kind in (("provenance", dict), ("attributes", dict), ("configuration", dict), ("complete", bool)):
        _need(url, isinstance(root.get(name), kind), name)
    CHECKS[root["kind"]](url, root, root["configuration"])


def _need(url: str, right: bool, name: str) -> None:
    if not right:
        raise StoreError(
            f"{url}: the root has no usable {name!r}, it is damaged or was not written by dmo; restore zarr.json from a "
            "copy or make the store again"
        )


def _count(value: Any, least: int = 1) -> bool:
    return type(value) is int and least <= value <= LARGEST


def _dtype(value: Any, kinds: str) -> bool:
    try:
        return isinstance(value, str) and np.dtype(value).kind in kinds and np.dtype(value).itemsize <= 16
    except (TypeError, ValueError):
        return False


def _block(url: str, value: Any, n: int, per_axis: int = BLOCKS) -> None:
    _need(url, _count(value), "block")
    if -(-n // value) > per_axis:
        raise StoreError(f"{url}: n = {n} in blocks of {value}: more than {BLOCKS} blocks; make it with larger blocks")


def _whole(url: str, name: str, known: Any) -> None:
    """What `Whole.to_dict` wrote."""
    _need(url, isinstance(known, Mapping), name)
    shape, sums = known.get("shape"), known.get("checksums")
    _need(url, isinstance(shape, list) and all(_count(length, 0) for length in shape), f"{name}.shape")
    _need(url, known.get("dtype") == "string" or _dtype(known.get("dtype"), "biufc"), f"{name}.dtype")
    right = isinstance(sums, list) and all(type(crc) is int and 0 <= crc < 1 << 32 for crc in sums)
    _need(url, right and (known["dtype"] != "string" or bool(sums)), f"{name}.checksums")


def small_arrays(kind: str, configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the arrays that a store of this kind may hold in one piece: those of `SMALL`, and those of views."""
    views = configuration.get("views", {}) if kind == "features" else {}
    return (*SMALL[kind], *(f"{view}_{part}" for view in views for part in OF_VIEWS))


def _smalls(url: str, kind: str, configuration: Mapping[str, Any]) -> None:
    for name in small_arrays(kind, configuration):
        if name in configuration:
            _whole(url, name, configuration[name])
            _need(url, len(configuration[name]["shape"]) == (2 if name == "labels" else 1), f"{name}.shape")
            if name.endswith("_present"):
                _need(url, configuration[name]["shape"] == [configuration["n_samples"]], f"{name}.shape")


def _features(url: str, root: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    _need(url, _count(known.get("n_samples")), "n_samples")
    _block(url, known.get("block"), known["n_samples"])
    views = known.get("views")
    _need(url, isinstance(views, dict) and bool(views), "views")
    for name, view in known["views"].items():
        _need(url, isinstance(view, dict), f"views.{name}")
        _need(url, _count(view.get("dimension")), f"views.{name}.dimension")
        _need(url, _dtype(view.get("dtype"), "iufb"), f"views.{name}.dtype")
        _need(url, view.get("kind") in ("dense", "sparse"), f"views.{name}.kind")
        _need(url, isinstance(view.get("histogram"), bool), f"views.{name}.histogram")
        _need(url, view.get("missing", True) is True, f"views.{name}.missing")
        _need(url, view.get("codec", "lz4") in ("lz4", "zstd"), f"views.{name}.codec")
        _need(url, len(view) == 4 + ("missing" in view) + ("codec" in view), f"views.{name}")
    _need(url, known.get("class_labels", True) is True, "class_labels")
    _smalls(url, "features", known)


def _kernel(url: str, root: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    _need(url, _count(known.get("n")), "n")
    _block(url, known.get("block"), known["n"], round(BLOCKS**0.5))
    _need(url, known.get("dtype") in ("float32", "float64"), "dtype")


def _results(url: str, root: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for name in ("n", "columns"):
        _need(url, _count(known.get(name)), name)
    _block(url, known.get("block"), known["n"])
    _need(url, isinstance(known.get("kind"), str), "kind")
    _need(url, _dtype(known.get("dtype"), "iufb"), "dtype")
    _smalls(url, "results", known)


def _model(url: str, root: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    _need(url, isinstance(root.get("meta"), dict), "meta")
    _need(url, not root["complete"] or isinstance(root.get("generation"), str), "generation")
    for name, array in known.items():
        _need(url, isinstance(array, dict) and isinstance(array.get("path"), str), name)
        if array.get("format") == "csr":
            shape = array.get("shape")
            _need(
                url, isinstance(shape, list) and len(shape) == 2 and all(_count(m, 0) for m in shape), f"{name}.shape"
            )
            for part in ("indptr", "indices", "data"):
                _whole(url, f"{name}.{part}", array.get(part))
                _need(url, len(array[part]["shape"]) == 1, f"{name}.{part}.shape")
                _need(url, part == "data" or _dtype(array[part]["dtype"], "i"), f"{name}.{part}.dtype")
        else:
            _whole(url, name, array)
            needed = "strings" if array["dtype"] == "string" else "dense"
            _need(url, array.get("format") == needed, f"{name}.format")


CHECKS: dict[str, Callable[[str, Mapping[str, Any], Mapping[str, Any]], None]] = {
    "features": _features,
    "kernel": _kernel,
    "results": _results,
    "model": _model,
}
