"""Command `dmo demo`, which runs the whole workflow on bundled data and writes a report."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import dmo
from dmo import report, stores, workflows
from dmo.blocks import rows
from dmo.cli.evaluate import percent
from dmo.cli.session import grid, say, show
from dmo.cluster import connect
from dmo.demo.digits import digits_samples
from dmo.errors import amount
from dmo.progress import stage
from dmo.workflows.apply import write_rows
from dmo.workflows.program import Session, session

TOP, SEED = 3, 0
N_TRAIN = 150
"""Number of training digits. With more digits, the scores of all labels would be nearly perfect."""
N_DIGITS = 10
WORKERS, TILE = 2, 400
"""Number of Dask workers for the fit on a cluster, and number of rows per kernel tile."""


def methods() -> dict[str, Any]:
    """Create the models of the demo, whose regularization was selected on a quarter of the training samples."""
    return {
        "votes": dmo.NeighborVotes(decoder=f"f1@{TOP}"),
        "KGHA": dmo.KGHA("rbf", balance=1e-2, ridge=1e-2, n_components=0.8, intercept=True, random_state=SEED),
        "r-MLR": dmo.MultiViewRidge("linear", ridge=1e-1, intercept=True, random_state=SEED),
        "r-KMLR": dmo.MultiViewRidge("rbf", ridge=1e-2, intercept=True, random_state=SEED),
    }


LEAD = (
    f"The models were fitted on {N_TRAIN} handwritten digits in four views, and annotate digits by other writers. KGHA "
    "also learned an embedding of views and labels, in which digits can be searched. Each held-out digit has 1 to 4 "
    f"labels, and {TOP} labels are predicted. The model votes combines kernel ridge regression, votes of neighbors and "
    "the plug-in rule for F1. The models r-mlr and r-kmlr are linear and kernel ridge regressions, averaged over views."
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the stores and the report.")] = Path("demo"),
) -> None:
    """Learn to annotate handwritten digits: ingest, fit, annotate, search, report, and a fit on a local Dask cluster.

    An earlier demo in the output folder is replaced.
    """
    _check_folder(out)
    features, annotations = str(out / "digits.zarr"), str(out / "annotations.zarr")
    models = {name: str(out / f"{name.lower()}.zarr") for name in methods()}
    with session() as run:
        store = digits_samples(N_TRAIN).write(features, overwrite=Path(features).exists())
        training = workflows.fitting.open_training(store)
        for name, model in methods().items():
            with stage(f"{name}: fit", 1) as advance:
                workflows.fitting.fit(run, model, training, models[name], overwrite=True)
                advance(1)
        applied = workflows.rows.open_applied(models["votes"], features, None, "test")
        write_rows(
            run,
            applied,
            lambda views: applied.model.decide(views, TOP).numbers(TOP),
            annotations,
            TOP,
            "labels",
            parents=(models["votes"], features),
            dtype="int32",
            attributes={"split": "test", "top": TOP, "label_names": store.label_names},
            overwrite=Path(annotations).exists(),
        )
        judged = workflows.evaluation.judge_together(tuple(models.values()), features, "test", TOP)
        spaces = _compare_spaces(judged[list(models).index("KGHA")].applied.model, store)
        search = report.Table(
            "Search: labels shared by a held-out digit and its ten nearest training digits",
            ["space", "Jaccard index %"],
            [[name, 100 * value] for name, value in spaces.items()],
            best=["Jaccard index %"],
            note="KGHA's space combines images and labels: dmo search finds digits by a digit, an image or labels.",
        )
        page = workflows.report_page.write_page(
            run, judged, features, out / "report.html", "dmo demo: handwritten digits", lead=LEAD, more=[search]
        )
        on_cluster = _fit_on_cluster(run, out / "cluster")
    assert applied.Y is not None  # The digits have labels.
    found = {}
    for name, each in zip(models, judged):
        right = each.scores[:, :N_DIGITS].argmax(axis=1) == applied.Y[:, :N_DIGITS].argmax(axis=1)
        seconds = round(run.seconds[f"{name}: fit"], 4)
        found[name] = each.measures | {"digit_right": float(right.mean()), "seconds": seconds}
    record: dict[str, Any] = {"out": str(out), "methods": found, "space": spaces, "report": page["report"]}
    record["cluster"] = on_cluster
    record |= run.costs()
    show(record)
    grid(f"annotation of {applied.n} held-out digits, {TOP} labels each", COLUMNS, _table(found))
    cells = [[name, percent(value)] for name, value in spaces.items()]
    grid("labels shared by a held-out digit and its ten nearest", ["space", "Jaccard index"], cells)
    say(
        f"\nOn a Dask cluster with {WORKERS} workers: KGHA fitted on {on_cluster['n_train']} digits with "
        f"{on_cluster['tiles']} kernel tiles in Zarr ({amount(on_cluster['tile_bytes'])}), and "
        f"{on_cluster['n_samples']} digits embedded, in {on_cluster['seconds']:.1f} s. The embedding differs from a fit "
        f"in one process by at most {on_cluster['difference']:.0e} of its largest entry."
    )
    _say_next(record, {"report": out / "report.html", "features": features, "annotations": annotations, **models})


def _fit_on_cluster(run: Session, out: Path) -> dict[str, Any]:
    """Fit KGHA with stored kernel tiles and embed all digits on a LocalCluster; compare with a fit in one process."""
    features, model, embedding = (str(out / name) for name in ("digits.zarr", "kgha.zarr", "embedding.zarr"))
    shutil.rmtree(out, ignore_errors=True)
    training = workflows.fitting.open_training(digits_samples().write(features))
    tiles = dmo.Exact(storage="stored", path=str(out / "kernels"), block=TILE)
    # A larger ridge than in the models above needs half as many products with the kernel tiles.
    estimator = methods()["KGHA"].set_params(ridge=1e-1, approximation=tiles)
    with stage(f"KGHA on {WORKERS} Dask workers", 1) as advance, connect("local", workers=WORKERS, threads=1):
        workflows.fitting.fit(run, estimator, training, model)
        applied = workflows.rows.open_applied(model, features, None, "all", transforms=True)
        width, parents = int(applied.model.n_components_), (model, features)
        write_rows(run, applied, applied.model.transform, embedding, width, "embedding", parents=parents)
        advance(1)
    here = estimator.set_params(approximation="exact").fit(training.views, training.y).transform(applied.views)
    there = np.asarray(stores.open_results(embedding)[:])
    there = there * np.sign((here * there).sum(axis=0))  # The signs of eigenvectors are arbitrary.
    written = [path.stat().st_size for path in (out / "kernels").glob("*/lower/c.*")]
    return {
        "workers": WORKERS,
        "n_train": training.n,
        "n_samples": applied.n,
        "tiles": len(written),
        "tile_bytes": sum(written),
        "seconds": round(run.seconds[f"KGHA on {WORKERS} Dask workers"], 4),
        "difference": float(np.abs(there - here).max() / np.abs(here).max()),
    }


def _compare_spaces(model: dmo.KGHA, store: stores.FeatureStore) -> dict[str, float]:
    """For each space, compute the mean Jaccard index of test labels and labels of the ten nearest training samples."""
    from sklearn.decomposition import PCA

    (old, Y, _), (new, truth, _) = store.select("train"), store.select("test")
    assert Y is not None
    assert truth is not None
    known, asked = model.transform(old), model.transform(new)
    size = known.shape[1]
    # Divide each view by the mean norm of its rows, so that all views have equal weight.
    lengths = {view: np.linalg.norm(rows(source), axis=1).mean() for view, source in old.items()}
    first, second = (np.hstack([rows(part[view]) / lengths[view] for view in part]) for part in (old, new))
    pca = PCA(size, random_state=SEED).fit(first)
    spaces = {
        f"KGHA, {size} numbers": (known, asked),
        f"PCA, {size} numbers": (pca.transform(first), pca.transform(second)),
        f"all views, {first.shape[1]} numbers": (first, second),
    }
    return {name: workflows.search.labels_in_common(a, Y, b, truth) for name, (a, b) in spaces.items()}


def _check_folder(out: Path) -> None:
    """Raise an error if the folder contains files that are not from an earlier demo."""
    if not _is_digits(out / "digits.zarr") and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise stores.StoreError(f"{out} exists and is not a demo; choose another folder with --out")


def _is_digits(path: Path) -> bool:
    try:
        return stores.describe(path)["attributes"].get("dataset") == "digits"
    except (FileNotFoundError, stores.StoreError, NotADirectoryError):
        return False


COLUMNS = ("method", "precision", "recall", "F1", "N+", "AUC", "digit right", "seconds")


def _table(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    cells = []
    for name, m in found.items():
        shares = [percent(m[key]) for key in ("precision", "recall", "f1")]
        more = [percent(m["auc_macro"]), percent(m["digit_right"]), f"{m['seconds']:.2f}"]
        cells.append([name, *shares, f"{m['n_plus']} of {m['n_labels']}", *more])
    return cells


def _say_next(record: Mapping[str, Any], made: Mapping[str, object]) -> None:
    """Print the costs of the demo, the paths of all outputs, and commands to try next."""
    store, model, space = (made[name] for name in ("features", "votes", "KGHA"))
    commands = [
        f"dmo info {store}",
        f"dmo evaluate {model} {store} --top {TOP}",
        f"dmo search {space} {store} --labels 'six, has a loop'",
        f"dmo fit kgha {store} {Path(record['out'], 'mine.zarr')} --kernel hellinger-rbf --ridge 0.1 --intercept",
        "dmo ingest --help      (your own files, or Corel5k and other public sets)",
    ]
    program = _program()
    lines = ["", f"done in {record['seconds']:.1f} s, peak memory {amount(record['peak_memory_bytes'])}", ""]
    lines += [f"{what:<12} {path}" for what, path in made.items()]
    say(
        "\n".join(
            [*lines, "", "what to try next", *(f"  {program}{command.removeprefix('dmo')}" for command in commands)]
        )
    )


def _program() -> str:
    """Return how to call dmo: its name if it is on the path, otherwise the path by which it was called."""
    called = Path(sys.argv[0])
    found = shutil.which("dmo")
    if called.name != "dmo" or (found is not None and Path(found).resolve() == called.resolve()):
        return "dmo"
    return os.path.relpath(called)
