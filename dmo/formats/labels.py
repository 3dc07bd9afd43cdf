"""Labels in any form that people keep them: the one reader of labels for tables, images and answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from dmo.blocks import dense, rows
from dmo.formats.files import DataError
from dmo.formats.schema import (
    NUMPY,
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
"""0 and 1 for every label; one class a sample; real targets."""
SEPARATORS = ("|", ";", ",")
"""Marks between the labels of a sample, of which the first that occurs is taken."""
_CLASSES, _EACH, _APART = 20, 5, 3
"""Distinct whole numbers up to which a column holds classes; beyond, the samples of every class, and the number of possible
codes per class, from which codes are classes."""
_DIGITS = 15
"""Digits that float64 holds of every integer."""
_TOKEN = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^\s,'"\[\](){}]+)""")
_URI = re.compile(r"\s*<[^<>\s]+>(\s+<[^<>\s]+>)*\s*")


def label_matrix(
    where: str, given: Any, options: TableOptions | None = None, notes: list[str] | None = None
) -> tuple[np.ndarray, list[str] | None, Kind]:
    """Build a label matrix from labels in any form.

    -> labels (n, L)
    """
    import pandas as pd

    options, notes = options or TableOptions(), [] if notes is None else notes
    if is_label_sets(given):
        return (*_indicator([[exact(label) for label in row] for row in given]), "labels")
    if not isinstance(given, pd.DataFrame):
        array = given if hasattr(given, "shape") else np.asarray(given)
        array = dense(rows(array)) if getattr(array, "ndim", 1) == 2 else np.asarray(array)
        if array.ndim == 2 and min(array.shape) > 1:
            found, real = checked_numbers(where, array, None, options)
            return found, None, "targets" if real else "labels"
        given = pd.Series(array.ravel()).to_frame()  # MATLAB writes a vector as one row or one column
    if given.shape[1] == 1:
        return _of_one_column(where, given.iloc[:, 0], options, notes)
    names = [str(name) for name in given.columns]
    parts = [_numbers_of(where, name, given[name], options, notes) for name in given.columns]
    words = [name for name, values in zip(names, parts) if values is None]
    if len(words) > 1 and len(words) == len(names):
        raise DataError(
            f"{where}: columns {' and '.join(map(repr, words[:3]))} hold classes; name one column at a time, for a model "
            f"of each (--label-columns {words[0]}), or write one 0/1 column per class, as pandas.get_dummies does"
        )
    if words:
        cells = given[words[0]]
        first = next(str(value) for value in cells if is_list(value) or not pd.isna(value))
        raise DataError(
            f"{where}: column {words[0]!r} holds words ({first[:40]!r}), expected 0 and 1 or numbers in every column of "
            "labels; pass the names of the samples as id, or the label columns alone"
        )
    values = np.column_stack([part for part in parts if part is not None])
    found, real = checked_numbers(where, values, names, options)
    if real and len(np.unique(values[~np.isnan(values)])) <= _CLASSES and whole_numbers(values.ravel()):
        notes.append(
            f"{where}: {len(names)} columns of whole numbers are read as real targets; name one column for classes"
        )
    return found, names, "targets" if real else "labels"


def _numbers_of(where: str, name: str, column: Any, options: TableOptions, notes: list[str]) -> np.ndarray | None:
    """The numbers of a column, words for true and false as 1 and 0; None for other words and for lists."""
    values = typed_numbers(column, options.missing)
    if values is not None or has_lists(column):
        return values
    if (cells := text_cells(column)) is None:
        raise DataError(f"{where}: column {name!r} holds dates, expected labels or numbers; leave it out")
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
    """Tell whether a cell is a number."""
    import pyarrow as pa

    return numbers(pa.array([cell])) is not None


def label_sets(where: str, given: Any, options: TableOptions | None = None) -> list[list[str]]:
    """Read the labels of every sample by name, in any form that `label_matrix` reads; none if they are not known."""
    Y, names, kind = label_matrix(where, given, options)
    if kind == "targets":
        raise DataError(f"{where}: holds real numbers, expected labels: 0 and 1, classes, or lists of names")
    named = np.array([str(j) for j in range(Y.shape[1])] if names is None else names, dtype=object)
    return [named[row == 1].tolist() for row in Y]


def checked_numbers(
    where: str, array: np.ndarray, names: Sequence[str] | None, options: TableOptions | None = None
) -> tuple[np.ndarray, bool]:
    """(0 and 1, or targets; whether they are targets); DataError for an infinite cell, and if nothing is known.

    Several columns of -1 and 1 are labels, as MATLAB's sets write them.
    """
    options = options or TableOptions()
    values = np.asarray(array, dtype=np.float64)
    for marker in options.missing:
        if numbers_alone(marker):
            values = np.where(values == float(marker), np.nan, values)
    wrong, unknown = np.argwhere(np.isinf(values)), np.isnan(values)

    def place(j: int) -> str:
        return f"column {names[j]!r}" if names is not None else f"column {j}"

    if len(wrong):
        i, j = wrong[0]
        raise DataError(f"{where}: the cell in row {i}, {place(j)} is {values[i, j]}; fill it, or leave the sample out")
    if unknown.all():
        raise DataError(f"{where}: every cell is missing, expected labels of some samples")
    if values.shape[1] > 1 and np.isin(values[~unknown], (-1, 1)).all():
        values = np.where(unknown, np.nan, values > 0)
    known = values[~unknown]
    binary = np.isin(known, (0, 1))
    if not binary.all():
        forced = names is not None and all(options.types.get(name) == "number" for name in names)
        if (
            values.shape[1] > 1
            and not forced
            and binary.mean() > 0.5
            and all(map(_is_sentinel, np.unique(known[~binary])))
        ):
            i, j = np.argwhere(~unknown & ~np.isin(values, (0, 1)))[0]
            mark = exact(values[i, j])
            kinds = "" if names is None else f", or --type {names[j]}=number for each column of real targets"
            raise DataError(
                f"{where}: row {i}, {place(j)} is {mark} among labels of 0 and 1; pass --missing {mark} (missing={mark!r}) "
                f"if it marks unknown labels{kinds}"
            )
        return values, True
    return (values if unknown.any() else values.astype(np.uint8)), False


def _is_sentinel(value: float) -> bool:
    """Whether a number among labels of 0 and 1 looks like a mark of missing values: negative, or nines."""
    return value == int(value) and (value < 0 or set(str(int(value))) == {"9"})


def _of_one_column(
    where: str, column: Any, options: TableOptions, notes: list[str]
) -> tuple[np.ndarray, list[str] | None, Kind]:
    """Labels of one column: lists, classes, or one target. Numbers 0 and 1 alone are named by the column."""
    name = column.name if isinstance(column.name, str) else None
    forced = options.types.get(str(name))
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
        raise DataError(f"{where}: every cell is missing, expected labels of some samples")
    sets, several = [[level] for level in levels], False
    if forced != "category":
        sets, several = _cut(where, str(name), levels, codes, options, notes)
    found, names = _indicator([*sets, []])
    found, gap = found[codes], np.flatnonzero(codes < 0)
    if (
        several and len(gap) and cells is not None
    ):  # an empty cell lists no label, other marks of missing cells say that nobody knows
        empty = cells.take(gap).fill_null("").to_pylist()
        gap = gap[[bool(cell.strip()) for cell in empty]]
    return unknown_rows(found, gap), names, "labels" if several else "classes"


def _is_long(column: Any) -> bool:
    """Whether integers of a column have more digits than float64."""
    known = column.dropna() if column.dtype.kind in "iu" else column[:0]
    return bool(len(known) and max(abs(int(known.min())), abs(int(known.max()))) > 1 << 53)


def _of_numbers(
    where: str, name: str | None, values: np.ndarray, cells: Any, options: TableOptions, notes: list[str]
) -> tuple[np.ndarray, list[str] | None, Kind]:
    """Classes or one target from the numbers of a column; classes are named by the text of the cells."""
    called = name or "label"
    forced = options.types.get(called)
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
        if len(values) <= 2:
            return found, [called], "labels"
        named = {float(level): min(text) for level, text in zip(levels, texts)}
        prefix = "" if name is None else f"{name}="
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
            f"{where}: {called!r} has the classes 0, 1 and {mark}; if {mark} marks unknown labels: --missing {mark}"
        )
    if not (forced == "category" or _are_classes(where, called, levels, codes, len(values), texts, notes)):
        return found, [called], "targets"
    twice = next((sorted(text) for text in texts if len(text) > 1), None)
    if twice is not None:
        if forced != "category":
            raise DataError(
                f"{where}: column {called!r} writes one number as {twice[0]!r} and as {twice[1]!r}; write it alike, or pass "
                f"--type {called}=category for a class each"
            )
        return _of_one_column(where, _as_text(name, cells), options, notes)
    classes = (values[:, None] == levels).astype(np.uint8)
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
    """Whether numbers are classes: few whole numbers, leading zeros, all numbers from 0 or 1 on, or codes far apart."""
    if len(levels) >= n or not np.all(levels == np.round(levels)):
        return False
    if len(levels) <= _CLASSES or any(re.match(r"\s*0\d", text) for one in texts for text in one):
        return True
    least, possible = int(np.bincount(codes).min()), levels[-1] - levels[0] + 1
    if levels[0] in (0, 1) and possible == len(levels) and least > 1:
        return True
    either = f"{where}: column {name!r} holds {len(levels)} different whole numbers in {len(codes)} rows"
    if 2 * len(levels) > len(codes):
        notes.append(f"{either}: read as a real target (classes: --type {name}=category)")
        return False
    if least >= _EACH and possible >= _APART * len(levels):
        notes.append(f"{either}: read as classes (real target: --type {name}=number)")
        return True
    raise DataError(
        f"{either}, which may be codes of classes or a real target; pass --type {name}=category or --type {name}=number "
        f"(types={{{name!r}: 'category'}})"
    )


def _named(cell: Collection[Any]) -> list[str]:
    """The labels that a typed list holds; of objects, as Annif writes them, their address or name."""
    found = []
    for part in cell:
        if isinstance(part, Mapping):
            key = next((key for key in ("uri", "name", "label", "id") if key in part), None)
            if key is None:
                raise DataError(f"labels: a cell lists the object {str(dict(part))[:60]!r}, expected names of labels")
            part = part[key]
        found.append(exact(part))
    return found


def _cut(
    where: str, name: str, levels: Sequence[str], codes: np.ndarray, options: TableOptions, notes: list[str]
) -> tuple[list[list[str]], bool]:
    """(the labels in every distinct cell, whether cells list labels)."""
    if options.separator is not None:
        return split_cells(levels, options.separator)
    if all(is_bracketed(level) for level in levels):
        return [_listed(where, name, level, int(np.flatnonzero(codes == j)[0])) for j, level in enumerate(levels)], True
    if all(_URI.fullmatch(level) for level in levels):
        return [[part[1:-1] for part in level.split()] for level in levels], True
    if any(is_bracketed(level) and level.strip()[0] == "[" for level in levels):
        odd = next(j for j, level in enumerate(levels) if not is_bracketed(level))
        raise DataError(
            f"{where}: column {name!r} holds lists such as ['a', 'b'] as text, row {int(np.flatnonzero(codes == odd)[0])} is "
            f"{levels[odd][:40]!r}; write every cell as a list, or pass --type {name}=category"
        )
    mark = _separator(where, name, levels, notes)
    if options.types.get(name) == "labels" and mark is None:
        return [[level] for level in levels], True
    return split_cells(levels, mark) if mark else ([[level] for level in levels], False)


def _listed(where: str, name: str, cell: str, row: int) -> list[str]:
    """The labels of a Python or JSON list, or of a NumPy array, that was written as text."""
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
    """The mark between the labels of a cell, if cells share parts; a mark inside the name of a class is in that name alone."""
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
                    f"{where}: cells of {name!r} such as {example!r} list labels between spaces (whole cells: --type "
                    f"{name}=category)"
                )
                return mark
            if shared:
                notes.append(
                    f"{where}: cells of {name!r} such as {example!r} hold spaces: each is one class (labels between spaces: "
                    "--separator ' ')"
                )
            continue
        if not shared and (mark == "|" or (mark == ";" and not any("; " in level for level in levels))):
            return mark  # no mark of ordinary text
        if not shared:
            notes.append(
                f"{where}: {example!r} in {name!r} is one label (labels between {mark!r}: --separator '{mark}')"
            )
            continue
        places: dict[str, set[int]] = {}
        for parts in marked:
            for place, part in enumerate(parts):
                places.setdefault(part, set()).add(place)
        free = bool(alone & {*places}) or len({len(parts) for parts in marked}) > 1
        if free or any(len(found) > 1 for found in places.values()):
            return mark
        raise DataError(
            f"{where}: cells of {name!r} such as {example!r} are single labels or lists between {mark!r}; pass --separator "
            f"'{mark}', or --type {name}=category"
        )
    return None


def split_cells(
    cells: Sequence[str], separator: str | None = None, known: Collection[str] = ()
) -> tuple[list[list[str]], bool]:
    """(the labels in every cell, whether there is a mark between them); a cell that is one of the `known` labels is whole."""
    mark = separator
    if mark is None:
        several = [cell for cell in cells if cell not in known]
        mark = next((mark for mark in SEPARATORS if any(mark in cell for cell in several)), None)
    found = [[cell] if mark is None or cell in known else cell.split(mark) for cell in cells]
    return [[part.strip() for part in parts if part.strip()] for parts in found], mark is not None


def unknown_rows(labels: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Labels whose rows of the numbers `where` are not known: NaN; as they are where there are none."""
    if not len(where):
        return labels
    found = labels.astype(np.float64)
    found[where] = np.nan
    return found


def is_label_sets(y: Any) -> bool:
    """Tell whether rows list labels: sets, rows with text in them, or rows of unequal lengths."""
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


def _indicator(sets: Sequence[Collection[str]]) -> tuple[np.ndarray, list[str]]:
    names = sorted({label for row in sets for label in row})
    if not names:
        raise DataError("no sample has a label, expected some")
    place = {name: j for j, name in enumerate(names)}
    found = np.zeros((len(sets), len(names)), dtype=np.uint8)
    for i, row in enumerate(sets):
        found[i, [place[label] for label in row]] = 1
    return found, names


def class_vector(labels: np.ndarray | None, names: Sequence[str] | None) -> np.ndarray | None:
    """Give the class of every sample by its name, None where it is not known.

    labels (n, L) -> (n,)
    """
    if labels is None:
        return None
    known, named = ~np.isnan(labels).any(axis=1), [str(j) for j in range(labels.shape[1])] if names is None else names
    found = np.array(named)[np.nan_to_num(labels).argmax(axis=1)]
    if not known.all():
        found = found.astype(object)
        found[~known] = None
    return found
