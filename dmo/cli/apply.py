"""`dmo transform`, `dmo annotate`: a model and a feature store in, rows out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from dmo import stores
from dmo.blocks import Rows, fingerprint, row_blocks
from dmo.cli.annotation import Top, as_csv, label_count, replace_text
from dmo.cli.applied import BLOCK, Applied, each, open_applied
from dmo.cli.folder import Folder, annotate_folder
from dmo.cli.options import (
    ALL,
    Block,
    DryRun,
    Features,
    Json,
    Model,
    Overwrite,
    Scheduler,
    Split,
    origin,
)
from dmo.cli.pictures import is_picture_folder
from dmo.cli.session import Session, amount, cost_rows, grid, session, show
from dmo.cluster import connect
from dmo.methods.decoding import top_labels

Out = Annotated[str, typer.Argument(help="Row store to write.")]
_SHOWN = 5
_OTHER_CSV = "pass --overwrite to replace it, or choose another path"


def transform(
    model: Model,
    features: Features,
    out: Out,
    split: Split = None,
    block: Block = BLOCK,
    scheduler: Scheduler = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write the learnt representation of samples (default: all) as a row store.

    Run again, it goes on where it was interrupted, and a store that is complete is left as it is.
    """
    with session(json) as run, connect(scheduler):
        applied = open_applied(model, features, split, ALL, "transform")
        columns, attributes = int(applied.model.n_components_), {"split": applied.split}
        make = _writer(out, applied, columns, "float32", "embedding", attributes, block, overwrite, (model, features))
        record = _write(run, applied, make, lambda views: applied.model.transform(views), out, columns, block, dry_run)
    _show_rows(record, "embedding", json)


def annotate(
    model: Model,
    features: Features,
    out: Out,
    top: Top = None,
    split: Split = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Write the scores of all labels instead of the best labels.")
    ] = False,
    csv: Annotated[str | None, typer.Option(help="Also write the labels as text, one sample a line.")] = None,
    unreadable: Annotated[
        Literal["skip", "refuse"], typer.Option(help="Pictures that cannot be read: skip or refuse.")
    ] = "skip",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that describe pictures (default: one a core).")
    ] = None,
    block: Block = BLOCK,
    scheduler: Scheduler = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write the best labels of samples (default: the test split, else all) as a row store of label numbers.

    Instead of a feature store, a folder of pictures may be given to a model that was fitted on pictures: only new and
    changed pictures are described, and the output is CSV or JSON where it ends so.
    Run again on a feature store, it goes on where it was interrupted; a store and a CSV that are complete are left.
    """
    if is_picture_folder(features):
        if scores or split is not None:
            cure = "make a feature store with dmo extract --like MODEL, and annotate that"
            raise ValueError(f"annotate {features}: a folder of pictures has no --split and no --scores; {cure}")
        annotate_folder(Folder(model, features, out, top, csv, unreadable, threads, overwrite, dry_run, json))
        return
    with session(json) as run, connect(scheduler):
        if csv is not None and os.path.exists(csv) and not (overwrite or dry_run or _is_complete(out)):
            raise stores.StoreError(f"{csv} exists; {_OTHER_CSV}")
        applied = open_applied(model, features, split, "test", "decision_function")
        names = applied.label_names()
        count = label_count(top, len(names))

        def best(views: Mapping[str, Rows]) -> np.ndarray:
            found = applied.model.decision_function(views)
            return found if scores else top_labels(found, count).astype(np.int32)

        columns: int | list[str] = names if scores else count
        attributes = {"split": applied.split, "top": count, "label_names": names}
        kind, dtype = ("scores", "float32") if scores else ("labels", "int32")
        make = _writer(out, applied, columns, dtype, kind, attributes, block, overwrite, (model, features))
        record = _write(run, applied, make, best, out, len(names) if scores else count, block, dry_run)
        if not dry_run:
            words = _words(out, names, count, applied.n if csv is not None else _SHOWN)
            record["examples"] = dict(zip(applied.ids()[:_SHOWN], words[:_SHOWN]))
            if csv is not None:
                _write_csv(Path(csv), as_csv(applied.ids(), words, count, "\r\n"), overwrite)
                record["csv"] = csv
    _show_rows(record, "annotation", json)


def _writer(
    out: str,
    applied: Applied,
    columns: int | Sequence[str],
    dtype: str,
    kind: str,
    attributes: Mapping[str, Any],
    block: int,
    overwrite: bool,
    parents: Sequence[str],
) -> Callable[[], stores.RowWriter]:
    """Begins (or takes up) the row store `out` when it is called; `parents`: the model and the features.

    One that was begun with another model or other features is refused, by their paths and by their contents.
    """

    def make() -> stores.RowWriter:
        ids = applied.ids() if applied.store.sample_ids is not None else None
        contents = {name: fingerprint(view) for name, view in applied.views.items()}
        contents["the model"] = applied.contents
        return stores.create_rows(
            out,
            applied.n,
            columns,
            dtype=dtype,
            kind=kind,
            attributes=attributes,
            block=block,
            sample_ids=ids,
            overwrite=overwrite,
            provenance=origin(parents, applied.store, applied.split, contents=contents),
        )

    return make


def _write(
    run: Session,
    applied: Applied,
    make: Callable[[], stores.RowWriter],
    compute: Callable[[Mapping[str, Rows]], np.ndarray],
    out: str,
    columns: int,
    block: int,
    dry_run: bool,
) -> dict[str, Any]:
    """Compute and write the blocks that are missing; returns the record for the report."""
    record = {
        "out": out,
        "n_samples": applied.n,
        "columns": columns,
        "split": applied.split,
        "bytes": 4 * applied.n * columns,
    }
    if dry_run:
        return record | {"plan": {"blocks": len(row_blocks(applied.n, block)), "bytes": record["bytes"]}}
    writer = make()
    missing = writer.missing()
    if not missing:
        run.note(f"{out} is complete already, made from the same model and samples: nothing to do")
    elif len(missing) < writer.n_blocks:
        run.note(f"{out} is unfinished: {writer.n_blocks - len(missing)} of {writer.n_blocks} blocks are there already")

    def write(i: int) -> None:
        writer.write(i, compute(applied.batch(writer.rows(i))).astype(writer.array.dtype, copy=False))

    for _ in each("blocks of samples", write, missing):
        pass
    writer.finish()
    return record | run.costs()


def _words(path: str, names: Sequence[str], top: int, count: int) -> list[list[str]]:
    """The labels of the first `count` samples of a row store of labels or scores, best first."""
    found = stores.open_rows(path)
    block = found[:count]
    numbers = top_labels(block, top) if found.kind == "scores" else block
    return [[names[label] for label in row] for row in numbers]


def _is_complete(path: str) -> bool:
    """Whether there is a complete row store, whose command may be run again."""
    try:
        stores.open_rows(path)
    except (FileNotFoundError, stores.StoreError):
        return False
    return True


def _write_csv(path: Path, text: str, overwrite: bool) -> None:
    """Write the labels as text; a file that says the same is left, another one only replaced with `overwrite`."""
    if not overwrite and path.exists():
        if path.read_bytes() == text.encode():
            return
        raise stores.StoreError(f"{path} exists and says something else; {_OTHER_CSV}")
    replace_text(path, text)


def _show_rows(record: Mapping[str, Any], what: str, as_json: bool) -> None:
    rows = [
        ("samples", str(record["n_samples"]) + (f" of split {record['split']}" if record["split"] else "")),
        ("columns", str(record["columns"])),
        ("size", amount(record["bytes"])),
    ]
    if "plan" in record:
        plan = [*rows, ("blocks", str(record["plan"]["blocks"]))]
        show(record, plan, f"plan of the {what}; nothing was written", as_json)
        return
    show(record, [*rows, *cost_rows(record)], f"{what} in {record['out']}", as_json)
    if record.get("examples") and not as_json:
        first = [(sample, ", ".join(words)) for sample, words in record["examples"].items()]
        grid("first samples", ["sample", "labels, best first"], first, numbers=False)
