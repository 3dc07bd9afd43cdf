"""Numbers as text, for tables and images."""

from __future__ import annotations

import math
from typing import TypeGuard

import numpy as np


def is_number(value: object) -> TypeGuard[float]:
    """Tell numbers from all else."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Write one value as text: four significant digits, thousands separated, a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return f"{value:,}" if is_number(value) else str(value)


def decimals_of(values: np.ndarray) -> int:
    """Decimals that give the largest of `values` three digits; whole numbers get none."""
    values = values[np.isfinite(values)]
    if not values.size or (values == np.round(values)).all():
        return 0
    return int(np.clip(2 - math.floor(math.log10(np.abs(values).max())), 0, 6))
