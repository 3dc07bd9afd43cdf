"""Block conjugate gradients for (A + c I) X = B with a Nystrom preconditioner that works for every ridge c."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
from scipy.sparse import csr_array

from dmo.blocks import row_blocks
from dmo.errors import UserError
from dmo.hashing import digest
from dmo.linalg.linear import IllConditioned, LinearSolver, Solution
from dmo.linalg.operators import Operator
from dmo.linalg.pivoted_cholesky import Columns, rpcholesky
from dmo.linalg.rows import WorkerRows, beside, inner, lengths, mapped, settle, summed
from dmo.linalg.tall import orthonormalize
from dmo.linalg.tiles import home_of
from dmo.progress import stage
from dmo.stores.checkpoints import Arrays, Checkpoint

_STRIP = 4096
# Number of products after which the client copies the state of a search from the workers. If a worker is lost, the
# search resumes from this copy.
_SAVED = 16
# Number of products after which the true residual is computed, to detect accumulated floating-point errors.
_LOOK = 40


def default_rank(n: int) -> int:
    """Return the default rank of the preconditioner for n samples."""
    return max(1, min(1000, n // 5))


@dataclass(frozen=True, eq=False)
class NystromPreconditioner:
    """Low-rank approximation U diag(values) U' of A that preconditions A + c I for every ridge c.

    Frangella, Tropp, Udell 2023, eq. 1.3, with columns from randomly pivoted Cholesky.
    """

    basis: Any  # Orthonormal columns U (n x r) in the precision of A, or a function that returns U on the workers.
    values: np.ndarray  # Eigenvalues (r) in ascending order.

    @classmethod
    def of(cls, A: Operator, rank: int, random_state: int | None = None) -> NystromPreconditioner:
        """Build the preconditioner from columns of A that randomly pivoted Cholesky chooses."""
        home = home_of(A, A.n * rank)
        if home is None:
            return cls(*_approximated(A, lambda index: np.asarray(A.columns(index)), rank, random_state))

        def make() -> tuple[Any, np.ndarray]:
            basis, values = _approximated(A, A.columns, rank, random_state)
            # Compute the basis now: a lazy expression would compute the basis again at every use.
            basis.futures()
            return basis, values

        def kept() -> tuple[Any, np.ndarray]:
            # If a worker is lost, its rows move to other workers, so look up the workers again.
            place = home_of(A)
            assert place is not None
            found: tuple[Any, np.ndarray] = place.keep(make)
            return found

        return cls(lambda: kept()[0], home.retried(kept)[1])

    def _basis(self, R: Any) -> Any:
        return beside(R, self.basis() if callable(self.basis) else self.basis)

    def measured(self, R: Any) -> tuple[np.ndarray, np.ndarray]:
        """Compute the norms (k) of residuals R (n x k) and the product U'R in one communication round."""
        squares, along = summed(_along, R, self._basis(R))
        return np.sqrt(squares), along.astype(np.float64)

    def apply(self, R: Any, along: np.ndarray, ridge: float) -> Any:
        """Apply the inverse preconditioner for A + ridge I to residuals R (n x k), where `along` is U'R."""
        if not self.values.size:
            return R
        basis = self._basis(R)
        along = along * ((self.values[0] + ridge) / (self.values + ridge) - 1.0)[:, None]
        return R + basis @ along.astype(basis.dtype)

    def products(self, ridge: float, tol: float) -> float:
        """Predict the number of products of conjugate gradients from a bound on the condition number."""
        left = 1.0 + float(self.values[0] if self.values.size else 0.0) / ridge
        return 1.0 + 0.5 * float(np.sqrt(left) * np.log(2.0 / tol))


def _approximated(A: Operator, columns: Columns, rank: int, random_state: int | None) -> tuple[Any, np.ndarray]:
    """Compute the orthonormal columns U (n x r) and the eigenvalues of a low-rank approximation of A."""
    F = rpcholesky(A.diagonal(), columns, rank, random_state).factor
    values, vectors = np.linalg.eigh(summed(_squares, F)[0])
    keep = values > 1e-10 * values.max(initial=0.0)
    turn = vectors[:, keep] / np.sqrt(values[keep])
    return mapped(_turned, F, turn, columns=turn.shape[1]), values[keep]


def _along(R: np.ndarray, basis: np.ndarray) -> list[np.ndarray]:
    return [(R * R).sum(axis=0), basis.T @ R.astype(basis.dtype)]


def _squares(F: np.ndarray) -> list[np.ndarray]:
    square = np.zeros((F.shape[1], F.shape[1]))
    for where in row_blocks(len(F), _STRIP):
        strip = F[where].astype(np.float64)
        square += strip.T @ strip
    return [square]


def _turned(F: np.ndarray, turn: np.ndarray) -> np.ndarray:
    basis = np.empty((len(F), turn.shape[1]), F.dtype)
    for where in row_blocks(len(F), _STRIP):
        basis[where] = F[where] @ turn
    return basis


def operator_digest(A: Operator) -> str:
    """Compute a fingerprint of an operator from its size, its diagonal, and a product that depends on all entries."""
    probe = np.modf(np.arange(1, A.n + 1) * 0.6180339887498949)[0][:, None] - 0.5
    return digest(A.n, A.dtype.str, A.diagonal(), A.product(probe))


@dataclass
class _Search:
    """State of a block CG search for right-hand sides of unit norm."""

    # `X` contains the current solutions, `R` their residuals, and `P` the next search directions. `size` contains the
    # norms of the last true residuals, and `active` the indices of the columns that have not converged to the tolerance
    # `tol`. `used` counts products with the operator. `lost` counts successive checks in which the true residuals did
    # not decrease.

    X: np.ndarray
    R: np.ndarray
    P: np.ndarray
    size: np.ndarray
    active: np.ndarray
    tol: float
    used: int = 0
    lost: int = 0

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        arrays = {name: np.asarray(getattr(self, name)) for name in ("X", "R", "P", "active")}
        return arrays | {"size": self.size.copy()}, {"finished": False, "used": self.used, "lost": self.lost}


class BlockCG(LinearSolver):
    """Preconditioned block conjugate gradients with one Krylov space for all columns."""

    # Differences from the textbook algorithm:
    #
    # 1. All columns share the search directions P (n x k), so that one product serves all columns. The directions of
    #    one column may resolve an eigenvalue that slows down another column.
    # 2. P is orthonormalized at every step, and directions below 1e-8 are dropped. Dependent columns, such as equal
    #    labels, would make P'(A + c I) P singular, which breaks the textbook block algorithm.
    # 3. In float32, the recursive residual can report 1e-6 while the true residual is 4e-4 to 2e-3. Therefore, the
    #    recursive residual is replaced with the true residual B - (A + c I) X in float64. The replacement happens after
    #    a gain of two digits in float32 (eight in float64), every 40 products, at claimed convergence, and after the
    #    last allowed product.
    # 4. After a replacement, the search keeps its old directions, because conjugate directions converge faster. If the
    #    true residual exceeds 0.7 times its last value, floating-point errors have destroyed conjugacy, and the search
    #    restarts from the residuals. The search stops without convergence after three such failures in a row, or after
    #    the first failure if the recursive residual had claimed progress.
    # 5. Columns whose true residual has converged are not updated again. Later steps would only add rounding errors to
    #    these columns, and their small residuals would yield dependent directions.
    # 6. The preconditioner approximates A without the ridge. The ridge is added to the eigenvalues of the
    #    preconditioner when it is applied, so that one preconditioner serves a whole regularization path.
    # 7. A direction of negative curvature raises an error that names the precision. For a positive semidefinite kernel,
    #    negative curvature means that the ridge is below the rounding errors of the kernel entries.
    #
    # Products use the precision of A. All right-hand sides are scaled to unit norm, so that small columns count
    # equally. Inside the context `checkpoints`, an interrupted search resumes and a finished search is not repeated.
    #
    # Source: O'Leary 1980; residual replacement: van der Vorst, Ye 2000.

    method = "cg"

    def __init__(self, A: Operator, ridge: float, preconditioner: NystromPreconditioner, tol: float, max_products: int):
        super().__init__(A, ridge, tol)
        self.preconditioner, self.max_products = preconditioner, max_products

    def inverse_diagonal(self) -> np.ndarray:
        raise UserError(
            "leave-one-out scores need a factorized kernel, and this kernel is solved by conjugate gradients; "
            "use decoder=Scores(standardize=0), or a kernel that fits in memory"
        )

    @cached_property
    def _digest(self) -> str:
        """Fingerprint of everything that determines a solution, except right-hand side, start and tolerance."""
        basis = self.preconditioner.basis
        known = self.preconditioner.values, None if callable(basis) else basis
        return digest(operator_digest(self.A), self.ridge, self.max_products, known)

    def _solve(self, B: Any, x0: Any, check: bool, tol: float) -> Solution:
        # Right-hand sides on workers belong to an outer search that restarts as a whole, so save no checkpoints for
        # them.
        kept = Checkpoint("solve", None if isinstance(B, WorkerRows) else lambda: digest(self._digest, tol, B, x0))
        found = kept.load()
        if found is not None and found[1]["finished"]:
            X, residuals, iterations = found[0]["X"], found[0]["residuals"], int(found[1]["used"])
        else:
            X, residuals, iterations = self._columns(B, x0, kept, found, tol)
            kept.finish({"X": X, "residuals": residuals}, {"finished": True, "used": iterations})
        return Solution(X, iterations, residuals, bool((residuals <= tol).all()), self.method)

    def _columns(
        self,
        B: Any,
        x0: Any,
        kept: Checkpoint,
        found: tuple[Arrays, dict[str, Any]] | None,
        tol: float,
    ) -> tuple[Any, np.ndarray, int]:
        """Solve for the nonzero columns, which are scaled to unit norm.

        Return the solution, the relative residuals and the number of products.
        """
        scale = lengths(B)
        some = np.flatnonzero(scale > 0)  # Zero columns have the solution zero.
        X, residuals = mapped(_zeros, B), np.zeros(B.shape[1])
        if not some.size:
            return X, residuals, 0
        length = scale[some]
        there = isinstance(B, WorkerRows)
        size = np.inf if callable(self.preconditioner.basis) else B.size
        saved = [] if found is None else [found]

        def work() -> _Search:
            home = None if there else home_of(self.A, size)

            def placed(array: Any) -> Any:
                return array if home is None else home.send(array)

            right = placed(B[:, some])
            if saved:
                arrays, told = saved[-1]
                tall = {name: placed(arrays[name]) for name in ("X", "R", "P")}
                tall["size"] = arrays["size"].copy()
                search = _Search(**arrays | tall, tol=tol, used=int(told["used"]), lost=int(told["lost"]))
            else:
                start, R = self._start(right, None if x0 is None else placed(x0[:, some]), length)
                search = self._begin(start / length, R / length, tol)
            self._run(right / length, search, kept, saved if home else None)
            return search if there else replace(search, X=np.asarray(search.X))

        home = None if there else home_of(self.A, size)
        search = work() if home is None else home.retried(work, lambda: int(saved[-1][1]["used"]) if saved else 0)
        X[:, some], residuals[some] = search.X, search.size
        X *= scale
        # Compute the lazy expression X now, because otherwise it keeps the arrays of the search in memory.
        settle(X)
        return X, residuals, search.used

    def _start(self, B: np.ndarray, x0: np.ndarray | None, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return an initial solution and its residuals. A column starts at zero if zero is at least as good as x0."""
        if x0 is None:
            return mapped(np.zeros_like, B), B
        R = self._residual(B, x0)
        better = lengths(R) < length
        return mapped(_where, x0, better, 0.0), mapped(_where, R, better, B)

    def _begin(self, X: np.ndarray, R: np.ndarray, tol: float) -> _Search:
        size, along = self.preconditioner.measured(R)
        active = np.flatnonzero(size > tol)
        return _Search(X, R, self._directions(R[:, active], along[:, active]), size, active, tol)

    def _run(
        self, B: np.ndarray, at: _Search, kept: Checkpoint, saved: list[tuple[Arrays, dict[str, Any]]] | None
    ) -> None:
        """Iterate until all columns converge, progress stops, or the maximum number of products is reached.

        `saved` receives a copy of the state every 16 products, because workers may lose the state.
        """
        # A recursive residual that has decreased by more than this factor deviates from the true residual.
        gain = 1e-2 if self.A.dtype == np.float32 else 1e-8
        while at.active.size and at.used < self.max_products and at.P.shape[1]:
            if kept.due():
                kept.save(*at.state())
            if saved is not None and at.used and at.used % _SAVED == 0:
                saved[:] = [at.state()]
            active, P = at.active, at.P
            Q = self.A @ P + self.ridge * P
            at.used += 1
            curvature, downhill = inner(P, Q, at.R[:, active])
            factor = self._factor(curvature)
            step = scipy.linalg.cho_solve((factor, True), downhill, check_finite=False)
            at.X[:, active] += P @ step
            at.R[:, active] -= Q @ step
            settle(at.X, at.R, Q)
            claimed, along = self.preconditioner.measured(at.R[:, active])
            done = at.used == self.max_products or claimed.max() <= 0.5 * at.tol
            look, lost = at.used % _LOOK == 0, False
            if done or look or np.median(claimed / at.size[active]) <= gain:
                at.R[:, active] = self._residual(B[:, active], at.X[:, active])
                settle(at.R)
                before = at.size[active]
                at.size[active], along = self.preconditioner.measured(at.R[:, active])
                lost = bool(np.linalg.norm(at.size[active]) > 0.7 * np.linalg.norm(before))
                at.lost = at.lost + 1 if lost else 0
                if at.lost > (2 if look else 0):  # Rounding errors prevent a further decrease of the true residuals.
                    break
                at.active = active[at.size[active] > at.tol]
                along = along[:, at.size[active] > at.tol]
            at.P = self._directions(at.R[:, at.active], along, *(() if lost else (P, Q, factor)))
        if at.active.size and not at.P.shape[1]:
            at.size[at.active] = lengths(self._residual(B[:, at.active], at.X[:, at.active]))

    def _directions(
        self,
        R: np.ndarray,
        along: np.ndarray,
        P: np.ndarray | None = None,
        Q: np.ndarray | None = None,
        factor: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute the next orthonormal directions: preconditioned residuals made conjugate to the last block P."""
        # The Gram matrix of the new directions follows from known inner products, which saves a communication round. If
        # the new directions are much shorter than the residuals, their Gram matrix is inaccurate, and `orthonormalize`
        # detects the inaccuracy.
        Z = self.preconditioner.apply(R, along, self.ridge)
        square, *others = inner(Z, Z, *(() if P is None else (Q, P)))
        size = np.maximum(np.sqrt(square.diagonal()), np.finfo(float).tiny)
        Z, square = Z / size, square / size / size[:, None]
        if P is not None:
            conjugate, inside = (other.T / size for other in others)
            back = scipy.linalg.cho_solve((factor, True), conjugate, check_finite=False)
            Z -= P @ back
            inside = inside.T @ back
            square += back.T @ back - inside - inside.T
        return orthonormalize(Z, tol=1e-8, square=square)

    def _factor(self, curvature: np.ndarray) -> np.ndarray:
        """Compute the lower Cholesky factor of the curvature matrix P'(A + c I) P."""
        if not np.isfinite(curvature).all():
            raise UserError("solve: a product with the operator is not finite; check the kernel for NaN and inf")
        factor, info = scipy.linalg.lapack.dpotrf((curvature + curvature.T) / 2, lower=1)
        if info != 0:
            raise IllConditioned(
                f"conjugate gradients met a direction of negative curvature: the kernel plus ridge {self.ridge:g} "
                f"is not positive definite in {self.A.dtype}; raise the ridge or use float64 kernels"
            )
        return factor


def _zeros(B: np.ndarray) -> np.ndarray:
    return np.zeros(B.shape)


def _where(A: np.ndarray, chosen: np.ndarray, B: np.ndarray | float) -> np.ndarray:
    return np.where(chosen, A, B)


def solve_shifted(
    A: csr_array, shifts: np.ndarray, B: np.ndarray, tol: float = 1e-8, max_steps: int = 10_000
) -> tuple[np.ndarray, int, float]:
    """Solve (A + s_j I) v_j = b_j for all L columns b_j of B by conjugate gradients with a diagonal preconditioner.

    Return the solutions (n x L), the number of steps, and the largest relative residual.
    """
    diagonal = A.diagonal()[:, None] + shifts
    scale = np.linalg.norm(B, axis=0)
    if (diagonal <= 0).any():
        raise _indefinite()
    V, R = np.zeros(B.shape), B.astype(np.float64)
    P = R / diagonal
    rz = np.einsum("ij,ij->j", R, P)
    active, steps = np.flatnonzero(scale > 0), 0
    with stage("label propagation (steps)") as advance:
        while len(active) and steps < max_steps:
            p = P[:, active]
            Ap = A @ p + p * shifts[active]
            curvature = np.einsum("ij,ij->j", p, Ap)
            if (curvature <= 0).any():
                raise _indefinite()
            step = rz[active] / curvature
            V[:, active] += step * p
            R[:, active] -= step * Ap
            z = R[:, active] / diagonal[:, active]
            new = np.einsum("ij,ij->j", R[:, active], z)
            P[:, active] = z + (new / rz[active]) * p
            rz[active] = new
            steps += 1
            advance(1)
            active = active[np.linalg.norm(R[:, active], axis=0) > tol * scale[active]]
    true = np.linalg.norm(B - (A @ V + V * shifts), axis=0)
    return V, steps, float((true / np.where(scale > 0, scale, 1.0)).max(initial=0.0))


def _indefinite() -> UserError:
    return UserError("label propagation: a linear system is not positive definite; lower correlation")
