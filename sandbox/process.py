"""A running plan: start it, wait for it, end it.

::

    host                                launcher (keeper)
     │ plan in a memfd, clone3 + exec      │
     │────────────────────────────────────►│ operations …
     │◄──────────────── FAILED(op, errno) ─│   or
     │◄──────────────────── READY(init) ───│ the program has been exec'd
     │ ── a byte, or the end of the leash ►│ kills the tree
     │◄───────────── STATUS(raw status) ───│ after everything inside is dead
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from dockless import native
from dockless.cgroups import Usage
from dockless.errors import BadInput, SandboxGone
from dockless.sandbox import failure
from dockless.sandbox.plan import HEADER_SIZE, SLOT_LEASH, SLOT_PLAN, SLOT_REPORT, Plan, Record, encode, read_record

_REPORT = struct.Struct("<HHiQ")
_READY, _FAILED, _STATUS = 1, 2, 3
TIMED_OUT, KILLED, INIT_DIED, LEASH = 1, 2, 4, 8
EXIT_TIMED_OUT = 124


@dataclass(frozen=True, slots=True)
class Exit:
    """How a sandbox ended. Exactly one of ``code`` and ``signal`` is set. Times: seconds since the epoch; ``setup``: seconds from the
    call to
    the exec. ``max_rss``: bytes of the largest process."""

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

    @property
    def returncode(self) -> int:
        """As ``subprocess`` has it: the code, or minus the signal."""
        return self.code if self.code is not None else -(self.signal or 0)

    @property
    def exit_code(self) -> int:
        """As a shell has it: the code, 128 + signal, 124 for a timeout."""
        if self.timed_out:
            return EXIT_TIMED_OUT
        return self.code if self.code is not None else 128 + (self.signal or 0)


def exit_of(status: int, outcome: int, **more: object) -> Exit:
    """From a raw wait status, wait(2), and the keeper's outcome bits."""
    signalled = os.WIFSIGNALED(status)
    return Exit(
        code=None if signalled else os.WEXITSTATUS(status),
        signal=os.WTERMSIG(status) if signalled else None,
        timed_out=bool(outcome & TIMED_OUT),
        killed=bool(outcome & (KILLED | LEASH)),
        **more,  # type: ignore[arg-type]
    )


def check_signal(number: int) -> None:
    """``BadInput`` for a signal that cannot be passed on: SIGSTOP would stop the keeper, and then nobody could end the sandbox."""
    if number == signal.SIGSTOP or not 0 < number <= signal.SIGRTMAX:
        name = "SIGSTOP" if number == signal.SIGSTOP else f"signal {number}"
        raise BadInput(f"{name} cannot be sent to a sandbox", subject=str(number), hint="to make it stand still, freeze its cgroup")


class Process:
    """A started plan. Owns its pidfd, its pipes and its plan; ``wait`` and ``close`` give them back. Safe to use from several threads."""

    def __init__(self, launched: native.Launched, plan: Plan, plan_fd: int, report_fd: int, leash_fd: int, started: float) -> None:
        self._launched = launched
        self._plan = plan
        self._plan_fd = plan_fd
        self._report_fd = report_fd
        self._leash_fd = leash_fd
        self._lock = threading.Lock()
        self._exit: Exit | None = None
        self._started = started
        self._clock = time.monotonic()
        self.setup = 0.0
        self.pid = 0

    @property
    def keeper_pid(self) -> int:
        return self._launched.pid

    def fileno(self) -> int:
        """Readable when the sandbox has ended: for select, poll and asyncio."""
        return self._report_fd

    def _await_ready(self) -> None:
        """Until the program has been exec'd; else the error of the operation that failed."""
        raw = _read_report(self._report_fd)
        if raw is None or raw[0] != _READY:
            record = self.record()
            if not record.error and record.outcome & TIMED_OUT:
                raise failure.too_late(self._plan, record.pc)
            raise failure.explain(self._plan, record.pc if raw is None else raw[1], 0 if raw is None else raw[2])
        self.pid = raw[2]
        self.setup = time.monotonic() - self._clock

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
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._exit is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._readable(left):
                return None
            with self._lock:
                if self._exit is None and self._readable(0):
                    self._finish(_read_report(self._report_fd))
        return self._exit

    def _readable(self, timeout: float | None) -> bool:
        poller = select.poll()  # one for each caller: a poll object refuses a second thread
        poller.register(self._report_fd, select.POLLIN)
        return bool(poller.poll(None if timeout is None else timeout * 1000))

    def _finish(self, raw: tuple[int, int, int] | None) -> None:
        record = read_record(os.pread(self._plan_fd, HEADER_SIZE, 0))
        status, outcome = (raw[2], raw[1]) if raw is not None and raw[0] == _STATUS else (signal.SIGKILL, KILLED)
        usage = Usage(cpu_seconds=record.user + record.system, user_seconds=record.user, system_seconds=record.system)
        self._exit = exit_of(
            status, outcome, started=self._started, ended=record.ended or time.time(), setup=self.setup, max_rss=record.max_rss, usage=usage
        )

    def send_signal(self, number: int) -> None:
        """To the job's own process, by way of the keeper and init; SIGKILL ends everything. ``SandboxGone`` if it has ended."""
        check_signal(number)
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
        try:
            os.write(self._leash_fd, b"K")
            signal.pidfd_send_signal(self._launched.pidfd, signal.SIGCONT)  # somebody may have stopped the keeper
        except (BrokenPipeError, ProcessLookupError):
            pass

    def release(self) -> None:
        """Let go of a detached sandbox: it goes on by itself, and nobody of ours waits for it."""
        for fd in (self._launched.pidfd, self._leash_fd, self._report_fd, self._plan_fd):
            os.close(fd)
        self._leash_fd = self._report_fd = self._plan_fd = -1

    def close(self) -> None:
        """Let go of the leash, which ends the sandbox if it still runs, and give back every fd."""
        for name in ("_leash_fd", "_report_fd", "_plan_fd"):
            fd = getattr(self, name)
            if fd < 0:
                continue
            if name == "_report_fd":
                native.reap(self._launched.pidfd)
                os.close(self._launched.pidfd)
            os.close(fd)
            setattr(self, name, -1)


def _read_report(fd: int) -> tuple[int, int, int] | None:
    raw = os.read(fd, _REPORT.size)
    return _REPORT.unpack(raw)[:3] if len(raw) == _REPORT.size else None


def start(plan: Plan, raw: bytes | bytearray, fds: Mapping[int, int], *, name: str = "dockless") -> Process:
    """Carry out a plan, encoded in ``raw``, with these fds in its slots (0-2 are the job's). Returns when the program has been exec'd.

    Errors: ``LaunchFailed`` and its relatives, which name the operation; nothing is left behind then.
    """
    started = time.time()
    with contextlib.ExitStack() as opened:
        try:
            plan_fd = os.memfd_create("dockless-plan", os.MFD_CLOEXEC)
            opened.callback(os.close, plan_fd)
            os.write(plan_fd, raw)
            report, writer = os.pipe2(os.O_CLOEXEC)
            opened.callback(os.close, report)
            with open(writer, "wb"):
                leash_reader, leash = os.pipe2(os.O_CLOEXEC)
                opened.callback(os.close, leash)
                with open(leash_reader, "rb"):
                    launched = native.launch({**fds, SLOT_PLAN: plan_fd, SLOT_REPORT: writer, SLOT_LEASH: leash_reader}, name=name)
        except OSError as error:
            raise failure.not_started(error) from error
        opened.pop_all()
    process = Process(launched, plan, plan_fd, report, leash, started)
    try:
        process._await_ready()
    except BaseException:
        process.close()
        raise
    return process


def errand(plan: Plan, fds: Mapping[int, int]) -> None:
    """Carry out operations of the keeper alone and wait for them. Errors: ``LaunchFailed``"""
    with contextlib.ExitStack() as opened:
        plan_fd = os.memfd_create("dockless-plan", os.MFD_CLOEXEC)
        opened.callback(os.close, plan_fd)
        report, writer = os.pipe2(os.O_CLOEXEC)
        opened.callback(os.close, report)
        with open(writer, "wb"):
            os.write(plan_fd, encode(plan))
            try:
                launched = native.launch({**fds, SLOT_PLAN: plan_fd, SLOT_REPORT: writer}, name="dockless-errand")
            except OSError as error:
                raise failure.not_started(error) from error
        raw = _read_report(report)
        native.reap(launched.pidfd)
        os.close(launched.pidfd)
    if raw is None or raw[0] != _STATUS:
        raise failure.explain(plan, -1 if raw is None else raw[1], 0 if raw is None else raw[2])
