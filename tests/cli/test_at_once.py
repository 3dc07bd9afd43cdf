"""Test concurrent commands with the same output, models that are replaced during a command, and moved stores."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from scenes import draw_images
from shell import at_once, run

from dmo import stores
from dmo.features.extraction import Extractor
from dmo.persistence import load
from dmo.workflows import images
from dmo.workflows.evaluation import EvaluatedModel, Evaluation
from dmo.workflows.fitting import attached_recipe
from dmo.workflows.rows import open_applied


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """Create 16 images `pics`, their feature store `f.zarr`, and models `a.zarr` and `b.zarr` of different labels."""
    folder = tmp_path_factory.mktemp("at-once")
    table = draw_images(folder / "pics", 16)
    run("extract", folder / "pics", folder / "f.zarr", "--set", "moments", "--labels", table)
    store = stores.open_features(folder / "f.zarr")
    for name, Y in (("a", store.labels), ("b", store.labels[:, ::-1])):
        writer = stores.create_features(
            folder / f"{name}-f.zarr",
            16,
            {"moments": stores.ViewSpec(9, "float32", histogram=False)},
            labels=Y,
            label_names=store.label_names,
            split=store.split.tolist(),
            attributes=store.attributes,
            provenance=stores.Provenance(parameters=store.provenance["parameters"]),
        )
        writer.write("moments", 0, store.views["moments"][:])
        writer.finish()
        Extractor.load(str(folder / "f.zarr")).save(str(folder / f"{name}-f.zarr"))
        run("fit", "ridge", folder / f"{name}-f.zarr", folder / f"{name}.zarr", "--kernel", "linear")
    return folder


@pytest.mark.slow
def test_two_extracts_onto_one_store_leave_one_of_them_whole(work, tmp_path):
    """One command extracts features, and the other command fails or reports that the store is already complete."""
    command = ["extract", work / "pics", "--set", "moments", "--block", 4]
    seconds = {"same": [], "other": ["--set", "moments,wavelets"], "over": ["--overwrite"]}
    commands = [[*command, tmp_path / f"{name}.zarr", *more] for name in seconds for more in ([], seconds[name])]
    ended = at_once(tmp_path, *commands)
    for name, first, second in zip(seconds, ended[::2], ended[1::2]):
        path = tmp_path / f"{name}.zarr"
        assert 0 in (first[0], second[0]), (first, second)
        for code, said in (first, second):
            assert code in (0, 2)
            if code:
                last = said.splitlines()[-1]
                assert re.search("is being written by|exists; pass --overwrite|was (begun|made) with", last), last
        assert stores.verify(path) == []
        store = stores.open_features(path)
        np.testing.assert_array_equal(
            store.views["moments"][:], stores.open_features(work / "f.zarr").views["moments"][:]
        )
        assert store.provenance["parameters"]["recipe"]["views"] == list(store.views)


@pytest.mark.slow
def test_two_reports_on_one_page_leave_one_of_them_whole(work, tmp_path):
    page = tmp_path / "out" / "page.html"
    commands = [["report", work / f"{name}.zarr", work / "f.zarr", page, "--title", f"page {name}"] for name in "ab"]
    assert [code for code, _ in at_once(tmp_path, *commands)] == [0, 0]
    text = page.read_text(encoding="utf-8")
    assert text.rstrip().endswith("</html>")
    assert sorted([text.count("<h1>page a</h1>"), text.count("<h1>page b</h1>")]) == [0, 1]
    pictures = [path for path in page.parent.iterdir() if path != page]
    for path in pictures:
        assert path.suffix == ".png"
        Image.open(path).verify()
    assert pictures


@pytest.mark.slow
def test_annotations_while_the_model_is_replaced_are_each_of_one_model(work, tmp_path):
    expected = {}
    for name in "ab":
        run("annotate", work / f"{name}.zarr", work / "f.zarr", tmp_path / f"{name}.zarr", "--split", "all", "--top", 2)
        run("annotate", work / f"{name}.zarr", work / "pics", tmp_path / f"{name}.csv", "--top", 2)
        contents = stores.model_contents(work / f"{name}.zarr")
        expected[contents] = (stores.open_results(tmp_path / f"{name}.zarr")[:], (tmp_path / f"{name}.csv").read_text())
    (rows, text), (others, other_text) = expected.values()
    assert (rows != others).any()
    assert text != other_text
    out = tmp_path / "out"
    out.mkdir()
    models = {name: load(str(work / f"{name}.zarr")) for name in "ab"}
    known = stores.describe(work / "a.zarr")["provenance"]
    origin = stores.Provenance(known["parents"], known["parameters"], known["seed"])
    recipe = attached_recipe(stores.open_features(work / "f.zarr"))

    def replace(name):
        models[name].save(str(out / "m.zarr"), origin, attached=recipe)

    replace("a")
    what = [(work / "f.zarr", out / "{}.zarr", "--split", "all", "--block", 3), (work / "pics", out / "{}.csv")]
    commands = [
        ["annotate", out / "m.zarr", *(str(part).format(number) for part in what[number % 2]), "--top", 2]
        for number in range(4)
    ]
    turns = 0
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(at_once, out, *commands)
        while not ended.done():
            turns += 1
            replace("ba"[turns % 2])
    assert [code for code, _ in ended.result()] == [0] * 4, ended.result()
    assert turns > 4
    for number in (0, 2):
        found = stores.open_results(out / f"{number}.zarr")
        np.testing.assert_array_equal(found[:], expected[found.provenance["parameters"]["contents"]["the model"]][0])
    for number in (1, 3):
        assert (out / f"{number}.csv").read_text() in (text, other_text)


def test_a_journal_into_which_annotations_by_two_models_write_mixes_nothing(work, tmp_path, monkeypatch):
    """Replace the model while a folder is annotated, and start a second annotation, which restarts the journal."""
    expected = {}
    for name in "ab":
        run("annotate", work / f"{name}.zarr", work / "pics", tmp_path / f"{name}.csv")
        expected[name] = (tmp_path / f"{name}.csv").read_text()
    command = ["annotate", tmp_path / "m.zarr", work / "pics", tmp_path / "out.csv"]
    monkeypatch.setattr(images, "BATCH", 4)
    append, done = images._append, []

    def meanwhile(journal, entries):
        if not done:
            done.append(journal)
            run("annotate", work / "b.zarr", *command[2:])
        append(journal, entries)

    monkeypatch.setattr(images, "_append", meanwhile)
    run("annotate", work / "a.zarr", *command[2:])
    assert (tmp_path / "out.csv").read_text() == expected["a"]
    for name in "ba":
        run("annotate", work / f"{name}.zarr", *command[2:])
        assert (tmp_path / "out.csv").read_text() == expected[name]


def test_a_folder_of_images_store_model_and_unfinished_rows_can_be_moved(work, tmp_path, monkeypatch):
    """Stores refer to each other by relative paths, so that a moved run resumes and the page still shows the images."""
    here, there = tmp_path / "here", tmp_path / "there" / "project"
    shutil.copytree(work / "pics", here / "pics")
    monkeypatch.chdir(here)
    run("extract", "pics", "f.zarr", "--set", "moments", "--labels", "pics/labels.csv")
    run("fit", "kgha", "f.zarr", "m.zarr", "--n-components", 2, "--approximation", "exact")
    write, blocks = stores.ResultWriter.write, []

    def dies(self, *block):
        blocks.append(block)
        if len(blocks) == 3:
            raise KeyboardInterrupt
        write(self, *block)

    command = ["transform", "m.zarr", "f.zarr", "z.zarr", "--block", 4]
    with monkeypatch.context() as patch:
        patch.setattr(stores.ResultWriter, "write", dies)
        run(*command, code=130)
    monkeypatch.chdir(tmp_path)
    there.parent.mkdir()
    here.rename(there)
    command = ["transform", *(there / name for name in command[1:4]), "--block", 4]
    assert "2 of 4 blocks are there already" in run(*command).stderr
    assert stores.describe(there / "m.zarr")["provenance"]["parents"] == [str(there / "f.zarr")]
    assert stores.open_results(there / "z.zarr").provenance["parents"] == [str(there / "m.zarr"), str(there / "f.zarr")]
    # Ignore line breaks in long paths.
    assert str(there / "f.zarr") in "".join(run("info", there / "m.zarr").stdout.split())
    applied = open_applied(str(there / "m.zarr"), str(there / "f.zarr"), "test", "test")
    judged = EvaluatedModel("m", applied, applied.scores(applied.views), {}, {}, np.zeros((0, 0)))
    assert Evaluation([judged], applied.label_names(), applied.Y, 1).image(0) is not None
