"""Why a job that may not start yet waits (``engine.waiting.aside``): all that keeps it aside, whom it waits for, when it may start, and
what would make that earlier."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from dockless.base.typing import TYPE_CHECKING
from dockless.sched import clock
from dockless.sched.engine.entry import LiveJob
from dockless.sched.jobs import Job, State
from dockless.sched.policy.forecast import STARTS, Forecast
from dockless.sched.policy.places import Places
from dockless.sched.wire.protocol import Awaited, Why

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

NAMED = 5
"""Jobs that are named."""
LOOKS = 10_000
"""Lines of waiting jobs that are looked at for the places of those whose array keeps them aside."""


def why(engine: Engine, entry: LiveJob, number: int, foretold: Forecast, standing: Places) -> Why:
    """``entry``: the job, or the first of its gang, which is kept aside."""
    aside, job, now = engine.aside, entry.job, clock.ticks()
    rules = dict(aside.rules(job))
    awaited = {rule: aside.awaited(job, rule) for rule in rules}
    shown = next(filter(None, awaited.values()), ())
    starts: float | None
    if [*rules] == ["array"]:
        starts = foretold.starts.get(job.id)
    else:
        behind = [_ends(engine, one, foretold) for rule in ("after", "singleton") for one in awaited.get(rule, ())]
        opens = now + max(0.0, aside.not_before(job) - time.time())
        starts = None if None in behind or not {"held", "array"}.isdisjoint(rules) else max([opens, *filter(None, behind)])
    later = starts is None and [*rules] == ["array"] and not foretold.whole and foretold.until is not None
    place, waiting = places(engine, standing).get(job.id, (0, len(engine.waiting)))
    return Why(
        *(number, str(State.PENDING), "; ".join(rules.values()) or aside.why(job), place, waiting),
        starts_in=None if starts is None else max(0.0, starts - now),
        rule=next(iter(rules), ""),
        endless=tuple(one for one in shown if starts is None and one in engine.active and engine.active[one].ends is None)[:NAMED],
        awaited=tuple(_awaited(engine, one, foretold, now) for one in shown[:NAMED]),
        awaiting=len(shown),
        starts_after=max(0.0, foretold.until - now) if later and foretold.until is not None else None,
        earlier=tuple(_earlier(engine, job, rules, awaited)),
    )


def places(engine: Engine, standing: Places) -> dict[int, tuple[int, int]]:
    """Of those whose array keeps them aside and who are foretold: the place that each would have without, and of how many. Those of one
    array stand behind each other."""
    found = dict[int, tuple[int, int]]()
    lines = max(1, len(engine.waiting.lines))
    for array in engine.aside.next_of_arrays(STARTS)[: LOOKS // lines]:
        if (first := engine.entries.seen(array.numbers[0])) is not None:
            place, waiting = standing.place(first)
            found |= {number: (place + index, waiting + len(array.numbers)) for index, number in enumerate(array.numbers)}
    return found


def _ends(engine: Engine, number: int, foretold: Forecast) -> float | None:
    """When it has ended at the latest or, where it waits, about; None where nobody can say."""
    if (entry := engine.active.get(number)) is not None:
        return entry.ends
    starts, job = foretold.starts.get(number), engine.entries.seen(number)
    return starts + job.time_limit if starts is not None and job is not None and job.time_limit else None


def _awaited(engine: Engine, number: int, foretold: Forecast, now: float) -> Awaited:
    running, ends = engine.active.get(number), _ends(engine, number, foretold)
    state = State.PENDING if running is None else running.job.state
    return Awaited(number, str(state), None if ends is None else max(0.0, ends - now))


def _earlier(engine: Engine, job: Job, rules: Mapping[str, str], awaited: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """What ends each of its rules before its time."""
    again = "submitted again"
    for rule in rules:
        others = awaited[rule]
        held = [one for one in others[:NAMED] if one in engine.aside.kept and _is_held(engine, one)]
        if rule == "held":
            yield f"after `dockless release {job.id}`" + (f" by {job.options.held}, an administrator" if job.options.held_by_admin else "")
        elif rule == "begin":
            yield f"{again} with an earlier --begin"
        elif rule == "retry" and job.options.tried:
            yield f"{again}: a new job has no pause before it"
        elif held:
            yield f"after `dockless release {' '.join(map(str, held))}`, for it waits for what is held"
        elif rule == "after":
            yield f"{again} without --after"
        elif rule == "singleton":
            yield f"{again} under another name"
        elif rule == "array":
            yield f"{again} with a higher limit than %{job.options.array_limit}"


def _is_held(engine: Engine, number: int) -> bool:
    entry = engine.entries.get(number)
    return entry is not None and bool(entry.first.job.options.held)
