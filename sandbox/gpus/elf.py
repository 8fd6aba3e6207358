"""What an ELF file says of itself: its class, its SONAME, one note of it. elf(5)

Files of images are read with this, too: every number in them is checked against the file, and what makes no sense is ``ValueError``.
"""

from __future__ import annotations

import os
import struct

from dockless.base.dataclass import dataclass

_HEADER = {32: struct.Struct("<HHIIIIIHHHHHH"), 64: struct.Struct("<HHIQQQIHHHHHH")}
_SEGMENT = {32: struct.Struct("<IIIIIIII"), 64: struct.Struct("<IIQQQQQQ")}
_SECTION = {32: struct.Struct("<IIIIIIIIII"), 64: struct.Struct("<IIQQQQIIQQ")}
_DYNAMIC = {32: struct.Struct("<iI"), 64: struct.Struct("<qQ")}
_LOAD, _DYNAMIC_SEGMENT = 1, 2
_STRING_TABLE, _SONAME = 5, 14
_MOST_HEADERS = 512
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Elf:
    """``bits``: 32 or 64. ``soname``: "" where it has none."""

    bits: int
    soname: str


def read(fd: int) -> Elf:
    """Class and SONAME of the little-endian ELF file that is open at ``fd``. ``ValueError`` for anything else."""
    bits, header = _header(fd)
    segments = []
    for offset in _table(header[4], header[8], header[9], _SEGMENT[bits].size):
        fields = _SEGMENT[bits].unpack(_exactly(fd, _SEGMENT[bits].size, offset))
        if bits == 64:
            kind, _, at, address, _, size = fields[:6]
        else:
            kind, at, address, _, size = fields[:5]
        segments.append((kind, at, address, size))
    dynamic = next((segment for segment in segments if segment[0] == _DYNAMIC_SEGMENT), None)
    if dynamic is None:
        return Elf(bits, "")
    entry = _DYNAMIC[bits]
    raw = _exactly(fd, min(dynamic[3], _MOST_BYTES) // entry.size * entry.size, dynamic[1])
    tags = dict(reversed(list(entry.iter_unpack(raw))))  # the first of each counts
    if _SONAME not in tags or _STRING_TABLE not in tags:
        return Elf(bits, "")
    for kind, at, address, size in segments:
        if kind == _LOAD and address <= tags[_STRING_TABLE] < address + size:
            name = _at_most(fd, 256, at + tags[_STRING_TABLE] - address + tags[_SONAME])
            return Elf(bits, name.partition(b"\0")[0].decode("ascii"))
    raise ValueError("its string table lies in no segment")


def note(fd: int, section: str) -> bytes | None:
    """The first note of the section of this name; None where there is none. ``ValueError``"""
    bits, header = _header(fd)
    kind = _SECTION[bits]
    offsets = _table(header[5], header[10], header[11], kind.size)
    sections = [kind.unpack(_exactly(fd, kind.size, offset)) for offset in offsets]
    if header[12] >= len(sections):
        return None
    names = _exactly(fd, min(sections[header[12]][5], _MOST_BYTES), sections[header[12]][4])
    for fields in sections:
        if names[fields[0] :].partition(b"\0")[0] == section.encode():
            raw = _exactly(fd, min(fields[5], _MOST_BYTES), fields[4])
            name_size, size = struct.unpack_from("<II", raw) if len(raw) >= 12 else (0, 0)
            start = 12 + (name_size + 3 & ~3)
            return raw[start : start + size]
    return None


def _header(fd: int) -> tuple[int, tuple[int, ...]]:
    identity = _exactly(fd, 16, 0)
    if identity[:4] != b"\x7fELF" or identity[4] not in (1, 2) or identity[5] != 1:
        raise ValueError("no little-endian ELF file")
    bits = 32 * identity[4]
    return bits, _HEADER[bits].unpack(_exactly(fd, _HEADER[bits].size, 16))


def _table(start: int, size: int, count: int, expected: int) -> list[int]:
    if count and size != expected:
        raise ValueError("its headers have another size")
    return [start + index * size for index in range(min(count, _MOST_HEADERS))]


def _exactly(fd: int, size: int, offset: int) -> bytes:
    data = _at_most(fd, size, offset)
    if len(data) != size:
        raise ValueError("it is shorter than it says")
    return data


def _at_most(fd: int, size: int, offset: int) -> bytes:
    try:
        return os.pread(fd, size, offset)
    except (OSError, OverflowError) as error:
        raise ValueError("an offset in it leads nowhere") from error
