"""Reading and writing of files in a local folder or at an fsspec URL, and the exceptions of the stores.

A failed request to an object store is repeated if repetition can help. Otherwise, this module raises an error that
names the URL and a fix. fsspec's file systems already retry most network failures; the remaining failures are
exceptions of the client library, or an OSError that does not name the URL.
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
    """Exception raised if a store cannot be used as requested. The message names the problem and suggests a fix.

    Examples
    --------
    >>> import tempfile
    >>> from dmo import stores
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         stores.check_output("memory://model")
    ...     except stores.StoreError as error:
    ...         print(error)
    memory://model exists only in the memory of this process; pass a path, or a URL such as s3://...
    """


class DamagedRoot(StoreError):
    """Exception raised if the root document of a store was changed or damaged after dmo wrote it."""


class ServiceError(OSError):
    """Exception raised if an object store fails or does not respond."""


class RefusedError(UserError, ServiceError):
    """Exception raised if an object store rejects every request, for example for lack of valid credentials."""


@contextmanager
def writing(url: str, what: str) -> Iterator[None]:
    """Improve the messages of OSErrors within a `with` block, for example if the disk is full.

    Parameters
    ----------
    url : str
        Path or URL that the block writes to.
    what : str
        Object that the block writes, as it appears in the message "cannot write ...".

    Yields
    ------
    None
        Nothing.

    Raises
    ------
    OSError
        If the block raises an OSError. The new error has the same error number, and its message contains the path, the
        object, the reason and a fix.

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
        cure = "free disk space or fix the permissions and run again; finished blocks are kept"
        text = f"{url}: cannot write {what} ({reason}); {cure}"
        raise (OSError(text) if error.errno is None else OSError(error.errno, text)) from error


T = TypeVar("T")
_PLAIN_KEY = re.compile(r"(?=.{1,200}\Z)\w[\w.-]*(/\w[\w.-]*)*", re.ASCII)  # keys that are valid on every system
_LONGEST = 60.0  # maximum number of seconds between two attempts of a request
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
    """Call `request`, which accesses the service behind `url`, and repeat the call if the service fails."""
    # Errors about existing or missing files are raised unchanged. If the service rejects the credentials, the
    # certificate or the host name, another attempt cannot succeed, so RefusedError is raised at once. ServiceError is
    # raised if the last attempt fails.
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
    raise AssertionError  # unreachable: the last iteration returns or raises


def _patience() -> tuple[int, float]:
    """Return the maximum number of attempts of a request, and the number of seconds before the second attempt."""
    import dask.config  # imported here because the import takes 0.1 s and few commands need it

    tries, pause = dask.config.get("dmo.stores.tries", 4), dask.config.get("dmo.stores.pause", 0.25)
    for name, value, kinds, least in (("tries", tries, int, 1), ("pause", pause, (int, float), 0)):
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= 1000:
            raise UserError(
                f"the setting dmo.stores.{name} is {str(value)[:60]!r}, expected a number from {least} to 1000; "
                "see dmo/cluster/dmo.yaml"
            )
    return tries, pause


def _refusal(url: str, error: Exception) -> RefusedError | None:
    """Return the error to raise if another attempt cannot succeed, or None if the request should be repeated."""
    names = {type(found).__name__ for found in _chain(error)}
    reason = _reason(error)
    if names & {"SSLCertVerificationError", "ClientConnectorCertificateError"} or "CERTIFICATE_VERIFY" in reason:
        cure = "correct the endpoint, or set AWS_CA_BUNDLE to the file of the certificate authority"
        return RefusedError(f"{url}: the TLS certificate of its server is not trusted ({reason}); {cure}")
    if any("Credential" in name or "ProfileNotFound" in name or "Token" in name for name in names):
        cure = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the credentials that the service expects"
        return RefusedError(f"{url}: no usable credentials were found ({reason}); {cure}")
    if isinstance(error, PermissionError):
        return RefusedError(f"{url}: access is denied ({reason}); check the credentials and their permissions")
    if "ParamValidationError" in names or (isinstance(error, OSError) and error.errno == errno.EINVAL):
        return RefusedError(f"{url}: the service rejects the request ({reason}); check the URL and the endpoint")
    return None


def _failure(url: str, error: Exception) -> ServiceError:
    what = "does not answer" if _unanswered(error) else "fails"
    cure = "check the network and the endpoint (for S3, AWS_ENDPOINT_URL)"
    return ServiceError(errno.EIO, f"{url}: its service {what} ({_reason(error)}); {cure}; {_AGAIN}")


def _unanswered(error: Exception) -> bool:
    """Check whether the service did not respond although the client library has already repeated the request."""
    names = {type(found).__name__ for found in _chain(error)}
    return bool(names & _SILENT)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(str(text).split())[:300] or type(error).__name__


PARTIAL = ".partial"
"""Suffix of the names of files that are still being written."""
LOCK = ".writer.lock"
"""Name of the lock file that identifies the writer of a store."""


@dataclass(frozen=True)
class Folder:
    """Folder whose files are read and written under keys such as "gist/c.0.0". Several processes can use it at once."""

    # A local write creates a temporary file next to the target and renames it, so readers see either the old or the new
    # content. Object stores also replace the content of a key at once. The first `put` creates the folder. Unless the
    # setting dmo.stores.fsync is false, `put` flushes the content to disk before it renames the file, and `settle`
    # flushes the directory entries.

    url: str

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Folder:
        """Return the folder at a path or URL. Local paths and "file://" URLs are converted to absolute local paths."""
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"the name of a store is a path or URL, got {type(path).__name__}; pass a str or a Path")
        url = os.fspath(path)
        if url.startswith("file://"):
            from urllib.request import url2pathname  # imported here because the import loads the HTTP and mail modules

            url = url2pathname(urlsplit(url).path)
        if not url:
            raise UserError("the name of a store is a path or URL, got an empty string; pass the path of a folder")
        return cls(url.rstrip("/") if "://" in url else os.path.abspath(url))

    def child(self, name: str) -> Folder:
        self._inside(name)
        return Folder(f"{self.url}/{name}")

    @property
    def _place(self) -> str:
        return self.url.rpartition("/")[0] + "/"

    def relative(self, path: str | os.PathLike[str]) -> str:
        """Return a path relative to the parent folder of the store, or the absolute path if it is elsewhere."""
        url = Folder.at(path).url
        return url.removeprefix(self._place)

    def absolute(self, name: str) -> str:
        return name if "://" in name or os.path.isabs(name) else self._place + name

    def _inside(self, key: str) -> None:
        """Raise StoreError if a key points outside this folder, which is possible in files from third parties."""
        if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
            return
        plain = isinstance(key, str) and not {"\\", "\0"} & set(key)
        if not plain or not all(part.strip(".") for part in key.split("/")):
            raise StoreError(f"{self.url}: the name {key!r} points outside the store; make the store again")
        if len(key) > 2048 or max(len(part.encode(errors="replace")) for part in key.split("/")) > 200:
            raise StoreError(f"{self.url}: the name {key[:60]!r}... is too long for a file name; choose a shorter one")

    @property
    def is_local(self) -> bool:
        return "://" not in self.url

    @cached_property
    def _remote(self) -> tuple[Any, str]:
        """The fsspec file system of the URL, and the path of this folder in the file system."""
        from fsspec.core import url_to_fs

        try:
            fs, path = url_to_fs(self.url)
        except ValueError as error:
            raise StoreError(f"{self.url}: {error}; pass a path, or a URL such as s3://bucket/folder") from error
        return fs, path.rstrip("/")

    def _named(self, method: str, **options: Any) -> dict[str, Any]:
        """Remove the options that the method of this fsspec file system does not accept."""
        fs, _ = self._remote
        named = inspect.signature(getattr(fs, f"_{method}", getattr(fs, method))).parameters
        return {name: value for name, value in options.items() if name in named}

    @cached_property
    def _reading(self) -> dict[str, Any]:
        """Options that make s3fs read an object in one request instead of two."""
        return self._named("cat_file", max_concurrency=1)

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the fsspec file system, and repeat the call if the service fails."""
        fs, _ = self._remote
        return ask(self.url, lambda: getattr(fs, method)(*arguments, **options))

    def __getstate__(self) -> dict[str, str]:
        return {"url": self.url}

    def put(self, key: str, *parts: Any, sync: bool = True) -> None:
        """Atomically write the concatenated `parts`, which are bytes or one-dimensional uint8 arrays, under `key`.

        If `sync` is False, the content is undefined after a power failure.
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
                # Another process may have written the target, finished the store and removed all temporary files.
                if not os.path.exists(target):
                    raise
        except OSError:
            _remove_file(partial)
            raise

    def _put_remote(self, key: str, data: bytes, **how: str) -> None:
        """Write an object with fsspec, and create its folder if necessary."""
        _, root = self._remote
        try:
            self._ask("pipe_file", f"{root}/{key}", data, **how)
        except FileNotFoundError:
            self._make_remote(f"{root}/{key}".rpartition("/")[0])
            self._ask("pipe_file", f"{root}/{key}", data, **how)

    def _make_remote(self, path: str) -> None:
        """Create a folder and its parents, except the bucket, which must exist."""
        lead = "/" if path.startswith("/") else ""
        top = lead + path.lstrip("/").partition("/")[0]
        if not self._ask("exists", top):
            raise StoreError(f"{self.url}: there is no {top!r} to write to; make that bucket first, or correct the URL")
        self._ask("makedirs", path, exist_ok=True)

    def settle(self, below: bool = False) -> None:
        """Flush the directory entries of this folder to disk; if `below`, also those of its subfolders."""
        if not self.is_local or not _durable():
            return
        for folder, names, _ in os.walk(self.url):
            names[:] = [name for name in names if name != "journal"] if below else []
            _sync_folder(Path(folder))

    def put_new(self, key: str, data: bytes) -> bool:
        """Write `data` under `key` unless the key exists; return whether it was written."""
        if not self.is_local:
            if self.get(key) is not None:  # some services ignore mode="create" and overwrite existing objects
                return False
            # FileExistsError: another process, or an earlier attempt of this request, has already written the object.
            with suppress(FileExistsError):
                self._put_remote(key, data, **self._named("pipe_file", mode="create"))
            return self.get(key) == data
        target = Path(self.url, key)
        for _ in range(5):
            partial = Path(beside(target))
            _make_folder(target.parent, _durable())
            try:
                _write(partial, [data])
                return _publish(partial, target)
            except FileNotFoundError:  # another process has removed the empty folder, so try again
                continue
            finally:
                _remove_file(partial)
        return False

    def delete_if(self, key: str, data: bytes) -> None:
        """Remove the file at `key` if it contains `data`."""
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
        """Return the bytes under `key`, or None if the key does not exist."""
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
        """Return the bytes under each key that exists. The requests are concurrent if the file system supports this."""
        asked = list(keys)
        if self.is_local or len(asked) < 2:
            found = ((key, self.get(key)) for key in asked)
            return {key: data for key, data in found if data is not None}
        _, root = self._remote
        wanted = {f"{root}/{key}": key for key in asked}
        data: dict[str, bytes] = {}
        for path, value in self._ask("cat", list(wanted), recursive=False, on_error="return", **self._reading).items():
            if isinstance(value, Exception) and not isinstance(value, FileNotFoundError):
                again = self.get(wanted[path])  # raises an error if the request fails again
                value = again if again is not None else FileNotFoundError()
            if not isinstance(value, Exception):
                data[wanted[path]] = value
        return data

    def read_into(self, key: str, *parts: np.ndarray) -> int | None:
        """Read the bytes under `key` into the uint8 arrays `parts`; return their number, or None if the key is missing.

        Read nothing if the number of bytes differs from the total size of `parts`.
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
        """Return the size in bytes of every file below `prefix`, except locks and temporary files."""
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
                    with suppress(FileNotFoundError):  # the file was removed after the folder was listed
                        found[key] = os.stat(os.path.join(folder, name)).st_size
        return found

    def names(self) -> list[str]:
        """List the files and folders in this folder, except locks and temporary files."""
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
        """Remove the temporary files that killed writers left in a finished store.

        Temporary lock files are kept, because another process may be acquiring the lock.
        """
        if self.is_local:
            for path in Path(self.url).rglob(f"*{PARTIAL}"):
                if LOCK not in path.name:
                    _remove_file(path)

    def refuse_file(self) -> None:
        if self.is_local and os.path.isfile(self.url):
            raise StoreError(f"{self.url} is a file, but a store is a folder; choose another path")

    def delete(self, key: str) -> None:
        self._inside(key)
        if self.is_local:
            _remove_file(Path(self.url, key))
            return
        _, root = self._remote
        with suppress(FileNotFoundError):
            self._ask("rm_file", f"{root}/{key}")

    def delete_tree(self, key: str) -> None:
        self._inside(key)
        if self.is_local:
            path = os.path.join(self.url, key)
            while os.path.isdir(path) and not os.path.islink(path):
                with suppress(FileNotFoundError):  # another process may remove the folder at the same time
                    shutil.rmtree(path)
            _remove_file(path)
            return
        fs, root = self._remote
        with suppress(FileNotFoundError):
            self._ask("rm", f"{root}/{key}", recursive=True)
        fs.invalidate_cache()


def _durable() -> bool:
    import dask.config  # imported here because the import takes 0.1 s and few commands need it

    found = dask.config.get("dmo.stores.fsync", True)
    if not isinstance(found, bool):
        raise UserError(
            f"the setting dmo.stores.fsync is {str(found)[:60]!r}, expected true or false; see dmo/cluster/dmo.yaml"
        )
    return found


def beside(target: str | os.PathLike[str]) -> str:
    """Return a unique path for a temporary file in the folder of `target`."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex}{PARTIAL}")


def _write(path: str | Path, parts: Iterable[Any], durable: bool = False, mode: str = "wb") -> None:
    with open(path, mode, buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            while view.nbytes:
                view = view[file.write(view) :]
        if durable:  # otherwise, a power failure after renaming could leave an empty file
            os.fsync(file.fileno())


def _regular(path: str) -> Any:
    """Open a regular file for reading; raise StoreError for pipes and devices, which could block forever."""
    waits = getattr(os, "O_NONBLOCK", 0)
    file = open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | waits))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise StoreError(f"{path} is a pipe or a device, but a store contains only files; make the store again")
    return file


def _publish(partial: Path, target: Path) -> bool:
    """Rename a temporary file to its final name unless the target exists; return whether the target was created."""
    # A hard link creates the complete target in one step. Some file systems (SMB, some FUSE and NFS mounts) do not
    # support hard links. On these file systems, the target is created and then filled, so readers may see an empty file
    # briefly.
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
    """Create a folder and its parents, and flush their directory entries to disk if `durable` is True."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing if durable else ():
        _sync_folder(folder.parent)


def _sync_folder(path: Path) -> None:
    """Flush the directory entries of a folder to disk. Windows cannot open a folder, but flushes automatically."""
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
