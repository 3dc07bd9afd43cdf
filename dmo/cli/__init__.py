"""Command line interface of dmo, which covers reading data, fitting, annotation, evaluation and reports."""

import gc
import signal
import sys


def main() -> None:
    """Run the `dmo` command with the arguments of the process."""
    gc.set_threshold(50_000)  # Imports create many objects but hardly any garbage, so collect garbage rarely.
    try:
        from dmo.cli.app import app  # Import lazily, so that Ctrl-C during the import is handled below.

        app(prog_name="dmo")
    except KeyboardInterrupt:  # The interrupt occurred during imports; later interrupts are handled by `app`.
        print("dmo: stopped before it began", file=sys.stderr)
        sys.exit(130)
    except SystemExit as end:
        if end.code != 130:  # The work is done, so ignore Ctrl-C while Python shuts down.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise
    finally:
        gc.freeze()  # Avoid a garbage collection at exit, which would take half as long as the imports.
