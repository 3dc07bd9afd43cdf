"""`dmo search`: the samples nearest to a picture, a sample or labels in the space that a model learnt."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

import numpy as np
import typer

from dmo.blocks import row_blocks
from dmo.cli.applied import BLOCK, Applied, open_applied
from dmo.cli.options import ALL, Features, Json, Model, Split
from dmo.cli.pictures import model_extractor
from dmo.cli.session import cost_rows, grid, session, show
from dmo.methods.retrieval import answering, best, similar
from dmo.progress import stage

LABELS_SHOWN = 5


def search(
    model: Model,
    features: Features,
    image: Annotated[str | None, typer.Option(help="A file with a picture to search with.")] = None,
    sample: Annotated[str | None, typer.Option(help="The id of a sample of the store to search with.")] = None,
    labels: Annotated[str | None, typer.Option(help="Labels to search for, comma-separated: 'sky, water'.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Samples to find.")] = 10,
    split: Split = None,
    json: Json = False,
) -> None:
    """Find the samples of a store (default: all) that are nearest to a picture, a sample, or labels."""
    if sum(query is not None for query in (image, sample, labels)) != 1:
        raise ValueError("search: pass one of --image FILE, --sample ID and --labels 'sky, water'")
    with session(json) as run:
        applied = open_applied(model, features, split, ALL, "decision_function")
        record: dict[str, Any] = {"model": model, "store": features, "split": applied.split, "n_samples": applied.n}
        if labels is not None:
            numbers = _label_numbers(labels, applied.label_names())
            values = answering(_scores(applied), numbers)
            record["labels"] = [applied.label_names()[number] for number in numbers]
        else:
            query = _of_picture(model, str(image)) if image is not None else _of_sample(applied, str(sample))
            record["query"] = image if image is not None else sample
            scores = applied.model.decision_function(query)[0]
            record["labels"] = [applied.label_names()[j] for j in best(scores, LABELS_SHOWN)]
            values = similar(_space(applied, None), _space(applied, query)[0])
        record["found"] = _found(applied, values, best(values, top))
        record |= run.costs()
    _show(record, json)


def _label_numbers(given: str, names: list[str]) -> list[int]:
    """The numbers of labels by their names; ValueError with the nearest name for one that the model does not know."""
    wanted = list(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    if not wanted:
        raise ValueError(f"--labels {given!r} names no label; write them with commas between: 'sky, water'")
    for name in wanted:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(names[:12])} ..."
            raise ValueError(f"--labels: the model knows no label {name!r}; {hint}")
    return [names.index(name) for name in wanted]


def _of_sample(applied: Applied, name: str) -> dict[str, Any]:
    """The views of one sample of the store, by its id, or its row number where the store has no ids."""
    known = applied.store.sample_ids
    ids = [str(i) for i in range(applied.store.n_samples)] if known is None else known
    if name not in ids:
        near = get_close_matches(name, ids, 1, cutoff=0.0)
        raise ValueError(f"--sample {name}: {applied.store.url} has no such sample; its ids look like {near[0]!r}")
    row = ids.index(name)
    return {view: applied.store.views[view][row : row + 1] for view in applied.views}


def _of_picture(model: str, path: str) -> dict[str, Any]:
    """The views of a picture in a file, described as the model's training pictures were."""
    return {view: row[None, :] for view, row in model_extractor(model).describe(path).items()}


def _scores(applied: Applied) -> np.ndarray:
    scores = np.empty((applied.n, len(applied.label_names())))
    with stage("score samples", applied.n) as advance:
        for where in row_blocks(applied.n, BLOCK):
            scores[where] = applied.model.decision_function(applied.batch(where))
            advance(where.stop - where.start)
    return scores


def _space(applied: Applied, query: dict[str, Any] | None) -> np.ndarray:
    """Rows in the learnt space: of the query, or of all samples. A model without one has its label scores instead."""
    if not hasattr(applied.model, "transform"):
        return _scores(applied) if query is None else applied.model.decision_function(query)
    if query is not None:
        return applied.model.transform(query)
    parts = []
    with stage("embed samples", applied.n) as advance:
        for where in row_blocks(applied.n, BLOCK):
            parts.append(applied.model.transform(applied.batch(where)))
            advance(where.stop - where.start)
    return np.concatenate(parts)


def _found(applied: Applied, values: np.ndarray, rows: np.ndarray) -> list[dict[str, Any]]:
    """The samples found, best first: id, value, and their own labels where the store has them."""
    ids, names = applied.ids(), applied.store.label_names
    found = []
    for i in rows:
        entry: dict[str, Any] = {"sample": ids[i], "value": round(float(values[i]), 6)}
        if applied.Y is not None and names is not None:
            entry["labels"] = [names[j] for j in np.flatnonzero(applied.Y[i])]
        found.append(entry)
    return found


def _show(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show(record, [], "", True)
        return
    if "query" in record:
        show(record, [("its labels, best first", ", ".join(record["labels"]))], str(record["query"]), False)
    title = f"nearest to {record['query']}" if "query" in record else f"samples for {', '.join(record['labels'])}"
    cells = [[e["sample"], f"{e['value']:.3f}", ", ".join(e.get("labels", ["-"]))] for e in record["found"]]
    grid(f"{title} among {record['n_samples']}", ["sample", "nearness", "its own labels"], cells, numbers=False)
    show(record, cost_rows(record), "", False)
