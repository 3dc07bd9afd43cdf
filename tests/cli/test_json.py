"""What commands print as JSON is what docs/reference/json.md says: `python tests/cli/test_json.py write` makes it."""

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from scenes import draw_images
from shell import record, run

from dmo import ProductKernel, stores
from dmo.cli import session
from dmo.cli.app import COMMANDS
from dmo.workflows import program

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
MARK = "<!-- written by tests/cli/test_json.py -->\n"
COSTS = {"stages", "seconds", "peak_memory_bytes"}
FIGURES = (
    "precision recall f1 n_plus auc_macro auc_micro p_at_k r_at_k f1_at_k ndcg lrap coverage ranking_loss f1_micro"
)
FIGURES += " f1_macro f1_samples precision_samples recall_samples hamming subset_accuracy set_size psp"
MEANINGS = {
    "absent": "Names in the file of labels without an image.",
    "all_answers": "Answers that the new model has learned from, with earlier ones.",
    "annotate n_images": "Images of the folder.",
    "annotate new": "Images that were described now; the others were known.",
    "annotate top": "Labels a sample that were asked for; null: the sets that the model learned.",
    "answers": "Samples that were answered for.",
    "attributes": "What the writer noted.",
    "auto": "The engine that `--approximation auto` takes, and why.",
    "best": "The best setting: parameter -> value, and the mean of its folds as `mean`.",
    "block": "Rows of a block.",
    "blocks": "Blocks that are `done`, and the `total`.",
    "bytes": "Bytes of what was written; of a dry run, of what would be.",
    "changed_answers": "Answers that differ from what was known.",
    "class_labels": "Whether every sample has one class.",
    "columns": "Columns of the rows: labels a sample, scores, or numbers of the space.",
    "complete": "Whether it is finished.",
    "csv": "The CSV file that was written beside the store.",
    "cv": "Folds of the cross-validation; null: none.",
    "demo methods": "Method -> its measures on held-out digits.",
    "empty_answers": "Answers without a label.",
    "estimator": "Name of the estimator.",
    "evaluate top": "The k of figures at k.",
    "examples": "The first samples -> their labels.",
    "excluded_samples": "Samples that were left out because a model has learned them.",
    "fingerprint": "Hash of the recipe and the vocabularies.",
    "fit views": "View -> its columns.",
    "folder": "Folder of the images.",
    "folds": "Folds of the cross-validation.",
    "found": "The nearest samples: `sample`, `value` (nearness), their own `labels` or `values`.",
    "goes_on": "Whether the model went on from `partial_fit`; else it was fitted anew.",
    "imputed": "Views whose missing cells were filled.",
    "ingest views": "View -> `dimension`, `dtype`, `kind` (dense or sparse), `histogram`.",
    "extract views": "View -> its columns.",
    "info labels": "`number`, `names`, `real`, `classes`, `per_sample`, `rarest`, `never`, `unknown`, `unlabeled`.",
    "info views": "View -> `dimension`, `dtype`, `kind`, `histogram`, `spread`, and what is missing.",
    "kernels": "View -> its kernel.",
    "kind": "What the store holds: features, kernel, results or model.",
    "label_kind": "labels, classes or targets; null: there are none.",
    "labels_per_sample": "Mean number of labels of a sample.",
    "method": "Name of the estimator.",
    "methods": "Each with `name`, `title`, `family`, `paper`, `engines`, `parameters`, `out_of_sample` and more.",
    "metric": "What was maximized.",
    "model": "The model store.",
    "n_components": "Dimensions of the learned space.",
    "n_labels": "Labels, classes or targets.",
    "n_labels_present": "Labels that occur in these samples.",
    "n_samples": "Samples.",
    "new_answers": "Answers to samples without labels until now.",
    "new_labels": "Labels that no sample carried before.",
    "objective": "Value of the objective.",
    "out": "What was written.",
    "path": "The store.",
    "plans": "Engine -> bytes: `kernel`, `factor`, `model`, this process (`peak`, `held` without a fit), `worker`; and more.",
    "problems": "What is wrong, in sentences.",
    "provenance": "Where it comes from: `parents`, `parameters`, `seed`, and the `dmo` that wrote it.",
    "query": "What was searched with.",
    "real_labels": "Whether labels are real targets.",
    "reopened_blocks": "Blocks that `--repair` marked as missing; null: none was asked for.",
    "report": "Files of the report: the page first.",
    "report methods": "Model -> its measures, called as those of `dmo evaluate`.",
    "resumed_blocks": "Blocks that an earlier run had written.",
    "scales": "View -> how its columns are scaled.",
    "search labels": "The likeliest labels of what was searched with, or the labels searched for.",
    "split": "The split of the samples; null: all. Of a store: split -> samples.",
    "steps": "Steps of the solver.",
    "store": "The feature store, or the source of data.",
    "suggested": "Each with `sample`, `why`, `value`, `labels` (the likeliest) and `doubts`.",
    "table": "Every setting of the last comparison with the `mean`, `std` and scores of its `folds`.",
    "test": "`before` and `after`: measures of both models on test samples that nobody answered for; empty: there are none.",
    "training_samples": "Whether the model was trained on `all` or `some` of these samples; null: none are known to be.",
    "learned_samples": "How many of these samples the model was trained on; null: it does not record its samples.",
    "tried": "How many settings were scored, those on fewer samples among them.",
    "unknown_labels": "Labels that are not known.",
    "unlisted": "Images that the file of labels does not name.",
    "unreadable": "File -> why it could not be read.",
    "version": "Version of its format.",
    "whole": "Whether every block is there and has its checksum.",
}
NULLABLE = {"cv": "integer", "learned_samples": "integer", "training_samples": "string", "top": "integer"}
NULLABLE |= {"reopened_blocks": "integer", "label_kind": "string"}
TYPES = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def results():
    """Command -> what it prints, in the present folder."""
    found, table = {}, draw_images(Path("pics"), 24)

    def ask(name, *more):
        found.setdefault(name, {}).update(record(*name.split(), *more))

    ask("ingest", "digits", "digits.zarr")
    ask("extract", "pics", "f.zarr", "--set", "moments,wavelets", "--labels", table, "--test-share", 0.25)
    ask("info", "f.zarr")
    ask("verify", "f.zarr")
    ask("tune", "ridge", "f.zarr", "t.zarr", "--ridge", "0.1,1", "--report", "t.html")
    ask("fit", "kgha", "f.zarr", "m.zarr")
    store = stores.open_features("f.zarr")
    Path("c.csv").write_text(f"sample,labels\n{store.sample_ids[0]},{store.label_names[0]}\n")
    ask("update", "m.zarr", "f.zarr", "n.zarr", "c.csv")
    ask("methods")
    ask("annotate", "m.zarr", "pics", "all.csv")
    ask("annotate", "m.zarr", "f.zarr", "a.zarr", "--csv", "a.csv")
    ask("transform", "m.zarr", "f.zarr", "z.zarr", "--split", "test")
    ask("search", "m.zarr", "f.zarr", "--sample", store.sample_ids[0])
    ask("evaluate", "m.zarr", "f.zarr")
    ask("report", "m.zarr", "f.zarr", "r.html")
    ask("suggest", "m.zarr", "f.zarr", "s.csv")
    ask("plan", "kgha", "f.zarr")
    return found


def tables(found):
    """The part of the page that is made: a table for each command."""
    parts = []
    for command in (name for name in COMMANDS if name in found):
        lines, seen = [], set(found[command]) - COSTS
        for key in sorted(seen - set(FIGURES.split())):
            kind = TYPES[type(found[command][key])]
            kind = f"{NULLABLE[key]} or null" if key in NULLABLE else kind
            kind = "string or null" if key == "split" and kind != "object" else kind
            lines.append(f"| `{key}` | {kind} | {MEANINGS.get(f'{command} {key}') or MEANINGS[key]} |")
        if seen & set(FIGURES.split()):
            lines.append(f"| {', '.join(f'`{key}`' for key in FIGURES.split())} | number | Measures. |")
        head = f"## dmo {command}\n\n| key | type | what it is |\n|---|---|---|\n"
        parts.append(head + "\n".join(lines) + "\n")
    return "\n".join(parts)


@pytest.mark.slow
def test_the_page_says_what_every_command_prints_as_json_and_every_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, found = PAGE.read_text(encoding="utf-8"), results()
    assert set(found) == set(COMMANDS) - {
        "demo",
        "serve",
    }  # the demo's tests read its record; a page prints its address
    assert text.partition(MARK)[2] == tables(found)
    for code in (0, 1, program.WRONG, program.FAILED, program.DAMAGED, program.INTERRUPTED, program.TERMINATED):
        assert f"\n| {code} | " in text


def test_a_parameter_that_is_an_object_is_printed_as_its_call(capsys, monkeypatch):
    monkeypatch.setattr(session, "run_options", lambda: SimpleNamespace(json=True, quiet=False))
    session.show({"best": {"kernel": ProductKernel(weights="tagprop")}})
    assert json.loads(capsys.readouterr().out) == {"best": {"kernel": "ProductKernel(weights='tagprop')"}}


def test_a_quiet_command_says_the_answer_to_a_question_and_no_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in ("ingest digits d.zarr", "fit kgha d.zarr m.zarr --views fourier", "transform m.zarr d.zarr z.zarr"):
        said = run(*command.split(), "-q")
        assert not said.stdout + said.stderr
    said = run("evaluate", "m.zarr", "d.zarr", "--split", "all", "--quiet")
    assert "AUC macro" in said.stdout
    assert not said.stderr  # without --quiet it says that it judges training samples
    assert "--quiet and --verbose contradict each other" in run("info", "d.zarr", "-q", "-v", code=2).stderr


@pytest.mark.parametrize(
    ("command", "offered"), {("info",): False, ("annotate",): True, ("fit", "ridge"): True}.items()
)
def test_options_of_workers_are_offered_where_something_runs_on_workers(command, offered):
    said = run(*command, "--help").stdout
    assert ("--workers" in said, "--checkpoint" in said) == (offered, offered)
    assert all(flag in said for flag in ("--json", "--quiet", "--log", "--verbose"))


if __name__ == "__main__" and sys.argv[1:] == ["write"]:
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        made = PAGE.read_text(encoding="utf-8").partition(MARK)[0] + MARK + tables(results())
    PAGE.write_text(made, encoding="utf-8")
