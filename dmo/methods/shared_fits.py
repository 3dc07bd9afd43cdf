"""Fits of hyperparameter candidates on all training sets of a cross-validation, from shared kernels or moments."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from dmo.blocks import Rows, Subset, row_blocks
from dmo.cluster import current_client
from dmo.errors import UserError
from dmo.fit.engine import decided, fit_maps, is_exact
from dmo.fit.exact import exact_engine
from dmo.fit.moments import LABELS, Moments
from dmo.fit.passes import FeatureRows, collect_moments
from dmo.fit.row_sums import BLOCK
from dmo.inputs import Data, label_rank, per_view, picked, prepare_views
from dmo.inputs.outputs import RealOutputs
from dmo.inputs.preparation import PreparedRows, learn_preparations, scalable
from dmo.kernels import Linear, parse, rescaled
from dmo.kernels.base import BandwidthKernel
from dmo.kernels.composite import is_pairwise
from dmo.lowrank.approximations import Nystrom
from dmo.lowrank.many_bandwidths import ManyBandwidths, exponents_of
from dmo.lowrank.nystrom import NystromMap
from dmo.memory import Memory, fits, remembered, remembering
from dmo.methods.annotator import Annotator
from dmo.methods.homogeneity_maps import decoder, nested_decoder
from dmo.persistence import encode
from dmo.threads import in_threads, thread_count

Setting = Mapping[str, Any]
_MEMORY = 2**30
"""Maximum size in bytes of the factor rows, coefficients and out-of-fold values that a search stores."""
_EXPONENTS = 2**29
"""Maximum size in bytes of stored kernel exponents, such as squared distances to landmarks, for several bandwidths."""
_STRIP = 512  # number of rows whose scores are updated together


@dataclass(frozen=True)
class HeldOut:
    """Predictions of one fit for its held-out rows and, if requested, its training rows."""

    components: Mapping[float | None, int]  # number of components for each value of `n_components`
    frequency: np.ndarray  # label frequencies of the training rows
    values: np.ndarray  # coordinates of the held-out rows, or their raw scores if `loadings` is None
    loadings: np.ndarray | None  # label loadings of shape (L, p), whose pseudo-inverse is the decoder
    loo: np.ndarray | None  # leave-one-out coordinates or scores of the training rows, if requested
    labels: np.ndarray | None = None
    turn: np.ndarray | None = None  # matrix that maps `values` to coordinates; None: `values` are the coordinates
    units: RealOutputs | None = None  # units of regression targets, learned from the training rows
    key: Any = None  # cache key that identifies all inputs of the fit, or None if the fit is not cached

    def scores(self, wanted: Iterable[float | None]) -> Iterator[tuple[float | None, np.ndarray, np.ndarray | None]]:
        """Yield scores of the held-out and training rows, in increasing number of components.

        Each item contains the value of `n_components`, and the scores of the held-out rows and of the training rows.
        """
        if self.loadings is None:
            yield from ((value, self.values, self.loo) for value in wanted)
            return
        parts = [part for part in (self.values, self.loo) if part is not None]
        order = sorted(wanted, key=lambda value: self.components[value])
        for value, found in zip(order, self._nested(parts, [self.components[v] for v in order]), strict=True):
            yield value, found[0], found[1] if self.loo is not None else None

    def _nested(self, parts: Sequence[np.ndarray], counts: Sequence[int]) -> Iterator[list[np.ndarray]]:
        """Yield scores for increasing numbers of components; each step adds the contribution of the new ones."""
        assert self.loadings is not None
        most = counts[-1] if counts else 0
        nested = nested_decoder(self.loadings[:, :most])
        if nested is None:
            for k in counts:
                D = self._of_values(decoder(self.loadings[:, :k]))
                yield [part[:, : len(D)] @ D.astype(part.dtype, copy=False) for part in parts]
            return
        T, U = nested
        T = self._of_values(T)
        turned = [part[:, : len(T)] @ T.astype(part.dtype, copy=False) for part in parts]
        totals = [np.zeros((len(part), len(U)), part.dtype) for part in parts]
        done = 0
        for k in counts:
            for total, part in zip(totals, turned, strict=True):
                own = np.ascontiguousarray(U[:, done:k].T, part.dtype)
                for where in row_blocks(len(part), _STRIP):  # Strips of this size keep the scores in the CPU cache.
                    total[where] += part[where, done:k] @ own
            done = k
            yield totals

    def _of_values(self, decoder: np.ndarray) -> np.ndarray:
        """Convert a decoder of coordinates into a decoder of the columns of `values`."""
        return decoder if self.turn is None else self.turn[:, : len(decoder)] @ decoder


@dataclass(frozen=True)
class SharedFit:
    """Fits of several candidates, combined into one function sum_v f_v(x) B_v + offset of factor rows f_v(x)."""

    coefficients: dict[str, np.ndarray]  # matrix B_v of each view, with the columns of all candidates
    offset: np.ndarray
    members: Sequence[tuple[int, np.ndarray | None, np.ndarray | None]]  # index, turn and loadings of candidates


class SharedFits(Annotator):
    """Base class of estimators whose candidates share kernels and factorizations, or moments, in a search."""

    # A subclass has the parameters `kernel`, `ridge`, `center`, `approximation`, `random_state` and `prepare`. The
    # subclass implements `_held_out_fit` for exact kernels, `_fit_together` for low-rank kernels, or both. The
    # following attributes list parameters whose values share computations. A search fits each candidate separately if
    # the subclass does not implement the required method, if views have missing samples, or if there are class weights.
    # `tune` also tries product kernels if the class has the attribute `_product`, like `KGHA`.

    _search = "kernels"
    _factored_by: ClassVar[tuple[str, ...]] = ("center", "ridge")
    """Parameters that change the factorizations. Candidates that share these parameters are fitted consecutively."""
    _solved_by: ClassVar[tuple[str, ...]] = ()
    """Numeric parameters that change the solution, but no factorization. Their values are tried in ascending order."""
    _decoded_by: ClassVar[tuple[str, ...]] = (
        "intercept",
        "decoder",
        "decoder__prior_power",
        "decoder__propensity",
        "decoder__standardize",
    )
    """Parameters that change how a fit scores and ranks labels, but not the fit itself. They include `n_components` if
    a fit with fewer components consists of the leading components of a larger fit."""
    _decoder_uses_left_out: ClassVar[bool] = True
    """Whether decoders are learned from leave-one-out scores of the fit, which avoids additional fits."""

    kernel: Any
    center: bool
    random_state: int | None

    @property
    def _swept_together(self) -> tuple[str, ...]:
        return self._factored_by + self._solved_by + self._decoded_by

    def _shares_fits(self, exact: bool) -> bool:
        """Return whether the class implements shared fits, with exact or with low-rank kernels."""
        method = "_held_out_fit" if exact else "_fit_together"
        return getattr(type(self), method) is not getattr(SharedFits, method)

    def _learn_weights(self, views: Mapping[str, Rows], Y: np.ndarray) -> None:
        """Learn view weights that all candidates share; by default, nothing is learned."""

    def _complete_labels(self, data: Data) -> Data:
        """Impute unknown labels for all candidates; by default, pass them on to `_held_out_fit`."""
        return data

    def _components(self, n_labels: int, rank: int, n: int) -> int:
        """Count the components of an estimator with `n_components`; `rank` is the rank of the centered labels."""
        raise NotImplementedError

    def _held_out_fit(
        self, data: Data, new: Mapping[str, Rows], components: Mapping[float | None, int], needs_loo: bool
    ) -> HeldOut:
        """Fit exact kernels of prepared rows, and score the rows `new`.

        With `needs_loo`, the result also contains leave-one-out scores of the training rows.
        """
        raise NotImplementedError

    def _fit_together(self, moments: Moments, center: bool, models: Sequence[Self], k: int) -> Iterator[SharedFit]:
        """Fit copies of this estimator with the same parameter `center` to moments of factor rows and labels."""
        raise NotImplementedError


def components_of(model: Any, decoders: Sequence[Setting], labels: np.ndarray) -> dict[float | None, int]:
    """Map each value of `n_components` to a number of components; without components, return the number of labels."""
    if not hasattr(model, "n_components"):
        return {None: labels.shape[1]}
    wanted = {setting.get("n_components", model.n_components) for setting in decoders}
    (n, n_labels), rank = labels.shape, label_rank(labels)
    return {value: _with(model, {"n_components": value})._components(n_labels, rank, n) for value in wanted}


def _with(model: Any, setting: Setting) -> Any:
    """Return a shallow copy with other parameter values, which is much cheaper than `clone`."""
    own = copy.copy(model)
    own.__dict__ |= setting
    return own


def told(arguments: Any) -> Hashable:
    """Return a string that identifies the arguments, or a unique object if the arguments cannot be encoded."""
    try:
        return str(encode(arguments))
    except UserError:
        return object()


def _named(memory: Memory, views: Mapping[str, Rows]) -> tuple[tuple[str, str], ...]:
    return tuple((view, memory.name(source)) for view, source in views.items())


def factorizations(algebra: Sequence[Setting], needs_loo: bool) -> float:
    """Count the Cholesky factorizations per view that the ridges of some candidates need.

    The diagonal of the inverse, for leave-one-out scores, costs as much as another factorization.
    """
    kinds = {(str(setting.get("ridge")), str(setting.get("center"))) for setting in algebra}
    return len(kinds) / len({center for _, center in kinds}) * (2.0 if needs_loo else 1.0)


class SharedMaps:
    """Low-rank kernels with shared landmarks, for candidates that differ in the bandwidth."""

    # Landmarks are always chosen by the kernels with bandwidth factor 1, so the scores of a candidate do not depend on
    # the other candidates. Bandwidths are fitted separately if the kernel of a view is a sum or a product, or if its
    # approximation is not a Nystrom map with a fixed rank.

    def __init__(self) -> None:
        self._bandwidths: dict[str, ManyBandwidths] | None = None
        self._exponents: tuple[Mapping[str, Rows], Mapping[str, Rows]] | None = None

    def fit(
        self, model: Any, old: Mapping[str, Rows], new: Mapping[str, Rows], factor: float | None, center: bool
    ) -> tuple[Mapping[str, Rows], Mapping[str, Rows], Mapping[str, Any]]:
        """Return the training rows and the new rows, or their stored kernel exponents, and the low-rank kernels."""
        if factor is not None and self._bandwidths is None:
            self._bandwidths = self._landmarks(model, old, rescaled(model.kernel, 1 / factor), center)
            if self._bandwidths and current_client() is None:
                size = sum(part.base.dtype.itemsize * part.base.rank for part in self._bandwidths.values())
                n_old, n_new = (next(iter(part.values())).shape[0] for part in (old, new))
                if size * (n_old + n_new) ** 2 // n_new <= _EXPONENTS:  # size in bytes for all folds
                    known = self._bandwidths
                    self._exponents = exponents_of(known, old, BLOCK), exponents_of(known, new, BLOCK)
        if factor is None or not self._bandwidths:
            return old, new, fit_maps(model.approximation, model.kernel, old, model.random_state, center)
        shared = self._bandwidths
        found = dict(zip(shared, in_threads(lambda view: shared[view].scaled(factor), list(shared)), strict=True))
        if self._exponents is not None:
            return self._exponents[0], self._exponents[1], found
        return old, new, {view: part.map for view, part in found.items()}

    def _landmarks(
        self, model: Any, sources: Mapping[str, Rows], kernel: Any, center: bool
    ) -> dict[str, ManyBandwidths]:
        """Fit maps that all bandwidths share, or return an empty dict if a view has no Nystrom map of full rank."""
        approximations = per_view("approximation", model.approximation, list(sources))
        kernels = per_view("kernel", kernel, list(sources))
        for view, approximation in approximations.items():
            own = parse(kernels[view] if approximation.kernel is None else approximation.kernel)
            if not (isinstance(approximation, Nystrom) and isinstance(approximation.rank, int)):
                return {}
            if approximation.kernel is not None or not isinstance(own, BandwidthKernel):
                return {}
        maps = fit_maps(model.approximation, kernel, sources, model.random_state, center)
        found = {view: ManyBandwidths(m) for view, m in maps.items() if isinstance(m, NystromMap)}
        full = all(m.base.rank == min(approximations[v].rank, sources[v].shape[0]) for v, m in found.items())
        return found if full and len(found) == len(sources) else {}


@dataclass(frozen=True, eq=False)
class _Folds:
    model: SharedFits
    sources: Mapping[str, Rows]
    labels: Any  # labels as returned by `dmo.select.sweeps.searched_labels`
    fold: np.ndarray
    algebra: Sequence[Setting]
    decoders: Sequence[Setting]
    needs_loo: bool
    numbers: Sequence[int] | None = None
    real: bool = False

    @property
    def held_out(self) -> Sequence[int]:
        return range(int(self.fold.max()) + 1) if self.numbers is None else self.numbers

    def training(self, number: int) -> dict[str, Rows]:
        """Return the unprepared training rows of a fold, which are the rows of all other folds."""
        return {name: Subset(source, np.flatnonzero(self.fold != number)) for name, source in self.sources.items()}

    def split(self, number: int) -> tuple[dict[str, Rows], dict[str, Rows], Any, RealOutputs | None]:
        """Return training rows, held-out rows, training labels and the units of regression targets.

        Scales and units are learned only from the training rows.
        """
        model, test = self.model, np.flatnonzero(self.fold == number)
        size = 8.0 * sum(np.prod(source.shape) for source in self.sources.values())

        def prepared() -> tuple[dict[str, Rows], dict[str, Rows]]:
            probe = clone(model)
            old = prepare_views(probe, self.training(number), reset=True)
            held = {name: Subset(source, test) for name, source in self.sources.items()}
            new = prepare_views(probe, held, reset=False)
            if is_exact(decided(model)) and fits(8 * size):  # Prepare rows once instead of at each read.
                old.update({view: part[:] for view, part in old.items() if isinstance(part, PreparedRows)})
                new.update({view: part[:] for view, part in new.items() if isinstance(part, PreparedRows)})
            return old, new

        def key(memory: Memory) -> Hashable:
            kernels = per_view("kernel", model.kernel, list(self.sources)).values()
            kinds = str(scalable(model, list(self.sources))), tuple(is_pairwise(kernel) for kernel in kernels)
            return "split", told(model._prepare), kinds, _named(memory, self.sources), (self.fold == number).tobytes()

        old, new = remembered(prepared, size, key) if is_exact(decided(model)) else prepared()
        labels = picked(self.labels, np.flatnonzero(self.fold != number))
        if not self.real:
            return old, new, labels, None
        units = RealOutputs.of(labels, False)
        return old, new, units.scaled(labels), units


@dataclass(frozen=True, eq=False)
class ExactFolds(_Folds):
    """Iterator over fits of candidates on exact kernels, with a cache of kernels and factorizations."""

    # The iterator yields the fold, the index of the candidate, and its predictions as a `HeldOut` object.

    def __iter__(self) -> Iterator[tuple[int, int, HeldOut]]:
        for number in self.held_out:
            old, new, labels, units = self.split(number)
            for i, held in enumerate(self.fitted(old, new, labels)):
                yield number, i, replace(held, units=units)

    def fitted(self, old: Mapping[str, Rows], new: Mapping[str, Rows], labels: Any) -> Iterator[HeldOut]:
        """Yield predictions of all candidates for the rows `new`, after fits on the rows `old`."""
        labels = np.asarray(labels, np.float64)
        model, known = clone(self.model), ~np.isnan(labels)
        model.approximation_ = replace(exact_engine(self.model.approximation), storage="memory")
        model._only_scores = True
        labels = labels if known.all() else np.where(known, labels, 0.0)
        data = Data.of(old, labels, known=None if known.all() else known)
        taken = factorizations(self.algebra, self.needs_loo)
        with remembering() as memory:
            model._learn_weights(old, labels)
            data = data if data.known is None else model._complete_labels(data)
            labels = data.Y
            components = components_of(model, self.decoders, labels)
            k, n_rows = max(components.values()), sum(next(iter(part.values())).shape[0] for part in (old, new))
            what = k, self.needs_loo, *(_named(memory, part) for part in (old, new, {"": known, "labels": labels}))
            # The rows are already prepared, so the key omits the parameters of the preparation.
            unused = {"prepare", *(name.partition("__")[0] for name in model._decoded_by)}
            given = {name: value for name, value in model.get_params(deep=False).items() if name not in unused}
            for setting in self.algebra:
                key = "held out", type(model), told(given | dict(setting)), what
                own = _with(model, setting)

                def fit(own: Any = own) -> HeldOut:
                    with remembering(taken):
                        found = own._held_out_fit(data, new, components, self.needs_loo)
                        return replace(found, key=object())  # type: ignore[no-any-return]

                found = memory.get(fit, 8.0 * n_rows * max(k, labels.shape[1]), key)
                yield replace(found, components=components)


@dataclass(frozen=True, eq=False)
class MomentFolds(_Folds):
    """Iterator over fits of candidates from moments; one pass over the training rows serves all candidates."""

    # The moments of a training set are sums of the moments of folds. If the fit learns nothing else from the rows, one
    # pass serves all folds. For linear kernels, one pass suffices if rows are not scaled, or scaled to unit length. The
    # iterator yields the same items as `ExactFolds`.

    maps: Mapping[int, SharedMaps] | None = None  # low-rank kernels of each fold, shared by bandwidths
    factor: float | None = None  # factor that was applied to the bandwidths of the model; see `SharedMaps`

    def __post_init__(self) -> None:
        if self.needs_loo:
            raise UserError("a sweep over low-rank kernels cannot share fits if standardize > 0; use exact kernels")

    def __iter__(self) -> Iterator[tuple[int, int, HeldOut]]:
        model, limit = self.model, _MEMORY // 2 if current_client() is None else 0
        center = all(setting.get("center", model.center) for setting in self.algebra)
        whole = self._alike()
        if whole is not None:
            maps = fit_maps(model.approximation, model.kernel, whole, model.random_state, center)
            raw = FeatureRows(whole, maps, limit)
            parts = collect_moments(raw, self.labels, self.fold)
            # Subtracting the moments of a held-out fold would leave floating-point errors, so add the training folds.
            trainings = [reduce(add, parts[:number] + parts[number + 1 :]) for number in range(len(parts))]
            yield from self._fitted(range(len(parts)), trainings, raw, self.fold, {}, None)
            return
        for number in self.held_out:
            old, new, labels, units = self.split(number)
            shared = SharedMaps() if self.maps is None else self.maps[number]
            read, held, found = shared.fit(model, old, new, self.factor, center)
            (training,) = collect_moments(FeatureRows(read, found), labels)
            mixings = {view: m.mixing for view, m in found.items() if m.mixing is not None}
            raw, alone = FeatureRows(held, found, limit), np.zeros(np.count_nonzero(self.fold == number), np.intp)
            yield from self._fitted([number], [training.mixed(mixings)], raw, alone, mixings, units)

    def _alike(self) -> Mapping[str, Rows] | None:
        """Return all rows with a common preparation, or None if folds learn more than moments from their rows."""
        model, names = self.model, list(self.sources)
        engines, kernels = (per_view(name, getattr(model, name), names) for name in ("approximation", "kernel"))
        scales = per_view("scale", model._prepare.scale, names)
        if self.real or model._prepare.impute is not None or {"standard", "maxabs"} & set(scales.values()):
            return None
        for view, engine in engines.items():
            own = parse(kernels[view] if engine.kernel is None else engine.kernel)
            if not isinstance(own, Linear) or self.sources[view].shape[1] > engine._columns():
                return None
        if any(
            part.to_arrays() for i in self.held_out for part in learn_preparations(model, self.training(i)).values()
        ):
            return None
        fixed = {view: "l2" if scale == "l2" else "none" for view, scale in scales.items()}
        return prepare_views(clone(model).set_params(prepare__scale=fixed), self.sources, reset=True)

    def _fitted(
        self,
        numbers: Sequence[int],
        trainings: Sequence[Moments],
        raw: FeatureRows,
        fold: np.ndarray,
        mixings: Mapping[str, np.ndarray],
        units: RealOutputs | None,
    ) -> Iterator[tuple[int, int, HeldOut]]:
        """Yield fits on training sets with predictions for the rows `raw`; `fold` assigns each row to a fit."""
        model = self.model
        columns = sum(width for view, width in trainings[0].widths.items() if view != LABELS)
        components = in_threads(
            lambda number: components_of(model, self.decoders, self.labels[self.fold != number]), numbers
        )
        # Components beyond the rank of the training labels would be random directions, and the rank differs between
        # folds. Therefore, each fold has its own number of components.
        most = [max(found.values()) for found in components]
        # Candidates that share coefficients need less memory, so the size per candidate is an upper bound.
        size = 4 * max(most) * (len(numbers) * columns + raw.n)
        for group in row_blocks(len(self.algebra), max(1, (_MEMORY - raw.nbytes) // size)):
            chosen = list(range(len(self.algebra)))[group]
            fits = self._fits(trainings, chosen, mixings, most)
            values = self._evaluate(raw, fits, fold)
            for i, (fit, found) in enumerate(zip(fits, values, strict=True)):
                frequency = trainings[i].mean()[trainings[i].slices()[LABELS]]
                for setting, (where, turn, loadings) in fit.members.items():
                    own = found[:, where]
                    held = HeldOut(components[i], frequency, own, loadings, None, turn=turn, units=units)
                    yield numbers[i], setting, held

    def _fits(
        self,
        trainings: Sequence[Moments],
        chosen: Sequence[int],
        mixings: Mapping[str, np.ndarray],
        most: Sequence[int],
    ) -> list[_FoldFits]:
        """Fit some candidates on every training set."""

        def one(number: int) -> _FoldFits:
            fits = _FoldFits(mixings)
            for center in sorted({bool(self.algebra[i].get("center", self.model.center)) for i in chosen}):
                alike = [i for i in chosen if bool(self.algebra[i].get("center", self.model.center)) == center]
                models = [clone(self.model).set_params(**self.algebra[i]) for i in alike]
                for fit in self.model._fit_together(trainings[number], center, models, most[number]):
                    fits.put(alike, fit)
            return fits.stacked()

        size = trainings[0].gram.nbytes
        threads = min(thread_count(), max(1, _MEMORY // (4 * size)))  # Each fold needs several copies of the moments.
        return in_threads(one, range(len(trainings)), threads)

    def _evaluate(self, raw: FeatureRows, fits: Sequence[_FoldFits], fold: np.ndarray) -> list[np.ndarray]:
        """Evaluate the fits of each fold at its held-out rows in float32, in one pass over all rows."""
        counts = np.bincount(fold, minlength=len(fits))
        values = [np.empty((count, fit.columns), np.float32) for count, fit in zip(counts, fits, strict=True)]
        done = [0] * len(fits)
        for where in row_blocks(raw.n, BLOCK):
            found = raw[where]

            def fill(number: int, where: slice = where, found: Mapping[str, Any] = found) -> None:
                picked = np.flatnonzero(fold[where] == number)
                start = done[number]
                done[number] = start + len(picked)
                fits[number].values(found, picked, values[number][start : done[number]])

            in_threads(fill, range(len(fits)))
        return values


@dataclass
class _FoldFits:
    """Fits of several candidates on one training set, combined into one function with stacked columns."""

    # The factor rows of all views are stacked, so one matrix product evaluates all functions. Views in `mixings` are
    # the exception: their factor rows are block-sparse, and their mixing matrix is multiplied into the coefficients.
    # `members` maps each candidate to its columns, turn and loadings.

    mixings: Mapping[str, np.ndarray]
    columns: int = 0
    members: dict[int, tuple[slice, np.ndarray | None, np.ndarray | None]] = field(default_factory=dict)
    _parts: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    _dense: list[str] = field(default_factory=list)

    def put(self, settings: Sequence[int], fit: SharedFit) -> None:
        """Add a shared fit; `settings` maps the indices in `fit` to indices of candidates."""
        self._dense = [view for view in fit.coefficients if view not in self.mixings]
        kept = [np.vstack([fit.coefficients[view] for view in self._dense])] if self._dense else []
        kept += [T @ fit.coefficients[view] for view, T in self.mixings.items()]
        self._parts.append(tuple(part.astype(np.float32) for part in (fit.offset[None], *kept)))
        where = slice(self.columns, self.columns + len(fit.offset))
        self.members |= {settings[j]: (where, turn, loadings) for j, turn, loadings in fit.members}
        self.columns = where.stop

    def stacked(self) -> _FoldFits:
        """Concatenate the columns of all fits, and return this object."""
        self._parts = [tuple(np.hstack(parts) for parts in zip(*self._parts, strict=True))]
        return self

    def values(self, found: Mapping[str, Any], picked: np.ndarray, out: np.ndarray) -> None:
        """Evaluate the functions at the rows `picked` of a block of factor rows, and store the result in `out`."""
        ((offset, *coefficients),) = self._parts
        if self._dense:
            np.matmul(np.hstack([found[view][picked] for view in self._dense]), coefficients[0], out=out)
            out += offset
        else:
            out[:] = offset
        for view, part in zip(self.mixings, coefficients[bool(self._dense) :], strict=True):
            out += found[view][picked].dot(part)
