"""Training rows that predictions need: copies of rows in memory, or references that detect changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np

from dmo.blocks import Block, Rows, RowsOf, Subset, in_memory, rows
from dmo.cluster.reading import ComputedRows, hashes
from dmo.errors import UserError
from dmo.hashing import row_hashes
from dmo.inputs import PreparedViews
from dmo.inputs.views import KeptRows
from dmo.stores import DenseView, SparseView


class KeepsRows:
    """Base class of fitted functions that read the training rows of each view from their attribute `sources`."""

    sources: Mapping[str, Rows]
    _is_owner = False

    def own(self, copies: dict[int, tuple[Rows, Rows]]) -> None:
        """Replace rows in memory with copies, and wrap other rows to detect changes.

        `copies` maps the id of a row source to the source and its replacement, which several functions share.
        """
        if self._is_owner:
            return
        found = {}
        for view, source in self.sources.items():
            if id(source) not in copies:
                copies[id(source)] = source, owned(source, view)
            found[view] = copies[id(source)][1]
        # Frozen dataclasses reject plain assignments.
        object.__setattr__(self, "sources", found)
        object.__setattr__(self, "_is_owner", True)


@dataclass(frozen=True, eq=False)
class VerifiedRows(RowsOf):
    """Rows on disk or computed on demand. Reading them raises an error if they have changed since the fit."""

    hashes: np.ndarray  # Exact hash of each of the n rows at the time of the fit.
    view: str

    @classmethod
    def of(cls, source: Rows, view: str) -> Self:
        """Hash all rows, on the workers of the current cluster if there is one."""
        return cls(source, hashes(source, exact=True), view)

    def __getitem__(self, where: slice) -> Block:
        block = rows(self.source, where)
        changed = np.flatnonzero(row_hashes(block, exact=True) != self.hashes[where])
        if changed.size:
            raise UserError(
                f"view {self.view!r}: row {range(self.shape[0])[where][changed[0]]} of the training data has changed since "
                "the fit; restore the data, or fit again"
            )
        return block


def own_rows(model: Any, views: Mapping[str, Rows]) -> None:
    """Copy the training rows of a fitted model, so that callers can change their arrays after `fit`.

    `views` are the views of the fit. Rows that were created during the preparation of the views are not copied.
    """
    made = views.made if isinstance(views, PreparedViews) else []
    copies: dict[int, tuple[Rows, Rows]] = {id(source): (source, source) for source in made}
    for holder in _holders(model, set()):
        holder.own(copies)


def owned(source: Rows, view: str) -> Rows:
    """Copy rows in memory, and wrap rows outside of memory to detect changes."""
    if isinstance(source, Subset) and in_memory(source.source):
        return rows(source).copy()
    if isinstance(source, KeptRows) and in_memory(source.kept):
        return source.kept  # type: ignore[no-any-return]
    if isinstance(source, RowsOf | Subset) and not isinstance(source, KeptRows | ComputedRows):
        return replace(source, source=owned(source.source, view))
    if in_memory(source):
        return cast(Any, source).copy()  # type: ignore[no-any-return]
    # Stores of dmo already verify every block by a checksum.
    if isinstance(source, DenseView | SparseView):
        return source
    return VerifiedRows.of(source, view)


def _holders(value: Any, seen: set[int]) -> Iterator[KeepsRows]:
    """Yield all fitted functions that keep rows, by a recursive search of dmo objects and containers."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, KeepsRows):
        yield value
    if isinstance(value, Mapping):
        parts: Any = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    elif type(value).__module__.startswith("dmo."):
        parts = vars(value).values() if hasattr(value, "__dict__") else ()
    else:
        return
    for part in parts:
        yield from _holders(part, seen)
