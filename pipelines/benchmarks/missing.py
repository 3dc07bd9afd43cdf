"""Effect of unknown labels and missing views on scores: a table and a figure.

Labels: a fraction of the training entries is hidden, either at random or among the positive ones only. (a) Unknown
labels count as absent; (b) samples with unknown labels are dropped; (c) unknown labels are missing values. Views: every
view is removed from a fraction of the training and test samples. (a) Missing rows are imputed by the mean of the view;
(b) incomplete training samples are dropped and test rows imputed by the mean; (c) missing views are missing values.

F1 is averaged over labels, with as many predicted labels per sample as training samples have on average. LRAP is
scikit-learn's. (a), (b) and (c) use the same hyperparameters. With --decoded, labels are ranked by a decoder for this
F1. The data are read from the folder in DMO_DATA.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse
from rich.console import Console
from rich.table import Table
from sklearn.metrics import label_ranking_average_precision_score
from sklearn.preprocessing import normalize

from dmo import KGHA, MultiViewRidge
from dmo.datasets import read_arff
from dmo.decoders import Scores
from dmo.errors import UserError
from dmo.metrics import annotation_scores
from dmo.report.canvas import LINES, clean
from dmo.workflows.program import option_parser

DATA = Path(os.environ.get("DMO_DATA", "."))

Views = dict[str, np.ndarray]
SHARES = (0.1, 0.3, 0.5, 0.7)
VIEW_SHARES = (0.1, 0.3, 0.5)
COREL = ("RgbV3H1", "Gist", "DenseSiftV3H1")
WAYS = ("a: absent / mean", "b: dropped", "c: unknown / missing")


def load(name: str) -> tuple[Views, np.ndarray, Views, np.ndarray]:
    """Load views and labels of the training and test samples."""
    if name == "corel5k":
        folder = DATA / "corel5k" / "features"
        with np.load(folder / "corel5k_annotations.npz") as found:
            train, test = (np.asarray(found[part], np.uint8) for part in ("train", "test"))
        some, n = (
            np.arange(0, len(train), 3),
            len(train),
        )  # Use a third of the training images to save time.
        views, new = {}, {}
        for view in COREL:
            with np.load(folder / f"corel5k_{view}.npz") as found:
                X = found["X"].astype(np.float32)
            X = X if view == "Gist" else np.sqrt(normalize(X, "l1"))
            views[view], new[view] = X[:n][some], X[n:]
        return views, train[some], new, test
    width = {"yeast": 14, "bibtex": 159}[name]
    paths = [DATA / "mulan" / name / f"{name}-{part}.arff.xz" for part in ("train", "test")]
    parts = [read_arff(path, -width) for path in paths]
    rows = [normalize(X) if scipy.sparse.issparse(X) else X for X, _ in parts]
    if name == "yeast":  # Columns 79 to 102 are the phylogenetic profiles.
        rows_by_view = [{"expression": X[:, :79], "phylogeny": X[:, 79:]} for X in rows]
    else:
        rows_by_view = [{"words": X} for X in rows]
    return rows_by_view[0], parts[0][1].astype(np.uint8), rows_by_view[1], parts[1][1].astype(np.uint8)


def model(kind: str, name: str, top: int, decoded: bool) -> MultiViewRidge | KGHA:
    """Create the estimator, with the same hyperparameters for all variants."""
    kernel = "linear" if name == "bibtex" else "rbf"
    ridge = 0.1 if name == "corel5k" or kind == "kgha" else 1.0
    made = MultiViewRidge(kernel) if kind == "ridge" else KGHA(kernel, balance=0.1)
    decoder = f"f1@{top}" if decoded else Scores(label_sets=False)
    return made.set_params(ridge=ridge, intercept=True, approximation="exact", decoder=decoder)


def rate(fitted: MultiViewRidge | KGHA, new: Views, truth: np.ndarray, top: int) -> tuple[float, float]:
    """Compute F1 and LRAP in percent."""
    scores = fitted.decision_function(new)
    lrap = label_ranking_average_precision_score(truth, scores)
    return 100 * annotation_scores(truth, scores, top=top).f1, 100 * float(lrap)


def hidden_labels(kind: str, name: str, seed: int, decoded: bool) -> Iterator[tuple[str, str, float, float, float]]:
    """Yield (what is hidden, variant, F1, LRAP, CPU seconds of the fit)."""
    views, Y, new, truth = load(name)
    top = max(1, round(float(Y.sum(axis=1).mean())))
    yield "nothing", WAYS[2], *_timed(lambda: model(kind, name, top, decoded).fit(views, Y), new, truth, top)
    for positives in (False, True):
        for share in SHARES:
            hide = np.random.default_rng(seed).random(Y.shape) < share
            hide &= (Y > 0) | (not positives)
            what, whole = f"{share:.0%} of the {'positives' if positives else 'entries'}", ~hide.any(axis=1)
            known = np.where(hide, np.nan, Y)
            for way, rows, labels in (
                (WAYS[0], np.ones(len(Y), bool), np.nan_to_num(known)),
                (WAYS[1], whole, known),
                (WAYS[2], np.ones(len(Y), bool), known),
            ):
                some = {view: X[rows] for view, X in views.items()}
                yield (
                    what,
                    way,
                    *_timed(partial(model(kind, name, top, decoded).fit, some, labels[rows]), new, truth, top),
                )


def missing_views(kind: str, name: str, seed: int, decoded: bool) -> Iterator[tuple[str, str, float, float, float]]:
    """Yield the same for missing views; every sample keeps at least one view."""
    views, Y, new, truth = load(name)
    top = max(1, round(float(Y.sum(axis=1).mean())))
    yield "nothing", WAYS[2], *_timed(lambda: model(kind, name, top, decoded).fit(views, Y), new, truth, top)
    for share in VIEW_SHARES:
        rng = np.random.default_rng(seed)
        gaps, test_gaps = _lacking(views, share, rng), _lacking(new, share, rng)
        means = {view: np.nanmean(X, axis=0) for view, X in gaps.items()}
        filled = {view: np.where(np.isnan(X), means[view], X) for view, X in gaps.items()}
        test_filled = {view: np.where(np.isnan(X), means[view], X) for view, X in test_gaps.items()}
        whole = ~np.any([np.isnan(X[:, 0]) for X in gaps.values()], axis=0)
        complete = {view: X[whole] for view, X in gaps.items()}
        what = f"{share:.0%} of the samples of every view"
        for way, old, labels, test in (
            (WAYS[0], filled, Y, test_filled),
            (WAYS[1], complete, Y[whole], test_filled),
            (WAYS[2], gaps, Y, test_gaps),
        ):
            yield what, way, *_timed(partial(model(kind, name, top, decoded).fit, old, labels), test, truth, top)


def _lacking(views: Views, share: float, rng: np.random.Generator) -> Views:
    n = len(next(iter(views.values())))
    gone = rng.random((n, len(views))) < share
    gone[np.arange(n), rng.integers(0, len(views), n)] &= ~gone.all(axis=1)
    return {view: np.where(gone[:, [j]], np.nan, X) for j, (view, X) in enumerate(views.items())}


def _timed(
    fit: Callable[[], MultiViewRidge | KGHA], new: Views, truth: np.ndarray, top: int
) -> tuple[float, float, float]:
    begin = time.process_time()
    try:
        fitted = fit()
    except UserError:  # No complete sample remains.
        return np.nan, np.nan, np.nan
    seconds = time.process_time() - begin
    return *rate(fitted, new, truth, top), seconds


def main() -> None:
    parser = option_parser(__doc__, sets=["corel5k", "yeast", "bibtex"])
    parser.add_argument("--models", nargs="+", default=["ridge", "kgha"], choices=["ridge", "kgha"])
    parser.add_argument("--decoded", action="store_true", help="learn decoders for F1")
    parser.add_argument("--repeats", type=int, default=1, help="number of random choices of the hidden entries")
    parser.add_argument("--figure", help="file for the figure, such as missing.png")
    options = parser.parse_args()
    curves: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for name in options.sets:
        for kind in options.models:
            for topic, trials in (("labels", hidden_labels), ("views", missing_views)):
                if topic == "views" and name == "bibtex":  # This data set has one view.
                    continue
                found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
                for seed in range(options.repeats):
                    for what, way, *figures in trials(kind, name, seed, options.decoded):
                        found.setdefault((what, way), []).append((figures[0], figures[1], figures[2]))
                title = f"{name}, {kind}, {topic}"
                curves[title] = report(title, found)
    if options.figure:
        draw(curves, options.figure)


def report(
    title: str, found: dict[tuple[str, str], list[tuple[float, float, float]]]
) -> dict[str, list[tuple[str, float]]]:
    """Print one table and return LRAP by variant for the figure."""
    table = Table(title=title)
    for column in ("missing", *(f"{figure} {way[0]}" for figure in ("F1", "LRAP", "CPU s") for way in WAYS)):
        table.add_column(column, justify="left" if column == "missing" else "right")
    curves: dict[str, list[tuple[str, float]]] = {way: [] for way in WAYS}
    for what in dict.fromkeys(what for what, _ in found):
        means = [np.mean(found.get((what, way), [(np.nan,) * 3]), axis=0) for way in WAYS]
        for way, mean in zip(WAYS, means, strict=True):
            curves[way].append((what, float(mean[1])))
        table.add_row(what, *("-" if np.isnan(mean[j]) else f"{mean[j]:.1f}" for j in range(3) for mean in means))
    Console(width=140).print(table)
    return curves


def draw(curves: dict[str, dict[str, list[tuple[str, float]]]], path: str) -> None:
    """Plot LRAP against the missing fraction, one panel per set, model and topic; dashed for hidden positives only."""
    from matplotlib.figure import Figure

    columns = 2
    figure = Figure(figsize=(11, 3.2 * -(-len(curves) // columns)), layout="constrained")
    for panel, (title, ways) in enumerate(curves.items(), 1):
        axes = figure.add_subplot(-(-len(curves) // columns), columns, panel, title=title, ylabel="LRAP (%)")
        clean(axes)
        whole = next(lrap for what, lrap in ways[WAYS[2]] if what == "nothing")
        for (way, points), color, marker in zip(ways.items(), LINES["color"], LINES["marker"], strict=False):
            for kind, line in ((" of the entries", "-"), (" of the samples", "-"), (" of the positives", "--")):
                found = [(float(what.split("%")[0]), lrap) for what, lrap in points if kind in what]
                shares, values = zip((0.0, whole), *found, strict=True)
                label = f"{way}{' (positives)' if line == '--' else ''}" if found else None
                axes.plot(shares, values, line, color=color, marker=marker, label=label)
        axes.set_xlabel(f"{'entries' if title.endswith('labels') else 'samples of every view'} that are missing (%)")
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
