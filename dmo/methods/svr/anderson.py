"""Anderson's method (type II): fixed points of a map, extrapolated from the last iterates.

Sources: Walker, Ni 2011; O'Donoghue 2021 (as in SCS 3).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dmo.stores.checkpoints import Arrays

_MEMORY = 15  # pairs that are remembered: as many n x L blocks twice, and an extrapolation costs as many inner products


class Extrapolation:
    """s = s + g(s) for blocks s of one shape, in row-major order, with a way back when a step makes |g| more than twice as
    large."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all pairs: the map has changed."""
        self._last: tuple[np.ndarray, np.ndarray] | None = None  # s + g and g of the point before
        self._moves: list[np.ndarray] = []  # differences of s + g
        self._changes: list[np.ndarray] = []  # differences of g
        self._gram = np.zeros((0, 0))
        self._extrapolated = False

    def next(self, s: np.ndarray, g: np.ndarray) -> np.ndarray:
        """The next point from s and its residual g."""
        plain = s + g
        if self._last is not None:
            before, residual = self._last
            # a safeguard: the plain iteration never makes |g| larger, so growth is the extrapolation's doing. Twice, since
            # steps that are a little worse are often made good by the next ones
            if self._extrapolated and np.linalg.norm(g) > 2 * np.linalg.norm(residual):
                self.forget()
                return before  # s + g of the point before, which is the plain step from there
            self._remember(plain - before, g - residual)
        self._last = plain, g
        self._extrapolated = bool(self._changes)
        if not self._changes:
            return plain
        # normal equations, of a Gram matrix that is updated by one row a step: QR of n L x 15
        # numbers at every step would cost several times these inner products.
        # Changes of late steps are nearly parallel: the ridge keeps the weights bounded, lstsq survives a matrix of zeros
        gram = self._gram + 1e-10 * np.trace(self._gram) * np.eye(len(self._gram))
        weights = np.linalg.lstsq(gram, [np.vdot(change, g) for change in self._changes])[0]
        for weight, move in zip(weights, self._moves, strict=True):
            plain = plain - weight * move
        return plain

    def to_arrays(self) -> Arrays:
        """All that is remembered."""
        found = {"gram": self._gram, "extrapolated": np.array([self._extrapolated])}
        if self._last is not None:
            found |= {"before": self._last[0], "residual": self._last[1]}
        if self._moves:
            found |= {"moves": np.stack(self._moves), "changes": np.stack(self._changes)}
        return found

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Remember what `to_arrays` gave."""
        self._gram, self._extrapolated = arrays["gram"], bool(arrays["extrapolated"][0])
        self._last = (arrays["before"], arrays["residual"]) if "before" in arrays else None
        self._moves, self._changes = list(arrays.get("moves", ())), list(arrays.get("changes", ()))

    def _remember(self, move: np.ndarray, change: np.ndarray) -> None:
        if len(self._moves) == _MEMORY:
            del (
                self._moves[0],
                self._changes[0],
            )  # the oldest: it was measured where the active pieces of the loss were others
            self._gram = self._gram[1:, 1:]
        self._moves.append(move)
        self._changes.append(change)
        m = len(self._changes)
        gram = np.empty((m, m))
        gram[:-1, :-1] = self._gram
        gram[-1] = gram[:, -1] = [np.vdot(old, change) for old in self._changes]
        self._gram = gram
