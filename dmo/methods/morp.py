"""Multi-output regularized projection (MORP), and multi-label informed latent semantic indexing (MLSI) for text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar, Literal, Self

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
    are_sparse_labels,
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
    """Base class of projections that represent both the inputs and the outputs."""

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
        if not (self._decodes and are_sparse_labels(y)):
            return self._read_factor(views, y, weights, self.label_kernel)
        self.outputs_ = None
        Y, known = check_partial_labels(self, y, sample_count(views))
        if known is not None:
            raise UserError(f"unknown labels need dense labels, and these are {Y.shape[1]}; pass fewer")
        return Data.of(views, note_many(Y) if are_many(Y) else LabelRows(Y), weights, passive=True)

    def _form(self) -> tuple[ProjectionOptions, bool, bool]:
        """Return the options of the solver, whether rows are centered, and whether coordinates are scaled."""
        raise NotImplementedError

    def _task(self) -> FormTask:
        _, center, scaled = self._form()
        return FormTask(self.form, Options(mixing=float(self.mixing), ridge=float(self.ridge)), center, scaled)

    @property
    def _factors(self) -> tuple[Any, bool]:
        options, center, _ = self._form()
        return options.kernel, center

    def _learn(self, data: Data) -> None:
        """Solve the eigenproblem of the form and fit the decoder."""
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
    r"""Multi-output regularized projection, with few features that represent the inputs and predict all outputs.

    The features are linear functions of a kernel of the inputs, so that new samples can be projected.

    Unknown entries of an output matrix, such as missing ratings, are imputed first. A ridge regression with the same
    kernel predicts each output from the samples in which it is known. In the paper, missing ratings are zeros.

    Parameters
    ----------
    kernel : str or Kernel, default="rbf"
        Kernel of the inputs. "linear" selects the linear form, for dense or sparse rows.
    mixing : float in [0, 1], default=0.5
        Weight of the outputs (beta in the paper).
    ridge : float, default=0.001
        Ridge of the functions, at least 0, in units of the kernel, which is not normalized. A ridge of 0 requires a
        kernel of full rank. The exceptions are mixing = 0, low-rank kernels and the linear primal form, which use the
        pseudo-inverse.
    n_components : int, default=2
        Number of dimensions.
    form : {"simplified", "regularized", "direct"}, default="simplified"
        "simplified" computes the eigenvectors of C, and then a ridge regression of them on the inputs. "regularized" is
        the regularized problem of the paper; it raises an error if the kernel does not have full rank. "direct" solves
        X'CXw = lambda (X'X + ridge I)w. See `dmo.methods.projector`.
    label_kernel : str, Kernel, SetKernel or SequenceKernel, default="linear"
        Similarity of the outputs, which are vectors ("linear", or a kernel or its name), sets or sequences. With
        "precomputed", y is the n x n similarity matrix.
    center : bool, default=True
        Center both kernels. New rows are centered with the training means.
    approximation : {"auto", "exact", "nystrom", "meka", "best"}, or Exact, Nystrom, Meka or BestLowRank, default="auto"
        "auto" is exact for linear kernels, and if the kernel and its factor fit in memory. Otherwise, it selects the
        better of Nystrom and MEKA. The reason is logged.
    tol : float, default=1e-6
        Residual of the eigenpairs relative to the largest eigenvalue.
    max_iter : int, default=300
        Maximum number of block steps of the eigensolver. A ConvergenceWarning is issued if it is reached.
    %(decoder)s
    %(random_state)s
    %(prepare)s
    %(class_weight)s

    Attributes
    ----------
    expansion_ : Expansion
        Fitted function that computes coordinates of new samples.
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues, in descending order.
    n_components_ : int
        Number of dimensions.
    embedding_ : ndarray of shape (n, n_components)
        Coordinates of the training samples. It is missing if the fit does not compute them.
    decoder_ : ndarray of shape (n_components, L)
        Coefficients from coordinates to outputs, for `decision_function`: least squares, or discriminants of classes.
    decoder_offset_ : ndarray of shape (L,)
        Offset of the decoder.
    n_iter_ : int
        Number of block steps of the eigensolver.

    Notes
    -----
    The features approximate the leading eigenvectors of

    .. math:: C = (1 - \beta) K + \beta \frac{\mathrm{tr} K}{\mathrm{tr} K_Y} K_Y,

    where K is a kernel of the inputs, K_Y is a kernel of the outputs, and beta is `mixing`. With mixing = 0, MORP is kernel
    PCA.

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
        """Fit the projection.

        Parameters
        ----------
        X : rows of shape (n, d)
            Samples: a NumPy, SciPy sparse, dask or Zarr array in chunks of whole rows.
        y : array-like of shape (n, L) or (n,)
            Outputs as numbers, n classes, or the outputs that the label kernel requires. In a matrix, NaN, None and
            masked entries are unknown.
        sample_weight : array-like of shape (n,) or None, default=None
            Sample weights. They do not affect the choice of landmarks.

        Returns
        -------
        MORP
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters, rows and outputs do not match, or if form="regularized" and the kernel is rank-deficient.
        """
        return self._fit(X, y, sample_weight)

    def _form(self) -> tuple[ProjectionOptions, bool, bool]:
        options = ProjectionOptions(self.kernel, self.approximation, self.tol, self.max_iter, self.random_state)
        return options, bool(self.center), True


@parametrized
class MLSI(RegularizedProjection):
    r"""Multi-label informed latent semantic indexing, with few directions of word space that reflect the labels.

    The directions are linear functions of the words. Features are not centered, and sparse rows stay sparse. Unknown
    entries of a label matrix are imputed by a ridge regression of each label, fitted on the documents in which the label
    is known.

    Parameters
    ----------
    mixing : float in [0, 1], default=0.5
        Weight of the labels (beta in the paper).
    ridge : float, default=0.0
        Ridge of X'X + ridge I, at least 0. With 0, the primal problem uses the pseudo-inverse. The dual problem uses
        1e-7 times the mean squared length of the rows instead, because identical documents make it singular.
    n_components : int, default=2
        Number of dimensions.
    form : {"direct", "simplified", "regularized"}, default="direct"
        "direct" solves X'CXw = lambda (X'X + ridge I)w. "simplified" computes the eigenvectors of C, and then a ridge
        regression of them on the inputs. "regularized" is equation 12 of the paper, which requires linearly independent
        rows.
    scaled : bool, default=True
        Multiply coordinates by the square root of their eigenvalue, as in MORP, so that strong directions have more
        influence on later models. False keeps v'v = 1, the directions of the paper without a scale ("we ... ignore
        possible scaling factors", below eq. 7).
    dual : bool or "auto", default="auto"
        True solves for n coefficients of documents (Table 2 of the paper), with one n x n factorization in 8 n^2 bytes.
        False solves for d coefficients of words (Table 1), with d x d moments from one pass over the data. "auto"
        selects the smaller problem.
    label_kernel : str, Kernel, SetKernel or SequenceKernel, default="linear"
        Similarity of the labels, which are vectors ("linear", or a kernel or its name), sets or sequences. With
        "precomputed", y is the n x n similarity matrix.
    approximation : {"auto", "exact", "krylov", "nystrom"}, or Exact, Krylov or Nystrom, default="auto"
        Approximation for many documents and words. "krylov" restricts w to a Krylov subspace of words, with a few
        passes over the data. "nystrom" restricts it to the span of some landmark documents, with one pass. "auto" is
        exact up to 4096 documents or words, and otherwise Krylov().
    tol : float, default=1e-6
        Residual of the eigenpairs relative to the largest eigenvalue.
    max_iter : int, default=300
        Maximum number of block steps of the eigensolver. A ConvergenceWarning is issued if it is reached.
    %(decoder)s
    %(random_state)s
    prepare : Prepare, str or mapping of view to str, default="none"
        Preparation of rows before the fit; see `Prepare`. By default, documents are not scaled.
    %(class_weight)s

    Attributes
    ----------
    expansion_ : LinearExpansion
        Fitted function that computes coordinates of new documents.
    components_ : ndarray of shape (n_components, d)
        Directions of word space, for fits without landmarks.
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues, in descending order.
    n_components_ : int
        Number of dimensions.
    embedding_ : ndarray of shape (n, n_components)
        Coordinates of the training documents, for the dual problem.
    decoder_ : ndarray of shape (n_components, L)
        Coefficients from coordinates to labels, for `decision_function`: least squares, or discriminants of classes.
    decoder_offset_ : ndarray of shape (L,)
        Offset of the decoder.
    n_iter_ : int
        Number of block steps of the eigensolver.

    Notes
    -----
    The projected documents approximate the leading eigenvectors of

    .. math:: C = (1 - \beta) X X' + \beta \frac{\mathrm{tr} X X'}{\mathrm{tr} Y Y'} Y Y',

    where X contains the words, Y the labels, and beta is `mixing`. With mixing = 0, MLSI is latent semantic indexing.

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
        """Fit the directions.

        Parameters
        ----------
        X : rows of shape (n, d)
            Documents, sparse or dense: a SciPy sparse, NumPy, dask or Zarr array in chunks of whole rows.
        y : array-like of shape (n, L) or (n,)
            Labels as numbers, n classes, or the outputs that the label kernel requires. In a matrix, NaN, None and
            masked entries are unknown.
        sample_weight : array-like of shape (n,) or None, default=None
            Weights of the documents. They do not affect the choice of landmarks.

        Returns
        -------
        MLSI
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters, rows and labels do not match.
        """
        return self._fit(X, y, sample_weight)

    def _form(self) -> tuple[ProjectionOptions, bool, bool]:
        dual = None if self.dual == "auto" else bool(self.dual)
        options = ProjectionOptions(
            "linear", self.approximation, self.tol, self.max_iter, self.random_state, dual, floor=1e-7
        )
        return options, False, self.scaled
