"""Limit the imports of dmo modules inside functions, and check that a comment explains each of these imports.

Optional packages and measured start-up times are valid reasons. Import cycles are not, because `lint-imports` also
analyzes imports inside functions.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "dmo"
MOST = 15
"""Maximum number of imports of dmo inside functions. Decrease this number if possible, and do not increase it."""


def inner_imports(text: str) -> Iterator[tuple[int, bool]]:
    """Yield the line of each import of dmo inside a function, and whether a comment explains the import."""
    lines, nodes = text.splitlines(), [(node, False) for node in ast.parse(text).body]
    for node, inside in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = ["dmo" if node.level else node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if inside and any(name.partition(".")[0] == "dmo" for name in names):
            own, above = lines[node.lineno - 1 : node.end_lineno], lines[node.lineno - 2].lstrip()
            yield node.lineno, any("#" in line for line in own) or above.startswith("#")
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        nodes += [(child, inside) for child in ast.iter_child_nodes(node)]


def found() -> dict[str, bool]:
    texts = {path.relative_to(FOLDER): path.read_text(encoding="utf-8") for path in sorted(FOLDER.rglob("*.py"))}
    return {f"{path}:{line}": said for path, text in texts.items() for line, said in inner_imports(text)}


def test_imports_inside_functions_have_reasons():
    assert [place for place, said in found().items() if not said] == []


def test_imports_inside_functions_are_few():
    places = found()
    assert len(places) <= MOST, f"more than {MOST} imports of dmo inside functions: {', '.join(places)}"


def test_inner_imports_finds_every_form():
    text = """
import dmo
from dmo.errors import UserError

def first():
    import numpy
    from dmology import other
    import dmo.blocks
    # the reason
    from dmo import stores
    def second():
        from . import rows  # the reason

class Thing:
    async def third(self):
        if self:
            from dmo.cli.app import (
                app,  # the reason
            )
"""
    assert sorted(inner_imports(text)) == [(8, False), (10, True), (12, True), (17, True)]
