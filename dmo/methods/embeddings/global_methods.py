"""Every global projection as a trace problem: a few lines per method, one table of them all.

With samples X (n x d, centered unless said otherwise) or a kernel K = X X', each method is

    max tr(W' X' S X W),  S = a I + b K + T M T' + diag(d),  subject to one of
    "identity"    W'W = I;
    "covariance"  w (W'(X'X + c I)W) = I;
    "samples"     Z'Z = I for max tr(Z'SZ), new rows by ridge regression of Z on X (ridge c).

T (n x q) is a factor of the labels or of their kernel: S is never formed. `trace_engines` solves these from moments or
from operators. Sources: the table at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dmo.errors import UserError
from dmo.linalg.eigen import power_of

Constraint = Literal["identity", "covariance", "samples"]


@dataclass(frozen=True)
class Problem:
    """S = identity I + kernel K + T core T' + diag(diagonal) under a constraint; see the module.

    Arguments: `factor` T (n x q) or None; `core` (q x q, symmetric) or None for I; `diagonal` (n) or None; `ridge` c;
    `weight` w of the covariance constraint; `scaled`: coordinates multiplied by sqrt(eigenvalue).
    """

    constraint: Constraint
    factor: np.ndarray | None = None
    core: np.ndarray | None = None
    identity: float = 0.0
    kernel: float = 0.0
    diagonal: np.ndarray | None = None
    ridge: float = 0.0
    weight: float = 1.0
    scaled: bool = False

    def absorbed(self) -> Problem:
        """The same problem with a positive semidefinite core multiplied into the factor."""
        if self.core is None or self.factor is None:
            return self
        return replace(self, factor=self.factor @ power_of(self.core, 0.5), core=None)


@dataclass(frozen=True)
class Samples:
    """What a method knows of the samples: `n`; the `trace` of K; `labels`, a factor of the label kernel (n x q), as given;
    whether everything is centered."""

    n: int
    trace: float
    labels: np.ndarray | None = None
    center: bool = True

    @property
    def factor(self) -> np.ndarray:
        """The label factor, centered where the samples are."""
        if self.labels is None:
            raise UserError("this method learns from labels; pass y")
        return self.labels - self.labels.mean(axis=0) if self.center else self.labels

    @property
    def label_scale(self) -> float:
        """tr K / tr K_Y, which gives both kernels the same trace; 0 where the labels are constant."""
        own = float(np.einsum("ij,ij->", self.factor, self.factor))
        return self.trace / own if own > 0 else 0.0


@dataclass(frozen=True)
class Settings:
    """`mixing` beta in [0, 1], `ridge` c >= 0, `balance` mu in [0, 1]; a method uses those that its entry names."""

    mixing: float = 0.5
    ridge: float = 1e-3
    balance: float = 0.5


def pca(samples: Samples, settings: Settings) -> Problem:
    """X'X | I (with a kernel: kernel PCA; without centering: latent semantic indexing)."""
    return Problem("identity", identity=1.0)


def pls(samples: Samples, settings: Settings) -> Problem:
    """X'K_Y X | I, K_Y = Y Y' or any label kernel."""
    return Problem("identity", samples.factor)


def opls(samples: Samples, settings: Settings) -> Problem:
    """X'Y Y'X | X'X + c I."""
    return Problem("covariance", samples.factor, ridge=settings.ridge)


def cca(samples: Samples, settings: Settings) -> Problem:
    """X'Y (Y'Y + c I)^-1 Y'X | X'X + c I."""
    Y = samples.factor
    spread = Y.T @ Y
    spread.flat[:: len(spread) + 1] += settings.ridge
    return Problem("covariance", Y @ power_of(spread, -0.5), ridge=settings.ridge)


def mddm(samples: Samples, settings: Settings) -> Problem:
    """X'H K_Y H X | mu X'X + (1 - mu) I."""
    mu = settings.balance
    if mu == 0:
        return Problem("identity", samples.factor)
    return Problem("covariance", samples.factor, ridge=(1 - mu) / mu, weight=mu)


def hsic_biased(samples: Samples, settings: Settings) -> Problem:
    """X'H K_Y H X / (n - 1)^2 | I: the eigenvalues are estimates HSIC_0."""
    return Problem("identity", samples.factor / max(samples.n - 1, 1))


def hsic_unbiased(samples: Samples, settings: Settings) -> Problem:
    """X'Q X | I with the unbiased estimate HSIC_1 = tr(K Q); Q is indefinite and Q1 = 0.

    Q = [L + s/((n-1)(n-2)) (11' - I) - (l1' + 1l' - 2 diag(l))/(n-2)] / (n(n-3)), L = K_Y - diag(K_Y), l = L1, s = 1'l.
    """
    n, T = samples.n, samples.factor  # centering K_Y changes nothing: Q is blind to it
    if n < 4:
        raise UserError(f"hsic-1 needs at least 4 samples, got {n}; take hsic-0")
    own = np.einsum("ij,ij->i", T, T)
    sums = T @ T.sum(axis=0) - own
    total = sums.sum() / ((n - 1) * (n - 2))
    q = T.shape[1]
    core = np.zeros((q + 2, q + 2))
    core[:q, :q] = np.eye(q)
    core[q, q + 1] = core[q + 1, q] = -1 / (n - 2)
    core[q + 1, q + 1] = total
    scale = n * (n - 3)
    diagonal = (2 * sums / (n - 2) - own - total) / scale
    return Problem("identity", np.column_stack([T, sums, np.ones(n)]), core / scale, diagonal=diagonal)


def hypergraph(expansion: Literal["clique", "star", "zhou"]) -> Callable[[Samples, Settings], Problem]:
    """X'S X | X'X + c I with S = Dv^-1/2 Y W Y' Dv^-1/2 of the hypergraph whose edges are the labels."""

    def problem(samples: Samples, settings: Settings) -> Problem:
        Y = samples.labels
        if Y is None:
            raise UserError("this method learns from labels; pass y")
        if ((Y != 0) & (Y != 1)).any():
            raise UserError("hypergraph methods need labels of 0 and 1 without a label kernel; binarise y")
        size = Y.sum(axis=0)
        inverse = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
        weights = {"clique": np.ones_like(size), "star": inverse**2, "zhou": inverse}[expansion]
        degrees = Y @ {"clique": size, "star": inverse, "zhou": np.ones_like(size)}[expansion]
        shares = np.divide(1.0, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
        T = shares[:, None] * Y * np.sqrt(weights)
        return Problem("covariance", T - T.mean(axis=0) if samples.center else T, ridge=settings.ridge)

    return problem


def slvm(samples: Samples, settings: Settings) -> Problem:
    """(1 - beta) X X' + beta Y Y' | Z'Z = I, new rows by regression."""
    beta = settings.mixing
    return Problem("samples", np.sqrt(beta) * samples.factor, kernel=1 - beta, ridge=settings.ridge)


def kde(samples: Samples, settings: Settings) -> Problem:
    """K_Y | Z'Z = I, coordinates scaled by sqrt(eigenvalue): kernel PCA of the outputs, regressed on X."""
    return Problem("samples", samples.factor, ridge=settings.ridge, scaled=True)


def morp_direct(samples: Samples, settings: Settings) -> Problem:
    """X'C X | X'X + c I, C = (1 - beta) K + beta (tr K / tr K_Y) K_Y [MORP 6]."""
    beta = settings.mixing
    T = samples.factor if beta else None
    core = None if T is None else beta * samples.label_scale * np.eye(T.shape[1])
    return Problem("covariance", T, core, kernel=1 - beta, ridge=settings.ridge, scaled=True)


def morp_simplified(samples: Samples, settings: Settings) -> Problem:
    """Z'CZ | Z'Z = I, coefficients K^-1 Z by ridge c, scaled by sqrt(lambda) [MORP 14 approximated, 15, 16]."""
    return replace(morp_direct(samples, settings), constraint="samples")


@dataclass(frozen=True)
class Method:
    """One row of the table: what the method is called, its source, the settings that it uses, its problem."""

    title: str
    source: str
    problem: Callable[[Samples, Settings], Problem]
    parameters: tuple[str, ...] = ()
    supervised: bool = True
    center: bool = True

    @property
    def formula(self) -> str:
        """Objective | constraint."""
        return (self.problem.__doc__ or _HYPERGRAPH).partition("\n")[0].rstrip(".")


_HYPERGRAPH = "X'Dv^-1/2 Y W Y'Dv^-1/2 X | X'X + c I"
_LABELS, _RIDGE, _BETA = "label_kernel", "ridge", "mixing"
METHODS: dict[str, Method] = {
    "pca": Method("principal component analysis", "Pearson 1901; Schoelkopf et al. 1998", pca, supervised=False),
    "lsi": Method("latent semantic indexing", "Deerwester et al. 1990", pca, supervised=False, center=False),
    "pls": Method("partial least squares", "Wold 1975; Bookstein 1994 (SVD)", pls, (_LABELS,)),
    "opls": Method("orthonormalized partial least squares", "Worsley et al. 1997", opls, (_LABELS, _RIDGE)),
    "cca": Method("(regularized, kernel) canonical correlation", "Hotelling 1936; Vinod 1976", cca, (_LABELS, _RIDGE)),
    "mddm": Method(
        "multi-label dependence maximization, balance 0: MDDMp, 1: MDDMf",
        "Zhang, Zhou 2010",
        mddm,
        (_LABELS, "balance"),
    ),
    "hsic-0": Method("supervised features by HSIC, biased", "Gretton et al. 2005", hsic_biased, (_LABELS,)),
    "hsic-1": Method("supervised features by HSIC, unbiased", "Song et al. 2012", hsic_unbiased, (_LABELS,)),
    "hsl-1": Method("hypergraph spectral, clique expansion", "Sun, Ji, Ye 2008", hypergraph("clique"), (_RIDGE,)),
    "hsl-2": Method("hypergraph spectral, star expansion", "Sun, Ji, Ye 2008", hypergraph("star"), (_RIDGE,)),
    "hsl-3": Method("hypergraph spectral, normalized Laplacian", "Zhou et al. 2006", hypergraph("zhou"), (_RIDGE,)),
    "slvm": Method("supervised latent variable model", "Yu et al. 2006", slvm, (_LABELS, _BETA, _RIDGE)),
    "kde": Method("kernel dependency estimation", "Weston et al. 2002", kde, (_LABELS, _RIDGE)),
    "morp": Method("multi-output regularized projection", "Yu, Yu, Tresp 2005", morp_direct, (_LABELS, _BETA, _RIDGE)),
    "morp-simplified": Method(
        "multi-output regularized projection, simplified",
        "Yu, Yu, Tresp 2005",
        morp_simplified,
        (_LABELS, _BETA, _RIDGE),
    ),
    "mlsi": Method(
        "multi-label informed latent semantic indexing",
        "Yu, Yu, Tresp 2005 (SIGIR)",
        morp_direct,
        (_LABELS, _BETA, _RIDGE),
        center=False,
    ),
}
