"""Block Krylov subspaces that approximate linear problems, and maps from rows to the columns of moments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from dmo.blocks import InOrder, Rows, double, scaled_rows, shifted, squared_norms, stored_values
from dmo.devices import foreign, placed
from dmo.errors import UserError
from dmo.fit.moments import LABELS, ROWS, Moments
from dmo.fit.row_sums import Beside, add_up
from dmo.hashing import digest, fingerprint

_LABELS = 256


@dataclass(frozen=True)
class Krylov:
    """Block Krylov subspace of the rows and labels as an approximation of linear problems.

    The coefficients lie in the span of X'B, X'X X'B, ..., (X'X)^(steps - 1) X'B, where the matrix B contains the labels
    and `extra` random columns. If there are more than 256 label columns, B contains the 256 linear combinations of
    largest variance instead. Each step passes over the rows once, solves the problem in the current subspace and
    enlarges the subspace. The fit stops if the eigenvalues grow by at most `tol` in a step. If the growth is larger in
    the last step, it is reported by a ConvergenceWarning. The fit forms neither an n x n nor a d x d matrix. For L
    label columns, it needs 8 d steps (L + extra) bytes.

    Parameters
    ----------
    steps : int, default=10
        Maximum number of steps, at least 1. A single step cannot detect missing convergence and never warns.
    extra : int, default=60
        Number of random columns in the matrix B, at least 0.
    tol : float, default=1e-3
        Positive tolerance of the eigenvalues. The fit stops if no eigenvalue grows by more than this fraction of the
        largest eigenvalue in a step.

    Raises
    ------
    UserError
        If a value is out of range.

    References
    ----------
    Halko, Martinsson, Tropp 2011, algorithm 4.3; Musco, Musco 2015.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import MLSI, Krylov
    >>> X, Y = make_multilabel_classification(n_samples=200, n_classes=5, random_state=0)
    >>> MLSI(n_components=3, ridge=1.0, approximation=Krylov(steps=5)).fit(X, Y).transform(X).shape
    (200, 3)
    """

    steps: int = 10
    extra: int = 60
    tol: float = 1e-3

    def __post_init__(self) -> None:
        if self.steps < 1 or self.extra < 0:
            raise UserError(f"Krylov: steps = {self.steps}, extra = {self.extra}; expected steps >= 1 and extra >= 0")
        if not self.tol > 0:
            raise UserError(f"Krylov: tol = {self.tol}, expected a number above 0, such as 1e-3")


@dataclass(frozen=True)
class Subspace:
    """Subspace of linear functions with an orthonormal `basis` (d x r), and the `mean` of the rows X (d).

    `trace` is the trace of X X' for centered rows, and `last` is true for the last subspace of the search.
    """

    basis: np.ndarray
    mean: np.ndarray
    trace: float
    last: bool
    moments: Moments | None = None  # Joint moments of coordinates and labels, or None for more than 256 label columns.


@dataclass(frozen=True)
class _Products:
    """Products X'T of the rows X with targets T, and optionally the column sums and the squared norm of X."""

    image: np.ndarray
    sums: np.ndarray
    squares: float

    def __add__(self, other: Self) -> _Products:
        return _Products(self.image + other.image, self.sums + other.sums, self.squares + other.squares)

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"image": self.image, "sums": self.sums}, {"squares": self.squares}


@dataclass(frozen=True)
class _FirstStep:
    """Adds the products of a block of rows with its labels and with random columns."""

    X: InOrder
    extra: int
    seed: int

    def __call__(self, total: _Products | None, where: slice, beside: Beside) -> _Products:
        block = double(self.X[where])
        labels, weights = beside
        random = np.random.default_rng([self.seed, where.start]).standard_normal((block.shape[0], self.extra))
        right = random if labels is None else np.hstack([labels, random])
        counts = np.ones(block.shape[0]) if weights is None else weights
        new = _Products(block.T @ (counts[:, None] * right), np.asarray(block.T @ counts), _squares(block, weights))
        return new if total is None else total + new


@dataclass(frozen=True)
class _NextStep:
    """Adds the product X'S X Q of a block of rows X, for weights S and a basis Q."""

    X: InOrder
    Q: np.ndarray

    def __call__(self, total: _Products | None, where: slice, beside: Beside) -> _Products:
        block = double(self.X[where])
        (weights,) = beside
        image = block.T @ (block @ self.Q if weights is None else weights[:, None] * (block @ self.Q))
        if total is None:
            return _Products(image, np.zeros(0), 0.0)
        np.add(total.image, image, out=total.image)
        return total


def subspaces(
    method: Krylov,
    X: Rows,
    labels: np.ndarray | None,
    center: bool,
    random_state: int | None,
    weights: np.ndarray | None = None,
) -> Iterator[Subspace]:
    """Yield Krylov subspaces of increasing dimension, until a step finds no new direction."""
    # After an initial pass over the data, each step needs one more pass, on the workers of the current cluster if there
    # is one. The pass of a step computes X'X Q for the basis Q of this step. The product X'X Q yields the basis of the
    # next step, and the moments Q'X'X Q of the coordinates without another pass. Because X'X is symmetric, X'X Q lies
    # in the span of the bases of the previous, the current and the next step.
    n = X.shape[0] if weights is None else float(weights.sum())
    start = labels
    if labels is not None:
        start = _strongest(labels - np.average(labels, axis=0, weights=weights) if center else labels, weights)
    seed = int(np.random.default_rng(random_state).integers(2**63))

    def step(add: _FirstStep | _NextStep, beside: Beside, *what: Any) -> _Products:
        return add_up(
            "subspace (pass over the rows)",
            X.shape[0],
            add,
            beside,
            lambda arrays, meta: _Products(arrays["image"], arrays["sums"], meta["squares"]),
            lambda: digest("subspace", fingerprint(X), *what, *([] if weights is None else [weights])),
        )

    first = step(_FirstStep(InOrder(X), method.extra, seed), (start, weights), seed, method.extra, start)
    mean = first.sums / n if center else np.zeros(X.shape[1])
    trace = first.squares - n * float(mean @ mean)
    last = _orthonormal(first.image)
    if not last.shape[1]:
        raise UserError(
            "the rows, or their products with the labels, are all zero: no direction can be computed; check the data"
        )
    known = _KnownLabels.of(labels, start, weights, first, last, center)
    most = min(X.shape)
    # Growing an array would copy all previous columns in every step, so allocate one array for all steps.
    whole = np.empty((X.shape[1], min(most + last.shape[1], method.steps * last.shape[1])), order="F")
    before, r, gram = 0, 0, np.zeros((0, 0))
    for left in range(method.steps - 1, -1, -1):
        whole[:, r : r + last.shape[1]] = last
        before, r, edge = r, r + last.shape[1], before
        basis, recent = whole[:, :r], whole[:, edge:r]
        # Without orthonormalization, the eigenvector of the largest eigenvalue would dominate all columns of the
        # product.
        image = step(_NextStep(InOrder(X), np.ascontiguousarray(last)), (weights,), last).image
        image -= n * np.outer(mean, mean @ last)
        column = recent.T @ image
        gram = _extended(gram, column)
        moments = None if known is None else known.beside(basis, gram, n)
        done = r >= most or not left
        yield Subspace(basis, mean, trace, done, moments)
        if done:
            return
        last = _beyond(image, recent, column, basis)
        if not last.shape[1]:
            yield Subspace(basis, mean, trace, True, moments)
            return


@dataclass(frozen=True)
class _KnownLabels:
    """Gram matrix (q x q) and sums of the label columns Y, sums of the rows X (d), and products of X and Y.

    `cross` holds X'Y in coordinates of the first basis, whose span contains X'Y.
    """

    gram: np.ndarray
    sums: np.ndarray
    cross: np.ndarray
    row_sums: np.ndarray

    @classmethod
    def of(
        cls,
        labels: np.ndarray | None,
        start: np.ndarray | None,
        weights: np.ndarray | None,
        first: _Products,
        Q: np.ndarray,
        center: bool,
    ) -> _KnownLabels | None:
        """Compute the moments of the labels from the first pass.

        Return None if the pass used combinations of labels.
        """
        if labels is None or start is None:
            labels = weighted = np.zeros((0, 0))
        elif start.shape[1] < labels.shape[1]:
            return None
        else:
            weighted = labels if weights is None else weights[:, None] * labels
        # The sums of centered coordinates are 0.
        rows = np.zeros(len(first.sums)) if center else first.sums
        return cls(labels.T @ weighted, weighted.sum(axis=0), Q.T @ first.image[:, : labels.shape[1]], rows)

    def beside(self, basis: np.ndarray, gram: np.ndarray, n: float) -> Moments:
        """Compute the joint moments of coordinates and labels from the Gram matrix of the coordinates."""
        r, q = basis.shape[1], len(self.sums)
        whole, sums = np.zeros((r + q, r + q)), np.concatenate([self.row_sums @ basis, self.sums])
        whole[:r, :r], whole[r:, r:] = gram, self.gram
        whole[: len(self.cross), r:] = self.cross
        whole[r:, : len(self.cross)] = self.cross.T
        return Moments({ROWS: r, LABELS: q} if q else {ROWS: r}, n, sums, whole)


def _extended(gram: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Extend the Gram matrix by the columns of a new step.

    `column` contains the last rows of these columns, other rows are 0.
    """
    r, b = len(gram), column.shape[1]
    found = np.zeros((r + b, r + b))
    found[:r, :r] = gram
    found[r + b - len(column) :, r:] = column
    found[r:, r + b - len(column) :] = column.T
    return found


def _strongest(labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the label columns, or the 256 linear combinations of largest variance if there are more columns."""
    if labels.shape[1] <= _LABELS:
        return labels
    _, vectors = np.linalg.eigh(labels.T @ (labels if weights is None else weights[:, None] * labels))
    return labels @ vectors[:, -_LABELS:]


def _squares(block: Any, weights: np.ndarray | None) -> float:
    """Compute the sum of the squared norms of rows, each multiplied by its weight."""
    if weights is not None:
        return float(weights @ squared_norms(block))
    values = stored_values(block)
    return float(np.vdot(values, values))


def _beyond(image: np.ndarray, recent: np.ndarray, column: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Compute an orthonormal basis of the part of `image` (d x b) that lies outside the span of `basis` (d x r)."""
    # First subtract the projection of the image on the bases of the two latest steps, with the inner products in
    # `column`. Because of floating-point errors, the image keeps a small component along the bases of earlier steps.
    # Subtract this component after orthonormalizing the columns, repeatedly while the component is large.
    lengths = np.linalg.norm(image, axis=0)
    found = _spanned((image - recent @ column) / np.where(lengths > 0, lengths, 1.0), 1e-10)
    rest = basis.T @ found
    while np.abs(rest).max(initial=0.0) > 1e-3:
        found = _spanned(found - basis @ rest, 1e-10)
        rest = basis.T @ found
    return _repaired(found - basis @ rest)


def _orthonormal(B: np.ndarray) -> np.ndarray:
    """Compute an orthonormal basis of the span of the columns (d x r)."""
    lengths = np.linalg.norm(B, axis=0)
    return _repaired(_spanned(B / np.where(lengths > 0, lengths, 1.0), 1e-10))


def _spanned(B: np.ndarray, least: float) -> np.ndarray:
    """Compute a nearly orthonormal basis of the columns of B.

    Directions with singular values up to `least` are dropped.
    """
    # For an n x k block, eigenvectors of the Gram matrix are several times as fast as a QR factorization, and yield a
    # basis that is orthogonal to four digits. Use a QR factorization if rounding errors of the Gram matrix exceed the
    # squares of small singular values.
    if not B.shape[1]:
        return B
    values, vectors = np.linalg.eigh(B.T @ B)
    if values[0] > max(1e-12 * values[-1], 1e2 * least**2):
        return B @ (vectors / np.sqrt(values))
    Q, R = np.linalg.qr(B)
    left, singular, _ = np.linalg.svd(R)
    return Q @ left[:, singular > least * max(1.0, singular.max(initial=0.0))]


def _repaired(Q: np.ndarray) -> np.ndarray:
    """Orthonormalize nearly orthonormal columns by Cholesky QR, which keeps their span."""
    return Q @ np.linalg.inv(np.linalg.cholesky(Q.T @ Q)).T


class RowMap(Protocol):
    """Map from rows to factor rows, such as a `FeatureMap`. The arrays of `to_arrays` identify the map."""

    def raw(self, X: Any, /) -> Any:
        """Map an array of rows (m x d) to factor rows (m x r)."""
        ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all arrays and metadata on which the factor rows depend."""
        ...


@dataclass(frozen=True)
class ShiftedRows:
    """Map that subtracts a vector from all rows, to preserve the precision of features far from the origin."""

    # Sparse rows are not shifted, because they are close to the origin and would become dense.

    shift: np.ndarray | None  # Vector of shape (d,) that is subtracted from each row, or None.
    narrow: bool = False  # Whether float32 rows stay float32.

    def raw(self, X: Any, /) -> Any:
        """Subtract the shift from an array of rows (m x d)."""
        if self.narrow and isinstance(X, np.ndarray):
            return X if self.shift is None else np.subtract(X, self.shift, dtype=np.float32)
        return shifted(double(X), self.shift)[0]

    def single(self, dtype: np.dtype) -> ShiftedRows:
        """Return a map that keeps float32 rows in float32, or this map if the data type is not float32."""
        return replace(self, narrow=True) if dtype == np.float32 else self

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {} if self.shift is None else {"shift": self.shift}, {"kind": "shifted"}


@dataclass(frozen=True)
class SubspaceCoordinates:
    """Map from rows to the coordinates of the centered rows in a subspace of linear functions."""

    subspace: Subspace  # Subspace with its basis and the mean of the rows, as computed by `subspaces`.

    def raw(self, X: Any, /) -> np.ndarray:
        """Compute the coordinates (m x r) of rows (m x d) in the basis, after subtracting the mean of the rows."""
        # Centering would make sparse rows dense, so subtract the mean after the product.
        Q = self.subspace.basis
        return np.asarray(double(X) @ Q) - self.subspace.mean @ Q

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"basis": self.subspace.basis, "mean": self.subspace.mean}, {"kind": "subspace"}


def weighted(factor_rows: Any, weights: np.ndarray) -> Any:
    """Multiply factor rows (m x r) by their weights (m). Sparse rows stay sparse. Block-sparse rows become dense."""
    if foreign(factor_rows) is not None:
        return factor_rows * placed(weights, factor_rows)[:, None]
    rows = factor_rows.dense() if hasattr(factor_rows, "dense") else factor_rows
    return scaled_rows(rows, weights.astype(rows.dtype if rows.dtype == np.float32 else np.float64))
