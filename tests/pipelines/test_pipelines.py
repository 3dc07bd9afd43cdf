"""Check that pipelines run completely, can be restarted, agree with the library, and raise clear errors."""

import ast
import csv
import importlib
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from datasets import inria
from datasets.inria import DESCRIPTORS, ingest_inria

import dmo
from dmo import KGHA, stores
from dmo.blocks import rows
from dmo.demo.digits import digits
from dmo.formats.files import DataError
from dmo.metrics import annotation_scores

FOLDER = Path(__file__).resolve().parents[2] / "pipelines"


@pytest.fixture(scope="module")
def pipeline():
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location("kgha_annotation", FOLDER / "kgha_annotation.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["kgha_annotation"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def finished(pipeline, tmp_path_factory):
    """Run the quick pipeline on the digits, and return the output folder."""
    work = tmp_path_factory.mktemp("pipeline") / "work"
    assert pipeline.main(["--data", "digits", "--work", str(work), "--quick", "--top", "3"]) == 0
    return work


def table(work):
    with open(work / "table.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_six_methods_on_every_view_and_on_all(pipeline, finished):
    rows = table(finished)
    methods = ["r-MLR", "r-KMLR", "L-HA", "KGHA-r", "KGHA-d", "KGHA"]
    assert [(row["views"], row["method"]) for row in rows] == [
        (views, method) for views in ("pixels", "gradients", "all") for method in methods
    ]
    as_json = json.loads((finished / "table.json").read_text())
    assert [float(row["f1"]) for row in rows] == [row["f1"] for row in as_json]
    f1 = {(row["views"], row["method"]): row["f1"] for row in as_json}
    assert f1["all", "KGHA"] > f1["all", "L-HA"]
    assert f1["all", "r-KMLR"] > f1["all", "r-MLR"]
    assert f1["all", "KGHA"] > max(f1["pixels", "KGHA"], f1["gradients", "KGHA"]) - 0.01


def test_a_row_equals_the_result_of_the_library(finished):
    data = digits()
    parts = []
    for split, most in (("train", 400), ("test", 100)):
        index = np.flatnonzero(data.split == split)
        kept = index[np.unique(np.linspace(0, len(index) - 1, most).astype(int))]
        parts.append(({view: data.views[view][kept] for view in ("pixels", "gradients")}, data.Y[kept]))
    (train, Y), (test, Y_test) = parts
    scores = KGHA({"pixels": "rbf", "gradients": "rbf"}).fit(train, Y).decision_function(test)
    expected = annotation_scores(Y_test, scores, 3)
    row = next(row for row in table(finished) if (row["views"], row["method"]) == ("all", "KGHA"))
    assert float(row["f1"]) == pytest.approx(expected.f1, abs=1e-9)
    kept_scores = stores.open_results(finished / "scores" / "all-KGHA.zarr")
    np.testing.assert_allclose(kept_scores[:], scores, atol=1e-5)
    assert kept_scores.columns == data.label_names


def test_finished_parts_are_not_computed_again(pipeline, finished, monkeypatch):
    before = table(finished)
    (finished / "results" / "all-KGHA.json").unlink()  # the pipeline must recompute this file from stored scores
    (finished / "results" / "pixels-KGHA.json").unlink()
    stores_before = (finished / "scores" / "pixels-KGHA.zarr" / "zarr.json").stat().st_mtime_ns
    monkeypatch.setattr(pipeline.Task, "estimator", lambda task: pytest.fail(f"{task.name} is fitted again"))
    command = ["--data", "digits", "--work", str(finished), "--quick", "--top", "3"]
    assert pipeline.main(command) == 0
    assert table(finished) == before
    assert (finished / "scores" / "pixels-KGHA.zarr" / "zarr.json").stat().st_mtime_ns == stores_before


def test_another_option_computes_again(pipeline, finished, tmp_path):
    command = ["--data", "digits", "--work", str(tmp_path), "--quick", "--views", "fourier", "--methods", "KGHA"]
    assert pipeline.main(command) == 0
    first = json.loads((tmp_path / "results" / "all-KGHA.json").read_text())
    assert pipeline.main([*command, "--components", "0.3"]) == 0
    second = json.loads((tmp_path / "results" / "all-KGHA.json").read_text())
    assert first["digest"] != second["digest"]
    assert first["f1"] > second["f1"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "nowhere"], "no store at"),
        (["--data", "digits", "--views", "hue"], "has no view 'hue'"),
        (["--data", "digits", "--methods", "SVM"], "no method 'SVM'"),
        (["--data", "digits", "--scheduler", "moon"], "cluster 'moon' is unknown"),
    ],
)
def test_a_mistake_raises_a_one_line_error(pipeline, tmp_path, capsys, arguments, sentence):
    assert pipeline.main([*arguments, "--work", str(tmp_path), "--quick"]) == 2
    said = [line for line in capsys.readouterr().err.split("\n") if line.startswith("kgha_annotation.py: ")]
    assert len(said) == 1
    assert sentence in said[0]


def test_corel5k_quick(pipeline, dmo_data, tmp_path):
    command = ["--data", str(dmo_data / "corel5k"), "--work", str(tmp_path), "--quick"]
    assert pipeline.main([*command, "--views", "dense_hue,harris_hue", "--methods", "r-KMLR,KGHA"]) == 0
    rows = table(tmp_path)
    assert len(rows) == 6
    assert all(0.02 < float(row["f1"]) < 0.5 for row in rows)


def test_the_papers_tables_choose_by_cross_validation(pipeline, tmp_path, monkeypatch):
    """Compare both tables with the published values of the data set, and check that the best candidate is refitted."""
    paper = sys.modules["kgha_paper"]
    monkeypatch.setattr(paper, "SHARES", (0.2, 0.5))
    few = {"balance": (1e-3, 1e-1), "ridge": (1e-2, 1e-1)}
    kgha, kernel, _ = paper.METHODS["KGHA"]
    regression, _, _ = paper.METHODS["r-KMLR"]
    monkeypatch.setitem(paper.METHODS, "KGHA", (kgha, kernel, few | {"n_components": (0.2, 0.5)}))
    monkeypatch.setitem(paper.METHODS, "r-KMLR", (regression, kernel, {"ridge": (1e-2, 1e-1)}))
    pipeline.ingest_digits(tmp_path / "corel5k")
    for printed in (paper.TABLE_3, paper.TABLE_4):
        monkeypatch.setitem(printed, "corel5k-quick", printed["corel5k"])
    command = ["--data", str(tmp_path / "corel5k"), "--work", str(tmp_path), "--quick", "--protocol", "paper"]
    assert pipeline.main([*command, "--methods", "r-KMLR,KGHA"]) == 0
    written = json.loads((tmp_path / "kgha_paper.json").read_text())
    rows = {(row["method"], row["p"], row["score"]): row for row in written["table"]}
    assert len(rows) == 9
    assert rows["KGHA", 0.2, "f1"]["paper"] == 28.2
    assert rows["KGHA", 0.5, "precision"]["paper"] == 33.7
    assert rows["r-KMLR", None, "recall"]["paper"] == 35.1
    store = stores.open_features(tmp_path / "corel5k")
    samples = pipeline.select(store, list(store.views)[:2], quick=True)
    setting = {key: float(value) for key, value in map(str.split, rows["KGHA", 0.5, "f1"]["chosen"].split(", "))}
    model = KGHA(center=False, intercept=False, n_components=0.5, prepare="none", **setting)
    model.fit(samples.train, samples.Y_train)
    expected = annotation_scores(samples.Y_test, model.decision_function(samples.test), 5)
    assert rows["KGHA", 0.5, "f1"]["ours"] == pytest.approx(100 * expected.f1, abs=1e-6)
    f1 = {key[:2]: row["ours"] for key, row in rows.items() if key[2] == "f1"}
    others, _ = written["claims"]
    assert others["claim"] == "KGHA at p = .5 L not below the other methods in F1"
    assert others["holds"] == (f1["KGHA", 0.5] >= f1["r-KMLR", None])


def test_one_search_is_shared_by_the_methods_of_a_family(pipeline):
    """KGHA-d and KGHA-r are special cases of KGHA, and each method selects the best candidate of its own grid."""
    paper = sys.modules["kgha_paper"]
    grid = paper.joint_grid(["KGHA", "KGHA-d", "KGHA-r"])
    assert grid["n_components"] == [0.2, 0.4, 0.5, 0.6, 0.8, 1.0]
    assert grid["balance"] == [1e-8, *paper.GRID]
    lines = [{"ridge": 1e-2, "balance": b, "n_components": p} for b in grid["balance"] for p in grid["n_components"]]
    table = [line | {"mean": i} for i, line in enumerate(lines)]
    assert paper.chosen(table, "KGHA", 0.5) == {"ridge": 1e-2, "balance": 1e-1, "n_components": 0.5, "mean": 32}
    assert paper.chosen(table, "KGHA-r", 0.5) == {"ridge": 1e-2, "balance": 1e-8, "n_components": 0.5, "mean": 2}
    assert paper.chosen(table, "KGHA-d", 1.0) == {"ridge": 1e-2, "balance": 1e-1, "n_components": 1.0, "mean": 35}


def test_figures_of_two_commits_are_compared_in_times_of_their_own_products(tmp_path, monkeypatch, capsys):
    """Times are compared in units of a matrix product: 6 s at 2 s per product are twice 1.5 s at 1 s per product."""
    monkeypatch.syspath_prepend(FOLDER / "benchmarks")
    import limits

    def written(name, slower, works):
        figures = [{"work": "broken", "rival": "", "threads": 1, "failed": "an error"}]
        for work, seconds in works.items():
            times = {"cpu": slower * seconds, "wall": 1.0}
            product = {"cpu": slower, "wall": 1.0}
            figures.append({"work": work, "rival": "x, 1 %", "threads": 1, "ours": times, "product": product})
        path = tmp_path / name
        load = {"load": 0.5} if name == "new" else {}  # old results contain no load
        path.write_text(json.dumps({"machine": {"commit": name} | load, "figures": figures}))
        return path

    limits.compare(written("old", 2.0, {"pass": 3.0, "gone": 1.0}), written("new", 1.0, {"pass": 1.5, "come": 1.0}))
    printed = capsys.readouterr().out
    assert "system load at the start: not recorded, 0.5" in printed
    assert "pass" in printed
    assert "6.00 s" in printed
    assert "1.50 s" in printed
    assert "2.00" in printed
    assert not any(word in printed for word in ("broken", "gone", "come"))


def test_a_task_is_measured_with_its_rival_and_its_limit(monkeypatch, capsys):
    monkeypatch.syspath_prepend(FOLDER / "benchmarks")
    import limits

    product = limits.Timed(1.0, 1.0)
    (figure,) = limits.kernel(0.01, product)
    row = limits.asdict(figure) | {"threads": 1, "product": limits.asdict(product)}
    assert row["limit"]["cpu"] == 400 * 400 * 512 / 1e9
    assert min(row[key]["wall"] for key in ("ours", "theirs")) > 0
    limits.show({"figures": [row, {"work": "broken", "threads": 1, "failed": "an error"}]})
    printed = capsys.readouterr().out
    assert "rbf_kernel" in printed
    assert "an error" in printed


def vecs_bytes(X, ending):
    """Encode rows without NumPy in the documented format: each row has its length d, followed by d values."""
    head, value = {"hvecs": "HH", "hvecs32": "II", "fvec": "If"}[ending]
    return b"".join(struct.pack(f"<{head}{len(row)}{value}", len(row), *row.tolist()) for row in X)


def test_the_files_of_inria_become_a_store(tmp_path):
    """Convert files of all 15 descriptors to a store, and check that wrong sizes and dimensions are rejected."""
    data, rng = {}, np.random.default_rng(0)
    for split, n in (("train", 5), ("test", 3)):
        for view, (stem, d) in DESCRIPTORS.items():
            ending = "fvec" if view == "gist" else "hvecs32" if d > 4000 else "hvecs"
            data[view, split] = rng.integers(0, 9, (n, d)).astype({"fvec": "f4", "hvecs32": "u4"}.get(ending, "u2"))
            (tmp_path / f"tiny_{split}_{stem}.{ending}").write_bytes(vecs_bytes(data[view, split], ending))
        data["annot", split] = rng.integers(0, 2, (n, 2)).astype("u2")
        (tmp_path / f"tiny_{split}_annot.hvecs").write_bytes(vecs_bytes(data["annot", split], "hvecs"))
    (tmp_path / "tiny_dictionary.txt").write_text("sun\nsea\n")
    store = ingest_inria(tmp_path, tmp_path / "tiny.zarr", "tiny")
    assert len(store.views) == 15
    assert store.label_names == ["sun", "sea"]
    assert store.split.tolist() == ["train"] * 5 + ["test"] * 3
    for view in DESCRIPTORS:
        np.testing.assert_array_equal(
            rows(store.views[view]), np.concatenate([data[view, s] for s in ("train", "test")])
        )
        assert store.view_info(view).histogram == (view != "gist")
    np.testing.assert_array_equal(store.labels, np.concatenate([data["annot", s] for s in ("train", "test")]))
    assert inria.main([str(tmp_path), str(tmp_path / "one.zarr"), "--name", "tiny", "--views", "lab"]) == 0
    assert list(stores.open_features(tmp_path / "one.zarr").views) == ["lab"]
    assert inria.main([str(tmp_path), str(tmp_path / "x.zarr"), "--name", "huge"]) == 2
    for call, sentence in (
        (lambda: ingest_inria(tmp_path, tmp_path / "x.zarr", "tiny", views=["hue"]), "hue"),
        (lambda: ingest_inria(tmp_path, tmp_path / "x.zarr", "huge"), "lacks huge_train_annot"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=sentence):
            call()
    (tmp_path / "tiny_test_Gist.fvec").write_bytes(vecs_bytes(np.zeros((3, 4), "f4"), "fvec"))
    with pytest.raises(DataError, match="rows of 4 values, expected 512 of Gist"):
        ingest_inria(tmp_path, tmp_path / "x.zarr", "tiny", views=["gist"])
    assert not (tmp_path / "x.zarr").exists()
    (tmp_path / "tiny_test_Gist.fvec").write_bytes(vecs_bytes(data["gist", "test"], "fvec"))
    for path in tmp_path.glob("tiny_*"):
        path.rename(tmp_path / path.name.replace("tiny", "iaprtc12"))
    with pytest.raises(DataError, match=r"iaprtc12 has \(5, 3, 2\) training and test images and keywords, expected"):
        ingest_inria(tmp_path, tmp_path / "iapr.zarr", "iaprtc12", views=["gist"])


@pytest.mark.slow
def test_the_study_of_corel5k_finds_more_in_all_views_than_in_any_and_writes_its_figures(dmo_data, tmp_path):
    words = ["--data", dmo_data / "corel5k", "--train", 300, "--work", tmp_path]
    done = subprocess.run(
        [sys.executable, FOLDER / "corel5k_study.py", *map(str, words)],
        env=os.environ | {"PYTHONPATH": str(FOLDER.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.rsplit(maxsplit=4) for line in done.stdout.split("\n\n")[0].splitlines()[1:]]
    average = {name: float(ap) for name, _, _, ap, _ in rows}
    whole, _ = average.pop("all views"), average.pop("KGHA")
    assert len(average) == 9
    assert whole > max(average.values()) + 2
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"corel5k-{name}.png" for name in ("views", "wrong", "space")
    }
    found = dict(re.findall(r"(KGHA|all views), \d+ dimensions: ([\d.]+)", done.stdout))
    assert float(found["KGHA"]) > float(found["all views"]) + 10


@pytest.mark.parametrize("folder", ["pipelines", "docs/tutorials", "cluster"])
def test_scripts_import_only_names_that_dmo_has(folder):
    """Benchmarks are run manually, so that imports of removed names could remain unnoticed."""
    for script in (FOLDER.parent / folder).rglob("*.py"):
        taken = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)]
        for node in taken:
            if (node.module or "").split(".")[0] == "dmo":
                module = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names):
                    submodule = hasattr(module, "__path__") and importlib.util.find_spec(f"{node.module}.{name}")
                    assert hasattr(module, name) or submodule, f"{script}: {node.module} has no {name}"


def test_template_runs_on_a_cluster_and_resumes(tmp_path, local_cluster):
    spec = importlib.util.spec_from_file_location("template", FOLDER / "template.py")
    template = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(template)
    X = np.random.default_rng(0).standard_normal((1500, 6))
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", X[:, :4] > 0.5)
    work = tmp_path / "work"
    arguments = ["--view", "x", str(tmp_path / "x.npy"), "--labels", str(tmp_path / "y.npy"), "--work", str(work)]
    arguments += ["--rank", "40", "--scheduler", local_cluster.scheduler_address]
    assert template.main(arguments) == 0
    model, views = dmo.load(work / "model.zarr"), stores.open_features(work / "features.zarr").select("test")[0]
    decided = model.predict(views)
    labels = stores.open_results(work / "labels.zarr")[:]
    assert [sorted(row[row >= 0].tolist()) for row in labels] == [np.flatnonzero(row).tolist() for row in decided]
    before = stores.open_results(work / "embedding.zarr")[:]
    (work / "embedding.zarr" / "embedding" / "c.1.0").unlink()
    assert stores.reopen(work / "embedding.zarr") == 1
    assert template.main(arguments) == 0
    assert np.array_equal(stores.open_results(work / "embedding.zarr")[:], before)
    assert template.main([*arguments, "--work", str(tmp_path / "none"), "--labels", "nothing.npy"]) == 2
