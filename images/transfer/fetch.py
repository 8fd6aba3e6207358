"""Blobs on their way into the store: a few at a time, in the order of the layers, each fetched once however many processes want it.

::

    fetcher = Fetcher(store, remotes, …)
    download = fetcher.add(descriptor, what)      begins when its turn comes
    download.open()                               a stream that can be read at once, while the bytes come
    fetcher.close()                               threads end, what has come stays

A reader waits for the next bytes without a gap and gets the download's failure as its own. Bytes are not yet verified when they are
read: the reader hashes them, as it would with bytes from anywhere else, and only then takes the file into the store.

Where another process holds the blob's file (``Partial``), other blobs go first; then we wait, and find it whole, find the blob in the
store, or go on with what a dead process left. Who downloads waits for nothing but the network, so processes cannot wait for each other
in a circle.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from dockless.base.typing import TYPE_CHECKING, BinaryIO
from dockless.errors import BadDigest, BadImage, ImageError, NotFound, RegistryError
from dockless.images.catalog.catalog import Catalog
from dockless.images.files import check_room, explained
from dockless.images.layers.pipeline import GivenUp
from dockless.images.model.digest import Digest
from dockless.images.model.manifest import Descriptor
from dockless.images.transfer.partial import Partial
from dockless.images.transfer.transfer import Pace, Transfer

if TYPE_CHECKING:
    from dockless.images.registry.remote import RemoteRepository

AT_ONCE = 3
_BUSY_WAIT = 0.05
_CLOSE_WAIT = 3.0


def spool_path(store: Catalog, entry: Descriptor) -> Path:
    """Where the blob is gathered. The size is in the name: a manifest that lies about it gets a file of its own and spoils no other."""
    path = store.partial_path(entry.digest)
    return path.with_name(f"{path.name}-{entry.size}")


class Download:
    """One blob. ``sources``: who gave bytes of it in this run (by number), ``inherited``: how many an earlier process left; both say whom
    to doubt where the digest turns out wrong."""

    def __init__(self, entry: Descriptor, what: str, report: Callable[[int, int], None] | None) -> None:
        self.entry = entry
        self.digest: Digest = entry.digest
        self.size = entry.size
        self.what = what
        self.sources: set[int] = set()
        self.inherited = 0
        self._report = report
        self._moved = threading.Condition()
        self._partial: Partial | None = None
        self._fd = -1  # of the partial file, or of the blob where the store has it by now
        self._prefix = 0
        self._error: BaseException | None = None
        self.settled = False

    def open(self) -> BinaryIO:
        """The blob's bytes from the beginning; a read waits for those that have not come yet."""
        return io.BufferedReader(_Growing(self), 1 << 18)

    def cancel(self) -> None:
        """Wake and fail every reader. The download itself goes on until its fetcher is closed."""
        self.fail(GivenUp(self.what))

    # -- for the fetcher -------------------------------------------------------------------------------------------------------------

    def follow(self, partial: Partial) -> None:
        with self._moved:
            self._partial = partial
            self._fd = os.dup(partial.fd)
            self.inherited = partial.inherited
        self.moved(0)

    def moved(self, new: int) -> None:
        with self._moved:
            assert self._partial is not None
            have, prefix = self._partial.have, self._partial.prefix
            # The last byte is held back until the download is over: who has read all bytes takes the file away.
            prefix = min(prefix, self.size - 1)
            if prefix > self._prefix:
                self._prefix = prefix
                self._moved.notify_all()
        if self._report is not None:
            self._report(have, self.size)

    def whole(self, fd: int) -> None:
        """All bytes are there, in ``fd``, which is ours from now on."""
        with self._moved:
            self._close()
            self._fd = fd
            self._prefix = self.size
            self._finish()

    def done(self) -> None:
        with self._moved:
            self._prefix = self.size
            self._finish()

    def fail(self, error: BaseException) -> None:
        with self._moved:
            if self._error is None and not self.settled:
                self._error = error
            self._finish()

    def close(self) -> None:
        with self._moved:
            self._error = self._error or GivenUp(self.what)
            self._finish()
            self._close()

    def _finish(self) -> None:
        self._partial = None
        self.settled = True
        self._moved.notify_all()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # -- for the reader --------------------------------------------------------------------------------------------------------------

    def read_at(self, buffer: memoryview, offset: int) -> int:
        with self._moved:
            while offset >= self._prefix and offset < self.size and self._error is None:
                self._moved.wait()
            if offset >= self.size:
                return 0
            if self._error is not None and offset >= self._prefix:
                raise self._failure()
            if self._fd < 0:
                raise GivenUp(self.what)
            fd, count = os.dup(self._fd), min(len(buffer), self._prefix - offset)
        try:
            return os.preadv(fd, [buffer[:count]], offset)
        finally:
            os.close(fd)

    def _failure(self) -> BaseException:
        """The same error for each reader, as an object of its own: a traceback belongs to one thread."""
        error = self._error
        assert error is not None
        with contextlib.suppress(Exception):
            import copy

            fresh = copy.copy(error)
            fresh.__cause__ = error
            return fresh
        return error


class _Growing(io.RawIOBase):
    def __init__(self, download: Download) -> None:
        self._download = download
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        with memoryview(buffer) as view, view.cast("B") as plain:
            count = self._download.read_at(plain, self._at)
        self._at += count
        return count


class Fetcher:
    """Fetches blobs from ``remotes``, the preferred one first, the registry itself last. A remote that fails is passed over for what is
    left of the blob; one that cannot be reached, for all others as well. ``doubted``: per digest, the remotes (by number) not to ask."""

    def __init__(
        self,
        store: Catalog,
        remotes: Sequence[RemoteRepository],
        *,
        pace: Pace | None = None,
        doubted: dict[Digest, set[int]] | None = None,
    ) -> None:
        self._store = store
        self._remotes = tuple(remotes)
        self._pace = pace or Pace()
        self._doubted = doubted or {}
        self._downloads: dict[Digest, Download] = {}
        self._queue: deque[Download] = deque()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._transfers: set[Transfer] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def add(self, entry: Descriptor, what: str, report: Callable[[int, int], None] | None = None) -> Download:
        """Fetch the blob when its turn comes; once, however often it is added."""
        with self._lock:
            known = self._downloads.get(entry.digest)
            if known is not None:
                return known
            download = self._downloads[entry.digest] = Download(entry, what, report)
            self._queue.append(download)
            if self._running < AT_ONCE:
                self._running += 1
                thread = threading.Thread(target=self._work, name="dockless-fetch", daemon=True)
                self._threads.append(thread)
                thread.start()
        return download

    def get(self, name: Digest) -> Download | None:
        return self._downloads.get(name)

    def close(self) -> None:
        """End every thread, promptly. Readers fail; files stay, to be gone on with."""
        self._stop.set()
        with self._lock:
            self._queue.clear()
            transfers, downloads, threads = list(self._transfers), list(self._downloads.values()), list(self._threads)
        for transfer in transfers:
            transfer.abort()
        for remote in self._remotes if transfers else ():
            remote.registry.abort()
        for download in downloads:
            download.close()
        until = time.monotonic() + _CLOSE_WAIT
        for thread in threads:
            # One that is just connecting cannot be woken; it ends by itself and finds out then.
            thread.join(max(0.0, until - time.monotonic()))

    # -- the threads -----------------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        busy = 0
        while True:
            with self._lock:
                if not self._queue or self._stop.is_set():
                    self._running -= 1
                    return
                download = self._queue.popleft()
            try:
                fetched = self._fetch(download)
            except BaseException as error:
                download.fail(error)
                fetched = True
            if fetched:
                busy = 0
                continue
            with self._lock:
                self._queue.append(download)
                busy += 1
                all_busy = busy >= len(self._queue)
            if all_busy:
                self._stop.wait(_BUSY_WAIT)

    def _fetch(self, download: Download) -> bool:
        """Bring one blob, or find it; False while somebody else is at it."""
        doing = f"{download.what}: cannot keep what is downloaded"
        with explained(doing, download.what, f"check that the image store {self._store.root} is on a writable file system with room"):
            if self._find(download):
                return True
            partial = Partial.take(spool_path(self._store, download.entry), download.size, self._pace.chunk)
            if partial is None:
                return False
            try:
                if self._find(download):  # it was finished and taken into the store just now
                    partial.discard()
                    return True
                download.follow(partial)
                if not partial.whole:
                    check_room(partial.fd, partial.size - partial.have, download.what)
                    self._fill(download, partial)
                    partial.finish()
                download.done()
                return True
            finally:
                partial.close()

    def _find(self, download: Download) -> bool:
        if not self._store.has_blob(download.digest):
            return False
        with self._store.open_blob(download.digest) as stream:
            download.whole(os.dup(stream.fileno()))
        return True

    def _fill(self, download: Download, partial: Partial) -> None:
        doubted = self._doubted.get(download.digest, set())
        last = len(self._remotes) - 1
        failure: ImageError | None = None
        for number, remote in enumerate(self._remotes):
            if number in doubted or (remote.lost and number != last):
                continue
            transfer = Transfer(remote, download.digest, partial, download.what, self._pace, self._stop, download.moved)
            before = partial.have
            with self._lock:
                self._transfers.add(transfer)
            try:
                transfer.run()
                return
            except BadDigest:
                download.sources.add(number)
                partial.discard()
                raise
            except RegistryError as error:
                failure = error
                if isinstance(error, NotFound):
                    if download.entry.foreign:
                        failure = _foreign(download, error)
                else:
                    remote.lost = True
            finally:
                if partial.have > before:
                    download.sources.add(number)
                with self._lock:
                    self._transfers.discard(transfer)
        raise failure or BadDigest(
            f"{download.what}: nobody has the right bytes",
            subject=str(download.digest),
            hint="the registry and its mirrors gave bytes that are not what the manifest says",
        )


def _foreign(download: Download, error: NotFound) -> BadImage:
    failure = BadImage(
        f"{download.what} is a foreign layer that the registry itself does not hold",
        subject=download.what,
        hint="dockless does not fetch from the addresses that such a layer names; push the image with its layers",
    )
    failure.__cause__ = error
    return failure
