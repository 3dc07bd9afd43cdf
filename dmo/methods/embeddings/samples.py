"""What the methods of the catalog are given: the samples, and options of which each uses its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from dmo.errors import UserError
from dmo.graphs.adjacency import Mode
from dmo.graphs.search import Metric


@dataclass(frozen=True)
class Options:
    """What the methods may use.

    `ridge` c; `mixing`: share of the labels, of the features 1 - mixing; `shrinkage` of a covariance towards I;
    `n_neighbors` k or k1 (None: 15, or all samples of the class), `n_repelled` k2; `weight`: a kind of `graphs.weigh` or
    an n x n matrix; `bandwidth` of Gaussian weights; `adjacency`: the mode of `graphs.adjacency`; `metric`;
    `regularization` of reconstruction weights; `penalty` of the within-class scatter; `repulsion`: weight of the pairs
    that are driven apart; `smoothness` of the Laplacian term; `supervised` and `unsupervised`: the methods of a mix.
    """

    ridge: float = 1e-3
    mixing: float = 0.5
    shrinkage: float = 0.5
    n_neighbors: int | None = None
    n_repelled: int | None = None
    weight: Any = "constant"
    bandwidth: float | str = "mean"
    adjacency: Mode = "union"
    metric: Metric = "euclidean"
    regularization: float = 1e-3
    penalty: float = 1.0
    repulsion: float = 1.0
    smoothness: float = 0.1
    supervised: str = "fda"
    unsupervised: str = "lpp"


@dataclass(frozen=True, eq=False)
class Samples:
    """What is known of n samples.

    `rows` X (n x d, dense or CSR), for methods that look at them; `labels` (n x q), 0/1 or a factor of a label kernel;
    `trace` of the kernel X X' (None: worked out from the rows); `center`: whether rows and labels are taken less their mean.
    """

    n: int
    rows: Any = None
    labels: np.ndarray | None = None
    trace: float | None = None
    center: bool = True

    @property
    def Y(self) -> np.ndarray:
        """The labels as given. Raises ValueError where there are none."""
        if self.labels is None:
            raise UserError("this method learns from labels; pass y")
        return self.labels

    @property
    def factor(self) -> np.ndarray:
        """The label factor, centered where the samples are."""
        return self.Y - self.Y.mean(axis=0) if self.center else self.Y

    @property
    def label_scale(self) -> float:
        """tr K / tr K_Y, which gives both kernels the same trace; 0 where the labels are constant."""
        own = float(np.einsum("ij,ij->", self.factor, self.factor))
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
        """Every label with its samples."""
        for label in range(self.Y.shape[1]):
            own = np.flatnonzero(self.Y[:, label])
            if len(own):
                yield label, own

    def labeled(self) -> tuple[Samples, np.ndarray]:
        """The samples that have labels, and their row numbers."""
        index = np.flatnonzero(self.Y.any(axis=1))
        return replace(self, n=len(index), rows=self.rows[index], labels=self.Y[index]), index
