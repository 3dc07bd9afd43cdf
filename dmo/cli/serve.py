"""`dmo serve`: a local page to try a model on, and to put its labels right."""

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

_CURE = "dmo serve needs Starlette, uvicorn and python-multipart; run: pip install dmo-learn[serve]"
_HEAD, _CONNECTIONS, _PATIENCE = 16 << 10, 64, 5
"""Bytes of the head of a request, connections at a time, seconds that an idle one is kept, that a head may take, and that a
last answer is waited for."""


def serve(
    model: Model,
    features: Annotated[
        str | None,
        typer.Argument(
            metavar="[STORE]", help="Feature store to find neighbors in (default: that of the model's training)."
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Labels ticked at first (default: the label set that the model predicts).")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on (default: only this machine reaches the page).")] = (
        "127.0.0.1"
    ),
    browser: Annotated[
        bool | None, typer.Option("--browser/--no-browser", help="Open a browser (default: on a terminal).")
    ] = None,
    megabytes: Annotated[float, typer.Option(min=0.001, help="Largest request, in MiB.")] = 64,
    rows: Annotated[int, typer.Option(min=1, help="Most rows of a file.")] = 500,
    seconds: Annotated[float, typer.Option(min=0.001, help="Longest time for an answer.")] = 60,
) -> None:
    """Try a model on a local page: drop images or rows, see labels and neighbors, put labels right, take them as CSV.

    Who has the address, with its random token, can use the page; Ctrl-C ends it.
    """
    dmo.stores.model_contents(model)  # what is no model is refused before estimators are imported
    try:
        import uvicorn

        from dmo.serve.app import Limits, _Connection, address_of, make_app  # needs the optional packages of `_CURE`
    except ImportError:
        raise ImportError(_CURE) from None
    with session() as run:
        trial = workflows.rows.open_trial(model, features, top, rows, run.note)
        token = secrets.token_urlsafe(24)
        app = make_app(trial, Path(model).name, token, Limits(megabytes=megabytes, rows=rows, seconds=seconds), host)
        with _listening(host, port) as listener:
            named = address_of(host)
            if not (host == "localhost" if named is None else named.is_loopback):
                run.note(f"{host} can be reached from other machines, and what is sent is not encrypted")
            shown = f"[{host}]" if ":" in host else host
            address = f"http://{shown}:{listener.getsockname()[1]}/{token}/"
            server = uvicorn.Server(
                uvicorn.Config(
                    app,
                    log_level="warning",
                    access_log=False,  # the addresses hold the token
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
                say(f"{address}\nCtrl-C ends it; programs find the routes at {address}openapi.json")
                sys.stdout.flush()
                wanted = sys.stdout.isatty() if browser is None else browser
                # the socket listens already: the browser's request waits
                with _opened(address) if wanted else nullcontext():
                    server.run([listener])


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open a browser by a file that this user alone can read: other users see the arguments of every program."""
    with tempfile.TemporaryDirectory(prefix="dmo-serve-") as folder:
        page = Path(folder, "page.html")
        with open(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">')
        webbrowser.open(page.as_uri())
        yield


@contextmanager
def _until_interrupted(server: Any) -> Iterator[None]:
    """Let Ctrl-C end the server, also before it runs, and end well: that is how a page is closed."""
    try:
        with server.capture_signals():
            yield
    except KeyboardInterrupt as stop:
        if type(stop) is not KeyboardInterrupt:  # SIGTERM: the exit code says so
            raise
    print("stopped", file=sys.stderr)


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens; UserError where the address is none of this machine, or the port is taken."""
    try:
        (family, _, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server(address, family=family)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}, port {port}: {error.strerror}; pass other --host or --port"
        ) from error
