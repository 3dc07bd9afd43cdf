"""What people answered to suggestions: read from annotation tools' files, and taken in by a model."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from dmo import stores
from dmo.blocks import Subset
from dmo.errors import UserError
from dmo.workflows.apply import ALL, SCORES, AppliedModel, chosen_split, known_labels, open_applied, unguarded
from dmo.workflows.fitting import Training, save
from dmo.workflows.program import Session

_SAMPLE = ("sample", "filepath", "image", "file", "id")
"""Columns that name a sample, the first that is there; Label Studio's own "id" is of its task."""
_ANSWERS = "answers"
_WHOLE = "whole_split"


def read_answers(path: str | Path) -> dict[str, list[str]]:
    """Read what people answered.

    Parameters
    ----------
    path : path-like
        An export of Label Studio (JSON, JSON-MIN or CSV) or FiftyOne (labels.json of a FiftyOneImageClassificationDataset, or
        CSV), or a CSV with the columns "sample" and "labels" (";" between labels), such as `dmo suggest` writes.

    Returns
    -------
    dict of str to list of str
        Labels by sample; of Label Studio's tasks those of the last annotation, without the tasks that were skipped.

    Raises
    ------
    UserError
        For a file that is none of these.

    Examples
    --------
    >>> from pathlib import Path
    >>> from dmo.workflows.answers import read_answers
    >>> task = '{"data": {"sample": "1.jpg"}, "annotations": [{"result": [{"value": {"choices": ["sea"]}}]}]}'
    >>> _ = Path("answers.json").write_text(f"[{task}]")
    >>> read_answers("answers.json")
    {'1.jpg': ['sea']}
    >>> _ = Path("answers.csv").write_text("sample,labels\\n1.jpg,sea;sky\\n")
    >>> read_answers("answers.csv")
    {'1.jpg': ['sea', 'sky']}
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        if str(path).lower().endswith(".csv"):
            return dict(map(_of_row, csv.DictReader(StringIO(text, newline=""))))
        found = json.loads(text)
        return _of_images(found) if isinstance(found, dict) else dict(_of_tasks(found))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; pass a file of answers") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(
            f"{path} holds no answers ({error!r}); export Label Studio's tasks or FiftyOne's classifications as JSON or CSV, "
            f"or write columns 'sample' and 'labels'"
        ) from error


def _of_row(row: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Sample and labels of a row of a table, or of a task of JSON-MIN."""
    named = [str(row[column]) for column in _SAMPLE if row.get(column) is not None]
    return unguarded(named[0]), _choices(row["labels"])


def _choices(given: Any) -> list[str]:
    """Labels from a list of them, {"choices": labels} as a mapping or as text, or text with ";" between them."""
    if isinstance(given, str) and given.startswith("{"):
        given = json.loads(given)
    if isinstance(given, Mapping):
        given = given["choices"]
    if isinstance(given, str):
        given = unguarded(given).split(";")
    return [str(label).strip() for label in given if str(label).strip()]


def _of_tasks(tasks: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, list[str]]]:
    """Of Label Studio, in full or JSON-MIN."""
    for task in tasks:
        if "data" not in task:
            yield _of_row({"labels": []} | dict(task))
            continue
        given = [one for one in task.get("annotations", []) if not one.get("was_cancelled")]
        if given:
            parts = [_choices(result["value"].get("choices", [])) for result in given[-1]["result"]]
            yield _of_row(task["data"] | {"labels": [label for part in parts for label in part]})


def _of_images(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Of FiftyOne: numbers of classes, names, or lists of either, by image."""
    classes, answers = found.get("classes") or [], {}
    for sample, given in found["labels"].items():
        several = [] if given is None else given if isinstance(given, list) else [given]
        plain = [one["label"] if isinstance(one, Mapping) else one for one in several]
        answers[str(sample)] = [classes[one] if isinstance(one, int) else str(one) for one in plain]
    return answers


def kept_answers(model: str) -> dict[str, list[str]]:
    """Look up what a model remembers of the answers that it took in.

    Parameters
    ----------
    model : str
        Its path.

    Returns
    -------
    dict of str to list of str
        Labels by sample; empty where it took in none.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.workflows.answers import kept_answers
    >>> dmo.MultiViewRidge("linear").fit(np.eye(3), np.eye(3)).save("model.zarr")
    >>> kept_answers("model.zarr")
    {}
    """
    return dict(_parameters(model).get(_ANSWERS, {}))


def _parameters(model: str) -> dict[str, Any]:
    return dict((stores.describe(model)["provenance"] or {}).get("parameters") or {})


def names_of(applied: AppliedModel) -> list[str]:
    """Names of the labels that people see: the model's, or the store's where that learned from columns without names."""
    names, stored = applied.label_names(), applied.store.label_names
    unnamed = names == [str(label) for label in range(len(names))]
    return list(stored) if unnamed and stored is not None and len(stored) == len(names) else names


def labeled_rows(Y: np.ndarray) -> np.ndarray:
    """Tell which samples have labels.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        0/1, NaN where it is unknown.

    Returns
    -------
    ndarray of shape (n,), bool
        Whether some label is known; where all are, as a store without gaps has them, whether the sample carries one.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.workflows.answers import labeled_rows
    >>> labeled_rows(np.array([[0, 1], [0, 0]])).tolist(), labeled_rows(np.array([[0, np.nan], [np.nan, np.nan]])).tolist()
    ([True, False], [True, False])
    """
    known = ~np.isnan(Y)
    return np.asarray(Y.any(axis=1) if known.all() else known.any(axis=1))


def with_answers(Y: np.ndarray, answers: Mapping[int, Sequence[str]], names: Sequence[str]) -> np.ndarray:
    """Put answers in the place of labels.

    Parameters
    ----------
    Y : ndarray of shape (n, L)
        Labels; stays as it is.
    answers : mapping of int to sequence of str
        Labels by row: all that it carries.
    names : sequence of str
        Of the labels.

    Returns
    -------
    ndarray of shape (n, L)
        Labels.

    Examples
    --------
    >>> import numpy as np
    >>> from dmo.workflows.answers import with_answers
    >>> with_answers(np.zeros((2, 2), int), {1: ["sky"]}, ["sea", "sky"]).tolist()
    [[0, 0], [0, 1]]
    """
    out, column = Y.copy(), {name: label for label, name in enumerate(names)}
    for row, labels in answers.items():
        out[row] = 0
        out[row, [column[name] for name in labels]] = 1
    return out


def update(
    run: Session,
    model: str,
    features: str,
    out: str,
    answers: Mapping[str, Sequence[str]],
    split: str | None = None,
    new_labels: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Take in what people answered: a model that goes on learns from the answers, any other is fitted anew with them.

    The new model learns from the samples that the old one had, and from all that were answered for, now or before, with their
    answers in the place of their labels. Those that the old one had are the samples of its split with a known label; where a
    model does not say what it learned from, those of `labeled_rows`. It remembers the answers.

    Parameters
    ----------
    run : Session
        Knows the costs.
    model : str
        Path of a model that scores labels.
    features : str
        Path of the store of the samples.
    out : str
        Path of the new model.
    answers : mapping of str to sequence of str
        All labels of each sample, by its id, or a path or address that ends with it.
    split : str or None
        Samples of the store to learn from besides; default: those of the model's split, else "train" where the store has it,
        else all.
    new_labels : bool, default=False
        Take labels that nobody carried before; otherwise they are refused.
    overwrite : bool, default=False
        Replace a model at `out`.

    Returns
    -------
    dict
        Of a report: samples, answers, new labels, and how the model took them in.

    Raises
    ------
    UserError
        For answers of samples that the store lacks, and of unknown labels.
    StoreError
        Where the store has other labels than the model.

    Examples
    --------
    >>> import numpy as np
    >>> import dmo
    >>> from dmo.datasets.writing import Source, write
    >>> from dmo.workflows.answers import update
    >>> from dmo.workflows.program import session
    >>> X, Y = np.random.default_rng(0).normal(size=(30, 3)), np.eye(2, dtype=np.uint8)[np.arange(30) % 2]
    >>> Y[20:] = 0
    >>> _ = write(Source({"x": X}, Y, ["sea", "sky"]), "set.zarr")
    >>> dmo.MultiViewRidge("linear").fit({"x": X[:20]}, Y[:20]).save("model.zarr")
    >>> with session(as_json=True) as run:
    ...     update(run, "model.zarr", "set.zarr", "new.zarr", {"25": ["sea"]})["n_samples"]
    21
    """
    applied = open_applied(model, features, ALL, ALL, SCORES)
    known_labels(applied, features)
    parameters, names = _parameters(model), names_of(applied)
    before = dict(parameters.get(_ANSWERS, {}))
    by_row = _by_row(answers, applied.ids(), features)
    added = _new_names(by_row, names, features, new_labels)
    names = [*names, *added]
    Y = np.hstack([np.asarray(applied.Y), np.zeros((applied.n, len(added)), np.asarray(applied.Y).dtype)])
    part = chosen_split(applied.store, parameters.get("split") if split is None else split, "train")
    # a model of `dmo fit` learned from every sample of its split: one without labels says that it carries none of them
    whole = split is not None or parameters.get(_WHOLE, "split" in parameters)
    own = ~np.isnan(Y).all(axis=1) if whole else labeled_rows(Y)
    if part is not None:
        own &= np.asarray(applied.store.split) == part
    learned = {place: before[sample] for place, sample in enumerate(applied.ids()) if sample in before}
    goes_on = hasattr(applied.model, "pass_") and not any(own[row] or row in learned for row in by_row)
    Y = with_answers(Y, learned | by_row, names)
    if goes_on:
        rows, fitted = np.fromiter(by_row, int), applied.model
        fitted.partial_fit(applied.some(rows), _targets(fitted, Y[rows], added))
    else:
        rows = np.union1d(np.flatnonzero(own), np.fromiter(learned | by_row, int))
        fitted = clone(applied.model)
        fitted.fit(applied.some(rows), _targets(applied.model, Y[rows], added))
    kept = before | {applied.ids()[row]: list(labels) for row, labels in by_row.items()}
    views = {name: Subset(view.source, view.index[rows]) for name, view in applied.views.items()}
    training = Training(applied.store, views, Y[rows], part)
    save(fitted, out, training, overwrite, run.costs(), names, {_ANSWERS: kept, _WHOLE: whole})
    found: dict[str, Any] = {
        "model": out,
        "store": features,
        "split": part,
        "answers": len(by_row),
        "new_labels": added,
    }
    return found | {"all_answers": len(kept), "n_samples": len(rows), "goes_on": goes_on}


def _targets(model: Any, Y: np.ndarray, added: Sequence[str]) -> np.ndarray:
    """Labels in the form that the model was fitted on."""
    if model.multilabel_:
        return Y
    several = np.flatnonzero(Y.sum(axis=1) != 1)
    if several.size:
        raise UserError(
            f"{several.size} samples have no label or several, and the model learned one class a sample; answer with one label"
        )
    if added and model.classes_.dtype.kind != "U":
        raise UserError(f"the classes {', '.join(added)} are new to a model whose classes are no names; fit it anew")
    return np.asarray([*model.classes_, *added])[Y.argmax(axis=1)]


def _by_row(answers: Mapping[str, Sequence[str]], ids: Sequence[str], features: str) -> dict[int, Sequence[str]]:
    """Row -> labels: an answer names a sample by its id, or by a path or address that ends with it or its stem."""
    place = {sample: row for row, sample in enumerate(ids)}
    stems: dict[str, list[int]] = {}
    for sample, row in place.items():
        stems.setdefault(os.path.splitext(sample)[0], []).append(row)
    found: dict[int, Sequence[str]] = {}
    for sample, labels in answers.items():
        parts = sample.replace("\\", "/").split("/")
        ends = ["/".join(parts[i:]) for i in range(len(parts))]
        rows = [place[end] for end in (sample, *ends) if end in place]
        rows += [stems[end][0] for end in ends if len(stems.get(end, [])) == 1]
        if not rows:
            raise UserError(
                f"answers name the sample {sample!r}, which {features} lacks; pass the store that it is from"
            )
        found[rows[0]] = labels
    return found


def _new_names(answers: Mapping[int, Sequence[str]], names: Sequence[str], features: str, allowed: bool) -> list[str]:
    new = list(dict.fromkeys(label for labels in answers.values() for label in labels if label not in names))
    if new and not allowed:
        some = ", ".join(list(names)[:5])
        raise UserError(
            f"answers name {new[0]!r}, which is none of the {len(names)} labels of {features} ({some}, ...); correct it, or "
            f"pass --new-labels"
        )
    return new
