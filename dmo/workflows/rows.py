"""Functions that open the samples to which a fitted model is applied, in feature stores or in data files.

Data files are read as in training, and their labels are put into the order of the labels of the model.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import dmo
from dmo import stores
from dmo.blocks import Rows, Subset, dense, in_memory, rows
from dmo.datasets import Samples, open_table, read_description
from dmo.datasets.cards import ALL
from dmo.datasets.files import documents, fingerprints, join_tables, label_columns
from dmo.errors import UserError, amount
from dmo.features.extraction import Extractor
from dmo.formats.files import DataError, row_of_shard
from dmo.formats.frames import FRAMES, NUMBERS, ROW_NAMES, SHARDS, read_frame
from dmo.formats.labels import unknown_rows
from dmo.formats.parquet import number_columns
from dmo.formats.schema import LearnedLabels, TableOptions, chosen_columns, unknown_column
from dmo.formats.sources import PARQUET, Source, is_rows, is_zarr, parse_source, split_name
from dmo.formats.tables import SVMLIGHT, cell_views, ending_of, open_source
from dmo.stores.models import read_with_contents
from dmo.workflows.apply import (
    AppliedModel,
    check_use,
    checked_top,
    chosen_split,
    class_columns,
    label_names,
    learned_values,
    named_store,
    views_for,
)
from dmo.workflows.images import made_from_images
from dmo.workflows.trial import IDS, Trial, Upload, row_reader

_ROW = "row of the file"
"""Name of a temporary column of row indices, by which rows are put into the order of the joined tables."""
_READING = tuple(TableOptions.__dataclass_fields__)
log = logging.getLogger("dmo")


@dataclass(frozen=True)
class _Part:
    """Contents of one data source."""

    views: dict[str, Any]  # Rows of the views of the model.
    ids: list[str] | None  # Sample ids, or None if the source has none.
    sources: dict[str, Source]  # Sources of the views that are not read yet.
    table: Any  # Table that is joined with the tables of other sources.
    columns: Sequence[str] = ()  # Names of all columns of the table.


def open_applied(
    model: str,
    features: str,
    split: str | None,
    default: str,
    transforms: bool = False,
    reading: Mapping[str, Any] | None = None,
    labeled: bool = False,
) -> AppliedModel:
    """Load a model, and open the samples of a feature store or of data files to which it is applied.

    Raise an error if the model cannot predict labels, or cannot transform samples if `transforms` is true.
    """
    # `reading` contains arguments of `ingest_files` for data files. The labels of data files are read only if `labeled`
    # is true.
    stores.model_contents(model)
    store = None if is_rows(features) else stores.open_features(features)
    if store is not None and reading:
        raise UserError(f"{features} is a feature store, but table options apply only to data files; leave them out")
    # `dmo.load` imports estimators, so call it only after the quick checks above.
    fitted, contents = read_with_contents(model, dmo.load)
    check_use(fitted, model, transforms)
    if store is None:
        made = training_store(model, features, reading or {}) if labeled else None
        store = open_rows(model, fitted, features, reading, labeled) if made is None else stores.open_features(made)
    known = views_for(fitted, store, model)
    chosen = chosen_split(store, split, default)
    views, _, _ = store.select(chosen, with_labels=False)
    used = {name: views[own] for name, own in known.items()}
    index = next(iter(views.values())).index  # A large set of indices is stored as a bit mask.
    columns = class_columns(fitted, store, model)
    return AppliedModel(fitted, contents, store, used, index, chosen, columns)


def open_trial(
    model: str, features: str | None, top: int | None, most: int, note: Callable[[str], None] = lambda _: None
) -> Trial:
    """Load a model for an interactive trial, and open the samples among which neighbors are searched for."""
    (fitted, extractor), _ = read_with_contents(
        model, lambda path: (dmo.load(path), Extractor.load(path) if made_from_images(path) else None)
    )
    check_use(fitted, model)
    if extractor is not None:
        extractor.specs()  # Raise an error now if image features cannot be extracted.
    checked_top(top, fitted)
    known = _samples(model, features, note)
    trial = row_reader(model, fitted, None if known is None else known.store)
    trial = replace(trial, names=label_names(fitted), count=top, extractor=extractor, known=known, most=most)
    if known is not None:
        _ = trial.places  # Compute the embedding of the samples before the first request.
    return trial


def _samples(model: str, features: str | None, note: Callable[[str], None]) -> AppliedModel | None:
    """Open the samples for the search for neighbors: `features`, or the training samples of the model."""
    if features is not None:
        return open_applied(model, features, None, ALL)
    if (named := named_store(model, note)) is not None:
        try:
            return open_applied(model, named, None, ALL)
        except (UserError, OSError) as error:
            note(f"{named} cannot be used ({error}): no neighbors are shown; pass a feature store")
    return None


def open_rows(
    model: str, fitted: Any, path: str, given: Mapping[str, Any] | None = None, labeled: bool = False
) -> stores.FeatureStore:
    """Open data files as a feature store; dense arrays are read in place, and other views are kept in memory.

    `given` contains arguments of `ingest_files`. Labels are read only if `labeled` is true.
    """
    given, made = dict(given or {}), _features(model).get("options", {})
    files: Mapping[str, Any] = {"": path}
    if ending_of(path) == ".json":
        described = read_description(path)
        files, given = cell_views(described.pop("views")), described | given
    parted = next((view for view, file in files.items() if isinstance(file, Mapping)), None)
    if parted is not None:
        raise UserError(f"{path}: view {parted!r} has one file per split; convert it to a store with dmo ingest files")
    options = TableOptions(**{name: given[name] for name in _READING if name in given})
    reader = row_reader(model, fitted, options=options)
    reader = replace(reader, id=given.get("id", reader.id))
    if len(files) > 1:  # Do not open arrays that the model does not use.
        files = {view: file for view, file in files.items() if view in reader.widths or ending_of(file) in FRAMES}
    asked = given.get("labels", made.get("labels")) if labeled else None
    others = [name for name in (given.get("split", made.get("split")),) if name and labeled]
    parts = {view: _opened(reader, view, file, len(files) == 1, asked, others) for view, file in files.items()}
    for note in dict.fromkeys(reader.notes):
        log.warning("%s", note)
    views: dict[str, Any] = {}
    for part in parts.values():
        if twice := views.keys() & part.views.keys():
            raise UserError(f"{path}: view {min(twice)!r} is in two files; keep it in one of them")
        views |= part.views
    ids = next((part.ids for part in parts.values() if part.ids is not None), None)
    samples = Samples(
        views,
        ids=ids,
        sources={view: source for part in parts.values() for view, source in part.sources.items()},
    )
    if labeled:  # Column names and schemas are saved with models fitted on these samples.
        known = {view: schema.features for view, schema in reader.columns.items()}
        known |= {view: vocabulary.words for view, vocabulary in reader.texts.items()}
        schemas = {view: schema.to_dict() for view, schema in reader.columns.items()}
        samples = replace(
            samples,
            feature_names={
                view: own for view, own in known.items() if view in views and len(own) == views[view].shape[1]
            },
            vocabularies={view: vocabulary for view, vocabulary in reader.texts.items() if view in views},
            attributes={"schema": {"views": schemas, "others": []}} if schemas else {},
        )
    if labeled or len(parts) > 1:
        labels = _found_labels(path, parts.values(), asked, "labels" in given)
        key = reader.id if "id" in given or any(reader.id in part.columns for part in parts.values()) else None
        samples = _joined(path, fitted, reader, samples, parts, labels, key, made | given)
    if samples.sources and (reason := replace(samples, split=None).copy_reason()) is not None:
        size = sum(X.shape[0] * X.shape[1] * np.dtype(X.dtype).itemsize for X in samples.views.values())
        log.warning("%s: a copy of %s is held in memory, because %s", path, amount(size), reason)
        samples = replace(samples, views={view: rows(X) for view, X in samples.views.items()}, sources={})
    read = {name: value for name, value in (made | given).items() if name in ("id", "split", "labels", *_READING)}
    return samples.in_place(path, stores.Provenance(parameters={"dataset": "files", "options": read}))


def training_store(model: str, path: str, given: Mapping[str, Any]) -> str | None:
    """Return the store of the training samples if it was created from the data files at `path`, otherwise None."""
    made = _features(model)
    known = {about.get("sha256") for about in made.get("files", {}).values()} - {None}
    files = read_description(path)["views"] if ending_of(path) == ".json" else {"": path}
    own = fingerprints(files).values() if known else ()  # Computing fingerprints is slow, because it reads the files.
    if not own or not all(about.get("sha256") in known for about in own):
        return None
    options = made.get("options", {})
    same = all(options.get(name) == value for name, value in given.items())
    store = named_store(model, log.warning) if same else None
    if store is None:
        log.warning("%s was trained on samples of %s that cannot be excluded; scores are too optimistic", model, path)
    return store


def _features(model: str) -> dict[str, Any]:
    """Return the parameters with which the training store of a model was created."""
    kept = (stores.describe(model)["provenance"].get("parameters") or {}).get("features") or {}
    return dict(kept.get("parameters") or {})


def _names(labels: Any) -> list[str]:
    """Return the names in the argument `labels` that can be columns of a table."""
    return [labels] if isinstance(labels, str) else list(labels) if isinstance(labels, list | tuple) else []


def _opened(reader: Trial, view: str, path: Any, alone: bool, labels: Any, others: Sequence[str]) -> _Part:
    """Open one data source, which contains all views if `alone` is true.

    Columns of labels and the columns `others` are joined with the tables of other sources later.
    """
    source, ending = parse_source(path), ending_of(path)
    name = view or (Path(source.text).name if source.name is None else source.name)
    upload = Upload(name if name.endswith(ending) else f"{name}{ending}", Path(source.text))
    unread, asked, numbers = dict[str, Rows](), _names(labels), list[str]()
    if Path(source.paths[0]).is_dir() and not is_zarr(source.paths[0]):
        table = documents(Path(source.paths[0]))
        table = table if reader.id is None else table.rename(columns={"document": reader.id})
    elif ending in FRAMES:
        kept = [name for name in (reader.id, *IDS, *asked, *others) if name]
        numbers = _numbers(reader, source, kept)
        table = read_frame(path, reader.notes, reader.options, unread, kept, numbers)
    else:
        return _of_arrays(reader, upload, path, source, labels)
    table = table.reset_index() if reader.id is not None and table.index.name == reader.id else table
    attributes = {key: table.attrs[key] for key in (ROW_NAMES, SHARDS) if key in table.attrs}
    columns = [str(name) for name in table.columns]
    table = table.set_axis(columns, axis=1)
    chosen = chosen_columns(columns, asked)[0]
    key = attributes.get(ROW_NAMES) if reader.options.row_names else reader.id
    cells = table[list(dict.fromkeys([*chosen, *(name for name in (key, *others) if name in columns)]))]
    cells = cells.assign(**{_ROW: np.arange(len(table))})
    cells.attrs = attributes
    views, ids = reader.of_table(upload, table.drop(columns=chosen), alone, unread)
    _check_ids(path, ids, attributes.get(SHARDS, ()))
    named = {id(X): replace(source, name=column) for column, X in unread.items() if column != NUMBERS}
    named |= {id(unread[NUMBERS]): replace(source, columns=tuple(numbers))} if numbers else {}
    return _Part(views, ids, {view: named[id(X)] for view, X in views.items() if id(X) in named}, cells, columns)


def _of_arrays(reader: Trial, upload: Upload, path: Any, source: Source, labels: Any) -> _Part:
    """Open a data source that is not a table with named columns."""
    ending = ending_of(path)
    if ending not in (".arff", *SVMLIGHT) and (source.name is not None or ending != ".npz"):
        view, X = reader.view_of(upload), open_source(source)
        table = path if source.is_sharded else np.arange(X.shape[0])[:, None]
        return _Part({view: X}, None, {view: source}, table)
    notes, ids = list(reader.notes), None
    if ending == ".arff" and labels is not None:
        view = reader.view_of(upload)
        views = {view: rows(open_table(view, {ALL: path}, label_columns(labels)).X)}
    else:
        views, ids, _ = reader.read_all([upload])
        reader.notes[:0] = notes
    table = np.arange(next(iter(views.values())).shape[0])[:, None] if ending == ".npz" else path
    return _Part(views, ids, {}, table)


def _check_ids(path: Any, ids: Sequence[str] | None, shards: Sequence[tuple[str, int]]) -> None:
    """Raise DataError if several rows have the same id."""
    if ids is None or len(set(ids)) == len(ids):
        return
    twice = Counter(ids).most_common(1)[0][0]
    places = [row_of_shard(shards, i) for i, one in enumerate(ids) if one == twice]
    where = f" ({' and '.join(map(str, places[:2]))})" if all(places) else ""
    raise DataError(f"{path}: the id {twice!r} is in {len(places)} rows{where}, expected 1")


def _numbers(reader: Trial, source: Source, others: Sequence[str]) -> list[str]:
    """Return the Parquet columns that can be read in place; the list is empty if the table needs a conversion.

    Only models of a single table of numbers can read their columns in place.
    """
    schemas = list(reader.columns.values())
    if len(schemas) != 1 or source.ending not in PARQUET or source.name is not None:
        return []
    schema, options = schemas[0], reader.options
    plain = not (schema.missing or options.missing or options.types) and all(c.kind == "number" for c in schema.columns)
    names = schema.features if plain and not {*schema.features} & {*others} else []
    return names if all({*names} <= number_columns(path).keys() for path in source.paths) else []


def _joined(
    path: str,
    fitted: Any,
    reader: Trial,
    samples: Samples,
    parts: Mapping[str, _Part],
    asked: Any,
    key: str | None,
    options: Mapping[str, Any],
) -> Samples:
    """Put the rows of all data sources into the order of the first one, and read the labels in the model's order."""
    tables = {view or next(iter(part.views)): part.table for view, part in parts.items()}
    key = None if reader.options.row_names else key
    split = options.get("split") if any(options.get("split") in part.columns for part in parts.values()) else None
    read = _label_options(fitted, reader, options)
    joined, by_column = join_tables(tables, asked, read, id=key, split=split, how=options.get("how"))
    for note in joined.notes:
        log.warning("%s", note)
    views = dict(samples.views)
    for (name, table), part in zip(tables.items(), parts.values(), strict=True):
        if not part.columns:
            continue
        found = joined.views[name][:, 0]
        if np.isnan(found).any():
            raise UserError(f"{path}: some samples are missing in {name!r}; convert the files with dmo ingest files")
        index = found.astype(np.intp)
        if not np.array_equal(index, np.arange(table.shape[0])):
            for view in part.views:
                X = views[view]
                views[view] = X[index] if in_memory(X) else Subset(X, index)
    samples = replace(samples, views=views, ids=samples.ids if joined.ids is None else joined.ids, split=joined.split)
    return samples if joined.labels is None else _in_columns(path, fitted, samples, joined, by_column)


def _found_labels(path: str, parts: Collection[_Part], asked: Any, is_given: bool) -> Any:
    """Return the argument `labels` of `ingest_files`, or None if the files lack the labels used in training."""
    names = _names(asked)
    columns = [name for part in parts for name in part.columns]
    there = bool(chosen_columns(columns, names)[0])
    if isinstance(asked, str) and there and not os.path.exists(split_name(asked)[0]):
        return names
    if names and not there and columns and is_given and not isinstance(asked, str):
        raise unknown_column(path, names[0], columns, "label column")
    in_files = any(isinstance(part.table, str) and ending_of(part.table) == ".arff" for part in parts)
    return asked if is_given or in_files or (there and not isinstance(asked, str)) else None


def _label_options(fitted: Any, reader: Trial, options: Mapping[str, Any]) -> LearnedLabels:
    """Return the options for reading labels, with the type and the names of the labels of the model."""
    kept: dict[str, Any] = {name: options[name] for name in _READING if name in options and name != "drop_columns"}
    decimals = {schema.decimal for schema in reader.columns.values()} - {"."}
    kept = {"decimal": next(iter(decimals), None), **kept}
    names, kind = _learned_names(fitted) or (), "category"
    if learned_values(fitted):
        kind, kept["types"] = "number", dict.fromkeys(names, "number") | dict(kept.get("types", {}))
    elif getattr(fitted, "multilabel_", True):
        kind = "labels"
    return LearnedLabels(**kept, kind=kind, names=names)


def _learned_names(fitted: Any) -> list[str] | None:
    """Return the names of the labels or classes of a model, or None if the labels had no names in training."""
    if getattr(fitted, "multilabel_", True) and getattr(fitted, "label_names_", None) is None:
        return None
    return label_names(fitted)


def _in_columns(path: str, fitted: Any, samples: Samples, joined: Samples, by_column: bool) -> Samples:
    """Put label columns into the order of the model.

    Labels that the samples lack become columns of zeros. Classes that the model does not know are appended.
    """
    Y: Any = joined.labels
    names, known = joined.label_names, _learned_names(fitted)
    real = learned_values(fitted) or joined.real
    if known is not None and names is None and Y.shape[1] == len(known):
        names = known
    if known is not None and names is not None:
        place, learned = {name: j for j, name in enumerate(names)}, {*known}
        lost, extra = [name for name in known if name not in place], [name for name in names if name not in learned]
        if lost and by_column:
            raise DataError(
                f"{path} has no column for the label {lost[0]!r} that the model learned; pass all of its labels"
            )
        if extra and not joined.classes:
            shown = ", ".join(map(repr, extra[:3])) + (f" and {len(extra) - 3} more" if len(extra) > 3 else "")
            log.warning("%s: ignoring labels that the model did not learn: %s", path, shown)
        names = [*known, *(extra if joined.classes else [])]
        unknown = np.flatnonzero(np.isnan(Y.sum(axis=1)))
        if lost:  # Labels that are missing from the data become columns of zeros.
            Y = scipy.sparse.csr_array(Y)
            Y = scipy.sparse.csr_array((Y.data, Y.indices, Y.indptr), (Y.shape[0], Y.shape[1] + 1))
        Y = Y[:, [place.get(name, len(place)) for name in names]]
        Y = unknown_rows(Y, unknown) if lost else Y
    Y = dense(Y).astype(np.float64) if real else Y
    return replace(samples, labels=Y, label_names=names, real=real, classes=joined.classes)
