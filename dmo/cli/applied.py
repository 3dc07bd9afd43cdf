"""A model and the samples of a feature store that it is applied to, block by block, here or on workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from dmo import stores
from dmo.blocks import Rows, Subset
from dmo.cli.annotation import label_names
from dmo.cli.options import chosen_split
from dmo.cluster import current_client
from dmo.estimators.base import load
from dmo.progress import stage
from dmo.sending import T, Resent, retried
from dmo.tiles import grouped

BLOCK = 1024
"""Samples that are worked on at a time."""


@dataclass(frozen=True)
class Applied:
    """A model, the digest of its contents, and the samples it is applied to: views (m rows), their labels or None, row
    numbers, ids."""

    model: Any
    contents: str
    store: stores.FeatureStore
    views: Mapping[str, Rows]
    Y: np.ndarray | None
    index: np.ndarray
    split: str | None

    @property
    def n(self) -> int:
        return len(self.index)

    def batch(self, where: slice) -> dict[str, Rows]:
        """The views of some of the samples."""
        return {name: Subset(view.source, view.index[where]) for name, view in self.views.items()}

    def ids(self) -> list[str]:
        """The samples' ids, their row numbers where the store has none."""
        known = self.store.sample_ids
        return [str(i) for i in self.index] if known is None else [known[i] for i in self.index]

    def label_names(self) -> list[str]:
        """Names of the model's labels, numbers where it knows none."""
        return label_names(self.model)


def open_applied(model: str, features: str, split: str | None, default: str, needs: str) -> Applied:
    """Load a model and open the samples of a store for it.

    Arguments: `needs`: the method that the model must have. Raises StoreError where the model cannot be used so, or the
    store lacks one of its views or has it in another width.
    """
    fitted, contents = _loaded(model)
    store = stores.open_features(features)
    if not hasattr(fitted, needs):
        cure = "annotate and evaluate need `dmo fit kgha` or `ridge`, transform `dmo fit kgha` or `multisetcca`"
        raise stores.StoreError(f"{model} is a {type(fitted).__name__}, which cannot {_VERBS[needs]}; {cure}")
    for name, width in getattr(fitted, "view_widths_", {}).items():
        if name not in store.views:
            has = ", ".join(store.views)
            raise stores.StoreError(f"{features} lacks the view {name!r} that {model} was fitted on; it has {has}")
        found = store.views[name].shape[1]
        if found != width:
            raise stores.StoreError(
                f"{features}: view {name!r} has {found} features, {model} was fitted on {width}; ingest the same features"
            )
    chosen = chosen_split(store, split, default)
    views, Y, index = store.select(chosen)
    used = {name: views[name] for name in getattr(fitted, "view_widths_", views)}
    return Applied(fitted, contents, store, used, Y, index, chosen)


def _loaded(path: str) -> tuple[Any, str]:
    """A model and the digest of its contents, both of the same one where it is replaced meanwhile."""
    while True:
        contents = stores.model_contents(path)
        fitted = load(path)
        if stores.model_contents(path) == contents:
            return fitted, contents


_VERBS = {"transform": "transform samples", "decision_function": "score labels"}


def known_labels(applied: Applied, features: str) -> np.ndarray:
    """The labels of the samples, if they are the labels that the model scores."""
    names = applied.label_names()
    if applied.Y is None:
        raise stores.StoreError(f"{features} has no labels to compare with; ingest them, or use dmo annotate")
    if applied.Y.shape[1] != len(names):
        raise stores.StoreError(
            f"{features} has {applied.Y.shape[1]} labels, the model scores {len(names)}; pass a store with the same labels"
        )
    known = getattr(applied.model, "label_names_", None)
    if known is not None and applied.store.label_names is not None and list(known) != list(applied.store.label_names):
        first = next(i for i, (a, b) in enumerate(zip(known, applied.store.label_names)) if a != b)
        raise stores.StoreError(
            f"{features}: label {first} is {applied.store.label_names[first]!r}, the model has {known[first]!r} there; "
            f"pass a store with the same labels in the same order"
        )
    return applied.Y


def each(name: str, work: Callable[[int], T], numbers: Sequence[int]) -> Iterator[tuple[int, T]]:
    """(i, work(i)) of all numbers, in order: here, or on the workers, where `work` is sent once."""
    client = current_client()
    with stage(name, len(numbers)) as advance:
        if client is None or not numbers:
            for i in numbers:
                yield i, work(i)
                advance(1)
            return
        shared = Resent(client, work)
        for group in grouped(numbers, -(-len(numbers) // (8 * max(1, sum(client.nthreads().values()))))):

            def on_workers(part: Sequence[int] = group) -> list[T]:
                return client.gather([client.submit(_on_worker, shared.future(), i, pure=False) for i in part])

            for i, found in zip(group, retried(client, on_workers, shared.forget), strict=True):
                yield i, found
                advance(1)


def _on_worker(work: Callable[[int], T], i: int) -> T:
    with threadpool_limits(1):
        return work(i)
