"""Tall blocks (n x k) with NumPy-style arithmetic, split by rows over the workers that hold an operator.

Operations are lazy: one task per part evaluates an expression when a product or a sum over the rows needs it. Usually,
the client process receives only sums over the rows, which are small matrices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import scipy.linalg

from dmo.cluster.workers import gathered, retried, send, submit, submit_each
from dmo.stores.checkpoints import keeps_states

T = TypeVar("T")
FAN_IN = 4  # Maximum number of arrays that one task adds.
_SMALL = 1 << 21  # Maximum total size in bytes of all copies of an array that is sent with its tasks.


class Home:
    """Workers that hold row blocks, and the row range of each part."""

    # If a worker is lost, its data and all results computed from these data are lost too. The method `retried` then
    # restarts from the data of the client process.

    def __init__(self, client: Any, parts: list[slice], places: list[str], lost: Callable[[], None]):
        self.client, self.parts, self.places, self.lost = client, parts, places, lost
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._last: tuple[Any, Any] = None, None

    def scattered(self, array: np.ndarray) -> list[Any]:
        """Send the row parts of an array to the workers, and return their futures."""
        return send(self.client, [np.ascontiguousarray(array[part]) for part in self.parts], self.places)

    def send(self, array: np.ndarray) -> WorkerRows:
        """Send an array (n x k) to the workers."""
        return WorkerRows(self, self.scattered(array), array.shape[1], array.dtype)

    def keep(self, what: Any) -> Any:
        """Send an array to the workers, or call a function that creates rows there.

        The result is cached for each object.
        """
        if id(what) not in self._kept:
            self._kept[id(what)] = what, what() if callable(what) else self.send(np.asarray(what))
        return self._kept[id(what)][1]

    def small(self, array: Any) -> Any:
        """Return a small array for use in tasks, or a future of the array if its copies would be large."""
        if not isinstance(array, np.ndarray) or array.nbytes * len(self.parts) <= _SMALL:
            return array
        if self._last[0] is not array:
            self._last = array, submit(self.client, operator.pos, array)
        return self._last[1]

    def retried(self, work: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """Run work on these rows, and repeat it if workers are lost."""
        return retried(self.client, work, self._forget, progress)

    def _forget(self) -> None:
        self._kept.clear()
        self._last = None, None
        self.lost()

    def called(
        self, function: Callable[..., Any], calls: Sequence[Sequence[Any]], name: str, places: Sequence[str]
    ) -> list[Any]:
        """Submit a function for several lists of arguments (lazy results, futures or constants), and return futures."""
        packed = []
        for nodes in calls:
            given: list[Any] = []
            seen: dict[int, Any] = {}
            packed.append((function, [_packed(node, given, seen) for node in nodes], *given))
        return submit_each(self.client, _called, packed, name, places)

    def work_out(self, nodes: Iterable[tuple[Any, str]]) -> None:
        """Submit the evaluation of lazy results, each on the given worker."""
        waiting = [(node, place) for node, place in nodes if isinstance(node, Waiting) and node.future is None]
        if waiting:
            calls, places = [[node] for node, _ in waiting], [place for _, place in waiting]
            found = self.called(_itself, calls, calls[0][0].function.__name__, places)
            for [node], future in zip(calls, found, strict=True):
                # The arguments of a submitted call would keep all inputs of the call in memory, so drop them.
                node.future, node.arguments = future, ()

    def total(self, function: Callable[..., list[np.ndarray]], *rows: WorkerRows) -> list[np.ndarray]:
        """Apply `function` to the rows of each part and add up the results."""
        calls = list(zip(*(each.inputs() for each in rows), strict=True))
        sums = self.called(function, calls, function.__name__, self.places)
        while len(sums) > FAN_IN:
            batches = [sums[at : at + FAN_IN] for at in range(0, len(sums), FAN_IN)]
            sums = submit_each(self.client, _add_lists, batches)
        return _add_lists(*gathered(self.client, sums))


@dataclass(eq=False)
class Waiting:
    """Lazy call of a function with other results, futures and constants, for one part of the rows."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: Any = None  # Future of the result, or None before the result is requested.
    shared: bool = False  # Whether several expressions of a task use the result.


@dataclass(frozen=True)
class _Given:
    number: int


def _packed(node: Any, given: list[Any], seen: dict[int, Any]) -> Any:
    """Replace the futures of an expression with indices into `given`, because Dask finds futures only in arguments."""
    node = getattr(node, "future", None) or node
    if not isinstance(node, Waiting):
        if not hasattr(node, "key"):
            return node
        given.append(node)
        return _Given(len(given) - 1)
    if id(node) in seen:
        seen[id(node)].shared = True
    else:
        arguments = tuple(_packed(argument, given, seen) for argument in node.arguments)
        seen[id(node)] = Waiting(node.function, arguments)
    return seen[id(node)]


def _light(node: Any) -> bool:
    if not isinstance(node, Waiting) or node.future is not None:
        return True
    return node.function in _ELEMENTWISE and all(map(_light, node.arguments))


def _called(function: Callable[..., Any], nodes: list[Any], *given: Any) -> Any:
    known: dict[int, Any] = {}
    return function(*(_evaluate(node, given, known) for node in nodes))


def _evaluate(node: Any, given: tuple[Any, ...], known: dict[int, Any]) -> Any:
    if isinstance(node, _Given):
        return given[node.number]
    if not isinstance(node, Waiting):
        return node
    if id(node) in known:
        return known[id(node)]
    found = node.function(*(_evaluate(argument, given, known) for argument in node.arguments))
    if node.shared:
        known[id(node)] = found
    return found


class WorkerRows:
    """Tall block on workers. Arithmetic with other blocks, constants and one number per column is lazy."""

    __array_ufunc__ = None  # With None, operations with NumPy arrays use the methods of this class.
    ndim = 2

    def __init__(self, home: Home, nodes: list[Any], columns: int, dtype: Any):
        self.home, self._nodes = home, nodes
        self.shape, self.dtype = (home.parts[-1].stop, columns), np.dtype(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Total memory of all parts in bytes."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.shape[0] * self.shape[1]

    def futures(self) -> list[Any]:
        """Return the futures of all parts, which are submitted if necessary."""
        self.home.work_out(zip(self._nodes, self.home.places, strict=True))
        return [node.future if isinstance(node, Waiting) else node for node in self._nodes]

    @property
    def waits(self) -> bool:
        """Whether the parts are expressions that have not been submitted."""
        first = self._nodes[0]
        return isinstance(first, Waiting) and first.future is None and first.function is not operator.getitem

    def inputs(self) -> list[Any]:
        """Return the inputs of a sum over the rows: cheap expressions, or futures of the parts."""
        return self._nodes if all(map(_light, self._nodes)) else self.futures()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(gathered(self.home.client, self.futures())).astype(dtype or self.dtype, copy=False)

    def mapped(self, function: Callable[..., Any], *others: Any, columns: int | None = None, dtype: Any = None) -> Any:
        """Apply a function lazily to the rows of this and other blocks, part by part."""
        sources = [self._parts_of(other) for other in (self, *others)]
        nodes: list[Any] = [Waiting(function, own) for own in zip(*sources, strict=True)]
        return WorkerRows(self.home, nodes, self.shape[1] if columns is None else columns, dtype or self.dtype)

    def _parts_of(self, other: Any) -> list[Any]:
        if isinstance(other, np.ndarray) and other.ndim == 2 and len(other) == len(self):
            other = self.home.send(other)
        if isinstance(other, WorkerRows):
            return other._nodes
        return [self.home.small(other)] * len(self.home.parts)

    def _with(self, function: Callable[..., Any], other: Any) -> WorkerRows:
        kind = np.result_type(self.dtype, other.dtype if hasattr(other, "dtype") else other)
        return self.mapped(function, other, dtype=kind)

    def __add__(self, other: Any) -> WorkerRows:
        return self._with(operator.add, other)

    def __sub__(self, other: Any) -> WorkerRows:
        return self._with(operator.sub, other)

    def __mul__(self, other: Any) -> WorkerRows:
        return self._with(operator.mul, other)

    def __truediv__(self, other: Any) -> WorkerRows:
        return self._with(operator.truediv, other)

    __rmul__ = __mul__

    def __matmul__(self, S: np.ndarray) -> WorkerRows:
        return self.mapped(operator.matmul, S, columns=S.shape[1], dtype=np.result_type(self.dtype, S.dtype))

    def __rmatmul__(self, weights: np.ndarray) -> np.ndarray:
        return inner(self, self.home.send(weights[:, None]))[0][:, 0]

    @property
    def T(self) -> _Transposed:
        """Transpose for products with other blocks, whose k x l results the client receives."""
        return _Transposed(self)

    def astype(self, dtype: Any, copy: bool = True) -> WorkerRows:
        """Convert the values to another data type."""
        if self.dtype == dtype:
            return self
        return self.mapped(_astype, np.dtype(dtype), dtype=dtype)

    def mean(self, axis: int, dtype: Any = None) -> np.ndarray:
        """Compute the column means."""
        return self.sum(axis) / len(self)

    def sum(self, axis: int) -> np.ndarray:
        """Compute the column sums in float64."""
        return self.home.total(_column_sums, self)[0]

    def __getitem__(self, where: tuple[slice, Any]) -> WorkerRows:
        kept = np.arange(self.shape[1])[where[1]]
        return self if len(kept) == self.shape[1] else self.mapped(_columns_of, kept, columns=len(kept))

    def __setitem__(self, where: tuple[slice, Any], value: WorkerRows) -> None:
        kept = np.arange(self.shape[1])[where[1]]
        new = value if len(kept) == self.shape[1] else self.mapped(_with_columns, kept, value)
        self._nodes, self.dtype = new._nodes, new.dtype


@dataclass(frozen=True)
class _Transposed:
    rows: WorkerRows

    def __matmul__(self, other: WorkerRows) -> np.ndarray:
        return inner(self.rows, other)[0]


def mapped(function: Callable[..., Any], first: Any, *others: Any, columns: int | None = None) -> Any:
    """Apply a function of rows that returns `columns` columns, locally or on the workers that hold the rows."""
    on_workers = isinstance(first, WorkerRows)
    return first.mapped(function, *others, columns=columns) if on_workers else function(first, *others)


def summed(function: Callable[..., list[np.ndarray]], first: Any, *others: Any) -> list[np.ndarray]:
    """Apply a function to all rows. For rows on workers, add up the results of the parts."""
    on_workers = isinstance(first, WorkerRows)
    return first.home.total(function, first, *others) if on_workers else function(first, *others)


def settle(*blocks: Any) -> None:
    """Evaluate lazy blocks now, in one task per part for all blocks."""
    waiting = [block for block in blocks if isinstance(block, WorkerRows) and block.waits]
    if len(waiting) == 1:
        waiting[0].futures()
    elif waiting:
        home, parts = waiting[0].home, list(zip(*(block._nodes for block in waiting), strict=True))
        for nodes, found in zip(parts, home.called(_together, parts, "settle", home.places), strict=True):
            for at, node in enumerate(nodes):
                node.function, node.arguments = operator.getitem, (found, at)


def inner(P: Any, *others: Any) -> list[np.ndarray]:
    """Compute the products P'Q with several blocks Q in one communication round."""
    return summed(_inners, P, *others)


def lengths(B: Any) -> np.ndarray:
    """Compute the Euclidean norms of the columns of B."""
    if isinstance(B, WorkerRows):
        return np.sqrt(B.home.total(_squares, B)[0])
    return np.asarray(np.linalg.norm(B, axis=0))


def beside(rows: Any, array: Any) -> Any:
    """Return an array at the location of the rows, split into the same parts. Each array is sent once."""
    if not isinstance(rows, WorkerRows) or not hasattr(array, "ndim"):
        return array
    return array if isinstance(array, WorkerRows) and array.home.parts == rows.home.parts else rows.home.keep(array)


def hstack(blocks: Sequence[Any]) -> Any:
    """Stack blocks horizontally."""
    if not isinstance(blocks[-1], WorkerRows):
        return np.hstack(blocks)
    first, *others = [block for block in blocks if block.shape[1]]
    if not others:
        return first
    joined = first.mapped(_beside, *others, columns=sum(block.shape[1] for block in (first, *others)))
    # Join the blocks now: a lazy expression would join the blocks again at every use.
    joined.futures()
    return joined


def picked(index: np.ndarray, *blocks: WorkerRows) -> np.ndarray:
    """Fetch the rows with the given indices from horizontally stacked blocks."""
    home = blocks[0].home
    starts = np.array([part.start for part in home.parts])
    owner = np.searchsorted(starts, index, side="right") - 1
    asked, calls = np.unique(owner), []
    for at in asked:
        calls.append((index[owner == at] - starts[at], *(block.futures()[at] for block in blocks)))
    found = gathered(home.client, submit_each(home.client, _rows_of, calls))
    out = np.empty((len(index), found[0].shape[1]), found[0].dtype)
    for at, rows in zip(asked, found, strict=True):
        out[owner == at] = rows
    return out


def located(home: Callable[[], Home | None], search: Callable[[Callable[[np.ndarray], Any]], T]) -> T:
    """Run a search on the workers of its operators, and repeat it if they are lost.

    The search receives a function that sends tall blocks to its location.
    """
    # Checkpoints store only arrays of the client process, so a search with checkpoints runs in the client process.
    first = None if keeps_states() else home()
    if first is None:
        return search(np.asarray)

    def work() -> T:
        # If a worker is lost, its rows move to other workers, so look up the workers again.
        here = home()
        return search(np.asarray if here is None else here.send)

    return first.retried(work)


def pivoted_qr(B: Any) -> tuple[Any, np.ndarray]:
    """Compute Q and the diagonal of R of a QR factorization with column pivoting, which may overwrite B."""
    if not isinstance(B, WorkerRows):
        Q, R, _ = scipy.linalg.qr(B, mode="economic", pivoting=True, overwrite_a=True, check_finite=False)
        return Q, np.diag(R)
    # Factorize each row part, and then the stacked triangular factors: Demmel, Grigori, Hoemmen, Langou 2012.
    home = B.home
    pairs = submit_each(home.client, np.linalg.qr, [[part] for part in B.futures()], places=home.places)
    triangles = gathered(home.client, submit_each(home.client, operator.getitem, [(pair, 1) for pair in pairs]))
    Q, diagonal = pivoted_qr(np.concatenate(triangles))
    below = np.split(Q, np.cumsum([len(triangle) for triangle in triangles])[:-1])
    nodes: list[Any] = [Waiting(_turned, (pair, home.small(part))) for pair, part in zip(pairs, below, strict=True)]
    return WorkerRows(home, nodes, Q.shape[1], np.float64), diagonal


def _astype(rows: np.ndarray, dtype: Any) -> np.ndarray:
    return rows.astype(dtype)


def _columns_of(rows: np.ndarray, which: np.ndarray) -> np.ndarray:
    return rows[:, which]


def _with_columns(rows: np.ndarray, which: np.ndarray, value: np.ndarray) -> np.ndarray:
    rows = rows.copy()  # A task must not modify its inputs.
    rows[:, which] = value
    return rows


def _beside(*blocks: np.ndarray) -> np.ndarray:
    return np.hstack(blocks)


def _rows_of(index: np.ndarray, *blocks: np.ndarray) -> np.ndarray:
    return np.hstack([block[index] for block in blocks])


def _turned(pair: tuple[np.ndarray, np.ndarray], S: np.ndarray) -> np.ndarray:
    return pair[0] @ S


def _column_sums(rows: np.ndarray) -> list[np.ndarray]:
    return [rows.sum(axis=0, dtype=np.float64)]


def _squares(rows: np.ndarray) -> list[np.ndarray]:
    return [(rows * rows).sum(axis=0, dtype=np.float64)]


def _inners(P: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    return [P.T @ Q for Q in others]


def _itself(rows: Any) -> Any:
    return rows


def _together(*blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    return blocks


def added(first: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """Add arrays without changing them."""
    total = first.copy()  # A repeated task needs the original array.
    for other in others:
        total += other
    return total


def _add_lists(*lists: list[np.ndarray]) -> list[np.ndarray]:
    return [sum(arrays[1:], arrays[0]) for arrays in zip(*lists, strict=True)]


_ELEMENTWISE = operator.add, operator.sub, operator.mul, operator.truediv, operator.getitem, added, _astype, _columns_of
