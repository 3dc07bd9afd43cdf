"""What is to be solved of a projection, whatever the engine: a method of the catalog, or a form of MORP.

Multi-output regularized projection in its three forms, from moments or from operators [MORP: Yu, Yu, Tresp 2005].

C = (1 - beta) K + beta (tr K / tr K_Y) K_Y. The forms agree where K has full rank and gamma = 0:
"simplified"   C v = lambda v, coefficients K^-1 v by ridge gamma                      [MORP 14 approximated, 15, 16]
"direct"       X'C X w = lambda (X'X + gamma I) w, also K C K a = lambda (K^2 + gamma K) a           [MORP 6]
"regularized"  K^2 a = mu (K C^-1 K + gamma K) a                                       [MORP 11; MLSI 12]
The regularized form is the eigenproblem of (C^-1 + gamma K^-1)^-1, for which the Woodbury identity gives

    kappa/(1 + gamma kappa) K + 1/(1 + gamma kappa)^2 T [I + gamma/(1 + gamma kappa) T'K^-1 T]^-1 T',

kappa = 1 - beta and T the scaled label factor: label directions that are rough in K are damped. Where K is rank-deficient
T'K^-1 T is infinite and the labels are lost, so the form is refused there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from dmo.errors import UserError
from dmo.fit.moments import LABELS, ROWS, Moments
from dmo.linalg.eigen import CUTOFF, power_of
from dmo.linalg.operators import Operator
from dmo.methods.catalog import CatalogEntry
from dmo.methods.quadratic_forms import Options, Samples, TraceProblem
from dmo.methods.spectral import morp_direct, morp_simplified
from dmo.methods.trace_solvers import EmbeddingFit, FullRank, fit_moments, fit_operator

Form = Literal["simplified", "regularized", "direct"]
FORMS = ("simplified", "regularized", "direct")


def morp_moments(form: Form, samples: Samples, options: Options, moments: Moments, k: int) -> EmbeddingFit:
    """A form from the moments of groups ROWS (factor rows F of K = F F') and LABELS (the label factor, unscaled)."""
    if form != "regularized":
        problem = (morp_simplified if form == "simplified" else morp_direct)(samples, options)
        return fit_moments(problem, moments, k)
    slices, gram = moments.slices(), (moments.centered() if samples.center else moments).gram
    G = gram[slices[ROWS], slices[ROWS]]
    spectrum = np.linalg.eigvalsh(G)
    rank, full = int((spectrum > CUTOFF * spectrum[-1]).sum()), samples.n - int(samples.center)
    if rank < full and options.mixing:
        raise UserError(
            f"form 'regularized' needs a kernel of full rank {full}, got rank {rank}: with a rank-deficient kernel it loses "
            f"the labels altogether; take form='direct' (or 'simplified')"
        )
    smoothness = np.zeros((0, 0))
    if options.mixing:
        half = power_of(G, -1.0) @ gram[slices[ROWS], slices[LABELS]]
        smoothness = half.T @ half
    return fit_moments(regularized(samples, options, smoothness), moments, k)


def morp_operator(
    form: Form,
    samples: Samples,
    options: Options,
    K: Operator,
    k: int,
    tol: float = 1e-7,
    max_steps: int = 200,
    random_state: int | None = 0,
) -> EmbeddingFit:
    """A form from products and solves with the kernel (centered by the caller where `samples` says so)."""
    if form == "regularized" and options.mixing:
        try:
            full = FullRank(K)
        except UserError as error:
            raise UserError(
                f"form 'regularized' needs a kernel of full rank: with a rank-deficient kernel it loses the labels "
                f"altogether ({error}); take form='direct' (or 'simplified')"
            ) from error
        T = samples.rooted(samples.factor)
        problem = regularized(samples, options, T.T @ full(T)).rooted(samples.weights)
    elif form == "regularized":
        problem = regularized(samples, options, np.zeros((0, 0)))
    else:
        problem = (morp_simplified if form == "simplified" else morp_direct)(samples, options).rooted(samples.weights)
    return fit_operator(problem, K, k, tol, max_steps, random_state)


def regularized(samples: Samples, options: Options, smoothness: np.ndarray) -> TraceProblem:
    """The regularized form as an eigenproblem over the samples; `smoothness`: T'K^-1 T (q x q) of the label factor."""
    plain = morp_simplified(samples, options)
    kappa, gamma = plain.A.kernel, options.ridge
    damping, core = 1 + gamma * kappa, None
    if plain.A.core is not None:
        share = plain.A.core[0, 0]
        damped = np.eye(len(smoothness)) + gamma / damping * share * (smoothness + smoothness.T) / 2
        core = share * np.linalg.inv(damped) / damping**2
    return replace(plain, A=replace(plain.A, kernel=kappa / damping, core=core), ridge=0.0)


Decoder = tuple[np.ndarray, np.ndarray]
"""Least squares of the label columns on coordinates: coefficients (k x q) and offset (q)."""


@dataclass(frozen=True)
class MethodTask:
    """A method of the catalog as a task."""

    decodes: ClassVar[bool] = False

    entry: CatalogEntry  # the method
    options: Options  # what it uses

    @property
    def center(self) -> bool:
        return self.entry.center

    @property
    def ridge(self) -> float:
        """The smallest ridge that is solved with; infinite where nothing is."""
        return self.options.ridge if "ridge" in self.entry.parameters else np.inf

    def columns(self, samples: Samples) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Say what a pass over the rows needs: labels (n, q), a diagonal (n,)."""
        form = self.entry.problem(samples, self.options).A
        return form.factor, form.diagonal

    def moments(self, samples: Samples, moments: Moments, k: int) -> EmbeddingFit:
        return fit_moments(self.entry.problem(samples, self.options), moments, k, samples.weights)

    def operator(
        self, samples: Samples, K: Operator, k: int, tol: float, max_steps: int, random_state: int | None
    ) -> EmbeddingFit:
        problem = self.entry.problem(samples, self.options).rooted(samples.weights)
        return fit_operator(problem, K, k, tol, max_steps, random_state)


@dataclass(frozen=True)
class FormTask:
    """A form of multi-output regularized projection as a task."""

    decodes: ClassVar[bool] = True

    form: Form  # see `dmo.methods.tasks`
    options: Options  # ridge and mixing
    centered: bool  # take rows and labels less their means
    scaled: bool = True  # give coordinates the root of their eigenvalue as length

    @property
    def center(self) -> bool:
        return self.centered

    @property
    def ridge(self) -> float:
        return 0.0 if self.form == "regularized" and self.options.mixing else self.options.ridge

    def floored(self, ridge: float) -> FormTask:
        """Put a ridge in the place of 0, where the form solves for labels."""
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


Task: TypeAlias = MethodTask | FormTask
"""What is to be solved of a projection, whatever the engine."""


def decode(moments: Moments) -> Decoder | None:
    """Decode labels by least squares with an intercept.

    -> (k, q) or (q,)
    """
    if LABELS not in moments.widths:
        return None
    slices, centered = moments.slices(), moments.centered().gram
    Z = slices[ROWS]
    B = power_of(centered[Z, Z], -1.0) @ centered[Z, slices[LABELS]]
    mean = moments.mean()
    return B, mean[slices[LABELS]] - mean[Z] @ B


_SHRINKAGE = 1e-3
"""Share of the total scatter in the one within classes, which may be 0: training samples of a class can fall on a point."""


def discriminants(moments: Moments) -> Decoder | None:
    """Discriminate classes by coordinates: logarithms of the densities of Gaussian classes with one covariance.

    -> (k, q) or (q,)
    """
    # Fisher 1936.
    if LABELS not in moments.widths:
        return None
    slices, total = moments.slices(), moments.centered().gram
    Z, labels = slices[ROWS], slices[LABELS]
    counts = moments.sums[labels]
    means = moments.gram[labels, Z] / np.maximum(counts, 1.0)[:, None]
    mean = moments.mean()[Z]
    apart = means - mean
    within = total[Z, Z] - apart.T @ (counts[:, None] * apart)
    B = power_of((within + _SHRINKAGE * total[Z, Z]) / moments.n, -1.0) @ apart.T
    offset = np.log(np.maximum(counts, 1.0) / moments.n) - np.einsum("qk,kq->q", apart / 2 + mean, B)
    return B, offset


Learner: TypeAlias = Callable[[Moments], Decoder | None]
"""`decode` or `discriminants`."""


def decode_rows(task: Task, samples: Samples, embedding: np.ndarray, learn: Learner | None = None) -> Decoder | None:
    """Decode the labels from coordinates in memory.

    embedding (n, k) -> (k, q) or (q,)
    """
    if samples.labels is None or not (task.decodes or learn):
        return None
    groups = {ROWS: samples.rooted(np.asarray(embedding, np.float64)), LABELS: samples.rooted(samples.labels)}
    roots = None if samples.weights is None else np.sqrt(samples.weights)
    moments = Moments.zeros({name: part.shape[1] for name, part in groups.items()}).absorb(groups, roots)
    return (learn or decode)(moments)


def solve_moments(
    task: Task, samples: Samples, moments: Moments, k: int, trace: float | None = None
) -> tuple[EmbeddingFit, np.ndarray, Decoder | None]:
    """Solve a task from moments.

    -> offset (k,); decoder (k, q) or (q,)
    """
    where = moments.slices()[ROWS]
    if trace is None:
        inner = moments.centered() if task.center else moments
        trace = float(np.trace(inner.gram[where, where]))
    fit = task.moments(replace(samples, trace=trace), moments, k)
    offset = -(moments.mean()[where] @ fit.coefficients) if task.center else np.zeros(k)
    decoder = decode(moments.mixed({ROWS: fit.coefficients})) if task.decodes else None
    if decoder is not None and samples.labels is not None:
        B, rest = decoder  # of coordinates less their offset, for label columns that may be centered
        mean = samples.mean(samples.labels) if task.center else np.zeros(B.shape[1])
        decoder = B, rest + mean - offset @ B
    return fit, offset, decoder
