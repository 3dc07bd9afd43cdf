"""Error and memory of low-rank kernels: Nystrom by landmarks, MEKA by basis and link, and the best approximation.

There is a table for every data set and bandwidth factor (relative to the mean distance). It contains the relative
Frobenius error at equal memory (n x r numbers for Nystrom of rank r; n k_s + (S k)^2 for MEKA), the error of the kernel
between 1000 new rows and the n fitted ones, and the time in seconds and relative to products of the n x n kernel with
130 columns in the same process. Errors are measured on 2000 random whole rows of the kernel. "reference" is randomly
pivoted Cholesky with one pivot at a time. Real views are read from the folder in DMO_DATA. With --work, there is an
image per data set and factor, if matplotlib is installed.

    python pipelines/benchmarks/lowrank.py --rows 4000 --ranks 100 200 --seeds 3
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import numpy as np
import scipy.linalg
from _generated import generated
from rich.console import Console
from rich.table import Table

from dmo.blocks import row_blocks, rows
from dmo.formats.matlab import read_matlab
from dmo.kernels import RBF, Kernel, gram_matrix
from dmo.lowrank import FeatureMap, choose, from_landmarks, meka, nystrom
from dmo.lowrank.landmarks import Landmarks
from dmo.lowrank.meka import Basis, Link
from dmo.report.canvas import LINES, clean
from dmo.workflows.program import option_parser

DATA = Path(os.environ.get("DMO_DATA", "."))
NYSTROM: tuple[Landmarks, ...] = ("uniform", "rpcholesky", "kmeans")
BASES: tuple[Basis, ...] = ("eigen", "block-row")
LINKS: tuple[Link, ...] = ("exact", "sampled")
NEW = 1000
_STRIP = 1024


def clustered(n: int, d: int = 512, seed: int = 0) -> np.ndarray:
    """Generate n rows near an 8-dimensional curved surface around sixty centers, many of them rare, with a little
    noise."""
    rng = np.random.default_rng(seed)
    centers, slopes = rng.standard_normal((60, 8)), rng.standard_normal((8, d)) / 8**0.5
    share = 1 / np.arange(1, 61)
    latent = centers[rng.choice(60, size=n, p=share / share.sum())] + 0.25 * rng.standard_normal((n, 8))
    return (np.tanh(latent @ slopes) + 0.02 * rng.standard_normal((n, d))).astype(np.float32)


def load(name: str, n: int) -> tuple[np.ndarray, str | None] | None:
    """Load at most n rows of a data set and their normalization; return None if its files are missing."""
    if name == "clustered":
        return clustered(n), None
    if name == "generated":
        source = generated("espgame", scale=max(1.0, n / 18_000)).views["gist"]
        return rows(source, slice(0, n)), None
    archive, _, view = name.partition("/")
    if archive == "espgame":
        path = DATA / "espgame" / f"lear_{view}__espgame.mat"
        return (read_matlab(path, ["X_all"])["X_all"][:n], "hellinger") if path.exists() else None
    path = DATA / archive / "features" / f"{archive}_{view}.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        X = file["X"]
    return X[np.random.default_rng(0).permutation(len(X))[:n]], None if view == "Gist" else "hellinger"


@dataclass(frozen=True)
class Result:
    """Median error and error on new rows over the seeds, millions of stored numbers, and minimum seconds."""

    error: float
    on_new: float
    numbers: float
    seconds: float


@dataclass
class Case:
    """A kernel matrix in memory, new rows, and the rows used to measure errors."""

    X: np.ndarray
    new: np.ndarray
    kernel: Kernel
    K: np.ndarray
    results: dict[str, list[Result]] = field(default_factory=dict)

    @cached_property
    def probes(self) -> np.ndarray:
        return np.sort(np.random.default_rng(1).choice(len(self.X), size=min(2000, len(self.X)), replace=False))

    @cached_property
    def cross(self) -> np.ndarray:
        """Kernel between the new rows and X."""
        return self.kernel.tile(self.kernel.prepare(self.new), self.kernel.prepare(self.X))

    @cached_property
    def product(self) -> float:
        """Seconds of one product of the kernel with 130 columns, the minimum of three."""
        B, seconds = np.ones((len(self.X), 130), np.float32), []
        for _ in range(3):
            start = time.perf_counter()
            self.K @ B
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    def errors(self, found: FeatureMap) -> tuple[float, float]:
        """Compute relative Frobenius errors on the probed rows and on new rows."""
        F = found(self.X)
        return relative(self.K, self.probes, F[self.probes], F), relative(self.cross, None, found(self.new), F)

    def add(self, name: str, fits: Callable[..., FeatureMap], seeds: int) -> None:
        """Fit with several seeds and record the result."""
        errors, seconds, numbers = [], [], 0
        for seed in range(seeds):
            start = time.perf_counter()
            found = fits(random_state=seed)
            seconds.append(time.perf_counter() - start)
            errors.append(self.errors(found))
            numbers = found.numbers(len(self.X))
        self.note(name, errors, min(seconds), numbers)

    def note(self, name: str, errors: list[tuple[float, float]], seconds: float, numbers: int) -> None:
        error, on_new = np.median(errors, axis=0)
        self.results.setdefault(name, []).append(Result(float(error), float(on_new), numbers / 1e6, seconds))


def relative(K: np.ndarray, index: np.ndarray | None, left: np.ndarray, right: np.ndarray) -> float:
    """Compute |K - left right'|_F / |K|_F over rows `index` of K, in strips."""
    total = wrong = 0.0
    for where in row_blocks(len(left), _STRIP):
        exact = K[where] if index is None else K[index[where]]
        total += float(np.square(exact, dtype=np.float64).sum())
        wrong += float(np.square(exact - left[where] @ right.T, dtype=np.float64).sum())
    return (wrong / total) ** 0.5


def reference(case: Case, rank: int, seed: int) -> np.ndarray:
    """Choose landmarks by randomly pivoted Cholesky, one pivot at a time.

    Source: Chen, Epperly, Tropp, Webber 2025, algorithm 2.1.
    """
    rng, n = np.random.default_rng(seed), len(case.X)
    residual, F, pivots = np.ones(n), np.zeros((rank, n), np.float32), np.zeros(rank, dtype=int)
    for i in range(rank):
        pivots[i] = rng.choice(n, p=residual / residual.sum())
        column = case.K[pivots[i]] - F[:i, pivots[i]] @ F[:i]
        F[i] = column / np.sqrt(max(float(column[pivots[i]]), 1e-12))
        residual = np.maximum(residual - np.square(F[i], dtype=np.float64), 0)
        residual[pivots[: i + 1]] = 0
    return case.X[pivots]


def best_of_rank(case: Case, rank: int, start: np.ndarray) -> np.ndarray:
    """Compute the best factor of the given rank by two subspace iterations from a Nystrom factor."""
    extra = np.random.default_rng(0).standard_normal((len(case.X), rank // 10 + 10)).astype(np.float32)
    Q = np.linalg.qr(np.hstack([start, case.K @ extra]))[0]
    for _ in range(2):
        Q = np.linalg.qr(case.K @ Q)[0]
    small = Q.T @ (case.K @ Q)
    values, vectors = scipy.linalg.eigh(((small + small.T) / 2).astype(np.float64))
    return Q @ (vectors[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0))).astype(np.float32)


def measure(
    X: np.ndarray, new: np.ndarray, kernel: Kernel, ranks: list[int], clusters: int, seeds: int, console: Console
) -> Case:
    """Fit all methods with the memory of Nystrom of each rank."""
    K, fitted = gram_matrix(kernel, X)
    case, n = Case(X, new, fitted, K), len(X)
    for rank in ranks:
        bytes_each = 4.0 * n * rank
        for kind in NYSTROM:
            case.add(f"nystrom {kind}", partial(nystrom, fitted, X, rank, kind), seeds)
        start = time.perf_counter()
        errors = [case.errors(from_landmarks(fitted, reference(case, rank, seed))) for seed in range(min(seeds, 3))]
        case.note("reference", errors, (time.perf_counter() - start) / len(errors), n * rank)
        for basis, link in product(BASES, LINKS):
            fit = partial(meka, fitted, X, clusters, "auto", basis, link, memory=bytes_each)
            case.add(f"meka {basis}, {link}", fit, 1)
        start = time.perf_counter()
        chosen = choose(fitted, X, memory=bytes_each, clusters=clusters, random_state=0)
        seconds = time.perf_counter() - start
        case.note("auto", [case.errors(chosen.feature_map)], seconds, chosen.feature_map.numbers(n))
        console.log(f"rank {rank}: auto chose {chosen.feature_map.kind} of", _errors(chosen.errors))
        start = time.perf_counter()
        F = best_of_rank(case, rank, nystrom(fitted, X, rank, "kmeans", 0)(X))
        error = relative(case.K, case.probes, F[case.probes], F)
        case.note("best of this rank", [(error, np.nan)], time.perf_counter() - start, n * rank)
    return case


def _errors(errors: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: float(f"{error['relative_error']:.3g}") for name, error in errors.items()}


def tabulate(title: str, case: Case, ranks: list[int]) -> Table:
    """Format a table with methods in rows, and errors, numbers and seconds for each memory size in columns."""
    table = Table(title=f"{title}; one product takes {case.product:.3f} s", title_justify="left")
    table.add_column("numbers / n")
    for rank in ranks:
        for column in (str(rank), "new rows", "million", "seconds", "products"):
            table.add_column(column, justify="right")
    for name, found in case.results.items():
        cells = []
        for r in found:
            cells += [f"{r.error:.3g}", f"{r.on_new:.3g}", f"{r.numbers:.1f}", f"{r.seconds:.1f}"]
            cells.append(f"{r.seconds / case.product:.0f}")
        table.add_row(name, *cells)
    return table


def ratios(case: Case, factor: float) -> Table:
    """Compare the errors at the largest memory with the bounds that the approximations guarantee."""
    last = {name: found[-1] for name, found in case.results.items()}
    error = {name: result.error for name, result in last.items()}
    block_row = error["meka block-row, exact"]
    candidates = ("nystrom rpcholesky", "nystrom kmeans", "meka block-row, exact")
    checks = {
        "pivoted Cholesky / reference (1.05)": error["nystrom rpcholesky"] / error["reference"],
        "pivoted Cholesky / uniform (0.8)": error["nystrom rpcholesky"] / error["nystrom uniform"],
        "MEKA eigen, sampled / exact (1.1)": error["meka eigen, sampled"] / error["meka eigen, exact"],
        "MEKA block-row, sampled / exact (1.1)": error["meka block-row, sampled"] / block_row,
        "auto / best candidate, new rows (1.1)": last["auto"].on_new / min(last[name].on_new for name in candidates),
    }
    if factor < 1:
        checks["MEKA block-row / best of this rank (1)"] = block_row / error["best of this rank"]
        checks["MEKA eigen / best of this rank (1)"] = error["meka eigen, exact"] / error["best of this rank"]
    else:
        checks["MEKA block-row / uniform Nystrom (1)"] = block_row / error["nystrom uniform"]
    table = Table("ratio of errors (upper bound)", "")
    for name, value in checks.items():
        table.add_row(name, f"{value:.3f}")
    return table


def plot(title: str, case: Case, path: Path) -> None:
    """Plot error against memory on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    clean(axes).set_prop_cycle(**LINES)
    for name, found in case.results.items():
        style = {"nystrom": "-", "meka": "--"}.get(name.split()[0], ":")
        axes.loglog([r.numbers for r in found], [r.error for r in found], linestyle=style, markersize=4, label=name)
    axes.set(xlabel="million numbers in memory", ylabel="relative Frobenius error", title=title)
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main() -> None:
    parser = option_parser(__doc__, seeds=5, work=None)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument(
        "--ranks", type=int, nargs="+", help="ranks of Nystrom that determine the memory (default: n/80, n/40, n/20)"
    )
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0, 0.3])
    parser.add_argument(
        "--data",
        nargs="+",
        default=["clustered", "generated", "espgame/DenseHue", "corel5k/Gist", "corel5k/DenseHueV3H1"],
        help="clustered, generated, espgame/<view> or corel5k/<view>",
    )
    arguments = parser.parse_args()
    console = Console(width=None if Console().is_terminal else 160)
    for name in arguments.data:
        loaded = load(name, arguments.rows + NEW)
        if loaded is None:
            console.print(f"{name}: no such files under {DATA}; set DMO_DATA")
            continue
        X, normalize = loaded
        X, new = X[:-NEW], X[-NEW:]
        base = RBF(normalize=normalize).fit(X, 0)
        ranks = arguments.ranks or [len(X) // 80, len(X) // 40, len(X) // 20]
        for factor in arguments.factors:
            kernel = replace(base, scale=factor)
            case = measure(X, new, kernel, ranks, arguments.clusters, arguments.seeds, console)
            title = f"{name}, {len(X)} x {X.shape[1]}, rbf at {factor:g} x the mean distance"
            console.print(tabulate(title, case, ranks), ratios(case, factor))
            if arguments.work:
                Path(arguments.work).mkdir(parents=True, exist_ok=True)
                try:
                    plot(title, case, Path(arguments.work) / f"lowrank-{name.replace('/', '-')}-{factor:g}.png")
                except ImportError:
                    console.print("no images: matplotlib is not installed")


if __name__ == "__main__":
    main()
