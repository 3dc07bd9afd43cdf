"""Quadratic forms on samples, and the eigenproblems of the methods of the catalog.

A quadratic form S is an n x n matrix that is stored as a sum of a few parts with cheap products. The eigenproblem of a
projection with coefficients P [MOPE 30, 31], or of an embedding with coordinates Z, is

    max tr(P'X'A X P)  subject to  P'(X'B X + ridge I)P = I,      or      max tr(Z'A Z)  subject to  Z'B Z = I,

where A and B are forms and X contains features, factor rows of a kernel, kernel columns (Z = K Gamma) or similarities
to landmark samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.sparse import csr_array

from dmo.blocks import dense, nonzero_count, row_blocks, scatter, stored_values
from dmo.errors import UserError
from dmo.graphs.edges import Mode
from dmo.graphs.search import Metric
from dmo.inputs import COUNT, NOT_NEGATIVE, PART, SHARE, EntryRows, Need, one_of, optional
from dmo.linalg.eigen import power_of
from dmo.linalg.rows import WorkerRows, beside
from dmo.linalg.tall import LinearMap
from dmo.parameters import flat


@dataclass(frozen=True)
class Options:
    """Options of the methods in the catalog; each method uses some of the options."""

    ridge: float = 1e-3
    mixing: float = 0.5  # weight of the labels in the objective; the features have the weight 1 - mixing
    shrinkage: float = 0.5  # weight of the identity matrix in a shrunk covariance
    n_neighbors: int | None = None  # number of neighbors; None: 15 neighbors, or all samples of the class
    n_repelled: int | None = None  # number of neighbors in other classes; None: 15 neighbors
    weight: Any = "constant"  # kind of edge weights for `graphs.weigh`, or an n x n matrix
    bandwidth: float | str = "mean"
    tau: float = 1.0  # constant in the denominator of "inverse" edge weights
    adjacency: Mode = "union"
    metric: Metric = "euclidean"
    regularization: float = 1e-3  # regularization of reconstruction weights
    penalty: float = 1.0  # weight of the within-class scatter in the objective
    repulsion: float = 1.0  # weight of neighbor pairs of different classes
    smoothness: float = 0.1  # weight of the Laplacian term
    supervised: str = "fda"  # supervised method in the combination "mix"
    unsupervised: str = "lpp"  # unsupervised method in the combination "mix"
    constraint: Literal["mixed", "supervised", "projection"] = "mixed"

    @classmethod
    def of(cls, estimator: Any) -> Options:
        """Read the options from the parameters of an estimator that are not None."""
        values = flat(estimator)
        given = {name: values.get(name) for name in cls.__dataclass_fields__}
        return cls(**{name: value for name, value in given.items() if value is not None})


NEEDS: dict[str, Need] = {
    "ridge": optional(NOT_NEGATIVE),
    "mixing": optional(SHARE),
    "shrinkage": optional(SHARE),
    "n_repelled": optional(COUNT),
    "adjacency": optional(one_of("union", "mutual", "sum")),
    "regularization": optional(NOT_NEGATIVE),
    "penalty": optional(NOT_NEGATIVE),
    "repulsion": optional(NOT_NEGATIVE),
    "smoothness": optional(NOT_NEGATIVE),
    "n_landmarks": optional(COUNT),
    "variance": optional(PART),
}
"""Valid values of the estimator parameters that a method may use. None selects the default."""


@dataclass(frozen=True, eq=False)
class TraceSamples:
    """Rows, labels and weights of the samples of an eigenproblem."""

    n: int
    rows: Any = None  # rows X, for methods that use them
    labels: Any = None  # labels of 0 and 1, or a factor of a label kernel
    trace: float | None = None  # trace of the kernel X X'; None: computed from the rows
    center: bool = True
    weights: np.ndarray | None = None  # positive sample weights; None: all weights are 1

    @property
    def Y(self) -> Any:
        """Labels as passed by the user. The property raises UserError if there are no labels."""
        if self.labels is None:
            raise UserError("this method learns from labels; pass y")
        return self.labels

    @property
    def factor(self) -> Any:
        """Label factor, centered if `center` is True. Sparse labels are not centered, because moments center them."""
        return self.Y - self.mean(self.Y) if self.center and not isinstance(self.Y, EntryRows) else self.Y

    def held(self) -> TraceSamples:
        """Convert sparse labels to an array, for problems that are not solved from moments."""
        return replace(self, labels=self.labels[:].astype(np.float64)) if isinstance(self.labels, EntryRows) else self

    @property
    def size(self) -> float:
        """Sum of the sample weights, or the number of samples without weights."""
        return self.n if self.weights is None else float(self.weights.sum())

    def total(self, T: Any) -> np.ndarray:
        """Compute the weighted sum of the rows of T."""
        return np.asarray(T.sum(axis=0) if self.weights is None else self.weights @ T)

    def mean(self, T: Any) -> np.ndarray:
        """Compute the weighted mean of the rows of T."""
        return np.asarray(T.mean(axis=0) if self.weights is None else self.total(T) / self.size)

    def rooted(self, T: np.ndarray) -> np.ndarray:
        """Multiply the rows of T by the square roots of their weights, so that T'T becomes a weighted sum."""
        return T if self.weights is None else np.sqrt(self.weights)[:, None] * T

    @property
    def label_scale(self) -> float:
        """Ratio of the traces of the feature kernel and the label kernel; 0 if the labels are constant."""
        if isinstance(self.Y, EntryRows):
            mean = self.mean(self.Y)
            own = self.size * float(mean.sum() - self.center * (mean @ mean))
        else:
            factor = self.rooted(self.factor)
            own = float(np.einsum("ij,ij->", factor, factor))
        trace = self._spread() if self.trace is None else self.trace
        return trace / own if own > 0 else 0.0

    def _spread(self) -> float:
        """Compute the sum of squares of the rows, after centering if `center` is True."""
        values = stored_values(self.rows)
        return scatter(self.rows) if self.center else float(np.vdot(values, values))

    @property
    def counts(self) -> np.ndarray:
        """Number of labels of each sample."""
        return self.Y.sum(axis=1)

    @property
    def sizes(self) -> np.ndarray:
        """Number of samples of each label, replaced with 1 for labels without samples."""
        return np.maximum(self.Y.sum(axis=0), 1.0)

    def members(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each label that has samples, with the indices of these samples."""
        for label in range(self.Y.shape[1]):
            own = np.flatnonzero(self.Y[:, label])
            if len(own):
                yield label, own

    def labeled(self) -> tuple[TraceSamples, np.ndarray]:
        """Select the samples that have labels, and return them with their indices."""
        index = np.flatnonzero(self.Y.any(axis=1))
        return replace(self, n=len(index), rows=self.rows[index], labels=self.Y[index]), index


MixedConstraint = Literal["mixed", "projection", "first"]
_FULL = 0.03
"""Fraction of nonzeros in a block of sparse rows above which a dense product is faster."""
_BLIND = 1e-12
"""Relative size of the row sums of a form S below which S is treated as centered (S 1 = 0)."""


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """Quadratic form over n samples: identity I + kernel K + sparse + factor core factor' + diag(diagonal)."""

    # `sparse` is a symmetric n x n CSR matrix, or a NumPy array for methods that are dense by definition. `factor` has
    # shape (n, q). `core` is a symmetric q x q matrix, and None means I. `identity` and `kernel` are the coefficients
    # of I and of the kernel K = X X'. Parts that are None or 0 are absent.

    n: int
    sparse: Any = None
    factor: np.ndarray | None = None
    core: np.ndarray | None = None
    diagonal: np.ndarray | None = None
    identity: float = 0.0
    kernel: float = 0.0

    def apply(self, B: Any, product: LinearMap | None = None) -> Any:
        """Compute S B for the form S; `product` computes K B and is required if the form has a kernel part."""
        out = self.identity * B if self.identity or isinstance(B, WorkerRows) else np.zeros(B.shape)
        if self.kernel:
            if product is None:
                raise TypeError("a form with a kernel part needs the kernel's product; see `resolved`")
            out = out + self.kernel * product(B)
        if self.sparse is not None:
            out = out + self.sparse @ B
        if self.factor is not None:
            factor = beside(B, self.factor)
            inner = factor.T @ B
            out = out + factor @ (inner if self.core is None else self.core @ inner)
        if self.diagonal is not None:
            out = out + self.diagonal.reshape(-1, *[1] * (B.ndim - 1)) * B
        return out

    def __matmul__(self, B: np.ndarray) -> np.ndarray:
        """Compute S B for a form S without a kernel part."""
        return self.apply(B)

    def projected(self, X: Any, mean: np.ndarray | None = None) -> np.ndarray:
        """Compute X'S X for rows X, dense or CSR, in blocks of rows; `mean` is subtracted from all rows first."""
        sums = self @ np.ones(self.n)  # Forms with a kernel part raise an error here.
        weights = self._weights()
        total = np.zeros((X.shape[1],) * 2)
        for where in row_blocks(self.n, 1024):
            right: Any = np.zeros((where.stop - where.start, X.shape[1]))
            if self.sparse is not None:
                part = self.sparse[where]
                crowded = nonzero_count(part) > _FULL * part.shape[0] * self.n
                right = right + (dense(part) if crowded and isinstance(X, np.ndarray) else part) @ X
            if weights is not None:
                right = right + scipy.sparse.diags_array(weights[where]) @ X[where]
            total += X[where].T @ right
        if self.factor is not None:
            inner = np.asarray(X.T @ self.factor)
            total += inner @ (inner.T if self.core is None else self.core @ inner.T)
        if mean is not None:
            border = np.outer(mean, np.asarray(X.T @ sums).ravel())
            total += sums.sum() * np.outer(mean, mean) - border - border.T
        return (total + total.T) / 2

    @property
    def is_factor(self) -> bool:
        """Whether S = T core T' without other parts, so that the rank of S is at most the rank of the factor T."""
        others = self.kernel or self.identity or self.diagonal is not None or self.sparse is not None
        return self.factor is not None and not others

    def _weights(self) -> np.ndarray | None:
        """Return the diagonal of identity I + diag(diagonal), or None if both parts are absent."""
        if self.diagonal is None:
            return np.full(self.n, self.identity) if self.identity else None
        return self.diagonal + self.identity

    def dense(self) -> np.ndarray:
        """Compute the n x n matrix of the form, for small problems."""
        return self @ np.eye(self.n)

    def times(self, scale: float) -> QuadraticForm:
        """Multiply the form by a number."""
        core = None
        if self.factor is not None:
            core = scale * (np.eye(self.factor.shape[1]) if self.core is None else self.core)
        return QuadraticForm(
            self.n,
            None if self.sparse is None else csr_array(self.sparse * scale),
            self.factor,
            core,
            None if self.diagonal is None else scale * self.diagonal,
            scale * self.identity,
            scale * self.kernel,
        )

    def __add__(self, other: QuadraticForm) -> QuadraticForm:
        sparse = _sum(self.sparse, other.sparse)
        return QuadraticForm(
            self.n,
            None if sparse is None else csr_array(sparse),
            *_stacked(self, other),
            _sum(self.diagonal, other.diagonal),
            self.identity + other.identity,
            self.kernel + other.kernel,
        )

    def __sub__(self, other: QuadraticForm) -> QuadraticForm:
        return self + other.times(-1.0)

    def absorbed(self) -> QuadraticForm:
        """Multiply a positive semidefinite core into the factor, which leaves the form unchanged."""
        if self.core is None or self.factor is None:
            return self
        return replace(self, factor=self.factor @ power_of(self.core, 0.5), core=None)

    def resolved(self, F: np.ndarray) -> QuadraticForm:
        """Replace the kernel K with a factorization K = F F'."""
        return replace(self, kernel=0.0) + QuadraticForm(self.n, factor=F, core=self.kernel * np.eye(F.shape[1]))

    def centered(self) -> QuadraticForm:
        """Return H S H for the centering matrix H, or S itself if its row sums are already 0."""
        ones = np.ones(self.n)
        sums = self @ ones
        probe = self @ np.where(np.arange(self.n) % 2, 1.0, -1.0)
        if np.abs(sums).max() <= _BLIND * max(np.abs(probe).max(), np.finfo(float).tiny):
            return self
        core = np.array([[sums.sum() / self.n**2, -1 / self.n], [-1 / self.n, 0.0]])
        return self + QuadraticForm(self.n, factor=np.column_stack([ones, sums]), core=core)

    def weighted(self, shares: np.ndarray) -> QuadraticForm:
        """Multiply each entry S_ij by shares_i shares_j, for a form without a kernel part."""
        return self._between(scipy.sparse.diags_array(shares))

    def spread(self, index: np.ndarray, n: int) -> QuadraticForm:
        """Extend a form on the samples `index` to n samples, with 0 for all others; kernel parts are not supported."""
        return self._between(csr_array((np.ones(len(index)), (index, np.arange(len(index)))), shape=(n, len(index))))

    def _between(self, D: Any) -> QuadraticForm:
        """Compute D S D' for a sparse matrix D with at most one entry per row and column."""
        weights = self._weights()
        return QuadraticForm(
            D.shape[0],
            None if self.sparse is None else csr_array(D @ self.sparse @ D.T),
            None if self.factor is None else D @ self.factor,
            self.core,
            None if weights is None else D.multiply(D) @ weights,
        )


def _sum(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _stacked(*forms: QuadraticForm) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Factorize a sum of quadratic forms T core T': join the columns of all T, and put all cores on a block diagonal."""
    parts = [(form.factor, form.core) for form in forms if form.factor is not None]
    if not parts:
        return None, None
    cores: Sequence[np.ndarray] = [np.eye(factor.shape[1]) if core is None else core for factor, core in parts]
    factors = [factor for factor, _ in parts]  # A single factor may be a sparse matrix of labels, which is not stacked.
    return factors[0] if len(factors) == 1 else np.hstack(factors), scipy.linalg.block_diag(*cores)


@dataclass(frozen=True, eq=False)
class TraceProblem:
    """Eigenproblem of an embedding or a projection, in the form that the module docstring describes."""

    A: QuadraticForm  # objective
    B: QuadraticForm | None = None  # constraint; None: orthonormal columns
    ridge: float = 1.0  # ridge of the constraint, or of the regression of Z on X if `direct` is true
    center: bool = True
    positive: bool = False  # whether to drop directions without a positive eigenvalue
    scaled: bool = False  # whether to multiply each coordinate by the square root of its eigenvalue
    direct: bool = False  # whether to compute the coordinates Z instead of coefficients P
    constant: bool = False  # whether the constant vector has the largest eigenvalue and is excluded
    unit_rows: bool = False  # whether to normalize the rows of Z to length 1

    def projection(self, ridge: float) -> TraceProblem:
        """Convert a problem for the coordinates Z into a problem for the coefficients P of Z = X P."""
        if not self.direct:
            return self
        B = QuadraticForm(self.A.n, identity=1.0) if self.B is None else self.B
        return TraceProblem(self.A, B, self.ridge or ridge, self.center)

    def each(self, change: Callable[[QuadraticForm], QuadraticForm]) -> TraceProblem:
        """Apply `change` to both forms of the problem."""
        return replace(self, A=change(self.A), B=None if self.B is None else change(self.B))

    def rooted(self, weights: np.ndarray | None) -> TraceProblem:
        """Multiply the factor of A by the square roots of the sample weights; None leaves the problem unchanged."""
        if weights is None or self.A.factor is None:
            return self
        return replace(self, A=replace(self.A, factor=np.sqrt(weights)[:, None] * self.A.factor))


def mix(first: TraceProblem, second: TraceProblem, share: float, constraint: MixedConstraint = "mixed") -> TraceProblem:
    """Combine two projections of the same samples as `share` * first + (1 - `share`) * second [MOPE 44, 45]."""
    # If both constraints are P'P = I, the combination has the same constraint. Otherwise, "mixed" combines the
    # constraints with the same weights as the objectives. "first" uses only the first constraint (the special case
    # below equation 45), and "projection" uses P'P = I (the option above equation 45).
    A = first.A.times(share) + second.A.times(1 - share)
    center = first.center and second.center
    if constraint == "projection":
        return TraceProblem(A, center=center)
    if constraint == "first":
        return TraceProblem(A, first.B, first.ridge, center)
    parts = [p.B.times(w) for p, w in ((first, share), (second, 1 - share)) if p.B is not None]
    if not parts:
        return TraceProblem(A, center=center)
    B = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return TraceProblem(A, B, share * first.ridge + (1 - share) * second.ridge, center)
