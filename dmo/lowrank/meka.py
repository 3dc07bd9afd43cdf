"""Memory-efficient kernel approximation (MEKA), with a basis for each cluster of rows and links between clusters."""

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
    """MEKA feature map f(x) = T' w(x), where w(x) depends on the cluster of x, and T links the clusters.

    The cluster s of a sample x is the cluster with the nearest center. In the columns of this cluster, w(x) is
    M_s' [k(Z_s, x); k(Z_0, x)], where Z_s and Z_0 are landmarks. In all other columns, w(x) is 0.

    Parameters
    ----------
    kernel : Kernel
        Fitted kernel.
    dtype : dtype
        Data type of the factor rows.
    space : str
        Transformation of the samples before the search for the nearest center, such as "l2" or "hellinger".
    centers : ndarray of shape (S, d)
        Center of each cluster.
    shared : ndarray or csr_array of shape (m0, d)
        Landmarks Z_0 that all clusters share.
    landmarks : sequence of ndarray or csr_array
        Landmarks Z_s of each cluster.
    projections : sequence of ndarray of shape (|Z_s| + |Z_0|, k_s)
        Matrix M_s of each cluster. The columns of w(x) are orthonormal over the rows on which the map was fitted.
    links : ndarray of shape (r0, r)
        Matrix T, where T T' is the link matrix L.
    shares : ndarray of shape (S,)
        Fraction of the fitted rows in each cluster.
    error : dict, default={}
        Estimated approximation errors from `sampled_error`.

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
        """Number of columns of the factor."""
        return self.links.shape[1]

    @property
    def mixing(self) -> np.ndarray:
        """Matrix T of shape (r0, r), which links the clusters."""
        return self.links

    @property
    def ranks(self) -> np.ndarray:
        """Number of basis vectors of each cluster."""
        return np.array([M.shape[1] for M in self.projections])

    @cached_property
    def _ready(self) -> tuple[Any, list[Any], list[np.ndarray]]:
        prepare = self.kernel.prepare
        local = [prepare(Z, self.dtype) for Z in self.landmarks]
        return prepare(self.shared, self.dtype), local, [M.astype(self.dtype) for M in self.projections]

    def raw(self, X: Rows) -> BlockRows:
        """Compute w(x) of samples in memory, which is nonzero only in the columns of the cluster of x.

        Parameters
        ----------
        X : ndarray or csr_array of shape (m, d)
            Samples as rows.

        Returns
        -------
        BlockRows of shape (m, r0)
            Block-sparse matrix W with one row w(x) per sample.
        """
        return self._rows(X, self._ready[2])

    def times(self, X: Rows, coefficients: np.ndarray) -> np.ndarray:
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
        """Return the number of entries of the bases and the link matrix for n samples.

        Parameters
        ----------
        n : int
            Number of samples.

        Returns
        -------
        int
            About n k + (S k)^2, where k is the average number of basis vectors of the S clusters.
        """
        return round(n * float(self.shares @ self.ranks)) + int(self.ranks.sum()) ** 2

    def operator(self, X: Rows) -> BlockLowRank:
        """Return the approximate kernel matrix of samples as a linear operator.

        Parameters
        ----------
        X : row source of shape (n, d)
            Samples as rows. Chunks must contain whole rows.

        Returns
        -------
        BlockLowRank
            Operator W L W' of shape (n, n), with the block-sparse matrix W in memory.
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
# Number of landmarks in a cluster relative to the rank of the cluster, and number of shared landmarks relative to the
# average rank.
_LOCAL, _SHARED = 2, 1
_SAMPLES = 5  # Number of rows that link="sampled" draws from a cluster, relative to the rank of the cluster.
# Penalty on rough basis functions, relative to the smallest eigenvalue that the rank of the cluster retains.
_SMOOTH = 0.005
_SPAN = (1e-10, 1e-14)  # Smallest relative pivot and relative jitter of a Cholesky QR decomposition in float64.
# Maximum number of features of sparse data for k-means landmarks. For more features, landmarks are rows, because
# k-means centers would be dense.
_SPARSE_WIDTH = 8192


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
    """Fit a MEKA feature map on samples, and estimate its approximation error.

    The kernel matrix K is approximated by W L W'. The block-diagonal matrix W has an orthonormal basis W_s of each
    cluster s, and L links the clusters. The columns of W_s are combinations of kernel functions at landmarks, so new
    samples can be mapped, too. Negative eigenvalues of L are set to zero. For S clusters and n_f rows for fitting, the
    fit holds about n_f (d + 5 rank) + 8 (S rank)^2 numbers in memory.

    Parameters
    ----------
    kernel : str or Kernel
        Kernel to approximate, which is fitted on X if necessary.
    X : row source of shape (n, d)
        Samples as rows. Chunks must contain whole rows.
    clusters : int, default=10
        Number of clusters S. Fewer clusters are used if X has too few distinct rows.
    rank : int or "auto", default=128
        Average number k of basis vectors per cluster, which is distributed in proportion to the cluster sizes. With
        "auto", k depends on `tol` and `memory`.
    basis : {"block-row", "eigen"}, default="block-row"
        Basis of a cluster. "block-row" uses left singular vectors of the kernel rows of the cluster. "eigen" uses
        eigenvectors of the kernel matrix within the cluster. The vectors of both bases are approximated in the span of
        the landmarks.
    link : {"exact", "sampled"}, default="exact"
        Computation of L for n fitted rows. "exact" computes W'KW from about n^2 / 2 kernel values. "sampled" computes
        links by least squares on rows drawn by leverage, from about 5 n S k + n^2 / S kernel values.
    eta : float in [0, 1), default=0.0
        Fraction of the cluster pairs whose links are set to zero. Pairs of centers with the smallest kernel values come
        first.
    random_state : int, Generator or None, default=None
        Seed for choosing samples, clusters and landmarks.
    dtype : dtype, default=float32
        Data type of the factor rows.
    tol : float or None, default=None
        Relative error to reach with rank="auto". If neither `tol` nor `memory` is given, the
        tolerance is 0.01.
    memory : float or None, default=None
        Maximum size of the n k + (S k)^2 numbers of W and L in bytes, which requires rank="auto".
    fit_rows : int or None, default=None
        Maximum number of rows for fitting, which are drawn at random. The default is 16 rows per column of W, but at
        least 4096 and at most 20 000 rows. With rank="auto", the default is 20 000.

    Returns
    -------
    FeatureMap
        Fitted MEKA map with its estimated errors.

    Raises
    ------
    UserError
        If a row contains NaN or infinity, X is empty, the kernel is precomputed, or a parameter is invalid.

    References
    ----------
    Si, Hsieh, Dhillon 2014, algorithm 1. Instead of the regression of the paper, L is computed by projection, or by
    least squares on rows sampled by leverage.

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
    """Return the largest average rank for which bases and links of n samples have at most `numbers` entries."""
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
    """Intermediate results of the fit of one cluster s."""

    # Q : orthonormal basis (n_s x m) of the kernel functions at all landmarks, evaluated at the rows of the cluster.
    # to_Q : matrix with Q = [k(X_s, Z_s) k(X_s, Z_0)] to_Q.
    # roughness : Gram matrix (m x m) of the columns of Q in the RKHS.
    # U : matrix (m x k_s) that defines the basis of the cluster, W_s = Q U.
    # own : link W_s' K_ss W_s of the cluster to itself.
    # sampled, weights : indices of the rows that are sampled for link="sampled", and their importance weights.
    # seen : product of W_s' and the weighted kernel values between the cluster and the sampled rows of all clusters.

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
    """Fit of a MEKA map with `total` basis vectors on clustered rows."""

    def __init__(self, rows: Partition, total: int, rng: np.random.Generator):
        self.rows, self.rng, n = rows, rng, rows.X.shape[0]
        wide = reads_sparse(rows.X) and rows.X.shape[1] > _SPARSE_WIDTH
        self.kind: Landmarks = "rpcholesky" if wide else "kmeans"
        self.ranks = allocate(rows.sizes, min(total, n))
        # The basis of a cluster must also represent kernel functions of samples in other clusters, so each cluster also
        # uses landmarks that all clusters share.
        n_shared = 0 if len(self.ranks) == 1 else math.ceil(_SHARED * self.ranks.mean())
        self.shared = choose_landmarks(rows.kernel, rows.X, n_shared, self.kind, rng) if n_shared else rows.X[:0]

    def map(self, basis: Basis, link: Link, eta: float) -> MekaMap:
        """Return the fitted map."""
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
        """Compute an orthonormal basis of the kernel functions at the landmarks of cluster s."""
        kernel, dtype, where = self.rows.kernel, self.rows.dtype, self.rows.where(s)
        X, size = self.rows.X[where], where.stop - where.start
        count = (_LOCAL if self.shared.shape[0] else _LOCAL + _SHARED) * rank
        Z = X if count >= size else choose_landmarks(kernel, X, count, self.kind, self.rng)
        landmarks = stacked([Z, self.shared]) if self.shared.shape[0] else Z
        prepared = kernel.prepare(landmarks, np.float64)
        among = kernel.tile(prepared, prepared)
        # Compute kernel values of the fitted rows in the same precision as kernel values of new samples.
        Q = kernel.tile(self.rows.prepared[where], kernel.prepare(landmarks, dtype)).astype(np.float64, copy=False)
        # Whiten the kernel functions by the kernel matrix of the landmarks, and orthonormalize them by two Cholesky QR
        # decompositions. The error of the first decomposition grows with the squared condition number, and the second
        # decomposition removes this error.
        to_Q, square = np.eye(len(among)), among
        for limits in (cut_off(dtype), _SPAN, _SPAN):
            keep, inverse = inverse_root(square, *limits)
            Q, to_Q = Q[:, keep] @ inverse, to_Q[:, keep] @ inverse
            square = Q.T @ Q
        return _Cluster(min(rank, Q.shape[1]), Z, Q.astype(dtype), to_Q, to_Q.T @ among @ to_Q)

    def _own(self, s: int, c: _Cluster) -> np.ndarray:
        """Compute Q'K_ss Q for the kernel matrix K_ss of cluster s."""
        own = self.rows.project(c.Q, self.rows.where(s), self.rows.prepared[self.rows.where(s)]) @ c.Q
        return (own + own.T) / 2

    def _choose(self, c: _Cluster, own: np.ndarray, others: Iterable[np.ndarray] | None) -> None:
        """Choose the basis of a cluster, from the kernel matrix within the cluster or from all of its kernel rows.

        `others` are products of Q' and kernel values with other clusters, or None for basis="eigen".
        """
        energy, drop = own, 1e-6 if self.rows.dtype == np.float32 else 1e-12
        # The eigenvalues of `energy` are squared singular values, so square the threshold too.
        if others is not None:
            energy, drop = own @ own, drop**2
            for other in others:
                energy += other @ other.T
        smallest = np.linalg.eigvalsh(own)[::-1][c.rank - 1 : c.rank]  # This array is empty if Q has no columns.
        c.U = _leading(energy, _SMOOTH * max(smallest.sum(), 0.0) * c.roughness, c.rank, drop)
        c.rank, c.own = c.U.shape[1], c.U.T @ own @ c.U

    def _projected(self, clusters: Sequence[_Cluster], pairs: Sequence[tuple[int, int]], basis: Basis) -> np.ndarray:
        """Compute the bases and the links W_s' K_st W_t from all kernel values, each of which is computed once."""
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
        """Compute the bases from sampled rows, and the links by least squares on these rows."""
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
                # The kernel matrix within cluster s is computed from all of its rows, so omit the rows that are sampled
                # from this cluster.
                others = np.delete(seen, np.s_[edges[s] : edges[s + 1]], axis=1)
                self._choose(c, self._own(s, c), [others] if basis == "block-row" else None)
                c.seen = c.U.T @ seen
                advance(1)
        inverses = [self._regressor(s, c, c.Q @ c.U) for s, c in enumerate(clusters)]
        blocks = {}
        for s, t in pairs:
            one, two = (clusters[i].seen[:, edges[j] : edges[j + 1]] for i, j in ((s, t), (t, s)))
            # To reduce the variance, average the estimate from sampled rows of cluster t and the estimate from sampled
            # rows of cluster s.
            blocks[s, t] = (one @ inverses[t] + (two @ inverses[s]).T) / 2
        return _linked(clusters, blocks)

    def _regressor(self, s: int, c: _Cluster, W: np.ndarray) -> np.ndarray:
        """Return the transposed pseudoinverse of the sampled and weighted rows of W_s, for least squares.

        Leverage sampling makes most singular values of these rows close to 1. Singular values below 0.01 are dropped.
        """
        sampled = W[c.sampled - self.rows.where(s).start].astype(np.float64) * c.weights[:, None]
        return scipy.linalg.pinv(sampled, rtol=1e-2, check_finite=False).T

    def _near_pairs(self, eta: float) -> list[tuple[int, int]]:
        """Return all pairs of clusters except the fraction `eta` whose centers have the smallest kernel values."""
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
    """Assemble the link matrix L from the blocks of pairs of clusters. Missing pairs are 0."""
    edges = np.cumsum([0, *(c.rank for c in clusters)])
    place = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    L = np.zeros((edges[-1], edges[-1]))
    for where, c in zip(place, clusters, strict=True):
        L[where, where] = c.own
    for (s, t), block in blocks.items():
        L[place[s], place[t]], L[place[t], place[s]] = block, block.T
    return (L + L.T) / 2


def _root(L: np.ndarray, definite: bool) -> np.ndarray:
    """Compute T with full column rank, where T T' is the positive semidefinite part of L."""
    # If links are sampled or set to zero, L may be indefinite. Setting the negative eigenvalues of L to zero yields the
    # positive semidefinite matrix nearest to W L W', because W has orthonormal columns. If all links are exact, L is
    # positive semidefinite up to floating-point errors, so that a Cholesky factorization, which is faster, usually
    # succeeds.
    if definite:
        with suppress(np.linalg.LinAlgError):
            root = np.linalg.cholesky(L)
            if len(L) and (root.diagonal() > 1e-5 * root.diagonal().max()).all():
                return root
    values, vectors = np.linalg.eigh(L)
    keep = np.flatnonzero(values > 1e-10 * max(values.max(initial=0.0), 1e-300))[::-1]
    return np.asarray(vectors[:, keep] * np.sqrt(values[keep]))


def _leading(square: np.ndarray, roughness: np.ndarray, rank: int, drop: float) -> np.ndarray:
    """Return an orthonormal basis of up to `rank` vectors u with the largest ratios u'Eu / u'(I + R)u.

    E is `square`, and R is `roughness`. Vectors with a ratio below `drop` times the maximum are omitted.
    """
    # Rough functions may be large on the fitted rows but vary wildly on other rows, so the penalty u'Ru excludes them.
    # The penalty u'Ru is proportional to the squared RKHS norm of the function. The penalty is about 0.005 for the last
    # eigenfunction that the rank retains, and far above 1 for rough functions.
    values, vectors = scipy.linalg.eigh(square, np.eye(len(square)) + roughness, check_finite=False)
    count = min(rank, int((values > drop * max(values.max(initial=0.0), 1e-300)).sum()))
    # The eigenvectors are orthonormal in the inner product of I + R, so orthonormalize them in the Euclidean inner
    # product.
    return np.linalg.qr(vectors[:, ::-1][:, :count])[0]


def _by_leverage(Q: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows of Q, half by leverage scores and half uniformly. Return their indices and importance weights."""
    size = Q.shape[0]
    if count >= size:
        return np.arange(size), np.ones(size)
    # The columns of Q are orthonormal, so the leverage scores are the squared row norms.
    leverage = np.einsum("ij,ij->i", Q, Q, dtype=np.float64)
    p = 0.5 * leverage / max(leverage.sum(), 1e-300) + 0.5 / size
    p /= p.sum()
    picked = np.sort(rng.choice(size, size=count, replace=False, p=p))
    # Every sampled row represents at least itself, so its weight is at least 1.
    return picked, np.maximum(1.0, 1 / np.sqrt(count * p[picked]))
