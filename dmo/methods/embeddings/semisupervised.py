"""Embeddings of samples of which some have labels: supervised terms on those, unsupervised ones on all [MOPE 19-22]."""

from __future__ import annotations

from dmo.methods.embeddings.discriminant import lfda, scatter_between, scatter_within
from dmo.methods.embeddings.graph_methods import smooth
from dmo.methods.embeddings.quadratic_forms import QuadraticForm, TraceProblem
from dmo.methods.embeddings.samples import Options, Samples


def self_(samples: Samples, options: Options) -> TraceProblem:
    """(1 - beta) S_b^l + beta X'HX | (1 - beta) S_w^l + beta I, the local scatters of LFDA, beta = 1 - mixing."""
    (known, index), n, share = samples.labeled(), samples.n, options.mixing
    local = lfda(known, options).spread(index, n)
    A = local.A.times(share) + QuadraticForm(n, identity=1 - share).centered()
    assert local.B is not None
    return TraceProblem(A, local.B.times(share), 1 - share)


def ssfda(samples: Samples, options: Options) -> TraceProblem:
    """S_b^l | S_w^l + b1 X'Lap(W)X + b2 I."""
    (known, index), n = samples.labeled(), samples.n
    B = scatter_within(known).spread(index, n) + smooth(samples.rows, options).times(options.smoothness)
    return TraceProblem(scatter_between(known).spread(index, n), B, options.ridge)


def ssmmc(samples: Samples, options: Options) -> TraceProblem:
    """S_b^l - b1 S_w^l - b2 X'Lap(W)X | I."""
    (known, index), n = samples.labeled(), samples.n
    gain = scatter_between(known) - scatter_within(known).times(options.penalty)
    return TraceProblem(gain.spread(index, n) - smooth(samples.rows, options).times(options.smoothness))
