"""What is to be solved of a projection, whatever the engine: a method of the catalog, or a form of MORP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from dmo.engines.moments import LABELS, ROWS, Moments
from dmo.linalg.eigen import power_of
from dmo.linalg.operators import Operator
from dmo.methods.embeddings.catalog import CatalogEntry
from dmo.methods.embeddings.morp import Form, morp_moments, morp_operator
from dmo.methods.embeddings.samples import Options, Samples
from dmo.methods.embeddings.solvers import EmbeddingFit, fit_moments, fit_operator

Decoder = tuple[np.ndarray, np.ndarray]
"""Least squares of the label columns on coordinates: coefficients (k x q) and offset (q)."""


class Task(Protocol):
    """What is to be solved, whatever the road. `center`: of rows and labels; `ridge`: the smallest that is solved with;
    `decodes`: whether a decoder of the labels is wanted."""

    decodes: ClassVar[bool]

    @property
    def center(self) -> bool: ...

    @property
    def ridge(self) -> float: ...

    def columns(self, samples: Samples) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(label columns, diagonal) that a pass over the rows needs."""
        ...

    def moments(self, samples: Samples, moments: Moments, k: int) -> EmbeddingFit: ...

    def operator(
        self, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
    ) -> EmbeddingFit: ...


@dataclass(frozen=True)
class MethodTask:
    """A method of the catalog."""

    decodes: ClassVar[bool] = False

    entry: CatalogEntry
    options: Options

    @property
    def center(self) -> bool:
        return self.entry.center

    @property
    def ridge(self) -> float:
        return self.options.ridge if "ridge" in self.entry.parameters else np.inf

    def columns(self, samples: Samples) -> tuple[np.ndarray | None, np.ndarray | None]:
        form = self.entry.problem(samples, self.options).A
        return form.factor, form.diagonal

    def moments(self, samples: Samples, moments: Moments, k: int) -> EmbeddingFit:
        return fit_moments(self.entry.problem(samples, self.options), moments, k)

    def operator(
        self, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
    ) -> EmbeddingFit:
        return fit_operator(self.entry.problem(samples, self.options), K, k, tol, max_steps, random_state)


@dataclass(frozen=True)
class FormTask:
    """A form of multi-output regularized projection."""

    decodes: ClassVar[bool] = True

    form: Form
    options: Options
    center: bool
    scaled: bool = True

    @property
    def ridge(self) -> float:
        return 0.0 if self.form == "regularized" and self.options.mixing else self.options.ridge

    def floored(self, ridge: float) -> FormTask:
        """The task with this ridge in the place of 0, where it solves for labels."""
        options = self.options
        if options.ridge or not options.mixing or self.form == "regularized":
            return self
        return replace(self, options=replace(options, ridge=ridge))

    def columns(self, samples: Samples) -> tuple[np.ndarray | None, np.ndarray | None]:
        return samples.factor, None  # without mixing for the decoder alone

    def moments(self, samples: Samples, moments: Moments, k: int) -> EmbeddingFit:
        fit = morp_moments(self.form, samples, self.options, moments, k)
        return fit if self.scaled else fit.unscaled()

    def operator(
        self, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
    ) -> EmbeddingFit:
        fit = morp_operator(self.form, samples, self.options, K, k, tol, max_steps, random_state)
        return fit if self.scaled else fit.unscaled()


def decode(moments: Moments) -> Decoder | None:
    """Least squares of LABELS on ROWS with an intercept, from their moments: coefficients (k x q) and offset (q)."""
    if LABELS not in moments.widths:
        return None
    places, centered = moments.places(), moments.centered().gram
    Z = places[ROWS]
    B = power_of(centered[Z, Z], -1.0) @ centered[Z, places[LABELS]]
    mean = moments.mean()
    return B, mean[places[LABELS]] - mean[Z] @ B


def decode_rows(task: Task, samples: Samples, embedding: np.ndarray) -> Decoder | None:
    """`decode` from coordinates in memory (n x k)."""
    if samples.labels is None or not task.decodes:
        return None
    return decode(Moments.of({ROWS: np.asarray(embedding, np.float64), LABELS: samples.labels}))


def solve_moments(
    task: Task, samples: Samples, moments: Moments, k: int, trace: float | None = None
) -> tuple[EmbeddingFit, np.ndarray, Decoder | None]:
    """The fit from moments, the offset of new rows, and the decoder. `trace`: of K, where the mapped rows lack some."""
    where = moments.places()[ROWS]
    if trace is None:
        inner = moments.centered() if task.center else moments
        trace = float(np.trace(inner.gram[where, where]))
    fit = task.moments(replace(samples, trace=trace), moments, k)
    offset = -(moments.mean()[where] @ fit.coefficients) if task.center else np.zeros(k)
    decoder = decode(moments.mixed({ROWS: fit.coefficients})) if task.decodes else None
    if decoder is not None and samples.labels is not None:
        B, rest = decoder  # of coordinates less their offset, for label columns that may be centered
        mean = samples.labels.mean(axis=0) if task.center else np.zeros(B.shape[1])
        decoder = B, rest + mean - offset @ B
    return fit, offset, decoder


def solve_operator(
    task: Task, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
) -> EmbeddingFit:
    """The fit from products with K, whose trace the task may need."""
    seen = replace(samples, trace=float(K.diagonal().sum()))
    return task.operator(seen, K, k, tol, max_steps, random_state)
