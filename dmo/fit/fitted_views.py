"""Views fitted by the exact engine with a ridge, and the functions with which they predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self, TypeAlias

import numpy as np

from dmo.blocks import Rows, Subset, rows
from dmo.errors import UserError
from dmo.fit.exact import Exact, FittedKernel, Storage, build, choose_storage, linear_expansions
from dmo.fit.functions import Expansion
from dmo.fit.moments import label_groups
from dmo.inputs import Data, SampleWeights
from dmo.kernels import Linear, parse
from dmo.kernels.multikernel import MultiKernel
from dmo.linalg.factors import CenteredRows, RowGram
from dmo.linalg.linear import LinearSolver
from dmo.linalg.operators import Centered, Congruent, Dense, Operator
from dmo.linalg.smoothers import LinearSmoother, Smoother, leave_one_out
from dmo.linalg.solve import (
    COEFFICIENTS,
    EXACT,
    CholeskySolver,
    SolveMethod,
    SpectralSolver,
    Spectrum,
    factorize,
    small_side_fits,
)
from dmo.linalg.tiles import Tiles
from dmo.memory import compared, memory, remembered
from dmo.progress import stage
from dmo.threads import in_threads

SOLVED_ROWS = 2048
"""Maximum number of rows for which conjugate gradients compute the diagonal of the inverse, by one solve per entry. For
more rows without a factorization, out-of-fold scores or leave-one-out scores of some rows are used instead."""
_RUN = 128  # Number of columns per solve. A worker then needs memory for only a few n x 128 blocks.


@dataclass
class KernelProducts:
    """View of a method that only multiplies blocks by the kernel of the view."""

    name: str
    built: FittedKernel
    sources: Mapping[str, Rows]
    operator: Operator  # Kernel operator, which is centered if requested.

    @classmethod
    def build(
        cls,
        engine: Exact,
        view: str,
        X: Rows,
        kernel: Any,
        ridge: float,
        center: bool,
        random_state: int | None,
        weights: np.ndarray | None = None,
    ) -> Self:
        """Fit the kernel to the training rows, and create its operator."""
        sources, storage = {view: X}, choose_storage(engine, X.shape[0], 1)
        built = build(engine, MultiKernel.of(view, parse(kernel)), sources, ridge, storage, random_state, weights)
        return cls(view, built, sources, built.placed(center, weights))

    @property
    def n(self) -> int:
        return self.operator.n

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.built.dtype)

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        """Build the prediction function of the view from dual coefficients (n x k)."""
        return {self.name: self.built.expansion(self.sources, self.operator, coefficients)}

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """Build the prediction function from dual coefficients (n x k), and compute its values at the training rows."""
        return self.expansions(coefficients)[self.name], self.operator @ coefficients


@dataclass
class KernelView(KernelProducts):
    """View with a kernel K and a ridge c. Its coefficients for a block B are (K + c I)^-1 B."""

    smoother: Smoother

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        """Compute the dual coefficients (K + c I)^-1 B for a block B (n x k)."""
        return self.smoother.dual(B)

    def left_out(
        self,
        B: np.ndarray,
        coefficients: np.ndarray,
        where: np.ndarray | None = None,
        part: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute leave-one-out predictions at all training rows, or at the m rows with indices `where`.

        `B` and `coefficients` have shape (n, k). `part` (n) is the fraction of each sample's weight that is left out.
        """
        solver, c, rows = self.smoother.solver, self.smoother.ridge, slice(None) if where is None else where
        if where is None and solver.method == "cg" and len(B) <= SOLVED_ROWS:
            # Conjugate gradients yield no factorization, so compute each diagonal entry of the inverse by one solve.
            where = np.arange(len(B))
        if where is None:
            inverse = self.smoother.inverse_diagonal()
        elif isinstance(solver, CholeskySolver) and np.array_equal(where, solver.last):
            inverse = solver.last_diagonal()
        else:
            inverse = np.concatenate(
                [self._inverse_entries(where[at : at + _RUN]) for at in range(0, len(where), _RUN)]
            )
        shares = self._intercept_leverage(), np.ones(1) if part is None else part
        intercept, part = (np.broadcast_to(values, len(B))[rows] for values in shares)
        return leave_one_out(B[rows], c * coefficients[rows], c * inverse - intercept, part)

    def _inverse_entries(self, where: np.ndarray) -> np.ndarray:
        """Compute diagonal entries of (K + c I)^-1 by solving for columns of the inverse."""
        own = np.arange(len(where))
        unit = np.zeros((self.operator.n, len(where)))
        unit[where, own] = 1.0
        return self.smoother.dual(unit)[where, own]

    def _intercept_leverage(self) -> float | np.ndarray:
        """Return the leverage of each training row that is due to the intercept, which is 0 without centering."""
        inner = self.operator.inner if isinstance(self.operator, Congruent) else self.operator
        if not isinstance(inner, Centered):
            return 0.0
        return 1 / inner.n if inner.weights is None else inner.weights


@dataclass
class LinearView:
    """View with linear kernels and rows X. Its coefficients for a block B and a ridge c are W = (X'X + c I)^-1 X'B.

    Computing W directly avoids the cancellation in products of X' with dual coefficients.
    """

    kernel: MultiKernel
    sources: Mapping[str, Rows]
    factor: CenteredRows
    smoother: LinearSmoother

    @property
    def n(self) -> int:
        return next(iter(self.sources.values())).shape[0]

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        return self.smoother.loadings(B)

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        return linear_expansions(self.kernel, self.sources, self.factor, coefficients, np.zeros(coefficients.shape[1]))

    def left_out(
        self,
        B: np.ndarray,
        coefficients: np.ndarray,
        where: np.ndarray | None = None,
        part: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute leave-one-out predictions as in `KernelView.left_out`."""
        return self.smoother.left_out(B, coefficients, 1.0 if part is None else part, where)


@dataclass(frozen=True)
class DualView:
    """View with linear kernels, for methods that multiply by the n x n kernel. It predicts by a linear function."""

    kernel: MultiKernel
    sources: Mapping[str, Rows]
    operator: RowGram  # Kernel operator X X' of the rows X, which are centered if requested.

    @classmethod
    def build(cls, view: str, X: Rows, center: bool, weights: np.ndarray | None = None) -> DualView:
        """Read the rows into memory. Sparse rows stay sparse."""
        return cls(MultiKernel.of(view, Linear()), {view: X}, RowGram.of(rows(X), center, weights))

    @property
    def dtype(self) -> np.dtype:
        """Data type of the products."""
        return self.operator.dtype

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        """Build the prediction function of each view from dual coefficients (n x k)."""
        return self._linear(self.operator.factor.t_dot(coefficients))

    def _linear(self, W: np.ndarray) -> dict[str, Expansion]:
        return linear_expansions(self.kernel, self.sources, self.operator.factor, W, np.zeros(W.shape[1]))

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """Build the prediction function from dual coefficients (n x k), and compute its values at the training rows."""
        # Compute the values as X W from the linear coefficients W, which avoids forming X X'.
        W = self.operator.factor.t_dot(coefficients)
        return next(iter(self._linear(W).values())), self.operator.factor.dot(W)


ViewOperator: TypeAlias = KernelProducts | DualView


@dataclass
class WeightedView:
    """View with sample weights s_i. Its function f minimizes sum_i s_i |b_i - f(x_i)|^2 + c |f|^2.

    The `inner` view excludes samples of weight 0.
    """

    # With R = diag(s)^1/2, the weighted regression of targets B on factor rows F equals an unweighted regression of R B
    # on R F. The factor rows F are centered by their weighted mean before the multiplication by R.

    inner: KernelView | LinearView
    index: np.ndarray  # Indices of the m samples with positive weight.
    weights: np.ndarray  # Positive weights of the m samples.
    n: int  # Number of samples, including samples of weight 0.
    center: bool  # Whether the kernel is centered, so that prediction functions need an intercept.

    def _scaled(self, B: np.ndarray) -> np.ndarray:
        return np.asarray(np.sqrt(self.weights)[:, None] * B[self.index])

    def _back(self, values: np.ndarray) -> np.ndarray:
        # The values of the inner view are multiplied by the square roots of the sample weights, so divide by these
        # roots.
        out = np.zeros((self.n, values.shape[1]))
        out[self.index] = values / np.sqrt(self.weights)[:, None]
        return out

    def smoother(self, B: np.ndarray) -> np.ndarray:
        """Compute the smoothed values at samples with positive weight, and zeros elsewhere."""
        return self._back(self.inner.smoother(self._scaled(B)))

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        """Compute the coefficients of the inner view."""
        return self.inner.coefficients(self._scaled(B))

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        """Build the prediction function of each view from coefficients of the inner view."""
        return self.inner.expansions(coefficients)

    def left_out(
        self,
        B: np.ndarray,
        coefficients: np.ndarray,
        where: np.ndarray | None = None,
        part: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute leave-one-out predictions as in `KernelView.left_out`, and zeros at samples of weight 0."""
        part = None if part is None else part[self.index]
        if where is None:
            return self._back(self.inner.left_out(self._scaled(B), coefficients, None, part))
        has, place = self._places(where)
        out = np.zeros((len(where), B.shape[1]))
        values = self.inner.left_out(self._scaled(B), coefficients, place, part)
        out[has] = values / np.sqrt(self.weights[place])[:, None]
        return out

    def _places(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return which samples `where` have a positive weight, and the positions of these samples in `index`."""
        has = np.isin(where, self.index)
        return has, np.searchsorted(self.index, where[has])


FittedView: TypeAlias = KernelView | LinearView | WeightedView
"""View fitted by the exact engine with a ridge."""


EIGENPAIRS = 15
"""Cost of all eigenpairs of a kernel divided by the cost of a float64 Cholesky factorization. The measured ratio is 12
to 17 for 1000 to 3000 rows."""


@dataclass(frozen=True)
class Groups:
    """Groups of views for the exact engine. Each group has one kernel over one or several views, and one ridge."""

    engine: Exact
    kernels: Mapping[str, MultiKernel]
    ridges: Mapping[str, Any]  # Ridge of each group, as a number or as an array with one value per label.
    data: Data
    center: bool
    random_state: int | None
    method: SolveMethod = "auto"
    tol: float = EXACT  # Maximum relative residual of the solutions of linear systems.
    columns: int | None = None  # Total number of right-hand sides, if it is known.
    # Indices of the rows that a Cholesky factorization places last, so that their leave-one-out predictions are cheap.
    last: np.ndarray | None = None

    @cached_property
    def storage(self) -> Storage:
        """Storage of the kernels."""
        return choose_storage(self.engine, self.data.n, len(self.kernels))

    def weights(self, name: str) -> np.ndarray:
        """Return the sample weights of a group as an array of shape (n,)."""
        return self._of_group(self.data.weights, name)

    def _of_group(self, weights: SampleWeights, name: str) -> np.ndarray:
        return weights.of_views(list(self.kernels[name].kernels))

    def fitted(self, name: str, n_labels: int = 0) -> Iterator[tuple[slice | np.ndarray, FittedView]]:
        """Yield the fitted view of a group for each of its ridges, and the labels that use this ridge."""
        weights, last = self.weights(name), self.last
        sources = {view: self.data.views[view] for view in self.kernels[name].kernels}
        index = None if (weights == 1).all() else np.flatnonzero(weights)
        if index is not None:
            if len(index) < len(weights):
                sources = {view: Subset(source, index) for view, source in sources.items()}
            last = None if last is None else np.flatnonzero(np.isin(index, last))
        counts, least = None if index is None else weights[index], float(np.min(self.ridges[name]))
        # The kernel bandwidth describes the distribution of the rows, so it depends on sample weights but not on class
        # weights.
        often = None if index is None else self._of_group(self.data.weights.plain, name)[index]
        built = build(self.engine, self.kernels[name], sources, least, self.storage, self.random_state, often)
        for ridge, labels in label_groups(self.ridges[name], n_labels):
            inner = self.under(ridge, name, built, sources, counts, last)
            if index is None or counts is None:
                yield labels, inner
            else:
                yield labels, WeightedView(inner, index, counts, len(weights), self.center)

    def __getitem__(self, name: str) -> FittedView:
        return next(self.fitted(name))[1]

    def all(self) -> dict[str, FittedView]:
        """Fit all groups, in parallel if their kernels are in memory."""
        # The tiles of each kernel are computed in parallel on the workers, so fit the kernels one after the other.
        with stage("kernels and factors", len(self.kernels)) as advance:

            def fit(name: str) -> FittedView:
                found = self[name]
                advance(1)
                return found

            names = list(self.kernels)
            found = in_threads(fit, names) if self.storage == "memory" else [fit(name) for name in names]
        return dict(zip(names, found, strict=True))

    def shares_left_out(self) -> dict[str, np.ndarray | None]:
        """Return the fraction of each sample's weight (n) that is left out, by group.

        None means that the whole weight is left out.
        """
        return {name: self.data.weights.share_left_out(list(kernel.kernels)) for name, kernel in self.kernels.items()}

    def under(
        self,
        ridge: float,
        name: str,
        built: FittedKernel,
        sources: Mapping[str, Rows],
        weights: np.ndarray | None,
        last: np.ndarray | None,
    ) -> KernelView | LinearView:
        """Combine a fitted kernel with a ridge."""
        method, tol = self.method, min(self.tol, EXACT) if built.dtype == np.float64 else self.tol
        if method == "auto" and isinstance(built.operator, Tiles):
            method, tol = "cg", COEFFICIENTS
        # The candidates of a hyperparameter search reuse factorizations, so prefer a direct solver.
        if compared() is not None and method == "auto":
            method = "direct"
        how = partial(self._solver, ridge, built, method, tol, weights, last)
        own, counts = memory(), None if weights is None else weights.tobytes()
        try:
            if own is None or built.key is None:
                operator, solver = how()
            else:
                # A hyperparameter search fits all candidates with the same ridge in succession, so caching the latest
                # solver suffices.
                rows = None if last is None else last.tobytes()
                given = built.key, ridge, self.center, method, self.columns, counts, tol, rows
                operator, solver = own.latest(how, name, given)
        except UserError as error:
            raise type(error)(f"view {'+'.join(sources)!r}: {error}") from error
        if isinstance(solver, LinearSmoother):
            return LinearView(built.kernel, sources, operator.factor, solver)
        return KernelView(name, built, sources, operator, Smoother(solver, ridge))

    def _solver(
        self,
        ridge: float,
        built: FittedKernel,
        method: SolveMethod,
        tol: float,
        weights: np.ndarray | None,
        last: np.ndarray | None,
    ) -> tuple[Any, LinearSolver | LinearSmoother]:
        """Return the kernel operator, centered if requested, and a solver for this operator and a ridge."""
        own, taken, counts = memory(), compared(), None if weights is None else weights.tobytes()

        def placed() -> Operator:
            return built.placed(self.center, weights)

        n = built.operator.n
        size = 8.0 * n * (built.operator.factor.shape[1] if isinstance(built.operator, RowGram) else 1)
        key = built.key, self.center, counts
        operator = placed() if built.key is None else remembered(placed, size, lambda _: key)
        if isinstance(operator, RowGram) and small_side_fits(operator.factor):
            return operator, LinearSmoother(operator.factor, ridge)
        if own is not None and taken is not None and isinstance(built.operator, Dense):
            # Eigenpairs of the kernel are computed in float64. If the tolerance permits float32 factorizations, which
            # cost half as much as in float64, computing the eigenpairs pays off only if they replace twice as many
            # factorizations.
            price = 2 * EIGENPAIRS if built.dtype == np.float32 and tol > EXACT else EIGENPAIRS
            if price < taken and 32.0 * n * n <= own.room:
                pairs = own.get(partial(Spectrum, operator), 16.0 * n * n, (*key, "pairs"))
                return operator, SpectralSolver(operator, ridge, pairs)
        seed, columns = self.random_state, self.columns
        return operator, factorize(operator, ridge, method, tol, random_state=seed, columns=columns, last=last)
