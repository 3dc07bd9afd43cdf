"""Growth of CPU seconds with the number of samples: the exponent of n of every command and every estimator.

    OPENBLAS_NUM_THREADS=1 python pipelines/benchmarks/growth.py [NAME ...] [--limit SECONDS] [--json FILE] [--markdown FILE]

Tables, stores and images are generated. Every step first runs at a small size, whose time is subtracted as start-up
time. The size then doubles until the next run would probably exceed the limit of the step. The exponent is the slope
between the two largest sizes on a log-log scale; short runs are repeated, and the faster one counts. The expected
exponent is 1, unless the estimator chose an exact kernel or `MEANT` gives another reason. Steps that exceed it by more
than 0.1 are marked. The exit code is 1 if there are such steps or failed ones. Predictions are for n new rows with a
model of `FITTED` samples. NAME selects the steps whose name contains it. The table is in growth.md.
"""

from __future__ import annotations

import csv
import functools
import json
import logging
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from rich.console import Console
from rich.table import Table
from walk import shell

import dmo
from dmo.datasets import Samples
from dmo.workflows.program import option_parser

SMALL, FITTED, SIZES = 200, 1000, (1000, 2000, 4000, 8000, 16_000, 32_000, 64_000)
"""Numbers of samples for the start-up time, for the models that predict, and for the measurements."""
LIMIT, SHORT, LEAST = 2.0, 0.5, 0.1
"""CPU seconds: limit of a step, runs below are measured twice, and minimum for an exponent."""
KERNEL = 3.0, "an exact kernel of n samples"
GRAPH = 2.0, "all pairs of samples are compared"
MEANT: dict[str, tuple[float, str]] = {
    **dict.fromkeys(("fit TagProp", "fit TwoPassKNN", "fit LabelPropagation"), GRAPH),
    "dmo suggest": (2.0, "unlabeled samples are compared with all labeled ones"),
}


def main() -> int:
    parser = option_parser(__doc__, json=None)
    parser.add_argument("name", nargs="*", help="parts of the names of steps (default: all steps)")
    parser.add_argument("--markdown", type=Path, help="Markdown file for the table")
    parser.add_argument("--limit", type=float, default=LIMIT, help="CPU seconds per step (default: %(default)g)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in steps(Path(folder)).items():
            if not options.name or any(part in name for part in options.name):
                found.append(grown(name, make, options.limit))
                print(line(found[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.markdown:
        head = "| step | n | CPU s | exponent | expected |\n|---|---|---|---|---|\n"
        options.markdown.write_text(head + "\n".join(map(line, found)) + "\n")
    table = Table("step", "exponent", "expected", title="steps with a larger exponent than expected")
    for row in filter(steep, found):
        table.add_row(row["step"], row["wrong"] or f"{row['exponent']:.2f}", f"{row['meant']:g}")
    Console().print(table if table.rows else "no step grows faster than expected")
    return 1 if table.rows else 0


def grown(name: str, make: Callable[[int], Callable[[], Any]], limit: float) -> dict[str, Any]:
    """Measure a step: sizes, seconds, expected exponent, and the exponent of the last two sizes (None: too short)."""
    sizes: list[int] = []
    spent: list[float] = []
    start, left, wrong, engine = 0.0, limit, "", None
    try:
        first, _ = seconds(make(SMALL))
        start, _ = seconds(make(SMALL))
        left -= first + start
        for n in SIZES:
            run = make(n)
            taken, engine = seconds(run)
            left -= taken
            if taken < SHORT:
                again, _ = seconds(run)
                left, taken = left - again, min(taken, again)
            sizes.append(n)
            spent.append(taken)
            rate = max(2.0, taken / spent[-2]) if len(spent) > 1 else 2.0
            if rate * taken > left:
                break
    except (Exception, SystemExit) as error:  # Report a failing step as a result.
        wrong = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
    before, last = (max(time_ - start, 1e-9) for time_ in spent[-2:]) if len(spent) > 1 else (0.0, 0.0)
    exponent = math.log2(last / before) if before >= LEAST else None
    meant, why = KERNEL if engine else MEANT.get(name, (1.0, ""))
    return {
        "step": name,
        "n": sizes,
        "seconds": spent,
        "start": start,
        "exponent": exponent,
        "meant": meant,
        "why": why,
        "wrong": wrong,
    }


def seconds(run: Callable[[], Any]) -> tuple[float, bool]:
    """Return the CPU seconds of a run, and whether an exact kernel was requested or chosen."""
    said = Said()
    logger = logging.getLogger("dmo")
    logger.setLevel(logging.INFO)
    logger.addHandler(said)
    begun = time.process_time()
    found = run()
    taken = time.process_time() - begun
    logger.removeHandler(said)
    return taken, said.exact or "exact" in (getattr(found, "approximation", None), *getattr(run, "args", ()))


class Said(logging.Handler):
    """Handler that detects the log message of an exact engine."""

    exact = False

    def emit(self, record: logging.LogRecord) -> None:
        """Check a message."""
        self.exact = self.exact or record.getMessage().startswith("engine: exact")


def steep(row: dict[str, Any]) -> bool:
    return bool(row["wrong"]) or (row["exponent"] is not None and row["exponent"] > row["meant"] + 0.1)


def line(row: dict[str, Any]) -> str:
    """Format a row of the table."""
    few = "one size within the limit" if len(row["n"]) < 2 else f"below {LEAST} s"
    exponent = few if row["exponent"] is None else f"{row['exponent']:.2f}"
    last = " / ".join(f"{value:.2f}" for value in row["seconds"][-2:])
    meant = f"{row['meant']:g}: {row['why']}" if row["why"] else "1"
    exponent = f"failed: {row['wrong']}" if row["wrong"] else exponent + (", not met" if steep(row) else "")
    return f"| {row['step']} | {' / '.join(map(str, row['n'][-2:]))} | {last} | {exponent} | {meant} |"


def steps(folder: Path) -> dict[str, Callable[[int], Callable[[], Any]]]:
    """Return the steps to measure by name: functions from n to a callable."""
    stored = Stores(folder)
    found: dict[str, Callable[[int], Callable[[], Any]]] = dict(of_ingest(folder))
    found["dmo extract"] = lambda n: command("extract", images(folder, n // 8), folder / "i.zarr", "--set", "rgb_v3h1")
    exact = "--approximation", "exact", "--combine", "predictions"
    fitted = "--kernel", "linear", "--approximation", "nystrom", "--rank", "50"
    for estimator in ("ridge", "kgha"):
        found[f"dmo fit {estimator}, low rank"] = lambda n, e=estimator: command(
            "fit", e, stored(n), folder / "n.zarr", *fitted
        )
    found["dmo fit ridge"] = lambda n: command("fit", "ridge", stored(n), folder / "n.zarr", "--kernel", "rbf")
    found["dmo tune ridge, low rank"] = lambda n: command(
        "tune", "ridge", stored(n), folder / "n.zarr", *fitted, "--combine", "predictions"
    )
    found["dmo tune ridge"] = lambda n: command("tune", "ridge", stored(n), folder / "n.zarr", *exact)
    for name, given in {
        "annotate": lambda n: (folder / "a.zarr", "--csv", folder / "a.csv"),
        "evaluate": lambda n: (),
        "report": lambda n: (folder / "r.html",),
        "suggest": lambda n: (folder / "s.csv",),
        "search": lambda n: ("--sample", "s7"),
        "transform": lambda n: (folder / "t.zarr",),
    }.items():
        found[f"dmo {name}"] = lambda n, name=name, given=given: command(
            name, stored.model("kgha" if name in ("search", "transform") else "ridge"), stored(n), *given(n)
        )
    found["dmo update"] = lambda n: command(
        "update", stored.model("ridge"), stored(n), folder / "u.zarr", answers(folder, n)
    )
    found["dmo info"] = lambda n: command("info", stored(n))
    found["dmo verify"] = lambda n: command("verify", stored(n))
    for name in sorted(dir(dmo)):
        kind = getattr(dmo, name)
        if isinstance(kind, type) and hasattr(kind, "fit") and name not in ("BestLowRank",):
            found[f"fit {name}"] = lambda n, kind=kind: of_fit(kind, n)
            found[f"predict {name}"] = lambda n, kind=kind: of_prediction(kind, n)
    return found


def command(*arguments: Any) -> Callable[[], None]:
    """Return a callable that runs `dmo ARGUMENTS`."""
    writes = arguments[0] in ("fit", "tune", "annotate", "suggest", "update", "extract", "transform", "ingest")
    given = (*arguments, "--overwrite") if writes else arguments
    return functools.partial(shell, *given)


class Stores:
    """Feature stores of n samples with ids, of which half have known labels, and models fitted to a small store."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, n: int) -> Path:
        path = self.folder / f"store{n}.zarr"
        if not path.exists():
            views, Y = drawn(n)
            labels = np.where(np.arange(n)[:, None] % 2, np.nan, Y)
            names = [f"label {j}" for j in range(Y.shape[1])]
            Samples(views, labels, names, ids=[f"s{i}" for i in range(n)]).write(path)
        return path

    def model(self, estimator: str) -> Path:
        path = self.folder / f"{estimator}.zarr"
        if not path.exists():
            given = "--kernel", "linear", "--approximation", "nystrom", "--rank", "50"
            shell("fit", estimator, self(FITTED), path, *given)
        return path


def drawn(n: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Generate two views of n samples with 30 and 20 columns, and 10 labels that depend on them."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, 10))
    views = {name: Z @ rng.normal(size=(10, d)) + rng.normal(size=(n, d)) for name, d in (("a", 30), ("b", 20))}
    return views, (Z + rng.normal(size=Z.shape) > 1).astype(np.uint8)


def of_ingest(folder: Path) -> Iterator[tuple[str, Callable[[int], Callable[[], None]]]]:
    """Yield steps of `dmo ingest files`: with ids, joined, with missing values, a test fraction, words, and
    documents."""

    def made(n: int) -> Path:
        place = folder / f"tables{n}"
        if place.exists():
            return place
        place.mkdir()
        views, Y = drawn(n)
        rng, ids = np.random.default_rng(1), [f"sample {i}" for i in range(n)]
        table = pd.DataFrame(np.hstack(list(views.values())).round(4), columns=[f"c{j}" for j in range(50)])
        table.to_csv(place / "plain.csv", index=False)
        table.insert(0, "id", ids)
        table.to_csv(place / "x.csv", index=False)
        table[rng.random(n) < 0.9].to_csv(place / "fewer.csv", index=False)
        table.mask(rng.random(table.shape) < 0.05).assign(id=ids).to_csv(place / "gaps.csv", index=False)
        words = np.array(["sea", "sky", None], object)[rng.integers(0, 3, n)]
        pd.DataFrame({"id": ids, "word": words}).sample(frac=1, random_state=0).to_csv(place / "words.csv", index=False)
        lists = [";".join(f"label {j}" for j in np.flatnonzero(row)) for row in Y]
        pd.DataFrame({"id": ids, "tags": lists}).sample(frac=1, random_state=0).to_csv(place / "tags.csv", index=False)
        texts = [
            " ".join(f"word{'abcdefgh'[k % 8]}{'xyz'[k % 3]}" for k in row) for row in rng.integers(0, 24, (n, 30))
        ]
        pd.DataFrame({"id": ids, "text": texts}).to_csv(place / "texts.csv", index=False)
        np.save(place / "y.npy", Y)
        return place

    def step(*arguments: str) -> Callable[[int], Callable[[], None]]:
        return lambda n: command(
            "ingest", "files", folder / "new.zarr", *(a.replace("IN", str(made(n))) for a in arguments)
        )

    tags = "--id", "id", "--labels", "IN/tags.csv", "--separator", ";"
    yield "dmo ingest, numbers alone", step("--view", "x=IN/plain.csv", "--labels", "IN/y.npy")
    yield "dmo ingest, ids", step("--view", "x=IN/x.csv", *tags)
    yield "dmo ingest, joined", step("--view", "x=IN/x.csv", "--view", "y=IN/fewer.csv", *tags, "--how", "outer")
    yield "dmo ingest, inner join", step("--view", "x=IN/x.csv", "--view", "y=IN/fewer.csv", *tags, "--how", "inner")
    yield "dmo ingest, gaps", step("--view", "x=IN/gaps.csv", *tags)
    yield (
        "dmo ingest, a third of a column of classes missing",
        step("--view", "x=IN/x.csv", "--id", "id", "--labels", "IN/words.csv"),
    )
    yield "dmo ingest, test share", step("--view", "x=IN/x.csv", *tags, "--test-share", "0.2")
    yield "dmo ingest, documents", step("--view", "x=IN/texts.csv", *tags, "--text", "text")


def images(folder: Path, n: int) -> Path:
    """Create a folder of n generated images."""
    place, rng = folder / f"images{n}", np.random.default_rng(0)
    if not place.exists():
        place.mkdir()
        for i in range(n):
            Image.fromarray(rng.integers(0, 255, (48, 48, 3), dtype=np.uint8)).save(place / f"{i}.png")
    return place


def answers(folder: Path, n: int) -> Path:
    """Write a table of answers for a quarter of n samples."""
    place = folder / f"answers{n}.csv"
    with open(place, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["sample", "labels"])
        rows.writerows([f"s{i}", f"label {i % 10}"] for i in range(1, n, 4))
    return place


def given_to(kind: type, n: int, seed: int = 0) -> tuple[Any, Any]:
    """Return rows and labels for an estimator."""
    views, Y = drawn(n, seed)
    if kind.__name__ == "HomogeneityAnalysis":
        return np.digitize(views["a"][:, :5], [-2, 0, 2]), None
    if kind.__name__ == "MultiSetCCA":
        return views, None
    return views["a"], Y


def of_fit(kind: type, n: int) -> Callable[[], Any]:
    X, Y = given_to(kind, n)
    return lambda: kind().fit(X, Y)


@functools.cache
def fitted_on(kind: type) -> Any:
    X, Y = given_to(kind, FITTED)
    return kind().fit(X, Y)


def of_prediction(kind: type, n: int) -> Callable[[], Any]:
    fitted, new = fitted_on(kind), given_to(kind, n, 1)[0]
    work = next(getattr(fitted, name) for name in ("predict", "transform") if hasattr(fitted, name))
    return lambda: work(new)


if __name__ == "__main__":
    raise SystemExit(main())
