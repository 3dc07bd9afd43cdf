"""Embeddings of samples of which some have labels: supervised terms on those, unsupervised ones on all [MOPE 44, 45]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dmo.linalg.eigen import power_of
from dmo.methods.embeddings import graph_methods as graph
from dmo.methods.embeddings.discriminant import DISCRIMINANTS, Labeled, lfda, scatter_between, scatter_within
from dmo.methods.embeddings.graph_methods import Options
from dmo.methods.embeddings.quadratic_forms import Pencil, SampleForm, centering, mix


def labeled(X: Any, Y: np.ndarray) -> tuple[Labeled, np.ndarray]:
    """The samples that have labels, and their row numbers."""
    index = np.flatnonzero(Y.any(axis=1))
    return Labeled(X[index], Y[index]), index


def self_(X: Any, Y: np.ndarray, options: Options) -> Pencil:
    """(1 - beta) S_b^l + beta X'HX | (1 - beta) S_w^l + beta I, the local scatters of LFDA."""
    (known, index), n, beta = labeled(X, Y), X.shape[0], options.balance
    local = lfda(known, options).spread(index, n)
    A = local.A.times(1 - beta) + centering(n).times(beta)
    return Pencil(A, None if local.B is None else local.B.times(1 - beta), beta)


def ssfda(X: Any, Y: np.ndarray, options: Options) -> Pencil:
    """S_b^l | S_w^l + b1 X'Lap(W)X + b2 I."""
    (known, index), n = labeled(X, Y), X.shape[0]
    B = scatter_within(known).spread(index, n) + graph.smooth(X, options).times(options.smoothness)
    return Pencil(scatter_between(known).spread(index, n), B, options.ridge)


def ssmmc(X: Any, Y: np.ndarray, options: Options) -> Pencil:
    """S_b^l - b1 S_w^l - b2 X'Lap(W)X | I."""
    (known, index), n = labeled(X, Y), X.shape[0]
    gain = scatter_between(known) - scatter_within(known).times(options.penalty)
    return Pencil(gain.spread(index, n) - graph.smooth(X, options).times(options.smoothness))


SEMISUPERVISED: dict[str, Callable[[Any, np.ndarray, Options], Pencil]] = {
    "self": self_,
    "ssfda": ssfda,
    "ssmmc": ssmmc,
}
UNSUPERVISED: dict[str, Callable[[Any, Options], Pencil]] = {
    "pca": graph.total,
    "lpp": graph.lpp,
    "olpp": graph.olpp,
    "npp": graph.npp,
    "onpp": graph.onpp,
}


def mddm(given: Labeled, options: Options) -> Pencil:
    """X'HYY'HX | I."""
    return Pencil(SampleForm(given.n, None, given.Y - given.Y.mean(axis=0)))


def cca(given: Labeled, options: Options) -> Pencil:
    """X'HY (Y'HY)^-1 Y'HX | X'HX + c I."""
    T = given.Y - given.Y.mean(axis=0)
    return Pencil(SampleForm(given.n, None, T, power_of(T.T @ T, -1.0)), centering(given.n), options.ridge)


SUPERVISED: dict[str, Callable[[Labeled, Options], Pencil]] = DISCRIMINANTS | {"mddm": mddm, "cca": cca}


def mixed(supervised: str, unsupervised: str, X: Any, Y: np.ndarray, options: Options) -> Pencil:
    """lam A_un + (1 - lam) A_sup | I, or the same mix of the constraints; lam = `balance`."""
    known, index = labeled(X, Y)
    own = SUPERVISED[supervised](known, options).spread(index, X.shape[0])
    return mix(UNSUPERVISED[unsupervised](X, options), own, options.balance)
