"""Kernels made of kernels, and kernels that were computed elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from dmo import blocks
from dmo.errors import UserError
from dmo.kernels import rows
from dmo.kernels.bandwidths import RandomState
from dmo.kernels.base import Kernel, output


@dataclass(frozen=True)
class PreparedParts:
    """The rows prepared for each kernel of a sum or product.

    Parameters
    ----------
    parts : tuple of prepared rows
        One per kernel.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Linear
    >>> len((Linear() + Linear()).prepare(np.ones((3, 2))).parts)
    2
    """

    parts: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, where: slice | np.ndarray) -> PreparedParts:
        return PreparedParts(tuple(part[where] for part in self.parts))

    @property
    def dtype(self) -> np.dtype:
        """Precision of the tiles."""
        return self.parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True)
class PreparedSquare:
    """Rows of a precomputed kernel against all training rows.

    Parameters
    ----------
    values : ndarray of shape (m, n)
        Kernel values.
    start : int or None
        The training row that the first one is, None for new rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Precomputed
    >>> Precomputed().prepare(np.eye(3))[1:].start
    1
    """

    values: np.ndarray
    start: int | None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, where: slice) -> PreparedSquare:
        begin, _, step = where.indices(len(self))
        if step != 1:
            raise UserError(f"precomputed: slices of prepared rows have step 1, got {step}")
        return PreparedSquare(self.values[where], None if self.start is None else self.start + begin)

    @property
    def dtype(self) -> np.dtype:
        """Precision of the tiles."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.values.nbytes


@dataclass(frozen=True)
class _Composite(Kernel[PreparedParts]):
    """Kernels of the same rows, combined entry by entry."""

    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernels", tuple(self.kernels))
        if not self.kernels:
            raise UserError(f"{self.name}: needs at least one kernel, got none")
        wrong = [k for k in self.kernels if not isinstance(k, Kernel)]
        if wrong:
            raise TypeError(f"{self.name}: needs kernels, got {wrong[0]!r}; write parse({wrong[0]!r})")

    def to_dict(self) -> dict[str, Any]:
        return {"kernel": self.name, "kernels": [kernel.to_dict() for kernel in self.kernels]}

    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        return replace(self, kernels=tuple(kernel.fit(X, random_state, sample_weight) for kernel in self.kernels))

    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> PreparedParts:
        X = rows.read(X, self.name)
        return PreparedParts(tuple(kernel.prepare(X, dtype) for kernel in self.kernels))

    def tile(self, x: PreparedParts, y: PreparedParts, out: np.ndarray | None = None) -> np.ndarray:
        K = output(out, (len(x), len(y)), x.dtype, self.name)
        for k, (kernel, left, right) in enumerate(zip(self.kernels, x.parts, y.parts)):
            if k == 0:
                kernel.tile(left, right, K)
                self._begin(K)
            else:
                self._add(K, kernel.tile(left, right), k)
        return K

    def diagonal(self, x: PreparedParts) -> np.ndarray:
        total = self.kernels[0].diagonal(x.parts[0])
        self._begin(total)
        for k in range(1, len(self.kernels)):
            self._add(total, self.kernels[k].diagonal(x.parts[k]), k)
        return total

    def gram(
        self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState, n_threads: int | None
    ) -> tuple[np.ndarray, Self]:
        K, first = self.kernels[0].gram(X, dtype, random_state, n_threads)
        self._begin(K)
        fitted = [first]
        for k in range(1, len(self.kernels)):
            part, kernel = self.kernels[k].gram(X, dtype, random_state, n_threads)
            self._add(K, part, k)
            fitted.append(kernel)
        return K, replace(self, kernels=tuple(fitted))

    def _begin(self, K: np.ndarray) -> None:
        """Make the values of the first kernel the start of the result, in place."""

    def _add(self, K: np.ndarray, part: np.ndarray, k: int) -> None:
        """Combine the values of kernel k into K, in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sum(_Composite):
    """A weighted sum of kernels, sum_k weights_k k_k(x, y).

    Parameters
    ----------
    kernels : tuple of Kernel
        Of the same rows.
    weights : tuple of float or None, default=None
        Above 0; None: all 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Linear
    >>> (Linear() + 2.0 * Linear())(np.array([[2.0], [1.0]])).tolist()
    [[12.0, 6.0], [6.0, 3.0]]
    """

    weights: tuple[float, ...] | None = None
    name = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = (1.0,) * len(self.kernels) if self.weights is None else tuple(float(w) for w in self.weights)
        object.__setattr__(self, "weights", weights)
        if len(weights) != len(self.kernels):
            raise UserError(f"sum: got {len(self.kernels)} kernels and {len(weights)} weights; give one weight each")
        if not all(np.isfinite(w) and w > 0 for w in weights):
            raise UserError(f"sum: weights must be positive to keep the kernel positive semidefinite, got {weights}")

    def to_dict(self) -> dict[str, Any]:
        """Describe the kernel as a JSON dict, which `parse` reads.

        Returns
        -------
        dict
            Its name and parameters.
        """
        return super().to_dict() | {"weights": list(self.weights or ())}

    def _begin(self, K: np.ndarray) -> None:
        K *= K.dtype.type((self.weights or ())[0])

    def _add(self, K: np.ndarray, part: np.ndarray, k: int) -> None:
        part *= K.dtype.type((self.weights or ())[k])
        K += part


@dataclass(frozen=True)
class Product(_Composite):
    """The product of kernels, prod_k k_k(x, y).

    Parameters
    ----------
    kernels : tuple of Kernel
        Of the same rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Linear
    >>> (Linear() * Linear())(np.array([[2.0], [1.0]])).tolist()
    [[16.0, 4.0], [4.0, 1.0]]
    """

    name = "product"

    def _add(self, K: np.ndarray, part: np.ndarray, k: int) -> None:
        K *= part


@dataclass(frozen=True)
class Precomputed(Kernel[PreparedSquare]):
    """A kernel matrix that the user computed: X is the n x n kernel of the training rows, or m x n for new rows.

    A tile of training rows is a part of the matrix; `tile(new, training[i:j])` takes columns i..j of the given rows.
    Rows prepared from a square matrix are the training rows.
    Whether the matrix is positive semidefinite is not checked: exp(-d^2) of L1 or chi-square distances d is not.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.kernels import Precomputed
    >>> p = Precomputed().prepare(np.eye(3))
    >>> Precomputed().tile(p[:2], p).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    name = "precomputed"

    def fit(self, X: blocks.Rows, random_state: RandomState = None, sample_weight: np.ndarray | None = None) -> Self:
        """Set everything that depends on the data to numbers.

        Parameters
        ----------
        X : row source of shape (n, d)
            All its rows are looked at up to 8192, else a random sample of so many.
        random_state : int, Generator, RandomState or None, default=None
            Seed of the sample.
        sample_weight : ndarray of shape (n,) or None, default=None
            How often every row counts, at least 0; None: once.

        Returns
        -------
        Kernel
            The fitted kernel. A bandwidth rule holds the distances of these rows in float32, 268 MB at the most.
        """
        n, m = rows.source(X).shape
        if n != m:
            raise UserError(f"precomputed: the training kernel must be square, got {n} x {m}; pass k(train, train)")
        return self

    def prepare(self, X: blocks.Rows, dtype: DTypeLike = np.float32) -> PreparedSquare:
        """Make rows ready once, for any number of tiles.

        Parameters
        ----------
        X : row source of shape (n, d)
            Read whole: NumPy, SciPy CSR (which stays CSR), dask or Zarr.
        dtype : dtype, default=float32
            Of the tiles, float32 or float64.

        Returns
        -------
        prepared rows
            With `len`, row slices and `nbytes`.

        Raises
        ------
        UserError
            For entries the kernel has no value for, naming row and column, and where `fit` is missing.
        """
        values = rows.ready(rows.dense(X, self.name), None, None, dtype, False, False, self.name)[0]
        return PreparedSquare(values, 0 if values.shape[0] == values.shape[1] else None)

    def tile(self, x: PreparedSquare, y: PreparedSquare, out: np.ndarray | None = None) -> np.ndarray:
        """Work out k(x_i, y_j) of prepared rows; safe to call from many threads.

        Parameters
        ----------
        x : prepared rows
            m of them.
        y : prepared rows
            n of them.
        out : ndarray of shape (m, n) or None, default=None
            Where to write, C-contiguous.

        Returns
        -------
        ndarray of shape (m, n)
            Kernel values.
        """
        if x.values.shape[1] != y.values.shape[1]:
            raise UserError(
                f"precomputed: x has {x.values.shape[1]} columns, the training kernel {y.values.shape[1]}; "
                "pass k(new, train) with a column per training row"
            )
        if y.start is None:
            raise UserError("precomputed: y must be rows of the square training kernel; pass new rows as x")
        K = output(out, (len(x), len(y)), x.dtype, self.name)
        K[:] = x.values[:, y.start : y.start + len(y)]
        return K

    def diagonal(self, x: PreparedSquare) -> np.ndarray:
        """Work out k(x_i, x_i), exact for the prepared rows.

        Parameters
        ----------
        x : prepared rows
            m of them.

        Returns
        -------
        ndarray of shape (m,)
            Kernel values.
        """
        n = len(x)
        if x.start is None:
            raise UserError("precomputed: the diagonal of new rows is unknown; pass rows of the square training kernel")
        return x.values[np.arange(n), x.start + np.arange(n)]

    def gram(
        self, X: blocks.Rows, dtype: DTypeLike, random_state: RandomState, n_threads: int | None
    ) -> tuple[np.ndarray, Self]:
        """Work out the kernel matrix of rows in memory, and fit the kernel on the way; see `gram_matrix`.

        Parameters
        ----------
        X : ndarray or csr_array of shape (n, d)
            Rows.
        dtype : dtype
            float32 or float64.
        random_state : int, Generator, RandomState or None
            Seed of the sample that decides a bandwidth.
        n_threads : int or None
            Of the compiled loops; None: as many as BLAS may use.

        Returns
        -------
        matrix : ndarray of shape (n, n)
            Symmetric, with an exact diagonal.
        kernel : Kernel
            Fitted.
        """
        self.fit(X)
        K = self.prepare(X, dtype).values
        worst = max(
            (float(np.abs(K[w] - K[:, w].T).max(initial=0.0)) for w in blocks.row_blocks(len(K), 1024)), default=0.0
        )
        if worst > 1e-5 * float(np.abs(K).max(initial=0.0)):
            raise UserError(
                f"precomputed: the training kernel must be symmetric, got entries that differ by {worst:.2g}"
            )
        return (K if worst == 0.0 else (K + K.T) / 2), self

    def to_dict(self) -> dict[str, Any]:
        """Describe the kernel as a JSON dict, which `parse` reads.

        Returns
        -------
        dict
            Its name and parameters.
        """
        return {"kernel": self.name}
