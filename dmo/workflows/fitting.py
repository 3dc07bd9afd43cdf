"""From the samples of a feature store to a saved model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo import stores
from dmo.blocks import Rows
from dmo.engines.lowrank import reasoned_engine
from dmo.errors import UserError
from dmo.estimators.annotator import targets
from dmo.workflows.apply import chosen_split, chosen_views, origin
from dmo.workflows.images import attached_recipe, store_extractor
from dmo.workflows.plan import Plan
from dmo.workflows.program import Session


@dataclass(frozen=True)
class Training:
    """Samples of a feature store: views of n rows, labels (n x L) or None, the split that they are (None: all)."""

    store: stores.FeatureStore
    views: Mapping[str, Rows]
    Y: np.ndarray | None
    split: str | None

    @property
    def n(self) -> int:
        return int(next(iter(self.views.values())).shape[0])

    @property
    def n_labels(self) -> int:
        return 0 if self.Y is None else int(self.Y.shape[1])

    @property
    def samples(self) -> str:
        """In words: how many, of which split."""
        return f"{self.n} samples" + (f" of split {self.split}" if self.split else "")


def open_training(
    path: str, views: Sequence[str] | None = None, split: str | None = None, one_view: str | None = None
) -> Training:
    """The samples of a feature store to learn from.

    Arguments: `views`: their names (default: all); `split`: "all", or one of the store's (default: "train" where it has
    that, else all); `one_view`: the name of an estimator that takes a single one. Raises UserError and StoreError for
    what the store has not, and for several views where one is asked for.
    """
    store = stores.open_features(path)
    store_extractor(store)  # a damaged recipe is refused before the work, not after it
    names = chosen_views(store, views)
    if one_view is not None and len(names) != 1:
        raise UserError(f"{one_view} takes one view, got {len(names)}; pass --view with one of {', '.join(names)}")
    chosen = chosen_split(store, split, "train")
    sources, Y, _ = store.select(chosen)
    return Training(store, {name: sources[name] for name in names}, Y, chosen)


def auto_kernel(store: stores.FeatureStore, view: str) -> str:
    """The kernel of a view where none is named: square roots make histograms Euclidean."""
    return "hellinger-rbf" if store.view_info(view).histogram else "rbf"


def with_auto_kernels(spec: Any, training: Training) -> Any:
    """A kernel, or kernels by view, with "auto" replaced; by view where "auto" differs between them."""
    if isinstance(spec, Mapping):
        return {view: auto_kernel(training.store, view) if one == "auto" else one for view, one in spec.items()}
    return with_auto_kernels(dict.fromkeys(training.views, "auto"), training) if spec == "auto" else spec


def prepare(estimator: Any, training: Training) -> tuple[Any, str]:
    """`estimator` with its kernels and engine decided, and in a line what was chosen and why."""
    known = estimator.get_params(deep=False)
    said = [f"{type(estimator).__name__} on {training.samples}"]
    if "kernel" in known:
        kernels = with_auto_kernels(estimator.kernel, training)
        if isinstance(kernels, Mapping) and estimator.one_view:
            (kernels,) = kernels.values()
        if kernels != estimator.kernel:
            by_view = kernels if isinstance(kernels, Mapping) else dict.fromkeys(training.views, kernels)
            said.append(f"kernels {_by_value(by_view, training)}")
        estimator.set_params(kernel=kernels)
    if "approximation" in known and not estimator.one_view:
        engine, reason = reasoned_engine(estimator.approximation, training.n, len(training.views))
        said += [f"engine {reason}"] if reason else []
        estimator.set_params(approximation=engine)
    return estimator, "; ".join(said)


def _by_value(kernels: Mapping[str, Any], training: Training) -> str:
    """Kernels with their views: "rbf (pixels), hellinger-rbf (8 views, histograms)"."""
    found: dict[str, list[str]] = {}
    for view, kernel in kernels.items():
        found.setdefault(str(kernel), []).append(view)
    parts = []
    for kernel, views in found.items():
        counted = ", ".join(views) if len(views) < 4 else f"{len(views)} views"
        histograms = all(training.store.view_info(view).histogram for view in views)
        parts.append(f"{kernel} ({counted}{', histograms' if histograms else ''})")
    return ", ".join(parts)


def fit(
    run: Session, estimator: Any, training: Training, path: str, overwrite: bool = False, plan: Plan | None = None
) -> Any:
    """Fit `estimator` on the training samples and save it; returns it.

    Raises UserError where the method leaves nothing to save.
    """
    if not getattr(estimator, "out_of_sample", True):
        raise UserError(
            f"--method {estimator.method}: has coordinates for the samples that it was fitted on only, so there is no "
            "model to save; take a method that `dmo methods` lists with new rows, or TraceEmbedding(...).fit_transform "
            "in Python"
        )
    estimator.fit(training.views, targets(estimator, training.Y))
    costs = {**({} if plan is None else {"plan": plan.to_dict()}), **run.costs()}
    save(estimator, path, training, overwrite, costs)
    return estimator


def save(
    estimator: Any, path: str, training: Training, overwrite: bool = False, costs: Mapping[str, Any] | None = None
) -> None:
    """Save a fitted estimator with the names of its labels and where it comes from: the store, its own provenance, and
    the split; where the store was made from images, with their recipe and vocabularies.

    `costs`: what was planned and what it took, JSON.
    """
    store = training.store
    if store.label_names is not None and training.Y is not None:
        estimator.label_names_ = list(store.label_names)
    seed = estimator.get_params(deep=False).get("random_state")
    source = origin([store.url], store, training.split, seed)
    parameters = dict(source.parameters) | ({} if costs is None else {"costs": costs})
    estimator.save(path, stores.Provenance(source.parents, parameters, seed), overwrite, attached_recipe(store))


def learnt(estimator: Any) -> dict[str, Any]:
    """The figures of a fitted estimator for a report."""
    found: dict[str, Any] = {"views": dict(estimator.view_widths_)}
    if hasattr(estimator, "classes_"):
        found["n_labels"] = len(estimator.classes_)
    if hasattr(estimator, "n_components_"):
        found["n_components"] = int(estimator.n_components_)
    if hasattr(estimator, "n_iter_"):
        found["steps"] = int(estimator.n_iter_)
    if hasattr(estimator, "objective_"):
        found["objective"] = float(estimator.objective_)
    return found
