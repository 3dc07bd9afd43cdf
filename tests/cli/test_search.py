"""Compare searches for similar samples and labels in the learned space with brute force."""

import numpy as np
import pytest
from scenes import draw_scene
from shell import record, run
from sklearn.metrics.pairwise import cosine_similarity

from dmo import stores
from dmo.persistence import load
from dmo.workflows.search import Places, answering, best


def test_nearness_is_the_cosine_of_scikit_learn():
    rng = np.random.default_rng(0)
    Z, q = rng.normal(3, 1, (30, 4)), rng.normal(3, 1, 4)
    Z[7] = Z[3]  # equal rows are ranked by position
    expected = cosine_similarity(Z - Z.mean(axis=0), (q - Z.mean(axis=0))[None])[:, 0]
    for count in (1, 5, 30, 40):
        rows, values = Places(Z).nearest(q, count)
        np.testing.assert_array_equal(rows, np.argsort(-expected.round(12), kind="stable")[:count])
        np.testing.assert_allclose(values, expected[rows], atol=1e-12)
    rows, values = Places(np.ones((3, 2))).nearest(np.ones(2), 3)
    assert (rows.tolist(), values.tolist()) == ([0, 1, 2], [0, 0, 0])
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


@pytest.mark.parametrize("asked", [("--sample", "scene-00009.jpg"), ("--labels", "night")])
def test_an_index_is_read_in_place_of_the_samples_and_made_anew_for_others(annotated, tmp_path, asked):
    given = ["search", annotated / "m.zarr", annotated / "f.zarr", *asked, "--split"]
    index = tmp_path / "i.zarr"
    kept = [record(*given, part, "--index", index)["found"] for part in ("all", "all", "train", "train")]
    plain = [record(*given, part)["found"] for part in ("all", "train")]
    for found, expected in zip(kept, np.repeat(np.arange(2), 2)):
        assert [entry["sample"] for entry in found] == [entry["sample"] for entry in plain[expected]]
        np.testing.assert_allclose(*([e["value"] for e in part] for part in (found, plain[expected])), atol=2e-6)
    written = (index / "zarr.json").stat().st_mtime_ns
    assert "computed again" not in run(*given, "train", "--index", index).stderr
    assert (index / "zarr.json").stat().st_mtime_ns == written
    assert "other samples and is computed again" in run(*given, "all", "--index", index).stderr
    other = ("--labels", "sky") if asked[0] == "--sample" else ("--sample", "scene-00009.jpg")
    said = run(*given[:3], *other, "--index", index, code=2).stderr
    assert "choose another path" in said


def test_views_count_as_much_as_their_weights_say(annotated, tmp_path):
    store, model = stores.open_features(annotated / "f.zarr"), load(str(annotated / "m.zarr"))
    views, row = {name: view[:] for name, view in store.views.items()}, 17
    parts = {view: part(views) for view, part in model.expansions_.items()}
    first, second, third = parts
    Z = parts[first] + 0.5 * parts[third]
    Z = Z - Z.mean(axis=0)
    order = np.argsort(-cosine_similarity(Z, Z[row : row + 1])[:, 0], kind="stable")
    given = ["search", annotated / "m.zarr", annotated / "f.zarr", "--sample", store.sample_ids[row], "--top", 6]
    weights = ["--view-weight", f"{second}=0", "--view-weight", f"{third}=0.5"]
    for kept in ([], ["--index", tmp_path / "i.zarr"], ["--index", tmp_path / "i.zarr"]):
        found = record(*given, *weights, *kept)["found"]
        assert [entry["sample"] for entry in found] == [store.sample_ids[i] for i in order[:6]]
    equal = record(*given, *(f"--view-weight={view}=3" for view in parts), "--index", tmp_path / "i.zarr")
    assert [entry["sample"] for entry in equal["found"]] == [entry["sample"] for entry in record(*given)["found"]]
    for wrong, said in (("x=1", "pass numbers"), (f"{first}=-1", "pass numbers"), ("x", "VIEW=NUMBER")):
        assert said in run(*given, "--view-weight", wrong, code=2).stderr
    assert "all views have weight 0" in run(*given, *(f"--view-weight={view}=0" for view in parts), code=2).stderr
    ridge = ["search", annotated / "r.zarr", *given[2:], "--view-weight", f"{first}=2"]
    assert "has no coordinates of single views; leave it out" in run(*ridge, code=2).stderr
    assert "applies only to --image" in run(*given[:3], "--labels", "sky", *weights, code=2).stderr


def test_what_cannot_be_searched_is_refused_in_one_sentence(annotated, tmp_path):
    command = ["search", annotated / "m.zarr", annotated / "f.zarr"]
    assert "pass one of" in run(*command, code=2).stderr
    assert "pass one of" in run(*command, "--labels", "sky", "--sample", "x", code=2).stderr
    assert "did you mean 'sky'" in run(*command, "--labels", "skyy", code=2).stderr
    assert "contains no labels" in run(*command, "--labels", " , ", code=2).stderr
    assert "scene-000" in run(*command, "--sample", "scene-1.jpg", code=2).stderr
    (tmp_path / "x.png").write_bytes(b"x")
    assert "x.png" in run(*command, "--image", tmp_path / "x.png", code=2).stderr
    assert "samples for sky" in run(*command, "--labels", "sky", "--top", 2).stdout
