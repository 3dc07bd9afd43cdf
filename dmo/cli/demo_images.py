"""`dmo demo --images`: from images to a report, on scenes that are drawn on the spot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dmo import stores
from dmo.cli.evaluate import percent
from dmo.cli.fit import save
from dmo.cli.session import grid, show
from dmo.demo.scenes import draw_images
from dmo.estimators import KGHA, MultiViewRidge
from dmo.features import Recipe, extract, list_images
from dmo.progress import stage
from dmo.workflows.images import Folder, annotate_images
from dmo.workflows.program import amount, session
from dmo.workflows.report_page import write_page

N, N_NEW, WORDS, TOP, SEED = 480, 24, {"dense_sift": 300, "harris_sift": 300}, 5, 0


def demo_images(out: Path, as_json: bool) -> None:
    """Draw scenes, describe them by eight views, fit KGHA and a baseline, annotate new scenes, report."""
    _check_folder(out)
    with session(as_json) as run:
        table = draw_images(out / "images", N, SEED)
        listing = list_images(out / "images", table)
        path = out / "features.zarr"
        recipe = Recipe.of("kgha8", words=WORDS, seed=SEED)
        store = extract(listing, path, recipe, unreadable="refuse", overwrite=path.exists()).store
        models = _fit(out, store)
        draw_images(out / "new", N_NEW, SEED + 1)
        request = Folder(
            model=str(models["KGHA"]), folder=str(out / "new"), out=str(out / "new.csv"), top=TOP, csv=None,
            unreadable="refuse", threads=None, overwrite=True, dry_run=False, json=as_json,
        )  # fmt: skip
        annotated = annotate_images(run, request)
        lead = (
            f"dmo described {store.n_samples} drawn scenes by eight views of color, texture and visual words, learnt one "
            "space from these and their labels, and annotates scenes that it has not seen."
        )
        page = out / "report.html"
        paths = [str(path) for path in models.values()]
        record = write_page(run, paths, str(path), page, title="dmo demo: drawn scenes", lead=lead, jec=True)
        record |= {"out": str(out), "annotated": annotated, **run.costs()}
    if as_json:
        show(record, [], "", True)
        return
    _say(record, out)


def _check_folder(out: Path) -> None:
    """Refuse a folder with other things in it; an earlier demo is made anew."""
    if out.exists() and not (out / "images" / "labels.csv").exists() and (not out.is_dir() or any(out.iterdir())):
        raise stores.StoreError(f"{out} exists and holds no demo of images; choose another folder with --out")


def _fit(out: Path, store: stores.FeatureStore) -> dict[str, Path]:
    """KGHA and kernel ridge regression on the training images, saved: name -> model store."""
    kernel = {view: "hellinger-rbf" if store.view_info(view).histogram else "rbf" for view in store.views}
    models: dict[str, Any] = {
        "KGHA": KGHA(kernel, balance=1e-2, ridge=1e-1, n_components=0.9, intercept=True, random_state=SEED),
        "r-KMLR": MultiViewRidge(kernel, ridge=1e-1, intercept=True, random_state=SEED),
    }
    views, Y, _ = store.select("train")
    paths = {}
    for name, model in models.items():
        with stage(f"{name}: fit", 1) as advance:
            model.fit(views, Y)
            advance(1)
        model.label_names_ = list(store.label_names or ())
        paths[name] = out / f"{name.lower()}.zarr"
        save(model, str(paths[name]), store, "train", SEED, overwrite=True)
    return paths


def _say(record: Mapping[str, Any], out: Path) -> None:
    """The table of scores, where everything is, and what to try next."""
    rows = [
        [name, *(percent(m[key]) for key in ("precision", "recall", "f1")), f"{m['n_plus']} of {m['n_labels']}"]
        for name, m in record["methods"].items()
    ]
    columns = ["method", "precision", "recall", "F1", "N+"]
    grid(f"annotation of {record['n_samples']} held-out scenes, {TOP} labels each", columns, rows)
    first = [[name, ", ".join(words)] for name, words in record["annotated"]["examples"].items()]
    grid("new scenes", ["image", "labels, best first"], first, numbers=False)
    store, model = out / "features.zarr", out / "kgha.zarr"
    lines = [
        "",
        f"done in {record['seconds']:.1f} s, peak memory {amount(record['peak_memory_bytes'])}",
        "",
        f"report       {record['report'][0]}",
        f"images     {out / 'images'}",
        f"features     {store}",
        f"model        {model}",
        f"annotations  {record['annotated']['out']}",
        "",
        "what to try next",
        f"  dmo search {model} {store} --labels 'sea, boat'",
        f"  dmo search {model} {store} --image {out / 'new' / 'scene-00000.jpg'}",
        f"  dmo annotate {model} YOUR_IMAGES labels.csv",
        "  dmo extract YOUR_IMAGES features.zarr --labels labels.csv --test-share 0.1",
    ]
    print("\n".join(lines))
