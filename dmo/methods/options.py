"""What estimators' parameters are: types, the objects that they share, and the words that their pages share."""

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
"""A kernel or its name."""
KernelSpecs = str | Kernel | Mapping[str, Any] | Sequence[Any]
"""One kernel for all views, or one per view."""
Ridges = float | Mapping[str, float] | Sequence[float]
"""One ridge for all views, or one per view."""
LabelRidges = float | np.ndarray | Mapping[str, Any] | Sequence[Any]
"""The same, each a number for all labels or an array of one per label."""
Weights = Mapping[str, float] | Sequence[float] | Literal["equal", "tagprop", "alignment"] | None
"""Weights of the views, or how they are learned."""
Decoder = str | Calibration | PlugIn | PooledCalibration | Scores | None
"""From held-out scores to decisions: an object of dmo.decoders, "calibrated", "probabilities", or a metric as "f1@5"."""
Engine = Literal["auto", "exact", "nystrom", "meka", "best"] | Exact | Nystrom | Meka | BestLowRank
"""The kernel as it is, or one of low rank; "auto" decides by size."""
GivenEngine = Literal["exact", "nystrom", "meka", "best"] | Exact | Nystrom | Meka | BestLowRank
"""The same without "auto"."""
LinearEngine = Literal["auto", "exact", "krylov", "nystrom"] | Exact | Krylov | Nystrom
"""Of a linear problem, which may be solved in a Krylov subspace too."""
AnyEngine = (
    Literal["auto", "exact", "krylov", "nystrom", "meka", "best"] | Exact | Krylov | Nystrom | Meka | BestLowRank
)
PAIRS_TOO = Need(
    "needs a whole number of at least 1, or 'all' for all pairs",
    lambda value: (isinstance(value, str) and value == "all") or COUNT.holds(value),
    ("all",),
)
"""Of `Graph.n_neighbors`, where a method can go without a graph."""


@dataclass(eq=False, repr=False)
class Graph(ParameterObject):
    """The graph of neighbors that an estimator looks at: which samples it joins, and how near they are.

    A name or a matrix stands for the graph of that `weight`, a number for one of so many neighbors. None stands for the
    default of the estimator, which its page names.

    Parameters
    ----------
    n_neighbors : int, "all" or None, default=None
        Neighbors of every sample. "all" (of `MOPE`): all pairs, of at most 4000 samples.
    weight : str, ndarray of shape (n, n), or None, default=None
        Weights of the edges, "constant", "gaussian", "local", "inverse", "cosine", "pearson", ..., see `dmo.graphs.weigh`;
        a matrix must be symmetric.
    bandwidth : float, "mean" or None, default=None
        Of the weights "gaussian", in units of the distance; "mean": the mean length of the edges.
    tau : float or None, default=None
        Of the weights "inverse", above 0; they are at most 1 / tau.
    local : int or None, default=None
        Of the weights "local": which neighbor gives the scale.
    adjacency : {"union", "mutual", "sum"} or None, default=None
        The graph holds a pair where one is a neighbor of the other, or where both are; "sum": the pairs of "union", those of
        "mutual" twice.
    metric : {"euclidean", "cosine"} or None, default=None
        Distance by which neighbors are sought.
    search : {"exact", "approximate"} or None, default=None
        How neighbors are sought.
    selection : {"features", "proximity"} or None, default=None
        Neighbors are the samples that are nearest in `metric`, or (of `MOPE`) those of the largest proximity, which takes
        time by n^2.

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
        """The graph that a value is, or stands for."""
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
"""What `MOPE` and `LabelPropagation` take where a `Graph` says nothing."""


@dataclass(eq=False, repr=False)
class Solver(ParameterObject):
    """How an estimator's problem is solved, where that is by iteration, and how closely.

    A name stands for the solver of that `method`. None stands for the default of the estimator, which its page names.

    Parameters
    ----------
    method : {"krylov", "als"} or None, default=None
        Block Krylov iteration started from the labels, or a paper's alternating least squares with warm-started block CG,
        whose steps keep the best directions of the new and the last two iterates.
    tol : float or None, default=None
        Residual of the eigenpairs, relative to the largest eigenvalue, at which an eigenproblem is solved.
    max_iter : int or None, default=None
        Maximum number of steps. If they do not suffice, a ConvergenceWarning reports the residual.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import KGHA, Solver
    >>> X, Y = make_multilabel_classification(n_samples=100, n_classes=5, random_state=0)
    >>> KGHA(solver=Solver(tol=1e-3)).fit(X, Y).n_iter_ < KGHA(solver=Solver(tol=1e-9)).fit(X, Y).n_iter_
    True
    """

    method: Literal["krylov", "als"] | None = None
    tol: float | None = None
    max_iter: int | None = None

    _short: ClassVar[str] = "method"
    _flat: ClassVar[Mapping[str, str]] = {"method": "solver"}
    _needs: ClassVar[Mapping[str, Need]] = {
        "method": optional(one_of("krylov", "als")),
        "tol": optional(POSITIVE),
        "max_iter": optional(COUNT),
    }


@dataclass(eq=False, repr=False)
class Combine(ParameterObject):
    """How `MOPE` puts the proximities g of labels and the feature weights w of the same pairs together.

    A name stands for the combination of that name.

    Parameters
    ----------
    how : {"priority", "hadamard", "sum", "labels", "features"}, default="priority"
        See `dmo.labels.proximities.combine`.
    a : float, default=1.0
        Exponent of g in "priority", above 0.
    b : float, default=1.0
        Exponent of w in "priority", above 0.
    beta : float, default=1.0
        How much w weakens g in "priority", at least 0; share of g in "sum".
    label_share : float in [0, 1], default=1.0
        gamma of "priority": its share of the labels.

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
    """What single methods of `TraceEmbedding` and `MESD` take besides; one that the method does not use is refused.

    A number stands for that `mixing`.

    Parameters
    ----------
    mixing : float in [0, 1] or None, default=None
        Share of the labels: beta of SLVM, MORP and MLSI, 1 - beta of SELF, 1 - lambda of "mix". None: 0.5.
    shrinkage : float in [0, 1] or None, default=None
        s of MDDM's constraint (1 - s) X'X + s I. None: 0.5.
    n_repelled : int or None, default=None
        Neighbors of other classes (mfa: closest pairs per class). None: 15.
    regularization : float or None, default=None
        Ridge of the reconstruction weights, relative to the trace of the local Gram matrix, at least 0. None: 0.001.
    penalty : float or None, default=None
        Weight of the within-class scatter, at least 0: mu of mmc, b1 of ssmmc. None: 1.
    repulsion : float or None, default=None
        Weight of the neighbors of other classes, at least 0: lambda of dla, beta of olpp-r, donpp, onpp-r. None: 1.
    smoothness : float or None, default=None
        Weight of X'Lap(W)X in ssfda and ssmmc, at least 0. None: 0.1.
    supervised : str or None, default=None
        The supervised method of "mix". None: "fda".
    unsupervised : str or None, default=None
        The unsupervised method of "mix". None: "lpp".
    constraint : {"mixed", "supervised", "projection"} or None, default=None
        Of "mix": the constraints of both methods in the same shares as their objectives, that of the supervised method, or
        P'P = I. None: "mixed".

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
    Views of n samples each: NumPy, SciPy sparse, dask or Zarr arrays of shape (n, d), in chunks of whole rows; or one
    view.""",
    "X_gaps": """X : mapping of view to rows, list of rows, or rows
    Views of n samples each: NumPy, SciPy sparse, dask or Zarr arrays of shape (n, d), in chunks of whole rows; or one
    view. Of several views in memory, rows of NaN are samples that a view lacks.""",
    "X_new": """X : mapping of view to rows, list of rows, or rows
    The views of fit, of m samples: arrays of shape (m, d), in chunks of whole rows.""",
    "y": """y : array-like of shape (n, L) or (n,)
    Labels of 0 and 1, n classes, or n lists of labels.""",
    "y_unused": """y : object, default=None
    Ignored; here so that pipelines can pass it.""",
    "prepare": """prepare : Prepare, str or mapping of view to str, default="auto"
    What is done to rows before anything is learned from them: which columns are which view, how gaps are filled and columns
    scaled; a name, or one per view, stands for Prepare(scale=...). See `Prepare`.""",
    "random_state": """random_state : int or None, default=0
    Seed of everything that is drawn, such as landmarks, starting vectors, folds and samples of rows.""",
    "approximation": """approximation : {"auto", "exact", "nystrom", "meka", "best"}, Exact, Nystrom, ..., default="auto"
    The exact engine (Exact says where and in which precision the kernels live), or a low-rank kernel per view and the
    moment engine: one pass over the rows, then small dense algebra. "auto": exact where it fits in memory. A name stands for
    Nystrom(), Meka() or BestLowRank().""",
    "distances": """distances : {"auto", "l1", "l2", "chi2"}, or mapping of view to these, default="auto"
    "l1" and "chi2" compare histograms (rows scaled to sum 1), "l2" is the Euclidean distance; "auto", and views that a
    mapping does not name: "chi2" where their feature store calls them histograms, else "l2". Each is divided by its
    mean over the training samples.""",
    "targets": """targets : {"auto", "labels", "real"}, default="auto"
    What y is. "real": numbers in any units, which `predict` returns, and the estimator is a regressor to scikit-learn.
    "auto": real where y is a matrix of floats other than 0, 1, -1 and NaN, else labels.""",
    "decoder": """decoder : Calibration, PlugIn, PooledCalibration, Scores, str or None, default=None
    Learned from out-of-fold scores of the training samples (four further fits), what ranks the labels. None: the scores
    do, as `Scores` says; what its `label_sets` are learned from is one further fit on at most 2000 samples, of at most
    1000 samples four to ten fits, each on other folds.""",
    "class_weight": """class_weight : {"balanced"}, dict of class to float, or None, default=None
    Of a vector of classes: the factor by which the weights of a class's samples are multiplied; "balanced": inversely
    proportional to its frequency. Scales and decoders are learned without class weights.""",
    "metric": """metric : {"euclidean", "cosine"}, default="euclidean"
    Distance by which neighbors are sought.""",
}
_MARK = re.compile(r"^( *)%\((\w+)\)s$", re.MULTILINE)


def fill_docstrings(kind: type) -> None:
    """Put the shared paragraphs in the place of marks such as %(scale)s, in the docstrings of a class and its methods."""

    def put(mark: re.Match[str]) -> str:
        return textwrap.indent(_PARAGRAPHS[mark[2]], mark[1])

    for thing in (kind, *vars(kind).values()):
        for part in (thing, getattr(thing, "fn", None)):  # scikit-learn's `available_if` keeps the function as `fn`
            text = getattr(part, "__doc__", None)
            if isinstance(text, str) and "%(" in text:
                part.__doc__ = _MARK.sub(put, text)  # type: ignore[union-attr]


class NamedEngine:
    """The parameter `approximation`, or one per view, where the name of an engine stands for it."""

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
