"""What a job is, and the states it passes through.

::

    submit ─► PENDING ──────────────────────── cancel ─► CANCELLED
                │  ▲
        lease   │  │ the daemon died before the launch: that attempt is void
      committed ▼  │ (also: the host rebooted and the job says on_reboot="requeue")
              STARTING ── the launch was refused ──────► FAILED
                │  └───────────────────────── cancel ─► CANCELLED
     the program│
     is exec'd  ▼
              RUNNING ─┬─ requeued, or failed with retries left ─► PENDING
                       ├─ exit code 0 ────────────────► COMPLETED
                       ├─ any other exit or a signal ──► FAILED
                       ├─ its time limit was reached ──► TIMEOUT
                       ├─ the OOM killer took it ──────► OOM
                       ├─ cancel, then its exit ───────► CANCELLED
                       └─ nobody can say (reboot, its
                          keeper was killed) ──────────► LOST

Every change of state is one committed transaction, and ``ALLOWED`` below is the whole of what may happen. A job has numbered
attempts; at most one of them is alive, ever. An attempt's sandbox is called ``job-<job>-<attempt>-<queue>``.
"""

from __future__ import annotations

import math
from enum import StrEnum

from dockless.base import signal
from dockless.base.checks import check_record
from dockless.base.dataclass import dataclass, field
from dockless.base.exit_codes import exit_code
from dockless.base.records import differences, read
from dockless.base.typing import Any, Literal
from dockless.cgroups.limits import MOST_CORES
from dockless.errors import BadInput
from dockless.sandbox.spec import Spec
from dockless.sched.parsing import EVENTS, MAX_AFTER, is_label, parse_dependency, parse_port

OnReboot = Literal["requeue", "fail"]

MAX_PRIORITY = 1_000_000
MAX_TIME_LIMIT = 10 * 365 * 86400.0
MAX_NAME = 128
MAX_MOMENT = 253402300799.0
"""The last second of the year 9999."""
MAX_MEMBERS = 256
"""Jobs that start together."""


class State(StrEnum):
    """The state of a job. The values are what users see and scripts compare."""

    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OOM = "OOM"
    LOST = "LOST"

    @property
    def ended(self) -> bool:
        return self in ENDED


ENDED = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED, State.TIMEOUT, State.OOM, State.LOST})

ALLOWED: dict[State, frozenset[State]] = {
    State.PENDING: frozenset({State.STARTING, State.CANCELLED}),
    State.STARTING: frozenset({State.RUNNING, State.PENDING}) | ENDED,
    State.RUNNING: frozenset({State.PENDING}) | ENDED,
    **{state: frozenset() for state in ENDED},
}


class AttemptState(StrEnum):
    """The state of one attempt. VOID: it never ran, its number is used up all the same."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    VOID = "VOID"
    LOST = "LOST"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a user submits.

    ``spec``: the sandbox; its ``gpus`` stays empty, the daemon fills in what it leases. ``gpus``: ``""`` for none, ``"2"`` for any two
    free ones, ``"all"``, ``"device=0,2"`` or a GPU's UUID. ``priority``: higher starts earlier; only an administrator may go above 0.
    ``time_limit``: seconds from start, 0 for none; a job without one cannot start ahead of a job that waits for its GPUs.
    ``group``: a label for listings, one of the owner's own groups. ``on_reboot``: what becomes of a running job when the host reboots.

    Until when it waits, whatever is free: ``hold``: until it is released. ``begin``: until that moment, seconds since 1970. ``after``: for
    the ends of other jobs of its owner, ``"ok:12"`` (COMPLETED), ``"not-ok:12"`` (any other end) or ``"any:12"``; where that cannot be any
    more it is CANCELLED. ``singleton``: until no older job of its owner that has its name is left. ``array_limit``: so many jobs of its
    array run at once, 0 for any number.

    ``retries``: how often it runs again when its program has failed, after pauses of 1 s that double up to 5 minutes; ``retry_on``: only
    after these exit codes, all but 0 where empty.

    ``warn_signal``: a signal that its program gets ``warn_before`` seconds before its time limit, once in each attempt; 0 for none.

    ``notify``: what its owner is told of, see ``parsing.EVENTS``; ``notify_to``: at which address for mail, "" for her own here.

    ``role``: of one that starts together with others (``Client.submit_gang``). They all end when ``min_failed`` of a role have failed, 0
    for never, and when ``min_succeeded`` of one have ended well, 0 for when all have ended. ``ports``: those that it gets,
    ``"LABEL:COUNT"``, beside one of its own.

    ``reserve_cpus``: cores that the queue counts for it where its limit says fewer, or nothing.

    ``secrets``: names and values. Variables of ``spec`` refer to them, ``<% $secrets.NAME %>``, and get the values when the job starts.
    """

    spec: Spec = field(default_factory=Spec)
    gpus: str = ""
    priority: int = 0
    time_limit: float = 0.0
    name: str = ""
    group: str = ""
    on_reboot: OnReboot = "fail"
    hold: bool = False
    begin: float = 0.0
    after: tuple[str, ...] = ()
    singleton: bool = False
    array_limit: int = 0
    retries: int = 0
    retry_on: tuple[int, ...] = ()
    warn_signal: int = 0
    warn_before: float = 0.0
    notify: tuple[str, ...] = ()
    notify_to: str = ""
    role: str = ""
    min_failed: int = 1
    min_succeeded: int = 0
    ports: tuple[str, ...] = ()
    reserve_cpus: float = 0.0
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_record(self)
        _check_order(self)
        _check_warning(self)
        _check_role(self)
        if len(set(self.notify)) < len(self.notify) or not set(EVENTS).issuperset(self.notify):
            raise BadInput("'notify' has what is no event of a job", subject="notify", hint=f"use {', '.join(EVENTS)}, each once")
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise BadInput(f"priority {self.priority} is out of range", subject="priority", hint=f"use -{MAX_PRIORITY} to {MAX_PRIORITY}")
        if not 0 <= self.time_limit <= MAX_TIME_LIMIT:
            raise BadInput(
                f"a time limit of {self.time_limit:g} seconds is out of range", subject="time_limit", hint="give seconds, or 0 for none"
            )
        for what, text in (("name", self.name), ("group", self.group), ("gpus", self.gpus), ("notify_to", self.notify_to)):
            if len(text) > MAX_NAME or not text.isprintable():
                raise BadInput(
                    f"{what} {text[:40]!r} is too long or not printable", subject=what, hint=f"at most {MAX_NAME} printable characters"
                )
        if not 0 <= self.reserve_cpus <= MOST_CORES:
            hint = "give a number of cores, or 0"
            raise BadInput(f"{self.reserve_cpus:g} reserved cores are out of range", subject="reserve_cpus", hint=hint)
        if self.secrets:
            from dockless.sched.formats.templates import check_names, check_room

            check_names([name for name, _ in self.secrets])
            check_room(self.spec.env, dict(self.secrets))
        if self.spec.gpus:
            raise BadInput("a job cannot name leased GPUs", subject="spec.gpus", hint="ask with JobSpec.gpus; the daemon leases them")


def _check_order(job: JobSpec) -> None:
    """What it waits for."""
    if not 0 <= job.begin <= MAX_MOMENT:
        raise BadInput(f"begin {job.begin:g} is out of range", subject="begin", hint="give seconds since 1970, or 0")
    if not 0 <= job.array_limit <= MAX_PRIORITY:
        raise BadInput(f"an array limit of {job.array_limit} is out of range", subject="array_limit", hint="give a number of jobs, or 0")
    if not 0 <= job.retries <= MAX_AFTER or len(job.retry_on) > 255 or not all(0 < code < 256 for code in job.retry_on):
        hint = f"give 0 to {MAX_AFTER} retries, after exit codes of 1 to 255"
        raise BadInput("retries are out of range", subject="retries", hint=hint)
    if job.singleton and not job.name:
        raise BadInput("a singleton needs a name", subject="singleton", hint="the jobs of one name run one after the other: give --name")
    if len(job.after) > MAX_AFTER:
        raise BadInput(
            f"a job may wait for {MAX_AFTER} others, not {len(job.after)}", subject="after", hint="let one job gather the others"
        )
    numbers = [parse_dependency(text)[0] for text in job.after]
    if len(set(numbers)) < len(numbers):
        raise BadInput("a job is named twice", subject="after", hint="name each job once")


def _check_warning(job: JobSpec) -> None:
    if not job.warn_signal and not job.warn_before:
        return
    if not 0 < job.warn_signal <= 64 or job.warn_signal in (signal.SIGKILL, signal.SIGSTOP):
        raise BadInput(f"signal {job.warn_signal} warns nobody", subject="warn", hint="give one that the program can handle: USR1@2m")
    if not job.time_limit:
        raise BadInput("a warning before the time limit needs one", subject="warn", hint="give a time limit, too")
    if not 0 < job.warn_before < job.time_limit:
        raise BadInput(
            f"{job.warn_before:g} seconds before the time limit is not while the job runs",
            subject="warn",
            hint="give a time that is shorter than the time limit",
        )


def _check_role(job: JobSpec) -> None:
    if not job.role:
        if (job.min_failed, job.min_succeeded, job.ports) != (1, 0, ()):
            hint = "leave out ports, min_failed and min_succeeded, or submit it together with others"
            raise BadInput("a job without a role has what roles have", subject="role", hint=hint)
        return
    if not is_label(job.role):
        hint = "letters, digits, '-', '_', '.' and '~' make one, at most 64"
        raise BadInput(f"{job.role[:60]!r} is no name of a role", subject="role", hint=hint)
    if not 0 <= job.min_failed <= MAX_MEMBERS or not 0 <= job.min_succeeded <= MAX_MEMBERS:
        raise BadInput("so many of a role cannot fail or succeed", subject="role", hint=f"give 0 to {MAX_MEMBERS}")
    labels = [parse_port(text)[0] for text in job.ports]
    if len(set(labels)) < len(labels):
        raise BadInput("a label of ports is there twice", subject="ports", hint="give each a name of its own")


def meets(how: str, state: State) -> bool:
    """Whether that end is what ``after`` asks for."""
    return how == "any" or (how == "ok") == (state is State.COMPLETED)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a job asks of the scheduler beyond its place, as it stands now. Only what differs from these defaults is stored.

    ``held``: who keeps it from starting, empty for nobody; ``held_by_admin``: and that was an administrator, of another's job. ``begin``,
    ``after``, ``singleton``, ``array_limit``, ``retries``, ``retry_on``, ``warn_signal``, ``warn_before``, ``notify``, ``notify_to``: as in
    ``JobSpec``. ``warned``: the attempt that got its warning, or is just about to.
    ``tried``: how many retries it had; ``retry_at``: when the next may begin. ``requeue``: why its running attempt is just being ended
    for another, empty for none; ``preempted_by``: the job for which it is just giving back its GPUs, 0 for none. ``gpu_class``: what its
    GPUs are, as ``HostGpus.class_of`` says it.
    ``gpu_share``: MiB that it has of a GPU that can be shared; 0 where its GPUs are its own. ``enforced_by``: what has kept it to the
    memory of a GPU that it asked for since it last started: ``slice`` (MIG), ``driver`` (a limit of its control group), ``mps`` (a limit
    that its programs can leave; it is ended then) or ``watchdog`` (it is ended when it has more); empty where it has whole GPUs.
    ``shared_place``: of jobs that start together, which of the GPUs that they share it is on, counted from 1; 0 where it has its own.
    ``millicores``: that its limits or ``JobSpec.reserve_cpus`` say, in thousandths of a core, and ``memory``, in bytes, that its limits
    say or keep for it; 0 where they do not.

    Of jobs that start together: ``role``, and ``role_index``: its place in it; ``members``: how many they are; ``min_failed``,
    ``min_succeeded``, ``labels`` (``JobSpec.ports``); ``ports``: the numbers that its newest attempt has, its own first. Of the first of
    them alone, for all: ``ending``: why they are just being ended, ``done`` or ``failed:JOB``, empty where they are not.
    """

    held: str = ""
    held_by_admin: bool = False
    begin: float = 0.0
    after: tuple[str, ...] = ()
    singleton: bool = False
    array_limit: int = 0
    preempted_by: int = 0
    retries: int = 0
    retry_on: tuple[int, ...] = ()
    warn_signal: int = 0
    warn_before: float = 0.0
    warned: int = 0
    tried: int = 0
    retry_at: float = 0.0
    requeue: str = ""
    notify: tuple[str, ...] = ()
    notify_to: str = ""
    gpu_class: str = ""
    gpu_share: int = 0
    shared_place: int = 0
    enforced_by: str = ""
    millicores: int = 0
    memory: int = 0
    role: str = ""
    role_index: int = 0
    members: int = 0
    min_failed: int = 1
    min_succeeded: int = 0
    labels: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    ending: str = ""


NO_OPTIONS = JobOptions()


def options_of(job: JobSpec, user: str, gpu_class: str = "", gpu_share: int = 0) -> JobOptions:
    """As a job of that user begins."""
    limits = job.spec.limits
    cores = max(limits.cpu_max or 0, job.reserve_cpus)
    memory = max(limits.memory_max or 0, limits.memory_low or 0, limits.memory_min or 0)
    found = JobOptions(
        held=user if job.hold else "", begin=job.begin, after=job.after, singleton=job.singleton, array_limit=job.array_limit,
        retries=job.retries, retry_on=job.retry_on, warn_signal=job.warn_signal, warn_before=job.warn_before,
        notify=job.notify, notify_to=job.notify_to, gpu_class=gpu_class, gpu_share=gpu_share,
        millicores=math.ceil(round(cores * 1000, 6)), memory=memory,
        role=job.role, min_failed=job.min_failed, min_succeeded=job.min_succeeded, labels=job.ports,
    )  # fmt: skip
    return NO_OPTIONS if found == NO_OPTIONS else found


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to run a job. Times are seconds since the epoch; ``exit`` is the sandbox's exit record as JSON, see ``Exit``; ``gpu_errors``:
    what the driver reported of its GPUs while it ran, in words, each once and only the first few."""

    job: int
    number: int
    state: AttemptState
    sandbox: str
    gpus: tuple[str, ...] = ()
    started: float = 0.0
    ended: float = 0.0
    reason: str = ""
    exit: dict[str, Any] | None = None
    gpu_errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the queue shows it. JSON-able by ``as_dict``.

    ``gpus``: as asked; ``gpu_count``: how many that is; ``devices``: UUIDs it holds now or held last. ``attempt``: number of the newest
    attempt, 0 before the first. ``exit_code``: shell style (128+N by signal N, 124 by time limit), None while there is none.
    ``array``/``index``: the id of the first job of its array, or of those that it starts together with, and the place among them; 0/0
    elsewhere (``array`` is 0 there).
    ``place``, ``starts_in``, ``starts_after``: as in ``Why``, of those that wait, and in listings alone.
    ``name``, ``image``, ``command``, ``options`` and, unless it waits, ``reason`` are empty in what other users see.
    """

    id: int
    uid: int
    user: str
    state: State
    reason: str = ""
    name: str = ""
    group: str = ""
    image: str = ""
    command: str = ""
    gpus: str = ""
    gpu_count: int = 0
    devices: tuple[str, ...] = ()
    priority: int = 0
    time_limit: float = 0.0
    on_reboot: OnReboot = "fail"
    submitted: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    attempt: int = 0
    exit_code: int | None = None
    signal: int | None = None
    array: int = 0
    index: int = 0
    options: JobOptions = NO_OPTIONS
    place: int = 0
    starts_in: float | None = None
    starts_after: float | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def gang(self) -> int:
        """The id of the first of those that it starts together with, 0 for none. What is asked of the first is asked of all."""
        return self.array if self.options.role else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``; what it holds reads back with ``Job.from_dict``."""
        out: dict[str, Any] = {name: getattr(self, name) for name in _JOB_FIELDS}
        out["state"] = str(self.state)
        out["devices"] = list(self.devices)
        out["options"] = differences(self.options)
        out["attempts"] = [
            {name: (str(value) if name == "state" else list(value) if name in _TUPLES else value) for name, value in _fields(attempt)}
            for attempt in self.attempts
        ]
        return out

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Job:
        """The inverse of ``as_dict``; fields of a newer daemon are ignored."""
        known = {name: data[name] for name in _JOB_FIELDS if name in data}
        known["state"] = State(known["state"])
        known["devices"] = tuple(known.get("devices", ()))
        known["options"] = read_options(known.get("options", {}))
        attempts = []
        for item in known.get("attempts", ()):
            fields = {name: item[name] for name in Attempt.__slots__ if name in item}
            fields["state"] = AttemptState(fields["state"])
            fields |= {name: tuple(fields.get(name, ())) for name in _TUPLES}
            attempts.append(Attempt(**fields))
        known["attempts"] = tuple(attempts)
        return Job(**known)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs a listing has; what is left empty filters nothing. ``since``, ``until``: seconds since 1970, jobs that had not ended
    before the one and were submitted by the other."""

    user: str = ""
    group: str = ""
    states: tuple[State, ...] = ()
    since: float | None = None
    until: float | None = None

    def keeps(self, job: Job) -> bool:
        return (
            (not self.user or job.user == self.user)
            and (not self.group or job.group == self.group)
            and (not self.states or job.state in self.states)
            and (self.since is None or not job.ended or job.ended >= self.since)
            and (self.until is None or job.submitted <= self.until)
        )


EVERY_JOB = Filter()


def read_options(values: dict[str, Any]) -> JobOptions:
    """The inverse of ``records.differences``; fields of a newer daemon are ignored."""
    return read(JobOptions, values, "options", newer=True) if values else NO_OPTIONS


_TUPLES = ("gpus", "gpu_errors")
_JOB_FIELDS: tuple[str, ...] = tuple(Job.__slots__)


def _fields(attempt: Attempt) -> list[tuple[str, Any]]:
    return [(name, getattr(attempt, name)) for name in Attempt.__slots__]


def sandbox_id(job: int, attempt: int, queue: str) -> str:
    """The name of the sandbox that an attempt runs in; also its key when a daemon comes back. It ends with the queue's own name, since
    control groups are the whole host's: two queues both have a job 1."""
    return f"job-{job}-{attempt}-{queue[:8]}"


def final_state(exit_record: dict[str, Any], cancelled: bool, why: str = "") -> tuple[State, str]:
    """How a job ended and why, from its exit record. A cancel that was committed wins over what the program made of its signal; ``why``: it
    was ended for, where its owner did not ask for it."""
    code, signal = exit_record.get("code"), exit_record.get("signal")
    how = f"exit code {code}" if signal is None else f"killed by signal {signal}"
    if cancelled:
        return State.CANCELLED, f"{why or 'cancelled while it ran'} ({how})"
    if exit_record.get("timed_out"):
        return State.TIMEOUT, "reached its time limit"
    if code == 0:
        return State.COMPLETED, ""
    if exit_record.get("oom_killed"):
        return State.OOM, f"out of memory ({how})"
    return State.FAILED, how


def shell_code(exit_record: dict[str, Any]) -> int | None:
    """The exit code as a shell shows it: 124 by time limit, 128+N by signal N."""
    signal, code, timed_out = exit_record.get("signal"), exit_record.get("code"), bool(exit_record.get("timed_out"))
    if signal is not None:
        return exit_code(-int(signal), timed_out)
    return exit_code(int(code or 0), timed_out) if code is not None or timed_out else None
