"""Description, verification and repair of stores of any kind."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import numpy as np

from dmo.progress import stage
from dmo.stores import _writer, features, kernels, models, results
from dmo.stores._arrays import Index, entry_at
from dmo.stores._folder import DamagedRoot, Folder, ServiceError, StoreError
from dmo.stores._lock import acquire, release
from dmo.stores._schema import RESUME, VERSIONS, existing_root, origin_of, set_complete, small_arrays
from dmo.stores._writer import Array, Blocks, ledger

CONTENT = {"kind": "content"}
"""Keys of a store configuration that are renamed in its description, because "kind" is the kind of store there."""


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe the contents of a complete or unfinished store.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.

    Returns
    -------
    dict
        JSON dictionary with the keys path, kind, version, complete, bytes (the size on disk), provenance and
        attributes. Further keys contain the configuration, such as the number of samples, the views, and the number of
        samples in each split. The key blocks counts finished and total blocks. The description of a model contains the
        keys arrays and meta instead.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    StoreError
        If `path` is not a dmo store.

    Examples
    --------
    >>> import tempfile
    >>> from dmo.stores import create_results, describe
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_results(f"{folder}/z.zarr", n=10, columns=2, block=4)
    ...     found = describe(f"{folder}/z.zarr")
    ...     found["kind"], found["complete"], found["blocks"]
    ('results', False, {'done': 0, 'total': 3})
    """
    folder = Folder.at(path)
    root = existing_root(folder)["attributes"]
    configuration = root["configuration"]
    found: dict[str, Any] = {
        "path": folder.url,
        **{key: root[key] for key in ("kind", "version", "complete")},
        "provenance": origin_of(folder, root),
        "attributes": root["attributes"],
        "bytes": sum(folder.sizes().values()),
    }
    if root["kind"] == "model":
        kept = ("format", "shape", "dtype")
        found["arrays"] = {
            name: {key: known[key] for key in kept if key in known} for name, known in configuration.items()
        }
        found["meta"] = root["meta"]
        return found
    small = _small(root["kind"], configuration)
    found.update({CONTENT.get(key, key): value for key, value in configuration.items() if key not in small})
    if "labels" in small:
        found["n_labels"] = small["labels"]["shape"][1]
    if "split" in small and root["complete"]:
        found["split"] = dict(Counter(_writer.read_strings(folder, "split", small["split"])))
    arrays = _arrays(folder, root)
    total = sum(1 for array in arrays.values() for _ in array.indices())
    missing = len(Blocks(folder, arrays, root).missing())
    found["blocks"] = {"done": total - missing, "total": total}
    return found


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Read every block of a store and report blocks that are missing or damaged.

    One block is in memory at a time. An incomplete store is reported as one problem, and its finished blocks are
    verified. A kernel store of version 1 is also reported, because other programs read NaN above its diagonal.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.

    Returns
    -------
    list of str
        Descriptions of the problems, or an empty list if the store is intact.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    StoreError
        If `path` is not a dmo store.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import save_model, verify
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(f"{folder}/model.zarr", {"weights": np.ones(3)}, {})
    ...     verify(f"{folder}/model.zarr")
    []
    """
    folder = Folder.at(path)
    try:
        root = existing_root(folder)["attributes"]
    except DamagedRoot as error:
        return [str(error)]
    if root["kind"] == "model":
        found = _verify_model(folder, root)
        replaced = existing_root(folder)["attributes"].get("generation") != root.get("generation")
        return verify(path) if replaced else found
    problems: list[str] = []
    arrays = _arrays(folder, root)
    outdated = root["version"] < VERSIONS[root["kind"]]
    if not root["complete"]:
        missing = len(Blocks(folder, arrays, root).missing())
        cure = "remove it and make it again" if outdated else RESUME
        problems.append(f"{folder.url} is incomplete: {missing} blocks are missing; {cure}")
    elif outdated:
        problems.append(_outdated(folder, root))
    for name, known in _small(root["kind"], root["configuration"]).items():
        _try(problems, _writer.read_whole, folder, name, known)
    for array in arrays.values():
        problems.extend(_verify_array(array, root["complete"]))
    for name in sorted(
        set(folder.names()) - {*arrays, *small_arrays(root["kind"], root["configuration"]), "manifest", "journal"}
    ):
        # The store of image features may contain a nested model store with the settings of the feature extraction.
        if folder.get(f"{name}/zarr.json") is not None:
            problems.extend(verify(f"{folder.url}/{name}"))
    return problems


def reopen(path: str | os.PathLike[str]) -> int:
    """Mark the damaged blocks of a store as missing, so that the program that created the store can write them again.

    After the call, the store is incomplete, and its intact blocks are kept. If the manifest of an array is damaged, all
    blocks of the array are marked as missing.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.

    Returns
    -------
    int
        Number of missing blocks.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `path`.
    StoreError
        If the store is a model or a kernel store of version 1, or if another process is writing the store.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import create_results, reopen
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = create_results(f"{folder}/z.zarr", n=2, columns=2)
    ...     writer.write(0, np.ones((2, 2)))
    ...     writer.finish()
    ...     reopen(f"{folder}/z.zarr")
    0
    """
    folder = Folder.at(path)
    root = existing_root(folder)["attributes"]
    if root["kind"] == "model":
        raise StoreError(f"{folder.url} is a model, which is written in one piece; fit and save it again")
    if root["version"] < VERSIONS[root["kind"]]:
        raise StoreError(_outdated(folder, root))
    acquire(folder)
    try:
        document = existing_root(folder)  # the root may have changed before the lock was acquired
        root = document["attributes"]
        arrays, lost = _arrays(folder, root), 0
        Blocks(folder, arrays, root).prepare()
        for array in arrays.values():
            known = _entries(array, root["complete"])
            for index in array.indices():
                problems: list[str] = []
                if known[index][1] >= 0:
                    _try(problems, _read, array, index, known)
                if known[index][1] >= 0 and not problems:
                    ledger(array).record(index, entry_at(known, index))
                else:
                    ledger(array).forget(index)
                    lost += 1
        set_complete(folder, document, False)
    finally:
        release(folder.url)
    return lost


def _outdated(folder: Folder, root: dict[str, Any]) -> str:
    """Return the message about a kernel store of version 1, the only older version that `dmo` reads."""
    return (
        f"{folder.url} is a kernel store of version {root['version']}, in which other programs read NaN above the diagonal; "
        "make it again at another path, with write_kernel(path, open_kernel(old).to_dask(), block)"
    )


def _entries(array: Array, complete: bool) -> np.ndarray:
    """Return the checksums and sizes of all blocks. If the manifest is damaged, all blocks count as missing."""
    try:
        return ledger(array).load() if complete else ledger(array).recorded(array.indices())
    except StoreError:
        return np.full((*array.grid, 2), -1, dtype=np.int64)


def _verify_array(array: Array, complete: bool) -> list[str]:
    problems: list[str] = []
    metadata = array.folder.get(f"{array.name}/zarr.json")
    if metadata is None or _parse(metadata) != json.loads(array.metadata()):
        cure = "restore it from a copy or make the store again"
        problems.append(f"{array.folder.url}: {array.name}/zarr.json is missing or changed; {cure}")
    indices = list(array.indices())
    try:
        entries = ledger(array).load() if complete else ledger(array).recorded(iter(indices))
    except StoreError as error:
        return [*problems, str(error)]
    with stage(f"verify {array.title}", len(indices)) as advance:
        for index in indices:
            if complete or entries[index][1] >= 0:
                _try(problems, _read, array, index, entries)
            advance(1)
    return problems


def _read(array: Array, index: Index, entries: np.ndarray) -> None:
    array.check(index, entry_at(entries, index))


def _verify_model(folder: Folder, root: dict[str, Any]) -> list[str]:
    if not root["complete"]:
        return [f"{folder.url} is incomplete: saving it did not finish; save the model again"]
    problems: list[str] = []
    for known in root["configuration"].values():
        _try(problems, models.read_array, folder.child(root["generation"]), known)
    cure = "the next save removes the remains of an interrupted one"
    left = sorted(set(folder.names()) - {"zarr.json", root["generation"]})
    return [*problems, *(f"{folder.url}: {name} is not part of the model; {cure}" for name in left)]


def _try(problems: list[str], read: Any, *arguments: Any) -> None:
    try:
        read(*arguments)
    except ServiceError:  # a failed request does not show whether the block is damaged
        raise
    except (StoreError, OSError) as error:
        problems.append(str(error))


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _arrays(folder: Folder, root: dict[str, Any]) -> dict[str, Array]:
    if root["kind"] == "features":
        return dict(features.stored_arrays(folder, root["configuration"]))
    module = kernels if root["kind"] == "kernel" else results
    array = module.stored_array(folder, root["configuration"])
    return {array.name: array}


def _small(kind: str, configuration: dict[str, Any]) -> dict[str, Any]:
    """Return the descriptions, by name, of the arrays that are not divided into blocks, such as labels and names."""
    return {name: configuration[name] for name in small_arrays(kind, configuration) if name in configuration}
