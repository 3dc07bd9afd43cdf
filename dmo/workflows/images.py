"""Annotation of a folder of images, in which only new and changed images are processed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import dmo
from dmo import stores
from dmo.blocks import row_blocks
from dmo.demo.digits import DIGITS, digit_image
from dmo.errors import UserError
from dmo.features.extraction import PART, Extractor, by_blocks, read_contents
from dmo.features.images import Listing, UnreadableImage, find_images, read_image
from dmo.hashing import digest
from dmo.stores.models import read_with_contents
from dmo.workflows.apply import check_chances, check_use, checked_top, label_names, learned_values
from dmo.workflows.program import Session, say_unreadable
from dmo.workflows.tables import OTHER_CSV, as_csv, chances, output_format

BATCH = 256
JOURNAL = ".journal"
"""Suffix of the journal, a file next to the output that stores the results of every image."""
_SHOWN = 5
Annotation = dict[str, Any]
"""Journal entry of an image. It contains the name of the "file", a hash of the "contents", the indices of the predicted
"labels" (best first) and their "scores", and a hash "by" of the model and the options. The optional "numbers" are
probabilities or predicted values."""


@dataclass(frozen=True)
class ImageFolder:
    """Options of the annotation of a folder of images."""

    model: str  # Path of a model that was fitted on images.
    folder: str  # Folder of the images, including its subfolders.
    out: str  # Path of the output, whose extension selects CSV, JSON or a result store.
    top: int | None  # Number of labels per image; None stands for the label sets that the model predicts.
    csv: str | None  # Path of an additional CSV file.
    unreadable: str  # Whether to "skip" or "refuse" unreadable images.
    threads: int | None  # Number of threads that extract features; None stands for one thread per core.
    overwrite: bool  # Whether to ignore earlier results and to replace the outputs.
    dry_run: bool  # Whether to count the images without writing anything.
    proba: bool = False  # Whether to write the probabilities of all labels to the CSV or JSON file.

    @property
    def journal(self) -> Path:
        """Path of the journal, which stores the results of every image."""
        return Path(self.out.rstrip("/") + JOURNAL)


def annotate_images(run: Session, request: ImageFolder) -> dict[str, Any]:
    """Predict the labels of all images in a folder, and process only new and changed images."""
    # On a Dask cluster, the workers process the images. Each batch of results is appended to a journal next to the
    # output, from which an interrupted run resumes. Later runs with the same model skip unchanged images that are in
    # the journal.
    _check_out(request)
    # `dmo.load` imports estimators, so call it only after the quick checks above.
    (extractor, model), model_contents = read_with_contents(
        request.model, lambda path: (Extractor.load(path), dmo.load(path))
    )
    check_use(model, request.model)
    names = label_names(model)
    top = checked_top(request.top, model)
    if request.proba:
        check_chances(model, _is_text(request.out) or request.csv is not None)
    by = digest(model_contents, extractor.fingerprint, [top, request.proba])
    known = {} if request.overwrite else _read_journal(run, request.journal, by)
    place = Path(os.path.abspath(request.folder))
    listing = Listing(place, find_images(request.folder)[0])
    contents, failures = read_contents("look for new images", listing, None, request.threads)
    known = {name: entry for name, entry in known.items() if contents.get(name) == entry["contents"]}
    new = [name for name in contents if name not in known]
    record: dict[str, Any] = {"model": request.model, "folder": request.folder, "out": request.out, "top": top}
    record |= {"n_images": len(contents) + len(failures), "new": len(new)}
    if request.dry_run:
        return record
    stores.replace_file(request.journal, _lines(*known.values()))
    batches = row_blocks(len(new), BATCH) if new else []
    work = partial(_annotated, extractor, model, place, {name: contents[name] for name in new}, (top, request.proba))
    for scored, failed in by_blocks("annotate images", work, batches, place, request.threads):
        failures |= failed
        known |= {entry["file"]: entry | {"by": by} for entry in scored}
        _append(request.journal, [known[entry["file"]] for entry in scored])
        _refuse(request, failures)
    _refuse(request, failures)
    say_unreadable(run, failures)
    entries = [known[name] for name in sorted(known)]
    if not entries:
        raise UserError(f"{request.folder}: none of its images can be read, nothing was written")
    _write(request, entries, names, model, extractor, model_contents)
    words = {entry["file"]: [names[label] for label in entry["labels"]] for entry in entries[:_SHOWN]}
    return record | {"n_samples": len(entries), "unreadable": failures, "examples": words}


def _check_out(request: ImageFolder) -> None:
    """Raise an error for outputs that cannot be written, and for existing outputs that are not from an earlier run."""
    if not (request.overwrite or request.dry_run or request.journal.exists()):
        for path in (request.out, request.csv):
            if path is not None and os.path.exists(path):
                raise stores.StoreError(f"{path} exists; {OTHER_CSV}")
    if "://" in request.out:
        raise stores.StoreError(
            f"{request.out} is a URL, but an annotation of images needs a journal on a local disk; pass a local path"
        )
    output_format(request.out, (".csv", ".json", ".zarr"))
    (stores.check_output_file if _is_text(request.out) else stores.check_output)(request.out)
    if request.csv is not None:
        stores.check_output_file(request.csv)


def _is_text(path: str) -> bool:
    """Return whether the file name extension of an output selects a text file."""
    return Path(path).suffix.lower() in (".csv", ".json")


def _refuse(request: ImageFolder, failures: Mapping[str, str]) -> None:
    if failures and request.unreadable == "refuse":
        raise UserError(f"{next(iter(failures.values()))}; remove or repair it, or pass --unreadable skip")


def _annotated(
    extractor: Extractor,
    model: Any,
    folder: Path,
    contents: Mapping[str, str],
    asked: tuple[int | None, bool],
    where: slice,
    threads: int | None,
    advance: Callable[[int], None],
) -> tuple[list[Annotation], dict[str, str]]:
    """Return the journal entries of a batch of images, and the reasons why images cannot be read."""
    (top, proba), batch, scored = asked, list(contents)[where], []
    views, failed = extractor.rows([folder / name for name in batch], threads)
    good = [name for i, name in enumerate(batch) if i not in failed]
    if good:
        own = {name: views[name] for name in getattr(model, "view_widths_", views)}
        found = model.decide(own, top)
        labels: Any = [()] * len(good) if found.sets is None else found.numbers(model.most_labels(top))
        numbers = found.scores if found.sets is None else model.predict_proba(own) if proba else None
        for i, name in enumerate(good):
            best = [int(label) for label in labels[i] if label >= 0]
            entry: Annotation = {"file": name, "contents": contents[name], "labels": best}
            entry["scores"] = [float(found.scores[i, label]) for label in best]
            scored.append(entry if numbers is None else entry | {"numbers": numbers[i].tolist()})
    advance(len(batch))
    return scored, {batch[i]: reason for i, reason in failed.items()}


def _read_journal(run: Session, journal: Path, by: str) -> dict[str, Annotation]:
    """Read the journal entries of the same model and options, by image name, up to a truncated line."""
    # Several models can write to one journal, so every entry contains a hash of its model.
    if not journal.exists():
        return {}
    entries: dict[str, Annotation] = {}
    others = False
    try:
        for line in journal.read_text(encoding="utf-8", errors="replace").splitlines():
            entry = json.loads(line)
            if entry["by"] == by:
                entries[entry["file"]] = entry
            else:
                others = True
    except (ValueError, KeyError, TypeError):
        run.note(f"{journal} ends in the middle of a line: the images before it are kept")
    if others and not entries:
        run.note(f"{journal} was written with another model or number of labels: all images are annotated again")
    return entries


def _append(journal: Path, entries: Sequence[Annotation]) -> None:
    """Append entries to the journal, whose last line can be truncated if the disk is full."""
    with stores.writing(str(journal), "what is annotated"), open(journal, "ab") as file:
        file.write(_lines(*entries))


def _lines(*entries: Mapping[str, Any]) -> bytes:
    return "".join(json.dumps(dict(entry)) + "\n" for entry in entries).encode()


def _write(
    request: ImageFolder,
    entries: Sequence[Annotation],
    names: Sequence[str],
    model: Any,
    extractor: Extractor,
    model_contents: str,
) -> None:
    """Write the output in the format that its extension selects, and the additional CSV file."""
    ending = Path(request.out).suffix.lower()
    words = [[names[label] for label in entry["labels"]] for entry in entries]
    real, top = learned_values(model), request.top
    columns: Sequence[str] = () if "numbers" not in entries[0] else names if real else chances(names)
    numbers = np.array([entry.get("numbers", []) for entry in entries])
    table = as_csv([entry["file"] for entry in entries], words, "\n", columns, numbers)
    if request.csv is not None:
        stores.replace_file(Path(request.csv), table.encode())
    if ending == ".csv":
        stores.replace_file(Path(request.out), table.encode())
    elif ending == ".json":
        document = {
            entry["file"]: ({} if real else {"labels": row, "scores": entry["scores"]})
            | ({"values" if real else "probabilities": dict(zip(names, entry["numbers"]))} if columns else {})
            for entry, row in zip(entries, words, strict=True)
        }
        stores.replace_file(Path(request.out), (json.dumps(document, indent=1) + "\n").encode())
    else:
        parameters: dict[str, Any] = {"folder": stores.relative_path(request.out, request.folder)}
        parameters |= {"fingerprint": extractor.fingerprint, "contents": {"the model": model_contents}}
        writer = stores.create_results(
            request.out,
            len(entries),
            list(names) if real else model.most_labels(top),
            dtype="float64" if real else "int32",
            kind="values" if real else "labels",
            attributes={"split": None, "top": top, "label_names": list(names)},
            sample_ids=[entry["file"] for entry in entries],
            overwrite=True,
            provenance=stores.Provenance([request.model], parameters),
        )
        found = numbers if real else np.full(writer.array.shape, -1, np.int32)
        for row, entry in zip(found, entries, strict=True):
            row[: len(entry["labels"])] = entry["labels"]
        for block in writer.missing():
            writer.write(block, found[writer.rows(block)])
        writer.finish()


def made_from_images(model: str) -> bool:
    """Return whether a model was fitted on a store of images and can therefore annotate image files."""
    parameters = stores.describe(model)["provenance"].get("parameters")
    return isinstance(parameters, dict) and parameters.get("dataset") == PART


def stored_image(store: stores.FeatureStore, name: str) -> np.ndarray | None:
    """Return the image of a sample, or None if its file no longer exists; digits are read from scikit-learn."""
    if store.attributes.get("dataset") == DIGITS:
        return digit_image(name)
    folder = store.attributes.get("folder")
    if folder is None or store.attributes.get("dataset") != PART:
        return None
    root = Path(store.folder.absolute(folder)).resolve()
    path = (root / name).resolve()
    if not path.is_relative_to(root):  # A page must not show files outside the folder.
        return None
    try:
        return read_image(path)
    except UnreadableImage:
        return None
