"""What every `dmo fit` command does: open the store, plan, fit, save, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo import stores
from dmo.blocks import Rows
from dmo.cli import options
from dmo.cli.options import free, origin
from dmo.cli.pictures import carry_recipe, store_extractor
from dmo.cli.plan import STEPS, Plan, Work, plan, plan_linear, plan_low_rank
from dmo.cli.session import Session, cost_rows, quiet, session, show
from dmo.cluster import connect
from dmo.estimators import KGHA, Exact, MultiSetCCA
from dmo.estimators.exact import Precision, Storage, choose_storage
from dmo.estimators.lowrank_engine import choose_engine
from dmo.estimators.projecting import Projection


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
        raise ValueError(f"{who} projects one view, got {len(kernels)}; pass --view with one of {', '.join(kernels)}")
    return next(iter(kernels.values()))


def fit(request: Request, make: Callable[[Setting], Any], seed: int) -> None:
    """Open, plan, fit, save, report; on a dry run only the first two."""
    free(request.model, request.overwrite or request.dry_run, "model")
    with session(request.json) as run, connect(request.scheduler) as place:
        store = stores.open_features(request.store)
        store_extractor(store)  # a damaged recipe is refused before the work, not after it
        setting = _setting(run, request, store)
        estimator = make(setting)
        with quiet():
            expected = _plan(setting, estimator)
        run.note(f"fitting {_who(estimator)} {place.where}")
        for name, value in expected.rows():
            run.note(f"  {name}: {value}")
        if not request.dry_run:
            estimator.fit(setting.sources, setting.Y)
            if store.label_names is not None and setting.Y is not None:
                estimator.label_names_ = list(store.label_names)
            costs = {"plan": expected.to_dict(), **run.costs()}
            save(estimator, request.model, store, setting.split, seed, costs)
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


def _setting(run: Session, request: Request, store: stores.FeatureStore) -> Setting:
    names = options.chosen_views(store, request.views)
    kernel, notes = options.kernels(store, names, request.kernel or ())
    for note in notes:
        run.note(note)
    ridge = options.numbers("--ridge", request.ridge or (), names, request.default_ridge)
    split = options.chosen_split(store, request.split, "train")
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
    estimator: Any, path: str, store: stores.FeatureStore, split: str | None, seed: int, costs: Any = None
) -> None:
    """Save a fitted estimator with where it comes from: the store, its own provenance, and the split.

    Where the store was made from pictures, the model keeps their recipe and vocabularies; `costs`: what was planned and
    what it took, JSON.
    """
    source = origin([store.url], store, split, seed)
    parameters = dict(source.parameters) | ({} if costs is None else {"costs": costs})
    estimator.save(path, stores.Provenance(source.parents, parameters, seed))
    carry_recipe(store, path)


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
