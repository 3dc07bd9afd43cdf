"""MORP on a rating matrix with gaps: which of the new items does each user like?

    python pipelines/morp_preferences.py OUT [--data FOLDER] [--seeds 10] [--quick]

The paper's survey of users is not public, so ratings are generated from real features: every user likes the items (Corel5k
images, the 491-d descriptor) where a function of the user, drawn from a Gaussian process over groups of tastes, is in its
upper third. Each rating +1 / -1 of a training item is given with probability `--given`; all others are gaps, which count
as 0, as in the paper. MORP, kernel PCA and kernel CCA project the items; a ridge regression per user on the ratings that
were given ranks the new items. Compared by the share of liked items among the top N, and by the area under the ROC curve.
OUT gets morp_preferences.csv, .json, .png and the ROC curves.
Source: Yu, Yu, Tresp 2005, "Multi-output regularized feature projection", section 5 (preference prediction).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from morp_images import load
from projection_protocol import ORIGINAL, UNSEEN, Row, choose, compare, curves, publish, summarize
from sklearn.metrics import roc_curve

from dmo.estimators.morp import MORP
from dmo.estimators.trace import TraceEmbedding
from dmo.kernels import RBF
from dmo.metrics import auc_macro, top_n_accuracy
from dmo.progress import stage
from dmo.workflows.experiments import data_folder
from dmo.workflows.program import add_run_options, run_pipeline

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DIMENSIONS = (5, 10, 20, 30, 40, 50)
TUNED_AT = 20
METRICS = ("top_n", "auc_macro")
RIDGE = 0.1  # of each user's regression, on coordinates scaled to a mean squared length of 1


@dataclass(frozen=True)
class Market:
    """Items X (n x d), what users truly like (n x U, 0/1), ratings with gaps as NaN (training items x U)."""

    train: np.ndarray
    test: np.ndarray
    likes: np.ndarray
    ratings: np.ndarray
    X: np.ndarray

    @classmethod
    def draw(cls, X: np.ndarray, seed: int, items: int, users: int, given: float, tastes: int = 8) -> Market:
        """At random: users mix `tastes` functions of the features and one of their own."""
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
    """Scores of the new items (m x U): a ridge regression per user on the items that the user rated."""
    length = np.sqrt((Z * Z).sum(axis=1).mean()) or 1.0
    Z, Z_new = np.column_stack([Z / length, np.ones(len(Z))]), np.column_stack([Z_new / length, np.ones(len(Z_new))])
    scores = np.empty((len(Z_new), market.ratings.shape[1]))
    for u in range(scores.shape[1]):
        seen = np.flatnonzero(~np.isnan(market.ratings[:, u]))
        inner = Z[seen] @ Z[seen].T + RIDGE * np.eye(len(seen))
        scores[:, u] = Z_new @ (Z[seen].T @ np.linalg.solve(inner, market.ratings[seen, u]))
    return scores


def judge(market: Market, scores: np.ndarray, top: int) -> Row:
    """Top-N accuracy and AUC over users."""
    likes = market.likes[market.test]
    return {"top_n": top_n_accuracy(likes, scores, top).mean, "auc_macro": auc_macro(likes, scores)}


def project(name: str, k: int, parameters: dict[str, float], market: Market) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of training and new items."""
    X, ratings = market.X[market.train], np.nan_to_num(market.ratings)
    model: Any
    if name == "MORP":
        model = MORP("rbf", n_components=k, **parameters).fit(X, ratings)
    elif name == "kernel CCA":
        model = TraceEmbedding("cca", kernel="rbf", n_components=min(k, ratings.shape[1] - 1), **parameters)
        model.fit(X, ratings)
    else:
        model = TraceEmbedding("pca", kernel="rbf", n_components=k, tol=1e-6).fit(X)
    return model.transform(X), model.transform(market.X[market.test])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; returns the exit code (see `dmo.workflows.exits`)."""
    made = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("out", help="folder for the store, the table and the figures")
    made.add_argument("--data", default=data_folder("corel5k"), help="folder of Corel5k")
    made.add_argument("--seeds", type=int, default=10, help="trials")
    made.add_argument("--items", type=int, default=1500, help="items, half of them for training")
    made.add_argument("--users", type=int, default=150)
    made.add_argument("--given", type=float, default=0.1, help="share of the training ratings that is given")
    made.add_argument("--top", type=int, default=20, help="items recommended to a user")
    made.add_argument("--quick", action="store_true", help="200 items, 30 users, 2 trials, 2 dimensions")
    add_run_options(made)
    options = made.parse_args(arguments)
    return run_pipeline(__file__, options, lambda _: run(options))


def run(options: argparse.Namespace) -> None:
    """All trials, the table, the claims and the figures."""
    out = Path(options.out)
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


def draw_roc(path: Path, likes: np.ndarray, drawn: dict[str, np.ndarray]) -> None:
    """ROC curves of the last trial, all users pooled."""
    figure, axes = plt.subplots(figsize=(4.5, 4), layout="constrained")
    for name, scores in drawn.items():
        false, true, _ = roc_curve(likes.ravel(), scores.ravel())
        axes.plot(false, true, label=name)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
