"""Write one reference page per public package from its `__all__`, and link public names."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

FOLDER = "reference/python"
PACKAGES = {
    "dmo": "Estimators, engines and approximations",
    "dmo.selection": "Selecting hyperparameters",
    "dmo.model_selection": "Splitting samples with many labels",
    "dmo.decoders": "Decoders",
    "dmo.space": "Interpreting the space of a model",
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
    app.connect("autodoc-process-docstring", escape_marks, priority=600)  # after numpydoc
    app.connect("missing-reference", link_name)
    return {"parallel_read_safe": True}


def public_names() -> dict[str, str]:
    """Return the package of each public name."""
    packages = reversed(PACKAGES)  # names of `dmo` win
    return {name: package for package in packages for name in importlib.import_module(package).__all__}


def escape_marks(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Escape |x - y| (a norm, not a substitution) and n_components_ (a name, not a link), except in formulas."""
    mark = re.compile(r"\||(?<=\w)_(?!\w)")
    formula = False
    for number, line in enumerate(lines):
        if formula and line and not line.startswith(" "):
            formula = False
        formula = formula or line.startswith(".. math::")
        if not formula and "`" not in line and ">>>" not in line:
            lines[number] = mark.sub(r"\\\g<0>", line)


def link_name(app: Any, env: Any, node: Any, text: Any) -> Any:
    """Resolve a public name that is given without its package."""
    name, _, rest = node["reftarget"].partition(".")
    package = public_names().get(name)
    if node.get("refdomain") != "py" or package is None or node["reftarget"].startswith("dmo"):
        return None
    target = ".".join(part for part in (package, name, rest) if part)
    return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, text)


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
    """Write a file if its content changes; Sphinx reads only changed files again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
