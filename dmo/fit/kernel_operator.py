"""The kernel behind a support vector regression, exact or low-rank, and the function it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dmo.blocks import Rows, rows
from dmo.errors import UserError
from dmo.fit.engine import fit_maps, is_exact
from dmo.fit.exact import FittedKernel, build, choose_storage, exact_engine, linear_expansions, linear_rows
from dmo.fit.functions import Expansion, FactorExpansion, KernelFunction
from dmo.inputs import per_view
from dmo.kernels import parse
from dmo.kernels.multikernel import MultiKernel
from dmo.linalg.factors import CenteredRows, RowGram
from dmo.linalg.operators import LowRank, Operator
from dmo.linalg.solve import SolveMethod
from dmo.linalg.tiles import Tiles
from dmo.lowrank import FeatureMap

_DOUBLE = 8192  # rows up to which a kernel in memory is float64, whatever the ridge
_RIDGE = 1.0 / 64  # the smallest 1 / rho to expect, times C


@dataclass(frozen=True)
class Fitted:
    """A kernel operator over the training rows, and how to use it."""

    operator: Operator  # the n x n kernel
    method: SolveMethod  # how to solve with it
    function: Callable[[np.ndarray, np.ndarray], KernelFunction]


def prepare_kernel(
    kernel: Any,
    approximation: Any,
    views: Mapping[str, Rows],
    C: float,
    random_state: int | None,
    weights: np.ndarray | None = None,
) -> Fitted:
    """Make the operator of a kernel over the rows of views: the mean of the views' kernels.

    views (n, d); weights (n,)
    """
    kernels = {view: parse(spec) for view, spec in per_view("kernel", kernel, list(views)).items()}
    if not is_exact(approximation):
        counts = None if weights is None else dict.fromkeys(views, weights)
        return _low_rank(fit_maps(approximation, kernels, views, random_state, True, counts), views)
    n = next(iter(views.values())).shape[0]
    engine = exact_engine(approximation)
    storage = choose_storage(engine, n, 1, 8)
    if storage == "memory" and engine.precision == "auto" and n <= _DOUBLE:
        engine = replace(engine, precision="float64")
    combined = MultiKernel(kernels, {view: 1.0 / len(kernels) for view in kernels})
    built = build(engine, combined, views, _RIDGE / C, storage, random_state, weights)
    if isinstance(built.operator, RowGram):
        return _linear(built, views)

    def function(coefficients: np.ndarray, offset: np.ndarray) -> KernelFunction:
        return KernelFunction({"all": built.expansion(views, built.operator, coefficients, offset)})

    return Fitted(built.operator, "cg" if isinstance(built.operator, Tiles) else "auto", function)


def _linear(built: FittedKernel, views: Mapping[str, Rows]) -> Fitted:
    """Linear kernels, of rows less their mean: the dual coefficients of a regression with a bias sum to 0, so the bias alone
    sees the difference, and features far from the origin keep their digits."""
    factor = CenteredRows.of(linear_rows(built.kernel, views), center=True)

    def function(coefficients: np.ndarray, offset: np.ndarray) -> KernelFunction:
        W = factor.t_dot(coefficients)
        return KernelFunction(linear_expansions(built.kernel, views, factor, W, offset))

    return Fitted(RowGram(factor), "auto", function)


def _low_rank(maps: Mapping[str, FeatureMap], views: Mapping[str, Rows]) -> Fitted:
    share = 1.0 / len(maps)
    operators = {view: _double(feature_map.operator(views[view])) for view, feature_map in maps.items()}
    total: Operator | None = None
    for operator in operators.values():
        part = operator if share == 1.0 else share * operator
        total = part if total is None else total + part
    if total is None:
        raise UserError("no kernel to build; pass at least one view")

    def function(coefficients: np.ndarray, offset: np.ndarray) -> KernelFunction:
        expansions: dict[str, Expansion] = {}
        for view, feature_map in maps.items():
            weights = share * _transposed(feature_map, views[view], coefficients)
            expansions[view] = FactorExpansion.of(view, feature_map, weights, share * offset)
        return KernelFunction(expansions)

    return Fitted(total, "auto", function)


def _double(operator: Operator) -> Operator:
    """A dense factor in float64, once for all solves and products."""
    return LowRank(operator.factor.astype(np.float64)) if isinstance(operator, LowRank) else operator


def _transposed(feature_map: FeatureMap, source: Rows, coefficients: np.ndarray) -> np.ndarray:
    """F' coefficients (r x L), the factor rows made block by block."""
    total = np.zeros((feature_map.rank, coefficients.shape[1]))
    for start in range(0, source.shape[0], _DOUBLE):
        where = slice(start, min(start + _DOUBLE, source.shape[0]))
        total += feature_map(rows(source, where)).T @ coefficients[where]
    return total
