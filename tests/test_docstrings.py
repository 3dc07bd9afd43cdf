"""Check that documented names have numpydoc docstrings and that all other docstrings are short."""

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import Validator, validate

import dmo

PAGES = Path(__file__).resolve().parents[1] / "docs" / "_ext" / "public_names.py"
BESIDE = {
    "dmo.labels.label_kernels": ("SequenceKernel", "SetKernel"),
    "dmo.labels.proximities": ("Proximity",),
    "dmo.decide.score_rule": ("ScoreRule",),
    "dmo.methods.base": ("SweepResult",),
}
"""Classes that documented functions accept or return, but that have no separate page."""
SHARED = {"lazy_scores", "decide", "most_labels"}
"""Methods that only other subpackages call."""
INTERNAL_LINES = 4
CHECKS = {
    "GL03": "no double blank lines",
    "GL06": "known sections only",
    "GL07": "sections in their order",
    "GL08": "there is a docstring",
    "SS03": "the summary ends with a period",
    "SS04": "the summary has no leading spaces",
    "SS06": "the summary is one line",
    "PR01": "every parameter is documented",
    "PR02": "no other parameter is",
    "PR03": "in their order",
    "PR04": "with types",
    "PR07": "and what they are",
    "RT01": "what is returned",
    "RT03": "and what it is",
    "YD01": "what is yielded",
    "EX01": "there is an example",
}
FOLDER = Path(__file__).resolve().parents[1] / "dmo"


def packages() -> dict[str, tuple[str, ...]]:
    """Return the documented names of each module that exports names."""
    spec = importlib.util.spec_from_file_location("public_names", PAGES)
    assert spec is not None
    assert spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    return {name: tuple(importlib.import_module(name).__all__) for name in pages.PACKAGES} | BESIDE


def documented(package: str) -> list[str]:
    """Return the full names of the documented functions and classes of a package."""
    things = [getattr(importlib.import_module(package), name) for name in packages()[package]]
    own = [thing for thing in things if inspect.isclass(thing) or inspect.isfunction(thing)]
    return sorted({f"{thing.__module__}.{thing.__qualname__}" for thing in own if thing.__module__.startswith("dmo")})


@functools.cache
def shown() -> set[str]:
    """Return the full names of all documented objects, including public methods of classes and their base classes."""
    found: set[str] = set()
    for name in (name for package in packages() for name in documented(package)):
        thing = Validator._load_obj(name)
        found.add(name)
        for base in getattr(thing, "__mro__", ()):
            prefix = f"{base.__module__}.{base.__qualname__}"
            found |= {f"{prefix}.{part}" for part in vars(base) if not part.startswith("_") and part not in SHARED}
    return found


def faults(full_name: str) -> Iterator[str]:
    """Yield the errors of a docstring as "CODE: sentence". Examples of methods belong to the class docstring."""
    thing = Validator._load_obj(full_name)
    attributes = set() if getattr(thing, "_is_protocol", False) else documented_fields(thing)
    for code, sentence in validate(full_name)["errors"]:
        if code in CHECKS and not (code == "PR01" and attributes is not None):
            yield f"{code}: {sentence}"
    for method in methods(full_name):
        for code, sentence in validate(method)["errors"]:
            if (
                code in CHECKS
                and code != "EX01"
                and not (code == "GL08" and inherits(thing, method.rpartition(".")[2]))
            ):
                yield f"{method.rpartition('.')[2]}: {code}: {sentence}"
    if attributes:
        yield f"undocumented fields: {', '.join(sorted(attributes))}"


def methods(full_name: str) -> list[str]:
    """Return the full names of the public methods and properties that a class defines."""
    thing = Validator._load_obj(full_name)
    kinds = (property, classmethod, staticmethod, functools.cached_property)
    return [
        f"{full_name}.{name}"
        for name, member in vars(thing).items()
        if inspect.isclass(thing)
        and not name.startswith("_")
        and name not in SHARED
        and (inspect.isfunction(member) or isinstance(member, kinds))
    ]


def inherits(thing: Any, method: str) -> bool:
    """Return whether a base class in dmo documents the method, because help() then shows the inherited docstring."""
    bases = [base for base in thing.__mro__[1:] if base.__module__.startswith("dmo.")]
    return any(getattr(vars(base).get(method), "__doc__", None) for base in bases)


def documented_fields(thing: Any) -> set[str] | None:
    """Return the fields that the Attributes section of a class omits, or None if the section is not required."""
    if dataclasses.is_dataclass(thing):
        fields = {field.name for field in dataclasses.fields(thing) if not field.name.startswith("_")}
    elif inspect.isclass(thing) and issubclass(thing, pydantic.BaseModel):
        fields = set(thing.model_fields)
    else:
        return None
    if not (named := NumpyDocString(inspect.getdoc(thing) or "")["Attributes"]):
        return None
    return fields - {name.strip() for entry in named for name in entry.name.split(",")}


@pytest.mark.parametrize("package", packages())
def test_documented_names_have_complete_docstrings(package: str) -> None:
    names = documented(package)
    assert names, f"{package} documents no names"
    found = {name: list(faults(name)) for name in names}
    assert {name: what for name, what in found.items() if what} == {}


def test_docstrings_of_other_names_are_short() -> None:
    long = []
    for path in FOLDER.rglob("*.py"):
        module = ".".join(("dmo", *path.relative_to(FOLDER).with_suffix("").parts)).removesuffix(".__init__")
        long += [name for name, lines in docstrings(module, path) if lines > INTERNAL_LINES and name not in shown()]
    assert long == []


def test_shared_paragraphs_are_put_in_wherever_they_are_asked_for() -> None:
    assert [name for name in shown() if "%(" in (inspect.getdoc(Validator._load_obj(name)) or "")] == []
    text = inspect.getdoc(dmo.JEC) or ""
    assert "prepare : Prepare, str" in text
    assert "imputation and scaling" in text.partition("prepare : ")[2]


def docstrings(module: str, path: Path) -> Iterator[tuple[str, int]]:
    """Yield the full name of each function and class in a file, with the number of lines of its docstring."""
    open_nodes: list[tuple[str, ast.AST]] = [(module, ast.parse(path.read_text(encoding="utf-8")))]
    for prefix, node in open_nodes:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.ClassDef, ast.FunctionDef))
            name = f"{prefix}.{child.name}" if named else prefix  # type: ignore[union-attr]
            open_nodes.append((name, child))
            if named and ast.get_docstring(child) is not None:  # type: ignore[arg-type]
                text = child.body[0]  # type: ignore[union-attr]
                yield name, (text.end_lineno or 0) - text.lineno + 1


def test_the_check_finds_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'def add(a, b):\n    """Add two numbers"""\n    return a + b\n\n\nclass Adder:\n    add = add\n'
    (tmp_path / "bare.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {fault[:4] for fault in faults("bare.add")} == {"SS03", "PR01", "RT01", "EX01"}
    assert {fault[:9] for fault in faults("bare.Adder")} >= {"GL08: The", "add: PR01"}
