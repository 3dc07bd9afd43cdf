"""What the writers of blocks share: write a block and record it, list what is missing, finish."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dmo.progress import stage
from dmo.stores._arrays import DenseArray, Index, Ledger, SparseArray, group_json, unseen
from dmo.stores._errors import StoreError, writing
from dmo.stores._folder import LOCK, Folder
from dmo.stores._lock import abandon, holder, own_token, release
from dmo.stores._schema import existing_root, first_difference, read_root, set_complete, sweep

Array = DenseArray | SparseArray


def ledger(array: Array) -> Ledger:
    return Ledger(array.folder, array.name, array.grid)


@dataclass(frozen=True)
class Blocks:
    """The blocks of a store that is being written; picklable, and safe to use from several processes at once.

    Arguments: `attributes` of the root as it was begun; `token` of the process that has the lock.
    """

    folder: Folder
    arrays: Mapping[str, Array]
    attributes: Mapping[str, Any]
    token: str = field(default_factory=own_token)

    @property
    def complete(self) -> bool:
        return self.attributes["complete"]

    def prepare(self) -> None:
        """Write the metadata of every array and of its journal, and keep the lock for as long as this is used."""
        if self.complete:
            return
        weakref.finalize(self, abandon, self.folder.url)
        self.prepare_files()

    def prepare_files(self) -> None:
        """Write the metadata of every array and of its journal; harmless when repeated."""
        with writing(self.folder.url, "the metadata of the store"):
            for group in ("manifest", "journal"):
                self.folder.put(f"{group}/zarr.json", group_json({}))
            for array in self.arrays.values():
                journal = ledger(array).journal
                self.folder.put(f"{journal.name}/zarr.json", journal.metadata())
                self.folder.put(f"{array.name}/zarr.json", array.metadata())

    def write(self, name: str, index: Index, values: Any) -> None:
        """Write one block, then its entry in the journal: a writer killed in between leaves the block missing.

        Writes nothing where the store was finished meanwhile; StoreError where another process has taken it over.
        """
        array = self.arrays[name]
        if self.complete:
            raise StoreError(f"{self.folder.url} is complete; pass overwrite=True (--overwrite) to make it anew")
        with writing(self.folder.url, array.label(index)):
            if not self._open():
                return
            ledger(array).forget(index)
            entry = array.write(index, values)
            if self._open():
                ledger(array).record(index, entry)

    def _open(self) -> bool:
        """Whether blocks may be written: False where the store that was begun is finished.

        Raises StoreError where another process has the lock, or had it and left another store.
        """
        owner = holder(self.folder)
        if owner is not None and owner.token == self.token:
            return True
        if owner is None:  # the store was finished, or its first writer needs it no longer
            document = read_root(self.folder)
            if document is None:
                raise unseen(self.folder)
            if first_difference(document["attributes"], self.attributes) is None:
                return not document["attributes"]["complete"]
        raise StoreError(
            f"{self.folder.url} was taken over by {owner or 'another process'} and this writer stops; "
            "wait for that process to end and run again"
        )

    def recorded(self) -> dict[str, np.ndarray]:
        """The entries of every array; a block whose files do not have the recorded size counts as not done."""
        found = {}
        for name, array in self.arrays.items():
            entries, sizes = ledger(array).recorded(array.indices()), array.sizes()
            for index in array.indices():
                if entries[index][1] != sizes.get(index, -1):
                    entries[index] = -1
            found[name] = entries
        return found

    def missing(self) -> list[tuple[str, Index]]:
        """(array, index) of the blocks that are still to be written, in order."""
        return [] if self.complete else self._missing(self.recorded())

    def _missing(self, recorded: dict[str, np.ndarray]) -> list[tuple[str, Index]]:
        return [
            (name, index)
            for name, array in self.arrays.items()
            for index in array.indices()
            if recorded[name][index][1] < 0
        ]

    def discard(self) -> None:
        """Remove the store, which was begun in vain."""
        with writing(self.folder.url, "away the store"):
            for name in self.folder.names():
                self.folder.delete(name)
            self.folder.delete(LOCK)
        release(self.folder.url, all_writers=True)
        if self.folder.is_local:
            with suppress(OSError):
                os.rmdir(self.folder.url)

    def finish(self) -> None:
        """Seal the manifests and mark the store complete; StoreError while blocks are missing."""
        if self.complete:  # whoever made it so may have died before it gave up its lock
            return
        document = existing_root(self.folder)
        if not self._open():
            return
        recorded = self.recorded()
        missing = self._missing(recorded)
        if missing and existing_root(self.folder)["attributes"]["complete"]:
            return  # another process has finished it meanwhile, and the journal is gone
        if missing:
            name, index = missing[0]
            total = sum(1 for array in self.arrays.values() for _ in array.indices())
            raise StoreError(
                f"{self.folder.url}: {len(missing)} of {total} blocks are missing, the first is "
                f"{self.arrays[name].label(index)}; write them before finish()"
            )
        with stage("seal the store", len(self.arrays)) as advance, writing(self.folder.url, "the manifest"):
            for name, array in self.arrays.items():
                ledger(array).seal(recorded[name])
                advance(1)
        if not self._open():
            return
        set_complete(self.folder, document, True)
        sweep(self.folder)
        with suppress(OSError):
            self.folder.delete(LOCK)
        release(self.folder.url, all_writers=True)
