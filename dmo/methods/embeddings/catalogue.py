"""One table of every embedding: name, family, source, form, parameters, and what it is tested against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dmo.methods.embeddings import graph_methods as graph
from dmo.methods.embeddings.discriminant import DISCRIMINANTS
from dmo.methods.embeddings.global_methods import METHODS
from dmo.methods.embeddings.semisupervised import SEMISUPERVISED, mixed

Form = Literal["global", "direct", "unsupervised", "supervised", "semi-supervised", "mix"]


@dataclass(frozen=True)
class CatalogEntry:
    """One method. `form`: what it is solved as; `parameters` of the estimator that it uses; `oracle` of its test."""

    title: str
    form: Form
    source: str
    formula: str
    parameters: tuple[str, ...]
    oracle: str
    multilabel: bool = False

    @property
    def supervised(self) -> bool:
        """Whether it needs labels."""
        return self.form in ("supervised", "semi-supervised", "mix")

    @property
    def family(self) -> str:
        """Group of the table."""
        return {"direct": "unsupervised", "mix": "semi-supervised"}.get(self.form, self.form)

    @property
    def engines(self) -> list[str]:
        """What it can be computed with."""
        return ["direct"] if self.form == "direct" else ["projected", "kernel", "relation features", "low rank"]

    @property
    def out_of_sample(self) -> bool:
        """Whether new rows have coordinates."""
        return self.form != "direct"


_BRUTE = "explicit n x n matrices"
_DUPLICATES = "explicit double loops and duplication"
_GRAPH = ("n_neighbors", "adjacency", "metric")
_WEIGHTS = (*_GRAPH, "weight", "bandwidth")
_LOCAL = ("n_neighbors", "metric", "regularization")
_ROWS = ("n_landmarks", "variance")


def _direct(title: str, source: str, function: Any, parameters: tuple[str, ...], oracle: str) -> CatalogEntry:
    return CatalogEntry(title, "direct", source, _formula(function), parameters, oracle)


def _unsupervised(
    title: str, source: str, name: str, parameters: tuple[str, ...], oracle: str = _BRUTE
) -> CatalogEntry:
    formula = _formula(getattr(graph, name))
    return CatalogEntry(title, "unsupervised", source, formula, parameters + _ROWS, oracle)


def _supervised(
    title: str, source: str, name: str, parameters: tuple[str, ...], oracle: str = _DUPLICATES
) -> CatalogEntry:
    formula = _formula(DISCRIMINANTS[name])
    return CatalogEntry(title, "supervised", source, formula, parameters + _ROWS, oracle, True)


def _semi(title: str, source: str, function: Any, parameters: tuple[str, ...], oracle: str = _BRUTE) -> CatalogEntry:
    form: Form = "mix" if function is mixed else "semi-supervised"
    return CatalogEntry(title, form, source, _formula(function), parameters + _ROWS, oracle, True)


def _formula(function: Any) -> str:
    return (function.__doc__ or "").partition("\n")[0].rstrip(".")


_K, _RIDGE, _PENALTY, _REPELLED, _REG = "n_neighbors", "ridge", "penalty", "n_repelled", "regularization"
NEIGHBORHOOD: dict[str, CatalogEntry] = {
    "usc": _direct("unnormalized spectral clustering", "von Luxburg 2007", graph.usc, _WEIGHTS, "SciPy eigh"),
    "le": _direct(
        "Laplacian eigenmaps, random walk", "Belkin, Niyogi 2003", graph.eigenmaps, _WEIGHTS, "SpectralEmbedding"
    ),
    "nsc": _direct("normalized spectral clustering", "Ng, Jordan, Weiss 2001", graph.nsc, _WEIGHTS, "SciPy eigh"),
    "mds": _direct("classical multidimensional scaling", "Torgerson 1952", graph.mds, (), "scikit-learn PCA"),
    "isomap": _direct("isometric mapping", "Tenenbaum et al. 2000", graph.isomap, _GRAPH, "Isomap"),
    "lle": _direct("locally linear embedding", "Roweis, Saul 2000", graph.lle, _LOCAL, "LocallyLinearEmbedding"),
    "lpp": _unsupervised("locality preserving projections", "He, Niyogi 2003", "lpp", (*_WEIGHTS, _RIDGE)),
    "olpp": _unsupervised("orthogonal locality preserving projections", "Kokiopoulou, Saad 2007", "olpp", _WEIGHTS),
    "npp": _unsupervised("neighborhood preserving projections", "He et al. 2005", "npp", (*_LOCAL, _RIDGE)),
    "onpp": _unsupervised("orthogonal neighborhood preserving", "Kokiopoulou, Saad 2007", "onpp", _LOCAL),
    "fda": _supervised(
        "Fisher discriminant analysis", "Fisher 1936", "fda", (_RIDGE,), "LinearDiscriminantAnalysis(solver='eigen')"
    ),
    "lfda": _supervised("local Fisher discriminant analysis", "Sugiyama 2007", "lfda", (_K, _RIDGE)),
    "mfa": _supervised("marginal Fisher analysis", "Yan et al. 2007", "mfa", (_K, _REPELLED, _RIDGE)),
    "mmc": _supervised("maximum margin criterion", "Li et al. 2006", "mmc", (_PENALTY,)),
    "dla": _supervised("discriminative locality alignment", "Zhang et al. 2009", "dla", (_K, _REPELLED, _PENALTY)),
    "dne": _supervised("discriminant neighborhood embedding", "Zhang et al. 2006", "dne", _GRAPH),
    "olpp-r": _supervised(
        "OLPP, supervised, with repulsion",
        "Kokiopoulou, Saad 2009",
        "olpp-r",
        (_REPELLED, "adjacency", "metric", _PENALTY),
    ),
    "sonpp": _supervised("supervised ONPP", "Kokiopoulou, Saad 2007", "sonpp", (_K, _REG)),
    "donpp": _supervised("discriminative ONPP", "Zhang et al. 2010", "donpp", (_K, _REPELLED, _REG, _PENALTY)),
    "onpp-r": _supervised(
        "supervised ONPP with repulsion",
        "Kokiopoulou, Saad 2009",
        "onpp-r",
        (_K, _REPELLED, "adjacency", "metric", _REG, _PENALTY),
    ),
    "self": _semi("semi-supervised local Fisher", "Sugiyama et al. 2010", SEMISUPERVISED["self"], (_K, "balance")),
    "ssfda": _semi(
        "semi-supervised discriminant analysis",
        "Cai et al. 2007",
        SEMISUPERVISED["ssfda"],
        (*_WEIGHTS, "smoothness", _RIDGE),
    ),
    "ssmmc": _semi(
        "semi-supervised maximum margin",
        "Song et al. 2008",
        SEMISUPERVISED["ssmmc"],
        (*_WEIGHTS, _PENALTY, "smoothness"),
    ),
    "mix": _semi(
        "any supervised with any unsupervised",
        "Mu et al. 2012, eqs. 44, 45",
        mixed,
        ("supervised", "unsupervised", "balance", *_WEIGHTS, _REPELLED, _REG, _PENALTY, _RIDGE),
    ),
}
_GLOBAL_ORACLES = {
    "pca": "scikit-learn PCA",
    "lsi": "TruncatedSVD",
    "pls": "PLSSVD",
    "opls": "formula, Ridge",
    "cca": "CCA, cca-zoo RidgeCCA",
    "slvm": "KernelPCA and Ridge",
    "kde": "PCA and Ridge",
    "morp": "skmatter PCovR",
    "mlsi": "skmatter PCovR",
    "hsic-0": "definition",
    "hsic-1": "definition",
}


def methods() -> list[dict[str, Any]]:
    """One dict per method: name, title, family, problem, parameters, labels, engines, out_of_sample, mesd, oracle, paper."""
    known = [
        {
            "name": name,
            "title": method.title,
            "family": "global",
            "problem": method.formula,
            "parameters": list(method.parameters),
            "labels": method.supervised,
            "engines": ["moments", "exact"],
            "out_of_sample": True,
            "mesd": False,
            "oracle": _GLOBAL_ORACLES.get(name, "formula, SciPy eigh"),
            "paper": method.source,
        }
        for name, method in METHODS.items()
    ]
    return known + [
        {
            "name": name,
            "title": entry.title,
            "family": entry.family,
            "problem": entry.formula,
            "parameters": list(entry.parameters),
            "labels": entry.supervised,
            "engines": entry.engines,
            "out_of_sample": entry.out_of_sample,
            "mesd": entry.form == "supervised",
            "oracle": entry.oracle,
            "paper": entry.source,
        }
        for name, entry in NEIGHBORHOOD.items()
    ]


def markdown() -> str:
    """The table of all methods for the README."""
    lines = [
        "| method | title | family | engine | out of sample | MESD | tested against | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in methods():
        words = (
            f"`{row['name']}`",
            row["title"],
            row["family"],
            ", ".join(row["engines"]),
            "yes" if row["out_of_sample"] else "no",
            "yes" if row["mesd"] else "",
            row["oracle"],
            row["paper"],
        )
        lines.append("| " + " | ".join(words) + " |")
    return "\n".join(lines) + "\n"
