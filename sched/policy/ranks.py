"""Whose job is looked at first.

A job's place is ``(whether it would borrow, -priority, shares of the past, turn, number)``; the least comes first. As jobs start, a user's
share grows and her guarantee is used up, so in a pass places only get later. A turn is ``IN_ORDER``, or later for a job that was put off.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from dockless.base.typing import TYPE_CHECKING
from dockless.sched.policy.quotas import Quotas
from dockless.sched.policy.waiting import Line, WaitingJob

if TYPE_CHECKING:
    from dockless.sched.policy.state import RunningJob

Rank = tuple[bool, tuple[float, ...]]
Place = tuple[bool, int, tuple[float, ...], float, int]

Ranked = tuple[str, tuple[str, ...], int]

IN_NO_ORDER: Rank = False, ()
"""The rank of all where it is the same."""

IN_ORDER = -math.inf
"""The turn of a job that has not been put off."""

ENTRY = 600.0
"""Seconds for which a job that starts counts at once, so that a burst of short jobs does not all start before anybody notices."""


class Ranks:
    """``usage``: GPU-seconds of the past by pool (``user anna``, ``group vision``), None for first come, first served."""

    def __init__(self, quotas: Quotas, running: Iterable[RunningJob], usage: Mapping[str, float] | None) -> None:
        self.quotas = quotas
        self.guarantee_any = quotas.guarantee_any
        self.moving = self.guarantee_any or usage is not None
        self._spent: dict[str, float] | None = None if usage is None else defaultdict(float, usage)
        self._holds: Counter[str] = Counter()
        self._guarantees: dict[tuple[str, tuple[str, ...]], dict[str, int]] = {}
        self._ranks: dict[Ranked, Rank] = {}
        if self.guarantee_any:
            for job in running:
                self._count(job, len(job.gpus))

    def place(self, job: WaitingJob, rank: Rank | None = None, turn: float = IN_ORDER) -> Place:
        borrows, shares = self.rank(job) if rank is None else rank
        return borrows, -job.priority, shares, turn, job.id

    def before(self, lines: Iterable[Line], job: WaitingJob) -> int:
        """How many of these lines stand before ``job`` as things are now."""
        if not self.moving:
            return sum(line.before((-job.priority, job.id)) for line in lines)
        borrows, shares = self.rank(job)
        count = 0
        for line in lines:
            others_borrow, others_shares = self.rank(line.first())
            if others_borrow == borrows:
                count += line.before((-job.priority, job.id if others_shares == shares else math.inf if others_shares < shares else 0))
            elif not others_borrow:
                count += len(line)
        return count

    def rank(self, job: WaitingJob) -> Rank:
        """The part of its place that may get later in a pass, which jobs that are ranked together have in common."""
        if not self.moving:
            return IN_NO_ORDER
        ranked = self.ranked(job)
        found = self._ranks.get(ranked)
        if found is None:
            borrows = self.guarantee_any and not self.guarantee(job)
            found = self._ranks[ranked] = borrows, self._shares(job) if self._spent is not None else ()
        return found

    @staticmethod
    def ranked(job: WaitingJob) -> Ranked:
        """Jobs that are ranked together."""
        return job.user, job.groups, job.gpus

    def guarantee(self, job: WaitingJob) -> str:
        """The pool within whose guarantee ``job`` stays, empty for none."""
        guarantees = self._guaranteed(job)
        return next((pool for pool, count in guarantees.items() if self._holds[pool] + job.gpus <= count), "")

    def started(self, job: WaitingJob) -> None:
        self._ranks.clear()
        if self.guarantee_any:
            self._count(job, job.gpus)
        if self._spent is not None:
            for pool in (f"user {job.user}", *(f"group {group}" for group in job.groups)):
                self._spent[pool] += job.gpus * ENTRY

    def _shares(self, job: WaitingJob) -> tuple[float, ...]:
        """What her groups have had, the one that had most for its weight, then what the user has had."""
        assert self._spent is not None
        own = self._spent[f"user {job.user}"] / (self.quotas.of("user", job.user).weight or 1)
        weights = ((group, self.quotas.of("group", group).weight) for group in job.groups)
        return max((self._spent[f"group {group}"] / weight for group, weight in weights if weight), default=own), own

    def _guaranteed(self, job: WaitingJob | RunningJob) -> dict[str, int]:
        found = self._guarantees.get((job.user, job.groups))
        if found is None:
            found = self._guarantees[job.user, job.groups] = self.quotas.guarantees(job.user, job.groups)
        return found

    def _count(self, job: WaitingJob | RunningJob, gpus: int) -> None:
        for pool in self._guaranteed(job):
            self._holds[pool] += gpus
