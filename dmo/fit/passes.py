"""Passes over the rows of all views, which sum moments of factor rows block by block, locally or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import scipy.sparse

from dmo.blocks import (
    InOrder,
    Rows,
    as_csr,
    dense,
    double,
    in_memory,
    nonzero_count,
    row_blocks,
    stored_values,
)
from dmo.devices import foreign, moved, placed
from dmo.fit.krylov import RowMap, weighted
from dmo.fit.moments import LABELS, Moments
from dmo.fit.row_sums import BLOCK, Beside, add_up
from dmo.hashing import digest, fingerprint
from dmo.inputs import EntryRows, KnownRows, LabelRows
from dmo.progress import stage
from dmo.threads import in_threads


@dataclass
class FeatureRows:
    """Raw factor rows of each group of columns (see `FeatureMap.raw`), indexed by a slice of rows."""

    # The client process caches factor rows for its next pass over the data, up to `limit` bytes in total.

    views: Mapping[str, Rows]
    maps: Mapping[str, RowMap]  # Map from rows to factor rows for each group, such as a fitted feature map.
    limit: int = 0
    weights: Mapping[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    portable: bool = False  # Whether factor rows can be arrays of another library, which `dmo.device` selects.
    nbytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._kept: dict[tuple[int, int], dict[str, Any]] = {}
        self._readers = {group: InOrder(view) for group, view in self.views.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_kept", "_readers", "nbytes")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, nbytes=0)
        self.__post_init__()

    @property
    def n(self) -> int:
        """Number of rows."""
        return next(iter(self.views.values())).shape[0]

    def __getitem__(self, block: slice) -> dict[str, Any]:
        found = self._kept.get((block.start, block.stop))
        if found is None:
            # Read the rows of all groups in one thread, because the readers of this thread cache the unread rows of a
            # chunk. Feature maps are applied in several threads.
            rows = [(row_map, self._read(group, row_map, block)) for group, row_map in self.maps.items()]
            found = dict(zip(self.maps, in_threads(lambda part: part[0].raw(part[1]), rows), strict=True))
            for group, (of, weights) in self.weights.items():
                found[group] = weighted(found[of], weights[block])
            if self.limit:
                size = sum(part.nbytes for part in found.values())
                if self.nbytes + size <= self.limit:
                    self._kept[block.start, block.stop] = found
                    self.nbytes += size
        return found

    def _read(self, group: str, row_map: RowMap, block: slice) -> Any:
        read = self._readers[group][block]
        return moved(read) if self.portable and getattr(row_map, "portable", False) else read


@dataclass(frozen=True)
class FoldMoments:
    """Moments of the rows in each fold."""

    folds: list[Moments]

    def __add__(self, other: Self) -> FoldMoments:
        return FoldMoments([a + b for a, b in zip(self.folds, other.folds, strict=True)])

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays: dict[str, np.ndarray] = {}
        metas = []
        for i, moments in enumerate(self.folds):
            parts, meta = moments.to_arrays()
            arrays |= {f"{i}/{key}": value for key, value in parts.items()}
            metas.append(meta)
        return arrays, {"folds": metas}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> FoldMoments:
        parts = [{key: arrays[f"{i}/{key}"] for key in ("sums", "gram")} for i in range(len(meta["folds"]))]
        return cls([Moments.from_arrays(part, own) for part, own in zip(parts, meta["folds"], strict=True)])


@dataclass(frozen=True)
class _MomentPass:
    """Adds the factor rows and labels of a block to the moments of each fold."""

    raw: FeatureRows
    n_folds: int
    # Reader with which tasks read the labels from a store, or None if the labels are sent with the tasks.
    labels: InOrder | None
    squares: bool = True  # Whether to compute the products of pairs of label columns.

    def __call__(self, total: FoldMoments | None, block: slice, beside: Beside) -> FoldMoments:
        given, folds, weights = beside
        Y: Any = given if self.labels is None else self.labels[block]
        found = self.raw[block]
        roots = None if weights is None else np.sqrt(weights)
        if roots is not None:
            found = {name: weighted(F, roots) for name, F in found.items()}
            Y = None if Y is None else weighted(Y, roots)
        parts: Sequence[Moments | None] = [None] * self.n_folds if total is None else total.folds
        new = []
        for fold, old in enumerate(parts):
            picked = slice(None) if folds is None else np.flatnonzero(folds == fold)
            part: dict[str, Any] = (
                dict(found) if self.n_folds == 1 else {k: _taken(F, picked) for k, F in found.items()}
            )
            if Y is not None:
                part[LABELS] = _label_block(Y[picked])
            old = Moments.zeros({name: int(F.shape[1]) for name, F in part.items()}) if old is None else old
            own = None if roots is None else roots[picked]
            new.append(old.absorb(part, own, None if self.squares or Y is None else LABELS))
        return FoldMoments(new)


def collect_moments(
    raw: FeatureRows,
    Y: np.ndarray | scipy.sparse.csr_array | EntryRows | None,
    folds: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    squares: bool = True,
) -> list[Moments]:
    """Collect the moments of the raw factor rows of all groups and of the labels in one pass over the rows.

    `folds` contains the fold index of each sample. If `squares` is false, products of two label columns are 0.
    """
    # Inside the context `dmo.stores.checkpoints.checkpoints`, partial sums are saved so that an interrupted pass can
    # resume. Each worker needs memory for one block of rows and for one Gram matrix per fold, independent of the number
    # of rows.
    own, stored = _given(Y)
    job = _MomentPass(raw, 1 if folds is None else int(folds.max()) + 1, stored, squares)
    total = add_up(
        "pass over the rows",
        raw.n,
        job,
        (own, folds if folds is None else folds.astype(np.min_scalar_type(job.n_folds)), weights),
        FoldMoments.from_arrays,
        lambda: _configuration(raw, own if stored is None else stored, folds, weights, squares),
        (0 if Y is None else Y.shape[1])
        + sum(getattr(row_map, "rank", raw.views[group].shape[1]) for group, row_map in raw.maps.items()),
    )
    return total.folds


def _taken(F: Any, picked: Any) -> Any:
    xp = foreign(F)
    return F[picked] if xp is None else xp.take(F, placed(picked, F), axis=0)


# Fraction of nonzero labels up to which sparse products are faster than dense products.
_SPARSE = 1 / 16


def _label_block(Y: Any) -> Any:
    """Convert 8-bit labels of a block (m x L) to float32, and convert labels that are mostly 0 to CSR."""
    kind = np.dtype(np.float32) if Y.dtype.itemsize == 1 else Y.dtype
    if nonzero_count(Y) > _SPARSE * Y.shape[0] * Y.shape[1]:
        return np.ascontiguousarray(dense(Y), kind)
    return as_csr(Y).astype(kind, copy=False)


def _given(Y: Any) -> tuple[Any, InOrder | None]:
    """Return labels that are sent with tasks (0 and 1 as bytes), or a reader with which tasks read the labels."""
    if isinstance(Y, LabelRows):
        return (Y.source, None) if in_memory(Y.source) else (None, InOrder(Y.source))
    if isinstance(Y, EntryRows):
        return Y, None
    values = stored_values(Y)
    if values is not None and values.itemsize > 1 and ((values == 0) | (values == 1)).all():
        Y = Y.astype(np.uint8)
    return Y, None


_CARRIED = 1024  # Number of labels for which a dense product is computed at a time.


def label_products(
    raw: FeatureRows, Y: scipy.sparse.csr_array, weights: np.ndarray | None = None
) -> tuple[Moments, np.ndarray]:
    """Collect the moments of the rows, and the products (L x d) of many sparse labels with the rows, in one pass.

    The pass runs in the client process.
    """
    # No dense array of shape (n, L) or (L, L) is formed. A block of rows updates only the products of labels that occur
    # in the block.
    total: Moments | None = None
    blocks = row_blocks(raw.n, BLOCK)
    with stage("pass over the rows", len(blocks)) as advance:
        for where in blocks:
            found, labels = raw[where], scipy.sparse.csr_array(Y[where])
            if total is None:
                total = Moments.zeros({name: int(F.shape[1]) for name, F in found.items()})
                products = np.zeros((Y.shape[1], len(total.sums)))
            roots = None if weights is None else np.sqrt(weights[where])
            total = total.absorb(found if roots is None else {k: weighted(F, roots) for k, F in found.items()}, roots)
            carried, column = np.unique(labels.indices, return_inverse=True)
            own = scipy.sparse.csr_array(
                (labels.data.astype(float), column, labels.indptr), (labels.shape[0], len(carried))
            )
            if weights is not None:
                own = weighted(own, weights[where])
            for name, columns in total.slices().items():
                F = found[name].dense() if hasattr(found[name], "dense") else found[name]
                for some in row_blocks(len(carried), _CARRIED):
                    image = own[:, some].T @ F
                    products[carried[some], columns] += dense(image)
            advance(1)
    assert total is not None
    return total, products


PRESENCE = "presence"
"""Name of an additional group with one column per group: its sample weights divided by the square root of `mass`."""


@dataclass(frozen=True)
class _PassivePass:
    """Adds a block of rows to the moments that `passive_moments` collects."""

    raw: FeatureRows
    names: tuple[str, ...]
    labels: InOrder | None

    def __call__(self, total: FoldMoments | None, block: slice, beside: Beside) -> FoldMoments:
        given, weights = beside
        assert weights is not None
        Y = given if self.labels is None else self.labels[block]
        found: dict[str, Any] = self.raw[block] if Y is None else self.raw[block] | {LABELS: _label_block(double(Y))}
        roots, D = np.sqrt(weights[:, -1]), weights[:, :-1]
        shares = np.divide(D, roots[:, None], out=np.zeros_like(D), where=roots[:, None] > 0)
        parts = {name: weighted(found[name], shares[:, j]) for j, name in enumerate(self.names)}
        groups = [(parts | {PRESENCE: shares}, None)]
        for j, name in enumerate(self.names):
            root = np.sqrt(D[:, j])
            groups.append(({name: weighted(found[name], root)}, root))
        if total is None:
            total = FoldMoments(
                [Moments.zeros({name: int(F.shape[1]) for name, F in part.items()}) for part, _ in groups]
            )
        return FoldMoments([old.absorb(*own) for old, own in zip(total.folds, groups, strict=True)])


def passive_moments(
    raw: FeatureRows, Y: Any, weights: Mapping[str, np.ndarray], mass: np.ndarray
) -> tuple[Moments, dict[str, Moments]]:
    """Collect the moments for homogeneity analysis of groups with missing samples, in one pass over the rows.

    `weights` holds the sample weights (n) of each group, and `mass` (n) is the weighted mean over the groups.
    """
    names = tuple(weights)
    columns = np.column_stack([*(weights[name] for name in names), mass])
    own, stored = _given(Y)

    def configuration() -> str:
        return digest("passive", _configuration(raw, own if stored is None else stored, None), names, columns)

    total = add_up(
        "pass over the rows",
        raw.n,
        _PassivePass(raw, names, stored),
        (own, columns),
        FoldMoments.from_arrays,
        configuration,
    )
    return total.folds[0], dict(zip(names, total.folds[1:], strict=True))


@dataclass(frozen=True)
class _Image:
    """Sum of float64 products F'R over blocks of rows, where F contains the factor rows of all groups."""

    image: np.ndarray

    def __add__(self, other: Self) -> _Image:
        return _Image(self.image + other.image)

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"image": self.image}, {}


@dataclass(frozen=True)
class _GapPass:
    """Adds the contribution of missing or down-weighted labels in a block of rows to the result of `gap_products`."""

    # The contribution of a block is [F, 1]' diag(s) (U o [F, 1] B), with factor rows F, sample weights s, coefficients
    # B, and the matrix U of one minus the entry weights. The symbol o denotes the entrywise product.

    raw: FeatureRows
    coefficients: np.ndarray
    which: np.ndarray  # Label index of each column of the coefficients.
    by_gaps: bool  # Whether the entry weights are given as a sparse matrix that marks the missing entries.

    def __call__(self, total: _Image | None, block: slice, beside: Beside) -> _Image:
        counts, weights = beside
        assert weights is not None
        found = self.raw[block]
        edges = np.cumsum([part.shape[1] for part in found.values()])
        parts = np.split(self.coefficients[:-1], edges[:-1])
        scores = self.coefficients[-1] + sum(
            F.dot(B) if hasattr(F, "dot") else F @ B for F, B in zip(found.values(), parts, strict=True)
        )
        if self.by_gaps:
            R = scipy.sparse.csr_array(counts[:, self.which].multiply(scores * weights[:, None]))
            images = [_crossed(F, R) for F in found.values()]
        else:
            R = 1.0 - (counts if len(self.which) == counts.shape[1] else counts[:, self.which])
            R *= scores
            R *= weights[:, None]
            images = [F.t_dot(R) if hasattr(F, "t_dot") else np.asarray(F.T @ R) for F in found.values()]
        new = _Image(np.vstack([*images, R.sum(axis=0)]))
        return new if total is None else total + new


def _crossed(F: Any, R: scipy.sparse.csr_array) -> np.ndarray:
    """Compute F'R for factor rows F of any type and a sparse matrix R."""
    return dense(R.T @ (F.dense() if hasattr(F, "dense") else F)).T


def gap_products(
    raw: FeatureRows, coefficients: np.ndarray, counts: Any, which: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Compute the contribution of missing or down-weighted labels to the products of a ridge regression, in one pass.

    `coefficients` and the result have shape (d + 1, k). `counts` (n x L) holds entry weights, `which` k label indices.
    """
    given = counts.missing if isinstance(counts, KnownRows) else counts

    def configuration() -> str:
        told = fingerprint(given) if isinstance(given, EntryRows) else given
        return digest("gaps", _configuration(raw, None, None, weights), coefficients, told, which)

    add, beside = _GapPass(raw, coefficients, which, given is not counts), (given, weights)
    name = "unknown labels (pass over the rows)"
    return add_up(name, raw.n, add, beside, lambda arrays, meta: _Image(arrays["image"]), configuration).image


# Kernel values are converted to float64 in strips of about 2**20 entries, but of at least 64 rows.
_LEAST, _WIDE = 64, 1 << 20


@dataclass(frozen=True)
class _LandmarkPass:
    """Adds the product [C, 1]'R of a block for kernel values C and R = [Y, 1] with labels Y, or R = [C, 1] B."""

    raw: FeatureRows
    coefficients: Any
    wide: bool
    labels: InOrder | None = None

    def __call__(self, total: _Image | None, block: slice, beside: Beside) -> _Image:
        (C,) = self.raw[block].values()
        given = beside[0] if self.labels is None else self.labels[block]
        Y = None if given is None else dense(given)
        image = np.zeros((C.shape[1] + 1, self.coefficients.shape[1] if Y is None else Y.shape[1] + 1))
        # If landmarks are close together, coefficients are large, and the errors of float32 products are ten times as
        # large as for a Gram matrix of factor rows. Float32 products then suffice for the steps of conjugate gradients,
        # but not for true residuals.
        kind = np.dtype(np.float64) if self.wide else C.dtype
        B: Any = None if Y is not None else self.coefficients.astype(kind, copy=False)
        ones = np.ones((len(C), 1), np.uint8)
        step = len(C) if C.dtype == kind else max(_LEAST, _WIDE // C.shape[1])
        for where in row_blocks(len(C), step):
            part = C[where].astype(kind, copy=False)
            R = part @ B[:-1] + B[-1] if Y is None else np.hstack([Y[where], ones[where]], dtype=kind)
            image[:-1] += part.T @ R
            image[-1] += R.sum(axis=0, dtype=np.float64)
        return _Image(image) if total is None else _Image(total.image + image)


def landmark_products(
    raw: FeatureRows,
    Y: np.ndarray | EntryRows | None,
    coefficients: np.ndarray | None,
    wide: bool = True,
) -> np.ndarray:
    """Compute [C, 1]'R in one pass, for kernel values C at landmarks and R = [Y, 1] with labels Y, or R = [C, 1] B.

    The coefficients B of r landmarks and an intercept have shape (r + 1, k).
    """
    own, stored = _given(Y)

    def configuration() -> str:
        return digest("landmarks", _configuration(raw, own if stored is None else stored, None), coefficients, wide)

    add, name = _LandmarkPass(raw, coefficients, wide, stored), "kernel values at landmarks"
    return add_up(name, raw.n, add, (own,), lambda arrays, meta: _Image(arrays["image"]), configuration).image


def _configuration(
    raw: FeatureRows,
    Y: np.ndarray | InOrder | EntryRows | None,
    folds: np.ndarray | None,
    weights: np.ndarray | None = None,
    squares: bool = True,
) -> str:
    """Compute a SHA-256 digest of all inputs of the sums, including the order of their columns."""
    maps = [(group, fingerprint(raw.views[group]), *row_map.to_arrays()) for group, row_map in raw.maps.items()]
    labels = fingerprint(Y.source) if isinstance(Y, InOrder) else fingerprint(Y) if isinstance(Y, EntryRows) else Y
    # Leave absent weights out of the digest, so that checkpoints of earlier versions remain valid.
    given = () if weights is None else (weights,)
    return digest(
        "moments" if squares else "moments without squares", maps, list(raw.weights.items()), labels, folds, *given
    )
