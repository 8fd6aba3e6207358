"""Jobs that wait and are kept from starting: ``hold``, until ``release``. A hold is seen at once and answered when it is on disk; a release
is on disk first."""

from __future__ import annotations

import time

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import NotPermitted, Refused, SchedError
from dockless.sched.callers import Caller
from dockless.sched.jobs import JobOptions, State
from dockless.sched.store import queue

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob


async def hold(engine: Engine, number: int, caller: Caller) -> None:
    """Keep a waiting job from starting until it is released; one that is held stays so. ``Refused`` for one that does not wait."""
    entry = _waiting(engine, number)
    number, before = entry.job.id, entry.job.options
    theirs = caller.uid != entry.job.uid
    if before.held and (before.held_by_admin or not theirs):
        return
    options, now = replace(before, held=caller.user, held_by_admin=theirs), time.time()
    _reconsider(engine, entry, options)
    try:
        await engine.write(lambda db: queue.set_options(db, number, options, now, "hold", f"by {caller.user}"))
    except SchedError:
        if entry.job.id in engine.aside.kept:
            _reconsider(engine, entry, before)
        raise


async def release(engine: Engine, number: int, caller: Caller) -> None:
    """Let a held job start when its turn comes; no error for one that is not held. ``NotPermitted`` where an administrator holds it."""
    entry = _waiting(engine, number)
    number, before = entry.job.id, entry.job.options
    if before.held_by_admin and not caller.admin:
        hint = f"ask {before.held}"
        raise NotPermitted(f"job {number} is held by {before.held}, an administrator", subject=str(number), hint=hint)
    if not before.held:
        return
    options, now = replace(before, held="", held_by_admin=False), time.time()
    await engine.write(lambda db: queue.set_options(db, number, options, now, "release", f"by {caller.user}"))
    if entry.job.id in engine.aside.kept:
        _reconsider(engine, entry, options)


def _waiting(engine: Engine, number: int) -> LiveJob:
    entry = engine.entries.get(number)
    if entry is None or entry.job.state is not State.PENDING or entry.cancelled:
        raise Refused(f"job {number} does not wait", subject=str(number), hint=f"`dockless queue {number}` shows what became of it")
    return entry.first


def _reconsider(engine: Engine, entry: LiveJob, options: JobOptions) -> None:
    engine.step_back(entry)
    entry.show(options=options)
    engine.line_up(entry)
    engine.kick()
