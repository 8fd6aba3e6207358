"""An assembler for classic BPF, the language of seccomp filters. Documentation/userspace-api/seccomp_filter.rst, filter.rst

A program is built forwards with labels and assembled into ``struct sock_filter[]`` (8 bytes each: u16 code, u8 jt, u8 jf, u32 k; little
endian, as on both architectures we run on). Conditional jumps reach only 255 instructions ahead; ``assemble`` puts an unconditional
jump behind those whose target is farther. Classic BPF has no backward jumps, so every label must be placed after its uses.
"""

from __future__ import annotations

import struct

from dockless.errors import BadInput

MAX_INSTRUCTIONS = 4096
"""BPF_MAXINSNS."""

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS: accumulator = seccomp_data[k]
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
JUMP = 0x05  # BPF_JMP | BPF_JA
JEQ = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JGT = 0x25
JGE = 0x35
JSET = 0x45
RET = 0x06  # BPF_RET | BPF_K

NR = 0
ARCH = 4
_ARGS = 16

_FILTER = struct.Struct("<HBBI")
_REACH = 255

NEXT = -1
"""Label of the instruction that follows."""


def argument_low(index: int) -> int:
    """Offset of the low 32 bits of system call argument ``index`` (0-5) in struct seccomp_data."""
    return _ARGS + 8 * index


def argument_high(index: int) -> int:
    return _ARGS + 8 * index + 4


class Assembler:
    """Instructions and labels in order. ``label()`` makes a label, ``place()`` puts it in front of the next instruction."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []  # code, k, label if true, label if false
        self._places: list[int] = []  # label → index of an instruction in _code

    def label(self) -> int:
        self._places.append(-1)
        return len(self._places) - 1

    def place(self, label: int) -> None:
        self._places[label] = len(self._code)

    def load(self, offset: int) -> None:
        self._code.append((LOAD, offset, NEXT, NEXT))

    def and_(self, mask: int) -> None:
        self._code.append((AND, mask, NEXT, NEXT))

    def ret(self, value: int) -> None:
        self._code.append((RET, value, NEXT, NEXT))

    def jump(self, code: int, k: int, true: int = NEXT, false: int = NEXT) -> None:
        """One of JEQ, JGT, JGE, JSET: on to ``true`` if the accumulator compares so with ``k``, else to ``false``."""
        self._code.append((code, k, true, false))

    def go(self, label: int) -> None:
        self._code.append((JUMP, 0, label, NEXT))

    def assemble(self) -> bytes:
        """The program as bytes. More than 4096 instructions: ``BadInput``."""
        extra = self._far_jumps()
        starts = self._starts(extra)
        out = bytearray()
        for index, (code, k, true, false) in enumerate(self._code):
            after = starts[index] + 1
            if code == JUMP:
                out += _FILTER.pack(JUMP, 0, 0, self._target(true, index, starts) - after)
            elif code in (JEQ, JGT, JGE, JSET):
                out += self._conditional(
                    code, k, self._target(true, index, starts), self._target(false, index, starts), after, extra[index]
                )
            else:
                out += _FILTER.pack(code, 0, 0, k)
        if len(out) > MAX_INSTRUCTIONS * _FILTER.size:
            raise BadInput(
                f"the seccomp profile needs {len(out) // _FILTER.size} instructions; the kernel takes {MAX_INSTRUCTIONS}",
                hint="use fewer rules with arguments",
            )
        return bytes(out)

    def _conditional(self, code: int, k: int, true: int, false: int, after: int, extra: int) -> bytes:
        """``extra`` bit 0: the true branch takes a long jump, bit 1: the false branch. They stand right behind, true first."""
        jumps = []
        jt, jf = true - after, false - after
        if extra & 1:
            jt = 0
            jumps.append(true - (after + 1))
        if extra & 2:
            jf = len(jumps)
            jumps.append(false - (after + 1 + len(jumps)))
        return _FILTER.pack(code, jt, jf, k) + b"".join(_FILTER.pack(JUMP, 0, 0, jump) for jump in jumps)

    def _far_jumps(self) -> list[int]:
        """For each instruction which of its branches need a long jump; each one added moves the others, so until nothing changes."""
        extra = [0] * len(self._code)
        while True:
            starts = self._starts(extra)
            changed = False
            for index, (code, _, true, false) in enumerate(self._code):
                if code not in (JEQ, JGT, JGE, JSET):
                    continue
                after = starts[index] + 1
                need = extra[index]
                need |= self._target(true, index, starts) - after > _REACH
                need |= (self._target(false, index, starts) - after > _REACH) << 1
                if need != extra[index]:
                    extra[index] = need
                    changed = True
            if not changed:
                return extra

    def _starts(self, extra: list[int]) -> list[int]:
        starts = []
        position = 0
        for more in extra:
            starts.append(position)
            position += 1 + (more & 1) + (more >> 1)
        starts.append(position)
        return starts

    def _target(self, label: int, index: int, starts: list[int]) -> int:
        place = index + 1 if label == NEXT else self._places[label]
        if place <= index:
            raise AssertionError("a label must be placed after the jumps to it")
        return starts[place]
