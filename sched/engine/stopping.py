"""A running job is ended: its stop signal, and SIGKILL when its time is over, whatever goes wrong with one of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial

from dockless.base.typing import TYPE_CHECKING
from dockless.errors import SandboxGone
from dockless.sched import clock
from dockless.sched.engine import mps_clients
from dockless.sched.engine.faults import describe, say
from dockless.sched.store import queue

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

KILL_AGAIN = 2.0
"""Seconds until what should be dead is killed again."""


def stop(engine: Engine, entry: LiveJob, grace: float | None, tell: Callable[[], None] | None = None) -> None:
    """Its stop signal now, SIGKILL after ``grace`` seconds (the job's own for None). Who asks again can only make it shorter. ``tell``:
    what to do instead of sending the stop signal."""
    if engine.closing or entry.job.id not in engine.active:
        return
    by = clock.ticks() + (entry.grace if grace is None else grace)
    entry.stop_by = by if entry.stop_by is None else min(by, entry.stop_by)
    if entry.hurry is not None:
        entry.hurry.set()
        return
    entry.hurry = asyncio.Event()
    engine.spawn(_until_ended(engine, entry, entry.hurry, tell))


async def end(engine: Engine, entry: LiveJob, verdict: str, grace: float | None) -> None:
    """End a running job that nobody asked to end. ``verdict``: why; on disk before it is told, as a cancel is."""
    ended = entry.ended_with
    if not ended:
        return
    for one in ended:
        one.cancelled, one.verdict = True, verdict
    say(f"job {entry.job.id}: {verdict}")
    try:
        await engine.write(lambda db: queue.want_cancel(db, entry.job.id, time.time(), verdict))
    finally:  # a disk that is full is no reason to let it go on
        for one in ended:
            stop(engine, one, grace)


def over(entry: LiveJob) -> None:
    """The attempt has ended: what was under way to end it does not touch the next one."""
    entry.stop_by = entry.idle_since = entry.warned = None
    if entry.hurry is not None:
        entry.hurry.set()
        entry.hurry = None
    if entry.overdue is not None:
        entry.overdue.cancel()
        entry.overdue = None


async def _until_ended(engine: Engine, entry: LiveJob, hurry: asyncio.Event, tell: Callable[[], None] | None) -> None:
    signalled = asked = False
    while not engine.closing and entry.job.id in engine.active and entry.hurry is hurry and entry.stop_by is not None:
        hurry.clear()
        if not signalled and entry.handle is not None:
            signalled = True
            await tried(engine, entry, "sent its stop signal", tell or entry.handle.send_stop)
            continue
        left = entry.stop_by - clock.ticks()
        if left <= 0 and not asked:
            asked = True
            await mps_clients.end(engine, entry)
            continue
        if left <= 0:
            await tried(engine, entry, "killed", partial(_kill, engine, entry))
            left = KILL_AGAIN
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(hurry.wait(), left)


async def tried(engine: Engine, entry: LiveJob, what: str, work: Callable[[], None]) -> None:
    """In a thread; what goes wrong is said, and no error."""
    try:
        await engine.in_thread(engine.signalling, work)
    except SandboxGone:  # it is just ending
        pass
    except Exception as error:
        say(f"job {entry.job.id} cannot be {what}: {describe(error)}; going on")


def _kill(engine: Engine, entry: LiveJob) -> None:
    handle = entry.handle or engine.launcher.find(engine.name(entry.job.id, entry.job.attempt))
    if handle is not None:
        handle.kill()
