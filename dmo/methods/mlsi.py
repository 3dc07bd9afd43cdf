"""Multi-label informed latent semantic indexing: MLSI, for text."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import ClassVar, Literal, Self

from dmo.inputs import FLAG, Need, Prepare, Scales, check_parameters, check_views, one_of
from dmo.labels.label_kernels import LabelKernel
from dmo.methods.base import Decoder, Inputs, LinearEngine, Outputs, RowWeights
from dmo.methods.morp import RegularizedProjection
from dmo.methods.projector import ProjectionOptions
from dmo.methods.tasks import Form
from dmo.parameters import Part, parametrized


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
        check_parameters(self)
        views = check_views(self, X, reset=True)
        dual = None if self.dual == "auto" else bool(self.dual)
        options = ProjectionOptions(
            "linear", self.approximation, self.tol, self.max_iter, self.random_state, dual, floor=1e-7
        )
        self._fit_form(views, y, sample_weight, False, options, self.scaled)
        return self
