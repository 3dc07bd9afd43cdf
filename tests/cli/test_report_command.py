"""Check that the page of `dmo report` shows the values that the library computes."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from shell import figures_emptied, record, run
from sklearn.metrics import confusion_matrix, label_ranking_average_precision_score

from dmo import MultiViewRidge, load, stores
from dmo.blocks import rows
from dmo.datasets import Samples
from dmo.errors import amount
from dmo.labels.stratification import stratified_folds
from dmo.metrics import annotation_scores, regression_scores, top_label_sets
from dmo.report import write_report
from dmo.selection import sweep
from dmo.workflows.apply import AppliedModel
from dmo.workflows.evaluation import EvaluatedModel, Evaluation, sample_precision
from dmo.workflows.fitting import Training, learning_curve
from dmo.workflows.report_figures import _calibration, _space, learning_figures, sweep_figures
from dmo.workflows.report_page import annotation_measures, paired_differences, read_sweep, target_measures


def cells(page, caption):
    table = page[page.index(f"<h2>{caption}</h2>") :].split("</table>")[0]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr>")]
    return [[re.sub(r"<.*?>", "", cell) for cell in row] for row in rows if row]


@pytest.mark.slow
def test_the_page_says_what_evaluate_says(annotated, tmp_path):
    out = tmp_path / "page" / "report.html"
    with figures_emptied():
        found = record(
            "report", "--compare", annotated / "m.zarr", annotated / "r.zarr", annotated / "f.zarr", out, "--jec"
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
    images = ("precision-recall", "calibration", "thresholds", "cardinality", "difference-1", "co-occurrence")
    images = (*images, "labels-in-space")
    assert names == {"report.html", *(f"{name}.png" for name in images)}
    without_d3 = "".join(part for part in page.split("<script>") if not part.startswith("// https://d3js.org"))
    assert "http" not in without_d3.replace("http-equiv", "")
    assert {row[0]: row[1] for row in cells(page, "Views")} == {
        "rgb_v3h1": "5,184",
        "hsv_v3h1": "5,184",
        "moments": "9",
    }


def test_a_url_is_refused_before_the_work_where_a_file_is_to_be_written(annotated, tmp_path, monkeypatch):
    """A URL that is interpreted as a local path would create a folder named "s3:"."""
    monkeypatch.chdir(tmp_path)
    model, store, said = annotated / "m.zarr", annotated / "f.zarr", "is a URL, and files are written to local paths"
    assert said in run("report", model, store, "s3://b/r.html", code=2).stderr
    assert said in run("suggest", model, store, "s3://b/r.csv", code=2).stderr
    assert said in run("tune", "ridge", store, "t.zarr", "--ridge", "1,2", "--report", "s3://b/r.html", code=2).stderr
    with pytest.raises(stores.StoreError, match=said):
        write_report("s3://b/r.html", "A page")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def page(annotated, tmp_path_factory):
    """Create the report of KGHA with three labels per sample."""
    out = tmp_path_factory.mktemp("page") / "r.html"
    run("report", annotated / "m.zarr", out, "--top", 3)  # read the store of the fit
    return out.read_text()


@pytest.mark.slow
def test_plan_and_fact_stand_side_by_side(annotated, page):
    costs = stores.describe(annotated / "m.zarr")["provenance"]["parameters"]["costs"]
    row = cells(page, "Plan and fact")[0]
    assert row[0] == "KGHA (m)"
    assert float(row[1].replace(",", "")) == pytest.approx(costs["seconds"], rel=0.01)
    assert row[2] == amount(costs["plan"]["kernel_bytes"] + costs["plan"]["factor_bytes"])


def test_the_page_says_what_made_it(annotated, page):
    assert f"report {annotated}/m.zarr" in page
    parameters = dict(cells(page, "Parameters of KGHA (m)"))
    assert parameters["n_components"] == "0.5"
    assert parameters["intercept"] == "True"


def test_every_label_has_its_row(annotated, page):
    store = stores.open_features(annotated / "f.zarr")
    _, Y, _ = store.select("test")
    rows = {row[0]: row[1:] for row in cells(page, "Every label")}
    assert set(rows) == set(store.label_names)
    counts = [int(row[1]) for row in rows.values()]
    assert counts == sorted(counts, reverse=True)
    for name, count in zip(store.label_names, Y.sum(axis=0)):
        assert rows[name][1] == str(count)
        assert (rows[name][2] == "–") == (count == 0)


def test_samples_without_images_are_shown_as_words(tmp_path):
    run("ingest", "digits", tmp_path / "digits.zarr")
    digits = stores.open_features(tmp_path / "digits.zarr")
    given = {"projections": digits.views["projections"][:]}, digits.labels, digits.label_names
    Samples(*given, ids=digits.sample_ids, split=digits.split).write(str(tmp_path / "d.zarr"))
    run("fit", "ridge", tmp_path / "d.zarr", tmp_path / "r.zarr", "--kernel", "linear")
    with figures_emptied():
        told = run(
            "report", tmp_path / "r.zarr", tmp_path / "d.zarr", tmp_path / "r.html", "--top", 3, "--title", "a <b>"
        )
    assert "no images to show" in told.stderr
    page = (tmp_path / "r.html").read_text()
    assert "<h1>a &lt;b&gt;</h1>" in page
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page)[1])
    store = stores.open_features(tmp_path / "d.zarr")
    _, Y, index = store.select("test")
    assert data["ids"] == [store.sample_ids[i] for i in index]
    assert [[data["names"][j] for j in row] for row in data["has"]] == [
        [store.label_names[j] for j in np.flatnonzero(row)] for row in Y
    ]
    assert {len(row) for row in data["given"][0]["rows"]} == {3}
    assert data["images"] == {}


def test_a_page_of_classes_shows_which_is_taken_for_which(tmp_path):
    rng = np.random.default_rng(0)
    names = np.array(["cat", "dog", "owl"])[np.arange(90) % 3]
    table = (
        pd.DataFrame(rng.normal(size=(90, 3)) + 1.2 * np.eye(3)[np.arange(90) % 3]).add_prefix("f").assign(kind=names)
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    store, model = tmp_path / "t.zarr", tmp_path / "m.zarr"
    run("ingest", "files", store, "--view", f"f={tmp_path / 't.csv'}", "--label-columns", "kind", "--test-share", 0.5)
    run("fit", "ridge", store, model)
    run("annotate", model, store, tmp_path / "o.zarr", "--csv", tmp_path / "o.csv")
    run("report", model, store, tmp_path / "r.html")
    given = pd.read_csv(tmp_path / "o.csv")
    counts = confusion_matrix(names[given["sample"]], given["label 1"])
    np.fill_diagonal(counts, 0)
    a, b = np.unravel_index(counts.argmax(), counts.shape)
    said = f"Most frequent error: {np.unique(names)[a]} as {np.unique(names)[b]}, {counts[a, b]} samples."
    assert said in (tmp_path / "r.html").read_text()
    assert (tmp_path / "confusion.png").exists()
    page = (tmp_path / "r.html").read_text()
    rows = {row[0]: row for row in cells(page, "Classification")}
    found = record("evaluate", model, store)
    right = (names[given["sample"]] == given["label 1"]).mean()
    assert found["accuracy"] == pytest.approx(right)
    assert float(rows["MultiViewRidge (m)"][1]) == pytest.approx(100 * right, abs=0.06)
    often = pd.Series(names[given["sample"]]).value_counts(normalize=True).max()
    assert float(rows["the most frequent class for all"][1]) == pytest.approx(100 * often, abs=2)
    assert cells(page, "Most frequent errors")[0][2] == str(counts[a, b])
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page)[1])
    shown = {name: [float(cell) for cell in column] for name, column in data["features"]}
    assert shown == {
        name: pytest.approx(table[name][given["sample"]].tolist(), rel=1e-3) for name in ("f0", "f1", "f2")
    }


def test_report_shows_the_space_of_kgha_and_the_largest_errors(annotated, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 12)).round(2)
    T = np.c_[1000 + 100 * X[:, 0], 0.01 * X[:, 1] + 0.01 * (np.arange(60) == 50)]
    table = (
        pd.DataFrame(X).add_prefix("f").assign(kind=np.array(["fir", "oak"])[np.arange(60) % 2], a=T[:, 0], b=T[:, 1])
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    table.iloc[:40].to_csv(tmp_path / "old.csv", index=False)
    table.iloc[40:].to_csv(tmp_path / "new.csv", index=False)
    run("fit", "ridge", tmp_path / "old.csv", tmp_path / "m.zarr", "--label-columns", "a,b", "--kernel", "linear")
    run("report", tmp_path / "m.zarr", tmp_path / "new.csv", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    worst = cells(page, "Largest errors")[0]
    assert worst[:2] == ["10", "b"]
    assert float(worst[2]) == pytest.approx(T[50, 1], rel=1e-3)
    assert len(worst) == 6 + 8
    run("report", annotated / "m.zarr", annotated / "f.zarr", tmp_path / "k.html")
    data = json.loads(
        re.search(r'<script type="application/json">(.*?)</script>', (tmp_path / "k.html").read_text())[1]
    )
    views, _, _ = stores.open_features(annotated / "f.zarr").select("test")
    Z = load(str(annotated / "m.zarr")).transform({name: rows(view) for name, view in views.items()})[:, :2]
    first = np.array(data["planes"][0]["at"])
    assert data["planes"][0]["name"] == "space of KGHA (m)"
    assert np.abs(np.corrcoef(first.T, Z.T)[[0, 1], [2, 3]]) == pytest.approx([1, 1], abs=1e-3)


@pytest.mark.slow
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


def test_results_are_compared_with_the_model_that_made_them(annotated, tmp_path):
    run("annotate", annotated / "m.zarr", annotated / "f.zarr", tmp_path / "s.zarr", "--scores")
    run("annotate", annotated / "r.zarr", annotated / "f.zarr", tmp_path / "l.zarr", "--top", 3)
    models = [annotated / "r.zarr", tmp_path / "l.zarr", tmp_path / "s.zarr"]
    with figures_emptied():
        found = record("report", "--compare", *models, tmp_path / "r.html", "--top", 3)["methods"]
    for key in ("precision", "recall", "f1", "n_plus"):
        assert found["labels (l)"][key] == found["MultiViewRidge (r)"][key]
    f1 = record("evaluate", annotated / "m.zarr", annotated / "f.zarr", "--top", 3)["f1"]
    assert found["scores (s)"]["f1"] == pytest.approx(f1)
    page = (tmp_path / "r.html").read_text()
    rows = {(row[0], row[1]): row[2:] for row in cells(page, "Differences from MultiViewRidge (r)")}
    assert rows["labels (l)", "F1 %"] == ["+0", "+0", "+0", "–"]
    difference, low, high = map(float, rows["scores (s)", "F1 %"][:3])
    assert low <= difference <= high
    assert difference == pytest.approx(100 * (f1 - found["MultiViewRidge (r)"]["f1"]), rel=0.01)
    error = run("report", "--compare", annotated / "r.zarr", tmp_path / "l.zarr", "--top", 4, code=2)
    assert "holds 3 labels per sample" in error.stderr
    assert "one model (several with --compare)" in run("report", *models, code=2).stderr


@pytest.mark.parametrize("real", [False, True])
def test_intervals_are_those_of_resampled_measures(real):
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(60, 4)) if real else (rng.random((60, 4)) < 0.4).astype(float)
    first, second = Y + rng.normal(size=Y.shape), Y + 2 * rng.normal(size=Y.shape)
    Y[:3, 1] = np.nan

    def measured(index, S):
        if real:
            found = regression_scores(Y[index], S[index])
            return [found.r2, found.arrmse]
        found = annotation_scores(Y[index], S[index], 2)
        pairs = zip(Y[index], top_label_sets(S[index], 2))
        f1 = [2 * (p * (y == 1)).sum() / (p[~np.isnan(y)].sum() + np.nansum(y)) for y, p in pairs if (y == 1).any()]
        return [found.precision, found.recall, found.f1, np.mean(f1)]

    of = target_measures if real else lambda Y, S: annotation_measures(Y, S, 2)
    index = rng.integers(0, 60, (5, 60))
    taken = np.array([np.bincount(row, minlength=60) for row in index], float)
    for S in (first, second):
        np.testing.assert_allclose(of(Y, S)(taken), [measured(row, S) for row in index])
    found = paired_differences(of(Y, first), of(Y, second), 60)
    draws = [np.subtract(measured(row, second), measured(row, first)) for row in rng.integers(0, 60, (400, 60))]
    whole = np.subtract(measured(np.arange(60), second), measured(np.arange(60), first))
    np.testing.assert_allclose(found[:, 0], whole)
    np.testing.assert_allclose(
        found[:, 1:].T, np.percentile(draws, [2.5, 97.5], axis=0), atol=0.25 * np.ptp(draws, axis=0).max()
    )


def test_a_sweep_says_which_best_value_is_at_an_edge():
    rows = [
        {"ridge": r, "kernel": k, "mean": r if k == "rbf" else 0.0, "std": 0.1}
        for r in (0.1, 1.0, 0.3)
        for k in ("rbf", "linear")
    ]
    (both,) = sweep_figures(rows, "f1@5")
    assert both.caption.endswith("The best ridge, 1, is the largest tried.")
    assert both.alt == "Best f1@5: 1 with ridge 1, kernel rbf."
    assert [label.get_text() for label in both.figure.axes[0].get_yticklabels()] == ["0.1", "0.3", "1"]
    (one,) = sweep_figures([{"ridge": r, "mean": -((r - 2) ** 2), "std": 0.1} for r in (1, 2, 3)], "r2")
    assert "tried" not in one.caption
    assert sweep_figures(rows[:1], "r2") == []


def test_the_learning_curve_is_that_of_sweeps_over_parts(tmp_path):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(96, 4)), np.eye(2)[np.arange(96) % 2]
    X[:, 0] += 2 * Y[:, 0]
    training = Training(Samples({"x": X}, Y).write(tmp_path / "f.zarr"), {"x": X}, Y, None)
    found = sweep(MultiViewRidge("linear"), X, Y, {"ridge": [0.1, 1.0]}, 2, "lrap", 0)
    curve = learning_curve(found, training, 2)
    assert [n for n, _, _ in curve] == [6, 12, 24, 48]
    assert curve[-1][1:] == pytest.approx((found.best_score, max(found.table, key=lambda row: row["mean"])["std"]))
    half = np.flatnonzero(stratified_folds(Y, 8, 0) < 4)
    again = sweep(
        MultiViewRidge("linear", ridge=found.best_params["ridge"]), X[half], Y[half], {"center": [True]}, 2, "lrap", 0
    )
    assert curve[2][1] == pytest.approx(again.best_score)
    (figure,) = learning_figures(curve, "lrap")
    assert f"From 24 to 48 samples it changes by {curve[3][1] - curve[2][1]:+.3g}" in figure.caption
    Y[:90] = 0
    assert learning_curve(found, Training(training.store, {"x": X}, Y, None), 40) == []


def test_panels_with_few_points_are_omitted():
    rng = np.random.default_rng(0)
    Y = np.eye(3)[np.arange(60) % 3]
    scores, few = Y + 0.3 * rng.normal(size=Y.shape), Y[np.r_[1, 1:60]]
    model = EvaluatedModel(
        "m", AppliedModel(None, "", None, {}, np.arange(60), None), scores, {}, {}, np.zeros((60, 0))
    )
    for S, number in ((scores, 1), (few, 0)):
        each = replace(model, scores=S)
        object.__setattr__(each, "probabilities", np.clip(S, 0, 1))
        evidence = Evaluation([each], list("abc"), Y, 1)
        assert len(evidence.planes) == len(_calibration(evidence)) == len(_space(evidence)) == number


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
    applied = AppliedModel(None, "", store, {}, np.arange(4), None)
    found = Evaluation(
        [EvaluatedModel("m", applied, np.zeros((4, 2)), {}, {}, np.zeros((4, 0)))], ["a", "b"], np.eye(4, 2), 1
    )
    assert found.image(0) is None
    secret.rename(tmp_path / "pics" / "inside.jpg")
    (tmp_path / "pics" / "1").symlink_to(tmp_path / "pics" / "inside.jpg")
    assert found.image(1) is not None
