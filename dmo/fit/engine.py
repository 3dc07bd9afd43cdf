"""Choice of the exact or the low-rank engine, and the single pass over the data of the low-rank engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any, TypeVar

import numpy as np

from dmo.blocks import Rows
from dmo.errors import UserError, amount
from dmo.fit.exact import Exact, exact_bytes
from dmo.fit.moments import LABELS, Moments
from dmo.fit.passes import FeatureRows, collect_moments
from dmo.inputs import per_view
from dmo.kernels import parse
from dmo.kernels.composite import is_pairwise
from dmo.kernels.product import is_product
from dmo.lowrank import FeatureMap
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
from dmo.lowrank.sampling import MOST_ROWS
from dmo.memory import free_memory
from dmo.threads import in_threads, thread_count

log = logging.getLogger("dmo")
_AUTO_RANK = 1000
# Feature maps of several views are fitted in parallel if their sampled rows fit in this fraction of the free memory.
_SAMPLES = 0.25
FOLDS = 4
"""Default number of folds for out-of-fold scores, for example for the means and standard deviations of
`standardize`."""


def choose_engine(approximation: Any, n: int, kernels: int, kernel: Any = None) -> Any:
    """Choose an engine by the problem size if `approximation` is "auto", and log the reason."""
    if approximation == "auto" and is_pairwise(kernel):
        return "exact"
    engine, reason = reasoned_engine(approximation, n, kernels)
    if reason:
        log.info("engine: %s", reason)
    if is_product(kernel) and not is_exact(engine):
        raise UserError("kernel='product' has no low-rank form; use approximation='exact'")
    return engine


def by_gradients(approximation: Any) -> bool:
    """Return whether the approximation solves regressions on kernel values at landmarks, without factor rows."""
    return getattr(approximation, "solver", "direct") == "cg"


def chooses_solver(approximation: Any) -> bool:
    """Return whether the regression itself decides between factor rows and kernel values at landmarks."""
    return getattr(approximation, "solver", "direct") == "auto" and approximation.rank != "auto"


def reasoned_engine(approximation: Any, n: int, kernels: int) -> tuple[Any, str]:
    """Choose an engine by the problem size if `approximation` is "auto", and return the reason as well."""
    if approximation != "auto":
        return approximation, ""
    what = f"{kernels} kernel{'s'[: kernels > 1]} of {n} x {n} with factors"
    return _exact_or_best(what, sum(exact_bytes(n, kernels)), 0.7)


def exact_or_best(what: str, needed: float, share: float) -> Any:
    """Choose the exact engine if it needs at most `share` of the free memory, otherwise a low-rank kernel."""
    engine, reason = _exact_or_best(what, needed, share)
    log.info("engine: %s", reason)
    return engine


def _exact_or_best(what: str, needed: float, share: float) -> tuple[Any, str]:
    free = free_memory()
    sizes = f"{what} need {amount(needed)}, {amount(free)} are free"
    if needed <= share * free:
        return "exact", f"exact ({sizes})"
    return BestLowRank(rank=_AUTO_RANK), f"the better of Nystrom and MEKA at rank {_AUTO_RANK} ({sizes})"


def decided(estimator: Any) -> Any:
    """Return the engine that a fitted estimator uses."""
    engine = getattr(estimator, "approximation_", estimator.approximation)
    if isinstance(engine, str) and engine == "auto":
        raise AttributeError(f"{type(estimator).__name__}: approximation='auto' is decided by fit; call fit first")
    return engine


def is_exact(approximation: Any) -> bool:
    """Return whether `approximation` selects the exact engine."""
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
    """Feature map of each view, and the moments of factor rows and labels in each fold."""

    maps: dict[str, FeatureMap]
    folds: list[Moments]

    @cached_property
    def total(self) -> Moments:
        """Moments of all rows."""
        return reduce(add, self.folds)

    @property
    def frequency(self) -> np.ndarray:
        """Fraction of the rows that have each label, as an array of shape (L,)."""
        return self.total.mean()[self.total.slices()[LABELS]]

    def extended(
        self,
        views: Mapping[str, Rows],
        Y: np.ndarray | None,
        random_state: int | None,
        weights: np.ndarray | None = None,
    ) -> LowRankPass:
        """Add new rows, which are divided randomly over the existing folds."""
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
    """Fit a feature map for each view."""
    kernels = per_view("kernel", kernel, list(views))
    approximations = per_view("approximation", approximation, list(views))

    def fit(view: str) -> FeatureMap:
        source = views[view]
        try:
            if by_gradients(approximations[view]):
                raise UserError(
                    "solver='cg' makes no factor rows; only MultiViewRidge.fit with a dense label matrix works without "
                    "them; use solver='direct'"
                )
            own = parse(kernels[view])
            if weights is not None and (weights[view] != 1).any():
                own = own.fit(source, random_state, weights[view])
            return approximations[view].feature_map(own, source, random_state, center)
        except UserError as error:
            text = str(error)
            # Do not repeat the name of the view if the error message already contains it.
            said = text.find(f"view {view!r} has")
            raise UserError(text[said:] if said >= 0 else f"view {view!r}: {text}") from error

    # Fitting a feature map needs memory for the sampled rows, for a prepared copy of these rows, and for the factor
    # columns.
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
    """Fit the feature maps, and collect the moments of factor rows and labels in one pass over the rows."""
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
    """Collect products of factor rows with `collect`, in float32 if the features are float32.

    Float32 products that `is_precise` rejects are computed again in float64.
    """
    single = {view: m.single(views[view].dtype) for view, m in maps.items()}
    if any(single[view] is not m for view, m in maps.items()):
        found = collect(single)
        if is_precise(found):
            return found
        log.info("products of features in float32 are not precise enough for the ridge; repeating them in float64")
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
    """Collect the moments of `n_folds` random folds in one pass over the rows, with fitted maps.

    Without `squares`, the products of labels with labels are not computed and are 0.
    """
    n = next(iter(views.values())).shape[0]
    folds = folds_of(n, n_folds, seed) if n_folds > 1 else None
    raw = collect_moments(FeatureRows(views, maps, portable=True), Y, folds, weights, squares)
    mixings = {view: m.mixing for view, m in maps.items() if m.mixing is not None}
    found = [part.mixed(mixings) for part in raw]
    return LowRankPass(maps, found + [Moments.zeros(found[0].widths)] * (n_folds - len(found)))


def folds_of(n: int, n_folds: int, seed: Any) -> np.ndarray:
    """Assign n samples to random folds of equal size, and return the fold of each sample."""
    return np.random.default_rng(seed).permutation(np.resize(np.arange(n_folds, dtype=np.min_scalar_type(n_folds)), n))
