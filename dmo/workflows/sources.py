"""Description of data sources, such as files and folders of shards, for `dmo info`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dmo.datasets import Samples, open_table, parse_source, read_description
from dmo.datasets.cards import by_split
from dmo.datasets.files import documents
from dmo.formats.frames import FRAMES, NUMBERS, read_frame, table_numbers
from dmo.formats.schema import TableOptions
from dmo.formats.sources import Source, is_zarr
from dmo.formats.tables import ending_of


def describe_source(path: str) -> dict[str, Any]:
    """Describe the shards, arrays and columns of a data source, and whether it can be read in place."""
    source = parse_source(path)
    if source.ending == ".json":
        return _described(path)
    found: dict[str, Any] = {"source": path, "kind": source.kind, "shards": list(source.paths), "columns": []}
    arrays, of_numbers = dict[str, Any](), dict[str, Source]()
    if ending_of(path) in FRAMES:
        numbers = table_numbers(source, (), TableOptions())
        table = read_frame(path, unread=arrays, numbers=numbers)
        found |= {"n_samples": len(table), "columns": [*(str(name) for name in table.columns), *numbers]}
        if numbers:
            arrays[source.title] = arrays.pop(NUMBERS)
            of_numbers[source.title] = replace(source, columns=tuple(numbers))
    elif Path(source.paths[0]).is_dir() and not is_zarr(source.paths[0]):
        found["n_samples"] = len(documents(Path(path)))
    else:
        arrays[source.title] = open_table(source.title, {"all": path}).X
    sources = {name: replace(source, name=name if ending_of(path) in FRAMES else source.name) for name in arrays}
    sources |= of_numbers
    found["arrays"] = {
        name: {
            "shape": list(X.shape),
            "dtype": np.dtype(X.dtype).name,
            "copied": Samples({name: X}, sources=sources).copy_reason(),
        }
        for name, X in arrays.items()
    }
    return found


def _described(path: str) -> dict[str, Any]:
    """Describe the data sources of all views in a JSON description."""
    files = {view: by_split(spec) for view, spec in read_description(path)["views"].items()}
    parts = {view: [describe_source(spec) for spec in own.values()] for view, own in files.items()}
    return {
        "source": path,
        "kind": "description",
        "shards": [shard for own in parts.values() for part in own for shard in part["shards"]],
        "columns": list(dict.fromkeys(name for own in parts.values() for part in own for name in part["columns"])),
        "n_samples": next(
            (sum(part["n_samples"] for part in own) for own in parts.values() if "n_samples" in own[0]), None
        ),
        "arrays": {
            view if len(part["arrays"]) == 1 else f"{view}.{name}": about
            for view, own in parts.items()
            for part in own
            for name, about in part["arrays"].items()
        },
    }
