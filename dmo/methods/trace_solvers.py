"""Solvers of trace problems, on samples, on rows in memory, from moments, and by products with the kernel matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from dmo.blocks import dense, double, shifted
from dmo.errors import UserError
from dmo.fit.moments import LABELS, ROWS, WEIGHTED, Moments
from dmo.linalg.eigen import CUTOFF, Eigenpairs, TracePairs, block_krylov, check_rank, fix_signs, power_of, solve_trace
from dmo.linalg.linear import IllConditioned, positive_solve
from dmo.linalg.operators import Operator
from dmo.linalg.rows import Home, located
from dmo.linalg.solve import COEFFICIENTS, factorize
from dmo.linalg.tall import LinearMap, orthonormalize
from dmo.linalg.tiles import home_of, tiles_of
from dmo.methods.quadratic_forms import QuadraticForm, TraceProblem

DENSE = 1500
"""Maximum number of samples for which a direct problem is solved as a dense matrix."""
RESTARTS = 100
"""Maximum number of Lanczos restarts for a sparse direct problem, before another method is used."""
FACTORED = 20000
"""Maximum number of samples for shift-and-invert if Lanczos fails. Larger problems use LOBPCG."""


def solve_direct(problem: TraceProblem, k: int) -> TracePairs:
    """Find the k largest solutions of A z = lambda B z with Z'BZ = I, for a positive diagonal matrix B."""
    # Problems of up to `DENSE` samples use dense matrices, and larger problems use Lanczos. If the eigenvalues of a
    # sparse negative semidefinite form are too clustered for Lanczos, up to `FACTORED` samples use shift-and-invert,
    # and more samples use LOBPCG with an incomplete factorization. A ConvergenceWarning reports solutions of a sparse
    # form that have not converged.
    A, constant = problem.A, problem.constant
    weights = None if problem.B is None else problem.B.diagonal
    check_rank(A.n - constant, k)
    found = _pairs(A, k + constant, weights, constant)
    if constant:
        found = _without_constant(found, np.ones(A.n) if weights is None else weights)
    values, vectors = found.values, fix_signs(found.vectors)
    if problem.scaled:
        check_rank(int((values > CUTOFF * values[0]).sum()), k)
        vectors = vectors * np.sqrt(values)
    if problem.unit_rows:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = vectors / np.where(lengths > 0, lengths, 1.0)
    return TracePairs(values, vectors)


def _pairs(A: QuadraticForm, count: int, weights: np.ndarray | None, semidefinite: bool) -> TracePairs:
    if A.n <= max(DENSE, 4 * count):
        half = np.ones(A.n) if weights is None else 1 / np.sqrt(weights)
        found = solve_trace(half[:, None] * A.dense() * half, None, count)
        return TracePairs(found.values, half[:, None] * found.vectors)
    if semidefinite and A.factor is None and A.diagonal is None:
        return _sparse(A, count, weights)
    return _lanczos(A, count, weights)


def _without_constant(found: TracePairs, weights: np.ndarray) -> TracePairs:
    """Rotate vectors whose span contains the constant vector, so that one vector becomes constant, and drop it."""
    inner = found.vectors.T @ weights
    Q = scipy.linalg.null_space(inner[None, :] / np.linalg.norm(inner))
    values, turn = np.linalg.eigh(Q.T @ (found.values[:, None] * Q))
    return TracePairs(values[::-1], found.vectors @ (Q @ turn[:, ::-1]))


def _sparse(A: QuadraticForm, count: int, weights: np.ndarray | None) -> TracePairs:
    """Compute the smallest eigenpairs of the positive semidefinite matrix -diag(weights)^-1/2 A diag(weights)^-1/2."""
    half = np.ones(A.n) if weights is None else 1 / np.sqrt(weights)
    scaled = A.weighted(half)
    assert scaled.sparse is not None
    L = csr_array(-scaled.sparse)
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
            f"use more neighbors, or fewer components",
            ConvergenceWarning,
            stacklevel=5,
        )
    return TracePairs(-values, half[:, None] * vectors)


Smallest = tuple[np.ndarray, np.ndarray]
"""Smallest eigenvalues of a matrix, and their eigenvectors."""


def _spread_out(L: csr_array, count: int, typical: float, rng: np.random.Generator) -> Smallest | None:
    """Apply Lanczos to 2 I - L / typical, which is fast for well-separated eigenvalues; return None if it fails."""
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
    """Apply Lanczos to (L + c I)^-1, which requires a sparse factorization."""
    start = rng.standard_normal(L.shape[0])
    return scipy.sparse.linalg.eigsh(scipy.sparse.csc_array(L), count, sigma=-1e-6 * typical, which="LM", v0=start)


def _preconditioned(L: csr_array, count: int, typical: float, rng: np.random.Generator, half: np.ndarray) -> Smallest:
    """Apply LOBPCG with an incomplete factorization, starting from the constant vector and random vectors."""
    n = L.shape[0]
    shifted = scipy.sparse.csc_matrix(L + 1e-2 * typical * scipy.sparse.eye_array(n))
    factor = scipy.sparse.linalg.spilu(shifted, drop_tol=1e-2, fill_factor=4)
    inverse = scipy.sparse.linalg.LinearOperator((n, n), matvec=factor.solve, matmat=factor.solve, dtype=np.float64)
    guess = np.column_stack([1 / half, rng.standard_normal((n, count + 4))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `_sparse` warns if residuals are large.
        return scipy.sparse.linalg.lobpcg(L, guess, None, inverse, tol=1e-7 * typical, largest=False, maxiter=500)


def _lanczos(A: QuadraticForm, count: int, weights: np.ndarray | None) -> TracePairs:
    half = np.ones(A.n) if weights is None else 1 / np.sqrt(weights)
    operator = scipy.sparse.linalg.LinearOperator(
        (A.n, A.n), matvec=lambda v: half * (A @ (half * v.ravel())), dtype=np.float64
    )
    start = np.random.default_rng(0).standard_normal(A.n)
    values, vectors = scipy.sparse.linalg.eigsh(operator, count, which="LA", v0=start)
    return TracePairs(values[::-1], half[:, None] * vectors[:, ::-1])


@dataclass(frozen=True)
class EmbeddingFit:
    """Eigenvalues and coefficients of a fitted embedding."""

    values: np.ndarray  # eigenvalues of the k components, in descending order
    coefficients: np.ndarray  # coefficients of features or kernel columns for new samples, of shape (d, k)
    steps: int = 0  # steps of the eigensolver, or 0 for dense problems
    converged: bool = True
    residual: float = 0.0  # largest residual of the eigenpairs

    def unscaled(self) -> EmbeddingFit:
        """Divide each coordinate of a scaled problem by the square root of its eigenvalue."""
        return replace(self, coefficients=self.coefficients / np.sqrt(np.maximum(self.values, np.finfo(float).tiny)))


@dataclass(frozen=True)
class LinearFit(EmbeddingFit):
    """Linear embedding f(x) = x W + offset of new samples x, where W contains the coefficients."""

    offset: np.ndarray = field(kw_only=True)  # constant added to the k coordinates of all samples


def solve_projected(
    problem: TraceProblem, X: Any, k: int, variance: float | None = None, weights: np.ndarray | None = None
) -> LinearFit:
    """Find the k largest solutions for weighted rows in memory, of shape (n, d).

    If d > n, the solutions are computed within the row space.
    """
    n, d = X.shape
    mean = back = None
    if problem.center or variance is not None:
        mean = np.asarray(X.mean(axis=0) if weights is None else weights @ X / weights.sum(), np.float64).ravel()
    X, shift = shifted(X, mean)
    if variance is not None:
        X, back = _principal(X, shift, variance, weights)
    elif d > n:
        X, back = _row_space(X, shift)
    shift = shift if back is None else None
    A = problem.A.projected(X, shift)
    B = None
    if problem.B is not None:
        B = problem.B.projected(X, shift)
        B.flat[:: len(B) + 1] += problem.ridge
    check_rank(len(A) if not problem.A.is_factor else _factor_rank(problem.A, A, X), k)
    found = solve_trace(A, B, k)
    if problem.positive:
        found = _positive(found)
    scale = np.sqrt(problem.ridge) if B is None else 1.0
    W = found.vectors / scale if back is None else fix_signs(back @ (found.vectors / scale))
    values = found.values / scale**2
    return LinearFit(values, W, offset=np.zeros(W.shape[1]) if mean is None else -mean @ W)


def _factor_rank(form: QuadraticForm, A: np.ndarray, X: Any) -> int:
    """Compute the rank of A = X'T core T'X, with a threshold from the sizes of X'T and core instead of A."""
    inner = np.asarray(X.T @ form.factor)
    core = 1.0 if form.core is None else float(np.linalg.norm(form.core, 2))
    values = np.abs(scipy.linalg.eigvalsh(A, check_finite=False))
    return int((values > CUTOFF * core * float(np.linalg.norm(inner)) ** 2).sum())


def _positive(found: TracePairs) -> TracePairs:
    keep = found.values > 1e-10 * np.abs(found.values).max(initial=0.0)
    if not keep.any():
        raise UserError("no direction has a positive eigenvalue; change the neighborhoods, or use another method")
    return TracePairs(found.values[keep], found.vectors[:, keep])


def directions(spectrum: np.ndarray, variance: float) -> int:
    """Count the leading values of `spectrum` whose sum is at least the fraction `variance` of the total."""
    return min(len(spectrum), 1 + int(np.searchsorted(np.cumsum(spectrum), variance * spectrum.sum() * (1 - 1e-12))))


def _principal(
    X: Any, mean: np.ndarray | None, variance: float, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Project weighted rows X, minus `mean`, on their first principal axes.

    Returns the projections F, of shape (n, r), and the axes V, of shape (d, r).
    """
    n, d = X.shape
    inner = None
    if d > n:
        X, inner = _row_space(X, mean)
        mean = None
    scatter = QuadraticForm(n, identity=1.0) if weights is None else QuadraticForm(n, diagonal=weights)
    spectrum, V = scipy.linalg.eigh(scatter.projected(X, mean), check_finite=False)
    V = V[:, ::-1][:, : directions(np.maximum(spectrum[::-1], 0.0), variance)]
    return np.asarray(X @ V) - (0.0 if mean is None else mean @ V), V if inner is None else inner @ V


def _row_space(X: Any, mean: np.ndarray | None) -> tuple[np.ndarray, Any]:
    """Factorize the rows X, minus `mean`, as F V' by the n x n Gram matrix; V has orthonormal columns."""
    G = dense(X @ X.T)
    if mean is not None:
        G = G - G.mean(axis=0) - G.mean(axis=1)[:, None] + G.mean()
    values, U = scipy.linalg.eigh((G + G.T) / 2, check_finite=False)
    keep = values > 1e-12 * values[-1]
    U, root = U[:, keep], np.sqrt(values[keep])
    V = np.asarray(X.T @ (U / root))
    if mean is not None:
        V = V - np.outer(mean, (U / root).sum(axis=0))
    return U * root, V


def row_factor(X: Any, center: bool) -> np.ndarray:
    """Compute a factor F with at most min(n, d) columns and F F' = X X'; X is centered first if `center` is True."""
    mean = np.asarray(X.mean(axis=0), np.float64).ravel() if center else None
    if X.shape[1] > X.shape[0]:
        return _row_space(X, mean)[0]
    rows = double(dense(X))
    return rows if mean is None else rows - mean


DIRECT_ROWS = 8192
"""Maximum number of rows for which a kernel is factorized regardless of its storage."""


def fit_moments(problem: TraceProblem, moments: Moments, k: int, weights: np.ndarray | None = None) -> EmbeddingFit:
    """Solve a problem from the moments of rows F (n x r), labels T (n x q) and, for a diagonal form, weighted rows."""
    # The moments were collected with the sample weights `weights`. If the problem has fewer than k directions, the
    # function raises UserError.
    slices, form = moments.slices(), problem.A
    gram = moments.centered().gram if problem.center else moments.gram
    G = gram[slices[ROWS], slices[ROWS]]
    N = gram[slices[ROWS], slices[LABELS]] if form.factor is not None else np.zeros((len(G), 0))
    if problem.direct:
        T = gram[slices[LABELS], slices[LABELS]] if form.factor is not None else np.zeros((0, 0))
        if form.core is not None:
            root = power_of(form.core, 0.5)
            N, T = N @ root, root @ T @ root
        return _regress_moments(problem, G, N, T, k)
    A = form.identity * G + N @ (N.T if form.core is None else form.core @ N.T)
    if form.kernel:
        A = A + form.kernel * (G @ G)
    if form.diagonal is not None:
        total = form.diagonal.sum() if weights is None else weights @ form.diagonal
        A = A + _weighted(total, moments, problem.center)
    B = None if problem.B is None else problem.B.identity * G + problem.ridge * np.eye(len(G))
    found = solve_trace(A, B, k)
    if form.diagonal is None:  # The form A is semidefinite, so eigenvalues below the cutoff are floating-point error.
        check_rank(int((found.values > CUTOFF * found.values[0]).sum()), k)
    return EmbeddingFit(found.values, _scale(problem, found.values, found.vectors))


def _weighted(total: float, moments: Moments, center: bool) -> np.ndarray:
    """Compute X'diag(d)X for rows X, centered if `center` is True, and a diagonal d with the sum `total`."""
    slices = moments.slices()
    whole = moments.gram[slices[ROWS], slices[WEIGHTED]]
    if not center:
        return whole
    mean, sums = moments.mean()[slices[ROWS]], moments.sums[slices[WEIGHTED]]
    border = np.outer(mean, sums)
    return whole - border - border.T + total * np.outer(mean, mean)


def _regress_moments(problem: TraceProblem, G: np.ndarray, N: np.ndarray, T: np.ndarray, k: int) -> EmbeddingFit:
    """Compute eigenvectors Z of S = b F F' + T T' from the Gram matrix of [sqrt(b) F, T], and regress Z on F."""
    b = np.sqrt(problem.A.kernel)
    inner = np.block([[b * b * G, b * N], [b * N.T, T]]) if b else T
    cross = np.hstack([b * G, N]) if b else N
    found = solve_trace(inner, None, min(k, len(inner)))
    check_rank(int((found.values > CUTOFF * found.values[0]).sum()), k)
    right = cross @ (found.vectors / np.sqrt(found.values))
    if problem.ridge:
        W = positive_solve(G, problem.ridge, right)
    else:
        W = power_of(G, -1.0) @ right
    return EmbeddingFit(found.values, fix_signs(_scale(problem, found.values, W)))


def _scale(problem: TraceProblem, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return vectors * np.sqrt(np.maximum(values, 0.0)) if problem.scaled else vectors


def fit_operator(
    problem: TraceProblem,
    K: Operator,
    k: int,
    tol: float = 1e-7,
    max_steps: int = 200,
    random_state: int | None = 0,
) -> EmbeddingFit:
    """Solve a problem by products and linear systems with the n x n kernel matrix K; the caller centers K if needed."""
    # For a form T T', one product or solve with T leads to a q x q eigenproblem. Other forms need block Krylov
    # iteration. With a ridge of 0, the kernel matrix must have full rank, except for the constant direction of a
    # centered matrix. Otherwise, or if the problem has fewer than k directions, the function raises UserError.
    search = Search(K, k, tol, max_steps, random_state)
    if problem.direct or problem.B is not None:
        problem = replace(problem, A=problem.A.absorbed())
    form = problem.A
    if problem.direct:
        return _regress(problem, search)
    if _is_factored(form):
        return _factored(problem, K, k)
    if problem.B is not None:
        return _covariance(problem, search)
    if form.factor is None and form.diagonal is None and not form.kernel:
        pairs = search.eigen(lambda B: form.identity * (K @ B), form)
        return _dual(problem, pairs, pairs.vectors / np.sqrt(pairs.values))
    pairs = search.eigen(applied(form, K.product), form, K.product)
    alpha = pairs.vectors / np.sqrt(np.einsum("ij,ij->j", pairs.vectors, K @ pairs.vectors))
    return _dual(problem, pairs, alpha)


def applied(form: QuadraticForm, product: LinearMap) -> LinearMap:
    """Return the map B -> S B for a form S; `product` computes K B, in float64 for generalized eigenproblems."""
    return lambda B: form.apply(B, product)


@dataclass(frozen=True)
class Search:
    """Parameters of an eigenvector search for problems with a kernel matrix K."""

    K: Operator
    k: int
    tol: float
    max_steps: int
    random_state: int | None

    def start(self, factor: np.ndarray | None) -> np.ndarray:
        """Return start vectors: the label factor, and products of K with random vectors."""
        n = self.K.n
        known = np.zeros((n, 0)) if factor is None else orthonormalize(factor)[:, : 2 * self.k]
        noise = np.random.default_rng(self.random_state).standard_normal((n, min(n, self.k + 10)))
        return np.hstack([known, self.K @ noise])

    def eigen(self, apply: LinearMap, form: QuadraticForm, inner: LinearMap | None = None) -> Eigenpairs:
        """Compute eigenpairs of a map that combines the kernel and a form, on workers with kernel tiles if possible."""
        if inner is None:
            check_rank(self.K.n, self.k)
        start = self.start(form.factor)

        def home() -> Home | None:
            return home_of(self.K, start.size) if form.sparse is None and form.diagonal is None else None

        def search(placed: Callable[[np.ndarray], Any]) -> Eigenpairs:
            return block_krylov(apply, placed(start), self.k, self.tol, self.max_steps, inner=inner)

        return located(home, search)


def _is_factored(form: QuadraticForm) -> bool:
    return form.is_factor and form.core is None


def _factored(problem: TraceProblem, K: Operator, k: int) -> EmbeddingFit:
    """Solve a problem with the form T T' as a q x q eigenproblem of T'K T or, with a constraint, of T'H T / w."""
    # With the constraint B = w I and the ridge w c, the smoother is H = K (K + c I)^-1.
    T, weight = problem.A.factor, 1.0 if problem.B is None else problem.B.identity
    assert T is not None
    if problem.B is None:
        image, columns = K @ T, T
    else:
        columns = inverse(K, problem.ridge / weight, T)
        image = T - problem.ridge / weight * columns
    found = solve_trace(T.T @ image / weight, None, min(k, T.shape[1]))
    check_rank(int((found.values > CUTOFF * found.values[0]).sum()), k)
    alpha = columns @ (found.vectors / (weight * np.sqrt(found.values)))
    return EmbeddingFit(found.values, fix_signs(_scale(problem, found.values, alpha)))


def _covariance(problem: TraceProblem, search: Search) -> EmbeddingFit:
    """Solve H S t = lambda t for the smoother H and the form S, which also defines the inner product."""
    # The coefficients are (K + c I)^-1 S t / lambda, scaled to alpha'(K^2 + c K)alpha = 1.
    assert problem.B is not None
    weight = problem.B.identity
    ridge = problem.ridge / weight
    K, S = search.K, applied(problem.A, search.K.product)
    solves = bool(ridge) or problem.A.factor is not None  # Otherwise, K^-1 S = b I needs no solve.
    invert = Inverse(K, ridge, search.k) if solves else None
    if invert is not None and ridge:
        pairs = search.eigen(lambda B: B - ridge * invert(B), problem.A, S)
    else:
        pairs = search.eigen(S, problem.A)
    image = S(pairs.vectors)
    columns = problem.A.kernel * pairs.vectors if invert is None else invert(image)
    lengths = np.sqrt(np.einsum("ij,ij->j", pairs.vectors, image) * pairs.values * weight)
    return _dual(problem, replace(pairs, values=pairs.values / weight), columns / lengths)


def _regress(problem: TraceProblem, search: Search) -> EmbeddingFit:
    """Compute eigenvectors Z of the form, and their regression coefficients (K + c I)^-1 Z on the kernel."""
    form = problem.A
    if _is_factored(form):
        T = form.factor
        assert T is not None
        found = solve_trace(T.T @ T, None, min(search.k, T.shape[1]))
        check_rank(int((found.values > CUTOFF * found.values[0]).sum()), search.k)
        Z, residuals = T @ (found.vectors / np.sqrt(found.values)), np.zeros(search.k)
        pairs = Eigenpairs(found.values, Z, residuals, [], True)
    else:
        pairs = search.eigen(applied(form, lambda B: search.K @ B), form)
    if form.factor is None and not problem.ridge:  # Kernel PCA needs no solve, because K Z is a multiple of Z.
        return _dual(problem, pairs, pairs.vectors * (form.kernel / pairs.values))
    return _dual(problem, pairs, inverse(search.K, problem.ridge, pairs.vectors))


def _dual(problem: TraceProblem, pairs: Eigenpairs, alpha: np.ndarray) -> EmbeddingFit:
    worst = float(pairs.residuals.max(initial=0.0))
    return EmbeddingFit(
        pairs.values, fix_signs(_scale(problem, pairs.values, alpha)), pairs.steps, bool(pairs.converged), worst
    )


def inverse(K: Operator, ridge: float, B: np.ndarray) -> np.ndarray:
    """Compute (K + c I)^-1 B, or K^-1 B for a kernel of full rank if the ridge c is 0."""
    return Inverse(K, ridge, B.shape[1])(B)


class Inverse:
    """Solver that computes (K + c I)^-1 B for several B; the number of columns of B determines the method."""

    # For few columns and a large kernel, conjugate gradients are used, because one factorization costs as much as about
    # n / (6 k) products with k columns. Kernels in tiles also use conjugate gradients: a Cholesky factor would need 8
    # n^2 bytes in the client process. If conjugate gradients do not converge, Cholesky is used. `FullRank` solves
    # systems with c = 0.

    def __init__(self, K: Operator, ridge: float, columns: int):
        self.K, self.ridge = K, ridge
        self._full = FullRank(K) if not ridge else None
        few = K.n > DIRECT_ROWS and (K.n > 600 * columns or tiles_of(K))
        self._solver = None if not ridge else factorize(K, ridge, "cg" if few else "auto", COEFFICIENTS, random_state=0)

    def __call__(self, B: np.ndarray) -> np.ndarray:
        if self._full is not None:
            return self._full(B)
        assert self._solver is not None
        try:
            found = self._solver.solve(B, check=False)
            if found.converged:
                return found.value
        except IllConditioned:
            if self._solver.method != "cg":
                raise
        self._solver = factorize(self.K, self.ridge, "cholesky")
        return self._solver.solve(B, check=False).value


class FullRank:
    """Solver that computes K^-1 B by a dense float64 Cholesky factorization, which needs 8 n^2 bytes.

    It raises UserError if K does not have full rank in float64. K may be centered.
    """

    def __init__(self, K: Operator):
        matrix = K.dense(np.float64)
        n, scale = len(matrix), float(np.trace(matrix)) / len(matrix)
        if K.null is not None:
            # Centering turns the eigenvalue of the constant direction into 0. The mean eigenvalue replaces the 0, so
            # that the matrix is invertible.
            matrix += np.multiply.outer(K.null, scale / (K.null @ K.null) * K.null)
        norm = float(np.abs(matrix).sum(axis=0).max())
        factor, info = scipy.linalg.lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
        condition = scipy.linalg.lapack.dpocon(factor, norm, uplo="L")[0] if info == 0 else 0.0
        if condition < n * np.finfo(float).eps:
            raise UserError(
                f"the kernel of {n} samples does not have full rank (reciprocal condition {condition:.0e}), so "
                f"its inverse would be noise; set gamma (or the ridge) above 0, or use a smaller bandwidth"
            )
        self._factor = factor

    def __call__(self, B: np.ndarray) -> np.ndarray:
        return scipy.linalg.lapack.dpotrs(self._factor, B, lower=1)[0]
