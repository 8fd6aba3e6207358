"""Jobs without GPUs: whose turn it is when one of the host's places for them is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from dockless.sched.policy.waiting import Line, WaitingJob

Turn = tuple[int, int, int]


def in_turn(lines: Iterable[Line], running: Callable[[str], int], room: int) -> tuple[list[WaitingJob], list[WaitingJob]]:
    """``room`` jobs that start, and of each line that still has some the first that does not. ``running``: how many each user has.

    Higher priority first; among equals the user who has the fewest running, so that one user's thousand do not keep another's single job
    waiting; then first come, first served."""
    more: Counter[str] = Counter()

    def turn(job: WaitingJob) -> Turn:
        return -job.priority, running(job.user) + more[job.user], job.id

    heads = [(turn(line.first()), line, line.first()) for line in lines]
    heapify(heads)
    starts: list[WaitingJob] = []
    while heads and len(starts) < room:
        place, line, job = heappop(heads)
        if place == turn(job):
            starts.append(job)
            more[job.user] += 1
            following = line.after(job)
        else:  # another one of that user has started meanwhile
            following = job
        if following is not None:
            heappush(heads, (turn(following), line, following))
    return starts, [job for _, _, job in heads]
