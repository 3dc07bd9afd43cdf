"""Homogeneity analysis (multiple correspondence analysis) of categorical columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from dmo.blocks import rows
from dmo.errors import UserError
from dmo.estimators.arguments import Inputs, Outputs, RowWeights
from dmo.estimators.base import Estimator
from dmo.estimators.lazy import row_by_row
from dmo.linalg.smoothers import LinearSmoother
from dmo.methods.homogeneity.operators import HomogeneityMap, krylov
from dmo.validation import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SINGLE,
    Need,
    check_parameters,
    check_weights,
    missing_entries,
)


class HomogeneityAnalysis(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Homogeneity analysis: one space for the samples and the categories of J categorical columns.

    Object scores are the top eigenvectors of H [mean_j G_j (G_j'G_j)^-1 G_j'] H with indicator matrices G_j; a category
    lies at the mean of its samples, a new sample at the mean of its categories. The eigenvalues are those of multiple
    correspondence analysis of the indicator matrix.

    Parameters
    ----------
    n_components : int, default=2
        Dimensions of the space, at most the categories less the columns, and fewer than the samples.
    ridge : float, default=1e-12
        Relative to n, keeps rare categories finite; at least 0 (1e-12: none).
    tol : float, default=1e-9
        Residual of the eigenpairs relative to the largest eigenvalue.
    max_iter : int, default=200
        Block steps of the eigenproblem.
    %(random_state)s

    Attributes
    ----------
    embedding_ : ndarray of shape (n, n_components)
        Object scores, orthonormal.
    eigenvalues_ : ndarray of shape (n_components,)
        Descending.
    quantifications_ : list of ndarray of shape (categories of the column, n_components)
        Places of the categories, one array per column.
    categories_ : list of ndarray
        Categories of every column, sorted.
    n_components_ : int
        Dimensions of the space.
    n_iter_ : int
        Steps taken.

    References
    ----------
    Gifi 1990, chapter 3; Xiong, Szedmak, Piater 2014, section 2.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import HomogeneityAnalysis
    >>> things = np.array([["red", "round"], ["red", "square"], ["blue", "round"], ["blue", "square"], ["red", "round"]])
    >>> model = HomogeneityAnalysis(n_components=2).fit(things)
    >>> model.eigenvalues_.round(2).tolist()
    [0.58, 0.42]
    >>> model.transform([["blue", "round"]]).shape
    (1, 2)
    """

    one_view = True
    _needs: ClassVar[dict[str, Need]] = {
        "n_components": COUNT,
        "ridge": NOT_NEGATIVE,
        "tol": POSITIVE,
        "max_iter": COUNT,
        "random_state": SEED,
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        ridge: float = 1e-12,
        tol: float = 1e-9,
        max_iter: int = 200,
        random_state: int | None = 0,
    ):
        self.n_components = n_components
        self.ridge = ridge
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Inputs, y: Outputs | None = None, sample_weight: RowWeights = None) -> Self:
        """Learn the coordinates of samples and categories.

        Parameters
        ----------
        X : array-like of shape (n, J), or a mapping with one view
            Categories: numbers or strings. A sample takes no part in the columns where it has NaN or None.
        %(y_unused)s
        sample_weight : array-like of shape (n,) or None, default=None
            How often every sample counts.

        Returns
        -------
        HomogeneityAnalysis
            This estimator, fitted.

        Raises
        ------
        UserError
            For more components than the categories span.
        """
        check_parameters(self)
        X = self._table(X, reset=True)
        given = check_weights(sample_weight, {SINGLE: X})
        weights = np.ones(len(X)) if given is None else given.labels
        used = weights > 0
        n, known = int(used.sum()), ~missing_entries(X)
        self.categories_ = [np.unique(column[has & used]) for column, has in zip(X.T, known.T, strict=True)]
        if not all(len(categories) for categories in self.categories_):
            column = next(j for j, categories in enumerate(self.categories_) if not len(categories))
            raise UserError(f"column {column} has no category in any sample; leave it out")
        indicators = self._indicators(X[used])
        freedom = min(n - 1, sum(G.shape[1] - 1 for G in indicators))
        if not 1 <= self.n_components <= freedom:
            raise UserError(
                f"n_components = {self.n_components}, but {n} samples in "
                f"{sum(G.shape[1] for G in indicators)} categories of {len(indicators)} columns span {freedom} dimensions"
            )
        parts = [np.where(has, weights, 0.0)[used] for has in known.T]
        rows = [np.sqrt(part)[:, None] for part in parts]
        solvers = [LinearSmoother(R * G, self.ridge * weights.sum()) for R, G in zip(rows, indicators, strict=True)]
        # values at a sample whose category is missing are 0, as its row of the indicators is
        smoothers = [
            lambda B, R=R, G=G, solver=solver: G @ solver.loadings(R * B)
            for R, G, solver in zip(rows, indicators, solvers, strict=True)
        ]
        apply = HomogeneityMap(smoothers, [1.0] * len(parts), parts)
        start = apply.roots * np.hstack(indicators)
        pairs = krylov(apply, n, self.n_components, start, self.tol, self.max_iter, self.random_state)
        coordinates = apply.coordinates(pairs.vectors)
        self.embedding_ = np.zeros((len(X), self.n_components))
        self.embedding_[used] = coordinates
        self.eigenvalues_, self.n_iter_ = pairs.values, pairs.steps
        self.quantifications_ = [solver.loadings(R * coordinates) for R, solver in zip(rows, solvers, strict=True)]
        self.n_components_ = self._n_features_out = self.n_components
        return self

    @row_by_row
    def transform(self, X: Inputs) -> np.ndarray:
        """Give samples their object scores.

        Parameters
        ----------
        X : array-like of shape (m, J), or a mapping with one view
            Categories, all of them known from fit, or NaN or None, which the mean leaves out.

        Returns
        -------
        ndarray of shape (m, n_components)
            Object scores.

        Raises
        ------
        UserError
            For a category that is unknown, and for a sample without any.
        """
        check_is_fitted(self)
        X = self._table(X, reset=False)
        parts = [G @ Q for G, Q in zip(self._indicators(X), self.quantifications_, strict=True)]
        count = (~missing_entries(X)).sum(axis=1)
        if not count.all():
            raise UserError(f"sample {int(np.flatnonzero(count == 0)[0])} has no category in any column; leave it out")
        return np.asarray(sum(parts)) / count[:, None]

    def _table(self, X: Any, reset: bool) -> np.ndarray:
        """The columns of an array, or of the one view of a mapping, in memory."""
        view, columns = _one_view(X)
        try:
            columns = validate_data(
                self,
                columns,
                dtype=None,
                reset=reset,
                ensure_min_samples=2 if reset else 1,
                ensure_all_finite="allow-nan",
            )
        except ValueError as error:
            raise UserError(str(error)) from error
        if reset:
            self.view_widths_ = {view: columns.shape[1]}
        return columns

    def _indicators(self, X: np.ndarray) -> list[np.ndarray]:
        missing = missing_entries(X)
        if missing.any():  # any category stands in for them until their rows become zeros
            first = np.array([categories[0] for categories in self.categories_], X.dtype)
            X = np.where(missing, first, X)
        encoder = OneHotEncoder(categories=self.categories_, sparse_output=False, handle_unknown="error")
        try:
            joint = encoder.fit(X).transform(X)
        except ValueError as error:
            raise UserError(f"{error}; fit on every category that will occur") from error
        widths = np.cumsum([len(categories) for categories in self.categories_])[:-1]
        return [G * ~absent[:, None] for G, absent in zip(np.split(joint, widths, axis=1), missing.T, strict=True)]

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {"embedding": self.embedding_, "eigenvalues": self.eigenvalues_}
        for j, (categories, coordinates) in enumerate(zip(self.categories_, self.quantifications_, strict=True)):
            kept = categories.astype(str) if categories.dtype == object else categories
            arrays |= {f"categories/{j}": kept, f"quantifications/{j}": coordinates}
        return arrays, {"columns": len(self.categories_), "n_iter": self.n_iter_}

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.embedding_, self.eigenvalues_, self.n_iter_ = arrays["embedding"], arrays["eigenvalues"], meta["n_iter"]
        self.categories_ = [arrays[f"categories/{j}"] for j in range(meta["columns"])]
        self.quantifications_ = [arrays[f"quantifications/{j}"] for j in range(meta["columns"])]
        self.n_components_ = self._n_features_out = self.embedding_.shape[1]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        tags.input_tags.categorical = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags


def _one_view(X: Any) -> tuple[str, Any]:
    if not isinstance(X, Mapping):
        return SINGLE, X
    if len(X) != 1:
        raise UserError(f"takes one view, got {list(X)}; pass the one whose columns are categories")
    view, source = next(iter(X.items()))
    return str(view), rows(source)
