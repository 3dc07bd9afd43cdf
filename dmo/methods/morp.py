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
    """Base class of projections whose coordinates represent both the inputs and the outputs."""

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
        """Return the solver options, whether to center the rows, and whether to scale the coordinates."""
        raise NotImplementedError

    def _task(self) -> FormTask:
        _, center, scaled = self._form()
        return FormTask(self.form, Options(mixing=float(self.mixing), ridge=float(self.ridge)), center, scaled)

    @property
    def _factors(self) -> tuple[Any, bool]:
        options, center, _ = self._form()
        return options.kernel, center

    def _learn(self, data: Data) -> None:
        """Solve the eigenproblem and fit the decoder."""
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
    r"""Multi-output regularized projection, a supervised form of kernel PCA.

    MORP projects the inputs to a few coordinates that represent the inputs and predict all outputs.

    Unknown entries of an output matrix, such as missing ratings, are imputed first. A ridge regression with the same
    kernel predicts each output from the samples in which it is known. In the paper, missing ratings are zeros.

    Parameters
    ----------
    kernel : str or Kernel, default="rbf"
        Kernel of the inputs. With "linear", rows can be dense or sparse.
    mixing : float in [0, 1], default=0.5
        Weight of the outputs, called beta in the paper.
    ridge : float, default=0.001
        Regularization strength, at least 0, in the units of the kernel, which is not normalized. A ridge of 0 requires
        a kernel matrix of full rank. The exceptions are mixing=0, low-rank kernels, and linear kernels with at most as
        many features as samples.
    n_components : int, default=2
        Number of coordinates.
    form : {"simplified", "regularized", "direct"}, default="simplified"
        Eigenproblem to solve, where the Notes define the matrix C. "simplified" computes the eigenvectors of C and fits
        them by ridge regression on the inputs. "direct" solves X'CXw = lambda (X'X + ridge I)w. "regularized" is the
        regularized problem of the paper, which requires a kernel matrix of full rank.
    label_kernel : str, Kernel, SetKernel or SequenceKernel, default="linear"
        Kernel of the outputs. Use a kernel or its name for vectors, a `SetKernel` for sets, and a `SequenceKernel` for
        sequences. With "precomputed", y is the n x n kernel matrix.
    center : bool, default=True
        Whether to center both kernels. New rows are centered with the training means.
    approximation : {"auto", "exact", "nystrom", "meka", "best"}, or Exact, Nystrom, Meka or BestLowRank, default="auto"
        Exact or low-rank kernel. "auto" is exact if the kernel matrix and its factor fit in memory. Otherwise, it
        selects the better of the Nystrom and MEKA approximations. For a linear kernel, "auto" is exact up to 4096
        samples or features, and otherwise uses a Krylov subspace. The reason is logged.
    tol : float, default=1e-6
        Tolerance for the residuals of the eigenpairs, relative to the largest eigenvalue.
    max_iter : int, default=300
        Maximum number of block steps of the eigensolver, after which a ConvergenceWarning is issued.
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
    embedding_ : ndarray of shape (n, n_components)
        Coordinates of the training samples, if the fit computes them.
    decoder_ : ndarray of shape (n_components, L)
        Coefficients of the coordinates in `decision_function`. They are fitted by least squares, or by linear
        discriminant analysis for classes.
    decoder_offset_ : ndarray of shape (L,)
        Intercept of each label or output in `decision_function`.
    n_iter_ : int
        Number of block steps of the eigensolver.

    Notes
    -----
    The coordinates approximate the leading eigenvectors of

    .. math:: C = (1 - \beta) K + \beta \frac{\mathrm{tr} K}{\mathrm{tr} K_Y} K_Y,

    where K is the kernel matrix of the inputs, K_Y is the kernel matrix of the outputs, and beta is `mixing`. With
    mixing=0, MORP is kernel PCA.

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
        """Fit the projection to inputs and outputs.

        Parameters
        ----------
        X : rows of shape (n, d)
            Training samples as a NumPy, SciPy sparse, dask or Zarr array in chunks of whole rows.
        y : array-like of shape (n, L) or (n,)
            Matrix of labels or numbers, vector of n classes, or the outputs that `label_kernel` compares. In a matrix,
            entries that are NaN, None or masked are unknown.
        sample_weight : array-like of shape (n,) or None, default=None
            Sample weights, which do not affect the choice of landmarks if they are positive.

        Returns
        -------
        MORP
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters are invalid, if X and y do not match, or if form="regularized" and the kernel matrix does not
            have full rank.
        """
        return self._fit(X, y, sample_weight)

    def _form(self) -> tuple[ProjectionOptions, bool, bool]:
        options = ProjectionOptions(self.kernel, self.approximation, self.tol, self.max_iter, self.random_state)
        return options, bool(self.center), True


@parametrized
class MLSI(RegularizedProjection):
    r"""Multi-label informed latent semantic indexing, a supervised form of latent semantic indexing.

    The coordinates of a document are a few linear functions of its words, which also predict its labels. Features are
    not centered, so sparse rows stay sparse. Unknown entries of a label matrix are imputed first, by a ridge regression
    of each label on the documents in which it is known.

    Parameters
    ----------
    mixing : float in [0, 1], default=0.5
        Weight of the labels, called beta in the paper.
    ridge : float, default=0.0
        Regularization strength, at least 0. With 0, the primal problem uses the pseudo-inverse. The dual problem
        replaces a ridge of 0 by 1e-7 times the mean squared length of the rows, because identical documents would make
        the problem singular.
    n_components : int, default=2
        Number of coordinates.
    form : {"direct", "simplified", "regularized"}, default="direct"
        Eigenproblem to solve, where the Notes define the matrix C. "direct" solves X'CXw = lambda (X'X + ridge I)w.
        "simplified" computes the eigenvectors of C and fits them by ridge regression on the words. "regularized" is
        equation 12 of the paper, which requires linearly independent rows.
    scaled : bool, default=True
        Whether to multiply each coordinate by the square root of its eigenvalue, as in MORP. Coordinates with large
        eigenvalues then have more influence on later models. The paper ignores "possible scaling factors" (below
        equation 7).
    dual : bool or "auto", default="auto"
        Whether to solve the dual problem, which has one coefficient per document (Table 2 of the paper) and factorizes
        an n x n matrix of 8 n^2 bytes. The primal problem has one coefficient per word (Table 1) and computes a d x d
        matrix in one pass over the data. "auto" selects the smaller problem.
    label_kernel : str, Kernel, SetKernel or SequenceKernel, default="linear"
        Kernel of the labels. Use a kernel or its name for vectors, a `SetKernel` for sets, and a `SequenceKernel` for
        sequences. With "precomputed", y is the n x n kernel matrix.
    approximation : {"auto", "exact", "krylov", "nystrom"}, or Exact, Krylov or Nystrom, default="auto"
        Approximation for many documents and words. "krylov" restricts the directions w to a Krylov subspace, with a few
        passes over the data. "nystrom" restricts w to the span of some landmark documents, with one pass. "auto" is
        "exact" up to 4096 documents or words, and otherwise "krylov".
    tol : float, default=1e-6
        Tolerance for the residuals of the eigenpairs, relative to the largest eigenvalue.
    max_iter : int, default=300
        Maximum number of block steps of the eigensolver, after which a ConvergenceWarning is issued.
    %(decoder)s
    %(random_state)s
    prepare : Prepare, str or mapping of view to str, default="none"
        Preprocessing of the rows, see `Prepare`. By default, documents are not scaled.
    %(class_weight)s

    Attributes
    ----------
    expansion_ : LinearExpansion
        Fitted function that computes the coordinates of new documents.
    components_ : ndarray of shape (n_components, d)
        Coefficients of the words in each coordinate, for fits without landmarks.
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues in descending order.
    n_components_ : int
        Number of coordinates.
    embedding_ : ndarray of shape (n, n_components)
        Coordinates of the training documents, for the dual problem.
    decoder_ : ndarray of shape (n_components, L)
        Coefficients of the coordinates in `decision_function`. They are fitted by least squares, or by linear
        discriminant analysis for classes.
    decoder_offset_ : ndarray of shape (L,)
        Intercept of each label or output in `decision_function`.
    n_iter_ : int
        Number of block steps of the eigensolver.

    Notes
    -----
    The projected documents approximate the leading eigenvectors of

    .. math:: C = (1 - \beta) X X' + \beta \frac{\mathrm{tr} X X'}{\mathrm{tr} Y Y'} Y Y',

    where X is the matrix of word features, Y is the label matrix, and beta is `mixing`. With mixing=0, MLSI is latent
    semantic indexing.

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
        """Fit the projection to documents and labels.

        Parameters
        ----------
        X : rows of shape (n, d)
            Training documents as a SciPy sparse, NumPy, dask or Zarr array in chunks of whole rows.
        y : array-like of shape (n, L) or (n,)
            Matrix of labels or numbers, vector of n classes, or the outputs that `label_kernel` compares. In a matrix,
            entries that are NaN, None or masked are unknown.
        sample_weight : array-like of shape (n,) or None, default=None
            Weights of the documents, which do not affect the choice of landmarks if they are positive.

        Returns
        -------
        MLSI
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters are invalid, or if X and y do not match.
        """
        return self._fit(X, y, sample_weight)

    def _form(self) -> tuple[ProjectionOptions, bool, bool]:
        dual = None if self.dual == "auto" else bool(self.dual)
        options = ProjectionOptions(
            "linear", self.approximation, self.tol, self.max_iter, self.random_state, dual, floor=1e-7
        )
        return options, False, self.scaled
