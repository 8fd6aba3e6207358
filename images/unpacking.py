"""The two forms a layer can take in the store.

- **written**: its members as files of a directory. Works everywhere.
- **indexed**: its uncompressed tar as it is, and an EROFS index over it that the kernel mounts. Nothing is unpacked at all. For root, on a
  kernel that can.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dockless.errors import ImageError
from dockless.images.layer import Unpacked, unpack
from dockless.images.layers import Layer
from dockless.images.tarstream import TarReader

if TYPE_CHECKING:
    from dockless.images.store import Store


class Unpacking(Protocol):
    """A ``Sink`` for a layer's content. ``tar``: the kept archive, for the indexed form."""

    form: str
    tar: Path | None

    def feed(self, data: bytes) -> None: ...
    def abort(self) -> None: ...

    def look_below(self, lower: Sequence[Layer]) -> None:
        """The layers below, bottom first, are there now. From any thread."""

    def finish(self) -> Unpacked:
        """After all content: what came of it."""

    def close(self) -> None: ...


@contextlib.contextmanager
def unpacking(store: Store, scratch: Path, base: bool, what: str) -> Iterator[Unpacking]:
    """Make ``scratch/layer`` of the content that is fed. ``base``: there are no layers below."""
    (scratch / "layer").mkdir(mode=0o700)
    form = _Writing(store, scratch / "layer" / "fs", what)
    try:
        yield form
    finally:
        form.close()


class _Writing:
    form = "written"
    tar: Path | None = None

    def __init__(self, store: Store, root: Path, what: str) -> None:
        import queue

        root.mkdir(mode=0o700)
        self._queue: queue.Queue[bytes | None] = queue.Queue(8)
        self._below: Sequence[Layer] | None = None
        self._has_below = threading.Event()
        self._error: BaseException | None = None
        self._result: Unpacked | None = None
        self._args = (store, root, what)
        self._thread: threading.Thread | None = None
        self._ended = False

    def look_below(self, lower: Sequence[Layer]) -> None:
        self._below = lower
        self._has_below.set()

    def feed(self, data: bytes) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        if self._error is not None:
            raise self._error
        self._queue.put(data)

    def _run(self) -> None:
        store, root, what = self._args
        try:
            self._has_below.wait()
            if self._below is None:
                raise ImageError(f"{what}: given up")
            lower = [layer.path for layer in self._below]
            self._result = unpack(TarReader(io.BufferedReader(_Feed(self._queue)), what), root, lower, what, limits=store.limits)
        except BaseException as error:
            self._error = error
        while self._queue.get() is not None:
            pass

    def abort(self) -> None:
        self._has_below.set()

    def finish(self) -> Unpacked:
        self.feed(b"")
        self._ended = True
        self._queue.put(None)
        self._queue.put(None)
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def close(self) -> None:
        if self._thread is not None and not self._ended:
            self._ended = True
            self._has_below.set()
            self._queue.put(None)
            self._queue.put(None)
            self._thread.join()


class _Feed(io.RawIOBase):
    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = self._feed.get()
            if piece is None:
                return 0
            self._left = piece
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
