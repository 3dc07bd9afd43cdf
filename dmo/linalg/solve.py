"""Solvers of (A + c I) X = B for a symmetric positive semidefinite operator A and a ridge c > 0.

The direct solvers use Cholesky, mixed precision, eigenpairs or the Woodbury formula. With `check`, a direct solver
computes the residual of every solution. Without `check`, it checks the first solution and, from time to time, later
solutions by sums of their columns, which costs one narrow product. A solution with a float64 factor is then refined if
its relative residual exceeds 1e-6. A warning is issued if refinement does not help.

`factorize` chooses the method and returns a reusable solver. For low-rank operators, it uses the Woodbury formula. For
other operators, it uses a Cholesky factor in float64 or float32 if the factor fits in memory and is faster than block
conjugate gradients with a Nystrom preconditioner.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import scipy.linalg

from dmo.blocks import row_blocks
from dmo.errors import UserError
from dmo.linalg.cg import BlockCG, NystromPreconditioner, default_rank
from dmo.linalg.factors import low_rank_factor
from dmo.linalg.linear import (
    PROBES,
    TOLERATED,
    FactorSystem,
    IllConditioned,
    LinearSolver,
    Solution,
    cholesky_in_place,
    relative_error,
    warn_of_error,
)
from dmo.linalg.operators import Centered, Congruent, Dense, Operator, Scaled
from dmo.linalg.tall import Factor
from dmo.memory import FACTORS, fits

_PROBE_EVERY = 1024
"""Number of solved columns between two checks of a factorization. The first solve is always checked. A factorization
has the same errors in all later solves, so frequent checks are unnecessary. For 4500 samples, a float64 product with a
float32 kernel takes as long as solving for 60 columns."""
log = logging.getLogger("dmo")


class _Direct(LinearSolver):
    """Solver with a factorization, whose solutions are refined if requested or needed."""

    # The residual B - A X - c X is computed from the float64 entries of A, so that it reveals errors of the
    # factorization. Each refinement step multiplies the error of the solution by about the condition number times the
    # precision of the factorization. If a step reduces the residual less than fourfold, rounding errors dominate the
    # residual, and more steps do not help.

    _refinements = 3

    def _apply(self, B: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def __init__(self, A: Operator, ridge: float, tol: float):
        super().__init__(A, ridge, tol)
        self._unprobed = np.inf  # Number of columns solved since the last error check.
        self._lost = 0.0  # Norm of the residual in the last error check, relative to the norm of the solution.

    def _solve(self, B: np.ndarray, x0: np.ndarray | None, check: bool, tol: float) -> Solution:
        found = self._found(B, check, tol)
        if found.residuals is not None and not found.converged:
            warn_of_error(f"a solve by {self.method}", self.ridge, float(found.residuals.max(initial=0.0)))
        return found

    def _found(self, B: np.ndarray, check: bool, tol: float) -> Solution:
        """Return the solution, refined if `check` requests residuals or if an error check finds it inaccurate."""
        X = self._apply(B)
        if not check and self._passes(B, X, self._allowed(tol)):
            return Solution(X, 0, None, True, self.method)
        return self._refine(B, X, check, tol)

    def _allowed(self, tol: float) -> float:
        """Return the relative residual up to which a solution is accepted without refinement."""
        return max(tol, TOLERATED)

    def _passes(self, B: np.ndarray, X: np.ndarray, allowed: float) -> bool:
        """Return whether the solution is accurate enough, according to a new error check or the last one."""
        self._unprobed += B.shape[1]
        longest = _growth(B, X).max(initial=0.0)
        if self._unprobed < _PROBE_EVERY and 2 * self._lost * longest <= allowed:
            return True
        self._unprobed = 0
        error = self._probe(B, X)
        self._lost = error / longest if longest else 0.0
        return error <= allowed

    def _probe(self, B: np.ndarray, X: np.ndarray) -> float:
        """Estimate the largest relative residual of any column.

        For many columns, the estimate is within a factor of 2.
        """
        # The expected squared norm of a sum of columns with random signs equals the sum of their squared norms, so that
        # products with a few such sums reveal errors in all columns. Column j is weighted by the norm ratio |x_j| /
        # |b_j| of solution and right-hand side, because rounding errors are proportional to the norm of the solution.
        if B.shape[1] <= PROBES:
            return relative_error(self._residual(B, X), B)
        growth = _growth(B, X)
        if not growth.any():
            return 0.0
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (B.shape[1], PROBES))
        signs *= np.divide(growth, np.linalg.norm(X, axis=0), out=np.zeros_like(growth), where=growth > 0)[:, None]
        whole = np.linalg.norm(self._residual(B @ signs, X @ signs), axis=0).max()
        return float(whole * growth.max() / np.linalg.norm(growth))

    def _refine(self, B: np.ndarray, X: np.ndarray, check: bool, tol: float) -> Solution:
        """Refine the solution until all residuals converge or, without `check`, an error check is passed."""
        scale = np.linalg.norm(B, axis=0)
        scale[scale == 0] = 1.0
        R, steps = self._residual(B, X), 0
        size = np.linalg.norm(R, axis=0)
        while (size > tol * scale).any() and steps < self._refinements:
            X, steps, before = X + self._apply(R), steps + 1, size
            if not check and self._probe(B, X) <= tol:
                return Solution(X, steps, None, True, self.method)
            R = self._residual(B, X)
            size = np.linalg.norm(R, axis=0)
            if (size / scale).max() > 0.25 * (before / scale).max():
                break
        residuals = size / scale
        return Solution(X, steps, residuals, bool((residuals <= tol).all()), self.method)


def _growth(B: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Compute the norm of each solution relative to its right-hand side, or 0 for a right-hand side of zero."""
    scale = np.linalg.norm(B, axis=0)
    return np.divide(np.linalg.norm(X, axis=0), scale, out=np.zeros_like(scale), where=scale > 0)


class CholeskySolver(_Direct):
    """Float64 Cholesky solver, with n^3 / 3 operations and 8 n^2 bytes, then 2 n^2 operations per right-hand side."""

    # The factorization places the rows with indices `last` at the end. The diagonal block of the inverse for these rows
    # then depends only on the diagonal block of the factor for these rows.

    method = "cholesky"

    def __init__(self, A: Operator, ridge: float, tol: float = 1e-8, last: np.ndarray | None = None):
        super().__init__(A, ridge, tol)
        # Indices of the rows that are placed last, in ascending order.
        self.last = np.zeros(0, np.intp) if last is None else last
        self._is_last = np.zeros(self.A.n, bool)
        self._is_last[self.last] = True
        order = np.argsort(self._is_last, kind="stable")
        self._order: Any = order if self.last.size else slice(None)  # Row indices in the order of the factor.
        self._places: Any = np.argsort(order) if self.last.size else slice(None)  # Position of each row in the factor.
        self._factor = self._first_factor()

    def _first_factor(self) -> np.ndarray:
        return self._factorized(np.float64)

    def _factorized(self, dtype: type[np.floating]) -> np.ndarray:
        n, edge, late = self.A.n, self.A.n - len(self.last), self._is_last
        lender = _lender(self.A) if dtype == np.float32 and not self.last.size else None
        matrix = np.zeros((n, n), dtype) if lender is None else lender.matrix
        diagonal = matrix.diagonal().copy()
        for where, rest in self._strips():
            some = late[where.start :]
            if not self.last.size:
                if lender is not None:
                    below = np.tril_indices(len(rest), -1)
                    rest[below] = matrix[where, where][below]
                matrix[where, where.start :] = rest
                continue
            before = int(np.count_nonzero(late[: where.start]))
            first, second = rest[~late[where]], rest[late[where]]
            row, final = where.start - before, edge + before
            matrix[row : row + len(first), row:edge] = first[:, ~some]
            matrix[row : row + len(first), final:] = first[:, some]
            matrix[row:edge, final : final + len(second)] = second[:, ~some].T
            matrix[final : final + len(second), final:] = second[:, some]
        if lender is not None:
            lender.lent(diagonal)
        matrix.flat[:: self.A.n + 1] += self.ridge
        # LAPACK expects column-major order. The upper triangle of a row-major array is the lower triangle of its
        # transpose.
        factor = matrix.T
        info = cholesky_in_place(factor)
        if info != 0:
            raise IllConditioned(
                f"the kernel plus ridge {self.ridge:g} is not positive definite (Cholesky stopped at row {info} of "
                f"{n}); raise the ridge, use float64 kernels, or check that the kernel is positive semidefinite"
            )
        return factor

    def _strips(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the upper triangle of A in strips of rows. The caller adds the ridge."""
        return self.A.upper()

    def _apply(self, B: np.ndarray) -> np.ndarray:
        X, _ = scipy.linalg.lapack.dpotrs(self._factor, B[self._order], lower=1)
        return np.asarray(X[self._places])

    def inverse_diagonal(self) -> np.ndarray:
        """Compute the diagonal (n) of (A + c I)^-1, which needs as much memory as a second factor."""
        return np.asarray(_inverse_diagonal(self._factor)[self._places])

    def last_diagonal(self) -> np.ndarray:
        """Compute the diagonal of the inverse at the rows `last` from their part of the factor."""
        edge = self.A.n - len(self.last)
        return _inverse_diagonal(self._factor[edge:, edge:].copy(order="F"))


def _lender(A: Operator) -> Dense | None:
    """Return the dense matrix inside an operator if a float32 factor can be stored in its array, otherwise None."""
    while isinstance(A, Scaled | Centered | Congruent):
        A = A.inner
    return A if isinstance(A, Dense) and A.lends and A.dtype == np.float32 else None


def _inverse_diagonal(factor: np.ndarray) -> np.ndarray:
    """Compute the diagonal of (T T')^-1 for a lower triangle T (n x n)."""
    inverse, _ = scipy.linalg.get_lapack_funcs("trtri", (factor,))(factor, lower=1)
    out = np.empty(len(factor))
    for where in row_blocks(len(factor), 512):
        columns = inverse[where.start :, where]
        columns[: where.stop - where.start] = np.tril(columns[: where.stop - where.start])
        out[where] = np.einsum("ij,ij->j", columns, columns, dtype=np.float64)
    return out


_LEADING, _FEW = 128, 32
"""Ranks of the low-rank part that is subtracted before a float32 factorization. For 4000 samples, ranks of 1, 32 and
128 leave relative residuals of 1e-5, 2e-6 and 8e-7. The smaller rank is used if solutions are refined in any case, or
if refining them is cheap."""


class MixedSolver(CholeskySolver):
    """Float32 Cholesky solver that refines every solution to the tolerance with float64 residuals."""

    # The solver needs half the time and memory of a float64 factor. Each refinement costs one float64 product with A.
    #
    # 1. The relative error of a float32 factor is the float32 precision times the ratio of the largest eigenvalue to
    #    the ridge. A few eigenvalues of a kernel far exceed all others: the eigenvalue of the constant function is
    #    about n / 2, and the next eigenvalues are a hundredth of n / 2. Therefore, a low-rank part F F' is subtracted
    #    from A, and the matrix E + c I with E = A - F F' is factorized. For a Gaussian kernel of 6000 samples with a
    #    ridge of 0.1, the relative residual is then 6e-7 instead of 3e-4.
    # 2. The matrix E is computed in float64 and then rounded to float32, so that rounding errors are proportional to
    #    its small entries. The low-rank part F F' is a Nystrom approximation of A, so that E is positive semidefinite.
    # 3. The solution is X = S B - S F (I + F'S F)^-1 F'S B with S = (E + c I)^-1. The product F'S B is computed from S
    #    B, and the product F'S F is not symmetrized, so that both contain the same rounding errors. The large
    #    eigenvalues of F F' would amplify any difference of these errors.
    # 4. If the ridge is below about 1e-7 times the largest eigenvalue, rounding errors make the float32 factor useless,
    #    and a float64 factor replaces it.
    #
    # Higham, Mary 2022, section 5 (iterative refinement with a factor of lower precision); Chen, Epperly, Tropp, Webber
    # 2025.

    method = "mixed"
    _refinements = 8

    def __init__(
        self, A: Operator, ridge: float, tol: float = 1e-8, last: np.ndarray | None = None, rank: int = _LEADING
    ):
        self._lead = _leading(A, rank)
        super().__init__(A, ridge, tol, last)

    def _first_factor(self) -> np.ndarray:
        try:
            self._factor = self._factorized(np.float32)
            self._correct()
        except (IllConditioned, np.linalg.LinAlgError):
            self._double()
        return self._factor

    def _strips(self) -> Iterator[tuple[slice, np.ndarray]]:
        for where, strip in self.A.upper():
            strip -= self._lead[where] @ self._lead[where.start :].T
            yield where, strip

    def _correct(self) -> None:
        """Compute the correction that accounts for the subtracted low-rank part of A."""
        self._solved = self._single(self._lead)
        small = self._lead.T @ self._solved
        small.flat[:: len(small) + 1] += 1.0
        self._back = scipy.linalg.solve(small.T, self._solved.T, overwrite_a=True, check_finite=False).T

    def _single(self, B: np.ndarray) -> np.ndarray:
        """Solve with the float32 factor, which does not include the subtracted low-rank part of A."""
        scale = np.linalg.norm(B, axis=0).clip(min=np.finfo(float).tiny)
        right = np.empty(B.shape, np.float32, order="F")
        np.divide(B[self._order], scale, out=right, casting="same_kind")
        X, _ = scipy.linalg.lapack.spotrs(self._factor, right, lower=1, overwrite_b=1)
        return np.multiply(X, scale, order="C")[self._places]

    def _apply(self, B: np.ndarray) -> np.ndarray:
        if self._factor.dtype == np.float64:
            return super()._apply(B)
        X = self._single(B)
        X -= self._back @ (self._lead.T @ X)
        return X

    def _allowed(self, tol: float) -> float:
        # A solution by a float32 factor is accepted without refinement only if it meets the tolerance of the solve.
        return tol if self._factor.dtype == np.float32 else super()._allowed(tol)

    def _found(self, B: np.ndarray, check: bool, tol: float) -> Solution:
        found = super()._found(B, check, tol)
        if found.converged or self._factor.dtype == np.float64:
            return found
        log.info("solve: rounding stops the refinement of the float32 factor; using a float64 factor")
        self._double()
        self._unprobed = np.inf
        return super()._found(B, check, tol)

    def _double(self) -> None:
        self._factor = np.empty((0, 0))  # Free the memory of the float32 factor first.
        self._lead = np.zeros((self.A.n, 0))
        self._factor = self._factorized(np.float64)

    def inverse_diagonal(self) -> np.ndarray:
        """Compute the diagonal (n) of (A + c I)^-1.

        A float64 factor replaces the float32 factor if unrefined solutions do not meet ten times the tolerance.
        """
        if not self._serves(10 * self.tol):
            return super().inverse_diagonal()
        return super().inverse_diagonal() - np.einsum("ij,ij->i", self._back, self._solved)

    def last_diagonal(self) -> np.ndarray:
        """Compute the diagonal of the inverse at the rows `last`, in float64 if float32 is too inaccurate."""
        if not self._serves(_LOOSE):
            return super().last_diagonal()
        taken = np.einsum("ij,ij->i", self._back[self.last], self._solved[self.last])
        return super().last_diagonal() - taken

    def _serves(self, tol: float) -> bool:
        """Return whether unrefined float32 solutions meet a tolerance. If not, use a float64 factor from now on."""
        if self._factor.dtype == np.float32:
            B = np.random.default_rng(0).standard_normal((self.A.n, PROBES))
            if self._probe(B, self._apply(B)) <= tol:
                return True
            self._double()
        return False


_LOOSE = 1e-3
"""Relative residual that is allowed for an inverse if its diagonal only determines the thresholds of labels."""


def _leading(A: Operator, rank: int) -> np.ndarray:
    """Compute F (n x r, float64) such that A - F F' is small and positive semidefinite.

    If this fails, F has no columns.
    """
    # Approximate A by A S (S'A S)^-1 S'A, where S is a basis of the pivot columns. Compared with a Nystrom
    # approximation from the pivot columns, A S costs one more product, but the residual is only a third.
    try:
        basis = NystromPreconditioner.of(A, min(rank, A.n // 32), 0).basis
    except np.linalg.LinAlgError:
        return np.zeros((A.n, 0))
    image = (A @ basis).astype(np.float64)
    values, vectors = np.linalg.eigh(basis.T.astype(np.float64) @ image)
    # Eigenvalues below 1e-5 times the largest one are rounding errors of the float32 product A S.
    keep = values > 1e-5 * values.max(initial=0.0)
    return image @ (vectors[:, keep] / np.sqrt(values[keep]))


class Spectrum:
    """Eigenpairs of A in float64, which solve systems with A + c I for every ridge c."""

    # The eigenpairs need 8 n^2 bytes, and four times as much memory during their computation. The product of the last
    # right-hand sides with the eigenvectors is cached, so that solving with another ridge does not compute it again.

    def __init__(self, A: Operator):
        self.values, self.vectors = np.linalg.eigh(A.dense(np.float64))
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    def coordinates(self, B: np.ndarray) -> np.ndarray:
        """Convert a block (n x k) to coordinates of the eigenvectors."""
        if self._last is None or not np.array_equal(self._last[0], B):
            self._last = B.copy(), self.vectors.T @ B
        return self._last[1]


class SpectralSolver(_Direct):
    """Solver of (A + c I) X = B by the eigenpairs of A.

    Solving for a block costs two products, or only one if the same block was just solved with another ridge.
    """

    method = "spectral"

    def __init__(self, A: Operator, ridge: float, spectrum: Spectrum, tol: float = 1e-8):
        super().__init__(A, ridge, tol)
        self._spectrum, self._shifted = spectrum, spectrum.values + ridge
        if not self._shifted[0] > 0:
            raise IllConditioned(
                f"the kernel plus ridge {ridge:g} is not positive definite (the kernel's least eigenvalue is "
                f"{spectrum.values[0]:.2g}); raise the ridge, use float64 kernels, or check that the kernel is "
                "positive semidefinite"
            )

    def _apply(self, B: np.ndarray) -> np.ndarray:
        return np.asarray(self._spectrum.vectors @ (self._spectrum.coordinates(B) / self._shifted[:, None]))

    def inverse_diagonal(self) -> np.ndarray:
        """Compute the diagonal (n) of the inverse, with n^2 multiplications."""
        V = self._spectrum.vectors
        return np.concatenate([np.square(V[where]) @ (1 / self._shifted) for where in row_blocks(self.A.n, 512)])


class WoodburySolver(_Direct):
    """Solver for A = F F' by the Woodbury formula (B - F (F'F + c I)^-1 F'B) / c."""

    # The error of the solution is small relative to its norm. In the product of F' with the solution, rounding errors
    # are amplified by |F|^2 / c. To predict new rows, call the method `loadings` of `system`. For smoothed values, call
    # `smooth`.

    method = "woodbury"

    def __init__(self, A: Operator, ridge: float, factor: Factor | None, tol: float = 1e-8):
        super().__init__(A, ridge, tol)
        if factor is None:
            raise UserError(f"woodbury needs a low-rank operator, got {type(A).__name__}; use 'cholesky' or 'cg'")
        self.system = FactorSystem(factor, ridge)

    def _apply(self, B: np.ndarray) -> np.ndarray:
        return (B - self.system.smooth(B)) / self.ridge

    def _probe(self, B: np.ndarray, X: np.ndarray) -> float:
        """Return 0, because the Woodbury system has already checked its error and issued a warning if necessary."""
        return 0.0

    def inverse_diagonal(self) -> np.ndarray:
        """Compute the diagonal (n) of (A + c I)^-1."""
        return (self.system.unfitted() + self.system.intercept) / self.ridge


SolveMethod = Literal["auto", "direct", "cholesky", "mixed", "cg", "woodbury"]
# Maximum number of products with A in conjugate gradients. A factorization costs as much as n / (6 k) products with k
# columns.
_PRODUCTS = 500
EXACT = 1e-8
"""Relative residual of a solve that counts as exact. Additional digits would not be significant, because the entries of
A have rounding errors."""
COEFFICIENTS = 1e-6
"""Relative residual of coefficients if products with the kernel are expensive. The relative error of fitted values and
scores is at most this residual, plus 4e-6 from eigenpairs with a tolerance of 1e-6. Two more digits would cost a fifth
of all products with the kernel."""
SCORES = 1e-5
"""Relative residual of solves in a search that only compares held-out scores. The residual bounds the error of the
scores."""


def factorize(
    A: Operator,
    ridge: float,
    method: SolveMethod = "auto",
    tol: float = EXACT,
    preconditioner: NystromPreconditioner | None = None,
    random_state: int | None = None,
    columns: int | None = None,
    last: np.ndarray | None = None,
) -> LinearSolver:
    """Create a reusable solver of (A + ridge I) X = B, which can compute the diagonal of the inverse at rows `last`."""
    if not ridge > 0:
        raise UserError(f"ridge must be positive, got {ridge}; pass a ridge above the rounding errors of the kernel")
    factor = low_rank_factor(A) if method in ("auto", "woodbury") else None
    if method == "direct":
        method = _direct_method(A, ridge, columns, tol) or "cholesky"
    if method == "auto":
        direct, rank = _direct_method(A, ridge, columns, tol), default_rank(A.n)
        # Conjugate gradients need one solve for each diagonal entry of the inverse.
        asked = (columns or 0) + (0 if last is None else len(last))
        saved = 0.0
        if direct is not None and columns is not None:
            # If the full preconditioner saves less than ten products compared with the factorization, consider a
            # preconditioner with an eighth of the columns.
            rank = rank if _saved(A, asked, direct, rank) >= 10 else rank // 8
            saved = _saved(A, asked, direct, rank)
        if factor is not None and factor.shape[1] < A.n and small_side_fits(factor):
            method = "woodbury"
        elif direct is None:
            method = "cg"
        elif saved < 10:
            method = direct
        else:
            preconditioner = preconditioner or NystromPreconditioner.of(A, rank, random_state)
            method = "cg" if preconditioner.products(ridge, tol) < saved else direct
        log.info("solve: %s for %d x %d, ridge %g, %s right-hand sides", method, A.n, A.n, ridge, columns or "many")
    if method == "woodbury":
        return WoodburySolver(A, ridge, factor, tol)
    if method == "cholesky":
        return CholeskySolver(A, ridge, tol, last)
    if method == "mixed":
        return MixedSolver(A, ridge, tol, last, _rank(columns, _is_refined(A, ridge, tol)))
    if method == "cg":
        if preconditioner is None:
            preconditioner = NystromPreconditioner.of(A, default_rank(A.n), random_state)
        return BlockCG(A, ridge, preconditioner, tol, _PRODUCTS)
    raise UserError(f"unknown method {method!r}; known: 'auto', 'direct', 'cholesky', 'mixed', 'cg', 'woodbury'")


def small_side_fits(factor: Factor) -> bool:
    """Return whether the Gram matrix of the smaller side of a factor fits in memory for a factorization."""
    return fits(8.0 * min(factor.shape) ** 2, FACTORS)


def _direct_method(A: Operator, ridge: float, columns: int | None, tol: float) -> Literal["cholesky", "mixed"] | None:
    """Choose the cheapest Cholesky factor that fits in memory for `columns` right-hand sides (None means many)."""
    size = float(A.n) * A.n
    fine = A.dtype == np.float32 and ridge >= 1e-7 * float(A.diagonal().sum(dtype=np.float64))
    refined = fine and _is_refined(A, ridge, tol)
    worth = fine and not (refined and columns is None) and _spared(A.n, columns or 0, refined) > 0
    double = fits(8 * size, FACTORS)
    if fine and (worth or (not double and fits(4 * size, FACTORS))):
        return "mixed"
    return "cholesky" if double else None


def _is_refined(A: Operator, ridge: float, tol: float) -> bool:
    """Return whether a float32 factor has an error above the tolerance, even with a low-rank part of rank 128."""
    return ridge * tol < 1e-7 * float(A.diagonal().mean(dtype=np.float64))


def _rank(columns: int | None, refined: bool) -> int:
    """Return the rank of the subtracted part. For few right-hand sides, refinement is cheaper than a larger rank."""
    return _FEW if refined or (columns is not None and columns <= _LEADING) else _LEADING


def _spared(n: int, columns: int, refined: bool) -> float:
    """Estimate the cost that a float32 factor saves over a float64 factor, in float32 products with one column."""
    # The unit of cost is a float32 product with one column, which takes n^2 multiplications. A float32 factorization
    # costs n / 6 units, and a float64 factorization costs n / 3 units. Subtracting a low-rank part costs 2.5 units per
    # column. For each right-hand side, a float32 solution costs 1 unit and a float64 solution costs 2 units. A refined
    # solution costs 4 units, for two float32 solutions and a float64 product. Fewer than 32 columns cost as much as 32
    # columns.
    rank = _rank(columns or None, refined)
    return n / 6 - 2.5 * rank + (columns if rank == _LEADING else -2 * max(32, columns))


def _saved(A: Operator, columns: int, direct: str, rank: int) -> float:
    """Estimate how much more a Cholesky factor costs than a preconditioner, in products with `columns` columns."""
    # In the same precision, a factorization takes n^3 / 6 multiplications, as many as n / (6 k) products with k
    # columns. Memory bandwidth limits products with few columns, so that fewer than 32 columns take as long as 32
    # columns. A float32 factorization takes half the time of a float64 factorization, plus two float64 products. A
    # preconditioner of rank r takes 4.5 n r^2 multiplications for its columns, their basis in float64, and a small
    # eigenproblem.
    k = max(32, columns)
    double = 8.0 / A.dtype.itemsize
    factor = (0.5 if direct == "mixed" else 1.0) * double * A.n / (6.0 * k) + (
        2.0 * double if direct == "mixed" else 0.0
    )
    return factor - 4.5 * rank**2 / (A.n * k)
