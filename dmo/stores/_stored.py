"""What complete stores of every kind have in common: their root, and names that were written beside the arrays."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from typing import Any

from dmo.stores import _whole
from dmo.stores._folder import Folder
from dmo.stores._schema import origin_of


class Stored:
    """The base class of `FeatureStore`, `KernelStore` and `ResultStore`."""

    folder: Folder
    root: dict[str, Any]

    def __getstate__(self) -> dict[str, Any]:
        # the fields alone: a worker that needs the names and labels which were read so far reads them itself
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """Path or URL of the store."""
        return self._place().url

    @property
    def attributes(self) -> dict[str, Any]:
        """The JSON dictionary that the store was made with."""
        return self.root["attributes"]

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the contents come from, as JSON."""
        return origin_of(self._place(), self.root)

    @cached_property
    def sample_ids(self) -> list[str] | None:
        """Names of the samples, or None."""
        return self._strings("sample")

    def _place(self) -> Folder:
        return self.folder

    def _strings(self, name: str) -> list[str] | None:
        known = self.root["configuration"].get(name)
        return None if known is None else _whole.read_strings(self._place(), name, known)
