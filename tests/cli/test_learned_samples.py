"""Check that evaluation excludes training samples, for which random labels would score above chance level."""

import hashlib
import shutil
from dataclasses import replace

import numpy as np
import pytest
from shell import figures_emptied, record, run

import dmo
from dmo import JEC, MultiViewRidge, Nystrom, stores
from dmo.datasets import Samples
from dmo.decoders import Scores
from dmo.errors import UserError
from dmo.hashing import id_keys, stored_keys
from dmo.workflows.evaluation import judge, judge_together

N, N_TRAIN, NAMES = 400, 150, ["u", "v", "w"]
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 8)), (RNG.random((N, 3)) < 0.4).astype(np.uint8)
Y[~Y.any(axis=1), 0] = 1
SPLIT = np.array(["train"] * N_TRAIN + ["test"] * (N - N_TRAIN))
CHANCE = 0.08
"""Four standard deviations of the mean AUC of three random labels with 40 % positive samples, for 100 samples."""


def noise(ids=True, rows=slice(None)):
    """Generate samples whose labels are independent of their features."""
    names = np.array([f"s{row}" for row in range(N)])[rows].tolist() if ids else None
    return Samples({"x": X[rows]}, Y[rows], NAMES, ids=names, split=SPLIT[rows])


def answer(path, rows, ids=True):
    """Write a file of annotation answers that repeat the labels of the store."""
    labels = (";".join(np.array(NAMES)[row > 0]) for row in Y[rows])
    lines = [f"{'s' if ids else ''}{row},{said}" for row, said in zip(rows, labels, strict=True)]
    path.write_text("\n".join(["sample,labels", *lines]))
    return path


def updates(where, ids):
    """Fit a model to the training samples of a random store, then update it with 150 test samples and with all."""
    noise(ids).write(where / "s.zarr")
    run("fit", "ridge", where / "s.zarr", where / "m.zarr", "--ridge", 0.1)
    first, others = range(N_TRAIN, N_TRAIN + 150), range(N_TRAIN + 150, N)
    run("update", where / "m.zarr", where / "s.zarr", where / "m2.zarr", answer(where / "a.csv", first, ids))
    run("update", where / "m2.zarr", where / "s.zarr", where / "m3.zarr", answer(where / "b.csv", others, ids))
    return where


@pytest.fixture(scope="module")
def updated(tmp_path_factory):
    return updates(tmp_path_factory.mktemp("learned"), True)


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory):
    return updates(tmp_path_factory.mktemp("unnamed"), False)


@pytest.mark.parametrize("store", ["updated", "unnamed"])
def test_random_labels_score_at_chance_after_update(store, request):
    updated = request.getfixturevalue(store)
    told = run("evaluate", updated / "m2.zarr", updated / "s.zarr")
    assert "150 of 250 samples of split test are excluded" in told.stderr
    for model, count in (("m.zarr", 250), ("m2.zarr", 100)):
        found = record("evaluate", updated / model, updated / "s.zarr")
        assert [found[key] for key in ("n_samples", "excluded_samples", "learned_samples")] == [count, 250 - count, 0]
        assert abs(found["auc_macro"] - 0.5) < CHANCE
    every = record("evaluate", updated / "m3.zarr", updated / "s.zarr", "--cv", 3)
    assert (every["n_samples"], every["learned_samples"]) == (250, None)
    assert abs(every["auc_macro"] - 0.5) < CHANCE


def test_evaluate_keeps_learned_samples_of_a_requested_split(updated):
    given = "evaluate", updated / "m2.zarr", updated / "s.zarr", "--split", "test"
    found = record(*given)
    assert (found["n_samples"], found["learned_samples"], found["training_samples"]) == (250, 150, "some")
    assert found["auc_macro"] > 0.5 + CHANCE
    said = run(*given)
    assert (
        "was trained on 150 of these 250 samples of split test: the metrics do not hold for new samples" in said.stderr
    )
    assert "training samples among them" in said.stdout.split("\n")[0]


def test_evaluate_rejects_a_split_of_learned_samples(updated):
    for command, *more in (["evaluate"], ["report", updated / "page.html"]):
        said = run(command, updated / "m3.zarr", updated / "s.zarr", *more, code=2).stderr
        assert "m3.zarr was trained on all 250 samples of split test" in said
        assert "--split test to evaluate training samples, or dmo evaluate --cv 4" in said
    with pytest.raises(UserError, match="trained on all 250 samples"):
        judge(str(updated / "m3.zarr"), str(updated / "s.zarr"), None, None)
    assert judge(str(updated / "m3.zarr"), str(updated / "s.zarr"), "test", None).applied.n == 250


def test_report_compares_models_on_samples_that_none_learned(updated):
    page, models = updated / "page.html", [str(updated / name) for name in ("m.zarr", "m2.zarr")]
    with figures_emptied():
        found = record("report", "--compare", *models, updated / "s.zarr", page, "--jec")
    assert found["n_samples"] == 100
    measured = list(found["methods"].values())
    assert all(abs(each["auc_macro"] - 0.5) < CHANCE for each in measured[:2])
    assert "100 samples of split test without 150 that a model was trained on" in page.read_text()
    judged = judge_together(models, str(updated / "s.zarr"), None, None)
    np.testing.assert_array_equal(judged[0].applied.index, np.arange(N_TRAIN + 150, N))


def test_evaluate_excludes_learned_samples_from_annotations(updated):
    for how in ([], ["--scores"]):
        run("annotate", updated / "m2.zarr", updated / "s.zarr", updated / "a.zarr", *how, "--overwrite")
        found = record("evaluate", updated / "a.zarr", updated / "s.zarr")
        own, key = record("evaluate", updated / "m2.zarr", updated / "s.zarr"), "auc_macro" if how else "f1_micro"
        assert (found["n_samples"], found["excluded_samples"]) == (100, 150)
        assert found[key] == pytest.approx(own[key], abs=1e-6)
    shutil.move(updated / "m2.zarr", updated / "moved.zarr")
    assert "has no record of its training samples" in run("evaluate", updated / "a.zarr", updated / "s.zarr").stderr
    shutil.move(updated / "moved.zarr", updated / "m2.zarr")


def test_update_measures_test_samples_that_no_model_learned(tmp_path):
    noise().write(tmp_path / "s.zarr")
    run("fit", "ridge", tmp_path / "s.zarr", tmp_path / "m.zarr", "--split", "all")
    given = tmp_path / "s.zarr", tmp_path / "m2.zarr", answer(tmp_path / "a.csv", [0])
    found = record("update", tmp_path / "m.zarr", *given)
    assert (found["test"], found["n_samples"]) == ({}, N)
    found = record("update", tmp_path / "m.zarr", *given, "--split", "train", "--overwrite")
    assert (found["test"], found["n_samples"]) == ({}, N_TRAIN)
    assert record("evaluate", tmp_path / "m2.zarr", tmp_path / "s.zarr")["n_samples"] == N - N_TRAIN


@pytest.mark.parametrize("ids", [True, False])
def test_learned_samples_are_found_in_other_stores(ids, request, tmp_path):
    """Samples are identified by their ids, or by their row numbers if the views have the same contents."""
    updated = request.getfixturevalue("updated" if ids else "unnamed")
    turned = np.random.default_rng(1).permutation(N)
    stored = {
        "again": noise(ids),
        "with other labels": replace(noise(ids), labels=1 - Y),
        "with a further view": replace(noise(ids), views={"x": X, "y": X[:, :2]}),
        "permuted": noise(ids, turned),
        "other": replace(noise(False), views={"x": X + 1}),
    }
    for name, samples in stored.items():
        samples.write(tmp_path / f"{name}.zarr")
        found = record("evaluate", updated / "m2.zarr", tmp_path / f"{name}.zarr")
        known = ids if name == "permuted" else name != "other"
        assert found["excluded_samples"] == 150 * known, name


def test_grown_stores_do_not_hide_learned_samples(tmp_path):
    """The first store has no ids, and the extended store uses row numbers as ids."""
    noise(False).write(tmp_path / "s.zarr")
    run("fit", "ridge", tmp_path / "s.zarr", tmp_path / "m.zarr")
    np.savetxt(tmp_path / "new.csv", X[:2] + 1, delimiter=",", header=",".join("abcdefgh"), comments="")
    answers = answer(tmp_path / "a.csv", range(N_TRAIN, N_TRAIN + 50), False)
    answers.write_text(answers.read_text() + "\nnew.csv:0,u")
    given = tmp_path / "m.zarr", tmp_path / "s.zarr", tmp_path / "m2.zarr", answers, "--new", tmp_path / "new.csv"
    assert record("update", *given)["n_samples"] == N_TRAIN + 51
    for store in ("s.zarr", "m2-samples.zarr"):
        assert record("evaluate", tmp_path / "m2.zarr", tmp_path / store)["excluded_samples"] == 50


def test_samples_without_a_test_split_are_excluded(tmp_path):
    replace(noise(), split=np.where(SPLIT == "train", "fitted", "val")).write(tmp_path / "s.zarr")
    run("fit", "ridge", tmp_path / "s.zarr", tmp_path / "m.zarr", "--split", "fitted")
    assert record("evaluate", tmp_path / "m.zarr", tmp_path / "s.zarr")["n_samples"] == N - N_TRAIN
    run("tune", "ridge", tmp_path / "s.zarr", tmp_path / "t.zarr", "--ridge", "0.1", "--folds", 2)
    assert (
        "pass a store with other samples, --split all"
        in run("evaluate", tmp_path / "t.zarr", tmp_path / "s.zarr", code=2).stderr
    )


def test_models_fitted_in_python_record_rows_of_stores(tmp_path, caplog):
    store = noise().write(tmp_path / "s.zarr")
    views, labels, _ = store.select(None)
    path, features = str(tmp_path / "m.zarr"), str(tmp_path / "s.zarr")
    some = {name: dmo.blocks.Subset(view, np.arange(100, 300)) for name, view in store.views.items()}
    for model in (MultiViewRidge(decoder=Scores(label_sets=False)), JEC()):
        model.fit(some, Y[100:300]).save(path)
        dmo.load(path).save(path)
        found = judge(path, features, None, None)
        np.testing.assert_array_equal(found.applied.index, np.arange(300, N))
    model.fit(views, labels).save(path)
    with pytest.raises(UserError, match="trained on all 250 samples"):
        judge(path, features, None, None)
    caplog.clear()
    model.fit({"x": X}, Y).save(path)  # overwrites the record of learned samples
    found = judge(path, features, None, None)
    assert (found.applied.n, found.measures["learned_samples"], found.measures["excluded_samples"]) == (250, None, 0)
    assert f"{path} has no record of its training samples" in caplog.text


def test_partial_fit_records_further_samples(tmp_path):
    store = noise().write(tmp_path / "s.zarr")
    parts = [{"x": dmo.blocks.Subset(store.views["x"], rows)} for rows in (np.arange(150), np.arange(200, 210))]
    model = MultiViewRidge("linear", approximation=Nystrom(rank=4)).partial_fit(parts[0], Y[:150])
    model.partial_fit(parts[1], Y[200:210]).save(str(tmp_path / "m.zarr"))
    given = tmp_path / "m2.zarr", answer(tmp_path / "a.csv", range(220, 225))
    assert record("update", tmp_path / "m.zarr", tmp_path / "s.zarr", *given)["goes_on"]
    for name, count in (("m.zarr", 10), ("m2.zarr", 15)):
        assert record("evaluate", tmp_path / name, tmp_path / "s.zarr")["excluded_samples"] == count


def test_load_rejects_damaged_sample_keys(tmp_path):
    model = JEC().fit({"x": X}, Y)
    model._sample_keys = np.zeros((2, 2))
    model.save(str(tmp_path / "m.zarr"))
    with pytest.raises(stores.StoreError, match="keys of its training samples are damaged"):
        dmo.load(str(tmp_path / "m.zarr"))


def test_sample_keys_are_hashes_of_ids_or_numbers_of_rows(tmp_path):
    ids = ["a", "b", "ü"]
    wanted = [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") for name in ids]
    assert id_keys(ids).tolist() == wanted
    store = noise().write(tmp_path / "s.zarr")
    every = stored_keys(store.views)
    assert len(np.unique(every)) == N
    rows = np.array([7, 3, 3])
    np.testing.assert_array_equal(stored_keys({"x": dmo.blocks.Subset(store.views["x"], rows)}), every[rows])
    assert stored_keys({"x": X}) is None
