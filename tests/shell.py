"""The `dmo` command as the tests call it, and a disk that is full."""

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
    """The result of `dmo ARGUMENTS`, which must end with `code`."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exception)
    return result


def record(*arguments):
    """What `dmo ARGUMENTS --json` prints, parsed: standard output must hold nothing else."""
    return json.loads(run(*arguments, "--json").stdout)


@contextmanager
def disk_full(size):
    """Files cannot grow beyond `size` bytes: a real write that the system refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def figures_emptied():
    """Figures of a report are drawn and saved without what is in them: where a test is of other things, the text alone takes
    Matplotlib a second."""
    from matplotlib.figure import Figure

    save = Figure.savefig

    def emptied(figure, file, **options):
        figure.clear()
        save(figure, file, **options)

    with patch.object(Figure, "savefig", emptied):
        yield


def _command(arguments, said, waiting):
    """`dmo ARGUMENTS` in a process of its own, once all are there; standard error goes to the file `said`."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    COMMANDS[arguments[0]].load()
    waiting.wait(300)
    sys.argv = ["dmo", *arguments]
    app()


def at_once(folder, *commands):
    """(exit code, standard error) of `dmo` commands that start at the same moment, each in a process of its own."""
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
