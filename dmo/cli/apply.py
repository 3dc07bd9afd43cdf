"""`dmo transform`, `dmo annotate`, `dmo evaluate`: a model and a feature store in, rows or figures out."""

from __future__ import annotations

import csv
import filecmp
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import typer
from threadpoolctl import threadpool_limits

from dmo import stores
from dmo.blocks import Rows, Subset, fingerprint, row_blocks
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
    chosen_split,
    origin,
)
from dmo.cli.pictures import is_picture_folder
from dmo.cli.session import Session, amount, cost_rows, grid, session, show
from dmo.cluster import connect, current_client
from dmo.estimators.base import load
from dmo.methods.decoding import top_labels
from dmo.metrics import AnnotationScores, AUCScores, annotation_scores, auc_scores
from dmo.progress import stage
from dmo.sending import Resent, retried
from dmo.tiles import grouped

Out = Annotated[str, typer.Argument(help="Row store to write.")]
Top = Annotated[int | None, typer.Option(min=1, help="Labels per sample (default: 5, or all where there are fewer).")]
BLOCK = 1024
_SHOWN = 5
T = TypeVar("T")


@dataclass(frozen=True)
class Applied:
    """A model, the digest of its contents, and the samples it is applied to: views (m rows), their labels or None, row
    numbers, ids."""

    model: Any
    contents: str
    store: stores.FeatureStore
    views: Mapping[str, Rows]
    Y: np.ndarray | None
    index: np.ndarray
    split: str | None

    @property
    def n(self) -> int:
        return len(self.index)

    def batch(self, where: slice) -> dict[str, Rows]:
        """The views of some of the samples."""
        return {name: Subset(view.source, view.index[where]) for name, view in self.views.items()}

    def ids(self) -> list[str]:
        """The samples' ids, their row numbers where the store has none."""
        known = self.store.sample_ids
        return [str(i) for i in self.index] if known is None else [known[i] for i in self.index]

    def label_names(self) -> list[str]:
        """Names of the model's labels, numbers where it knows none."""
        known = getattr(self.model, "label_names_", None)
        return list(known) if known is not None else [str(label) for label in self.model.classes_]


def open_applied(model: str, features: str, split: str | None, default: str, needs: str) -> Applied:
    """Load a model and open the samples of a store for it.

    Arguments: `needs`: the method that the model must have. Raises StoreError where the model cannot be used so, or the
    store lacks one of its views or has it in another width.
    """
    fitted, contents = _loaded(model)
    store = stores.open_features(features)
    if not hasattr(fitted, needs):
        cure = "annotate and evaluate need `dmo fit kgha` or `ridge`, transform `dmo fit kgha` or `multisetcca`"
        raise stores.StoreError(f"{model} is a {type(fitted).__name__}, which cannot {_VERBS[needs]}; {cure}")
    for name, width in getattr(fitted, "view_widths_", {}).items():
        if name not in store.views:
            has = ", ".join(store.views)
            raise stores.StoreError(f"{features} lacks the view {name!r} that {model} was fitted on; it has {has}")
        found = store.views[name].shape[1]
        if found != width:
            raise stores.StoreError(
                f"{features}: view {name!r} has {found} features, {model} was fitted on {width}; ingest the same features"
            )
    chosen = chosen_split(store, split, default)
    views, Y, index = store.select(chosen)
    used = {name: views[name] for name in getattr(fitted, "view_widths_", views)}
    return Applied(fitted, contents, store, used, Y, index, chosen)


def _loaded(path: str) -> tuple[Any, str]:
    """A model and the digest of its contents, both of the same one where it is replaced meanwhile."""
    while True:
        contents = stores.model_contents(path)
        fitted = load(path)
        if stores.model_contents(path) == contents:
            return fitted, contents


_VERBS = {"transform": "transform samples", "decision_function": "score labels"}


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
        count = _top(top, len(names))

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
                _write_csv(csv, applied.ids(), words, overwrite)
                record["csv"] = csv
    _show_rows(record, "annotation", json)


def evaluate(
    model: Model,
    features: Features,
    top: Top = None,
    split: Split = None,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Compare a model's annotation with the labels of samples (default: the test split, else all)."""
    with session(json) as run, connect(scheduler):
        applied = open_applied(model, features, split, "test", "decision_function")
        Y = known_labels(applied, features)
        scores = np.empty(Y.shape)
        places = row_blocks(applied.n, 4 * BLOCK)

        def score(i: int) -> np.ndarray:
            return applied.model.decision_function(applied.batch(places[i]))

        for i, found in _each("score samples", score, range(len(places))):
            scores[places[i]] = found
        annotated = annotation_scores(Y, scores, _top(top, Y.shape[1]))
        area = _area(run, Y, scores)
    record: dict[str, Any] = {"model": model, "store": features, "split": applied.split, "n_samples": applied.n}
    record |= figures(annotated, area) | run.costs()
    rows = [("samples", f"{applied.n} of split {applied.split}" if applied.split else str(applied.n))]
    rows += figure_rows(record)
    show(record, [*rows, *cost_rows(record)], f"{model} on {features}", json)


def figures(annotated: AnnotationScores, area: AUCScores | None) -> dict[str, Any]:
    """The measures of an evaluation (fractions 0..1) under the names of the JSON output."""
    return {
        "top": annotated.top,
        "n_labels": len(annotated.per_label_recall),
        "n_labels_present": annotated.n_labels,
        "precision": annotated.precision,
        "recall": annotated.recall,
        "f1": annotated.f1,
        "n_plus": annotated.n_plus,
        "auc_macro": None if area is None else area.macro,
        "auc_micro": None if area is None else area.micro,
    }


def figure_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The measures of `figures` as lines of a table, in percent."""
    shown = [("labels", f"{record['n_labels']}, of which {record['n_labels_present']} occur in these samples")]
    for key, title in (("precision", "precision"), ("recall", "recall"), ("f1", "F1")):
        shown.append((f"{title} at top {record['top']}", percent(record[key])))
    shown.append(("N+", f"{record['n_plus']} labels with a sample found"))
    return [*shown, ("AUC macro", percent(record["auc_macro"])), ("AUC micro", percent(record["auc_micro"]))]


def percent(share: float | None) -> str:
    """A fraction as "28.7 %", a dash for None."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _area(run: Session, Y: np.ndarray, scores: np.ndarray) -> AUCScores | None:
    if not ((Y.any(axis=0)) & (~Y.astype(bool)).any(axis=0)).any():
        run.note("no label has both positive and negative samples here: no AUC")
        return None
    return auc_scores(Y, scores)


def known_labels(applied: Applied, features: str) -> np.ndarray:
    """The labels of the samples, if they are the labels that the model scores."""
    names = applied.label_names()
    if applied.Y is None:
        raise stores.StoreError(f"{features} has no labels to compare with; ingest them, or use dmo annotate")
    if applied.Y.shape[1] != len(names):
        raise stores.StoreError(
            f"{features} has {applied.Y.shape[1]} labels, the model scores {len(names)}; pass a store with the same labels"
        )
    known = getattr(applied.model, "label_names_", None)
    if known is not None and applied.store.label_names is not None and list(known) != list(applied.store.label_names):
        first = next(i for i, (a, b) in enumerate(zip(known, applied.store.label_names)) if a != b)
        raise stores.StoreError(
            f"{features}: label {first} is {applied.store.label_names[first]!r}, the model has {known[first]!r} there; "
            f"pass a store with the same labels in the same order"
        )
    return applied.Y


def _top(wanted: int | None, labels: int) -> int:
    if wanted is not None and wanted > labels:
        raise ValueError(f"--top {wanted}: there are {labels} labels; pass a number from 1 to {labels}")
    return min(5, labels) if wanted is None else wanted


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

    for _ in _each("blocks of samples", write, missing):
        pass
    writer.finish()
    return record | run.costs()


def _each(name: str, work: Callable[[int], T], numbers: Sequence[int]) -> Iterator[tuple[int, T]]:
    """(i, work(i)) of all numbers, in order: here, or on the workers, where `work` is sent once."""
    client = current_client()
    with stage(name, len(numbers)) as advance:
        if client is None or not numbers:
            for i in numbers:
                yield i, work(i)
                advance(1)
            return
        shared = Resent(client, work)
        for group in grouped(numbers, -(-len(numbers) // (8 * max(1, sum(client.nthreads().values()))))):

            def on_workers(part: Sequence[int] = group) -> list[T]:
                return client.gather([client.submit(_on_worker, shared.future(), i, pure=False) for i in part])

            for i, found in zip(group, retried(client, on_workers, shared.forget), strict=True):
                yield i, found
                advance(1)


def _on_worker(work: Callable[[int], T], i: int) -> T:
    with threadpool_limits(1):
        return work(i)


def _words(path: str, names: Sequence[str], top: int, count: int) -> list[list[str]]:
    """The labels of the first `count` samples of a row store of labels or scores, best first."""
    found = stores.open_rows(path)
    block = found[:count]
    numbers = top_labels(block, top) if found.kind == "scores" else block
    return [[names[label] for label in row] for row in numbers]


_OTHER_CSV = "pass --overwrite to replace it, or choose another path"


def _is_complete(path: str) -> bool:
    """Whether there is a complete row store, whose command may be run again."""
    try:
        stores.open_rows(path)
    except (FileNotFoundError, stores.StoreError):
        return False
    return True


def _write_csv(path: str, ids: Sequence[str], words: Sequence[Sequence[str]], overwrite: bool) -> None:
    """Write the labels as text; a file that says the same is left, another one only replaced with `overwrite`."""
    part = Path(f"{path}.part")
    with open(part, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["sample", *(f"label {i + 1}" for i in range(len(words[0])))])
        writer.writerows([sample, *row] for sample, row in zip(ids, words, strict=True))
    if not overwrite and os.path.exists(path) and not filecmp.cmp(part, path, shallow=False):
        part.unlink()
        raise stores.StoreError(f"{path} exists and says something else; {_OTHER_CSV}")
    os.replace(part, path)


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
