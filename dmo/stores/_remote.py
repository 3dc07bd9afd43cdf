"""Requests to an object store through fsspec: asked again where that helps, and told in one sentence where it does not.

fsspec's file systems ask again by themselves for most of what networks lose; what comes through is an error of whichever
client library the URL needs, or an OSError that does not say which URL it is about.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import dask.config

from dmo.errors import UserError
from dmo.stores._errors import RefusedError, ServiceError

T = TypeVar("T")
_LONGEST = 60.0  # seconds between two requests
_CLIENTS = {"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs", "requests", "urllib3", "ssl"}
_SILENT = {
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ClientConnectorError",
    "FSTimeoutError",
}
_AGAIN = "what is finished is kept, run the same command again"
_MEANT = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


def ask(url: str, request: Callable[[], T]) -> T:
    """What `request` to the service behind `url` returns."""
    # Raises what says that something is or is not there as it comes; RefusedError where the service refuses
    # (credentials, certificate, name), which another try does not change; ServiceError (EIO) where it does not answer
    # or fails.
    tries, pause = _patience()
    for number in range(1, tries + 1):
        try:
            return request()
        except Exception as error:
            if isinstance(error, _MEANT) or not _of_the_service(error):
                raise
            refusal = _refusal(url, error)
            if refusal is not None:
                raise refusal from error
            if number == tries or _unanswered(error):
                raise _failure(url, error) from error
            time.sleep(min(pause * 4 ** (number - 1), _LONGEST))
    raise AssertionError  # every turn of the loop returns or raises, but for the last, which raises


def _patience() -> tuple[int, float]:
    """How often to ask in all, and the seconds before the second request; each further one waits four times as long."""
    tries, pause = dask.config.get("dmo.stores.tries", 4), dask.config.get("dmo.stores.pause", 0.25)
    for name, value, kinds, least in (("tries", tries, int, 1), ("pause", pause, (int, float), 0)):
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= 1000:
            raise UserError(
                f"the setting dmo.stores.{name} is {str(value)[:60]!r}, expected a number from {least} to 1000; "
                "see dmo/cluster/dmo.yaml"
            )
    return tries, pause


def _of_the_service(error: BaseException) -> bool:
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _CLIENTS


def _refusal(url: str, error: Exception) -> RefusedError | None:
    """What is said where the service, or the client before it, will refuse every time."""
    names = {type(found).__name__ for found in _chain(error)}
    reason = _reason(error)
    if names & {"SSLCertVerificationError", "ClientConnectorCertificateError"} or "CERTIFICATE_VERIFY" in reason:
        cure = "correct the endpoint, or name the authority's file in AWS_CA_BUNDLE"
        return RefusedError(f"{url}: the TLS certificate of its server is not trusted ({reason}); {cure}")
    if any("Credential" in name or "ProfileNotFound" in name or "Token" in name for name in names):
        cure = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what else its service asks for"
        return RefusedError(f"{url}: there are no credentials that can be used ({reason}); {cure}")
    if isinstance(error, PermissionError):
        return RefusedError(f"{url}: access is refused ({reason}); check the credentials, and what they may do there")
    if "ParamValidationError" in names or (isinstance(error, OSError) and error.errno == errno.EINVAL):
        return RefusedError(f"{url}: the service refuses the request ({reason}); check the URL and the endpoint")
    return None


def _failure(url: str, error: Exception) -> ServiceError:
    what = "does not answer" if _unanswered(error) else "fails"
    cure = "check the network and the endpoint (for S3, AWS_ENDPOINT_URL)"
    return ServiceError(errno.EIO, f"{url}: its service {what} ({_reason(error)}); {cure}; {_AGAIN}")


def _unanswered(error: Exception) -> bool:
    """Whether there was no connection: the client has tried for some time already."""
    names = {type(found).__name__ for found in _chain(error)}
    return bool(names & _SILENT)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(str(text).split())[:300] or type(error).__name__
