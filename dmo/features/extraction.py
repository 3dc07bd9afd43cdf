"""Extraction of image folders into feature stores: by blocks in threads, resumable, with recipe and vocabularies."""

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
"""Name under which a store or model contains the recipe and the vocabularies of its images."""
_AGAIN = "create the store again with dmo extract, then fit again"
BLOCK = 256
_TASK = 64  # images per task that only reads them
SAMPLE_IMAGES, SAMPLE_DESCRIPTORS = 1000, 120_000
"""Maximum numbers of training images and of local descriptors of each kind from which a vocabulary is learned."""
Unreadable = Literal["skip", "refuse"]
GROWN = ".grown"
"""Suffix of the folder next to a store in which a larger store is created."""
T = TypeVar("T")
Failures = dict[str, str]
"""Reason why each unreadable image cannot be read."""


@dataclass(frozen=True)
class Extractor:
    """A recipe with its vocabularies, which always computes the same rows from an image.

    Parameters
    ----------
    recipe : Recipe
        Views, and how images are read.
    vocabularies : mapping of str to Vocabulary
        Visual words of each local descriptor that the recipe needs.

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
        """Hash of recipe and vocabularies; equal hashes mean equal rows for the same image."""
        return self.recipe.fingerprint(self.vocabularies)

    def specs(self) -> dict[str, stores.ViewSpec]:
        """Return the specifications of the views for a feature store.

        Returns
        -------
        dict of str to ViewSpec
            Specifications by view.

        Raises
        ------
        UserError
            If the recipe of a loaded model or store needs an ONNX file and the setting `dmo.onnx` is missing.
        """
        if self.recipe.onnx is not None:
            _ = Embedding.from_dict(self.recipe.onnx).file  # Fail before a store is created.
        views = {view: self.recipe.descriptor(view).histogram for view in self.recipe.views}
        return {
            view: stores.ViewSpec(self.recipe.dimension(view, self.vocabularies), histogram=histogram)
            for view, histogram in views.items()
        }

    def describe(self, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """Compute all views of an image file.

        Parameters
        ----------
        path : path-like
            Path of the file.

        Returns
        -------
        dict of str to ndarray of shape (d,), float32
            Rows by view.

        Raises
        ------
        UnreadableImage
            If the image cannot be read.
        """
        image = read_image(path, self.recipe.side, self.recipe.max_pixels)
        return self.recipe.describe(image, self.vocabularies)

    def rows(self, paths: Sequence[Path], threads: int | None = None) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        """Compute the rows of all readable images.

        Parameters
        ----------
        paths : sequence of Path
            Paths of the image files.
        threads : int, default=None
            Number of images processed in parallel. None uses all cores.

        Returns
        -------
        views : dict of str to ndarray of shape (m, d), float32
            Rows of the m readable images, in order.
        failures : dict of int to str
            Reasons by indices in `paths` of the images that cannot be read.
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
        """Return recipe and vocabularies in the form attached to a model under the name `PART`.

        Returns
        -------
        arrays : dict of str to ndarray
            Centers of the vocabularies.
        meta : dict of str to object
            Recipe and fingerprint as JSON values.
        """
        arrays = {name: vocabulary.centers for name, vocabulary in self.vocabularies.items()}
        return arrays, {"recipe": self.recipe.to_dict(), "fingerprint": self.fingerprint}

    def save(self, store: str) -> None:
        """Save recipe and vocabularies in a feature store.

        Parameters
        ----------
        store : str
            Path or URL of the store.
        """
        stores.save_model(f"{store}/{PART}", *self.parts())

    @classmethod
    def load(cls, path: str) -> Extractor:
        """Load the extractor of a feature store of images, or of a model fitted on one.

        The hash in the provenance of the store or model verifies it.

        Parameters
        ----------
        path : str
            Path or URL of the store or the model.

        Returns
        -------
        Extractor
            Extractor that computed the rows.

        Raises
        ------
        StoreError
            If the extractor is missing or has another hash.
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
                width = 128 if name.endswith("sift") else 36  # sizes of the descriptors of `SourceImage.local`
                if vocabulary.centers.shape[1] != width:
                    raise UserError(f"its words of {name} have {vocabulary.centers.shape[1]} numbers, expected {width}")
        except (KeyError, ValueError) as error:
            raise stores.StoreError(f"{path}: its image recipe is invalid ({error}); {_AGAIN}") from error
        if not found.fingerprint == meta["fingerprint"] == fingerprint:
            raise stores.StoreError(f"{path}: its recipe and vocabularies are not those it was made with; {_AGAIN}")
        return found


@dataclass(frozen=True)
class Extraction:
    """Result of `extract`.

    Attributes
    ----------
    store : FeatureStore
        Feature store with the rows of the images.
    unreadable : dict of str to str
        Reason why each unreadable image cannot be read.
    resumed : int
        Number of blocks that existed before the run.

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
    """Compute the rows of the images in a folder and write a feature store.

    If there is a current cluster, its workers compute the rows; they need the images at the same path as the client.
    Rows are float32 and identical on every machine. An interrupted run resumes with the missing blocks.

    Parameters
    ----------
    listing : Listing
        Images with labels and splits.
    store : path-like
        Path or URL of the new store.
    recipe : Recipe or Extractor
        Views. An Extractor includes its vocabularies; for a Recipe, they are learned on the split "train", or on all
        images without a split.
    unreadable : {"skip", "refuse"}, default="skip"
        Whether to skip images that cannot be read, or to raise an error.
    threads : int, default=None
        Number of images processed in parallel in the client. None uses all cores.
    block : int, default=256
        Images per block, which is a task on a cluster.
    overwrite : bool, default=False
        Whether to replace an existing store.

    Returns
    -------
    Extraction
        The finished store and the images that could not be read.

    Raises
    ------
    UserError
        If no image is readable, or `unreadable` is "refuse" and files are unreadable; the message lists them.
    StoreError
        If `store` cannot be written, or another process writes it.

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
        # Use an absolute path because workers may run in another folder.
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
    """Append the images of a folder that a feature store does not contain yet, with the same recipe.

    Existing rows are copied and keep their indices. Labels and splits come from the listing. The larger store is
    created next to the old one, which remains readable until it is replaced. An interrupted run resumes.

    Parameters
    ----------
    listing : Listing
        Images, including all images of the store.
    store : path-like
        Local path of a complete feature store of images.
    unreadable : {"skip", "refuse"}
        Whether to skip new images that cannot be read, or to raise an error.
    threads : int, default=None
        Number of images processed in parallel in the client. None uses all cores.

    Returns
    -------
    Extraction
        The opened store and the new images that could not be read.

    Raises
    ------
    FileNotFoundError
        If the store does not exist.
    StoreError
        If the store was not made from images, another process writes it, or `store` is a URL.
    UserError
        If an image of the store is missing or has changed, or only the store or only the listing has labels or splits.

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
            stores.put_in_place(beside, path)  # An earlier run was interrupted during this step.
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
        raise UserError(f"an image of {path} has changed since it was described; create it again with --overwrite")
    more, failures = read_contents("check images", new, extractor.recipe, threads)
    refuse_unreadable(failures, len(new.ids), unreadable)
    listing = listing.keep([i for i in order if listing.ids[i] not in failures])
    if len(listing.ids) == old.n_samples:
        return Extraction(old, failures, -(-old.n_samples // old.block))

    # A store with a single block may have a small block size; use at least the default.
    block = old.block if old.block < old.n_samples else max(old.block, BLOCK)

    def describe(overwrite: bool) -> Extraction:
        return describe_into(beside, listing, extractor, contents | more, failures, threads, block, overwrite, old)

    try:
        done = describe(overwrite=False)
    except stores.StoreError:  # The unfinished store was started for other images.
        done = describe(overwrite=True)
    stores.put_in_place(beside, path)
    return Extraction(stores.open_features(path), failures, done.resumed)


def _in_order(listing: Listing, old: stores.FeatureStore) -> Sequence[int]:
    """Return the listing's indices: first the images of the store in its order, then the others."""
    place = {name: i for i, name in enumerate(listing.ids)}
    ids: Sequence[str] = old.sample_ids or []
    gone = [name for name in ids if name not in place]
    if gone:
        raise UserError(
            f"{len(gone)} images of {old.url} are not among the images to describe, the first is {gone[0]}; restore "
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
    """Write the missing blocks of a store; `old` provides the rows of the first images."""
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
        raise UserError(f"an image changed while it was described: {first}; run the same command again")
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
    """Process blocks of images, either in the client or with one task per block on the current cluster's workers."""
    if current_client() is None:
        with stage(name, sum(where.stop - where.start for where in blocks)) as advance:
            for where in blocks:
                yield work(where, threads, advance)
    else:
        for _, found in each(name, partial(_on_worker, work, blocks, folder), range(len(blocks))):
            yield found


def _on_worker(work: Callable[..., T], blocks: Sequence[slice], folder: Path, number: int) -> T:
    if not folder.is_dir():  # Without this check, every image would count as unreadable and be skipped.
        raise stores.StoreError(
            f"there is no folder {folder} on {socket.gethostname()}: a worker there cannot see the images, or they "
            "were removed; mount their disk on every worker at the same path"
        )
    return work(blocks[number], 1, lambda _: None)


def learn_vocabularies(listing: Listing, recipe: Recipe, threads: int | None = None) -> dict[str, Vocabulary]:
    """Learn the vocabularies that a recipe needs from the training images of a listing.

    Without a split, all images are training images. At most `SAMPLE_IMAGES` images and `SAMPLE_DESCRIPTORS` descriptors
    of each kind are used. The vocabularies do not depend on the number of threads.

    Parameters
    ----------
    listing : Listing
        The images.
    recipe : Recipe
        Recipe with the views.
    threads : int, default=None
        Number of images read in parallel. None uses all cores.

    Returns
    -------
    dict of str to Vocabulary
        Vocabularies by local descriptor.

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
    """Sample at most `count` descriptors of each kind from every image in a block of `picked`."""

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
    """Compute content hashes of images by blocks; return them and the reasons for unreadable images."""
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
    """Raise UserError if some of the `count` images cannot be read and `unreadable` is "refuse"."""
    if failures and unreadable == "refuse":
        first = next(iter(failures.values()))
        raise UserError(
            f"{len(failures)} of {count} images cannot be read, the first: {first}; remove or repair "
            f"{', '.join(failures)}, or pass --unreadable skip (unreadable='skip')"
        )


def _own_onnx(named: str) -> str | SavedLocation:
    """Return the file of the setting `dmo.onnx`, otherwise the path in a loaded recipe, which is never opened."""
    import dask.config  # Import here because most recipes need no ONNX file.

    given = dask.config.get("dmo.onnx", None)
    return SavedLocation(named) if given is None else os.path.abspath(given)


def _begun(path: str, recipe: Recipe, overwrite: bool) -> Extractor | None:
    """Return the extractor of an unfinished store with the same recipe, to keep its vocabularies, or None."""
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
    """Call `work` on every path in threads; return results and the reasons of UnreadableImage errors."""

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
    """Call `work` on the items in threads and yield results in order."""
    with ThreadPoolExecutor(threads or usable_cores(), thread_name_prefix="dmo-images") as pool:
        yield from pool.map(work, items)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Limit OpenCV and BLAS to one thread per call because images are processed in parallel."""
    cv2 = need_library("cv2")
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        cv2.setNumThreads(before)
