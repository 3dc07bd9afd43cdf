"""Label proximities, which measure the similarity of the labels of two samples.

Proximities are computed on the edges of a graph, or as a factor of the proximity matrix. A sample without labels has
proximity 0 to all samples. Source: Mu, Goulermas, Tsujii, Ananiadou 2012 [MOPE], equations 34-43.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse
from scipy.sparse import csr_array

from dmo.blocks import double, row_blocks
from dmo.errors import UserError
from dmo.graphs import KINDS, Neighbors, edge_dots, ends, weigh
from dmo.labels.label_kernels import factorize_kernel
from dmo.parameters import ParameterObject
from dmo.progress import stage

Scheme = Literal["bits", "projection", "classes"]
Combination = Literal["priority", "hadamard", "sum", "labels", "features"]
BITS = ("sorensen", "scaled-sorensen", "jaccard", "hamming-exponential", "hamming-linear")
PROJECTED = ("minkowski", "tanimoto", *(kind for kind in KINDS if kind not in ("constant", "distance")))
CLASSES = ("counts", *BITS, *PROJECTED)
NAMES: dict[str, tuple[str, ...]] = {"bits": BITS, "projection": PROJECTED, "classes": CLASSES}
MOST_SETS = 4096
"""Maximum number of distinct label sets for which a factor is computed."""
PAIRS = 4_000_000
"""Number of pairs of samples per batch if the proximities of all pairs are computed."""


@dataclass(eq=False)
class Proximity(ParameterObject):
    """Label proximity, which measures the similarity of the labels of two samples.

    Parameters
    ----------
    scheme : {"bits", "projection", "classes"}, default="classes"
        Objects that are compared. "bits" compares the label sets of two samples. "projection" compares coordinates of
        the label sets in a space of lower dimension. "classes" averages the similarities of all labels of one sample
        with all labels of the other sample [MOPE 42].
    similarity : str, default="sorensen"
        Similarity measure of the scheme, such as "jaccard" for "bits". The notes list the measures of each scheme.
    rank : int, default=None
        Number of coordinates of the scheme "projection". None uses all coordinates.
    p : float, default=2.0
        Order of the "minkowski" distance, at least 1.
    bandwidth : float, default=1.0
        Positive bandwidth of "hamming-exponential" and "minkowski", and constant tau of "inverse".
    class_features : {"sums", "indicators"}, default=None
        Description of the classes by features for the scheme "classes". "sums" uses the sum of the features over all
        samples of a class. "indicators" uses whether a feature is nonzero in any sample of the class. None describes a
        class by its column of labels.
    projection : str, default="pca"
        Unsupervised method of `TraceEmbedding` with which `MOPE` computes the coordinates of "projection".

    Raises
    ------
    UserError
        If a parameter has an invalid value.

    Notes
    -----
    Numbers in brackets are equations of the paper. Let A and B be the label sets of two samples, which differ in h of L
    labels. The similarities of "bits" are:

    - "sorensen": 2 |A & B| / (|A| + |B|) [34].
    - "scaled-sorensen": as "sorensen", but a common label counts 1 / (number of its samples) in |A & B| [35].
    - "jaccard": |A & B| / |A | B| [36].
    - "hamming-exponential": exp(-h / bandwidth) [37].
    - "hamming-linear": 1 - h / L [38].

    The similarities of "projection" with coordinates z are:

    - "minkowski": exp(-|z_i - z_j|_p^p / bandwidth) [40].
    - "tanimoto": z_i'z_j / (|z_i|^2 + |z_j|^2 - z_i'z_j) [41].
    - the weights of `dmo.graphs.weigh` except "constant" and "distance".

    The scheme "classes" computes D^-1 Y S Y' D^-1, where Y is the label matrix, D = diag(Y 1), and S contains
    similarities of the classes. For "counts", S is Y'Y. The similarities of "bits" and "projection" are also available
    for classes.

    References
    ----------
    Mu, Goulermas, Tsujii, Ananiadou 2012 [MOPE], equations 34-42.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.labels.proximities import Proximity, all_pairs
    >>> Y = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]])
    >>> Proximity("bits", "jaccard").on(all_pairs(3), Y).toarray()
    array([[0. , 0.5, 0. ],
           [0.5, 0. , 0. ],
           [0. , 0. , 0. ]])
    """

    scheme: Scheme = "classes"
    similarity: str = "sorensen"
    rank: int | None = None
    p: float = 2.0
    bandwidth: float = 1.0
    class_features: Literal["sums", "indicators"] | None = None
    projection: str = "pca"

    _short: ClassVar[str] = "scheme"
    _flat: ClassVar[dict[str, str]] = {
        "rank": "label_rank",
        "bandwidth": "label_bandwidth",
        "projection": "label_projection",
    }

    def __post_init__(self) -> None:
        if self.scheme not in NAMES:
            raise UserError(f"label proximity: scheme = {self.scheme!r}; known: {', '.join(NAMES)}")
        if self.similarity not in NAMES[self.scheme]:
            known = ", ".join(NAMES[self.scheme])
            raise UserError(
                f"label proximity: scheme {self.scheme!r} has no similarity {self.similarity!r}; known: {known}"
            )
        if not self.p >= 1 or not self.bandwidth > 0:
            raise UserError(
                f"label proximity: p must be at least 1 and bandwidth above 0, got {self.p!r} and {self.bandwidth!r}"
            )
        self._check_class_features()

    def _check_class_features(self) -> None:
        if self.class_features not in (None, "sums", "indicators"):
            raise UserError(f"label proximity: class_features = {self.class_features!r}; known: None, sums, indicators")
        known = PROJECTED + (BITS if self.class_features == "indicators" else ())
        if self.class_features and (self.scheme != "classes" or self.similarity not in known):
            raise UserError(
                f"label proximity: class_features={self.class_features!r} needs scheme='classes' and a similarity of "
                f"features: {', '.join(known)}"
            )

    def on(self, graph: csr_array, Y: Any, X: Any = None, Z: np.ndarray | None = None) -> csr_array:
        """Compute the label proximities on the edges of a graph.

        Parameters
        ----------
        graph : csr_array of shape (n, n)
            Graph whose stored entries are edges.
        Y : array-like or sparse of shape (n, L)
            Binary label matrix.
        X : ndarray or csr_array of shape (n, d), default=None
            Features of the samples, which `class_features` requires.
        Z : ndarray of shape (n, q), default=None
            Coordinates of the label sets for the scheme "projection". None computes them by PCA of the labels.

        Returns
        -------
        csr_array of shape (n, n), float64
            Graph whose entries are the label proximities.
        """
        Y = as_bits(Y)
        graph = csr_array(graph)
        graph.sort_indices()
        left, right = ends(graph)
        if self.scheme == "bits":
            values = _bits(self, Y, left, right)
        elif self.scheme == "projection":
            values = _projected(self, graph, label_coordinates(Y, self.rank) if Z is None else Z)
            values[_empty(Y)[left] | _empty(Y)[right]] = 0.0
        else:
            U = _shares(Y)
            values = edge_dots(U @ class_similarities(Y, self, X), left, right, U)
        return csr_array((values, graph.indices.copy(), graph.indptr.copy()), shape=graph.shape)

    def factor(self, Y: Any, X: Any = None) -> np.ndarray:
        """Compute a factor T of the matrix T T' of label proximities.

        Parameters
        ----------
        Y : array-like or sparse of shape (n, L)
            Binary label matrix.
        X : ndarray or csr_array of shape (n, d), default=None
            Features of the samples, which `class_features` requires.

        Returns
        -------
        ndarray of shape (n, q), float64
            Factor T. The scheme "classes" yields at most L columns, and other schemes at most one column per distinct
            label set.

        Raises
        ------
        UserError
            If the proximity matrix is indefinite. Schemes other than "classes" also raise an error for more than 4096
            distinct label sets, and for "local" and "gaussian", which depend on the edges of a graph.
        """
        Y = as_bits(Y)
        what = f"the label proximity {self.scheme}/{self.similarity}"
        if self.scheme == "classes":
            return np.asarray(_shares(Y) @ factorize_kernel(class_similarities(Y, self, X), what))
        if self.similarity in ("local", "gaussian"):
            raise UserError(f"{what} is scaled by the edges of a graph; evaluate it on a graph")
        _, first, member = np.unique(_keys(Y), return_index=True, return_inverse=True)
        if len(first) > MOST_SETS:
            raise UserError(
                f"{what}: {len(first)} distinct label sets, more than the limit of {MOST_SETS}; "
                f"evaluate it on a graph, or use scheme='classes'"
            )
        picked = Y[first]
        left, right = np.divmod(np.arange(len(first) ** 2), len(first))
        if self.scheme == "bits":
            values = _bits(self, picked, left, right, _sizes(Y))
        else:
            values = _projected(self, _complete(len(first)), label_coordinates(Y, self.rank)[first])
            values[_empty(picked)[left] | _empty(picked)[right]] = 0.0
        return factorize_kernel(values.reshape(len(first), -1), what)[member]


def class_similarities(Y: Any, proximity: Proximity, X: Any = None) -> np.ndarray:
    """Compute the similarities of all pairs of classes from the labels Y, or from features X of their samples."""
    Y = as_bits(Y)
    name, columns = proximity.similarity, csr_array(Y.T)
    L = columns.shape[0]
    if name == "counts":
        return np.asarray((columns @ Y).toarray())
    if proximity.class_features:
        columns = _class_features(proximity, columns, X)
    left, right = np.divmod(np.arange(L * L), L)
    if name in BITS:
        return _bits(proximity, columns, left, right).reshape(L, L)
    return _projected(proximity, _complete(L), columns.toarray()).reshape(L, L)


def _class_features(proximity: Proximity, columns: csr_array, X: Any) -> csr_array:
    """Compute the features of each class, which are sums or indicators of the features of its samples."""
    if X is None:
        raise UserError("label proximity: class_features needs the features; pass X")
    if proximity.class_features == "sums":
        return csr_array(columns @ X, dtype=np.float64)
    occurs = columns @ (csr_array(X) != 0).astype(np.float64)
    return csr_array(occurs > 0, dtype=np.float64)


def label_coordinates(Y: Any, rank: int | None = None) -> np.ndarray:
    """Compute coordinates (n x rank) of the label sets by projecting labels on their principal components."""
    Y = as_bits(Y)
    n, mean = Y.shape[0], _sizes(Y) / Y.shape[0]
    C = np.asarray((Y.T @ Y).toarray()) - n * np.outer(mean, mean)
    values, vectors = scipy.linalg.eigh((C + C.T) / 2)
    have = int((values > 1e-12 * max(values[-1], 1e-300)).sum())
    if rank is not None and not 1 <= rank <= have:
        raise UserError(
            f"label proximity: rank = {rank}, but the labels have rank {have}; expected 1 <= rank <= {have}"
        )
    P = vectors[:, ::-1][:, : have if rank is None else rank]
    largest = P[np.abs(P).argmax(axis=0), np.arange(P.shape[1])]
    return np.asarray(Y @ (P * np.where(largest < 0, -1.0, 1.0)))


def combine(
    G: csr_array,
    W: csr_array,
    combination: Combination = "priority",
    a: float = 1.0,
    b: float = 1.0,
    beta: float = 1.0,
    label_share: float = 1.0,
) -> csr_array:
    """Combine the label proximities G and the feature weights W of the same edges."""
    if not np.array_equal(G.indptr, W.indptr) or not np.array_equal(G.indices, W.indices):
        raise UserError("combine: G and W are on different graphs; evaluate both on the same graph")
    g, w = G.data, W.data
    if combination == "priority":
        _check_priority(g, w, a, b, beta, label_share)
        near = np.clip(w, 0.0, 1.0) ** b
        values = label_share * np.maximum(g, 0.0) ** a / (1 + beta * (1 - near)) + (1 - label_share) * near
    elif combination == "sum":
        if not 0 <= beta <= 1:
            raise UserError(f"combine: beta of a weighted sum must be the weight of the labels in [0, 1], got {beta!r}")
        values = beta * g + (1 - beta) * w
    elif combination in ("hadamard", "labels", "features"):
        values = {"hadamard": g * w, "labels": g.copy(), "features": w.copy()}[combination]
    else:
        raise UserError(f"combine: combination = {combination!r}; known: priority, hadamard, sum, labels, features")
    return csr_array((values, G.indices.copy(), G.indptr.copy()), shape=G.shape)


def _check_priority(g: np.ndarray, w: np.ndarray, a: float, b: float, beta: float, label_share: float) -> None:
    if not (a > 0 and b > 0 and beta >= 0 and 0 <= label_share <= 1):
        raise UserError(
            f"combine: expected a, b > 0, beta >= 0 and a label_share in [0, 1], got a={a!r}, b={b!r}, beta={beta!r}, "
            f"label_share={label_share!r}"
        )
    for name, values, most in (("label proximities", g, np.inf), ("feature weights", w, 1.0)):
        if len(values) and (values.min() < -1e-12 or values.max() > most + 1e-9):
            raise UserError(
                f"combine: 'priority' needs {name} of at least 0{'' if most > 1 else ' and at most 1'}, got "
                f"{values.min():.3g} to {values.max():.3g}; use other values, or combination='hadamard'"
            )


def strongest(measure: Callable[[csr_array], csr_array], n: int, k: int) -> Neighbors:
    """Find the k samples with the largest proximities to each sample, or fewer if k proximities are not positive.

    Source: Mu, Goulermas, Tsujii, Ananiadou 2012 [MOPE], equation 43.
    """
    # To limit memory, compute the proximities of all pairs in blocks of rows.
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= n - 1:
        raise UserError(f"neighbors: k = {k!r} of {n} samples; expected an integer from 1 to {n - 1}")
    indices, distances = np.full((n, k), -1), np.full((n, k), np.inf)
    with stage("strongest proximities (rows)", n) as advance:
        for where in row_blocks(n, max(1, PAIRS // n)):
            mine = np.arange(where.start, where.stop)
            values = measure(_pairs_of(mine, n)).data.reshape(len(mine), n)
            values[np.arange(len(mine)), mine] = 0.0
            best = np.argpartition(values, n - k, axis=1)[:, n - k :]
            found = np.take_along_axis(values, best, 1)
            order = np.argsort(-found, axis=1, kind="stable")
            best, found = np.take_along_axis(best, order, 1), np.take_along_axis(found, order, 1)
            indices[where], distances[where] = np.where(found > 0, best, -1), np.where(found > 0, -found, np.inf)
            advance(len(mine))
    return Neighbors(indices, distances)


def all_pairs(n: int) -> csr_array:
    """Create the complete graph of n samples, without loops."""
    return csr_array(np.ones((n, n)) - np.eye(n))


def _pairs_of(picked: np.ndarray, n: int) -> csr_array:
    """Create an n x n graph that connects the samples `picked` with all samples, including themselves."""
    starts = n * np.searchsorted(picked, np.arange(n + 1))
    return csr_array((np.ones(n * len(picked)), np.tile(np.arange(n), len(picked)), starts), shape=(n, n))


def as_bits(Y: Any) -> csr_array:
    """Convert labels to a sparse matrix of zeros and ones, or raise UserError if they have other values."""
    made = csr_array(double(Y))
    if made.has_canonical_format and made.nnz == np.count_nonzero(made.data) and (made.data == 1).all():
        return made
    made = made.copy()
    made.sum_duplicates()
    made.eliminate_zeros()
    if len(made.shape) != 2 or not (made.data == 1).all():
        raise UserError("label proximity: labels must be a matrix of 0 and 1; binarize them first")
    return made


def _sizes(Y: csr_array) -> np.ndarray:
    return np.asarray(Y.sum(axis=0), np.float64).ravel()


def _empty(Y: csr_array) -> np.ndarray:
    return np.diff(Y.indptr) == 0


def _shares(Y: csr_array) -> np.ndarray:
    """Divide each row of a label matrix by its number of labels. Rows without labels remain 0."""
    return Y.toarray() / np.maximum(np.diff(Y.indptr), 1)[:, None]


def _keys(Y: csr_array) -> np.ndarray:
    """Return a key for each row, which is equal for equal label sets and can be sorted."""
    packed = np.packbits(Y.toarray() > 0, axis=1)
    return np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()


def _complete(n: int) -> csr_array:
    return csr_array(np.ones((n, n)))


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(len(part)), where=np.abs(whole) > 0)


def _bits(
    proximity: Proximity, Y: csr_array, left: np.ndarray, right: np.ndarray, counts: np.ndarray | None = None
) -> np.ndarray:
    """Compute similarities of pairs of binary rows.

    If Y lacks rows, `counts` contains the number of all samples per label.
    """
    name = proximity.similarity
    sizes = np.diff(Y.indptr).astype(np.float64)
    both = sizes[left] + sizes[right]
    if name == "scaled-sorensen":  # Equation 35 weights only the common labels in the numerator.
        scale = np.sqrt(1 / np.maximum(_sizes(Y) if counts is None else counts, 1.0))
        Y = csr_array((scale[Y.indices], Y.indices, Y.indptr), shape=Y.shape)
    common = edge_dots(Y, left, right)
    if name in ("sorensen", "scaled-sorensen"):
        return _ratio(2 * common, both)
    if name == "jaccard":
        return _ratio(common, both - common)
    differ = both - 2 * common
    values = np.exp(-differ / proximity.bandwidth) if name == "hamming-exponential" else 1 - differ / Y.shape[1]
    values[(sizes[left] == 0) | (sizes[right] == 0)] = 0.0
    return values


def _projected(proximity: Proximity, graph: csr_array, Z: np.ndarray) -> np.ndarray:
    """Compute similarities of the coordinates Z of samples on the edges of a graph."""
    Z = np.ascontiguousarray(Z, dtype=np.float64)
    left, right = ends(graph)
    if proximity.similarity == "minkowski":
        values = np.empty(len(left))
        for start in range(0, len(left), 65536):
            part = slice(start, start + 65536)
            values[part] = (np.abs(Z[left[part]] - Z[right[part]]) ** proximity.p).sum(axis=1)
        return np.exp(-values / proximity.bandwidth)
    if proximity.similarity == "tanimoto":
        each = np.arange(len(Z))
        lengths, common = edge_dots(Z, each, each), edge_dots(Z, left, right)
        return _ratio(common, lengths[left] + lengths[right] - common)
    return weigh(graph, Z, proximity.similarity, tau=proximity.bandwidth).data
