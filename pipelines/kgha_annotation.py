"""The annotation experiment of the KGHA paper: six methods on every single view and on all views together.

    python pipelines/kgha_annotation.py --data FOLDER --work WORK [--scheduler local] [--quick]

FOLDER contains Corel5k (default: corel5k under DMO_DATA), the one public view of ESP Game, or a data set as distributed
by INRIA (iaprtc12, espgame). A feature store written by `dmo ingest`, or the word "digits", is also valid. Features are
ingested into WORK/features.zarr. Every method is then fitted to the training samples, annotates the test samples
(WORK/scores/VIEWS-METHOD.zarr) and is evaluated (WORK/results/VIEWS-METHOD.json). All of these are kept: the same
command resumes an interrupted run, and finished parts are computed again only if an option changed. The table is
printed and written to WORK/table.csv and WORK/table.json.

Methods, as in the lower half of table 4 of Xiong, Szedmak, Piater 2014: r-MLR and r-KMLR (linear and kernel ridge
regression, averaged over views), L-HA (KGHA with linear kernels), KGHA-r (balance -> 0), KGHA-d (as many components as
labels), and KGHA. `--protocol paper` computes tables 3 and 4 of the paper with its grids instead (see `kgha_paper`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets.inria import ingest_inria
from experiments import data_folder, kept, labeled_features, write_table
from kgha_paper import tables
from rich.console import Console
from rich.table import Table

from dmo import KGHA, MultiViewRidge, Nystrom, stores
from dmo.blocks import Subset, dense
from dmo.datasets import ingest
from dmo.decoders import Scores
from dmo.errors import UserError
from dmo.hashing import digest
from dmo.progress import stage
from dmo.workflows.apply import AppliedModel, finished_rows, write_rows
from dmo.workflows.evaluation import figures
from dmo.workflows.fitting import auto_kernel
from dmo.workflows.program import Session, option_parser, run_pipeline

ALL_VIEWS = "all"
VIEWS = ("rgb", "lab", "hsv", "gist", "dense_sift", "harris_sift", "dense_hue", "harris_hue")
"""Views of table 2 of the paper, for data sets that have more views."""


@dataclass(frozen=True)
class Parameters:
    """Parameters of all methods: `balance` is lambda, `ridge` is used by KGHA and its variants, `regression_ridge` by
    r-MLR and r-KMLR, `components` is a fraction of the number of labels, and `top` is the number of labels per
    sample."""

    balance: float = 1e-2
    ridge: float = 1e-1
    regression_ridge: float = 1e-2
    components: float = 0.8
    prior_power: float = 0.0
    standardize: float = 0.0
    top: int = 5


@dataclass(frozen=True)
class Task:
    """One fit of `method` to `views` (kernels by view name); `part` names the views in files and tables."""

    part: str
    method: str
    kernels: Mapping[str, str]
    parameters: Parameters

    @property
    def name(self) -> str:
        return f"{self.part}-{self.method}"

    def estimator(self) -> Any:
        return METHODS[self.method](self.parameters, self.kernels)


def _kgha(p: Parameters, kernels: Mapping[str, str], **changed: Any) -> KGHA:
    settings = {"balance": p.balance, "ridge": p.ridge, "n_components": p.components} | changed
    return KGHA(dict(kernels), decoder=Scores(prior_power=p.prior_power, standardize=p.standardize), **settings)


def _ridge(p: Parameters, kernels: Mapping[str, str]) -> MultiViewRidge:
    return MultiViewRidge(
        dict(kernels), ridge=p.regression_ridge, decoder=Scores(prior_power=p.prior_power, standardize=p.standardize)
    )


def _linear(kernels: Mapping[str, str]) -> dict[str, str]:
    """Return linear kernels with the same row normalization."""
    return {
        view: "linear" if kernel == "rbf" else kernel.removesuffix("rbf") + "linear" for view, kernel in kernels.items()
    }


METHODS: dict[str, Callable[[Parameters, Mapping[str, str]], Any]] = {
    "r-MLR": lambda p, kernels: _ridge(p, _linear(kernels)),
    "r-KMLR": _ridge,
    "L-HA": lambda p, kernels: _kgha(p, _linear(kernels)),
    "KGHA-r": lambda p, kernels: _kgha(p, kernels, balance=1e-8),
    "KGHA-d": lambda p, kernels: _kgha(p, kernels, n_components=1.0),
    "KGHA": _kgha,
}


@dataclass(frozen=True)
class Samples:
    """Training and test samples: views as row sources, labels, row indices of the test samples, and a description that
    distinguishes this selection from others."""

    store: stores.FeatureStore
    train: Mapping[str, Subset]
    Y_train: np.ndarray
    test: Mapping[str, Subset]
    Y_test: np.ndarray
    index: np.ndarray
    label_names: list[str] | None
    origin: dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment and return the exit code (see `dmo.workflows.program`)."""
    options = parser().parse_args(arguments)
    if options.protocol == "paper":
        return run_pipeline(__file__, options, lambda _: run_paper(options))
    return run_pipeline(__file__, options, lambda run: report(experiment(run, options), Path(options.work)))


def parser() -> argparse.ArgumentParser:
    made = option_parser(__doc__, run=True, data=data_folder("corel5k"), work=..., views=None, methods=None)
    made.add_argument("--quick", action="store_true", help="two views, 400 training and 100 test samples")
    made.add_argument("--protocol", choices=("views", "paper"), default="views", help="paper: see kgha_paper.py")
    made.add_argument("--rank", type=int, help="with --protocol paper: rank of Nystrom kernels (default: exact)")
    made.add_argument("--search-samples", type=int, help="with --protocol paper: see kgha_paper.py")
    for name, value in asdict(Parameters()).items():
        made.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    return made


def experiment(run: Session, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every method on every group of views; return the results in the order of the table."""
    work = Path(options.work)
    views = options.views
    store = open_data(options.data, work, views)
    kernels = default_kernels(store, views)
    if options.quick:
        kernels = dict(list(kernels.items())[:2])
    samples = select(store, list(kernels), quick=options.quick)
    parameters = Parameters(**{name: getattr(options, name) for name in asdict(Parameters())})
    methods = chosen_methods(options)
    parts = {view: {view: kernel} for view, kernel in kernels.items()} | {ALL_VIEWS: kernels}
    tasks = [Task(part, method, used, parameters) for part, used in parts.items() for method in methods]
    results = []
    with stage("methods x views", len(tasks)) as advance:
        for task in tasks:
            results.append(finish(run, task, samples, work))
            advance(1)
    return results


def run_paper(options: argparse.Namespace) -> None:
    """Compute the tables of the paper on all views, with its grids."""
    work, views = Path(options.work), options.views
    store = open_data(options.data, work, views)
    default_kernels(store, views)  # Raise an error for unknown views.
    used = (views or list(store.views))[: 2 if options.quick else None]
    samples = select(store, used, quick=options.quick)
    methods = chosen_methods(options)
    engine = Nystrom(rank=options.rank, random_state=0) if options.rank else "exact"
    # The printed tables apply to the whole data sets only, so rename quick runs.
    name = Path(options.data).name + ("-quick" if options.quick else "")
    few = options.search_samples
    tables(name, samples.train, samples.Y_train, samples.test, samples.Y_test, methods, engine, work, few)


def chosen_methods(options: argparse.Namespace) -> list[str]:
    """Return the methods listed by --methods."""
    methods = options.methods or list(METHODS)
    unknown = sorted(set(methods) - set(METHODS))
    if unknown:
        raise UserError(f"no method {unknown[0]!r}; known: {', '.join(METHODS)}")
    return methods


def open_data(data: str, work: Path, views: Sequence[str] | None) -> stores.FeatureStore:
    """Open the feature store `data`; if it is not a store, ingest the data set (only `views`) into `work` first."""
    target = work / ("features.zarr" if views is None or data == "digits" else f"features-{'-'.join(views)}.zarr")
    if data == "digits":
        return labeled_features(target, lambda: ingest_digits(target))
    if not Path(data).is_dir() or (Path(data) / "zarr.json").exists():
        return stores.open_features(data)
    name = Path(data).name
    if any(Path(data).glob(f"{name}_train_Gist.*")):
        return labeled_features(target, lambda: ingest_inria(data, target, name, views=views or VIEWS))
    card = "espgame" if name == "espgame" else "corel5k"
    return labeled_features(target, lambda: ingest(card, data, target, views=views))


def ingest_digits(path: Path) -> None:
    """Write the digits of scikit-learn as a feature store."""
    from dmo.demo.digits import digits_samples

    digits_samples().write(path)


def default_kernels(store: stores.FeatureStore, views: Sequence[str] | None) -> dict[str, str]:
    """Return Gaussian kernels at the mean distance, on square-rooted rows for views of histograms."""
    for view in views or ():
        if view not in store.views:
            raise UserError(f"{store.url} has no view {view!r}; it has {', '.join(store.views)}")
    return {view: auto_kernel(store, view) for view in views or store.views}


def select(store: stores.FeatureStore, views: Sequence[str], quick: bool) -> Samples:
    """Select training and test samples of a store; with `quick`, a small evenly spaced subset."""
    parts = []
    for split, most in (("train", 400), ("test", 100)):
        _, Y, index = store.select(split)
        if Y is None:
            raise UserError(f"{store.url} has no labels; ingest them with the features")
        some = np.arange(len(index))
        if quick:
            some = np.unique(np.linspace(0, len(index) - 1, min(len(index), most)).astype(int))
        parts.append(({view: Subset(store.views[view], index[some]) for view in views}, dense(Y[some]), index[some]))
    (train, Y_train, _), (test, Y_test, index) = parts
    used = Y_train.any(axis=0) if quick else np.ones(Y_train.shape[1], dtype=bool)
    names = None if store.label_names is None else [name for name, use in zip(store.label_names, used) if use]
    origin = {"store": store.provenance, "quick": quick, "samples": [len(Y_train), len(Y_test)]}
    return Samples(store, train, Y_train[:, used], test, Y_test[:, used], index, names, origin)


def finish(run: Session, task: Task, samples: Samples, work: Path) -> dict[str, Any]:
    """Return the result of a task, from its file or by fitting, annotating and evaluating."""
    description = {"method": task.method, "kernels": dict(task.kernels), **asdict(task.parameters), **samples.origin}

    def compute() -> dict[str, Any]:
        found = annotate(run, task, samples, work, digest(description))
        top = min(task.parameters.top, samples.Y_test.shape[1])
        seconds = float(found.attributes["seconds"])
        return {"views": task.part, "method": task.method, **figures(samples.Y_test, found[:], top), "seconds": seconds}

    return kept(work / "results" / f"{task.name}.json", description, compute)


def annotate(run: Session, task: Task, samples: Samples, work: Path, by: str) -> stores.ResultStore:
    """Write the scores of the test samples as a result store, with the seconds of the fit."""
    path = work / "scores" / f"{task.name}.zarr"
    known = finished_rows(path)
    if known is not None and known.attributes.get("by") == by:
        return known
    start = time.perf_counter()
    model = task.estimator().fit({view: samples.train[view] for view in task.kernels}, samples.Y_train)
    attributes = {"by": by, "seconds": time.perf_counter() - start}
    views = {view: samples.test[view] for view in task.kernels}
    applied = AppliedModel(model, by, samples.store, views, samples.index, "test")
    columns = samples.label_names or samples.Y_test.shape[1]
    write_rows(
        run,
        applied,
        applied.scores,
        path,
        columns,
        "scores",
        parents=[samples.store.url],
        attributes=attributes,
        overwrite=True,
    )
    return stores.open_results(path)


def report(results: Sequence[Mapping[str, Any]], work: Path) -> None:
    """Print the results and write them as CSV and JSON."""
    columns = ("views", "method", "precision", "recall", "f1", "n_plus", "auc_macro", "seconds")
    table = Table(title="annotation of the test samples (in percent; N+ in labels)")
    for column in columns:
        title = {"f1": "F1", "n_plus": "N+", "auc_macro": "AUC"}.get(column, column)
        table.add_column(title, justify="left" if column in ("views", "method") else "right")
    for i, result in enumerate(results):
        shares = [f"{100 * result[key]:.1f}" for key in ("precision", "recall", "f1")]
        table.add_row(
            result["views"],
            result["method"],
            *shares,
            str(result["n_plus"]),
            f"{100 * result['auc_macro']:.1f}",
            f"{result['seconds']:.1f}",
            end_section=i + 1 < len(results) and results[i + 1]["views"] != result["views"],
        )
    Console().print(table)
    rows = [{column: result[column] for column in columns} for result in results]
    stores.replace_file(work / "table.json", json.dumps(rows, indent=1).encode())
    write_table(work / "table.csv", rows)
    print(f"written to {work / 'table.csv'} and {work / 'table.json'}")


if __name__ == "__main__":
    sys.exit(main())
