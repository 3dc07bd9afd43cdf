"""Pictures and models together: the recipe that a model carries, checked by its hash."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dmo import stores
from dmo.cli.session import Session
from dmo.features.extraction import PART, Extractor


def is_picture_folder(path: str) -> bool:
    """Whether a path is a local folder that is no store."""
    return "://" not in path and os.path.isdir(path) and not os.path.exists(os.path.join(path, "zarr.json"))


def carry_recipe(store: stores.FeatureStore, model: str) -> None:
    """Keep the recipe and vocabularies of a store of pictures inside a model; nothing for other stores."""
    extractor = store_extractor(store)
    if extractor is not None:
        extractor.save(model)


def store_extractor(store: stores.FeatureStore) -> Extractor | None:
    """The extractor of a store of pictures, checked by its hash, or None for other stores; raises as `Extractor.load`."""
    if store.attributes.get("dataset") != PART:
        return None
    return Extractor.load(store.url, store.provenance["parameters"]["fingerprint"])


def model_extractor(path: str) -> Extractor:
    """The extractor of a model or a feature store, checked against the hash in its provenance.

    Raises StoreError where it was not made from pictures, or its recipe is another.
    """
    found = stores.describe(path)
    parameters = found["provenance"]["parameters"]
    if found["kind"] == "model":
        parameters = (parameters.get("features") or {}).get("parameters", {})
    if parameters.get("dataset") != PART:
        raise stores.StoreError(
            f"{path} was not made from pictures; make a feature store with dmo extract, and fit the model on it"
        )
    return Extractor.load(path, parameters["fingerprint"])


def say_unreadable(run: Session, failures: Mapping[str, str]) -> None:
    """One note for every picture that could not be read."""
    for reason in failures.values():
        run.note(f"skipped: {reason}")
