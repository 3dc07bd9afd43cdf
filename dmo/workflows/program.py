"""Running a program on whichever cluster was asked for: its options, its log and its exit.

Exit codes: 0 done; 1 a fault of the program (with Python's traceback); 2 wrong input, or a store, model or backend that cannot
be used; 3 the cluster, the disk or a worker failed, run the same command again; 4 `dmo verify` found problems; 130 stopped by
Ctrl-C; 143 by SIGTERM. After 3, 130 and 143 the same command goes on with what is finished.
"""

from __future__ import annotations

import _thread
import argparse
import errno
import json
import logging
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TextIO

import dmo
from dmo.errors import UserError, visible
from dmo.progress import bars, listen

if TYPE_CHECKING:
    from rich.console import Console

WRONG, FAILED, DAMAGED, INTERRUPTED, TERMINATED = 2, 3, 4, 130, 143
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
_GO_ON = "what is finished is kept, the same command goes on or starts again"


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: a batch system ends the job."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM inside this block, so that stores are closed and clusters taken down.

    An interrupt that comes within a callback (of the lock of an import, say), whose errors Python drops, comes again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    def again(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            number = signal.SIGTERM if isinstance(dropped.exc_value, Terminated) else signal.SIGINT
            threading.Timer(0.01, _thread.interrupt_main, [number]).start()
        else:
            hook(dropped)

    before, hook = signal.signal(signal.SIGTERM, stop), sys.unraisablehook
    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, before)


def sentence(error: BaseException) -> str:
    """An error as one line for people."""
    return visible(_sentence(error))


def _sentence(error: BaseException) -> str:
    error = _cause(error)
    if isinstance(error, Terminated):
        return f"terminated; {_GO_ON}"
    if isinstance(error, KeyboardInterrupt):
        return f"stopped; {_GO_ON}"
    if isinstance(error, MemoryError):
        return f"not enough memory ({error}); take fewer views or samples, or --storage recomputed or stored"
    if _lost(error):
        return f"the cluster was lost ({type(error).__name__}: {' '.join(str(error).split())}); {_GO_ON}"
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def code(error: BaseException) -> int | None:
    """The exit code of an error; None for one that is a fault of the program."""
    error = _cause(error)
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    if _lost(error) or (isinstance(error, OSError) and error.errno in _DISK):
        return FAILED
    return WRONG if isinstance(error, (UserError, OSError, MemoryError, ImportError)) else None


def _cause(error: BaseException) -> BaseException:
    """The interrupt that Python made this error from, as it does where a class is being defined; else the error."""
    return error.__cause__ if isinstance(error.__cause__, KeyboardInterrupt) else error


def _lost(error: BaseException) -> bool:
    """Whether workers or the scheduler went away under the program."""
    if isinstance(error, CancelledError | TimeoutError):
        return True
    # distributed's, later on
    if isinstance(error, OSError) and str(error).startswith("Timed out trying to connect to"):
        return True
    return type(error).__name__ in ("CommClosedError", "KilledWorker", "FutureCancelledError", "StreamClosedError")


@contextmanager
def told(program: str, trace: bool = False) -> Iterator[None]:
    """End the program with the sentence and the code of an error of this block that a user can cause; faults are raised."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        found = code(error)
        if found is None or isinstance(error, BrokenPipeError):
            raise
        if trace:
            traceback.print_exc()
        print(f"{program}: {sentence(error)}", file=sys.stderr)
        raise SystemExit(found) from error


def ending(program: str, work: Callable[[], None]) -> int:
    """Run `work`; returns the exit code, having said on standard error what is wrong. Faults are raised."""
    try:
        with told(program), terminable():
            work()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@contextmanager
def json_log(path: str | None, program: str) -> Iterator[None]:
    """Append what happens in this block to `path` (None: nowhere)."""
    # Every line has time (UTC, ISO 8601) and event: "start" (program, arguments, dmo), "message" (level, text),
    # "stage" (see `dmo.progress.listen`), "end" (seconds, error: null or one sentence). Raises OSError where the file
    # cannot be written.
    if path is None:
        yield
        return
    with open(path, "a", encoding="utf-8") as file:
        lines, start = _Lines(file), time.perf_counter()
        lines.write("start", {"program": program, "arguments": sys.argv[1:], "dmo": dmo.__version__})
        problem: str | None = None
        try:
            with heard(lines), listen(lambda event: lines.write("stage", event)):
                yield
        except BaseException as error:
            problem = sentence(error)
            raise
        finally:
            lines.write("end", {"seconds": round(time.perf_counter() - start, 3), "error": problem})


@contextmanager
def heard(handler: logging.Handler, level: int = logging.INFO) -> Iterator[None]:
    """Let a handler hear the library's log from a level on."""
    log = logging.getLogger("dmo")
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


class _Lines(logging.Handler):
    """Writes events to an open file, each line at once."""

    def __init__(self, file: TextIO):
        super().__init__()
        self.file = file

    def write(self, event: str, fields: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.file.write(json.dumps({"time": now, "event": event, **fields}) + "\n")
        self.file.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self.write("message", {"level": record.levelname.lower(), "text": record.getMessage()})


HELP = {
    "workers": "Workers to start (jobs of a batch queue), and to wait for; default: the setting of the backend.",
    "worker_threads": "Threads of a worker that is started.",
    "memory_limit": "Memory of one worker that is started, such as 4GiB.",
    "performance_report": "HTML file for Dask's performance report of the run.",
    "checkpoint": "Folder that keeps the state of long passes, kernel solves and sweeps, and what they have finished, "
    "so that the same command goes on where a run was interrupted; emptied when it ends well.",
    "log": "File to append what happens to, one JSON object a line.",
    "json": "Print the result as JSON, and nothing else, on standard output.",
    "quiet": "Say nothing but the result of a question, and what is wrong.",
    "verbose": "Say all that is decided, and the time of every stage; show bars off a terminal too.",
}
FLAGS = ("json", "quiet", "verbose")
"""Options of a run that are said or not."""
SCHEDULER = (
    "in-process, local, tcp://HOST:PORT, tls://HOST:PORT, a scheduler file, slurm, pbs, lsf, kubernetes, gateway, ssh or "
    "ssh:HOST,HOST "
    "(default: DASK_SCHEDULER_ADDRESS, else the setting dmo.scheduler, else in-process)."
)


@dataclass(frozen=True)
class RunOptions:
    """Options of every run; see `HELP`."""

    workers: int | None = None  # to start
    worker_threads: int | None = None  # of a worker
    memory_limit: str | None = None  # of a worker
    performance_report: str | None = None  # HTML file of Dask's
    checkpoint: str | None = None  # folder for the state of long computations
    log: str | None = None  # file to append to
    json: bool = False  # print JSON
    quiet: bool = False  # say little
    verbose: bool = False  # say all

    def settings(self) -> dict[str, Any]:
        """Find the settings that the given options stand for."""
        names = ("workers", "worker_threads", "memory_limit", "performance_report")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {f"dmo.{name.replace('_', '-')}": value for name, value in given.items()}


_options: ContextVar[RunOptions] = ContextVar("dmo_run_options", default=RunOptions())  # noqa: B039 (frozen)
run_options = _options.get
"""The options of the run that goes on."""


@contextmanager
def running(options: RunOptions, program: str) -> Iterator[None]:
    """Apply the options of a run to what is inside this block."""
    if options.quiet and options.verbose:
        raise UserError("--quiet and --verbose: say little, or say all? pass one of them")
    token = _options.set(options)
    try:
        with ExitStack() as stack:  # a command that is given no such option starts without Dask and stores
            if settings := options.settings():
                import dask.config

                stack.enter_context(dask.config.set(settings))
            stack.enter_context(json_log(options.log, program))
            if options.checkpoint is not None:
                from dmo.stores.checkpoints import checkpoints

                stack.enter_context(checkpoints(options.checkpoint))
            yield
    finally:
        _options.reset(token)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Give a pipeline `--scheduler` and the options of `RunOptions`."""
    group = parser.add_argument_group("run")
    group.add_argument("--scheduler", help=SCHEDULER)
    for name in FLAGS[1:]:  # the result of a pipeline is what it writes
        group.add_argument(f"-{name[0]}", f"--{name}", action="store_true", help=HELP[name])
    for name, text in HELP.items():
        if name in FLAGS:
            continue
        kind = int if name in ("workers", "worker_threads") else str
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=name.upper(), help=text)


def run_pipeline(file: str, options: argparse.Namespace, work: Callable[[Session], None]) -> int:
    """Run a pipeline where its options say, with bars and notes on standard error."""
    from dmo.cluster import connect  # here: a command that needs no cluster starts without its modules

    name = Path(file).name
    chosen = RunOptions(**{key: getattr(options, key) for key in HELP if key != "json"})

    def all_of_it() -> None:
        with running(chosen, name), session() as run, connect(options.scheduler) as backend:
            run.detail(f"running {backend.where}")
            work(run)

    return ending(name, all_of_it)


def free(path: str, overwrite: bool, kind: Literal["features", "model"]) -> bool:
    """Refuse an output path that cannot be written, or that holds what may not be replaced."""
    complete = dmo.stores.existing_store(path, kind)
    if complete and not overwrite:
        raise dmo.stores.StoreError(f"{path} exists; pass --overwrite to replace it, or choose another path")
    dmo.stores.check_output(path)
    return complete is False


def begin(run: Session, path: str, overwrite: bool) -> None:
    """As `free` for a feature store, with a note where an unfinished one goes on."""
    if free(path, overwrite, "features") and not overwrite:
        run.note(f"{path} is unfinished: going on with the blocks that are missing")


@dataclass
class Session:
    """What a running command may use."""

    errors: Console  # standard error
    verbose: bool = False  # whether details are told
    quiet: bool = False  # whether nothing is told
    seconds: dict[str, float] = field(default_factory=dict)  # of every stage so far
    started: float = field(default_factory=time.perf_counter)  # when, by `time.perf_counter`
    said: set[str] = field(default_factory=set)  # warnings and records of the log that were told

    def note(self, text: str) -> None:
        """Remark on standard error."""
        if not self.quiet:
            self.errors.print(visible(text), highlight=False, markup=False, soft_wrap=True)

    def once(self, text: str) -> bool:
        """Tell whether a text is new, and take it as told."""
        new = text not in self.said
        self.said.add(text)
        return new

    def detail(self, text: str) -> None:
        """Remark for those who want to know all."""
        if self.verbose:
            self.note(text)

    def costs(self) -> dict[str, Any]:
        """Say what the run has taken so far."""
        return {
            "stages": {name: round(seconds, 4) for name, seconds in self.seconds.items()},
            "seconds": round(time.perf_counter() - self.started, 4),
            "peak_memory_bytes": peak_memory(),
        }


@contextmanager
def session() -> Iterator[Session]:
    """Run a command's work: bars for its stages on a terminal, lines elsewhere, the library's log and warnings as notes."""
    from rich.console import Console  # here: the program's version is told without it

    run = Session(Console(stderr=True), run_options().verbose, run_options().quiet)
    shown = bars(run.errors, run.quiet, brief=not run.verbose)
    with heard(_Notes(run)), warnings.catch_warnings(), shown as run.seconds:
        warnings.filterwarnings("always", category=UserWarning)
        warnings.showwarning = lambda message, *_: _warn(run, f"warning: {message}")  # type: ignore[assignment]
        yield run


def quiet() -> AbstractContextManager[None]:
    """Keep the library's log out of the notes."""
    return heard(logging.NullHandler(), logging.WARNING)


def _warn(run: Session, text: str) -> None:
    """Once: what is said of every fold of every setting is said of the first."""
    if run.once(text):
        run.note(text)


class _Notes(logging.Handler):
    """Log records as notes, each text once: what is said of every view is said of the first."""

    def __init__(self, run: Session):
        super().__init__()
        self.run = run

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self.run.once(text):
            # what was chosen and why, and where to watch, is told to everyone; what follows from it to those who ask
            told = record.levelno > logging.INFO or text.startswith(("dashboard: ", "tune: "))
            told = told or (text.startswith("engine: ") and self.run.once("engine: "))
            (self.run.note if told else self.run.detail)(text)


def peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def say_unreadable(run: Session, failures: Mapping[str, str]) -> None:
    """Note every image that could not be read."""
    for reason in failures.values():
        run.note(f"skipped: {reason}")
