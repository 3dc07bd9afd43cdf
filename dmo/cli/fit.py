"""`dmo fit`: a feature store in, a model out; one command per estimator, with its parameters as options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Annotated, Any

import typer

import dmo
from dmo import stores
from dmo.cli.estimator_options import engine, engine_options, options_of
from dmo.cli.options import DryRun, Features, Json, Overwrite, Scheduler, Split
from dmo.cli.session import cost_rows, in_a_line, show
from dmo.cluster import connect
from dmo.workflows.apply import free
from dmo.workflows.fitting import Training, fit, learned, open_training, prepare
from dmo.workflows.plan import plan_fit
from dmo.workflows.program import quiet, session

Output = Annotated[str, typer.Argument(help="Model store to write.")]
Views = Annotated[list[str] | None, typer.Option("--views", help="Views to use, comma-separated (default: all).")]
View = Annotated[str | None, typer.Option("--view", help="The view to use (default: the store's only one).")]


def fit_command(name: str) -> Callable[..., None]:
    """The command that fits the estimator of this name."""
    kind: type = getattr(dmo, name)

    def command(
        store: Features,
        model: Output,
        split: Split = None,
        scheduler: Scheduler = None,
        overwrite: Overwrite = False,
        dry_run: DryRun = False,
        json: Json = False,
        **given: Any,
    ) -> None:
        free(model, overwrite or dry_run, "model")
        reserved = nullcontext() if dry_run else stores.reserve_model(model, overwrite)  # from before the work
        with session(json) as run, reserved, ExitStack() as place:
            training = training_of(kind, store, split, given)
            backend = place.enter_context(connect(scheduler))  # jobs are queued for what is there to be read
            estimator, chosen = prepare(estimator_of(kind, given, training), training)
            run.note(chosen)
            with quiet():
                plan = plan_fit(estimator, training.views, training.n_labels)
            record: dict[str, Any] = {"store": store, "split": training.split, "n_samples": training.n}
            record |= {"estimator": name, "kernels": _kernels(estimator, training)}
            rows = [("samples", training.samples), (training.targets, str(training.n_labels))]
            if dry_run:
                record["plan"] = None if plan is None else plan.to_dict()
                rows += plan.rows() if plan is not None else [("memory", "the labels decide it")]
                show(record, rows, f"plan of {name} on {store}; nothing was written", json)
                return
            for what, value in [("runs", backend.where), *(plan.rows() if plan is not None else [])]:
                run.detail(f"  {what}: {value}")
            fit(run, estimator, training, model, overwrite, plan)
            record |= {"model": model, **learned(estimator), **run.costs()}
            views, rest = _rows(record)
            table = [*rows, *views, *rest, *cost_rows(record, run.verbose), ("model", f"{record['model']}")]
            parts = [f"{name} of {training.n_labels} {training.targets}" if training.n_labels else name]
            parts += [f"{view} ({value})" for view, value in views[:3]] + [f"{len(views)} views"][: len(views) > 3]
            show(record, table, f"{name} on {store}", json, in_a_line(record, run.verbose, model, *parts))

    return with_options(command, kind, inspect.getdoc(kind), several=False)


def with_options(command: Callable[..., None], kind: type, text: str | None, several: bool) -> Callable[..., None]:
    """`command` with an option for its **given: for every parameter of the estimator, and of its engines."""
    own = [option.parameter(several) for option in options_of(kind).values()]
    engines = [option.parameter(False, "Approximation") for option in engine_options(kind).values()]
    return with_parameters(command, kind, [*own, *engines], text)


def with_parameters(
    command: Callable[..., None], kind: type, added: Sequence[inspect.Parameter], text: str | None
) -> Callable[..., None]:
    """`command` with these parameters and the choice of views for its **given, and the first line of `text` as help."""
    one = getattr(kind, "one_view", False)
    views = inspect.Parameter(
        "view" if one else "views", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=View if one else Views
    )
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
    arguments = [p for p in own if p.default is inspect.Parameter.empty]
    options = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p not in arguments]
    every = [*arguments, *added, views, *options]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in every}
    command.__doc__ = (text or "").partition("\n")[0]
    return command


def training_of(kind: type, store: str, split: str | None, given: Mapping[str, Any]) -> Training:
    """The samples that the options ask for."""
    views = [given["view"]] if given.get("view") is not None else given.get("views")
    return open_training(store, views, split, kind.__name__ if getattr(kind, "one_view", False) else None)


def estimator_of(kind: type, given: Mapping[str, Any], training: Training) -> Any:
    """The estimator that the options describe; what they leave out is as in Python, but a kernel is chosen by view."""
    options, views = options_of(kind), list(training.views)
    chosen: dict[str, Any] = {}
    for name, option in options.items():
        value = given[name]
        if name == "approximation":
            chosen[option.place] = engine(
                kind, value, {key: given[key] for key in engine_options(kind) if given[key] is not None}
            )
        elif isinstance(value, bool):
            chosen[option.place] = value
        elif value is not None or (option.default == "auto" and option.place == name):
            entries = [] if value is None else [value] if isinstance(value, str) else value
            chosen[option.place] = option.value(entries, views)
    return kind().set_params(**chosen)


def _kernels(estimator: Any, training: Training) -> dict[str, str]:
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
