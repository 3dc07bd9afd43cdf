"""The `dmo` command: from a folder of images or feature files to models, annotations and reports."""

import gc
import signal
import sys


def main() -> None:
    """Entry point of the `dmo` command."""
    gc.set_threshold(50_000)  # modules that are imported make many objects, and no garbage
    try:
        from dmo.cli.app import app

        app(prog_name="dmo")
    except KeyboardInterrupt:  # as modules are imported and commands made; from then on `app` takes it
        print("dmo: stopped before it began", file=sys.stderr)
        sys.exit(130)
    except SystemExit as end:
        if end.code != 130:  # all is done: while Python is taken down, Ctrl-C would kill it without a word
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
    finally:
        gc.freeze()  # what is there ends with the process: looking through it took as long as half of the imports
