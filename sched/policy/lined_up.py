"""Jobs whose turn comes, in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from dockless.base.typing import Any
from dockless.sched.policy.waiting import WaitingJob

Turn = tuple[Any, WaitingJob, str]
"""Its place, the job, and the pool that it is short of, "" for none."""


class LinedUp:
    """The least place first; places may get later. Of those that are short of one pool the first stands for all: the next comes forward
    when it has had its turn."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._heap: list[Turn] = []
        self._behind: dict[str, list[Turn]] = defaultdict(list)
        for turn in turns:
            (self._behind[turn[2]] if turn[2] else self._heap).append(turn)
        for group in self._behind.values():
            heapify(group)
            self._heap.append(heappop(group))
        heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def first(self) -> Turn:
        return self._heap[0]

    def add(self, place: Any, job: WaitingJob) -> None:
        heappush(self._heap, (place, job, ""))

    def put_back(self, place: Any) -> None:
        """The first one's place is later than it was."""
        found = heapreplace(self._heap, (place, *self._heap[0][1:]))
        self._come_forward(found[2])

    def take(self) -> Turn:
        """The first has its turn."""
        found = heappop(self._heap)
        self._come_forward(found[2])
        return found

    def disband(self, pool: str) -> list[WaitingJob]:
        """Those short of ``pool`` that have not come forward."""
        return [job for _, job, _ in self._behind.pop(pool, ())]

    def clear(self) -> None:
        self._heap.clear()

    def _come_forward(self, pool: str) -> None:
        if group := self._behind.get(pool):
            heappush(self._heap, heappop(group))
