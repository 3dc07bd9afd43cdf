"""Named image descriptors, vocabularies of visual words, and recipes that combine several descriptors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from dmo.errors import SavedLocation, UserError, meant
from dmo.features import descriptors
from dmo.features.embedding import VIEW, Embedding
from dmo.features.images import LEAST, MAX_PIXELS, SIDE
from dmo.hashing import digest

LARGEST_SIDE, MAX_WORDS = 4096, 1 << 17
"""Maximum length of the longer side of an image in pixels, and maximum number of words in a vocabulary."""
VERSION = 1
"""Version of the descriptors, which increases when a new release of dmo computes different values."""
LOCAL = {"dense_sift": 1000, "harris_sift": 1000, "dense_hue": 100, "harris_hue": 100}
"""Default numbers of visual words by local descriptor."""


@dataclass(frozen=True, eq=False)
class SourceImage:
    """RGB image with cached intermediate results, which several descriptors use."""

    image: np.ndarray

    @cached_property
    def gray(self) -> np.ndarray:
        return descriptors.gray(self.image)

    @cached_property
    def harris_points(self) -> np.ndarray:
        return descriptors.harris_points(self.gray)

    @cached_property
    def hue_sums(self) -> np.ndarray:
        return descriptors.hue_sums(self.image)

    def points(self, local: str) -> np.ndarray:
        """Return the patches for a local descriptor as rows of x, y and side length."""
        dense = local.startswith("dense")
        return descriptors.dense_points(*self.image.shape[:2]) if dense else self.harris_points

    def local(self, local: str) -> np.ndarray:
        """Compute a local descriptor at m patches, as a float32 array of shape (m, d)."""
        at = self.points(local)
        if local.endswith("sift"):
            return descriptors.sift(self.gray, at)
        return descriptors.hue_histograms(self.image, at, self.hue_sums)


@dataclass(frozen=True)
class Descriptor:
    """Function that computes the features of a view from an image, and properties of these features."""

    # If the descriptor counts visual words, `dimension` is None and `local` is the name of the local descriptor.

    of: Callable[[SourceImage, Vocabulary | None], np.ndarray]
    dimension: int | None
    histogram: bool
    local: str | None = None
    bands: int = 1


def _whole(function: Callable[[np.ndarray], np.ndarray], dimension: int, histogram: bool) -> Descriptor:
    return Descriptor(lambda image, _: function(image.image), dimension, histogram)


def _words(local: str, bands: int) -> Descriptor:
    def of(image: SourceImage, vocabulary: Vocabulary | None) -> np.ndarray:
        if vocabulary is None:
            raise UserError(f"{local}: no vocabulary; learn one from training images with learn_vocabularies")
        at = image.points(local)
        return vocabulary.histogram(vocabulary.words(image.local(local)), at[:, 1], len(image.image), bands)

    return Descriptor(of, None, True, local, bands)


def morp491(image: np.ndarray) -> np.ndarray:
    """Compute the image descriptor of the experiments with MORP.

    It concatenates a color correlogram (256 values), color moments (9), wavelet texture (10) and a histogram (216).

    Parameters
    ----------
    image : ndarray of shape (h, w, 3), uint8
        RGB image.

    Returns
    -------
    ndarray of shape (491,), float32
        Descriptor of the image.

    References
    ----------
    Yu, Yu, Tresp 2005 (MORP).

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import morp491
    >>> morp491(np.zeros((32, 32, 3), np.uint8)).shape
    (491,)
    """
    d = descriptors
    parts = (d.correlogram, d.color_moments, d.wavelet_texture, d.color_histogram)
    return np.concatenate([part(image) for part in parts])


_COLORS = {"rgb": descriptors.rgb_histogram, "lab": descriptors.lab_histogram, "hsv": descriptors.hsv_histogram}
_LAYOUTS = {"": 1, "_v3h1": descriptors.BANDS}
"""Number of horizontal bands of an image by suffix of the descriptor name."""
DESCRIPTORS: dict[str, Descriptor] = {
    **{
        color + layout: _whole(partial(function, bands=bands), bands * descriptors.BINS**3, True)
        for color, function in _COLORS.items()
        for layout, bands in _LAYOUTS.items()
    },
    "gist": _whole(descriptors.gist, 512, False),
    **{local + layout: _words(local, bands) for local in LOCAL for layout, bands in _LAYOUTS.items()},
    "correlogram": _whole(descriptors.correlogram, 256, False),
    "moments": _whole(descriptors.color_moments, 9, False),
    "wavelets": _whole(descriptors.wavelet_texture, 10, False),
    "histogram216": _whole(descriptors.color_histogram, 216, True),
    "morp491": _whole(morp491, 491, False),
}
"""All descriptors of images by name. In a feature store, each descriptor is a view with this name."""
SETS: dict[str, tuple[str, ...]] = {
    "kgha8": (
        *("rgb_v3h1", "lab_v3h1", "hsv_v3h1", "gist"),
        *("dense_sift_v3h1", "harris_sift_v3h1", "dense_hue_v3h1", "harris_hue_v3h1"),
    ),
    "morp491": ("morp491",),
}
"""Named sets of descriptors: the eight views of the KGHA paper (Table 2), and the descriptor of the MORP paper."""


@dataclass(frozen=True)
class Recipe:
    """Names of the views that are computed from images, and parameters of this computation.

    Parameters
    ----------
    views : tuple of str
        Names of image descriptors, or "onnx" for the embeddings of an ONNX model.
    side : int, default=256
        Maximum length of the longer side of an image in pixels, see `read_image`.
    max_pixels : int, default=80_000_000
        Maximum number of pixels of an image file, see `read_image`.
    words : mapping of str to int, default=None
        Number of visual words by local descriptor, by default 1000 for SIFT and 100 for hue descriptors.
    seed : int, default=0
        Random seed for learning the vocabularies.
    version : int, default=1
        Version of the descriptors.
    onnx : mapping of str to object, default=None
        ONNX model of the view "onnx", as returned by `Embedding.to_dict`.

    Raises
    ------
    UserError
        If a view is unknown or repeated, the version differs, or a number is out of range.

    Examples
    --------
    >>> from dmo.features import Recipe
    >>> Recipe.of("kgha8").views[:3]
    ('rgb_v3h1', 'lab_v3h1', 'hsv_v3h1')
    >>> Recipe.of("gist,dense_sift").local
    ['dense_sift']
    """

    views: tuple[str, ...]
    side: int = SIDE
    max_pixels: int = MAX_PIXELS
    words: Mapping[str, int] | None = None
    seed: int = 0
    version: int = VERSION
    onnx: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in self.views:
            if name not in DESCRIPTORS and (name != VIEW or self.onnx is None):
                known = dict.fromkeys([*SETS, *DESCRIPTORS])
                near = meant(name, known)
                hint = f"; did you mean {near!r}?" if near else ""
                raise UserError(f"descriptor {name!r} is unknown; known: {', '.join(known)}{hint}")
        if not self.views or len(set(self.views)) < len(self.views):
            raise UserError(f"a recipe needs at least one view, each once, got {', '.join(self.views) or 'none'}")
        if self.version != VERSION:
            raise UserError(
                f"these rows were computed by version {self.version} of the descriptors, this dmo has {VERSION}; "
                "extract and fit again, or use the dmo release that computed them"
            )
        self._check_limits()
        known = {name: LOCAL[name] for name in self.local}
        given = dict(self.words or {})
        object.__setattr__(self, "words", {name: given.get(name, known[name]) for name in known})

    def _check_limits(self) -> None:
        """Raise UserError if the recipe, which may come from an untrusted store, would need too much memory."""
        limits = {"side": (self.side, LEAST, LARGEST_SIDE), "max_pixels": (self.max_pixels, 1, MAX_PIXELS)}
        limits |= {f"words of {name}": (count, 2, MAX_WORDS) for name, count in dict(self.words or {}).items()}
        if self.onnx is not None and "side" in self.onnx:
            limits["side of the ONNX model"] = (self.onnx["side"], 1, LARGEST_SIDE)
        for name, (value, least, most) in limits.items():
            if type(value) is not int or not least <= value <= most:
                raise UserError(f"a recipe with {name} = {value!r}: pass a whole number from {least} to {most}")

    @classmethod
    def of(cls, names: str | Sequence[str], **changes: Any) -> Recipe:
        """Create a recipe from the names of descriptors or sets of descriptors.

        Parameters
        ----------
        names : str or sequence of str
            Names of descriptors, such as "gist", or of sets of descriptors, such as "kgha8". A string may contain
            several names, separated by commas.
        **changes : object
            Other parameters of the recipe.

        Returns
        -------
        Recipe
            Recipe with the requested views, each of which occurs once.
        """
        given = names.split(",") if isinstance(names, str) else list(names)
        views = [view for name in given for view in SETS.get(name.strip(), (name.strip(),)) if view]
        return cls(tuple(dict.fromkeys(views)), **changes)

    @property
    def local(self) -> list[str]:
        """Names of the local descriptors for which the recipe needs vocabularies."""
        used = [self.descriptor(view).local for view in self.views]
        return [name for name in LOCAL if name in used]

    def descriptor(self, view: str) -> Descriptor:
        """Return the descriptor of a view.

        Parameters
        ----------
        view : str
            Name of a view in the recipe.

        Returns
        -------
        Descriptor
            Function that computes the view, and properties of the view.
        """
        if view != VIEW:
            return DESCRIPTORS[view]
        model = Embedding.from_dict(self.onnx or {})
        return _whole(model, model.dimension, False)

    def to_dict(self) -> dict[str, Any]:
        """Convert the recipe to a JSON dictionary.

        Returns
        -------
        dict of str to object
            Parameters of the recipe by name.
        """
        found = {**asdict(self), "views": list(self.views)}
        if self.onnx is not None and isinstance(self.onnx.get("path"), SavedLocation):
            found["onnx"]["path"] = self.onnx["path"].text
        return found

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Recipe:
        """Create a recipe from a JSON dictionary.

        Parameters
        ----------
        given : mapping of str to object
            Dictionary that `to_dict` returned.

        Returns
        -------
        Recipe
            Recipe with the same parameters.
        """
        return cls(**{**given, "views": tuple(given["views"])})

    def fingerprint(self, vocabularies: Mapping[str, Vocabulary]) -> str:
        """Compute a hash, such that recipes with the same hash compute the same features.

        Parameters
        ----------
        vocabularies : mapping of str to Vocabulary
            Vocabulary of each local descriptor of the recipe.

        Returns
        -------
        str
            SHA-256 hash as 64 hexadecimal digits.
        """
        onnx = None if self.onnx is None else {key: value for key, value in self.onnx.items() if key != "path"}
        document = self.to_dict() | {
            "onnx": onnx,
            "vocabularies": {name: vocabularies[name].sha256 for name in self.local},
        }
        return digest(document)

    def dimension(self, view: str, vocabularies: Mapping[str, Vocabulary]) -> int:
        """Return the number of columns of a view.

        Parameters
        ----------
        view : str
            Name of a view in the recipe.
        vocabularies : mapping of str to Vocabulary
            Vocabulary of each local descriptor of the recipe.

        Returns
        -------
        int
            Number of columns.
        """
        found = self.descriptor(view)
        if found.dimension is not None:
            return found.dimension
        return found.bands * len(vocabularies[str(found.local)].centers)

    def describe(self, image: np.ndarray, vocabularies: Mapping[str, Vocabulary]) -> dict[str, np.ndarray]:
        """Compute the features of an image.

        Parameters
        ----------
        image : ndarray of shape (h, w, 3), uint8
            RGB image.
        vocabularies : mapping of str to Vocabulary
            Vocabulary of each local descriptor of the recipe.

        Returns
        -------
        dict of str to ndarray of shape (d,)
            Feature vector of each view.
        """
        source = SourceImage(image)
        rows = {}
        for view in self.views:
            found = self.descriptor(view)
            rows[view] = found.of(source, None if found.local is None else vocabularies[found.local])
        return rows


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Vocabulary of visual words. The word of a local descriptor is the nearest cluster center.

    Parameters
    ----------
    centers : ndarray of shape (n_words, d), float32
        Cluster centers.

    References
    ----------
    Sivic, Zisserman 2003.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import Vocabulary
    >>> vocabulary = Vocabulary(np.array([[0.0, 0.0], [1.0, 1.0]], np.float32))
    >>> vocabulary.words(np.array([[0.9, 1.2], [0.1, 0.0]], np.float32))
    array([1, 0])
    """

    centers: np.ndarray

    @classmethod
    def checked(cls, centers: np.ndarray) -> Vocabulary:
        """Create a vocabulary from cluster centers that were read from a file, after checking them.

        Parameters
        ----------
        centers : ndarray of shape (n_words, d), float32
            Cluster centers.

        Returns
        -------
        Vocabulary
            Vocabulary with these words.

        Raises
        ------
        ValueError
            If the cluster centers are not a matrix of finite numbers.
        """
        right = isinstance(centers, np.ndarray) and centers.ndim == 2 and 0 not in centers.shape
        if not right or centers.dtype.kind != "f" or not np.isfinite(centers).all():
            raise ValueError("its visual words are not a matrix of finite numbers")
        return cls(centers)

    @cached_property
    def _half_squares(self) -> np.ndarray:
        return (self.centers**2).sum(axis=1) / 2

    @cached_property
    def sha256(self) -> str:
        """SHA-256 hash of the cluster centers in hexadecimal digits."""
        return digest(self.centers.astype("<f4"))

    def words(self, descriptors: np.ndarray) -> np.ndarray:
        """Find the visual word of every descriptor.

        Parameters
        ----------
        descriptors : ndarray of shape (m, d), float32
            Local descriptors of an image.

        Returns
        -------
        ndarray of shape (m,), intp
            Index of the word of each descriptor.
        """
        scores = descriptors @ self.centers.T
        scores -= self._half_squares
        return scores.argmax(axis=1)

    def histogram(self, words: np.ndarray, y: np.ndarray, height: int, bands: int = 1) -> np.ndarray:
        """Compute the relative frequencies of the words in horizontal bands of an image.

        Parameters
        ----------
        words : ndarray of int of shape (m,)
            Index of the word of each local descriptor.
        y : ndarray of shape (m,)
            Vertical position of each local descriptor in pixels.
        height : int
            Height of the image in pixels.
        bands : int, default=1
            Number of horizontal bands of equal height.

        Returns
        -------
        ndarray of shape (bands * n_words,), float32
            Relative frequencies, whose sum is 1, or zeros if there are no local descriptors.
        """
        rows = np.clip(y.astype(np.int64), 0, height - 1)
        return descriptors.band_histogram(words, len(self.centers), rows, height, bands)


def learn_vocabulary(descriptors: np.ndarray, words: int, seed: int = 0) -> Vocabulary:
    """Learn a vocabulary from a sample of local descriptors by mini-batch k-means.

    Parameters
    ----------
    descriptors : ndarray of shape (m, d), float32
        Sample of local descriptors.
    words : int
        Maximum number of words. If the sample does not contain more distinct descriptors, each of them is a word.
    seed : int, default=0
        Random seed of the k-means initializations.

    Returns
    -------
    Vocabulary
        Learned vocabulary.

    Raises
    ------
    UserError
        If the sample is empty.

    References
    ----------
    Sculley 2010; computed by scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.features import learn_vocabulary
    >>> sample = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    >>> learn_vocabulary(sample, words=5).centers.shape
    (5, 4)
    """
    from sklearn.cluster import MiniBatchKMeans

    if not len(descriptors):
        raise UserError("learn_vocabulary: no local descriptors; the training images have no points; pass other images")
    distinct = np.unique(descriptors, axis=0) if len(descriptors) <= 4 * words else descriptors
    if len(distinct) <= words:
        return Vocabulary(distinct.astype(np.float32))
    means = MiniBatchKMeans(
        words, batch_size=8192, n_init=3, max_iter=8, random_state=seed, init_size=max(1000, 3 * words)
    )
    means.fit(distinct)
    return Vocabulary(means.cluster_centers_.astype(np.float32))
