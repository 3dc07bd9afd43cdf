"""MORP on a rating matrix with missing values: predict which new items each user likes.

    python pipelines/morp_preferences.py --work WORK [--data FOLDER] [--seeds 10] [--quick] [--protocol paper]

The user survey of the paper is not public, so ratings are simulated from real features. The items are Corel5k images
with the 491 features of the MORP paper. The preference of a user is a random function of the features: a mixture of
functions shared by all users and an individual one, all drawn from a Gaussian process. A user likes the items in the
upper third. Each training item has a rating of +1 or -1 with probability `--given`; the other ratings are missing and
count as 0, as in the paper. MORP, kernel PCA and kernel CCA project the items. One ridge regression per user, fitted to
the known ratings, ranks the new items. Methods are compared by the fraction of liked items among the top N, and by the
area under the ROC curve. The results are written to morp_preferences.csv, .json, .png and a figure of ROC curves in
OUT.

`--protocol paper` uses the sizes of the survey: 642 items, and 190 users with 89 ratings on average. In each of ten
folds, all but 20 ratings of the users in the fold are withdrawn; --seeds is the number of withdrawals per fold. The
projections have 20 dimensions, mixing 0.5 and ridge 0.001. Support vector machines are fitted to the remaining ratings
(linear on coordinates, Gaussian on the 491 features). Top-N accuracy and AUC are computed on the withdrawn ratings. The
ratings are simulated here too. The results are in morp_preferences_paper.csv and .json.
Source: Yu, Yu, Tresp 2005, "Multi-output regularized feature projection", section 5 (preference prediction).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from experiments import data_folder
from morp_images import load
from projection_paper import Machine, svm
from projection_protocol import ORIGINAL, UNSEEN, Row, choose, compare, curves, publish, summarize
from sklearn.metrics import roc_curve

from dmo import Solver
from dmo.kernels import RBF
from dmo.methods.morp import MORP
from dmo.methods.trace import TraceEmbedding
from dmo.metrics import auc_macro, top_n_accuracy
from dmo.progress import stage
from dmo.report.canvas import COLORS, GRAY, clean
from dmo.workflows.program import option_parser, run_pipeline

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DIMENSIONS = (5, 10, 20, 30, 40, 50)
TUNED_AT = 20
METRICS = ("top_n", "auc_macro")
RIVALS = ("kernel CCA", "kernel PCA", ORIGINAL)
RIDGE = 0.1  # Ridge of each user's regression, on coordinates scaled to a mean squared length of 1.


@dataclass(frozen=True)
class Market:
    """Items X (n x d), true preferences (n x U, 0/1), and ratings with NaN for missing ones (training items x U)."""

    train: np.ndarray
    test: np.ndarray
    likes: np.ndarray
    ratings: np.ndarray
    X: np.ndarray

    @classmethod
    def draw(cls, X: np.ndarray, seed: int, items: int, users: int, given: float, tastes: int = 8) -> Market:
        """Simulate preferences: each user mixes `tastes` shared functions of the features and an individual one."""
        rng = np.random.default_rng(seed)
        index = rng.permutation(len(X))[:items]
        X = X[index]
        K = np.asarray(RBF()(X, dtype=np.float64))
        K = K - K.mean(axis=0) - K.mean(axis=1)[:, None] + K.mean()
        root = np.linalg.cholesky(K + 1e-6 * np.eye(items))
        shared, own = root @ rng.standard_normal((items, tastes)), root @ rng.standard_normal((items, users))
        values = shared @ rng.standard_normal((tastes, users)) / np.sqrt(tastes) + 0.5 * own
        values += 0.3 * values.std() * rng.standard_normal(values.shape)
        likes = (values > np.quantile(values, 2 / 3, axis=0)).astype(np.uint8)
        train, test = np.arange(items // 2), np.arange(items // 2, items)
        ratings = np.where(rng.random((len(train), users)) < given, 2.0 * likes[train] - 1, np.nan)
        return cls(train, test, likes, ratings, X)


def rank(market: Market, Z: np.ndarray, Z_new: np.ndarray) -> np.ndarray:
    """Score the new items (m x U) by ridge regressions, one per user on the items that this user rated."""
    length = np.sqrt((Z * Z).sum(axis=1).mean()) or 1.0
    Z, Z_new = np.column_stack([Z / length, np.ones(len(Z))]), np.column_stack([Z_new / length, np.ones(len(Z_new))])
    scores = np.empty((len(Z_new), market.ratings.shape[1]))
    for u in range(scores.shape[1]):
        seen = np.flatnonzero(~np.isnan(market.ratings[:, u]))
        inner = Z[seen] @ Z[seen].T + RIDGE * np.eye(len(seen))
        scores[:, u] = Z_new @ (Z[seen].T @ np.linalg.solve(inner, market.ratings[seen, u]))
    return scores


def judge(market: Market, scores: np.ndarray, top: int) -> Row:
    """Compute top-N accuracy and AUC over users."""
    likes = market.likes[market.test]
    return {"top_n": top_n_accuracy(likes, scores, top).mean, "auc_macro": auc_macro(likes, scores)}


def project(name: str, k: int, parameters: dict[str, float], market: Market) -> tuple[np.ndarray, np.ndarray]:
    """Compute coordinates of training and new items."""
    X, ratings = market.X[market.train], np.nan_to_num(market.ratings)
    model: Any
    if name == "MORP":
        model = MORP("rbf", n_components=k, **parameters).fit(X, ratings)
    elif name == "kernel CCA":
        model = TraceEmbedding("cca", kernel="rbf", n_components=min(k, ratings.shape[1] - 1), **parameters)
        model.fit(X, ratings)
    else:
        model = TraceEmbedding("pca", kernel="rbf", n_components=k, solver=Solver(tol=1e-6)).fit(X)
    return model.transform(X), model.transform(market.X[market.test])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment and return the exit code (see `dmo.workflows.program`)."""
    made = option_parser(__doc__, run=True, work=..., data=data_folder("corel5k"), seeds=10)
    made.add_argument("--items", type=int, default=1500, help="number of items; half are used for training")
    made.add_argument("--users", type=int, default=150)
    made.add_argument("--given", type=float, default=0.1, help="fraction of the training ratings that is known")
    made.add_argument("--top", type=int, default=20, help="number of items recommended to each user")
    made.add_argument("--quick", action="store_true", help="200 items, 30 users, 2 trials, 2 dimensions")
    made.add_argument(
        "--protocol", choices=("tuned", "paper"), default="tuned", help="parameters, folds and classifiers"
    )
    options = made.parse_args(arguments)
    return run_pipeline(__file__, options, lambda _: (run if options.protocol == "tuned" else run_paper)(options))


def run(options: argparse.Namespace) -> None:
    """Run all trials; write the table, the claims and the figures."""
    out = Path(options.work)
    X, _ = load(options.data, out, 1)
    dimensions, seeds, items, users = list(DIMENSIONS), options.seeds, options.items, options.users
    betas, ridges = (0.1, 0.3, 0.5, 0.7, 0.9), (0.1, 1.0, 10.0, 100.0)
    if options.quick:
        dimensions, seeds, items, users, betas, ridges = [3, 6], 2, 200, 30, (0.5,), (1.0,)
    k = min(TUNED_AT, dimensions[-1])
    unseen = Market.draw(X, UNSEEN, items, users, options.given)

    def score(name: str, parameters: dict[str, float]) -> float:
        return judge(unseen, rank(unseen, *project(name, k, parameters, unseen)), options.top)["auc_macro"]

    grid = [{"mixing": b, "ridge": g} for b in betas for g in ridges]
    chosen: dict[str, dict[str, float]] = {
        "MORP": choose(grid, lambda setting: score("MORP", setting)),
        "kernel PCA": {},
        "kernel CCA": choose([{"ridge": c} for c in ridges], lambda setting: score("kernel CCA", setting)),
    }
    found: list[Row] = []
    drawn: dict[str, np.ndarray] = {}
    with stage("trials", seeds) as advance:
        for seed in range(seeds):
            market = Market.draw(X, seed, items, users, options.given)
            for name, parameters in chosen.items():
                Z, Z_new = project(name, dimensions[-1], parameters, market)
                for d in dimensions:
                    if d <= Z.shape[1]:
                        scores = rank(market, Z[:, :d], Z_new[:, :d])
                        found.append(
                            {"method": name, "setting": "I", "dimension": d, **judge(market, scores, options.top)}
                        )
                        drawn[name] = scores if d == k else drawn.get(name, scores)
            plain = rank(market, market.X[market.train], market.X[market.test])
            line = {"method": ORIGINAL, "setting": "I", "dimension": X.shape[1]}
            found.append({**line, **judge(market, plain, options.top)})
            drawn[ORIGINAL] = plain
            advance(1)
    table = summarize(found, ("method", "setting", "dimension"), METRICS)
    claims = [
        c for loser in ("kernel PCA", "kernel CCA") for c in compare(table, "MORP", loser, METRICS, settings=["I"])
    ]
    facts = {
        "items": items,
        "users": users,
        "given": options.given,
        "top": options.top,
        "seeds": seeds,
        "chosen": chosen,
    }
    publish(out, "morp_preferences", table, claims, facts)
    curves(out / "morp_preferences.png", table, "dimension", METRICS, ["I"])
    draw_roc(out / "morp_preferences_roc.png", market.likes[market.test], drawn)


def run_paper(options: argparse.Namespace) -> None:
    """Run section 4.1 of the paper on simulated ratings."""
    out, sizes = Path(options.work), (642, 190, 20, 10)
    X, _ = load(options.data, out, 1)
    if options.quick:
        sizes = (160, 30, 10, 2)
    items, users, left, folds = sizes
    market = Market.draw(X, 0, items, users, 1.0)
    likes, rng = market.likes, np.random.default_rng(0)
    rated = rng.random(likes.shape) < 89 / 642
    dealt = rng.permutation(users) % folds
    found: list[Row] = []
    with stage("folds", folds * options.seeds) as advance:
        for fold in range(folds):
            lines = []
            for seed in range(options.seeds):
                lines += withdrawn(
                    market.X, likes, rated, np.flatnonzero(dealt == fold), left, options.top, (fold, seed)
                )
                advance(1)
            found += [row | {"fold": fold} for row in summarize(lines, ("method", "setting", "dimension"), METRICS)]
    table = summarize(found, ("method", "setting", "dimension"), METRICS)
    claims = [above(table, "MORP", loser, metric) for loser in RIVALS for metric in METRICS]
    facts = {"ratings": "drawn", "items": items, "users": users, "ratings_per_user": float(rated.sum(axis=0).mean())}
    facts |= {"left": left, "top": options.top, "folds": folds, "withdrawals": options.seeds}
    publish(out, "morp_preferences_paper", table, claims, facts | {"cpu_seconds": round(time.process_time(), 1)})


def withdrawn(
    X: np.ndarray, likes: np.ndarray, rated: np.ndarray, tested: np.ndarray, left: int, top: int, seed: tuple[int, int]
) -> list[Row]:
    """Score every method on the withdrawn ratings of the users `tested`; return means over these users."""
    rng, seen = np.random.default_rng(seed), rated.copy()
    for user in tested:
        own = rng.permutation(np.flatnonzero(rated[:, user]))
        seen[own[left:], user] = False
    ratings = np.where(seen, 2.0 * likes - 1, np.nan)
    dimension = min(20, X.shape[0] // 8)
    models: dict[str, Any] = {
        "MORP": MORP("rbf", n_components=dimension, mixing=0.5, ridge=1e-3).fit(X, ratings),
        "kernel CCA": TraceEmbedding("cca", kernel="rbf", n_components=dimension, ridge=1e-3),
        "kernel PCA": TraceEmbedding("pca", kernel="rbf", n_components=dimension, solver=Solver(tol=1e-6)).fit(X),
    }
    models["kernel CCA"].fit(X, np.nan_to_num(ratings))  # Missing ratings are zero, as in MORP.
    rows = []
    for name, model in [*models.items(), (ORIGINAL, None)]:
        Z = X if model is None else model.transform(X)
        machine = svm("rbf" if model is None else "linear", 1.0)
        scores = [judge_user(Z, likes[:, user], seen[:, user], rated[:, user], top, machine) for user in tested]
        means = {metric: float(np.nanmean([score[metric] for score in scores])) for metric in METRICS}
        rows.append({"method": name, "setting": "I", "dimension": Z.shape[1], **means})
    return rows


def judge_user(
    Z: np.ndarray, likes: np.ndarray, seen: np.ndarray, rated: np.ndarray, top: int, machine: Machine
) -> Row:
    """Compute the fraction of known liked items among the top unseen ones, and the AUC over withdrawn ratings."""
    Z = Z / (np.sqrt((Z * Z).sum(axis=1).mean()) or 1.0)
    scores = machine(Z[seen], 2 * likes[seen].astype(int) - 1, Z)
    best = np.flatnonzero(~seen)[np.argsort(-scores[~seen], kind="stable")[:top]]
    hidden = rated & ~seen
    both = 0 < likes[hidden].sum() < hidden.sum()
    area = auc_macro(likes[hidden, None], scores[hidden, None]) if both else np.nan
    return {"top_n": float((likes[best] & rated[best]).mean()), "auc_macro": area}


def above(table: list[Row], winner: str, loser: str, metric: str) -> Row:
    """Check the claim that one method is better than another on average."""
    values = {row["method"]: row[metric] for row in table}
    holds = values[winner] > values[loser]
    claim = f"{winner} above {loser} in {metric}, on simulated ratings"
    return {"claim": claim, "holds": holds, "not_above_at": [] if holds else [values[loser]]}


def draw_roc(path: Path, likes: np.ndarray, drawn: dict[str, np.ndarray]) -> None:
    """Draw ROC curves of the last trial, with all users pooled."""
    figure, axes = plt.subplots(figsize=(4.5, 4), layout="constrained")
    clean(axes).set_prop_cycle(color=COLORS)
    axes.plot([0, 1], [0, 1], color=GRAY, linestyle=":", label="chance")
    for name, scores in drawn.items():
        false, true, _ = roc_curve(likes.ravel(), scores.ravel())
        axes.plot(false, true, label=name)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", title="Ratings that were withdrawn")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
