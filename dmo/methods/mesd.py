"""Multi-label embedding by sample duplication (MESD), computed without copies of the samples."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from dmo.errors import TooFewSamples, UserError
from dmo.inputs import (
    COUNT,
    FLAG,
    ClassWeight,
    Data,
    Inputs,
    Need,
    Outputs,
    Prepare,
    Scales,
    count_components,
    one_of,
    unused,
)
from dmo.methods.catalog import METHODS, parameters
from dmo.methods.discriminant import DISCRIMINANTS, SCATTERS, duplicated
from dmo.methods.options import Decoder, Engine, Graph, KernelSpec, MethodOptions
from dmo.methods.projection import DecodingProjection
from dmo.methods.projector import check_has_features, embed
from dmo.methods.quadratic_forms import NEEDS, Options, TraceProblem, TraceSamples
from dmo.parameters import Part, parametrized

_OPTIONS = parameters("supervised")


@parametrized
class MESD(DecodingProjection):
    """Multi-label embedding by sample duplication (MESD).

    MESD applies a supervised embedding for classes to multi-label data: a sample with several labels is treated as
    several samples with one label each. Samples without labels are ignored in the fit. Parameters that the chosen
    method does not use raise an error.

    Parameters
    ----------
    method : str, default="fda"
        Supervised embedding: "fda", "lfda", "mfa", "mmc", "dla", "dne", "olpp-r", "sonpp", "donpp" or "onpp-r". See
        `TraceEmbedding.methods`.
    weighted : bool, default=False
        Whether to divide each entry of the n x n matrices of the method by the numbers of labels of both samples.
        Without this division, samples with many labels have a larger weight.
    n_components : int, default=2
        Number of coordinates, which "fda" limits to the number of classes minus 1.
    ridge : float or None, default=None
        Regularization strength of "fda", "lfda" and "mfa", at least 0. The value depends on the units of the features.
        None: 0.001.
    graph : Graph or None, default=None
        Neighbor graph, of which only `n_neighbors`, `adjacency` (including "sum") and `metric` are used. By default,
        neighbors are the 15 nearest samples in Euclidean distance, with adjacency "union". The methods "lfda", "sonpp",
        "donpp" and "onpp-r" connect all samples of the same class by default.
    options : MethodOptions or None, default=None
        Options of individual methods: `n_repelled`, `regularization`, `penalty` and `repulsion`.
    kernel : str or Kernel, default="linear"
        Kernel of the features. "linear" projects the features themselves.
    n_landmarks : int or None, default=None
        Number of random training samples whose similarities replace the features. The similarities are values of
        `kernel`, or distances if `kernel` is "euclidean". None means that no landmarks are used.
    variance : float in (0, 1] or None, default=None
        Fraction of the variance of the features that a PCA before the embedding keeps. None means no PCA.
    approximation : {"auto", "exact", "nystrom", "meka", "best"}, Exact, Nystrom, Meka or BestLowRank, default="exact"
        Exact or low-rank kernel. "auto" uses the exact kernel if it fits in memory.
    %(decoder)s
    %(random_state)s
    %(prepare)s
    %(class_weight)s

    Attributes
    ----------
    expansion_ : Expansion
        Fitted function that computes the coordinates of new samples.
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues in descending order.
    n_components_ : int
        Number of coordinates.

    References
    ----------
    Mu, Goulermas, Tsujii, Ananiadou 2012, equations 32 and 33.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import MESD
    >>> X, Y = make_multilabel_classification(n_samples=200, n_classes=5, random_state=0)
    >>> MESD("fda", n_components=2).fit(X, Y).transform(X).shape
    (200, 2)
    """

    _takes_unknown_classes = True
    _whole_kernel = True
    _graph = Part(Graph, n_neighbors=None, adjacency=None, metric=None)
    _options = Part(MethodOptions, n_repelled=None, regularization=None, penalty=None, repulsion=None)
    _needs: ClassVar[dict[str, Need]] = DecodingProjection._needs | {
        "method": one_of(*DISCRIMINANTS),
        "weighted": FLAG,
        "n_components": COUNT,
        "graph__adjacency": NEEDS["adjacency"],
        **{name: NEEDS[name] for name in ("ridge", "n_landmarks", "variance")},
    }

    method: str = "fda"
    _: KW_ONLY
    weighted: bool = False
    n_components: int = 2
    ridge: float | None = None
    graph: Graph | None = None
    options: MethodOptions | None = None
    kernel: KernelSpec = "linear"
    n_landmarks: int | None = None
    variance: float | None = None
    approximation: Engine = "exact"
    decoder: Decoder = None
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"
    class_weight: ClassWeight = None

    def fit(self, X: Inputs, y: Outputs | None = None, sample_weight: ArrayLike | None = None) -> Self:
        """Fit the embedding to samples and labels.

        Parameters
        ----------
        X : rows of shape (n, d)
            Training samples, which are read into memory.
        y : array-like of shape (n, L) or (n,)
            Label matrix of 0 and 1, or vector of n classes. Samples without labels are ignored.
        sample_weight : array-like of shape (n,) or None, default=None
            Sample weights, which only "fda" and "mmc" with weighted=False support. Landmarks are drawn with equal
            probability from the samples with a positive weight.

        Returns
        -------
        MESD
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters, rows or labels are invalid.
        """
        return self._fit(X, y, sample_weight)

    def _begin(self) -> None:
        unused(self, _OPTIONS, METHODS[self.method].parameters)
        if self.method not in SCATTERS:
            check_has_features(self.kernel, f"method {self.method!r}")

    def _learn(self, data: Data) -> None:
        (view, source), Y, weights, n, chosen = data.only, data.Y, data.often, data.n, Options.of(self)
        k = count_components(self.n_components, 1, n, n)
        classes = int((Y if weights is None else Y[weights > 0]).any(axis=0).sum())
        if classes < 2 and not self.multilabel_ and self.method == "fda":
            raise TooFewSamples("method 'fda' separates classes, but y has one class; pass samples of two classes")
        if self.method == "fda" and classes > 1:  # The centered class means span at most `classes` - 1 directions.
            k = self._fewer("n_components", k, classes - 1)
        if weights is not None and (self.weighted or self.method not in SCATTERS):
            raise UserError(
                f"method {self.method!r}{' with weighted=True' * self.weighted} does not support sample_weight and "
                f"class_weight; repeat rows, or use one of {', '.join(SCATTERS)} with weighted=False"
            )
        carried = Y[:, Y.any(axis=0)] if weights is None else weights[:, None] * Y[:, Y.any(axis=0)]

        def problem_of(rows: Any) -> tuple[TraceProblem, np.ndarray]:
            known, index = TraceSamples(n, rows, carried).labeled()
            return duplicated(self.method, known, chosen, self.weighted), index

        options = (self.kernel, self.approximation, self.n_landmarks, self.random_state, self.variance)
        self._keep(embed(problem_of, view, source, k, *options, weights=weights))
        self._fit_decoder(view, source, Y, data.weights.labels)

    @property
    def _title(self) -> str:
        return f"MESD({self.method!r})"
