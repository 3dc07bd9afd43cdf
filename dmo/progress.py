"""Progress reports of long stages, which commands, and long calls in terminals and notebooks, show as bars."""

from __future__ import annotations

import html
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from datetime import timedelta
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any

from dmo.errors import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task, TaskID

_display: ContextVar[Progress | None] = ContextVar("dmo_progress", default=None)
_seconds: ContextVar[dict[str, float] | None] = ContextVar("dmo_seconds", default=None)
_listener: ContextVar[Callable[[dict[str, Any]], None] | None] = ContextVar("dmo_listener", default=None)
_work: ContextVar[str] = ContextVar("dmo_work", default="")
_EVERY = 5.0  # minimum time in seconds between two events of a running stage
_LINES = 30.0  # time in seconds between two lines of text, which replace bars if there is no terminal
_DELAY, _REFRESH = 1.0, 0.5  # time in seconds after which library calls show bars, and refresh interval of notebooks


@contextmanager
def bars(
    console: Console | None = None, disable: bool = False, brief: bool = False, delay: float = 0.0
) -> Iterator[dict[str, float]]:
    """Show a progress bar on standard error for every `stage` in a context."""
    # If standard error is not a terminal, a line of text replaces the bars every 30 s. The line shows the progress, the
    # elapsed time and the remaining time of the innermost stage. At the end, one line per stage is printed, unless
    # `brief` is true. With a `delay` in seconds, the bars appear after this time and are removed at the end.
    from rich import progress  # Progress bars are rarely needed, so import `rich` only on demand.
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description:<28}", markup=False),
        *(progress.BarColumn(), progress.MofNCompleteColumn()),
        *(progress.TimeElapsedColumn(), progress.TimeRemainingColumn()),
    )
    seconds: dict[str, float] = {}
    console = console or Console(stderr=True)
    notebook = console.is_jupyter and not disable
    hidden = disable or notebook or (brief and not console.is_terminal)
    display = progress.Progress(*columns, console=console, disable=hidden, transient=delay > 0)
    tokens = _display.set(display), _seconds.set(seconds)
    starter, ended = threading.Timer(delay, display.start), threading.Event()
    told: tuple[Any, ...] = (_tell_notebook, display, ended) if notebook else (_tell_lines, display, ended)
    lines = threading.Thread(target=copy_context().run, args=told, daemon=True)
    if delay:
        starter.daemon = True
        starter.start()
    else:
        display.start()
    if notebook or not (disable or console.is_terminal):
        lines.start()
    try:
        yield seconds
    finally:
        ended.set()
        starter.cancel()
        for thread in (starter, lines):
            if thread.ident is not None:
                thread.join()
        display.stop()
        _display.reset(tokens[0])
        _seconds.reset(tokens[1])


@contextmanager
def shown() -> Iterator[None]:
    """Show the progress of a call in a terminal or notebook if it takes longer than a second.

    The setting `dmo.progress` of Dask's configuration can enable (true) or disable (false) the display everywhere.
    """
    # Bars of a surrounding call already show the stages. Only the main thread and process show bars, because several
    # displays at the same time, such as those of parallel fits in scikit-learn, would overwrite each other.
    observed = any(found.get() is not None for found in (_display, _seconds, _listener))
    if observed or threading.current_thread() is not threading.main_thread() or parent_process() is not None:
        yield
        return
    import dask.config  # Import lazily, because commands need progress reports before they need Dask.

    asked = dask.config.get("dmo.progress", None)
    if asked is False or (asked is None and not (getattr(sys.stderr, "isatty", bool)() or _in_notebook())):
        yield
        return
    with bars(brief=True, delay=_DELAY):
        yield


@contextmanager
def listen(listener: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Call `listener` for every event of a `stage` in a context."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def working_on(name: str) -> Iterator[None]:
    """Begin the names of the Dask tasks of a context with the name of their computation, such as 'kgha als'."""
    token = _work.set(name.lower())
    try:
        yield
    finally:
        _work.reset(token)


def task_group(what: str) -> str:
    """Return a unique key for a group of Dask tasks, which the dashboard shows under the name of the computation."""
    # `dask.utils.key_split` removes all words after the first hyphen that contain other characters than letters.
    name = f"{_work.get()} {what.strip('_')}".strip().replace("-", "_")
    return f"{name}-{uuid.uuid4().hex}"


@contextmanager
def stage(name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Report the progress of a named stage, which can contain other stages, to `bars` and `listen`."""
    # A completed stage is shown with the number of its steps. A stage that raises an exception stops at its current
    # step and is marked "failed". A stage that is repeated under the same name reuses its line, which shows the total
    # time of all repetitions.
    display, seconds, listener = _display.get(), _seconds.get(), _listener.get()
    if display is None and seconds is None and listener is None:
        yield _silently
        return
    start, done = time.perf_counter(), 0
    told = start
    task = None if display is None else _line(display, name, total, (seconds or {}).get(name, 0.0))

    def tell(state: str) -> None:
        nonlocal told
        told = time.perf_counter()
        if listener is not None:
            listener({"stage": name, "state": state, "done": done, "total": total, "seconds": round(told - start, 3)})

    def advance(steps: int = 1) -> None:
        nonlocal done
        done += steps
        if display is not None and task is not None:
            display.advance(task, steps)
        if listener is not None and time.perf_counter() - told > _EVERY:
            tell("running")

    tell("started")
    try:
        yield advance
    except BaseException:
        tell("failed")
        if display is not None and task is not None:
            display.update(task, description=visible(f"{name} (failed)"))
            display.stop_task(task)
        raise
    else:
        tell("done")
        if display is not None and task is not None:
            steps = done or total or 1
            display.update(task, total=steps, completed=steps)
    finally:
        if seconds is not None:
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


def _silently(steps: int = 1) -> None:
    """Ignore the progress of a stage that is not displayed."""


def _tell_lines(display: Progress, ended: threading.Event) -> None:
    """Print the progress of the innermost running stage at regular intervals until the event `ended`."""
    while not ended.wait(_LINES):
        running = [task for task in display.tasks if not task.finished and task.stop_time is None]
        if running:
            display.console.print(_progress_line(running[-1]), highlight=False, soft_wrap=True)


def _in_notebook() -> bool:
    """Return whether the process runs the cells of a notebook, whose standard error is not a terminal."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


def _tell_notebook(display: Progress, ended: threading.Event) -> None:
    """Update an output of a notebook cell with the progress of all running stages, and clear it at the end."""
    from IPython.display import HTML
    from IPython.display import display as put

    if ended.wait(_DELAY):
        return
    output: Any = put(HTML(""), display_id=True)
    while not ended.wait(_REFRESH):
        running = [task for task in display.tasks if not task.finished and task.stop_time is None]
        output.update(HTML("<br>".join(map(_notebook_line, running))))
    output.update(HTML(""))


def _notebook_line(task: Task) -> str:
    """Format the progress of a stage as an HTML progress bar and a line of text."""
    line = html.escape(_progress_line(task))
    value = f' max="{task.total:g}" value="{task.completed:g}"' if task.total else ""
    return f'<progress{value} aria-label="{line}"></progress> {line}'


def _progress_line(task: Task) -> str:
    """Format the progress of a stage, its elapsed time and its estimated remaining time."""
    seconds, done = task.elapsed or 0.0, int(task.completed)
    taken = timedelta(seconds=round(seconds))
    if not task.total or not done:
        return f"{task.description}: {done} steps in {taken}"
    left = timedelta(seconds=round(seconds / done * max(task.total - done, 0)))
    return f"{task.description}: {done / task.total:.0%} ({done} of {task.total:.0f} steps) in {taken}, {left} left"


def _line(display: Progress, name: str, total: int | None, before: float) -> TaskID:
    """Add a line for a stage, or restart its previous line with an elapsed time of `before` seconds."""
    for task in display.tasks:
        if task.description == visible(name) and task.finished:
            display.reset(task.id, total=total)
            task.start_time = display.get_time() - before
            return task.id
    return display.add_task(visible(name), total=total)
