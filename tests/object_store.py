"""Local S3 service, based on moto, that can be configured to fail."""

from __future__ import annotations

import logging
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import dask
import pytest

FAULTS = ("failing", "busy", "denied", "lost", "cut", "reset", "silent", "etag", "crc", "flipped")
"""Kinds of simulated faults.

The status of a response is 500, 503 SlowDown or 403, or 500 although the request was executed. Other responses stop
early, are reset, never end, have a wrong ETag or checksum, or contain a wrong byte without a checksum.
"""
_REFUSED = {
    "failing": ("500 Internal Server Error", ""),
    "busy": ("503 Slow Down", "SlowDown"),
    "denied": ("403 Forbidden", "AccessDenied"),
}


@dataclass
class Service:
    """S3 service that counts requests and simulated faults. The method `trouble` sets the frequency of each fault."""

    app: Callable[..., Iterable[bytes]]
    url: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    window: range = range(0)
    requests: int = 0
    faults: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        met = [kind for kind, share in self.shares.items() if self.chance.random() < share]
        kind = met[0] if met and self.requests in self.window else ""
        self.requests += 1
        if not kind or (kind not in (*_REFUSED, "lost") and environ["REQUEST_METHOD"] != "GET"):
            return self.app(environ, start)
        self.faults += 1
        if kind in _REFUSED:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, name = _REFUSED[kind]
            said = f"<Error><Code>{name}</Code><Message>no</Message></Error>" if name else ""
            said = said if environ["REQUEST_METHOD"] != "HEAD" else ""
            start(status, [("Content-Length", str(len(said))), ("Content-Type", "application/xml")])
            return [said.encode()]
        return self._spoiled(kind, environ, start)

    def _spoiled(self, kind: str, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        head: list[Any] = []
        body = b"".join(self.app(environ, lambda *given: head.extend(given[:2])))
        status, headers = head[0], {name.lower(): value for name, value in head[1]}
        half = len(body) // 2
        if kind == "lost":
            status, headers, body = "500 Internal Server Error", {"content-length": "0"}, b""
        elif kind == "etag":
            headers |= {"etag": '"' + "0" * 32 + '"'}
        elif kind == "crc" and status.startswith("200"):  # S3 error responses have no checksum
            headers |= {"x-amz-checksum-crc32": "AAAAAA=="}
        elif kind == "flipped":
            headers = {name: value for name, value in headers.items() if "checksum" not in name}
            body = body[:half] + bytes(byte ^ 1 for byte in body[half : half + 1]) + body[half + 1 :]
        start(status, list(headers.items()))
        broken = kind in ("cut", "reset", "silent")
        return self._ended(kind, body[:half], environ["werkzeug.socket"]) if broken else [body]

    def _ended(self, kind: str, part: bytes, connection: socket.socket) -> Iterator[bytes]:
        """Send the first half of a response, then close the connection."""
        yield part
        if kind == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        elif kind == "silent":
            self.over.wait(60)

    @contextmanager
    def trouble(self, window: range = range(1 << 60), **shares: float) -> Iterator[Service]:
        """Simulate faults for the given fractions of the requests whose numbers are in `window`."""
        assert shares.keys() <= set(FAULTS)
        self.shares, self.window, self.requests, self.faults = shares, window, 0, 0
        self.over.clear()
        try:
            yield self
        finally:
            self.shares = {}
            self.over.set()


@contextmanager
def object_store(bucket: str, ssl: bool = False, attempts: int = 1) -> Iterator[Service]:
    """Run a service with an empty bucket, and direct `s3://` URLs of fsspec to this service.

    The client repeats failed requests immediately, up to `attempts` times, before dmo repeats them. If `ssl` is True,
    the service has an untrusted certificate.
    """
    import fsspec
    from botocore.loaders import JSONFileLoader
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    service = Service(DomainDispatcherApplication(create_backend_app))
    loaded = cache(JSONFileLoader().load_file)  # without a cache, every client reads one megabyte
    server = make_server("127.0.0.1", 0, service, threaded=True, ssl_context="adhoc" if ssl else None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    service.url = f"{'https' if ssl else 'http'}://127.0.0.1:{server.server_port}"
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            dask.config.set({"dmo.stores.tries": 8, "dmo.stores.pause": 0.001}),
        ):
            leads_to(patch, service.url)
            patch.setenv("AWS_MAX_ATTEMPTS", str(attempts))
            patch.setattr("botocore.retryhandler.delay_exponential", lambda *_, **__: 0.0)
            patch.setattr(JSONFileLoader, "load_file", lambda _, path: loaded(path))
            patch.setattr(logging.getLogger("werkzeug"), "disabled", True)
            patch.setattr(fsspec.get_filesystem_class("s3"), "retries", 1)
            if not ssl:
                fsspec.filesystem("s3").mkdir(bucket)
            yield service
    finally:
        server.shutdown()
        fsspec.get_filesystem_class("s3").clear_instance_cache()


def leads_to(patch: pytest.MonkeyPatch, url: str, key: str = "test") -> None:
    """Direct `s3://` URLs to the service at `url`. If `key` is empty, use no credentials."""
    import fsspec

    patch.setenv("AWS_ENDPOINT_URL", url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, key)
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
