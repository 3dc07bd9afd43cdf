"""Views that the exact engine has fitted: a built kernel under a ridge, and the function of new rows that it smooths to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self, TypeAlias

import numpy as np

from dmo.blocks import Rows, Subset, rows
from dmo.errors import UserError
from dmo.fit.exact import Exact, FittedKernel, Storage, build, choose_storage, linear_expansions
from dmo.fit.functions import Expansion, LinearExpansion
from dmo.fit.moments import label_groups
from dmo.inputs import Data, SampleWeights
from dmo.kernels import parse
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

    def left_out(
        self,
        B: np.ndarray,
        coefficients: np.ndarray,
        where: np.ndarray | None = None,
        part: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute leave-one-out values of the function at all training rows, or at those with indices `where`.

        B, coefficients (n, k); where (m,); part (n,) -> (n, k) or (m, k)
        """
        solver, c, rows = self.smoother.solver, self.smoother.ridge, slice(None) if where is None else where
        if where is None and solver.method == "cg" and len(B) <= SOLVED_ROWS:
            where = np.arange(len(B))  # without a factor, the diagonal of the inverse takes one solve per row
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

    def left_out(
        self,
        B: np.ndarray,
        coefficients: np.ndarray,
        where: np.ndarray | None = None,
        part: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute leave-one-out values, see `KernelView.left_out`."""
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

    def left_out(
        self,
        B: np.ndarray,
        coefficients: np.ndarray,
        where: np.ndarray | None = None,
        part: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compute leave-one-out values, see `KernelView.left_out`; zeros at samples of weight 0."""
        part = None if part is None else part[self.index]
        if where is None:
            return self._back(self.inner.left_out(self._scaled(B), coefficients, None, part))
        has, place = self._places(where)
        out = np.zeros((len(where), B.shape[1]))
        values = self.inner.left_out(self._scaled(B), coefficients, place, part)
        out[has] = values / np.sqrt(self.weights[place])[:, None]
        return out

    def _places(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of some samples have a positive weight, and their numbers among those that do."""
        has = np.isin(where, self.index)
        return has, np.searchsorted(self.index, where[has])


FittedView: TypeAlias = KernelView | LinearView | WeightedView
"""One view of the exact engine under its ridge."""


EIGENPAIRS = 15
"""Float64 Cholesky factorizations that take as long as the eigenpairs of a kernel: 12 to 17 at 1000 to 3000 rows."""


@dataclass(frozen=True)
class Groups:
    """Views under the exact engine: of every group its kernel, over one or several views, and its ridge."""

    engine: Exact
    kernels: Mapping[str, MultiKernel]  # by group
    ridges: Mapping[str, Any]  # by group: c, or (L,): one per label
    data: Data
    center: bool
    random_state: int | None
    method: SolveMethod = "auto"  # by which systems are solved
    tol: float = EXACT  # relative residual of their solutions
    columns: int | None = None  # right-hand sides in all, where that is known
    last: np.ndarray | None = None  # rows that stand after the others in a factor

    @cached_property
    def storage(self) -> Storage:
        """Where the kernels live."""
        return choose_storage(self.engine, self.data.n, len(self.kernels))

    def weights(self, name: str) -> np.ndarray:
        """How often samples count in a group (n)."""
        return self._of_group(self.data.weights, name)

    def _of_group(self, weights: SampleWeights, name: str) -> np.ndarray:
        return weights.of_views(list(self.kernels[name].kernels))

    def fitted(self, name: str, n_labels: int = 0) -> Iterator[tuple[slice | np.ndarray, FittedView]]:
        """A group under each of its ridges, and the labels that have it."""
        weights, last = self.weights(name), self.last
        sources = {view: self.data.views[view] for view in self.kernels[name].kernels}
        index = None if (weights == 1).all() else np.flatnonzero(weights)
        if index is not None:
            if len(index) < len(weights):
                sources = {view: Subset(source, index) for view, source in sources.items()}
            last = None if last is None else np.flatnonzero(np.isin(index, last))
        counts, least = None if index is None else weights[index], float(np.min(self.ridges[name]))
        # bandwidths describe the rows: classes do not weigh in them
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
        """Every group, those in memory side by side; tiles have threads, or workers, of their own."""
        with stage("kernels and factors", len(self.kernels)) as advance:

            def fit(name: str) -> FittedView:
                found = self[name]
                advance(1)
                return found

            names = list(self.kernels)
            found = in_threads(fit, names) if self.storage == "memory" else [fit(name) for name in names]
        return dict(zip(names, found, strict=True))

    def shares_left_out(self) -> dict[str, np.ndarray | None]:
        """Compute by group the fraction of the weight of a sample that a leave-one-out value omits; None for all of it.

        -> (n,)
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
        """Put a built kernel of some rows under a ridge.

        sources (n, d); weights (n,)
        """
        method, tol = self.method, min(self.tol, EXACT) if built.dtype == np.float64 else self.tol
        if method == "auto" and isinstance(built.operator, Tiles):
            method, tol = "cg", COEFFICIENTS
        if compared() is not None and method == "auto":  # a factor serves what comes later too
            method = "direct"
        how = partial(self._solver, ridge, built, method, tol, weights, last)
        own, counts = memory(), None if weights is None else weights.tobytes()
        try:
            if own is None or built.key is None:
                operator, solver = how()
            else:  # settings of one ridge come one after the other
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
        """The operator, centered where that is wanted, and what solves with it under a ridge."""
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
            # a factor may be float32 where solutions need not be exact, which takes half the time; eigenpairs may not
            price = 2 * EIGENPAIRS if built.dtype == np.float32 and tol > EXACT else EIGENPAIRS
            if price < taken and 32.0 * n * n <= own.room:
                pairs = own.get(partial(Spectrum, operator), 16.0 * n * n, (*key, "pairs"))
                return operator, SpectralSolver(operator, ridge, pairs)
        seed, columns = self.random_state, self.columns
        return operator, factorize(operator, ridge, method, tol, random_state=seed, columns=columns, last=last)
