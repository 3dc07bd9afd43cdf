"""`dmo.tune` with default options compared with scikit-learn's estimators, tuned by the same metric on the same rows.

    python -m pipelines.benchmarks.against_sklearn --data FOLDER --rows rows.json --sets emotions,scene,yeast --seeds 5
    python -m pipelines.benchmarks.against_sklearn --rows rows.json --table table.md

The data sets have label sets, classes or regression targets. Seed 0 uses the split of the data set; other seeds, and
data sets without a split, hold out a random quarter of the rows. Scores are means over seeds, with standard deviations
after +-. At most 2000 training and 2000 test rows are used; 1000 with more than 60 labels or 1500 columns, and 500 with
more than 150 labels. drawn-labels and drawn-targets come from scikit-learn's generators, with columns in units from
1e-4 to 1e4. Each scikit-learn estimator is tuned over a grid of powers of ten in 3 folds, by the metric that `dmo.tune`
chooses by default. Its columns are tried unscaled and standardized, or only standardized if their standard deviations
differ by more than a factor of 100. Its label sets come from the best thresholds on cross-validated scores: one
threshold for micro F1, and one per label for macro F1. Label sets of dmo are the output of `predict`; for macro F1, the
same parameters are fitted again with decoder="f1-macro". Label scores of trees are probabilities. Logistic regression
is limited to 200 labels because it did not learn rare labels here. Views are concatenated, except for "stacking" (a
logistic regression on out-of-fold outputs of one support vector machine per view) and "MCCA + logistic" (cca-zoo, after
100 principal components per view). Test rows are scored once, with the final parameters. CPU seconds are for tuning,
the final fit and scoring with one seed, over all threads; set OPENBLAS_NUM_THREADS=1. Results in the file of rows are
not computed again.
"""

from __future__ import annotations

import itertools
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import scipy.sparse
from cca_zoo.linear import MCCA
from sklearn import datasets
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
    StackingClassifier,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import precision_recall_curve
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, SVR

import dmo
from dmo.blocks import rows
from dmo.datasets import ingest
from dmo.datasets.files import read_samples, share_out
from dmo.formats.arff import read_arff, read_label_list
from dmo.metrics import metric_of, ranking_scores, regression_scores, set_scores
from dmo.metrics.annotation import auc_macro, f1_macro
from dmo.select.sweeps import settings, stratified_folds
from dmo.workflows.program import option_parser
from pipelines.datasets.reuters import ingest_reuters

FOLDS = 3
POWERS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
MULAN = ("emotions", "flags", "foodtruck", "scene", "yeast", "enron", "bibtex", "delicious")
CLASSES = {"iris": datasets.load_iris, "wine": datasets.load_wine, "cancer": datasets.load_breast_cancer}
CLASSES |= {"digits": datasets.load_digits}
TARGETS = {"diabetes": datasets.load_diabetes, "linnerud": datasets.load_linnerud}
REAL = {"edm": 2, "enb": 2, "jura": 3, "slump": 3, "sf1": 3, "scpf": 3, "osales": 12}
COREL = ("dense_hue", "harris_hue", "gist")
MATLAB = {
    "arts": ("labels/arts.mat::data", "labels/arts.mat::target.T"),
    "slashdot": ("labels/slashdot.mat::data", "labels/slashdot.mat::target.T"),
    "leaves": ("multi_view/100Leaves.mat::X", "multi_view/100Leaves.mat::Y"),
    "mnist4": ("multi_view/MNIST-4.mat::X", "multi_view/MNIST-4.mat::y"),
    "bbcsport": (
        "multi_view/BBCSport.mat::data{1}.T multi_view/BBCSport.mat::data{2}.T",
        "multi_view/BBCSport.mat::truelabel",
    ),
}
FIGURES = {"labels": ("LRAP", "micro F1", "macro AUC", "macro F1"), "real": ("RMSE", "aRRMSE", "R2")}
"""Scores of label sets and classes (where micro F1 equals accuracy), and of regression targets."""
TREES = (RandomForestRegressor, ExtraTreesRegressor, HistGradientBoostingRegressor, HistGradientBoostingClassifier)
Found = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]
"""Scores of test rows, and their label sets for micro and macro F1."""


@dataclass
class Problem:
    """Training rows and test rows by view, their labels, and the kind of labels: "labels", "classes" or "real"."""

    views: dict[str, Any]
    Y: np.ndarray
    new: dict[str, Any]
    truth: np.ndarray
    kind: str
    of: int

    def stacked(self) -> tuple[Any, Any]:
        """Return training and test rows as one array each, with missing values imputed."""
        sparse = any(scipy.sparse.issparse(block) for block in self.views.values())
        if sparse:
            return tuple(_narrow(scipy.sparse.hstack(list(part.values()), "csr")) for part in (self.views, self.new))
        old, new = (np.hstack(list(part.values())).astype(float) for part in (self.views, self.new))
        filled = SimpleImputer(keep_empty_features=True).fit(old)
        return filled.transform(old), filled.transform(new)


def read(name: str, data: Path, seed: int) -> Problem:
    """Read a data set with a limited number of rows; seeds other than 0 draw a random split."""
    split, kind = None, "labels"
    if name in CLASSES:
        X, y = CLASSES[name](return_X_y=True)
        views, Y, kind = {"x": X}, np.eye(y.max() + 1, dtype=np.uint8)[y], "classes"
    elif name in TARGETS:
        X, Y = TARGETS[name](return_X_y=True)
        views, Y, kind = {"x": X}, Y.reshape(len(X), -1), "real"
    elif name.startswith("drawn"):
        X, Y = drawn(name)
        views, kind = {"x": X}, "real" if name == "drawn-targets" else "labels"
    elif name in REAL:
        X, Y = read_arff(data / f"multi_target/{name}.arff", -REAL[name])
        views, kind = {"x": rows(X)}, "real"
    elif name in MATLAB:
        features, labels = ([str(data / part) for part in files.split()] for files in MATLAB[name])
        given = dict(zip(("a", "b"), features, strict=True)) if len(features) == 2 else features[0]
        samples = read_samples(given, labels[0])
        views, Y, kind = samples.views, samples.labels, "labels" if "target" in labels[0] else "classes"
    elif name in MULAN:
        files = {part: data / f"mulan/{name}/{name}-{part}.arff.xz" for part in ("train", "test")}
        whole = data / f"mulan/{name}/{name}.arff.xz"
        samples = read_samples(
            whole if whole.exists() else files, labels=read_label_list(data / f"mulan/{name}/{name}.xml.xz")
        )
        views, Y, split = samples.views, samples.labels, samples.split
    else:
        views, Y, split = _ingested(name, data)
    split = share_out(Y, len(Y), 0.25, seed) if split is None or seed else split
    wide = sum(view.shape[1] for view in views.values()) > 1500
    most = 500 if Y.shape[1] > 150 else 1000 if Y.shape[1] > 60 or wide else 2000
    chosen = [np.flatnonzero(np.asarray(split) == part) for part in ("train", "test")]
    old, new = (np.sort(np.random.default_rng(seed).permutation(index)[:most]) for index in chosen)
    Y, parts = np.asarray(Y), [{view: _part(block, index) for view, block in views.items()} for index in (old, new)]
    return Problem(parts[0], Y[old], parts[1], Y[new], kind, len(Y))


def drawn(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Generate a data set with scikit-learn; its columns (and targets) have units from 1e-4 to 1e4."""
    units = 10.0 ** np.random.default_rng(0).uniform(-4, 4, 30)
    if name == "drawn-labels":
        X, Y = datasets.make_multilabel_classification(800, 30, n_classes=12, random_state=0)
        return X * units, Y
    X, Y = datasets.make_regression(400, 30, n_informative=12, n_targets=4, noise=40.0, random_state=0)
    return X * units, Y * units[:4]


def _ingested(name: str, data: Path) -> tuple[dict[str, Any], np.ndarray, np.ndarray | None]:
    """Return views, labels and split of a data set with a card."""
    with TemporaryDirectory() as folder:
        path = f"{folder}/{name}.zarr"
        if name == "reuters":
            store = ingest_reuters(
                data / "reuters21578/reuters21578.tar.xz", path, selection="modapte-90", min_documents=3
            )
        else:
            where = data / {"rcv1subset": "rcv1"}.get(name, name)
            store = ingest(name, where, path, views=COREL if name == "corel5k" else None)
        views, Y, _ = store.select(None)
        assert Y is not None
        return {view: rows(block) for view, block in views.items()}, np.asarray(Y), store.split


def _narrow(X: Any) -> Any:
    """Convert to 32-bit indices because liblinear supports no others."""
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return X


def _part(block: Any, index: np.ndarray) -> Any:
    return scipy.sparse.csr_array(block)[index] if scipy.sparse.issparse(block) else np.asarray(block)[index]


class Views(BaseEstimator):
    """Estimator on concatenated views: stacking of one SVM per view, or MCCA followed by logistic regression."""

    def __init__(self, widths: tuple[int, ...] = (), C: float = 1.0, components: int = 0) -> None:
        self.widths, self.C, self.components = widths, C, components

    def fit(self, X: Any, Y: np.ndarray) -> Views:
        ends = np.cumsum((0, *self.widths))
        parts = [FunctionTransformer(lambda X, a=a, b=b: X[:, a:b]) for a, b in itertools.pairwise(ends)]
        if self.components:
            reduced = [
                make_pipeline(part, PCA(min(100, width, len(Y) - 1), random_state=0))
                for part, width in zip(parts, self.widths, strict=True)
            ]
            views = [part.fit_transform(X) for part in reduced]
            common = MCCA(min(self.components, *(view.shape[1] for view in views)), shrinkage=0.1).fit(views)
            self.rows_ = lambda X: np.hstack(common.transform([part.transform(X) for part in reduced]))
            self.model_ = make_pipeline(StandardScaler(), LogisticRegression(C=self.C, max_iter=200))
        else:
            machines = [make_pipeline(part, SVC(C=self.C, decision_function_shape="ovr")) for part in parts]
            self.rows_ = lambda X: X
            self.model_ = StackingClassifier([(f"view {number}", one) for number, one in enumerate(machines)], cv=3)
        self.model_.fit(self.rows_(X), Y.argmax(axis=1))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return self.model_.predict_proba(self.rows_(X))


def rivals(problem: Problem, X: Any) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Return estimators and grids by name; kernel widths are relative to the scale of the rows."""
    real, many = problem.kind == "real", problem.Y.shape[1] > 20
    sizes = {"n_estimators": 50 if many else 100, "random_state": 0}
    features = {"max_features": ("sqrt",) if many else ("sqrt", 0.3)}
    neighbors = [k for k in (5, 10, 20, 40) if k <= X.shape[0] // 2]
    found: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "Ridge": (Ridge(), {"alpha": POWERS}),
        "KernelRidge": (KernelRidge(kernel="rbf"), {"alpha": (0.001, *POWERS[:4]), "gamma": (0.3, 1.0, 3.0)}),
        "kNN": (KNeighborsRegressor(weights="distance"), {"n_neighbors": neighbors}),
        "forest": (RandomForestRegressor(**sizes), features),
        "ExtraTrees": (ExtraTreesRegressor(**sizes), features),
    }
    if real:
        machine = MultiOutputRegressor(SVR())
        found["SVR"] = machine, {"estimator__C": (0.1, 1.0, 10.0, 100.0), "estimator__gamma": (0.3, 1.0, 3.0)}
        one = HistGradientBoostingRegressor(random_state=0)
        found["boosting"] = MultiOutputRegressor(one), {"estimator__max_leaf_nodes": (7, 31)}
    else:
        solver = "liblinear" if scipy.sparse.issparse(X) or many else "lbfgs"
        one = OneVsRestClassifier(LogisticRegression(max_iter=200, solver=solver))
        if problem.Y.shape[1] <= 200:
            found["logistic"] = one, {"estimator__C": (0.1, 1.0, 10.0) if many else (0.01, 0.1, 1.0, 10.0)}
        if not many and X.shape[1] <= 500 and not scipy.sparse.issparse(X):
            one = HistGradientBoostingClassifier(max_iter=50, random_state=0)
            found["boosting"] = OneVsRestClassifier(one), {"estimator__max_leaf_nodes": (7, 31)}
    if real and X.shape[0] <= 1000 and X.shape[1] <= 100:  # The bandwidth is chosen by maximum likelihood.
        kernel = ConstantKernel() * RBF(np.sqrt(X.shape[1])) + WhiteKernel()
        found["Gaussian process"] = GaussianProcessRegressor(kernel, random_state=0), {}
    if problem.kind == "classes" and len(problem.views) > 1:
        views = Views(tuple(view.shape[1] for view in problem.views.values()))
        found["stacking"] = views, {"C": (1.0, 10.0, 100.0)}
        found["MCCA + logistic"] = views, {"components": (10, 30), "C": (0.1, 1.0, 10.0)}
    return found


def scales(X: Any) -> list[Any]:
    """Return the scalings to try: standardization, and no scaling unless standard deviations differ widely."""
    if scipy.sparse.issparse(X):
        return [StandardScaler(with_mean=False), "passthrough"]
    deviation = X.std(axis=0)
    deviation = deviation[deviation > 0]
    return [StandardScaler()] if deviation.max() > 100 * deviation.min() else [StandardScaler(), "passthrough"]


def fitted(model: Any, setting: Mapping[str, Any], scale: Any, X: Any, Y: np.ndarray) -> Any:
    """Fit a pipeline; kernel widths are in units of the mean squared distance of the rows to their mean."""
    scale = clone(scale) if scale != "passthrough" else scale
    rest = dict(setting)
    for name in ("gamma", "estimator__gamma"):
        if name in rest:
            Z = X if scale == "passthrough" else scale.fit_transform(X)
            mean = np.asarray(Z.mean(axis=0)).ravel()
            squares = Z.multiply(Z).mean(axis=0).sum() if scipy.sparse.issparse(Z) else (Z**2).mean(axis=0).sum()
            rest[name] = rest[name] / max(float(squares - mean @ mean), 1e-12)
    return make_pipeline(scale, clone(model).set_params(**rest)).fit(X, Y)


def scored(model: Any, X: Any) -> np.ndarray:
    """Return probabilities or predictions; decision functions would be 0 for labels without a training sample."""
    found = np.asarray(model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X))
    return found.reshape(X.shape[0], -1)  # With a single target, some estimators return a vector.


def judge(kind: str) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return the metric used to choose hyperparameters."""
    if kind == "real":
        return lambda Y, S: regression_scores(Y, S).r2
    return metric_of("accuracy" if kind == "classes" else "ranking")


def tuned(model: Any, grid: Mapping[str, Any], X: Any, Y: np.ndarray, kind: str) -> tuple[Any, np.ndarray]:
    """Fit the best candidate to all rows; return it with its cross-validated scores."""
    fold, rate = stratified_folds(Y, FOLDS), judge(kind)
    best: tuple[float, Any, dict[str, Any], np.ndarray] = (-np.inf, None, {}, np.zeros(Y.shape))
    trees = isinstance(getattr(model, "estimator", model), TREES)
    for scale in ["passthrough"] if trees else [StandardScaler()] if isinstance(model, Views) else scales(X):
        for setting in settings(grid):
            held = np.zeros(Y.shape)
            for number in range(FOLDS):
                old, new = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
                held[new] = scored(fitted(model, setting, scale, X[old], Y[old]), X[new])
            mean = float(np.mean([rate(Y[fold == number], held[fold == number]) for number in range(FOLDS)]))
            if mean > best[0]:
                best = mean, scale, setting, held
    return fitted(model, best[2], best[1], X, Y), best[3]


def best_threshold(scores: np.ndarray, Y: np.ndarray) -> float:
    """Return the threshold on scores (m,) with the best F1 for labels Y (m,)."""
    precision, recall, at = precision_recall_curve(Y, scores)
    return float(at[np.argmax((precision * recall / np.maximum(precision + recall, 1e-12))[:-1])])


def theirs(model: Any, grid: Mapping[str, Any], problem: Problem) -> Found:
    """Compute scores or predictions, and label sets, of the test rows with a scikit-learn estimator."""
    X, new = problem.stacked()
    # These estimators are slow on sparse rows or do not support them.
    if isinstance(model, (Ridge, Views, *TREES)) and scipy.sparse.issparse(X):
        X, new = X.toarray(), new.toarray()
    if problem.kind == "real":
        mean, deviation = problem.Y.mean(axis=0), problem.Y.std(axis=0)
        found, _ = tuned(model, grid, X, (problem.Y - mean) / deviation, "real")
        return scored(found, new) * deviation + mean, None, None
    occurs = problem.Y.any(axis=0) & ~problem.Y.all(axis=0)
    Y = problem.Y[:, occurs]
    found, held = tuned(model, grid, X, Y, problem.kind)
    scores = np.full(problem.truth.shape, -1e9)
    scores[:, occurs] = scored(found, new)
    if problem.kind == "classes":
        sets = scores == scores.max(axis=1, keepdims=True)
        return scores, sets, sets
    each = np.zeros(problem.truth.shape[1])
    each[occurs] = [best_threshold(held[:, label], Y[:, label]) for label in range(Y.shape[1])]
    return scores, scores >= best_threshold(held.ravel(), Y.ravel()), scores >= each


def ours(estimator: Any, problem: Problem) -> Found:
    """Compute scores or predictions, and label sets, of the test rows with `dmo.tune`."""
    X, new = problem.views, problem.new
    if problem.kind == "real":
        return np.asarray(dmo.tune(estimator, X, problem.Y).predict(new)).reshape(problem.truth.shape), None, None
    model = dmo.tune(estimator, X, problem.Y.argmax(axis=1) if problem.kind == "classes" else problem.Y)
    found = model.decide(new)
    if problem.kind == "classes":
        return found.scores, found.sets, found.sets
    again = clone(model).set_params(decoder="f1-macro").fit(X, problem.Y)
    return found.scores, found.sets, again.decide(new).sets


def figures(
    problem: Problem, scores: np.ndarray, sets: np.ndarray | None, each: np.ndarray | None
) -> tuple[float, ...]:
    """Compute the scores listed in FIGURES; AUC and macro F1 use labels with both classes."""
    if sets is None or each is None:
        found = regression_scores(problem.truth, scores, problem.Y.mean(axis=0))
        return found.rmse, found.arrmse, found.r2
    Y = problem.truth.astype(np.uint8)
    mixed = Y.any(axis=0) & ~Y.all(axis=0)
    micro = set_scores(Y, sets.astype(np.uint8)).f1_micro
    macro = f1_macro(Y[:, mixed], each[:, mixed].astype(np.uint8))
    return ranking_scores(Y, scores).lrap, micro, auc_macro(Y[:, mixed], scores[:, mixed]), macro


def compare(name: str, seed: int, problem: Problem, done: list[dict[str, Any]], kept: Path, only: str) -> None:
    """Append one row per method, and write it as soon as it is complete."""
    known = {(row["set"], row["method"], row["seed"]) for row in done}
    names = ("ridge", "lltsvr") if problem.kind == "real" else ("ridge",)
    empty = any(not scipy.sparse.issparse(block) and np.isnan(block).any() for block in problem.views.values())
    gaps: dict[str, Any] = {"prepare": dmo.Prepare(impute="mean")} if empty else {}
    real: dict[str, Any] = {"ridge": {"targets": "real"} if problem.kind == "real" else {}}
    kinds = {"ridge": dmo.MultiViewRidge, "lltsvr": dmo.LLTSVR}
    works: dict[str, Callable[[], Found]] = {
        f"dmo {kind}": lambda kind=kind: ours(kinds[kind](**gaps, **real.get(kind, {})), problem)  # type: ignore[misc]
        for kind in names
    }
    for rival, (model, grid) in rivals(problem, problem.stacked()[0]).items():
        works[rival] = lambda model=model, grid=grid: theirs(model, grid, problem)  # type: ignore[misc]
    size = {"n": len(problem.Y), "d": sum(view.shape[1] for view in problem.views.values()), "of": problem.of}
    for method, work in works.items():
        if (name, method, seed) in known or (only and not {method, method.split()[0]} & set(only.split(","))):
            continue
        start = time.process_time()
        found = figures(problem, *work())
        took = time.process_time() - start
        row = {"set": name, "kind": problem.kind, "method": method, "seed": seed, **size, "L": problem.Y.shape[1]}
        done.append(row | {"figures": [round(value, 4) for value in found], "cpu": round(took, 1)})
        kept.write_text("[\n" + ",\n".join(json.dumps(row) for row in done) + "\n]\n")
        print(f"{name:<12}{method:<14}{len(problem.Y):>6}" + "".join(f"{v:>10.4f}" for v in found) + f"{took:>9.1f}")


def table(done: list[dict[str, Any]]) -> str:
    """Format a Markdown page: a description, and a table per kind of scores with dmo first."""
    assert __doc__ is not None
    title, _, legend = __doc__.strip().split("\n\n")
    lines = [f"# {title.rstrip('.')}", "", legend, ""]
    for kinds in (("labels", "classes"), ("real",)):
        mine = sorted((row for row in done if row["kind"] in kinds), key=lambda row: row["set"])
        names = FIGURES["real" if "real" in kinds else "labels"]
        lines.append(f"| set | rows used x columns, labels | seeds | method | {' | '.join(names)} | CPU s | ratio |")
        lines.append("|---" * (6 + len(names)) + "|")
        for name in dict.fromkeys(row["set"] for row in mine):
            block: dict[str, list[dict[str, Any]]] = {}
            for row in sorted((row for row in mine if row["set"] == name), key=lambda row: row["method"][:3] != "dmo"):
                block.setdefault(row["method"], []).append(row)
            unit = np.mean([row["cpu"] for row in block.get("dmo ridge", [])] or [0.0])
            for number, (method, seeds) in enumerate(block.items()):
                first, cpu = seeds[0], np.mean([row["cpu"] for row in seeds])
                size = " | " if number else f"{name} | {first['n']} of {first['of']} x {first['d']}, {first['L']}"
                values = np.array([row["figures"] for row in seeds])
                spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])
                cells = " | ".join(
                    f"{value:.3f}" + f" +- {by:.3f}" * (len(values) > 1)
                    for value, by in zip(values.mean(axis=0), spread, strict=True)
                )
                share = f"{cpu / unit:.2f}" if unit else ""
                lines.append(f"| {size} | {len(values)} | {method} | {cells} | {cpu:.1f} | {share} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Read the data sets and compare the methods."""
    parser = option_parser(__doc__, data=None, seeds=1, sets=[])
    parser.add_argument(
        "--methods", default="", help="methods to run, comma-separated (dmo: all methods of dmo); default: all"
    )
    parser.add_argument("--rows", type=Path, required=True, help="JSON file of finished results; new ones are added")
    parser.add_argument("--table", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    done = json.loads(options.rows.read_text()) if options.rows.exists() else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in options.sets:
            for seed in range(options.seeds):
                compare(name, seed, read(name, Path(options.data), seed), done, options.rows, options.methods)
    if options.table is not None:
        options.table.write_text(table(done))


if __name__ == "__main__":
    main()
