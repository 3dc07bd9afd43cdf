"""Compare image descriptors with other libraries and brute force, and test their invariances."""

import io
import os
import struct
import sys
import zlib

import cv2
import numpy as np
import pytest
import pywt
from hypothesis import given, settings
from hypothesis import strategies as st
from made_files import onnx_model
from matplotlib.colors import rgb_to_hsv
from PIL import Image
from sklearn.metrics import pairwise_distances_argmin

from dmo import features
from dmo.features import descriptors, embedding, sets
from dmo.features.images import FORMATS, LEAST, UnreadableImage, find_images, image_digest, read_image

SHAPE = (48, 66)


def smooth(seed, shape=SHAPE):
    """Create a random image with colored blobs."""
    rng = np.random.default_rng(seed)
    blurred = cv2.GaussianBlur(rng.normal(size=(*shape, 3)).astype(np.float32), (0, 0), 2)
    return np.clip(127 + 160 * blurred / np.abs(blurred).max(), 0, 255).astype(np.uint8)


def shuffled(image, seed=0):
    pixels = image.reshape(-1, 3)
    return np.random.default_rng(seed).permutation(pixels).reshape(image.shape)


@pytest.fixture(scope="module")
def image():
    return smooth(1)


def vocabularies(words=7):
    rng = np.random.default_rng(0)
    return {
        local: features.Vocabulary((rng.random((words, 128 if "sift" in local else 36)) * scale).astype(np.float32))
        for local, scale in {"dense_sift": 100, "harris_sift": 100, "dense_hue": 0.2, "harris_hue": 0.2}.items()
    }


# --- colors ---------------------------------------------------------------------------------------------------------


def test_rgb_and_hsv_histograms_are_those_of_numpy(image):
    values = image.reshape(-1, 3).astype(float)
    counts, _ = np.histogramdd(values, bins=12, range=[(0, 256)] * 3)
    np.testing.assert_allclose(features.rgb_histogram(image), counts.ravel() / len(values), atol=1e-7)
    hsv = descriptors.hsv(image).reshape(-1, 3).astype(float)
    np.testing.assert_allclose(hsv, rgb_to_hsv(values / 255) * (360, 1, 1), rtol=1e-4, atol=1e-4)
    counts, _ = np.histogramdd(hsv, bins=12, range=[(0, 360), (0, 1), (0, 1)])
    difference = np.abs(features.hsv_histogram(image) - counts.ravel() / len(values)).sum()
    assert difference < 0.02  # pixels at the border of two bins may differ


def test_lab_is_the_formula_of_the_cie(image):
    linear = image / 255.0
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    matrix = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    xyz = linear @ np.array(matrix).T / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    lab = np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], axis=2)
    np.testing.assert_allclose(descriptors.lab(image), lab, atol=0.6)
    counts, _ = np.histogramdd(descriptors.lab(image).reshape(-1, 3), 12, [(0, 100), (-128, 128), (-128, 128)])
    np.testing.assert_allclose(features.lab_histogram(image).sum(), 1, rtol=1e-6)
    assert np.abs(features.lab_histogram(image) - counts.ravel() / counts.sum()).sum() < 0.01


@pytest.mark.parametrize("function", [features.rgb_histogram, features.lab_histogram, features.hsv_histogram])
def test_bands_are_the_histograms_of_three_thirds(function, image):
    whole = function(image, bands=3).reshape(3, -1)
    for band, part in zip(whole, np.split(image, 3)):
        np.testing.assert_allclose(3 * band, function(part), atol=1e-6)
    np.testing.assert_allclose(whole.sum(axis=0), function(image), atol=1e-6)
    np.testing.assert_array_equal(function(image[:, ::-1], bands=3), whole.ravel())
    np.testing.assert_allclose(function(image[::-1], bands=3).reshape(3, -1), whole[::-1], atol=1e-7)


@pytest.mark.parametrize(
    "function",
    [features.rgb_histogram, features.lab_histogram, features.hsv_histogram, features.color_histogram],
)
def test_histograms_do_not_see_where_a_pixel_is(function, image):
    np.testing.assert_array_equal(function(shuffled(image)), function(image))
    assert function(np.full((*SHAPE, 3), 90, np.uint8)).max() == 1


def test_moments_are_those_of_scipy(image):
    from scipy.stats import moment

    pixels = descriptors.lab(image).reshape(-1, 3).astype(np.float64)
    expected = [pixels.mean(axis=0), np.sqrt(moment(pixels, 2)), np.cbrt(moment(pixels, 3))]
    np.testing.assert_allclose(features.color_moments(image), np.concatenate(expected), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(features.color_moments(shuffled(image)), features.color_moments(image), rtol=1e-4)
    np.testing.assert_allclose(features.color_moments(np.full((8, 8, 3), 200, np.uint8))[3:], 0, atol=1e-4)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
def test_correlogram_is_what_counting_pairs_gives(height, width, seed):
    image = np.random.default_rng(seed).choice([20, 100, 240], (height, width, 3)).astype(np.uint8)
    codes = descriptors.rgb_codes(image, 4)
    found = features.correlogram(image).reshape(4, 64)
    for row, distance in zip(found, descriptors.DISTANCES):
        same, pairs = np.zeros(64), np.zeros(64)
        for y, x in np.ndindex(height, width):
            for v, u in np.ndindex(height, width):
                if max(abs(y - v), abs(x - u)) == distance:
                    pairs[codes[y, x]] += 1
                    same[codes[y, x]] += codes[y, x] == codes[v, u]
        np.testing.assert_allclose(row, same / np.maximum(pairs, 1), atol=1e-7)


def test_correlogram_does_not_change_when_a_image_is_flipped_or_turned(image):
    found = features.correlogram(image)
    for other in (image[::-1], image[:, ::-1], image.transpose(1, 0, 2)):
        np.testing.assert_allclose(features.correlogram(other), found, atol=1e-6)
    flat = features.correlogram(np.full((20, 30, 3), 90, np.uint8))
    assert sorted(set(flat.tolist())) == [0, 1]
    assert flat.sum() == 4


# --- textures --------------------------------------------------------------------------------------------------------


def test_wavelets_are_those_of_single_transforms(image):
    band = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) / 255.0
    expected = []
    for _ in range(3):
        band, details = pywt.dwt2(band, "db2", mode="periodization")
        expected = [*(np.abs(d).mean() for d in details), *expected]
    np.testing.assert_allclose(features.wavelet_texture(image), [np.abs(band).mean(), *expected], rtol=1e-5)
    flat = features.wavelet_texture(np.full((64, 64, 3), 51, np.uint8))
    # Each of the three levels of the orthonormal wavelet transform doubles the mean.
    np.testing.assert_allclose(flat, [8 * 0.2] + 9 * [0], atol=1e-6)


def test_gist_is_a_convolution_with_every_filter_in_turn(image):
    small = cv2.resize(descriptors.gray(image), (128, 128), interpolation=cv2.INTER_AREA).astype(np.float64)
    scaled = 255 * (small - small.min()) / (small.max() - small.min())
    ready = descriptors.prefilter(scaled.astype(np.float32)).astype(np.float64)
    padded = np.pad(ready, 32, mode="symmetric")
    found = features.gist(image).reshape(32, 4, 4)
    for k in (0, 3, 8, 17, 31):
        kernel = np.fft.ifft2(descriptors.gabor_filters(192)[k])
        response = np.abs(np.fft.ifft2(np.fft.fft2(padded) * np.fft.fft2(kernel)))[32:160, 32:160]
        for row, column in np.ndindex(4, 4):
            block = response[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
            # GIST subsamples the filter responses at coarse scales.
            assert found[k, row, column] == pytest.approx(block.mean(), rel=5e-3, abs=1e-5)


def test_gist_answers_to_the_orientation_and_scale_of_a_grating():
    x = np.arange(128)
    for scale, frequency in ((0, 0.3), (2, 0.3 / 1.85**2)):
        wave = 127 + 100 * np.sin(2 * np.pi * frequency * x)
        upright = np.repeat(np.repeat(wave[None, :, None], 128, axis=0), 3, axis=2).astype(np.uint8)
        assert features.gist(upright).reshape(4, 8, 16).mean(axis=2).argmax() == 8 * scale
        lying = features.gist(upright.transpose(1, 0, 2)).reshape(4, 8, 16).mean(axis=2)
        assert lying.argmax() == 8 * scale + 4


def test_gist_of_a_mirrored_image_has_mirrored_blocks_and_angles(image):
    found = features.gist(image).reshape(4, 8, 4, 4)
    mirrored = features.gist(np.ascontiguousarray(image[:, ::-1])).reshape(4, 8, 4, 4)
    turned = found[:, (-np.arange(8)) % 8, :, ::-1]
    np.testing.assert_allclose(mirrored, turned, rtol=0.02, atol=2e-3)
    assert not features.gist(np.full((40, 40, 3), 7, np.uint8)).any()


# --- points and words ------------------------------------------------------------------------------------------------


def test_dense_points_cover_the_image_with_whole_patches():
    found = features.dense_points(128, 192)
    half = found[:, 2] / 2
    for column, side in ((0, 192), (1, 128)):
        assert (found[:, column] - half >= 0).all()
        assert (found[:, column] + half <= side).all()
    assert set(found[:, 2].tolist()) == set(descriptors.PATCHES)
    assert len(features.dense_points(8, 8)) == 0


def test_harris_finds_the_corners_of_squares_and_nothing_on_a_flat_image():
    image = np.full((96, 96), 40, np.uint8)
    image[30:66, 24:72] = 220
    found = features.harris_points(image)
    assert len(found)
    corners = np.array([(24, 30), (71, 30), (24, 65), (71, 65)])
    distance = np.abs(found[:, None, :2] - corners).max(axis=2)
    assert (distance.min(axis=1) <= 8).all()
    assert (distance.min(axis=0) <= 4).all()
    assert len(features.harris_points(np.full((64, 64), 90, np.uint8))) == 0
    assert len(features.harris_points(descriptors.gray(smooth(3, (128, 192))), most=20)) == 20


def test_sift_of_the_grid_is_opencvs_and_follows_a_shift(image):
    gray = descriptors.gray(smooth(5, (96, 96)))
    at = np.array([[40, 40, 16], [52, 36, 24]], np.float32)
    keypoints = [cv2.KeyPoint(float(x), float(y), float(p) / 6, 0) for x, y, p in at]
    _, expected = cv2.SIFT_create().compute(gray, keypoints)
    np.testing.assert_array_equal(features.sift(gray, at), expected)
    moved = features.sift(gray[8:, 12:].copy(), at - np.array([12, 8, 0], np.float32))
    cosine = (moved * expected).sum(axis=1) / np.linalg.norm(moved, axis=1) / np.linalg.norm(expected, axis=1)
    assert (cosine > 0.98).all()
    assert features.sift(gray, at[:0]).shape == (0, 128)
    assert not features.sift(np.full((64, 64), 90, np.uint8), at).any()


def test_sift_of_a_patch_covers_the_patch_and_little_more():
    gray = descriptors.gray(smooth(6, (96, 96)))
    at = np.array([[48, 48, 24]], np.float32)
    before = features.sift(gray, at)
    far = gray.copy()
    far[:, :20] = 255 - far[:, :20]  # change pixels at a distance of 16 from the patch
    np.testing.assert_array_equal(features.sift(far, at), before)
    near = gray.copy()
    near[38:46, 38:46] = 255 - near[38:46, 38:46]
    assert np.abs(features.sift(near, at) - before).max() > 10


def test_hue_histograms_are_what_adding_up_pixels_gives(image):
    at = np.array([[20, 20, 12], [33, 24, 16], [2, 3, 12]], np.float32)
    found = features.hue_histograms(image, at)
    for row, (x, y, patch) in zip(found, at.astype(int)):
        half, expected = patch // 2, np.zeros(36)
        for v in range(max(0, y - half), y + half):
            for u in range(max(0, x - half), x + half):
                r, g, b = image[v, u].astype(float)
                across, down = (r - g) / np.sqrt(2), (r + g - 2 * b) / np.sqrt(6)
                angle = np.arctan2(across, down) / (2 * np.pi) + 0.5
                expected[min(35, int(angle * 36))] += np.hypot(across, down)
        assert np.abs(row - expected / expected.sum()).sum() < 0.02
    assert not features.hue_histograms(np.full((64, 64, 3), 90, np.uint8), at).any()


def test_robust_hue_does_not_see_brightness(image):
    at = features.dense_points(*SHAPE)
    darker = (image // 2) * 1
    np.testing.assert_allclose(
        features.hue_histograms(darker * 2, at), features.hue_histograms(darker, at), rtol=1e-4, atol=1e-6
    )


def test_words_are_nearest_centers_and_their_histogram_has_bands():
    rng = np.random.default_rng(2)
    vocabulary = features.Vocabulary(rng.random((9, 5)).astype(np.float32))
    descriptors = rng.random((50, 5)).astype(np.float32)
    words = vocabulary.words(descriptors)
    np.testing.assert_array_equal(words, pairwise_distances_argmin(descriptors, vocabulary.centers))
    y = rng.uniform(0, 60, 50)
    found = vocabulary.histogram(words, y, 60, 3).reshape(3, 9)
    for band in range(3):
        inside = (y >= 20 * band) & (y < 20 * band + 20)
        np.testing.assert_allclose(50 * found[band], np.bincount(words[inside], minlength=9), atol=1e-5)
    assert not vocabulary.histogram(words[:0], y[:0], 60, 3).any()


def test_a_vocabulary_finds_clusters_and_is_the_same_every_time():
    rng = np.random.default_rng(3)
    centers = rng.normal(0, 10, (6, 8))
    sample = (centers[rng.integers(0, 6, 900)] + 0.1 * rng.normal(size=(900, 8))).astype(np.float32)
    found = features.learn_vocabulary(sample, 6, seed=1)
    assert np.array_equal(found.centers, features.learn_vocabulary(sample, 6, seed=1).centers)
    nearest = np.linalg.norm(sample - found.centers[found.words(sample)], axis=1)
    assert nearest.mean() < 2
    few = features.learn_vocabulary(np.repeat(sample[:3], 5, axis=0), 100)
    assert len(few.centers) == 3
    with pytest.raises(ValueError, match="no local descriptors"):
        features.learn_vocabulary(sample[:0], 5)


# --- sets ------------------------------------------------------------------------------------------------------------


def test_the_named_sets_have_the_papers_dimensions(image):
    recipe = features.Recipe.of("kgha8")
    large = {name: features.Vocabulary(np.zeros((size, 2), np.float32)) for name, size in sets.LOCAL.items()}
    dimensions = [recipe.dimension(view, large) for view in recipe.views]
    # Table 2 of the KGHA paper lists these dimensions.
    assert dimensions == [5184, 5184, 5184, 512, 3000, 3000, 300, 300]
    assert features.Recipe.of("morp491").views == ("morp491",)
    parts = [features.correlogram, features.color_moments, features.wavelet_texture, features.color_histogram]
    np.testing.assert_array_equal(features.morp491(image), np.concatenate([part(image) for part in parts]))
    assert features.morp491(image).shape == (491,)


def test_every_descriptor_has_the_rows_that_it_promises(image):
    recipe, known = features.Recipe.of(list(features.DESCRIPTORS)), vocabularies()
    for picture in (image, np.full((LEAST, LEAST, 3), 90, np.uint8)):
        for view, row in recipe.describe(picture, known).items():
            assert row.shape == (recipe.dimension(view, known),), view
            assert row.dtype == np.float32, view
            assert np.isfinite(row).all()
            if features.DESCRIPTORS[view].histogram:
                assert row.min() >= 0
                assert row.sum() == pytest.approx(1, abs=1e-5) or (view.startswith("harris") and not row.any())


def test_a_recipe_goes_through_json_and_its_fingerprint_sees_every_change():
    known = vocabularies()
    recipe = features.Recipe.of("gist,dense_sift", words={"dense_sift": 7})
    assert features.Recipe.from_dict(recipe.to_dict()) == recipe
    prints = {recipe.fingerprint(known), features.Recipe.of("gist,dense_sift", side=128).fingerprint(known)}
    other = known | {"dense_sift": features.Vocabulary(known["dense_sift"].centers + 1)}
    assert len(prints | {recipe.fingerprint(other)}) == 3
    with pytest.raises(ValueError, match="descriptor 'gits' is unknown"):
        features.Recipe.of("gits")
    with pytest.raises(ValueError, match="version 0 of the descriptors"):
        features.Recipe(("gist",), version=0)


# --- embeddings ------------------------------------------------------------------------------------------------------


def test_an_embedding_is_what_the_model_makes_of_the_standardized_image(tmp_path, image):
    model = features.Embedding.open(onnx_model(tmp_path / "m.onnx"))
    assert (model.side, model.dimension) == (16, 3)
    square = cv2.resize(image, (16, 16), interpolation=cv2.INTER_AREA) / 255.0
    expected = ((square - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).mean(axis=(0, 1))
    np.testing.assert_allclose(model(image), expected, rtol=1e-4, atol=1e-5)
    recipe = features.Recipe.of("moments,onnx", onnx=model.to_dict())
    assert features.Recipe.from_dict(recipe.to_dict()) == recipe
    np.testing.assert_array_equal(recipe.describe(image, {})["onnx"], model(image))
    moved = features.Recipe.of("moments,onnx", onnx=model.to_dict() | {"path": "/elsewhere"})
    assert moved.fingerprint({}) == recipe.fingerprint({})
    other = features.Embedding.open(onnx_model(tmp_path / "n.onnx", operator="GlobalMaxPool"))
    assert features.Recipe.of("moments,onnx", onnx=other.to_dict()).fingerprint({}) != recipe.fingerprint({})


@pytest.mark.parametrize("place", ["w.bin", "missing.bin", "../secret.bin", "{}/secret.bin", "/dev/zero", ""])
def test_a_model_reads_no_file_but_its_own(tmp_path, place):
    (tmp_path / "m").mkdir()
    for file in (tmp_path / "m" / "w.bin", tmp_path / "secret.bin"):
        file.write_bytes(np.float32(5).tobytes())
    model = onnx_model(tmp_path / "m" / "m.onnx", weights=place.format(tmp_path))
    if place == "w.bin":  # onnxruntime reads external files
        assert pytest.importorskip("onnxruntime").InferenceSession(str(model))
    with pytest.raises(ValueError, match=r"m.onnx: cannot be read as an ONNX model \(its weights are in other files"):
        features.Embedding.open(model)


def test_models_that_cannot_be_used_are_refused(tmp_path, image):
    with pytest.raises(ValueError, match="expected one float tensor N x 3"):
        features.Embedding.open(onnx_model(tmp_path / "gray.onnx", channels=1))
    with pytest.raises(ValueError, match="it has no input, expected one float tensor N x 3"):
        features.Embedding.open(onnx_model(tmp_path / "constant.onnx", inputs=0))
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match="cannot be read as an ONNX model"):
        features.Embedding.open(tmp_path / "bad.onnx")
    model = features.Embedding.open(onnx_model(tmp_path / "m.onnx"))
    onnx_model(tmp_path / "m.onnx", operator="GlobalMaxPool")
    embedding._session.cache_clear()
    with pytest.raises(ValueError, match="is not the model that computed the features"):
        model(image)
    with pytest.raises(ValueError, match="descriptor 'onnx' is unknown"):
        features.Recipe.of("onnx")


# --- files -----------------------------------------------------------------------------------------------------------


def saved(folder, name, image, **how):
    path = folder / name
    image.save(path, **how)
    return path


def test_any_mode_becomes_upright_rgb(tmp_path):
    base = Image.new("RGB", (60, 40), (200, 30, 90))
    for mode in ("RGB", "L", "P", "1", "CMYK", "RGBA", "LA"):
        name = f"{mode}.{'tif' if mode in ('CMYK', '1') else 'png'}"
        found = read_image(saved(tmp_path, name, base.convert(mode)))
        assert found.shape == (40, 60, 3)
        assert found.dtype == np.uint8
        if mode in ("RGB", "RGBA", "CMYK"):
            assert np.abs(found.astype(int) - (200, 30, 90)).max() <= 2, mode
    sixteen = Image.fromarray(np.full((40, 60), 200 * 257, np.uint16))
    assert (read_image(saved(tmp_path, "sixteen.png", sixteen)) == 200).all()
    share = Image.fromarray(np.full((40, 60), 0.5, np.float32))
    assert (read_image(saved(tmp_path, "share.tif", share)) == 128).all()
    clear = Image.new("RGBA", (60, 40), (0, 0, 0, 0))
    assert (read_image(saved(tmp_path, "clear.png", clear)) == 255).all()


def test_exif_turns_a_image_upright(tmp_path):
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, :30] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # this value means a clockwise rotation by 90 degrees
    found = read_image(saved(tmp_path, "turned.png", Image.fromarray(pixels), exif=exif))
    np.testing.assert_array_equal(found, np.rot90(pixels, -1))


def test_sizes_are_bounded_on_both_ends(tmp_path):
    assert read_image(saved(tmp_path, "large.jpg", Image.new("RGB", (2000, 1000)))).shape == (128, 256, 3)
    assert read_image(saved(tmp_path, "dot.png", Image.new("RGB", (1, 1)))).shape == (LEAST, LEAST, 3)
    assert read_image(saved(tmp_path, "line.png", Image.new("RGB", (3000, 2)))).shape == (LEAST, 256, 3)
    with pytest.raises(ValueError, match="side = 8"):
        read_image(tmp_path / "dot.png", side=8)


def bomb():
    """Create a small PNG file that expands to 100 000 x 100 000 pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 10)) + chunk(b"IEND", b"")


def test_what_cannot_be_read_is_refused_with_its_name(tmp_path):
    buffer = io.BytesIO()
    Image.fromarray(smooth(1)).save(buffer, "JPEG")
    cases = {
        "empty.jpg": b"",
        "text.png": b"no image",
        "cut.jpg": buffer.getvalue()[: len(buffer.getvalue()) // 2],
        "bomb.png": bomb(),
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UnreadableImage, match=name):
            read_image(tmp_path / name)
    saved(tmp_path, "big.png", Image.new("RGB", (60, 50)))
    with pytest.raises(UnreadableImage, match="3000 pixels, at most 2999"):
        read_image(tmp_path / "big.png", max_pixels=2999)
    with pytest.raises(UnreadableImage, match="gone"):
        read_image(tmp_path / "gone.png")


def test_only_formats_that_are_named_are_decoded(tmp_path, image):
    picture = Image.fromarray(image)
    for form in FORMATS:
        picture.save(tmp_path / "photo.png", form)
        assert read_image(tmp_path / "photo.png").shape == image.shape
    for form in ("JPEG2000", "TGA", "PCX", "EPS", "PDF"):
        picture.save(tmp_path / "photo.png", form)
        with pytest.raises(UnreadableImage, match=r"photo\.png: cannot be read as an image"):
            read_image(tmp_path / "photo.png")
    picture.save(tmp_path / "photo.png", "PCX")
    assert (read_image(tmp_path / "photo.png", formats=["PCX"]) == image).all()


def test_folders_are_listed_in_order_and_nothing_is_lost(tmp_path):
    for name in ("b/2.JPG", "b/1.png", "a.jpeg", "notes.txt", ".hidden/x.png", ".y.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert find_images(tmp_path) == (["a.jpeg", "b/1.png", "b/2.JPG"], [".hidden", ".y.png", "notes.txt"])
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        find_images(tmp_path / "none")
    with pytest.raises(ValueError, match="contains no images"):
        find_images(_empty(tmp_path))


def test_image_outside_of_class_folders_is_reported_and_left_out(tmp_path, caplog):
    for name in ("a/1.png", "b/2.png", "stray.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    listing = features.list_images(tmp_path, "folders")
    assert (listing.kind, listing.ids, listing.unlisted) == ("classes", ["a/1.png", "b/2.png"], ("stray.png",))
    assert "leaving out 1 of 3 images, which are not in a class folder, such as stray.png" in caplog.text


def _empty(folder):
    (folder / "empty").mkdir()
    return folder / "empty"


@pytest.mark.parametrize(
    ("library", "extra"), [("PIL", "images"), ("cv2", "images"), ("pywt", "images"), ("onnxruntime", "onnx")]
)
def test_a_missing_extra_is_named(tmp_path, image, monkeypatch, library, extra):
    saved(tmp_path, "a.png", Image.fromarray(image))
    model = features.Embedding.open(onnx_model(tmp_path / "m.onnx"))
    embedding._session.cache_clear()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"pip install dmo-learn\[{extra}\]"):
        model(features.read_image(tmp_path / "a.png")) if extra == "onnx" else features.morp491(
            features.read_image(tmp_path / "a.png")
        )


def test_what_is_no_file_of_a_bounded_size_is_refused_at_once(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "endless.png").symlink_to("/dev/zero")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with open(tmp_path / "huge.png", "wb") as file:
        file.truncate((1 << 30) + 1)
    said = {
        "pipe": "not a regular file",
        "endless": "not a regular file",
        "gone": "No such file",
        "huge": "at most 1073741824",
    }
    for name, reason in said.items():
        for read in (read_image, image_digest):
            with pytest.raises(features.UnreadableImage, match=rf"{name}.png: .*{reason}"):
                read(tmp_path / f"{name}.png")


def test_a_side_beyond_every_camera_is_refused_by_the_header(tmp_path):
    Image.new("1", (70_000_000, 1)).save(tmp_path / "long.png")
    with pytest.raises(features.UnreadableImage, match="70000000 x 1 pixels, the maximum side is 65535"):
        features.read_image(tmp_path / "long.png")


@pytest.mark.parametrize(
    "limit", [{"max_pixels": 10**12}, {"side": 10**6}, {"side": "256"}, {"words": {"dense_sift": 10**9}}]
)
def test_a_recipe_cannot_raise_the_limits_of_the_program(limit):
    given = features.Recipe.of("dense_sift").to_dict() | limit
    with pytest.raises(ValueError, match=r"a recipe with .*: pass a whole number from"):
        features.Recipe.from_dict(given)
