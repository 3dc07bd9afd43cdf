"""What a fit will take, before it starts: bytes, tasks, and seconds from timings made on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse
from sklearn.base import is_regressor

from dmo.blocks import Rows, Subset, rows
from dmo.cluster import current_client
from dmo.engines.exact import Exact, choose_storage
from dmo.engines.lowrank import FOLDS, by_gradients, choose_engine, is_exact
from dmo.engines.view_neighbors import QUERIES, distance_kernel, named_distances
from dmo.errors import UserError, amount
from dmo.estimators.distance_annotator import DistanceAnnotator
from dmo.estimators.fasttag import FastTag
from dmo.estimators.homogeneity import HomogeneityAnalysis
from dmo.estimators.homogeneity_embedding import HomogeneityEmbedding
from dmo.estimators.kgha import KGHA
from dmo.estimators.landmark_regression import kept_bytes
from dmo.estimators.mesd import MESD
from dmo.estimators.mope import MOPE
from dmo.estimators.neighbor_votes import NeighborVotes
from dmo.estimators.out_of_fold import HELD_OUT_ROWS, PASSED_ROWS, SOLVED_ROWS, SOLVED_SOME
from dmo.estimators.projection import Projection
from dmo.estimators.propagation import LabelPropagation
from dmo.estimators.ridge import MultiViewRidge
from dmo.estimators.trace import TraceEmbedding
from dmo.kernels import Linear, parse, parse_relation
from dmo.linalg.cg import default_rank
from dmo.lowrank.approximations import Meka, Nystrom
from dmo.lowrank.sampling import learning_rows
from dmo.methods.embeddings.catalog import METHODS
from dmo.methods.embeddings.solvers import DIRECT_ROWS
from dmo.methods.landmark_ridge import PASSES, solved_by_rows
from dmo.methods.landmark_ridge import STEPS as LANDMARK_STEPS
from dmo.persistence import load
from dmo.validation import Preparation, per_view
from dmo.validation.preparation import PreparedRows
from dmo.workflows.resources import Graph, pass_graph, tile_graph
from dmo.workflows.timings import TIMED, bandwidth_seconds, best_seconds, kernel_seconds, multiply_rate

_SELECT = 2e-9
"""Seconds in which a pair of samples is judged, beside its product: the nearest are selected."""
_VECTORS = 4
"""Blocks of vectors that a step of conjugate gradients adds, beside its product."""
_TABLE = 15
"""Multiplications per sample and pair of categories in a step of homogeneity analysis: orthonormal bases, projections."""
_EDGE = 1e-9
"""Seconds of one number of an edge: a feature, or a label, of one of its ends."""
_CALIBRATION = 1.5e-6
"""Seconds of a score that probabilities are learned from."""
_ENTRY = 2e-8
"""Seconds of a number of the features, beside products: rows are converted, centered, multiplied by their weights."""
_EIGEN = 30.0
"""Multiplications, by the cube of its side, of an eigenproblem of two matrices."""
_INVERSE = 1.5
"""Time of the diagonal of an inverse in that of its Cholesky factor."""
PROPAGATION_STEPS = 15
"""Steps of label propagation's conjugate gradients to expect (11 at its defaults)."""
_MEKA = 2.3
"""Seconds of MEKA's clusters, landmarks, bases and links, in those of its links alone."""
_LATENCY = 2e-3
"""Seconds that a task costs beside its work."""
_ROUND_TRIP = 0.03
"""Seconds that a product on a cluster takes at least: its block is sent, its sum fetched, before the next one begins."""
STEPS = 3
"""Block steps of the eigensolver to expect (it starts from the labels)."""
ITERATIONS = 100
"""Iterations of a support vector regression to expect, with one solve each."""
PRODUCTS, CHECKS = 12, 3
"""Products with a kernel of 4000 samples that conjugate gradients take for one block of right-hand sides (ridge 0.1), and
those in float64 beside them, which tell how far the search truly is."""
STEP_PRODUCTS, STEP_CHECKS = 6, 1.5
"""The same of one block step of an eigenvalue search, on average: later steps are solved less exactly."""
NEAR_PRODUCTS, NEAR_CHECKS = 4, 2
"""The same of coefficients for combinations of blocks that the search has solved for."""
_GROWTH, _FOR_RIDGE = 0.15, 0.2
"""Powers of samples, over 4000, and of 0.1 over the ridge, by which products grow (12 of 4000 samples, 14 of 10 000)."""
_EXTRA = 60
"""Columns beside the labels from which projections are sought."""
_NARROW = 1.5
"""Time of products of tiles with blocks of some hundred columns in that of square ones, sums of the shares included."""
_WIDENED = 2e9
"""Bytes of tiles that are cast to float64 in a second, read and written."""
_PRECONDITIONER = 12
"""Multiplications, by n rank^2, of the preconditioner's pivots, Gram matrix and basis in float64."""
_ALGEBRA = 90
"""Multiplications, by n k^2, of the driver beside each product with a block of k columns: directions, steps, bases."""
_READ = 2e9
"""Bytes of stored tiles that are read and checked in a second."""
_WRITTEN = 5e8
"""Bytes of stored tiles that are written in a second."""
_SENT = 2.5e8
"""Bytes of blocks that go to a worker, or come back, in a second."""


@dataclass(frozen=True)
class Work:
    """What is to be fitted: `n` samples, `kernels` operators, of which `factors_held` at the same time, `columns`
    right-hand sides in a block, `solves` blocks per operator, `storage` and `block` of `dmo.Exact`; `loo`: leave-one-out
    values are needed, `held_out`: samples of a further fit that teaches label sets, `search`: what eigenvectors are sought
    of, smoothers (solves) or the kernel itself (products alone), from `labels` columns; `ridge`: the smallest."""

    n: int
    kernels: int
    factors_held: int
    columns: int
    solves: int
    storage: str
    block: int
    loo: bool = False
    held_out: int = 0
    search: Literal["smoothers", "kernel"] | None = None
    ridge: float = 0.1
    labels: int = 0


Kind = Literal["exact", "low rank", "landmarks", "graph", "distances", "table"]
"""What a fit goes by."""
_WORDS: dict[Kind, tuple[str, str, str]] = {
    "exact": ("kernels", "factors", "kernels"),
    "low rank": ("moments", "small factors", "pass"),
    "landmarks": ("kernel values", "factors", "kernel values"),
    "graph": ("graph", "systems", "neighbors"),
    "distances": ("distances of a block", "neighbors", "distances"),
    "table": ("indicators", "subspace", "table"),
}
"""What is held, what is solved with, and what the first of its seconds are for."""


@dataclass(frozen=True)
class Plan:
    """Predicted costs of a fit.

    Parameters
    ----------
    storage : str
        Where kernels are, or what takes their place.
    kernel_bytes : int
        Of what is held.
    factor_bytes : int
        Of what is solved with.
    model_bytes : int
        On disk.
    tasks : int
        On the cluster; 0: it runs in this process.
    kernel_seconds : float
        On this machine.
    solve_seconds : float
        On this machine.
    kind : {"exact", "low rank", "landmarks", "graph", "distances", "table"}, default="exact"
        What the fit goes by.
    graph : Graph, optional
        What the scheduler of a cluster has to do with it; None: it runs in one process.

    Examples
    --------
    >>> from dmo.workflows.plan import Plan
    >>> Plan("memory", 4000, 8000, 100, 0, kernel_seconds=0.5, solve_seconds=0.25).seconds
    0.75
    """

    storage: str
    kernel_bytes: int
    factor_bytes: int
    model_bytes: int
    tasks: int
    kernel_seconds: float
    solve_seconds: float
    kind: Kind = "exact"
    graph: Graph | None = None

    @property
    def seconds(self) -> float:
        """In all, on this machine."""
        return self.kernel_seconds + self.solve_seconds

    def to_dict(self) -> dict[str, Any]:
        """Describe the plan as JSON.

        Returns
        -------
        dict
            The parameters, and seconds in all.
        """
        return {**asdict(self), "seconds": self.seconds}

    def rows(self) -> list[tuple[str, str]]:
        """Write the plan as lines of a table.

        Returns
        -------
        list of (str, str)
            Name and value.
        """
        held, solved, first = _WORDS[self.kind]
        return [
            (held, f"{amount(self.kernel_bytes)} ({self.storage})"),
            (solved, amount(self.factor_bytes)),
            ("model", amount(self.model_bytes)),
            ("tasks", str(self.tasks) if self.tasks else "0 (in this process)"),
            *([] if self.graph is None else [("on a cluster", self.graph.words())]),
            (
                "estimated time",
                f"{self.seconds:.1f} s: {first} {self.kernel_seconds:.1f} s, solves {self.solve_seconds:.1f} s",
            ),
        ]


def plan_fit(estimator: Any, views: Mapping[str, Rows], labels: int) -> Plan | None:
    """Predict the costs of `estimator.fit`.

    Parameters
    ----------
    estimator : estimator
        With its parameters, kernels decided.
    views : mapping of str to row source of shape (n, d)
        Training samples.
    labels : int
        Their labels.

    Returns
    -------
    Plan or None
        None where nothing predicts them.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.workflows.plan import plan_fit
    >>> X = {"x": np.random.default_rng(0).normal(size=(100, 4))}
    >>> plan_fit(dmo.KGHA(), X, labels=5).kernel_bytes
    40000
    >>> plan_fit(dmo.LabelPropagation(), X, labels=5).kind
    'graph'
    """
    views = {name: _without_gaps(source) for name, source in views.items()}
    n, kernel = next(iter(views.values())).shape[0], getattr(estimator, "kernel", "linear")
    if isinstance(estimator, (FastTag, NeighborVotes)):
        base = base_of(estimator)
        found = plan_fit(base, views, labels)
        return None if found is None else _and_scores(found, estimator, base, n, labels, views)
    if _on_samples(estimator) or not hasattr(estimator, "approximation"):
        return _without_engine(estimator, views, n, labels)
    if isinstance(estimator, Projection) and kernel == "linear":
        return plan_linear(n, next(iter(views.values())), estimator.n_components)
    kernels = _kernels(estimator, views)
    engine = choose_engine(estimator.approximation, n, 1 if kernel == "product" else len(views))
    if by_gradients(engine) and isinstance(estimator, MultiViewRidge):
        return plan_landmarks(engine, n, labels, views, kernels, estimator.label_sets)
    if not is_exact(engine):
        return plan_low_rank(engine, n, labels, views, kernels)
    return plan_exact(estimator, Exact() if isinstance(engine, str) else engine, n, labels, views, kernels)


def _kernels(estimator: Any, views: Mapping[str, Rows]) -> dict[str, Any]:
    """The kernels of the views, of a product those of their distances."""
    kernel = getattr(estimator, "kernel", "linear")
    if kernel == "product":
        named = named_distances(estimator.distances, views)
        return {view: distance_kernel(name, estimator.gamma) for view, name in named.items()}
    return per_view("kernel", kernel, list(views))


def _without_gaps(source: Rows) -> Rows:
    """The rows with 0 for missing cells, of which no time depends."""
    inner = source.source if isinstance(source, Subset) else source
    if not getattr(inner, "missing", False):
        return source
    return PreparedRows(source, Preparation("none", fill=np.zeros(source.shape[1])), lambda block, first: None)


def plan_exact(
    estimator: Any, engine: Exact, n: int, labels: int, views: Mapping[str, Rows], kernels: Mapping[str, Any]
) -> Plan:
    """Costs of a fit of n samples with the exact engine."""
    combined = getattr(estimator, "combine", "predictions") != "predictions" or is_regressor(estimator)
    combined = combined or getattr(estimator, "kernel", None) == "product"
    spectral = isinstance(estimator, (HomogeneityEmbedding, Projection))
    count = estimator.n_components if spectral else labels
    columns = max(labels, round(count * labels) if isinstance(count, float) else count)
    held = 1 if combined else len(views)
    work = Work(
        n=n,
        kernels=held,
        factors_held=held if spectral else 1,
        columns=columns,
        solves=_solves(estimator),
        storage=choose_storage(engine, n, held),
        block=engine.block,
        loo=isinstance(estimator, MultiViewRidge) and _judged(estimator, n) > 0,
        held_out=_judged(estimator, n) if isinstance(estimator, KGHA) and estimator.decoder is None else 0,
        search=_search(estimator),
        ridge=_least_ridge(estimator),
        labels=labels,
    )
    width = sum(source.shape[1] * np.dtype(source.dtype).itemsize for source in views.values())
    found = plan(work, views, kernels, n * width + 8 * n * columns * held)
    return replace(found, solve_seconds=found.solve_seconds + _CALIBRATION * _judged(estimator, n) * labels)


def _judged(estimator: Any, n: int) -> int:
    """Samples whose held-out scores teach label sets, or a decoder."""
    if getattr(estimator, "decoder", None) is not None or bool(getattr(estimator, "standardize", 0)):
        return n
    if not getattr(estimator, "label_sets", False):
        return 0
    return min(n, HELD_OUT_ROWS) if isinstance(estimator, KGHA) else n


def _without_engine(estimator: Any, views: Mapping[str, Rows], n: int, labels: int) -> Plan | None:
    """Costs of a fit of n samples by an estimator that has no choice of engines."""
    source = next(iter(views.values()))
    if isinstance(estimator, LabelPropagation):
        return plan_graph(n, source, estimator.n_neighbors, labels)
    if isinstance(estimator, HomogeneityAnalysis):
        return plan_table(n, source, estimator.n_components)
    if isinstance(estimator, DistanceAnnotator):
        learns = type(estimator)._learn_neighbors is not DistanceAnnotator._learn_neighbors
        return plan_distances(estimator, n, labels, views, learns or estimator.decoder is not None)
    return plan_samples(estimator, n, source, labels) if _on_samples(estimator) else None


def _on_samples(estimator: Any) -> bool:
    """Whether it solves a problem of the samples on their features in memory, or their similarities to some of them."""
    if isinstance(estimator, TraceEmbedding):
        method = METHODS.get(estimator.method)  # an unknown name is refused by the fit
        if method is None or method.family == "global":
            return False
    return isinstance(estimator, (MOPE, MESD, TraceEmbedding)) and is_exact(
        getattr(estimator, "approximation", "exact")
    )


def plan_samples(estimator: Any, n: int, source: Rows, labels: int) -> Plan | None:
    """Costs of such a problem: neighbors, the features (n x p), forms of them (p x p), eigenpairs. None where neighbors are
    sought class by class, or every sample is reconstructed from others: how many, the labels decide."""
    entry = METHODS.get(getattr(estimator, "method", ""))
    if entry is not None and (entry.direct or entry.family != "supervised" or "n_neighbors" in entry.parameters):
        return None
    if entry is not None and "n_repelled" in entry.parameters:
        return None
    d, k = source.shape[1], getattr(estimator, "n_neighbors", None) if entry is None else 0
    single, double = multiply_rate(np.float32), multiply_rate(np.float64)
    edges = n * n if k is None else 2 * n * k
    forming = n * n * (2.0 * d / single + _SELECT) + edges * (d + labels) * _EDGE if entry is None else 0.0
    similarity = parse_relation(estimator.kernel)
    p = d
    if estimator.n_landmarks is not None or not isinstance(similarity, Linear) or similarity.normalize is not None:
        p = min(n, estimator.n_landmarks or n)
        forming += 2 * kernel_seconds({"x": source}, {"x": similarity})[0] * n * p  # in float64
        forming += bandwidth_seconds(similarity, source, n)
    side = min(n, p)
    products = 4.0 * n * n * p + 2.0 * n**3 if p > n else 2.0 * n * p * p
    forming += _ENTRY * n * p
    held = 8 * n * p
    return Plan(
        f"{n} x {p} {'features' if p == d else 'similarities'}",
        held,
        8 * 4 * side**2,
        8 * p * estimator.n_components + (0 if p == d else n * d * 4),
        0,
        forming,
        (2 * products + _EIGEN * side**3) / double,
        "graph" if entry is None else "exact",
    )


def base_of(estimator: FastTag | NeighborVotes) -> Any:
    """The model that its labels, or votes, start from."""
    given = load(estimator.base) if isinstance(estimator.base, str) else estimator.base
    return MultiViewRidge() if given is None else given


def _and_scores(
    found: Plan, estimator: FastTag | NeighborVotes, base: Any, n: int, labels: int, views: Mapping[str, Rows]
) -> Plan:
    """The plan of the base, and what comes after it: scores of the training samples, or all votes of all of them."""
    single, double = multiply_rate(np.float32), multiply_rate(np.float64)
    pairs, seconds = float(n) * n, 2.0 * labels**3 * 4 / double
    exact = is_exact(choose_engine(base.approximation, n, len(views)))
    if isinstance(estimator, NeighborVotes):
        seconds += pairs * (4.0 * labels / single + 2 * _SELECT) + 2 * _CALIBRATION * n * labels
        kernel, solve = (1 + FOLDS * (1 - 1 / FOLDS) ** power for power in ((2, 3) if exact else (1, 0)))
        found = replace(
            found, kernel_seconds=kernel * found.kernel_seconds, solve_seconds=solve * found.solve_seconds
        )  # the base is fitted on the parts as well
    if exact:
        per_value, per_row = kernel_seconds(views, _kernels(base, views))
        seconds += pairs * per_value + per_row * n
    return replace(found, solve_seconds=found.solve_seconds + seconds)


def plan_graph(n: int, source: Rows, k: int, labels: int) -> Plan:
    """Costs of labels spread along the graph of k neighbors: all pairs of rows compared, then sparse systems."""
    d, size = source.shape[1], min(TIMED, n)
    search = n * n * (2.0 * d / multiply_rate(np.float32) + _SELECT)
    edges = 2 * n * k  # symmetric: about twice as many as neighbors
    some = scipy.sparse.random_array((size, size), density=min(1.0, 2 * k / size), format="csr", rng=0)
    block = np.ones((size, max(labels, 1)))
    step = best_seconds(lambda: some @ block) * n / size + best_seconds(lambda: block * 2 + block) * n / size * _VECTORS
    width = d * np.dtype(source.dtype).itemsize
    solving = PROPAGATION_STEPS * step
    return Plan(
        f"graph of {k} neighbors", 12 * edges, 8 * n * labels * 4, n * (width + 8 * labels), 0, search, solving, "graph"
    )


def plan_table(n: int, source: Rows, components: int) -> Plan:
    """Costs of homogeneity analysis of categorical columns, with the categories of the first rows."""
    first = np.asarray(rows(source, slice(0, min(TIMED, n))))
    categories = sum(len(np.unique(column)) for column in first.T)
    reading = best_seconds(lambda: [np.unique(column) for column in first.T]) * n / len(first)
    algebra = (STEPS + 1) * _TABLE * n * categories**2 / multiply_rate(np.float64)
    held = 8 * n * categories
    return Plan(
        f"{categories} categories",
        2 * held,
        2 * held,
        8 * (n + categories) * components,
        0,
        4 * reading,
        algebra,
        "table",
    )


def plan_distances(estimator: DistanceAnnotator, n: int, labels: int, views: Mapping[str, Rows], learns: bool) -> Plan:
    """Costs of an annotator that keeps its samples; where it learns, all pairs of them are compared in every view."""
    kernels = {view: distance_kernel(name) for view, name in named_distances(estimator.distances, views).items()}
    per_value, per_row = kernel_seconds(views, kernels)
    width = sum(source.shape[1] * np.dtype(source.dtype).itemsize for source in views.values())
    pairs = n * n * (per_value + _SELECT * len(views)) if learns else 0.0
    block = 4 * QUERIES * n * (len(views) + 1)
    found = n * estimator.n_neighbors * (8 + 4 * len(views))
    return Plan("rows of all views", block, found, n * (width + labels), 0, pairs + per_row * n, 0.0, "distances")


def compare_engines(
    estimator: Any, views: Mapping[str, Rows], labels: int, n: int, rank: int, clusters: int
) -> tuple[dict[str, Plan], str]:
    """Predict the costs of a fit with every engine that the estimator has.

    Parameters
    ----------
    estimator : estimator
        With its parameters, kernels decided.
    views : mapping of str to row source of shape (n, d)
        Samples like those of the fit.
    labels : int
        Their labels.
    n : int
        Samples of the fit.
    rank : int
        Of "nystrom", and of all clusters of "meka" together.
    clusters : int
        Of "meka".

    Returns
    -------
    plans : dict of str to Plan
        By engine: "exact", "nystrom", "meka"; "exact" alone for an estimator without a choice.
    auto : str
        The engine that "auto" takes.

    Raises
    ------
    UserError
        Where nothing predicts the costs of this estimator.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.workflows.plan import compare_engines
    >>> X = {"x": np.random.default_rng(0).normal(size=(100, 4))}
    >>> plans, auto = compare_engines(dmo.KGHA(), X, labels=5, n=100, rank=10, clusters=2)
    >>> list(plans), auto
    (['exact', 'nystrom', 'meka'], 'exact')
    """
    if isinstance(estimator, (FastTag, NeighborVotes)):
        base = base_of(estimator)
        plans, auto = compare_engines(base, views, labels, n, rank, clusters)
        return {name: _and_scores(found, estimator, base, n, labels, views) for name, found in plans.items()}, auto
    if _on_samples(estimator) or not hasattr(estimator, "approximation"):
        found = _without_engine(estimator, views, n, labels)
        if found is None:
            raise UserError(f"nothing predicts what a fit of {type(estimator).__name__} takes; fit it on fewer samples")
        return {"exact": found}, "exact"
    if isinstance(estimator, Projection) and getattr(estimator, "kernel", "linear") == "linear":
        return {"exact": plan_linear(n, next(iter(views.values())), estimator.n_components)}, "exact"
    kernels = _kernels(estimator, views)
    plans = {"exact": plan_exact(estimator, Exact(), n, labels, views, kernels)}
    if getattr(estimator, "kernel", None) == "product":  # which has no low-rank form
        return plans, "exact"
    low = {"nystrom": Nystrom(rank=rank), "meka": Meka(clusters=clusters, rank=max(1, rank // clusters))}
    plans |= {name: plan_low_rank(engine, n, labels, views, kernels) for name, engine in low.items()}
    return plans, "exact" if choose_engine("auto", n, len(views)) == "exact" else "best"


def products_of(estimator: Any) -> int:
    """Predict how often a fit with tiles multiplies with every kernel.

    Parameters
    ----------
    estimator : estimator
        To be fitted.

    Returns
    -------
    int
        Products.

    Examples
    --------
    >>> import dmo
    >>> from dmo.workflows.plan import products_of
    >>> products_of(dmo.MultiViewRidge()), products_of(dmo.KGHA())
    (15, 28)
    """
    blocks = _blocks(1, 1, 1, _solves(estimator), _search(estimator))
    return round(sum(times * (products + checks) for _, times, products, checks in blocks))


def _search(estimator: Any) -> Literal["smoothers", "kernel"] | None:
    if isinstance(estimator, Projection):
        return "kernel"
    return "smoothers" if isinstance(estimator, HomogeneityEmbedding) else None


def _least_ridge(estimator: Any) -> float:
    """The smallest ridge, 0.1 for what has none that says how hard solves are."""
    given = getattr(estimator, "ridge", 0.1)
    values = list(given.values()) if isinstance(given, Mapping) else np.ravel(given)
    return min((float(value) for value in values if isinstance(value, (int, float)) and value > 0), default=0.1)


def _blocks(
    labels: int, components: int, growth: float, solves: int, search: Literal["smoothers", "kernel"] | None
) -> list[tuple[int, int, float, float]]:
    """Columns of every kind of block that a kernel is multiplied with in tiles, blocks, and products and checks of each."""
    if search is None:
        return [(labels, solves, PRODUCTS * growth, CHECKS)]
    if search == "smoothers":
        steps = (labels, STEPS, STEP_PRODUCTS * growth, STEP_CHECKS)
        return [steps, (components, 1, NEAR_PRODUCTS * growth, NEAR_CHECKS)]
    return [(labels + _EXTRA, STEPS, 1, 0), (components, 1, PRODUCTS * growth, CHECKS)]


def _solves(estimator: Any) -> int:
    if is_regressor(estimator):
        return ITERATIONS
    return STEPS + 1 if isinstance(estimator, (HomogeneityEmbedding, Projection)) else 1


def plan(work: Work, sources: Mapping[str, Rows], kernels: Mapping[str, Any], model_bytes: int) -> Plan:
    """Costs of `work` over the rows of `sources`, from one tile of every view and one matrix product timed here."""
    per_value, per_row = kernel_seconds(sources, kernels)
    if work.storage == "memory":
        return _in_memory(work, per_value * work.n**2 / 2 + per_row * work.n, model_bytes)
    block = min(work.block, work.n)
    # whole tiles on the diagonal, and rows of a block are made ready for every tile of its column
    formation = per_value * work.n * (work.n + block) / 2 + per_row * work.n * (work.n / block + 1) / 2
    first = sum(bandwidth_seconds(parse(kernels[name]), source, work.n) for name, source in sources.items())
    return _tiled(work, formation, first, model_bytes)


def _factor_flops(n: int) -> float:
    return n**3 / 3.0


def _in_memory(work: Work, formation: float, model_bytes: int) -> Plan:
    """Kernels as NumPy arrays with their Cholesky factors, in this process."""
    n, held = work.n, work.factors_held
    flops = work.kernels * (_factor_flops(n) + 4.0 * n * n * work.columns * work.solves)
    flops += work.kernels * (_INVERSE * _factor_flops(n) * work.loo + _factor_flops(work.held_out))
    seconds = flops / multiply_rate(np.float64)
    return Plan(work.storage, 4 * n * n * held, 8 * n * n * held, model_bytes, 0, formation, seconds)


def _tiled(work: Work, formation: float, first: float, model_bytes: int) -> Plan:
    """Kernels as lower tiles, solved with by conjugate gradients, on the workers where there are some.

    `formation` of the tiles of all kernels, once; `first`: seconds before them, as of bandwidths.
    """
    n, client, single, double = work.n, current_client(), multiply_rate(np.float32), multiply_rate(np.float64)
    threads = [] if client is None else list(client.nthreads().values())
    workers, at_a_time = len(threads), max(1, sum(threads))
    stored, recomputed, rank = work.storage == "stored", work.storage == "recomputed", default_rank(n)
    growth = max(1.0, n / 4000) ** _GROWTH * min(3.0, max(0.5, (0.1 / work.ridge) ** _FOR_RIDGE))
    blocks = _blocks(work.labels or work.columns, work.columns, growth, work.solves, work.search)
    direct = work.search == "kernel" and n <= DIRECT_ROWS  # a factor, where all else goes by conjugate gradients
    if direct:
        blocks = blocks[:1]
    if work.loo:  # scores of rows that are left out take a column each
        blocks.append((n if n <= SOLVED_ROWS else SOLVED_SOME, 1, PRODUCTS * growth, CHECKS))
    rough = sum(columns * times * products for columns, times, products, _ in blocks)
    fine = sum(columns * times * checks for columns, times, _, checks in blocks)
    products = sum(times * products for _, times, products, _ in blocks)
    checks = 1 + sum(times * checks for _, times, _, checks in blocks)  # and one that centers
    graph = tile_graph(
        n,
        work.block,
        max(at_a_time, 2),
        work.kernels,
        round(products + checks),
        work.columns,
        work.storage == "resident",
    )
    tasks = 0 if client is None else graph.tasks
    kept = 8 * at_a_time * work.block**2 if recomputed else 2 * n * n * work.kernels
    entries = n * (n + min(work.block, n)) / 2
    multiplying = _NARROW * 2.0 * n * n * (rough / single + fine / double) + checks * 12.0 * entries / _WIDENED
    # `formation` is that of all kernels
    again = formation / work.kernels if recomputed else 4.0 * entries / _READ if stored else 0.0
    # what no worker does: the preconditioner, and what comes between two products
    if direct:
        alone = _factor_flops(n) / double + 12.0 * entries / _WIDENED
    else:
        alone = (_PRECONDITIONER * n * rank**2 + 10.0 * rank**3) / double + 4.0 * n * rank * rough / single
    alone += sum(_ALGEBRA * n * k * k * times * products for k, times, products, _ in blocks) / double
    if client is not None:
        alone += (workers + 1) * n * (4.0 * rough + 8.0 * fine) / _SENT
        alone += _LATENCY * tasks / work.kernels + _ROUND_TRIP * (products + checks)
    solving = work.kernels * ((multiplying + again * (products + checks)) / at_a_time + alone)
    made = 0.0 if recomputed else formation
    columns = formation * rank / n + work.kernels * stored * 4.0 * entries / _WRITTEN
    return Plan(work.storage, kept, 0, model_bytes, tasks, first + (made + columns) / at_a_time, solving, graph=graph)


def plan_low_rank(engine: Any, n: int, labels: int, sources: Mapping[str, Rows], kernels: Mapping[str, Any]) -> Plan:
    """Costs of the moment engine: feature maps learned from a sample, one pass over n rows, small algebra."""
    clusters = getattr(engine, "clusters", 1) if isinstance(engine, Meka) else 1
    per_cluster = 1000 if engine.rank == "auto" else engine.rank
    rank = min(n, per_cluster * clusters)
    fitted = min(n, learning_rows(engine.fit_rows, engine.rank, getattr(engine, "landmarks", "rpcholesky"), clusters))
    views, single, double = len(sources), multiply_rate(np.float32), multiply_rate(np.float64)
    per_value, per_row = kernel_seconds(sources, kernels)
    values = _MEKA * fitted**2 / 2 if clusters > 1 else fitted * rank  # MEKA's fit, or pivoted Cholesky
    mapped = n * (3 * per_cluster if clusters > 1 else rank)
    columns = views * rank + labels
    gram = n * (views * per_cluster + labels) ** 2 if clusters > 1 else n * columns**2
    passing = (
        per_value * (values + mapped) + per_row * (fitted + n) + (views * 2 * n * rank * per_cluster + gram) / single
    )
    algebra = views * 12.0 * rank**3 + 2.0 * columns**2 * views * rank + (STEPS + 1) * 2.0 * columns**2 * max(labels, 1)
    client = current_client()
    threads = 1 if client is None else max(1, sum(client.nthreads().values()))
    graph = pass_graph(n, columns, labels, 8 * n * views, threads)
    tasks = 0 if client is None else graph.tasks
    width = sum(source.shape[1] for source in sources.values())
    model = 4 * rank * width + 8 * views * rank * (rank // clusters + labels)
    name = f"{type(engine).__name__}, " + (f"{clusters} x {per_cluster}" if clusters > 1 else f"rank {rank}")
    seconds = passing / threads, algebra / double
    return Plan(name, 8 * columns**2, 16 * columns**2, model, tasks, *seconds, kind="low rank", graph=graph)


def plan_landmarks(
    engine: Nystrom, n: int, labels: int, sources: Mapping[str, Rows], kernels: Mapping[str, Any], label_sets: bool
) -> Plan:
    """Costs of regressions on kernel values at landmarks, and of those on a part of the rows that teach label sets."""
    rank = min(n, 1000 if engine.rank == "auto" else engine.rank)
    views, single = len(sources), multiply_rate(np.float32)
    fitted = min(n, learning_rows(engine.fit_rows, engine.rank, engine.landmarks))
    per_value, per_row = kernel_seconds(sources, kernels)
    by_rows, samples = solved_by_rows(rank, labels), [n, min(PASSED_ROWS, 3 * n // 4)] if label_sets else [n]
    making, solving, held = 0.0, 0.0, 4 * views * n * rank
    for m in samples:
        r = min(rank, m)
        # kernel values that are not kept are made for every product
        times = (2 if by_rows else LANDMARK_STEPS) if held > views * kept_bytes() else 1
        making += per_value * (fitted * r + r * r + times * m * r) + per_row * (fitted + r + times * m)
        multiplied = m * (r + labels) ** 2 if by_rows else 4 * LANDMARK_STEPS * m * r * (labels + PASSES)
        factored = r**3 / 3 if by_rows else r**3 + 4 * LANDMARK_STEPS * r * r * labels
        solving += views * (multiplied / single + factored / multiply_rate(np.float64))
    width = sum(source.shape[1] for source in sources.values())
    name = f"Nystrom, rank {rank}, " + ("normal equations" if by_rows else "conjugate gradients")
    return Plan(
        name,
        held,
        8 * rank**2 * (2 if by_rows else 1),
        4 * rank * width + 8 * views * rank * labels,
        0,
        making,
        solving,
        "landmarks",
    )


def plan_linear(n: int, source: Rows, components: int) -> Plan:
    """Costs of a linear projection: the d x d moments of the rows, or the n x n products of them where n is smaller."""
    d = source.shape[1]
    side = min(n, d)
    probe = rows(source, slice(0, min(TIMED, n)))
    seconds = best_seconds(lambda: probe.T @ probe if d <= n else probe @ probe.T)
    work = seconds * (n / probe.shape[0]) ** (1 if d <= n else 2)
    storage = f"{side} x {side} {'moments' if d <= n else 'products of rows'}"
    return Plan(
        storage, 8 * side**2, 8 * side**2, 8 * d * components, 0, work, 9.0 * side**3 / multiply_rate(np.float64)
    )
