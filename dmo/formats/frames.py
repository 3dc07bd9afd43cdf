"""Readers of tables, which may be CSV, Parquet, Arrow or JSON Lines files, folders of such files, or DataFrames."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from dmo.blocks import Rows
from dmo.formats.delimited import MARKS, read_text, text_of
from dmo.formats.files import DataError, check_memory, existing, lines, suffix
from dmo.formats.parquet import (
    ParquetNumbers,
    ParquetVectors,
    by_pyarrow,
    number_columns,
    open_parquet,
    top_columns,
    vector_columns,
)
from dmo.formats.schema import (
    LEVELS,
    NUMPY,
    Column,
    TableOptions,
    chosen_columns,
    has_lists,
    is_list,
    is_missing,
    text_cells,
    unknown_column,
    whole_numbers,
)
from dmo.formats.sources import PARQUET, Source, parse_source, stack_shards

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow.parquet import ParquetFile

_ARROW, _JSON_LINES = (".arrow", ".arrows", ".feather"), (".jsonl", ".ndjson")
_TEXT = (".csv", ".tsv", ".txt")
TABLES = (*_TEXT, *PARQUET)
"""File extensions of tables whose number of columns is known before the cells are read."""
FRAMES = (*TABLES, *_ARROW, *_JSON_LINES)
"""File extensions of all supported tables."""
_TEXTS, _WRITTEN_OUT = 2, {"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
"""Number of copies of a string in memory while a table is created, and Parquet encodings that store every string."""
CLASS_NAMES = {"class", "classes", "label", "labels", "target", "species", "category", "y"}
"""Common names of class columns."""
_VECTOR = r"[\[(][-+0-9.eE,\sna]*[\])]"
ROW_NAMES = "row_names"
"""Key in the `attrs` of a DataFrame for the name of the column that contains row names."""
NUMBERS = "\0numbers"
"""Name of the array that is formed from the numeric columns of a table."""
SHARDS = "shards"
"""Key in the `attrs` of a DataFrame for the names and row counts of the files that it was read from."""


def read_frame(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    notes: list[str] | None = None,
    options: TableOptions | None = None,
    unread: dict[str, Rows] | None = None,
    others: Sequence[str] = (),
    numbers: Sequence[str] = (),
) -> pd.DataFrame:
    """Read a table as a DataFrame. The cells of text formats are not converted to numbers."""
    # If `unread` is a dictionary, vector columns and the columns `numbers` of Parquet files are not read. Instead,
    # `unread` receives array-like objects that read these columns later. Columns in `others` are always read.
    notes, options, source = [] if notes is None else notes, options or TableOptions(), parse_source(path)
    shards, vectors = list[Any](), list[dict[str, Rows]]()
    for shard in source.paths:
        vectors.append({})
        skipped = None if unread is None else vectors[-1]
        table = _one_frame(shard, notes, options, skipped, others, source.name, numbers)
        if shards and set(table.columns) | set(vectors[-1]) != set(shards[0].columns) | set(vectors[0]):
            odd = sorted({*table.columns, *vectors[-1]} ^ {*shards[0].columns, *vectors[0]}, key=str)
            raise DataError(
                f"{shard}: has other columns than {source.paths[0]} ({odd[0]!r} is in only one of them), expected the "
                "same columns in every shard; add or remove the column"
            )
        if source.is_sharded and not len(table):
            raise DataError(f"{shard}: has no rows, expected at least one in every shard; write it again, or remove it")
        shards.append(table)
    if unread is not None:
        unread |= {name: stack_shards(source, [own[name] for own in vectors]) for name in vectors[0]}
        if numbers:
            unread[NUMBERS] = open_numbers(replace(source, columns=tuple(numbers)))
    if not source.is_sharded:
        return shards[0]
    import pandas as pd

    notes[:] = list(dict.fromkeys(notes))
    notes.append(f"{source.text}: {len(shards)} parts are read as one table, in the order of their names")
    found = pd.concat(shards, ignore_index=True)
    found.attrs = {**shards[0].attrs, SHARDS: [(shard, len(own)) for shard, own in zip(source.paths, shards)]}
    return found


def _one_frame(
    path: str,
    notes: list[str],
    options: TableOptions,
    unread: dict[str, Rows] | None,
    others: Sequence[str],
    name: str | None,
    numbers: Sequence[str],
) -> pd.DataFrame:
    """Read one file of a table; if `name` is given, read only the columns `name` and `others`."""
    if suffix(path) in PARQUET:
        return _parquet(path, unread, others, name, numbers)
    file = existing(path)
    if suffix(file) in _ARROW:
        found = _arrow(file)
    elif suffix(file) in _JSON_LINES:
        found = _json_lines(file, text_of(file).decode())
    else:
        table, names = read_text(file, options, notes)
        found = _frame(table)
        if names is not None:
            found.attrs[ROW_NAMES] = names
    return found if name is None else found[_columns(path, name, list(found.columns), others)]


def _columns(path: str | os.PathLike[str], name: str, known: Sequence[str], others: Sequence[str]) -> list[str]:
    """Select the column `name` and the columns that match `others`; raise DataError if `name` does not exist."""
    if name not in known:
        raise unknown_column(f"{path}", name, known)
    return [column for column in known if column == name or column in chosen_columns(known, others)[0]]


def table_numbers(source: Source, others: Sequence[str], options: TableOptions) -> list[str]:
    """List the feature columns of Parquet files, or return an empty list if some of them are not numeric."""
    if source.ending not in PARQUET or source.name is not None or options.missing:
        return []
    found = list[list[str]]()
    for path in source.paths:
        file = open_parquet(path)
        kept = {*chosen_columns(file.schema_arrow.names, [*others, *options.drop_columns])[0], *vector_columns(file)}
        names = [name for name in file.schema_arrow.names if name not in kept]
        decided = any(options.types.get(name, "number") != "number" or _is_class_name(name) for name in names)
        if decided or not {*names} <= number_columns(path).keys():
            return []
        found.append(names)
    return found[0] if all({*names} == {*found[0]} for names in found) else []


def open_numbers(source: Source) -> Rows:
    """Open the numeric columns of Parquet files as one array, of type float32 if no column needs float64."""
    types = [number_columns(path) for path in source.paths]
    for path, own in zip(source.paths, types):
        for name in source.columns:
            found, expected = own[name], types[0][name]
            # Some programs store an integer column as floats if values are missing, so integer and float columns may be
            # mixed.
            if found != expected and found.kind == expected.kind == "f":
                raise DataError(
                    f"{path}: column {name!r} is of type {found}, expected {expected} as in {source.paths[0]}; write "
                    "all shards with the same types"
                )
    narrow = all(own[name].kind == "f" and own[name].itemsize <= 4 for own in types for name in source.columns)
    dtype = np.dtype(np.float32 if narrow else np.float64)
    return stack_shards(source, [ParquetNumbers(path, source.columns, dtype) for path in source.paths])


def _is_class_name(name: str) -> bool:
    return name.strip().lower() in CLASS_NAMES


def _parquet(
    path: str, unread: dict[str, Rows] | None, others: Sequence[str], name: str | None, numbers: Sequence[str]
) -> pd.DataFrame:
    file = open_parquet(path)
    known = list(file.schema_arrow.names)
    chosen = known if name is None else _columns(path, name, known, others)
    if unread is not None:
        kept = set(chosen_columns(known, others)[0])
        unread |= {
            column: ParquetVectors(path, column) for column in vector_columns(file) if column in {*chosen} - kept
        }
        chosen = [column for column in chosen if column not in unread and column not in numbers]
    with by_pyarrow(path, "Parquet"):
        _check_parquet(path, file, chosen)
        return _frame(file.read(columns=chosen))


def _frame(table: Any) -> pd.DataFrame:
    """Convert an Arrow table to a DataFrame with Arrow strings, and with exact integers even if values are missing."""
    import pandas as pd
    import pyarrow as pa

    text = {pa.string(): pd.ArrowDtype(pa.string()), pa.large_string(): pd.ArrowDtype(pa.large_string())}
    return table.to_pandas(types_mapper=text.get, integer_object_nulls=True)


def _arrow(path: Path) -> pd.DataFrame:
    with by_pyarrow(path, "Arrow"):
        import pyarrow as pa

        with pa.OSFile(os.fspath(path)) as file:
            is_file = file.read(6) in (b"ARROW1", b"FEA1")
            file.seek(0)
            with pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file) as reader:
                batches = []
                for batch in (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader:
                    batches.append(batch)
                    check_memory(path, batch.nbytes)
                return _frame(pa.Table.from_batches(batches, reader.schema))


def _json_lines(path: Path, text: str) -> pd.DataFrame:
    """Read a table with one JSON object per line. If an object lacks a key, the cell is a missing value."""
    import pandas as pd

    records = []
    for number, line in enumerate(io.StringIO(text), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is not valid JSON ({error}); write one object per line") from None
        if not isinstance(found, dict):
            raise DataError(f"{path}: line {number} is a {type(found).__name__}, expected an object with named cells")
        records.append(found)
    if not records:
        raise DataError(f"{path}: is empty, expected a table; write one object per line")
    table = pd.DataFrame.from_records(records)
    for name in table.columns:  # nested objects are not supported
        nested = next((row for row, cell in enumerate(table[name]) if isinstance(cell, dict)), None)
        if nested is not None:
            raise DataError(
                f"{path}: column {name!r}, row {nested} is an object; leave it out, or write its parts as columns"
            )
    return table


def as_frame(given: Any, exact: bool = False) -> pd.DataFrame | None:
    """Convert a pandas, polars or pyarrow table to a pandas DataFrame; return None for other objects.

    If `exact` is True, integer columns with missing values are not converted to floats.
    """
    kind = type(given)
    if hasattr(kind, "collect_schema") and hasattr(kind, "collect"):  # a polars LazyFrame
        given = given.collect()
        kind = type(given)
    if hasattr(kind, "get_columns") and hasattr(kind, "lazy"):  # a polars DataFrame, which is converted without pyarrow
        import pandas as pd

        def of(column: Any) -> Any:
            return (
                column.to_list() if exact and column.dtype.is_integer() and column.null_count() else column.to_numpy()
            )

        cells = {name: of(given.get_column(name)) for name in given.columns}
        return pd.DataFrame(
            {
                name: list(v)
                if getattr(v, "ndim", 1) > 1
                else pd.Series(v, dtype=object if isinstance(v, list) else None)
                for name, v in cells.items()
            }
        )
    if hasattr(kind, "column_names") and hasattr(kind, "to_pandas"):  # a pyarrow Table
        given = _frame(given) if exact else given.to_pandas()
    pandas = sys.modules.get("pandas")  # if pandas is not imported, `given` is not a DataFrame
    return given if pandas is not None and isinstance(given, pandas.DataFrame) else None


def vectors(where: str, table: pd.DataFrame) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    """Split a table into arrays of its vector columns, by column name, and the table of its other columns."""
    found = {}
    for name in table.columns[[not isinstance(dtype, np.dtype) or dtype.kind == "O" for dtype in table.dtypes]]:
        cells = _written_vectors(where, str(name), table[name])
        if cells is None and not has_lists(table[name]):
            continue
        cells = list(table[name]) if cells is None else cells
        lists = [row for row, cell in enumerate(cells) if is_list(cell)]
        first = list(cells[lists[0]]) if lists else []
        if lists and not (any(isinstance(part, str) for part in first) or (first and isinstance(first[0], dict))):
            found[str(name)] = _stacked(where, str(name), cells, lists)
    return found, table.drop(columns=list(found)) if found else table


def _written_vectors(where: str, name: str, column: pd.Series) -> list[Any] | None:
    """Parse a column whose cells are vectors in text form, such as "[0.5, 1]"; return None for other columns."""
    first = next((cell for cell in column if isinstance(cell, str) and cell.strip()), "").strip()
    if (
        first[:1] not in ("[", "(")
        or not re.fullmatch(_VECTOR, NUMPY.sub(r"\1", first))
        or (cells := text_cells(column)) is None
    ):
        return None
    found: list[Any] = []
    for row, cell in enumerate(cells.to_pylist()):
        text = NUMPY.sub(r"\1", cell or "").strip()
        if "..." in text:
            raise DataError(
                f"{where}: column {name!r}, row {row} is a truncated vector ('...'); write whole lists, or use Parquet"
            )
        if text and not re.fullmatch(_VECTOR, text):
            if is_missing(text):
                text = ""
            else:
                raise DataError(
                    f"{where}: column {name!r} lists numbers in most rows, row {row} is {text[:40]!r}; write a list "
                    "of numbers or an empty cell, or use Parquet"
                )
        found.append(np.array(text.strip("[]()").replace(",", " ").split(), np.float64) if text else None)
    return found


def _stacked(where: str, name: str, cells: Sequence[Any], lists: Sequence[int]) -> np.ndarray:
    """Stack the vectors of a column to an array. Rows whose index is not in `lists` become NaN."""
    width = len(cells[lists[0]])
    for row in lists:
        if len(cells[row]) != width or not width:
            raise DataError(
                f"{where}: column {name!r}, row {row} lists {len(cells[row])} values, expected {width or 'some'} in "
                "each"
            )
    try:
        values = np.stack([np.asarray(cells[row]) for row in lists])
        values = values if values.dtype.kind in "biuf" else values.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{where}: column {name!r} lists values that are not numbers; leave it out, or pass it as labels"
        ) from None
    if values.ndim != 2:
        raise DataError(
            f"{where}: column {name!r} contains arrays of shape {values.shape[1:]}, expected lists of numbers"
        )
    if len(lists) == len(cells):
        return values
    import pandas as pd

    others = np.delete(np.arange(len(cells)), lists)
    for gap in others.tolist():
        if not pd.isna(cells[gap]):
            raise DataError(
                f"{where}: column {name!r} lists numbers in most rows, row {gap} is {str(cells[gap])[:40]!r}; "
                "write a list of numbers or None"
            )
    found = np.full((len(cells), width), np.nan, np.result_type(values, np.float32))
    found[lists] = values
    return found


def _check_parquet(path: str, file: ParquetFile, chosen: Sequence[str]) -> None:
    """Raise DataError if decoded columns do not fit in memory. Parquet files store repeated strings only once."""
    about, free = file.metadata, psutil.virtual_memory().available
    needed, most, texts = 0, 0, dict[str, tuple[int, bool]]()
    for j, name in enumerate(top_columns(file)):
        if name not in chosen:
            continue
        column = about.schema.column(j)
        chunks = [about.row_group(g).column(j) for g in range(about.num_row_groups)]
        needed += sum(max(max(8, column.length) * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks)
        encodings = {name for chunk in chunks for name in chunk.encodings}
        if column.physical_type == "BYTE_ARRAY" and not encodings <= _WRITTEN_OUT:
            longest = max(1, *(chunk.total_uncompressed_size for chunk in chunks))
            most += _TEXTS * longest * sum(chunk.num_values for chunk in chunks)
            texts[column.path] = longest, "DELTA_BYTE_ARRAY" not in encodings
    check_memory(path, needed, free)
    if needed + most > free:
        for text, (longest, is_dictionary) in texts.items():
            for count in _text_bytes(path, text, is_dictionary, max(free // 8 // longest, 1)):
                needed += _TEXTS * count
                check_memory(path, needed, free)


def _text_bytes(path: str, name: str, is_dictionary: bool, rows: int) -> Iterator[int]:
    """Yield the number of bytes of the decoded strings in each batch of a string column."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path, read_dictionary=[name] if is_dictionary else None)
    for batch in file.iter_batches(1 << 16 if is_dictionary else min(rows, 1 << 16), columns=[name]):
        (found,) = batch.columns
        while pa.types.is_list(found.type) or pa.types.is_large_list(found.type):
            found = found.flatten()
        if pa.types.is_nested(found.type):
            raise DataError(
                f"{path}: column {batch.schema.names[0]!r} contains tables, expected numbers, texts or lists"
            )
        indices = found.indices if is_dictionary else None
        lengths = pc.binary_length(found.dictionary if is_dictionary else found)
        yield pc.sum(lengths if indices is None else lengths.take(indices)).as_py() or 0


def frame_shape(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return the number of rows (0 for text files) and columns of a table without reading its cells."""
    path = existing(path)
    if suffix(path) in PARQUET:
        about = open_parquet(path).metadata
        return about.num_rows, about.num_columns
    first = next((line for _, line in lines(path) if line), b"")
    return 0, 1 + max(first.count(mark.encode()) for mark in MARKS)


def class_like(columns: Sequence[Column], table: pd.DataFrame) -> str | None:
    """Return the name of a column that probably contains classes, or None."""
    found = None
    for column in columns:
        called, words = _is_class_name(column.name), column.kind in ("category", "boolean")
        if not words and (not called or column.kind != "number"):
            continue
        cells = table[column.name]
        if not 2 <= cells.nunique() <= min(LEVELS, len(table) / 2):
            continue
        if called and (words or whole_numbers(np.asarray(cells.astype("float64"), np.float64))):
            return column.name
        found = column.name if words else found
    return found


def question(column: str) -> str:
    """Return a note that suggests a column as labels."""
    return f"column {column!r} looks like classes: --label-columns {column} (in Python labels=[{column!r}])"
