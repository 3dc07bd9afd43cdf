"""Detection of the type of each column of a table, and conversion of tables to numeric features.

Cells are first read as text. A column is converted to numbers only if every cell is a number or marks a missing value.
The column types are saved with stores and models. A row of a new table is therefore converted to the same numbers as an
equal row of the training data.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from dmo.errors import UserError, meant
from dmo.formats.files import DataError, check_memory, to_number

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Kind = Literal["number", "boolean", "category", "date", "text", "identifier", "labels"]
"""Type of a column."""
KINDS: tuple[Kind, ...] = get_args(Kind)
MISSING = (
    *("", "?", "NA", "N/A", "n/a", "#N/A", "#NA", "#N/A N/A", "<NA>", "NaN", "nan", "-NaN", "-nan"),
    *("null", "NULL", "None", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    *("#DIV/0!", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!"),
)
"""Cells that mark a missing value in every column except a column of sample ids. Surrounding spaces are ignored."""
TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
"""Numbers that represent the words for true and false, in lower case."""
LEVELS = 20
"""Maximum number of distinct values of a column that is not checked for free text or identifiers."""
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T]\d{1,2}:\d{2}.*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?")
NUMPY = re.compile(r"np\.\w+\(([^()]*)\)")
"""Pattern of a NumPy scalar in the text of a list, such as "np.float64(1.5)"."""
SEPARATORS = ("|", ";", ",")
"""Separators between the labels of a sample, in the order in which they are tried."""
_NEVER = "\0"
"""Separator that occurs in no cell. Every cell is then a single label."""
URI = re.compile(r"\s*<[^<>\s]+>(\s+<[^<>\s]+>)*\s*")
_DAMAGED = "the schema of a table is damaged; restore the store or the model from a copy"
_PADDED = r"^\s*[+-]?0\d+\s*$"
_SEVERAL = re.compile(r"[-+]?[\d.][\d.eE+-]*([\s,;]+[-+]?[\d.][\d.eE+-]*)+")
_WITH_SIGN = re.compile(r"[$€£¥]\s*[-+]?[\d.,]*\d|[-+]?\d[\d.,]*\s*[%$€£¥]")
_EXPONENT = r"([eE][+-]?\d+)?"
_NUMBER = {mark: rf"^[+-]?(\d+{mark}?\d*|{mark}\d+){_EXPONENT}$" for mark in (r"\.", ",")}
_GROUPED = {r"\.": r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?$", ",": r"^[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?$"}
_SHOWN, _FIRST, _TOGETHER, _CELLS = 5, 64, 512, 1 << 16
"""Maximum number of values in a message, number of cells in a first attempt to parse a column, and maximum numbers of
columns and cells that are parsed together."""


@dataclass(frozen=True)
class TableOptions:
    """Options for reading a table. Options that are None are detected from the cells."""

    types: Mapping[str, str] = field(default_factory=dict)  # Types of some columns by name, instead of detection.
    missing: Sequence[str] = ()  # Additional cells that mark a missing value.
    decimal: str | None = None  # Decimal separator, "." or ",".
    delimiter: str | None = None  # Delimiter between the fields of a row.
    header: bool | None = None  # Whether the first line contains column names.
    row_names: bool = False  # Whether the first column contains sample ids.
    drop_columns: Sequence[str] = ()  # Names or patterns of columns to ignore.
    separator: str | None = None  # Separator between the labels of a sample.

    def __post_init__(self) -> None:
        for name, kind in self.types.items():
            if kind not in KINDS:
                raise UserError(f"type of column {name!r} is {kind!r}, expected one of {', '.join(KINDS)}")
        if self.decimal not in (None, ".", ","):
            raise UserError(f"decimal = {self.decimal!r}, expected '.' or ','")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise UserError(f"delimiter = {self.delimiter!r}, expected a single character such as ';' or a tab")

    def label_kind(self, name: str) -> str | None:
        """Return the type of a single label column, or None if it is detected from the cells."""
        return self.types.get(name)

    def label_separator(self, cells: Sequence[str]) -> str | None:
        """Return the separator between labels, or None if it is detected from the distinct cells."""
        return self.separator

    def label_prefix(self, name: str) -> str:
        """Return the text that precedes 0 and 1 in the class names of a binary column."""
        return f"{name}="


@dataclass(frozen=True)
class LearnedLabels(TableOptions):
    """Options for reading a new table whose labels have the same type and names as the training data of a model."""

    kind: str = "labels"  # Type of the labels: "number" for regression targets, "category" for classes, or "labels".
    names: Sequence[str] = ()

    def label_kind(self, name: str) -> str | None:
        """Return the type of a single label column, or "binary" if its classes are named NAME=0 and NAME=1."""
        if self.kind == "category" and {f"{name}=0", f"{name}=1"} & {*self.names}:
            return self.types.get(name, "binary")
        return self.types.get(name, "boolean" if list(self.names) == [name] and self.kind == "labels" else self.kind)

    def label_separator(self, cells: Sequence[str]) -> str | None:
        """Return the separator that splits the cells into the most known labels, or None if a cell is a list."""
        if self.separator is not None or self.kind != "labels" or any(map(_is_listed, cells)):
            return self.separator
        known = set(self.names)

        def learned(mark: str) -> int:
            return sum(part.strip() in known for cell in cells for part in cell.split(mark))

        return max((_NEVER, *SEPARATORS, " "), key=learned)  # If several separators are equally good, use the first.

    def label_prefix(self, name: str) -> str:
        """Return the text that precedes 0 and 1 in the class names of a binary column."""
        return f"{name}=" if self.label_kind(name) == "binary" else ""


def chosen_columns(names: Sequence[str], asked: Sequence[str]) -> tuple[list[str], list[str]]:
    """Select columns by name or pattern; also return the names and patterns that match no column."""
    found: dict[str, None] = {}
    lost = []
    for name in asked:
        own = [name] if name in names else [known for known in names if fnmatchcase(known, name)]
        found |= dict.fromkeys(own)
        lost += [] if own else [name]
    return list(found), lost


def unknown_column(where: str, asked: str, names: Sequence[str], what: str = "column") -> DataError:
    """Return the error for a column that does not exist. The message suggests a similar name."""
    near = meant(asked, names)
    hint = f"did you mean {near!r}?" if near else f"it has {', '.join(map(repr, names[:12]))}"
    return DataError(f"{where}: has no {what} {asked!r}; {hint}{', ...' if not near and len(names) > 12 else ''}")


# --- cells --------------------------------------------------------------------------------------------------------------


def exact(value: Any) -> str:
    """Convert a cell to text with all digits of a number. A float with an integer value has no decimal point."""
    if isinstance(value, float | np.floating):
        return str(int(value)) if np.isfinite(value) and value == np.floor(value) else repr(float(value))
    return str(value)


def text_cells(column: pd.Series) -> pa.Array | None:
    """Return a column as an Arrow array of text, or None if it is a column of numbers, dates or lists."""
    import pandas as pd
    import pyarrow as pa

    dtype: Any = column.dtype
    if isinstance(dtype, pd.ArrowDtype) and pa.types.is_string(dtype.pyarrow_dtype):
        return column.array.__arrow_array__()
    if isinstance(dtype, pd.CategoricalDtype):
        column = column.astype(object)
    elif (
        pd.api.types.is_numeric_dtype(dtype)
        or pd.api.types.is_datetime64_any_dtype(dtype)
        or (isinstance(dtype, np.dtype) and dtype.kind in "mc")
    ):
        return None
    try:
        found = pa.array(column.array if not isinstance(dtype, np.dtype) else column, pa.string(), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        if has_lists(column):
            return None
        found = pa.array(
            [None if lost else exact(value) for value, lost in zip(column, column.isna())], pa.large_string()
        )
    return found


def _whole(cells: Any) -> pa.Array:
    import pyarrow as pa

    if not isinstance(cells, pa.ChunkedArray):
        return cells
    return (cells if cells.nbytes < 1 << 31 else cells.cast(pa.large_string())).combine_chunks()


def is_list(cell: Any) -> bool:
    return isinstance(cell, list | tuple | set | frozenset | np.ndarray)


def has_lists(column: pd.Series) -> bool:
    return isinstance(column.dtype, np.dtype) and column.dtype.kind == "O" and any(map(is_list, column))


def is_missing(cell: str, missing: Sequence[str] = ()) -> bool:
    return cell.strip() in MISSING or cell.strip() in missing


def missing_cells(cells: pa.Array, missing: Sequence[str] = ()) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    markers = pa.array([*MISSING, *(marker.strip() for marker in missing)], cells.type)
    gap = pc.or_kleene(pc.is_null(cells), pc.is_in(pc.utf8_trim_whitespace(cells), value_set=markers))
    return np.asarray(gap.to_numpy(zero_copy_only=False), bool)


def numbers(
    cells: pa.Array, missing: Sequence[str] = (), decimal: str = ".", grouping: bool = False
) -> np.ndarray | None:
    """Convert a text column to an array of numbers, with NaN for missing cells.

    Return None if a cell that is not missing is not a number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def cast(cells: Any) -> np.ndarray | None:
        try:
            # Try to convert a few cells first, because Arrow is slow if many cells are not numbers.
            pc.cast(cells.slice(0, _FIRST), pa.float64())
            found = pc.cast(cells, pa.float64())
        except pa.ArrowInvalid:
            return None
        return _without(found.to_numpy() if isinstance(found, pa.ChunkedArray) else found.to_numpy(False), missing)

    if decimal == "." and not grouping and (found := cast(cells)) is not None:
        return found
    cells = _whole(cells)
    text = pc.utf8_trim_whitespace(cells)
    text = pc.if_else(pa.array(missing_cells(cells, missing)), pa.scalar(None, cells.type), text)
    if grouping:
        pattern, mark = (_GROUPED[r"\."], ",") if decimal == "." else (_GROUPED[","], ".")
        text = pc.if_else(pc.match_substring_regex(text, pattern), pc.replace_substring(text, mark, ""), text)
    if decimal == ",":
        if pc.any(pc.match_substring(text, ".")).as_py():
            return None
        text = pc.replace_substring(text, ",", ".")
    return cast(text)


def _without(values: np.ndarray, missing: Sequence[str]) -> np.ndarray:
    """Replace numbers that mark a missing value, such as -999, by NaN."""
    marks = [number for number in map(to_number, missing) if number is not None]
    return np.where(np.isin(values, marks), np.nan, values) if marks else values


def typed_numbers(column: pd.Series, missing: Sequence[str] = ()) -> np.ndarray | None:
    """Convert a column of a numeric or boolean type to float64; return None for a column of another type."""
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(column.dtype):
        return None
    return _without(column.to_numpy(np.float64, na_value=np.nan), missing)


def levels_of(cells: pa.Array, missing: Sequence[str] = ()) -> tuple[np.ndarray, list[str]]:
    """Return the index of each cell of a text column in the list of distinct cells (-1 if missing), and this list."""
    import pyarrow.compute as pc

    encoded = _whole(cells).dictionary_encode()
    codes = np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), np.intp)
    lost = missing_cells(encoded.dictionary, missing)
    order = np.append(np.where(lost, -1, np.cumsum(~lost) - 1), -1)
    return order[codes], [level for level, gone in zip(encoded.dictionary.to_pylist(), lost) if not gone]


def _is_number(text: str) -> bool:
    """Return whether a cell is a number with a decimal point or comma, with or without thousands separators."""
    text = text.strip()
    found = to_number(text)
    return (found is not None and np.isfinite(found)) or any(
        re.match(pattern, text) for pattern in (_NUMBER[","], *_GROUPED.values())
    )


def whole_numbers(values: np.ndarray) -> bool:
    known = values[:16]
    if (known != np.floor(known))[~np.isnan(known)].any():
        return False
    return bool((values == np.floor(values))[~np.isnan(values)].all())


# --- the schema ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    name: str
    kind: Kind
    levels: tuple[str, ...] = ()  # Distinct values of a categorical column.

    @property
    def features(self) -> list[str]:
        """Names of the features of the column. A categorical column has one feature for each value."""
        return [f"{self.name}={level}" for level in self.levels] if self.kind == "category" else [self.name]

    def cells(self, X: np.ndarray) -> list[float | str | None]:
        """Convert the features of the column, of shape (n, d), to cells of a table; missing values are None."""
        if self.kind == "category":
            return [self.levels[int(np.argmax(row))] if (row == 1).any() else None for row in X]

        def cell(value: float) -> float | str:
            if self.kind == "date":
                return str(np.datetime64(round(value * 86_400), "s")).removesuffix("T00:00:00")
            return ("false", "true")[value == 1] if self.kind == "boolean" else value

        return [None if np.isnan(value) else cell(value) for value in X[:, 0].tolist()]


@dataclass(frozen=True)
class Schema:
    """Feature columns of a table with their types, and the format of numbers in text."""

    columns: tuple[Column, ...]
    missing: tuple[str, ...] = ()
    decimal: str = "."
    grouping: bool = False  # Whether numbers may contain thousands separators.

    @property
    def features(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

    @classmethod
    def of_numbers(cls, names: Sequence[str]) -> Schema:
        return cls(tuple(Column(name, "number") for name in names))

    def to_dict(self) -> dict[str, Any]:
        columns = [
            {"name": column.name, "kind": column.kind} | ({"levels": list(column.levels)} if column.levels else {})
            for column in self.columns
        ]
        return {"columns": columns, "missing": list(self.missing), "decimal": self.decimal, "grouping": self.grouping}

    @classmethod
    def from_dict(cls, given: Any) -> Schema:
        try:
            columns = [Column(c["name"], c["kind"], tuple(c.get("levels", ()))) for c in given["columns"]]
            found = cls(tuple(columns), tuple(given["missing"]), given["decimal"], given["grouping"] is True)
            texts = [*found.missing, *(text for c in columns for text in (c.name, *c.levels))]
            right = all(isinstance(text, str) for text in texts) and found.decimal in (".", ",")
            right &= all(column.kind in KINDS for column in columns)
        except (KeyError, TypeError, AttributeError):
            right = False
        if not right:
            raise UserError(_DAMAGED)
        return found

    def encode(
        self, where: str, table: pd.DataFrame, notes: list[str] | None = None, options: TableOptions | None = None
    ) -> np.ndarray:
        """Convert a new table to a feature matrix of shape (n, d) by the column types of this schema."""
        options = options or TableOptions()
        known = replace(self, missing=(*self.missing, *options.missing))
        if options.decimal is not None:
            known = replace(known, decimal=options.decimal, grouping=True)
        parts = []
        for column in self.columns:
            if column.name not in table.columns:
                has = ", ".join(map(str, table.columns[:8]))
                raise DataError(f"{where} lacks the column {column.name!r} of the training data; its columns are {has}")
            parts.append((column, known._values(where, column, table[column.name], notes)))
        return _assembled(where, parts, len(table))

    def _values(self, where: str, column: Column, given: pd.Series, notes: list[str] | None) -> np.ndarray:
        """Return a column as numbers, or the codes of the values of a categorical column."""
        name, kind, values = column.name, column.kind, typed_numbers(given, self.missing)
        if kind == "date":
            return _days(where, name, given, self.missing)
        if values is not None and kind != "category":
            return values
        cells = text_cells(given.astype(object) if values is not None else given)
        if cells is None:
            raise DataError(
                f"{where}: column {name!r} has type {given.dtype}, expected a {kind} as in the training data"
            )
        if kind == "category":
            codes, levels = levels_of(cells, self.missing)
            place = {level: j for j, level in enumerate(column.levels)}
            order = np.array([*(place.get(level, len(place)) for level in levels), -1], np.intp)
            new = [level for level in levels if level not in place]
            if new and notes is not None:
                count, shown = int((order[codes] == len(place)).sum()), ", ".join(map(repr, new[:_SHOWN]))
                notes.append(
                    f"{where}: column {name!r} has {len(new)} unknown {'category' if len(new) == 1 else 'categories'} "
                    f"({shown}) in {count} rows, encoded as all zeros"
                )
            return order[codes]
        values = numbers(cells, self.missing, self.decimal, self.grouping)
        if values is None and kind == "boolean":
            values = truth_values(cells, self.missing)
        if values is None:
            raise self._other(where, name, cells, f"a {kind} as in the training data")
        return values

    def _other(self, where: str, name: str, cells: pa.Array, expected: str) -> DataError:
        """Return the error for the first cell that is not a number."""
        for row, cell in enumerate(cells.to_pylist()):
            single = cells.slice(row, 1)
            if (
                numbers(single, self.missing, self.decimal, self.grouping) is None
                and truth_values(single, self.missing) is None
            ):
                return not_a_number(where, name, row, cell, expected, self.decimal)
        return DataError(
            f"{where}: column {name!r} mixes words for true and false with other cells, expected {expected}"
        )

    def seen(self, X: np.ndarray, rows: np.ndarray, where: str, notes: list[str]) -> tuple[Schema, np.ndarray]:
        """Remove the categories that do not occur in the training samples, which the mask `rows` selects."""
        if all(column.kind != "category" for column in self.columns):
            return self, X
        columns, keep = list[Column](), list[bool]()
        for column in self.columns:
            first, own = len(keep), np.ones(len(column.features), bool)
            if column.kind == "category":
                own = (X[rows, first : first + len(own)] == 1).any(axis=0)
                lost = [level for level, used in zip(column.levels, own) if not used]
                if lost:
                    notes.append(
                        f"{where}: column {column.name!r}: {', '.join(map(repr, lost[:_SHOWN]))} does not occur in "
                        "training samples, encoded as all zeros"
                    )
                column = replace(column, levels=tuple(level for level, used in zip(column.levels, own) if used))
            keep += own.tolist()
            columns.append(column)
        return replace(self, columns=tuple(columns)), X if all(keep) else X[:, keep]


def not_a_number(where: str, name: str, row: int, cell: str, expected: str, decimal: str = ".") -> DataError:
    """Return the error for a cell that is not a number. The message suggests an option that may fix the problem."""
    other = "," if decimal == "." else "."
    if _is_number(cell) and not re.match(_PADDED, cell):
        cure = f"pass --decimal {other!r} if its decimal mark is {other!r}"
    else:
        cure = f"pass --missing {cell[:40]!r} if it marks a missing value"
    return DataError(f"{where}: column {name!r}, row {row} is {cell[:40]!r}, expected {expected}; {cure}")


def truth_values(cells: pa.Array, missing: Sequence[str]) -> np.ndarray | None:
    """Convert a column of words for true and false to 1 and 0; return None if the column contains other words."""
    codes, levels = levels_of(cells, missing)
    found = [TRUTH.get(level.strip().lower()) for level in levels]
    return None if None in found else np.array([*found, np.nan], np.float64)[codes]


def _days(where: str, name: str, given: pd.Series, missing: Sequence[str]) -> np.ndarray:
    """Convert dates to days since 1970-01-01."""
    import pandas as pd

    cells = text_cells(given)
    if cells is not None:
        codes, levels = levels_of(cells, missing)
        try:
            found = pd.to_datetime(
                pd.Series([*(level.strip() for level in levels), None], dtype=object), format="ISO8601", utc=True
            )
        except (ValueError, OverflowError):
            odd = next(level for level in levels if not re.match(r"\d{4}-?\d\d", level.strip()) or True)
            raise DataError(
                f"{where}: column {name!r} has the date {odd[:40]!r}, expected ISO 8601 such as 2026-01-31; convert "
                "the dates"
            ) from None
        given = found.iloc[np.where(codes < 0, len(levels), codes)]
    elif not pd.api.types.is_datetime64_any_dtype(given.dtype):
        raise DataError(f"{where}: column {name!r} has type {given.dtype}, expected dates")
    stamps = given.dt.tz_localize(None).to_numpy("datetime64[us]")
    days = stamps.astype("int64") / 86_400e6
    return np.where(np.isnat(stamps), np.nan, days)


def _assembled(where: str, parts: Sequence[tuple[Column, np.ndarray]], n: int) -> np.ndarray:
    """Combine the columns to a feature matrix, with one-hot encoded categories and NaN for missing cells."""
    widths = [len(column.features) for column, _ in parts]
    categories = sum(width for width, (column, _) in zip(widths, parts) if column.kind == "category")
    if categories:
        check_memory(f"{where}: indicator columns of categories", 8 * n * categories)
    X, first = np.empty((n, sum(widths))), 0
    for width, (column, values) in zip(widths, parts):
        if column.kind == "category":
            own = X[:, first : first + width]
            own[:] = values[:, None] == np.arange(width)
            own[values < 0] = np.nan
        else:
            X[:, first] = values
        first += width
    return X


# --- decisions ----------------------------------------------------------------------------------------------------------


def learn_schema(
    where: str, table: pd.DataFrame, options: TableOptions | None = None, notes: list[str] | None = None
) -> tuple[Schema, np.ndarray]:
    """Detect the type of every column from its cells, and convert the table to a feature matrix of shape (n, d)."""
    options, notes = options or TableOptions(), [] if notes is None else notes
    missing = tuple(options.missing)
    found, texts, plain = dict[str, tuple[Column, np.ndarray]](), dict[str, Any](), dict[str, Any]()
    for name, column in table.items():
        forced = options.types.get(name)
        if forced in ("identifier", "text", "labels"):
            notes.append(f"{where}: column {name!r} has type {forced} and is not used as a feature")
            continue
        if forced == "date":
            found[name] = Column(name, "date"), _days(where, name, column, missing)
            continue
        values = typed_numbers(column, missing) if forced != "category" else None
        if values is not None:
            found[name] = Column(name, "number"), values
            continue
        if has_lists(column):
            raise DataError(
                f"{where}: column {name!r} has lists, expected one value per cell; pass it as labels "
                f"(--label-columns {name}), or leave it out"
            )
        cells = text_cells(column if forced != "category" else column.astype(object))
        if cells is None:
            raise _no_feature(where, name, "dates", str(column.iloc[0]))
        (texts if forced in ("category", "boolean") or options.decimal == "," else plain)[name] = cells
    for name, values in _numbers_of_many(plain, missing):
        if values is None:
            texts[name] = plain[name]
        else:
            _check_padding(where, name, plain[name], values, options.types.get(name))
            found[name] = Column(name, "number"), values
    texts = {name: texts[name] for name in table.columns if name in texts} if texts else texts
    decimal, grouping = decimal_mark(where, texts, table, found, options, notes)
    schema = Schema((), missing, decimal, grouping)
    for name, cells in texts.items():
        found[name] = _decided(where, name, cells, schema, options.types.get(name))
    parts = [found[name] for name in table.columns if name in found]
    words = [f"{column.name!r} ({len(column.levels)} values)" for column, _ in parts if column.kind == "category"]
    if words:
        more = f" and {len(words) - 5} more" if len(words) > 5 else ""
        notes.append(f"{where}: one column per value of {', '.join(words[:5])}{more}")
    if not parts:
        raise DataError(f"{where}: has no feature columns, expected at least one")
    return replace(schema, columns=tuple(column for column, _ in parts)), _assembled(where, parts, len(table))


def _numbers_of_many(columns: Mapping[str, Any], missing: Sequence[str]) -> Iterator[tuple[str, np.ndarray | None]]:
    """Convert text columns to numbers. Short columns are converted together, because each conversion takes 0.1 ms."""
    import pyarrow as pa

    names, size = list(columns), len(next(iter(columns.values()), ()))
    together = max(1, min(_TOGETHER, _CELLS // max(size, 1)))
    for first in range(0, len(names), together):
        group = names[first : first + together]
        flat = None
        if len(group) > 1 and len({columns[name].type for name in group}) == 1:
            flat = numbers(pa.concat_arrays([_whole(columns[name]) for name in group]), missing)
        for j, name in enumerate(group):
            yield name, numbers(columns[name], missing) if flat is None else flat[j * size : (j + 1) * size]


def _check_padding(where: str, name: str, cells: pa.Array, values: np.ndarray, forced: str | None) -> None:
    """Raise DataError if a column contains integers with leading zeros, which may be codes or numbers."""
    import pyarrow.compute as pc

    if forced is None and whole_numbers(values):
        padded = pc.match_substring_regex(cells, _PADDED)
        if pc.any(padded).as_py():
            row = pc.index(padded, True).as_py()
            raise DataError(
                f"{where}: column {name!r}, row {row} is {cells[row].as_py()!r}: digits with leading zeros can be "
                f"codes or numbers; pass --type {name}=category or --type {name}=number, or leave the column out "
                f"(--drop-columns {name})"
            )


def decimal_mark(
    where: str,
    texts: Mapping[str, pa.Array],
    table: pd.DataFrame,
    found: Collection[str],
    options: TableOptions,
    notes: list[str],
) -> tuple[str, bool]:
    """Detect the decimal separator, and whether the numbers contain thousands separators, from text columns."""
    if options.decimal is not None:
        return options.decimal, True
    comma = dot = either = None
    seen: list[str] = []
    for name, cells in texts.items():
        if options.types.get(name) not in (None, "number"):
            continue
        _, levels = levels_of(cells, options.missing)
        levels = [level.strip() for level in levels]
        if 2 * sum(map(_is_number, levels)) <= len(levels) or not any("," in level for level in levels):
            continue
        seen += levels
        for level in levels:
            by_comma = re.match(_NUMBER[","], level) or re.match(_GROUPED[","], level)
            by_dot = re.match(_NUMBER[r"\."], level) or re.match(_GROUPED[r"\."], level)
            if by_comma and by_dot:
                either = either or ((name, level) if "," in level else None)
            elif by_comma:
                comma = comma or (name, level)
            elif by_dot:
                dot = dot or (name, level)
    if comma is None and dot is None and either is None:
        return ".", False
    dot = dot or _with_dot(table, found)
    if (comma is None) == (dot is None):
        first, second = comma or either, dot or either
        assert first is not None
        assert second is not None
        said = f"column {first[0]!r} has {first[1]!r}"
        said += f", column {second[0]!r} has {second[1]!r}" if second != first else ""
        raise DataError(
            f"{where}: {said}: the decimal mark may be ',' or '.'; pass --decimal , or --decimal . "
            "(the other mark is then the thousands separator)"
        )
    mark, evidence = (",", comma) if comma is not None else (".", dot)
    assert evidence is not None
    notes.append(f"{where}: numbers have the decimal mark {mark!r} (column {evidence[0]!r}: {evidence[1]!r})")
    return mark, any(re.match(_GROUPED["," if mark == "," else r"\."], level) for level in seen)


def _with_dot(table: pd.DataFrame, found: Collection[str]) -> tuple[str, str] | None:
    """Return the name of a numeric column in text form that contains a decimal point, and the cell with the point."""
    import pyarrow.compute as pc

    for name in found:
        cells = text_cells(table[name])
        if cells is not None and (row := pc.index(pc.match_substring(cells, "."), True).as_py()) >= 0:
            return name, cells[row].as_py()
    return None


def _decided(where: str, name: str, cells: pa.Array, schema: Schema, forced: str | None) -> tuple[Column, np.ndarray]:
    """Detect the type of a text column; return the type and the numbers or codes of the cells."""
    values = (
        None if forced in ("category", "boolean") else numbers(cells, schema.missing, schema.decimal, schema.grouping)
    )
    if values is not None:
        _check_padding(where, name, cells, values, forced)
        return Column(name, "number"), values
    if forced in (None, "boolean") and (values := truth_values(cells, schema.missing)) is not None:
        return Column(name, "boolean"), values
    if forced in ("number", "boolean"):
        raise schema._other(where, name, cells, f"a {forced}")
    codes, texts = levels_of(cells, schema.missing)
    known = codes[codes >= 0]
    if forced is None:
        _check_category(where, name, codes, texts, schema.decimal)
    order = sorted(range(len(texts)), key=texts.__getitem__)
    place = np.empty(len(texts) + 1, np.intp)
    place[order], place[-1] = np.arange(len(texts)), -1
    column = Column(name, "category", tuple(texts[j] for j in order))
    return column, place[codes] if len(known) else codes


def _check_category(where: str, name: str, codes: np.ndarray, texts: Sequence[str], decimal: str) -> None:
    """Raise DataError if a text column is not categorical, for example because it contains dates or free text."""
    known = codes[codes >= 0]
    counts = np.bincount(known, minlength=len(texts))
    padded = [re.match(_PADDED, text) is not None for text in texts]
    number = np.array([_is_number(text) and not zero for text, zero in zip(texts, padded)], bool)
    odd = np.flatnonzero(~number)
    if counts[number].sum() > len(known) / 2:
        coded = len(texts) <= LEVELS and all(counts[j] > 1 and re.search(r"\d", texts[j]) for j in odd.tolist())
        if not coded:
            row = int(np.flatnonzero(np.isin(codes, odd) if len(odd) else codes >= 0)[0])
            raise not_a_number(where, name, row, texts[int(codes[row])], "a number as in most rows", decimal)
    example = texts[int(known[0])][:40] if len(known) else ""
    if all(_DATE.fullmatch(text.strip()) for text in texts):
        raise _no_feature(where, name, "dates", example)
    if texts and all(_SEVERAL.fullmatch(text.strip()) for text in texts):
        raise DataError(
            f"{where}: column {name!r} has several numbers per cell ({example!r}); write vectors as lists such as "
            f"[0.5, 1] or in Parquet, and numbers without spaces; or pass --type {name}=category"
        )
    if texts and all(_WITH_SIGN.fullmatch(text.strip()) for text in texts):
        raise DataError(
            f"{where}: column {name!r} has numbers with a unit ({example!r}); remove the unit, or pass "
            f"--type {name}=category"
        )
    if texts and all(is_bracketed(text) for text in texts):
        raise DataError(
            f"{where}: column {name!r} has lists written as text ({example!r}); pass it as labels "
            f"(--label-columns {name}), or leave it out (--drop-columns {name})"
        )
    words = np.array([len(text.split()) for text in texts])[known].mean() if len(known) else 0
    if len(texts) > LEVELS and words >= 3:
        raise _no_feature(where, name, "free text", example)
    if len(texts) > LEVELS and len(texts) > 0.5 * len(known):
        raise DataError(
            f"{where}: column {name!r} has {len(texts)} different values in {len(known)} rows ({example!r}), too many "
            f"for a category; leave it out (--drop-columns {name}), or use it as sample ids (--id {name})"
        )


def _no_feature(where: str, name: str, what: str, example: str) -> DataError:
    cure = f"or pass it as documents (--text {name}, in Python text={name!r})"
    if what == "dates":
        cure = f"or convert it to days (--type {name}=date)"
    return DataError(
        f"{where}: column {name!r} has {what} ({example!r} ...); leave it out (--drop-columns {name}), {cure}"
    )


def _is_listed(text: str) -> bool:
    """Return whether a text cell is a list in brackets, or a list of URIs in angle brackets."""
    return is_bracketed(text) or URI.fullmatch(text) is not None


def is_bracketed(text: str) -> bool:
    text = text.strip()
    if text[:1] == "(":
        return text[-1:] == ")" and ("'" in text or '"' in text)
    return text[:1] in ("[", "{") and text[-1:] in ("]", "}")


def described(schema: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Describe a stored schema in rows of three texts: the names, the type and the values of some columns."""
    try:
        found = [(str(name), str(kind), str(said)) for name, kind, said in schema.get("others", ())]
        views = dict(schema["views"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(_DAMAGED) from None
    several = len(views) > 1
    for view, given in views.items():
        own, runs = Schema.from_dict(given), list[list[Column]]()
        for column in own.columns:
            if runs and runs[-1][0].kind == column.kind != "category":
                runs[-1].append(column)
            else:
                runs.append([column])
        for run in runs:
            names = ", ".join(column.name for column in run)
            if len(run) > 6:
                names = f"{run[0].name}, ..., {run[-1].name} ({len(run)})"
            said = f"decimal mark {own.decimal!r}" if run[0].kind == "number" and own.decimal != "." else ""
            if run[0].kind == "category":
                shown = ", ".join(run[0].levels[:6]) + (", ..." if len(run[0].levels) > 6 else "")
                said = f"{len(run[0].levels)}: {shown}"
            found.append((f"{view}: {names}" if several else names, run[0].kind, said))
    return found
