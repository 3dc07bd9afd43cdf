"""Commands `dmo fit`, `dmo tune` and `dmo plan`, which have a subcommand for every estimator."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer

import dmo
from dmo import workflows
from dmo.cli.commands import (
    FLAG_OF,
    OF_TABLE,
    Given,
    Overwrite,
    Scheduler,
    Split,
    signed,
    table_arguments,
)
from dmo.cli.estimator_options import engine, engine_options, options_of, surfaces
from dmo.cli.help_pages import ENGINES
from dmo.cli.options import Option, keyword
from dmo.cli.session import cost_rows, grid, in_a_line, say, show
from dmo.errors import UserError
from dmo.workflows.program import free, quiet, session

Output = Annotated[str, typer.Argument(help="Model store to write.")]
Views = Annotated[list[str] | None, typer.Option("--views", help="Views to use, comma-separated (default: all).")]
View = Annotated[str | None, typer.Option("--view", help="View to use (default: the only view of the store).")]
_FACTORS = "Factors on the default bandwidths of kernels. Each needs one pass over the data."
Folds = Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")]
Scoring = Annotated[
    str | None,
    typer.Option(
        help="Metric to maximize, such as ranking, f1@5 or r2. For rankings: ranking, lrap, auc-macro, f1@5, p@5, "
        "psp@5 ..., with any number after @. For label sets: f1-micro, f1-macro, f1-samples, jaccard. For real "
        "targets: r2, or the negative of rmse, mae, arrmse. Default: accuracy for classes, r2 for real targets, else "
        "ranking, the mean of lrap and auc-macro."
    ),
]
Report = Annotated[
    str | None,
    typer.Option(
        "--report",
        help="HTML file for a report on all candidates. The report has a heat map and a learning curve, which costs "
        "about two more cross-validations.",
    ),
]
_TUNE = "Choose parameters of the estimator by cross-validation and fit the best model. Separate candidates by commas."
_SHOWN = 10
_FIXED = ("approximation", "random_state")
_HELD = ("kernel", "impute")
"""Options that `dmo tune` searches only if several values are passed."""


def fit_command(name: str) -> Callable[..., None]:
    """Create the `dmo fit` command of the estimator with the class name `name`."""

    def command(
        store: Given,
        model: Output,
        split: Split = None,
        scheduler: Scheduler = None,
        overwrite: Overwrite = False,
        **given: Any,
    ) -> None:
        free(model, overwrite, "model")
        opened = store_of(name, store, given, overwrite)  # Raise errors about the input before reserving the output.
        store = opened.url
        with session() as run, dmo.stores.reserve_model(model, overwrite), ExitStack() as place:
            made = estimator_of(name, given, opened)  # Raise errors about option values before slow steps.
            training = training_of(name, opened, split, given)
            # Connect to Dask workers only after the input has been read without errors.
            backend = place.enter_context(dmo.cluster.connect(scheduler, n_samples=training.n))
            estimator, chosen = workflows.fitting.prepare(made, training)
            run.note(chosen)
            with quiet():
                plan = workflows.plan.plan_fit(estimator, training.views, training.n_labels)
            record: dict[str, Any] = {"store": store, "split": training.split, "n_samples": training.n}
            record |= {"estimator": name, "kernels": _kernels(estimator, training)}
            rows = [("samples", training.samples), (training.targets, str(training.n_labels))]
            for what, value in [("runs", backend.where), *(plan.rows() if plan is not None else [])]:
                run.detail(f"  {what}: {value}")
            workflows.fitting.fit(run, estimator, training, model, overwrite, plan)
            record |= {"model": model, **workflows.fitting.learned(estimator), **run.costs()}
            views, rest = _rows(record)
            table = [*rows, *views, *rest, *cost_rows(record), ("model", f"{record['model']}")]
            parts = [f"{name} of {training.n_labels} {training.targets}" if training.n_labels else name]
            parts += [f"{view} ({value})" for view, value in views[:3]] + [f"{len(views)} views"][: len(views) > 3]
            show(record, table, f"{name} on {store}", in_a_line(record, model, *parts))

    return with_options(command, name, surfaces()[name].text, options_of(name), several=False)


def with_options(
    command: Callable[..., None], name: str, text: str, options: Mapping[str, Option], several: bool
) -> Callable[..., None]:
    """Replace the parameter **given of a command with the options of an estimator, its engines, and data files."""
    own = [option.parameter(several) for option in options.values()]
    engines = [option.parameter(False, ENGINES) for option in engine_options(name).values()]
    table = [keyword(key, annotation) for key, annotation in OF_TABLE.items()]
    return with_parameters(command, name, [*own, *engines, *table], text)


def store_of(name: str, path: str, given: Mapping[str, Any], overwrite: bool) -> dmo.stores.FeatureStore:
    """Open a feature store, or convert data files to a feature store as specified by the options `given`."""
    from dmo.formats.sources import is_image_folder, is_rows  # Import lazily, because `--help` needs no NumPy.

    asked = {key for key in OF_TABLE if given[key] is not None}
    if not (is_rows(path) or is_image_folder(path)):
        if asked and os.path.exists(path):  # Otherwise, report first that the path does not exist.
            flag = next(FLAG_OF.get(key, key) for key in OF_TABLE if key in asked).replace("_", "-")
            raise UserError(f"--{flag} applies to tables and folders only, but {path} is neither; omit the option")
        return dmo.stores.open_features(path)
    arguments = table_arguments(given)
    with session() as run:
        return workflows.fitting.store_beside(run, path, arguments, getattr(dmo, name), overwrite)


def with_parameters(
    command: Callable[..., None], name: str, added: Sequence[inspect.Parameter], text: str
) -> Callable[..., None]:
    """Replace the parameter **given of a command with `added` and the option for views, and set its help to `text`."""
    one = surfaces()[name].one_view
    views = keyword("view", View) if one else keyword("views", Views)
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
    arguments = [p for p in own if p.default is inspect.Parameter.empty]
    options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p not in arguments]
    command.__doc__ = text
    return signed(command, [*arguments, *added, views, *options])


def training_of(
    name: str, store: dmo.stores.FeatureStore, split: str | None, given: Mapping[str, Any]
) -> workflows.fitting.Training:
    """Open the training samples that the options for views and splits select."""
    return workflows.fitting.open_training(store, _views(given), split, name if surfaces()[name].one_view else None)


def _views(given: Mapping[str, Any]) -> Sequence[str] | None:
    return [given["view"]] if given.get("view") is not None else given.get("views")


def estimator_of(name: str, given: Mapping[str, Any], store: dmo.stores.FeatureStore) -> Any:
    """Create an estimator from command-line options.

    Defaults are the same as in Python, except for kernels, which depend on the view by default.
    """
    options, views = options_of(name), workflows.apply.chosen_views(store, _views(given))
    chosen: dict[str, Any] = {}
    for parameter, option in options.items():
        value = given.get(parameter)
        if parameter == "approximation":
            own = {key: given[key] for key in engine_options(name) if given.get(key) is not None}
            chosen[option.place] = engine(name, value, own)
        elif isinstance(value, bool):
            chosen[option.place] = value
        elif value is not None or (option.default == "auto" and option.place == parameter):
            entries = [] if value is None else [value] if isinstance(value, str) else value
            chosen[option.place] = option.value(entries, views)
    return getattr(dmo, name)().set_params(**chosen)


def _kernels(estimator: Any, training: workflows.fitting.Training) -> dict[str, str]:
    """Map views to their kernel names; the mapping is empty for estimators without kernels."""
    kernel = getattr(estimator, "kernel", None)
    if kernel is None:
        return {}
    return {view: str(kernel[view] if isinstance(kernel, Mapping) else kernel) for view in training.views}


def _rows(record: Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the table rows that describe the views of a fitted model, and the remaining table rows."""
    rows, rest = [], []
    for name, width in record["views"].items():
        kernel = record["kernels"].get(name)
        words = [f"{width} features", *([f"kernel {kernel}"] if kernel else [])]
        words += [f"scale {record['scales'][name]}"] if name in record["scales"] else []
        rows.append(
            (f"view {name}", ", ".join([*words, *(["missing values imputed"] if name in record["imputed"] else [])]))
        )
    if "n_components" in record:
        rest.append(("components", str(record["n_components"])))
    if "objective" in record:
        rest.append(("objective", f"{record['objective']:.6f} after {record['steps']} steps"))
    return rows, rest


def tune_command(name: str) -> Callable[..., None]:
    """Create the `dmo tune` command of an estimator, whose options accept comma-separated candidate values."""
    options = options_of(name)
    text = f"{surfaces()[name].text}\n\n{_TUNE}"
    if "kernel" in options and "bandwidth" not in options:
        options = options | {"bandwidth": Option("bandwidth", (float,), None, _FACTORS, place="bandwidth")}

    def command(
        store: Given,
        model: Output,
        split: Split = None,
        folds: Folds = 4,
        scoring: Scoring = None,
        report: Report = None,
        scheduler: Scheduler = None,
        overwrite: Overwrite = False,
        **given: Any,
    ) -> None:
        free(model, overwrite, "model")
        if report is not None:
            dmo.stores.check_output_file(report)
        opened = store_of(name, store, given, overwrite)
        store = opened.url
        title = f"{name} tuned on {store}"
        with session() as run, dmo.stores.reserve_model(model, overwrite), ExitStack() as place:
            training = training_of(name, opened, split, given)
            place.enter_context(dmo.cluster.connect(scheduler, n_samples=training.n))
            tried = _tried(name, options, given, training, scoring)
            held = {key for key in (*_FIXED, *_HELD) if key in options and options[key].place not in (tried or ())}
            fixed = {key: value for key, value in given.items() if key in held or key not in options}
            made = estimator_of(name, fixed, opened)
            if tried is not None and "prepare__impute" in tried:  # Otherwise, missing values would raise an error.
                made.set_params(prepare__impute=tried["prepare__impute"][0])
            elif training.lacks_cells and (asked := getattr(made, "_prepare", None)) and asked.impute is None:
                made.set_params(prepare__impute="mean")
                run.note("missing values are replaced by the means of their columns; use --impute to change this")
            estimator, chosen = workflows.fitting.prepare(made, training)
            run.detail(chosen)
            result = workflows.fitting.tune(estimator, training, tried, model, overwrite, folds, scoring)
            record: dict[str, Any] = {"store": store, "model": model, "split": training.split, "metric": result.metric}
            record |= {"folds": folds, "best": {**result.best_params, "mean": result.best_score}}
            record |= {"tried": result.tried, "table": result.table, **run.costs()}
            if report is not None:
                curve = workflows.fitting.learning_curve(result, training, folds)
                record["report"] = workflows.report_page.write_sweep(result, title, report, curve)
        if run.verbose:
            _table(result)
        show(record, _found_rows(record), title, in_a_line(record, model, *_parts(record)))

    return with_options(command, name, text, options, several=True)


def _tried(
    kind: str,
    options: Mapping[str, Option],
    given: Mapping[str, Any],
    training: workflows.fitting.Training,
    scoring: str | None,
) -> dict[str, Sequence[Any]] | None:
    """Map parameters to candidate values: the default grid, updated by the options.

    Return None if no option is passed.
    """
    views = training.views
    tried = workflows.fitting.default_grid(kind, training, scoring, given.get("decoder") is not None)
    asked = {
        option.place: found
        for name, option in options.items()
        if given[name] is not None and name not in _FIXED
        if len(found := _values(option, given[name], list(views))) > 1 or name not in _HELD
    }
    return tried | asked if asked else None


def _values(option: Option, given: str | Sequence[str], views: Sequence[str]) -> list[Any]:
    """Parse the comma-separated candidate values of an option.

    If an option is repeated as VIEW=VALUE, all its entries form a single candidate.
    """
    entries = [given] if isinstance(given, str) else list(given)
    if len(entries) > 1:
        return [option.value(entries, views)]
    parts = [part.strip() for part in entries[0].split(",") if part.strip()]
    if not parts:
        raise UserError(f"{option.flag}: no value was passed; pass at least one value")
    return [option.value([part], views) for part in parts]


def _table(result: Any) -> None:
    found = {key.removeprefix("param_"): values for key, values in result.cv_results_.items() if "param_" in key}
    keys = [key for key, values in found.items() if len(set(map(str, values))) > 1]
    rows = sorted(result.table, key=lambda row: -row["mean"])[:_SHOWN]
    cells = [[f"{row.get(key, '-')}" for key in keys] + [f"{row['mean']:.4f}", f"{row['std']:.4f}"] for row in rows]
    shown = [key.rpartition("__")[2] for key in keys]
    grid(f"the best {len(rows)} of {result.tried} settings", [*shown, result.metric, "std over folds"], cells)


def _parts(record: Mapping[str, Any]) -> list[str]:
    """Describe the best hyperparameter candidate, and name the report if one was written."""
    mean, metric = record["best"]["mean"], record["metric"]
    shown = workflows.fitting.shown_score(metric, mean)
    score = f"{metric} {shown:.4f} on {record['folds']} folds, best of {record['tried']}"
    return [f"{score} settings: {_said(record['best'])}", *record.get("report", [])[:1]]


def _said(best: Mapping[str, Any]) -> str:
    given = {key: value for key, value in best.items() if key != "mean"}
    short = {key.rpartition("__")[2]: value for key, value in given.items()}
    return ", ".join(f"{key} {v:g}" if isinstance(v, float) else f"{key} {v}" for key, v in short.items())


def _found_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("settings", f"{record['tried']} on {record['folds']} folds"), ("best", _said(record["best"]))]
    rows += [(record["metric"], f"{record['best']['mean']:.4f}")]
    rows += [("report", path) for path in record.get("report", [])]
    return [*rows, *cost_rows(record), ("model", record["model"])]


def plan_command(name: str) -> Callable[..., None]:
    """Create the `dmo plan` command of an estimator, which compares its engines."""
    kernels = options_of(name).get("kernel")

    def command(
        store: Given,
        split: Split = None,
        samples: Annotated[
            int | None, typer.Option(min=2, help="Number of samples to plan for. Default: all samples of the split.")
        ] = None,
        rank: Annotated[int, typer.Option(min=1, help="Rank of the Nystrom approximation.")] = 1000,
        clusters: Annotated[int, typer.Option(min=1, help="Clusters of the MEKA approximation.")] = 10,
        resources: Annotated[
            bool,
            typer.Option(
                "--resources",
                help="Print a table of resources in Markdown. It covers 5 000 to 10 million such samples.",
            ),
        ] = False,
        scheduler: Scheduler = None,
        **given: Any,
    ) -> None:
        opened = store_of(name, store, given, False)
        store = opened.url
        with session() as run, ExitStack() as place:
            training = training_of(name, opened, split, given)
            # Connect to Dask workers only after the input has been read without errors.
            backend = place.enter_context(dmo.cluster.connect(scheduler, n_samples=samples or training.n))
            estimator, _ = workflows.fitting.prepare(estimator_of(name, given, opened), training)
            if resources:
                table = workflows.plan.resource_table(len(training.views), training.n_labels, rank)
                show({"resources": table})
                say(workflows.plan.markdown(table), end="")
                return
            n = samples or training.n
            with quiet():
                plans, auto = workflows.plan.compare_engines(
                    estimator, training.views, training.n_labels, n, rank, clusters
                )
            run.detail(f"{name} on {training.samples}, {backend.where}")
        record = {"method": name, "store": store, "n_samples": n, "auto": auto}
        record["plans"] = {engine: found.to_dict() for engine, found in plans.items()}
        title = f"{name} on {n} samples" + (f"; --approximation auto selects {auto}" if len(plans) > 1 else "")
        cells = [found.cells() for found in plans.values()]
        show(record)
        grid(title, list(cells[0]), [list(found.values()) for found in cells])

    added = [] if kernels is None else [kernels.parameter(several=False)]
    table = [keyword(key, annotation) for key, annotation in OF_TABLE.items()]
    return with_parameters(command, name, [*added, *table], surfaces()[name].text)
