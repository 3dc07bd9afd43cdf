"""Options that several commands share, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

import typer

from dmo import stores
from dmo.engines.exact import Exact
from dmo.engines.krylov import Krylov
from dmo.errors import UserError
from dmo.kernels import parse
from dmo.lowrank.approximations import BestLowRank, Meka, Nystrom
from dmo.workflows.program import SCHEDULER

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


def by_view(option: str, given: Sequence[str], views: Sequence[str], convert: Callable[[str], T]) -> dict[str, T]:
    """View -> value from entries VALUE (for all views) and VIEW=VALUE; views that no entry names are left out.

    Raises ValueError for an unknown view or a value that `convert` refuses.
    """
    common: dict[str, T] = {}
    single: dict[str, T] = {}
    for entry in given:
        view, equals, value = entry.partition("=")
        if equals and view not in views:
            raise UserError(
                f"{option} {entry}: no view {view!r} is used; write VIEW=VALUE with one of {', '.join(views)}"
            )
        try:
            converted = convert(value if equals else entry)
        except ValueError as error:
            raise UserError(f"{option} {entry}: {error}") from error
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
        raise UserError(f"{option} {text}: {error}") from error
    if not found:
        raise UserError(f"{option}: needs at least one value")
    return found


def truth(text: str) -> bool:
    """`true` or `false` as a bool."""
    if text.lower() not in ("true", "false"):
        raise UserError(f"{text!r} is neither true nor false")
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
        raise UserError(f"--components {text}: needs a whole number, or a share of the labels such as 0.8") from None


Top = Annotated[int | None, typer.Option(min=1, help="Labels per sample (default: 5, or all where there are fewer).")]
