"""The `dmo` command: demo, ingest, info, fit, transform, annotate, evaluate."""

from dmo.cli.app import app, main

__all__ = ["app", "main"]
