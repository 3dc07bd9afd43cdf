"""Effect of the printed formulas of MOPE compared with the former formulas of dmo: macro F1 on Reuters-21578.

    python pipelines/mope_text.py --work WORK --protocol paper --experiments formulas [--landmarks 3328] [--components 1800]

Each row of the table changes one formula. Psi contains all pairs, under the constraint Z'Z + ridge P'P = I. The ridge,
beta, the number of components and the shrinkage of the classifier are chosen on the validation third for both forms,
and the macro F1 is computed on the test third. The former formulas exist only in this file. The results are written to
mope_text_formulas (CSV, JSON) in OUT.
Source: Mu, Goulermas, Tsujii, Ananiadou 2012, equations 9, 35, 40, 42, 43 and sections 2.2.2 and 3.5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mope_protocol import Setting, Thirds, best_projection
from projection_protocol import Row, publish, summarize
from scipy.sparse import csr_array

from dmo.graphs import root_mean_square, weigh
from dmo.labels.proximities import Proximity, all_pairs, combine, label_coordinates
from dmo.linalg.eigen import power_of, solve_trace

RIDGES = (0.001, 0.01, 0.1, 1.0)
BETAS = (1.0, 10.0)
SCORES = ("before", "after", "after - before", "validation, before", "validation, after", "seconds")
Pairs = Callable[["Split"], np.ndarray]
"""Proximities or weights of all pairs of the training third (n x n)."""


@dataclass(frozen=True)
class Form:
    """A formula: `of` returns the symmetric A (n x n) of max tr(Z'AZ) for each of `settings`. With `of_ridge`, the
    ridge is part of A, and the number of components is limited by the rank of the labels."""

    of: Callable[[Split, Setting], np.ndarray]
    settings: Sequence[Setting]
    of_ridge: bool = False


class Split:
    """Data of a split shared by both forms: training features X, labels Y, words, distances, weights of all pairs."""

    def __init__(self, data: Thirds, words: csr_array):
        self.X, self.Y = data.X[0], data.Y[0]
        self.words = words[data.rows[0]]
        self.graph = all_pairs(len(self.X))
        self.gaussian = self.weights("gaussian", bandwidth=root_mean_square(self.X))
        self.sorensen = self.proximities(Proximity("classes", "sorensen"))

    def weights(self, kind: str, **options: Any) -> np.ndarray:
        return np.asarray(weigh(self.graph, self.X, kind, **options).toarray())

    def proximities(self, proximity: Proximity) -> np.ndarray:
        return np.asarray(proximity.on(self.graph, self.Y, self.words).toarray())

    def combined(self, G: np.ndarray, W: np.ndarray, **setting: float) -> np.ndarray:
        """Combine G and W by the priority (43) or its generalization."""
        pattern = self.graph.indices, self.graph.indptr
        off = ~np.eye(len(G), dtype=bool)
        g, w = (csr_array((M[off], *pattern), shape=M.shape) for M in (G, W))
        return np.asarray(combine(g, w, "priority", **setting).toarray())


def row_normalized(split: Split) -> np.ndarray:
    """Compute the former weights (9): the mean of 1 / d_ij normalized by row sums and by column sums."""
    d = split.weights("distance")
    np.fill_diagonal(d, np.inf)
    share = 1 / np.maximum(d, d[d > 0].min())
    share /= share.sum(axis=1, keepdims=True)
    return np.asarray((share + share.T) / 2)


def weighted_sizes(split: Split) -> np.ndarray:
    """Compute the former proximity (35): labels have weight 1 / (number of their samples) in the denominator too."""
    weighted = split.Y / np.maximum(split.Y.sum(axis=0), 1)
    size = weighted.sum(axis=1)
    both = size[:, None] + size
    return np.divide(2 * weighted @ split.Y.T, both, out=np.zeros_like(both), where=both > 0)


def reciprocal_distance(split: Split) -> np.ndarray:
    """Compute the former proximity (40): 1 / (1 + |z_i - z_j|)."""
    Z = label_coordinates(split.Y)
    own = (Z * Z).sum(axis=1)
    return np.asarray(1 / (1 + np.sqrt(np.maximum(own[:, None] + own - 2 * Z @ Z.T, 0))))


def tanimoto_of_means(split: Split) -> np.ndarray:
    """Compute the former proximity (42): Tanimoto's coefficient of the class means, instead of the printed sums."""
    size = split.Y.sum(axis=0)
    M = np.asarray((split.words.T @ split.Y).T) / np.maximum(size, 1)[:, None]
    common, own = M @ M.T, (M * M).sum(axis=1)
    other = own[:, None] + own - common
    classes = np.divide(common, other, out=np.zeros_like(common), where=other > 0)
    shares = split.Y / np.maximum(split.Y.sum(axis=1, keepdims=True), 1)
    return np.asarray(shares @ classes @ shares.T)


def with_exponent(split: Split, setting: Setting) -> np.ndarray:
    """Compute the former generalization of the priority (43): g / (1 + beta (1 - w))^c."""
    return np.asarray(split.sorensen / (1 + setting["beta"] * (1 - split.gaussian)) ** setting["exponent"])


def generalized(split: Split, setting: Setting) -> np.ndarray:
    return split.combined(split.sorensen, split.gaussian, **setting)


PRIORITY: list[Setting] = [{"beta": beta} for beta in BETAS]


def of_labels(proximities: Pairs) -> Form:
    """Create the priority (43) with the given label proximities and Gaussian weights."""
    return Form(lambda split, setting: split.combined(proximities(split), split.gaussian, **setting), PRIORITY)


def of_weights(weights: Pairs) -> Form:
    """Create the priority (43) with the given weights and Sorensen's coefficient in the third scheme."""
    return Form(lambda split, setting: split.combined(split.sorensen, weights(split), **setting), PRIORITY)


def printed(*proximity: Any, **options: Any) -> Form:
    return of_labels(lambda split: split.proximities(Proximity(*proximity, **options)))


def correlated(ridge_of_labels: bool) -> Form:
    """Create regularized CCA, Yc (Yc'Yc + c I)^-1 Yc', with c = ridge or 0; the solver centers X because Z = X P."""

    def form(split: Split, setting: Setting) -> np.ndarray:
        Y = split.Y - split.Y.mean(axis=0)
        root = power_of(Y.T @ Y + ridge_of_labels * setting["ridge"] * np.eye(Y.shape[1]), -0.5)
        return np.asarray((Y @ root) @ (Y @ root).T)

    return Form(form, [{}], of_ridge=True)


FORMULAS: dict[str, tuple[Form, Form]] = {
    "(9) weights": (of_weights(row_normalized), of_weights(lambda split: split.weights("inverse"))),
    "(35) scaled Sorensen": (of_labels(weighted_sizes), printed("bits", "scaled-sorensen")),
    "(40) Minkowski": (of_labels(reciprocal_distance), printed("projection", "minkowski")),
    "(42) classes' words, Tanimoto": (
        of_labels(tanimoto_of_means),
        printed("classes", "tanimoto", class_features="sums"),
    ),
    "(42) classes' words, indicators": (
        of_labels(tanimoto_of_means),
        printed("classes", "jaccard", class_features="indicators"),
    ),
    "after (43), generalized": (
        Form(with_exponent, [{"beta": beta, "exponent": c} for beta in BETAS for c in (0.5, 2.0)]),
        Form(generalized, [{"beta": beta, "label_share": share} for beta in BETAS for share in (0.5, 0.9)]),
    ),
    "regularized CCA": (correlated(True), correlated(False)),
}
"""Former and printed form of each formula."""
RELATIONS = "3.5, relation features"
"""Former relation features are inner products with training stories; the printed ones are distances to them."""


def projections(
    split: Split, data: Thirds, form: Form, components: int
) -> Iterator[tuple[Setting, list[np.ndarray], float]]:
    """Iterate over settings with every ridge: the coordinates of the three thirds, and the seconds to compute them."""
    mean = data.X[0].mean(axis=0)
    centered = [X - mean for X in data.X]
    gram = centered[0].T @ centered[0]
    rank = int(np.linalg.matrix_rank(split.Y - split.Y.mean(axis=0))) if form.of_ridge else data.rank
    for setting in form.settings:
        for ridge in RIDGES:
            start = time.perf_counter()
            if form.of_ridge or ridge == RIDGES[0]:
                A = (
                    centered[0].T
                    @ form.of(split, {**setting, **({"ridge": ridge} if form.of_ridge else {})})
                    @ centered[0]
                )
            W = solve_trace(A, gram + ridge * np.eye(len(gram)), min(components, rank, data.rank)).vectors
            yield setting | {"ridge": ridge}, [X @ W for X in centered], time.perf_counter() - start


def compare(seed: int, X: csr_array, Y: np.ndarray, landmarks: int, components: int) -> list[Row]:
    """Return one row per formula with the scores of both forms on a split."""
    data = Thirds.of(X, Y, seed, landmarks, distances=True)
    split = Split(data, X)
    products = Thirds.of(X, Y, seed, landmarks)
    both = {name: [(split, data, form) for form in forms] for name, forms in FORMULAS.items()}
    third = of_labels(lambda split: split.sorensen)
    both[RELATIONS] = [(Split(products, X), products, third), (split, data, third)]
    rows: list[Row] = []
    for name, forms in both.items():
        start = time.process_time()
        before, after = (best_projection(projections(*form, components), form[1]) for form in forms)
        rows.append(
            {
                "split": seed,
                "formula": name,
                "before": before["f1_macro"],
                "after": after["f1_macro"],
                "after - before": after["f1_macro"] - before["f1_macro"],
                "validation, before": before["validation"],
                "validation, after": after["validation"],
                "seconds": round(time.process_time() - start, 1),
                "chosen": [before["chosen"], after["chosen"]],
            }
        )
    return rows


def report(out: Path, rows: Sequence[Row], facts: Mapping[str, Any]) -> None:
    """Write the table of the splits so far."""
    publish(out, "mope_text_formulas", summarize(rows, ("formula",), SCORES), [], dict(facts) | {"splits": list(rows)})
