"""Symmetric forms on samples and the one solver of the neighborhood methods.

A form is S = sparse + T core T' + diag(d) (n x n, never dense). A pencil is max tr(P'X'A XP) subject to
P'(X'B X + c I)P = I; X may be features, kernel columns (Z = K Gamma) or similarities to seed samples. "Direct" problems
ask for Z itself: max tr(Z'AZ) subject to Z' diag(b) Z = I.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse.linalg
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from dmo.blocks import row_blocks
from dmo.errors import UserError
from dmo.linalg.eigen import TracePairs, check_rank, fix_signs, solve_trace

DENSE = 1500
"""Samples up to which a direct problem is solved as a dense matrix."""
RESTARTS = 100
"""Restarts after which plain Lanczos gives up on a sparse direct problem."""
FACTORED = 20000
"""Samples up to which it is then solved by shift and invert; above, by LOBPCG."""


@dataclass(frozen=True, eq=False)
class SampleForm:
    """S = sparse + factor core factor' + diag(diagonal) over n samples; see the module.

    Arguments: `n`; `sparse` (n x n CSR, symmetric; a NumPy array of a method that is dense by definition); `factor` T
    (n x q); `core` (q x q, symmetric); `diagonal` (n). Each may be None; a core of None stands for I.
    """

    n: int
    sparse: Any = None
    factor: np.ndarray | None = None
    core: np.ndarray | None = None
    diagonal: np.ndarray | None = None

    def __matmul__(self, B: np.ndarray) -> np.ndarray:
        """S B (n x k)."""
        out = np.zeros(B.shape)
        if self.sparse is not None:
            out += self.sparse @ B
        if self.factor is not None:
            inner = self.factor.T @ B
            out += self.factor @ (inner if self.core is None else self.core @ inner)
        if self.diagonal is not None:
            out += self.diagonal.reshape(-1, *[1] * (B.ndim - 1)) * B
        return out

    def projected(self, X: Any, mean: np.ndarray | None = None) -> np.ndarray:
        """(X - 1 mean')'S(X - 1 mean') (d x d), X n x d, dense or CSR; row blocks, nothing n x n."""
        d = X.shape[1]
        total = np.zeros((d, d))
        for where in row_blocks(self.n, 1024):
            right: Any = np.zeros((where.stop - where.start, d))
            if self.sparse is not None:
                part = self.sparse[where]
                if (
                    scipy.sparse.issparse(part)
                    and isinstance(X, np.ndarray)
                    and part.nnz > 0.03 * part.shape[0] * self.n
                ):
                    part = part.toarray()  # whole classes: a matrix product is faster
                right = right + part @ X
            if self.diagonal is not None:
                block = X[where]
                scale = scipy.sparse.diags_array(self.diagonal[where])
                right = right + (scale @ block)
            total += X[where].T @ right
        if self.factor is not None:
            inner = np.asarray(X.T @ self.factor)
            total += inner @ (inner.T if self.core is None else self.core @ inner.T)
        if mean is not None:
            sums = self @ np.ones(self.n)
            border = np.outer(mean, np.asarray(X.T @ sums).ravel())
            total += sums.sum() * np.outer(mean, mean) - border - border.T
        return (total + total.T) / 2

    def dense(self) -> np.ndarray:
        """S itself (n x n), for small problems."""
        return self @ np.eye(self.n)

    def times(self, scale: float) -> SampleForm:
        """scale S."""
        if self.factor is None:
            core = None
        else:
            core = scale * (np.eye(self.factor.shape[1]) if self.core is None else self.core)
        sparse = None if self.sparse is None else csr_array(self.sparse * scale)
        return SampleForm(self.n, sparse, self.factor, core, None if self.diagonal is None else scale * self.diagonal)

    def __add__(self, other: SampleForm) -> SampleForm:
        sparse = _sum(self.sparse, other.sparse)
        return SampleForm(
            self.n,
            None if sparse is None else csr_array(sparse),
            *_stacked(self, other),
            _sum(self.diagonal, other.diagonal),
        )

    def __sub__(self, other: SampleForm) -> SampleForm:
        return self + other.times(-1.0)

    def scaled(self, shares: np.ndarray) -> SampleForm:
        """diag(shares) S diag(shares): entry by entry times shares_i shares_j."""
        D = scipy.sparse.diags_array(shares)
        return SampleForm(
            self.n,
            None if self.sparse is None else csr_array(D @ self.sparse @ D),
            None if self.factor is None else shares[:, None] * self.factor,
            self.core,
            None if self.diagonal is None else self.diagonal * shares**2,
        )

    def spread(self, index: np.ndarray, n: int) -> SampleForm:
        """The form over n samples that is S on the samples `index` and 0 on all others."""
        place = csr_array((np.ones(len(index)), (index, np.arange(len(index)))), shape=(n, len(index)))
        return SampleForm(
            n,
            None if self.sparse is None else csr_array(place @ self.sparse @ place.T),
            None if self.factor is None else place @ self.factor,
            self.core,
            None if self.diagonal is None else place @ self.diagonal,
        )


def _sum(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _stacked(a: SampleForm, b: SampleForm) -> tuple[np.ndarray | None, np.ndarray | None]:
    forms = [form for form in (a, b) if form.factor is not None]
    if not forms:
        return None, None
    cores = [
        np.eye(form.factor.shape[1]) if form.core is None else form.core for form in forms if form.factor is not None
    ]
    return np.hstack([form.factor for form in forms if form.factor is not None]), scipy.linalg.block_diag(*cores)


def centering(n: int) -> SampleForm:
    """H = I - 11'/n."""
    return SampleForm(n, None, np.ones((n, 1)), np.array([[-1.0 / n]]), np.ones(n))


@dataclass(frozen=True, eq=False)
class Pencil:
    """max tr(P'X'A XP) s.t. P'(X'B X + ridge I)P = I. `B` None: 0 (ridge 1: orthonormal P); `positive`: directions of
    negative or no gain are dropped; `center`: X less its mean."""

    A: SampleForm
    B: SampleForm | None = None
    ridge: float = 1.0
    positive: bool = False
    center: bool = True

    def spread(self, index: np.ndarray, n: int) -> Pencil:
        """The same problem among n samples, of which `index` take part."""
        B = None if self.B is None else self.B.spread(index, n)
        return Pencil(self.A.spread(index, n), B, self.ridge, self.positive, self.center)

    def scaled(self, shares: np.ndarray) -> Pencil:
        """Both forms entry by entry times shares_i shares_j."""
        B = None if self.B is None else self.B.scaled(shares)
        return Pencil(self.A.scaled(shares), B, self.ridge, self.positive, self.center)


def mix(unsupervised: Pencil, supervised: Pencil, share: float) -> Pencil:
    """share times the one problem plus (1 - share) times the other; over the same n samples.

    Two constraints P'P = I stay that; else the constraints are mixed like the objectives.
    Source: [MOPE 44, 45].
    """
    A = unsupervised.A.times(share) + supervised.A.times(1 - share)
    center = unsupervised.center and supervised.center
    positive = unsupervised.positive and supervised.positive
    parts = [p.B.times(w) for p, w in ((unsupervised, share), (supervised, 1 - share)) if p.B is not None]
    if not parts:
        return Pencil(A, None, 1.0, positive, center)
    B = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return Pencil(A, B, share * unsupervised.ridge + (1 - share) * supervised.ridge, positive, center)


@dataclass(frozen=True)
class LinearFit:
    """f(x) = x W + offset of new rows: `values` (k, descending), `coefficients` W (d x k), `offset` (k)."""

    values: np.ndarray
    coefficients: np.ndarray
    offset: np.ndarray


def solve_projected(pencil: Pencil, X: Any, k: int, variance: float | None = None) -> LinearFit:
    """The k algebraically largest solutions on rows X (n x d, dense or CSR), in the span of the rows where d > n.

    Argument `variance`: X is first centered and projected on the fewest principal axes with this share of its variance.
    Raises ValueError where the problem has fewer than k directions.
    """
    n, d = X.shape
    mean = np.asarray(X.mean(axis=0), np.float64).ravel() if pencil.center or variance is not None else None
    back = None
    if mean is not None and not scipy.sparse.issparse(X):
        X = X - mean
    if variance is not None:
        X, back = _principal(X, mean if scipy.sparse.issparse(X) else None, variance)
    elif d > n:
        X, back = _row_space(X, mean if scipy.sparse.issparse(X) else None)
    shift = mean if scipy.sparse.issparse(X) and back is None else None
    A = pencil.A.projected(X, shift)
    B = None
    if pencil.B is not None:
        B = pencil.B.projected(X, shift)
        B.flat[:: len(B) + 1] += pencil.ridge
    check_rank(len(A), k)
    found = solve_trace(A, B, k)
    if pencil.positive:
        found = _positive(found)
    scale = np.sqrt(pencil.ridge) if B is None else 1.0
    W = found.vectors / scale if back is None else fix_signs(back @ (found.vectors / scale))
    values = found.values / scale**2
    return LinearFit(values, W, np.zeros(W.shape[1]) if mean is None else -mean @ W)


def _positive(found: TracePairs) -> TracePairs:
    keep = found.values > 1e-10 * np.abs(found.values).max(initial=0.0)
    if not keep.any():
        raise UserError("no direction has a positive eigenvalue; change the neighborhoods, or take another method")
    return TracePairs(found.values[keep], found.vectors[:, keep])


def directions(spectrum: np.ndarray, variance: float) -> int:
    """The fewest of the variances `spectrum` (descending) that hold a share of their sum."""
    return min(len(spectrum), 1 + int(np.searchsorted(np.cumsum(spectrum), variance * spectrum.sum() * (1 - 1e-12))))


def _principal(X: Any, mean: np.ndarray | None, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """(F, V): rows X (less `mean`) on their first principal axes V (d x r), F = X V."""
    n, d = X.shape
    if d > n:
        F, V = _row_space(X, mean)
        r = directions(np.square(F).sum(axis=0)[::-1], variance)
        return F[:, ::-1][:, :r], V[:, ::-1][:, :r]
    spectrum, V = scipy.linalg.eigh(SampleForm(n, diagonal=np.ones(n)).projected(X, mean), check_finite=False)
    V = V[:, ::-1][:, : directions(np.maximum(spectrum[::-1], 0.0), variance)]
    return np.asarray(X @ V) - (0.0 if mean is None else mean @ V), V


def _row_space(X: Any, mean: np.ndarray | None) -> tuple[np.ndarray, Any]:
    """(F, V): rows X (less `mean`) = F V', V (d x r) with orthonormal columns, from the n x n Gram matrix of the rows."""
    G = X @ X.T
    G = G.toarray() if scipy.sparse.issparse(G) else np.asarray(G)
    if mean is not None:
        G = G - G.mean(axis=0) - G.mean(axis=1)[:, None] + G.mean()
    values, U = scipy.linalg.eigh((G + G.T) / 2, check_finite=False)
    keep = values > 1e-12 * values[-1]
    U, root = U[:, keep], np.sqrt(values[keep])
    V = np.asarray(X.T @ (U / root))
    if mean is not None:
        V = V - np.outer(mean, (U / root).sum(axis=0))
    return U * root, V


def solve_direct(A: SampleForm, k: int, weights: np.ndarray | None = None, constant: bool = False) -> TracePairs:
    """The k algebraically largest solutions of A z = lambda diag(weights) z, Z' diag(weights) Z = I.

    `constant`: 1 is the solution of the largest eigenvalue and is left out. Dense up to `DENSE` samples; above, by Lanczos; a
    sparse negative semidefinite form whose eigenvalues are too crowded for that by shift and invert up to `FACTORED`
    samples, and by LOBPCG with an incomplete factor above. Warns where LOBPCG has not converged.
    """
    n, count = A.n, k + constant
    check_rank(n - constant, k)
    if n <= max(DENSE, 4 * count):
        S = A.dense()
        half = np.ones(n) if weights is None else 1 / np.sqrt(weights)
        found = solve_trace(half[:, None] * S * half, None, count)
        found = TracePairs(found.values, half[:, None] * found.vectors)
    elif A.factor is None and constant:
        found = _sparse(A, count, weights)
    else:
        found = _lanczos(A, count, weights)
    if constant:
        found = _without_constant(found, np.ones(n) if weights is None else weights)
    return TracePairs(found.values, fix_signs(found.vectors))


def _without_constant(found: TracePairs, weights: np.ndarray) -> TracePairs:
    """The vectors of a space that holds 1, turned so that 1 is one of them, without it."""
    inner = found.vectors.T @ weights
    Q = scipy.linalg.null_space(inner[None, :] / np.linalg.norm(inner))
    values, turn = np.linalg.eigh(Q.T @ (found.values[:, None] * Q))
    return TracePairs(values[::-1], found.vectors @ (Q @ turn[:, ::-1]))


def _sparse(A: SampleForm, count: int, weights: np.ndarray | None) -> TracePairs:
    """The smallest eigenpairs of L = -diag(weights)^-1/2 A diag(weights)^-1/2, positive semidefinite."""
    half = np.ones(A.n) if weights is None else 1 / np.sqrt(weights)
    scaled = A.scaled(half)
    L = csr_array((A.n, A.n)) if scaled.sparse is None else csr_array(-scaled.sparse)
    if scaled.diagonal is not None:
        L = csr_array(L - scipy.sparse.diags_array(scaled.diagonal))
    typical = float(abs(L.diagonal()).mean())
    rng = np.random.default_rng(0)
    found = _spread_out(L, count, typical, rng)
    if found is None:
        found = _inverted(L, count, typical, rng) if A.n <= FACTORED else _preconditioned(L, count, typical, rng, half)
    values, vectors = found
    order = np.argsort(values)[:count]
    values, vectors = values[order], vectors[:, order]
    residual = np.linalg.norm(L @ vectors - vectors * values, axis=0).max()
    if residual > 1e-4 * typical:
        warnings.warn(
            f"the sparse eigenproblem of {A.n} samples stopped with a residual of {residual / typical:.1e}; "
            f"take more neighbors, or fewer components",
            ConvergenceWarning,
            stacklevel=4,
        )
    return TracePairs(-values, half[:, None] * vectors)


Smallest = tuple[np.ndarray, np.ndarray]


def _spread_out(L: csr_array, count: int, typical: float, rng: np.random.Generator) -> Smallest | None:
    """By Lanczos on 2 I - L / typical: fast where the wanted eigenvalues lie apart; None where they do not."""
    n = L.shape[0]
    shifted = scipy.sparse.linalg.LinearOperator((n, n), matvec=lambda v: 2 * v - L @ v / typical, dtype=np.float64)
    size = min(n - 1, max(60, 3 * count))
    try:
        values, vectors = scipy.sparse.linalg.eigsh(
            shifted, count, which="LA", v0=rng.standard_normal(n), ncv=size, maxiter=RESTARTS, tol=1e-10
        )
    except scipy.sparse.linalg.ArpackNoConvergence:
        return None
    return (2 - values) * typical, vectors


def _inverted(L: csr_array, count: int, typical: float, rng: np.random.Generator) -> Smallest:
    """By Lanczos on (L + c I)^-1, from a sparse factorization."""
    start = rng.standard_normal(L.shape[0])
    return scipy.sparse.linalg.eigsh(scipy.sparse.csc_array(L), count, sigma=-1e-6 * typical, which="LM", v0=start)


def _preconditioned(L: csr_array, count: int, typical: float, rng: np.random.Generator, half: np.ndarray) -> Smallest:
    """By LOBPCG with an incomplete factorization, from the constant and random vectors."""
    n = L.shape[0]
    shifted = scipy.sparse.csc_matrix(L + 1e-2 * typical * scipy.sparse.eye_array(n))
    factor = scipy.sparse.linalg.spilu(shifted, drop_tol=1e-2, fill_factor=4)
    inverse = scipy.sparse.linalg.LinearOperator((n, n), matvec=factor.solve, matmat=factor.solve, dtype=np.float64)
    guess = np.column_stack([1 / half, rng.standard_normal((n, count + 4))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `_sparse` warns of the vectors that are kept
        return scipy.sparse.linalg.lobpcg(L, guess, None, inverse, tol=1e-7 * typical, largest=False, maxiter=500)


def _lanczos(A: SampleForm, count: int, weights: np.ndarray | None) -> TracePairs:
    half = np.ones(A.n) if weights is None else 1 / np.sqrt(weights)
    operator = scipy.sparse.linalg.LinearOperator(
        (A.n, A.n), matvec=lambda v: half * (A @ (half * v.ravel())), dtype=np.float64
    )
    start = np.random.default_rng(0).standard_normal(A.n)
    values, vectors = scipy.sparse.linalg.eigsh(operator, count, which="LA", v0=start)
    return TracePairs(values[::-1], half[:, None] * vectors[:, ::-1])
