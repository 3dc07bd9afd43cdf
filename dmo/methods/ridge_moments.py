"""Ridge regression on moments: r-MLR, and r-KMLR with low-rank kernels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.linalg

from dmo.moments import LABELS, Moments


def ridge(
    moments: Moments, weights: Mapping[str, float], c: float, center: bool = True
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Ridge regression of the labels on the summed kernel sum_v w_v F_v F_v'.

    Arguments: `moments` of factor rows and labels; `weights`: view -> w_v >= 0 of the views to use; `c`: the ridge.
    Returns per view the coefficients (d_v x L) and the offset (L) of f(x) = sum_v f_v(x) beta_v + offset: with stacked
    F = [sqrt(w_v) F_v], beta = sqrt(w) (F'F + c I)^-1 F'Y, by push-through equal to kernel ridge.
    """
    places = moments.places()
    used = moments.centred() if center else moments
    columns = np.concatenate([np.arange(places[view].start, places[view].stop) for view in weights])
    scale = np.concatenate([np.full(moments.widths[view], np.sqrt(weight)) for view, weight in weights.items()])
    small = used.gram[np.ix_(columns, columns)] * scale[:, None] * scale
    small.flat[:: len(small) + 1] += c
    right = scale[:, None] * used.gram[columns, places[LABELS]]
    beta = scale[:, None] * scipy.linalg.solve(small, right, assume_a="pos", overwrite_a=True, check_finite=False)
    offset = -(moments.mean()[columns] @ beta) if center else np.zeros(beta.shape[1])
    edges = np.cumsum([moments.widths[view] for view in weights])[:-1]
    return dict(zip(weights, np.split(beta, edges), strict=True)), offset
