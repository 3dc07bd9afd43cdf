"""Multi-output regularized projection: MORP, for features and kernels."""

from __future__ import annotations

from typing import ClassVar, Self

from dmo.estimators.arguments import Decoder, Engine, Inputs, KernelSpec, Outputs, RowWeights
from dmo.estimators.projector import ProjectionOptions
from dmo.estimators.regularized_projection import RegularizedProjection
from dmo.labels.kernels import LabelKernel
from dmo.methods.embeddings.morp import Form
from dmo.validation import FLAG, Need, Prepare, Scales, check_parameters, check_views


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
        `dmo.methods.embeddings.morp`.
    label_kernel : str, Kernel, SetKernel or SequenceKernel, default="linear"
        Similarity of the outputs: vectors ("linear", or a kernel or its name), sets, sequences, or with "precomputed" the
        n x n matrix itself as y.
    center : bool, default=True
        Center both kernels (new rows by the training means).
    approximation : {"auto", "exact"}, Exact, Nystrom, Meka or BestLowRank, default="auto"
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

    def __init__(
        self,
        kernel: KernelSpec = "rbf",
        *,
        mixing: float = 0.5,
        ridge: float = 1e-3,
        n_components: int = 2,
        form: Form = "simplified",
        label_kernel: LabelKernel = "linear",
        center: bool = True,
        approximation: Engine = "auto",
        tol: float = 1e-6,
        max_iter: int = 300,
        decoder: Decoder = None,
        random_state: int | None = 0,
        prepare: Prepare | Scales = "auto",
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
        self.decoder = decoder
        self.random_state = random_state
        self.prepare = prepare

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
