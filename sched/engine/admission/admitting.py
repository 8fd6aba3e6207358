"""What a submit asks for, job by job, as it will be queued."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy

from dockless.base.dataclass import replace
from dockless.base.findings import MOST, Findings
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import BadInput, DocklessError
from dockless.sched.callers import Caller
from dockless.sched.engine.admission import gang_admission
from dockless.sched.engine.admission.amounts import JOBS_A_TURN, Turns
from dockless.sched.engine.waiting.aside import name_whole_arrays, refused
from dockless.sched.parsing import NONE_QUEUED, is_label, place_in_list
from dockless.sched.store.queue import NewJob

if TYPE_CHECKING:
    from dockless.sandbox.spec import Spec
    from dockless.sched.engine.engine import Engine


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
    in_array: tuple[int, int] = (0, 0),
    gang: bool = False,
) -> list[NewJob]:
    """The jobs, given as plain JSON values. Raises all that is wrong with them. ``turn``, ``array``, ``in_array``, ``gang``: as in
    ``Engine.submit``."""
    wrong = Findings(NONE_QUEUED if len(specs) > 1 else "")
    if gang:
        return await _gang(engine, caller, specs, turn, wrong)
    new = await of_list(engine, caller, specs, turn, wrong, len(specs), of_array=array or in_array[0] > 0)
    wrong.refuse()
    return [replace(job, in_array=in_array) for job in new] if in_array[0] else new


async def of_list(
    engine: Engine,
    caller: Caller,
    specs: Sequence[Any],
    turn: Callable[[], Awaitable[None]],
    wrong: Findings,
    count: int,
    *,
    before: int = 0,
    of_array: bool = False,
) -> list[NewJob]:
    """Those of the jobs with which nothing is wrong; else it is noted, and raised where that is enough. ``before``: how many jobs of the
    same submit, of ``count``, have been here."""
    new, refusals, turns = dict[int, NewJob](), dict[int, DocklessError](), Turns(turn)
    for index, plain in enumerate(specs):
        try:
            job = engine.admission.admit(caller, await turns.read(plain), of_array)
            if job.options.role:
                raise BadInput("a job of its own has no role", subject="role", hint="submit it together with others")
            new[index] = job
        except DocklessError as error:
            refusals[index] = error
            if len(refusals) == MOST:
                break
    never, waiting = dict[str, DocklessError | None](), [index for index, job in new.items() if job.options.after]
    for start in range(0, len(waiting), JOBS_A_TURN):
        if len(refusals) >= MOST:
            break
        if start:
            await turn()
        part = {index: new[index].options.after for index in waiting[start : start + JOBS_A_TURN]}
        names = {name for after in part.values() for name in after} - never.keys()
        never |= {**dict.fromkeys(names), **await refused(engine, caller, names, turn)}
        for index, after in part.items():
            if unmet := next(filter(None, map(never.get, after)), None):
                refusals[index] = copy(unmet)
    for index, refusal in sorted(refusals.items()):
        refusal.number = before + index + 1
        if count > 1:
            refusal.args = (place_in_list(before + index + 1, count) + str(refusal), *refusal.args[1:])
        wrong.add(refusal)
    return name_whole_arrays(engine, [*new.values()]) if not refusals else []


async def _gang(engine: Engine, caller: Caller, specs: Sequence[Any], turn: Callable[[], Awaitable[None]], wrong: Findings) -> list[NewJob]:
    """Of the instances of a role, which are alike, what is wrong is told once."""
    new, turns = list[NewJob](), Turns(turn)
    known: list[Spec] = []
    for index, plain in enumerate(specs):
        refusal = None
        try:
            asked = await turns.read(plain)
            if len(specs) > 1:
                gang_admission.check_network(asked.spec)
                known.append(asked.spec)
            new.append(engine.admission.admit(caller, asked))
        except DocklessError as error:
            refusal = error
        if refusal is not None:
            if len(specs) > 1:
                refusal.args = (_whose(plain, index + 1, len(specs)) + str(refusal), *refusal.args[1:])
            wrong.add(refusal)
    wrong.refuse()
    gang_admission.check_networks(known)
    new = gang_admission.as_gang(engine, caller, new)
    never = await refused(engine, caller, dict.fromkeys(name for job in new for name in job.options.after), turn)
    for refusal in never.values():
        wrong.add(refusal)
    wrong.refuse()
    return name_whole_arrays(engine, new)


def _whose(plain: Any, number: int, count: int) -> str:
    """The beginning of an error about one of those that start together."""
    role = plain.get("role") if isinstance(plain, dict) else None
    return f"role {role}: " if isinstance(role, str) and is_label(role) else place_in_list(number, count)
