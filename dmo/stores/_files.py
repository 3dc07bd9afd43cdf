"""Checks that output paths are writable before a computation starts, and atomic replacement of files and stores."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from dmo.stores._folder import PARTIAL, Folder, StoreError, writing
from dmo.stores._schema import ROOT, check_kind, existing_root, read_root, set_complete


def check_output(path: str | os.PathLike[str]) -> None:
    """Raise an error if this process cannot write a store at a path or URL.

    The function writes a temporary file, because file permissions do not reveal a read-only or full disk.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.

    Raises
    ------
    StoreError
        If the path is a file or is below a file, or if the URL starts with "memory://", because its contents are lost
        when the process ends.
    OSError
        If the temporary file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from dmo.stores import check_output
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_output(f"{folder}/model.zarr")
    """
    folder = Folder.at(path)
    if folder.url.startswith("memory://"):
        raise StoreError(f"{path} exists only in the memory of this process; pass a path, or a URL such as s3://...")
    if not folder.is_local:
        trial = f".{uuid.uuid4().hex}{PARTIAL}"
        with writing(folder.url, "there"):
            folder.put(trial, b"")
            folder.delete(trial)
        return
    if os.path.exists(folder.url) and not os.path.isdir(folder.url):
        raise StoreError(f"{path} is a file, but a store is a folder; choose another path")
    _try_folder(Path(folder.url))


def check_output_file(path: str | os.PathLike[str]) -> None:
    """Raise an error if this process cannot write a file at a path.

    Parameters
    ----------
    path : str or path-like
        Local path of the file.

    Raises
    ------
    StoreError
        If the path is a URL, a folder or a device, or is below a file.
    OSError
        If a temporary file cannot be written to the folder.

    Examples
    --------
    >>> import tempfile
    >>> from dmo.stores import check_output_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_output_file(f"{folder}/labels.csv")
    """
    if "://" in str(path):
        raise StoreError(f"{path} is a URL, and files are written to local paths only; pass a path")
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreError(f"{path} is a folder or a device, but the output is a file; choose another path")
    _try_folder(Path(path).absolute().parent)


def existing_store(path: str | os.PathLike[str], kind: str) -> bool | None:
    """Check if a store exists and is complete.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL of the store.
    kind : {"features", "kernel", "results", "model"}
        Expected kind of the store.

    Returns
    -------
    bool or None
        Whether the store is complete, or None if there is no store at `path`.

    Raises
    ------
    StoreError
        If the store is damaged or of another kind, or was not written by dmo.

    Examples
    --------
    >>> import tempfile
    >>> from dmo.stores import existing_store, save_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(f"{folder}/model.zarr", {}, {})
    ...     existing_store(f"{folder}/model.zarr", "model"), existing_store(f"{folder}/other.zarr", "model")
    (True, None)
    """
    folder = Folder.at(path)
    document = read_root(folder)
    if document is None:
        return None
    check_kind(folder.url, document["attributes"]["kind"], kind)
    return bool(document["attributes"]["complete"])


def relative_path(store: str | os.PathLike[str], path: str | os.PathLike[str]) -> str:
    """Return a path relative to the folder that contains a store, so that both can be moved together.

    Parameters
    ----------
    store : str or path-like
        Local path or fsspec URL of the store.
    path : str or path-like
        Local path or fsspec URL of another store or file.

    Returns
    -------
    str
        Relative path if `path` is in or below the folder that contains the store, otherwise the absolute path.

    Examples
    --------
    >>> from dmo.stores import relative_path
    >>> relative_path("/data/set/f.zarr", "/data/set/images"), relative_path("/data/set/f.zarr", "/images")
    ('images', '/images')
    """
    return Folder.at(store).relative(path)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically, and create its folder if necessary.

    Parameters
    ----------
    path : Path
        Local path of the file.
    content : bytes
        Complete content of the file.

    Raises
    ------
    OSError
        If the file cannot be written. The message contains the path and suggests a fix.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from dmo.stores import replace_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder) / "new" / "a.txt", b"text")
    ...     (Path(folder) / "new" / "a.txt").read_text()
    'text'
    """
    replace_files({path: content})


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write several files, and replace the existing files only after all new contents are on disk.

    Parameters
    ----------
    contents : mapping of Path to bytes
        Complete content of each file by local path.

    Raises
    ------
    OSError
        If a file cannot be written. The message contains the path and suggests a fix.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.stores import replace_files
    >>> replace_files({Path("a.txt"): b"text", Path("b.txt"): b"more"})
    >>> Path("b.txt").read_text()
    'more'
    """
    parts = {path: path.with_name(f".{path.name}.{uuid.uuid4().hex}{PARTIAL}") for path in contents}
    try:
        for path, content in contents.items():
            with writing(str(path), "the file"):
                path.parent.mkdir(parents=True, exist_ok=True)
                parts[path].write_bytes(content)
        for path, part in parts.items():
            with writing(str(path), "the file"):
                os.replace(part, path)
    except BaseException:
        for part in parts.values():
            with suppress(OSError):
                part.unlink()
        raise


def put_in_place(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Move a complete store to the path of an existing store and replace it.

    The existing store is marked incomplete during the call, and an interrupted call can be repeated. The caller must
    hold the lock of the existing store, see `reserve`.

    Parameters
    ----------
    source : path-like
        Local path of the new store, on the same disk as `target`. The new store must have all arrays of the old store.
    target : path-like
        Local path of the store to replace.

    Raises
    ------
    OSError
        If a file cannot be moved or written.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.stores import open_kernel, put_in_place, reserve, write_kernel
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_kernel(f"{folder}/a.zarr", np.eye(1))
    ...     write_kernel(f"{folder}/b.zarr", 2 * np.eye(1))
    ...     with reserve(f"{folder}/a.zarr"):
    ...         put_in_place(f"{folder}/b.zarr", f"{folder}/a.zarr")
    ...     open_kernel(f"{folder}/a.zarr").tile(0, 0)
    array([[2.]], dtype=float32)
    """
    new, old = Folder.at(source), Folder.at(target)
    root = new.get(ROOT)
    document = existing_root(old)
    with writing(old.url, "the extended store"):
        if document["attributes"]["complete"]:
            set_complete(old, document, False)
        for name in new.names():
            if name != ROOT:  # the root marks the store complete, so it is moved last
                old.delete_tree(name)
                os.rename(f"{new.url}/{name}", f"{old.url}/{name}")
        old.settle(below=True)
        old.put(ROOT, root)
        old.settle()
        shutil.rmtree(new.url)


def _try_folder(folder: Path) -> None:
    """Check that an unnamed file can be created in `folder`, or in its nearest existing parent."""
    place = next(part for part in (folder, *folder.parents) if part.exists())
    if not place.is_dir():
        raise StoreError(f"{folder} cannot be created: {place} is a file; choose another path")
    with writing(str(folder), "there"), TemporaryFile(dir=place):
        pass
