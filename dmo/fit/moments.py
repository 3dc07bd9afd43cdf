"""Moments: a small matrix that summarizes n samples for methods without graphs, collected in one pass.

For the matrix S of all feature and label columns, with n rows, the moments are n, the column sums S'1 and the Gram
matrix S'S. Moments of row blocks, folds and machines can be added. The moments of a training set are the moments of all
samples minus the moments of the held-out fold.

Matrix products use the precision of the block, mostly float32, because they are nearly all of the work. The rounding
error of a float32 product is 5e-7 of the product of the two column lengths, or up to 6e-6 if all terms are equal.
Blocks are added in float64, because a float32 sum over a million rows would lose the small eigenvalues that matter for
ridges of 1e-5. On a cluster, the error of tree reduction grows only with the logarithm of the number of blocks. The
tree has a fixed shape, so that the results are bit-identical for any number of workers. Centering is applied last, to
the small matrix. Because it cancels for columns far from the origin, `krylov.ShiftedRows` shifts such columns first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np
import scipy.sparse

from dmo.blocks import add_to, as_block, dense
from dmo.devices import foreign, placed, to_numpy
from dmo.errors import UserError
from dmo.threads import in_threads, thread_count

LABELS = "labels"
"""Name of the group of label columns."""
ROWS = "rows"
"""Name of the group of feature or factor columns."""
WEIGHTED = "weighted"
"""Name of the group of feature or factor columns whose rows are multiplied by given numbers."""


@dataclass(frozen=True)
class Moments:
    """Number of rows, column sums and Gram matrix of named groups of columns.

    Moments of the same columns can be added and subtracted.

    Parameters
    ----------
    widths : dict of str to int
        Number of columns of each group, in the order of the columns.
    n : int or float
        Number of rows, or the sum of their weights.
    sums : ndarray of shape (m,), float64
        Sums of the columns over the rows, with weights if the rows have weights.
    gram : ndarray of shape (m, m), float64
        Sums of the products of all pairs of columns, with weights if the rows have weights.

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
        """Return the moments of zero rows.

        Parameters
        ----------
        widths : mapping of str to int
            Number of columns of each group.

        Returns
        -------
        Moments
            Moments that are all zero.
        """
        m = sum(widths.values())
        return cls(dict(widths), 0, np.zeros(m), np.zeros((m, m)))

    @classmethod
    def of(cls, block: Mapping[str, Any] | np.ndarray) -> Moments:
        """Compute the moments of one block of rows.

        Products use the precision of the block, and sums use float64. Sparse and block-sparse groups stay sparse if all
        groups are NumPy, SciPy or block-sparse arrays.

        Parameters
        ----------
        block : mapping of str to array of shape (m_b, d), or one array
            Groups of columns as NumPy arrays, SciPy sparse arrays, or block-sparse rows. If a group is an array of
            another library, such as torch or CuPy, all groups are converted to dense arrays and multiplied on its
            device.

        Returns
        -------
        Moments
            Moments of these rows.

        Raises
        ------
        UserError
            If groups have different numbers of rows, or if values are not finite.
        """
        return cls.zeros({name: int(part.shape[1]) for name, part in _groups(block).items()}).absorb(block)

    @classmethod
    def collect(cls, blocks: Iterable[Mapping[str, Any] | np.ndarray]) -> Moments:
        """Sum the moments of blocks of rows, with one block and one m x m matrix in memory at a time.

        Parameters
        ----------
        blocks : iterable of mapping or array
            Blocks of rows in one of the forms that `of` accepts.

        Returns
        -------
        Moments
            Moments of all rows.

        Raises
        ------
        UserError
            If there are no blocks, or if `of` would raise an error for a block.
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
        """Add a block to these moments in place and return the sum. The original moments become invalid.

        Parameters
        ----------
        block : mapping of str to array of shape (m_b, d), or one array
            Block of rows in one of the forms that `of` accepts.
        roots : ndarray of shape (m_b,) or None, default=None
            Square roots of the row weights, by which the rows must already be multiplied. None means unit weights.
        skip : str or None, default=None
            Name of a group whose products with itself are not needed and are 0 in the result.

        Returns
        -------
        Moments
            Moments including these rows.

        Raises
        ------
        UserError
            If `of` would raise an error for the block, or if the columns differ.
        """
        groups = _groups(block)
        rows = {name: part.shape[0] for name, part in groups.items()}
        if len(set(rows.values())) != 1:
            raise UserError(
                f"moments: groups have different numbers of rows, {rows}; pass the same samples in every group"
            )
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
                        add_to(self.gram[slices[name], slices[other]], cell)
                        if other != name:
                            add_to(self.gram[slices[other], slices[name]], cell.T)
        if skip is not None and (skip in dense or not groups):
            # A panel can contain columns of several groups, so the products of the skipped group may have been
            # computed.
            self.gram[slices[skip], slices[skip]] = 0.0
        # If a column contains NaN or infinity, its sum or its squared norm is not finite either.
        finite = np.isfinite(self.gram.diagonal() + self.sums)
        if not finite.all():
            bad = [name for name in self.widths if not finite[slices[name]].all()]
            raise UserError(f"moments: group {bad[0]!r} has values that are not finite; replace NaN and infinity")
        return Moments(self.widths, self.n + (n if roots is None else float(roots @ roots)), self.sums, self.gram)

    def __add__(self, other: Moments) -> Moments:
        _check_same(self.widths, other.widths)
        return Moments(self.widths, self.n + other.n, self.sums + other.sums, self.gram + other.gram)

    def __sub__(self, other: Moments) -> Moments:
        _check_same(self.widths, other.widths)
        if other.n > self.n:
            raise UserError(f"moments of {other.n} rows cannot be subtracted from those of {self.n}; subtract a subset")
        return Moments(self.widths, self.n - other.n, self.sums - other.sums, self.gram - other.gram)

    def slices(self) -> dict[str, slice]:
        """Return the column range of each group.

        Returns
        -------
        dict of str to slice
            Column range of each group.
        """
        edges = np.cumsum([0, *self.widths.values()])
        return {name: slice(int(a), int(b)) for name, a, b in zip(self.widths, edges[:-1], edges[1:], strict=True)}

    def mean(self) -> np.ndarray:
        """Compute the mean of each column.

        Returns
        -------
        ndarray of shape (m,)
            Column means.
        """
        return self.sums / self.n

    def centered(self) -> Moments:
        """Compute the moments of the centered columns, whose sums are 0.

        Returns
        -------
        Moments
            Moments of the centered columns.
        """
        gram = np.outer(self.sums, self.sums / -self.n)
        gram += self.gram
        return Moments(self.widths, self.n, np.zeros_like(self.sums), gram)

    def centered_gram(self, group: str) -> np.ndarray:
        """Compute the Gram matrix of the centered columns of one group.

        Parameters
        ----------
        group : str
            Name of the group.

        Returns
        -------
        ndarray of shape (d, d)
            Gram matrix of the centered columns.
        """
        where = self.slices()[group]
        return np.asarray(self.gram[where, where] - np.outer(self.sums[where], self.sums[where] / self.n))

    def of_scores(self, coefficients: Mapping[str, np.ndarray], offset: np.ndarray) -> ScoreSums:
        """Sum the scores of these rows, and their squares, for linear functions of the groups.

        Parameters
        ----------
        coefficients : mapping of str to ndarray of shape (d, L)
            Coefficients of each group for L scores. Groups without coefficients do not contribute.
        offset : ndarray of shape (L,)
            Constant that is added to each score.

        Returns
        -------
        ScoreSums
            Sums and sums of squares of the L scores.
        """
        slices = self.slices()
        W = np.zeros((len(self.sums), len(offset)))
        for name, part in coefficients.items():
            W[slices[name]] = part
        linear = self.sums @ W
        square = np.einsum("ij,ij->j", W, self.gram @ W)
        return ScoreSums(self.n, linear + self.n * offset, square + 2 * offset * linear + self.n * offset**2)

    def mixed(self, mixings: Mapping[str, np.ndarray]) -> Moments:
        """Multiply the columns of groups by a matrix, such as the small last factor of a low-rank kernel.

        Parameters
        ----------
        mixings : mapping of str to ndarray of shape (d, r)
            Matrix T of each group, whose columns F become F T.

        Returns
        -------
        Moments
            Moments of the transformed columns.
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
            # The Gram matrix is symmetric, so compute only the blocks on and left of the diagonal, and mirror them.
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
        """Append columns of zeros to a group.

        Parameters
        ----------
        group : str
            Name of the group.
        width : int
            New number of columns of the group.

        Returns
        -------
        Moments
            Moments with the wider group.

        Raises
        ------
        UserError
            If the group already has more columns.
        """
        more = width - self.widths[group]
        if more < 0:
            raise UserError(
                f"moments: group {group!r} has {self.widths[group]} columns, expected at most {width}; raise the width"
            )
        at = np.full(more, self.slices()[group].stop)
        gram = np.insert(np.insert(self.gram, at, 0.0, axis=0), at, 0.0, axis=1)
        return Moments(self.widths | {group: width}, self.n, np.insert(self.sums, at, 0.0), gram)

    def to_arrays(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the arrays and metadata of the moments for a store.

        Returns
        -------
        arrays : dict of str to ndarray
            Sums and the Gram matrix.
        meta : dict
            Number of columns of each group, and number of rows, as JSON values.
        """
        return {"sums": self.sums, "gram": self.gram}, {"widths": self.widths, "n": self.n}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Moments:
        """Restore the moments from the output of `to_arrays`.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            Sums and the Gram matrix.
        meta : mapping
            Number of columns of each group, and number of rows, as JSON values.

        Returns
        -------
        Moments
            Restored moments.
        """
        return cls(dict(meta["widths"]), meta["n"], arrays["sums"], arrays["gram"])


@dataclass(frozen=True)
class ScoreSums:
    """Sums and sums of squares of L scores over rows, from which `pooled` computes means and standard deviations."""

    n: float  # Number of rows, or the sum of their weights.
    total: np.ndarray  # Sum of each score (L).
    square: np.ndarray  # Sum of squares of each score (L).


def label_groups(values: float | np.ndarray, n_labels: int) -> list[tuple[float, slice | np.ndarray]]:
    """Group the labels that have the same value of a parameter, given as one number or one value per label."""
    if not isinstance(values, np.ndarray):
        return [(values, slice(None))]
    if values.shape != (n_labels,):
        raise UserError(f"ridge has {values.shape[0]} values for {n_labels} labels; pass one per label, or one number")
    known, which = np.unique(values, return_inverse=True)
    return [(float(value), np.flatnonzero(which == i)) for i, value in enumerate(known)]


def pooled(parts: Iterable[ScoreSums]) -> tuple[np.ndarray, np.ndarray]:
    """Compute the mean and the standard deviation of each score over all parts, as two arrays of shape (L,)."""
    parts = list(parts)
    n = sum(part.n for part in parts)
    mean = np.sum([part.total for part in parts], axis=0) / n
    variance = np.sum([part.square for part in parts], axis=0) / n - mean**2
    return mean, np.sqrt(np.maximum(variance, 0.0))


def _groups(block: Mapping[str, Any] | np.ndarray) -> dict[str, Any]:
    return dict(block) if isinstance(block, Mapping) else {"x": block}


_PANEL = 512  # Number of columns per panel, for which the product of two panels fits in the second-level cache.


def _add_dense(
    moments: Moments,
    groups: Mapping[str, np.ndarray],
    slices: Mapping[str, slice],
    roots: np.ndarray | None,
    skip: slice | None,
) -> None:
    """Add the products of dense groups in panels of columns, except products among the columns `skip`."""
    # The product of two panels is added to the Gram matrix at both symmetric positions while the product is in the
    # processor cache. The next product of panels reuses the memory of the last product. A single product of all columns
    # would move four times as much memory.
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
            # BLAS does half the work if both operands are the same array, so do not copy a panel that is multiplied by
            # itself.
            left, right = part.astype(kind, copy=False), beside.astype(kind, copy=False)
            cell = np.matmul(left.T, right, out=held[: shape[0] * shape[1]].reshape(shape))
            moments.gram[columns, others] += cell
            if beside is not part:
                moments.gram[others, columns] += cell.T

    runs = max(1, min(thread_count(), len(pairs)))
    in_threads(add, range(runs))


def _panels(groups: Mapping[str, np.ndarray], slices: Mapping[str, slice]) -> list[tuple[slice, np.ndarray]]:
    """Split the columns into panels, each given by its column range and its rows in float32 or float64.

    Narrow groups share a panel only if they have the same precision, because otherwise float32 rows become float64.
    """
    panels: list[tuple[slice, list[np.ndarray]]] = []
    for name, group in groups.items():
        where, count = slices[name], max(1, -(-group.shape[1] // _PANEL))
        single = np.promote_types(group.dtype, np.float32) == np.float32
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
    """Add the products of groups with arrays of another library, which are computed on the device of these arrays."""
    there = next(part for part in groups.values() if foreign(part) is not None)
    xp = foreign(there)
    parts = []
    for part in groups.values():
        if foreign(part) is None:
            part = part.dense() if hasattr(part, "gram") else dense(part)
            if np.promote_types(part.dtype, np.float32) == np.float32:
                # Labels are stored as bytes, so convert them to float32 before the product.
                part = part.astype(np.float32, copy=False)
        parts.append(placed(part, there))
    kind = xp.result_type(*parts)
    S = xp.concat([xp.astype(part, kind) for part in parts], axis=1)
    ones = (
        xp.ones(S.shape[0], dtype=xp.float64, device=array_api_compat.device(S)) if roots is None else placed(roots, S)
    )
    moments.sums[:] += to_numpy(xp.matmul(ones, xp.astype(S, xp.float64)))
    moments.gram[:] += to_numpy(xp.matmul(xp.matrix_transpose(S), S))


def _cross(left: Any, right: Any) -> Any:
    """Compute left'right if one matrix is sparse or block-sparse. The result is CSR if both are sparse."""
    if hasattr(left, "gram"):
        return np.asarray(left.gram(right), np.float64)
    if hasattr(right, "gram"):
        return _cross(right, left).T
    product = scipy.sparse.csr_array(left).T @ (
        right if isinstance(right, np.ndarray) else scipy.sparse.csr_array(right)
    )
    return as_block(product)


def _check_same(left: Mapping[str, int], right: Mapping[str, int]) -> None:
    if list(left.items()) != list(right.items()):
        raise UserError(f"moments of columns {dict(left)} and {dict(right)} do not match; use the same feature maps")
