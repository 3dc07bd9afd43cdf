"""Multi-output regularized projection (MORP), and for text multi-label informed latent semantic indexing (MLSI)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse
from sklearn.utils import Tags

from dmo.blocks import Rows
from dmo.errors import UserError
from dmo.inputs import (
    COUNT,
    FLAG,
    NOT_NEGATIVE,
    SHARE,
    ClassWeight,
    Data,
    Inputs,
    LabelRows,
    Need,
    Outputs,
    Prepare,
    RowWeights,
    SampleWeights,
    Scales,
    are_many,
    check_partial_labels,
    count_components,
    directions,
    note_many,
    one_of,
    sample_count,
)
from dmo.labels.label_kernels import LabelKernel
from dmo.methods.filling import complete_labels
from dmo.methods.options import Decoder, Engine, KernelSpec, LinearEngine
from dmo.methods.projection import IncrementalProjection
from dmo.methods.projector import FORMS, Form, FormTask, ProjectionOptions, project
from dmo.methods.quadratic_forms import Options
from dmo.parameters import Part, parametrized


class RegularizedProjection(IncrementalProjection):
    """A projection that keeps the inputs and predicts the outputs, which it can score."""

    _needs: ClassVar[dict[str, Need]] = IncrementalProjection._needs | {
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

    def _read(self, views: Mapping[str, Rows], y: Any, weights: SampleWeights | None) -> Data:
        given: Any = getattr(y, "source", y)
        sparse = self._decodes and scipy.sparse.issparse(given) and given.shape[1] > 1
        if not (sparse and (are_many(given) or np.isin(given.data, (0, 1)).all())):
            return self._read_factor(views, y, weights, self.label_kernel)
        self.outputs_ = None
        Y, known = check_partial_labels(self, y, sample_count(views))
        if known is not None:
            raise UserError(f"unknown labels need dense labels, and these are {Y.shape[1]}; pass fewer")
        return Data.of(views, note_many(Y) if are_many(Y) else LabelRows(Y), weights, passive=True)

    def _form(self) -> tuple[ProjectionOptions, bool, bool]:
        """How the eigenproblem is reached, whether rows are centered, and coordinates scaled."""
        raise NotImplementedError

    def _task(self) -> FormTask:
        _, center, scaled = self._form()
        return FormTask(self.form, Options(mixing=float(self.mixing), ridge=float(self.ridge)), center, scaled)

    @property
    def _factors(self) -> tuple[Any, bool]:
        options, center, _ = self._form()
        return options.kernel, center

    def _learn(self, data: Data) -> None:
        """Solve the form for its mixing, ridge, n_components and label kernel."""
        (view, source), weights, options = data.only, data.often, self._form()[0]
        k = count_components(self.n_components, 1, data.n, data.n)
        labels, V = directions(data.Y, k, options.random_state)
        how = options.kernel, options.approximation, options.random_state
        labels = complete_labels(replace(data, Y=labels), *how).Y
        classes = self._scores_labels and not self.multilabel_
        learn = self._learner if classes else None
        self._keep(project(self._task(), view, source, labels, k, options, weights, learn))
        if classes and not hasattr(self, "decoder_"):
            self._fit_decoder(view, source, labels, weights)
        if V is not None:
            self.decoder_, self.decoder_offset_ = self.decoder_ @ V.T, self.decoder_offset_ @ V.T

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
        `dmo.methods.projector`.
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
    %(class_weight)s

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
    class_weight: ClassWeight = None

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
        return self._fit(X, y, sample_weight)

    def _form(self) -> tuple[ProjectionOptions, bool, bool]:
        options = ProjectionOptions(self.kernel, self.approximation, self.tol, self.max_iter, self.random_state)
        return options, bool(self.center), True


@parametrized
class MLSI(RegularizedProjection):
    """Multi-label informed latent semantic indexing: a few directions of word space that reflect the labels.

    They are the top directions of C = (1 - mixing) X X' + mixing (tr X X' / tr Y Y') Y Y', as linear functions
    of the words, nothing centered. mixing = 0 is latent semantic indexing. Sparse rows stay sparse. Unknown entries of
    a matrix of labels take what a ridge regression of each label on its own known documents predicts.

    Parameters
    ----------
    mixing : float in [0, 1], default=0.5
        beta: share of the labels.
    ridge : float, default=0.0
        Ridge of X'X + ridge I, at least 0. At 0 the primal problem takes the pseudo-inverse; the dual one takes a ridge of
        1e-7 of the mean squared length of the rows in its place, so that equal documents do no harm.
    n_components : int, default=2
        Dimensions of the space.
    form : {"direct", "simplified", "regularized"}, default="direct"
        The direct problem X'CXw = lambda (X'X + ridge I)w; eigenvectors of C and then a ridge regression of them; or the
        paper's equation 12, "regularized", which needs rows that are linearly independent.
    scaled : bool, default=True
        Coordinates times the root of their eigenvalue, as in MORP, so that strong directions weigh more in what learns
        from them; False: v'v = 1, the paper's directions alone ("we ... ignore possible scaling factors", below eq. 7).
    dual : bool or "auto", default="auto"
        Solve for n coefficients of documents (Table 2 of the paper: one n x n factorization, 8 n^2 bytes), or for d
        coefficients of words (Table 1: moments of d x d, from one pass); "auto" takes the smaller problem.
    label_kernel : str, Kernel, SetKernel or SequenceKernel, default="linear"
        Similarity of the labels: vectors ("linear", or a kernel or its name), sets, sequences, or with "precomputed" the
        n x n matrix itself as y.
    approximation : {"auto", "exact", "krylov", "nystrom"}, or Exact, Krylov or Nystrom, default="auto"
        Where documents and words are both many: w in a Krylov subspace of words (a few passes over the rows), or in the
        span of some landmark documents (one pass). "auto" is exact up to 4096 documents or words, else Krylov().
    tol : float, default=1e-6
        Residual of the eigenpairs relative to the largest eigenvalue.
    max_iter : int, default=300
        Block steps of the eigenproblem; a ConvergenceWarning says when they ran out.
    %(decoder)s
    %(random_state)s
    prepare : Prepare, str or mapping of view to str, default="none"
        What is done to rows before anything is learned from them, see `Prepare`; scales of documents are left as they are.
    %(class_weight)s

    Attributes
    ----------
    expansion_ : LinearExpansion
        The fitted function of new documents.
    components_ : ndarray of shape (n_components, d)
        Directions of word space, of a fit without landmarks.
    eigenvalues_ : ndarray of shape (n_components,)
        Descending.
    n_components_ : int
        Dimensions of the space.
    embedding_ : ndarray of shape (n, n_components)
        Coordinates of the training documents, of the dual fit.
    decoder_ : ndarray of shape (n_components, L)
        Least squares from coordinates to labels, for `decision_function`.
    decoder_offset_ : ndarray of shape (L,)
        Its offset.
    n_iter_ : int
        Block steps taken.

    References
    ----------
    Yu, Yu, Tresp 2005 (SIGIR), "Multi-label informed latent semantic indexing", equations 1-12, tables 1 and 2.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from dmo import MLSI
    >>> counts, Y = make_multilabel_classification(n_samples=200, n_classes=5, random_state=0)
    >>> documents = csr_array(counts)
    >>> model = MLSI(mixing=0.3, n_components=3).fit(documents, Y)
    >>> model.transform(documents).shape, model.components_.shape
    ((200, 3), (3, 20))
    """

    _prepare = Part(Prepare, scale="none", impute=None)
    _needs: ClassVar[dict[str, Need]] = RegularizedProjection._needs | {
        "dual": one_of(True, False, "auto"),
        "scaled": FLAG,
    }

    _: KW_ONLY
    mixing: float = 0.5
    ridge: float = 0.0
    n_components: int = 2
    form: Form = "direct"
    scaled: bool = True
    dual: bool | Literal["auto"] = "auto"
    label_kernel: LabelKernel = "linear"
    approximation: LinearEngine = "auto"
    tol: float = 1e-6
    max_iter: int = 300
    decoder: Decoder = None
    random_state: int | None = 0
    prepare: Prepare | Scales = "none"
    class_weight: ClassWeight = None

    def fit(self, X: Inputs, y: Outputs | None = None, sample_weight: RowWeights = None) -> Self:
        """Learn the directions.

        Parameters
        ----------
        X : rows of shape (n, d)
            Documents, sparse or dense: a SciPy sparse, NumPy, dask or Zarr array in chunks of whole rows.
        y : array-like of shape (n, L) or (n,)
            Labels: numbers, n classes, or what the label kernel asks for. In a matrix NaN, None and masked entries are
            unknown.
        sample_weight : array-like of shape (n,) or None, default=None
            How often every document counts. Landmarks are drawn among all documents alike.

        Returns
        -------
        MLSI
            This estimator, fitted.

        Raises
        ------
        UserError
            For parameters, rows or labels that do not fit together.
        """
        return self._fit(X, y, sample_weight)

    def _form(self) -> tuple[ProjectionOptions, bool, bool]:
        dual = None if self.dual == "auto" else bool(self.dual)
        options = ProjectionOptions(
            "linear", self.approximation, self.tol, self.max_iter, self.random_state, dual, floor=1e-7
        )
        return options, False, self.scaled
