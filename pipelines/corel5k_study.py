"""The study of docs/explanation/corel5k.md: the value of each view of Corel5k, and the labels that it helps to predict.

    python pipelines/corel5k_study.py [--data FOLDER] [--work docs/_static] [--train 4500]

FOLDER contains Corel5k (default: corel5k under DMO_DATA). The script prints the tables of the page and draws its
figures from the features and labels in a few minutes. `--train 600` is a quick trial run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from experiments import data_folder
from matplotlib.figure import Figure

from dmo import KGHA, MultiViewRidge, ProductKernel, report
from dmo.metrics import annotation_scores, precision_recall_curves
from dmo.workflows.program import option_parser

COLORS, WORDS = ("RgbV3H1", "LabV3H1", "HsvV3H1"), ("DenseSiftV3H1", "HarrisSiftV3H1", "DenseHueV3H1", "HarrisHueV3H1")
DISTANCES = {"Gist": "l2"} | dict.fromkeys((*COLORS, *WORDS), "chi2")
TOP = 5
LABELS, PICKED, OFTEN = 2, 12, 8
"""Labels per view in the heat map, labels in the map, and minimum test images of an evaluated label."""


def read(
    folder: Path, n: int
) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray], np.ndarray, list[str]]:
    """Read views and labels of n training images and of the test images, and the label names."""
    known = np.load(folder / "features" / "corel5k_annotations.npz")
    rows = np.linspace(0, len(known["train"]) - 1, n).astype(int)
    old, new = {}, {}
    for view in DISTANCES:
        X = np.load(folder / "features" / f"corel5k_{view}.npz")["X"].astype(np.float32)
        if DISTANCES[view] == "chi2":
            X /= np.maximum(X.sum(axis=1, keepdims=True), 1)
        old[view], new[view] = X[rows], X[len(known["train"]) :]
    return old, known["train"][rows], new, known["test"], [str(word) for word in known["words"]]


def average_precision(Y: np.ndarray, S: np.ndarray) -> np.ndarray:
    """Compute the average precision of every label (L); NaN for labels without images."""
    found = np.full(Y.shape[1], np.nan)
    for curve in precision_recall_curves(Y, S):
        found[curve.label] = curve.average_precision
    return found


def in_common(Z: np.ndarray, Y: np.ndarray, asked: np.ndarray, truth: np.ndarray, most: int = 10) -> float:
    """Compute the fraction of the nearest training images (by cosine) that share a label with the test image."""
    Z, asked = (A / np.maximum(np.linalg.norm(A, axis=1, keepdims=True), 1e-12) for A in (Z, asked))
    nearest = np.argsort(-asked @ Z.T, axis=1)[:, :most]
    return float(np.mean([(Y[near] @ true > 0).mean() for near, true in zip(nearest, truth)]))


class Study:
    """Fits of several models, with their scores and times."""

    def __init__(self, old: dict[str, np.ndarray], Y: np.ndarray, new: dict[str, np.ndarray], truth: np.ndarray):
        self.old, self.Y, self.new, self.truth = old, Y, new, truth
        self.scores: dict[str, np.ndarray] = {}
        self.average: dict[str, np.ndarray] = {}

    def fit(self, name: str, model: Any, views: tuple[str, ...] = tuple(DISTANCES)) -> Any:
        """Fit the model to some views, evaluate it on the test images, and print a row of the table."""
        begin = time.process_time()
        model.fit({view: self.old[view] for view in views}, self.Y)
        S = model.decision_function({view: self.new[view] for view in views})
        seconds = time.process_time() - begin
        found = annotation_scores(self.truth, S, top=TOP)
        self.scores[name], self.average[name] = S, average_precision(self.truth, S)
        numbers = f"{100 * found.f1:5.1f} {found.n_plus:4d} {100 * np.nanmean(self.average[name]):5.1f} {seconds:6.0f}"
        print(f"{name:16} {numbers}", flush=True)
        return model


def ridge(*views: str) -> MultiViewRidge:
    """Create the same regression for any views: a product kernel whose weights are learned by TagProp."""
    return MultiViewRidge("product", distances={view: DISTANCES[view] for view in views}, weights="tagprop", ridge=0.03)


def draw_labels(study: Study, words: list[str]) -> Figure:
    """Draw the average precision of single views, for the labels where one view exceeds the other views most."""
    views = list(DISTANCES)
    table = 100 * np.array([study.average[view] for view in views])
    table[:, study.truth.sum(axis=0) < OFTEN] = np.nan
    picked: list[int] = []
    for own, others in ((row, np.delete(table, k, axis=0)) for k, row in enumerate(table)):
        lead = np.nan_to_num(own - others.mean(axis=0), nan=-100.0)
        picked += [j for j in np.argsort(-lead, kind="stable") if j not in picked][:LABELS]
    short = [view.removesuffix("V3H1") for view in views]
    names, values = [words[j] for j in picked], np.round(table[:, picked].T)
    return report.heat_map(values, names, short, "", "", "average precision %", mark=False)


def draw_wrong(study: Study, words: list[str], name: str) -> Figure:
    """Plot average precision against the number of training images; name frequent labels that are predicted poorly."""
    counts, average = study.Y.sum(axis=0), 100 * study.average[name]
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    ax = figure.subplots()
    tested = np.flatnonzero(~np.isnan(average) & (counts > 0))
    ax.scatter(counts[tested], average[tested], s=12, color="#1b5e7b", alpha=0.5, linewidths=0)
    ax.set(xscale="log", xlabel="training images with the label", ylabel="average precision %")
    often = tested[study.truth[:, tested].sum(axis=0) >= 8]
    for number, j in enumerate([*often[np.argsort(average[often])[:6]], *often[np.argsort(-average[often])[:1]]]):
        place = ("left", (5, 3)) if number % 2 else ("right", (-5, -3))
        ax.annotate(words[j], (counts[j], average[j]), place[1], textcoords="offset points", ha=place[0], fontsize=9)
    return figure


def wrong(study: Study, words: list[str], name: str) -> None:
    """Print the best and worst predicted labels, and the labels most often missing from the top five."""
    average, often = study.average[name], np.flatnonzero(study.truth.sum(axis=0) >= OFTEN)
    ranked = often[np.argsort(-average[often])]
    for said, picked in (("best", ranked[:8]), ("worst", ranked[:-9:-1])):
        print(f"{said}:", ", ".join(f"{words[j]} {100 * average[j]:.0f} ({int(study.Y[:, j].sum())})" for j in picked))
    given = np.zeros(study.truth.shape)
    np.put_along_axis(given, np.argsort(-study.scores[name], axis=1)[:, :TOP], 1, axis=1)
    missed = ((study.truth == 1) & (given == 0)).sum(axis=0)
    print("missed:", ", ".join(f"{words[j]} {missed[j]} of {study.truth[:, j].sum()}" for j in np.argsort(-missed)[:8]))


def draw_space(study: Study, words: list[str]) -> Figure:
    """Plot test images on the two leading principal components of the scores of the most frequent labels."""
    common = np.argsort(-study.truth.sum(axis=0), kind="stable")[:PICKED]
    S = study.scores["KGHA"][:, common]
    left, lengths, _ = np.linalg.svd((S - S.mean(axis=0)) / S.std(axis=0), full_matrices=False)
    names, axes = [words[j] for j in common], ("first direction", "second direction")
    return report.embedding_per_label(left[:, :2] * lengths[:2], study.truth[:, common], names, axes=axes)


def main() -> None:
    parser = option_parser(__doc__, data=data_folder("corel5k"), work=".")
    parser.add_argument("--train", type=int, default=4500, help="training images")
    options = parser.parse_args()
    old, Y, new, truth, words = read(Path(options.data), options.train)
    study = Study(old, Y, new, truth)
    print(f"{'':16} F1@{TOP}   N+    AP  CPU s")
    for view in DISTANCES:
        study.fit(view, ridge(view).set_params(decoder=f"f1@{TOP}"), (view,))
    study.fit("colors", ridge(*COLORS).set_params(decoder=f"f1@{TOP}"), COLORS)
    study.fit("all views", ridge(*DISTANCES).set_params(decoder=f"f1@{TOP}"))
    kernel = ProductKernel(DISTANCES, weights="tagprop")
    space = study.fit("KGHA", KGHA(kernel, balance=0.03, n_components=0.2, decoder=f"f1@{TOP}"))
    Path(options.work).mkdir(parents=True, exist_ok=True)
    draw_labels(study, words).savefig(Path(options.work, "corel5k-views.png"), dpi=110)
    best = np.argmax([np.nan_to_num(study.average[view]) for view in DISTANCES], axis=0)[truth.sum(axis=0) >= OFTEN]
    print("\nbest single view, labels:", ", ".join(f"{view} {(best == k).sum()}" for k, view in enumerate(DISTANCES)))
    draw_wrong(study, words, "all views").savefig(Path(options.work, "corel5k-wrong.png"), dpi=110)
    wrong(study, words, "all views")
    old_Z, Z = space.transform(old), space.transform(new)
    draw_space(study, words).savefig(Path(options.work, "corel5k-space.png"), dpi=110)
    wide_old, wide = (np.hstack([X / np.linalg.norm(X, axis=1).mean() for X in views.values()]) for views in (old, new))
    print("\nof the ten nearest training images, this fraction shares a label with the test image:")
    print(f"  KGHA, {Z.shape[1]} dimensions: {100 * in_common(old_Z, Y, Z, truth):.1f} %")
    print(f"  all views, {wide.shape[1]} dimensions: {100 * in_common(wide_old, Y, wide, truth):.1f} %")


if __name__ == "__main__":
    main()
