"""Small matrices, kernels and operators for several test modules, each with a dense reference in NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.preprocessing import KernelCenterer
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_info

from dmo.decide.out_of_fold import folds_of_rows, row_keys
from dmo.inputs import Data
from dmo.kernels import RBF
from dmo.kernels.multikernel import FeatureTiles, MultiKernel
from dmo.linalg.operators import Dense, LowRank, Operator
from dmo.linalg.tiles import Tiles
from dmo.lowrank import FeatureMap, meka
from dmo.parameters import placed

N, BLOCK, SIGMA = 83, 20, 2.0


def rows(n: int = N, d: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def gaussian(X: np.ndarray, Y: np.ndarray | None = None, sigma: float = SIGMA) -> np.ndarray:
    """Compute the Gaussian kernel in float64 from SciPy's distances."""
    return np.exp(-cdist(X, X if Y is None else Y, "sqeuclidean") / (2 * sigma**2))


X, NEW = rows(), rows(7, seed=1)
K, K_NEW = gaussian(X), gaussian(NEW, X)
F, F_NEW = rows(N, 6, seed=2), rows(7, 6, seed=3)


def feature_tiles(features: np.ndarray = X, block: int = BLOCK, dtype: type = np.float32) -> FeatureTiles:
    return FeatureTiles(MultiKernel.of("x", RBF(SIGMA).fit(features)), {"x": features}, block, dtype)


@dataclass
class ArrayTiles:
    """Tiles of a matrix that is held in memory."""

    matrix: np.ndarray
    block: int

    @property
    def n(self) -> int:
        return len(self.matrix)

    def tile(self, i: int, j: int) -> np.ndarray:
        return self.matrix[i * self.block : (i + 1) * self.block, j * self.block : (j + 1) * self.block]

    def columns(self, index: np.ndarray, blocks: range | None = None) -> np.ndarray:
        return self.matrix[self._rows(blocks)][:, index]

    def diagonal(self, blocks: range | None = None) -> np.ndarray:
        return np.diagonal(self.matrix)[self._rows(blocks)]

    def _rows(self, blocks: range | None) -> slice:
        return slice(None) if blocks is None else slice(blocks[0] * self.block, (blocks[-1] + 1) * self.block)


@dataclass
class ThreadTiles:
    """Tiles whose entries are the number of BLAS threads available at the computation of the tile."""

    n: int
    block: int

    def tile(self, i: int, j: int) -> np.ndarray:
        threads = max(found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas")
        return np.full((self.block, self.block), threads, np.float32)


@dataclass
class Case:
    """Operator with dense reference matrices.

    `matrix` is the dense form of the operator. `cross` is the kernel block between new and old rows, and `raw` is the
    same block of the original kernel.
    """

    operator: Operator
    matrix: np.ndarray
    cross: np.ndarray
    raw: np.ndarray
    tol: float


def _leaf(operator: Operator, matrix: np.ndarray, cross: np.ndarray) -> Case:
    return Case(operator, matrix, cross, cross, 1e-12 if operator.dtype == np.float64 else 2e-6)


def dense(dtype: type) -> Case:
    return _leaf(Dense(K.astype(dtype)), K, K_NEW)


def lent() -> Case:
    """Create a case whose operator shares the upper triangle and diagonal of its array with a factorization."""
    case = dense(np.float32)
    operator: Any = case.operator
    diagonal = operator.matrix.diagonal().copy()
    operator.matrix[np.triu_indices(N)] = np.nan
    operator.lent(diagonal)
    return case


def low_rank(dtype: type) -> Case:
    return _leaf(LowRank(F.astype(dtype)), F @ F.T, F_NEW @ F.T)


@lru_cache(maxsize=1)
def _meka() -> FeatureMap:
    return meka(RBF(SIGMA).fit(X), X, rank=12, clusters=3, dtype=np.float64, random_state=0)


def block_low_rank() -> Case:
    fitted = _meka()
    old, new = fitted(X), fitted(NEW)
    return _leaf(fitted.operator(X), old @ old.T, new @ old.T)


def tiles(resident: bool, dtype: type) -> Case:
    source = feature_tiles(dtype=dtype)
    return _leaf(Tiles(source, resident=resident, dtype=dtype), K, K_NEW)


def array_tiles() -> Case:
    return _leaf(Tiles(ArrayTiles(K, BLOCK), dtype=np.float64), K, K_NEW)


def centered(inner: Case) -> Case:
    centerer = KernelCenterer().fit(inner.matrix)
    matrix, cross = centerer.transform(inner.matrix), centerer.transform(inner.cross)
    return Case(inner.operator.centered(), matrix, cross, inner.raw, inner.tol)


def scaled(inner: Case, factor: float) -> Case:
    return Case(factor * inner.operator, factor * inner.matrix, factor * inner.cross, inner.raw, inner.tol)


def added(left: Case, right: Case) -> Case:
    raw, tol = left.raw + right.raw, max(left.tol, right.tol)
    return Case(left.operator + right.operator, left.matrix + right.matrix, left.cross + right.cross, raw, tol)


CASES: dict[str, Callable[[], Case]] = {
    "dense32": lambda: dense(np.float32),
    "dense64": lambda: dense(np.float64),
    "lent": lent,
    "centered-lent": lambda: centered(lent()),
    "low-rank32": lambda: low_rank(np.float32),
    "low-rank64": lambda: low_rank(np.float64),
    "block-low-rank": block_low_rank,
    "tiles32-recomputed": lambda: tiles(False, np.float32),
    "tiles32-resident": lambda: tiles(True, np.float32),
    "tiles64-recomputed": lambda: tiles(False, np.float64),
    "tiles-of-array": array_tiles,
    "sum": lambda: added(dense(np.float64), low_rank(np.float64)),
    "sum-mixed": lambda: added(tiles(False, np.float32), low_rank(np.float64)),
    "scaled": lambda: scaled(dense(np.float64), -0.7),
    "centered32": lambda: centered(dense(np.float32)),
    "centered64": lambda: centered(tiles(True, np.float64)),
    "centered-sum": lambda: centered(added(dense(np.float64), low_rank(np.float64))),
    "sum-of-centered": lambda: added(centered(dense(np.float64)), centered(low_rank(np.float64))),
    "scaled-centered": lambda: scaled(centered(dense(np.float64)), 3.0),
}


def folds(X: Any, Y: np.ndarray) -> np.ndarray:
    """Return the folds of the out-of-fold predictions of a fit on one view in memory."""
    return folds_of_rows(Y, row_keys(None, Data.of({"x": X}, Y), np.arange(len(Y))))


def made(kind: type, *first: Any, **options: Any) -> Any:
    """Create an estimator and its parameter objects from flat parameter names, as in command options."""
    names = inspect.signature(kind).parameters
    return kind(**placed(kind, dict(zip(names, first, strict=False)) | options))


def checked_by_scikit_learn(estimators: Sequence[Any], **options: Any) -> pytest.MarkDecorator:
    """Run scikit-learn's estimator checks, without repeating checks of shared code.

    All estimators share the code that reads sparse matrices and memory-mapped rows, so only the first estimator is
    checked with these inputs. Formats of sparse arrays for further estimators, and all checks of a class with other
    parameters, are slow tests.
    """
    mark = parametrize_with_checks(estimators, **options)
    names, cases = mark.args
    first, classes = estimators[0], [type(estimator) for estimator in estimators]
    further = [estimator for i, estimator in enumerate(estimators) if classes[i] in classes[:i]]
    chosen = []
    for case in cases:
        estimator, check = values = getattr(case, "values", case)
        own, given = (check.func.__name__, check.keywords) if isinstance(check, partial) else (check.__name__, {})
        mapped = own == "check_classifiers_train" and given.get("readonly_memmap") and "X_dtype" not in given
        if estimator is not first and (own == "check_estimator_sparse_matrix" or mapped):
            continue
        formats = own == "check_estimator_sparse_array" and estimator is not first
        slow = [pytest.mark.slow] if formats or any(estimator is one for one in further) else []
        chosen.append(pytest.param(*values, marks=[*getattr(case, "marks", ()), *slow]))
    return pytest.mark.parametrize(names, chosen, **mark.kwargs)
