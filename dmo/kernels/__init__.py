"""Kernel functions: parameter objects that give tiles of Gram matrices.

    kernel = parse("hellinger-rbf")            # or RBF(bandwidth="median", normalize="hellinger")
    K, fitted = gram_matrix(kernel, X)         # n x n, the symmetric work done once
    x, y = fitted.prepare(X_new), fitted.prepare(X)
    K_new = fitted.tile(x, y)                  # m x n

Only positive semidefinite kernels are parsed by name; `parse_relation` takes distances too, for relation features.
Sums, products and positive multiples of kernels are kernels.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dmo import blocks
from dmo.kernels import rows
from dmo.kernels.bandwidths import RandomState
from dmo.kernels.base import Kernel, log_distance
from dmo.kernels.composite import Precomputed, PreparedParts, PreparedSquare, Product, Sum
from dmo.kernels.functions import (
    RBF,
    ChiSquare,
    Cosine,
    Euclidean,
    Exponential,
    Intersection,
    Laplacian,
    Linear,
    Polynomial,
)
from dmo.kernels.parsing import from_dict, parse, parse_relation, rescaled
from dmo.kernels.rows import Prepared, normalize_rows

__all__ = [
    "RBF",
    "ChiSquare",
    "Cosine",
    "Euclidean",
    "Exponential",
    "Intersection",
    "Kernel",
    "Laplacian",
    "Linear",
    "Polynomial",
    "Precomputed",
    "Prepared",
    "PreparedParts",
    "PreparedSquare",
    "Product",
    "Sum",
    "from_dict",
    "gram_matrix",
    "log_distance",
    "normalize_rows",
    "parse",
    "parse_relation",
    "rescaled",
]


def gram_matrix(
    kernel: str | Kernel | dict[str, Any],
    X: blocks.Rows,
    dtype: DTypeLike = np.float32,
    random_state: RandomState = None,
    n_threads: int | None = None,
) -> tuple[np.ndarray, Kernel]:
    """Work out the kernel matrix of all pairs of rows, and fit the kernel on the way.

    Distances are computed once, below the diagonal; a bandwidth rule takes its statistic from them and the kernel's values
    replace them. Memory: n^2 entries and the prepared rows ("median": the distances of the sampled pairs again).

    Parameters
    ----------
    kernel : str, Kernel or dict
        See `parse`.
    X : row source of shape (n, d)
        Read whole.
    dtype : dtype, default=float32
        float32 or float64.
    random_state : int, Generator, RandomState or None, default=None
        Seed of the sample of rows that decides a bandwidth where n > 8192.
    n_threads : int or None, default=None
        Of the compiled loops; None: as many as BLAS may use (matrix products always use BLAS's).

    Returns
    -------
    matrix : ndarray of shape (n, n)
        Exactly symmetric, with an exact diagonal.
    kernel : Kernel
        Fitted.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import gram_matrix
    >>> K, fitted = gram_matrix("rbf", np.array([[0.0], [1.0], [2.0]]))
    >>> K.shape, round(fitted.bandwidth, 3)
    ((3, 3), 1.333)
    """
    kernel = parse(kernel)
    return kernel.gram(X if kernel.pairwise else rows.read(X, kernel.name), np.dtype(dtype), random_state, n_threads)
