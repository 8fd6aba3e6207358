"""The plan: an ordered list of operations, from the first mount to the exec, as data.

``[keeper operations] CLONE [init operations] SPAWN [job operations] EXEC``. Everything is decided here, before a process exists; the
launcher only carries out.
The byte format and the operations are defined in ``native/launcher/plan.h``. A slot is the number of an fd in the launcher.
"""

from __future__ import annotations

import functools
import os
import struct
from dataclasses import dataclass, field

from dockless import native
from dockless.base.idmaps import IdMap
from dockless.errors import BadInput
from dockless.images.layers.layers import Layer

SLOT_PLAN, SLOT_REPORT, SLOT_LEASH, SLOT_CGROUP, SLOT_LOCK, SLOT_STATE, SLOT_STDOUT, SLOT_STDERR = range(3, 11)
SLOT_IMAGE = 14
SLOT_FREE = 16

_HEADER = struct.Struct("<IHHIIIIIIQQQIIII" + "iIiiiIQQQQQ")
_OP = struct.Struct("<HHiiIIIQ")
HEADER_SIZE = _HEADER.size
_NAME_SIZE, _PATH_SIZE = 80, 1024
DIRECTORY = "{directory}"
"""In a plan: the path of the sandbox's own directory, filled in at each start."""
_OPTIONAL = 1
_TIMES, _DETACHED, _ERRAND = 1, 2, 4
_MAGIC, _ABI = 0x4E4C504B, 1

PHASES = ("new", "keeper", "init", "job", "ready", "exited")


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. ``a`` and ``b``: text, bytes or a number, as the operation's shape in ``plan.h`` says; ``optional``: a missing
    object is no error."""

    name: str
    slot_in: int = -1
    slot_out: int = -1
    a: str | bytes | int = 0
    b: str | bytes | int = 0
    c: int = 0
    x: int = 0
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """What EXEC runs: the candidates tried in order, the arguments, the environment."""

    candidates: tuple[str, ...]
    argv: tuple[str, ...]
    envp: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """``slots`` names what lives in each slot, for people. Times are seconds, ``log_limit`` bytes. ``command`` None: an errand,
    operations for the keeper alone. ``held``: slots in which the launcher finds mounts of layers, put there anew at each start.
    ``maps``: slots in which it finds user namespaces with these maps.
    """

    ops: tuple[Op, ...]
    command: Command | None
    slots: dict[int, str] = field(default_factory=dict)
    timeout: float = 0.0
    grace: float = 0.0
    stop_signal: int = 15
    log_limit: int = 64 << 20
    held: dict[int, Layer] = field(default_factory=dict)
    maps: dict[int, IdMap] = field(default_factory=dict)


@functools.cache
def _codes() -> dict[str, tuple[int, str, str]]:
    return {name: (shape.code, shape.a, shape.b) for name, shape in native.operations().items()}


class _Data:
    """The data section: space for what differs from start to start, then each string once, blobs aligned to 8."""

    def __init__(self) -> None:
        self.bytes = bytearray(2 * _NAME_SIZE + _PATH_SIZE)
        self.strings: dict[str, int] = {DIRECTORY: 2 * _NAME_SIZE}

    def string(self, text: str) -> int:
        offset = self.strings.get(text)
        if offset is None:
            offset = self.strings[text] = len(self.bytes)
            self.bytes += text.encode("utf-8", "surrogateescape") + b"\0"
        return offset

    def blob(self, blob: bytes) -> int:
        self.bytes += b"\0" * (-len(self.bytes) % 8)
        offset = len(self.bytes)
        self.bytes += blob
        return offset

    def vector(self, command: Command) -> tuple[int, int]:
        words: list[int] = []
        for texts in (command.candidates, command.argv, command.envp):
            words.append(len(texts))
            words.extend(self.string(text) for text in texts)
        blob = struct.pack(f"<{len(words)}I", *words)
        return self.blob(blob), len(blob)


def in_memory(raw: bytes | bytearray) -> int:
    """A memfd that holds an encoded plan; the caller closes it. ``OSError``: EFBIG under a limit on the size of files (ulimit -f)."""
    fd = os.memfd_create("dockless-plan", os.MFD_CLOEXEC)
    try:
        rest = memoryview(raw)
        while rest:
            rest = rest[os.write(fd, rest) :]
    except BaseException:
        os.close(fd)
        raise
    return fd


def encode(plan: Plan, *, times: bool = False, detached: bool = False) -> bytes:
    """The plan as the launcher reads it."""
    data = _Data()
    codes = _codes()
    rows = bytearray()
    for op in plan.ops:
        code, kind_a, kind_b = codes[op.name]
        a, b, c = op.a, op.b, op.c
        if kind_a == "p":
            a = data.string(a)  # type: ignore[arg-type]
        elif kind_a == "b":
            a, b = data.blob(a), len(a)  # type: ignore[arg-type]
        if kind_b == "p":
            b = data.string(b)  # type: ignore[arg-type]
        elif kind_b == "d":
            blob = b.encode() if isinstance(b, str) else (b or b"")
            b, c = data.blob(blob), len(blob)  # type: ignore[arg-type]
        rows += _OP.pack(code, _OPTIONAL if op.optional else 0, op.slot_in, op.slot_out, a, b, c, op.x)
    if plan.command is not None:
        a, b = data.vector(plan.command)
        rows += _OP.pack(codes["EXEC"][0], 0, -1, -1, a, b, 0, 0)
    data.bytes += b"\0" * (-len(data.bytes) % 8)

    n_ops = len(rows) // _OP.size
    ops_offset = _HEADER.size
    data_offset = ops_offset + len(rows)
    times_offset = data_offset + len(data.bytes) if times else 0
    size = data_offset + len(data.bytes) + (8 * n_ops if times else 0)
    flags = (_TIMES if times else 0) | (_DETACHED if detached else 0) | (0 if plan.command else _ERRAND)
    header = _HEADER.pack(
        _MAGIC, _ABI, flags, size, n_ops, ops_offset, data_offset, len(data.bytes), times_offset,
        int(plan.timeout * 1e9), int(plan.grace * 1e9), plan.log_limit, plan.stop_signal, 0, _NAME_SIZE, 0,
        -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip
    return header + bytes(rows) + bytes(data.bytes) + b"\0" * (8 * n_ops if times else 0)


def filled_in(raw: bytes, *, directory: str = "", removed: str = "", cgroup: str = "") -> bytearray:
    """An encoded plan with what differs from start to start: the path of the sandbox's directory, and the names of what the keeper
    removes at the end, the directory in SLOT_STATE and the cgroup. All else is equal for every start of a spec, so an encoded plan can be
    kept. ``BadInput`` for a path that is too long."""
    filled = bytearray(raw)
    (data_offset,) = struct.unpack_from("<I", raw, 20)
    for offset, size, text in ((0, _NAME_SIZE, removed), (_NAME_SIZE, _NAME_SIZE, cgroup), (2 * _NAME_SIZE, _PATH_SIZE, directory)):
        encoded = os.fsencode(text)
        if len(encoded) >= size:
            raise BadInput(f"the path {text[:80]}… is too long", subject=text, hint="move the state directory: DOCKLESS_HOME")
        filled[data_offset + offset : data_offset + offset + len(encoded)] = encoded
    return filled


@dataclass(frozen=True, slots=True)
class Record:
    """What the launcher wrote into its plan: where it got, and how the job ended. Times in seconds, ``max_rss`` bytes."""

    pc: int
    phase: str
    error: int
    status: int
    init_pid: int
    outcome: int
    user: float
    system: float
    max_rss: int
    ended: float
    started: float
    times: tuple[int, ...]


def read_record(raw: bytes) -> Record:
    """Decode the written part of a plan; its first ``HEADER_SIZE`` bytes are enough for all but the times. ``times``: CLOCK_MONOTONIC
    nanoseconds at the end of each operation, empty if not recorded."""
    fields = _HEADER.unpack_from(raw)
    n_ops, times_offset = fields[4], fields[8]
    pc, phase, error, status, init_pid, outcome, user, system, rss, ended, started = fields[16:]
    times = struct.unpack_from(f"<{n_ops}Q", raw, times_offset) if times_offset and len(raw) >= times_offset + 8 * n_ops else ()
    return Record(
        pc, PHASES[phase], error, status, init_pid, outcome, user / 1e6, system / 1e6, rss * 1024, ended / 1e9, started / 1e9, times
    )
