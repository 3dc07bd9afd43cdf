"""Supervised embeddings of samples with many labels, by duplication that is never carried out."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.utils import Tags

from dmo.estimators import method_options
from dmo.estimators.arguments import Engine, KernelSpec
from dmo.estimators.projection import Projection
from dmo.estimators.projector import embed
from dmo.methods.embeddings.catalog import METHODS
from dmo.methods.embeddings.discriminant import DISCRIMINANTS, duplicated
from dmo.methods.embeddings.quadratic_forms import TraceProblem
from dmo.methods.embeddings.samples import Samples
from dmo.validation import (
    COUNT,
    FLAG,
    SEED,
    Need,
    check_known_labels,
    check_one_view,
    check_parameters,
    count_components,
    one_of,
    unused,
)

_OPTIONS = ("n_neighbors", "n_repelled", "adjacency", "metric", "regularization", "penalty", "repulsion", "ridge")


class MESD(Projection):
    """Multi-label embedding by sample duplication: a single-label method in which a sample counts once per label.

    Parameters
    ----------
    method : "fda", "lfda", "mfa", "mmc", "dla", "dne", "olpp-r", "sonpp", "donpp" or "onpp-r"
    weighted : bool
        Divide every matrix by the numbers of labels of the two samples, so that samples of many labels weigh no more.
        Features are centered first: the weighted problem depends on their origin.
    n_components : int
        Dimensions of the space.
    ridge : float >= 0; None: 0.001
        c of X'BX + c I (features in their own units), for fda, lfda and mfa.
    n_neighbors, n_repelled, adjacency, metric, regularization, penalty, repulsion : None: the method's own
        See `TraceEmbedding`.
    kernel, n_landmarks, variance, approximation, random_state : as in `TraceEmbedding`

    A parameter that the method does not use is refused. Samples without labels (rows of zeros or NaN) are left out of the
    fit. Attributes: expansion_, eigenvalues_ (descending), n_components_.
    Source: Mu, Goulermas, Tsujii, Ananiadou 2012, eqs. 32, 33.
    """

    _needs: ClassVar[dict[str, Need]] = {
        "method": one_of(*DISCRIMINANTS),
        "weighted": FLAG,
        "n_components": COUNT,
        "random_state": SEED,
        **{name: method_options.NEEDS[name] for name in (*_OPTIONS, "n_landmarks", "variance")},
    }

    def __init__(
        self,
        method: str = "fda",
        *,
        weighted: bool = False,
        n_components: int = 2,
        ridge: float | None = None,
        n_neighbors: int | None = None,
        n_repelled: int | None = None,
        adjacency: Literal["union", "mutual", "sum"] | None = None,
        metric: Literal["euclidean", "cosine"] | None = None,
        regularization: float | None = None,
        penalty: float | None = None,
        repulsion: float | None = None,
        kernel: KernelSpec = "linear",
        n_landmarks: int | None = None,
        variance: float | None = None,
        approximation: Engine = "exact",
        random_state: int | None = 0,
    ):
        self.method = method
        self.weighted = weighted
        self.n_components = n_components
        self.ridge = ridge
        self.n_neighbors = n_neighbors
        self.n_repelled = n_repelled
        self.adjacency = adjacency
        self.metric = metric
        self.regularization = regularization
        self.penalty = penalty
        self.repulsion = repulsion
        self.kernel = kernel
        self.n_landmarks = n_landmarks
        self.variance = variance
        self.approximation = approximation
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from samples X (n x d) and labels y (n x c of 0 and 1, or n classes)."""
        check_parameters(self)
        unused(self, _OPTIONS, METHODS[self.method].parameters)
        chosen = method_options.options(self)
        view, source = check_one_view(self, X, reset=True)
        n = source.shape[0]
        k = count_components(self.n_components, 1, n, n)
        Y, _ = check_known_labels(self, y, n)

        def problem_of(rows: Any) -> tuple[TraceProblem, np.ndarray]:
            known, index = Samples(n, rows, Y[:, Y.any(axis=0)]).labeled()
            return duplicated(self.method, known, chosen, self.weighted), index

        road = (self.kernel, self.approximation, self.n_landmarks, self.random_state, self.variance)
        self._learn(embed(problem_of, view, source, k, *road))
        return self

    @property
    def _title(self) -> str:
        return f"MESD({self.method!r})"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
