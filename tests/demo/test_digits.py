"""Check the labels of the embedded digits, and compare the views with pixel-by-pixel definitions."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from dmo.demo.digits import digits, fourier_magnitudes, oriented_gradients, projections


@pytest.fixture(scope="module")
def demo():
    return digits()


def test_shapes_types_and_ranges(demo):
    views, Y, label_names, split, images = demo
    assert {name: view.shape for name, view in views.items()} == {
        "pixels": (1797, 64),
        "gradients": (1797, 128),
        "fourier": (1797, 34),
        "projections": (1797, 46),
    }
    assert all(view.dtype == np.float32 and np.isfinite(view).all() and view.min() >= 0 for view in views.values())
    assert (Y.shape, Y.dtype, set(np.unique(Y)), len(set(label_names))) == ((1797, 14), np.uint8, {0, 1}, 14)
    assert (images.shape, images.min(), images.max()) == ((1797, 8, 8), 0.0, 1.0)
    assert {name: int((split == name).sum()) for name in np.unique(split)} == {"train": 1200, "test": 597}


def test_every_digit_has_its_labels(demo):
    expected = {
        0: {"zero", "even", "below five", "has a loop"},
        1: {"one", "below five", "straight strokes"},
        2: {"two", "even", "below five"},
        3: {"three", "below five"},
        4: {"four", "even", "below five", "straight strokes"},
        5: {"five"},
        6: {"six", "even", "has a loop"},
        7: {"seven", "straight strokes"},
        8: {"eight", "even", "has a loop"},
        9: {"nine", "has a loop"},
    }
    target = load_digits().target
    for digit, names in expected.items():
        rows = np.unique(demo.Y[target == digit], axis=0)
        assert len(rows) == 1
        assert {demo.label_names[l] for l in np.flatnonzero(rows[0])} == names
    for part in ("train", "test"):
        assert demo.Y[demo.split == part].sum(axis=0).min() >= 50


def test_two_calls_give_the_same_arrays(demo):
    again = digits()
    for name, view in demo.views.items():
        np.testing.assert_array_equal(view, again.views[name])
    np.testing.assert_array_equal(demo.split, again.split)


def test_oriented_gradients_follow_the_definition_pixel_by_pixel(demo):
    image = 1.0 - demo.images[5]
    expected = np.zeros((4, 4, 8))
    for r in range(8):
        for c in range(8):
            below, above = min(r + 1, 7), max(r - 1, 0)
            right, left = min(c + 1, 7), max(c - 1, 0)
            down = (image[below, c] - image[above, c]) / (below - above)
            across = (image[r, right] - image[r, left]) / (right - left)
            place = (np.degrees(np.arctan2(down, across)) % 360) / 45
            share = place % 1
            expected[r // 2, c // 2, int(place) % 8] += np.hypot(down, across) * (1 - share)
            expected[r // 2, c // 2, (int(place) + 1) % 8] += np.hypot(down, across) * share
    np.testing.assert_allclose(demo.views["gradients"][5], expected.ravel(), atol=1e-6)


def test_a_quarter_turn_moves_gradients_by_two_orientations(demo):
    straight = oriented_gradients(demo.images[:50]).reshape(50, 4, 4, 8)
    turned = oriented_gradients(np.rot90(demo.images[:50], axes=(1, 2))).reshape(50, 4, 4, 8)
    np.testing.assert_allclose(turned, np.roll(np.rot90(straight, axes=(1, 2)), -2, axis=3), atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 8), (6, 5)])
def test_fourier_magnitudes_hold_each_distinct_magnitude_once(shape):
    image = np.random.default_rng(0).random(shape)
    h, w = shape
    waves = [np.exp(-2j * np.pi * np.arange(size)[:, None] * np.arange(size) / size) for size in shape]
    full = abs(waves[0] @ image @ waves[1]) / (h * w)
    distinct = {min((u, v), (-u % h, -v % w)) for u in range(h) for v in range(w)}
    expected = sorted(full[u, v] for u, v in distinct)
    np.testing.assert_allclose(np.sort(fourier_magnitudes(image[None])[0]), expected, rtol=1e-5)


def test_fourier_magnitudes_do_not_see_shifts_that_wrap_around(demo):
    shifted = np.roll(1.0 - demo.images, (3, -2), axis=(1, 2))
    np.testing.assert_allclose(fourier_magnitudes(shifted), demo.views["fourier"], atol=1e-6)


def test_projections_are_sums_along_lines(demo):
    image = 1.0 - demo.images[11]
    diagonals = [image.diagonal(k).sum() for k in range(-7, 8)]
    other_way = [image[::-1].diagonal(k).sum() for k in range(-7, 8)]
    expected = np.concatenate([image.sum(axis=1), image.sum(axis=0), diagonals, other_way])
    np.testing.assert_allclose(projections(image[None])[0], expected, atol=1e-5)


def test_every_view_tells_the_digits_apart(demo):
    train, digit = demo.split == "train", demo.Y[:, :10].argmax(axis=1)
    accuracy = {
        name: KNeighborsClassifier(1).fit(view[train], digit[train]).score(view[~train], digit[~train])
        for name, view in demo.views.items()
    }
    assert accuracy["pixels"] == pytest.approx(0.965, abs=0.001)
    assert min(accuracy.values()) > 0.85, accuracy
