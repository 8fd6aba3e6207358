"""What a waiting job could ask for instead, and start now: asked of ``decide`` itself, so it is never a guess."""

from __future__ import annotations

from dockless.base.dataclass import dataclass, replace
from dockless.base.typing import Any
from dockless.sched.policy.policy import decide
from dockless.sched.policy.state import QueueState
from dockless.sched.policy.supplies import CORES, MEMORY
from dockless.sched.policy.waiting import WaitingJob, WaitingList

_CORE, _GIB, _SMALL = 1000, 1 << 30, 64 << 20


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
