"""Compression on the way out: bytes go in, are hashed, compressed on a thread of their own, hashed again, and written.

gzip is ISA-L's for levels 1 to 3 (some six times as fast as zlib at the same size) and zlib's above; zstd is one frame with a checksum. The
gzip header is fixed: no time, no name, no operating system. So the same bytes, level and library give the same blob; what they decompress
to, the diff id, depends on the bytes alone.

https://www.rfc-editor.org/rfc/rfc1952, https://www.rfc-editor.org/rfc/rfc8878
"""

from __future__ import annotations

import struct
import sys
import threading

from dockless.base.dataclass import dataclass
from dockless.base.typing import Any, Literal, Protocol
from dockless.errors import BadInput
from dockless.images.archive.tarwriter import Writable
from dockless.images.files import check_room
from dockless.images.model.digest import Digest

Compression = Literal["none", "gzip", "zstd"]
SUFFIX = {"none": "", "gzip": "+gzip", "zstd": "+zstd"}
"""Of a layer's media type."""
_LEVELS = {"none": (0, 0, 0), "gzip": (1, 2, 9), "zstd": (1, 3, 19)}
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_DEPTH = 16
_ROOM = 64 << 20


class _Compressor(Protocol):
    def compress(self, data: bytes) -> bytes: ...
    def flush(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Packed:
    """What came of it: the digests of what went in (``diff_id``) and of what came out, and how many bytes each has."""

    diff_id: Digest
    content: int
    digest: Digest
    size: int


def check_level(compression: str, level: int | None) -> int:
    """The level, or the default one; ``BadInput`` for a compression or a level that there is not."""
    if compression not in _LEVELS:
        raise BadInput(f"there is no compression {compression!r}", subject=compression, hint=f"one of {', '.join(_LEVELS)}")
    low, usual, high = _LEVELS[compression]
    if level is None:
        return usual
    if not low <= level <= high:
        raise BadInput(f"{compression} has no level {level}", subject=str(level), hint=f"levels go from {low} to {high}")
    return level


class Packer:
    """An output that compresses into ``out``. ``close`` must be called; after a failure, ``abort``. ``room``: a descriptor on the file
    system that it fills, which must keep its reserve. ``what``: for errors."""

    def __init__(
        self, out: Writable, compression: Compression = "gzip", level: int | None = None, *, room: int = -1, what: str = ""
    ) -> None:
        from queue import Queue

        self._out = out
        self._compressor = _compressor(compression, check_level(compression, level))
        self._room_fd = room
        self._what = what
        self._next_room = 0
        self._content = Digest("sha256", "").hasher()
        self._blob = Digest("sha256", "").hasher()
        self._taken = self._given = 0
        self._failure: BaseException | None = None
        self._queue: Queue[bytes | None] = Queue(_DEPTH)
        self._thread = threading.Thread(target=self._run, name="dockless-pack", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """More content. Raises what went wrong with earlier bytes."""
        if self._failure is not None:
            raise self._failure
        self._taken += len(data)
        self._queue.put(data)
        self._content.update(data)

    def close(self) -> Packed:
        """All content has been given: wait until it is written."""
        self.abort()
        if self._failure is not None:
            raise self._failure
        return Packed(
            Digest("sha256", self._content.hexdigest()), self._taken, Digest("sha256", self._blob.hexdigest()), self._given
        )  # fmt: skip

    def abort(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            if self._failure is None:
                try:
                    self._give(self._compressor.compress(data))
                except BaseException as error:
                    self._failure = error
        if self._failure is None:
            try:
                self._give(self._compressor.flush())
            except BaseException as error:
                self._failure = error

    def _give(self, data: bytes) -> None:
        if not data:
            return
        self._given += len(data)
        if self._room_fd >= 0 and self._given >= self._next_room:
            check_room(self._room_fd, len(data), self._what)
            self._next_room = self._given + _ROOM
        self._blob.update(data)
        self._out.write(data)


def _compressor(compression: str, level: int) -> _Compressor:
    """A maker of compressed bytes; the library is imported here, not before it is needed."""
    if compression == "none":
        return _Plain()
    if compression == "gzip":
        return _Gzip(level)
    zstd: Any
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    options = {zstd.CompressionParameter.compression_level: level, zstd.CompressionParameter.checksum_flag: 1}
    return zstd.ZstdCompressor(options=options)  # type: ignore[no-any-return]


class _Plain:
    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


class _Gzip:
    """One member, with a header and a trailer of our own: the libraries' differ."""

    def __init__(self, level: int) -> None:
        library: Any
        if level <= 3:
            from isal import isal_zlib as library
        else:
            import zlib as library
        self._inner: Any = library.compressobj(level, 8, -15)
        self._crc32 = library.crc32
        self._sum = 0
        self._size = 0
        self._start = _GZIP_HEADER

    def compress(self, data: bytes) -> bytes:
        self._sum = self._crc32(data, self._sum)
        self._size += len(data)
        start, self._start = self._start, b""
        made: bytes = self._inner.compress(data)
        return start + made

    def flush(self) -> bytes:
        start, self._start = self._start, b""
        made: bytes = self._inner.flush()
        return start + made + struct.pack("<II", self._sum, self._size & 0xFFFFFFFF)
