"""The way of an attempt from the moment at which it runs: it is watched, its end is recorded, and what it leaves is removed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Sequence

from dockless.base.dataclass import dataclass
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import DocklessError
from dockless.sandbox.state import RUNNING
from dockless.sched.engine import attempts, queue_state, stopping
from dockless.sched.engine.entry import wake
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.gpus import kept_out, sharing
from dockless.sched.engine.host import processors
from dockless.sched.engine.lifecycle import again, gang_ends, preempting, remains, warning
from dockless.sched.engine.lifecycle.housekeeping import AFTER_ENDS
from dockless.sched.engine.wants import is_the_hosts
from dockless.sched.jobs import State, final_state, shell_code
from dockless.sched.store import queue
from dockless.sched.store.writer import Change

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended. ``record``: of its exit; ``code``: as a shell would have it."""

    state: State
    reason: str
    record: dict[str, Any] | None = None
    code: int | None = None


OVERDUE = 10.0
"""Seconds after which a job's keeper that has not enforced its time limit is helped: somebody may have stopped it."""
SOON = 0.03
"""Seconds. While programs end within them, who has started one waits so long for its end: one transaction less, and no other thread has
to be woken for it."""
GIVE_UP = 30
"""Failures to end a job and to look at it, after which it is LOST, whatever of it still lives."""


async def watch(engine: Engine, entry: LiveJob, pidfd: int = -1) -> None:
    """It runs: see its end, and what is wanted of it until then. ``pidfd``: of its keeper, -1 where there is none yet."""
    assert entry.handle is not None
    fd = pidfd if pidfd >= 0 else await engine.looked_at(attempts.wait_gone, entry.handle)
    if fd is None:
        if not engine.closing:
            await finish(engine, entry)
    elif engine.closing:
        os.close(fd)  # the next daemon adopts it
    else:
        entry.pidfd = fd
        engine.loop.add_reader(fd, _gone, engine, entry)
        if entry.limit is not None:
            left = entry.job.started + entry.limit + OVERDUE - time.time()
            entry.overdue = engine.loop.call_later(min(max(OVERDUE, left), entry.limit + OVERDUE), _overdue, engine, entry)
        wish = entry.first.job.options
        if entry.cancelled or wish.requeue or wish.ending:
            stopping.stop(engine, entry, None)
        elif wish.preempted_by:
            preempting.go_on(engine, entry)
        warning.arm(engine, entry)


def _gone(engine: Engine, entry: LiveJob) -> None:
    unwatch(engine, entry)
    if engine.gpus.reasons:  # before anybody else leases one of them that this job had
        kept_out.settle(engine)
    engine.spawn(surely(engine, entry, finish(engine, entry)))


def unwatch(engine: Engine, entry: LiveJob) -> None:
    """Its end is seen no more."""
    engine.loop.remove_reader(entry.pidfd)
    os.close(entry.pidfd)
    entry.pidfd = -1


def _overdue(engine: Engine, entry: LiveJob) -> None:
    say(f"job {entry.job.id} is past its time limit, and its keeper has not ended it: killing it")
    stopping.stop(engine, entry, 0.0)


async def surely(engine: Engine, entry: LiveJob, work: Awaitable[None]) -> None:
    """A job's way to its end; an error of ours on it must not leave the job running for ever."""
    try:
        await work
    except Exception as error:
        if not engine.closing and entry.job.id in engine.active:
            await give_up(engine, entry, error)


async def give_up(engine: Engine, entry: LiveJob, error: BaseException) -> None:
    """Nobody can follow this job: once nothing of it goes on any more, and not earlier, its GPUs are free and it is LOST."""
    what = f"{type(error).__name__}: {error}" if isinstance(error, DocklessError) else type(error).__name__
    say(f"job {entry.job.id} cannot be followed: {describe(error)}; ending it")
    name = engine.name(entry.job.id, entry.job.attempt)
    failures = 0
    while not engine.closing:
        try:
            handle = entry.handle = await engine.in_thread(engine.looking, engine.launcher.find, name)
            if handle is None:
                break
            await engine.in_thread(engine.signalling, handle.kill)
            if await engine.in_thread(engine.looking, handle.state) not in RUNNING:
                break
        except Exception as trouble:
            failures += not is_the_hosts(trouble)
            if failures == GIVE_UP:  # its GPUs are looked at before they are given to the next
                what += f", nor say whether it has ended ({type(trouble).__name__})"
                say(f"job {entry.job.id} cannot be ended: {describe(trouble)}; it is taken as LOST")
                break
            say(f"job {entry.job.id} cannot be ended yet: {describe(trouble)}; trying again")
        await asyncio.sleep(stopping.KILL_AGAIN)
    else:
        return
    if entry.pidfd >= 0:
        unwatch(engine, entry)
    await end(engine, entry, State.CANCELLED if entry.cancelled else State.LOST, f"the daemon could not follow it: {what}", None, None)


async def finish(engine: Engine, entry: LiveJob) -> None:
    """The keeper has ended: what it wrote about the end, or LOST if it could not."""
    handle = entry.handle
    assert handle is not None
    if entry.gang is None:
        exit, entry.kept = await engine.looked_at(attempts.taken_in, handle, engine.logs / handle.id)
    else:  # its output stays where it is until the last of them has ended
        exit = await engine.looked_at(attempts.reaped, handle)
    if exit is None:
        await engine.looked_at(handle.kill)  # nothing of it may go on while its GPUs go to the next
        how = Ending(State.CANCELLED if entry.cancelled else State.LOST, await engine.looked_at(handle.why_vanished))
    else:
        how = _ending(engine, entry, exit)
    if entry.gang is None and (found := again.wanted(entry, how.state, how.reason, how.code)) is not None:
        await again.requeue(engine, entry, how.record, *found)
    else:
        await end(engine, entry, how.state, how.reason, how.record, how.code)


def _ending(engine: Engine, entry: LiveJob, exit: Any) -> Ending:
    engine.end_soon = 0 <= exit.ended - exit.started < SOON
    record = attempts.exit_record(exit)
    state, reason = final_state(record, entry.cancelled, entry.verdict)
    return Ending(state, reason, record, shell_code(record))


def for_good(engine: Engine, entry: LiveJob, exit: Any, kept: bool) -> Ending | None:
    """The end of a job whose program has ended so, and whose output is ``kept``; None for one that is to run again."""
    how = _ending(engine, entry, exit)
    if again.wanted(entry, how.state, how.reason, how.code) is not None:
        return None
    entry.kept = kept
    return how


async def end(engine: Engine, entry: LiveJob, state: State, reason: str, record: dict[str, Any] | None, code: int | None) -> None:
    """The attempt is over, and with it the job, if it is not one of several that end together. ``record``: of its exit, ``code``: as a
    shell would have it; None for what never ran, or nobody can say."""
    how = Ending(state, reason, record, code)
    if entry.gang is None:
        await end_jobs(engine, [(entry, how)])
    else:
        await gang_ends.over(engine, entry, how)


async def end_jobs(engine: Engine, ended: Sequence[tuple[LiveJob, Ending]], before: Change[Any] | None = None) -> None:
    """These jobs are over, all in one transaction. ``before``: what has not been put down yet of one that has ended at once."""
    unkept: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for entry, how in ended:
        entry.silent = True
        wake(entry.gone)
        why = await remains.keep(engine, entry.handle, entry.job.uid, entry.kept) if entry.handle is not None else ""
        unkept[entry.job.id] = why
        reasons[entry.job.id] = "; ".join(filter(None, (how.reason, why)))
    now = time.time()

    def change(db: sqlite3.Connection) -> None:
        if before is not None:
            before(db)
        for entry, how in ended:
            attempt = entry.job.attempt if entry.job.state is not State.PENDING else 0
            queue.finish(db, entry.job.id, attempt, how.state, now, reasons[entry.job.id], how.record, how.code)

    async def meanwhile() -> None:
        for entry, how in ended:
            entry.show(reason=f"it has ended ({how.state}), which cannot be recorded yet: {engine.outage.text}")
            if entry.handle is not None:
                await remains.lighten(engine, entry.handle)

    await sharing.end_services_of(engine, [entry.job for entry, _ in ended])
    await engine.write_surely(change, meanwhile)
    for entry, how in ended:
        signal = how.record.get("signal") if how.record else None
        entry.show(state=how.state, reason=reasons[entry.job.id], ended=now, exit_code=how.code, signal=signal)
        _let_go(engine, entry)
    for entry, _ in ended:
        engine.aside.ended(entry.job)
    engine.kick()
    for entry, _ in ended:
        if entry.handle is not None and unkept[entry.job.id]:
            engine.left.append(entry.handle)
        elif entry.handle is not None:
            engine.removals.add(entry.handle)


def _let_go(engine: Engine, entry: LiveJob) -> None:
    """Its end is recorded."""
    job = entry.job
    queue_state.count_usage(engine, entry)
    failed = job.state in (State.FAILED, State.TIMEOUT, State.OOM, State.LOST) or entry.verdict
    engine.tell(entry, "fail" if failed and "fail" in job.options.notify else "end")
    engine.active.pop(job.id, None)
    processors.ended(engine, job.uid)
    engine.entries.pop(job.id, None)
    if entry.overdue is not None:
        entry.overdue.cancel()
    if entry.hurry is not None:
        entry.hurry.set()
    engine.per_user.leave(entry.live)
    engine.ends += 1
    engine.left_specs[job.uid] += entry.live.spec_size
    if engine.ends >= AFTER_ENDS or engine.left_specs.total() > engine.config.per_user_size:
        engine.many_ended.set()
    for future in entry.ended:
        if not future.done():
            future.set_result(job)
    wake(entry.up)
