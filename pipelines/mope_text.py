"""MOPE and MESD on text (the 10 largest, overlapping topics of Reuters-21578), compared with other embeddings.

    python pipelines/mope_text.py --work WORK [--data FOLDER] [--seeds 5] [--landmarks 2000] [--components 1800] [--quick]
                                  [--protocol paper] [--experiments 1,2]

Experiment 1 uses all training labels: unsupervised and supervised embeddings, and MOPE with its three label proximities
and three combinations. Experiment 2 uses 40 % and 80 % of the training labels, with semi-supervised methods and methods
that propagate labels over a graph: ML-LGC, ML-GRF, SMSE1, SMSE2. `--experiments formulas` measures the effect of each
printed formula; see `mope_formulas`.

Documents are tf-idf rows, represented by relation features; `mope_protocol` describes the splits, the features and the
choice of parameters. MOPE selects the pairs with the largest proximity, under Z'Z + ridge P'P = I; all methods choose
from the same ridges. The classifier is Fisher's linear discriminant per label (one against the rest) with shrinkage to
the identity, as scikit-learn's LinearDiscriminantAnalysis(solver="lsqr", shrinkage=...). The paper uses 9980 documents;
this selection of the collection has 9400.

`--protocol paper` uses the features and similarities of the paper: stems, Euclidean distances as relation features,
scheme 1 with all four similarities, scheme 2 with the cosine of the principal coordinates, scheme 3 with Sorensen's
coefficient of the classes. The text of the paper prints no F1 scores (tables 3 and 4 are images), so its claims are
compared: SSMOPE is better than ML-LGC, MOPE and OLPP; scheme 3 is better than the others; the priority is better than
both other combinations.

The script writes mope_text_table3 and mope_text_table4 (CSV, JSON: means and standard deviations over splits, claims
that hold or do not) to the folder WORK and updates them after every split, with mope_text_bars.png, mope_text_labels.png and
mope_text_combined.png. Splits that an earlier run finished are loaded from OUT/splits.
Source: Mu, Goulermas, Tsujii, Ananiadou 2012, section 4: experiments 1 and 2, tables 3 and 4, figures 2 to 4.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import mope_formulas
import numpy as np
import scipy.cluster.hierarchy
import scipy.sparse
from datasets.reuters import ingest_reuters
from experiments import data_folder, kept, labeled_features
from mope_protocol import Method, Setting, Thirds, run_method
from projection_protocol import Row, plt, publish, summarize

from dmo.blocks import dense, rows
from dmo.errors import UserError
from dmo.graphs import weigh
from dmo.labels.proximities import Proximity, combine
from dmo.methods.catalog import METHODS
from dmo.methods.mesd import MESD
from dmo.methods.mope import MOPE
from dmo.methods.propagation import LabelPropagation
from dmo.methods.quadratic_forms import Options, TraceSamples
from dmo.methods.trace import TraceEmbedding
from dmo.progress import stage
from dmo.report.canvas import BLUE, GRAY, clean
from dmo.workflows.program import option_parser, run_pipeline

NEIGHBORS = 15
REACHES: list[Setting] = [{"graph__n_neighbors": 60}, {"graph__n_neighbors": "all"}]
"""Numbers of neighbors with the largest proximity for MOPE, or all pairs."""
RIDGES: list[Setting] = [{"ridge": c} for c in (0.001, 0.01, 0.1, 1.0)]
"""Ridges of every method with a regularized constraint."""
REPULSIONS: list[Setting] = [{"options__repulsion": c} for c in (0.01, 0.1, 1.0)]
WEIGHTED: list[Setting] = [{"weighted": False}, {"weighted": True}]
PENALTIES: list[Setting] = [{"options__penalty": c} for c in (0.01, 0.1, 1.0)]
MIXINGS: list[Setting] = [{"options__mixing": share} for share in (0.99, 0.9, 0.5)]
SIMILARITIES = {
    "bits": ("sorensen", "hamming-exponential"),
    "projection": ("minkowski", "tanimoto"),
    "classes": ("sorensen", "cosine"),
}
PAPER_SIMILARITIES = {
    "bits": ("sorensen", "scaled-sorensen", "jaccard", "hamming-exponential"),
    "projection": ("cosine",),
    "classes": ("sorensen",),
}
COMBINATIONS: dict[str, list[Setting]] = {
    "priority": [{"beta": 1.0}, {"beta": 10.0}],
    "hadamard": [{}],
    "sum": [{"beta": 0.5}, {"beta": 0.9}],
}
SHARES = (0.4, 0.8)
RIVALS = ("CCA", "HSL1", "HSL2", "HSL3", "MORP")
BEST = "MOPE-3 priority"
SPREADING = ("ml-lgc", "ml-grf", "smse1", "smse2")
PROPAGATED = tuple(name.upper() for name in SPREADING)
WINNERS = (BEST, "MESD-FDA", "MESD-LFDA", "MESD-OLPP-R")
SCORES = ("f1_macro", "f1_micro", "validation", "components", "seconds", "slowest")


def load(
    data: Path, work: Path, stemmer: Literal["porter"] | None = None
) -> tuple[scipy.sparse.csr_array, np.ndarray, list[str]]:
    """Load (X n x d, rows of unit length; Y n x 10; topics) from a store in `work`, which is ingested first if it is
    missing."""
    path = work / f"reuters-mope{'-stems' if stemmer else ''}.zarr"
    archive = data / "reuters21578" / "reuters21578.tar.xz"
    store = labeled_features(path, lambda: ingest_reuters(archive, path, selection="mope", stemmer=stemmer))
    X, Y = scipy.sparse.csr_array(rows(store.views["words"])), dense(store.labels)
    some = np.flatnonzero(np.diff(X.indptr) > 0)
    return X[some].astype(np.float64), Y[some].astype(np.float64), list(store.label_names or ())


def trace(name: str, **fixed: Any) -> Any:
    return lambda k, setting: TraceEmbedding(name, n_components=k).set_params(**fixed, **setting)


def mesd(name: str, **fixed: Any) -> Any:
    return lambda k, setting: MESD(name, n_components=k).set_params(**fixed, **setting)


def mope(scheme: str, combination: str) -> Any:
    fixed: Setting = {"proximity__scheme": scheme, "combination__how": combination, "graph__selection": "proximity"}
    fixed |= {"constraint": "embedding", "center": True}
    return lambda k, setting: MOPE(n_components=k).set_params(**fixed, **setting)


def unsupervised() -> list[Method]:
    """Return LSI, PCA and OLPP; OLPP follows PCA, otherwise it finds directions in which the features hardly vary."""
    olpp = trace("olpp", graph__n_neighbors=NEIGHBORS)
    weights: list[Setting] = [
        {"variance": share, "graph__weight": weight}
        for share in (0.9, 0.95, 0.98)
        for weight in ("constant", "gaussian")
    ]
    plain = [Method(name.upper(), "unsupervised", trace(name)) for name in ("lsi", "pca")]
    return [*plain, Method("OLPP", "unsupervised", olpp, weights)]


def rivals() -> list[Method]:
    """Return MDDM, CCA, the three variants of HSL, and MORP."""
    shrinkages: list[Setting] = [{"options__shrinkage": s} for s in (1.0, 0.9, 0.5)]
    shares: list[Setting] = [{"options__mixing": b} | c for b in (0.5, 0.9) for c in RIDGES]
    return [
        Method("MDDM", "supervised", trace("mddm"), shrinkages, of_labels=True),
        Method("CCA", "supervised", trace("cca"), RIDGES, of_labels=True),
        *(Method(f"HSL{i}", "supervised", trace(f"hsl-{i}"), RIDGES, of_labels=True) for i in (1, 2, 3)),
        Method("MORP", "supervised", trace("morp"), shares),
    ]


def duplicating() -> list[Method]:
    """Return MESD with FDA, LFDA and OLPP-R, weighted or not."""
    fda = [w | c for w in WEIGHTED for c in RIDGES]
    lfda = [{"graph__n_neighbors": k} | w | c for k in (NEIGHBORS, None) for w in WEIGHTED for c in RIDGES[1:3]]
    repelled = [{"options__n_repelled": k} | w | c for k in (NEIGHBORS, 60) for w in WEIGHTED for c in REPULSIONS[1:]]
    return [
        Method("MESD-FDA", "supervised", mesd("fda"), fda, of_labels=True, of_classes=True),
        Method("MESD-LFDA", "supervised", mesd("lfda"), lfda),
        Method("MESD-OLPP-R", "supervised", mesd("olpp-r"), repelled),
    ]


def proximities(
    schemes: Sequence[str], combinations: Sequence[str], similarities: Mapping[str, Sequence[str]]
) -> list[Method]:
    """Return MOPE with several label proximities and combinations with feature weights."""
    return [
        Method(
            f"MOPE-{1 + list(SIMILARITIES).index(scheme)} {combination}",
            "supervised",
            mope(scheme, combination),
            [
                {"proximity__similarity": name, **{f"combination__{key}": value for key, value in given.items()}}
                | reach
                | RIDGES[0]
                for name in similarities[scheme]
                for given in COMBINATIONS[combination]
                for reach in REACHES
            ],
            ridges=[ridge["ridge"] for ridge in RIDGES[1:]],
        )
        for scheme in schemes
        for combination in combinations
    ]


def mixtures() -> list[Method]:
    """Return SELF, SSFDA, SSMMC, MESD mixed with unsupervised methods, and MOPE mixed with OLPP or PCA."""

    def mix(first: str, second: str) -> Any:
        graph = {} if second == "pca" else {"graph__n_neighbors": NEIGHBORS}
        return trace("mix", options__supervised=first, options__unsupervised=second, **graph)

    shares: list[Setting] = [
        {"options__mixing": share, "options__unsupervised": part} | reach | ridge
        for share, part in ((0.9, "pca"), (0.9, "olpp"), (0.99, "olpp"))
        for reach in REACHES
        for ridge in RIDGES[1:3]
    ]
    smooth: list[Setting] = [{"options__smoothness": s} | c for s in (0.01, 0.1) for c in RIDGES[:2]]
    return [
        Method("SELF", "semi-supervised", trace("self", graph__n_neighbors=NEIGHBORS), MIXINGS),
        Method(
            "SSFDA",
            "semi-supervised",
            trace("ssfda", graph__n_neighbors=NEIGHBORS),
            smooth,
            of_labels=True,
            of_classes=True,
        ),
        Method("SSMMC", "semi-supervised", trace("ssmmc", graph__n_neighbors=NEIGHBORS), PENALTIES),
        Method("mix CCA + PCA", "semi-supervised", mix("cca", "pca"), MIXINGS),
        Method("mix FDA + OLPP", "semi-supervised", mix("fda", "olpp"), MIXINGS),
        Method("mix LFDA + OLPP", "semi-supervised", mix("lfda", "olpp"), MIXINGS),
        Method("SSMOPE", "semi-supervised", mope("classes", "priority"), shares),
    ]


def spreading() -> list[Method]:
    """Return label propagation on the graph of nearest features."""

    def propagation(name: str) -> Any:
        return lambda k, setting: LabelPropagation(name).set_params(**setting)

    settings: list[Setting] = [
        {"smoothness": c, "graph__n_neighbors": k} for c in (0.1, 1.0, 10.0) for k in (NEIGHBORS, 60)
    ]
    return [Method(name.upper(), "propagation", propagation(name), settings) for name in SPREADING]


def run_split(
    data: Thirds,
    seed: int,
    components: int,
    most: int | None,
    similarities: Mapping[str, Sequence[str]],
    experiments: Sequence[str],
) -> tuple[list[Row], list[Row]]:
    """Compute the rows of experiments 1 and 2; `most` is the number of settings tried per method (None: all)."""
    own = proximities(list(SIMILARITIES), list(COMBINATIONS), similarities)
    first = [*unsupervised(), *rivals(), *duplicating(), *own] if "1" in experiments else []
    some = [method for method in [*rivals(), *duplicating()] if method.name in ("CCA", "MORP", "MESD-FDA", "MESD-LFDA")]
    best = [method for method in own if method.name == BEST]
    second = [*unsupervised(), *some, *best, *mixtures(), *spreading()] if "2" in experiments else []
    first, second = ([replace(m, settings=m.settings[:most]) for m in methods] for methods in (first, second))
    found: tuple[list[Row], list[Row]] = ([], [])
    with stage(f"split {seed}: methods", len(first) + len(SHARES) * len(second)) as advance:
        for method in first:
            found[0].append({"split": seed} | run_method(method, data, components))
            advance(1)
        for share in SHARES:
            part = data.hide(share, seed)
            for method in second:
                found[1].append({"split": seed, "labels": share} | run_method(method, part, components))
                advance(1)
    return found


def above(table: Sequence[Row], winner: str, losers: Sequence[str], where: str = "") -> Row:
    """Check the claim that the mean macro F1 of `winner` is at least that of all `losers`."""
    reached = {row["method"]: row["f1_macro"] for row in table}
    higher = [name for name in losers if reached[name] > reached[winner]]
    claim = f"{winner} at or above {', '.join(losers)} in macro F1{where}"
    return {"claim": claim, "holds": not higher, "compared": list(losers), "not_above_at": higher}


def noted(table: list[Row], claims: Sequence[Row]) -> list[Row]:
    """Return the table with a note on methods for which a claim does not hold."""
    failed: dict[str, list[str]] = {}
    for claim in claims:
        failed.setdefault(claim["claim"].partition(" at or above ")[0], []).extend(claim["not_above_at"])
    below = {name: "below " + ", ".join(losers) for name, losers in failed.items() if losers}
    return [{**row, "note": below.get(row["method"], "")} for row in table]


def report(out: Path, first: list[Row], second: list[Row], facts: Row, spent: float) -> None:
    """Write tables 3 and 4 and the bar chart of the splits so far; `spent` is the CPU seconds of the last split."""
    facts = facts | {"cpu_seconds_of_a_split": spent}
    if first:
        report_first(out, first, facts)
    if second:
        report_second(out, second, facts)


def report_first(out: Path, first: list[Row], facts: Row) -> None:
    """Write the table and the bar chart of experiment 1."""
    table = summarize(first, ("method", "family"), SCORES)
    claims = [above(table, winner, RIVALS) for winner in WINNERS]
    claims.append(above(table, BEST, ["MOPE-3 hadamard", "MOPE-3 sum"]))
    claims.append(above(table, BEST, ["MOPE-1 priority", "MOPE-2 priority"]))
    publish(out, "mope_text_table3", noted(table, claims), claims, facts | {"splits": first})
    bars(out / "mope_text_bars.png", table)


def report_second(out: Path, second: list[Row], facts: Row) -> None:
    """Write the table of experiment 2."""
    means = summarize(second, ("labels", "method", "family"), SCORES)
    lines: list[Row] = []
    claims = []
    for share in SHARES:
        part = [row for row in means if row["labels"] == share]
        said = [above(part, "SSMOPE", [BEST, "OLPP", "CCA", "MORP", *PROPAGATED], f", {share:.0%} of the labels")]
        lines, claims = lines + noted(part, said), claims + said
    publish(out, "mope_text_table4", lines, claims, facts | {"splits": second})


def bars(path: Path, table: Sequence[Row]) -> None:
    """Plot the macro F1 of every method, with standard deviations over splits."""
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    colors = {"unsupervised": GRAY, "supervised": BLUE}
    for family, color in colors.items():
        at = [i for i, row in enumerate(table) if row["family"] == family]
        lines = [table[i] for i in at]
        deviations = [row["f1_macro_std"] for row in lines]
        axes.bar(at, [row["f1_macro"] for row in lines], yerr=deviations, color=color, capsize=2, label=family)
    axes.set_xticks(range(len(table)), [row["method"] for row in table], rotation=60, ha="right")
    clean(axes).set(ylabel="macro F1", ylim=(0, None))
    figure.legend(loc="outside upper right", ncols=len(colors))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def proximity_figures(out: Path, X: np.ndarray, Y: np.ndarray, most: int = 300) -> None:
    """Draw figures 2 and 3: label proximities of CCA, HSL and the schemes, and the third scheme combined with feature
    weights, all with the same seriation."""
    picked = np.sort(np.random.default_rng(0).permutation(len(X))[:most])
    X, Y = X[picked], Y[picked]
    n = len(X)
    graph = scipy.sparse.csr_array(np.ones((n, n)) - np.eye(n))
    problem = TraceSamples(n, X, Y)
    rivals_of = {name: METHODS[name].problem(problem, Options()).A.dense() for name in ("cca", "hsl-1", "hsl-3")}
    schemes: dict[str, Any] = {name.upper(): scipy.sparse.csr_array(matrix) for name, matrix in rivals_of.items()}
    schemes |= {
        f"scheme {i}: {scheme}": Proximity(scheme, names[0]).on(graph, Y)  # type: ignore[arg-type]
        for i, (scheme, names) in enumerate(SIMILARITIES.items(), 1)
    }
    G, W = list(schemes.values())[-1], weigh(graph, X, "gaussian")
    tree = scipy.cluster.hierarchy.linkage(np.hstack([G.toarray(), W.toarray()]), "average", optimal_ordering=True)
    order = scipy.cluster.hierarchy.leaves_list(tree)
    combined = {"feature weights": W}
    for name, settings in COMBINATIONS.items():
        combined[name] = combine(G, W, name, **settings[-1])  # type: ignore[arg-type]
    for name, matrices in (("labels", schemes), ("combined", combined)):
        figure, axes = plt.subplots(1, len(matrices), figsize=(3.2 * len(matrices), 3.2), layout="constrained")
        for axis, (title, matrix) in zip(axes, matrices.items()):
            axis.imshow(matrix.toarray()[np.ix_(order, order)], cmap="viridis", interpolation="nearest")
            axis.set(title=title, xticks=[], yticks=[])
        figure.savefig(out / f"mope_text_{name}.png", dpi=120)
        plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments and return the exit code (see `dmo.workflows.program`)."""
    made = option_parser(__doc__, run=True, work=..., data=data_folder(), seeds=5)
    made.add_argument(
        "--landmarks", type=int, default=2000, help="number of training documents used for relation features"
    )
    made.add_argument("--components", type=int, default=1800, help="maximum number of components of an embedding")
    made.add_argument("--protocol", choices=("tuned", "paper"), default="tuned", help="features and similarities")
    made.add_argument("--experiments", default="1,2", help="1, 2, 1,2 or formulas (see mope_formulas.py)")
    made.add_argument(
        "--quick",
        action="store_true",
        help="240 documents, 1 split, 40 landmarks, 15 components, 2 settings per method",
    )
    options = made.parse_args(arguments)
    return run_pipeline(__file__, options, lambda _: run(options))


def run(options: argparse.Namespace) -> None:
    """Run all splits; write the tables after each."""
    out, splits, landmarks, components = Path(options.work), options.seeds, options.landmarks, options.components
    paper = options.protocol == "paper"
    similarities = PAPER_SIMILARITIES if paper else SIMILARITIES
    X, Y, topics = load(Path(options.data), out, "porter" if paper else None)
    if options.quick:
        X, Y, splits, landmarks, components = X[:240], Y[:240], 1, 40, 15
    if min(splits, landmarks, components) < 1:
        raise UserError(
            f"splits, landmarks and components must be at least 1, got {splits}, {landmarks} and {components}"
        )
    if components >= landmarks:
        raise UserError(
            f"{components} components of {landmarks} relation features: without dimension reduction, all orthogonal "
            f"projections agree up to a rotation; pass fewer --components or more --landmarks"
        )
    facts = {
        "documents": X.shape[0],
        "words": X.shape[1],
        "topics": topics,
        "protocol": options.protocol,
        "landmarks": landmarks,
        "components": components,
    }
    if options.experiments == "formulas":
        lines: list[Row] = []
        for split in range(splits):
            path, known = out / "splits" / f"formulas-{split}.json", {**facts, "seeds": split}
            made_rows = kept(
                path, known, lambda at=split: {"rows": mope_formulas.compare(at, X, Y, landmarks, components)}
            )  # type: ignore[misc]
            lines += made_rows["rows"]
            mope_formulas.report(out, lines, facts | {"seeds": f"0 to {split}"})
        return
    first: list[Row] = []
    second: list[Row] = []
    most, experiments = 2 if options.quick else None, options.experiments.split(",")

    def made(split: int) -> dict[str, Any]:
        data = Thirds.of(X, Y, split, landmarks, distances=paper)
        if not split:
            proximity_figures(out, data.X[0], data.Y[0])
        start = time.process_time()
        lines = run_split(data, split, components, most, similarities, experiments)
        return {"lines": lines, "cpu_seconds": round(time.process_time() - start, 1)}

    for split in range(splits):
        known = {**facts, "seeds": split, "experiments": experiments}
        found = kept(out / "splits" / f"{split}.json", known, lambda split=split: made(split))  # type: ignore[misc]
        first, second = first + found["lines"][0], second + found["lines"][1]
        report(out, first, second, facts | {"seeds": f"0 to {split}"}, found["cpu_seconds"])


if __name__ == "__main__":
    sys.exit(main())
