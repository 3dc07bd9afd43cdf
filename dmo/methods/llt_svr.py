"""Support vector regression on the output manifold (LLT-SVR), with a local frame for each output."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy as np
from sklearn.neighbors import NearestNeighbors

from dmo.blocks import row_blocks
from dmo.errors import TooFewSamples
from dmo.inputs import Need, Prepare, Scales, at_least, check_parameter, one_of
from dmo.memory import require
from dmo.methods.options import Decoder, GivenEngine, KernelSpecs
from dmo.methods.svr import OutputSVR
from dmo.methods.svr_admm import EPSILON_INSENSITIVE, LossName
from dmo.parameters import parametrized

Neighbors = Literal["samples", "distinct"]
_TOLERANCE = 1e-8  # singular value, relative to the range of the data, below which a direction is floating-point error
_TIE = 1e-9  # relative difference below which two distances are equal
_EQUAL = 1e-8  # difference, relative to the largest singular value, below which two singular values are equal
_BLOCK = 4096  # number of outputs that are processed together


@dataclass(frozen=True)
class Frames:
    """Orthonormal bases of shape (n, L, L), and the number of directions that each of n neighborhoods spans."""

    basis: np.ndarray
    ranks: np.ndarray


def neighborhood_frames(
    Y: np.ndarray, n_neighbors: int, neighbors: Neighbors = "samples", weights: np.ndarray | None = None
) -> Frames:
    """Compute an orthonormal frame for each of n outputs from the nearest outputs [Liu, Lin, Yu 2009, Algorithm 1]."""
    # The frame of an output contains the left singular vectors of its centered neighborhood, which includes the output
    # itself. Outputs that are as far away as the last neighbor have fractional weights, so the frames do not depend on
    # the order of the samples. If a neighborhood does not span all directions, its frame is completed to a full basis
    # with the nearest coordinate axes. A neighborhood of equal outputs therefore has the identity as its frame.
    #
    # `np.unique` sorts the outputs, so the order of the samples has no influence.
    distinct, inverse = np.unique(Y, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    m, L = distinct.shape
    what, fix = f"local frames of {len(Y)} samples, with a matrix of {L} x {L} outputs each,", "use frame='identity'"
    require(frame_bytes(len(Y), m, L, n_neighbors), 1.0, what, f"{fix}, or fewer outputs")
    if neighbors == "distinct":
        counts, n_neighbors = np.ones(len(distinct)), min(n_neighbors, len(distinct))
    else:
        counts = np.bincount(inverse, weights, len(distinct)).astype(np.float64)
    frames = _of_distinct(distinct, counts, n_neighbors, Y)
    return Frames(frames.basis[inverse], frames.ranks[inverse])


def frame_bytes(n: int, m: int, L: int, n_neighbors: int) -> int:
    """Return the peak memory in bytes of a fit with frames, for n samples with m distinct outputs."""
    # The completion of frames needs seven L x L matrices for each output of a block, in addition to all frames and
    # singular vectors. The solver needs four L x L matrices for each sample.
    b = min(m, _BLOCK)
    return 8 * L * max(L * (m + 7 * b) + 2 * b * min(n_neighbors, L), 4 * n * L)


def _of_distinct(Y: np.ndarray, counts: np.ndarray, n_neighbors: int, samples: np.ndarray) -> Frames:
    """Compute the frames of distinct outputs Y, which occur `counts` times in the outputs `samples`."""
    m, L = Y.shape
    # For few outputs, a tree search in one thread is faster than a brute-force search, whose threads are busy waiting.
    search = NearestNeighbors(algorithm="kd_tree" if m * L <= _BLOCK else "auto").fit(Y)
    enough = min(m, int(np.ceil(n_neighbors / counts.min())))
    floor = _TOLERANCE * max(float(np.abs(samples - samples.mean(axis=0)).max()), np.finfo(np.float64).tiny)
    basis, ranks = np.empty((m, L, L)), np.empty(m, dtype=np.intp)
    for where in row_blocks(m, _BLOCK):
        distance, near = search.kneighbors(Y[where], min(m, enough + 1))
        reached = np.minimum((np.cumsum(counts[near], axis=1) < n_neighbors).sum(axis=1), near.shape[1] - 1)
        radius = distance[np.arange(len(near)), reached]
        share = _shares(distance, counts[near], radius[:, None], n_neighbors)
        left, values = _directions(Y[near], share)
        # More outputs than the search returned may be as far away as the last neighbor, so repeat the search by radius.
        for i in np.flatnonzero((distance[:, -1] <= radius * (1 + _TIE)) & (near.shape[1] < m)):
            far, index = search.radius_neighbors(Y[where][i : i + 1], radius[i] * (1 + _TIE))
            order = np.argsort(index[0])
            share = _shares(far[0][order], counts[index[0][order]], radius[i], n_neighbors)
            one, few = _directions(Y[None, index[0][order]], share[None])
            left[i], values[i] = 0.0, 0.0
            size = min(left.shape[2], one.shape[2])
            left[i, :, :size], values[i, :size] = one[0, :, :size], few[0, :size]
        ranks[where] = (values > floor * np.sqrt(n_neighbors)).sum(axis=1)
        basis[where] = _complete(left, values, ranks[where])
    return Frames(basis, ranks)


def _shares(distance: np.ndarray, counts: np.ndarray, radius: np.ndarray | float, n_neighbors: int) -> np.ndarray:
    """Compute the weights of neighbors; outputs tied with the last neighbor share the remaining weight."""
    inside = distance < radius * (1 - _TIE)
    tied = ~inside & (distance <= radius * (1 + _TIE))
    left = n_neighbors - (counts * inside).sum(axis=-1, keepdims=True)
    of_tied = np.minimum(left / (counts * tied).sum(axis=-1, keepdims=True), 1.0)
    return np.asarray(counts * (inside + tied * of_tied))


def _directions(hood: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the left singular vectors and singular values of n weighted neighborhoods of m outputs each."""
    centered = hood - ((share[:, :, None] * hood).sum(axis=1) / share.sum(axis=1)[:, None])[:, None]
    left, values, _ = np.linalg.svd((np.sqrt(share)[:, :, None] * centered).transpose(0, 2, 1), full_matrices=False)
    return left, values


def _complete(vectors: np.ndarray, values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Extend the first `ranks[i]` columns of each matrix `vectors[i]` to an orthonormal basis."""
    # For equal singular values, an SVD chooses the basis by floating-point error, but the loss depends on the basis.
    # Therefore, each subspace of equal singular values uses the basis nearest to the coordinate axes, and so does the
    # orthogonal complement of all directions.
    n, L, m = vectors.shape
    full = np.zeros((n, L, L))
    full[:, :, :m] = np.where(np.arange(m) < ranks[:, None, None], vectors, 0.0)
    apart = np.diff(values, axis=1) < -_EQUAL * values[:, :1]
    groups = np.zeros((n, L), dtype=np.intp)
    groups[:, 1:m] = np.cumsum(apart, axis=1)
    groups[np.arange(L) >= ranks[:, None]] = L
    patterns, pattern = np.unique(groups, axis=0, return_inverse=True)
    for number, of in enumerate(patterns):
        at = np.flatnonzero(pattern.ravel() == number)
        some = full[at]
        for group in np.unique(of):
            alike = of == group
            if group == L:
                rest = np.eye(L) - some[:, :, ~alike] @ some[:, :, ~alike].transpose(0, 2, 1)
                some[:, :, alike] = _axes(rest, alike.sum())
            elif alike.sum() > 1:
                some[:, :, alike] = _axes(some[:, :, alike] @ some[:, :, alike].transpose(0, 2, 1), alike.sum())
        full[at] = some
    return full


def _axes(rest: np.ndarray, count: int) -> np.ndarray:
    """Compute orthonormal bases of `count` vectors for the ranges of n orthogonal projectors `rest`."""
    # Orthogonalize the projections of the coordinate axes by Gram-Schmidt with pivoting, for all projectors at once.
    # Each step chooses the axis with the largest diagonal entry and removes its direction from the projector.
    basis = np.empty((*rest.shape[:2], count))
    for column in range(count):
        diagonal = np.einsum("ijj->ij", rest)
        axis = np.round(diagonal, 8).argmax(axis=1)  # Rounding resolves ties in favor of the first axis.
        which = np.arange(len(rest))
        basis[:, :, column] = new = rest[which, :, axis] / np.sqrt(diagonal[which, axis])[:, None]
        rest -= new[:, :, None] * new[:, None, :]
    return basis


@parametrized
class LLTSVR(OutputSVR):
    r"""Support vector regression on the output manifold (LLT-SVR), with a local frame for each output.

    LLT-SVR measures the residuals of a training sample in a local frame of its output. The frame follows the manifold
    of the outputs, because it is computed from the nearest outputs.

    Parameters
    ----------
    kernel : str, Kernel, mapping of view to kernel, or list, default="rbf"
        Kernel of the inputs, see `dmo.kernels.parse`. The kernels of several views are averaged. With "precomputed", X
        is the n x n kernel matrix in `fit` and the m x n kernel matrix in `predict`.
    C : float, default=10.0
        Weight of the loss, above 0. Larger values regularize less.
    epsilon : float, default=0.1
        Half-width of the tube in which residuals have no loss, in units of the outputs scaled by `target_scale`.
    n_neighbors : int, default=6
        Number of outputs in a neighborhood, at least 2, including the output of the sample itself. The paper calls this
        number kappa.
    frame : {"local", "identity"}, default="local"
        Frame of the loss. With "identity", the estimator is equivalent to an independent SVR for each output.
    neighbors : {"samples", "distinct"}, default="samples"
        Whether neighbors are the nearest samples, as in the paper, or the nearest distinct outputs. "distinct" is
        intended for labels, because many samples have the same labels.
    loss : {"epsilon-insensitive", "l1", "l4/3", "l3/2"}, default="epsilon-insensitive"
        Loss of a residual r. "l1", "l4/3" and "l3/2" are |r|^p with p = 1, 4/3 and 3/2, without a tube.
    tol : float, default=1e-6
        Relative duality gap at which the solver stops. The gap bounds the difference between the objective and its
        minimum.
    max_iter : int, default=5000
        Maximum number of iterations, after which a ConvergenceWarning is issued.
    approximation : {"exact", "nystrom", "meka", "best"}, or Exact, Nystrom, Meka or BestLowRank, default="exact"
        Exact or low-rank kernel. `Exact` also sets the storage. An exact kernel in memory is float64 up to 8192 rows.
    %(decoder)s
    %(random_state)s
    target_scale : {"auto", "standard", "none"}, default="auto"
        Scaling of the outputs, which determines the units of `C`, `epsilon` and the objective. "standard" standardizes
        each output, and predictions are converted to the original units. "none" does not scale the outputs, as in the
        paper. "auto" is "none" if each output has at most two values, as labels do, and otherwise "standard".
    %(prepare)s

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n, L)
        Coefficients of the kernel values k(x, x_i) at the training samples x_i in the function f.
    intercept_ : ndarray of shape (L,)
        Intercept of each output.
    support_ : ndarray of int
        Indices of the samples with a residual outside the tube in at least one direction of their frame.
    n_support_ : int
        Number of samples in `support_`.
    objective_ : float
        Value of the objective.
    dual_objective_ : float
        Value of the dual objective, which is a lower bound of the minimum.
    gap_ : float
        Relative duality gap: `objective_` minus `dual_objective_`, divided by the larger absolute value of the two.
    n_iter_ : int
        Number of iterations.
    n_factorizations_ : int
        Number of factorizations of the kernel matrix, one for each penalty parameter of the solver.
    frame_ranks_ : ndarray of shape (n,) or None
        Number of directions that each neighborhood spans. None if frame="identity" or y has a single output.

    Notes
    -----
    The functions f_1, ..., f_L minimize

    .. math:: \tfrac12 \sum_j \|f_j\|^2 + C \sum_i \sum_j \ell\big(u_{ij}' (f(x_i) - y_i)\big),

    where l is `loss`, f_j is a function in the space of the kernel plus an intercept, and u_i1, ..., u_iL are the left
    singular vectors of the centered outputs nearest to y_i.

    References
    ----------
    Liu, Lin, Yu 2009, equations 3-5 and Algorithm 1. The solver is ADMM, see `dmo.methods.svr_admm`.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from dmo import LLTSVR
    >>> X, Y = make_regression(n_samples=60, n_features=5, n_targets=3, random_state=0)
    >>> model = LLTSVR("rbf", C=10.0, tol=1e-3).fit(X, Y / Y.std(axis=0))
    >>> model.predict(X).shape
    (60, 3)
    """

    _needs: ClassVar[dict[str, Need]] = OutputSVR._needs | {
        "frame": one_of("local", "identity"),
        "neighbors": one_of("samples", "distinct"),
    }

    kernel: KernelSpecs = "rbf"
    _: KW_ONLY
    C: float = 10.0
    epsilon: float = 0.1
    n_neighbors: int = 6
    frame: Literal["local", "identity"] = "local"
    neighbors: Neighbors = "samples"
    loss: LossName = EPSILON_INSENSITIVE
    tol: float = 1e-6
    max_iter: int = 5000
    approximation: GivenEngine = "exact"
    decoder: Decoder = None
    random_state: int | None = 0
    target_scale: Literal["auto", "standard", "none"] = "auto"
    prepare: Prepare | Scales = "auto"

    def _structure(self, Y: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray | None, np.ndarray | None]:
        n, L = Y.shape
        n = n if weights is None else max(n, int(weights.sum()))
        self.frame_ranks_ = None
        if self.frame == "identity" or L == 1:  # A single output has only one direction.
            return None, None
        kappa = check_parameter("n_neighbors", self.n_neighbors, at_least(2))
        if kappa > n:
            raise TooFewSamples(
                f"n_neighbors = {kappa}, but there are {n} samples; pass n_neighbors <= {n}, or frame='identity'"
            )
        frames = neighborhood_frames(Y, int(kappa), self.neighbors, weights)
        self.frame_ranks_ = frames.ranks
        if not frames.ranks.any():
            self._warn(
                f"every neighborhood of {kappa} samples holds one output only, so all frames are the identity; "
                f"raise n_neighbors, or take neighbors='distinct'"
            )
        return frames.basis, None
