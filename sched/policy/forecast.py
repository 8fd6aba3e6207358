"""When waiting jobs start if each takes its whole time limit and no other comes: asked of ``decide`` itself, with the time to come.

It is no upper bound. A job that ends early lets others start early, also such as are in the way of a third later. Only a job with a
reservation has a moment that holds in any case (``Reason.starts_at``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from dockless.base.dataclass import dataclass, field, replace
from dockless.sched.policy.past_usage import PastUsage
from dockless.sched.policy.policy import decide
from dockless.sched.policy.state import QueueState, RunningJob
from dockless.sched.policy.waiting import WaitingJob, WaitingList

STARTS = 500
"""Starts that are looked at."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """``starts``: of each job that starts, the moment on the clock of ``decide``. ``whole``: nothing else starts as long as those run that
    have no time limit, the ``endless``; else the rest was not looked at, which starts no earlier than ``until``, None where nothing was."""

    starts: Mapping[int, float] = field(default_factory=dict)
    endless: tuple[RunningJob, ...] = ()
    whole: bool = False
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Array:
    """Jobs that come later: one of ``following`` for each job of ``inside`` that ends, and so on. ``all``: no others follow them."""

    inside: Collection[int]
    following: Sequence[WaitingJob]
    all: bool = True


def forecast(
    state: QueueState,
    now: float,
    past: PastUsage | None,
    goes_on: Callable[[], bool],
    arrays: Sequence[Array] = (),
    job: int = 0,
    before: float = math.inf,
) -> Forecast:
    """``state.waiting``: a ``WaitingList`` of its own, which is changed; so is ``past``, what jobs have had, where the order is fair.
    ``goes_on``: asked before each decision. ``job``: it ends, too, where that one has started, or does not start ``before`` that moment.

    Of reserved hours only the next are known, so it ends with the first of them. A job that runs now and is told to give back its GPUs does
    not come back."""
    future = _Future(state, past, arrays)
    end = min((before, *(window.ends for window in state.windows)))
    while len(future.starts) < STARTS and now < end and not future.cut and job not in future.starts and goes_on():
        now = max(now, future.decide(now))
        if now == math.inf:
            return Forecast(future.starts, future.endless, whole=True)
        future.end_until(now)
    return Forecast(future.starts, future.endless, until=now)


class _Future:
    """``running``: by numbers of its own, as what is leased outside the queue has none. ``cut``: a job would come that is not known."""

    def __init__(self, state: QueueState, past: PastUsage | None, arrays: Sequence[Array]) -> None:
        assert isinstance(state.waiting, WaitingList)
        self.state, self.past, self.waiting = state, past, state.waiting
        self.by_id = {job.id: job for line in state.waiting.lines.values() for row in line.rows.values() for job in row}
        self.starts: dict[int, float] = {}
        self.running = dict(enumerate(state.running))
        self.numbers = count(len(self.running))
        self.ends = [(job.ends, number) for number, job in self.running.items() if job.ends is not None]
        heapify(self.ends)
        self.cut = False
        self.arrays: dict[int, tuple[deque[WaitingJob], bool]] = {}  # of each job of one that runs or waits
        self.later = sum(len(array.following) for array in arrays)
        for array in arrays:
            self.arrays |= dict.fromkeys(array.inside, (deque(array.following), array.all))

    @property
    def endless(self) -> tuple[RunningJob, ...]:
        return tuple(job for job in self.running.values() if job.ends is None and job.id)

    def decide(self, now: float) -> float:
        """Start what starts now. When that may be otherwise, for ever at the end."""
        running = [*self.running.values()]
        usage = self.state.usage if self.past is None else self.past.at(now, running)
        decision = decide(replace(self.state, running=running, usage=usage), now)
        for start in decision.starts:
            self._start(self.by_id[start.job], start.gpus, now)
        told = {one.job for one in decision.preempts}
        for number, job in self.running.items() if told else ():
            if job.id in told:
                until = now + self.state.preemption.grace
                self._runs(number, replace(job, stopping=True, ends=min(until, job.ends or until)))
        soonest = self.ends[0][0] if self.ends else math.inf
        return min(soonest, decision.again or math.inf) if self.waiting or self.later else math.inf

    def end_until(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            ends, number = heappop(self.ends)
            if number not in self.running or self.running[number].ends != ends:
                continue  # it ended before, or is to
            job = self.running.pop(number)
            if self.past is not None and job.gpus and job.id:
                self.past.add(job.user, job.groups, len(job.gpus), job.since, now)
            waits = self.by_id.get(job.id)
            if job.stopping and waits is not None and (not waits.time_limit or now < job.since + waits.time_limit):
                self.waiting.add(waits)
            elif job.id in self.arrays:
                self._follow(job.id)

    def _follow(self, number: int) -> None:
        """It has ended, and the next of its array comes."""
        following, every = self.arrays[number]
        if following:
            job = following.popleft()
            self.later -= 1
            self.by_id[job.id] = job
            self.arrays[job.id] = following, every
            self.waiting.add(job)
        else:
            self.cut = self.cut or not every

    def _start(self, job: WaitingJob, gpus: tuple[str, ...], now: float) -> None:
        self.waiting.remove(job)
        self.starts.setdefault(job.id, now)
        share = job.share if gpus and gpus[0] in self.state.shareable else 0
        ends = now + job.time_limit if job.time_limit else None
        self._runs(next(self.numbers), RunningJob(
            *(job.id, job.user, frozenset(gpus), job.groups, ends, now),
            share=share, cores=job.cores, memory=job.memory, width=job.width,
        ))  # fmt: skip

    def _runs(self, number: int, job: RunningJob) -> None:
        self.running[number] = job
        if job.ends is not None:
            heappush(self.ends, (job.ends, number))
