"""A job that has not ended, as the daemon's memory has it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import lru_cache
from itertools import repeat
from operator import itemgetter

from dockless.base.dataclass import copied, dataclass, field, many
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.sandbox.spec import GRACE
from dockless.sched import clock
from dockless.sched.engine.attempts import Handle
from dockless.sched.jobs import Job, State
from dockless.sched.policy.waiting import Kind, WaitingJob
from dockless.sched.store import queue
from dockless.sched.store.queries import Live

if TYPE_CHECKING:
    from dockless.sched.engine.lifecycle.gangs import Gang

_AS_SUBMITTED = (
    "uid", "user", "name", "group", "image", "command", "gpus", "gpu_count", "priority", "time_limit", "on_reboot",
    "options",
)  # fmt: skip


@dataclass(slots=True, eq=False)
class LiveJob:
    """A job that has not ended. ``waiting``: what the policy sees of it; ``ends``: on the policy's clock, None without a limit.
    ``ended``, ``up``, ``gone``: who waits for its end, for its program to run, for its program to be gone; ``silent``: nobody need wait for
    the last of these any more. ``stop_by``: when it is killed, on the policy's clock, None while nobody wants its end; ``hurry``: set when
    that changed. ``limit``: seconds it may run, grace included, None without a limit; ``overdue``: the timer that looks whether it still
    runs then. ``idle_since``: since when none of its GPUs is used, on the policy's clock; ``warned``: when it was told that
    it will be ended for it. ``verdict``: why it is ended, where nobody asked for it. ``since``: when it started, on the policy's clock.
    ``kept``: the output of its newest attempt is. ``alarm``: the moment at which it is looked at again because it could not start before;
    ``met``: what it waited for has ended (``aside``). ``disk``: what it asked for
    itself that it may write to its disk, in bytes, 0 for any size. ``gang``: those that it starts together with. ``gpu_errors``: the
    attempts and the errors of their GPUs that are written down for them. ``nodes``: the memory nodes to whose processors it is kept."""

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
    idle_since: float | None = None
    warned: float | None = None
    verdict: str = ""
    since: float = 0.0
    alarm: float = 0.0
    kept: bool = False
    met: bool = False
    disk: int = 0
    gang: Gang | None = None
    gpu_errors: tuple[tuple[int, str], ...] = ()
    nodes: Set[int] = frozenset()

    @property
    def going_on(self) -> list[LiveJob]:
        """It, or those of its gang that have not ended."""
        return [self] if self.gang is None else self.gang.going_on

    @property
    def ended_with(self) -> list[LiveJob]:
        """What ends when it is ended, of what has not: all of its gang where it is the first of it, else it alone."""
        return self.going_on if self is self.first else [one for one in self.going_on if one is self]

    @property
    def attempt_is_over(self) -> bool:
        """Whether its end, or that of all of its gang, is being written down."""
        return self.silent if self.gang is None else self.gang.settling

    @property
    def first(self) -> LiveJob:
        """It, or the one that stands for its gang."""
        return self if self.gang is None else self.gang.first

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs that it has, or all of its gang."""
        members = [self] if self.gang is None else self.gang.members
        return tuple(dict.fromkeys(gpu for member in members for gpu in member.job.devices))

    @property
    def job(self) -> Job:
        return self.live.job

    def show(self, **changes: Any) -> None:
        self.live = copied(self.live, job=copied(self.live.job, **changes))


def live_jobs(lives: Sequence[Live]) -> list[LiveJob]:
    """Jobs that have not ended, as nobody has looked after them yet."""
    jobs = [live.job for live in lives]
    kinds: list[Kind] = []
    for live, job in zip(lives, jobs, strict=True):
        options = job.options
        kind = Kind(
            user=job.user,
            gpus=job.gpu_count,
            groups=live.quota_groups,
            devices=frozenset(live.wanted),
            gpu_class=options.gpu_class,
            share=options.gpu_share,
            cores=options.millicores,
            memory=options.memory,
            width=1,
        )
        kinds.append(_the_same(kind))
    waiting = waiting_jobs(
        *([job.id for job in jobs], kinds, [job.priority for job in jobs], [job.time_limit for job in jobs]),
        [job.submitted for job in jobs],
    )
    return many(LiveJob, len(lives), {"live": lives, "waiting": waiting, "cancelled": [live.cancelled for live in lives]})


@lru_cache(maxsize=10_000)
def _the_same(kind: Kind) -> Kind:
    """As one object, of jobs that are submitted one by one, too: which are of one kind is asked of each job of a listing."""
    return kind


def waiting_jobs(
    ids: Sequence[int], kinds: Sequence[Kind], priorities: Sequence[int], time_limits: Sequence[float], submitted: Sequence[float]
) -> list[WaitingJob]:
    """What the policy sees. ``submitted``: seconds since 1970."""
    if not kinds:
        return []
    columns: dict[str, Iterable[Any]] = {}
    different = {id(kind): kind for kind in kinds}.values()
    for place, (name, values) in enumerate(zip(Kind._fields, map(set, zip(*different, strict=True)), strict=False)):
        columns[name] = map(itemgetter(place), kinds) if len(values) > 1 else repeat(*values)
    now, wall = clock.ticks(), time.time()
    since = {at: now - max(0.0, wall - at) for at in set(submitted)}
    columns |= {"id": ids, "kind": kinds, "priority": priorities, "time_limit": time_limits, "since": map(since.__getitem__, submitted)}
    return many(WaitingJob, len(ids), columns)


def just_submitted(ids: Sequence[int], jobs: Sequence[queue.NewJob], now: float, array: int) -> list[Live]:
    """``array``: the number of the array, or of the gang, of which these are the next jobs; 0 for none."""
    columns: dict[str, Iterable[Any]] = {name: [getattr(job, name) for job in jobs] for name in _AS_SUBMITTED}
    columns |= {"id": ids, "state": repeat(State.PENDING), "submitted": repeat(now)}
    if array:
        columns |= {"array": repeat(array), "index": range(ids[0] - array, ids[-1] - array + 1)}
    elif any(job.in_array[0] for job in jobs):
        columns |= {"array": [job.in_array[0] for job in jobs], "index": [job.in_array[1] for job in jobs]}
    rest = {"wanted": [job.wanted for job in jobs], "quota_groups": [job.quota_groups for job in jobs], "cancelled": repeat(False)}
    return many(Live, len(jobs), {"job": many(Job, len(jobs), columns), **rest, "spec_size": [len(job.spec) for job in jobs]})


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Many objects are made that stay: they are not looked through meanwhile, nor by the collections that come."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
    futures.clear()
