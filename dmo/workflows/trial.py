"""Interactive trial of a fitted model on uploaded images or tables, for `dmo serve`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import BytesIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import scipy.sparse

from dmo import stores
from dmo.blocks import SINGLE, Rows, dense, rows
from dmo.datasets import open_npz, open_table
from dmo.datasets.files import documents
from dmo.datasets.samples import TextVocabulary
from dmo.errors import UserError
from dmo.features.extraction import Extractor
from dmo.features.images import NAMES, need_library
from dmo.formats.files import suffix
from dmo.formats.frames import FRAMES, NUMBERS, ROW_NAMES, TABLES, frame_shape, read_frame, vectors
from dmo.formats.schema import Column, Schema, TableOptions, exact, learn_schema, text_cells
from dmo.formats.sources import folder_shards
from dmo.formats.tables import SVMLIGHT, is_svmlight
from dmo.workflows.apply import AppliedModel, columns_of, learned_values, rows_of, schema_of
from dmo.workflows.images import stored_image
from dmo.workflows.search import Places, found_rows, space
from dmo.workflows.tables import csv_text, guarded

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (*FRAMES, ".npy", ".npz", ".arff", *SVMLIGHT)
"""File name extensions of uploads, without compressed files, which can be decompression bombs."""
IDS = ("id", "document", *NAMES)
"""Possible names of columns with sample ids, in lower case."""
_MEMORY, _COPIES, _OTHERS = 3 << 30, 4, 1000
"""Memory limit for reading files in bytes, number of copies of the rows that are added to this limit, and maximum
number of columns that the model does not use. PyArrow alone reserves 1 GiB of address space."""
_SMALL = 1 << 16
"""Maximum size in bytes of text files that are read in the main process, which is ten times faster for small files."""
NEIGHBORS, SHOWN, SIDE, FIELDS = 6, 12, 160, 60
"""Number of neighbors and number of labels that are shown per sample, side length of a thumbnail in pixels, and maximum
number of table columns whose values are shown."""
log = logging.getLogger("dmo")

Read = tuple[dict[str, Any], list[str] | None, list[str]]
"""Contents of files: the views, the sample ids (None if there are none), and notes."""
_File = tuple[dict[str, Any], list[str] | None]
"""Contents of a file: the views, and the sample ids (None if there are none)."""


@dataclass(frozen=True)
class Upload:
    """File that a user uploaded."""

    name: str  # Name of the file on the computer of the user, from which only the extension and a view name are used.
    path: Path  # Path of a temporary file with the contents.

    @property
    def view(self) -> str:
        """Name of the file without its extension, which can be the name of a view."""
        return Path(self.name).name.partition(".")[0]


@dataclass(frozen=True, eq=False)
class Trial:
    """Model that is tried on uploaded files, created by `dmo.workflows.rows.open_trial`."""

    model: Any  # Fitted model that predicts labels or regression targets.
    names: list[str]  # Names of the labels.
    count: int | None  # Number of labels per sample; None stands for the label sets that the model predicts.
    extractor: Extractor | None  # Extractor of image features, or None for models that were not fitted on images.
    columns: Mapping[str, Schema]  # Table columns of each view whose column names are known.
    texts: Mapping[str, TextVocabulary]  # Vocabularies of views of documents.
    known: AppliedModel | None  # Samples among which neighbors are searched for, or None.
    most: int  # Maximum number of rows in a file.
    id: str | None = None  # Name of the column with sample ids in the training data.
    options: TableOptions = field(default_factory=TableOptions)  # Options for reading tables.
    notes: list[str] = field(default_factory=list)  # Notes about the files that were read last.

    @property
    def widths(self) -> dict[str, int]:
        """Number of columns of each view."""
        return dict(self.model.view_widths_)

    @cached_property
    def places(self) -> Places:
        """Index for the nearest neighbors of a sample among the known samples in the embedding."""
        assert self.known is not None
        return Places(rows_of(self.known, space(self.known)[1], "place samples"))

    @cached_property
    def table(self) -> dict[str, Schema]:
        """Schemas of the views, if all views are columns of one table that is small enough to be shown, or empty."""
        known = {view: self.columns[view] for view in self.widths if view in self.columns}
        named = {name for schema in known.values() for name in (column.name for column in schema.columns)}
        right = all(len(known[view].features) == self.widths[view] for view in known)
        complete = known.keys() | self.texts.keys() >= self.widths.keys()
        return known if self.extractor is None and right and complete and len(named) <= FIELDS else {}

    @cached_property
    def fields(self) -> list[dict[str, Any]]:
        """Columns of the table, with their types and the values of an example, which is the first known sample."""
        if not self.table:
            return []
        some = {} if self.known is None else self.known.some(slice(0, 1))
        example = self._cells({view: rows(X) for view, X in some.items()})[0] if some else {}
        columns = [(view, schema.decimal, column) for view, schema in self.table.items() for column in schema.columns]
        columns += [(view, ".", Column(view, "text")) for view in self.texts if view in self.widths]
        prepared = getattr(self.model, "preparations_", {})
        found = {
            column.name: {
                "name": column.name,
                "kind": column.kind,
                "levels": list(column.levels),
                "decimal": decimal,
                "missing": column.kind == "text" or (view in prepared and prepared[view].fill is not None),
                "example": example.get(column.name),
            }
            for view, decimal, column in columns
        }
        return list(found.values())

    def _cells(self, views: Mapping[str, Any]) -> list[dict[str, str | None]]:
        """Convert rows of the views to one mapping of column name to text per sample."""
        found: list[dict[str, str | None]] = [{} for _ in range(next(iter(views.values())).shape[0])]
        for view, schema in self.table.items():
            X, first = dense(views[view]), 0
            for column in schema.columns:
                width = len(column.features)
                for sample, value in zip(found, column.cells(X[:, first : first + width])):
                    sample[column.name] = _written(value, X.dtype)
                first += width
        return found

    def images(self, uploads: Sequence[Upload], only: int | None = None) -> list[dict[str, Any]]:
        """Predict the labels of uploaded images, whose features are extracted as in training."""
        if self.extractor is None:
            raise UserError(
                f"the model was not fitted on images; pass rows of its views ({', '.join(self.widths)}), such as CSV"
            )
        views, failures = self.extractor.rows([upload.path for upload in uploads], 1)
        for number, reason in failures.items():
            raise UserError(reason.replace(str(uploads[number].path), uploads[number].name))
        return self._answers([upload.name for upload in uploads], {view: views[view] for view in self.widths}, only)

    def rows(
        self, uploads: Sequence[Upload], seconds: float | None = None, only: int | None = None
    ) -> list[dict[str, Any]]:
        """Predict the labels of uploaded rows, in one file for all views or in one file per view."""
        small = all(one.path.suffix in (".csv", ".tsv") and one.path.stat().st_size <= _SMALL for one in uploads)
        views, ids, self.notes[:] = (
            self.read_all(uploads) if small or seconds is None else self._apart(uploads, seconds)
        )
        counts = {view: X.shape[0] for view, X in views.items()}
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{view} {n}" for view, n in counts.items())
            raise UserError(f"the views have different numbers of rows ({said}); pass the same samples in every file")
        if 0 in counts.values():
            raise UserError(f"{uploads[0].name} has no rows; pass at least one sample")
        n = next(iter(counts.values()))
        return self._answers(row_names(uploads[0].name, n) if ids is None else ids, views, only)

    def _apart(self, uploads: Sequence[Upload], seconds: float) -> Read:
        """Call `read_all` in a separate process with limited memory and a time limit of `seconds`."""
        context = readers()
        fitted = SimpleNamespace(view_widths_=self.widths)
        reader = Trial(fitted, [], None, None, self.columns, self.texts, None, self.most, self.id, self.options)
        memory = _MEMORY + 8 * _COPIES * self.most * sum(self.widths.values())
        ours, its = context.Pipe(duplex=False)
        process = context.Process(target=_read_within, args=(its, reader, uploads, memory), daemon=True)
        try:
            process.start()
            its.close()
            if not ours.poll(seconds):
                raise UserError(
                    f"the files were not read within {seconds:g} seconds; send less at once, or raise --seconds"
                )
            found = ours.recv()
        except EOFError:
            found = UserError("the files cannot be read: the process that reads them crashed; try dmo annotate")
        finally:
            process.kill()
            process.join()
            ours.close()
        if isinstance(found, Exception):
            raise found
        return found

    def read_all(self, uploads: Sequence[Upload]) -> Read:
        """Read the views in all files, the sample ids in the first file with ids, and notes."""
        self.notes.clear()
        views: dict[str, Any] = {}
        ids: list[str] | None = None
        for upload in uploads:
            try:
                found, own = self._read(upload, len(uploads) == 1)
            except (UserError, OSError) as error:
                raise UserError(str(error).replace(str(upload.path), upload.name)) from error
            twice = next((view for view in found if view in views), None)
            if twice is not None:
                raise UserError(f"{upload.name}: view {twice!r} is in another file too; pass each view once")
            views |= found
            ids = own if ids is None else ids
        return views, ids, list(dict.fromkeys(self.notes))

    def _answers(self, ids: Sequence[str], views: Mapping[str, Any], only: int | None = None) -> list[dict[str, Any]]:
        """Predict the labels of samples, or all labels of a single sample if its number `only` is given."""
        if only is not None:
            if not 0 <= only < len(ids):
                raise UserError(f"there is no sample {only}; pass a number below {len(ids)}")
            ids, views = [ids[only]], {view: X[only : only + 1] for view, X in views.items()}
        most = SHOWN if only is None else len(self.names)
        found = self.model.decide(views, self.count)
        values, given = found.scores if found.probabilities is None else found.probabilities, found.sets
        near, cells = self._neighbors(views, found.scores), self._cells(views) if self.table else [{}] * len(ids)
        answers = []
        for i, name in enumerate(ids):
            labels: list[dict[str, Any]]
            if given is None:  # Round values as `dmo annotate --csv` does.
                labels = [{"name": target, "value": float(f"{v:.6g}")} for target, v in zip(self.names, values[i])]
            else:
                order = np.lexsort((-values[i], ~given[i]))[: max(most, int(given[i].sum()))]
                labels = [
                    {"name": self.names[j], "value": round(float(values[i, j]), 4), "given": bool(given[i, j])}
                    for j in order
                ]
            answers.append({"id": name, "features": cells[i], "labels": labels, "neighbors": near[i] if near else []})
        return answers

    @property
    def task(self) -> str:
        """Kind of the outputs: "labels", "classes" (one per sample), or "targets" for regression."""
        if learned_values(self.model):
            return "targets"
        return "labels" if getattr(self.model, "multilabel_", True) else "classes"

    @property
    def kind(self) -> str:
        """Kind of the values of labels: "probabilities", "scores", or "numbers" for regression targets."""
        if learned_values(self.model):
            return "numbers"
        return "scores" if self.model.decoding_ is None else "probabilities"

    def _neighbors(self, views: Mapping[str, Any], scores: np.ndarray) -> list[list[dict[str, Any]]]:
        if self.known is None:
            return []
        Z = self.model.transform(views) if hasattr(self.model, "transform") else scores
        found = []
        for z in np.asarray(Z):
            near, values = self.places.nearest(z, NEIGHBORS)
            found.append([entry | {"row": int(i)} for i, entry in zip(near, found_rows(self.known, near, values))])
        return found

    def thumbnail(self, row: int) -> bytes | None:
        """Create a JPEG thumbnail of a known sample, or return None if the sample has no image."""
        if self.known is None or not 0 <= row < self.known.n:
            return None
        image = stored_image(self.known.store, self.known.ids[row])
        if image is None:
            return None
        small = need_library("PIL.Image").fromarray(image)
        small.thumbnail((SIDE, SIDE))
        buffer = BytesIO()
        small.save(buffer, "JPEG", quality=80)
        return buffer.getvalue()

    def _read(self, upload: Upload, alone: bool = True) -> _File:
        """Read the views and the sample ids of a file, which contains all views if `alone` is true."""
        ending = suffix(upload.name)
        if upload.path.is_dir():
            table = self._frame(upload) if folder_shards(upload.path) else documents(upload.path)
            return self.of_table(upload, table, alone)
        if ending not in ENDINGS:
            known = ", ".join(ENDINGS)
            raise UserError(f"{upload.name} is not a data file that can be tried; expected one of {known}")
        if ending in FRAMES and not is_svmlight(upload.path):
            n, d = frame_shape(upload.path) if ending in TABLES else (0, 0)
            self._check_rows(upload, n)
            if d > sum(self.widths.values()) + _OTHERS:
                raise UserError(
                    f"{upload.name} has {d} columns, the model has {sum(self.widths.values())}; at most {_OTHERS} "
                    "additional columns are read"
                )
            return self.of_table(upload, self._frame(upload), alone)
        if ending == ".npz":
            arrays = open_npz(upload.path)
            found = {view: arrays[view] for view in self.widths if view in arrays}
            rows_ = [array for array in arrays.values() if len(array.shape) == 2]
            if not found and len(rows_) == 1:
                found = {self.view_of(upload): rows_[0]}
            if not found:
                raise UserError(
                    f"{upload.name} holds the arrays {', '.join(arrays)}; name them {', '.join(self.widths)}"
                )
        else:
            view = self.view_of(upload)
            found = {view: open_table(view, {"all": upload.path}, with_labels=True).X}
        return {view: self._checked(upload, view, X) for view, X in found.items()}, None

    def _frame(self, upload: Upload) -> pd.DataFrame:
        notes: list[str] = []
        found = read_frame(upload.path, notes, self.options)
        self._note(upload, notes)
        return found

    def _note(self, upload: Upload, notes: Sequence[str]) -> None:
        self.notes.extend(note.replace(str(upload.path), upload.name) for note in notes)

    def view_of(self, upload: Upload) -> str:
        """Return the view that a file contains: the view with the name of the file, or the only view of the model."""
        if upload.view in self.widths:
            return upload.view
        if len(self.widths) > 1:
            raise UserError(f"{upload.name}: unknown view; name the file {', '.join(self.widths)} with its extension")
        return next(iter(self.widths))

    def _checked(self, upload: Upload, view: str, source: Any) -> Any:
        """Read a view after validating its shape, because a small file can contain a large array."""
        if len(source.shape) != 2 or np.dtype(source.dtype).kind not in "buif":
            raise UserError(f"{upload.name} holds {source.dtype} of shape {source.shape}, expected rows of numbers")
        n, d = source.shape
        self._check_rows(upload, n)
        width = self.widths[view]
        if d != width and not (d < width and suffix(upload.name) in SVMLIGHT):
            raise UserError(f"{upload.name} has {d} columns, the model was fitted on {width} of view {view!r}")
        X = rows(source)
        if d == width:
            return X
        X = scipy.sparse.csr_array(X, copy=True)
        X.resize(n, width)  # Sparse text files can lack trailing columns of zeros.
        return X

    def _check_rows(self, upload: Upload, n: int) -> None:
        if n > self.most:
            raise UserError(f"{upload.name} has {n} rows, but at most {self.most} are tried at once; use dmo annotate")

    def of_table(
        self, upload: Upload, table: pd.DataFrame, alone: bool, unread: Mapping[str, Rows] | None = None
    ) -> _File:
        """Extract views from a table by column names; additional columns and the order of columns are ignored."""
        self._check_rows(upload, len(table))
        row_names = table.attrs.get(ROW_NAMES)
        table = table.set_axis([str(name) for name in table.columns], axis=1)
        wanted = [upload.view] if upload.view in self.widths and not alone else list(self.widths)
        features = {name for view in wanted if view in self.columns for name in self.columns[view].features}
        others = {*features, *self.texts}
        known = [self.id, row_names, *(name for name in table.columns if name.lower() in IDS and name not in others)]
        if self.id is not None and self.id == table.index.name and self.id not in table.columns:
            table = table.reset_index()
        named = next((name for name in known if name in table.columns), None)
        ids = None if named is None else _ids(upload.name, named, table[named])
        table = table if named is None else table.drop(columns=named)
        own, table = vectors(upload.name, table)
        listed: dict[str, Any] = {**own, **(unread or {})}
        cells = listed.pop(NUMBERS, None)  # Numeric columns of the only view, which are not read yet.
        found: dict[str, Any] = {}
        notes: list[str] = []
        for view in wanted:
            if cells is not None and view in self.columns:
                found[view] = cells
                continue
            column = next((name for name in (view, view.rpartition(".")[2]) if name in listed), None)
            if column is None and view not in self.columns and len(listed) == 1:
                column = next(iter(listed))
            if column is not None:
                X = listed[column]
                is_unread = column in (unread or {}) and X.shape[1] == self.widths[view]
                found[view] = X if is_unread else self._checked(upload, view, X)
            elif view in self.texts and view in table.columns:
                cells = text_cells(table[view])
                if cells is None:
                    raise UserError(f"{upload.name}: column {view!r} is of type {table[view].dtype}, expected texts")
                found[view] = self.texts[view].rows(cells.fill_null("").to_pylist())
            elif view in self.columns and (
                len(wanted) > 1 or any(_source(name, table) for name in self.columns[view].features)
            ):
                schema = _with_words(self.columns[view], table)
                found[view] = schema.encode(upload.name, table, notes, self.options)
            elif len(wanted) == 1:
                numbers = {**dict.fromkeys(table.columns, "number"), **self.options.types}
                schema, X = learn_schema(upload.name, table, replace(self.options, types=numbers))
                found[view] = self._checked(upload, view, X)
            else:
                raise UserError(
                    f"{upload.name}: the model does not record the column names of view {view!r}; pass one file per "
                    f"view, named {', '.join(wanted)}"
                )
        self._note(upload, notes)
        return found, ids


def _written(value: float | str | None, dtype: np.dtype) -> str | None:
    """Format a cell of a table as text that can be read again."""
    if value is None or isinstance(value, str):
        return value
    return exact(float(f"{value:.7g}") if dtype == np.float32 else value)


def _ids(where: str, name: str, column: pd.Series) -> list[str]:
    """Return the sample ids in a column as they are written in the file."""
    cells = text_cells(column)
    found = [exact(cell) for cell in column] if cells is None else cells.fill_null("").to_pylist()
    if any(not one.strip() or lost for one, lost in zip(found, column.isna())):
        row = next(i for i, one in enumerate(found) if not one.strip() or column.isna().iloc[i])
        raise UserError(f"{where}: column {name!r}, row {row} is empty, expected the id of a sample")
    return found


def row_names(name: str, n: int) -> list[str]:
    """Create names for the n rows of a file without sample ids."""
    return [f"{name}:{row}" for row in range(n)]


def readers() -> Any:
    """Start a fork server for processes that read files, and return its multiprocessing context."""
    if sys.platform == "win32":
        return get_context("spawn")
    from multiprocessing.forkserver import ensure_running

    context = get_context("forkserver")
    # The fork server imports pandas and, through `dmo.inputs`, scikit-learn. Otherwise, each process that reads files
    # would import these packages, which takes seconds and a part of its memory limit.
    context.set_forkserver_preload([__name__, "dmo.inputs"])
    ensure_running()
    return context


def _read_within(answer: Connection, reader: Trial, uploads: Sequence[Upload], memory: int) -> None:
    """Read files with at most `memory` additional bytes, and send the result or the error to the main process."""
    if sys.platform != "win32":
        import resource

        own = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (own + memory, own + memory))
    found: Any
    try:
        found = reader.read_all(uploads)
    except MemoryError:
        found = UserError(
            f"reading the files needs more than {memory >> 20} MiB of memory; send fewer rows, or use dmo annotate"
        )
    except Exception as error:  # The main process raises the error that it receives.
        found = error
    answer.send(found)


def _source(name: str, table: pd.DataFrame) -> str | None:
    """Return the table column of a feature, which is COLUMN for a feature with the name COLUMN=WORD."""
    ends = (at for at, letter in enumerate(f"{name}=") if letter == "=")
    return next((name[:at] for at in (len(name), *ends) if name[:at] in table.columns), None)


def _with_words(schema: Schema, table: pd.DataFrame) -> Schema:
    """Convert features named COLUMN=WORD to a categorical column, for models that were saved without a schema."""
    columns: list[Column] = []
    for column in schema.columns:
        source = _source(column.name, table) if column.kind == "number" else column.name
        if source in (None, column.name):
            columns.append(column)
            continue
        word = column.name[len(source) + 1 :]
        if columns and columns[-1].name == source:
            columns[-1] = replace(columns[-1], levels=(*columns[-1].levels, word))
        else:
            columns.append(Column(source, "category", (word,)))
    return replace(schema, columns=tuple(columns))


def row_reader(
    model: str, fitted: Any, store: stores.FeatureStore | None = None, options: TableOptions | None = None
) -> Trial:
    """Create a `Trial` that reads rows for a model, by the schemas and vocabularies of the model or of a store."""
    parameters = stores.describe(model)["provenance"].get("parameters") or {}
    kept = parameters.get("columns", {}) if store is None else columns_of(store, fitted)
    columns = {view: schema_of(about) for view, about in kept.items() if "idf" not in about}
    names = dict(getattr(fitted, "view_feature_names_", {}))
    if hasattr(fitted, "feature_names_in_"):
        names[SINGLE] = list(fitted.feature_names_in_)
    columns |= {view: Schema.of_numbers(own) for view, own in names.items()}
    columns |= {view: Schema.from_dict(known) for view, known in getattr(fitted, "table_schemas_", {}).items()}
    texts = {
        view: TextVocabulary(about["names"], np.array(about["idf"])) for view, about in kept.items() if "idf" in about
    }
    made = ((parameters.get("features") or {}).get("parameters") or {}).get("options", {})
    options = options or TableOptions()
    if options.row_names is False and made.get("row_names"):
        options = replace(options, row_names=True)
    return Trial(fitted, [], None, None, columns, texts, None, sys.maxsize, made.get("id"), options)


def corrections_csv(samples: Sequence[tuple[str, Sequence[str]]]) -> str:
    r"""Format samples and their corrected labels as a CSV table, which `dmo update` can read."""
    # The table is also valid input for `dmo extract --labels` and `dmo ingest files --labels`. Cells that a spreadsheet
    # would evaluate as a formula are escaped as in `dmo.workflows.tables.csv_rows`.
    lines = [["sample", "labels"]]
    for name, labels in samples:
        for label in labels:
            if not label.strip() or any(mark in label for mark in ";\r\n"):
                raise UserError(f"the label {label!r} cannot be written; labels need text without ';' and line breaks")
        lines.append([guarded(name), guarded(";".join(labels))])
    return csv_text(lines)
