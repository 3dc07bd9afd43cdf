"""Command `dmo ingest`, which reads data files into a feature store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dmo import stores
from dmo.blocks import known_sums, presence
from dmo.cli.commands import (
    Block,
    CommandFirst,
    Decimal,
    Delimiter,
    DropColumns,
    Header,
    Id,
    LabelColumns,
    LabelCount,
    Missing,
    Overwrite,
    RowNames,
    Scheduler,
    Separator,
    TestShare,
    Text,
    Types,
    table_arguments,
)
from dmo.cli.info import show_schema, written
from dmo.cli.session import cost_rows, in_a_line, show
from dmo.cluster import connect
from dmo.datasets import CARDS, ingest, ingest_files, parse_source, read_description
from dmo.datasets.cards import by_split
from dmo.demo.digits import digits_samples
from dmo.errors import UserError, amount
from dmo.workflows.program import Session, begin, session


class _Ingest(CommandFirst):
    """Command group that runs its command `CARD` if the first argument is the name or the path of a data card."""

    example = "dmo ingest files STORE.zarr --view NAME=FILE"

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and Path(args[0]).suffix in ("", ".toml"):
            return args[0], self.commands["CARD"], args[1:]
        return super().resolve_command(ctx, args)


ingest_app = typer.Typer(cls=_Ingest, no_args_is_help=True, help="Read feature files into a feature store.")
Store = Annotated[str, typer.Argument(help="Feature store to write.")]


@ingest_app.command(
    "CARD", help=f"Read a data set that a card describes: {', '.join(CARDS)}, or your own card NAME.toml."
)
def _card(
    ctx: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder with the files of the data set.")],
    store: Store,
    views: Annotated[
        list[str] | None,
        typer.Option("--views", help="Views to read, comma-separated. Default: the default views of the card."),
    ] = None,
    checksums: Annotated[bool, typer.Option(help="Compare SHA-256 checksums with the data card.")] = True,
    fetch: Annotated[bool, typer.Option("--fetch", help="Download missing files, if the card has addresses.")] = False,
    block: Block = None,
    overwrite: Overwrite = False,
) -> None:
    name = str(ctx.info_name)
    chosen = [view for part in views or () for view in part.split(",") if view] or None
    _run(partial(ingest, name, folder, views=chosen, checksums=checksums, fetch=fetch), store, block, overwrite)


@ingest_app.command("digits")
def _digits(store: Store, block: Block = None, overwrite: Overwrite = False) -> None:
    """Read the handwritten digits bundled with scikit-learn: four views, 14 labels, no files needed."""
    _run(digits_samples().write, store, block, overwrite)


@ingest_app.command("files")
def _files(
    store: Store,
    view: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FILE, or NAME:SPLIT=FILE once per split. FILE is a file, a glob, a folder of shards or "
            "@list.txt; FILE::ARRAY selects an array."
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            help="FILE or SPLIT=FILE of labels. The file has 0/1 columns, classes, label lists or real targets. "
            "For ARFF, pass the .xml file of Mulan."
        ),
    ] = None,
    label_columns: LabelColumns = None,
    label_count: LabelCount = None,
    label_names: Annotated[str | None, typer.Option(help="Text file with one label name per line.")] = None,
    id: Id = None,
    split_column: Annotated[str | None, typer.Option(help="Column with the split of each sample.")] = None,
    test_share: TestShare = None,
    text: Text = None,
    separator: Separator = None,
    types: Types = None,
    missing: Missing = None,
    decimal: Decimal = None,
    delimiter: Delimiter = None,
    header: Header = None,
    row_names: RowNames = None,
    drop_columns: DropColumns = None,
    how: Annotated[
        str | None,
        typer.Option(
            metavar="inner|outer",
            help="Drop (inner) or keep (outer) incomplete samples. Incomplete samples are missing from some tables."
            " They are kept without these views.",
        ),
    ] = None,
    histogram: Annotated[list[str] | None, typer.Option(help="View whose rows are counts; repeatable.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="NAME=TYPE: type of a stored view, such as float32.")] = None,
    description: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="JSON file with the settings, instead of options. The file describes the views, the labels "
            "and how they are read.",
        ),
    ] = None,
    scheduler: Scheduler = None,
    block: Block = None,
    overwrite: Overwrite = False,
) -> None:
    """Read any files: tables (.csv, .parquet), shards, texts, .npy, .npz, .mat, .h5, .arff, .svm, .zarr and .hvecs."""
    if how not in (None, "inner", "outer"):
        raise UserError(f"--how {how}: expected inner or outer")
    if (description is None) == (not view):
        raise UserError("ingest files: pass --view NAME=FILE at least once, or --from DESCRIPTION.json, not both")
    if description is not None:
        arguments = read_description(description)
    else:
        dtypes = dict(_type(entry) for entry in dtype or ())
        arguments = {"views": _files_by_view(view or ()), "histograms": histogram or (), "dtypes": dtypes}
        arguments |= {"label_names": label_names, "split": split_column, "how": how}
        arguments |= table_arguments(
            {
                **{"labels": _one_or_by_split(labels), "label_columns": label_columns, "label_count": label_count},
                **{"id": id, "test_share": test_share, "text": text, "separator": separator, "types": types},
                **{"missing": missing, "decimal": decimal, "delimiter": delimiter, "header": header},
                **{"row_names": row_names, "drop_columns": drop_columns},
            }
        )
    if scheduler is not None:
        _check_files(arguments["views"])  # Raise errors about missing files before requesting Dask workers.
    _run(partial(ingest_files, **arguments), store, block, overwrite, scheduler)


def _check_files(views: Mapping[str, Any]) -> None:
    """Raise FileNotFoundError if a local file of a view does not exist."""
    for spec in (spec for files in views.values() for spec in by_split(files).values()):
        for path in parse_source(spec).paths:
            if "://" not in path and not os.path.exists(path):
                raise FileNotFoundError(f"{path}: no such file")


def _pair(option: str, entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not (name and equals and value):
        form = "NAME=TYPE, such as x=float32" if option == "--dtype" else "NAME=FILE, such as x=features.npy"
        raise UserError(f"{option} {entry}: expected {form}")
    return name, value


def _type(entry: str) -> tuple[str, str]:
    name, kind = _pair("--dtype", entry)
    try:
        found = np.dtype(kind)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "buif":
        raise UserError(f"--dtype {entry}: not a type of real numbers; use uint8, uint16, int32, float32 or float64")
    return name, found.name


def _files_by_view(entries: Sequence[str]) -> dict[str, Any]:
    """Parse entries NAME=FILE or NAME:SPLIT=FILE to a mapping of views to files, or to files by split."""
    found: dict[str, Any] = {}
    for entry in entries:
        key, path = _pair("--view", entry)
        name, colon, split = key.partition(":")
        known = found.setdefault(name, {} if colon else path)
        if colon and isinstance(known, dict) and split not in known:
            known[split] = path
        elif colon or known is not path:
            raise UserError(f"--view {entry}: view {name!r} is given twice; pass one file, or one file per split")
    return found


def _one_or_by_split(entries: Sequence[str] | None) -> Any:
    if not entries:
        return None
    if len(entries) == 1 and "=" not in entries[0]:
        return entries[0]
    return dict(_pair("--labels", entry) for entry in entries)


def _run(
    make: Callable[..., stores.FeatureStore],
    path: str,
    block: int | None,
    overwrite: bool,
    scheduler: str | None = "in-process",
) -> None:
    with session() as run:
        begin(run, path, overwrite)
        with connect(scheduler):
            store = make(store=path, block=block, overwrite=overwrite)
    _report(run, store, path)


def _report(run: Session, store: stores.FeatureStore, path: str) -> None:
    views = {name: store.view_info(name) for name in store.views}
    unknown = 0 if store.labels is None else int((store.n_samples - known_sums(store.labels)[1]).sum())
    record, rows = written(store, path, "sample")
    record |= {"unknown_labels": unknown, "real_labels": store.real_labels, "class_labels": store.class_labels}
    record["views"] = {
        name: {"dimension": int(v.dimension), "dtype": v.dtype.name, "kind": v.kind, "histogram": bool(v.histogram)}
        for name, v in views.items()
    }
    record |= run.costs()
    if unknown:
        rows[-1] = ("labels", f"{rows[-1][1]}, {unknown} unknown")
    for name, v in views.items():
        kind = ("sparse " if v.kind == "sparse" else "") + ("histogram" if v.histogram else "features")
        kind += ", missing values (fit with --impute mean)" if v.missing else ""
        present = presence(store.views[name])
        kind += "" if present is None else f", {(~present).sum()} samples missing"
        rows.append((f"view {name}", f"{v.dimension} x {v.dtype.name} {kind}"))
    shown, costs = (rows if len(rows) < 6 else [*rows[:2], ("views", str(len(views)))]), cost_rows(record)
    line = in_a_line(record, path, *(f"{name} {value}" for name, value in shown))
    show(record, [*rows, ("size", amount(record["bytes"])), *costs], f"feature store {path}", line)
    show_schema(store.attributes.get("schema"))
