"""A reproducible tar writer: the same members give the same bytes, whoever writes them, wherever.

The format is ustar, with a PAX header in front of a member that ustar cannot hold: long or non-ASCII names, large numbers, nanoseconds,
extended attributes (``SCHILY.xattr.*``, raw bytes, which is what every reader of layers takes). Owners have numbers and no names, there are
no access times, and the end is two zero blocks. A name that is not UTF-8 stands raw where ustar holds it, as GNU tar writes it, and
otherwise in a PAX header that says so (``hdrcharset=BINARY``).

Holes: a file is written with its zeros, so that its bytes do not depend on where it lay, unless the holes make up ``SPARSE_MIN`` or more.
Then it becomes a PAX 1.0 sparse member: nobody wants to wait for a terabyte of zeros, and all readers understand it.

https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html, https://www.gnu.org/software/tar/manual/html_node/PAX-1.html
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping

from dockless.base.dataclass import dataclass, field
from dockless.base.typing import Protocol

BLOCK = 512
SPARSE_MIN = 16 << 20
"""Bytes of holes from which a file is written as a sparse one."""
_PIECE = 1 << 20
_BUFFER = 256 << 10
_HEADER = struct.Struct("100s8s8s8s12s12s8s1s100s8s32s32s8s8s155s12x")
_ID_MAX = 0o7777777
_LONG_MAX = 0o77777777777
_NAME, _PREFIX = 100, 155

FILE, HARDLINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"


class Writable(Protocol):
    def write(self, data: bytes, /) -> object: ...


@dataclass(slots=True)
class TarMember:
    """One member. ``name`` without a leading or trailing slash, empty for the root. ``mtime``: nanoseconds since 1970. ``size``: bytes of a
    file as a reader sees it. ``sparse``: its data as (offset, length), ascending, where it has holes worth telling."""

    name: bytes
    kind: bytes = FILE
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    link: bytes = b""
    major: int = 0
    minor: int = 0
    xattrs: Mapping[bytes, bytes] = field(default_factory=dict)
    sparse: tuple[tuple[int, int], ...] | None = None


class TarWriter:
    """``add`` a member, for a file ``write`` its bytes or ``copy`` them from a descriptor, at last ``finish``. Small pieces are gathered
    before they go to ``out``."""

    def __init__(self, out: Writable) -> None:
        self._out = out
        self._buffer = bytearray()
        self._left = 0
        self._padding = 0
        self.written = 0
        """Bytes so far."""

    def add(self, entry: TarMember, data: bytes | None = None) -> None:
        """The header of a member; the last one's data must be complete. ``data``: a file's bytes in one piece."""
        assert not self._left, "the last member's data is not complete"
        self._pad()
        name = entry.name + b"/" if entry.kind == DIRECTORY and entry.name else entry.name or b"./"
        records: dict[bytes, bytes] = {}
        stored, plan = entry.size if entry.kind == FILE else 0, b""
        if entry.sparse is not None:
            plan = _sparse_map(entry.sparse)
            stored = len(plan) + sum(length for _, length in entry.sparse)
            records |= {
                b"GNU.sparse.major": b"1",
                b"GNU.sparse.minor": b"0",
                b"GNU.sparse.name": name,
                b"GNU.sparse.realsize": b"%d" % entry.size,
            }
            name = b"GNUSparseFile.0/" + name
        short, prefix = _split(name, records, b"path")
        link = entry.link
        if not _plain(link) or len(link) > _NAME:
            records[b"linkpath"] = link
            link = link[:_NAME]
        if records and any(not _is_utf8(records[key]) for key in (b"path", b"linkpath", b"GNU.sparse.name") if key in records):
            records[b"hdrcharset"] = b"BINARY"
        size = _fit(stored, _LONG_MAX, records, b"size")
        uid = _fit(entry.uid, _ID_MAX, records, b"uid")
        gid = _fit(entry.gid, _ID_MAX, records, b"gid")
        seconds, rest = divmod(entry.mtime, 1_000_000_000)
        if rest or not 0 <= seconds <= _LONG_MAX:
            records[b"mtime"] = _time(entry.mtime)
            seconds = min(max(seconds, 0), _LONG_MAX)
        for key, value in entry.xattrs.items():
            records[b"SCHILY.xattr." + key] = value
        if records:
            self._extended(records)
        self._put(_header(short, entry.mode, uid, gid, size, seconds, entry.kind, link, entry.major, entry.minor, prefix))
        self._left, self._padding = stored, -stored % BLOCK
        if plan:
            self.write(plan)
        if data is not None:
            self.write(data)

    def write(self, data: bytes) -> None:
        """Some of the current member's bytes."""
        assert len(data) <= self._left, "more data than the header says"
        self._left -= len(data)
        self._put(data)

    def copy(self, fd: int, pieces: Iterable[tuple[int, int]]) -> bool:
        """The data of the member just added: ``pieces`` (offset, length) of a file. False if that is shorter: zeros are in the place of
        the rest."""
        whole = True
        for offset, length in pieces:
            end = offset + length
            while offset < end:
                piece = os.pread(fd, min(_PIECE, end - offset), offset)
                if not piece:
                    whole = False
                    piece = bytes(min(_PIECE, end - offset))
                self.write(piece)
                offset += len(piece)
        return whole

    def finish(self) -> None:
        """The end of the archive; ``out`` is left open."""
        assert not self._left, "the last member's data is not complete"
        self._pad()
        self._put(bytes(2 * BLOCK))
        self._flush()

    def _extended(self, records: dict[bytes, bytes]) -> None:
        content = b"".join(_record(key, value) for key, value in records.items())
        self._put(_header(b"././@PaxHeader", 0o644, 0, 0, len(content), 0, b"x", b"", 0, 0, b""))
        self._put(content)
        self._put(bytes(-len(content) % BLOCK))

    def _pad(self) -> None:
        self._put(bytes(self._padding))
        self._padding = 0

    def _put(self, data: bytes) -> None:
        self.written += len(data)
        if len(data) >= _BUFFER:
            self._flush()
            self._out.write(data)
        else:
            self._buffer += data
            if len(self._buffer) >= _BUFFER:
                self._flush()

    def _flush(self) -> None:
        if self._buffer:
            self._out.write(bytes(self._buffer))
            self._buffer.clear()


def segments(fd: int, info: os.stat_result) -> tuple[tuple[int, int], ...] | None:
    """Where the data of a regular file lies, if it has holes of ``SPARSE_MIN`` bytes or more together; else None. lseek(2), SEEK_DATA"""
    if info.st_size - info.st_blocks * 512 < SPARSE_MIN:
        return None
    found: list[tuple[int, int]] = []
    at = 0
    while at < info.st_size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            break
        if start >= info.st_size:
            break
        at = min(os.lseek(fd, start, os.SEEK_HOLE), info.st_size)
        found.append((start, at - start))
    if info.st_size - sum(length for _, length in found) < SPARSE_MIN or len(found) > 60_000:
        return None
    # A reader learns the size from the last piece too, so the map ends there, as GNU tar's does.
    return (*found, (info.st_size, 0))


def _header(
    name: bytes, mode: int, uid: int, gid: int, size: int, mtime: int, kind: bytes, link: bytes, major: int, minor: int, prefix: bytes
) -> bytes:
    device = kind in (CHAR, BLOCK_DEVICE)
    fields = [
        name, b"%07o" % mode, b"%07o" % uid, b"%07o" % gid, b"%011o" % size, b"%011o" % mtime, b" " * 8, kind, link, b"ustar\x0000", b"",
        b"", b"%07o" % major if device else b"", b"%07o" % minor if device else b"", prefix,
    ]  # fmt: skip
    fields[6] = b"%06o\0 " % sum(_HEADER.pack(*fields))
    return _HEADER.pack(*fields)


def _split(name: bytes, records: dict[bytes, bytes], key: bytes) -> tuple[bytes, bytes]:
    """Name and prefix as ustar has them; where they do not fit, a record, and something to look at."""
    if _plain(name):
        if len(name) <= _NAME:
            return name, b""
        at = name.rfind(b"/", 0, _PREFIX + 1)
        if at > 0 and 0 < len(name) - at - 1 <= _NAME:
            return name[at + 1 :], name[:at]
    records[key] = name
    return name[:_NAME], b""


def _plain(name: bytes) -> bool:
    """Fit for a ustar field: ASCII, or bytes that no record could hold as text."""
    return name.isascii() or not _is_utf8(name)


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fit(value: int, limit: int, records: dict[bytes, bytes], key: bytes) -> int:
    if value <= limit:
        return value
    records[key] = b"%d" % value
    return 0


def _time(value: int) -> bytes:
    """Seconds as a decimal number, sign and magnitude."""
    seconds, rest = divmod(abs(value), 1_000_000_000)
    text = b"%s%d" % (b"-" if value < 0 else b"", seconds)
    return text + b"." + (b"%09d" % rest).rstrip(b"0") if rest else text


def _record(key: bytes, value: bytes) -> bytes:
    """``"<length> <key>=<value>\\n"``; the length counts itself."""
    rest = len(key) + len(value) + 3
    size = rest + len(str(rest))
    if len(str(size)) != len(str(rest)):
        size += 1
    return b"%d %s=%s\n" % (size, key, value)


def _sparse_map(found: tuple[tuple[int, int], ...]) -> bytes:
    """Decimal lines in front of the data, in whole blocks."""
    text = b"%d\n" % len(found) + b"".join(b"%d\n%d\n" % segment for segment in found)
    return text + bytes(-len(text) % BLOCK)
