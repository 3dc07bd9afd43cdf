"""Check that extraction from image folders is complete, reproducible and does not repeat finished work."""

import csv
import json
import os
import shutil
from pathlib import Path

import dask
import numpy as np
import pytest
from made_files import onnx_model
from PIL import Image
from scenes import LABEL_NAMES, draw_images, draw_scene
from shell import record, run

import dmo
from dmo import features, stores
from dmo.errors import UserError
from dmo.features import embedding, extraction
from dmo.features.extraction import Extractor
from dmo.workflows.rows import open_trial
from dmo.workflows.trial import Upload

N = 16
VIEWS = "rgb_v3h1,wavelets,harris_sift_v3h1,dense_hue"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Create a folder with images `pics`, their feature store `f.zarr` and a model `m.zarr`."""
    folder = tmp_path_factory.mktemp("extract")
    draw_images(folder / "pics", N, test_share=4 / N)
    run(
        "extract",
        folder / "pics",
        folder / "f.zarr",
        "--set",
        VIEWS,
        "--words",
        6,
        "--labels",
        folder / "pics/labels.csv",
    )
    run("fit", "kgha", folder / "f.zarr", folder / "m.zarr", "--n-components", "0.3")
    return folder


@pytest.fixture
def images(work, tmp_path):
    """Copy the images so that a test can change them."""
    shutil.copytree(work / "pics", tmp_path / "pics")
    return tmp_path / "pics"


# --- drawn scenes ----------------------------------------------------------------------------------------------------


def test_a_scene_is_the_same_every_time_and_another_for_every_number():
    first, labels = draw_scene(3, seed=1)
    again, same = draw_scene(3, seed=1)
    np.testing.assert_array_equal(first, again)
    assert labels == same
    assert first.shape == (128, 192, 3)
    for other, _ in (draw_scene(4, seed=1), draw_scene(3, seed=2)):
        assert np.abs(other.astype(int) - first).mean() > 5


@pytest.mark.slow
def test_scenes_carry_every_label_and_nights_are_dark():
    scenes = [draw_scene(i) for i in range(110)]
    labels = [set(found) for _, found in scenes]
    counts = {name: sum(name in found for found in labels) for name in LABEL_NAMES}
    assert set().union(*labels) == set(LABEL_NAMES)
    assert max(counts.values()) < 0.85 * len(labels)
    assert 3.5 < sum(counts.values()) / len(labels) < 6
    brightness = {
        night: np.mean([image.mean() for image, found in scenes if ("night" in found) == night])
        for night in (True, False)
    }
    assert brightness[True] < 0.6 * brightness[False]


def test_drawn_images_are_kept_and_listed(tmp_path):
    table = draw_images(tmp_path, 8)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.jpg")}
    draw_images(tmp_path, 8)
    assert before == {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.jpg")}
    listing = features.list_images(tmp_path, table)
    assert listing.split == ["train"] * 6 + ["test"] * 2
    for i, row in enumerate(listing.labels):
        assert [listing.label_names[j] for j in np.flatnonzero(row)] == draw_scene(i)[1]
    with pytest.raises(ValueError, match="at least 8"):
        draw_images(tmp_path, 3)


# --- labels ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def few(tmp_path):
    for i, name in enumerate(("train/sky/a.png", "train/sea/b.png", "test/sky/night/c.png", "test/d.png")):
        path = tmp_path / "few" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (50 * i, 90, 120)).save(path)
    return tmp_path / "few"


def test_folder_names_are_labels_and_splits(few):
    found = features.list_images(few, "folders")
    assert found.ids == ["test/d.png", "test/sky/night/c.png", "train/sea/b.png", "train/sky/a.png"]
    assert found.label_names == ["night", "sea", "sky"]
    assert found.labels.tolist() == [[0, 0, 0], [1, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert found.split == ["test", "test", "train", "train"]


def test_folders_are_classes_where_every_image_lies_in_one(few):
    assert features.list_images(few, "folders").kind == "labels"
    for name in ("test/sky/night/c.png", "test/d.png"):
        (few / name).unlink()
    found = features.list_images(few, "folders")
    assert (found.kind, found.label_names, found.labels.tolist()) == ("classes", ["sea", "sky"], [[1, 0], [0, 1]])
    (few / "train/sea/b.png").unlink()
    assert features.list_images(few, "folders").kind == "labels"  # a multiclass target needs two classes


def test_csv_and_json_say_the_same(few, tmp_path):
    listed = {"train/sky/a.png": ["sky", "sun"], "train/sea/b.png": ["sea"], "gone.png": ["sky"]}
    (tmp_path / "l.json").write_text(json.dumps(listed))
    (tmp_path / "l.csv").write_text("file,labels\n" + "".join(f"{k},{';'.join(v)}\n" for k, v in listed.items()))
    wide = "".join(f"{k},{int('sky' in v)},{int('sun' in v)},{int('sea' in v)},train\n" for k, v in listed.items())
    (tmp_path / "wide.csv").write_text("file,sky,sun,sea,split\n" + wide)
    for name in ("l.json", "l.csv", "wide.csv"):
        found = features.list_images(few, tmp_path / name)
        assert found.ids == ["train/sea/b.png", "train/sky/a.png"]
        assert found.label_names == ["sea", "sky", "sun"]
        assert found.labels.tolist() == [[1, 0, 0], [0, 1, 1]]
        assert found.absent == ("gone.png",)
        assert found.unlisted == ("test/d.png", "test/sky/night/c.png")
        assert (found.split == ["train", "train"]) == (name == "wide.csv")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "name,x\nq,1\n", "line 1 begins with"),
        ("a.csv", "file,labels\nq\n", "line 2 has 1 fields"),
        ("a.csv", "file,sky,sea\ntest/d.png,2,wet\n", "column 'sea' has text .'wet'., expected 0 and 1 or numbers"),
        ("a.csv", "file,labels\ntest/d.png,x\ntest/d.png,y\n", "line 3 names 'test/d.png' a second time"),
        ("a.csv", "file,labels\nother.png,x\n", "does not list any image"),
        ("a.csv", "file,labels\ntest/d.png,\n", "does not contain labels of images"),
        ("a.csv", "file,labels,split\ntest/d.png,x,train\ntrain/sea/b.png,y,\n", "1 of 2 images have no split"),
        ("a.json", "{", "is not valid JSON"),
        ("a.json", "[" * 99999, "is not valid JSON"),
        ("a.json", "3", "contains int"),
        ("a.json", '[{"file": 3}]', "entry 0 is not of the form"),
        ("a.txt", "", "ends in .csv or .json"),
    ],
)
def test_label_files_of_another_form_are_refused(few, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        features.list_images(few, tmp_path / name)


def test_label_files_have_cells_of_a_megabyte_and_are_no_pipes(few, tmp_path):
    before, sky = csv.field_size_limit(1 << 17), "sky" * (1 << 19)
    (tmp_path / "long.csv").write_text(f"file,labels\ntest/d.png,{sky}\n")
    assert features.list_images(few, tmp_path / "long.csv").label_names == [sky]
    csv.field_size_limit(before)
    for name in ("pipe.csv", "pipe.json"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match=f"{name}: is a pipe or a device, expected a file"):
            features.list_images(few, tmp_path / name)


def test_a_test_share_depends_on_names_alone(work):
    listing = features.list_images(work / "pics")
    split = dict(zip(listing.ids, listing.with_test_share(0.4).split))
    assert set(split.values()) == {"train", "test"}
    some = listing.keep(range(3, 15)).with_test_share(0.4)
    assert [split[name] for name in some.ids] == some.split
    with pytest.raises(ValueError, match="between 0 and 1"):
        listing.with_test_share(1.5)


# --- extraction ------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_single_images(work):
    store, extractor = stores.open_features(work / "f.zarr"), Extractor.load(str(work / "f.zarr"))
    assert store.n_samples == N
    assert (store.split == "test").sum() == 4
    assert store.view_info("rgb_v3h1").histogram
    for i in (0, 7, N - 1):
        image = features.read_image(work / "pics" / store.sample_ids[i])
        for view, row in extractor.recipe.describe(image, extractor.vocabularies).items():
            np.testing.assert_array_equal(store.views[view][i : i + 1][0], row)


def test_threads_and_blocks_change_nothing(work, tmp_path):
    listing = features.list_images(work / "pics", work / "pics/labels.csv")
    recipe = Extractor.load(str(work / "f.zarr")).recipe
    expected = stores.open_features(work / "f.zarr")
    found = features.extract(listing, tmp_path / "one.zarr", recipe, threads=1, block=7).store
    for view in expected.views:
        np.testing.assert_array_equal(found.views[view][:], expected.views[view][:])
    same = expected.provenance["parameters"]["fingerprint"]
    assert found.provenance["parameters"]["fingerprint"] == same


def files(store):
    """Read all files of a store except the recipe, whose files have random names."""
    found = {path.relative_to(store): path for path in store.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name.parts[0] != "images"}


@pytest.mark.slow
def test_workers_extract_and_annotate_the_same_bytes(work, tmp_path, local_cluster):
    where = ["--scheduler", local_cluster.scheduler_address]
    labels = ["--labels", work / "pics/labels.csv"]
    how = ["--set", "moments,dense_hue", "--words", 6, "--block", 5, *labels]
    run("extract", work / "pics", tmp_path / "f.zarr", *how)
    run("extract", work / "pics", tmp_path / "w.zarr", *how, *where)
    assert files(tmp_path / "w.zarr") == files(tmp_path / "f.zarr")
    run("annotate", work / "m.zarr", work / "pics", tmp_path / "f.csv")
    run("annotate", work / "m.zarr", work / "pics", tmp_path / "w.csv", *where)
    assert (tmp_path / "w.csv").read_bytes() == (tmp_path / "f.csv").read_bytes()
    with pytest.raises(
        stores.StoreError, match=r"there is no folder .*gone on .*: a worker there cannot see the images"
    ):
        extraction._on_worker(None, [slice(0, 1)], tmp_path / "gone", 0)


def test_a_store_grows_by_new_images_and_describes_each_once(work, tmp_path, monkeypatch):
    pics, store = tmp_path / "pics", tmp_path / "f.zarr"
    pics.mkdir()
    names = sorted(path.name for path in (work / "pics").glob("*.jpg"))
    for name in names[1:10]:
        shutil.copy(work / "pics" / name, pics)
    (pics / "broken.jpg").write_bytes(b"no image")
    run("extract", pics, store, "--like", work / "m.zarr", "--block", 4)
    run("extract", pics, store, "--like", work / "m.zarr", "--append", code=2)
    told = run("extract", pics, store, "--append", "--test-share", 0.3, code=2).stderr
    assert "has no splits, the images to append differ; pass --labels and --test-share as when it was made" in told
    described = []
    describe = Extractor.describe

    def noted(self, path):
        if len(described) == 3:
            raise KeyboardInterrupt
        described.append(path.name)
        return describe(self, path)

    monkeypatch.setattr(Extractor, "describe", noted)
    for name in names[:1] + names[10:]:
        shutil.copy(work / "pics" / name, pics)
    run("extract", pics, store, "--append", "--threads", 1, code=130)
    assert stores.open_features(store).n_samples == 9  # the old store remains readable
    before = list(described)
    described.clear()
    monkeypatch.setattr(Extractor, "describe", lambda self, path: described.append(path.name) or describe(self, path))
    with monkeypatch.context() as patch:
        patch.setattr(stores._files, "set_complete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run("extract", pics, store, "--append", code=130)  # interrupt before the new store replaces the old store
    grown = record("extract", pics, store, "--append")
    assert grown["n_samples"] == N
    assert set(grown["unreadable"]) == {"broken.jpg"}
    assert sorted(before + described) == [names[0], *names[10:]]
    found, whole = stores.open_features(store), stores.open_features(work / "f.zarr")
    assert found.sample_ids == [*names[1:10], names[0], *names[10:]]
    place = [whole.sample_ids.index(name) for name in found.sample_ids]
    for view in whole.views:
        np.testing.assert_array_equal(found.views[view][:], whole.views[view][:][place])
    assert stores.verify(store) == []
    described.clear()
    assert record("extract", pics, store, "--append")["n_samples"] == N
    assert described == []
    assert not store.with_name("f.zarr.grown").exists()
    for change, said in (
        (lambda: shutil.copy(pics / names[3], pics / names[4]), "has changed since its features were computed"),
        (lambda: (pics / names[4]).unlink(), f"1 images of .* the first is {names[4]}"),
    ):
        change()
        with pytest.raises(ValueError, match=said):
            features.append_images(features.list_images(pics), store)


def test_an_extraction_that_died_goes_on_where_it_stopped(work, tmp_path, monkeypatch):
    listing = features.list_images(work / "pics")
    described = []
    describe = Extractor.describe

    def failing(self, path):
        described.append(path.name)
        if len(described) > 9:
            raise KeyboardInterrupt
        return describe(self, path)

    monkeypatch.setattr(Extractor, "describe", failing)
    recipe = features.Recipe.of(VIEWS, words={"harris_sift": 6, "dense_hue": 6})
    with pytest.raises(KeyboardInterrupt):
        features.extract(listing, tmp_path / "f.zarr", recipe, threads=1, block=4)
    with pytest.raises(stores.StoreError, match="incomplete"):
        stores.open_features(tmp_path / "f.zarr")
    described.clear()
    monkeypatch.setattr(Extractor, "describe", lambda self, path: described.append(path.name) or describe(self, path))
    monkeypatch.setattr(extraction, "learn_vocabularies", None)  # fail if vocabularies are learned again
    done = features.extract(listing, tmp_path / "f.zarr", recipe, block=4)
    assert done.resumed == 2
    assert sorted(described) == listing.ids[8:]
    assert stores.verify(tmp_path / "f.zarr") == []


def test_unreadable_images_are_named_and_left_out_or_refused(images, tmp_path):
    (images / "scene-00002.jpg").write_bytes(b"no image")
    (images / "notes.txt").write_text("x")
    command = ["extract", images, tmp_path / "f.zarr", "--set", "moments", "--labels", images / "labels.csv"]
    refused = run(*command, "--unreadable", "refuse", code=2).stderr
    assert "1 of 16 images cannot be read" in refused
    assert "scene-00002.jpg" in refused
    assert not (tmp_path / "f.zarr").exists()
    result = run(*command)
    assert "skipped" in result.stderr
    assert "scene-00002.jpg" in result.stderr
    assert "notes.txt" in result.stderr
    store = stores.open_features(tmp_path / "f.zarr")
    assert store.n_samples == N - 1
    assert "scene-00002.jpg" not in store.sample_ids
    assert store.provenance["parameters"]["unreadable"] == ["scene-00002.jpg"]
    truth = {f"scene-{i:05d}.jpg": draw_scene(i)[1] for i in range(N)}
    for name, row in zip(store.sample_ids, store.labels):
        assert [store.label_names[j] for j in np.flatnonzero(row)] == truth[name]


def test_extract_like_a_model_takes_its_vocabularies(work, tmp_path):
    draw_images(tmp_path / "new", 8, seed=5)
    found = record("extract", tmp_path / "new", tmp_path / "n.zarr", "--like", work / "m.zarr")
    assert found["fingerprint"] == Extractor.load(str(work / "f.zarr")).fingerprint
    assert (
        record("annotate", work / "m.zarr", tmp_path / "n.zarr", tmp_path / "a.zarr", "--split", "all")["n_samples"]
        == 8
    )


@pytest.mark.slow
def test_from_labeled_images_to_the_annotator_and_its_report_is_a_command_each(work, tmp_path):
    """A saved model suffices to annotate images, without the feature store of the fit."""
    run("fit", "neighborvotes", work / "f.zarr", tmp_path / "elsewhere/m.zarr")
    model = dmo.load(str(tmp_path / "elsewhere/m.zarr"))
    assert (model.base_.kernel, model.base_.weights, model.distances_ is None) == ("product", "tagprop", False)
    found = record("report", tmp_path / "elsewhere/m.zarr", work / "f.zarr", tmp_path / "report.html", "--top", 5)
    assert (found["split"], found["n_samples"]) == ("test", 4)
    draw_images(tmp_path / "new", 8, seed=5)
    shutil.copytree(tmp_path / "elsewhere/m.zarr", tmp_path / "away/from/all/m.zarr")
    run("extract", tmp_path / "new", tmp_path / "n.zarr", "--like", tmp_path / "away/from/all/m.zarr")
    commands = [("annotate", tmp_path / "away/from/all/m.zarr", tmp_path / source) for source in ("n.zarr", "new")]
    run(*commands[0], tmp_path / "a.zarr", "--split", "all", "--top", 3, "--csv", tmp_path / "a.csv")
    run(*commands[1], tmp_path / "b.csv", "--top", 3)
    assert read(tmp_path / "a.csv") == read(tmp_path / "b.csv")


def test_the_embeddings_of_an_onnx_model_are_one_more_view(work, tmp_path):
    model = onnx_model(tmp_path / "model.onnx")
    table = work / "pics/labels.csv"
    run("extract", work / "pics", tmp_path / "f.zarr", "--set", "moments", "--onnx", model, "--labels", table)
    assert stores.open_features(tmp_path / "f.zarr").views["onnx"].shape == (N, 3)
    run("fit", "ridge", tmp_path / "f.zarr", tmp_path / "m.zarr")
    with dask.config.set({"dmo.onnx": str(model)}):
        assert record("annotate", tmp_path / "m.zarr", work / "pics", tmp_path / "a.csv")["n_samples"] == N
        onnx_model(model, operator="GlobalMaxPool")
        embedding._session.cache_clear()
        error = run("annotate", tmp_path / "m.zarr", work / "pics", tmp_path / "b.csv", code=2).stderr
    assert "is not the model that computed the features" in error


def test_onnx_file_is_opened_only_if_the_user_names_it(work, tmp_path, monkeypatch):
    model = onnx_model(tmp_path / "model.onnx")
    table = work / "pics/labels.csv"
    run("extract", work / "pics", tmp_path / "f.zarr", "--set", "moments", "--onnx", model, "--labels", table)
    run("fit", "ridge", tmp_path / "f.zarr", tmp_path / "m.zarr")
    again = "extract", work / "pics", tmp_path / "g.zarr", "--like", tmp_path / "m.zarr"
    opened = []
    monkeypatch.setattr(embedding, "_content", lambda path: opened.append(path) or Path(path).read_bytes())
    embedding._session.cache_clear()
    for loaded in ("f.zarr", "m.zarr"):  # the saved recipe must not change
        assert Extractor.load(str(tmp_path / loaded)).recipe.to_dict()["onnx"]["path"] == str(model)
    for arguments in (again, ("annotate", tmp_path / "m.zarr", work / "pics", tmp_path / "a.csv")):
        error = run(*arguments, code=2).stderr
        assert f"onnx = '{model}' was loaded with a saved model or store" in error
        assert "pass it again as the setting dmo.onnx, such as DASK_DMO__ONNX=FILE" in error
    assert not opened
    with pytest.raises(UserError, match="was loaded with a saved model or store"):
        open_trial(str(tmp_path / "m.zarr"), None, 2, 50)
    run(*again, "--onnx", model)
    assert set(opened) == {str(model)}  # several threads may open the model


@pytest.mark.slow
def test_a_file_called_an_image_starts_no_other_program(work, tmp_path, monkeypatch):
    """An image decoder that accepts PostScript would start the fake program `gs`, which creates a marker file."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    (tmp_path / "bin/gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for part in ("pics", "f.zarr", "m.zarr"):
        shutil.copytree(work / part, tmp_path / part)
    names = stores.open_features(tmp_path / "f.zarr").sample_ids
    for path in (*(tmp_path / "pics" / name for name in names[1:]), tmp_path / "pics/photo.png"):
        path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\nshowpage\n%%EOF\n")
    pics, store, model = tmp_path / "pics", tmp_path / "f.zarr", tmp_path / "m.zarr"
    photo, said = pics / "photo.png", "photo.png: cannot be read as an image"
    assert record("extract", pics, tmp_path / "g.zarr", "--set", "moments")["unreadable"].keys() >= {"photo.png"}
    assert record("annotate", model, pics, tmp_path / "a.csv")["unreadable"].keys() >= {"photo.png"}
    assert said in run("search", model, store, "--image", photo, code=2).stderr
    run("report", model, store, tmp_path / "report.html", "--split", "all", "--top", 2)
    trial = open_trial(str(model), str(store), 2, 50)
    with pytest.raises(UserError, match=said):
        trial.images([Upload("photo.png", photo)])
    assert trial.thumbnail(0) is not None
    assert trial.thumbnail(1) is None
    assert not (tmp_path / "started").exists()


# --- annotation of a folder ------------------------------------------------------------------------------------------


def read(path):
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    return {row[0]: [label for label in row[1:] if label] for row in rows[1:]}


def test_annotating_a_folder_is_annotating_its_feature_store(work, tmp_path):
    run(
        "annotate", work / "m.zarr", work / "f.zarr", tmp_path / "s.zarr", "--split", "all", "--csv", tmp_path / "s.csv"
    )
    run("annotate", work / "m.zarr", work / "pics", tmp_path / "p.csv")
    run("annotate", work / "m.zarr", work / "pics", tmp_path / "p.json")
    run("annotate", work / "m.zarr", work / "pics", tmp_path / "p.zarr")
    expected = read(tmp_path / "s.csv")
    assert read(tmp_path / "p.csv") == expected
    document = json.loads((tmp_path / "p.json").read_text())
    assert {name: entry["labels"] for name, entry in document.items()} == expected
    assert all(entry["scores"] == sorted(entry["scores"], reverse=True) for entry in document.values())
    rows = stores.open_results(tmp_path / "p.zarr")
    np.testing.assert_array_equal(rows[:], stores.open_results(tmp_path / "s.zarr")[:])
    assert rows.sample_ids == list(expected)


def test_only_new_and_changed_images_are_annotated(work, images, tmp_path):
    command = ["annotate", work / "m.zarr", images, tmp_path / "p.csv", "--top", 3]
    assert record(*command, "--dry-run")["new"] == N
    assert not (tmp_path / "p.csv").exists()
    assert record(*command)["new"] == N
    first = read(tmp_path / "p.csv")
    assert record(*command)["new"] == 0
    shutil.copy(images / "scene-00001.jpg", images / "copy.jpg")
    shutil.copy(images / "scene-00004.jpg", images / "scene-00003.jpg")
    (images / "scene-00000.jpg").unlink()
    assert record(*command)["new"] == 2
    second = read(tmp_path / "p.csv")
    assert second["copy.jpg"] == first["scene-00001.jpg"]
    assert second["scene-00003.jpg"] == first["scene-00004.jpg"]
    assert set(second) == set(first) - {"scene-00000.jpg"} | {"copy.jpg"}
    journal = tmp_path / "p.csv.journal"
    lines = journal.read_text().splitlines()
    # Simulate a run that was killed while it wrote a line.
    journal.write_text("\n".join(lines[:10]) + "\n" + lines[10][:15])
    assert record(*command)["new"] == N - 10
    assert read(tmp_path / "p.csv") == second
    assert record(*command[:-1], 2)["new"] == N  # a different number of labels restarts the run
    assert record(*command[:-1], 2, "--overwrite")["new"] == N


def saved_again(model, path, attached):
    known = stores.describe(model)["provenance"]
    provenance = stores.Provenance(known["parents"], known["parameters"], known["seed"])
    dmo.load(str(model)).save(str(path), provenance, attached=attached)


def test_a_folder_is_annotated_with_the_training_vocabularies_or_not_at_all(work, tmp_path):
    extractor = Extractor.load(str(work / "m.zarr"))
    changed = {name: features.Vocabulary(v.centers + 1) for name, v in extractor.vocabularies.items()}
    saved_again(work / "m.zarr", tmp_path / "m.zarr", {"images": Extractor(extractor.recipe, changed).parts()})
    error = run("annotate", tmp_path / "m.zarr", work / "pics", tmp_path / "p.csv", code=2).stderr
    assert "have changed since it was created" in error
    shutil.copytree(work / "f.zarr", tmp_path / "f.zarr")
    Extractor(extractor.recipe, changed).save(str(tmp_path / "f.zarr"))
    assert (
        "have changed since it was created"
        in run("fit", "ridge", tmp_path / "f.zarr", tmp_path / "n.zarr", code=2).stderr
    )
    assert not (tmp_path / "n.zarr").exists()
    saved_again(work / "m.zarr", tmp_path / "m.zarr", {})
    assert (
        "contains no image recipe"
        in run("annotate", tmp_path / "m.zarr", work / "pics", tmp_path / "p.csv", code=2).stderr
    )


def test_a_model_of_images_is_whole_with_its_recipe_and_not_without(work, tmp_path):
    """The recipe is part of the model, and `dmo verify` reports a damaged recipe."""
    shutil.copytree(work / "m.zarr", tmp_path / "m.zarr")
    assert record("verify", tmp_path / "m.zarr")["whole"]
    assert record("verify", work / "f.zarr")["whole"]
    chunk = next((tmp_path / "m.zarr").glob("*/attached/images/*/c.*"))
    chunk.write_bytes(chunk.read_bytes()[:-1])
    run("verify", tmp_path / "m.zarr", code=4)
    shutil.copytree(work / "f.zarr", tmp_path / "f.zarr")
    chunk = next((tmp_path / "f.zarr").glob("images/*/*/c.*"))
    chunk.write_bytes(chunk.read_bytes()[:-1])
    run("verify", tmp_path / "f.zarr", code=4)


def test_the_same_model_saved_again_annotates_nothing_anew(work, images, tmp_path):
    shutil.copytree(work / "m.zarr", tmp_path / "m.zarr")
    command = ["annotate", tmp_path / "m.zarr", images, tmp_path / "p.csv"]
    assert record(*command)["new"] == N
    attached = {"images": Extractor.load(str(work / "m.zarr")).parts()}
    saved_again(work / "m.zarr", tmp_path / "m.zarr", attached)
    assert record(*command)["new"] == 0


def test_what_cannot_be_annotated_is_refused_in_one_sentence(work, images, tmp_path):
    (images / "bad.png").write_bytes(b"x")
    model = work / "m.zarr"
    assert "bad.png" in run("annotate", model, images, tmp_path / "p.csv", "--unreadable", "refuse", code=2).stderr
    assert not (tmp_path / "p.csv").exists()
    assert record("annotate", model, images, tmp_path / "p.csv")["unreadable"].keys() == {"bad.png"}
    assert "--like" in run("annotate", model, images, tmp_path / "q.zarr", "--scores", code=2).stderr
    (tmp_path / "r.csv").write_text("mine")
    assert "exists" in run("annotate", model, images, tmp_path / "r.csv", code=2).stderr
    assert "have a training sample" in run("annotate", model, images, tmp_path / "q.csv", "--top", 99, code=2).stderr
    run("ingest", "digits", tmp_path / "d.zarr")
    assert (
        "was not made from images"
        in run("extract", images, tmp_path / "n.zarr", "--like", tmp_path / "d.zarr", code=2).stderr
    )
