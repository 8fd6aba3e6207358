"""Programs that enter jobs: ``dockless exec JOB``.

A job's sandbox belongs to the daemon's user, and so does its door. The daemon enters for whoever may deal with the job; it holds the
program on a leash, and the caller's connection is the other end of that.

::

    caller                        daemon                            what enters
     │ exec, the program            │                                 │
     │─────────────────────────────►│ may she? not too many?          │
     │◄───── one end of a socket ───│ ────────── its other end ──────►│ carries out its plan …
     │ standard streams ──────────────────────────────────────────────►│ which lets it in with the job's own rights
     │◄─────────────────── started ─│◄──────────────────────── READY ─│
     │ signal, kill ───────────────►│                                 │
     │◄──────────── how it ended ───│

The caller's descriptors never come to the daemon: it can neither be made to hold them nor to close one that blocks, and nothing is done
to them with its rights. The socket between the two carries a terminal the other way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from dockless.base.dataclass import replace
from dockless.base.records import plain, read
from dockless.base.typing import Any
from dockless.errors import BadInput, Refused, SandboxGone, SchedError
from dockless.sandbox.enter import Entry
from dockless.sandbox.run.door import Entered
from dockless.sched.callers import Caller
from dockless.sched.engine.admission.amounts import check_values
from dockless.sched.engine.attempts import Handle
from dockless.sched.engine.engine import Engine
from dockless.sched.jobs import Job, State
from dockless.sched.wire.protocol import decode, encode

PER_USER = 8
IN_ALL = 32
"""Programs that have entered and not ended: of one user but root, and of all. Each takes some ten descriptors of the daemon."""
LEFT = 16
"""Programs of one job that have entered and not ended, where one is to go on by itself: each has a keeper outside of the job's limits."""
_READER = "dockless-reader"
"""native/launcher/terminal.c"""
START = 20.0
"""Seconds in which a program that enters has to start: until then a thread waits for it."""
_LARGEST = 0xFFFF
"""Rows or columns of a terminal, ioctl_tty(2)."""
Line = Callable[[], Awaitable[bytes]]


class Entering:
    """``kept_back``: descriptors below the limit that are left alone."""

    def __init__(self, engine: Engine, kept_back: int) -> None:
        self._engine = engine
        self._kept_back = kept_back
        self._inside: Counter[int] = Counter()
        self._leaving: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()  # of each job where one is let in to go on
        self._pool = ThreadPoolExecutor(IN_ALL, "dockless-enter")  # one for each: none waits for another's

    async def serve(self, caller: Caller, job: Job, request: dict[str, Any], line: Line, writer: asyncio.StreamWriter) -> None:
        """Until the program has ended, or its caller hangs up, which ends it. ``line``: the next line of the caller's, empty at the end."""
        entry, size, alone = _asked(request)
        handle = self._running(job)
        with self._counted(caller):
            if alone:
                turn = self._leaving.setdefault(handle.id, threading.Lock())
                pid = await asyncio.shield(self._in_thread(partial(_leave, handle, entry, turn)))
                writer.write(encode({"ok": True, "pid": pid}))
                return
            entered = await self._enter(handle, entry, size, writer)
            try:
                writer.write(encode({"ok": True, "pid": entered.process.pid}))
                ended = await self._until_ended(entered, line)
            finally:
                await asyncio.shield(self._in_thread(entered.close))
            if ended is not None:
                writer.write(encode({"ok": True, "end": True, "exit": ended}))
                await writer.drain()

    async def attach(self, caller: Caller, job: Job, writer: asyncio.StreamWriter) -> None:
        """Hand out what a job has for who attaches: a copy of its keeper's side of its terminal, or the open end of its standard input."""
        handle = self._running(job)
        with self._counted(caller):  # a keeper that does not answer holds a thread
            kind, fd = await asyncio.shield(self._in_thread(partial(_for_who_attaches, handle)))
        if fd < 0:
            writer.write(encode({"ok": True, "attached": kind}))
            return
        try:
            await _hand_over(fd, {"ok": True, "attached": kind}, writer)
        finally:
            os.close(fd)

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def _running(self, job: Job) -> Handle:
        entry = self._engine.entries.get(job.id)
        if entry is None or entry.handle is None or job.state is not State.RUNNING:
            state = "has ended" if job.state.ended else "does not run yet"
            hint = "dockless logs shows what it wrote" if job.state.ended else "wait until it runs: dockless queue"
            raise SandboxGone(f"job {job.id} {state}", subject=str(job.id), hint=hint)
        if self._engine.closing:
            raise SchedError("the daemon is ending", hint="try again when it is back")
        return entry.handle

    @contextlib.contextmanager
    def _counted(self, caller: Caller) -> Iterator[None]:
        """``Refused`` where this user, or all together, have as many as they may."""
        self._refuse_too_many(caller)
        self._inside[caller.uid] += 1
        try:
            yield
        finally:
            self._inside[caller.uid] -= 1
            if not self._inside[caller.uid]:
                del self._inside[caller.uid]

    def _refuse_too_many(self, caller: Caller) -> None:
        free = os.dup(0)  # the lowest number that is free, open(2)
        os.close(free)
        full = self._inside.total() >= IN_ALL or free >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self._kept_back
        if full or (self._inside[caller.uid] >= PER_USER and not caller.root):
            whose = "all of the daemon's jobs" if full else f"jobs of the queue for {caller.user}"
            count = self._inside.total() if full else PER_USER
            hint = "end one of your `dockless exec`" if not full else "try again later"
            raise Refused(f"{count} programs have entered {whose}, which is the limit", subject=caller.user, hint=hint)

    async def _enter(self, handle: Handle, entry: Entry, size: tuple[int, int] | None, writer: asyncio.StreamWriter) -> Entered:
        theirs, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as opened:
            opened.enter_context(inside)
            with theirs:
                await _hand_over(theirs.fileno(), {"ok": True, "streams": True}, writer)
            start = asyncio.ensure_future(self._in_thread(partial(_enter, handle, entry, inside, size)))
            opened.pop_all()
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            start.add_done_callback(self._end_unwanted)
            raise

    def _end_unwanted(self, start: asyncio.Future[Entered]) -> None:
        if not start.cancelled() and start.exception() is None:
            self._pool.submit(start.result().close)

    async def _until_ended(self, entered: Entered, line: Line) -> dict[str, Any] | None:
        """How it ended; None if its caller has hung up."""
        ended = asyncio.ensure_future(self._ended(entered))
        killed = False
        try:
            while True:
                said = asyncio.ensure_future(line())
                try:
                    await asyncio.wait([ended, said], return_when=asyncio.FIRST_COMPLETED)
                    if ended.done():
                        return await ended
                    if not (words := await said):
                        return None
                finally:
                    said.cancel()
                number = _signal(words)
                if number is None and not killed:
                    killed = True
                    await self._in_thread(entered.kill)
                elif number is not None:
                    with contextlib.suppress(SandboxGone):  # it is just ending
                        entered.process.send_signal(number)
        finally:
            ended.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([ended])

    async def _ended(self, entered: Entered) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        fd = entered.process.fileno()
        while True:
            readable = asyncio.Event()
            loop.add_reader(fd, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(fd)
            if await asyncio.shield(self._in_thread(entered.process.poll)) is not None:
                exit = await asyncio.shield(self._in_thread(entered.wait))
                return dict(plain(exit))

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _enter(handle: Handle, entry: Entry, inside: socket.socket, size: tuple[int, int] | None) -> Entered:
    from dockless import native
    from dockless.sandbox.run import door

    with inside, open(os.devnull, "r+b", buffering=0) as nothing:
        stdio = (inside.fileno(), nothing.fileno(), nothing.fileno())
        program = native.agent() if entry.given else -1
        return door.enter(handle.entrance(), entry, stdio, program=program, size=size, within=START)


def _leave(handle: Handle, entry: Entry, turn: threading.Lock) -> int:
    """The pid of what goes on by itself, which is counted as long as it does. One of a job at a time: none passes after the count."""
    from dockless.sandbox.run import door

    with turn:
        left = _left(handle.pid)
        if left >= LEFT:
            hint = "end some of them, or start them by one shell"
            raise Refused(f"{left} programs go on in job {handle.id} by themselves, which is the limit", subject=handle.id, hint=hint)
        with open(os.devnull, "r+b", buffering=0) as nothing:
            stdio = (nothing.fileno(), nothing.fileno(), nothing.fileno())
            entered = door.enter(handle.entrance(), replace(entry, handed=False), stdio, alone=True, within=START)
        entered.release()
        return entered.process.pid


def _left(keeper: int) -> int:
    """The children of a job's keeper but its first process and the reader of its terminal, of which there is but one."""
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    return len(children) - 1 - any(_name(pid) == _READER for pid in children)


def _name(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _for_who_attaches(handle: Handle) -> tuple[str, int]:
    from dockless.sandbox.run import door

    with contextlib.suppress(BadInput):
        return "terminal", door.terminal(handle.entrance())
    with contextlib.suppress(BadInput, SandboxGone):
        return "stdin", handle.stdin()
    return "output", -1


async def _hand_over(fd: int, message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """A message and a descriptor for the caller. ``ConnectionError`` for one who does not take what she asked for before."""
    writer.transport.set_write_buffer_limits(high=0)
    await writer.drain()  # until nothing waits to be written: this goes past the stream
    with writer.get_extra_info("socket").dup() as connection:
        try:
            socket.send_fds(connection, [encode(message)], [fd])
        except OSError as error:
            raise ConnectionError("the caller reads nothing") from error


def _asked(request: dict[str, Any]) -> tuple[Entry, tuple[int, int] | None, bool]:
    """What enters, the size of its terminal, and whether it goes on by itself."""
    check_values(request.get("program"), "program")
    entry, alone = replace(read(Entry, request.get("program"), "program"), handed=True), request.get("alone", False)
    if not isinstance(alone, bool) or (alone and (entry.tty or entry.given)):
        raise BadInput("'alone' is not for this program", subject="alone", hint="nobody would see its terminal, or speak to it")
    size = request.get("size")
    if size is None:
        return entry, None, alone
    if not isinstance(size, list) or len(size) != 2 or not all(type(n) is int and 0 <= n <= _LARGEST for n in size):
        raise BadInput("'size' is not rows and columns", subject="size", hint=f"give two numbers from 0 to {_LARGEST}")
    return entry, (size[0], size[1]), alone


def _signal(line: bytes) -> int | None:
    """The number of a signal to be sent; None to kill it. ``BadInput``"""
    from dockless.sandbox.run.process import check_signal

    request = decode(line)
    number = request.get("number")
    if request.get("op") == "kill":
        return None
    if request.get("op") != "signal" or type(number) is not int:
        raise BadInput("a program that has entered takes 'signal' and 'kill'", subject="protocol", hint="open another connection")
    check_signal(number)
    return number
