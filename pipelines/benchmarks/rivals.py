"""Tasks of dmo compared with specialized libraries: Falkon, himalaya, pynndescent, umap-learn; see rivals.md.

    python pipelines/benchmarks/rivals.py [--works falkon ...] [--threads 1] [--scale 1] [--json FILE]

Run this script in an environment with dmo and these libraries; libraries that are not installed are skipped with a
note. Falkon is built from its source (FORCE_ONLY_CPU=1); the others are on the package index. Falkon gets the same
centers, rows, labels, Gaussian kernel and ridge as dmo. It runs with 5, 10, 20 and 40 iterations until its held-out
error is within 1 % of the direct solve's error. Up to 4000 centers, every fit is timed twice and the faster time
counts, because the first access to memory can take longer than the products.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from limits import Figure, Timed, Works, main, timed
from sklearn.neighbors import NearestNeighbors

from dmo import MultiViewRidge, Nystrom
from dmo.decoders import Scores
from dmo.graphs import neighbors
from dmo.kernels import RBF
from dmo.lowrank import LandmarkMap, from_landmarks
from dmo.selection import sweep

NEW = 2000


class GivenLandmarks(Nystrom):
    """Nystrom approximation with given landmarks."""

    def __init__(self, kernel: Any = None, Z: Any = None, solver: Literal["direct", "cg"] = "direct"):
        super().__init__(kernel, solver=solver)
        self.Z = Z

    def feature_map(self, *given: Any, **named: Any) -> Any:
        return from_landmarks(self.kernel, self.Z)

    def landmark_map(self, *given: Any, **named: Any) -> Any:
        return LandmarkMap(self.kernel, np.dtype(np.float32), self.Z)


def regression(n: int, d: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate n + NEW rows with d features, and k smooth functions of them with noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n + NEW, d)).astype(np.float32)
    W = rng.standard_normal((d, k)).astype(np.float32) / np.sqrt(d)
    Y = np.tanh(X @ W) + np.sin(X @ W[:, ::-1]) + 0.1 * rng.standard_normal((n + NEW, k))
    return X, Y.astype(np.float32)


def faster(call: Callable[[], Any], runs: int) -> tuple[Any, Timed]:
    """Run a call several times; return its last result and the fastest time."""
    found = [timed(call) for _ in range(runs)]
    return found[-1][0], min((took for _, took in found), key=lambda took: took.cpu)


def error(scores: np.ndarray, Y: np.ndarray) -> float:
    return float(np.sqrt(((scores - Y) ** 2).sum() / (Y**2).sum()))


def falkon(scale: float, product: Timed) -> list[Figure]:
    """Measure ridge regression with the same centers as Falkon: few outputs with 64 features, many with 512."""
    try:
        import torch
    except ImportError:
        return [Figure("ridge, given centers", Timed(0, 0), "Falkon", note="torch is not installed")]
    torch.set_num_threads(int(os.environ["OPENBLAS_NUM_THREADS"]))
    found = []
    for n, d, k, counts in ((20_000, 64, 20, (1000, 4000, 10_000)), (20_000, 512, 268, (1000, 4000))):
        X, Y = regression(round(n * scale), d, k)
        for count in counts:
            found += from_centers(X, Y, round(count * min(1.0, scale)), float(np.sqrt(d)), product)
    return found


def from_centers(X: np.ndarray, Y: np.ndarray, count: int, width: float, product: Timed) -> list[Figure]:
    """Measure both solvers of dmo and Falkon; the limit is that of the direct solve, (r + L)^2 + 2 r d per row and
    r^3."""
    n, d, k, c = len(X) - NEW, X.shape[1], Y.shape[1], 0.1
    Z, new = np.ascontiguousarray(X[:count]), slice(n, None)
    kernel, ours, errors, runs = RBF(bandwidth=width), {}, {}, 2 if count <= 4000 else 1
    for solver in ("direct", "cg"):
        model = MultiViewRidge(kernel, ridge=c, center=False, decoder=Scores(label_sets=False), targets="real")
        # The first fit loads compiled loops.
        model.set_params(approximation=GivenLandmarks(kernel, Z[:100], solver)).fit(X[:1000], Y[:1000])
        model.set_params(approximation=GivenLandmarks(kernel, Z, solver))
        _, ours[solver] = faster(lambda model=model: model.fit(X[:n], Y[:n]), runs)
        errors[solver] = error(model.predict(X[new]), Y[new])
    for iterations in (5, 10, 20, 40):
        theirs, other = falkon_from(X, Y, n, Z, width, c / n, iterations, runs)
        if other < 1.01 * errors["direct"]:
            break
    limit = product.scaled((n * (2 * count * d + (count + k) ** 2) + count**3) / 1e9)
    rival = f"Falkon, {iterations} iterations"
    return [
        Figure(
            f"ridge, {count} centers, {solver}",
            ours[solver],
            rival,
            theirs,
            limit,
            f"{n} x {d}, {k} outputs; held-out errors {errors[solver]:.4f}, {other:.4f}",
        )
        for solver in ours
    ]


def falkon_from(
    X: np.ndarray, Y: np.ndarray, n: int, Z: np.ndarray, width: float, penalty: float, iterations: int, runs: int
) -> tuple[Timed, float]:
    """Measure the time of Falkon, and its error on the rows from n on."""
    import torch
    from falkon import Falkon, FalkonOptions
    from falkon.center_selection import FixedSelector
    from falkon.kernels import GaussianKernel

    options = FalkonOptions(use_cpu=True, keops_active="no", num_fmm_streams=1)
    centers = FixedSelector(torch.from_numpy(Z))
    model = Falkon(
        GaussianKernel(sigma=width), penalty, len(Z), center_selection=centers, maxiter=iterations, options=options
    )
    rows, targets = torch.from_numpy(X), torch.from_numpy(Y)
    _, theirs = faster(lambda: model.fit(rows[:n], targets[:n]), runs)
    return theirs, error(model.predict(rows[n:]).numpy(), Y[n:])


def himalaya(scale: float, product: Timed) -> list[Figure]:
    """Measure a choice among ten ridges by cross-validation, for one kernel and a sum of three kernels of several
    widths."""
    try:
        from himalaya.kernel_ridge import KernelRidgeCV
    except ImportError:
        return [Figure("10 ridges, 4 folds", Timed(0, 0), "himalaya", note="himalaya is not installed")]
    n, k = round(10_000 * scale ** (1 / 3)), 200
    X, Y = regression(n - NEW, 64, k)
    ridges = list(np.logspace(-2, 2, 10))
    Y = (Y > 1).astype(np.uint8)
    model = MultiViewRidge(RBF(bandwidth=8.0), approximation="exact", decoder=Scores(label_sets=False))
    _, ours = timed(lambda: sweep(model, X, Y, {"ridge": ridges}, folds=4))
    rival = KernelRidgeCV(alphas=ridges, kernel="rbf", kernel_params={"gamma": 0.5 / 64}, cv=4)
    _, theirs = timed(lambda: rival.fit(X, Y.astype(float)))
    m = 0.75 * n
    limit = product.scaled((4 * (m**3 / 3 + 10 * 2 * m**2 * k)) / 1e9)
    return [Figure("10 ridges, 4 folds", ours, "himalaya KernelRidgeCV", theirs, limit, f"{n} samples, {k} outputs")]


def graphs(scale: float, product: Timed) -> list[Figure]:
    """Measure graphs of 15 neighbors: exact and approximate graphs of dmo, scikit-learn, pynndescent and umap-learn."""
    n, d = round(20_000 * scale**0.5), 128
    X = np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)
    X += 3 * np.random.default_rng(1).standard_normal((50, d)).astype(np.float32)[np.arange(n) % 50]
    neighbors(X[:200], 5)
    exact, ours = timed(lambda: neighbors(X, 15))
    limit, note = product.scaled(2 * n * n * d / 1e9), f"{n} rows, d = {d}"
    _, theirs = timed(lambda: NearestNeighbors(n_neighbors=15).fit(X).kneighbors())
    found = [Figure("15 neighbors", ours, "NearestNeighbors", theirs, limit, note)]
    jobs = int(os.environ["OPENBLAS_NUM_THREADS"])
    searches = {"dmo, approximate": approximate, "pynndescent": descended, "umap": of_umap}
    for name, search in searches.items():
        try:
            search(X[:5000], jobs)  # Compile the loops; with too few rows, some of them would not run.
        except ImportError:
            found.append(Figure("15 neighbors", ours, name, note=f"{name} is not installed"))
            continue
        indices, theirs = timed(lambda search=search: search(X, jobs))
        pairs = zip(exact.indices[:500], indices[:500], strict=True)
        hit = np.mean([len(np.intersect1d(one, other)) / 15 for one, other in pairs])
        found.append(Figure("15 neighbors", ours, f"{name}, recall {100 * hit:.0f} %", theirs, limit, note))
    return found


def approximate(X: np.ndarray, jobs: int) -> np.ndarray:
    return neighbors(X, 15, method="approximate").indices


def descended(X: np.ndarray, jobs: int) -> np.ndarray:
    from pynndescent import NNDescent

    return NNDescent(X, n_neighbors=16, random_state=0, n_jobs=jobs).neighbor_graph[0]


def of_umap(X: np.ndarray, jobs: int) -> np.ndarray:
    from umap.umap_ import nearest_neighbors

    return nearest_neighbors(X, 16, "euclidean", {}, False, np.random.RandomState(0), n_jobs=jobs)[0]


WORKS: Works = {"falkon": falkon, "himalaya": himalaya, "graph": graphs}

if __name__ == "__main__":
    main(WORKS, __file__, __doc__)
