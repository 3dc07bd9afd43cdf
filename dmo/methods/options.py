"""Parameters of estimators: type aliases, shared parameter objects, and shared paragraphs of docstrings."""

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
"""Type of a kernel: an object or its name."""
KernelSpecs = str | Kernel | Mapping[str, Any] | Sequence[Any]
"""Type of `kernel`: one for all views, or one per view."""
Ridges = float | Mapping[str, float] | Sequence[float]
"""Type of `ridge`: one for all views, or one per view."""
LabelRidges = float | np.ndarray | Mapping[str, Any] | Sequence[Any]
"""Type of `ridge` with an optional array of one value per label."""
Weights = Mapping[str, float] | Sequence[float] | Literal["equal", "tagprop", "alignment"] | None
"""Type of the weights of views: numbers, or a method that learns them."""
Decoder = str | Calibration | PlugIn | PooledCalibration | Scores | None
"""Type of `decoder`: an object of dmo.decoders, "calibrated", "probabilities", or a metric such as "f1@5"."""
Engine = Literal["auto", "exact", "nystrom", "meka", "best"] | Exact | Nystrom | Meka | BestLowRank
"""Type of `approximation`: an exact or a low-rank kernel; "auto" selects by size."""
GivenEngine = Literal["exact", "nystrom", "meka", "best"] | Exact | Nystrom | Meka | BestLowRank
"""Type of `approximation` without "auto"."""
LinearEngine = Literal["auto", "exact", "krylov", "nystrom"] | Exact | Krylov | Nystrom
"""Type of `approximation` for linear problems, which can also be solved in a Krylov subspace."""
AnyEngine = (
    Literal["auto", "exact", "krylov", "nystrom", "meka", "best"] | Exact | Krylov | Nystrom | Meka | BestLowRank
)
PAIRS_TOO = Need(
    "needs a whole number of at least 1, or 'all' for all pairs",
    lambda value: (isinstance(value, str) and value == "all") or COUNT.holds(value),
    ("all",),
)
"""Constraint on `Graph.n_neighbors` for methods that also support all pairs of samples."""


@dataclass(eq=False, repr=False)
class Graph(ParameterObject):
    """Graph of nearest neighbors: its edges and their weights.

    Instead of an object, an estimator accepts the value of `weight` (a name or a matrix) or of `n_neighbors` (a
    number). None, for an option or the whole graph, selects the default of the estimator, which is documented there.

    Parameters
    ----------
    n_neighbors : int, "all" or None, default=None
        Number of neighbors of each sample. "all" selects all pairs of at most 4000 samples (`MOPE` only).
    weight : str, ndarray of shape (n, n), or None, default=None
        Weights of the edges: "constant", "gaussian", "local", "inverse", "cosine", "pearson", ..., see
        `dmo.graphs.weigh`. A matrix must be symmetric.
    bandwidth : float, "mean" or None, default=None
        Bandwidth of the weights "gaussian", in units of the distance. "mean" is the mean length of the edges.
    tau : float or None, default=None
        Constant of the weights "inverse", above 0; the weights are at most 1 / tau.
    local : int or None, default=None
        Number k of the weights "local": the distance to the k-th neighbor is the local scale.
    adjacency : {"union", "mutual", "sum"} or None, default=None
        "union" connects two samples if at least one is a neighbor of the other, "mutual" if both are. "sum" has the
        edges of "union"; mutual edges count twice.
    metric : {"euclidean", "cosine"} or None, default=None
        Distance for the neighbor search.
    search : {"exact", "approximate"} or None, default=None
        Algorithm of the neighbor search.
    selection : {"features", "proximity"} or None, default=None
        Neighbors are the nearest samples in `metric`, or the samples with the largest proximity (`MOPE` only), which
        needs time proportional to n^2.

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
        """Convert a value to a graph; an integer is the number of neighbors."""
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
    """Iterative solver, its tolerance and its maximum number of steps.

    Instead of an object, an estimator accepts the value of `method`. None selects the default of the estimator, which
    is documented there.

    Parameters
    ----------
    method : {"krylov", "als", "plain-als"} or None, default=None
        "krylov" is a block Krylov iteration started from the labels. "plain-als" is the alternating least squares
        method of the paper (orthogonal iteration), which can need hundreds of steps. "als" accelerates it: each step
        selects the best directions in the span of the new and the last two iterates.
    tol : float or None, default=None
        Tolerance for the residual of the eigenpairs, relative to the largest eigenvalue.
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
    """Combination of label proximities g and feature weights w of the same pairs in `MOPE`.

    Instead of an object, `MOPE` accepts the value of `how`.

    Parameters
    ----------
    how : {"priority", "hadamard", "sum", "labels", "features"}, default="priority"
        Name of the combination, see `dmo.labels.proximities.combine`.
    a : float, default=1.0
        Exponent of g in "priority", above 0.
    b : float, default=1.0
        Exponent of w in "priority", above 0.
    beta : float, default=1.0
        Strength with which w weakens g in "priority", at least 0; fraction of g in "sum".
    label_share : float in [0, 1], default=1.0
        Parameter gamma of "priority", the fraction of the label term.

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
    """Options of individual methods of `TraceEmbedding` and `MESD`; an option that the method does not use is an error.

    Instead of an object, an estimator accepts the value of `mixing`.

    Parameters
    ----------
    mixing : float in [0, 1] or None, default=None
        Fraction of the labels: beta of SLVM, MORP and MLSI, 1 - beta of SELF, 1 - lambda of "mix". None: 0.5.
    shrinkage : float in [0, 1] or None, default=None
        Parameter s of the constraint (1 - s) X'X + s I of MDDM. None: 0.5.
    n_repelled : int or None, default=None
        Number of neighbors of other classes (mfa: closest pairs per class). None: 15.
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
        Constraint of "mix". "mixed" combines the constraints of both methods with the same weights as their objectives.
        "supervised" uses the constraint of the supervised method, and "projection" is P'P = I. None: "mixed".

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
    view. If several views are in memory, rows of NaN mark samples that are missing from a view.""",
    "X_new": """X : mapping of view to rows, list of rows, or rows
    The same views as in fit, for m samples: arrays of shape (m, d), in chunks of whole rows.""",
    "y": """y : array-like of shape (n, L) or (n,)
    Labels of 0 and 1, n classes, or n lists of labels.""",
    "y_unused": """y : object, default=None
    Ignored; present for compatibility with pipelines.""",
    "prepare": """prepare : Prepare, str or mapping of view to str, default="auto"
    Preprocessing of the rows: splitting into views, imputation and scaling, see `Prepare`. A name, or one name per
    view, is short for Prepare(scale=...).""",
    "random_state": """random_state : int or None, default=0
    Seed of all random choices, such as landmarks, starting vectors, folds and samples of rows.""",
    "approximation": """approximation : {"auto", "exact", "nystrom", "meka", "best"}, Exact, Nystrom, ..., default="auto"
    "exact" uses full kernel matrices; `Exact` sets their storage and precision. The others use a low-rank kernel per
    view, which needs one pass over the data and small dense matrices. "auto" is exact if the kernels fit in memory. The
    names are short for Nystrom(), Meka() and BestLowRank().""",
    "distances": """distances : {"auto", "l1", "l2", "chi2"}, or mapping of view to these, default="auto"
    Distance of each view, divided by its mean over the training samples. "l1" and "chi2" compare histograms (rows
    scaled to sum 1), "l2" is the Euclidean distance. "auto", also for views without an entry in a mapping, is "chi2" if
    the feature store declares the view to be histograms, otherwise "l2".""",
    "targets": """targets : {"auto", "labels", "real"}, default="auto"
    Type of y. With "real", y holds regression targets: `predict` returns numbers in the units of y, and scikit-learn
    treats the estimator as a regressor. "auto" selects "real" if y is a matrix of floats with a value other than 0, 1,
    -1 and NaN, otherwise "labels".""",
    "decoder": """decoder : Calibration, PlugIn, PooledCalibration, Scores, str or None, default=None
    Decoder that ranks labels; it is learned from out-of-fold scores of the training samples, which need four additional
    fits. With None, scores rank the labels, as described in `Scores`. Its `label_sets` need one additional fit on at
    most 2000 samples; up to 1000 samples, they need four to ten fits on different folds.""",
    "class_weight": """class_weight : {"balanced"}, dict of class to float, or None, default=None
    For a vector of classes: factor on the weight of samples by class; "balanced" is inversely proportional to the class
    frequency. Scales and decoders are learned without class weights.""",
    "metric": """metric : {"euclidean", "cosine"}, default="euclidean"
    Distance for the neighbor search.""",
}
_MARK = re.compile(r"^( *)%\((\w+)\)s$", re.MULTILINE)


def fill_docstrings(kind: type) -> None:
    """Replace marks such as %(decoder)s in the docstrings of a class and its methods by shared paragraphs."""

    def put(mark: re.Match[str]) -> str:
        return textwrap.indent(_PARAGRAPHS[mark[2]], mark[1])

    for thing in (kind, *vars(kind).values()):
        for part in (thing, getattr(thing, "fn", None)):  # scikit-learn's `available_if` keeps the function as `fn`
            text = getattr(part, "__doc__", None)
            if isinstance(text, str) and "%(" in text:
                part.__doc__ = _MARK.sub(put, text)  # type: ignore[union-attr]


class NamedEngine:
    """Descriptor of the parameter `approximation` that converts names of engines to objects."""

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
