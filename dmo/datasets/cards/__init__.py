"""Cards of public data sets: TOML files with the expected contents, the sources and the file layout of a data set.

`data/README.md` describes the fields. The cards distributed with dmo are in the folder of this module.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from dmo.errors import UserError
from dmo.formats.files import DataError, existing

CARDS = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
"""Paths of the cards distributed with dmo, by name."""
ALL = "all"
"""Key used instead of a split name if the samples have no split."""
Files = str | dict[str, str]
""""PATH" or "PATH::ARRAY" as in `open_table`, or a mapping with one per split; PATH is a file name of the card."""


@dataclass(frozen=True)
class File:
    """File of a data set: its name in the folder, SHA-256 of the decompressed bytes, description of the source, URL."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    name: str
    sha256: str
    source: str
    url: str | None = None


@dataclass(frozen=True)
class ViewCard:
    """View of a data set: its files, expected dimension and data type, and the expected sum of all values (`total`)."""

    # `order` has the row indices of the files if their rows are in another order than the samples. `match` has the
    # labels of the rows of the files; the rows of a split are sorted so that these labels equal the labels of the data
    # set.

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    name: str
    files: Files
    dimension: int
    dtype: str
    total: float
    kind: Literal["dense", "sparse"] = "dense"
    histogram: bool = False
    optional: bool = False
    order: Files | None = None
    match: str | None = None


@dataclass(frozen=True)
class LabelCard:
    """Labels of a data set: their number, their sum per split, and their `files` or ARFF `columns` (-2: the last two).

    `names` is an array or text file with the label names, or a pattern such as "category {}" that is numbered from 1.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    number: int
    total: dict[str, float]
    files: Files | None = None
    columns: int | None = None
    names: str | None = None


@dataclass(frozen=True)
class Card:
    """Card of a data set: its description, expected contents and files.

    Parameters
    ----------
    name : str
        Name of the data set.
    title, license, citation : str
        Title, license, and the publication that users should cite.
    rows : dict of str to int
        Number of samples per split, in the order of the rows. Without splits, the only key is "all".
    labels : LabelCard
        Labels.
    views : tuple of ViewCard
        Views.
    files : tuple of File
        All files.
    ids : str or dict of str to str, default=None
        Array with the ids of the samples, or one array per split.
    about : str, default=""
        Description in Markdown.

    Examples
    --------
    >>> from dmo.datasets import read_card
    >>> card = read_card("corel5k")
    >>> card.n_samples, card.labels.number, card.rows
    (4999, 260, {'train': 4500, 'test': 499})
    >>> view = card.choose(["gist"])[0]
    >>> view.dimension, view.dtype
    (512, 'float32')
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    name: str
    title: str
    license: str
    citation: str
    rows: dict[str, int]
    labels: LabelCard
    views: tuple[ViewCard, ...]
    files: tuple[File, ...]
    ids: Files | None = None
    about: str = field(default="", repr=False)

    @property
    def n_samples(self) -> int:
        """Number of samples in all splits together."""
        return sum(self.rows.values())

    def choose(self, names: Sequence[str] | None) -> list[ViewCard]:
        """Return the views with the given names.

        Parameters
        ----------
        names : sequence of str, default=None
            Names of views. None selects all views that are not optional.

        Returns
        -------
        list of ViewCard
            Views in the order of `names`.

        Raises
        ------
        UserError
            If a name is unknown or `names` is empty.
        """
        known = {view.name: view for view in self.views}
        if names is None:
            return [view for view in self.views if not view.optional]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            got = repr(unknown[0]) if unknown else "none"
            raise UserError(f"{self.name}: got view {got}, expected views among {', '.join(known)}")
        return [known[name] for name in dict.fromkeys(names)]

    def files_for(self, views: Sequence[ViewCard]) -> list[File]:
        """Return the files that are needed to read the given views, the labels and the names.

        Parameters
        ----------
        views : sequence of ViewCard
            Views to read.

        Returns
        -------
        list of File
            Files to read.

        Raises
        ------
        DataError
            If the card refers to a file that it does not list.
        """
        labels = self.labels
        names = None if labels.names is None or "{}" in labels.names else labels.names
        used = [labels.files, names, self.ids, *(part for v in views for part in (v.files, v.order, v.match))]
        needed = {spec.partition("::")[0] for files in used if files is not None for spec in by_split(files).values()}
        unlisted = sorted(needed - {file.name for file in self.files})
        if unlisted:
            raise DataError(f"card {self.name}: file {unlisted[0]!r} is used but not listed; add it to [files]")
        return [file for file in self.files if file.name in needed]


def by_split(files: Any) -> Mapping[str, Any]:
    """Return the files by split; without splits, the only key is "all"."""
    return files if isinstance(files, Mapping) else {ALL: files}


def read_card(name: str | os.PathLike[str]) -> Card:
    """Read the card of a data set.

    Parameters
    ----------
    name : str or path-like
        Key of `CARDS`, or path of a TOML file.

    Returns
    -------
    Card
        Contents of the card.

    Raises
    ------
    UserError
        If the name is neither a known card nor a path that ends in .toml.
    DataError
        If the file is not a valid card.

    Examples
    --------
    >>> from dmo.datasets import read_card
    >>> read_card("yeast").files[0].name
    'yeast-train.arff.xz'
    """
    from pydantic import TypeAdapter, ValidationError

    if str(name) not in CARDS and Path(name).suffix != ".toml":
        raise UserError(
            f"data set {str(name)!r} is unknown, expected one of {', '.join([*CARDS, 'files'])}, or a card NAME.toml"
        )
    path = existing(CARDS.get(str(name), name))
    try:
        found: dict[str, Any] = {"name": path.stem, **tomllib.loads(path.read_text(encoding="utf-8"))}
        found |= {key: _named(found[key]) for key in ("views", "files") if key in found}
        card = TypeAdapter(Card).validate_python(found)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not valid TOML ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{path}: {where}: {first['msg']}; compare it with a card such as {CARDS['yeast']}") from None
    if not card.views or set(card.rows) != set(card.labels.total):
        raise DataError(f"{path}: expected at least one view, and in [labels] a total for each split of [rows]")
    card.files_for(card.views)
    return card


def _named(table: Any) -> Any:
    """Convert a TOML table of tables to a list of tables with names; return other values unchanged for validation."""
    if not isinstance(table, dict):
        return table
    return [{"name": name, **entry} if isinstance(entry, dict) else entry for name, entry in table.items()]
