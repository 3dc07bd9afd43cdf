"""Embeddings of the samples themselves: eigenvectors of n x n forms, dense, by Lanczos, or by sparse solvers."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from dmo.linalg.eigen import CUTOFF, TracePairs, check_rank, fix_signs, solve_trace
from dmo.methods.embeddings.quadratic_forms import QuadraticForm, TraceProblem

DENSE = 1500
"""Samples up to which a direct problem is solved as a dense matrix."""
RESTARTS = 100
"""Restarts after which plain Lanczos gives up on a sparse direct problem."""
FACTORED = 20000
"""Samples up to which it is then solved by shift and invert; above, by LOBPCG."""


def solve_direct(problem: TraceProblem, k: int) -> TracePairs:
    """Find the k algebraically largest solutions of A z = lambda B z with Z'BZ = I, B diagonal and positive."""
    # Dense up to `DENSE` samples; above, by Lanczos; a sparse negative semidefinite form whose eigenvalues are too
    # crowded for that by shift and invert up to `FACTORED` samples, and by LOBPCG with an incomplete factor above. A
    # ConvergenceWarning tells where LOBPCG has not converged.
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
    """The vectors of a space that holds 1, turned so that 1 is one of them, without it."""
    inner = found.vectors.T @ weights
    Q = scipy.linalg.null_space(inner[None, :] / np.linalg.norm(inner))
    values, turn = np.linalg.eigh(Q.T @ (found.values[:, None] * Q))
    return TracePairs(values[::-1], found.vectors @ (Q @ turn[:, ::-1]))


def _sparse(A: QuadraticForm, count: int, weights: np.ndarray | None) -> TracePairs:
    """The smallest eigenpairs of L = -diag(weights)^-1/2 A diag(weights)^-1/2, positive semidefinite."""
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
            f"take more neighbors, or fewer components",
            ConvergenceWarning,
            stacklevel=5,
        )
    return TracePairs(-values, half[:, None] * vectors)


Smallest = tuple[np.ndarray, np.ndarray]
"""Eigenvalues and eigenvectors, the smallest of a matrix."""


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


def _lanczos(A: QuadraticForm, count: int, weights: np.ndarray | None) -> TracePairs:
    half = np.ones(A.n) if weights is None else 1 / np.sqrt(weights)
    operator = scipy.sparse.linalg.LinearOperator(
        (A.n, A.n), matvec=lambda v: half * (A @ (half * v.ravel())), dtype=np.float64
    )
    start = np.random.default_rng(0).standard_normal(A.n)
    values, vectors = scipy.sparse.linalg.eigsh(operator, count, which="LA", v0=start)
    return TracePairs(values[::-1], half[:, None] * vectors[:, ::-1])
