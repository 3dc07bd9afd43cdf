"""The `dmo` command as the tests call it, and a disk that is full."""

import json
import resource
import subprocess
import sys
from contextlib import contextmanager

from typer.testing import CliRunner

from dmo.cli.app import app


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


TOGETHER = """
import importlib, json, os, sys
from dmo.cli.app import app

commands, folder = json.loads(sys.argv[1]), sys.argv[2]
for name in sys.argv[3:]:
    importlib.import_module(name)
wait, go = os.pipe()
children = []
for number, command in enumerate(commands):
    child = os.fork()
    if not child:
        os.close(go)
        os.read(wait, 1)  # until all are there
        os.dup2(os.open(f"{folder}/{number}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv = ["dmo", *command]
        app()
    children.append(child)
os.close(go)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""


def loaded():
    """The modules that commands have imported here, for a program that imports them once and then runs copies of itself."""
    return sorted(
        name for name in sys.modules if name.startswith(("dmo.cli.", "dmo.workflows.", "dmo.features.", "dmo.report."))
    )


def at_once(folder, *commands):
    """(exit code, standard error) of `dmo` commands that start at the same moment, each in a process of its own."""
    given = json.dumps([[str(part) for part in command] for command in commands])
    own = {f"dmo.cli.{name}" for name, *_ in commands} | (
        {"dmo.workflows.report_figures"} if commands[0][0] == "report" else set()
    )
    program = [sys.executable, "-c", TOGETHER, given, str(folder), *sorted(own.union(loaded()))]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [(code, (folder / f"{i}.err").read_text()) for i, code in enumerate(json.loads(done.stdout))]
