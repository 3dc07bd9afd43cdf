"""The experiments of the LLT-SVR paper: manifolds, correlated noise, multi-label data, curves and images.

    python pipelines/llt_tables.py --work WORK                              # everything, 100 trials (about half an hour)
    python pipelines/llt_tables.py --work WORK --only table1 --seeds 10
    python pipelines/llt_tables.py --work WORK --only table4 --data FOLDER  # FOLDER/mulan/yeast, FOLDER/mulan/scene
    python pipelines/llt_tables.py --work WORK --protocol paper

The inputs of the manifold experiments are three-dimensional LLE embeddings of the outputs (Twin Peaks and Swiss Roll,
scaled to unit variance). Each trial is a random split of these samples. As in the paper, bandwidth and C are tuned for
the naive regression by cross-validation on training samples, and LLT-SVR uses the same values. Each experiment writes a
JSON and a Markdown table to OUT, and the figures. `--protocol paper` uses the parameters printed in the paper instead
(see `llt_paper`); its tables contain the printed value, the reproduced value, and the difference.
Source: Liu, Lin, Yu 2009, section 4.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from experiments import data_folder
from llt_data import MANIFOLDS, accuracy, errors, labeled, split
from llt_paper import PAPER
from rich.console import Console
from rich.progress import track
from sklearn.model_selection import KFold
from sklearn.multioutput import MultiOutputRegressor
from sklearn.svm import SVR

from dmo.decoders import Scores
from dmo.kernels import RBF
from dmo.methods.annotator import label_scores
from dmo.methods.llt_svr import LLTSVR, Neighbors
from dmo.methods.svr import CoupledSVR
from dmo.workflows.program import Session, option_parser, run_pipeline

matplotlib.use("Agg")
import matplotlib.pyplot as plt

EPSILON = 0.1
SCALES = (0.25, 0.35, 0.5, 0.7, 1.0)
COSTS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
KAPPAS = (4, 6, 8, 12, 20, 40, 80)
SIZES = (50, 100, 200, 400)
UNSEEN = 10_000  # The seed of the split used to tune parameters; no trial uses it.
Row = dict[str, Any]


Parameters = tuple[float, float, float]
"""Kernel scale, C and epsilon."""


def sweep(
    X: np.ndarray,
    Y: np.ndarray,
    epsilons: Sequence[float],
    measures: Mapping[str, Callable[[np.ndarray, np.ndarray], float]],
) -> dict[str, dict[Parameters, float]]:
    """Cross-validate the naive regression over kernel scales, C and epsilon; return the values of each measure."""
    found: dict[str, dict[Parameters, float]] = {name: {} for name in measures}
    folds = list(KFold(3, shuffle=True, random_state=0).split(X))
    for scale in shown(SCALES, "cross-validation"):
        for learn, held in folds:
            naive = LLTSVR(RBF(scale=scale), frame="identity", tol=1e-3, target_scale="none")
            for model in naive.path(X[learn], Y[learn], COSTS, epsilons):
                key = scale, model.C, model.epsilon
                outputs = label_scores(model, X[held])
                for name, measure in measures.items():
                    found[name][key] = found[name].get(key, 0.0) + measure(Y[held], outputs) / len(folds)
    return found


def shown(items: Sequence[Any], title: str) -> Iterable[Any]:
    """Iterate over the items with a progress bar on standard error."""
    return track(items, title, console=Console(stderr=True))


def methods(scale: float, cost: float, epsilon: float, kappa: int) -> dict[str, Any]:
    """Create the regressions to compare, with the same kernel, C and epsilon."""
    common: dict[str, Any] = {"C": cost, "epsilon": epsilon, "tol": 1e-5, "target_scale": "none"}
    return {
        "LLT-SVR": LLTSVR(RBF(scale=scale), n_neighbors=kappa, **common),
        "Naive SVR": LLTSVR(RBF(scale=scale), frame="identity", **common),
        "Vazquez-Walter": CoupledSVR(RBF(scale=scale), **common),
    }


def tuned_for(manifold: str, arguments: argparse.Namespace, noise: np.ndarray | None = None) -> Parameters:
    """Tune the parameters of the naive regression on the training part of a split that no trial uses."""
    X, Y, _, _ = split(manifold, arguments.samples, arguments.train, UNSEEN, noise)
    values = sweep(X, Y, [EPSILON], {"l1": lambda true, got: errors(true, got)[0]})["l1"]
    return min(values, key=values.__getitem__)


def trials(manifold: str, arguments: argparse.Namespace, noise: np.ndarray | None = None) -> list[Row]:
    """Compute mean and standard deviation of the test errors over trials, with noise on training outputs only."""
    scale, cost, epsilon = tuned_for(manifold, arguments, noise)
    collected: dict[str, list[tuple[float, float]]] = {}
    for trial in shown(range(arguments.seeds), manifold):
        X, Y, new, truth = split(manifold, arguments.samples, arguments.train, trial, noise)
        for name, model in methods(scale, cost, epsilon, arguments.kappa).items():
            collected.setdefault(name, []).append(errors(truth, model.fit(X, Y).predict(new)))
    naive = np.array(collected["Naive SVR"])
    rows = []
    for name, values in collected.items():
        table = np.array(values)
        rows.append(
            {
                "manifold": manifold,
                "method": name,
                "l1": table[:, 0].mean(),
                "l1 deviation": table[:, 0].std(),
                "l2": table[:, 1].mean(),
                "l2 deviation": table[:, 1].std(),
                "l1 below naive": f"{(table[:, 0] < naive[:, 0]).sum()}/{len(table)}",
                "worst l1": table[:, 0].max(),
                "scale, C, epsilon": f"{scale:g}, {cost:g}, {epsilon:g}",
            }
        )
    return rows


def table1(arguments: argparse.Namespace) -> list[Row]:
    """Compute both manifolds without noise."""
    return [row for manifold in MANIFOLDS for row in trials(manifold, arguments)]


def table2(arguments: argparse.Namespace) -> list[Row]:
    """Add noise with standard deviation 0.2 to the outputs, with pairwise correlations of 0, 0.5 and 0.9."""
    rows = []
    for correlation in (0.0, 0.5, 0.9):
        covariance = 0.2**2 * (correlation + (1 - correlation) * np.eye(3))
        for manifold in MANIFOLDS:
            rows += [{"correlation": correlation} | row for row in trials(manifold, arguments, covariance)]
    return rows


def table4(arguments: argparse.Namespace) -> list[Row]:
    """Compute the Jaccard accuracy on the published test part of yeast and scene, with labels +1/-1."""
    rows = []
    for name in ("yeast", "scene"):
        (X, Y), (new, truth) = labeled(Path(arguments.data), name)
        measures = {"regression error": lambda a, b: -float(np.abs(a - b).mean()), "accuracy": accuracy}
        values = sweep(X, Y, [EPSILON, 0.5], measures)
        narrow = {key: value for key, value in values["accuracy"].items() if key[2] == EPSILON}
        tuned = {
            "regression error": max(values["regression error"], key=values["regression error"].__getitem__),
            f"accuracy, epsilon = {EPSILON}": max(narrow, key=narrow.__getitem__),
            "accuracy": max(values["accuracy"], key=values["accuracy"].__getitem__),
        }
        for criterion, (scale, cost, epsilon) in tuned.items():
            common: dict[str, Any] = {"C": cost, "epsilon": epsilon, "tol": 1e-5, "target_scale": "none"}
            common["decoder"] = Scores(label_sets=False)
            kernel = RBF(scale=scale)
            neighbors, kappa = best_neighborhood(LLTSVR(kernel, **common), X, Y)
            models: dict[str, Any] = {
                f"LLT-SVR ({kappa} {neighbors})": LLTSVR(kernel, n_neighbors=kappa, neighbors=neighbors, **common),
                "Naive SVR": LLTSVR(kernel, frame="identity", **common),
                "Vazquez-Walter": CoupledSVR(kernel, **common),
            }
            known = {"data": name, "tuned by": criterion, "scale, C, epsilon": f"{scale:g}, {cost:g}, {epsilon:g}"}
            for title, model in models.items():
                start = time.perf_counter()
                model.fit(X, Y)
                spent = time.perf_counter() - start
                got = model.decision_function(new)
                rows.append(known | {"method": title, "accuracy": accuracy(truth, got), "seconds": spent})
            rows.append(known | {"method": "scikit-learn SVR", **_libsvm(kernel, cost, epsilon, X, Y, new, truth)})
    return rows


def _libsvm(kernel: RBF, cost: float, epsilon: float, X: Any, Y: Any, new: Any, truth: Any) -> Row:
    start = time.perf_counter()
    fitted = kernel.fit(X)
    model = MultiOutputRegressor(SVR(kernel="precomputed", C=cost, epsilon=epsilon)).fit(fitted(X, dtype=np.float64), Y)
    spent = time.perf_counter() - start
    return {"accuracy": accuracy(truth, model.predict(fitted(new, X, dtype=np.float64))), "seconds": spent}


def best_neighborhood(model: LLTSVR, X: np.ndarray, Y: np.ndarray) -> tuple[Neighbors, int]:
    """Return the neighborhood with the best cross-validated accuracy, with the other parameters as tuned for naive."""
    choices: list[tuple[Neighbors, int]] = [("samples", kappa) for kappa in (6, 30, 100, 200, 300, 500)]
    choices += [("distinct", kappa) for kappa in (6, 10, 15)]
    scores = dict.fromkeys(choices, 0.0)
    folds = list(KFold(3, shuffle=True, random_state=0).split(X))
    for neighbors, kappa in shown(choices, "neighborhoods"):
        for learn, held in folds:
            model.set_params(neighbors=neighbors, n_neighbors=kappa, tol=1e-3).fit(X[learn], Y[learn])
            scores[neighbors, kappa] += accuracy(Y[held], model.decision_function(X[held]))
    return max(scores, key=scores.__getitem__)


def figure5(arguments: argparse.Namespace) -> list[Row]:
    """Compute the l1 error of LLT-SVR and naive SVR against kappa (at the default training size) and training size."""
    rows = []
    repeats = max(2, arguments.seeds // 5)
    for manifold in MANIFOLDS:
        scale, cost, epsilon = tuned_for(manifold, arguments)
        points = [("kappa", kappa, arguments.train, kappa) for kappa in KAPPAS]
        points += [("training samples", size, size, arguments.kappa) for size in SIZES]
        for axis, value, size, kappa in shown(points, f"curves: {manifold}"):
            found: dict[str, list[float]] = {"LLT-SVR": [], "Naive SVR": []}
            for trial in range(repeats):
                X, Y, new, truth = split(manifold, arguments.samples, size, trial)
                models = methods(scale, cost, epsilon, kappa)
                for name, values in found.items():
                    values.append(errors(truth, models[name].fit(X, Y).predict(new))[0])
            for name, values in found.items():
                known = {"manifold": manifold, "axis": axis, "value": value, "method": name}
                rows.append(known | {"l1": np.mean(values), "l1 deviation": np.std(values)})
    _draw_curves(rows, Path(arguments.work, "figure5.png"))
    return rows


def _draw_curves(rows: list[Row], path: Path) -> None:
    figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for i, manifold in enumerate(MANIFOLDS):
        for j, axis in enumerate(("kappa", "training samples")):
            for name, marker in (("LLT-SVR", "o-"), ("Naive SVR", "s--")):
                part = [r for r in rows if (r["manifold"], r["axis"], r["method"]) == (manifold, axis, name)]
                x, y, d = ([r[key] for r in part] for key in ("value", "l1", "l1 deviation"))
                axes[i, j].errorbar(x, y, d, fmt=marker, label=name, capsize=2)
            axes[i, j].set(title=manifold, xlabel=axis, ylabel="l1 error", xscale="log")
            axes[i, j].set_xticks(x, x)
            axes[i, j].minorticks_off()
            axes[i, j].legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def figures(arguments: argparse.Namespace) -> list[Row]:
    """Draw figures 3 and 4: the test points of each manifold, and their predictions by both regressions."""
    rows = []
    for number, manifold in enumerate(MANIFOLDS, 3):
        scale, cost, epsilon = tuned_for(manifold, arguments)
        X, Y, new, truth = split(manifold, arguments.samples, arguments.train, 0)
        points_of = {"outputs": truth}
        for name in ("LLT-SVR", "Naive SVR"):
            points_of[name] = methods(scale, cost, epsilon, arguments.kappa)[name].fit(X, Y).predict(new)
            l1, l2 = errors(truth, points_of[name])
            rows.append({"figure": number, "manifold": manifold, "method": name, "l1": l1, "l2": l2})
        figure = plt.figure(figsize=(13, 4.6), layout="constrained")
        for i, (title, points) in enumerate(points_of.items(), 1):
            axes: Any = figure.add_subplot(1, 3, i, projection="3d")
            color = truth[:, 2] if manifold == "Twin Peaks" else np.hypot(truth[:, 0], truth[:, 2])
            axes.scatter(*points.T, c=color, s=6, cmap="viridis")
            axes.set_title(f"{manifold}: {title}")
            axes.set(xlabel="output 1", ylabel="output 2", zlabel="output 3")
            axes.locator_params(nbins=4)
            axes.set_box_aspect(None, zoom=0.85)  # Leave space for the label of the third axis.
            axes.view_init(25, -60 if manifold == "Twin Peaks" else -80)
        figure.savefig(Path(arguments.work, f"figure{number}.png"), dpi=130)
        plt.close(figure)
    return rows


EXPERIMENTS = {"table1": table1, "table2": table2, "table4": table4, "figures": figures, "figure5": figure5}


def write(rows: list[Row], name: str, out: Path) -> None:
    """Write the rows to NAME.json and NAME.md."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(rows, indent=1, default=float) + "\n")
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = (f"{row[h]:.4f}" if isinstance(row[h], float) else str(row[h]) for h in heads)
        lines.append("| " + " | ".join(cells) + " |")
    (out / f"{name}.md").write_text("\n".join(lines) + "\n")
    print(f"\n{name}\n" + "\n".join(lines), flush=True)


def main(given: Sequence[str] | None = None) -> int:
    parser = option_parser(__doc__, run=True, work=..., seeds=100, data=data_folder())
    parser.add_argument("--protocol", choices=("tuned", "paper"), default="tuned", help="source of the parameters")
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_argument("--train", type=int, default=200, help="training samples of the manifolds")
    parser.add_argument("--samples", type=int, default=1000, help="samples of each manifold, for training and testing")
    parser.add_argument("--kappa", type=int, default=12, help="outputs in a neighborhood, on the manifolds")
    arguments = parser.parse_args(given)

    def work(_: Session) -> None:
        Path(arguments.work).mkdir(parents=True, exist_ok=True)
        for name in arguments.only:
            if arguments.protocol == "paper":
                PAPER.get(name, lambda _: None)(arguments)
                continue
            write(EXPERIMENTS[name](arguments), name, Path(arguments.work))

    return run_pipeline(__file__, arguments, work)


if __name__ == "__main__":
    sys.exit(main())
