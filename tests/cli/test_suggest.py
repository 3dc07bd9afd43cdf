"""Samples worth a look: labels that were turned over are found, and annotation tools' files come and go."""

import csv
import json

import numpy as np
import pytest
from shell import record, run

from dmo import MultiViewRidge
from dmo.datasets.writing import Source, write
from dmo.errors import UserError
from dmo.workflows.suggest import read_answers

NAMES = ["sun", "sea", "fir"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store of which ten samples have no label and three a wrong one, and a model of the labeled ones."""
    where, rng = tmp_path_factory.mktemp("suggest"), np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    Y = (X > 0.3).astype(np.uint8)
    Y[np.flatnonzero(~Y.any(axis=1)), 0] = 1
    Y[:80][[7, 19, 33]] = 1 - Y[[7, 19, 33]]
    Y[80:], X[85] = 0, 40.0
    write(Source({"x": X}, Y, NAMES), str(where / "f.zarr"))
    MultiViewRidge("rbf", ridge=0.1, approximation="exact").fit({"x": X[:80]}, Y[:80]).save(str(where / "m.zarr"))
    return where


def test_wrong_labels_and_samples_unlike_the_others_are_found(folder):
    found = record("suggest", folder / "m.zarr", folder / "f.zarr", "--count", 6)["suggested"]
    by_kind = {
        why: [row["sample"] for row in found if row["why"] == why] for why in ("uncertain", "wrong", "different")
    }
    assert len({"7", "19", "33"} & set(by_kind["wrong"])) >= 2
    assert all(row["doubts"] for row in found if row["why"] == "wrong" and row["value"] > 0.5)
    assert {int(sample) for why in ("uncertain", "different") for sample in by_kind[why]} <= set(range(80, 90))
    values = [row["value"] for row in found if row["why"] == "different"]
    assert values == sorted(values, reverse=True)


def test_files_of_annotation_tools_come_and_go(folder):
    tasks, table = folder / "tasks.json", folder / "look.csv"
    command = ["suggest", folder / "m.zarr", folder / "f.zarr"]
    run(*command, tasks, "--kind", "different", "--count", 2, "--prefix", "/pics/")
    run(*command, table, "--kind", "wrong", "--count", 3)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["why"] for row in rows] == ["wrong"] * 3
    assert rows[0]["filepath"] == rows[0]["sample"]
    made = json.loads(tasks.read_text())
    assert made[0]["data"]["image"] == "/pics/" + made[0]["data"]["sample"]
    skipped = {"was_cancelled": True, "result": []}
    made[0]["annotations"] = [{"result": made[0]["predictions"][0]["result"]}, skipped]
    tasks.write_text(json.dumps(made))
    chosen = made[0]["predictions"][0]["result"][0]["value"]["choices"]
    assert read_answers(tasks) == {made[0]["data"]["sample"]: chosen}
    with pytest.raises(UserError, match="is no export of Label Studio"):
        read_answers(table)
    assert "known are uncertain, wrong, different" in run(*command, "--kind", "odd", code=2).stderr
