"""Jobs that give back GPUs which they had borrowed: told to end, and queued again at their old place.

The mark is on disk before the signal is sent, so a daemon that comes back in between goes on with it. However such a job ends once it was
told, it runs again; only a cancel and its own time limit end it for good.
"""

from __future__ import annotations

import sqlite3
import time
from functools import partial

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import SchedError
from dockless.sched import clock
from dockless.sched.engine import stopping
from dockless.sched.engine.faults import describe, say
from dockless.sched.store import queue
from dockless.sched.store.writer import Change

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob


def preempt(engine: Engine, entry: LiveJob, by: int) -> None:
    """For job ``by``. A pass that comes before the signal knows of it already. Where its end is being written down, what it has comes back
    anyway, and its next attempt is not to be ended for this one."""
    if entry.attempt_is_over:
        return
    for one in entry.going_on:
        one.stop_by = clock.ticks() + engine.config.preemption.grace
    entry.show(options=replace(entry.job.options, preempted_by=by))
    engine.spawn(_begin(engine, entry, by))


async def _begin(engine: Engine, entry: LiveJob, by: int) -> None:
    number, options, now = entry.job.id, entry.job.options, time.time()
    try:
        await engine.write(lambda db: queue.set_options(db, number, options, now, "preempt", f"for job {by}"))
    except SchedError as error:
        if error.subject == "jobs.db":
            engine.outage.begins(error)  # its end kicks
        else:
            say(f"job {number} is not preempted: {describe(error)}")
        _unmark(entry)
        return
    for one in entry.going_on:
        go_on(engine, one)


def go_on(engine: Engine, entry: LiveJob) -> None:
    """Tell it, where it runs and is not told yet."""
    signal = engine.config.preempt_signal
    if entry.handle is None or entry.hurry is not None:
        return
    say(f"job {entry.job.id} gives back what it borrowed, for job {entry.first.job.options.preempted_by}")
    tell = partial(entry.handle.send_signal, signal) if signal else entry.handle.send_stop
    stopping.stop(engine, entry, engine.config.preemption.grace, tell)


def unmarked(entry: LiveJob, change: Change[Any]) -> Change[Any]:
    """``change``, after which the job waits again, and that nobody wants that any more: it gives nothing back, and is not requeued."""
    before = entry.job.options
    _unmark(entry)
    entry.show(options=replace(entry.job.options, requeue=""))
    number, options, now = entry.job.id, entry.job.options, time.time()

    def both(db: sqlite3.Connection) -> Any:
        found = change(db)
        queue.set_options(db, number, options, now, "preempted" if before.preempted_by else "requeue", before.requeue)
        return found

    return both


def _unmark(entry: LiveJob) -> None:
    for one in entry.going_on:
        stopping.over(one)
    entry.show(options=replace(entry.job.options, preempted_by=0))
