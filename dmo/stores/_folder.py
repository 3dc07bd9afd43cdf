"""Bytes under keys in one folder, local or at a URL that fsspec opens; and the one error of the stores.

Requests to an object store through fsspec: asked again where that helps, and told in one sentence where it does not.

fsspec's file systems ask again by themselves for most of what networks lose; what comes through is an error of whichever
client library the URL needs, or an OSError that does not say which URL it is about.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from dmo.errors import UserError


class StoreError(UserError):
    """A store that cannot be used as asked; the message says what is wrong and what to do about it.

    Examples
    --------
    >>> import tempfile
    >>> from dmo import stores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         stores.check_output("memory://model")
    ...     except stores.StoreError as error:
    ...         print(error)
    memory://model is memory of this process, lost when it ends; pass a path, or a URL such as s3://...
    """


class DamagedRoot(StoreError):
    """A root that dmo wrote and that was changed since."""


class ServiceError(OSError):
    """An object store that does not answer or fails; the message says so, and how to go on."""


class RefusedError(UserError, ServiceError):
    """An object store that refuses every time; it tells nothing about what is stored there."""


@contextmanager
def writing(url: str, what: str) -> Iterator[None]:
    """Say of any OSError inside the block (disk full, no permission) what was being written, and how to go on.

    Parameters
    ----------
    url : str
        Where.
    what : str
        What was being written.

    Yields
    ------
    None
        Nothing.

    Raises
    ------
    OSError
        With path, reason and cure, and the number of the original error.

    Examples
    --------
    >>> from dmo.stores import writing
    >>> with writing("/data/scores.csv", "the file"):
    ...     pass
    """
    try:
        yield
    except ServiceError:
        raise
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        cure = "make room or mend the permissions and run again, finished blocks are kept"
        text = f"{url}: cannot write {what} ({reason}); {cure}"
        raise (OSError(text) if error.errno is None else OSError(error.errno, text)) from error


T = TypeVar("T")
_PLAIN_KEY = re.compile(r"(?=.{1,200}\Z)\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)  # keys that no other check refuses
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
            of_the_service = isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _CLIENTS
            if isinstance(error, _MEANT) or not of_the_service:
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
    import dask.config  # here: a tenth of a second, and few commands ask

    tries, pause = dask.config.get("dmo.stores.tries", 4), dask.config.get("dmo.stores.pause", 0.25)
    for name, value, kinds, least in (("tries", tries, int, 1), ("pause", pause, (int, float), 0)):
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= 1000:
            raise UserError(
                f"the setting dmo.stores.{name} is {str(value)[:60]!r}, expected a number from {least} to 1000; "
                "see dmo/cluster/dmo.yaml"
            )
    return tries, pause


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


PARTIAL = ".partial"
"""The end of the names of files that are still being written."""
LOCK = ".writer.lock"
"""The file that says which process writes a store; like those with PARTIAL, no part of the store."""


@dataclass(frozen=True)
class Folder:
    """A place for bytes under keys such as "gist/c.0.0"; picklable, and safe to use from several processes at once."""

    # A local write goes to a file beside its target and is renamed, so that a key holds the old or the new bytes,
    # never a part; object stores do the same by themselves. Nothing is created before the first `put`. Bytes are on
    # the disk before they get their name, and names when `settle` ends, unless the setting dmo.stores.fsync is off.

    url: str

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Folder:
        """The folder at a local path or URL; "file://" URLs are local paths, and local paths are made absolute."""
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"a store is named by a path or a URL, got {type(path).__name__}; pass a str or a Path")
        url = os.fspath(path)
        if url.startswith("file://"):
            from urllib.request import url2pathname  # imports HTTP and mail

            url = url2pathname(urlsplit(url).path)
        if not url:
            raise UserError("a store is named by a path or a URL, got an empty string; pass the path of a folder")
        return cls(url.rstrip("/") if "://" in url else os.path.abspath(url))

    def child(self, name: str) -> Folder:
        self._inside(name)
        return Folder(f"{self.url}/{name}")

    @property
    def _place(self) -> str:
        """The folder that this one lies in, with its slash."""
        return self.url.rpartition("/")[0] + "/"

    def relative(self, path: str | os.PathLike[str]) -> str:
        """How a store here names another place: relative to the folder that the store lies in where the place is there or
        below, so that both can be moved together; else absolute."""
        url = Folder.at(path).url
        return url.removeprefix(self._place)

    def absolute(self, name: str) -> str:
        """The place that a store here names so."""
        return name if "://" in name or os.path.isabs(name) else self._place + name

    def _inside(self, key: str) -> None:
        """Refuse a key that names another place than one in this folder; keys come from files that others wrote."""
        if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
            return
        plain = isinstance(key, str) and not {"\\", "\0"} & set(key)
        if not plain or not all(part.strip(".") for part in key.split("/")):
            raise StoreError(f"{self.url}: the name {key!r} points out of the store; make the store again")
        if len(key) > 2048 or max(len(part.encode(errors="replace")) for part in key.split("/")) > 200:
            raise StoreError(
                f"{self.url}: the name {key[:60]!r}... is longer than names of files; choose a shorter one"
            )

    @property
    def is_local(self) -> bool:
        return "://" not in self.url

    @cached_property
    def _remote(self) -> tuple[Any, str]:
        """The fsspec file system and the path of this folder in it; fsspec is imported for URLs only."""
        from fsspec.core import url_to_fs

        try:
            fs, path = url_to_fs(self.url)
        except ValueError as error:
            raise StoreError(f"{self.url}: {error}; pass a path, or a URL such as s3://bucket/folder") from error
        return fs, path.rstrip("/")

    def _named(self, method: str, **options: Any) -> dict[str, Any]:
        """Those of the `options` that a method of this fsspec file system names."""
        fs, _ = self._remote
        named = inspect.signature(getattr(fs, f"_{method}", getattr(fs, method))).parameters
        return {name: value for name, value in options.items() if name in named}

    @cached_property
    def _reading(self) -> dict[str, Any]:
        """What has s3fs read an object by one request: else it asks for the size first, to read large ones in parts."""
        return self._named("cat_file", max_concurrency=1)

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """What a method of the fsspec file system returns; raises as `ask`."""
        fs, _ = self._remote
        return ask(self.url, lambda: getattr(fs, method)(*arguments, **options))

    def __getstate__(self) -> dict[str, str]:
        return {"url": self.url}

    def put(self, key: str, *parts: Any, sync: bool = True) -> None:
        """Write the concatenated `parts` (bytes or 1-d uint8 arrays) under `key`, whole or not at all.

        `sync`: also after a power failure; otherwise the key may then hold anything.
        """
        self._inside(key)
        if not self.is_local:
            self._put_remote(key, b"".join(bytes(part) for part in parts))
            return
        target, durable = os.path.join(self.url, key), sync and _durable()
        partial = beside(target)
        try:
            try:
                _write(partial, parts, durable)
            except FileNotFoundError:
                _make_folder(Path(target).parent, durable)
                _write(partial, parts, durable)
            try:
                os.replace(partial, target)
            except FileNotFoundError:
                if not os.path.exists(target):  # else swept: another writer has finished the store
                    raise
        except OSError:
            _remove_file(partial)
            raise

    def _put_remote(self, key: str, data: bytes, **how: str) -> None:
        """Write an object; `how` is for fsspec."""
        _, root = self._remote
        try:
            self._ask("pipe_file", f"{root}/{key}", data, **how)
        except FileNotFoundError:
            self._make_remote(f"{root}/{key}".rpartition("/")[0])
            self._ask("pipe_file", f"{root}/{key}", data, **how)

    def _make_remote(self, path: str) -> None:
        """Make the folders down to `path`, but not what is at the top: object stores would make a bucket of any name."""
        lead = "/" if path.startswith("/") else ""
        top = lead + path.lstrip("/").partition("/")[0]
        if not self._ask("exists", top):
            raise StoreError(f"{self.url}: there is no {top!r} to write to; make that bucket first, or correct the URL")
        self._ask("makedirs", path, exist_ok=True)

    def settle(self, below: bool = False) -> None:
        """Make the names in this folder last, and those in the folders `below` it but the journal."""
        if not self.is_local or not _durable():
            return
        for folder, names, _ in os.walk(self.url):
            names[:] = [name for name in names if name != "journal"] if below else []
            _sync_folder(Path(folder))

    def put_new(self, key: str, data: bytes) -> bool:
        """Write `data` under `key` unless there is something already; returns whether it was written."""
        if not self.is_local:
            if self.get(key) is not None:  # some services write in spite of what is there
                return False
            with suppress(FileExistsError):  # by another process, or by a request of ours that failed after it wrote
                self._put_remote(key, data, **self._named("pipe_file", mode="create"))
            return self.get(key) == data
        target = Path(self.url, key)
        for _ in range(5):
            partial = Path(beside(target))
            _make_folder(target.parent, _durable())
            try:
                _write(partial, [data])
                return _publish(partial, target)
            except FileNotFoundError:  # another process has removed the folder, which was empty
                continue
            finally:
                _remove_file(partial)
        return False

    def delete_if(self, key: str, data: bytes) -> None:
        """Remove the file at `key` if its bytes are `data`; of several processes that do so at once, one does."""
        if not self.is_local:
            if self.get(key) == data:
                self.delete(key)
            return
        target = Path(self.url, key)
        aside = Path(beside(target))
        with suppress(FileNotFoundError):
            os.rename(target, aside)
            if aside.read_bytes() != data:
                _publish(aside, target)
            _remove_file(aside)

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or None where there are none."""
        self._inside(key)
        try:
            if self.is_local:
                with _regular(os.path.join(self.url, key)) as file:
                    return file.read()
            _, root = self._remote
            return self._ask("cat_file", f"{root}/{key}", **self._reading)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def get_many(self, keys: Iterable[str]) -> dict[str, bytes]:
        """The bytes under those `keys` that exist; concurrent requests where the file system has them."""
        asked = list(keys)
        if self.is_local or len(asked) < 2:
            found = ((key, self.get(key)) for key in asked)
            return {key: data for key, data in found if data is not None}
        _, root = self._remote
        wanted = {f"{root}/{key}": key for key in asked}
        data: dict[str, bytes] = {}
        for path, value in self._ask("cat", list(wanted), recursive=False, on_error="return", **self._reading).items():
            if isinstance(value, Exception) and not isinstance(value, FileNotFoundError):
                again = self.get(wanted[path])  # raises where the service still fails: an object would count as missing
                value = again if again is not None else FileNotFoundError()
            if not isinstance(value, Exception):
                data[wanted[path]] = value
        return data

    def read_into(self, key: str, *parts: np.ndarray) -> int | None:
        """Fill the uint8 arrays `parts` with the bytes under `key`; returns their number, None where there are none.

        Where the number is not that of `parts` together, nothing is filled.
        """
        self._inside(key)
        expected = sum(part.size for part in parts)
        if not self.is_local:
            data = self.get(key)
            if data is None:
                return None
            if len(data) == expected:
                start = 0
                for part in parts:
                    part[:] = np.frombuffer(data, np.uint8, part.size, start)
                    start += part.size
            return len(data)
        try:
            with _regular(os.path.join(self.url, key)) as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected:
                    return size
                return sum(_fill(file, part) for part in parts)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Bytes of every finished file under `prefix`, by key relative to `prefix`."""
        if not self.is_local:
            fs, root = self._remote
            base = f"{root}/{prefix}".rstrip("/")
            fs.invalidate_cache(base)
            try:
                listed = self._ask("find", base, detail=True)
            except FileNotFoundError:
                return {}
            bare = base.lstrip("/")
            return {path.lstrip("/").removeprefix(bare + "/"): info["size"] for path, info in listed.items()}
        base = os.path.join(self.url, prefix) if prefix else self.url
        found: dict[str, int] = {}
        for folder, _, names in os.walk(base):
            relative = os.path.relpath(folder, base).replace(os.sep, "/")
            for name in names:
                if not name.endswith((PARTIAL, LOCK)):
                    key = name if relative == "." else f"{relative}/{name}"
                    with suppress(FileNotFoundError):  # removed since it was listed: the model has been replaced
                        found[key] = os.stat(os.path.join(folder, name)).st_size
        return found

    def names(self) -> list[str]:
        """The files and folders at the top of this folder, but for those that are still being written."""
        try:
            if self.is_local:
                found = os.listdir(self.url)
            else:
                fs, root = self._remote
                fs.invalidate_cache(root)
                found = [path.rstrip("/").rpartition("/")[2] for path in self._ask("ls", root, detail=False)]
        except FileNotFoundError:
            return []
        return [name for name in found if not name.endswith((PARTIAL, LOCK))]

    def sweep(self) -> None:
        """Remove what killed writers left half-written, once every key is written; a `put` of one of them still ends well.

        Locks may go on being taken.
        """
        if self.is_local:
            for path in Path(self.url).rglob(f"*{PARTIAL}"):
                if LOCK not in path.name:
                    _remove_file(path)

    def refuse_file(self) -> None:
        """StoreError where the path of this folder is taken by a file."""
        if self.is_local and os.path.isfile(self.url):
            raise StoreError(f"{self.url} is a file, a store is a folder; choose another path")

    def delete(self, key: str) -> None:
        """Remove the file at `key`, if there is one."""
        self._inside(key)
        if self.is_local:
            _remove_file(Path(self.url, key))
            return
        _, root = self._remote
        with suppress(FileNotFoundError):
            self._ask("rm_file", f"{root}/{key}")

    def delete_tree(self, key: str) -> None:
        """Remove the file or folder at `key`, if there is one."""
        self._inside(key)
        if self.is_local:
            path = os.path.join(self.url, key)
            while os.path.isdir(path) and not os.path.islink(path):
                with suppress(FileNotFoundError):  # another process removes it as well
                    shutil.rmtree(path)
            _remove_file(path)
            return
        fs, root = self._remote
        with suppress(FileNotFoundError):
            self._ask("rm", f"{root}/{key}", recursive=True)
        fs.invalidate_cache()


def _durable() -> bool:
    """Whether writes are to survive a power failure; scratch storage need not pay for that."""
    import dask.config  # here: a tenth of a second, and few commands ask

    found = dask.config.get("dmo.stores.fsync", True)
    if not isinstance(found, bool):
        raise UserError(
            f"the setting dmo.stores.fsync is {str(found)[:60]!r}, expected true or false; see dmo/cluster/dmo.yaml"
        )
    return found


def beside(target: str | os.PathLike[str]) -> str:
    """A name of its own for a file that will be `target`."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex}{PARTIAL}")


def _write(path: str | Path, parts: Iterable[Any], durable: bool = False, mode: str = "wb") -> None:
    with open(path, mode, buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            while view.nbytes:
                view = view[file.write(view) :]
        if durable:  # before the rename: a name that survives a power failure must not have lost its bytes
            os.fsync(file.fileno())


def _regular(path: str) -> Any:
    """A file open for reading; a store of others may hold a pipe, which waits for ever, or a device, which has no end."""
    waits = getattr(os, "O_NONBLOCK", 0)
    file = open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | waits))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise StoreError(f"{path} is a pipe or a device, a store holds files alone; make the store again")
    return file


def _publish(partial: Path, target: Path) -> bool:
    """Give a file its name unless it is taken; returns whether it was free."""
    # A hard link does so with all bytes at once. Where there are none (SMB, some FUSE and NFS mounts), the file is
    # created exclusively and filled after that, so that its readers may see it empty for a moment.
    try:
        os.link(partial, target)
        return True
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:
        pass
    try:
        _write(target, [partial.read_bytes()], mode="xb")
        return True
    except FileExistsError:
        return False


def _make_folder(path: Path, durable: bool) -> None:
    """Make a folder and those above it; their names last as well."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing if durable else ():
        _sync_folder(folder.parent)


def _sync_folder(path: Path) -> None:
    """Make the names in a folder last; systems that cannot open a folder (Windows) keep them by themselves."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _fill(file: Any, part: np.ndarray) -> int:
    view = part.data
    while view.nbytes:
        count = file.readinto(view)
        if not count:
            break
        view = view[count:]
    return part.size - view.nbytes


def _remove_file(path: str | Path) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
