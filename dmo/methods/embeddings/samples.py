"""What the methods of the catalog are given: the samples, and options of which each uses its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dmo.errors import UserError
from dmo.graphs.adjacency import Mode
from dmo.graphs.search import Metric
from dmo.parameters import flat
from dmo.validation import COUNT, NOT_NEGATIVE, PART, POSITIVE, SHARE, Need, one_of, optional


@dataclass(frozen=True)
class Options:
    """What the methods of the catalog may use; each uses its own.

    weight (n, n)
    """

    ridge: float = 1e-3  # c
    mixing: float = 0.5  # share of the labels; of the features 1 - mixing
    shrinkage: float = 0.5  # of a covariance towards I
    n_neighbors: int | None = None  # k or k1; None: 15, or all samples of the class
    n_repelled: int | None = None  # k2
    weight: Any = "constant"  # (n, n): A kind of `graphs.weigh`, or the weights themselves
    bandwidth: float | str = "mean"  # of Gaussian weights
    tau: float = 1.0  # of inverse weights
    adjacency: Mode = "union"  # A mode of `graphs.adjacency`
    metric: Metric = "euclidean"  # of the neighbors
    regularization: float = 1e-3  # of reconstruction weights
    penalty: float = 1.0  # of the within-class scatter
    repulsion: float = 1.0  # weight of the pairs that are driven apart
    smoothness: float = 0.1  # of the Laplacian term
    supervised: str = "fda"  # the methods of a mix
    unsupervised: str = "lpp"  # the methods of a mix
    constraint: Literal["mixed", "supervised", "projection"] = "mixed"

    @classmethod
    def of(cls, estimator: Any) -> Options:
        """Take the options that an estimator has parameters for, and that are set there."""
        values = flat(estimator)
        given = {name: values.get(name) for name in cls.__dataclass_fields__}
        return cls(**{name: value for name, value in given.items() if value is not None})


NEEDS: dict[str, Need] = {
    "ridge": optional(NOT_NEGATIVE),
    "mixing": optional(SHARE),
    "shrinkage": optional(SHARE),
    "tau": optional(POSITIVE),
    "n_neighbors": optional(COUNT),
    "n_repelled": optional(COUNT),
    "adjacency": optional(one_of("union", "mutual", "sum")),
    "metric": optional(one_of("euclidean", "cosine")),
    "regularization": optional(NOT_NEGATIVE),
    "penalty": optional(NOT_NEGATIVE),
    "repulsion": optional(NOT_NEGATIVE),
    "smoothness": optional(NOT_NEGATIVE),
    "n_landmarks": optional(COUNT),
    "variance": optional(PART),
}
"""What the estimators accept for options that are given, and for what else a method may use; None stands for the default."""


@dataclass(frozen=True, eq=False)
class Samples:
    """What is known of n samples.

    rows (n, d); labels (n, q); weights (n,)
    """

    n: int  # samples
    rows: Any = None  # (n, d): X, for methods that look at it
    labels: np.ndarray | None = None  # (n, q): 0/1, or a factor of a label kernel
    trace: float | None = None  # of the kernel X X'; None: worked out from the rows
    center: bool = True  # take rows and labels less their means
    weights: np.ndarray | None = None  # (n,): how often every sample counts, above 0; None: once each

    @property
    def Y(self) -> np.ndarray:
        """The labels as given. Raises ValueError where there are none."""
        if self.labels is None:
            raise UserError("this method learns from labels; pass y")
        return self.labels

    @property
    def factor(self) -> np.ndarray:
        """The label factor, centered where the samples are."""
        return self.Y - self.mean(self.Y) if self.center else self.Y

    @property
    def size(self) -> float:
        """Sum of the weights: the number of samples, each as often as it counts."""
        return self.n if self.weights is None else float(self.weights.sum())

    def total(self, T: np.ndarray) -> np.ndarray:
        """Add up rows, each as often as it counts.

        T (n, ...) -> (...)
        """
        return np.asarray(T.sum(axis=0) if self.weights is None else self.weights @ T)

    def mean(self, T: np.ndarray) -> np.ndarray:
        """Average rows, each as often as it counts.

        T (n, ...) -> (...)
        """
        return np.asarray(T.mean(axis=0) if self.weights is None else self.total(T) / self.size)

    def rooted(self, T: np.ndarray) -> np.ndarray:
        """Multiply rows by the roots of their weights, so that plain products of them are weighted ones.

        T (n, q) -> (n, q)
        """
        return T if self.weights is None else np.sqrt(self.weights)[:, None] * T

    @property
    def label_scale(self) -> float:
        """tr K / tr K_Y, which gives both kernels the same trace; 0 where the labels are constant."""
        factor = self.rooted(self.factor)
        own = float(np.einsum("ij,ij->", factor, factor))
        trace = self._spread() if self.trace is None else self.trace
        return trace / own if own > 0 else 0.0

    def _spread(self) -> float:
        """Sum of the squares of the rows, less their mean where they are centered."""
        values = self.rows.data if scipy.sparse.issparse(self.rows) else self.rows
        if not self.center:
            return float(np.vdot(values, values))
        mean = np.asarray(self.rows.mean(axis=0), np.float64).ravel()
        if scipy.sparse.issparse(self.rows):
            return float(np.vdot(values, values) - self.n * (mean @ mean))
        return float(np.square(values - mean).sum())

    @property
    def counts(self) -> np.ndarray:
        """m: labels of every sample."""
        return self.Y.sum(axis=1)

    @property
    def sizes(self) -> np.ndarray:
        """n_c: samples of every label, at least 1."""
        return np.maximum(self.Y.sum(axis=0), 1.0)

    def members(self) -> Iterator[tuple[int, np.ndarray]]:
        """Go over the labels that have samples."""
        for label in range(self.Y.shape[1]):
            own = np.flatnonzero(self.Y[:, label])
            if len(own):
                yield label, own

    def labeled(self) -> tuple[Samples, np.ndarray]:
        """Select the samples that have labels."""
        index = np.flatnonzero(self.Y.any(axis=1))
        return replace(self, n=len(index), rows=self.rows[index], labels=self.Y[index]), index
