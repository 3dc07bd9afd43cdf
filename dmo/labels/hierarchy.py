"""Ancestors of labels in a hierarchy. `dmo.metrics.with_ancestors` adds the ancestors to sets of labels."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from dmo.errors import UserError
from dmo.parameters import SavedLocation


def parents_of(hierarchy: str | Mapping[str, Any] | SavedLocation) -> dict[str, list[str]]:
    """Return the parents of each child, from a mapping or from a CSV file with the columns parent and child."""
    if isinstance(hierarchy, SavedLocation):
        raise hierarchy.refused("hierarchy")
    if not isinstance(hierarchy, str):
        return {str(child): [own] if isinstance(own, str) else list(own) for child, own in hierarchy.items()}
    try:
        with open(hierarchy, encoding="utf-8-sig", newline="") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"hierarchy {hierarchy} cannot be read ({error}); pass a CSV file of parent,child") from None
    found: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        if not line or (number == 1 and [cell.lower() for cell in line] == ["parent", "child"]):
            continue
        if len(line) != 2 or not all(line):
            raise UserError(f"{hierarchy}: line {number} is {','.join(line)!r}; write parent,child")
        found.setdefault(line[1], []).append(line[0])
    return found


def ancestors_of(hierarchy: str | Mapping[str, Any], labels: Iterable[str]) -> dict[str, list[str]]:
    """Find all ancestors of each label, with the nearest first. Ancestors need not be among `labels`."""
    parents, found = parents_of(hierarchy), dict[str, list[str]]()
    for label in labels:
        seen, level = dict[str, None](), parents.get(label, [])
        while level:
            seen |= dict.fromkeys(level)
            level = [above for above in chain.from_iterable(parents.get(own, ()) for own in level) if above not in seen]
        if label in seen:
            raise UserError(f"hierarchy: {label!r} is among its own ancestors {list(seen)}; remove one of its lines")
        found[label] = list(seen)
    return found


def ancestor_pairs(hierarchy: str | Mapping[str, Any], names: Sequence[str]) -> np.ndarray:
    """Return all pairs (i, j) of column indices such that label j is an ancestor of label i."""
    column = {name: j for j, name in enumerate(names)}
    found = ancestors_of(hierarchy, names)
    pairs = [(column[name], column[above]) for name, own in found.items() for above in own if above in column]
    if not pairs:
        known = ", ".join(map(repr, names[:5]))
        raise UserError(
            f"hierarchy: no label is the parent of another; use the names of the labels, which are {known}, ..."
        )
    return np.array(pairs)


def by_column(hierarchy: str | Mapping[str, Any], names: Sequence[str]) -> dict[str, list[str]]:
    """Convert the hierarchy of label names to a hierarchy of column indices."""
    found: dict[str, list[str]] = {}
    for column, above in ancestor_pairs(hierarchy, names).tolist():
        found.setdefault(str(column), []).append(str(above))
    return found
