"""The plan: an ordered list of operations, from the first mount to the exec, as data.

``[keeper operations] CLONE [init operations] SPAWN [program operations] EXEC``. Everything is decided here, before a process exists; the
launcher only carries out.
The byte format and the operations are defined in ``native/launcher/plan.h``. A slot is the number of an fd in the launcher.
"""

from __future__ import annotations

import fcntl
import functools
import os
import struct
from collections.abc import Callable, Iterable

from dockless import native
from dockless.base.dataclass import dataclass, field
from dockless.base.idmaps import IdMap
from dockless.errors import BadInput
from dockless.images.layers.layers import Layer

SLOT_PLAN, SLOT_REPORT, SLOT_LEASH, SLOT_CGROUP, SLOT_LOCK, SLOT_STATE, SLOT_STDOUT, SLOT_STDERR = range(3, 11)
SLOT_RESTART, SLOT_RESTART_LOCK, SLOT_LOG, SLOT_HELD, SLOT_DOOR = range(11, 16)
SLOT_FREE = 16
SLOT_NAMESPACES, SLOT_PROGRAM, SLOT_TERMINAL, SLOT_ROOT = 17, 23, 24, 25

_HEADER = struct.Struct("<IHHIIIIIIQQQQQIIIIIIQQ" + "iIiiiIQQQQQQQ")
_OP = struct.Struct("<HHiiIIIQ")
HEADER_SIZE = _HEADER.size
_TERMINAL_OFFSET = struct.calcsize("<IHHIIIIIIQQQQQIII")
_OUTSIDE_OFFSET = struct.calcsize("<IHHIIIIIIQQQQQIIIIII")
_HEALTH = struct.Struct("<QQII")
_NAME_SIZE, _PATH_SIZE = 80, 1024
PTMX = "/dev/pts/ptmx"
"""The sandbox's own pseudo-terminals."""
DIRECTORY = "{directory}"
"""In a plan: the path of the sandbox's own directory, filled in at each start."""
_OPTIONAL = 1
_TIMES, _DETACHED, _ERRAND, _ENTER, _TERMINAL, _ALONE, _RESTARTS, _TAKE = 1, 2, 4, 8, 16, 32, 64, 128
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_FLAGS_OFFSET = struct.calcsize("<IH")
_MAGIC, _ABI = 0x4E4C504B, 1

_DEFAULT_SIZE = 24 | 80 << 16
"""Of a terminal whose size nobody says: rows, columns."""
_LARGEST_SIZE = 0xFFFF

PHASES = ("new", "keeper", "init", "program", "ready", "exited")


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
class Check:
    """A check of health: the plan of what enters, and when. Seconds."""

    entry: Plan
    interval: float
    start_period: float
    retries: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``slots`` names what lives in each slot, for people. Times are seconds, ``log_limit`` bytes. ``command`` None: an errand,
    operations for the keeper alone. ``held``: slots in which the launcher finds mounts of layers, put there anew at each start.
    ``maps``: slots in which it finds user namespaces with these maps. ``idle``, ``ttl``: seconds, 0 for none, native/launcher/deadlines.c.
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
    idle: float = 0.0
    ttl: float = 0.0
    health: Check | None = None


@functools.cache
def _codes() -> dict[str, tuple[int, str, str]]:
    return {name: (shape.code, shape.a, shape.b) for name, shape in native.operations().items()}


class _Data:
    """The data section: space for what differs from start to start, then each string once, blobs aligned to 8."""

    def __init__(self, begun: Rows | None = None) -> None:
        self.bytes = bytearray(2 * _NAME_SIZE + _PATH_SIZE if begun is None else begun.data)
        self.strings: dict[str, int] = {DIRECTORY: 2 * _NAME_SIZE} if begun is None else dict(begun.strings)

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
            known = [*map(self.strings.get, texts)]
            words += (len(texts), *(map(self.string, texts) if None in known else known))
        blob = struct.pack(f"<{len(words)}I", *words)
        return self.blob(blob), len(blob)


def in_memory(raw: bytes | bytearray, *, sealed: bool = False) -> int:
    """A memfd that holds an encoded plan; the caller closes it. ``sealed``: nobody can change it any more. ``OSError``: EFBIG under a limit
    on the size of files (ulimit -f)."""
    fd = os.memfd_create("dockless-plan", os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealed else 0))
    try:
        rest = memoryview(raw)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if sealed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


@dataclass(frozen=True, slots=True)
class Rows:
    """The operations of a plan, encoded: what plans that differ in their commands and times alone have in common."""

    ops: bytes
    data: bytes
    strings: dict[str, int]
    flags: int


def rows_of(ops: tuple[Op, ...], texts: Iterable[str] = ()) -> Rows:
    """These operations as ``encode`` puts them into a plan. ``texts``: what many commands will have in common, their variables."""
    data = _Data()
    codes = _codes()
    rows = bytearray()
    for op in ops:
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
    for text in texts:
        data.string(text)
    flags = _TERMINAL if any(op.name == "TERMINAL" for op in ops) else 0
    return Rows(bytes(rows), bytes(data.bytes), data.strings, flags)


def encode(
    plan: Plan,
    *,
    times: bool = False,
    detached: bool = False,
    enters: bool = False,
    alone: bool = False,
    take: bool = False,
    rows: Rows | None = None,
) -> bytes:
    """The plan as the launcher reads it. ``enters``: it is for the keeper of a sandbox that runs, see ``native/launcher/door.c``;
    ``alone``: nobody will wait for it. ``take``: it is for one that waits, see ``native/launcher/barrier.c``. ``rows``: ``rows_of`` its
    operations, where somebody has kept them."""
    rows = rows_of(plan.ops) if rows is None else rows
    data = _Data(rows)
    ops = rows.ops
    if plan.command is not None:
        a, b = data.vector(plan.command)
        ops += _OP.pack(_codes()["EXEC"][0], 0, -1, -1, a, b, 0, 0)
    health = _encoded(plan.health)
    health_at = data.blob(health) if health else 0
    data.bytes += b"\0" * (-len(data.bytes) % 8)

    n_ops = len(ops) // _OP.size
    ops_offset = _HEADER.size
    data_offset = ops_offset + len(ops)
    times_offset = data_offset + len(data.bytes) if times else 0
    size = data_offset + len(data.bytes) + (8 * n_ops if times else 0)
    flags = (_TIMES if times else 0) | (_DETACHED if detached else 0) | (0 if plan.command else _ERRAND) | (_ENTER if enters else 0)
    flags |= (_ALONE if alone else 0) | (_TAKE if take else 0) | rows.flags
    header = _HEADER.pack(
        _MAGIC, _ABI, flags, size, n_ops, ops_offset, data_offset, len(data.bytes), times_offset,
        int(plan.timeout * 1e9), int(plan.grace * 1e9), plan.log_limit, int(plan.idle * 1e9), int(plan.ttl * 1e9), plan.stop_signal, 0,
        _NAME_SIZE, _DEFAULT_SIZE, health_at, len(health), 0, 0, -1, *[0] * 12,
    )  # fmt: skip
    return header + ops + bytes(data.bytes) + b"\0" * (8 * n_ops if times else 0)


def _encoded(check: Check | None) -> bytes:
    """``struct health_check``, and the plan behind it."""
    if check is None:
        return b""
    head = _HEALTH.pack(int(check.interval * 1e9), int(check.start_period * 1e9), check.retries, 0)
    return head + encode(check.entry, enters=True, alone=True)


def decode(raw: bytes) -> Plan:
    """The plan in an encoded one that ``native.validate`` accepts: its operations, command and times, without what only its maker knows
    (``held``, ``maps``, ``health``, names of slots). ``ValueError`` for one that it does not accept."""
    sound, _ = native.validate(raw)
    if not sound:
        raise ValueError("it is no plan")
    fields = _HEADER.unpack_from(raw)
    n_ops, ops_offset, data_offset = fields[4:7]
    timeout, grace, log_limit, idle, ttl, stop_signal = fields[9:15]
    shapes = {shape.code: shape for shape in native.operations().values()}

    def text(at: int) -> str:
        if at == 2 * _NAME_SIZE:
            return DIRECTORY
        return raw[data_offset + at : raw.index(0, data_offset + at)].decode("utf-8", "surrogateescape")

    def blob(at: int, size: int) -> bytes:
        return raw[data_offset + at : data_offset + at + size]

    ops = []
    command = None
    for number in range(n_ops):
        code, flags, slot_in, slot_out, a, b, c, x = _OP.unpack_from(raw, ops_offset + number * _OP.size)
        shape = shapes[code]
        if shape.name == "EXEC":
            command = _command(blob(a, b), text)
            continue
        first: str | bytes | int = text(a) if shape.a == "p" else blob(a, b) if shape.a == "b" else a
        second: str | bytes | int = text(b) if shape.b == "p" else blob(b, c) if shape.b == "d" else 0 if shape.b == "l" else b
        ops.append(Op(shape.name, slot_in, slot_out, first, second, 0 if shape.b == "d" else c, x, bool(flags & _OPTIONAL)))
    times = {"timeout": timeout / 1e9, "grace": grace / 1e9, "idle": idle / 1e9, "ttl": ttl / 1e9}
    return Plan(tuple(ops), command, {}, stop_signal=stop_signal, log_limit=log_limit, **times)


def _command(vector: bytes, text: Callable[[int], str]) -> Command:
    words = iter(struct.unpack(f"<{len(vector) // 4}I", vector))
    candidates, argv, envp = (tuple(text(next(words)) for _ in range(next(words))) for _ in range(3))
    return Command(candidates, argv, envp)


def check_size(rows: int, columns: int) -> None:
    """``BadInput`` for what no terminal can be, ioctl_tty(2)."""
    for name, value in (("rows", rows), ("columns", columns)):
        if not 0 <= value <= _LARGEST_SIZE:
            raise BadInput(f"{value} {name} of a terminal", subject=name, hint=f"give a number from 0 to {_LARGEST_SIZE}")


def filled_in(
    raw: bytes, *, directory: str = "", removed: str = "", cgroup: str = "", terminal: tuple[int, int] | None = None, restarts: bool = False
) -> bytearray:
    """An encoded plan with what differs from start to start: the path of the sandbox's directory, and the names of what the keeper
    removes at the end, the directory in SLOT_STATE and the cgroup; the rows and columns of its terminal; whether it ``restarts`` by a
    policy; unless it enters a sandbox, our own user namespace. All else is equal for every start of a spec, so an encoded plan can be
    kept. ``BadInput`` for a path that is too long, and for a size that no terminal can have."""
    filled = bytearray(raw)
    if not filled[_FLAGS_OFFSET] & _ENTER:
        outside = os.stat("/proc/self/ns/user")
        struct.pack_into("<QQ", filled, _OUTSIDE_OFFSET, outside.st_dev, outside.st_ino)
    if terminal is not None:
        check_size(*terminal)
        struct.pack_into("<HH", filled, _TERMINAL_OFFSET, *terminal)
    if restarts:
        filled[_FLAGS_OFFSET] |= _RESTARTS
    (data_offset,) = struct.unpack_from("<I", raw, 20)
    for offset, size, text in ((0, _NAME_SIZE, removed), (_NAME_SIZE, _NAME_SIZE, cgroup), (2 * _NAME_SIZE, _PATH_SIZE, directory)):
        if not text:
            continue
        encoded = os.fsencode(text)
        if len(encoded) >= size:
            raise BadInput(f"the path {text[:80]}… is too long", subject=text, hint="move the state directory: DOCKLESS_HOME")
        filled[data_offset + offset : data_offset + offset + len(encoded)] = encoded
    return filled


@dataclass(frozen=True, slots=True)
class Record:
    """What the launcher wrote into its plan: where it got, and how the program ended. Times in seconds, ``max_rss`` bytes. ``active``: when
    somebody last used it, ``ends``: when its time to live is over, both of the monotonic clock."""

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
    active: float
    ends: float
    times: tuple[int, ...]


def read_record(raw: bytes) -> Record:
    """Decode the written part of a plan; its first ``HEADER_SIZE`` bytes are enough for all but the times. ``times``: CLOCK_MONOTONIC
    nanoseconds at the end of each operation, empty if not recorded."""
    fields = _HEADER.unpack_from(raw)
    n_ops, times_offset = fields[4], fields[8]
    pc, phase, error, status, init_pid, outcome, user, system, rss, ended, started, active, ends = fields[22:]
    times = struct.unpack_from(f"<{n_ops}Q", raw, times_offset) if times_offset and len(raw) >= times_offset + 8 * n_ops else ()
    return Record(
        pc, PHASES[phase], error, status, init_pid, outcome, user / 1e6, system / 1e6, rss * 1024, ended / 1e9, started / 1e9, active / 1e9,
        ends / 1e9, times,
    )  # fmt: skip
