"""A signal some time before a job's time limit (``JobSpec.warn_signal``), once an attempt: its program can save its work.

It is on disk before the signal is sent, so a daemon that comes back in between does not send it twice; one that comes back too late sends
it then, while the job still runs.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from functools import partial

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING
from dockless.base.units import format_duration
from dockless.sched import clock
from dockless.sched.engine import stopping
from dockless.sched.jobs import State
from dockless.sched.store import queries, queue

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

LOOK = 60.0
"""Seconds until the clock is looked at again: the host may have slept."""


def arm(engine: Engine, entry: LiveJob) -> None:
    """Its program runs."""
    options = entry.job.options
    if options.warn_signal and options.warned != entry.job.attempt:
        _wait(engine, entry, entry.job.attempt)


def _wait(engine: Engine, entry: LiveJob, attempt: int) -> None:
    job = entry.job
    if engine.closing or job.state is not State.RUNNING or job.attempt != attempt or entry.ends is None:
        return
    left = entry.ends - job.options.warn_before - clock.ticks()
    if left > 0:
        asyncio.get_running_loop().call_later(min(left, LOOK), _wait, engine, entry, attempt)
    elif entry.stop_by is None:  # else it is told to end
        engine.spawn(_send(engine, entry, attempt))


async def _send(engine: Engine, entry: LiveJob, attempt: int) -> None:
    number, now = entry.job.id, time.time()
    signal, before = entry.job.options.warn_signal, format_duration(entry.job.options.warn_before)

    def change(db: sqlite3.Connection) -> None:
        options = replace(queries.options(db, number), warned=attempt)
        queue.set_options(db, number, options, now, "warn", f"signal {signal}, {before} before its time limit")

    entry.show(options=replace(entry.job.options, warned=attempt))
    await engine.write_surely(change)
    if entry.job.attempt == attempt and entry.job.state is State.RUNNING and entry.handle is not None:
        await stopping.tried(engine, entry, "warned", partial(entry.handle.send_signal, signal))
