"""Application of a fitted model to the samples of a feature store, in the client process or on Dask workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dmo import stores
from dmo.blocks import SINGLE, RowMask, Rows, Subset, cell_blocks, dense, numbered, row_blocks
from dmo.cluster.workers import each
from dmo.errors import UserError
from dmo.formats.schema import Schema
from dmo.hashing import fingerprint, id_keys, marked_keys, stored_keys
from dmo.metrics import with_ancestors
from dmo.stores.features import SourceStore
from dmo.stores.temporary import rows_on_disk
from dmo.workflows.program import Session
from dmo.workflows.tables import OTHER_CSV, TableColumns, TableRows, label_words, output_format

if TYPE_CHECKING:
    from dmo.methods.annotator import Decision

ALL = "all"
"""Name of the split that contains all samples."""
BLOCK, MANY = 1024, 1 << 17
"""Number of samples per block, and minimum number of samples for which blocks are four times larger."""
CELLS = 1 << 22
"""Maximum number of scores in a block of samples."""


@dataclass(frozen=True)
class SampleIds(Sequence[str]):
    """Sequence of the ids of selected samples, or of their row indices as text if the store has no ids."""

    known: Sequence[str] | None  # Ids of all samples of the store.
    numbers: np.ndarray | RowMask  # Row indices of the selected samples.

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, where: Any) -> Any:
        rows = self.numbers[where].tolist()
        name = str if self.known is None else self.known.__getitem__
        return [name(row) for row in rows] if isinstance(where, slice) else name(rows)

    def __iter__(self) -> Iterator[str]:
        return (name for where in row_blocks(len(self), BLOCK) for name in self[where])


@dataclass(frozen=True)
class AppliedModel:
    """Fitted model together with the samples of a feature store to which it is applied."""

    model: Any
    contents: str  # Hash of the files of the model.
    store: stores.FeatureStore
    views: Mapping[str, Subset]  # Rows of the samples in each view of the model.
    index: np.ndarray | RowMask  # Row indices of the samples in the store.
    split: str | None  # Split of the samples, or None for all samples.
    columns: np.ndarray | None = None  # Label column of each class of the model, or None if the columns are the same.
    excluded: int = 0
    """Number of excluded samples, on which a model was trained."""

    @property
    def n(self) -> int:
        return len(self.index)

    @cached_property
    def n_columns(self) -> int:
        """Number of label scores per sample, or 1 for models without label scores."""
        try:
            return len(self.label_names())
        except stores.StoreError:
            return 1

    def block_rows(self, most: int) -> int:
        """Choose the number of samples per block: at most `most`, and fewer if there are many labels."""
        return max(1, min(most, CELLS // self.n_columns))

    @cached_property
    def Y(self) -> np.ndarray | None:
        """Label matrix of the samples, which is kept on disk, or None if the store has no labels."""
        if "labels" not in self.store.configuration:
            return None

        def block(where: slice) -> np.ndarray:
            found = dense(self.store.labels_of(self.index[where]))
            return found if self.columns is None else found[:, self.columns]

        shape = self.n, self.n_columns
        (found,) = rows_on_disk(self.n, ((where, [block(where)]) for where in cell_blocks(shape)))
        return found

    @property
    def sources(self) -> dict[str, str]:
        """Hashes of the model and the views, which identify the inputs of a result."""
        return {name: fingerprint(view) for name, view in self.views.items()} | {"the model": self.contents}

    def some(self, rows: slice | np.ndarray) -> dict[str, Subset]:
        """Return the views of a subset of the samples."""
        return {name: Subset(view.source, view.index[rows]) for name, view in self.views.items()}

    def keep(self, rows: np.ndarray) -> AppliedModel:
        """Return the same model with a subset of the samples."""
        return replace(self, views=self.some(rows), index=self.index[rows])

    def scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        """Compute label scores, or predicted values of regression targets, from rows of the views."""
        return np.asarray(self.model.decide(views).scores)

    @cached_property
    def ids(self) -> Sequence[str]:
        """Ids of the samples, or their row indices as text if the store has no ids."""
        known = self.store.sample_ids
        whole = known is not None and isinstance(self.index, RowMask) and self.n == len(known)
        return known if known is not None and whole else SampleIds(known, self.index)

    @cached_property
    def learned(self) -> np.ndarray | None:
        """Mask of the samples on which the model was trained, or None if the model has no keys of these samples."""
        kept = self.model._sample_keys
        if kept is None:
            return None
        ordered, found = np.sort(kept), np.zeros(self.n, bool)
        for where in row_blocks(self.n, 4 * BLOCK):
            # A model that was fitted on arrays has no sample ids and recognizes its training samples by hashes of rows.
            ids = None if self.store.sample_ids is None else id_keys(self.ids[where])
            for keys in (stored_keys(self.some(where)), ids):
                found[where] |= False if keys is None else marked_keys(keys, ordered)
        return found

    def label_names(self) -> list[str]:
        """Return the label names of the model, or column indices as text if the labels have no names."""
        return label_names(self.model)


def sample_keys(store: stores.FeatureStore, views: Mapping[str, Rows]) -> np.ndarray | None:
    """Compute 64-bit keys of the samples in `views` from their ids, or from row indices if the store has no ids."""
    ids = store.sample_ids
    if ids is None:
        return stored_keys(views)
    _, index = numbered(next(iter(views.values())))
    return id_keys(ids if index is None else SampleIds(ids, index))


def blocks_of(
    applied: AppliedModel, compute: Callable[[slice], Sequence[np.ndarray]], what: str
) -> Iterator[tuple[slice, Sequence[np.ndarray]]]:
    """Compute arrays for all samples in blocks, in the client process or on Dask workers, and yield them in order."""
    places = row_blocks(applied.n, applied.block_rows(4 * BLOCK))
    for i, parts in each(what, lambda i: compute(places[i]), range(len(places))):
        yield places[i], parts


def rows_of(
    applied: AppliedModel, compute: Callable[[Mapping[str, Rows]], np.ndarray], what: str = "score samples"
) -> np.ndarray:
    """Compute one row per sample in blocks, in the client process or on Dask workers, and collect them on disk."""
    (found,) = rows_on_disk(applied.n, blocks_of(applied, lambda where: [compute(applied.some(where))], what))
    return found


def named_store(model: str, note: Callable[[str], None]) -> str | None:
    """Return the local feature store from which a model or result store was created, or None if there is none.

    Models can come from third parties. Therefore, other origins such as URLs and data files are not opened.
    """
    for path in reversed(stores.describe(model)["provenance"].get("parents", ())):
        reason = "is not a local path"
        if "://" not in path and not path.startswith(("//", "\\\\")):  # Paths of network shares start with // or \\.
            try:
                if stores.describe(path)["kind"] == "features":
                    note(f"using the samples of {path}, as recorded in {model}; pass a feature store to use another")
                    return str(path)
                reason = "is not a feature store"
            except (OSError, stores.StoreError) as error:
                reason = f"cannot be read ({error})"
        note(f"{path}, which {model} names as its origin, {reason}; pass a feature store to use one")
    return None


def columns_of(store: stores.FeatureStore, fitted: Any) -> dict[str, dict[str, Any]]:
    """Return the column names, table schemas and idf weights in a store for each view of a model."""
    found = {}
    for view in fitted.view_widths_:
        own = view if view in store.views else next(iter(store.views))
        names, weights = store.feature_names(own), store.attributes.get("idf", {}).get(own)
        if names is not None:
            found[view] = {"names": names} | ({} if weights is None else {"idf": weights})
            schema = store.attributes.get("schema")
            kept = schema.get("views") if isinstance(schema, dict) else None
            found[view] |= {"schema": kept[own]} if isinstance(kept, dict) and own in kept else {}
    return found


def schema_of(kept: Mapping[str, Any]) -> Schema:
    """Return the saved table schema of a view, or a schema of numeric columns with the saved names."""
    return Schema.from_dict(kept["schema"]) if "schema" in kept else Schema.of_numbers(list(kept["names"]))


def class_columns(fitted: Any, store: stores.FeatureStore, model: str) -> np.ndarray | None:
    """Return the label column in a store for each class of a multiclass model; return None for other models.

    The store can have additional classes without training samples.
    """
    if not store.class_labels or getattr(fitted, "multilabel_", True):
        return None
    known = store.label_names or [str(j) for j in range(store.configuration["labels"]["shape"][1])]
    place = {name: j for j, name in enumerate(known)}
    lost = [name for name in label_names(fitted) if name not in place]
    if lost:
        raise stores.StoreError(
            f"{store.url}: the class {lost[0]!r}, which {model} learned, is missing; the classes are "
            f"{', '.join(known[:5])}"
        )
    return np.array([place[name] for name in label_names(fitted)])


def views_for(fitted: Any, store: stores.FeatureStore, model: str) -> dict[str, str]:
    """Map the views of a model to the views of a store by name; models of an unnamed array use the only view."""
    widths = getattr(fitted, "view_widths_", {})
    known = {name: name for name in widths}
    alone = list(widths) == [SINGLE] or isinstance(store, SourceStore)  # For data files, ignore the names of views.
    if alone and len(widths) == 1 and len(store.views) == 1:
        known = {next(iter(widths)): next(iter(store.views))}
    for name, own in known.items():
        if own not in store.views:
            has = ", ".join(store.views)
            raise stores.StoreError(
                f"{store.url}: the view {name!r}, on which {model} was fitted, is missing; add it to the views {has}"
            )
        found = store.views[own].shape[1]
        if found != widths[name]:
            raise stores.StoreError(
                f"{store.url}: view {own!r} has {found} features, {model} was fitted on {widths[name]}; ingest the "
                "same features"
            )
    return known


def check_use(fitted: Any, model: str, transforms: bool = False) -> None:
    """Raise an error if a model does not support the requested operation."""
    from dmo.methods.annotator import predicts  # Import lazily, because importing scikit-learn takes 2 s.

    if not (hasattr(fitted, "transform") if transforms else predicts(fitted)):
        reason = (
            "has no embedding; use dmo fit kgha"
            if transforms
            else "does not score labels; use dmo fit ridge or dmo fit kgha"
        )
        raise stores.StoreError(f"{model} is a {type(fitted).__name__}, which {reason}")


def check_chances(fitted: Any, text: bool) -> None:
    """Raise an error if probabilities are requested for regression targets or without an output table."""
    if learned_values(fitted) or not text:
        cure = "leave it out for a model of real targets" if learned_values(fitted) else "pass --csv too"
        raise UserError(f"--proba: probabilities of labels are written to a CSV or Parquet table; {cure}")


def known_labels(applied: AppliedModel, features: str) -> np.ndarray:
    """Return the true labels of the samples, including ancestors in a hierarchy.

    Raise an error if the labels of the store and the model differ.
    """
    scored = applied.label_names()
    if applied.Y is None:
        cure = "pass --label-columns NAMES or --labels FILE (for a store, to dmo ingest), or use dmo annotate"
        raise stores.StoreError(f"{features} has no labels to compare with; {cure}")
    if applied.Y.shape[1] != len(scored):
        raise stores.StoreError(
            f"{features} has {applied.Y.shape[1]} labels, the model scores {len(scored)}; pass a store with the same "
            "labels"
        )
    known = getattr(applied.model, "label_names_", None)
    names = None if applied.columns is not None else applied.store.label_names
    if known is not None and names is not None and list(known) != list(names):
        first = next(i for i, (a, b) in enumerate(zip(known, names)) if a != b)
        raise stores.StoreError(
            f"{features}: label {first} is {names[first]!r}, the model has {known[first]!r} there; "
            f"pass a store with the same labels in the same order"
        )
    Y, pairs = applied.Y, getattr(applied.model, "ancestors_", None)
    if pairs is None:
        return Y
    (found,) = rows_on_disk(applied.n, ((where, [with_ancestors(Y[where], pairs)]) for where in cell_blocks(Y.shape)))
    return found


def label_names(model: Any) -> list[str]:
    """Return the label names of a model, or column indices as text if the labels have no names."""
    for names in ("label_names_", "classes_"):
        if getattr(model, names, None) is not None:
            return [str(label) for label in getattr(model, names)]
    if getattr(model, "outputs_", None) is not None:
        return [str(output) for output in range(len(model.outputs_.shift))]
    raise stores.StoreError(
        f"this {type(model).__name__} learned targets that are not labels, so it cannot score labels; fit it on labels"
    )


def learned_values(model: Any) -> bool:
    """Return whether a fitted model predicts regression targets instead of labels."""
    from dmo.methods.annotator import Annotator  # Import lazily, because importing scikit-learn takes 2 s.

    return isinstance(model, Annotator) and model.outputs_ is not None


def checked_top(top: int | None, model: Any) -> int | None:
    """Validate the number of labels per sample; None stands for the label sets that the model predicts."""
    if top is None:
        return None
    if learned_values(model):
        raise UserError("--top applies to labels, but the model learned regression targets; leave it out")
    labels = getattr(model, "n_seen_labels_", None) or len(label_names(model))
    if top > labels:
        raise UserError(f"--top {top}: {labels} labels have a training sample; pass a number from 1 to {labels}")
    return top


def write_rows(
    run: Session,
    applied: AppliedModel,
    compute: Callable[[Mapping[str, Rows]], np.ndarray],
    out: str | os.PathLike[str],
    columns: int | Sequence[str],
    kind: str,
    *,
    parents: Sequence[str],
    dtype: str = "float32",
    attributes: Mapping[str, Any] | None = None,
    block: int | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Compute one row per sample, in the client process or on Dask workers, and write it to a result store.

    Blocks that exist already are skipped. A result store of another model or of other features raises an error.
    """
    count = columns if isinstance(columns, int) else len(columns)
    size = 4 * applied.n * count
    block = block or applied.block_rows(BLOCK if applied.n < MANY else 4 * BLOCK)
    record = {"out": os.fspath(out), "n_samples": applied.n, "columns": count, "split": applied.split, "bytes": size}
    if dry_run:
        return record | {"plan": {"blocks": len(row_blocks(applied.n, block)), "bytes": size}}
    writer = stores.create_results(
        out,
        applied.n,
        columns,
        dtype=dtype,
        kind=kind,
        attributes={"split": applied.split} if attributes is None else attributes,
        block=block,
        sample_ids=applied.ids,
        split=applied.store.split_of(np.asarray(applied.index)),
        overwrite=overwrite,
        provenance=origin(parents, applied.store, applied.split, contents=applied.sources),
    )
    missing = writer.missing()
    if not missing:
        run.note(f"{out} is complete already for this model and these samples; nothing to do")
    elif len(missing) < writer.n_blocks:
        run.note(f"{out} is unfinished: {writer.n_blocks - len(missing)} of {writer.n_blocks} blocks are there already")

    def write(i: int) -> None:
        writer.write(i, compute(applied.some(writer.rows(i))).astype(writer.array.dtype, copy=False))

    for _ in each("blocks of samples", write, missing):
        pass
    writer.finish()
    return record | run.costs()


def check_rows_output(path: str, overwrite: bool) -> str:
    """Return the file name extension of an output; raise an error if the output cannot be written."""
    ending = output_format(path)
    if ending == ".zarr":
        stores.existing_store(path, "results")
        stores.check_output(path)
    else:
        if os.path.exists(path) and not overwrite:
            raise stores.StoreError(f"{path} exists; {OTHER_CSV}")
        stores.check_output_file(path)
    return ending


def embedded(applied: AppliedModel) -> Iterator[tuple[slice, TableRows]]:
    """Compute the embedding of the samples; yield blocks of table rows."""

    def block(where: slice) -> list[np.ndarray]:
        return [np.asarray(applied.model.transform(applied.some(where)))]

    for where, (Z,) in blocks_of(applied, block, "blocks of samples"):
        yield where, TableRows(applied.ids[where], np.zeros((len(Z), 0), np.int32), Z)


def written_table(run: Session, record: dict[str, Any]) -> dict[str, Any]:
    """Replace the plan in a JSON record with the size of the written table and the costs of the run."""
    record = {key: value for key, value in record.items() if key != "plan"}
    return record | {"bytes": os.path.getsize(record["out"])} | run.costs()


@dataclass(frozen=True)
class AskedRows:
    """Rows of an output table: the predicted labels, and optionally scores, probabilities or predicted values."""

    applied: AppliedModel
    top: int | None  # Number of labels per sample; None stands for the label sets that the model predicts.
    columns: TableColumns
    numbers: str | None = None  # Content of the numeric columns: "scores" or "probabilities".
    written: stores.ResultStore | None = None  # Existing results, from which the table is written without the model.

    def of(self, where: slice) -> list[np.ndarray]:
        """Compute the labels and the numeric columns of a range of samples."""
        labels, numbers = np.zeros((where.stop - where.start, 0), np.int32), None
        model, views = self.applied.model, self.applied.some(where)
        if self.written is not None:
            rows = self.written[where]
            labels, numbers = (labels, rows) if self.columns.labels is None else (rows, numbers)
        else:
            found: Decision = model.decide(views, self.top)
            if self.columns.labels is not None:
                labels = found.numbers(model.most_labels(self.top))
            if self.numbers == "scores":
                numbers = found.scores
            elif self.numbers == "probabilities":
                # If the model has no probabilities, `predict_proba` raises an error that explains why.
                numbers = model.predict_proba(views) if found.probabilities is None else found.probabilities
        return [labels, np.zeros((len(labels), 0)) if numbers is None else np.asarray(numbers)]

    def blocks(self) -> Iterator[tuple[slice, TableRows]]:
        """Yield blocks of table rows, which are computed in the client process or on Dask workers."""
        for where, (labels, numbers) in blocks_of(self.applied, self.of, "score samples"):
            yield where, TableRows(self.applied.ids[where], labels, numbers)

    def words(self, count: int) -> dict[str, list[str]]:
        """Return the label names of the first `count` samples, by sample id."""
        first = slice(0, min(count, self.applied.n))
        return dict(zip(self.applied.ids[first], label_words(self.of(first)[0], self.columns.labels or ())))


def finished_rows(path: str | os.PathLike[str]) -> stores.ResultStore | None:
    """Open the result store at a path, or return None if there is no complete result store."""
    try:
        return stores.open_results(path)
    except (FileNotFoundError, stores.StoreError):
        return None


def origin(
    parents: Sequence[str], store: stores.FeatureStore, split: str | None, seed: int | None = None, **more: Any
) -> stores.Provenance:
    """Create the provenance of a result from a feature store, which includes the provenance of the store."""
    parameters = {"split": split, "dataset": store.attributes.get("dataset"), "features": store.root["provenance"]}
    return stores.Provenance(parents, parameters | more, seed)


def chosen_split(store: stores.FeatureStore, wanted: str | None, default: str) -> str | None:
    """Return the split `wanted`, or `default` if `wanted` is None and the store has such a split.

    The result is None if all samples are used.
    """
    known = store.splits
    if wanted is None:
        return default if default in known else None
    if wanted == ALL and ALL not in known:
        return None
    if wanted not in known:
        cure = f"pass one of {', '.join(known)}, or" if known else "pass"
        raise stores.StoreError(f"{store.url} has no split {wanted!r}; {cure} --split all")
    return wanted


def chosen_views(store: stores.FeatureStore, wanted: Sequence[str] | None) -> list[str]:
    """Return the views in repeated or comma-separated `--views` options, or all views by default."""
    names = [name for part in wanted or () for name in part.split(",") if name]
    for name in names:
        if name not in store.views:
            raise stores.StoreError(f"{store.url} has no view {name!r}; it has {', '.join(store.views)}")
    return list(dict.fromkeys(names)) or list(store.views)
