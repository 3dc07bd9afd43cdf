"""`dmo demo --images`: from images to a report, on scenes that are drawn on the spot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dmo import stores
from dmo.cli.demo import SEED, check_folder, compare_spaces, say_next, say_spaces
from dmo.cli.evaluate import percent
from dmo.cli.session import grid, show
from dmo.demo.scenes import draw_images
from dmo.estimators import KGHA, NeighborVotes
from dmo.features import Recipe, extract, list_images
from dmo.persistence import load
from dmo.progress import stage
from dmo.workflows.fitting import open_training, save, with_auto_kernels
from dmo.workflows.images import Folder, annotate_images
from dmo.workflows.program import session
from dmo.workflows.report_page import write_page

N, N_NEW, WORDS, TOP = 480, 24, {"dense_sift": 300, "harris_sift": 300}, 5


def demo_images(out: Path, as_json: bool) -> None:
    """Draw scenes, describe them by eight views, fit an annotator and KGHA's space, annotate new scenes, report."""
    check_folder(out, "demo of images", (out / "images" / "labels.csv").exists())
    with session(as_json) as run:
        table = draw_images(out / "images", N, SEED)
        listing = list_images(out / "images", table)
        path = out / "features.zarr"
        recipe = Recipe.of("kgha8", words=WORDS, seed=SEED)
        store = extract(listing, path, recipe, unreadable="refuse", overwrite=path.exists()).store
        models = _fit(out, store)
        draw_images(out / "new", N_NEW, SEED + 1)
        request = Folder(
            model=str(models["votes"]), folder=str(out / "new"), out=str(out / "new.csv"), top=TOP, csv=None,
            unreadable="refuse", threads=None, overwrite=True, dry_run=False, json=as_json,
        )  # fmt: skip
        annotated = annotate_images(run, request)
        lead = (
            f"dmo described {store.n_samples} drawn scenes by eight views of color, texture and visual words, annotates "
            "scenes that it has not seen, and learned one space of images and labels to search in."
        )
        page = out / "report.html"
        paths = [str(path) for path in models.values()]
        record = write_page(run, paths, str(path), page, title="dmo demo: drawn scenes", lead=lead, jec=True)
        record["space"] = compare_spaces(load(str(models["KGHA"])), store)
        record |= {"out": str(out), "annotated": annotated, **run.costs()}
    if as_json:
        show(record, [], "", True)
        return
    _say(record, out)


def _fit(out: Path, store: stores.FeatureStore) -> dict[str, Path]:
    """The best annotator, and KGHA for its space, on the training images, saved: name -> model store."""
    training = open_training(store.url)
    kernel = with_auto_kernels("auto", training)
    models: dict[str, Any] = {
        "votes": NeighborVotes(),
        "KGHA": KGHA(kernel, balance=1e-2, ridge=1e-1, n_components=0.9, intercept=True, random_state=SEED),
    }
    paths = {}
    for name, model in models.items():
        with stage(f"{name}: fit", 1) as advance:
            model.fit(training.views, training.Y)
            advance(1)
        paths[name] = out / f"{name.lower()}.zarr"
        save(model, str(paths[name]), training, overwrite=True)
    return paths


def _say(record: Mapping[str, Any], out: Path) -> None:
    """The table of scores, where everything is, and what to try next."""
    rows = [
        [name, *(percent(m[key]) for key in ("precision", "recall", "f1")), f"{m['n_plus']} of {m['n_labels']}"]
        for name, m in record["methods"].items()
    ]
    columns = ["method", "precision", "recall", "F1", "N+"]
    grid(f"annotation of {record['n_samples']} held-out scenes, {TOP} labels each", columns, rows)
    say_spaces(record["space"], "scene")
    first = [[name, ", ".join(words)] for name, words in record["annotated"]["examples"].items()]
    grid("new scenes", ["image", "labels, best first"], first, numbers=False)
    store, model, space = out / "features.zarr", out / "votes.zarr", out / "kgha.zarr"
    made = {
        "report": record["report"][0],
        "images": out / "images",
        "features": store,
        "annotator": model,
        "space": space,
    }
    say_next(
        record,
        made | {"annotations": record["annotated"]["out"]},
        [
            f"dmo search {space} {store} --labels 'sea, boat'",
            f"dmo search {space} {store} --image {out / 'new' / 'scene-00000.jpg'}",
            f"dmo annotate {model} YOUR_IMAGES labels.csv",
            "dmo extract YOUR_IMAGES features.zarr --labels labels.csv --test-share 0.1",
        ],
    )
