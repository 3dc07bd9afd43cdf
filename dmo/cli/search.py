"""`dmo search`: the samples nearest to an image, a sample or labels in the space that a model learned."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

import typer

from dmo.cli.options import Features, Model, Split
from dmo.cli.session import grid, show
from dmo.errors import UserError
from dmo.workflows.apply import ALL, SCORES, learned_values, open_applied
from dmo.workflows.program import session

LABELS_SHOWN = 5


def search(
    model: Model,
    features: Features,
    image: Annotated[str | None, typer.Option(help="A file with an image to search with.")] = None,
    sample: Annotated[str | None, typer.Option(help="The id of a sample of the store to search with.")] = None,
    labels: Annotated[str | None, typer.Option(help="Labels to search for, comma-separated: 'sky, water'.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Samples to find.")] = 10,
    split: Split = None,
    view_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VIEW=NUMBER", help="How much a view counts, times what it does; of --image and --sample."
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            help="Result store that keeps where the samples are, for further searches; it is made where it is missing, and "
            "anew where the model, the samples or the weights of views are others."
        ),
    ] = None,
) -> None:
    """Find the samples of a store (default: all) that are nearest to an image, a sample, or labels."""
    if sum(query is not None for query in (image, sample, labels)) != 1:
        raise UserError("search: pass one of --image FILE, --sample ID and --labels 'sky, water'")
    weights = dict(_weight(entry) for entry in view_weight or ())
    if labels is not None and weights:
        raise UserError("--view-weight: labels are searched by their scores; pass it with --image or --sample")
    with session() as run:
        applied = open_applied(model, features, split, ALL, SCORES)
        from dmo.workflows.search import (
            Places,
            all_rows,
            answering,
            best,
            found_rows,
            of_image,
            of_sample,
            space,
            weighted,
        )

        record: dict[str, Any] = {"model": model, "store": features, "split": applied.split, "n_samples": applied.n}
        if labels is not None:
            numbers = _label_numbers(labels, applied.label_names())
            scores = all_rows(run, applied, "scores", applied.scores, index, (model, features))
            values = answering(scores, numbers)
            near = best(values, top)
            values = values[near]
            record["labels"] = [applied.label_names()[number] for number in numbers]
        else:
            query = of_image(model, str(image)) if image is not None else of_sample(applied, str(sample))
            record["query"] = image if image is not None else sample
            scores = applied.scores(query)[0]
            if learned_values(applied.model):
                record["values"] = dict(zip(applied.label_names(), scores.tolist(), strict=True))
            else:
                record["labels"] = [applied.label_names()[j] for j in best(scores, LABELS_SHOWN)]
            applied = weighted(applied, weights) if weights else applied
            kind, place = space(applied)
            places = Places(all_rows(run, applied, kind, place, index, (model, features)))
            near, values = places.nearest(place(query)[0], top)
        record["found"] = found_rows(applied, near, values)
        record |= run.costs()
    _show(record)


def _weight(entry: str) -> tuple[str, float]:
    """A view and its weight."""
    view, _, number = entry.partition("=")
    try:
        return view, float(number)
    except ValueError:
        raise UserError(f"--view-weight {entry!r}: write VIEW=NUMBER, such as hue=0.5") from None


def _label_numbers(given: str, names: list[str]) -> list[int]:
    """The numbers of labels by their names; ValueError with the nearest name for one that the model does not know."""
    wanted = list(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    if not wanted:
        raise UserError(f"--labels {given!r} names no label; write them with commas between: 'sky, water'")
    for name in wanted:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(names[:12])} ..."
            raise UserError(f"--labels: the model knows no label {name!r}; {hint}")
    return [names.index(name) for name in wanted]


def _show(record: dict[str, Any]) -> None:
    what = "its values" if "values" in record else "its labels, best first"
    show(record, [(what, _said(record))] if "query" in record else [], str(record.get("query")))
    title = f"nearest to {record['query']}" if "query" in record else f"samples for {', '.join(record['labels'])}"
    cells = [[e["sample"], f"{e['value']:.3f}", _said(e)] for e in record["found"]]
    own = "its own values" if any("values" in e for e in record["found"]) else "its own labels"
    grid(f"{title} among {record['n_samples']}", ["sample", "nearness", own], cells, numbers=False)


def _said(entry: dict[str, Any]) -> str:
    """Labels, or real targets, in words."""
    values = [f"{name} {value:.6g}" for name, value in entry.get("values", {}).items()]
    return ", ".join(values or entry.get("labels", ["-"]))
