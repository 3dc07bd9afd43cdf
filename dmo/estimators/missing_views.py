"""Views that samples lack, predicted from the views that they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import clone

from dmo.blocks import Rows, Subset, presence, rows
from dmo.errors import UserError
from dmo.estimators.ridge import MultiViewRidge
from dmo.validation import check_raw_views, sample_count

_RIDGES = (0.03, 0.1, 0.3, 1.0)


def impute_views(X: Any, new: Any = None, estimator: MultiViewRidge | None = None) -> dict[str, np.ndarray]:
    """Predict the rows of views that samples lack from the views that they have.

    Every incomplete view is regressed on the others, from the samples that have it. Where nothing else is known, KGHA,
    MultiSetCCA and MultiViewRidge do without the missing views; this is for what needs whole rows.

    Parameters
    ----------
    X : mapping of view to rows, or list of rows
        Two or more views of n samples each, dense or sparse, that fit in memory. Rows of NaN are samples that a view lacks;
        every sample has some view.
    new : mapping of view to rows, list of rows, or None, default=None
        Samples to complete by what X teaches; a view that none of them has may be None or left out. None: X itself.
    estimator : MultiViewRidge or None, default=None
        The regression. None: of Gaussian kernels, for each view with the ridge of .03, .1, .3 and 1 that is best on a
        fourth of its samples after learning from the others.

    Returns
    -------
    dict of str to ndarray of shape (m, d)
        All views: the rows that there are, and predictions of the others.

    Raises
    ------
    UserError
        For a single view, for a sample without any, and as `MultiViewRidge.fit`.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import impute_views
    >>> hidden = np.random.default_rng(0).normal(size=(60, 2))
    >>> views = {"a": hidden @ [[1.0, 2.0], [0.0, 1.0]], "b": hidden[:, :1] - hidden[:, 1:]}
    >>> lacking = {"a": np.where(np.arange(60)[:, None] < 5, np.nan, views["a"]), "b": views["b"]}
    >>> full = impute_views(lacking)
    >>> full["a"].shape, bool((full["a"][5:] == views["a"][5:]).all())
    ((60, 2), True)
    """
    model = MultiViewRidge("rbf") if estimator is None else clone(estimator)
    model.set_params(targets="real")
    probe = clone(model)
    old = check_raw_views(probe, X, reset=True, partial=True)
    if len(old) < 2:
        raise UserError(
            "impute_views: X is one view, and a view is predicted from others; pass a mapping of two or more"
        )
    asked = old if new is None else check_raw_views(probe, new, reset=False, partial=True)
    has = {name: _present(asked, name) for name in old}
    nothing = np.flatnonzero(~np.any(list(has.values()), axis=0))
    if nothing.size:
        raise UserError(f"impute_views: sample {nothing[0]} has no view to predict others from; leave it out")
    full: dict[str, np.ndarray] = {}
    for name, source in old.items():
        found = np.zeros((sample_count(asked), source.shape[1]))
        found[has[name]] = _rows(asked[name], np.flatnonzero(has[name])) if has[name].any() else 0.0
        missing = np.flatnonzero(~has[name])
        if missing.size:
            learned = _learned(model, old, name, choose=estimator is None)
            found[missing] = learned.predict(_others(asked, name, missing))
        full[name] = found
    return full


def _learned(model: MultiViewRidge, views: Mapping[str, Rows], name: str, choose: bool) -> MultiViewRidge:
    """The regression of a view on the others."""
    usable = _present(views, name) & np.any([_present(views, other) for other in views if other != name], axis=0)
    index = np.flatnonzero(usable)
    if len(index) < 2:
        raise UserError(
            f"impute_views: {len(index)} samples have view {name!r} and another; pass more to learn it from"
        )
    targets = _rows(views[name], index)
    if choose and len(index) >= 8:
        test = np.random.default_rng(0).permutation(len(index)) < len(index) // 4
        errors = []
        for ridge in _RIDGES:
            tried = clone(model).set_params(ridge=ridge).fit(_others(views, name, index[~test]), targets[~test])
            errors.append(np.square(tried.predict(_others(views, name, index[test])) - targets[test]).sum())
        model = clone(model).set_params(ridge=_RIDGES[int(np.argmin(errors))])
    return clone(model).fit(_others(views, name, index), targets)


def _present(views: Mapping[str, Rows], name: str) -> np.ndarray:
    """Which samples have the view (n)."""
    n = sample_count(views)
    if name not in views:
        return np.zeros(n, bool)
    known = presence(views[name])
    return np.ones(n, bool) if known is None else known


def _others(views: Mapping[str, Rows], name: str, index: np.ndarray) -> dict[str, Any]:
    """Some samples of the other views, with rows of NaN where they lack one."""
    parts: dict[str, Any] = {}
    for other in views:
        if other != name:
            has, part = _present(views, other)[index], Subset(views[other], index)
            parts[other] = rows(part) if has.all() else np.where(has[:, None], _dense(rows(part)), np.nan)
    return parts


def _rows(source: Rows, index: np.ndarray) -> np.ndarray:
    return np.asarray(_dense(rows(Subset(source, index))), np.float64)


def _dense(block: Any) -> np.ndarray:
    return block.toarray() if scipy.sparse.issparse(block) else np.asarray(block)
