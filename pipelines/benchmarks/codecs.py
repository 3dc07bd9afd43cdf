"""Codecs and shards of Zarr for feature views: size, and CPU seconds per GB of values to write and to read.

    python pipelines/benchmarks/codecs.py [--block 1024] [--json FILE]

The views are histograms and embeddings of Corel5k (under DMO_DATA), in the types that users store, in chunks of whole
rows. They are written and read by zarr and by dmo, which checks every chunk. Files are in the page cache, so the times
are those of the codecs; over a link of B bytes per second, reading takes an additional size / B. A shard contains 16
chunks. The table is in codecs.md.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from rich.console import Console
from rich.table import Table
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from dmo import stores
from dmo.workflows.program import option_parser

DATA = Path(os.environ.get("DMO_DATA", "."))

LEAST, SHARD, ROWS = 0.1, 16, 4096  # minimum CPU seconds of a measurement; chunks per shard; rows
CODECS: dict[str, list[Any]] = {
    "none": [],
    "crc32c": [Crc32cCodec()],
    "lz4, shuffle": [BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")],
    "lz4, bitshuffle": [BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle")],
    "zstd 1, shuffle": [BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")],
    "zstd 1, bitshuffle": [BloscCodec(cname="zstd", clevel=1, shuffle="bitshuffle")],
    "zstd 5, bitshuffle": [BloscCodec(cname="zstd", clevel=5, shuffle="bitshuffle")],
    "zstd 3": [ZstdCodec(level=3)],
}


def views() -> dict[str, np.ndarray]:
    """Return views by name and type."""
    folder, found = DATA / "corel5k" / "features", {}
    for name, file, types in (
        ("HSV histogram, 16 % not zero", "HsvV3H1", ("uint16", "float32")),
        ("visual words, 25 % not zero", "DenseSiftV3H1", ("uint16", "float32")),
        ("gist", "Gist", ("float32", "float16", "uint8")),
    ):
        with np.load(folder / f"corel5k_{file}.npz") as archive:
            X = archive["X"]
        for kind in types:
            scaled = np.rint(X / X.max() * 255) if kind == "uint8" else X
            found[f"{name}, {kind}"] = np.ascontiguousarray(scaled[:ROWS], kind)
    return found


def seconds_per_gb(work: Callable[[], Any], nbytes: int) -> float:
    used, times = time.process_time(), 0
    while time.process_time() - used < LEAST:
        work()
        times += 1
    return (time.process_time() - used) / times / nbytes * 1e9


def by_zarr(folder: Path, X: np.ndarray, block: int, codecs: list[Any], shard: int | None) -> dict[str, float]:
    def write() -> None:
        zarr.create_array(
            folder,
            shape=X.shape,
            chunks=(block, X.shape[1]),
            shards=None if shard is None else (shard * block, X.shape[1]),
            dtype=X.dtype,
            compressors=codecs or None,
            overwrite=True,
        )[:] = X

    return measured(folder, X, write, lambda: zarr.open_array(folder, mode="r")[:])


def by_dmo(folder: Path, X: np.ndarray, block: int, codec: Literal["lz4", "zstd"] | None) -> dict[str, float]:
    def write() -> None:
        spec = {"x": stores.ViewSpec(X.shape[1], X.dtype, codec=codec)}
        writer = stores.create_features(folder, len(X), spec, block=block, overwrite=True)
        for view, i in writer.missing():
            writer.write(view, i, X[writer.rows(i)])
        writer.finish()

    return measured(folder, X, write, lambda: stores.open_features(folder).views["x"][:])


def measured(folder: Path, X: np.ndarray, write: Callable[[], Any], read: Callable[[], np.ndarray]) -> dict[str, float]:
    write()
    assert np.array_equal(read(), X)
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / X.nbytes
    return {
        "size": size,
        "files": len(files),
        "write": seconds_per_gb(write, X.nbytes),
        "read": seconds_per_gb(read, X.nbytes),
    }


def main() -> None:
    parser = option_parser(__doc__, json=None)
    parser.add_argument("--block", type=int, default=1024, help="rows per chunk")
    asked = parser.parse_args()
    console, figures = Console(width=110), {}
    zarr.config.set({"threading.max_workers": 1, "async.concurrency": 1})
    for name, X in views().items():
        table = Table("codec", "size, %", "files", "write, CPU s/GB", "read, CPU s/GB")
        table.title = f"{name}, {X.nbytes / 1e6:.0f} MB"
        figures[name] = {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.zarr"
            for codec, chain in CODECS.items():
                figures[name][codec] = by_zarr(path, X, asked.block, chain, None)
            for codec in ("none", "lz4, bitshuffle"):
                # Shards have smaller chunks with the same number of rows per file.
                figures[name][f"{codec}, sharded"] = by_zarr(path, X, asked.block // SHARD, CODECS[codec], SHARD)
            for own in (None, "lz4", "zstd"):
                label = "dmo" if own is None else f"dmo, {own}"
                figures[name][label] = by_dmo(Path(folder) / "dmo.zarr", X, asked.block, own)
        for codec, found in figures[name].items():
            cells = [f"{100 * found['size']:.1f}", f"{found['files']:.0f}"]
            table.add_row(codec, *cells, f"{found['write']:.2f}", f"{found['read']:.2f}")
        console.print(table)
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
