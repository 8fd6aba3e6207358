"""How jobs end that started together (``gangs``).

One whose program has ended keeps its GPUs and its sandbox until the last has; then all end, or wait for another attempt, in one
transaction. So a daemon that comes back finds in the sandboxes what there is to know. Only why they are being ended is put down before the
first of them is told.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import SchedError
from dockless.sched import roles
from dockless.sched.engine import stopping
from dockless.sched.engine.entry import wake
from dockless.sched.engine.host import processors
from dockless.sched.engine.lifecycle import again, ending, gang_networks
from dockless.sched.jobs import JobOptions, State
from dockless.sched.store import queue
from dockless.sched.store.writer import Change

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob
    from dockless.sched.engine.lifecycle.gangs import Gang


async def over(engine: Engine, entry: LiveJob, how: ending.Ending | Change[Any]) -> None:
    """An attempt has ended, or (a change) never ran, so that they all wait again."""
    gang = entry.gang
    assert gang is not None
    gang.over[entry.job.id] = how
    stopping.over(entry)
    entry.silent = True
    wake(entry.gone)
    wake(entry.up)
    if isinstance(how, ending.Ending):
        entry.show(reason=f"its program has ended ({how.reason or 'exit code 0'}), and those that started with it go on")
    first = gang.first
    if not gang.unwanted:
        members = [roles.Member(m.job.id, m.job.options, _state(gang, m)) for m in gang.members]
        if (why := roles.ending(members)) and gang.going_on:
            options, now = replace(first.job.options, ending=why), time.time()
            first.show(options=options)
            gang.told |= {member.job.id for member in gang.going_on}
            await engine.write_surely(lambda db: queue.set_options(db, first.job.id, options, now, "ending", _said(why)))
        elif why:
            first.show(options=replace(first.job.options, ending=why))
    if gang.unwanted:
        gang.told |= {member.job.id for member in gang.going_on}
        for member in gang.going_on:
            stopping.stop(engine, member, None)
    if not gang.going_on and not gang.settling:
        gang.settling = True
        await _settle(engine, gang)


def _state(gang: Gang, member: LiveJob) -> State | None:
    how = gang.over.get(member.job.id)
    return how.state if isinstance(how, ending.Ending) else None


async def _settle(engine: Engine, gang: Gang) -> None:
    """The last of them has ended."""
    found = _wanted_again(gang)
    if found is not None:
        await _back(engine, gang, *found)
    else:
        await ending.end_jobs(engine, [(member, _final(gang, member)) for member in gang.members])
        _forget_network(engine, gang)


def _forget_network(engine: Engine, gang: Gang) -> None:
    """Also one that an earlier daemon had made for them."""
    gang.own = None
    if gang_networks.has(gang.first.job.id):
        engine.spawn(asyncio.to_thread(gang_networks.forget, gang.first.job.id))


def _cause(gang: Gang) -> LiveJob | None:
    """The one whose failure ended all."""
    why = gang.first.job.options.ending
    return next((member for member in gang.members if why == f"failed:{member.job.id}"), None)


def _wanted_again(gang: Gang) -> tuple[str, JobOptions] | None:
    """Why all of them wait for another attempt, and the options of the first from then on; None where this is their end."""
    first, cause = gang.first, _cause(gang)
    options = replace(first.job.options, ending="")
    if first.cancelled:
        return None
    if options.requeue or options.preempted_by:
        why = options.requeue or f"preempted for job {options.preempted_by}"
        return why, replace(options, requeue="", preempted_by=0)
    if any(not isinstance(how, ending.Ending) for how in gang.over.values()):
        return "not all of them could start", options
    how = gang.over[cause.job.id] if cause is not None else None
    if cause is None or not isinstance(how, ending.Ending) or any(member.cancelled for member in gang.members):
        return None
    found = again.wanted(first, how.state, how.reason, how.code)
    return None if found is None else (f"{_name(cause)}: {found[0]}", replace(found[1], ending=""))


def _final(gang: Gang, member: LiveJob) -> ending.Ending:
    """How one of them ended, told from the end of all. The first has the state of all."""
    own, cause = gang.over[member.job.id], _cause(gang)
    assert isinstance(own, ending.Ending)
    how = gang.over[cause.job.id] if cause is not None else None
    if gang.first.cancelled:
        return own if member is not gang.first else replace(own, state=State.CANCELLED, reason=own.reason or "cancelled while it ran")
    if cause is None:
        if member is gang.first and own.state is not State.COMPLETED:
            return replace(own, state=State.COMPLETED, reason=f"the others are done ({own.reason})", code=0)
        if member.job.id in gang.told and own.state is not State.COMPLETED:
            return replace(own, state=State.COMPLETED, reason=f"ended when the others were done ({own.reason})")
        return own
    assert isinstance(how, ending.Ending)
    if member is gang.first and member is not cause:
        return replace(own, state=how.state, reason=f"{_name(cause)}: {how.reason}", code=how.code)
    if member is not cause and member.job.id in gang.told and own.state is not State.COMPLETED:
        return replace(own, state=State.CANCELLED, reason=f"ended because {_name(cause)} did: {how.reason}")
    return own


def _said(why: str) -> str:
    """``JobOptions.ending`` in words."""
    failed = why.removeprefix("failed:")
    return f"job {failed} failed" if failed != why else "enough of a role have succeeded"


def _name(member: LiveJob) -> str:
    return f"job {member.job.id} ({member.job.options.role} {member.job.options.role_index})"


async def _back(engine: Engine, gang: Gang, reason: str, options: JobOptions) -> None:
    """All of them wait for another attempt."""
    now, first = time.time(), gang.first

    def change(db: sqlite3.Connection) -> None:
        for member in gang.members:
            how = gang.over[member.job.id]
            if isinstance(how, ending.Ending):
                queue.requeue(db, member.job.id, now, reason, how.record)
            else:
                how(db)
        queue.set_options(db, first.job.id, options, now, "requeue", reason)

    await engine.write_surely(change)
    for member in gang.members:
        await engine.take_down(member)
        member.silent = False
    for member in gang.members:
        engine.active.pop(member.job.id, None)
    processors.ended(engine, first.job.uid)
    first.show(options=options)
    gang.over.clear()
    gang.told.clear()
    gang.settling = False
    if any(member.cancelled for member in gang.members):
        await ending.end_jobs(engine, [(member, ending.Ending(State.CANCELLED, "cancelled before it ran")) for member in gang.members])
        _forget_network(engine, gang)
        return
    engine.line_up(first)
    engine.kick()


async def withdraw(engine: Engine, gang: Gang, reason: str) -> None:
    """End them while they wait."""
    for member in gang.members:
        member.cancelled = True
    engine.step_back(gang.first)
    try:
        await ending.end_jobs(engine, [(member, ending.Ending(State.CANCELLED, reason)) for member in gang.members])
        _forget_network(engine, gang)
    except SchedError:
        for member in gang.members:
            member.cancelled = False
        engine.line_up(gang.first)
        raise
