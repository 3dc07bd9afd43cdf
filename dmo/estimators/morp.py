"""Multi-output regularized projection: MORP, for features and kernels."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dmo.errors import UserError
from dmo.estimators.projection import Projection
from dmo.estimators.projector import FormTask, ProjectionOptions, project
from dmo.labels.kernels import LabelKernel
from dmo.methods.decoding import unseen_last
from dmo.methods.embeddings.morp import FORMS, Form
from dmo.methods.embeddings.samples import Options
from dmo.validation import bounded, count_components, outputs_factor


class MORP(Projection):
    """Multi-output regularized projection: a few features that keep the inputs and foretell all outputs.

    They are the top directions of C = (1 - mixing) K + mixing (tr K / tr K_Y) K_Y, for K a kernel of the
    inputs and K_Y a kernel of the outputs, as functions of new inputs. mixing = 0 is kernel PCA.

    Parameters
    ----------
    kernel : kernel or its name
        Of the inputs; "linear" is the linear form, on dense or sparse rows.
    mixing : float in [0, 1]
        beta: share of the outputs.
    ridge : float >= 0
        Ridge of the functions, in units of the kernel (of the trace that it has). 0 needs a kernel of full rank, unless
        mixing is 0 or the kernel is low-rank or linear in the primal, where the pseudo-inverse serves.
    n_components : int
    form : "simplified", "regularized" or "direct"
        Eigenvectors of C and then a ridge regression of them; the paper's regularized problem, which needs a kernel of
        full rank and refuses another; or the direct one, X'CXw = lambda (X'X + ridge I)w. See `dmo.methods.morp`.
    label_kernel : "linear", a kernel or its name, SetKernel, SequenceKernel or "precomputed"
        Similarity of the outputs: vectors, sets, sequences, or the n x n matrix itself as y.
    center : bool
        Center both kernels (new rows by the training means).
    approximation : "auto", "exact", Exact(...), Nystrom(...), Meka(...) or BestLowRank(...)
        "auto" is exact where the kernel and its factor fit in memory (and for linear kernels), else the better of
        Nystrom and MEKA; the reason is logged.
    tol : float
        Residual of the eigenpairs relative to the largest eigenvalue.
    max_iter : int
        Block steps of the eigenproblem; a ConvergenceWarning says when they ran out.
    random_state : int or None

    In a numeric y, NaN is a value that was not given (a missing rating) and counts as 0. Attributes: expansion_,
    eigenvalues_ (descending), n_components_, embedding_ (n x n_components, where the fit gives it), n_iter_; decoder_
    and decoder_offset_ of `decision_function`.
    Source: Yu, Yu, Tresp 2005, "Multi-output regularized feature projection", eqs. 6, 11-16.
    """

    def __init__(
        self,
        kernel: Any = "rbf",
        *,
        mixing: float = 0.5,
        ridge: float = 1e-3,
        n_components: int = 2,
        form: Form = "simplified",
        label_kernel: LabelKernel = "linear",
        center: bool = True,
        approximation: Any = "auto",
        tol: float = 1e-6,
        max_iter: int = 300,
        random_state: int | None = 0,
    ):
        self.kernel = kernel
        self.mixing = mixing
        self.ridge = ridge
        self.n_components = n_components
        self.form = form
        self.label_kernel = label_kernel
        self.center = center
        self.approximation = approximation
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from samples X (n x d) and outputs y (n x L numbers, n classes, or as the label kernel asks)."""
        view, source = self._source(X, reset=True)
        road = ProjectionOptions(self.kernel, self.approximation, self.tol, self.max_iter, self.random_state)
        self._learn(fit_form(self, view, source, y, bool(self.center), road))
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores of the outputs for samples X (m x L): least squares from the coordinates; of classes, one column each.

        An output that is 0 in every training sample, a label that none carries, ranks below all others of its row.
        Raises ValueError where a label kernel other than "linear" left no columns to score.
        """
        return decoded(self, X)

    @property
    def n_seen_labels_(self) -> int:
        """Number of outputs that are not 0 in every training sample."""
        return int(seen_outputs(self).sum())

    def __sklearn_tags__(self) -> Tags:
        return supervised_tags(super().__sklearn_tags__())


def fit_form(model: Any, view: str, source: Any, y: Any, center: bool, road: ProjectionOptions) -> Any:
    """Solve `model.form` for its mixing, ridge, n_components and label kernel."""
    who = type(model).__name__
    if model.form not in FORMS:
        raise UserError(f"{who}: form = {model.form!r}; known: {', '.join(map(repr, FORMS))}")
    beta, ridge = bounded(who, "mixing", model.mixing), bounded(who, "ridge", model.ridge)
    n = source.shape[0]
    if isinstance(model.n_components, float):
        raise UserError(f"{who}: n_components must be a whole number, got {model.n_components!r}")
    k = count_components(who, model.n_components, 1, n, n)
    labels = outputs_factor(who, y, n, model.label_kernel)
    task = FormTask(model.form, Options(mixing=beta, ridge=ridge), center)
    try:
        return project(who, task, view, source, labels, k, road)
    except UserError as error:
        if str(error).startswith(who):
            raise
        raise type(error)(f"{who}: {error}") from error


def decoded(model: Any, X: Any) -> np.ndarray:
    """The decoder that the fit left, applied to the coordinates of X."""
    check_is_fitted(model)
    if model.label_kernel != "linear":
        raise UserError(
            f"{type(model).__name__}: outputs with a label kernel have no columns to score; learn from the coordinates"
        )
    return unseen_last(model.transform(X) @ model.decoder_ + model.decoder_offset_, seen_outputs(model))


def seen_outputs(model: Any) -> np.ndarray:
    """Whether an output was ever other than 0 in training (L): the decoder of one that was not is exactly 0."""
    return np.asarray(model.decoder_.any(axis=0) | (model.decoder_offset_ != 0))


def supervised_tags(tags: Tags) -> Tags:
    """Tags of an estimator that needs y."""
    tags.target_tags.required = True
    return tags
