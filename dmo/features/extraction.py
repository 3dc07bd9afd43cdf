"""Extraction of features from folders of images to feature stores."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from dmo import stores
from dmo.blocks import row_blocks
from dmo.cluster import current_client, usable_cores
from dmo.cluster.workers import each
from dmo.errors import SavedLocation, UserError
from dmo.features.embedding import Embedding
from dmo.features.images import Listing, UnreadableImage, image_digest, need_library, read_image
from dmo.features.sets import Recipe, SourceImage, Vocabulary, learn_vocabulary
from dmo.hashing import digest
from dmo.model_schema import AttachedRecipe, checked
from dmo.progress import stage
from dmo.stores.models import load_attached

PART = "images"
"""Name of the recipe and the vocabularies in a feature store or a model."""
_AGAIN = "create the store again with dmo extract, then fit again"
BLOCK = 256
_TASK = 64  # number of images per task if images are read without computing features
SAMPLE_IMAGES, SAMPLE_DESCRIPTORS = 1000, 120_000
"""Maximum numbers of training images and of local descriptors from which a vocabulary is learned."""
Unreadable = Literal["skip", "refuse"]
GROWN = ".grown"
"""Suffix of the path at which a larger copy of a store is created when images are appended."""
T = TypeVar("T")
Failures = dict[str, str]
"""Reasons why images cannot be read, by name of the image."""


@dataclass(frozen=True)
class Extractor:
    """Recipe with learned vocabularies, which computes the features of images.

    Parameters
    ----------
    recipe : Recipe
        Names of the views, and parameters for reading images.
    vocabularies : mapping of str to Vocabulary
        Vocabulary of visual words for each local descriptor of the recipe.

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
        """Hash of the recipe and the vocabularies. Extractors with the same hash compute equal features."""
        return self.recipe.fingerprint(self.vocabularies)

    def specs(self) -> dict[str, stores.ViewSpec]:
        """Return the descriptions of the views that a feature store requires.

        Returns
        -------
        dict of str to ViewSpec
            Description of each view by name.

        Raises
        ------
        UserError
            If the recipe comes from a saved model or store and needs an ONNX file, but `dmo.onnx` is not set.
        """
        if self.recipe.onnx is not None:
            _ = Embedding.from_dict(self.recipe.onnx).file  # Raise errors about the model before a store is created.
        views = {view: self.recipe.descriptor(view).histogram for view in self.recipe.views}
        return {
            view: stores.ViewSpec(self.recipe.dimension(view, self.vocabularies), histogram=histogram)
            for view, histogram in views.items()
        }

    def describe(self, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """Compute the features of an image file.

        Parameters
        ----------
        path : path-like
            Path of the image file.

        Returns
        -------
        dict of str to ndarray of shape (d,), float32
            Feature vector of each view.

        Raises
        ------
        UnreadableImage
            If the image cannot be read.
        """
        image = read_image(path, self.recipe.side, self.recipe.max_pixels)
        return self.recipe.describe(image, self.vocabularies)

    def rows(self, paths: Sequence[Path], threads: int | None = None) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        """Compute the features of several images, except for images that cannot be read.

        Parameters
        ----------
        paths : sequence of Path
            Paths of the image files.
        threads : int, default=None
            Number of images that are processed in parallel. None uses all cores.

        Returns
        -------
        views : dict of str to ndarray of shape (m, d), float32
            Features of the m readable images in the order of `paths`.
        failures : dict of int to str
            Reasons why images cannot be read, by index in `paths`.
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
        """Return the recipe and the vocabularies in the form in which a model stores them.

        Returns
        -------
        arrays : dict of str to ndarray
            Cluster centers of each vocabulary.
        meta : dict of str to object
            Recipe and fingerprint as a JSON dictionary.
        """
        arrays = {name: vocabulary.centers for name, vocabulary in self.vocabularies.items()}
        return arrays, {"recipe": self.recipe.to_dict(), "fingerprint": self.fingerprint}

    def save(self, store: str) -> None:
        """Save the recipe and the vocabularies in a feature store.

        Parameters
        ----------
        store : str
            Path or URL of the store.
        """
        stores.save_model(f"{store}/{PART}", *self.parts())

    @classmethod
    def load(cls, path: str) -> Extractor:
        """Load the extractor of a feature store, or of a model that was fitted on this store.

        Parameters
        ----------
        path : str
            Path or URL of the store or the model.

        Returns
        -------
        Extractor
            Extractor that computed the features in the store.

        Raises
        ------
        StoreError
            If the extractor is missing, or if its hash differs from the hash in the provenance.
        """
        described = stores.describe(path)
        of_model, origin = described["kind"] == "model", described["provenance"]
        for step in ("parameters", "features", "parameters") if of_model else ("parameters",):
            origin = origin.get(step) if isinstance(origin, dict) else None
        known = origin if isinstance(origin, dict) else {}
        if known.get("dataset") != PART or not isinstance(known.get("fingerprint"), str):
            raise stores.StoreError(
                f"{path} was not made from images; create a feature store with dmo extract, and fit the model on it"
            )
        try:
            found = load_attached(path, PART) if of_model else stores.load_model(f"{path}/{PART}")
        except FileNotFoundError:
            found = None
        if found is None:
            raise stores.StoreError(f"{path} contains no image recipe; {_AGAIN}")
        arrays, meta = found
        return cls._of(path, arrays, meta, known["fingerprint"])

    @classmethod
    def _of(cls, path: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], fingerprint: str) -> Extractor:
        try:
            checked(AttachedRecipe, meta)
            recipe = Recipe.from_dict(meta["recipe"])
            if recipe.onnx is not None:
                recipe = replace(recipe, onnx={**recipe.onnx, "path": _own_onnx(recipe.onnx["path"])})
            found = cls(recipe, {name: Vocabulary.checked(arrays[name]) for name in recipe.local})
            for name, vocabulary in found.vocabularies.items():
                width = 128 if name.endswith("sift") else 36  # dimensions of SIFT and hue descriptors
                if vocabulary.centers.shape[1] != width:
                    raise UserError(f"its words of {name} have {vocabulary.centers.shape[1]} numbers, expected {width}")
        except (KeyError, ValueError) as error:
            raise stores.StoreError(f"{path}: its image recipe is invalid ({error}); {_AGAIN}") from error
        if not found.fingerprint == meta["fingerprint"] == fingerprint:
            raise stores.StoreError(f"{path}: its recipe and vocabularies have changed since it was created; {_AGAIN}")
        return found


@dataclass(frozen=True)
class Extraction:
    """Result of `extract` and `append_images`.

    Attributes
    ----------
    store : FeatureStore
        Feature store of the images.
    unreadable : dict of str to str
        Reasons why images cannot be read, by name of the image.
    resumed : int
        Number of blocks that were not computed again, because an earlier run had written them.

    Examples
    --------
    >>> from PIL import Image
    >>> from dmo.features import Recipe, extract, list_images
    >>> for color in ("red", "green", "blue"):
    ...     Image.new("RGB", (32, 32), color).save(f"{color}.png")
    >>> extract(list_images("."), "colors.zarr", Recipe.of("moments"), threads=1).unreadable
    {}
    """

    store: stores.FeatureStore
    unreadable: Failures
    resumed: int


def extract(
    listing: Listing,
    store: str | os.PathLike[str],
    recipe: Recipe | Extractor,
    *,
    unreadable: Unreadable = "skip",
    threads: int | None = None,
    block: int = BLOCK,
    overwrite: bool = False,
) -> Extraction:
    """Compute the features of the images in a folder, and write them to a feature store.

    The workers of the current cluster compute the features if there is a cluster. All workers need access to the images
    at the same path as the client. The features are float32 and identical on every machine. An interrupted run resumes
    with the missing blocks.

    Parameters
    ----------
    listing : Listing
        Images with labels and splits.
    store : path-like
        Path or URL of the new store.
    recipe : Recipe or Extractor
        Views to compute. The vocabularies of a Recipe are learned from the training images, or from all images if there
        is no split "train". An Extractor contains its vocabularies.
    unreadable : {"skip", "refuse"}, default="skip"
        Whether to skip images that cannot be read, or to raise an error.
    threads : int, default=None
        Number of images that the client processes in parallel. None uses all cores.
    block : int, default=256
        Number of images per block. On a cluster, each block is a task.
    overwrite : bool, default=False
        Whether to replace an existing store.

    Returns
    -------
    Extraction
        Finished store, and the images that could not be read.

    Raises
    ------
    UserError
        If no image can be read, or if an image cannot be read and `unreadable` is "refuse".
    StoreError
        If the store cannot be written, or if another process is writing it.

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
    path, given = os.fspath(store), recipe if isinstance(recipe, Recipe) else recipe.recipe
    with stores.reserve(path):
        # The working directory of a worker may differ, so the path must be absolute.
        listing = replace(listing, folder=Path(os.path.abspath(listing.folder)))
        contents, failures = read_contents("check images", listing, given, threads)
        refuse_unreadable(failures, len(listing.ids), unreadable)
        listing = listing.keep([i for i, name in enumerate(listing.ids) if name not in failures])
        if not listing.ids:
            raise UserError(
                f"{listing.folder}: none of its {len(failures)} images can be read; pass a folder with readable images"
            )
        extractor = _begun(path, given, overwrite) if isinstance(recipe, Recipe) else recipe
        if extractor is None:
            extractor = Extractor(given, learn_vocabularies(listing, given, threads))
        return describe_into(path, listing, extractor, contents, failures, threads, block, overwrite)


def append_images(
    listing: Listing,
    store: str | os.PathLike[str],
    *,
    unreadable: Unreadable = "skip",
    threads: int | None = None,
) -> Extraction:
    """Append new images of a folder to a feature store.

    Existing rows keep their indices. The labels and splits of all images are read from the listing. The function
    creates a larger store next to the existing store, which remains readable until the larger store replaces it. An
    interrupted run resumes with the missing blocks.

    Parameters
    ----------
    listing : Listing
        Images of the store and new images, with their labels and splits.
    store : path-like
        Local path of a complete feature store that was created by `extract`.
    unreadable : {"skip", "refuse"}, default="skip"
        Whether to skip new images that cannot be read, or to raise an error.
    threads : int, default=None
        Number of images that the client processes in parallel. None uses all cores.

    Returns
    -------
    Extraction
        Larger store, and the new images that could not be read.

    Raises
    ------
    FileNotFoundError
        If the store does not exist.
    StoreError
        If the store was not created from images, if another process is writing it, or if `store` is a URL.
    UserError
        If an image of the store is missing or has changed, or if only one of the store and the listing has labels or
        splits.

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
        raise stores.StoreError(
            f"{path} is a URL, but only local stores can grow; extract the images to another store with --like"
        )
    with stores.reserve(path):
        beside = path.rstrip("/") + GROWN
        if not stores.existing_store(path, "features") and stores.existing_store(beside, "features"):
            stores.put_in_place(beside, path)  # complete a replacement that was interrupted in an earlier run
        return _appended(listing, path, beside, unreadable, threads)


def _appended(listing: Listing, path: str, beside: str, unreadable: Unreadable, threads: int | None) -> Extraction:
    old = stores.open_features(path)
    parameters = old.provenance["parameters"]
    extractor = Extractor.load(path)
    listing = replace(listing, folder=Path(os.path.abspath(listing.folder)))
    order = _in_order(listing, old)
    _check_alike(listing, old)
    had, new = listing.keep(order[: old.n_samples]), listing.keep(order[old.n_samples :])
    contents, changed = read_contents("look at described images", had, None, threads)
    if changed or digest([contents[name] for name in had.ids]) != parameters["contents"]:
        raise UserError(
            f"an image of {path} has changed since its features were computed; create the store again with --overwrite"
        )
    more, failures = read_contents("check images", new, extractor.recipe, threads)
    refuse_unreadable(failures, len(new.ids), unreadable)
    listing = listing.keep([i for i in order if listing.ids[i] not in failures])
    if len(listing.ids) == old.n_samples:
        return Extraction(old, failures, -(-old.n_samples // old.block))

    # If the store has a single block, its block size is only the number of images. Use at least the default block size.
    block = old.block if old.block < old.n_samples else max(old.block, BLOCK)

    def describe(overwrite: bool) -> Extraction:
        return describe_into(beside, listing, extractor, contents | more, failures, threads, block, overwrite, old)

    try:
        done = describe(overwrite=False)
    except stores.StoreError:  # an earlier run was interrupted and appended other images
        done = describe(overwrite=True)
    stores.put_in_place(beside, path)
    return Extraction(stores.open_features(path), failures, done.resumed)


def _in_order(listing: Listing, old: stores.FeatureStore) -> Sequence[int]:
    """Return the indices of all images in the listing, with the images of the store in its order first."""
    place = {name: i for i, name in enumerate(listing.ids)}
    ids: Sequence[str] = old.sample_ids or []
    gone = [name for name in ids if name not in place]
    if gone:
        raise UserError(
            f"{len(gone)} images of {old.url} are not among the listed images, the first is {gone[0]}; restore "
            "them, add them to the label file, or create the store again with --overwrite"
        )
    known = set(ids)
    return [*(place[name] for name in ids), *(i for i, name in enumerate(listing.ids) if name not in known)]


def _check_alike(listing: Listing, old: stores.FeatureStore) -> None:
    for what, there, now in (("labels", old.labels, listing.labels), ("splits", old.split, listing.split)):
        if (there is None) != (now is None):
            has = "no " if there is None else ""
            cure = "pass --labels and --test-share as when it was made"
            raise UserError(f"{old.url} has {has}{what}, the images to append differ; {cure}")


def describe_into(
    path: str,
    listing: Listing,
    extractor: Extractor,
    contents: Mapping[str, str],
    failures: Failures,
    threads: int | None,
    block: int,
    overwrite: bool,
    old: stores.FeatureStore | None = None,
) -> Extraction:
    """Write the missing blocks of a store. The rows of images in the store `old` are copied from it."""
    with stage("begin the store", 1):
        folder = stores.relative_path(path, listing.folder)
        parameters = {
            "dataset": PART,
            "folder": folder,
            "recipe": extractor.recipe.to_dict(),
            "fingerprint": extractor.fingerprint,
            "contents": digest([contents[name] for name in listing.ids]),
            "unreadable": sorted(failures),
        }
        writer = stores.create_features(
            path,
            len(listing.ids),
            extractor.specs(),
            labels=listing.labels,
            label_names=listing.label_names,
            real_labels=listing.kind == "targets",
            class_labels=listing.kind == "classes",
            sample_ids=listing.ids,
            split=listing.split,
            attributes={**({} if old is None else old.attributes), "dataset": PART, "folder": folder},
            block=block,
            overwrite=overwrite,
            provenance=stores.Provenance(parameters=parameters, seed=extractor.recipe.seed),
        )
        extractor.save(path)
    missing: dict[int, list[str]] = {}
    for view, index in writer.missing():
        missing.setdefault(index, []).append(view)
    blocks = [writer.rows(index) for index in missing]
    work = partial(_write_block, writer, extractor, listing, missing, old)
    for _ in by_blocks("describe images", work, blocks, listing.folder, threads):
        pass
    writer.finish()
    return Extraction(stores.open_features(path), failures, writer.n_blocks - len(missing))


def _write_block(
    writer: stores.FeatureWriter,
    extractor: Extractor,
    listing: Listing,
    missing: Mapping[int, Sequence[str]],
    old: stores.FeatureStore | None,
    where: slice,
    threads: int | None,
    advance: Callable[[int], None],
) -> None:
    known = slice(where.start, max(where.start, min(0 if old is None else old.n_samples, where.stop)))
    advance(known.stop - known.start)
    paths = [listing.path(i) for i in range(known.stop, where.stop)]
    described, failures = _try_each(extractor.describe, paths, threads, advance)
    if failures:
        first = next(iter(failures.values()))
        raise UserError(f"an image changed while its features were computed: {first}; run the same command again")
    index = where.start // writer.block
    for view in missing[index]:
        rows = [] if old is None or known.start == known.stop else list(old.views[view][known])
        writer.write(view, index, np.array([*rows, *(found[view] for found in described if found is not None)]))


def by_blocks(
    name: str,
    work: Callable[[slice, int | None, Callable[[int], None]], T],
    blocks: Sequence[slice],
    folder: Path,
    threads: int | None,
) -> Iterator[T]:
    """Process blocks of images in the client, or with one task per block on the current cluster."""
    if current_client() is None:
        with stage(name, sum(where.stop - where.start for where in blocks)) as advance:
            for where in blocks:
                yield work(where, threads, advance)
    else:
        for _, found in each(name, partial(_on_worker, work, blocks, folder), range(len(blocks))):
            yield found


def _on_worker(work: Callable[..., T], blocks: Sequence[slice], folder: Path, number: int) -> T:
    if not folder.is_dir():  # if the folder is missing, all images would be skipped as unreadable
        raise stores.StoreError(
            f"there is no folder {folder} on {socket.gethostname()}: a worker there cannot see the images, or they "
            "were removed; mount their disk on every worker at the same path"
        )
    return work(blocks[number], 1, lambda _: None)


def learn_vocabularies(listing: Listing, recipe: Recipe, threads: int | None = None) -> dict[str, Vocabulary]:
    """Learn the vocabularies of visual words that a recipe needs.

    The vocabularies are learned from a random sample of at most 1000 training images and about 120 000 local
    descriptors of each kind. If there is no split "train", all images are training images. The result does not depend
    on the number of threads.

    Parameters
    ----------
    listing : Listing
        Images with their splits.
    recipe : Recipe
        Recipe whose views count visual words.
    threads : int, default=None
        Number of images that are processed in parallel. None uses all cores.

    Returns
    -------
    dict of str to Vocabulary
        Vocabulary of each local descriptor.

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
    each_image = -(-SAMPLE_DESCRIPTORS // len(picked))

    folder = Path(os.path.abspath(listing.folder))
    work = partial(_sampled, replace(listing, folder=folder), recipe, picked, each_image)
    blocks = row_blocks(len(picked), _TASK)
    samples = [found for part in by_blocks("sample local descriptors", work, blocks, folder, threads) for found in part]
    vocabularies = {}
    words = recipe.words or {}
    with stage("learn vocabularies", len(recipe.local)) as advance:
        for local in recipe.local:
            together = np.concatenate([found[local] for found in samples])
            vocabularies[local] = learn_vocabulary(together, words[local], recipe.seed)
            advance(1)
    return vocabularies


def _sampled(
    listing: Listing,
    recipe: Recipe,
    picked: Sequence[int],
    count: int,
    where: slice,
    threads: int | None,
    advance: Callable[[int], None],
) -> list[dict[str, np.ndarray]]:
    """Sample at most `count` local descriptors of each kind from every image in a block of the picked images."""

    def sample(i: int) -> dict[str, np.ndarray]:
        image = SourceImage(read_image(listing.path(i), recipe.side, recipe.max_pixels))
        own = np.random.default_rng((recipe.seed, zlib.crc32(listing.ids[i].encode())))
        found = {}
        for local in recipe.local:
            descriptors = image.local(local)
            chosen = own.choice(len(descriptors), min(count, len(descriptors)), replace=False)
            found[local] = descriptors[np.sort(chosen)]
        return found

    samples: list[dict[str, np.ndarray]] = []
    with one_thread_each():
        for found in _map(sample, picked[where], threads):
            samples.append(found)
            advance(1)
    return samples


def read_contents(
    name: str, listing: Listing, recipe: Recipe | None, threads: int | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the hash of each image file, and the reasons why images cannot be read."""
    contents: dict[str, str] = {}
    failures: Failures = {}
    blocks = row_blocks(len(listing.ids), _TASK)
    found = by_blocks(name, partial(_read, listing, recipe), blocks, listing.folder, threads)
    for where, (values, failed) in zip(blocks, found, strict=True):
        names = listing.ids[where]
        contents |= {name: value for name, value in zip(names, values) if value is not None}
        failures |= {names[i]: reason for i, reason in failed.items()}
    return contents, failures


def _read(
    listing: Listing, recipe: Recipe | None, where: slice, threads: int | None, advance: Callable[[int], None]
) -> tuple[list[str | None], dict[int, str]]:
    def check(path: Path) -> str:
        if recipe is not None:
            read_image(path, recipe.side, recipe.max_pixels)
        return image_digest(path)

    return _try_each(check, [listing.path(i) for i in range(where.start, where.stop)], threads, advance)


def refuse_unreadable(failures: Failures, count: int, unreadable: Unreadable) -> None:
    if failures and unreadable == "refuse":
        first = next(iter(failures.values()))
        raise UserError(
            f"{len(failures)} of {count} images cannot be read, the first: {first}; remove or repair "
            f"{', '.join(failures)}, or pass --unreadable skip (unreadable='skip')"
        )


def _own_onnx(named: str) -> str | SavedLocation:
    """Return the path in the setting `dmo.onnx`, or the path in a saved recipe as a location that is never opened."""
    import dask.config  # imported here because most recipes do not need an ONNX file

    given = dask.config.get("dmo.onnx", None)
    return SavedLocation(named) if given is None else os.path.abspath(given)


def _begun(path: str, recipe: Recipe, overwrite: bool) -> Extractor | None:
    """Return the extractor with the vocabularies of an unfinished store that has the same recipe, or None."""
    try:
        if overwrite or stores.describe(path)["complete"]:
            return None
        found = Extractor.load(path)
    except (FileNotFoundError, stores.StoreError):
        return None
    return replace(found, recipe=recipe) if found.recipe.to_dict() == recipe.to_dict() else None


def _try_each(
    work: Callable[[Path], T], paths: Sequence[Path], threads: int | None, advance: Callable[[int], None]
) -> tuple[list[T | None], dict[int, str]]:
    """Call `work` for every path in threads; return the results, and the messages of UnreadableImage by index."""

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
    """Call `work` for every item in threads, and yield the results in the order of the items."""
    with ThreadPoolExecutor(threads or usable_cores(), thread_name_prefix="dmo-images") as pool:
        yield from pool.map(work, items)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Limit OpenCV and BLAS to one thread within a `with` block in which images are processed in parallel."""
    cv2 = need_library("cv2")
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        cv2.setNumThreads(before)
