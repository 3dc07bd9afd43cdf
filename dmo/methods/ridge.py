"""Ridge regression of the labels from moments."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dmo.engines.moments import LABELS, Moments
from dmo.linalg.linear import positive_solve


def ridge(
    moments: Moments, weights: Mapping[str, float], c: float, center: bool = True
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Ridge regression of the labels on the summed kernel sum_v w_v F_v F_v'.

    With stacked F = [sqrt(w_v) F_v], beta = sqrt(w) (F'F + c I)^-1 F'Y, by push-through equal to kernel ridge.

    Parameters
    ----------
    moments : Moments
        Of factor rows and labels.
    weights : mapping of view to float
        w_v >= 0 of the views to use.
    c : float
        The ridge.
    center : bool, default=True
        Take rows and labels less their means.

    Returns
    -------
    coefficients : dict of str to ndarray of shape (d_v, L)
        beta_v of f(x) = sum_v f_v(x) beta_v + offset.
    offset : ndarray of shape (L,)
        Of f, which with `center` predicts labels less their means.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import Moments
    >>> from dmo.methods.ridge import ridge
    >>> X = np.array([[0.0], [1.0], [2.0]])
    >>> coefficients, offset = ridge(Moments.of({"x": X, "labels": 2 * X + 1}), {"x": 1.0}, 1e-9)
    >>> coefficients["x"].round(6), offset.round(6)
    (array([[2.]]), array([-2.]))
    """
    columns, scale, gram, small = moments.weighted_system(weights, center)
    right = scale[:, None] * gram[:, moments.places()[LABELS]]
    beta = scale[:, None] * positive_solve(small, c, right)
    offset = -(moments.mean()[columns] @ beta) if center else np.zeros(beta.shape[1])
    edges = np.cumsum([moments.widths[view] for view in weights])[:-1]
    return dict(zip(weights, np.split(beta, edges), strict=True)), offset
