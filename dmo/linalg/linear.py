"""Base class and error checks of solvers of (A + c I) X = B, and small systems of a tall or wide factor."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.exceptions import ConvergenceWarning

from dmo.blocks import row_blocks
from dmo.errors import UserError
from dmo.linalg.factors import CenteredRows
from dmo.linalg.operators import Operator
from dmo.linalg.rows import WorkerRows, beside, lengths
from dmo.linalg.tall import Factor
from dmo.threads import is_single_blas


class IllConditioned(UserError):
    """Error for a matrix A + c I that is not positive definite in the precision of the computation."""


class InaccurateSolve(ConvergenceWarning):
    """Warning for a direct solve, or leave-one-out predictions, with rounding errors above the tolerance."""


TOLERATED = 1e-6
"""Relative residual above which a direct solve issues a warning. The relative error of smoothed values is at most as
large."""


PROBES = 3
"""Number of columns whose residual is checked if the caller requests no residuals. An inaccurate factorization affects
all columns, so that a few columns suffice."""


def relative_error(R: np.ndarray, B: np.ndarray) -> float:
    """Compute the largest ratio |r_j| / |b_j| for the columns of R and the nonzero columns of B."""
    # The norm-wise backward error |r| / (|A + c I| |x| + |b|) is not suitable: backward stable factorizations keep it
    # small for any ridge, but |x| can reach |b| / c, so that |r| may be as large as |b|. Callers use the values A x,
    # whose error A (A + c I)^-1 r is at most |r|. Therefore, the ratio |r| / |b| bounds the error of these values
    # relative to the labels.
    scale = lengths(B)
    return float((np.linalg.norm(R, axis=0)[scale > 0] / scale[scale > 0]).max(initial=0.0))


def warn_of_error(what: str, ridge: float, error: float) -> None:
    """Issue an InaccurateSolve warning if the relative error exceeds 1e-6."""
    if not error <= TOLERATED:  # The negated comparison is true for NaN.
        warnings.warn(
            f"{what} with ridge {ridge:g} has a relative residual of {error:.1e}, above {TOLERATED:g}: the ridge is "
            f"too small for the scale of the data; raise it or use float64 kernels",
            InaccurateSolve,
            stacklevel=2,
        )


LEAST = 1e-10
"""Smallest reliable value of 1 - leverage. For smaller values, rounding errors dominate leave-one-out predictions."""


def warn_of_leverage(left: np.ndarray) -> None:
    """Issue an InaccurateSolve warning if rows are fitted so closely that 1 - leverage (`left`) almost vanishes."""
    few = int(np.count_nonzero(~(left >= LEAST)))  # The negated comparison is true for NaN.
    if few:
        warnings.warn(
            f"{few} of {len(left)} samples are fitted almost exactly (1 - leverage is as small as "
            f"{np.nanmin(left):.1e}, the limit is {LEAST:g}): rounding errors dominate their leave-one-out "
            f"predictions; raise the ridge or scale the features down",
            InaccurateSolve,
            stacklevel=2,
        )


@dataclass(frozen=True)
class Solution:
    """Result of a linear solve."""

    value: Any  # Solution X, with the shape and location (client or workers) of the right-hand side.
    iterations: int
    residuals: np.ndarray | None  # True relative residual of each column in float64, or None if unchecked.
    converged: bool
    method: str


def _block(what: str, B: np.ndarray, n: int) -> np.ndarray:
    """Validate B and return it as an n x k float64 array."""
    B = np.asarray(B, np.float64)
    if B.ndim not in (1, 2) or len(B) != n:
        raise UserError(f"solve: {what} has shape {B.shape}, the operator is {n} x {n}; pass one row per sample")
    if not np.isfinite(B).all():
        raise UserError(
            f"solve: {what} contains NaN or inf in row {int(np.argwhere(~np.isfinite(B))[0, 0])}; impute or remove it"
        )
    return B.reshape(n, -1)


class LinearSolver:
    """Base class of solvers of (A + c I) X = B for many B, which validates right-hand sides."""

    method: str

    def __init__(self, A: Operator, ridge: float, tol: float):
        self.A, self.ridge, self.tol = A, ridge, tol

    def solve(self, B: Any, x0: Any = None, check: bool = True, tol: float | None = None) -> Solution:
        if isinstance(B, WorkerRows):
            if self.method == "cg":
                return self._solve(B, x0, check, self.tol if tol is None else tol)
            # The factorization is in client memory, so fetch the right-hand sides from the workers.
            found = self.solve(np.asarray(B), None, check, tol)
            sent: Any = B.home.send(found.value)
            return replace(found, value=sent)
        block = _block("the right-hand side", B, self.A.n)
        start = None if x0 is None else _block("the start", x0, self.A.n)
        if start is not None and start.shape != block.shape:
            raise UserError(
                f"solve: the start has shape {start.shape}, the right-hand side {block.shape}; pass equal shapes"
            )
        solution = self._solve(block, start, check, self.tol if tol is None else tol)
        return replace(solution, value=solution.value.reshape(np.shape(B)))

    def _solve(self, B: Any, x0: Any, check: bool, tol: float) -> Solution:
        raise NotImplementedError

    def inverse_diagonal(self) -> np.ndarray:
        """Compute the diagonal (n) of (A + c I)^-1."""
        raise NotImplementedError

    def _residual(self, B: np.ndarray, X: np.ndarray) -> np.ndarray:
        R = self.A.product(X)
        R += self.ridge * X
        R *= -1
        R += B
        return R


_STRIP = 4096
# Maximum number of rows of a matrix that LAPACK factorizes with several threads, which is the fastest method.
_WHOLE = 12288
_BLOCK = 2048  # Number of columns per block in the factorization of a larger matrix.
_ROUNDING = 16 * np.finfo(float).eps
"""Size up to which a pivot of a matrix with unit diagonal is a rounding error, whose sign depends on the BLAS
library."""
log = logging.getLogger("dmo")


def cholesky_in_place(A: np.ndarray) -> int:
    """Overwrite the lower triangle of a matrix with its Cholesky factor. The upper triangle does not change."""
    # The multithreaded Cholesky factorization of OpenBLAS 0.3.30 crashes the process from about n = 16 000, so
    # factorize large matrices in blocks of columns. For smaller matrices, call LAPACK directly, because copying blocks
    # of columns took a third of the time at n = 4500.
    n = len(A)
    potrf = scipy.linalg.get_lapack_funcs("potrf", (A,))
    if A.flags.f_contiguous and (n <= _WHOLE or is_single_blas()):
        return int(potrf(A, lower=1, clean=0, overwrite_a=1)[1])
    trsm = scipy.linalg.get_blas_funcs("trsm", (A,))
    for columns in row_blocks(n, _BLOCK):
        start, stop = columns.start, columns.stop
        corner, info = potrf(A[columns, columns], lower=1, clean=0)
        if info != 0:
            return start + int(info)
        A[columns, columns] = corner
        panel = trsm(1.0, corner, A[stop:, columns], side=1, lower=1, trans_a=1)
        A[stop:, columns] = panel
        for rest in row_blocks(n - stop, _BLOCK):
            A[stop + rest.start :, stop + rest.start : stop + rest.stop] -= panel[rest.start :] @ panel[rest].T
    return 0


class FactorSystem:
    """Solver of (A + c I) X = B for A = F F' with a factor F (n x r), by the coefficients W = (F'F + c I)^-1 F'B."""

    # The coefficients W are computed first to avoid cancellation. The smoothed values F W = A (A + c I)^-1 B are then
    # accurate to rounding errors, and the error of the solution (B - F W) / c is small relative to its norm. In exact
    # arithmetic, F' times the solution equals W, but the product amplifies rounding errors by |F|^2 / c. Therefore,
    # call `loadings` to compute W and `smooth` to compute F W.
    #
    # 1. The smaller of two matrices is factorized: F'F + c I if r < n (primal), otherwise F F' + c I (dual). In the
    #    dual case, W = F'(F F' + c I)^-1 B.
    # 2. The matrix is first scaled to a unit diagonal, so that columns of all magnitudes have the same relative
    #    accuracy.
    # 3. The coefficients W are refined with the residual F'(B - F W) - c W. The residual is computed from F, because
    #    F'F has the squared condition number of F. The error of the fitted values F W is measured as |(F'F + c I)^-1/2
    #    residual| / |B|. First, sums of columns with random signs are checked, and W is not refined if these sums are
    #    accurate to rounding errors.
    # 4. If the error remains above 1e-9, W is computed from a singular value decomposition of F. The decomposition
    #    needs memory for n x min(n, r) additional numbers, and is accurate for every ridge above the rounding errors of
    #    F. For a smaller ridge, an error is raised if some singular values of F are rounding errors.
    #
    # If F is block-sparse with k_s columns per cluster, computing F'F takes n k_s^2 multiplications, and a product with
    # one column takes n k_s multiplications.

    # Relative error of fitted values at which refinement stops, and relative error at which refinement is not even
    # started.
    _FIT, _RIGHT = 1e-9, 1e-12
    _REFINEMENTS = 3

    def __init__(self, F: Factor, ridge: float):
        self.ridge = ridge
        self._centered = isinstance(F, CenteredRows) and F.mean is not None
        # If F has at least as many columns as rows (or one less if F is centered), F can fit every row exactly. Only
        # the dual system then yields accurate residuals.
        self._F, self._primal = F, F.shape[1] < F.shape[0] - int(self._centered)
        self._svd: _Svd | None = None
        self._lift = 0.0
        self._null = np.zeros(0)
        small = F.gram() if self._primal else _outer(F)
        self.intercept = np.zeros(F.shape[0])
        """Leverage of each row that is due to the intercept of a centered regression, otherwise 0."""
        if self._centered:
            assert isinstance(F, CenteredRows)
            self.intercept = F.ones**2 / (F.ones @ F.ones)
        if not self._primal and self._centered:
            # In the dual matrix of centered rows, the eigenvalue of the vector of ones is only c. Raising this
            # eigenvalue improves the condition number, and does not change the coefficients W because F'1 = 0.
            assert isinstance(F, CenteredRows)
            self._null = F.ones / np.linalg.norm(F.ones)
            self._lift = float(np.trace(small)) / len(small)
            small += self._lift / len(small) if F.roots is None else self._lift * np.outer(self._null, self._null)
        small.flat[:: len(small) + 1] += ridge
        try:
            self._small: Equilibrated | None = Equilibrated(small)
        except IllConditioned:
            self._decompose()

    def _decompose(self) -> None:
        log.info("solve: ridge %g is small for the scale of the factor; using its SVD", self.ridge)
        # After centering, n rows span at most n - 1 dimensions, so one singular value may be a rounding error.
        empty = int(self._centered and self._F.shape[0] <= self._F.shape[1])
        self._svd, self._small = _Svd.of(self._F, self.ridge, empty), None

    def loadings(self, B: np.ndarray) -> np.ndarray:
        """Compute the coefficients W (r x k). F W smooths B, and f W predicts a new row f."""
        if self._small is not None:
            found, error = self._refined(self._small, B) if self._primal else self._dual(self._small, B)
            if error <= self._FIT:
                return found if self._primal else self._F.t_dot(found)
            self._decompose()
        assert self._svd is not None
        W = self._svd.loadings(B)
        some = B[:, :PROBES]
        warn_of_error(
            "a linear solve", self.ridge, relative_error(self._F.dot(W[:, :PROBES]) - self._svd.smooth(some), some)
        )
        return W

    def _refined(self, small: Equilibrated, B: Any) -> tuple[np.ndarray, float]:
        """Solve the primal system for W, and return W and the relative error of F W before the last correction."""
        F = self._beside(B)
        W = small.solve(F.t_dot(B))
        if isinstance(B, np.ndarray) and B.shape[1] > PROBES:
            # First check sums of normalized columns with random signs, whose error is similar to the error of all
            # columns.
            signs = np.random.default_rng(0).choice([-1.0, 1.0], (B.shape[1], PROBES))
            length = np.linalg.norm(B, axis=0)
            signs *= np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)[:, None]
            some, found = B @ signs, W @ signs
            residual = F.t_dot(some - F.dot(found)) - self.ridge * found
            if relative_error(small.half(residual), some) <= self._RIGHT:
                return W, self._RIGHT
        for _ in range(self._REFINEMENTS):
            residual = F.t_dot(B - F.dot(W)) - self.ridge * W
            error = relative_error(small.half(residual), B)
            W = W + small.solve(residual)
            if error <= self._FIT:
                break
        return W, error

    def _beside(self, B: Any) -> Any:
        """Return F at the location (client or workers) of the rows of B."""
        return CenteredRows(beside(B, self._F.X), self._F.mean) if isinstance(B, WorkerRows) else self._F  # type: ignore[attr-defined]

    def _dual(self, small: Equilibrated, B: np.ndarray) -> tuple[np.ndarray, float]:
        """Solve the dual system (F F' + c I) alpha = B.

        Return alpha and its relative residual before the last correction.
        """
        alpha = small.solve(B)
        for _ in range(self._REFINEMENTS):
            residual = B - self._F.dot(self._F.t_dot(alpha)) - self.ridge * alpha
            if self._lift:
                residual -= self._lift * np.multiply.outer(self._null, self._null @ alpha)
            error = relative_error(residual, B)
            alpha = alpha + small.solve(residual)
            if error <= self._FIT:
                break
        return alpha, error

    def smooth(self, B: Any) -> Any:
        """Compute the smoothed values A (A + c I)^-1 B as F W, which avoids cancellation."""
        if isinstance(B, WorkerRows):
            if self._small is not None and self._primal and isinstance(getattr(self._F, "X", None), np.ndarray):
                W, error = self._refined(self._small, B)
                if error <= self._FIT:
                    return self._beside(B).dot(W)
            return B.home.send(self.smooth(np.asarray(B)))
        W = self.loadings(B)
        return self._F.dot(W) if self._svd is None else self._svd.smooth(B)

    def residuals(self, B: np.ndarray, W: np.ndarray, where: np.ndarray | None = None) -> np.ndarray:
        """Compute the residuals B - F W (n x k), or their rows `where`, accurately even if F fits every row."""
        rows = slice(None) if where is None else where
        if self._svd is not None:
            return self._svd.residuals(B, self.ridge, bool(self.intercept.any()))[rows]
        assert self._small is not None
        if not self._primal:
            return (self.ridge * self._dual(self._small, B)[0])[rows]
        return B - self._F.dot(W) if where is None else B[where] - self._some(where) @ W

    def _some(self, where: Any) -> np.ndarray:
        """Return the rows of F given by a slice, or by indices if F is one array."""
        return self._F.rows(where)

    def unfitted(self, where: np.ndarray | None = None) -> np.ndarray:
        """Compute one minus leverage minus `intercept` for each row, without cancellation if F fits every row."""
        if where is not None and (self._svd is not None or not self._primal):
            return self.unfitted()[where]
        if self._svd is not None:
            return self._svd.unfitted(self.ridge, self.intercept)
        assert self._small is not None
        if self._primal:
            n = self._F.shape[0] if where is None else len(where)
            h = np.empty(n)
            for some in row_blocks(n, _STRIP):
                half = self._small.half(self._some(some if where is None else where[some]).T)
                h[some] = np.einsum("ij,ij->j", half, half)
            return 1 - h - (self.intercept if where is None else self.intercept[where])
        half = self._small.half(np.eye(self._F.shape[0]))
        inverse = np.einsum("ij,ij->j", half, half)
        if self._lift:  # The mean direction belongs to the intercept, so exclude its contribution.
            return self.ridge * (inverse - self._null**2 / (self._lift + self.ridge))
        return self.ridge * inverse - self.intercept


@dataclass(frozen=True)
class _Svd:
    """Singular value decomposition U diag(s) V' of F above rounding errors, with weights s^2 / (s^2 + c)."""

    U: np.ndarray
    s: np.ndarray
    Vt: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, F: Factor, ridge: float, empty: int) -> _Svd:
        """Compute the decomposition of F. For any ridge, `empty` singular values may be rounding errors."""
        U, s, Vt = scipy.linalg.svd(F.rows(slice(0, F.shape[0])), full_matrices=False, check_finite=False)
        noise = max(F.shape) * np.finfo(float).eps * s.max(initial=0.0)
        keep = s > noise
        if ridge < noise**2 and np.count_nonzero(s[~keep]) > empty:
            raise IllConditioned(
                f"ridge {ridge:g} is below the rounding errors of features of this scale, some of which are linearly "
                f"dependent; the smallest ridge that float64 can honor is {noise**2:.1g}: raise the ridge to it, scale "
                f"the features down, or remove dependent features"
            )
        s = s[keep]
        return cls(U[:, keep], s, Vt[keep], s / (s + ridge / s))

    def loadings(self, B: np.ndarray) -> np.ndarray:
        return self.Vt.T @ ((self.weights / self.s)[:, None] * (self.U.T @ B))

    def smooth(self, B: np.ndarray) -> np.ndarray:
        return self.U @ (self.weights[:, None] * (self.U.T @ B))

    def residuals(self, B: np.ndarray, ridge: float, centered: bool) -> np.ndarray:
        """Multiply the part of B in the span of F by c / (s^2 + c), and keep the part outside this span."""
        inside = self.U.T @ B
        found = self.U @ (self._kept(ridge)[:, None] * inside)
        return found if self._whole(centered) else found + (B - self.U @ inside)

    def unfitted(self, ridge: float, intercept: np.ndarray) -> np.ndarray:
        square = self.U**2
        found = square @ self._kept(ridge)
        return (
            found if self._whole(bool(intercept.any())) else found + np.maximum(1 - intercept - square.sum(axis=1), 0)
        )

    def _kept(self, ridge: float) -> np.ndarray:
        return np.asarray(ridge / self.s / (self.s + ridge / self.s))

    def _whole(self, centered: bool) -> bool:
        """Return whether the columns of F span all dimensions, up to the mean direction if centered."""
        return self.U.shape[1] >= len(self.U) - centered


def _outer(F: Factor) -> np.ndarray:
    """Compute the n x n matrix F F'."""
    n = F.shape[0]
    out = np.empty((n, n))
    for where in row_blocks(n, 512):
        out[where] = F.dot(F.rows(where).T).T
    return out


class Equilibrated:
    """Cholesky factor of a small positive definite matrix A (d x d) after scaling to a unit diagonal."""

    # After scaling to a unit diagonal, the error of the factorization is small relative to each row. Therefore, users
    # need not scale the features.

    def __init__(self, A: np.ndarray):
        diagonal = A.diagonal()
        if not (diagonal > 0).all():
            raise IllConditioned("the matrix has a nonpositive diagonal entry; raise the ridge")
        self._scale = 1 / np.sqrt(diagonal)
        A *= self._scale[:, None]
        A *= self._scale
        self._norm = float(np.abs(A).sum(axis=0).max())
        # For a symmetric matrix, the transpose is the same matrix in the column-major order of LAPACK.
        self._factor = A.T
        info = cholesky_in_place(self._factor)
        rounding = self._factor.diagonal() ** 2 <= _ROUNDING
        if info == 0 and rounding.any():
            info = int(np.argmax(rounding)) + 1
        if info != 0:
            raise IllConditioned(f"the matrix is not positive definite (row {info} of {len(A)}); raise the ridge")

    def condition(self) -> float:
        """Estimate the condition number of the scaled matrix in the 1-norm."""
        reciprocal, _ = scipy.linalg.lapack.dpocon(self._factor, self._norm, uplo="L")
        return float(1 / reciprocal) if reciprocal > 0 else float("inf")

    def half(self, B: np.ndarray) -> np.ndarray:
        """Multiply a block B (d x k) by a square root of A^-1."""
        return scipy.linalg.solve_triangular(self._factor, self._scale[:, None] * B, lower=True, check_finite=False)

    def solve(self, B: np.ndarray) -> np.ndarray:
        """Compute A^-1 B for a block B (d x k)."""
        X, _ = scipy.linalg.lapack.dpotrs(self._factor, self._scale[:, None] * B, lower=1)
        return self._scale[:, None] * X


def positive_solve(A: np.ndarray, ridge: float, B: np.ndarray) -> np.ndarray:
    """Solve (A + c I) X = B for a small moment matrix A (d x d), with one refinement and an error check."""
    shifted = A + ridge * np.eye(len(A))
    try:
        small = Equilibrated(shifted.copy())
    except IllConditioned as error:
        least = 4 * len(A) * np.finfo(float).eps * float(np.trace(A))
        raise IllConditioned(
            f"ridge {ridge:g} is below the rounding errors of moments of this scale; raise it to {least:.1g}, scale "
            f"the features down, or use approximation='exact', which needs no moments"
        ) from error
    X = small.solve(B)
    X += small.solve(B - shifted @ X)
    some = B[:, :PROBES]
    warn_of_error("a solve with moments", ridge, relative_error(some - shifted @ X[:, :PROBES], some))
    return X
