"""Cells that rows lack, and samples that views lack, found before a feature store is begun."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, row_blocks, rows
from dmo.datasets.writing import Source
from dmo.formats.files import DataError, dense
from dmo.progress import stage

_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Gaps:
    """What a view lacks.

    cells (d,); present (n,)
    """

    cells: np.ndarray  # (d,): by column, the samples that lack its cell and have others
    present: np.ndarray  # (n,): the samples that have any cell: the view lacks the others

    def by_name(self, names: Sequence[str] | None) -> dict[str, int]:
        """Name the columns that have gaps."""
        where = np.flatnonzero(self.cells).tolist()
        return {str(j) if names is None else names[j]: int(self.cells[j]) for j in where}


def gaps_of(view: str, source: Rows) -> Gaps | None:
    """Look for NaN.

    source (n, d)
    """
    n, d = source.shape
    if np.dtype(source.dtype).kind != "f":
        return None
    cells, present, blocks = np.zeros(d, np.intp), np.ones(n, bool), row_blocks(n, _BLOCK)
    with stage(f"look for gaps in {view}", len(blocks)) as advance:
        for where in blocks:
            gap = _missing(rows(source, where))
            if gap is not None:
                has = ~gap.all(axis=1)
                present[where], cells = has, cells + gap[has].sum(axis=0)
            advance(1)
    if not present.any():
        raise DataError(f"view {view!r}: no sample has any cell, expected numbers; leave the view out")
    return None if present.all() and not cells.any() else Gaps(cells, present)


def _missing(block: np.ndarray | scipy.sparse.csr_array) -> np.ndarray | None:
    """Where a block is NaN; None where it is nowhere."""
    if scipy.sparse.issparse(block) and not np.isnan(block.data).any():
        return None
    gap = np.isnan(dense(block))
    return gap if gap.any() else None


def note_gaps(source: Source, views: Collection[str] | None = None) -> None:
    """Write into a source what its views lack: `missing`, `present`, and the attribute "missing" (view -> column ->
    samples).
    """
    for view, X in source.views.items():
        found = gaps_of(view, X) if views is None or view in views else None
        if found is None:
            continue
        if not found.present.all():
            source.present[view] = found.present
        if found.cells.any():
            source.missing.add(view)
            named = found.by_name(source.feature_names.get(view))
            source.attributes["missing"] = {**source.attributes.get("missing", {}), view: named}
