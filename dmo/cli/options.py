"""Options that several commands share, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import typer

from dmo import stores
from dmo.cli.running import SCHEDULER
from dmo.estimators import BestLowRank, Exact, Krylov, Meka, Nystrom
from dmo.kernels import parse

ALL = "all"
T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on standard output.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is at the output path.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print sizes and estimated seconds; write nothing.")]
Scheduler = Annotated[str | None, typer.Option(help=SCHEDULER)]
Split = Annotated[str | None, typer.Option(help="Samples to take: a split of the store, or 'all'.")]
Block = Annotated[int, typer.Option(min=1, help="Rows of a block, the unit that is written and resumed.")]
Approximation = Annotated[
    Literal["auto", "exact", "nystrom", "meka", "best"],
    typer.Option(
        help="auto: exact kernels where they fit; else low-rank ones and one pass over the rows (best: of both)."
    ),
]
Rank = Annotated[int | None, typer.Option(min=1, help="Columns of nystrom and best (1000), per cluster of meka (128).")]
Clusters = Annotated[int, typer.Option(min=1, help="Clusters of meka.")]
Model = Annotated[str, typer.Argument(help="Model store that dmo fit wrote.")]
Features = Annotated[str, typer.Argument(help="Feature store that dmo ingest wrote.")]


def free(path: str, overwrite: bool, kind: Literal["features", "model"]) -> bool:
    """Refuse a complete store at an output path unless it may be replaced, and one of another kind than will be made;
    returns whether an unfinished one is there.

    Raises StoreError with the cure.
    """
    try:
        found = stores.describe(path)
    except FileNotFoundError:
        return False
    if found["complete"] and not overwrite:
        raise stores.StoreError(f"{path} exists; pass --overwrite to replace it, or choose another path")
    stores.check_kind(path, found["kind"], kind)
    return not found["complete"]


def origin(
    parents: Sequence[str], store: stores.FeatureStore, split: str | None, seed: int | None = None, **more: Any
) -> stores.Provenance:
    """Provenance of what is made from the samples `split` of a feature store: that store's own is kept in it."""
    parameters = {"split": split, "dataset": store.attributes.get("dataset"), "features": store.provenance}
    return stores.Provenance(parents, parameters | more, seed)


def chosen_split(store: stores.FeatureStore, wanted: str | None, default: str) -> str | None:
    """The split to take (None: all samples): `wanted`, else `default` where the store has it. StoreError if it has not."""
    known = [] if store.split is None else sorted(set(store.split.tolist()))
    if wanted is None:
        return default if default in known else None
    if wanted == ALL and ALL not in known:
        return None
    if wanted not in known:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise stores.StoreError(f"{store.url} has no split {wanted!r}; {has}, or take --split all")
    return wanted


def chosen_views(store: stores.FeatureStore, wanted: Sequence[str] | None) -> list[str]:
    """Names of views, from repeated or comma-separated `--views`; all views of the store without it."""
    names = [name for part in wanted or () for name in part.split(",") if name]
    for name in names:
        if name not in store.views:
            raise stores.StoreError(f"{store.url} has no view {name!r}; it has {', '.join(store.views)}")
    return list(dict.fromkeys(names)) or list(store.views)


def by_view(option: str, given: Sequence[str], views: Sequence[str], convert: Callable[[str], T]) -> dict[str, T]:
    """View -> value from entries VALUE (for all views) and VIEW=VALUE; views that no entry names are left out.

    Raises ValueError for an unknown view or a value that `convert` refuses.
    """
    common: dict[str, T] = {}
    single: dict[str, T] = {}
    for entry in given:
        view, equals, value = entry.partition("=")
        if equals and view not in views:
            raise ValueError(
                f"{option} {entry}: no view {view!r} is used; write VIEW=VALUE with one of {', '.join(views)}"
            )
        try:
            converted = convert(value if equals else entry)
        except ValueError as error:
            raise ValueError(f"{option} {entry}: {error}") from error
        if equals:
            single[view] = converted
        else:
            common = dict.fromkeys(views, converted)
    return common | single


def numbers(option: str, given: Sequence[str], views: Sequence[str], default: float) -> Any:
    """A number for all views, or a mapping view -> number where an entry VIEW=NUMBER names one."""
    found = by_view(option, given, views, float)
    if not any("=" in entry for entry in given):
        return found[views[0]] if found else default
    return dict.fromkeys(views, default) | found


def kernels(store: stores.FeatureStore, views: Sequence[str], given: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """View -> kernel name, and for every view that "auto" decided the reason in words."""
    specs = dict.fromkeys(views, "auto") | by_view("--kernel", given, views, _kernel_name)
    notes = []
    for view, spec in specs.items():
        if spec == "auto":
            histogram = store.view_info(view).histogram
            specs[view] = "hellinger-rbf" if histogram else "rbf"
            reason = (
                "its rows are histograms, square roots make them Euclidean"
                if histogram
                else "its rows are no histograms"
            )
            notes.append(f"view {view}: kernel {specs[view]} ({reason})")
    return specs, notes


def _kernel_name(spec: str) -> str:
    if spec != "auto":
        parse(spec)
    return spec


def values(option: str, text: str, convert: Callable[[str], T]) -> list[T]:
    """The comma-separated values of one parameter; raises ValueError that names the option."""
    try:
        found = [convert(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ValueError(f"{option} {text}: {error}") from error
    if not found:
        raise ValueError(f"{option}: needs at least one value")
    return found


def truth(text: str) -> bool:
    """`true` or `false` as a bool."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def approximation(name: str, rank: int | None, clusters: int, engine: Exact | None = None) -> Any:
    """The `approximation` argument of an estimator: `engine` (exact), Nystrom or Meka objects."""
    if name == "auto":
        return name
    if name == "exact":
        return "exact" if engine is None else engine
    if name == "krylov":
        return Krylov()
    if name == "nystrom":
        return Nystrom(rank=1000 if rank is None else rank)
    if name == "meka":
        return Meka(clusters=clusters, rank=128 if rank is None else rank)
    return BestLowRank(clusters=clusters, rank=1000 if rank is None else rank)


def components(text: str) -> int | float:
    """`--components`: "130" is a number, "0.8" or "1.0" a share of the labels. Raises ValueError for anything else."""
    try:
        return int(text) if text.strip().lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise ValueError(f"--components {text}: needs a whole number, or a share of the labels such as 0.8") from None
