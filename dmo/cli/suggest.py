"""Commands that export samples to annotation tools and update models with the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dmo import stores
from dmo.cli.commands import Features, Model, Overwrite, Separator, Split, table_arguments, with_reading
from dmo.cli.evaluate import percent
from dmo.cli.session import cost_rows, grid, in_a_line, show
from dmo.errors import UserError
from dmo.formats.sources import is_rows
from dmo.workflows.apply import ALL
from dmo.workflows.program import free, session
from dmo.workflows.rows import open_applied
from dmo.workflows.suggest import (
    KINDS,
    as_csv,
    as_label_studio,
    kept_answers,
    names_of,
    one_answer_each,
    open_suggested,
    read_answers,
    suggestions,
    update,
)
from dmo.workflows.tables import write_text


@with_reading
def suggest(
    model: Model,
    features: Features,
    out: Annotated[str | None, typer.Argument(help="File to write: .json for Label Studio, .csv for FiftyOne.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of samples of each kind.")] = 10,
    kind: Annotated[str, typer.Option(help="Kinds, comma-separated.")] = ",".join(KINDS),
    prefix: Annotated[str, typer.Option(help="Prefix of sample ids that forms the addresses of images.")] = "",
    split: Split = None,
    overwrite: Overwrite = False,
    **given: Any,
) -> None:
    """List samples to label or check (default: all but test samples): uncertain, wrong, or unlike labeled samples."""
    kinds = [part.strip() for part in kind.split(",") if part.strip()]
    unknown = [part for part in kinds if part not in KINDS]
    if unknown or not kinds:
        raise UserError(f"--kind {kind!r}: expected some of {', '.join(KINDS)}, separated by commas")
    if out is not None and not out.endswith((".json", ".csv")):
        raise UserError(f"{out}: the name must end with .json (Label Studio) or .csv (FiftyOne)")
    if out is not None:
        stores.check_output_file(out)
    with session() as run:
        applied = open_suggested(model, features, split, table_arguments(given))
        found = suggestions(applied, count, kinds, kept_answers(model))
        if out is not None:
            text = as_csv(found, prefix) if out.endswith(".csv") else as_label_studio(found, prefix, model)
            write_text(Path(out), [text], overwrite)
        record: dict[str, Any] = {"model": model, "store": features, "split": applied.split, "n_samples": applied.n}
        record |= {"suggested": found} | ({} if out is None else {"out": out}) | run.costs()
    show(record)
    cells = [
        [row["sample"], row["why"], f"{row['value']:.3f}", ", ".join(row["labels"]), ", ".join(row.get("doubts", []))]
        for row in found
    ]
    grid(
        "samples to check", ["sample", "why", "value", "most probable labels", "doubtful labels"], cells, numbers=False
    )


@with_reading
def update_command(
    model: Model,
    features: Features,
    out: Annotated[str, typer.Argument(help="Model store to write.")],
    answers: Annotated[
        list[Path],
        typer.Argument(
            help="Files of answers, JSON or CSV. They are exports of Label Studio or FiftyOne, or list samples and "
            "labels."
        ),
    ],
    split: Split = None,
    new_labels: Annotated[
        bool, typer.Option("--new-labels", help="Accept labels that the model does not know yet.")
    ] = False,
    separator: Separator = None,
    new: Annotated[
        str | None,
        typer.Option(help="Table or image folder of new samples with answers. They are added to a copy of the store."),
    ] = None,
    overwrite: Overwrite = False,
    **given: Any,
) -> None:
    """Refit a model with the labels that people assigned to suggested samples, or continue its incremental fit.

    The new model stores the answers, which later updates keep. `dmo suggest` does not list answered samples again.
    """
    free(out, overwrite, "model")
    reading = table_arguments({**given, "separator": separator if is_rows(features) else None})
    applied = open_applied(model, features, ALL, ALL, reading=reading, labeled=True)
    known = names_of(applied)
    answered = one_answer_each(answer for path in answers for answer in read_answers(path, known, separator).items())
    if not answered:
        raise UserError(
            f"{', '.join(map(str, answers))}: no answers found; annotate some of the tasks, and export them"
        )
    with stores.reserve_model(out, overwrite), session() as run:
        record = update(run, applied, model, features, out, answered, split, new_labels, overwrite, new) | run.costs()
    how = "learned only from the answers" if record["goes_on"] else f"refitted to {record['n_samples']} samples"
    kinds = (
        f"{record['new_answers']} new, {record['changed_answers']} changed, {record['empty_answers']} without a label"
    )
    said = f"{record['answers']}: {kinds}; {record['all_answers']} with earlier answers"
    rows = [("answers", said), ("model", f"{how}: {out}")]
    rows += [("new labels", ", ".join(record["new_labels"]))] if record["new_labels"] else []
    parts = [f"{record['answers']} answers ({kinds})", how]
    if record["test"] and record["test"]["after"]:
        before, after = (record["test"][when] for when in ("before", "after"))
        what, name = ("accuracy", "accuracy") if "accuracy" in after else ("f1_micro", "micro F1")
        said = f"{name} {percent(before[what])} -> {percent(after[what])} on {after['samples']} test samples"
        rows, parts = [*rows, ("test samples", said)], [*parts, said]
    line = in_a_line(record, out, *parts)
    show(record, [*rows, *cost_rows(record)], f"update of {model}", line)
