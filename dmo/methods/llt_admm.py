"""The solver of [LLT 4]: alternating directions on F = Z, with one kernel solve and one rotation per iteration.

The quadratic part sees no frames, since they are orthonormal, and the loss sees no kernel. So with the split Z = F
    F-step:  (K + I / (rho s)) X = V - 1b', 1'X = 0   per eigenvalue s of the coupling S: one factorisation serves all;
    Z-step:  Z = Y + U prox_{C/rho}(U' (. - Y)) per sample.
Written as a fixed point of one n x L block (Douglas-Rachford), over-relaxed, and extrapolated by Anderson's method.
Sources: Boyd et al. 2011, 3.1-3.4; Eckstein, Bertsekas 1992 (relaxation); O'Donoghue 2021 (extrapolation as in SCS 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from dmo.methods.llt import Certificate, Problem, certificate
from dmo.operators import LowRank, Operator
from dmo.progress import stage
from dmo.solve import Method, NystromPreconditioner, Solver, default_rank, factorise

_RELAXATION = 1.6
_CHECK = 25  # iterations between two certificates
_REBALANCE = (15, 45, 105, 225, 465)  # iterations at which rho may change
_BALANCE = 0.05  # wanted ratio of the relative primal to the relative dual residual: see `_rebalanced`
_STEP = 4.0  # rho is a power of this, so that a path of problems meets the same factorisations again
_ONE_THREAD = (
    2**25
)  # numbers in a kernel or factor up to which more BLAS threads gain little and may wait for each other
_MEMORY = 15  # pairs that the extrapolation remembers


@dataclass(frozen=True)
class State:
    """Where an iteration stands, to start another: the split outputs Z and the dual coefficients A (n x L), rho."""

    split: np.ndarray
    dual: np.ndarray
    rho: float


@dataclass(frozen=True)
class Fit:
    """A solution.

    `dual` A (n x L), `bias` (L), `certificate`, `support`: the samples outside the tube in a direction of their frame,
    those with a nonzero dual coefficient (row numbers), `iterations`, `factorisations` made for it, the relative
    `residuals` (primal, dual), `converged`, and the `state` that warm-starts a neighbouring problem.
    """

    dual: np.ndarray
    bias: np.ndarray
    certificate: Certificate
    support: np.ndarray
    iterations: int
    factorisations: int
    residuals: tuple[float, float]
    converged: bool
    state: State


class Factors:
    """Solvers of K + c I, made once per c and kept: the last `keep` of them.

    Arguments: `kernel`; `method` as in `solve.factorise`; `keep`: how many factors of 8 n^2 bytes (8 r^2 for a low-rank
    kernel) may be held at once.
    """

    def __init__(self, kernel: Operator, method: Method = "auto", keep: int = 3, random_state: int | None = None):
        self.kernel, self.method, self.keep, self.random_state = kernel, method, keep, random_state
        self.made = 0
        self._solvers: dict[float, tuple[Solver, np.ndarray]] = {}
        self._preconditioner: NystromPreconditioner | None = None

    @property
    def noise_floor(self) -> float:
        """The smallest c worth adding to K: the rounding of its entries, summed up."""
        unit = 1e-7 if self.kernel.dtype == np.float32 else 1e-14
        low_rank = isinstance(self.kernel, LowRank)
        return (1e-14 if low_rank else unit) * self.kernel.n * float(np.abs(self.kernel.diagonal()).max(initial=0.0))

    def at(self, c: float) -> tuple[Solver, np.ndarray]:
        """The solver of K + c I, and its solution for a right-hand side of ones (n x 1)."""
        found = self._solvers.pop(c, None)
        if found is None:
            while len(self._solvers) >= max(1, self.keep):
                del self._solvers[next(iter(self._solvers))]
            if self.method == "cg" and self._preconditioner is None:
                self._preconditioner = NystromPreconditioner.of(
                    self.kernel, default_rank(self.kernel.n), self.random_state
                )
            solver = factorise(
                self.kernel, c, self.method, preconditioner=self._preconditioner, random_state=self.random_state
            )
            found = solver, solver.solve(np.ones((self.kernel.n, 1)), check=False).value
            self.made += 1
        self._solvers[c] = found
        return found


class _QuadraticStep:
    """V -> (A, b): the minimiser of 1/2 tr(A'KAS) + rho/2 |K A S + 1b' - V|^2; its fitted outputs are V - A / rho."""

    def __init__(self, problem: Problem, factors: Factors, rho: float):
        self.problem, self.rho = problem, rho
        self.parts: list[tuple[np.ndarray, float, Solver, np.ndarray]] = []
        for scale in np.unique(problem.scales[problem.scales > 0]):
            columns = np.flatnonzero(problem.scales == scale)
            self.parts.append((columns, float(scale), *factors.at(1.0 / (rho * float(scale)))))
        self._last: dict[float, np.ndarray] = {}

    def __call__(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        latent = self.problem.to_latent(V)
        bias = latent.mean(axis=0)
        A = self.rho * (latent - bias)  # right for the columns with scale 0
        for columns, scale, solver, ones in self.parts:
            start = self._last.get(scale) if solver.method == "cg" else None
            X = solver.solve(latent[:, columns], x0=start, check=False).value
            self._last[scale] = X
            bias[columns] = X.sum(axis=0) / ones.sum()
            A[:, columns] = (X - ones * bias[columns]) / scale
        return self.problem.from_latent(A), self.problem.from_latent(bias)


class _Extrapolation:
    """Anderson's method (type II) for s = s + g(s), with a way back when a step makes |g| more than twice as large."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all pairs: the map has changed."""
        self._last: tuple[np.ndarray, np.ndarray] | None = None  # s + g and g of the point before
        self._moves: list[np.ndarray] = []  # differences of s + g
        self._changes: list[np.ndarray] = []  # differences of g
        self._gram = np.zeros((0, 0))
        self._extrapolated = False

    def next(self, s: np.ndarray, g: np.ndarray) -> np.ndarray:
        """The next point from s and its residual g."""
        plain = s + g
        if self._last is not None:
            before, residual = self._last
            if self._extrapolated and np.linalg.norm(g) > 2 * np.linalg.norm(residual):
                self.forget()
                return before
            self._remember(plain - before, g - residual)
        self._last = plain, g
        self._extrapolated = bool(self._changes)
        if not self._changes:
            return plain
        gram = self._gram + 1e-10 * np.trace(self._gram) * np.eye(len(self._gram))
        weights = np.linalg.lstsq(gram, [np.vdot(change, g) for change in self._changes])[0]
        for weight, move in zip(weights, self._moves, strict=True):
            plain = plain - weight * move
        return plain

    def _remember(self, move: np.ndarray, change: np.ndarray) -> None:
        if len(self._moves) == _MEMORY:
            del self._moves[0], self._changes[0]
            self._gram = self._gram[1:, 1:]
        self._moves.append(move)
        self._changes.append(change)
        m = len(self._changes)
        gram = np.empty((m, m))
        gram[:-1, :-1] = self._gram
        gram[-1] = gram[:, -1] = [np.vdot(old, change) for old in self._changes]
        self._gram = gram


class _Iteration:
    """One run: s is the point that is iterated, Z = prox(s), A and bias the quadratic step's, F its fitted outputs."""

    def __init__(self, problem: Problem, factors: Factors, start: State | None, rho: float | None):
        self.problem, self.factors = problem, factors
        self._largest = 1.0 / (factors.noise_floor * float(problem.scales.max())) if factors.noise_floor > 0 else np.inf
        if start is None:
            Z = np.broadcast_to(np.median(problem.targets, axis=0), problem.targets.shape)
            start = State(Z, np.zeros(Z.shape), self._quantised(_first_rho(problem)))
        self.rho = start.rho if rho is None else rho
        self.s = start.split - problem.rotate_back(_clip(problem, problem.rotate(start.dual))) / self.rho
        self._step = _QuadraticStep(problem, factors, self.rho)
        self._extrapolation = _Extrapolation()

    def _quantised(self, rho: float) -> float:
        return float(_STEP ** np.floor(np.log(min(rho, self._largest)) / np.log(_STEP) + 0.5))

    def _split(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Z (n x L), and the rotated dual coefficients that belong to it: 0 inside the tube, exactly."""
        R = self.problem.rotate(s - self.problem.targets)
        T = self.problem.loss.prox(R, self.problem.C / self.rho)
        return self.problem.targets + self.problem.rotate_back(T), self.rho * (T - R)

    def evaluate(self) -> None:
        """Both steps from s."""
        self.Z, self.rotated = self._split(self.s)
        self.A, self.bias = self._step(2 * self.Z - self.s)
        self.F = 2 * self.Z - self.s - self.A / self.rho
        self.g = _RELAXATION * (self.F - self.Z)

    def move(self) -> None:
        """On to the next s."""
        self.s = self._extrapolation.next(self.s, self.g)

    def rebalance(self) -> bool:
        """Change rho where the residuals are out of balance; True where it was changed.

        For this loss the iteration is fastest when the relative dual residual, rho |Z' - Z| / |A| of a plain step, is
        about 20 times the relative primal one, |F - Z| / max(|F|, |Y|) with F and Y centred: measured over kernels from
        narrow to broad and C from 0.1 to 100.
        """
        following, _ = self._split(self.s + self.g)
        primal, dual = float(np.linalg.norm(self.F - self.Z)), float(np.linalg.norm(following - self.Z))
        size = float(np.linalg.norm(self.A))
        spread = max(float(np.linalg.norm(M - M.mean(axis=0))) for M in (self.F, self.problem.targets))
        if min(primal, dual, spread, size) <= 0:
            return False
        ratio = (primal / spread) / (self.rho * dual / size)
        rho = self._quantised(self.rho * float(np.clip((ratio / _BALANCE) ** 0.75, _STEP**-3, _STEP**3)))
        if abs(np.log(rho / self.rho)) < 0.9 * np.log(_STEP):
            return False
        self.s = self.Z + (self.s - self.Z) * (self.rho / rho)
        self.rho = rho
        self._step = _QuadraticStep(self.problem, self.factors, rho)
        self._extrapolation.forget()
        return True

    def residuals(self) -> tuple[float, float]:
        """|F - Z| / |F - mean| and |A - rho (Z - s)| / |A|."""
        size = float(np.linalg.norm(self.F - self.Z))
        spread = float(np.linalg.norm(self.F - self.F.mean(axis=0)))
        least = 1e-6 * float(np.linalg.norm(self.problem.targets))
        dual = max(float(np.linalg.norm(self.A)), self.rho * least)
        return _ratio(size, max(spread, least)), _ratio(self.rho * size, dual)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _clip(problem: Problem, W: np.ndarray) -> np.ndarray:
    return np.clip(W, -problem.C, problem.C) if problem.loss.bounded else W


def _first_rho(problem: Problem) -> float:
    """Four times the size of a dual coefficient over that of an output."""
    Y = problem.targets
    spread = float(np.sqrt(np.mean((Y - Y.mean(axis=0)) ** 2))) or 1.0
    slope = 1.0 if problem.loss.bounded else problem.loss.value(np.array([spread])) / spread
    return 4 * problem.C * slope / spread


def admm(
    problem: Problem,
    factors: Factors | None = None,
    start: State | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 5000,
    rho: float | None = None,
) -> Fit:
    """Solve the problem until the relative duality gap is at most `tolerance`.

    Arguments: `factors`: solvers to share with other problems on the same kernel; `start`: the state of a neighbouring
    problem; `tolerance`: difference of the primal and dual objective, both at feasible points, relative to them: it
    bounds the error of the objective; the relative primal and dual residuals must be below its square root too; `rho`:
    keep this penalty instead of balancing the residuals. Returns the iterate of the smallest gap, converged or not.
    """
    if max_iter < 1:
        raise ValueError(f"max_iter = {max_iter}; at least one iteration is needed")
    factors = Factors(problem.kernel) if factors is None else factors
    made = factors.made
    best: Fit | None = None
    with stage("alternating directions") as advance, threadpool_limits(_threads(problem.kernel)):
        run = _Iteration(problem, factors, start, rho)
        for iteration in range(1, max_iter + 1):
            run.evaluate()
            advance(1)
            if iteration % _CHECK == 0 or iteration == max_iter:
                fit = _fit(run, iteration, factors.made - made, tolerance)
                if best is None or fit.certificate.gap <= best.certificate.gap:
                    best = fit
                if fit.converged:
                    return fit
            if rho is not None or iteration not in _REBALANCE or not run.rebalance():
                run.move()
    assert best is not None  # the last iteration is always checked
    return best


def _threads(kernel: Operator) -> int | None:
    numbers = kernel.factor.size if isinstance(kernel, LowRank) else kernel.n**2
    return 1 if numbers <= _ONE_THREAD else None


def _fit(run: _Iteration, iterations: int, factorisations: int, tolerance: float) -> Fit:
    multiplier = run.problem.rotate_back(run.rotated)
    proof, residuals = certificate(run.problem, run.A, run.bias, multiplier), run.residuals()
    converged = proof.gap <= tolerance and max(residuals) <= np.sqrt(tolerance)
    state = State(run.Z, multiplier, run.rho)
    support = np.flatnonzero(run.rotated.any(axis=1))
    return Fit(run.A, run.bias, proof, support, iterations, factorisations, residuals, converged, state)
