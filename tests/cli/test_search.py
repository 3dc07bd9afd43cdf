"""Search in the learned space, both ways: what is found is what brute force over the library finds."""

import numpy as np
import pytest
from scenes import draw_scene
from shell import record, run
from sklearn.metrics.pairwise import cosine_similarity

from dmo import stores
from dmo.persistence import load
from dmo.workflows.search import answering, best, similar


def test_nearness_is_the_cosine_of_scikit_learn():
    rng = np.random.default_rng(0)
    Z, q = rng.normal(3, 1, (30, 4)), rng.normal(3, 1, 4)
    expected = cosine_similarity(Z - Z.mean(axis=0), (q - Z.mean(axis=0))[None])[:, 0]
    np.testing.assert_allclose(similar(Z, q), expected, atol=1e-12)
    np.testing.assert_array_equal(similar(np.ones((3, 2)), np.ones(2)), [0, 0, 0])
    assert best(np.array([1.0, 3.0, 3.0, 2.0]), 3).tolist() == [1, 2, 3]


def test_labels_count_alike_whatever_the_scale_of_their_scores():
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(40, 3))
    np.testing.assert_allclose(answering(scores * (1, 100, 1) + (5, 0, 0), [0, 1]), answering(scores, [0, 1]))
    assert best(answering(scores, [2]), 1)[0] == scores[:, 2].argmax()
    constant = np.column_stack([scores[:, 0], np.ones(40)])
    np.testing.assert_allclose(answering(constant, [0, 1]), answering(scores, [0]) / 2)


def test_a_sample_finds_itself_and_the_nearest_of_brute_force(annotated):
    store, model = stores.open_features(annotated / "f.zarr"), load(str(annotated / "m.zarr"))
    Z = model.transform({name: view[:] for name, view in store.views.items()})
    centered = Z - Z.mean(axis=0)
    row = 17
    order = np.argsort(-cosine_similarity(centered, centered[row : row + 1])[:, 0], kind="stable")
    found = record("search", annotated / "m.zarr", annotated / "f.zarr", "--sample", store.sample_ids[row], "--top", 6)
    assert [entry["sample"] for entry in found["found"]] == [store.sample_ids[i] for i in order[:6]]
    assert found["found"][0] == {
        "sample": store.sample_ids[row],
        "value": 1.0,
        "labels": draw_scene(row)[1],
    }
    scores = model.decision_function({name: view[row : row + 1] for name, view in store.views.items()})[0]
    assert found["labels"] == [store.label_names[j] for j in np.argsort(-scores, kind="stable")[:5]]


def test_a_image_in_a_file_finds_what_its_sample_finds(annotated):
    by_id = record("search", annotated / "m.zarr", annotated / "f.zarr", "--sample", "scene-00009.jpg")
    by_file = record(
        "search", annotated / "m.zarr", annotated / "f.zarr", "--image", annotated / "pics" / "scene-00009.jpg"
    )
    assert by_file["found"] == by_id["found"]
    assert by_file["labels"] == by_id["labels"]


@pytest.mark.parametrize("model", ["m.zarr", "r.zarr"])
def test_labels_find_images_that_carry_them(annotated, model):
    for label in ("night", "sea"):
        found = record(
            "search", annotated / model, annotated / "f.zarr", "--labels", label, "--top", 5, "--split", "train"
        )
        assert sum(label in entry["labels"] for entry in found["found"]) >= 4
    both = record(
        "search", annotated / model, annotated / "f.zarr", "--labels", "sky, sea", "--top", 3, "--split", "train"
    )
    assert both["labels"] == ["sky", "sea"]
    assert {"sky", "sea"} <= set(both["found"][0]["labels"])
    assert both["n_samples"] == 45


def test_what_cannot_be_searched_is_refused_in_one_sentence(annotated, tmp_path):
    command = ["search", annotated / "m.zarr", annotated / "f.zarr"]
    assert "pass one of" in run(*command, code=2).stderr
    assert "pass one of" in run(*command, "--labels", "sky", "--sample", "x", code=2).stderr
    assert "did you mean 'sky'" in run(*command, "--labels", "skyy", code=2).stderr
    assert "names no label" in run(*command, "--labels", " , ", code=2).stderr
    assert "scene-000" in run(*command, "--sample", "scene-1.jpg", code=2).stderr
    (tmp_path / "x.png").write_bytes(b"x")
    assert "x.png" in run(*command, "--image", tmp_path / "x.png", code=2).stderr
    assert "samples for sky" in run(*command, "--labels", "sky", "--top", 2).stdout
