"""Reader of delimited text (.csv, .tsv, .txt), which detects the encoding, the delimiter and the header.

The reader returns columns of text and does not convert them to numbers. Arrow splits the rows into fields. Python's csv
module parses the first rows, files that Arrow rejects, and dialects that Arrow does not support, such as columns
separated by spaces.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from dmo.formats.files import (
    COMPRESSED,
    DataError,
    check_memory,
    csv_rows,
    decoded,
    decompressing,
    existing,
    open_binary,
    suffix,
    to_number,
)
from dmo.formats.schema import MISSING, TableOptions

if TYPE_CHECKING:
    import pyarrow as pa

MARKS = (";", "\t", "|", ",")
"""Delimiters that are detected automatically."""
_COPIES, _PIECE = 4, 1 << 20  # memory that parsing needs, as a multiple of the file size, and number of bytes per read
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|[\r\n])|[^\r\n]+")
_SOME = 50  # number of lines that are used to detect the delimiter and the header
_RAGGED = 0.9  # minimum fraction of rows with the same length in a table; otherwise, each row is a list of labels
_SUBJECTS = re.compile(r"\s*<\S+>(\s+<\S+>)*\s*")
_BLOCK = 1 << 20


def text_of(path: str | os.PathLike[str]) -> bytes:
    """Read a text file in any common encoding and return it as UTF-8."""
    path, free = existing(path), psutil.virtual_memory().available
    if path.suffix.lower() not in COMPRESSED:
        check_memory(path, _COPIES * os.path.getsize(path), free)
    pieces, size = list[bytes](), 0
    with decompressing(path, lambda: ""), open_binary(path) as file:
        while piece := file.read(_PIECE if path.suffix.lower() in COMPRESSED else -1):
            pieces.append(piece)  # check the memory after each piece, because a compressed file can expand to any size
            size += len(piece)
            check_memory(path, _COPIES * size, free)
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if not data.isascii() or b"\0" in data[:4096]:
        try:
            data = decoded(data).encode()
        except UnicodeError:
            raise DataError(f"{path}: is not text of a known encoding; write it as UTF-8") from None
    if b"\0" in data[:4096]:
        raise DataError(f"{path}: byte {data.index(0)} is not text, expected a table; write it as UTF-8")
    return data


def _lines(data: bytes, start: int = 0) -> Iterator[str]:
    """Yield the decoded lines with their line ends, without copying all lines at once."""
    return (found.group().decode() for found in _LINE.finditer(data, start))


def _some_rows(data: bytes, mark: str, start: int = 0, spaced: bool = False) -> list[list[str]]:
    count = _SOME
    while True:
        lines = list(islice(_lines(data, start), count + 1))
        rows = [row for row in csv_rows(lines, mark, spaced) if row]
        if len(lines) <= count:
            return rows
        if len(rows) > 3:
            return rows[:-1]  # the last row may be incomplete
        count *= 8  # a cell may contain many lines


def delimiter_of(path: str | os.PathLike[str], data: bytes, options: TableOptions | None = None, start: int = 0) -> str:
    """Detect the delimiter, which splits the rows after the leading comments into equal numbers of fields."""
    if options is not None and options.delimiter is not None:
        return options.delimiter
    if suffix(path) == ".tsv":
        return "\t"
    for line in islice(_LINE.finditer(data, start), _SOME):
        if line.group().strip() and not line.group().lstrip().startswith(b"#"):
            start = line.start()
            break
    best, rank = "", (False, False, 1)
    for mark in (*MARKS, " "):
        rows = _some_rows(data, mark, start, mark == " ")
        counts = [len(row) for row in rows]
        head, body = counts[:1] or [1], counts[1:] or counts
        if not body or min(body) != max(body) or body[0] == 1 or (mark == "," and best == ";"):
            continue
        fields = body[0]
        blank = all(not field.strip() for row in rows[1:] for field in row[head[0] :])
        if not (head[0] in (fields, fields + 1) or (head[0] == fields - 1 > 1) or (head[0] < fields and blank)):
            continue
        if mark == " ":
            cells = [to_number(field) is not None for row in rows[1:] or rows for field in row]
            if best or 2 * sum(cells) < len(cells):
                continue
        if (found := (head[0] == fields, mark != " ", fields)) > rank:
            best, rank = mark, found
    if best:
        return best
    lines = [line for line in islice(_lines(data, start), _SOME) if line.strip()]
    return max(MARKS, key=lambda mark: (sum(mark in line for line in lines), mark == ","))


def read_text(path: Path, options: TableOptions, notes: list[str]) -> tuple[pa.Table, str | None]:
    """Read a table of text; also return the name of the column that contains row names, or None."""
    data, where = text_of(path), str(path)
    start = 0
    if found := re.match(rb"\s*sep=(.)[ \t]*[\r\n]+", data):  # a first line such as sep=; declares the delimiter
        start = found.end()
        options = options if options.delimiter else replace(options, delimiter=found[1].decode())
    mark = delimiter_of(path, data, options, start)
    start = _after_comments(where, data, start, mark, notes)
    spaced = mark == " " or _is_spaced(data, start, mark)
    rows = _some_rows(data, mark, start, spaced)
    if not rows:
        raise DataError(f"{where}: is empty, expected a table; write one row per sample")
    names = _header(where, rows, data, mark, start, options, notes)
    body = start
    if names is not None:
        lines = iter(_LINE.finditer(data, start))
        reader = csv_rows((found.group().decode() for found in lines), mark, spaced)
        next(row for row in reader if row)
        body = next((found.start() for found in lines), len(data))
        rows = rows[1:]
        if not rows:
            raise DataError(f"{where}: ends after its header, expected at least one row; write one row per sample")
    table = _split(where, data, start, body, mark, spaced, len(rows[0]))
    return _named(where, table, names, options, notes)


def _after_comments(where: str, data: bytes, start: int, mark: str, notes: list[str]) -> int:
    """Return the position after the leading lines that start with #, except for a header."""
    lines = list(islice(_LINE.finditer(data, start), _SOME))
    count = 0
    while count < len(lines) and lines[count].group().lstrip().startswith(b"#"):
        count += 1
    if not count or count == len(lines):
        return start
    fields = [len(row) for row in csv_rows([line.group().decode() for line in lines[count - 1 : count + 1]], mark)]
    if len(fields) == 2 and fields[0] == fields[1] and fields[0] > 1:
        count -= 1  # the last line that starts with # contains the column names
    if not count:
        return start
    first = lines[0].group().decode().strip()
    notes.append(f"{where}: {count} lines of comments above the header are ignored ({first[:40]!r})")
    return lines[count].start()


def _is_spaced(data: bytes, start: int, mark: str) -> bool:
    lines = [line for line in islice(_lines(data, start), _SOME) if mark in line]
    return mark != "\t" and bool(lines) and all(line.count(mark) == line.count(f"{mark} ") for line in lines)


def _header(
    where: str, rows: list[list[str]], data: bytes, mark: str, start: int, options: TableOptions, notes: list[str]
) -> list[str] | None:
    """Return the column names if the first row is a header, otherwise None; raise DataError if both are possible."""
    first, body = rows[0], rows[1:]
    if options.header is not None:
        return list(first) if options.header else None
    values = [_number(field, mark) for field in first]
    shown = ", ".join(first[:3]) + (", ..." if len(first) > 3 else "")
    either = f"{where}: the first line ({shown}) may hold names or a sample"
    cure = "pass --header (header=True) if it holds names, --no-header (header=False) if it is a sample"
    known = [value for value in values if value is not None]
    counted = len(known) > 1 and known in [[float(j + base) for j in range(len(known))] for base in (0, 1)]
    if not known:
        if any(_SUBJECTS.fullmatch(field) for field in first):
            notes.append(
                f"{where}: the first line holds labels (<...>), so it is read as a sample; columns are numbered"
            )
            return None
        if len(first) == 1:
            line = next(_lines(data, start), "").strip()
            again = re.compile(rb"[\r\n][ \t]*" + re.escape(line.encode()) + rb"[ \t]*(?=[\r\n]|\Z)")
            if line and again.search(data, start + max(len(line.encode()) - 1, 0)):
                notes.append(f"{where}: the first line ({line!r}) occurs again, so it is read as a sample")
                return None
        elif 2 * sum(any(j < len(row) and row[j] == field for row in body) for j, field in enumerate(first)) > len(
            first
        ):
            raise DataError(f"{either}: its cells occur again below; {cure}")
        return list(first)
    if len(known) < len(first):
        rest = [field for field, value in zip(first, values) if value is None]
        if all(value == int(value) for value in known) and (
            counted or rest == [""] or _above_numbers(values, body, mark)
        ):
            return list(first)
        raise DataError(f"{either}: line 1 mixes numbers and names; {cure}")
    if counted and first not in body:
        notes.append(
            f"{where}: the first line counts the columns ({first[0]}, {first[1]}, ...), so it is read as their names"
        )
        return list(first)
    whole = all(field.strip().isdigit() for field in first) and len(set(first)) == len(first) > 1
    steps = {b - a for a, b in pairwise(known)}
    below = [value for row in body for field in row if (value := _number(field, mark)) is not None]
    fractions = sum(value != int(value) for value in below if np.isfinite(value))
    if whole and ((len(first) > 2 and len(steps) == 1 and min(steps) > 0) or 2 * fractions > len(below)):
        raise DataError(f"{either}: it contains only integers; {cure}")
    notes.append(f"{where}: the first line holds numbers, so it is read as a sample; columns are numbered")
    return None


def _above_numbers(values: list[float | None], body: list[list[str]], mark: str) -> bool:
    """Check whether the first row contains text above a column of numbers, which indicates a header."""
    for j, value in enumerate(values):
        below = [_number(row[j], mark) for row in body if len(row) == len(values) and row[j].strip() not in MISSING]
        if value is None and below and None not in below:
            return True
    return False


def _number(field: str, mark: str) -> float | None:
    """Parse a finite number with a decimal point or a decimal comma; return None for other text."""
    value = to_number(field.replace(",", ".") if mark != "," else field)
    return None if value is None or not np.isfinite(value) else value


def _split(where: str, data: bytes, start: int, body: int, mark: str, spaced: bool, width: int) -> pa.Table:
    """Split all rows into columns of text, with Arrow if possible."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    quoted = data.find(b'"', body) >= 0
    names, block = [str(j) for j in range(width)], _BLOCK
    while mark != " " and len(mark.encode()) == 1 and not (spaced and quoted):
        try:
            table = csv.read_csv(
                pa.BufferReader(pa.py_buffer(data).slice(body)),
                csv.ReadOptions(use_threads=False, block_size=block, column_names=names),
                csv.ParseOptions(delimiter=mark, newlines_in_values=quoted),
                csv.ConvertOptions(
                    check_utf8=False, strings_can_be_null=False, column_types=dict.fromkeys(names, pa.string())
                ),
            )
        except pa.ArrowInvalid as error:
            if "straddl" in str(error) and block < len(data):  # Arrow reads blocks, and this row is longer than a block
                block = min(16 * block, len(data) + 1)
                continue
            break
        if not spaced:
            return table
        return pa.table([pc.utf8_ltrim_whitespace(column) for column in table.columns], names)
    return _by_rows(where, data, start, body, mark, spaced, width)


def _by_rows(where: str, data: bytes, start: int, body: int, mark: str, spaced: bool, width: int) -> pa.Table:
    """Split the rows with Python's csv module; raise DataError for the first row with a wrong number of fields."""
    import pyarrow as pa

    above = sum(1 for _ in _LINE.finditer(data[:body]))
    reader, rows = csv_rows(_lines(data, body), mark, spaced), []
    for row in reader:
        if mark == " " and row and not row[-1]:
            row.pop()
        if len(row) != width:
            if len(row) < 2 and not "".join(row).strip():
                continue
            number = above + reader.line_num
            raise DataError(
                f"{where}: line {number} has {len(row)} fields, expected {width} as above it (delimiter {mark!r}); "
                f"quote fields that contain {mark!r}, or pass another --delimiter"
            )
        rows.append(row)
    columns = [[row[j] for row in rows] for j in range(width)]
    return pa.table([pa.array(column, pa.string()) for column in columns], [str(j) for j in range(width)])


def _named(
    where: str, table: pa.Table, names: list[str] | None, options: TableOptions, notes: list[str]
) -> tuple[pa.Table, str | None]:
    """Name the columns, and remove empty rows and columns; also return the name of a column of row names, or None."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def empty(column: Any) -> bool:
        return bool(pc.all(pc.equal(pc.utf8_trim_whitespace(column), "")).as_py())

    width, row_names = table.num_columns, None
    while names is not None and names and not names[-1].strip():
        names.pop()  # the header ends with a delimiter
    least = 1 if names is None else len(names)
    while width > least and empty(table.column(width - 1)):
        width -= 1
    names = [str(j) for j in range(width)] if names is None else names
    extra = width - len(names)
    table = table.select(list(range(width)))
    if extra < 0:
        raise DataError(
            f"{where}: rows have {width} fields, the first line has {len(names)}; write one field per column name, "
            "or pass another --delimiter"
        )
    if extra == 1:
        row_names = "row names"
        while row_names in names:
            row_names += "_"
        names = [row_names, *names]
        notes.append(f"{where}: rows have one field more than the header, so the first field is the name of the row")
    elif extra:
        raise DataError(
            f"{where}: rows have {width} fields, the first line ({', '.join(names)[:60]}) has {len(names)}; write one "
            "name per column, without lines above the header, or pass another --delimiter"
        )
    table = table.rename_columns([str(j) for j in range(len(names))])
    unnamed = [j for j, name in enumerate(names) if not name.strip()]
    lost = [j for j in unnamed if j and empty(table.column(j))]
    for j in unnamed:
        names[j] = f"column {j + 1}"
    if unnamed[:1] == [0] and len(names) > 1 and not options.row_names:
        cells = table.column(0)
        if _counts_rows(cells):
            notes.append(f"{where}: the first column counts the rows and has no name, so it is left out")
            lost.append(0)
        elif pc.count_distinct(cells).as_py() == len(cells):
            row_names = names[0] = "row names"
            notes.append(f"{where}: the first column has no name and unique values, so it is read as row names")
    elif row_names is not None and _counts_rows(table.column(0)) and not options.row_names:
        lost.append(0)
        row_names = None
    if options.row_names:
        row_names = names[0]
    kept = [j for j in range(len(names)) if j not in lost]
    doubled = sorted((name, count) for name, count in Counter(names[j] for j in kept).items() if count > 1)
    if doubled:
        name, count = doubled[0]
        raise DataError(f"{where}: {count} columns are named {name!r}, expected unique names; rename all but one")
    table = table.select(kept).rename_columns([names[j] for j in kept])
    bare = pc.equal(pc.utf8_trim_whitespace(table.column(0)), "")
    for column in table.columns[1:]:
        if not pc.any(bare).as_py():
            break
        bare = pc.and_(bare, pc.equal(pc.utf8_trim_whitespace(column), ""))
    if table.num_columns > 1 and (count := pc.sum(bare).as_py()):
        notes.append(f"{where}: {count} empty rows are left out")
        table = table.filter(pc.invert(bare))
    if not table.num_rows:
        raise DataError(f"{where}: all rows are empty, expected at least one with a value")
    return pa.table(table.columns, table.column_names), row_names


def _counts_rows(cells: Any) -> bool:
    """Check whether the cells of a column are consecutive integers from 0 or 1."""
    first = cells[0].as_py()
    return first in ("0", "1") and cells.to_pylist() == [str(row + int(first)) for row in range(len(cells))]


def read_ragged(path: str | os.PathLike[str], options: TableOptions | None = None) -> list[list[str]]:
    """Read rows with different numbers of fields, such as lists of labels, without the empty fields."""
    data = text_of(path)
    rows = csv_rows(_lines(data), delimiter_of(path, data, options))
    return [[field.strip() for field in row if field.strip()] for row in rows]


def is_ragged(path: str | os.PathLike[str], options: TableOptions | None = None) -> bool:
    """Check whether the rows of a text file are lists, which is assumed if fewer than 90 % have the same length."""
    data = text_of(path)
    counts = Counter(len(row) for row in csv_rows(_lines(data), delimiter_of(path, data, options)) if row)
    return len(counts) > 1 and max(counts.values()) < _RAGGED * sum(counts.values())
