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
from dmo.estimators.base import Estimator
from dmo.linalg.smoothers import LinearSmoother
from dmo.methods.homogeneity.operators import homogeneity_map, krylov
from dmo.validation import COUNT, NOT_NEGATIVE, POSITIVE, SEED, SINGLE, Need, check_parameters


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
    random_state : int or None, default=0
        Seed of the starting vectors.

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

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the places of samples and categories.

        Parameters
        ----------
        X : array-like of shape (n, J), or a mapping with one view
            Categories: numbers or strings.
        y : object, default=None
            Ignored; here so that pipelines can pass it.

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
        n = X.shape[0]
        self.categories_ = [np.unique(column) for column in X.T]
        indicators = self._indicators(X)
        freedom = min(n - 1, sum(G.shape[1] - 1 for G in indicators))
        if not 1 <= self.n_components <= freedom:
            raise UserError(
                f"n_components = {self.n_components}, but {n} samples in "
                f"{sum(G.shape[1] for G in indicators)} categories of {len(indicators)} columns span {freedom} dimensions"
            )
        smoothers = [LinearSmoother(G, self.ridge * n) for G in indicators]
        apply = homogeneity_map(smoothers, [1.0] * len(smoothers))
        start = np.hstack(indicators)
        pairs = krylov(apply, n, self.n_components, start, self.tol, self.max_iter, self.random_state)
        self.embedding_, self.eigenvalues_, self.n_iter_ = pairs.vectors, pairs.values, pairs.steps
        self.quantifications_ = [smoother.loadings(pairs.vectors) for smoother in smoothers]
        self.n_components_ = self._n_features_out = self.n_components
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Give samples their object scores.

        Parameters
        ----------
        X : array-like of shape (m, J), or a mapping with one view
            Categories, all of them known from fit.

        Returns
        -------
        ndarray of shape (m, n_components)
            Object scores.

        Raises
        ------
        UserError
            For a category that is unknown.
        """
        check_is_fitted(self)
        X = self._table(X, reset=False)
        parts = [G @ Q for G, Q in zip(self._indicators(X), self.quantifications_, strict=True)]
        return np.asarray(sum(parts)) / len(parts)

    def _table(self, X: Any, reset: bool) -> np.ndarray:
        """The columns of an array, or of the one view of a mapping, in memory."""
        view, columns = _one_view(X)
        try:
            columns = validate_data(self, columns, dtype=None, reset=reset, ensure_min_samples=2 if reset else 1)
        except ValueError as error:
            raise UserError(str(error)) from error
        if reset:
            self.view_widths_ = {view: columns.shape[1]}
        return columns

    def _indicators(self, X: np.ndarray) -> list[np.ndarray]:
        encoder = OneHotEncoder(categories=self.categories_, sparse_output=False, handle_unknown="error")
        try:
            joint = encoder.fit(X).transform(X)
        except ValueError as error:
            raise UserError(f"{error}; fit on every category that will occur") from error
        widths = np.cumsum([len(categories) for categories in self.categories_])[:-1]
        return np.split(joint, widths, axis=1)

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {"embedding": self.embedding_, "eigenvalues": self.eigenvalues_}
        for j, (categories, places) in enumerate(zip(self.categories_, self.quantifications_, strict=True)):
            kept = categories.astype(str) if categories.dtype == object else categories
            arrays |= {f"categories/{j}": kept, f"quantifications/{j}": places}
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
        tags.input_tags.string = True
        return tags


def _one_view(X: Any) -> tuple[str, Any]:
    if not isinstance(X, Mapping):
        return SINGLE, X
    if len(X) != 1:
        raise UserError(f"takes one view, got {list(X)}; pass the one whose columns are categories")
    view, source = next(iter(X.items()))
    return str(view), rows(source)
