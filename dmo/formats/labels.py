"""Conversion of labels in any supported form to a label matrix."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dmo.blocks import (
    Block,
    ByRows,
    canonical,
    cell_blocks,
    dense,
    filled,
    first_entry,
    gathered,
    in_memory,
    nullable,
    packed,
    rows,
    stored_values,
    unknown_rows,
)
from dmo.formats.files import DataError
from dmo.formats.schema import (
    NUMPY,
    SEPARATORS,
    URI,
    TableOptions,
    decimal_mark,
    exact,
    has_lists,
    is_bracketed,
    is_list,
    levels_of,
    not_a_number,
    numbers,
    text_cells,
    truth_values,
    typed_numbers,
    whole_numbers,
)

Kind = Literal["labels", "classes", "targets"]
"""Kind of the target: label indicators of 0 and 1, one class per sample, or regression targets."""
_CLASSES, _EACH, _APART = 20, 5, 3
"""A column of integers contains classes if it has at most 20 distinct values. With more values, it contains classes if
each value occurs at least 5 times and the range of the values is at least 3 times their number."""
_DIGITS = 15
"""Maximum number of decimal digits with which float64 represents every integer exactly."""
_TOKEN = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^\s,'"\[\](){}]+)""")


def label_matrix(
    where: str, given: Any, options: TableOptions | None = None, notes: list[str] | None = None
) -> tuple[Block, list[str] | None, Kind]:
    """Convert labels in any supported form to a label matrix, label names and the kind of the target.

    The label matrix of shape (n, L) is a CSR array if this needs less memory.
    """
    import pandas as pd

    options, notes = options or TableOptions(), [] if notes is None else notes
    if is_label_sets(given):
        Y, names = _indicator([[exact(label) for label in row] for row in given])
        return packed(Y), names, "labels"
    if not isinstance(given, pd.DataFrame):
        array = given if hasattr(given, "shape") else np.asarray(given)
        if len(array.shape) == 2 and min(array.shape) > 1:
            found, real = checked_numbers(where, array, None, options)
            return found, None, "targets" if real else "labels"
        array = dense(rows(array)) if len(array.shape) == 2 else np.asarray(array)
        given = pd.Series(array.ravel()).to_frame()  # A vector in a MATLAB file is a matrix with one row or one column.
    if given.shape[1] == 1:
        found, labels, kind = _of_one_column(where, given.iloc[:, 0], options, notes)
        return packed(found), labels, kind
    names = [str(name) for name in given.columns]
    parts = [_narrow(_numbers_of(where, name, given[name], options, notes)) for name in given.columns]
    words = [name for name, values in zip(names, parts) if values is None]
    if len(words) > 1 and len(words) == len(names):
        raise DataError(
            f"{where}: columns {' and '.join(map(repr, words[:3]))} have classes, expected a single column; fit one "
            f"model per column (--label-columns {words[0]}), or write one 0/1 column per class, for example with "
            "pandas.get_dummies"
        )
    if words:
        cells = given[words[0]]
        first = next(str(value) for value in cells if is_list(value) or not pd.isna(value))
        raise DataError(
            f"{where}: column {words[0]!r} has text ({first[:40]!r}), expected 0 and 1 or numbers in every label "
            "column; pass the column with the sample ids as id, or pass only the label columns"
        )
    values = _ColumnRows([part for part in parts if part is not None])
    found, real = checked_numbers(where, values, names, options)
    if real and len(np.unique(found[~np.isnan(found)])) <= _CLASSES and whole_numbers(found.ravel()):
        notes.append(
            f"{where}: {len(names)} columns of integers are read as regression targets; pass one column for classes"
        )
    return found, names, "targets" if real else "labels"


class _ColumnRows(ByRows):
    """Array-like of columns with different types, which are converted to a common type block by block."""

    def __init__(self, columns: Sequence[np.ndarray]):
        self.columns, self.dtype = columns, np.result_type(*columns)
        self.shape = len(columns[0]), len(columns)

    def __getitem__(self, where: slice) -> np.ndarray:
        return np.column_stack([column[where] for column in self.columns])


def _narrow(values: np.ndarray | None) -> np.ndarray | None:
    """Convert numbers to uint8 if all of them are 0 or 1."""
    return values if values is None or not ((values == 0) | (values == 1)).all() else values.astype(np.uint8)


def _numbers_of(where: str, name: str, column: Any, options: TableOptions, notes: list[str]) -> np.ndarray | None:
    """Convert a column to numbers (true and false to 1 and 0); return None if the column contains lists or text."""
    values = typed_numbers(column, options.missing)
    if values is not None or has_lists(column):
        return values
    if (cells := text_cells(column)) is None:
        raise DataError(f"{where}: column {name!r} has dates, expected labels or numbers; leave it out")
    if options.types.get(name) in ("category", "labels"):
        return None
    values = numbers(cells, options.missing)
    if values is None:
        values = truth_values(cells, options.missing)
    if values is None:
        mark = decimal_mark(where, {name: cells}, column.to_frame(), (), options, notes)
        values = numbers(cells, options.missing, *mark)
    if values is None:
        codes, levels = levels_of(cells, options.missing)
        counted = np.array([*(numbers_alone(level) for level in levels), False])[codes]
        many = len(levels) > _CLASSES and counted.sum() > 0.5 * (codes >= 0).sum()
        if many or options.types.get(name) == "number":
            row = int(np.flatnonzero((codes >= 0) & ~counted)[0])
            raise not_a_number(where, name, row, levels[codes[row]], "a number as in most rows")
    return values


def numbers_alone(cell: str) -> bool:
    import pyarrow as pa

    return numbers(pa.array([cell])) is not None


def label_sets(where: str, given: Any, options: TableOptions | None = None) -> list[list[str]]:
    """Return the list of label names of every sample, without unknown labels, for labels in any supported form."""
    Y, names, kind = label_matrix(where, given, options)
    if kind == "targets":
        raise DataError(f"{where}: has real numbers, expected labels: 0 and 1, classes, or lists of names")
    named = np.array([str(j) for j in range(Y.shape[1])] if names is None else names, dtype=object)
    labels = scipy.sparse.csr_array(Y == 1)
    return [named[own].tolist() for own in np.split(labels.indices, labels.indptr[1:-1])]


def checked_numbers(
    where: str, array: Any, names: Sequence[str] | None, options: TableOptions | None = None
) -> tuple[Block, bool]:
    """Convert numbers to label indicators of 0 and 1 or to regression targets; also return whether they are targets.

    Raise DataError if a number is infinite or all numbers are missing.
    """
    # Only one block of rows at a time is converted to floats. MATLAB data sets often have label indicators of -1 and 1.
    # Several columns that contain -1 and 1 are therefore interpreted as label indicators.
    options = options or TableOptions()
    marks = [float(mark) for mark in options.missing if numbers_alone(mark)]
    if in_memory(array):
        array = canonical(rows(array))
        array = dense(array) if 0 in marks else array  # if 0 marks unknown labels, implicit zeros are unknown, too
    n, L = array.shape

    def place(j: int) -> str:
        return f"column {names[j]!r}" if names is not None else f"column {j}"

    ones = zeros = negative = others = unknown = 0
    odd, all_marks = None, True
    for first, block in _label_blocks(array, marks):
        cells = stored_values(block)
        one = int(np.count_nonzero(cells == 1))
        zero = int(np.count_nonzero(cells == 0)) + math.prod(block.shape) - cells.size
        ones, zeros = ones + one, zeros + zero
        if one + zero == math.prod(block.shape):
            continue
        if (infinite := np.isinf(cells)).any():
            i, j, value = first_entry(block, infinite)
            raise DataError(
                f"{where}: row {first + i}, {place(j)} is {value}, expected a finite number; correct it, or leave the "
                "sample out"
            )
        gaps = np.isnan(cells)
        other = (cells != 0) & (cells != 1) & ~gaps
        known = cells[other]
        unknown, others = unknown + int(np.count_nonzero(gaps)), others + known.size
        negative += int(np.count_nonzero(known == -1))
        all_marks = all_marks and all(map(_is_sentinel, np.unique(known)))
        if odd is None and other.any():
            i, j, value = first_entry(block, other)
            odd = first + i, j, value
    if unknown == n * L:
        raise DataError(f"{where}: all cells are missing, expected labels for some samples")
    forced = names is not None and all(options.types.get(name) == "number" for name in names)
    signed = L > 1 and not zeros and others == negative and not forced
    if odd is not None and not signed:
        if L > 1 and not forced and ones + zeros > others and all_marks:
            i, j, value = odd
            mark = exact(value)
            kinds = "" if names is None else f", or --type {names[j]}=number for each column of regression targets"
            raise DataError(
                f"{where}: row {i}, {place(j)} is {mark}, expected 0 or 1 as in most cells; pass --missing {mark} "
                f"(missing={mark!r}) if it marks unknown labels{kinds}"
            )
        if isinstance(array, np.ndarray) and array.dtype == np.float64 and not marks:
            return array, True
        return np.concatenate([dense(block) for _, block in _label_blocks(array, marks)], dtype=np.float64), True
    if isinstance(array, np.ndarray) and array.dtype == np.uint8 and not unknown:
        return packed(array), False
    parts = (_of_signs(block) if signed else block for _, block in _label_blocks(array, marks))
    found = gathered(parts, (n, L), ones + unknown, np.float32 if unknown else np.uint8)
    return nullable(found) if unknown else found, False


def _label_blocks(array: Any, marks: Sequence[float]) -> Iterator[tuple[int, Any]]:
    """Yield each block of rows, with NaN instead of missing value markers, and the index of its first row."""
    for where in cell_blocks(array.shape):
        block = rows(array, where)
        if marks or block.dtype.kind not in "buif":
            block = block.astype(np.float64)
            cells = stored_values(block)
            for mark in marks:
                cells[cells == mark] = np.nan
        yield where.start, block


def _of_signs(block: Any) -> Any:
    """Replace -1 with 0 in label indicators of -1, 1 and NaN."""
    values = dense(block)
    return np.where(np.isnan(values), values, values > 0) if values.dtype.kind == "f" else values > 0


def _is_sentinel(value: float) -> bool:
    """Return whether a number may be a missing value marker, such as -1 or 999: negative, or with only the digit 9."""
    return value == int(value) and (value < 0 or set(str(int(value))) == {"9"})


def _of_one_column(
    where: str, column: Any, options: TableOptions, notes: list[str]
) -> tuple[Block, list[str] | None, Kind]:
    name = column.name if isinstance(column.name, str) else None
    forced = options.label_kind(str(name))
    if has_lists(column):
        listed = [is_list(cell) for cell in column]
        sets = [_named(cell) if there else [] for there, cell in zip(listed, column)]
        found, names = _indicator(sets)
        return unknown_rows(found, np.flatnonzero(~np.array(listed))), names, "labels"
    words = column.dtype.kind == "b" or _is_long(column)
    cells = text_cells(column.astype(object) if words else column)
    if cells is not None:
        codes, levels = levels_of(cells, options.missing)
        words |= forced in ("category", "labels") or truth_values(cells, options.missing) is not None
        words |= forced != "number" and any(len(level) > _DIGITS and level.strip().isdigit() for level in levels)
    values = None if words else _numbers_of(where, str(name), column, options, notes)
    if values is not None:
        return _of_numbers(where, name, values, cells, options, notes)
    if not levels:
        raise DataError(f"{where}: all cells are missing, expected labels for some samples")
    sets, several = [[level] for level in levels], False
    if forced != "category":
        sets, several = _cut(where, str(name), levels, codes, options, notes)
    found, names = _indicator([*sets, []])  # The additional empty list represents missing cells.
    found, gap = found[np.where(codes < 0, len(sets), codes)], np.flatnonzero(codes < 0)
    if (
        several and len(gap) and cells is not None
    ):  # An empty cell means that the sample has no labels. A missing value marker means that its labels are unknown.
        empty = cells.take(gap).fill_null("").to_pylist()
        gap = gap[[bool(cell.strip()) for cell in empty]]
    return unknown_rows(found, gap), names, "labels" if several else "classes"


def _is_long(column: Any) -> bool:
    known = column.dropna() if column.dtype.kind in "iu" else column[:0]
    return bool(len(known) and max(abs(int(known.min())), abs(int(known.max()))) > 1 << 53)


def _of_numbers(
    where: str, name: str | None, values: np.ndarray, cells: Any, options: TableOptions, notes: list[str]
) -> tuple[Block, list[str] | None, Kind]:
    """Convert a column of numbers to classes, to a single label or to a regression target."""
    called = name or "label"
    forced = options.label_kind(called)
    found, real = checked_numbers(where, values[:, None], [called], options)
    known = ~np.isnan(values)
    levels, codes = np.unique(values[known], return_inverse=True)
    if forced == "number" or (forced == "boolean" and not real):
        return found, [called], "targets" if real or forced == "number" else "labels"
    texts = [{exact(level)} for level in levels]
    if cells is not None:
        texts = [set() for _ in levels]
        for j, text in dict.fromkeys(zip(codes.tolist(), cells.filter(known).to_pylist())):
            texts[j].add(text)
    if not real:
        if len(values) <= 2 and forced is None:
            return found, [called], "labels"
        named = {float(level): min(text) for level, text in zip(levels, texts)}
        prefix = "" if name is None else options.label_prefix(name)
        both = (values[:, None] == [0, 1]).astype(np.uint8)
        return (
            unknown_rows(both, np.flatnonzero(~known)),
            [prefix + named.get(v, exact(v)) for v in (0.0, 1.0)],
            "classes",
        )
    odd = [level for level in levels if level not in (0, 1)]
    if len(odd) == 1 and _is_sentinel(odd[0]) and {0, 1} <= {*levels}:
        mark = exact(odd[0])
        notes.append(
            f"{where}: {called!r} has the classes 0, 1 and {mark}; pass --missing {mark} if {mark} marks unknown labels"
        )
    if not (forced == "category" or _are_classes(where, called, levels, codes, len(values), texts, notes)):
        return found, [called], "targets"
    twice = next((sorted(text) for text in texts if len(text) > 1), None)
    if twice is not None:
        if forced != "category":
            raise DataError(
                f"{where}: column {called!r} has the same number as {twice[0]!r} and as {twice[1]!r}; use one "
                f"spelling, or pass --type {called}=category to get a class for each"
            )
        return _of_one_column(where, _as_text(name, cells), options, notes)
    ends = np.concatenate([[0], np.cumsum(known)])
    classes = scipy.sparse.csr_array((np.ones(len(codes), np.uint8), codes.ravel(), ends), (len(values), len(levels)))
    return unknown_rows(classes, np.flatnonzero(~known)), [min(text) for text in texts], "classes"


def _as_text(name: str | None, cells: Any) -> Any:
    import pandas as pd

    return pd.Series(cells.to_pylist(), name=name, dtype=object)


def _are_classes(
    where: str,
    name: str,
    levels: np.ndarray,
    codes: np.ndarray,
    n: int,
    texts: Sequence[Collection[str]],
    notes: list[str],
) -> bool:
    """Return whether a column of integers contains classes rather than a regression target.

    Classes are recognized by few distinct values, leading zeros, consecutive numbers, or codes with large gaps.
    """
    if len(levels) >= n or not np.all(levels == np.round(levels)):
        return False
    if len(levels) <= _CLASSES or any(re.match(r"\s*0\d", text) for one in texts for text in one):
        return True
    least, possible = int(np.bincount(codes).min()), levels[-1] - levels[0] + 1
    if levels[0] in (0, 1) and possible == len(levels) and least > 1:
        return True
    either = f"{where}: column {name!r} has {len(levels)} different integers in {len(codes)} rows"
    if 2 * len(levels) > len(codes):
        notes.append(f"{either}, read as a regression target (for classes: --type {name}=category)")
        return False
    if least >= _EACH and possible >= _APART * len(levels):
        notes.append(f"{either}, read as classes (for a regression target: --type {name}=number)")
        return True
    raise DataError(
        f"{either}, which can be class codes or a regression target; pass --type {name}=category or "
        f"--type {name}=number (types={{{name!r}: 'category'}})"
    )


def _named(cell: Collection[Any]) -> list[str]:
    """Return the labels in a list. A JSON object, as in files of Annif, is replaced with its URI or name."""
    found = []
    for part in cell:
        if isinstance(part, Mapping):
            key = next((key for key in ("uri", "name", "label", "id") if key in part), None)
            if key is None:
                raise DataError(f"labels: a cell has the object {str(dict(part))[:60]!r}, expected label names")
            part = part[key]
        found.append(exact(part))
    return found


def _cut(
    where: str, name: str, levels: Sequence[str], codes: np.ndarray, options: TableOptions, notes: list[str]
) -> tuple[list[list[str]], bool]:
    """Split each distinct cell into labels; also return whether the cells are lists of labels."""
    if (separator := options.label_separator(levels)) is not None:
        return split_cells(levels, separator)
    if all(is_bracketed(level) for level in levels):
        return [_listed(where, name, level, int(np.flatnonzero(codes == j)[0])) for j, level in enumerate(levels)], True
    if all(URI.fullmatch(level) for level in levels):
        return [[part[1:-1] for part in level.split()] for level in levels], True
    if any(is_bracketed(level) and level.strip()[0] == "[" for level in levels):
        odd = next(j for j, level in enumerate(levels) if not is_bracketed(level))
        raise DataError(
            f"{where}: column {name!r} has lists such as ['a', 'b'], but row {int(np.flatnonzero(codes == odd)[0])} is "
            f"{levels[odd][:40]!r}; write every cell as a list, or pass --type {name}=category"
        )
    mark = _separator(where, name, levels, notes)
    if options.label_kind(name) == "labels" and mark is None:
        return [[level] for level in levels], True
    return split_cells(levels, mark) if mark else ([[level] for level in levels], False)


def _listed(where: str, name: str, cell: str, row: int) -> list[str]:
    """Parse labels from the text of a Python list, a JSON list or a NumPy array."""
    import ast

    inner = NUMPY.sub(r"\1", cell.strip()[1:-1]).strip()
    if "'" not in inner and '"' not in inner:
        parts = inner.split(",") if "," in inner or not re.match(r"-?[\d.]+(\s+-?[\d.]+)+$", inner) else inner.split()
        return [part.strip() for part in parts if part.strip()]
    left = _TOKEN.sub("", inner).strip(" ,\n\t\r[](){}")
    if left or not inner:
        raise DataError(
            f"{where}: column {name!r}, row {row} is {cell[:60]!r}, expected a list of labels such as ['a', 'b']; or pass "
            f"--type {name}=category"
        )
    found = []
    for token in _TOKEN.finditer(inner):
        text = token.group()
        found.append(str(ast.literal_eval(text)) if text[0] in "'\"" else text)
    return found


def _separator(where: str, name: str, levels: Sequence[str], notes: list[str]) -> str | None:
    """Detect the separator between the labels of a cell; return None if each cell is a single label."""
    for mark in (*SEPARATORS, " "):
        sets = [[part.strip() for part in level.split(mark) if part.strip()] for level in levels]
        marked = [parts for parts in sets if len(parts) > 1]
        if not marked:
            continue
        counts = Counter(part for parts in sets for part in {*parts})
        shared = {part for parts in marked for part in parts if counts[part] > 1}
        alone = {parts[0] for parts in sets if len(parts) == 1}
        example = next(level for level in levels if mark in level.strip())
        lengths = {len(parts) for parts in sets}
        if mark == " ":
            if len(lengths) > 1 and len(counts) < len(levels) and all(counts[p] > 1 or p in alone for p in counts):
                notes.append(
                    f"{where}: cells of {name!r} such as {example!r} are split into labels at spaces (for whole cells: "
                    f"--type {name}=category)"
                )
                return mark
            if shared:
                notes.append(
                    f"{where}: cells of {name!r} such as {example!r} have spaces and are read as one class each (to "
                    "split them: --separator ' ')"
                )
            continue
        if not shared and (mark == "|" or (mark == ";" and not any("; " in level for level in levels))):
            return mark  # Both | and ; are rare in class names, so they separate labels.
        if not shared:
            notes.append(f"{where}: {example!r} in {name!r} is read as one label (to split it: --separator '{mark}')")
            continue
        places: dict[str, set[int]] = {}
        for parts in marked:
            for place, part in enumerate(parts):
                places.setdefault(part, set()).add(place)
        free = bool(alone & {*places}) or len({len(parts) for parts in marked}) > 1
        if free or any(len(found) > 1 for found in places.values()):
            return mark
        raise DataError(
            f"{where}: cells of {name!r} such as {example!r} can be single labels or lists separated by {mark!r}; pass "
            f"--separator '{mark}', or --type {name}=category"
        )
    return None


def split_cells(
    cells: Sequence[str], separator: str | None = None, known: Collection[str] = ()
) -> tuple[list[list[str]], bool]:
    """Split cells into labels, but keep cells that are `known` labels; also return whether a separator was used."""
    mark = separator
    if mark is None:
        several = [cell for cell in cells if cell not in known]
        mark = next((mark for mark in SEPARATORS if any(mark in cell for cell in several)), None)
    found = [[cell] if mark is None or cell in known else cell.split(mark) for cell in cells]
    return [[part.strip() for part in parts if part.strip()] for parts in found], mark is not None


def is_label_sets(y: Any) -> bool:
    """Return whether `y` is a sequence with a set or list of labels for each sample."""
    if isinstance(y, (str, bytes)) or not (isinstance(y, (list, tuple)) or getattr(y, "ndim", 0) == 1):
        return False
    if getattr(y, "dtype", np.dtype(object)).kind != "O":
        return False
    sets: list[Any] = list(y)
    if not sets or not all(map(is_list, sets)) or any(isinstance(row, np.ndarray) and row.ndim != 1 for row in sets):
        return False
    if any(isinstance(row, (set, frozenset)) for row in sets):
        return True
    named = [row for row in sets if getattr(row, "dtype", np.dtype(object)).kind in "OU"]
    return len({len(row) for row in sets}) > 1 or any(isinstance(label, str) for row in named for label in row)


def _indicator(sets: Sequence[Collection[str]]) -> tuple[scipy.sparse.csr_array, list[str]]:
    names = sorted({label for row in sets for label in row})
    if not names:
        raise DataError("no sample has a label, expected labels for some samples")
    place = {name: j for j, name in enumerate(names)}
    listed = [sorted({place[label] for label in row}) for row in sets]
    ends = np.concatenate([[0], np.cumsum([len(row) for row in listed])])
    columns = np.fromiter((j for row in listed for j in row), np.int32, ends[-1])
    return scipy.sparse.csr_array((np.ones(ends[-1], np.uint8), columns, ends), (len(sets), len(names))), names


def class_vector(labels: Any, names: Sequence[str] | None) -> np.ndarray | None:
    """Convert class indicators of shape (n, L) to an array of n class names, with None for unknown classes."""
    if labels is None:
        return None
    named = np.array([str(j) for j in range(labels.shape[1])] if names is None else names)
    known = ~np.isnan(np.asarray(labels.sum(axis=1)).ravel())
    # Each row of class indicators contains a single 1, so its product with 0, ..., L - 1 is the index of the class. If
    # the class is unknown, the product is 0, and the class name is replaced with None below.
    found = named[np.asarray(filled(labels) @ np.arange(labels.shape[1])).astype(np.intp)]
    if not known.all():
        found = found.astype(object)
        found[~known] = None
    return found
