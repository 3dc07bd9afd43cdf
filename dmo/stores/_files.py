"""Checks that outputs can be written, before the work starts, and replacement of whole files."""

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
    """Reject a path or URL at which this process cannot write a store.

    The check writes a trial file, because permissions do not reveal read-only or full disks.

    Parameters
    ----------
    path : str or path-like
        Local path or fsspec URL.

    Raises
    ------
    StoreError
        If the path is a file or below one, or if it is a "memory://" URL, whose contents are lost with the process.
    OSError
        If the trial file cannot be written.

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
    """Reject a path at which this process cannot write a file.

    Parameters
    ----------
    path : str or path-like
        Local path.

    Raises
    ------
    StoreError
        If the path is a URL, a folder or below a file.
    OSError
        If the trial file cannot be written.

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
    """Find out if a store exists and is complete.

    Parameters
    ----------
    path : str or path-like
        Local path or URL.
    kind : {"features", "kernel", "results", "model"}
        Expected kind of the store.

    Returns
    -------
    bool or None
        Whether the store is complete, or None if there is no store.

    Raises
    ------
    StoreError
        If the store is of another kind or was not written by dmo.

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
    """Return the name of a path as a store records it, so that both can be moved together.

    Parameters
    ----------
    store : str or path-like
        Local path or URL of the store.
    path : str or path-like
        Local path or URL to name.

    Returns
    -------
    str
        A relative path if `path` is in or below the folder that contains the store, otherwise an absolute path.

    Examples
    --------
    >>> from dmo.stores import relative_path
    >>> relative_path("/data/set/f.zarr", "/data/set/images"), relative_path("/data/set/f.zarr", "/images")
    ('images', '/images')
    """
    return Folder.at(store).relative(path)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically and create its folder if necessary.

    Parameters
    ----------
    path : Path
        Local path.
    content : bytes
        Complete content of the file.

    Raises
    ------
    OSError
        If the file cannot be written; the message contains the path and a fix.

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
    """Write related files; none of them is replaced before all contents are on disk.

    Each file is replaced as by `replace_file`.

    Parameters
    ----------
    contents : mapping of Path to bytes
        Complete content of each file by local path.

    Raises
    ------
    OSError
        If a file cannot be written; the message contains the path and a fix.

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
    """Replace a store by a complete store that has all of its arrays; an interrupted call can be repeated.

    `target` is marked incomplete during the call. The caller must hold its lock, see `reserve`.

    Parameters
    ----------
    source : path-like
        The new store, on the same disk; it no longer exists after the call.
    target : path-like
        The store to replace.

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
            if name != ROOT:  # the root is last, so the store stays incomplete until everything is moved
                old.delete_tree(name)
                os.rename(f"{new.url}/{name}", f"{old.url}/{name}")
        old.settle(below=True)
        old.put(ROOT, root)
        old.settle()
        shutil.rmtree(new.url)


def _try_folder(folder: Path) -> None:
    """Create an unnamed file in the nearest existing folder."""
    place = next(part for part in (folder, *folder.parents) if part.exists())
    if not place.is_dir():
        raise StoreError(f"{folder} cannot be created: {place} is a file; choose another path")
    with writing(str(folder), "there"), TemporaryFile(dir=place):
        pass
