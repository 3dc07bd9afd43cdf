"""A log of a run for machines: one JSON object a line, appended to a file."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

from dmo.progress import listen
from dmo.workflows.exits import sentence


@contextmanager
def json_log(path: str | None, program: str) -> Iterator[None]:
    """Append what happens in this block to `path` (None: nowhere)."""
    # Every line has time (UTC, ISO 8601) and event: "start" (program, arguments, dmo), "message" (level, text),
    # "stage" (see `dmo.progress.listen`), "end" (seconds, error: null or one sentence). Raises OSError where the file
    # cannot be written.
    if path is None:
        yield
        return
    with open(path, "a", encoding="utf-8") as file:
        lines = _Lines(file)
        log, level, start = logging.getLogger("dmo"), logging.getLogger("dmo").level, time.perf_counter()
        log.addHandler(lines)
        log.setLevel(min(level, logging.INFO) if level else logging.INFO)
        lines.write("start", {"program": program, "arguments": sys.argv[1:], "dmo": _version()})
        problem: str | None = None
        try:
            with listen(lambda event: lines.write("stage", event)):
                yield
        except BaseException as error:
            problem = sentence(error)
            raise
        finally:
            lines.write("end", {"seconds": round(time.perf_counter() - start, 3), "error": problem})
            log.removeHandler(lines)
            log.setLevel(level)


class _Lines(logging.Handler):
    """Writes events to an open file, each line at once."""

    def __init__(self, file: TextIO):
        super().__init__()
        self.file = file

    def write(self, event: str, fields: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.file.write(json.dumps({"time": now, "event": event, **fields}) + "\n")
        self.file.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self.write("message", {"level": record.levelname.lower(), "text": record.getMessage()})


def _version() -> str:
    import dmo

    return dmo.__version__
