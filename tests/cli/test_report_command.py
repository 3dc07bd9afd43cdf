"""`dmo report` and `dmo demo --images`: the page says what the library computes."""

import re

import numpy as np
import pytest
from PIL import Image
from shell import record, run
from sklearn.metrics import label_ranking_average_precision_score

from dmo import stores
from dmo.cli import demo_images as demo_images
from dmo.workflows.apply import AppliedModel
from dmo.workflows.evaluation import EvaluatedModel, Evaluation, sample_precision
from dmo.workflows.report_page import read_sweep


def cells(page, caption):
    """The rows of the table with a caption, as text."""
    table = page[page.index(f"<h2>{caption}</h2>") :].split("</table>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr>")]
    return [[re.sub(r"<.*?>", "", cell) for cell in row] for row in rows if row]


def test_the_page_says_what_evaluate_says(annotated, tmp_path):
    out = tmp_path / "page" / "report.html"
    found = record(
        "report", annotated / "m.zarr", annotated / "f.zarr", out, "--against", annotated / "r.zarr", "--jec"
    )
    for name, model in (("KGHA (m)", "m.zarr"), ("MultiViewRidge (r)", "r.zarr")):
        measured = record("evaluate", annotated / model, annotated / "f.zarr")
        assert {key: measured[key] for key in found["methods"][name]} == found["methods"][name]
    page = out.read_text()
    scores = {row[0]: row[1:] for row in cells(page, "Annotation")}
    assert list(scores) == list(found["methods"])
    for name, measures in found["methods"].items():
        assert float(scores[name][2]) == pytest.approx(100 * measures["f1"], abs=0.06)
    assert (
        found["methods"]["JEC, nearest training samples"]["f1"]
        > found["methods"]["the most frequent labels for all"]["f1"]
    )
    names = {path.name for path in out.parent.iterdir()}
    images = (
        "annotations-best",
        "annotations-worst",
        "precision-recall",
        "co-occurrence",
        "space",
        "labels-in-space",
    )
    assert names == {"report.html", *(f"{name}.png" for name in images)}
    assert "http" not in page.replace("http-equiv", "")
    assert {row[0]: row[1] for row in cells(page, "Views")} == {
        "rgb_v3h1": "5,184",
        "hsv_v3h1": "5,184",
        "moments": "9",
    }


def test_plan_and_fact_stand_side_by_side(annotated, tmp_path):
    run("report", annotated / "m.zarr", annotated / "f.zarr", tmp_path / "r.html")
    costs = stores.describe(annotated / "m.zarr")["provenance"]["parameters"]["costs"]
    row = cells((tmp_path / "r.html").read_text(), "Plan and fact")[0]
    assert row[0] == "KGHA (m)"
    assert float(row[1].replace(",", "")) == pytest.approx(costs["plan"]["seconds"], rel=0.01, abs=1e-3)
    assert float(row[2].replace(",", "")) == pytest.approx(costs["seconds"], rel=0.01)


def test_every_label_has_its_row(annotated, tmp_path):
    run("report", annotated / "m.zarr", annotated / "f.zarr", tmp_path / "r.html", "--top", 3)
    store = stores.open_features(annotated / "f.zarr")
    _, Y, _ = store.select("test")
    rows = {row[0]: row[1:] for row in cells((tmp_path / "r.html").read_text(), "Every label")}
    assert set(rows) == set(store.label_names)
    for name, count in zip(store.label_names, Y.sum(axis=0)):
        assert rows[name][1] == str(count)
        assert (rows[name][2] == "–") == (count == 0)


def test_samples_without_images_are_shown_as_words(tmp_path):
    run("ingest", "digits", tmp_path / "d.zarr")
    run("fit", "ridge", tmp_path / "d.zarr", tmp_path / "r.zarr", "--views", "projections", "--kernel", "linear")
    told = run("report", tmp_path / "r.zarr", tmp_path / "d.zarr", tmp_path / "r.html", "--top", 3, "--title", "a <b>")
    assert "no images to show" in told.stderr
    page = (tmp_path / "r.html").read_text()
    assert "<h1>a &lt;b&gt;</h1>" in page
    worst = cells(page, "Worst annotations")
    assert len(worst) == 6
    for _, own, given in worst:
        assert set(own.split(", ")) != set(given.split(", "))
    assert "space.png" not in [path.name for path in tmp_path.iterdir()]


def test_sweeps_become_heat_maps(annotated, tmp_path):
    options = [
        "--ridge",
        "0.01,0.1",
        "--prior-power",
        "0,0.5",
        "--center",
        "true",
        "--folds",
        "2",
        "--combine",
        "kernels",
    ]
    found = run("tune", "ridge", annotated / "f.zarr", tmp_path / "t.zarr", "--views", "moments", *options, "--json")
    (tmp_path / "t.json").write_text(found.stdout)
    assert read_sweep(tmp_path / "t.json")["metric"] == "ranking"
    run("report", annotated / "m.zarr", annotated / "f.zarr", tmp_path / "r.html", "--sweep", tmp_path / "t.json")
    assert (tmp_path / "sweep-1.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "bad.json").write_text("[]")
    error = run(
        "report",
        annotated / "m.zarr",
        annotated / "f.zarr",
        tmp_path / "x.html",
        "--sweep",
        tmp_path / "bad.json",
        code=2,
    )
    assert "not the output of dmo tune --json" in error.stderr


def test_samples_are_ranked_by_their_average_precision():
    rng = np.random.default_rng(0)
    Y, scores = (rng.random((30, 6)) < 0.4).astype(np.uint8), rng.normal(size=(30, 6))
    Y[3], Y[4] = 0, 1
    found = sample_precision(Y, scores)
    for i in range(30):
        expected = label_ranking_average_precision_score(Y[i : i + 1], scores[i : i + 1]) if Y[i].any() else 0
        assert found[i] == pytest.approx(expected)


def test_wrong_requests_are_refused_in_one_sentence(annotated, tmp_path):
    command = ["report", annotated / "m.zarr", annotated / "f.zarr", tmp_path / "r.html"]
    assert "labels have a training sample" in run(*command, "--top", 99, code=2).stderr
    assert "--split test" in run(*command, "--jec", "--split", "all", code=2).stderr
    assert not (tmp_path / "r.html").exists()


def test_the_demo_goes_from_images_to_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_images, "N", 16)
    monkeypatch.setattr(demo_images, "N_NEW", 8)
    monkeypatch.setattr(
        demo_images, "WORDS", dict.fromkeys(("dense_sift", "harris_sift", "dense_hue", "harris_hue"), 8)
    )
    out = tmp_path / "demo"
    told = run("demo", "--images", "--out", out)
    assert "what to try next" in told.stdout
    assert (out / "report.html").exists()
    assert len((out / "new.csv").read_text().splitlines()) == 9
    assert stores.open_features(out / "features.zarr").n_samples == 16
    for method in ("KGHA (kgha)", "NeighborVotes (votes)", "JEC, nearest training samples", "PCA, "):
        assert method in told.stdout
    assert "holds no demo" in run("demo", "--images", "--out", tmp_path, code=2).stderr


@pytest.mark.parametrize("name", ["../secret.jpg", "{secret}", "link.jpg"])
def test_a_page_shows_no_image_from_outside_the_folder_of_its_store(tmp_path, name):
    secret = tmp_path / "secret.jpg"
    Image.new("RGB", (40, 40), "red").save(secret)
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics" / "link.jpg").symlink_to(secret)
    writer = stores.create_features(
        tmp_path / "f.zarr",
        4,
        {"x": stores.ViewSpec(2)},
        np.eye(4, 2, dtype=np.uint8),
        ["a", "b"],
        sample_ids=[name.format(secret=secret), "1", "2", "3"],
        attributes={"dataset": "images", "folder": str(tmp_path / "pics")},
        block=4,
    )
    writer.write("x", 0, np.arange(8.0).reshape(4, 2))
    writer.finish()
    store = stores.open_features(tmp_path / "f.zarr")
    applied = AppliedModel(None, "", store, {}, None, np.arange(4), None)
    found = Evaluation([EvaluatedModel("m", applied, np.zeros((4, 2)), {}, {})], ["a", "b"], np.eye(4, 2), 1)
    assert found.image(0) is None
    secret.rename(tmp_path / "pics" / "inside.jpg")
    (tmp_path / "pics" / "1").symlink_to(tmp_path / "pics" / "inside.jpg")
    assert found.image(1) is not None
