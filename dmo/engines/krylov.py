"""Linear functions in a block Krylov subspace of the rows: for many rows with many features, dense or sparse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy.sparse

from dmo.blocks import InOrder, Rows, double
from dmo.cluster import current_client
from dmo.engines.row_sums import Beside, add_up
from dmo.errors import UserError
from dmo.hashing import digest, fingerprint

_LABELS = 256


@dataclass(frozen=True)
class Krylov:
    """w in the span of X'B, X'X X'B, ..., (X'X)^(steps - 1) X'B for B the labels and `extra` random columns.

    As an `approximation` of a linear problem: a pass over the rows widens the subspace by a step, another solves in it,
    until the eigenvalues, which grow with the subspace, grow by no more than `tol`; where they still do after the last
    step, a ConvergenceWarning says by how much. Neither an n x n nor a d x d matrix is formed, memory is 8 d steps
    (L + extra) bytes. Of more than 256 label columns the 256 strongest combinations are taken.

    Parameters
    ----------
    steps : int, default=10
        Steps at most, at least 1; after a single one nothing is compared, and no warning given.
    extra : int, default=60
        Random columns beside the labels, at least 0.
    tol : float, default=1e-3
        Growth of the eigenvalues in a step, relative to the largest, at which the subspace is wide enough; above 0.

    Raises
    ------
    UserError
        For values out of range.

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
            raise UserError(f"Krylov: steps = {self.steps}, extra = {self.extra}; needed are steps >= 1, extra >= 0")
        if not self.tol > 0:
            raise UserError(f"Krylov: tol = {self.tol}, expected a number above 0, such as 1e-3")


@dataclass(frozen=True)
class Subspace:
    """An orthonormal `basis` (d x r) of linear functions, the rows' `mean` (d) and the `trace` of (centered) X X'; `last`:
    no wider one follows."""

    basis: np.ndarray
    mean: np.ndarray
    trace: float
    last: bool


@dataclass(frozen=True)
class _Products:
    """X'T for targets T (d x q), with X'1 (d) and |X|^2 (a number) where they are asked for, all float64."""

    image: np.ndarray
    sums: np.ndarray
    squares: float

    def __add__(self, other: Self) -> _Products:
        return _Products(self.image + other.image, self.sums + other.sums, self.squares + other.squares)

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"image": self.image, "sums": self.sums}, {"squares": self.squares}


@dataclass(frozen=True)
class _FirstStep:
    """Adds X'S[labels, random columns] of a block; the random columns depend on the place of the block alone."""

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
    """Adds X'S X Q of a block."""

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
    """Find the Krylov subspaces of rows and label columns after 1, 2, ... steps, until no direction is left.

    Every step is a pass over the rows, on the workers of the current cluster where there is one.

    Parameters
    ----------
    method : Krylov
        Steps and random columns.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    labels : ndarray of shape (n, q) or None
        Label columns.
    center : bool
        Take rows and labels less their mean.
    random_state : int or None
        Seed of the random columns.
    weights : ndarray of shape (n,) or None, default=None
        S: how often every row counts; None: once each.

    Yields
    ------
    Subspace
        An orthonormal basis, the rows' mean and trace.

    Raises
    ------
    UserError
        Where no direction is left: rows and labels that are all zero (or constant).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.engines.krylov import Krylov, subspaces
    >>> X = np.random.default_rng(0).normal(size=(50, 8))
    >>> [found.basis.shape for found in subspaces(Krylov(steps=2, extra=2), X, X[:, :1], True, 0)]
    [(8, 3), (8, 6)]
    """
    n = X.shape[0] if weights is None else float(weights.sum())
    if labels is not None:
        labels = _strongest(labels - np.average(labels, axis=0, weights=weights) if center else labels, weights)
    seed = int(np.random.default_rng(random_state).integers(2**63))

    def step(add: _FirstStep | _NextStep, beside: Beside, *what: Any) -> _Products:
        return add_up(
            "subspace (pass over the rows)",
            X.shape[0],
            add,
            beside,
            lambda arrays, meta: _Products(arrays["image"], arrays["sums"], meta["squares"]),
            lambda: digest("subspace", fingerprint(X), *what, *([] if weights is None else [weights])),
            current_client(),
        )

    first = step(_FirstStep(InOrder(X), method.extra, seed), (labels, weights), seed, method.extra, labels)
    mean = first.sums / n if center else np.zeros(X.shape[1])
    trace = first.squares - n * float(mean @ mean)
    basis = last = _orthonormal(first.image)
    if not basis.shape[1]:
        raise UserError("the rows, or their products with the labels, are all zero: there is no direction to find")
    most = min(X.shape)
    for left in range(method.steps - 1, -1, -1):
        whole = basis.shape[1] >= most
        yield Subspace(basis, mean, trace, whole or not left)
        if whole or not left:
            return
        # products with an orthonormal basis: else the largest eigenvalue drowns the others
        image = step(_NextStep(InOrder(X), last), (weights,), last).image
        last = _beyond(image - n * np.outer(mean, mean @ last), basis)
        if not last.shape[1]:
            yield Subspace(basis, mean, trace, True)
            return
        basis = np.hstack([basis, last])


def _strongest(labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """The label columns, or the combinations of largest variance where there are more than `_LABELS`."""
    if labels.shape[1] <= _LABELS:
        return labels
    _, vectors = np.linalg.eigh(labels.T @ (labels if weights is None else weights[:, None] * labels))
    return labels @ vectors[:, -_LABELS:]


def _squares(block: Any, weights: np.ndarray | None) -> float:
    """|S^1/2 X|^2 of rows."""
    if weights is not None:
        lengths = block.multiply(block).sum(axis=1) if scipy.sparse.issparse(block) else np.square(block).sum(axis=1)
        return float(weights @ np.asarray(lengths).ravel())
    values = block.data if scipy.sparse.issparse(block) else block
    return float(np.vdot(values, values))


def _beyond(B: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what the columns of B have outside of the span of an orthonormal `basis` (d x r).

    Against the basis alone: orthonormalizing all blocks anew at every step costs several times as much. What is left of a
    column is judged by the column's length, and is made orthogonal a second time, for the digits that it lost.
    """
    lengths = np.linalg.norm(B, axis=0)
    B = B / np.where(lengths > 0, lengths, 1.0)
    Q, R = np.linalg.qr(B - basis @ (basis.T @ B))
    left, singular, _ = np.linalg.svd(R)
    found = Q @ left[:, singular > 1e-10]
    return np.linalg.qr(found - basis @ (basis.T @ found))[0]


def _orthonormal(B: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the columns' span (d x r)."""
    lengths = np.linalg.norm(B, axis=0)
    Q, R = np.linalg.qr(B / np.where(lengths > 0, lengths, 1.0))
    left, singular, _ = np.linalg.svd(R)
    return Q @ left[:, singular > 1e-10 * singular.max(initial=1e-300)]
