"""The same rules by the longest way, which looks at every job: what ``policy.decide`` has to answer, too."""

from __future__ import annotations

from dockless.sched.policy.policy import HOST, Decision, QueueState, _Pass


class _Plain(_Pass):
    def run(self) -> Decision:
        held = {}
        for job in self.state.waiting:
            shape = (job.kind, job.time_limit)
            if shape in held:
                continue
            if not self.free and self.cpu_jobs >= self.state.cpu_jobs and HOST in self.reserved:
                break
            hold = self.blocked(job) if job.gpus else self.blocked_without_gpus(job)
            if hold is None:
                self.start(job)
            else:
                held[shape] = hold
        return Decision(self.starts, self.now, [*self.reserved.values(), *self.kept], {}, self.used, list(self.free), self.state)


def decide_plainly(state: QueueState, now: float) -> Decision:
    return _Plain(state, now).run()
