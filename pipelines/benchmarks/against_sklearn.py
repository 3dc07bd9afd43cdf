"""`dmo.tune` without options beside scikit-learn's estimators, each tuned on the training rows by the same metric.

    python -m pipelines.benchmarks.against_sklearn --data FOLDER --sets emotions,scene,yeast

Sets are the multi-label sets of the cards that `dmo ingest` knows, in the split that they come with; rows beyond --rows of
either part are left out (the table says how many are used). Every rival gets standardized columns where they are dense, a
grid over powers of ten and 3 folds by the mean of LRAP and macro AUC, the metric that `dmo.tune` takes by itself; label
sets of the rivals come from one threshold of their cross-validated scores. Test rows are scored once, by the final settings.
CPU seconds are of tuning and the final fit, of all threads; run it with OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsRegressor

import dmo
from dmo import stores
from dmo.blocks import rows
from dmo.methods.thresholds import best_threshold
from dmo.metrics import metric_of, ranking_scores, set_scores
from dmo.metrics.annotation import auc_macro
from dmo.selection import settings, stratified_folds

FOLDS = 3
POWERS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def rivals(d: int) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Estimator and grid by name, for d columns of deviation 1."""
    widths = [0.3 / d, 1.0 / d, 3.0 / d]
    return {
        "Ridge": (Ridge(), {"alpha": POWERS}),
        "KernelRidge": (KernelRidge(kernel="rbf"), {"alpha": POWERS[:4], "gamma": widths}),
        "logistic": (OneVsRestClassifier(LogisticRegression(max_iter=300)), {"estimator__C": (0.01, 0.1, 1.0, 10.0)}),
        "kNN": (KNeighborsRegressor(weights="distance"), {"n_neighbors": (5, 10, 20, 40)}),
        "forest": (RandomForestRegressor(100, random_state=0), {"max_features": ("sqrt", 0.2)}),
    }


def scored(model: Any, X: np.ndarray) -> np.ndarray:
    """Label scores of a rival."""
    return np.asarray(model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X))


def tuned(model: Any, grid: Mapping[str, Any], X: np.ndarray, Y: np.ndarray) -> tuple[Any, float]:
    """The best setting fitted on all rows, and the threshold of micro F1 of its cross-validated scores."""
    fold, judge = stratified_folds(Y, FOLDS), metric_of("ranking")
    best: tuple[float, dict[str, Any], np.ndarray] = (-1.0, {}, np.zeros(Y.shape))
    for setting in settings(grid):
        held = np.zeros(Y.shape)
        for number in range(FOLDS):
            old, new = fold != number, fold == number
            held[new] = scored(clone(model).set_params(**setting).fit(X[old], Y[old]), X[new])
        mean = float(np.mean([judge(Y[fold == number], held[fold == number]) for number in range(FOLDS)]))
        if mean > best[0]:
            best = mean, setting, held
    return clone(model).set_params(**best[1]).fit(X, Y), best_threshold(best[2].ravel(), Y.ravel())


def figures(Y: np.ndarray, scores: np.ndarray, sets: np.ndarray) -> tuple[float, float, float]:
    """LRAP, micro F1, macro AUC of labels with both classes."""
    mixed = Y.any(axis=0) & ~Y.all(axis=0)
    lrap, micro = ranking_scores(Y, scores).lrap, set_scores(Y, sets).f1_micro
    return lrap, micro, auc_macro(Y[:, mixed], scores[:, mixed])


def compare(name: str, X: np.ndarray, Y: np.ndarray, new: np.ndarray, truth: np.ndarray) -> None:
    """Print a line per method."""

    def line(method: str, work: Callable[[], tuple[np.ndarray, np.ndarray]]) -> None:
        start = time.process_time()
        scores, sets = work()
        lrap, micro, auc = figures(truth, scores, sets.astype(np.uint8))
        took = time.process_time() - start
        print(f"{name:<12}{method:<14}{len(Y):>6}{lrap:>9.4f}{micro:>9.4f}{auc:>9.4f}{took:>9.1f}", flush=True)

    def ours(estimator: str) -> tuple[np.ndarray, np.ndarray]:
        model = dmo.tune(estimator, X, Y)
        return np.asarray(model.decision_function(new)), np.asarray(model.predict(new))

    for estimator in ("ridge", "kgha"):
        line(f"dmo {estimator}", lambda estimator=estimator: ours(estimator))  # type: ignore[misc]
    deviation = X.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    A, B = (X - X.mean(axis=0)) / scale, (new - X.mean(axis=0)) / scale
    occurs = Y.any(axis=0) & ~Y.all(axis=0)

    def theirs(model: Any, grid: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        fitted, threshold = tuned(model, grid, A, Y[:, occurs])
        scores = np.full(truth.shape, -1e9)
        scores[:, occurs] = scored(fitted, B)
        return scores, scores > threshold

    for method, (model, grid) in rivals(X.shape[1]).items():
        line(method, lambda model=model, grid=grid: theirs(model, grid))  # type: ignore[misc]


def main() -> None:
    """Ingest the sets and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder of files per set")
    parser.add_argument("--sets", default="emotions,scene,yeast,enron", help="names, comma-separated")
    parser.add_argument("--rows", type=int, default=2000, help="rows of either part, at most")
    options = parser.parse_args()
    print(f"{'set':<12}{'method':<14}{'rows':>6}{'LRAP':>9}{'micro F1':>9}{'AUC':>9}{'CPU s':>9}")
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in options.sets.split(","):
            path = f"{folder}/{name}.zarr"
            dmo.datasets.ingest(name, options.data / name, path)
            store = stores.open_features(path)
            parts = []
            for split in ("train", "test"):
                views, Y, _ = store.select(split)
                X = np.hstack([np.asarray(_dense(rows(view)), np.float64) for view in views.values()])
                some = np.sort(np.random.default_rng(0).permutation(len(X))[: options.rows])
                assert Y is not None
                parts += [X[some], Y[some].astype(np.uint8)]
            compare(name, *parts)


def _dense(block: Any) -> Any:
    return block.toarray() if hasattr(block, "toarray") else block


if __name__ == "__main__":
    main()
