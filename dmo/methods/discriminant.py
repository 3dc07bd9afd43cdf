"""Supervised and semi-supervised embeddings, for classes and for multi-label data.

For multi-label data, each sample is replaced by one duplicate per label, which belongs to the class of that label
[MOPE 32, 33]. The matrix of a method is E' A_dup E, where A_dup is its matrix for the duplicates, and E maps samples to
duplicates. This module computes the product without duplicates. For a duplicate with label l, neighbors inside the
class are samples with label l, and neighbors outside are samples without label l.

The first line of the docstring of a method is its formula, which `TraceEmbedding.methods` returns. The formula "A | B"
means: maximize tr(P'AP) subject to P'BP = I, where P projects the samples X. Y is the label matrix (n x c). The vectors
m = Y1 and n_c = Y'1 count labels per sample and samples per label, M and Nc are their diagonal matrices, and N is the
number of duplicates. Lap(W) is the Laplacian of a graph with weights W. S_b and S_w are the scatters between and within
classes, and the superscript l denotes the labeled samples. References such as [MOPE 32] are equations of Mu, Goulermas,
Tsujii, Ananiadou 2012.
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
"""Maximum number of pairs of samples with a common class, for methods that use all these pairs."""


def scatter_within(samples: TraceSamples) -> QuadraticForm:
    """Create the matrix of the scatter within classes, M - Y Nc^-1 Y'."""
    return QuadraticForm(samples.n, None, samples.Y, np.diag(-1 / samples.sizes), samples.counts)


def scatter_between(samples: TraceSamples) -> QuadraticForm:
    """Create the matrix of the scatter between classes, Y Nc^-1 Y' - mm'/N."""
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
    """X'Lap(W^b)X | X'Lap(W^w)X + c I, where W^w = A/n_c and W^b = A(1/N - 1/n_c) in a class; W^b = 1/N elsewhere."""
    n, m, total = samples.n, samples.counts, samples.counts.sum()
    within, between = csr_array((n, n)), csr_array((n, n))
    for label, graph in in_class(samples, options.n_neighbors):
        own = np.flatnonzero(samples.Y[:, label])
        A = _placed(_local_affinity(csr_array(graph.maximum(graph.T)), samples.rows[own]), own, n)
        within = within + A / samples.sizes[label]
        between = between + A * (1 / total - 1 / samples.sizes[label])
    # Pairs of samples from different classes contribute the Laplacian of (mm' - YY') / N.
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
    """Compute affinities exp(-|xi - xj|^2 / (s_i s_j)), with the distance s_i to the 7th neighbor in the class."""
    size = X.shape[0]
    if not graph.nnz:
        return graph
    if graph.nnz == size * (size - 1):
        return _dense_affinity(X)
    scales = neighbors(X, min(7, size - 1)).distances[:, -1]
    return weigh(graph, X, "local", scales=_positive(scales))


def _dense_affinity(X: Any) -> csr_array:
    """Compute local affinities by one matrix product."""
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
    """Compute the inner products of all pairs of centered rows."""
    X, rest = shifted(X, np.asarray(X.mean(axis=0, dtype=np.float64)).ravel())
    G = dense(X @ X.T)
    if rest is not None:
        G = G - G.mean(axis=0) - G.mean(axis=1)[:, None] + G.mean()
    return (G + G.T) / 2


def mfa(samples: TraceSamples, options: Options) -> TraceProblem:
    """X'Lap(W^b)X | X'Lap(W^w)X + c I, where W^w connects neighbors in a class, and W^b the pairs closest across it."""
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
    """Count the classes for which (i, j) is one of the k closest pairs of a sample i inside and a sample j outside."""
    total = csr_array((samples.n, samples.n))
    for _, own, others, found in _outside(samples, k):
        order = np.argsort(found.distances.ravel(), kind="stable")[:k]
        rows, columns = own[order // found.k], others[found.indices.ravel()[order]]
        total = total + csr_array((np.ones(len(order)), (rows, columns)), shape=total.shape)
    return csr_array(total)


def dla(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'[Lap(A^w + A^w') - lam Lap(A^b + A^b')]X | I, where A^w marks neighbors in the class, and A^b outside it."""
    W, R = _attracted(samples, options), repelled(samples, reach(options.n_repelled, samples.n))
    L = laplacian(W) - options.repulsion * laplacian(R)
    return TraceProblem(QuadraticForm(samples.n, csr_array(-L)))


def _attracted(samples: TraceSamples, options: Options) -> csr_array:
    total = csr_array((samples.n, samples.n))
    for label, graph in in_class(samples, reach(options.n_neighbors, samples.n)):
        total = total + _placed(csr_array(graph + graph.T), np.flatnonzero(samples.Y[:, label]), samples.n)
    return csr_array(total)


def repelled(samples: TraceSamples, k: int) -> csr_array:
    """Compute weights of pairs of samples, one of which is near the other, but outside one of its classes."""
    n, total = samples.n, csr_array((samples.n, samples.n))
    for _, own, others, found in _outside(samples, k):
        rows = np.repeat(own, found.k)
        columns = others[found.indices.ravel()]
        total = total + csr_array((samples.counts[columns], (rows, columns)), shape=(n, n))
    return csr_array(total + total.T)


def dne(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'Lap(F)X | I for positive eigenvalues, where F is 1 for neighbors of the same class and -1 for others."""
    R = _neighbor_graph(samples, options.n_neighbors, options)
    F = _on_pattern(R, samples, 2.0, 1.0)
    return TraceProblem(QuadraticForm(samples.n, csr_array(-laplacian(F))), positive=True)


def olpp_r(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'(Lap(W^s) - beta Lap(W^r))X | I, where W^s = 1/n_c in a class, and W^r connects neighbors across classes."""
    R = _on_pattern(_neighbor_graph(samples, options.n_repelled, options), samples, -1.0, -1.0)
    return TraceProblem(QuadraticForm(samples.n, csr_array(options.repulsion * laplacian(R))) - scatter_within(samples))


def sonpp(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'(I - S)'(I - S)X | I, where S reconstructs each sample from other samples of its class."""
    return TraceProblem(QuadraticForm(samples.n, _class_residual(samples, options).tocsr()))


def donpp(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'[(I - S)'(I - S) - beta Lap(A^b + A^b')]X | I, with S as in SONPP and A^b as in DLA."""
    R = repelled(samples, reach(options.n_repelled, samples.n))
    residual = _class_residual(samples, options)
    return TraceProblem(QuadraticForm(samples.n, csr_array(residual + options.repulsion * laplacian(R))))


def onpp_r(samples: TraceSamples, options: Options) -> TraceProblem:
    """-X'[(I - S)'(I - S) - beta Lap(W^r)]X | I, with S as in SONPP and W^r as in OLPP-R."""
    R = _on_pattern(_neighbor_graph(samples, options.n_repelled, options), samples, -1.0, -1.0)
    residual = _class_residual(samples, options)
    return TraceProblem(QuadraticForm(samples.n, csr_array(residual + options.repulsion * laplacian(R))))


def _class_residual(samples: TraceSamples, options: Options) -> csr_array:
    """Sum -(I - S)'(I - S) over classes, where S reconstructs the samples of a class from each other."""
    n, total = samples.n, csr_array((samples.n, samples.n))
    for _, own in samples.members():
        S = _reconstruction(samples.rows[own], options)
        C = np.eye(len(own)) - S if isinstance(S, np.ndarray) else scipy.sparse.eye_array(len(own)) - S
        total = total - _placed(csr_array(C.T @ C), own, n)
    return csr_array(total)


def _reconstruction(X: Any, options: Options) -> csr_array | np.ndarray:
    """Compute weights that reconstruct each sample of a class from its neighbors, or from all other samples."""
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
    """Compute weights that reconstruct each of n rows from all others, in O(n^2 r) time for rows of rank r."""
    # Let F contain the coordinates of the centered rows on their principal axes, so C = F'F is diagonal. The
    # differences Z between the other rows and row f_i satisfy Z'Z = C + n f_i f_i' and Z'1 = -n f_i. The Woodbury and
    # Sherman-Morrison formulas then yield the weights (Z Z' + c I)^-1 1.
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
    """Yield each class with the directed graph of the k nearest neighbors, or of all pairs, of its samples."""
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
    """Yield each class, its samples, all other samples, and the k other samples nearest to each of its samples."""
    for label, own in samples.members():
        others = np.flatnonzero(samples.Y[:, label] == 0)
        if len(others):
            yield label, own, others, nearest(samples.rows[own], samples.rows[others], min(k, len(others)))


def _neighbor_graph(samples: TraceSamples, k: int | None, options: Options) -> csr_array:
    return adjacency(neighbors(samples.rows, reach(k, samples.n), options.metric), options.adjacency)


def _on_pattern(R: csr_array, samples: TraceSamples, same: float, all_pairs: float) -> csr_array:
    """Multiply the entries of R by the entries of same * YY' - all_pairs * mm'."""
    # If `same` and `all_pairs` are -1, only pairs of samples from different classes keep nonzero entries.
    R = csr_array(R)
    left = np.repeat(np.arange(samples.n), np.diff(R.indptr))
    values, m = np.empty(R.nnz), samples.counts
    for start in range(0, R.nnz, 65536):
        i, j = left[start : start + 65536], R.indices[start : start + 65536]
        shared = np.einsum("ij,ij->i", samples.Y[i], samples.Y[j])
        values[start : start + 65536] = same * shared - all_pairs * m[i] * m[j]
    return csr_array((R.data * values, R.indices, R.indptr), shape=R.shape)


def _placed(W: csr_array, own: np.ndarray, n: int) -> csr_array:
    """Place the entries of W for the samples `own` in an n x n matrix of all samples."""
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
"""Methods that support sample weights, because they do not use neighbors."""


def duplicated(name: str, samples: TraceSamples, options: Options, weighted: bool = False) -> TraceProblem:
    """Create the problem of a method for duplicated samples [MOPE 32, 33]."""
    problem = DISCRIMINANTS[name](samples, options)
    return problem.each(lambda form: form.weighted(1 / samples.counts)) if weighted else problem


def self_(samples: TraceSamples, options: Options) -> TraceProblem:
    """(1 - beta) S_b^l + beta X'HX | (1 - beta) S_w^l + beta I, with the scatters of LFDA and beta = 1 - mixing."""
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
