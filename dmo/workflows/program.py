"""Run options, logging and exit codes of commands and pipelines.

- 0: success
- 1: error in dmo, with a traceback
- 2: invalid input, or an unusable store, model or backend
- 3: failure of the cluster, the disk or a worker
- 4: problems found by `dmo verify`
- 130: stopped by Ctrl-C
- 143: stopped by SIGTERM

After the exit codes 3, 130 and 143, the same command resumes from the finished parts.
"""

from __future__ import annotations

import _thread
import argparse
import csv
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
_LATER = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EAGAIN}  # e.g., full disk
_GO_ON = "finished parts are kept; repeat the command to resume or restart it"


class Terminated(KeyboardInterrupt):
    """Exception for the signal SIGTERM, by which a batch system ends a job."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM in a context, so that stores are closed and clusters are shut down."""
    # Python ignores exceptions in some callbacks, such as callbacks of the import lock, and calls `sys.unraisablehook`
    # instead. If an interrupt was ignored in this way, raise it again.
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
    """Format an error as a single line of text."""
    return visible(_sentence(error))


def _sentence(error: BaseException) -> str:
    error = _cause(error)
    if isinstance(error, Terminated):
        return f"terminated; {_GO_ON}"
    if isinstance(error, KeyboardInterrupt):
        return f"stopped; {_GO_ON}"
    if isinstance(error, MemoryError):
        return f"not enough memory ({error}); use fewer views or samples, or --storage recomputed or stored"
    if _lost(error):
        return f"the cluster was lost ({type(error).__name__}: {' '.join(str(error).split())}); {_GO_ON}"
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def code(error: BaseException) -> int | None:
    """Return the exit code for an error, or None for an error in dmo itself."""
    error = _cause(error)
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    if (
        _lost(error)
        or type(error).__name__ == "RestartedError"
        or (isinstance(error, OSError) and error.errno in _LATER)
    ):
        return FAILED
    return WRONG if isinstance(error, (UserError, OSError, MemoryError, ImportError)) else None


def _cause(error: BaseException) -> BaseException:
    """Return the interrupt that caused an error during the definition of a class, otherwise the error itself."""
    return error.__cause__ if isinstance(error.__cause__, KeyboardInterrupt) else error


def _lost(error: BaseException) -> bool:
    """Return whether an error means that the Dask scheduler or a worker cannot be reached."""
    if isinstance(error, CancelledError | TimeoutError):
        return True
    # Some timeouts in `distributed` raise an OSError.
    if isinstance(error, OSError) and str(error).startswith("Timed out trying to connect to"):
        return True
    return type(error).__name__ in ("CommClosedError", "KilledWorker", "FutureCancelledError", "StreamClosedError")


@contextmanager
def told(program: str, trace: bool = False) -> Iterator[None]:
    """Exit with a one-line message and an exit code on user errors in a context; raise other errors."""
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
    """Call `work` and return the exit code; user errors are printed to standard error, and other errors are raised."""
    try:
        with told(program), terminable():
            work()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@contextmanager
def json_log(path: str | None, program: str) -> Iterator[None]:
    """Append the events in a context to the file `path` as JSON lines, or do nothing if `path` is None."""
    # Each line has a "time" (UTC, ISO 8601) and an "event". The events are "start" (with the program, its arguments and
    # the version of dmo), "message" (level and text), "stage" (as in `dmo.progress.listen`), and "end" (seconds, and
    # the error or null).
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
    """Send log records of dmo with a minimum level to a handler in a context."""
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
    """Log handler that writes each event to an open file without buffering."""

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
    "workers": "Number of workers (jobs of a batch queue) to start. The command waits for them. The default is a "
    "setting of the backend.",
    "worker_threads": "Threads per started worker.",
    "memory_limit": "Memory per started worker, such as 4GiB.",
    "performance_report": "HTML file for Dask's performance report of the run.",
    "checkpoint": "Folder from which an interrupted command resumes. It stores the state of long passes, kernel solves "
    "and sweeps, and is emptied after a successful run.",
    "log": "File to which events are appended as JSON lines.",
    "json": "Print only the result, as JSON, to standard output.",
    "quiet": "Print only the requested result and errors.",
    "verbose": "Print all choices and the time of every stage. Progress bars are shown even without a terminal.",
}
FLAGS = ("json", "quiet", "verbose")
"""Run options that are flags without a value."""
SCHEDULER = (
    "Where to run, such as local, slurm or tcp://HOST:PORT. Values: auto, in-process, local, tcp://HOST:PORT, "
    "tls://HOST:PORT, a scheduler file, slurm, pbs, lsf, kubernetes, gateway, ssh or ssh:HOST,HOST. The value auto uses "
    "a cluster only for many samples. Default: DASK_SCHEDULER_ADDRESS, else the setting dmo.scheduler, else in-process."
)


@dataclass(frozen=True)
class RunOptions:
    """Options that all commands and pipelines share; `HELP` describes them."""

    workers: int | None = None
    worker_threads: int | None = None
    memory_limit: str | None = None
    performance_report: str | None = None
    checkpoint: str | None = None
    log: str | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False

    def settings(self) -> dict[str, Any]:
        """Convert the options to settings of the Dask configuration."""
        names = ("workers", "worker_threads", "memory_limit", "performance_report")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {f"dmo.{name.replace('_', '-')}": value for name, value in given.items()}


_options: ContextVar[RunOptions] = ContextVar("dmo_run_options", default=RunOptions())  # noqa: B039 (frozen)
run_options = _options.get
"""Function that returns the options of the current run."""


@contextmanager
def running(options: RunOptions, program: str) -> Iterator[None]:
    """Apply run options in a context."""
    if options.quiet and options.verbose:
        raise UserError("--quiet and --verbose contradict each other; pass one of them")
    token = _options.set(options)
    try:
        with ExitStack() as stack:  # Import Dask and stores only for options that need them.
            if settings := options.settings():
                import dask.config

                stack.enter_context(dask.config.set(settings))
            stack.enter_context(json_log(options.log, program))
            if options.checkpoint is not None:
                from dmo.stores.checkpoints import checkpoints  # Import lazily, because importing NumPy is slow.

                stack.enter_context(checkpoints(options.checkpoint))
            yield
    finally:
        _options.reset(token)


def names_in(text: str) -> list[str]:
    """Split comma-separated names; a name that contains a comma must be quoted as in CSV files."""
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip()]


COMMON: dict[str, tuple[Callable[[str], Any], str]] = {
    "data": (str, "Folder of the data sets."),
    "work": (str, "Folder or URL for stores and results, which later runs reuse."),
    "sets": (names_in, "Data sets, comma-separated."),
    "views": (names_in, "Views, comma-separated."),
    "methods": (names_in, "Methods, comma-separated."),
    "seeds": (int, "Number of trials."),
    "seed": (int, "Seed of the random generator."),
    "json": (Path, "JSON file for the results."),
}
"""Type and help text of the options that several pipelines and benchmarks have."""


def option_parser(about: str | None, *, run: bool = False, **common: Any) -> argparse.ArgumentParser:
    """Create the argument parser of a pipeline with options of `COMMON`, and with run options if `run` is true.

    The values of `common` are the defaults of the options; the default `...` makes an option required.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in common.items():
        kind, text = COMMON[name]
        default = ",".join(default) if isinstance(default, list) else default
        shown = text if default in (None, ...) else f"{text} Default: {default}."
        given: dict[str, Any] = {"required": True} if default is ... else {"default": default}
        parser.add_argument(f"--{name}", type=kind, metavar=name.upper(), help=shown, **given)
    if not run:
        return parser
    group = parser.add_argument_group("run")
    group.add_argument("--scheduler", help=SCHEDULER)
    for name in FLAGS[1:]:  # Pipelines write files and have no option --json.
        group.add_argument(f"-{name[0]}", f"--{name}", action="store_true", help=HELP[name])
    for name, text in HELP.items():
        if name in FLAGS:
            continue
        kind = int if name in ("workers", "worker_threads") else str
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=name.upper(), help=text)
    return parser


def run_pipeline(file: str, options: argparse.Namespace, work: Callable[[Session], None]) -> int:
    """Run a pipeline on the selected cluster with progress bars, and return its exit code."""
    name = Path(file).name
    chosen = RunOptions(**{key: getattr(options, key) for key in HELP if key != "json"})

    def all_of_it() -> None:
        with running(chosen, name), session() as run, dmo.cluster.connect(options.scheduler) as backend:
            run.detail(f"running {backend.where}")
            work(run)

    return ending(name, all_of_it)


def free(path: str, overwrite: bool, kind: Literal["features", "model"]) -> bool:
    """Raise an error if an output cannot be written or must not be replaced; return whether it is unfinished."""
    complete = dmo.stores.existing_store(path, kind)
    if complete and not overwrite:
        raise dmo.stores.StoreError(f"{path} exists; pass --overwrite to replace it, or choose another path")
    dmo.stores.check_output(path)
    return complete is False


def begin(run: Session, path: str, overwrite: bool) -> None:
    """Check the path of a feature store as `free` does, and print a note if an unfinished store is resumed."""
    if free(path, overwrite, "features") and not overwrite:
        run.note(f"{path} is unfinished: resuming with the missing blocks")


@dataclass
class Session:
    """State of a running command, which prints notes and measures costs."""

    errors: Console  # Console that writes to standard error.
    verbose: bool = False  # Whether detailed notes are printed.
    quiet: bool = False  # Whether notes are suppressed.
    seconds: dict[str, float] = field(default_factory=dict)  # Duration of every stage so far.
    started: float = field(default_factory=time.perf_counter)  # Time at which the command started.
    said: set[str] = field(default_factory=set)  # Warnings and log records that have been printed.

    def note(self, text: str) -> None:
        """Print a note to standard error, unless notes are suppressed."""
        if not self.quiet:
            self.errors.print(visible(text), highlight=False, markup=False, soft_wrap=True)

    def once(self, text: str) -> bool:
        """Return whether a text is passed for the first time."""
        new = text not in self.said
        self.said.add(text)
        return new

    def detail(self, text: str) -> None:
        """Print a note to standard error if details are requested."""
        if self.verbose:
            self.note(text)

    def costs(self) -> dict[str, Any]:
        """Return the elapsed time, in total and per stage, and the peak memory so far."""
        return {
            "stages": {name: round(seconds, 4) for name, seconds in self.seconds.items()},
            "seconds": round(time.perf_counter() - self.started, 4),
            "peak_memory_bytes": peak_memory(),
        }


@contextmanager
def session() -> Iterator[Session]:
    """Show progress in a context, and print log records and warnings as notes."""
    from rich.console import Console  # Import lazily, so that `dmo --version` starts faster.

    run = Session(Console(stderr=True), run_options().verbose, run_options().quiet)
    shown = bars(run.errors, run.quiet, brief=not run.verbose)
    with heard(_Notes(run)), warnings.catch_warnings(), shown as run.seconds:
        warnings.filterwarnings("always", category=UserWarning)
        warnings.showwarning = lambda message, *_: _warn(run, f"warning: {message}")  # type: ignore[assignment]
        yield run


def quiet() -> AbstractContextManager[None]:
    """Suppress notes from the log of dmo in a context."""
    return heard(logging.NullHandler(), logging.WARNING)


def _warn(run: Session, text: str) -> None:
    """Print a warning only once, because every fold of every candidate can raise it."""
    if run.once(text):
        run.note(text)


class _Notes(logging.Handler):
    """Log handler that prints every distinct log record once, as a note."""

    def __init__(self, run: Session):
        super().__init__()
        self.run = run

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self.run.once(text):
            # Always print warnings, the address of the dashboard, notes on searches, the choice of a cluster, and the first
            # message about the engine. Print other log records only if details are requested.
            told = record.levelno > logging.INFO or text.startswith(("dashboard: ", "scheduler: ", "tune: "))
            told = told or (text.startswith("engine: ") and self.run.once("engine: "))
            (self.run.note if told else self.run.detail)(text)


def peak_memory() -> int:
    """Return the peak resident memory of the client process in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def say_unreadable(run: Session, failures: Mapping[str, str]) -> None:
    """Print a note for every image that could not be read."""
    for reason in failures.values():
        run.note(f"skipped: {reason}")
