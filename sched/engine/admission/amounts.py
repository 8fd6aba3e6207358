"""How much of a request is read in one turn: nobody else is answered meanwhile, so what one job, or what enters one, has is bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dockless.base.records import read
from dockless.base.typing import Any
from dockless.errors import BadInput
from dockless.sched.jobs import JobSpec

MOST_VALUES = 10_000
"""Values of one job, or of one program that enters a job: each word, each variable's name and text, each field's name
and value. Some 10 to 30 ms of work."""
JOBS_A_TURN = 50
VALUES_A_TURN = 2000
"""Jobs of one request, and their values, that are looked at before somebody else's turn."""


def count_values(plain: Any) -> int:
    """The values in a JSON value: lists and objects, what is in them, and the names there. Counts no further than is too many."""
    count, left = 1, [plain]
    while left and count <= MOST_VALUES:
        one = left.pop()
        count += 2 * len(one) if isinstance(one, dict) else len(one) if isinstance(one, list) else 0
        if count <= MOST_VALUES:
            inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
            left += [value for value in inner if isinstance(value, (list, dict))]
    return count


def check_values(plain: Any, what: str) -> int:
    """The ``count_values`` of ``what``. ``BadInput`` where they are too many."""
    count = count_values(plain)
    if count > MOST_VALUES:
        hint = "put what is long into a file that the program reads: words, variables, mounts"
        raise BadInput(f"{what} has more than {MOST_VALUES} values", subject=what, hint=hint)
    return count


class Turns:
    """Reads the jobs of one request. ``turn``: awaited between pieces of work."""

    def __init__(self, turn: Callable[[], Awaitable[None]]) -> None:
        self._turn = turn
        self._jobs = self._values = 0

    async def read(self, plain: Any) -> JobSpec:
        """The next job, given as plain JSON values. After a large one it is somebody else's turn, before anything is done with it."""
        values = check_values(plain, "job")
        if self._jobs and (self._jobs == JOBS_A_TURN or self._values + values > VALUES_A_TURN):
            await self._turn()
            self._jobs = self._values = 0
        self._jobs += 1
        self._values += values
        job = read(JobSpec, plain, "job")
        if values > VALUES_A_TURN:
            await self._turn()
        return job
