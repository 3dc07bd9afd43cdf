"""The page itself: what it asks for, and what it is answered."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from anyio import to_thread
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import dmo
from dmo.errors import UserError, visible
from dmo.formats.files import suffix
from dmo.serve.guard import Guard, Limits
from dmo.workflows.trial import ENDINGS, Trial, Upload, corrections_csv, readers

_PAGE = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js", "/openapi.json": "openapi.json"}
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
_MANY, _LONG = 10_000, 300
"""Samples of a table of corrections, and letters of a name."""


class Corrected(BaseModel):
    """A sample with the labels that someone gave it."""

    id: str = Field(min_length=1, max_length=_LONG)
    labels: list[str] = Field(max_length=_MANY)


class Corrections(BaseModel):
    """What the page sends for a table of corrections."""

    samples: list[Corrected] = Field(max_length=_MANY)


def make_app(trial: Trial, title: str, token: str, limits: Limits | None = None, host: str = "127.0.0.1") -> Guard:
    """Make the ASGI application of a page."""
    limits = limits or Limits()
    readers()  # before anybody waits for them
    turn = threading.Lock()  # one computation at a time has all cores

    async def answered(work: Callable[[], Any]) -> Any:
        def in_turn() -> Any:
            with turn:
                return work()

        return await to_thread.run_sync(in_turn, abandon_on_cancel=True)  # a request that is late is answered so

    async def about(request: Request) -> Response:
        known = trial.known
        return JSONResponse(
            {
                "title": title,
                "model": type(trial.model).__name__,
                "version": dmo.__version__,
                "labels": trial.names,
                "values": trial.kind,
                "images": trial.extractor is not None,
                "endings": list(ENDINGS),
                "views": {view: {"columns": n, "named": view in trial.columns} for view, n in trial.widths.items()},
                "samples": None if known is None else known.n,
                "limits": {"bytes": limits.bytes, "files": limits.files, "rows": limits.rows},
            }
        )

    async def describe(request: Request) -> Response:
        async with request.form(max_files=limits.files, max_fields=0) as form:
            given = [part for part in form.getlist("file") if isinstance(part, UploadFile)]
            if not given:
                raise UserError("no file was sent; choose images or files of rows")

            def work() -> list[dict[str, Any]]:
                with tempfile.TemporaryDirectory(prefix="dmo-serve-") as folder:
                    uploads = [_kept(part, Path(folder), number) for number, part in enumerate(given)]
                    of_rows = trial.extractor is None or all(suffix(upload.name) in ENDINGS for upload in uploads)
                    return trial.rows(uploads, limits.seconds) if of_rows else trial.images(uploads)

            return JSONResponse({"samples": await answered(work)})

    async def thumbnail(request: Request) -> Response:
        found = await answered(lambda: trial.thumbnail(request.path_params["row"]))
        if found is None:
            raise HTTPException(404, "this sample has no image that is still there")
        return Response(found, media_type="image/jpeg")

    async def corrections(request: Request) -> Response:
        try:
            asked = Corrections.model_validate_json(await request.body())
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"corrections: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        table = corrections_csv([(sample.id, sample.labels) for sample in asked.samples])
        return Response(table, media_type="text/csv")

    routes = [
        Route("/model.json", about),
        Route("/describe", describe, methods=["POST"]),
        Route("/thumbnail/{row:int}", thumbnail),
        Route("/corrections.csv", corrections, methods=["POST"]),
        *(Route(path, _file(name)) for path, name in _PAGE.items()),
    ]
    handlers: Any = {UserError: _refused, HTTPException: _refused}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, limits, host)


def _file(name: str) -> Callable[[Request], Response]:
    """What answers with a file of the page."""
    content, kind = files("dmo.serve").joinpath("page", name).read_bytes(), _TYPES[suffix(name)]
    return lambda request: Response(content, media_type=kind)


def _kept(part: UploadFile, folder: Path, number: int) -> Upload:
    """A file that was sent, on the disk under a name of our own: what it is called by others is no path here."""
    name = (part.filename or "file")[-_LONG:]
    path = folder / f"{number}{suffix(name) if suffix(name) in ENDINGS else ''}"
    with open(path, "xb") as file:
        shutil.copyfileobj(part.file, file)
    return Upload(name, path)


def _refused(request: Request, error: Exception) -> Response:
    """A mistake in one sentence."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": visible(str(error))}, 422)
