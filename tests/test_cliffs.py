"""Both sides of every constant at which behavior changes: what is on one side agrees with what is on the other.

A constant is set to just below, at and just above the size of a small problem, so that the problem lies on either side of it;
the results are those of the constant as it is, to the precision that the table says.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification

import dmo
from dmo import KGHA, MESD, MORP, Exact, LabelPropagation, MultiViewRidge, Nystrom, TraceEmbedding
from dmo.engines.krylov import Krylov
from dmo.labels.stratification import stratified_folds
from dmo.methods.decoding import ScoreRule

N, L, D = 60, 5, 12
X, Y = make_multilabel_classification(n_samples=N + 10, n_features=D, n_classes=L, random_state=0)
X = X / 5
NEW, X, Y = X[N:], X[:N], Y[:N]
MORE = make_multilabel_classification(n_samples=400, n_features=D, n_classes=L, random_state=1)
TILES = Exact(storage="recomputed", block=25)


def ridge(**parameters):
    return MultiViewRidge(**({"ridge": 0.5, "approximation": "exact"} | parameters)).fit(X, Y).decision_function(NEW)


def decided(model, X=X, Y=Y):
    """What held-out scores of samples teach: probabilities of new ones."""
    return model.fit(X, Y).predict_proba(NEW)


KERNEL = dmo.kernels.RBF(bandwidth=2.0)


def swept(model, grid):
    """Scores that are continuous in what is fitted: errors of regressions."""
    found = dmo.selection.sweep(
        model.set_params(targets="real"), X, X[:, :3] @ np.ones((3, 2)) + Y[:, :2], grid, metric="r2", refit=False
    )
    return np.array([row["mean"] for row in found.table])


def linear_space(method="opls", **parameters):
    found = TraceEmbedding(method, n_components=2, **parameters).fit(X, Y).transform(NEW)
    return found * np.sign(found[0])


def sparse_labels(**parameters):
    model = MultiViewRidge("linear", approximation=Nystrom(rank=D), **parameters).fit(X, csr_array(Y.astype(float)))
    return model.decision_function(NEW)


def propagated(method):
    known = np.where(np.arange(N)[:, None] % 2, Y, np.nan)
    return LabelPropagation(method=method, n_neighbors=6, tol=1e-12).fit(X, known).scores_


# constant -> what changes at it, the size it is compared with, a problem of that size, the tolerance of its result
CLIFFS = {
    "engines.exact._LOOK": (
        "rows of the look at the precision",
        N,
        lambda: ridge(approximation=Exact("memory", "float32")),
        1e-5,
    ),
    "engines.exact._SMALL": ("float64 entries below, float32 above", N, lambda: ridge(), 1e-5),
    "engines.kernel_operator._DOUBLE": (
        "float64 kernels of regressions below, float32 above",
        N,
        lambda: dmo.LLTSVR(tol=1e-7).fit(X, 2.0 * Y - 1).predict(NEW),
        1e-3,
    ),
    "engines.krylov._LABELS": (
        "label columns that begin a subspace, themselves below, combined above",
        L,
        lambda: linear_space(approximation=Krylov(tol=1e-10)),
        1e-4,
    ),
    "estimators.out_of_fold.ALL_ROWS": (
        "all held-out scores below, of some rows above",
        N,
        lambda: decided(MultiViewRidge(ridge=0.5, approximation="exact")),
        1e-9,  # some of the rows are all of them here
    ),
    "engines.fitted_views.SOLVED_ROWS": (
        "all held-out scores of tiles below, of some rows above",
        N,
        lambda: decided(MultiViewRidge(ridge=0.5, approximation=TILES)),
        1e-5,  # the same, by other solves
    ),
    "estimators.out_of_fold.HELD_OUT_ROWS": (
        "rows of a further fit: three of four below, so many above",
        300,
        lambda: decided(KGHA(ridge=0.5), *MORE),
        0.1,  # samples are dealt out anew where there is one less
    ),
    "estimators.out_of_fold.FEW_ROWS": (
        "held-out scores of all rows by folds below, of some rows by one fit above",
        400,
        lambda: decided(KGHA(ridge=0.5), *MORE),
        0.2,  # a quarter of the rows
    ),
    "estimators.shared_fits.EIGENPAIRS": (
        "factors of every ridge below, eigenpairs for all above",
        16,
        lambda: swept(MultiViewRidge(KERNEL), {"ridge": np.logspace(-3, 1, 16).tolist()}),
        1e-7,
    ),
    "estimators.shared_fits._EXPONENTS": (
        "bytes of exponents that are kept below, made anew above",
        4 * 20 * N * N // 15,
        lambda: swept(MultiViewRidge(KERNEL, approximation=Nystrom(rank=20)), {"bandwidth": [0.5, 1.0, 2.0]}),
        1e-4,
    ),
    "estimators.out_of_fold.PASSED_ROWS": (
        "all held-out scores of moments below, in runs above",
        N,
        lambda: decided(MultiViewRidge(ridge=0.5, approximation=Nystrom(rank=20))),
        0.05,  # runs of one row each leave one out
    ),
    "estimators.projector._SMALL": (
        "exact linear problem below, subspace above",
        D,
        lambda: linear_space("opls", approximation="auto"),
        1e-4,
    ),
    "methods.embeddings.solvers.DIRECT_ROWS": (
        "eigenpairs by LAPACK below, by iteration above",
        N,
        lambda: np.abs(MORP(n_components=2, tol=1e-10).fit(X, Y).transform(NEW)),
        1e-6,
    ),
    "methods.propagation._DENSE": (
        "the least eigenvalue by LAPACK below, by ARPACK to 1e-3 above",
        N,
        lambda: propagated("ml-grf"),
        1e-3,
    ),
    "methods.ridge._LABELS": ("labels at once below, in parts above", L, lambda: sparse_labels(), 1e-8),
    "validation.outputs._MANY": ("sparse labels made dense below, kept above", L, lambda: sparse_labels(), 1e-5),
    "validation.outputs._DENSE": (
        "sparse labels of few entries made dense below, kept above",
        N * L,
        lambda: sparse_labels(),
        1e-5,
    ),
    "kernels.bandwidths.SAMPLE": ("a bandwidth from all rows below, from a sample above", N, lambda: ridge(), 0.02),
    "lowrank.errors._ROWS": (
        "error from all rows below, from some above",
        N,
        lambda: ridge(approximation=Nystrom(rank=20)),
        1e-12,
    ),
    "linalg.linear._WHOLE": ("LAPACK's factorization below, by blocks above", N, lambda: ridge(), 1e-9),
    "estimators.filling._SOME": (
        "the ridge of filled labels from all rows below, from some above",
        N,
        lambda: KGHA(ridge=0.5).fit(X, np.where(np.arange(N * L).reshape(N, L) % 9, Y, np.nan)).decision_function(NEW),
        0.05,
    ),
}

# what else is made small, so that a small problem has room on both sides
BESIDE = {
    "estimators.out_of_fold.ALL_ROWS": {"estimators.out_of_fold.SOME_ROWS": N},
    "engines.fitted_views.SOLVED_ROWS": {"estimators.out_of_fold.SOLVED_SOME": N},
    "estimators.out_of_fold.PASSED_ROWS": {"estimators.out_of_fold._RUN": 1},
    "estimators.out_of_fold.HELD_OUT_ROWS": {"estimators.out_of_fold.FEW_ROWS": 1},
    "methods.ridge._LABELS": {"validation.outputs._MANY": 1},
    "linalg.linear._WHOLE": {"linalg.linear.is_single_blas": lambda: False},
    "linalg.linear._BLOCK": {"linalg.linear.is_single_blas": lambda: False, "linalg.linear._WHOLE": 1},
}

# constants of a size of blocks alone: the same results whatever they are
BLOCKS = {
    "functions._BLOCK": lambda: ridge(),
    "functions._STRIP": lambda: ridge(kernel="linear"),
    "engines.row_sums.BLOCK": lambda: ridge(approximation=Nystrom(rank=20)),
    "engines.row_sums.TASK_BLOCKS": lambda: ridge(approximation=Nystrom(rank=20)),
    "engines.moments._PANEL": lambda: ridge(approximation=Nystrom(rank=20)),
    "engines.fitted_views._RUN": lambda: ridge(approximation=TILES),
    "engines.relations._BLOCK": lambda: MESD("fda", kernel="rbf").fit(X, Y).transform(NEW),
    "kernels.composite._STRIP": lambda: _matrix(),
    "linalg.linear._STRIP": lambda: ridge(kernel="linear"),
    "linalg.linear._BLOCK": lambda: ridge(),
    "linalg.cg._STRIP": lambda: ridge(approximation=TILES),
    "linalg.tiles._RUNS": lambda: ridge(approximation=TILES),
    "lowrank.feature_maps.BLOCK": lambda: ridge(approximation=Nystrom(rank=20)),
    "validation.outputs._BLOCK": lambda: sparse_labels(),
    "validation.preparation._BLOCK": lambda: ridge(scale="standard"),
    "estimators.shared_fits._STRIP": lambda: _swept(),
    "estimators.propagation._BLOCK": lambda: LabelPropagation(n_neighbors=6).fit(X, Y * 1.0).decision_function(NEW),
    "graphs.search._BLOCK": lambda: LabelPropagation(n_neighbors=6).fit(X, Y * 1.0).decision_function(NEW),
}


def _matrix():
    K = dmo.kernels.RBF(2.0)(np.vstack([X, NEW]), dtype=np.float64)
    model = MultiViewRidge("precomputed", ridge=0.5, approximation=TILES).fit(K[:N, :N], Y)
    return model.decision_function(K[N:, :N])


def _swept():
    found = dmo.selection.sweep(KGHA("rbf"), X, Y, {"ridge": [0.1, 1.0], "n_components": [1, 3]}, refit=False)
    return np.array([row["mean"] for row in found.table])


class Noted(int):
    """A number that notes whether anything was made of it: a problem that never meets its constant tests nothing."""

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
    """Set a constant where it is defined, and where another module has taken it by name."""
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
        with monkeypatch.context() as patched:  # float32 rows and entries, whose sums are rounded in other places
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
    for ridge in (1e-6, 1.0):  # below the noise of float32, and above it
        exact = Exact("memory", "float64")
        wanted = MultiViewRidge(ridge=ridge, approximation=exact, label_sets=False).fit(X, Y).decision_function(new)
        found = (
            MultiViewRidge(ridge=ridge, approximation=Exact("memory"), label_sets=False)
            .fit(X, Y)
            .decision_function(new)
        )
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


UNFACTORED = {
    "ridge": MultiViewRidge(ridge=0.5, approximation=TILES),
    "ridges": MultiViewRidge(ridge=[[0.1, 0.3, 0.5, 0.7, 0.9]], approximation=TILES),
    "kgha": KGHA(ridge=0.5, tol=1e-9, approximation=TILES),
    "als": KGHA(ridge=0.5, tol=1e-9, solver="als"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNFACTORED)
def test_held_out_scores_of_kernels_without_a_factor_are_left_out_or_those_of_folds(name, monkeypatch):
    n = 80
    X, Y, new = MORE[0][:n] / 5, MORE[1][:n], [MORE[0][n:120] / 5]
    plain, fold, held_out = (
        clone(UNFACTORED[name]).set_params(label_sets=False),
        stratified_folds(Y, 4),
        np.empty(Y.shape),
    )
    for number in range(4):
        part = fold == number
        held_out[part] = plain.fit([X[~part]], Y[~part]).decision_function([X[part]])
    raw = plain.fit([X], Y).decision_function(new)
    standardized = ScoreRule.learn(Y.mean(axis=0), held_out, False, 0.5)(raw)
    for most in (n - 1, n, n + 1):
        set_constant(monkeypatch, "engines.fitted_views.SOLVED_ROWS", most)
        decided = clone(plain).set_params(decoder="calibrated").fit([X], Y)
        found = clone(plain).set_params(standardize=0.5).fit([X], Y).decision_function(new)
        assert decided.predict_proba(new).shape == raw.shape
        if most < n or isinstance(plain, KGHA):
            np.testing.assert_allclose(decided.held_out_scores_, held_out, atol=1e-4)
        if most < n:
            np.testing.assert_allclose(found, standardized, atol=1e-3 * np.abs(standardized).max())
        assert np.corrcoef(found.ravel(), standardized.ravel())[0, 1] > 0.99
    if name == "ridge":
        set_constant(monkeypatch, "engines.fitted_views.SOLVED_ROWS", n - 1)
        weights = np.repeat([1.0, 0.5], n // 2)
        assert plain.set_params(decoder="calibrated").fit([X], Y, weights).held_out_scores_.shape == Y.shape


def test_every_constant_of_the_table_is_there():
    for name in (*CLIFFS, *BLOCKS, *BESIDE):
        module, _, constant = name.rpartition(".")
        assert hasattr(importlib.import_module(f"dmo.{module}"), constant), name
