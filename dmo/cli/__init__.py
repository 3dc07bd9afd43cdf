"""The `dmo` command: from a folder of images or feature files to models, annotations and reports."""

import sys


def main() -> None:
    """Entry point of the `dmo` command."""
    try:
        from dmo.cli.app import app
    except KeyboardInterrupt:  # what takes it afterwards is not there yet
        print("dmo: stopped before it began", file=sys.stderr)
        sys.exit(130)
    app(prog_name="dmo")
