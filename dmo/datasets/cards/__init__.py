"""The cards of public data sets: TOML files that say what a set must hold, where it can be had, and how it is read.

`data/README.md` describes the fields. The cards that come with dmo lie beside this module.
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
"""The cards that come with dmo: name -> file."""
ALL = "all"
"""The split of samples that have none."""
Files = str | dict[str, str]
""""PATH" or "PATH::ARRAY" as `open_table` takes them, or one for each split; PATH is a name of the card's files."""


@dataclass(frozen=True)
class File:
    """A file: its name in the set's folder, the SHA-256 of its decompressed bytes, where it can be had, their address."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    name: str
    sha256: str
    source: str
    url: str | None = None


@dataclass(frozen=True)
class ViewCard:
    """A view: what it is read from, and what its numbers must be (`total`: the sum of all values)."""

    # `order`: row numbers of the files, where their rows are in another order; `match`: labels of the files' rows, by
    # which rows of a split are put in the order of its labels.

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
    """The labels: their number, sum by split, and what they are read from: `files`, or `columns` of ARFF (-2: the last two).

    `names`: an array or text file of names, or a pattern such as "category {}", which counts from 1.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    number: int
    total: dict[str, float]
    files: Files | None = None
    columns: int | None = None
    names: str | None = None


@dataclass(frozen=True)
class Card:
    """A data set: what it must hold.

    Parameters
    ----------
    name : str
        What it is called.
    title, license, citation : str
        What it is, and what its users owe.
    rows : dict of str to int
        Samples by split ("all" where there is none), in the order of the rows.
    labels : LabelCard
        Its labels.
    views : tuple of ViewCard
        Its views.
    files : tuple of File
        All its files.
    ids : str or dict of str to str, default=None
        The array of its samples' names, or one for each split.
    about : str, default=""
        Prose, in Markdown.

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
        """The number of samples, over all splits."""
        return sum(self.rows.values())

    def choose(self, names: Sequence[str] | None) -> list[ViewCard]:
        """Find views by their names.

        Parameters
        ----------
        names : sequence of str, default=None
            Some of the set's views; None: all that are not optional.

        Returns
        -------
        list of ViewCard
            In that order.

        Raises
        ------
        UserError
            For an unknown name, and for none.
        """
        known = {view.name: view for view in self.views}
        if names is None:
            return [view for view in self.views if not view.optional]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            got = repr(unknown[0]) if unknown else "none"
            raise UserError(f"{self.name}: got view {got}, expected some of {', '.join(known)}")
        return [known[name] for name in dict.fromkeys(names)]

    def files_for(self, views: Sequence[ViewCard]) -> list[File]:
        """Find the files that hold some views, the labels and the names.

        Parameters
        ----------
        views : sequence of ViewCard
            The views.

        Returns
        -------
        list of File
            What is needed.

        Raises
        ------
        DataError
            Where the card reads a file that it does not list.
        """
        labels = self.labels
        names = None if labels.names is None or "{}" in labels.names else labels.names
        used = [labels.files, names, self.ids, *(part for v in views for part in (v.files, v.order, v.match))]
        needed = {spec.partition("::")[0] for files in used if files is not None for spec in by_split(files).values()}
        unlisted = sorted(needed - {file.name for file in self.files})
        if unlisted:
            raise DataError(f"card {self.name}: {unlisted[0]!r} is read but not listed; add it to [files]")
        return [file for file in self.files if file.name in needed]


def by_split(files: Any) -> Mapping[str, Any]:
    """Split -> file, "all" where there is no split."""
    return files if isinstance(files, Mapping) else {ALL: files}


def read_card(name: str | os.PathLike[str]) -> Card:
    """Read a card.

    Parameters
    ----------
    name : str or path-like
        One of `CARDS`, or a TOML file.

    Returns
    -------
    Card
        What it says.

    Raises
    ------
    UserError
        For a name that is neither.
    DataError
        Where the file is no card.

    Examples
    --------
    >>> from dmo.datasets import read_card
    >>> read_card("yeast").files[0].name
    'yeast-train.arff.xz'
    """
    from pydantic import TypeAdapter, ValidationError

    if str(name) not in CARDS and Path(name).suffix != ".toml":
        raise UserError(
            f"no data set {str(name)!r}, expected one of {', '.join([*CARDS, 'files'])}, or a card NAME.toml"
        )
    path = existing(CARDS.get(str(name), name))
    try:
        found: dict[str, Any] = {"name": path.stem, **tomllib.loads(path.read_text(encoding="utf-8"))}
        found |= {key: _named(found[key]) for key in ("views", "files") if key in found}
        card = TypeAdapter(Card).validate_python(found)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: no TOML ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{path}: {where}: {first['msg']}; compare it with a card such as {CARDS['yeast']}") from None
    if not card.views or set(card.rows) != set(card.labels.total):
        raise DataError(f"{path}: expected at least one view, and a total of the labels for each split of [rows]")
    card.files_for(card.views)
    return card


def _named(table: Any) -> Any:
    """A table of tables as a list of tables that have their names; others unchanged, to be refused."""
    if not isinstance(table, dict):
        return table
    return [{"name": name, **entry} if isinstance(entry, dict) else entry for name, entry in table.items()]
