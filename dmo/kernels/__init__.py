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

from dmo import blocks
from dmo.kernels import rows
from dmo.kernels.base import Kernel
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
    "normalize_rows",
    "parse",
    "parse_relation",
    "rescaled",
]


def gram_matrix(
    kernel: str | Kernel | dict[str, Any],
    X: blocks.Rows,
    dtype: Any = np.float32,
    random_state: Any = None,
    n_threads: int | None = None,
) -> tuple[np.ndarray, Kernel]:
    """The kernel matrix of all pairs of rows (n x n, exactly symmetric, exact diagonal) and the fitted kernel.

    Arguments: `X` n x d, any row source, read whole; `dtype` float32 or float64; `random_state` for the sample of rows
    that decides a bandwidth where n > 8192; `n_threads` of the compiled loops, by default as many as BLAS may use
    (matrix products always use BLAS's). Distances are computed once, below the diagonal; a bandwidth rule takes its
    statistic from them and the kernel's values replace them. Memory: n^2 entries and the prepared rows ("median": the
    distances of the sampled pairs again).
    """
    kernel = parse(kernel)
    return kernel.gram(rows.read(X, kernel.name), np.dtype(dtype), random_state, n_threads)
