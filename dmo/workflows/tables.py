"""Output of predictions to CSV and Parquet files, which appear under their names only when they are complete."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from dmo import stores
from dmo.blocks import row_blocks
from dmo.errors import UserError, visible
from dmo.formats.files import existing
from dmo.stores.temporary import new_file, rows_on_disk

OTHER_CSV = "pass --overwrite to replace it, or choose another path"
FORMATS = (".csv", ".parquet", ".zarr")
"""File name extensions of outputs, which select the format."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "'")
_BLOCK, _GROUP = 1024, 1 << 25  # Number of samples per piece of text, and size of a Parquet row group in bytes.


@dataclass(frozen=True)
class TableRows:
    """Rows of a table: sample ids, label indices padded with -1, and numeric columns."""

    samples: Sequence[str]
    labels: np.ndarray
    numbers: np.ndarray


@dataclass(frozen=True)
class TableColumns:
    """Names of all labels and of the numeric columns of a table; `labels` is None for tables without labels."""

    labels: Sequence[str] | None
    numbers: Sequence[str]
    dtype: str = "float32"  # Data type of the numeric columns in Parquet files.
    vector: str | None = None  # Name of a Parquet column that contains all numbers of a sample as a list.


def output_format(path: str, known: Sequence[str] = FORMATS) -> str:
    """Return the file name extension of an output; raise UserError for unknown extensions."""
    ending = Path(path).suffix.lower()
    if ending not in known:
        got = f"ends in {ending!r}" if ending else "has no ending"
        raise UserError(
            f"the output {path} {got}, which is not a known format; use {', '.join(known[:-1])} or {known[-1]}"
        )
    return ending


def write_table(
    path: str, columns: TableColumns, n: int, blocks: Iterable[tuple[slice, TableRows]], overwrite: bool
) -> None:
    """Write a table of n samples from consecutive blocks of rows."""
    if output_format(path) == ".parquet":
        _write_parquet(path, columns, (rows for _, rows in blocks))
    else:
        folder = Path(path).absolute().parent
        folder.mkdir(parents=True, exist_ok=True)
        write_text(Path(path), _csv_pieces(columns, n, blocks, folder), overwrite)


def _csv_pieces(
    columns: TableColumns, n: int, blocks: Iterable[tuple[slice, TableRows]], folder: Path
) -> Iterator[str]:
    """Yield the text of a CSV table, whose number of columns is known only after all blocks have been read."""
    samples: list[Sequence[str]] = []
    smallest = np.min_scalar_type(-1 - len(columns.labels or ()))  # type: ignore[operator]

    def parts() -> Iterator[tuple[slice, list[np.ndarray]]]:
        for where, rows in blocks:
            samples.append(rows.samples)
            yield where, [rows.labels.astype(smallest), rows.numbers]

    labels, numbers = rows_on_disk(n, parts(), folder)
    ids = (name for some in samples for name in some)
    places = row_blocks(n, _BLOCK)
    count = max(int((labels[where] >= 0).sum(axis=1).max(initial=0)) for where in places)
    yield csv_head(count, columns.numbers, "\r\n")
    for where in places:
        words = label_words(labels[where], columns.labels or ())
        yield csv_rows([next(ids) for _ in words], words, count, "\r\n", numbers[where])


def _write_parquet(path: str, columns: TableColumns, blocks: Iterable[TableRows]) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    one = pa.from_numpy_dtype(columns.dtype)
    fields = [pa.field("sample", pa.string())]
    if columns.labels is not None:
        fields.append(pa.field("labels", pa.list_(pa.string())))
    if columns.vector is not None:
        fields.append(pa.field(columns.vector, pa.list_(one, len(columns.numbers))))
    else:
        fields += [pa.field(name, one) for name in columns.numbers]
    schema, names = pa.schema(fields), pa.array(columns.labels or (), pa.string())

    def table(rows: TableRows) -> Any:
        arrays = [pa.array(rows.samples, pa.string())]
        if columns.labels is not None:
            given = rows.labels >= 0
            ends = np.concatenate([[0], np.cumsum(given.sum(axis=1))]).astype(np.int32)
            arrays.append(pa.ListArray.from_arrays(ends, names.take(pa.array(rows.labels[given]))))
        numbers = rows.numbers.astype(columns.dtype, copy=False)
        if columns.vector is not None:
            arrays.append(pa.FixedSizeListArray.from_arrays(numbers.ravel(), len(columns.numbers)))
        else:
            arrays += [pa.array(np.ascontiguousarray(column)) for column in numbers.T]
        return pa.Table.from_arrays(arrays, schema=schema)

    with new_file(path) as file, ParquetWriter(file, schema) as writer:
        kept: list[Any] = []
        for rows in blocks:
            kept.append(table(rows))
            if sum(part.nbytes for part in kept) >= _GROUP:
                writer.write_table(pa.concat_tables(kept))
                kept.clear()
        if kept:
            writer.write_table(pa.concat_tables(kept))


def as_csv(
    samples: Sequence[str], words: Sequence[Sequence[str]], end: str, names: Sequence[str], numbers: np.ndarray
) -> str:
    """Format sample names, their labels and numeric columns as CSV text."""
    count = max(map(len, words), default=0)
    return csv_head(count, names, end) + csv_rows(samples, words, count, end, numbers)


def csv_head(count: int, names: Sequence[str], end: str) -> str:
    """Format the header of a CSV table with `count` label columns and named numeric columns."""
    cells = ["sample", *(f"label {i + 1}" for i in range(count)), *map(guarded, names)]
    return csv_text([cells], end, quoting=csv.QUOTE_ALL)


def csv_rows(samples: Sequence[str], words: Sequence[Sequence[str]], count: int, end: str, numbers: np.ndarray) -> str:
    """Format rows of a CSV table with `count` label columns and numeric columns."""
    # Spreadsheets evaluate cells that begin with = + - or @ as formulas, and labels can come from untrusted sources. As
    # OWASP recommends, all cells are quoted, and cells with such a first character get an apostrophe as a prefix. Cells
    # that begin with an apostrophe get a second one, so that readers can restore the original text unambiguously.
    form = ',"%.6g"' * numbers.shape[1] + end
    lines = []
    for sample, row, values in zip(samples, words, numbers.tolist(), strict=True):
        cells = [*map(guarded, (sample, *row)), *[""] * (count - len(row))]
        lines.append(",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + form % tuple(values))
    return "".join(lines)


def csv_text(lines: Iterable[Sequence[object]], end: str = "\n", quoting: Any = csv.QUOTE_MINIMAL) -> str:
    """Format rows of cells as CSV text with line endings `end`."""
    text = StringIO()
    csv.writer(text, lineterminator=end, quoting=quoting).writerows(lines)
    return text.getvalue()


def guarded(cell: str) -> str:
    """Escape a cell so that spreadsheets do not evaluate it and terminals do not execute control characters."""
    cell = visible(cell)
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def unguarded(cell: str) -> str:
    """Restore a cell that was escaped by `guarded`."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def label_words(numbers: np.ndarray, names: Sequence[str]) -> list[list[str]]:
    """Convert rows of label indices, in which -1 marks an empty cell, to label names."""
    return [[names[label] for label in row if label >= 0] for row in numbers.tolist()]


def chances(names: Sequence[str]) -> list[str]:
    """Return the names of the probability columns of labels."""
    return [f"probability of {name}" for name in names]


def write_text(path: Path, pieces: Iterable[str], overwrite: bool) -> None:
    """Write a text file from pieces of text; without `overwrite`, an existing file with other text raises an error."""
    if path.exists() and not overwrite:
        with open(existing(path), "rb") as file:
            same = all(file.read(len(part)) == part for part in map(str.encode, pieces)) and not file.read(1)
        if not same:
            raise stores.StoreError(f"{path} exists and has different content; {OTHER_CSV}")
        return
    with new_file(path) as file:
        for piece in pieces:
            file.write(piece.encode())
