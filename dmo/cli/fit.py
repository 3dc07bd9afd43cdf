"""`dmo fit`: a feature store in, a model out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import typer

from dmo import stores
from dmo.blocks import Rows
from dmo.cli import options
from dmo.cli.options import Approximation, Clusters, DryRun, Features, Json, Overwrite, Rank, Scheduler, Split
from dmo.cli.session import cost_rows, show
from dmo.cluster import connect
from dmo.engines.exact import Exact, Precision, Storage, choose_storage
from dmo.engines.lowrank import choose_engine
from dmo.errors import UserError
from dmo.estimators import KGHA, MLSI, MORP, MultiSetCCA, MultiViewRidge, TraceEmbedding
from dmo.estimators.projection import Projection
from dmo.workflows import apply
from dmo.workflows.apply import free, origin
from dmo.workflows.images import attached_recipe, store_extractor
from dmo.workflows.plan import STEPS, Plan, Work, plan, plan_linear, plan_low_rank
from dmo.workflows.program import Session, quiet, session

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
Center = Annotated[bool, typer.Option(help="Center kernels and labels.")]
Intercept = Annotated[bool, typer.Option("--intercept", help="Add the label means to the scores.")]
Prior = Annotated[float, typer.Option(min=0, max=1, help="Divide scores by label frequency to this power.")]
Standardize = Annotated[
    float,
    typer.Option(min=0, max=1, help="Standardize each label's scores by its leave-one-out scores, to this power."),
]
Engine = Annotated[Storage, typer.Option(help="Where the n x n kernels live.")]
Kernels = Annotated[str | None, typer.Option(help="Folder for kernel stores (--storage stored).")]
Tile = Annotated[int, typer.Option(min=1, help="Rows of a kernel tile.")]
Digits = Annotated[Precision, typer.Option(help="Precision of kernel entries (auto: float32 where the ridge allows).")]
Tol = Annotated[float, typer.Option(help="Residual (krylov) or relative change (als) at which to stop.")]
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
    standardize: Standardize = 0.0,
    solver: Annotated[Solver, typer.Option(help="Block Krylov, or the paper's alternating least squares.")] = "krylov",
    tol: Tol = 1e-6,
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
    """Kernel generalized homogeneity analysis: one space for all views and labels. Ridge 0.1 by default."""
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
            standardize=standardize,
            solver=solver,
            tol=tol,
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
    standardize: Standardize = 0.0,
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
            standardize=standardize,
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
    tol: Tol = 1e-6,
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
            tol=tol,
            max_iter=max_iter,
            approximation=setting.engine,
            random_state=seed,
        )

    fit(request, make, seed)


@dataclass(frozen=True)
class Request:
    """What the fit commands have in common; see the help of the options."""

    store: str
    model: str
    views: list[str] | None
    split: str | None
    kernel: list[str] | None
    storage: Storage
    kernels: str | None
    tile: int
    precision: Precision
    approximation: str
    rank: int | None
    clusters: int
    scheduler: str | None
    overwrite: bool
    dry_run: bool
    json: bool
    ridge: list[str] | None = None
    default_ridge: float = 1e-1
    open_choice: bool = False
    """Leave "auto" to the estimator."""

    def engine(self, n: int, kernels: int) -> Any:
        """Exact, Nystrom, Meka or BestLowRank: as asked, else what fits (with its reason in the log)."""
        if self.open_choice:
            return options.approximation(self.approximation, self.rank, self.clusters)
        exact = Exact(self.storage, self.precision, self.tile, self.kernels)
        asked = (self.storage, self.precision, self.kernels) != ("auto", "auto", None)
        name = "exact" if self.approximation == "auto" and asked else self.approximation
        chosen = choose_engine(options.approximation(name, self.rank, self.clusters, exact), n, kernels)
        return exact if chosen == "exact" else chosen


@dataclass(frozen=True)
class Setting:
    """A request with its store opened: kernels and ridges by view, the engine, the training samples."""

    names: list[str]
    kernel: dict[str, str]
    ridge: Any
    engine: Any
    sources: Mapping[str, Rows]
    Y: np.ndarray | None
    split: str | None

    def only_kernel(self, who: str) -> str:
        """The kernel of the one view; raises ValueError where there are more."""
        return only(who, self.kernel)


def only(who: str, kernels: Mapping[str, str]) -> str:
    """The one kernel of the one view; raises ValueError where there are more."""
    if len(kernels) != 1:
        raise UserError(f"{who} projects one view, got {len(kernels)}; pass --view with one of {', '.join(kernels)}")
    return next(iter(kernels.values()))


def fit(request: Request, make: Callable[[Setting], Any], seed: int) -> None:
    """Open, plan, fit, save, report; on a dry run only the first two."""
    free(request.model, request.overwrite or request.dry_run, "model")
    with session(request.json) as run, _reserved(request), connect(request.scheduler) as backend:
        store = stores.open_features(request.store)
        store_extractor(store)  # a damaged recipe is refused before the work, not after it
        setting = _setting(run, request, store)
        estimator = make(setting)
        with quiet():
            expected = _plan(setting, estimator)
        run.note(f"fitting {_who(estimator)} {backend.where}")
        for name, value in expected.rows():
            run.note(f"  {name}: {value}")
        if not request.dry_run:
            estimator.fit(setting.sources, setting.Y)
            if store.label_names is not None and setting.Y is not None:
                estimator.label_names_ = list(store.label_names)
            costs = {"plan": expected.to_dict(), **run.costs()}
            save(estimator, request.model, store, setting.split, seed, request.overwrite, costs)
    title = f"{_who(estimator)} on {request.store}"
    record: dict[str, Any] = {"store": request.store, "split": setting.split, "n_samples": _n(setting)}
    record |= {"estimator": type(estimator).__name__, "kernels": setting.kernel}
    if request.dry_run:
        record["plan"] = expected.to_dict()
        show(
            record,
            [("samples", str(_n(setting))), *expected.rows()],
            f"plan of {title}; nothing was written",
            request.json,
        )
        return
    record |= {"model": request.model, **_learnt(estimator), **run.costs()}
    show(record, _rows(record, setting), title, request.json)


def _reserved(request: Request) -> AbstractContextManager[None]:
    """The path of the model, for this process alone from before the work."""
    return nullcontext() if request.dry_run else stores.reserve_model(request.model, request.overwrite)


def _setting(run: Session, request: Request, store: stores.FeatureStore) -> Setting:
    names = apply.chosen_views(store, request.views)
    kernel, notes = options.kernels(store, names, request.kernel or ())
    for note in notes:
        run.note(note)
    ridge = options.numbers("--ridge", request.ridge or (), names, request.default_ridge)
    split = apply.chosen_split(store, request.split, "train")
    sources, Y, index = store.select(split)
    run.note(f"training on {f'the {split} samples' if split else 'all samples'} ({len(index)} of {store.n_samples})")
    engine = request.engine(len(index), len(names))
    return Setting(names, kernel, ridge, engine, {name: sources[name] for name in names}, Y, split)


def _n(setting: Setting) -> int:
    return int(next(iter(setting.sources.values())).shape[0])


def _who(estimator: Any) -> str:
    return type(estimator).__name__


def _plan(setting: Setting, estimator: Any) -> Plan:
    n, V = _n(setting), len(setting.names)
    if getattr(estimator, "kernel", "linear") == "linear" and isinstance(estimator, Projection):
        return plan_linear(n, next(iter(setting.sources.values())), estimator.n_components)
    engine = Exact() if isinstance(setting.engine, str) else setting.engine
    if not isinstance(engine, Exact):
        labels = 0 if setting.Y is None else setting.Y.shape[1]
        return plan_low_rank(engine, n, labels, setting.sources, setting.kernel)
    labels = 0 if setting.Y is None else setting.Y.shape[1]
    combined = getattr(estimator, "combine", "predictions") != "predictions"
    spectral = isinstance(estimator, (KGHA, MultiSetCCA))
    count = estimator.n_components if spectral else labels
    columns = max(labels, round(count * labels) if isinstance(count, float) else count)
    work = Work(
        n=n,
        kernels=1 if combined else V,
        factors_held=V if spectral else 1,
        columns=columns,
        solves=STEPS + 1 if spectral else 1,
        storage=choose_storage(engine, n, 1 if combined else V),
        block=engine.block,
    )
    width = sum(source.shape[1] * np.dtype(source.dtype).itemsize for source in setting.sources.values())
    model_bytes = n * width + 8 * n * columns * work.kernels
    return plan(work, setting.sources, setting.kernel, model_bytes)


def save(
    estimator: Any,
    path: str,
    store: stores.FeatureStore,
    split: str | None,
    seed: int,
    overwrite: bool,
    costs: Any = None,
) -> None:
    """Save a fitted estimator with where it comes from: the store, its own provenance, and the split.

    Where the store was made from images, the model keeps their recipe and vocabularies; `costs`: what was planned and
    what it took, JSON.
    """
    source = origin([store.url], store, split, seed)
    parameters = dict(source.parameters) | ({} if costs is None else {"costs": costs})
    estimator.save(path, stores.Provenance(source.parents, parameters, seed), overwrite, attached_recipe(store))


def _learnt(estimator: Any) -> dict[str, Any]:
    """The figures of a fitted estimator for the report."""
    found: dict[str, Any] = {"views": dict(estimator.view_widths_)}
    if hasattr(estimator, "classes_"):
        found["n_labels"] = len(estimator.classes_)
    if hasattr(estimator, "n_components_"):
        found["n_components"] = int(estimator.n_components_)
        found["steps"] = int(estimator.n_iter_)
    if hasattr(estimator, "objective_"):
        found["objective"] = float(estimator.objective_)
    return found


def _rows(record: Mapping[str, Any], setting: Setting) -> list[tuple[str, str]]:
    rows = [("samples", str(record["n_samples"]))]
    rows += [
        (f"view {name}", f"{width} features, kernel {setting.kernel[name]}") for name, width in record["views"].items()
    ]
    rows += [
        (title, str(record[key]))
        for key, title in (("n_labels", "labels"), ("n_components", "components"))
        if key in record
    ]
    if "objective" in record:
        rows.append(("objective", f"{record['objective']:.6f} after {record['steps']} block steps"))
    return [*rows, *cost_rows(record), ("model", str(record["model"]))]


View = Annotated[str | None, typer.Option("--view", help="The view to project (default: the store's only one).")]
Mixing = Annotated[float, typer.Option(min=0, max=1, help="Share of the labels (beta).")]
ProjectionRidge = Annotated[float, typer.Option(min=0, help="Ridge of the functions, in units of the kernel.")]
Components = Annotated[int, typer.Option(min=1, help="Number of components.")]
Shape = Annotated[
    Literal["simplified", "regularized", "direct"], typer.Option(help="Form of the eigenproblem; see dmo.MORP.")
]


def _one(view: str | None) -> list[str] | None:
    return None if view is None else [view]


def morp(
    store: Features,
    model: Output,
    view: View = None,
    mixing: Mixing = 0.5,
    ridge: ProjectionRidge = 1e-3,
    components: Components = 20,
    form: Shape = "simplified",
    kernel: Kernel = None,
    split: Split = None,
    center: Center = True,
    tol: Tol = 1e-6,
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
    """Multi-output regularized projection of one view: a few features that know the labels."""
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
            mixing=mixing,
            ridge=ridge,
            n_components=components,
            form=form,
            center=center,
            approximation=setting.engine,
            tol=tol,
            max_iter=max_iter,
            random_state=seed,
        )

    fit(request, make, seed)


def mlsi(
    store: Features,
    model: Output,
    view: View = None,
    mixing: Mixing = 0.5,
    ridge: ProjectionRidge = 0.0,
    components: Components = 20,
    form: Shape = "direct",
    split: Split = None,
    tol: Tol = 1e-6,
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
            mixing=mixing,
            ridge=ridge,
            n_components=components,
            form=form,
            approximation=setting.engine,
            tol=tol,
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
    mixing: Annotated[float | None, typer.Option(min=0, max=1, help="Share of the labels (SLVM, MORP).")] = None,
    shrinkage: Annotated[float | None, typer.Option(min=0, max=1, help="Of MDDM's constraint towards I.")] = None,
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
    """Any projection of the catalog, by name: PCA, CCA, PLS, MDDM, hypergraphs, LFDA ... of one view."""
    if method in [known["name"] for known in TraceEmbedding.methods() if not known["out_of_sample"]]:
        raise UserError(
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
            mixing=mixing,
            shrinkage=shrinkage,
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


for projection in (morp, mlsi, embedding):
    fit_app.command()(projection)
