"""Tall blocks (n x k) on the workers that hold an operator, in parts of their rows; they compute as NumPy arrays do.

Results wait until a product or a sum over the rows needs them, and are then one task a part, for whole expressions. To this
process come sums over the rows alone: k x k and r x k numbers.
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
FAN_IN = 4  # shares, or sums of parts, that one task adds up
_SMALL = 1 << 21  # bytes of the copies of an array that are sent along with the tasks that take it


class Home:
    """The workers that row blocks live on, and the rows of each part."""

    # What is sent is lost with its worker, and all that follows from it: `retried` begins anew from what this process has.

    def __init__(self, client: Any, parts: list[slice], places: list[str], lost: Callable[[], None]):
        self.client, self.parts, self.places, self.lost = client, parts, places, lost
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._last: tuple[Any, Any] = None, None

    def scattered(self, array: np.ndarray) -> list[Any]:
        """Futures of the parts of an array: (n, k) or (n,)."""
        return send(self.client, [np.ascontiguousarray(array[part]) for part in self.parts], self.places)

    def send(self, array: np.ndarray) -> WorkerRows:
        """Put an array on the workers: (n, k)."""
        return WorkerRows(self, self.scattered(array), array.shape[1], array.dtype)

    def keep(self, what: Any) -> Any:
        """Put an array on the workers, or call what makes rows there, once for all that use this very object."""
        if id(what) not in self._kept:
            self._kept[id(what)] = what, what() if callable(what) else self.send(np.asarray(what))
        return self._kept[id(what)][1]

    def small(self, array: Any) -> Any:
        """What tasks take for a k x k array: a future of it where it is large, so that it travels once."""
        if not isinstance(array, np.ndarray) or array.nbytes * len(self.parts) <= _SMALL:
            return array
        if self._last[0] is not array:
            self._last = array, submit(self.client, operator.pos, array)
        return self._last[1]

    def retried(self, work: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """Do work on these rows, anew where workers were lost with what they held."""
        return retried(self.client, work, self._forget, progress)

    def _forget(self) -> None:
        self._kept.clear()
        self._last = None, None
        self.lost()

    def called(
        self, function: Callable[..., Any], calls: Sequence[Sequence[Any]], name: str, places: Sequence[str]
    ) -> list[Any]:
        """Futures of a function of results that wait, futures and constants, for several lists of these."""
        packed = []
        for nodes in calls:
            given: list[Any] = []
            seen: dict[int, Any] = {}
            packed.append((function, [_packed(node, given, seen) for node in nodes], *given))
        return submit_each(self.client, _called, packed, name, places)

    def work_out(self, nodes: Iterable[tuple[Any, str]]) -> None:
        """Have what waits computed, each at its place."""
        waiting = [(node, place) for node, place in nodes if isinstance(node, Waiting) and node.future is None]
        if waiting:
            calls, places = [[node] for node, _ in waiting], [place for _, place in waiting]
            found = self.called(_itself, calls, calls[0][0].function.__name__, places)
            for [node], future in zip(calls, found, strict=True):
                node.future, node.arguments = future, ()  # which would hold all that it was made of

    def total(self, function: Callable[..., list[np.ndarray]], *rows: WorkerRows) -> list[np.ndarray]:
        """The sums over the parts of what `function` makes of each part's rows."""
        calls = list(zip(*(each.inputs() for each in rows), strict=True))
        sums = self.called(function, calls, function.__name__, self.places)
        while len(sums) > FAN_IN:
            batches = [sums[at : at + FAN_IN] for at in range(0, len(sums), FAN_IN)]
            sums = submit_each(self.client, _add_lists, batches)
        return _add_lists(*gathered(self.client, sums))


@dataclass(eq=False)
class Waiting:
    """A function of other results, of futures and of constants, for one part of the rows."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: Any = None  # of what it gives, once that was asked for
    shared: bool = False  # by several expressions of a task


@dataclass(frozen=True)
class _Given:
    number: int


def _packed(node: Any, given: list[Any], seen: dict[int, Any]) -> Any:
    """The expression with numbers in place of its futures, which come to `given`: Dask looks for them there alone."""
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
    """A tall block on workers; arithmetic with others, with constants and with one number a column waits."""

    __array_ufunc__ = None  # NumPy leaves operations with it to this class
    ndim = 2

    def __init__(self, home: Home, nodes: list[Any], columns: int, dtype: Any):
        self.home, self._nodes = home, nodes
        self.shape, self.dtype = (home.parts[-1].stop, columns), np.dtype(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts together."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    @property
    def size(self) -> int:
        """Entries."""
        return self.shape[0] * self.shape[1]

    def futures(self) -> list[Any]:
        """The parts, computed or on their way."""
        self.home.work_out(zip(self._nodes, self.home.places, strict=True))
        return [node.future if isinstance(node, Waiting) else node for node in self._nodes]

    @property
    def waits(self) -> bool:
        """Whether the parts are expressions."""
        first = self._nodes[0]
        return isinstance(first, Waiting) and first.future is None and first.function is not operator.getitem

    def inputs(self) -> list[Any]:
        """What a sum over the rows takes: the parts, or what they are made of by less work than a task of its own is."""
        return self._nodes if all(map(_light, self._nodes)) else self.futures()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(gathered(self.home.client, self.futures())).astype(dtype or self.dtype, copy=False)

    def mapped(self, function: Callable[..., Any], *others: Any, columns: int | None = None, dtype: Any = None) -> Any:
        """The rows that a function makes of these and of others, part by part."""
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
        """The transpose, to be multiplied with other rows: k x l numbers, in this process."""
        return _Transposed(self)

    def astype(self, dtype: Any, copy: bool = True) -> WorkerRows:
        """Convert the values."""
        if self.dtype == dtype:
            return self
        return self.mapped(_astype, np.dtype(dtype), dtype=dtype)

    def mean(self, axis: int, dtype: Any = None) -> np.ndarray:
        """Means of the columns."""
        return self.sum(axis) / len(self)

    def sum(self, axis: int) -> np.ndarray:
        """Sums of the columns, in float64."""
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
    """Apply a function of rows, which gives so many columns, to rows, here or where they live."""
    on_workers = isinstance(first, WorkerRows)
    return first.mapped(function, *others, columns=columns) if on_workers else function(first, *others)


def summed(function: Callable[..., list[np.ndarray]], first: Any, *others: Any) -> list[np.ndarray]:
    """What a function makes of rows, of all or as sums over the parts of those on workers."""
    on_workers = isinstance(first, WorkerRows)
    return first.home.total(function, first, *others) if on_workers else function(first, *others)


def settle(*blocks: Any) -> None:
    """Have what blocks wait for computed now, in one task a part for all of them."""
    waiting = [block for block in blocks if isinstance(block, WorkerRows) and block.waits]
    if len(waiting) == 1:
        waiting[0].futures()
    elif waiting:
        home, parts = waiting[0].home, list(zip(*(block._nodes for block in waiting), strict=True))
        for nodes, found in zip(parts, home.called(_together, parts, "settle", home.places), strict=True):
            for at, node in enumerate(nodes):
                node.function, node.arguments = operator.getitem, (found, at)


def inner(P: Any, *others: Any) -> list[np.ndarray]:
    """P'Q for every other Q, in one round: P (n, k), Q (n, l) -> (k, l)."""
    return summed(_inners, P, *others)


def lengths(B: Any) -> np.ndarray:
    """Lengths of columns: (n, k) -> (k,)."""
    if isinstance(B, WorkerRows):
        return np.sqrt(B.home.total(_squares, B)[0])
    return np.asarray(np.linalg.norm(B, axis=0))


def beside(rows: Any, array: Any) -> Any:
    """An array where the rows live, in the same parts, sent once."""
    if not isinstance(rows, WorkerRows) or not hasattr(array, "ndim"):
        return array
    return array if isinstance(array, WorkerRows) and array.home.parts == rows.home.parts else rows.home.keep(array)


def hstack(blocks: Sequence[Any]) -> Any:
    """Blocks side by side: (n, k) and (n, l) -> (n, k + l)."""
    if not isinstance(blocks[-1], WorkerRows):
        return np.hstack(blocks)
    first, *others = [block for block in blocks if block.shape[1]]
    if not others:
        return first
    joined = first.mapped(_beside, *others, columns=sum(block.shape[1] for block in (first, *others)))
    joined.futures()  # or every use would join them anew
    return joined


def picked(index: np.ndarray, *blocks: WorkerRows) -> np.ndarray:
    """Some rows of blocks side by side, in this process: (n, k) and (n, l) -> (m, k + l)."""
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
    """Do a search where its operators live, and anew where they are lost; it is given what puts tall blocks there."""
    first = None if keeps_states() else home()  # what is kept for another run is one array
    if first is None:
        return search(np.asarray)

    def work() -> T:
        here = home()  # asked anew: where one was lost, the rows live elsewhere
        return search(np.asarray if here is None else here.send)

    return first.retried(work)


def pivoted_qr(B: Any) -> tuple[Any, np.ndarray]:
    """Q and the diagonal of R, of a QR with pivoted columns, which B may be used up for: (n, k) -> (n, k), (k,)."""
    if not isinstance(B, WorkerRows):
        Q, R, _ = scipy.linalg.qr(B, mode="economic", pivoting=True, overwrite_a=True, check_finite=False)
        return Q, np.diag(R)
    # of every part alone, and of their triangles: Demmel, Grigori, Hoemmen, Langou 2012
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
    rows = rows.copy()  # what a task is given belongs to the worker
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
    """The sum of arrays."""
    total = first.copy()  # inputs of a task belong to the worker's memory, and are needed again if the task is repeated
    for other in others:
        total += other
    return total


def _add_lists(*lists: list[np.ndarray]) -> list[np.ndarray]:
    return [sum(arrays[1:], arrays[0]) for arrays in zip(*lists, strict=True)]


_ELEMENTWISE = operator.add, operator.sub, operator.mul, operator.truediv, operator.getitem, added, _astype, _columns_of
