"""Stores, models and settings of dmo, for `fuzz.py`."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
import scipy.io
import scipy.sparse
from _fuzzed import (
    JSON,
    LABELS,
    NUMBERS,
    ROOT,
    Files,
    Foreign,
    Reader,
    Seed,
    X,
    ours,
    read_rows,
    single,
    tree,
)

from dmo import stores
from dmo.cluster.settings import Backend, default_backend, setting, tls
from dmo.cluster.targets import local_sizes, scheduler_address
from dmo.features import Recipe
from dmo.features.extraction import PART, Extractor
from dmo.features.sets import Vocabulary
from dmo.methods import KGHA, MultiViewRidge
from dmo.persistence import load
from dmo.stores._arrays import checksum
from dmo.stores._schema import _checksum

# ---------------------------------------------------------------- stores


def _signed(files: Files) -> Files:
    """Recompute the checksums of root files and numeric chunks, as an attacker would."""
    changed = dict(files)
    for name, data in files.items():
        if name.endswith("zarr.json"):
            try:
                document = json.loads(data)
                document["attributes"].pop("checksum", None)
                document["attributes"]["checksum"] = _checksum(document)
                changed[name] = json.dumps(document).encode()
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
        elif len(data) > 4:
            changed[name] = data[:-4] + checksum(np.frombuffer(data[:-4], np.uint8)).to_bytes(4, "little")
    return changed


def _store(make: Callable[[Path], None]) -> Callable[[], list[Seed]]:
    def seeds() -> list[Seed]:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder, "s.zarr"))
            return [Seed(tree(Path(folder)), "s.zarr", _signed)]

    return seeds


def _make_features(path: Path) -> None:
    specs = {"dense": stores.ViewSpec(4, "float32"), "sparse": stores.ViewSpec(3, "float32", kind="sparse")}
    writer = stores.create_features(
        path,
        9,
        specs,
        labels=LABELS,
        label_names=list("abc"),
        sample_ids=[f"s{i}" for i in range(9)],
        split=["train"] * 6 + ["test"] * 3,
        block=4,
    )
    for name, block in writer.missing():
        where = slice(4 * block, min(4 * block + 4, 9))
        writer.write(name, block, X[where] if name == "dense" else scipy.sparse.csr_array(LABELS[where] * 1.0))
    writer.finish()


def _make_kernel(path: Path) -> None:
    K = X @ X.T
    writer = stores.create_kernel(path, 9, 4, np.dtype("float64"), {})
    for i, j in writer.missing():
        writer.write(i, j, K[writer.rows(i), writer.rows(j)])
    writer.finish()


def _make_rows(path: Path) -> None:
    writer = stores.create_results(path, 9, list("abcd"), block=4, sample_ids=[str(i) for i in range(9)])
    for block in writer.missing():
        writer.write(block, X[writer.rows(block)])
    writer.finish()


def _make_model(path: Path) -> None:
    arrays = {"a": X, "b/c": scipy.sparse.csr_array(LABELS * 1.0), "names": np.array(["x", "yz"])}
    stores.save_model(path, arrays, {"estimator": "none", "nested": {"k": [1, 2.5, None]}})


def _estimators() -> list[Seed]:
    found = []
    for model in (KGHA("rbf", ridge=1.0, n_components=2), KGHA("rbf", approximation="exact"), MultiViewRidge("linear")):
        with tempfile.TemporaryDirectory() as folder:
            model.fit(X, LABELS).save(str(Path(folder, "s.zarr")))
            found.append(Seed(tree(Path(folder)), "s.zarr", _signed))
    return found


def _recipes() -> list[Seed]:
    """Create an image model with its recipe and vocabularies attached."""
    recipe = Recipe.of("gist,dense_sift_v3h1", words={"dense_sift": 2})
    centers = np.arange(256, dtype=np.float32).reshape(2, 128)
    extractor = Extractor(recipe, {"dense_sift": Vocabulary(centers)})
    provenance = stores.Provenance(
        [], {"features": {"parameters": {"dataset": PART, "fingerprint": extractor.fingerprint}}}
    )
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "s.zarr"))
        MultiViewRidge("linear").fit(X, LABELS).save(path, provenance, attached={PART: extractor.parts()})
        return [Seed(tree(Path(folder)), "s.zarr", _signed)]


def _use(path: Path) -> None:
    """Load a model and apply it, as its recipients would."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(str(path)).decision_function(X)


def _read_features(path: Path) -> None:
    found = stores.open_features(path)
    for view in found.views.values():
        read_rows(view)
    _ = found.labels, found.label_names, found.sample_ids, found.split


def _read_kernel(path: Path) -> None:
    found = stores.open_kernel(path)
    for i in range(min(found.n_blocks, 3)):
        for j in range(i + 1):
            found.tile(i, j)


def _read_row_store(path: Path) -> None:
    read_rows(stores.open_results(path))


def _audit(read: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Verify, describe and then read the store; none of the three may crash, whatever the others report."""

    def audited(path: Path) -> None:
        refused: Exception | None = None
        for way in (read, stores.describe, stores.verify):
            try:
                way(path)
            except (ValueError, FileNotFoundError) as error:
                if not ours(error):
                    raise
                refused = refused or error
        if refused is not None:
            raise refused

    return audited


# ---------------------------------------------------------------- settings


def _settings() -> list[Seed]:
    from importlib.resources import files

    text = files("dmo.cluster").joinpath("dmo.yaml").read_bytes()
    some = b"dmo:\n  scheduler: local\n  local: {workers: 3, threads: 2, memory-limit: 4GiB}\n  ssh: {hosts: [a, b]}\n"
    return [single("dmo.yaml", text), single("dmo.yaml", some)]


def _read_settings(path: Path) -> None:
    try:
        config = dask.config.merge(dask.config.config, *dask.config.collect_yaml([str(path)]))
    except Exception as error:  # Dask itself reads the settings when it is imported.
        raise Foreign("Dask rejects the settings") from error
    with dask.config.set({"dmo": config.get("dmo")}):
        for where in (default_backend(), "local", "slurm"):
            Backend(where).patience()
        local_sizes(Backend("local"))
        for name in ("performance-report", "batch.prologue", "kubernetes.cpu", "ssh.hosts", "gateway.address"):
            setting(name)
        tls()


def _scheduler_files() -> list[Seed]:
    document = {"type": "Scheduler", "id": "Scheduler-1", "address": "tcp://127.0.0.1:8786", "workers": {}}
    return [single("s.json", json.dumps(document, indent=2).encode())]


_YAML = (
    b"null",
    b"[]",
    b"{}",
    b"- ",
    b": ",
    b"&a ",
    b"*a",
    b"!!python/object/apply:os.system ['x']",
    b"\t",
    b"!!binary ",
    b"workers: ",
)

STORES: dict[str, Reader] = {
    "feature stores": Reader(_store(_make_features), _audit(_read_features), ROOT + NUMBERS),
    "kernel stores": Reader(_store(_make_kernel), _audit(_read_kernel), ROOT + NUMBERS),
    "result stores": Reader(_store(_make_rows), _audit(_read_row_store), ROOT + NUMBERS),
    "model stores": Reader(_store(_make_model), _audit(stores.load_model), ROOT + NUMBERS),
    "fitted estimators": Reader(_estimators, _use, ROOT + NUMBERS),
    "recipes of images": Reader(_recipes, lambda path: Extractor.load(str(path)), ROOT + NUMBERS),
    "settings (YAML)": Reader(_settings, _read_settings, _YAML + NUMBERS, longest=1 << 14),
    "scheduler files": Reader(_scheduler_files, lambda path: scheduler_address(str(path)), JSON + NUMBERS),
}
