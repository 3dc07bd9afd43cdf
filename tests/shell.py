"""Helpers to call the `dmo` command in tests, and to simulate a full disk."""

import json
import os
import resource
import sys
from contextlib import contextmanager
from multiprocessing import get_context
from unittest.mock import patch

from typer.testing import CliRunner

from dmo.cli.app import COMMANDS, app


def run(*arguments, code=0):
    """Run `dmo ARGUMENTS`, check the exit code, and return the result."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exception)
    return result


def record(*arguments):
    """Run `dmo ARGUMENTS --json`, and return the parsed standard output, which must contain only JSON."""
    return json.loads(run(*arguments, "--json").stdout)


@contextmanager
def disk_full(size):
    """Limit the size of files to `size` bytes, so that the operating system rejects larger writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def figures_emptied():
    """Save empty figures in reports, for tests that do not inspect the figures.

    Matplotlib would need a second to draw the text of the figures.
    """
    from matplotlib.figure import Figure

    save = Figure.savefig

    def emptied(figure, file, **options):
        figure.clear()
        save(figure, file, **options)

    with patch.object(Figure, "savefig", emptied):
        yield


def _command(arguments, said, waiting):
    """Run `dmo ARGUMENTS` as soon as all processes are ready, and write standard error to the file `said`."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    COMMANDS[arguments[0]].load()
    waiting.wait(300)
    sys.argv = ["dmo", *arguments]
    app()


def at_once(folder, *commands):
    """Start `dmo` commands simultaneously in separate processes, and return each exit code and standard error."""
    processes = get_context("forkserver")
    waiting = processes.Barrier(len(commands))
    files = [folder / f"{number}.err" for number in range(len(commands))]
    children = [
        processes.Process(target=_command, args=([str(part) for part in command], file, waiting))
        for command, file in zip(commands, files)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
    return [(child.exitcode, file.read_text()) for child, file in zip(children, files)]
