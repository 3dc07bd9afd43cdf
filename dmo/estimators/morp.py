"""Multi-output regularized projection: MORP, for features and kernels."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from dmo.estimators.arguments import Engine, KernelSpec
from dmo.estimators.projector import ProjectionOptions
from dmo.estimators.regularized_projection import RegularizedProjection
from dmo.labels.kernels import LabelKernel
from dmo.methods.embeddings.morp import Form
from dmo.validation import FLAG, Need, check_one_view, check_parameters


class MORP(RegularizedProjection):
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
        Dimensions of the space.
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
        check_parameters(self)
        view, source = check_one_view(self, X, reset=True)
        road = ProjectionOptions(self.kernel, self.approximation, self.tol, self.max_iter, self.random_state)
        self._fit_form(view, source, y, bool(self.center), road)
        return self
