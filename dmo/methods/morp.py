"""Multi-output regularized projection (MORP), and the fit that it shares with MLSI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils import Tags

from dmo.blocks import Rows
from dmo.fit.krylov import Krylov
from dmo.fit.ridge_solves import directions
from dmo.inputs import (
    COUNT,
    FLAG,
    NOT_NEGATIVE,
    SHARE,
    Need,
    Prepare,
    Scales,
    check_label_factor,
    check_many_labels,
    check_parameters,
    check_row_weights,
    check_views,
    count_components,
    one_of,
    only_view,
)
from dmo.labels.label_kernels import LabelKernel
from dmo.methods.base import Decoder, Engine, Inputs, KernelSpec, Outputs, RowWeights
from dmo.methods.filling import filled_labels
from dmo.methods.projection import DecodingProjection
from dmo.methods.projector import ProjectionOptions, project
from dmo.methods.quadratic_forms import Options
from dmo.methods.ridge import MultiViewRidge
from dmo.methods.tasks import FORMS, Form, FormTask
from dmo.parameters import parametrized


class RegularizedProjection(DecodingProjection):
    """A projection that keeps the inputs and predicts the outputs, which it can score."""

    _needs: ClassVar[dict[str, Need]] = DecodingProjection._needs | {
        "mixing": SHARE,
        "ridge": NOT_NEGATIVE,
        "n_components": COUNT,
        "form": one_of(*FORMS),
    }

    mixing: float
    ridge: float
    n_components: int
    form: Form
    label_kernel: LabelKernel

    @property
    def _decodes(self) -> bool:
        return isinstance(self.label_kernel, str) and self.label_kernel == "linear"

    def _fit_form(
        self,
        views: Mapping[str, Rows],
        y: Any,
        sample_weight: Any,
        center: bool,
        options: ProjectionOptions,
        scaled: bool = True,
    ) -> None:
        """Solve the form for its mixing, ridge, n_components and label kernel."""
        view, source = only_view(views)
        n = source.shape[0]
        k = count_components(self.n_components, 1, n, n)
        weights = check_row_weights(sample_weight, n)
        many = check_many_labels(self, y, n) if self.label_kernel == "linear" else None
        V = known = None
        if many is not None:
            labels, V = directions(many, k, options.random_state)
            counts = np.ones(n) if weights is None else weights
            self.outputs_ = None
            self._learn_rule(many.T @ counts / counts.sum(), float(counts.sum()))
            self.decoding_ = None
        else:
            labels, known = check_label_factor(self, y, n, self.label_kernel, weights)
            given = labels if known is None else np.where(known, labels, 0.0)
            self._learn_outputs(given, y, weights)
            self._learn_rule(np.average(labels, axis=0, weights=weights), self.rule_.n_train)
        if known is not None:
            engine: Any = "auto" if isinstance(options.approximation, Krylov) else options.approximation
            regression = MultiViewRidge(options.kernel, approximation=engine, random_state=options.random_state)
            labels = filled_labels(regression, {view: source}, labels, known, weights)
        task = FormTask(self.form, Options(mixing=float(self.mixing), ridge=float(self.ridge)), center, scaled)
        classes = self._scores_labels and not self.multilabel_
        learn = self._learner if classes else None
        self._learn(project(task, view, source, labels, k, options, weights, learn))
        if classes and not hasattr(self, "decoder_"):
            self._fit_decoder(view, source, labels, weights)
        if V is not None:
            self.decoder_, self.decoder_offset_ = self.decoder_ @ V.T, self.decoder_offset_ @ V.T
        elif self._decodes:
            self._learn_row_decisions(views, given, weights, known)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


@parametrized
class MORP(RegularizedProjection):
    """Multi-output regularized projection: a few features that keep the inputs and predict all outputs.

    They are the top directions of C = (1 - mixing) K + mixing (tr K / tr K_Y) K_Y, for K a kernel of the
    inputs and K_Y a kernel of the outputs, as functions of new inputs. mixing = 0 is kernel PCA. Unknown entries of a matrix
    of outputs (missing ratings) take what a ridge regression of each output on its own known samples predicts, with the
    same kernel, before the directions are sought; the paper's ratings that were not given are zeros.

    Parameters
    ----------
    kernel : str or Kernel, default="rbf"
        Kernel of the inputs; "linear" is the linear form, on dense or sparse rows.
    mixing : float in [0, 1], default=0.5
        beta: share of the outputs.
    ridge : float, default=0.001
        Ridge of the functions, in units of the kernel (of the trace that it has), at least 0. 0 needs a kernel of
        full rank,
        unless mixing is 0 or the kernel is low-rank or linear in the primal, where the pseudo-inverse serves.
    n_components : int, default=2
        Dimensions of the space.
    form : {"simplified", "regularized", "direct"}, default="simplified"
        Eigenvectors of C and then a ridge regression of them; the paper's regularized problem, which needs a kernel of
        full rank and refuses another; or the direct one, X'CXw = lambda (X'X + ridge I)w. See
        `dmo.methods.tasks`.
    label_kernel : str, Kernel, SetKernel or SequenceKernel, default="linear"
        Similarity of the outputs: vectors ("linear", or a kernel or its name), sets, sequences, or with "precomputed" the
        n x n matrix itself as y.
    center : bool, default=True
        Center both kernels (new rows by the training means).
    approximation : {"auto", "exact", "nystrom", "meka", "best"}, or Exact, Nystrom, Meka or BestLowRank, default="auto"
        "auto" is exact where the kernel and its factor fit in memory (and for linear kernels), else the better of
        Nystrom and MEKA; the reason is logged.
    tol : float, default=1e-6
        Residual of the eigenpairs relative to the largest eigenvalue.
    max_iter : int, default=300
        Block steps of the eigenproblem; a ConvergenceWarning says when they ran out.
    %(decoder)s
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    expansion_ : Expansion
        The fitted function of new samples.
    eigenvalues_ : ndarray of shape (n_components,)
        Descending.
    n_components_ : int
        Dimensions of the space.
    embedding_ : ndarray of shape (n, n_components)
        Coordinates of the training samples, where the fit gives them.
    decoder_ : ndarray of shape (n_components, L)
        Least squares from coordinates to outputs, for `decision_function`.
    decoder_offset_ : ndarray of shape (L,)
        Its offset.
    n_iter_ : int
        Block steps taken.

    References
    ----------
    Yu, Yu, Tresp 2005, "Multi-output regularized feature projection", equations 6 and 11-16.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import MORP
    >>> X, Y = make_multilabel_classification(n_samples=200, n_classes=5, random_state=0)
    >>> model = MORP("rbf", mixing=0.5, n_components=3).fit(X, Y)
    >>> model.transform(X).shape, model.decision_function(X).shape
    ((200, 3), (200, 5))
    """

    _needs: ClassVar[dict[str, Need]] = RegularizedProjection._needs | {"center": FLAG}

    kernel: KernelSpec = "rbf"
    _: KW_ONLY
    mixing: float = 0.5
    ridge: float = 1e-3
    n_components: int = 2
    form: Form = "simplified"
    label_kernel: LabelKernel = "linear"
    center: bool = True
    approximation: Engine = "auto"
    tol: float = 1e-6
    max_iter: int = 300
    decoder: Decoder = None
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"

    def fit(self, X: Inputs, y: Outputs | None = None, sample_weight: RowWeights = None) -> Self:
        """Learn the projection.

        Parameters
        ----------
        X : rows of shape (n, d)
            Samples: a NumPy, SciPy sparse, dask or Zarr array in chunks of whole rows.
        y : array-like of shape (n, L) or (n,)
            Outputs: numbers, n classes, or what the label kernel asks for. In a matrix NaN, None and masked entries are
            unknown.
        sample_weight : array-like of shape (n,) or None, default=None
            How often every sample counts. Landmarks are drawn from all samples alike.

        Returns
        -------
        MORP
            This estimator, fitted.

        Raises
        ------
        UserError
            For parameters, rows or outputs that do not fit together; for form="regularized" on a kernel without full rank.
        """
        check_parameters(self)
        views = check_views(self, X, reset=True)
        options = ProjectionOptions(self.kernel, self.approximation, self.tol, self.max_iter, self.random_state)
        self._fit_form(views, y, sample_weight, bool(self.center), options)
        return self
