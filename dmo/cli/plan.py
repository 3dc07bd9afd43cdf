"""`dmo plan`: what a fit would take with every engine, before anything heavy starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import typer

import dmo
from dmo.cli.estimator_options import options_of
from dmo.cli.fit import training_of, with_parameters
from dmo.cli.options import Features, Json, Scheduler, Split
from dmo.cli.session import grid, show
from dmo.cluster import connect
from dmo.workflows.fitting import prepare
from dmo.workflows.plan import compare_engines
from dmo.workflows.program import quiet, session
from dmo.workflows.resources import markdown, resource_table


def plan_command(name: str) -> Callable[..., None]:
    """The command that compares the engines of the estimator of this name."""
    kind: type = getattr(dmo, name)
    kernels = options_of(kind).get("kernel")

    def command(
        store: Features,
        split: Split = None,
        samples: Annotated[
            int | None, typer.Option(min=2, help="Plan for so many samples instead of the store's.")
        ] = None,
        rank: Annotated[int, typer.Option(min=1, help="Rank of the Nystrom line.")] = 1000,
        clusters: Annotated[int, typer.Option(min=1, help="Clusters of the MEKA line.")] = 10,
        resources: Annotated[
            bool, typer.Option("--resources", help="A table in Markdown of what any number of such samples takes.")
        ] = False,
        scheduler: Scheduler = None,
        json: Json = False,
        **given: Any,
    ) -> None:
        with session(json) as run, ExitStack() as place:
            training = training_of(kind, store, split, given)
            backend = place.enter_context(connect(scheduler))  # jobs are queued for what is there to be read
            chosen = {}
            if kernels is not None:
                chosen["kernel"] = kernels.value(given["kernel"] or [], list(training.views))
            estimator, _ = prepare(kind(**chosen), training)
            if resources:
                print(markdown(resource_table(len(training.views), training.n_labels, rank)), end="")
                return
            n = samples or training.n
            with quiet():
                plans, auto = compare_engines(estimator, training.views, training.n_labels, n, rank, clusters)
            run.detail(f"{name} on {training.samples}, {backend.where}")
        record = {"method": name, "store": store, "n_samples": n, "auto": auto}
        record["plans"] = {engine: found.to_dict() for engine, found in plans.items()}
        if json:
            show(record, [], "", True)
            return
        title = f"{name} on {n} samples" + (f"; --approximation auto takes {auto}" if len(plans) > 1 else "")
        cells = [found.cells() for found in plans.values()]
        grid(title, list(cells[0]), [list(found.values()) for found in cells])

    added = [] if kernels is None else [kernels.parameter(several=False)]
    return with_parameters(command, kind, added, inspect.getdoc(kind))
