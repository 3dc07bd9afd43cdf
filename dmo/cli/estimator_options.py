"""Command-line options for the parameters of estimators.

The options are cached in a file, because computing them imports all estimators.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import dmo
from dmo.cli.options import WORDS, Option, Surface
from dmo.errors import ENGINES, UserError

_KINDS = {kind.__name__: kind for kind in WORDS}


@cache
def surfaces() -> dict[str, Surface]:
    """Return the options of each class; they are cached in a file until a source file of this package changes."""
    place, key = Path(cache_from_source(__file__)).with_suffix(".json"), _sources()
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # The cache can be missing or damaged.
        kept = json.loads(place.read_text("utf-8"))
        if kept["key"] == key:
            return {name: _read(found) for name, found in kept["surfaces"].items()}
    from dmo.cli.signatures import surface  # Import lazily, because this module imports all estimators.

    made = {name: surface(getattr(dmo, name)) for name in (*dmo.methods.__all__, *ENGINES.values())}
    with suppress(OSError):  # Without write permission, every command computes the options again.
        place.parent.mkdir(exist_ok=True)
        beside = place.with_suffix(f".{os.getpid()}")
        kept = {"key": key, "surfaces": {name: asdict(found) for name, found in made.items()}}
        beside.write_text(json.dumps(kept, default=lambda kind: {"kind": kind.__name__}), "utf-8")
        os.replace(beside, place)
    return made


def _sources() -> str:
    """Compute a hash of the names, sizes and modification times of the source files of dmo."""
    package = Path(dmo.__file__).parent
    found = [(str(file.relative_to(package)), file.stat()) for file in sorted(package.rglob("*.py"))]
    return sha256(repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]).encode()).hexdigest()


def _read(kept: dict[str, Any]) -> Surface:
    def options(found: Mapping[str, Any]) -> dict[str, Option]:
        return {name: Option(**{**one, "members": tuple(map(_member, one["members"]))}) for name, one in found.items()}

    return Surface(options(kept["options"]), options(kept["engines"]), kept["one_view"], kept["text"])


def _member(kept: Any) -> Any:
    return _KINDS[kept["kind"]] if isinstance(kept, dict) else kept


def options_of(name: str) -> dict[str, Option]:
    """Return the options of a class in the order of its parameters, omitting parameters such as matrices."""
    return surfaces()[name].options


def engine_options(name: str) -> dict[str, Option]:
    """Return the options of all engines that an estimator supports, without the options of the estimator itself."""
    return surfaces()[name].engines


def engine(kind: str, name: str | None, given: Mapping[str, str]) -> Any:
    """Create the value of `approximation` from the name and the options of an engine.

    Without a name, the first engine that has all options is selected. Unsupported options raise UserError.
    """
    own = options_of(kind)["approximation"]
    chosen = own.default if name is None else own.parse(name)
    if not given:
        return getattr(dmo, ENGINES[chosen])() if chosen in ENGINES and chosen != "exact" else chosen
    able = [key for key in own.values if key in ENGINES and set(given) <= set(options_of(ENGINES[key]))]
    if chosen not in able:
        if name not in (None, "auto") or not able:
            has = ", ".join(o.flag for o in options_of(ENGINES[chosen]).values()) if chosen in ENGINES else "no options"
            lacks = ", ".join(f"--{key.replace('_', '-')}" for key in given)
            raise UserError(f"--approximation {chosen} does not support {lacks}; its options are {has}")
        chosen = able[0]
    known = options_of(ENGINES[chosen])
    return getattr(dmo, ENGINES[chosen])(**{key: known[key].parse(text) for key, text in given.items()})
