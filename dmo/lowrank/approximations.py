"""Low-rank kernels as parameter objects and transformers, and the choice between Nystrom and MEKA.

The objects are parameters of estimators (`approximation=Nystrom(rank=500)`) and scikit-learn transformers. Nystrom and
MEKA are compared at equal memory on held-out rows.
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
# Relative error below which MEKA is not tried: at equal memory, its moments have several times as many columns.
_RIGHT = 0.01


@dataclass(frozen=True)
class Choice:
    """Best of several feature maps, with the errors of all.

    Attributes
    ----------
    feature_map : FeatureMap
        Map with the smallest error.
    errors : dict of str to dict
        Errors by name of the map, see `sampled_error`.

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

    512 rows (at most a quarter) are held out of the fits, and errors are estimated on the kernel of these rows. MEKA is
    tried only if the errors of both Nystrom maps are above 0.01.

    Parameters
    ----------
    kernel : str or Kernel
        Kernel. It is fitted on X if necessary.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    rank : int or None, default=None
        Rank of Nystrom (None: 1000). Its n x rank numbers are the memory limit of all maps.
    memory : float or None, default=None
        Memory limit in bytes, instead of `rank`.
    clusters : int, default=10
        Number of clusters of MEKA.
    random_state : int, Generator or None, default=None
        Seed.
    dtype : dtype, default=float32
        Type of the factor rows.
    fit_rows : int or None, default=None
        Maximum number of rows for fitting, see `nystrom`.

    Returns
    -------
    Choice
        The best map, and the errors of "nystrom-rpcholesky", "nystrom-kmeans" and, if it was tried, "meka".

    Raises
    ------
    UserError
        For NaN, an empty X, a precomputed kernel, or if both `rank` and `memory` are given.

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
    """Base class of approximations: `fit` learns `map_` on one view, `transform` returns its factor rows."""

    _needs: ClassVar[dict[str, Need]] = {
        "kernel": Need(
            "needs a kernel, its name, or None for the estimator's kernel; a number of landmarks is rank=...",
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
        """Fit the feature map of rows, for an estimator with this approximation.

        Parameters
        ----------
        kernel : str or Kernel
            Kernel, used if this object has none.
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        random_state : int or None, default=None
            Seed, used if this object has none.
        center : bool, default=False
            Whether the estimator centers the factor rows; see `LinearMap`.

        Returns
        -------
        FeatureMap
            Fitted map, in float32 unless this object sets the precision. A linear kernel needs no approximation if X
            has no more features than the factor may have columns; it returns an exact `LinearMap`.
        """
        own, seed = self._own(kernel, random_state)
        if isinstance(own, Linear) and X.shape[1] <= self._columns():
            return LinearMap.of(own, X, center)
        return self._map(own, X, seed, np.dtype(self.precision or np.float32))

    def _own(self, kernel: str | Kernel, random_state: int | None) -> tuple[Kernel, int | None]:
        """Return the kernel and seed of this object, or those of the estimator if they are None."""
        check_parameters(self)
        seed = random_state if self.random_state is None else self.random_state
        return parse(kernel if self.kernel is None else self.kernel), seed

    def _map(self, kernel: Kernel, X: Rows, seed: int | None, dtype: np.dtype) -> FeatureMap:
        raise NotImplementedError

    def _columns(self) -> int:
        """Return the maximum number of columns of factors if `rank` is an integer, otherwise 0."""
        rank = getattr(self, "rank", None)
        return rank if isinstance(rank, int) else 0

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the feature map from rows.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        y : object, default=None
            Ignored; accepted for pipelines.

        Returns
        -------
        transformer
            This object.
        """
        rows = self._rows(X, True)
        own, seed = self._own("rbf", None)
        given = "float64" if rows.dtype == np.float64 else "float32"
        self.map_ = self._map(own, rows, seed, np.dtype(self.precision or given))
        self.error_ = self.map_.error
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Compute factor rows block by block.

        Parameters
        ----------
        X : row source of shape (m, d)
            Rows, in chunks of whole rows.

        Returns
        -------
        ndarray of shape (m, rank)
            Factor rows F, such that F F' approximates the kernel.
        """
        check_is_fitted(self)
        return self.map_(self._rows(X, False))

    def _rows(self, X: Any, reset: bool) -> Rows:
        views = check_views(self, X, reset)
        if list(views) != [SINGLE]:
            raise UserError(f"expects one array, got views {list(views)}; fit one object per view")
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
    r"""Nystrom approximation of a kernel from its values at landmarks.

    Parameters
    ----------
    kernel : str, Kernel or None, default=None
        Kernel. None: the kernel of the estimator with this `approximation`, or "rbf" in a transformer.
    rank : int or "auto", default=1000
        Number of landmarks and columns of the factor, at most the number of samples. "auto" uses `tol` and `memory`.
    landmarks : {"rpcholesky", "kmeans", "uniform"}, default="rpcholesky"
        Choice of landmarks: rows by randomly pivoted Cholesky, k-means centers, or random rows.
    tol : float or None, default=None
        Relative Frobenius error to reach with rank="auto" (None: 0.01).
    memory : float or None, default=None
        Maximum size of the n x rank factor in bytes with rank="auto".
    fit_rows : int or None, default=None
        Maximum number of rows for fitting; if there are more, a random sample is used. None: 16 per column (8 with
        "rpcholesky"), but at least 4096 and at most 20 000.
    precision : {"float32", "float64"} or None, default=None
        Type of the factor rows. None: the type of X in a transformer, float32 as an `approximation`.
    random_state : int or None, default=None
        Seed of landmarks and samples. None: the seed of the estimator.
    solver : {"direct", "cg", "auto"}, default="direct"
        Solver of `MultiViewRidge`. "direct" solves the r x r system of the factor rows. "cg" solves a regression on the
        kernel values at the landmarks, by normal equations or conjugate gradients (see `dmo.methods.landmark_ridge`).
        It takes at most half the time if landmarks are not near each other, otherwise several times as much. With
        "cg", label sets require an additional fit on part of the rows, and a sweep fits every candidate separately.
        `partial_fit` and other estimators require factor rows and raise an error. "auto" selects "cg" if only scores
        are required, kernel values fit in memory, and the kernel of the landmarks indicates that "cg" is faster;
        otherwise "direct".

    Attributes
    ----------
    map_ : FeatureMap
        The fitted map.
    error_ : dict
        Estimated errors, see `dmo.lowrank.sampled_error`.

    Notes
    -----
    With the kernel values C (n x m) between samples and m landmarks, and W (m x m) between landmarks,

    .. math:: K \approx C W^{+} C'.

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
        """Choose landmarks for solver="cg".

        Parameters
        ----------
        kernel : str or Kernel
            Kernel, used if this object has none.
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.
        random_state : int or None, default=None
            Seed, used if this object has none.

        Returns
        -------
        LandmarkMap
            Map to kernel values at the landmarks, in float32 unless this object sets the precision.
        """
        own, seed = self._own(kernel, random_state)
        return landmark_map(own, X, self.rank, self.landmarks, seed, self.precision or np.float32, self.fit_rows)  # type: ignore[arg-type]


@parametrized
class Meka(_Approximation):
    r"""Memory-efficient kernel approximation (MEKA): a basis per cluster of rows, and links between clusters.

    Parameters
    ----------
    kernel : str, Kernel or None, default=None
        Kernel. None: the kernel of the estimator with this `approximation`, or "rbf" in a transformer.
    clusters : int, default=10
        Number of clusters of the rows. Fewer are used if rows are similar.
    rank : int or "auto", default=128
        Average number of columns per cluster. "auto" uses `tol` and `memory`.
    basis : {"block-row", "eigen"}, default="block-row"
        Basis of a cluster: singular vectors of its rows of the kernel, or eigenvectors of its diagonal block.
    link : {"exact", "sampled"}, default="exact"
        Links between clusters from all their kernel values, or by least squares on a sample.
    eta : float in [0, 1), default=0.0
        Fraction of the links that are set to zero, starting with the most distant pairs of clusters.
    tol : float or None, default=None
        Relative Frobenius error to reach with rank="auto" (None: 0.01).
    memory : float or None, default=None
        Maximum size of bases and links in bytes with rank="auto".
    fit_rows : int or None, default=None
        Maximum number of rows for fitting; if there are more, a random sample is used. None: 16 per column, but at
        least 4096 and at most 20 000.
    precision : {"float32", "float64"} or None, default=None
        Type of the factor rows. None: the type of X in a transformer, float32 as an `approximation`.
    random_state : int or None, default=None
        Seed of clusters, landmarks and samples. None: the seed of the estimator.

    Attributes
    ----------
    map_ : FeatureMap
        The fitted map.
    error_ : dict
        Estimated errors, see `dmo.lowrank.sampled_error`.

    Notes
    -----
    The kernel block of the clusters s and t is approximated by

    .. math:: K^{(s,t)} \approx W_s L_{st} W_t',

    where W_s is the basis of cluster s, and the matrix L_st links two clusters.

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
    """Nystrom or MEKA, selected by the approximation error on held-out rows at equal memory.

    MEKA is tried only if the error of Nystrom is above 0.01.

    Parameters
    ----------
    kernel : str, Kernel or None, default=None
        Kernel. None: the kernel of the estimator with this `approximation`, or "rbf" in a transformer.
    rank : int or None, default=None
        Rank of Nystrom (None: 1000). The size of n * rank numbers is the memory limit of both.
    memory : float or None, default=None
        Memory limit in bytes, instead of `rank`.
    clusters : int, default=10
        Number of clusters of MEKA.
    fit_rows : int or None, default=None
        Maximum number of rows for fitting; if there are more, a random sample is used. None: 16 per column (8 for
        Nystrom with "rpcholesky" landmarks), but at least 4096 and at most 20 000.
    precision : {"float32", "float64"} or None, default=None
        Type of the factor rows. None: the type of X in a transformer, float32 as an `approximation`.
    random_state : int or None, default=None
        Seed of clusters, landmarks and samples. None: the seed of the estimator.

    Attributes
    ----------
    map_ : FeatureMap
        The fitted map.
    error_ : dict
        Estimated errors, see `dmo.lowrank.sampled_error`.

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
