"""The daemon's socket: reads requests, asks the engine, writes answers.

Root's daemon listens to everybody (0666 in a directory only root writes), a user's to her alone (0600). What a client can make the
daemon hold is bounded: the size of a request, the number of connections per user and in all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from dockless.errors import BadInput, DocklessError, NotPermitted, Refused, SchedError
from dockless.sched import logs
from dockless.sched.answers import Answers
from dockless.sched.callers import Caller
from dockless.sched.engine import Engine
from dockless.sched.faults import describe
from dockless.sched.jobs import State
from dockless.sched.protocol import MAX_JOBS_PER_SUBMIT, MAX_REQUEST, VERSION, DaemonInfo, decode, encode, error_message

T = TypeVar("T")

PER_USER = 64
IN_ALL = 300
"""Connections. One that follows a log takes three descriptors, and the usual limit of 1,024 is left alone: jobs inherit it."""
LISTED = 1_000
"""Jobs of each kind in a listing, where the client names no limit."""
MAX_LISTED = 100_000


class Server:
    """``shutdown``: called when an administrator asks for the end."""

    def __init__(self, engine: Engine, path: Path, version: str, shutdown: Callable[[], None]) -> None:
        self.engine = engine
        self.answers = Answers(engine)
        self.path = path
        self.version = version
        self.shutdown = shutdown
        self.started = time.time()
        self._connections: dict[int, int] = {}
        self._handlers: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._busy = 0
        self._idle = asyncio.Event()
        self._verbs: dict[str, Callable[[Caller, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "ping": self._ping,
            "submit": self._submit,
            "queue": self._queue,
            "job": self._job,
            "cancel": self._cancel,
            "wait": self._wait,
            "info": self._info,
            "shutdown": self._shutdown,
        }

    async def open(self) -> None:
        """Listen. The lock that makes this daemon the only one is held, so a socket that lies there is a dead one's."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._connected, self.path, limit=MAX_REQUEST, backlog=256)
        finally:
            os.umask(before)
        if os.geteuid() == 0:
            os.chmod(self.path, 0o666)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        while self._busy:  # what was asked is still answered
            self._idle.clear()
            await self._idle.wait()

    async def hang_up(self) -> None:
        """End the connections that are left: those of clients that wait or follow."""
        for task in list(self._handlers):
            task.cancel()
        if self._handlers:
            await asyncio.wait(list(self._handlers), timeout=2.0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        uid = self.engine.callers.peer_uid(writer.get_extra_info("socket"))
        self._connections[uid] = self._connections.get(uid, 0) + 1
        try:
            if uid != 0 and (self._connections[uid] > PER_USER or sum(self._connections.values()) > IN_ALL):
                raise Refused("too many connections", subject=f"uid {uid}", hint="close some")
            self.engine.callers.caller(uid)
            await self._serve(uid, reader, writer)
        except DocklessError as error:
            writer.write(encode(error_message(error)))
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._connections[uid] -= 1
            if not self._connections[uid]:
                del self._connections[uid]
            self._handlers.discard(task)
            writer.close()

    async def _serve(self, uid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                return
            except asyncio.LimitOverrunError:
                raise BadInput(f"a request is longer than {MAX_REQUEST} bytes", subject="protocol", hint="submit in parts") from None
            request: dict[str, Any] = {}
            try:
                request = decode(line)
                if request.get("v") != VERSION:
                    raise BadInput(
                        f"protocol version {request.get('v')!r}, this daemon speaks {VERSION}",
                        subject="protocol",
                        hint="client and daemon are of different versions: restart the daemon",
                    )
                # Looked up anew each time: settings and group membership may have changed under a long connection.
                caller = self.engine.callers.caller(uid)
                if request.get("op") == "logs":
                    await self._logs(caller, request, reader, writer)
                    continue
                verb = self._verbs.get(str(request.get("op")))
                if verb is None:
                    raise BadInput(f"unknown operation {str(request.get('op'))[:40]!r}", subject="protocol", hint="the daemon may be older")
                work = verb(caller, request)
                answer = await (_unless_gone(reader, work) if request["op"] == "wait" else self._short(work))
                writer.write(encode({"ok": True, **answer}))
            except DocklessError as error:
                writer.write(encode(error_message(error)))
            except (ConnectionError, TimeoutError):
                raise
            except Exception as error:  # a fault of ours: the caller is told, the daemon goes on
                op = request.get("op")
                what = op if op in self._verbs or op == "logs" else "a request"
                print(f"dockless daemon: fault in {what} of uid {uid}: {describe(error)}", file=sys.stderr, flush=True)
                fault = SchedError(f"the daemon failed: {describe(error)}", hint="this is a fault in dockless; please report it")
                writer.write(encode(error_message(fault)))
            await writer.drain()

    async def _short(self, work: Awaitable[T]) -> T:
        self._busy += 1
        try:
            return await work
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    # -- the verbs

    async def _ping(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        info = DaemonInfo(
            os.getpid(), self.version, os.geteuid(), caller.user, caller.admin, self.started, str(self.path), self.engine.gpus.simulated
        )
        return {"daemon": info.as_dict()}

    async def _submit(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        jobs = request.get("jobs")
        if not isinstance(jobs, list) or not 1 <= len(jobs) <= MAX_JOBS_PER_SUBMIT:
            raise BadInput(f"'jobs' is not a list of 1 to {MAX_JOBS_PER_SUBMIT}", subject="jobs", hint="submit in parts")
        array = _integer(request, "array", 1, MAX_JOBS_PER_SUBMIT)
        ids = await self.engine.submit(caller, jobs, array)
        return {"first": ids[0]} if array is not None else {"ids": ids}

    async def _queue(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        limit = _integer(request, "limit", 0, MAX_LISTED) or LISTED
        user = request.get("user") or ""
        if not isinstance(user, str):
            raise BadInput("'user' is not a name", subject="user")
        jobs = self.answers.listing(caller, user, bool(request.get("ended")), limit)
        return {"jobs": [job.as_dict() for job in jobs]}

    async def _job(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        return {"job": self.answers.job(caller, _job_id(request.get("job"))).as_dict()}

    async def _cancel(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        number, grace = _job_id(request.get("job")), _seconds(request, "grace", 3600.0)
        self.answers.own(caller, number)
        await self.engine.cancel(number, caller.user, grace)
        return {"job": self.answers.own(caller, number).as_dict()}

    async def _wait(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        wanted = request.get("jobs")
        if not isinstance(wanted, list) or len(wanted) > MAX_LISTED:
            raise BadInput("'jobs' is not a list of job ids", subject="jobs")
        jobs, left = await self.answers.wait(caller, [_job_id(item) for item in wanted], _seconds(request, "timeout", 1e9))
        return {"timeout": True, "left": left} if left else {"jobs": [job.as_dict() for job in jobs]}

    async def _info(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        return {"info": self.answers.info().as_dict()}

    async def _shutdown(self, caller: Caller, request: dict[str, Any]) -> dict[str, Any]:
        if not caller.admin:
            raise NotPermitted("only an administrator may end the daemon", subject=caller.user, hint="ask one")
        asyncio.get_running_loop().call_soon(self.shutdown)
        return {}

    async def _logs(self, caller: Caller, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Stream a job's output in several messages; ends when the client goes away."""
        number, follow = _job_id(request.get("job")), bool(request.get("follow"))
        job = self.answers.own(caller, number)
        attempt = _integer(request, "attempt", 0, 1_000_000) or job.attempt

        async def send(rows: Any) -> None:
            async for part in rows:
                writer.write(encode({"ok": True, "lines": part}))
                await writer.drain()

        async def stream() -> None:
            entry = self.engine.entries.get(number)
            if entry is not None and follow and entry.job.state in (State.PENDING, State.STARTING):
                await self.answers.started(number)
                entry = self.engine.entries.get(number)
            current = attempt or (entry.job.attempt if entry is not None else self.answers.own(caller, number).attempt)
            if entry is not None and entry.handle is not None and current == entry.job.attempt:
                over = self.answers.gone(entry) if follow else None
                await send(logs.running(entry.handle.directory, self.engine.log_base(number, current), over))
            else:
                await send(logs.ended(self.engine.log_base(number, current)))

        await _unless_gone(reader, stream())
        writer.write(encode({"ok": True, "end": True}))
        await writer.drain()


async def _unless_gone(reader: asyncio.StreamReader, work: Awaitable[T]) -> T:
    """``work``, given up when the client hangs up. Raises ConnectionError then."""
    doing = asyncio.ensure_future(work)
    # A client that waits sends nothing, so whatever there is to read is its end.
    gone = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait([doing, gone], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return await doing
        raise ConnectionError("the client went away")
    finally:
        for task in (doing, gone):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


def _integer(request: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadInput(f"{name!r} is not a whole number from {least} to {most}", subject=name, hint="correct it")
    return value


def _seconds(request: dict[str, Any], name: str, most: float) -> float | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise BadInput(f"{name!r} is not a number of seconds", subject=name, hint=f"use 0 to {most:g}")
    return float(value)


def _job_id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 62:
        raise BadInput(f"{str(value)[:40]!r} is not a job id", subject="job", hint="`dockless queue` lists them")
    return value
