"""`dmo plan`: what a fit would take with every engine, before anything heavy starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import typer

import dmo
from dmo import workflows
from dmo.cli.estimator_options import options_of, surfaces
from dmo.cli.fit import training_of, with_parameters
from dmo.cli.options import Features, Scheduler, Split
from dmo.cli.session import grid, say, show
from dmo.workflows.program import quiet, session


def plan_command(name: str) -> Callable[..., None]:
    """The command that compares the engines of the estimator of this name."""
    kernels = options_of(name).get("kernel")

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
        **given: Any,
    ) -> None:
        opened = dmo.stores.open_features(store)
        with session() as run, ExitStack() as place:
            training = training_of(name, opened, split, given)
            backend = place.enter_context(
                dmo.cluster.connect(scheduler)
            )  # jobs are queued for what is there to be read
            chosen = {}
            if kernels is not None:
                chosen["kernel"] = kernels.value(given["kernel"] or [], list(training.views))
            estimator, _ = workflows.fitting.prepare(getattr(dmo, name)(**chosen), training)
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
        title = f"{name} on {n} samples" + (f"; --approximation auto takes {auto}" if len(plans) > 1 else "")
        cells = [found.cells() for found in plans.values()]
        show(record)
        grid(title, list(cells[0]), [list(found.values()) for found in cells])

    added = [] if kernels is None else [kernels.parameter(several=False)]
    return with_parameters(command, name, added, surfaces()[name].text)
