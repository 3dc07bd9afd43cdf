"""Check that the benchmark of annotators can run in parts, reads each test set once, and agrees with the estimators."""

import csv
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from dmo import JEC, MultiViewRidge, NeighborVotes, TagProp, TwoPassKNN, stores
from dmo.metrics import annotation_scores

FILE = Path(__file__).resolve().parents[2] / "pipelines" / "annotation_benchmark.py"
COMMAND = ["--sets", "digits", "--rows", "150"]


@pytest.fixture(scope="module")
def pipeline():
    spec = importlib.util.spec_from_file_location("annotation_benchmark", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["annotation_benchmark"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def finished(pipeline, tmp_path_factory):
    """Run the benchmark in two parts, and return the output folder."""
    work = tmp_path_factory.mktemp("benchmark")
    for annotators in ("jec,2pknn,tagprop-sigma", "votes,kgha-0.5,ridge-tagprop,space"):
        assert pipeline.main([*COMMAND, "--work", str(work), "--annotators", annotators]) == 0
    return work


def table(work):
    with open(work / "table.csv", newline="") as file:
        return {(row["annotator"], row["decoder"]): row for row in csv.DictReader(file)}


@pytest.mark.slow
def test_rows_are_what_the_estimators_give(finished):
    store = stores.open_features(finished / "digits.zarr")
    old, Y, _ = store.select("train")
    kept = np.sort(np.random.default_rng(0).choice(len(Y), 150, replace=False))
    old, Y = {view: source[:][kept] for view, source in old.items()}, Y[kept]
    new, truth, _ = store.select("test")
    kinds = {view: "chi2" if store.view_info(view).histogram else "l2" for view in old}
    found = table(finished)
    settings = {key: dict(zip(*[iter(row["setting"].split())] * 2)) for key, row in found.items()}

    def made(annotator, decoder):
        setting = settings[annotator, decoder]
        if annotator == "jec":
            return JEC(kinds, n_neighbors=int(setting["k"]))
        if annotator == "tagprop-sigma":
            return TagProp(kinds, n_neighbors=int(setting["k"]))
        if annotator == "votes":
            kernel = {"kernel": "product", "weights": "tagprop", "distances": kinds, "ridge": float(setting["ridge"])}
            votes = {"sharpness": float(setting["omega"]), "visual": float(setting["nu"])}
            return NeighborVotes(MultiViewRidge(**kernel, intercept=True, approximation="exact"), **votes)
        weights, *rest = found[annotator, decoder]["setting"].split()
        setting = dict(zip(rest[::2], rest[1::2]))
        return TwoPassKNN(kinds, weights=weights, n_neighbors=int(setting["k"]), sharpness=float(setting["omega"]))

    for annotator, decoder, given in [
        ("jec", "scores", None),
        ("tagprop-sigma", "plug-in", "f1@3"),
        ("2pknn", "scores", None),
        ("2pknn", "probabilities", "probabilities"),
        ("votes", "plug-in", "f1@3"),
    ]:
        model = made(annotator, decoder).set_params(decoder=given).fit(old, Y)
        f1 = annotation_scores(truth, model.decision_function(new), 3).f1
        assert float(found[annotator, decoder]["f1"]) == pytest.approx(f1, abs=0.01), (annotator, decoder)


@pytest.mark.slow
def test_every_test_is_read_once_and_finished_parts_are_not_done_again(pipeline, finished, monkeypatch):
    lines = (finished / "log.txt").read_text().splitlines()
    assert len(lines) == len({line.partition("test of")[2] for line in lines}) == 6 * len(pipeline.DECODERS)
    assert {(row["set"], row["n"]) for row in table(finished).values()} == {("digits", "150")}
    text = (finished / "table.md").read_text()
    assert text.count("| votes |") == 1
    assert "| KGHA, " in text
    for picture in ("benchmark.png", "space.png"):
        assert (finished / picture).stat().st_size > 10_000
    ridge, kgha = (float(table(finished)[name, "plug-in"]["f1"]) for name in ("ridge-tagprop", "kgha-0.5"))
    row = next(line for line in text.split("### KGHA against")[1].splitlines() if line.startswith("| kgha-0.5"))
    assert f"{100 * kgha:.1f} ({100 * (kgha - ridge):+.1f})" in row
    monkeypatch.setattr(pipeline, "prepared", lambda *_: pytest.fail("finished work is repeated"))
    assert pipeline.main([*COMMAND, "--work", str(finished), "--annotators", "jec,votes,space"]) == 0
    assert (finished / "table.md").read_text() == text


def test_unknown_names_are_refused(pipeline, tmp_path, capsys):
    assert pipeline.main(["--work", str(tmp_path), "--sets", "digits", "--annotators", "jce"]) == 2
    assert "no annotator 'jce'; known: jec" in capsys.readouterr().err
