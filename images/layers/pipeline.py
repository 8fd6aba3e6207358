"""One layer's way from a blob's bytes to a place in the store, on three threads that all work outside the interpreter's lock.

::

    read ─► hash (blob) ─► keep ─► decompress ─┬─► hash (diff_id)
                                               └─► unpack, or keep the tar and index it

The blob is hashed while it passes, so nothing of it is believed before all of it has been seen: what came out is in a private directory
until ``Pipeline.run`` returns. Where something goes wrong in the middle, the rest of the blob is still read: damaged bytes are reported as
``BadDigest`` rather than as whatever they broke. Memory is bounded by the queues between the threads.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any, BinaryIO, Protocol
from dockless.errors import BadDigest, BadImage, DocklessError, ImageError, UnsafeLayer
from dockless.images.files import check_room
from dockless.images.layers.compression import CHUNK, Decompressed
from dockless.images.layers.limits import UnpackLimits
from dockless.images.model import digest, manifest
from dockless.images.model.digest import Digest

_TELL = 1 << 20
_ROOM = 64 << 20
_DEPTH = 8
_SUFFIX = {"none": "", "gzip": "+gzip", "zstd": "+zstd", "xz": "+xz", "bzip2": "+bzip2"}


@dataclass(frozen=True, slots=True)
class LayerSource:
    """A layer as the source has it. ``digest`` and ``size`` are None where the source does not say them (docker-save). ``spool``: a file of
    the store that holds the blob's bytes once ``open()`` has given all of them; it becomes the store's blob. ``cancel``: makes a ``read``
    of the opened stream that waits on another thread fail."""

    open: Callable[[], BinaryIO]
    digest: Digest | None
    size: int | None
    what: str
    spool: Path | None = None
    cancel: Callable[[], None] | None = None


class GivenUp(ImageError):
    """Given up because something else failed; nobody outside this package sees it."""


class Sink(Protocol):
    """Where the uncompressed bytes go. Its methods are called from one thread of its own, ``abort`` from any."""

    def feed(self, data: bytes) -> None: ...
    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Passed:
    """What went through. ``blob``: its digest, computed; ``kind``: the compression it had."""

    blob: Digest
    size: int
    kind: str

    @property
    def media_type(self) -> str:
        return manifest.OCI_LAYER + _SUFFIX[self.kind]


class Pipeline:
    """``keep``: a descriptor that gets a copy of the blob, -1 for none. ``sinks``: each gets all the content, on a thread of its own."""

    def __init__(
        self,
        source: LayerSource,
        diff_id: Digest,
        limits: UnpackLimits,
        sinks: list[Sink],
        tell: Callable[[int], None],
        keep: int = -1,
    ) -> None:
        self._source = source
        self._diff_id = diff_id
        # Room for headers and padding beside the content; a stream of zeros behind the end of the archive ends here too (attack A12).
        self._most = limits.size + 4096 * limits.entries
        self._sinks = sinks
        self._tell = tell
        self._keep = keep
        self._stopped = threading.Event()

    def abort(self) -> None:
        """Make a ``run`` on another thread fail soon."""
        self._stopped.set()
        for sink in self._sinks:
            sink.abort()

    def run(self, stream: BinaryIO) -> Passed:
        """Send all of ``stream`` through; afterwards both digests and the size have been checked. Raises ``BadDigest``, ``BadImage``,
        ``UnsafeLayer``, ``ImageError``."""
        blob = _Blob(stream, self._source, self._keep, self._tell)
        content = Decompressed(blob, self._source.what)
        hashing = _Hashing(self._diff_id)
        branches = [_Branch(sink, self._stopped) for sink in [hashing, *self._sinks]]
        try:  # the threads start in here, so that a Ctrl-C at any moment ends them
            for branch in branches:
                branch.start()
            failure = self._pump(content, branches)
        finally:
            for branch in branches:
                branch.close()
        failure = next((branch.failure for branch in branches if branch.failure is not None), failure)
        if failure is not None:
            blob.blame(failure)
            raise failure
        if self._stopped.is_set():
            raise GivenUp(f"{self._source.what}: given up", subject=self._source.what)
        blob.check()
        digest.verdict(hashing.digest(), self._diff_id, f"{self._source.what}: uncompressed content")
        return Passed(blob.digest(), blob.done, content.kind)

    def _pump(self, content: Decompressed, branches: list[_Branch]) -> BaseException | None:
        done = 0
        try:
            while not self._stopped.is_set() and (piece := content.read(CHUNK)):
                done += len(piece)
                if done > self._most:
                    raise ImageError(
                        f"{self._source.what} decompresses to too much",
                        subject=self._source.what,
                        hint="raise the limits of the store if you trust it",
                    )
                for branch in branches:
                    branch.put(piece)
        except (DocklessError, OSError) as error:
            self._stopped.set()
            return error
        return None


class _Branch:
    """A thread that feeds one sink from a bounded queue. After a failure it goes on emptying the queue, so that nobody waits for it."""

    def __init__(self, sink: Sink, stopped: threading.Event) -> None:
        from queue import Queue

        self.failure: BaseException | None = None
        self._sink = sink
        self._stopped = stopped
        self._queue: Queue[bytes | None] = Queue(_DEPTH)
        self._thread = threading.Thread(target=self._feed, name="dockless-layer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, piece: bytes) -> None:
        self._queue.put(piece)

    def close(self) -> None:
        self._queue.put(None)
        with contextlib.suppress(RuntimeError):  # not started, or a Ctrl-C came while it was: then it ends by itself
            self._thread.join()

    def _feed(self) -> None:
        while (piece := self._queue.get()) is not None:
            if self.failure is None:
                try:
                    self._sink.feed(piece)
                except BaseException as error:
                    self.failure = error
                    self._stopped.set()


class _Hashing:
    def __init__(self, name: Digest) -> None:
        self._algorithm = name.algorithm
        self._hash = name.hasher()

    def feed(self, data: bytes) -> None:
        self._hash.update(data)

    def abort(self) -> None: ...

    def digest(self) -> Digest:
        return Digest(self._algorithm, self._hash.hexdigest())


class _Blob:
    """The blob as it passes: hashed, counted, kept, never more of it than was announced."""

    def __init__(self, raw: BinaryIO, source: LayerSource, keep: int, tell: Callable[[int], None]) -> None:
        self._raw = raw
        self._source = source
        self._expected = source.digest
        self._algorithm = source.digest.algorithm if source.digest is not None else "sha256"
        self._hash: Any = Digest(self._algorithm, "").hasher()
        self._keep = keep
        self._tell = tell
        self._told = 0
        self._room = 0
        self.done = 0

    def read(self, size: int) -> bytes:
        data = self._raw.read(size)
        self._hash.update(data)
        self.done += len(data)
        if self._source.size is not None and self.done > self._source.size:
            raise BadDigest(f"{self._source.what} has more than the expected {self._source.size} bytes", subject=str(self._expected))
        if self._keep >= 0:
            self._copy(data)
        if self.done >= self._told + _TELL:
            self._told = self.done
            self._tell(self.done)
        return data

    def _copy(self, data: bytes) -> None:
        if self.done >= self._room:
            check_room(self._keep, len(data), self._source.what)
            self._room = self.done + _ROOM
        view = memoryview(data)
        while view:
            view = view[os.write(self._keep, view) :]

    def digest(self) -> Digest:
        return Digest(self._algorithm, self._hash.hexdigest())

    def check(self) -> None:
        """Read what is left; ``BadDigest`` unless it is what was announced."""
        while self.read(CHUNK):
            pass
        if self._expected is not None:
            digest.verdict(self.digest(), self._expected, self._source.what)
        if self._source.size is not None and self.done != self._source.size:
            raise BadDigest(f"{self._source.what} has {self.done} bytes, expected {self._source.size}", subject=str(self._expected))

    def blame(self, error: BaseException) -> None:
        """After ``error``: raise ``BadDigest`` instead if the blob's bytes are not what they should be."""
        if self._expected is not None and isinstance(error, (BadImage, UnsafeLayer)):
            self._keep = -1
            try:
                self.check()
            except BadDigest as cause:
                raise cause from error
