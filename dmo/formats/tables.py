"""Opening of data files with the reader for their format, and concatenation of the files of several splits."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, array_bytes, dense, gathered, nonzero_count, packed, rows, stored_values, transposed
from dmo.formats.arff import Arff, Attribute, open_arff
from dmo.formats.arrays import FORMATS as VECS
from dmo.formats.arrays import RemoteNpy, open_hdf5, open_npy, open_npz, open_vecs, open_zarr
from dmo.formats.files import (
    Block,
    DataError,
    SequentialRows,
    Stacked,
    check_memory,
    lines,
    missing_array,
    open_binary,
    suffix,
)
from dmo.formats.frames import FRAMES, open_numbers
from dmo.formats.matlab import NUMERIC, matlab_cells, matlab_variables, read_matlab
from dmo.formats.parquet import ParquetVectors, open_parquet, vector_columns
from dmo.formats.schema import TRUTH, chosen_columns
from dmo.formats.sources import HDF5, PARQUET, Source, parse_source, split_name, stack_shards
from dmo.formats.text import label_ids, open_csv, open_svmlight
from dmo.progress import stage

K = TypeVar("K")
T = TypeVar("T")
S = TypeVar("S")
SVMLIGHT = (".svm", ".svmlight", ".libsvm")
KNOWN = (*FRAMES, ".npy", ".npz", *HDF5, ".mat", ".zarr", ".arff", *SVMLIGHT, *sorted(VECS))
_SPARSE = re.compile(rb"(\d+(,\d+)*[ \t]+)?\d+:\S")


@dataclass(frozen=True)
class Table:
    r"""Features of one or more files, and the labels in the same files.

    Attributes
    ----------
    X : array-like of shape (n, d)
        Feature matrix, whose rows are read when it is sliced.
    counts : dict of str to int
        Number of rows of each split, in the order of the rows.
    Y : ndarray or csr_array of shape (n, L), or None
        Label matrix, or None if the files contain no labels.
    label_names : list of str or None
        Names of the L labels.
    feature_names : list of str or None
        Names of the d features.
    gaps : bool or None
        Whether the features have missing values, or None if this was not checked.
    classes : bool
        Whether the labels are a multiclass target with one class per row.
    notes : tuple of str
        Messages about columns that were ignored.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import open_table
    >>> _ = Path("a.svm").write_text("1,2 1:0.5 3:2\n2 2:1\n")
    >>> open_table("words", {"all": "a.svm"}, with_labels=True).label_names
    ['1', '2']
    """

    X: Rows
    counts: dict[str, int]
    Y: Block | None = None
    label_names: list[str] | None = None
    feature_names: list[str] | None = None
    gaps: bool | None = None
    classes: bool = False
    notes: tuple[str, ...] = ()


def is_svmlight(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is an svmlight file, or a text file of the Extreme Classification Repository."""
    if suffix(path) in SVMLIGHT:
        return True
    if suffix(path) != ".txt" or not os.path.isfile(path):
        return False
    first, second = ([*(line for _, line in islice(lines(path), 2)), b"", b""])[:2]
    head = first.split()
    return len(head) in (2, 3) and all(part.isdigit() for part in head) and _SPARSE.match(second) is not None


def ending_of(spec: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> str:
    """Return the file extension that determines the format of the data."""
    path = parse_source(spec).paths[0]
    return SVMLIGHT[0] if is_svmlight(path) else suffix(path)


def cell_views(views: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each view that is a MATLAB cell array of matrices with one view per matrix, named NAME1, NAME2, ..."""
    found: dict[str, Any] = {}
    for view, files in views.items():
        given = files if isinstance(files, Mapping) else {"": files}
        cells = {split: _view_cells(spec) for split, spec in given.items()}
        if not all(cells.values()):
            found[view] = files
            continue
        if len({len(one) for one in cells.values()}) > 1:
            raise DataError(
                f"{view}: the cells have {[len(one) for one in cells.values()]} views; pass the same number in every "
                "split"
            )
        for number, specs in enumerate(zip(*cells.values()), 1):
            found[f"{view}{number}"] = dict(zip(cells, specs)) if isinstance(files, Mapping) else specs[0]
    return found


def _view_cells(spec: Any) -> list[str]:
    """Return the names of the matrices in a MATLAB cell array, or an empty list if `spec` is not a cell array."""
    path, name = split_name(str(spec)) if isinstance(spec, str | Path) else ("", None)
    if suffix(path) != ".mat" or (name or "").endswith("}"):
        return []
    cells = {
        cell: parts
        for cell, parts in matlab_cells(path).items()
        if parts and all(kind in NUMERIC and len(shape) == 2 and min(shape) > 1 for shape, kind in parts.values())
    }
    if not name:
        others = [
            shape for shape, kind in matlab_variables(path).values() if kind in NUMERIC and min(shape, default=0) > 1
        ]
        name = next(iter(cells)) if len(cells) == 1 and not others else ""
    return [f"{path}::{part}" for part in cells.get(name, ())]


def questions(views: Mapping[str, Any]) -> list[str]:
    """Return notes about vectors in the same files as the views, which may be the labels."""
    found: list[str] = []
    for view, files in views.items():
        for spec in files.values() if isinstance(files, Mapping) else [files]:
            path, array = split_name(str(spec)) if isinstance(spec, str | Path) else ("", None)
            found += [
                f"view {view!r}: {path} also has the vector {name!r}; if it has the labels, pass --labels "
                f"{path}::{name}"
                for name in _vectors(path)
                if name != array
            ]
    return list(dict.fromkeys(found))


def _vectors(path: str) -> list[str]:
    if suffix(path) == ".npz":
        shapes = {name: member.shape for name, member in open_npz(path).items()}
    elif suffix(path) == ".mat":
        shapes = {name: shape for name, (shape, kind) in matlab_variables(path).items() if kind in NUMERIC}
    else:
        return []
    return [name for name, shape in shapes.items() if len(shape) in (1, 2) and sum(size > 1 for size in shape) == 1]


def shared_rows(shapes: Mapping[str, tuple[int, int]], turnable: Collection[str]) -> int | None:
    """Return the number of samples if all tables have the same number of rows, otherwise None.

    A table in `turnable` may have the samples as columns.
    """
    rows_first = [shape[0] for shape in shapes.values()] + [shapes[name][1] for name in turnable]
    for n in dict.fromkeys(rows_first):
        if all(shape[0] == n or (name in turnable and shape[1] == n) for name, shape in shapes.items()):
            return n
    return None


def open_table(
    name: str,
    files: Mapping[str, str | Path],
    labels: Sequence[str] | int | None = None,
    with_labels: bool = False,
    of_labels: bool = False,
) -> Table:
    """Open the files of a view, one for each split, and concatenate them in the order of the mapping.

    Parameters
    ----------
    name : str
        Name of the view in error messages.
    files : mapping of str to path-like
        File of each split in a form that `open_rows` supports, or ARFF or svmlight files.
    labels : sequence of str or int, default=None
        Names of the label columns of ARFF files, or their number as in `Arff.split`. All or none of the names must
        exist.
    with_labels : bool, default=False
        Whether to read the labels at the beginning of the rows of svmlight files.
    of_labels : bool, default=False
        Whether the files contain labels rather than features, see `open_rows`.

    Returns
    -------
    Table
        Features and labels of all files.

    Raises
    ------
    DataError
        If a file is invalid.
    FileNotFoundError
        If a file does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.datasets import open_table
    >>> np.save("train.npy", np.zeros((3, 2)))
    >>> np.save("test.npy", np.ones((1, 2)))
    >>> table = open_table("gist", {"train": "train.npy", "test": "test.npy"})
    >>> table.X.shape, table.counts
    ((4, 2), {'train': 3, 'test': 1})
    """
    sources = {split: parse_source(spec) for split, spec in files.items()}
    endings = {SVMLIGHT[0] if is_svmlight(path) else suffix(path) for own in sources.values() for path in own.paths}
    if len(endings) > 1 and endings & {".arff", *SVMLIGHT}:
        raise DataError(f"{name}: the files end in {', '.join(sorted(endings))}, expected one format for all splits")
    if endings == {".arff"} or (endings and endings <= set(SVMLIGHT)):
        by_shard = {(split, i): path for split, own in sources.items() for i, path in enumerate(own.paths)}
        sparse = endings != {".arff"}
        table = _svmlight_table(name, by_shard, with_labels) if sparse else _arff_table(name, by_shard, labels)
        counts = dict.fromkeys(files, 0)
        for (split, _), n in zip(by_shard, table.counts.values()):
            counts[split] += n
        return replace(table, counts=counts)
    if labels is not None:
        raise DataError(f"{name}: label columns are supported only for .arff files here; pass a file with the labels")
    parts = _scan(name, files, lambda spec: open_rows(spec, of_labels))
    text = endings <= {".csv", ".tsv"}  # Assume no missing values, because a check would parse the files again.
    counts = {split: part.shape[0] for split, part in parts.items()}
    first = next(iter(sources.values())).paths[0]
    header = open_csv(first).names if suffix(first) in (".csv", ".tsv") else None
    names = None if header is None else list(header)
    X = next(iter(parts.values())) if len(parts) == 1 else Stacked(list(parts.values()), name)
    return Table(X, counts, None, None, names, False if text else None)


def open_rows(spec: str | Path | Sequence[str | Path], of_labels: bool = False) -> Rows:
    """Open a numeric array in one or more files without reading all of it.

    Parameters
    ----------
    spec : path-like or sequence of path-like
        Path, URL or glob, as in `parse_source`. The suffix "::ARRAY" selects an array, and "::ARRAY.T" selects and
        transposes it. For example, "set.mat::X{1}" is the first matrix in a MATLAB cell array. The supported formats
        are .npy, .npz, .mat, .h5, .hdf5, .zarr, .csv, .tsv, .parquet with a column of vectors, and the .hvecs family.
    of_labels : bool, default=False
        Whether the file contains labels. If True, the array may consist of text, and a file that contains a matrix and
        vectors requires the name of an array. If False, vectors in such a file are ignored.

    Returns
    -------
    array-like of shape (n, d)
        Object that reads the requested rows when it is sliced. A vector becomes an array with one column. Text files
        and archives are read sequentially in blocks.

    Raises
    ------
    DataError
        If the array is empty, is not a numeric vector or matrix, or if the file is invalid.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.datasets import open_rows
    >>> np.savez("x.npz", X=np.zeros((3, 2)), Z=np.ones((2, 3)))
    >>> open_rows("x.npz::Z.T").shape
    (3, 2)
    """
    return open_source(parse_source(spec), of_labels)


def open_source(source: Source, of_labels: bool = False) -> Rows:
    """Open the files of a parsed source as one array, see `open_rows`."""
    if source.columns:
        return open_numbers(source)
    return stack_shards(source, [_checked_rows(path, source.name or "", of_labels) for path in source.paths])


def _checked_rows(path: str, array: str, of_labels: bool) -> Rows:
    """Open the array in one file, and check that it is a numeric matrix or, for labels, text."""
    spec = f"{path}::{array}" if array else path
    source = _open(path, array.removesuffix(".T") or None, of_labels)
    if len(source.shape) == 1 and source.shape[0]:
        source = np.asarray(source[:])[:, None]
    if of_labels and np.dtype(source.dtype).kind in "US":
        return np.char.decode(rows(source), "utf-8") if np.dtype(source.dtype).kind == "S" else source
    if len(source.shape) != 2 or min(source.shape) == 0:
        raise DataError(f"{spec}: has shape {tuple(source.shape)}, expected at least one row and one column")
    if np.dtype(source.dtype).kind not in "buif":
        raise DataError(
            f"{spec}: is of type {source.dtype}, expected real numbers; save it with a type such as float32"
        )
    if not array.endswith(".T"):
        return source
    check_memory(spec, array_bytes(source))
    return transposed(rows(source))


def _open(path: str, array: str | None, of_labels: bool) -> Rows:
    ending = suffix(path)
    if ending == ".npz":
        members = open_npz(path)
        least = 1 if of_labels else 2
        found = {name: member.shape for name, member in members.items() if least <= len(member.shape) <= 2}
        return members[_pick(path, array, found, members, of_labels)]
    if ending == ".mat":
        variables = matlab_variables(path)
        matrices = {name: shape for name, (shape, kind) in variables.items() if kind in NUMERIC and len(shape) == 2}
        inside = array is not None and array.endswith("}")
        chosen = str(array) if inside else _pick(path, array, matrices, variables, of_labels)
        if variables.get(chosen, ((), ""))[1] == "cell":
            return _one_of_equals(path, chosen)
        return read_matlab(path, [chosen])[chosen]
    if ending in PARQUET:
        return ParquetVectors(path, array or _pick_column(path))
    if ending in HDF5:
        return open_hdf5(path, array)
    if ending == ".zarr" or os.path.isdir(path) or ("://" in path and ending not in KNOWN):
        return open_zarr(path, array)
    if array is not None:
        raise DataError(f"{path}: a {ending} file has a single array, got ::{array}; pass the path alone")
    if ending in VECS:
        return open_vecs(path)
    if ending == ".npy":
        return RemoteNpy(path) if "://" in path else open_npy(path)
    if ending in (".csv", ".tsv"):
        file = open_csv(path)
        return SequentialRows((file.count(), file.columns), np.dtype(np.float64), file.blocks, path)
    form = _form_of_json(path) if ending == ".json" else None
    raise DataError(
        form or f"{path}: ends in {ending or 'nothing'!r}, expected one of {', '.join(KNOWN)}; rename or convert it"
    )


def _form_of_json(path: str) -> str | None:
    """Return the error message for a JSON document, such as annotations in COCO format; None if it is not JSON."""
    try:
        with open_binary(path) as file:
            found = json.loads(file.read(1 << 28))
    except (OSError, ValueError, RecursionError):
        return None
    form = (
        "write a .csv table with one row per image (name, and labels separated by |), or a .jsonl file with one object "
        "per line"
    )
    if isinstance(found, dict) and "annotations" in found:
        return f"{path}: has annotations in COCO format, expected a table; {form}"
    return f"{path}: is a single JSON document, expected a table; {form}"


def _one_of_equals(path: str, cell: str) -> Rows:
    """Return the matrix that a MATLAB cell array repeats for each view; raise DataError if the matrices differ."""
    found = list(read_matlab(path, list(matlab_cells(path)[cell])).values())
    if not found:
        raise DataError(f"{path}: the cell {cell!r} is empty, expected a matrix")
    same = all(one.shape == found[0].shape and (dense(one) == dense(found[0])).all() for one in found[1:])
    if not same:
        raise DataError(
            f"{path}: the cell {cell!r} has {len(found)} different matrices, expected one; pass {path}::{cell}{{1}}"
        )
    return found[0]


def _pick(
    path: str, array: str | None, shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, object], of_labels: bool
) -> str:
    """Return the name of the requested array, or of the only matrix in a file."""
    wide = [name for name, shape in shapes.items() if min(shape) > 1]
    matrices = wide if len(wide) == 1 and not of_labels else list(shapes)
    if array is None and len(matrices) == 1:
        return matrices[0]
    if array is None:
        raise DataError(
            f"{path}: contains the matrices {', '.join(matrices) or 'none'}, expected one; write {path}::NAME"
        )
    if array not in names:
        raise missing_array(path, array, names)
    return array


def _pick_column(path: str) -> str:
    columns = vector_columns(open_parquet(path))
    if len(columns) != 1:
        raise DataError(
            f"{path}: has the vector columns {', '.join(columns) or 'none'}, expected one; pass {path}::COLUMN"
        )
    return columns[0]


def _arff_table(name: str, files: Mapping[Any, str], labels: Sequence[str] | int | None) -> Table:
    headers = {split: open_arff(path) for split, path in files.items()}
    first = next(iter(headers.values()))
    for arff in headers.values():
        if arff.attributes != first.attributes:
            raise DataError(f"{arff.path}: {name}: its attributes differ from {first.path}, expected the same header")
    if labels is None:
        labels = first.label_count or first.outputs
    elif not isinstance(labels, int):
        chosen, unknown = chosen_columns(first.names, labels)
        labels = [*chosen, *unknown] if chosen else ()  # If none of the names exists, the view contains only features.
    elif labels == 0:
        labels = ()
    features, outputs = first.split(labels)
    texts = [first.names[j] for j in features if first.attributes[j].text]
    features = np.array([j for j in features if not first.attributes[j].text], np.intp)
    if any(first.attributes[j].text for j in outputs):
        raise DataError(f"{first.path}: {name}: a label has type string or date, expected numeric or {{values}}")
    if len(features) == 0:
        raise DataError(f"{first.path}: {name}: all attributes are labels, expected at least one feature")
    # The first pass over the file reads the labels and counts the rows. A second pass reads the features in blocks.
    passes = _scan(name, headers, lambda arff: [_outputs(arff, block, features, outputs) for block in arff.blocks()])
    if len({kind for blocks in passes.values() for _, kind, _ in blocks}) > 1:
        raise DataError(
            f"{first.path}: {name}: some files are sparse and some are dense, expected the same in all splits"
        )
    n = {split: sum(Y.shape[0] for Y, *_ in blocks) for split, blocks in passes.items()}
    names = _names(first, features)
    parts = [
        SequentialRows((n[split], len(names)), np.dtype(np.float64), _Columns(arff, features), arff.path)
        for split, arff in headers.items()
    ]
    lost = any(gaps for blocks in passes.values() for *_, gaps in blocks)
    notes = [f"{first.path}: attributes of type string or date are left out: {', '.join(texts[:6])}"] if texts else []
    table = Table(Stacked(parts, name), n, feature_names=names, gaps=lost, notes=tuple(notes))
    if len(outputs) == 0:
        return table
    label_names = _label_columns(first, outputs, np.zeros((0, len(outputs))))[1]
    found = [Y for blocks in passes.values() for Y, *_ in blocks]
    stored = sum(map(nonzero_count, found))
    Y = gathered(found, (sum(n.values()), len(label_names)), stored, np.result_type(*found))
    return replace(table, Y=Y, label_names=label_names, classes=len(outputs) < len(label_names))


def _outputs(arff: Arff, block: Block, features: np.ndarray, outputs: np.ndarray) -> tuple[Block, type, bool]:
    """Return the labels (as bytes if all are 0 or 1), the type of the block, and whether features are missing."""
    gaps = bool(np.isnan(stored_values(block[:, features])).any())
    Y = dense(block[:, outputs])
    Y = _label_columns(arff, outputs, Y)[0] if len(outputs) else Y
    return packed(Y.astype(np.uint8) if np.isin(Y, (0, 1)).all() else Y), type(block), gaps


def _scan(name: str, files: Mapping[K, T], read: Callable[[T], S]) -> dict[K, S]:
    """Apply `read` to each file, with a progress bar because text files must be read completely to find their shape."""
    found = {}
    with stage(f"scan {name}", len(files)) as advance:
        for split, file in files.items():
            found[split] = read(file)
            advance(1)
    return found


@dataclass(frozen=True)
class _Columns:
    """Callable that reads some columns of an ARFF file in blocks and encodes categorical attributes as one-hot."""

    arff: Arff
    columns: np.ndarray

    def __call__(self) -> Iterator[Block]:
        attributes = [self.arff.attributes[j] for j in self.columns]
        if all(attribute.categories is None for attribute in attributes):
            return (block[:, self.columns] for block in self.arff.blocks())
        return (self._one_hot(dense(block[:, self.columns]), attributes) for block in self.arff.blocks())

    def _one_hot(self, block: np.ndarray, attributes: Sequence[Attribute]) -> np.ndarray:
        parts = []
        for j, attribute in enumerate(attributes):
            parts.append(block[:, [j]] if attribute.categories is None else _marks(block[:, j], attribute.categories))
        return np.hstack(parts)


def _names(arff: Arff, columns: np.ndarray) -> list[str]:
    found: list[str] = []
    for attribute in (arff.attributes[j] for j in columns):
        words = attribute.categories is not None
        found += [f"{attribute.name}={value}" for value in attribute.values or ()] if words else [attribute.name]
    return found


def _marks(codes: np.ndarray, categories: Sequence[float]) -> np.ndarray:
    marks = (codes[:, None] == np.array(categories)).astype(np.float64)
    return np.where(np.isnan(codes)[:, None], np.nan, marks)


def _label_columns(arff: Arff, outputs: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return the labels and their names, where a single categorical attribute becomes one column per class."""
    attributes = [arff.attributes[j] for j in outputs]
    first = attributes[0]
    if len(attributes) == 1 and first.categories is not None:
        return _marks(Y[:, 0], first.categories), list(first.values or ())
    for j, attribute in enumerate(attributes):
        if attribute.values is None or attribute.numbers is not None:
            continue
        truth = [TRUTH.get(value.lower()) for value in attribute.values]
        if None in truth:
            raise DataError(
                f"{arff.path}: the label {attribute.name!r} has the values {', '.join(attribute.values[:4])}, expected "
                f"0 and 1, or numbers, in each of {len(attributes)} labels; --label-count 6 selects the first six "
                "attributes, -6 the last six"
            )
        Y[:, j] = np.where(np.isnan(Y[:, j]), np.nan, np.array(truth, float)[np.nan_to_num(Y[:, j]).astype(int)])
    return Y, [attribute.name for attribute in attributes]


def _svmlight_table(name: str, files: Mapping[Any, str], with_labels: bool) -> Table:
    opened = _scan(name, files, open_svmlight)
    base = min(file.base for file in opened.values())
    d = max(file.shape[1] + file.base for file in opened.values()) - base
    opened = {split: replace(file, base=base, shape=(file.shape[0], d)) for split, file in opened.items()}
    counts = {split: file.shape[0] for split, file in opened.items()}
    parts = [SequentialRows(file.shape, np.dtype(np.float64), file.blocks, file.path) for file in opened.values()]
    X = Stacked(parts, name)
    ids = label_ids(list(opened.values()))
    if not with_labels or not ids:
        return Table(X, counts, gaps=False)
    Y = packed(scipy.sparse.vstack([scipy.sparse.csr_array(file.indicator(ids)) for file in opened.values()], "csr"))
    classes = len(ids) > 1 and bool((Y.sum(axis=1) == 1).all())
    return Table(X, counts, Y, ids, None, False, classes)
