"""Protocol of the experiments on proximity-based embeddings: thirds, relation features, Fisher discriminants,
validation.

Samples are split into training, validation and test thirds. Relation features are the inner products of a row with
random training rows, or its Euclidean distances to them. Every setting of a method is fitted to the training third. The
setting, the number of components (the first k of the fitted ones) and the shrinkage of the classifier are chosen by
macro F1 on the validation third. Settings that differ only in the ridge of MOPE's constraint share their proximities.
Label propagation returns label scores instead of coordinates; a label is predicted above the threshold with the best F1
on the validation third.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
from projection_protocol import Row
from sklearn.metrics import precision_recall_curve

from dmo.errors import UserError
from dmo.linalg.eigen import CUTOFF, solve_trace
from dmo.methods.mope import semi_supervised
from dmo.methods.trace_solvers import directions
from dmo.metrics import f1_scores

Setting = dict[str, Any]
LADDER = (2, 5, 10, 20, 50, 100, 200, 400, 800, 1200, 1800)
"""Numbers of components to try, in addition to the maximum."""
SHRINKAGES = (1e-4, 1e-3, 1e-2, 1e-1, 0.5)


@dataclass(frozen=True)
class Method:
    """A method: `build` maps (number of components, setting) to an unfitted transformer. `family` is its training data:
    "unsupervised" (all rows), "supervised" (labeled rows), "semi-supervised" (all rows with the known labels), or
    "propagation" (the same, but it returns label scores). With `of_labels`, the rank of the labels limits the number of
    components; with `of_classes`, the number of labels minus one. `ridges` are tried in MOPE's constraint after the one
    that `build` sets."""

    name: str
    family: str
    build: Callable[[int, Setting], Any]
    settings: Sequence[Setting] = ({},)
    of_labels: bool = False
    of_classes: bool = False
    ridges: Sequence[float] = ()


@dataclass(frozen=True)
class Thirds:
    """Relation features (n x p) and labels (n x L, 0/1) of the thirds. `known` marks training rows with known labels,
    `spectrum` has the eigenvalues of X'X of the centered training features, descending, and `rows` the sample
    indices."""

    X: tuple[np.ndarray, np.ndarray, np.ndarray]
    Y: tuple[np.ndarray, np.ndarray, np.ndarray]
    known: np.ndarray
    spectrum: np.ndarray
    rows: tuple[np.ndarray, ...] = ()

    @property
    def rank(self) -> int:
        """Rank of the centered training features."""
        return int((self.spectrum > 10 * CUTOFF * self.spectrum[0]).sum())

    @classmethod
    def of(cls, X: Any, Y: np.ndarray, seed: int, n_landmarks: int, distances: bool = False) -> Thirds:
        """Split at random; with `distances`, relation features are Euclidean distances.

        Features are scaled so that the mean eigenvalue of the centered X'X is 1, the unit of every ridge.

        Raises ValueError for fewer than 30 samples.
        """
        n = len(Y)
        if n < 30:
            raise UserError(f"cannot split {n} samples into thirds, expected at least 30; pass more samples")
        rng = np.random.default_rng(seed)
        order = rng.permutation(n)
        parts = np.sort(order[::3]), np.sort(order[1::3]), np.sort(order[2::3])
        landmarks = rng.choice(parts[0], min(n_landmarks, len(parts[0])), replace=False)
        R = [_relations(X[part], X[landmarks], distances) for part in parts]
        centered = R[0] - R[0].mean(axis=0)
        spectrum = scipy.linalg.eigvalsh(centered.T @ centered, check_finite=False)
        scale = np.sqrt(max(spectrum.mean(), np.finfo(float).tiny))
        a, b, c = (matrix / scale for matrix in R)
        labels = (Y[parts[0]], Y[parts[1]], Y[parts[2]])
        known = np.ones(len(parts[0]), bool)
        return cls((a, b, c), labels, known, np.maximum(spectrum[::-1], 0.0) / scale**2, parts)

    def hide(self, share: float, seed: int) -> Thirds:
        """Return a copy in which only a random fraction of the training rows has known labels."""
        known = np.zeros(len(self.known), bool)
        picked = np.random.default_rng((seed, round(100 * share))).permutation(len(known))
        known[picked[: round(share * len(known))]] = True
        return replace(self, known=known)


def _relations(X: Any, known: Any, distances: bool) -> np.ndarray:
    """Compute inner products of rows with known rows, or distances to them."""
    products = np.asarray((X @ known.T).toarray(), np.float64)
    if not distances:
        return products
    own, others = (np.asarray(rows.multiply(rows).sum(axis=1)).ravel() for rows in (X, known))
    return np.sqrt(np.maximum(own[:, None] + others - 2 * products, 0.0))


class Discriminants:
    """Fisher's linear discriminant of every label against the rest, on the same rows.

    The scores equal those of scikit-learn's LinearDiscriminantAnalysis(solver="lsqr", shrinkage=a) fitted per label
    (differences of its log posteriors), but need only one eigendecomposition: within-class scatter is total scatter
    minus a rank-one matrix. If all or none of the rows have a label, it is predicted for all or none.
    """

    def __init__(self, Z: np.ndarray, Y: np.ndarray):
        self._mean = Z.mean(axis=0)
        centered = Z - self._mean
        self._spectrum, self._axes = scipy.linalg.eigh(centered.T @ centered / len(Z), check_finite=False)
        self._share = Y.mean(axis=0)
        sums = (centered.T @ Y) / len(Z)  # share (mean of the positives)
        some = (self._share > 0) & (self._share < 1)
        p = np.where(some, self._share, 0.5)
        self._some, self._p = some, p
        self._positive, self._delta = self._axes.T @ (sums / p), self._axes.T @ (sums / (p * (1 - p)))

    def scores(self, Z: np.ndarray, shrinkage: float) -> np.ndarray:
        """Compute scores (m x L), positive for predicted labels; `shrinkage` is in (0, 1]."""
        p, delta = self._p, self._delta
        spread = p * (1 - p)
        within = np.maximum(self._spectrum, 0).sum() - spread * (delta**2).sum(axis=0)
        ridge = np.maximum(shrinkage * within / len(self._spectrum), np.finfo(float).tiny)
        W = delta / ((1 - shrinkage) * np.maximum(self._spectrum, 0)[:, None] + ridge)
        W = W / np.maximum(1 - (1 - shrinkage) * spread * (delta * W).sum(axis=0), 1e-12)
        middle = self._positive - delta / 2  # (mean of the positives + mean of the others) / 2
        found = (Z - self._mean) @ (self._axes @ W) - (middle * W).sum(axis=0) + np.log(p / (1 - p))
        return np.where(self._some, found, np.where(self._share > 0.5, 1.0, -1.0))


def run_method(method: Method, data: Thirds, components: int) -> Row:
    """Score the setting with the best validation third on the test third.

    Settings with at least as many neighbors as training rows are skipped. `seconds` is the time to fit the chosen
    setting and project the three thirds; `slowest` is the longest time of all settings.
    """
    if method.family == "propagation":
        return _run_propagation(method, data)
    found = best_projection(_projections(method, data, components), data)
    return {"method": method.name, "family": method.family} | found


def best_projection(projections: Iterator[tuple[Setting, list[np.ndarray], float]], data: Thirds) -> Row:
    """Score the setting, number of components and shrinkage with the best validation F1 on the test third."""
    best: Row = {"validation": -1.0}
    predicted, slowest = np.zeros_like(data.Y[2]), 0.0
    for setting, Z, seconds in projections:
        slowest = max(slowest, seconds)
        tried = [
            (k, shrinkage, judge)
            for k, judge in _judges(Z[0][data.known], data.Y[0][data.known]).items()
            for shrinkage in SHRINKAGES
        ]
        given = np.hstack([_given(judge.scores(Z[1][:, :k], shrinkage)) for k, shrinkage, judge in tried])
        reached = f1_scores(np.tile(data.Y[1], len(tried)), given).per_label.reshape(len(tried), -1).mean(axis=1)
        top = int(reached.argmax())
        if reached[top] > best["validation"]:
            k, shrinkage, judge = tried[top]
            predicted = _given(judge.scores(Z[2][:, :k], shrinkage))
            best = {"validation": float(reached[top]), "components": k, "seconds": seconds}
            best |= {"chosen": setting | {"classifier_shrinkage": shrinkage}}
    found = f1_scores(data.Y[2], predicted)
    scores = {"f1_macro": found.macro, "f1_micro": found.micro}
    return scores | best | {"slowest": slowest}


def _run_propagation(method: Method, data: Thirds) -> Row:
    """Score label propagation in the same way; labels without a known row are never predicted."""
    best: Row = {"validation": -1.0}
    predicted, slowest = np.zeros_like(data.Y[2]), 0.0
    there = data.Y[0][data.known].any(axis=0)
    for setting in method.settings:
        start = time.perf_counter()
        model = method.build(0, setting).fit(data.X[0], np.where(data.known[:, None], data.Y[0][:, there], np.nan))
        scores = [model.decision_function(X) for X in data.X[1:]]
        seconds = time.perf_counter() - start
        slowest, least = max(slowest, seconds), _thresholds(scores[0], data.Y[1][:, there])
        given = np.zeros_like(data.Y[1])
        given[:, there] = scores[0] >= least
        reached = f1_scores(data.Y[1], given).macro
        if reached > best["validation"]:
            predicted[:, there] = scores[1] >= least
            best = {"validation": reached, "components": int(there.sum()), "seconds": seconds, "chosen": setting}
    found = f1_scores(data.Y[2], predicted)
    scored = {"f1_macro": found.macro, "f1_micro": found.micro}
    return {"method": method.name, "family": method.family} | scored | best | {"slowest": slowest}


def _thresholds(scores: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return the threshold with the highest F1 for every label (infinite for labels without rows)."""
    least = np.full(Y.shape[1], np.inf)
    for label in np.flatnonzero(Y.any(axis=0)):
        precision, recall, thresholds = precision_recall_curve(Y[:, label], scores[:, label])
        f1 = 2 * precision * recall / np.maximum(precision + recall, np.finfo(float).tiny)
        least[label] = thresholds[f1[:-1].argmax()]
    return least


def _projections(method: Method, data: Thirds, components: int) -> Iterator[tuple[Setting, list[np.ndarray], float]]:
    """Iterate over settings: the coordinates of the three thirds, and the seconds to compute them."""
    known = data.known
    size = int(known.sum()) if method.family == "supervised" else len(known)
    labels = data.Y[0][:, data.Y[0][known].any(axis=0)]
    most = min(components, data.rank, size - 1)
    if method.of_labels:
        most = min(most, int(np.linalg.matrix_rank(labels[known] - labels[known].mean(axis=0))))
    if method.of_classes:
        most = min(most, labels.shape[1] - 1)
    for setting in method.settings:
        neighbors = setting.get("graph__n_neighbors")
        if isinstance(neighbors, int) and neighbors >= size:
            continue
        k = min(most, directions(data.spectrum, setting.get("variance", 1.0)))
        start = time.perf_counter()
        model = _fitted(method, setting, k, data, labels)
        Z = [np.asarray(model.transform(X)) for X in data.X]
        seconds = time.perf_counter() - start
        yield setting, Z, seconds
        if method.ridges:
            mean = data.X[0][known].mean(axis=0)
            own = data.X[0][known] - mean
            labeled = labels[known].any(axis=1)
            problem = semi_supervised(model.proximity_, labeled, "embedding", 0.0, True, None, 1.0, "pca")
            A, B = problem.A.projected(own), problem.B.projected(own)
        for ridge in method.ridges:
            W = solve_trace(A, B + ridge * np.eye(len(B)), k).vectors
            yield setting | {"ridge": ridge}, [(X - mean) @ W for X in data.X], seconds


def _judges(Z: np.ndarray, Y: np.ndarray) -> dict[int, Discriminants]:
    """Fit classifiers to the first k columns of Z, for every k of the ladder."""
    return {k: Discriminants(Z[:, :k], Y) for k in [k for k in LADDER if k < Z.shape[1]] + [Z.shape[1]]}


def _fitted(method: Method, setting: Setting, k: int, data: Thirds, labels: np.ndarray) -> Any:
    model, X, known = method.build(k, setting), data.X[0], data.known
    if method.family == "unsupervised":
        return model.fit(X)
    if method.family == "supervised":
        return model.fit(X[known], labels[known])
    return model.fit(X, labels * known[:, None])


def _given(scores: np.ndarray) -> np.ndarray:
    return (scores > 0).astype(np.uint8)
