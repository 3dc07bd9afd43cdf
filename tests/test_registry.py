"""Check that the estimator registry matches the classes and the names declared for type checkers."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dmo
from dmo.methods.base import Estimator
from dmo.registry import REGISTRY

PACKAGE = Path(dmo.__file__).parent


def estimators() -> Iterator[type]:
    for module in pkgutil.iter_modules([str(PACKAGE / "methods")]):
        found = importlib.import_module(f"dmo.methods.{module.name}")
        for kind in vars(found).values():
            own = isinstance(kind, type) and issubclass(kind, Estimator) and kind.__module__ == found.__name__
            if own and "__init__" in vars(kind):
                yield kind


def test_every_estimator_is_registered_with_its_module() -> None:
    found = {kind.__name__: kind.__module__ for kind in estimators()}
    assert found == {name: f"dmo.methods.{entry.module}" for name, entry in REGISTRY.items()}


@pytest.mark.parametrize("path", ["__init__.pyi", "methods/__init__.pyi"])
def test_stub_declares_registered_names(path: str) -> None:
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in REGISTRY
    }
    prefix = "" if path.startswith("methods") else "methods."
    assert imported == {name: prefix + entry.module for name, entry in REGISTRY.items()}
    [listed] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert set(listed) >= set(REGISTRY)


def test_commands_and_synonyms_are_unique() -> None:
    commands = [entry.command for entry in REGISTRY.values()]
    synonyms = [word for entry in REGISTRY.values() for word in entry.synonyms]
    assert len(commands) == len({*commands})
    assert len(synonyms) == len({*synonyms})


def test_grid_names_parameters_of_the_estimator() -> None:
    for name, entry in REGISTRY.items():
        parameters = getattr(dmo, name)().get_params(deep=False)
        assert {key.partition("__")[0] for key in entry.grid} <= set(parameters), name


def test_registry_imports_no_numerical_code() -> None:
    code = "import sys, dmo; dmo.methods; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
