"""FastTag: label prediction by ridge regression on enriched labels.

The label matrix Y is enriched by a matrix B (L x L), which learns to restore labels. In the matrix Y~, each label is
dropped with probability p. FastTag minimizes

    |X W - Y B|^2 + c |W|^2 + gamma E |Y - Y~ B|^2

over B and the coefficients W, where E is the expectation over dropped labels. With S = Y'Y, the moments are
P = E[Y~'Y] = (1 - p) S and Q = E[Y~'Y~] = (1 - p)^2 S + p (1 - p) diag(S). The optimal W is the ridge regression of Y B
on X. If H is the smoother matrix of this regression, the first two terms sum to tr B' Y'(I - H) Y B. Therefore B has
the closed form

    B = gamma [Y'(I - H) Y + gamma Q]^-1 P,

while the paper alternates between W and B. Enriched labels can be enriched again, by a matrix learned from the enriched
labels. The paper calls this tag bootstrapping.

Source: Chen, Zheng, Weinberger 2013, equations 1-7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy.linalg

from dmo.blocks import Rows
from dmo.errors import UserError
from dmo.fit.functions import Expansion
from dmo.inputs import (
    COUNT,
    POSITIVE,
    Data,
    Inputs,
    Need,
    Outputs,
    RowWeights,
    SampleWeights,
    check_partial_labels,
    sample_count,
    with_unknown,
)
from dmo.kernels.product import is_product
from dmo.methods.annotator import OnBase
from dmo.methods.filling import complete_labels
from dmo.methods.options import Decoder
from dmo.methods.ridge import MultiViewRidge
from dmo.parameters import SavedLocation, parametrized


def enrichment(gram: np.ndarray, residual: np.ndarray, dropout: float, strength: float, rounds: int = 1) -> np.ndarray:
    """Compute the matrix B that enriches labels from the matrices Y'Y (`gram`) and Y'(I - H) Y (`residual`)."""
    used = np.diagonal(gram) > 0
    S, R = gram[np.ix_(used, used)].astype(np.float64), residual[np.ix_(used, used)].astype(np.float64)
    R = (R + R.T) / 2  # In exact arithmetic, R is symmetric.
    total = np.eye(len(S))
    for _ in range(rounds):
        Q = (1 - dropout) ** 2 * S
        Q.flat[:: len(S) + 1] += dropout * (1 - dropout) * np.diagonal(S)
        B = scipy.linalg.solve(R + strength * Q, strength * (1 - dropout) * S, assume_a="pos")
        total, S, R = total @ B, B.T @ S @ B, B.T @ R @ B
    out = np.zeros(gram.shape)
    out[np.ix_(used, used)] = total
    return out


@parametrized
class FastTag(OnBase):
    """Ridge regression on enriched labels (FastTag), for training data with missing labels.

    Image annotations are often incomplete: a label can be 0 although it applies to the image. FastTag learns an L x L
    matrix that restores randomly dropped labels, together with a ridge regression that predicts the enriched labels.

    Parameters
    ----------
    base : MultiViewRidge, str or None, default=None
        Ridge regression, or the path of a saved one, whose parameters are used to fit a copy. None means
        `MultiViewRidge()`. The decoder of `base` is ignored. A saved `FastTag` contains its regression.
    dropout : float, default=0.5
        Probability with which a label is dropped, above 0 and below 1.
    strength : float, default=1.0
        Weight gamma of restoring labels relative to the regression, above 0.
    rounds : int, default=1
        Number of times that labels are enriched. Each round enriches the labels of the previous round.
    decoder : PlugIn, PooledCalibration, str or None, default=None
        Decoder that is learned from out-of-fold scores of the training samples. These scores need four to ten
        additional fits, because the enrichment matrix depends on the labels of all samples.

    Attributes
    ----------
    base_ : MultiViewRidge
        Fitted ridge regression.
    enrichment_ : ndarray of shape (L, L)
        Matrix that converts labels to enriched labels.
    rule_ : ScoreRule
        Rule that converts raw scores to ranking scores.
    classes_ : ndarray of shape (L,)
        Classes or label names.

    References
    ----------
    Chen, Zheng, Weinberger 2013, equations 1-7.

    Examples
    --------
    >>> from dmo import FastTag, MultiViewRidge
    >>> from dmo.demo.digits import digits
    >>> data = digits()
    >>> train, test = data.split == "train", data.split == "test"
    >>> old, new = ({name: X[part] for name, X in data.views.items()} for part in (train, test))
    >>> FastTag(MultiViewRidge(ridge=0.1)).fit(old, data.Y[train]).predict(new, top=3).shape
    (597, 14)
    """

    _weight_detail = "sample"
    _needs: ClassVar[dict[str, Need]] = {"dropout": POSITIVE, "strength": POSITIVE, "rounds": COUNT}

    base: str | MultiViewRidge | SavedLocation | None = None
    _: KW_ONLY
    dropout: float = 0.5
    strength: float = 1.0
    rounds: int = 1
    decoder: Decoder = None

    def fit(self, X: Inputs, y: Outputs, sample_weight: RowWeights = None) -> Self:
        """Fit the ridge regression and the enrichment matrix.

        Parameters
        ----------
        %(X)s
        y : array-like of shape (n, L) or (n,)
            Label matrix of 0 and 1, vector of n classes, or n lists of labels. Entries of a matrix that are NaN, None
            or masked are unknown. Unknown entries are imputed by a ridge regression of each label on the samples in
            which it is known.
        sample_weight : array-like of shape (n,) or None, default=None
            Sample weights.

        Returns
        -------
        FastTag
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters, views or labels are invalid, or if `base` is not a MultiViewRidge.
        """
        return self._fit(X, y, sample_weight)

    def _begin(self) -> None:
        if not self.dropout < 1:
            raise UserError(f"dropout = {self.dropout}; needs a probability below 1")
        base = self._take_base(self._default_base(0, 0))
        if not isinstance(base, MultiViewRidge):
            raise UserError(f"base = {base!r}; needs a MultiViewRidge, whose scores are linear in the labels")

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        Y, known = check_partial_labels(self, y, sample_count(views))
        return with_unknown(views, Y, known, weights)

    def _learn(self, data: Data) -> None:
        base = self.base_.set_params(decoder=replace(self.base_._by_scores, standardize=0.0))
        if data.known is not None:
            if not base.center or is_product(base.kernel):
                raise UserError(
                    "unknown labels need a base with center=True and one kernel per view; pass such a base, or fill "
                    "them"
                )
            data = complete_labels(data, base.kernel, base.approximation, base.random_state)
            base.set_params(targets="real")
        views, Y, counts = data.views, data.Y.astype(np.float64), data.weights.of_views(list(data.views))
        often = None if (counts == 1).all() else counts
        self.base_ = base.fit(views, Y, sample_weight=often)
        targets = Y - counts @ Y / counts.sum() if base.center else Y
        residual = targets.T @ (counts[:, None] * (targets - self._regressed(views)))
        gram = Y.T @ (counts[:, None] * Y)
        self.enrichment_ = enrichment(gram, residual, self.dropout, self.strength, self.rounds)

    def _regressed(self, views: Mapping[str, Rows]) -> np.ndarray:
        """Predict labels by the ridge regression, without the mean of each label."""
        scores, units = self.base_._raw_scores(self._prepared(views)), self.base_.outputs_
        return np.asarray(scores if units is None else scores * units.scale)

    def _default_base(self, n: int, views: int) -> MultiViewRidge:
        """Return the ridge regression that is used if the parameter `base` is None."""
        return MultiViewRidge()

    @property
    def expansions_(self) -> Mapping[str, Expansion]:
        """Fitted function of the ridge regression for each view."""
        return self.base_.expansions_

    def _raw_scores(self, views: Mapping[str, Rows]) -> np.ndarray:
        return self._regressed(views) @ self.enrichment_

    def _arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, meta = super()._arrays()
        return arrays | {"enrichment": self.enrichment_}, meta

    def _restore(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        super()._restore(arrays, meta)
        self.enrichment_ = arrays["enrichment"]
