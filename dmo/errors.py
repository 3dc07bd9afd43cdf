"""The error that means: what was given is wrong, and the message says how to put it right."""


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
