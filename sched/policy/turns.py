"""Jobs without GPUs: whose turn it is when one of the host's places for them is free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace

from dockless.sched.policy.waiting import Line, WaitingJob


class Turns:
    """The heads of their lines. Higher priority first; among equals the user who has the fewest running, so that one user's thousand do not
    keep another's single job waiting; then first come, first served. ``running``: how many each user has now."""

    def __init__(self, lines: Iterable[Line], running: Callable[[str], int]) -> None:
        self._running = running
        self._heads = [(self._turn(line.first()), line, line.first()) for line in lines]
        heapify(self._heads)

    def __iter__(self) -> Iterator[WaitingJob]:
        """Of each line that has not been put aside, the first job that has not been taken."""
        return (job for _, _, job in self._heads)

    def next(self) -> WaitingJob | None:
        """Whose turn it is, None if no line is left."""
        while self._heads:
            place, line, job = self._heads[0]
            if place == self._turn(job):
                return job
            heapreplace(self._heads, (self._turn(job), line, job))  # another one of that user has started meanwhile
        return None

    def take(self) -> None:
        """The one whose turn it was has its place; the next one of its line comes forward."""
        _, line, job = heappop(self._heads)
        following = line.after(job)
        if following is not None:
            heappush(self._heads, (self._turn(following), line, following))

    def put_aside(self, within: float) -> None:
        """Of that line none can start that may run for longer than so many seconds."""
        _, line, job = heappop(self._heads)
        following = line.after(job, within) if within else None
        if following is not None:
            heappush(self._heads, (self._turn(following), line, following))

    def _turn(self, job: WaitingJob) -> tuple[int, int, int]:
        return -job.priority, self._running(job.user), job.id
