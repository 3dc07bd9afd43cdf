"""Tables as people keep them: CSV, TSV, Parquet, Arrow and JSON lines with names, ids, words, gaps, dates and vectors."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
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
    decoded,
    decompressing,
    existing,
    lines,
    open_binary,
    suffix,
    to_number,
)

if TYPE_CHECKING:
    import pandas as pd

_PARQUET, _ARROW, _JSON_LINES = (".parquet", ".pq"), (".arrow", ".feather"), (".jsonl", ".ndjson")
_TEXT = (".csv", ".tsv", ".txt")
TABLES = (*_TEXT, *_PARQUET)
"""Endings of files whose shape `frame_shape` knows before they are read."""
FRAMES = (*TABLES, *_ARROW, *_JSON_LINES)
"""Endings of files that `read_frame` reads."""
_GAPS = ["", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "-nan"]
_SEPARATORS = (",", ";", "\t", "|")
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T]\d{1,2}:\d{2}.*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?")
_DECIMAL = re.compile(r"-?\d+,\d+([eE][-+]?\d+)?")
_COPIES, _PIECE = 4, 1 << 20  # of a text while it becomes a table; bytes read at a time
_TEXTS, _WRITTEN_OUT = 2, {"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
"""Copies of the texts of Parquet while they become a table; encodings in which a text takes its length in the file."""
_LINE = re.compile(r"[^\r\n]*(\r\n|[\r\n])|[^\r\n]+")
_SOME = 50  # lines that the separator is found from
_LEVELS = 20
"""Different words up to which a column is made of categories rather than of names."""
CLASS_NAMES = {"class", "classes", "label", "labels", "target", "species", "category", "y"}
"""What people call a column of classes."""
TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
"""Words for 1 and 0."""


def read_frame(path: str | os.PathLike[str], notes: list[str] | None = None) -> pd.DataFrame:
    r"""Read a table of any columns."""
    # The separator (comma, semicolon, tab or |), a decimal comma, a byte order mark, and whether the first line holds
    # names are found from the first lines. Cells that are empty, "NA", "?", "null" ... are missing.
    import pandas as pd

    path = existing(path)
    notes = [] if notes is None else notes
    if suffix(path) in _PARQUET:
        with _by_pyarrow(path, "Parquet"):
            _check_parquet(path)
            return pd.read_parquet(path)
    if suffix(path) in _ARROW:
        return _arrow(path)
    text = _text(path)
    if suffix(path) in _JSON_LINES:
        return _json_lines(path, text)
    mark = "\t" if suffix(path) == ".tsv" else _separator(text)
    decimal = "," if mark != "," and _decimal_comma(text, mark) else "."
    first, header = _header(str(path), text, mark, notes)

    def parsed(piecewise: bool) -> pd.DataFrame:
        return pd.read_csv(
            io.BytesIO(text.encode()),  # of a text pandas makes two more copies
            sep=mark,
            header=0 if header else None,
            names=None if header else first,
            index_col=False,
            decimal=decimal,
            na_values=_GAPS,
            keep_default_na=False,
            skipinitialspace=" " in text,
            low_memory=piecewise,
        )

    try:
        # pieces stay in the cache, and are parsed in three quarters of the time; a column that is numbers in one and words in
        # another is told apart by all of its cells
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.DtypeWarning)
            try:
                found = parsed(True)
            except pd.errors.DtypeWarning:
                found = parsed(False)
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
def _by_pyarrow(path: Path, kind: str) -> Iterator[None]:
    """What pyarrow raises inside the `with` block, in a sentence."""
    try:
        yield
    except (MemoryError, DataError):
        raise
    except ImportError:
        raise UserError(f"{path}: {kind} needs pyarrow; install dmo-learn[parquet]") from None
    except Exception as error:  # pyarrow's own, of any class
        raise DataError(f"{path}: cannot be read as {kind} ({(str(error).splitlines() or [''])[0]})") from None


def _arrow(path: Path) -> pd.DataFrame:
    """A table of the Arrow file format (Feather), read batch by batch."""
    with _by_pyarrow(path, "Arrow"):
        import pyarrow as pa

        with pa.OSFile(os.fspath(path)) as file, pa.ipc.open_file(file) as reader:
            batches = []
            for i in range(reader.num_record_batches):
                batches.append(reader.get_batch(i))
                check_memory(path, batches[-1].nbytes)
            return pa.Table.from_batches(batches, reader.schema).to_pandas()


def _json_lines(path: Path, text: str) -> pd.DataFrame:
    """A table of which every line is a JSON object; what a line lacks is missing."""
    import pandas as pd

    records = []
    for number, line in enumerate(io.StringIO(text), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is no JSON ({error}); every line needs to be one object") from None
        if not isinstance(found, dict):
            raise DataError(f"{path}: line {number} is a {type(found).__name__}, expected an object with named cells")
        records.append(found)
    if not records:
        raise DataError(f"{path}: is empty, expected a table")
    table = pd.DataFrame.from_records(records)
    for name in table.columns:  # text "null" and the like are words here; an object in a cell is no cell
        nested = next((row for row, cell in enumerate(table[name]) if isinstance(cell, dict)), None)
        if nested is not None:
            raise DataError(
                f"{path}: column {name!r}, row {nested} is an object; leave it out, or write its parts as columns"
            )
    return table


def as_frame(given: Any) -> pd.DataFrame | None:
    """A table of pandas, polars (a lazy one is collected) or pyarrow as pandas' own; None for what is no table."""
    kind = type(given)
    if hasattr(kind, "collect_schema") and hasattr(kind, "collect"):  # a LazyFrame
        given = given.collect()
        kind = type(given)
    if hasattr(kind, "get_columns") and hasattr(kind, "lazy"):  # a DataFrame of polars, which needs no pyarrow for this
        import pandas as pd

        cells = {name: given.get_column(name).to_numpy() for name in given.columns}
        return pd.DataFrame({name: list(values) if values.ndim > 1 else values for name, values in cells.items()})
    if hasattr(kind, "column_names") and hasattr(kind, "to_pandas"):  # a Table of pyarrow
        given = given.to_pandas()
    pandas = sys.modules.get("pandas")  # whoever passes its tables has imported it
    return given if pandas is not None and isinstance(given, pandas.DataFrame) else None


def vectors(where: str, table: pd.DataFrame) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    """The columns whose cells list numbers, each as an array (n, d) with rows of NaN for missing cells; the other columns."""
    found = {}
    for name in table.columns[[isinstance(dtype, np.dtype) and dtype.kind == "O" for dtype in table.dtypes]]:
        cells = list(table[name])
        lists = [row for row, cell in enumerate(cells) if is_list(cell)]
        if lists and not any(isinstance(part, str) for part in cells[lists[0]]):
            found[str(name)] = _stacked(where, str(name), cells, lists)
    return found, table.drop(columns=list(found)) if found else table


def is_list(cell: Any) -> bool:
    """Whether a cell of a table holds several things."""
    return isinstance(cell, list | tuple | set | frozenset | np.ndarray)


def has_lists(column: pd.Series) -> bool:
    """Whether cells of a column are lists."""
    return isinstance(column.dtype, np.dtype) and column.dtype.kind == "O" and any(map(is_list, column))


def _stacked(where: str, name: str, cells: Sequence[Any], lists: Sequence[int]) -> np.ndarray:
    """Cells of a column, those of the rows `lists` one below the other."""
    width = len(cells[lists[0]])
    for row in lists:
        if len(cells[row]) != width or not width:
            raise DataError(
                f"{where}: column {name!r}, row {row} lists {len(cells[row])} values, expected {width or 'some'} in each"
            )
    try:
        values = np.stack([np.asarray(cells[row]) for row in lists])
        values = values if values.dtype.kind in "biuf" else values.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{where}: column {name!r} lists other things than numbers; leave it out, or name it as labels"
        ) from None
    if values.ndim != 2:
        raise DataError(f"{where}: column {name!r} holds arrays of shape {values.shape[1:]}, expected lists of numbers")
    if len(lists) == len(cells):
        return values
    import pandas as pd

    others = np.delete(np.arange(len(cells)), lists)
    for gap in others.tolist():
        if not pd.isna(cells[gap]):
            raise DataError(
                f"{where}: column {name!r} lists numbers in most rows, row {gap} is {str(cells[gap])[:40]!r}; list some"
            )
    found = np.full((len(cells), width), np.nan, np.result_type(values, np.float32))
    found[lists] = values
    return found


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
        while pa.types.is_list(found.type) or pa.types.is_large_list(found.type):
            found = found.flatten()
        if pa.types.is_nested(found.type):
            raise DataError(f"{path}: column {batch.schema.names[0]!r} holds tables, expected numbers, texts or lists")
        indices = found.indices if is_dictionary else None
        lengths = pc.binary_length(found.dictionary if is_dictionary else found)
        yield pc.sum(lengths if indices is None else lengths.take(indices)).as_py() or 0


def frame_shape(path: str | os.PathLike[str]) -> tuple[int, int]:
    r"""Look how large a table is, before its cells are read."""
    # Of Parquet as its metadata say; of text the fields of the first line, and 0 rows, which it does not say.
    path = existing(path)
    if suffix(path) in _PARQUET:
        with _by_pyarrow(path, "Parquet"):
            from pyarrow.parquet import read_metadata

            about = read_metadata(path)
        return about.num_rows, about.num_columns
    first = next((line for _, line in lines(path) if line), b"")
    return 0, 1 + max(first.count(mark.encode()) for mark in _SEPARATORS)


def read_ragged(path: str | os.PathLike[str]) -> list[list[str]]:
    r"""Read rows of any number of fields: lists of labels."""
    text = _text(existing(path))
    return [[field.strip() for field in row if field.strip()] for row in csv_rows(_lines(text), _separator(text))]


def is_ragged(path: str | os.PathLike[str]) -> bool:
    r"""Tell whether the rows of a text file have different numbers of fields."""
    if suffix(path) not in _TEXT:
        return False
    text = _text(existing(path))
    rows = list(islice(csv_rows(_lines(text), _separator(text)), _SOME))
    return len({len(row) for row in rows if row}) > 1


def numeric_columns(where: str, table: pd.DataFrame, notes: list[str] | None = None) -> tuple[np.ndarray, list[str]]:
    """Make the columns of a table numbers: words one-hot, dates and texts refused by name.

    -> X (n, d)
    """
    notes = [] if notes is None else notes
    parts: list[np.ndarray] = []
    names: list[str] = []
    words: list[str] = []
    plain = _numbers_alone(table)
    for first, stop in pairwise([0, *(np.flatnonzero(~(plain[1:] & plain[:-1])) + 1), len(plain)]):
        name = table.columns[first]
        if plain[first:stop].all():  # these side by side, since pandas takes long for a column
            parts.append(table.iloc[:, first:stop].to_numpy(np.float64))
            names += map(str, table.columns[first:stop])
            continue
        if has_lists(table[name]):
            raise DataError(
                f"{where}: column {name!r} lists words; pass it as labels (--label-columns {name}), or leave it out"
            )
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
        more = f" and {len(words) - 5} more" if len(words) > 5 else ""
        notes.append(f"{where}: one column per value of {', '.join(words[:5])}{more}")
    if not parts:
        raise DataError(f"{where}: has no column of features")
    return np.concatenate(parts, axis=1, out=np.empty((len(table), len(names)))), names


def _numbers_alone(table: pd.DataFrame) -> np.ndarray:
    """Which columns are of one of NumPy's types for numbers."""
    return np.array([isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in table.dtypes], bool)


def class_like(table: pd.DataFrame) -> str | None:
    """The column that looks like classes: one that is called so, or the last of few words; None where there is none."""
    found = None
    for name, plain in zip(table.columns, _numbers_alone(table)):
        if (plain and str(name).strip().lower() not in CLASS_NAMES) or has_lists(table[name]):
            continue
        numbers, levels = numbers_of(table[name]), table[name].nunique()
        whole = numbers is not None and bool((numbers == np.round(numbers))[~np.isnan(numbers)].all())
        if not 2 <= levels <= min(_LEVELS, len(table) / 2) or not (numbers is None or whole):
            continue
        if str(name).strip().lower() in CLASS_NAMES:
            return str(name)
        found = str(name) if numbers is None else found
    return found


def question(column: str) -> str:
    """What is asked where no labels were named and a column looks like classes."""
    return f"column {column!r} looks like classes: --label-columns {column} (in Python labels=[{column!r}])"


def numbers_of(column: pd.Series) -> np.ndarray | None:
    """Read a column as numbers.

    -> (n,)
    """
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column):
        return None
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(np.float64, na_value=np.nan)
    place, levels = distinct(column)
    if all(isinstance(text, str) and text.strip().lower() in TRUTH for text in levels):
        found: list[float | None] = [TRUTH[text.strip().lower()] for text in levels]
    else:
        found = [to_number(str(text).strip()) for text in levels]
    return None if None in found else np.array([*found, np.nan], dtype=np.float64)[place]


def distinct(column: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """Distinct cells of a column, and the place (n) of every cell among them; -1 where it is missing."""
    import pandas as pd

    if pd.api.types.infer_dtype(column, skipna=True) == "string":  # what is not text may be equal and look different
        place, levels = pd.factorize(column)
        return place, list(levels)
    gap = column.isna().to_numpy()
    return np.where(gap, -1, np.cumsum(~gap) - 1), [value for value, lost in zip(column, gap) if not lost]


def one_hot(where: str, name: str, column: pd.Series) -> tuple[np.ndarray, list[str]]:
    """A column of words as one 0/1 column per word, NaN where the cell is missing; DataError for dates, texts and ids."""
    import pandas as pd

    cells, distinct_cells = distinct(column)
    gap = cells < 0
    texts = [str(value).strip() for value in distinct_cells]
    known = cells[~gap]
    odd = np.flatnonzero(np.array([*(to_number(text) is None for text in texts), False])[cells])
    if len(odd) < len(known) / 2:
        raise DataError(
            f"{where}: column {name!r}, row {odd[0]} is {texts[cells[odd[0]]][:40]!r}, expected a number as in most rows"
        )
    levels = sorted(set(texts))
    example = f"{texts[known[0]][:40]!r}" if len(known) else "nothing"
    if pd.api.types.is_datetime64_any_dtype(column) or (len(known) and all(map(_DATE.fullmatch, texts))):
        raise DataError(
            f"{where}: column {name!r} holds dates ({example}); leave it out, or turn it into numbers such as days"
        )
    words = np.array([len(text.split()) for text in texts])[known].mean() if len(known) else 0
    if len(levels) > _LEVELS and words >= 3:
        raise DataError(
            f"{where}: column {name!r} holds free text ({example} ...); leave it out, or pass it as documents (text={name!r})"
        )
    if len(levels) > _LEVELS and len(levels) > 0.5 * len(known):
        raise DataError(
            f"{where}: column {name!r} holds {len(levels)} different words in {len(known)} rows ({example}), too many to be "
            f"features; leave it out, or pass it as the names of the samples (id={name!r})"
        )
    check_memory(f"{where}: column {name!r}", 8 * len(cells) * len(levels))
    order, found = {level: j for j, level in enumerate(levels)}, np.zeros((len(cells), len(levels)))
    found[np.flatnonzero(~gap), np.array([order[text] for text in texts], np.intp)[known]] = 1
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
    return decoded(data)


def _first_lines(text: str) -> list[str]:
    return [line for line in islice(_lines(text), _SOME) if line.strip()]


def _lines(text: str) -> Iterator[str]:
    """The lines with their ends; only those that are asked for are copied."""
    return (found.group() for found in _LINE.finditer(text))


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
    first = [field.strip() for field in next(csv_rows(_lines(text), mark), [])]
    values = [to_number(field.replace(",", ".") if mark != "," else field) for field in first]
    if None in values or not first:
        doubled = sorted((name, count) for name, count in Counter(first).items() if name and count > 1)
        if doubled:
            name, count = doubled[0]
            raise DataError(f"{where}: the name {name!r} stands over {count} columns, expected each once")
        line = next(_lines(text), "")
        again = re.compile(rf"[\r\n][ \t]*{re.escape(line.strip())}[ \t]*(?=[\r\n]|\Z)")
        if len(first) == 1 and again.search(text, max(len(line) - 1, 0)):
            notes.append(f"{where}: the first line ({first[0]!r}) occurs again, so it is taken as a sample")
            return ["0"], False
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
