"""A classic BPF interpreter for seccomp programs, and the checks the kernel makes before it takes one.

Written from Documentation/networking/filter.rst and kernel/seccomp.c, not from the assembler under test.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

ALLOW, ENOSYS, EPERM, KILL = 0x7FFF0000, 0x00050000 | 38, 0x00050000 | 1, 0x80000000
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def errno(number: int) -> int:
    return 0x00050000 | number


def decode(program: bytes) -> list[tuple[int, int, int, int]]:
    assert len(program) % 8 == 0
    return list(struct.iter_unpack("<HBBI", program))


def verify(program: bytes) -> None:
    """bpf_check_classic and seccomp_check_filter: known instructions, jumps forward and inside, ends in a return."""
    code = decode(program)
    assert 0 < len(code) <= 4096
    for index, (op, jt, jf, k) in enumerate(code):
        if op == 0x20:
            assert k % 4 == 0 and k < 64
        elif op == 0x05:
            assert index + 1 + k < len(code)
        elif op in (0x15, 0x25, 0x35, 0x45):
            assert index + 1 + max(jt, jf) < len(code)
        else:
            assert op in (0x06, 0x54), hex(op)
    assert code[-1][0] == 0x06


def run(program: bytes, arch: str | int, number: int, args: Sequence[int] = ()) -> tuple[int, int, bool]:
    """(what it returns, instructions executed, whether it read anything but the number and the architecture)."""
    six = [*args, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, AUDIT[arch] if isinstance(arch, str) else arch, 0x7F00DEADBEEF, *six)
    code = decode(program)
    accumulator = position = steps = 0
    read_args = False
    while True:
        op, jt, jf, k = code[position]
        position += 1
        steps += 1
        if op == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
            read_args |= k >= 8
        elif op == 0x54:
            accumulator &= k
        elif op == 0x05:
            position += k
        elif op == 0x15:
            position += jt if accumulator == k else jf
        elif op == 0x25:
            position += jt if accumulator > k else jf
        elif op == 0x35:
            position += jt if accumulator >= k else jf
        elif op == 0x45:
            position += jt if accumulator & k else jf
        elif op == 0x06:
            return k, steps, read_args
        else:
            raise AssertionError(f"unknown instruction {op:#x}")


def decide(program: bytes, arch: str | int, number: int, args: Sequence[int] = ()) -> int:
    return run(program, arch, number, args)[0]
