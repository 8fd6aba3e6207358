"""A listing that is under way: jobs in parts, looked up when their part's turn comes.

What it has is settled at its beginning, as numbers, so that a job which starts meanwhile is neither missed nor there twice; each is shown
as it is when its part is sent. Others have their turns between parts, and what has ended is read in a thread.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from itertools import chain

from dockless.base.typing import TYPE_CHECKING
from dockless.sched.jobs import Filter, Job, State
from dockless.sched.store import queue

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

PART = 250
"""Jobs of a part."""
LOOKS = 2_000
"""Numbers that are put in order before somebody else's turn."""


class Listed:
    """Running jobs, waiting ones in their order, those that may not start yet, and (``ended``) the newest of those that have ended.
    ``limit``: of waiting and of ended ones, 0 for none. ``more``: how many more wait or have ended, when the last part has come. ``turn``:
    awaited between pieces of work."""

    def __init__(self, engine: Engine, wanted: Filter, ended: bool, limit: int, turn: Callable[[], Awaitable[None]]) -> None:
        self.engine = engine
        self.wanted = wanted
        self.ended = ended
        self.limit = limit or sys.maxsize
        self.turn = turn
        self.more = 0

    async def parts(self) -> AsyncGenerator[list[Job], None]:
        running = sorted(self.engine.active)
        numbers = list(self.engine.entries)
        for part in _parts(running):
            yield self._shown(part)
            await self.turn()
        if not self.wanted.states or State.PENDING in self.wanted.states:
            async with contextlib.aclosing(self._waiting(numbers, frozenset(running))) as parts:
                async for jobs in parts:
                    yield jobs
        if self.ended:
            async with contextlib.aclosing(self._past()) as parts:
                async for jobs in parts:
                    yield jobs

    async def _waiting(self, numbers: list[int], running: frozenset[int]) -> AsyncGenerator[list[Job], None]:
        if self.wanted.group or self.wanted.until is not None:
            among = await self.engine.reported(self._among)
            numbers = [number for number in numbers if number in among]
        order = await self._in_order(numbers, running)
        self.more = max(0, len(order) - self.limit)
        for part in _parts(order[: self.limit]):
            yield self._shown(part)
            await self.turn()

    async def _in_order(self, numbers: list[int], running: frozenset[int]) -> list[int]:
        """Those of the user that wait, as they are shown."""
        numbers.sort()
        entries, kept, user = self.engine.entries, self.engine.aside.kept, self.wanted.user
        line: defaultdict[int, list[int]] = defaultdict(list)
        aside: list[int] = []
        for start in range(0, len(numbers), LOOKS):
            for number in numbers[start : start + LOOKS]:
                if number in running or (job := entries.seen(number)) is None or (user and job.user != user):
                    continue
                (aside if job.id in kept else line[-job.priority]).append(number)
            await self.turn()
        return [*chain.from_iterable(line[priority] for priority in sorted(line)), *aside]

    def _shown(self, numbers: Sequence[int]) -> list[Job]:
        """Those of them that are wanted and have not ended."""
        entries = self.engine.entries
        outlined = [number for number in numbers if entries.is_outline(number)]
        read = {job.id: job for job in queue.jobs(self.engine.reader, outlined)} if outlined else {}
        found = (read[number] if number in read else entries[number].job for number in numbers if number in entries)
        return [*filter(self.wanted.keeps, found)]

    async def _past(self) -> AsyncGenerator[list[Job], None]:
        """In a thread: who asks for what is rare among a million has them all looked at."""
        left, before = self.limit, (math.inf, 0)
        while left and (part := await self.engine.reported(self._ended, min(PART, left), before)):
            yield part
            left, before = left - len(part), (part[-1].ended, part[-1].id)
            await self.turn()
        if self.limit < sys.maxsize:
            self.more += max(0, await self.engine.reported(self._count) - self.limit)

    def _ended(self, most: int, before: tuple[float, int]) -> list[Job]:
        with contextlib.closing(queue.connect(self.engine.database)) as db:
            return [*queue.ended(db, self.wanted, most, before)]

    def _among(self) -> set[int]:
        with contextlib.closing(queue.connect(self.engine.database)) as db:
            return queue.live_numbers(db, self.wanted)

    def _count(self) -> int:
        with contextlib.closing(queue.connect(self.engine.database)) as db:
            return queue.count_ended(db, self.wanted)


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + PART] for start in range(0, len(numbers), PART))
