"""The one error of the stores, and what is said when the disk refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dmo.errors import UserError


class StoreError(UserError):
    """A store that cannot be used as asked; the message says what is wrong and what to do about it."""


class DamagedRoot(StoreError):
    """A root that dmo wrote and that was changed since."""


@contextmanager
def writing(url: str, what: str) -> Iterator[None]:
    """Say of any OSError inside (disk full, no permission) what was being written and how to go on."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        cure = "make room or mend the permissions and run again, finished blocks are kept"
        text = f"{url}: cannot write {what} ({reason}); {cure}"
        raise (OSError(text) if error.errno is None else OSError(error.errno, text)) from error
