"""What every solver of (A + c I) X = B takes and gives; small systems through a tall or wide factor."""

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
    """A + c I is not positive definite in the arithmetic at hand."""


class InaccurateSolve(ConvergenceWarning):
    """A direct solve whose solution does not satisfy its equation as well as float64 numbers should."""


TOLERATED = 1e-6
"""Relative residual of a direct solve above which there is a warning: the smoothed values are off by up to as much."""


PROBES = 3
"""Columns whose residual is computed where nobody asked for residuals: a wrong factor spoils all of them."""


def relative_error(R: np.ndarray, B: np.ndarray) -> float:
    """max_j |r_j| / |b_j|, of the columns that are not zero."""
    # Not the norm-wise backward error |r| / (|A + c I| |x| + |b|), which every backward stable factorization keeps at
    # a few roundings, however small the ridge: with |x| up to |b| / c it passes an r as large as b. What is used of x
    # are values A x, whose error A (A + c I)^-1 r is at most |r|: the relative residual bounds it in units of the
    # labels.
    scale = lengths(B)
    return float((np.linalg.norm(R, axis=0)[scale > 0] / scale[scale > 0]).max(initial=0.0))


def warn_of_error(what: str, ridge: float, error: float) -> None:
    """An InaccurateSolve where the relative error is more than rounding."""
    if not error <= TOLERATED:  # NaN as well
        warnings.warn(
            f"{what} with ridge {ridge:g} has a relative residual of {error:.1e}, above {TOLERATED:g}: the ridge is too "
            f"small for the scale of the data; raise it, or take float64 kernels",
            InaccurateSolve,
            stacklevel=2,
        )


LEAST = 1e-10
"""1 - leverage below which a left-out score is a quotient of roundings, or of what the ridge alone keeps apart."""


def warn_of_leverage(left: np.ndarray) -> None:
    """Warn by an InaccurateSolve where rows are fitted so closely that hardly anything is left of their residuals.

    left (n,)
    """
    few = int(np.count_nonzero(~(left >= LEAST)))  # NaN as well
    if few:
        warnings.warn(
            f"{few} of {len(left)} samples are fitted up to {LEAST:g} of their residuals (1 - leverage is down to "
            f"{np.nanmin(left):.1e}), so that their left-out scores depend on the last digits of the data; raise the ridge, "
            f"or scale the features down",
            InaccurateSolve,
            stacklevel=2,
        )


@dataclass(frozen=True)
class Solution:
    """What a solver found."""

    value: Any  # X, of the shape and the home of the right-hand side
    iterations: int
    residuals: np.ndarray | None  # (k,): |B - (A + c I) X| / |B| per column, true ones in float64; None if unchecked
    converged: bool  # whether all of them are at most the tolerance
    method: str  # its name


def _block(what: str, B: np.ndarray, n: int) -> np.ndarray:
    """B as an n x k float64 array, checked."""
    B = np.asarray(B, np.float64)
    if B.ndim not in (1, 2) or len(B) != n:
        raise UserError(f"solve: {what} has shape {B.shape}, the operator is {n} x {n}; pass one row per sample")
    if not np.isfinite(B).all():
        raise UserError(f"solve: {what} holds NaN or inf in row {int(np.argwhere(~np.isfinite(B))[0, 0])}")
    return B.reshape(n, -1)


class LinearSolver:
    """What solves (A + c I) X = B for many B: checks and shapes; what follows is each method's own."""

    method: str

    def __init__(self, A: Operator, ridge: float, tol: float):
        self.A, self.ridge, self.tol = A, ridge, tol

    def solve(self, B: Any, x0: Any = None, check: bool = True, tol: float | None = None) -> Solution:
        if isinstance(B, WorkerRows):
            if self.method == "cg":
                return self._solve(B, x0, check, self.tol if tol is None else tol)
            found = self.solve(np.asarray(B), None, check, tol)  # by a factor in this process
            sent: Any = B.home.send(found.value)
            return replace(found, value=sent)
        block = _block("the right-hand side", B, self.A.n)
        start = None if x0 is None else _block("the start", x0, self.A.n)
        if start is not None and start.shape != block.shape:
            raise UserError(f"solve: the start has shape {start.shape}, the right-hand side {block.shape}")
        solution = self._solve(block, start, check, self.tol if tol is None else tol)
        return replace(solution, value=solution.value.reshape(np.shape(B)))

    def _solve(self, B: Any, x0: Any, check: bool, tol: float) -> Solution:
        raise NotImplementedError

    def inverse_diagonal(self) -> np.ndarray:
        """Work out the diagonal of the inverse.

        -> (n,)
        """
        raise NotImplementedError

    def _residual(self, B: np.ndarray, X: np.ndarray) -> np.ndarray:
        R = self.A.product(X)
        R += self.ridge * X
        R *= -1
        R += B
        return R


_STRIP = 4096
_WHOLE = 12288  # rows up to which LAPACK's own factorization works on several threads, and is the fastest
_BLOCK = 2048  # columns of a block of larger ones
_ROUNDING = 16 * np.finfo(float).eps
"""Pivots of a matrix with a diagonal of ones that are rounding: the order of BLAS's sums makes them positive or negative."""
log = logging.getLogger("dmo")


def cholesky_in_place(A: np.ndarray) -> int:
    """Put the lower Cholesky factor of a matrix in its lower triangle; the upper one keeps what it had.

    A (n, n)
    """
    # By blocks of columns where it is large and BLAS has several threads: OpenBLAS 0.3.30's own factorization ends
    # the process from about n = 16 000 on two. Others are left to it: blocks are copied, which took a third of the
    # time at n = 4500.
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
    """Solves for A = F F' (F: n x r) by the coefficients W = (F'F + c I)^-1 F'B (r x k) of a function of F's rows."""

    # A W-first order of products, since the other one cancels: F W = A (A + c I)^-1 B is right to rounding, and so is
    # the solution (B - F W) / c as far as its own size goes, but F' times that solution, which is W again, would be
    # off by |F|^2 / c roundings. Who needs W (new rows) or F W (smoothers) asks for `loadings` and `smooth`.
    #
    # 1. The smaller side is factorized: F'F + c I, or F F' + c I where r > n, then W = F'(F F' + c I)^-1 B.
    # 2. Its rows and columns are scaled to a diagonal of ones first, so that columns of all magnitudes count alike.
    # 3. W is refined against the residual F'(B - F W) - c W, made from F itself: F'F has squared its condition. The
    #    error of the fitted values F W is measured on the way, as |(F'F + c I)^-1/2 residual| / |B|. Sums of a few
    #    columns with random signs are looked at first: where they are right to rounding, so is W.
    # 4. Where that error does not fall to `_FIT` a singular value decomposition of F takes over: it squares nothing,
    #    holds n x min(n, r) numbers more, and is accurate for every ridge that stands above the rounding of F itself.
    #    A smaller one is refused if F has directions that are rounding.
    #
    # With F = W T sparse by clusters, F'F costs n k_s^2 and the products n k_s.

    _FIT, _RIGHT = 1e-9, 1e-12  # errors of the fitted values at which W needs no further correction, and none at all
    _REFINEMENTS = 3

    def __init__(self, F: Factor, ridge: float):
        self.ridge = ridge
        self._centered = isinstance(F, CenteredRows) and F.mean is not None
        # as many columns as centered rows have directions fit every row: residuals are right from the rows' side alone
        self._F, self._primal = F, F.shape[1] < F.shape[0] - int(self._centered)
        self._svd: _Svd | None = None
        self._lift = 0.0
        self._null = np.zeros(0)
        small = F.gram() if self._primal else _outer(F)
        self.intercept = np.zeros(F.shape[0])
        """What an intercept, which centering stands for, adds to the leverages of the rows (n)."""
        if self._centered:
            assert isinstance(F, CenteredRows)
            self.intercept = F.ones**2 / (F.ones @ F.ones)
        if not self._primal and self._centered:
            # The mean's direction has the eigenvalue c alone, however small. No W depends on it (F'1 = 0): lift it.
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
        log.info("solve: ridge %g is small for the scale of the factor; taking its singular values", self.ridge)
        empty = int(self._centered and self._F.shape[0] <= self._F.shape[1])  # what centering takes from n rows
        self._svd, self._small = _Svd.of(self._F, self.ridge, empty), None

    def loadings(self, B: np.ndarray) -> np.ndarray:
        """W = (F'F + c I)^-1 F'B (r x k): F W is the smoothed B, and f W that of a new row f."""
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
        """W by the primal side, and the relative error of F W that is left before its last correction."""
        F = self._beside(B)
        W = small.solve(F.t_dot(B))
        if isinstance(B, np.ndarray) and B.shape[1] > PROBES:
            # sums of columns of one length tell what their products would
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
        """F where the rows of B live."""
        return CenteredRows(beside(B, self._F.X), self._F.mean) if isinstance(B, WorkerRows) else self._F  # type: ignore[attr-defined]

    def _dual(self, small: Equilibrated, B: np.ndarray) -> tuple[np.ndarray, float]:
        """alpha = (F F' + c I)^-1 B, judged by its residual."""
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
        """A (A + c I)^-1 B = F W, without the difference B - c (A + c I)^-1 B."""
        if isinstance(B, WorkerRows):
            if self._small is not None and self._primal and isinstance(getattr(self._F, "X", None), np.ndarray):
                W, error = self._refined(self._small, B)
                if error <= self._FIT:
                    return self._beside(B).dot(W)
            return B.home.send(self.smooth(np.asarray(B)))
        W = self.loadings(B)
        return self._F.dot(W) if self._svd is None else self._svd.smooth(B)

    def residuals(self, B: np.ndarray, W: np.ndarray, where: np.ndarray | None = None) -> np.ndarray:
        """B - F W (n x k, or rows `where`) for the loadings W of B; where F fits every row it is c alpha, no difference."""
        rows = slice(None) if where is None else where
        if self._svd is not None:
            return self._svd.residuals(B, self.ridge, bool(self.intercept.any()))[rows]
        assert self._small is not None
        if not self._primal:
            return (self.ridge * self._dual(self._small, B)[0])[rows]
        return B - self._F.dot(W) if where is None else B[where] - self._some(where) @ W

    def _some(self, where: Any) -> np.ndarray:
        """Rows of F, by a slice or by numbers: of a factor that is one array."""
        return self._F.rows(where)

    def unfitted(self, where: np.ndarray | None = None) -> np.ndarray:
        """1 - h_i - `intercept` (n), h_i = f_i'(F'F + c I)^-1 f_i: where F fits every row a sum of positive terms."""
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
        if self._lift:  # the mean's direction is the intercept's share, whatever its lifted eigenvalue
            return self.ridge * (inverse - self._null**2 / (self._lift + self.ridge))
        return self.ridge * inverse - self.intercept


@dataclass(frozen=True)
class _Svd:
    """U diag(s) V' = F without the directions that are rounding, and the weights s^2 / (s^2 + c) of the others."""

    U: np.ndarray
    s: np.ndarray
    Vt: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, F: Factor, ridge: float, empty: int) -> _Svd:
        """`empty`: directions that F lacks by construction, and that may be rounding whatever the ridge."""
        U, s, Vt = scipy.linalg.svd(F.rows(slice(0, F.shape[0])), full_matrices=False, check_finite=False)
        noise = max(F.shape) * np.finfo(float).eps * s.max(initial=0.0)
        keep = s > noise
        if ridge < noise**2 and np.count_nonzero(s[~keep]) > empty:
            raise IllConditioned(
                f"ridge {ridge:g} is below what float64 can tell from rounding in features of this scale that depend on "
                f"each other; the smallest it can honor is {noise**2:.1g}: raise the ridge to that, scale the features "
                f"down, or leave out those that others determine"
            )
        s = s[keep]
        return cls(U[:, keep], s, Vt[keep], s / (s + ridge / s))

    def loadings(self, B: np.ndarray) -> np.ndarray:
        return self.Vt.T @ ((self.weights / self.s)[:, None] * (self.U.T @ B))

    def smooth(self, B: np.ndarray) -> np.ndarray:
        return self.U @ (self.weights[:, None] * (self.U.T @ B))

    def residuals(self, B: np.ndarray, ridge: float, centered: bool) -> np.ndarray:
        """c / (s^2 + c) of B within the directions of F, and what lies beyond them as it is."""
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
        """Whether no direction lies beyond those of F, but for the mean's."""
        return self.U.shape[1] >= len(self.U) - centered


def _outer(F: Factor) -> np.ndarray:
    """F F' (n x n)."""
    n = F.shape[0]
    out = np.empty((n, n))
    for where in row_blocks(n, 512):
        out[where] = F.dot(F.rows(where).T).T
    return out


class Equilibrated:
    """The Cholesky factor of D A D for a small positive definite A, D = diag(A)^-1/2.

    A (d, d)
    """

    # The unit diagonal makes the factorization's error relative to every row by itself, so that features of different
    # units need no scaling by the user.

    def __init__(self, A: np.ndarray):
        diagonal = A.diagonal()
        if not (diagonal > 0).all():
            raise IllConditioned("the matrix has a diagonal entry that is not positive; raise the ridge")
        self._scale = 1 / np.sqrt(diagonal)
        A *= self._scale[:, None]
        A *= self._scale
        self._norm = float(np.abs(A).sum(axis=0).max())
        self._factor = A.T  # LAPACK's order, of the same symmetric matrix
        info = cholesky_in_place(self._factor)
        rounding = self._factor.diagonal() ** 2 <= _ROUNDING
        if info == 0 and rounding.any():
            info = int(np.argmax(rounding)) + 1
        if info != 0:
            raise IllConditioned(f"the matrix is not positive definite (row {info} of {len(A)}); raise the ridge")

    def condition(self) -> float:
        """Estimate the condition number of D A D in the 1-norm; D A D has rows of at most d."""
        reciprocal, _ = scipy.linalg.lapack.dpocon(self._factor, self._norm, uplo="L")
        return float(1 / reciprocal) if reciprocal > 0 else float("inf")

    def half(self, B: np.ndarray) -> np.ndarray:
        """Multiply by a root of the inverse.

        B (d, k) -> (d, k)
        """
        return scipy.linalg.solve_triangular(self._factor, self._scale[:, None] * B, lower=True, check_finite=False)

    def solve(self, B: np.ndarray) -> np.ndarray:
        """Multiply by the inverse.

        B (d, k) -> (d, k)
        """
        X, _ = scipy.linalg.lapack.dpotrs(self._factor, self._scale[:, None] * B, lower=1)
        return self._scale[:, None] * X


def positive_solve(A: np.ndarray, ridge: float, B: np.ndarray) -> np.ndarray:
    """Solve (A + c I) X = B for a small matrix of moments, refined once and checked.

    A (d, d); B (d, k) -> (d, k)
    """
    shifted = A + ridge * np.eye(len(A))
    try:
        small = Equilibrated(shifted.copy())
    except IllConditioned as error:
        least = 4 * len(A) * np.finfo(float).eps * float(np.trace(A))
        raise IllConditioned(
            f"ridge {ridge:g} is below the rounding of moments of this scale; raise it to {least:.1g}, scale the "
            f"features down, or take approximation='exact', which works from the rows"
        ) from error
    X = small.solve(B)
    X += small.solve(B - shifted @ X)
    some = B[:, :PROBES]
    warn_of_error("a solve with moments", ridge, relative_error(some - shifted @ X[:, :PROBES], some))
    return X
