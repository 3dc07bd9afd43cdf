"""How a program ends: documented exit codes, one sentence on standard error, a termination signal as an exception.

0 done; 1 a fault of the program (with Python's traceback); 2 wrong input, or a store, model or backend that cannot be used;
3 the cluster, the disk or a worker failed, run the same command again; 4 `dmo verify` found problems; 130 stopped by
Ctrl-C; 143 by SIGTERM. After 3, 130 and 143 the same command goes on with what is finished.
"""

from __future__ import annotations

import _thread
import errno
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from types import FrameType

from dmo.errors import UserError, visible

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
    if isinstance(error, OSError) and str(error).startswith(
        "Timed out trying to connect to"
    ):  # distributed's, later on
        return True
    return type(error).__name__ in ("CommClosedError", "KilledWorker", "FutureCancelledError", "StreamClosedError")


def ending(program: str, work: Callable[[], None]) -> int:
    """Run `work`; returns the exit code, having said on standard error what is wrong. Faults are raised."""
    try:
        with terminable():
            work()
    except (Exception, KeyboardInterrupt) as error:
        found = code(error)
        if found is None or isinstance(error, BrokenPipeError):
            raise
        print(f"{program}: {sentence(error)}", file=sys.stderr)
        return found
    return 0
