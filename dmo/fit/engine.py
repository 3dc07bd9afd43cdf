"""The choice of an engine, and the low-rank one: a feature map per view, and one pass over the rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any, TypeVar

import numpy as np

from dmo.blocks import Rows
from dmo.cluster import current_client
from dmo.errors import UserError, amount
from dmo.fit.exact import Exact, exact_bytes
from dmo.fit.moments import LABELS, Moments
from dmo.fit.passes import FeatureRows, collect_moments
from dmo.inputs import per_view
from dmo.kernels import parse
from dmo.kernels.composite import is_pairwise
from dmo.kernels.multikernel import is_product
from dmo.lowrank import FeatureMap
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
from dmo.lowrank.sampling import MOST_ROWS
from dmo.memory import free_memory
from dmo.threads import in_threads, thread_count

log = logging.getLogger("dmo")
_AUTO_RANK = 1000
_SAMPLES = 0.25  # of the free memory, for the rows that maps of several views are learned from at a time
FOLDS = 4
"""Folds of the held-out scores that `standardize` takes its statistics from."""


def choose_engine(approximation: Any, n: int, kernels: int, kernel: Any = None) -> Any:
    """Choose an engine by size where the `approximation` is "auto"; the choice is logged with its reason."""
    if is_pairwise(kernel) and approximation == "auto":
        return "exact"
    engine, reason = reasoned_engine(approximation, n, kernels)
    if reason:
        log.info("engine: %s", reason)
    if is_product(kernel) and not is_exact(engine):
        raise UserError("kernel='product' has no low-rank form; take approximation='exact'")
    return engine


def by_gradients(approximation: Any) -> bool:
    """Tell whether an approximation asks for regressions on kernel values at landmarks, in place of factor rows."""
    return getattr(approximation, "solver", "direct") == "cg"


def chooses_solver(approximation: Any) -> bool:
    """Tell whether an approximation leaves it to a regression whether it makes factor rows."""
    return getattr(approximation, "solver", "direct") == "auto" and approximation.rank != "auto"


def reasoned_engine(approximation: Any, n: int, kernels: int) -> tuple[Any, str]:
    """Choose as `choose_engine`, and say why."""
    if approximation != "auto":
        return approximation, ""
    what = f"{kernels} kernel{'s'[: kernels > 1]} of {n} x {n} with factors"
    return _exact_or_best(what, sum(exact_bytes(n, kernels)), 0.7)


def exact_or_best(what: str, needed: float, share: float) -> Any:
    """Choose the exact engine where it takes at most a share of the free memory, else a low rank."""
    engine, reason = _exact_or_best(what, needed, share)
    log.info("engine: %s", reason)
    return engine


def _exact_or_best(what: str, needed: float, share: float) -> tuple[Any, str]:
    free = free_memory()
    sizes = f"{what} take {amount(needed)}, {amount(free)} are free"
    if needed <= share * free:
        return "exact", f"exact ({sizes})"
    return BestLowRank(rank=_AUTO_RANK), f"the better of Nystrom and MEKA at rank {_AUTO_RANK} ({sizes})"


def decided(estimator: Any) -> Any:
    """Look up the engine of an estimator."""
    engine = getattr(estimator, "approximation_", estimator.approximation)
    if isinstance(engine, str) and engine == "auto":
        raise AttributeError(f"{type(estimator).__name__}: approximation='auto' is decided by fit; call fit first")
    return engine


def is_exact(approximation: Any) -> bool:
    """Tell whether an `approximation` asks for the exact engine."""
    if approximation == "exact" or isinstance(approximation, Exact):
        return True
    if isinstance(approximation, (Nystrom, Meka, BestLowRank)):
        return False
    raise UserError(
        f"approximation = {approximation!r}; known: 'auto', 'exact', 'nystrom', 'meka', 'best', or Exact, Nystrom, Meka, "
        "BestLowRank objects"
    )


@dataclass(frozen=True)
class LowRankPass:
    """Feature maps and, per fold, the moments of their factor rows and the labels."""

    maps: dict[str, FeatureMap]  # by view
    folds: list[Moments]  # one per fold

    @cached_property
    def total(self) -> Moments:
        """Moments of all rows."""
        return reduce(add, self.folds)

    @property
    def frequency(self) -> np.ndarray:
        """Share of the rows that carry each label (L)."""
        return self.total.mean()[self.total.slices()[LABELS]]

    def extended(
        self,
        views: Mapping[str, Rows],
        Y: np.ndarray | None,
        random_state: int | None,
        weights: np.ndarray | None = None,
    ) -> LowRankPass:
        """Add further rows, in the same folds' shares.

        Y (m, L); weights (m,)
        """
        seed = None if random_state is None else [random_state, int(self.total.n)]
        new = pass_of(self.maps, views, Y, len(self.folds), seed, weights).folds
        old = self.folds if Y is None else [part.widened(LABELS, Y.shape[1]) for part in self.folds]
        return LowRankPass(self.maps, [a + b for a, b in zip(old, new, strict=True)])


def fit_maps(
    approximation: Any,
    kernel: Any,
    views: Mapping[str, Rows],
    random_state: int | None,
    center: bool,
    weights: Mapping[str, np.ndarray] | None = None,
) -> dict[str, FeatureMap]:
    """Fit a feature map per view.

    views (n, d); weights (n,)
    """
    kernels = per_view("kernel", kernel, list(views))
    approximations = per_view("approximation", approximation, list(views))

    def fit(view: str) -> FeatureMap:
        source = views[view]
        try:
            if by_gradients(approximations[view]):
                raise UserError(
                    "solver='cg' makes no factor rows, without which only MultiViewRidge.fit does, of labels as a dense "
                    "matrix; take solver='direct'"
                )
            own = parse(kernels[view])
            if weights is not None and (weights[view] != 1).any():
                own = own.fit(source, random_state, weights[view])
            return approximations[view].feature_map(own, source, random_state, center)
        except UserError as error:
            text = str(error)
            said = text.find(f"view {view!r} has")  # by the rows themselves, as they were read
            raise UserError(text[said:] if said >= 0 else f"view {view!r}: {text}") from error

    # of every view in work: its rows as they are read and as they are prepared, its columns
    largest = max(min(source.shape[0], MOST_ROWS) * (2 * source.shape[1] + _AUTO_RANK) for source in views.values())
    threads = int(np.clip(_SAMPLES * free_memory() / (4.0 * largest), 1, thread_count()))
    return dict(zip(views, in_threads(fit, list(views), threads), strict=True))


def low_rank_pass(
    approximation: Any,
    kernel: Any,
    views: Mapping[str, Rows],
    Y: np.ndarray | None,
    n_folds: int,
    random_state: int | None,
    center: bool,
    weights: np.ndarray | None = None,
) -> LowRankPass:
    """Fit the maps and pass once over the rows.

    views (n, d); Y (n, L); weights (n,)
    """
    counts = None if weights is None else dict.fromkeys(views, weights)
    maps = fit_maps(approximation, kernel, views, random_state, center, counts)
    return pass_of(maps, views, Y, n_folds, random_state, weights)


T = TypeVar("T")


def in_single(
    maps: Mapping[str, Any],
    views: Mapping[str, Rows],
    collect: Callable[[dict[str, Any]], T],
    is_precise: Callable[[T], bool],
) -> T:
    """Collect products of factor rows, of float32 features in float32 if the result is precise, otherwise in float64.

    views (n, d)
    """
    single = {view: m.single(views[view].dtype) for view, m in maps.items()}
    if any(single[view] is not m for view, m in maps.items()):
        found = collect(single)
        if is_precise(found):
            return found
        log.info("products of features in float32 are not precise enough for the ridge; they are made again in float64")
    return collect(dict(maps))


def pass_of(
    maps: dict[str, FeatureMap],
    views: Mapping[str, Rows],
    Y: np.ndarray | None,
    n_folds: int,
    seed: Any,
    weights: np.ndarray | None = None,
    squares: bool = True,
) -> LowRankPass:
    """Pass once over the rows with fitted maps, in n_folds random folds of equal sizes.

    views (n, d); Y (n, L); weights (n,)
    """
    n = next(iter(views.values())).shape[0]
    folds = folds_of(n, n_folds, seed) if n_folds > 1 else None
    raw = collect_moments(FeatureRows(views, maps, portable=True), Y, folds, current_client(), weights, squares)
    mixings = {view: m.mixing for view, m in maps.items() if m.mixing is not None}
    found = [part.mixed(mixings) for part in raw]
    return LowRankPass(maps, found + [Moments.zeros(found[0].widths)] * (n_folds - len(found)))


def folds_of(n: int, n_folds: int, seed: Any) -> np.ndarray:
    """Deal samples out to random folds of equal sizes.

    -> (n,)
    """
    return np.random.default_rng(seed).permutation(np.resize(np.arange(n_folds, dtype=np.min_scalar_type(n_folds)), n))
