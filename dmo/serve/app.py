"""Web application of `dmo serve`, with its routes, responses and limits on requests."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import secrets
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h11
from anyio import to_thread
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

import dmo
from dmo.errors import UserError, visible
from dmo.formats.files import suffix
from dmo.workflows.search import space
from dmo.workflows.trial import ENDINGS, Trial, Upload, corrections_csv, readers

_PAGE = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js", "/openapi.json": "openapi.json"}
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
_MANY, _LONG = 10_000, 300
"""Maximum number of samples in a table of corrections, and maximum length of a sample name."""


class Corrected(BaseModel):
    """Sample with its corrected labels."""

    id: str = Field(min_length=1, max_length=_LONG)
    labels: list[str] = Field(max_length=_MANY)


class Corrections(BaseModel):
    """Body of a request for a table of corrected labels."""

    samples: list[Corrected] = Field(max_length=_MANY)


def make_app(trial: Trial, title: str, token: str, limits: Limits | None = None, host: str = "127.0.0.1") -> Guard:
    """Create the ASGI application that serves the page of a model."""
    limits = limits or Limits()
    readers()  # Import pandas and scikit-learn before the first request.
    turn = threading.Lock()  # Each computation uses all cores, so run one computation at a time.

    async def answered(work: Callable[[], Any]) -> Any:
        def in_turn() -> Any:
            with turn:
                return work()

        # After a timeout, respond with an error without waiting for the thread.
        return await to_thread.run_sync(in_turn, abandon_on_cancel=True)

    async def about(request: Request) -> Response:
        known = trial.known
        return JSONResponse(
            {
                "title": title,
                "model": type(trial.model).__name__,
                "version": dmo.__version__,
                "labels": trial.names,
                "task": trial.task,
                "values": trial.kind,
                "fields": trial.fields,
                "space": None if known is None else space(known)[0],
                "images": trial.extractor is not None,
                "endings": list(ENDINGS),
                "views": {view: {"columns": n, "named": view in trial.columns} for view, n in trial.widths.items()},
                "samples": None if known is None else known.n,
                "limits": {"bytes": limits.bytes, "files": limits.files, "rows": limits.rows},
            }
        )

    async def describe(request: Request) -> Response:
        asked = request.query_params.get("all")
        only = int(asked) if asked is not None and asked.isdecimal() else None
        if asked is not None and only is None:
            raise UserError(f"all = {asked!r}; pass the number of a sample, counted from 0")

        async with request.form(max_files=limits.files, max_fields=0) as form:
            given = [part for part in form.getlist("file") if isinstance(part, UploadFile)]
            if not given:
                raise UserError("the request contains no file; send images or tables of rows")

            def work() -> dict[str, Any]:
                with tempfile.TemporaryDirectory(prefix="dmo-serve-") as folder:
                    uploads = [_kept(part, Path(folder), number) for number, part in enumerate(given)]
                    of_rows = trial.extractor is None or all(suffix(upload.name) in ENDINGS for upload in uploads)
                    if not of_rows:
                        return {"samples": trial.images(uploads, only), "notes": []}
                    return {"samples": trial.rows(uploads, limits.seconds, only), "notes": list(trial.notes)}

            return JSONResponse(await answered(work))

    async def thumbnail(request: Request) -> Response:
        found = await answered(lambda: trial.thumbnail(request.path_params["row"]))
        if found is None:
            raise HTTPException(
                404, "the image of this sample is not available; choose a sample whose file still exists"
            )
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
    """Create a request handler that responds with one of the files of the page."""
    content, kind = files("dmo.serve").joinpath("page", name).read_bytes(), _TYPES[suffix(name)]
    return lambda request: Response(content, media_type=kind)


def _kept(part: UploadFile, folder: Path, number: int) -> Upload:
    """Save an uploaded file under a generated name, because the name sent by the client is not a safe path."""
    name = (part.filename or "file")[-_LONG:]
    path = folder / f"{number}{suffix(name) if suffix(name) in ENDINGS else ''}"
    with open(path, "xb") as file:
        shutil.copyfileobj(part.file, file)
    return Upload(name, path)


def _refused(request: Request, error: Exception) -> Response:
    """Convert an error to a JSON response with its message."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    return JSONResponse({"error": visible(str(error))}, 422)


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
MINUTE = 60.0
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy that allows only the files of the page and images of uploaded files. Labels and file names
therefore cannot be executed as code."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # The address contains the token, so do not send it to other sites.
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True)
class Limits:
    """Limits on the size, number and duration of requests."""

    megabytes: float = 64  # Maximum size of a request body in MiB.
    files: int = 32  # Maximum number of files in a request.
    rows: int = 500  # Maximum number of rows in a file.
    at_once: int = 16  # Maximum number of simultaneous requests; a browser opens six connections for a page.
    a_minute: int = 600  # Maximum number of requests per minute.
    seconds: float = 60  # Maximum processing time of a request.

    @property
    def bytes(self) -> int:
        """Maximum size of a request body in bytes."""
        return int(self.megabytes * 2**20)


@dataclass(eq=False)
class Guard:
    """ASGI application that requires a token in the path of each request and enforces limits."""

    # Each request must pass four checks. First, the host name must be an IP address, "localhost" or `host`, which
    # prevents DNS rebinding: an attacker could otherwise let another domain name point to this server. Second, the
    # first part of the path must be the token, which is compared in constant time. Third, requests from pages of other
    # origins are rejected. Finally, the limits are enforced.

    app: Any  # Application that handles accepted requests.
    token: str  # Secret first part of all paths.
    limits: Limits  # Limits on requests.
    host: str  # Host name of the page.
    _begun: deque[float] = field(default_factory=deque)
    _working: int = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            status, reason = refusal
            await JSONResponse({"error": reason}, status, {"connection": "close"})(scope, receive, answer)
            return
        self._working += 1
        try:
            async with asyncio.timeout(self.limits.seconds):
                await self.app(self._inside(scope), self._measured(receive), answer)
        except TimeoutError:
            if not started:
                reason = (
                    f"no answer after {self.limits.seconds:g} seconds; send fewer or smaller files, or raise --seconds"
                )
                await JSONResponse({"error": reason}, 503, {"connection": "close"})(scope, receive, answer)
        except ClientDisconnect:  # A client that has disconnected cannot receive a response.
            pass
        finally:
            self._working -= 1

    def knows(self, host: str) -> bool:
        """Return whether a host name can belong to this server."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return address_of(name) is not None or name in ("localhost", self.host.lower())

    def _refusal(self, scope: Message) -> tuple[int, str] | None:
        """Return the HTTP status and the error message of a rejected request, or None for an accepted request."""
        headers, now = Headers(scope=scope), time.monotonic()
        if not self.knows(headers.get("host", "")):
            return 421, "unknown host name in the address; open the address that dmo serve printed"
        given, _, _ = scope["path"].removeprefix("/").partition("/")
        if not secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            return 404, "nothing found without the token; open the complete address that dmo serve printed"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            return 403, "requests from other web pages are not allowed; open the address that dmo serve printed"
        while self._begun and now - self._begun[0] > MINUTE:
            self._begun.popleft()
        if len(self._begun) >= self.limits.a_minute:
            return 429, f"more than {self.limits.a_minute} requests per minute; wait a minute and try again"
        if self._working >= self.limits.at_once:
            return 503, f"{self.limits.at_once} requests are already being processed; wait until one has finished"
        self._begun.append(now)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.limits.bytes:
            return 413, self._too_large
        return None

    @property
    def _too_large(self) -> str:
        return f"more than {self.limits.megabytes:g} MiB in one request; send fewer or smaller files at once"

    def _inside(self, scope: Message) -> Message:
        """Move the token from the path of a request to its ASGI root path."""
        return {**scope, "root_path": scope.get("root_path", "") + "/" + self.token}

    def _measured(self, receive: Receive) -> Receive:
        """Enforce the maximum size of a request body, whose declared length can be missing or wrong."""
        seen = 0

        async def measured() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limits.bytes:
                raise HTTPException(413, self._too_large)
            return message

        return measured


class _Connection(H11Protocol):
    """Connection that is closed if no request arrives in time, or if a new connection exceeds the maximum number.

    Without this class, uvicorn keeps idle connections forever, so many idle connections would block new ones.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = self.loop.time()
        self._wait()
        silent = [one for one in self.connections if isinstance(one, _Connection) and one is not self and one.is_silent]
        if len(self.connections) >= (self.limit_concurrency or math.inf) and silent:
            min(silent, key=lambda one: one._since)._end()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_silent:
            self._late.cancel()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)

    @property
    def is_silent(self) -> bool:
        """Whether no request has arrived on the connection yet."""
        return self.conn.their_state is h11.IDLE

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.timeout_keep_alive, self._end_silent)

    def _end_silent(self) -> None:
        if self.is_silent:
            self._end()

    def _end(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address, or return None for other names."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
