"""Solutions of (A + c I) X = B for a symmetric positive semidefinite operator A and a ridge c > 0.

Direct solvers of (A + c I) X = B: Cholesky, mixed precision, Woodbury.

Every solution is held against its equation: wholly where `check` asks for it, else in a few sums of its columns, at the
price of one narrow product. One that is off by more than a millionth of its right-hand side is refined, and a warning says
so where that does not help.

`factorize` chooses the method and returns a solver to use many times: Woodbury for a low-rank A, Cholesky while the
factor fits in memory and pays (in float32 with refinement where that does), otherwise block conjugate gradients with a
Nystrom preconditioner.
"""

from __future__ import annotations

import logging
from typing import Literal

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
from dmo.memory import free_memory

_PROBE_EVERY = 1024
"""Columns between two probes. The first solve with a factor is always probed; what the factorization lost, later ones
lose too, and a float64 product with a float32 kernel of 4500 samples takes as long as solving for 60 columns."""
log = logging.getLogger("dmo")


class _Direct(LinearSolver):
    """A factorization, refined against the true residual where that is asked for and above the tolerance."""

    # The residual B - A X - c X is made with A's own entries in float64, never with the factor: it sees what the
    # factorization lost. Refinement multiplies the error by eps times the condition number a step; where it no longer
    # falls fourfold, rounding in the residual itself has been reached, and more steps only wander.

    _refinements = 3

    def _apply(self, B: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def __init__(self, A: Operator, ridge: float, tol: float):
        super().__init__(A, ridge, tol)
        self._unprobed = np.inf  # columns solved since the last probe
        self._lost = 0.0  # the residual that it found, by the length of the solution

    def _solve(self, B: np.ndarray, x0: np.ndarray | None, check: bool, tol: float) -> Solution:
        found = self._found(B, check, tol)
        if found.residuals is not None and not found.converged:
            warn_of_error(f"a solve by {self.method}", self.ridge, float(found.residuals.max(initial=0.0)))
        return found

    def _found(self, B: np.ndarray, check: bool, tol: float) -> Solution:
        """The solution, refined where `check` asks for residuals or a probe finds it wrong."""
        X = self._apply(B)
        if not check and self._passes(B, X, self._allowed(tol)):
            return Solution(X, 0, None, True, self.method)
        return self._refine(B, X, check, tol)

    def _allowed(self, tol: float) -> float:
        """Relative residual up to which a solution is not refined unasked."""
        return max(tol, TOLERATED)

    def _passes(self, B: np.ndarray, X: np.ndarray, allowed: float) -> bool:
        """Whether the solution is right as it is: by a probe, or by what the last one found."""
        self._unprobed += B.shape[1]
        longest = _growth(B, X).max(initial=0.0)
        if self._unprobed < _PROBE_EVERY and 2 * self._lost * longest <= allowed:
            return True
        self._unprobed = 0
        error = self._probe(B, X)
        self._lost = error / longest if longest else 0.0
        return error <= allowed

    def _probe(self, B: np.ndarray, X: np.ndarray) -> float:
        """The largest relative residual of a column; of many columns an estimate to a factor of two, by a product with
        few.
        """
        # The squared length of sums of columns with random signs is that of all columns together on average, so that
        # the narrow product sees every one. What rounding leaves grows with a solution, by which the columns differ.
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
        """Add corrections until all residuals have converged, or, without `check`, a probe says so."""
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
    """|x_j| / |b_j| (k); 0 where b_j is."""
    scale = np.linalg.norm(B, axis=0)
    return np.divide(np.linalg.norm(X, axis=0), scale, out=np.zeros_like(scale), where=scale > 0)


class CholeskySolver(_Direct):
    """One float64 Cholesky factorization: n^3 / 3 multiplications, 8 n^2 bytes, then 2 n^2 per right-hand side."""

    # Rows `last` are factorized after the others: their part of the inverse follows from their part of the factor.

    method = "cholesky"

    def __init__(self, A: Operator, ridge: float, tol: float = 1e-8, last: np.ndarray | None = None):
        super().__init__(A, ridge, tol)
        self._put_last(last)
        self._factor = self._factorized(np.float64)

    def _put_last(self, last: np.ndarray | None) -> None:
        self.last = np.zeros(0, np.intp) if last is None else last  # ascending
        self._is_last = np.zeros(self.A.n, bool)
        self._is_last[self.last] = True
        self._order = np.argsort(self._is_last, kind="stable") if self.last.size else slice(None)

    def _factorized(self, dtype: type[np.floating]) -> np.ndarray:
        n, edge, late = self.A.n, self.A.n - len(self.last), self._is_last
        lender = None if self.last.size else _lender(self.A, np.dtype(dtype))
        matrix = np.zeros((n, n), dtype) if lender is None else lender.matrix
        diagonal = matrix.diagonal().copy()
        for where, strip in self.A.upper():
            rest, some = self._rest(where, strip), late[where.start :]
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
        # LAPACK works on columns: the upper triangle of this row-major array is the lower one of its transpose
        factor = matrix.T
        info = cholesky_in_place(factor)
        if info != 0:
            raise IllConditioned(
                f"the kernel plus ridge {self.ridge:g} is not positive definite (Cholesky stopped at row {info} of "
                f"{n}); raise the ridge, take float64 kernels, or check that the kernel is positive semidefinite"
            )
        return factor

    def _rest(self, where: slice, strip: np.ndarray) -> np.ndarray:
        """What is factorized of a strip of the upper triangle."""
        return strip

    def _apply(self, B: np.ndarray) -> np.ndarray:
        X, _ = scipy.linalg.lapack.dpotrs(self._factor, B[self._order], lower=1)
        return self._as_before(X)

    def _as_before(self, X: np.ndarray) -> np.ndarray:
        """Rows in the operator's order, from the factor's."""
        if not self.last.size:
            return X
        out = np.empty_like(X)
        out[self._order] = X
        return out

    def inverse_diagonal(self) -> np.ndarray:
        """diag((A + c I)^-1) (n): what leave-one-out predictions need. Takes the factor's memory once more while it runs."""
        return self._as_before(_inverse_diagonal(self._factor))

    def last_diagonal(self) -> np.ndarray:
        """Compute the entries of that diagonal at the rows `last`, from their part of the factor alone."""
        edge = self.A.n - len(self.last)
        return _inverse_diagonal(self._factor[edge:, edge:].copy(order="F"))


def _lender(A: Operator, dtype: np.dtype) -> Dense | None:
    """The matrix that an operator is made of, where a float32 factor may lie in one array with it."""
    while isinstance(A, Scaled | Centered | Congruent):
        A = A.inner
    return A if isinstance(A, Dense) and A.lends and A.dtype == dtype == np.float32 else None


def _inverse_diagonal(factor: np.ndarray) -> np.ndarray:
    """diag((T T')^-1) of a lower triangle T (n x n)."""
    inverse, _ = scipy.linalg.get_lapack_funcs("trtri", (factor,))(factor, lower=1)
    out = np.empty(len(factor))
    for where in row_blocks(len(factor), 512):
        columns = inverse[where.start :, where]
        columns[: where.stop - where.start] = np.tril(columns[: where.stop - where.start])
        out[where] = np.einsum("ij,ij->j", columns, columns, dtype=np.float64)
    return out


_LEADING, _FEW = 128, 32
"""Columns that are taken out of a matrix before it is factorized in float32: of real views of 4000 samples and a ridge of .1,
1, 32 and 128 leave residuals of 1e-5, 1e-6 to 2e-6 and 8e-7. The few where solutions are refined anyhow, or cheaply."""


class MixedSolver(CholeskySolver):
    """A float32 Cholesky factorization, every solution refined to the tolerance against its float64 residual."""

    # Half the time and memory of the float64 factor; each refinement costs one float64 product with A.
    #
    # 1. What float32 loses is rounding times the largest eigenvalues over the ridge, and a kernel's largest are far
    #    above all others: that of a constant is n / 2, the next ones a hundredth. So a low-rank part is taken out
    #    first, A = E + F F', and E + c I is factorized: of a Gaussian kernel of 6000 samples with a ridge of .1 the
    #    residual is 6e-7 in place of 3e-4, and 5e-13 in place of 5e-8 after one refinement.
    # 2. E is worked out in float64 and rounded once, when F F' has left small entries. F F' is a Nystrom
    #    approximation, which leaves E positive semidefinite; A less eigenvectors as far as an iteration has found
    #    them need not be.
    # 3. X = S B - S F (I + F'S F)^-1 F'S B with S = (E + c I)^-1. F'S B is made from S B, not as (S F)'B, and F'S F
    #    is not made symmetric: they must fit each other as they were rounded, or their rounding times the eigenvalues
    #    that were taken out is back.
    # 4. Where rounding makes the factor useless (a ridge below about 1e-7 of the largest eigenvalue) a float64 one
    #    takes its place.
    #
    # Higham, Mary 2022, section 5 (iterative refinement with a factor of lower precision); Chen, Epperly, Tropp,
    # Webber 2025.

    method = "mixed"
    _refinements = 8

    def __init__(
        self, A: Operator, ridge: float, tol: float = 1e-8, last: np.ndarray | None = None, rank: int = _LEADING
    ):
        _Direct.__init__(self, A, ridge, tol)
        self._put_last(last)
        self._lead = _leading(A, rank)
        try:
            self._factor = self._factorized(np.float32)
            self._correct()
        except (IllConditioned, np.linalg.LinAlgError):
            self._double()

    def _rest(self, where: slice, strip: np.ndarray) -> np.ndarray:
        strip -= self._lead[where] @ self._lead[where.start :].T
        return strip

    def _correct(self) -> None:
        """Work out what brings F F' back."""
        self._solved = self._single(self._lead)
        small = self._lead.T @ self._solved
        small.flat[:: len(small) + 1] += 1.0
        self._back = scipy.linalg.solve(small.T, self._solved.T, overwrite_a=True, check_finite=False).T

    def _single(self, B: np.ndarray) -> np.ndarray:
        """(E + c I)^-1 B by the float32 factor."""
        scale = np.linalg.norm(B, axis=0).clip(min=np.finfo(float).tiny)
        right = np.empty(B.shape, np.float32, order="F")
        np.divide(B[self._order], scale, out=right, casting="same_kind")
        X, _ = scipy.linalg.lapack.spotrs(self._factor, right, lower=1, overwrite_b=1)
        return self._as_before(np.multiply(X, scale, order="C"))

    def _apply(self, B: np.ndarray) -> np.ndarray:
        if self._factor.dtype == np.float64:
            return super()._apply(B)
        X = self._single(B)
        X -= self._back @ (self._lead.T @ X)
        return X

    def _allowed(self, tol: float) -> float:
        # a float32 factor is a preconditioner: no solution is taken unrefined that is not within the tolerance
        return tol if self._factor.dtype == np.float32 else super()._allowed(tol)

    def _found(self, B: np.ndarray, check: bool, tol: float) -> Solution:
        found = super()._found(B, check, tol)
        if found.converged or self._factor.dtype == np.float64:
            return found
        log.info("solve: rounding stops the refinement of the float32 factor; taking a float64 one")
        self._double()
        self._unprobed = np.inf
        return super()._found(B, check, tol)

    def _double(self) -> None:
        self._factor = np.empty((0, 0))  # frees the float32 one
        self._lead = np.zeros((self.A.n, 0))
        self._factor = self._factorized(np.float64)

    def inverse_diagonal(self) -> np.ndarray:
        """diag((A + c I)^-1) (n); from a float64 factor, which is kept, where solutions are not within ten times the tolerance
        without refinement."""
        if not self._serves(10 * self.tol):
            return super().inverse_diagonal()
        return super().inverse_diagonal() - np.einsum("ij,ij->i", self._back, self._solved)

    def last_diagonal(self) -> np.ndarray:
        """Compute it from a float64 factor if unrefined solutions are not within `_LOOSE`."""
        if not self._serves(_LOOSE):
            return super().last_diagonal()
        taken = np.einsum("ij,ij->i", self._back[self.last], self._solved[self.last])
        return super().last_diagonal() - taken

    def _serves(self, tol: float) -> bool:
        """Whether solutions of the float32 factor are within a tolerance as they are; else a float64 one takes its place."""
        if self._factor.dtype == np.float32:
            B = np.random.default_rng(0).standard_normal((self.A.n, PROBES))
            if self._probe(B, self._apply(B)) <= tol:
                return True
            self._double()
        return False


_LOOSE = 1e-3
"""Relative residual of an inverse whose diagonal decides label sets alone: their thresholds are known to a tenth at best."""


def _leading(A: Operator, rank: int) -> np.ndarray:
    """F (n x r, float64) with A - F F' positive semidefinite and small; of no columns where A is not semidefinite."""
    # A S (S'A S)^-1 S'A for the span S of pivots' columns: one product more, and a third of the residual that these
    # columns themselves leave.
    try:
        basis = NystromPreconditioner.of(A, min(rank, A.n // 32), 0).basis
    except np.linalg.LinAlgError:
        return np.zeros((A.n, 0))
    image = (A @ basis).astype(np.float64)
    values, vectors = np.linalg.eigh(basis.T.astype(np.float64) @ image)
    keep = values > 1e-5 * values.max(initial=0.0)  # what is below is rounding of a float32 image, and small
    return image @ (vectors[:, keep] / np.sqrt(values[keep]))


class Spectrum:
    """Eigenpairs of A in float64, from which A + c I is solved for every ridge c."""

    # 8 n^2 bytes kept, four times that while it is worked out. What takes n^2 k for a block of right-hand sides, its
    # product with the eigenvectors, is kept for the next ridge.

    def __init__(self, A: Operator):
        self.values, self.vectors = np.linalg.eigh(A.dense(np.float64))
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    def coordinates(self, B: np.ndarray) -> np.ndarray:
        """Turn a block into coordinates of the eigenvectors.

        B (n, k) -> (n, k)
        """
        if self._last is None or not np.array_equal(self._last[0], B):
            self._last = B.copy(), self.vectors.T @ B
        return self._last[1]


class SpectralSolver(_Direct):
    """Solves (A + c I) X = B by the eigenpairs of A.

    Two products a block, one where another ridge has had it, and the inverse's diagonal for n^2 multiplications.
    """

    method = "spectral"

    def __init__(self, A: Operator, ridge: float, spectrum: Spectrum, tol: float = 1e-8):
        super().__init__(A, ridge, tol)
        self._spectrum, self._shifted = spectrum, spectrum.values + ridge
        if not self._shifted[0] > 0:
            raise IllConditioned(
                f"the kernel plus ridge {ridge:g} is not positive definite (the kernel's least eigenvalue is "
                f"{spectrum.values[0]:.2g}); raise the ridge, take float64 kernels, or check that the kernel is positive "
                "semidefinite"
            )

    def _apply(self, B: np.ndarray) -> np.ndarray:
        return np.asarray(self._spectrum.vectors @ (self._spectrum.coordinates(B) / self._shifted[:, None]))

    def inverse_diagonal(self) -> np.ndarray:
        """Work out the diagonal of the inverse.

        -> (n,)
        """
        V = self._spectrum.vectors
        return np.concatenate([np.square(V[where]) @ (1 / self._shifted) for where in row_blocks(self.A.n, 512)])


class WoodburySolver(_Direct):
    """Push-through for A = F F': (B - F (F'F + c I)^-1 F'B) / c, right as far as its own size goes."""

    # F' times this solution is not: it would be off by |F|^2 / c roundings. Who wants a function of new rows takes
    # the `loadings` of the `system`, and who smooths its `smooth`.
    #
    # `factor`: F, None where there is none.

    method = "woodbury"

    def __init__(self, A: Operator, ridge: float, factor: Factor | None, tol: float = 1e-8):
        super().__init__(A, ridge, tol)
        if factor is None:
            raise UserError(f"woodbury needs a low-rank operator, got {type(A).__name__}; take 'cholesky' or 'cg'")
        self.system = FactorSystem(factor, ridge)

    def _apply(self, B: np.ndarray) -> np.ndarray:
        return (B - self.system.smooth(B)) / self.ridge

    def _probe(self, B: np.ndarray, X: np.ndarray) -> float:
        """Nothing more to do: the system has measured its error, and told of it."""
        return 0.0

    def inverse_diagonal(self) -> np.ndarray:
        """diag((A + c I)^-1) (n)."""
        return (self.system.unfitted() + self.system.intercept) / self.ridge


SolveMethod = Literal["auto", "direct", "cholesky", "mixed", "cg", "woodbury"]
_PRODUCTS = 500  # with A, that conjugate gradients may use; a factorization costs about n / (6 k) of them, see `_saved`
EXACT = 1e-8
"""Relative residual of a solve from which more digits are rounding of the entries."""
COEFFICIENTS = 1e-6
"""Relative residual of coefficients whose products with the kernel are dear: values, and scores, are off by no more than that,
beside the 4e-6 that eigenpairs to 1e-6 leave them, and the last two digits are a fifth of the products (of 4000 samples and a
ridge of .1 15 where 12 do)."""
SCORES = 1e-5
"""Relative residual of solves whose held-out scores are only compared: they are off by no more than that."""


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
    """Make a solver of (A + ridge I) X = B, to use many times; `last`: rows whose part of the inverse a factor tells."""
    if not ridge > 0:
        raise UserError(f"ridge must be positive, got {ridge}; the smallest useful value is the kernel's noise floor")
    factor = low_rank_factor(A) if method in ("auto", "woodbury") else None
    if method == "direct":
        method = _direct_method(A, ridge, columns, tol) or "cholesky"
    if method == "auto":
        direct, rank = _direct_method(A, ridge, columns, tol), default_rank(A.n)
        asked = (columns or 0) + (0 if last is None else len(last))  # whose entries are solved for without a factor
        saved = 0.0
        if direct is not None and columns is not None:
            # a preconditioner that takes as long as the factor is none to judge by: an eighth of its columns is
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
    """Find whether a system of the factor's smaller side fits in half of the free memory."""
    return 8.0 * min(factor.shape) ** 2 <= _memory()


def _memory() -> float:
    """Bytes that a factor may take: half of what is free."""
    return free_memory() / 2


def _direct_method(A: Operator, ridge: float, columns: int | None, tol: float) -> Literal["cholesky", "mixed"] | None:
    """The Cholesky factor that fits in memory and is cheapest for `columns` right-hand sides (None: many)."""
    size, memory = float(A.n) * A.n, _memory()
    fine = A.dtype == np.float32 and ridge >= 1e-7 * float(A.diagonal().sum(dtype=np.float64))
    refined = fine and _is_refined(A, ridge, tol)
    worth = fine and not (refined and columns is None) and _spared(A.n, columns or 0, refined) > 0
    if fine and (8 * size > memory >= 4 * size or worth):
        return "mixed"
    return "cholesky" if 8 * size <= memory else None


def _is_refined(A: Operator, ridge: float, tol: float) -> bool:
    """Whether what a float32 factor loses, the largest rank taken out, is above the tolerance."""
    return ridge * tol < 1e-7 * float(A.diagonal().mean(dtype=np.float64))


def _rank(columns: int | None, refined: bool) -> int:
    """Columns that are taken out: to refine some solutions costs less than to take out many."""
    return _FEW if refined or (columns is not None and columns <= _LEADING) else _LEADING


def _spared(n: int, columns: int, refined: bool) -> float:
    """What a float32 factor spares beside a float64 one, in products with a column in float32."""
    # n^3 / 6 multiplications in the one and n^3 / 3, in this unit, in the other. Taking the leading part out costs 2.5
    # columns for each of its own. A solution costs half of one by a float64 factor; a refined one twice as much, by two
    # solves and a product in float64, of few columns as much as of 32.
    rank = _rank(columns or None, refined)
    return n / 6 - 2.5 * rank + (columns if rank == _LEADING else -2 * max(32, columns))


def _saved(A: Operator, columns: int, direct: str, rank: int) -> float:
    """Products A @ B (B: n x columns) that a Cholesky factor costs, less those that a preconditioner of a rank does."""
    # In one precision n / (6 k): n^3 / 6 multiplications against n^2 k. Products with fewer than 32 columns take as
    # long as with 32: they wait for memory. A float32 factor takes half the time, and two float64 products. The
    # preconditioner of rank r takes 4.5 n r^2: its columns, their basis in float64, and a small eigenproblem.
    k = max(32, columns)
    double = 8.0 / A.dtype.itemsize
    factor = (0.5 if direct == "mixed" else 1.0) * double * A.n / (6.0 * k) + (
        2.0 * double if direct == "mixed" else 0.0
    )
    return factor - 4.5 * rank**2 / (A.n * k)
