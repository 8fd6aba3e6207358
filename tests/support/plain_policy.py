"""The same rules by the longest way, which looks at every job: what ``policy.decide`` has to answer, too."""

from __future__ import annotations

from collections import Counter

from dockless.sched.policy.policy import HOST, Decision, QueueState, _Pass


class _Plain(_Pass):
    def run(self) -> Decision:
        held = {}
        self.without_gpus()
        for job in self.state.waiting:
            if not job.gpus:
                continue
            shape = (job.kind, job.time_limit)
            if shape in held:
                continue
            if not self.free and HOST in self.reserved:
                break
            hold = self.blocked(job)
            if hold is None:
                self.start(job)
            else:
                held[shape] = hold
        return Decision(self.starts, self.now, [*self.reserved.values(), *self.kept], {}, self.used, list(self.free), self.state)

    def without_gpus(self) -> None:
        waiting = [job for job in self.state.waiting if not job.gpus]
        while waiting and sum(not job.gpus for job in self.running) < self.state.cpu_jobs:
            having = Counter(job.user for job in self.running if not job.gpus)
            job = min(waiting, key=lambda job: (-job.priority, having[job.user], job.id))
            waiting.remove(job)
            self.start(job)


def decide_plainly(state: QueueState, now: float) -> Decision:
    return _Plain(state, now).run()
