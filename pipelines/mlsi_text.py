"""MLSI on text: Reuters-21578 (1600 documents, 47 categories) and RCV1, compared with LSI and the words themselves.

    python pipelines/mlsi_text.py --work WORK [--data FOLDER] [--sets reuters,rcv1] [--seeds 10] [--quick] [--protocol paper]

Rows are sparse tf-idf vectors of unit length. Each trial learns from `--train` documents. Mixing and ridge are chosen
by AUC at 20 dimensions on a split that no trial uses. The beta and ridge curves vary one parameter around this choice.
The protocol (settings I and II) is described in `projection_protocol`. The script writes mlsi_text.csv, mlsi_text.json
and a figure per data set and curve to OUT. Trials that an earlier run finished are loaded from OUT/trials.

`--protocol paper` uses words that occur in five or more documents, mixing 0.5, no ridge, a fifth of the documents for
training, and LIBSVM with C = 100 (see `projection_paper`). The paper has 50 repetitions; each of our --seeds has five
trials. The results are in mlsi_paper.csv and .json. The part of RCV1 used in the paper (3588 documents, 5496 words, 79
topics) is not public; this script uses the part distributed with Mulan (6000 documents, 944 words, 101 topics).
Source: Yu, Yu, Tresp 2005 (SIGIR), "Multi-label informed latent semantic indexing", section 5.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from datasets.reuters import ingest_reuters
from experiments import data_folder, kept, labeled_features
from projection_paper import documents
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

from dmo.blocks import dense, rows
from dmo.datasets import ingest
from dmo.errors import UserError
from dmo.kernels import normalize_rows
from dmo.methods.morp import MLSI
from dmo.methods.trace import TraceEmbedding
from dmo.progress import stage
from dmo.workflows.program import option_parser, run_pipeline

DIMENSIONS = (5, 10, 20, 30, 40, 50)
TUNED_AT = 20
BETAS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
GAMMAS = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
SETS = ("reuters", "rcv1")
MOST_RARE = 50
"""Topics of RCV1 with at most this number of documents are dropped, as in the paper."""


def load(name: str, data: Path, work: Path, least: int = 1) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """Load (X n x d, rows of unit length; Y n x L) from a store in `work`, which is ingested first if it is missing. If
    `least` is above 1, keep only words that occur in `least` or more documents, and topics of RCV1 with more than 50
    documents."""
    path = work / (f"{name}.zarr" if least == 1 else f"{name}-{least}.zarr")

    def make() -> None:
        if name == "reuters":
            archive = data / "reuters21578" / "reuters21578.tar.xz"
            ingest_reuters(archive, path, selection="mlsi", min_documents=least)
        else:
            ingest("rcv1subset", data / "rcv1", path)

    store = labeled_features(path, make)
    X, Y = rows(store.views["words"]), dense(store.labels)
    if name == "rcv1":  # The words are binary: weight them by inverse document frequency, with unit length.
        X = X.astype(np.float64)
        if least > 1:
            X, Y = X[:, np.flatnonzero(np.diff(X.tocsc().indptr) >= least)], Y[:, Y.sum(axis=0) > MOST_RARE]
        idf = np.log((1 + X.shape[0]) / (1 + np.asarray((X > 0).sum(axis=0)).ravel())) + 1
        X = scipy.sparse.csr_array(normalize_rows(scipy.sparse.csr_array(X.multiply(idf)), "l2"))
    some = Y.any(axis=1) & (np.diff(X.indptr) > 0)
    return X[np.flatnonzero(some)], Y[some]


def mlsi(k: int, setting: dict[str, float]) -> Learner:
    return lambda X, Y: MLSI(n_components=k, form="direct", **setting).fit(X, Y)


def lsi(k: int) -> Learner:
    return lambda X, Y: TraceEmbedding("lsi", n_components=k).fit(X)


def tune(X: Any, Y: np.ndarray, k: int, train: int, quick: bool) -> dict[str, float]:
    """Choose mixing and ridge by AUC in setting I, on a split that no trial uses."""
    split = Split.of(Y, UNSEEN, train)
    betas, gammas = ((0.5,), (1.0,)) if quick else ((0.1, 0.3, 0.5, 0.7, 0.9), (0.1, 1.0, 10.0))

    def score(setting: dict[str, float]) -> float:
        found = run_trial(X, Y, split, {"MLSI": mlsi(k, setting)}, [k])
        return next(row["auc_macro"] for row in found if row["setting"] == "I")

    return choose([{"mixing": b, "ridge": g} for b in betas for g in gammas], score)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments and return the exit code (see `dmo.workflows.program`)."""
    made = option_parser(__doc__, run=True, work=..., data=data_folder(), sets=list(SETS), seeds=10)
    made.add_argument("--train", type=int, default=800, help="training documents per trial")
    made.add_argument(
        "--quick", action="store_true", help="300 documents, 16 categories, 2 trials, 2 dimensions, short curves"
    )
    made.add_argument(
        "--protocol", choices=("tuned", "paper"), default="tuned", help="parameters, splits and classifiers"
    )
    options = made.parse_args(arguments)
    return run_pipeline(__file__, options, lambda _: run(options))


def run(options: argparse.Namespace) -> None:
    """Run all data sets, trials and curves."""
    out, sets = Path(options.work), options.sets
    unknown = sorted(set(sets) - set(SETS))
    if unknown:
        raise UserError(f"no set {unknown[0]!r}; known: {', '.join(SETS)}")
    table: list[Row] = []
    claims: list[Row] = []
    facts: dict[str, Any] = {}
    for name in sets:
        lines, said, known = (run_set if options.protocol == "tuned" else run_paper)(name, options, out)
        table += [{"data": name, **row} for row in lines]
        claims += [{**claim, "claim": f"{name}: {claim['claim']}"} for claim in said]
        facts[name] = known
    facts["cpu_seconds"] = round(time.process_time(), 1)
    publish(out, "mlsi_text" if options.protocol == "tuned" else "mlsi_paper", table, claims, facts)


def run_set(name: str, options: argparse.Namespace, out: Path) -> tuple[list[Row], list[Row], Row]:
    """Return table, claims and facts of one data set; write its figures."""
    X, Y = load(name, Path(options.data), out)
    dimensions, seeds, train, betas, gammas = list(DIMENSIONS), options.seeds, options.train, BETAS, GAMMAS
    if options.quick:
        X, Y, dimensions, seeds, train, betas, gammas = X[:300], Y[:300, :16], [3, 6], 2, 150, (0.0, 0.5), (1.0, 10.0)
    k = min(TUNED_AT, dimensions[-1])
    known = {"documents": X.shape[0], "categories": Y.shape[1], "train": train, "dimensions": dimensions}
    folder = out / "trials"
    chosen = kept(folder / f"{name}-chosen.json", known, lambda: {"is": tune(X, Y, k, train, options.quick)})["is"]

    def trial(seed: int) -> dict[str, list[Row]]:
        split = Split.of(Y, seed, train)
        learners = {"MLSI": mlsi(dimensions[-1], chosen), "LSI": lsi(dimensions[-1])}
        lines = run_trial(X, Y, split, learners, dimensions) + run_original(X, Y, split)
        curve = [
            {**row, "value": value}
            for what, values in (("mixing", betas), ("ridge", gammas))
            for value in values
            for row in run_trial(X, Y, split, {what: mlsi(k, chosen | {what: value})}, [k])
        ]
        return {"lines": lines, "curve": curve}

    found: list[Row] = []
    curve: list[Row] = []
    with stage(f"{name}: trials", seeds) as advance:
        for seed in range(seeds):
            about = known | {"chosen": chosen, "seed": seed}
            done = kept(folder / f"{name}-{seed}.json", about, lambda seed=seed: trial(seed))  # type: ignore[misc]
            found, curve = found + done["lines"], curve + done["curve"]
            advance(1)
    table = summarize(found, ("method", "setting", "dimension"))
    curves(out / f"mlsi_{name}.png", table, "dimension")
    means = summarize(curve, ("method", "setting", "value"))
    for what in ("mixing", "ridge"):
        lines = [row for row in means if row["method"] == what]
        curves(out / f"mlsi_{name}_{what}.png", lines, "value")
    facts = {"documents": X.shape[0], "words": X.shape[1], "categories": Y.shape[1], "seeds": seeds, "train": train}
    return table, compare(table, "MLSI", "LSI"), facts | {"chosen": chosen, "curves": means}


def run_paper(name: str, options: argparse.Namespace, out: Path) -> tuple[list[Row], list[Row], Row]:
    """Return table, claims and facts of one data set under the protocol of the paper."""
    X, Y = load(name, Path(options.data), out, 5)
    dimensions, seeds = list(DIMENSIONS), options.seeds
    if options.quick:
        X, Y, dimensions, seeds = X[:300], Y[:300, :16], [3, 6], 1
    k, found = dimensions[-1], []
    learners = {"MLSI": mlsi(k, {"mixing": 0.5, "ridge": 0.0}), "LSI": lsi(k)}
    with stage(f"{name}: trials", 5 * seeds) as advance:
        for seed in range(seeds):
            for trial in documents(Y, seed):
                found += run_paper_trial(X, Y, trial, learners, dimensions, 100.0)
                advance(1)
    table = summarize(found, ("method", "setting", "dimension"))
    claims = compare(table, "MLSI", "LSI", settings=["I"])  # The paper makes no claim about setting II.
    plain = [row for row in table if row["method"] == ORIGINAL]
    # The words are compared with MLSI at every dimension.
    words = [row | {"dimension": d} for d in dimensions for row in plain]
    claims += compare([*table, *words], "MLSI", ORIGINAL, ("auc_macro", "f1_macro"), settings=["I"])
    facts = {"documents": X.shape[0], "words": X.shape[1], "categories": Y.shape[1], "seeds": f"0 to {seeds - 1}"}
    return table, claims, facts | {"protocol": "paper"}


if __name__ == "__main__":
    sys.exit(main())
