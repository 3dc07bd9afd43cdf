"""Readers of dense and sparse ARFF files, and of the XML files in which Mulan lists the labels of a data set."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import scipy.sparse

from dmo.blocks import dense, stacked
from dmo.formats.files import Block, DataError, decoded, decompressing, lines, open_binary, to_number

_NAME = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_NAME}|[^\s{{]+)\s*(.+)", re.IGNORECASE)
_FIELD = re.compile(rf"(?:{_NAME}|[^,'\"])*")
_PAIR = re.compile(r"(\S+)\s+(.*)")
_NUMERIC = re.compile(r"(numeric|real|integer)\s*(\[.*\])?", re.IGNORECASE)  # KEEL files add a range of values.
_MISSING = ("?", "<null>")  # Missing value markers of Weka and KEEL.
_LONGEST = 1 << 24  # Maximum size of a label list in bytes; the largest public lists have some hundred kilobytes.
_LIST = '<labels><label name="sky"/></labels>'  # Example of a Mulan label list for messages.


@dataclass(frozen=True)
class Attribute:
    """Column of an ARFF file.

    The values of a nominal attribute are read as numbers if all declared values are numbers. Otherwise, each value is
    read as its position among the declared values. Missing values ("?") become NaN.

    Parameters
    ----------
    name : str
        Name of the attribute.
    values : tuple of str, default=None
        Declared values of a nominal attribute, or None for other attributes.
    text : bool, default=False
        Whether the attribute has type string or date. Its values are read as NaN.

    Examples
    --------
    >>> from dmo.datasets import Attribute
    >>> Attribute("weather", ("sun", "rain")).code("rain")
    1.0
    """

    name: str
    values: tuple[str, ...] | None = None
    text: bool = False

    @cached_property
    def numbers(self) -> tuple[float, ...] | None:
        """Declared values as numbers, or None if the attribute is not nominal or if a value is not a number."""
        found = [to_number(value) for value in self.values or ()]
        return None if self.values is None or None in found else tuple(value for value in found if value is not None)

    @property
    def categories(self) -> tuple[float, ...] | None:
        """Numbers that represent the values of a categorical attribute, or None if the attribute is not categorical.

        A nominal attribute is categorical unless it has at most two values and these values are numbers.
        """
        if self.values is None or (self.numbers is not None and len(self.values) <= 2):
            return None
        return tuple(map(float, range(len(self.values)))) if self.numbers is None else self.numbers

    def code(self, text: str) -> float | None:
        """Convert the text of a value to a number.

        Parameters
        ----------
        text : str
            Text of the value, without quotes.

        Returns
        -------
        float or None
            Number, or None if the text is not a valid value of the attribute.
        """
        if self.text or text in _MISSING:
            return np.nan
        if self.values is not None and self.numbers is None:
            return float(self.values.index(text)) if text in self.values else None
        value = to_number(text)
        return value if self.numbers is None or value in self.numbers else None


@dataclass(frozen=True)
class Arff:
    r"""Opened ARFF file, whose header is parsed and whose rows are read block by block.

    Attributes
    ----------
    path : Path
        Path of the file.
    relation : str
        Title of the data set in the @relation line.
    attributes : tuple of Attribute
        Columns of the file.
    first : int
        Line number of the @data line, after which the rows begin.
    outputs : tuple of str
        Names of the output columns in the @outputs line, which files of KEEL contain.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import open_arff
    >>> _ = Path("a.arff").write_text("@relation r\n@attribute x real\n@attribute y {0,1}\n@data\n2.5,1\n")
    >>> arff = open_arff("a.arff")
    >>> arff.names, [block.tolist() for block in arff.blocks()]
    (['x', 'y'], [[[2.5, 1.0]]])
    """

    path: Path
    relation: str
    attributes: tuple[Attribute, ...]
    first: int
    outputs: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [attribute.name for attribute in self.attributes]

    @property
    def label_count(self) -> int:
        """Number of label columns in a MEKA relation name such as "-C 6", or 0; negative for the last columns."""
        found = re.search(r"-C\s+(-?\d+)", self.relation)
        return int(found[1]) if found else 0

    def columns(self, names: Sequence[str]) -> np.ndarray:
        """Return the positions of columns with the given names.

        Parameters
        ----------
        names : sequence of str
            Names of the columns.

        Returns
        -------
        ndarray of shape (len(names),), intp
            Positions of the columns in the file.

        Raises
        ------
        DataError
            If a column does not exist.
        """
        position = {name: i for i, name in enumerate(self.names)}
        missing = [name for name in names if name not in position]
        if missing:
            raise DataError(
                f"{self.path}: no attribute {missing[0]!r} above line {self.first} ({len(missing)} of {len(names)} "
                "labels are missing), expected an attribute for every label; use the label list of this file"
            )
        return np.array([position[name] for name in names], dtype=np.intp)

    def split(self, labels: Sequence[str] | int) -> tuple[np.ndarray, np.ndarray]:
        """Split the columns into feature columns and label columns.

        Parameters
        ----------
        labels : sequence of str or int
            Names of the label columns, or their number as in MEKA, which is negative for the last columns.

        Returns
        -------
        features, labels : ndarray, intp
            Positions of the feature columns and of the label columns.

        Raises
        ------
        DataError
            If a column does not exist, or if the number of label columns leaves no features or no labels.
        """
        if isinstance(labels, int):
            d = len(self.attributes)
            if not 0 < abs(labels) < d:
                raise DataError(
                    f"{self.path}: has {d} attributes, got {abs(labels)} labels, expected at least one label and one "
                    "feature"
                )
            chosen = np.arange(labels) if labels > 0 else np.arange(d + labels, d)
        else:
            chosen = self.columns(labels)
        return np.setdiff1d(np.arange(len(self.attributes)), chosen), chosen

    def blocks(self, size: int = 4096) -> Iterator[Block]:
        """Read the rows of the file block by block.

        Parameters
        ----------
        size : int, default=4096
            Maximum number of rows per block.

        Yields
        ------
        ndarray or csr_array of shape (n_b, d), float64
            Block of n_b rows. Rows of a sparse file are a CSR array.

        Raises
        ------
        DataError
            If a row does not match the header, or if the file has no rows. The message contains the line number.
        """
        data = ((n, line) for n, line in lines(self.path) if n > self.first and line and not line.startswith(b"%"))
        sparse: bool | None = None
        while block := list(islice(data, size)):
            if sparse is None:
                sparse = block[0][1].startswith(b"{")
                if sparse:
                    self._check_defaults()
            yield self._sparse(block) if sparse else self._dense(block)
        if sparse is None:
            raise DataError(f"{self.path}: ends after @data in line {self.first}, expected at least one row")

    def _dense(self, block: list[tuple[int, bytes]]) -> np.ndarray:
        try:
            values = np.loadtxt([line.decode("ascii") for _, line in block], delimiter=",", comments=None, ndmin=2)
            if values.shape[1] == len(self.attributes) and self._declared(values):
                return values
        except (ValueError, UnicodeDecodeError):
            pass
        return np.stack([self._dense_row(number, line) for number, line in block])

    def _dense_row(self, number: int, line: bytes) -> np.ndarray:
        if line.startswith(b"{"):
            raise DataError(f"{self.path}: line {number} is a sparse row, expected a dense row like the rows above")
        texts = self._split(number, decoded(line))
        if len(texts) != len(self.attributes):
            raise DataError(
                f"{self.path}: line {number} has {len(texts)} values, expected {len(self.attributes)} as declared by "
                "@attribute; correct the line"
            )
        return np.array([self._value(number, i, text) for i, text in enumerate(texts)])

    def _sparse(self, block: list[tuple[int, bytes]]) -> scipy.sparse.csr_array:
        parsed = self._sparse_fast(block)
        if parsed is None:
            rows = [self._sparse_row(number, line) for number, line in block]
            counts = [len(columns) for columns, _ in rows]
            parsed = (
                counts,
                np.array([c for columns, _ in rows for c in columns], dtype=np.int64),
                np.array([v for _, values in rows for v in values], dtype=np.float64),
            )
        counts, columns, values = parsed
        indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        matrix = scipy.sparse.csr_array((values, columns, indptr), shape=(len(block), len(self.attributes)))
        matrix.eliminate_zeros()
        return matrix

    def _sparse_fast(self, block: list[tuple[int, bytes]]) -> tuple[list[int], np.ndarray, np.ndarray] | None:
        """Parse sparse rows whose values are plain numbers; return None if the rows contain anything else."""
        counts, tokens = [], list[bytes]()
        for _, line in block:
            body = line[1:-1]
            parts = body.replace(b",", b" ").split()
            count = body.count(b",") + 1 if parts else 0
            if line[:1] != b"{" or line[-1:] != b"}" or len(parts) != 2 * count or b"_" in body:
                return None
            counts.append(count)
            tokens += parts
        try:
            pairs = np.array(tokens, dtype=bytes).astype(np.float64).reshape(-1, 2)
        except ValueError:
            return None
        columns, values = pairs[:, 0].astype(np.int64), pairs[:, 1]
        starts = np.cumsum(counts)[:-1]
        rising = np.diff(columns, prepend=-1) > 0
        rising[starts[starts < len(columns)]] = True
        inside = np.all((columns == pairs[:, 0]) & (columns >= 0) & (columns < len(self.attributes)) & rising)
        return (counts, columns, values) if inside and self._declared(values, columns) else None

    def _sparse_row(self, number: int, line: bytes) -> tuple[list[int], list[float]]:
        text = decoded(line)
        if not (text.startswith("{") and text.endswith("}")):
            raise DataError(f"{self.path}: line {number} is not in braces, expected a sparse row like the rows above")
        columns: list[int] = []
        values: list[float] = []
        body = text[1:-1].strip()
        for pair in self._split(number, body) if body else []:
            found = _PAIR.fullmatch(pair)
            if not found or not found[1].isdecimal() or int(found[1]) >= len(self.attributes):
                raise DataError(
                    f"{self.path}: line {number} has {pair!r}, "
                    f"expected a column below {len(self.attributes)} and a value"
                )
            if columns and int(found[1]) <= columns[-1]:
                raise DataError(
                    f"{self.path}: line {number} has column {found[1]} after {columns[-1]}, expected ascending columns"
                )
            columns.append(int(found[1]))
            values.append(self._value(number, columns[-1], found[2]))
        return columns, values

    def _split(self, number: int, text: str) -> list[str]:
        fields = _fields(text)
        if fields is None:
            raise DataError(f"{self.path}: line {number} has an unclosed quote, expected values separated by commas")
        return fields

    def _value(self, number: int, column: int, text: str) -> float:
        attribute = self.attributes[column]
        value = attribute.code(_unquote(text))
        if value is not None:
            return value
        expected = "a number"
        if attribute.values is not None:
            expected = "one of " + ", ".join(attribute.values[:6]) + (", ..." if len(attribute.values) > 6 else "")
        raise DataError(
            f"{self.path}: line {number} has {text!r} for {attribute.name!r}, expected {expected}; write ? if it is "
            "missing"
        )

    @cached_property
    def _nominal(self) -> dict[tuple[float, ...] | None, np.ndarray]:
        """Indices of nominal columns by their declared numbers, or by None if a declared value is not a number."""
        groups: dict[tuple[float, ...] | None, list[int]] = {}
        for i, attribute in enumerate(self.attributes):
            if attribute.values is not None:
                groups.setdefault(attribute.numbers, []).append(i)
        return {key: np.array(columns) for key, columns in groups.items()}

    def _declared(self, values: np.ndarray, columns: np.ndarray | None = None) -> bool:
        """Return whether all values of nominal columns are numbers that the header declares."""
        for numbers, where in self._nominal.items():
            if numbers is None:
                return False
            picked = values[:, where] if columns is None else values[np.isin(columns, where)]
            if not np.isin(picked, numbers).all():
                return False
        return True

    def _check_defaults(self) -> None:
        """Raise DataError if the first declared value of a nominal column, which sparse rows omit, is not 0."""
        for attribute in self.attributes:
            if attribute.values is not None and attribute.code(attribute.values[0]) != 0:
                raise DataError(
                    f"{self.path}: attribute {attribute.name!r} declares {attribute.values[0]} first, expected 0, "
                    "because sparse rows omit the first value; declare the attribute as {0, ...}"
                )


def open_arff(path: str | os.PathLike[str]) -> Arff:
    r"""Read the header of an ARFF file.

    Parameters
    ----------
    path : path-like
        Path of the file, which may be compressed (.arff.xz, .arff.gz, .arff.bz2).

    Returns
    -------
    Arff
        Opened file, whose rows are read by its method `blocks`.

    Raises
    ------
    DataError
        If the header is not valid ARFF, an attribute has an unknown type, a name occurs twice, or the @data line is
        missing. The message contains the line number.

    References
    ----------
    Attribute-relation file format, documentation of Weka.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import open_arff
    >>> _ = Path("a.arff").write_text("@relation r\n@attribute x real\n@attribute y {0,1}\n@data\n2.5,1\n")
    >>> open_arff("a.arff").attributes[1]
    Attribute(name='y', values=('0', '1'), text=False)
    """
    relation, attributes, number = "", dict[str, Attribute](), 0
    outputs: tuple[str, ...] = ()
    for number, line in lines(path):
        if not line or line.startswith(b"%"):
            continue
        text = decoded(line)
        keyword = text.split(maxsplit=1)[0].lower()
        if keyword == "@relation":
            relation = _unquote(text[len("@relation") :].strip())
        elif keyword == "@data":
            if not attributes:
                raise DataError(f"{path}: @data in line {number}, expected an @attribute before it")
            return Arff(Path(path), relation, tuple(attributes.values()), number, outputs)
        elif keyword in ("@input", "@inputs", "@output", "@outputs"):
            if keyword.startswith("@output"):
                outputs = tuple(_unquote(part) for part in _fields(text.split(maxsplit=1)[-1]) or ())
        elif found := _ATTRIBUTE.fullmatch(text):
            attribute = _attribute(f"{path}: line {number}", _unquote(found[1]), found[2].strip())
            if attribute.name in attributes:
                raise DataError(f"{path}: line {number} declares {attribute.name!r} again, expected each name once")
            attributes[attribute.name] = attribute
        else:
            raise DataError(f"{path}: line {number} begins with {text[:40]!r}, expected @relation, @attribute or @data")
    raise DataError(f"{path}: ends after line {number} without @data; fetch it again, or write @data above the rows")


def read_arff(path: str | os.PathLike[str], labels: Sequence[str] | int | None = None) -> tuple[Block, np.ndarray]:
    r"""Read a whole ARFF file.

    Parameters
    ----------
    path : path-like
        Path of the file, plain or compressed.
    labels : sequence of str or int, default=None
        Columns that are labels or regression targets: names (see `read_label_list`), or their number, positive for the
        first columns and negative for the last. With None, Y has no columns.

    Returns
    -------
    X : ndarray or csr_array of shape (n, d), float64
        Features, CSR if the file is sparse.
    Y : ndarray of shape (n, L), float64
        Labels or regression targets.

    Raises
    ------
    DataError
        See `open_arff` and `Arff.blocks`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import read_arff
    >>> _ = Path("a.arff").write_text("@relation r\n@attribute x real\n@attribute y {0,1}\n@data\n2.5,1\n")
    >>> read_arff("a.arff", labels=["y"])
    (array([[2.5]]), array([[1.]]))
    """
    arff = open_arff(path)
    features, outputs = arff.split(() if labels is None else labels)
    blocks = list(arff.blocks())
    X = stacked([block[:, features] for block in blocks])
    return X, np.concatenate([dense(block[:, outputs]) for block in blocks])


def _attribute(where: str, name: str, kind: str) -> Attribute:
    if _NUMERIC.fullmatch(kind):
        return Attribute(name)
    if kind.lower() == "string" or kind.lower().split()[0] == "date":
        return Attribute(name, text=True)
    if not (kind.startswith("{") and kind.endswith("}")):
        raise DataError(
            f"{where} declares {name!r} as {kind[:40]!r}, expected numeric, real, integer, string or {{values}}; "
            "correct the type"
        )
    body = kind[1:-1].strip()
    fields = _fields(body)
    if fields is None or not all(fields):
        raise DataError(f"{where} declares {name!r} as {kind[:40]!r}, expected values separated by commas")
    return Attribute(name, tuple(map(_unquote, fields)))


def _fields(text: str) -> list[str] | None:
    """Split a line at commas that are not inside quotes; return None if a quote is not closed."""
    if "'" not in text and '"' not in text:
        return [part.strip() for part in text.split(",")]
    fields, position = [], 0
    while True:
        found = _FIELD.match(text, position)
        position = len(text) if found is None else found.end()
        fields.append("" if found is None else found[0].strip())
        if position == len(text):
            return fields
        if text[position] != ",":
            return None
        position += 1


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def read_label_list(path: str | os.PathLike[str]) -> list[str]:
    """Read the label names from an XML file of Mulan. Every node of a hierarchy is a label.

    Parameters
    ----------
    path : path-like
        Path of the file, which may be compressed.

    Returns
    -------
    list of str
        Label names in the order of the file.

    Raises
    ------
    DataError
        If the file is not valid XML or has no labels.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.datasets import read_label_list
    >>> _ = Path("l.xml").write_text('<labels><label name="sky"></label><label name="sea"></label></labels>')
    >>> read_label_list("l.xml")
    ['sky', 'sea']
    """
    with decompressing(path, lambda: ""), open_binary(path) as file:
        text = file.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise DataError(f"{path}: has more than {_LONGEST} bytes, expected a Mulan label list")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, column = error.position
        raise DataError(
            f"{path}: not valid XML in line {line}, column {column}, expected a Mulan label list such as {_LIST}"
        ) from None
    except (ValueError, LookupError) as error:  # Python does not support the declared encoding.
        raise DataError(f"{path}: not valid XML ({error}), expected a Mulan label list such as {_LIST}") from None
    names = [element.get("name") for element in root.iter() if element.tag.rpartition("}")[2] == "label"]
    if not names or None in names:
        raise DataError(
            f'{path}: the root <{root.tag.rpartition("}")[2]}> has no <label name="...">, expected a Mulan label list'
        )
    return [name for name in names if name is not None]
