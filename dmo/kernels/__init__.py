"""Kernel functions: parameter objects that give tiles of Gram matrices.

    kernel = parse("hellinger-rbf")            # or RBF(bandwidth="median", normalize="hellinger")
    K, fitted = gram_matrix(kernel, X)         # n x n, the symmetric work done once
    x, y = fitted.prepare(X_new), fitted.prepare(X)
    K_new = fitted.tile(x, y)                  # m x n
    lazy = kernel_array(kernel, X)             # the same as a dask array, which `dmo.stores.write_kernel` takes

Only positive semidefinite kernels are parsed by name; `parse_relation` takes distances too, for relation features.
Sums, products and positive multiples of kernels are kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from dask.delayed import delayed
from numpy.typing import DTypeLike

from dmo import blocks, threads
from dmo.errors import UserError
from dmo.kernels import rows
from dmo.kernels.base import Kernel, log_distance
from dmo.kernels.composite import (
    Function,
    Precomputed,
    PreparedParts,
    PreparedSquare,
    Product,
    Sum,
    from_dict,
    parse,
    parse_relation,
    rescaled,
)
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
from dmo.kernels.pairs import RandomState
from dmo.kernels.rows import Prepared, normalize_rows

if TYPE_CHECKING:
    import dask.array as da

__all__ = [
    "RBF",
    "ChiSquare",
    "Cosine",
    "Euclidean",
    "Exponential",
    "Function",
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
    "kernel_array",
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
    unread = kernel.pairwise or (isinstance(X, blocks.Subset) and isinstance(kernel.part(X), blocks.Subset))
    with threads.given(n_threads):
        return kernel.gram(X if unread else rows.read(X, kernel.name), np.dtype(dtype), random_state)


def kernel_array(
    kernel: str | Kernel | dict[str, Any],
    X: blocks.Rows,
    Y: blocks.Rows | None = None,
    block: int = 2048,
    dtype: DTypeLike = np.float32,
    random_state: RandomState = None,
) -> da.Array:
    """Describe the kernel matrix of all pairs of rows as a dask array, of which nothing is computed yet.

    A task makes one block of rows ready, another works out one tile; tiles above the diagonal are the transposed ones below.
    A bandwidth rule alone is resolved at once, from at most 8192 rows.

    Parameters
    ----------
    kernel : str, Kernel or dict
        See `parse`.
    X : row source of shape (n, d)
        Rows, read block by block.
    Y : row source of shape (m, d) or None, default=None
        The rows that columns stand for, such as the training rows of new rows X, from which a bandwidth rule is resolved;
        None: X.
    block : int, default=2048
        Rows and columns of a tile.
    dtype : dtype, default=float32
        float32 or float64.
    random_state : int, Generator, RandomState or None, default=None
        Seed of the sample of rows that decides a bandwidth where there are more than 8192.

    Returns
    -------
    dask.array.Array of shape (n, n) or (n, m)
        Kernel values, in chunks of `block` rows and columns.

    Raises
    ------
    UserError
        For a kernel that is a matrix already.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from dmo.kernels import kernel_array
    >>> from dmo.stores import open_kernel, write_kernel
    >>> K = kernel_array("rbf", np.array([[0.0], [1.0], [2.0]]), block=2)
    >>> K.shape, K.chunks
    ((3, 3), ((2, 1), (2, 1)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_kernel(f"{folder}/k.zarr", K, block=2)
    ...     open_kernel(f"{folder}/k.zarr").shape
    (3, 3)
    """
    import dask.array as da  # a second to import, which few fits need

    parsed = parse(kernel)
    if parsed.pairwise:
        raise UserError(
            "kernel_array: a precomputed kernel is a matrix already; take it as it is, or as dask.array.from_array"
        )
    fitted = parsed.fit(rows.source(X if Y is None else Y), random_state)
    left = _ready_blocks(fitted, rows.source(X), block, dtype)
    right = left if Y is None else _ready_blocks(fitted, rows.source(Y), block, dtype)
    lower = Y is None
    tiles = {
        (i, j): da.from_delayed(delayed(fitted.tile)(x, y), (m, n), dtype)
        for i, (m, x) in enumerate(left)
        for j, (n, y) in enumerate(right)
        if i >= j or not lower
    }
    grid = [[tiles[j, i].T if lower and i < j else tiles[i, j] for j in range(len(right))] for i in range(len(left))]
    return da.block(grid)


def _ready_blocks(kernel: Kernel, X: blocks.Rows, size: int, dtype: DTypeLike) -> list[tuple[int, Any]]:
    """Per row block its length and the task that makes it ready; what Dask computes is a part of its graph."""
    held = None if hasattr(X, "compute") else delayed(X, traverse=False)  # one node: rows in memory are sent once
    parts = blocks.row_blocks(X.shape[0], size)
    read = [X[where] if held is None else delayed(blocks.rows)(held, where) for where in parts]
    return [
        (where.stop - where.start, delayed(kernel.prepare)(block, dtype))
        for where, block in zip(parts, read, strict=True)
    ]
