"""Test `dmo tune`, `dmo plan` and the low-rank engines of `dmo fit`."""

import json
import multiprocessing
import re
import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import scipy.sparse
import zarr
from distributed import LocalCluster
from shell import record, run
from sklearn.base import clone
from sklearn.datasets import load_wine
from typer.testing import CliRunner

import dmo
import dmo.workflows.plan
from dmo.cli.app import TUNED, app
from dmo.cluster import connect
from dmo.datasets import Samples
from dmo.decoders import Scores
from dmo.workflows.plan import plan_fit

RUN = CliRunner()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("tune") / "digits.zarr")
    assert RUN.invoke(app, ["ingest", "digits", path]).exit_code == 0
    return path


def test_tune_writes_the_best_model_and_a_report(store, tmp_path):
    model, report = str(tmp_path / "model.zarr"), tmp_path / "report.html"
    grid = ["--ridge", "0.1,1", "--balance", "0.01", "--n-components", "5,1.0", "--prior-power", "0"]
    low = ["--approximation", "nystrom", "--rank", "100", "--scoring", "f1@3", "--folds", "3"]
    done = RUN.invoke(app, ["tune", "kgha", store, model, *grid, *low, "--report", str(report), "--json"])
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert len(record["table"]) == 5  # the table contains four candidates and the default value
    assert record["best"]["mean"] == max(row["mean"] for row in record["table"])
    fitted = dmo.load(model)
    assert fitted.ridge == record["best"]["ridge"]
    assert fitted.n_components == record["best"]["n_components"]
    assert "All settings" in report.read_text()


def test_tune_ridge_prints_a_table(store, tmp_path):
    options = ["--ridge", "0.1", "--center", "true", "--prior-power", "0", "--views", "fourier", "--folds", "2"]
    options += ["--bandwidth", "0.5,1", "-v"]
    done = RUN.invoke(app, ["tune", "ridge", store, str(tmp_path / "m.zarr"), *options])
    assert done.exit_code == 0, done.stderr
    assert "best 3 of 3 settings" in done.stdout
    assert dmo.load(str(tmp_path / "m.zarr")).kernel["fourier"].scale in (0.5, 1.0)
    assert "best of 3 settings" in RUN.invoke(app, ["info", str(tmp_path / "m.zarr")]).stdout


def test_tune_without_options_searches_and_says_in_a_line_what_it_did(store, tmp_path):
    model = str(tmp_path / "m.zarr")
    done = RUN.invoke(app, ["tune", "ridge", store, model, "--views", "fourier", "--folds", "2", "--json"])
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["metric"] == "ranking"
    assert len({str(row.get("bandwidth")) + str(row.get("kernel")) for row in record["table"]}) > 1
    assert "tune: " in done.stderr
    assert record["best"]["mean"] == max(row["mean"] for row in record["table"])
    assert dmo.load(model).predict_proba({"fourier": np.zeros((1, 34))}).shape == (1, 14)


def test_tune_takes_real_targets(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    path, model = str(tmp_path / "set.zarr"), str(tmp_path / "m.zarr")
    Y = X @ rng.normal(size=(3, 2)) + 0.1 * rng.normal(size=(40, 2))
    Samples({"x": X}, Y, real=True).write(path)
    options = [
        "--ridge",
        "0.1,1",
        "--kernel",
        "linear",
        "--combine",
        "kernels",
        "--center",
        "true",
        "--scoring",
        "rmse",
    ]
    done = RUN.invoke(app, ["tune", "ridge", path, model, *options, "--json"])
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    # The search adds the default of the estimator, 0.01.
    assert [row["ridge"] for row in record["table"]] == [0.1, 1.0, 0.01]
    assert -0.3 < record["best"]["mean"] < 0
    assert dmo.load(model).predict({"x": X}).shape == (40, 2)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ridge", "a"], "--ridge a"),
        (["--center", "yes"], "--center yes: expected true or false"),
        (["--scoring", "f2@5"], "metric 'f2@5' is unknown"),
    ],
)
def test_tune_mistakes(store, tmp_path, options, sentence):
    done = RUN.invoke(app, ["tune", "kgha", store, str(tmp_path / "m.zarr"), *options])
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert not (tmp_path / "m.zarr").exists()


@pytest.mark.parametrize(
    ("name", "view", "kind"),
    [
        ("labelpropagation", ["--view", "pixels"], "graph"),
        ("homogeneityanalysis", ["--view", "pixels"], "table"),
        ("tagprop", [], "distances"),
        ("mlsi", ["--view", "pixels"], "exact"),
        ("mope", ["--view", "pixels"], "exact"),
        ("mesd", ["--view", "pixels"], "exact"),
        ("fasttag", [], "exact"),
        ("neighborvotes", [], "exact"),
    ],
)
def test_plans_of_fits_without_a_choice_of_engines_grow_with_samples(store, name, view, kind):
    few, many = (
        json.loads(RUN.invoke(app, ["plan", name, store, *view, "--samples", n, "--json"]).stdout)["plans"]["exact"]
        for n in ("1200", "120000")
    )
    assert few["engine"] == many["engine"] == kind
    assert many["kernel_bytes"] >= few["kernel_bytes"] or many["storage"] == "recomputed"
    assert many["model_bytes"] >= few["model_bytes"]


def test_nothing_is_said_of_fits_whose_work_the_labels_decide():
    views = {"x": np.random.default_rng(0).normal(size=(80, 4))}
    assert plan_fit(dmo.MESD("fda"), views, 5) is not None
    assert plan_fit(dmo.MESD("lfda"), views, 5) is None


@pytest.mark.parametrize("name", ["ridge", "kgha"])
def test_a_product_of_distances_is_planned_as_one_exact_kernel_and_fitted(store, tmp_path, name):
    found = json.loads(RUN.invoke(app, ["plan", name, store, "--kernel", "product", "--json"]).stdout)
    assert (set(found["plans"]), found["auto"]) == ({"exact"}, "exact")
    fit = ["fit", name, store, str(tmp_path / "m.zarr"), "--kernel", "product", "--weights", "alignment"]
    assert RUN.invoke(app, fit).exit_code == 0
    weights = dmo.load(str(tmp_path / "m.zarr")).view_weights_
    assert sum(weights.values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_an_annotator_by_votes_is_tuned_over_a_saved_base(store, tmp_path):
    base, votes = str(tmp_path / "base.zarr"), str(tmp_path / "votes.zarr")
    assert RUN.invoke(app, ["fit", "ridge", store, base, "--ridge", "0.1"]).exit_code == 0
    grid = ["--base", base, "--sharpness", "10,30", "--visual", "0", "--decoder", "f1@3", "--scoring", "f1@3"]
    done = RUN.invoke(app, ["tune", "neighborvotes", store, votes, *grid, "--json"])
    assert done.exit_code == 0, done.stderr
    assert [row["sharpness"] for row in json.loads(done.stdout)["table"]][:2] == [10.0, 30.0]
    assert json.loads(RUN.invoke(app, ["evaluate", votes, store, "--top", "3", "--json"]).stdout)["f1"] > 0.85


def planned_for():
    """Generate 2600 samples with two views and 12 labels."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(2600, 6))
    X = {view: np.tanh(hidden @ rng.normal(size=(6, 30))).astype(np.float32) for view in "ab"}
    return X, (hidden @ rng.normal(size=(6, 12)) > 2).astype(np.uint8)


def _peak(model, answers):
    """Measure the memory of a process after a warm-up fit, the planned peak and the peak reported by Linux."""
    X, Y = planned_for()
    clone(model).fit({view: rows[:1200] for view, rows in X.items()}, Y[:1200])
    held = psutil.Process().memory_info().rss
    dmo.workflows.plan.DRIVER = held
    planned = plan_fit(model, X, 12).peak_bytes
    Path("/proc/self/clear_refs").write_text("5")
    model.fit(X, Y)
    answers.send((held, planned, 1024 * int(re.search("VmHWM:(.*)kB", Path("/proc/self/status").read_text())[1])))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize(
    "model",
    [
        dmo.KGHA("rbf", ridge=0.1, approximation=dmo.Exact("memory")),
        dmo.KGHA("rbf", ridge=0.1, approximation=dmo.Nystrom(rank=1000)),
        dmo.MultiViewRidge("rbf", ridge=0.1, approximation=dmo.Meka(rank=100, clusters=8)),
    ],
    ids=["memory", "nystrom", "meka"],
)
def test_the_planned_peak_of_a_process_is_the_measured_one_within_a_seventh(model):
    processes = multiprocessing.get_context("forkserver")
    answer, answers = processes.Pipe(duplex=False)
    child = processes.Process(target=_peak, args=(model, answers))
    child.start()
    answers.close()
    held, planned, taken = answer.recv()
    child.join()
    assert 0.6 * dmo.workflows.plan.DRIVER < held < 1.1 * dmo.workflows.plan.DRIVER
    assert taken / 1.15 < planned < 1.15 * taken


def _most_memory():
    return 1024 * int(re.search("VmHWM:(.*)kB", Path("/proc/self/status").read_text())[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
def test_planned_peak_of_workers_with_wide_stored_views(tmp_path):
    rng = np.random.default_rng(0)
    Y = (rng.random((1000, 4)) < 0.3).astype(np.uint8)
    X = {}
    for view in "abcdefgh":
        rows = (Y @ rng.normal(size=(4, 6000)) + rng.normal(size=(1000, 6000))).astype(np.float32)
        X[view] = zarr.create_array(tmp_path / view, data=rows, chunks=(500, 6000))
    model = dmo.KGHA("rbf", n_components=2, approximation=dmo.Exact("resident"), decoder=Scores(label_sets=False))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, connect(cluster) as place:
        planned = plan_fit(model, X, 4).worker_bytes
        model.fit(X, Y)
        peak = max(place.client.run(_most_memory).values())
    assert peak / 1.25 < planned < 1.25 * peak


class Workers:
    """Stub of a cluster that provides only the number of worker threads."""

    def __init__(self, threads):
        self.threads = threads

    def nthreads(self):
        return dict.fromkeys(map(str, range(self.threads)), 1)


def test_a_plan_says_how_many_workers_are_of_use(monkeypatch):
    X = {"x": np.zeros((40_000, 5), np.float32)}
    told = {}
    for threads in (2, 64):
        monkeypatch.setattr("dmo.workflows.plan.current_client", lambda threads=threads: Workers(threads))
        for engine in (dmo.Exact("resident"), dmo.Nystrom(rank=100)):
            model = dmo.MultiViewRidge("rbf", approximation=engine)
            told[threads, type(engine).__name__] = plan_fit(model, X, 100).reason
    assert told[2, "Exact"] == told[2, "Nystrom"] == ""
    assert told[64, "Nystrom"] == "10 worker threads are of use"  # each task processes 4096 rows
    assert 8 < int(told[64, "Exact"].split()[0]) < 64


@pytest.mark.parametrize(
    ("n", "engine", "threads", "cure"),
    [
        (
            40_000,
            dmo.Exact("stored", path="k", block=64),
            2,
            r"has 195625 tiles of 64 rows, .*; use Exact\(block=(128)\)$",
        ),
        (
            100_000,
            dmo.Exact("resident"),
            12_000,
            r"on 12000 worker threads takes 1\d+ tasks, .*; connect to fewer (workers)$",
        ),
    ],
)
def test_a_plan_of_too_many_tasks_is_refused_with_a_cure(n, engine, threads, cure, monkeypatch):
    X = {"x": np.broadcast_to(np.float32(0), (n, 5))}
    monkeypatch.setattr("dmo.workflows.plan.current_client", lambda: Workers(threads))
    with pytest.raises(dmo.UserError, match=cure) as refused:
        plan_fit(dmo.MultiViewRidge("rbf", approximation=engine), X, 10)
    found = re.search(cure, str(refused.value))[1]
    if found.isdigit():
        engine = replace(engine, block=int(found))
    else:
        monkeypatch.setattr("dmo.workflows.plan.current_client", lambda: Workers(4000))
    assert plan_fit(dmo.MultiViewRidge("rbf", approximation=engine), X, 10).graph.tasks <= 100_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "approximation"),
    [
        ("KGHA", dmo.Exact()),
        ("MultiViewRidge", dmo.Exact()),
        ("KGHA", dmo.Exact("recomputed", block=1024)),
        ("MultiViewRidge", dmo.Exact("resident", block=1024)),
        ("KGHA", dmo.Nystrom(rank=300)),
        ("MultiViewRidge", dmo.Nystrom(rank=300, solver="cg")),
    ],
)
def test_planned_bytes_are_those_of_the_fit_within_a_factor_of_two(name, approximation):
    """Measure the memory of all arrays that the fit creates with tracemalloc."""
    X, Y = planned_for()
    model = getattr(dmo, name)("rbf", ridge=0.1, approximation=approximation, decoder=Scores(label_sets=False))
    plan = plan_fit(model, X, 12)
    planned = plan.peak_bytes - plan.held_bytes
    # Warm up, so that the memory of imports is not counted.
    model.fit({view: part[:200] for view, part in X.items()}, Y[:200])
    tracemalloc.start()
    try:
        model.fit(X, Y)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken / 2 < planned < 2 * taken


@pytest.mark.parametrize("sparse", [False, True])
def test_plan_counts_the_copy_of_rows_in_memory(sparse):
    X = np.random.default_rng(0).random((40, 50_000), np.float32)
    X = scipy.sparse.csr_array(X) if sparse else X
    model = dmo.KGHA("rbf", decoder=Scores(label_sets=False))
    (source,) = (
        model.fit(X, np.eye(40, 3, dtype=np.uint8) + np.eye(40, 3, -5, np.uint8)).expansions_["x"].sources.values()
    )
    copied = source.data.nbytes if sparse else source.nbytes
    plan = plan_fit(model, {"x": X}, 3)
    assert copied < plan.peak_bytes - plan.held_bytes < 1.1 * copied


@pytest.mark.parametrize(
    "model",
    [
        dmo.KGHA("rbf", approximation=dmo.Exact(), decoder=Scores(label_sets=False)),
        dmo.KGHA("linear", approximation=dmo.Exact(), decoder=Scores(label_sets=False)),
        dmo.MultiViewRidge("rbf", approximation=dmo.Exact(), decoder=Scores(label_sets=False)),
        dmo.MultiViewRidge("linear", approximation=dmo.Exact(), decoder=Scores(label_sets=False)),
        dmo.MultiViewRidge("rbf", approximation=dmo.Nystrom(rank=100), decoder=Scores(label_sets=False)),
        dmo.MultiViewRidge("rbf", approximation=dmo.Nystrom(rank=100, solver="cg"), decoder=Scores(label_sets=False)),
        dmo.LabelPropagation(),
        dmo.MESD("fda", decoder=Scores(label_sets=False)),
        dmo.MESD("fda", kernel="rbf", decoder=Scores(label_sets=False)),
        dmo.MLSI(decoder=Scores(label_sets=False)),
        dmo.JEC(),
    ],
)
def test_the_planned_bytes_of_a_model_are_those_that_it_saves(model, tmp_path):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(600, 6))
    X = {view: np.tanh(hidden @ rng.normal(size=(6, 30))).astype(np.float32) for view in "ab"}
    Y = (hidden @ rng.normal(size=(6, 12)) > 1).astype(np.uint8)
    if isinstance(model, (dmo.LabelPropagation, dmo.MESD, dmo.MLSI)):
        del X["b"]
    planned = plan_fit(model, X, 12).model_bytes
    model.fit(X if len(X) > 1 else X["a"], Y).save(str(tmp_path / "m.zarr"))
    saved = zarr.open_group(str(tmp_path / "m.zarr"), mode="r").members(max_depth=None)
    arrays = [array for _, array in saved if isinstance(array, zarr.Array)]
    assert planned == pytest.approx(sum(array.size * array.dtype.itemsize for array in arrays), rel=0.2, abs=800)


def test_planned_factors_are_the_matrices_that_the_method_solves_with():
    n, d, labels = 70, 9, 4
    X = np.zeros((n, d))
    linear = plan_fit(dmo.MultiViewRidge("linear", approximation=dmo.Exact()), {"x": X}, labels)
    assert (linear.kernel_bytes, linear.factor_bytes) == (X.nbytes, X.nbytes)
    for Z in (X, X.T):  # test more rows than columns, and more columns than rows
        moments = plan_fit(dmo.MLSI(), {"x": Z}, labels)
        assert (moments.kernel_bytes, moments.factor_bytes) == ((X.T @ X).nbytes, (X.T @ X).nbytes)
    assert plan_fit(dmo.LabelPropagation(), {"x": X}, labels).factor_bytes == 4 * np.zeros((n, labels)).nbytes
    meka = plan_fit(dmo.KGHA("rbf", approximation=dmo.Meka(rank=5, clusters=3)), {"x": X, "y": X}, labels)
    factors = np.zeros((n, 2 * 3 * 5 + labels))  # these factors belong to two views and the labels
    assert meka.kernel_bytes == (factors.T @ factors).nbytes


def test_a_plan_shows_only_what_it_says():
    shown = dict(plan_fit(dmo.HomogeneityAnalysis(), {"x": np.eye(6)}, 2).rows())
    assert set(shown) == {"engine", "where", "kernels", "factors", "model"}


def test_the_plan_gives_the_reason_by_which_the_fit_chooses(caplog):
    X = {"x": np.random.default_rng(0).normal(size=(60, 4))}
    model = dmo.MultiViewRidge("rbf", approximation=dmo.Exact(), decoder=Scores(label_sets=False))
    found = plan_fit(model, X, 2)
    with caplog.at_level("INFO", "dmo"):
        model.fit(X, np.eye(2)[np.arange(60) % 2])
    said = next(text for text in caplog.messages if text.startswith("kernels "))
    assert said.partition(", ")[0] == f"kernels {found.storage}: {found.reason.partition(', ')[0]}"
    assert found.reason.startswith("1 kernel of 60 x 60 with factors need ")


def test_plan_compares_engines_and_grows_with_samples(store):
    few = json.loads(RUN.invoke(app, ["plan", "kgha", store, "--json"]).stdout)
    many = json.loads(RUN.invoke(app, ["plan", "kgha", store, "--samples", "10000000", "--json"]).stdout)
    assert few["auto"].startswith("exact (4 kernels of 1200 x 1200 with factors need ")
    assert many["auto"].startswith("the better of Nystrom and MEKA at rank 1000 (4 kernels of ")
    assert set(few["plans"]) == {"exact", "nystrom", "meka"}
    exact, low = (many["plans"][name]["kernel_bytes"] for name in ("exact", "nystrom"))
    assert exact > 1000 * low or many["plans"]["exact"]["storage"] == "recomputed"


@pytest.mark.parametrize("engine", [["nystrom", "--rank", "80"], ["meka", "--clusters", "3", "--rank", "40"]])
def test_fit_low_rank_annotates_as_the_exact_engine_nearly_does(store, tmp_path, engine):
    model = str(tmp_path / "model.zarr")
    assert RUN.invoke(app, ["fit", "kgha", store, model, "--approximation", *engine]).exit_code == 0
    done = RUN.invoke(app, ["evaluate", model, store, "--top", "3", "--json"])
    assert json.loads(done.stdout)["f1"] > 0.75


@pytest.fixture(scope="module")
def bottles(tmp_path_factory):
    """Create a feature store of 90 wines with some missing values, as in the tutorial."""
    folder = tmp_path_factory.mktemp("bottles")
    wine = load_wine(as_frame=True)
    some = wine.data.iloc[::2, :5]
    rows = some.mask(np.random.default_rng(0).random(some.shape) < 0.05)
    rows.insert(0, "bottle", [f"w{i:03}" for i in range(len(rows))])
    rows.to_csv(folder / "features.csv", index=False)
    tags = [f"grower {g}|{'strong' if s else 'light'}" for g, s in zip(wine.target[::2], some["alcohol"] > 13)]
    pd.DataFrame({"bottle": rows["bottle"], "tags": tags}).to_csv(folder / "labels.csv", index=False)
    tables = [
        "--separator",
        "|",
        "--view",
        f"features={folder / 'features.csv'}",
        "--labels",
        folder / "labels.csv",
        "--id",
        "bottle",
    ]
    run("ingest", "files", folder / "wine.zarr", *tables, "--test-share", "0.25")
    return folder / "wine.zarr"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ridge", "kgha", "jec"])
def test_a_search_fills_gaps_as_it_is_told(name, bottles, tmp_path):
    found = record("tune", name, bottles, tmp_path / "m.zarr", "--impute", "median", "--folds", "2")
    assert "impute" not in found["best"]  # fixed values are not tuned
    assert dmo.load(str(tmp_path / "m.zarr"))._prepare.impute == "median"
    assert record("evaluate", tmp_path / "m.zarr", bottles)["auc_macro"] > 0.7  # chance level is 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", TUNED)
def test_every_estimator_that_predicts_is_tuned_on_few_rows(name, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(36, 8))
    Samples({"x": X}, (X[:, :3] > 0.2).astype(float)).write(str(tmp_path / "s.zarr"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows cause warnings about candidates
        folds = 4 if name in ("morp", "mlsi") else 2
        done = run("tune", name, tmp_path / "s.zarr", tmp_path / "m.zarr", "--folds", folds, "--json")
    found = json.loads(done.stdout)
    components = {row["n_components"] for row in found["table"] if "n_components" in row}
    if name in ("morp", "mlsi"):
        assert components == {8 if name == "mlsi" else 26}  # MLSI is limited by the 8 columns
        assert f"n_components is at most {max(components)}, the maximum for the samples" in done.stderr
    assert dmo.load(str(tmp_path / "m.zarr")).predict(X).shape == (36, 3)


def test_a_method_that_learns_nothing_of_labels_is_not_tuned(store, tmp_path):
    done = run("tune", "embedding", store, tmp_path / "m.zarr", "--method", "pca", "--view", "pixels", code=2)
    assert "does not learn from labels" in done.stderr


def test_a_search_chooses_among_fillings(bottles, tmp_path):
    found = record("tune", "jec", bottles, tmp_path / "m.zarr", "--impute", "mean,median", "--folds", "2")
    assert {row["prepare__impute"] for row in found["table"]} == {"mean", "median"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["neighborvotes", "fasttag"])
def test_annotators_on_a_base_say_how_gaps_are_filled_and_so_they_are(name, bottles, tmp_path):
    model, base = tmp_path / "m.zarr", tmp_path / "base.zarr"
    refused = run("fit", name, bottles, model, code=2)
    assert "pass --base MODEL, a model written by dmo fit ridge STORE MODEL --impute mean" in refused.stderr
    run("fit", "ridge", bottles, base, "--impute", "mean")
    run("fit", name, bottles, model, "--base", base)
    assert record("evaluate", model, bottles)["auc_macro"] > 0.8
