"""Parser of the names of data. A name is the path of one file, or specifies several files, which are called shards."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dmo.blocks import Rows
from dmo.formats.files import DataError, Stacked, existing, suffix
from dmo.hashing import digest

PARQUET = (".parquet", ".pq")
HDF5 = (".h5", ".hdf5")
_PARTS = (".csv", ".tsv", *PARQUET, ".arrow", ".arrows", ".feather", ".jsonl", ".ndjson")
_SHARDS = (".npy", ".npz", *HDF5, ".hvec", ".hvecs", ".hvec32", ".hvecs32", ".fvec", ".fvecs", ".dvec", ".dvecs")
SHARDED = (*_PARTS, *_SHARDS)
"""File extensions of formats for which data may consist of several files."""
_NAME = re.compile(r"(.+)::(?![A-Za-z][A-Za-z0-9+.-]*://)(.*?)", re.DOTALL)
_OF = re.compile(r"(\d+)-of-(\d+)")


@dataclass(frozen=True)
class Source:
    """List of files that contain one array or table. The files are called shards.

    Parameters
    ----------
    text : str
        Name as passed to `parse_source`.
    paths : tuple of str
        Local paths or URLs of the shards. The shards of a glob or folder are sorted naturally, so that 2 precedes 10.
    name : str or None
        Name of the array or column in each shard.
    kind : {"file", "glob", "folder", "list"}
        Kind of the name.
    columns : tuple of str, default=()
        Numeric columns of Parquet files that are read as one array.

    Examples
    --------
    >>> from dmo.datasets import parse_source
    >>> parse_source("simplecache::s3://bucket/x.npz::gist").name
    'gist'
    """

    text: str
    paths: tuple[str, ...]
    name: str | None = None
    kind: Literal["file", "glob", "folder", "list"] = "file"
    columns: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ending(self) -> str:
        """File extension of the first shard, which determines the format."""
        return suffix(self.paths[0])

    @property
    def is_sharded(self) -> bool:
        """Whether the data were specified as a glob, a folder or a list rather than a single file."""
        return self.kind != "file"

    @property
    def title(self) -> str:
        """Default name of a view: the name of the array, or of the file without its extension and wildcards."""
        if self.name is not None:
            return re.split(r"[/.]", self.name.rstrip("/"))[-1] or "x"
        path = Path(self.text.removeprefix("@"))
        first = re.split(r"[*?\[.]", path.name)[0].strip("-_")
        return first or path.parent.name.partition(".")[0] or "x"

    def digest(self) -> str:
        """Compute a hash of the names, sizes and modification times of all files, without reading the files.

        Returns
        -------
        str
            SHA-256 hash as 64 hexadecimal digits.
        """
        import fsspec

        found = list[Any]()
        for path in self.paths:
            fs, place = fsspec.core.url_to_fs(path)
            files = fs.find(place, detail=True)
            for name in sorted(files):
                changed = next(
                    (files[name][key] for key in ("mtime", "ETag", "etag", "LastModified") if key in files[name]), ""
                )
                found.append((name.removeprefix(place.rpartition("/")[0]), files[name]["size"], str(changed)))
        return digest(found, self.name, *([self.columns] if self.columns else []))

    def place(self, path: str) -> str:
        """Return the name of a shard for messages.

        Parameters
        ----------
        path : str
            Path of the shard.

        Returns
        -------
        str
            Path, followed by "::" and the name of the array if the source selects an array.
        """
        return path if self.name is None else f"{path}::{self.name}"


def split_name(text: str) -> tuple[str, str | None]:
    """Split PATH::NAME into the path and the name of an array, unless "::" is part of a chained fsspec URL."""
    found = None if os.path.lexists(text) else _NAME.fullmatch(text)
    return (text, None) if found is None else (found[1], found[2])


def parse_source(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Source:
    """Find the files that contain one array or table, which are called shards.

    Parameters
    ----------
    given : path-like or sequence of path-like
        Local path or fsspec URL of a file, a glob such as ``train-*.parquet``, a folder of shards, or "@list.txt". The
        file list.txt contains one path per line, relative to its folder. The suffix "::NAME" selects an array or a
        column in each shard. A sequence contains the paths of single files.

    Returns
    -------
    Source
        Shards of the data. The shards of a glob or folder are sorted naturally, so that 2 precedes 10.

    Raises
    ------
    DataError
        If a shard is missing from a sequence of numbered files, or if a glob or a list contains no files.
    FileNotFoundError
        If the list of paths does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.datasets import parse_source
    >>> for i in (9, 10, 11):
    ...     np.savez(f"part.{i}.npz", x=np.eye(2))
    >>> parse_source("part.*.npz::x")
    Source(text='part.*.npz::x', paths=('part.9.npz', 'part.10.npz', 'part.11.npz'), name='x', kind='glob')
    """
    if not isinstance(given, str | os.PathLike):
        split = [split_name(os.fspath(one)) for one in given]
        if len({name for _, name in split}) != 1:
            raise DataError(f"{given[0]} and the files after it have different ::NAME suffixes, expected one suffix")
        return Source(f"{given[0]} and {len(split) - 1} more", tuple(path for path, _ in split), split[0][1], "list")
    text = os.fspath(given)
    path, name = split_name(text)
    kind: Literal["file", "glob", "folder", "list"] = "file"
    paths = [path]
    if not os.path.lexists(path):
        if path.startswith("@"):
            kind, paths = "list", _listed(existing(path[1:]))
        elif has_magic(path):
            kind, paths = "glob", _matches(path)
    elif parts := folder_shards(path):
        kind, paths = "folder", parts
    if kind in ("glob", "folder"):
        paths.sort(key=natural_key)
        _check_sequence(text, paths)
    return Source(text, tuple(paths), name, kind)


def is_zarr(path: str | os.PathLike[str]) -> bool:
    return any(os.path.exists(os.path.join(path, name)) for name in ("zarr.json", ".zarray", ".zgroup"))


def is_zarr_array(path: str | os.PathLike[str]) -> bool:
    """Check whether a local folder or URL is a Zarr array (version 2 or 3) rather than a group."""
    import fsspec

    try:
        fs, place = fsspec.core.url_to_fs(os.fspath(path))
        if fs.exists(f"{place}/zarr.json"):
            return bool(json.loads(fs.cat_file(f"{place}/zarr.json")).get("node_type") == "array")
        return bool(fs.exists(f"{place}/.zarray"))
    except Exception:  # the reader that opens the path raises this error again
        return False


def is_rows(path: str) -> bool:
    """Check whether a path is the name of a table, an array or documents rather than a feature store."""
    source = parse_source(path)
    place = source.paths[0]
    if source.is_sharded or source.name is not None:
        return True
    if not os.path.isdir(place):
        return os.path.isfile(place) or ("://" in place and (source.ending in SHARDED or is_zarr_array(place)))
    return is_zarr_array(place) if is_zarr(place) else any(Path(place).rglob("*.txt"))


def is_image_folder(path: str) -> bool:
    """Check whether a path is a local folder that is not a feature store."""
    return "://" not in path and os.path.isdir(path) and not os.path.exists(os.path.join(path, "zarr.json"))


def natural_key(path: str) -> list[Any]:
    """Return a sort key for natural order, in which 2 precedes 10."""
    return [(int(part), part) if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]


def folder_shards(folder: str | os.PathLike[str]) -> list[str]:
    """List the files in a folder of tables, or of arrays of one format; return [] if it contains any other file."""
    if not os.path.isdir(folder):
        return []
    files, endings = list[str](), set[str]()
    for path in Path(folder).rglob("*"):
        if path.is_file() and not path.name.startswith(("_", ".")):
            files.append(str(path))
            endings.add(suffix(path))
            if not (endings <= set(_PARTS) or (len(endings) == 1 and endings <= set(_SHARDS))):
                return []
    return sorted(files, key=natural_key)


def _matches(pattern: str) -> list[str]:
    if "://" in pattern:
        import fsspec

        found = [file.full_name for file in fsspec.open_files(pattern)]
    else:
        found = [path for path in glob(pattern, recursive=True) if not os.path.isdir(path) or suffix(path) == ".zarr"]
    if not found:
        raise DataError(f"{pattern}: does not match any file, expected at least one shard; check the path and pattern")
    return found


def _listed(path: Path) -> list[str]:
    """Read a file with one path per line. Relative paths start at the folder of this file."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    found = [line if "://" in line else str(path.parent / line) for line in lines if line]
    if not found:
        raise DataError(f"{path}: is empty, expected one path per line; write the paths into it")
    return found


def _check_sequence(text: str, paths: Sequence[str]) -> None:
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(re.sub(r"\d+", "#", path), []).append(path)
    for group in groups.values():
        numbers = np.array([[int(part) for part in re.findall(r"\d+", path)] for path in group])
        changing = [] if numbers.size == 0 else np.flatnonzero((numbers != numbers[0]).any(axis=0)).tolist()
        total = _OF.search(os.path.basename(group[0]))
        if len(changing) > 1 or (not changing and total is None):
            continue
        own = {int(total[1])} if total is not None and not changing else set(numbers[:, changing[0]].tolist())
        first, last = min(own), max(own)
        if total is not None:
            first = int(last == int(total[2]))
            last = int(total[2]) - 1 + first
        lost = last + 1 - first - len(own)
        # If most numbers are missing, the numbers in the file names do not enumerate shards.
        if lost and (total is not None or lost < len(own)):
            number = next(number for number in range(first, last + 1) if number not in own)
            raise DataError(
                f"{text}: number {number} is missing from the shards {os.path.basename(group[0])} to "
                f"{os.path.basename(group[-1])}; restore it, or list the shards to read in a file and pass @FILE"
            )


def stack_shards(source: Source, shards: Sequence[Rows]) -> Rows:
    """Stack the arrays of several shards; raise DataError if their numbers of columns or their dtypes differ."""
    for path, shard in zip(source.paths, shards):
        expected = shards[0].shape[1], np.dtype(shards[0].dtype)
        if (found := (shard.shape[1], np.dtype(shard.dtype))) != expected:
            raise DataError(
                f"{source.place(path)}: has {found[0]} columns of type {found[1]}, expected {expected[0]} of type "
                f"{expected[1]} as in {source.paths[0]}; write all shards with the same columns and type"
            )
    if not source.is_sharded:
        return shards[0]
    return Stacked(shards, source.text, [source.place(path) for path in source.paths])
