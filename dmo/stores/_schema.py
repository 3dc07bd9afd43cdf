"""Reading, checking and writing of the root document of a store, which is its zarr.json file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dmo
from dmo.errors import UserError
from dmo.stores._arrays import checksum, to_json
from dmo.stores._folder import DamagedRoot, Folder, StoreError, writing
from dmo.stores._lock import acquire, alone, holder, release

LARGEST = 1 << 48
"""Maximum number of rows or columns of an array."""
BLOCKS = 1 << 22
"""Maximum number of blocks of an array. The checksums and sizes of this number of blocks need 64 MiB."""
SMALL = {"features": ("labels", "label", "sample", "split"), "results": ("column", "sample", "split"), "kernel": ()}
"""Names of the arrays that are not divided into blocks, by kind of store."""
OF_VIEWS = ("feature", "present")
"""Suffixes of the additional arrays of a view, which contain the column names and the mask of available samples."""


def check_attributes(url: str, root: Mapping[str, Any]) -> None:
    """Raise StoreError if an attribute of a root document is missing or invalid."""
    for name, kind in (("provenance", dict), ("attributes", dict), ("configuration", dict), ("complete", bool)):
        _need(url, isinstance(root.get(name), kind), name)
    CHECKS[root["kind"]](url, root, root["configuration"])


def _need(url: str, right: bool, name: str) -> None:
    if not right:
        raise StoreError(
            f"{url}: the root has no usable {name!r}, it is damaged or was not written by dmo; restore zarr.json from "
            "a copy or make the store again"
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
    """Check the description of an array that is not divided into blocks, as returned by `Whole.to_dict`."""
    _need(url, isinstance(known, Mapping), name)
    shape, sums = known.get("shape"), known.get("checksums")
    _need(url, isinstance(shape, list) and all(_count(length, 0) for length in shape), f"{name}.shape")
    _need(url, known.get("dtype") == "string" or _dtype(known.get("dtype"), "biufc"), f"{name}.dtype")
    right = isinstance(sums, list) and all(type(crc) is int and 0 <= crc < 1 << 32 for crc in sums)
    _need(url, right and (known["dtype"] != "string" or bool(sums)), f"{name}.checksums")
    _need(url, _count(known.get("rows", 1)), f"{name}.rows")


def small_arrays(kind: str, configuration: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of all arrays that a store of this kind may contain without dividing them into blocks."""
    views = configuration.get("views", {}) if kind == "features" else {}
    return (*SMALL[kind], *(f"{view}_{part}" for view in views for part in OF_VIEWS))


def _csr(url: str, name: str, known: Mapping[str, Any]) -> None:
    shape = known.get("shape")
    _need(url, isinstance(shape, list) and len(shape) == 2 and all(_count(m, 0) for m in shape), f"{name}.shape")
    for part in ("indptr", "indices", "data"):
        _whole(url, f"{name}.{part}", known.get(part))
        _need(url, len(known[part]["shape"]) == 1, f"{name}.{part}.shape")
        _need(url, part == "data" or _dtype(known[part]["dtype"], "i"), f"{name}.{part}.dtype")


def _smalls(url: str, kind: str, configuration: Mapping[str, Any]) -> None:
    for name in small_arrays(kind, configuration):
        known = configuration.get(name)
        if name == "labels" and isinstance(known, Mapping) and known.get("format") == "csr":
            _csr(url, name, known)
        elif name in configuration:
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
    _need(url, known.get("triangle") in ((None,) if root["version"] == 1 else ("both", "lower")), "triangle")


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
            _csr(url, name, array)
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


KINDS = {"features": "feature store", "kernel": "kernel store", "results": "result store", "model": "model"}
VERSIONS = {"features": 2, "kernel": 2, "results": 2, "model": 2}
OLDEST = {"features": 1, "kernel": 1, "results": 2, "model": 2}
"""Oldest version of each kind of store that can be read. Older versions used different names."""
FORMER = {"rows": "results"}
"""New name of each kind of store that was renamed, by its old name."""
ROOT = "zarr.json"
RESUME = "run the program that wrote it again; it resumes where it stopped"


@dataclass(frozen=True)
class Provenance:
    """Origin of a store, which is saved with the store and the version of dmo.

    Parameters
    ----------
    parents : sequence of str, default=()
        Paths or URLs of the stores and files that the store was created from. Paths below the parent folder of the
        store are saved relative to this folder, so that the folder can be moved.
    parameters : mapping, optional
        JSON dictionary with the parameters of the program that created the store.
    seed : int, optional
        Random seed of the program that created the store.

    Examples
    --------
    >>> from dmo.stores import Provenance
    >>> Provenance(["features.zarr"], {"rank": 100}, seed=0).to_dict()["parents"]
    ['features.zarr']
    """

    parents: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert the provenance to a JSON dictionary.

        Returns
        -------
        dict
            Dictionary with the keys dmo (the version), parents, parameters and seed.
        """
        parents = [os.fspath(parent) for parent in self.parents]
        return {"dmo": dmo.__version__, "parents": parents, "parameters": dict(self.parameters), "seed": self.seed}


def plain(value: Any, where: str) -> Any:
    """Convert a value to JSON types: tuples become lists, and NumPy scalars become numbers.

    Raise TypeError or UserError for a value that JSON cannot represent, such as NaN.
    """

    def default(item: Any) -> Any:
        if isinstance(item, np.generic):
            return item.item()
        if isinstance(item, os.PathLike):
            return os.fspath(item)
        raise TypeError(
            f"{where} contains a {type(item).__name__}, which is not JSON; pass numbers, strings, lists and dicts"
        )

    try:
        return json.loads(json.dumps(value, default=default, allow_nan=False))
    except ValueError as error:
        raise UserError(f"{where} cannot be written as JSON ({error}); pass finite values without cycles") from error


def new_attributes(
    folder: Folder,
    kind: str,
    configuration: dict[str, Any],
    attributes: Mapping[str, Any] | None,
    provenance: Provenance | None,
) -> dict[str, Any]:
    origin = (provenance or Provenance()).to_dict()
    document = {
        "kind": kind,
        "version": VERSIONS[kind],
        "complete": False,
        "provenance": origin | {"parents": [folder.relative(parent) for parent in origin["parents"]]},
        "configuration": configuration,
        "attributes": dict(attributes or {}),
    }
    return plain(document, "the attributes of a store")


def origin_of(folder: Folder, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provenance of a store, with the absolute paths or URLs of its parents."""
    found = dict(root["provenance"])
    parents = found.get("parents")
    known = parents if isinstance(parents, list) and all(isinstance(parent, str) for parent in parents) else []
    return found | {"parents": [folder.absolute(parent) for parent in known]}


def read_root(folder: Folder) -> dict[str, Any] | None:
    """Read and check the root document of a store; return None if there is no zarr.json file."""
    folder.refuse_file()
    data = folder.get(ROOT)
    if data is None:
        return None
    document = _document(folder.url, data)
    kind, version = document["attributes"]["kind"], document["attributes"]["version"]
    if version > VERSIONS[kind]:
        raise StoreError(
            f"{folder.url} is a {KINDS[kind]} of version {version}, this dmo reads up to {VERSIONS[kind]}; run: pip "
            "install --upgrade dmo-learn"
        )
    if version < OLDEST[kind]:
        raise StoreError(
            f"{folder.url} is a {KINDS[kind]} of version {version}, written before its names changed; this dmo reads "
            f"version {OLDEST[kind]}; remove it and {'fit it' if kind == 'model' else 'make it'} again"
        )
    known = document["attributes"].pop("checksum", None)
    if known is not None and known != _checksum(document):
        raise DamagedRoot(
            f"{folder.url}: the root fails its checksum; restore {ROOT} from a copy or make the store again"
        )
    check_attributes(folder.url, document["attributes"])
    return document


def _document(url: str, data: bytes) -> dict[str, Any]:
    """Parse a root document. Raise DamagedRoot if it is damaged, and StoreError if another program wrote it."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedRoot(
            f"{url}: {ROOT} is damaged, it is not valid JSON; restore it from a copy or make the store again"
        ) from None
    attributes = document.get("attributes") if isinstance(document, dict) else None
    known = attributes if isinstance(attributes, dict) else {}
    kind, version = known.get("kind"), known.get("version")
    kind = FORMER.get(kind, kind) if isinstance(kind, str) else None
    if kind in KINDS and type(version) is int:
        return {**document, "attributes": {**known, "kind": kind}}
    if {"checksum", "configuration", "provenance"} & set(known):
        raise DamagedRoot(
            f"{url}: {ROOT} is damaged, the kind or version of the store is missing; restore it from a copy or make "
            "the store again"
        )
    raise StoreError(f"{url} is not a dmo store; pass the path of a store that dmo wrote")


def _put_root(folder: Folder, document: dict[str, Any]) -> None:
    attributes = {**document["attributes"], "checksum": _checksum(document)}
    with writing(folder.url, "the root of the store"):
        if attributes["complete"]:
            folder.settle(below=True)
        folder.put(ROOT, to_json({**document, "attributes": attributes}))
        folder.settle()


def _checksum(document: dict[str, Any]) -> int:
    return checksum(np.frombuffer(json.dumps(document, sort_keys=True).encode(), np.uint8))


def existing_root(folder: Folder) -> dict[str, Any]:
    """Read the root document. Raise FileNotFoundError if the path is empty, and StoreError if it is not a dmo store."""
    document = read_root(folder)
    if document is None:
        if not folder.names():
            raise FileNotFoundError(f"no store at {folder.url}; check the path, or create the store first")
        raise StoreError(f"{folder.url} is not a dmo store; pass the path of a store that dmo wrote")
    return document


def open_root(folder: Folder, kind: str) -> dict[str, Any]:
    """Return the root attributes of a store; raise StoreError if it is incomplete or of another kind."""
    attributes = existing_root(folder)["attributes"]
    if attributes["kind"] != kind:
        found, needed = KINDS[attributes["kind"]], KINDS[kind]
        raise StoreError(f"{folder.url} is a {found}, expected a {needed}; pass the path of a {needed}")
    if attributes.get("complete") is not True:
        raise StoreError(f"{folder.url} is incomplete: its writer has not finished; {RESUME}")
    return attributes


def begin(folder: Folder, attributes: dict[str, Any], arrays: Mapping[str, bytes], overwrite: bool) -> dict[str, Any]:
    """Create the root document of a store, or find one with the same configuration; return its attributes."""
    # `arrays` maps the path of each array that xarray should find to the content of its zarr.json file. The lock of the
    # store is acquired unless the store is complete and `overwrite` is False.
    check_attributes(folder.url, attributes)
    document = _root_to_write(folder, attributes, overwrite)
    if document is not None and document["attributes"]["complete"] and not overwrite:
        if holder(folder) is not None:  # the process that finished the store may not have released its lock
            with suppress(OSError, StoreError), alone(folder):
                sweep(folder)
        return document["attributes"]
    acquire(folder)
    try:
        # The previous owner of the lock may have changed the root before it released the lock, so read the root again.
        document = _root_to_write(folder, attributes, overwrite)
        if document is None or overwrite:
            if document is not None:
                clear(folder, document)
            write_root(folder, attributes, arrays)
            return attributes
        if document["attributes"]["complete"]:
            sweep(folder)
            release(folder.url)
        return document["attributes"]
    except BaseException:
        release(folder.url)
        raise


def _root_to_write(folder: Folder, attributes: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Return the root document of an existing store, or None; raise StoreError if the store cannot be written."""
    document = read_root(folder)
    if document is None and folder.names():
        document = read_root(folder)  # another process may have created the store after the first `read_root`
        if document is None:
            raise StoreError(f"{folder.url} exists and is not a dmo store; choose another path or remove it")
    if document is None:
        return None
    check_kind(folder.url, document["attributes"]["kind"], attributes["kind"])
    if not overwrite:
        _check_same(folder, document["attributes"], attributes)
    return document


def write_root(folder: Folder, attributes: dict[str, Any], arrays: Mapping[str, bytes] | None = None) -> None:
    """Write a root document with the metadata of `arrays`, so that xarray reads one file to open the store."""
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    if arrays is not None:
        members = {path: json.loads(data) for path, data in arrays.items()}
        document["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": members}
    _put_root(folder, document)


def set_complete(folder: Folder, document: dict[str, Any], complete: bool) -> None:
    document["attributes"]["complete"] = complete
    _put_root(folder, document)


def sweep(folder: Folder) -> None:
    """Remove the journal and the temporary files of a complete store."""
    with suppress(OSError):
        folder.delete_tree("journal")
        folder.sweep()


def clear(folder: Folder, document: dict[str, Any]) -> None:
    """Mark a store incomplete, then remove its arrays. An interrupted call can be repeated."""
    set_complete(folder, document, False)
    with writing(folder.url, "over the old store"):
        for name in folder.names():
            if name != ROOT:
                folder.delete_tree(name)


def check_kind(url: str, found: str, kind: str) -> None:
    """Raise StoreError if an existing store of kind `found` would be replaced with a store of another kind."""
    if found != kind:
        raise StoreError(f"{url} is a {KINDS[found]}, it is not replaced by a {KINDS[kind]}; choose another path")


CONTENTS = "provenance.parameters.contents."
"""Prefix of the provenance keys that contain hashes of the inputs of a store."""


def _check_same(folder: Folder, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    if found["version"] != wanted["version"]:
        raise StoreError(
            f"{folder.url} is a {KINDS[found['kind']]} of version {found['version']}, which this dmo reads but does "
            "not write to; remove it or choose another path"
        )
    what, cure = "started", "pass the same configuration to resume, or overwrite=True (--overwrite) to start again"
    if found["complete"]:
        what, cure = "made", "pass overwrite=True (--overwrite) to replace it, or choose another path"
    changed = first_difference(found, wanted)
    if changed is not None:
        raise StoreError(f"{folder.url} was {what} {changed}; {cure}")


def first_difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Describe the first difference between the attributes of a store and the requested attributes, or return None."""
    old, new = _flat(_comparable(found)), _flat(_comparable(wanted))
    for key in [*new, *old]:
        if old.get(key) != new.get(key):
            if CONTENTS in key and not any(CONTENTS in known for known in old):
                return "by a version of dmo that did not record what it read"
            if CONTENTS in key:
                return f"from other contents of {key.rpartition(CONTENTS)[2]} than there are now"
            return f"with {key} = {old.get(key, 'nothing')}, now it is {new.get(key, 'nothing')}"
    return None


def _comparable(attributes: Mapping[str, Any]) -> dict[str, Any]:
    provenance = {key: value for key, value in attributes["provenance"].items() if key != "dmo"}
    return {**attributes["configuration"], "attributes": attributes["attributes"], "provenance": provenance}


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found.update(_flat(item, f"{prefix}.{key}" if prefix else key))
    return found
