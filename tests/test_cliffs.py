"""Test that results do not change at the constants that select an algorithm by the size of a problem.

Every test sets a constant to just below, exactly, and just above the size of a small problem. The results must agree
with the results for the original constant within the tolerance of the table.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import folds, made
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification

import dmo
from dmo import KGHA, MESD, MORP, Exact, Graph, LabelPropagation, MultiViewRidge, Nystrom, Solver, TraceEmbedding
from dmo.decide.score_rule import ScoreRule
from dmo.decoders import Scores
from dmo.fit.krylov import Krylov
from dmo.labels.stratification import stratified_folds

N, L, D = 60, 5, 12
X, Y = make_multilabel_classification(n_samples=N + 10, n_features=D, n_classes=L, random_state=0)
X = X / 5
NEW, X, Y = X[N:], X[:N], Y[:N]
MORE = make_multilabel_classification(n_samples=400, n_features=D, n_classes=L, random_state=1)
TILES = Exact(storage="recomputed", block=25)


def ridge(**parameters):
    return MultiViewRidge(**({"ridge": 0.5, "approximation": "exact"} | parameters)).fit(X, Y).decision_function(NEW)


def decided(model, X=X, Y=Y):
    """Return probabilities of new samples, whose decoder is learned from held-out scores."""
    return model.fit(X, Y).predict_proba(NEW)


KERNEL = dmo.kernels.RBF(bandwidth=2.0)


def swept(model, grid):
    """Return the cross-validated R2 of regressions, which is continuous in the fitted coefficients."""
    found = dmo.selection.sweep(
        model.set_params(targets="real"), X, X[:, :3] @ np.ones((3, 2)) + Y[:, :2], grid, metric="r2", refit=False
    )
    return np.array([row["mean"] for row in found.table])


def loss(model):
    """Return the squared error of probabilities, which hardly depends on the training samples of the decoder."""
    X, Y = MORE[0] / 5, MORE[1]
    return np.array([np.mean((model.fit(X[:300], Y[:300]).predict_proba(X[300:]) - Y[300:]) ** 2)])


def linear_space(method="opls", **parameters):
    found = made(TraceEmbedding, method, n_components=2, **parameters).fit(X, Y).transform(NEW)
    return found * np.sign(found[0])


def sparse_labels(**parameters):
    model = MultiViewRidge("linear", approximation=Nystrom(rank=D), **parameters).fit(X, csr_array(Y.astype(float)))
    return model.decision_function(NEW)


def rare_labels():
    one_each = np.eye(16, dtype=np.uint8)[np.arange(N) % 16]
    return MultiViewRidge("linear", approximation=Nystrom(rank=D)).fit(X, one_each).decision_function(NEW)


def propagated(method):
    known = np.where(np.arange(N)[:, None] % 2, Y, np.nan)
    return LabelPropagation(method=method, graph=Graph(n_neighbors=6), tol=1e-12).fit(X, known).scores_


# Each entry describes what changes at a constant, and contains the size of the problem, the problem and the tolerance.
CLIFFS = {
    "blocks._PACKED": ("arrays of labels below, CSR above", 16 * N, lambda: rare_labels(), 1e-5),
    "fit.exact._LOOK": (
        "rows on which the precision is checked",
        N,
        lambda: ridge(approximation=Exact("memory", "float32")),
        1e-5,
    ),
    "kernels.base._DOUBLE": (
        "float64 distances of all folds below, float32 above",
        N,
        lambda: swept(MultiViewRidge("laplacian", prepare="none"), {"ridge": [0.5]}),
        1e-5,
    ),
    "fit.exact._SMALL": ("float64 entries below, float32 above", N, lambda: ridge(), 1e-5),
    "methods.svr._DOUBLE": (
        "float64 kernels of regressions below, float32 above",
        N,
        lambda: dmo.LLTSVR(tol=1e-7).fit(X, 2.0 * Y - 1).predict(NEW),
        1e-3,
    ),
    "fit.krylov._LABELS": (
        "subspaces start from all label columns below, from combinations above",
        L,
        lambda: linear_space(approximation=Krylov(tol=1e-10)),
        1e-4,
    ),
    "decide.out_of_fold.SOME_ROWS": (
        "held-out scores of all rows below, of some rows above",
        N,
        lambda: decided(MultiViewRidge(ridge=0.5, approximation="exact")),
        0.05,  # one row has no held-out score
    ),
    "fit.fitted_views.SOLVED_ROWS": (
        "held-out scores of all rows in tiles below, of some rows above",
        N,
        lambda: decided(MultiViewRidge(ridge=0.5, approximation=TILES)),
        1e-5,  # both algorithms compute the same result
    ),
    "decide.out_of_fold.HELD_OUT_ROWS": (
        "rows of an additional fit: three quarters below, this number above",
        225,
        lambda: loss(KGHA(ridge=0.5)),
        0.05,  # removing one sample changes all folds
    ),
    "decide.out_of_fold.FEW_ROWS": (
        "held-out scores of all rows by cross-validation below, of some rows by a single fit above",
        300,
        lambda: loss(KGHA(ridge=0.5)),
        0.08,  # only a random quarter of the rows is used
    ),
    "fit.fitted_views.EIGENPAIRS": (
        "factors of every ridge below, eigenpairs for all above",
        16,
        lambda: swept(MultiViewRidge(KERNEL), {"ridge": np.logspace(-3, 1, 16).tolist()}),
        1e-7,
    ),
    "methods.shared_fits._EXPONENTS": (
        "exponents of kernels are kept below, computed again above",
        4 * 20 * N * N // 15,
        lambda: swept(MultiViewRidge(KERNEL, approximation=Nystrom(rank=20)), {"bandwidth": [0.5, 1.0, 2.0]}),
        1e-4,
    ),
    "decide.out_of_fold.PASSED_ROWS": (
        "held-out scores from moments in one block below, in several blocks above",
        N,
        lambda: decided(MultiViewRidge(ridge=0.5, approximation=Nystrom(rank=20))),
        0.05,  # blocks of one row yield leave-one-out scores
    ),
    "methods.annotator._COMPARED": (
        "label sets by probabilities below, by scores above",
        len(NEW),
        lambda: MultiViewRidge(ridge=0.5).fit(X, Y).predict(NEW).astype(float),
        1e-12,
    ),
    "methods.projector._SMALL": (
        "exact linear problem below, subspace above",
        D,
        lambda: linear_space("opls", approximation="auto"),
        1e-4,
    ),
    "methods.trace_solvers.DIRECT_ROWS": (
        "eigenpairs by LAPACK below, by iteration above",
        N,
        lambda: np.abs(MORP(n_components=2, tol=1e-10).fit(X, Y).transform(NEW)),
        1e-6,
    ),
    "methods.propagation._DENSE": (
        "smallest eigenvalue by LAPACK below, by ARPACK to 1e-3 above",
        N,
        lambda: propagated("ml-grf"),
        1e-3,
    ),
    "fit.ridge_solves._LABELS": ("labels at once below, in parts above", L, lambda: sparse_labels(), 1e-8),
    "inputs.outputs._MANY": ("L x L matrices of labels below, avoided above", L, lambda: sparse_labels(), 1e-5),
    "kernels.pairs.SAMPLE": ("a bandwidth from all rows below, from a sample above", N, lambda: ridge(), 0.02),
    "lowrank.sampling._ROWS": (
        "error from all rows below, from some rows above",
        N,
        lambda: ridge(approximation=Nystrom(rank=20)),
        1e-12,
    ),
    "linalg.linear._WHOLE": ("LAPACK's factorization below, by blocks above", N, lambda: ridge(), 1e-9),
    "methods.filling._SOME": (
        "ridge of imputed labels from all rows below, from some rows above",
        N,
        lambda: KGHA(ridge=0.5).fit(X, np.where(np.arange(N * L).reshape(N, L) % 9, Y, np.nan)).decision_function(NEW),
        0.05,
    ),
}

# Constants that must be reduced as well, so that the size of a small problem can be below or above the tested constant.
BESIDE = {
    "fit.fitted_views.SOLVED_ROWS": {"decide.out_of_fold.SOLVED_SOME": N},
    "decide.out_of_fold.PASSED_ROWS": {"decide.out_of_fold._RUN": 1},
    "decide.out_of_fold.HELD_OUT_ROWS": {"decide.out_of_fold.FEW_ROWS": 1},
    "fit.ridge_solves._LABELS": {"inputs.outputs._MANY": 1},
    "linalg.linear._WHOLE": {"linalg.linear.is_single_blas": lambda: False},
    "linalg.linear._BLOCK": {"linalg.linear.is_single_blas": lambda: False, "linalg.linear._WHOLE": 1},
}

# Constants that only determine block sizes and must not affect the results.
BLOCKS = {
    "blocks._CELLS": lambda: rare_labels(),
    "fit.functions._BLOCK": lambda: ridge(),
    "fit.functions._STRIP": lambda: ridge(kernel="linear"),
    "fit.functions._KEPT": lambda: ridge(),
    "methods.annotator._ROWS": lambda: MultiViewRidge(ridge=0.5).fit(X, Y).predict(NEW).astype(float),
    "fit.row_sums.BLOCK": lambda: ridge(approximation=Nystrom(rank=20)),
    "fit.row_sums.TASK_BLOCKS": lambda: ridge(approximation=Nystrom(rank=20)),
    "fit.moments._PANEL": lambda: ridge(approximation=Nystrom(rank=20)),
    "fit.fitted_views._RUN": lambda: ridge(approximation=TILES),
    "fit.one_view._BLOCK": lambda: MESD("fda", kernel="rbf").fit(X, Y).transform(NEW),
    "kernels.composite._STRIP": lambda: _matrix(),
    "linalg.linear._STRIP": lambda: decided(MultiViewRidge("linear", ridge=0.5)),
    "linalg.linear._BLOCK": lambda: ridge(),
    "linalg.cg._STRIP": lambda: ridge(approximation=TILES),
    "linalg.tiles._RUNS": lambda: ridge(approximation=TILES),
    "lowrank.feature_maps.BLOCK": lambda: ridge(approximation=Nystrom(rank=20)),
    "inputs.preparation._BLOCK": lambda: ridge(prepare="standard"),
    "inputs.preparation._STRIP": lambda: ridge(prepare="standard"),
    "methods.shared_fits._STRIP": lambda: _swept(),
    "methods.propagation._BLOCK": lambda: LabelPropagation(graph=6).fit(X, Y * 1.0).decision_function(NEW),
    "fit.view_neighbors.QUERIES": lambda: ridge(combine="product", weights="tagprop"),
    "fit.view_neighbors._VOTERS": lambda: ridge(combine="product", weights="tagprop"),
    "methods.neighbor_votes._BLOCK": lambda: _voted(),
    "lowrank.nystrom._PANEL": lambda: ridge(approximation=Nystrom(rank=20)),
    "decide.probabilities._ENTRIES": lambda: decided(MultiViewRidge(ridge=0.5, decoder="calibrated")),
    "methods.jec._QUERIES": lambda: dmo.JEC(n_neighbors=3).fit(X, Y).decision_function(NEW),
    "metrics.annotation._PAIRS": lambda: np.array(
        [
            dmo.metrics.metric_of(name)(Y, ridge(kernel="linear").repeat(6, axis=0))
            for name in ("auc-macro", "auc-micro")
        ]
    ),
    "metrics.ranking._ENTRIES": lambda: np.array(
        [dmo.metrics.metric_of("ranking")(Y, ridge(kernel="linear").repeat(6, axis=0))]
    ),
    "fit.factor_groups._STRIP": lambda: (
        KGHA(ridge=0.5, approximation=Nystrom(rank=20)).fit(X, Y).decision_function(NEW)
    ),
    "graphs.search._BLOCK": lambda: LabelPropagation(graph=6).fit(X, Y * 1.0).decision_function(NEW),
}


# All other numeric constants, grouped by the reason why they are not tested above.
OTHERS = {
    "coefficients of a formula or a description": """
        demo.digits.N_TRAIN demo.digits._ATTRIBUTES methods.svr._RIDGE features.descriptors.BANDS
        features.descriptors.BINS features.descriptors.DISTANCES features.embedding.DEVIATION features.embedding.MEAN
        features.embedding.SIDE features.images.LEAST features.images.SIDE features.descriptors.HUES
        features.descriptors.LEAST_CORNER features.descriptors.MAX_CORNERS features.descriptors.PATCHES
        features.descriptors.PATCH_PER_SIGMA features.descriptors.GIST_BLOCKS features.descriptors.GIST_PAD
        features.descriptors.GIST_SIDE features.descriptors.ORIENTATIONS features.descriptors._REDUCTIONS
        kernels.loops.WIDTH kernels.loops._B0 kernels.loops._B1 kernels.loops._B10 kernels.loops._B11
        kernels.loops._B2 kernels.loops._B3 kernels.loops._B4 kernels.loops._B5 kernels.loops._B6 kernels.loops._B7
        kernels.loops._B8 kernels.loops._B9 kernels.loops._ROUND64 lowrank.meka._LOCAL
        lowrank.meka._SAMPLES lowrank.meka._SHARED lowrank.meka._SMOOTH lowrank.meka._SPAN
        decide.probabilities._SLOPE_PRIOR decide.probabilities._SLOPE decide.probabilities._SMALLEST
        decide.score_rule._LOWEST methods.spectral.NEIGHBORS methods.projector._SHRINKAGE
        decide.rules._DAMPING decide.rules._NODES methods.svr_admm._BALANCE methods.svr_admm._REBALANCE
        methods.svr_admm._RELAXATION methods.svr_admm._STEP methods.tagprop.NEIGHBORS methods.tagprop._EPSILON
        decide.probabilities._THRESHOLD_PRIOR decide.probabilities._SOFT decide.probabilities._SMEAR
        decide.rules._ONE_SIDED
    """,
    "layout of pages, figures and messages": """
        cli.help_pages.LINES cli.help_pages.WIDTH
        cli.apply._SHOWN cli.demo.N_DIGITS cli.demo.N_TRAIN cli.demo.SEED cli.demo.TILE cli.demo.TOP cli.demo.WORKERS
        cli.apply.LABELS_SHOWN
        methods.base._CHARTED methods.base._LISTED
        representation._BELOW representation._HEIGHT representation._LEFT representation._WIDTH
        cli.session.WIDTH cli.learn._SHOWN report.canvas.WIDTH report.figures._BINS report.figures._STEPS
        report.page.IMAGE_BYTES report.page.IMAGE_SIDE report.page.MOST_LABELS
        report.page.MOST_SAMPLES report.page.MOST_SCORES report.figures._DOTS report.space._DOTS report.space._NAMED
        report.figures._POINTS report.figures._CORNERS
        workflows.report_page._RESAMPLES workflows.images._SHOWN workflows.report_figures._CLASSES
        workflows.evaluation._SPREAD
        workflows.suggest._DOUBTS workflows.trial.NEIGHBORS workflows.trial.SHOWN workflows.trial.SIDE
        workflows.trial.FIELDS
        workflows.fitting._CURVE
    """,
    "limits and parts of files and requests": """
        blocks._REST cli.serve._CONNECTIONS cli.serve._HEAD cli.serve._PATIENCE datasets.files._LARGE
        datasets.ingest._LARGEST datasets.ingest._LONGEST features.embedding.LARGEST features.images.LARGEST
        features.images.LONGEST
        features.images.MAX_PIXELS features.sets.LARGEST_SIDE features.sets.MAX_WORDS features.sets.VERSION
        formats.arff._LONGEST formats.arrays._CHUNK formats.arrays._LARGEST formats.arrays._ROW formats.arrays._KEPT
        formats.text._CELLS formats.text._BYTES
        formats.parquet._BATCH datasets.samples._SLAB
        formats.files.LONGEST_LINE formats.delimited._COPIES formats.delimited._PIECE formats.frames._TEXTS
        formats.delimited._SOME formats.delimited._BLOCK
        formats.schema._SHOWN formats.schema._FIRST formats.schema._TOGETHER formats.schema._CELLS formats.labels._DIGITS
        formats.matlab.COMPLEX formats.matlab.COMPRESSED formats.matlab.ENOUGH
        formats.matlab.HEADER formats.matlab.MATRIX formats.matlab.ROWS_PER_BYTE formats.matlab.USERBLOCK
        hashing._STRIP
        formats.matlab.MOST_VALUES formats.text._LARGEST hashing._BLOCK serve.app._LONG serve.app._MANY
        serve.app.MINUTE stores._arrays.CRC_BYTES stores._arrays.STEP stores._schema.BLOCKS stores._schema.LARGEST
        stores._writer.CHUNK_BYTES stores.features._UNKNOWN stores.features._LABEL_BYTES blocks._BITS blocks._MANY
        stores.features._LABEL_ENTRIES
    """,
    "seconds, numbers of attempts and fractions of time": """
        cluster.settings._UNLIMITED cluster.workers._AHEAD cluster.workers._FRESH cluster.workers._PATIENCE
        cluster.workers._SENDING
        cluster.targets._LONGEST cluster.targets._MESSAGES cluster.targets._PAUSE
        cluster.targets._REACH cluster.workers._LOOK cluster.workers._PAUSED
        cluster.workers._TRIES progress._DELAY progress._EVERY progress._LINES progress._REFRESH
        stores._lock.RENEW stores._lock.STALE
        stores._lock.TORN stores._folder._LONGEST stores.checkpoints.SECONDS stores.checkpoints._LEAST
        stores.checkpoints.SHARE stores.checkpoints._SPEED
    """,
    "exit codes, versions and positions": """
        methods.lazy_rows._COLUMN methods.lazy_rows._ROW workflows.program.DAMAGED workflows.program.FAILED
        workflows.program.INTERRUPTED workflows.program.TERMINATED workflows.program.WRONG
    """,
    "estimates of memory and of work": """
        cluster.reading._FAST cluster.reading._PARTS cluster.reading._SPARE cluster.reading._WORTH
        fit.engine._SAMPLES fit.one_view._SHARE fit.row_sums._IN_TASK fit.row_sums._PARTS
        fit.row_sums._SEGMENT fit.row_sums._TASKS fit.row_sums._LIGHT fit.ridge_solves._KEPT fit.passes._SPARSE
        methods.shared_fits._MEMORY memory._SHARE memory.FACTORS
        kernels.base._KEPT
        graphs.search._PAIRS inputs.views._CHUNK inputs.views._READINGS inputs.views._SHARE
        threads._KEPT threads._STRIPS threads._TRIMMED linalg.smoothers._SHARE linalg.solve._PRODUCTS
        linalg.cg._SAVED linalg.rows.FAN_IN linalg.rows._SMALL linalg.tiles._LEAST linalg.tiles._WORTH
        methods.svr_admm._ONE_THREAD workflows.plan._LOOKED_AT
        workflows.plan.LARGEST workflows.plan.MOST_WORKERS workflows.plan.SCHEDULER
        workflows.plan.WORKER workflows.plan._OTHERS workflows.plan._TALL workflows.plan._TASK workflows.plan.DRIVER
        workflows.plan._BASES workflows.plan._MADE
        workflows.plan._TASK_SECONDS workflows.plan._PRODUCT_SECONDS linalg.tiles.MOST_TASKS
        workflows.trial._COPIES workflows.trial._MEMORY workflows.trial._OTHERS workflows.trial._SMALL
    """,
    "tolerances, and steps up to one": """
        fit.view_neighbors._ZERO methods.landmark_ridge._DIGITS methods.landmark_ridge._WELL
        methods.projector._SINGLE kernels.pairs.NEAR labels.label_kernels.TOLERANCE linalg.cg._LOOK
        linalg.eigen.CUTOFF linalg.eigen._BLOCKS linalg.eigen._COLUMNS linalg.eigen._INDEPENDENT linalg.eigen._MANY
        linalg.eigen._PATIENCE linalg.eigen.SHARE linalg.pivoted_cholesky._FLOOR
        linalg.pivoted_cholesky._PROPOSALS linalg.factors._CANCELS linalg.linear.LEAST linalg.linear.PROBES
        linalg.linear.TOLERATED linalg.solve.COEFFICIENTS linalg.solve.EXACT linalg.solve.SCORES
        linalg.tall._DEPENDENT linalg.tall._RELIABLE linalg.tall._ROUNDING lowrank.landmarks._LARGEST
        lowrank.approximations._RIGHT lowrank.sampling.TOLERANCE
        decide.probabilities.PRECISION decide.probabilities._CONSTANT decide.decoders._LARGEST fit.ridge_solves._PRECISE
        fit.ridge_solves.SPACE
        lowrank.sampling._START decide.probabilities._STEPS methods.trace_solvers.RESTARTS
        methods.quadratic_forms._BLIND decide.rules._GAIN_STEPS
        methods.homogeneity_maps._LOST methods.homogeneity_maps._STRAIGHT
        fit.factor_groups._SINGLE fit.factor_groups._TERMS
        methods.kgha._SWEEP_STEPS methods.kgha._SWEEP_RESIDUAL methods.homogeneity._NEAR
        methods.homogeneity_maps._CUTOFF methods.homogeneity_maps._MARGIN methods.homogeneity_maps._ROUGHEST
        methods.homogeneity_maps._STEPS methods.landmark_ridge.PASSES
        methods.landmark_ridge._NEAR methods.landmark_ridge._PROBES methods.landmark_ridge._RESTARTS
        methods.landmark_ridge._SINGLE decide.rules._STEPS fit.ridge_solves._ENOUGH fit.ridge_solves._PRODUCTS
        methods.svr_admm._CHECK methods.svr_admm._MEMORY methods.llt_svr._TIE methods.llt_svr._EQUAL methods.llt_svr._TOLERANCE
        methods.svr_admm._REPAIRS methods.view_weights._ROUNDING methods.tagprop._STEPS select.tuning._STEPS blocks.APART
        blocks.MOSTLY inputs.views._LARGEST
    """,
    "sizes above which a call raises an error": """
        methods.mope._ALL methods.mope._SMALL graphs.edges._KENDALL labels.proximities.MOST_SETS
        methods.discriminant.PAIRS space._WIDEST
    """,
    "grids and rounds of a search": """
        registry._COMPONENTS registry._DIMENSIONS
        fit.engine.FOLDS methods.filling._RIDGES decide.out_of_fold._MOST_FOLDS select.tuning._FACTOR
        select.tuning._RIDGES select.tuning._ROUGH select.tuning._SIZES select.tuning._WIDTHS
        select.tuning._FAR select.tuning._NEAR
        methods.view_weights._DRAWN methods.view_weights._MOVED methods.view_weights._MOST
        methods.view_weights._CONCENTRATIONS methods.view_weights._POWER
        methods.view_weights._JITTER methods.view_weights._REVIVED
    """,
    "rows or entries at a time": """
        methods.annotator._ENTRIES linalg.factors._STRIP linalg.factors._FIRST linalg.operators._STRIP
        decide.rules._ENTRIES lowrank.landmarks._STRIP
        datasets.files._BLOCK datasets.samples._BLOCK datasets.samples._NARROW datasets.samples._LARGEST
        decide.decoders._ENTRIES fit.passes._CARRIED methods.landmark_ridge._ROWS
        methods.ridge._COLUMNS features.extraction.BLOCK features.extraction._TASK graphs.loops._PIECE
        kernels.composite._DIAGONAL kernels.portable._ENTRIES
        labels.proximities.PAIRS linalg.operators._STRIP_ENTRIES
        lowrank.landmarks._PREPARED lowrank.nystrom.PREPARED lowrank.nystrom._LEAST_ROWS
        methods.landmark_ridge._MIRROR methods.llt_svr._BLOCK metrics.ranking._BLOCK workflows.apply.BLOCK
        workflows.apply.MANY workflows.apply.CELLS strings._BATCH workflows.tables._BLOCK workflows.tables._GROUP
        stores.temporary._ZEROS
        inputs.needs._ROWS workflows.report_page._ENTRIES workflows.images.BATCH
    """,
    "numbers of random rows for estimates of statistics and landmarks": """
        report.figures._SORTED
        decide.out_of_fold.SOLVED_SOME decide.out_of_fold._RUN
        decide.decoders._POOLED fit.one_view._SOME features.extraction.SAMPLE_DESCRIPTORS
        features.extraction.SAMPLE_IMAGES fit.functions._SAMPLE labels.label_kernels._DIRECTIONS lowrank.approximations._HELD
        lowrank.landmarks._LEAST lowrank.landmarks._PER_CLUSTER lowrank.landmarks._LOOK lowrank.landmarks._PER_CENTER
        kernels.composite._TRIED lowrank.landmarks._SKETCH_COLUMNS
        lowrank.nystrom.BANDWIDTH_ROWS lowrank.nystrom._GROUPS
        lowrank.sampling.MOST_ROWS lowrank.sampling._LEAST lowrank.sampling._PER_COLUMN lowrank.sampling._PER_PIVOT
        decide.probabilities._CROSSED decide.probabilities._FIRST decide.probabilities._MOST decide.rules._MOST
        decide.probabilities._SORTED blocks._FIRST inputs.preparation._MEDIAN
    """,
    "changes of behavior that are not tested yet": """
        fit.engine._AUTO_RANK fit.passes._LEAST fit.passes._WIDE
        methods.view_weights.SEARCHED methods.neighbor_votes._ANNOTATED
        methods.annotator._MANY methods.incremental._ENOUGH decide.out_of_fold.LEAST graphs.search._SPARE
        formats.labels._CLASSES formats.labels._EACH formats.labels._APART formats.schema.LEVELS formats.delimited._RAGGED
        kernels.rows.SPARSE_BELOW
        threads._LEAST_WORK linalg.solve._LOOSE
        linalg.solve._LEADING linalg.solve._FEW linalg.solve._PROBE_EVERY linalg.smoothers._KNOWN
        lowrank.meka._SPARSE_WIDTH methods.trace_solvers.DENSE methods.trace_solvers.FACTORED
        methods.quadratic_forms._FULL methods.landmark_ridge._PER_LABEL
    """,
}


def _voted():
    return dmo.NeighborVotes(MultiViewRidge(ridge=0.5)).fit(X, Y).decision_function(NEW)


def _matrix():
    K = dmo.kernels.RBF(2.0)(np.vstack([X, NEW]), dtype=np.float64)
    model = MultiViewRidge("precomputed", ridge=0.5, approximation=TILES).fit(K[:N, :N], Y)
    return model.decision_function(K[N:, :N])


def _swept():
    found = dmo.selection.sweep(KGHA("rbf"), X, Y, {"ridge": [0.1, 1.0], "n_components": [1, 3]}, refit=False)
    return np.array([row["mean"] for row in found.table])


class Noted(int):
    """Integer that records whether it is used, because a problem that never uses the constant does not test it."""

    met = False


def _noting(operation):
    def noted(self, *others):
        Noted.met = True
        return getattr(int, operation)(self, *others)

    return noted


for _name in (
    "lt",
    "le",
    "gt",
    "ge",
    "radd",
    "add",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "floordiv",
    "rfloordiv",
    "rtruediv",
):
    setattr(Noted, f"__{_name}__", _noting(f"__{_name}__"))


def set_constant(monkeypatch, name, value):
    """Set a constant in the module that defines it and in all modules that import it by name."""
    module, _, constant = name.rpartition(".")
    home = importlib.import_module(f"dmo.{module}")
    was = getattr(home, constant)
    for other in list(sys.modules.values()):
        known = getattr(other, "__name__", "").startswith("dmo.") and other.__dict__.get(constant) is was
        if known and (other is home or constant in _taken(other, f"dmo.{module}")):
            monkeypatch.setattr(other, constant, value)


def _taken(module, home):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == home
        for alias in node.names
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLIFFS)
def test_both_sides_of_a_cliff_agree(name, monkeypatch):
    _, size, problem, tolerance = CLIFFS[name]
    with monkeypatch.context() as patched:
        for other, small in BESIDE.get(name, {}).items():
            set_constant(patched, other, small)
        wanted = problem()
    for value in (size - 1, size, size + 1):
        with monkeypatch.context() as patched:
            agrees(patched, name, value, problem, wanted, tolerance)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BLOCKS)
def test_results_do_not_depend_on_the_size_of_blocks(name, monkeypatch):
    wanted = BLOCKS[name]()
    for value in (7, N - 1, N, N + 1):
        # The size of blocks changes the floating-point error of float32 sums.
        with monkeypatch.context() as patched:
            agrees(patched, name, value, BLOCKS[name], wanted, 1e-5)


def agrees(patched, name, value, problem, wanted, tolerance):
    for other, small in BESIDE.get(name, {}).items():
        set_constant(patched, other, small)
    set_constant(patched, name, Noted(value))
    Noted.met = False
    found = problem()
    assert Noted.met, f"the problem does not meet {name}"
    np.testing.assert_allclose(found, wanted, atol=tolerance * np.abs(wanted).max(), err_msg=f"{name} = {value}")


@pytest.mark.parametrize("n", [2047, 2048, 2049])
def test_kernels_around_the_size_of_single_precision_agree_with_float64(n):
    X, Y = make_multilabel_classification(n_samples=n + 10, n_classes=4, random_state=0)
    X, new, Y = X[:n] / 5, X[n:] / 5, Y[:n]
    for ridge in (1e-6, 1.0):  # one ridge is below float32 precision, the other above
        exact = Exact("memory", "float64")
        wanted = (
            MultiViewRidge(ridge=ridge, approximation=exact, decoder=Scores(label_sets=False))
            .fit(X, Y)
            .decision_function(new)
        )
        found = (
            MultiViewRidge(ridge=ridge, approximation=Exact("memory"), decoder=Scores(label_sets=False))
            .fit(X, Y)
            .decision_function(new)
        )
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


def test_folds_do_not_depend_on_the_order_of_rows(monkeypatch):
    """Repeated rows share a fold, and small data sets are split into more folds."""
    X, Y, n = MORE[0][:80], MORE[1][:80], 80
    order, again = np.random.default_rng(0).permutation(n), np.repeat(np.arange(n), np.arange(n) % 3 + 1)
    for most, count in ((79, 4), (80, 4), (160, 4), (400, 5), (10000, 10)):
        set_constant(monkeypatch, "decide.out_of_fold.FEW_ROWS", most)
        fold = folds(X, Y)
        assert fold.max() == count - 1
        np.testing.assert_array_equal(folds(X[order], Y[order]), fold[order])
        np.testing.assert_array_equal(folds(X[again], Y[again]), fold[again])
        assert np.ptp(np.bincount(fold)) <= 1
        same = folds(np.ones((n, 1)), 0 * Y)  # equal rows are assigned by position
        np.testing.assert_array_equal(same, stratified_folds(0 * Y, count))


UNFACTORED = {
    "ridge": MultiViewRidge(ridge=0.5, approximation=TILES),
    "ridges": MultiViewRidge(ridge=[[0.1, 0.3, 0.5, 0.7, 0.9]], approximation=TILES),
    "kgha": KGHA(ridge=0.5, solver=Solver(tol=1e-9), approximation=TILES),
    "als": KGHA(ridge=0.5, solver=Solver(method="als"), approximation=TILES),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNFACTORED)
def test_held_out_scores_of_kernels_without_a_factor_are_left_out_or_those_of_folds(name, monkeypatch):
    n = 80
    X, Y, new = MORE[0][:n] / 5, MORE[1][:n], [MORE[0][n:120] / 5]
    plain, fold, held_out = (
        clone(UNFACTORED[name]).set_params(decoder=Scores(label_sets=False)),
        folds(X, Y),
        np.empty(Y.shape),
    )
    for number in range(fold.max() + 1):
        part = fold == number
        held_out[part] = plain.fit([X[~part]], Y[~part]).decision_function([X[part]])
    raw = plain.fit([X], Y).decision_function(new)
    standardized = ScoreRule.learn(Y.mean(axis=0), len(Y), held_out, False, 0.5)(raw)
    for most in (n - 1, n):
        set_constant(monkeypatch, "fit.fitted_views.SOLVED_ROWS", most)
        decided = clone(plain).set_params(decoder="calibrated").fit([X], Y)
        found = clone(plain).set_params(decoder=Scores(standardize=0.5)).fit([X], Y).decision_function(new)
        assert decided.predict_proba(new).shape == raw.shape
        if most < n or isinstance(plain, KGHA):
            np.testing.assert_allclose(decided.held_out_scores_, held_out, atol=1e-4)
        if most < n:
            np.testing.assert_allclose(found, standardized, atol=1e-3 * np.abs(standardized).max())
        assert np.corrcoef(found.ravel(), standardized.ravel())[0, 1] > 0.99
    if name == "ridge":
        set_constant(monkeypatch, "fit.fitted_views.SOLVED_ROWS", n - 1)
        weights = np.repeat([1.0, 0.5], n // 2)
        assert plain.set_params(decoder="calibrated").fit([X], Y, weights).held_out_scores_.shape == Y.shape


def _is_number(node):
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(_is_number(part) for part in node.elts)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def numbers_of(package):
    """Yield the module-level constants whose values are numbers or tuples of numbers."""
    for file in sorted(package.rglob("*.py")):
        module = ".".join(file.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs = zip(target.elts, node.value.elts, strict=True) if both else [(target, node.value)]
                for name, value in pairs:
                    if isinstance(name, ast.Name) and name.id.isupper() and _is_number(value):
                        yield f"{module}.{name.id}"


def test_every_number_of_a_module_is_a_cliff_a_size_of_blocks_or_named_with_its_reason():
    listed = [*CLIFFS, *BLOCKS, *(name for names in OTHERS.values() for name in names.split())]
    assert len(listed) == len(set(listed)), "a number has two lines"
    known = set(numbers_of(Path(dmo.__file__).parent))
    assert not known - set(listed), "numbers without a line: is behavior the same on both sides of them?"
    assert not set(listed) - known, "lines of numbers that are not there"


def test_a_new_number_is_seen_however_it_is_written(tmp_path):
    (tmp_path / "some").mkdir()
    text = "A = 3\n_B: int = 1 << 20\nC, _D = 2.5, -1\nE = (1, 2)\nF = 'x'\ng = 3\nH = min(1, 2)\n"
    (tmp_path / "some" / "module.py").write_text(text, encoding="utf-8")
    assert list(numbers_of(tmp_path)) == [f"some.module.{name}" for name in ("A", "_B", "C", "_D", "E")]
