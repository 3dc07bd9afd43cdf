"""The one way from row sources into a feature store."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, row_blocks, rows
from dmo.formats.files import Block, DataError, dense
from dmo.progress import stage
from dmo.stores import FeatureStore, FeatureWriter, Provenance, ViewSpec, create_features, open_features

_NARROW, _LARGEST = 4096, 1 << 22  # rows of a block, where those of each view take no more than these bytes
ALL = "all"
"""The split of samples that have none."""


@dataclass
class Source:
    """What goes into a feature store.

    labels (n, L); present (n,)
    """

    views: dict[str, Rows]  # name -> n x d
    labels: np.ndarray | None = None  # (n, L): 0 and 1, NaN where one is not known
    label_names: list[str] | None = None  # L names
    sample_ids: list[str] | None = None  # n names
    counts: dict[str, int] = field(default_factory=dict)  # samples by split, in the order of the rows
    histograms: set[str] = field(default_factory=set)  # the views of counts
    dtypes: dict[str, np.dtype] = field(default_factory=dict)  # view -> type to store; others keep the rows' own
    attributes: dict[str, Any] = field(default_factory=dict)  # JSON values
    provenance: Provenance = field(default_factory=Provenance)  # where it comes from
    feature_names: dict[str, list[str]] = field(default_factory=dict)  # view -> d names
    real_labels: bool = False  # labels are real targets
    class_labels: bool = False  # labels are classes, of which every sample has one
    missing: set[str] = field(default_factory=set)  # views of which cells may be NaN
    parts: list[str] | None = None  # the split of each sample, where they are not in the order of `counts`
    present: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def split(self) -> list[str] | None:
        """The split of each sample, or None where there is none."""
        if self.parts is not None:
            return self.parts
        if list(self.counts) in ([], [ALL]):
            return None
        return [name for name, count in self.counts.items() for _ in range(count)]


@dataclass(frozen=True, eq=False)
class ZeroedRows:
    """A row source (n x d) with zeros in the place of the rows that it lacks: those that are not `present` (n)."""

    source: Rows
    present: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.source.shape[0], self.source.shape[1]

    @property
    def dtype(self) -> Any:
        return self.source.dtype

    def __getitem__(self, where: slice) -> Block:
        block = rows(self.source, where)
        if scipy.sparse.issparse(block):
            return scipy.sparse.csr_array(scipy.sparse.diags_array(self.present[where].astype(block.dtype)) @ block)
        return np.where(self.present[where, None], block, block.dtype.type(0))


def write(
    source: Source,
    store: str | os.PathLike[str],
    *,
    block: int | None = None,
    overwrite: bool = False,
    totals: Mapping[str, float] | None = None,
) -> FeatureStore:
    """Write a source block by block as a feature store, skipping the blocks that an earlier run wrote."""
    # Data that are refused leave no store behind, unless an earlier run had written some of its blocks: then those
    # stay, unfinished, and no reader opens them.
    n = next(iter(source.views.values())).shape[0]
    specs = {
        view: ViewSpec(
            X.shape[1],
            source.dtypes.get(view, X.dtype),
            kind="sparse" if scipy.sparse.issparse(rows(X, slice(0, 0))) else "dense",
            histogram=view in source.histograms,
            missing=view in source.missing,
        )
        for view, X in source.views.items()
    }
    narrow = all(_NARROW * spec.dimension * np.dtype(spec.dtype).itemsize <= _LARGEST for spec in specs.values())
    writer = create_features(
        store,
        n,
        specs,
        labels=source.labels,
        label_names=source.label_names,
        sample_ids=source.sample_ids,
        split=source.split,
        attributes=source.attributes,
        block=block or (_NARROW if narrow else 1024),
        overwrite=overwrite,
        provenance=source.provenance,
        feature_names=source.feature_names,
        real_labels=source.real_labels,
        class_labels=source.class_labels,
        present=source.present,
    )
    missing = set(writer.missing())
    fresh = len(missing) == len(specs) * writer.n_blocks
    try:
        for view, X in source.views.items():
            given = X if view not in source.present else ZeroedRows(X, source.present[view])
            total = _write_view(writer, view, given, specs[view].dtype, missing, totals is not None)
            if totals is not None and not np.isclose(total, totals[view], rtol=1e-6, atol=1e-4):
                raise DataError(
                    f"view {view!r} adds up to {total:.10g}, the card says {totals[view]:.10g}; "
                    "the files are damaged or of another release"
                )
    except (ValueError, TypeError):
        if fresh:
            writer.blocks.discard()
        raise
    writer.finish()
    return open_features(store)


def _write_view(
    writer: FeatureWriter, view: str, X: Rows, dtype: np.dtype, missing: set[tuple[str, int]], whole: bool
) -> float:
    """Write the missing blocks of one view; returns the sum of what was read (`whole`: of every block)."""
    total, blocks = 0.0, row_blocks(writer.n_samples, writer.block)
    with stage(f"write {view}", len(blocks)) as advance:
        for i, where in enumerate(blocks):
            if whole or (view, i) in missing:
                values = rows(X, where)
                total += float(values.sum(dtype=np.float64))
                if (view, i) in missing:
                    title = f"view {view!r}, rows {where.start} to {where.stop - 1}"
                    writer.write(view, i, _whole_numbers(values, dtype, title))
            advance(1)
    return total


def _whole_numbers(values: Block, dtype: np.dtype, where: str) -> Block:
    """Floats that are to be stored as integers, as these; DataError where one is no such integer. Others unchanged."""
    if dtype.kind not in "iu" or values.dtype.kind != "f":
        return values
    with np.errstate(invalid="ignore"):
        changed = values.astype(dtype)
    if (changed != values).sum():
        raise DataError(
            f"{where} hold numbers that are no {dtype}, expected whole numbers in its range; choose another type"
        )
    return changed


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
