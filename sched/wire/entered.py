"""A program that has entered a job, as its caller holds it: her end of ``wire.entering``."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading

from dockless.base.descriptors import received
from dockless.base.records import differences, read
from dockless.base.typing import Any
from dockless.errors import SandboxGone, SchedError
from dockless.sandbox.enter import Entry
from dockless.sandbox.run.process import Exit, check_signal
from dockless.sched.wire.client import Client

_START = 60.0
"""Seconds that a daemon may take to say that it has started, or why not."""
_MARK = b"s"
"""What the standard streams travel with: descriptors alone cannot be sent. unix(7)"""


def enter(
    job: int,
    entry: Entry,
    stdio: tuple[int, int, int],
    *,
    program: int = -1,
    size: tuple[int, int] | None = None,
    alone: bool = False,
) -> EnteredJob | Left:
    """Start what enters a job of the queue; returns when its program has been exec'd. As ``sandbox.run.door.enter``, but that a ``program``
    is the daemon's own, and that what goes on ``alone`` reads and writes nothing.

    Errors: ``UnknownJob``, ``NotPermitted``, ``SandboxGone`` for one that does not run, ``Refused``, ``DaemonUnavailable``, and those of
    a start.
    """
    client = Client(timeout=_START)
    if alone:
        with client:
            return Left(client.leave(job, differences(entry)))
    try:
        given = [] if entry.tty else list(stdio)
        with client.exec(job, differences(entry), size) as channel:
            if given:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused meanwhile: the answer says why
                    socket.send_fds(channel, [_MARK], given)
            pid = int(client.answer()["pid"])
            terminal = _terminal(channel) if entry.tty else -1
        return EnteredJob(client, pid, terminal)
    except BaseException:
        client.close()
        raise


def _terminal(channel: socket.socket) -> int:
    fds = received(channel, 1)[1]
    if not fds:
        raise SchedError("the daemon sent no terminal", hint="client and daemon are of different versions: restart the daemon")
    return fds[0]


class Left:
    """A program that goes on by itself."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def release(self) -> None:
        """As that of ``sandbox.run.door.Entered``: nothing of it is ours."""


class EnteredJob:
    """A program that has entered a job: ``sandbox.run.door.Entered`` and its process in one, by way of the daemon. ``close`` ends it if
    it still runs."""

    def __init__(self, client: Client, pid: int, terminal: int) -> None:
        self.pid = pid
        self.terminal = terminal
        self._client = client
        self._fd = os.dup(client.fileno())  # readable also when the daemon has gone away
        self._lock = threading.RLock()
        self._exit: Exit | None = None
        self._owner = os.getpid()

    @property
    def process(self) -> EnteredJob:
        return self

    def used(self) -> None:
        """The daemon does not ask about that: of what is done in a job it is entering that counts."""

    @property
    def forked(self) -> bool:
        """Whether we are a child that forked from the process that started it."""
        return os.getpid() != self._owner

    def fileno(self) -> int:
        """Readable when it has ended."""
        return self._fd

    def poll(self) -> Exit | None:
        """How it ended, or None while it runs. One whose daemon has gone away has ended with it, and is ``lost``."""
        return self._collect(0.0)

    def wait(self, timeout: float | None = None) -> Exit:
        """How it ended. ``TimeoutError`` if it still runs after ``timeout`` seconds."""
        ended = self._collect(timeout)
        if ended is None:
            raise TimeoutError(f"the program still runs after {timeout} s")
        return ended

    def _collect(self, timeout: float | None) -> Exit | None:
        if self._exit is None and self._ready(timeout):
            with self._lock:
                if self._exit is None:
                    self._exit = self._read_exit()
        return self._exit

    def _ready(self, timeout: float | None) -> bool:
        poller = select.poll()
        poller.register(self.fileno(), select.POLLIN)
        return bool(poller.poll(None if timeout is None else max(0.0, timeout) * 1000))

    def _read_exit(self) -> Exit:
        try:
            return read(Exit, self._client.answer()["exit"], "exit", newer=True)
        except SchedError:
            return Exit(code=None, signal=9, killed=True, lost=True)

    def send_signal(self, number: int) -> None:
        """A signal to its own process. ``SandboxGone`` if it has ended."""
        check_signal(number)
        if self.poll() is not None or not self._say("signal", number=number):
            raise SandboxGone("the program has ended", hint="read its exit with wait()")

    def kill(self) -> None:
        """SIGKILL to it and to all that it started. No error if it has ended."""
        if self.poll() is None:
            self._say("kill")

    def _say(self, op: str, **fields: Any) -> bool:
        with self._lock:
            return self._client.say(op, fields)

    def close(self) -> None:
        self._client.close()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
