"""Solutions of (A + c I) X = B for a symmetric positive semidefinite operator A and a ridge c > 0.

`factorise` chooses the method and returns a solver to use many times: Woodbury for a low-rank A, Cholesky while the
factor fits in memory, otherwise block conjugate gradients with a Nystrom preconditioner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import psutil
import scipy.linalg

from dmo.blocks import gram, orthonormalise, row_blocks
from dmo.lowrank import BlockLowRank, DenseFactor, Factor, StackedFactor, rpcholesky
from dmo.operators import Centered, LowRank, Operator, Scaled, Sum

Method = Literal["auto", "cholesky", "cg", "woodbury"]


class IllConditioned(ValueError):
    """A + c I is not positive definite in the arithmetic at hand."""


@dataclass(frozen=True)
class Solution:
    """`value` (B's shape), products with A used, relative true residuals per column (None if unchecked), method."""

    value: np.ndarray
    iterations: int
    residuals: np.ndarray | None
    converged: bool
    method: str


class Solver(Protocol):
    method: str

    def solve(self, B: np.ndarray, x0: np.ndarray | None = None, check: bool = True) -> Solution:
        """Solve for the columns of B (n x k) from the start `x0`; `check=False` spares a direct method its residual."""
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
) -> Solver:
    """A solver of (A + ridge I) X = B.

    Arguments: `tolerance`: relative residual per column at which conjugate gradients stop; `max_products`: products
    with A they may use; `preconditioner`: one made before for the same A (it serves every ridge); `memory`: bytes that
    a dense factor may take (default: half of what is free).
    Raises IllConditioned where A + ridge I is not positive definite, ValueError for a ridge that is not positive.
    """
    if not ridge > 0:
        raise ValueError(f"ridge must be positive, got {ridge}; the smallest useful value is the kernel's noise floor")
    if method == "auto":
        budget = psutil.virtual_memory().available / 2 if memory is None else memory
        factor = low_rank_factor(A)
        if factor is not None:
            return WoodburySolver(A, ridge, factor)
        method = "cholesky" if 8.0 * A.n * A.n <= budget else "cg"
    if method == "woodbury":
        return WoodburySolver(A, ridge)
    if method == "cholesky":
        return CholeskySolver(A, ridge)
    if method == "cg":
        if preconditioner is None:
            preconditioner = NystromPreconditioner.of(A, default_rank(A.n), random_state)
        return BlockCG(A, ridge, preconditioner, tolerance, max_products)
    raise ValueError(f"unknown method {method!r}; known: 'auto', 'cholesky', 'cg', 'woodbury'")


def solve(
    A: Operator,
    B: np.ndarray,
    ridge: float,
    x0: np.ndarray | None = None,
    method: Method = "auto",
    tolerance: float = 1e-8,
    random_state: int | None = None,
) -> Solution:
    """(A + ridge I)^-1 B with true residuals; see `factorise`."""
    return factorise(A, ridge, method, tolerance, random_state=random_state).solve(np.asarray(B, np.float64), x0)


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


def _relative(residual: np.ndarray, B: np.ndarray) -> np.ndarray:
    scale = np.linalg.norm(B, axis=0)
    return np.linalg.norm(residual, axis=0) / np.where(scale > 0, scale, 1.0)


class _Direct:
    method: str

    def __init__(self, A: Operator, ridge: float):
        self.A, self.ridge = A, ridge

    def _apply(self, B: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def solve(self, B: np.ndarray, x0: np.ndarray | None = None, check: bool = True) -> Solution:
        X = self._apply(B)
        if not check:
            return Solution(X, 0, None, True, self.method)
        residuals = _relative(B - self.A.product(X) - self.ridge * X, B)
        return Solution(X, 1, residuals, bool((residuals <= 1e-6).all()), self.method)


class CholeskySolver(_Direct):
    """One float64 Cholesky factorisation: n^3 / 3 multiplications, 8 n^2 bytes, then 2 n^2 per right-hand side."""

    method = "cholesky"

    def __init__(self, A: Operator, ridge: float):
        super().__init__(A, ridge)
        matrix = A.dense(np.float64)
        matrix.flat[:: A.n + 1] += ridge
        # LAPACK works on columns: the transpose of this symmetric row-major array is the same matrix without a copy
        factor, info = scipy.linalg.lapack.dpotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
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
        """diag((A + c I)^-1) (n): what leave-one-out predictions need."""
        inverse, _ = scipy.linalg.lapack.dtrtri(self._factor, lower=1)
        return np.einsum("ij,ij->j", np.tril(inverse), np.tril(inverse))


class WoodburySolver(_Direct):
    """Push-through for A = F F': (B - F (F'F + c I)^-1 F'B) / c, with one step of refinement.

    `factor`: F where it is at hand. With F = W T sparse by clusters, F'F costs n k_s^2 and the products n k_s.
    """

    method = "woodbury"

    def __init__(self, A: Operator, ridge: float, factor: Factor | None = None):
        super().__init__(A, ridge)
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
        for where in row_blocks(self.A.n, 4096):
            rows = self._F.rows(where).T
            half = scipy.linalg.solve_triangular(self._small[0], rows, lower=True, check_finite=False)
            out[where] = (1 - np.einsum("ij,ij->j", half, half)) / self.ridge
        return out


@dataclass(frozen=True)
class NystromPreconditioner:
    """An approximation U diag(values) U' of A (U: n x r orthonormal); one serves every ridge.

    Source: Frangella, Tropp, Udell 2023, eq. 1.3, on randomly pivoted Cholesky columns.
    """

    basis: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, A: Operator, rank: int, random_state: int | None = None) -> NystromPreconditioner:
        """From `rank` columns of A chosen by randomly pivoted Cholesky."""
        F = rpcholesky(A.diagonal(), A.columns, rank, random_state).factor
        values, vectors = np.linalg.eigh(gram(F))
        keep = values > 1e-12 * values[-1]
        vectors, values = vectors[:, keep] / np.sqrt(values[keep]), values[keep]
        return cls((F @ vectors.astype(F.dtype)), values)

    def apply(self, R: np.ndarray, ridge: float) -> np.ndarray:
        """P^-1 R with P the approximation plus the ridge, scaled so that the rest of the space stays as it is."""
        along = (self.basis.T @ R.astype(self.basis.dtype)).astype(np.float64)
        along *= ((self.values[0] + ridge) / (self.values + ridge) - 1.0)[:, None]
        return R + self.basis @ along.astype(self.basis.dtype)


class BlockCG:
    """Preconditioned block conjugate gradients: one Krylov space for all columns, orthonormalised at every step.

    Products run in A's own precision; whenever the recursion has gained three digits, or claims convergence, the
    residual is replaced by the true one in float64. Converged columns are frozen. A start at the solution costs the one
    product that checks it and 0 iterations. Source: O'Leary 1980; residual replacement: van der Vorst, Ye 2000.
    """

    method = "cg"

    def __init__(
        self, A: Operator, ridge: float, preconditioner: NystromPreconditioner, tolerance: float, max_products: int
    ):
        self.A, self.ridge, self.preconditioner = A, ridge, preconditioner
        self.tolerance, self.max_products = tolerance, max_products

    def inverse_diagonal(self) -> np.ndarray:
        raise ValueError(
            "leave-one-out scores need a factorised kernel, and this one is solved by conjugate gradients; "
            "take standardise=0, or a kernel that fits in memory"
        )

    def _residual(self, B: np.ndarray, X: np.ndarray) -> np.ndarray:
        return B - self.A.product(X) - self.ridge * X

    def solve(self, B: np.ndarray, x0: np.ndarray | None = None, check: bool = True) -> Solution:
        X = np.zeros(B.shape) if x0 is None else np.array(x0, np.float64)
        R = B.astype(np.float64) if x0 is None else self._residual(B, X)
        target = self.tolerance * np.linalg.norm(B, axis=0)
        best, iterations = np.inf, 0
        while iterations < self.max_products:
            active = np.flatnonzero(np.linalg.norm(R, axis=0) > target)
            worst = float(_relative(R, B).max(initial=0.0))
            if not active.size or worst > 0.5 * best:  # converged, or rounding lets the true residual fall no further
                break
            best = worst
            D, used = self._cycle(R[:, active], target[active], self.max_products - iterations)
            iterations += used
            X[:, active] += D
            R[:, active] = self._residual(B[:, active], X[:, active])
        residuals = _relative(R, B)
        return Solution(X, iterations, residuals, bool((residuals <= self.tolerance * (1 + 1e-9)).all()), self.method)

    def _cycle(self, R: np.ndarray, target: np.ndarray, budget: int) -> tuple[np.ndarray, int]:
        """Corrections D for residuals R by one recursion, until every column is at its target or 1e-5 of its start."""
        R, D = R.copy(), np.zeros(R.shape)
        goal = np.maximum(0.5 * target, (1e-5 if self.A.dtype == np.float32 else 1e-10) * np.linalg.norm(R, axis=0))
        active = np.arange(R.shape[1])
        P = orthonormalise(self.preconditioner.apply(R, self.ridge), tolerance=1e-8)
        used = 0
        while active.size and used < budget and P.shape[1]:
            Q = self.A @ P + self.ridge * P
            used += 1
            curvature = P.T @ Q
            factor, info = scipy.linalg.lapack.dpotrf((curvature + curvature.T) / 2, lower=1)
            if info != 0:
                raise IllConditioned(
                    f"conjugate gradients met a direction of negative curvature: the kernel plus ridge {self.ridge:g} "
                    f"is not positive definite in {self.A.dtype}; raise the ridge or take float64 kernels"
                )
            step = scipy.linalg.cho_solve((factor, True), P.T @ R[:, active], check_finite=False)
            D[:, active] += P @ step
            R[:, active] -= Q @ step
            active = active[np.linalg.norm(R[:, active], axis=0) > goal[active]]
            Z = self.preconditioner.apply(R[:, active], self.ridge)
            back = scipy.linalg.cho_solve((factor, True), Q.T @ Z, check_finite=False)
            P = orthonormalise(Z - P @ back, tolerance=1e-8)
        return D, used
