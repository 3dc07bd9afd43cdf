"""Check that generated stores have the documented shapes and statistics for any block size."""

import numpy as np
import pytest
from benchmarks._generated import HISTOGRAMS, SHAPES, generated


@pytest.mark.slow
def test_shapes_and_statistics():
    source = generated("espgame", scale=0.2)
    Y = source.labels
    assert Y.shape == (round(18_689 * 0.2) + round(2_081 * 0.2), 268)
    assert Y.sum(axis=1).mean() == pytest.approx(SHAPES["espgame"].per_sample, rel=0.05)
    assert Y.any(axis=1).all()
    assert 0.15 < Y.mean(axis=0).max() < 0.4
    for view, X in source.views.items():
        rows = X[:200]
        assert rows.shape == (200, X.shape[1])
        if view in HISTOGRAMS:
            share = {"rgb": 0.07, "lab": 0.04, "hsv": 0.15, "dense_sift": 0.23, "harris_sift": 0.16}.get(view)
            assert rows.dtype == np.uint16
            assert share is None or (rows > 0).mean() == pytest.approx(share, rel=0.35)


def test_rows_do_not_depend_on_the_block_read_or_on_the_scale():
    small, large = generated("espgame", 0.1, seed=3), generated("espgame", 0.3, seed=3)
    for view in ("lab", "gist"):
        whole = small.views[view][900:1200]
        np.testing.assert_array_equal(
            np.concatenate([small.views[view][900:1024], small.views[view][1024:1200]]), whole
        )
        np.testing.assert_array_equal(large.views[view][900:1200], whole)
    np.testing.assert_array_equal(small.labels[:1500], large.labels[:1500])


def test_another_seed_is_another_set():
    assert (generated(seed=1, scale=0.01).labels != generated(seed=2, scale=0.01).labels).any()


def test_bad_arguments():
    with pytest.raises(ValueError, match="unknown set; known: espgame"):
        generated("imagenet")
    with pytest.raises(ValueError, match="leaves"):
        generated("espgame", scale=1e-9)
