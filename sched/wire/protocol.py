"""The words that client and daemon exchange: JSON lines over a unix socket, one version number, bounded sizes.

A request is one line, ``{"v": 1, "op": "submit", …}``; the answer is one line, ``{"ok": true, …}`` or ``{"ok": false, "error": {…}}``.
``logs`` answers with several lines, the last of them has ``"end": true``. More jobs than fit into a request are sent in parts on one
connection, ``{"op": "part", "jobs": […], "of": N}`` several times, each answered, and then ``{"op": "submit", "of": N}``.
Who asks is never part of a message: the daemon reads the caller's user id from the socket (SO_PEERCRED, unix(7)).

JSON in its ASCII form: a log line that is not UTF-8 travels as lone surrogates and comes back byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from dockless.base import json
from dockless.base.dataclass import dataclass
from dockless.base.path import Path
from dockless.base.records import plain
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadInput, DocklessError, SchedError
from dockless.sched.wire.top import GpuShare

if TYPE_CHECKING:
    from dockless.sandbox.run.logfile import Row

VERSION = 1
MAX_REQUEST = 1 << 20
"""Bytes of one request line: some thousand different jobs. An array of 10,000 is one job and a count."""
MAX_PARTS = 150_000
"""Arrays, objects and further elements of one request. Each is an object in memory when it is decoded, and nobody is served meanwhile."""
MAX_JOBS_PER_SUBMIT = 10_000
MAX_JOBS_IN_PARTS = 1_000_000
"""Jobs of a submit that comes in parts. How many one user may have in the queue is told by the settings; parts count there already."""
PART = 1 << 17
"""Bytes of a part: its values are never more than ``MAX_PARTS``, and others are served in between. A job may be longer."""
MAX_JOBS_PER_REQUEST = 10_000
"""Ids of jobs that one request may name."""
_LONGEST_ADDRESS = 107
"""Bytes of a socket's path, unix(7): 108 with the NUL."""


class Record:
    """What an answer says."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``."""
        values: dict[str, Any] = plain(self)
        return values


@dataclass(frozen=True, slots=True)
class LogLine(Record):
    """One line of a job's output. ``at``: RFC 3339 with nanoseconds; ``stream``: ``stdout`` or ``stderr``; ``text`` without its
    newline, bytes that are not UTF-8 as surrogates (``text.encode(errors="surrogateescape")`` gives them back); ``partial``: no
    newline was written. ``dropped``: so many bytes of output are missing here, and there is no text."""

    at: str
    stream: str
    text: str
    partial: bool = False
    dropped: int = 0

    @property
    def size(self) -> int:
        """Bytes of output that it stands for."""
        return self.dropped or len(self.row.written)

    @property
    def row(self) -> Row:
        """The same as its keeper wrote it down."""
        from dockless.sandbox.run.logfile import Row

        return Row(self.at, self.stream, self.text.encode(errors="surrogateescape"), self.partial, self.dropped)


@dataclass(frozen=True, slots=True)
class GpuInfo(Record):
    """A GPU of the host and who holds it. ``memory``: bytes. ``job`` 0: none of the queue; ``outside``: in use all the same,
    leased by ``user`` without the queue, or, where that is empty, by programs that have no lease.
    ``trouble``: why it is out of service. ``shares``: of a GPU that is shared; ``job`` and ``user`` are then those of the oldest."""

    index: int
    uuid: str
    model: str = ""
    memory: int = 0
    numa_node: int = -1
    simulated: bool = False
    outside: bool = False
    job: int = 0
    attempt: int = 0
    user: str = ""
    since: float = 0.0
    trouble: str = ""
    shares: tuple[GpuShare, ...] = ()


@dataclass(frozen=True, slots=True)
class Ahead(Record):
    """A job that stands before another."""

    job: int
    user: str
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Awaited(Record):
    """A job whose end another waits for. ``ends_in``: seconds until it has ended at the latest, or, where it waits itself, about; None
    where nobody can say."""

    job: int
    state: str
    ends_in: float | None = None


@dataclass(frozen=True, slots=True)
class Why(Record):
    """Why a job waits. ``reason``: the one that holds it, with its numbers; of a job that does not wait what became of it. ``rule``: its
    code, see ``policy.decision.Reason``, or why it may not start yet: ``held``, ``begin``, ``retry``, ``after``, ``singleton``, ``array``.
    ``place``: among those that wait for the same, 1 for the first, 0 for one that does not wait or may not start yet; of one that the limit
    of its array keeps aside the place that it would have without. ``waiting``: how many those are. ``ahead``: up to five that stand before
    it, the first of all first. ``awaited``: up to five of the jobs that it waits for, ``awaiting``: how many those are; of an array those
    of which one has to end for each that follows.

    ``starts_in``: seconds until it starts if no other job comes before it and every job takes its whole time limit; ``at_latest``: so late
    at most, also if others end early. None where nobody can say; ``endless``: because these jobs have no time limit. ``starts_after``: no
    more is foretold than that it starts no earlier than in so many seconds. Of one that may not start yet ``starts_in`` is when it may, but
    of an array when it starts. ``sooner``: what it could ask for instead and start now; ``earlier``: what would let it start earlier,
    though not now."""

    job: int
    state: str
    reason: str
    place: int = 0
    waiting: int = 0
    starts_in: float | None = None
    sooner: tuple[str, ...] = ()
    rule: str = ""
    ahead: tuple[Ahead, ...] = ()
    at_latest: bool = False
    endless: tuple[int, ...] = ()
    awaited: tuple[Awaited, ...] = ()
    awaiting: int = 0
    starts_after: float | None = None
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobEvent(Record):
    """Something that happened to a job. ``at``: seconds since 1970; ``event``: a word, see docs/queue.md; ``attempt``: of which it is, 0
    for the job itself; ``detail``: the GPUs of a start, who held or cancelled it, why it ended."""

    at: float
    event: str
    attempt: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReservationInfo(Record):
    """Hours for which GPUs, ``cores`` and ``memory``, bytes, are kept for ``users`` and the members of ``groups``: the next, or those that
    have begun. ``starts``, ``ends``: seconds since 1970; ``text``: the same as people say it."""

    name: str
    gpus: int
    users: tuple[str, ...]
    groups: tuple[str, ...]
    starts: float
    ends: float
    text: str
    cores: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class HostInfo(Record):
    """The host as the queue sees it. ``quotas``: rows of (``user`` or ``group``, name, GPUs in use, limit; None for no limit).
    ``drained``: by whom and why no job is started at all, empty where they are. ``cores``, ``memory`` (bytes): that jobs may have together,
    0 from an older daemon; ``cores_used``, ``memory_used``: that those which run have asked for. ``disk``: what jobs may write to theirs,
    and who holds that, in words; empty where there is no limit. ``unleased``: the devices of the kinds that are leased which nobody can
    have, and why."""

    gpus: tuple[GpuInfo, ...] = ()
    waiting: int = 0
    running: int = 0
    cpu_jobs: int = 0
    gpu_error: str = ""
    quotas: tuple[tuple[str, str, int, int | None], ...] = ()
    drained: str = ""
    reservations: tuple[ReservationInfo, ...] = ()
    cores: float = 0.0
    cores_used: float = 0.0
    memory: int = 0
    memory_used: int = 0
    disk: str = ""
    unleased: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ClassInfo(Record):
    """What a user or a group has of the GPUs of a class, and may have: as in the settings, None where they say nothing."""

    name: str
    gpus: int
    limit: int | None = None
    guarantee: int | None = None
    weight: int | None = None


@dataclass(frozen=True, slots=True)
class QuotaInfo(Record):
    """What a user or a group has of the host, and may have. ``kind``: ``user``, ``group``, or ``default``, which has no name and says what
    each user not named in the settings may have. ``gpus``: in use; ``running``, ``running_without_gpus``, ``waiting``: jobs; ``in_queue``:
    all that count against ``queued``, held ones too, and ``submitting`` of them are parts of a submit without its end. ``classes``: those
    of which the settings say something. The rest is as in the settings, None where they say nothing."""

    kind: str
    name: str
    gpus: int = 0
    running: int = 0
    running_without_gpus: int = 0
    waiting: int = 0
    limit: int | None = None
    guarantee: int | None = None
    weight: int | None = None
    jobs: int | None = None
    cpu_jobs: int | None = None
    classes: tuple[ClassInfo, ...] = ()
    queued: int | None = None
    in_queue: int = 0
    submitting: int = 0


@dataclass(frozen=True, slots=True)
class DaemonInfo(Record):
    """The daemon that answers. ``admin``: whether this caller may do everything; ``user``: who the daemon says the caller is.
    ``outage``: why the queue cannot be written now, empty where it can. ``notices``: whether this host can tell a job's owner of it."""

    pid: int
    version: str
    owner_uid: int
    user: str
    admin: bool
    started: float
    socket: str = ""
    simulated: bool = False
    outage: str = ""
    notices: bool = False


def check_address(path: Path) -> None:
    """``BadInput`` for a path that no socket can have, unix(7)."""
    size = len(os.fsencode(path))
    if size > _LONGEST_ADDRESS:
        hint = "set DOCKLESS_HOME to a shorter path, or DOCKLESS_SOCKET (dockless daemon --socket)"
        raise BadInput(f"the socket's path has {size} bytes, at most {_LONGEST_ADDRESS} are possible", subject=str(path)[:200], hint=hint)


def encode(message: dict[str, Any]) -> bytes:
    """One message as one line."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message in one line. Raises BadInput for anything that is not one JSON object."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput("a message is not JSON", subject="protocol", hint="send one JSON object per line") from error
    if not isinstance(message, dict):
        raise BadInput("a message is not a JSON object", subject="protocol", hint="send one JSON object per line")
    return message


def submission(jobs: Iterable[bytes], *, op: str = "submit", of: int | None = None) -> bytes:
    """A request with these jobs, each as JSON."""
    return b'{"v":%d,"op":"%s",%s"jobs":[%s]}\n' % (VERSION, op.encode(), b"" if of is None else b'"of":%d,' % of, b",".join(jobs))


def fits(line: bytes, count: int) -> bool:
    """Whether a submit of so many jobs is taken in one request."""
    return len(line) <= MAX_REQUEST and count <= MAX_JOBS_PER_SUBMIT and _parts(line) <= MAX_PARTS


def parts_of(jobs: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Jobs, in order, as many as a part takes at a time; at least one."""
    part, size = list[bytes](), 0
    for job in jobs:
        if part and (size + len(job) > PART or len(part) == MAX_JOBS_PER_SUBMIT):
            yield part
            part, size = [], 0
        part.append(job)
        size += len(job) + 1
    if part:
        yield part


def check_parts(line: bytes) -> None:
    """``BadInput`` for a request of more than ``MAX_PARTS`` values; what stands in strings does not count."""
    if _parts(line) <= MAX_PARTS:
        return
    plain = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    if _parts(b"".join(plain.split(b'"')[::2])) > MAX_PARTS:
        raise BadInput(f"a request has more than {MAX_PARTS} values", subject="protocol", hint="submit in parts")


def _parts(text: bytes) -> int:
    return sum(map(text.count, (b"[", b"{", b",")))


def error_message(error: DocklessError) -> dict[str, Any]:
    """An error as it travels; what the class adds (``controller``, ``errno`` …) goes along as ``extra``."""
    extra = {k: v for k, v in vars(error).items() if k not in ("subject", "hint") and isinstance(v, (str, int, float))}
    notes = list(getattr(error, "__notes__", ()))
    return {
        "ok": False,
        "error": {"code": error.code, "message": str(error), "subject": error.subject, "hint": error.hint, "extra": extra, "notes": notes},
    }


def raise_error(error: dict[str, Any]) -> None:
    """Raise what ``error_message`` made, as the same class; an unknown code (a newer daemon) becomes SchedError."""
    cls = _classes().get(str(error.get("code", "")), SchedError)
    # Not through __init__: subclasses ask for arguments of their own, which are in ``extra`` here.
    instance = cls.__new__(cls)
    DocklessError.__init__(instance, str(error.get("message", "")), subject=str(error.get("subject", "")), hint=str(error.get("hint", "")))
    for name, value in dict(error.get("extra") or {}).items():
        if name.isidentifier() and not name.startswith("_"):
            setattr(instance, name, value)
    for note in error.get("notes") or ():
        instance.add_note(str(note))
    raise instance


def _classes() -> dict[str, type[DocklessError]]:
    found: dict[str, type[DocklessError]] = {}
    stack: list[type[DocklessError]] = [DocklessError]
    while stack:
        cls = stack.pop()
        found.setdefault(cls.code, cls)
        stack.extend(cls.__subclasses__())
    return found
