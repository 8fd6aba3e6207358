"""Guarantees: who has borrowed, and which of them give GPUs back.

A user or group may hold more than its guarantee while nobody else needs it: that is *borrowed*. A guarantee covers the jobs that have run
for longest, as far as they fit; a job that does not fit is borrowed as a whole.

A guarantee of a class is a pool beside that of all GPUs. What a job has of the class counts in it, whatever the job asked for, and it
covers a job that has GPUs of the class alone. Each job counts in all of its pools, and one that covers it is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from dockless.base.typing import TYPE_CHECKING
from dockless.sched.policy.quotas import Quotas

if TYPE_CHECKING:
    from dockless.sched.policy.state import RunningJob


Sets = Mapping[str, frozenset[str]]
"""The GPUs of each class that a guarantee is of."""


def counted(gpus: Collection[str], gpu_class: str, sets: Sets) -> int:
    """How many of ``gpus`` a guarantee of that class counts, "" for one of any GPUs."""
    return len(sets[gpu_class].intersection(gpus)) if gpu_class else len(gpus)


def borrowers(running: Iterable[RunningJob], quotas: Quotas, sets: Sets) -> list[RunningJob]:
    """The jobs that no guarantee covers, the youngest first. What holds GPUs outside the queue uses up guarantees, too, but is none of
    them."""
    covered: Counter[str] = Counter()
    found = []
    for job in sorted((job for job in running if job.gpus), key=lambda job: (job.since, job.id)):
        guarantees = quotas.guarantees(job.user, job.groups)
        takes = {pool: counted(job.gpus, name, sets) for pool, (name, _) in guarantees.items()}
        if any(takes[pool] == len(job.gpus) and covered[pool] + takes[pool] <= count for pool, (_, count) in guarantees.items()):
            covered.update(takes)
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
