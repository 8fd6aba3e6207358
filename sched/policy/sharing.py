"""The GPUs that several jobs share by memory, as the starts of a pass change them.

A GPU that is shared is free when the last of those on it ends. So a job that joins it takes no GPU from anybody, unless it stays for
longer than a reservation counts on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable

from dockless.base.dataclass import dataclass
from dockless.sched.policy.packing import WHOLE, Demand, Node, Task, choose
from dockless.sched.policy.state import QueueState, RunningJob
from dockless.sched.policy.waiting import WaitingJob, WaitingList


@dataclass(slots=True)
class _Gpu:
    """``left``: MiB, of ``whole`` that all share; less than none where a setting or the GPU has changed."""

    whole: int
    left: int
    jobs: list[RunningJob]


class SharedGpus:
    def __init__(self, state: QueueState, waiting: WaitingList) -> None:
        self._company = state.company
        self._shareable = state.shareable
        self._closed = state.unusable | state.out_of_service
        self._gpus: dict[str, _Gpu] = {}
        self._waiting = waiting
        self._expected: Demand | None = None
        for job in state.running:
            if job.share:
                self.add(job)

    def has_left(self, share: int) -> bool:
        """Whether somebody may join any who asks for ``share`` MiB."""
        return any(shared.left >= share and gpu not in self._closed for gpu, shared in self._gpus.items())

    def add(self, job: RunningJob) -> None:
        """It has a share of its GPU, from now on."""
        for gpu in job.gpus:
            whole = self._shareable.get(gpu, 0)
            shared = self._gpus.setdefault(gpu, _Gpu(whole, whole, []))
            shared.left -= job.share
            shared.jobs.append(job)

    def room(self, job: WaitingJob, goal: Collection[str]) -> list[str]:
        """Those of ``goal`` that ``job`` may join."""
        return [
            gpu for gpu, shared in self._gpus.items() if gpu in goal and job.share <= shared.left and self._welcome(job, gpu, shared.jobs)
        ]

    def most_left(self, job: WaitingJob) -> int:
        """The MiB that are left for its user on the emptiest of them."""
        return max((shared.left for gpu, shared in self._gpus.items() if self._welcome(job, gpu, shared.jobs)), default=0)

    def _welcome(self, job: WaitingJob, gpu: str, others: Iterable[RunningJob]) -> bool:
        return gpu not in self._closed and (self._company == "all" or all(other.user == job.user for other in others))

    def until(self, gpu: str) -> float:
        """When it is free at the latest; never, as far as one knows, where one of its jobs has no time limit."""
        return max(math.inf if job.ends is None else job.ends for job in self._gpus[gpu].jobs)

    def frees(self, job: RunningJob, gpu: str) -> bool:
        """Whether the GPU is free with the end of ``job``, and not with that of another."""
        jobs = self._gpus[gpu].jobs
        return len(jobs) == 1 or max(jobs, key=lambda one: (math.inf if one.ends is None else one.ends, one.id)) is job

    def has_neighbours(self, job: RunningJob) -> bool:
        return any(len(self._gpus[gpu].jobs) > 1 for gpu in job.gpus if gpu in self._gpus)

    def best(self, job: WaitingJob, gpus: Collection[str]) -> str:
        """Of GPUs with room for it, the one where it leaves most for those that wait."""
        names = sorted(gpus)
        if len(names) == 1:
            return names[0]
        most = max(shared.whole for shared in self._gpus.values())
        left = tuple(min(WHOLE, self._gpus[gpu].left * WHOLE // most) for gpu in names)
        share = max(1, min(*left, job.share * WHOLE // most))
        place = choose((Node(left),), Task(1, share), self._demand(most))
        return names[place.gpus[0]] if place else names[0]

    def _demand(self, most: int) -> Demand:
        """Of all that wait for a share, as parts of the largest GPU; worked out once for a pass."""
        if self._expected is None:
            mix: Counter[Task] = Counter()
            for kind, line in self._waiting.lines.items():
                if kind.share:
                    mix[Task(1, max(1, min(WHOLE, kind.share * WHOLE // most)))] += len(line)
            self._expected = Demand(mix, (Node(tuple(max(0, shared.left) * WHOLE // most for shared in self._gpus.values())),))
        return self._expected
