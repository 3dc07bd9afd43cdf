"""`dmo tune`: a cross-validated sweep over a grid, and the best model refitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

from dmo import stores
from dmo.cli import options
from dmo.cli.fit import Combine, Kernel, Output, Seed, View, Views, _one, only, save
from dmo.cli.options import Approximation, Clusters, Features, Json, Overwrite, Rank, Scheduler, Split
from dmo.cli.session import cost_rows, grid, show
from dmo.cluster import connect
from dmo.estimators import KGHA, MLSI, MORP, MultiViewRidge
from dmo.report import PageFigure, Table, heat_map, write_report
from dmo.selection import SweepResult, sweep
from dmo.workflows import apply
from dmo.workflows.apply import free
from dmo.workflows.program import session

tune_app = typer.Typer(no_args_is_help=True, help="Choose parameters by cross-validation and fit the best model.")
Values = Annotated[str, typer.Option(help="Values to try, comma-separated.")]
Bandwidth = Annotated[
    str | None, typer.Option(help="Factors of the kernels' own bandwidths to try, comma-separated (one pass for each).")
]
Folds = Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")]
MetricName = Annotated[str, typer.Option(help="What to maximize: f1@5, n+@5, auc-macro ...; any number after the @.")]
Report = Annotated[str | None, typer.Option("--report", help="HTML file to write: all settings and a heat map.")]
_SHOWN = 10


@tune_app.command()
def kgha(
    store: Features,
    model: Output,
    ridge: Values = "0.01,0.03,0.1,0.3,1",
    balance: Values = "0.001,0.01,0.1",
    components: Values = "0.5,0.8,1.0",
    prior_power: Values = "0,0.25,0.5",
    standardize: Values = "0",
    center: Values = "true",
    intercept: Values = "false",
    bandwidth: Bandwidth = None,
    kernel: Kernel = None,
    views: Views = None,
    split: Split = None,
    approximation: Approximation = "auto",
    rank: Rank = None,
    clusters: Clusters = 10,
    folds: Folds = 4,
    metric: MetricName = "f1@5",
    report: Report = None,
    scheduler: Scheduler = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Kernel generalized homogeneity analysis over ridge, balance, components and the decoder."""
    tried = {
        "ridge": options.values("--ridge", ridge, float),
        "balance": options.values("--balance", balance, float),
        "n_components": options.values("--components", components, options.components),
        **_decoders(prior_power, standardize, center, intercept),
        **_bandwidths(bandwidth),
    }
    engine = options.approximation(approximation, rank, clusters)
    estimator = KGHA(approximation=engine, random_state=seed)
    tune(
        Sweep(
            estimator,
            store,
            model,
            tried,
            kernel,
            views,
            split,
            folds,
            metric,
            report,
            scheduler,
            seed,
            overwrite,
            json,
        )
    )


@tune_app.command()
def ridge(
    store: Features,
    model: Output,
    ridge: Values = "0.001,0.003,0.01,0.03,0.1,0.3",
    combine: Annotated[
        Combine, typer.Option(help="Average the views' predictions or kernels, or multiply kernels.")
    ] = "kernels",
    prior_power: Values = "0,0.25,0.5",
    standardize: Values = "0",
    center: Values = "true,false",
    intercept: Values = "false",
    bandwidth: Bandwidth = None,
    kernel: Kernel = None,
    views: Views = None,
    split: Split = None,
    approximation: Approximation = "auto",
    rank: Rank = None,
    clusters: Clusters = 10,
    folds: Folds = 4,
    metric: MetricName = "f1@5",
    report: Report = None,
    scheduler: Scheduler = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Kernel ridge regression of the labels over ridge and the decoder."""
    tried = {
        "ridge": options.values("--ridge", ridge, float),
        **_decoders(prior_power, standardize, center, intercept),
        **_bandwidths(bandwidth),
    }
    engine = options.approximation(approximation, rank, clusters)
    estimator = MultiViewRidge(combine=combine, approximation=engine, random_state=seed)
    tune(
        Sweep(
            estimator,
            store,
            model,
            tried,
            kernel,
            views,
            split,
            folds,
            metric,
            report,
            scheduler,
            seed,
            overwrite,
            json,
        )
    )


def _bandwidths(bandwidth: str | None) -> dict[str, list[Any]]:
    return {} if bandwidth is None else {"bandwidth": options.values("--bandwidth", bandwidth, float)}


def _decoders(prior_power: str, standardize: str, center: str, intercept: str) -> dict[str, list[Any]]:
    return {
        "prior_power": options.values("--prior-power", prior_power, float),
        "standardize": options.values("--standardize", standardize, float),
        "center": options.values("--center", center, options.truth),
        "intercept": options.values("--intercept", intercept, options.truth),
    }


@dataclass(frozen=True)
class Sweep:
    """What the tune commands have in common; `tried`: parameter -> values; see the help of the options."""

    estimator: Any
    store: str
    model: str
    tried: Mapping[str, Sequence[Any]]
    kernel: list[str] | None
    views: list[str] | None
    split: str | None
    folds: int
    metric: str
    report: str | None
    scheduler: str | None
    seed: int
    overwrite: bool
    json: bool


def tune(asked: Sweep) -> None:
    """Open, sweep, refit, save, report."""
    free(asked.model, asked.overwrite, "model")
    title = f"{type(asked.estimator).__name__} tuned on {asked.store}"
    reserved = stores.reserve_model(asked.model, asked.overwrite)
    with session(asked.json) as run, reserved, connect(asked.scheduler):
        opened = stores.open_features(asked.store)
        names = apply.chosen_views(opened, asked.views)
        specs, notes = options.kernels(opened, names, asked.kernel or ())
        for note in notes:
            run.note(note)
        chosen = apply.chosen_split(opened, asked.split, "train")
        sources, Y, _ = opened.select(chosen)
        estimator = with_kernels(asked.estimator, specs)
        used = {name: sources[name] for name in names}
        result = sweep(estimator, used, Y, asked.tried, asked.folds, asked.metric, asked.seed)
        if opened.label_names is not None:
            result.best_estimator.label_names_ = list(opened.label_names)
        save(result.best_estimator, asked.model, opened, chosen, asked.seed, asked.overwrite)
        record = {
            "store": asked.store,
            "model": asked.model,
            "split": chosen,
            "metric": asked.metric,
            "folds": asked.folds,
            "best": {**result.best_params, "mean": result.best_score},
            "table": result.table,
            **run.costs(),
        }
        if asked.report is not None:
            record["report"] = _report(result, asked.tried, title, asked.report)
    if not asked.json:
        _table(result, asked.tried)
    best = ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in result.best_params.items()
    )
    rows = [
        ("settings", f"{len(result.table)} x {asked.folds} folds"),
        ("best", best),
        (asked.metric, f"{result.best_score:.4f}"),
    ]
    rows += [("report", path) for path in record.get("report", [])]
    show(record, [*rows, *cost_rows(record), ("model", asked.model)], title, asked.json)


def with_kernels(estimator: Any, kernels: Mapping[str, str]) -> Any:
    """The estimator with the kernels of its views; one that projects a single view takes that view's."""
    if isinstance(estimator, (KGHA, MultiViewRidge)):
        return estimator.set_params(kernel=kernels)
    kernel = only(type(estimator).__name__, kernels)
    return estimator.set_params(kernel=kernel) if "kernel" in estimator.get_params() else estimator


def _table(result: SweepResult, tried: Mapping[str, Sequence[Any]]) -> None:
    keys = [key for key in tried if len(tried[key]) > 1]
    rows = sorted(result.table, key=lambda row: -row["mean"])[:_SHOWN]
    cells = [[f"{row[key]}" for key in keys] + [f"{row['mean']:.4f}", f"{row['std']:.4f}"] for row in rows]
    grid(f"the best {len(rows)} of {len(result.table)} settings", [*keys, result.metric, "std over folds"], cells)


def _report(result: SweepResult, tried: Mapping[str, Sequence[Any]], title: str, path: str) -> list[str]:
    """An HTML file with all settings and a heat map: the best score for every pair of values of the two longest axes."""
    rows, columns = sorted(tried, key=lambda key: -len(tried[key]))[:2]
    best = np.array(
        [
            [max(row["mean"] for row in result.table if row[rows] == a and row[columns] == b) for b in tried[columns]]
            for a in tried[rows]
        ]
    )
    figure = heat_map(best, tried[rows], tried[columns], rows, columns, result.metric)
    keys = [*tried, "mean", "std"]
    ranked = sorted(result.table, key=lambda row: -row["mean"])
    table = Table("All settings, best first", keys, [[row[key] for key in keys] for row in ranked])
    image = PageFigure("sweep", figure, f"{result.metric} over {rows} and {columns}, best over the other parameters")
    return [str(written) for written in write_report(path, title, [table], [image])]


def tune_morp(
    store: Features,
    model: Output,
    view: View = None,
    mixing: Values = "0.1,0.3,0.5,0.7,0.9",
    ridge: Values = "0.01,0.1,1,10",
    components: Values = "50",
    form: Values = "simplified",
    kernel: Kernel = None,
    split: Split = None,
    approximation: Approximation = "auto",
    rank: Rank = None,
    clusters: Clusters = 10,
    folds: Folds = 4,
    metric: MetricName = "auc-macro",
    report: Report = None,
    scheduler: Scheduler = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Multi-output regularized projection over mixing, ridge, components and form."""
    tried: dict[str, list[Any]] = {
        "mixing": options.values("--mixing", mixing, float),
        "ridge": options.values("--ridge", ridge, float),
        "n_components": options.values("--components", components, int),
        "form": options.values("--form", form, str),
    }
    estimator = MORP(approximation=options.approximation(approximation, rank, clusters), random_state=seed)
    tune(
        Sweep(
            estimator,
            store,
            model,
            tried,
            kernel,
            _one(view),
            split,
            folds,
            metric,
            report,
            scheduler,
            seed,
            overwrite,
            json,
        )
    )


def tune_mlsi(
    store: Features,
    model: Output,
    view: View = None,
    mixing: Values = "0.1,0.3,0.5,0.7,0.9",
    ridge: Values = "0.001,0.01,0.1,1",
    components: Values = "50",
    form: Values = "direct",
    split: Split = None,
    folds: Folds = 4,
    metric: MetricName = "auc-macro",
    report: Report = None,
    scheduler: Scheduler = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Multi-label informed latent semantic indexing over mixing, ridge, components and form."""
    tried: dict[str, list[Any]] = {
        "mixing": options.values("--mixing", mixing, float),
        "ridge": options.values("--ridge", ridge, float),
        "n_components": options.values("--components", components, int),
        "form": options.values("--form", form, str),
    }
    tune(
        Sweep(
            MLSI(random_state=seed),
            store,
            model,
            tried,
            ["linear"],
            _one(view),
            split,
            folds,
            metric,
            report,
            scheduler,
            seed,
            overwrite,
            json,
        )
    )


tune_app.command("morp")(tune_morp)
tune_app.command("mlsi")(tune_mlsi)
