"""What a waiting job could ask for instead, and start now: asked of ``decide`` itself, so it is never a guess."""

from __future__ import annotations

from dockless.base.dataclass import dataclass, replace
from dockless.sched.policy.policy import decide
from dockless.sched.policy.state import QueueState
from dockless.sched.policy.waiting import WaitingJob, WaitingList


@dataclass(frozen=True, slots=True)
class Sooner:
    """Each alone would let it start now; None where it would not. ``gpus``: so many, fewer than it asks for. ``any_gpus``: as many, but not
    these very ones. ``time_limit``: seconds, less than it has."""

    gpus: int | None = None
    any_gpus: bool = False
    time_limit: float | None = None


def sooner(state: QueueState, job: WaitingJob, now: float) -> Sooner:
    """For one of ``state.waiting``, which is as it was afterwards. Takes the time of a few decisions."""
    any_gpus = bool(job.devices) and _starts(state, job, replace(job, devices=frozenset()), now)
    return Sooner(None if job.devices else _fewer(state, job, now), any_gpus, _shorter(state, job, now))


def _fewer(state: QueueState, job: WaitingJob, now: float) -> int | None:
    """The most. Who could start with some could start with fewer."""
    least, most = 0, job.gpus - 1
    while least < most:
        middle = (least + most + 1) // 2
        if _starts(state, job, replace(job, gpus=middle), now):
            least = middle
        else:
            most = middle - 1
    return least if least > 0 and _starts(state, job, replace(job, gpus=least), now) else None


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
