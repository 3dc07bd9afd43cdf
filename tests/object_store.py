"""An S3 service on loopback (moto) that can be told to fail: requests refused with code 500, answers cut off."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dask
import pytest


@dataclass
class Service:
    """`failing`, `cut`: shares of the requests that fail, and of the answers that end early; `faults`: how many did."""

    app: Callable[..., Iterable[bytes]]
    url: str = ""
    failing: float = 0.0
    cut: float = 0.0
    faults: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if self.chance.random() < self.failing:
            self.faults += 1
            start("500 Internal Server Error", [("Content-Length", "0")])
            return [b""]
        body = self.app(environ, start)
        if environ["REQUEST_METHOD"] == "GET" and self.chance.random() < self.cut:
            self.faults += 1
            whole = b"".join(body)
            return [whole[: len(whole) // 2]]
        return body

    @contextmanager
    def trouble(self, failing: float = 0.0, cut: float = 0.0) -> Iterator[Service]:
        """The service fails in such shares inside this block."""
        self.failing, self.cut, self.faults = failing, cut, 0
        try:
            yield self
        finally:
            self.failing = self.cut = 0.0


@contextmanager
def object_store(bucket: str, ssl: bool = False, attempts: int = 1) -> Iterator[Service]:
    """A running service with an empty bucket, to which fsspec's `s3://` leads; `ssl`: with a certificate of nobody.

    A request that fails is asked again at once: by the client itself up to so many `attempts`, then by dmo.
    """
    import fsspec
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    service = Service(DomainDispatcherApplication(create_backend_app))
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
            patch.setattr(logging.getLogger("werkzeug"), "disabled", True)
            patch.setattr(fsspec.get_filesystem_class("s3"), "retries", 1)
            if not ssl:
                fsspec.filesystem("s3").mkdir(bucket)
            yield service
    finally:
        server.shutdown()
        fsspec.get_filesystem_class("s3").clear_instance_cache()


def leads_to(patch: pytest.MonkeyPatch, url: str, key: str = "test") -> None:
    """Have `s3://` lead to the service at `url`, with a key, or without one where it is empty."""
    import fsspec

    patch.setenv("AWS_ENDPOINT_URL", url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, key)
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
