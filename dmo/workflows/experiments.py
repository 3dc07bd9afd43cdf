"""What experiments of many fits share: data ingested once, results that are kept, tables."""

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
    """Find where a data set is taken from if nothing else is said.

    Parameters
    ----------
    name : str, default="."
        Of its folder.

    Returns
    -------
    str
        The folder below DMO_DATA, or without that variable below the current one.

    Examples
    --------
    >>> from dmo.workflows.experiments import data_folder
    >>> data_folder("corel5k").endswith("corel5k")
    True
    """
    return str(Path(os.environ.get("DMO_DATA", ".")) / name)


def labeled_features(path: str | os.PathLike[str], make: Callable[[], Any]) -> stores.FeatureStore:
    """Open a feature store with labels, made first where it is missing or unfinished.

    Parameters
    ----------
    path : path-like
        Of the store.
    make : callable
        Takes nothing, writes it.

    Returns
    -------
    FeatureStore
        With labels.

    Raises
    ------
    UserError
        Where it has no labels.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.datasets.writing import Source, write
    >>> from dmo.workflows.experiments import labeled_features
    >>> labeled_features("set.zarr", lambda: write(Source({"x": np.eye(3)}, np.eye(3)), "set.zarr")).n_samples
    3
    """
    if not stores.existing_store(path, "features"):
        make()
    store = stores.open_features(path)
    if store.labels is None:
        raise UserError(f"{path} has no labels; ingest them with the features")
    return store


def kept(path: Path, description: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Compute a record, or take it from the file that an earlier run of the same description left.

    Parameters
    ----------
    path : Path
        JSON file of the record.
    description : mapping
        All that the record depends on, JSON.
    compute : callable
        Takes nothing, returns the record, JSON.

    Returns
    -------
    dict
        The record, with the "digest" of its description.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.workflows.experiments import kept
    >>> kept(Path("trial.json"), {"seed": 0}, lambda: {"f1": 0.5})["f1"]
    0.5
    >>> kept(Path("trial.json"), {"seed": 0}, lambda: 1 / 0)["f1"]
    0.5
    """
    by = digest(description)[:16]
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
        if known.get("digest") == by:
            return known
    found = compute() | {"digest": by}
    stores.replace_file(path, json.dumps(found, indent=1).encode())
    return found


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of the same keys as a CSV file, whole or not at all.

    Parameters
    ----------
    path : Path
        Of the file.
    rows : sequence of mapping
        At least one.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.workflows.experiments import write_table
    >>> write_table(Path("table.csv"), [{"method": "KGHA", "f1": 0.29}])
    >>> print(Path("table.csv").read_text(), end="")
    method,f1
    KGHA,0.29
    """
    text = StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    stores.replace_file(path, text.getvalue().encode())
