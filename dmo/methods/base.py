"""What every estimator is and shares: its arguments' types and words, lazy rows, the result of a sweep, its parts on disk.

A method of arrays becomes one of dask arrays by `row_by_row`: nothing is computed until the result is, chunks of rows stay
what they are, and the fitted model is one node of the graph, not a part of every task.
"""

from __future__ import annotations

import copy
import functools
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import scipy.sparse
from dask.base import tokenize
from dask.delayed import delayed
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

import dmo
from dmo.blocks import Rows
from dmo.decide.decoders import Calibration, PlugIn, PooledCalibration, Scores
from dmo.decide.out_of_fold import LeftOut
from dmo.errors import ENGINES, UserError
from dmo.fit.exact import Exact
from dmo.fit.krylov import Krylov
from dmo.inputs import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SHARE,
    Data,
    Named,
    Need,
    Preparation,
    Prepare,
    as_views,
    check_parameters,
    check_view_names,
    check_views,
    check_weights,
    one_of,
    only_view,
    optional,
)
from dmo.inputs import ClassWeight as ClassWeight
from dmo.inputs import Inputs as Inputs
from dmo.inputs import Outputs as Outputs
from dmo.inputs import RowWeights as RowWeights
from dmo.kernels import Kernel
from dmo.kernels.composite import is_pairwise
from dmo.labels.proximities import Combination
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
from dmo.methods.catalog import SUPERVISED, UNSUPERVISED
from dmo.methods.quadratic_forms import NEEDS
from dmo.parameters import ParameterObject, Parametrized, Part, parts_of, refuse_unknown
from dmo.persistence import Persistent, decode, encode, with_prefix, without_prefix

if TYPE_CHECKING:
    import dask.array as da

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
        Block Krylov started from the labels, or a paper's alternating least squares with warm-started block CG.
    tol : float or None, default=None
        Of eigenproblems, the residual of the eigenpairs relative to the largest eigenvalue; "als": relative change of the
        objective.
    max_iter : int or None, default=None
        Steps; a ConvergenceWarning says when they ran out.

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


_ROW, _COLUMN = 0, 1
"""Dimensions of the result; the columns of every view have a further one."""
Method = TypeVar("Method", bound=Callable[..., Any])


def row_by_row(method: Method) -> Method:
    """Let a method of m rows take dask and xarray too, and return what it is given."""
    # Its estimator says in `_row_shape(name)` what a row of the result is: its columns (None: a number) by name, and
    # its type.
    name = method.__name__

    @functools.wraps(method)
    def wrapper(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        labeled = _labeled_rows(X)
        if labeled is not None:
            check_is_fitted(self)
            return _labeled(self, name, wrapper(self, _unlabeled(X), *args, **kwargs), *labeled)
        if not _is_dask(X):
            return method(self, X, *args, **kwargs)
        check_is_fitted(self)
        if kwargs.get("as_names") or len(args) > 1:
            raise UserError("a dask array holds no names; leave as_names out, and look the columns up in classes_")
        if args:
            kwargs |= {"top": args[0]}
        partial = self._takes_partial_views
        return _blocks(self, name, check_view_names(self, _arrays(X), partial), kwargs)

    return wrapper  # type: ignore[return-value]


def _is_dask(X: Any) -> bool:
    """A dask array or DataFrame, or views of which one is."""
    views = as_views(X)
    return any(hasattr(part, "__dask_graph__") for part in ([X] if views is None else views.values()))


def _arrays(X: Any) -> Any:
    """dask DataFrames as arrays; their rows stay uncounted."""
    views = as_views(X)
    if views is None:
        return X.to_dask_array() if hasattr(X, "to_dask_array") else X
    return {name: _arrays(view) if as_views(view) is None else view for name, view in views.items()}


def _blocks(model: Any, method: str, views: Mapping[str, Any], kwargs: dict[str, Any]) -> da.Array:
    """The method on every chunk of rows of the views; those in memory are cut like the others."""
    import dask.array as da

    chunks = next(view.chunks[0] for view in views.values() if hasattr(view, "__dask_graph__"))
    parts = []
    for number, view in enumerate(views.values()):
        parts += [_aligned(view, chunks), (_ROW, _COLUMN + 1 + number)]
    columns, dtype = model._row_shape(method, **kwargs)
    frozen = copy.copy(model)  # a later fit of the model does not change what was asked of this one
    token = tokenize(model, method, sorted(kwargs.items()), *views.values())
    node = delayed(frozen, name=f"{type(model).__name__}-{token}", traverse=False)
    sparse = method == "predict" and getattr(model, "_predicts_sparse", False)
    empty = scipy.sparse.csr_array((0, 0), dtype=dtype) if sparse else None
    out = (_ROW,) if columns is None else (_ROW, _COLUMN)
    return da.blockwise(
        _apply,
        out,
        node,
        None,
        *parts,
        method=method,
        names=list(views),
        options=kwargs,
        name=f"{method}-{token}",
        new_axes={} if columns is None else {_COLUMN: len(columns)},
        dtype=dtype,
        meta=np.empty((0,) * len(out), dtype) if empty is None else empty,
        concatenate=False,
    )


def _aligned(view: Any, chunks: tuple[float, ...]) -> da.Array:
    """A view in these chunks of whole rows; rows that nobody has counted are left in theirs."""
    import dask.array as da

    if not hasattr(view, "__dask_graph__"):
        return da.from_array(view, chunks=(chunks, -1))
    wanted: dict[int, Any] = {} if view.chunks[0] == chunks or np.isnan(chunks).any() else {0: chunks}
    wanted |= {1: -1} if view.numblocks[1] > 1 else {}
    return view.rechunk(wanted) if wanted else view


def _apply(model: Any, *blocks: Any, method: str, names: list[str], options: dict[str, Any]) -> Any:
    """One chunk of rows; a block comes as the list of its chunks of columns, of which there is one."""
    views = {name: block[0] if isinstance(block, list) else block for name, block in zip(names, blocks, strict=True)}
    found = getattr(model, method)(views, **options)
    return found if scipy.sparse.issparse(found) else np.asarray(found)


def _labeled_rows(X: Any) -> tuple[str, dict[str, Any]] | None:
    """Name of the samples' dimension and the coordinates that belong to samples alone; None where X is not xarray's."""
    views = as_views(X)
    first: Any = X if views is None else next((view for view in views.values() if view is not None), None)
    if not (hasattr(first, "dims") and hasattr(first, "coords")):
        return None
    samples = first.dims[0]
    return samples, {name: part for name, part in first.coords.items() if part.dims == (samples,)}


def _unlabeled(X: Any) -> Any:
    views = as_views(X)
    return X.data if views is None else {name: getattr(view, "data", view) for name, view in views.items()}


def _labeled(model: Any, name: str, values: Any, samples: str, coordinates: dict[str, Any]) -> Any:
    import xarray as xr  # whoever passes its arrays has it

    if not hasattr(values, "shape"):
        return values
    known = dict(coordinates)
    dims = [samples]
    if values.ndim == 2:
        dims.append("component" if name == "transform" else "label")
        known[dims[1]] = np.asarray(model._row_shape(name)[0])
    return xr.DataArray(values, dims=dims, coords=known, name=name)


@dataclass(frozen=True)
class SweepResult:
    """What a sweep found: the scores of all settings, and the best one refitted.

    Attributes
    ----------
    table : list of dict
        One per setting: its parameters, "mean", "std" and "folds" (the scores).
    metric : str
        Name of the score.
    best_params : dict
        The best setting.
    best_score : float
        Its mean score.
    best_estimator : estimator
        A clone with that setting, fitted on all samples unless refit was False.
    tried : int
        How many settings were scored, those that a search left behind on fewer samples among them.

    Examples
    --------
    >>> from dmo.methods.base import SweepResult
    >>> SweepResult([{"ridge": 1.0, "mean": 0.5}], "f1@5", {"ridge": 1.0}, 0.5, None).best_params
    {'ridge': 1.0}
    """

    table: list[dict[str, Any]]
    metric: str
    best_params: dict[str, Any]
    best_score: float
    best_estimator: Any
    tried: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tried", self.tried or len(self.table))

    @property
    def best_params_(self) -> dict[str, Any]:
        """As scikit-learn's searches name it."""
        return self.best_params

    @property
    def best_score_(self) -> float:
        """As scikit-learn's searches name it."""
        return self.best_score

    @property
    def best_estimator_(self) -> Any:
        """As scikit-learn's searches name it."""
        return self.best_estimator

    @property
    def cv_results_(self) -> dict[str, Any]:
        """The table in the form of scikit-learn's searches, for `pandas.DataFrame`."""
        found: dict[str, Any] = {"params": [], "mean_test_score": [], "std_test_score": []}
        for row in self.table:
            found["params"].append({k: v for k, v in row.items() if k not in ("mean", "std", "folds")})
        keys = dict.fromkeys(key for params in found["params"] for key in params)
        found |= {f"param_{key}": [params.get(key) for params in found["params"]] for key in keys}
        means = np.array([row["mean"] for row in self.table])
        found |= {"mean_test_score": means, "std_test_score": np.array([row["std"] for row in self.table])}
        found["rank_test_score"] = 1 + (means[None, :] > means[:, None]).sum(axis=1)
        return found

    def to_meta(self) -> dict[str, Any]:
        """Describe all but the estimator as JSON, for its model store.

        Returns
        -------
        dict
            The table, the metric and the best setting; what no model can hold as text.
        """
        table = [{key: _plain(value) for key, value in row.items()} for row in self.table]
        best = {key: _plain(value) for key, value in self.best_params.items()}
        found = {"table": table, "metric": self.metric, "best_params": best, "best_score": self.best_score}
        return found | {"tried": self.tried}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any], estimator: Any) -> Self:
        """Make what `to_meta` described.

        Parameters
        ----------
        meta : mapping
            JSON.
        estimator : estimator
            That it chose.

        Returns
        -------
        SweepResult
            The result.
        """
        table = [{str(key): decode(value) for key, value in row.items()} for row in meta["table"]]
        best = {str(key): decode(value) for key, value in meta["best_params"].items()}
        tried = int(meta.get("tried", 0))  # which models of before do not say
        return cls(table, str(meta["metric"]), best, float(meta["best_score"]), estimator, tried)


def _plain(value: Any) -> Any:
    try:
        return encode(value)
    except UserError:
        return str(value)


class _NamedEngine:
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


class Estimator(Named, Persistent, Parametrized):
    """What every estimator is: a fit of five steps, parameters that are what `_needs` says, errors that begin with its name.

    A method says `_read` and `_learn`. What is asked of all methods is written once: in `Data`, which a fit reads, in the
    groups that an engine makes of views, or in `Annotator._decide`.
    """

    _needs: ClassVar[dict[str, Need]] = {}
    _common: ClassVar[dict[str, Need]] = {"random_state": SEED, "tol": POSITIVE, "max_iter": COUNT}
    """What parameters of these names must be in every class that has them."""
    approximation: Any = _NamedEngine()
    _prepare = Part(Prepare, scale="auto", impute=None, views=None)
    _lacks_rows = False  # whether views may lack samples of the fit

    def _fit(self, X: Inputs, y: Outputs | None = None, sample_weight: RowWeights = None) -> Self:
        """The fit of every estimator."""
        check_parameters(self)
        self._begin()
        # 1 read: rows as they are prepared, labels or outputs, weights, what is unknown
        data = self._read(self._checked(X, reset=True), y, sample_weight)
        # 2 groups, 3 solve, 4 functions: views under an engine, the method's equations, and functions of new rows
        left = self._learn(data)
        # 5 decide: from scores to rankings, label sets and probabilities
        self._decide(data, left)
        return self

    def _begin(self) -> None:
        """Refuse parameters that do not go together, before anything is read."""

    def _checked(self, X: Any, reset: bool = False) -> Mapping[str, Rows]:
        """Views, checked and prepared; with `reset` they are those of a fit."""
        views = check_views(self, X, reset, self._lacks_rows if reset else self._takes_partial_views)
        if self.one_view:
            only_view(views)
        return views

    def _read(self, views: Mapping[str, Rows], y: Any, sample_weight: Any) -> Data:
        """What the method learns from: without labels the views, and how often their samples count."""
        return Data.of(views, weights=check_weights(sample_weight, views), passive=True)

    def _learn(self, data: Data) -> LeftOut | None:
        """Solve the method's equations and keep its functions; returns what the fit says of samples that it has not seen."""
        raise NotImplementedError

    def _decide(self, data: Data, left: LeftOut | None) -> None:
        """Learn what is said of new samples besides their coordinates."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__:  # parts that are no estimators by themselves have words too
            if base.__module__.startswith("dmo.methods"):
                fill_docstrings(base)

    def set_params(self, **given: Any) -> Self:
        """Set parameters, those of its objects too ("graph__n_neighbors"), where a name may stand for the object.

        Parameters
        ----------
        **given : object
            Values by parameter.

        Returns
        -------
        estimator
            This estimator.

        Raises
        ------
        UserError
            For a parameter that it has not, or has not any more.
        """
        kind: Any = type(self)
        refuse_unknown(kind, given)
        for name in dict.fromkeys(name.partition("__")[0] for name in given if "__" in name):
            value = given.get(name, getattr(self, name))
            if not isinstance(value, BaseEstimator):
                for part in parts_of(kind):
                    if part.parameter == name:
                        given = {name: part.kind._named(value)} | {
                            key: own for key, own in given.items() if key != name
                        }
        return super().set_params(**given)

    @property
    def _takes_partial_views(self) -> bool:
        """Whether new samples may lack some of the views."""
        return False

    def _row_shape(self, method: str, **options: Any) -> tuple[np.ndarray | None, np.dtype]:
        """See `row_by_row`: coordinates, unless a class gives something else."""
        return self.get_feature_names_out(), np.dtype(np.float64)  # type: ignore[attr-defined]

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        kernel = getattr(self, "kernel", getattr(getattr(self, "base", None), "kernel", None))
        # of one view: views side by side are no square, and what splits samples cannot tell which of them are kernels
        tags.input_tags.pairwise = isinstance(kernel, str | Kernel) and is_pairwise(kernel)
        return tags

    def _shared_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays: dict[str, Any] = {}
        prepared: dict[str, Preparation] = getattr(self, "preparations_", {})
        for view, preparation in prepared.items():
            arrays |= with_prefix(f"preparations/{view}", preparation.to_arrays())
        meta: dict[str, Any] = {"scales": {view: found.scale for view, found in prepared.items()}} if prepared else {}
        tuning: SweepResult | None = getattr(self, "tuning_", None)
        return arrays, meta if tuning is None else meta | {"tuning": tuning.to_meta()}

    def _restore_shared(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        if "tuning" in meta:
            self.tuning_ = SweepResult.from_meta(meta["tuning"], self)
        if "scales" in meta:
            self.preparations_ = {
                view: Preparation.from_arrays(
                    without_prefix(f"preparations/{view}", arrays), scale, self.view_widths_[view]
                )
                for view, scale in meta["scales"].items()
            }
