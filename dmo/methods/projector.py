"""Projections of one view, by a method of the catalog or a form of MORP, from moments or products with a kernel.

Multi-output regularized projection [MORP: Yu, Yu, Tresp 2005] has three forms. All of them use the weighted sum
C = (1 - beta) K + beta (tr K / tr K_Y) K_Y of the feature kernel K and the label kernel K_Y. The three forms agree if
K has full rank and the ridge gamma is 0:

"simplified"   C v = lambda v, coefficients K^-1 v by ridge gamma                      [MORP 14 approximated, 15, 16]
"direct"       X'C X w = lambda (X'X + gamma I) w, also K C K a = lambda (K^2 + gamma K) a           [MORP 6]
"regularized"  K^2 a = mu (K C^-1 K + gamma K) a                                       [MORP 11; MLSI 12]

The regularized form is the eigenproblem of (C^-1 + gamma K^-1)^-1. With kappa = 1 - beta and the scaled label factor T,
the Woodbury identity turns this matrix into

    kappa/(1 + gamma kappa) K + 1/(1 + gamma kappa)^2 T [I + gamma/(1 + gamma kappa) T'K^-1 T]^-1 T'.

The second term damps label directions that are not smooth with respect to K. If K is rank-deficient, T'K^-1 T is
infinite and the labels have no influence, so the regularized form raises an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np

from dmo.blocks import Rows, Subset
from dmo.errors import UserError
from dmo.fit.engine import choose_engine, in_single, is_exact
from dmo.fit.exact import exact_engine
from dmo.fit.factor_groups import pseudo_samples
from dmo.fit.fitted_views import DualView, KernelProducts, ViewOperator
from dmo.fit.functions import Expansion, FactorExpansion
from dmo.fit.krylov import Krylov, subspaces
from dmo.fit.moments import LABELS, ROWS, Moments
from dmo.fit.one_view import (
    ViewColumns,
    collect_view,
    factor_columns,
    feature_columns,
    relation_features,
    subspace_columns,
)
from dmo.fit.ridge_solves import SPACE, is_precise
from dmo.graphs.distances import read
from dmo.inputs import EntryRows, picked
from dmo.kernels import Linear, parse
from dmo.kernels.composite import is_pairwise
from dmo.linalg.eigen import CUTOFF, fix_signs, power_of
from dmo.linalg.operators import Operator
from dmo.lowrank import FeatureMap
from dmo.methods.catalog import CatalogEntry
from dmo.methods.quadratic_forms import Options, TraceProblem, TraceSamples
from dmo.methods.spectral import morp_direct, morp_simplified
from dmo.methods.trace_solvers import EmbeddingFit, FullRank, fit_moments, fit_operator, solve_projected

_SINGLE = 1e-5  # smallest tolerance that eigenpairs can reach with float32 products
_SMALL = 4096  # largest number of samples or features for which a linear problem is solved exactly by default
log = logging.getLogger("dmo")
Form = Literal["simplified", "regularized", "direct"]
FORMS = ("simplified", "regularized", "direct")


def regularized(samples: TraceSamples, options: Options, smoothness: np.ndarray) -> TraceProblem:
    """Return the regularized form as an eigenproblem over samples, given `smoothness`, the matrix T'K^-1 T."""
    plain = morp_simplified(samples, options)
    kappa, gamma = plain.A.kernel, options.ridge
    damping, core = 1 + gamma * kappa, None
    if plain.A.core is not None:
        share = plain.A.core[0, 0]
        damped = np.eye(len(smoothness)) + gamma / damping * share * (smoothness + smoothness.T) / 2
        core = share * np.linalg.inv(damped) / damping**2
    return replace(plain, A=replace(plain.A, kernel=kappa / damping, core=core), ridge=0.0)


Decoder = tuple[np.ndarray, np.ndarray]
"""Linear function from coordinates to labels: coefficients of shape (k, q) and an offset of shape (q,)."""


@dataclass(frozen=True)
class MethodTask:
    """Projection problem of a method in the catalog."""

    decodes: ClassVar[bool] = False
    scaled: ClassVar[bool] = True

    entry: CatalogEntry
    options: Options

    @property
    def center(self) -> bool:
        return self.entry.center

    @property
    def ridge(self) -> float:
        """Smallest ridge of the linear systems, or infinity if the method solves none."""
        return self.options.ridge if "ridge" in self.entry.parameters else np.inf

    def columns(self, samples: TraceSamples) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the label factor, of shape (n, q), and the diagonal of the form, which a pass over the rows needs."""
        form = self.entry.problem(samples, self.options).A
        return form.factor, form.diagonal

    def problem(self, samples: TraceSamples, seen: Moments | Operator) -> TraceProblem:
        """Return the eigenproblem of samples that are described by moments or by a kernel."""
        return self.entry.problem(samples, self.options)


@dataclass(frozen=True)
class FormTask:
    """Projection problem of a form of multi-output regularized projection."""

    decodes: ClassVar[bool] = True

    form: Form  # form of the eigenproblem, as described in the module docstring
    options: Options
    centered: bool
    scaled: bool = True  # whether to multiply each coordinate by the square root of its eigenvalue

    @property
    def center(self) -> bool:
        return self.centered

    @property
    def ridge(self) -> float:
        return 0.0 if self.form == "regularized" and self.options.mixing else self.options.ridge

    def floored(self, ridge: float) -> FormTask:
        """Replace a ridge of 0 with `ridge` if the objective contains the labels and the form is not "regularized"."""
        options = self.options
        if options.ridge or not options.mixing or self.form == "regularized":
            return self
        return replace(self, options=replace(options, ridge=ridge))

    def columns(self, samples: TraceSamples) -> tuple[np.ndarray | None, np.ndarray | None]:
        return samples.factor, None  # The decoder needs the labels even if their weight in the objective is 0.

    def problem(self, samples: TraceSamples, seen: Moments | Operator) -> TraceProblem:
        if self.form != "regularized":
            return (morp_simplified if self.form == "simplified" else morp_direct)(samples, self.options)
        smoothness = _smoothness(samples, seen) if self.options.mixing else np.zeros((0, 0))
        return regularized(samples, self.options, smoothness)


def _smoothness(samples: TraceSamples, seen: Moments | Operator) -> np.ndarray:
    """Compute T'K^-1 T for the label factor T, from moments of rows and labels or from the kernel."""
    if isinstance(seen, Moments):
        slices, gram = seen.slices(), (seen.centered() if samples.center else seen).gram
        G = gram[slices[ROWS], slices[ROWS]]
        spectrum = np.linalg.eigvalsh(G)
        rank, full = int((spectrum > CUTOFF * spectrum[-1]).sum()), samples.n - int(samples.center)
        if rank < full:
            raise UserError(
                f"form 'regularized' needs a kernel of full rank {full}, got rank {rank}: with a rank-deficient kernel, "
                f"labels have no influence; use form='direct' or 'simplified'"
            )
        half = power_of(G, -1.0) @ gram[slices[ROWS], slices[LABELS]]
        return half.T @ half
    try:
        inverse = FullRank(seen)
    except UserError as error:
        raise UserError(
            f"form 'regularized' needs a kernel of full rank: with a rank-deficient kernel, labels have no influence "
            f"({error}); use form='direct' or 'simplified'"
        ) from error
    T = samples.rooted(samples.factor)
    return T.T @ inverse(T)


Task: TypeAlias = MethodTask | FormTask
"""Projection problem, independent of the method that solves it."""


def decode(moments: Moments) -> Decoder | None:
    """Fit a decoder of the labels by least squares with an intercept, or return None without labels."""
    if LABELS not in moments.widths:
        return None
    slices, centered = moments.slices(), moments.centered().gram
    Z = slices[ROWS]
    B = power_of(centered[Z, Z], -1.0) @ centered[Z, slices[LABELS]]
    mean = moments.mean()
    return B, mean[slices[LABELS]] - mean[Z] @ B


_SHRINKAGE = 1e-3
"""Fraction of the total scatter that is added to the within-class scatter, which can be 0."""


def discriminants(moments: Moments) -> Decoder | None:
    """Fit linear discriminants, which are log densities of Gaussian classes with a common covariance."""
    # Source: Fisher 1936.
    if LABELS not in moments.widths:
        return None
    slices, total = moments.slices(), moments.centered().gram
    Z, labels = slices[ROWS], slices[LABELS]
    counts = moments.sums[labels]
    means = moments.gram[labels, Z] / np.maximum(counts, 1.0)[:, None]
    mean = moments.mean()[Z]
    apart = means - mean
    within = total[Z, Z] - apart.T @ (counts[:, None] * apart)
    B = power_of((within + _SHRINKAGE * total[Z, Z]) / moments.n, -1.0) @ apart.T
    offset = np.log(np.maximum(counts, 1.0) / moments.n) - np.einsum("qk,kq->q", apart / 2 + mean, B)
    return B, offset


Learner: TypeAlias = Callable[[Moments], Decoder | None]
"""Function that fits a decoder: `decode` or `discriminants`."""


def decode_rows(
    task: Task, samples: TraceSamples, embedding: np.ndarray, learn: Learner | None = None
) -> Decoder | None:
    """Fit a decoder of the labels to coordinates in memory, of shape (n, k)."""
    if samples.labels is None or not (task.decodes or learn):
        return None
    groups = {ROWS: samples.rooted(np.asarray(embedding, np.float64)), LABELS: samples.rooted(samples.labels)}
    roots = None if samples.weights is None else np.sqrt(samples.weights)
    moments = Moments.zeros({name: part.shape[1] for name, part in groups.items()}).absorb(groups, roots)
    return (learn or decode)(moments)


@dataclass(frozen=True)
class ProjectionOptions:
    """Parameters of an estimator that determine how its eigenproblem is solved."""

    kernel: Any
    approximation: Any
    tol: float
    max_iter: int
    random_state: int | None
    dual: bool | None = None  # whether to solve the dual of a linear problem; None: if n is below d
    floor: float = 0.0  # ridge that replaces 0 in the dual problem, as a fraction of the mean diagonal of the kernel


@dataclass(frozen=True)
class Projected:
    """Fitted projection with an optional decoder of the labels."""

    expansion: Expansion  # function that computes coordinates of new samples
    fit: EmbeddingFit
    embedding: np.ndarray | None  # coordinates of the training samples, of shape (n, k); None: not computed by the fit
    decoder: Decoder | None = None  # decoder of the labels; None without labels


def project(
    task: Task,
    view: str,
    X: Rows,
    labels: np.ndarray | None,
    k: int,
    options: ProjectionOptions,
    weights: np.ndarray | None = None,
    learn: Learner | None = None,
) -> Projected:
    """Solve a task on rows of shape (n, d) and an optional label factor of shape (n, q).

    `learn` fits the decoder to moments of coordinates and labels.
    """
    if weights is not None and not weights.all():
        index = np.flatnonzero(weights)
        some = None if labels is None else picked(labels, index)
        found = project(task, view, Subset(X, index), some, k, options, weights[index], learn)
        return replace(found, embedding=None)  # The fit has no coordinates for samples of weight 0.
    samples = TraceSamples(X.shape[0], None, labels, 1.0, task.center, weights)
    kernel = parse(options.kernel)
    linear = isinstance(kernel, Linear) and kernel.normalize is None
    if isinstance(options.approximation, str) and options.approximation == "auto":
        chosen = _linear_engine(task, X) if linear else choose_engine("auto", samples.n, 1, kernel)
        options = replace(options, approximation=chosen)
    if isinstance(options.approximation, Krylov) and not linear:
        raise UserError(f"Krylov needs kernel='linear', got {options.kernel!r}; use Nystrom or Meka")
    seed = options.random_state
    if isinstance(options.approximation, Krylov):
        found = _in_subspaces(task, view, X, samples, k, options.approximation, seed)
        return found if learn is None else replace(found, decoder=None)
    if not is_exact(options.approximation):
        columns = factor_columns(options.approximation, view, X, options.kernel, task.center, seed, samples.weights)
        return _by_moments(task, columns, X, samples, k, learn)
    if linear and not (X.shape[1] > X.shape[0] if options.dual is None else options.dual):
        return _by_moments(task, feature_columns(view, X, task.center), X, samples, k, learn)
    built: ViewOperator
    if linear:
        built = DualView.build(view, X, task.center, samples.weights)
        if options.floor and isinstance(task, FormTask):
            task = task.floored(options.floor * float(built.operator.diagonal().sum()) / samples.size)
    else:
        exact = exact_engine(options.approximation)
        built = KernelProducts.build(exact, view, X, options.kernel, task.ridge, task.center, seed, samples.weights)
        if built.dtype == np.float32:
            options = replace(options, tol=max(options.tol, _SINGLE))
    return _by_products(task, built, samples, k, options, learn)


def _in_subspaces(
    task: Task, view: str, X: Rows, samples: TraceSamples, k: int, method: Krylov, random_state: int | None
) -> Projected:
    """Solve a linear problem in growing Krylov subspaces until the eigenvalues hardly change."""
    samples = samples.held()
    labels, _ = task.columns(samples)
    values, growth, steps = None, 0.0, 0
    for steps, found in enumerate(subspaces(method, X, labels, task.center, random_state, samples.weights), 1):
        if found.basis.shape[1] < k and not found.last:
            continue
        done = _by_moments(task, subspace_columns(view, found), X, samples, k, None, found.moments)
        if values is not None:
            growth = float(np.abs(done.fit.values - values).max() / np.abs(done.fit.values).max())
            log.info("Krylov subspace: in step %d the eigenvalues grew by %.1e of the largest", steps, growth)
            if growth <= method.tol:
                break
        values = done.fit.values
    return replace(done, fit=replace(done.fit, steps=steps, converged=growth <= method.tol, residual=growth))


def _by_products(
    task: Task, built: ViewOperator, samples: TraceSamples, k: int, options: ProjectionOptions, learn: Learner | None
) -> Projected:
    """Solve a problem by products with a kernel, or with the rows of a linear kernel."""
    samples = samples.held()
    seen = replace(samples, trace=float(built.operator.diagonal().sum()))
    problem = task.problem(seen, built.operator).rooted(samples.weights)
    fit = fit_operator(problem, built.operator, k, options.tol, options.max_iter, options.random_state)
    fit = fit if task.scaled else fit.unscaled()
    roots = np.ones(1) if samples.weights is None else np.sqrt(samples.weights)[:, None]
    if samples.weights is not None:  # Integer weights must yield the same signs as repeated samples.
        fit = replace(fit, coefficients=fix_signs(fit.coefficients / roots) * roots)
    expansion, embedding = built.function(fit.coefficients)
    embedding = embedding / roots
    return Projected(expansion, fit, embedding, decode_rows(task, samples, embedding, learn))


def _by_moments(
    task: Task,
    columns: ViewColumns,
    X: Rows,
    samples: TraceSamples,
    k: int,
    learn: Learner | None,
    moments: Moments | None = None,
) -> Projected:
    """Solve a task by moments of columns and labels, which are collected in one pass unless `moments` is given."""
    (labels, diagonal), weights = task.columns(samples), samples.weights
    if moments is not None and diagonal is None:
        return _from_moments(task, columns, moments, samples, k)
    if learn is None or samples.labels is None:
        single = isinstance(task, FormTask) and hasattr(columns.row_map, "single")
        moments = in_single(
            {ROWS: columns.row_map} if single else {},
            {ROWS: X},
            lambda own: collect_view(
                replace(columns, row_map=own.get(ROWS, columns.row_map)), X, labels, diagonal, weights
            ),
            lambda found: is_precise(found, {ROWS: 1.0}, task.ridge, task.center, SPACE),
        )
        return _from_moments(task, columns, moments, samples, k)
    # One pass collects the moments of both the label factor of the method and the labels of the decoder.
    both = samples.labels if labels is None else np.hstack([labels, samples.labels])
    moments = collect_view(columns, X, both, diagonal, weights)
    first = both.shape[1] - samples.labels.shape[1]
    done = _from_moments(task, columns, _divided(moments, first, LABELS, "outputs"), samples, k)
    return replace(done, decoder=_decoded(task, _divided(moments, first, "columns", LABELS), done, learn))


def project_pass(
    task: Task, view: str, feature_map: FeatureMap, moments: Moments, k: int, learn: Learner | None
) -> Projected:
    """Solve a task on moments of the factor rows of a view, after a pass with partial_fit.

    Pseudo-samples with the same inner products replace the labels, so the method must use only inner products.
    """
    labels, transform = moments.slices().get(LABELS), None
    samples = TraceSamples(cast(int, moments.n), None, None, 1.0, task.center)
    if labels is not None:
        gram = moments.centered_gram(LABELS) if task.center else moments.gram[labels, labels].copy()
        Y = pseudo_samples(gram, np.sqrt(np.maximum(np.diagonal(gram), 1e-300)))
        samples = replace(samples, labels=Y)
        factor = task.columns(samples)[0]
        # The label factor of a method is a linear function of the labels.
        transform = None if factor is None else np.linalg.pinv(Y) @ factor
    own = moments if transform is None else moments.mixed({LABELS: transform})
    columns = ViewColumns(feature_map, partial(FactorExpansion.of, view, feature_map))
    done = _from_moments(task, columns, own, samples, k)
    return replace(done, decoder=_decoded(task, moments, done, learn))


def _decoded(task: Task, moments: Moments, done: Projected, learn: Learner | None) -> Decoder | None:
    """Fit the decoder to the coordinates of a solved task, which have mean 0 if the task is centered."""
    decoder = None if learn is None else learn(moments.mixed({ROWS: done.fit.coefficients}))
    if decoder is None or not task.center:
        return decoder
    B, offset = decoder
    return B, offset + moments.mean()[moments.slices()[ROWS]] @ done.fit.coefficients @ B


def _divided(moments: Moments, first: int, name: str, rest: str) -> Moments:
    """Split the label columns of moments: the first `first` columns become the group `name`, the others `rest`."""
    widths: dict[str, int] = {}
    for group, width in moments.widths.items():
        widths |= {group: width} if group != LABELS else {name: first, rest: width - first}
    return replace(moments, widths=widths)


def _from_moments(task: Task, columns: ViewColumns, moments: Moments, samples: TraceSamples, k: int) -> Projected:
    """Solve a task on moments of columns and labels."""
    where, trace, offset = moments.slices()[ROWS], columns.trace, np.zeros(k)
    if trace is None:
        inner = moments.centered() if task.center else moments
        trace = float(np.trace(inner.gram[where, where]))
    problem = task.problem(replace(samples, trace=trace), moments)
    fit = fit_moments(problem, moments, k, samples.weights)
    fit = fit if task.scaled else fit.unscaled()
    if task.center:
        offset = -(moments.mean()[where] @ fit.coefficients)
    decoder = decode(moments.mixed({ROWS: fit.coefficients})) if task.decodes else None
    if decoder is not None and samples.labels is not None:
        B, rest = decoder  # The decoder is fitted to coordinates without an offset, and to labels that may be centered.
        centered = task.center and not isinstance(samples.labels, EntryRows)
        mean = samples.mean(samples.labels) if centered else np.zeros(B.shape[1])
        decoder = B, rest + mean - offset @ B
    return Projected(columns.function(fit.coefficients, offset), fit, None, decoder)


def _linear_engine(task: Task, X: Rows) -> Any:
    """Choose an exact solution if the problem has few samples or features, otherwise a Krylov subspace."""
    side = min(X.shape)
    if side <= _SMALL or (isinstance(task, FormTask) and task.form == "regularized"):
        return "exact"
    log.info("engine: a Krylov subspace (the exact problem is of %d x %d)", side, side)
    return Krylov()


def check_has_features(kernel: Any, what: str) -> None:
    """Raise an error for a precomputed kernel if a method searches for neighbors, which requires features."""
    if is_pairwise(kernel):
        raise UserError(
            f"{what} finds neighbors by features, which a precomputed kernel does not contain; pass the features and the "
            "name of a kernel, or use MORP, or method 'fda', 'mmc' or a global method of TraceEmbedding"
        )


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
    weights: np.ndarray | None = None,
) -> Projected:
    """Solve a problem on the features of a view, on their similarities to landmarks, or on low-rank factor rows."""
    # `problem_of` maps rows in memory to the eigenproblem and the indices of its samples, or None for all samples.
    # `kernel`, `approximation` and `n_landmarks` are described in `relation_features`, and `variance` in
    # `solve_projected`. The coordinates have the weighted mean 0.
    X = read(source)
    problem, index = problem_of(X)
    features = relation_features(view, X, kernel, approximation, n_landmarks, random_state, weights)
    known = features.values if index is None or len(index) == X.shape[0] else features.values[index]
    own = weights if weights is None or index is None else weights[index]
    found = solve_projected(problem, known, k, variance, own)
    offset = found.offset
    if own is not None:
        offset = -np.asarray(own @ (known @ found.coefficients)) / own.sum()
    expansion = features.function(found.coefficients, offset)
    embedding = np.asarray(features.values @ found.coefficients) + offset
    return Projected(expansion, EmbeddingFit(found.values, found.coefficients), embedding)
