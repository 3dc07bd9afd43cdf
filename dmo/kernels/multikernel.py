"""Several kernels, one per view, as one: their weighted sum or product, and tiles of it from features."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike

from dmo.blocks import Rows, Subset, row_blocks
from dmo.errors import UserError
from dmo.kernels.base import Kernel
from dmo.kernels.composite import from_dict
from dmo.parameters import ParameterObject

Combine = Literal["sum", "product"]


@dataclass(eq=False, repr=False)
class ProductKernel(ParameterObject):
    """The kernel exp(-gamma sum_v w_v d_v) of distances d_v, each divided by its mean over the training samples, of `KGHA`.

    "product" stands for it with its defaults.

    Parameters
    ----------
    distances : {"auto", "l1", "l2", "chi2"}, or mapping of view to these, default="auto"
        "l1" and "chi2" compare histograms (rows scaled to sum 1), "l2" is the Euclidean distance; "auto", and views that a
        mapping does not name: "chi2" where their feature store calls them histograms, else "l2".
    gamma : float, default=2.0
        Sharpness, above 0.
    weights : mapping of view to float, list, {"equal", "tagprop", "alignment"} or None, default=None
        w_v, scaled to sum 1; None: equal ones. "tagprop" and "alignment" are learned, as in `MultiViewRidge`.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import KGHA, ProductKernel
    >>> X, Y = make_multilabel_classification(n_samples=100, n_classes=5, random_state=0)
    >>> model = KGHA(ProductKernel("chi2", weights={"a": 3, "b": 1})).fit({"a": X[:, :10], "b": X[:, 10:]}, Y)
    >>> model.view_weights_
    {'a': 0.75, 'b': 0.25}
    """

    distances: str | Mapping[str, str] = "auto"
    gamma: float = 2.0
    weights: Mapping[str, float] | Sequence[float] | Literal["equal", "tagprop", "alignment"] | None = None

    @classmethod
    def _takes(cls, value: Any) -> bool:
        """Whether a value stands for the product of the views' distances."""
        return is_product(value)

    @classmethod
    def _named(cls, value: Any) -> Any:
        """The object that a name stands for; kernels of views have parameters of their own."""
        if not (is_product(value) or hasattr(value, "set_params")):
            raise UserError(
                f"distances, gamma and weights are those of kernel='product', got kernel={value!r}; leave them out"
            )
        return cls._of(value) if is_product(value) else value


def is_product(kernel: Any) -> bool:
    """Tell whether what an estimator was given for a kernel is the product of distances of the views."""
    return isinstance(kernel, ProductKernel) or (isinstance(kernel, str) and kernel == "product")


@dataclass(frozen=True)
class MultiKernel:
    """One kernel of several views: k(x, y) = sum_v w_v k_v(x_v, y_v), or prod_v k_v(x_v, y_v)^w_v."""

    # Powers of positive definite kernels stay so for w_v in 0..1 where they are infinitely divisible, as all
    # exponential kernels exp(-d / b) on negative definite d are.
    #
    # Berg, Christensen, Ressel 1984, theorem 3.2.2.

    kernels: Mapping[str, Kernel]  # by view
    weights: Mapping[str, float]  # w_v >= 0 by view
    combine: Combine = "sum"  # how

    @classmethod
    def of(cls, view: str, kernel: Kernel) -> MultiKernel:
        """Take one view's kernel as it is."""
        return cls({view: kernel}, {view: 1.0})

    @property
    def key(self) -> Hashable:
        """What tells kernels of several views apart."""
        return tuple(self.kernels.items()), tuple(self.weights.items()), self.combine

    @property
    def pairwise(self) -> list[str]:
        """Views whose rows are those of a kernel matrix."""
        return [name for name, kernel in self.kernels.items() if kernel.pairwise]

    def prepare(self, views: Mapping[str, Rows], where: slice, dtype: DTypeLike) -> dict[str, Any]:
        """Make rows of every view ready for `tile`.

        views (n, d)
        """
        return {name: kernel.prepare(kernel.part(views[name], where), dtype) for name, kernel in self.kernels.items()}

    def tile(self, x: Mapping[str, Any], y: Mapping[str, Any]) -> np.ndarray:
        """Work out k(x_i, y_j) of prepared rows.

        -> (m, n)
        """
        return self._reduce((name, kernel.tile(x[name], y[name])) for name, kernel in self.kernels.items())

    def diagonal(self, x: Mapping[str, Any]) -> np.ndarray:
        """Work out k(x_i, x_i) of prepared rows.

        -> (m,)
        """
        return self._reduce((name, kernel.diagonal(x[name])) for name, kernel in self.kernels.items())

    def _reduce(self, parts: Iterable[tuple[str, np.ndarray]]) -> np.ndarray:
        total: np.ndarray | None = None
        for name, part in parts:
            part = self.weighted(name, part)
            if total is None:
                total = part
            elif self.combine == "product":
                total *= part
            else:
                total += part
        if total is None:
            raise UserError("no kernel to combine; pass at least one view")
        return total

    def weighted(self, name: str, values: np.ndarray) -> np.ndarray:
        """Work out the share of one view's kernel values, in place where the weight is not 1."""
        weight = self.weights[name]
        if weight == 1.0:
            return values
        if self.combine == "product" and values.size and values.min() < 0:
            raise UserError(
                f"a product of kernels takes powers of their values, and kernel '{self.kernels[name]}' of view {name!r} has "
                "negative ones; take kernels without, such as 'rbf', or combine='kernels'"
            )
        operation = np.power if self.combine == "product" else np.multiply
        return operation(values, values.dtype.type(weight), out=values)

    def to_dict(self) -> dict[str, Any]:
        """Describe the kernel as JSON."""
        kernels = {name: kernel.to_dict() for name, kernel in self.kernels.items()}
        return {"kernels": kernels, "weights": dict(self.weights), "combine": self.combine}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> MultiKernel:
        """Make the kernel that `to_dict` described."""
        kernels = {name: from_dict(spec) for name, spec in description["kernels"].items()}
        return cls(kernels, description["weights"], description["combine"])


@dataclass
class FeatureTiles:
    """Tiles of a kernel matrix, computed from features when they are asked for.

    sources (n, d)
    """

    kernel: MultiKernel  # fitted
    sources: Mapping[str, Rows]
    block: int  # rows per tile
    dtype: DTypeLike = np.float32  # of the entries

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
        """Bytes of the features that lie in memory, and travel with a copy of this object."""
        return sum(_held_bytes(source) for source in self.sources.values())

    def _prepare(self, i: int) -> dict[str, Any]:
        return self.kernel.prepare(self.sources, slice(i * self.block, min((i + 1) * self.block, self.n)), self.dtype)

    def tile(self, i: int, j: int) -> np.ndarray:
        """Work out one tile.

        -> (block, block)
        """
        held = self._held  # tiles are asked for strip by strip: keep the row block that a strip shares
        if held is None or held[0] != i:
            held = self._held = (i, self._prepare(i))
        return self.kernel.tile(held[1], held[1] if i == j else self._prepare(j))

    def _blocks(self, blocks: Sequence[int] | None) -> Sequence[int]:
        return range(len(row_blocks(self.n, self.block))) if blocks is None else blocks

    def diagonal(self, blocks: Sequence[int] | None = None) -> np.ndarray:
        """Work out diagonal entries, without the tiles."""
        parts = [self.kernel.diagonal(self._prepare(i)) for i in self._blocks(blocks)]
        return np.concatenate(parts).astype(np.float64)

    def columns(self, index: np.ndarray, blocks: Sequence[int] | None = None) -> np.ndarray:
        """Work out some columns, without the matrix's other entries."""
        picked = {name: Subset(source, np.asarray(index)) for name, source in self.sources.items()}
        chosen = self.kernel.prepare(picked, slice(None), self.dtype)
        return np.concatenate([self.kernel.tile(self._prepare(i), chosen) for i in self._blocks(blocks)])


def _held_bytes(source: Rows) -> int:
    if isinstance(source, Subset):
        return _held_bytes(source.source) + source.index.nbytes
    if scipy.sparse.issparse(source):
        return sum(getattr(source, part).nbytes for part in ("data", "indices", "indptr"))
    return source.nbytes if isinstance(source, np.ndarray) else 0
