"""Size of the code paths of dmo: files and functions that run in three scenarios, counted by Python's profiler.

    python pipelines/benchmarks/walk.py [--list]

In memory: `KGHA().fit` with two views. From the shell: `dmo fit kgha STORE MODEL`, from the arguments to the kernel
tiles and back. Images: `dmo annotate MODEL FOLDER OUT.csv`. Every scenario runs once before it is counted, to exclude
functions that only run at import. `--list` prints the files.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import dmo
import dmo.cli
from dmo.workflows.program import option_parser

ROOT = Path(dmo.__file__).resolve().parent


def main() -> int:
    parser = option_parser(__doc__)
    parser.add_argument("--list", action="store_true", help="list the files with their functions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        walks = {name: walked(story) for name, story in stories(Path(folder)).items()}
    table = Table("story", "files", "functions", title=f"code that runs in {ROOT.name}")
    for name, found in walks.items():
        table.add_row(name, str(len({file for file, *_ in found})), str(len(found)))
    Console().print(table)
    for name, found in walks.items() if options.list else ():
        print(f"\n{name}")
        for file in sorted({file for file, *_ in found}):
            print(f"  {file}: {', '.join(sorted(function for where, function, _ in found if where == file))}")
    return 0


def walked(story: Callable[[], None]) -> set[tuple[str, str, int]]:
    """Return (file, function, line) of every function of dmo that runs in a scenario, in all threads."""
    story()
    found: set[Any] = set()

    def record(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            found.add(frame.f_code)

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        story()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    own = [code for code in found if code.co_filename.startswith(str(ROOT)) and not code.co_name.startswith("<")]
    return {(str(Path(c.co_filename).relative_to(ROOT)), c.co_qualname, c.co_firstlineno) for c in own}


def stories(folder: Path) -> dict[str, Callable[[], None]]:
    """Return the scenarios by name; their stores and images are created in `folder` first."""
    X, classes = load_digits(return_X_y=True)
    views, Y = {"left": X[:400, :32], "right": X[:400, 32:]}, np.eye(10, dtype=np.uint8)[classes[:400]]
    store, images = folder / "digits.zarr", folder / "images"
    shell("ingest", "digits", store)
    rng = np.random.default_rng(0)
    for i in range(24):
        path = images / ("bright" if i % 2 else "dark") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 120, (32, 32, 3), dtype=np.uint8) + np.uint8(i % 2 * 120)).save(path)
    shell("extract", images, folder / "images.zarr", "--set", "rgb_v3h1,moments", "--labels", "folders")
    shell("fit", "kgha", folder / "images.zarr", folder / "of-images.zarr")

    def in_memory() -> None:
        dmo.KGHA().fit(views, Y)

    def from_shell() -> None:
        shell("fit", "kgha", store, folder / "model.zarr", "--overwrite")

    def annotate() -> None:
        shell("annotate", folder / "of-images.zarr", images, folder / "labels.csv", "--overwrite")

    return {"KGHA().fit in memory": in_memory, "dmo fit kgha STORE": from_shell, "dmo annotate FOLDER": annotate}


def shell(*arguments: Any) -> None:
    """Run `dmo ARGUMENTS` without output; raise RuntimeError if it fails."""
    before, sys.argv = sys.argv, ["dmo", *map(str, arguments)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            dmo.cli.main()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(said.getvalue()) from end
    finally:
        sys.argv = before


if __name__ == "__main__":
    sys.exit(main())
