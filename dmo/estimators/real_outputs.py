"""Real-valued targets of the estimators that score labels: which they are, and their units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from dmo.errors import UserError
from dmo.validation import are_real, check_outputs

Targets: TypeAlias = Literal["auto", "labels", "real"]
"""Labels or real numbers; "auto": as `are_real` tells."""


@dataclass(frozen=True)
class RealOutputs:
    """Means and deviations of the training outputs: methods see outputs of mean 0 and deviation 1.

    Parameters
    ----------
    shift : ndarray of shape (L,)
        Means.
    scale : ndarray of shape (L,)
        Deviations; 1 of a constant output.
    flat : bool
        Whether the outputs were a vector.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.estimators.real_outputs import RealOutputs
    >>> Y = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> units = RealOutputs.of(Y, False)
    >>> units.scaled(Y).tolist(), units.restored(units.scaled(Y)).tolist()
    ([[-1.0, -1.0], [1.0, 1.0]], [[1.0, 10.0], [3.0, 30.0]])
    """

    shift: np.ndarray
    scale: np.ndarray
    flat: bool

    @classmethod
    def of(cls, Y: np.ndarray, flat: bool, weights: np.ndarray | None = None) -> Self:
        """Learn the units; NaN is an output that is not known.

        Parameters
        ----------
        Y : ndarray of shape (n, L)
            Outputs.
        flat : bool
            Whether they were a vector.
        weights : ndarray of shape (n,) or None, default=None
            How often every sample counts; None: once.

        Returns
        -------
        RealOutputs
            Units.

        Raises
        ------
        UserError
            Where an output is never known.
        """
        unknown = np.isnan(Y)
        nowhere = unknown.all(axis=0)
        if nowhere.any():
            raise UserError(f"output {np.flatnonzero(nowhere)[0]} is NaN in all samples; leave it out")
        if weights is None and unknown.any():
            mean, deviation = np.nanmean(Y, axis=0), np.nanstd(Y, axis=0)
        elif weights is None:  # without the copies that the others take
            mean, deviation = Y.mean(axis=0), Y.std(axis=0)
        else:
            share = weights[:, None] * ~unknown
            share = share / np.where(share.any(axis=0), share.sum(axis=0), 1.0)
            mean = (share * np.where(unknown, 0.0, Y)).sum(axis=0)
            deviation = np.sqrt((share * np.where(unknown, 0.0, Y - mean) ** 2).sum(axis=0))
        return cls(mean, np.where(deviation > 0, deviation, 1.0), flat)

    def scaled(self, Y: np.ndarray) -> np.ndarray:
        """Scale outputs.

        Parameters
        ----------
        Y : ndarray of shape (n, L)
            In the units of the training outputs.

        Returns
        -------
        ndarray of shape (n, L)
            Of mean 0 and deviation 1 in training.
        """
        found = Y - self.shift
        found /= self.scale
        return found

    def restored(self, Y: np.ndarray) -> np.ndarray:
        """Give scaled outputs their units again.

        Parameters
        ----------
        Y : ndarray of shape (m, L)
            Scaled.

        Returns
        -------
        ndarray of shape (m, L) or (m,)
            In the units of the training outputs.
        """
        found = Y * self.scale + self.shift
        return found[:, 0] if self.flat else found

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the units for a model store.

        Returns
        -------
        arrays : dict of str to ndarray
            Means and deviations.
        meta : dict
            JSON.
        """
        return {"shift": self.shift, "scale": self.scale}, {"flat": self.flat}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> Self:
        """Make the units that `to_arrays` described.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            Means and deviations.
        meta : mapping
            JSON.

        Returns
        -------
        RealOutputs
            Units.
        """
        return cls(arrays["shift"], arrays["scale"], bool(meta["flat"]))


def read_real(
    estimator: Any, y: Any, n: int, reset: bool = True, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Read y as real outputs in the units of the fit, where it is one of real outputs.

    Parameters
    ----------
    estimator : estimator with the parameter `targets`
        Keeps the units as `outputs_`, the names of a DataFrame's columns as `label_names_`.
    y : array-like of shape (n, L) or (n,)
        Labels or outputs.
    n : int
        Samples.
    reset : bool, default=True
        Learn the units; else the outputs are further ones.
    weights : ndarray of shape (n,) or None, default=None
        How often every sample counts in the units; None: once.

    Returns
    -------
    (outputs, known) or None
        ndarray of shape (n, L), 0 where unknown; ndarray of shape (n, L), bool, or None where all are known. None in place
        of both for labels.

    Raises
    ------
    UserError
        For a setting that needs labels.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo import MultiViewRidge
    >>> from dmo.estimators.real_outputs import read_real
    >>> Y, known = read_real(MultiViewRidge(), np.array([[1.5], [2.5]]), 2)
    >>> Y.ravel().tolist(), known
    ([-1.0, 1.0], None)
    """
    if reset:
        estimator.outputs_ = None
    real = estimator.targets == "real" or (estimator.targets == "auto" and are_real(y)) if reset else estimator.outputs_
    if not real:
        return None
    for name in ("prior_power", "propensity", "standardize", "decoder", "class_weight"):
        if getattr(estimator, name, None):
            raise UserError(f"{name} = {getattr(estimator, name)!r} is for labels, and y has real values; leave it out")
    if getattr(estimator, "weights", None) == "tagprop":
        raise UserError("weights = 'tagprop' learns from labels, and y has real values; take 'alignment', or give them")
    Y, flat, names = check_outputs(y, n, unknown=True)
    if reset:
        for name in ("classes_", "label_names_", "label_dtype_"):
            estimator.__dict__.pop(name, None)
        if names is not None:
            estimator.label_names_ = names
        estimator.outputs_, estimator.multilabel_ = RealOutputs.of(Y, flat, weights), True
    units: RealOutputs = estimator.outputs_
    if Y.shape[1] != len(units.scale):
        raise UserError(f"y has {Y.shape[1]} outputs, the fit had {len(units.scale)}; pass them all, in their order")
    scaled = units.scaled(Y)
    unknown = np.isnan(scaled)
    return (np.where(unknown, 0.0, scaled), ~unknown) if unknown.any() else (scaled, None)
