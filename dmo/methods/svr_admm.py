"""Support vector regression of many outputs with locally rotated losses [LLT 3, 4]: problem, certificate, solver.

    min_{A, b}  1/2 tr(A' K A S) + sum_i C_i sum_j l(u_ij' (f_i - y_i)),     F = K A S + 1 b',

The orthonormal columns u_ij of the frame U_i are the coordinate axes of sample i. LLT-SVR has S = I and frames from
the neighborhoods of the outputs y_i. With S = I and U_i = I, each output has an independent support vector regression.
Other matrices S couple the outputs (Vazquez, Walter 2003). The cost C_i is C times the weight of sample i. The dual is

    max_A  tr(A' Y) - 1/2 tr(A' K A S) - sum_i sum_j (C_i l)*(u_ij' a_i)     subject to 1'A = 0,

with the same matrix A, whose rows a_i are the dual coefficients of the samples.

The solver is the alternating direction method of multipliers (ADMM) with the penalty rho. The quadratic term does not
depend on the frames, because they are orthonormal, and the loss does not depend on the kernel. With the split Z = F,
the steps are:

    F-step:  (K + I / (rho s)) X = V - 1b', 1'X = 0   per eigenvalue s of S, with one factorization per distinct value;
    Z-step:  Z = Y + U prox_{C/rho}(U' (. - Y)) per sample.

The solver iterates a fixed-point map of one n x L block (Douglas-Rachford), with over-relaxation and Anderson
extrapolation (type II).

Sources: Boyd et al. 2011, 3.1-3.4; Eckstein, Bertsekas 1992 (relaxation); Walker, Ni 2011 and O'Donoghue 2021
(extrapolation as in SCS 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from dmo.errors import UserError
from dmo.hashing import digest
from dmo.linalg.cg import NystromPreconditioner, default_rank, operator_digest
from dmo.linalg.linear import LinearSolver
from dmo.linalg.operators import LowRank, Operator
from dmo.linalg.solve import SolveMethod, factorize
from dmo.persistence import with_prefix, without_prefix
from dmo.progress import stage
from dmo.stores.checkpoints import Arrays, Checkpoint, checkpoints
from dmo.threads import blas_limited

_MEMORY = 15  # maximum number of earlier steps, each stored as two n x L blocks, that an extrapolation combines


class Extrapolation:
    """Anderson extrapolation for the fixed-point iteration s -> s + g(s) of an array s.

    If an extrapolated step more than doubles the norm of the residual g, it is replaced with a plain step.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all stored steps, which is necessary after the fixed-point map has changed."""
        self._last: tuple[np.ndarray, np.ndarray] | None = None  # values s + g and g at the previous point s
        self._moves: list[np.ndarray] = []  # differences of s + g between consecutive points
        self._changes: list[np.ndarray] = []  # differences of g between consecutive points
        self._gram = np.zeros((0, 0))
        self._extrapolated = False

    def next(self, s: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Compute the next point from the current point s and its residual g."""
        plain = s + g
        if self._last is not None:
            before, residual = self._last
            # Plain iterations never increase the norm of the residual g, so any increase is due to the extrapolation.
            # An increase by a factor of two is accepted, because later steps often compensate for it.
            if self._extrapolated and np.linalg.norm(g) > 2 * np.linalg.norm(residual):
                self.forget()
                return before  # Restart with the plain step from the previous point.
            self._remember(plain - before, g - residual)
        self._last = plain, g
        self._extrapolated = bool(self._changes)
        if not self._changes:
            return plain
        # Normal equations need only one new row of their Gram matrix per step. A QR factorization of all stored blocks
        # would cost several times as much. Recent differences are nearly parallel, so a small ridge bounds the weights.
        # `lstsq` also accepts a zero matrix.
        gram = self._gram + 1e-10 * np.trace(self._gram) * np.eye(len(self._gram))
        weights = np.linalg.lstsq(gram, [np.vdot(change, g) for change in self._changes])[0]
        for weight, move in zip(weights, self._moves, strict=True):
            plain = plain - weight * move
        return plain

    def to_arrays(self) -> Arrays:
        """Return the state of the extrapolation as arrays for a checkpoint."""
        found = {"gram": self._gram, "extrapolated": np.array([self._extrapolated])}
        if self._last is not None:
            found |= {"before": self._last[0], "residual": self._last[1]}
        if self._moves:
            found |= {"moves": np.stack(self._moves), "changes": np.stack(self._changes)}
        return found

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the state from the arrays that `to_arrays` returned."""
        self._gram, self._extrapolated = arrays["gram"], bool(arrays["extrapolated"][0])
        self._last = (arrays["before"], arrays["residual"]) if "before" in arrays else None
        self._moves, self._changes = list(arrays.get("moves", ())), list(arrays.get("changes", ()))

    def _remember(self, move: np.ndarray, change: np.ndarray) -> None:
        if len(self._moves) == _MEMORY:
            # The loss is piecewise, and residuals of the oldest step may lie on other pieces, so drop the oldest step.
            del self._moves[0], self._changes[0]
            self._gram = self._gram[1:, 1:]
        self._moves.append(move)
        self._changes.append(change)
        m = len(self._changes)
        gram = np.empty((m, m))
        gram[:-1, :-1] = self._gram
        gram[-1] = gram[:, -1] = [np.vdot(old, change) for old in self._changes]
        self._gram = gram


_RELAXATION = 1.6  # over-relaxation factor in (0, 2); 1.5 to 1.8 is recommended [Boyd et al. 2011, 3.4.3]
_CHECK = 25  # number of iterations between computations of the duality gap, which needs kernel products
_REBALANCE = (15, 45, 105, 225, 465)  # iterations after which rho may change; increasing intervals let rho settle
_BALANCE = 0.05  # target ratio of the relative primal residual to the relative dual residual
_STEP = 4.0  # ratio of neighboring values of the penalty rho; a coarse grid lets related problems share factorizations
# Maximum number of entries of a kernel matrix or factor for which BLAS uses one thread. More threads would gain little.
_ONE_THREAD = 2**25


@dataclass(frozen=True)
class State:
    """State of an ADMM iteration, from which the solver can start on a similar problem."""

    split: np.ndarray  # copy Z of the fitted outputs, of shape (n, L)
    dual: np.ndarray  # dual coefficients A, of shape (n, L)
    rho: float


@dataclass(frozen=True)
class AdmmFit:
    """Solution of a support vector regression, with its certificate."""

    dual: np.ndarray  # dual coefficients A, of shape (n, L)
    bias: np.ndarray
    certificate: Certificate  # primal and dual objectives at feasible points
    support: np.ndarray  # indices of the samples with nonzero dual coefficients
    iterations: int
    factorizations: int
    residuals: tuple[float, float]  # relative primal and dual residuals
    converged: bool  # whether the duality gap and the residuals are below their tolerances
    state: State  # final state, from which the solver can start on a similar problem

    def to_arrays(self) -> Arrays:
        """Return the solution as arrays for a checkpoint."""
        proof = [getattr(self.certificate, part.name) for part in fields(Certificate)]
        numbers = [self.iterations, self.factorizations, *self.residuals, self.converged, self.state.rho, *proof]
        found = {"dual": self.dual, "bias": self.bias, "support": self.support, "numbers": np.array(numbers)}
        return found | {"split": self.state.split, "multiplier": self.state.dual}

    @classmethod
    def from_arrays(cls, at: Mapping[str, np.ndarray]) -> AdmmFit:
        """Restore the solution from the arrays that `to_arrays` returned."""
        iterations, factorizations, primal, dual, converged, rho, *proof = map(float, at["numbers"])
        counted = int(iterations), int(factorizations), (primal, dual), bool(converged)
        state = State(at["split"], at["multiplier"], rho)
        return cls(at["dual"], at["bias"], Certificate(*proof), at["support"], *counted, state)


class Factors:
    """Cache of solvers for (K + c I) X = B with one kernel matrix K and different ridges c."""

    def __init__(self, kernel: Operator, method: SolveMethod = "auto", keep: int = 3, random_state: int | None = None):
        self.kernel, self.method, self.keep, self.random_state = kernel, method, keep, random_state
        self.made = 0
        self._solvers: dict[float, tuple[LinearSolver, np.ndarray]] = {}
        self._preconditioner: NystromPreconditioner | None = None

    @property
    def noise_floor(self) -> float:
        """Smallest useful ridge, which is an estimate of the floating-point error of the kernel matrix."""
        # Float32 entries have a relative error of 6e-8, and errors may add up over a row of the kernel matrix. Systems
        # with low-rank kernels are always solved in float64.
        unit = 1e-7 if self.kernel.dtype == np.float32 else 1e-14
        low_rank = isinstance(self.kernel, LowRank)
        return (1e-14 if low_rank else unit) * self.kernel.n * float(np.abs(self.kernel.diagonal()).max(initial=0.0))

    def at(self, c: float) -> tuple[LinearSolver, np.ndarray]:
        """Return a cached or new solver for the ridge c, and the solution of (K + c I) x = 1."""
        found = self._solvers.pop(c, None)
        if found is None:
            while len(self._solvers) >= max(1, self.keep):
                # `at` moves used solvers to the end of the dict, so the first solver is the least recently used one.
                del self._solvers[next(iter(self._solvers))]
            if self.method == "cg" and self._preconditioner is None:
                self._preconditioner = NystromPreconditioner.of(
                    self.kernel, default_rank(self.kernel.n), self.random_state
                )
            solver = factorize(
                self.kernel, c, self.method, preconditioner=self._preconditioner, random_state=self.random_state
            )
            found = solver, solver.solve(np.ones((self.kernel.n, 1)), check=False).value
            self.made += 1
        self._solvers[c] = found
        return found


class _QuadraticStep:
    """Quadratic step of ADMM: find A and b that minimize 1/2 tr(A'KAS) + rho/2 |K A S + 1b' - V|^2 for given V."""

    # The fitted outputs K A S + 1b' equal V - A / rho at the minimum, so they need no additional kernel product.

    def __init__(self, problem: Problem, factors: Factors, rho: float):
        self.problem, self.rho = problem, rho
        self.parts: list[tuple[np.ndarray, float, LinearSolver, np.ndarray]] = []
        for scale in np.unique(problem.scales[problem.scales > 0]):
            columns = np.flatnonzero(problem.scales == scale)
            self.parts.append((columns, float(scale), *factors.at(1.0 / (rho * float(scale)))))
        self.starts: dict[float, np.ndarray] = {}  # start of conjugate gradients for each eigenvalue of S

    def __call__(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        latent = self.problem.to_latent(V)
        bias = latent.mean(axis=0)
        A = self.rho * (latent - bias)  # solution in columns where the eigenvalue of S is 0
        for columns, scale, solver, ones in self.parts:
            X = solver.solve(latent[:, columns], x0=self.starts.get(scale), check=False).value
            if solver.method == "cg":
                self.starts[scale] = X
            # The solutions for V and for a column of ones determine the bias through 1'A = 0. A bordered system that
            # includes the bias would be indefinite.
            bias[columns] = X.sum(axis=0) / ones.sum()
            A[:, columns] = (X - ones * bias[columns]) / scale
        return self.problem.from_latent(A), self.problem.from_latent(bias)


class _Iteration:
    """State of an ADMM run: the iterate s, the split Z, the dual coefficients A, the bias and the fitted outputs F."""

    def __init__(self, problem: Problem, factors: Factors, start: State | None):
        problem = replace(
            problem, targets=np.ascontiguousarray(problem.targets)
        )  # All n x L arrays of the iteration inherit the row-major order of the targets.
        self.problem, self.factors = problem, factors
        # The quadratic step solves kernel systems with ridges 1 / (rho s) for the eigenvalues s of S. The upper limit
        # of rho keeps all ridges above the floating-point error of the kernel matrix.
        self._largest = 1.0 / (factors.noise_floor * float(problem.scales.max())) if factors.noise_floor > 0 else np.inf
        if start is None:
            # For small C, the optimal outputs are nearly constant and close to the medians, so start from the medians.
            Z = np.broadcast_to(np.median(problem.targets, axis=0), problem.targets.shape)
            start = State(Z, np.zeros(Z.shape), self._quantised(_first_rho(problem)))
        self.rho = start.rho
        self.s = (
            np.ascontiguousarray(start.split)
            - problem.rotate_back(_clip(problem, problem.rotate(start.dual))) / self.rho
        )
        self._step = _QuadraticStep(problem, factors, self.rho)
        self._extrapolation = Extrapolation()

    def to_arrays(self) -> Arrays:
        """Return all arrays that determine the following iterations."""
        found = {"s": self.s, "rho": np.array([self.rho])}
        for i, (_, scale, _, _) in enumerate(self._step.parts):
            if scale in self._step.starts:
                found[f"start{i}"] = self._step.starts[scale]
        return found | with_prefix("extrapolation", self._extrapolation.to_arrays())

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the state of a run from the arrays that `to_arrays` returned."""
        self.s, self.rho = arrays["s"], float(arrays["rho"][0])
        self._step = _QuadraticStep(self.problem, self.factors, self.rho)
        for i, (_, scale, _, _) in enumerate(self._step.parts):
            if f"start{i}" in arrays:
                self._step.starts[scale] = arrays[f"start{i}"]
        self._extrapolation.restore(without_prefix("extrapolation", arrays))

    def _quantised(self, rho: float) -> float:
        return float(_STEP ** np.floor(np.log(min(rho, self._largest)) / np.log(_STEP) + 0.5))

    def _split(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute the split Z and the dual coefficients in the frames, which are exactly 0 inside the epsilon tube."""
        R = self.problem.rotate(s - self.problem.targets)
        T = self.problem.loss.prox(R, self.problem.costs / self.rho)
        return self.problem.targets + self.problem.rotate_back(T), self.rho * (T - R)

    def evaluate(self) -> None:
        """Compute the Z-step and the F-step from the iterate s."""
        self.Z, self.rotated = self._split(self.s)
        self.A, self.bias = self._step(2 * self.Z - self.s)
        self.F = 2 * self.Z - self.s - self.A / self.rho
        self.g = _RELAXATION * (self.F - self.Z)

    def move(self) -> None:
        self.s = self._extrapolation.next(self.s, self.g)

    def rebalance(self) -> bool:
        """Change the penalty rho if the residuals are unbalanced, and return whether it changed."""
        # In experiments with narrow to broad kernels and C from 0.1 to 100, convergence was fastest when the relative
        # dual residual was about 20 times the relative primal residual. The dual residual is rho |Z' - Z| / |A| for a
        # plain step to Z', and the primal residual is |F - Z| / max(|F|, |Y|) with centered F and Y.
        following, _ = self._split(self.s + self.g)
        primal, dual = float(np.linalg.norm(self.F - self.Z)), float(np.linalg.norm(following - self.Z))
        size = float(np.linalg.norm(self.A))
        spread = max(float(np.linalg.norm(M - M.mean(axis=0))) for M in (self.F, self.problem.targets))
        if min(primal, dual, spread, size) <= 0:
            return False
        ratio = (primal / spread) / (self.rho * dual / size)
        rho = self._quantised(self.rho * float(np.clip((ratio / _BALANCE) ** 0.75, _STEP**-3, _STEP**3)))
        if abs(np.log(rho / self.rho)) < 0.9 * np.log(_STEP):  # A smaller change is not worth a factorization.
            return False
        # The iterate is s = Z - A / rho, so rescaling s - Z keeps the dual coefficients A.
        self.s = self.Z + (self.s - self.Z) * (self.rho / rho)
        self.rho = rho
        self._step = _QuadraticStep(self.problem, self.factors, rho)
        self._extrapolation.forget()
        return True

    def residuals(self) -> tuple[float, float]:
        """Compute the relative primal and dual residuals of the current iterate."""
        size = float(np.linalg.norm(self.F - self.Z))
        spread = float(np.linalg.norm(self.F - self.F.mean(axis=0)))
        # If the bias alone fits the targets, A and the centered F are 0. Lower bounds on their norms keep the relative
        # residuals meaningful.
        least = 1e-6 * float(np.linalg.norm(self.problem.targets))
        dual = max(float(np.linalg.norm(self.A)), self.rho * least)
        return _ratio(size, max(spread, least)), _ratio(self.rho * size, dual)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _clip(problem: Problem, W: np.ndarray) -> np.ndarray:
    return np.clip(W, -problem.costs, problem.costs) if problem.loss.bounded else W


def _first_rho(problem: Problem) -> float:
    """Return an initial penalty: four times the ratio of typical dual coefficients to typical outputs."""
    Y = problem.targets
    spread = float(np.sqrt(np.mean((Y - Y.mean(axis=0)) ** 2))) or 1.0
    slope = 1.0 if problem.loss.bounded else problem.loss.value(np.array([spread]), 1.0) / spread
    return 4 * float(np.mean(problem.costs)) * slope / spread


def admm(
    problem: Problem,
    factors: Factors | None = None,
    start: State | None = None,
    tol: float = 1e-6,
    max_iter: int = 5000,
) -> AdmmFit:
    """Solve a support vector regression until its relative duality gap is at most `tol`."""
    # Within a `checkpoints` context, an interrupted run resumes, and the result of a finished run is loaded.
    #
    # The problem is defined in Liu, Lin, Yu 2009 [LLT 3-5]. The module docstring lists the sources of the solver.
    if max_iter < 1:
        raise UserError(f"max_iter = {max_iter}, expected at least 1")
    factors = Factors(problem.kernel) if factors is None else factors
    kept = Checkpoint("admm", lambda: _digest(problem, factors, start, tol, max_iter))
    found = kept.load()
    if found is not None and found[1]["finished"]:
        return AdmmFit.from_arrays(found[0])
    with checkpoints(None):  # A kernel solve is part of one iteration, so it has no separate checkpoint.
        fit = _iterate(problem, factors, start, tol, max_iter, kept, found)
    kept.finish(fit.to_arrays(), {"finished": True})
    return fit


def _iterate(
    problem: Problem,
    factors: Factors,
    start: State | None,
    tol: float,
    max_iter: int,
    kept: Checkpoint,
    found: tuple[Arrays, dict[str, Any]] | None,
) -> AdmmFit:
    made, first = factors.made, 1
    best: AdmmFit | None = None
    with stage("alternating directions") as advance, blas_limited(_threads(problem.kernel)):
        if found is None:
            run = _Iteration(problem, factors, start)
        else:
            arrays, meta = found
            run = _Iteration(problem, factors, State(arrays["s"], np.zeros_like(arrays["s"]), float(arrays["rho"][0])))
            run.restore(arrays)
            best = AdmmFit.from_arrays(without_prefix("best", arrays)) if "best/dual" in arrays else None
            made, first = made - meta["factorizations"], meta["iteration"]
            advance(first - 1)
        for iteration in range(first, max_iter + 1):
            if kept.due():
                about = {"finished": False, "iteration": iteration, "factorizations": factors.made - made}
                kept.save(run.to_arrays() | ({} if best is None else with_prefix("best", best.to_arrays())), about)
            run.evaluate()
            advance(1)
            if iteration % _CHECK == 0 or iteration == max_iter:
                fit = _fit(run, iteration, factors.made - made, tol)
                # The duality gap may increase between certificates, so keep the solution with the smallest gap.
                if best is None or fit.certificate.gap <= best.certificate.gap:
                    best = fit
                if fit.converged:
                    return fit
            if iteration not in _REBALANCE or not run.rebalance():
                run.move()
    assert best is not None  # The last iteration always computes a certificate.
    return best


def _digest(problem: Problem, factors: Factors, start: State | None, tol: float, max_iter: int) -> str:
    """Compute a digest of all inputs on which the iterates depend."""
    task = problem.targets, problem.loss, problem.costs, problem.frames, problem.coupling
    how = factors.method, factors.random_state, start, tol, max_iter
    return digest(operator_digest(problem.kernel), task, how)


def _threads(kernel: Operator) -> int | None:
    numbers = kernel.factor.size if isinstance(kernel, LowRank) else kernel.n**2
    return 1 if numbers <= _ONE_THREAD else None


def _fit(run: _Iteration, iterations: int, factorizations: int, tol: float) -> AdmmFit:
    multiplier = run.problem.rotate_back(run.rotated)
    proof, residuals = certificate(run.problem, run.A, run.bias, multiplier), run.residuals()
    # Near the optimum, the objective is quadratic in the distance, so a gap of `tol` allows residuals of sqrt(tol).
    converged = bool(proof.gap <= tol and max(residuals) <= np.sqrt(tol))
    state = State(run.Z, multiplier, run.rho)
    support = np.flatnonzero(run.rotated.any(axis=1))
    return AdmmFit(run.A, run.bias, proof, support, iterations, factorizations, residuals, converged, state)


POWERS = {"l1": 1.0, "l4/3": 4 / 3, "l3/2": 3 / 2}
"""Exponents p < 2 of losses |r|^p whose proximal map has a closed form. For p = 2, frames would have no effect."""
Cost = float | np.ndarray
"""Positive weight of the loss, for all entries or for each sample, of shape (n, 1)."""
LossName = Literal["epsilon-insensitive", "l1", "l4/3", "l3/2"]
EPSILON_INSENSITIVE: LossName = "epsilon-insensitive"


@dataclass(frozen=True)
class EpsilonInsensitive:
    """Epsilon-insensitive loss max(|r| - epsilon, 0). Source: Vapnik 1995."""

    epsilon: float

    @property
    def bounded(self) -> bool:
        """Whether the conjugate of C l is finite only on [-C, C], so that dual coefficients are bounded."""
        return True

    def value(self, R: np.ndarray, C: Cost) -> float:
        """Compute the sum of the loss C l over all residuals R."""
        return float((C * np.maximum(np.abs(R) - self.epsilon, 0.0)).sum())

    def prox(self, R: np.ndarray, weight: Cost) -> np.ndarray:
        """Compute the proximal map argmin_t weight l(t) + (t - r)^2 / 2 of each entry r."""
        size = np.abs(R)
        shrunk = np.where(size <= self.epsilon, size, np.maximum(size - weight, self.epsilon))
        return np.copysign(shrunk, R)

    def conjugate(self, W: np.ndarray, C: Cost) -> float:
        """Compute the sum of the conjugate (C l)*(w) = max_t w t - C l(t) over the entries w."""
        return self.epsilon * float(np.abs(W).sum())


@dataclass(frozen=True)
class Power:
    """Loss |r|^p with p = 1, 4/3 or 3/2. Proximal maps: Chaux, Combettes, Pesquet, Wajs 2007, example 4.4."""

    power: float

    @property
    def bounded(self) -> bool:
        return self.power == 1.0

    def value(self, R: np.ndarray, C: Cost) -> float:
        return float((C * np.abs(R) ** self.power).sum())

    def prox(self, R: np.ndarray, weight: Cost) -> np.ndarray:
        size, slope = np.abs(R), self.power * weight
        if self.power == 1.0:
            shrunk = np.maximum(size - weight, 0.0)
        elif self.power == 3 / 2:  # Substitute t = u^2, where u solves u^2 + slope u = |r|.
            # For large slopes, the quadratic formula subtracts nearly equal numbers, so write the root as a quotient.
            shrunk = (2 * size / (slope + np.sqrt(slope * slope + 4 * size))) ** 2
        else:  # Substitute t = u^3, where u solves u^3 + slope u = |r|.
            # For small |r|, the two cube roots in Cardano's formula nearly cancel, so use hyperbolic functions.
            scale = np.sqrt(slope / 3)
            shrunk = (2 * scale * np.sinh(np.arcsinh(size / (2 * scale**3)) / 3)) ** 3
        return np.copysign(shrunk, R)

    def conjugate(self, W: np.ndarray, C: Cost) -> float:
        p = self.power
        if p == 1.0:
            return 0.0
        return float(((p - 1) * C * (np.abs(W) / (C * p)) ** (p / (p - 1))).sum())


Loss: TypeAlias = EpsilonInsensitive | Power
"""Convex and even loss l(r) of a residual, applied to each entry of an array."""


def loss_named(name: str, epsilon: float) -> Loss:
    """Return a loss by its name."""
    if name == EPSILON_INSENSITIVE:
        if not (epsilon > 0 and np.isfinite(epsilon)):
            raise UserError(f"epsilon must be a positive number, got {epsilon!r}; for epsilon 0 use loss='l1'")
        return EpsilonInsensitive(float(epsilon))
    if name not in POWERS:
        raise UserError(f"loss = {name!r}; known: {', '.join(map(repr, [EPSILON_INSENSITIVE, *POWERS]))}")
    return Power(POWERS[name])


_REPAIRS = 3


@dataclass(frozen=True)
class Problem:
    """Support vector regression problem of n samples with L outputs, as described in the module docstring."""

    kernel: Operator
    targets: np.ndarray  # outputs Y, of shape (n, L)
    loss: Loss
    C: float  # positive weight of the loss
    frames: np.ndarray | None = None  # frames U of the samples; None: identity matrices
    coupling: np.ndarray | None = None  # positive semidefinite matrix S; None: identity
    weights: np.ndarray | None = None  # positive sample weights; None: all weights are 1

    @property
    def costs(self) -> Cost:
        """Weight C of the loss, or the weights C_i of the samples, of shape (n, 1)."""
        return self.C if self.weights is None else self.C * self.weights[:, None]

    def rotate(self, R: np.ndarray) -> np.ndarray:
        """Express the residual of each sample in the orthonormal frame of its output."""
        return R if self.frames is None else np.matmul(R[:, None, :], self.frames)[:, 0, :]

    def rotate_back(self, T: np.ndarray) -> np.ndarray:
        """Invert `rotate`: convert coordinates in the frames to residuals of the outputs."""
        return T if self.frames is None else np.matmul(self.frames, T[:, :, None])[:, :, 0]

    @cached_property
    def _metric(self) -> tuple[np.ndarray, np.ndarray | None]:
        if self.coupling is None:
            return np.ones(self.targets.shape[1]), None
        values, vectors = np.linalg.eigh(self.coupling)
        return np.where(values > 1e-10 * values[-1], values, 0.0), vectors

    @property
    def scales(self) -> np.ndarray:
        """Eigenvalues of the coupling S, with tiny values replaced with 0."""
        return self._metric[0]

    def to_latent(self, M: np.ndarray) -> np.ndarray:
        """Transform the columns of M into the eigenbasis of the coupling S."""
        return M if self._metric[1] is None else M @ self._metric[1]

    def from_latent(self, M: np.ndarray) -> np.ndarray:
        """Transform the columns of M back from the eigenbasis of the coupling S."""
        return M if self._metric[1] is None else M @ self._metric[1].T


@dataclass(frozen=True)
class Certificate:
    """Values of the primal and dual objectives at feasible points, which bound the optimum."""

    objective: float
    dual_objective: float
    unit: float  # scale of the objective, sum of C_i |y_ij|; objectives below 1e-9 of this sum are rounding errors

    @property
    def gap(self) -> float:
        """Primal minus dual objective, relative to the larger absolute value of the two."""
        scale = max(abs(self.objective), abs(self.dual_objective), 1e-9 * self.unit)
        return max(self.objective - self.dual_objective, 0.0) / scale if scale > 0 else 0.0


def objective(problem: Problem, A: np.ndarray, bias: np.ndarray, KA: np.ndarray) -> float:
    """Compute the primal objective [LLT 3] for dual coefficients A and a bias, given the product K A."""
    KAS = KA if problem.coupling is None else KA @ problem.coupling
    residual = problem.rotate(KAS + bias - problem.targets)
    return 0.5 * float(np.vdot(A, KAS)) + problem.loss.value(residual, problem.costs)


def dual_objective(problem: Problem, A: np.ndarray, KA: np.ndarray) -> float:
    """Compute the dual objective [LLT 4] at a feasible point A, given the product K A."""
    KAS = KA if problem.coupling is None else KA @ problem.coupling
    value = float(np.vdot(A, problem.targets)) - 0.5 * float(np.vdot(A, KAS))
    return value - problem.loss.conjugate(problem.rotate(A), problem.costs)


def dual_feasible(problem: Problem, A: np.ndarray) -> np.ndarray:
    """Compute a dual feasible point near A, with 1'A = 0 and, for a bounded loss, |u_ij' a_i| <= C_i."""
    # The smallest change of the coefficients that are neither 0 nor at a bound makes the column sums nearly 0. The
    # remaining column means are subtracted from all coefficients, and a common factor restores the bounds.
    if not problem.loss.bounded:
        return A - A.mean(axis=0)
    C = problem.costs
    W = np.clip(problem.rotate(A), -C, C)
    for _ in range(_REPAIRS):
        free = (np.abs(W) < C) & (W != 0)
        change = _smallest_change(problem, free, problem.rotate_back(W).sum(axis=0))
        W = np.clip(W - free * problem.rotate(np.broadcast_to(change, W.shape)), -C, C)
    A = problem.rotate_back(W)
    A -= A.mean(axis=0)
    excess = float((np.abs(problem.rotate(A)) / C).max())
    return A / excess if excess > 1 else A


def _smallest_change(problem: Problem, free: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Solve sum_i U_i diag(free_i) U_i' x = sums for x, which is 0 if no coefficient is free."""
    if problem.frames is None:
        often = free.sum(axis=0)
        return np.divide(sums, often, out=np.zeros(len(sums)), where=often > 0)
    parts = (problem.frames * free[:, None, :]).transpose(1, 0, 2).reshape(free.shape[1], -1)
    return np.linalg.lstsq(parts @ parts.T, sums)[0]


def certificate(problem: Problem, A: np.ndarray, bias: np.ndarray, multiplier: np.ndarray | None = None) -> Certificate:
    """Compute both objectives by one product, at (A, bias) and at a dual feasible point near `multiplier` or A."""
    feasible = dual_feasible(problem, A if multiplier is None else multiplier)
    L = A.shape[1]
    products = problem.kernel.product(np.hstack([A, feasible]))
    primal = objective(problem, A, bias, products[:, :L])
    unit = float((problem.costs * np.abs(problem.targets)).sum())
    return Certificate(primal, dual_objective(problem, feasible, products[:, L:]), unit)
