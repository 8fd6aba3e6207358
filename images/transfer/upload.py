"""One blob into a registry: found there, mounted from another repository, or sent; a cut upload goes on where the registry has got to.

::

    HEAD ──► there
      │
    POST ?mount&from ──► 201 mounted
      │ 202, Location
      ├── small: PUT all of it ─────────────────────────────┐
      └── PATCH a chunk ──► Location, Range ──► PATCH … ──► PUT ?digest ──► 201
               │ cut, 416
               └── GET Location ──► Range: how far it has got

Every answer's ``Location`` replaces the one before, relative or not, with whatever state the registry keeps in it. For large blobs it is
also written down in the store, so that the next push goes on with what a killed one had sent.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pushing-blobs
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urljoin

from dockless.base.dataclass import dataclass
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadImage, NotFound, RateLimited, RegistryError, RegistryUnavailable, Unauthorized
from dockless.images.layers.pipeline import GivenUp
from dockless.images.model.digest import Digest

if TYPE_CHECKING:
    from dockless.images.registry import Registry, Response, Scope

_PIECE = 1 << 20
_PROGRESS = 1 << 20
"""Bytes that count as progress between two failures: a registry that takes one of each try may keep us busy for ever."""
_RANGE = re.compile(r"(?:bytes[= ])?0-(\d{1,19})\Z")
_NO_CHUNKS = frozenset({400, 405, 415, 501})
_TOO_LARGE = 413


@dataclass(frozen=True, slots=True)
class UploadPace:
    """``chunk``: bytes of one request. ``remembered_from``: blobs of this size and more are gone on with by the next push. ``tries``:
    failures in a row. ``wait``, ``wait_max``: seconds before the second try, and at most, each ± half. ``patience``: seconds since the
    last byte went out after which nothing is tried again."""

    chunk: int = 64 << 20
    remembered_from: int = 16 << 20
    tries: int = 6
    wait: float = 0.25
    wait_max: float = 20.0
    patience: float = 120.0


class _Restart(Exception):
    """The registry has lost the upload, or cannot say how far it has got."""


class Upload:
    """``run`` brings one blob to one repository. ``file``: the blob's descriptor, read by position, -1 where the store does not
    keep it. ``source``: a repository of the same
    registry that has the blob, "" where none is known. ``sent`` counts bytes that went over the wire."""

    def __init__(
        self,
        registry: Registry,
        name: Digest,
        size: int,
        file: int,
        what: str,
        *,
        source: str,
        state: Path,
        pace: UploadPace,
        stop: threading.Event,
        report: Callable[[int], None],
    ) -> None:
        self._registry = registry
        self._repository = registry.endpoint.repository
        self._name = name
        self._size = size
        self._file = file
        self._what = what
        self._source = source
        self._state = state
        self._pace = pace
        self._chunk = pace.chunk
        self._stop = stop
        self._report = report
        self._failures = 0
        self._best = 0
        self._moved_at = time.monotonic()
        self.sent = 0

    def run(self) -> str:
        """``there``, ``mounted`` or ``sent``."""
        if self._is_there():
            return "there"
        with self._remembered() as memory:
            place = memory.location
            if not place:
                place = self._begin(self._source)
                if not place:
                    return "mounted"
            if self._file < 0:
                raise BadImage(
                    f"{self._what} is not in the store any more, and not in the registry",
                    subject=self._what,
                    hint="remove the image, pull or load it again, then push it",
                )
            while True:
                memory.keep(place)
                try:
                    self._send(place, memory.location_known_before, memory)
                    memory.forget()
                    return "sent"
                except _Restart as error:
                    memory.forget()
                    if self._is_there():
                        return "sent"  # only the last answer was lost
                    self._failed(error.__cause__ if isinstance(error.__cause__, RegistryError) else RegistryUnavailable(str(error)))
                    place = self._begin("")

    # -- the steps -------------------------------------------------------------------------------------------------------------------

    def _is_there(self) -> bool:
        try:
            with self._request("HEAD", self._registry.endpoint.path("blobs", str(self._name)), patient=True):
                return True
        except NotFound:
            return False

    def _begin(self, source: str) -> str:
        """Where to send to; "" if the registry took the blob from ``source``."""
        path = self._registry.endpoint.path("blobs", "uploads", "")
        scopes = [self._scope()]
        if source:
            path += f"?mount={quote(str(self._name), safe='')}&from={quote(source, safe='')}"
            scopes.append(self._scope(source))
        try:
            with self._request("POST", path, ok=(201, 202), scopes=scopes, patient=True) as response:
                return "" if response.status == 201 and source else self._location(response)
        except (Unauthorized, NotFound):
            if not source:
                raise
            return self._begin("")  # not allowed to read there

    def _send(self, place: str, resumed: bool, memory: _Memory) -> None:
        offset = 0
        if resumed:
            place, offset = self._how_far(place)
        while offset < self._size or self._size == 0:
            end = min(offset + self._chunk, self._size)
            whole = offset == 0 and end == self._size
            try:
                if whole:
                    return self._put(place, offset, end)
                place, offset = self._patch(place, offset, end)
                memory.keep(place)
                if offset < end:
                    self._failed(RegistryUnavailable(f"{self._what}: the registry takes less than it is sent", subject=self._what))
            except (RegistryUnavailable, RateLimited) as error:
                self._failed(error)
                place, offset = self._how_far(place)
            except NotFound as error:
                raise _Restart("the registry has lost the upload") from error
            except RegistryError as error:
                if error.status == 416:
                    self._failed(error)
                elif error.status == _TOO_LARGE and self._chunk > 1 << 20:
                    self._chunk = max(1 << 20, min(self._chunk, self._size) // 4)
                elif not whole and offset == 0 and error.status in _NO_CHUNKS:
                    self._chunk = self._size  # it does not take chunks
                    raise _Restart("the registry does not take chunks") from error
                else:
                    raise
                place, offset = self._how_far(place)
        self._finish(place)

    def _patch(self, place: str, offset: int, end: int) -> tuple[str, int]:
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(end - offset), "Content-Range": f"{offset}-{end - 1}"}
        with self._request("PATCH", place, headers=headers, body=self._slice(offset, end), ok=(202, 204, 201)) as response:
            place = self._location(response, place)
            reached = _reached(response)
        if reached is None or reached >= end:
            self._progressed(end)
        return place, end if reached is None else min(reached, self._size)

    def _put(self, place: str, offset: int, end: int) -> None:
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(end - offset)}
        with self._request("PUT", self._named(place), headers=headers, body=self._slice(offset, end), ok=(201, 204)):
            self._progressed(end)

    def _finish(self, place: str) -> None:
        """All bytes are there; the registry checks them against their name. An answer that got lost is found out by looking."""
        while True:
            try:
                with self._request("PUT", self._named(place), headers={"Content-Length": "0"}, body=b"", ok=(201, 204)):
                    return
            except (RegistryUnavailable, RateLimited) as error:
                self._failed(error)
                if self._is_there():
                    return
            except NotFound as error:
                if self._is_there():
                    return
                raise _Restart("the registry has lost the upload") from error

    def _how_far(self, place: str) -> tuple[str, int]:
        try:
            with self._request("GET", place, ok=(204, 200, 202), patient=True) as response:
                reached = _reached(response)
                place = self._location(response, place)
        except RegistryUnavailable:
            raise
        except RegistryError as error:
            raise _Restart("the registry does not know the upload any more") from error
        if reached is None or reached > self._size:
            raise _Restart("the registry does not say how far the upload has got")
        if reached - self._best >= min(_PROGRESS, self._size - self._best):
            self._progressed(reached)
        return place, reached

    # -- within ----------------------------------------------------------------------------------------------------------------------

    def _request(
        self,
        method: str,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        body: Any = None,
        ok: tuple[int, ...] = (200,),
        scopes: list[Scope] | None = None,
        patient: bool = False,
    ) -> Response:
        """``patient`` False for what must not be sent again as it is: the registry may have kept a part of it."""
        if self._stop.is_set():
            raise GivenUp(self._what)
        return self._registry.request(
            method, path, scope=scopes or [self._scope()], headers=headers, body=body, ok=ok, patient=patient, what=self._what
        )

    def _scope(self, repository: str = "") -> Scope:
        from dockless.images.registry import Scope

        return Scope(repository, ("pull",)) if repository else Scope(self._repository, ("pull", "push"))

    def _location(self, response: Response, before: str = "") -> str:
        found = response.headers.get("Location", "")
        if not found and not before:
            raise RegistryError(f"{self._what}: the registry does not say where to send it", status=response.status, subject=self._what)
        try:
            return urljoin(response.url, found) if found else before
        except ValueError:
            raise RegistryError(
                f"{self._what}: the registry sends us to a malformed address", status=response.status, subject=self._what
            ) from None

    def _named(self, place: str) -> str:
        return f"{place}{'&' if '?' in place else '?'}digest={quote(str(self._name), safe='')}"

    def _slice(self, begin: int, end: int) -> _Slice:
        return _Slice(self, self._file, begin, end)

    def passed(self, offset: int, count: int) -> None:
        """``count`` bytes are on their way, up to ``offset``."""
        if self._stop.is_set():
            raise GivenUp(self._what)
        self.sent += count
        self._moved_at = time.monotonic()
        self._report(offset)

    def _progressed(self, offset: int) -> None:
        if offset > self._best:
            self._best, self._failures = offset, 0

    def _failed(self, error: RegistryError) -> None:
        self._failures += 1
        if self._failures >= self._pace.tries or time.monotonic() - self._moved_at >= self._pace.patience:
            raise error
        asked = error.retry_after if isinstance(error, RateLimited) else None
        wait = min(self._pace.wait_max, self._pace.wait * 2 ** (self._failures - 1)) * random.uniform(0.5, 1.5)
        self._stop.wait(wait if asked is None else min(asked, 60.0))

    @contextlib.contextmanager
    def _remembered(self) -> Iterator[_Memory]:
        """What an earlier push has left, if it is not at work any more."""
        if self._size < self._pace.remembered_from:
            yield _Memory(-1)
            return
        key = hashlib.sha256(f"{self._registry.endpoint}\n{self._name}".encode()).hexdigest()
        path = self._state / key
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield _Memory(-1)
                return
            memory = _Memory(fd)
            try:
                yield memory
            finally:
                if not memory.location:
                    path.unlink(missing_ok=True)
        finally:
            os.close(fd)


class _Memory:
    """The location of an upload, in a locked file. ``fd`` -1: nothing is remembered."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.location = ""
        if fd >= 0:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self.location = str(json.loads(os.pread(fd, 1 << 16, 0))["location"])
        self.location_known_before = bool(self.location)

    def keep(self, location: str) -> None:
        self.location = location
        if self._fd >= 0:
            data = json.dumps({"location": location}).encode()
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, data, 0)

    def forget(self) -> None:
        self.location, self.location_known_before = "", False
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)


class _Slice(io.RawIOBase):
    """A stretch of a file as a request's body. It gives pieces of its own size, whatever it is asked for."""

    def __init__(self, upload: Upload, fd: int, begin: int, end: int) -> None:
        self._upload = upload
        self._fd = fd
        self._begin, self._end, self._at = begin, end, begin

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at - self._begin

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: self._begin, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        self._at = max(self._begin, min(self._end, base + offset))
        return self._at - self._begin

    def read(self, size: int = -1) -> bytes:
        data = os.pread(self._fd, min(_PIECE, self._end - self._at), self._at)
        if not data and self._at < self._end:
            raise OSError(f"the store's blob ends {self._end - self._at} bytes early")
        self._at += len(data)
        self._upload.passed(self._at, len(data))
        return data


def _reached(response: Response) -> int | None:
    """How many bytes the registry has, None where it does not say. ``0-0`` may mean none as well as one."""
    match = _RANGE.match(response.headers.get("Range", ""))
    if match is None:
        return None
    return int(match[1]) + 1 if int(match[1]) else 0
