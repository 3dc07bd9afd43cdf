"""Kernels of feature vectors, such as the Gaussian, chi-square and polynomial kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from dmo import blocks
from dmo.devices import foreign, to_numpy
from dmo.errors import UserError
from dmo.kernels import loops, portable, rows
from dmo.kernels.base import LOG2_E, BandwidthKernel, CenteredKernel, RowKernel
from dmo.kernels.pairs import EntryMap, RandomState
from dmo.kernels.rows import Prepared


@dataclass(frozen=True)
class RBF(CenteredKernel):
    """Gaussian kernel exp(-|x - y|^2 / (2 sigma^2)), where sigma = scale * bandwidth.

    Parameters
    ----------
    bandwidth : float or {"mean", "median", "mean-fifth-neighbor"}, default="mean"
        Bandwidth of the kernel. With a string, `fit` sets the bandwidth to the mean or median distance of all pairs of
        rows, or to the mean distance to the fifth nearest neighbor.
    normalize : {"l1", "l2", "hellinger"} or None, default=None
        Normalization of the rows by `normalize_rows` before the kernel is computed.
    scale : float, default=1.0
        Positive factor by which the bandwidth is multiplied.
    offset : tuple of float of length d, or None, default=None
        Vector that is subtracted from normalized dense rows, to reduce floating-point error if the rows are far from
        the origin. By default, `fit` computes the offset from the training rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import RBF
    >>> RBF(bandwidth=1.0)(np.array([[0.0], [1.0]]))[0].round(2).tolist()
    [1.0, 0.61...]
    """

    name = "rbf"
    pair = "dot"

    def _map(self) -> EntryMap:
        return EntryMap(loops.GAUSSIAN, LOG2_E / self.width**2)

    def _check_digits(self, p: Prepared) -> None:
        if isinstance(self.bandwidth, str) or self.offset is not None or not len(p):
            return
        eps = (foreign(p.values) or np).finfo(p.dtype).eps
        lost = eps / 2 * float(np.median(to_numpy(p.norms))) / self.width**2
        if lost > 1e-3:
            raise UserError(
                f"rbf: rows lie so far from the origin that {p.dtype} loses the distances (error about "
                f"{lost:.0e}); fit the kernel on dense rows, or use dtype float64"
            )


@dataclass(frozen=True)
class Exponential(CenteredKernel):
    """Exponential kernel exp(-|x - y|_2 / b) of the Euclidean distance, where b = scale * bandwidth.

    Parameters
    ----------
    bandwidth : float or {"mean", "median", "mean-fifth-neighbor"}, default="mean"
        Bandwidth of the kernel. With a string, `fit` sets the bandwidth to the mean or median distance of all pairs of
        rows, or to the mean distance to the fifth nearest neighbor.
    normalize : {"l1", "l2", "hellinger"} or None, default=None
        Normalization of the rows by `normalize_rows` before the kernel is computed.
    scale : float, default=1.0
        Positive factor by which the bandwidth is multiplied.
    offset : tuple of float of length d, or None, default=None
        Vector that is subtracted from normalized dense rows, to reduce floating-point error if the rows are far from
        the origin. By default, `fit` computes the offset from the training rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Exponential
    >>> Exponential(bandwidth=1.0)(np.array([[0.0], [1.0]]))[0].round(2).tolist()
    [1.0, 0.37...]
    """

    name = "exponential"
    pair = "l2"


@dataclass(frozen=True)
class Laplacian(BandwidthKernel):
    """Laplacian kernel exp(-|x - y|_1 / b) of the L1 distance, where b = scale * bandwidth.

    Parameters
    ----------
    bandwidth : float or {"mean", "median", "mean-fifth-neighbor"}, default="mean"
        Bandwidth of the kernel. With a string, `fit` sets the bandwidth to the mean or median distance of all pairs of
        rows, or to the mean distance to the fifth nearest neighbor.
    normalize : {"l1", "l2", "hellinger"} or None, default=None
        Normalization of the rows by `normalize_rows` before the kernel is computed.
    scale : float, default=1.0
        Positive factor by which the bandwidth is multiplied.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Laplacian
    >>> Laplacian(bandwidth=1.0)(np.array([[0.0], [1.0]]))[0].round(2).tolist()
    [1.0, 0.37...]
    """

    name = "laplacian"
    pair = "l1"


@dataclass(frozen=True)
class ChiSquare(BandwidthKernel):
    """Chi-square kernel exp(-chi2(x, y) / b) of non-negative rows, where b = scale * bandwidth.

    The chi-square distance chi2(x, y) is the sum of (x_i - y_i)^2 / (x_i + y_i) over the features. This kernel is
    positive definite, in contrast to exp(-chi2^2 / (2 b^2)).

    Parameters
    ----------
    bandwidth : float or {"mean", "median", "mean-fifth-neighbor"}, default="mean"
        Bandwidth of the kernel. With a string, `fit` sets the bandwidth to the mean or median distance of all pairs of
        rows, or to the mean distance to the fifth nearest neighbor.
    normalize : {"l1", "l2", "hellinger"} or None, default=None
        Normalization of the rows by `normalize_rows` before the kernel is computed.
    scale : float, default=1.0
        Positive factor by which the bandwidth is multiplied.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import ChiSquare
    >>> ChiSquare(bandwidth=1.0)(np.array([[0.0], [1.0]]))[0].round(2).tolist()
    [1.0, 0.37...]
    """

    name = "chi2"
    pair = "chi2"
    non_negative = True


@dataclass(frozen=True)
class Intersection(RowKernel):
    """Histogram intersection kernel of non-negative rows, which is the sum of min(x_i, y_i) over the features.

    Parameters
    ----------
    normalize : {"l1", "l2", "hellinger"} or None, default=None
        Normalization of the rows by `normalize_rows` before the kernel is computed.

    References
    ----------
    Swain, Ballard 1991.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Intersection
    >>> Intersection()(np.array([[0.5, 0.5], [1.0, 0.0]]))[0].round(2).tolist()
    [1.0, 0.5]
    """

    normalize: str | None = None
    name = "intersection"
    pair = "min"
    non_negative = True


@dataclass(frozen=True)
class Linear(RowKernel):
    """Linear kernel x'y.

    Parameters
    ----------
    normalize : {"l1", "l2", "hellinger"} or None, default=None
        Normalization of the rows by `normalize_rows` before the kernel is computed.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Linear
    >>> Linear()(np.array([[1.0, 2.0], [3.0, 0.0]]))[0].round(2).tolist()
    [5.0, 3.0]
    """

    normalize: str | None = None
    name = "linear"
    pair = "dot"


@dataclass(frozen=True)
class Euclidean(RowKernel):
    """Euclidean distance |x - y|, which replaces a kernel in relation features.

    Relation features of a sample are its distances to a set of seed samples. The Euclidean distance is not positive
    semidefinite, so it cannot replace a kernel elsewhere.

    Parameters
    ----------
    normalize : {"l1", "l2", "hellinger"} or None, default=None
        Normalization of the rows by `normalize_rows` before the kernel is computed.

    References
    ----------
    Mu, Goulermas, Tsujii, Ananiadou 2012, section 3.5.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Euclidean
    >>> Euclidean()(np.array([[0.0, 0.0], [3.0, 4.0]]))[0].round(2).tolist()
    [0.0, 5.0]
    """

    normalize: str | None = None
    name = "euclidean"
    pair = "l2"

    def diagonal(self, x: Prepared) -> np.ndarray:
        return np.zeros(len(x), x.dtype)


@dataclass(frozen=True)
class Cosine(RowKernel):
    """Cosine similarity x'y / (|x| |y|), defined as 0 if x or y is zero.

    Parameters
    ----------
    normalize : {"l1", "l2", "hellinger"} or None, default=None
        Normalization of the rows by `normalize_rows` before the kernel is computed.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Cosine
    >>> Cosine()(np.array([[1.0, 0.0], [0.0, 2.0]]))[0].round(2).tolist()
    [1.0, 0.0]
    """

    normalize: str | None = None
    name = "cosine"
    scalable = False
    pair = "dot"

    def _prepare(self, X: blocks.Rows, dtype: DTypeLike, names: np.ndarray | None) -> Prepared:
        p = super()._prepare(X, dtype, names)
        if foreign(p.values) is not None:
            return portable.of_length_1(p)
        length = np.sqrt(p.norms)
        weights = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0).astype(p.dtype)
        values = p.values
        if scipy.sparse.issparse(values):
            values.data *= np.repeat(weights, np.diff(values.indptr))
        else:
            values *= weights[:, None]
        return replace(p, norms=(length > 0).astype(np.float64))


@dataclass(frozen=True)
class Polynomial(RowKernel):
    """Polynomial kernel (gamma x'y + coef0)^degree.

    Parameters
    ----------
    degree : int, default=3
        Degree of the polynomial, at least 1.
    gamma : float or None, default=None
        Positive factor on the inner product x'y. By default, `fit` sets it to 1 / number of features.
    coef0 : float, default=1.0
        Constant term, at least 0. With a negative constant, the kernel may not be positive semidefinite.
    normalize : {"l1", "l2", "hellinger"} or None, default=None
        Normalization of the rows by `normalize_rows` before the kernel is computed.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Polynomial
    >>> Polynomial(degree=2, gamma=1.0)(np.array([[1.0], [2.0]]))[0].round(2).tolist()
    [4.0, 9.0]
    """

    degree: int = 3
    gamma: float | None = None
    coef0: float = 1.0
    normalize: str | None = None
    name = "polynomial"
    pair = "dot"

    def __post_init__(self) -> None:
        super().__post_init__()
        if int(self.degree) != self.degree or self.degree < 1:
            raise UserError(f"polynomial: degree must be a whole number >= 1, got {self.degree!r}")
        if self.gamma is not None and not (np.isfinite(self.gamma) and self.gamma > 0):
            raise UserError(f"polynomial: gamma must be a positive number or None, got {self.gamma!r}")
        if not (np.isfinite(self.coef0) and self.coef0 >= 0):
            raise UserError(f"polynomial: coef0 must be a number >= 0, got {self.coef0!r}")

    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        """Set `gamma` to 1 / number of features if `gamma` is None.

        Parameters
        ----------
        X : row source of shape (n, d)
            Training rows, of which only the number of features is used.
        random_state : int, Generator, RandomState or None, default=None
            Ignored.
        sample_weight : ndarray of shape (n,) or None, default=None
            Ignored.

        Returns
        -------
        Kernel
            The fitted kernel.
        """
        return self._prefit(rows.source(X), None)

    def _prefit(self, X: blocks.Rows, index: np.ndarray | None, names: np.ndarray | None = None) -> Self:
        return self if self.gamma is not None else replace(self, gamma=1.0 / X.shape[1])

    def _number(self) -> float:
        if self.gamma is None:
            raise UserError("polynomial: gamma is not set; call fit first, or pass gamma as a number")
        return float(self.gamma)

    def _map(self) -> EntryMap:
        return EntryMap(loops.POLYNOMIAL, self._number(), float(self.coef0), int(self.degree))

    def diagonal(self, x: Prepared) -> np.ndarray:
        return ((self._number() * x.norms + self.coef0) ** int(self.degree)).astype(x.dtype)


KERNELS: dict[str, type] = {
    kernel.name: kernel for kernel in (RBF, Laplacian, Exponential, ChiSquare, Intersection, Linear, Polynomial, Cosine)
}
"""Kernel classes by the names that `parse` accepts."""
DISTANCES: dict[str, type] = {Euclidean.name: Euclidean}
"""Distances by name, which replace the kernel of features that are distances to landmarks."""
