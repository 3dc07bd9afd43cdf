"""Parameters that several estimators share: types, parameter objects, and paragraphs of docstrings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np

import dmo
from dmo.decide.decoders import Calibration, PlugIn, PooledCalibration, Scores
from dmo.errors import ENGINES
from dmo.fit.exact import Exact
from dmo.fit.krylov import Krylov
from dmo.inputs import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Need,
    one_of,
    optional,
)
from dmo.kernels import Kernel
from dmo.labels.proximities import Combination
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
from dmo.methods.catalog import SUPERVISED, UNSUPERVISED
from dmo.methods.quadratic_forms import NEEDS
from dmo.parameters import ParameterObject

KernelSpec = str | Kernel
"""Type of a kernel, which is an object or its name."""
KernelSpecs = str | Kernel | Mapping[str, Any] | Sequence[Any]
"""Type of `kernel`, which is one kernel for all views or one kernel per view."""
Ridges = float | Mapping[str, float] | Sequence[float]
"""Type of `ridge`, which is one number for all views or one number per view."""
LabelRidges = float | np.ndarray | Mapping[str, Any] | Sequence[Any]
"""Type of `ridge` in estimators that also accept an array with one value per label."""
Weights = Mapping[str, float] | Sequence[float] | Literal["equal", "tagprop", "alignment"] | None
"""Type of `weights`, which are numbers for the views or the name of a method that learns them."""
Decoder = str | Calibration | PlugIn | PooledCalibration | Scores | None
"""Type of `decoder`, which is an object of dmo.decoders or a name such as "calibrated" or "f1@5"."""
Engine = Literal["auto", "exact", "nystrom", "meka", "best"] | Exact | Nystrom | Meka | BestLowRank
"""Type of `approximation`, which selects exact or low-rank kernels. "auto" selects by the size of the problem."""
GivenEngine = Literal["exact", "nystrom", "meka", "best"] | Exact | Nystrom | Meka | BestLowRank
LinearEngine = Literal["auto", "exact", "krylov", "nystrom"] | Exact | Krylov | Nystrom
AnyEngine = (
    Literal["auto", "exact", "krylov", "nystrom", "meka", "best"] | Exact | Krylov | Nystrom | Meka | BestLowRank
)
PAIRS_TOO = Need(
    "needs a whole number of at least 1, or 'all' for all pairs",
    lambda value: (isinstance(value, str) and value == "all") or COUNT.holds(value),
    ("all",),
)
"""Constraint on `Graph.n_neighbors` in estimators that also support all pairs of samples."""


@dataclass(eq=False, repr=False)
class Graph(ParameterObject):
    """Graph of nearest neighbors, with the weights of its edges.

    Estimators also accept a value of `weight` (a name or a matrix) or of `n_neighbors` (an integer) instead of a
    `Graph`. The docstring of each estimator describes its defaults for options that are None.

    Parameters
    ----------
    n_neighbors : int, "all" or None, default=None
        Number of neighbors of each sample. In `MOPE`, "all" connects all pairs of at most 4000 samples.
    weight : str, ndarray of shape (n, n), or None, default=None
        Name of the edge weights, such as "constant", "gaussian", "local", "inverse" or "cosine", or a symmetric matrix
        of weights. See `dmo.graphs.weigh`.
    bandwidth : float, "mean" or None, default=None
        Bandwidth of "gaussian" weights in units of the distance. "mean" is the mean length of the edges.
    tau : float or None, default=None
        Positive constant of "inverse" weights, which are at most 1 / tau.
    local : int or None, default=None
        Rank of the neighbor whose distance is the local scale of a sample, for "local" weights.
    adjacency : {"union", "mutual", "sum"} or None, default=None
        Rule that connects two samples. "union" requires that at least one sample is a neighbor of the other, and
        "mutual" requires that both are. "sum" is like "union", but mutual neighbors count twice. Only `MESD` and
        `TraceEmbedding` support "sum".
    metric : {"euclidean", "cosine"} or None, default=None
        Distance for the neighbor search.
    search : {"exact", "approximate"} or None, default=None
        Algorithm of the neighbor search.
    selection : {"features", "proximity"} or None, default=None
        Neighbors in `MOPE`, which are the nearest samples in `metric` or the samples with the largest proximity. The
        search for the largest proximity needs time proportional to n^2.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import Graph, TraceEmbedding
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TraceEmbedding("lpp", graph=Graph(n_neighbors=10, weight="gaussian")).fit(X)
    >>> model.set_params(graph__n_neighbors=20).fit(X).transform(X).shape
    (150, 2)
    """

    n_neighbors: int | Literal["all"] | None = None
    weight: str | np.ndarray | None = None
    bandwidth: float | Literal["mean"] | None = None
    tau: float | None = None
    local: int | None = None
    adjacency: Literal["union", "mutual", "sum"] | None = None
    metric: Literal["euclidean", "cosine"] | None = None
    search: Literal["exact", "approximate"] | None = None
    selection: Literal["features", "proximity"] | None = None

    _short: ClassVar[str] = "weight"
    _none: ClassVar[Mapping[str, Any]] = {"n_neighbors": "all"}
    _needs: ClassVar[Mapping[str, Need]] = {
        "n_neighbors": optional(COUNT),
        "tau": optional(POSITIVE),
        "local": optional(COUNT),
        "adjacency": optional(one_of("union", "mutual")),
        "metric": optional(one_of("euclidean", "cosine")),
        "search": optional(one_of("exact", "approximate")),
        "selection": optional(one_of("features", "proximity")),
    }

    @classmethod
    def _of(cls, value: Any) -> Self:
        return cls(value) if isinstance(value, int) else super()._of(value)


GAUSSIAN: Mapping[str, Any] = {
    "n_neighbors": 15,
    "weight": "gaussian",
    "bandwidth": "mean",
    "tau": 1.0,
    "local": 7,
    "adjacency": "union",
    "metric": "euclidean",
    "search": "exact",
}
"""Defaults of `MOPE` and `LabelPropagation` for options of `Graph` that are None."""


@dataclass(eq=False, repr=False)
class Solver(ParameterObject):
    """Iterative eigensolver, with its tolerance and maximum number of steps.

    Estimators also accept a value of `method` instead of a `Solver`. The docstring of each estimator describes its
    defaults for options that are None.

    Parameters
    ----------
    method : {"krylov", "als", "plain-als"} or None, default=None
        Algorithm. "krylov" is a block Krylov iteration. "plain-als" is the alternating least squares algorithm, an
        orthogonal iteration that can need hundreds of steps. "als" accelerates this algorithm: each step selects the
        best directions in the span of the new and the last two iterates.
    tol : float or None, default=None
        Tolerance for the residuals of the eigenpairs, relative to the largest eigenvalue.
    max_iter : int or None, default=None
        Maximum number of steps, after which a ConvergenceWarning reports the residual.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import KGHA, Solver
    >>> X, Y = make_multilabel_classification(n_samples=100, n_classes=5, random_state=0)
    >>> KGHA(solver=Solver(tol=1e-3)).fit(X, Y).n_iter_ < KGHA(solver=Solver(tol=1e-9)).fit(X, Y).n_iter_
    True
    """

    method: Literal["krylov", "als", "plain-als"] | None = None
    tol: float | None = None
    max_iter: int | None = None

    _short: ClassVar[str] = "method"
    _flat: ClassVar[Mapping[str, str]] = {"method": "solver"}
    _needs: ClassVar[Mapping[str, Need]] = {
        "method": optional(one_of("krylov", "als", "plain-als")),
        "tol": optional(POSITIVE),
        "max_iter": optional(COUNT),
    }


@dataclass(eq=False, repr=False)
class Combine(ParameterObject):
    """Combination of the label proximity g and the feature weight w of each pair of samples in `MOPE`.

    `MOPE` also accepts a value of `how` instead of a `Combine` object.

    Parameters
    ----------
    how : {"priority", "hadamard", "sum", "labels", "features"}, default="priority"
        Name of the combination. "labels" is g, "features" is w, "hadamard" is g w, and "sum" is beta g + (1 - beta) w.
        "priority" is label_share g^a / (1 + beta (1 - w^b)) + (1 - label_share) w^b.
    a : float, default=1.0
        Exponent of g in "priority", above 0.
    b : float, default=1.0
        Exponent of w in "priority", above 0.
    beta : float, default=1.0
        Reduction of g for pairs with a small w in "priority", at least 0, or weight of g in "sum", at most 1.
    label_share : float in [0, 1], default=1.0
        Weight of the label proximity in "priority".

    References
    ----------
    Mu, Goulermas, Tsujii, Ananiadou 2012.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import MOPE, Combine
    >>> X, Y = make_multilabel_classification(n_samples=100, n_classes=5, random_state=0)
    >>> MOPE(combination=Combine("sum", beta=0.5)).fit(X, Y).transform(X).shape
    (100, 2)
    """

    how: Combination = "priority"
    a: float = 1.0
    b: float = 1.0
    beta: float = 1.0
    label_share: float = 1.0

    _short: ClassVar[str] = "how"
    _flat: ClassVar[Mapping[str, str]] = {"how": "combination"}
    _needs: ClassVar[Mapping[str, Need]] = {
        "a": POSITIVE,
        "b": POSITIVE,
        "beta": NOT_NEGATIVE,
        "label_share": SHARE,
    }


@dataclass(eq=False, repr=False)
class MethodOptions(ParameterObject):
    """Options of individual methods of `TraceEmbedding`, `MESD` and `MOPE`.

    An option that the chosen method does not use raises an error. Estimators also accept a value of `mixing` instead of
    a `MethodOptions` object.

    Parameters
    ----------
    mixing : float in [0, 1] or None, default=None
        Weight of the labels in "slvm", "morp", "mlsi", "self", "mix" and `MOPE`. None: 0.5. `MOPE` uses 1.0 instead.
    shrinkage : float in [0, 1] or None, default=None
        Weight s of the identity in the constraint (1 - s) X'X + s I of "mddm". None: 0.5.
    n_repelled : int or None, default=None
        Number of neighbors in other classes. For "mfa", number of closest pairs per class. None: 15.
    regularization : float or None, default=None
        Ridge of reconstruction weights relative to the trace of the local Gram matrix, at least 0. None: 0.001.
    penalty : float or None, default=None
        Weight of the scatter within classes in "mmc" and "ssmmc", at least 0. None: 1.
    repulsion : float or None, default=None
        Weight of the neighbors in other classes in "dla", "olpp-r", "donpp" and "onpp-r", at least 0. None: 1.
    smoothness : float or None, default=None
        Weight of the graph Laplacian in "ssfda" and "ssmmc", at least 0. None: 0.1.
    supervised : str or None, default=None
        Supervised method of "mix". None: "fda".
    unsupervised : str or None, default=None
        Unsupervised method of "mix" and `MOPE`. None: "lpp". `MOPE` uses "olpp" instead.
    constraint : {"mixed", "supervised", "projection"} or None, default=None
        Constraint of "mix". "mixed" combines the constraints of both methods with the same weights as their objectives.
        "supervised" is the constraint of the supervised method, and "projection" is P'P = I. None: "mixed".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import MethodOptions, TraceEmbedding
    >>> X, y = load_iris(return_X_y=True)
    >>> TraceEmbedding("mmc", options=MethodOptions(penalty=2.0)).fit(X, y).transform(X).shape
    (150, 2)
    """

    mixing: float | None = None
    shrinkage: float | None = None
    n_repelled: int | None = None
    regularization: float | None = None
    penalty: float | None = None
    repulsion: float | None = None
    smoothness: float | None = None
    supervised: str | None = None
    unsupervised: str | None = None
    constraint: Literal["mixed", "supervised", "projection"] | None = None

    _short: ClassVar[str] = "mixing"
    _needs: ClassVar[Mapping[str, Need]] = {
        **{name: NEEDS[name] for name in ("mixing", "shrinkage", "n_repelled", "regularization")},
        **{name: NEEDS[name] for name in ("penalty", "repulsion", "smoothness")},
        "supervised": optional(one_of(*SUPERVISED)),
        "unsupervised": optional(one_of(*UNSUPERVISED)),
        "constraint": optional(one_of("mixed", "supervised", "projection")),
    }


_PARAGRAPHS = {
    "X": """X : mapping of view to rows, list of rows, or rows
    One or several views of n samples. Each view is a NumPy, SciPy sparse, dask or Zarr array of shape (n, d) in chunks
    of whole rows.""",
    "X_gaps": """X : mapping of view to rows, list of rows, or rows
    One or several views of n samples. Each view is a NumPy, SciPy sparse, dask or Zarr array of shape (n, d) in chunks
    of whole rows. If several views are in memory, rows of NaN mark samples that are missing from a view.""",
    "X_new": """X : mapping of view to rows, list of rows, or rows
    The same views as in fit, for m samples. Each view is an array of shape (m, d) in chunks of whole rows.""",
    "y": """y : array-like of shape (n, L) or (n,)
    Label matrix of 0 and 1, vector of n classes, or n lists of labels.""",
    "y_unused": """y : object, default=None
    Ignored; present for compatibility with pipelines.""",
    "prepare": """prepare : Prepare, str or mapping of view to str, default="auto"
    Preprocessing of the rows by splitting into views, imputation and scaling, see `Prepare`. A name, or one name per
    view, is short for Prepare(scale=...).""",
    "random_state": """random_state : int or None, default=0
    Seed of all random choices, such as landmarks, starting vectors and samples of rows.""",
    "approximation": """approximation : {"auto", "exact", "nystrom", "meka", "best"}, Exact, Nystrom, ..., default="auto"
    Exact or low-rank kernels. "exact" computes full kernel matrices, and `Exact` sets their storage and precision.
    Low-rank kernels need one pass over the data and small dense matrices. "auto" is exact if the kernels fit in memory,
    and otherwise "best". The other names are short for Nystrom(), Meka() and BestLowRank().""",
    "distances": """distances : {"auto", "l1", "l2", "chi2"}, or mapping of view to these, default="auto"
    Distance of each view, divided by its mean over the training samples. "l2" is the Euclidean distance. "l1" and
    "chi2" compare histograms, which are rows scaled to sum to 1. "auto" is "chi2" if the feature store declares the
    view as histograms, and otherwise "l2". Views without an entry in a mapping use "auto".""",
    "targets": """targets : {"auto", "labels", "real"}, default="auto"
    Type of y. With "real", y contains regression targets, `predict` returns numbers in the units of y, and scikit-learn
    treats the estimator as a regressor. "auto" selects "real" if y is a matrix of floats with a value other than 0, 1,
    -1 and NaN, and otherwise "labels".""",
    "decoder": """decoder : Calibration, PlugIn, PooledCalibration, Scores, str or None, default=None
    Decoder that ranks labels. It is learned from out-of-fold scores of the training samples, which need four additional
    fits, or up to ten for at most 200 samples. With None, labels are ranked by score, as described in `Scores`.
    Learning label sets needs as many fits for up to 1000 samples, and one fit on at most 2000 samples for more.""",
    "class_weight": """class_weight : {"balanced"}, dict of class to float, or None, default=None
    Factors on the weights of the samples of each class, for a vector of classes. "balanced" uses factors that are
    inversely proportional to the class frequencies. Scales and decoders are learned without class weights.""",
    "metric": """metric : {"euclidean", "cosine"}, default="euclidean"
    Distance for the neighbor search.""",
}
_MARK = re.compile(r"^( *)%\((\w+)\)s$", re.MULTILINE)


def fill_docstrings(kind: type) -> None:
    """Replace placeholders such as %(decoder)s in the docstrings of a class and its methods with shared paragraphs."""

    def put(mark: re.Match[str]) -> str:
        return textwrap.indent(_PARAGRAPHS[mark[2]], mark[1])

    for thing in (kind, *vars(kind).values()):
        for part in (thing, getattr(thing, "fn", None)):  # The decorator `available_if` stores the function as `fn`.
            text = getattr(part, "__doc__", None)
            if isinstance(text, str) and "%(" in text:
                part.__doc__ = _MARK.sub(put, text)  # type: ignore[union-attr]


class NamedEngine:
    """Descriptor of the parameter `approximation`, which converts names such as "nystrom" to objects."""

    def __get__(self, estimator: Any, owner: type) -> Any:
        try:
            return self if estimator is None else vars(estimator)["approximation"]
        except KeyError:
            raise AttributeError(f"{owner.__name__!r} object has no attribute 'approximation'") from None

    def __set__(self, estimator: Any, value: Any) -> None:
        vars(estimator)["approximation"] = _engine(value)


def _engine(value: Any) -> Any:
    if isinstance(value, Mapping):
        named = {view: _engine(own) for view, own in value.items()}
        return value if all(named[view] is own for view, own in value.items()) else named
    return getattr(dmo, ENGINES[value])() if isinstance(value, str) and value != "exact" and value in ENGINES else value
