"""Memory-efficient kernel approximation (MEKA): a basis per cluster of rows, and a matrix that links the clusters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dmo.blocks import Rows, iterate, reads_sparse, stacked
from dmo.errors import UserError
from dmo.inputs import COUNT, check_parameter
from dmo.kernels import Kernel
from dmo.linalg.factors import BlockLowRank
from dmo.linalg.tall import BlockRows
from dmo.lowrank.feature_maps import BLOCK, FeatureMap
from dmo.lowrank.landmarks import Landmarks, Partition, Space, allocate, choose_landmarks, from_space, nearest_center
from dmo.lowrank.nystrom import begun, cut_off, inverse_root
from dmo.lowrank.sampling import Rank, fit_rank, learning_rows, sampled_error
from dmo.progress import stage


@dataclass(frozen=True, eq=False, repr=False)
class MekaMap(FeatureMap):
    """MEKA map f(x) = T' w(x).

    w(x) = M_s' [k(Z_s, x); k(Z_0, x)] in the columns of the cluster s with the nearest center, and 0 in other columns.

    Parameters
    ----------
    kernel : Kernel
        Fitted kernel.
    dtype : dtype
        Type of the factor rows.
    space : str
        Space in which rows are compared with `centers`.
    centers : ndarray of shape (S, d)
        Centers of the clusters.
    shared : ndarray or csr_array of shape (m0, d)
        Landmarks Z_0 of all clusters.
    landmarks : sequence of ndarray or csr_array
        Landmarks Z_s of each cluster.
    projections : sequence of ndarray of shape (|Z_s| + |Z_0|, k_s)
        Matrix M_s of each cluster, such that the training rows W_s = w(X_s) have orthonormal columns.
    links : ndarray of shape (r0, r)
        Matrix T, with T T' = L.
    shares : ndarray of shape (S,)
        Fraction of the rows in each cluster.
    error : dict, default={}
        Estimated errors, see `sampled_error`.

    References
    ----------
    Si, Hsieh, Dhillon 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import meka
    >>> X = np.random.default_rng(0).normal(size=(300, 4))
    >>> found = meka("rbf", X, clusters=3, rank=8, random_state=0)
    >>> found(X[:5]).shape == (5, found.rank)
    True
    """

    space: Space
    centers: np.ndarray
    shared: np.ndarray | scipy.sparse.csr_array
    landmarks: Sequence[np.ndarray | scipy.sparse.csr_array]
    projections: Sequence[np.ndarray]
    links: np.ndarray
    shares: np.ndarray

    kind = "meka"

    @property
    def rank(self) -> int:
        """Number of columns r of the factor."""
        return self.links.shape[1]

    @property
    def mixing(self) -> np.ndarray:
        """Matrix T (r0 x r), which links the clusters."""
        return self.links

    @property
    def ranks(self) -> np.ndarray:
        """Number of columns k_s of each cluster."""
        return np.array([M.shape[1] for M in self.projections])

    @cached_property
    def _ready(self) -> tuple[Any, list[Any], list[np.ndarray]]:
        prepare = self.kernel.prepare
        local = [prepare(Z, self.dtype) for Z in self.landmarks]
        return prepare(self.shared, self.dtype), local, [M.astype(self.dtype) for M in self.projections]

    def raw(self, X: Rows) -> BlockRows:
        """Map rows in memory to W, in which each row is nonzero only in the columns of its own cluster.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.

        Returns
        -------
        BlockRows of shape (m, r0)
            Rows before mixing.
        """
        return self._rows(X, self._ready[2])

    def times(self, X: Rows, coefficients: np.ndarray) -> np.ndarray:
        """Compute rows of W times coefficients.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.
        coefficients : ndarray of shape (r0, k), float64
            Coefficients B.

        Returns
        -------
        ndarray of shape (m, k), float64
            raw(X) B, see `FeatureMap.times`.
        """
        return self._rows(X, self.projections).dot(coefficients)

    def _rows(self, X: Rows, projections: Sequence[np.ndarray]) -> BlockRows:
        block = self._block(X, self.centers.shape[1])
        nearest = nearest_center(block, self.space, self.centers)
        order = np.argsort(nearest, kind="stable")
        rows = block[order]
        edges = np.searchsorted(nearest[order], np.arange(len(self.centers) + 1))
        offsets = np.concatenate([[0], np.cumsum(self.ranks)])
        prepared = self.kernel.prepare(rows, self.dtype)
        shared, local, _ = self._ready
        index, columns, blocks = [], [], []
        for s in range(len(self.centers)):
            if edges[s + 1] > edges[s]:
                mine = prepared[edges[s] : edges[s + 1]]
                index.append(order[edges[s] : edges[s + 1]])
                columns.append(slice(int(offsets[s]), int(offsets[s + 1])))
                blocks.append(_project(self.kernel, mine, local[s], shared, projections[s]))
        return BlockRows((block.shape[0], int(offsets[-1])), index, columns, blocks)

    def numbers(self, n: int) -> int:
        """Return the number of entries of bases and links for n rows.

        Parameters
        ----------
        n : int
            Number of rows.

        Returns
        -------
        int
            About n k + (S k)^2.
        """
        return round(n * float(self.shares @ self.ranks)) + int(self.ranks.sum()) ** 2

    def operator(self, X: Rows) -> BlockLowRank:
        """Return W L W' of rows as an operator; the n k_s numbers of W are held in memory.

        Parameters
        ----------
        X : row source of shape (n, d)
            Rows, in chunks of whole rows.

        Returns
        -------
        BlockLowRank
            The approximated kernel, n x n.
        """
        return BlockLowRank(BlockRows.concatenate([self.raw(block) for _, block in iterate(X, BLOCK)]), self.links)


def _project(kernel: Kernel, rows: Any, local: Any, shared: Any, projection: np.ndarray) -> np.ndarray:
    m = len(local)
    out = kernel.tile(rows, local) @ projection[:m]
    if len(shared):
        out += kernel.tile(rows, shared) @ projection[m:]
    return out


Basis = Literal["block-row", "eigen"]
Link = Literal["exact", "sampled"]
_LOCAL, _SHARED = 2, 1  # number of landmarks of a cluster and of all clusters, as multiples of the average rank
_SAMPLES = 5  # rows sampled per cluster for sampled links, as a multiple of the cluster's rank
_SMOOTH = 0.005  # penalty on the roughness of a direction, as a multiple of the k_s-th eigenvalue of K_ss
_SPAN = (1e-10, 1e-14)  # smallest pivot and jitter of a Cholesky QR in float64
_SPARSE_WIDTH = 8192  # wider sparse rows use rows as landmarks, because k-means centers would be dense


def meka(
    kernel: str | Kernel,
    X: Rows,
    clusters: int = 10,
    rank: Rank = 128,
    basis: Basis = "block-row",
    link: Link = "exact",
    eta: float = 0.0,
    random_state: int | np.random.Generator | None = None,
    dtype: Any = np.float32,
    tol: float | None = None,
    memory: float | None = None,
    fit_rows: int | None = None,
) -> FeatureMap:
    """Fit a MEKA map on rows.

    K ~ W L W' with W = diag(W_1 .. W_S). The columns of W_s are orthonormal and have the form w(x) = M_s' k([Z_s,
    Z_0], x), so that new rows are mapped like training rows. L is projected onto the positive semidefinite cone,
    which is its best approximation there because W is orthonormal. The map includes its estimated errors. Memory:
    fit_rows x (d + 5 rank) + 8 (S rank)^2 numbers.

    Parameters
    ----------
    kernel : str or Kernel
        Kernel. It is fitted on X if necessary.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    clusters : int, default=10
        Number of clusters S. Fewer are used if rows are similar.
    rank : int or "auto", default=128
        Average k_s. Each k_s is proportional to the size of its cluster and at most this size. "auto" uses `tol` and
        `memory`.
    basis : {"block-row", "eigen"}, default="block-row"
        "block-row": leading left singular vectors of K_s,:. "eigen": eigenvectors of K_ss. Both are restricted to the
        span of the landmarks.
    link : {"exact", "sampled"}, default="exact"
        "exact": L = W'KW over all pairs of fitted rows, which requires n^2 / 2 kernel values. "sampled": least
        squares on rows drawn by leverage, which requires n 5 S k values.
    eta : float in [0, 1), default=0.0
        Fraction of the links between clusters that are set to zero, starting with the most distant pairs.
    random_state : int, Generator or None, default=None
        Seed.
    dtype : dtype, default=float32
        Type of the factor rows.
    tol : float or None, default=None
        Relative error to reach with rank="auto" (None: 0.01).
    memory : float or None, default=None
        Maximum size of the n k + (S k)^2 numbers in bytes with rank="auto".
    fit_rows : int or None, default=None
        Maximum number of rows for fitting; if X has more, a random sample is used. None: as for `nystrom`, with
        the number of columns of all clusters together.

    Returns
    -------
    FeatureMap
        Fitted map.

    Raises
    ------
    UserError
        For NaN, an empty X, a precomputed kernel, or parameters out of range.

    References
    ----------
    Si, Hsieh, Dhillon 2014, algorithm 1, with projected or leverage-sampled links instead of its regression.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.lowrank import meka
    >>> X = np.random.default_rng(0).normal(size=(300, 4))
    >>> found = meka("rbf", X, clusters=3, rank=10, random_state=0)
    >>> found(X).shape[0], found.error["relative_error"] < 0.1
    (300, True)
    """
    clusters = int(check_parameter("clusters", clusters, COUNT))
    if basis not in ("block-row", "eigen") or link not in ("exact", "sampled"):
        raise UserError(f"basis = {basis!r}, link = {link!r}; known: 'block-row', 'eigen'; 'exact', 'sampled'")
    if not 0 <= eta < 1:
        raise UserError(
            f"eta = {eta}, expected a fraction of links from 0 to below 1; the links of this fraction are set to zero"
        )
    rng = np.random.default_rng(random_state)
    fitted, sample, seed, X = begun(kernel, X, learning_rows(fit_rows, rank, None, clusters), rng)
    partition = Partition.of(fitted, sample, clusters, np.dtype(dtype), rng)

    def fit(k: int) -> FeatureMap:
        found = _Fit(partition, clusters * k, np.random.default_rng(seed)).map(basis, link, eta)
        return found.with_error(sampled_error(found, X, seed))

    n, numbers = X.shape[0], None if memory is None else memory / np.dtype(dtype).itemsize
    if numbers is not None and numbers < n + clusters**2:
        needed = (n + clusters**2) * np.dtype(dtype).itemsize
        raise UserError(f"memory = {memory:.3g} bytes is below one column per cluster; pass {needed} or more")
    allowed = None if numbers is None else rank_within(numbers, n, partition.sizes, clusters)
    return fit_rank(fit, rank, math.ceil(sample.shape[0] / clusters), tol, allowed)


def rank_within(numbers: float, n: int, sizes: np.ndarray, clusters: int) -> int:
    """Compute the largest average k, at least 1, for which bases and links of n rows have at most `numbers` entries."""
    spread = n * clusters * float(((sizes / sizes.sum()) ** 2).sum())
    k = math.ceil((-spread + math.sqrt(spread**2 + 4 * clusters**2 * numbers)) / (2 * clusters**2))
    while k > 1:
        ranks = allocate(sizes, min(clusters * k, int(sizes.sum())))
        if n * float(ranks @ sizes) / sizes.sum() + ranks.sum() ** 2 <= numbers:
            break
        k -= 1
    return k


@dataclass
class _Cluster:
    """State of the fit of one cluster."""

    # `Q` (n_s x m) is an orthonormal basis of the span of the landmarks, Q = [k(X_s, Z_s) k(X_s, Z_0)] to_Q.
    # `roughness` (m x m) is the Gram matrix of these functions in the RKHS. The following are computed later. `U` (m
    # x k_s) defines the basis W_s = Q U. `own` is W_s' K_ss W_s. For sampled links, `sampled` are the indices J_s of
    # rows of X that represent the cluster in sums over rows, `weights` are their weights, and `seen` is W_s' K_s,J
    # times the weights, where J are the sampled rows of all clusters.

    rank: int
    landmarks: Any
    Q: np.ndarray
    to_Q: np.ndarray
    roughness: np.ndarray
    U: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    own: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    sampled: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    seen: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))


class _Fit:
    """Fit of total rank `total` on partitioned rows."""

    def __init__(self, rows: Partition, total: int, rng: np.random.Generator):
        self.rows, self.rng, n = rows, rng, rows.X.shape[0]
        wide = reads_sparse(rows.X) and rows.X.shape[1] > _SPARSE_WIDTH
        self.kind: Landmarks = "rpcholesky" if wide else "kmeans"
        self.ranks = allocate(rows.sizes, min(total, n))
        # The basis of a cluster is also used for its links to other clusters. The block k(X_s, X_t) is in the span of
        # functions centered outside cluster s, which the landmarks of all clusters sample.
        n_shared = 0 if len(self.ranks) == 1 else math.ceil(_SHARED * self.ranks.mean())
        self.shared = choose_landmarks(rows.kernel, rows.X, n_shared, self.kind, rng) if n_shared else rows.X[:0]

    def map(self, basis: Basis, link: Link, eta: float) -> MekaMap:
        """Return the fitted map, with L projected onto the positive semidefinite cone."""
        with stage("MEKA landmarks", len(self.ranks)) as advance:
            clusters = []
            for s, k in enumerate(self.ranks):
                clusters.append(self._span(s, int(k)))
                advance(1)
        pairs = self._near_pairs(eta)
        if link == "exact":
            L = self._projected(clusters, pairs, basis)
        else:
            L = self._regressed(clusters, pairs, basis)
        rows = self.rows
        return MekaMap(
            rows.kernel,
            rows.dtype,
            rows.space,
            rows.centers,
            self.shared,
            [c.landmarks for c in clusters],
            [c.to_Q @ c.U for c in clusters],
            _root(L, link == "exact" and not eta),
            rows.sizes / rows.X.shape[0],
        )

    def _span(self, s: int, rank: int) -> _Cluster:
        """Compute an orthonormal basis of the span of the landmarks of cluster s."""
        kernel, dtype, where = self.rows.kernel, self.rows.dtype, self.rows.where(s)
        X, size = self.rows.X[where], where.stop - where.start
        count = (_LOCAL if self.shared.shape[0] else _LOCAL + _SHARED) * rank
        Z = X if count >= size else choose_landmarks(kernel, X, count, self.kind, self.rng)
        landmarks = stacked([Z, self.shared]) if self.shared.shape[0] else Z
        prepared = kernel.prepare(landmarks, np.float64)
        among = kernel.tile(prepared, prepared)
        # Use the precision in which new rows are mapped, so that W has the same precision.
        Q = kernel.tile(self.rows.prepared[where], kernel.prepare(landmarks, dtype)).astype(np.float64, copy=False)
        # The error of one Cholesky QR grows with the squared condition number. After whitening by k(Z, Z), a second
        # Cholesky QR removes this error.
        to_Q, square = np.eye(len(among)), among
        for limits in (cut_off(dtype), _SPAN, _SPAN):  # whiten by k(Z, Z), then orthonormalize by Cholesky QR twice
            keep, inverse = inverse_root(square, *limits)
            Q, to_Q = Q[:, keep] @ inverse, to_Q[:, keep] @ inverse
            square = Q.T @ Q
        return _Cluster(min(rank, Q.shape[1]), Z, Q.astype(dtype), to_Q, to_Q.T @ among @ to_Q)

    def _own(self, s: int, c: _Cluster) -> np.ndarray:
        """Compute Q'K_ss Q."""
        own = self.rows.project(c.Q, self.rows.where(s), self.rows.prepared[self.rows.where(s)]) @ c.Q
        return (own + own.T) / 2

    def _choose(self, c: _Cluster, own: np.ndarray, others: Iterable[np.ndarray] | None) -> None:
        """Choose U, the k_s directions in the span of Q that capture most of Q'K_ss Q.

        With `others`, they capture most of K_s,:; `others` are the blocks Q'K_st, or the same for sampled rows.
        """
        energy, drop = own, 1e-6 if self.rows.dtype == np.float32 else 1e-12
        if others is not None:  # Q'K_s,: K_:,s Q, whose eigenvalues are squares, so the threshold is squared, too
            energy, drop = own @ own, drop**2
            for other in others:
                energy += other @ other.T
        smallest = np.linalg.eigvalsh(own)[::-1][c.rank - 1 : c.rank]  # eigenvalue of K_ss, empty if Q is empty
        c.U = _leading(energy, _SMOOTH * max(smallest.sum(), 0.0) * c.roughness, c.rank, drop)
        c.rank, c.own = c.U.shape[1], c.U.T @ own @ c.U

    def _projected(self, clusters: Sequence[_Cluster], pairs: Sequence[tuple[int, int]], basis: Basis) -> np.ndarray:
        """Compute bases and links W_s' K_st W_t from the blocks Q_s' K_st Q_t, using each kernel value once."""
        rows = self.rows
        with stage("MEKA links", len(pairs)) as advance:
            seen: dict[tuple[int, int], np.ndarray] = {}
            for s, t in pairs:
                one, two = (clusters[i].Q for i in (s, t))
                block = rows.project(one, rows.where(s), rows.prepared[rows.where(t)])
                seen[s, t] = block.astype(rows.dtype, copy=False) @ two
                advance(1)
        for s, c in enumerate(clusters):
            others = (block if s == i else block.T for (i, j), block in seen.items() if s in (i, j))
            self._choose(c, self._own(s, c), others if basis == "block-row" else None)
        return _linked(clusters, {(s, t): clusters[s].U.T @ block @ clusters[t].U for (s, t), block in seen.items()})

    def _regressed(self, clusters: Sequence[_Cluster], pairs: Sequence[tuple[int, int]], basis: Basis) -> np.ndarray:
        """Compute bases, and links by least squares, from sampled rows."""
        kernel, rows = self.rows.kernel, self.rows
        for s, c in enumerate(clusters):
            picked, c.weights = _by_leverage(c.Q, max(math.ceil(_SAMPLES * c.rank), 16), self.rng)
            c.sampled = rows.where(s).start + picked
        probes = kernel.prepare(rows.X[np.concatenate([c.sampled for c in clusters])], rows.dtype)
        weights = np.concatenate([c.weights for c in clusters])
        edges = np.cumsum([0, *(len(c.sampled) for c in clusters)])
        with stage("MEKA bases", len(clusters)) as advance:
            for s, c in enumerate(clusters):
                seen = rows.project(c.Q, rows.where(s), probes) * weights
                # Replace the sampled columns of the cluster's own block by all of its columns.
                others = np.delete(seen, np.s_[edges[s] : edges[s + 1]], axis=1)
                self._choose(c, self._own(s, c), [others] if basis == "block-row" else None)
                c.seen = c.U.T @ seen
                advance(1)
        inverses = [self._regressor(s, c, c.Q @ c.U) for s, c in enumerate(clusters)]
        blocks = {}
        for s, t in pairs:
            one, two = (clusters[i].seen[:, edges[j] : edges[j + 1]] for i, j in ((s, t), (t, s)))
            # K_st is estimated from the sampled rows of t and from those of s. The mean has a smaller variance.
            blocks[s, t] = (one @ inverses[t] + (two @ inverses[s]).T) / 2
        return _linked(clusters, blocks)

    def _regressor(self, s: int, c: _Cluster, W: np.ndarray) -> np.ndarray:
        """Return (D W_s[J_s])^+' for the sampled rows J_s: x = y @ this solves x (D W_s[J_s])' ~ y by least squares.

        Rows are drawn by leverage, so D W_s[J_s] has singular values around 1. Those below 0.01 are dropped.
        """
        sampled = W[c.sampled - self.rows.where(s).start].astype(np.float64) * c.weights[:, None]
        return scipy.linalg.pinv(sampled, rtol=1e-2, check_finite=False).T

    def _near_pairs(self, eta: float) -> list[tuple[int, int]]:
        """Return pairs s < t of clusters, without the fraction `eta` whose centers have the smallest kernel values."""
        rows = self.rows
        pairs = [(s, t) for t in range(len(rows.centers)) for s in range(t)]
        if not pairs or eta == 0.0:
            return pairs
        centers = from_space(rows.centers, rows.space, rows.X)
        prepared = rows.kernel.prepare(centers, np.float64)
        values = rows.kernel.tile(prepared, prepared)
        ranked = sorted(pairs, key=lambda pair: -values[pair])
        return sorted(ranked[: len(pairs) - math.floor(eta * len(pairs))])


def _linked(clusters: Sequence[_Cluster], blocks: Mapping[tuple[int, int], np.ndarray]) -> np.ndarray:
    """Assemble L (r0 x r0) from diagonal blocks and blocks of pairs of clusters; other pairs are 0."""
    edges = np.cumsum([0, *(c.rank for c in clusters)])
    place = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    L = np.zeros((edges[-1], edges[-1]))
    for where, c in zip(place, clusters, strict=True):
        L[where, where] = c.own
    for (s, t), block in blocks.items():
        L[place[s], place[t]], L[place[t], place[s]] = block, block.T
    return (L + L.T) / 2


def _root(L: np.ndarray, definite: bool) -> np.ndarray:
    """Compute T of full column rank with T T' = L, or with T T' = the positive semidefinite part of L."""
    # W is orthonormal, so clipping the eigenvalues of L clips those of W L W'. Links W'KW are `definite` up to
    # floating-point error and usually have a Cholesky factor. Sampled links, or links set to zero, may be indefinite.
    if definite:
        with suppress(np.linalg.LinAlgError):
            root = np.linalg.cholesky(L)
            if len(L) and (root.diagonal() > 1e-5 * root.diagonal().max()).all():
                return root
    values, vectors = np.linalg.eigh(L)
    keep = np.flatnonzero(values > 1e-10 * max(values.max(initial=0.0), 1e-300))[::-1]
    return np.asarray(vectors[:, keep] * np.sqrt(values[keep]))


def _leading(square: np.ndarray, roughness: np.ndarray, rank: int, drop: float) -> np.ndarray:
    """Return an orthonormal basis of up to `rank` directions u with the largest ratios u'Eu / u'(I + R)u.

    Directions with a ratio below `drop` times the maximum are omitted.
    """
    # A direction may be large on the fitted rows only because its function is rough, and then varies wildly on other
    # rows. R is its squared RKHS norm times a small eigenvalue: about _SMOOTH for an eigenfunction, and far above 1
    # for a rough direction.
    values, vectors = scipy.linalg.eigh(square, np.eye(len(square)) + roughness, check_finite=False)
    count = min(rank, int((values > drop * max(values.max(initial=0.0), 1e-300)).sum()))
    # eigh returns vectors that are orthonormal in I + R. W_s = Q U requires orthonormality in the Euclidean product.
    return np.linalg.qr(vectors[:, ::-1][:, :count])[0]


def _by_leverage(Q: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw `count` rows of an orthonormal Q, half by leverage and half evenly; return indices and unbiased weights."""
    size = Q.shape[0]
    if count >= size:
        return np.arange(size), np.ones(size)
    leverage = np.einsum("ij,ij->i", Q, Q, dtype=np.float64)  # squared row norms, because Q is orthonormal
    p = 0.5 * leverage / max(leverage.sum(), 1e-300) + 0.5 / size
    p /= p.sum()
    picked = np.sort(rng.choice(size, size=count, replace=False, p=p))
    # At least 1: without replacement, a row with count p > 1 is always drawn and represents only itself.
    return picked, np.maximum(1.0, 1 / np.sqrt(count * p[picked]))
