"""Kernel matrices as NumPy or dask arrays, and combinations of the kernels of several views."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from dask.delayed import delayed
from numpy.typing import DTypeLike

from dmo import blocks, threads
from dmo.blocks import Rows, Subset, byte_count, in_memory, row_blocks
from dmo.errors import UserError
from dmo.kernels import rows
from dmo.kernels.base import Kernel
from dmo.kernels.composite import from_dict, parse
from dmo.kernels.functions import Linear
from dmo.kernels.pairs import RandomState

if TYPE_CHECKING:
    import dask.array as da

Combine = Literal["sum", "product"]


@dataclass(frozen=True)
class MultiKernel:
    """Kernel of several views, which combines one kernel per view by a weighted sum or a weighted product."""

    # A product of kernels uses powers k_v^w_v. Powers between 0 and 1 are positive definite if the kernel is infinitely
    # divisible. All kernels exp(-d / b) with a negative definite distance d are infinitely divisible.
    #
    # Source: Berg, Christensen, Ressel 1984, theorem 3.2.2.

    kernels: Mapping[str, Kernel]
    weights: Mapping[str, float]  # Nonnegative weight of each view.
    combine: Combine = "sum"  # Whether to use the sum of w_v k_v or the product of k_v^w_v.
    pairwise: list[str] = field(init=False, repr=False, compare=False)  # Names of views with precomputed kernels.
    linear: bool = field(init=False, repr=False, compare=False)  # Whether the kernel is a sum of linear kernels.

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairwise", [name for name, kernel in self.kernels.items() if kernel.pairwise])
        object.__setattr__(
            self, "linear", self.combine == "sum" and all(isinstance(k, Linear) for k in self.kernels.values())
        )

    @classmethod
    def of(cls, view: str, kernel: Kernel) -> MultiKernel:
        """Create the kernel of a single view, with weight 1."""
        return cls({view: kernel}, {view: 1.0})

    @property
    def key(self) -> Hashable:
        """Hashable key, which is equal for equal kernels."""
        return tuple(self.kernels.items()), tuple(self.weights.items()), self.combine

    def prepare(self, views: Mapping[str, Rows], where: slice, dtype: DTypeLike) -> dict[str, Any]:
        """Prepare the rows `where` of every view for `tile`."""
        return {name: kernel.prepare(kernel.part(views[name], where), dtype) for name, kernel in self.kernels.items()}

    def tile(self, x: Mapping[str, Any], y: Mapping[str, Any]) -> np.ndarray:
        """Compute the kernel values (m x n) of m prepared rows x and n prepared rows y."""
        return self.combined((name, kernel.tile(x[name], y[name])) for name, kernel in self.kernels.items())

    def diagonal(self, x: Mapping[str, Any]) -> np.ndarray:
        """Compute the kernel value of each prepared row with itself."""
        return self.combined((name, kernel.diagonal(x[name])) for name, kernel in self.kernels.items())

    def combined(self, parts: Iterable[tuple[str, np.ndarray]]) -> np.ndarray:
        """Combine the kernel values of all views in place, so that at most two arrays are in memory."""
        combine = np.multiply if self.combine == "product" else np.add
        weighted = (v if self.weights[name] == 1.0 else self._weighted(name, v) for name, v in parts)
        return reduce(lambda total, part: combine(total, part, out=total), weighted)

    def _weighted(self, name: str, values: np.ndarray) -> np.ndarray:
        """Apply the weight of a view to its kernel values in place."""
        weight = self.weights[name]
        if self.combine == "product" and values.size and values.min() < 0:
            raise UserError(
                f"a product of kernels uses powers of their values, but kernel '{self.kernels[name]}' of view {name!r} "
                "has negative ones; use kernels without negative values, such as 'rbf', or combine='kernels'"
            )
        operation = np.power if self.combine == "product" else np.multiply
        return operation(values, values.dtype.type(weight), out=values)

    def to_dict(self) -> dict[str, Any]:
        """Convert the kernel to a dict that can be written as JSON."""
        kernels = {name: kernel.to_dict() for name, kernel in self.kernels.items()}
        return {"kernels": kernels, "weights": dict(self.weights), "combine": self.combine}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> MultiKernel:
        """Create the kernel from the output of `to_dict`."""
        kernels = {name: from_dict(spec) for name, spec in description["kernels"].items()}
        return cls(kernels, description["weights"], description["combine"])


@dataclass
class FeatureTiles:
    """Kernel matrix that is computed from features, in square blocks that are called tiles."""

    kernel: MultiKernel
    sources: Mapping[str, Rows]
    block: int  # Number of rows and columns of a tile.
    dtype: DTypeLike = np.float32

    def __post_init__(self) -> None:
        sizes = {name: source.shape[0] for name, source in self.sources.items()}
        if len(set(sizes.values())) != 1:
            raise UserError(f"tiles need views of the same samples, got rows {sizes}")
        self.n = next(iter(sizes.values()))
        self._held: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    @property
    def nbytes(self) -> int:
        """Size in bytes of the features that are in memory. They are pickled with this object."""
        return sum(_held_bytes(source) for source in self.sources.values())

    def _prepare(self, i: int) -> dict[str, Any]:
        return self.kernel.prepare(self.sources, slice(i * self.block, min((i + 1) * self.block, self.n)), self.dtype)

    def tile(self, i: int, j: int) -> np.ndarray:
        """Compute the tile in block row i and block column j."""
        # Callers request all tiles of a block row in succession, so keep the prepared rows of the last block row.
        held = self._held
        if held is None or held[0] != i:
            held = self._held = (i, self._prepare(i))
        return self.kernel.tile(held[1], held[1] if i == j else self._prepare(j))

    def _blocks(self, blocks: Sequence[int] | None) -> Sequence[int]:
        return range(len(row_blocks(self.n, self.block))) if blocks is None else blocks

    def diagonal(self, blocks: Sequence[int] | None = None) -> np.ndarray:
        """Compute the diagonal entries of the kernel matrix, or of the given block rows."""
        parts = [self.kernel.diagonal(self._prepare(i)) for i in self._blocks(blocks)]
        return np.concatenate(parts).astype(np.float64)

    def columns(self, index: np.ndarray, blocks: Sequence[int] | None = None) -> np.ndarray:
        """Compute selected columns of the kernel matrix, or of the given block rows."""
        picked = {name: Subset(source, np.asarray(index)) for name, source in self.sources.items()}
        chosen = self.kernel.prepare(picked, slice(None), self.dtype)
        return np.concatenate([self.kernel.tile(self._prepare(i), chosen) for i in self._blocks(blocks)])


def _held_bytes(source: Rows) -> int:
    if isinstance(source, Subset):
        return _held_bytes(source.source) + source.index.nbytes
    return byte_count(source) if in_memory(source) else 0


def gram_matrix(
    kernel: str | Kernel | dict[str, Any],
    X: Rows,
    dtype: DTypeLike = np.float32,
    random_state: RandomState = None,
    n_threads: int | None = None,
) -> tuple[np.ndarray, Kernel]:
    """Fit a kernel on samples and compute their kernel matrix.

    The distance of each pair of rows is computed only once, for both the bandwidth and the kernel values. The function
    needs memory for the prepared rows and n^2 matrix entries. The rules "median" and "mean-fifth-neighbor" may also
    need memory for the distances of at most 8192 rows.

    Parameters
    ----------
    kernel : str, Kernel or dict
        Kernel, or any description of a kernel that `parse` accepts.
    X : row source of shape (n, d)
        Training samples as rows, which are read into memory.
    dtype : dtype, default=float32
        Data type of the kernel matrix, float32 or float64.
    random_state : int, Generator, RandomState or None, default=None
        Seed for drawing the random sample of rows from which the bandwidth is computed if n > 8192.
    n_threads : int or None, default=None
        Number of threads of the compiled loops. By default, the loops use as many threads as BLAS. Matrix products
        always use the threads of BLAS.

    Returns
    -------
    matrix : ndarray of shape (n, n)
        Symmetric kernel matrix.
    kernel : Kernel
        Fitted kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import gram_matrix
    >>> K, fitted = gram_matrix("rbf", np.array([[0.0], [1.0], [2.0]]))
    >>> K.shape, round(fitted.bandwidth, 3)
    ((3, 3), 1.333)
    """
    kernel = parse(kernel)
    unread = kernel.pairwise or (isinstance(X, Subset) and isinstance(kernel.part(X), Subset))
    with threads.given(n_threads):
        return kernel.gram(X if unread else rows.read(X, kernel.name), np.dtype(dtype), random_state)


def kernel_array(
    kernel: str | Kernel | dict[str, Any],
    X: Rows,
    Y: Rows | None = None,
    block: int = 2048,
    dtype: DTypeLike = np.float32,
    random_state: RandomState = None,
) -> da.Array:
    """Return the kernel matrix of samples as a lazy dask array.

    If Y is None, chunks above the diagonal are transposes of the chunks below the diagonal. A bandwidth that is given
    as a rule is computed immediately, from at most 8192 rows.

    Parameters
    ----------
    kernel : str, Kernel or dict
        Kernel, or any description of a kernel that `parse` accepts.
    X : row source of shape (n, d)
        Samples that correspond to the rows of the matrix, which are read in blocks.
    Y : row source of shape (m, d) or None, default=None
        Samples that correspond to the columns of the matrix. The kernel is fitted on Y. To compare new samples with
        training samples, pass the training samples as Y. By default, Y is X.
    block : int, default=2048
        Number of rows and columns of a chunk.
    dtype : dtype, default=float32
        Data type of the kernel matrix, float32 or float64.
    random_state : int, Generator, RandomState or None, default=None
        Seed for drawing the random sample of rows from which the bandwidth is computed if there are more than 8192.

    Returns
    -------
    dask.array.Array of shape (n, n) or (n, m)
        Kernel values in chunks of `block` rows and columns.

    Raises
    ------
    UserError
        If the kernel is precomputed.

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
    import dask.array as da  # This import takes a second, and few fits need it.

    parsed = parse(kernel)
    if parsed.pairwise:
        raise UserError(
            "kernel_array: a precomputed kernel is a matrix already; use it directly, or dask.array.from_array"
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


def _ready_blocks(kernel: Kernel, X: Rows, size: int, dtype: DTypeLike) -> list[tuple[int, Any]]:
    """Return the number of rows of each block, and a dask task that prepares the block for the kernel."""
    # An array in memory is one node of the task graph, so that dask sends the array to a worker once instead of once
    # per block.
    held = None if hasattr(X, "compute") else delayed(X, traverse=False)
    parts = row_blocks(X.shape[0], size)
    read = [X[where] if held is None else delayed(blocks.rows)(held, where) for where in parts]
    return [
        (where.stop - where.start, delayed(kernel.prepare)(block, dtype))
        for where, block in zip(parts, read, strict=True)
    ]
