"""`dmo demo`: the whole job on data that need no download, with a table and a report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy.sparse
import typer

import dmo
from dmo import report, stores, workflows
from dmo.blocks import Rows, double, row_blocks, rows
from dmo.cli.evaluate import percent
from dmo.cli.session import grid, say, show
from dmo.datasets.writing import write
from dmo.demo.digits import digits, digits_source
from dmo.errors import amount
from dmo.metrics import precision_recall_curves, top_label_sets
from dmo.progress import stage
from dmo.report.page import Part
from dmo.workflows.apply import origin
from dmo.workflows.program import session

TOP, SEED = 3, 0
N_TRAIN = 150
"""Digits to learn from: few enough that labels differ in how well they are found."""
BLOCK = 256
N_DIGITS = 10


def methods() -> dict[str, Any]:
    """The methods of the demo; ridges chosen on the last quarter of the training samples."""
    return {
        "votes": dmo.NeighborVotes(decoder=f"f1@{TOP}"),
        "KGHA": dmo.KGHA("rbf", balance=1e-2, ridge=1e-2, n_components=0.8, intercept=True, random_state=SEED),
        "r-MLR": dmo.MultiViewRidge("linear", ridge=1e-1, intercept=True, random_state=SEED),
        "r-KMLR": dmo.MultiViewRidge("rbf", ridge=1e-2, intercept=True, random_state=SEED),
    }


@dataclass(frozen=True)
class Run:
    """One method on the held-out samples: the fitted model, scores (m x L), measures and seconds of fit and scoring."""

    model: Any
    scores: np.ndarray
    measures: dict[str, Any]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the stores and the report.")] = Path("demo"),
) -> None:
    """Learn to annotate handwritten digits: ingest, fit annotators and KGHA's space, annotate, search, evaluate, report.

    An earlier demo in the folder is made anew.
    """
    _check_folder(out)
    with session() as run:
        store = write(digits_source(N_TRAIN), out / "digits.zarr", overwrite=(out / "digits.zarr").exists())
        runs = {name: _run(name, model, store) for name, model in methods().items()}
        with stage("save models and labels", 3) as advance:
            for name in ("votes", "KGHA"):
                training = workflows.fitting.open_training(store)
                workflows.fitting.save(runs[name].model, str(out / f"{name.lower()}.zarr"), training, overwrite=True)
                advance(1)
            _write_labels(out, store, runs["votes"])
            advance(1)
        with stage("report", 1) as advance:
            spaces = _compare_spaces(runs["KGHA"].model, store)
            files = _report(out, store, runs, spaces)
            advance(1)
    record: dict[str, Any] = {
        "out": str(out),
        "methods": {name: result.measures for name, result in runs.items()},
        "space": spaces,
        "report": [str(path) for path in files],
        **run.costs(),
    }
    show(record)
    grid(f"annotation of {len(store.select('test')[2])} held-out digits, {TOP} labels each", COLUMNS, _table(runs))
    _say_spaces(spaces)
    _say_next(record, files[0], out)


def _compare_spaces(model: dmo.KGHA, store: stores.FeatureStore) -> dict[str, float]:
    """How much the labels of a held-out sample and of its ten nearest training samples have in common, by space."""
    from sklearn.decomposition import PCA

    (old, Y, _), (new, truth, _) = store.select("train"), store.select("test")
    if Y is None or truth is None:
        return {}
    known, asked = model.transform(old), model.transform(new)
    size = known.shape[1]
    plain: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for view in old:
        a, b = (_dense(source) for source in (old[view], new[view]))
        length = np.linalg.norm(a, axis=1).mean()  # so that views count alike
        plain[0].append(a / length)
        plain[1].append(b / length)
    first, second = (np.hstack(part) for part in plain)
    pca = PCA(size, random_state=SEED).fit(first)
    spaces = {
        f"KGHA, {size} numbers": (known, asked),
        f"PCA, {size} numbers": (pca.transform(first), pca.transform(second)),
        f"all views, {first.shape[1]} numbers": (first, second),
    }
    return {name: workflows.search.labels_in_common(a, Y, b, truth) for name, (a, b) in spaces.items()}


def _dense(source: Rows) -> np.ndarray:
    block = double(rows(source))
    return np.asarray(block.toarray() if scipy.sparse.issparse(block) else block)


def _say_spaces(spaces: Mapping[str, float]) -> None:
    """A table of what `_compare_spaces` found."""
    cells = [[name, percent(value)] for name, value in spaces.items()]
    grid("labels that a held-out digit and its ten nearest have in common", ["space", "Jaccard index"], cells)


def _check_folder(out: Path) -> None:
    """Refuse a folder with other things in it; an earlier demo is made anew."""
    if not _is_digits(out / "digits.zarr") and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise stores.StoreError(f"{out} exists and holds no demo; choose another folder with --out")


def _is_digits(path: Path) -> bool:
    try:
        return stores.describe(path)["attributes"].get("dataset") == "digits"
    except (FileNotFoundError, stores.StoreError, NotADirectoryError):
        return False


def _run(name: str, model: Any, store: stores.FeatureStore) -> Run:
    """Fit on the training samples, score and measure the held-out ones."""
    views, Y, _ = store.select("train")
    held, Y_held, index = store.select("test")
    if Y is None or Y_held is None:
        raise stores.StoreError(f"{store.url} has no labels; remove it and run the demo again")
    start = time.perf_counter()
    with stage(f"{name}: fit", 1) as advance:
        model.fit(views, Y)
        advance(1)
    scores = np.empty(Y_held.shape)
    with stage(f"{name}: annotate", len(index)) as advance:
        for where in row_blocks(len(index), BLOCK):
            scores[where] = model.decision_function({view: source[where] for view, source in held.items()})
            advance(where.stop - where.start)
    seconds = time.perf_counter() - start
    measures = workflows.evaluation.figures(Y_held, scores, TOP)
    right = scores[:, :N_DIGITS].argmax(axis=1) == Y_held[:, :N_DIGITS].argmax(axis=1)
    return Run(model, scores, measures | {"digit_right": float(right.mean()), "seconds": round(seconds, 4)})


def _write_labels(out: Path, store: stores.FeatureStore, run: Run) -> None:
    """The labels of the held-out samples as a result store."""
    _, _, index = store.select("test")
    path, ids = out / "annotations.zarr", store.sample_ids or []
    writer = stores.create_results(
        path,
        len(index),
        TOP,
        "int32",
        kind="labels",
        attributes={"split": "test", "top": TOP, "label_names": store.label_names},
        block=BLOCK,
        sample_ids=[ids[i] for i in index],
        overwrite=path.exists(),
        provenance=origin([str(out / "votes.zarr"), store.url], store, "test"),
    )
    from dmo.decide.score_rule import top_labels

    best = top_labels(run.scores, TOP).astype(np.int32)
    for block in writer.missing():
        writer.write(block, best[writer.rows(block)])
    writer.finish()


COLUMNS = ("method", "precision", "recall", "F1", "N+", "AUC", "digit right", "seconds")


def _table(runs: Mapping[str, Run]) -> list[list[str]]:
    cells = []
    for name, run in runs.items():
        m = run.measures
        shares = [percent(m[key]) for key in ("precision", "recall", "f1")]
        more = [percent(m["auc_macro"]), percent(m["digit_right"]), f"{m['seconds']:.2f}"]
        cells.append([name, *shares, f"{m['n_plus']} of {m['n_labels']}", *more])
    return cells


def _report(out: Path, store: stores.FeatureStore, runs: Mapping[str, Run], spaces: Mapping[str, float]) -> list[Path]:
    from dmo.decide.score_rule import top_labels
    from dmo.workflows.report_figures import AXES

    held, Y, index = store.select("test")
    names, kgha, votes = list(store.label_names or ()), runs["KGHA"], runs["votes"]
    if Y is None:
        raise stores.StoreError(f"{store.url} has no labels; remove it and run the demo again")
    best = top_labels(votes.scores, TOP)
    Z = kgha.model.transform({view: source[:] for view, source in held.items()})
    data, ids = digits(), store.sample_ids or []
    images = data.images[data.split == "test"]
    model = votes.model
    explored = report.Samples(
        [ids[i] for i in index],
        names,
        Y,
        model.predict_proba({view: source[:] for view, source in held.items()}),
        {"votes": best},
        workflows.evaluation.by_quality(Y, votes.scores, top_label_sets(votes.scores, TOP)),
        _plane(Z, kgha.model),
        AXES,
        "probability",
        images.__getitem__,
        "Held-out digits: find them by labels, open them",
    )
    curves = precision_recall_curves(Y, votes.scores)
    figures_ = [
        report.PageFigure(
            "precision-recall",
            report.precision_recall_per_label(Y, votes.scores, names),
            "Precision and recall of every label (the annotator, held-out digits); AP: average precision; dashed: chance.",
            f"Mean average precision of the labels: {np.mean([curve.average_precision for curve in curves]):.2f}.",
        ),
        report.PageFigure(
            "co-occurrence",
            report.label_cooccurrence(Y, names),
            "Labels that come together: the share of the digits with the row's label that carry the column's.",
        ),
    ]
    cells = [
        [name, *(100 * run.measures[key] for key in _KEYS), run.measures["n_plus"], run.measures["seconds"]]
        for name, run in runs.items()
    ]
    columns = ["method", "precision %", "recall %", "F1 %", "AUC %", "digit right %", "N+", "seconds"]
    note = (
        f"Each held-out digit gets {TOP} labels, it has 1 to 4; precision and recall are means over {len(names)} labels. "
        "votes: the annotator (kernel ridge regression of all views, votes of neighbors, the plug-in rule of F1); r-MLR: "
        "linear ridge regression; r-KMLR: kernel ridge regression; both averaged over the views."
    )
    search = report.Table(
        "Search: labels that a held-out digit and its ten nearest training digits have in common",
        ["space", "Jaccard index %"],
        [[name, 100 * value] for name, value in spaces.items()],
        best=["Jaccard index %"],
        note="KGHA's space knows images and labels: dmo search finds digits by a digit, an image or labels in it.",
    )
    table = report.Table("Annotation of held-out digits", columns, cells, best=columns[1:6], note=note)
    training = int((store.split == "train").sum()) if store.split is not None else store.n_samples
    facts = {
        "samples to learn from": training,
        "held-out samples": len(index),
        "views": len(store.views),
        "labels": len(names),
        "dimensions learned": Z.shape[1],
    }
    lead = (
        f"From {training} digits in four views dmo has learned to annotate digits by other writers, and one space of views "
        "and labels, in which digits are searched."
    )
    parts: list[Part] = [table, explored, *figures_, search]
    return report.write_report(out / "report.html", "dmo demo: handwritten digits", parts, facts, lead)


_KEYS = ("precision", "recall", "f1", "auc_macro", "digit_right")


def _plane(Z: np.ndarray, model: dmo.KGHA) -> np.ndarray:
    """Samples Z (m x p) projected on two directions of the learned space: the principal ones of the label scores."""
    scores = (Z - Z.mean(axis=0)) @ model.decoder_
    left, lengths, _ = np.linalg.svd(scores, full_matrices=False)
    return left[:, :2] * lengths[:2]


def _say_next(record: Mapping[str, Any], page: Path, out: Path) -> None:
    """What it took, where everything is, and what to try next."""
    store, model, space = out / "digits.zarr", out / "votes.zarr", out / "kgha.zarr"
    made = {
        "report": page,
        "features": store,
        "annotator": model,
        "space": space,
        "annotations": out / "annotations.zarr",
    }
    commands = [
        f"dmo info {store}",
        f"dmo evaluate {model} {store} --top {TOP}",
        f"dmo search {space} {store} --labels 'six, has a loop'",
        f"dmo fit kgha {store} {out / 'mine.zarr'} --kernel hellinger-rbf --ridge 0.1 --intercept",
        "dmo ingest --help      (your own files, or Corel5k and other public sets)",
    ]
    lines = ["", f"done in {record['seconds']:.1f} s, peak memory {amount(record['peak_memory_bytes'])}", ""]
    lines += [f"{what:<12} {path}" for what, path in made.items()]
    say("\n".join([*lines, "", "what to try next", *(f"  {command}" for command in commands)]))
