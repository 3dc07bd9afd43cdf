"""Folders of images -> feature stores: batch by batch on threads, resumable, with the recipe and its vocabularies."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from joblib import cpu_count
from threadpoolctl import threadpool_limits

from dmo.errors import UserError
from dmo.features.images import UnreadableImage, image_digest, need_library, read_image
from dmo.features.listing import Listing
from dmo.features.sets import Recipe, SourceImage
from dmo.features.words import Vocabulary, learn_vocabulary
from dmo.hashing import digest
from dmo.model_schema import AttachedRecipe, checked
from dmo.persistence import load_attached
from dmo.progress import stage
from dmo.stores import (
    FeatureStore,
    Provenance,
    StoreError,
    ViewSpec,
    create_features,
    describe,
    load_model,
    open_features,
    relative_path,
    reserve,
    save_model,
)

PART = "images"
"""Where a store or model keeps the recipe and the vocabularies of its images."""
_AGAIN = "make the store again with dmo extract, and fit again"
SAMPLE_IMAGES, SAMPLE_DESCRIPTORS = 1000, 120_000
"""Training images and local descriptors of each kind that a vocabulary is learned from, at most."""
Unreadable = Literal["skip", "refuse"]
T = TypeVar("T")
Failures = dict[str, str]
"""Image -> why it could not be read."""


@dataclass(frozen=True)
class Extractor:
    """A recipe with its vocabularies: images to rows, in the same way every time.

    Parameters
    ----------
    recipe : Recipe
        The views, and how images are read.
    vocabularies : mapping of str to Vocabulary
        Local descriptor -> visual words, of those that the recipe needs.

    Examples
    --------
    >>> from dmo.features import Extractor, Recipe
    >>> extractor = Extractor(Recipe.of("gist,moments"), {})
    >>> {view: spec.dimension for view, spec in extractor.specs().items()}
    {'gist': 512, 'moments': 9}
    """

    recipe: Recipe
    vocabularies: Mapping[str, Vocabulary]

    @property
    def fingerprint(self) -> str:
        """Of recipe and vocabularies: equal where the same image gives the same rows."""
        return self.recipe.fingerprint(self.vocabularies)

    def specs(self) -> dict[str, ViewSpec]:
        """What a feature store has to know of the views.

        Returns
        -------
        dict of str to ViewSpec
            By view.
        """
        return {
            view: ViewSpec(
                self.recipe.dimension(view, self.vocabularies), histogram=self.recipe.descriptor(view).histogram
            )
            for view in self.recipe.views
        }

    def describe(self, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """Describe the image in a file.

        Parameters
        ----------
        path : path-like
            The file.

        Returns
        -------
        dict of str to ndarray of shape (d,), float32
            By view.

        Raises
        ------
        UnreadableImage
            Where it cannot be read.
        """
        image = read_image(path, self.recipe.side, self.recipe.max_pixels)
        return self.recipe.describe(image, self.vocabularies)

    def rows(self, paths: Sequence[Path], threads: int | None = None) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        """Describe the images that can be read.

        Parameters
        ----------
        paths : sequence of Path
            Their files.
        threads : int, default=None
            Images described at a time; None: one a core.

        Returns
        -------
        views : dict of str to ndarray of shape (m, d), float32
            The rows of the m readable images, in order.
        failures : dict of int to str
            Number in `paths` -> why the others cannot be read.
        """
        described, failures = _try_each(self.describe, paths, threads, lambda _: None)
        good = [rows for rows in described if rows is not None]
        specs = self.specs()
        views = {
            view: np.array([rows[view] for rows in good], dtype=np.float32).reshape(len(good), spec.dimension)
            for view, spec in specs.items()
        }
        return views, failures

    def parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Recipe and vocabularies as they are attached to a model, under the name `PART`.

        Returns
        -------
        arrays : dict of str to ndarray
            Centers of the vocabularies.
        meta : dict of str to object
            The rest, as JSON values.
        """
        arrays = {name: vocabulary.centers for name, vocabulary in self.vocabularies.items()}
        return arrays, {"recipe": self.recipe.to_dict(), "fingerprint": self.fingerprint}

    def save(self, store: str) -> None:
        """Keep recipe and vocabularies inside a feature store.

        Parameters
        ----------
        store : str
            Path or URL of the store.
        """
        save_model(f"{store}/{PART}", *self.parts())

    @classmethod
    def load(cls, store: str, fingerprint: str | None = None) -> Extractor:
        """Take what `save` kept in a feature store, checked by its hash.

        Parameters
        ----------
        store : str
            Path or URL of the store.
        fingerprint : str, default=None
            What the store's provenance states; None: not compared.

        Returns
        -------
        Extractor
            The one that made the store's rows.

        Raises
        ------
        StoreError
            Where the store has none or another one.
        """
        try:
            arrays, meta = load_model(f"{store}/{PART}")
        except FileNotFoundError:
            raise StoreError(f"{store} was not made from images: it holds no recipe; {_AGAIN}") from None
        return cls._of(store, arrays, meta, fingerprint)

    @classmethod
    def of_model(cls, model: str, fingerprint: str | None = None) -> Extractor:
        """Take what was attached to a model, checked as `load` does.

        Parameters
        ----------
        model : str
            Path or URL of the model.
        fingerprint : str, default=None
            What the model's provenance states; None: not compared.

        Returns
        -------
        Extractor
            The one that made the rows it was fitted on.

        Raises
        ------
        StoreError
            Where the model has none or another one.
        """
        found = load_attached(model, PART)
        if found is None:
            raise StoreError(f"{model} was not fitted on images: it holds no recipe; {_AGAIN}")
        return cls._of(model, *found, fingerprint)

    @classmethod
    def _of(
        cls, path: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], fingerprint: str | None
    ) -> Extractor:
        try:
            checked(AttachedRecipe, meta)
            recipe = Recipe.from_dict(meta["recipe"])
            found = cls(recipe, {name: Vocabulary.checked(arrays[name]) for name in recipe.local})
        except (KeyError, ValueError) as error:
            raise StoreError(f"{path}: its recipe of images cannot be used ({error}); {_AGAIN}") from error
        if found.fingerprint != meta["fingerprint"] or fingerprint not in (None, found.fingerprint):
            raise StoreError(f"{path}: its recipe and vocabularies are not those it was made with; {_AGAIN}")
        return found


@dataclass(frozen=True)
class Extraction:
    """What `extract` made.

    Attributes
    ----------
    store : FeatureStore
        Rows of the images.
    unreadable : dict of str to str
        Image -> why it could not be read.
    resumed : int
        Blocks that were there already.

    Examples
    --------
    >>> from PIL import Image
    >>> from dmo.features import Recipe, extract, list_images
    >>> for color in ("red", "green", "blue"):
    ...     Image.new("RGB", (32, 32), color).save(f"{color}.png")
    >>> extract(list_images("."), "colors.zarr", Recipe.of("moments"), threads=1).unreadable
    {}
    """

    store: FeatureStore
    unreadable: Failures
    resumed: int


def extract(
    listing: Listing,
    store: str | os.PathLike[str],
    recipe: Recipe | Extractor,
    *,
    unreadable: Unreadable = "skip",
    threads: int | None = None,
    block: int = 256,
    overwrite: bool = False,
    attributes: Mapping[str, Any] | None = None,
) -> Extraction:
    """Describe the images of a folder and write a feature store.

    Rows are float32. An interrupted run goes on with the blocks that are missing.

    Parameters
    ----------
    listing : Listing
        The images, their labels and splits.
    store : path-like
        Where to write: a path or URL.
    recipe : Recipe or Extractor
        The views; an Extractor brings its vocabularies, else they are learned on the split "train" (all images, where there
        is none).
    unreadable : {"skip", "refuse"}, default="skip"
        What to do about images that cannot be read.
    threads : int, default=None
        Images described at a time; None: one a core.
    block : int, default=256
        Images in a block.
    overwrite : bool, default=False
        Replace a store that is there.
    attributes : mapping of str to object, default=None
        JSON values to keep in the store.

    Returns
    -------
    Extraction
        The finished store, opened, and the images that could not be read.

    Raises
    ------
    UserError
        With all unreadable files where these are refused, and where none is left.
    StoreError
        Where `store` cannot be written, or another process writes it.

    Examples
    --------
    >>> from PIL import Image
    >>> from dmo.features import Recipe, extract, list_images
    >>> for color in ("red", "green", "blue"):
    ...     Image.new("RGB", (32, 32), color).save(f"{color}.png")
    >>> found = extract(list_images("."), "colors.zarr", Recipe.of("moments"), threads=1)
    >>> found.store.views["moments"].shape
    (3, 9)
    """
    path = os.fspath(store)
    with reserve(path):
        return _extract(listing, path, recipe, unreadable, threads, block, overwrite, attributes)


def _extract(
    listing: Listing,
    path: str,
    recipe: Recipe | Extractor,
    unreadable: Unreadable,
    threads: int | None,
    block: int,
    overwrite: bool,
    attributes: Mapping[str, Any] | None,
) -> Extraction:
    given = recipe if isinstance(recipe, Recipe) else recipe.recipe
    contents, failures = _check(listing, given, threads)
    if failures and unreadable == "refuse":
        first = next(iter(failures.values()))
        raise UserError(
            f"{len(failures)} of {len(listing.ids)} images cannot be read, the first: {first}; remove or repair "
            f"{', '.join(failures)}, or skip them"
        )
    listing = listing.keep([i for i, name in enumerate(listing.ids) if name not in failures])
    if not listing.ids:
        raise UserError(f"{listing.folder}: none of its {len(failures)} images can be read, nothing is left to write")
    extractor = _begun(path, given, overwrite) if isinstance(recipe, Recipe) else recipe
    if extractor is None:
        extractor = Extractor(given, learn_vocabularies(listing, given, threads))
    with stage("begin the store", 1):
        folder = relative_path(path, listing.folder)
        parameters = {
            "dataset": PART,
            "folder": folder,
            "recipe": extractor.recipe.to_dict(),
            "fingerprint": extractor.fingerprint,
            "contents": digest([contents[name] for name in listing.ids]),
            "unreadable": sorted(failures),
        }
        writer = create_features(
            path,
            len(listing.ids),
            extractor.specs(),
            labels=listing.labels,
            label_names=listing.label_names,
            sample_ids=listing.ids,
            split=listing.split,
            attributes={"dataset": PART, "folder": folder, **(attributes or {})},
            block=block,
            overwrite=overwrite,
            provenance=Provenance(parameters=parameters, seed=given.seed),
        )
        extractor.save(path)
    missing: dict[int, list[str]] = {}
    for view, index in writer.missing():
        missing.setdefault(index, []).append(view)
    with stage("describe images", len(listing.ids)) as advance:
        for index in range(writer.n_blocks):
            where = writer.rows(index)
            if index in missing:
                _write_block(writer.write, extractor, listing, index, where, missing[index], threads, advance)
            else:
                advance(where.stop - where.start)
    writer.finish()
    return Extraction(open_features(path), failures, writer.n_blocks - len(missing))


def _write_block(
    write: Callable[[str, int, Any], None],
    extractor: Extractor,
    listing: Listing,
    index: int,
    where: slice,
    views: Sequence[str],
    threads: int | None,
    advance: Callable[[int], None],
) -> None:
    paths = [listing.path(i) for i in range(where.start, where.stop)]
    described, failures = _try_each(extractor.describe, paths, threads, advance)
    if failures:
        first = next(iter(failures.values()))
        raise UserError(f"an image changed while it was described: {first}; run the same command again")
    for view in views:
        write(view, index, np.array([rows[view] for rows in described if rows is not None]))


def learn_vocabularies(listing: Listing, recipe: Recipe, threads: int | None = None) -> dict[str, Vocabulary]:
    """Learn the vocabularies that a recipe needs, on the training images of a listing (all, where it has no split).

    At most `SAMPLE_IMAGES` images and `SAMPLE_DESCRIPTORS` descriptors of each kind are used; the same images give the same
    vocabularies, whatever the number of threads.

    Parameters
    ----------
    listing : Listing
        The images.
    recipe : Recipe
        The views.
    threads : int, default=None
        Images read at a time; None: one a core.

    Returns
    -------
    dict of str to Vocabulary
        By local descriptor.

    Examples
    --------
    >>> from PIL import Image
    >>> from dmo.features import Recipe, learn_vocabularies, list_images
    >>> for color in ("red", "green", "blue"):
    ...     Image.new("RGB", (32, 32), color).save(f"{color}.png")
    >>> recipe = Recipe.of("dense_hue", words={"dense_hue": 5})
    >>> learn_vocabularies(list_images("."), recipe, threads=1)["dense_hue"].centers.shape
    (5, 36)
    """
    if not recipe.local:
        return {}
    rows = [i for i in range(len(listing.ids)) if listing.split is None or listing.split[i] == "train"]
    rows = rows or list(range(len(listing.ids)))
    rng = np.random.default_rng(recipe.seed)
    picked = sorted(rng.choice(rows, min(len(rows), SAMPLE_IMAGES), replace=False).tolist())
    each = -(-SAMPLE_DESCRIPTORS // len(picked))

    def sample(i: int) -> dict[str, np.ndarray]:
        image = SourceImage(read_image(listing.path(i), recipe.side, recipe.max_pixels))
        own = np.random.default_rng((recipe.seed, zlib.crc32(listing.ids[i].encode())))
        found = {}
        for local in recipe.local:
            descriptors = image.local(local)
            chosen = own.choice(len(descriptors), min(each, len(descriptors)), replace=False)
            found[local] = descriptors[np.sort(chosen)]
        return found

    samples: list[dict[str, np.ndarray]] = []
    with stage("sample local descriptors", len(picked)) as advance, one_thread_each():
        for found in _map(sample, picked, threads):
            samples.append(found)
            advance(1)
    vocabularies = {}
    words = recipe.words or {}
    with stage("learn vocabularies", len(recipe.local)) as advance:
        for local in recipe.local:
            together = np.concatenate([found[local] for found in samples])
            vocabularies[local] = learn_vocabulary(together, words[local], recipe.seed)
            advance(1)
    return vocabularies


def _check(listing: Listing, recipe: Recipe, threads: int | None) -> tuple[dict[str, str], Failures]:
    """Read every image once: id -> content hash of those that can be read, id -> reason of the others."""
    with stage("check images", len(listing.ids)) as advance:

        def check(path: Path) -> str:
            read_image(path, recipe.side, recipe.max_pixels)
            return image_digest(path)

        found, failed = _try_each(check, [listing.path(i) for i in range(len(listing.ids))], threads, advance)
    contents = {name: value for name, value in zip(listing.ids, found) if value is not None}
    return contents, {listing.ids[i]: reason for i, reason in failed.items()}


def _begun(path: str, recipe: Recipe, overwrite: bool) -> Extractor | None:
    """The extractor of a store that an earlier run began with the same recipe, so that its vocabularies are kept."""
    try:
        if overwrite or describe(path)["complete"]:
            return None
        found = Extractor.load(path)
    except (FileNotFoundError, StoreError):
        return None
    return found if found.recipe == recipe else None


def _try_each(
    work: Callable[[Path], T], paths: Sequence[Path], threads: int | None, advance: Callable[[int], None]
) -> tuple[list[T | None], dict[int, str]]:
    """`work` on every path by threads; None and a reason where it raised UnreadableImage."""

    def attempt(path: Path) -> tuple[T | None, str]:
        try:
            return work(path), ""
        except UnreadableImage as error:
            return None, str(error)

    found: list[T | None] = []
    failures: dict[int, str] = {}
    with one_thread_each():
        for i, (value, reason) in enumerate(_map(attempt, paths, threads)):
            found.append(value)
            if reason:
                failures[i] = reason
            advance(1)
    return found, failures


def _map(work: Callable[[Any], T], items: Sequence[Any], threads: int | None) -> Iterator[T]:
    """`work` on the items by threads, results in order."""
    with ThreadPoolExecutor(threads or cpu_count(), thread_name_prefix="dmo-images") as pool:
        yield from pool.map(work, items)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep OpenCV and BLAS to one thread a call: the images themselves run in parallel."""
    cv2 = need_library("cv2")
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        cv2.setNumThreads(before)
