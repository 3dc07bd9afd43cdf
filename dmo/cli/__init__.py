"""The `dmo` command: from a folder of images or feature files to models, annotations and reports."""


def main() -> None:
    """Entry point of the `dmo` command."""
    from dmo.cli.app import app

    app(prog_name="dmo")
