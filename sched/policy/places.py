"""Who stands before whom.

Jobs that compete for the same stand in one queue: those that may have the same GPUs, directly or because a third may have some of either;
those without GPUs; all of them where cores or memory are short for both. Of each queue the first has place 1.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain, count, groupby, islice, repeat
from operator import itemgetter

from dockless.sched.policy.ranks import Ranks
from dockless.sched.policy.state import CLASS, JOBS, QueueState
from dockless.sched.policy.turns import Turns
from dockless.sched.policy.waiting import Kind, Line, WaitingJob, WaitingList

EVERYBODY = ""
"""The queue of all, where it is one."""


class Queues:
    """Which queue the jobs of a kind stand in. ``one``: it is one queue of all (``Decision.one_queue``)."""

    def __init__(self, state: QueueState, waiting: WaitingList, one: bool) -> None:
        self.one = one
        self._whole = frozenset(state.gpus) - state.slices
        self._classes = state.classes
        self._of: dict[tuple[frozenset[str], str], str] = {}
        sets: list[set[str]] = []
        for kind in {(kind.devices, kind.gpu_class): kind for kind in waiting.lines if kind.gpus}.values():
            gpus = set(self.gpus(kind))
            near = [other for other in sets if not gpus.isdisjoint(other)]
            sets = [*(other for other in sets if gpus.isdisjoint(other)), gpus.union(*near)]
        self._queue_of = {gpu: name for gpus in sets if gpus for name in (min(gpus),) for gpu in gpus}

    def of(self, kind: Kind) -> str:
        if self.one:
            return EVERYBODY
        if not kind.gpus:
            return JOBS
        key = kind.devices, kind.gpu_class
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = self._queue_of.get(next(iter(self.gpus(kind)), ""), CLASS + kind.gpu_class)
        return found

    def gpus(self, kind: Kind) -> Collection[str]:
        """Those that it may have."""
        return kind.devices or (self._classes.get(kind.gpu_class, ()) if kind.gpu_class else self._whole)


class Places:
    """Of those that wait, as things are now."""

    def __init__(self, state: QueueState, one_queue: bool) -> None:
        assert isinstance(state.waiting, WaitingList)
        self.lines = state.waiting.lines
        self.ranks = Ranks(state)
        self.queues = Queues(state, state.waiting, one_queue)
        self.running: Counter[str] = Counter()  # jobs without GPUs of each user
        for job in state.running:
            if not job.gpus:
                self.running[job.user] += job.width

    def rivals(self, job: WaitingJob) -> list[Line]:
        """The lines of its queue, its own too."""
        queue = self.queues.of(job.kind)
        return [line for kind, line in self.lines.items() if self.queues.of(kind) == queue]

    def place(self, job: WaitingJob) -> tuple[int, int]:
        """In its queue, 1 for the first, and how many stand in that."""
        rivals = self.rivals(job)
        before = self._before_in_turn(rivals, job) if self.takes_turns(job.kind) else self.ranks.before(rivals, job)
        return before + 1, sum(map(len, rivals))

    def takes_turns(self, kind: Kind) -> bool:
        """Whether users take turns where it stands."""
        return not kind.gpus and not self.queues.one

    def ahead(self, job: WaitingJob, most: int) -> list[WaitingJob]:
        """The first of its queue that stand before it, at most so many."""
        rivals = self.rivals(job)
        found = []
        for other in islice(self._in_turn(rivals) if self.takes_turns(job.kind) else self._in_order(rivals, most), most):
            if other.id == job.id:
                break
            found.append(other)
        return found

    def _in_order(self, lines: list[Line], most: int) -> Iterator[WaitingJob]:
        firsts = sorted((self.ranks.place(line.first()), number) for number, line in enumerate(lines))[:most]
        return merge(*(iter(lines[number]) for _, number in firsts), key=self.ranks.place)

    def _in_turn(self, lines: Iterable[Line]) -> Iterator[WaitingJob]:
        running = self.running.copy()
        turns = Turns(lines, lambda user: running[user])
        while (job := turns.next()) is not None:
            yield job
            running[job.user] += job.width
            turns.take()

    def _before_in_turn(self, lines: Iterable[Line], job: WaitingJob) -> int:
        """How many have their turn before it. A user's next turn is as much later as her job is wide; where some of hers start together and
        others do not, they count as wide as they are on average."""
        higher, wide, own = 0, self.running.copy(), self.running[job.user]
        equal: Counter[str] = Counter()  # of each user those of its priority; how wide they are; how many of them are older
        width: Counter[str] = Counter()
        older: Counter[str] = Counter()
        for line in lines:
            kind = line.first().kind
            above, until, through = (line.before((-job.priority, number)) for number in (0, job.id, math.inf))
            higher += above
            wide[kind.user] += above * kind.width
            equal[kind.user] += through - above
            width[kind.user] += (through - above) * kind.width
            older[kind.user] += until - above
            own += until * kind.width if kind.user == job.user else 0
        before = higher + older.pop(job.user, 0)  # it may be one that is kept aside
        for user, jobs in equal.items():
            if user == job.user or not jobs:
                continue
            turns = max(0.0, (own - wide[user]) * jobs / width[user])
            sooner = math.ceil(turns)
            same_turn = own >= wide[user] and sooner == turns and sooner < older[user]  # there the older one is first
            before += min(jobs, sooner) + same_turn
        return before


_Pairs = Iterable[tuple[int, int]]
"""Numbers of jobs, each with its place."""


def _pairs(of_priority: tuple[int, Iterable[tuple[int, _Pairs]]]) -> Iterator[tuple[int, int]]:
    return chain.from_iterable(pairs for _, pairs in of_priority[1])


class InOrder:
    """All that wait, put in the order in which they are looked at. They are added with their numbers, the least first. Jobs that start
    together are several numbers of one job, and have one place."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._of: dict[int, tuple[Kind, dict[int, Callable[[int], None]]]] = {}
        self._ranked: defaultdict[tuple[bool, int, tuple[float, ...]], defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._turns: defaultdict[int, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._widths: dict[int, int] = {}  # 0 for all but the first of those that start together; those of 1 are left out

    def add_all(self, jobs: Iterable[tuple[int, WaitingJob]]) -> None:
        last, priority, wide = None, 0, False
        add: Callable[[int], None] | None = None
        for number, job in jobs:
            if add is None or job.kind is not last or job.priority != priority:
                last, priority, wide = job.kind, job.priority, job.kind.width != 1
                of = self._of.get(id(last))
                if of is None:
                    of = self._of[id(last)] = last, {}  # as long as the kind is kept its id is its own
                add = of[1].get(priority)
                if add is None:
                    add = of[1][priority] = self._beside(job)
            add(number)
            if wide:
                self._widths[number] = job.kind.width if number == job.id else 0

    def _beside(self, job: WaitingJob) -> Callable[[int], None]:
        """What adds one to those that are not told from it but by their numbers."""
        if self._places.takes_turns(job.kind):
            return self._turns[-job.priority][job.user].append
        borrows, shares = self._places.ranks.rank(job)
        return self._ranked[borrows, -job.priority, shares][self._places.queues.of(job.kind)].append

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The numbers, each with its place. Those with and those without GPUs stand in two queues: of equal priority the older one of the
        first of each is first."""
        ranked, turns = (groupby(part, key=itemgetter(0)) for part in (self._by_rank(), self._by_turn()))
        one, other = next(ranked, None), next(turns, None)
        while one and other:
            if one[0] == other[0]:
                yield from merge(_pairs(one), _pairs(other))
                one, other = next(ranked, None), next(turns, None)
            elif one[0] < other[0]:
                yield from _pairs(one)
                one = next(ranked, None)
            else:
                yield from _pairs(other)
                other = next(turns, None)
        for rest, more in ((one, ranked), (other, turns)):
            for of_priority in chain(filter(None, (rest,)), more):
                yield from _pairs(of_priority)

    def _by_rank(self) -> Iterator[tuple[int, _Pairs]]:
        places: Counter[str] = Counter()
        for key in sorted(self._ranked):
            queues = self._ranked[key]
            if len(queues) == 1 and not self._widths:
                ((queue, numbers),) = queues.items()
                yield key[1], zip(numbers, count(places[queue] + 1))
                places[queue] += len(numbers)
            else:
                yield key[1], self._of_queues(queues, places)

    def _of_queues(self, queues: Mapping[str, list[int]], places: Counter[str]) -> Iterator[tuple[int, int]]:
        for number, queue in merge(*(zip(numbers, repeat(queue)) for queue, numbers in queues.items())):
            places[queue] += self._widths.get(number, 1) > 0
            yield number, places[queue]

    def _by_turn(self) -> Iterator[tuple[int, _Pairs]]:
        running, place = self._places.running.copy(), count(1)
        for priority in sorted(self._turns):
            users = self._turns[priority]
            yield priority, self._in_turn(users, running, place)
            for user, numbers in users.items():
                running[user] += sum(self._widths.get(number, 1) for number in numbers)

    def _in_turn(self, users: Mapping[str, list[int]], running: Mapping[str, int], places: Iterator[int]) -> Iterator[tuple[int, int]]:
        place = 0
        for _, number in merge(*(self._turns_of(numbers, running[user]) for user, numbers in users.items())):
            if self._widths.get(number, 1):
                place = next(places)
            yield number, place

    def _turns_of(self, numbers: Iterable[int], running: int) -> Iterator[tuple[int, int]]:
        """``running``: how many of that user's run when the first has its turn."""
        last = running
        for number in numbers:
            if width := self._widths.get(number, 1):
                last, running = running, running + width
            yield last, number
