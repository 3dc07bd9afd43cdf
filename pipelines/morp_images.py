"""MORP on Corel5k: classification of known and new categories from a few projected features.

    python pipelines/morp_images.py --work WORK [--data FOLDER] [--seeds 10] [--quick] [--protocol paper]
        [--methods "kernel CCA"]

Each image has the 491 features of the MORP paper, scaled to unit variance. Categories are the keywords of at least
`--min-images` images. MORP, kernel PCA and kernel CCA use the same Gaussian kernel at the mean distance. The mixing and
ridge of MORP (in its direct form) and the ridge of CCA are chosen on a split that no trial uses, by the mean AUC over
all dimensions in setting I. Settings I and II are described in `projection_protocol`. The results are written to
morp_images.csv, .json and .png in OUT.

`--protocol paper` uses 1021 images with the 35 most frequent keywords; the images of the paper, with 35 categories, are
not public. The projections learn 25 of the keywords from 500 images. Mixing is 0.5 and the ridge 0.001. The classifier
is linear LIBSVM with its default C = 1, because the paper prints no value. The results are in morp_paper.csv, .json and
.png.
Source: Yu, Yu, Tresp 2005, "Multi-output regularized feature projection", section 5.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiments import data_folder, kept, labeled_features
from projection_paper import images
from projection_paper import run_trial as run_paper_trial
from projection_protocol import (
    ORIGINAL,
    UNSEEN,
    Learner,
    Row,
    Split,
    choose,
    compare,
    curves,
    publish,
    run_original,
    run_trial,
    summarize,
)

from dmo import Solver
from dmo.blocks import dense, rows
from dmo.datasets import ingest
from dmo.methods.morp import MORP
from dmo.methods.trace import TraceEmbedding
from dmo.progress import stage
from dmo.workflows.program import option_parser, run_pipeline

DIMENSIONS = (5, 10, 20, 30, 40, 50)
METHODS = ("MORP", "kernel PCA", "kernel CCA", ORIGINAL)


def load(data: str, work: Path, min_images: int) -> tuple[np.ndarray, np.ndarray]:
    """Load (X scaled, n x 491; Y n x L) from a store in `work`, which is ingested first if it is missing."""
    path = work / "corel5k_morp491.zarr"
    store = labeled_features(path, lambda: ingest("corel5k", data, path, views=["morp491"]))
    X, Y = rows(store.views["morp491"]).astype(np.float64), dense(store.labels)
    deviation = X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(deviation > 1e-8, deviation, 1.0)
    kept = Y.sum(axis=0) >= min_images
    some = Y[:, kept].any(axis=1)
    return X[some], Y[np.ix_(some, kept)]


def learners(k: int, settings: dict[str, dict[str, float]], only: Sequence[str] = METHODS) -> dict[str, Learner]:
    """Return functions that fit k components, by method."""
    morp, cca = (settings.get(name, {}) for name in ("MORP", "kernel CCA"))

    def kernel_cca(X: Any, Y: np.ndarray) -> Any:
        rank = int(np.linalg.matrix_rank(Y - Y.mean(axis=0)))
        return TraceEmbedding("cca", kernel="rbf", n_components=min(k, rank), **cca).fit(X, Y)

    every: dict[str, Learner] = {
        "MORP": lambda X, Y: MORP("rbf", n_components=k, form="direct", **morp).fit(X, Y),
        "kernel PCA": lambda X, Y: TraceEmbedding("pca", kernel="rbf", n_components=k, solver=Solver(tol=1e-6)).fit(X),
        "kernel CCA": kernel_cca,
    }
    return {name: learner for name, learner in every.items() if name in only}


def tune(
    X: np.ndarray, Y: np.ndarray, dimensions: Sequence[int], quick: bool, methods: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Choose mixing and ridge of MORP and the ridge of CCA, by mean AUC in setting I on a split that no trial uses."""
    split = Split.of(Y, UNSEEN)
    betas, ridges = ((0.5,), (1.0,)) if quick else ((0.1, 0.3, 0.5, 0.7, 0.9, 0.99), (0.01, 0.1, 1.0, 10.0, 100.0))
    grids = {
        "MORP": [{"mixing": b, "ridge": g} for b in betas for g in ridges],
        "kernel CCA": [{"ridge": c} for c in ridges],
    }

    def score(name: str, setting: dict[str, float]) -> float:
        found = run_trial(X, Y, split, learners(dimensions[-1], {name: setting}, [name]), dimensions)
        return float(np.mean([row["auc_macro"] for row in found if row["setting"] == "I"]))

    return {
        name: choose(grid, lambda setting, name=name: score(name, setting))  # type: ignore[misc]
        for name, grid in grids.items()
        if name in methods
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment and return the exit code (see `dmo.workflows.program`)."""
    made = option_parser(__doc__, run=True, work=..., data=data_folder("corel5k"), seeds=10, methods=list(METHODS))
    made.add_argument("--min-images", type=int, default=50, help="minimum number of images per category")
    made.add_argument("--quick", action="store_true", help="400 images, 16 categories, 2 trials, 2 dimensions")
    made.add_argument(
        "--protocol", choices=("tuned", "paper"), default="tuned", help="parameters, splits and classifiers"
    )
    options = made.parse_args(arguments)
    return run_pipeline(__file__, options, lambda _: (run if options.protocol == "tuned" else run_paper)(options))


def run(options: argparse.Namespace) -> None:
    """Run all trials; write the table, the claims and the figure."""
    out = Path(options.work)
    X, Y = load(options.data, out, options.min_images)
    dimensions, seeds = list(DIMENSIONS), options.seeds
    if options.quick:
        X, Y, dimensions, seeds = X[:400], Y[:400, :16], [3, 6], 2
    methods = options.methods
    chosen = tune(X, Y, dimensions, options.quick, methods)
    known = {"images": len(X), "categories": Y.shape[1], "dimensions": dimensions, "methods": methods} | chosen

    def trial(seed: int) -> list[Row]:
        split = Split.of(Y, seed)
        lines = run_trial(X, Y, split, learners(dimensions[-1], chosen, methods), dimensions)
        return lines + (run_original(X, Y, split) if ORIGINAL in methods else [])

    found: list[Row] = []
    with stage("trials", seeds) as advance:
        for seed in range(seeds):
            path = out / "trials" / f"{seed}.json"
            found += kept(path, known | {"seed": seed}, lambda at=seed: {"rows": trial(at)})["rows"]  # type: ignore[misc]
            advance(1)
    table = summarize(found, ("method", "setting", "dimension"))
    claims = [
        claim for rival in METHODS[1:3] for claim in compare(table, "MORP", rival) if {"MORP", rival} <= {*methods}
    ]
    facts = {"images": len(X), "categories": Y.shape[1], "seeds": seeds} | chosen
    publish(out, "morp_images", table, claims, facts)
    curves(out / "morp_images.png", table, "dimension")


def run_paper(options: argparse.Namespace) -> None:
    """Run section 4.2 of the paper."""
    out = Path(options.work)
    X, Y = load(options.data, out, 1)
    used = np.sort(np.argsort(-Y.sum(axis=0), kind="stable")[: 12 if options.quick else 35])
    some = np.random.default_rng(0).permutation(np.flatnonzero(Y[:, used].any(axis=1)))[
        : 300 if options.quick else 1021
    ]
    X, Y = X[np.sort(some)], Y[np.ix_(np.sort(some), used)]
    dimensions, seeds, learn, known = list(DIMENSIONS), options.seeds, 500, 25
    if options.quick:
        dimensions, seeds, learn, known = [3, 6], 2, 150, 8
    methods = learners(dimensions[-1], {"MORP": {"mixing": 0.5, "ridge": 1e-3}, "kernel CCA": {"ridge": 1e-3}})
    found: list[Row] = []
    with stage("trials", seeds) as advance:
        for seed in range(seeds):
            found += run_paper_trial(X, Y, images(Y, seed, learn, known), methods, dimensions, 1.0)
            advance(1)
    table = summarize(found, ("method", "setting", "dimension"))
    claims = compare(table, "MORP", "kernel PCA") + compare(table, "MORP", "kernel CCA")
    facts = {"images": len(X), "categories": Y.shape[1], "categories_per_image": float(Y.sum(axis=1).mean())}
    facts |= {"seeds": f"0 to {seeds - 1}", "cpu_seconds": round(time.process_time(), 1)}
    publish(out, "morp_paper", table, claims, facts)
    curves(out / "morp_paper.png", table, "dimension")


if __name__ == "__main__":
    sys.exit(main())
