"""Helpers for experiments with many fits: ingest data once, keep results, and write tables."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from dmo import stores
from dmo.errors import UserError
from dmo.hashing import digest


def data_folder(name: str = ".") -> str:
    """Return the default folder of a data set, below DMO_DATA."""
    return str(Path(os.environ.get("DMO_DATA", ".")) / name)


def labeled_features(path: str | os.PathLike[str], make: Callable[[], Any]) -> stores.FeatureStore:
    """Open a feature store with labels; create it first if it is missing or incomplete."""
    if not stores.existing_store(path, "features"):
        make()
    store = stores.open_features(path)
    if store.labels is None:
        raise UserError(f"{path} has no labels; ingest them with the features")
    return store


def kept(path: Path, description: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Compute a record, or load it if an earlier run with the same description saved it."""
    by = digest(description)[:16]
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
        if known.get("digest") == by:
            return known
    found = compute() | {"digest": by}
    stores.replace_file(path, json.dumps(found, indent=1).encode())
    return found


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same keys to a CSV file, atomically."""
    text = StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    stores.replace_file(path, text.getvalue().encode())
