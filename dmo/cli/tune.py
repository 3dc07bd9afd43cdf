"""`dmo tune`: a cross-validated sweep over a grid, and the best model refitted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer

import dmo
from dmo import workflows
from dmo.cli.estimator_options import Option, options_of, surfaces
from dmo.cli.fit import Output, estimator_of, store_of, training_of, with_options
from dmo.cli.options import Given, Overwrite, Scheduler, Split
from dmo.cli.session import cost_rows, grid, in_a_line, show
from dmo.errors import UserError
from dmo.workflows.program import free, session

Bandwidth = Annotated[
    str | None,
    typer.Option(
        "--bandwidth", help="Factors of the kernels' own bandwidths to try, comma-separated (one pass for each)."
    ),
]
Folds = Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")]
Scoring = Annotated[
    str | None,
    typer.Option(
        help="What to maximize: ranking, lrap, auc-macro, f1@5, p@5, psp@5 ...; any number after the @; of label sets "
        "f1-micro, f1-macro, f1-samples, jaccard; of real targets r2, or rmse, mae, arrmse, as negative numbers (default: "
        "accuracy for classes, r2 for real targets, else ranking, the mean of lrap and auc-macro)."
    ),
]
Report = Annotated[
    str | None,
    typer.Option(
        "--report", help="HTML file to write: a heat map, a learning curve (two more cross-validations), all settings."
    ),
]
_SHOWN = 10
_FIXED = ("approximation", "random_state")
_HELD = ("kernel", "impute")
"""Options of which one value is held fixed, and several are tried."""


def tune_command(name: str) -> Callable[..., None]:
    """The command that tunes the estimator of this name: its parameters with values to try, separated by commas."""

    def command(
        store: Given,
        model: Output,
        split: Split = None,
        bandwidth_factors: Bandwidth = None,
        folds: Folds = 4,
        scoring: Scoring = None,
        report: Report = None,
        scheduler: Scheduler = None,
        overwrite: Overwrite = False,
        **given: Any,
    ) -> None:
        free(model, overwrite, "model")
        store = store_of(name, store, given, overwrite)
        opened = dmo.stores.open_features(store)
        title = f"{name} tuned on {store}"
        with session() as run, dmo.stores.reserve_model(model, overwrite), ExitStack() as place:
            training = training_of(name, opened, split, given)
            place.enter_context(dmo.cluster.connect(scheduler))
            tried = _tried(name, given, training, bandwidth_factors, scoring)
            options = options_of(name)
            fixed = {
                key: value if key in (*_FIXED, *_HELD) and options[key].place not in (tried or ()) else None
                for key, value in given.items()
            }
            fixed |= {key: given[key] for key in given if key not in options}
            made = estimator_of(name, fixed, opened)
            if tried is not None and "prepare__impute" in tried:  # so that gaps are no reason to refuse the store
                made.set_params(prepare__impute=tried["prepare__impute"][0])
            elif (
                (asked := getattr(made, "_prepare", None)) is not None and asked.impute is None and training.lacks_cells
            ):
                made.set_params(prepare__impute="mean")
                run.note("cells are missing: means of their columns take their place (--impute says otherwise)")
            estimator, chosen = workflows.fitting.prepare(made, training)
            run.detail(chosen)
            result = workflows.tuning.tune(
                estimator, training, tried, model, overwrite, folds, scoring, getattr(estimator, "random_state", 0)
            )
            record: dict[str, Any] = {"store": store, "model": model, "split": training.split, "metric": result.metric}
            record |= {"folds": folds, "best": {**result.best_params, "mean": result.best_score}}
            record |= {"tried": result.tried, "table": result.table, **run.costs()}
            if report is not None:
                curve = workflows.tuning.learning_curve(result, training, folds, getattr(estimator, "random_state", 0))
                record["report"] = workflows.tuning.write_sweep(result, title, report, curve)
        if run.verbose:
            _table(result)
        show(record, _rows(record), title, in_a_line(record, model, *_parts(record)))

    if "bandwidth" in options_of(name) or "kernel" not in options_of(name):
        command.__signature__ = _without(command, "bandwidth_factors")  # type: ignore[attr-defined]
    return with_options(command, name, f"Cross-validate and fit: {surfaces()[name].text}", several=True)


def _without(command: Callable[..., None], name: str) -> inspect.Signature:
    found = inspect.signature(command, eval_str=True)
    return found.replace(parameters=[p for p in found.parameters.values() if p.name != name])


def _tried(
    kind: str,
    given: Mapping[str, Any],
    training: workflows.fitting.Training,
    factors: str | None,
    scoring: str | None,
) -> dict[str, Sequence[Any]] | None:
    """Parameter -> values to try: those given, in the place of the defaults; None where nothing is given."""
    from dmo.blocks import presence  # these here: `--help` needs none of them
    from dmo.decide.rules import SET_METRICS
    from dmo.inputs import are_real
    from dmo.select.sweeps import GRIDS

    views = training.views
    # real outputs, and labels that a decoder ranks, are not divided by frequencies
    decoded = are_real(training.Y) or given.get("decoder") is not None or scoring in SET_METRICS
    left_out = ["decoder__prior_power"] if decoded else []
    if any(presence(source) is not None for source in views.values()):
        left_out.append("combine")  # one kernel takes no views that lack samples
    tried = {name: values for name, values in GRIDS[kind].items() if name not in left_out}
    asked = {
        option.place: found
        for name, option in options_of(kind).items()
        if given[name] is not None and name not in _FIXED
        if len(found := _values(option, given[name], list(views))) > 1 or name not in _HELD
    }
    return None if factors is None and not asked else tried | asked | _factors(factors)


def _values(option: Option, given: str | Sequence[str], views: Sequence[str]) -> list[Any]:
    """The values of one option: alternatives by comma, or a repeated VIEW=VALUE, which are one value together."""
    entries = [given] if isinstance(given, str) else list(given)
    if len(entries) > 1:
        return [option.value(entries, views)]
    parts = [part.strip() for part in entries[0].split(",") if part.strip()]
    if not parts:
        raise UserError(f"{option.flag}: needs at least one value")
    return [option.value([part], views) for part in parts]


def _factors(given: str | None) -> dict[str, Sequence[Any]]:
    return {} if given is None else {"bandwidth": _values(Option("bandwidth", (float,), None, ""), given, ())}


def _table(result: workflows.tuning.SweepResult) -> None:
    found = {key.removeprefix("param_"): values for key, values in result.cv_results_.items() if "param_" in key}
    keys = [key for key, values in found.items() if len(set(map(str, values))) > 1]
    rows = sorted(result.table, key=lambda row: -row["mean"])[:_SHOWN]
    cells = [[f"{row.get(key, '-')}" for key in keys] + [f"{row['mean']:.4f}", f"{row['std']:.4f}"] for row in rows]
    shown = [key.rpartition("__")[2] for key in keys]
    grid(f"the best {len(rows)} of {result.tried} settings", [*shown, result.metric, "std over folds"], cells)


def _parts(record: Mapping[str, Any]) -> list[str]:
    """What was found, in words."""
    from dmo.metrics.named import ERRORS  # here: help computes nothing

    mean, metric = record["best"]["mean"], record["metric"]
    shown = -mean if metric in ERRORS else mean  # errors count as negative where the largest is the best
    score = f"{metric} {shown:.4f} on {record['folds']} folds, best of {record['tried']}"
    return [f"{score} settings: {_said(record['best'])}", *record.get("report", [])[:1]]


def _said(best: Mapping[str, Any]) -> str:
    given = {key: value for key, value in best.items() if key != "mean"}
    short = {key.rpartition("__")[2]: value for key, value in given.items()}
    return ", ".join(f"{key} {v:g}" if isinstance(v, float) else f"{key} {v}" for key, v in short.items())


def _rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("settings", f"{record['tried']} on {record['folds']} folds"), ("best", _said(record["best"]))]
    rows += [(record["metric"], f"{record['best']['mean']:.4f}")]
    rows += [("report", path) for path in record.get("report", [])]
    return [*rows, *cost_rows(record), ("model", record["model"])]
