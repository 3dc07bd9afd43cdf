"""Solutions of (A + c I) X = B for a symmetric positive semidefinite operator A and a ridge c > 0.

`factorize` chooses the method and returns a solver to use many times: Woodbury for a low-rank A, Cholesky while the
factor fits in memory and pays (in float32 with refinement where that does), otherwise block conjugate gradients with a
Nystrom preconditioner.
"""

from __future__ import annotations

import logging
from typing import Literal

import numpy as np
import psutil

from dmo.errors import UserError
from dmo.linalg.cg import BlockCG, NystromPreconditioner, default_rank
from dmo.linalg.direct import CholeskySolver, MixedSolver, WoodburySolver
from dmo.linalg.factors import low_rank_factor
from dmo.linalg.operators import Operator
from dmo.linalg.solution import Solver
from dmo.linalg.tall import Factor

SolveMethod = Literal["auto", "direct", "cholesky", "mixed", "cg", "woodbury"]
_PRODUCTS = 500  # with A, that conjugate gradients may use; a factorization costs about n / (6 k) of them, see `_saved`
EXACT = 1e-8
"""Relative residual of a solve from which more digits are rounding of the entries."""
COEFFICIENTS = 1e-6
"""Relative residual of coefficients whose products with the kernel are dear: values, and scores, are off by no more than that,
beside the 4e-6 that eigenpairs to 1e-6 leave them, and the last two digits are a fifth of the products (of 4000 samples and a
ridge of .1 15 where 12 do)."""
SCORES = 1e-5
"""Relative residual of solves whose held-out scores are only compared: they are off by no more than that."""
log = logging.getLogger("dmo")


def factorize(
    A: Operator,
    ridge: float,
    method: SolveMethod = "auto",
    tol: float = EXACT,
    preconditioner: NystromPreconditioner | None = None,
    random_state: int | None = None,
    columns: int | None = None,
) -> Solver:
    """Make a solver of (A + ridge I) X = B, to use many times."""
    if not ridge > 0:
        raise UserError(f"ridge must be positive, got {ridge}; the smallest useful value is the kernel's noise floor")
    factor = low_rank_factor(A) if method in ("auto", "woodbury") else None
    if method == "direct":
        method = _direct_method(A, ridge, columns, tol) or "cholesky"
    if method == "auto":
        direct = _direct_method(A, ridge, columns, tol)
        if factor is not None and factor.shape[1] < A.n and small_side_fits(factor):
            method = "woodbury"
        elif direct is None:
            method = "cg"
        elif columns is None or _saved(A, columns, direct) < 10:
            method = direct
        else:
            preconditioner = preconditioner or NystromPreconditioner.of(A, default_rank(A.n), random_state)
            method = "cg" if preconditioner.products(ridge, tol) < _saved(A, columns, direct) else direct
        log.info("solve: %s for %d x %d, ridge %g, %s right-hand sides", method, A.n, A.n, ridge, columns or "many")
    if method == "woodbury":
        return WoodburySolver(A, ridge, factor, tol)
    if method == "cholesky":
        return CholeskySolver(A, ridge, tol)
    if method == "mixed":
        return MixedSolver(A, ridge, tol)
    if method == "cg":
        if preconditioner is None:
            preconditioner = NystromPreconditioner.of(A, default_rank(A.n), random_state)
        return BlockCG(A, ridge, preconditioner, tol, _PRODUCTS)
    raise UserError(f"unknown method {method!r}; known: 'auto', 'direct', 'cholesky', 'mixed', 'cg', 'woodbury'")


def small_side_fits(factor: Factor) -> bool:
    """Find whether a system of the factor's smaller side fits in half of the free memory."""
    return 8.0 * min(factor.shape) ** 2 <= _memory()


def _memory() -> float:
    """Bytes that a factor may take: half of what is free."""
    return psutil.virtual_memory().available / 2


def _direct_method(A: Operator, ridge: float, columns: int | None, tol: float) -> Literal["cholesky", "mixed"] | None:
    """The Cholesky factor that fits in memory and is cheapest for `columns` right-hand sides (None: many)."""
    size, memory = float(A.n) * A.n, _memory()
    trace = float(A.diagonal().sum(dtype=np.float64))
    fine = A.dtype == np.float32 and ridge >= 1e-7 * trace
    # where what a float32 factor loses is within the tolerance a column costs half of what it costs a float64 one, else
    # twice as much: two solves and a product in float64
    refined = ridge * tol < 1e-7 * trace / A.n
    worth = fine and not (refined and columns is None) and _spared(A.n, columns or 0, refined) > 0
    if fine and (8 * size > memory >= 4 * size or worth):
        return "mixed"
    return "cholesky" if 8 * size <= memory else None


def _spared(n: int, columns: int, refined: bool) -> float:
    """What a float32 factor spares beside a float64 one, in products with a column in float32."""
    # n^3 / 6 multiplications in the one and n^3 / 3, in this unit, in the other; taking the leading part out costs as
    # much as 300 columns.
    return n / 6 - 300 + (-2 * columns if refined else columns)


def _saved(A: Operator, columns: int, direct: str) -> float:
    """Products A @ B (B: n x columns) that a Cholesky factor costs, less those that a preconditioner does."""
    # In one precision n / (6 k): n^3 / 6 multiplications against n^2 k. Products with fewer than 32 columns take as
    # long as with 32: they wait for memory. A float32 factor takes half the time, and two float64 products.
    k = max(32, columns)
    double = 8.0 / A.dtype.itemsize
    factor = (0.5 if direct == "mixed" else 1.0) * double * A.n / (6.0 * k) + (
        2.0 * double if direct == "mixed" else 0.0
    )
    return factor - 2.0 * default_rank(A.n) ** 2 / (A.n * k)
