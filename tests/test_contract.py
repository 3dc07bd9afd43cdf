"""Check for every estimator and engine that each feature works or raises a documented error.

python tests/test_contract.py write           generate the tables of docs/reference/matrix.md
python tests/test_contract.py write KGHA JEC  update only the rows of these estimators
"""

from __future__ import annotations

import csv
import functools
import inspect
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from unittest import mock

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import zarr
from cases import made
from shell import figures_emptied
from sklearn.base import clone
from sklearn.impute import SimpleImputer
from sklearn.metrics import label_ranking_average_precision_score, r2_score
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import dmo
from dmo import Exact, Meka, Nystrom, UserError
from dmo.cli.app import app
from dmo.datasets import Samples
from dmo.inputs import outputs
from dmo.methods import annotator
from dmo.parameters import places
from dmo.registry import REGISTRY
from dmo.select.sweeps import sweep
from dmo.stores import open_results
from dmo.stores.checkpoints import checkpoints
from dmo.workflows.rows import open_trial
from dmo.workflows.trial import Upload

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "matrix.md"
N, NEW, L = 72, 9, 4
YES = "yes"
Pair = tuple[Any, Any, float]
"""Result of a feature, its reference value, and the tolerance as a fraction of the largest entry."""


@functools.cache
def data() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    latent = rng.standard_normal((N + NEW, 3))
    rows = np.abs(latent @ rng.standard_normal((3, 9)) + 0.5 * rng.standard_normal((N + NEW, 9)))
    signal = latent @ rng.standard_normal((3, L)) + 0.5 * rng.standard_normal((N + NEW, L))
    labels = (signal > 0.3).astype(float)
    labels[:, 0] = np.where(labels.any(axis=1), labels[:, 0], 1)
    return {"rows": rows.round(3), "labels": labels, "signal": signal, "weights": rng.integers(1, 3, N).astype(float)}


def views(X: Any) -> dict[str, Any]:
    return {"a": X[:, :5], "b": X[:, 5:]}


def whole(X: Any) -> Any:
    return X


OWN: dict[str, dict[str, Any]] = {
    "KGHA": {"n_components": 3, "ridge": 1.0},
    "MultiViewRidge": {"ridge": 0.1},
    "MultiSetCCA": {"ridge": 1.0},
    "HomogeneityAnalysis": {},
    "MORP": {"n_components": 3, "ridge": 1.0},
    "MLSI": {"n_components": 3, "ridge": 1.0},
    "MOPE": {"n_neighbors": 8},
    "MESD": {},
    "TraceEmbedding": {"method": "opls", "ridge": 0.1},
    "LLTSVR": {"C": 0.1, "tol": 1e-2, "max_iter": 4, "frame": "identity"},
    "CoupledSVR": {"C": 0.1, "tol": 1e-2, "max_iter": 4},
    "JEC": {},
    "TagProp": {"n_neighbors": 15},
    "TwoPassKNN": {},
    "NeighborVotes": {},
    "FastTag": {},
    "LabelPropagation": {"n_neighbors": 8},
}
"""Parameters that suit a few samples, in the order of the page. Other estimators are tested with their defaults."""
ESTIMATORS = [*(name for name in OWN if name in REGISTRY), *(name for name in REGISTRY if name not in OWN)]
BY_ITERATION = ("LLTSVR", "CoupledSVR")
"""Equal problems have equal iterates, so that a few of them suffice. Only weighted and repeated samples have different
iterates. At `CONVERGED`, their scores differ by at most 5e-5."""
CONVERGED = {"tol": 1e-6, "max_iter": 5000}
ENGINES: dict[str, Any] = {
    "memory": "exact",
    "tiles": Exact(storage="resident", block=40, precision="float64"),
    "Nystrom": Nystrom(rank=20),
    "Meka": Meka(rank=8, clusters=2),
}
OPTIONS = {
    "memory": ["--approximation", "exact"],
    "tiles": ["--approximation", "exact", "--storage", "resident", "--block", "40", "--precision", "float64"],
    "Nystrom": ["--approximation", "nystrom", "--rank", "20"],
    "Meka": ["--approximation", "meka", "--rank", "8", "--clusters", "2"],
}
"""Command-line options of each engine."""


class Case:
    """Combination of an estimator and an engine, tested on a few samples."""

    def __init__(self, name: str, engine: str):
        self.kind: Any = getattr(dmo, name)
        self.shape, self.own = whole if self.kind.one_view else views, OWN.get(name, {})
        self.name, self.engine = name, engine
        self.parameters = {*inspect.signature(self.kind).parameters, *places(self.kind)}
        self.options = self.own | {"approximation": ENGINES[engine]} if "approximation" in self.parameters else self.own
        self.X, self.Y, self.later = data()["rows"][:N], data()["labels"][:N], data()["rows"][N:]
        if name == "HomogeneityAnalysis":
            self.X, self.later = np.round(self.X), np.round(self.X[:NEW])

    def model(self, decides: bool = False, **options: Any) -> Any:
        """Create the estimator. Label sets, which require additional fits, are learned only if `decides` is True."""
        few = {} if decides or "label_sets" not in self.parameters else {"label_sets": False}
        return made(self.kind, **self.options | few | options)

    def fit(self, X: Any = None, y: Any = None, model: Any = None, **given: Any) -> Any:
        model = self.model() if model is None else model
        return model.fit(self.shape(self.X) if X is None else X, self.Y if y is None else y, **given)

    @property
    def plain(self) -> Any:
        """The fitted estimator without the tested feature."""
        return plain(self.name, self.engine)

    def of_predictions(self) -> None:
        asks(self.model(), "predict")

    def says(self, model: Any, X: Any = None) -> np.ndarray:
        """Return scores of new samples, or inner products of coordinates, which do not depend on rotations."""
        X = self.shape(self.later) if X is None else X
        if hasattr(model, "decision_function"):
            return np.asarray(model.decision_function(X))
        Z = np.asarray(model.transform(X))
        return Z @ Z.T

    def by_kernel(self, kernel: str) -> dict[str, Any]:
        return {"kernel": kernel} if "kernel" in self.parameters else {}


@functools.cache
def plain(name: str, engine: str) -> Any:
    return Case(name, engine).fit()


def asks(model: Any, method: str) -> Any:
    """Return a method of a model, or raise UserError if the model does not have the method."""
    try:
        return getattr(model, method)
    except AttributeError as error:
        raise UserError(str(error)) from None


Concern = Callable[[Case], Pair]
CONCERNS: dict[str, Concern] = {}
DOORS: dict[str, Concern] = {}


def concern(words: str, table: dict[str, Concern] = CONCERNS) -> Callable[[Concern], Concern]:
    def named(check: Concern) -> Concern:
        table[words] = check
        return check

    return named


def weighted(case: Case, linear: bool) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Rows, their weights, and the parameters of the estimator."""
    often, X = data()["weights"].copy(), case.X.copy()
    # Repeated rows change the choice of landmarks and clusters. With linear kernels, low-rank engines are exact for any
    # choice.
    options: dict[str, Any] = case.by_kernel("linear") if linear else {}
    # Imputation and scaling also depend on the weights. Skip support vector regressions here, because their intercepts
    # are not unique on the prepared rows.
    if case.name in BY_ITERATION:
        options = options | CONVERGED
    elif "scale" in case.parameters:
        often[::9] = 0.0
        X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
        options = options | {"scale": "standard", "impute": "median"}
    return X, often, options


@functools.cache
def repeated(name: str, linear: bool) -> np.ndarray:
    """Scores of an exact fit in memory on repeated samples."""
    case = Case(name, "memory")
    X, often, options = weighted(case, linear)
    again = np.repeat(np.arange(N), often.astype(int))
    return case.says(case.fit(case.shape(X[again]), case.Y[again], case.model(**options)))


@concern("sample weights")
def weights(case: Case) -> Pair:
    # A repeated row can be chosen several times as a landmark, but a weighted row only once. With linear kernels,
    # low-rank engines are exact for any choice.
    linear = case.engine in ("Nystrom", "Meka")
    X, often, options = weighted(case, linear)
    found = case.says(case.fit(case.shape(X), model=case.model(**options), sample_weight=often))
    return found, repeated(case.name, linear), 3e-4 if case.name in BY_ITERATION else 1e-4


@concern("weights per view")
def view_weights(case: Case) -> Pair:
    lacking = np.arange(N) % 6 == 0
    found = case.fit(views(case.X), sample_weight={"a": 1.0 * ~lacking, "b": np.ones(N)})
    missing = views(case.X) | {"a": np.where(lacking[:, None], np.nan, views(case.X)["a"])}
    return case.says(found, views(case.later)), case.says(case.fit(missing), views(case.later)), 1e-6


@concern("weights per target")
def target_weights(case: Case) -> Pair:
    case.of_predictions()
    case.kind(weights="per-target")
    found = case.fit(model=case.model(weights="per-target"))
    weights, own = dict(zip("ab", found.target_weights_[1], strict=True)), float(found.target_ridges_[1])
    one = case.fit(model=case.model(weights=weights, ridge=own, combine="kernels"))
    return case.says(found)[:, 1], case.says(one)[:, 1], 1e-4


@concern("class weights")
def class_weights(case: Case) -> Pair:
    y = np.where(data()["signal"][:N, 0] > 0.8, "rare", "often")
    each = {"rare": 3.0, "often": 1.0}
    own = {"intercept": True} if "intercept" in case.parameters else {}
    # A learned bandwidth depends on sample weights but not on class weights, so use a linear kernel.
    options = own | case.by_kernel("linear")
    found = case.fit(y=y, model=case.model(class_weight=each, **options))
    by_hand = case.fit(y=y, model=case.model(**options), sample_weight=np.array([each[name] for name in y]))
    return case.says(found), case.says(by_hand), 1e-6


@concern("unknown labels")
def unknown(case: Case) -> Pair:
    case.of_predictions()
    hidden = np.random.default_rng(0).random((N, L)) < 0.2
    found = case.says(case.fit(y=np.where(hidden, np.nan, case.Y)))
    as_zero = case.says(case.fit(y=np.where(hidden, 0.0, case.Y)))
    assert np.abs(found - as_zero).max() > 1e-6 * np.abs(found).max(), "an unknown label is taken as no label"
    return case.says(case.fit(y=np.ma.array(np.where(hidden, 1.0, case.Y), mask=hidden))), found, 1e-12


@concern("missing views")
def missing_views(case: Case) -> Pair:
    X = views(case.X)
    lacking = np.arange(N)[:, None] % 6 == 0
    found = case.says(case.fit(X | {"a": np.where(lacking, np.nan, X["a"])}), views(case.later))
    zeros = case.says(case.fit(X | {"a": np.where(lacking, 0.0, X["a"])}), views(case.later))
    assert np.abs(found - zeros).max() > 1e-6 * np.abs(found).max(), "a missing view is taken as zeros"
    return found, found, 0.0


@concern("missing cells")
def missing_cells(case: Case) -> Pair:
    X = case.X.copy()
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    filled = SimpleImputer().fit(X)
    found = case.fit(case.shape(X), model=case.model(**prepared(case, impute="mean")))
    whole_rows = case.fit(case.shape(filled.transform(X)), model=case.model(**prepared(case)))
    return of_rows(case, found), of_rows(case, whole_rows), 1e-6


@concern("scaling")
def scaling(case: Case) -> Pair:
    by = StandardScaler().fit(case.X)
    found = case.fit(model=case.model(**prepared(case, scale="standard")))
    plain = case.fit(case.shape(by.transform(case.X)), model=case.model(**prepared(case, scale="none")))
    return of_rows(case, found), of_rows(case, plain, case.shape(by.transform(case.later))), 1e-5


def of_rows(case: Case, model: Any, X: Any = None) -> np.ndarray:
    """Return the scores of a model, or raw scores for NeighborVotes, whose vote weights are learned from folds."""
    if case.name != "NeighborVotes":
        return case.says(model, X)
    raw: np.ndarray = model._scores(model._checked(case.shape(case.later) if X is None else X))[0]
    return raw


def prepared(case: Case, **options: Any) -> dict[str, Any]:
    if "base" in case.parameters:  # the base model prepares the rows
        return {"base": made(dmo.MultiViewRidge, label_sets=False, **options)}
    return options


@concern("sparse rows")
def sparse(case: Case) -> Pair:
    few = np.where(case.X > 0.7, case.X, 0.0)
    rows = each_view(case.shape(few), scipy.sparse.csr_array)
    return case.says(case.fit(rows)), case.says(case.fit(case.shape(few))), 1e-4


def each_view(X: Any, form: Callable[[np.ndarray], Any]) -> Any:
    return {view: form(rows) for view, rows in X.items()} if isinstance(X, dict) else form(X)


@concern("float32 rows")
def single(case: Case) -> Pair:
    return case.says(case.fit(case.shape(case.X.astype(np.float32)))), case.says(case.plain), 5e-3


@concern("very many labels")
def many(case: Case) -> Pair:
    case.of_predictions()
    rare = scipy.sparse.random_array((N, 36), density=0.01, rng=np.random.default_rng(2)).astype(bool)
    Y = scipy.sparse.hstack([scipy.sparse.csr_array(case.Y), rare.astype(float)], format="csr")
    with mock.patch.object(outputs, "_MANY", 32), mock.patch.object(annotator, "_MANY", 32):
        model = case.fit(y=Y)
        found = np.asarray(model.decision_function(case.shape(case.X)))[:, :L]
    told = np.ptp(found, axis=0) > 1e-9  # constant scores have no correlation
    right = np.sum([np.corrcoef(found[:, j], case.Y[:, j])[0, 1] for j in np.flatnonzero(told)]) / L
    assert right > 0.15, f"scores of 40 labels correlate by {right:.2f} with the labels that they were fitted on"
    return found, found, 0.0


@concern("real targets")
def real(case: Case) -> Pair:
    case.of_predictions()
    T = 100 + 30 * data()["signal"][:N]
    found = np.asarray(case.fit(y=T).predict(case.shape(case.X)))
    assert r2_score(T, found) > 0.05, f"R2 = {r2_score(T, found):.2f} of the training samples"
    scaled = np.asarray(case.fit(y=1000 * T).predict(case.shape(case.X)))
    return scaled / 1000, found, 1e-3


@concern("a vector of classes")
def classes(case: Case) -> Pair:
    case.of_predictions()
    y = np.array(["sea", "sky", "sun"])[np.digitize(case.X[:, 0], np.quantile(case.X[:, 0], [0.4, 0.7]))]
    model = case.fit(y=y, model=case.model(decides=True))
    found = np.asarray(model.predict(case.shape(case.X)))
    assert found.shape == (N,), "predict gives other things than classes"
    assert set(found) <= set(y), "predict gives other things than classes"
    most = np.unique(y, return_counts=True)[1].max() / N
    assert (found == y).mean() > most, (
        f"{(found == y).mean():.2f} of the training samples, the commonest has {most:.2f}"
    )
    return model.predict_proba(case.shape(case.later)).sum(axis=1), np.ones(NEW), 1e-9


@concern("sets of labels")
def label_sets(case: Case) -> Pair:
    case.of_predictions()
    model = case.fit(y=case.Y.astype(np.int16), model=case.model(decides=True))
    later = case.shape(case.later)
    found, p, decided = model.predict(later), model.predict_proba(later), model.decide(later)
    assert found.dtype == np.int16
    assert found.shape == p.shape == (NEW, L)
    assert 0 <= p.min() <= p.max() <= 1
    assert (model.predict(later, top=2).sum(axis=1) == 2).all()
    return found, decided.sets, 0.0


@concern("precomputed kernels")
def precomputed(case: Case) -> Pair:
    model = case.model(kernel="precomputed")
    given, later = case.shape(case.X), case.shape(case.later)
    if isinstance(given, dict):
        K, K_new = {v: G @ G.T for v, G in given.items()}, {v: later[v] @ given[v].T for v in given}
    else:
        K, K_new = given @ given.T, later @ given.T
    return case.says(case.fit(K, model=model), K_new), case.says(case.fit(model=case.model(kernel="linear"))), 1e-4


@concern("incremental fits")
def incremental(case: Case) -> Pair:
    model = case.model(**case.by_kernel("linear"))
    asks(model, "partial_fit")
    together = case.fit(model=clone(model))
    for part in (slice(0, 40), slice(40, N)):
        model.partial_fit(case.shape(case.X[part]), case.Y[part])
    return case.says(model), case.says(together), 1e-4


TRIED = {"ridge": 0.2, "C": 0.05, "n_neighbors": 9, "sharpness": 20.0, "strength": 0.5, "class_similarity": "cosine"}
"""Candidate values for sweeps. A sweep uses the first of these parameters that the estimator has."""


@concern("sweeps")
def swept(case: Case) -> Pair:
    case.of_predictions()
    tried = {} if case.name == "MOPE" else {name: value for name, value in TRIED.items() if name in case.parameters}
    registered = {name: value for name, (value, *_) in REGISTRY[case.name].grid.items() if "__" not in name}
    own, value = next(iter((tried or registered).items()))
    grid = {places(case.kind).get(own, own): [value]}
    done = sweep(case.model(), case.shape(case.X), case.Y, grid, 3, "ranking")
    return case.says(done.best_estimator_), case.says(case.fit(model=case.model(**{own: value}))), 1e-4


@concern("checkpoints")
def kept(case: Case) -> Pair:
    with tempfile.TemporaryDirectory() as folder, checkpoints(folder):
        model = case.fit()
    return case.says(model), case.says(case.plain), 1e-9


@concern("save and load")
def saved(case: Case) -> Pair:
    model = case.plain
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/m.zarr")
        return case.says(dmo.load(f"{folder}/m.zarr")), case.says(model), 1e-12


@concern("dask arrays in")
def dask_in(case: Case) -> Pair:
    rows = case.shape(da.from_array(case.X, chunks=(25, -1)))
    return case.says(case.fit(rows)), case.says(case.plain), 1e-5


@concern("Zarr arrays in")
def zarr_in(case: Case) -> Pair:
    rows = each_view(case.shape(case.X), lambda part: zarr.array(part, chunks=(25, part.shape[1])))
    return case.says(case.fit(rows)), case.says(case.plain), 1e-5


@concern("lazy out")
def lazy_out(case: Case) -> Pair:
    model = case.plain
    method = "decision_function" if hasattr(model, "decision_function") else "transform"
    later = case.shape(da.from_array(case.later, chunks=(4, -1)))
    found = getattr(model, method)(later)
    assert hasattr(found, "compute"), "dask rows are computed at once"
    return found.compute(), np.asarray(getattr(model, method)(case.shape(case.later))), 1e-5


@functools.cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="contract"))


@functools.cache
def store(name: str) -> str:
    """Write the samples to a feature store that suits the estimator, with the new samples as the split "test"."""
    case = Case(name, "memory")
    rows = case.shape(np.vstack([case.X, case.later]))
    views, split = rows if isinstance(rows, dict) else {"x": rows}, np.repeat(["train", "test"], [N, NEW])
    source = Samples(views, data()["labels"], split=split)
    path = folder() / f"{name}.features.zarr"
    source.write(str(path))
    return str(path)


def shell(*words: str) -> dict[str, Any]:
    """Return the output of `dmo WORDS --json`, or raise the error message of the command as in Python."""
    done = CliRunner().invoke(app, [*words, "--json"])
    if done.exit_code in (2, 3):
        said = re.sub(r"[│╭╮╰╯─]+( Error )?", " ", done.stderr).replace(str(folder()), "")
        raise UserError(
            " ".join(re.sub(r"(?s).*for help\.|^engine: [^\n]*", "", re.sub(r"dmo: /\S+ ", "the model ", said)).split())
        )
    assert done.exit_code == 0, (words, done.stdout, done.stderr, done.exception)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def flags(case: Case) -> list[str]:
    said = [part for key, value in case.own.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    if case.engine != "memory" and "label_sets" in case.parameters:  # other commands do not use this model
        said.append("--no-label-sets")
    return said + (OPTIONS[case.engine] if "approximation" in case.parameters else [])


@functools.cache
def shell_model(name: str, engine: str) -> str:
    """Fit a model with `dmo fit`, and return its path."""
    path = folder() / f"{name}-{engine}.model.zarr"
    shell("fit", REGISTRY[name].command, store(name), str(path), "--split", "train", *flags(Case(name, engine)))
    return str(path)


@concern("dmo fit", DOORS)
def fitted_by_shell(case: Case) -> Pair:
    return case.says(dmo.load(shell_model(case.name, case.engine))), case.says(case.plain), 1e-9


def by_shell(case: Case, command: str, *words: str) -> Any:
    """Return the output of a command for the new samples and the model of `dmo fit`."""
    return shell(command, shell_model(case.name, case.engine), store(case.name), *words)


@functools.cache
def decided(name: str) -> Any:
    """Fit the estimator as `dmo fit` does, including label sets."""
    case = Case(name, "memory")
    return case.fit(model=case.model(decides=True))


@concern("dmo annotate", DOORS)
def annotated(case: Case) -> Pair:
    out = folder() / f"{case.name}.csv"
    by_shell(case, "annotate", str(out.with_suffix(".zarr")), "--csv", str(out))
    with out.open(encoding="utf-8") as file:
        lines = [*csv.reader(file)][1:]
    return (
        [[str(j) in line[1:] for j in range(L)] for line in lines],
        decided(case.name).predict(case.shape(case.later)),
        0.0,
    )


@concern("dmo serve", DOORS)
def served(case: Case) -> Pair:
    file, rows = folder() / f"{case.name}.npz", case.shape(case.later)
    np.savez(file, **(rows if isinstance(rows, dict) else {"x": rows}))
    model = shell_model(case.name, case.engine)
    try:
        answers = open_trial(model, None, None, NEW).rows([Upload(file.name, file)])
    except UserError as error:
        raise UserError(str(error).replace(model, "the model")) from None
    ticked = [{label["name"] for label in answer["labels"] if label["given"]} for answer in answers]
    return (
        [[str(j) in names for j in range(L)] for names in ticked],
        decided(case.name).predict(case.shape(case.later)),
        0.0,
    )


@concern("dmo evaluate", DOORS)
def evaluated(case: Case) -> Pair:
    found = by_shell(case, "evaluate")["lrap"]
    return found, label_ranking_average_precision_score(data()["labels"][N:], case.says(case.plain)), 1e-9


@concern("dmo transform", DOORS)
def transformed(case: Case) -> Pair:
    out = str(folder() / f"{case.name}.transform.zarr")
    by_shell(case, "transform", out, "--split", "test")
    found = np.asarray(open_results(out)[:])
    return found, np.asarray(asks(case.plain, "transform")(case.shape(case.later))), 1e-5


@concern("dmo search", DOORS)
def searched(case: Case) -> Pair:
    found = by_shell(case, "search", "--sample", "3", "--top", "4")["found"]
    # Several samples can have the same direction within floating-point error.
    assert "3" in [one["sample"] for one in found if one["value"] > 1 - 1e-5], "the sample itself is not the nearest"
    return found[0]["value"], 1.0, 1e-5


@concern("dmo suggest", DOORS)
def suggested(case: Case) -> Pair:
    found = by_shell(case, "suggest", "--kind", "wrong", "--count", "5")["suggested"]
    assert len({each["sample"] for each in found}) == 5
    assert {each["why"] for each in found} == {"wrong"}
    return np.sort([each["value"] for each in found])[::-1], [each["value"] for each in found], 0.0


@concern("dmo update", DOORS)
def updated(case: Case) -> Pair:
    answers, out = folder() / f"{case.name}.answers.csv", str(folder() / f"{case.name}.updated.zarr")
    answers.write_text("sample,labels\n5,0;1;2;3\n7,1\n", encoding="utf-8")
    by_shell(case, "update", out, str(answers), "--split", "train")
    Y = case.Y.copy()
    Y[[5, 7]] = [[1, 1, 1, 1], [0, 1, 0, 0]]
    return case.says(dmo.load(out)), case.says(case.fit(y=Y)), 1e-6


@concern("dmo plan", DOORS)
def planned(case: Case) -> Pair:
    found = shell("plan", REGISTRY[case.name].command, store(case.name), "--split", "train")
    assert all(plan["kernel_bytes"] > 0 and plan["model_bytes"] > 0 for plan in found["plans"].values())
    return found["n_samples"], N, 0.0


@concern("dmo tune", DOORS)
def tuned(case: Case) -> Pair:
    out = str(folder() / f"{case.name}.tuned.zarr")
    fixed = [part for key, value in case.own.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    best = shell(
        "tune", REGISTRY[case.name].command, store(case.name), out, "--split", "train", "--folds", "3", *fixed
    )["best"]
    chosen = {name: value for name, value in best.items() if name != "mean"}
    return case.says(dmo.load(out)), case.says(case.fit(model=case.model().set_params(**chosen))), 1e-6


@concern("dmo report", DOORS)
def reported(case: Case) -> Pair:
    out = folder() / f"{case.name}.html"
    with figures_emptied():
        by_shell(case, "report", str(out))
    assert case.name in out.read_text(encoding="utf-8")
    return 0.0, 0.0, 0.0


@functools.cache
def outcome(name: str, words: str, engine: str) -> str:
    """Return "yes" or the message of an expected error, and raise all other errors."""
    case = Case(name, engine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found, expected, tolerance = EVERY[words](case)
        except UserError as error:
            return re.sub(
                rf"^({name}(\(.*?\))?:? )?|; (it has|its parameters are) [a-zA-Z_, ]+$", "", str(error).split("\n")[0]
            )
        except TypeError as error:  # scikit-learn raises this error
            if "Sparse data was passed" not in str(error):
                raise
            return str(error)
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    assert np.abs(found - expected).max(initial=0.0) <= tolerance * max(np.abs(expected).max(initial=0.0), 1e-12)
    return YES


def engines_of(name: str, words: str) -> list[str]:
    """Return the engines that are tested for a feature. Slow features and commands are tested with one engine."""
    if words in DOORS and words != "dmo fit":
        return ["memory"]
    return [*ENGINES] if "approximation" in inspect.signature(getattr(dmo, name)).parameters else ["memory"]


EVERY = CONCERNS | DOORS
CELLS = [(name, words, engine) for name in ESTIMATORS for words in EVERY for engine in engines_of(name, words)]


def table(columns: dict[str, Concern], notes: dict[str, int], only: Collection[str]) -> str:
    """Write a table of estimators and features. Rows of estimators that are not in `only` are copied from the page."""
    lines = ["| estimator | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in ESTIMATORS:
        cells = []
        for words in columns:
            if name in only:
                each = {engine: outcome(name, words, engine) for engine in engines_of(name, words)}
                kept = [engine for engine, said in each.items() if said == YES]
                why = list(dict.fromkeys(said for said in each.values() if said != YES))
            else:
                kept, why = promised()[name, words]
            numbers = ", ".join(str(notes.setdefault(said, len(notes) + 1)) for said in why)
            cells.append("yes" if not why else f"{', '.join(kept)}; else {numbers}" if any(kept) else f"no {numbers}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


HEAD = """# Features supported by each estimator

"yes" means that the feature is supported under every engine of the estimator: an exact kernel in memory, the same in tiles,
`Nystrom` and `Meka`. Other cells name the engines that support the feature. In all other cases, an error is raised; the
numbers refer to the list of messages at the end of the page. Tests check every cell on a few samples. They compare sample
weights with repeated samples, missing values with imputed ones, and scaled rows with rows scaled by scikit-learn. The tests
also compare a loaded model with the saved one, and each command with the equivalent call in Python. "Very many labels" are
40 labels under a lower limit for sparse labels.

"""


REASONS = """
## Reasons

The following cells are "no" for a reason other than missing code:

- Sample weights of neighbor methods (`MOPE`, `JEC`, `TagProp`, `TwoPassKNN`, `NeighborVotes`, `LabelPropagation`): a repeated
  sample changes which samples are among the nearest ones, which a factor on its terms does not.
- Weights per view of methods of one view (`HomogeneityAnalysis`, `MORP`, `MLSI`, `MESD`, `TraceEmbedding`): they equal sample
  weights. `LLTSVR` and `CoupledSVR` have one kernel, the mean over the views, whose samples have one weight.
- Weights per target: they belong to a separate regression of each target, and methods of a shared space solve for all targets
  at once.
- Class weights of neighbor methods: they are sample weights by class. `MultiSetCCA` and `HomogeneityAnalysis` have no classes,
  and of a label matrix only separate regressions of each label have class weights.
- Unknown labels of neighbor methods: the vote of a neighbor with an unknown label is undefined. `MESD` duplicates a sample for
  each of its labels, and an unknown label has no number of duplicates.
- Labels, targets and predictions of `MultiSetCCA` and `HomogeneityAnalysis`: their spaces do not depend on labels.
- Missing views of methods of one view: such a sample has no data. A mean of kernels or distances over the views needs all
  views of both samples.
- Scaling and imputation in `HomogeneityAnalysis`: categories have no units, and a missing category has no mean.
- Real targets of `MOPE`, `MESD`, `LabelPropagation` and votes: proximities, duplicates and votes count labels.
- Precomputed kernels of low-rank engines and of methods that search for neighbors among features: a kernel matrix contains no
  rows from which to choose landmarks, and none from which to compute distances by other metrics.
- Incremental fits of exact engines, neighbor methods and `MESD`: they need all earlier samples. The loss of `LLTSVR` and
  `CoupledSVR` is not a function of moments.
"""


def page(only: Collection[str]) -> str:
    notes: dict[str, int] = {}
    tables = f"{table(CONCERNS, notes, only)}\n\n## Commands\n\n{table(DOORS, notes, only)}\n\n## Messages\n\n"
    return HEAD + tables + "\n".join(f"{number}. {said}" for said, number in notes.items()) + "\n" + REASONS


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("engine", ["nystrom", "meka", "best"])
@pytest.mark.parametrize("name", [name for name in ESTIMATORS if len(engines_of(name, "")) > 1])
def test_the_name_of_an_engine_stands_for_it_with_its_defaults(name: str, engine: str) -> None:
    case, meant = Case(name, "memory"), {"nystrom": Nystrom(), "meka": Meka(), "best": dmo.BestLowRank()}[engine]
    model = clone(case.model(approximation=engine))
    assert repr(model.approximation) == repr(meant)
    # `clone` raises an error if the constructor changed a parameter.
    each = clone(case.model(approximation={"a": engine, "b": Nystrom(rank=20)}))
    assert repr(each.approximation) == repr({"a": meant, "b": Nystrom(rank=20)})
    if engine == "nystrom":
        found, expected = (case.says(case.fit(model=own)) for own in (model, case.model(approximation=meant)))
        np.testing.assert_array_equal(found, expected)


def test_an_argument_that_a_method_lacks_is_told_with_the_one_that_may_be_meant() -> None:
    case = Case("JEC", "memory")
    with pytest.raises(UserError, match=r"^JEC: fit does not support sample_weight; its parameters are X, y$"):
        case.fit(sample_weight=data()["weights"])
    with pytest.raises(UserError, match=r"^JEC: predict does not support top_k; did you mean top[?]$"):
        case.plain.predict(case.later, top_k=2)
    assert case.plain.predict(case.shape(case.later), top=2).sum() == 2 * NEW


@functools.cache
def promised() -> dict[tuple[str, str], tuple[list[str], list[str]]]:
    """Read from the page, for each cell, the engines that support the feature and the messages of the other engines."""
    text = PAGE.read_text(encoding="utf-8")
    notes = dict(re.findall(r"^(\d+)\. (.*)$", text, re.M))
    found, head = {}, [""]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| estimator |"):
            head = cells
        elif line.startswith("| `"):
            for words, cell in zip(head[1:], cells[1:], strict=True):
                kept, _, numbers = (
                    cell.removeprefix("no ").rpartition("; else ") if cell != "yes" else (", ".join(ENGINES), "", "")
                )
                found[cells[0].strip("`"), words] = kept.split(", "), [notes[n] for n in numbers.split(", ") if n]
    return found


@pytest.mark.parametrize(
    ("name", "words", "engine"),
    [pytest.param(*cell, marks=() if cell[2] == "memory" else pytest.mark.slow) for cell in CELLS],
    ids=[" | ".join(cell) for cell in CELLS],
)
def test_a_cell_of_the_page_is_a_promise_kept_or_the_sentence_that_is_said(name: str, words: str, engine: str) -> None:
    kept, sentences = promised()[name, words]
    said = outcome(name, words, engine)
    assert said == YES if engine in kept else said in sentences, "PYTHONPATH=. python test_contract.py write"


def test_the_page_has_every_estimator_and_concern_and_says_no_sentence_in_vain() -> None:
    assert set(promised()) == {(name, words) for name in ESTIMATORS for words in EVERY}
    used = {sentence for _, sentences in promised().values() for sentence in sentences}
    assert used == set(re.findall(r"^\d+\. (.*)$", PAGE.read_text(encoding="utf-8"), re.M))


def test_rows_of_other_estimators_are_copied_from_the_page() -> None:
    assert page(only=()) == PAGE.read_text(encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:2] == ["write"]:
    PAGE.write_text(page(sys.argv[2:] or ESTIMATORS), encoding="utf-8")
