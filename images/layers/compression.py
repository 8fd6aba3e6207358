"""Decompression by magic bytes, never by media type: gzip, zstd, xz, bzip2, or none.

One reader serves all formats because their decompressors speak one protocol (``decompress(data, max_length)``, ``needs_input``,
``eof``, ``unused_data``). It handles members that follow one another (eStargz, pigz, zstd:chunked with its skippable frames), zero
padding behind the last one, and keeps memory bounded: one chunk in, one chunk out, a zstd window of 128 MiB, 256 MiB for xz (attack A12).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

from dockless.base.typing import Protocol
from dockless.errors import BadImage

CHUNK = 256 * 1024
ZSTD_WINDOW_LOG_MAX = 27
XZ_MEMORY_MAX = 256 << 20

_MAGICS = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
)
MAGIC_LENGTH = 6


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Decompressor(Protocol):
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


def detect(head: bytes) -> str:
    """``gzip``, ``zstd``, ``xz``, ``bzip2`` or ``none`` for a stream that starts with ``head``."""
    for magic, name in _MAGICS:
        if head.startswith(magic):
            return name
    # A skippable zstd frame may come first (0x184D2A50 … 5F, little endian).
    if len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50:
        return "zstd"
    return "none"


class Decompressed(io.RawIOBase):
    """The uncompressed bytes of ``raw``. ``kind`` says what the compression was; a torn or damaged stream is ``BadImage``."""

    def __init__(self, raw: Readable, what: str) -> None:
        self._raw = raw
        self._what = what
        self._pending = _read_some(raw, MAGIC_LENGTH)
        self.kind = detect(self._pending)
        self._new = _factory(self.kind) if self.kind != "none" else None
        self._inner: _Decompressor | None = self._new() if self._new else None
        self._padding = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, and never more than ``CHUNK``, which a ``size`` below 1 means too. Empty at the end."""
        size = CHUNK if size < 1 else min(size, CHUNK)
        if self._inner is None:
            if self._pending:
                data, self._pending = self._pending[:size], self._pending[size:]
                return data
            return b"" if self._new else self._raw.read(size)
        return self._decompress(size)

    def _decompress(self, size: int) -> bytes:
        while self._inner is not None:
            inner = self._inner
            if inner.eof:
                if not self._next_member(inner.unused_data):
                    break
                continue
            feed = b""
            if inner.needs_input:
                feed = self._pending or self._raw.read(CHUNK)
                self._pending = b""
                if not feed:
                    raise self._torn("it ends in the middle of the compressed stream")
            try:
                data = inner.decompress(feed, size)
            except MemoryError:
                raise
            except Exception as error:  # isal, zstd, lzma and bz2 each raise a class of their own
                raise self._torn(str(error)) from error
            if data:
                return data
        return b""

    def _next_member(self, left: bytes) -> bool:
        """After the end of one member: start the next, or stop at the end or at zero padding."""
        assert self._new is not None
        left = left.lstrip(b"\0")
        while not left:
            left = self._raw.read(CHUNK)
            if not left:
                self._inner = None
                return False
            left = left.lstrip(b"\0")
        if len(left) < MAGIC_LENGTH:
            left += _read_some(self._raw, MAGIC_LENGTH - len(left))
        if detect(left) != self.kind:
            raise self._torn("something that is not compressed data follows it")
        self._pending = left
        self._inner = self._new()
        return True

    def _torn(self, why: str) -> BadImage:
        return BadImage(f"{self._what}: damaged {self.kind} data: {why}", subject=self._what, hint="fetch or build the image again")


def _read_some(raw: Readable, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = raw.read(size - len(data))
        if not more:
            break
        data += more
    return data


def _factory(kind: str) -> Callable[[], _Decompressor]:
    """A maker of decompressors; the library is imported here, not before it is needed."""
    if kind == "gzip":
        from isal import igzip_lib

        return lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    if kind == "zstd":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX}
        return lambda: zstd.ZstdDecompressor(options=options)
    if kind == "xz":
        import lzma

        return lambda: lzma.LZMADecompressor(memlimit=XZ_MEMORY_MAX)
    import bz2

    return bz2.BZ2Decompressor
