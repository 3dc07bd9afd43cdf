"""A generated feature store of ESP Game's shape and a KGHA fit on it, for `kgha_scale.py`, `kills.py`,
`overhead.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from _generated import HISTOGRAMS, generated

from dmo import KGHA, Nystrom, stores

VIEWS = ("gist", "dense_hue", "harris_hue", "harris_sift")


def make_store(
    path: Path, scale: float, views: Sequence[str] | None = None, like: str = "espgame"
) -> stores.FeatureStore:
    """Open a store with `scale` times the rows of a data set, and all or some of its views; generate it if
    necessary."""
    try:
        return stores.open_features(path)
    except (FileNotFoundError, stores.StoreError):
        source = generated(like, scale)
        source = replace(source, views={view: source.views[view] for view in views or source.views})
        source.write(path, histograms=HISTOGRAMS, complete=source.views)
    return stores.open_features(path)


def kernels(store: stores.FeatureStore) -> dict[str, str]:
    """Return the default kernels of the command, with Hellinger kernels on histograms."""
    return {view: "hellinger-rbf" if store.view_info(view).histogram else "rbf" for view in store.views}


def fit(store: stores.FeatureStore, rank: int) -> KGHA:
    """Fit KGHA to the training samples, on the cluster of the innermost `connect`."""
    views, Y, _ = store.select("train")
    return KGHA(kernels(store), approximation=Nystrom(rank=rank), n_components=20, random_state=0).fit(views, Y)


def arrays(model: KGHA) -> dict[str, np.ndarray]:
    """Return all fitted arrays, and the scores of some training samples."""
    found, _ = model._arrays()
    return {name: np.asarray(value) for name, value in found.items() if not name.startswith("rows")}
