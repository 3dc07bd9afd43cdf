"""Commands that inspect stores and data files or list methods: `dmo info`, `dmo verify` and `dmo methods`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer

import dmo
from dmo import workflows
from dmo.blocks import APART, Subset, known_sums, presence, spread
from dmo.cli.commands import START
from dmo.cli.session import grid, say, show
from dmo.errors import amount
from dmo.formats.schema import described
from dmo.formats.sources import is_rows
from dmo.workflows.program import DAMAGED, run_options, session

Rows = list[tuple[str, str]]


def info(
    path: Annotated[
        str,
        typer.Argument(
            help="Store of features, a kernel, results or a model; or data: a file, a glob, a folder of shards, "
            "@list.txt, or PATH::NAME for one array of a file."
        ),
    ],
) -> None:
    """Show the contents, provenance and missing blocks of a store, or how a source of data is interpreted."""
    if is_rows(path):
        found = workflows.sources.describe_source(path)
        show(found, _source(found), path)
        return
    found = dmo.stores.describe(path)
    if found["kind"] == "features" and found["complete"]:
        found |= contents_of(dmo.stores.open_features(path))
    show(found, _common(found) + DETAILS[found["kind"]](found) + _provenance(found), str(found["path"]))
    if found["kind"] == "features":
        show_schema(found.get("attributes", {}).get("schema"))
    elif found["kind"] == "model":
        kept = (found["provenance"].get("parameters") or {}).get("columns") or {}
        views = {view: about["schema"] for view, about in kept.items() if "schema" in about}
        show_schema({"views": views} if views else None)


def show_schema(schema: Mapping[str, Any] | None) -> None:
    """Print the types and values of the table columns from which a store was created."""
    if schema is not None and not run_options().quiet:
        grid("", ["column", "type", "values"], described(schema), numbers=False)


def _source(found: Mapping[str, Any]) -> Rows:
    shards = [os.path.basename(shard) for shard in found["shards"]]
    rows = [("source", found["kind"]), ("shards", str(len(shards)))]
    if len(shards) > 1:
        rows.append(("order", f"natural: {', '.join(shards[:2])} ... {shards[-1]}"))
    if found["columns"]:
        rows.append(("table", f"{found['n_samples']} rows, columns {_short(found['columns'])}"))
    for name, about in found["arrays"].items():
        n, d = about["shape"]
        use = "read in place" if about["copied"] is None else f"copied, because {about['copied']}"
        rows.append((f"array {name}", f"{n} x {d} {about['dtype']}, {use}"))
    return rows


def _common(found: Mapping[str, Any]) -> Rows:
    state = "complete" if found["complete"] else "unfinished; to resume, repeat the command that creates it"
    kind = f"{found['kind']} (version {found['version']})"
    rows = [("kind", kind), ("state", state), ("size", amount(found["bytes"]))]
    if not found["complete"] and "blocks" in found:
        done, total = found["blocks"]["done"], found["blocks"]["total"]
        rows.append(("missing", f"{total - done} of {total} blocks"))
    return rows


def _features(found: Mapping[str, Any]) -> Rows:
    rows = [("samples", f"{found['n_samples']}" + _splits(found.get("split")))]
    labels = found.get("labels")
    if labels is None and "n_labels" in found:
        rows.append(("labels", str(found["n_labels"])))
    elif labels is not None:
        names = f": {_short(labels['names'])}" if labels["names"] else ""
        rows.append(("labels", f"{labels['number']}{names}"))
        if labels["real"]:
            rows.append(("", "real targets"))
        else:
            each = "classes, one a sample" if labels["classes"] else f"{labels['per_sample']:.2f} a sample"
            rows.append(("", each))
            rows.append(("", "rarest: " + ", ".join(f"{name} ({count})" for name, count in labels["rarest"].items())))
        if labels["unknown"]:
            rows.append(("", f"{labels['unknown']} unknown ({labels['unlabeled']} samples without known labels)"))
        if labels["never"]:
            rows.append(("", f"never used: {_short(labels['never'])}"))
    for name, view in found["views"].items():
        parts = [f"{view['dimension']} x {view['dtype']}"]
        parts += [word for word in ("sparse", "histogram") if word in (view["kind"], view["histogram"] and "histogram")]
        gaps = view.get("missing_cells")
        if view.get("missing"):
            parts.append(f"{gaps} missing values in {view['missing_columns']} columns" if gaps else "missing values")
        if view.get("missing_samples"):
            parts.append(f"{view['missing_samples']} samples missing")
        if view.get("spread", 1.0) > APART:
            parts.append(f"column scales differ by a factor of {view['spread']:.2g}")
        rows.append((f"view {name}", ", ".join(parts)))
    return rows


def contents_of(store: dmo.stores.FeatureStore) -> dict[str, Any]:
    """Describe the labels and the missing values of a feature store.

    The "spread" of a view is the ratio of its largest to its smallest column scale.
    """
    views = {name: dict(view) for name, view in store.configuration["views"].items()}
    for name, view in views.items():
        source: Any = store.views[name]
        present = presence(source)
        if present is not None:
            source = Subset(source, np.flatnonzero(present))
            view["missing_samples"] = int((~present).sum())
        view["spread"] = spread(source)[0]
        gaps = store.attributes.get("missing", {}).get(name, {})
        if gaps:
            view |= {"missing_cells": sum(gaps.values()), "missing_columns": len(gaps)}
    Y = store.labels
    if Y is None:
        return {"views": views}
    (counts, known, unlabeled), names = known_sums(Y), store.label_names or [str(j) for j in range(Y.shape[1])]
    labels: dict[str, Any] = {
        "number": int(Y.shape[1]),
        "names": store.label_names,
        "real": store.real_labels,
        "classes": store.class_labels,
        "never": [],
        "unknown": int((Y.shape[0] - known).sum()),
        "unlabeled": unlabeled,
    }
    if not store.real_labels:
        used = [int(j) for j in np.argsort(counts, kind="stable") if counts[j]]
        labels |= {
            "per_sample": float(counts.sum() / Y.shape[0]),
            "rarest": {names[j]: int(counts[j]) for j in used[:3]},
            "never": [names[j] for j in np.flatnonzero(counts == 0)],
        }
    return {"views": views, "labels": labels}


def _splits(split: Any) -> str:
    if not isinstance(split, Mapping) or "shape" in split:
        return ""
    return " (" + ", ".join(f"{count} {name}" for name, count in split.items()) + ")"


def written(store: dmo.stores.FeatureStore, path: str, one: str) -> tuple[dict[str, Any], Rows]:
    """Summarize a new feature store as a JSON record and as table rows.

    `one` is the word for a sample, such as "image".
    """
    labels, split = store.labels, store.split
    each = None if labels is None else round(float(known_sums(labels)[0].sum() / labels.shape[0]), 4)
    record = {"store": path, "n_samples": store.n_samples, "bytes": dmo.stores.describe(path)["bytes"]}
    record |= {"n_labels": None if labels is None else int(labels.shape[1]), "labels_per_sample": each}
    record["split"] = None if split is None else {name: int((split == name).sum()) for name in sorted(store.splits)}
    rows = [(f"{one}s", f"{store.n_samples}{_splits(record['split'])}")]
    if labels is not None:
        article = "an" if one == "image" else "a"
        words = f"classes, one {article} {one}" if store.class_labels else f"{each:.2f} {article} {one}"
        rows.append(("labels", f"{labels.shape[1]}, {'real targets' if store.real_labels else words}"))
    return record, rows


def _kernel(found: Mapping[str, Any]) -> Rows:
    return [("entries", f"{found['n']} x {found['n']} {found['dtype']}, tiles of {found['block']} rows")]


def _results(found: Mapping[str, Any]) -> Rows:
    shape = f"{found['n']} x {found['columns']} {found['dtype']}, blocks of {found['block']} rows"
    return [
        ("content", found["content"]),
        ("rows", shape),
        *((name, _short(value)) for name, value in found["attributes"].items() if value is not None),
    ]


def _model(found: Mapping[str, Any]) -> Rows:
    meta = found["meta"]
    rows = [("estimator", str(meta.get("estimator", "?")))]
    fitted = meta.get("fitted", {})
    if "tuning" in fitted:
        found_by = fitted["tuning"]
        tried = found_by.get("tried") or len(found_by["table"])
        rows.append(("tuned", f"{found_by['metric']} {found_by['best_score']:.4f}, best of {tried} settings"))
    rows += [(f"view {name}", f"{width} features") for name, width in fitted.get("view_widths_", {}).items()]
    if fitted.get("label_names_"):
        rows.append(("labels", f"{len(fitted['label_names_'])}: {_short(fitted['label_names_'])}"))
    elif fitted.get("multilabel") is False and "classes_" in found["arrays"]:
        rows.append(("labels", f"{found['arrays']['classes_']['shape'][0]} classes"))
    rows += [(name, _short(value)) for name, value in meta.get("parameters", {}).items()]
    return rows


DETAILS = {"features": _features, "kernel": _kernel, "results": _results, "model": _model}


def _provenance(found: Mapping[str, Any]) -> Rows:
    origin = found["provenance"]
    rows = [("made from", ", ".join(origin["parents"]))] if origin.get("parents") else []
    parameters = origin.get("parameters", {})
    for name, title in (("dataset", "data set"), ("split", "samples of split")):
        value = parameters.get(name) or found["attributes"].get(name)
        rows += [(title, str(value))] if value else []
    answers = parameters.get("answers")
    rows += [("answers", f"labels assigned by people to {len(answers)} samples")] if answers else []
    return [*rows, ("written by", f"dmo {origin['dmo']}")]


def _short(value: Any, most: int = 6) -> str:
    """Format a JSON value in one line, with at most `most` items of a list."""
    if isinstance(value, list):
        more = f", ... ({len(value)})" if len(value) > most else ""
        return ", ".join(str(item) for item in value[:most]) + more
    if isinstance(value, Mapping) and "object" in value:
        arguments = ", ".join(f"{key}={item}" for key, item in value["arguments"].items() if item is not None)
        return f"{value['object']}({arguments})"
    if isinstance(value, Mapping):
        inner = value.get("mapping", value)
        return ", ".join(f"{key}: {item}" for key, item in inner.items())
    return str(value)


def methods_command(
    markdown_table: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")] = False,
) -> None:
    """List the methods of TraceEmbedding and MESD with their papers, engines, parameters and out-of-sample support."""
    from dmo.methods.catalog import markdown  # Import lazily, because `dmo info` needs no estimators.

    found = dmo.TraceEmbedding.methods()
    columns = ("method", "family", "paper", "engines", "parameters", "new rows")
    rows = [
        (
            row["name"] + (" (MESD)" if row["mesd"] else ""),
            row["family"],
            row["paper"],
            ", ".join(row["engines"]),
            ", ".join(row["parameters"]),
            "yes" if row["out_of_sample"] else "no",
        )
        for row in found
    ]
    show({"methods": found})
    if markdown_table:
        say(markdown(), end="")
        return
    grid(f"{len(found)} methods", columns, rows, numbers=False)
    say(
        "To fit one: dmo fit embedding STORE.zarr MODEL.zarr --method METHOD. To predict labels of new samples, s"
        + START[1:]
    )


def verify(
    path: Annotated[str, typer.Argument(help="Store of features, a kernel, results or a model.")],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Mark damaged blocks as missing. The command that created the store then writes them again.",
        ),
    ] = False,
) -> None:
    """Compare all blocks of a store with its manifest and checksums; exit with code 4 if there are problems."""
    with session() as run:
        problems = dmo.stores.verify(path)
        reopened = dmo.stores.reopen(path) if repair and problems else None
        if reopened is not None:
            run.note(
                f"{reopened} blocks were marked as missing; to write them, repeat the command that created the store"
            )
    record = {"path": path, "whole": not problems, "problems": problems, "reopened_blocks": reopened}
    show(record, [] if problems else [("state", "intact: all blocks are present and match their checksums")], path)
    if problems:
        grid(path, ["problem"], [[problem] for problem in problems], numbers=False)
        raise typer.Exit(DAMAGED)
