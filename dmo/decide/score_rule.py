"""From raw label scores to scores that rank labels: means, prior, propensities and per-label scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dmo.decide.probabilities import mean_and_deviation, scale_of
from dmo.errors import UserError
from dmo.metrics import inverse_propensities


@dataclass(frozen=True)
class ScoreRule:
    """scores = (s + intercept - standardize * mean) / deviation^standardize / frequency^prior_power / propensity, per label.

    With `standardize` and `prior_power` 0 the rule is [KGHA 31] as it stands.

    Parameters
    ----------
    intercept : ndarray of shape (L,)
        Added label means, or 0.
    mean, deviation : ndarray of shape (L,)
        Of the leave-one-out scores of the training samples.
    frequency : ndarray of shape (L,)
        Share of training samples that carry the label.
    n_train : float
        Training samples whose labels are known, by their weights: with `frequency` the propensities follow from it.
    standardize : float, default=0.0
        From 0 to 1.
    prior_power : float, default=0.0
        From 0 to 1.
    propensity : bool, default=False
        Divide by the propensities.

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
        """Learn the rule from held-out scores.

        Parameters
        ----------
        frequency : ndarray of shape (L,)
            Of the labels.
        n_train : float
            Training samples, by their weights.
        loo : ndarray of shape (n, L) or None
            Leave-one-out scores, needed where standardize > 0.
        intercept : bool
            Add the label means.
        standardize : float, default=0.0
            From 0 to 1.
        prior_power : float, default=0.0
            From 0 to 1.
        propensity : bool, default=False
            Divide scores by propensities.
        counts : ndarray of shape (n,) or None, default=None
            How often every sample counts; None: once.

        Returns
        -------
        ScoreRule
            The rule.

        Raises
        ------
        UserError
            For a power out of range.
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
        """Make the rule from statistics of the raw held-out scores, before the intercept; a constant label keeps its scale.

        Parameters
        ----------
        frequency : ndarray of shape (L,)
            Of the labels.
        n_train : float
            Training samples, by their weights.
        mean : ndarray of shape (L,)
            Of the scores.
        deviation : ndarray of shape (L,)
            Of the scores.
        intercept : bool
            Add the label means.
        standardize : float
            From 0 to 1.
        prior_power : float
            From 0 to 1.
        propensity : bool, default=False
            Divide scores by propensities.

        Returns
        -------
        ScoreRule
            The rule.

        Raises
        ------
        UserError
            For a power out of range.
        """
        for what, value in (("standardize", standardize), ("prior_power", prior_power)):
            if not 0 <= value <= 1:
                raise UserError(f"{what} = {value}; needed is a power between 0 and 1")
        added = frequency if intercept else np.zeros_like(frequency)
        scale = scale_of(mean, deviation)
        return cls(added, mean + added, scale, frequency, float(n_train), standardize, prior_power, propensity)

    @property
    def seen(self) -> np.ndarray:
        """Whether any training sample carries the label (L)."""
        return self.frequency > 0

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Apply to raw scores (m x L); labels without a training sample get the lowest scores of their row."""
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
        """Describe the rule for a model store.

        Returns
        -------
        arrays : dict of str to ndarray
            The statistics.
        meta : dict
            Samples and powers, JSON.
        """
        arrays = {key: getattr(self, key) for key in ("intercept", "mean", "deviation", "frequency")}
        return arrays, {key: getattr(self, key) for key in ("n_train", "standardize", "prior_power", "propensity")}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], meta: dict[str, Any]) -> ScoreRule:
        """Make the rule that `to_arrays` described.

        Parameters
        ----------
        arrays : dict of str to ndarray
            The statistics.
        meta : dict
            Samples and powers, JSON.

        Returns
        -------
        ScoreRule
            The rule.
        """
        # a rule of before kept the number of samples where it divided by propensities alone
        return cls(**arrays, **({"propensity": meta["n_train"] > 0} | meta))


_LOWEST = -1e6
"""Below scores of labels, which are around 0 and 1, also divided by the frequency of a label of a million samples."""


def unseen_last(scores: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Put every label without a training sample below the others of its row.

    scores (m, L); seen (L,) -> (m, L)
    """
    # Nothing is known of such a label, but its raw score, 0, would rank above the negative scores of the others. It
    # gets a finite score, so that means and sorts of scores stay defined, the same in all rows, so that it ranks no
    # sample above another (AUC 1/2); but one below its own row's where that has scores as low, so that blocks of rows
    # do not matter.
    if seen.all() or not seen.any():
        return scores
    least, most = scores[:, seen].min(axis=1), scores[:, seen].max(axis=1)
    gap = np.where(least == most, 1.0, most - least) + np.abs(least)  # far more than the rounding of `least`
    out = scores.copy()
    out[:, ~seen] = np.minimum(least - gap, _LOWEST)[:, None]
    return out
