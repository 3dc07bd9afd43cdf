"""Multiple-set (kernel) canonical correlation analysis."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Literal, Self

from dmo.fit.engine import LowRankPass, choose_engine
from dmo.fit.factor_groups import FactorGroups, check_columns
from dmo.inputs import (
    Data,
    Inputs,
    Outputs,
    Prepare,
    RowWeights,
    Scales,
    count_components,
)
from dmo.methods.homogeneity import HomogeneityEmbedding
from dmo.methods.incremental import Incremental
from dmo.methods.options import Engine, KernelSpecs, Ridges, Solver
from dmo.parameters import parametrized


@parametrized
class MultiSetCCA(Incremental, HomogeneityEmbedding):
    r"""Multiple-set (kernel) canonical correlation analysis.

    MultiSetCCA projects all views to a common space in which the views agree best by the MAXVAR criterion. With
    kernel="linear", this method is linear CCA. As the ridge goes to 0, the eigenvalues converge to those of generalized
    CCA divided by the number of views.

    Parameters
    ----------
    kernel : str, Kernel, mapping of view to kernel, or list, default="rbf"
        Kernel of all views, or one kernel per view. See `dmo.kernels.parse`.
    ridge : float, mapping of view to float, or list, default=0.1
        Regularization strength of all views, or of each view, above 0.
    n_components : int, default=2
        Number of coordinates, less than the number of samples.
    center : bool, default=True
        Whether to center the kernels by the training means.
    %(approximation)s
    solver : Solver or {"krylov", "als", "plain-als"}, default="krylov"
        Iterative eigensolver, see `Solver`. The defaults are tol=1e-6 and max_iter=200.
    %(random_state)s
    %(prepare)s

    Attributes
    ----------
    embedding_ : ndarray of shape (n, n_components)
        Orthonormal coordinates of the training samples, which only fits with exact kernels store.
    eigenvalues_ : ndarray of shape (n_components,)
        Eigenvalues in descending order, which measure the agreement of the views from 0 (none) to 1.
    objective_ : float
        Sum of the eigenvalues, which the method maximizes.
    objective_history_ : list of float
        Sum of the eigenvalues after each step of the eigensolver.
    n_iter_ : int
        Number of steps of the eigensolver.
    n_components_ : int
        Number of coordinates.
    expansions_ : dict of str to Expansion
        Fitted function of each view, which maps new samples to coordinates.

    Notes
    -----
    The embedding consists of the leading eigenvectors of

    .. math:: H \Big[ \tfrac{1}{V} \sum_j K_j (K_j + c_j I)^{-1} \Big] H,

    where K_j is the kernel matrix of view j, c_j is its ridge, V is the number of views, and H is the centering matrix.

    References
    ----------
    Carroll 1968; Kettenring 1971; Xiong, Szedmak, Piater 2014, section 3.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dmo import MultiSetCCA
    >>> X, _ = load_iris(return_X_y=True)
    >>> views = {"sepal": X[:, :2], "petal": X[:, 2:]}
    >>> model = MultiSetCCA("linear", n_components=2).fit(views)
    >>> model.transform(views).shape
    (150, 2)
    """

    kernel: KernelSpecs = "rbf"
    _: KW_ONLY
    ridge: Ridges = 1e-1
    n_components: int = 2
    center: bool = True
    approximation: Engine = "auto"
    solver: Solver | Literal["krylov", "als", "plain-als"] = "krylov"
    random_state: int | None = 0
    prepare: Prepare | Scales = "auto"

    def fit(self, X: Inputs, y: Outputs | None = None, sample_weight: RowWeights = None) -> Self:
        """Learn the common space of the views.

        Parameters
        ----------
        %(X)s
        %(y_unused)s
        sample_weight : array-like of shape (n,), mapping of view to such, or None, default=None
            Sample weights, or sample weights for each view. A weight of 0 means that the sample is missing from the
            view.

        Returns
        -------
        MultiSetCCA
            This estimator, fitted.

        Raises
        ------
        UserError
            If parameters or views are invalid.
        """
        return self._fit(X, y, sample_weight)

    def _learn(self, data: Data) -> None:
        views, weights, n = data.views, data.weights, data.n
        k = count_components(self.n_components, n, n - 1, n)
        self.approximation_ = choose_engine(self.approximation, n, len(views), self.kernel)
        if self.is_exact:
            self._learn_space(self._problem(data), k)
            return
        self._learn_groups(self._read_rows(views, None, weights, self._weights(len(views))), k)

    def _read_batch(self, *given: Any) -> None:
        """Ignore y."""

    def _fit_pass(self, done: LowRankPass) -> None:
        n = int(done.total.n)
        self._learn_groups(FactorGroups.of_pass(done, self.center), count_components(self.n_components, n, n - 1, n))

    def _learn_groups(self, groups: FactorGroups, k: int) -> None:
        check_columns(groups, k)
        self._learn_space(self._factor_problem(groups), k)
