"""Real-valued targets of the estimators that score labels: which they are, and their units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from dmo.errors import UserError
from dmo.inputs import are_real, check_outputs
from dmo.parameters import flat

Targets: TypeAlias = Literal["auto", "labels", "real"]
"""Labels or real numbers; "auto": as `are_real` tells."""


@dataclass(frozen=True)
class RealOutputs:
    """Means and deviations of the training outputs: methods see outputs of mean 0 and deviation 1.

    shift, scale (L,)
    """

    shift: np.ndarray  # (L,): means
    scale: np.ndarray  # (L,): deviations; 1 of a constant output
    flat: bool  # whether the outputs were a vector

    @classmethod
    def of(cls, Y: np.ndarray, flat: bool, weights: np.ndarray | None = None) -> Self:
        """Learn the units; NaN is an output that is not known.

        Y (n, L); weights (n,)
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

    @classmethod
    def plain(cls, n_outputs: int, flat: bool) -> Self:
        """Make the units of outputs that are taken as they are."""
        return cls(np.zeros(n_outputs), np.ones(n_outputs), flat)

    def scaled(self, Y: np.ndarray) -> np.ndarray:
        """Scale outputs.

        Y (n, L) -> (n, L)
        """
        found = Y - self.shift
        found /= self.scale
        return found

    def restored(self, Y: np.ndarray) -> np.ndarray:
        """Give scaled outputs their units again.

        Y (m, L) -> (m, L)
        """
        found = Y * self.scale + self.shift
        return found[:, 0] if self.flat else found

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Describe the units for a model store."""
        return {"shift": self.shift, "scale": self.scale}, {"flat": self.flat}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> Self:
        """Make the units that `to_arrays` described."""
        return cls(arrays["shift"], arrays["scale"], bool(meta["flat"]))


def refuse_for_real(estimator: Any) -> None:
    """Refuse what is for labels."""
    found = flat(estimator) | {"decoder": estimator._decoder}
    for name in ("prior_power", "propensity", "standardize", "decoder", "class_weight"):
        if found.get(name):
            raise UserError(f"{name} = {found[name]!r} is for labels, and y has real values; leave it out")


def read_real(
    estimator: Any, y: Any, n: int, reset: bool = True, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Read y as real outputs in the units of the fit, where it is one of real outputs.

    y (n, L); weights (n,)
    """
    if reset:
        estimator.outputs_ = None
    real = estimator.targets == "real" or (estimator.targets == "auto" and are_real(y)) if reset else estimator.outputs_
    if not real:
        return None
    refuse_for_real(estimator)
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
