"""The daemon's socket: reads requests, asks the engine, writes answers.

Root's daemon listens to everybody (0666 in a directory only root writes), a user's to her alone (0600). What a client can make the
daemon hold is bounded: the size of a request, the number of connections per user and in all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

from dockless.base.dataclass import dataclass, field
from dockless.base.typing import Any, TypeVar
from dockless.errors import BadInput, DocklessError, Refused, SchedError
from dockless.sandbox.run.logfile import Row
from dockless.sched.callers import Caller
from dockless.sched.engine.admission.parts import Parts
from dockless.sched.engine.engine import Engine
from dockless.sched.engine.faults import describe, say
from dockless.sched.jobs import Job
from dockless.sched.wire import in_parts, logs, metrics
from dockless.sched.wire.answers import Answers
from dockless.sched.wire.audit import Audit
from dockless.sched.wire.entering import Entering
from dockless.sched.wire.fields import integer, job_id
from dockless.sched.wire.listed import Listed
from dockless.sched.wire.pacing import Pacing
from dockless.sched.wire.picture import Picture
from dockless.sched.wire.protocol import MAX_REQUEST, VERSION, DaemonInfo, check_parts, decode, encode, error_message
from dockless.sched.wire.verbs import Verbs

T = TypeVar("T")

PER_USER = 64
IN_ALL = 200
OWN = 8
EVERYBODY = 280
"""Connections: of one user; in all; those that each user has also beyond that; all of all users but root. One that follows a log takes
three descriptors, and the usual limit of 1,024 is left alone: jobs inherit it."""
KEPT_BACK = 128
"""Descriptors below the limit that connections do not get: for root's calls and for the engine."""
PIECE = 1 << 16
"""Bytes of a request that every connection may have in memory. Longer requests count against their user."""
UNFINISHED = 8 << 20
"""Bytes of unfinished long requests that one user may have, all connections together."""
HALF = 30.0
"""Seconds for the end of a request that has begun, or its next ``PIECE`` bytes; who needs longer is dropped."""
IDLE = 5.0
"""Seconds without a request after which a connection may be closed, where its user, or the daemon, has no place for another."""
PATIENCE = 60.0
"""Seconds in which a client takes some of an answer, or is dropped; not those who read logs, maybe page by page."""
_HEADERS = 100
"""Lines of a request over HTTP that are passed over."""


@dataclass(slots=True, eq=False)
class _Connection:
    """The server's side of one. ``kept``: the parts of a submit that have come; ``ahead``: what has been read of the next request."""

    uid: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    kept: Parts
    ahead: bytearray = field(default_factory=bytearray)


class Server:
    """``shutdown``: called when an administrator asks for the end."""

    def __init__(self, engine: Engine, path: Path, version: str, shutdown: Callable[[], None]) -> None:
        self.engine = engine
        self.answers = Answers(engine)
        self.picture = Picture(self.answers)
        self.entering = Entering(engine, KEPT_BACK)
        self.audit = Audit(engine.database.parent)
        self.path = path
        self.version = version
        self.started = time.time()
        self.pacing = Pacing()
        self._connections: Counter[int] = Counter()
        self._unfinished: Counter[int] = Counter()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._silent: dict[asyncio.Task[Any], tuple[int, float]] = {}  # whose they are and since when, the longest first
        self._server: asyncio.Server | None = None
        self._busy = 0
        self._idle = asyncio.Event()
        self._verbs = Verbs(engine, self.answers, self.picture, self.pacing, self._about, shutdown).table()

    async def open(self) -> None:
        """Listen. The lock that makes this daemon the only one is held, so a socket that lies there is a dead one's."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        before = os.umask(0o111 if os.geteuid() == 0 else 0o177)
        try:
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(os.fspath(self.path))
            # asyncio tries to accept as often as its backlog says, also where no descriptor is left: the queue is made longer afterwards.
            self._server = await asyncio.start_unix_server(self._connected, sock=listening, limit=PIECE, backlog=1)
            listening.listen(256)
        finally:
            os.umask(before)

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
        self.entering.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        connection = writer.get_extra_info("socket")
        uid = self.engine.callers.peer_uid(connection)
        self._connections[uid] += 1
        try:
            caller = self.engine.callers.caller(uid)
            self._make_room(caller, connection.fileno())
            await self._serve(uid, reader, writer)
        except DocklessError as error:
            writer.write(encode(error_message(error)))
        except TimeoutError:
            writer.transport.abort()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections[uid] -= 1
            if not self._connections[uid]:
                del self._connections[uid]
                self.pacing.forget(uid)
            self._handlers.discard(task)
            writer.close()

    async def _serve(self, uid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(Parts(self.engine, writer.transport.abort)) as kept:
            await self._answer_all(_Connection(uid, reader, writer, kept))

    async def _answer_all(self, there: _Connection) -> None:
        """Answer one request after the other, until the connection ends or a request takes it over (``exec``, HTTP)."""
        uid, more = there.uid, True
        while more and (line := await self._request(uid, there.reader, there.ahead)):
            await self.pacing.turn(uid)
            if line.startswith(b"GET "):
                self._over(uid, len(line))
                await self._over_http(uid, line, there.reader, there.writer)
                return
            request: dict[str, Any] = {}
            size = len(line)
            try:
                try:
                    check_parts(line)
                    request = decode(line)
                finally:
                    del line  # it is not kept in memory while it is answered
                    self._over(uid, size)
                if size > PIECE:
                    await self.pacing.turn(uid, size // PIECE)
                more = await self._answer(there, request)
            except (ConnectionError, TimeoutError):
                raise
            except Exception as error:
                there.kept.close()
                told = error if isinstance(error, DocklessError) else self._failed(uid, request, error)
                there.writer.write(encode(error_message(told)))
                told.__traceback__ = error.__traceback__ = None  # else the frames, with what was asked, wait for the collector
            request.clear()  # nor for as long as nothing else is asked
            await _taken(there.writer)

    async def _answer(self, there: _Connection, request: dict[str, Any]) -> bool:
        """Answer a request; whether its connection may send another. A refusal is in the audit log, too."""
        if request.get("v") != VERSION:
            raise BadInput(
                f"protocol version {request.get('v')!r}, this daemon speaks {VERSION}",
                subject="protocol",
                hint="client and daemon are of different versions: restart the daemon",
            )
        # Looked up anew each time: settings and group membership may have changed under a long connection.
        caller = self.engine.callers.caller(there.uid)
        try:
            return await self._answer_to(caller, there, request)
        except DocklessError as error:
            self.audit.note(caller, request, {}, error.code)
            raise

    async def _answer_to(self, caller: Caller, there: _Connection, request: dict[str, Any]) -> bool:
        """As ``_answer``."""
        match request.get("op"):
            case "logs":
                await self._logs(caller, request, there.reader, there.writer)
            case "exec":
                await self._exec(caller, request, there.reader, there.writer)
                return False
            case "attach":
                job = self.answers.enterable(caller, job_id(request.get("job")))
                self.audit.note(caller, request, {})
                await self.entering.attach(caller, job, there.writer)
            case _ if in_parts.is_one(request):
                turn = partial(self.pacing.turn, there.uid)
                answer = await self._short(in_parts.answer(there.kept, caller, request, turn, there.reader, there.ahead))
                self.audit.note(caller, request, answer)
                there.writer.write(encode({"ok": True, **answer}))
            case _:
                await self._answer_by_verb(caller, there, request)
        return True

    async def _answer_by_verb(self, caller: Caller, there: _Connection, request: dict[str, Any]) -> None:
        op, writer = request.get("op"), there.writer
        verb = self._verbs.get(str(op))
        if verb is None:
            raise BadInput(f"unknown operation {str(op)[:40]!r}", subject="protocol", hint="the daemon may be older")
        work = verb(caller, request)
        answer = await (_unless_gone(there.reader, work) if op == "wait" else self._short(work))
        owner = self.answers.own(caller, job_id(request.get("job"))).uid if op in ("spec", "events") else -1
        self.audit.note(caller, request, answer, owner=owner)
        if isinstance(listed := answer.get("listed"), Listed):
            await self._send_pages(caller, writer, listed)
        elif isinstance(jobs := answer.get("jobs"), AsyncIterator):
            await self._send_jobs(there.uid, writer, jobs, {name: value for name, value in answer.items() if value is not jobs})
        else:
            writer.write(encode({"ok": True, **answer}))

    def _failed(self, uid: int, request: dict[str, Any], error: Exception) -> SchedError:
        """Log an unexpected error, a bug; what the caller is told. The daemon goes on."""
        op = request.get("op")
        what = op if op in self._verbs or op in ("logs", "exec", "attach", "part") else "a request"
        say(f"unexpected error in {what} of uid {uid}: {describe(error)}")
        return SchedError(f"the daemon failed: {describe(error)}", hint="this is a bug in dockless; please report it")

    async def _over_http(self, uid: int, line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """``curl --unix-socket daemon.sock http://dockless/metrics``: a request of RFC 9112, and no more than this one."""
        for _ in range(_HEADERS):
            header = await self._line(uid, reader)
            self._over(uid, len(header))
            if header in (b"", b"\n", b"\r\n"):
                break
        status, kind, body = "404 Not Found", "text/plain", "there is /metrics\n"
        if line.split()[1:2] == [b"/metrics"]:
            caller = self.engine.callers.caller(uid)
            status, kind = "200 OK", metrics.KIND
            top = await self._short(self.picture.seen_by(caller))
            body = metrics.text(self.answers.info(), top)
        data = body.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)
        await _taken(writer)

    def _make_room(self, caller: Caller, descriptor: int) -> None:
        """For a connection more, where need be by closing one that has long been silent: of the same user, or where she has only a few
        herself, of anybody. ``Refused`` where there is none."""
        try:
            self._refuse_too_many(caller, descriptor)
        except Refused:
            few, until = self._connections[caller.uid] <= OWN, time.monotonic() - IDLE
            may = (task for task, (uid, since) in self._silent.items() if uid == caller.uid or (few and uid))
            silent = next((task for task in may if self._silent[task][1] <= until), None)
            if silent is None:
                raise
            del self._silent[silent]
            silent.cancel()

    def _refuse_too_many(self, caller: Caller, descriptor: int) -> None:
        """Refused: too many connections. Whatever one user has, the others can have a few; root can always call."""
        if caller.root:
            return
        mine, all = self._connections[caller.uid], self._connections.total() - self._connections[0]
        # The kernel gives the lowest number that is free, open(2).
        if all > EVERYBODY or descriptor >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - KEPT_BACK:
            raise Refused("the daemon has as many connections as it can serve", subject=caller.user, hint="try again later")
        if mine <= OWN:
            return
        if mine > PER_USER:
            raise Refused(
                f"user {caller.user} has {PER_USER} connections to the daemon already, which is the limit",
                subject=caller.user,
                hint="end some of your `dockless wait` and `dockless logs -f`, or close clients that your programs keep open",
            )
        if all > IN_ALL:
            raise Refused(
                f"the daemon has {IN_ALL} connections; until there are fewer each user can have {OWN}, and {caller.user} has them",
                subject=caller.user,
                hint="try again later, or close some of yours",
            )

    async def _request(self, uid: int, reader: asyncio.StreamReader, ahead: bytearray) -> bytes:
        """The next request of a connection that may be silent before. ``ahead``: what of it has been read."""
        task = asyncio.current_task()
        assert task is not None
        self._silent[task] = uid, time.monotonic()
        try:
            begun = bytes(ahead) or await reader.read(1)
            ahead.clear()
        finally:
            self._silent.pop(task, None)
        return await self._line(uid, reader, begun)

    async def _line(self, uid: int, reader: asyncio.StreamReader, begun: bytes = b"") -> bytes:
        """The next line as it came; empty at the end of the connection. ``BadInput``, ``Refused`` for one that is too long,
        ``TimeoutError`` for one that does not go on. ``begun``: what of it has been read.

        Its bytes count as unfinished until ``_over``."""
        parts = bytearray(begun)
        self._unfinished[uid] += len(parts)
        if begun == b"\n":
            return begun
        try:
            while True:
                try:
                    async with asyncio.timeout(HALF):
                        last = await reader.readuntil(b"\n")
                    self._unfinished[uid] += len(last)
                    parts += last
                    return bytes(parts)
                except asyncio.IncompleteReadError:
                    self._over(uid, len(parts))
                    return b""
                except asyncio.LimitOverrunError as error:
                    piece = await reader.readexactly(error.consumed)
                parts += piece
                self._unfinished[uid] += len(piece)
                if len(parts) > MAX_REQUEST:
                    raise BadInput(f"a request is longer than {MAX_REQUEST} bytes", subject="protocol", hint="submit in parts")
                if self._unfinished[uid] > UNFINISHED:
                    raise Refused(
                        f"your unfinished requests have more than {UNFINISHED} bytes together",
                        subject=f"uid {uid}",
                        hint="send them one after the other",
                    )
        except BaseException:
            self._over(uid, len(parts))
            raise

    def _over(self, uid: int, size: int) -> None:
        self._unfinished[uid] -= size
        if not self._unfinished[uid]:
            del self._unfinished[uid]

    async def _send_jobs(self, uid: int, writer: asyncio.StreamWriter, jobs: AsyncIterator[list[Job]], rest: dict[str, Any]) -> None:
        """One line, however long, that is never in memory as a whole. ``rest``: its other fields."""
        writer.write(b'{"ok":true,"jobs":[')
        between = b""
        try:
            async for part in jobs:
                writer.write(between + b",".join(encode(job.as_dict())[:-1] for job in part))
                between = b","
                await _taken(writer)
                await self.pacing.turn(uid)
        except DocklessError as error:
            raise ConnectionError("half an answer") from error
        writer.write(b"]," + encode(rest)[1:] if rest else b"]}\n")

    async def _send_pages(self, caller: Caller, writer: asyncio.StreamWriter, listed: Listed) -> None:
        """A line for each, and one that says how many jobs more there are than were asked for."""
        try:
            async with contextlib.aclosing(listed.parts()) as parts:
                async for part in parts:
                    if part.jobs:
                        writer.write(encode({"ok": True, **self.answers.page(caller, part)}))
                        await _taken(writer)
        except DocklessError as error:
            raise ConnectionError("half an answer") from error
        writer.write(encode({"ok": True, "end": True, "more": listed.more}))

    async def _short(self, work: Awaitable[T]) -> T:
        self._busy += 1
        try:
            return await work
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    def _about(self, caller: Caller) -> DaemonInfo:
        return DaemonInfo(
            os.getpid(),
            self.version,
            os.geteuid(),
            caller.user,
            caller.admin,
            self.started,
            str(self.path),
            self.engine.gpus.simulated,
            self.engine.outage.text,
            self.engine.config.notify.any,
        )

    async def _logs(self, caller: Caller, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Stream a job's output in several messages; ends when the client goes away."""
        number, follow = job_id(request.get("job")), bool(request.get("follow"))
        job = self.answers.own(caller, number)
        self.audit.note(caller, request, {}, owner=job.uid)
        attempt = integer(request, "attempt", 0, 1_000_000) or job.attempt
        if attempt > job.attempt:
            has = f"its newest attempt is {job.attempt}" if job.attempt else "it has not been started yet"
            raise BadInput(f"job {number} has no attempt {attempt}", subject="attempt", hint=f"{has}: leave the attempt out for the newest")
        after = integer(request, "after", 0, 1 << 62) or 0

        async def send(current: int, rows: AsyncIterator[list[Row]]) -> None:
            async for part in rows:
                lines = [(r.at, r.stream, r.text.decode(errors="surrogateescape"), r.partial, r.dropped) for r in part]
                writer.write(encode({"ok": True, "attempt": current, "lines": lines}))
                await writer.drain()
                await self.pacing.turn(caller.uid)

        async def stream() -> None:
            entry = self.engine.entries.get(number)
            if entry is not None and follow:
                await self.answers.started(entry)
                entry = self.engine.entries.get(number)
            current = attempt or (entry.job.attempt if entry is not None else self.answers.own(caller, number).attempt)
            base = self.engine.log_base(number, current)
            if entry is not None and entry.handle is not None and current == entry.job.attempt:
                over = self.answers.gone(entry) if follow else None
                await send(current, logs.running(entry.handle.directory, base, over, after))
            else:
                left = self.engine.launcher.find(base.name)  # while its output could not be kept
                await send(current, logs.ended(base, after) if left is None else logs.running(left.directory, base, None, after))

        await _unless_gone(reader, stream())
        writer.write(encode({"ok": True, "end": True}))
        await writer.drain()

    async def _exec(self, caller: Caller, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A program enters a job; ends with it, or with the client, whose lines say what becomes of it."""

        async def line() -> bytes:
            said = await self._line(caller.uid, reader, await reader.read(1))
            self._over(caller.uid, len(said))
            await self.pacing.turn(caller.uid)
            return said

        job = self.answers.enterable(caller, job_id(request.get("job")))
        self.audit.note(caller, request, {})
        await self.entering.serve(caller, job, request, line, writer)


async def _taken(writer: asyncio.StreamWriter) -> None:
    """Until no more than a buffer of what was written is left. ``TimeoutError``: the client takes nothing."""
    async with asyncio.timeout(PATIENCE):
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
