"""Another attempt of a job: asked for while it runs (``requeue``), because it gave back GPUs that it had borrowed (``preempting``), or
because it failed and has tries left (``JobSpec.retries``).

The wish to run a job again is on disk before it is told to end, so a daemon that comes back in between goes on with it. A cancel, and the
job's own time limit, end it for good.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import Refused
from dockless.sched.engine import stopping
from dockless.sched.engine.entry import wake
from dockless.sched.engine.lifecycle import remains
from dockless.sched.jobs import JobOptions, State
from dockless.sched.store import queries, queue

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

MOST = 1000
"""Attempts of a job, after which nobody may ask for another: each is remembered as long as the job."""
LONGEST_PAUSE = 300.0
"""Seconds before the tries that come late; the first comes after one, and each pause is twice the one before."""


async def ask(engine: Engine, number: int, who: str, grace: float | None, turn: Callable[[], Awaitable[None]]) -> int:
    """End the running attempt of a job, which then waits for another; a job that has ended is submitted again. The number of the job that
    waits or will. ``turn``: as in ``submit``. ``Refused`` for one that waits already, or is ending."""
    entry = engine.entries.get(number)
    if entry is None:
        return await submit(engine, number, turn)
    entry, number = entry.first, entry.first.job.id
    if entry.cancelled or entry.job.state is State.PENDING:
        what, hint = ("is ending", "wait for its end") if entry.cancelled else ("waits already", f"`dockless why {number}` says for what")
        raise Refused(f"job {number} {what}", subject=str(number), hint=hint)
    if entry.job.attempt >= MOST:
        raise Refused(f"job {number} has had {entry.job.attempt} attempts", subject=str(number), hint="cancel it, and submit it again")
    _check_not_over(entry)
    reason, before, now = f"requeued by {who}", entry.job.options, time.time()
    if not before.requeue:
        options = replace(before, requeue=reason)
        await engine.write(lambda db: queue.set_options(db, number, options, now, "requeue", f"by {who}"))
        _check_not_over(entry)
        entry.show(options=replace(entry.job.options, requeue=reason))
    for one in entry.going_on:
        stopping.stop(engine, one, grace)
    return number


def _check_not_over(entry: LiveJob) -> None:
    """``Refused`` for an attempt whose end is being written down: the next one would be ended for the wish, or run for nothing."""
    if entry.attempt_is_over:
        what = f"attempt {entry.job.attempt} of job {entry.job.id} has just ended"
        raise Refused(what, subject=str(entry.job.id), hint=f"`dockless queue {entry.job.id}` says what became of it; ask again if it runs")


def stands_for(engine: Engine, number: int) -> int:
    """The first of those that the job starts together with, also where they have ended; else its own number."""
    entry = engine.entries.get(number)
    job = entry.job if entry is not None else queries.job(engine.reader, number)
    return job.gang or number if job is not None else number


async def submit(engine: Engine, number: int, turn: Callable[[], Awaitable[None]]) -> int:
    """Submit a job that has ended again, as a new job of its owner; its number. It is queued behind the jobs that wait now, and has none of
    the old one's ``hold``, ``begin`` and ``after``. ``turn``: awaited between pieces of work. ``Refused`` where the spec of the old job is
    not kept any more, and the errors of a submit."""
    job, body = queries.job(engine.reader, number), queries.spec(engine.reader, number)
    if job is None or not body:
        hint = "only the newest are kept: submit it again"
        raise Refused(f"job {number} has ended, and what it asked for is not kept any more", subject=str(number), hint=hint)
    if job.gang:
        bodies = [queries.spec(engine.reader, job.gang + rank) for rank in range(job.options.members)]
        members = [_asked(one) for one in bodies if one]
        if len(members) == len(bodies):
            return (await engine.submit(engine.callers.caller(job.uid), members, None, gang=True, turn=turn))[0]
        hint = "submit them again"
        raise Refused(f"what was asked for with job {number} is not kept any more", subject=str(number), hint=hint)
    return (await engine.submit(engine.callers.caller(job.uid), [_asked(body)], None, (job.array, job.index), turn=turn))[0]


def _asked(body: str) -> dict[str, Any]:
    asked: dict[str, Any] = json.loads(body)
    return {name: value for name, value in asked.items() if name not in ("hold", "begin", "after")}


def wanted(entry: LiveJob, state: State, reason: str, code: int | None) -> tuple[str, JobOptions] | None:
    """Why a job whose attempt has ended so runs again, and its options from then on; None where that is its end."""
    options = entry.job.options
    if entry.cancelled or state is State.TIMEOUT:
        return None
    if options.requeue:
        return options.requeue, replace(options, requeue="", preempted_by=0)
    if options.preempted_by and state is not State.LOST:
        return f"preempted for job {options.preempted_by}", replace(options, preempted_by=0)
    if state in (State.FAILED, State.OOM) and options.tried < options.retries and (not options.retry_on or code in options.retry_on):
        pause = min(2.0**options.tried, LONGEST_PAUSE)
        return reason, replace(options, tried=options.tried + 1, retry_at=time.time() + pause)
    return None


async def requeue(engine: Engine, entry: LiveJob, record: dict[str, Any] | None, reason: str, options: JobOptions) -> None:
    """Its attempt has ended: it waits for another, with these options."""
    number, now = entry.job.id, time.time()
    entry.silent = True
    wake(entry.gone)
    left = entry.handle
    unkept = await remains.keep(engine, left, entry.job.uid, entry.kept) if left is not None else ""

    def change(db: Any) -> None:
        queue.requeue(db, number, now, "; ".join(filter(None, (reason, unkept))), record)
        queue.set_options(db, number, options, now, "requeue", reason)

    if unkept and left is not None:
        engine.left.append(left)
        entry.handle = None
    stopping.over(entry)
    await engine.back(entry, change, options)


async def not_started(engine: Engine, entry: LiveJob, reason: str, options: JobOptions) -> None:
    """It was asked to run again while it was just being started, and that start was ended for it: it waits, with these options."""
    number, attempt, now = entry.job.id, entry.job.attempt, time.time()

    def change(db: Any) -> None:
        queue.void_attempt(db, number, attempt, now, reason)
        queue.set_options(db, number, options, now, "requeue", reason)

    stopping.over(entry)
    await engine.back(entry, change, options)
