"""The jobs that wait, kept so that a pass need not look at each of them.

Jobs of one *kind* (the same user, groups, GPUs, class and share of them, cores, memory, width) differ only in priority, age and time limit:
where the first of a kind cannot start, of the others only one that ends sooner can. So they stand in one line a kind, in the queue's order,
and a line is asked for its first job, and for the next one that ends soon enough. Within a line those whose time limits are about equal
stand in one row: of them the first has waited longest. Neither this nor coming and going costs more when the queue is longer.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import merge, nsmallest
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from dockless.base.dataclass import dataclass, field
from dockless.base.typing import TypeVar

K = TypeVar("K")


class Kind(NamedTuple):
    """What jobs of one kind have in common; as in ``WaitingJob``."""

    user: str
    gpus: int
    groups: tuple[str, ...]
    devices: frozenset[str]
    gpu_class: str
    share: int
    cores: int
    memory: int
    width: int


KINDS = 250
"""Kinds of one user's jobs that a pass looks at: who asks for something else with each of thousands of jobs delays her own alone."""

PIECE = 512
"""Jobs of a line that are kept together: a job that comes or goes moves at most twice as many."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job in the queue. ``devices``: the very GPUs it insists on (then ``gpus`` is their number); ``gpu_class``: else the class that they
    are of, one of ``QueueState.classes``, "" for any whole ones. ``time_limit``: seconds, 0 for none. ``groups``: the groups whose quota it
    counts against. ``since``: when it was submitted, on the policy's clock. ``share``: MiB of its one GPU, where it can be shared; 0 where
    its GPUs are its own. ``cores``: so many thousandths of a core; ``memory``: bytes; 0 where it does not say. ``width``: how many jobs it
    is, which start together and count as many wherever jobs are counted."""

    id: int
    user: str
    gpus: int = 0
    groups: tuple[str, ...] = ()
    devices: frozenset[str] = frozenset()
    priority: int = 0
    time_limit: float = 0.0
    since: float = 0.0
    gpu_class: str = ""
    share: int = 0
    cores: int = 0
    memory: int = 0
    width: int = 1
    kind: Kind = field(init=False, repr=False)

    def __post_init__(self) -> None:
        of = self.user, self.gpus, self.groups, self.devices, self.gpu_class, self.share, self.cores, self.memory, self.width
        object.__setattr__(self, "kind", Kind._make(of))


def order(job: WaitingJob) -> tuple[int, int]:
    """The queue's order as a sort key."""
    return (-job.priority, job.id)


def longest(job: WaitingJob) -> float:
    """How long it may run, seconds: for ever without a time limit."""
    return job.time_limit or math.inf


def length(job: WaitingJob) -> float:
    """About how long it may run: seconds, the next of 1, 1.4, 2, 2.8, 4 ... above its time limit; for ever without one."""
    return math.pow(2, math.frexp(job.time_limit * job.time_limit)[1] / 2) if job.time_limit else math.inf


def patience(job: WaitingJob, now: float) -> float:
    """The seconds that it has waited, divided by the fourth root of its ``length``: 0 without a time limit."""
    return max(0.0, now - job.since) / math.sqrt(math.sqrt(length(job)))


class Row:
    """Some waiting jobs of one kind, in order."""

    __slots__ = ("_least", "_parts", "_places")

    def __init__(self) -> None:
        self._parts: list[list[WaitingJob]] = []
        self._places: list[tuple[int, int]] = []  # of the last job of each part
        self._least: list[float] = []  # no job of that part may run for less; too small after one went, until somebody looks

    def __iter__(self) -> Iterator[WaitingJob]:
        for part in self._parts:
            yield from part

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def first(self) -> WaitingJob:
        return self._parts[0][0]

    def add(self, job: WaitingJob) -> None:
        place = order(job)
        at = bisect_left(self._places, place)
        if at == len(self._parts):
            if not at or len(self._parts[-1]) >= PIECE:
                self._parts.append([job])
                self._places.append(place)
                self._least.append(longest(job))
                return
            at -= 1
            self._parts[at].append(job)
            self._places[at] = place
        else:
            insort(self._parts[at], job, key=order)
        self._least[at] = min(self._least[at], longest(job))
        if len(self._parts[at]) > 2 * PIECE:
            part = self._parts[at]
            self._parts[at : at + 1] = halves = [part[:PIECE], part[PIECE:]]
            self._places[at : at + 1] = [order(half[-1]) for half in halves]
            self._least[at : at + 1] = [min(map(longest, half)) for half in halves]

    def add_all(self, jobs: Iterable[WaitingJob]) -> None:
        every = sorted([*self, *jobs], key=attrgetter("id"))  # in two steps, both without a call for each
        every.sort(key=attrgetter("priority"), reverse=True)
        self._parts = [every[start : start + PIECE] for start in range(0, len(every), PIECE)]
        self._places = [order(part[-1]) for part in self._parts]
        self._least = [min(limit or math.inf for limit in {job.time_limit for job in part}) for part in self._parts]

    def remove(self, job: WaitingJob) -> None:
        at, index = self._find(order(job))
        part = self._parts[at]
        assert part[index] is job
        del part[index]
        if not part:
            del self._parts[at], self._places[at], self._least[at]
        elif index == len(part):
            self._places[at] = order(part[-1])

    def has(self, job: WaitingJob) -> bool:
        at, index = self._find(order(job))
        return at < len(self._parts) and index < len(self._parts[at]) and self._parts[at][index] is job

    def those(self, jobs: Sequence[WaitingJob]) -> set[int]:
        """The numbers of those of them that are here. Those that stand behind each other here, too, are looked for once."""
        found, start = set[int](), 0
        while start < len(jobs):
            at, index = self._find(order(jobs[start]))
            part, before = self._parts[at] if at < len(self._parts) else [], start
            for job, here in zip(islice(jobs, start, None), islice(part, index, None), strict=False):
                if job is not here:
                    break
                found.add(job.id)
                start += 1
            start = max(start, before + 1)
        return found

    def behind(self, place: tuple[int, int]) -> Iterator[WaitingJob]:
        first, index = self._find(place, behind=True)
        for part in islice(self._parts, first, None):
            yield from islice(part, index, None)
            index = 0

    def after(self, place: tuple[int, int], within: float, above: float = 0.0) -> WaitingJob | None:
        """The next one behind ``place`` that may run for at most ``within`` seconds and for more than ``above``."""
        first, index = self._find(place, behind=True)
        for at in range(first, len(self._parts)):
            part = self._parts[at]
            if self._least[at] <= within:
                found = next((other for other in islice(part, index, None) if above < longest(other) <= within), None)
                if found is not None:
                    return found
                if not index:
                    self._least[at] = min(map(longest, part))
            index = 0
        return None

    def before(self, place: tuple[int, float]) -> int:
        """How many stand before that place of the queue's order."""
        at, index = self._find(place)
        return sum(map(len, self._parts[:at])) + index

    def copy(self) -> Row:
        found = Row()
        found._parts = [part[:] for part in self._parts]
        found._places, found._least = self._places[:], self._least[:]
        return found

    def _find(self, place: tuple[int, float], behind: bool = False) -> tuple[int, int]:
        """The part and the index of the first at that place or behind it."""
        bisect = bisect_right if behind else bisect_left
        at = bisect(self._places, place)
        return at, bisect(self._parts[at], place, key=order) if at < len(self._parts) else 0


class Line:
    """The waiting jobs of one kind, in order. ``limits``: how many have which time limit; ``rows``: by ``length``."""

    __slots__ = ("_first", "limits", "rows")

    def __init__(self) -> None:
        self._first: WaitingJob | None = None
        self.limits: Counter[float] = Counter()
        self.rows: dict[float, Row] = {}

    def __iter__(self) -> Iterator[WaitingJob]:
        return merge(*self.rows.values(), key=order)

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def first(self) -> WaitingJob:
        if self._first is None:
            self._first = min((row.first() for row in self.rows.values()), key=order)
        return self._first

    def add(self, job: WaitingJob) -> None:
        self._first = None
        self.limits[job.time_limit] += 1
        row = self.rows.get(length(job))
        if row is None:
            row = self.rows[length(job)] = Row()
        row.add(job)

    def add_all(self, jobs: Sequence[WaitingJob]) -> None:
        self._first = None
        rows: defaultdict[float, list[WaitingJob]] = defaultdict(list)
        for limit, of_limit in grouped(jobs, [job.time_limit for job in jobs]).items():
            self.limits[limit] += len(of_limit)
            rows[length(of_limit[0])] += of_limit
        for about, of_row in rows.items():
            self.rows.setdefault(about, Row()).add_all(of_row)

    def remove(self, job: WaitingJob) -> None:
        self._first = None
        row = self.rows[length(job)]
        row.remove(job)
        if not row:
            del self.rows[length(job)]
        self.limits[job.time_limit] -= 1
        if not self.limits[job.time_limit]:
            del self.limits[job.time_limit]

    def behind(self, job: WaitingJob) -> Iterator[WaitingJob]:
        return merge(*(row.behind(order(job)) for row in self.rows.values()), key=order)

    def after(self, job: WaitingJob, within: float = math.inf, above: float = 0.0) -> WaitingJob | None:
        """The next one behind ``job`` that may run for at most ``within`` seconds and for more than ``above``."""
        place = order(job)
        found = [row.after(place, within, above) for most, row in self.rows.items() if above < most <= 1.5 * within]
        return min((other for other in found if other is not None), key=order, default=None)

    def after_of_length(self, job: WaitingJob, within: float, above: float) -> WaitingJob | None:
        """The next one behind ``job`` of the same length that may run for more than ``above`` seconds, too."""
        return self.rows[length(job)].after(order(job), within, above)

    def after_of_other_lengths(self, job: WaitingJob, within: float, above: float) -> list[WaitingJob]:
        """The next one behind ``job`` of each other length."""
        own, place = length(job), order(job)
        found = [row.after(place, within, above) for most, row in self.rows.items() if most != own and most > above]
        return [other for other in found if other is not None]

    def before(self, place: tuple[int, float]) -> int:
        """How many stand before that place of the queue's order."""
        return sum(row.before(place) for row in self.rows.values())

    def copy(self) -> Line:
        found = Line()
        found._first = self._first
        found.limits = Counter(self.limits)
        found.rows = {about: row.copy() for about, row in self.rows.items()}
        return found


class Reckoned:
    """What jobs of each kind need on one ``host``, from pass to pass. ``drawn``: of its supplies; ``asked``: of all pools, in the order in
    which they are looked at."""

    __slots__ = ("asked", "drawn", "host")

    def __init__(self, host: object) -> None:
        self.host = host
        self.drawn: dict[Kind, dict[str, int]] = {}
        self.asked: dict[Kind, tuple[tuple[str, int], ...]] = {}


class WaitingList:
    """All that wait; iterated, in the queue's order. ``whose``: how many kinds there are of a user with these groups, with or without
    GPUs. ``changes``: how often jobs have come or gone."""

    def __init__(self, jobs: Iterable[WaitingJob] = ()) -> None:
        self.lines: dict[Kind, Line] = {}
        self.changes = 0
        self._count = 0
        self._kinds: Counter[str] = Counter()
        self.whose: Counter[tuple[str, tuple[str, ...], bool]] = Counter()
        self._reckoned: Reckoned | None = None
        self.add_all([*jobs])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[WaitingJob]:
        return iter(self.of())

    def __contains__(self, job: WaitingJob) -> bool:
        line = self.lines.get(job.kind)
        row = None if line is None else line.rows.get(length(job))
        return row is not None and row.has(job)

    def those(self, jobs: Sequence[WaitingJob]) -> set[int]:
        """Of jobs of one kind that have the same time limit, the numbers of those that wait. Quick where they are in the queue's order."""
        line = self.lines.get(jobs[0].kind)
        row = None if line is None else line.rows.get(length(jobs[0]))
        return set() if row is None else row.those(jobs)

    def of(self, user: str = "") -> list[WaitingJob]:
        """A user's, or all, in the queue's order."""
        jobs = [job for line in self.lines.values() if not user or line.first().user == user for job in line]
        jobs.sort(key=order)
        return jobs

    def looked_at(self) -> Collection[Line]:
        """The lines that a pass looks at: of each user the first ``KINDS``, by the first job of each."""
        if all(count <= KINDS for count in self._kinds.values()):
            return self.lines.values()
        of_user: dict[str, list[Line]] = defaultdict(list)
        for kind, line in self.lines.items():
            of_user[kind.user].append(line)
        return [line for lines in of_user.values() for line in nsmallest(KINDS, lines, key=lambda line: order(line.first()))]

    @property
    def wants_gpus(self) -> bool:
        return any(kind.gpus for kind in self.lines)

    @property
    def classes(self) -> frozenset[str]:
        """Those of which somebody wants GPUs."""
        return frozenset(kind.gpu_class for kind in self.lines if kind.gpu_class)

    def reckoned(self, host: object) -> Reckoned:
        """What has been reckoned on an equal ``host``, to be filled by whoever reckons more; empty where it was another."""
        if self._reckoned is None or self._reckoned.host != host:
            self._reckoned = Reckoned(host)
        return self._reckoned

    def add(self, job: WaitingJob) -> None:
        self._line(job.kind).add(job)
        self._count += 1
        self.changes += 1

    def add_copies(self, lines: Iterable[tuple[Kind, Line]]) -> None:
        """The jobs of another list's lines, of kinds that nobody here is of. What becomes of one list is nothing to the other."""
        for kind, line in lines:
            if line.rows:
                self._line(kind, line.copy())
                self._count += len(line)

    def add_all(self, jobs: Sequence[WaitingJob]) -> None:
        """As ``add`` of each, in a fraction of the time where there are many."""
        kinds: defaultdict[Kind, list[WaitingJob]] = defaultdict(list)
        for same in grouped(jobs, [id(job.kind) for job in jobs]).values():  # many have the very same, which saves comparing
            kinds[same[0].kind] += same
        for kind, of_kind in kinds.items():
            self._line(kind).add_all(of_kind)
        self._count += len(jobs)
        self.changes += 1

    def _line(self, kind: Kind, new: Line | None = None) -> Line:
        line = self.lines.get(kind)
        if line is None:
            line = self.lines[kind] = Line() if new is None else new
            self._kinds[kind.user] += 1
            self.whose[kind.user, kind.groups, bool(kind.gpus)] += 1
        return line

    def remove(self, job: WaitingJob) -> None:
        line = self.lines[job.kind]
        line.remove(job)
        self._count -= 1
        self.changes += 1
        if not line.limits:
            del self.lines[job.kind]
            if self._reckoned is not None:
                self._reckoned.drawn.pop(job.kind, None)
                self._reckoned.asked.pop(job.kind, None)
            _one_less(self._kinds, job.user)
            _one_less(self.whose, (job.user, job.groups, bool(job.gpus)))


def _one_less(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def grouped(jobs: Sequence[WaitingJob], keys: Sequence[K]) -> dict[K, list[WaitingJob]]:
    """``keys``: one for each job."""
    if len(set(keys)) == 1:
        return {keys[0]: [*jobs]}
    found: defaultdict[K, list[WaitingJob]] = defaultdict(list)
    for job, key in zip(jobs, keys, strict=True):
        found[key].append(job)
    return found
