"""Data of the LLT-SVR experiments: manifolds with their embeddings, multi-label sets, and errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.manifold import LocallyLinearEmbedding

from dmo.errors import UserError
from dmo.formats.arff import read_arff, read_label_list
from dmo.metrics import jaccard_accuracy


def twin_peaks(n: int, rng: np.random.Generator) -> np.ndarray:
    """Sample (x, y, sin(pi x) tanh(3 y)) for x, y uniform in -1..1."""
    x, y = rng.uniform(-1, 1, (2, n))
    return np.column_stack([x, y, np.sin(np.pi * x) * np.tanh(3 * y)])


def swiss_roll(n: int, rng: np.random.Generator) -> np.ndarray:
    """Sample (t cos t, 21 h, t sin t) for t uniform in 1.5 pi .. 4.5 pi, h in 0..1."""
    t, h = 1.5 * np.pi * (1 + 2 * rng.random(n)), rng.random(n)
    return np.column_stack([t * np.cos(t), 21 * h, t * np.sin(t)])


MANIFOLDS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "Twin Peaks": twin_peaks,
    "Swiss Roll": swiss_roll,
}


@cache
def data(manifold: str, n: int, scaled: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return the LLE embedding (n x 3) of n samples and their points (n x 3; `scaled`: centered, unit variance)."""
    points = MANIFOLDS[manifold](n, np.random.default_rng(0))
    if scaled:
        points = (points - points.mean(axis=0)) / points.std()
    embedding = LocallyLinearEmbedding(n_components=3, n_neighbors=12, eigen_solver="dense", random_state=0)
    return embedding.fit_transform(points), points


Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Training inputs and (noisy) training outputs, test inputs and true test outputs."""


def split(
    manifold: str, n: int, n_train: int, trial: int, noise: np.ndarray | None = None, scaled: bool = True
) -> Split:
    """Split at random into n_train training samples, with noise of the given covariance, and test samples."""
    X, Y = data(manifold, n, scaled)
    rng = np.random.default_rng(trial)
    order = rng.permutation(n)
    learn, test = order[:n_train], order[n_train:]
    error = 0.0 if noise is None else rng.multivariate_normal(np.zeros(len(noise)), noise, n_train)
    return X[learn], Y[learn] + error, X[test], Y[test]


def errors(Y: np.ndarray, outputs: np.ndarray) -> tuple[float, float]:
    """Compute the mean l1 and l2 norms of the error vectors."""
    gap = outputs - Y
    return float(np.abs(gap).sum(axis=1).mean()), float(np.sqrt((gap**2).sum(axis=1)).mean())


def accuracy(truth: np.ndarray, outputs: np.ndarray) -> float:
    """Compute the mean of |H & Z| / |H | Z| for H = {j: f_j > 0}."""
    return jaccard_accuracy((truth > 0).astype(np.uint8), (outputs > 0).astype(np.uint8))


def labeled(data: Path, name: str) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Read features and labels (+1/-1) of the published training and test split of yeast or scene."""
    folder = data / "mulan" / name
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; pass --data, or set DMO_DATA to a folder with mulan/{name}")
    names = read_label_list(folder / f"{name}.xml.xz")
    (X, L), (new, truth) = (read_arff(folder / f"{name}-{part}.arff.xz", names) for part in ("train", "test"))
    return (np.asarray(X), 2.0 * L - 1), (np.asarray(new), 2.0 * truth - 1)
