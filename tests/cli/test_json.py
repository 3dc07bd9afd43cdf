"""Check docs/reference/json.md, which lists the JSON output of all commands.
`python tests/cli/test_json.py write` generates the page.
"""

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
    "absent": "Sample names in the label file without an image.",
    "all_answers": "Answers that the new model was trained on, including earlier ones.",
    "annotate n_images": "Number of images in the folder.",
    "annotate new": "Number of images whose features were extracted in this run; the others were cached.",
    "annotate top": "Requested number of labels per sample; null: the label sets that the model learned to predict.",
    "answers": "Number of samples with an answer.",
    "attributes": "Attributes stored by the program that wrote the store.",
    "auto": "The engine that `--approximation auto` chooses, and the reason.",
    "best": "The best hyperparameters: parameter -> value, and their mean score over folds as `mean`.",
    "block": "Rows per block.",
    "blocks": "Number of finished blocks (`done`) and of all blocks (`total`).",
    "by_label": "One object per label or target: `label` (its name), its measures, and `support` (its samples).",
    "bytes": "Size of the output in bytes; for a dry run, the expected size.",
    "changed_answers": "Answers that differ from the known labels.",
    "class_labels": "Whether every sample has exactly one class.",
    "columns": "Columns of the output: labels per sample, scores, or components of the embedding.",
    "complete": "Whether the store is complete.",
    "csv": "The CSV file that was written alongside the store.",
    "cv": "Number of cross-validation folds; null: no cross-validation.",
    "demo methods": "Method -> its measures on the test digits.",
    "empty_answers": "Number of answers without a label.",
    "estimator": "Name of the estimator.",
    "evaluate top": "The k of measures at k.",
    "examples": "The first samples -> their labels.",
    "excluded_samples": "Number of samples that were excluded because a model was trained on them.",
    "fingerprint": "Hash of the recipe and the vocabularies.",
    "fit views": "View -> number of columns.",
    "folder": "Folder of the images.",
    "folds": "Number of cross-validation folds.",
    "found": "The nearest samples: `sample`, `value` (similarity), and the stored `labels` or `values` of the sample.",
    "goes_on": "Whether the model was updated by `partial_fit`; otherwise it was fitted from scratch.",
    "imputed": "Views whose missing values were imputed.",
    "ingest views": "View -> `dimension`, `dtype`, `kind` (dense or sparse), `histogram`.",
    "extract views": "View -> number of columns.",
    "info labels": "`number`, `names`, `real`, `classes`, `per_sample`, `rarest`, `never`, `unknown`, `unlabeled`.",
    "info views": "View -> `dimension`, `dtype`, `kind`, `histogram`, `spread`, and the missing values.",
    "kernels": "View -> its kernel.",
    "kind": "Kind of the store: features, kernel, results or model.",
    "label_kind": "Kind of the labels: labels, classes or targets; null: there are no labels.",
    "labels_per_sample": "Mean number of labels per sample.",
    "method": "Name of the estimator.",
    "methods": "One object per method: `name`, `title`, `family`, `paper`, `engines`, `parameters`, `out_of_sample`, ...",
    "metric": "The metric that was maximized.",
    "model": "The model store.",
    "n_components": "Number of components of the embedding.",
    "n_labels": "Number of labels, classes or targets.",
    "n_labels_present": "Number of labels that occur in these samples.",
    "n_samples": "Number of samples.",
    "new_answers": "Answers for samples that had no labels before.",
    "new_labels": "Labels that did not occur in any sample before.",
    "objective": "Value of the objective.",
    "out": "The output file or store.",
    "path": "The store.",
    "plans": "Engine -> bytes: `kernel`, `factor`, `model`, `peak` of the client, `held` without the fit, `worker`, ...",
    "problems": "The problems that were found, one sentence each.",
    "provenance": "Origin of the store: `parents`, `parameters`, `seed`, and the version of `dmo` that wrote it.",
    "query": "The query.",
    "real_labels": "Whether the labels are regression targets.",
    "reopened_blocks": "Number of blocks that `--repair` marked as missing; null: no repair was requested.",
    "report": "Files of the report; the first one is the page.",
    "report methods": "Model -> its measures, with the same keys as in `dmo evaluate`.",
    "resumed_blocks": "Number of blocks that an earlier run had written.",
    "scales": "View -> scaling of its columns.",
    "search labels": "The most probable labels of the query, or the labels that were searched for.",
    "split": "The split of the samples; null: all samples. For a store: split -> number of samples.",
    "steps": "Number of solver steps.",
    "store": "The feature store, or the source of data.",
    "suggested": "One object per sample, with `sample`, `why`, `value`, `labels` (the most probable) and `doubts`.",
    "table": "Every candidate of the last comparison with the `mean`, `std` and scores of its `folds`.",
    "test": "`before` and `after`: measures of both models on test samples without answers; empty: none.",
    "training_samples": "Whether the model was trained on `all` or `some` of these samples; null: none is known.",
    "learned_samples": "Number of these samples that the model was trained on; null: the model has no record.",
    "tried": "Number of hyperparameter candidates that were evaluated, including those evaluated on fewer samples.",
    "unknown_labels": "Number of unknown labels.",
    "unlisted": "Images that the label file does not list.",
    "unreadable": "File -> reason why it could not be read.",
    "version": "Version of the store format.",
    "whole": "Whether every block exists and has the correct checksum.",
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
    """Run every command in the current folder, and return the JSON output of each command."""
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
        head = f"## dmo {command}\n\n| key | type | description |\n|---|---|---|\n"
        parts.append(head + "\n".join(lines) + "\n")
    return "\n".join(parts)


@pytest.mark.slow
def test_the_page_says_what_every_command_prints_as_json_and_every_exit_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, found = PAGE.read_text(encoding="utf-8"), results()
    assert set(found) == set(COMMANDS) - {
        "demo",
        "serve",
    }  # other tests check the output of `demo`, and `serve` prints an address
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
    assert not said.stderr  # --quiet suppresses the warning about training samples
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
