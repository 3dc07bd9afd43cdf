"""Moments: everything that graph-free methods need of n samples, in one small matrix, from one pass.

For stacked columns S = [F_1 ... F_V, Y] of n rows, the moments are n, the sums S'1 and the Gram matrix S'S. They add up
over row blocks, folds and machines, and subtract: all samples less a fold are the fold's training set.

On digits: a block's product runs in the block's own precision, mostly float32, since it is nearly all of the work; its
rounding is that of BLAS's sums of a block's 4096 terms, 5e-7 of the product of two columns' lengths and 6e-6 where all terms
are equal, by the processor (shorter sums, of 256 terms, lose a half to a third of it and cost an eighth of the speed). Blocks
are added in float64: in float32 the sum over a million rows would
lose the small eigenvalues that ridges of 1e-5 let through. A tree of sums on a cluster keeps that error at the logarithm of
the number of blocks and, which matters more, its shape makes the bits independent of the workers. Centering comes last, on
the small matrix: G - s s'/n cancels where columns lie far from the origin, so whoever has such columns shifts them before
(see `krylov.ShiftedRows`); factor rows of bounded kernels do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np
import scipy.sparse

from dmo.devices import foreign, placed, to_numpy
from dmo.errors import UserError
from dmo.threads import in_threads, thread_count

LABELS = "labels"
"""Name of the label columns among the groups."""
ROWS = "rows"
"""Name of the samples' columns (features or factor rows) among the groups of the moments."""
WEIGHTED = "weighted"
"""Name of the same columns with every row multiplied by its entry of the diagonal of S."""


@dataclass(frozen=True)
class Moments:
    """Count, sums and Gram matrix of named groups of columns.

    Moments of the same columns add up and subtract.

    Parameters
    ----------
    widths : dict of str to int
        Columns of every group, in order.
    n : int or float
        Rows seen, or the sum of their weights s.
    sums : ndarray of shape (m,), float64
        S'1, or S's.
    gram : ndarray of shape (m, m), float64
        S'S, or S' diag(s) S.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import Moments
    >>> rng = np.random.default_rng(0)
    >>> blocks = [{"x": rng.normal(size=(10, 3)), "labels": np.ones((10, 1))} for _ in range(4)]
    >>> total = Moments.collect(blocks)
    >>> total.n, (total - Moments.of(blocks[0])).n, total.gram.shape
    (40, 30, (4, 4))
    """

    widths: dict[str, int]
    n: float
    sums: np.ndarray
    gram: np.ndarray

    @classmethod
    def zeros(cls, widths: Mapping[str, int]) -> Moments:
        """Make the moments of no rows.

        Parameters
        ----------
        widths : mapping of str to int
            Columns of every group.

        Returns
        -------
        Moments
            Zeros.
        """
        m = sum(widths.values())
        return cls(dict(widths), 0, np.zeros(m), np.zeros((m, m)))

    @classmethod
    def of(cls, block: Mapping[str, Any] | np.ndarray) -> Moments:
        """Make the moments of one block of rows.

        Products run in the block's own precision, block-sparse and sparse groups never become dense, sums are float64.

        Parameters
        ----------
        block : mapping of str to array of shape (m_b, d), or one array
            Groups: NumPy, SciPy sparse, or block-sparse rows with `gram`; or of another library, such as torch or CuPy, on
            whose device all groups are then multiplied.

        Returns
        -------
        Moments
            Of these rows.

        Raises
        ------
        UserError
            For groups of unequal rows and for values that are not finite.
        """
        return cls.zeros({name: int(part.shape[1]) for name, part in _groups(block).items()}).absorb(block)

    @classmethod
    def collect(cls, blocks: Iterable[Mapping[str, Any] | np.ndarray]) -> Moments:
        """Add up the moments of blocks of rows, one after the other; holds one block and one m x m matrix.

        Parameters
        ----------
        blocks : iterable of mapping or array
            See `of`.

        Returns
        -------
        Moments
            Of all rows.

        Raises
        ------
        UserError
            For no blocks, and as `of`.
        """
        total: Moments | None = None
        for block in blocks:
            total = cls.of(block) if total is None else total.absorb(block)
        if total is None:
            raise UserError("moments: no blocks to collect; pass at least one")
        return total

    def absorb(
        self, block: Mapping[str, Any] | np.ndarray, roots: np.ndarray | None = None, skip: str | None = None
    ) -> Moments:
        """Add a further block into the arrays of these moments, which are used up.

        At thousands of columns, making and adding a second matrix takes as long as its product.

        Parameters
        ----------
        block : mapping of str to array of shape (m_b, d), or one array
            See `of`.
        roots : ndarray of shape (m_b,) or None, default=None
            Square roots of the rows' weights, by which the rows have been multiplied; None: ones.
        skip : str or None, default=None
            Group whose products with itself are not needed. They are 0 in the result.

        Returns
        -------
        Moments
            With these rows.

        Raises
        ------
        UserError
            As `of`.
        """
        groups = _groups(block)
        rows = {name: part.shape[0] for name, part in groups.items()}
        if len(set(rows.values())) != 1:
            raise UserError(f"moments: groups have unequal rows {rows}; pass the same samples in every group")
        n, widths = next(iter(rows.values())), {name: int(part.shape[1]) for name, part in groups.items()}
        _check_same(self.widths, widths)
        slices = self.slices()
        if any(foreign(part) is not None for part in groups.values()):
            _add_elsewhere(self, groups, roots)
            groups = {}
        ones = np.ones((n, 1), np.float32) if roots is None else roots[:, None]
        dense = [name for name, part in groups.items() if isinstance(part, np.ndarray)]
        _add_dense(self, {name: groups[name] for name in dense}, slices, roots, None if skip is None else slices[skip])
        for name, part in groups.items():
            if name not in dense:
                self.sums[slices[name]] += _cross(part, ones)[:, 0]
                for other, theirs in groups.items():
                    after = list(groups).index(other) >= list(groups).index(name)
                    if (other in dense or after) and not name == other == skip:
                        cell = _cross(part, theirs)
                        _add_cell(self.gram[slices[name], slices[other]], cell)
                        if other != name:
                            _add_cell(self.gram[slices[other], slices[name]], cell.T)
        if skip is not None and (skip in dense or not groups):
            self.gram[slices[skip], slices[skip]] = 0.0  # a panel may join some of its columns with another group's
        finite = np.isfinite(self.gram.diagonal() + self.sums)  # sums and squares of other values are not finite
        if not finite.all():
            bad = [name for name in self.widths if not finite[slices[name]].all()]
            raise UserError(f"moments: group {bad[0]!r} has values that are not finite; clean the features")
        return Moments(self.widths, self.n + (n if roots is None else float(roots @ roots)), self.sums, self.gram)

    def __add__(self, other: Moments) -> Moments:
        _check_same(self.widths, other.widths)
        return Moments(self.widths, self.n + other.n, self.sums + other.sums, self.gram + other.gram)

    def __sub__(self, other: Moments) -> Moments:
        _check_same(self.widths, other.widths)
        if other.n > self.n:
            raise UserError(f"moments of {other.n} rows cannot be taken from those of {self.n}; subtract a part")
        return Moments(self.widths, self.n - other.n, self.sums - other.sums, self.gram - other.gram)

    def slices(self) -> dict[str, slice]:
        """Look up where every group stands.

        Returns
        -------
        dict of str to slice
            Its slice of the columns.
        """
        edges = np.cumsum([0, *self.widths.values()])
        return {name: slice(int(a), int(b)) for name, a, b in zip(self.widths, edges[:-1], edges[1:], strict=True)}

    def mean(self) -> np.ndarray:
        """Work out the mean of every column.

        Returns
        -------
        ndarray of shape (m,)
            Means.
        """
        return self.sums / self.n

    def centered(self) -> Moments:
        """Take the columns less their means: Gram matrix S'S - S'1 1'S / n, sums 0.

        Returns
        -------
        Moments
            Of the centered columns.
        """
        gram = np.outer(self.sums, self.sums / -self.n)
        gram += self.gram
        return Moments(self.widths, self.n, np.zeros_like(self.sums), gram)

    def centered_gram(self, group: str) -> np.ndarray:
        """Work out the Gram matrix of one group's columns less their means.

        Parameters
        ----------
        group : str
            Its name.

        Returns
        -------
        ndarray of shape (d, d)
            Gram matrix.
        """
        where = self.slices()[group]
        return np.asarray(self.gram[where, where] - np.outer(self.sums[where], self.sums[where] / self.n))

    def of_scores(self, coefficients: Mapping[str, np.ndarray], offset: np.ndarray) -> ScoreSums:
        """Sum up the scores s(x) = sum_g g(x) W_g + offset, and their squares, over these rows.

        Parameters
        ----------
        coefficients : mapping of str to ndarray of shape (d, L)
            W_g by group.
        offset : ndarray of shape (L,)
            Added to all scores.

        Returns
        -------
        ScoreSums
            Of L scores.
        """
        slices = self.slices()
        W = np.zeros((len(self.sums), len(offset)))
        for name, part in coefficients.items():
            W[slices[name]] = part
        linear = self.sums @ W
        square = np.einsum("ij,ij->j", W, self.gram @ W)
        return ScoreSums(self.n, linear + self.n * offset, square + 2 * offset * linear + self.n * offset**2)

    def mixed(self, mixings: Mapping[str, np.ndarray]) -> Moments:
        """Turn each named group F into F T: Gram T'GT (a low-rank kernel's last, small factor).

        Parameters
        ----------
        mixings : mapping of str to ndarray of shape (d, r)
            T by group.

        Returns
        -------
        Moments
            Of the mixed columns.
        """
        if not mixings.keys() & self.widths.keys():
            return self
        slices = self.slices()
        widths = {name: mixings[name].shape[1] if name in mixings else width for name, width in self.widths.items()}
        found = Moments.zeros(widths)
        theirs = found.slices()

        def mix(name: str) -> None:
            where, T = slices[name], mixings.get(name)
            found.sums[theirs[name]] = self.sums[where] if T is None else T.T @ self.sums[where]
            # the cells on and left of the diagonal, the others are their mirror image: half the products, no copies
            left = self.gram[where, : where.stop]
            left = left if T is None else T.T @ left
            for other, there in slices.items():
                S = mixings.get(other)
                cell = left[:, there] if S is None else left[:, there] @ S
                if other == name:
                    found.gram[theirs[name], theirs[name]] = (cell + cell.T) / 2
                    break
                found.gram[theirs[name], theirs[other]] = cell
                found.gram[theirs[other], theirs[name]] = cell.T

        in_threads(mix, list(slices))
        return replace(found, n=self.n)

    def widened(self, group: str, width: int) -> Moments:
        """Add columns of zeros at the end of a group.

        Parameters
        ----------
        group : str
            Its name.
        width : int
            Its columns then.

        Returns
        -------
        Moments
            Of the wider group.

        Raises
        ------
        UserError
            Where it has more columns already.
        """
        more = width - self.widths[group]
        if more < 0:
            raise UserError(f"moments: group {group!r} has {self.widths[group]} columns, it cannot have {width}")
        at = np.full(more, self.slices()[group].stop)
        gram = np.insert(np.insert(self.gram, at, 0.0, axis=0), at, 0.0, axis=1)
        return Moments(self.widths | {group: width}, self.n, np.insert(self.sums, at, 0.0), gram)

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Describe the moments for a store.

        Returns
        -------
        arrays : dict of str to ndarray
            Sums and Gram matrix.
        meta : dict
            Its JSON.
        """
        return {"sums": self.sums, "gram": self.gram}, {"widths": self.widths, "n": self.n}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Moments:
        """Make the moments that `to_arrays` described.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            Sums and Gram matrix.
        meta : mapping
            Its JSON.

        Returns
        -------
        Moments
            The moments.
        """
        return cls(dict(meta["widths"]), meta["n"], arrays["sums"], arrays["gram"])


@dataclass(frozen=True)
class ScoreSums:
    """Rows, sums and sums of squares of L scores; `pooled` turns several into mean and deviation.

    total, square (L,)
    """

    n: float  # rows, or the sum of their weights
    total: np.ndarray  # (L,): sums
    square: np.ndarray  # (L,): sums of squares


def label_groups(values: float | np.ndarray, n_labels: int) -> list[tuple[float, slice | np.ndarray]]:
    """Group the labels that have the same value of a parameter.

    values (n_labels,)
    """
    if not isinstance(values, np.ndarray):
        return [(values, slice(None))]
    if values.shape != (n_labels,):
        raise UserError(f"ridge has {values.shape[0]} values for {n_labels} labels; give one per label, or one for all")
    known, which = np.unique(values, return_inverse=True)
    return [(float(value), np.flatnonzero(which == i)) for i, value in enumerate(known)]


def pooled(parts: Iterable[ScoreSums]) -> tuple[np.ndarray, np.ndarray]:
    """Work out mean and standard deviation of every score over all parts.

    -> mean, deviation (L,)
    """
    parts = list(parts)
    n = sum(part.n for part in parts)
    mean = np.sum([part.total for part in parts], axis=0) / n
    variance = np.sum([part.square for part in parts], axis=0) / n - mean**2
    return mean, np.sqrt(np.maximum(variance, 0.0))


def _groups(block: Mapping[str, Any] | np.ndarray) -> dict[str, Any]:
    return dict(block) if isinstance(block, Mapping) else {"x": block}


_PANEL = 512  # columns whose products with as many others stay in the second-level cache


def _add_dense(
    moments: Moments,
    groups: Mapping[str, np.ndarray],
    slices: Mapping[str, slice],
    roots: np.ndarray | None,
    skip: slice | None,
) -> None:
    """Add the products of dense groups by panels of columns, except those of the columns `skip` with each other.

    Cells above the diagonal are mirror images.
    """
    # A product of two panels is added to both its places while it is in the cache, and its memory is used again. One
    # product of all columns, stacked for it, went through memory four times more: with thousands of columns a sixth
    # of its time.
    panels = _panels(groups, slices)
    for columns, part in panels:
        moments.sums[columns] += part.sum(axis=0, dtype=np.float64) if roots is None else roots @ part
    skipped = [skip is not None and skip.start <= columns.start and columns.stop <= skip.stop for columns, _ in panels]
    pairs = [(one, panels[j]) for i, one in enumerate(panels) for j in range(i + 1) if not (skipped[i] and skipped[j])]

    def add(run: int) -> None:
        room: dict[np.dtype, np.ndarray] = {}
        for (columns, part), (others, beside) in pairs[run::runs]:
            kind, shape = np.result_type(part, beside), (part.shape[1], beside.shape[1])
            held = room.setdefault(kind, np.empty(_PANEL * _PANEL, kind))
            # the same array on both sides, which a conversion to its own type leaves, is half of the work for BLAS
            left, right = part.astype(kind, copy=False), beside.astype(kind, copy=False)
            cell = np.matmul(left.T, right, out=held[: shape[0] * shape[1]].reshape(shape))
            moments.gram[columns, others] += cell
            if beside is not part:
                moments.gram[others, columns] += cell.T

    runs = max(1, min(thread_count(), len(pairs)))
    in_threads(add, range(runs))


def _panels(groups: Mapping[str, np.ndarray], slices: Mapping[str, slice]) -> list[tuple[slice, np.ndarray]]:
    """(columns, rows in float32 or float64) in pieces of at most `_PANEL` columns: parts of wide groups, neighbors stacked.

    Groups of different precision stay apart, as stacking them would widen all to float64.
    """
    panels: list[tuple[slice, list[np.ndarray]]] = []
    for name, group in groups.items():
        where, count = slices[name], max(1, -(-group.shape[1] // _PANEL))
        single = np.promote_types(group.dtype, np.float32) == np.float32  # which holds all values of that type
        for part in np.array_split(group.astype(np.float32 if single else np.float64, copy=False), count, axis=1):
            last = panels[-1] if panels else None
            start = where.start if last is None or last[0].stop <= where.start else last[0].stop
            stop = start + part.shape[1]
            if last and last[0].stop == start and stop - last[0].start <= _PANEL and last[1][0].dtype == part.dtype:
                panels[-1] = slice(last[0].start, stop), [*last[1], part]
            else:
                panels.append((slice(start, stop), [part]))
    return [(columns, parts[0] if len(parts) == 1 else np.hstack(parts)) for columns, parts in panels]


def _add_elsewhere(moments: Moments, groups: Mapping[str, Any], roots: np.ndarray | None) -> None:
    """Add the products of groups some of which another library holds: on its device, in one product; sums come back."""
    there = next(part for part in groups.values() if foreign(part) is not None)
    xp = foreign(there)
    parts = []
    for part in groups.values():
        part = part.toarray() if scipy.sparse.issparse(part) else part.dense() if hasattr(part, "gram") else part
        if foreign(part) is None and np.promote_types(part.dtype, np.float32) == np.float32:
            part = part.astype(np.float32, copy=False)  # labels are bytes
        parts.append(placed(part, there))
    kind = xp.result_type(*parts)
    S = xp.concat([xp.astype(part, kind) for part in parts], axis=1)
    ones = (
        xp.ones(S.shape[0], dtype=xp.float64, device=array_api_compat.device(S)) if roots is None else placed(roots, S)
    )
    moments.sums[:] += to_numpy(xp.matmul(ones, xp.astype(S, xp.float64)))
    moments.gram[:] += to_numpy(xp.matmul(xp.matrix_transpose(S), S))


def _add_cell(gram: np.ndarray, cell: Any) -> None:
    """Add a product in place; of a sparse one, such as that of labels with labels, the stored entries alone."""
    if scipy.sparse.issparse(cell):
        found = scipy.sparse.coo_array(cell)
        gram[found.coords] += found.data
    else:
        gram += cell


def _cross(left: Any, right: Any) -> Any:
    """Compute left'right where left is sparse or block-sparse: CSR if both are sparse, otherwise an array."""
    if hasattr(left, "gram"):
        if scipy.sparse.issparse(right):
            return np.asarray(right.T @ left.dense(), np.float64).T
        return np.asarray(left.gram(right), np.float64)
    if hasattr(right, "gram"):
        return _cross(right, left).T
    product = scipy.sparse.csr_array(left).T @ (
        right if isinstance(right, np.ndarray) else scipy.sparse.csr_array(right)
    )
    return scipy.sparse.csr_array(product) if scipy.sparse.issparse(product) else np.asarray(product)


def _check_same(left: Mapping[str, int], right: Mapping[str, int]) -> None:
    if list(left.items()) != list(right.items()):
        raise UserError(f"moments of columns {dict(left)} and {dict(right)} do not add up; use the same feature maps")
