"""Iteration over validated blocks of labels, scores and predictions, from which metrics are computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike

from dmo.blocks import Rows, row_blocks, rows
from dmo.errors import UserError
from dmo.progress import stage


def block_rows(n_labels: int) -> int:
    """Choose the number of rows per block: at most 8192 rows, and about 4 million numbers or less."""
    return min(8192, 1 << max(6, (2**22 // n_labels).bit_length() - 1))


def known_pairs(
    name: str, Y: Rows, S: Rows, what: str, gaps: bool = True
) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray | None]]:
    """Yield blocks of validated labels and scores (or predictions), with their row slice and a mask of known labels.

    The mask is None if no label is missing. Missing labels (NaN) are False, or raise an error if `gaps` is false.
    """
    n, n_labels = shapes(Y, S, what)
    read = binary if what == "predictions" else numbers
    with stage(name, n) as advance:
        for where in row_blocks(n, block_rows(n_labels)):
            values, known = dense(rows(Y, where), "labels"), None
            if gaps and values.dtype.kind == "f" and np.isnan(values).any():
                known = ~np.isnan(values)
                values = np.where(known, values, 0.0)
            yield where, binary(values, "labels", where), read(rows(S, where), what, where), known
            advance(where.stop - where.start)


def count_labels(Y: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Count, for every label, the positive samples and the samples with a known value."""
    n, L = Y.shape
    positives, known = np.zeros((2, L), np.int64)
    for where in row_blocks(n, block_rows(L)):
        values = dense(rows(Y, where), "labels")
        positives += added(values == 1, None, where)
        known += added(~np.isnan(values), None, where) if values.dtype.kind == "f" else len(values)
    return positives, known


def shapes(Y: Rows, S: Rows, what: str) -> tuple[int, int]:
    """Return the common shape of labels and scores; raise an error if the shapes differ or are empty."""
    matrix(Y, "labels")
    matrix(S, what)
    if tuple(Y.shape) != tuple(S.shape):
        raise UserError(
            f"labels are {Y.shape[0]} x {Y.shape[1]}, {what} are {S.shape[0]} x {S.shape[1]}; "
            "pass the same samples and the same labels in both"
        )
    return int(Y.shape[0]), int(Y.shape[1])


def matrix(source: Rows, what: str) -> None:
    if not hasattr(source, "shape"):
        raise TypeError(f"{what} have no shape, got {type(source).__name__}; pass an array of samples x labels")
    if len(source.shape) != 2:
        raise UserError(f"{what} have {len(source.shape)} dimensions, need 2 (samples x labels); reshape them")
    if 0 in source.shape:
        raise UserError(f"{what} are {source.shape[0]} x {source.shape[1]}, need at least one sample and one label")


def dense(block: np.ndarray | scipy.sparse.csr_array, what: str) -> np.ndarray:
    values = block if isinstance(block, np.ndarray) else block.toarray()
    if values.dtype.kind not in "biuf":
        raise TypeError(f"{what} have dtype {values.dtype}, need numbers; convert them first")
    return values


def binary(block: np.ndarray | scipy.sparse.csr_array, what: str, where: slice) -> np.ndarray:
    """Return a block as bool; raise an error unless it contains only 0 and 1."""
    values = dense(block, what)
    if values.dtype.kind == "b":
        return values
    # Most label matrices have dtype uint8, which can be viewed as bool without a copy.
    if values.dtype == np.uint8 and values.max(initial=0) <= 1:
        return values.view(np.bool_)
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        row, label = np.argwhere(wrong)[0]
        raise UserError(
            f"{what} have the value {values[row, label]} at row {where.start + row}, label {label}; "
            "they must be 0 or 1 (convert -1/+1 labels by Y > 0)"
        )
    return values.astype(bool)


def numbers(block: np.ndarray | scipy.sparse.csr_array, what: str, where: slice) -> np.ndarray:
    """Return a block as float32 or float64; raise an error if it contains NaN."""
    values = dense(block, what)
    if values.dtype.kind != "f" or values.dtype.itemsize < 4:
        values = values.astype(np.float64)
    if np.isnan(values.min(initial=np.inf)):  # The minimum is NaN if any value is NaN.
        row, label = np.argwhere(np.isnan(values))[0]
        raise UserError(f"{what} are NaN at row {where.start + row}, label {label}; check the model that computed them")
    return values


def whole(name: str, value: int, most: int, unit: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {value!r}; pass an int")
    if not 1 <= value <= most:
        raise UserError(f"{name} is {value}, expected a number from 1 to {most}, the number of {unit}")
    return int(value)


def counts_of(sample_weight: ArrayLike | None, n: int) -> np.ndarray | None:
    """Return validated sample weights, or None for equal weights, for which counts are integers."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, np.float64)
    if weights.shape != (n,) or not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise UserError(
            f"sample_weight of shape {weights.shape} must contain {n} finite nonnegative numbers, at least one of them "
            f"positive; pass one weight per sample"
        )
    return weights


def added(figures: np.ndarray, weights: np.ndarray | None, where: slice) -> np.ndarray:
    """Compute the weighted sum of values of shape (m,) or (m, L) over the m samples of a block."""
    if weights is not None:
        return np.asarray(weights[where] @ figures)
    if figures.dtype != bool:
        return np.asarray(figures.sum(axis=0))
    # Sums in uint8 are fast, and the sum of 255 ones fits in uint8, so sum 255 rows at a time.
    runs = [figures[run].sum(axis=0, dtype=np.uint8) for run in row_blocks(len(figures), 255)]
    return np.asarray(np.sum(runs, axis=0, dtype=np.int64))


def ratio(part: np.ndarray, whole: np.ndarray, otherwise: float) -> np.ndarray:
    """Divide `part` by `whole`, with the result `otherwise` for zero divisors."""
    return np.divide(part, whole, out=np.full(len(part), otherwise), where=whole > 0)
