"""Many rows on disk: PCA, ridge regression on 300 Nystrom columns and a transform, compared with scikit-learn and Dask.

    python pipelines/benchmarks/out_of_core.py [--samples 500000] [--features 500] [--methods pca-dmo ...]

Generated rows (float32, 10 labels, 20 000 additional test rows) are stored in a Zarr array in chunks of 4096 rows.
Every line is measured in a separate process. dmo and Dask use a LocalCluster of `--workers` single-threaded workers
with `--memory-limit` each. scikit-learn runs in process, chunk by chunk (partial_fit), or with all Nystrom columns in
memory. CPU seconds are those of all processes together; peaks are those of the driver and of the largest worker. PCA is
evaluated by the variance of the test rows explained by 20 components, ridge by the macro AUC on the test rows. The
learning rate of SGD is the best of four on 20 000 training rows; the bandwidth is the same for all. The PCA of dask-ml
2025.1 does not work with current versions of scikit-learn. One BLAS thread; Linux only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from _processes import alone, spent_everywhere
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import IncrementalPCA
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge, SGDRegressor
from sklearn.multioutput import MultiOutputRegressor

from dmo import MultiViewRidge, Nystrom, TraceEmbedding
from dmo.cluster import connect
from dmo.decoders import Scores
from dmo.kernels import RBF
from dmo.metrics import auc_macro
from dmo.workflows.program import option_parser

TEST, CHUNK, LABELS, HIDDEN, COMPONENTS, RANK, RIDGE = 20_000, 4096, 10, 20, 20, 300, 0.1
OUT = Console(width=130)


def draw(folder: Path, n: int, d: int) -> None:
    """Generate rows as d noisy features of 20 latent variables; labels mark the top 20 % of quadratic functions of
    them."""
    rng = np.random.default_rng(0)
    mix, forms = rng.normal(size=(HIDDEN, d)), rng.normal(size=(LABELS, HIDDEN, HIDDEN)) / HIDDEN
    rows = zarr.create_array(folder / "X", shape=(n + TEST, d), chunks=(CHUNK, d), dtype="float32", compressors=None)
    Y = np.empty((n + TEST, LABELS), np.float32)
    for start in range(0, n + TEST, CHUNK):
        hidden = rng.normal(size=(min(CHUNK, n + TEST - start), HIDDEN))
        noise = 0.5 * rng.standard_normal((len(hidden), d), dtype=np.float32)
        rows[start : start + len(hidden)] = np.tanh(hidden @ mix / 4).astype(np.float32) + noise
        Y[start : start + len(hidden)] = np.einsum("ni,lij,nj->nl", hidden, forms, hidden)
    np.save(folder / "Y.npy", (np.quantile(Y, 0.8, axis=0) < Y).astype(np.float32))


class Data:
    """Training rows as a dask array or chunk by chunk, and test rows."""

    def __init__(self, folder: str):
        self.rows, labels = zarr.open_array(f"{folder}/X", mode="r"), np.load(f"{folder}/Y.npy")
        self.n = len(labels) - TEST
        self.Y, self.Y_new = labels[: self.n], labels[self.n :]
        self.X = da.from_zarr(self.rows)[: self.n]
        self.X_new = self.rows[self.n :]

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, self.n, CHUNK):
            where = slice(start, min(start + CHUNK, self.n))
            yield self.rows[where], self.Y[where]

    def nystroem(self) -> Nystroem:
        """Fit the map to a sample of 8192 rows, with the default bandwidth of dmo."""
        sample = self.rows[: 2 * CHUNK]
        return Nystroem(gamma=0.5 / RBF().fit(sample, 0).width ** 2, n_components=RANK, random_state=0).fit(sample)

    def sgd(self, mapping: Nystroem) -> MultiOutputRegressor:
        """Choose the learning rate on 20 000 training rows, of which a quarter is held out."""
        Z, Y = mapping.transform(self.rows[:TEST]), self.Y[:TEST]
        cut, found = 3 * TEST // 4, []
        for rate in (0.1, 0.3, 1.0, 3.0):
            model = sgd(rate).fit(Z[:cut], Y[:cut])
            found.append((auc_macro(Y[cut:], model.predict(Z[cut:])), rate))
        return sgd(max(found)[1])


def sgd(rate: float) -> MultiOutputRegressor:
    return MultiOutputRegressor(SGDRegressor(alpha=1e-7, eta0=rate, max_iter=1, tol=None, random_state=0))


Transform = Callable[[Any], Any]


def pca_dmo(data: Data) -> Transform:
    return TraceEmbedding("pca", n_components=COMPONENTS).fit(data.X).transform


def pca_incremental(data: Data) -> Transform:
    model = IncrementalPCA(COMPONENTS)
    for rows, _ in data.chunks():
        if len(rows) >= COMPONENTS:
            model.partial_fit(rows)
    return model.transform


def pca_compressed(data: Data) -> Transform:
    mean = data.X.mean(axis=0).compute()
    _, _, V = da.linalg.svd_compressed(data.X - mean, COMPONENTS, n_power_iter=2, seed=0)
    basis = V.compute().T
    return lambda X: (X - mean) @ basis


def ridge_dmo(data: Data) -> Transform:
    model = MultiViewRidge("rbf", ridge=RIDGE, approximation=Nystrom(rank=RANK), decoder=Scores(label_sets=False))
    return model.fit(data.X, data.Y.astype(np.uint8)).decision_function


def ridge_sklearn(data: Data) -> Transform:
    mapping = data.nystroem()
    Z = np.concatenate([mapping.transform(rows).astype(np.float32) for rows, _ in data.chunks()])
    model = Ridge(alpha=RIDGE, solver="cholesky").fit(Z, data.Y)
    return lambda X: model.predict(mapping.transform(X))


def ridge_partial(data: Data) -> Transform:
    mapping = data.nystroem()
    model = data.sgd(mapping)
    for rows, Y in data.chunks():
        model.partial_fit(mapping.transform(rows), Y)
    return lambda X: model.predict(mapping.transform(X))


METHODS: dict[str, tuple[Callable[[Data], Transform], bool]] = {
    "pca, dmo": (pca_dmo, True),
    "pca, scikit-learn IncrementalPCA": (pca_incremental, False),
    "pca, Dask svd_compressed": (pca_compressed, True),
    "ridge, dmo": (ridge_dmo, True),
    "ridge, scikit-learn Nystroem + Ridge, columns in memory": (ridge_sklearn, False),
    "ridge, scikit-learn Nystroem + SGD by partial_fit": (ridge_partial, False),
}
"""Function to measure, and whether it runs on a cluster."""


def write_all(transform: Transform, data: Data, distributed: bool, out: Path) -> None:
    """Write the coordinates of all training rows to a Zarr array."""
    if distributed:
        found = transform(data.X)
        if isinstance(found, da.Array):
            found.to_zarr(str(out))
            return
    target = zarr.create_array(out, shape=(data.n, COMPONENTS), chunks=(CHUNK, COMPONENTS), dtype="float64")
    for at, (rows, _) in enumerate(data.chunks()):
        target[at * CHUNK : at * CHUNK + len(rows)] = transform(rows)


def run(name: str, folder: str, asked: argparse.Namespace) -> dict[str, float]:
    warnings.simplefilter("ignore")
    data, (fit, distributed) = Data(folder), METHODS[name]
    limits = {"workers": asked.workers, "memory_limit": asked.memory_limit}
    with connect("local", **limits) if distributed else nullcontext() as place:
        client = None if place is None else place.client
        counts, begun = [sum(cpu for cpu, _ in spent_everywhere(client))], time.perf_counter()
        transform = fit(data)
        counts.append(sum(cpu for cpu, _ in spent_everywhere(client)))
        found = {"seconds": time.perf_counter() - begun, "transform": np.nan}
        if name.startswith("pca"):
            with tempfile.TemporaryDirectory(dir=folder) as out:
                write_all(transform, data, distributed, Path(out) / "Z")
            after = spent_everywhere(client)
            found["transform"] = sum(cpu for cpu, _ in after) - counts[-1]
            Z = np.asarray(transform(data.X_new))
            found["score"] = 100 * float(Z.var(axis=0).sum() / data.X_new.var(axis=0, dtype=np.float64).sum())
        else:
            after = spent_everywhere(client)
            found["score"] = 100 * auc_macro(data.Y_new, np.asarray(transform(data.X_new)))
    found |= {"cpu": counts[1] - counts[0], "driver": after[0][1]}
    return found | {"worker": max((peak for _, peak in after[1:]), default=np.nan)}


def main() -> None:
    parser = option_parser(__doc__, run=True, methods=None, work=None)
    parser.add_argument("--samples", type=int, default=500_000)
    parser.add_argument("--features", type=int, default=500)
    parser.set_defaults(workers=2, memory_limit="2GiB")
    asked = parser.parse_args()
    table = Table("", "s", "CPU s", "transform CPU s", "driver MiB", "worker MiB", "held out, %")
    table.title = f"{asked.samples} x {asked.features}, on disk"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(asked.work or temporary) / f"rows-{asked.samples}-{asked.features}"
        if not (folder / "Y.npy").exists():
            draw(folder, asked.samples, asked.features)
        for name in asked.methods or METHODS:
            found = alone(run, name, str(folder), asked)
            cells = [found[key] for key in ("seconds", "cpu", "transform", "driver", "worker", "score")]
            table.add_row(name, *("-" if np.isnan(value) else f"{value:.1f}" for value in cells))
            OUT.print(name, {key: round(float(value), 1) for key, value in found.items()})
    OUT.print(table)


if __name__ == "__main__":
    main()
