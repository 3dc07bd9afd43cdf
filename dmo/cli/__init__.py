"""The `dmo` command: from image folders or feature files to models, annotations and reports."""

import gc
import signal
import sys


def main() -> None:
    """Run the `dmo` command."""
    gc.set_threshold(50_000)  # imports create many objects and hardly any garbage
    try:
        from dmo.cli.app import app  # here: Ctrl-C during the imports is handled below

        app(prog_name="dmo")
    except KeyboardInterrupt:  # during imports; later, `app` handles the interrupt
        print("dmo: stopped before it began", file=sys.stderr)
        sys.exit(130)
    except SystemExit as end:
        if end.code != 130:  # the work is done: ignore Ctrl-C while Python shuts down
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
    finally:
        gc.freeze()  # otherwise, the collection at exit needs half as much time as the imports
