"""Cross-validators for multilabel targets that are stratified by labels or also by pairs of labels.

They can be used with scikit-learn's `cross_validate`, `GridSearchCV` and `cross_val_predict`. `dmo.tune` and `dmo
ingest --test-share` use the same stratification. Samples can be an array, a table, or a mapping of views.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.model_selection import BaseCrossValidator, BaseShuffleSplit

from dmo.errors import UserError
from dmo.inputs import Named, are_real, check_partial_labels, given_views, sample_count
from dmo.labels.stratification import stratified_folds

__all__ = ["MultilabelStratifiedKFold", "MultilabelStratifiedShuffleSplit"]


class _Labels(Named, BaseEstimator):
    """Placeholder for the estimator that the validation of labels requires."""


def _labels(y: Any, who: str, order: int) -> Any:
    """Convert labels to a matrix of 0 and 1 with one column per label; missing labels become 0."""
    if y is None:
        raise UserError(f"{who} stratifies by labels, got y=None; pass y")
    if order not in (1, 2):
        raise UserError(f"{who}: order = {order!r}; pass 1 to stratify by labels, or 2 to include pairs of labels")
    if hasattr(y, "tocsr"):
        return y.tocsr()
    if are_real(y):
        raise UserError(f"{who} stratifies by labels, got regression targets; use sklearn.model_selection.KFold")
    Y, known = check_partial_labels(_Labels(), y, len(y))
    return Y if known is None else Y * known


def _check_length(X: Any, n: int, who: str) -> None:
    views = None if X is None else given_views(X)
    got = (
        n if X is None else sample_count(views) if views is not None else len(X) if isinstance(X, list) else X.shape[0]
    )
    if got != n:
        raise UserError(f"{who}: X has {got} samples, and y has {n}; pass the labels of the same samples")


class _Splitter:
    """Base class of the cross-validators, which validates labels and implements `split`."""

    order: int

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Generate the row indices of the training and test samples of each split.

        Parameters
        ----------
        X : rows of shape (n, d), mapping of view to such, or None
            Samples, of which only the number is used.
        y : array-like of shape (n, L) or (n,)
            Labels of the samples: a matrix of 0 and 1, n classes, or n lists of labels. Missing labels (NaN) count as
            0.
        groups : None
            Groups are not supported, because samples of a group can be divided between training and test samples.

        Returns
        -------
        iterator of (train, test)
            Pairs of arrays with the ascending row indices of training and test samples.

        Raises
        ------
        UserError
            If `groups` is passed, y is None or contains regression targets, X and y differ in length, or a parameter
            is invalid.
        """
        who = type(self).__name__
        if groups is not None:
            raise UserError(
                f"{who} does not keep the samples of a group together, but groups were passed; pass groups=None, or "
                "use sklearn.model_selection.GroupKFold"
            )
        Y = _labels(y, who, self.order)
        _check_length(X, Y.shape[0], who)
        return self._parts(Y)

    def _parts(self, Y: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Generate the row indices of the training and test samples of each split from validated labels."""
        raise NotImplementedError


class MultilabelStratifiedKFold(_Splitter, BaseCrossValidator):  # type: ignore[misc]
    """K-fold cross-validator that preserves the frequency of every label in each fold.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, at least 2.
    order : {1, 2}, default=1
        Whether to preserve only the frequencies of labels (1), or also the frequencies of pairs of labels (2). The
        value 2 takes longer.
    random_state : int, Generator or None, default=0
        Random seed of the assignment of samples to folds.

    References
    ----------
    Sechidis, Tsoumakas, Vlahavas 2011, "On the stratification of multi-label data", algorithm 1.

    Szymanski, Kajdanowicz 2017, "A network perspective on stratification of multi-label data" (pairs of labels).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.model_selection import MultilabelStratifiedKFold
    >>> Y = np.repeat([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 1]], 3, axis=0)
    >>> [Y[test].sum(axis=0).tolist() for _, test in MultilabelStratifiedKFold(3, random_state=1).split(Y, Y)]
    [[2, 3, 1], [2, 3, 1], [2, 3, 1]]
    """

    def __init__(self, n_splits: int = 5, *, order: int = 1, random_state: int | np.random.Generator | None = 0):
        self.n_splits = n_splits
        self.order = order
        self.random_state = random_state

    def _parts(self, Y: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        fold = stratified_folds(Y, int(self.n_splits), self.random_state, self.order)
        for number in range(self.n_splits):
            yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds.

        Parameters
        ----------
        X, y, groups : None
            Not used, present for compatibility with scikit-learn.

        Returns
        -------
        int
            Number of folds.
        """
        return self.n_splits


class MultilabelStratifiedShuffleSplit(_Splitter, BaseShuffleSplit):  # type: ignore[misc]
    """Cross-validator with random splits that preserve the frequency of every label.

    Parameters
    ----------
    n_splits : int, default=10
        Number of independent random splits.
    test_size : float in (0, 1), or int, default=0.1
        Fraction or number of test samples. The stratification can change the actual number slightly.
    train_size : float in (0, 1), int or None, default=None
        Fraction or number of training samples. By default, all samples except the test samples are used.
    order : {1, 2}, default=1
        Whether to preserve only the frequencies of labels (1), or also the frequencies of pairs of labels (2). The
        value 2 takes longer.
    random_state : int or None, default=0
        Random seed of the splits.

    References
    ----------
    Sechidis, Tsoumakas, Vlahavas 2011, "On the stratification of multi-label data".

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.model_selection import MultilabelStratifiedShuffleSplit
    >>> Y = np.repeat([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 1]], 5, axis=0)
    >>> train, test = next(MultilabelStratifiedShuffleSplit(1, test_size=0.2, random_state=2).split(Y, Y))
    >>> Y[train].sum(axis=0).tolist(), Y[test].sum(axis=0).tolist()
    ([8, 12, 4], [2, 3, 1])
    """

    def __init__(
        self,
        n_splits: int = 10,
        *,
        test_size: float = 0.1,
        train_size: float | None = None,
        order: int = 1,
        random_state: int | None = 0,
    ):
        super().__init__(n_splits, test_size=test_size, train_size=train_size, random_state=random_state)
        self.order = order

    def _parts(self, Y: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        who, n = type(self).__name__, Y.shape[0]
        test = self._share("test_size", self.test_size, n)
        train = 1 - test if self.train_size is None else self._share("train_size", self.train_size, n)
        if train <= 0 or train + test > 1 + 1e-12:
            raise UserError(
                f"{who}: train_size {train:.3g} and test_size {test:.3g} are fractions whose sum must be at most 1; "
                "reduce one of them"
            )
        shares = (test, train) if train + test > 1 - 0.5 / n else (test, train, 1 - test - train)
        for rng in np.random.default_rng(self.random_state).spawn(self.n_splits):
            part = stratified_folds(Y, shares, rng, self.order)
            yield np.flatnonzero(part == 1), np.flatnonzero(part == 0)

    def _share(self, name: str, size: float, n: int) -> float:
        share = size / n if isinstance(size, (int, np.integer)) else size
        if not 0 < share < 1:
            raise UserError(
                f"{type(self).__name__}: {name} = {size!r} of {n} samples; "
                f"pass a fraction between 0 and 1, or a number below {n}"
            )
        return float(share)
