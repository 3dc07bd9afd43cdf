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

from dmo.blocks import Rows, iterate, stacked
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
    """A MEKA map: f(x) = T' w(x), w(x) = M_s' [k(Z_s, x); k(Z_0, x)] in the columns of the cluster s whose center is nearest.

    Parameters
    ----------
    kernel : Kernel
        Fitted.
    dtype : dtype
        Of the factor rows.
    space : str
        In which rows are compared with the `centers`.
    centers : ndarray of shape (S, d)
        Centers of the clusters.
    shared : ndarray or csr_array of shape (m0, d)
        Landmarks Z_0 of all clusters.
    landmarks : sequence of ndarray or csr_array
        Z_s per cluster.
    projections : sequence of ndarray of shape (|Z_s| + |Z_0|, k_s)
        M_s per cluster, such that the training rows of W_s = w(X_s) are orthonormal columns.
    links : ndarray of shape (r0, r)
        T, with T T' = L.
    shares : ndarray of shape (S,)
        The clusters' shares of the rows.
    error : dict, default={}
        Its sampled errors, see `sampled_error`.

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
        """Columns r of the factor."""
        return self.links.shape[1]

    @property
    def mixing(self) -> np.ndarray:
        """T (r0 x r), which links the clusters."""
        return self.links

    @property
    def ranks(self) -> np.ndarray:
        """k_s per cluster."""
        return np.array([M.shape[1] for M in self.projections])

    @cached_property
    def _ready(self) -> tuple[Any, list[Any], list[np.ndarray]]:
        prepare = self.kernel.prepare
        local = [prepare(Z, self.dtype) for Z in self.landmarks]
        return prepare(self.shared, self.dtype), local, [M.astype(self.dtype) for M in self.projections]

    def raw(self, X: Rows) -> BlockRows:
        """Map rows in memory to W, in which every row has the columns of its own cluster alone.

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
        """Multiply rows of W by coefficients.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Rows.
        coefficients : ndarray of shape (r0, k), float64
            B.

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
        """Count the numbers that bases and links of n rows take.

        Parameters
        ----------
        n : int
            Rows.

        Returns
        -------
        int
            About n k + (S k)^2.
        """
        return round(n * float(self.shares @ self.ranks)) + int(self.ranks.sum()) ** 2

    def operator(self, X: Rows) -> BlockLowRank:
        """Make W L W' over some rows; W's n k_s numbers are held in memory.

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
_LOCAL, _SHARED = 2, 1  # landmarks of a cluster and of all clusters, times the average rank
_SAMPLES = 5  # rows sampled per cluster for sampled links, times the cluster's rank
_SMOOTH = 0.005  # what a direction's roughness counts against it, times the k_s-th eigenvalue of K_ss
_SPAN = (1e-10, 1e-14)  # smallest pivot and jitter of a Cholesky QR in float64
_SPARSE_WIDTH = 8192  # sparse rows wider than this take rows as landmarks: centers of theirs would be dense


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

    K ~ W L W', W = diag(W_1 .. W_S), the columns of W_s orthonormal and of the form w(x) = M_s' k([Z_s, Z_0], x), so that
    new rows are mapped as training rows are. L is projected onto the positive semidefinite cone (its best approximation
    there, as W is orthonormal). The map carries its sampled error. Memory: fit_rows x (d + 5 rank) + 8 (S rank)^2 numbers.

    Parameters
    ----------
    kernel : str or Kernel
        Fitted here where it is not.
    X : row source of shape (n, d)
        Rows, in chunks of whole rows.
    clusters : int, default=10
        S, fewer where rows are alike.
    rank : int or "auto", default=128
        Average k_s, each in proportion to its cluster's size and at most that; "auto": as the `tol` needs and the `memory`
        allows.
    basis : {"block-row", "eigen"}, default="block-row"
        Leading left singular vectors of K_s,: or eigenvectors of K_ss, both within the landmarks' span.
    link : {"exact", "sampled"}, default="exact"
        L = W'KW over all pairs of fitted rows, n^2 / 2 kernel values; or least squares on rows drawn by leverage, n 5 S k
        values.
    eta : float in [0, 1), default=0.0
        Share of the links between clusters, those of the farthest pairs, that are set to zero.
    random_state : int, Generator or None, default=None
        Seed.
    dtype : dtype, default=float32
        Of the factor rows.
    tol : float or None, default=None
        Relative error for rank="auto" (None: 0.01).
    memory : float or None, default=None
        Bytes of n k + (S k)^2 numbers for rank="auto".
    fit_rows : int or None, default=None
        Everything is learned from a random sample of this size where X has more rows (None: as for `nystrom`, per column of
        all clusters together).

    Returns
    -------
    FeatureMap
        The map.

    Raises
    ------
    UserError
        For NaN, no rows, a precomputed kernel, and parameters out of range.

    References
    ----------
    Si, Hsieh, Dhillon 2014, algorithm 1, with projected or leverage-sampled links in place of its regression.

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
        raise UserError(f"eta = {eta}; it is the share of links to leave out, from 0 to below 1")
    rng = np.random.default_rng(random_state)
    fitted, sample, seed, X = begun(kernel, X, learning_rows(fit_rows, rank, None, clusters), rng)
    partition = Partition.of(fitted, sample, clusters, np.dtype(dtype), rng)

    def fit(k: int) -> FeatureMap:
        found = _Fit(partition, clusters * k, np.random.default_rng(seed)).map(basis, link, eta)
        return found.with_error(sampled_error(found, X, seed))

    n, numbers = X.shape[0], None if memory is None else memory / np.dtype(dtype).itemsize
    if numbers is not None and numbers < n + clusters**2:
        needed = (n + clusters**2) * np.dtype(dtype).itemsize
        raise UserError(f"memory = {memory:.3g} bytes is below one column per cluster; allow {needed} or more")
    allowed = None if numbers is None else rank_within(numbers, n, partition.sizes, clusters)
    return fit_rank(fit, rank, math.ceil(sample.shape[0] / clusters), tol, allowed)


def rank_within(numbers: float, n: int, sizes: np.ndarray, clusters: int) -> int:
    """Largest average k, at least 1, at which n rows' k_s numbers each and (S k)^2 links stay within `numbers`."""
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
    """What the fit knows of one cluster."""

    # `Q` (n_s x m, orthonormal): all that the landmarks span, Q = [k(X_s, Z_s) k(X_s, Z_0)] to_Q; `roughness` (m x
    # m): Gram matrix of the functions Q in the kernel's own space. Found later: `U` (m x k_s), so that the basis is
    # W_s = Q U; `own` = W_s' K_ss W_s; for sampled links `sampled`, `weights`, numbers of the rows J_s of X that
    # stand for the cluster in sums over rows, and `seen` = W_s' K_s,J times the weights, J the sampled rows of all
    # clusters.

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
    """One fit of total rank `total` on partitioned rows."""

    def __init__(self, rows: Partition, total: int, rng: np.random.Generator):
        self.rows, self.rng, n = rows, rng, rows.X.shape[0]
        wide = scipy.sparse.issparse(rows.X) and rows.X.shape[1] > _SPARSE_WIDTH
        self.kind: Landmarks = "rpcholesky" if wide else "kmeans"
        self.ranks = allocate(rows.sizes, min(total, n))
        # a cluster's basis serves its links to all others too: k(X_s, X_t) lies in the span of functions centered outside
        # the cluster, of which the landmarks of all clusters together are a sample
        n_shared = 0 if len(self.ranks) == 1 else math.ceil(_SHARED * self.ranks.mean())
        self.shared = choose_landmarks(rows.kernel, rows.X, n_shared, self.kind, rng) if n_shared else rows.X[:0]

    def map(self, basis: Basis, link: Link, eta: float) -> MekaMap:
        """The fitted map, L projected onto the positive semidefinite cone, directions below 1e-10 of the largest out."""
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
        """An orthonormal basis of what the landmarks of cluster s span."""
        kernel, dtype, where = self.rows.kernel, self.rows.dtype, self.rows.where(s)
        X, size = self.rows.X[where], where.stop - where.start
        count = (_LOCAL if self.shared.shape[0] else _LOCAL + _SHARED) * rank
        Z = X if count >= size else choose_landmarks(kernel, X, count, self.kind, self.rng)
        landmarks = stacked([Z, self.shared]) if self.shared.shape[0] else Z
        prepared = kernel.prepare(landmarks, np.float64)
        among = kernel.tile(prepared, prepared)
        # in the precision in which new rows are mapped, as their digits are those of W too
        Q = kernel.tile(self.rows.prepared[where], kernel.prepare(landmarks, dtype)).astype(np.float64, copy=False)
        # one Cholesky QR leaves an error of the condition squared; after whitening by k(Z, Z) the second one removes it
        to_Q, square = np.eye(len(among)), among
        for limits in (cut_off(dtype), _SPAN, _SPAN):  # whitened by k(Z, Z), then orthonormalized by Cholesky QR, twice
            keep, inverse = inverse_root(square, *limits)
            Q, to_Q = Q[:, keep] @ inverse, to_Q[:, keep] @ inverse
            square = Q.T @ Q
        return _Cluster(min(rank, Q.shape[1]), Z, Q.astype(dtype), to_Q, to_Q.T @ among @ to_Q)

    def _own(self, s: int, c: _Cluster) -> np.ndarray:
        """Q'K_ss Q."""
        own = self.rows.project(c.Q, self.rows.where(s), self.rows.prepared[self.rows.where(s)]) @ c.Q
        return (own + own.T) / 2

    def _choose(self, c: _Cluster, own: np.ndarray, others: Iterable[np.ndarray] | None) -> None:
        """Choose U, the k_s directions in the span of Q that hold most of Q'K_ss Q or, with Q'K_st of all `others` (or of
        rows that stand for them), of K_s,:."""
        energy, drop = own, 1e-6 if self.rows.dtype == np.float32 else 1e-12
        if others is not None:  # Q'K_s,: K_:,s Q, whose eigenvalues are squares, as is their cut-off
            energy, drop = own @ own, drop**2
            for other in others:
                energy += other @ other.T
        smallest = np.linalg.eigvalsh(own)[::-1][c.rank - 1 : c.rank]  # eigenvalue of K_ss, none of an empty Q
        c.U = _leading(energy, _SMOOTH * max(smallest.sum(), 0.0) * c.roughness, c.rank, drop)
        c.rank, c.own = c.U.shape[1], c.U.T @ own @ c.U

    def _projected(self, clusters: Sequence[_Cluster], pairs: Sequence[tuple[int, int]], basis: Basis) -> np.ndarray:
        """Bases, and the links W_s' K_st W_t, from one look at every kernel value: Q_s' K_st Q_t holds what both need."""
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
        """Bases, and links by least squares, from sampled rows."""
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
                # the cluster's own columns are known whole and take the place of their sample
                others = np.delete(seen, np.s_[edges[s] : edges[s + 1]], axis=1)
                self._choose(c, self._own(s, c), [others] if basis == "block-row" else None)
                c.seen = c.U.T @ seen
                advance(1)
        inverses = [self._regressor(s, c, c.Q @ c.U) for s, c in enumerate(clusters)]
        blocks = {}
        for s, t in pairs:
            one, two = (clusters[i].seen[:, edges[j] : edges[j + 1]] for i, j in ((s, t), (t, s)))
            # K_st seen from the sampled rows of t, and from those of s: two estimates of one block, whose mean has the
            # smaller variance
            blocks[s, t] = (one @ inverses[t] + (two @ inverses[s]).T) / 2
        return _linked(clusters, blocks)

    def _regressor(self, s: int, c: _Cluster, W: np.ndarray) -> np.ndarray:
        """(D W_s[J_s])^+' for the sampled rows J_s: x = y @ this solves x (D W_s[J_s])' ~ y by least squares.

        Drawn by leverage, D W_s[J_s] has singular values around 1; the pseudo-inverse leaves out those below 0.01.
        """
        sampled = W[c.sampled - self.rows.where(s).start].astype(np.float64) * c.weights[:, None]
        return scipy.linalg.pinv(sampled, rtol=1e-2, check_finite=False).T

    def _near_pairs(self, eta: float) -> list[tuple[int, int]]:
        """Pairs s < t of clusters, less the share `eta` of them whose centers have the smallest kernel values."""
        rows = self.rows
        pairs = [(s, t) for t in range(len(rows.centers)) for s in range(t)]
        if not pairs or eta == 0.0:
            return pairs
        centers = from_space(rows.centers, rows.space, scipy.sparse.issparse(rows.X))
        prepared = rows.kernel.prepare(centers, np.float64)
        values = rows.kernel.tile(prepared, prepared)
        ranked = sorted(pairs, key=lambda pair: -values[pair])
        return sorted(ranked[: len(pairs) - math.floor(eta * len(pairs))])


def _linked(clusters: Sequence[_Cluster], blocks: Mapping[tuple[int, int], np.ndarray]) -> np.ndarray:
    """L (r0 x r0) of the clusters' own blocks and of those between them, 0 for pairs that are left out."""
    edges = np.cumsum([0, *(c.rank for c in clusters)])
    place = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    L = np.zeros((edges[-1], edges[-1]))
    for where, c in zip(place, clusters, strict=True):
        L[where, where] = c.own
    for (s, t), block in blocks.items():
        L[place[s], place[t]], L[place[t], place[s]] = block, block.T
    return (L + L.T) / 2


def _root(L: np.ndarray, definite: bool) -> np.ndarray:
    """T with T T' = L, of full column rank, or of the positive semidefinite part of L."""
    # W is orthonormal, so that clipping the eigenvalues of L is clipping those of W L W'. Links W'KW are `definite`
    # but for rounding, and mostly have a Cholesky factor; those from samples, or with some set to zero, are not.
    if definite:
        with suppress(np.linalg.LinAlgError):
            root = np.linalg.cholesky(L)
            if len(L) and (root.diagonal() > 1e-5 * root.diagonal().max()).all():
                return root
    values, vectors = np.linalg.eigh(L)
    keep = np.flatnonzero(values > 1e-10 * max(values.max(initial=0.0), 1e-300))[::-1]
    return np.asarray(vectors[:, keep] * np.sqrt(values[keep]))


def _leading(square: np.ndarray, roughness: np.ndarray, rank: int, drop: float) -> np.ndarray:
    """Orthonormal span of the `rank` directions u with the largest u'Eu / u'(I + R)u, fewer where that falls below
    `drop`.
    """
    # A direction can be large on the fitted rows only because its function is rough, and is then wild on other rows:
    # R, its squared norm in the kernel's space times a small eigenvalue, is about _SMOOTH for an eigenfunction and
    # far above 1 for such a direction.
    values, vectors = scipy.linalg.eigh(square, np.eye(len(square)) + roughness, check_finite=False)
    count = min(rank, int((values > drop * max(values.max(initial=0.0), 1e-300)).sum()))
    # orthonormal in I + R by eigh, now in the Euclidean product, which is what makes W_s = Q U orthonormal
    return np.linalg.qr(vectors[:, ::-1][:, :count])[0]


def _by_leverage(Q: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """`count` row numbers of an orthonormal Q drawn half by leverage, half evenly, and weights that keep sums unbiased."""
    size = Q.shape[0]
    if count >= size:
        return np.arange(size), np.ones(size)
    leverage = np.einsum("ij,ij->i", Q, Q, dtype=np.float64)  # squared row lengths, as Q is orthonormal
    p = 0.5 * leverage / max(leverage.sum(), 1e-300) + 0.5 / size
    p /= p.sum()
    picked = np.sort(rng.choice(size, size=count, replace=False, p=p))
    # at least 1: drawn without replacement, a row with count p > 1 is there for certain and stands for itself
    return picked, np.maximum(1.0, 1 / np.sqrt(count * p[picked]))
