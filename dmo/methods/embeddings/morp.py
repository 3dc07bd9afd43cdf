"""Multi-output regularized projection in its three forms, from moments or from operators [MORP: Yu, Yu, Tresp 2005].

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

from dataclasses import replace
from typing import Literal

import numpy as np

from dmo.engines.moments import LABELS, ROWS, Moments
from dmo.errors import UserError
from dmo.linalg.eigen import CUTOFF, power_of
from dmo.linalg.operators import Operator
from dmo.methods.embeddings.global_methods import morp_direct, morp_simplified
from dmo.methods.embeddings.quadratic_forms import TraceProblem
from dmo.methods.embeddings.samples import Options, Samples
from dmo.methods.embeddings.solvers import EmbeddingFit, FullRank, fit_moments, fit_operator

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
