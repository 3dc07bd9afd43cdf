"""A feature store of images grows by those that came later."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dmo.errors import UserError
from dmo.features.extraction import (
    BLOCK,
    Extraction,
    Extractor,
    Unreadable,
    describe_into,
    read_contents,
    refuse_unreadable,
)
from dmo.features.images import Listing
from dmo.hashing import digest
from dmo.stores import FeatureStore, StoreError, existing_store, open_features, put_in_place, reserve

GROWN = ".grown"
"""The end of the name of the folder beside a store in which a larger one is made."""


def append_images(
    listing: Listing,
    store: str | os.PathLike[str],
    *,
    unreadable: Unreadable = "skip",
    threads: int | None = None,
) -> Extraction:
    """Add the images of a folder that a feature store does not have yet, described as its others were.

    The rows that are there are copied, not made again, and keep their numbers; labels and splits are those of the listing.
    The larger store is made beside the old one, which can be read until it is replaced. An interrupted run goes on.

    Parameters
    ----------
    listing : Listing
        The images, those of the store among them.
    store : path-like
        A complete feature store of images; a local path.
    unreadable : {"skip", "refuse"}
        What to do about new images that cannot be read.
    threads : int, default=None
        Images described at a time in this process; None: one a core.

    Returns
    -------
    Extraction
        The store, opened, and the new images that could not be read.

    Raises
    ------
    FileNotFoundError
        Where there is no store.
    StoreError
        Where the store was not made from images, or another process writes it, and for URLs.
    UserError
        Where an image of the store is gone or has changed, and where labels or splits are there for one part only.

    Examples
    --------
    >>> from PIL import Image
    >>> from dmo.features import Recipe, append_images, extract, list_images
    >>> for color in ("red", "green"):
    ...     Image.new("RGB", (32, 32), color).save(f"{color}.png")
    >>> _ = extract(list_images("."), "colors.zarr", Recipe.of("moments"), threads=1)
    >>> Image.new("RGB", (32, 32), "blue").save("blue.png")
    >>> append_images(list_images("."), "colors.zarr", threads=1).store.sample_ids
    ['green.png', 'red.png', 'blue.png']
    """
    path = os.fspath(store)
    if "://" in path:
        raise StoreError(f"{path} is a URL, only local stores grow; extract the images to another store with --like")
    with reserve(path):
        beside = path.rstrip("/") + GROWN
        if not existing_store(path, "features") and os.path.isdir(beside) and existing_store(beside, "features"):
            put_in_place(beside, path)  # an earlier run was stopped while it did so
        return _appended(listing, path, beside, unreadable, threads)


def _appended(listing: Listing, path: str, beside: str, unreadable: Unreadable, threads: int | None) -> Extraction:
    old = open_features(path)
    parameters = old.provenance["parameters"]
    extractor = Extractor.load(path)
    listing = replace(listing, folder=Path(os.path.abspath(listing.folder)))
    order = _in_order(listing, old)
    _check_alike(listing, old)
    had, new = listing.keep(order[: old.n_samples]), listing.keep(order[old.n_samples :])
    contents, changed = read_contents("look at described images", had, None, threads)
    if changed or digest([contents[name] for name in had.ids]) != parameters["contents"]:
        raise UserError(f"an image of {path} has changed since it was described; make the store anew with --overwrite")
    more, failures = read_contents("check images", new, extractor.recipe, threads)
    refuse_unreadable(failures, len(new.ids), unreadable)
    listing = listing.keep([i for i in order if listing.ids[i] not in failures])
    if len(listing.ids) == old.n_samples:
        return Extraction(old, failures, -(-old.n_samples // old.block))

    block = old.block if old.block < old.n_samples else max(old.block, BLOCK)  # of a store of one block, its size

    def describe(overwrite: bool) -> Extraction:
        return describe_into(beside, listing, extractor, contents | more, failures, threads, block, overwrite, old)

    try:
        done = describe(overwrite=False)
    except StoreError:  # begun for other images than there are now
        done = describe(overwrite=True)
    put_in_place(beside, path)
    return Extraction(open_features(path), failures, done.resumed)


def _in_order(listing: Listing, old: FeatureStore) -> Sequence[int]:
    """Numbers of the listing's images: those of the store as they stand there, then the others."""
    place = {name: i for i, name in enumerate(listing.ids)}
    ids = old.sample_ids or []
    gone = [name for name in ids if name not in place]
    if gone:
        raise UserError(
            f"{len(gone)} images of {old.url} are not among those to be described, the first is {gone[0]}; put them back, "
            "name them in the file of labels, or make the store anew with --overwrite"
        )
    known = set(ids)
    return [*(place[name] for name in ids), *(i for i, name in enumerate(listing.ids) if name not in known)]


def _check_alike(listing: Listing, old: FeatureStore) -> None:
    for what, there, now in (("labels", old.labels, listing.labels), ("splits", old.split, listing.split)):
        if (there is None) != (now is None):
            has = "no " if there is None else ""
            cure = "pass --labels and --test-share as when it was made"
            raise UserError(f"{old.url} has {has}{what}, the images to append differ; {cure}")
