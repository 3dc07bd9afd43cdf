"""Labels in any form that people keep them: the one reader of labels for tables, images and answers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np

from dmo.blocks import dense, rows
from dmo.formats.files import DataError
from dmo.formats.frames import TRUTH, distinct, has_lists, is_list, numbers_of

Kind = Literal["labels", "classes", "targets"]
"""0 and 1 for every label; one class a sample; real targets."""
SEPARATORS = ("|", ";", ",")
"""Marks between the labels of a sample, of which the first that occurs is taken."""
_CLASSES = 20
"""Distinct whole numbers up to which a column of them is taken as classes."""


def label_matrix(where: str, given: Any, separator: str | None = None) -> tuple[np.ndarray, list[str] | None, Kind]:
    """Make a label matrix of labels in any form.

    -> labels (n, L)
    """
    import pandas as pd

    if is_label_sets(given):
        return (*_indicator([[str(label) for label in row] for row in given]), "labels")
    if not isinstance(given, pd.DataFrame):
        array = given if hasattr(given, "shape") else np.asarray(given)
        array = dense(rows(array)) if getattr(array, "ndim", 1) == 2 else np.asarray(array)
        if array.ndim == 2 and min(array.shape) > 1:
            found, real = checked_numbers(where, array, None)
            return found, None, "targets" if real else "labels"
        given = pd.Series(array.ravel()).to_frame()  # MATLAB writes a vector as one row or one column
    if given.shape[1] == 1:
        return _of_one_column(where, given.iloc[:, 0], separator)
    names = [str(name) for name in given.columns]
    parts = []
    for name in given.columns:
        values = None if has_lists(given[name]) else numbers_of(given[name])
        if values is None:
            first = next(str(value) for value in given[name] if is_list(value) or not pd.isna(value))
            raise DataError(
                f"{where}: column {name!r} holds words ({first[:40]!r}), expected 0 and 1 or numbers in every column of "
                "labels; pass the names of the samples as id, or the label columns alone"
            )
        parts.append(values)
    found, real = checked_numbers(where, np.column_stack(parts), names)
    return found, names, "targets" if real else "labels"


def label_sets(where: str, given: Any, separator: str | None = None) -> list[list[str]]:
    """The labels of every sample by name, in any form that `label_matrix` reads; none where they are not known."""
    Y, names, kind = label_matrix(where, given, separator)
    if kind == "targets":
        raise DataError(f"{where}: holds real numbers, expected labels: 0 and 1, classes, or lists of names")
    named = np.array([str(j) for j in range(Y.shape[1])] if names is None else names, dtype=object)
    return [named[row == 1].tolist() for row in Y]


def checked_numbers(where: str, array: np.ndarray, names: Sequence[str] | None) -> tuple[np.ndarray, bool]:
    """(0 and 1, or targets; whether they are targets); DataError for an infinite cell, and where nothing is known.

    Several columns of -1 and 1 are labels, as MATLAB's sets write them.
    """
    values = np.asarray(array, dtype=np.float64)
    wrong, unknown = np.argwhere(np.isinf(values)), np.isnan(values)
    if len(wrong):
        i, j = wrong[0]
        column = f"column {names[j]!r}" if names is not None else f"column {j}"
        raise DataError(f"{where}: the cell in row {i}, {column} is {values[i, j]}; fill it, or leave the sample out")
    if unknown.all():
        raise DataError(f"{where}: every cell is missing, expected labels of some samples")
    if values.shape[1] > 1 and np.isin(values[~unknown], (-1, 1)).all():
        values = np.where(unknown, np.nan, values > 0)
    if not np.isin(values[~unknown], (0, 1)).all():
        return values, True
    return (values if unknown.any() else values.astype(np.uint8)), False


def _of_one_column(where: str, column: Any, separator: str | None) -> tuple[np.ndarray, list[str] | None, Kind]:
    """Labels of one column: lists, classes, or one target. Numbers 0 and 1 alone are named by the column."""
    name = str(column.name) if isinstance(column.name, str) else None
    if has_lists(column):
        listed = [is_list(cell) for cell in column]
        sets = [[str(part) for part in cell] if there else [] for there, cell in zip(listed, column)]
        found, names = _indicator(sets)
        return unknown_rows(found, np.flatnonzero(~np.array(listed))), names, "labels"
    gap = np.flatnonzero(column.isna().to_numpy())
    words = {str(value).strip().lower() for value in distinct(column)[1]} if column.dtype.kind in "bO" else set()
    # "yes" and "no" are classes of these names
    values = None if words and words <= TRUTH.keys() else numbers_of(column)
    if values is not None:
        found, real = checked_numbers(where, values[:, None], [name or "label"])
        levels = np.unique(values[~np.isnan(values)]) if real else np.arange(2.0)
        if _are_classes(values, levels):
            classes, prefix = (values[:, None] == levels).astype(np.uint8), "" if real or name is None else f"{name}="
            return unknown_rows(classes, gap), [f"{prefix}{level:g}" for level in levels], "classes"
        return found, [name or "label"], "targets" if real else "labels"
    place, cells = distinct(column)
    sets, several = split_cells([*map(str, cells), ""], separator)
    found, names = _indicator(sets)
    found = found[place]
    return (found, names, "labels") if several else (unknown_rows(found, gap), names, "classes")


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


def _are_classes(values: np.ndarray, levels: np.ndarray) -> bool:
    """Whether a column counts as classes: few whole numbers, or all from 0 or 1 on, each of several samples."""
    if len(levels) >= len(values) or not np.all(levels == np.round(levels)):
        return False
    if len(levels) <= _CLASSES:
        return True
    counted = levels[0] in (0, 1) and levels[-1] - levels[0] == len(levels) - 1
    return bool(counted and np.unique(values[~np.isnan(values)], return_counts=True)[1].min() > 1)


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
