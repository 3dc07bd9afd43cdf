"""Protocol of the projection experiments: splits into settings I and II, linear SVMs, tables, curves and claims.

A trial splits samples into halves and categories into known (70 %) and new ones. The projection learns the known
categories from the training half. Linear SVMs, one per category, are fitted to the projected training half and
evaluated on the other half: setting I classifies the known categories, setting II the new ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import scipy.sparse
from experiments import write_table
from rich.console import Console
from rich.table import Table
from sklearn.svm import LinearSVC

from dmo.errors import UserError
from dmo.metrics import auc_scores, f1_scores
from dmo.progress import stage
from dmo.report.canvas import LINES, clean
from dmo.stores import replace_file

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Row = dict[str, Any]
ORIGINAL = "original"
METRICS = ("auc_macro", "f1_macro", "f1_micro")
IN_WORDS = {
    "auc_macro": "macro AUC",
    "f1_macro": "macro F1",
    "f1_micro": "micro F1",
    "top_n": "top-N accuracy",
    "dimension": "dimensions",
}
"""Axis titles of the figures."""
UNSEEN = 10_000
"""Seed of the split used to choose parameters; no trial uses it."""


@dataclass(frozen=True)
class Split:
    """Training and test rows, known and new categories of one trial."""

    train: np.ndarray
    test: np.ndarray
    known: np.ndarray
    new: np.ndarray

    @classmethod
    def of(cls, Y: np.ndarray, seed: int, size: int | None = None) -> Split:
        """Split at random into `size` training samples (None: half) and test samples. Categories with fewer than 2
        samples in either part are dropped."""
        rng = np.random.default_rng(seed)
        order, labels = rng.permutation(len(Y)), rng.permutation(Y.shape[1])
        cut = len(Y) // 2 if size is None else size
        train, test = np.sort(order[:cut]), np.sort(order[cut:])
        usable = [c for c in labels if min(Y[train, c].sum(), Y[test, c].sum()) >= 2]
        first = max(1, round(0.7 * len(usable)))
        if first >= len(usable):
            raise UserError(
                f"{len(usable)} categories have at least 2 samples in both halves, expected at least 2 such "
                f"categories; pass more samples or more frequent categories"
            )
        return cls(train, test, np.sort(usable[:first]), np.sort(usable[first:]))


Learner = Callable[[Any, np.ndarray], Any]
"""Function of training rows and known labels that fits a transformer with the largest number of dimensions."""


def run_trial(
    X: Any, Y: np.ndarray, split: Split, learners: Mapping[str, Learner], dimensions: Sequence[int]
) -> list[Row]:
    """Score every learner in both settings, with each number of dimensions."""
    found: list[Row] = []
    for name, learner in learners.items():
        model = learner(X[split.train], Y[np.ix_(split.train, split.known)])
        Z, Z_new = np.asarray(model.transform(X[split.train])), np.asarray(model.transform(X[split.test]))
        for k in dimensions:
            if k <= Z.shape[1]:
                found += [
                    {"method": name, "setting": setting, "dimension": k, **scores}
                    for setting, scores in both_settings(Z[:, :k], Z_new[:, :k], Y, split).items()
                ]
    return found


def run_original(X: Any, Y: np.ndarray, split: Split) -> list[Row]:
    """Score the original rows in both settings."""
    scores = both_settings(X[split.train], X[split.test], Y, split)
    return [{"method": ORIGINAL, "setting": s, "dimension": X.shape[1], **values} for s, values in scores.items()]


def both_settings(Z: Any, Z_new: Any, Y: np.ndarray, split: Split) -> dict[str, Row]:
    """Return the scores by setting."""
    return {
        setting: classify(Z, Y[np.ix_(split.train, part)], Z_new, Y[np.ix_(split.test, part)])
        for setting, part in (("I", split.known), ("II", split.new))
    }


def classify(Z: Any, Y: np.ndarray, Z_new: Any, Y_new: np.ndarray) -> Row:
    """Compute AUC and F1 of one linear SVM per column of Y, on rows scaled to a mean squared length of 1."""
    length = float(np.sqrt((Z.multiply(Z) if scipy.sparse.issparse(Z) else Z * Z).sum() / Z.shape[0])) or 1.0
    Z, Z_new = Z / length, Z_new / length
    scores = np.empty(Y_new.shape)
    for c in range(Y.shape[1]):
        machine = LinearSVC(C=1.0, dual=Z.shape[1] > Z.shape[0], class_weight="balanced", tol=1e-3, random_state=0)
        scores[:, c] = machine.fit(Z, Y[:, c]).decision_function(Z_new)
    f1, auc = f1_scores(Y_new, (scores > 0).astype(np.uint8)), auc_scores(Y_new, scores)
    return {"auc_macro": auc.macro, "f1_macro": f1.macro, "f1_micro": f1.micro}


def choose(settings: Iterable[dict[str, float]], score: Callable[[dict[str, float]], float]) -> dict[str, float]:
    """Return the candidate with the highest score, the first one if several are equal."""
    settings = list(settings)
    with stage("choose parameters", len(settings)) as advance:
        scores = []
        for setting in settings:
            scores.append(score(setting))
            advance(1)
    return settings[int(np.argmax(scores))]


def summarize(rows: Sequence[Row], keys: Sequence[str], metrics: Sequence[str] = METRICS) -> list[Row]:
    """Compute mean and standard deviation over trials, grouped by `keys` in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    found = []
    for group, members in groups.items():
        line: Row = dict(zip(keys, group)) | {"trials": len(members)}
        for metric in metrics:
            values = [member[metric] for member in members]
            line |= {metric: float(np.mean(values)), f"{metric}_std": float(np.std(values))}
        found.append(line)
    return found


def compare(
    table: Sequence[Row],
    winner: str,
    loser: str,
    metrics: Sequence[str] = METRICS,
    along: str = "dimension",
    settings: Sequence[str] = ("I", "II"),
) -> list[Row]:
    """Check per setting and metric whether `winner` is above `loser` on average; list the values of `along` where it is
    not."""
    found = []
    for setting in settings:
        lines = {(row["method"], row[along]): row for row in table if row["setting"] == setting}
        common = [value for method, value in lines if method == winner and (loser, value) in lines]
        for metric in metrics:
            below = [v for v in common if lines[winner, v][metric] <= lines[loser, v][metric]]
            claim = f"{winner} above {loser} in {metric}, setting {setting}"
            found.append(
                {"claim": claim, "holds": not below and bool(common), "compared": common, "not_above_at": below}
            )
    return found


def beside(row: Row, ours: float, paper: float | None, deviation: float | None = None) -> Row:
    """Add our mean, its standard deviation over trials, the printed value, and the difference (None if not printed)."""
    spread = {} if deviation is None else {"ours_std": float(deviation)}
    gap = None if paper is None else float(ours) - paper
    return row | {"paper": paper, "ours": float(ours), **spread, "ours - paper": gap}


def publish(folder: Path, name: str, table: Sequence[Row], claims: Sequence[Row], facts: Mapping[str, Any]) -> None:
    """Print a table and write it, with the claims and facts of the run, as NAME.csv and NAME.json."""
    columns = [key for key in table[0] if not key.endswith("_std")]
    shown = Table(title=name)
    for column in columns:
        shown.add_column(column, justify="right" if column not in ("method", "setting", "data") else "left")
    for row in table:
        cells = []
        for column in columns:
            value, deviation = row[column], row.get(f"{column}_std")
            text = f"{value:.4f}" if isinstance(value, float) else str(value)
            cells.append(text if deviation is None else f"{text} ± {deviation:.4f}")
        shown.add_row(*cells)
    console = Console(width=140)
    console.print(shown)
    for claim in claims:
        where = "" if claim["holds"] else f" (not at {claim['not_above_at']})"
        console.print(f"{'holds' if claim['holds'] else 'DOES NOT HOLD'}: {claim['claim']}{where}")
    document = {"facts": facts, "table": table, "claims": claims}
    replace_file(folder / f"{name}.json", json.dumps(document, indent=1).encode())
    write_table(folder / f"{name}.csv", table)


def curves(
    path: Path,
    table: Sequence[Row],
    along: str,
    metrics: Sequence[str] = METRICS,
    settings: Sequence[str] = ("I", "II"),
) -> None:
    """Plot means with standard deviations against `along`: one panel per setting and metric, one line per method."""
    figure, axes = plt.subplots(
        len(settings), len(metrics), figsize=(4 * len(metrics), 3 * len(settings)), squeeze=False, layout="constrained"
    )
    for i, setting in enumerate(settings):
        for j, metric in enumerate(metrics):
            clean(axes[i, j]).set_prop_cycle(**LINES)
            for method in dict.fromkeys(row["method"] for row in table):
                lines = [row for row in table if row["method"] == method and row["setting"] == setting]
                values, deviations = [r[metric] for r in lines], [r[f"{metric}_std"] for r in lines]
                if method == ORIGINAL:
                    axes[i, j].axhline(values[0], color="gray", linestyle=":", label=method)
                else:
                    axes[i, j].errorbar([r[along] for r in lines], values, deviations, capsize=2, ms=4, label=method)
            words = {"xlabel": IN_WORDS.get(along, along), "ylabel": IN_WORDS.get(metric, metric)}
            axes[i, j].set(**words, title=f"setting {setting}" if len(settings) > 1 else "")
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=min(4, len(handles[1])), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
