"""What the scheduler would do with the jobs of a trace: the daemon's own ``decide``, asked in simulated time.

Pure: no clock, no files, no chance. The same trace and the same host have the same answer. A pass is made when the daemon makes one: when
something has ended, for a job that has just been submitted unless the last pass says that it must wait, and at the moment that the last
pass named. A job that gives back GPUs which it had borrowed takes all of its grace, and starts again later from its beginning.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush

from dockless.base.dataclass import dataclass, field, replace
from dockless.base.typing import Literal
from dockless.sched.policy.decision import Decision
from dockless.sched.policy.past_usage import PastUsage
from dockless.sched.policy.policy import decide
from dockless.sched.policy.ranks import Ranks
from dockless.sched.policy.state import QueueState, RunningJob, Window
from dockless.sched.policy.waiting import Kind, WaitingJob, WaitingList

Policy = Literal["backfill", "fifo", "shortest"]
"""``backfill``: the daemon's, in order, and ahead of it whatever delays nobody. ``fifo``: nothing starts before the first in the queue.
``shortest``: the daemon's, and of equal priority the shortest time limit is first."""

SHORTEST = 1e-3
"""Seconds that every job runs at least."""
STEP = 1000
"""Jobs between two calls of ``progress``."""
_HOURS = 1000
"""Ends of reserved hours that are looked at while nothing runs."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace. Times in seconds. ``runs``: how long it would run if it had no time limit; ``time_limit``: 0 for none;
    ``groups``: whose quotas it counts in. ``cores``, ``memory``, ``gpu_class``, ``share``: as in ``WaitingJob``. ``members``: where it is
    several that start together, each of them."""

    submitted: float
    runs: float
    gpus: int = 0
    user: str = ""
    groups: tuple[str, ...] = ()
    priority: int = 0
    time_limit: float = 0.0
    cores: int = 0
    memory: int = 0
    gpu_class: str = ""
    share: int = 0
    members: tuple[TraceJob, ...] = ()

    @property
    def width(self) -> int:
        """How many jobs it is."""
        return len(self.members) or 1

    @property
    def length(self) -> float:
        """Seconds that it runs, once it has started."""
        return max(min(self.runs, self.time_limit or math.inf), SHORTEST)


Has = Callable[[TraceJob, Sequence[str]], float]
"""What a job has while it runs, with these GPUs."""


@dataclass(frozen=True, slots=True)
class Wait:
    """How long some jobs wait, seconds. ``p95``: what 95 of 100 do not pass."""

    jobs: int = 0
    mean: float = 0.0
    p95: float = 0.0
    longest: float = 0.0


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a trace on a host of so many GPUs. ``started``: when each job of ``jobs`` does, in seconds of the trace's clock, of
    several times the last; ``never``: how many of the trace's jobs are not among them, because this host or a quota could never let them
    start; ``lost``: what ran in vain, because its GPUs were given back: the place of the job in ``jobs``, from when, until when. ``had``,
    ``lost_had``: the names of the GPUs of each start, and of each of these. ``shareable``: as in ``QueueState``."""

    gpus: int
    jobs: tuple[TraceJob, ...]
    started: tuple[float, ...]
    never: int = 0
    lost: tuple[tuple[int, float, float], ...] = ()
    had: tuple[tuple[str, ...], ...] = ()
    lost_had: tuple[tuple[str, ...], ...] = ()
    shareable: Mapping[str, int] = field(default_factory=dict)

    def has(self, job: TraceJob, gpus: Sequence[str]) -> float:
        """How many GPUs a job has, of one that it shares its part of the memory."""
        whole = self.shareable.get(gpus[0], 0) if job.share and gpus else 0
        return job.share / whole if whole else job.gpus

    @property
    def begins(self) -> float:
        """The first submission."""
        return min((job.submitted for job in self.jobs), default=0.0)

    @property
    def ends(self) -> float:
        """The end of the last job."""
        return max((start + job.length for job, start in self._pairs()), default=0.0)

    @property
    def waits(self) -> list[float]:
        return [start - job.submitted for job, start in self._pairs()]

    @property
    def utilisation(self) -> float:
        """The part of all GPU time, from the first submission to the last end, in which jobs had the GPUs, and not in vain."""
        whole = self.gpus * (self.ends - self.begins)
        had = self.had or [()] * len(self.jobs)
        return sum(job.length * self.has(job, gpus) for job, gpus in zip(self.jobs, had, strict=True)) / whole if whole else 0.0

    @property
    def slowdown(self) -> float:
        """The mean bounded slowdown: (wait + run) / run, where a run of less than 10 seconds counts as 10, and never less than 1."""
        rows = [max(1.0, (wait + job.length) / max(job.length, 10.0)) for job, wait in zip(self.jobs, self.waits, strict=True)]
        return sum(rows) / len(rows) if rows else 1.0

    def wait(self) -> Wait:
        """Of all jobs."""
        return _summary(self.waits)

    def by_class(self) -> dict[str | None, Wait]:
        """Of the jobs that ask for each class of GPUs, "" for any whole ones, and of those without GPUs last, by None."""
        waits: dict[str | None, list[float]] = defaultdict(list)
        for job, wait in zip(self.jobs, self.waits, strict=True):
            waits[job.gpu_class if job.gpus else None].append(wait)
        return {name: _summary(waits[name]) for name in sorted(waits, key=lambda name: (name is None, name or ""))}

    def by_user(self) -> dict[str, Wait]:
        """Of each user's jobs; who has the most GPU time is first."""
        waits: dict[str, list[float]] = defaultdict(list)
        for job, wait in zip(self.jobs, self.waits, strict=True):
            waits[job.user].append(wait)
        work = self.gpu_seconds()
        return {user: _summary(waits[user]) for user in sorted(waits, key=lambda user: (-work[user], user))}

    def gpu_seconds(self) -> dict[str, float]:
        """By user."""
        work: dict[str, float] = defaultdict(float)
        for job in self.jobs:
            work[job.user] += job.gpus * job.length
        return work

    def over_time(self, pieces: int, has: Has | None = None) -> dict[str, list[float]]:
        """How many GPUs each user has, or what else a job ``has``, as the mean of each of so many equal pieces of the time."""
        begins = self.begins
        piece = (self.ends - begins) / pieces
        rows: dict[str, list[float]] = {user: [0.0] * (pieces + 1) for user in self.by_user()}
        had, lost_had = self.had or [()] * len(self.jobs), self.lost_had or [()] * len(self.lost)
        runs = [(job, gpus, start, start + job.length) for (job, start), gpus in zip(self._pairs(), had, strict=True)]
        runs += [(self.jobs[number], gpus, start, end) for (number, start, end), gpus in zip(self.lost, lost_had, strict=True)]
        for job, gpus, start, end in runs:
            amount = self.has(job, gpus) if has is None else has(job, gpus)
            if not amount:
                continue
            row = rows[job.user]
            first, last = (min(pieces - 1, int((moment - begins) / piece)) for moment in (start, end))
            if first == last:
                row[first] += amount * (end - start) / piece
                continue
            row[first] += amount * (first + 1 - (start - begins) / piece)
            for at in range(first + 1, last):
                row[at] += amount
            row[last] += amount * ((end - begins) / piece - last)
        return {user: row[:pieces] for user, row in rows.items()}

    def _pairs(self) -> Iterable[tuple[TraceJob, float]]:
        return zip(self.jobs, self.started, strict=True)


def _summary(waits: Sequence[float]) -> Wait:
    if not waits:
        return Wait()
    waits = sorted(waits)
    return Wait(len(waits), sum(waits) / len(waits), waits[min(len(waits) - 1, int(0.95 * len(waits)))], waits[-1])


def replay(
    jobs: Iterable[TraceJob],
    host: QueueState,
    policy: Policy = "backfill",
    progress: Callable[[int], None] | None = None,
    half_life: float = 7 * 86400.0,
    hours: Callable[[float], Sequence[Window]] | None = None,
) -> Replay:
    """Run ``jobs`` on ``host``, of which nobody waits and nothing runs. ``progress`` is told now and then how many have ended. Where
    ``host.usage`` is there the order is fair, and what jobs have had counts half after ``half_life`` seconds. ``hours``: the reserved
    ones that are next at a moment."""
    run = _Run(sorted(jobs, key=lambda job: job.submitted), host, policy, progress, half_life, hours)
    run.to_the_end()
    kept = [number for number, start in enumerate(run.started) if start is not None]
    starts = tuple(start for start in run.started if start is not None)
    places = {number: place for place, number in enumerate(kept)}
    lost = tuple((places[number], start, end) for number, start, end, _ in run.lost)
    had = tuple(run.had[number] for number in kept), tuple(gpus for *_, gpus in run.lost)
    jobs = tuple(run.jobs[number] for number in kept)
    return Replay(len(host.gpus), jobs, starts, len(run.jobs) - len(kept), lost, *had, shareable=host.shareable)


class _Run:
    def __init__(
        self,
        jobs: Sequence[TraceJob],
        host: QueueState,
        policy: Policy,
        progress: Callable[[int], None] | None,
        half_life: float,
        hours: Callable[[float], Sequence[Window]] | None,
    ) -> None:
        self.jobs = jobs
        self.host = host
        self.strict = policy == "fifo"
        self.progress = progress
        self.ended = 0
        self.started: list[float | None] = [None] * len(jobs)
        self.lost: list[tuple[int, float, float, tuple[str, ...]]] = []
        self.had: dict[int, tuple[str, ...]] = {}
        self.hours = hours
        self.in_vain = 0
        self.waiting = WaitingList()
        self.queued: dict[int, WaitingJob] = {}
        self.running: dict[int, RunningJob] = {}
        self.until: dict[int, float] = {}
        self.ends: list[tuple[float, int]] = []  # also those that another moment of ``until`` has taken the place of
        self.again: float | None = None
        self.past = None if host.usage is None else PastUsage(half_life)
        self.possible: dict[Kind, bool] = {}
        self.decision: Decision | None = None
        self.ranks: dict[float, int] = {}
        if policy == "shortest":
            lengths = sorted({job.time_limit or math.inf for job in jobs}, reverse=True)
            self.ranks = {length: rank for rank, length in enumerate(lengths)}

    def to_the_end(self) -> None:
        coming = 0
        while coming < len(self.jobs) or self.ends or self._waits_for_hours():
            submitted = self.jobs[coming].submitted if coming < len(self.jobs) else math.inf
            now = min(submitted, self.ends[0][0] if self.ends else math.inf, math.inf if self.again is None else self.again)
            look = self.again == now
            while self.ends and self.ends[0][0] <= now:
                look = self._end(*heappop(self.ends)) or look
            while coming < len(self.jobs) and self.jobs[coming].submitted <= now:
                job = self._waiting_job(coming)
                coming += 1
                if self._can_start(job):
                    self._queue(job)
                    look = look or self.decision is None or not self.decision.held(job)
            if look:
                self._pass(now)

    def _waits_for_hours(self) -> bool:
        """Nothing runs or comes, and reserved hours end that somebody may wait for: some of them, or one would wait for ever."""
        self.in_vain += 1
        return bool(self.waiting) and self.again is not None and self.in_vain < _HOURS

    def _queue(self, job: WaitingJob) -> None:
        self.waiting.add(job)
        self.queued[job.id] = job

    def _end(self, now: float, job: int) -> bool:
        """Whether it does end then."""
        if self.until.get(job) != now:
            return False
        del self.until[job]
        ended, number = self.running.pop(job), job - 1
        began = ended.since
        if self.past is not None and ended.gpus:
            self.past.add(ended.user, ended.groups, len(ended.gpus), began, now)
        if ended.stopping and now < began + (self.jobs[number].time_limit or math.inf):
            self.lost.append((number, began, now, self.had[number]))
            self._queue(self._waiting_job(number))
            return True
        self.ended += 1
        if self.progress is not None and self.ended % STEP == 0:
            self.progress(self.ended)
        return True

    def _waiting_job(self, number: int) -> WaitingJob:
        job = self.jobs[number]
        priority = job.priority
        if self.ranks:
            priority = priority * len(self.ranks) + self.ranks[job.time_limit or math.inf]
        return WaitingJob(
            *(number + 1, job.user, job.gpus, job.groups),
            priority=priority, time_limit=job.time_limit, since=job.submitted, gpu_class=job.gpu_class,
            cores=job.cores, memory=job.memory, share=job.share, width=job.width,
        )  # fmt: skip

    def _can_start(self, job: WaitingJob) -> bool:
        """Whether it would on this host with nothing else there: the daemon refuses those that would not."""
        if job.kind not in self.possible:
            self.possible[job.kind] = bool(decide(replace(self.host, waiting=(job,), running=()), 0.0).starts)
        return self.possible[job.kind]

    def _pass(self, now: float) -> None:
        self.again = None
        while self.waiting:
            running = list(self.running.values())
            usage = None if self.past is None else self.past.at(now, running)
            waiting = WaitingList([self._first(usage)]) if self.strict else self.waiting
            hours = self.hours(now) if self.hours is not None else ()
            decision = decide(replace(self.host, waiting=waiting, running=running, usage=usage, windows=hours), now)
            self.again = decision.again
            for start in decision.starts:
                self._start(start.job, start.gpus, now)
            for one in decision.preempts:
                until = now + self.host.preemption.grace
                job = self.running[one.job]
                self.running[one.job] = replace(job, stopping=True, ends=min(until, job.ends or until))
                self._ends(one.job, min(until, self.until[one.job]))
            if not self.strict:
                self.decision = decision
                return
            if not decision.starts:
                return

    def _start(self, number: int, gpus: Sequence[str], now: float) -> None:
        job = self.jobs[number - 1]
        self.waiting.remove(self.queued.pop(number))
        self.started[number - 1], self.had[number - 1], self.in_vain = now, tuple(gpus), 0
        ends = now + job.time_limit if job.time_limit else None
        self.running[number] = RunningJob(
            *(number, job.user, frozenset(gpus), job.groups, ends, now),
            share=job.share if gpus and gpus[0] in self.host.shareable else 0,
            cores=job.cores, memory=job.memory, width=job.width,
        )  # fmt: skip
        self._ends(number, now + job.length)

    def _ends(self, job: int, moment: float) -> None:
        self.until[job] = moment
        heappush(self.ends, (moment, job))

    def _first(self, usage: Mapping[str, float] | None) -> WaitingJob:
        ranks = Ranks(replace(self.host, running=[*self.running.values()], usage=usage))
        return min((line.first() for line in self.waiting.lines.values()), key=ranks.place)
