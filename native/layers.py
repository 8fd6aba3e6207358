"""Reading and writing layers in C, typed: tar archives are fed piece by piece, without holding the interpreter's lock.

Nothing here knows what an archive is called: a ``Fault`` says what went wrong, and the caller, in ``images``, of which archive.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator, Sequence

from dockless.base.dataclass import dataclass, field
from dockless.base.text import escaped
from dockless.base.typing import Any, Literal
from dockless.native import _extension

Kind = Literal["file", "hardlink", "symlink", "char", "block", "directory", "fifo"]
_KINDS: tuple[Kind, ...] = ("file", "hardlink", "symlink", "char", "block", "directory", "fifo")
_LISTED = struct.Struct("=IIIIqIIQQQIIIIII")
_PAIR = struct.Struct("=II")
_SEGMENT = struct.Struct("=QQ")

Data = bytes | bytearray | memoryview
TAR_BLOCK = 512
"""Bytes that everything in a tar archive is padded to."""


class Fault(Exception):
    """Why a layer cannot be read or written. ``kind``: ``malformed`` (no sound tar archive), ``wrong`` (its members contradict one
    another), ``unsafe`` (no honest tool makes it), ``limit``, ``room`` (``missing`` bytes, 0 where it is not bytes), ``system`` (see
    ``errno``; ``ECANCELED`` after an ``abort``), ``declined`` (sound, but not for this form of a layer)."""

    def __init__(self, kind: str, text: str, errno: int = 0, missing: int = 0) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.errno = errno
        self.missing = missing


_FAULTS = ("none", "malformed", "unsafe", "limit", "system", "declined", "wrong", "room")


def fault(error: Any) -> Fault:
    """The exception for a ``struct layer_error``."""
    return Fault(_FAULTS[error.fault], _text(error.text), error.number, error.missing)


def _text(raw: Any) -> str:
    """Words from C. Names in them are escaped as far as C knows letters; what is no printable letter in Unicode goes here."""
    text: str = _extension().ffi.string(raw).decode("utf-8", "backslashreplace")
    return escaped(text)


@dataclass(frozen=True, slots=True)
class UnpackedLayer:
    """What came of a layer: bytes of file content, members of the archive, and what could not be kept."""

    size: int
    entries: int
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Member:
    """One member. ``size`` is the file's length as it will be, ``stored`` the bytes of it in the archive, from ``offset``."""

    name: bytes
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    """Nanoseconds since 1970."""
    size: int = 0
    stored: int = 0
    offset: int = 0
    link: bytes = b""
    major: int = 0
    minor: int = 0
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    sparse: tuple[tuple[int, int], ...] | None = None
    """Data segments as (offset, length) in ascending order; None for an ordinary file."""


class TarLister:
    """The members of a tar archive that is fed: ``members`` grows, and the caller may empty it. At most ``members_max``: then it is
    ``full`` and reads no more."""

    def __init__(self, members_max: int) -> None:
        native = _extension()
        self._ffi, self._lib = native.ffi, native.lib
        raw = self._lib.lister_new(members_max)
        if raw == self._ffi.NULL:
            raise MemoryError
        self._lister = self._ffi.gc(raw, self._lib.lister_free)
        self.members: list[Member] = []
        self.full = False

    @property
    def left(self) -> int:
        """Data of the last member that has not been fed yet; who can seek may leave it out and call ``skip``."""
        return int(self._lib.lister_left(self._lister))

    @property
    def ended(self) -> bool:
        """Nothing that is still to come is looked at."""
        return bool(self._lib.lister_ended(self._lister))

    def feed(self, data: Data) -> None:
        """The next bytes of the archive. ``Fault`` where it is torn or ambiguous."""
        with self._ffi.from_buffer(data) as buffer:
            self._after(self._lib.lister_feed(self._lister, buffer, len(buffer)))

    def skip(self, size: int) -> None:
        self._after(self._lib.lister_skip(self._lister, size))

    def finish(self) -> None:
        """After the last byte: ``Fault`` if that was in the middle of a member."""
        self._after(self._lib.lister_finish(self._lister))

    def _after(self, result: int) -> None:
        self.full = result == 1
        pieces = self._ffi.new("void **")
        size = self._lib.lister_taken(self._lister, pieces)
        self.members.extend(_unpacked(bytes(self._ffi.buffer(pieces[0], size)) if size else b""))
        if result < 0:
            raise fault(self._lib.lister_error(self._lister))


def _unpacked(raw: bytes) -> Iterator[Member]:
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return raw[at - size : at]

    while at < len(raw):
        listed = _LISTED.unpack(take(_LISTED.size))
        kind, mode, uid, gid, seconds, nanoseconds, sparse, size, stored, offset = listed[:10]
        major, minor, name_size, link_size, xattr_count, segment_count = listed[10:]
        name, link = take(name_size), take(link_size)
        xattrs = {}
        for _ in range(xattr_count):
            key_size, value_size = _PAIR.unpack(take(_PAIR.size))
            key = take(key_size)
            xattrs[key] = take(value_size)
        segments = tuple(_SEGMENT.iter_unpack(take(segment_count * _SEGMENT.size)))
        mtime = seconds * 1_000_000_000 + nanoseconds
        found = segments if sparse else None
        yield Member(name, _KINDS[kind], mode, uid, gid, mtime, size, stored, offset, link, major, minor, xattrs, found)


class LayerWriter:
    """Writes the members of a tar archive that is fed into a directory, in the form overlayfs takes as a lower layer.

    ``target_fd``: a fresh directory that nobody else changes; duplicated, so the caller may close it. ``size_max``: bytes of content,
    ``entries_max``: members; ``reserve``: bytes of the file system that stay free, at most (on a small one a twentieth). ``feed``,
    ``finish`` and ``close`` exclude one another; ``set_lower`` and ``abort`` may be called from any thread at any time. ``Fault`` where
    something is wrong with the archive or the disk; the directory is then incomplete."""

    def __init__(self, target_fd: int, *, as_root: bool, size_max: int, entries_max: int, reserve: int) -> None:
        native = _extension()
        self._ffi, self._lib = native.ffi, native.lib
        raw = self._lib.writer_new(target_fd, as_root, size_max, entries_max, reserve)
        if raw == self._ffi.NULL:
            number: int = self._ffi.errno
            raise OSError(number, f"cannot start to write a layer: {os.strerror(number)}")
        self._writer = self._ffi.gc(raw, self._lib.writer_free)
        self._lock = threading.Lock()
        self._gate = threading.Lock()  # held for a moment by who may come from another thread, and by close

    def set_lower(self, fds: Sequence[int]) -> None:
        """The root directories of the layers below, top first; duplicated. Once. A writer that has to look below waits for this: for a
        parent or a hard link's target that its layer does not have, and at the end for whiteouts and the root's owner and mode."""
        with self._gate:
            result = self._lib.writer_set_lower(self._writer, list(fds), len(fds)) if self._writer is not None else 0
        if result < 0:
            raise OSError(-result, f"cannot take the layers below: {os.strerror(-result)}")

    def abort(self) -> None:
        """Wake a writer that waits; it fails, and so does everything after."""
        with self._gate:
            if self._writer is not None:
                self._lib.writer_abort(self._writer)

    def feed(self, data: Data) -> None:
        """The next bytes of the archive."""
        with self._lock, self._ffi.from_buffer(data) as buffer:
            self._after(self._lib.writer_feed(self._writer, buffer, len(buffer)))

    def finish(self) -> UnpackedLayer:
        """After the last byte: the layer is complete, though not yet flushed to the disk."""
        with self._lock:
            self._after(self._lib.writer_finish(self._writer))
            return UnpackedLayer(self._lib.writer_size(self._writer), self._lib.writer_entries(self._writer), self._warnings())

    def close(self) -> None:
        """Free descriptors and memory at once; only ``set_lower`` and ``abort`` may still be called, and do nothing."""
        with self._lock, self._gate:
            if self._writer is not None:
                self._ffi.release(self._writer)
                self._writer = None

    def _after(self, result: int) -> None:
        if result < 0:
            raise fault(self._lib.writer_error(self._writer))

    def _warnings(self) -> tuple[str, ...]:
        found: list[str] = []
        while (text := self._lib.writer_warning(self._writer, len(found))) != self._ffi.NULL:
            found.append(_text(text))
        return tuple(found)
