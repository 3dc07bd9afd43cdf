"""Catalog of the embedding methods, with the eigenproblem, parameters and source of each method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from dmo.methods import discriminant, spectral
from dmo.methods.discriminant import DISCRIMINANTS
from dmo.methods.quadratic_forms import MixedConstraint, Options, QuadraticForm, TraceProblem, TraceSamples, mix
from dmo.methods.trace_solvers import row_factor

Family = Literal["global", "unsupervised", "supervised", "semi-supervised"]
_ENGINES = {
    "global": ["moments", "exact"],
    "direct": ["direct"],
    "rows": ["projected", "kernel", "relation features", "low rank"],
}


@dataclass(frozen=True)
class CatalogEntry:
    """Embedding method of the catalog."""

    title: str
    family: Family
    source: str  # Paper that introduced the method.
    problem: Callable[[TraceSamples, Options], TraceProblem]
    parameters: tuple[str, ...] = ()  # Parameters of the estimator that the method uses.
    oracle: str = "explicit n x n matrices"  # Reference implementation in the tests.
    labels: bool = True  # Whether the method uses labels.
    center: bool = True  # Whether the method centers rows and labels.
    direct: bool = False  # Whether the method can embed only the training samples.

    @property
    def formula(self) -> str:
        """Formula of the method, which is the first line of the docstring of `problem`."""
        return (self.problem.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def engines(self) -> list[str]:
        """Names of the engines that can solve the eigenproblem of the method."""
        return _ENGINES["direct" if self.direct else "global" if self.family == "global" else "rows"]


_LABELS, _RIDGE, _MIXING = "label_kernel", "ridge", "mixing"
_K, _REPELLED, _REG, _PENALTY, _REPULSION = "n_neighbors", "n_repelled", "regularization", "penalty", "repulsion"
_ROWS = ("n_landmarks", "variance")
_GRAPH = (_K, "adjacency", "metric")
_WEIGHTS = (*_GRAPH, "weight", "bandwidth", "tau")
_LOCAL = (_K, "metric", _REG)
_DUPLICATES = "explicit double loops and duplication"
_FORMULA = "formula, SciPy eigh"


def _direct(title: str, source: str, problem: Any, parameters: tuple[str, ...], oracle: str) -> CatalogEntry:
    return CatalogEntry(title, "unsupervised", source, problem, parameters, oracle, labels=False, direct=True)


def _unsupervised(title: str, source: str, problem: Any, parameters: tuple[str, ...]) -> CatalogEntry:
    return CatalogEntry(title, "unsupervised", source, problem, parameters + _ROWS, labels=False)


def _supervised(
    title: str, source: str, name: str, parameters: tuple[str, ...], oracle: str = _DUPLICATES
) -> CatalogEntry:
    return CatalogEntry(title, "supervised", source, DISCRIMINANTS[name], parameters + _ROWS, oracle)


def _semi(title: str, source: str, problem: Any, parameters: tuple[str, ...]) -> CatalogEntry:
    return CatalogEntry(title, "semi-supervised", source, problem, parameters + _ROWS)


def _global(
    title: str, source: str, problem: Any, parameters: tuple[str, ...], oracle: str = _FORMULA, **more: bool
) -> CatalogEntry:
    return CatalogEntry(title, "global", source, problem, parameters, oracle, **more)


def mixed(samples: TraceSamples, options: Options) -> TraceProblem:
    """Sum beta A_sup + (1 - beta) A_un | the same sum of constraints, the constraint of A_sup, or I; beta = mixing."""
    known, index = samples.labeled()
    supervised = _part(options.supervised, known, options).each(lambda form: form.spread(index, samples.n))
    constraint: MixedConstraint = "first" if options.constraint == "supervised" else options.constraint
    return mix(supervised, _part(options.unsupervised, samples, options), options.mixing, constraint)


def _part(name: str, samples: TraceSamples, options: Options) -> TraceProblem:
    """Return the eigenproblem of a method in a form that can be added to another eigenproblem [MOPE 44, 45]."""
    method = METHODS[name]
    problem = method.problem(replace(samples, center=method.center), options).projection(options.ridge)
    if problem.A.kernel:
        problem = replace(problem, A=problem.A.resolved(row_factor(samples.rows, method.center)))
    return problem.each(QuadraticForm.centered) if problem.center else problem


METHODS: dict[str, CatalogEntry] = {
    "pca": _global(
        "principal component analysis",
        "Pearson 1901; Schoelkopf et al. 1998",
        spectral.pca,
        (),
        "scikit-learn PCA",
        labels=False,
    ),
    "lsi": _global(
        "latent semantic indexing",
        "Deerwester et al. 1990",
        spectral.pca,
        (),
        "TruncatedSVD",
        labels=False,
        center=False,
    ),
    "pls": _global("partial least squares", "Wold 1975; Bookstein 1994 (SVD)", spectral.pls, (_LABELS,), "PLSSVD"),
    "opls": _global(
        "orthonormalized partial least squares",
        "Worsley et al. 1997",
        spectral.opls,
        (_LABELS, _RIDGE),
        "formula, Ridge",
    ),
    "cca": _global(
        "(regularized, kernel) canonical correlation",
        "Hotelling 1936; Vinod 1976",
        spectral.cca,
        (_LABELS, _RIDGE),
        "CCA, cca-zoo RidgeCCA",
    ),
    "mddm": _global(
        "multi-label dependence maximization, shrinkage 1: MDDMp, 0: MDDMf",
        "Zhang, Zhou 2010",
        spectral.mddm,
        (_LABELS, "shrinkage"),
    ),
    "hsic-0": _global(
        "supervised features by HSIC, biased", "Gretton et al. 2005", spectral.hsic_biased, (_LABELS,), "definition"
    ),
    "hsic-1": _global(
        "supervised features by HSIC, unbiased", "Song et al. 2012", spectral.hsic_unbiased, (_LABELS,), "definition"
    ),
    "hsl-1": _global(
        "hypergraph spectral, clique expansion", "Sun, Ji, Ye 2008", spectral.hypergraph("clique"), (_RIDGE,)
    ),
    "hsl-2": _global("hypergraph spectral, star expansion", "Sun, Ji, Ye 2008", spectral.hypergraph("star"), (_RIDGE,)),
    "hsl-3": _global(
        "hypergraph spectral, normalized Laplacian", "Zhou et al. 2006", spectral.hypergraph("zhou"), (_RIDGE,)
    ),
    "slvm": _global(
        "supervised latent variable model",
        "Yu et al. 2006",
        spectral.slvm,
        (_LABELS, _MIXING, _RIDGE),
        "KernelPCA and Ridge",
    ),
    "kde": _global(
        "kernel dependency estimation", "Weston et al. 2002", spectral.kde, (_LABELS, _RIDGE), "PCA and Ridge"
    ),
    "morp": _global(
        "multi-output regularized projection",
        "Yu, Yu, Tresp 2005",
        spectral.morp_direct,
        (_LABELS, _MIXING, _RIDGE),
        "skmatter PCovR",
    ),
    "morp-simplified": _global(
        "multi-output regularized projection, simplified",
        "Yu, Yu, Tresp 2005",
        spectral.morp_simplified,
        (_LABELS, _MIXING, _RIDGE),
    ),
    "mlsi": _global(
        "multi-label informed latent semantic indexing",
        "Yu, Yu, Tresp 2005 (SIGIR)",
        spectral.morp_direct,
        (_LABELS, _MIXING, _RIDGE),
        "skmatter PCovR",
        center=False,
    ),
    "usc": _direct("unnormalized spectral clustering", "von Luxburg 2007", spectral.usc, _WEIGHTS, "SciPy eigh"),
    "le": _direct(
        "Laplacian eigenmaps, random walk", "Belkin, Niyogi 2003", spectral.eigenmaps, _WEIGHTS, "SpectralEmbedding"
    ),
    "nsc": _direct("normalized spectral clustering", "Ng, Jordan, Weiss 2001", spectral.nsc, _WEIGHTS, "SciPy eigh"),
    "mds": _direct("classical multidimensional scaling", "Torgerson 1952", spectral.mds, (), "scikit-learn PCA"),
    "isomap": _direct("isometric mapping", "Tenenbaum et al. 2000", spectral.isomap, _GRAPH, "Isomap"),
    "lle": _direct("locally linear embedding", "Roweis, Saul 2000", spectral.lle, _LOCAL, "LocallyLinearEmbedding"),
    "lpp": _unsupervised("locality preserving projections", "He, Niyogi 2003", spectral.lpp, (*_WEIGHTS, _RIDGE)),
    "olpp": _unsupervised(
        "orthogonal locality preserving projections", "Kokiopoulou, Saad 2007", spectral.olpp, _WEIGHTS
    ),
    "npp": _unsupervised("neighborhood preserving projections", "He et al. 2005", spectral.npp, (*_LOCAL, _RIDGE)),
    "onpp": _unsupervised("orthogonal neighborhood preserving", "Kokiopoulou, Saad 2007", spectral.onpp, _LOCAL),
    "fda": _supervised(
        "Fisher discriminant analysis", "Fisher 1936", "fda", (_RIDGE,), "LinearDiscriminantAnalysis(solver='eigen')"
    ),
    "lfda": _supervised("local Fisher discriminant analysis", "Sugiyama 2007", "lfda", (_K, _RIDGE)),
    "mfa": _supervised("marginal Fisher analysis", "Yan et al. 2007", "mfa", (_K, _REPELLED, _RIDGE)),
    "mmc": _supervised("maximum margin criterion", "Li et al. 2006", "mmc", (_PENALTY,)),
    "dla": _supervised("discriminative locality alignment", "Zhang et al. 2009", "dla", (_K, _REPELLED, _REPULSION)),
    "dne": _supervised("discriminant neighborhood embedding", "Zhang et al. 2006", "dne", _GRAPH),
    "olpp-r": _supervised(
        "OLPP, supervised, with repulsion",
        "Kokiopoulou, Saad 2009",
        "olpp-r",
        (_REPELLED, "adjacency", "metric", _REPULSION),
    ),
    "sonpp": _supervised("supervised ONPP", "Kokiopoulou, Saad 2007", "sonpp", (_K, _REG)),
    "donpp": _supervised("discriminative ONPP", "Zhang et al. 2010", "donpp", (_K, _REPELLED, _REG, _REPULSION)),
    "onpp-r": _supervised(
        "supervised ONPP with repulsion",
        "Kokiopoulou, Saad 2009",
        "onpp-r",
        (_K, _REPELLED, "adjacency", "metric", _REG, _REPULSION),
    ),
    "self": _semi("semi-supervised local Fisher", "Sugiyama et al. 2010", discriminant.self_, (_K, _MIXING)),
    "ssfda": _semi(
        "semi-supervised Fisher discriminant analysis",
        "Song et al. 2008",
        discriminant.ssfda,
        (*_WEIGHTS, "smoothness", _RIDGE),
    ),
    "ssmmc": _semi(
        "semi-supervised maximum margin", "Song et al. 2008", discriminant.ssmmc, (*_WEIGHTS, _PENALTY, "smoothness")
    ),
    "mix": _semi(
        "any supervised with any unsupervised",
        "Mu et al. 2012, eqs. 44, 45",
        mixed,
        (
            "supervised",
            "unsupervised",
            "constraint",
            _MIXING,
            "shrinkage",
            *_WEIGHTS,
            _REPELLED,
            _REG,
            _PENALTY,
            _REPULSION,
            _RIDGE,
        ),
    ),
}
SUPERVISED = tuple(name for name, entry in METHODS.items() if entry.labels and entry.family != "semi-supervised")
"""Supervised methods that the method "mix" can combine with an unsupervised method."""
UNSUPERVISED = tuple(name for name, entry in METHODS.items() if not entry.labels)


def parameters(family: Family | None = None) -> tuple[str, ...]:
    """List the parameters that the methods of one family, or of all families, use."""
    chosen = [entry for entry in METHODS.values() if family in (None, entry.family)]
    return tuple(dict.fromkeys(name for entry in chosen for name in entry.parameters))


def methods() -> list[dict[str, Any]]:
    """List the methods of the catalog as dicts."""
    return [
        {
            "name": name,
            "title": entry.title,
            "family": entry.family,
            "problem": entry.formula,
            "parameters": list(entry.parameters),
            "labels": entry.labels,
            "engines": entry.engines,
            "out_of_sample": not entry.direct,
            "mesd": entry.family == "supervised",
            "oracle": entry.oracle,
            "paper": entry.source,
        }
        for name, entry in METHODS.items()
    ]


def markdown() -> str:
    """Return the table of all methods in Markdown, for the documentation."""
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
