"""The same rules by the longest way, which looks at every job: what ``policy.decide`` has to answer, too."""

from __future__ import annotations

from collections import Counter

from dockless.sched.policy.decision import Decision
from dockless.sched.policy.policy import _Pass
from dockless.sched.policy.state import QueueState
from dockless.sched.policy.waiting import WaitingJob, patience


class _Plain(_Pass):
    def run(self) -> Decision:
        held = set()
        self.without_gpus()
        self.later: list[WaitingJob] = []
        waiting = [job for job in self.state.waiting if job.gpus]
        while waiting or self.later:
            places = [(self.ranks.place(job), job, waiting) for job in waiting]
            places += [(self.ranks.place(job, turn=-patience(job, self.now)), job, self.later) for job in self.later]
            place, job, of = min(places, key=lambda row: row[0])
            of.remove(job)
            shape = (job.kind, job.time_limit)
            if shape in held:
                continue
            if self.nothing_left(place):
                break
            if of is waiting and job.kind in self.put_off_kinds and self.late(job):
                self.later.append(job)
            elif self.settle(job, put_off=of is self.later) is not None:
                held.add(shape)
        return self.decision()

    def put_off(self, job: WaitingJob) -> None:
        self.put_off_kinds.add(job.kind)
        self.later.append(job)

    def without_gpus(self) -> None:
        waiting = [job for job in self.state.waiting if not job.gpus]
        aside = set()
        while sum(not job.gpus for job in self.running) < self.state.cpu_jobs:
            having = Counter(job.user for job in self.running if not job.gpus)
            left = [job for job in waiting if job.kind not in aside]
            if not left:
                return
            job = min(left, key=lambda job: (-job.priority, having[job.user], job.id))
            waiting.remove(job)
            if self.full(job, self.first_of_each_pool()):
                aside.add(job.kind)
            else:
                self.start(job)

    def first_of_each_pool(self) -> dict[str, WaitingJob]:
        found: dict[str, WaitingJob] = {}
        for job in self.state.waiting:
            if job.gpus:
                for pool in self.pools(job):
                    found.setdefault(pool, job)
        return found


def decide_plainly(state: QueueState, now: float) -> Decision:
    return _Plain(state, now).run()
