"""Whose job is looked at first.

A job's place is ``(whether it would borrow, -priority, shares of the past, turn, number)``; the least comes first. As jobs start, a user's
share grows and her guarantee is used up, so in a pass places only get later. A turn is ``IN_ORDER``, or later for a job that was put off.

A guarantee and a weight of a class are for the jobs that can get GPUs of the class alone: who asks for it, or for some of them by name.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from dockless.base.typing import TYPE_CHECKING
from dockless.sched.policy.borrowing import counted
from dockless.sched.policy.waiting import Line, WaitingJob

if TYPE_CHECKING:
    from dockless.sched.policy.state import QueueState, RunningJob

Rank = tuple[bool, tuple[float, ...]]
Place = tuple[bool, int, tuple[float, ...], float, int]

_Alike = tuple[str, tuple[str, ...], str, frozenset[str], bool]
"""What jobs have in common that use up the same guarantees and count with the same weights."""

IN_NO_ORDER: Rank = False, ()
"""The rank of all where it is the same."""

IN_ORDER = -math.inf
"""The turn of a job that has not been put off."""

ENTRY = 600.0
"""Seconds for which a job that starts counts at once, so that a burst of short jobs does not all start before anybody notices."""


class _Standing:
    """How jobs that are alike stand in the order. ``job``: one of them; ``classes``: of the ``sets`` those that have all GPUs that it may
    get. ``left``: how many GPUs one of them may ask for and stay within a guarantee; ``shares``: what its groups and its user have had, for
    their weights. ``known``: whether both are up to date. ``past``: for each start that changed them, their values before it, and the
    furthest place in the order that the pass had reached."""

    __slots__ = ("classes", "job", "known", "left", "past", "shares")

    def __init__(self, job: WaitingJob, classes: tuple[str, ...]) -> None:
        self.job, self.classes, self.known = job, classes, False
        self.left: float = math.inf
        self.shares: tuple[float, ...] = ()
        self.past: list[tuple[float, tuple[float, ...], Place]] = []


class Ranks:
    """Of the jobs in ``state``. ``sets``: the GPUs of each class that has a guarantee or a weight."""

    def __init__(self, state: QueueState) -> None:
        self.quotas, self._state = state.quotas, state
        self.guarantee_any = state.quotas.guarantee_any
        self.moving = self.guarantee_any or state.usage is not None
        names = state.quotas.guaranteed_classes | (state.quotas.weighted_classes if state.usage is not None else frozenset())
        self.sets = {name: frozenset(state.classes.get(name, ())) for name in names}
        self._classes: dict[tuple[str, frozenset[str]], tuple[str, ...]] = {}
        self._spent: dict[str, float] | None = None if state.usage is None else defaultdict(float, state.usage)
        self._holds: Counter[str] = Counter()
        self._guarantees: dict[tuple[str, tuple[str, ...]], dict[str, tuple[str, int]]] = {}
        self._standings: dict[_Alike, _Standing] = {}
        self._standings_in: defaultdict[str, list[_Standing]] = defaultdict(list)  # by user and by group
        if self.guarantee_any:
            for job in state.running:
                self._count(job, job.gpus)

    def place(self, job: WaitingJob, rank: Rank | None = None, turn: float = IN_ORDER) -> Place:
        if rank is None and self.moving:
            standing = self._standing(job)
            return job.gpus > standing.left, -job.priority, standing.shares, turn, job.id
        borrows, shares = IN_NO_ORDER if rank is None else rank
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
        """The part of its place that may get later in a pass."""
        if not self.moving:
            return IN_NO_ORDER
        standing = self._standing(job)
        return job.gpus > standing.left, standing.shares

    def came_before(self, job: WaitingJob) -> bool:
        """Whether the pass had already gone beyond the place that it had before a start made its place later."""
        if not self.moving:
            return False
        return any(self.place(job, (job.gpus > left, shares)) < until for left, shares, until in self._standing(job).past)

    def classes(self, job: WaitingJob) -> tuple[str, ...]:
        """Of the ``sets`` those that have all GPUs that it may get, the smallest first."""
        if not job.gpus:
            return ()
        key = job.gpu_class, job.devices
        found = self._classes.get(key)
        if found is None:
            state = self._state
            goal = job.devices or frozenset(state.classes.get(job.gpu_class, ()) if job.gpu_class else state.gpus)
            goal = goal if job.devices or job.gpu_class else goal - state.slices
            names = (name for name, gpus in self.sets.items() if goal and goal <= gpus)
            found = self._classes[key] = tuple(sorted(names, key=lambda name: (len(self.sets[name]), name)))
        return found

    def guarantees(self, job: WaitingJob) -> dict[str, str]:
        """The pools within whose guarantee ``job`` stays: of which class each is, "" for any GPUs."""
        classes = ("", *self.classes(job)) if self.sets else ("",)
        pools = self._guaranteed(job).items()
        return {pool: name for pool, (name, count) in pools if name in classes and self._holds[pool] + job.gpus <= count}

    def counts(self, job: RunningJob, pool: str) -> bool:
        """Whether something of what it has uses up the guarantee of that pool."""
        name, _ = self._guaranteed(job).get(pool, (None, 0))
        return name is not None and counted(job.gpus, name, self.sets) > 0

    def started(self, job: WaitingJob, gpus: Collection[str], furthest: Place) -> None:
        """Those who share a quota with ``job`` come later from now on. ``furthest``: the place that anybody has come to."""
        names = f"user {job.user}", *(f"group {group}" for group in job.groups)
        for standing in {id(one): one for pool in names for one in self._standings_in.get(pool, ())}.values():
            if not standing.known:
                self._reckon(standing)
            standing.past.append((standing.left, standing.shares, furthest))
            standing.known = False
        if self.guarantee_any:
            self._count(job, gpus)
        if self._spent is not None:
            for pool in names:
                self._spent[pool] += job.gpus * ENTRY

    def _standing(self, job: WaitingJob) -> _Standing:
        alike = job.user, job.groups, job.gpu_class, job.devices, job.gpus > 0
        found = self._standings.get(alike)
        if found is None:
            found = self._standings[alike] = _Standing(job, self.classes(job) if self.sets else ())
            for pool in (f"user {job.user}", *(f"group {group}" for group in job.groups)):
                self._standings_in[pool].append(found)
        if not found.known:
            self._reckon(found)
        return found

    def _reckon(self, standing: _Standing) -> None:
        if self.guarantee_any:
            pools = self._guaranteed(standing.job).items()
            counts = (count - self._holds[pool] for pool, (name, count) in pools if not name or name in standing.classes)
            standing.left = max(counts, default=-math.inf)
        standing.shares = self._shares(standing.job, standing.classes) if self._spent is not None else ()
        standing.known = True

    def _shares(self, job: WaitingJob, classes: tuple[str, ...]) -> tuple[float, ...]:
        """What her groups have had, the one that had most for its weight, then what the user has had."""
        assert self._spent is not None
        own = self._spent[f"user {job.user}"] / (self.quotas.weight("user", job.user, classes) or 1)
        weights = ((group, self.quotas.weight("group", group, classes)) for group in job.groups)
        return max((self._spent[f"group {group}"] / weight for group, weight in weights if weight), default=own), own

    def _guaranteed(self, job: WaitingJob | RunningJob) -> dict[str, tuple[str, int]]:
        found = self._guarantees.get((job.user, job.groups))
        if found is None:
            found = self._guarantees[job.user, job.groups] = self.quotas.guarantees(job.user, job.groups)
        return found

    def _count(self, job: WaitingJob | RunningJob, gpus: Collection[str]) -> None:
        for pool, (name, _) in self._guaranteed(job).items():
            self._holds[pool] += counted(gpus, name, self.sets)
