"""Of jobs that wait: their places in the queue, the jobs before them, when they start, and what would let one start now.

To find this, decisions of the policy are made, which can take half a second. So it is done in a thread, on a copy of the waiting jobs, for
one caller after the other.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from dockless.base.dataclass import dataclass, replace
from dockless.base.typing import TYPE_CHECKING
from dockless.sched import clock
from dockless.sched.engine import queue_state
from dockless.sched.policy import classes
from dockless.sched.policy.forecast import STARTS, Array, Forecast, forecast
from dockless.sched.policy.past_usage import PastUsage
from dockless.sched.policy.places import Places
from dockless.sched.policy.state import QueueState
from dockless.sched.policy.waiting import WaitingJob, WaitingList
from dockless.sched.policy.whatif import Earlier, Sooner, earlier, sooner

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

KINDS = 2000
"""Kinds of waiting jobs beyond which nobody is told what would start sooner, nor when a job starts."""
LINES = 250
"""Lines of waiting jobs that are copied before somebody else's turn."""
LONGEST = 0.15
"""Seconds of processor time that a forecast takes."""
INSTEAD = 0.1
"""Seconds of processor time for trying what would let one job start earlier; the last try may take some milliseconds more."""
AHEAD = 5
"""Jobs before another that are named."""

Turn = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one job. ``starts``: when, on the policy's clock, None where nobody can say; ``endless``: because of these jobs without a time
    limit, which run now or would run then with what it could have. ``whole``, ``until``: as in ``Forecast``."""

    place: int
    waiting: int
    ahead: Sequence[WaitingJob]
    sooner: Sooner
    earlier: Sequence[Earlier]
    starts: float | None
    endless: tuple[int, ...]
    whole: bool
    until: float | None


@dataclass(frozen=True, slots=True)
class _Moment:
    """What there is to look at, as it was."""

    state: QueueState
    waiting: WaitingList
    now: float
    past: PastUsage | None
    one_queue: bool
    arrays: Sequence[Array]


class Outlook:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._one = asyncio.Lock()
        self._known: tuple[tuple[object, int, int], Forecast] | None = None

    async def of(self, job: WaitingJob, instead: bool, turn: Turn) -> Seen | None:
        """None where it waits no more. ``instead``: what it could ask for instead is wanted, too. ``turn``: awaited between pieces of
        work."""
        async with self._one:
            moment = await self._moment(turn)
            if job not in moment.waiting:
                return None
            key = self._key()
            known = self._known[1] if self._known is not None and self._known[0] == key else None
            looked: tuple[Seen, Forecast] = await self.engine.reported(_seen, moment, job, instead, known, self._others(job))
            self._known = key, looked[1]
            return looked[0]

    async def starts(self, turn: Turn) -> Forecast:
        """Of all that wait."""
        async with self._one:
            key = self._key()
            if self._known is None or self._known[0] != key:
                moment = await self._moment(turn)
                self._known = key, await self.engine.reported(_forecast, moment)
            return self._known[1]

    def _others(self, job: WaitingJob) -> dict[str, tuple[str, ...]]:
        """Where the job asks for GPUs of a class: the GPUs, or slices, of other models that would be large enough, by model."""
        gpus = self.engine.gpus
        if not job.gpu_class or job.devices:
            return {}
        own = frozenset(gpus.may_have(job.gpu_class))
        slices = not own.isdisjoint(gpus.not_whole)
        found: defaultdict[str, list[str]] = defaultdict(list)
        for unit in gpus.gpus:
            if unit.uuid not in own and bool(unit.parent) == slices and unit.memory >= classes.memory(job.gpu_class):
                found[unit.model].append(unit.uuid)
        return {model: tuple(uuids) for model, uuids in found.items()}

    def places(self) -> Places:
        """The places of all waiting jobs. Valid until one of them comes or goes."""
        decision = self.engine.decision
        return Places(queue_state.state(self.engine), decision is not None and decision.one_queue)

    def _key(self) -> tuple[object, int, int]:
        """A forecast is valid as long as this is the same."""
        return self.engine.decision, self.engine.waiting.changes, len(self.engine.aside.kept)

    async def _moment(self, turn: Turn) -> _Moment:
        engine, waiting = self.engine, WaitingList()
        state, now, decision = queue_state.state(engine), clock.ticks(), engine.decision
        past = copy.copy(engine.past) if state.usage is not None else None
        lines = [*engine.waiting.lines.items()]
        arrays = [
            Array(array.inside, [job for number in array.numbers if (job := engine.entries.seen(number)) is not None], array.all)
            for array in engine.aside.next_of_arrays(STARTS)
        ]
        for start in range(0, len(lines), LINES):
            if start:
                await turn()
            waiting.add_copies(lines[start : start + LINES])
        return _Moment(replace(state, waiting=waiting), waiting, now, past, decision is not None and decision.one_queue, arrays)


def _seen(
    moment: _Moment, job: WaitingJob, instead: bool, known: Forecast | None, others: Mapping[str, tuple[str, ...]]
) -> tuple[Seen, Forecast]:
    places = Places(moment.state, moment.one_queue)
    place, waiting = places.place(job)
    ahead = places.ahead(job, AHEAD)
    instead = instead and len(moment.waiting.lines) <= KINDS
    found = sooner(moment.state, job, moment.now) if instead else Sooner()
    tried = WaitingList()
    if instead and known is None:  # a forecast changes its list
        tried.add_copies(moment.waiting.lines.items())
    elif instead:
        tried = moment.waiting
    future = known or _forecast(moment)
    until = time.thread_time() + INSTEAD
    earliest = (
        earlier(
            *(replace(moment.state, waiting=tried), job, moment.now, moment.past, lambda: time.thread_time() < until),
            *(moment.arrays, future, others),
        )
        if instead
        else ()
    )
    starts, gpus, endless = future.starts.get(job.id), places.queues.gpus(job.kind), []
    if starts is None and future.whole:
        near = (run for run in future.endless if moment.one_queue or (not run.gpus.isdisjoint(gpus) if job.gpus else not run.gpus))
        endless = sorted(run.id for run in near)
    return Seen(place, waiting, ahead, found, earliest, starts, tuple(endless[:AHEAD]), future.whole, future.until), future


def _forecast(moment: _Moment) -> Forecast:
    if len(moment.waiting.lines) > KINDS:
        return Forecast(until=moment.now)
    until = time.thread_time() + LONGEST
    return forecast(moment.state, moment.now, copy.copy(moment.past), lambda: time.thread_time() < until, moment.arrays)
