"""`dmo fit`: a feature store in, a model out."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dmo.cli import options
from dmo.cli.fitting import Request, Setting, fit
from dmo.cli.options import Approximation, Clusters, DryRun, Features, Json, Overwrite, Rank, Scheduler, Split
from dmo.estimators import KGHA, MultiSetCCA, MultiViewRidge
from dmo.estimators.exact import Precision, Storage

fit_app = typer.Typer(no_args_is_help=True, help="Fit a model to the samples of a feature store.")

Solver = Literal["krylov", "als"]
Combine = Literal["predictions", "kernels", "product"]

Output = Annotated[str, typer.Argument(help="Model store to write.")]
Views = Annotated[list[str] | None, typer.Option("--views", help="Views to use, comma-separated (default: all).")]
Kernel = Annotated[
    list[str] | None,
    typer.Option(
        help="Kernel of all views, or VIEW=KERNEL; repeat. auto: hellinger-rbf for histograms, else rbf. [default: auto]"
    ),
]
Ridge = Annotated[list[str] | None, typer.Option(help="Ridge of all views, or VIEW=RIDGE; repeat.")]
Center = Annotated[bool, typer.Option(help="Centre kernels and labels.")]
Intercept = Annotated[bool, typer.Option("--intercept", help="Add the label means to the scores.")]
Prior = Annotated[float, typer.Option(min=0, max=1, help="Divide scores by label frequency to this power.")]
Standardise = Annotated[
    float,
    typer.Option(min=0, max=1, help="Standardise each label's scores by its leave-one-out scores, to this power."),
]
Engine = Annotated[Storage, typer.Option(help="Where the n x n kernels live.")]
Kernels = Annotated[str | None, typer.Option(help="Folder for kernel stores (--storage stored).")]
Tile = Annotated[int, typer.Option(min=1, help="Rows of a kernel tile.")]
Digits = Annotated[Precision, typer.Option(help="Precision of kernel entries (auto: float32 where the ridge allows).")]
Tolerance = Annotated[float, typer.Option(help="Residual (krylov) or relative change (als) at which to stop.")]
MaxIter = Annotated[int, typer.Option(min=1, help="Block steps or iterations; a warning says when they ran out.")]
Seed = Annotated[int, typer.Option(help="Random state.")]


@fit_app.command()
def kgha(
    store: Features,
    model: Output,
    balance: Annotated[float, typer.Option(help="Weight of every view against the labels' 1.")] = 1e-2,
    ridge: Ridge = None,
    components: Annotated[str, typer.Option(help="Number, or share of the labels (1.0: as many as labels).")] = "0.8",
    kernel: Kernel = None,
    views: Views = None,
    split: Split = None,
    center: Center = True,
    intercept: Intercept = False,
    prior_power: Prior = 0.0,
    standardise: Standardise = 0.0,
    solver: Annotated[Solver, typer.Option(help="Block Krylov, or the paper's alternating least squares.")] = "krylov",
    tolerance: Tolerance = 1e-6,
    max_iter: MaxIter = 200,
    approximation: Approximation = "auto",
    rank: Rank = None,
    clusters: Clusters = 10,
    storage: Engine = "auto",
    kernels: Kernels = None,
    tile: Tile = 2048,
    precision: Digits = "auto",
    scheduler: Scheduler = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Kernel generalised homogeneity analysis: one space for all views and labels. Ridge 0.1 by default."""
    request = Request(
        store,
        model,
        views,
        split,
        kernel,
        storage,
        kernels,
        tile,
        precision,
        approximation,
        rank,
        clusters,
        scheduler,
        overwrite,
        dry_run,
        json,
        ridge,
    )
    n_components = options.components(components)

    def make(setting: Setting) -> KGHA:
        return KGHA(
            setting.kernel,
            balance=balance,
            ridge=setting.ridge,
            n_components=n_components,
            center=center,
            intercept=intercept,
            prior_power=prior_power,
            standardise=standardise,
            solver=solver,
            tolerance=tolerance,
            max_iter=max_iter,
            approximation=setting.engine,
            random_state=seed,
        )

    fit(request, make, seed)


@fit_app.command()
def ridge(
    store: Features,
    model: Output,
    ridge: Ridge = None,
    combine: Annotated[
        Combine, typer.Option(help="Average the views' predictions or kernels, or multiply kernels.")
    ] = "predictions",
    weight: Annotated[list[str] | None, typer.Option(help="VIEW=WEIGHT; repeat (default: equal).")] = None,
    kernel: Kernel = None,
    views: Views = None,
    split: Split = None,
    center: Center = True,
    intercept: Intercept = False,
    prior_power: Prior = 0.0,
    standardise: Standardise = 0.0,
    approximation: Approximation = "auto",
    rank: Rank = None,
    clusters: Clusters = 10,
    storage: Engine = "auto",
    kernels: Kernels = None,
    tile: Tile = 2048,
    precision: Digits = "auto",
    scheduler: Scheduler = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Kernel ridge regression of the labels on many views (r-KMLR); --kernel linear is r-MLR. Ridge 0.01 by default."""
    request = Request(
        store,
        model,
        views,
        split,
        kernel,
        storage,
        kernels,
        tile,
        precision,
        approximation,
        rank,
        clusters,
        scheduler,
        overwrite,
        dry_run,
        json,
        ridge,
        1e-2,
    )

    def make(setting: Setting) -> MultiViewRidge:
        return MultiViewRidge(
            setting.kernel,
            ridge=setting.ridge,
            combine=combine,
            weights=options.numbers("--weight", weight, setting.names, 1.0) if weight else None,
            center=center,
            intercept=intercept,
            prior_power=prior_power,
            standardise=standardise,
            approximation=setting.engine,
            random_state=seed,
        )

    fit(request, make, seed)


@fit_app.command()
def multisetcca(
    store: Features,
    model: Output,
    ridge: Ridge = None,
    components: Annotated[int, typer.Option(min=1, help="Number of components.")] = 10,
    kernel: Kernel = None,
    views: Views = None,
    split: Split = None,
    center: Center = True,
    solver: Annotated[Solver, typer.Option(help="Block Krylov, or alternating least squares.")] = "krylov",
    tolerance: Tolerance = 1e-6,
    max_iter: MaxIter = 200,
    approximation: Approximation = "auto",
    rank: Rank = None,
    clusters: Clusters = 10,
    storage: Engine = "auto",
    kernels: Kernels = None,
    tile: Tile = 2048,
    precision: Digits = "auto",
    scheduler: Scheduler = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Multiple-set kernel CCA: the space on which all views agree best; no labels needed. Ridge 0.1 by default."""
    request = Request(
        store,
        model,
        views,
        split,
        kernel,
        storage,
        kernels,
        tile,
        precision,
        approximation,
        rank,
        clusters,
        scheduler,
        overwrite,
        dry_run,
        json,
        ridge,
    )

    def make(setting: Setting) -> MultiSetCCA:
        return MultiSetCCA(
            setting.kernel,
            ridge=setting.ridge,
            n_components=components,
            center=center,
            solver=solver,
            tolerance=tolerance,
            max_iter=max_iter,
            approximation=setting.engine,
            random_state=seed,
        )

    fit(request, make, seed)
