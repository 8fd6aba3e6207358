"""``/etc/ld.so.cache`` read and written, so that no ``ldconfig`` runs over an image (decision 104).

The format is that of glibc's ``elf/dl-cache.h``: a header, entries sorted for a binary search, their strings, extensions. Before glibc
2.32 an older table stood in front of it; what is written here has none, which every glibc since 2.2 reads.

An image's file is anybody's bytes: every offset is checked, and a file that makes no sense is ``ValueError``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from dockless.base.dataclass import dataclass

PATH = "/etc/ld.so.cache"
SIZE_MAX = 1 << 20
"""Bytes of such a file that are read. A large distribution has 200 KiB."""
LIBC6 = 0x3
X86_64, AARCH64 = 0x0300, 0x0A00

_OLD_MAGIC, _MAGIC = b"ld.so-1.7.0", b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = struct.Struct("<12xI"), 12
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_EXTENSION, _SECTION = struct.Struct("<II"), struct.Struct("<IIII")
_EXTENSION_MAGIC, _GENERATOR, _HWCAPS = 0xEAA42174, 0, 1
_LITTLE_ENDIAN = 2
_MOST_ENTRIES, _MOST_BYTES = 50_000, 8 << 20
_DIGITS = re.compile("[0-9]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """The library ``name`` (its SONAME) is at ``path``. ``flags``: what it is for; ``hwcap``: what the processor must have."""

    name: bytes
    path: bytes
    flags: int
    hwcap: int = 0


@dataclass(frozen=True, slots=True)
class Cache:
    """``hwcaps``: names of the directories below glibc-hwcaps; an entry's ``hwcap`` may be an index into them."""

    entries: tuple[Entry, ...] = ()
    hwcaps: tuple[bytes, ...] = ()


def parse(data: bytes) -> Cache:
    """The content of such a file. ``ValueError``"""
    try:
        return _parse(data)
    except (struct.error, IndexError) as error:
        raise ValueError(f"no cache of the dynamic linker: {error}") from error


def _parse(data: bytes) -> Cache:
    start = 0
    if data.startswith(_OLD_MAGIC):
        (count,) = _OLD_HEADER.unpack_from(data)
        start = _OLD_HEADER.size + count * _OLD_ENTRY + 7 & ~7
    magic, count, _, order, extension = _HEADER.unpack_from(data, start)
    if magic != _MAGIC or order & 3 not in (0, _LITTLE_ENDIAN):
        raise ValueError("no cache of the dynamic linker: its magic is another")
    table = start + _HEADER.size
    if count * _ENTRY.size > len(data) - table or count > _MOST_ENTRIES:
        raise ValueError("no cache of the dynamic linker: it has fewer entries than it says, or too many")
    entries, size = [], 0
    for flags, key, value, _, hwcap in _ENTRY.iter_unpack(data[table : table + count * _ENTRY.size]):
        entry = Entry(_string(data, start + key), _string(data, start + value), flags, hwcap)
        entries.append(entry)
        size += len(entry.name) + len(entry.path)
        if size > _MOST_BYTES:  # entries may share their strings
            raise ValueError("no cache of the dynamic linker: its names are too long")
    return Cache(tuple(entries), _hwcaps(data, extension) if extension else ())


def _hwcaps(data: bytes, extension: int) -> tuple[bytes, ...]:
    magic, count = _EXTENSION.unpack_from(data, extension)
    if magic != _EXTENSION_MAGIC:
        raise ValueError("no cache of the dynamic linker: its extension is another")
    for index in range(min(count, 16)):
        tag, _, offset, size = _SECTION.unpack_from(data, extension + _EXTENSION.size + index * _SECTION.size)
        if tag == _HWCAPS:
            if size % 4 or size > 4096 or offset + size > len(data):
                raise ValueError("no cache of the dynamic linker: its extension is broken")
            return tuple(_string(data, at) for (at,) in struct.iter_unpack("<I", data[offset : offset + size]))
    return ()


def _string(data: bytes, offset: int) -> bytes:
    end = data.index(b"\0", offset, offset + 4096) if offset < len(data) else -1
    if end < 0:
        raise ValueError("no cache of the dynamic linker: a string lies outside")
    return data[offset:end]


def merged(cache: Cache, ours: Iterable[Entry]) -> Cache:
    """``cache`` with our entries in place of its own of the same names, for the same kind of program."""
    ours = tuple(ours)
    replaced = {(entry.name, entry.flags & 0xFF00) for entry in ours}
    kept = (entry for entry in cache.entries if (entry.name, entry.flags & 0xFF00) not in replaced)
    return Cache((*ours, *kept), cache.hwcaps)


def encode(cache: Cache) -> bytes:
    """The file."""
    entries = sorted(cache.entries, key=lambda entry: (_order(entry.name), entry.flags), reverse=True)
    strings = bytearray()
    places: dict[bytes, int] = {}
    base = _HEADER.size + len(entries) * _ENTRY.size

    def place(text: bytes) -> int:
        if text not in places:
            places[text] = base + len(strings)
            strings.extend(text + b"\0")
        return places[text]

    table = b"".join(_ENTRY.pack(entry.flags, place(entry.name), place(entry.path), 0, entry.hwcap) for entry in entries)
    names = b"".join(struct.pack("<I", place(name)) for name in cache.hwcaps)
    length = len(strings)
    strings.extend(bytes(-(base + length) % 4))
    extension = base + len(strings)
    generator = b"dockless"
    at = extension + _EXTENSION.size + 2 * _SECTION.size
    tail = _EXTENSION.pack(_EXTENSION_MAGIC, 2) + _SECTION.pack(_GENERATOR, 0, at + len(names), len(generator))
    tail += _SECTION.pack(_HWCAPS, 0, at, len(names)) + names + generator
    return _HEADER.pack(_MAGIC, len(entries), length, _LITTLE_ENDIAN, extension) + table + strings + tail


def _order(name: bytes) -> str:
    """How the linker compares names: digits as a number, and above everything else. ``_dl_cache_libcmp`` in glibc's elf/dl-cache.c"""
    return _DIGITS.sub(_number, name.decode("latin-1"))


def _number(found: re.Match[str]) -> str:
    digits = found[0].lstrip("0")
    return f"\U0010ffff{chr(len(digits))}{digits}"
