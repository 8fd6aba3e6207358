"""Before a job that uses NVIDIA's Multi-Process Service (MPS) is killed, the service is told to end the job's work on the GPU
(``terminate_client`` of nvidia-cuda-mps-control). A client that is killed while it computes can make other jobs on that GPU fail.

The commands are given by a program that is started for this in the service's sandbox. If the service does not answer within two seconds, or
is gone, the job is killed all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from functools import partial
from io import FileIO

from dockless.base.typing import TYPE_CHECKING
from dockless.base.waits import readable
from dockless.errors import SandboxGone
from dockless.sched.engine.faults import describe, say

if TYPE_CHECKING:
    from dockless.sched.engine.attempts import Handle, Launcher
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

WITHIN = 2.0
"""Seconds for all of it."""
_MOST = 1 << 16
"""Bytes of an answer: a service that was broken into can say anything."""
_MOST_CLIENTS = 100
"""Of one server, which has 60 at most: so many commands find room in the smallest pipe, pipe(7)."""
_CONTROL = "nvidia-cuda-mps-control"


async def end(engine: Engine, entry: LiveJob) -> None:
    """Have the service end the job's work on its GPU, before the job is killed by force. Returns within ``WITHIN`` seconds; the log is told
    where it fails."""
    job, handle = entry.job, entry.handle
    if handle is None or not job.devices:
        return
    name = engine.mps.name(job.uid, job.devices[0])
    if name not in engine.mps.known:
        return
    work = partial(_terminate, engine.launcher, name, handle, time.monotonic() + WITHIN)
    asked = asyncio.ensure_future(engine.in_thread(engine.serving, work))
    await asyncio.wait([asked], timeout=WITHIN)
    failed = asked.exception() if asked.done() else TimeoutError()
    if failed is not None:
        asked.add_done_callback(asyncio.Future.exception)  # seen
        why = f"no answer in {WITHIN:g} seconds" if isinstance(failed, TimeoutError) else describe(failed)
        say(f"job {job.id}: its MPS service {name} did not end its work on the GPU: {why}; killing the job; others on this GPU may fail")


def _terminate(launcher: Launcher, name: str, job: Handle, deadline: float) -> None:
    """Blocking. ``DocklessError``, ``OSError``; ``TimeoutError`` after the deadline."""
    from dockless.sandbox.run import seen

    service = launcher.find(name)
    if service is None:
        raise SandboxGone("the service is gone", subject=name)
    for server in _numbers(_said(service, "get_server_list\n", deadline)):
        clients = _numbers(_said(service, f"get_client_list {server}\n", deadline))
        whose = seen.whose(clients, {job.pid: 1})
        commands = [f"terminate_client {server} {pid}\n" for pid, (_, ours) in whose.items() if ours]
        if commands:
            _said(service, "".join(commands[:_MOST_CLIENTS]), deadline)


def _said(service: Handle, commands: str, deadline: float) -> bytes:
    """What its control program prints."""
    from dockless.sandbox.enter import Entry
    from dockless.sandbox.run import door

    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    with contextlib.ExitStack() as opened:
        asked, ask, answer, answers = (opened.enter_context(end) for end in (*_pipe(), *_pipe()))
        ask.write(commands.encode())
        ask.close()
        stdio = (asked.fileno(), answers.fileno(), answers.fileno())
        entered = door.enter(service.entrance(), Entry((_CONTROL,), timeout=left), stdio, within=left)
        opened.callback(entered.close)
        answers.close()
        return _all(answer.fileno(), deadline)


def _pipe() -> tuple[FileIO, FileIO]:
    reader, writer = os.pipe()
    return FileIO(reader, "rb"), FileIO(writer, "wb")


def _all(fd: int, deadline: float) -> bytes:
    found = b""
    while len(found) < _MOST and readable(fd, max(0.0, deadline - time.monotonic())):
        part = os.read(fd, _MOST)
        if not part:
            return found
        found += part
    raise TimeoutError


def _numbers(text: bytes) -> list[int]:
    """The pids in an answer, one a line."""
    return [int(line) for line in text.split() if line.isdigit() and len(line) < 10]
