"""Symmetric forms on samples and the eigenproblems that they make; what methods of the catalog are given.

A form S (n x n, never dense) is a sum of a few parts that are cheap to multiply with. A problem is the template
[MOPE 30, 31]

    max tr(P'X'A X P)  subject to  P'(X'B X + ridge I)P = I,      or, of Z itself,      max tr(Z'AZ)  subject to  Z'BZ = I,

where X may be features, factor rows of a kernel, kernel columns (Z = K Gamma) or similarities to seed samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.linalg
import scipy.sparse
from scipy.sparse import csr_array

from dmo.blocks import row_blocks
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
    """What the methods of the catalog may use; each uses its own.

    weight (n, n)
    """

    ridge: float = 1e-3  # c
    mixing: float = 0.5  # share of the labels; of the features 1 - mixing
    shrinkage: float = 0.5  # of a covariance towards I
    n_neighbors: int | None = None  # k or k1; None: 15, or all samples of the class
    n_repelled: int | None = None  # k2
    weight: Any = "constant"  # (n, n): A kind of `graphs.weigh`, or the weights themselves
    bandwidth: float | str = "mean"  # of Gaussian weights
    tau: float = 1.0  # of inverse weights
    adjacency: Mode = "union"  # A mode of `graphs.adjacency`
    metric: Metric = "euclidean"  # of the neighbors
    regularization: float = 1e-3  # of reconstruction weights
    penalty: float = 1.0  # of the within-class scatter
    repulsion: float = 1.0  # weight of the pairs that are driven apart
    smoothness: float = 0.1  # of the Laplacian term
    supervised: str = "fda"  # the methods of a mix
    unsupervised: str = "lpp"  # the methods of a mix
    constraint: Literal["mixed", "supervised", "projection"] = "mixed"

    @classmethod
    def of(cls, estimator: Any) -> Options:
        """Take the options that an estimator has parameters for, and that are set there."""
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
"""What the estimators accept for options that are given, and for what else a method may use; None stands for the default."""


@dataclass(frozen=True, eq=False)
class TraceSamples:
    """What is known of n samples.

    rows (n, d); labels (n, q); weights (n,)
    """

    n: int  # samples
    rows: Any = None  # (n, d): X, for methods that look at it
    labels: Any = None  # (n, q): 0/1, or a factor of a label kernel
    trace: float | None = None  # of the kernel X X'; None: worked out from the rows
    center: bool = True  # take rows and labels less their means
    weights: np.ndarray | None = None  # (n,): how often every sample counts, above 0; None: once each

    @property
    def Y(self) -> Any:
        """The labels as given. Raises ValueError where there are none."""
        if self.labels is None:
            raise UserError("this method learns from labels; pass y")
        return self.labels

    @property
    def factor(self) -> Any:
        """The label factor, centered where the samples are; sparse labels as they are, since moments center them."""
        return self.Y - self.mean(self.Y) if self.center and not isinstance(self.Y, EntryRows) else self.Y

    def held(self) -> TraceSamples:
        """The same with sparse labels as an array, for problems that are not solved from moments."""
        return replace(self, labels=self.labels[:].astype(np.float64)) if isinstance(self.labels, EntryRows) else self

    @property
    def size(self) -> float:
        """Sum of the weights: the number of samples, each as often as it counts."""
        return self.n if self.weights is None else float(self.weights.sum())

    def total(self, T: Any) -> np.ndarray:
        """Add up rows, each as often as it counts.

        T (n, ...) -> (...)
        """
        return np.asarray(T.sum(axis=0) if self.weights is None else self.weights @ T)

    def mean(self, T: Any) -> np.ndarray:
        """Average rows, each as often as it counts.

        T (n, ...) -> (...)
        """
        return np.asarray(T.mean(axis=0) if self.weights is None else self.total(T) / self.size)

    def rooted(self, T: np.ndarray) -> np.ndarray:
        """Multiply rows by the roots of their weights, so that plain products of them are weighted ones.

        T (n, q) -> (n, q)
        """
        return T if self.weights is None else np.sqrt(self.weights)[:, None] * T

    @property
    def label_scale(self) -> float:
        """tr K / tr K_Y, which gives both kernels the same trace; 0 where the labels are constant."""
        if isinstance(self.Y, EntryRows):
            mean = self.mean(self.Y)
            own = self.size * float(mean.sum() - self.center * (mean @ mean))
        else:
            factor = self.rooted(self.factor)
            own = float(np.einsum("ij,ij->", factor, factor))
        trace = self._spread() if self.trace is None else self.trace
        return trace / own if own > 0 else 0.0

    def _spread(self) -> float:
        """Sum of the squares of the rows, less their mean where they are centered."""
        values = self.rows.data if scipy.sparse.issparse(self.rows) else self.rows
        if not self.center:
            return float(np.vdot(values, values))
        mean = np.asarray(self.rows.mean(axis=0), np.float64).ravel()
        if scipy.sparse.issparse(self.rows):
            return float(np.vdot(values, values) - self.n * (mean @ mean))
        return float(np.square(values - mean).sum())

    @property
    def counts(self) -> np.ndarray:
        """m: labels of every sample."""
        return self.Y.sum(axis=1)

    @property
    def sizes(self) -> np.ndarray:
        """n_c: samples of every label, at least 1."""
        return np.maximum(self.Y.sum(axis=0), 1.0)

    def members(self) -> Iterator[tuple[int, np.ndarray]]:
        """Go over the labels that have samples."""
        for label in range(self.Y.shape[1]):
            own = np.flatnonzero(self.Y[:, label])
            if len(own):
                yield label, own

    def labeled(self) -> tuple[TraceSamples, np.ndarray]:
        """Select the samples that have labels."""
        index = np.flatnonzero(self.Y.any(axis=1))
        return replace(self, n=len(index), rows=self.rows[index], labels=self.Y[index]), index


MixedConstraint = Literal["mixed", "projection", "first"]
_FULL = 0.03
"""Share of entries of a strip of a sparse part from which a dense matrix product is faster: whole classes have it."""
_BLIND = 1e-12
"""S1 relative to |S||1| below which a form counts as blind to the samples' mean."""


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """S = identity I + kernel K + sparse + factor core factor' + diag(diagonal) over n samples, K = X X'."""

    # Arguments: `n`; `sparse` (n x n CSR, symmetric; a NumPy array of a method that is dense by definition); `factor`
    # T (n x q); `core` (q x q, symmetric; None: I); `diagonal` (n); `identity` and `kernel`, shares of I and K. Parts
    # that are None or 0 are not there.

    n: int
    sparse: Any = None
    factor: np.ndarray | None = None
    core: np.ndarray | None = None
    diagonal: np.ndarray | None = None
    identity: float = 0.0
    kernel: float = 0.0

    def apply(self, B: Any, product: LinearMap | None = None) -> Any:
        """S B (n x k). `product`: B -> K B, for a form that has a kernel part."""
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
        """S B (n x k) of a form without a kernel part."""
        return self.apply(B)

    def projected(self, X: Any, mean: np.ndarray | None = None) -> np.ndarray:
        """(X - 1 mean')'S(X - 1 mean') (d x d), X n x d, dense or CSR; row blocks, nothing n x n."""
        sums = self @ np.ones(self.n)  # refuses a kernel part
        weights = self._weights()
        total = np.zeros((X.shape[1],) * 2)
        for where in row_blocks(self.n, 1024):
            right: Any = np.zeros((where.stop - where.start, X.shape[1]))
            if self.sparse is not None:
                part = self.sparse[where]
                crowded = scipy.sparse.issparse(part) and part.nnz > _FULL * part.shape[0] * self.n
                right = right + (part.toarray() if crowded and isinstance(X, np.ndarray) else part) @ X
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
        """Whether S = T core T' alone: of the rank of T at most, so that further directions would be noise."""
        others = self.kernel or self.identity or self.diagonal is not None or self.sparse is not None
        return self.factor is not None and not others

    def _weights(self) -> np.ndarray | None:
        """The diagonal of identity I + diag(diagonal), None where there is neither."""
        if self.diagonal is None:
            return np.full(self.n, self.identity) if self.identity else None
        return self.diagonal + self.identity

    def dense(self) -> np.ndarray:
        """S itself (n x n), for small problems."""
        return self @ np.eye(self.n)

    def times(self, scale: float) -> QuadraticForm:
        """scale S."""
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
        """The same form with a positive semidefinite core multiplied into the factor."""
        if self.core is None or self.factor is None:
            return self
        return replace(self, factor=self.factor @ power_of(self.core, 0.5), core=None)

    def resolved(self, F: np.ndarray) -> QuadraticForm:
        """The same form with K written out as F F' (F n x r)."""
        return replace(self, kernel=0.0) + QuadraticForm(self.n, factor=F, core=self.kernel * np.eye(F.shape[1]))

    def centered(self) -> QuadraticForm:
        """H S H, H = I - 11'/n: blind to the samples' mean. A form that is so already is returned as it is."""
        ones = np.ones(self.n)
        sums = self @ ones
        probe = self @ np.where(np.arange(self.n) % 2, 1.0, -1.0)
        if np.abs(sums).max() <= _BLIND * max(np.abs(probe).max(), np.finfo(float).tiny):
            return self
        core = np.array([[sums.sum() / self.n**2, -1 / self.n], [-1 / self.n, 0.0]])
        return self + QuadraticForm(self.n, factor=np.column_stack([ones, sums]), core=core)

    def weighted(self, shares: np.ndarray) -> QuadraticForm:
        """diag(shares) S diag(shares): entry by entry times shares_i shares_j; of a form without a kernel part."""
        return self._between(scipy.sparse.diags_array(shares))

    def spread(self, index: np.ndarray, n: int) -> QuadraticForm:
        """The form over n samples that is S on the samples `index` and 0 on all others; without a kernel part."""
        return self._between(csr_array((np.ones(len(index)), (index, np.arange(len(index)))), shape=(n, len(index))))

    def _between(self, D: Any) -> QuadraticForm:
        """D S D' for a sparse D with one entry in a row and a column at most."""
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
    """The factors side by side, and their cores as one."""
    parts = [(form.factor, form.core) for form in forms if form.factor is not None]
    if not parts:
        return None, None
    cores: Sequence[np.ndarray] = [np.eye(factor.shape[1]) if core is None else core for factor, core in parts]
    factors = [factor for factor, _ in parts]  # a single one may be sparse labels
    return factors[0] if len(factors) == 1 else np.hstack(factors), scipy.linalg.block_diag(*cores)


@dataclass(frozen=True, eq=False)
class TraceProblem:
    """One eigenproblem of the template; see the module."""

    A: QuadraticForm  # objective
    B: QuadraticForm | None = None
    ridge: float = 1.0  # of the constraint; where Z itself is sought, of its regression on X, for new rows
    center: bool = True  # take X less its mean
    positive: bool = False  # drop directions of no gain, or of a loss
    scaled: bool = False  # give coordinates the root of their eigenvalue as length
    direct: bool = False  # Z itself is sought
    constant: bool = False  # 1 is the solution of the largest eigenvalue, and left out
    unit_rows: bool = False  # rows of Z are given length 1

    def projection(self, ridge: float) -> TraceProblem:
        """Turn a direct problem into one with Z = X P."""
        if not self.direct:
            return self
        B = QuadraticForm(self.A.n, identity=1.0) if self.B is None else self.B
        return TraceProblem(self.A, B, self.ridge or ridge, self.center)

    def each(self, change: Callable[[QuadraticForm], QuadraticForm]) -> TraceProblem:
        """Change both forms alike: center them, so that the problem can be added to another's, or pose it among others."""
        return replace(self, A=change(self.A), B=None if self.B is None else change(self.B))

    def rooted(self, weights: np.ndarray | None) -> TraceProblem:
        """Pose the problem of samples that count by weights on their rows times the roots of these.

        weights (n,)
        """
        if weights is None or self.A.factor is None:
            return self
        return replace(self, A=replace(self.A, factor=np.sqrt(weights)[:, None] * self.A.factor))


def mix(first: TraceProblem, second: TraceProblem, share: float, constraint: MixedConstraint = "mixed") -> TraceProblem:
    """`share` times the one projection plus (1 - share) times the other; over the same n samples [MOPE 44, 45]."""
    # Two constraints P'P = I stay that; else the constraints are "mixed" like the objectives, or that of the "first"
    # holds (the special case below (45)), or P'P = I, a "projection" with orthonormal columns (the option above
    # (45)).
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
