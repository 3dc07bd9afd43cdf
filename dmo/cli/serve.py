"""Command `dmo serve`, which starts a local web page to try a model and to correct its labels."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

import dmo
from dmo import workflows
from dmo.cli.commands import Model
from dmo.cli.session import say, show
from dmo.errors import UserError
from dmo.workflows.program import session

_CURE = (
    "dmo serve needs Starlette, uvicorn and python-multipart, which are not all installed; run: "
    "pip install dmo-learn[serve]"
)
_HEAD, _CONNECTIONS, _PATIENCE = 16 << 10, 64, 5
"""Maximum size of a request header in bytes, maximum number of connections, and timeout in seconds. The timeout
applies to idle connections, to headers of requests, and to the last responses at shutdown."""


def serve(
    model: Model,
    features: Annotated[
        str | None,
        typer.Argument(
            metavar="[STORE]",
            help="Feature store in which neighbors are searched (default: the training store of the model).",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of labels selected initially. Default: the label set that the model predicts."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free port.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on. By default, the page is available on this machine only.")
    ] = ("127.0.0.1"),
    browser: Annotated[
        bool | None, typer.Option("--browser/--no-browser", help="Open a browser (default: only in a terminal).")
    ] = None,
    megabytes: Annotated[float, typer.Option(min=0.001, help="Maximum size of a request in MiB.")] = 64,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows in a file.")] = 500,
    seconds: Annotated[float, typer.Option(min=0.001, help="Maximum time for a response in seconds.")] = 60,
) -> None:
    """Try a model on a local web page: drop images or rows, see labels and neighbors, correct and download labels.

    Everybody who has the address, which includes a random token, can use the page. Stop the server with Ctrl-C.
    """
    dmo.stores.model_contents(model)  # Raise errors about the model before the slow import of estimators.
    try:
        import uvicorn

        from dmo.serve.app import Limits, _Connection, address_of, make_app  # These imports need optional packages.
    except ImportError:
        raise ImportError(_CURE) from None
    with session() as run:
        trial = workflows.rows.open_trial(model, features, top, rows, run.note)
        token = secrets.token_urlsafe(24)
        app = make_app(trial, Path(model).name, token, Limits(megabytes=megabytes, rows=rows, seconds=seconds), host)
        with _listening(host, port) as listener:
            named = address_of(host)
            if not (host == "localhost" if named is None else named.is_loopback):
                run.note(f"{host} is accessible from other machines, and the connection is not encrypted")
            shown = f"[{host}]" if ":" in host else host
            address = f"http://{shown}:{listener.getsockname()[1]}/{token}/"
            server = uvicorn.Server(
                uvicorn.Config(
                    app,
                    log_level="warning",
                    access_log=False,  # Do not log addresses, because they contain the token.
                    http=_Connection,
                    ws="none",
                    lifespan="off",
                    server_header=False,
                    proxy_headers=False,
                    limit_concurrency=_CONNECTIONS + 1,
                    h11_max_incomplete_event_size=_HEAD,
                    timeout_keep_alive=_PATIENCE,
                    timeout_graceful_shutdown=_PATIENCE,
                )
            )
            with _until_interrupted(server):
                show({"address": address, "openapi": f"{address}openapi.json"})
                say(f"{address}\nStop the server with Ctrl-C. The API is described at {address}openapi.json")
                sys.stdout.flush()
                wanted = sys.stdout.isatty() if browser is None else browser
                # The socket already accepts connections, so the browser can be opened before the server runs.
                with _opened(address) if wanted else nullcontext():
                    server.run([listener])


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open the address in a browser by a private file that redirects to it.

    The file hides the address, which contains the token, from other users, who can see program arguments.
    """
    with tempfile.TemporaryDirectory(prefix="dmo-serve-") as folder:
        page = Path(folder, "page.html")
        with open(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">')
        webbrowser.open(page.as_uri())
        yield


@contextmanager
def _until_interrupted(server: Any) -> Iterator[None]:
    """Handle Ctrl-C in the context as the normal way to stop the server, even before the server runs."""
    try:
        with server.capture_signals():
            yield
    except KeyboardInterrupt as stop:
        if type(stop) is not KeyboardInterrupt:  # SIGTERM raises a subclass, which has its own exit code.
            raise
    print("stopped", file=sys.stderr)


def _listening(host: str, port: int) -> socket.socket:
    """Open a listening socket; raise UserError if the address is not available or the port is in use."""
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server(address, family=family)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another --host or --port"
        ) from error
