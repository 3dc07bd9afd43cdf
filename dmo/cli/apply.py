"""Commands that apply a model to samples: `dmo transform`, `dmo annotate` and `dmo search`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from difflib import get_close_matches
from typing import Annotated, Any

import numpy as np
import typer

from dmo import stores, workflows
from dmo.blocks import Rows
from dmo.cli.commands import (
    Block,
    Decimal,
    Delimiter,
    DryRun,
    Features,
    Header,
    Missing,
    Model,
    Overwrite,
    RowNames,
    Scheduler,
    Split,
    Threads,
    Top,
    Types,
    Unreadable,
    table_arguments,
)
from dmo.cli.session import cost_rows, grid, in_a_line, show
from dmo.cluster import connect
from dmo.errors import UserError, amount
from dmo.formats.sources import is_image_folder, is_rows
from dmo.workflows.apply import (
    ALL,
    AskedRows,
    check_chances,
    check_rows_output,
    checked_top,
    embedded,
    finished_rows,
    learned_values,
    write_rows,
    written_table,
)
from dmo.workflows.program import run_options, session
from dmo.workflows.tables import OTHER_CSV, TableColumns, chances, write_table

Out = Annotated[str, typer.Argument(help="File to write: a result store (.zarr), or a table (.csv, .parquet).")]
_SHOWN = 5


def transform(
    model: Model,
    features: Features,
    out: Out,
    split: Split = None,
    types: Types = None,
    missing: Missing = None,
    decimal: Decimal = None,
    delimiter: Delimiter = None,
    header: Header = None,
    row_names: RowNames = None,
    block: Block = None,
    scheduler: Scheduler = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
) -> None:
    """Write the embedding of samples (default: all) to a result store or a table.

    An interrupted result store is resumed, and a complete result store is kept. A table is always written again.
    """
    with session() as run, ExitStack() as place:
        ending = check_rows_output(out, overwrite or dry_run)
        reading = table_arguments(
            {"types": types, "missing": missing, "decimal": decimal}
            | {"delimiter": delimiter, "header": header, "row_names": row_names}
        )
        applied = workflows.rows.open_applied(model, features, split, ALL, transforms=True, reading=reading)
        place.enter_context(connect(scheduler, n_samples=applied.n))
        width = int(applied.model.n_components_)
        record = write_rows(
            run,
            applied,
            lambda views: applied.model.transform(views),
            out,
            width,
            "embedding",
            parents=(model, features),
            block=block,
            overwrite=overwrite,
            dry_run=dry_run or ending != ".zarr",
        )
        if ending != ".zarr" and not dry_run:
            columns = TableColumns(None, [f"component {i + 1}" for i in range(width)], vector="embedding")
            write_table(out, columns, applied.n, embedded(applied), overwrite)
            record = written_table(run, record)
    _show_rows(record, "embedding")


def annotate(
    model: Model,
    features: Annotated[
        str, typer.Argument(help="Feature store, or new samples: a table, a folder of images, or a folder of texts.")
    ],
    out: Annotated[
        str,
        typer.Argument(
            help="File to write: a result store (.zarr) or table (.csv, .parquet); for images .zarr, .csv or .json."
        ),
    ],
    top: Top = None,
    split: Split = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write scores of all labels instead of label sets.")] = False,
    csv: Annotated[str | None, typer.Option(help="Also write the labels to this CSV file.")] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of every label to the table.")] = False,
    unreadable: Unreadable = "skip",
    types: Types = None,
    missing: Missing = None,
    decimal: Decimal = None,
    delimiter: Delimiter = None,
    header: Header = None,
    row_names: RowNames = None,
    threads: Threads = None,
    block: Block = None,
    scheduler: Scheduler = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
) -> None:
    """Write the predicted labels of samples (default: the test split, else all) to a table or a result store.

    The labels are the same as those of `predict`. Models of regression targets write the predicted values.
    """
    # For a folder of images, features are computed only for new or changed images. For a feature store, an interrupted
    # run is resumed, and complete stores and CSV files are kept.
    of_images = is_image_folder(features)
    if of_images and (workflows.images.made_from_images(model) or not is_rows(features)):
        if scores or split is not None:
            cure = "create a feature store with dmo extract --like MODEL, and annotate that"
            raise UserError(f"annotate {features}: --split and --scores do not apply to a folder of images; {cure}")
        folder = workflows.images.ImageFolder(
            model, features, out, top, csv, unreadable, threads, overwrite, dry_run, proba
        )
        annotate_folder(folder, scheduler)
        return
    with session() as run, ExitStack() as place:
        ending = check_rows_output(out, overwrite or dry_run)
        if ending != ".zarr" and csv is not None:
            raise UserError(f"--csv {csv}: {out} is a table already; use --csv with an output that ends in .zarr")
        table = csv if ending == ".zarr" else out
        if csv is not None:
            if os.path.exists(csv) and not (overwrite or dry_run or finished_rows(out)):
                raise stores.StoreError(f"{csv} exists; {OTHER_CSV}")
            stores.check_output_file(csv)
        reading = table_arguments(
            {"types": types, "missing": missing, "decimal": decimal}
            | {"delimiter": delimiter, "header": header, "row_names": row_names}
        )
        applied = workflows.rows.open_applied(model, features, split, "test", reading=reading)
        names, real = applied.label_names(), learned_values(applied.model)
        asked = checked_top(top, applied.model)
        if proba:
            check_chances(applied.model, table is not None)
        place.enter_context(connect(scheduler, n_samples=applied.n))
        values, width = real or scores, 0 if real else applied.model.most_labels(asked)

        def row(views: Mapping[str, Rows]) -> np.ndarray:
            found = applied.model.decide(views, asked)
            return np.asarray(found.scores if values else found.numbers(width))

        record = write_rows(
            run,
            applied,
            row,
            out,
            names if values else width,
            "values" if real else "scores" if scores else "labels",
            parents=(model, features),
            dtype="float64" if real else "float32" if scores else "int32",
            attributes={"split": applied.split, "top": asked, "label_names": names},
            block=block,
            overwrite=overwrite,
            dry_run=dry_run or ending != ".zarr",
        )
        if not dry_run:
            kind = "probabilities" if proba else "scores" if real or (scores and ending != ".zarr") else None
            columns = TableColumns(
                None if real else names,
                chances(names) if proba else names if kind else (),
                dtype="float64" if real else "float32",
            )
            stored = stores.open_results(out) if ending == ".zarr" and not (proba or (scores and not real)) else None
            rows = AskedRows(applied, asked, columns, kind, stored)
            record["examples"] = rows.words(_SHOWN)
            if table is not None:
                write_table(table, columns, applied.n, rows.blocks(), overwrite)
                record = record | {"csv": csv} if csv is not None else written_table(run, record)
    _show_rows(record, "annotation")


def _show_rows(record: Mapping[str, Any], what: str) -> None:
    split = f" of split {record['split']}" if record["split"] else ""
    rows = [("samples", f"{record['n_samples']}{split}"), ("columns", str(record["columns"]))]
    rows.append(("size", amount(record["bytes"])))
    if "plan" in record:
        rows.append(("blocks", str(record["plan"]["blocks"])))
    out = f"{record['out']}{' and ' + record['csv'] if 'csv' in record else ''}"
    said = f"{what} of {record['n_samples']} samples{split}, {record['columns']} columns"
    _tell(record, rows, what, f"{what} in {record['out']}", "sample", out, said)


def annotate_folder(request: workflows.images.ImageFolder, scheduler: str | None) -> None:
    """Run `dmo annotate MODEL FOLDER OUT` for a folder of images and print its result."""
    stores.describe(request.model)  # Raise errors about an invalid model before requesting Dask workers.
    with session() as run, connect(scheduler):
        record = workflows.images.annotate_images(run, request)
        record |= {} if request.dry_run else run.costs()
    rows = [("images", str(record["n_images"])), ("new or changed", str(record["new"]))]
    rows.append(("labels per image", "as learned" if record["top"] is None else str(record["top"])))
    if record.get("unreadable"):
        rows.append(("unreadable", f"{len(record['unreadable'])}, left out"))
    seconds = record.get("stages", {}).get("annotate images")
    if seconds and record["new"]:
        rows.append(("speed", f"{record['new'] / seconds:.1f} images per second"))
    title, said = f"annotation of {request.folder} in {request.out}", f"labels of {record['n_images']} images"
    _tell(record, rows, "annotation", title, "image", request.out, said)


def _tell(
    record: Mapping[str, Any], rows: list[tuple[str, str]], what: str, title: str, one: str, out: str, said: str
) -> None:
    """Print the plan of a dry run, or a summary of the written rows with example labels.

    `one` is the word for a sample, such as "image".
    """
    if "seconds" not in record:
        show(record, rows, f"plan of the {what}; nothing was written")
        return
    first = [(name, ", ".join(words)) for name, words in record.get("examples", {}).items()]
    example = f"first {first[0][0]}: {first[0][1]}" if first and first[0][1] else ""
    show(record, [*rows, *cost_rows(record)], title, in_a_line(record, out, said, example))
    if run_options().verbose and first:
        grid(f"first {one}s", [one, "labels, best first"], first, numbers=False)


LABELS_SHOWN = 5


def search(
    model: Model,
    features: Features,
    image: Annotated[str | None, typer.Option(help="Image file to search with.")] = None,
    sample: Annotated[str | None, typer.Option(help="Id of a sample of the store to search with.")] = None,
    labels: Annotated[str | None, typer.Option(help="Labels to search for, comma-separated: 'sky, water'.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of samples to find.")] = 10,
    split: Split = None,
    view_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VIEW=NUMBER",
            help="VIEW=NUMBER: factor on the weight of a view. It applies to --image and --sample queries.",
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            help="Result store that caches the searched rows. It is created if it is missing or belongs to another "
            "model, other samples or other view weights."
        ),
    ] = None,
) -> None:
    """Find the samples of a store (default: all) that are nearest to an image, a sample, or labels."""
    if sum(query is not None for query in (image, sample, labels)) != 1:
        raise UserError("search: pass one of --image FILE, --sample ID and --labels 'sky, water'")
    weights = dict(_weight(entry) for entry in view_weight or ())
    if labels is not None and weights:
        raise UserError("--view-weight applies only to --image and --sample; labels are searched by their scores")
    with session() as run:
        applied = workflows.rows.open_applied(model, features, split, ALL)
        among, names, parents = workflows.search, applied.label_names(), (model, features)
        record: dict[str, Any] = {"model": model, "store": features, "split": applied.split, "n_samples": applied.n}
        if labels is not None:
            numbers = _label_numbers(labels, names)
            scores = among.all_rows(run, applied, "scores", applied.scores, index, parents)
            values = among.answering(scores, numbers)
            near = among.best(values, top)
            values = values[near]
            record["labels"] = [names[number] for number in numbers]
        else:
            query = among.of_sample(applied, str(sample)) if image is None else among.of_image(model, image)
            record["query"] = sample if image is None else image
            scores = applied.scores(query)[0]
            if learned_values(applied.model):
                record["values"] = dict(zip(names, scores.tolist(), strict=True))
            else:
                record["labels"] = [names[j] for j in among.best(scores, LABELS_SHOWN)]
            applied = among.weighted(applied, weights) if weights else applied
            kind, place = among.space(applied)
            places = among.Places(among.all_rows(run, applied, kind, place, index, parents))
            near, values = places.nearest(place(query)[0], top)
        record["found"] = among.found_rows(applied, near, values)
        record |= run.costs()
    _show_found(record)


def _weight(entry: str) -> tuple[str, float]:
    """Parse the name and the weight of a view from VIEW=NUMBER."""
    view, _, number = entry.partition("=")
    try:
        return view, float(number)
    except ValueError:
        raise UserError(f"--view-weight {entry!r}: write VIEW=NUMBER, such as hue=0.5") from None


def _label_numbers(given: str, names: list[str]) -> list[int]:
    """Return the indices of comma-separated labels; the error for an unknown label suggests a similar label."""
    wanted = list(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    if not wanted:
        raise UserError(f"--labels {given!r} contains no labels; separate labels by commas: 'sky, water'")
    for name in wanted:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"its labels are {', '.join(names[:12])}"
            raise UserError(f"--labels: the model has no label {name!r}; {hint}")
    return [names.index(name) for name in wanted]


def _show_found(record: dict[str, Any]) -> None:
    what = "its values" if "values" in record else "its labels, best first"
    show(record, [(what, _said(record))] if "query" in record else [], str(record.get("query")))
    title = f"nearest to {record['query']}" if "query" in record else f"samples for {', '.join(record['labels'])}"
    cells = [[e["sample"], f"{e['value']:.3f}", _said(e)] for e in record["found"]]
    own = "its own values" if any("values" in e for e in record["found"]) else "its own labels"
    grid(f"{title} among {record['n_samples']}", ["sample", "nearness", own], cells, numbers=False)


def _said(entry: dict[str, Any]) -> str:
    """Format the labels or the regression targets of a sample as text."""
    values = [f"{name} {value:.6g}" for name, value in entry.get("values", {}).items()]
    return ", ".join(values or entry.get("labels", ["-"]))
