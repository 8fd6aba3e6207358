"""Guarantees: who has borrowed, and which of them give GPUs back.

A user or group may hold more than its guarantee while nobody else needs it: that is *borrowed*. A guarantee covers the jobs that have run
for longest, as far as they fit; a job that does not fit is borrowed as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dockless.base.typing import TYPE_CHECKING
from dockless.sched.policy.quotas import Quotas

if TYPE_CHECKING:
    from dockless.sched.policy.state import RunningJob


def borrowers(running: Iterable[RunningJob], quotas: Quotas) -> list[RunningJob]:
    """The jobs that no guarantee covers, the youngest first. What holds GPUs outside the queue uses up guarantees, too, but is none of
    them."""
    covered: Counter[str] = Counter()
    found = []
    for job in sorted((job for job in running if job.gpus), key=lambda job: (job.since, job.id)):
        guarantees = quotas.guarantees(job.user, job.groups)
        if any(covered[pool] + len(job.gpus) <= count for pool, count in guarantees.items()):
            for pool in guarantees:
                covered[pool] += len(job.gpus)
        elif job.id:
            found.append(job)
    return found[::-1]


def fewest(candidates: Iterable[RunningJob], wanted: frozenset[str], short: int) -> Sequence[RunningJob]:
    """Of the candidates, the youngest first, as few as hold ``short`` of the ``wanted`` GPUs together; none where all of them do not."""
    taken: list[RunningJob] = []
    there = 0
    for job in candidates:
        if there >= short:
            break
        if job.gpus & wanted:
            taken.append(job)
            there += len(job.gpus & wanted)
    if there < short:
        return ()
    for job in taken[::-1]:
        if there - len(job.gpus & wanted) >= short:
            taken.remove(job)
            there -= len(job.gpus & wanted)
    return taken
