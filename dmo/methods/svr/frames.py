"""Local frames of the output manifold: orthonormal coordinates from each output's neighbors [LLT, Algorithm 1]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.neighbors import NearestNeighbors

from dmo.blocks import row_blocks

Neighbors = Literal["samples", "distinct"]
_TOLERANCE = 1e-8  # singular values below this share of the data's spread are rounding
_BLOCK = 4096


@dataclass(frozen=True)
class Frames:
    """`basis` (n x L x L): the orthonormal columns of U_i; `ranks` (n): how many of them the neighborhood spans."""

    basis: np.ndarray
    ranks: np.ndarray


def neighborhood_frames(Y: np.ndarray, n_neighbors: int, neighbors: Neighbors = "samples") -> Frames:
    """Find orthonormal coordinates of every output from its neighbors.

    U_i = left singular vectors of the centered `n_neighbors` outputs nearest to y_i (Euclidean, y_i included). Directions
    that the neighborhood does not span (n_neighbors <= L, repeated outputs) are completed to a full basis by the coordinate
    axes nearest to them, so a neighborhood of one repeated output has the identity as its frame. Memory: 8 n L^2 bytes.

    Parameters
    ----------
    Y : ndarray of shape (n, L), float64
        Outputs.
    n_neighbors : int
        kappa.
    neighbors : {"samples", "distinct"}, default="samples"
        "samples" takes the nearest samples, as the paper does; "distinct" takes the nearest different outputs (all of them
        where there are fewer), which matters where many samples share one output, as with labels: the nearest samples then
        span nothing.

    Returns
    -------
    Frames
        U_i and their ranks.

    References
    ----------
    Liu, Lin, Yu 2009, Algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.svr.frames import neighborhood_frames
    >>> line = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    >>> frames = neighborhood_frames(line, 3)
    >>> frames.ranks, np.abs(frames.basis[0]).round(3)
    (array([1, 1, 1]), array([[0.707, 0.707],
           [0.707, 0.707]]))
    """
    if neighbors == "distinct":
        distinct, inverse = np.unique(Y, axis=0, return_inverse=True)
        frames = neighborhood_frames(distinct, min(n_neighbors, len(distinct)))
        return Frames(frames.basis[inverse], frames.ranks[inverse])
    n, L = Y.shape
    search = NearestNeighbors(n_neighbors=n_neighbors).fit(Y)
    floor = _TOLERANCE * max(float(np.abs(Y - Y.mean(axis=0)).max()), np.finfo(np.float64).tiny) * np.sqrt(n_neighbors)
    basis, ranks = np.empty((n, L, L)), np.empty(n, dtype=np.intp)
    for where in row_blocks(n, _BLOCK):
        hood = Y[search.kneighbors(Y[where], return_distance=False)]
        hood -= hood.mean(axis=1, keepdims=True)
        left, values, _ = np.linalg.svd(hood.transpose(0, 2, 1), full_matrices=False)
        ranks[where] = (values > floor).sum(axis=1)
        basis[where] = _complete(left, ranks[where])
    return Frames(basis, ranks)


def _complete(vectors: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """The first `ranks[i]` columns of vectors[i] (n x L x m), followed by an orthonormal basis of their complement.

    The complement's projector is deflated by its column of the largest diagonal entry, again and again: Gram-Schmidt on
    the axes with pivoting, for all samples at once.
    """
    n, L, m = vectors.shape
    full = np.zeros((n, L, L))
    full[:, :, :m] = np.where(np.arange(m) < ranks[:, None, None], vectors, 0.0)
    rest = np.eye(L) - full @ full.transpose(0, 2, 1)
    for column in range(int(ranks.min(initial=L)), L):
        todo = np.flatnonzero(ranks <= column)
        diagonal = np.einsum("ijj->ij", rest[todo])
        axis = np.round(diagonal, 8).argmax(axis=1)  # rounded: ties go to the first axis, whatever the rounding
        new = rest[todo, :, axis] / np.sqrt(diagonal[np.arange(len(todo)), axis])[:, None]
        full[todo, :, column] = new
        rest[todo] -= new[:, :, None] * new[:, None, :]
    return full
