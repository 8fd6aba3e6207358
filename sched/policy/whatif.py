"""What a waiting job could ask for instead, and start now or earlier: asked of ``decide`` itself, so it is never a guess."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from dockless.base.dataclass import dataclass, replace
from dockless.base.typing import Any
from dockless.sched.policy.forecast import Array, Forecast, forecast
from dockless.sched.policy.past_usage import PastUsage
from dockless.sched.policy.policy import decide
from dockless.sched.policy.state import QueueState
from dockless.sched.policy.supplies import CORES, MEMORY
from dockless.sched.policy.waiting import WaitingJob, WaitingList

_CORE, _GIB, _SMALL = 1000, 1 << 30, 64 << 20

MARGIN = 0.75
"""What starts earlier is said if it starts before this part of the wait is over."""
LEAST = 60.0
"""And so many seconds earlier."""
LIMITS = 86400.0, 3600.0
"""Time limits that are tried for a job without one, seconds."""


@dataclass(frozen=True, slots=True)
class Sooner:
    """Each alone would let it start now; None where it would not. ``gpus``: so many, fewer than it asks for. ``any_gpus``: as many, but not
    these very ones. ``time_limit``: seconds, less than it has. ``cores``: whole ones, in thousandths, and ``memory``: bytes, whole GiB (of
    2 GiB or less whole 64 MiB), less than it asks for."""

    gpus: int | None = None
    any_gpus: bool = False
    time_limit: float | None = None
    cores: int | None = None
    memory: int | None = None


def sooner(state: QueueState, job: WaitingJob, now: float) -> Sooner:
    """For one of ``state.waiting``, which is as it was afterwards. Takes the time of a few decisions."""
    any_gpus = bool(job.devices) and not job.devices & state.slices and _starts(state, job, replace(job, devices=frozenset()), now)
    return Sooner(
        None if job.devices else _less(state, job, "gpus", 1, now),
        any_gpus,
        _shorter(state, job, now),
        _less(state, job, CORES, _CORE, now) if CORES in state.supplies else None,
        _less(state, job, MEMORY, _GIB if job.memory > 2 * _GIB else _SMALL, now) if MEMORY in state.supplies else None,
    )


@dataclass(frozen=True, slots=True)
class Earlier:
    """``what`` it could ask for ``instead``, one thing alone: ``any`` GPUs, of another ``class``, less of the ``share``, fewer ``gpus``, a
    shorter ``limit``; ``starts``: when it starts then, as in ``Forecast``."""

    what: str
    instead: WaitingJob
    starts: float


def earlier(
    state: QueueState,
    job: WaitingJob,
    now: float,
    past: PastUsage | None,
    goes_on: Callable[[], bool],
    arrays: Sequence[Array],
    found: Forecast,
    others: Mapping[str, tuple[str, ...]],
) -> list[Earlier]:
    """What would let one of ``state.waiting`` start earlier than ``found`` says: fewer GPUs, GPUs of a class of ``others``, any GPUs, less
    memory of one, a shorter time limit; of each kind the best, the earliest first. Each of at most eight is a forecast of its own, which
    ends when the job has started, when it is not worth saying any more, or as ``goes_on`` says."""
    assert isinstance(state.waiting, WaitingList)
    starts = found.starts.get(job.id)
    wait = math.inf if starts is None else starts - now
    before = now + min(wait * MARGIN, wait - LEAST)
    best: dict[str, Earlier] = {}
    for what, instead in _changes(state, job, others) if before > now else ():
        if not goes_on():
            break
        waiting = WaitingList()
        waiting.add_copies(state.waiting.lines.items())
        waiting.remove(job)
        waiting.add(instead)
        tried = replace(state, waiting=waiting, classes={**others, **state.classes})
        at = forecast(tried, now, copy.copy(past), goes_on, arrays, job.id, before).starts.get(job.id, math.inf)
        if at < before and (what not in best or at < best[what].starts):
            best[what] = Earlier(what, instead, at)
    return sorted(best.values(), key=lambda one: one.starts)


def _changes(state: QueueState, job: WaitingJob, others: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, WaitingJob]]:
    """The less it changes the earlier it comes."""
    if job.devices and not job.devices & state.slices:
        yield "any", replace(job, devices=frozenset())
    for name in [name for name, gpus in others.items() if len(gpus) >= job.gpus][:2]:
        yield "class", replace(job, gpu_class=name)
    if job.share > 1:
        yield "share", replace(job, share=job.share // 2)
    for limit in (job.time_limit / 2, job.time_limit / 4) if job.time_limit else LIMITS:
        limit -= limit % (60 if limit > 90 else 1)
        if limit >= 1:
            yield "limit", replace(job, time_limit=limit)
    for gpus in sorted({job.gpus // 2, 1} - {0, job.gpus}, reverse=True) if job.gpus > 1 and not job.devices else ():
        yield "gpus", replace(job, gpus=gpus)


def _less(state: QueueState, job: WaitingJob, what: str, step: int, now: float) -> int | None:
    """The most in whole steps that is less than it asks for. Who could start with some could start with fewer."""

    def starts(steps: int) -> bool:
        instead: dict[str, Any] = {what: steps * step}
        return _starts(state, job, replace(job, **instead), now)

    least, most = 1, (getattr(job, what) - 1) // step
    if most < least or not starts(least):
        return None
    while least < most:
        middle = (least + most + 1) // 2
        if starts(middle):
            least = middle
        else:
            most = middle - 1
    return least * step


def _shorter(state: QueueState, job: WaitingJob, now: float) -> float | None:
    """Until the last of the moments from which GPUs are kept for others; whole minutes, or seconds where it is 90 or less."""
    moments = [kept.at - now for kept in decide(state, now).reservations if kept.at is not None and kept.job != job.id]
    moments += [window.starts - now for window in state.windows]
    limit = max(moments, default=0.0)
    limit -= limit % (60 if limit > 90 else 1)
    if limit < 1 or (job.time_limit and job.time_limit <= limit):
        return None
    return limit if _starts(state, job, replace(job, time_limit=limit), now) else None


def _starts(state: QueueState, job: WaitingJob, instead: WaitingJob, now: float) -> bool:
    waiting = state.waiting
    assert isinstance(waiting, WaitingList)
    waiting.remove(job)
    waiting.add(instead)
    try:
        return any(start.job == job.id for start in decide(state, now).starts)
    finally:
        waiting.remove(instead)
        waiting.add(job)
