"""Public names are documented in numpydoc form, in every room that is complete so far."""

import ast
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from numpydoc.docscrape import NumpyDocString
from numpydoc.validate import Validator, validate

ROOMS = (
    "blocks",
    "cluster",
    "datasets",
    "decoders",
    "demo",
    "engines",
    "errors",
    "estimators",
    "features",
    "formats",
    "functions",
    "graphs",
    "hashing",
    "kernels",
    "labels",
    "linalg",
    "lowrank",
    "methods",
    "metrics",
    "model_schema",
    "persistence",
    "progress",
    "report",
    "selection",
    "serve",
    "stores",
    "validation",
    "workflows",
)
"""Rooms of dmo/ whose docstrings are complete: add yours when it is."""
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


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@functools.cache
def crossing() -> set[tuple[str, str]]:
    """(module, name) of what one room imports from another."""
    found = set()
    for path in FOLDER.rglob("*.py"):
        own = room(".".join(("dmo", *path.relative_to(FOLDER).with_suffix("").parts)))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and room(node.module) not in ("", own):
                found |= {(node.module, alias.name) for alias in node.names if not alias.name.startswith("_")}
    return found


def public(name: str) -> list[str]:
    """Full names of the functions and classes that a room offers: in its `__all__`, all of a room that is one module, and
    what other rooms use."""
    package = importlib.import_module(f"dmo.{name}")
    members = getattr(package, "__all__", ()) if hasattr(package, "__path__") else vars(package)
    offered = [getattr(package, member) for member in members if not member.startswith("_")]
    for module, member in crossing():
        if room(module) == name:
            offered.append(getattr(importlib.import_module(module), member))
    own = [
        thing
        for thing in offered
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__.startswith(f"dmo.{name}")
    ]
    return sorted({f"{thing.__module__}.{thing.__qualname__}" for thing in own})


def faults(full_name: str) -> Iterator[str]:
    """What is missing in a docstring, as "CODE: sentence"; examples of methods stand with their class."""
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
        yield f"fields without a word: {', '.join(sorted(attributes))}"


def methods(full_name: str) -> list[str]:
    """Full names of the public methods and properties that a class defines."""
    thing = Validator._load_obj(full_name)
    kinds = (property, classmethod, staticmethod, functools.cached_property)
    return [
        f"{full_name}.{name}"
        for name, member in vars(thing).items()
        if inspect.isclass(thing)
        and not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, kinds))
    ]


def inherits(thing: Any, method: str) -> bool:
    """Whether one of dmo's base classes says already what a method does, which help() then shows."""
    bases = [base for base in thing.__mro__[1:] if base.__module__.startswith("dmo.")]
    return any(getattr(vars(base).get(method), "__doc__", None) for base in bases)


def documented_fields(thing: Any) -> set[str] | None:
    """Fields that the Attributes of a class which users do not make leave out; None for others."""
    if dataclasses.is_dataclass(thing):
        fields = {field.name for field in dataclasses.fields(thing) if not field.name.startswith("_")}
    elif inspect.isclass(thing) and issubclass(thing, pydantic.BaseModel):
        fields = set(thing.model_fields)
    else:
        return None
    if not (named := NumpyDocString(inspect.getdoc(thing) or "")["Attributes"]):
        return None
    return fields - {name.strip() for entry in named for name in entry.name.split(",")}


@pytest.mark.parametrize("name", ROOMS)
def test_public_names_are_documented(name: str) -> None:
    names = public(name)
    assert names, f"the room {name} offers nothing"
    found = {full_name: list(faults(full_name)) for full_name in names}
    assert {full_name: what for full_name, what in found.items() if what} == {}


def test_the_check_finds_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'def add(a, b):\n    """Add two numbers"""\n    return a + b\n\n\nclass Adder:\n    add = add\n'
    (tmp_path / "bare.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {fault[:4] for fault in faults("bare.add")} == {"SS03", "PR01", "RT01", "EX01"}
    assert {fault[:9] for fault in faults("bare.Adder")} >= {"GL08: The", "add: PR01"}
