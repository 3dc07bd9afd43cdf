"""Benchmark of annotators and decoders on several data sets.

    python pipelines/annotation_benchmark.py --work WORK [--sets corel5k,bibtex] [--annotators votes,tagprop] [--rows 5000]

Sets: corel5k, espgame, bibtex, yeast, scene (ingested from FOLDER, default: DMO_DATA), scenes (generated) and digits.
The distances of all views are computed once per set and kept in WORK. Each annotator has one result file per set there,
so the work can be done in parts: the same command resumes an interrupted run. The table is written to WORK/table.md and
WORK/table.csv, the figures to WORK/benchmark.png and WORK/space.png.

Hyperparameters are chosen on the training samples, separately for every decoder. The decoder is learned from held-out
scores (leave-one-out or out-of-fold) of one half of the samples, and applied to the other half. It is evaluated on
random subsets of the size of the test set. The test samples are read once per decoder and set, with the chosen
hyperparameters; WORK/log.txt records the time. Standard deviations are over 100 bootstrap samples of the test set. CPU
seconds are those of an annotator with all its candidates; the time of the shared distances is reported separately.

A separate table compares KGHA with ridge regression on the same kernel under equal decoders, next to Tables 3 and 4 of
Xiong, Szedmak, Piater 2014.

`space` is not an annotator. It compares embeddings with 50 to 200 dimensions: kernel PCA, kernel CCA, the scores of
ridge regression, and KGHA. The measures are the fraction of the ten nearest training samples that share a label with
the sample, and the F1 of the labels of the twenty nearest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from experiments import data_folder, kept, labeled_features, write_table

from dmo import KGHA, FastTag, MultiViewRidge, NeighborVotes, TraceEmbedding
from dmo.blocks import Subset, dense, row_blocks, rows
from dmo.datasets import ingest
from dmo.decide.score_rule import unseen_last
from dmo.decoders import PlugIn, PooledCalibration
from dmo.errors import UserError
from dmo.fit.view_neighbors import ViewDistances, named_distances
from dmo.kernels import Kernel
from dmo.methods.jec import transferred_labels
from dmo.methods.shared_fits import ExactFolds, HeldOut
from dmo.methods.tagprop import NEIGHBORS, Neighborhoods, fit_tagprop
from dmo.methods.two_pass_knn import two_pass_scores
from dmo.methods.view_weights import aligned_weights
from dmo.metrics import annotation_scores
from dmo.report.canvas import LINES
from dmo.select.sweeps import stratified_folds
from dmo.workflows.program import option_parser, run_pipeline

Matrices = list[np.ndarray]


@dataclass(frozen=True)
class SetOf:
    """Options of a data set: number of labels per sample, distances by view, and the maximum number of training
    rows."""

    top: int = 5
    distances: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None


SETS = {
    "corel5k": SetOf(),
    "espgame": SetOf(rows=5000),
    "bibtex": SetOf(distances={"words": "chi2"}),
    "yeast": SetOf(top=4),
    "scene": SetOf(top=1),
    "scenes": SetOf(),
    "digits": SetOf(top=3, rows=400),
}
RIDGES, GAMMA, SHARES = (0.01, 0.03, 0.1), 2.0, (0.2, 0.5, 0.8, 0.99)
_BOOTSTRAP = 100
PUBLISHED = {
    "corel5k": {"ridge-tagprop": 33.3, "kgha-0.2": 28.2, "kgha-0.5": 37.6, "kgha-0.8": 32.6, "kgha-0.99": 37.5},
    "espgame": {"ridge-tagprop": 25.7, "kgha-0.2": 23.1, "kgha-0.5": 31.7, "kgha-0.8": 28.3, "kgha-0.99": 29.7},
}
"""Test F1 of r-KMLR and KGHA in Tables 3 and 4 of Xiong, Szedmak, Piater 2014 (0.99: KGHA-d, all components). They use
a single decoder, Gaussian kernels, and all eight views of ESP Game."""


@dataclass(frozen=True)
class Lookup(Kernel):
    """Kernel exp(-gamma s) on precomputed distances s; its rows are sample indices, training samples first."""

    distances: np.ndarray = field(repr=False, compare=False)
    gamma: float = 1.0
    name = "lookup"

    def __deepcopy__(self, memo: Any) -> Lookup:
        return self

    def fit(self, X: Any, random_state: Any = None) -> Lookup:
        return self

    def prepare(self, X: Any, dtype: Any = np.float32) -> np.ndarray:
        return np.asarray(rows(X), np.int64).ravel()

    def tile(self, x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        found = np.exp(-self.gamma * self.distances[np.ix_(x, y)])
        if out is None:
            return found
        out[...] = found
        return out

    def diagonal(self, x: np.ndarray) -> np.ndarray:
        return np.ones(len(x), np.float32)

    def gram(self, X: Any, dtype: Any, random_state: Any) -> tuple[np.ndarray, Lookup]:
        x = self.prepare(X)
        return self.tile(x, x).astype(dtype, copy=False), self

    def to_dict(self) -> dict[str, Any]:
        return {"kernel": self.name}


@dataclass(frozen=True)
class Problem:
    """A prepared data set: labels of n training and m test samples, distances of all views (V x (n + m) x n), and
    `weights` that combine them."""

    name: str
    top: int
    Y: np.ndarray
    truth: np.ndarray
    distances: np.ndarray
    weights: Mapping[str, np.ndarray]
    neighbors: tuple[np.ndarray, np.ndarray]
    seconds: float

    @property
    def n(self) -> int:
        return len(self.Y)

    def combined(self, how: str) -> np.ndarray:
        """Combine the distances of all samples to the training samples ((n + m) x n) with named weights."""
        out = np.empty(self.distances.shape[1:], np.float32)
        for where in row_blocks(len(out), 512):
            out[where] = np.tensordot(self.weights[how], self.distances[:, where], 1)
        return out

    @property
    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows for `Lookup`: training and test samples."""
        every = np.arange(self.distances.shape[1])[:, None]
        return every[: self.n], every[self.n :]


@dataclass(frozen=True)
class Candidate:
    """A hyperparameter candidate: held-out scores of the training samples (one or more matrices), and a function that
    returns the scores of the test samples."""

    setting: str
    held_out: Matrices
    test: Callable[[], Matrices]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment and return the exit code (see `dmo.workflows.program`)."""
    options = parser().parse_args(arguments)
    return run_pipeline(__file__, options, lambda run: experiment(options))


def parser() -> argparse.ArgumentParser:
    made = option_parser(
        __doc__, run=True, data=data_folder(), work=..., sets=[name for name in SETS if name != "digits"]
    )
    made.add_argument("--annotators", default=",".join([*ANNOTATORS, "space"]), help=", ".join([*ANNOTATORS, "space"]))
    made.add_argument("--rows", type=int, help="maximum number of training rows per set")
    return made


def experiment(options: argparse.Namespace) -> None:
    """Run what is requested and missing, then write the tables and figures of all results."""
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    chosen, sets = options.annotators.split(","), options.sets
    for what, given, known in (("set", sets, SETS), ("annotator", chosen, {**ANNOTATORS, "space": None})):
        for name in given:
            if name not in known:
                raise UserError(f"no {what} {name!r}; known: {', '.join(known)}")
    for name in sets:
        most = options.rows or SETS[name].rows
        problem = cache(lambda name=name, most=most: prepared(name, most, Path(options.data), work))
        for annotator in chosen:
            path = work / "results" / f"{name}-{most or 'all'}-{annotator}.json"
            known = {"set": name, "rows": most, "annotator": annotator}
            if annotator == "space":
                kept(path, known, lambda problem=problem: space(problem()))
            else:
                kept(path, known, lambda problem=problem, annotator=annotator: judged(problem(), annotator, work))
    report(work)


# ---- data


def make(name: str, data: Path, work: Path, path: Path) -> None:
    """Write the feature store of a data set."""
    if name == "digits":
        from dmo.demo.digits import digits_samples

        digits_samples().write(path)
    elif name == "scenes":
        sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # scenes.py is in the tests.
        from scenes import draw_images

        from dmo.features import Recipe, extract, list_images

        table = draw_images(work / "scenes", 800)
        listing = list_images(work / "scenes", table)
        extract(listing, path, Recipe.of("kgha8", words={"dense_sift": 300, "harris_sift": 300}))
    else:
        ingest(name, data / (name if name in ("corel5k", "espgame") else f"mulan/{name}"), path)


def prepared(name: str, most: int | None, data: Path, work: Path) -> Problem:
    """Compute distances, weights and neighbors of a set with `most` training samples; keep the distances in `work`."""
    of, features = SETS[name], work / f"{name}.zarr"
    store = labeled_features(features, lambda: make(name, data, work, features))
    _, Y, train = store.select("train")
    _, truth, test = store.select("test")
    Y, truth = dense(Y), dense(truth)
    if most is not None and most < len(train):
        kept = np.sort(np.random.default_rng(0).choice(len(train), most, replace=False))
        train, Y = train[kept], Y[kept]
    views = {view: Subset(store.views[view], train) for view in store.views}
    every = {view: Subset(store.views[view], np.concatenate([train, test])) for view in store.views}
    path, begun = work / f"{name}-{len(train)}-distances.npy", time.process_time()
    if not path.exists():
        near = ViewDistances.fit(named_distances({**of.distances}, views), views, 0)
        shape = len(views), len(train) + len(test), len(train)
        d = np.lib.format.open_memmap(path.with_suffix(".part"), "w+", np.float32, shape)
        for where, found in near.blocks(every):
            d[:, where] = found
        d.flush()
        path.with_suffix(".part").replace(path)
        path.with_suffix(".json").write_text(json.dumps(time.process_time() - begun))
    distances = np.load(path, mmap_mode="r")
    seconds = json.loads(path.with_suffix(".json").read_text())
    neighbors = nearest(distances, len(Y))
    around = Neighborhoods.of(neighbors[0][: len(Y)], neighbors[1][:, : len(Y)], Y)
    learned = {"tagprop": fit_tagprop(around, Y).weights}
    learned["alignment"] = aligned_weights(((w, distances[:, w]) for w in row_blocks(len(Y), 512)), Y)
    weights = {how: (w if w.any() else w + 1).astype(np.float32) for how, w in learned.items()}
    weights = {"equal": np.ones(len(views), np.float32), **weights}
    weights = {how: w / w.sum() for how, w in weights.items()}
    return Problem(name, of.top, Y, truth, distances, weights, neighbors, seconds)


def nearest(distances: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the neighbors of all samples among the training samples by mean distance, nearest first, with their
    distances."""
    k = min(NEIGHBORS, n - 1)
    index, found = [], []
    for where in row_blocks(distances.shape[1], 512):
        d = distances[:, where]
        total = d.sum(axis=0)
        own = np.arange(where.start, where.stop)
        total[own < n, own[own < n]] = np.inf
        best = np.argsort(total, axis=1, kind="stable")[:, :k]
        index.append(best)
        found.append(np.take_along_axis(d, best[None], axis=2))
    return np.concatenate(index), np.concatenate(found, axis=1)


# ---- annotators


def jec(p: Problem) -> Iterator[Candidate]:
    index = p.neighbors[0]
    for k in (3, 5, 10):
        held_out = transferred_labels(index[: p.n, :k], p.Y, same=True)
        yield Candidate(f"k {k}", [held_out], lambda k=k: [transferred_labels(index[p.n :, :k], p.Y)])


def tagprop(p: Problem, sigma: bool = False, by_rank: bool = False) -> Iterator[Candidate]:
    index, d = p.neighbors
    for k in (50, NEIGHBORS):
        around, new = (
            Neighborhoods.of(index[part, :k], d[:, part, :k], p.Y, by_rank)
            for part in (slice(0, p.n), slice(p.n, None))
        )
        fit = fit_tagprop(around, p.Y, sigma)

        def scores(of: Neighborhoods, fit: Any = fit) -> Matrices:
            return [fit(of.predictions(of.shares(fit.weights)))]

        yield Candidate(f"k {k}", scores(around), lambda new=new, scores=scores: scores(new))


def two_pass(p: Problem) -> Iterator[Candidate]:
    for how in ("equal", "tagprop"):
        d = p.combined(how)
        d[np.arange(p.n), np.arange(p.n)] = np.inf
        for k in (2, 4):
            for sharpness in (20.0, 40.0):

                def scores(part: slice, d: np.ndarray = d, k: int = k, sharpness: float = sharpness) -> Matrices:
                    blocks = [d[part][where] for where in row_blocks(len(d[part]), 512)]
                    return [np.vstack([two_pass_scores(block, p.Y, k, sharpness) for block in blocks])]

                held_out = scores(slice(0, p.n))
                yield Candidate(f"{how} k {k} omega {sharpness:g}", held_out, lambda f=scores: f(slice(p.n, None)))


def _raw(model: Any, new: np.ndarray) -> Callable[[], Matrices]:
    return lambda: model._scores({"x": new})


def ridge(p: Problem, how: str = "equal") -> Iterator[Candidate]:
    d, (old, new) = p.combined(how), p.numbers
    for c in RIDGES:
        model = _ridge(Lookup(d, GAMMA), c).fit(old, p.Y)
        yield Candidate(f"ridge {c:g}", [model.held_out_scores_], _raw(model, new))


def _ridge(kernel: Kernel, c: float) -> MultiViewRidge:
    return MultiViewRidge(kernel, ridge=c, intercept=True, decoder=PooledCalibration(), approximation="exact")


def votes(p: Problem) -> Iterator[Candidate]:
    d, (old, new) = p.combined("tagprop"), p.numbers
    for c in RIDGES[:2]:
        for sharpness, visual in ((30.0, 10.0), (20.0, 5.0)):
            model = NeighborVotes(_ridge(Lookup(d, GAMMA), c), sharpness=sharpness, visual=visual).fit(old, p.Y)
            held_out = [model.held_out_scores_, model.held_out_votes_]
            yield Candidate(f"ridge {c:g} omega {sharpness:g} nu {visual:g}", held_out, _raw(model, new))


def fasttag(p: Problem) -> Iterator[Candidate]:
    d, (old, new) = p.combined("tagprop"), p.numbers
    for strength in (0.1, 1.0):
        base = MultiViewRidge(Lookup(d, GAMMA), ridge=0.03, approximation="exact")
        model = FastTag(base, strength=strength, decoder=PooledCalibration()).fit(old, p.Y)
        yield Candidate(f"ridge 0.03 strength {strength:g}", [model.held_out_scores_], _raw(model, new))


def kgha(p: Problem, share: float) -> Iterator[Candidate]:
    for c in RIDGES[1:]:
        held_out, test = _kgha_fits(p, c)
        yield Candidate(f"ridge {c:g}", [held_out[share]], lambda test=test: [test[share]])


_KEPT: dict[tuple[str, float], tuple[dict[float, np.ndarray], dict[float, np.ndarray]]] = {}


def _kgha_fits(p: Problem, c: float) -> tuple[dict[float, np.ndarray], dict[float, np.ndarray]]:
    """Return out-of-fold and test scores by fraction of components. Five fits suffice because smaller embeddings are
    part of the largest one."""
    if (p.name, c) in _KEPT:
        return _KEPT[p.name, c]
    old, new = p.numbers
    fold = stratified_folds(p.Y, 4)
    ranks = [np.linalg.matrix_rank((y := p.Y[fold != f].astype(float)) - y.mean(axis=0)) for f in range(4)]
    count = {share: int(min(max(1, round(share * p.Y.shape[1])), *ranks)) for share in SHARES}
    kernel = Lookup(p.combined("tagprop"), GAMMA)
    model = KGHA(kernel, ridge=c, balance=1e-2, approximation="exact")
    decoders = [{"n_components": count[share]} for share in SHARES]
    held_out = {share: np.empty(p.Y.shape) for share in SHARES}

    def nested(found: HeldOut) -> dict[float, np.ndarray]:
        scores = {k: values.copy() for k, values, _ in found.scores(set(count.values()))}
        return {share: scores[k] for share, k in count.items()}

    folds = ExactFolds(model, {"x": old}, p.Y, fold, [{}], decoders, False)
    for number, _, found in folds:
        for share, values in nested(found).items():
            held_out[share][fold == number] = values
    (found,) = folds.fitted({"x": old}, {"x": new}, p.Y)
    if any(name != p.name for name, _ in _KEPT):
        _KEPT.clear()
    _KEPT[p.name, c] = held_out, nested(found)
    return _KEPT[p.name, c]


ANNOTATORS: dict[str, Callable[[Problem], Iterator[Candidate]]] = {
    "jec": jec,
    "tagprop": tagprop,
    "tagprop-sigma": lambda p: tagprop(p, sigma=True),
    "tagprop-rank": lambda p: tagprop(p, sigma=True, by_rank=True),
    "2pknn": two_pass,
    "ridge": ridge,
    "ridge-alignment": lambda p: ridge(p, "alignment"),
    "ridge-tagprop": lambda p: ridge(p, "tagprop"),
    "fasttag": fasttag,
    **{f"kgha-{share:g}": (lambda p, share=share: kgha(p, share)) for share in SHARES},
    "votes": votes,
}


# ---- decoders


DECODERS = ("scores", "prior", "standardized", "probabilities", "plug-in")


def decoders(held: Matrices, Y: np.ndarray, p: Problem) -> dict[str, Callable[[Matrices], np.ndarray]]:
    """Learn every decoder from held-out scores of samples with labels `Y`. Decoders without calibration rank by the
    last matrix; "prior" divides by the power of the label frequency that is best on these samples."""
    frequency = np.maximum(Y.mean(axis=0), 0.5 / len(Y))
    power = max((0.0, 0.25, 0.5), key=lambda power: annotation_scores(Y, held[-1] / frequency**power, p.top).f1)
    mean, deviation = held[-1].mean(axis=0), held[-1].std(axis=0)
    rule = PlugIn(f"f1@{p.top}", size=len(p.truth)).learn(held, Y)
    return {
        "scores": lambda scores: scores[-1],
        "prior": lambda scores: scores[-1] / frequency**power,
        "standardized": lambda scores: (scores[-1] - mean) / np.where(deviation > 0, deviation, 1.0),
        "probabilities": rule.probabilities,
        "plug-in": rule,
    }


def judged(p: Problem, annotator: str, work: Path) -> dict[str, Any]:
    """Evaluate an annotator on a set with all decoders: choose candidates on training samples and score them on the
    test set."""
    begun = time.process_time()
    best: dict[str, tuple[float, Candidate]] = {}
    for candidate in ANNOTATORS[annotator](p):
        for decoder, score in cross_fitted(p, candidate).items():
            if decoder not in best or score > best[decoder][0]:
                best[decoder] = score, candidate
    found: dict[str, Any] = {"set": p.name, "annotator": annotator, "n": p.n, "top": p.top, "distances": p.seconds}
    found["decoders"] = {}
    for decoder, (score, candidate) in best.items():
        scores = decoders(candidate.held_out, p.Y, p)[decoder](candidate.test())
        scores = unseen_last(scores, p.Y.any(axis=0))
        with open(work / "log.txt", "a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%F %T')} test of {p.name}: {annotator}, {decoder}, {candidate.setting}\n")
        result = annotation_scores(p.truth, scores, p.top)
        draws = np.random.default_rng(0).integers(len(p.truth), size=(_BOOTSTRAP, len(p.truth)))
        deviation = np.std([annotation_scores(p.truth[draw], scores[draw], p.top).f1 for draw in draws])
        figures = {key: float(getattr(result, key)) for key in ("precision", "recall", "f1", "n_plus")}
        more = {"deviation": float(deviation), "training_f1": score, "setting": candidate.setting}
        found["decoders"][decoder] = figures | more
    return found | {"seconds": time.process_time() - begun}


def cross_fitted(p: Problem, candidate: Candidate) -> dict[str, float]:
    """Compute the mean F1 of training samples with decoders learned from the other half of them."""
    rng = np.random.default_rng(0)
    half = rng.permutation(p.n) % 2 == 0
    scores = {decoder: np.empty(p.Y.shape) for decoder in DECODERS}
    for part in (half, ~half):
        learned = decoders([s[~part] for s in candidate.held_out], p.Y[~part], p)
        for decoder in DECODERS:
            scores[decoder][part] = learned[decoder]([s[part] for s in candidate.held_out])
    size = min(len(p.truth), p.n)
    picked = [rng.choice(p.n, size, replace=False) for _ in range(10)]
    return {
        decoder: float(np.mean([annotation_scores(p.Y[rows], found[rows], p.top).f1 for rows in picked]))
        for decoder, found in scores.items()
    }


# ---- the space


def space(p: Problem) -> dict[str, Any]:
    """Evaluate embeddings with 50 to 200 dimensions by their nearest neighbors."""
    begun, (old, new) = time.process_time(), p.numbers
    kernel, found = Lookup(p.combined("tagprop"), GAMMA), {}
    most = int(np.linalg.matrix_rank(p.Y - p.Y.mean(axis=0)))
    counts = sorted({min(count, most) for count in (50, 100, 200)})
    pca = TraceEmbedding("pca", kernel=kernel, n_components=counts[-1], approximation="exact").fit(old)
    cca = TraceEmbedding("cca", kernel=kernel, n_components=counts[-1], ridge=0.1, approximation="exact").fit(old, p.Y)
    learned = KGHA(kernel, ridge=0.1, n_components=counts[-1], approximation="exact").fit(old, p.Y)
    fitted = _ridge(kernel, 0.03).fit(old, p.Y)
    held_out = fitted.held_out_scores_
    axes = np.linalg.svd(held_out - held_out.mean(axis=0), full_matrices=False)[2].T
    spaces = {
        "kernel PCA": (pca.transform(old), pca.transform(new)),
        "kernel CCA": (cca.transform(old), cca.transform(new)),
        "ridge scores": (held_out @ axes, fitted._scores({"x": new})[0] @ axes),
        "KGHA": (learned.transform(old), learned.transform(new)),
    }
    for name, (known, asked) in spaces.items():
        for count in counts:
            found[f"{name}, {count}"] = neighbors_in(p, known[:, :count], asked[:, :count])
    every = p.distances.sum(axis=0)[p.n :]
    found["all views, by distance"] = labels_of(p, np.argsort(every, axis=1)[:, :20])
    return {"set": p.name, "n": p.n, "space": found, "seconds": time.process_time() - begun}


def neighbors_in(p: Problem, known: np.ndarray, asked: np.ndarray) -> dict[str, float]:
    """Find neighbors by cosine similarity of centered coordinates, which does not depend on the scale of the space."""
    known, asked = (part - known.mean(axis=0) for part in (known, asked))
    known, asked = (part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in (known, asked))
    return labels_of(p, np.argsort(-(asked @ known.T), axis=1)[:, :20])


def labels_of(p: Problem, nearest: np.ndarray) -> dict[str, float]:
    shared = (p.Y[nearest[:, :10]] & p.truth[:, None].astype(np.uint8)).any(axis=2)
    f1 = annotation_scores(p.truth, p.Y[nearest].mean(axis=1) + 1e-6 * p.Y.mean(axis=0), p.top).f1
    return {"precision_at_10": float(shared.mean()), "f1": float(f1)}


# ---- tables and the figure


def report(work: Path) -> None:
    """Print and write the tables of all results in `work`, and draw the figures."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((work / "results").glob("*.json"))]
    judged = [found for found in results if "decoders" in found]
    order = {name: i for i, name in enumerate(ANNOTATORS)}
    judged.sort(key=lambda found: (list(SETS).index(found["set"]), found["n"], order[found["annotator"]]))
    rows_of = [
        {**{key: found[key] for key in ("set", "n", "top", "annotator", "seconds")}, "decoder": decoder, **figures}
        for found in judged
        for decoder, figures in found["decoders"].items()
    ]
    searched = [found for found in results if "space" in found]
    text = markdown(judged) + against_ridge(judged) + spaces(searched)
    (work / "table.md").write_text(text, encoding="utf-8")
    print(text)
    if judged:
        write_table(work / "table.csv", rows_of)
        draw(judged, work / "benchmark.png")
    if searched:
        draw_spaces(searched, work / "space.png")
    print(f"written to {work}: table.md, table.csv, benchmark.png, space.png, log.txt")


def markdown(judged: Sequence[Mapping[str, Any]]) -> str:
    """Format a table per set: test F1 by decoder, then the scores of the plug-in rule and CPU seconds."""
    lines = []
    for name in dict.fromkeys((found["set"], found["n"]) for found in judged):
        part = [found for found in judged if (found["set"], found["n"]) == name]
        lines += [f"### {name[0]}: {name[1]} training samples, {part[0]['top']} labels per sample", ""]
        lines += [f"Distances of all views: {part[0]['distances']:.0f} CPU seconds.", ""]
        lines.append("| annotator | " + " | ".join(f"F1 {key}" for key in DECODERS) + " | P | R | N+ | seconds |")
        lines.append("|---" * (len(DECODERS) + 5) + "|")
        for found in part:
            cells = [f"{100 * found['decoders'][key]['f1']:.1f}" for key in DECODERS]
            rule = found["decoders"]["plug-in"]
            cells[-1] += f" ± {100 * rule['deviation']:.1f}"
            cells += [f"{100 * rule['precision']:.1f}", f"{100 * rule['recall']:.1f}", f"{rule['n_plus']:.0f}"]
            lines.append(f"| {found['annotator']} | " + " | ".join(cells) + f" | {found['seconds']:.0f} |")
        lines.append("")
    return "\n".join(lines) + "\n"


def against_ridge(judged: Sequence[Mapping[str, Any]]) -> str:
    """Format a table per set that compares KGHA with ridge regression on one kernel: F1 and its difference by
    decoder."""
    lines = []
    for key in dict.fromkeys((found["set"], found["n"]) for found in judged):
        part = {found["annotator"]: found["decoders"] for found in judged if (found["set"], found["n"]) == key}
        ours = {name: part[name] for name in part if name.startswith("kgha-")}
        if not ours or "ridge-tagprop" not in part:
            continue
        published = PUBLISHED.get(key[0], {})
        lines += [f"### KGHA against ridge regression on {key[0]}: {key[1]} training samples", ""]
        lines.append("| | " + " | ".join(f"F1 {decoder}" for decoder in DECODERS) + " | published |")
        lines.append("|---" * (len(DECODERS) + 2) + "|")
        base = part["ridge-tagprop"]
        for name, decoders in {"ridge-tagprop": base, **ours}.items():
            cells = [f"{100 * decoders[key]['f1']:.1f}" for key in DECODERS]
            if decoders is not base:
                less = [100 * (decoders[key]["f1"] - base[key]["f1"]) for key in DECODERS]
                cells = [f"{cell} ({change:+.1f})" for cell, change in zip(cells, less, strict=True)]
            lines.append(f"| {name} | " + " | ".join([*cells, str(published.get(name, ""))]) + " |")
        lines.append("")
    return "\n".join(lines) + "\n" if lines else ""


def spaces(results: Sequence[Mapping[str, Any]]) -> str:
    """Format a table per set of the scores of the spaces."""
    lines = []
    for found in results:
        lines += [f"### Spaces on {found['set']} ({found['n']} training samples)", ""]
        lines += [
            "| space, dimensions | shared label, of the ten nearest | F1 of the twenty nearest |",
            "|---|---|---|",
        ]
        for name, figures in found["space"].items():
            lines.append(f"| {name} | {100 * figures['precision_at_10']:.1f} | {100 * figures['f1']:.1f} |")
        lines.append("")
    return "\n".join(lines) + "\n"


def draw(judged: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the test F1 of every annotator, ranked by scores and by the plug-in rule, with one panel per set."""
    from matplotlib.figure import Figure

    sets = list(dict.fromkeys((found["set"], found["n"]) for found in judged))
    figure = Figure(figsize=(4.2 * len(sets), 4.8), layout="constrained")
    for i, (name, n) in enumerate(sets):
        axes = figure.add_subplot(1, len(sets), i + 1)
        part = [found for found in judged if (found["set"], found["n"]) == (name, n)][::-1]
        places = np.arange(len(part))
        for decoder, shift, color in (("scores", 0.2, "#9ab4d0"), ("plug-in", -0.2, "#1f4e79")):
            figures = [found["decoders"][decoder] for found in part]
            values, errors = ([100 * f[key] for f in figures] for key in ("f1", "deviation"))
            axes.barh(places + shift, values, 0.4, xerr=errors, color=color, label=decoder, error_kw={"lw": 0.8})
        axes.set_yticks(places, [found["annotator"] for found in part])
        axes.set_xlabel(f"test F1 at {part[0]['top']}, percent")
        axes.set_title(f"{name}, {n} training samples")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=110)


def draw_spaces(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the scores of the spaces against their dimensions, with a row of two panels per set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6 * len(results)), layout="constrained")
    titles = {
        "precision_at_10": "shared label, of the ten nearest",
        "f1": "F1 of the labels of the twenty nearest",
    }
    for row, found in enumerate(results):
        for column, (key, title) in enumerate(titles.items()):
            axes = figure.add_subplot(len(results), 2, 2 * row + column + 1)
            curves: dict[str, list[tuple[int, float]]] = {}
            for name, figures in found["space"].items():
                space, _, count = name.partition(", ")
                if count.isdigit():
                    curves.setdefault(space, []).append((int(count), 100 * figures[key]))
                else:
                    axes.axhline(100 * figures[key], color="gray", ls="--", lw=1, label="all views, by distance")
            axes.set_prop_cycle(**LINES)
            for space, points in curves.items():
                axes.plot(*zip(*sorted(points), strict=True), label=space)
            axes.set_xticks(sorted({count for points in curves.values() for count, _ in points}))
            axes.set(title=f"{found['set']}: {title}", xlabel="dimensions", ylabel="percent")
            axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
