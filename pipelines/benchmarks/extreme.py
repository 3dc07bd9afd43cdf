"""Very many labels: sparse ridge regression compared with Omikuji's trees and one-vs-rest linear support vector
machines.

The data sets are "bibtex" and "delicious" (Mulan, from the folder in DMO_DATA), and generated ones in which every label
has typical words, and a sample contains words of its labels and random words. Each method runs in a separate process,
so that CPU seconds and peak memory are attributed to it, with one BLAS thread. Omikuji is compared if it is installed.
Run the script with OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse
from rich.console import Console
from rich.table import Table
from sklearn.datasets import dump_svmlight_file
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from dmo import MultiViewRidge
from dmo.datasets import read_arff
from dmo.decoders import Scores
from dmo.metrics import top_scores
from dmo.workflows.program import option_parser

DATA = Path(os.environ.get("DMO_DATA", "."))

Set = tuple[scipy.sparse.csr_array, scipy.sparse.csr_array, scipy.sparse.csr_array, scipy.sparse.csr_array]
DRAWN = {"eurlex-like": (15_000, 5000, 4000), "large": (200_000, 1000, 100_000)}
"""Numbers of samples, words and labels by name."""
MULAN = {"bibtex": 159, "delicious": 983}
"""Number of labels by name."""
TOP = (1, 3, 5)


def drawn(n: int, d: int, L: int, seed: int = 0) -> Set:
    """Generate a data set whose number of test samples is a tenth of the training samples, at most 2000."""
    rng = np.random.default_rng(seed)
    m = n + min(2000, n // 10)
    popularity = 1 / (np.arange(L) + 10.0)
    count = 1 + rng.poisson(4.0, m)
    labels = rng.choice(L, count.sum(), p=popularity / popularity.sum())
    samples = np.repeat(np.arange(m), count)
    Y = scipy.sparse.csr_array((np.ones(len(labels)), (samples, labels)), shape=(m, L))
    Y.data[:] = 1.0
    words = rng.integers(0, d, (L, 12))
    told = rng.random((len(labels), 12)) < 0.5  # Half of the words of a label occur in its samples.
    X = scipy.sparse.csr_array(
        (np.ones(told.sum()), (np.repeat(samples, told.sum(axis=1)), words[labels][told])), shape=(m, d)
    )
    noise = scipy.sparse.csr_array(
        (np.ones(10 * m), (np.repeat(np.arange(m), 10), rng.integers(0, d, 10 * m))), shape=(m, d)
    )
    X = scipy.sparse.csr_array(normalize(X + noise))
    return X[:n], Y[:n], X[n:], Y[n:]


def load(name: str) -> Set:
    """Load training and test features and labels, with 32-bit indices, which the other libraries require."""
    found = _load(name)
    for part in found:
        part.indices, part.indptr = part.indices.astype(np.int32), part.indptr.astype(np.int32)
    return found


def _load(name: str) -> Set:
    if name in DRAWN:
        return drawn(*DRAWN[name])
    folder = DATA / "mulan" / name
    parts = [read_arff(folder / f"{name}-{part}.arff.xz", -MULAN[name]) for part in ("train", "test")]
    sets = [(scipy.sparse.csr_array(normalize(X)), scipy.sparse.csr_array(Y)) for X, Y in parts]
    return (*sets[0], *sets[1])


def ridge(
    X: scipy.sparse.csr_array, Y: scipy.sparse.csr_array, new: scipy.sparse.csr_array, **rule: float
) -> np.ndarray:
    """Predict the five best labels of every new sample by ridge regression with a score rule."""
    model = MultiViewRidge(
        "linear", ridge=1.0, intercept=True, decoder=Scores(label_sets=False), random_state=0, **rule
    )
    return model.fit(X, Y if Y.shape[1] > 4096 or Y.shape[0] * Y.shape[1] > 5e7 else Y.toarray()).top_labels(
        new, max(TOP)
    )[0]


def svm(X: scipy.sparse.csr_array, Y: scipy.sparse.csr_array, new: scipy.sparse.csr_array) -> np.ndarray:
    """Predict by one linear support vector machine per label."""
    model = OneVsRestClassifier(LinearSVC(), n_jobs=1)
    some = np.flatnonzero(Y.sum(axis=0))
    scores = model.fit(X, Y[:, some]).decision_function(new)
    return some[np.argsort(-scores, axis=1)[:, : max(TOP)]]


def omikuji(
    X: scipy.sparse.csr_array, Y: scipy.sparse.csr_array, new: scipy.sparse.csr_array, trees: str
) -> np.ndarray:
    """Predict with Omikuji: Parabel, or the shallow trees of Bonsai."""
    import omikuji  # Import it here because it is not a dependency of dmo.

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.txt"
        dump_svmlight_file(X, Y, str(path), multilabel=True)
        rows = path.read_text().splitlines(keepends=True)
        path.write_text(f"{X.shape[0]} {X.shape[1]} {Y.shape[1]}\n" + "".join(rows))
        hyper = omikuji.Model.default_hyper_param()
        if trees == "bonsai":
            hyper.cluster_k, hyper.cluster_balanced, hyper.max_depth = 100, False, 3
        model = omikuji.Model.train_on_data(str(path), hyper, n_threads=1)
    best = []
    for i in range(new.shape[0]):
        row = new[[i]]
        found = model.predict(list(zip(row.indices.tolist(), row.data.tolist(), strict=True)), top_k=max(TOP))
        numbers = [label for label, _ in found]
        best.append(
            numbers + [label for label in range(max(TOP) * 2) if label not in numbers][: max(TOP) - len(numbers)]
        )
    return np.array(best)


METHODS: dict[str, Callable[..., np.ndarray]] = {
    "ridge": ridge,
    "ridge, scores / frequency^0.25": lambda X, Y, new: ridge(X, Y, new, decoder=Scores(prior_power=0.25)),
    "ridge, scores / propensity": lambda X, Y, new: ridge(X, Y, new, decoder=Scores(propensity=True)),
    "Omikuji (Parabel)": lambda X, Y, new: omikuji(X, Y, new, "parabel"),
    "Omikuji (Bonsai)": lambda X, Y, new: omikuji(X, Y, new, "bonsai"),
    "one-vs-rest LinearSVC": svm,
}


def measure(name: str, method: str) -> dict[str, float]:
    """Measure one method in this process."""
    X, Y, new, truth = load(name)
    before = resource.getrusage(resource.RUSAGE_SELF)
    best = METHODS[method](X, Y, new)
    after = resource.getrusage(resource.RUSAGE_SELF)
    places = np.repeat(np.arange(len(best)), max(TOP)), best.ravel()
    ranks = np.tile(np.arange(max(TOP), 0, -1.0), len(best))
    S = scipy.sparse.csr_array((ranks, places), shape=truth.shape)
    frequency = np.asarray(Y.sum(axis=0)).ravel() / Y.shape[0]
    found: dict[str, float] = {}
    for top in TOP:
        scores = top_scores(truth, S, top=top, frequency=frequency, n_train=Y.shape[0])
        found |= {f"P@{top}": 100 * scores.precision, f"PSP@{top}": 100 * scores.psp}
    found["CPU s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return found | {"peak GB": after.ru_maxrss / 2**20}


def main() -> None:
    parser = option_parser(__doc__, sets=[*MULAN, *DRAWN], methods=list(METHODS))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    for name in options.sets:
        table = Table(title=name)
        for column in ("", *(f"{kind}@{top}" for kind in ("P", "PSP") for top in TOP), "CPU s", "peak GB"):
            table.add_column(column, justify="left" if not column else "right")
        for method in options.methods:
            command = [sys.executable, __file__, "--one", name, method]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
            if done.returncode:
                table.add_row(method, done.stderr.strip().splitlines()[-1][:20])
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            row = [f"{found[f'{kind}@{top}']:.1f}" for kind in ("P", "PSP") for top in TOP]
            table.add_row(method, *row, f"{found['CPU s']:.1f}", f"{found['peak GB']:.2f}")
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
