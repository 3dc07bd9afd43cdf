"""`python -m dmo`: the `dmo` command."""

from dmo.cli import main

main()
