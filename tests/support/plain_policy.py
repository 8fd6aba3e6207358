"""The same rules by the longest way, which looks at every job: what ``policy.decide`` has to answer, too."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

from dockless.sched.policy.decision import Decision
from dockless.sched.policy.policy import _Pass
from dockless.sched.policy.quotas import counts_jobs
from dockless.sched.policy.reservations import Hold
from dockless.sched.policy.state import JOBS, QueueState, RunningJob
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
from dockless.sched.policy.waiting import Kind, WaitingJob, longest, order, patience


class _Plain(_Pass):
    def run(self) -> Decision:
        self.shapes_held = set()
        self.later: list[WaitingJob] = []
        self.in_order = [job for job in self.state.waiting if job.gpus]
        self.without = [job for job in self.state.waiting if not job.gpus]
        self.aside: dict[Kind, float] = {}
        if self.drawing():
            self.short = [job for job in self.without if self.lacks(job)]
        else:
            self.short = []
            while (job := self.turn()) is not None:
                self.look_at_one_without(job)
        while True:
            heads = list(filter(None, (self.turn(), self.first_short())))
            job = min(heads, key=self.ranks.place) if heads else None
            if self.look_at_one(job):
                continue
            if job is None:
                return self.decision()
            self.look_at_one_without(job)

    def drawing(self) -> bool:
        return any(self.draws(job, pool) for job in self.state.waiting for pool in self.supplies)

    def look_at_one(self, other: WaitingJob | None) -> bool:
        places = [(self.ranks.place(job), job, self.in_order) for job in self.in_order]
        places += [(self.ranks.place(job, turn=-patience(job, self.now)), job, self.later) for job in self.later]
        if not places:
            return False
        place, job, of = min(places, key=lambda row: row[0])
        if other is not None and self.ranks.place(other) < place:
            return False
        of.remove(job)
        shape = (job.kind, job.time_limit)
        if shape in self.shapes_held:
            return True
        if self.nothing_left(place):
            self.in_order, self.later = [], []
            return True
        if self.closed is not None and not job.share:
            return True
        if of is self.in_order and job.kind in self.put_off_kinds and self.late(job):
            self.later.append(job)
        elif self.settle(job, put_off=of is self.later) is not None:
            self.shapes_held.add(shape)
        if self.closed is None and not self.ranks.guarantee_any and self.no_gpu_left(place):
            self.closed = job.priority
        return True

    def put_off(self, job: WaitingJob) -> None:
        self.put_off_kinds.add(job.kind)
        self.later.append(job)

    def turn(self) -> WaitingJob | None:
        if sum(job.width for job in self.running if not job.gpus) >= self.state.cpu_jobs:
            return None
        having = Counter(user for job in self.running if not job.gpus for user in (job.user,) * job.width)
        left = [job for job in self.without if longest(job) <= self.aside.get(job.kind, math.inf) and job not in self.short]
        return min(left, key=lambda job: (-job.priority, having[job.user], job.id), default=None)

    def first_short(self) -> WaitingJob | None:
        return min((job for job in self.short if job.kind not in self.aside), key=order, default=None)

    def look_at_one_without(self, job: WaitingJob) -> None:
        self.without.remove(job)
        hold = self.full(job, self.first_ones())
        if hold is None and sum(other.width for other in self.running if not other.gpus) + job.width > self.state.cpu_jobs:
            hold = Hold("jobs", JOBS, job.priority, self.reserve(job, JOBS, self.pools(job)))
        if hold is None:
            self.start(job)
        else:
            self.aside[job.kind] = min(hold.within, math.nextafter(longest(job), 0))

    def first_ones(self) -> dict[str, WaitingJob]:
        found: dict[str, WaitingJob] = {}
        for job in self.state.waiting:
            if job.gpus:
                for pool in self.pools(job):
                    if counts_jobs(pool) and job.width <= self.limits[pool]:
                        found.setdefault(pool, job)
        return found


def decide_plainly(state: QueueState, now: float) -> Decision:
    return _Plain(state, now).run()


def wider(given: QueueState, dice: random.Random) -> QueueState:
    """The same where some jobs are several that start together, and some places for jobs without GPUs are taken."""
    often = dice.choice((0.2, 0.7))

    def width() -> int:
        return dice.randint(2, 4) if dice.random() < often else 1

    widths = {job.kind: width() for job in given.waiting}
    waiting = [replace(job, width=dice.choice((widths[job.kind], widths[job.kind], 1))) for job in given.waiting]
    more = [RunningJob(300 + n, "anna", ends=dice.choice((None, 3.0, 40.0)), width=width()) for n in range(dice.randint(0, 3))]
    running = [replace(job, width=width()) for job in given.running] + more
    return replace(given, waiting=waiting, running=running, cpu_jobs=dice.randint(0, 8))


def supplied(given: QueueState, dice: random.Random) -> QueueState:
    """The same on a host whose cores, and memory, are counted, with jobs of which some say what they need of them."""
    cores = Supply(dice.choice((4, 8, 16)) * 1000, dice.choice((0, 0, 500, 1000)), dice.choice((0, 0, 1000)))
    memory = Supply(dice.choice((8, 32)) << 30, dice.choice((0, 1 << 30)))
    often = dice.choice((0.3, 0.8))

    def needs() -> dict[str, int]:
        return {
            "cores": dice.choice((500, 1000, 2000, 4000)) if dice.random() < often else 0,
            "memory": dice.choice((1, 4, 8)) << 30 if dice.random() < often / 2 else 0,
        }

    kinds = [needs() for _ in range(3)]
    waiting = [replace(job, **dice.choice(kinds)) for job in given.waiting]
    more = [RunningJob(200 + n, "bob", ends=dice.choice((None, 3.0, 40.0)), **needs()) for n in range(dice.randint(0, 2))]
    running = [replace(job, **needs()) for job in given.running] + more
    supplies = {CORES: cores, MEMORY: memory} if dice.random() < 0.7 else {CORES: cores}
    return replace(given, waiting=waiting, running=running, supplies=supplies, cpu_jobs=dice.randint(0, 6))
