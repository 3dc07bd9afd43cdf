"""The error that means: what was given is wrong, and the message says how to put it right; text that can be shown."""

import re

_HIDDEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufffe\\uffff]"
)


class UserError(ValueError):
    """A user's mistake, in arguments, files or stores; its message says what, got, needed and cure in one sentence.

    It is a ValueError, as scikit-learn's contract asks. Every other exception is a fault of the program or of the
    machine; `dmo.workflows.exits` tells them apart.

    Examples
    --------
    >>> import dmo
    >>> issubclass(dmo.UserError, ValueError)
    True
    """


def visible(text: str) -> str:
    """Text of files that others wrote, with control characters, changes of direction and what is no character as
    escapes.
    """
    # A terminal obeys them: a label could clear it, set its title or hide what stands beside it. XML cannot hold
    # them. Line feeds and tabs stay.
    return _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def amount(size: float) -> str:
    """Bytes in words."""
    if size < 1024:
        return f"{size:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"
