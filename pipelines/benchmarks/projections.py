"""MORP compared with scikit-learn's KernelPCA on the same rows, and MLSI on a sparse store too large for an n x n
matrix.

    python pipelines/benchmarks/projections.py [--scale 1] [--views gist] [--documents 200000] [--words 50000]
    python pipelines/benchmarks/projections.py --scale 0 --documents 804414 --words 47236 --labels 103 --components 50
                                               --text "MLSI Krylov,TruncatedSVD (scikit-learn)"   # RCV1's shape

Each line is measured in a separate process: its CPU seconds and peak memory. For every method, AUC is that of linear
least squares on the coordinates of the test rows.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from _generated import generated
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import KernelPCA, TruncatedSVD

from dmo import MLSI, MORP, Krylov, Meka, Nystrom
from dmo.blocks import dense
from dmo.kernels import RBF, normalize_rows
from dmo.metrics import auc_macro
from dmo.stores import ViewSpec, create_features, open_features
from dmo.workflows.program import option_parser

KERNEL_METHODS = ("MORP exact", "KernelPCA, ARPACK (scikit-learn)", "MORP Meka", "MORP Nystrom")
TEXT_METHODS = ("MLSI Krylov", "MLSI Nystrom", "TruncatedSVD (scikit-learn)")


def auc_of(Z: np.ndarray, Y: np.ndarray, Z_new: np.ndarray, Y_new: np.ndarray) -> float:
    """Compute the macro AUC of least squares with an intercept from coordinates to labels."""
    mean = Z.mean(axis=0)
    W = np.linalg.lstsq(Z - mean, Y - Y.mean(axis=0), rcond=None)[0]
    return auc_macro(Y_new, (Z_new - mean) @ W)


def project(method: str, scale: float, view: str, components: int, rank: int, clusters: int) -> dict[str, Any]:
    """Fit a method to the training part of a generated store, transform both parts, and return seconds and AUC."""
    source = generated("espgame", scale)
    X, Y = source.views[view][:], dense(source.labels).astype(np.float64)
    n = round(0.9 * len(X))
    engines: dict[str, Callable[[], Any]] = {
        "MORP exact": lambda: MORP("rbf", n_components=components, ridge=1.0, approximation="exact"),
        "MORP Meka": lambda: MORP(
            "rbf", n_components=components, ridge=1.0, approximation=Meka(clusters=clusters, rank=rank // clusters)
        ),
        "MORP Nystrom": lambda: MORP("rbf", n_components=components, ridge=1.0, approximation=Nystrom(rank=rank)),
    }
    # The bandwidth is not part of the measured time.
    width = RBF().fit(X[:n], 0).bandwidth if method not in engines else 1.0
    start = time.process_time()
    if method in engines:
        model = engines[method]().fit(X[:n], Y[:n])
    else:
        model = KernelPCA(
            components, kernel="rbf", gamma=0.5 / float(width) ** 2, eigen_solver="arpack", random_state=0
        ).fit(X[:n])  # scikit-learn's default solver is dense from ten components on, and much slower.
    seconds = time.process_time() - start
    Z, Z_new = np.asarray(model.transform(X[:n])), np.asarray(model.transform(X[n:]))
    return {"seconds": seconds, "auc": auc_of(Z, Y[:n], Z_new, Y[n:])}


def write_text(path: str, documents: int, words: int, labels: int, block: int = 4096) -> None:
    """Write a sparse store of generated documents in blocks: about 60 words and 2 topics (labels) per document."""
    rng = np.random.default_rng(0)
    ranks = 1.0 / np.arange(1, words + 1)
    common = np.cumsum(ranks / ranks.sum())
    own = rng.integers(0, words, (labels, 400))
    Y = np.zeros((documents, labels), np.uint8)
    topics = rng.integers(0, labels, (documents, 2))
    Y[np.arange(documents)[:, None], topics] = 1
    writer = create_features(
        path, documents, {"words": ViewSpec(words, np.float32, "sparse")}, labels=Y, block=block, overwrite=True
    )
    for number, start in enumerate(range(0, documents, block)):
        n = min(block, documents - start)
        general = np.searchsorted(common, rng.random((n, 40))).clip(max=words - 1)
        special = own[topics[start : start + n, :, None], rng.integers(0, 400, (n, 2, 10))].reshape(n, 20)
        columns = np.hstack([general, special])
        rows = np.repeat(np.arange(n), columns.shape[1])
        X = scipy.sparse.csr_array(
            (np.ones(columns.size, np.float32), (rows, columns.ravel())), shape=(n, words), dtype=np.float32
        )
        X.sum_duplicates()
        writer.write("words", number, scipy.sparse.csr_array(normalize_rows(X, "l2").astype(np.float32)))
    writer.finish()


def text(method: str, path: str, components: int, rank: int) -> dict[str, Any]:
    """Fit a method to all documents of a store; return the in-sample AUC on the last 2000."""
    store = open_features(path)
    X, Y = store.views["words"], dense(store.labels)
    start = time.process_time()
    if method.startswith("MLSI"):
        how = Krylov() if method == "MLSI Krylov" else Nystrom(rank=rank)
        model: Any = MLSI(n_components=components, ridge=1.0, approximation=how).fit(X, Y)
    else:
        model = TruncatedSVD(components, random_state=0).fit(X[:])
    seconds = time.process_time() - start
    last, first = slice(len(Y) - 2000, len(Y)), slice(0, 2000)
    Z, Z_new = model.transform(X[first]), model.transform(X[last])
    return {"seconds": seconds, "auc": auc_of(np.asarray(Z), Y[first].astype(float), np.asarray(Z_new), Y[last])}


def _apart(queue: Any, work: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> None:
    found = work(*arguments)
    queue.put(found | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20})


def measure(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run `work` in a separate process and return its results."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_apart, args=(queue, work, arguments))
    process.start()
    while True:
        try:
            return queue.get(timeout=1)
        except Exception:
            if process.exitcode not in (None, 0):
                raise RuntimeError(f"{arguments[0]} ended with exit code {process.exitcode}") from None


def show(title: str, found: dict[str, dict[str, Any]]) -> None:
    """Print a table with ratios relative to the first line."""
    table = Table("method", "fit, CPU s", "relative to the first", "AUC macro", "peak, GiB", title=title)
    first = next(iter(found.values()))["seconds"]
    for name, row in found.items():
        table.add_row(
            name,
            f"{row['seconds']:.1f}",
            f"{row['seconds'] / first:.2f}",
            f"{100 * row['auc']:.1f} %",
            f"{row['peak']:.2f}",
        )
    Console().print(table)


def main() -> None:
    parser = option_parser(__doc__, views=["gist"])
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the 20 770 rows of ESP Game; 0: skip")
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--rank", type=int, default=1000)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--documents", type=int, nargs="*", default=[50_000, 200_000], help="numbers; none: skip")
    parser.add_argument("--words", type=int, default=50_000)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--text", default=",".join(TEXT_METHODS), help="methods for documents, comma-separated")
    asked = parser.parse_args()
    if asked.scale:
        kernel = {
            method: measure(project, method, asked.scale, asked.views[0], asked.components, asked.rank, asked.clusters)
            for method in KERNEL_METHODS
        }
        show(
            f"{asked.components} components of {round(0.9 * 20770 * asked.scale)} training rows, {asked.views[0]}",
            kernel,
        )
    with tempfile.TemporaryDirectory() as folder:
        for documents in asked.documents:
            path = str(Path(folder) / f"{documents}.zarr")
            write_text(path, documents, asked.words, asked.labels)
            used = asked.text.split(",")
            found = {m: measure(text, m, path, asked.components, min(asked.rank, documents)) for m in used}
            show(f"{documents} documents x {asked.words} words, {asked.labels} labels, sparse", found)


if __name__ == "__main__":
    main()
