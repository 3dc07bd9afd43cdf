"""Low-rank kernels as parameters and as transformers, and which of them suits a kernel.

Which approximation suits a kernel: Nystrom and MEKA of equal memory, compared on rows that neither has seen.

Low-rank kernels as parameter objects (`approximation=Nystrom(rank=500)`) and as scikit-learn transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo.blocks import Rows, Subset
from dmo.errors import UserError
from dmo.inputs import (
    COUNT,
    SEED,
    SINGLE,
    Named,
    Need,
    check_parameter,
    check_parameters,
    check_views,
    one_of,
    optional,
)
from dmo.kernels import Kernel, Linear, parse
from dmo.lowrank.feature_maps import FeatureMap, LinearMap
from dmo.lowrank.landmarks import Landmarks
from dmo.lowrank.meka import Basis, Link, meka
from dmo.lowrank.nystrom import LandmarkMap, fit_kernel, landmark_map, nystrom
from dmo.lowrank.sampling import Rank, check_rows, draw, sampled_error
from dmo.parameters import parametrized
from dmo.persistence import Persistent, with_prefix, without_prefix

log = logging.getLogger("dmo")
_LANDMARKS: tuple[Landmarks, ...] = ("rpcholesky", "kmeans")
_HELD = 512
# a relative error below which MEKA is not tried: at equal memory its moments have several times the columns
_RIGHT = 0.01


@dataclass(frozen=True)
class Choice:
    """The better of several feature maps, and the error of each.

    Attributes
    ----------
    feature_map : FeatureMap
        The best.
    errors : dict of str to dict
        Errors by name, see `sampled_error`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import choose
    >>> X = np.random.default_rng(0).normal(size=(300, 4))
    >>> sorted(choose("rbf", X, rank=20, clusters=3, random_state=0).errors)
    ['meka', 'nystrom-kmeans', 'nystrom-rpcholesky']
    """

    feature_map: FeatureMap
    errors: dict[str, dict[str, float]]


def choose(
    kernel: str | Kernel,
    X: Rows,
    rank: int | None = None,
    memory: float | None = None,
    clusters: int = 10,
    random_state: int | np.random.Generator | None = None,
    dtype: Any = np.float32,
    fit_rows: int | None = None,
) -> Choice:
    """Fit Nystrom and MEKA at equal memory and keep the one with the smallest error on kernel values of held-out rows.

    512 rows (at most a quarter) are held out of the fits; the errors are those of the kernel among them. MEKA is tried
    where that of Nystrom is above .01.

    Parameters
    ----------
    kernel : str or Kernel
        Fitted here where it is not.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    rank : int or None, default=None
        Of Nystrom, whose n x rank numbers are the memory of all (None: 1000).
    memory : float or None, default=None
        Bytes, in place of `rank`.
    clusters : int, default=10
        Of MEKA.
    random_state : int, Generator or None, default=None
        Seed.
    dtype : dtype, default=float32
        Of the factor rows.
    fit_rows : int or None, default=None
        As for `nystrom`.

    Returns
    -------
    Choice
        The best map; its errors have "nystrom-rpcholesky", "nystrom-kmeans" and, where it was tried, "meka".

    Raises
    ------
    UserError
        For NaN, no rows, a precomputed kernel, and for both `rank` and `memory`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import choose
    >>> X = np.random.default_rng(0).normal(size=(300, 4))
    >>> choose("rbf", X, rank=20, clusters=3, random_state=0).feature_map(X).shape[0]
    300
    """
    check_rows(kernel, X)
    if rank is not None and memory is not None:
        raise UserError(f"rank = {rank} and memory = {memory} both set the size; pass one of them")
    n, itemsize = X.shape[0], np.dtype(dtype).itemsize
    rank = int(check_parameter("rank", 1000 if rank is None else rank, COUNT))
    numbers = min(rank, n) * float(n) if memory is None else memory / itemsize
    rng = np.random.default_rng(random_state)
    held = draw(n, min(_HELD, n // 4), rng)
    rest = Subset(X, np.setdiff1d(np.arange(n), held, assume_unique=True))
    fitted, seed = fit_kernel(kernel, X, int(rng.integers(2**31))), int(rng.integers(2**31))
    allowed, bytes_each = max(1, int(numbers // n)), max(numbers, n + clusters**2) * itemsize
    maps: dict[str, FeatureMap] = {
        f"nystrom-{kind}": nystrom(fitted, rest, allowed, kind, seed, dtype, fit_rows=fit_rows) for kind in _LANDMARKS
    }
    probes = held if len(held) else None
    errors = {name: sampled_error(m, X, seed, probes) for name, m in maps.items()}
    if min(error["relative_error"] for error in errors.values()) > _RIGHT:
        maps["meka"] = meka(
            fitted, rest, clusters, "auto", random_state=seed, dtype=dtype, memory=bytes_each, fit_rows=fit_rows
        )
        errors["meka"] = sampled_error(maps["meka"], X, seed, probes)
    best = min(errors, key=lambda name: errors[name]["relative_error"])
    log.info(
        "approximation %s: relative errors %s", best, {k: round(e["relative_error"], 6) for k, e in errors.items()}
    )
    return Choice(maps[best].with_error(errors[best]), errors)


Precision = Literal["float32", "float64"]


class _Approximation(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Named, Persistent, BaseEstimator):
    """fit learns `map_` on one view; transform gives its factor rows."""

    _needs: ClassVar[dict[str, Need]] = {
        "kernel": Need(
            "needs a kernel, its name, or None for the estimator's; a number of landmarks is rank=...",
            lambda value: not isinstance(value, (int, float)),
        ),
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
        """Fit the map of some rows, for an estimator whose approximation this is.

        Parameters
        ----------
        kernel : str or Kernel
            Taken where this object has none.
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        random_state : int or None, default=None
            Taken where this object has none.
        center : bool, default=False
            Whether the factor rows will be centered; see `LinearMap`.

        Returns
        -------
        FeatureMap
            The map, in float32 where this object names no precision. A linear kernel of no more features than columns
            are allowed
            is its own factor, without error.
        """
        own, seed = self._own(kernel, random_state)
        if isinstance(own, Linear) and X.shape[1] <= self._columns():
            return LinearMap.of(own, X, center)
        return self._map(own, X, seed, np.dtype(self.precision or np.float32))

    def _own(self, kernel: str | Kernel, random_state: int | None) -> tuple[Kernel, int | None]:
        """The kernel and the seed, which are an estimator's where this has none."""
        check_parameters(self)
        seed = random_state if self.random_state is None else self.random_state
        return parse(kernel if self.kernel is None else self.kernel), seed

    def _map(self, kernel: Kernel, X: Rows, seed: int | None, dtype: np.dtype) -> FeatureMap:
        raise NotImplementedError

    def _columns(self) -> int:
        """Columns that factors may have where these are a given number, else 0."""
        rank = getattr(self, "rank", None)
        return rank if isinstance(rank, int) else 0

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the map from rows.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        y : object, default=None
            Ignored; here so that pipelines can pass it.

        Returns
        -------
        transformer
            This object, fitted.
        """
        rows = self._rows(X, True)
        own, seed = self._own("rbf", None)
        given = "float64" if rows.dtype == np.float64 else "float32"
        self.map_ = self._map(own, rows, seed, np.dtype(self.precision or given))
        self.error_ = self.map_.error
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Map rows to factor rows, block by block.

        Parameters
        ----------
        X : row source of shape (m, d)
            Rows, in chunks of whole rows.

        Returns
        -------
        ndarray of shape (m, rank)
            Factor rows F, with F F' close to the kernel.
        """
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


@parametrized
class Nystrom(_Approximation):
    """Nystrom approximation of a kernel, from its values at landmarks.

    Parameters
    ----------
    kernel : str, Kernel or None, default=None
        The kernel; None: that of the estimator whose `approximation` this is ("rbf" by itself).
    rank : int or "auto", default=1000
        Columns of the factor (landmarks), at most the number of samples; "auto": see `tol` and `memory`.
    landmarks : {"rpcholesky", "kmeans", "uniform"}, default="rpcholesky"
        Rows by randomly pivoted Cholesky, centers of k-means, or random rows.
    tol : float or None, default=None
        Relative Frobenius error that rank="auto" meets (None: 0.01).
    memory : float or None, default=None
        Bytes of the n x rank factor that rank="auto" stays within.
    fit_rows : int or None, default=None
        Rows that the map is learned from, a random sample where there are more; None: 16 per
        column (8 with "rpcholesky"), within 4096 to 20 000.
    precision : {"float32", "float64"} or None, default=None
        Of the factor rows; None: as X by itself, float32 as an `approximation`.
    random_state : int or None, default=None
        Seed of landmarks and samples; None: the estimator's.
    solver : {"direct", "cg", "auto"}, default="direct"
        Of a `MultiViewRidge`: the r x r system of the factor rows, or regression on the kernel values at the landmarks, by
        their normal equations or by conjugate gradients, see `dmo.methods.landmark_ridge`: of landmarks that are not near
        each other, in half of the time and less, of others in several times as much. Label sets then come from a further
        fit of a part of the rows, and a sweep fits every setting by itself; partial_fit and other estimators need factor
        rows, and refuse. "auto": "cg" where nothing but scores is asked for, kernel values fit in memory, and the landmarks'
        kernel says that it is faster; else "direct".

    Attributes
    ----------
    map_ : FeatureMap
        The fitted map.
    error_ : dict
        Its sampled errors, see `dmo.lowrank.sampled_error`.

    References
    ----------
    Williams, Seeger 2001; landmarks: Zhang, Tsang, Kwok 2008 (k-means), Chen et al. 2025 (pivoted Cholesky).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from dmo import Nystrom
    >>> X, _ = load_digits(return_X_y=True)
    >>> model = Nystrom("rbf", rank=50, random_state=0).fit(X)
    >>> model.transform(X[:3]).shape, model.error_["relative_error"] < 0.05
    ((3, 50), True)
    """

    _needs: ClassVar[dict[str, Need]] = {**_Approximation._needs, "solver": one_of("direct", "cg", "auto")}

    kernel: Any = None
    rank: Rank = 1000
    landmarks: Landmarks = "rpcholesky"
    tol: float | None = None
    memory: float | None = None
    fit_rows: int | None = None
    precision: Precision | None = None
    random_state: int | None = None
    solver: Literal["direct", "cg", "auto"] = "direct"

    def _map(self, kernel: Kernel, X: Rows, seed: int | None, dtype: np.dtype) -> FeatureMap:
        return nystrom(kernel, X, self.rank, self.landmarks, seed, dtype, self.tol, self.memory, self.fit_rows)

    def landmark_map(self, kernel: str | Kernel, X: Rows, random_state: int | None = None) -> LandmarkMap:
        """Choose the landmarks for conjugate gradients.

        Parameters
        ----------
        kernel : str or Kernel
            Taken where this object has none.
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        random_state : int or None, default=None
            Taken where this object has none.

        Returns
        -------
        LandmarkMap
            Kernel values at them, in float32 where this object names no precision.
        """
        own, seed = self._own(kernel, random_state)
        return landmark_map(own, X, self.rank, self.landmarks, seed, self.precision or np.float32, self.fit_rows)  # type: ignore[arg-type]


@parametrized
class Meka(_Approximation):
    """Memory-efficient kernel approximation: a basis per cluster of rows, and links between clusters.

    Parameters
    ----------
    kernel : str, Kernel or None, default=None
        The kernel; None: that of the estimator whose `approximation` this is ("rbf" by itself).
    clusters : int, default=10
        Clusters of the rows; fewer where rows are alike.
    rank : int or "auto", default=128
        Average columns per cluster; "auto": see `tol` and `memory`.
    basis : {"block-row", "eigen"}, default="block-row"
        Of a cluster: singular vectors of its rows of the kernel, or eigenvectors of its own block.
    link : {"exact", "sampled"}, default="exact"
        Links between clusters from all their kernel values, or by least squares on a sample.
    eta : float in [0, 1), default=0.0
        Share of the links, those of the farthest pairs of clusters, that are set to zero.
    tol : float or None, default=None
        Relative Frobenius error that rank="auto" meets (None: 0.01).
    memory : float or None, default=None
        Bytes of bases and links that rank="auto" stays within.
    fit_rows : int or None, default=None
        Rows that the map is learned from, a random sample where there are more; None: 16 per column, within 4096 to
        20 000.
    precision : {"float32", "float64"} or None, default=None
        Of the factor rows; None: as X by itself, float32 as an `approximation`.
    random_state : int or None, default=None
        Seed of clusters, landmarks and samples; None: the estimator's.

    Attributes
    ----------
    map_ : FeatureMap
        The fitted map.
    error_ : dict
        Its sampled errors, see `dmo.lowrank.sampled_error`.

    References
    ----------
    Si, Hsieh, Dhillon 2014; see `dmo.lowrank.meka`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from dmo import Meka
    >>> X, _ = load_digits(return_X_y=True)
    >>> model = Meka("rbf", clusters=4, rank=20, random_state=0).fit(X[:500])
    >>> model.transform(X[:3]).shape
    (3, 80)
    """

    kernel: Any = None
    clusters: int = 10
    rank: Rank = 128
    basis: Basis = "block-row"
    link: Link = "exact"
    eta: float = 0.0
    tol: float | None = None
    memory: float | None = None
    fit_rows: int | None = None
    precision: Precision | None = None
    random_state: int | None = None

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


@parametrized
class BestLowRank(_Approximation):
    """Nystrom or MEKA, whichever approximates the kernel of held-out rows better at equal memory.

    MEKA is tried where the error of Nystrom is above .01.

    Parameters
    ----------
    kernel : str, Kernel or None, default=None
        The kernel; None: that of the estimator whose `approximation` this is ("rbf" by itself).
    rank : int or None, default=None
        Rank of Nystrom; n * rank numbers are the memory of both (None: 1000).
    memory : float or None, default=None
        Their memory in bytes, in place of `rank`.
    clusters : int, default=10
        Clusters of MEKA.
    fit_rows : int or None, default=None
        Rows that the map is learned from, a random sample where there are more; None: 16 per
        column (8 of Nystrom), within 4096 to 20 000.
    precision : {"float32", "float64"} or None, default=None
        Of the factor rows; None: as X by itself, float32 as an `approximation`.
    random_state : int or None, default=None
        Seed of clusters, landmarks and samples; None: the estimator's.

    Attributes
    ----------
    map_ : FeatureMap
        The fitted map.
    error_ : dict
        Its sampled errors, see `dmo.lowrank.sampled_error`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from dmo import BestLowRank
    >>> X, _ = load_digits(return_X_y=True)
    >>> model = BestLowRank("rbf", rank=40, clusters=4, random_state=0).fit(X[:500])
    >>> model.map_.kind in ("nystrom", "meka")
    True
    """

    kernel: Any = None
    rank: int | None = None
    memory: float | None = None
    clusters: int = 10
    fit_rows: int | None = None
    precision: Precision | None = None
    random_state: int | None = None

    def _map(self, kernel: Kernel, X: Rows, seed: int | None, dtype: np.dtype) -> FeatureMap:
        return choose(
            kernel, X, self.rank, self.memory, self.clusters, random_state=seed, dtype=dtype, fit_rows=self.fit_rows
        ).feature_map
