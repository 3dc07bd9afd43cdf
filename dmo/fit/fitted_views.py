"""Views that the exact engine has fitted: a built kernel under a ridge, and the function of new rows that it smooths to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np

from dmo.blocks import Rows, Subset, rows
from dmo.errors import UserError
from dmo.fit.exact import Exact, FittedKernel, Storage, build, choose_storage, linear_expansions
from dmo.fit.functions import Expansion, LinearExpansion
from dmo.kernels import parse
from dmo.kernels.multikernel import MultiKernel
from dmo.linalg.factors import CenteredRows, RowGram
from dmo.linalg.linear import Solver
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

SOLVED_ROWS = 2048
"""Rows up to which entries of the inverse are solved for one by one where there is no factor; above, scores of rows that a fit
has not seen are those of folds, or of some rows."""
_RUN = 128  # ... so many at a time: a worker holds some blocks of n rows and so many columns


@dataclass
class KernelProducts:
    """A view known by products with its kernel, whose tiles are wherever the exact engine put them.

    sources (n, d)
    """

    name: str  # of its expansion
    built: FittedKernel  # the kernel as it was built
    sources: Mapping[str, Rows]  # (n, d): the training rows by view
    operator: Operator  # the kernel, centered where that is wanted

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
        """Fit the kernel and put its tiles in place.

        X (n, d); weights (n,)
        """
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
        """Make the function of new rows.

        coefficients (n, k)
        """
        return {self.name: self.built.expansion(self.sources, self.operator, coefficients)}

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """Make the function of new rows.

        coefficients (n, k) -> values (n, k)
        """
        return self.expansions(coefficients)[self.name], self.operator @ coefficients


@dataclass
class KernelView(KernelProducts):
    """The same under a ridge: coefficients are dual ones, (K + c I)^-1 B."""

    smoother: Smoother  # K (K + c I)^-1

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        """Work out dual coefficients, (K + c I)^-1 B.

        B (n, k) -> (n, k)
        """
        return self.smoother.dual(B)

    def leave_one_out(
        self,
        B: np.ndarray,
        coefficients: np.ndarray,
        where: np.ndarray | None = None,
        part: np.ndarray | None = None,
    ) -> np.ndarray:
        """Work out the function's values at training rows, had each of them been left out.

        B, coefficients (n, k); where (m,); part (n,) -> (n, k)
        """
        c, intercept, part = self.smoother.ridge, self._intercept_leverage(), np.ones(1) if part is None else part
        if where is None and self.smoother.solver.method == "cg" and len(B) <= SOLVED_ROWS:
            where = np.arange(len(B))  # a few solves more, where there is no factor to take the diagonal from
        if where is None:
            return leave_one_out(B, c * coefficients, c * self.smoother.inverse_diagonal() - intercept, part)
        intercept, part = (np.broadcast_to(values, len(B))[where] for values in (intercept, part))
        inverse = [self._inverse_entries(where[at : at + _RUN]) for at in range(0, len(where), _RUN)]
        return leave_one_out(B[where], c * coefficients[where], c * np.concatenate(inverse) - intercept, part)

    def left_out(
        self, B: np.ndarray, coefficients: np.ndarray, where: np.ndarray | None, part: np.ndarray | None
    ) -> Callable[[], np.ndarray]:
        """Make what finds `leave_one_out` later, where there is a factor."""
        solver, c = self.smoother.solver, self.smoother.ridge
        later = partial(self.leave_one_out, B, coefficients, where, part)
        if not isinstance(solver, CholeskySolver) or (where is not None and not np.array_equal(where, solver.last)):
            found = later()
            return lambda: found
        if where is None:
            return later
        shares = self._intercept_leverage(), np.ones(1) if part is None else part
        intercept, part = (np.broadcast_to(values, len(B))[where] for values in shares)
        diagonal, targets, residuals = solver.last_diagonal(), B[where], c * coefficients[where]
        return lambda: leave_one_out(targets, residuals, c * diagonal() - intercept, part)

    def _inverse_entries(self, where: np.ndarray) -> np.ndarray:
        """Diagonal entries of (K + c I)^-1, solved for as columns."""
        own = np.arange(len(where))
        unit = np.zeros((self.operator.n, len(where)))
        unit[where, own] = 1.0
        return self.smoother.dual(unit)[where, own]

    def _intercept_leverage(self) -> float | np.ndarray:
        """What the intercept, which centering stands for, adds to the leverages of the training rows."""
        inner = self.operator.inner if isinstance(self.operator, Congruent) else self.operator
        if not isinstance(inner, Centered):
            return 0.0
        return 1 / inner.n if inner.weights is None else inner.weights


@dataclass
class LinearView:
    """A view of linear kernels, known by its rows: coefficients are those of the features, W = (X'X + c I)^-1 X'B.

    Neither the n x n kernel nor dual coefficients are needed, and with them goes their cancellation: see `FactorSystem`.
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

    def leave_one_out(
        self,
        B: np.ndarray,
        coefficients: np.ndarray,
        where: np.ndarray | None = None,
        part: np.ndarray | None = None,
    ) -> np.ndarray:
        return self.left_out(B, coefficients, where, part)()

    def left_out(
        self, B: np.ndarray, coefficients: np.ndarray, where: np.ndarray | None, part: np.ndarray | None
    ) -> Callable[[], np.ndarray]:
        """Make what finds them later."""
        return self.smoother.left_out(B, coefficients, 1.0 if part is None else part, where)


@dataclass(frozen=True)
class DualView:
    """A linear kernel through n x n products with the rows; the function of new rows is linear again."""

    view: str  # name of the view
    operator: RowGram  # X X' of (centered) rows

    @classmethod
    def build(cls, view: str, X: Rows, center: bool, weights: np.ndarray | None = None) -> DualView:
        """Read the rows into memory, sparse ones as they are.

        X (n, d); weights (n,)
        """
        return cls(view, RowGram.of(rows(X), center, weights))

    @property
    def dtype(self) -> np.dtype:
        """Of the products."""
        return self.operator.dtype

    def function(self, coefficients: np.ndarray) -> tuple[Expansion, np.ndarray]:
        """Make the function of new rows.

        coefficients (n, k) -> values (n, k)
        """
        factor = self.operator.factor
        # W first, and the values from W: they are then those of the function, and X X' is not formed
        W = factor.t_dot(coefficients)
        offset = np.zeros(W.shape[1]) if factor.mean is None else -(factor.mean @ W)
        return LinearExpansion(self.view, W, offset), factor.dot(W)


ViewOperator: TypeAlias = KernelProducts | DualView
"""What a projection needs of a view that is known by products."""


@dataclass
class WeightedView:
    """A view whose samples have weights, those of weight 0 left out: min sum_i s_i |b_i - f(x_i)|^2 + c |f|^2.

    index, weights (m,)
    """

    # With R = diag(s)^1/2 it is the plain problem of R B on the rows R F, centered with the weights.

    inner: KernelView | LinearView  # of the weighted rows
    index: np.ndarray  # (m,): the samples of positive weight
    weights: np.ndarray  # (m,): their weights
    n: int  # samples in all
    center: bool  # whether the view is centered, so that its functions need an intercept beside them

    def _scaled(self, B: np.ndarray) -> np.ndarray:
        return np.asarray(np.sqrt(self.weights)[:, None] * B[self.index])

    def _back(self, values: np.ndarray) -> np.ndarray:
        # what the inner view fits is R f, so f = R^-1 of it; samples of weight 0 are no rows of the inner problem
        out = np.zeros((self.n, values.shape[1]))
        out[self.index] = values / np.sqrt(self.weights)[:, None]
        return out

    def smoother(self, B: np.ndarray) -> np.ndarray:
        """Work out the function's values at the samples of positive weight; zeros elsewhere."""
        return self._back(self.inner.smoother(self._scaled(B)))

    def coefficients(self, B: np.ndarray) -> np.ndarray:
        """Work out the inner view's coefficients."""
        return self.inner.coefficients(self._scaled(B))

    def expansions(self, coefficients: np.ndarray) -> dict[str, Expansion]:
        """Make the function of new rows."""
        return self.inner.expansions(coefficients)

    def leave_one_out(
        self,
        B: np.ndarray,
        coefficients: np.ndarray,
        where: np.ndarray | None = None,
        part: np.ndarray | None = None,
    ) -> np.ndarray:
        """Work out left-out values at the samples of positive weight; zeros elsewhere."""
        return self.left_out(B, coefficients, where, part)()

    def left_out(
        self, B: np.ndarray, coefficients: np.ndarray, where: np.ndarray | None, part: np.ndarray | None
    ) -> Callable[[], np.ndarray]:
        """Make what finds them later."""
        part = None if part is None else part[self.index]
        if where is None:
            inner = self.inner.left_out(self._scaled(B), coefficients, None, part)
            return lambda: self._back(inner())
        has, place = self._places(where)
        inner, roots = self.inner.left_out(self._scaled(B), coefficients, place, part), np.sqrt(self.weights[place])
        shape = len(where), B.shape[1]

        def values() -> np.ndarray:
            out = np.zeros(shape)
            out[has] = inner() / roots[:, None]
            return out

        return values

    def _places(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of some samples have a positive weight, and their numbers among those that do."""
        has = np.isin(where, self.index)
        return has, np.searchsorted(self.index, where[has])


FittedView: TypeAlias = KernelView | LinearView | WeightedView
"""One view of the exact engine under its ridge."""


def fit_view(
    engine: Exact,
    name: str,
    kernel: MultiKernel,
    views: Mapping[str, Rows],
    ridge: float,
    center: bool,
    storage: Storage,
    method: SolveMethod,
    random_state: int | None,
    columns: int | None = None,
    weights: np.ndarray | None = None,
    tol: float = EXACT,
    last: np.ndarray | None = None,
) -> FittedView:
    """Build a kernel's operator over the rows of its views and factorize it with a ridge, rows `last` after the others.

    views (n, d); weights (n,)
    """
    sources = {view: views[view] for view in kernel.kernels}
    if weights is None or (weights == 1).all():
        built = build(engine, kernel, sources, ridge, storage, random_state)
        return view_of(name, built, sources, ridge, center, method, random_state, columns, tol=tol, last=last)
    index = np.flatnonzero(weights)
    if len(index) < len(weights):
        sources = {view: Subset(source, index) for view, source in sources.items()}
    built = build(engine, kernel, sources, ridge, storage, random_state, weights[index])
    last = None if last is None else np.flatnonzero(np.isin(index, last))
    own = name, built, sources, ridge, center, method, random_state, columns, weights[index]
    inner = view_of(*own, tol=tol, last=last)
    assert isinstance(inner, (KernelView, LinearView))
    return WeightedView(inner, index, weights[index], len(weights), center)


def view_of(
    name: str,
    built: FittedKernel,
    sources: Mapping[str, Rows],
    ridge: float,
    center: bool,
    method: SolveMethod,
    random_state: int | None,
    columns: int | None = None,
    weights: np.ndarray | None = None,
    tol: float = EXACT,
    last: np.ndarray | None = None,
) -> FittedView:
    """Put a built kernel under a ridge.

    sources (n, d); weights (n,)
    """
    if built.dtype == np.float64:
        tol = min(tol, EXACT)
    if method == "auto" and isinstance(built.operator, Tiles):
        method, tol = "cg", COEFFICIENTS
    if compared() is not None and method == "auto":  # a factor serves what comes later too
        method = "direct"
    how = partial(_solver, built, ridge, center, method, random_state, columns, weights, tol, last)
    own, counts = memory(), None if weights is None else weights.tobytes()
    try:
        if own is None or built.key is None:
            operator, solver = how()
        else:  # settings of one ridge come one after the other
            rows = None if last is None else last.tobytes()
            operator, solver = own.latest(how, name, (built.key, ridge, center, method, columns, counts, tol, rows))
    except UserError as error:
        raise type(error)(f"view {'+'.join(sources)!r}: {error}") from error
    if isinstance(solver, LinearSmoother):
        return LinearView(built.kernel, sources, operator.factor, solver)
    return KernelView(name, built, sources, operator, Smoother(solver, ridge))


EIGENPAIRS = 15
"""Float64 Cholesky factorizations that take as long as the eigenpairs of a kernel: 12 to 17 at 1000 to 3000 rows."""


def _solver(
    built: FittedKernel,
    ridge: float,
    center: bool,
    method: SolveMethod,
    random_state: int | None,
    columns: int | None,
    weights: np.ndarray | None,
    tol: float,
    last: np.ndarray | None,
) -> tuple[Any, Solver | LinearSmoother]:
    """The operator, centered where that is wanted, and what solves with it under a ridge."""
    own, taken, counts = memory(), compared(), None if weights is None else weights.tobytes()

    def placed() -> Operator:
        return built.placed(center, weights)

    n = built.operator.n
    size = 8.0 * n * (built.operator.factor.shape[1] if isinstance(built.operator, RowGram) else 1)
    operator = placed() if built.key is None else remembered(placed, size, lambda _: (built.key, center, counts))
    if isinstance(operator, RowGram) and small_side_fits(operator.factor):
        return operator, LinearSmoother(operator.factor, ridge)
    if own is not None and taken is not None and isinstance(built.operator, Dense):
        # a factor may be float32 where solutions need not be exact, which takes half the time; eigenpairs may not
        price = 2 * EIGENPAIRS if built.dtype == np.float32 and tol > EXACT else EIGENPAIRS
        if price < taken and 32.0 * n * n <= own.room:
            pairs = own.get(partial(Spectrum, operator), 16.0 * n * n, (built.key, center, counts, "pairs"))
            return operator, SpectralSolver(operator, ridge, pairs)
    return operator, factorize(operator, ridge, method, tol, random_state=random_state, columns=columns, last=last)
