"""Convert raw label scores to scores that rank labels, by label means, a prior, propensities and a scale per label."""

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

    The ranking scores of each label are (s + intercept - standardize * mean) / deviation^standardize /
    frequency^prior_power / propensity. If `standardize` and `prior_power` are 0, the rule is equation 31 of [KGHA].

    Parameters
    ----------
    intercept : ndarray of shape (L,)
        Label means that are added to the scores, or 0.
    mean, deviation : ndarray of shape (L,)
        Mean and standard deviation of the leave-one-out scores of the training samples. The mean includes the
        intercept.
    frequency : ndarray of shape (L,)
        Fraction of the training samples that have the label.
    n_train : float
        Total weight of the training samples with known labels, which is needed for the propensities.
    standardize : float, default=0.0
        Exponent of the standard deviation, from 0 to 1.
    prior_power : float, default=0.0
        Exponent of the frequency, from 0 to 1.
    propensity : bool, default=False
        Whether to divide by the propensities.

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
            Frequencies of the labels.
        n_train : float
            Total weight of the training samples.
        loo : ndarray of shape (n, L) or None
            Leave-one-out scores. With None, scores are not standardized.
        intercept : bool
            Whether to add the label means.
        standardize : float, default=0.0
            Exponent of the standard deviation, from 0 to 1.
        prior_power : float, default=0.0
            Exponent of the frequency, from 0 to 1.
        propensity : bool, default=False
            Whether to divide scores by propensities.
        counts : ndarray of shape (n,) or None, default=None
            Sample weights. By default, all weights are 1.

        Returns
        -------
        ScoreRule
            Fitted rule.

        Raises
        ------
        UserError
            If an exponent is not between 0 and 1.
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
        """Create the rule from statistics of the raw held-out scores; constant scores are not scaled.

        Parameters
        ----------
        frequency : ndarray of shape (L,)
            Frequencies of the labels.
        n_train : float
            Total weight of the training samples.
        mean : ndarray of shape (L,)
            Means of the scores, without intercept.
        deviation : ndarray of shape (L,)
            Standard deviations of the scores.
        intercept : bool
            Whether to add the label means.
        standardize : float
            Exponent of the standard deviation, from 0 to 1.
        prior_power : float
            Exponent of the frequency, from 0 to 1.
        propensity : bool, default=False
            Whether to divide scores by propensities.

        Returns
        -------
        ScoreRule
            Fitted rule.

        Raises
        ------
        UserError
            If an exponent is not between 0 and 1.
        """
        for what, value in (("standardize", standardize), ("prior_power", prior_power)):
            if not 0 <= value <= 1:
                raise UserError(f"{what} = {value}; expected a number between 0 and 1")
        added = frequency if intercept else np.zeros_like(frequency)
        scale = scale_of(mean, deviation)
        return cls(added, mean + added, scale, frequency, float(n_train), standardize, prior_power, propensity)

    @property
    def seen(self) -> np.ndarray:
        """Mask (L) of the labels that occur in training samples."""
        return self.frequency > 0

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Convert raw scores (m x L) to ranking scores; labels without training samples are last in each row."""
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
        """Convert the rule to arrays and JSON values for a model store.

        Returns
        -------
        arrays : dict of str to ndarray
            Statistics of the labels.
        meta : dict
            Number of samples, exponents and `propensity`, as JSON values.
        """
        arrays = {key: getattr(self, key) for key in ("intercept", "mean", "deviation", "frequency")}
        return arrays, {key: getattr(self, key) for key in ("n_train", "standardize", "prior_power", "propensity")}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], meta: dict[str, Any]) -> ScoreRule:
        """Create a rule from the result of `to_arrays`.

        Parameters
        ----------
        arrays : dict of str to ndarray
            Statistics of the labels.
        meta : dict
            Number of samples, exponents and `propensity`, as JSON values.

        Returns
        -------
        ScoreRule
            Restored rule.
        """
        # Older rules have no `propensity`, and a positive `n_train` only if they divided by propensities.
        return cls(**arrays, **({"propensity": meta["n_train"] > 0} | meta))


_LOWEST = -1e6
"""Score below all label scores, which are around 0 and 1, even if divided by a label frequency of one in a million."""


def unseen_last(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Lower the scores of labels without training samples below all other scores of the row.

    scores (m, L); seen (L,) -> (m, L)
    """
    # The raw score of such a label is 0, which would rank it above labels with negative scores. The new score is
    # finite, so that means and sorting remain defined. It is the same in all rows, so that it does not rank samples
    # (AUC 1/2). Only rows with equally low scores get a lower one. It depends only on the row, so that blocks of rows
    # do not matter.
    if seen.all() or not seen.any():
        return scores
    least, most = scores[:, seen].min(axis=1), scores[:, seen].max(axis=1)
    gap = np.where(least == most, 1.0, most - least) + np.abs(
        least
    )  # Much larger than the floating-point error of `least`.
    out = scores.copy()
    out[:, ~seen] = np.minimum(least - gap, _LOWEST)[:, None]
    return out
