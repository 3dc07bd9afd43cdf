"""Command `dmo extract`, which extracts features of images to a feature store."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dmo.cli.commands import Overwrite, Scheduler, Separator, Threads, Unreadable
from dmo.cli.info import written
from dmo.cli.session import cost_rows, in_a_line, show
from dmo.cluster import connect
from dmo.errors import UserError, amount
from dmo.features import SETS, Embedding, Extraction, Extractor, Listing, Recipe, append_images, extract, list_images
from dmo.features.embedding import VIEW
from dmo.features.images import FOLDERS, SIDE
from dmo.workflows.program import Session, begin, say_unreadable, session

SET_HELP = f"Set ({', '.join(SETS)}) or comma-separated views."


def extract_command(
    folder: Annotated[str, typer.Argument(help="Folder of images, searched with its subfolders.")],
    store: Annotated[str, typer.Argument(help="Feature store to write.")],
    views: Annotated[str, typer.Option("--set", help=SET_HELP)] = "kgha8",
    labels: Annotated[
        str | None,
        typer.Option(
            help="'folders', or a .csv or .json file of labels. The file has image names with lists, classes, 0/1 "
            "columns or real targets."
        ),
    ] = None,
    separator: Separator = None,
    test_share: Annotated[
        float | None,
        typer.Option(help="Fraction of images for the split 'test'. The split depends only on their names."),
    ] = None,
    like: Annotated[str | None, typer.Option(help="Model or store whose recipe and vocabularies to use.")] = None,
    words: Annotated[
        int | None, typer.Option(min=2, help="Words per vocabulary (default: 1000 SIFT, 100 hue).")
    ] = None,
    side: Annotated[
        int, typer.Option(help="Maximum length of the longer side in pixels. Larger images are reduced.")
    ] = SIDE,
    onnx: Annotated[
        str | None,
        typer.Option(
            help="ONNX image model that adds a view of embeddings. With --like and --append, pass the same model again."
        ),
    ] = None,
    unreadable: Unreadable = "skip",
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Random seed of the vocabularies.")] = 0,
    block: Annotated[int, typer.Option(min=1, help="Images per block, the unit of writing and resuming.")] = 256,
    append: Annotated[
        bool,
        typer.Option(
            "--append", help="Add new images to a complete store. Their features use the recipe of the store."
        ),
    ] = False,
    scheduler: Scheduler = None,
    overwrite: Overwrite = False,
) -> None:
    """Extract features from a folder of images: color, texture, gist and visual words."""
    # An interrupted run is resumed. On a Dask cluster, each block of images is a task, and the features are the same as
    # without a cluster. The workers must be able to access the images and the store by the same paths as the client.
    if append and (overwrite or like is not None):
        raise UserError("extract: --append keeps the store and its recipe; omit --overwrite and --like")
    with session() as run, ExitStack() as place:
        if onnx is not None and (append or like is not None):
            import dask.config  # Import dask.config lazily, because few commands need it.

            place.enter_context(dask.config.set({"dmo.onnx": onnx}))
        recipe = Extractor.load(like) if like is not None else _recipe(views, words, side, seed, onnx)
        if not append:
            begin(run, store, overwrite)
        listing = list_images(folder, labels, separator)
        if test_share is not None:
            listing = listing.with_test_share(test_share)
        _say_listing(run, listing, labels)
        place.enter_context(connect(scheduler))
        if append:
            done = append_images(listing, store, unreadable=unreadable, threads=threads)
        else:
            done = extract(
                listing, store, recipe, unreadable=unreadable, threads=threads, block=block, overwrite=overwrite
            )
        say_unreadable(run, done.unreadable)
    _report(run, done, listing, folder, store)


def _recipe(views: str, words: int | None, side: int, seed: int, onnx: str | None) -> Recipe:
    model = None if onnx is None else Embedding.open(onnx).to_dict()
    names = views if model is None else f"{views},{VIEW}"
    recipe = Recipe.of(names, side=side, seed=seed, onnx=model)
    return recipe if words is None else replace(recipe, words=dict.fromkeys(recipe.local, words))


def _say_listing(run: Session, listing: Listing, labels: str | None) -> None:
    """Print notes about files that are not read, and about names in the label file that have no image."""
    left = (
        (listing.others, "files that are not images (not read)"),
        (listing.unlisted if labels != FOLDERS else (), f"images not listed in {labels} (left out)"),
        (listing.absent, f"names in {labels} without an image"),
    )
    own = str(Path(labels).resolve()) if labels else ""
    for names, what in left:
        kept = [name for name in names if str((listing.folder / name).resolve()) != own]
        if kept:
            more = ", ..." if len(kept) > 5 else ""
            run.note(f"{len(kept)} {what}: {', '.join(kept[:5])}{more}")


def _report(run: Session, done: Extraction, listing: Listing, folder: str, path: str) -> None:
    record, (images, *labels) = written(done.store, path, "image")
    record |= {
        "label_kind": listing.kind if labels else None,
        "folder": folder,
        "views": {name: int(view.shape[1]) for name, view in done.store.views.items()},
        "fingerprint": done.store.provenance["parameters"]["fingerprint"],
        "unreadable": done.unreadable,
        "unlisted": list(listing.unlisted),
        "absent": list(listing.absent),
        "resumed_blocks": done.resumed,
        **run.costs(),
    }
    rows = [images, *([("unreadable", f"{len(done.unreadable)}, left out")] if done.unreadable else []), *labels]
    rows += [(f"view {name}", f"{width} features") for name, width in record["views"].items()]
    if seconds := record["stages"].get("describe images"):
        rows.append(("speed", f"{record['n_samples'] / seconds:.1f} images per second"))
    rows += [("size", amount(record["bytes"])), *cost_rows(record), ("store", path)]
    known = [f"labels {value}" for _, value in labels]
    line = in_a_line(record, path, f"{images[1]} images", *known, f"{len(record['views'])} views")
    show(record, rows, f"images of {folder}", line)
