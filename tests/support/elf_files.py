"""ELF files of a few hundred bytes."""

from __future__ import annotations

import struct
from pathlib import Path


def library(path: Path, soname: str = "", *, bits: int = 64, note: bytes | None = None) -> None:
    """An ELF file of one segment, which says its SONAME, and one section with a note."""
    path.parent.mkdir(parents=True, exist_ok=True)
    strings = b"\0" + soname.encode() + b"\0"
    sections = b"\0.shstrtab\0.note.cuda.fwd_compatibility\0"
    name = b"NVIDIA Corporation\0\0"
    noted = struct.pack("<III", 19, len(note or b""), 1) + name + (note or b"")
    if bits == 64:
        header, program, section, tag = 64, 56, 64, "<qQ"
    else:
        header, program, section, tag = 52, 32, 40, "<iI"
    at = header + 2 * program
    dynamic = struct.pack(tag, 5, at) + struct.pack(tag, 14, 1) + struct.pack(tag, 0, 0)
    dynamic_at = at + len(strings)
    sections_at = dynamic_at + len(dynamic)
    note_at = sections_at + len(sections)
    table = note_at + len(noted)
    count = 3 if note is not None else 0
    if bits == 64:
        head = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, header, table, 0, header, program, 2, section, count, 1)
        segments = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, table, table, 4096) + struct.pack(
            "<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, 0, len(dynamic), len(dynamic), 8
        )
        rows = struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, sections_at, len(sections), 0, 0, 1, 0)
        rows += struct.pack("<IIQQQQIIQQ", 11, 7, 0, 0, note_at, len(noted), 0, 0, 4, 0)
    else:
        head = struct.pack("<HHIIIIIHHHHHH", 3, 3, 1, 0, header, table, 0, header, program, 2, section, count, 1)
        segments = struct.pack("<IIIIIIII", 1, 0, 0, 0, table, table, 5, 4096) + struct.pack(
            "<IIIIIIII", 2, dynamic_at, dynamic_at, 0, len(dynamic), len(dynamic), 6, 4
        )
        rows = struct.pack("<IIIIIIIIII", 1, 3, 0, 0, sections_at, len(sections), 0, 0, 1, 0)
        rows += struct.pack("<IIIIIIIIII", 11, 7, 0, 0, note_at, len(noted), 0, 0, 4, 0)
    identity = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    body = identity + head + segments + strings + dynamic + sections + noted
    path.write_bytes(body + (bytes(section) + rows if count else b""))
