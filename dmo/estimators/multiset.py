"""Multiple-set (kernel) canonical correlation analysis."""

from __future__ import annotations

from typing import Any, Literal, Self

from dmo.engines.lowrank import choose_engine, pass_of
from dmo.estimators.arguments import Engine, KernelSpecs, Ridges
from dmo.estimators.homogeneity_embedding import HomogeneityEmbedding, factor_rows
from dmo.methods.homogeneity.moments import Rotated, RotatedMoments, RotatedRows, homogeneity
from dmo.methods.homogeneity.operators import homogeneity_map
from dmo.validation import check_parameters, check_views, count_components, sample_count


class MultiSetCCA(HomogeneityEmbedding):
    """Multiple-set (kernel) canonical correlation analysis: the space on which all views agree best (MAXVAR).

    The embedding is the top of H [mean_j K_j (K_j + c_j I)^-1] H. With kernel="linear" it is the linear one, and as the
    ridge goes to 0 its eigenvalues are those of generalized CCA divided by the number of views.

    Parameters
    ----------
    kernel, ridge, center, solver, approximation, tol, max_iter, random_state : as in `KGHA`
    n_components : int
        Dimensions of the space, fewer than the samples.

    Attributes: embedding_, eigenvalues_, objective_, n_iter_, expansions_.

    Source: Carroll 1968; Kettenring 1971; [KGHA] section 3.
    """

    def __init__(
        self,
        kernel: KernelSpecs = "rbf",
        *,
        ridge: Ridges = 1e-1,
        n_components: int = 2,
        center: bool = True,
        solver: Literal["krylov", "als"] = "krylov",
        approximation: Engine = "auto",
        tol: float = 1e-6,
        max_iter: int = 200,
        random_state: int | None = 0,
    ):
        self.kernel = kernel
        self.ridge = ridge
        self.n_components = n_components
        self.center = center
        self.solver = solver
        self.approximation = approximation
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from samples X (views of n rows); y is ignored."""
        check_parameters(self)
        views = check_views(self, X, reset=True)
        n = sample_count(views)
        k = count_components(self.n_components, n, n - 1, n)
        self.approximation_ = choose_engine(self.approximation, n, len(views))
        if not self.is_exact:
            maps = self._maps(views)
            rows = factor_rows(maps, views, 0)
            rotated: Rotated
            if rows is None:
                rotated = RotatedMoments.of(pass_of(maps, views, None, 1, self.random_state).total, self.center)
            else:
                rotated = RotatedRows.of(rows, self.center)
            weights = dict.fromkeys(views, 1.0)
            ridges = self._ridges(list(views))
            fit = homogeneity(rotated, weights, ridges, k, self.tol, self.max_iter, self.random_state)
            self._learn(fit.pairs)
            self._expand(maps, fit)
            return self
        fitted = self._fit_views(views)
        apply = homogeneity_map([view.smoother for view in fitted.values()], [1.0] * len(views))
        pairs = self._embed(apply, n, k, None)
        self.expansions_ = {}
        for view in fitted.values():
            self.expansions_ |= view.expansions(view.coefficients(pairs.vectors))
        return self
