"""LLT-SVR: time, gap and objective, compared with scikit-learn's SVR per output on the same kernel, and at 50 000
samples.

    python pipelines/benchmarks/llt.py                        # yeast and scene (folder DMO_DATA), then 50 000 x 10
    python pipelines/benchmarks/llt.py --samples 5000 --rank 200

The script prints one line of JSON per measurement. Seconds are elapsed time; memory is the process's peak so far.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.multioutput import MultiOutputRegressor
from sklearn.svm import SVR

from dmo.decoders import Scores
from dmo.formats.arff import read_arff, read_label_list
from dmo.kernels import RBF
from dmo.lowrank.approximations import Nystrom
from dmo.methods.llt_svr import LLTSVR
from dmo.metrics import jaccard_accuracy
from dmo.workflows.program import option_parser

DATA = Path(os.environ.get("DMO_DATA", "."))


def main() -> None:
    parser = option_parser(__doc__, data=DATA)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--outputs", type=int, default=10)
    parser.add_argument("--rank", type=int, default=500)
    parser.add_argument("--cost", type=float, nargs="+", default=[1.0, 10.0])
    arguments = parser.parse_args()
    for name in ("yeast", "scene"):
        if (Path(arguments.data) / "mulan" / name).is_dir():
            for cost in arguments.cost:
                labels(Path(arguments.data) / "mulan" / name, name, cost)
        else:
            print(json.dumps({"data": name, "skipped": f"no {Path(arguments.data) / 'mulan' / name}; set DMO_DATA"}))
    large(arguments.samples, arguments.outputs, arguments.rank)


def labels(folder: Path, name: str, cost: float) -> None:
    """Measure LLT and naive fits on a public data set, and LIBSVM on the same precomputed kernel."""
    names = read_label_list(folder / f"{name}.xml.xz")
    (X, Y), (new, truth) = (read_arff(folder / f"{name}-{part}.arff.xz", names) for part in ("train", "test"))
    targets = 2.0 * Y - 1
    kernel = RBF(scale=0.7).fit(X)
    K, cross = kernel(X, dtype=np.float64), kernel(new, X, dtype=np.float64)
    models: dict[str, Any] = {
        "LLT": LLTSVR(
            kernel="precomputed", C=cost, n_neighbors=300, target_scale="none", decoder=Scores(label_sets=False)
        ),
        "naive": LLTSVR(
            kernel="precomputed", C=cost, frame="identity", target_scale="none", decoder=Scores(label_sets=False)
        ),
        "scikit-learn": MultiOutputRegressor(SVR(kernel="precomputed", C=cost, epsilon=0.1, cache_size=500)),
    }
    seconds = {}
    for title, model in models.items():
        seconds[title] = _timed(model, K, targets)
        accuracy = jaccard_accuracy(truth.astype(np.uint8), (model.decision_function(cross) > 0).astype(np.uint8))
        line = {"data": name, "n": len(X), "outputs": Y.shape[1], "C": cost, "model": title, "seconds": seconds[title]}
        line["times_scikit_learn"] = seconds[title] / seconds["scikit-learn"] if "scikit-learn" in seconds else None
        print(json.dumps(line | {"jaccard": accuracy} | _progress(model)), flush=True)
    print(json.dumps({"data": name, "C": cost, "LLT / scikit-learn": seconds["LLT"] / seconds["scikit-learn"]}))


def large(n: int, outputs: int, rank: int) -> None:
    """Measure a fit to smooth outputs of an 8-dimensional input with noise, with a Nystrom kernel."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 8)).astype(np.float32)
    hidden = np.tanh(X @ rng.standard_normal((8, 3)))
    Y = np.sin(hidden @ rng.standard_normal((3, outputs)) * 2) + 0.1 * rng.standard_normal((n, outputs))
    model = LLTSVR(
        C=1.0, n_neighbors=12, target_scale="none", decoder=Scores(label_sets=False), approximation=Nystrom(rank=rank)
    )
    seconds = _timed(model, X, Y)
    line = {"data": "synthetic", "n": n, "outputs": outputs, "rank": rank, "seconds": seconds, "r2": model.score(X, Y)}
    print(json.dumps(line | _progress(model)))


def _timed(model: Any, X: np.ndarray, Y: np.ndarray) -> float:
    start = time.perf_counter()
    model.fit(X, Y)
    return time.perf_counter() - start


def _progress(model: Any) -> dict[str, float]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if not isinstance(model, LLTSVR):
        return {"peak_gib": peak}
    keys = ("n_iter_", "n_factorizations_", "objective_", "gap_")
    return {key.rstrip("_"): getattr(model, key) for key in keys} | {"peak_gib": peak}


if __name__ == "__main__":
    main()
