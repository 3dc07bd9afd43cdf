"""`dmo fit morp | mlsi | embedding` and `dmo tune morp | mlsi`: projections of one view."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from dmo.cli import options
from dmo.cli.fit import Center, Digits, Engine, Kernel, Kernels, MaxIter, Output, Seed, Tile, Tolerance
from dmo.cli.fitting import Request, Setting, fit
from dmo.cli.options import Approximation, Clusters, DryRun, Features, Json, Overwrite, Rank, Scheduler, Split
from dmo.cli.tune import Folds, MetricName, Report, Sweep, Values, tune
from dmo.estimators import MLSI, MORP, TraceEmbedding

View = Annotated[str | None, typer.Option("--view", help="The view to project (default: the store's only one).")]
Supervision = Annotated[float, typer.Option(min=0, max=1, help="Share of the labels (beta).")]
Gamma = Annotated[float, typer.Option(min=0, help="Ridge of the functions, in units of the kernel.")]
Components = Annotated[int, typer.Option(min=1, help="Number of components.")]
Shape = Annotated[
    Literal["simplified", "regularised", "direct"], typer.Option(help="Form of the eigenproblem; see dmo.MORP.")
]


def _one(view: str | None) -> list[str] | None:
    return None if view is None else [view]


def morp(
    store: Features,
    model: Output,
    view: View = None,
    supervision: Supervision = 0.5,
    gamma: Gamma = 1e-3,
    components: Components = 20,
    form: Shape = "simplified",
    kernel: Kernel = None,
    split: Split = None,
    center: Center = True,
    tolerance: Tolerance = 1e-6,
    max_iter: MaxIter = 300,
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
    """Multi-output regularised projection of one view: a few features that know the labels."""
    request = Request(
        store,
        model,
        _one(view),
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
    )

    def make(setting: Setting) -> MORP:
        return MORP(
            setting.only_kernel("morp"),
            supervision=supervision,
            gamma=gamma,
            n_components=components,
            form=form,
            center=center,
            approximation=setting.engine,
            tolerance=tolerance,
            max_iter=max_iter,
            random_state=seed,
        )

    fit(request, make, seed)


def mlsi(
    store: Features,
    model: Output,
    view: View = None,
    supervision: Supervision = 0.5,
    gamma: Gamma = 0.0,
    components: Components = 20,
    form: Shape = "direct",
    split: Split = None,
    tolerance: Tolerance = 1e-6,
    max_iter: MaxIter = 300,
    approximation: Annotated[
        Literal["auto", "exact", "krylov", "nystrom"],
        typer.Option(help="auto: exact up to 4096 documents or words, else in a Krylov subspace of words."),
    ] = "auto",
    rank: Rank = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Multi-label informed latent semantic indexing of one view of words; sparse rows stay sparse."""
    request = _linear(store, model, view, split, approximation, rank, overwrite, dry_run, json)

    def make(setting: Setting) -> MLSI:
        setting.only_kernel("mlsi")
        return MLSI(
            supervision=supervision,
            gamma=gamma,
            n_components=components,
            form=form,
            approximation=setting.engine,
            tolerance=tolerance,
            max_iter=max_iter,
            random_state=seed,
        )

    fit(request, make, seed)


def embedding(
    store: Features,
    model: Output,
    method: Annotated[str, typer.Option(help="Name of the method; `dmo methods` lists them.")],
    view: View = None,
    components: Components = 2,
    kernel: Annotated[str, typer.Option(help="linear: of the features themselves.")] = "linear",
    ridge: Annotated[float | None, typer.Option(min=0, help="Ridge, for methods that have one.")] = None,
    supervision: Annotated[float | None, typer.Option(min=0, max=1, help="Share of the labels (SLVM, MORP).")] = None,
    balance: Annotated[float | None, typer.Option(min=0, max=1, help="Constraint of MDDM.")] = None,
    split: Split = None,
    rank: Rank = None,
    approximation: Annotated[
        Literal["auto", "exact", "krylov", "nystrom"], typer.Option(help="Of the kernel (krylov: linear only).")
    ] = "auto",
    seed: Seed = 0,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Any projection of the catalogue, by name: PCA, CCA, PLS, MDDM, hypergraphs, LFDA ... of one view."""
    if method in [known["name"] for known in TraceEmbedding.methods() if not known["out_of_sample"]]:
        raise ValueError(
            f"--method {method}: has coordinates for the samples that it was fitted on only, so there is no model to save; "
            "take a method that `dmo methods` lists with new rows, or TraceEmbedding(...).fit_transform in Python"
        )
    request = _linear(store, model, view, split, approximation, rank, overwrite, dry_run, json, kernel)

    def make(setting: Setting) -> TraceEmbedding:
        return TraceEmbedding(
            method,
            n_components=components,
            kernel=setting.only_kernel("embedding"),
            ridge=ridge,
            supervision=supervision,
            balance=balance,
            approximation=setting.engine,
            random_state=seed,
        )

    fit(request, make, seed)


def _linear(
    store: str,
    model: str,
    view: str | None,
    split: str | None,
    approximation: str,
    rank: int | None,
    overwrite: bool,
    dry_run: bool,
    json: bool,
    kernel: str = "linear",
) -> Request:
    """A request without the options of tiled kernels and clusters."""
    return Request(
        store,
        model,
        _one(view),
        split,
        [kernel],
        "auto",
        None,
        2048,
        "auto",
        approximation,
        rank,
        10,
        None,
        overwrite,
        dry_run,
        json,
        open_choice=True,
    )


def tune_morp(
    store: Features,
    model: Output,
    view: View = None,
    supervision: Values = "0.1,0.3,0.5,0.7,0.9",
    gamma: Values = "0.01,0.1,1,10",
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
    """Multi-output regularised projection over supervision, gamma, components and form."""
    tried: dict[str, list[Any]] = {
        "supervision": options.values("--supervision", supervision, float),
        "gamma": options.values("--gamma", gamma, float),
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
    supervision: Values = "0.1,0.3,0.5,0.7,0.9",
    gamma: Values = "0.001,0.01,0.1,1",
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
    """Multi-label informed latent semantic indexing over supervision, gamma, components and form."""
    tried: dict[str, list[Any]] = {
        "supervision": options.values("--supervision", supervision, float),
        "gamma": options.values("--gamma", gamma, float),
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
