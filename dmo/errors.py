"""Base class of errors that users can fix, and functions for readable error messages."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from dmo.registry import REGISTRY

_HIDDEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufffe\\uffff]"
)


class UserError(ValueError):
    """Error caused by invalid arguments, files or stores.

    The message names the problem, the invalid value and a fix. The class is a subclass of ValueError, as scikit-learn
    requires for invalid arguments. Other exceptions indicate a bug or a failure of the machine.

    Examples
    --------
    >>> import dmo
    >>> issubclass(dmo.UserError, ValueError)
    True
    """


class MissingValues(UserError):
    """Error for missing values that the estimator does not impute."""


class TooFewSamples(UserError):
    """Error for too few samples or too few samples per label, which can occur in a fold but not in all the data."""


def visible(text: str) -> str:
    """Escape control characters, direction marks and invalid characters in text from third parties."""
    # Terminals execute control characters: a label could clear the screen, change the window title or hide text. XML
    # does not allow control characters. Line feeds and tabs are harmless and remain unchanged.
    return _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def amount(size: float) -> str:
    """Format a number of bytes with a unit such as MiB."""
    if size < 1024:
        return f"{size:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


ENGINES = {"exact": "Exact", "nystrom": "Nystrom", "meka": "Meka", "best": "BestLowRank", "krylov": "Krylov"}
"""Class names of engines by the values of the parameter `approximation`."""


_SYNONYMS = {
    **{word: (entry.name.lower(), entry.command) for entry in REGISTRY.values() for word in entry.synonyms},
    **dict.fromkeys(("rbf", "parse", "polynomial"), ("kernels",)),
    "linear": ("kernels", "ridge"),
    **dict.fromkeys(("gridsearch", "gridsearchcv", "search", "cv", "crossvalidate", "optimize"), ("tune",)),
    **dict.fromkeys(("load", "read", "loadmodel", "openmodel"), ("load", "ingest")),
    **dict.fromkeys(("import", "convert", "download"), ("ingest",)),
    **dict.fromkeys(("readsamples", "ingest", "ingestfiles"), ("datasets", "ingest")),
    **dict.fromkeys(("train", "learn", "build"), ("fit",)),
    **dict.fromkeys(("classify", "label", "tag", "infer", "apply"), ("annotate",)),
    **dict.fromkeys(("score", "test", "eval", "validate", "metrics"), ("evaluate",)),
    **dict.fromkeys(("describe", "images", "features"), ("extract",)),
    **dict.fromkeys(("embed", "project", "encode"), ("transform",)),
    **dict.fromkeys(("show", "inspect", "ls"), ("info",)),
    **dict.fromkeys(("check", "audit"), ("verify",)),
    **dict.fromkeys(("plot", "html", "page"), ("report",)),
}
"""Names from other software, in lower case and without separators, with the corresponding names in dmo."""


def meant(word: str, known: Iterable[str]) -> str | None:
    """Find the known name that a user probably meant by an unknown name."""
    names, plain = {name.lower(): name for name in known}, word.lower().replace("-", "").replace("_", "")
    found = [name for name in _SYNONYMS.get(plain, ()) if name in names] or get_close_matches(plain, names, 1)
    return names[found[0]] if found else None


@dataclass(frozen=True)
class SavedLocation:
    """Path or URL from a saved model, which dmo never opens because the model may come from a third party."""

    text: str

    def refused(self, parameter: str, again: str = "with set_params, and fit") -> UserError:
        """Create the error for an attempt to open the location; `again` describes how to pass the location again."""
        return UserError(
            f"{parameter} = {self.text!r} was loaded with a saved model or store, and dmo opens no path or URL that "
            f"comes from them; if you trust it, pass it again {again}"
        )
