"""From images to rows: the descriptors of the image annotation papers, and the way into a feature store (extra `images`)."""

from dmo.features.appending import append_images
from dmo.features.descriptors import (
    color_histogram,
    color_moments,
    correlogram,
    dense_points,
    gist,
    harris_points,
    hsv_histogram,
    hue_histograms,
    lab_histogram,
    rgb_histogram,
    sift,
    wavelet_texture,
)
from dmo.features.embedding import Embedding
from dmo.features.extraction import Extraction, Extractor, extract, learn_vocabularies
from dmo.features.images import UnreadableImage, find_images, read_image
from dmo.features.listing import Listing, list_images
from dmo.features.sets import DESCRIPTORS, SETS, Recipe, Vocabulary, learn_vocabulary, morp491

__all__ = [
    "DESCRIPTORS",
    "SETS",
    "Embedding",
    "Extraction",
    "Extractor",
    "Listing",
    "Recipe",
    "UnreadableImage",
    "Vocabulary",
    "append_images",
    "color_histogram",
    "color_moments",
    "correlogram",
    "dense_points",
    "extract",
    "find_images",
    "gist",
    "harris_points",
    "hsv_histogram",
    "hue_histograms",
    "lab_histogram",
    "learn_vocabularies",
    "learn_vocabulary",
    "list_images",
    "morp491",
    "read_image",
    "rgb_histogram",
    "sift",
    "wavelet_texture",
]
