"""Fitting MEKA: landmarks, orthonormal bases and the links between clusters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import scipy.sparse

from dmo.blocks import Rows
from dmo.errors import UserError
from dmo.kernels import Kernel
from dmo.lowrank.clusters import Partition, allocate
from dmo.lowrank.errors import sampled_error
from dmo.lowrank.feature_maps import FeatureMap
from dmo.lowrank.landmarks import Landmarks, choose_landmarks, from_space
from dmo.lowrank.meka import MekaMap
from dmo.lowrank.nystrom import cut_off, fit_kernel, inverse_root, learning_sample
from dmo.lowrank.rank_selection import Rank, fit_rank
from dmo.lowrank.sampling import check_finite, check_rows, gather, learning_rows
from dmo.progress import stage
from dmo.validation import COUNT, check_parameter

Basis = Literal["block-row", "eigen"]
Link = Literal["exact", "sampled"]
_LOCAL, _SHARED = 2, 1  # landmarks of a cluster and of all clusters, times the average rank
_PROBES, _SAMPLES = 1, 5  # rows sampled per cluster for a basis and for sampled links, times the cluster's rank
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
    there, as W is orthonormal). The map carries its sampled error. Memory: fit_rows x (d + 5 rank) + 3 (S rank)^2 numbers.

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
    check_rows(kernel, X)
    clusters = int(check_parameter("clusters", clusters, COUNT))
    if basis not in ("block-row", "eigen") or link not in ("exact", "sampled"):
        raise UserError(f"basis = {basis!r}, link = {link!r}; known: 'block-row', 'eigen'; 'exact', 'sampled'")
    if not 0 <= eta < 1:
        raise UserError(f"eta = {eta}; it is the share of links to leave out, from 0 to below 1")
    rng = np.random.default_rng(random_state)
    index, X, seeds = learning_sample(X, learning_rows(fit_rows, rank, None, clusters), rng)
    sample, seed = gather(X, index), seeds[1]
    check_finite(sample, index)
    partition = Partition.of(fit_kernel(kernel, X, seeds[0]), sample, clusters, np.dtype(dtype), rng)

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
    """What the fit knows of one cluster.

    `Q` (n_s x m, orthonormal): all that the landmarks span, Q = [k(X_s, Z_s) k(X_s, Z_0)] to_Q; `roughness` (m x m): Gram
    matrix of the functions Q in the kernel's own space; `sampled`, `weights`: numbers of the rows J_s of X that stand for
    the cluster in sums over rows. Found later: `U` (m x k_s), so that the basis is W_s = Q U; `own` = W_s' K_ss W_s; `seen`
    = W_s' K_s,J times the weights, J the sampled rows of all clusters.
    """

    rank: int
    landmarks: Any
    Q: np.ndarray
    to_Q: np.ndarray
    roughness: np.ndarray
    sampled: np.ndarray
    weights: np.ndarray
    U: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    own: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
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
        times = _SAMPLES if link == "sampled" else _PROBES
        with stage("MEKA landmarks", len(self.ranks)) as advance:
            clusters = []
            for s, k in enumerate(self.ranks):
                clusters.append(self._span(s, int(k), times))
                advance(1)
        self._find_bases(clusters, basis, link)
        L = self._links(clusters, link, eta)
        # W is orthonormal, so that clipping the eigenvalues of L is clipping those of W L W'. Exact links L = W'KW have no
        # negative ones but by rounding; links from samples, or with some set to zero, do
        values, vectors = np.linalg.eigh((L + L.T) / 2)
        keep = np.flatnonzero(values > 1e-10 * max(values.max(initial=0.0), 1e-300))[::-1]
        rows = self.rows
        return MekaMap(
            rows.kernel,
            rows.dtype,
            rows.space,
            rows.centers,
            self.shared,
            [c.landmarks for c in clusters],
            [c.to_Q @ c.U for c in clusters],
            vectors[:, keep] * np.sqrt(values[keep]),
            rows.sizes / rows.X.shape[0],
        )

    def _span(self, s: int, rank: int, times: float) -> _Cluster:
        """An orthonormal basis of what the landmarks of cluster s span, and a sample of its rows."""
        kernel, dtype, where = self.rows.kernel, self.rows.dtype, self.rows.where(s)
        X, size = self.rows.X[where], where.stop - where.start
        count = (_LOCAL if self.shared.shape[0] else _LOCAL + _SHARED) * rank
        Z = X if count >= size else choose_landmarks(kernel, X, count, self.kind, self.rng)
        stack = scipy.sparse.vstack if scipy.sparse.issparse(Z) else np.concatenate
        landmarks = kernel.prepare(stack([Z, self.shared]) if self.shared.shape[0] else Z, np.float64)
        Q = kernel.tile(kernel.prepare(X, np.float64), landmarks)
        # one Cholesky QR leaves an error of the condition squared; after whitening by k(Z, Z) the second one removes it
        to_Q, square = np.eye(len(landmarks)), kernel.tile(landmarks, landmarks)
        for limits in (cut_off(dtype), _SPAN, _SPAN):  # whitened by k(Z, Z), then orthonormalized by Cholesky QR, twice
            keep, inverse = inverse_root(square, *limits)
            Q, to_Q = Q[:, keep] @ inverse, to_Q[:, keep] @ inverse
            square = Q.T @ Q
        picked, weights = _by_leverage(Q, max(math.ceil(times * rank), 16), self.rng)
        roughness = to_Q.T @ kernel.tile(landmarks, landmarks) @ to_Q
        return _Cluster(min(rank, Q.shape[1]), Z, Q.astype(dtype), to_Q, roughness, where.start + picked, weights)

    def _find_bases(self, clusters: Sequence[_Cluster], basis: Basis, link: Link) -> None:
        """Choose U of every cluster: the k_s directions in the span of Q that hold most of K_ss or of K_s,:."""
        kernel, rows = self.rows.kernel, self.rows
        probes = kernel.prepare(rows.X[np.concatenate([c.sampled for c in clusters])], rows.dtype)
        weights = np.concatenate([c.weights for c in clusters])
        self.edges = np.concatenate([[0], np.cumsum([len(c.sampled) for c in clusters])])
        with stage("MEKA bases", len(clusters)) as advance:
            for s, c in enumerate(clusters):
                where = rows.where(s)
                own = rows.project(c.Q, where, rows.prepared[where]) @ c.Q
                own = (own + own.T) / 2
                seen = rows.project(c.Q, where, probes) * weights if basis == "block-row" or link == "sampled" else None
                energy, drop = own, 1e-6 if rows.dtype == np.float32 else 1e-12
                if basis == "block-row" and seen is not None:
                    # Q'K_s,: K_:,s Q, whose eigenvalues are squares, as is their cut-off; the cluster's own columns are known
                    # whole and take the place of their sample
                    others = np.delete(seen, np.s_[self.edges[s] : self.edges[s + 1]], axis=1)
                    energy, drop = own @ own + others @ others.T, drop**2
                smallest = np.linalg.eigvalsh(own)[::-1][c.rank - 1 : c.rank]  # eigenvalue of K_ss, none of an empty Q
                c.U = _leading(energy, _SMOOTH * max(smallest.sum(), 0.0) * c.roughness, c.rank, drop)
                c.rank, c.own = c.U.shape[1], c.U.T @ own @ c.U
                if link == "sampled" and seen is not None:
                    c.seen = c.U.T @ seen
                advance(1)

    def _links(self, clusters: Sequence[_Cluster], link: Link, eta: float) -> np.ndarray:
        """L (r0 x r0), symmetric; W_s' K_st W_t or its estimate, 0 for pairs of clusters that are left out."""
        rows = self.rows
        bases = [np.ascontiguousarray(c.Q @ c.U.astype(rows.dtype)) for c in clusters]
        edges = np.concatenate([[0], np.cumsum([c.rank for c in clusters])])
        place = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
        L = np.zeros((edges[-1], edges[-1]))
        for s, c in enumerate(clusters):
            L[place[s], place[s]] = c.own
        inverses = [self._regressor(s, c, bases[s]) for s, c in enumerate(clusters)] if link == "sampled" else []
        pairs = self._near_pairs(eta)
        with stage("MEKA links", len(pairs)) as advance:
            for s, t in pairs:
                if link == "exact":
                    block = rows.project(bases[s], rows.where(s), rows.prepared[rows.where(t)]) @ bases[t]
                else:
                    one, two = (clusters[i].seen[:, self.edges[j] : self.edges[j + 1]] for i, j in ((s, t), (t, s)))
                    # K_st seen from the sampled rows of t, and from those of s: two estimates of one block, whose mean has
                    # the smaller variance
                    block = (one @ inverses[t] + (two @ inverses[s]).T) / 2
                L[place[s], place[t]], L[place[t], place[s]] = block, block.T
                advance(1)
        return L

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


def _leading(square: np.ndarray, roughness: np.ndarray, rank: int, drop: float) -> np.ndarray:
    """Orthonormal span of the `rank` directions u with the largest u'Eu / u'(I + R)u, fewer where that falls below `drop`.

    A direction can be large on the fitted rows only because its function is rough, and is then wild on other rows: R,
    its squared norm in the kernel's space times a small eigenvalue, is about _SMOOTH for an eigenfunction and far above 1
    for such a direction.
    """
    values, vectors = scipy.linalg.eigh(square, np.eye(len(square)) + roughness, check_finite=False)
    count = min(rank, int((values > drop * max(values.max(initial=0.0), 1e-300)).sum()))
    # orthonormal in I + R by eigh, now in the Euclidean product, which is what makes W_s = Q U orthonormal
    return np.linalg.qr(vectors[:, ::-1][:, :count])[0]


def _by_leverage(Q: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """`count` row numbers of an orthonormal Q drawn half by leverage, half evenly, and weights that keep sums unbiased."""
    size = Q.shape[0]
    if count >= size:
        return np.arange(size), np.ones(size)
    leverage = np.einsum("ij,ij->i", Q, Q)  # squared row lengths, as Q is orthonormal
    p = 0.5 * leverage / max(leverage.sum(), 1e-300) + 0.5 / size
    p /= p.sum()
    picked = np.sort(rng.choice(size, size=count, replace=False, p=p))
    # at least 1: drawn without replacement, a row with count p > 1 is there for certain and stands for itself
    return picked, np.maximum(1.0, 1 / np.sqrt(count * p[picked]))
