"""A job that has not ended, as the daemon's memory has it."""

from __future__ import annotations

import asyncio

from dockless.base.dataclass import dataclass, field, replace
from dockless.base.typing import Any
from dockless.sandbox.spec import GRACE
from dockless.sched.engine.attempts import Handle
from dockless.sched.jobs import Job, State
from dockless.sched.policy.waiting import WaitingJob
from dockless.sched.store import queue
from dockless.sched.store.queue import Live


@dataclass(slots=True, eq=False)
class LiveJob:
    """A job that has not ended. ``waiting``: what the policy sees of it; ``ends``: on the policy's clock, None without a limit.
    ``ended``, ``up``, ``gone``: who waits for its end, for its program to run, for its program to be gone; ``silent``: nobody need wait for
    the last of these any more. ``stop_by``: when it is killed, on the policy's clock, None while nobody wants its end; ``hurry``: set when
    that changed. ``limit``: seconds it may run, grace included, None without a limit; ``overdue``: the timer that looks whether it still
    runs then."""

    live: Live
    waiting: WaitingJob
    cancelled: bool = False
    ends: float | None = None
    handle: Handle | None = None
    pidfd: int = -1
    ended: list[asyncio.Future[Job]] = field(default_factory=list)
    up: list[asyncio.Future[None]] = field(default_factory=list)
    gone: list[asyncio.Future[None]] = field(default_factory=list)
    silent: bool = False
    grace: float = GRACE
    limit: float | None = None
    stop_by: float | None = None
    hurry: asyncio.Event | None = None
    overdue: asyncio.TimerHandle | None = None

    @property
    def job(self) -> Job:
        return self.live.job

    def show(self, **changes: Any) -> None:
        self.live = replace(self.live, job=replace(self.live.job, **changes))


def just_submitted(number: int, job: queue.NewJob, now: float, array: int, index: int) -> Live:
    shown = Job(
        id=number, uid=job.uid, user=job.user, state=State.PENDING, name=job.name, group=job.group, image=job.image, command=job.command,
        gpus=job.gpus, gpu_count=job.gpu_count, priority=job.priority, time_limit=job.time_limit,
        on_reboot="requeue" if job.on_reboot == "requeue" else "fail", submitted=now, array=array, index=index,
    )  # fmt: skip
    return Live(shown, job.wanted, job.quota_groups, False, spec_size=len(job.spec))


def wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
    futures.clear()
