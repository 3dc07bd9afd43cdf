"""Global projections: problems whose forms are made of I, K = X X' and a factor of the labels alone.

With samples X (n x d, centered unless said otherwise) each is max tr(W'X'A X W), A = a I + b K + T M T' + diag(d), subject to
W'W = I, to W'(w X'X + c I)W = I, or of Z itself, Z'Z = I, new rows by ridge regression of Z on X. T (n x q) is a factor of
the labels or of their kernel. `solvers` solves these from moments or from operators. Sources: `catalog`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from dmo.errors import UserError
from dmo.linalg.eigen import power_of
from dmo.methods.embeddings.quadratic_forms import QuadraticForm, TraceProblem
from dmo.methods.embeddings.samples import Options, Samples


def pca(samples: Samples, options: Options) -> TraceProblem:
    """X'X | I (with a kernel: kernel PCA; without centering: latent semantic indexing)."""
    return TraceProblem(QuadraticForm(samples.n, identity=1.0), center=samples.center)


def pls(samples: Samples, options: Options) -> TraceProblem:
    """X'K_Y X | I, K_Y = Y Y' or any label kernel."""
    return TraceProblem(_labels(samples), center=samples.center)


def opls(samples: Samples, options: Options) -> TraceProblem:
    """X'Y Y'X | X'X + c I."""
    return _correlated(samples, _labels(samples), options.ridge)


def cca(samples: Samples, options: Options) -> TraceProblem:
    """X'Y (Y'Y)^-1 Y'X | X'X + c I; the ridge stands on X alone, and dependent labels take the pseudo-inverse."""
    Y, rooted = samples.factor, samples.rooted(samples.factor)
    form = QuadraticForm(samples.n, factor=Y @ power_of(rooted.T @ rooted, -0.5))
    return _correlated(samples, form, options.ridge)


def mddm(samples: Samples, options: Options) -> TraceProblem:
    """X'H K_Y H X | (1 - s) X'X + s I, s the shrinkage; the paper's mu is 1 - s."""
    s = options.shrinkage
    if s == 1:
        return pls(samples, options)
    return TraceProblem(_labels(samples), QuadraticForm(samples.n, identity=1 - s), s, samples.center)


def hsic_biased(samples: Samples, options: Options) -> TraceProblem:
    """X'H K_Y H X / (n - 1)^2 | I: the eigenvalues are estimates HSIC_0."""
    factor = samples.factor / max(samples.size - 1, 1)
    return TraceProblem(QuadraticForm(samples.n, factor=factor), center=samples.center)


def hsic_unbiased(samples: Samples, options: Options) -> TraceProblem:
    """X'Q X | I with the unbiased estimate HSIC_1 = tr(K Q); Q is indefinite and Q1 = 0.

    Q = [L + s/((n-1)(n-2)) (11' - I) - (l1' + 1l' - 2 diag(l))/(n-2)] / (n(n-3)), L = K_Y - diag(K_Y), l = L1, s = 1'l.
    """
    n, T = samples.size, samples.factor  # centering K_Y changes nothing: Q is blind to it
    if n < 4:
        raise UserError(f"hsic-1 needs at least 4 samples, got {n:g}; take hsic-0")
    own = np.einsum("ij,ij->i", T, T)
    sums = T @ samples.total(T) - own
    total = samples.total(sums) / ((n - 1) * (n - 2))
    q = T.shape[1]
    core = np.zeros((q + 2, q + 2))
    core[:q, :q] = np.eye(q)
    core[q, q + 1] = core[q + 1, q] = -1 / (n - 2)
    core[q + 1, q + 1] = total
    scale = n * (n - 3)
    diagonal = (2 * sums / (n - 2) - own - total) / scale
    factor = np.column_stack([T, sums, np.ones(samples.n)])
    form = QuadraticForm(samples.n, factor=factor, core=core / scale, diagonal=diagonal)
    return TraceProblem(form, center=samples.center)


def hypergraph(expansion: Literal["clique", "star", "zhou"]) -> Callable[[Samples, Options], TraceProblem]:
    """X'S X | X'X + c I with S = Dv^-1/2 Y W Y' Dv^-1/2 of the hypergraph whose edges are the labels."""

    def problem(samples: Samples, options: Options) -> TraceProblem:
        Y = samples.Y
        if ((Y != 0) & (Y != 1)).any():
            raise UserError("hypergraph methods need labels of 0 and 1 without a label kernel; binarise y")
        size = samples.total(Y)
        inverse = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
        weights = {"clique": np.ones_like(size), "star": inverse**2, "zhou": inverse}[expansion]
        degrees = Y @ {"clique": size, "star": inverse, "zhou": np.ones_like(size)}[expansion]
        shares = np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
        T = shares[:, None] * Y * np.sqrt(weights)
        form = QuadraticForm(samples.n, factor=T - samples.mean(T) if samples.center else T)
        return _correlated(samples, form, options.ridge)

    problem.__doc__ = f"X'Dv^-1/2 Y W Y'Dv^-1/2 X | X'X + c I, the {expansion} expansion."
    return problem


def slvm(samples: Samples, options: Options) -> TraceProblem:
    """(1 - beta) X X' + beta Y Y' | Z'Z = I, new rows by regression."""
    beta = options.mixing
    form = QuadraticForm(samples.n, factor=np.sqrt(beta) * samples.factor, kernel=1 - beta)
    return TraceProblem(form, None, options.ridge, samples.center, direct=True)


def kde(samples: Samples, options: Options) -> TraceProblem:
    """K_Y | Z'Z = I, coordinates scaled by sqrt(eigenvalue): kernel PCA of the outputs, regressed on X."""
    return TraceProblem(_labels(samples), None, options.ridge, samples.center, scaled=True, direct=True)


def morp_direct(samples: Samples, options: Options) -> TraceProblem:
    """X'C X | X'X + c I, C = (1 - beta) K + beta (tr K / tr K_Y) K_Y [MORP 6]."""
    beta = options.mixing
    form = QuadraticForm(samples.n, kernel=1 - beta)
    if beta:
        form = form + _labels(samples).times(beta * samples.label_scale)
    return replace(_correlated(samples, form, options.ridge), scaled=True)


def morp_simplified(samples: Samples, options: Options) -> TraceProblem:
    """Z'CZ | Z'Z = I, coefficients K^-1 Z by ridge c, scaled by sqrt(lambda) [MORP 14 approximated, 15, 16]."""
    return replace(morp_direct(samples, options), B=None, direct=True)


def _labels(samples: Samples) -> QuadraticForm:
    """K_Y, centered where the samples are."""
    return QuadraticForm(samples.n, factor=samples.factor)


def _correlated(samples: Samples, A: QuadraticForm, ridge: float) -> TraceProblem:
    """A | X'X + c I."""
    return TraceProblem(A, QuadraticForm(samples.n, identity=1.0), ridge, samples.center)
