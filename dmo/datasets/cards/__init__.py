"""Cards of public data sets, which are TOML files that describe the contents and the files of a data set.

The folder of this module contains the cards that are distributed with dmo. `data/README.md` describes their fields.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from dmo.errors import UserError, meant
from dmo.formats.files import DataError, existing

CARDS = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
"""Paths of the cards that are distributed with dmo, by name of the data set."""
ALL = "all"
"""Name of the only split if the samples are not divided into splits."""
Files = str | dict[str, str]
"""Name of a file in the card, optionally followed by "::" and the name of an array, or one such name for each split."""


@dataclass(frozen=True)
class File:
    """Name, source and checksum of a file of a data set. The checksum is computed after decompression."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    name: str
    sha256: str
    source: str
    url: str | None = None


@dataclass(frozen=True)
class ViewCard:
    """Description of a view of a data set: its files and its expected dimension, data type and sum of all values."""

    # `order` and `match` are for views whose rows are not in the order of the samples. `order` names an array with the
    # row index of each sample. `match` names an array with the labels of the rows, and the rows of each split are
    # permuted until these labels are equal to the labels of the data set.

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
    """Description of the labels of a data set: their number, their sum in each split, and their location."""

    # The labels are in `files`, or in `columns` of ARFF files: -2 stands for the last two columns. `names` is an array
    # or text file with the label names, or a pattern such as "category {}" that is numbered from 1.

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    number: int
    total: dict[str, float]
    files: Files | None = None
    columns: int | None = None
    names: str | None = None


@dataclass(frozen=True)
class Card:
    """Description of a public data set and of its files.

    Parameters
    ----------
    name : str
        Name of the data set.
    title, license, citation : str
        Title, license, and the publication that users should cite.
    rows : dict of str to int
        Number of samples in each split, in the order of the rows. Without splits, the only key is "all".
    labels : LabelCard
        Description of the labels.
    views : tuple of ViewCard
        Descriptions of the views.
    files : tuple of File
        Files with their sources and checksums.
    ids : str or dict of str to str, default=None
        Name of the array that contains the sample ids, or of one array for each split.
    about : str, default=""
        Text about the data set in Markdown.

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
        """Total number of samples in all splits."""
        return sum(self.rows.values())

    def choose(self, names: Sequence[str] | None) -> list[ViewCard]:
        """Return the descriptions of the views with the given names.

        Parameters
        ----------
        names : sequence of str, default=None
            Names of views. None selects all views that are not optional.

        Returns
        -------
        list of ViewCard
            Descriptions of the views in the order of `names`.

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
        """Return the files that contain the given views, the labels, the label names and the sample ids.

        Parameters
        ----------
        views : sequence of ViewCard
            Descriptions of the views to read.

        Returns
        -------
        list of File
            Files that are needed.

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
    """Return the files by name of the split, which is "all" for files without splits."""
    return files if isinstance(files, Mapping) else {ALL: files}


def read_card(name: str | os.PathLike[str]) -> Card:
    """Read the card of a data set.

    Parameters
    ----------
    name : str or path-like
        Name of a data set in `CARDS`, or path of a TOML file.

    Returns
    -------
    Card
        Description of the data set.

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
        near = meant(str(name), CARDS)
        hint = f"; did you mean {near!r}?" if near else ""
        known = ", ".join([*CARDS, "files"])
        raise UserError(f"data set {str(name)!r} is unknown, expected one of {known}, or a card NAME.toml{hint}")
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
    """Convert a TOML table of tables to a list of tables with names."""
    if not isinstance(table, dict):
        return table
    return [{"name": name, **entry} if isinstance(entry, dict) else entry for name, entry in table.items()]
