"""`dmo fit`: a feature store in, a model out; one command per estimator, with its parameters as options."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer

import dmo
from dmo import workflows
from dmo.cli.estimator_options import engine, engine_options, options_of, surfaces
from dmo.cli.options import OF_TABLE, Given, Overwrite, Scheduler, Split, label_names_in
from dmo.cli.session import cost_rows, in_a_line, show
from dmo.errors import UserError
from dmo.workflows.program import free, quiet, session

Output = Annotated[str, typer.Argument(help="Model store to write.")]
Views = Annotated[list[str] | None, typer.Option("--views", help="Views to use, comma-separated (default: all).")]
View = Annotated[str | None, typer.Option("--view", help="The view to use (default: the store's only one).")]


def fit_command(name: str) -> Callable[..., None]:
    """The command that fits the estimator of this name."""

    def command(
        store: Given,
        model: Output,
        split: Split = None,
        scheduler: Scheduler = None,
        overwrite: Overwrite = False,
        **given: Any,
    ) -> None:
        free(model, overwrite, "model")
        store = store_of(name, store, given, overwrite)
        opened = dmo.stores.open_features(store)  # first, as what it refuses takes no more than this
        with session() as run, dmo.stores.reserve_model(model, overwrite), ExitStack() as place:
            made = estimator_of(name, given, opened)  # first too: values are read before estimators are imported
            training = training_of(name, opened, split, given)
            backend = place.enter_context(
                dmo.cluster.connect(scheduler)
            )  # jobs are queued for what is there to be read
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

    return with_options(command, name, surfaces()[name].text, several=False)


def with_options(command: Callable[..., None], name: str, text: str, several: bool) -> Callable[..., None]:
    """`command` with an option for its **given: for every parameter of the estimator, and of its engines."""
    own = [option.parameter(several) for option in options_of(name).values()]
    engines = [option.parameter(False, "Approximation") for option in engine_options(name).values()]
    kind = inspect.Parameter.KEYWORD_ONLY
    table = [inspect.Parameter(option, kind, default=None, annotation=of) for option, of in OF_TABLE.items()]
    return with_parameters(command, name, [*own, *engines, *table], text)


def store_of(name: str, path: str, given: Mapping[str, Any], overwrite: bool) -> str:
    """The feature store at a path, or that of the table or folder there, by the options `given` for it."""
    asked = {key: given[key] for key in OF_TABLE if given[key] is not None}
    if not (os.path.isfile(path) or os.path.isdir(path)) or os.path.exists(os.path.join(path, "zarr.json")):
        if asked:
            flag = next(iter(asked)).replace("_", "-")
            raise UserError(f"--{flag} {path}: says how a table or a folder is read, and this is none; leave it out")
        return path
    if (columns := asked.pop("label_columns", None)) is not None:
        asked["labels"] = label_names_in(columns)
    with session() as run:
        return workflows.fitting.store_beside(run, path, asked, getattr(dmo, name), overwrite)


def with_parameters(
    command: Callable[..., None], name: str, added: Sequence[inspect.Parameter], text: str
) -> Callable[..., None]:
    """`command` with these parameters and the choice of views for its **given, and `text` as help."""
    one = surfaces()[name].one_view
    views = inspect.Parameter(
        "view" if one else "views", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=View if one else Views
    )
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
    arguments = [p for p in own if p.default is inspect.Parameter.empty]
    options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p not in arguments]
    every = [*arguments, *added, views, *options]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in every}
    command.__doc__ = text
    return command


def training_of(
    name: str, store: dmo.stores.FeatureStore, split: str | None, given: Mapping[str, Any]
) -> workflows.fitting.Training:
    """The samples that the options ask for."""
    return workflows.fitting.open_training(store, _views(given), split, name if surfaces()[name].one_view else None)


def _views(given: Mapping[str, Any]) -> Sequence[str] | None:
    return [given["view"]] if given.get("view") is not None else given.get("views")


def estimator_of(name: str, given: Mapping[str, Any], store: dmo.stores.FeatureStore) -> Any:
    """The estimator that the options describe; what they leave out is as in Python, but a kernel is chosen by view."""
    options, views = options_of(name), workflows.apply.chosen_views(store, _views(given))
    chosen: dict[str, Any] = {}
    for parameter, option in options.items():
        value = given[parameter]
        if parameter == "approximation":
            chosen[option.place] = engine(
                name, value, {key: given[key] for key in engine_options(name) if given[key] is not None}
            )
        elif isinstance(value, bool):
            chosen[option.place] = value
        elif value is not None or (option.default == "auto" and option.place == parameter):
            entries = [] if value is None else [value] if isinstance(value, str) else value
            chosen[option.place] = option.value(entries, views)
    return getattr(dmo, name)().set_params(**chosen)


def _kernels(estimator: Any, training: workflows.fitting.Training) -> dict[str, str]:
    """View -> kernel, of an estimator that has kernels."""
    kernel = getattr(estimator, "kernel", None)
    if kernel is None:
        return {}
    return {view: str(kernel[view] if isinstance(kernel, Mapping) else kernel) for view in training.views}


def _rows(record: Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(one row a view, others)."""
    rows, rest = [], []
    for name, width in record["views"].items():
        kernel = record["kernels"].get(name)
        words = [f"{width} features", *([f"kernel {kernel}"] if kernel else [])]
        words += [f"scale {record['scales'][name]}"] if name in record["scales"] else []
        rows.append((f"view {name}", ", ".join([*words, *(["gaps filled"] if name in record["imputed"] else [])])))
    if "n_components" in record:
        rest.append(("components", str(record["n_components"])))
    if "objective" in record:
        rest.append(("objective", f"{record['objective']:.6f} after {record['steps']} steps"))
    return rows, rest
