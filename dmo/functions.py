"""Fitted functions of new rows: what every kernel method leaves behind for prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, Subset, double, presence, row_blocks, rows
from dmo.devices import moved
from dmo.errors import UserError
from dmo.kernels import log_distance, normalize_rows
from dmo.kernels.composite import selection
from dmo.kernels.multikernel import MultiKernel
from dmo.lowrank import FeatureMap
from dmo.persistence import with_prefix, without_prefix

_BLOCK = 4096
_STRIP = 256  # rows that are cast to float64 at a time
_SAMPLE = 512  # training rows whose pairs give the mean of a distance


class Expansion(Protocol):
    """A function of views of m rows to m x k values, that a model store can keep.

    Called with views (mapping of name to row source), it gives an ndarray of shape (m, k).

    Parameters
    ----------
    *args : object
        A protocol: not made by itself.
    **kwargs : object
        A protocol: not made by itself.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.functions import LinearExpansion
    >>> LinearExpansion("x", np.eye(2), np.zeros(2))({"x": np.ones((3, 2))}).shape
    (3, 2)
    """

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray: ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the function for a model store.

        Returns
        -------
        arrays : dict of str to ndarray or csr_array
            Its arrays.
        meta : dict
            Its JSON.
        """


@dataclass(frozen=True)
class KernelExpansion:
    """A function from kernel values: f(x) = sum_i k(x, x_i) c_i + offset.

    A call takes views of m rows and returns m x k (float64), block by block: never m x n.

    Parameters
    ----------
    kernel : MultiKernel
        Fitted.
    sources : mapping of str to row source of shape (n, d)
        The training rows by view; of a kernel matrix the columns that they select are kept.
    coefficients : ndarray of shape (n, k)
        c_i.
    offset : ndarray of shape (k,)
        Added to all values.
    dtype : dtype, default=float32
        Of the kernel values.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.functions import KernelExpansion
    >>> from dmo.kernels import RBF
    >>> from dmo.kernels.multikernel import MultiKernel
    >>> X = np.array([[0.0], [1.0]])
    >>> f = KernelExpansion(MultiKernel.of("x", RBF(bandwidth=1.0)), {"x": X}, np.ones((2, 1)), np.zeros(1))
    >>> f({"x": X}).ravel().round(2).tolist()
    [1.61, 1.61]
    """

    kernel: MultiKernel
    sources: Mapping[str, Rows]
    coefficients: np.ndarray
    offset: np.ndarray
    dtype: Any = np.float32

    def __post_init__(self) -> None:
        # a kernel matrix is not kept, nor stored with a model: new rows have the values, and need the columns alone
        kept = {view: selection(self.sources[view]) for view in self.kernel.pairwise}
        object.__setattr__(self, "sources", {**self.sources, **kept})

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        m, n = next(iter(views.values())).shape[0], self.coefficients.shape[0]
        out = np.empty((m, self.coefficients.shape[1]))
        for batch in row_blocks(m, _BLOCK):
            new, found = self.kernel.prepare(views, batch, self.dtype), out[batch]
            found[:] = self.offset
            for where in row_blocks(n, _BLOCK):
                old = self.kernel.prepare(self.sources, where, self.dtype)
                tile = self.kernel.tile(new, old)
                # coefficients are large and of both signs: sums in float32 lose ten times what rounding of the tile does
                for strip in row_blocks(len(tile), _STRIP):
                    found[strip] += tile[strip] @ self.coefficients[where]
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the function for a model store; the training rows are their owner's to store, once for all.

        Returns
        -------
        arrays : dict of str to ndarray
            Coefficients and offset.
        meta : dict
            Its JSON.
        """
        arrays = {"coefficients": self.coefficients, "offset": self.offset}
        return arrays, {"kernel": self.kernel.to_dict(), "dtype": np.dtype(self.dtype).name}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Any], meta: Mapping[str, Any], sources: Mapping[str, Rows]
    ) -> KernelExpansion:
        """Make the expansion that `to_arrays` described.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            Coefficients and offset.
        meta : mapping
            Its JSON.
        sources : mapping of str to row source
            The training rows by view.

        Returns
        -------
        KernelExpansion
            The function.
        """
        kernel = MultiKernel.from_dict(meta["kernel"])
        used = {name: sources[name] for name in kernel.kernels}
        return cls(kernel, used, arrays["coefficients"], arrays["offset"], np.dtype(meta["dtype"]))


def added(
    expansions: Mapping[str, Expansion], views: Mapping[str, Rows], weights: Mapping[str, float] | None = None
) -> np.ndarray:
    """Add up the functions of several views; where a sample lacks some, the others stand in for them by their weights.

    Parameters
    ----------
    expansions : mapping of view to Expansion
        Functions of one view each, or of any views where these have all samples.
    views : mapping of view to row source of shape (m, d)
        New rows, some of which may be missing (see `dmo.blocks.presence`).
    weights : mapping of view to float or None, default=None
        Share of every view in the sum; None: the same for all.

    Returns
    -------
    ndarray of shape (m, k)
        sum_v f_v(x), over the views that x has, times the sum of all weights over that of these views.

    Raises
    ------
    UserError
        Names a sample without any view.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.blocks import PartialRows
    >>> from dmo.functions import LinearExpansion, added
    >>> parts = {view: LinearExpansion(view, np.ones((1, 1)), np.zeros(1)) for view in "ab"}
    >>> X, some = np.array([[1.0], [2.0]]), PartialRows(np.zeros((2, 1)), np.array([False, True]))
    >>> added(parts, {"a": X, "b": some}).ravel().tolist()
    [2.0, 2.0]
    """
    present = {view: presence(source) for view, source in views.items()}
    if all(has is None for has in present.values()):
        return np.asarray(sum(expansion(views) for expansion in expansions.values()))
    shares = dict.fromkeys(expansions, 1.0) if weights is None else {view: weights[view] for view in expansions}
    total: np.ndarray | float = 0.0
    seen = np.zeros(next(iter(views.values())).shape[0])
    for view, expansion in expansions.items():
        own = present[view]
        index = np.arange(len(seen)) if own is None else np.flatnonzero(own)
        values = expansion({view: Subset(views[view], index)})
        total = np.zeros((len(seen), values.shape[1])) if isinstance(total, float) else total
        total[index] += values
        seen[index] += shares[view]
    if not seen.all():
        sample = int(np.flatnonzero(seen == 0)[0])
        raise UserError(f"sample {sample} has none of the views {list(expansions)}; leave it out, or give it one")
    return np.asarray(total * (sum(shares.values()) / seen)[:, None])


def shifted(expansions: Mapping[str, Expansion], shift: np.ndarray | None) -> dict[str, Expansion]:
    """Add a constant to a function that is a sum of expansions.

    Parameters
    ----------
    expansions : mapping of str to Expansion
        Dataclasses with an `offset`.
    shift : ndarray of shape (k,) or None
        The constant, which the first of them takes; None: no change.

    Returns
    -------
    dict of str to Expansion
        What adds up to the function.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.functions import LinearExpansion, shifted
    >>> shifted({"x": LinearExpansion("x", np.eye(1), np.zeros(1))}, np.ones(1))["x"].offset.tolist()
    [1.0]
    """
    parts: dict[str, Any] = dict(expansions)
    if shift is not None:
        first = next(iter(parts))
        parts[first] = replace(parts[first], offset=parts[first].offset + shift)
    return parts


@dataclass(frozen=True)
class KernelDistances:
    """Distances of new rows to the training rows of kernel expansions: the sum of their -log k(x, x_i), over its mean.

    Of kernels exp(-d / b) these are the distances d themselves, of their weighted product the weighted sum. A call
    takes views
    and a slice of their rows, and returns len(slice) x n distances (float32).

    Parameters
    ----------
    expansions : list of KernelExpansion
        Over the same training rows.
    scale : float
        The mean over pairs of training rows.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import MultiViewRidge
    >>> from dmo.functions import KernelDistances
    >>> X, y = load_iris(return_X_y=True)
    >>> near = KernelDistances.of(MultiViewRidge("rbf", approximation="exact").fit(X, y).expansions_)
    >>> near({"x": X}, slice(0, 2)).shape
    (2, 150)
    """

    expansions: list[KernelExpansion]
    scale: float

    @classmethod
    def of(
        cls,
        expansions: Mapping[str, Expansion],
        scale: float | None = None,
        views: Mapping[str, Rows] | None = None,
    ) -> KernelDistances:
        """Take the distances from an estimator's expansions.

        Parameters
        ----------
        expansions : mapping of str to Expansion
            The fitted functions.
        scale : float or None, default=None
            The mean distance; None: that of a sample of the training rows.
        views : mapping of str to row source of shape (n, d) or None, default=None
            The training rows; None: those that the expansions hold, which lack the entries of a kernel matrix.

        Returns
        -------
        KernelDistances
            The distances.

        Raises
        ------
        UserError
            Where expansions hold no training rows, or are no kernels of distances.
        """
        known = [part for part in expansions.values() if isinstance(part, KernelExpansion)]
        if len(known) < len(expansions):
            raise UserError("distances of features need exact kernels of a distance; take such a base, or visual = 0")
        if scale is None:
            n = known[0].coefficients.shape[0]
            sample = np.unique(np.linspace(0, n - 1, min(n, _SAMPLE)).astype(int))
            held = {view: source for part in known for view, source in part.sources.items()} | dict(views or {})
            picked = {view: Subset(source, sample) for view, source in held.items()}
            found = cls(known, 1.0)(picked, slice(0, len(sample)))[:, sample]
            scale = float(found.sum(dtype=np.float64)) / max(1, len(sample) * (len(sample) - 1))
        return cls(known, scale if scale > 0 else 1.0)

    def __call__(self, views: Mapping[str, Rows], where: slice) -> np.ndarray:
        """len(where) x n (float32), for the rows `where` of `views`."""
        out = np.zeros((where.stop - where.start, self.expansions[0].coefficients.shape[0]), np.float32)
        for part in self.expansions:
            new = part.kernel.prepare(views, where, part.dtype)
            for old in row_blocks(out.shape[1], _BLOCK):
                k = part.kernel.tile(new, part.kernel.prepare(part.sources, old, part.dtype))
                if k.size and not 0 <= k.min() <= k.max() <= 1 + 1e-4:
                    raise UserError(
                        "distances of features need kernels exp(-distance), such as rbf; or take visual = 0"
                    )
                out[:, old] += log_distance(k)
        out /= self.scale
        return out


@dataclass(frozen=True)
class FactorExpansion:
    """A function from factor rows: f(x) = g(x) B + offset, with g(x) the raw factor row of a low-rank kernel's feature map.

    A call takes views of m rows and returns m x k (float64), block by block.

    Parameters
    ----------
    view : str
        Name of the view.
    feature_map : FeatureMap
        Fitted.
    coefficients : ndarray of shape (r0, k)
        B, on unprojected features (the map's mixing multiplied in).
    offset : ndarray of shape (k,)
        Added to all values.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.functions import FactorExpansion
    >>> from dmo.lowrank import nystrom
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> found = nystrom("rbf", X, rank=5, random_state=0)
    >>> FactorExpansion.of("x", found, np.ones((5, 1)), np.zeros(1))({"x": X}).shape
    (50, 1)
    """

    view: str
    feature_map: FeatureMap
    coefficients: np.ndarray
    offset: np.ndarray

    @classmethod
    def of(cls, view: str, feature_map: FeatureMap, coefficients: np.ndarray, offset: np.ndarray) -> FactorExpansion:
        """Make the function from coefficients on the factor rows g(x) T, T the map's mixing.

        Parameters
        ----------
        view : str
            Name of the view.
        feature_map : FeatureMap
            Fitted.
        coefficients : ndarray of shape (rank, k)
            On the factor rows.
        offset : ndarray of shape (k,)
            Added to all values.

        Returns
        -------
        FactorExpansion
            The function.
        """
        mixing = feature_map.mixing
        return cls(view, feature_map, coefficients if mixing is None else mixing @ coefficients, offset)

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        source = views[self.view]
        out = np.empty((source.shape[0], len(self.offset)))
        for batch in row_blocks(source.shape[0], _BLOCK):
            read = rows(source, batch)
            values = self.feature_map.times(moved(read) if self.feature_map.portable else read, self.coefficients)
            out[batch] = values + self.offset
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the function for a model store.

        Returns
        -------
        arrays : dict of str to ndarray or csr_array
            Coefficients, offset and the map's arrays.
        meta : dict
            Its JSON.
        """
        arrays, meta = self.feature_map.to_arrays()
        stored = {f"map/{key}": value for key, value in arrays.items()}
        stored |= {"coefficients": self.coefficients, "offset": self.offset}
        return stored, {"view": self.view, "map": meta}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> FactorExpansion:
        """Make the expansion that `to_arrays` described.

        Parameters
        ----------
        arrays : mapping of str to ndarray or csr_array
            Coefficients, offset and the map's arrays.
        meta : mapping
            Its JSON.

        Returns
        -------
        FactorExpansion
            The function.
        """
        parts = {key.removeprefix("map/"): value for key, value in arrays.items() if key.startswith("map/")}
        feature_map = FeatureMap.from_arrays(parts, meta["map"])
        return cls(meta["view"], feature_map, arrays["coefficients"], arrays["offset"])


@dataclass(frozen=True)
class LinearExpansion:
    """A linear function f(x) = x W + offset of the rows of one view, dense or sparse.

    Parameters
    ----------
    view : str
        Name of the view.
    coefficients : ndarray of shape (d, k)
        W.
    offset : ndarray of shape (k,)
        Added to all values.
    normalize : str or None, default=None
        How rows are normalized first, where the kernel does so.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.functions import LinearExpansion
    >>> LinearExpansion("x", np.array([[2.0], [1.0]]), np.array([0.5]))({"x": np.array([[1.0, 1.0]])}).tolist()
    [[3.5]]
    """

    view: str
    coefficients: np.ndarray
    offset: np.ndarray
    normalize: str | None = None

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        source = views[self.view]
        out = np.empty((source.shape[0], len(self.offset)))
        for where in row_blocks(source.shape[0], _BLOCK):
            block, target = rows(source, where), out[where]
            # dense rows are cast strip by strip: one stays in the cache until its product, and none is a fresh array of memory
            size = len(target) if scipy.sparse.issparse(block) else _STRIP
            for part in row_blocks(len(target), size):
                strip = double(block[part])
                if self.normalize is not None:
                    strip = normalize_rows(strip, self.normalize)
                target[part] = strip @ self.coefficients
            target += self.offset
        return out

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the function for a model store.

        Returns
        -------
        arrays : dict of str to ndarray
            Coefficients and offset.
        meta : dict
            Its JSON.
        """
        meta = {"view": self.view} | ({} if self.normalize is None else {"normalize": self.normalize})
        return {"coefficients": self.coefficients, "offset": self.offset}, meta

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> LinearExpansion:
        """Make the expansion that `to_arrays` described.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            Coefficients and offset.
        meta : mapping
            Its JSON.

        Returns
        -------
        LinearExpansion
            The function.
        """
        return cls(meta["view"], arrays["coefficients"], arrays["offset"], meta.get("normalize"))


def store_expansions(expansions: Mapping[str, Expansion]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe expansions for a model store and, once, the training rows that they share.

    Parameters
    ----------
    expansions : mapping of str to Expansion
        Functions by name.

    Returns
    -------
    arrays : dict of str to ndarray or csr_array
        All arrays.
    meta : dict
        Their JSON.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.functions import LinearExpansion, store_expansions
    >>> arrays, meta = store_expansions({"x": LinearExpansion("x", np.eye(2), np.zeros(2))})
    >>> sorted(arrays)
    ['expansions/x/coefficients', 'expansions/x/offset']
    """
    sources: dict[str, Rows] = {}
    arrays: dict[str, Any] = {}
    metas = {}
    for name, expansion in expansions.items():
        sources |= expansion.sources if isinstance(expansion, KernelExpansion) else {}
        parts, metas[name] = expansion.to_arrays()
        arrays |= with_prefix(f"expansions/{name}", parts)
    return arrays | {f"rows/{name}": rows(source) for name, source in sources.items()}, {"expansions": metas}


def load_expansions(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Expansion]:
    """Make the expansions that `store_expansions` described.

    Parameters
    ----------
    arrays : mapping of str to ndarray or csr_array
        All arrays.
    meta : mapping
        Their JSON.

    Returns
    -------
    dict of str to Expansion
        Functions by name.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.functions import LinearExpansion, load_expansions, store_expansions
    >>> stored = store_expansions({"x": LinearExpansion("x", np.eye(2), np.zeros(2))})
    >>> load_expansions(*stored)["x"]({"x": np.ones((1, 2))}).tolist()
    [[1.0, 1.0]]
    """
    sources = without_prefix("rows", arrays)
    loaded: dict[str, Expansion] = {}
    for name, parts in meta["expansions"].items():
        own = without_prefix(f"expansions/{name}", arrays)
        if "map" in parts:
            loaded[name] = FactorExpansion.from_arrays(own, parts)
        elif "kernel" in parts:
            loaded[name] = KernelExpansion.from_arrays(own, parts, sources)
        elif set(own) == {"coefficients", "offset"}:
            loaded[name] = LinearExpansion.from_arrays(own, parts)
        else:
            raise ValueError(f"the expansion {name!r} has arrays of a map that is not described")
    return loaded


@dataclass(frozen=True)
class KernelFunction:
    """The sum of expansions: of one kernel over all views, or of one low-rank kernel per view.

    Parameters
    ----------
    expansions : mapping of str to Expansion
        What is added up.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.functions import KernelFunction, LinearExpansion
    >>> part = LinearExpansion("x", np.eye(2), np.zeros(2))
    >>> KernelFunction({"a": part, "b": part})({"x": np.ones((1, 2))}).tolist()
    [[2.0, 2.0]]
    """

    expansions: Mapping[str, Expansion]

    def __call__(self, views: Mapping[str, Rows]) -> np.ndarray:
        return np.asarray(sum(expansion(views) for expansion in self.expansions.values()))
