"""The error that means: what was given is wrong, and the message says how to put it right; text that can be shown."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

_HIDDEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufffe\\uffff]"
)


class UserError(ValueError):
    """A user's mistake, in arguments, files or stores; its message says what, got, needed and cure in one sentence.

    It is a ValueError, as scikit-learn's contract asks. Every other exception is a fault of the program or of the
    machine; `dmo.workflows.program` tells them apart.

    Examples
    --------
    >>> import dmo
    >>> issubclass(dmo.UserError, ValueError)
    True
    """


class TooFewSamples(UserError):
    """What is asked for needs more samples, or labels of more of them: a part of all may lack what all of them have."""


def visible(text: str) -> str:
    """Text of files that others wrote, with control characters, changes of direction and what is no character as
    escapes.
    """
    # A terminal obeys them: a label could clear it, set its title or hide what stands beside it. XML cannot hold
    # them. Line feeds and tabs stay.
    return _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def amount(size: float) -> str:
    """Bytes in words."""
    if size < 1024:
        return f"{size:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


ENGINES = {"exact": "Exact", "nystrom": "Nystrom", "meka": "Meka", "best": "BestLowRank", "krylov": "Krylov"}
"""What a name stands for as `approximation`: the class, with its defaults. Options that name no engine mean the first that has
them all; "exact" stays what it is."""

_SYNONYMS = {
    **dict.fromkeys(("krr", "kernelridge", "ridge", "ridgeregression", "regression"), ("multiviewridge", "ridge")),
    **dict.fromkeys(
        ("ridgeclassifier", "logistic", "logisticregression", "multiviewridge"), ("multiviewridge", "ridge")
    ),
    **dict.fromkeys(("cca", "kcca", "gcca", "mcca", "kgcca"), ("multisetcca",)),
    **dict.fromkeys(("svr", "svm", "svc"), ("coupledsvr",)),
    **dict.fromkeys(("knn", "neighbors", "kneighbors", "kneighborsclassifier", "mlknn"), ("tagprop",)),
    **dict.fromkeys(("pca", "lda", "projection", "embedding", "traceembedding"), ("traceembedding", "embedding")),
    **dict.fromkeys(("lsi", "lsa", "truncatedsvd"), ("mlsi",)),
    **dict.fromkeys(("mca", "correspondenceanalysis"), ("homogeneityanalysis",)),
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
"""What people call names and commands elsewhere, in small letters and without marks -> what is meant: the first known one."""


def meant(word: str, known: Iterable[str]) -> str | None:
    """Find which of the known names may be meant by another."""
    names, plain = {name.lower(): name for name in known}, word.lower().replace("-", "").replace("_", "")
    found = [name for name in _SYNONYMS.get(plain, ()) if name in names] or get_close_matches(plain, names, 1)
    return names[found[0]] if found else None


@dataclass(frozen=True)
class SavedLocation:
    """Path or URL in a parameter of a saved model; dmo never opens it, because the model may come from a third party."""

    text: str

    def refused(self, parameter: str, again: str = "with set_params, and fit") -> UserError:
        """Return the error of work that would have to open this location; `again` says how to pass it again."""
        return UserError(
            f"{parameter} = {self.text!r} was loaded with a saved model or store, and dmo opens no path or URL that "
            f"these name; if you trust it, pass it again {again}"
        )
