"""Run small versions of the MOPE experiments on generated stories, and check tables, claims and figures."""

import csv
import importlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from made_files import story
from scipy.sparse import csr_array
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis


@pytest.fixture
def pipeline(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "pipelines"))
    return importlib.import_module


@pytest.fixture
def data(tmp_path):
    """Write 260 stories with one to three of 11 topics, which determine the words of a story."""
    rng = np.random.default_rng(0)
    words = [f"{a}{b}word" for a in "abcdefgh" for b in "abcdefghijklm"]
    stories = []
    for number in range(1, 261):
        topics = rng.choice(11, rng.integers(1, 4), replace=False)
        own = [words[8 * t + i] for t in topics for i in rng.integers(0, 8, 6)]
        noise = rng.choice(words, 12)
        stories.append(story(number, [f"topic{t}" for t in topics], " ".join([*own, *noise])))
    folder = tmp_path / "data" / "reuters21578"
    folder.mkdir(parents=True)
    text = "".join(stories).encode("latin-1")
    with tarfile.open(folder / "reuters21578.tar.xz", "w:xz") as archive:
        member = tarfile.TarInfo("reut2-000.sgm")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return tmp_path / "data"


def test_the_classifier_is_scikit_learns_discriminant_per_label(pipeline):
    protocol = pipeline("mope_protocol")
    rng = np.random.default_rng(1)
    Z, Y = rng.standard_normal((90, 6)) * [3, 2, 1, 1, 0.5, 0.1], (rng.random((90, 3)) < [0.2, 0.5, 0.7]).astype(float)
    Y[:, 0] = Z[:, 0] + Z[:, 3] > 2
    judge = protocol.Discriminants(Z[:60], Y[:60])
    for shrinkage in (1e-3, 0.3):
        oracles = [LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(Z[:60], y) for y in Y[:60].T]
        wanted = np.column_stack([oracle.decision_function(Z[60:]) for oracle in oracles])
        np.testing.assert_allclose(judge.scores(Z[60:], shrinkage), wanted, rtol=1e-8, atol=1e-8)
    constant = protocol.Discriminants(Z, np.column_stack([np.zeros(90), np.ones(90)])).scores(Z, 0.1)
    assert (constant < 0).all(axis=0).tolist() == [True, False]
    assert (constant > 0).all(axis=0).tolist() == [False, True]


@pytest.mark.slow
def test_labels_that_are_hidden_do_not_count(pipeline):
    text, protocol = pipeline("mope_text"), pipeline("mope_protocol")
    rng = np.random.default_rng(2)
    X, Y = np.abs(rng.standard_normal((240, 12))), (rng.random((80, 3)) < 0.5).astype(float)
    Y[:, 2] = X[:80, 0] > 0.7
    Y[~Y.any(axis=1), 0] = 1
    parts = (X[:80], X[80:160], X[160:])
    known = protocol.Thirds(parts, (Y, Y, Y), np.ones(80, bool), np.ones(12)).hide(0.6, 0).known
    assert known.sum() == 48
    other = np.where(known[:, None], Y, 1 - Y)
    methods = [m for m in [*text.mixtures(), *text.rivals()] if m.name in ("SELF", "SSMOPE", "mix CCA + PCA", "CCA")]
    assert len(methods) == 4
    for method in methods:
        scores = []
        for labels in (Y, other):
            found = protocol.run_method(method, protocol.Thirds(parts, (labels, Y, Y), known, np.ones(12)), 8)
            scores.append((found["f1_macro"], found["validation"], found["components"], found["chosen"]))
        assert scores[0] == scores[1], method.name


@pytest.mark.slow
def test_settings_that_share_proximities_are_as_if_fitted_by_themselves(pipeline):
    text, protocol = pipeline("mope_text"), pipeline("mope_protocol")
    rng = np.random.default_rng(3)
    X, Y = np.abs(rng.standard_normal((300, 12))), (rng.random((100, 3)) < 0.5).astype(float)
    parts, known = (X[:100], X[100:200], X[200:]), np.arange(100) % 4 > 0
    data = protocol.Thirds(parts, (Y, Y, Y), known, np.ones(12))
    method = next(
        m for m in text.proximities(["classes"], ["priority"], text.SIMILARITIES) if m.name == "MOPE-3 priority"
    )
    found = list(protocol._projections(method, data, 5))
    assert len(found) == len(method.settings) * (1 + len(method.ridges)) >= 8
    assert len({str(sorted(setting.items(), key=str)) for setting, _, _ in found}) == len(found)
    for setting, Z, _ in found:
        alone = method.build(5, setting).fit(X[:100][known], Y[known])
        for rows, part in zip(parts, Z):
            np.testing.assert_allclose(part, alone.transform(rows), atol=1e-7)


def test_a_method_is_noted_below_all_that_its_claims_name(pipeline):
    text = pipeline("mope_text")
    table = [{"method": name, "f1_macro": f1} for name, f1 in (("a", 0.5), ("b", 0.6), ("c", 0.5), ("d", 0.7))]
    claims = [
        text.above(table, "a", ["b", "c"]),
        text.above(table, "a", ["d"], ", here"),
        text.above(table, "b", ["a"]),
    ]
    assert [claim["holds"] for claim in claims] == [False, False, True]
    assert [row["note"] for row in text.noted(table, claims)] == ["below b, d", "", "", ""]


@pytest.mark.slow
def test_a_quick_run_writes_tables_claims_and_figures(pipeline, data, tmp_path, capsys):
    out = tmp_path / "out"
    assert pipeline("mope_text").main(["--work", str(out), "--data", str(data), "--quick"]) == 0
    printed = capsys.readouterr().out
    for name, families, said in (
        ("mope_text_table3", {"unsupervised", "supervised"}, 6),
        ("mope_text_table4", {"unsupervised", "supervised", "semi-supervised", "propagation"}, 2),
    ):
        with open(out / f"{name}.csv", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        written = json.loads((out / f"{name}.json").read_text(encoding="utf-8"))
        assert {line["family"] for line in lines} == families
        assert all(0 < float(line["f1_macro"]) <= 1 and float(line["seconds"]) > 0 for line in lines)
        assert written["facts"]["documents"] == 240
        assert len(written["facts"]["topics"]) == 10
        assert len(written["claims"]) == said
        assert len({(row.get("labels"), row["method"]) for row in written["table"]}) == len(lines)
        for claim in written["claims"]:
            winner, _, losers = claim["claim"].partition(" at or above ")
            share = losers.partition("%")[0][-2:] if "%" in losers else ""
            rows = [row for row in written["table"] if not share or row["labels"] == int(share) / 100]
            reached = {row["method"]: row["f1_macro"] for row in rows}
            assert claim["not_above_at"] == [name for name in claim["compared"] if reached[name] > reached[winner]]
            assert claim["holds"] == (not claim["not_above_at"])
            if not claim["holds"]:
                notes = [row["note"] for row in rows if row["method"] == winner]
                assert all(name in notes[0] for name in claim["not_above_at"])
    assert printed.count("holds: ") + printed.count("DOES NOT HOLD: ") == 8
    for image in ("bars", "labels", "combined"):
        assert (out / f"mope_text_{image}.png").stat().st_size > 5000


def test_the_papers_features_are_distances_of_stems(pipeline, data, tmp_path):
    text, protocol = pipeline("mope_text"), pipeline("mope_protocol")
    X, Y, _ = text.load(data, tmp_path, "porter")
    thirds = protocol.Thirds.of(X, Y, 0, 30, distances=True)
    parts = [np.sort(np.random.default_rng(0).permutation(len(Y))[start::3]) for start in range(3)]
    D = np.linalg.norm(X[parts[1]].toarray()[:, None] - X[parts[0]].toarray()[None], axis=2)
    scale = thirds.X[1].max() / D.max()  # the features are scaled distances
    gaps = [np.abs(thirds.X[1][:, [j]] - scale * D).max(axis=0).min() for j in range(30)]
    np.testing.assert_allclose(gaps, 0, atol=1e-3 * scale)


def test_a_label_is_given_above_the_threshold_of_the_best_f1(pipeline):
    """For scores 0.9, 0.8, 0.3, 0.2 and labels 1, 0, 1, 0, the threshold 0.3 has the largest F1 of 0.8."""
    scores = np.array([[0.9, 0.5], [0.8, 0.1], [0.3, 0.7], [0.2, 0.9]])
    found = pipeline("mope_protocol")._thresholds(scores, np.array([[1, 0], [0, 0], [1, 0], [0, 0]]))
    assert found.tolist() == [0.3, np.inf]


@pytest.mark.slow
def test_the_papers_second_experiment(pipeline, data, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline("mope_text"), "SHARES", (0.4,))
    command = ["--work", str(tmp_path), "--data", str(data), "--quick", "--protocol", "paper", "--experiments", "2"]
    assert pipeline("mope_text").main(command) == 0
    written = json.loads((tmp_path / "mope_text_table4.json").read_text(encoding="utf-8"))
    assert {"ML-LGC", "ML-GRF", "SMSE1", "SMSE2"} <= {row["method"] for row in written["table"]}
    assert written["facts"]["protocol"] == "paper"
    assert not (tmp_path / "mope_text_table3.json").exists()


def test_the_printed_formulas_and_the_former_ones(pipeline, data, tmp_path):
    """Compare formulas with values computed by hand for the label sets {a, b}, {a}, {b} and the points 0, 1, 3."""
    formulas, protocol = pipeline("mope_formulas"), pipeline("mope_protocol")
    X, Y = np.array([[0.0], [1.0], [3.0]]), np.array([[1.0, 1], [1, 0], [0, 1]])
    parts = (np.arange(3),) * 3
    split = formulas.Split(protocol.Thirds((X, X, X), (Y, Y, Y), np.ones(3, bool), np.ones(1), parts), csr_array(X))
    off = ~np.eye(3, dtype=bool)
    np.testing.assert_allclose(formulas.weighted_sizes(split)[off], [2 / 3, 2 / 3, 2 / 3, 0, 2 / 3, 0])
    # Inverse distances divided by the row sum.
    share = np.array([[0, 3 / 4, 1 / 4], [2 / 3, 0, 1 / 3], [2 / 5, 3 / 5, 0]])
    np.testing.assert_allclose(formulas.row_normalized(split), (share + share.T) / 2)
    distances = np.array([[0, 1, 1], [1, 0, 2**0.5], [1, 2**0.5, 0]])
    np.testing.assert_allclose(formulas.reciprocal_distance(split), 1 / (1 + distances))

    command = [
        "--work",
        str(tmp_path),
        "--data",
        str(data),
        "--quick",
        "--protocol",
        "paper",
        "--experiments",
        "formulas",
    ]
    assert pipeline("mope_text").main(command) == 0
    written = json.loads((tmp_path / "mope_text_formulas.json").read_text(encoding="utf-8"))
    assert [row["formula"] for row in written["table"]] == [*formulas.FORMULAS, formulas.RELATIONS]
    for row in written["table"]:
        assert row["before"] > 0
        assert row["after - before"] == pytest.approx(row["after"] - row["before"])


def test_bad_inputs_are_one_sentence(pipeline, data, tmp_path, capsys):
    module = pipeline("mope_text")
    cases = [
        (["--data", str(tmp_path / "absent")], "absent"),
        (["--seeds", "0"], "at least 1, got 0"),
        (["--landmarks", "30", "--components", "30"], "30 components of 30 relation features"),
    ]
    for arguments, said in cases:
        given = arguments if "--data" in arguments else ["--data", str(data), *arguments]
        assert module.main(["--work", str(tmp_path / "out"), *given]) == 2
        message = capsys.readouterr().err.strip().splitlines()[-1]
        assert message.startswith("mope_text.py: ")
        assert said in message
