"""The one error of the stores, and what is said when the disk refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dmo.errors import UserError


class StoreError(UserError):
    """A store that cannot be used as asked; the message says what is wrong and what to do about it.

    Examples
    --------
    >>> import tempfile
    >>> from dmo import stores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         stores.check_output("memory://model")
    ...     except stores.StoreError as error:
    ...         print(error)
    memory://model is memory of this process, lost when it ends; pass a path, or a URL such as s3://...
    """


class DamagedRoot(StoreError):
    """A root that dmo wrote and that was changed since."""


class ServiceError(OSError):
    """An object store that does not answer or fails; the message says so, and how to go on."""


class RefusedError(UserError, ServiceError):
    """An object store that refuses every time; it tells nothing about what is stored there."""


@contextmanager
def writing(url: str, what: str) -> Iterator[None]:
    """Say of any OSError inside the block (disk full, no permission) what was being written, and how to go on.

    Parameters
    ----------
    url : str
        Where.
    what : str
        What was being written.

    Yields
    ------
    None
        Nothing.

    Raises
    ------
    OSError
        With path, reason and cure, and the number of the original error.

    Examples
    --------
    >>> from dmo.stores import writing
    >>> with writing("/data/scores.csv", "the file"):
    ...     pass
    """
    try:
        yield
    except ServiceError:
        raise
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        cure = "make room or mend the permissions and run again, finished blocks are kept"
        text = f"{url}: cannot write {what} ({reason}); {cure}"
        raise (OSError(text) if error.errno is None else OSError(error.errno, text)) from error
