"""Supervised and semi-supervised neighborhood methods, for classes and, by duplication of samples, for several labels.

MESD [MOPE 32, 33] duplicates each sample once per label: sample i with label l becomes the duplicate (i, l) of class l.
The matrix E (N x n) maps samples to duplicates, and A = E' A_dup E. This module computes A without duplicates from
Y (n x c, 0/1), m = Y1, M = diag(m), n_c = Y'1, Nc = diag(n_c) and N = 1'm. One label per sample, m = 1, is the plain
method. Neighbors are samples: neighbors of (i, l) inside the class have label l, and neighbors outside do not have it.
In the weighted form (33), each matrix entry is divided by m_i m_j.

Semi-supervised embeddings [MOPE 19-22] use labeled samples in supervised terms, and all samples in unsupervised terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dmo.blocks import dense, shifted
from dmo.errors import UserError
from dmo.graphs import Neighbors, adjacency, laplacian, nearest, neighbors, reconstruction_weights, weigh
from dmo.methods.quadratic_forms import Options, QuadraticForm, TraceProblem, TraceSamples
from dmo.methods.spectral import reach, smooth

PAIRS = 10_000_000
"""Maximum number of pairs of samples within classes, if no number of neighbors is set."""


def scatter_within(samples: TraceSamples) -> QuadraticForm:
    """M - Y Nc^-1 Y'."""
    return QuadraticForm(samples.n, None, samples.Y, np.diag(-1 / samples.sizes), samples.counts)


def scatter_between(samples: TraceSamples) -> QuadraticForm:
    """Y Nc^-1 Y' - mm'/N."""
    m = samples.counts
    core = np.diag(np.append(1 / samples.sizes, -1 / m.sum()))
    return QuadraticForm(samples.n, None, np.column_stack([samples.Y, m]), core)


def fda(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'(Y Nc^-1 Y' - mm'/N)X | X'(M - Y Nc^-1 Y')X + c I."""
    return TraceProblem(scatter_between(samples), scatter_within(samples), options.ridge)


def mmc(samples: TraceSamples, options: Options) -> TraceProblem:
    """S_b - mu S_w | I."""
    return TraceProblem(scatter_between(samples) - scatter_within(samples).times(options.penalty))


def lfda(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'Lap(W^b)X | X'Lap(W^w)X + c I, W^w = A/n_c in class, W^b = A(1/N - 1/n_c) in class and 1/N outside."""
    n, m, total = samples.n, samples.counts, samples.counts.sum()
    within, between = csr_array((n, n)), csr_array((n, n))
    for label, graph in in_class(samples, options.n_neighbors):
        own = np.flatnonzero(samples.Y[:, label])
        A = _placed(_local_affinity(csr_array(graph.maximum(graph.T)), samples.rows[own]), own, n)
        within = within + A / samples.sizes[label]
        between = between + A * (1 / total - 1 / samples.sizes[label])
    # Lap((mm' - YY')/N) contains the pairs of samples of different classes.
    core = np.diag(np.append(np.full(samples.Y.shape[1], 1 / total), -1 / total))
    far = QuadraticForm(
        n,
        laplacian(csr_array(between)),
        np.column_stack([samples.Y, m]),
        core,
        m - samples.Y @ samples.Y.sum(axis=0) / total,
    )
    return TraceProblem(far, QuadraticForm(n, laplacian(csr_array(within))), options.ridge)


def _local_affinity(graph: csr_array, X: Any) -> csr_array:
    """exp(-|xi - xj|^2 / (s_i s_j)), s_i: distance to the 7th neighbor in the class; 0 becomes the smallest other s."""
    size = X.shape[0]
    if not graph.nnz:
        return graph
    if graph.nnz == size * (size - 1):
        return _dense_affinity(X)
    scales = neighbors(X, min(7, size - 1)).distances[:, -1]
    return weigh(graph, X, "local", scales=_positive(scales))


def _dense_affinity(X: Any) -> csr_array:
    """Compute `_local_affinity` for all pairs of a class by one matrix product."""
    G = _centered_gram(X)
    h, size = G.diagonal(), len(G)
    squared = h + h[:, None] - 2 * G
    squared[squared < 1e-13 * h.max()] = 0.0
    np.fill_diagonal(squared, np.inf)
    at = min(7, size - 1) - 1
    scales = _positive(np.sqrt(np.partition(squared, at, axis=1)[:, at]))
    return csr_array(np.exp(-squared / np.outer(scales, scales)))


def _positive(scales: np.ndarray) -> np.ndarray:
    above = scales[scales > 0]
    return np.maximum(scales, above.min() if len(above) else 1.0)


def _centered_gram(X: Any) -> np.ndarray:
    """Compute inner products (n x n) of centered rows."""
    X, rest = shifted(X, np.asarray(X.mean(axis=0, dtype=np.float64)).ravel())
    G = dense(X @ X.T)
    if rest is not None:
        G = G - G.mean(axis=0) - G.mean(axis=1)[:, None] + G.mean()
    return (G + G.T) / 2


def mfa(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'Lap(W^b)X | X'Lap(W^w)X + c I, W^w: k1 neighbors in class, W^b: the k2 closest pairs (in, out) of every class."""
    n, m = samples.n, samples.counts
    within = csr_array((n, n))
    for label, graph in in_class(samples, reach(options.n_neighbors, n)):
        within = within + _placed(csr_array(graph.maximum(graph.T)), np.flatnonzero(samples.Y[:, label]), n)
    pairs = _closest_pairs(samples, reach(options.n_repelled, n))
    M = scipy.sparse.diags_array(m)
    between = pairs @ M + M @ pairs.T - pairs.multiply(pairs.T)
    return TraceProblem(
        QuadraticForm(n, laplacian(csr_array(between))), QuadraticForm(n, laplacian(csr_array(within))), options.ridge
    )


def _closest_pairs(samples: TraceSamples, k: int) -> csr_array:
    """Count for (i, j) the labels of i, but not of j, for which it is among the k closest pairs."""
    total = csr_array((samples.n, samples.n))
    for _, own, others, found in _outside(samples, k):
        order = np.argsort(found.distances.ravel(), kind="stable")[:k]
        rows, columns = own[order // found.k], others[found.indices.ravel()[order]]
        total = total + csr_array((np.ones(len(order)), (rows, columns)), shape=total.shape)
    return csr_array(total)


def dla(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'[Lap(A^w + A^w') - lam Lap(A^b + A^b')]X | I, A^w: k1 neighbors in class, A^b: k2 outside."""
    W, R = _attracted(samples, options), repelled(samples, reach(options.n_repelled, samples.n))
    L = laplacian(W) - options.repulsion * laplacian(R)
    return TraceProblem(QuadraticForm(samples.n, csr_array(-L)))


def _attracted(samples: TraceSamples, options: Options) -> csr_array:
    total = csr_array((samples.n, samples.n))
    for label, graph in in_class(samples, reach(options.n_neighbors, samples.n)):
        total = total + _placed(csr_array(graph + graph.T), np.flatnonzero(samples.Y[:, label]), samples.n)
    return csr_array(total)


def repelled(samples: TraceSamples, k: int) -> csr_array:
    """Return A + A'; A_ij counts pairs of duplicates (i, l), j with j among the k nearest samples without l."""
    n, total = samples.n, csr_array((samples.n, samples.n))
    for _, own, others, found in _outside(samples, k):
        rows = np.repeat(own, found.k)
        columns = others[found.indices.ravel()]
        total = total + csr_array((samples.counts[columns], (rows, columns)), shape=(n, n))
    return csr_array(total + total.T)


def dne(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'Lap(F)X | I, F = +1, -1 on pairs of neighbors in, between classes; positive eigenvalues are kept."""
    R = _neighbor_graph(samples, options.n_neighbors, options)
    F = _on_pattern(R, samples, 2.0, 1.0)
    return TraceProblem(QuadraticForm(samples.n, csr_array(-laplacian(F))), positive=True)


def olpp_r(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'(Lap(W^s) - beta Lap(W^r))X | I, W^s = 1/n_c in class, W^r: neighbors of different classes."""
    R = _on_pattern(_neighbor_graph(samples, options.n_repelled, options), samples, -1.0, -1.0)
    return TraceProblem(QuadraticForm(samples.n, csr_array(options.repulsion * laplacian(R))) - scatter_within(samples))


def sonpp(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'(I - S)'(I - S)X | I, S reconstructs every sample from the others of its class."""
    return TraceProblem(QuadraticForm(samples.n, _class_residual(samples, options).tocsr()))


def donpp(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'[(I - S)'(I - S) - beta Lap(A^b + A^b')]X | I, S as SONPP, A^b: k2 neighbors outside the class."""
    R = repelled(samples, reach(options.n_repelled, samples.n))
    residual = _class_residual(samples, options)
    return TraceProblem(QuadraticForm(samples.n, csr_array(residual + options.repulsion * laplacian(R))))


def onpp_r(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'[(I - S)'(I - S) - beta Lap(W^r)]X | I, S as SONPP, W^r as OLPP-R."""
    R = _on_pattern(_neighbor_graph(samples, options.n_repelled, options), samples, -1.0, -1.0)
    residual = _class_residual(samples, options)
    return TraceProblem(QuadraticForm(samples.n, csr_array(residual + options.repulsion * laplacian(R))))


def _class_residual(samples: TraceSamples, options: Options) -> csr_array:
    """Return the sum over labels of -(I - S)'(I - S), on the samples with the label."""
    n, total = samples.n, csr_array((samples.n, samples.n))
    for _, own in samples.members():
        S = _reconstruction(samples.rows[own], options)
        C = np.eye(len(own)) - S if isinstance(S, np.ndarray) else scipy.sparse.eye_array(len(own)) - S
        total = total - _placed(csr_array(C.T @ C), own, n)
    return csr_array(total)


def _reconstruction(X: Any, options: Options) -> csr_array | np.ndarray:
    """Compute the reconstruction weights S of a class from k nearest neighbors, or from all other samples."""
    size, k, reg = X.shape[0], options.n_neighbors, options.regularization
    if size == 1:
        return csr_array((1, 1))
    if k is not None and k < size - 1:
        return reconstruction_weights(X, neighbors(X, k), reg)
    if size * (size - 1) > PAIRS:
        raise UserError(
            f"a class has {size} samples, too many to use all pairs; pass n_neighbors (such as 15) to use the nearest "
            "ones"
        )
    if not reg:
        return reconstruction_weights(X, neighbors(X, size - 1), reg)
    return _from_all_others(X, reg)


def _from_all_others(X: Any, reg: float) -> np.ndarray:
    """Compute weights (n x n) that reconstruct each row from all others, in O(n^2 r) for rows of rank r."""
    # F contains the centered rows in their principal axes, so F'F = C is diagonal. Z = F_-i - 1 f_i' satisfies
    # Z'Z = C + n f_i f_i' and Z'1 = -n f_i. The Woodbury and Sherman-Morrison formulas then yield (Z Z' + c I)^-1 1.
    n = X.shape[0]
    spectrum, Q = scipy.linalg.eigh(_centered_gram(X))
    keep = spectrum > 1e-13 * max(spectrum[-1], np.finfo(float).tiny)
    spectrum, F = spectrum[keep], Q[:, keep] * np.sqrt(spectrum[keep])
    trace = spectrum.sum() + n * np.einsum("ij,ij->i", F, F)
    ridge = np.where(trace > 0, reg * trace, reg)
    share = F / (spectrum + ridge[:, None])
    V = share * (-n / (1 + n * np.einsum("ij,ij->i", F, share)))[:, None]
    W = 1 - V @ F.T + np.einsum("ij,ij->i", F, V)[:, None]
    np.fill_diagonal(W, 0.0)
    return W / W.sum(axis=1, keepdims=True)


def in_class(samples: TraceSamples, k: int | None) -> Iterator[tuple[int, csr_array]]:
    """Yield each label with the directed graph of at most k neighbors (None: all) among its samples."""
    pairs = float((samples.Y.sum(axis=0) ** 2).sum())
    if k is None and pairs > PAIRS:
        raise UserError(
            f"the classes have {pairs:.2g} pairs of samples, too many to use all; pass n_neighbors (such as 15) to use "
            "the nearest ones"
        )
    for label, own in samples.members():
        size = len(own)
        if size == 1:
            yield label, csr_array((1, 1))
        elif k is None or k >= size - 1:
            yield label, csr_array(np.ones((size, size)) - np.eye(size))
        else:
            graph = adjacency(neighbors(samples.rows[own], k), "directed")
            yield label, graph


def _outside(samples: TraceSamples, k: int) -> Iterator[tuple[int, np.ndarray, np.ndarray, Neighbors]]:
    """Yield each label, its samples, the other samples, and the k of them nearest to each of its samples."""
    for label, own in samples.members():
        others = np.flatnonzero(samples.Y[:, label] == 0)
        if len(others):
            yield label, own, others, nearest(samples.rows[own], samples.rows[others], min(k, len(others)))


def _neighbor_graph(samples: TraceSamples, k: int | None, options: Options) -> csr_array:
    return adjacency(neighbors(samples.rows, reach(k, samples.n), options.metric), options.adjacency)


def _on_pattern(R: csr_array, samples: TraceSamples, same: float, all_pairs: float) -> csr_array:
    """R o (same YY' - all_pairs mm') on the pattern of R; (-1, -1) selects the pairs of different classes."""
    R = csr_array(R)
    left = np.repeat(np.arange(samples.n), np.diff(R.indptr))
    values, m = np.empty(R.nnz), samples.counts
    for start in range(0, R.nnz, 65536):
        i, j = left[start : start + 65536], R.indices[start : start + 65536]
        shared = np.einsum("ij,ij->i", samples.Y[i], samples.Y[j])
        values[start : start + 65536] = same * shared - all_pairs * m[i] * m[j]
    return csr_array((R.data * values, R.indices, R.indptr), shape=R.shape)


def _placed(W: csr_array, own: np.ndarray, n: int) -> csr_array:
    """Extend W from the samples `own` to all n samples."""
    W = W.tocoo()
    rows, columns = W.coords
    return csr_array((W.data, (own[rows], own[columns])), shape=(n, n))


DISCRIMINANTS: dict[str, Callable[[TraceSamples, Options], TraceProblem]] = {
    "fda": fda,
    "lfda": lfda,
    "mfa": mfa,
    "mmc": mmc,
    "dla": dla,
    "dne": dne,
    "olpp-r": olpp_r,
    "sonpp": sonpp,
    "donpp": donpp,
    "onpp-r": onpp_r,
}


SCATTERS = ("fda", "mmc")
"""Methods that depend on samples only by their classes; they support weights, with w instead of 1 in Y, m and n_c."""


def duplicated(name: str, samples: TraceSamples, options: Options, weighted: bool = False) -> TraceProblem:
    """Build the problem E'A_dup E of a method, with a duplicate of each sample for each of its labels.

    [MOPE 32, 33].
    """
    problem = DISCRIMINANTS[name](samples, options)
    return problem.each(lambda form: form.weighted(1 / samples.counts)) if weighted else problem


def self_(samples: TraceSamples, options: Options) -> TraceProblem:
    """(1 - beta) S_b^l + beta X'HX | (1 - beta) S_w^l + beta I, the local scatters of LFDA, beta = 1 - mixing."""
    (known, index), n, share = samples.labeled(), samples.n, options.mixing
    local = lfda(known, options).each(lambda form: form.spread(index, n))
    A = local.A.times(share) + QuadraticForm(n, identity=1 - share).centered()
    assert local.B is not None
    return TraceProblem(A, local.B.times(share), 1 - share)


def ssfda(samples: TraceSamples, options: Options) -> TraceProblem:
    """S_b^l | S_w^l + b1 X'Lap(W)X + b2 I."""
    (known, index), n = samples.labeled(), samples.n
    B = scatter_within(known).spread(index, n) + smooth(samples.rows, options).times(options.smoothness)
    return TraceProblem(scatter_between(known).spread(index, n), B, options.ridge)


def ssmmc(samples: TraceSamples, options: Options) -> TraceProblem:
    """S_b^l - b1 S_w^l - b2 X'Lap(W)X | I."""
    (known, index), n = samples.labeled(), samples.n
    gain = scatter_between(known) - scatter_within(known).times(options.penalty)
    return TraceProblem(gain.spread(index, n) - smooth(samples.rows, options).times(options.smoothness))
