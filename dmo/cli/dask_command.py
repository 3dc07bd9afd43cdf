"""Plugin for the command line of Dask, which runs `dmo` as `dask dmo`.

Every `dask scheduler` and `dask worker` imports this module. The module therefore imports dmo only for `dask dmo`.
"""

from __future__ import annotations

import click


@click.command(
    "dmo",
    help="Learn a label-aware embedding from many views, and annotate new samples: `dask dmo --help`.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Pass all arguments of `dask dmo` to `dmo`."""
    from dmo.cli.app import app  # Import lazily, because schedulers and workers need no commands.

    app(list(arguments), prog_name="dask dmo")
