"""The reference of the Python names: one page for each public package, from its `__all__`, in the order of the table."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

FOLDER = "reference/python"
PACKAGES = {
    "dmo": "Estimators, engines and approximations",
    "dmo.selection": "Searching parameters",
    "dmo.model_selection": "Splitting samples with many labels",
    "dmo.decoders": "Decoders",
    "dmo.space": "What a space says of views and labels",
    "dmo.kernels": "Kernels",
    "dmo.lowrank": "Low-rank approximations",
    "dmo.graphs": "Neighbor graphs",
    "dmo.metrics": "Metrics",
    "dmo.datasets": "Reading data",
    "dmo.features": "Describing images",
    "dmo.stores": "Stores",
    "dmo.cluster": "Clusters",
    "dmo.report": "The report page",
}


def setup(app: Any) -> dict[str, bool]:
    write_pages(app)  # before Sphinx looks for files
    app.connect("autodoc-process-docstring", keep_marks, priority=600)  # after numpydoc
    return {"parallel_read_safe": True}


def keep_marks(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """|x - y| is a norm, not a substitution of reStructuredText, and n_components_ no link."""
    plain = re.compile(r"\||(?<=\w)_(?!\w)")
    lines[:] = [line if "`" in line or ">>>" in line else plain.sub(r"\\\g<0>", line) for line in lines]


def write_pages(app: Any) -> None:
    folder = Path(app.srcdir, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    for package, title in PACKAGES.items():
        _write(folder / f"{package}.rst", _page(package, title))
    listed = "\n".join(f"   {package}" for package in PACKAGES)
    _write(folder / "index.rst", f"Python\n======\n\n.. toctree::\n   :maxdepth: 1\n\n{listed}\n")


def _page(package: str, title: str) -> str:
    module = importlib.import_module(package)
    names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    heading = f"{package}: {title[0].lower()}{title[1:]}"
    words = inspect.getdoc(module) or ""
    groups = {
        "Classes": [name for name in names if inspect.isclass(getattr(module, name))],
        "Functions": [name for name in names if inspect.isroutine(getattr(module, name))],
    }
    parts = [heading, "=" * len(heading), "", words, "", f".. currentmodule:: {package}", ""]
    for group, members in groups.items():
        if members:
            parts += [
                group,
                "-" * len(group),
                "",
                ".. autosummary::",
                "   :toctree: generated",
                "   :nosignatures:",
                "",
            ]
            parts += [f"   {name}" for name in sorted(members, key=str.lower)] + [""]
    return "\n".join(parts)


def _write(path: Path, text: str) -> None:
    """Only where it differs, so that Sphinx reads again what has changed."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
