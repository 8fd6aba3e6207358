"""The hunt's own programs: compiled once, then given what they should know by writing it into the file."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = {"probe": ("probe.c", "calls.c", "helpers.c"), "static": ("host_program.c", "helpers.c")}
FLAGS = """-O1 -g0 -std=gnu11 -Wall -Wextra -static -nostdlib -ffreestanding -fno-builtin -fno-stack-protector -fno-pie -no-pie
    -Wl,-Ttext-segment=0x70000000 -Wl,-z,noexecstack""".split()
ROOM = 16384
MARK = b"HUNT-CONFIGURATION\n"


def compiled(work: Path) -> dict[str, bytes]:
    """Both programs without a configuration. ``work``: a directory for the compiler's output."""
    found = {}
    for name, sources in SOURCES.items():
        target = work / name
        command = [
            os.environ.get("CC", "gcc"),
            *FLAGS,
            "-I",
            str(HERE.parents[1] / "native" / "launcher"),
            *(str(HERE / source) for source in sources),
        ]
        subprocess.run([*command, "-o", str(target)], check=True)
        found[name] = target.read_bytes()
    return found


def configured(program: bytes, settings: Iterable[tuple[str, str]]) -> bytes:
    """The program with ``KEY value`` lines in it."""
    text = b"".join(f"{key} {value}\n".encode() for key, value in settings)
    at = program.index(MARK)
    if len(text) >= ROOM:
        raise ValueError(f"{len(text)} bytes of settings, there is room for {ROOM}")
    return program[:at] + text.ljust(ROOM, b"\0") + program[at + ROOM :]


def with_interpreter(interpreter: str) -> bytes:
    """A program for this processor that does nothing but name its dynamic loader."""
    machine = {"x86_64": 62, "aarch64": 183}[os.uname().machine]
    code = {62: bytes.fromhex("b83c00000031ff0f05"), 183: bytes.fromhex("a80b8052000080d2010000d4")}[machine]
    path = os.fsencode(interpreter) + b"\0"
    base, at_path = 0x400000, 64 + 2 * 56
    at_code = at_path + len(path) + -(at_path + len(path)) % 16
    size = at_code + len(code)
    header = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, base + at_code, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    header += struct.pack("<IIQQQQQQ", 3, 4, at_path, base + at_path, base + at_path, len(path), len(path), 1)
    header += struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096)
    return (header + path).ljust(at_code, b"\0") + code
