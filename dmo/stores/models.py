"""Model stores, which hold named arrays and a JSON dictionary. Loading a model executes no code.

The arrays of a model are in a subfolder with a unique name, called a generation. The root document names the current
generation and is written last. A model is therefore replaced atomically, on disk and in an object store: a concurrent
reader finds either the old or the new model. An interrupted save leaves the old model unchanged, and the next save
removes the incomplete generation. A lock ensures that one process saves at a time.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import numpy as np
import scipy

from dmo.blocks import in_memory
from dmo.errors import UserError
from dmo.hashing import digest
from dmo.progress import stage
from dmo.stores import _writer
from dmo.stores._arrays import group_json
from dmo.stores._folder import Folder, StoreError, writing
from dmo.stores._lock import alone, reserve
from dmo.stores._schema import ROOT, Provenance, check_kind, new_attributes, open_root, plain, read_root, write_root

T = TypeVar("T")
GENERATION = re.compile("[0-9a-f]{32}")
ATTACHED = "attached"
"""Prefix of the array names of attachments, which are additional data that are saved with a model."""
Attached: TypeAlias = tuple[Mapping[str, np.ndarray], Mapping[str, Any]]
"""Type of an attachment: its arrays by name, and its JSON dictionary."""


def save_model(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Any],
    meta: Mapping[str, Any],
    overwrite: bool = True,
    provenance: Provenance | None = None,
) -> None:
    """Save the arrays and the JSON dictionary of a model atomically.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the model.
    arrays : mapping of str to ndarray or CSR matrix
        Arrays of booleans, numbers or strings by name. A "/" in a name creates a Zarr group.
    meta : mapping
        JSON dictionary of all other data of the model.
    overwrite : bool, default=True
        Whether to replace an existing model at `path`.
    provenance : Provenance, optional
        Origin of the model.

    Raises
    ------
    TypeError
        If an array has an unsupported type, such as an object array or a sparse matrix that is not CSR.
    StoreError
        If `path` holds something other than a model, if it holds a model and `overwrite` is False, or if another
        process is writing a model at `path`.
    OSError
        If the model cannot be written, for example because the disk is full.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import load_model, save_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(f"{folder}/model.zarr", {"weights/gist": np.ones(3)}, {"ridge": 0.1})
    ...     load_model(f"{folder}/model.zarr")
    ({'weights/gist': array([1., 1., 1.])}, {'ridge': 0.1})
    """
    folder = Folder.at(path)
    stored = {name: _check_array(name, value) for name, value in arrays.items()}
    paths = _paths(stored)
    attributes = new_attributes(folder, "model", {}, None, provenance)
    attributes["meta"] = plain(dict(meta), "the meta of a model")
    _check_target(folder, overwrite)
    with alone(folder):
        fresh = not _check_target(folder, overwrite)
        if fresh:  # an empty model marks the folder, so that an interrupted save can be repeated
            write_root(folder, attributes)
        generation = uuid.uuid4().hex
        try:
            configuration = _write_arrays(folder.child(generation), stored, paths)
            attributes.update(configuration=configuration, complete=True, generation=generation)
            write_root(folder, attributes)
        except BaseException:
            if not _counts(folder, generation):
                _discard(folder, generation, *([ROOT] if fresh else []))
            raise
        left = [name for name in folder.names() if GENERATION.fullmatch(name) and name != generation]
        _discard(folder, *left)
        folder.sweep()


@contextmanager
def reserve_model(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[None]:
    """Prevent other processes from writing a model to `path` within a `with` block.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the model, which need not exist yet.
    overwrite : bool, default=False
        Whether an existing model may be replaced.

    Yields
    ------
    None
        Nothing.

    Raises
    ------
    StoreError
        If `save_model` could not write to `path`. The error is raised at the start of the block.

    Examples
    --------
    >>> import tempfile
    >>> from dmo.stores import reserve_model, save_model
    >>> with tempfile.TemporaryDirectory() as folder, reserve_model(f"{folder}/model.zarr"):
    ...     save_model(f"{folder}/model.zarr", {}, {})  # after a long fit
    """
    folder = Folder.at(path)
    _check_target(folder, overwrite)
    with reserve(folder.url):
        _check_target(folder, overwrite)
        yield


def load_model(path: str | os.PathLike[str], prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the arrays and the JSON dictionary of a model without executing code from the model.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the model.
    prefix : str, default=""
        Load only arrays whose names start with this prefix.

    Returns
    -------
    arrays : dict of str to ndarray or csr_array
        Arrays by name.
    meta : dict
        JSON dictionary that was passed to `save_model`.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    StoreError
        If the store is not a model, or is incomplete, damaged, or of an unsupported version.

    Examples
    --------
    >>> from dmo.stores import load_model
    >>> load_model("/nowhere/model.zarr")
    Traceback (most recent call last):
    FileNotFoundError: no store at /nowhere/model.zarr; check the path, or create the store first
    """
    folder = Folder.at(path)
    while True:
        attributes = open_root(folder, "model")
        inside = folder.child(attributes["generation"])
        try:
            wanted = {name: known for name, known in attributes["configuration"].items() if name.startswith(prefix)}
            arrays = {name: read_array(inside, known) for name, known in wanted.items()}
        except (StoreError, FileNotFoundError):
            if open_root(folder, "model")["generation"] == attributes["generation"]:
                raise
            continue  # another process replaced the model and removed the old files while they were read
        return arrays, attributes["meta"]


def load_attached(path: str, name: str) -> Attached | None:
    """Load an attachment of a saved model by name, or return None if the model does not have it."""
    prefix = f"{ATTACHED}/{name}"
    arrays, meta = load_model(path, f"{prefix}/")
    found = meta.get(ATTACHED, {})
    about = found.get(name) if isinstance(found, dict) else None
    if not isinstance(about, dict):
        return None
    return {key.removeprefix(f"{prefix}/"): value for key, value in arrays.items()}, about


def model_contents(path: str | os.PathLike[str]) -> str:
    """Compute a hash of the arrays and the JSON dictionary of a model, which does not depend on its provenance.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the model.

    Returns
    -------
    str
        SHA-256 hash as 64 hexadecimal digits.

    Examples
    --------
    >>> import tempfile
    >>> from dmo.stores import model_contents, save_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("a.zarr", "b.zarr"):
    ...         save_model(f"{folder}/{name}", {}, {"ridge": 0.1})
    ...     model_contents(f"{folder}/a.zarr") == model_contents(f"{folder}/b.zarr")
    True
    """
    return _digest(open_root(Folder.at(path), "model"))


def read_with_contents(path: str, read: Callable[[str], T]) -> tuple[T, str]:
    """Return `read(path)` and the fingerprint of the model. Read again if the model was replaced during the call."""
    folder = Folder.at(path)
    while True:
        attributes = open_root(folder, "model")
        found = read(path)
        # Compare generations instead of fingerprints: a model that was replaced and then restored has the same
        # fingerprint.
        if open_root(folder, "model")["generation"] == attributes["generation"]:
            return found, _digest(attributes)


def _digest(attributes: Mapping[str, Any]) -> str:
    return digest(attributes["meta"], attributes["configuration"])


def read_array(folder: Folder, known: Mapping[str, Any]) -> Any:
    """Read one array of a model from `folder`, and verify its checksums."""
    name = known["path"]
    if known["format"] == "strings":
        return np.array([*_writer.read_strings(folder, name, known)], dtype=str).reshape(known["shape"])
    return _writer.read_whole(folder, name, known)


def _check_array(name: str, value: Any) -> np.ndarray | scipy.sparse.csr_array:
    if not in_memory(value):
        raise TypeError(
            f"array '{name}' is a {type(value).__name__}, models hold NumPy arrays and CSR; put other values into meta"
        )
    if getattr(value, "format", "csr") != "csr":
        raise TypeError(f"array '{name}' is sparse in format {value.format}, models hold CSR; convert it with .tocsr()")
    if value.dtype.kind not in "biufcU" or (value.dtype.itemsize > 16 and value.dtype.kind != "U"):
        raise TypeError(
            f"array '{name}' has dtype {value.dtype}, models hold booleans, numbers and strings; convert it"
        )
    return value


def _paths(names: Iterable[str]) -> dict[str, str]:
    """Return the path of each array in the store: its name with unusual characters percent-encoded."""
    paths: dict[str, str] = {}
    for name in names:
        parts = [quote(part, safe="") for part in name.split("/")] if isinstance(name, str) else []
        if not parts or not all(part.strip(".") and part != "zarr.json" for part in parts):
            raise UserError(f"the array name {name!r} is not usable; pass names such as 'weights' or 'views/gist'")
        paths[name] = "/".join(parts)
    groups = {str(parent) for path in paths.values() for parent in PurePosixPath(path).parents}
    for name, path in paths.items():
        if path in groups:
            raise UserError(f"the array name {name!r} is also the start of another name; rename one of the two")
    return paths


def _check_target(folder: Folder, overwrite: bool) -> bool:
    """Check if a complete model exists that may be replaced; raise StoreError if the path holds anything else."""
    document = read_root(folder)
    if document is None:
        if folder.names():
            raise StoreError(f"{folder.url} exists and is not a dmo store; choose another path or remove it")
        return False
    check_kind(folder.url, document["attributes"]["kind"], "model")
    complete = document["attributes"]["complete"]
    if complete and not overwrite:
        raise StoreError(
            f"{folder.url} holds a model; pass overwrite=True (--overwrite) to replace it, or choose another path"
        )
    return complete


def _counts(folder: Folder, generation: str) -> bool:
    """Check whether the root document names this generation. Return True if the object store does not respond."""
    try:
        document = read_root(folder)
    except StoreError:
        return False
    except OSError:
        return True
    return document is not None and document["attributes"].get("generation") == generation


def _write_arrays(folder: Folder, arrays: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Write the arrays of one generation, and return the descriptions that `read_array` needs to read them."""
    known: dict[str, Any] = {}
    with stage("save the model", len(arrays)) as advance, writing(folder.url, "the model"):
        groups = {str(parent) for path in paths.values() for parent in PurePosixPath(path).parents}
        for group in sorted(groups):
            folder.put("zarr.json" if group == "." else f"{group}/zarr.json", group_json({}))
        for name, value in arrays.items():
            known[name] = {"path": paths[name], **_write_array(folder, paths[name], value)}
            advance(1)
    return known


def _write_array(folder: Folder, name: str, value: np.ndarray | scipy.sparse.csr_array) -> dict[str, Any]:
    if value.dtype.kind == "U":
        whole: Any = _writer.strings(folder, name, value.reshape(-1).tolist(), "item")
    else:
        whole = _writer.whole(folder, name, value)
    whole.write(folder)
    return {"format": "strings" if value.dtype.kind == "U" else "dense", **whole.to_dict(), "shape": list(value.shape)}


def _discard(folder: Folder, *names: str) -> None:
    """Remove files that do not belong to the current model. Errors are ignored, because unused files are harmless."""
    for name in names:
        with suppress(OSError):
            folder.delete_tree(name)
