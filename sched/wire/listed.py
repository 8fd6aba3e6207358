"""A listing that is under way: jobs in parts, looked up when their part's turn comes.

What it has is settled at its beginning, as numbers, so that a job which starts meanwhile is neither missed nor there twice; each is shown
as it is when its part is sent. Others have their turns between parts, and what has ended is read in a thread.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence, Set
from itertools import islice

from dockless.base.typing import TYPE_CHECKING, TypeVar
from dockless.sched.jobs import EVERY_JOB, Filter, Job, State
from dockless.sched.policy.forecast import Forecast
from dockless.sched.policy.places import InOrder
from dockless.sched.store import queries, schema
from dockless.sched.wire import why_aside
from dockless.sched.wire.listing import Part

if TYPE_CHECKING:
    from dockless.sched.wire.answers import Answers

T = TypeVar("T")

PART = 500
"""Jobs of a part."""
LOOKS = 2_000
"""Numbers that are put in order before somebody else's turn."""


class Listed:
    """Running jobs, waiting ones in their order, those that may not start yet, and (``ended``) the newest of those that have ended.
    ``limit``: of waiting and of ended ones, 0 for none. ``more``: how many more wait or have ended, when the last part has come. ``turn``:
    awaited between pieces of work."""

    def __init__(self, answers: Answers, wanted: Filter, ended: bool, limit: int, turn: Callable[[], Awaitable[None]]) -> None:
        self.answers = answers
        self.engine = answers.engine
        self.wanted = wanted
        self.ended = ended
        self.limit = limit or sys.maxsize
        self.turn = turn
        self.more = 0

    async def parts(self) -> AsyncGenerator[Part, None]:
        running = sorted(self.engine.active)
        numbers = list(self.engine.entries)
        for part in _parts(running):
            yield Part(self._shown(part), self.engine.entries.seen_of(part))
            await self.turn()
        if not self.wanted.states or State.PENDING in self.wanted.states:
            async with contextlib.aclosing(self._waiting(numbers, frozenset(running))) as parts:
                async for found in parts:
                    yield found
        if self.ended:
            async with contextlib.aclosing(self._past()) as past:
                async for jobs in past:
                    yield Part(jobs)

    async def _waiting(self, numbers: list[int], running: frozenset[int]) -> AsyncGenerator[Part, None]:
        among = await self.engine.reported(self._among) if self.wanted.group or self.wanted.until is not None else None
        order = await self._in_order([number for number in sorted(numbers) if number not in running], among)
        foretold = await self.answers.foretold(self.turn) if order else Forecast()
        for part in _parts(order):
            places = dict(part)
            seen = self.engine.entries.seen_of(places)
            yield Part(self._shown([*places]), seen, places, *self.answers.starts(seen, foretold))
            await self.turn()

    async def _in_order(self, numbers: Sequence[int], among: Set[int] | None) -> list[tuple[int, int]]:
        """Those of ``numbers`` that wait and are wanted, in the order in which they are shown, each with its place. The place is 0 for a
        job that may not start yet, unless the limit of its array keeps it and the forecast says when it starts."""
        entries, aside, user = self.engine.entries, self.engine.aside.kept, self.wanted.user
        places = self.answers.outlook.places()
        line, following = InOrder(places), why_aside.places(self.engine, places)
        kept_aside: list[tuple[int, int]] = []
        others, count = set[int](), 0
        for start in range(0, len(numbers), LOOKS):
            seen = entries.seen_of(numbers[start : start + LOOKS])
            behind = {number for number, job in seen.items() if job.id in aside} if aside else set[int]()
            unwanted = set[int]()
            if user or among is not None:
                unwanted = {n for n, job in seen.items() if (user and job.user != user) or (among is not None and n not in among)}
            line.add_all([pair for pair in seen.items() if pair[0] not in behind] if behind else seen.items())
            kept_aside += [(n, following.get(n, (0, 0))[0]) for n in (seen if behind else ()) if n in behind and n not in unwanted]
            others |= unwanted - behind
            count += len(seen) - len(behind | unwanted)
            await self.turn()
        every, found = iter(line), list[tuple[int, int]]()
        if others:
            every = (pair for pair in line if pair[0] not in others)
        while len(found) < self.limit and (part := [*islice(every, min(LOOKS, self.limit - len(found)))]):
            found += part
            await self.turn()
        self.more = max(0, count + len(kept_aside) - self.limit)
        return [*found, *kept_aside[: self.limit - len(found)]]

    def _shown(self, numbers: Sequence[int]) -> list[Job]:
        """Those of them that are wanted and have not ended."""
        found, outlined = self.engine.entries.jobs(numbers)
        if outlined:
            found |= {job.id: job for job in queries.jobs(self.engine.reader, outlined)}
        shown = map(found.__getitem__, filter(found.__contains__, numbers))
        return [*shown] if self.wanted == EVERY_JOB else [*filter(self.wanted.keeps, shown)]

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
        with contextlib.closing(schema.connect(self.engine.database)) as db:
            return [*queries.ended(db, self.wanted, most, before)]

    def _among(self) -> set[int]:
        with contextlib.closing(schema.connect(self.engine.database)) as db:
            return queries.live_numbers(db, self.wanted)

    def _count(self) -> int:
        with contextlib.closing(schema.connect(self.engine.database)) as db:
            return queries.count_ended(db, self.wanted)


def _parts(numbers: Sequence[T]) -> Iterator[Sequence[T]]:
    return (numbers[start : start + PART] for start in range(0, len(numbers), PART))
