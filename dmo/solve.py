"""Solutions of (A + c I) X = B for a symmetric positive semidefinite operator A and a ridge c > 0.

`factorise` chooses the method and returns a solver to use many times: Woodbury for a low-rank A, Cholesky while the
factor fits in memory and pays, otherwise block conjugate gradients with a Nystrom preconditioner.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import psutil
import scipy.linalg

from dmo.blocks import orthonormalise, row_blocks
from dmo.lowrank import BlockLowRank, DenseFactor, Factor, StackedFactor, rpcholesky
from dmo.operators import Centered, LowRank, Operator, Scaled, Sum

Method = Literal["auto", "cholesky", "cg", "woodbury"]
log = logging.getLogger("dmo")
_STRIP = 4096


class IllConditioned(ValueError):
    """A + c I is not positive definite in the arithmetic at hand."""


@dataclass(frozen=True)
class Solution:
    """What a solver found.

    `value` (B's shape, float64); `iterations`: products with A that the search took (conjugate gradients; the products
    that check residuals come on top) or refinements (direct methods); `residuals`: |B - (A + c I) X| / |B| per column,
    true ones in float64 (None if unchecked); `converged`: all of them at most the tolerance; `method`.
    """

    value: np.ndarray
    iterations: int
    residuals: np.ndarray | None
    converged: bool
    method: str


class Solver(Protocol):
    method: str

    def solve(self, B: np.ndarray, x0: np.ndarray | None = None, check: bool = True) -> Solution:
        """Solve for B (n, or n x k) from the start `x0`; `check=False` spares a direct method its residual.

        Raises ValueError where B or x0 has another number of rows, or holds NaN or inf.
        """
        ...

    def inverse_diagonal(self) -> np.ndarray:
        """diag((A + c I)^-1) (n)."""
        ...


def factorise(
    A: Operator,
    ridge: float,
    method: Method = "auto",
    tolerance: float = 1e-8,
    max_products: int = 500,
    preconditioner: NystromPreconditioner | None = None,
    memory: float | None = None,
    random_state: int | None = None,
    columns: int | None = None,
) -> Solver:
    """A solver of (A + ridge I) X = B.

    Arguments: `tolerance`: relative true residual per column at which a solution counts as converged; `max_products`:
    products with A that conjugate gradients may use; `preconditioner`: one made before for the same A (it serves every
    ridge); `memory`: bytes that a dense factor may take (default: half of what is free); `columns`: right-hand sides
    that will be solved with this solver, over all calls; with it "auto" takes the method of least predicted cost,
    without it ("many") Cholesky wherever the factor fits.
    Raises IllConditioned where A + ridge I is not positive definite, ValueError for a ridge that is not positive.
    """
    if not ridge > 0:
        raise ValueError(f"ridge must be positive, got {ridge}; the smallest useful value is the kernel's noise floor")
    factor = low_rank_factor(A) if method in ("auto", "woodbury") else None
    if method == "auto":
        budget = psutil.virtual_memory().available / 2 if memory is None else memory
        if factor is not None and factor.shape[1] < A.n:
            method = "woodbury"
        elif 8.0 * A.n * A.n > budget:
            method = "cg"
        elif columns is None or _saved(A, columns) < 10:
            method = "cholesky"
        else:
            preconditioner = preconditioner or NystromPreconditioner.of(A, default_rank(A.n), random_state)
            method = "cg" if preconditioner.products(ridge, tolerance) < _saved(A, columns) else "cholesky"
        log.info("solve: %s for %d x %d, ridge %g, %s right-hand sides", method, A.n, A.n, ridge, columns or "many")
    if method == "woodbury":
        return WoodburySolver(A, ridge, factor, tolerance)
    if method == "cholesky":
        return CholeskySolver(A, ridge, tolerance)
    if method == "cg":
        if preconditioner is None:
            preconditioner = NystromPreconditioner.of(A, default_rank(A.n), random_state)
        return BlockCG(A, ridge, preconditioner, tolerance, max_products)
    raise ValueError(f"unknown method {method!r}; known: 'auto', 'cholesky', 'cg', 'woodbury'")


def _saved(A: Operator, columns: int) -> float:
    """Products A @ B (B: n x columns) that a float64 Cholesky factor costs, less those that a preconditioner does.

    In one precision n / (6 k): n^3 / 6 multiplications against n^2 k. Products with fewer than 32 columns take as long
    as with 32: they wait for memory.
    """
    k = max(32, columns)
    return (8.0 / A.dtype.itemsize) * A.n / (6.0 * k) - 2.0 * default_rank(A.n) ** 2 / (A.n * k)


def solve(
    A: Operator,
    B: np.ndarray,
    ridge: float,
    x0: np.ndarray | None = None,
    method: Method = "auto",
    tolerance: float = 1e-8,
    random_state: int | None = None,
) -> Solution:
    """(A + ridge I)^-1 B (B: n or n x k) with true residuals; see `factorise`."""
    columns = int(np.prod(np.shape(B)[1:]))
    return factorise(A, ridge, method, tolerance, random_state=random_state, columns=columns).solve(B, x0)


def default_rank(n: int) -> int:
    """Rank of the preconditioner: a fifth of n, at most 1000 (more costs more than it saves up to 20 000 samples)."""
    return max(1, min(1000, n // 5))


def low_rank_factor(A: Operator) -> Factor | None:
    """F (n x r, float64) with A = F F' where A is low-rank by construction, else None."""
    if isinstance(A, LowRank):
        return DenseFactor(A.factor.astype(np.float64, copy=False))
    if isinstance(A, BlockLowRank):
        return A.block_factor()
    if isinstance(A, Centered):
        F = low_rank_factor(A.inner)
        return None if F is None else F.centered()
    if isinstance(A, Scaled) and A.factor >= 0:
        F = low_rank_factor(A.inner)
        return None if F is None else F.scaled(float(np.sqrt(A.factor)))
    if isinstance(A, Sum):
        F, G = low_rank_factor(A.left), low_rank_factor(A.right)
        return None if F is None or G is None else StackedFactor([F, G])
    return None


def _block(what: str, B: np.ndarray, n: int) -> np.ndarray:
    """B as an n x k float64 array, checked."""
    B = np.asarray(B, np.float64)
    if B.ndim not in (1, 2) or len(B) != n:
        raise ValueError(f"solve: {what} has shape {B.shape}, the operator is {n} x {n}; pass one row per sample")
    if not np.isfinite(B).all():
        raise ValueError(f"solve: {what} holds NaN or inf in row {int(np.argwhere(~np.isfinite(B))[0, 0])}")
    return B.reshape(n, -1)


class _Solver:
    """Checks and shapes of a solve; what follows is each method's own."""

    method: str

    def __init__(self, A: Operator, ridge: float, tolerance: float):
        self.A, self.ridge, self.tolerance = A, ridge, tolerance

    def solve(self, B: np.ndarray, x0: np.ndarray | None = None, check: bool = True) -> Solution:
        block = _block("the right-hand side", B, self.A.n)
        start = None if x0 is None else _block("the start", x0, self.A.n)
        if start is not None and start.shape != block.shape:
            raise ValueError(f"solve: the start has shape {start.shape}, the right-hand side {block.shape}")
        solution = self._solve(block, start, check)
        return replace(solution, value=solution.value.reshape(np.shape(B)))

    def _solve(self, B: np.ndarray, x0: np.ndarray | None, check: bool) -> Solution:
        raise NotImplementedError

    def _residual(self, B: np.ndarray, X: np.ndarray) -> np.ndarray:
        return B - self.A.product(X) - self.ridge * X


class _Direct(_Solver):
    """A factorisation, refined against the true residual where that is asked for and above the tolerance."""

    def _apply(self, B: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _solve(self, B: np.ndarray, x0: np.ndarray | None, check: bool) -> Solution:
        X = self._apply(B)
        if not check:
            return Solution(X, 0, None, True, self.method)
        scale = np.linalg.norm(B, axis=0)
        scale[scale == 0] = 1.0
        R, steps = self._residual(B, X), 0
        while (np.linalg.norm(R, axis=0) > self.tolerance * scale).any() and steps < 3:
            X, steps = X + self._apply(R), steps + 1
            R = self._residual(B, X)
        residuals = np.linalg.norm(R, axis=0) / scale
        return Solution(X, steps, residuals, bool((residuals <= self.tolerance).all()), self.method)


def cholesky_in_place(A: np.ndarray, block: int = 2048) -> int:
    """The lower Cholesky factor of a column-major symmetric A (n x n, float64) in its lower triangle; 0, or the row at
    which A is found not positive definite (counted from 1). The upper triangle keeps what it had.

    By blocks of columns: OpenBLAS 0.3.30's own factorisation ends the process from about n = 16 000 on two threads.
    """
    n = len(A)
    for columns in row_blocks(n, block):
        start, stop = columns.start, columns.stop
        corner, info = scipy.linalg.lapack.dpotrf(A[columns, columns], lower=1, clean=0)
        if info != 0:
            return start + int(info)
        A[columns, columns] = corner
        panel = scipy.linalg.blas.dtrsm(1.0, corner, A[stop:, columns], side=1, lower=1, trans_a=1)
        A[stop:, columns] = panel
        for rest in row_blocks(n - stop, block):
            A[stop + rest.start :, stop + rest.start : stop + rest.stop] -= panel[rest.start :] @ panel[rest].T
    return 0


class CholeskySolver(_Direct):
    """One float64 Cholesky factorisation: n^3 / 3 multiplications, 8 n^2 bytes, then 2 n^2 per right-hand side."""

    method = "cholesky"

    def __init__(self, A: Operator, ridge: float, tolerance: float = 1e-8):
        super().__init__(A, ridge, tolerance)
        matrix = A.dense(np.float64)
        matrix.flat[:: A.n + 1] += ridge
        # LAPACK works on columns: the transpose of this symmetric row-major array is the same matrix without a copy
        factor = matrix.T
        info = cholesky_in_place(factor)
        if info != 0:
            raise IllConditioned(
                f"the kernel plus ridge {ridge:g} is not positive definite (Cholesky stopped at row {info} of {A.n}); "
                f"raise the ridge, take float64 kernels, or check that the kernel is positive semidefinite"
            )
        self._factor = factor

    def _apply(self, B: np.ndarray) -> np.ndarray:
        X, _ = scipy.linalg.lapack.dpotrs(self._factor, B, lower=1)
        return X

    def inverse_diagonal(self) -> np.ndarray:
        """diag((A + c I)^-1) (n): what leave-one-out predictions need. Takes 8 n^2 bytes more while it runs."""
        inverse, _ = scipy.linalg.lapack.dtrtri(self._factor, lower=1)
        out = np.zeros(self.A.n)
        for where in row_blocks(self.A.n, 512):
            strip = np.tril(inverse[where], k=where.start)
            out += np.einsum("ij,ij->j", strip, strip)
        return out


class WoodburySolver(_Direct):
    """Push-through for A = F F': (B - F (F'F + c I)^-1 F'B) / c, with one step of refinement.

    `factor`: F where it is at hand. With F = W T sparse by clusters, F'F costs n k_s^2 and the products n k_s.
    """

    method = "woodbury"

    def __init__(self, A: Operator, ridge: float, factor: Factor | None = None, tolerance: float = 1e-8):
        super().__init__(A, ridge, tolerance)
        F = low_rank_factor(A) if factor is None else factor
        if F is None:
            raise ValueError(f"woodbury needs a low-rank operator, got {type(A).__name__}; take 'cholesky' or 'cg'")
        self._F = F
        small = F.gram()
        small.flat[:: len(small) + 1] += ridge
        self._small = scipy.linalg.cho_factor(small, lower=True, check_finite=False)

    def _once(self, B: np.ndarray) -> np.ndarray:
        inner = scipy.linalg.cho_solve(self._small, self._F.t_dot(B), check_finite=False)
        return (B - self._F.dot(inner)) / self.ridge

    def _apply(self, B: np.ndarray) -> np.ndarray:
        X = self._once(B)
        return X + self._once(B - self._F.dot(self._F.t_dot(X)) - self.ridge * X)

    def inverse_diagonal(self) -> np.ndarray:
        """diag((A + c I)^-1) (n)."""
        out = np.empty(self.A.n)
        for where in row_blocks(self.A.n, _STRIP):
            rows = self._F.rows(where).T
            half = scipy.linalg.solve_triangular(self._small[0], rows, lower=True, check_finite=False)
            out[where] = (1 - np.einsum("ij,ij->j", half, half)) / self.ridge
        return out


@dataclass(frozen=True, eq=False)
class NystromPreconditioner:
    """An approximation U diag(values) U' of A (U: n x r orthonormal, values ascending); one serves every ridge.

    Source: Frangella, Tropp, Udell 2023, eq. 1.3, on randomly pivoted Cholesky columns.
    """

    basis: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, A: Operator, rank: int, random_state: int | None = None) -> NystromPreconditioner:
        """From `rank` columns of A chosen by randomly pivoted Cholesky."""
        F = rpcholesky(A.diagonal(), A.columns, rank, random_state).factor
        blocks = row_blocks(A.n, _STRIP)
        square = np.zeros((F.shape[1], F.shape[1]))
        for where in blocks:
            strip = F[where].astype(np.float64)
            square += strip.T @ strip
        values, vectors = np.linalg.eigh(square)
        keep = values > 1e-10 * values.max(initial=0.0)
        turn = vectors[:, keep] / np.sqrt(values[keep])
        basis = np.empty((A.n, turn.shape[1]), F.dtype)
        for where in blocks:
            basis[where] = F[where] @ turn
        return cls(basis, values[keep])

    def apply(self, R: np.ndarray, ridge: float) -> np.ndarray:
        """P^-1 R with P the approximation plus the ridge, scaled so that the rest of the space stays as it is."""
        if not self.values.size:
            return R
        along = (self.basis.T @ R.astype(self.basis.dtype)).astype(np.float64)
        along *= ((self.values[0] + ridge) / (self.values + ridge) - 1.0)[:, None]
        return R + self.basis @ along.astype(self.basis.dtype)

    def products(self, ridge: float, tolerance: float) -> float:
        """Products that conjugate gradients are predicted to use: the bound for the condition number that is left."""
        left = 1.0 + float(self.values[0] if self.values.size else 0.0) / ridge
        return 1.0 + 0.5 * float(np.sqrt(left) * np.log(2.0 / tolerance))


class BlockCG(_Solver):
    """Preconditioned block conjugate gradients: one Krylov space for all columns, orthonormalised at every step.

    Products run in A's own precision. Whenever the recursion has gained two digits (eight in float64), claims
    convergence or is out of products, its residual is replaced by the true one in float64; the search goes on from the
    direction it had. Columns that have truly converged are frozen; all are scaled to length one, so that small ones
    count as much. A start at the solution costs the one product that checks it and 0 iterations.
    Source: O'Leary 1980; residual replacement: van der Vorst, Ye 2000.
    """

    method = "cg"

    def __init__(
        self, A: Operator, ridge: float, preconditioner: NystromPreconditioner, tolerance: float, max_products: int
    ):
        super().__init__(A, ridge, tolerance)
        self.preconditioner, self.max_products = preconditioner, max_products

    def inverse_diagonal(self) -> np.ndarray:
        raise ValueError(
            "leave-one-out scores need a factorised kernel, and this one is solved by conjugate gradients; "
            "take standardise=0, or a kernel that fits in memory"
        )

    def _solve(self, B: np.ndarray, x0: np.ndarray | None, check: bool) -> Solution:
        scale = np.linalg.norm(B, axis=0)
        some = np.flatnonzero(scale > 0)  # zero columns have the solution zero
        X, residuals, iterations = np.zeros(B.shape), np.zeros(B.shape[1]), 0
        if some.size:
            length = scale[some]
            X[:, some], R = self._start(B[:, some], None if x0 is None else x0[:, some], length)
            X[:, some], residuals[some], iterations = self._search(B[:, some] / length, X[:, some] / length, R / length)
            X *= scale
        return Solution(X, iterations, residuals, bool((residuals <= self.tolerance).all()), self.method)

    def _start(self, B: np.ndarray, x0: np.ndarray | None, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where to start, and its residuals: at zero in the columns where x0 is no better."""
        if x0 is None:
            return np.zeros(B.shape), B
        R = self._residual(B, x0)
        better = np.linalg.norm(R, axis=0) < length
        return np.where(better, x0, 0.0), np.where(better, R, B)

    def _search(self, B: np.ndarray, X: np.ndarray, R: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """X, its true residuals' norms and the products used, from X with residuals R; columns of B have length one."""
        size = np.linalg.norm(R, axis=0)  # of the true residuals, as last computed
        active = np.flatnonzero(size > self.tolerance)
        P, used = self._directions(R[:, active]), 0
        gain = 1e-2 if self.A.dtype == np.float32 else 1e-8  # beyond it the recursion drifts from the true residual
        while active.size and used < self.max_products and P.shape[1]:
            Q = self.A @ P + self.ridge * P
            used += 1
            factor = self._curvature(P, Q)
            step = scipy.linalg.cho_solve((factor, True), P.T @ R[:, active], check_finite=False)
            X[:, active] += P @ step
            R[:, active] -= Q @ step
            claimed = np.linalg.norm(R[:, active], axis=0)
            done = used == self.max_products or claimed.max() <= 0.5 * self.tolerance
            if done or np.median(claimed / size[active]) <= gain:
                R[:, active] = self._residual(B[:, active], X[:, active])
                before, size[active] = size[active], np.linalg.norm(R[:, active], axis=0)
                if (size[active] > 0.5 * before).all():  # rounding lets the true residuals fall no further
                    break
                active = active[size[active] > self.tolerance]
            P = self._directions(R[:, active], P, Q, factor)
        if active.size and not P.shape[1]:
            size[active] = np.linalg.norm(self._residual(B[:, active], X[:, active]), axis=0)
        return X, size, used

    def _directions(
        self,
        R: np.ndarray,
        P: np.ndarray | None = None,
        Q: np.ndarray | None = None,
        factor: np.ndarray | None = None,
    ) -> np.ndarray:
        """The next block of directions (orthonormal): preconditioned residuals, conjugate to the last block P."""
        Z = self.preconditioner.apply(R, self.ridge)
        Z = Z / np.maximum(np.linalg.norm(Z, axis=0), np.finfo(float).tiny)
        if P is not None and Q is not None:
            Z -= P @ scipy.linalg.cho_solve((factor, True), Q.T @ Z, check_finite=False)
        return orthonormalise(Z, tolerance=1e-8)

    def _curvature(self, P: np.ndarray, Q: np.ndarray) -> np.ndarray:
        """The lower Cholesky factor of P'(A + c I) P."""
        curvature = P.T @ Q
        if not np.isfinite(curvature).all():
            raise ValueError("solve: a product with the operator is not finite; check the kernel for NaN and inf")
        factor, info = scipy.linalg.lapack.dpotrf((curvature + curvature.T) / 2, lower=1)
        if info != 0:
            raise IllConditioned(
                f"conjugate gradients met a direction of negative curvature: the kernel plus ridge {self.ridge:g} "
                f"is not positive definite in {self.A.dtype}; raise the ridge or take float64 kernels"
            )
        return factor
