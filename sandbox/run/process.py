"""A running plan: start it, wait for it, end it.

::

    starter                             launcher (keeper)
     │ plan in a memfd, clone3 + exec      │
     │────────────────────────────────────►│ operations …
     │◄──────────────── FAILED(op, errno) ─│   or
     │◄──────────────────── READY(init) ───│ the program has been exec'd
     │ ── a byte, or the end of the leash ►│ kills the tree
     │◄───────────── STATUS(raw status) ───│ after everything inside is dead

The keeper ends what is past its deadline. Where it does not, because somebody stopped it or the kernel does not wake it, whoever waits
here does: first by the leash and SIGCONT, then with SIGKILL for the keeper and init. What survives that is said, ``NotEnded``.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import math
import os
import select
import struct
import time
from collections.abc import Callable, Mapping, Sequence

from dockless import native
from dockless.base import signal
from dockless.base.dataclass import dataclass, replace
from dockless.base.descriptors import send
from dockless.base.exit_codes import exit_code
from dockless.base.interrupts import waiting
from dockless.base.pidfds import hold
from dockless.base.typing import TYPE_CHECKING, Literal
from dockless.base.waits import readable
from dockless.cgroups import Usage
from dockless.errors import BadInput, LaunchFailed, NotEnded, SandboxError, SandboxGone
from dockless.sandbox.plan import failure
from dockless.sandbox.plan.plan import (
    HEADER_SIZE,
    SLOT_LEASH,
    SLOT_PLAN,
    SLOT_REPORT,
    Plan,
    Record,
    encode,
    filled_in,
    in_memory,
    read_record,
)

if TYPE_CHECKING:
    from _socket import socket

_REPORT = struct.Struct("<HHiQ")
_READY, _FAILED, _STATUS, _WAITING = 1, 2, 3, 4
TIMED_OUT, KILLED, INIT_DIED, LEASH, IDLE, EXPIRED, LOST, RESTART, UNENDED = 1, 2, 4, 8, 16, 32, 64, 128, 256
Deadline = Literal["", "timeout", "idle_timeout", "ttl"]
LATE = 1.0
"""Seconds that a keeper may be late in ending what is past its deadline."""
KILLED_FOR = 10.0
"""Seconds from a kill until the keeper is killed too: it is stopped or stuck, or much memory is given back."""
AT_LAST = 20.0
"""Seconds from then until nobody waits any more."""
_NOT_YET, _TOLD, _FORCED, _GIVEN_UP = range(4)
"""How far ending it has got: its keeper was told, keeper and init were killed, ``NotEnded`` was raised."""


Launch = Callable[[Mapping[int, int]], native.Launched]
Counted = Callable[[], Usage | None]


def nobody() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Exit:
    """How a sandbox ended. Exactly one of ``code`` and ``signal`` is set. Times: seconds since the epoch; ``setup``: seconds from the
    call to the exec. ``max_rss``: bytes of the largest process. ``lost``: its keeper was killed, not by us: nobody saw how it ended.
    ``limit``: which one, where it timed out. ``restarting``: its restart policy restarts it. ``unended``: what a command had started in it
    could not be ended, so the sandbox was; of that command, too."""

    code: int | None
    signal: int | None
    timed_out: bool = False
    oom_killed: bool = False
    killed: bool = False
    started: float = 0.0
    ended: float = 0.0
    setup: float = 0.0
    max_rss: int = 0
    usage: Usage | None = None
    lost: bool = False
    limit: Deadline = ""
    restarting: bool = False
    unended: bool = False

    @property
    def returncode(self) -> int:
        """As ``subprocess`` has it: the code, or minus the signal."""
        return self.code if self.code is not None else -(self.signal or 0)

    @property
    def exit_code(self) -> int:
        """As a shell has it: the code, 128 + signal, 124 for a timeout."""
        return exit_code(self.returncode, self.timed_out)


def deadline_of(outcome: int) -> Deadline:
    """Which limit has passed, from the keeper's outcome bits."""
    if not outcome & TIMED_OUT:
        return ""
    return "idle_timeout" if outcome & IDLE else "ttl" if outcome & EXPIRED else "timeout"


def exit_of(status: int, outcome: int, *, lost: bool = False, **more: object) -> Exit:
    """From a raw wait status, wait(2), and the keeper's outcome bits."""
    signalled = os.WIFSIGNALED(status)
    return Exit(
        code=None if signalled else os.WEXITSTATUS(status),
        signal=os.WTERMSIG(status) if signalled else None,
        timed_out=bool(outcome & TIMED_OUT),
        limit=deadline_of(outcome),
        killed=bool(outcome & (KILLED | LEASH)),
        lost=bool(outcome & LOST) or lost,
        restarting=bool(outcome & RESTART),
        unended=bool(outcome & UNENDED),
        **more,  # type: ignore[arg-type]
    )


def with_usage(ended: Exit, usage: Usage | None) -> Exit:
    """The exit with the cgroup's numbers; what the cgroup does not count stays as the keeper counted it."""
    if usage is None:
        return ended
    own = ended.usage
    if own is not None and usage.cpu_seconds is None:
        usage = replace(
            usage,
            cpu_seconds=own.cpu_seconds,
            user_seconds=own.user_seconds,
            system_seconds=own.system_seconds,
        )
    return replace(ended, usage=usage, oom_killed=bool(usage.oom_kills))


def check_signal(number: int) -> None:
    """``BadInput`` for a signal that cannot be passed on: SIGSTOP would stop the keeper, and then nobody could end the sandbox."""
    if number == signal.SIGSTOP:
        raise BadInput("SIGSTOP cannot be sent to a sandbox", subject=str(number), hint="to pause it: pause(), or `dockless pause`")
    if not 0 < number <= signal.SIGRTMAX:
        hint = f"give a number from 1 to {int(signal.SIGRTMAX)}: signal.SIGTERM"
        raise BadInput(f"signal {number} cannot be sent to a sandbox", subject=str(number), hint=hint)


class Process:
    """A started plan. Owns its pidfd, its pipes and its plan; ``wait`` and ``close`` give them back. Safe to use from several threads.

    ``counted``: asked once, at its end, what it used; None where only its keeper knows."""

    def __init__(
        self, launched: native.Launched, plan: Plan, plan_fd: int, report_fd: int, leash_fd: int, started: float, counted: Counted = nobody
    ) -> None:
        self._launched = launched
        self._plan = plan
        self._plan_fd = plan_fd
        self._report_fd = report_fd
        self._leash_fd = leash_fd
        self._init_fd = -1
        self._timer_fd = -1
        self._watched: select.epoll | None = None
        self._lock = _thread.RLock()
        self._exit: Exit | None = None
        self._owner = os.getpid()
        self._started = started
        self._clock = time.monotonic()
        self._ending = _NOT_YET
        self._late = False
        self._counted = counted
        self.last_resort: Callable[[], bool] = bool
        """Ends the sandbox that it entered, where nothing else ends what it started. Whether it has."""
        self._unended = False
        self._due = self._limit()
        self.setup = 0.0
        self.pid = 0

    def _limit(self) -> float:
        """When the keeper must have ended it, on the monotonic clock."""
        plan = self._plan
        return time.monotonic() + plan.timeout + plan.grace + LATE if plan.timeout else math.inf

    @property
    def keeper_pid(self) -> int:
        return self._launched.pid

    @classmethod
    def taken_over(cls, plan: Plan, keeper: int, init: int, descriptors: Sequence[int]) -> Process:
        """One that another process has begun, and lets go of. ``init``: 0 where nobody has seen it wait. ``descriptors``: its
        ``descriptors``, which are ours from now on."""
        plan_fd, report, leash, pidfd = descriptors
        process = cls(native.Launched(keeper, pidfd, False), plan, plan_fd, report, leash, time.time())
        process._due = math.inf
        process.pid = init
        return process

    @property
    def descriptors(self) -> tuple[int, int, int, int]:
        """What another process takes it over by, after which we ``release`` it: plan, report, leash, pidfd."""
        return self._plan_fd, self._report_fd, self._leash_fd, self._launched.pidfd

    def keeper_pidfd(self) -> int:
        """A pidfd of the keeper; the caller closes it. ``SandboxGone`` if it has ended."""
        self.check_owner()
        if self._plan_fd < 0 or self._exit is not None:
            hint = f"read its exit with wait(); for more commands {LASTS}"
            raise SandboxGone("the sandbox has ended", hint=hint)
        return os.dup(self._launched.pidfd)

    @property
    def forked(self) -> bool:
        """Whether we are a child that forked from the process that started it: its sandbox is not ours to wait for or to end."""
        return os.getpid() != self._owner

    def check_owner(self) -> None:
        """``SandboxError`` in a forked child: what the keeper says once would be lost for whoever waits for it."""
        if self.forked:
            message = f"the sandbox belongs to process {self._owner}, from which this one was forked"
            raise SandboxError(message, subject=str(self._owner), hint="wait for it and end it there, or start one of your own")

    def fileno(self) -> int:
        """Readable when ``poll`` has something to do: for select, poll and asyncio. Mostly it has ended then; ``poll`` knows."""
        with self._lock:
            if self._watched is None:
                self._timer_fd = native.timer(math.inf)
                self._watched = select.epoll()
                for fd in (self._report_fd, self._timer_fd):
                    self._watched.register(fd, select.EPOLLIN)
                self._set_due(self._due)
            return self._watched.fileno()

    def _set_due(self, due: float) -> None:
        self._due = due
        if self._timer_fd >= 0:
            native.timer(due - time.monotonic(), self._timer_fd)

    def await_barrier(self) -> None:
        """Until it waits for its program; else the error of the operation that failed."""
        self.pid = self._await_report(_WAITING)

    @property
    def waits(self) -> bool:
        """Whether it waits for its program, or will: it has not ended."""
        return not readable(self._launched.pidfd, 0)

    def give(self, owner: socket, beginning: int, stdio: Sequence[int]) -> None:
        """Give one that waits its program, once. ``beginning``: the sealed memfd of its command. ``SandboxGone`` where it has ended."""
        self._started, self._clock = time.time(), time.monotonic()
        try:
            send(owner, b"t", [beginning, *stdio])
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise self._not_taken() from None
            raise failure.not_started(error) from error

    def await_given(self, plan: Plan) -> None:
        """Until that program has been exec'd. ``plan``: what it was prepared by, with the command. Errors: as of ``start``; ``SandboxGone``
        where it had ended, and nothing has run."""
        self._plan = plan
        self._due = self._limit()
        try:
            self._await_ready(detached=False)
        except LaunchFailed:
            record = self.record()
            if not record.error and record.phase in ("keeper", "init"):
                raise self._not_taken() from None
            raise

    def _not_taken(self) -> SandboxGone:
        return gone(f"of process {self.keeper_pid}", "it ended while it waited for its program", "take another one")

    def _await_ready(self, detached: bool) -> None:
        """Until the program has been exec'd; else the error of the operation that failed."""
        self.pid = self._await_report(_READY)
        if not detached:  # that one is about to be released, and must not end for want of a descriptor now that it runs
            try:
                self._init_fd = hold(self.pid)
            except ProcessLookupError:
                pass  # it has ended already
            except OSError as error:
                raise failure.not_started(error) from error
        self.setup = time.monotonic() - self._clock
        self._due = self._limit()

    def _await_report(self, kind: int) -> int:
        """What it says in the next report, which must be of this kind."""
        with waiting():
            self._await(self._report_fd, math.inf)
        raw = _read_report(self._report_fd)
        if raw is None or raw[0] != kind:
            record = self.record()
            if self._late or (not record.error and record.outcome & TIMED_OUT):
                raise failure.too_late(self._plan, record.pc, deadline_of(record.outcome) or "timeout")
            raise failure.explain(self._plan, record.pc if raw is None else raw[1], 0 if raw is None else raw[2])
        return raw[2]

    def record(self) -> Record:
        """The flight recorder: where the launcher is, and the times of its operations if they were asked for."""
        size = os.fstat(self._plan_fd).st_size
        return read_record(os.pread(self._plan_fd, size, 0))

    def poll(self) -> Exit | None:
        """How it ended, or None while it runs."""
        return self._collect(0)

    def wait(self, timeout: float | None = None) -> Exit:
        """How it ended. ``TimeoutError`` after ``timeout`` seconds; the sandbox then goes on."""
        ended = self._collect(timeout)
        if ended is None:
            raise TimeoutError(f"the sandbox still runs after {timeout} s")
        return ended

    def _collect(self, timeout: float | None) -> Exit | None:
        if self._exit is None:
            self.check_owner()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while self._exit is None:
            if not self._await(self._report_fd, deadline):
                return None
            with self._lock:
                if self._exit is None:
                    self._finish(_read_report(self._report_fd))
        return self._exit

    def _await(self, fd: int, deadline: float) -> bool:
        """Until ``fd`` is readable. False at ``deadline``; ``NotEnded`` where what should have ended long ago has not."""
        while True:
            if readable(fd, min(deadline, self._due) - time.monotonic()):
                return True
            now = time.monotonic()
            if now >= self._due:
                with self._lock:
                    if now >= self._due:
                        self._end_it()
            if now >= deadline:
                return readable(fd, 0)

    def _end_it(self) -> None:
        """It should have ended by now: the next way to end it."""
        if self._ending == _NOT_YET:
            self._late = True
            self.kill()
        elif self._ending == _TOLD:
            self._ending = _FORCED
            for fd in (self._init_fd, self._launched.pidfd):
                _kill(fd)
            self._unended = self.last_resort()
            self._set_due(time.monotonic() + AT_LAST)
        else:
            self._ending = _GIVEN_UP
            both = ((self.keeper_pid, self._launched.pidfd), (self.pid, self._init_fd))
            raise not_ended("the sandbox", *(pid for pid, fd in both if _lives(fd)))

    def _finish(self, raw: tuple[int, int, int] | None) -> None:
        record = read_record(os.pread(self._plan_fd, HEADER_SIZE, 0))
        lost = False
        if raw is not None and raw[0] == _STATUS:
            status, outcome = raw[2], raw[1]
        else:  # the keeper was killed, and the kernel kills init for that
            _kill(self._init_fd)
            if self._ending == _NOT_YET:
                lost = True
                self._ending, self._due = _FORCED, time.monotonic() + AT_LAST
            if self._init_fd >= 0:
                self._await(self._init_fd, math.inf)
            status, outcome = signal.SIGKILL, 0 if lost else KILLED
        if self._late:
            outcome |= TIMED_OUT
        if self._unended:
            outcome |= UNENDED
        usage = self._counted()
        if usage is None or usage.cpu_seconds is None:
            usage = Usage(cpu_seconds=record.user + record.system, user_seconds=record.user, system_seconds=record.system)
        times = {"started": self._started, "ended": record.ended or time.time(), "setup": self.setup}
        self._exit = exit_of(status, outcome, **times, max_rss=record.max_rss, usage=usage, lost=lost)

    def send_signal(self, number: int) -> None:
        """To the program itself, by way of the keeper and init; SIGKILL ends everything. ``SandboxGone`` if it has ended."""
        check_signal(number)
        self.check_owner()
        if number == signal.SIGKILL:
            return self.kill()
        try:
            if self._exit is not None:
                raise ProcessLookupError
            signal.pidfd_send_signal(self._launched.pidfd, number)
        except ProcessLookupError:
            raise SandboxGone("the sandbox has ended", hint="read its exit with wait()") from None

    def kill(self) -> None:
        """SIGKILL to everything inside, at once. No error if it has ended."""
        self.check_owner()
        with self._lock:
            if self._plan_fd < 0:  # it was closed, which ended it; its descriptors are others' by now
                return
            if self._ending == _NOT_YET:
                self._ending = _TOLD
                self._set_due(time.monotonic() + KILLED_FOR)
            with contextlib.suppress(BrokenPipeError, ProcessLookupError):
                if self._leash_fd >= 0:  # else the keeper has read its end
                    os.write(self._leash_fd, b"K")
                signal.pidfd_send_signal(self._launched.pidfd, signal.SIGCONT)  # somebody may have stopped the keeper

    def release(self) -> None:
        """Let go of a detached sandbox: it goes on by itself, and nobody of ours waits for it."""
        with self._lock:  # nobody is just about to write to one of them
            if self._watched is not None:
                self._watched.close()
            held = {self._leash_fd, self._report_fd, self._plan_fd, self._init_fd, self._timer_fd, self._launched.pidfd}
            self._leash_fd = self._report_fd = self._plan_fd = self._init_fd = self._timer_fd = -1
            for fd in held - {-1}:
                os.close(fd)

    def entrust(self) -> int:
        """Let go of one that shall go on as long as somebody else lives: the end of its leash, for him to hold; the caller closes it."""
        leash, self._leash_fd = self._leash_fd, -1
        self.release()
        return leash

    @property
    def ended(self) -> bool:
        """Whether it is known how it ended: everything inside is dead."""
        return self._exit is not None

    def apart(self) -> Process:
        """What is left to be closed of one that has ended, for who does so later; this one is closed."""
        with self._lock:
            rest = Process(self._launched, self._plan, self._plan_fd, self._report_fd, self._leash_fd, self._started)
            rest._init_fd, rest._timer_fd, rest._watched, rest._exit = self._init_fd, self._timer_fd, self._watched, self._exit
            self._leash_fd = self._report_fd = self._plan_fd = self._init_fd = self._timer_fd = -1
            return rest

    def close(self) -> None:
        """Let go of the leash, which ends the sandbox if it still runs, and give back every fd. ``NotEnded`` where it does not end."""
        if self._plan_fd < 0:
            return
        with self._lock:
            leash, self._leash_fd = self._leash_fd, -1
            if leash >= 0:
                os.close(leash)
        try:
            if self._launched.child or self._exit is None:  # else it has said how all ended, and is somebody else's to collect
                self._due = min(self._due, time.monotonic() + LATE)
                self._await(self._launched.pidfd, math.inf)
            if self._launched.child:
                native.reap(self._launched.pidfd)
        finally:
            self.release()


LASTS = "give it a program that lasts, like `sleep infinity`"
ENDS_WITH_IT = f"it ends with its program: {LASTS}"
"""What to do about a sandbox that went with its program. A hint."""


def gone(id: str, why: str = "", hint: str = "") -> SandboxGone:
    """The error for a sandbox that does not run, or of which nobody can say how it ended."""
    what = f"sandbox {id} has vanished: {why}" if why else f"sandbox {id} is not running"
    return SandboxGone(what, subject=id, hint=hint or "'dockless ps --all' lists what there is")


def missing(id: str) -> SandboxGone:
    """The error for a sandbox that there is not, or no longer."""
    return SandboxGone(f"there is no sandbox {id}", subject=id, hint="'dockless ps --all' lists what there is")


def not_ended(what: str, *pids: int) -> NotEnded:
    """The error for a sandbox that SIGKILL did not end."""
    who = " and ".join(f"process {pid}" for pid in pids if pid) or "its keeper"
    lives = "still live" if len(pids) > 1 else "still lives"
    hint = "nothing ends a process that waits for a device or a network file system that does not answer: see its /proc/PID/stack"
    return NotEnded(f"{what} was killed and has not ended: {who} {lives}", subject=str(next(iter(pids), "")), hint=hint)


def _lives(pidfd: int) -> bool:
    return pidfd >= 0 and not readable(pidfd, 0)


def _kill(pidfd: int) -> None:
    if pidfd >= 0:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _read_report(fd: int) -> tuple[int, int, int] | None:
    raw = os.read(fd, _REPORT.size)
    return _REPORT.unpack(raw)[:3] if len(raw) == _REPORT.size else None


def start(
    plan: Plan,
    raw: bytes | bytearray,
    fds: Mapping[int, int],
    launch: Launch = native.launch,
    within: float = math.inf,
    counted: Counted = nobody,
    detached: bool = False,
) -> Process:
    """Carry out a plan, encoded in ``raw``, with these fds in its slots (0-2 are the program's). Returns when the program has been exec'd.
    ``launch`` starts the keeper with all its fds. ``within``: seconds after which it is given up. ``counted``: see ``Process``.
    ``detached``: it is released next.

    Errors: ``LaunchFailed`` and its relatives, which name the operation; nothing is left behind then.
    """
    process = begin(plan, raw, fds, launch, counted)
    process._due = min(process._due, time.monotonic() + within)
    try:
        process._await_ready(detached)
    except BaseException:
        process.kill()  # a detached one does not end with us: it has a second, and is killed then
        process.close()
        raise
    return process


def prepare(plan: Plan, raw: bytes | bytearray, fds: Mapping[int, int], launch: Launch = native.launch) -> Process:
    """Begin to carry out a plan with a BARRIER, up to that: ``Process.give`` gives it its program. Returns at once, and no deadline of the
    sandbox has begun. Errors: ``LaunchFailed`` where there is no process to be had."""
    process = begin(plan, raw, fds, launch)
    process._due = math.inf
    return process


def begin(plan: Plan, raw: bytes | bytearray, fds: Mapping[int, int], launch: Launch, counted: Counted = nobody) -> Process:
    """The keeper, which carries out a plan by itself from here on."""
    started = time.time()
    ours: list[int] = []
    theirs: list[int] = []
    try:
        ours.append(in_memory(raw))
        for mine, its in ((0, 1), (1, 0)):  # of the report we read, of the leash we hold the end that is written
            both = os.pipe2(os.O_CLOEXEC)
            ours.append(both[mine])
            theirs.append(both[its])
        plan_fd, report, leash = ours
        launched = launch({**fds, SLOT_PLAN: plan_fd, SLOT_REPORT: theirs[0], SLOT_LEASH: theirs[1]})
        ours.clear()
    except OSError as error:
        raise failure.not_started(error) from error
    finally:
        for fd in (*theirs, *ours):
            os.close(fd)
    return Process(launched, plan, plan_fd, report, leash, started, counted)


def errand(plan: Plan, fds: Mapping[int, int], *, name: str = "dockless-errand", restarts: bool = False) -> None:
    """Carry out operations of the keeper alone and wait for them. ``restarts``: it leaves a restarter behind, native/launcher/restarter.c.
    Errors: ``LaunchFailed``"""
    with contextlib.ExitStack() as opened:
        try:
            plan_fd = in_memory(filled_in(encode(plan), restarts=restarts))
            opened.callback(os.close, plan_fd)
            report, writer = os.pipe2(os.O_CLOEXEC)
            opened.callback(os.close, report)
            with open(writer, "wb"):
                launched = native.launch({**fds, SLOT_PLAN: plan_fd, SLOT_REPORT: writer}, name=name)
        except OSError as error:
            raise failure.not_started(error) from error
        native.reap(launched.pidfd)
        raw = _read_report(report)
        os.close(launched.pidfd)
    if raw is None or raw[0] != _STATUS:
        raise failure.explain(plan, -1 if raw is None else raw[1], 0 if raw is None else raw[2])
