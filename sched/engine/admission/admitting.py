"""What a submit asks for, job by job, as it will be queued."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from dockless.base.dataclass import replace
from dockless.base.records import read
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadInput, DocklessError
from dockless.sched.callers import Caller
from dockless.sched.engine.admission import gang_admission
from dockless.sched.engine.waiting.aside import name_whole_arrays, refuse_unknown
from dockless.sched.jobs import JobSpec
from dockless.sched.store.queue import NewJob

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

JOBS_A_TURN = 50
"""Jobs of one request that are looked at before somebody else's turn."""


async def next_round() -> None:
    """The turn of whoever does something for nobody in particular."""
    await asyncio.sleep(0)


async def admitted(
    engine: Engine,
    caller: Caller,
    specs: Sequence[Any],
    turn: Callable[[], Awaitable[None]],
    *,
    array: bool = False,
    place: tuple[int, int] = (0, 0),
    gang: bool = False,
    before: int = 0,
) -> list[NewJob]:
    """The jobs, given as plain JSON values. Raises what is wrong with one. ``turn``, ``array``, ``place``, ``gang``: as in
    ``Engine.submit``; ``before``: how many jobs of the same submit have been here."""
    new: list[NewJob] = []
    for index, plain in enumerate(specs):
        if index % JOBS_A_TURN == JOBS_A_TURN - 1:
            await turn()
        try:
            asked = read(JobSpec, plain, "job")
            if gang and len(specs) > 1:
                gang_admission.check_network(asked.spec)
            job = engine.admission.admit(caller, asked, array or place[0] > 0)
            new.append(replace(job, place=place) if place[0] else job)
        except DocklessError as error:
            if before:
                error.add_note(f"that is job {before + index + 1} of a list, of which none was queued")
            elif len(specs) > 1:
                error.add_note(f"that is job {index + 1} of {len(specs)}, of which none was queued")
            raise
    if gang:
        new = gang_admission.as_gang(engine, caller, new)
    elif any(job.options.role for job in new):
        raise BadInput("a job of its own has no role", subject="role", hint="submit it together with others")
    await refuse_unknown(engine, caller, {name for job in new for name in job.options.after}, turn)
    return name_whole_arrays(engine, new)
