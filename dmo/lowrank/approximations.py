"""Low-rank approximations of kernels, and the choice between Nystrom and MEKA.

The classes are scikit-learn transformers. Kernel estimators also use these classes, for example as
`approximation=Nystrom(rank=500)`.
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
# Relative error of Nystrom below which MEKA is not tried. At equal memory, a MEKA factor has several times as many
# columns as a Nystrom factor, so that the Gram matrix of a MEKA factor is more expensive.
_RIGHT = 0.01


@dataclass(frozen=True)
class Choice:
    """Feature map with the smallest error, and the errors of all candidates.

    Attributes
    ----------
    feature_map : FeatureMap
        Feature map with the smallest error.
    errors : dict of str to dict
        Result of `sampled_error` for each candidate, by the name of the candidate.

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
    """Fit Nystrom and MEKA feature maps of equal size, and choose the map with the smallest error.

    The maps are fitted without 512 random rows, or without a quarter of the rows if X has fewer than 2048. The errors
    of the maps are estimated on the kernel matrix of the held-out rows. MEKA is tried only if the relative errors of
    both Nystrom maps are above 0.01.

    Parameters
    ----------
    kernel : str or Kernel
        Kernel to approximate, which is fitted on X if necessary.
    X : row source of shape (n, d)
        Samples as rows. Chunks must contain whole rows.
    rank : int or None, default=None
        Number of landmarks of the Nystrom maps, by default 1000. MEKA uses as much memory as the n x rank factor.
    memory : float or None, default=None
        Maximum size of the factor of each map in bytes, instead of `rank`.
    clusters : int, default=10
        Number of clusters of MEKA.
    random_state : int, Generator or None, default=None
        Seed for choosing held-out rows, landmarks and clusters.
    dtype : dtype, default=float32
        Data type of the factor rows.
    fit_rows : int or None, default=None
        Maximum number of rows for fitting each map, as in `nystrom`.

    Returns
    -------
    Choice
        The best map, and the errors of "nystrom-rpcholesky", "nystrom-kmeans" and, if MEKA was tried, "meka".

    Raises
    ------
    UserError
        If a row contains NaN or infinity, X is empty, the kernel is precomputed, or both `rank` and `memory` are given.

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
    """Base class of low-rank approximations of a kernel, which are transformers of one view."""

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
        """Fit the feature map that an estimator with this approximation uses.

        Parameters
        ----------
        kernel : str or Kernel
            Kernel of the estimator, which is used if the `kernel` of this object is None.
        X : row source of shape (n, d)
            Samples as rows. Chunks must contain whole rows.
        random_state : int or None, default=None
            Seed of the estimator, which is used if the `random_state` of this object is None.
        center : bool, default=False
            Whether the estimator centers the factor rows, which only affects a `LinearMap`.

        Returns
        -------
        FeatureMap
            Fitted feature map, with factor rows in float32 unless `precision` is set. If the factor may have at least
            as many columns as X has features, a linear kernel returns an exact `LinearMap` in float64.
        """
        own, seed = self._own(kernel, random_state)
        if isinstance(own, Linear) and X.shape[1] <= self._columns():
            return LinearMap.of(own, X, center)
        return self._map(own, X, seed, np.dtype(self.precision or np.float32))

    def _own(self, kernel: str | Kernel, random_state: int | None) -> tuple[Kernel, int | None]:
        """Return the kernel and the seed of this object, or the given kernel and seed if they are None."""
        check_parameters(self)
        seed = random_state if self.random_state is None else self.random_state
        return parse(kernel if self.kernel is None else self.kernel), seed

    def _map(self, kernel: Kernel, X: Rows, seed: int | None, dtype: np.dtype) -> FeatureMap:
        raise NotImplementedError

    def _columns(self) -> int:
        """Return the maximum number of columns of the factor if `rank` is an integer, otherwise 0."""
        rank = getattr(self, "rank", None)
        return rank if isinstance(rank, int) else 0

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the feature map.

        Parameters
        ----------
        X : row source of shape (n, d)
            Samples as rows. Chunks must contain whole rows.
        y : object, default=None
            Ignored. The parameter exists for compatibility with pipelines.

        Returns
        -------
        transformer
            The fitted transformer.
        """
        rows = self._rows(X, True)
        own, seed = self._own("rbf", None)
        given = "float64" if rows.dtype == np.float64 else "float32"
        self.map_ = self._map(own, rows, seed, np.dtype(self.precision or given))
        self.error_ = self.map_.error
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Map samples to rows of the factor.

        Parameters
        ----------
        X : row source of shape (m, d)
            Samples as rows. Chunks must contain whole rows.

        Returns
        -------
        ndarray of shape (m, rank)
            Factor F of the samples. The product F F' approximates their kernel matrix.
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
        Kernel to approximate. If None, a transformer uses "rbf", and an estimator uses its own kernel.
    rank : int or "auto", default=1000
        Number of landmarks and columns of the factor, at most the number of rows for fitting. With "auto", the number
        depends on `tol` and `memory`.
    landmarks : {"rpcholesky", "kmeans", "uniform"}, default="rpcholesky"
        Choice of landmarks. "rpcholesky" selects rows by randomly pivoted Cholesky, "kmeans" computes cluster centers,
        and "uniform" draws random rows.
    tol : float or None, default=None
        Relative error in the Frobenius norm to reach with rank="auto". If neither `tol` nor `memory` is given,
        the tolerance is 0.01.
    memory : float or None, default=None
        Maximum size of the n x rank factor in bytes, which requires rank="auto".
    fit_rows : int or None, default=None
        Maximum number of rows for fitting, drawn at random. The default is 20 000 with rank="auto". Otherwise,
        the default is 8 rows per landmark with "rpcholesky" or 16 with other landmarks, but from 4096 to 20 000 rows.
    precision : {"float32", "float64"} or None, default=None
        Data type of the factor rows. The default is float64 in a transformer of float64 data, and otherwise float32.
    random_state : int or None, default=None
        Seed for choosing landmarks and samples. By default, an estimator uses its own seed.
    solver : {"direct", "cg", "auto"}, default="direct"
        Solver of `MultiViewRidge`. "direct" solves the r x r system of the factor rows, where r is the rank. "cg"
        solves a regression on the kernel values at the landmarks, by normal equations or conjugate gradients. "cg"
        takes at most half as long as "direct" if the landmarks are far from each other, but several times as long if
        the landmarks are close. With "cg", predicting label sets requires an additional fit on part of the rows, and a
        hyperparameter sweep fits every candidate separately. `partial_fit` and other estimators do not support "cg",
        because they require factor rows. "auto" selects "cg" if only scores are required, the kernel values fit in
        memory, and the kernel matrix of the landmarks indicates that "cg" is faster. Otherwise, "auto" selects
        "direct".

    Attributes
    ----------
    map_ : FeatureMap
        Fitted feature map.
    error_ : dict
        Estimated approximation errors from `dmo.lowrank.sampled_error`.

    Notes
    -----
    The kernel matrix K of the samples is approximated from their kernel values C at the landmarks and the kernel matrix
    W of the landmarks:

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
        """Choose the landmarks for solver="cg".

        Parameters
        ----------
        kernel : str or Kernel
            Kernel of the estimator, which is used if the `kernel` of this object is None.
        X : row source of shape (n, d)
            Samples as rows. Chunks must contain whole rows.
        random_state : int or None, default=None
            Seed of the estimator, which is used if the `random_state` of this object is None.

        Returns
        -------
        LandmarkMap
            Map from samples to kernel values at the landmarks, in float32 unless `precision` is set.
        """
        own, seed = self._own(kernel, random_state)
        return landmark_map(own, X, self.rank, self.landmarks, seed, self.precision or np.float32, self.fit_rows)  # type: ignore[arg-type]


@parametrized
class Meka(_Approximation):
    r"""Memory-efficient kernel approximation (MEKA), with a basis for each cluster of samples.

    Parameters
    ----------
    kernel : str, Kernel or None, default=None
        Kernel to approximate. If None, a transformer uses "rbf", and an estimator uses its own kernel.
    clusters : int, default=10
        Number of clusters. Fewer clusters are used if X has too few distinct rows.
    rank : int or "auto", default=128
        Average number of basis vectors per cluster. With "auto", the number depends on `tol` and `memory`.
    basis : {"block-row", "eigen"}, default="block-row"
        Basis of a cluster. "block-row" uses left singular vectors of the kernel rows of the cluster. "eigen" uses
        eigenvectors of the kernel matrix within the cluster.
    link : {"exact", "sampled"}, default="exact"
        Computation of the matrices that link pairs of clusters. "exact" uses all kernel values between two clusters,
        and "sampled" uses least squares on sampled rows.
    eta : float in [0, 1), default=0.0
        Fraction of the cluster pairs whose links are set to zero. Pairs of centers with the smallest kernel values come
        first.
    tol : float or None, default=None
        Relative error in the Frobenius norm to reach with rank="auto". If neither `tol` nor `memory` is given,
        the tolerance is 0.01.
    memory : float or None, default=None
        Maximum size of the bases and links in bytes, which requires rank="auto".
    fit_rows : int or None, default=None
        Maximum number of rows for fitting, which are drawn at random. The default is 16 rows per column of the factor,
        but at least 4096 and at most 20 000 rows. With rank="auto", the default is 20 000.
    precision : {"float32", "float64"} or None, default=None
        Data type of the factor rows. The default is float64 in a transformer of float64 data, and otherwise float32.
    random_state : int or None, default=None
        Seed for choosing clusters, landmarks and samples. By default, an estimator uses its own seed.

    Attributes
    ----------
    map_ : FeatureMap
        Fitted feature map.
    error_ : dict
        Estimated approximation errors from `dmo.lowrank.sampled_error`.

    Notes
    -----
    The block of the kernel matrix K between clusters s and t is approximated by

    .. math:: K^{(s,t)} \approx W_s L_{st} W_t',

    where W_s and W_t are the bases of the clusters, and the matrix L_st links the two clusters.

    References
    ----------
    Si, Hsieh, Dhillon 2014.

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
    """Nystrom or MEKA approximation of a kernel, whichever has the smaller error on held-out rows.

    Nystrom and MEKA use the same amount of memory. MEKA is tried only if the relative error of Nystrom is above 0.01.

    Parameters
    ----------
    kernel : str, Kernel or None, default=None
        Kernel to approximate. If None, a transformer uses "rbf", and an estimator uses its own kernel.
    rank : int or None, default=None
        Number of Nystrom landmarks, by default 1000. MEKA uses as much memory as the n x rank Nystrom factor.
    memory : float or None, default=None
        Maximum size of the factor in bytes, instead of `rank`.
    clusters : int, default=10
        Number of clusters of MEKA.
    fit_rows : int or None, default=None
        Maximum number of rows for fitting, as for `Nystrom` and for `Meka` with rank="auto".
    precision : {"float32", "float64"} or None, default=None
        Data type of the factor rows. The default is float64 in a transformer of float64 data, and otherwise float32.
    random_state : int or None, default=None
        Seed for choosing clusters, landmarks and samples. By default, an estimator uses its own seed.

    Attributes
    ----------
    map_ : FeatureMap
        Fitted feature map.
    error_ : dict
        Estimated approximation errors from `dmo.lowrank.sampled_error`.

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
