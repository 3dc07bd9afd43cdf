"""Ridge regression on very many landmarks, by conjugate gradients on the normal equations.

With C = k(X, Z), W = k(Z, Z) = T'T and coefficients a = T^-1 w on kernel values, the regression on Nystrom's factor
rows C T^-1 solves (T^-T C'C T^-1 + c I) w = T^-T C'y. Landmarks drawn like the rows say what C'C is, about n / r W W:
so (n / r) T T' + c I = (n / r) A A' is close to the system, and as a preconditioner leaves a handful of iterations,
each of one pass over kernel values. A pass costs n r k multiplications twice for k labels, where the direct solve takes
n r^2 for factor rows and Gram matrix, and r^3 for landmarks and solve: conjugate gradients pay from some thousands of
landmarks on, where labels are few.

How this differs from the paper's (Falkon):

1. One r x r matrix in float64 holds both triangles, T on and above its diagonal and A below it: nothing of that size
   is there twice. Steps are found by products in the kernel values' float32; what is left is worked out in float64, and
   gone on from where it is more than it should be.
2. W is factored with pivots, and landmarks that depend on others are dropped, where the paper adds to the diagonal.
3. An intercept is an unknown of its own, in the system and in the preconditioner, so that rows need not be centered.
4. Every label has steps of its own and stops when it has converged.

Source: Rudi, Carratino, Rosasco 2017, algorithm 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import scipy.linalg
from sklearn.exceptions import ConvergenceWarning

from dmo.methods.ridge import column_gradients

_RESTARTS = 4
_MIRROR = 256  # rows and columns that are mirrored at a time


class LandmarkFactors:
    """Triangles T and A in one matrix, T'T = W and A A' = T T' + c r / n I, for landmarks that depend on no others.

    Parameters
    ----------
    square : ndarray of shape (m, m), float64
        W, Fortran-ordered; overwritten.
    drop : float
        Landmarks whose pivot is below `drop` times the largest diagonal entry are left out.
    ridge : float
        c r / n.

    Attributes
    ----------
    keep : ndarray of shape (r,), int
        The landmarks, in the order of their pivots.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.landmark_ridge import LandmarkFactors
    >>> factors = LandmarkFactors(np.asfortranarray([[1.0, 0.5, 1.0], [0.5, 1.0, 0.5], [1.0, 0.5, 1.0]]), 1e-9, 0.1)
    >>> sorted(factors.keep.tolist())
    [0, 1]
    """

    def __init__(self, square: np.ndarray, drop: float, ridge: float):
        largest = max(float(square.diagonal().max(initial=0.0)), 1e-300)
        factored, pivots, rank, _ = scipy.linalg.lapack.dpstrf(square, tol=drop * largest, lower=0, overwrite_a=1)
        self.keep = pivots[:rank] - 1
        memory = factored.ravel(order="K")
        for j in range(rank if rank < len(factored) else 0):  # the corner that counts, moved together within its memory
            memory[j * rank : (j + 1) * rank] = factored[:rank, j]
        self._both = memory[: rank * rank].reshape((rank, rank), order="F")
        self._root = self._both.diagonal().copy()
        for i in range(0, rank, _MIRROR):
            for j in range(0, i + 1, _MIRROR):
                rows, columns = slice(i, min(i + _MIRROR, rank)), slice(j, min(j + _MIRROR, rank))
                above = self._both[columns, rows].T
                self._both[rows, columns] = above if i != j else np.tril(above) + np.triu(self._both[rows, columns], 1)
        self.ones = np.array([self._both[i, i:].sum() for i in range(rank)])  # T 1, as the triangles are
        self._both, _ = scipy.linalg.lapack.dlauum(self._both, lower=1, overwrite_c=1)
        self._both[np.diag_indices(rank)] += ridge
        self._both, info = scipy.linalg.lapack.dpotrf(self._both, lower=1, clean=0, overwrite_a=1)
        if info:
            raise np.linalg.LinAlgError(f"the preconditioner has no Cholesky factor (LAPACK says {info})")
        self._other = self._both.diagonal().copy()

    def _triangle(self, B: np.ndarray, diagonal: np.ndarray, lower: int, trans: int) -> np.ndarray:
        self._both[np.diag_indices(len(diagonal))] = diagonal
        return np.asarray(scipy.linalg.lapack.dtrtrs(self._both, B, lower=lower, trans=trans)[0])

    def root(self, B: np.ndarray, trans: bool = False) -> np.ndarray:
        """Solve with T.

        Parameters
        ----------
        B : ndarray of shape (r, k)
            Right-hand sides.
        trans : bool, default=False
            Solve with T'.

        Returns
        -------
        ndarray of shape (r, k)
            T^-1 B, or T^-T B.
        """
        return self._triangle(B, self._root, 0, int(trans))

    def inverse(self, B: np.ndarray) -> np.ndarray:
        """Solve with A A'.

        Parameters
        ----------
        B : ndarray of shape (r, k)
            Right-hand sides.

        Returns
        -------
        ndarray of shape (r, k)
            (A A')^-1 B.
        """
        return self._triangle(self._triangle(B, self._other, 1, 0), self._other, 1, 1)


def landmark_ridge(
    factors: LandmarkFactors,
    products: Callable[[np.ndarray, bool], np.ndarray],
    right: np.ndarray,
    n: int,
    c: float,
    center: bool = True,
    tol: float = 1e-5,
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression on kernel values at landmarks, as on the factor rows that Nystrom makes of them.

    Parameters
    ----------
    factors : LandmarkFactors
        Of the landmarks.
    products : callable
        (B of shape (r + 1, k), whether in float64) -> [C, 1]'[C, 1] B: one pass over the rows.
    right : ndarray of shape (r + 1, k)
        [C, 1]'Y.
    n : int
        Rows.
    c : float
        The ridge.
    center : bool, default=True
        With an intercept, which is not penalized.
    tol : float, default=1e-5
        Relative residual, in the norm of the preconditioner.

    Returns
    -------
    coefficients : ndarray of shape (r, k)
        On the kernel values.
    offset : ndarray of shape (k,)
        The intercept.

    Warns
    -----
    ConvergenceWarning
        Where what is left, worked out in float64, does not become small enough.

    References
    ----------
    Rudi, Carratino, Rosasco 2017, algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.methods.landmark_ridge import LandmarkFactors, landmark_ridge
    >>> C, Y = np.array([[1.0], [0.5]]), np.array([[2.0], [1.0]])
    >>> ones = np.hstack([C, np.ones((2, 1))])
    >>> factors = LandmarkFactors(np.ones((1, 1), order="F"), 1e-9, 1e-9)
    >>> a, b = landmark_ridge(factors, lambda B, wide: ones.T @ (ones @ B), ones.T @ Y, 2, 1e-9, tol=1e-12)
    >>> a.round(6).tolist(), bool(abs(b[0]) < 1e-6)
    ([[2.0]], True)
    """
    r, k = len(factors.keep), right.shape[1]
    per = n / r  # rows that a landmark stands for
    sums = per * factors.ones
    toward = factors.inverse(sums[:, None])[:, 0] / per
    rest = n - sums @ toward  # what of the ones the landmarks do not explain, by the preconditioner

    def whitened(image: np.ndarray) -> np.ndarray:
        bottom = image[-1:] if center else np.zeros((1, image.shape[1]))
        return np.vstack([factors.root(image[:-1], True), bottom])

    def apply(X: np.ndarray, wide: bool) -> np.ndarray:
        found = whitened(products(np.vstack([factors.root(X[:-1]), X[-1:]]), wide))
        found[:-1] += c * X[:-1]
        return found

    def precondition(R: np.ndarray) -> np.ndarray:
        own = factors.inverse(R[:-1]) / per
        if not center:
            return np.vstack([own, np.zeros((1, R.shape[1]))])
        b = (R[-1] - toward @ R[:-1]) / rest
        return np.vstack([own - np.outer(toward, b), b])

    def length(R: np.ndarray) -> np.ndarray:
        return np.sqrt(np.einsum("ij,ij->j", R, precondition(R)))

    target = whitened(right)
    found, rest_of, least = np.zeros_like(target), target, np.maximum(length(target), np.finfo(float).tiny)
    share = np.ones(k)  # of the right-hand sides, that is left
    for _ in range(_RESTARTS):
        # a recursion in float32 believes in a residual that it has lost: what is left is said by float64
        found = found + column_gradients(
            lambda X, which: apply(X, False), rest_of, precondition, min(0.5, tol / share.max())
        )
        rest_of = target - apply(found, True)
        before, share = share, length(rest_of) / least
        if share.max() <= 2 * tol or share.max() > 0.5 * before.max():
            break
    if share.max() > 2 * tol:
        warnings.warn(
            f"conjugate gradients on landmarks: {np.count_nonzero(share > 2 * tol)} of {k} labels stopped at a relative "
            f"residual of {share.max():.1e}, {tol:.0e} was asked for; raise the ridge, take fewer landmarks, or "
            "precision='float64'",
            ConvergenceWarning,
            stacklevel=2,
        )
    # in the order that a store gives back, so that a model scores alike to the last bit after it was saved
    return np.ascontiguousarray(factors.root(found[:-1])), found[-1] if center else np.zeros(k)
