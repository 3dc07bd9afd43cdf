"""The `dmo` command: demo, ingest, info, fit, transform, annotate, evaluate."""


def main() -> None:
    """Entry point of the `dmo` command."""
    from dmo.cli.app import app

    app()
