"""Fitting, hyperparameter search and saving of models on the samples of a feature store."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone, is_regressor
from sklearn.utils import _safe_indexing, get_tags

from dmo import stores
from dmo.blocks import Rows, Subset, filled, presence
from dmo.blocks import rows as read_rows
from dmo.datasets.cards import by_split
from dmo.datasets.files import fingerprints, ingest_files, read_description
from dmo.decide.rules import SET_METRICS
from dmo.errors import UserError
from dmo.features.extraction import PART, Extractor, extract
from dmo.features.images import list_images
from dmo.features.sets import Recipe
from dmo.fit.engine import reasoned_engine
from dmo.formats.frames import FRAMES, read_frame
from dmo.formats.labels import class_vector
from dmo.formats.sources import HDF5, PARQUET, is_image_folder, is_rows, is_zarr_array, parse_source
from dmo.formats.tables import ending_of, is_svmlight
from dmo.inputs import LabelRows, Preparation, are_real, preparing
from dmo.inputs.outputs import hierarchy_of
from dmo.labels.hierarchy import by_column
from dmo.labels.stratification import stratified_folds
from dmo.methods.annotator import Annotator
from dmo.metrics.named import ERRORS
from dmo.registry import REGISTRY
from dmo.select.sweeps import sweep
from dmo.select.tuning import search
from dmo.stores.features import SourceStore
from dmo.workflows.apply import chosen_split, chosen_views, columns_of, origin, sample_keys
from dmo.workflows.plan import Plan, kernel_count
from dmo.workflows.program import Session, say_unreadable

if TYPE_CHECKING:
    from dmo.methods.base import SweepResult
    from dmo.stores.models import Attached

log = logging.getLogger("dmo")
IN_PLACE = (".npy", ".zarr", *HDF5, *PARQUET)
"""File name extensions of arrays that can be read without copying them to a feature store."""
_CURVE = 5000
"""Maximum number of samples for a learning curve."""


@dataclass(frozen=True)
class Training:
    """Training samples from a feature store."""

    store: stores.FeatureStore
    views: Mapping[str, Rows]  # Rows of the samples in each view.
    Y: Any  # Label matrix of shape (n, L), as an array or `LabelRows`, or None if there are no labels.
    split: str | None  # Split of the samples, or None for all samples.

    @property
    def n(self) -> int:
        """Number of training samples."""
        return int(next(iter(self.views.values())).shape[0])

    @property
    def n_labels(self) -> int:
        """Number of labels, or 0 if there are no labels."""
        return 0 if self.Y is None else int(self.Y.shape[1])

    @property
    def lacks_cells(self) -> bool:
        """Whether any view has missing values."""
        return any(self.store.view_info(view).missing for view in self.views)

    @property
    def targets(self) -> str:
        """Word for the targets in messages: "labels", or "targets" for regression."""
        return "targets" if self.store.real_labels else "labels"

    def known_to(self, estimator: Any) -> Training:
        """Return the samples that an estimator can use, which excludes samples of unknown class for most estimators."""
        needed = get_tags(estimator).target_tags.required
        return self if not needed or getattr(estimator, "_takes_unknown_classes", False) else self.known()

    def known(self) -> Training:
        """Return the samples whose class is known."""
        if not self.store.class_labels or self.Y is None:
            return self
        rows = np.flatnonzero(~np.isnan(self.Y.sum(axis=1)))
        if len(rows) == self.n:
            return self
        log.info("%d samples whose class is not known are left out", self.n - len(rows))
        return replace(self, views={name: Subset(source, rows) for name, source in self.views.items()}, Y=self.Y[rows])

    @property
    def y(self) -> Any:
        """Targets for `fit`: an array of class names for multiclass targets, otherwise the label matrix."""
        return class_vector(self.Y, self.store.label_names) if self.store.class_labels else self.Y

    @property
    def samples(self) -> str:
        """Number and split of the samples, formatted for messages."""
        return f"{self.n} samples" + (f" of split {self.split}" if self.split else "")


def open_training(
    store: stores.FeatureStore,
    views: Sequence[str] | None = None,
    split: str | None = None,
    one_view: str | None = None,
) -> Training:
    """Select the training samples of a feature store."""
    attached_recipe(store)  # Raise errors about a damaged image recipe before the fit.
    names = chosen_views(store, views)
    if one_view is not None and len(names) != 1:
        raise UserError(f"{one_view} needs one view, got {len(names)}; pass --view with one of {', '.join(names)}")
    chosen = chosen_split(store, split, "train")
    labels = store.label_view
    found, Y, _ = store.select(chosen, labels is None)
    stored = None if labels is None else LabelRows(Subset(labels, found[names[0]].index))
    return Training(store, {name: found[name] for name in names}, Y if stored is None else stored, chosen)


def attached_recipe(store: stores.FeatureStore) -> dict[str, Attached]:
    """Return the recipe of an image store, which is saved with its models, or an empty mapping for other stores."""
    return {PART: Extractor.load(store.url).parts()} if store.attributes.get("dataset") == PART else {}


def store_beside(run: Session, path: str, given: Mapping[str, Any], kind: type, overwrite: bool) -> stores.FeatureStore:
    """Open array files in place, and convert other files to a feature store next to them.

    A feature store that was created earlier from the same files is reused.
    """
    source, of_images = parse_source(path), is_image_folder(path) and not is_rows(path)
    described: dict[str, Any] = {"views": {source.title: path}}
    if source.ending == ".json":
        described = read_description(path)
    views, given = described.pop("views"), {**described, **given}
    view, named = source.title, source.paths[0] if source.kind == "file" else source.text.removeprefix("@")
    beside = Path() if "://" in named else Path(named).parent
    store = str(beside / f"{view}.zarr")
    store = str(beside / f"{view}.features.zarr") if store == os.path.normpath(named) else store
    files = [spec for files in views.values() for spec in by_split(files).values()]
    in_place = not of_images and all(map(_may_be_in_place, files)) and not {"test_share", "split"} & given.keys()
    complete = None
    with suppress(stores.StoreError) if in_place else nullcontext():
        complete = stores.existing_store(store, "features")
    if complete:
        made = stores.describe(store)["provenance"]["parameters"]
        same = {key: made.get("options", {}).get(key) for key in given} == given
        if of_images:
            same &= made.get("dataset") == PART
        else:
            same &= fingerprints(views).items() <= made.get("files", {}).items()
        if same:
            run.note(f"using {store}, which was made from {path} earlier")
            return stores.open_features(store)
        if not (overwrite or in_place):
            raise stores.StoreError(
                f"{store} was made from other files than {path}, or with other options; pass {store} to use it, or "
                "--overwrite to replace it"
            )
    labeled = source.ending == ".arff" or is_svmlight(source.paths[0])  # ARFF and svmlight files contain labels.
    if get_tags(kind()).target_tags.required and "labels" not in given and not labeled:
        raise UserError(f"{path}: the labels are not specified; {_label_cure(path, of_images)}")
    if of_images:
        listing = list_images(path, given.get("labels"), given.get("separator"))
        listing = listing.with_test_share(given["test_share"]) if "test_share" in given else listing
        say_unreadable(run, extract(listing, store, Recipe.of("kgha8"), overwrite=bool(complete)).unreadable)
    else:
        replaced = overwrite and bool(complete)
        opened = ingest_files(views, store, overwrite=replaced, in_place=in_place, **given)
        if isinstance(opened, SourceStore):
            run.note(f"reading {path} in place")
            return opened
    run.note(f"created {store} from {path}; show its contents with dmo info {store}")
    return stores.open_features(store)


def _may_be_in_place(spec: str) -> bool:
    """Return whether a data source has a format that can be read in place."""
    return ending_of(spec) in IN_PLACE or is_zarr_array(parse_source(spec).paths[0])


def _label_cure(path: str, of_images: bool) -> str:
    if of_images:
        return "pass --labels folders if folder names are labels, or --labels FILE.csv with images and their labels"
    columns = read_frame(path, unread={}).columns if parse_source(path).ending in FRAMES else []
    if parse_source(path).ending == ".json":
        return 'add "labels": FILE, or a list of column names, to it; or pass --labels FILE or --label-columns NAMES'
    if len(columns):
        more = ", ..." if len(columns) > 12 else ""
        return f"pass --label-columns with some of its columns: {', '.join(map(str, columns[-12:]))}{more}"
    return f"pass --labels FILE, such as --labels {path}::y for the array y of an .npz archive"


def auto_kernel(store: stores.FeatureStore, view: str) -> str:
    """Return the name of the default kernel of a view, which depends on whether its rows are histograms."""
    return "hellinger-rbf" if store.view_info(view).histogram else "rbf"


def with_auto_kernels(spec: Any, training: Training) -> Any:
    """Replace the kernel name "auto" with the default kernel of each view."""
    if isinstance(spec, Mapping):
        return {view: auto_kernel(training.store, view) if one == "auto" else one for view, one in spec.items()}
    return with_auto_kernels(dict.fromkeys(training.views, "auto"), training) if spec == "auto" else spec


def prepare(estimator: Any, training: Training) -> tuple[Any, str]:
    """Choose the kernels and the engine of an estimator where they are "auto"; also describe the choices in text."""
    known = estimator.get_params(deep=False)
    if training.Y is None and get_tags(estimator).target_tags.required:
        raise UserError(
            f"{training.store.url} has no labels, which {type(estimator).__name__} needs; add them when you create the "
            "store: dmo ingest files --labels FILE or --label-columns NAMES, dmo extract --labels folders or FILE"
        )
    _check_gaps(estimator, training)
    if training.store.label_names is not None:
        set_hierarchy_by_column(estimator, training.store.label_names)
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
        n_kernels = kernel_count(estimator, len(training.views))
        engine, reason = reasoned_engine(estimator.approximation, training.n, n_kernels)
        said += [f"engine {reason}"] if reason else []
        estimator.set_params(approximation=engine)
    return estimator, "; ".join(said)


def set_hierarchy_by_column(estimator: Any, names: Sequence[str]) -> None:
    """Replace label names with column indices in the hierarchy of an estimator, which is fitted on a label matrix."""
    tree = hierarchy_of(estimator)
    if tree is not None:
        estimator.set_params(decoder__hierarchy=by_column(tree, names))


def _check_gaps(estimator: Any, training: Training) -> None:
    """Raise UserError if a view has missing values that the estimator does not impute."""
    asked = preparing(estimator)
    impute = None if asked is None else asked.impute
    for view in training.views:
        filled = impute.get(view) if isinstance(impute, Mapping) else impute
        if filled is None and training.store.view_info(view).missing:
            counts = training.store.attributes.get("missing", {}).get(view, {})
            worst = sorted(counts, key=counts.get, reverse=True)[:3]
            shares = ", ".join(f"{name!r} in {counts[name]} of {training.store.n_samples} samples" for name in worst)
            more = f" and {len(counts) - len(worst)} more columns" if len(counts) > len(worst) else ""
            if "prepare" in estimator.get_params(deep=False):
                cure = "pass --impute mean, median or zero"
            elif "base" in estimator.get_params(deep=False):
                cure = "pass --base MODEL, a model written by dmo fit ridge STORE MODEL --impute mean"
            else:
                cure = "impute them before dmo ingest, or use an estimator with --impute"
            raise UserError(f"view {view!r} has missing values: {shares}{more}; {cure}")


def _by_value(kernels: Mapping[str, Any], training: Training) -> str:
    """Format the kernels of views as text, such as "rbf (pixels), hellinger-rbf (8 views, histograms)"."""
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
    """Fit an estimator on training samples and save it to a model store."""
    if not getattr(estimator, "out_of_sample", True):
        raise UserError(
            f"--method {estimator.method} cannot embed new samples, so there is no model to save; use a method with "
            "new rows in the table of `dmo methods`, or TraceEmbedding(...).fit_transform in Python"
        )
    training = training.known_to(estimator)
    estimator.fit(training.views, training.y)
    costs = {**({} if plan is None else {"plan": plan.to_dict()}), **run.costs()}
    save(estimator, path, training, overwrite, costs)
    return estimator


def save(
    estimator: Any,
    path: str,
    training: Training,
    overwrite: bool = False,
    costs: Mapping[str, Any] | None = None,
    names: Sequence[str] | None = None,
    more: Mapping[str, Any] | None = None,
    keys: np.ndarray | None = None,
) -> None:
    """Save a fitted estimator with its label names, its provenance and the keys of its training samples."""
    # The provenance names the feature store, the provenance of this store, and the split. For a store of images, the
    # recipe and its vocabularies are saved as well. The argument `keys` replaces the keys of the training samples.
    store = training.store
    estimator._sample_keys = sample_keys(store, training.views) if keys is None else keys
    names = store.label_names if names is None else names
    if store.label_names is not None and training.Y is not None and getattr(estimator, "multilabel_", True):
        estimator.label_names_ = list(names or ())
    seed = estimator.get_params(deep=False).get("random_state")
    source = origin([store.url], store, training.split, seed)
    parameters = dict(source.parameters) | {"columns": columns_of(store, estimator)}
    parameters |= ({} if costs is None else {"costs": costs}) | dict(more or {})
    estimator.save(path, stores.Provenance(source.parents, parameters, seed), overwrite, attached_recipe(store))


def learned(estimator: Any) -> dict[str, Any]:
    """Return the properties of a fitted estimator for the JSON output."""
    found: dict[str, Any] = {"views": dict(estimator.view_widths_)}
    prepared: Mapping[str, Preparation] = getattr(estimator, "preparations_", {})
    found["scales"] = {view: made.scale for view, made in prepared.items() if made.scale != "none"}
    found["imputed"] = [view for view, made in prepared.items() if made.fill is not None]
    if hasattr(estimator, "classes_"):
        found["n_labels"] = len(estimator.classes_)
    if hasattr(estimator, "n_components_"):
        found["n_components"] = int(estimator.n_components_)
    if hasattr(estimator, "n_iter_"):
        found["steps"] = int(estimator.n_iter_)
    if hasattr(estimator, "objective_"):
        found["objective"] = float(estimator.objective_)
    return found


def tune(
    estimator: Any,
    training: Training,
    tried: Mapping[str, Sequence[Any]] | None,
    path: str,
    overwrite: bool = False,
    folds: int = 4,
    metric: str | None = None,
) -> SweepResult:
    """Evaluate hyperparameter candidates by cross-validation, and save the best candidate fitted on all samples."""
    if tried is not None and "kernel" in tried:
        tried = {**tried, "kernel": [with_auto_kernels(spec, training) for spec in tried["kernel"]]}
    training = training.known()  # Only samples of known class can be used for validation.
    Y = _learned(estimator, training)
    result = search(estimator, dict(training.views), Y, tried, metric, folds, getattr(estimator, "random_state", 0))
    save(result.best_estimator, path, training, overwrite)
    return result


def default_grid(kind: str, training: Training, metric: str | None, decoded: bool) -> dict[str, Sequence[Any]]:
    """Return the default search grid of an estimator class for the training samples.

    `decoded` is True if a decoder is passed.
    """
    # The exponent of the label frequencies is not searched for regression targets, decoders or metrics of label sets.
    decoded = decoded or are_real(training.Y) or metric in SET_METRICS
    excluded = ["decoder__prior_power"] if decoded else []
    if any(presence(source) is not None for source in training.views.values()):
        excluded.append("combine")  # A combined kernel does not support views with missing samples.
    return {name: values for name, values in REGISTRY[kind].grid.items() if name not in excluded}


def shown_score(metric: str, score: float) -> float:
    """Return a score for display; errors, which a search maximizes as negative numbers, are displayed as positive."""
    return -score if metric in ERRORS else score


def _learned(estimator: Any, training: Training) -> Any:
    """Return the targets in the format that the estimator expects."""
    by_columns = is_regressor(estimator) and not isinstance(estimator, Annotator)
    return training.Y if by_columns else training.y


def learning_curve(result: SweepResult, training: Training, folds: int = 4) -> list[tuple[int, float, float]]:
    """Evaluate the best candidate of a search on one eighth, one quarter, one half and all of the samples."""
    training = training.known()
    assert training.Y is not None
    n, grid = training.n, {key: [value] for key, value in result.best_params.items()}
    model, learned = result.best_estimator, _learned(result.best_estimator, training)
    random_state = getattr(model, "random_state", 0)
    parts, curve = stratified_folds(filled(read_rows(training.Y)), 8, random_state), []
    for eighths in (1, 2, 4, 8):
        rows = np.flatnonzero(parts < eighths)
        if n > _CURVE:
            rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _CURVE * eighths // 8)).astype(int)]
        if len(rows) < 5 * folds or not grid:
            continue
        views = {name: Subset(view, rows) for name, view in training.views.items()}
        try:
            some = _safe_indexing(learned, rows)
            found = sweep(clone(model), views, some, grid, folds, result.metric, random_state, refit=False)
        except UserError:  # In a small subset, a fold may have no sample of a label.
            continue
        row = found.table[0]
        curve.append((len(rows) * (folds - 1) // folds, float(row["mean"]), float(row["std"])))
    return curve
