"""Active learning: selection of samples for annotators, and update of a model with their answers."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from dmo import stores
from dmo.blocks import alike, presence, stacked
from dmo.datasets import Samples
from dmo.errors import UserError, visible
from dmo.features import Extractor, find_images
from dmo.formats.files import Stacked, csv_rows, existing
from dmo.formats.labels import SEPARATORS, label_sets, split_cells
from dmo.formats.sources import is_image_folder
from dmo.hashing import joined_keys
from dmo.metrics import ranking_scores
from dmo.stores.temporary import rows_on_disk
from dmo.workflows.apply import (
    ALL,
    AppliedModel,
    blocks_of,
    chosen_split,
    known_labels,
    learned_values,
    rows_of,
    sample_keys,
    views_for,
)
from dmo.workflows.images import made_from_images
from dmo.workflows.program import Session, say_unreadable
from dmo.workflows.rows import open_applied, open_rows
from dmo.workflows.tables import csv_text, guarded, unguarded
from dmo.workflows.trial import row_names

KINDS = ("uncertain", "wrong", "different")
_DOUBTS = 0.5
HELD_OUT = ("test", "val", "valid", "validation", "dev")
"""Names of splits for evaluation, whose samples are not suggested because `dmo update` would train on the answers."""
_SAMPLE = ("sample", "filepath", "image", "file", "id")
"""Possible names of the column with sample names, most reliable first. In exports of Label Studio, "id" is the task."""
_LABELS = ("labels", "label", "choice")
"""Possible names of the column with labels. Templates of Label Studio use "choice"."""
_JSON = ("{", "[{")
"""First characters of cells in which Label Studio writes several choices as JSON."""
_TASK = "annotation_id"
"""Key by which tasks in JSON-MIN and CSV exports of Label Studio are recognized."""
_NO_LABELS = frozenset(["textarea", "rating", "number", "datetime", "relation"])
"""Types of Label Studio results that do not contain labels."""
_SUGGESTED = "suggested"
"""Name of the column with a copy of the suggested labels, by which `dmo update` recognizes unchanged suggestions."""
_OURS = (_SUGGESTED, "doubts")
"""Names of columns that `dmo suggest` writes and that do not contain answers."""
_ANSWERS = "answers"
_WHOLE = "whole_split"


def open_suggested(
    model: str, features: str, split: str | None, reading: Mapping[str, Any] | None = None
) -> AppliedModel:
    """Load a model and open the samples that can be suggested, by default all except samples for evaluation."""
    applied = open_applied(model, features, split, ALL, reading=reading, labeled=True)
    if split is not None or applied.store.split is None:
        return applied
    rows = np.flatnonzero(~np.isin(applied.store.split, HELD_OUT))
    if not len(rows):
        raise UserError(
            f"{features} has only samples of {', '.join(applied.store.splits)}; pass --split with one of them"
        )
    return applied.keep(rows)


def suggestions(
    applied: AppliedModel,
    count: int,
    kinds: Sequence[str] = KINDS,
    answers: Mapping[str, Sequence[str]] | None = None,
) -> list[dict[str, Any]]:
    """Select the samples to label or to check next, for each kind of suggestion; the most important sample is first."""
    # "uncertain" selects unlabeled samples with the largest expected number of wrong labels, sum_l min(p_l, 1 - p_l).
    # "wrong" selects labeled samples that differ most from out-of-fold probabilities, by max_l |y_l - p_l|. "different"
    # selects unlabeled samples whose embedding (or probabilities) is farthest from all labeled samples and from the
    # samples selected before. Samples with answers are treated as labeled and are not selected again.
    from dmo.decide.out_of_fold import out_of_fold_scores  # Import lazily, because importing scikit-learn takes 2 s.
    from dmo.inputs import Data  # Import lazily for the same reason.

    model, ids, names = applied.model, applied.ids, names_of(applied)
    if getattr(model, "decoding_", None) is None:
        raise UserError(
            f"this {type(model).__name__} has no probabilities to rank samples by; fit it with the parameter decoder"
        )
    Y = np.zeros((applied.n, len(names)), np.uint8) if applied.Y is None else applied.Y
    labeled, looked_at = labeled_rows(Y), np.zeros(len(Y), bool)
    place = {sample: row for row, sample in enumerate(ids)}
    by_row = {place[sample]: labels for sample, labels in (answers or {}).items() if sample in place}
    if by_row:
        Y = with_answers(Y, by_row, names)
        labeled[list(by_row)] = looked_at[list(by_row)] = True
    unknown, Y = np.isnan(Y), np.nan_to_num(Y).astype(np.uint8)
    p = rows_of(applied, lambda views: np.asarray(model.predict_proba(views)))
    likeliest = rows_of(applied, lambda views: model.decide(views).numbers(model.most_labels()))
    found: list[dict[str, Any]] = []

    def add(why: str, rows: np.ndarray, values: np.ndarray, doubts: list[list[str]] | None = None) -> None:
        for place, (row, value) in enumerate(zip(rows, values, strict=True)):
            entry = {"sample": ids[row], "why": why, "value": float(value)}
            entry |= {"labels": [names[label] for label in likeliest[row] if label >= 0]}
            found.append(entry if doubts is None else entry | {"doubts": doubts[place]})

    for why in kinds:
        rest = np.flatnonzero(~labeled)
        if why == "uncertain" and len(rest):
            value = np.minimum(p, 1 - p)[rest].sum(axis=1)
            best = np.argsort(-value, kind="stable")[:count]
            add(why, rest[best], value[best])
        elif why == "wrong" and labeled.sum() > 1:
            rows = np.flatnonzero(labeled)
            own = model._checked(applied.some(rows))
            known = ~unknown[rows] if unknown[rows].any() else None
            scores = model._calibrated(out_of_fold_scores(model, Data.of(own, Y[rows], known=known)))
            held = model._shared(model.decoding_.probabilities(scores))
            off = np.where(unknown[rows], 0.0, np.abs(Y[rows] - held))
            rows, off = rows[~looked_at[rows]], off[~looked_at[rows]]
            best = np.argsort(-off.max(axis=1), kind="stable")[:count]
            doubts = [[names[label] for label in np.argsort(-off[i]) if off[i, label] > _DOUBTS] for i in best]
            add(why, rows[best], off[best].max(axis=1), doubts)
        elif why == "different" and len(rest):
            Z = rows_of(applied, model.transform) if hasattr(model, "transform") else p
            chosen, far = _farthest(Z[rest], Z[labeled], count)
            add(why, rest[chosen], far)
    return found


def _farthest(new: np.ndarray, known: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Select the rows of `new` that are farthest from `known` and from the rows selected before.

    Return the indices of these rows and their distances.
    """
    if len(known):
        from sklearn.metrics import pairwise_distances_argmin_min

        distance = np.asarray(pairwise_distances_argmin_min(new, known)[1])
    else:
        distance = np.linalg.norm(new - new.mean(axis=0), axis=1)
    rows, values = [], []
    for _ in range(min(count, len(new))):
        row = int(distance.argmax())
        rows.append(row)
        values.append(float(distance[row]))
        distance = np.minimum(distance, np.linalg.norm(new - new[row], axis=1))
        distance[row] = -1.0
    return np.array(rows, int), np.array(values)


def as_label_studio(found: Sequence[dict[str, Any]], prefix: str, version: str) -> str:
    """Format suggestions as tasks of Label Studio with predicted labels."""
    tasks = []
    for entry in found:
        choice = {"from_name": "labels", "to_name": "image", "type": "choices", "value": {"choices": entry["labels"]}}
        predictions = [{"model_version": version, "score": entry["value"], "result": [choice]}]
        data = {"image": prefix + entry["sample"]} | {k: v for k, v in entry.items() if k != "labels"}
        tasks.append({"data": data, "predictions": predictions})
    return json.dumps(tasks, ensure_ascii=False)


def as_csv(found: Sequence[dict[str, Any]], prefix: str) -> str:
    """Format suggestions as a CSV table that `CSVDataset` of FiftyOne can read."""
    # The column `suggested` repeats the predicted labels. `dmo update` rejects a table in which no label was changed.
    # Labels that contain a separator are written as {"choices": labels}.
    #
    # Cells that a spreadsheet would evaluate as a formula are escaped as in `dmo.workflows.tables.csv_rows`. Paths must
    # remain valid and are therefore prefixed with "./" instead.
    lines = [["filepath", "sample", "why", "value", "labels", "doubts", "suggested"]]
    for entry in found:
        path = prefix + entry["sample"]
        lists = (_cell(entry.get(key, [])) for key in ("labels", "doubts", "labels"))
        path = visible(path) if guarded(path) == visible(path) else f"./{visible(path)}"
        lines.append([path, guarded(entry["sample"]), entry["why"], entry["value"], *lists])
    return csv_text(lines)


def _cell(labels: Sequence[str]) -> str:
    """Format labels as the text of a cell, from which `read_answers` restores the labels."""
    plain = not any(set(SEPARATORS) & set(label) or label.startswith(_JSON) for label in labels)
    return guarded(";".join(labels)) if plain else json.dumps({"choices": list(labels)})


def read_answers(path: str | Path, known: Collection[str] = (), separator: str | None = None) -> dict[str, list[str]]:
    """Read the answers of annotators, by sample name, from a JSON or CSV file.

    Cells that are equal to one of the `known` labels are not split at separators.
    """
    try:
        text = existing(path).read_text(encoding="utf-8-sig")
        if str(path).lower().endswith(".csv"):
            return one_answer_each(_of_table(text, known, separator))
        found = json.loads(text, object_pairs_hook=_each_once)
        return one_answer_each(_of_images(found) if isinstance(found, dict) else _of_tasks(found))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}; pass a file of answers") from error
    except (ValueError, TypeError, AttributeError, RecursionError, csv.Error) as error:
        reason = str(error)[:300] if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"[:300]
        raise UserError(
            f"{path} contains no answers ({reason}); export Label Studio's tasks or FiftyOne's classifications as JSON "
            "or CSV, or write columns 'sample' and 'labels'"
        ) from error


def one_answer_each(answers: Iterable[tuple[str, list[str]]]) -> dict[str, list[str]]:
    """Collect one answer per sample; raise UserError if a sample has different answers."""
    found: dict[str, list[str]] = {}
    for sample, labels in answers:
        if set(found.setdefault(sample, labels)) != set(labels):
            raise UserError(f"sample {sample!r} has the answers {found[sample]} and {labels}; keep one answer")
    return found


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Create a dictionary from the pairs of a JSON object; raise UserError if a name occurs twice."""
    if len(found := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise UserError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice in one object")
    return found


def _of_table(text: str, known: Collection[str], separator: str | None) -> Iterable[tuple[str, list[str]]]:
    lines = csv_rows(StringIO(text, newline=""))
    head: list[str] = next(lines, [])
    records = {}
    if len(set(head)) < len(head):
        raise UserError(f"its first line {head} has a column name twice")
    for fields in lines:
        if len(fields) not in (0, len(head)):
            raise UserError(
                f"line {lines.line_num} has {len(fields)} fields, the first line {len(head)}; quote fields with a comma"
            )
        if fields:
            records[f"line {lines.line_num}"] = dict(zip(head, fields, strict=True))
    if _SUGGESTED in head and records and all(row.get("labels") == row[_SUGGESTED] for row in records.values()):
        raise UserError(
            f"no label differs from dmo suggest; correct them, or remove the column {_SUGGESTED!r} if all are right"
        )
    cells = [value for row in records.values() for value in row.values()]
    if _TASK in head or any(cell.startswith(_JSON) for cell in cells):
        return _of_records(records, ", ".join(head))
    return _of_columns(records, head, known, separator)


def _of_columns(
    records: Mapping[str, Mapping[str, str]], head: Sequence[str], known: Collection[str], separator: str | None
) -> Iterable[tuple[str, list[str]]]:
    """Read the answers in a table with one column of labels or label lists, or with 0/1 columns of labels."""
    import pandas as pd

    named = [name for name in head if name in _LABELS]
    others = named or [name for name in head if name not in (*_SAMPLE, *_OURS)]
    table = pd.DataFrame.from_records(list(records.values()), columns=list(head))[others]
    if len(others) == 1:
        given, _ = split_cells([unguarded(cell) for cell in table[others[0]]], separator, known)
    elif len(others) > 1 and not named and table.isin(["0", "1", ""]).all(axis=None):
        given = label_sets("the columns after the sample", table.replace("", None))
    else:
        return _of_records(records, ", ".join(head))
    return [(_sample(record, where, _SAMPLE), labels) for (where, record), labels in zip(records.items(), given)]


def _of_records(records: Mapping[str, Mapping[str, Any]], names: str) -> Iterable[tuple[str, list[str]]]:
    """Read the answers in records from Label Studio or from a table; exactly one field must contain labels."""
    named = dict.fromkeys(
        name
        for record in records.values()
        for name, value in record.items()
        if name in _LABELS or (_are_choices(value) and name not in _OURS)
    )
    if records and len(named) != 1:
        raise UserError(
            f"expected one field of labels, got {' and '.join(named) or 'none'}; keep one field, named 'labels'"
        )
    for where, record in records.items():
        name, theirs = next(iter(named)), _TASK in record
        if name not in record and not theirs:
            raise UserError(f"{where} has no {name!r}")
        given = record.get(name, [])  # Label Studio omits empty answers.
        if isinstance(given, str):
            given = [given] if theirs and not given.startswith(_JSON) else _parsed(unguarded(given))
        yield _sample(record, where, _SAMPLE[:-1] if theirs else _SAMPLE), _labels(given, where)


def _sample(record: Mapping[str, Any], where: str, names: Sequence[str]) -> str:
    for name in names:
        if isinstance(record.get(name), str | int) and record[name] != "":
            return unguarded(str(record[name]))
    raise UserError(
        f"{where} has no sample name: it has {', '.join(map(str, record))}, expected one of {', '.join(names)}"
    )


def _are_choices(value: Any) -> bool:
    found = _parsed(value) if isinstance(value, str) and value.startswith("{") else value
    return isinstance(found, Mapping) and "choices" in found


def _parsed(text: str) -> Any:
    """Parse the labels in a cell, which are written as JSON by Label Studio, or separated by ";"."""
    if text.startswith(_JSON):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text.split(";")


def _labels(given: Any, where: str) -> list[str]:
    """Convert a label, a list of labels, or {"choices": labels} to a list of label names."""
    if isinstance(given, Mapping) and "choices" in given:
        given = given["choices"]
    parts = given if isinstance(given, list) else [given]
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int):
            lists = [name for name, value in part.items() if isinstance(value, list)] if isinstance(part, dict) else []
            raise UserError(
                f"{where} holds {', '.join(lists) or json.dumps(part)[:60]}, expected choices, a list of labels"
            )
    return [str(label).strip() for label in parts if str(label).strip()]


def _of_tasks(tasks: Sequence[Any]) -> Iterable[tuple[str, list[str]]]:
    """Read the answers in tasks of Label Studio, in the format JSON or JSON-MIN."""
    for number, task in enumerate(tasks):
        if not isinstance(task, Mapping):
            raise UserError(f"entry {number} is {json.dumps(task)[:60]}, expected a task")
    if not all(isinstance(task.get("data"), Mapping) for task in tasks):
        records = {f"entry {number}": task for number, task in enumerate(tasks)}
        yield from _of_records(records, ", ".join(dict.fromkeys(name for task in tasks for name in task)))
        return
    for number, task in enumerate(tasks):
        where = f"entry {number}"
        given = [one for one in task.get("annotations") or [] if not one.get("was_cancelled")]
        if given:
            labels: list[str] = []
            for result in given[-1]["result"]:
                value = result.get("value", {})
                if "choices" in value:
                    labels += _labels(value["choices"], where)
                elif not {result.get("type"), *value} & _NO_LABELS:
                    raise UserError(f"{where} holds {result.get('type') or ', '.join(value)}, expected choices")
            yield _sample(task["data"], where, _SAMPLE), labels


def _of_images(found: Mapping[str, Any]) -> Iterable[tuple[str, list[str]]]:
    """Read the answers in an export of FiftyOne, which maps images to class indices, class names or lists of them.

    Images with the value null have no answer.
    """
    if not isinstance(found.get("labels"), Mapping):
        raise UserError(f"it has {', '.join(found) or 'nothing'}, expected FiftyOne's classes and labels")
    classes = found.get("classes") or []
    for sample, given in found["labels"].items():
        several = given if isinstance(given, list) else [given]
        plain = [one["label"] if isinstance(one, Mapping) and "label" in one else one for one in several]
        for one in plain:
            if type(one) is int and not 0 <= one < len(classes):
                raise UserError(f"image {sample!r} is of class {one}, there are {len(classes)} classes")
        if given is not None:
            yield sample, _labels([classes[one] if type(one) is int else one for one in plain], f"image {sample!r}")


def kept_answers(model: str) -> dict[str, list[str]]:
    """Return the answers of annotators with which a model has been updated so far, by sample."""
    return dict(_parameters(model).get(_ANSWERS, {}))


def _parameters(model: str) -> dict[str, Any]:
    return dict((stores.describe(model)["provenance"] or {}).get("parameters") or {})


def names_of(applied: AppliedModel) -> list[str]:
    """Return the label names of the model, or the label names of the store if the model has none."""
    if learned_values(applied.model):
        cure = "put the right numbers into the files, and run dmo ingest and dmo fit again"
        raise UserError(f"the answers are labels, but the model learned regression targets; {cure}")
    names, stored = applied.label_names(), applied.store.label_names
    unnamed = names == [str(label) for label in range(len(names))]
    return list(stored) if unnamed and stored is not None and len(stored) == len(names) else names


def labeled_rows(Y: np.ndarray) -> np.ndarray:
    """Return a mask of the samples with known labels.

    If no value is missing (NaN), samples without positive labels are treated as unlabeled.
    """
    known = ~np.isnan(Y)
    return np.asarray(Y.any(axis=1) if known.all() else known.any(axis=1))


def with_answers(Y: np.ndarray, answers: Mapping[int, Sequence[str]], names: Sequence[str]) -> np.ndarray:
    """Return a copy of the label matrix in which the rows with answers are replaced with the answers."""
    out, column = Y.copy(), {name: label for label, name in enumerate(names)}
    for row, labels in answers.items():
        out[row] = 0
        out[row, [column[name] for name in labels]] = 1
    return out


def update(
    run: Session,
    applied: AppliedModel,
    model: str,
    features: str,
    out: str,
    answers: Mapping[str, Sequence[str]],
    split: str | None = None,
    new_labels: bool = False,
    overwrite: bool = False,
    new: str | None = None,
) -> dict[str, Any]:
    """Update a model with answers of annotators, by an incremental fit if possible and otherwise by a new fit."""
    # The argument `new` is a table or a folder of new samples. New samples with answers are added to a copy of the
    # feature store. A new fit uses the training samples of the old model and all samples with current or earlier
    # answers, which replace the labels. The training samples of the old model are the samples of its split with known
    # labels. If the model was saved without its split, `labeled_rows` selects these samples. The new model is saved
    # with all answers.
    from sklearn.base import clone  # Import lazily, because `dmo update --help` needs no estimators.

    from dmo.workflows.fitting import Training, save, set_hierarchy_by_column  # Import slow estimators lazily.

    known_labels(applied, features)
    source, earlier = applied, applied.model._sample_keys
    recorded = np.zeros(applied.n, bool) if applied.learned is None else applied.learned
    if new is not None:
        place = f"{out.removesuffix('.zarr')}-samples.zarr"
        if os.path.abspath(place) in map(os.path.abspath, (features, applied.store.url)):
            raise UserError(
                f"{place} would be written while it is read; choose another name for the new model than {out}"
            )
        features = _grown(run, model, applied, features, new, answers, place, overwrite)
        applied = open_applied(model, features, ALL, ALL)
    parameters, names = _parameters(model), names_of(applied)
    before = dict(parameters.get(_ANSWERS, {}))
    by_row = _by_row(answers, applied.ids, features)
    added = _new_names(by_row, names, features, new_labels)
    names = [*names, *added]
    Y = np.hstack([np.asarray(applied.Y), np.zeros((applied.n, len(added)), np.asarray(applied.Y).dtype)])
    part = chosen_split(applied.store, parameters.get("split") if split is None else split, "train")
    # `dmo fit` uses all samples of its split, so a sample without labels is a negative sample for every label.
    whole = split is not None or parameters.get(_WHOLE, "split" in parameters)
    recorded = np.append(recorded, np.zeros(applied.n - source.n, bool))  # New samples are the last rows of the store.
    there = ~np.isnan(Y).all(axis=1)
    own = there if whole else labeled_rows(Y)
    if part is not None:
        own = own & (np.asarray(applied.store.split) == part)
    if split is None:
        own = own | (there & recorded)
    learned = {place: before[sample] for place, sample in enumerate(applied.ids) if sample in before}
    counts = _counted(by_row, learned, Y, names)
    seen = [*np.flatnonzero(own | recorded), *learned, *by_row]
    judge = None if added else _judge(applied, np.asarray(applied.Y), seen)
    before_after = [] if judge is None else [judge(applied.model)]
    goes_on = hasattr(applied.model, "pass_") and not any(own[row] or row in learned for row in by_row)
    Y = with_answers(Y, learned | by_row, names)
    if goes_on:
        rows, fitted = np.fromiter(by_row, int), applied.model
        fitted.partial_fit(applied.some(rows), _targets(fitted, Y[rows], added))
    else:
        rows = np.union1d(np.flatnonzero(own), np.fromiter(learned | by_row, int))
        fitted = clone(applied.model)
        # The model is refitted on a label matrix, so its hierarchy must refer to columns instead of label names.
        if applied.model.multilabel_ and applied.model.classes_.dtype.kind == "U":
            set_hierarchy_by_column(fitted, names)
        fitted.fit(applied.some(rows), _targets(applied.model, Y[rows], added))
    before_after += [] if judge is None else [judge(fitted)]
    kept = before | {applied.ids[row]: list(labels) for row, labels in by_row.items()}
    training = Training(applied.store, applied.some(rows), Y[rows], part)
    taught = rows if earlier is not None else np.union1d(rows, [*np.flatnonzero(own), *learned]).astype(int)
    places = [(applied, taught)]
    if new is not None:  # Keys can depend on the store, so save the keys of the original store, too.
        places.append((source, taught[taught < source.n]))
    found_keys = (sample_keys(one.store, one.some(some)) for one, some in places)
    keys = joined_keys(earlier if goes_on else None, *found_keys)
    save(fitted, out, training, overwrite, run.costs(), names, {_ANSWERS: kept, _WHOLE: whole}, keys)
    found: dict[str, Any] = {"model": out, "store": features, "split": part, "answers": len(by_row)}
    found |= {"new_labels": added, "test": dict(zip(("before", "after"), before_after))}
    return found | counts | {"all_answers": len(kept), "n_samples": len(rows), "goes_on": goes_on}


def _judge(applied: AppliedModel, Y: np.ndarray, seen: Collection[int]) -> Callable[[Any], dict[str, Any]] | None:
    """Return a function that evaluates a model on test samples without the rows `seen`, or None if none remain."""
    from dmo.workflows.evaluation import accuracy, chosen_figures, decided_rows  # Import slow estimators lazily.

    part = np.asarray(applied.store.split if applied.store.split is not None else np.full(applied.n, ""))
    rows = np.setdiff1d(np.flatnonzero((part == "test") & ~np.isnan(Y).all(axis=1)), list(seen))
    if not len(rows):
        return None
    some = applied.keep(rows)

    def measured(model: Any) -> dict[str, Any]:
        decided = blocks_of(some, lambda where: decided_rows(model, some.some(where)), "score samples")
        scores, sets = rows_on_disk(some.n, decided)
        if scores.shape[1] != Y.shape[1]:  # A class that no longer occurs is missing from the new model.
            return {}
        found = {"samples": len(rows), "lrap": ranking_scores(Y[rows], scores).lrap} | chosen_figures(Y[rows], sets)
        return found | accuracy(applied.store, sets, found)

    return measured


def _grown(
    run: Session,
    model: str,
    applied: AppliedModel,
    features: str,
    new: str,
    answers: Collection[str],
    path: str,
    overwrite: bool,
) -> str:
    """Write a copy of a feature store that also contains the new samples with answers; return the path of the copy.

    `new` is a table or an image folder.
    """
    old, extractor, views, ids = applied.store, None, dict[str, Any](), list[str]()
    if is_image_folder(new) and made_from_images(model):
        extractor, ids = Extractor.load(model), list(find_images(new)[0])
        views, failures = extractor.rows([Path(new) / name for name in ids])
        say_unreadable(run, {ids[i]: reason for i, reason in failures.items()})
        ids = [name for i, name in enumerate(ids) if i not in failures]
    else:
        read = open_rows(model, applied.model, new)
        views, ids = dict(read.views), list(read.sample_ids or ()) or row_names(Path(new).name, read.n_samples)
    known, there = _finder(applied.ids), _finder(ids)
    index = np.unique([row for name in answers if known(name) is None and (row := there(name)) is not None]).astype(int)
    count, labels, attributes = len(index), old.labels, dict(old.attributes)
    assert labels is not None  # The model was fitted on labels.
    if "folder" in attributes:
        attributes["folder"] = stores.relative_path(path, old.folder.absolute(attributes["folder"]))
    infos, sources, present = dict[str, stores.ViewSpec](), dict[str, Any](), dict[str, np.ndarray]()
    for view, own in views_for(applied.model, old, model).items():
        infos[own], rows = old.view_info(own), views[view][index]
        more = scipy.sparse.csr_array(rows) if infos[own].kind == "sparse" else rows
        sources[own] = Stacked([old.views[own], more], own)
        if (known_rows := presence(old.views[own])) is not None:
            present[own] = np.append(known_rows, np.ones(count, bool))
    Samples(
        sources,
        stacked([labels.astype(float), _unknown(labels, count)]),
        old.label_names,
        {own: names for own in sources if (names := old.feature_names(own)) is not None},
        [*applied.ids, *(ids[i] for i in index)],
        None if old.split is None else np.append(old.split, ["train"] * count),
        classes=old.class_labels,
        attributes=attributes,
    ).write(
        path,
        histograms=[own for own, info in infos.items() if info.histogram],
        dtypes={own: info.dtype for own, info in infos.items()},
        overwrite=overwrite,
        provenance=stores.Provenance([features, new], old.provenance["parameters"]),
        present=present,
    )
    if extractor is not None:
        extractor.save(path)
    run.note(f"{path} contains the samples of {features} and {count} of {new}; pass it to the next dmo update")
    return path


def _unknown(labels: Any, count: int) -> Any:
    """Return labels of `count` samples that are all unknown, in the same format as other labels."""
    return alike(np.full((count, labels.shape[1]), np.nan), labels)


def _counted(
    answers: Mapping[int, Sequence[str]], before: Mapping[int, Sequence[str]], Y: np.ndarray, names: Sequence[str]
) -> dict[str, int]:
    """Count the answers for unlabeled samples, the answers that change labels, and the answers without labels."""
    labeled, now = labeled_rows(Y), with_answers(Y, before, names)
    known = {
        row: {names[int(label)] for label in np.flatnonzero(now[row] == 1)}
        for row in answers
        if row in before or labeled[row]
    }
    return {
        "new_answers": len(answers) - len(known),
        "changed_answers": sum(set(answers[row]) != labels for row, labels in known.items()),
        "empty_answers": sum(not labels for labels in answers.values()),
    }


def _targets(model: Any, Y: np.ndarray, added: Sequence[str]) -> np.ndarray:
    """Convert a label matrix to the target format on which the model was fitted."""
    if model.multilabel_:
        return Y
    several = np.flatnonzero(Y.sum(axis=1) != 1)
    if several.size:
        raise UserError(
            f"{several.size} samples have no label or several labels, but the model needs one class per sample; answer "
            "with one label"
        )
    if added and model.classes_.dtype.kind != "U":
        raise UserError(
            f"the classes {', '.join(added)} are new, but the classes of the model are numbers; fit the model again"
        )
    return np.asarray([*model.classes_, *added])[Y.argmax(axis=1)]


def _by_row(answers: Mapping[str, Sequence[str]], ids: Sequence[str], features: str) -> dict[int, Sequence[str]]:
    """Map row indices of samples to the labels in their answers."""
    find, found = _finder(ids), dict[int, Sequence[str]]()
    for sample, labels in answers.items():
        if (row := find(sample)) is None:
            raise UserError(
                f"the answers contain the sample {sample!r}, which is not in {features}; pass the store of this "
                "sample, or --new with its table or folder"
            )
        if set(found.setdefault(row, labels)) != set(labels):
            raise UserError(f"{ids[row]!r} has the answers {list(found[row])} and {list(labels)}; keep one answer")
    return found


def _finder(ids: Sequence[str]) -> Callable[[str], int | None]:
    """Return a function that maps a sample id, or a path or URL that ends with it, to a row index."""
    place = {sample: row for row, sample in enumerate(ids)}
    stems: dict[str, list[int]] = {}
    for sample, row in place.items():
        stems.setdefault(os.path.splitext(sample)[0], []).append(row)

    def find(sample: str) -> int | None:
        parts = sample.replace("\\", "/").split("/")
        ends = ["/".join(parts[i:]) for i in range(len(parts))]
        rows = [place[end] for end in (sample, *ends) if end in place]
        rows += [stems[end][0] for end in ends if len(stems.get(end, [])) == 1]
        return rows[0] if rows else None

    return find


def _new_names(answers: Mapping[int, Sequence[str]], names: Sequence[str], features: str, allowed: bool) -> list[str]:
    new = list(dict.fromkeys(label for labels in answers.values() for label in labels if label not in names))
    if new and not allowed:
        some = ", ".join(list(names)[:5])
        raise UserError(
            f"the answers contain the label {new[0]!r}, which is not among the {len(names)} labels of {features} "
            f"({some}, ...); correct it, or pass --new-labels"
        )
    return new
