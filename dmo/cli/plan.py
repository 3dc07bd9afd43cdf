"""`dmo plan`: what a fit would take with every engine, before anything heavy starts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from dmo import stores
from dmo.cli import options
from dmo.cli.fit import Kernel, Views
from dmo.cli.options import Clusters, Features, Json, Scheduler, Split
from dmo.cli.session import grid, show
from dmo.cluster import connect
from dmo.engines.exact import Exact, choose_storage
from dmo.engines.lowrank import choose_engine
from dmo.lowrank.approximations import Meka, Nystrom
from dmo.workflows import apply
from dmo.workflows.plan import PRODUCTS, STEPS, Plan, Work, plan, plan_low_rank
from dmo.workflows.program import amount, quiet, session
from dmo.workflows.resources import markdown, resource_table

Method = Annotated[Literal["kgha", "ridge"], typer.Argument(help="What would be fitted.")]


def plan_command(
    method: Method,
    store: Features,
    kernel: Kernel = None,
    views: Views = None,
    split: Split = None,
    samples: Annotated[int | None, typer.Option(min=2, help="Plan for so many samples instead of the store's.")] = None,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the Nystrom line.")] = 1000,
    clusters: Clusters = 10,
    resources: Annotated[
        bool, typer.Option(help="A Markdown table of what any number of samples with these views takes.")
    ] = False,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Bytes, tasks and seconds of a fit with each engine, and which one would be chosen; fits nothing."""
    if resources:
        opened = stores.open_features(store)
        names, Y = apply.chosen_views(opened, views), opened.labels
        spectral = method == "kgha"
        lines = resource_table(
            len(names), 0 if Y is None else Y.shape[1], rank, PRODUCTS * (STEPS + 1 if spectral else 1)
        )
        print(markdown(lines), end="")
        return
    with session(json) as run, connect(scheduler) as backend:
        opened = stores.open_features(store)
        names = apply.chosen_views(opened, views)
        with quiet():
            specs, _ = options.kernels(opened, names, kernel or ())
        sources, Y, index = opened.select(apply.chosen_split(opened, split, "train"))
        used = {name: sources[name] for name in names}
        n, labels = samples or len(index), 0 if Y is None else Y.shape[1]
        spectral = method == "kgha"
        with quiet():
            storage = choose_storage(Exact(), n, len(names))
            width = sum(source.shape[1] * source.dtype.itemsize for source in used.values())
            work = Work(
                n, len(names), len(names) if spectral else 1, labels, STEPS + 1 if spectral else 1, storage, 2048
            )
            plans: dict[str, Plan] = {"exact": plan(work, used, specs, n * (width + 8 * labels * len(names)))}
            engines: dict[str, Any] = {
                "nystrom": Nystrom(rank=rank),
                "meka": Meka(clusters=clusters, rank=max(1, rank // clusters)),
            }
            for name, engine in engines.items():
                plans[name] = plan_low_rank(engine, n, labels, used, specs)
        chosen = choose_engine("auto", n, len(names))
        run.note(f"{method} on {n} samples, {len(names)} views, {labels} labels, {backend.where}")
    record = {"method": method, "store": store, "n_samples": n, "auto": "exact" if chosen == "exact" else "best"}
    record["plans"] = {name: found.to_dict() for name, found in plans.items()}
    if json:
        show(record, [], "", True)
        return
    cells = [
        [
            name,
            found.storage,
            amount(found.kernel_bytes + found.factor_bytes),
            amount(found.model_bytes),
            str(found.graph.tasks) if found.graph else "-",
            amount(found.graph.scheduler_bytes) if found.graph else "-",
            f"{found.seconds:.1f}",
        ]
        for name, found in plans.items()
    ]
    grid(
        f"{method} on {n} samples; --approximation auto takes {record['auto']}",
        ["engine", "where", "kernels, factors", "model", "tasks of a cluster", "its scheduler", "seconds"],
        cells,
    )
