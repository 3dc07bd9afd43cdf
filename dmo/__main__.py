"""Entry point of `python -m dmo`, which runs the `dmo` command."""

from dmo.cli import main

main()
