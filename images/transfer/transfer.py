"""The missing bytes of one blob from one registry: in one stream, or over several connections where the blob is large.

::

    claim a stretch ──► GET (Range, If-Range) ──► 206, the range asked for ──► write, count ──► claim the next
           ▲                                  └─► 200, the whole blob      ──► drop what is here, write the rest
           └── wait, longer each time ◄── connection cut, stalled, body too short

A failure costs only the bytes that had not come: the stretch is claimed again from where it broke. Tries and the time for them are
bounded, and real progress sets both back. Whether the bytes are the right ones is not decided here but by the digest, over the whole
blob; sizes that cannot be right are refused at once.

https://www.rfc-editor.org/rfc/rfc9110#name-range-requests
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable

from dockless.base.dataclass import dataclass
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadDigest, RegistryUnavailable
from dockless.images.layers.pipeline import GivenUp
from dockless.images.model.digest import Digest
from dockless.images.transfer.partial import CHUNK, Partial

if TYPE_CHECKING:
    from dockless.images.registry import Response
    from dockless.images.registry.remote import RemoteRepository

PIECE = 256 << 10
"""Bytes per write: what one connection may lose when the process is killed."""
_PROGRESS = 1 << 20
"""Bytes that count as progress. Less than this between two failures, and the registry may keep us busy for ever."""
_FAR = 4
"""Chunks to a request where the registry redirects to where its blobs really are."""
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)\Z")
_STRONG_ETAG = re.compile(r'"[!#-~]{0,197}"')
"""A weak one may not stand in If-Range, and bytes beyond ASCII are not sent back. RFC 9110, 8.8.3"""
_UNSATISFIED = re.compile(r"bytes \*/(\d{1,19})\Z")


@dataclass(frozen=True, slots=True)
class Pace:
    """``connections``: for one blob of ``split_from`` bytes or more, each fetching a ``chunk`` at a time. ``tries``: failures in a row
    before the registry is given up. ``wait``, ``wait_max``: seconds before the second try, and at most, each ± half. ``patience``: seconds
    since the last progress after which nothing is tried again; a quarter of it at a mirror."""

    connections: int = 4
    split_from: int = 32 << 20
    chunk: int = CHUNK
    tries: int = 6
    wait: float = 0.25
    wait_max: float = 20.0
    patience: float = 120.0


class _Again(Exception):
    """The stretch broke; the rest of it can be asked for again."""


class _Enough(Exception):
    """This connection is not needed any more."""


class Transfer:
    """Brings all that ``partial`` lacks, or raises ``RegistryError``, ``BadDigest`` (a size that cannot be right), ``OSError`` (the disk),
    ``GivenUp``. ``moved(n)`` is called for every ``n`` bytes that have come and been counted, from any thread."""

    def __init__(
        self,
        remote: RemoteRepository,
        name: Digest,
        partial: Partial,
        what: str,
        pace: Pace,
        stop: threading.Event,
        moved: Callable[[int], None],
    ) -> None:
        self._remote = remote
        self._name = name
        self._partial = partial
        self._what = what
        self._pace = pace
        self._patience = pace.patience if remote.patient else pace.patience / 4
        self._stop = stop
        self._moved = moved
        self._helpers: list[threading.Thread] = []
        self._ranges = True  # False: not even asked for any more
        self._alone = False  # the first connection brings everything
        self._etag = ""
        self._stretch = 1
        self._open: set[Response] = set()
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            while self._partial.have < self._partial.size:
                self._work(lead=True)
                self._join()
                if self._error is not None:
                    raise self._error
        except BaseException:
            self.abort()
            raise
        finally:
            self._join()

    def abort(self) -> None:
        """Wake every connection that waits for bytes. Safe from any thread."""
        with self._lock:
            self._error = self._error or GivenUp(self._what)
            waiting = list(self._open)
        for response in waiting:
            response.abort()

    # -- one connection --------------------------------------------------------------------------------------------------------------

    def _work(self, *, lead: bool) -> None:
        failures, progress = 0, time.monotonic()
        while True:
            self._check()
            if not lead and (not self._ranges or self._alone):
                return
            stretch = self._partial.claim(self._stretch if self._splits() and self._ranges else 1 << 30)
            if stretch is None:
                return
            before = self._partial.have_in(*stretch)
            try:
                self._get(*stretch, lead=lead)
                failures, progress = 0, time.monotonic()
            except (_Again, RegistryUnavailable) as error:
                self._check()
                status = error.status if isinstance(error, RegistryUnavailable) else 200
                if status >= 400 or (status == 0 and not self._remote.patient):
                    raise  # no answer that could be gone on with: the request was repeated enough, or another remote is next
                if self._partial.have_in(*stretch) - before >= min(_PROGRESS, stretch[1] - stretch[0]):
                    failures, progress = 0, time.monotonic()
                failures += 1
                if failures >= self._pace.tries or time.monotonic() - progress >= self._patience:
                    raise self._given_up(error, failures) from error
                self._stop.wait(min(self._pace.wait_max, self._pace.wait * 2 ** (failures - 1)) * random.uniform(0.5, 1.5))
            finally:
                self._partial.release(*stretch)

    def _help(self) -> None:
        """A further connection. That it fails says nothing: the first one is still there, and fails aloud."""
        try:
            self._work(lead=False)
        except (BadDigest, OSError) as error:
            with self._lock:
                self._error = self._error or error
            self.abort()
        except Exception:
            pass

    def _given_up(self, error: Exception, failures: int) -> RegistryUnavailable:
        have, size = self._partial.have, self._partial.size
        why = str(error).removeprefix(f"{self._what}: ")
        return RegistryUnavailable(
            f"{self._what}: the download from {self._remote.what} broke off {failures} times, at {have} of {size} bytes: {why}",
            subject=self._what,
            hint="what has come is kept; pull again to go on",
        )

    def _get(self, begin: int, end: int, *, lead: bool) -> None:
        size = self._partial.size
        headers: dict[str, str] = {}
        if self._ranges and (begin, end) != (0, size):
            headers["Range"] = f"bytes={begin}-{end - 1}"
            if self._etag:
                headers["If-Range"] = self._etag
        response = self._remote.open_blob(self._name, headers)
        with self._lock:
            self._open.add(response)
        try:
            self._check()
            offset, end = self._accept(response, begin, end, lead)
            self._copy(response, offset, end)
        except _Enough:
            pass
        finally:
            with self._lock:
                self._open.discard(response)
            response.close()

    def _accept(self, response: Response, begin: int, end: int, lead: bool) -> tuple[int, int]:
        """Which bytes the answer holds; ``_Again`` where they are of no use."""
        size = self._partial.size
        if response.status == 200:
            if not lead:
                raise _Enough  # it would be the whole blob: one connection is enough for that
            if response.length is not None and response.length != size:
                raise self._wrong_size(response.length)
            if response.encoded:
                self._ranges = False  # they would count the encoded bytes
            self._remember_etag(response)
            self._alone = True
            return 0, size
        if response.status == 416:
            match = _UNSATISFIED.match(response.headers.get("Content-Range", ""))
            if match is not None and int(match[1]) != size:
                raise self._wrong_size(int(match[1]))
            raise self._without_ranges("it refuses a part of the blob (416)")
        match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        if match is None or response.encoded:
            raise self._without_ranges("it answers 206 without saying which bytes those are")
        first, last, total = int(match[1]), int(match[2]), match[3]
        if total != "*" and int(total) != size:
            raise self._wrong_size(int(total))
        if first != begin or not first <= last < end:
            raise self._without_ranges(f"asked for bytes {begin}-{end - 1}, it sends {first}-{last}")
        self._remember_etag(response)
        if not response.url.partition("//")[2].startswith(f"{self._remote.registry.endpoint.netloc}/"):
            self._stretch = _FAR  # each request goes by the registry first
        if lead and self._splits() and not self._helpers:
            self._get_help()
        return first, last + 1

    def _copy(self, response: Response, offset: int, end: int) -> None:
        size = self._partial.size
        while offset < end:
            data = response.read(min(PIECE, end - offset))
            if not data:
                raise _Again(f"{self._what}: the answer ended {end - offset} bytes early")
            new = self._partial.write(offset, data)
            offset += len(data)
            if new:
                self._moved(new)
            self._check()
        if end == size and response.status == 200 and response.length is None:
            try:
                trailing = response.read(1)
            except RegistryUnavailable:
                return  # all bytes are here
            if trailing:
                raise self._wrong_size(size + 1, "at least ")

    # -- shared ----------------------------------------------------------------------------------------------------------------------

    def _splits(self) -> bool:
        return self._partial.size >= self._pace.split_from and self._pace.connections > 1

    def _get_help(self) -> None:
        for _ in range(self._pace.connections - 1):
            helper = threading.Thread(target=self._help, name="dockless-range", daemon=True)
            self._helpers.append(helper)
            helper.start()

    def _join(self) -> None:
        for helper in self._helpers:
            helper.join()
        self._helpers = []

    def _check(self) -> None:
        if self._stop.is_set():
            raise GivenUp(self._what)
        if self._error is not None:
            raise self._error

    def _remember_etag(self, response: Response) -> None:
        etag = response.headers.get("ETag", "")
        if _STRONG_ETAG.fullmatch(etag):
            self._etag = etag

    def _without_ranges(self, why: str) -> _Again:
        self._ranges = False
        return _Again(f"{self._what}: {why}")

    def _wrong_size(self, found: int, more: str = "") -> BadDigest:
        return BadDigest(
            f"{self._what}: {self._remote.what} has {more}{found} bytes of it, expected {self._partial.size}",
            subject=str(self._name),
            hint="the registry's copy is damaged, or the manifest lies about its size",
        )
