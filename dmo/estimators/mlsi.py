"""Multi-label informed latent semantic indexing: MLSI, for text."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from dmo.estimators.arguments import LinearEngine
from dmo.estimators.projector import ProjectionOptions
from dmo.estimators.regularized_projection import RegularizedProjection
from dmo.labels.kernels import LabelKernel
from dmo.methods.embeddings.morp import Form
from dmo.validation import FLAG, Need, check_one_view, check_parameters, one_of


class MLSI(RegularizedProjection):
    """Multi-label informed latent semantic indexing: a few directions of word space that know the labels.

    They are the top directions of C = (1 - mixing) X X' + mixing (tr X X' / tr Y Y') Y Y', as linear functions
    of the words, nothing centered. mixing = 0 is latent semantic indexing. Sparse rows stay sparse.

    Parameters
    ----------
    mixing, n_components, label_kernel, tol, max_iter, random_state : as in `MORP`
    ridge : float >= 0
        Ridge of X'X + ridge I. At 0 the primal problem takes the pseudo-inverse; the dual one takes a ridge of 1e-7 of
        the mean squared length of the rows in its place, so that equal documents do no harm.
    form : "direct", "simplified" or "regularized"
        As in `MORP`; "regularized" is the paper's eq. 12 and needs rows that are linearly independent.
    scaled : bool
        Coordinates times the root of their eigenvalue, as in MORP, so that strong directions weigh more in what learns
        from them; False: v'v = 1, the paper's directions alone ("we ... ignore possible scaling factors", below eq. 7).
    dual : bool or "auto"
        Solve for n coefficients of documents (Table 2 of the paper: one n x n factorization, 8 n^2 bytes), or for d
        coefficients of words (Table 1: moments of d x d, from one pass); "auto" takes the smaller problem.
    approximation : "auto", "exact", Krylov(...) or Nystrom(...)
        Where documents and words are both many: w in a Krylov subspace of words (a few passes over the rows), or in the
        span of some landmark documents (one pass). "auto" is exact up to 4096 documents or words, else Krylov().

    Attributes: expansion_, components_ (d x n_components, of the exact fit), eigenvalues_, n_components_, embedding_ (of
    the dual fit), n_iter_.
    Source: Yu, Yu, Tresp 2005 (SIGIR), "Multi-label informed latent semantic indexing", eqs. 1-12, tables 1 and 2.
    """

    _needs: ClassVar[dict[str, Need]] = RegularizedProjection._needs | {
        "dual": one_of(True, False, "auto"),
        "scaled": FLAG,
    }

    def __init__(
        self,
        *,
        mixing: float = 0.5,
        ridge: float = 0.0,
        n_components: int = 2,
        form: Form = "direct",
        scaled: bool = True,
        dual: bool | Literal["auto"] = "auto",
        label_kernel: LabelKernel = "linear",
        approximation: LinearEngine = "auto",
        tol: float = 1e-6,
        max_iter: int = 300,
        random_state: int | None = 0,
    ):
        self.mixing = mixing
        self.ridge = ridge
        self.n_components = n_components
        self.form = form
        self.scaled = scaled
        self.dual = dual
        self.label_kernel = label_kernel
        self.approximation = approximation
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from documents X (n x d, sparse or dense rows) and labels y (n x L, n classes, or as its kernel asks)."""
        check_parameters(self)
        view, source = check_one_view(self, X, reset=True)
        dual = None if self.dual == "auto" else bool(self.dual)
        road = ProjectionOptions(
            "linear", self.approximation, self.tol, self.max_iter, self.random_state, dual, floor=1e-7
        )
        self._fit_form(view, source, y, False, road, self.scaled)
        return self

    @property
    def components_(self) -> Any:
        """d x n_components: the function of a document x is x components_."""
        return self.expansion_.coefficients  # type: ignore[attr-defined]
