"""Conversion of raw label scores to ranking scores by label frequencies, propensities and standardization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo.decide.probabilities import mean_and_deviation, scale_of
from dmo.errors import UserError
from dmo.metrics import inverse_propensities


@dataclass(frozen=True)
class ScoreRule:
    """Rule that converts raw label scores to ranking scores.

    A raw score s of a label becomes (s + intercept - standardize * mean) / deviation^standardize /
    frequency^prior_power / propensity. With default parameters, the rule is equation 31 of [KGHA].

    Parameters
    ----------
    intercept : ndarray of shape (L,)
        Label frequencies that are added to the scores, or zeros.
    mean, deviation : ndarray of shape (L,)
        Mean and standard deviation of the leave-one-out training scores of each label. The mean includes the intercept.
    frequency : ndarray of shape (L,)
        Fraction of the training samples that have each label.
    n_train : float
        Total weight of the training samples with known labels, from which the propensities are computed.
    standardize : float, default=0.0
        Strength of standardization, from 0 to 1.
    prior_power : float, default=0.0
        Exponent of the label frequency, from 0 to 1.
    propensity : bool, default=False
        Whether to divide the scores by the label propensities.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.decide.score_rule import ScoreRule
    >>> rule = ScoreRule.learn(np.array([0.5, 0.25]), 8, None, intercept=True, prior_power=1.0)
    >>> rule(np.array([[0.1, 0.1]]))
    array([[1.2, 1.4]])
    """

    intercept: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    frequency: np.ndarray
    n_train: float
    standardize: float = 0.0
    prior_power: float = 0.0
    propensity: bool = False

    @classmethod
    def learn(
        cls,
        frequency: np.ndarray,
        n_train: float,
        loo: np.ndarray | None,
        intercept: bool,
        standardize: float = 0.0,
        prior_power: float = 0.0,
        propensity: bool = False,
        counts: np.ndarray | None = None,
    ) -> ScoreRule:
        """Learn the rule from leave-one-out scores.

        Parameters
        ----------
        frequency : ndarray of shape (L,)
            Fraction of the training samples that have each label.
        n_train : float
            Total weight of the training samples.
        loo : ndarray of shape (n, L) or None
            Leave-one-out scores of the training samples. If None, scores are not standardized.
        intercept : bool
            Whether to add the label frequencies to the scores.
        standardize : float, default=0.0
            Strength of standardization, from 0 to 1.
        prior_power : float, default=0.0
            Exponent of the label frequency, from 0 to 1.
        propensity : bool, default=False
            Whether to divide the scores by the label propensities.
        counts : ndarray of shape (n,) or None, default=None
            Sample weights. By default, all weights are 1.

        Returns
        -------
        ScoreRule
            The fitted rule.

        Raises
        ------
        UserError
            If `standardize` or `prior_power` is not between 0 and 1.
        """
        if loo is None or not standardize:
            mean, deviation, standardize = np.zeros_like(frequency), np.ones_like(frequency), 0.0
        else:
            mean, deviation = mean_and_deviation(loo, counts)
        return cls.of(frequency, n_train, mean, deviation, intercept, standardize, prior_power, propensity)

    @classmethod
    def of(
        cls,
        frequency: np.ndarray,
        n_train: float,
        mean: np.ndarray,
        deviation: np.ndarray,
        intercept: bool,
        standardize: float,
        prior_power: float,
        propensity: bool = False,
    ) -> ScoreRule:
        """Create the rule from the mean and the standard deviation of held-out scores.

        Parameters
        ----------
        frequency : ndarray of shape (L,)
            Fraction of the training samples that have each label.
        n_train : float
            Total weight of the training samples.
        mean : ndarray of shape (L,)
            Mean of the raw held-out scores of each label, without intercept.
        deviation : ndarray of shape (L,)
            Standard deviation of the held-out scores of each label. Constant scores are not scaled.
        intercept : bool
            Whether to add the label frequencies to the scores.
        standardize : float
            Strength of standardization, from 0 to 1.
        prior_power : float
            Exponent of the label frequency, from 0 to 1.
        propensity : bool, default=False
            Whether to divide the scores by the label propensities.

        Returns
        -------
        ScoreRule
            The fitted rule.

        Raises
        ------
        UserError
            If `standardize` or `prior_power` is not between 0 and 1.
        """
        for what, value in (("standardize", standardize), ("prior_power", prior_power)):
            if not 0 <= value <= 1:
                raise UserError(f"{what} = {value}; expected a number between 0 and 1")
        added = frequency if intercept else np.zeros_like(frequency)
        scale = scale_of(mean, deviation)
        return cls(added, mean + added, scale, frequency, float(n_train), standardize, prior_power, propensity)

    @property
    def seen(self) -> np.ndarray:
        """Boolean mask of the labels that occur in training samples."""
        return self.frequency > 0

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Convert raw scores of shape (m, L) to ranking scores, with labels without training samples last."""
        shift = self.intercept - self.standardize * self.mean
        out = scores + shift if shift.any() else scores
        if self.standardize:
            out = out / self.deviation**self.standardize
        if self.prior_power:
            out = out / np.where(self.seen, self.frequency, 1.0) ** self.prior_power
        if self.propensity:
            out = out * inverse_propensities(self.frequency, self.n_train)
        return unseen_last(out, self.seen)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Convert the rule to arrays and JSON values that can be saved with a model.

        Returns
        -------
        arrays : dict of str to ndarray
            Statistics of each label.
        meta : dict
            Other parameters of the rule, which can be saved as JSON.
        """
        arrays = {key: getattr(self, key) for key in ("intercept", "mean", "deviation", "frequency")}
        return arrays, {key: getattr(self, key) for key in ("n_train", "standardize", "prior_power", "propensity")}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], meta: dict[str, Any]) -> ScoreRule:
        """Restore a rule from the result of `to_arrays`.

        Parameters
        ----------
        arrays : dict of str to ndarray
            Statistics of each label.
        meta : dict
            Other parameters of the rule.

        Returns
        -------
        ScoreRule
            The restored rule.
        """
        # Rules from older versions have no `propensity`, and their `n_train` is positive only if propensities were
        # used.
        return cls(**arrays, **({"propensity": meta["n_train"] > 0} | meta))


_LOWEST = -1e6
"""Score of labels without training samples. Other scores are higher, even if divided by a frequency of 1e-6."""


def unseen_last(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Lower the scores of labels without training samples below all other scores of the row."""
    # The raw score of a label without training samples is 0, which would rank the label above labels with negative
    # scores. The replacement score is finite, because means and sorting must remain defined. Nearly all rows have the
    # same replacement score, so the AUC of the label is 1/2. The replacement score depends only on its own row, so the
    # block size has no influence.
    if seen.all() or not seen.any():
        return scores
    least, most = scores[:, seen].min(axis=1), scores[:, seen].max(axis=1)
    # The gap is much larger than the floating-point error of the lowest score.
    gap = np.where(least == most, 1.0, most - least) + np.abs(least)
    out = scores.copy()
    out[:, ~seen] = np.minimum(least - gap, _LOWEST)[:, None]
    return out
