"""The `dmo` command as the tests call it, and a disk that is full."""

import json
import resource
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
