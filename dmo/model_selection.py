"""Cross-validators for many labels: every part has its share of each label, rare ones too, and of pairs of labels.

They are what `dmo.tune` and `dmo ingest --test-share` split by, for scikit-learn's `cross_validate`, `GridSearchCV` and
`cross_val_predict`. Samples may be one array, a table, or views by name.
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
    """Who reads labels, as an estimator does, and says whose message it is."""


def _labels(y: Any, who: str, order: int) -> Any:
    """0 and 1 of every label (n x L), unknown ones 0."""
    if y is None:
        raise UserError(f"{who} splits by labels; pass y")
    if order not in (1, 2):
        raise UserError(f"{who}: order = {order!r}; 1 keeps the shares of labels, 2 those of pairs of labels too")
    if hasattr(y, "tocsr"):
        return y.tocsr()
    if are_real(y):
        raise UserError(f"{who} splits by labels, and y holds real targets; take sklearn.model_selection.KFold")
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
    """What both splitters read, and how they are asked."""

    order: int

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Give the numbers of the training and of the test samples, a split after the other.

        Parameters
        ----------
        X : rows of shape (n, d), mapping of view to such, or None
            Samples; only their number is looked at.
        y : array-like of shape (n, L) or (n,)
            Labels of 0 and 1, n classes, or n lists of labels; NaN is unknown and counts for nothing.
        groups : None
            Not supported: samples of one group may be divided between training and test. Anything but None is rejected.

        Returns
        -------
        iterator of (train, test)
            Each an ndarray of int, row indices in ascending order.

        Raises
        ------
        UserError
            If groups are passed.
        """
        who = type(self).__name__
        if groups is not None:
            raise UserError(
                f"{who} divides the samples of a group between training and test, got groups; pass groups=None, or keep "
                "groups together by sklearn.model_selection.GroupKFold"
            )
        Y = _labels(y, who, self.order)
        _check_length(X, Y.shape[0], who)
        return self._parts(Y)

    def _parts(self, Y: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Numbers of the training and of the test samples of every split, by labels that are read (n x L)."""
        raise NotImplementedError


class MultilabelStratifiedKFold(_Splitter, BaseCrossValidator):  # type: ignore[misc]
    """K folds, each with its share of every label.

    Parameters
    ----------
    n_splits : int, default=5
        Folds, at least 2.
    order : {1, 2}, default=1
        2: each fold has its share of every pair of labels too, which takes longer.
    random_state : int, Generator or None, default=0
        Seed of the order in which samples are dealt out.

    References
    ----------
    Sechidis, Tsoumakas, Vlahavas 2011, "On the stratification of multi-label data", algorithm 1; for pairs Szymanski,
    Kajdanowicz 2017, "A network perspective on stratification of multi-label data".

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
        """Give the number of folds.

        Parameters
        ----------
        X, y, groups : None
            There for scikit-learn's sake.

        Returns
        -------
        int
            `n_splits`.
        """
        return self.n_splits


class MultilabelStratifiedShuffleSplit(_Splitter, BaseShuffleSplit):  # type: ignore[misc]
    """Random divisions into training and test samples, in which each label has its share.

    Parameters
    ----------
    n_splits : int, default=10
        Divisions, each drawn anew.
    test_size : float in (0, 1), or int, default=0.1
        Share, or number, of test samples; kept as closely as the labels' shares allow.
    train_size : float in (0, 1), int or None, default=None
        Share, or number, of training samples; None: all others.
    order : {1, 2}, default=1
        2: pairs of labels have their share too.
    random_state : int or None, default=0
        Seed.

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
                f"{who}: train_size {train:.3g} and test_size {test:.3g} are shares whose sum must be at most 1"
            )
        shares = (test, train) if train + test > 1 - 0.5 / n else (test, train, 1 - test - train)
        for rng in np.random.default_rng(self.random_state).spawn(self.n_splits):
            part = stratified_folds(Y, shares, rng, self.order)
            yield np.flatnonzero(part == 1), np.flatnonzero(part == 0)

    def _share(self, name: str, size: float, n: int) -> float:
        share = size / n if isinstance(size, (int, np.integer)) else size
        if not 0 < share < 1:
            raise UserError(
                f"{type(self).__name__}: {name} = {size!r} of {n} samples; give a share between 0 and 1, or a number below {n}"
            )
        return float(share)
