"""The roads to a projection of one view: an exact kernel, a linear kernel's dual or primal, or a low-rank kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import psutil
import scipy.sparse

from dmo.blocks import Rows, Subset, row_blocks, rows, sampled
from dmo.cluster import current_client
from dmo.engines.exact import build, choose_storage, exact_engine
from dmo.engines.krylov import Krylov, subspaces
from dmo.engines.lowrank import choose_engine, exact_or_best, fit_maps, is_exact
from dmo.engines.moments import LABELS, Moments
from dmo.engines.passes import FeatureRows, collect_moments
from dmo.engines.row_maps import RowMap, ShiftedRows, SubspaceCoordinates
from dmo.errors import UserError, amount
from dmo.functions import Expansion, FactorExpansion, KernelExpansion, LinearExpansion
from dmo.graphs.rows import read
from dmo.kernels import Euclidean, Linear, parse, parse_relation
from dmo.kernels.multikernel import MultiKernel
from dmo.linalg.eigen import power_of
from dmo.linalg.operators import Operator
from dmo.linalg.row_gram import RowGram
from dmo.methods.embeddings.catalog import CatalogEntry
from dmo.methods.embeddings.morp import Form, morp_moments, morp_operator
from dmo.methods.embeddings.projected import LinearFit, solve_projected
from dmo.methods.embeddings.quadratic_forms import TraceProblem
from dmo.methods.embeddings.samples import Options, Samples
from dmo.methods.embeddings.solvers import ROWS, WEIGHTED, EmbeddingFit, fit_moments, fit_operator

_SOME = 256  # rows whose mean stands near the others
_SINGLE = 1e-5  # residual that products in float32 can reach
_SMALL = 4096  # samples or features of a linear problem that is solved exactly when nothing else is asked for
log = logging.getLogger("dmo")


class Task(Protocol):
    """What is to be solved, whatever the road. `center`: of rows and labels; `ridge`: the smallest that is solved with;
    `decodes`: whether a decoder of the labels is wanted."""

    decodes: ClassVar[bool]

    @property
    def center(self) -> bool: ...

    @property
    def ridge(self) -> float: ...

    def columns(self, samples: Samples) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(label columns, diagonal) that a pass over the rows needs."""
        ...

    def moments(self, samples: Samples, moments: Moments, k: int) -> EmbeddingFit: ...

    def operator(
        self, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
    ) -> EmbeddingFit: ...


@dataclass(frozen=True)
class MethodTask:
    """A method of the catalog."""

    decodes: ClassVar[bool] = False

    entry: CatalogEntry
    options: Options

    @property
    def center(self) -> bool:
        return self.entry.center

    @property
    def ridge(self) -> float:
        return self.options.ridge if "ridge" in self.entry.parameters else np.inf

    def columns(self, samples: Samples) -> tuple[np.ndarray | None, np.ndarray | None]:
        form = self.entry.problem(samples, self.options).A
        return form.factor, form.diagonal

    def moments(self, samples: Samples, moments: Moments, k: int) -> EmbeddingFit:
        return fit_moments(self.entry.problem(samples, self.options), moments, k)

    def operator(
        self, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
    ) -> EmbeddingFit:
        return fit_operator(self.entry.problem(samples, self.options), K, k, tol, max_steps, random_state)


@dataclass(frozen=True)
class FormTask:
    """A form of multi-output regularized projection."""

    decodes: ClassVar[bool] = True

    form: Form
    options: Options
    center: bool
    scaled: bool = True

    @property
    def ridge(self) -> float:
        return 0.0 if self.form == "regularized" and self.options.mixing else self.options.ridge

    def floored(self, ridge: float) -> FormTask:
        """The task with this ridge in the place of 0, where it solves for labels."""
        options = self.options
        if options.ridge or not options.mixing or self.form == "regularized":
            return self
        return replace(self, options=replace(options, ridge=ridge))

    def columns(self, samples: Samples) -> tuple[np.ndarray | None, np.ndarray | None]:
        return samples.factor, None  # without mixing for the decoder alone

    def moments(self, samples: Samples, moments: Moments, k: int) -> EmbeddingFit:
        fit = morp_moments(self.form, samples, self.options, moments, k)
        return fit if self.scaled else fit.unscaled()

    def operator(
        self, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
    ) -> EmbeddingFit:
        fit = morp_operator(self.form, samples, self.options, K, k, tol, max_steps, random_state)
        return fit if self.scaled else fit.unscaled()


@dataclass(frozen=True)
class ProjectionOptions:
    """How the eigenproblem is reached: the estimator's arguments of the same names; of a linear kernel also `dual` (None:
    by the shape) and `floor`, the share of the mean diagonal that a ridge of 0 stands for in the dual problem."""

    kernel: Any
    approximation: Any
    tol: float
    max_iter: int
    random_state: int | None
    dual: bool | None = None
    floor: float = 0.0


@dataclass(frozen=True)
class Projected:
    """What was learnt: the function of new rows, the fit, the training coordinates where they come at no cost, and a
    least-squares decoder of the label columns (k x q) from coordinates, with its offset (q); None without labels."""

    expansion: Expansion
    fit: EmbeddingFit
    embedding: np.ndarray | None
    decoder: tuple[np.ndarray, np.ndarray] | None = None


def decode(moments: Moments) -> tuple[np.ndarray, np.ndarray] | None:
    """Least squares of LABELS on ROWS with an intercept, from their moments: coefficients (k x q) and offset (q)."""
    if LABELS not in moments.widths:
        return None
    places, centered = moments.places(), moments.centered().gram
    Z = places[ROWS]
    B = power_of(centered[Z, Z], -1.0) @ centered[Z, places[LABELS]]
    mean = moments.mean()
    return B, mean[places[LABELS]] - mean[Z] @ B


def decode_rows(task: Task, samples: Samples, embedding: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """`decode` from coordinates in memory (n x k)."""
    if samples.labels is None or not task.decodes:
        return None
    return decode(Moments.of({ROWS: np.asarray(embedding, np.float64), LABELS: samples.labels}))


def project(task: Task, view: str, X: Rows, labels: np.ndarray | None, k: int, road: ProjectionOptions) -> Projected:
    """Solve a task on rows X (n x d) and a label factor (n x q, or None)."""
    samples = Samples(X.shape[0], None, labels, 1.0, task.center)
    kernel = parse(road.kernel)
    linear = isinstance(kernel, Linear) and kernel.normalize is None
    if isinstance(road.approximation, str) and road.approximation == "auto":
        chosen = _linear_engine(task, X) if linear else choose_engine("auto", samples.n, 1)
        road = replace(road, approximation=chosen)
    if isinstance(road.approximation, Krylov):
        if not linear:
            raise UserError(f"Krylov is for linear functions; with kernel {road.kernel!r} take Nystrom or Meka")
        return _krylov(task, view, X, samples, k, road)
    if not is_exact(road.approximation):
        return _low_rank(task, view, X, samples, k, road)
    if linear:
        dual = X.shape[1] > X.shape[0] if road.dual is None else road.dual
        return _dual(task, view, X, samples, k, road) if dual else _primal(task, view, X, samples, k)
    return _kernel(task, view, X, samples, k, road)


def _kernel(task: Task, view: str, X: Rows, samples: Samples, k: int, road: ProjectionOptions) -> Projected:
    """The exact engine: the n x n kernel as an operator."""
    engine = exact_engine(road.approximation)
    storage = choose_storage(engine, samples.n, 1)
    sources = {view: X}
    kernel = MultiKernel.of(view, parse(road.kernel))
    built = build(engine, kernel, sources, task.ridge, storage, road.random_state)
    operator = built.operator.centered() if task.center else built.operator
    if built.dtype == np.float32:
        road = replace(road, tol=max(road.tol, _SINGLE))
    fit = _solve(task, samples, operator, k, road)
    coefficients, offset = operator.expansion(fit.coefficients)
    expansion = KernelExpansion(built.kernel, sources, np.ascontiguousarray(coefficients), offset, built.dtype)
    embedding = operator @ fit.coefficients
    return Projected(expansion, fit, embedding, decode_rows(task, samples, embedding))


def _dual(task: Task, view: str, X: Rows, samples: Samples, k: int, road: ProjectionOptions) -> Projected:
    """A linear kernel through n x n products with the rows; the function of new rows is linear again."""
    operator = RowGram.of(rows(X), task.center)
    if road.floor and isinstance(task, FormTask):
        task = task.floored(road.floor * float(operator.diagonal().mean()))
    fit = _solve(task, samples, operator, k, road)
    centered = operator.factor
    W = centered.t_dot(fit.coefficients)
    offset = np.zeros(k) if centered.mean is None else -(centered.mean @ W)
    embedding = centered.dot(W)
    return Projected(LinearExpansion(view, W, offset), fit, embedding, decode_rows(task, samples, embedding))


def _solve(task: Task, samples: Samples, operator: Operator, k: int, road: ProjectionOptions) -> EmbeddingFit:
    seen = replace(samples, trace=float(operator.diagonal().sum()))
    return task.operator(seen, operator, k, road.tol, road.max_iter, road.random_state)


def _primal(task: Task, view: str, X: Rows, samples: Samples, k: int) -> Projected:
    """A linear kernel through d x d moments of the rows as they are."""
    needed, free = 8 * 4.0 * X.shape[1] ** 2, psutil.virtual_memory().available
    if needed > free / 2:
        raise UserError(
            f"{X.shape[1]} features need {amount(needed)} of moments, free are {amount(free)}; "
            f"take the dual problem, or approximation=Nystrom(...)"
        )
    shift = _amid(X) if task.center else None
    moments = _pass(task, X, samples, ShiftedRows(shift))
    fit, offset, decoder = _small(task, samples, moments, k)
    offset = offset if shift is None else offset - shift @ fit.coefficients
    return Projected(LinearExpansion(view, fit.coefficients, offset), fit, None, decoder)


def _amid(X: Rows) -> np.ndarray | None:
    """The mean (d) of the first rows, which keeps the digits of features far from the origin; None for sparse rows."""
    some = sampled(X, np.arange(min(X.shape[0], _SOME)))
    return None if scipy.sparse.issparse(some) else some.mean(axis=0, dtype=np.float64)


def _linear_engine(task: Task, X: Rows) -> Any:
    """The exact problem of a linear kernel where its smaller side is small, or the form needs it; else a subspace."""
    side = min(X.shape)
    if side <= _SMALL or (isinstance(task, FormTask) and task.form == "regularized"):
        return "exact"
    log.info("engine: a Krylov subspace (the exact problem is of %d x %d)", side, side)
    return Krylov()


def _krylov(task: Task, view: str, X: Rows, samples: Samples, k: int, road: ProjectionOptions) -> Projected:
    """A linear kernel in a subspace of linear functions, from moments in its coordinates; it is widened, a pass over the
    rows each time, until the eigenvalues stay."""
    labels, _ = task.columns(samples)
    method: Krylov = road.approximation
    values, growth, steps = None, 0.0, 0
    for steps, found in enumerate(subspaces(method, X, labels, task.center, road.random_state), 1):
        if found.basis.shape[1] < k and not found.last:
            continue
        moments = _pass(task, X, samples, SubspaceCoordinates(found))
        fit, offset, decoder = _small(task, samples, moments, k, found.trace)
        if values is not None:
            growth = float(np.abs(fit.values - values).max() / np.abs(fit.values).max())
            log.info("Krylov subspace: in step %d the eigenvalues grew by %.1e of the largest", steps, growth)
            if growth <= method.tol:
                break
        values = fit.values
    W = found.basis @ fit.coefficients
    fit = replace(fit, steps=steps, converged=growth <= method.tol, residual=growth)
    return Projected(LinearExpansion(view, W, offset - found.mean @ W), fit, None, decoder)


def _low_rank(task: Task, view: str, X: Rows, samples: Samples, k: int, road: ProjectionOptions) -> Projected:
    """The moment engine: one pass over the factor rows of a low-rank kernel."""
    feature_map = fit_maps(road.approximation, road.kernel, {view: X}, road.random_state, task.center)[view]
    raw = _pass(task, X, samples, feature_map)
    mixing = feature_map.mixing
    moments = raw if mixing is None else raw.mixed({name: mixing for name in (ROWS, WEIGHTED) if name in raw.widths})
    fit, offset, decoder = _small(task, samples, moments, k)
    return Projected(FactorExpansion.of(view, feature_map, fit.coefficients, offset), fit, None, decoder)


def _small(
    task: Task, samples: Samples, moments: Moments, k: int, trace: float | None = None
) -> tuple[EmbeddingFit, np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
    """The fit from moments, the offset of new rows, and the decoder. `trace`: of K, where the mapped rows lack some."""
    where = moments.places()[ROWS]
    if trace is None:
        inner = moments.centered() if task.center else moments
        trace = float(np.trace(inner.gram[where, where]))
    fit = task.moments(replace(samples, trace=trace), moments, k)
    offset = -(moments.mean()[where] @ fit.coefficients) if task.center else np.zeros(k)
    decoder = decode(moments.mixed({ROWS: fit.coefficients})) if task.decodes else None
    if decoder is not None and samples.labels is not None:
        B, rest = decoder  # of coordinates less their offset, for label columns that may be centered
        mean = samples.labels.mean(axis=0) if task.center else np.zeros(B.shape[1])
        decoder = B, rest + mean - offset @ B
    return fit, offset, decoder


def _pass(task: Task, X: Rows, samples: Samples, feature_map: RowMap) -> Moments:
    """Moments of the mapped rows, the label columns and, if the task has a diagonal, the weighted rows."""
    labels, diagonal = task.columns(samples)
    weights = {} if diagonal is None else {WEIGHTED: (ROWS, diagonal)}
    raw = FeatureRows({ROWS: X}, {ROWS: feature_map}, weights=weights)
    return collect_moments(raw, labels, client=current_client())[0]


def embed(
    problem_of: Callable[[Any], tuple[TraceProblem, np.ndarray | None]],
    view: str,
    source: Rows,
    k: int,
    kernel: Any,
    approximation: Any,
    n_landmarks: int | None,
    random_state: int | None,
    variance: float | None = None,
) -> Projected:
    """Solve a problem on the features of a view, on their similarities to seed samples, or on low-rank factor rows.

    Arguments: `problem_of`: rows in memory -> (the problem, the samples that it is about; None: all); `kernel` "linear"
    without `n_landmarks`: the features; else similarities to `n_landmarks` random samples, None: to all (n x n, float64),
    which is the kernel form Z = K Gamma [MOPE 46, section 3.5]; `approximation` "auto": exact, but the better of Nystrom
    and MEKA where similarities to all samples do not fit in memory; `variance`: see `solve_projected`.
    """
    X = source = read(source)  # once
    problem, index = problem_of(X)
    similarity = parse_relation(kernel)
    plain = isinstance(similarity, Linear) and similarity.normalize is None and n_landmarks is None
    expansion: Expansion
    if isinstance(approximation, str) and approximation == "auto":
        n = source.shape[0]
        approximation = "exact"
        if not plain and n_landmarks is None and not isinstance(similarity, Euclidean):
            approximation = exact_or_best(f"similarities of {n} x {n}", _relation_bytes(n, n), _RELATION_SHARE)
    if not is_exact(approximation):
        feature_map = fit_maps(approximation, kernel, {view: source}, random_state, False)[view]
        found = solve_projected(problem, _some(feature_map(source).astype(np.float64), index), k, variance)
        expansion = FactorExpansion.of(view, feature_map, found.coefficients, found.offset)
    elif plain:
        found = solve_projected(
            problem, _some(X if scipy.sparse.issparse(X) else X.astype(np.float64), index), k, variance
        )
        expansion = LinearExpansion(view, found.coefficients, found.offset)
    else:
        fitted = MultiKernel.of(view, similarity.fit(source, random_state))
        n = source.shape[0]
        seeds = rows(Subset(source, _seeds(n, n_landmarks, random_state)))
        found = solve_projected(problem, _some(_relation(fitted, view, source, seeds), index), k, variance)
        expansion = KernelExpansion(fitted, {view: seeds}, found.coefficients, found.offset, np.float64)
    return Projected(expansion, _fit(found), None)


def _fit(found: LinearFit) -> EmbeddingFit:
    return EmbeddingFit(found.values, found.coefficients)


def _some(X: Any, index: np.ndarray | None) -> Any:
    return X if index is None or len(index) == X.shape[0] else X[index]


def _seeds(n: int, wanted: int | None, random_state: int | None) -> np.ndarray:
    if wanted is None:
        return np.arange(n)
    if wanted > n:
        raise UserError(f"n_landmarks = {wanted}, but there are {n} samples; lower n_landmarks to that")
    return np.sort(np.random.default_rng(random_state).choice(n, wanted, replace=False))


_RELATION_SHARE = 0.5
"""Share of the free memory that similarities may take."""


def _relation_bytes(n: int, p: int) -> float:
    """Bytes of the similarities of n samples to p, and of their problem."""
    return 8.0 * p * (n + 4 * p)


def _relation(kernel: MultiKernel, view: str, source: Rows, seeds: Any) -> np.ndarray:
    n, p = source.shape[0], seeds.shape[0]
    needed, free = _relation_bytes(n, p), psutil.virtual_memory().available
    if needed > _RELATION_SHARE * free:
        raise UserError(
            f"similarities of {n} samples to {p} take {amount(needed)}, free are {amount(free)}; "
            f"pass n_landmarks (such as 2000), or approximation=Nystrom(...)"
        )
    old = kernel.prepare({view: seeds}, slice(0, p), np.float64)
    out = np.empty((n, p))
    for where in row_blocks(n, 2048):
        out[where] = kernel.tile(kernel.prepare({view: source}, where, np.float64), old)
    return out
