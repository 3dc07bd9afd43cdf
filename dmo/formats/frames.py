"""Tables as people keep them: CSV, TSV and Parquet with names, ids, words, gaps and dates, by pandas and pyarrow."""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from dmo.errors import UserError
from dmo.formats.files import (
    COMPRESSED,
    DataError,
    check_memory,
    csv_rows,
    decompressing,
    existing,
    lines,
    open_binary,
    suffix,
    to_number,
)

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq")
"""Endings of files that `read_frame` reads."""
_GAPS = ["", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "-nan"]
_SEPARATORS = (",", ";", "\t", "|")
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T]\d{1,2}:\d{2}.*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?")
_DECIMAL = re.compile(r"-?\d+,\d+([eE][-+]?\d+)?")
_COPIES, _PIECE = 4, 1 << 20  # of a text while it becomes a table; bytes read at a time
_TEXTS, _WRITTEN_OUT = 2, {"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
"""Copies of the texts of Parquet while they become a table; encodings in which a text takes its length in the file."""
_SOME = 50  # lines that the separator is found from
TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
"""Words for 1 and 0."""


def read_frame(path: str | os.PathLike[str], notes: list[str] | None = None) -> pd.DataFrame:
    r"""Read a table of any columns."""
    # The separator (comma, semicolon, tab or |), a decimal comma, a byte order mark, and whether the first line holds
    # names are found from the first lines. Cells that are empty, "NA", "?", "null" ... are missing.
    import pandas as pd

    path = existing(path)
    notes = [] if notes is None else notes
    if suffix(path) in (".parquet", ".pq"):
        with _parquet(path):
            _check_parquet(path)
            return pd.read_parquet(path)
    text = _text(path)
    mark = "\t" if suffix(path) == ".tsv" else _separator(text)
    decimal = "," if mark != "," and _decimal_comma(text, mark) else "."
    first, header = _header(str(path), text, mark, notes)
    try:
        found = pd.read_csv(
            io.StringIO(text),
            sep=mark,
            header=0 if header else None,
            names=None if header else first,
            index_col=False,
            decimal=decimal,
            na_values=_GAPS,
            keep_default_na=False,
            skipinitialspace=True,
            low_memory=False,
        )
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        if "out of memory" in str(error):
            raise MemoryError from None
        raise DataError(
            f"{path}: {str(error).strip().splitlines()[-1]}; every row needs as many fields as the first"
        ) from None
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: is empty, expected a table") from None
    if found.empty:
        raise DataError(f"{path}: ends after its header, expected at least one row")
    found.columns = [str(name).strip() for name in found.columns]
    return _without_index(str(path), found, notes)


@contextmanager
def _parquet(path: Path) -> Iterator[None]:
    """What pyarrow raises inside the `with` block, in a sentence."""
    try:
        yield
    except (MemoryError, DataError):
        raise
    except ImportError:
        raise UserError(f"{path}: Parquet needs pyarrow; install dmo-learn[parquet]") from None
    except Exception as error:  # pyarrow's own, of any class
        raise DataError(f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]})") from None


def _check_parquet(path: Path) -> None:
    """Refuse Parquet whose cells do not fit into memory: a text that a million rows repeat stands in the file once."""
    from pyarrow.parquet import read_metadata

    about, free = read_metadata(path), psutil.virtual_memory().available
    needed, most, texts = 0, 0, dict[str, tuple[int, bool]]()
    for j in range(about.num_columns):
        column, chunks = about.schema.column(j), [about.row_group(g).column(j) for g in range(about.num_row_groups)]
        needed += sum(max(max(8, column.length) * chunk.num_values, chunk.total_uncompressed_size) for chunk in chunks)
        encodings = {name for chunk in chunks for name in chunk.encodings}
        if column.physical_type == "BYTE_ARRAY" and not encodings <= _WRITTEN_OUT:
            longest = max(1, *(chunk.total_uncompressed_size for chunk in chunks))
            most += _TEXTS * longest * sum(chunk.num_values for chunk in chunks)
            texts[column.path] = longest, "DELTA_BYTE_ARRAY" not in encodings
    check_memory(path, needed, free)
    if needed + most > free:
        for name, (longest, is_dictionary) in texts.items():
            for count in _text_bytes(path, name, is_dictionary, max(free // 8 // longest, 1)):
                needed += _TEXTS * count
                check_memory(path, needed, free)


def _text_bytes(path: Path, name: str, is_dictionary: bool, rows: int) -> Iterator[int]:
    """The bytes of some rows of a column of texts after others; each text of a dictionary is held once."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path, read_dictionary=[name] if is_dictionary else None)
    for batch in file.iter_batches(1 << 16 if is_dictionary else min(rows, 1 << 16), columns=[name]):
        (found,) = batch.columns
        if pa.types.is_nested(found.type):
            raise DataError(
                f"{path}: column {batch.schema.names[0]!r} holds lists, expected a number or a text in a cell"
            )
        indices = found.indices if is_dictionary else None
        lengths = pc.binary_length(found.dictionary if is_dictionary else found)
        yield pc.sum(lengths if indices is None else lengths.take(indices)).as_py() or 0


def frame_shape(path: str | os.PathLike[str]) -> tuple[int, int]:
    r"""Look how large a table is, before its cells are read."""
    # Parameters
    #     ----------
    #     path : path-like
    #         As for `read_frame`.
    #
    # Returns
    #     -------
    #     rows, columns : int
    #         Of Parquet as its metadata say; of text the fields of the first line, and 0 rows, which it does not say.
    #
    # Raises
    #     ------
    #     DataError
    #         Where the file is no Parquet or no text.
    #
    # Examples
    #     --------
    #     >>> from pathlib import Path
    #     >>> from dmo.formats.frames import frame_shape
    #     >>> _ = Path("a.csv").write_text("image;width
    # sun.jpg;1,5
    # ")
    #     >>> frame_shape("a.csv")
    #     (0, 2)
    path = existing(path)
    if suffix(path) in (".parquet", ".pq"):
        with _parquet(path):
            from pyarrow.parquet import read_metadata

            about = read_metadata(path)
        return about.num_rows, about.num_columns
    first = next((line for _, line in lines(path) if line), b"")
    return 0, 1 + max(first.count(mark.encode()) for mark in _SEPARATORS)


def read_ragged(path: str | os.PathLike[str]) -> list[list[str]]:
    r"""Read rows of any number of fields: lists of labels."""
    text = _text(existing(path))
    return [
        [field.strip() for field in row if field.strip()]
        for row in csv_rows(io.StringIO(text, newline=""), _separator(text))
    ]


def is_ragged(path: str | os.PathLike[str]) -> bool:
    r"""Tell whether the rows of a text file have different numbers of fields."""
    if suffix(path) in (".parquet", ".pq"):
        return False
    text = _text(existing(path))
    rows = list(islice(csv_rows(io.StringIO(text, newline=""), _separator(text)), _SOME))
    return len({len(row) for row in rows if row}) > 1


def numeric_columns(where: str, table: pd.DataFrame, notes: list[str] | None = None) -> tuple[np.ndarray, list[str]]:
    """Make the columns of a table numbers: words one-hot, dates and texts refused by name.

    -> X (n, d)
    """
    notes = [] if notes is None else notes
    parts: list[np.ndarray] = []
    names: list[str] = []
    words: list[str] = []
    for name in table.columns:
        values = numbers_of(table[name])
        if values is not None:
            parts.append(values[:, None])
            names.append(str(name))
            continue
        column, levels = one_hot(where, str(name), table[name])
        parts.append(column)
        names += [f"{name}={level}" for level in levels]
        words.append(f"{name!r} ({len(levels)} values)")
    if words:
        notes.append(f"{where}: one column per value of {_listed(words)}")
    if not parts:
        raise DataError(f"{where}: has no column of features")
    return np.hstack(parts), names


def numbers_of(column: pd.Series) -> np.ndarray | None:
    """Read a column as numbers.

    -> (n,)
    """
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column):
        return None
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(np.float64, na_value=np.nan)
    texts = [None if pd.isna(value) else value for value in column]
    known = [text for text in texts if text is not None]
    if all(isinstance(text, str) and text.strip().lower() in TRUTH for text in known):
        return np.array([np.nan if text is None else TRUTH[text.strip().lower()] for text in texts])
    found = [np.nan if text is None else to_number(str(text).strip()) for text in texts]
    return None if None in found else np.array(found, dtype=np.float64)


def one_hot(where: str, name: str, column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """A column of words as one 0/1 column per word, NaN where the cell is missing; DataError for dates, texts and ids."""
    import pandas as pd

    gap = column.isna().to_numpy()
    texts = np.array(["" if lost else str(value).strip() for value, lost in zip(column, gap)], dtype=object)
    known = texts[~gap]
    odd = [i for i, text in enumerate(texts) if not gap[i] and to_number(text) is None]
    if len(odd) < len(known) / 2:
        raise DataError(
            f"{where}: column {name!r}, row {odd[0]} is {texts[odd[0]][:40]!r}, expected a number as in most rows"
        )
    levels = sorted(set(known))
    example = f"{known[0][:40]!r}" if len(known) else "nothing"
    if pd.api.types.is_datetime64_any_dtype(column) or (len(known) and all(map(_DATE.fullmatch, known))):
        raise DataError(
            f"{where}: column {name!r} holds dates ({example}); leave it out, or turn it into numbers such as days"
        )
    words = np.mean([len(text.split()) for text in known]) if len(known) else 0
    if len(levels) > 20 and words >= 3:
        raise DataError(
            f"{where}: column {name!r} holds free text ({example} ...); leave it out, or pass it as documents (text={name!r})"
        )
    if len(levels) > 20 and len(levels) > 0.5 * len(known):
        raise DataError(
            f"{where}: column {name!r} holds {len(levels)} different words in {len(known)} rows ({example}), too many to be "
            f"features; leave it out, or pass it as the names of the samples (id={name!r})"
        )
    check_memory(f"{where}: column {name!r}", 8 * len(texts) * len(levels))
    place, found = {level: j for j, level in enumerate(levels)}, np.zeros((len(texts), len(levels)))
    found[np.flatnonzero(~gap), [place[text] for text in known]] = 1
    found[gap] = np.nan
    return found, levels


def _text(path: Any) -> str:
    free = psutil.virtual_memory().available
    if Path(path).suffix.lower() not in COMPRESSED:
        check_memory(path, _COPIES * os.path.getsize(path), free)
    with decompressing(path, lambda: ""), open_binary(path) as file:
        data = bytearray()
        while piece := file.read(_PIECE):  # some kilobytes may decompress to any number of them
            data += piece
            check_memory(path, _COPIES * len(data), free)
    if b"\0" in data[:4096]:
        raise DataError(f"{path}: byte {data.index(0)} is no text, expected a table")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _first_lines(text: str) -> list[str]:
    return [line for line in islice(io.StringIO(text, newline=""), _SOME) if line.strip()]


def _separator(text: str) -> str:
    """The mark that cuts the first lines into equally many fields, most of them; "," where none does."""
    lines = _first_lines(text)
    best, most = ",", 1
    for mark in (";", "\t", "|", ","):
        counts = [len(row) for row in csv_rows(lines, mark)]
        if counts and min(counts) == max(counts) > most and not (mark == "," and best == ";"):
            best, most = mark, max(counts)
    if most == 1:  # rows of different lengths: the mark that most lines have
        best = max(_SEPARATORS, key=lambda mark: (sum(mark in line for line in lines), mark == ","))
    return best


def _decimal_comma(text: str, mark: str) -> bool:
    fields = [field.strip() for row in csv_rows(_first_lines(text), mark) for field in row]
    return any(map(_DECIMAL.fullmatch, fields)) and not any(re.fullmatch(r"-?\d+\.\d+", field) for field in fields)


def _header(where: str, text: str, mark: str, notes: list[str]) -> tuple[list[str], bool]:
    """(names of the columns, whether the first line holds them)."""
    first = [field.strip() for field in next(csv_rows(io.StringIO(text, newline=""), mark), [])]
    values = [to_number(field.replace(",", ".") if mark != "," else field) for field in first]
    if None in values or not first:
        doubled = sorted((name, count) for name, count in Counter(first).items() if name and count > 1)
        if doubled:
            name, count = doubled[0]
            raise DataError(f"{where}: the name {name!r} stands over {count} columns, expected each once")
        return first, True
    if len(first) > 1 and values in [[float(j + base) for j in range(len(first))] for base in (0, 1)]:
        notes.append(
            f"{where}: the first line counts the columns ({first[0]}, {first[1]}, ...): it is taken as their names"
        )
        return first, True
    notes.append(f"{where}: the first line holds numbers, so it is taken as a sample; columns are numbered")
    return [str(j) for j in range(len(first))], False


def _without_index(where: str, table: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Without a first column that counts the rows and has no name: what pandas writes beside a table."""
    first = str(table.columns[0])
    if first.startswith("Unnamed: 0") and len(table.columns) > 1:
        values = numbers_of(table.iloc[:, 0])
        if values is not None and any(np.array_equal(values, np.arange(len(table)) + base) for base in (0, 1)):
            notes.append(f"{where}: the first column counts the rows and has no name, so it is left out")
            return table.iloc[:, 1:]
    return table


def _listed(items: Sequence[str], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
