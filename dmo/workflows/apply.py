"""A model and the samples of a feature store that it is applied to, block by block, here or on workers."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from dmo import stores
from dmo.blocks import SINGLE, Rows, Subset, dense, numbered, row_blocks
from dmo.cluster.workers import each
from dmo.errors import UserError, visible
from dmo.formats.files import existing
from dmo.formats.schema import Schema, TableOptions
from dmo.formats.sources import is_rows
from dmo.hashing import fingerprint, id_keys, stored_keys
from dmo.metrics import with_ancestors
from dmo.stores.features import SourceStore
from dmo.stores.models import read_with_contents
from dmo.workflows.program import Session

ALL = "all"
"""The name that stands for all samples where a split is asked for."""
OTHER_CSV = "pass --overwrite to replace it, or choose another path"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "'")
BLOCK, MANY = 1024, 1 << 17
"""Samples that are worked on at a time, four times as many where there are so many: a block costs 4 ms of files alone."""


@dataclass(frozen=True)
class AppliedModel:
    """A model, the digest of its contents, and the samples it is applied to: views (m rows), row numbers, split; the store's
    column of each of the model's classes, None where these are the store's labels."""

    model: Any
    contents: str
    store: stores.FeatureStore
    views: Mapping[str, Subset]
    index: np.ndarray
    split: str | None
    columns: np.ndarray | None = None
    excluded: int = 0
    """Samples that were left out because a model has learned them."""

    @property
    def n(self) -> int:
        return len(self.index)

    @cached_property
    def Y(self) -> np.ndarray | None:
        """Labels of the samples (m x L), where the store has any: read when they are asked for."""
        found = self.store.labels_of(self.index)
        return None if found is None else dense(found if self.columns is None else found[:, self.columns])

    @property
    def sources(self) -> dict[str, str]:
        """Digests of what rows of these samples are made from."""
        return {name: fingerprint(view) for name, view in self.views.items()} | {"the model": self.contents}

    def some(self, rows: slice | np.ndarray) -> dict[str, Subset]:
        """The views of some of the samples."""
        return {name: Subset(view.source, view.index[rows]) for name, view in self.views.items()}

    def keep(self, rows: np.ndarray) -> AppliedModel:
        """The same model with some of the samples."""
        return replace(self, views=self.some(rows), index=self.index[rows])

    def scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        """Label scores, or real values (m x L), of some of the samples."""
        return np.asarray(self.model.decide(views).scores)

    @cached_property
    def ids(self) -> list[str]:
        """The samples' ids, their row numbers where the store has none."""
        known = self.store.sample_ids
        return [str(i) if known is None else known[i] for i in self.index.tolist()]

    @cached_property
    def learned(self) -> np.ndarray | None:
        """Mark the samples that the model was fitted on (m); None if the model does not record them."""
        kept = self.model._sample_keys
        if kept is None:
            return None
        # A model that was fitted in Python records rows, since the views that it got have no ids.
        found = [stored_keys(self.views), None if self.store.sample_ids is None else id_keys(self.ids)]
        return np.any([np.zeros(self.n, bool), *(np.isin(keys, kept) for keys in found if keys is not None)], axis=0)

    def label_names(self) -> list[str]:
        """Names of the model's labels, numbers where it knows none."""
        return label_names(self.model)


def sample_keys(store: stores.FeatureStore, views: Mapping[str, Rows]) -> np.ndarray | None:
    """Hash samples of a store, whose views are given: by their ids, or by their rows if the store has no ids.

    -> (m,), uint64
    """
    ids = store.sample_ids
    if ids is None:
        return stored_keys(views)
    _, index = numbered(next(iter(views.values())))
    return id_keys(ids if index is None else [ids[i] for i in index.tolist()])


def rows_of(
    applied: AppliedModel, compute: Callable[[Mapping[str, Rows]], np.ndarray], what: str = "score samples"
) -> np.ndarray:
    """Compute rows of all samples of a model in blocks, here or on workers.

    -> (m, k)
    """
    places = row_blocks(applied.n, 4 * BLOCK)

    def block(i: int) -> np.ndarray:
        return compute(applied.some(places[i]))

    return np.concatenate([part for _, part in each(what, block, range(len(places)))])


def open_applied(
    model: str,
    features: str,
    split: str | None,
    default: str,
    transforms: bool = False,
    options: TableOptions | None = None,
) -> AppliedModel:
    """Load a model that scores labels, or one that `transforms`, and open the samples of a store or a table for it."""
    stores.model_contents(model)
    store = None if is_rows(features) else stores.open_features(features)
    if store is not None and options not in (None, TableOptions()):
        raise UserError(f"{features}: is a feature store, which has been read; options of tables are for files of rows")
    from dmo.persistence import load  # here: paths that are wrong are refused before scikit-learn is imported

    fitted, contents = read_with_contents(model, load)
    check_use(fitted, model, transforms)
    if store is None:
        from dmo.workflows.trial import open_rows

        store = open_rows(model, fitted, features, options)
    known = views_for(fitted, store, model)
    chosen = chosen_split(store, split, default)
    views, _, index = store.select(chosen, with_labels=False)
    used = {name: views[own] for name, own in known.items()}
    columns = class_columns(fitted, store, model)
    return AppliedModel(fitted, contents, store, used, index, chosen, columns)


def named_store(model: str, note: Callable[[str], None]) -> str | None:
    """Return the local feature store that a model or a result store names as its origin, with a note, or None.

    A model may come from a third party: nothing else that it names is opened, neither a URL nor a file of rows.
    """
    for path in reversed(stores.describe(model)["provenance"].get("parents", ())):
        reason = "is not a local path"
        if "://" not in path and not path.startswith(("//", "\\\\")):  # the latter: a share on another machine
            try:
                if stores.describe(path)["kind"] == "features":
                    note(
                        f"the samples come from {path}, which {model} names; pass another feature store to use that one"
                    )
                    return str(path)
                reason = "is not a feature store"
            except (OSError, stores.StoreError) as error:
                reason = f"cannot be read ({error})"
        note(f"{path}, which {model} names as its origin, {reason}; pass a feature store to use one")
    return None


def columns_of(store: stores.FeatureStore, fitted: Any) -> dict[str, dict[str, Any]]:
    """View of a model -> the "names" of its columns, their "schema", and the weights "idf" of words, if a store has them."""
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
    """The schema of a view that a model kept, or that of numbers with the names of its columns."""
    return Schema.from_dict(kept["schema"]) if "schema" in kept else Schema.of_numbers(list(kept["names"]))


def class_columns(fitted: Any, store: stores.FeatureStore, model: str) -> np.ndarray | None:
    """Where a store has the classes of a model that learned classes: a class without a training sample is not among them."""
    if not store.class_labels or getattr(fitted, "multilabel_", True):
        return None
    known = store.label_names or [str(j) for j in range(store.configuration["labels"]["shape"][1])]
    place = {name: j for j, name in enumerate(known)}
    lost = [name for name in label_names(fitted) if name not in place]
    if lost:
        raise stores.StoreError(
            f"{store.url} has the classes {', '.join(known[:5])}, {model} learned {lost[0]!r}; pass a store with its classes"
        )
    return np.array([place[name] for name in label_names(fitted)])


def views_for(fitted: Any, store: stores.FeatureStore, model: str) -> dict[str, str]:
    """View of the model -> view of the store, by name; that of a model of one array is the only one that there is."""
    widths = getattr(fitted, "view_widths_", {})
    known = {name: name for name in widths}
    alone = list(widths) == [SINGLE] or isinstance(store, SourceStore)  # a file is called as its owner likes
    if alone and len(widths) == 1 and len(store.views) == 1:
        known = {next(iter(widths)): next(iter(store.views))}
    for name, own in known.items():
        if own not in store.views:
            has = ", ".join(store.views)
            raise stores.StoreError(f"{store.url} lacks the view {name!r} that {model} was fitted on; it has {has}")
        found = store.views[own].shape[1]
        if found != widths[name]:
            raise stores.StoreError(
                f"{store.url}: view {own!r} has {found} features, {model} was fitted on {widths[name]}; ingest the same "
                "features"
            )
    return known


def check_use(fitted: Any, model: str, transforms: bool = False) -> None:
    """Refuse the model of a path that cannot do what is needed."""
    from dmo.methods.annotator import predicts

    if not (hasattr(fitted, "transform") if transforms else predicts(fitted)):
        lacks = "transform samples" if transforms else "score labels"
        cure = "`dmo fit --help` lists models of every kind"
        raise stores.StoreError(f"{model} is a {type(fitted).__name__}, which cannot {lacks}; {cure}")


def check_chances(fitted: Any, text: bool) -> None:
    """Refuse probabilities where there is no `text` for them, and those of a model of real targets."""
    if learned_values(fitted) or not text:
        cure = "leave it out: there are numbers, no labels" if learned_values(fitted) else "pass --csv too"
        raise UserError(f"--proba: probabilities of labels go into the CSV; {cure}")


def known_labels(applied: AppliedModel, features: str) -> np.ndarray:
    """The labels of the samples, if they are the labels that the model scores; in a hierarchy with their ancestors."""
    scored = applied.label_names()
    if applied.Y is None:
        raise stores.StoreError(f"{features} has no labels to compare with; ingest them, or use dmo annotate")
    if applied.Y.shape[1] != len(scored):
        raise stores.StoreError(
            f"{features} has {applied.Y.shape[1]} labels, the model scores {len(scored)}; pass a store with the same labels"
        )
    known = getattr(applied.model, "label_names_", None)
    names = None if applied.columns is not None else applied.store.label_names
    if known is not None and names is not None and list(known) != list(names):
        first = next(i for i, (a, b) in enumerate(zip(known, names)) if a != b)
        raise stores.StoreError(
            f"{features}: label {first} is {names[first]!r}, the model has {known[first]!r} there; "
            f"pass a store with the same labels in the same order"
        )
    pairs = getattr(applied.model, "ancestors_", None)
    return applied.Y if pairs is None else with_ancestors(applied.Y, pairs)


def label_names(model: Any) -> list[str]:
    """Names of the model's labels, numbers where it knows none."""
    for names in ("label_names_", "classes_"):
        if getattr(model, names, None) is not None:
            return [str(label) for label in getattr(model, names)]
    if getattr(model, "outputs_", None) is not None:
        return [str(output) for output in range(len(model.outputs_.shift))]
    raise stores.StoreError(
        f"this {type(model).__name__} learned from outputs without columns and cannot score labels; fit it on labels"
    )


def learned_values(model: Any) -> bool:
    """Tell whether a fitted model learned real outputs, of which there are values, no labels to choose from."""
    from dmo.methods.annotator import Annotator

    return isinstance(model, Annotator) and model.outputs_ is not None


def checked_top(top: int | None, model: Any) -> int | None:
    """Labels a sample that `decide` is asked for: `top` where there are as many, None for the sets that a model learned."""
    if top is None:
        return None
    if learned_values(model):
        raise UserError("the model learned real targets, not labels to choose from; leave --top out")
    labels = getattr(model, "n_seen_labels_", None) or len(label_names(model))
    if top > labels:
        raise UserError(f"--top {top}: {labels} labels have a training sample; pass a number from 1 to {labels}")
    return top


def unguarded(cell: str) -> str:
    """What was in a cell of a table for people before it was guarded: see `as_csv`."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


Columns = tuple[Sequence[str], np.ndarray]
"""Columns of numbers of a table for people: their names and the rows (m x L)."""


def as_csv(samples: Sequence[str], words: Sequence[Sequence[str]], end: str, numbers: Columns | None = None) -> str:
    r"""Write samples with their labels, and columns of numbers, as a table in text."""
    # Spreadsheets run a cell that begins with = + - or @ as a formula, and labels come from anybody. As OWASP
    # advises, every cell is quoted, and one that begins so, or with an apostrophe, gets an apostrophe before it: who
    # reads the table takes one apostrophe off the start of a cell and has the name.
    count = max(map(len, words), default=0)
    names, rows = numbers or ((), np.zeros((len(samples), 0)))
    lines = [["sample", *(f"label {i + 1}" for i in range(count)), *map(guarded, names)]]
    for sample, row, values in zip(samples, words, rows, strict=True):
        blank = [""] * (count - len(row))
        lines.append([*map(guarded, [sample, *row, *blank]), *(f"{value:.6g}" for value in values)])
    return csv_text(lines, end, quoting=csv.QUOTE_ALL)


def csv_text(lines: Iterable[Sequence[object]], end: str = "\n", quoting: Any = csv.QUOTE_MINIMAL) -> str:
    """Lines of cells as the text of a CSV file."""
    text = StringIO()
    csv.writer(text, lineterminator=end, quoting=quoting).writerows(lines)
    return text.getvalue()


def guarded(cell: str) -> str:
    """A cell of a table for people, which no spreadsheet runs as a formula and no terminal obeys: see `as_csv`."""
    cell = visible(cell)
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


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
    """Compute rows of samples block by block, here or on workers, and write those that are missing in a result store.

    A store that was begun with another model or other features is refused, by their paths and by their contents.
    """
    count = columns if isinstance(columns, int) else len(columns)
    size = 4 * applied.n * count
    block = block or (BLOCK if applied.n < MANY else 4 * BLOCK)
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
        split=None if applied.store.split is None else applied.store.split[applied.index].tolist(),
        overwrite=overwrite,
        provenance=origin(parents, applied.store, applied.split, contents=applied.sources),
    )
    missing = writer.missing()
    if not missing:
        run.note(f"{out} is complete already, made from the same model and samples: nothing to do")
    elif len(missing) < writer.n_blocks:
        run.note(f"{out} is unfinished: {writer.n_blocks - len(missing)} of {writer.n_blocks} blocks are there already")

    def write(i: int) -> None:
        writer.write(i, compute(applied.some(writer.rows(i))).astype(writer.array.dtype, copy=False))

    for _ in each("blocks of samples", write, missing):
        pass
    writer.finish()
    return record | run.costs()


def label_words(numbers: np.ndarray, names: Sequence[str]) -> list[list[str]]:
    """Say the labels of samples in words; -1 is none.

    numbers (m, k)
    """
    return [[names[label] for label in row if label >= 0] for row in numbers]


def chances(names: Sequence[str]) -> list[str]:
    """Names of columns of probabilities."""
    return [f"probability of {name}" for name in names]


def check_rows_output(path: str, command: str, cure: str) -> None:
    """Refuse an output of rows that cannot be written, holds a store of another kind, or is named as if it were text."""
    ending = Path(path).suffix.lower()
    if ending in (".csv", ".json"):
        raise UserError(f"{command}: a result store is a folder, {path} looks like a {ending[1:].upper()} file; {cure}")
    stores.existing_store(path, "results")
    stores.check_output(path)


def finished_rows(path: str | os.PathLike[str]) -> stores.ResultStore | None:
    """Open the complete result store at a path, if there is one."""
    try:
        return stores.open_results(path)
    except (FileNotFoundError, stores.StoreError):
        return None


def write_csv(path: Path, text: str, overwrite: bool) -> None:
    """Write labels as text; a file that says the same is left, another one only replaced with `overwrite`."""
    if not overwrite and path.exists():
        if existing(path).read_bytes() == text.encode():
            return
        raise stores.StoreError(f"{path} exists and has different content; {OTHER_CSV}")
    stores.replace_file(path, text.encode())


def origin(
    parents: Sequence[str], store: stores.FeatureStore, split: str | None, seed: int | None = None, **more: Any
) -> stores.Provenance:
    """Say where something comes from that is made from samples of a feature store: that store's own provenance is kept
    in it.
    """
    parameters = {"split": split, "dataset": store.attributes.get("dataset"), "features": store.root["provenance"]}
    return stores.Provenance(parents, parameters | more, seed)


def chosen_split(store: stores.FeatureStore, wanted: str | None, default: str) -> str | None:
    """The split to take (None: all samples): `wanted`, else `default` where the store has it. StoreError if it lacks it."""
    known = store.splits
    if wanted is None:
        return default if default in known else None
    if wanted == ALL and ALL not in known:
        return None
    if wanted not in known:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise stores.StoreError(f"{store.url} has no split {wanted!r}; {has}, or take --split all")
    return wanted


def chosen_views(store: stores.FeatureStore, wanted: Sequence[str] | None) -> list[str]:
    """Names of views, from repeated or comma-separated `--views`; all views of the store without it."""
    names = [name for part in wanted or () for name in part.split(",") if name]
    for name in names:
        if name not in store.views:
            raise stores.StoreError(f"{store.url} has no view {name!r}; it has {', '.join(store.views)}")
    return list(dict.fromkeys(names)) or list(store.views)
