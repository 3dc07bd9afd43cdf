"""Low-rank kernels as parameter objects (`approximation=Nystrom(rank=500)`) and as scikit-learn transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import Rows
from dmo.errors import UserError
from dmo.kernels import Kernel, Linear, parse
from dmo.lowrank import FeatureMap, choose, meka, nystrom
from dmo.lowrank.landmarks import Landmarks
from dmo.lowrank.linear_map import LinearMap
from dmo.lowrank.meka_fit import Basis, Link
from dmo.lowrank.rank_selection import Rank
from dmo.persistence import Persistent, with_prefix, without_prefix
from dmo.validation import SEED, SINGLE, Named, Need, check_parameters, check_views, one_of, optional

Precision = Literal["float32", "float64"]


class _Approximation(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Named, Persistent, BaseEstimator):
    """fit learns `map_` on one view; transform gives its factor rows."""

    _needs: ClassVar[dict[str, Need]] = {
        "precision": optional(one_of("float32", "float64")),
        "random_state": SEED,
    }

    kernel: Any
    precision: Precision | None
    random_state: int | None
    map_: FeatureMap

    def feature_map(
        self, kernel: str | Kernel, X: Rows, random_state: int | None = None, center: bool = False
    ) -> FeatureMap:
        """The map of rows X (row source, n x d): `kernel`, `random_state` and float32 where this object has none.

        A linear kernel of no more features than columns are allowed is its own factor, without error; `center`: see
        `LinearMap`.
        """
        own = parse(kernel if self.kernel is None else self.kernel)
        if isinstance(own, Linear) and X.shape[1] <= self._columns():
            return LinearMap.of(own, X, center)
        return self._fit_map(kernel, X, random_state, np.dtype(np.float32))

    def _fit_map(self, kernel: str | Kernel, X: Rows, random_state: int | None, dtype: np.dtype) -> FeatureMap:
        check_parameters(self)
        seed = random_state if self.random_state is None else self.random_state
        own = parse(kernel if self.kernel is None else self.kernel)
        return self._map(own, X, seed, np.dtype(self.precision or dtype))

    def _map(self, kernel: Kernel, X: Rows, seed: int | None, dtype: np.dtype) -> FeatureMap:
        raise NotImplementedError

    def _columns(self) -> int:
        """Columns that factors may have where these are a given number, else 0."""
        rank = getattr(self, "rank", None)
        return rank if isinstance(rank, int) else 0

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the map from rows X (n x d, any row source); `y` is not used."""
        rows = self._rows(X, True)
        self.map_ = self._fit_map("rbf", rows, None, np.dtype("float64" if rows.dtype == np.float64 else "float32"))
        self.error_ = self.map_.error
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Factor rows (m x rank) of rows X (m x d, any row source), block by block."""
        check_is_fitted(self)
        return self.map_(self._rows(X, False))

    def _rows(self, X: Any, reset: bool) -> Rows:
        views = check_views(self, X, reset)
        if list(views) != [SINGLE]:
            raise UserError(f"takes one array, got views {list(views)}; fit one object per view")
        return views[SINGLE]

    @property
    def _n_features_out(self) -> int:
        return self.map_.rank

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = self.map_.to_arrays()
        return with_prefix("map", arrays), {"map": meta}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.map_ = FeatureMap.from_arrays(without_prefix("map", arrays), meta["map"])
        self.error_ = self.map_.error

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class Nystrom(_Approximation):
    """Nystrom approximation of a kernel.

    Parameters
    ----------
    kernel : a kernel or its name, None: the kernel of the estimator whose `approximation` this is ("rbf" by itself)
    rank : int or "auto"
        Columns of the factor (landmarks), at most the number of samples; "auto": see `tol` and `memory`.
    landmarks : "rpcholesky" (randomly pivoted Cholesky), "kmeans" (centers) or "uniform"
    tol : float, relative Frobenius error that rank="auto" meets (default 0.01)
    memory : float, bytes of the n x rank factor that rank="auto" stays within
    fit_rows : int, rows that the map is learnt from, a random sample where there are more; None: 16 per column, within
        8192 to 20 000
    precision : "float32" or "float64" factor rows; None: as X by itself, float32 as an `approximation`
    random_state : int, None: the estimator's

    Attributes: `map_` (FeatureMap), `error_` (its sampled errors). See `dmo.lowrank.nystrom`.
    """

    def __init__(
        self,
        kernel: Any = None,
        rank: Rank = 1000,
        landmarks: Landmarks = "rpcholesky",
        tol: float | None = None,
        memory: float | None = None,
        fit_rows: int | None = None,
        precision: Precision | None = None,
        random_state: int | None = None,
    ):
        self.kernel = kernel
        self.rank = rank
        self.landmarks = landmarks
        self.tol = tol
        self.memory = memory
        self.fit_rows = fit_rows
        self.precision = precision
        self.random_state = random_state

    def _map(self, kernel: Kernel, X: Rows, seed: int | None, dtype: np.dtype) -> FeatureMap:
        return nystrom(kernel, X, self.rank, self.landmarks, seed, dtype, self.tol, self.memory, self.fit_rows)


class Meka(_Approximation):
    """Memory-efficient kernel approximation: a basis of `rank` columns per cluster and a matrix that links clusters.

    Parameters
    ----------
    kernel : as in `Nystrom`
    clusters : int, number of clusters S
    rank : int or "auto"
        Average rank per cluster, in proportion to the clusters' sizes; S * rank is at most the number of samples.
    basis : "block-row" (the best basis for all links of a cluster) or "eigen" (for the cluster itself)
    link : "exact" (projection, n^2 / 2 kernel values) or "sampled" (least squares, n 5 S rank kernel values)
    eta : float in [0, 1), share of the links between clusters that is set to zero, the farthest first
    tol, memory, fit_rows, precision, random_state : as in `Nystrom`

    Attributes: `map_` (FeatureMap), `error_` (its sampled errors). See `dmo.lowrank.meka`.
    """

    def __init__(
        self,
        kernel: Any = None,
        clusters: int = 10,
        rank: Rank = 128,
        basis: Basis = "block-row",
        link: Link = "exact",
        eta: float = 0.0,
        tol: float | None = None,
        memory: float | None = None,
        fit_rows: int | None = None,
        precision: Precision | None = None,
        random_state: int | None = None,
    ):
        self.kernel = kernel
        self.clusters = clusters
        self.rank = rank
        self.basis = basis
        self.link = link
        self.eta = eta
        self.tol = tol
        self.memory = memory
        self.fit_rows = fit_rows
        self.precision = precision
        self.random_state = random_state

    def _columns(self) -> int:
        return self.clusters * self.rank if isinstance(self.rank, int) else 0

    def _map(self, kernel: Kernel, X: Rows, seed: int | None, dtype: np.dtype) -> FeatureMap:
        return meka(
            kernel,
            X,
            self.clusters,
            self.rank,
            self.basis,
            self.link,
            eta=self.eta,
            random_state=seed,
            dtype=dtype,
            tol=self.tol,
            memory=self.memory,
            fit_rows=self.fit_rows,
        )


class BestLowRank(_Approximation):
    """Nystrom or MEKA, whichever approximates the kernel of held-out rows better at equal memory.

    Parameters
    ----------
    kernel : as in `Nystrom`
    rank : int, rank of Nystrom; n * rank numbers are the memory of both (default 1000)
    memory : float, their memory in bytes, in place of `rank`
    clusters : int, clusters of MEKA
    fit_rows, precision, random_state : as in `Nystrom`

    Attributes: `map_` (FeatureMap), `error_` (its sampled errors). See `dmo.lowrank.choose`.
    """

    def __init__(
        self,
        kernel: Any = None,
        rank: int | None = None,
        memory: float | None = None,
        clusters: int = 10,
        fit_rows: int | None = None,
        precision: Precision | None = None,
        random_state: int | None = None,
    ):
        self.kernel = kernel
        self.rank = rank
        self.memory = memory
        self.clusters = clusters
        self.fit_rows = fit_rows
        self.precision = precision
        self.random_state = random_state

    def _map(self, kernel: Kernel, X: Rows, seed: int | None, dtype: np.dtype) -> FeatureMap:
        return choose(
            kernel, X, self.rank, self.memory, self.clusters, random_state=seed, dtype=dtype, fit_rows=self.fit_rows
        ).feature_map
