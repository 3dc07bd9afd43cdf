"""Groups of the low-rank engine: factor rows of the samples, or pseudo-samples with the same inner products.

Methods without graphs use only inner products between samples. Let S be the matrix of the centered factor rows of all
views and the labels. The rows of the Cholesky factor of S'S have the same inner products as the rows of S. The rows
of this factor serve as pseudo-samples, of which there are at most as many as columns of S. The equations of the exact
engine have the same solution for the pseudo-samples as for all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, Self, TypeAlias

import numpy as np
import scipy.linalg

from dmo.blocks import Rows, row_blocks, rows
from dmo.errors import UserError
from dmo.fit.engine import LowRankPass
from dmo.fit.functions import Expansion, FactorExpansion
from dmo.fit.moments import LABELS, Moments, ScoreSums
from dmo.fit.row_sums import BLOCK
from dmo.linalg.eigen import CUTOFF
from dmo.linalg.operators import LowRank, Operator
from dmo.lowrank import FeatureMap
from dmo.lowrank.nystrom import inverse_triangle, times_triangle
from dmo.threads import in_threads

_STRIP = 64  # Number of rows of the Gram matrix that are centered at a time.
_SINGLE, _TERMS = 3e-6, 512
"""Relative error of a product with float32 rows, and the number of terms that the product sums in float32 at a time."""


class FactorSmoother:
    """Smoother H = U U' for whitened factor rows `U`. Zero rows at the end of `U` are not stored."""

    # Products with float32 rows are computed in float64 if `loosen` sets a tolerance that float32 cannot meet.

    iterative = False

    def __init__(self, U: np.ndarray):
        self.U = U
        self.adaptive = U.dtype == np.float32
        self._wide = False

    def loosen(self, error: float) -> None:
        """Set the relative error that later products may have."""
        self._wide = error < _SINGLE

    def __call__(self, B: np.ndarray) -> np.ndarray:
        found = _product(self.U, _product(self.U.T, B[: len(self.U)], self._wide), self._wide)
        if len(found) == len(B):
            return found
        return np.vstack([found, np.zeros((len(B) - len(found), B.shape[1]))])

    def whitened(self, B: np.ndarray) -> np.ndarray:
        """Compute the product U'B of the whitened rows with a block B (n x k)."""
        return _product(self.U.T, B[: len(self.U)], False)


def _product(A: np.ndarray, B: np.ndarray, wide: bool) -> np.ndarray:
    """Multiply matrices in float64 if `wide`, otherwise in the precision of `A` with float64 sums of short products."""
    if wide or A.dtype == np.float64:
        return np.asarray(A @ B)
    total, B = np.zeros((len(A), B.shape[1])), B.astype(A.dtype)
    for where in row_blocks(len(B), _TERMS):
        total += A[:, where] @ B[where]
    return total


@dataclass
class FactorView:
    """View or labels with a ridge, represented by factor rows F and a whitening matrix `T` (d x r).

    The smoother uses the whitened rows U = F T, and the coefficients for a block B are T U'B.
    """

    name: str
    feature_map: FeatureMap | None  # Feature map of the view, or None for the labels.
    # Whitening matrix with T T' = (F'F + c I)^-1, restricted to eigenvectors of F'F above rounding errors.
    T: np.ndarray
    mean: np.ndarray | None  # Column means of shape (d,), or None if the rows are not centered.
    smoother: FactorSmoother
    n: int

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        """Compute coefficients (d x k) of the factor rows for a block B (n x k)."""
        return self.T @ self.smoother.whitened(B)

    def offset(self, coefficients: np.ndarray) -> np.ndarray:
        """Compute the offset (k) that gives a centered function mean 0 over the training samples."""
        return np.zeros(coefficients.shape[1]) if self.mean is None else -(self.mean @ coefficients)

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        """Build the prediction function of the view from coefficients of its factor rows."""
        assert self.feature_map is not None
        offset = self.offset(coefficients)
        return {self.name: FactorExpansion.of(self.name, self.feature_map, coefficients, offset)}

    def left_out(self, B: np.ndarray, coefficients: np.ndarray, where: Any = None, part: Any = None) -> np.ndarray:
        """Return fitted values, because a pseudo-sample does not correspond to a sample that can be left out."""
        return self.smoother(B)


@dataclass(frozen=True)
class FactorProducts:
    """Mean of the low-rank kernels of several views, for methods that multiply by an n x n kernel."""

    maps: Mapping[str, FeatureMap]
    sources: Mapping[str, Rows]
    operator: Operator

    @classmethod
    def of(cls, maps: Mapping[str, FeatureMap], sources: Mapping[str, Rows]) -> Self:
        """Compute the factor rows of each view, in float64 if they are dense."""
        operators = [feature_map.operator(sources[view]) for view, feature_map in maps.items()]
        wide = [LowRank(own.factor.astype(np.float64)) if isinstance(own, LowRank) else own for own in operators]
        share = 1.0 / len(maps)
        return cls(maps, sources, reduce(add, [own if share == 1.0 else share * own for own in wide]))

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        """Build the prediction function of each view from dual coefficients (n x k)."""
        found: dict[str, Expansion] = {}
        for view, feature_map in self.maps.items():
            total = np.zeros((feature_map.rank, coefficients.shape[1]))
            for where in row_blocks(len(coefficients), BLOCK):
                total += feature_map(rows(self.sources[view], where)).T @ coefficients[where]
            offset = np.zeros(coefficients.shape[1])
            found[view] = FactorExpansion.of(view, feature_map, total / len(self.maps), offset)
        return found


@dataclass(frozen=True)
class _FactorRows:
    """Factor rows of one group, and the eigenpairs of their Gram matrix if these are known."""

    rows: np.ndarray  # Factor rows of shape (n, d), or their coordinates of shape (n, r) in `basis`.
    mean: np.ndarray  # Column means of shape (d,).
    basis: np.ndarray | None = None  # Eigenvectors of the Gram matrix, of shape (d, r).
    spectrum: np.ndarray | None = None  # Eigenvalues of the Gram matrix that exceed rounding errors, of shape (r,).
    centers: bool = True  # Whether the column means must be subtracted from `rows`.
    used: int | None = None  # Number of rows up to the last nonzero row, or None for all rows.

    def whitened(self, ridge: float) -> tuple[np.ndarray, np.ndarray]:
        """Compute a matrix T (d x r) with T T' = (F'F + c I)^-1, and the leading whitened rows F T (q x r)."""
        if self.basis is not None and self.spectrum is not None:
            lengths = np.sqrt(self.spectrum + ridge)
            return self.basis / lengths, self.rows[: self.used] / lengths
        rows, kind = self.rows.astype(np.float64, copy=False), np.result_type(np.float32, self.rows)
        rows = rows - self.mean if self.centers else rows
        gram = rows.T @ rows if rows.shape[0] >= rows.shape[1] else None
        if gram is None or ridge <= CUTOFF * np.trace(gram):
            basis, spectrum, images = _rotated(rows)
            lengths = np.sqrt(spectrum + ridge)
            T, images = basis / lengths, images / lengths
        else:
            # The ridge exceeds rounding errors, so use a Cholesky factor, which takes half the time of eigenvectors.
            gram.flat[:: len(gram) + 1] += ridge
            T, images = inverse_triangle(gram, 0.0)[0], np.empty(rows.shape)
            times_triangle(rows, T, images)
        if not self.centers:
            images -= images.mean(axis=0)
        return T, images.astype(kind, copy=False)


Fold: TypeAlias = "tuple[FactorGroups, Callable[[Mapping[str, np.ndarray], np.ndarray], ScoreSums]]"
"""Groups fitted without a fold, and a function that sums the scores of this fold for given coefficients and offset."""


@dataclass(frozen=True)
class FactorGroups:
    """Factor rows of each view and of the labels, which are converted to fitted views for any ridge.

    The rows belong to samples, or to pseudo-samples with the same inner products.
    """

    groups: Mapping[str, _FactorRows]
    center: bool
    maps: Mapping[str, FeatureMap] = field(default_factory=dict)
    folds: Iterable[Fold] = ()

    @classmethod
    def of_pass(cls, done: LowRankPass, center: bool) -> Self:
        """Compute pseudo-samples from the moments of all rows, and again from the moments without each fold."""
        folds = ((cls.of_moments(done.total - part, center), part.of_scores) for part in done.folds)
        found = cls.of_moments(done.total, center)
        return replace(found, maps=done.maps, folds=folds if len(done.folds) > 1 else ())

    @classmethod
    def of_moments(cls, moments: Moments, center: bool) -> Self:
        """Compute pseudo-samples from moments, in coordinates of the eigenvectors of each group's Gram matrix."""
        slices = moments.slices()
        grams = [
            moments.centered_gram(name) if center else moments.gram[where, where] for name, where in slices.items()
        ]
        pairs = dict(zip(slices, in_threads(_spectrum, grams), strict=True))
        rotated = moments.mixed({name: vectors for name, (_, vectors) in pairs.items()})
        # The outer product of all column sums would take as long as the rotation, so center the Gram matrix in strips
        # of rows.
        sums = rotated.sums / np.sqrt(moments.n)
        for where in row_blocks(len(sums), _STRIP):
            rotated.gram[where] -= np.outer(sums[where], sums)
        means = {name: moments.mean()[where] for name, where in slices.items()}
        return cls._of_gram(rotated.gram, pairs, means, center)

    @classmethod
    def of_passive(cls, joint: Moments, own: Mapping[str, Moments], mass: float, center: bool) -> Self:
        """Compute pseudo-samples of groups that have missing samples or sample weights. `mass` is the total weight."""
        # Let the diagonal matrix D_j contain the sample weights of group j, and let M be the weighted mean of all D_j.
        # For factor rows F_j, group weights w_j and ridges c_j, homogeneity analysis solves the eigenproblem
        # sum_j w_j D_j F_j (F_j'D_j F_j + c_j I)^-1 F_j'D_j X = M X Lambda. The pseudo-samples have the same Gram
        # matrix as the columns of all S_j = M^-1/2 D_j F_j, after the direction M^1/2 1 is projected out. The vectors
        # M^-1/2 D_j 1 are the last group of columns in `joint`, and serve to center the factor rows.
        pairs = {name: _spectrum(part.centered().gram if center else part.gram) for name, part in own.items()}
        means = {name: part.mean() for name, part in own.items()}
        slices = joint.slices()
        presence = slices[next(reversed(slices))].start
        turns = []
        for j, (name, (_, vectors)) in enumerate(pairs.items()):
            turn = np.zeros((len(joint.gram), vectors.shape[1]))
            turn[slices[name]] = vectors
            if center:
                turn[presence + j] = -(means[name] @ vectors)
            turns.append(turn)
        turn = np.hstack(turns)
        gram = turn.T @ joint.gram @ turn
        # Centered rows are already orthogonal to the direction M^1/2 1, so project out this direction only without
        # centering.
        if not center:
            sums = np.concatenate([part.sums @ pairs[name][1] for name, part in own.items()])
            gram -= np.outer(sums, sums) / mass
        return cls._of_gram((gram + gram.T) / 2, pairs, means, center)

    @classmethod
    def _of_gram(
        cls,
        gram: np.ndarray,
        pairs: Mapping[str, tuple[np.ndarray, np.ndarray]],
        means: Mapping[str, np.ndarray],
        center: bool,
    ) -> Self:
        """Build groups from the joint Gram matrix, and rotate each group to its own eigenvectors."""
        scales = [np.full(len(values), np.sqrt(values.max(initial=1e-300))) for values, _ in pairs.values()]
        rows = pseudo_samples(gram, np.concatenate(scales))
        edges = np.cumsum([len(values) for values, _ in pairs.values()])[:-1]
        parts = dict(zip(pairs, np.split(rows, edges, axis=1), strict=True))
        # The matrix of pseudo-samples is almost triangular, so that the first groups have few nonzero rows.
        groups = {
            name: _FactorRows(parts[name], means[name], vectors, values, used=_used(parts[name]))
            for name, (values, vectors) in pairs.items()
        }
        return cls(groups, center)

    @classmethod
    def of_rows(
        cls,
        maps: Mapping[str, FeatureMap],
        rows: Mapping[str, np.ndarray],
        center: bool,
        fold: np.ndarray | None = None,
    ) -> Self:
        """Build groups from the factor rows of samples, if there are fewer samples than columns.

        `fold` contains the fold index of each sample.
        """
        groups = {name: _rows_of(name, part, center) for name, part in rows.items()}
        if fold is None or not fold.any():
            return cls(groups, center, maps)

        def without(number: int) -> Fold:
            held = {view: rows[view][fold == number] for view in maps}

            def sums(coefficients: Mapping[str, np.ndarray], offset: np.ndarray) -> ScoreSums:
                scores = sum(held[view] @ B for view, B in coefficients.items()) + offset
                return ScoreSums(len(scores), scores.sum(axis=0), (scores**2).sum(axis=0))

            return cls.of_rows(maps, {name: part[fold != number] for name, part in rows.items()}, center), sums

        return cls(groups, center, maps, map(without, range(int(fold.max()) + 1)))

    @property
    def label_rank(self) -> int:
        """Number of linearly independent columns of the (centered) labels."""
        spectrum = self.groups[LABELS].spectrum
        assert spectrum is not None
        return len(spectrum)

    @property
    def label_rows(self) -> np.ndarray | None:
        """Coordinates of the labels in the eigenvectors of their Gram matrix (p x r), or None without labels."""
        return self.groups[LABELS].rows if LABELS in self.groups else None

    @property
    def columns(self) -> int:
        """Upper bound of the total rank: the sum over all groups of the smaller dimension of their factor rows."""
        return sum(min(group.rows.shape) for group in self.groups.values())

    @property
    def class_directions(self) -> int:
        """Rank of the (centered) labels if they are classes, so that each row of the labels sums to 1, otherwise 0."""
        if LABELS not in self.groups or not self.center:
            return 0
        labels = self.groups[LABELS]
        assert labels.basis is not None
        off = max(abs(labels.mean.sum() - 1.0), np.abs(labels.basis.sum(axis=0)).max(initial=0.0))
        return self.label_rank if off < 1e-5 else 0

    def under(self, ridges: Mapping[str, float]) -> dict[str, FactorView]:
        """Return a fitted view of each group, given the ridge of each group."""

        def view(name: str) -> FactorView:
            group = self.groups[name]
            T, U = group.whitened(ridges[name])
            mean, n = group.mean if self.center else None, len(group.rows)
            return FactorView(name, self.maps.get(name), T, mean, FactorSmoother(U), n)

        return dict(zip(self.groups, in_threads(view, list(self.groups)), strict=True))


def pseudo_samples(gram: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Compute rows whose inner products equal a Gram matrix (m x m) of centered columns, and whose mean is zero.

    `scales` holds typical lengths of the columns. If `gram` is singular, it is overwritten.
    """
    factor, singular = scipy.linalg.lapack.dpotrf(gram.T, lower=1)
    if singular:
        # Pivoting would discard the columns of a group with small values as rounding errors of other groups, so scale
        # the columns first.
        gram /= scales
        gram /= scales[:, None]
        pivoted, pivots, rank, _ = scipy.linalg.lapack.dpstrf(gram.T, tol=-1.0, lower=1)
        factor = np.zeros((len(gram), rank))
        factor[pivots - 1] = np.tril(pivoted[:, :rank])
        factor *= scales[:, None]
    # Combine the rows of the factor by Helmert contrasts, which are orthogonal to the vector of ones, so that every
    # column has mean 0. Helmert contrast j has the entries 1 for the first j samples and -j for the next sample,
    # divided by its norm. The matrix of pseudo-samples is then triangular except for one row.
    p = factor.shape[1]
    rows, below = np.empty((p + 1, len(gram))), np.zeros(len(gram))
    for i in range(p, 0, -1):
        contrast = factor[:, i - 1] / np.sqrt(i * (i + 1.0))
        rows[i] = below - i * contrast
        below += contrast
    rows[0] = below
    return rows


def _used(rows: np.ndarray) -> int:
    """Return the number of rows up to the last nonzero row."""
    return int(np.flatnonzero(rows.any(axis=1)).max(initial=-1)) + 1


def _rows_of(name: str, rows: np.ndarray, center: bool) -> _FactorRows:
    """Build a group from factor rows.

    The labels are represented in coordinates of eigenvectors, because their rank is needed.
    """
    mean = rows.mean(axis=0, dtype=np.float64)
    if name != LABELS:
        return _FactorRows(rows, mean, centers=center)
    labels = rows - mean if center else rows.astype(np.float64, copy=False)
    basis, spectrum, images = _rotated(labels)
    return _FactorRows(images - images.mean(axis=0), mean, basis, spectrum)


def _spectrum(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the eigenvalues of a Gram matrix that exceed rounding errors, and their eigenvectors."""
    # The eigensolver of SciPy blocks other Python threads, so use the eigensolver of NumPy.
    values, vectors = np.linalg.eigh(gram)
    keep = values > CUTOFF * max(values[-1], np.finfo(float).tiny)
    return values[keep], vectors[:, keep]


def _rotated(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return right singular vectors V, squared singular values and `rows` @ V, for values above rounding errors."""
    # Eigenvectors of the Gram matrix take less than half the time of a singular value decomposition. If there are more
    # columns than rows, computing V from the smaller Gram matrix would divide by small singular values. The columns of
    # V would then lose their orthogonality, so use a singular value decomposition.
    if rows.shape[0] < rows.shape[1]:
        U, s, Vt = np.linalg.svd(rows, full_matrices=False)
        keep = s * s > CUTOFF * max(s[0] ** 2, np.finfo(float).tiny)
        return Vt[keep].T, s[keep] ** 2, U[:, keep] * s[keep]
    values, vectors = _spectrum(rows.T @ rows)
    return vectors, values, rows @ vectors


def check_columns(groups: FactorGroups, k: int) -> None:
    """Raise an error if more components are requested than the factor rows have columns."""
    if k > groups.columns:
        raise UserError(
            f"{k} components from factors of {groups.columns} columns in all; lower n_components or raise the rank"
        )
