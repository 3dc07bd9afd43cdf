"""Statistics of the components and views of fitted embeddings.

The statistics are loadings, explained variance, explained covariance, correlations between views, p-values of
components, and importances of views. Their definitions are the same for every method, kernel and engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import check_scoring
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import _num_samples

from dmo.blocks import dense_means, double, row_blocks, rows
from dmo.errors import UserError
from dmo.fit.moments import LABELS, Moments
from dmo.fit.row_sums import BLOCK
from dmo.inputs import (
    Inputs,
    Outputs,
    Views,
    as_views,
    check_labels,
    check_views,
    paired,
    preparing,
    sample_count,
    without_labels,
)
from dmo.inputs.containers import split_columns

__all__ = ["PermutedComponents", "SpaceDescription", "describe_space", "permuted_components", "view_importances"]

_COORDINATES, _PART = "coordinates", "part of "
_WIDEST = 10_000
"""Maximum number of columns of all views together for which their Gram matrix is kept in memory."""


@dataclass(frozen=True)
class SpaceDescription:
    """Statistics of the components of an embedding in relation to the views.

    If labels are passed, they are an additional view with the name "labels".

    Attributes
    ----------
    loadings : dict of str to ndarray of shape (d, k)
        Correlations between the columns of each view and the components.
    explained_variance : dict of str to ndarray of shape (k,)
        Fraction of the variance of each view that a component explains in addition to the previous components. The
        views are used as the model receives them after preprocessing.
    explained_covariance : dict of (str, str) to ndarray of shape (k,)
        Fraction of the squared covariance of two views that each component explains. The fractions sum to 1 if the
        components span both views.
    view_correlations : ndarray of shape (k, V, V) or None
        For each component, correlations between the embeddings of the samples from single views. None if the model
        does not compute an embedding from each view.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import TraceEmbedding
    >>> from dmo.space import describe_space
    >>> X, _ = load_iris(return_X_y=True)
    >>> describe_space(TraceEmbedding("pca").fit(X), X).loadings["x"].shape
    (4, 2)
    """

    loadings: dict[str, np.ndarray]
    explained_variance: dict[str, np.ndarray]
    explained_covariance: dict[tuple[str, str], np.ndarray]
    view_correlations: np.ndarray | None


@dataclass(frozen=True)
class PermutedComponents:
    """Eigenvalues of fits to original and permuted samples, and p-values of the components.

    Attributes
    ----------
    eigenvalues : ndarray of shape (k,)
        Eigenvalues of the fit to the original samples.
    permuted : ndarray of shape (n_permutations, k)
        Eigenvalues of the fits to permuted samples, one fit per row.
    p_values : ndarray of shape (k,)
        Fraction of all fits, including the fit to the original samples, in which the eigenvalue of each component is at
        least as large as in the fit to the original samples.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.space import PermutedComponents
    >>> PermutedComponents(np.array([0.9]), np.array([[0.2], [0.3]]), np.array([1 / 3])).p_values.round(2)
    array([0.33])
    """

    eigenvalues: np.ndarray
    permuted: np.ndarray
    p_values: np.ndarray


def describe_space(model: BaseEstimator, X: Inputs, y: Outputs | None = None) -> SpaceDescription:
    """Compute statistics of the embedding of samples by a fitted model.

    Parameters
    ----------
    model : estimator
        Fitted estimator with the method `transform`.
    X : mapping of view to rows, list of rows, or rows
        Samples in a format that the model accepts. All views together can have at most 10 000 columns.
    y : array-like of shape (n, L) or (n,), default=None
        Labels, either 0 and 1 or classes, which are described like an additional view.

    Returns
    -------
    SpaceDescription
        Statistics of the components and views on these samples.

    Raises
    ------
    UserError
        If the views have more than 10 000 columns, or the samples do not match the training samples of the model.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import TraceEmbedding
    >>> from dmo.space import describe_space
    >>> X, _ = load_iris(return_X_y=True)
    >>> describe_space(TraceEmbedding("pca").fit(X), X).explained_variance["x"].round(3)
    array([0.925, 0.053])
    """
    views = check_views(model, X, reset=False)
    n, width = sample_count(views), sum(view.shape[1] for view in views.values())
    if width > _WIDEST:
        raise UserError(
            f"the views have {width} columns, and the {width} x {width} matrix of their products is too large; "
            f"pass at most {_WIDEST} columns"
        )
    Z = np.asarray(model.transform(X), np.float64)
    labels = None if y is None else check_labels(clone(model), y, n)
    parts: Mapping[str, Callable[..., Any]] = getattr(model, "expansions_", {})
    parts = parts if len(parts) == len(views) > 1 else {}
    shifts: dict[str, Any] = {}

    def groups(where: slice) -> dict[str, Any]:
        block = {name: rows(view, where) for name, view in views.items()}
        found: dict[str, Any] = {_COORDINATES: Z[where]}
        found |= {_PART + name: np.asarray(part(block), np.float64) for name, part in parts.items()}
        found |= {} if labels is None else {LABELS: labels[where]}
        for name, some in block.items():
            shift = shifts.setdefault(name, dense_means(some))
            found[name] = double(some) if shift is None else some - shift  # Centering avoids cancellation.
        return found

    moments = Moments.collect(groups(where) for where in row_blocks(n, BLOCK)).centered()
    return _described(moments, [*views, *([] if labels is None else [LABELS])], list(parts))


def _described(moments: Moments, names: list[str], parts: list[str]) -> SpaceDescription:
    G, slices = moments.gram, moments.slices()
    z = slices[_COORDINATES]
    deviations = np.sqrt(np.maximum(G.diagonal(), 0.0))
    scale = np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)
    # Orthogonalize each coordinate against all previous coordinates by the decomposition Z = Q L'.
    inner = scale[z, None] * G[z, z] * scale[z]
    lower = np.linalg.cholesky(inner + 1e-12 * np.eye(len(inner)))
    along = {
        name: scipy.linalg.solve_triangular(lower, (G[slices[name], z] * scale[z]).T, lower=True) for name in names
    }
    variance = {
        name: (along[name] ** 2).sum(axis=1) / max(np.trace(G[slices[name], slices[name]]), np.finfo(float).tiny)
        for name in names
    }
    covariance = {}
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            cross = G[slices[name], slices[other]]
            shared = np.einsum("kd,de,ke->k", along[name], cross, along[other], optimize=True)
            covariance[name, other] = shared / max((cross**2).sum(), np.finfo(float).tiny)
    loadings = {name: scale[slices[name], None] * G[slices[name], z] * scale[z] for name in names}
    between = None
    if parts:
        places = np.stack([np.arange(slices[_PART + name].start, slices[_PART + name].stop) for name in parts])
        among = G[places.T[:, :, None], places.T[:, None, :]]  # array of shape (k, V, V)
        between = scale[places.T][:, :, None] * among * scale[places.T][:, None, :]
    return SpaceDescription(loadings, variance, covariance, between)


def permuted_components(
    model: BaseEstimator, X: Inputs, y: Outputs | None = None, n_permutations: int = 99, random_state: int | None = 0
) -> PermutedComponents:
    """Test the significance of components by a permutation test.

    The eigenvalues of a fit are compared with those of fits to samples whose labels or views are permuted.

    Parameters
    ----------
    model : estimator
        Estimator with the attribute `eigenvalues_` after its fit. Only clones of the estimator are fitted.
    X : mapping of view to rows, list of rows, or rows
        Samples in a format that the model accepts.
    y : array-like of shape (n, L) or (n,), default=None
        Labels or targets, whose rows are permuted. If None, the rows of every view except the first are permuted.
    n_permutations : int, default=99
        Number of fits to permuted samples. The smallest possible p-value is 1 / (n_permutations + 1).
    random_state : int or None, default=0
        Random seed of the permutations.

    Returns
    -------
    PermutedComponents
        Eigenvalues of all fits, and p-values of the components.

    Raises
    ------
    UserError
        If y is None and there is only one view, or if the model has no eigenvalues.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import MultiSetCCA
    >>> from dmo.space import permuted_components
    >>> X, _ = load_iris(return_X_y=True)
    >>> views = {"sepal": X[:, :2], "petal": X[:, 2:]}
    >>> permuted_components(MultiSetCCA("linear"), views, n_permutations=19).p_values.tolist()
    [0.05, 0.15]
    """
    y, _ = paired(X, y)
    X, y = without_labels(X), without_labels(y)
    views = _views(model, X)
    if y is None and (views is None or len(views) < 2):
        raise UserError("one view without labels cannot be tested by permutation; pass y, or several views")
    random = check_random_state(random_state)
    observed = _eigenvalues(model, X, y)
    permuted = np.empty((n_permutations, len(observed)))
    for values in permuted:
        if y is not None:
            permuted_y = _safe_indexing(y, random.permutation(_num_samples(y)))
            values[:] = _eigenvalues(model, X, without_labels(permuted_y))
            continue
        assert views is not None
        given = Views(views)
        first, *others = given.keys()
        mixed = {first: given[first]}
        mixed |= {name: without_labels(given[random.permutation(len(given))][name]) for name in others}
        values[:] = _eigenvalues(model, mixed, None)
    p = (1 + (permuted >= observed * (1 - 1e-9)).sum(axis=0)) / (n_permutations + 1)
    return PermutedComponents(observed, permuted, p)


def view_importances(
    model: BaseEstimator,
    X: Inputs,
    y: Outputs,
    scoring: str | Callable[..., float] | None = None,
    n_repeats: int = 5,
    random_state: int | None = 0,
) -> dict[str, np.ndarray]:
    """Compute the permutation importance of every view for the score of a fitted model.

    The importance of a view is the decrease of the score when the rows of the view are permuted.

    Parameters
    ----------
    model : estimator
        Estimator that was fitted on several views.
    X : mapping of view to rows, list of rows, or rows
        Samples, which should not be training samples of the model.
    y : array-like of shape (n, L) or (n,)
        Labels or targets of the samples.
    scoring : str, callable or None, default=None
        Metric as in scikit-learn. By default, the method `score` of the model is used.
    n_repeats : int, default=5
        Number of permutations of each view.
    random_state : int or None, default=0
        Random seed of the permutations.

    Returns
    -------
    dict of str to ndarray of shape (n_repeats,)
        For each view, the score of the original samples minus the score with the permuted view.

    Raises
    ------
    UserError
        If there is only one view. For single columns, use `sklearn.inspection.permutation_importance`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import MultiViewRidge
    >>> from dmo.space import view_importances
    >>> X, y = load_iris(return_X_y=True)
    >>> views = {"sepal": X[:, :2], "petal": X[:, 2:]}
    >>> found = view_importances(MultiViewRidge().fit(views, y), views, y)
    >>> bool(found["petal"].mean() > found["sepal"].mean())
    True
    """
    y, _ = paired(X, y)
    y, views = without_labels(y), _views(model, without_labels(X))
    if views is None or len(views) < 2:
        raise UserError(
            "got one view, expected several; permute its columns by sklearn.inspection.permutation_importance"
        )
    scorer, random, given = check_scoring(model, scoring=scoring), check_random_state(random_state), Views(views)
    whole = scorer(model, given, y)

    def loss(name: str) -> float:
        shuffled = without_labels(given[random.permutation(len(given))][name])
        return float(whole - scorer(model, Views({**dict(given.items()), name: shuffled}), y))

    return {name: np.array([loss(name) for _ in range(n_repeats)]) for name in views}


def _views(model: BaseEstimator, X: Any) -> dict[str, Any] | None:
    """Return the views by name, or None for a single view; split an array if the model defines views of its columns."""
    asked = preparing(model)
    columns = None if asked is None else asked.views
    views = as_views(X)
    return views if views is not None or columns is None else split_columns(X, columns)


def _eigenvalues(model: BaseEstimator, X: Any, y: Any) -> np.ndarray:
    fitted = clone(model).fit(X, y)
    if not hasattr(fitted, "eigenvalues_"):
        raise UserError(f"{type(model).__name__} has no eigenvalues to test; use a model with components")
    return np.asarray(fitted.eigenvalues_)
