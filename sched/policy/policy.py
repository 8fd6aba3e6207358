"""Who starts now, on which GPUs, and why everybody else waits: a pure function.

``decide(state, now)`` has no clock, no database and no processes. The daemon, the property tests and the trace replays call the same one.

The rules, in the order they bind:

1. **Order.** Higher priority first; among equals first come, first served, or whoever has had least (``ranks``). Jobs without GPUs have
   places of their own, and there among equals the user comes first who has the fewest running (``turns``). Where jobs draw on the same
   cores or memory (``supplies``), those with and those without GPUs are decided as one queue.
2. **Quota.** A user and each of her groups may hold so many GPUs and run so many jobs, never more. A job that its own quota keeps waiting
   does not hold up other users; within the same user (group) it keeps its place.
3. **Packing.** Of the free GPUs those nearest to each other, and among equals those that leave the nearest behind (``packing``).
4. **No starvation** (EASY backfill). The first job that finds too few free GPUs gets a *reservation*: the moment at which, by the time
   limits of what runs, its GPUs will be free. A later job may start before it only if it cannot delay it: it ends by then (it has a
   time limit), or it takes only GPUs that are over even then. Where what runs has no time limit, the moment is unknown, and only what is
   over in the worst case may be taken. The same rule guards a job's place inside its quota. Of equal rank, those that end by then
   come first; the others take what they leave, the one first whose wait is longest for what it asks (``waiting.patience``).
   A job that joins a shared GPU takes none, unless a reservation counts on that GPU and it would keep it for longer (``sharing``).

5. **Guarantees.** A job that stays within a guarantee comes before all that would borrow. Where too few GPUs are free for it, jobs that
   borrowed give theirs back: the youngest, as few as possible, after a while (``borrowing``).

6. **Reserved hours.** A job of others that runs into them may have what is over: so the GPUs are free when they begin, and stay so. A job
   that ends before is not concerned (``state.Window``).

Everything countable is a *pool* (the host's GPUs, those of a class, its cores, its memory, the GPUs and the running jobs of a user and of a
group), so rule 4 is one piece of code for all of them. What a job draws from a pool of certain GPUs is what it has of them; where it may
have others, it gets those first that no reservation and no quota counts. Time limits are upper bounds: a job that ends early only makes the
reservation come earlier.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from dockless.base.dataclass import dataclass, replace
from dockless.sandbox.gpus.topology import FARTHEST
from dockless.sched.policy.borrowing import borrowers, fewest
from dockless.sched.policy.decision import Decision
from dockless.sched.policy.packing import WHOLE, Node, Task, choose
from dockless.sched.policy.quotas import counts_jobs
from dockless.sched.policy.ranks import IN_ORDER, Place, Rank, Ranks
from dockless.sched.policy.reservations import Hold, Releases, Reservation, left_over, moment
from dockless.sched.policy.sharing import SharedGpus
from dockless.sched.policy.state import CLASS, HOST, JOBS, PreemptJob, QueueState, RunningJob, StartJob, drawn
from dockless.sched.policy.turns import Turns
from dockless.sched.policy.waiting import Kind, Line, WaitingJob, WaitingList, longest, order, patience


def decide(state: QueueState, now: float) -> Decision:
    """Which of ``state.waiting`` start at ``now`` (seconds on any clock that ``Running.ends`` is on too). Changes nothing it is given."""
    return _Pass(state, now).run()


@dataclass(slots=True)
class _Parked:
    """The jobs of ``line`` behind ``job`` that may run longer than ``above`` and for at most ``below`` seconds."""

    line: Line
    job: WaitingJob
    above: float
    below: float


class _Pass:
    """One walk down the queue. ``used`` counts GPUs per pool, ``free`` the GPUs nobody has, both as the starts of this pass change them.

    In a pass things only get scarcer, so a job that is held stays held, and with it all later ones of its kind but those that end soon
    enough not to be in the way (``Hold.within``). Of each kind, only the first job and then what may still start is looked at. One thing
    more a job that is held can do: keep a place in a pool where nobody has one. The later ones of its kind come to that only after another
    start from that pool, and are looked at then (``parked``).

    A job that could start, but would still run when the first of the queue gets its GPUs, is *put off*, and with it all later ones of its
    kind that would: until those of its rank that end in time have started. Then they start by patience, and keep no places.
    """

    def __init__(self, state: QueueState, now: float) -> None:
        self.state = state
        self.now = now
        self.waiting = state.waiting if isinstance(state.waiting, WaitingList) else WaitingList(state.waiting)
        held = frozenset().union(*(job.gpus for job in state.running)) if state.running else frozenset()
        usable = [gpu for gpu in state.gpus if gpu not in state.outside]
        self.whole = frozenset(usable) - state.slices
        self.free = [gpu for gpu in usable if gpu not in held]
        self.shared = SharedGpus(state)
        self.shares_wait = bool(state.shareable) and any(kind[5] for kind in self.waiting.lines)
        self.running = list(state.running)
        self.used: Counter[str] = Counter()
        self.limits: dict[str, int] = {}
        self.sets: dict[str, frozenset[str]] = {HOST: self.whole}  # the GPUs that a pool counts, where it counts certain ones
        self.pool_of_class = self.pools_of_classes(usable)
        self.places = list(self.sets)  # the host and its classes: where a job that needs GPUs keeps its place
        there = held.union(self.free)
        self.most_of = {pool: sum(1 for gpu in there if gpu in self.sets[pool]) for pool in self.places}
        self.windows = {window.pool: window for window in state.windows}
        self.pools_of: dict[tuple[str, tuple[str, ...], bool, bool], list[str]] = {}
        self.supplies = state.supplies
        self.limits |= {pool: supply.common(len(state.gpus) - len(state.slices)) for pool, supply in self.supplies.items()}
        self.drawn_by: dict[Kind, dict[str, int]] = {}
        for job in state.running:
            self.count(job, job.gpus, job.ends)
        self.reserved: dict[str, Reservation] = {}
        self.kept: dict[frozenset[str], Reservation] = {}  # for jobs that insist on certain GPUs
        self.kept_until: dict[float | None, tuple[Reservation, set[str]]] = {}  # the first of them for each moment, and all GPUs
        self.held: dict[Kind, dict[float, Hold]] = {}
        self.within: dict[Kind, float] = {}
        self.parked: dict[str, list[_Parked]] = {}
        self.starts: list[StartJob] = []
        self.ranks = Ranks(state.quotas, state.running, state.usage)
        self.past: dict[Kind, list[tuple[Rank, Place]]] = {}
        self.preempts: list[PreemptJob] = []
        self.promised: dict[int, Hold] = {}
        self.promised_to: dict[str, int] = {}
        self.again: float | None = None
        self.closed: int | None = None
        self.next: list[tuple[Place, WaitingJob]] = []
        self.looked_at: dict[int, _Parked] = {}
        self.put_off_kinds: set[Kind] = set()
        self.furthest: Place = False, -sys.maxsize, (), IN_ORDER, 0
        self.one_queue = bool(self.supplies) and any(self.drawn(line.first()) for line in self.waiting.lines.values())

    def run(self) -> Decision:
        lines = self.waiting.lines.values()
        with_gpus = [line for line in lines if line.first().gpus]
        without = [line for line in lines if not line.first().gpus]
        short = [line.first() for line in without if self.one_queue and self.lacks(line.first())]
        short.sort(key=order, reverse=True)
        aside = {job.kind for job in short}
        turns = Turns([line for line in without if line.first().kind not in aside], lambda user: self.used[f"{JOBS}/{user}"])
        first = self.first_of_each_pool(with_gpus)
        self.next = [(self.ranks.place(job), job) for job in (line.first() for line in with_gpus)]
        heapify(self.next)
        while True:
            turn = turns.next() if self.used[JOBS] < self.state.cpu_jobs else None
            heads = [job for job in (short[-1] if short else None, turn) if job is not None]
            job = min(heads, key=self.ranks.place) if len(heads) > 1 else heads[0] if heads else None
            if (not heads or self.one_queue) and self.look_at_next(job):
                continue
            if job is None:
                break
            if job is turn:
                self.look_in_turn(job, turns, first)
            else:
                self.hold_without_gpus(short.pop(), first)
        for job in turns:
            self.held.setdefault(job.kind, {})[job.time_limit] = Hold("jobs", JOBS, job.priority)
        return self.decision()

    def look_at_next(self, other: WaitingJob | None) -> bool:
        """Look at the first of those with GPUs, unless ``other`` comes before it; whether there was one."""
        while self.next:
            was, job = self.next[0]
            place = self.ranks.place(job, turn=was[3])
            if place == was:
                break
            heapreplace(self.next, (place, job))  # something that started has made it later
        if not self.next or (other is not None and self.ranks.place(other) < place):
            return False
        heappop(self.next)
        if self.nothing_left(place):
            self.next = []
            return True
        if self.closed is not None and not job.share:
            return True
        self.furthest = place
        if was[3] != IN_ORDER:
            self.look_again(job)
        elif job.kind in self.put_off_kinds and self.late(job):
            self.looked_at.pop(job.id, None)
        else:
            self.look(job)
        if self.closed is None and not self.ranks.guarantee_any and self.no_gpu_left(place):
            self.closed = job.priority
        return True

    def decision(self) -> Decision:
        return Decision(
            starts=self.starts,
            preempts=self.preempts,
            again=min((moment for moment in (self.again, *(window.ends for window in self.state.windows)) if moment), default=None),
            now=self.now,
            reservations=[*self.reserved.values(), *self.kept.values()],
            _held=self.held,
            _promised=self.promised,
            _used=self.used,
            _free=list(self.free),
            _left={pool: self.limits[pool] - self.used[pool] for pool in self.supplies},
            _state=self.state,
            _shared=self.shared,
            _closed=self.closed,
        )

    def nothing_left(self, place: Place) -> bool:
        """Neither GPUs nor parts of any."""
        return self.no_gpu_left(place) and not (self.shares_wait and self.shared.any_left)

    def no_gpu_left(self, place: Place) -> bool:
        """Nothing is free, the head has its reservation, and who comes now has no guarantee of what others borrow."""
        return not self.free and HOST in self.reserved and (place[0] or not self.ranks.guarantee_any)

    def look(self, job: WaitingJob) -> None:
        """It is its turn in the queue's order."""
        line, within = self.waiting.lines[job.kind], self.within.get(job.kind, math.inf)
        parked = self.looked_at.pop(job.id, None)
        hold = self.settle(job)
        if hold is not None:
            self.held.setdefault(job.kind, {}).setdefault(job.time_limit, hold)
            if parked is None:
                parked = _Parked(line, job, self.hold_longer(job, hold), within)
                self.follow(job)
                for pool in self.windows:
                    if pool in self.pools(job) and not self.reaches(job, pool):
                        self.look_at_longer(parked, self.time_to(self.windows[pool].starts))
            self.park(parked, hold)
        elif parked is None:
            self.follow(job)

    def look_again(self, job: WaitingJob) -> None:
        """It was put off, and it is its turn now."""
        within, above = self.within.get(job.kind, math.inf), self.time_until(self.reserved[self.place(job)])
        if longest(job) <= within and (hold := self.settle(job, put_off=True)) is not None:
            self.held.setdefault(job.kind, {}).setdefault(job.time_limit, hold)
            within = self.hold_longer(job, hold)
        if within > above:
            self.put_off_until_patience(self.waiting.lines[job.kind].after_of_length(job, within, above))

    def hold_longer(self, job: WaitingJob, hold: Hold) -> float:
        """Of its kind none that may run for longer can start now: for how long the others may run, seconds."""
        hold.within = self.within[job.kind] = min(hold.within, math.nextafter(longest(job), 0))
        return hold.within

    def settle(self, job: WaitingJob, put_off: bool = False) -> Hold | None:
        """Start a job with GPUs, put it off unless it was ``put_off``, or promise it what others give back; else what holds it."""
        hold = self.over_quota(job, keep=not put_off)
        if hold is None and job.share and (shared := self.joins(job)):
            hold = self.no_supply(job, keep=not put_off)
            if hold is None:
                self.start(job, shared)
            return hold
        if hold is None and not self.enough(job, self.free) and self.take_back(job):
            return None
        hold = hold or self.no_room(job, keep=not put_off)
        if hold is None:
            if put_off or not self.late(job) or (self.ranks.guarantee_any and self.ranks.guarantee(job)):
                self.start(job)
            else:
                self.put_off(job)
        return hold

    def late(self, job: WaitingJob) -> bool:
        """Whether it would take GPUs that the first of the queue has a reservation of, and still run then."""
        reservation = self.reserved.get(self.place(job))
        return reservation is not None and longest(job) > self.time_until(reservation) and self.draws(job, reservation.pool) > 0

    def put_off(self, job: WaitingJob) -> None:
        self.put_off_kinds.add(job.kind)
        above, within = self.time_until(self.reserved[self.place(job)]), self.within.get(job.kind, math.inf)
        for one in (job, *self.waiting.lines[job.kind].after_of_other_lengths(job, within, above)):
            self.put_off_until_patience(one)

    def put_off_until_patience(self, job: WaitingJob | None) -> None:
        if job is not None:
            heappush(self.next, (self.ranks.place(job, turn=-patience(job, self.now)), job))

    def first_of_each_pool(self, lines: Sequence[Line]) -> Mapping[str, WaitingJob]:
        """Of the quotas of jobs, the first job with GPUs that wants a place there. ``lines``: of those with GPUs."""
        first: dict[str, WaitingJob] = {}
        if self.state.quotas.limit_jobs:
            for head in sorted((line.first() for line in lines), key=order):
                for pool in self.pools(head):
                    first.setdefault(pool, head)
        return first

    def look_in_turn(self, job: WaitingJob, turns: Turns, first: Mapping[str, WaitingJob]) -> None:
        """It has no GPUs, and one of the places for such jobs is free."""
        hold = self.full(job, first)
        if hold is None:
            self.start(job)
            turns.take()
        else:
            self.held.setdefault(job.kind, {})[job.time_limit] = hold
            turns.put_aside(self.hold_longer(job, hold))

    def hold_without_gpus(self, job: WaitingJob, first: Mapping[str, WaitingJob]) -> None:
        """What it asks of cores and memory is not there, so it waits, whoever's turn it is; it keeps its place among those."""
        hold = self.full(job, first)
        assert hold is not None
        self.held[job.kind] = {job.time_limit: hold}

    def full(self, job: WaitingJob, first: Mapping[str, WaitingJob]) -> Hold | None:
        """What holds a job without GPUs, but for want of a place. ``first``: of each quota of jobs the first job with GPUs that wants a
        place there, which is kept for it from those that come later."""
        quota = self.pools(job)
        for level, pool in enumerate(quota):
            over = self.limits[pool] - self.used[pool] - 1
            ahead = first.get(pool)
            if ahead is not None and order(ahead) < order(job) and over <= 0:
                return Hold("quota", pool, job.priority, Reservation(pool, ahead.id, 1, None, 0, 0))
            if over < 0:
                return Hold("quota", pool, job.priority, self.reserve(job, pool, quota[: level + 1]))
            if (reservation := self.in_the_way(job, pool)) is not None:
                return Hold("reserved", pool, job.priority, reservation)
        if (reservation := self.in_the_way(job, JOBS)) is not None:
            return Hold("reserved", JOBS, job.priority, reservation, self.time_until(reservation))
        return self.no_supply(job, keep=True)

    def follow(self, job: WaitingJob) -> None:
        """The next one of its line that may start in order."""
        within = self.within.get(job.kind, math.inf)
        if job.kind in self.put_off_kinds:
            within = min(within, self.time_until(self.reserved[self.place(job)]))
        following = self.waiting.lines[job.kind].after(job, within) if within else None
        if following is not None:
            self.wait_in_order(following)

    def wait_in_order(self, job: WaitingJob) -> None:
        heappush(self.next, (self.ranks.place(job), job))

    def park(self, parked: _Parked, hold: Hold) -> None:
        """They may keep a place in these pools, once something else has started from them."""
        job = parked.job
        if len(parked.line.limits) == 1:
            return
        for pool in (*self.pools(job), self.place(job), *self.supplies):
            if pool not in self.reserved or (pool == HOST and job.devices):
                self.parked.setdefault(pool, []).append(parked)
            if pool == hold.pool:
                break  # they come no further either

    def look_at_longer(self, parked: _Parked, above: float) -> None:
        """The first of them that runs into reserved hours which the held job does not reach: it keeps its place among those that do."""
        job = parked.line.after(parked.job, parked.below, max(above, parked.above))
        if job is not None and job.id not in self.looked_at and not (job.kind in self.put_off_kinds and self.late(job)):
            self.looked_at[job.id] = parked
            self.wait_in_order(job)

    def look_at_parked(self, pool: str, furthest: Place) -> None:
        for parked in self.parked.pop(pool, ()):
            held = {parked.job.time_limit}
            for job in parked.line.behind(parked.job):
                if job.time_limit in held or not parked.above < longest(job) <= parked.below:
                    continue
                if job.kind in self.put_off_kinds and self.late(job):
                    continue
                if not self.passed(job, furthest):
                    if job.id not in self.looked_at:
                        self.looked_at[job.id] = parked
                        self.wait_in_order(job)
                    break
                held.add(job.time_limit)

    def passed(self, job: WaitingJob, place: Place) -> bool:
        """Whether its turn has come before ``place``, the furthest that anybody has come to."""
        return self.ranks.place(job) < place or any(self.ranks.place(job, rank) < until for rank, until in self.past.get(job.kind, ()))

    def count(self, job: WaitingJob | RunningJob, gpus: Collection[str], ends: float | None) -> None:
        """One more that runs."""
        for pool in self.pools(job):
            self.used[pool] += self.takes(gpus, pool, ends)
        if not gpus:
            self.used[JOBS] += 1
            self.used[f"{JOBS}/{job.user}"] += 1
        for pool in self.supplies:
            self.used[pool] += drawn(job, pool, self.state)

    def pools(self, job: WaitingJob | RunningJob) -> list[str]:
        """The limited quota pools that ``job`` draws on, nearest first."""
        key = job.user, job.groups, bool(job.gpus), bool(job.id)
        found = self.pools_of.get(key)
        if found is None:
            quotas = self.state.quotas
            limits = quotas.pools(job.user, job.groups, gpus=bool(job.gpus), job=bool(job.id))
            for pool, (name, limit) in quotas.of_classes(job.user, job.groups).items() if job.gpus else ():
                limits[pool] = limit
                self.sets[pool] = frozenset(self.state.classes.get(name, ()))
            for window in self.state.windows if job.gpus else ():
                if not window.has(job.user, job.groups):
                    limits[window.pool] = max(0, self.most_of[HOST] - window.gpus)
                    self.sets[window.pool] = self.whole
            self.limits |= limits
            found = self.pools_of[key] = list(limits)
        return found

    def pools_of_classes(self, usable: Iterable[str]) -> dict[str, str]:
        """The pool of each class that somebody waits for: classes of the same GPUs have one."""
        pools = {self.whole: HOST}
        found = {}
        for name in sorted({kind[4] for kind in self.waiting.lines if kind[4]}):
            gpus = frozenset(self.state.classes.get(name, ())).intersection(usable)
            found[name] = pools.setdefault(gpus, CLASS + name)
            self.sets[found[name]] = gpus
        return found

    def place(self, job: WaitingJob) -> str:
        """The pool that its GPUs come from."""
        return self.pool_of_class[job.gpu_class] if job.gpu_class else HOST

    def goal(self, job: WaitingJob) -> frozenset[str]:
        """The GPUs that it may have."""
        return job.devices or self.sets[self.place(job)]

    # -- may it start?

    def over_quota(self, job: WaitingJob, keep: bool) -> Hold | None:
        """What of its quotas holds ``job``. ``keep``: it makes reservations where it is the first to be held."""
        quota = self.pools(job)
        for level, pool in enumerate(quota):
            if (draws := self.draws(job, pool)) and self.used[pool] + draws > self.limits[pool]:
                if (window := self.windows.get(pool)) is not None:
                    kept = self.reserve(job, pool, quota[: level + 1]) if keep else None
                    return Hold("reserved", pool, job.priority, kept, self.time_to(window.starts))
                # Its own quota: it keeps its place among those who share that quota, and nobody else waits for it.
                return Hold("quota", pool, job.priority, self.reserve(job, pool, quota[: level + 1]) if keep else None)
            if (reservation := self.in_the_way(job, pool)) is not None:
                return Hold("reserved", pool, job.priority, reservation, self.time_until(reservation))
        return None

    def joins(self, job: WaitingJob) -> str:
        """The shared GPU that it may join now, empty for none: rather one that it keeps from nobody for longer. A slice that it may have is
        better than any."""
        room = [gpu for gpu in self.shared.room(job, self.goal(job)) if gpu not in self.promised_to and self.quotas_let(job, gpu)]
        if not room or (not self.state.slices.isdisjoint(self.of_goal(job)) and self.no_gpu(job, keep=False) is None):
            return ""
        free = [gpu for gpu in room if not self.delayed(job, gpu)]
        free = free or [gpu for gpu in room if all(kept.extra > 0 and not kept.devices for kept in self.delayed(job, gpu))]
        return self.shared.best(job, free) if free else ""

    def quotas_let(self, job: WaitingJob, gpu: str) -> bool:
        """Those that count certain GPUs. All others are looked at before."""
        for pool in self.pools(job):
            if gpu in self.sets.get(pool, ()) and self.reaches(job, pool):
                reservation = self.reserved.get(pool)
                if self.used[pool] >= self.limits[pool]:
                    return False
                if reservation is not None and reservation.extra < 1 and not self.in_time(job, reservation):
                    return False
        return True

    def delayed(self, job: WaitingJob, gpu: str) -> list[Reservation]:
        """The reservations that count on that shared GPU, and for which ``job`` would keep it too long."""
        until = self.shared.until(gpu)
        if job.time_limit and self.now + job.time_limit <= until < math.inf:
            return []  # another of its jobs stays longer
        counting = [self.reserved[pool] for pool in self.places if pool in self.reserved and gpu in self.sets[pool]]
        found = [kept for kept in counting if kept.at is None or until <= kept.at]
        found += [first for first, devices in self.kept_until.values() if gpu in devices]
        return [kept for kept in found if not self.in_time(job, kept)]

    def joins_within(self, job: WaitingJob) -> float:
        """One of its kind that may run for longer than this, seconds, joins no shared GPU either."""
        until = [self.shared.until(gpu) for gpu in self.shared.room(job, self.goal(job))]
        if not until:
            return 0.0
        kept = [*self.reserved.values(), *(first for first, _ in self.kept_until.values())]
        ends = (end - self.now + 2 * math.ulp(end) for end in until if end < math.inf)
        return max((*ends, *map(self.time_until, kept)), default=0.0)

    def no_room(self, job: WaitingJob, keep: bool) -> Hold | None:
        """What of the host's GPUs, cores and memory holds it."""
        hold = self.no_gpu(job, keep)
        if hold is not None and job.share:
            hold.within = max(hold.within, self.joins_within(job))
        return hold or self.no_supply(job, keep)

    def no_gpu(self, job: WaitingJob, keep: bool) -> Hold | None:
        place = self.place(job)
        if not self.enough(job, self.free):
            return Hold("resources", place, job.priority, self.reserve(job, place, self.pools(job)) if keep else self.reserved.get(place))
        for pool in self.places:
            if (reservation := self.in_the_way(job, pool)) is not None:
                return Hold("reserved", pool, job.priority, reservation, self.time_until(reservation))
        if not self.enough(job, self.allowed(job)):
            late = [first for first, _ in self.kept_until.values() if not self.in_time(job, first)]
            return Hold("reserved", HOST, job.priority, late[0], max(map(self.time_until, late)))
        if job.gpu_class or len(self.sets) > 1:
            return self.none_together(job)
        return None

    def no_supply(self, job: WaitingJob, keep: bool) -> Hold | None:
        """What of the host's cores and memory holds it."""
        for pool, draws in self.drawn(job).items():
            if self.used[pool] + draws > self.limits[pool]:
                return Hold("resources", pool, job.priority, self.reserve(job, pool, self.pools(job)) if keep else self.reserved.get(pool))
            if (reservation := self.in_the_way(job, pool)) is not None:
                return Hold("reserved", pool, job.priority, reservation, self.time_until(reservation))
        return None

    def lacks(self, job: WaitingJob) -> bool:
        """Whether the host has too few cores or too little memory left for it."""
        return any(self.used[pool] + draws > self.limits[pool] for pool, draws in self.drawn(job).items())

    def none_together(self, job: WaitingJob) -> Hold | None:
        """It may have GPUs of several sets, and what is left of each alone is enough, but not of all together."""
        bounds = self.bounds(job)
        if not bounds or len(self.within_bounds(job, bounds)) >= job.gpus:
            return None
        late = [self.reserved[pool] for pool in bounds if pool in self.reserved and not self.in_time(job, self.reserved[pool])]
        within = max(map(self.time_until, late), default=0.0)
        hours = [self.windows[pool] for pool in bounds if pool in self.windows]
        within = max([within, *(self.time_to(window.starts) for window in hours)])
        if any(pool in self.limits for pool in bounds):
            code = "reserved" if hours else "quota"
            return Hold(code, hours[0].pool if hours else self.place(job), job.priority, None, within)
        return Hold("reserved", late[0].pool, job.priority, late[0], within)

    def bounds(self, job: WaitingJob) -> dict[str, int]:
        """Of the pools of which only some of its goal is: what it may have of them, where that is less than it needs. Those of all of it
        are looked at before."""
        found = {}
        goal = self.goal(job)
        for pool in (*self.places, *self.pools(job)) if not job.devices else ():
            there = self.sets.get(pool)
            if there is None or goal <= there or not goal & there or not self.reaches(job, pool):
                continue
            if pool in self.limits:
                found[pool] = self.limits[pool] - self.used[pool]
            reservation = self.reserved.get(pool)
            if reservation is not None and not self.in_time(job, reservation):
                found[pool] = min(found.get(pool, reservation.extra), reservation.extra)
        return {pool: most for pool, most in found.items() if most < job.gpus}

    def within_bounds(self, job: WaitingJob, bounds: Mapping[str, int]) -> list[str]:
        """The GPUs that it may have together, first those that no bound counts."""
        left, found = dict(bounds), []
        for gpu in sorted(self.of_goal(job), key=lambda gpu: sum(gpu in self.sets[pool] for pool in bounds)):
            counted = [pool for pool in bounds if gpu in self.sets[pool]]
            if all(left[pool] > 0 for pool in counted):
                found.append(gpu)
                for pool in counted:
                    left[pool] -= 1
        return found

    def of_goal(self, job: WaitingJob) -> list[str]:
        """Those that it may have of the free ones; of a class with slices, in the order in which they are to be given."""
        goal, free = self.goal(job), self.allowed(job)
        if job.gpu_class and goal & self.state.slices:
            there = set(free)
            return [gpu for gpu in self.state.classes[job.gpu_class] if gpu in there]
        return [gpu for gpu in free if gpu in goal]

    def enough(self, job: WaitingJob, free: Sequence[str]) -> bool:
        if job.devices:
            return job.devices <= set(free)
        goal = self.goal(job)
        return job.gpus <= sum(1 for gpu in free if gpu in goal)

    def draws(self, job: WaitingJob, pool: str) -> int:
        """How much of ``pool`` the job takes. Where it may have GPUs that this counts and others (``bounds``): of a place what it cannot do
        without, of a quota nothing. A named MIG slice is none of the host's whole GPUs, but it counts in a quota."""
        if pool in self.supplies:
            return self.drawn(job).get(pool, 0)
        if pool == JOBS or counts_jobs(pool):
            return 1
        counted = self.sets.get(pool)
        if counted is None:
            return job.gpus
        if not self.reaches(job, pool):
            return 0
        if job.devices:
            return len(job.devices - self.state.slices) if pool == HOST else len(job.devices & counted)
        goal = self.goal(job)
        if pool == self.place(job):
            return job.gpus
        if not goal & counted:
            return 0
        if goal <= counted:
            return job.gpus
        if pool in self.limits:
            return 0
        return max(0, job.gpus - sum(1 for gpu in self.free if gpu in goal and gpu not in counted))

    def drawn(self, job: WaitingJob) -> dict[str, int]:
        """What it takes of cores and memory: only what is not nothing."""
        if not self.supplies:
            return {}
        found = self.drawn_by.get(job.kind)
        if found is None:
            each = {pool: drawn(job, pool, self.state) for pool in self.supplies}
            found = self.drawn_by[job.kind] = {pool: draws for pool, draws in each.items() if draws}
        return found

    def reaches(self, job: WaitingJob, pool: str) -> bool:
        """Whether it draws on the pool at all: from that of reserved hours only if it would run into them."""
        window = self.windows.get(pool)
        return window is None or window.is_reached(self.now + longest(job))

    def takes(self, gpus: Collection[str], pool: str, ends: float | None) -> int:
        """What a job that has these GPUs until ``ends`` has of ``pool``."""
        counted = self.sets.get(pool)
        window = self.windows.get(pool)
        if window is not None and not window.is_reached(None if ends is None else max(ends, math.nextafter(self.now, math.inf))):
            return 0
        return 1 if counts_jobs(pool) else len(gpus) if counted is None else len(counted.intersection(gpus))

    def in_time(self, job: WaitingJob, reservation: Reservation) -> bool:
        return bool(job.time_limit) and reservation.at is not None and self.now + job.time_limit <= reservation.at

    def time_until(self, reservation: Reservation) -> float:
        """A job that may run for longer than this is not ``in_time``; 0 where none is."""
        return 0.0 if reservation.at is None else self.time_to(reservation.at)

    def time_to(self, moment: float) -> float:
        """A job that may run for longer than this still runs then; 0 for one that is past."""
        return max(0.0, moment - self.now + 2 * math.ulp(max(abs(moment), abs(self.now)))) if moment > self.now else 0.0

    def in_the_way(self, job: WaitingJob, pool: str) -> Reservation | None:
        """The reservation in ``pool`` that ``job`` would delay."""
        reservation = self.reserved.get(pool)
        if reservation is None or not 0 < self.draws(job, pool) > reservation.extra or self.in_time(job, reservation):
            return None
        return reservation

    def allowed(self, job: WaitingJob) -> list[str]:
        """The free GPUs without those that somebody else insists on and would get too late."""
        taboo: set[str] = set()
        for first, devices in self.kept_until.values():
            if not self.in_time(job, first):
                taboo |= devices
        return [gpu for gpu in self.free if gpu not in taboo]

    def start(self, job: WaitingJob, shared: str = "") -> None:
        """``shared``: the GPU that it joins."""
        chosen: tuple[str, ...] = (shared,) if shared else ()
        if job.gpus and not shared:
            chosen = self.choose(job)
            self.free = [gpu for gpu in self.free if gpu not in chosen]
        self.occupy(job, chosen, self.now, shared)
        if job.share and chosen[0] in self.state.shareable:
            self.running[-1] = replace(self.running[-1], share=job.share)
            self.shared.add(self.running[-1])
        self.starts.append(StartJob(job.id, chosen))

    def choose(self, job: WaitingJob) -> tuple[str, ...]:
        """Which of the free ones it gets; there are enough."""
        free = self.of_goal(job)
        bounds = self.bounds(job) if len(self.sets) > 1 else {}
        if bounds:
            within = self.within_bounds(job, bounds)
            outside = [gpu for gpu in within if not any(gpu in self.sets[pool] for pool in bounds)]
            free = outside if len(outside) >= job.gpus else within[: job.gpus]
        if job.devices or self.goal(job) & self.state.slices:
            return tuple(free[: job.gpus])
        return self.pack(job.gpus, free)

    def occupy(self, job: WaitingJob, gpus: Collection[str], at: float, shared: str = "") -> None:
        """From ``at`` on, ``job`` has these. ``shared``: the one that it joins, which is taken only from those whom that delays."""
        furthest = max(self.furthest, self.ranks.place(job))
        ends = at + job.time_limit if job.time_limit else None
        delayed = self.delayed(job, shared) if shared else ()
        drawn = self.drawn(job)
        pools = [*self.pools(job), *(self.places if job.gpus else (JOBS,)), *drawn]
        for pool in pools:
            reservation = self.reserved.get(pool)
            if shared and pool in self.places and reservation not in delayed:
                continue
            if reservation is not None and not self.in_time(job, reservation):
                reservation.extra -= drawn[pool] if pool in drawn else 1 if pool == JOBS else self.takes(gpus, pool, ends)
        self.count(job, gpus, ends)
        if job.gpus and self.ranks.moving:
            self.note_ranks(job, furthest)
        for pool in pools:
            self.look_at_parked(pool, furthest)
        self.running.append(RunningJob(job.id, job.user, frozenset(gpus), job.groups, ends, at, cores=job.cores, memory=job.memory))

    def note_ranks(self, job: WaitingJob, place: Place) -> None:
        """Those who share a quota with ``job`` come later from now on: how far they had come is kept."""
        near = [line.first() for line in self.waiting.lines.values() if line.first().gpus]
        near = [one for one in near if one.user == job.user or not set(job.groups).isdisjoint(one.groups)]
        before = [self.ranks.rank(one) for one in near]
        self.ranks.started(job)
        for one, rank in zip(near, before, strict=True):
            if self.ranks.rank(one) != rank:
                self.past.setdefault(one.kind, []).append((rank, place))

    def take_back(self, job: WaitingJob) -> bool:
        """Promise ``job``, which stays within a guarantee, the GPUs that are free, those that are just coming free, and what others have
        borrowed. Nobody else gets them meanwhile. A guarantee is one of so many GPUs: who insists on certain ones, while as many others are
        free, ends nobody's job for them."""
        pool = self.ranks.guarantee(job) if self.ranks.guarantee_any else ""
        if not pool or any(self.in_the_way(job, place) is not None for place in self.places):
            return False
        goal = self.goal(job)
        if goal <= self.whole and sum(1 for gpu in self.free if gpu in self.whole) >= job.gpus:
            return False
        there = [gpu for gpu in self.allowed(job) if gpu in goal]
        stopping = sorted((other for other in self.running if other.stopping), key=lambda other: (other.ends or 0.0, other.id))
        there += [gpu for other in stopping for gpu in sorted(self.gpus_of(other) & goal)]
        taken: Sequence[RunningJob] = ()
        if len(there) < job.gpus:
            taken = self.from_borrowers(job, goal.difference(there), job.gpus - len(there))
            if not taken:
                return False
        if any(
            self.used[pool] + draws - self.freed(pool, (*stopping, *taken)) > self.limits[pool] for pool, draws in self.drawn(job).items()
        ):
            return False  # the GPUs alone would be of no use to it
        until = self.now + self.state.preemption.grace
        self.preempts += [PreemptJob(other.id, job.id) for other in taken]
        self.running = [replace(other, ends=until, stopping=True) if other in taken else other for other in self.running]
        there += [gpu for other in taken for gpu in sorted(other.gpus & goal)]
        self.promise(job, pool, frozenset(there[: job.gpus]))
        return True

    def freed(self, pool: str, ending: Iterable[RunningJob]) -> int:
        return sum(drawn(other, pool, self.state) for other in ending)

    def from_borrowers(self, job: WaitingJob, wanted: frozenset[str], short: int) -> Sequence[RunningJob]:
        """The jobs that give back ``short`` of the ``wanted`` GPUs, none where they cannot yet."""
        ready = self.now - self.state.preemption.after
        candidates = [other for other in borrowers(self.state.running, self.state.quotas) if not other.stopping]
        taken_already = {preempted.job for preempted in self.preempts}
        candidates = [other for other in candidates if other.id not in taken_already and not self.shared.has_neighbours(other)]
        taken = fewest((other for other in candidates if other.since <= ready), wanted, short)
        if not taken:
            soon = [other.since - ready for other in fewest(candidates, wanted, short) if other.since > ready]
            if soon:
                self.again = min(self.now + max(soon), self.again or math.inf)
        return taken

    def promise(self, job: WaitingJob, pool: str, gpus: frozenset[str]) -> None:
        """``gpus``, of which some are still held by jobs that are being ended, go to ``job``."""
        last = max((other for other in self.running if self.gpus_of(other) & gpus), key=lambda other: other.ends or 0.0, default=None)
        at = max(self.now, last.ends or 0.0) if last is not None else self.now
        self.promised[job.id] = Hold(
            "guarantee", pool, job.priority, Reservation(self.place(job), job.id, job.gpus, at, 0, last.id if last else 0)
        )
        self.promised_to |= dict.fromkeys(gpus, job.id)
        self.free = [gpu for gpu in self.free if gpu not in gpus]
        self.occupy(job, gpus, at)

    def gpus_of(self, job: RunningJob) -> frozenset[str]:
        """Those that are free with its end: neither promised to another, nor shared with one that ends later."""
        gpus = job.gpus
        if self.promised_to:
            gpus = frozenset(gpu for gpu in gpus if self.promised_to.get(gpu, job.id) == job.id)
        return frozenset(gpu for gpu in gpus if self.shared.frees(job, gpu)) if job.share else gpus

    def pack(self, count: int, whole: Sequence[str]) -> tuple[str, ...]:
        links = self.state.links
        distance = (lambda _, one, other: links.get((whole[one], whole[other]), FARTHEST)) if links else None
        place = choose((Node((WHOLE,) * len(whole)),), Task(count), distance=distance)
        return tuple(whole[gpu] for gpu in place.gpus) if place else ()

    # -- keeping a place

    def reserve(self, job: WaitingJob, short: str, quota: Sequence[str]) -> Reservation | None:
        """Keep ``job``'s place in the pool that is ``short`` and, so that its place is not lost elsewhere meanwhile, in its quotas up to
        there. Gives the reservation that stands: an earlier job's stays as it is. None where ``job`` could not start even if everything
        ended (a quota was lowered, a GPU is in use outside): nothing is kept idle for it."""
        if short in self.reserved and not (short in self.places and job.devices):
            stands = self.reserved[short]
            return stands if self.draws(job, short) <= self.most(short) else None
        place, drawn = self.place(job) if job.gpus else JOBS, self.drawn(job)
        # What it has of one of these is of no use to it before it has the others. Who shares a GPU may need no free one.
        together = (place, *drawn) if short == place or (short in drawn and not job.share) else (*drawn,) if short in drawn else (short,)
        rows = [
            (job.gpus if pool in self.places else self.draws(job, pool), self.left(pool, job), self.ends(pool, job)) for pool in together
        ]
        if any(free + sum(count for _, count, _ in ends) < need for need, free, ends in rows):
            return None
        moments = [moment(free, need, ends, self.now) for need, free, ends in rows]
        at, after = max(moments, key=lambda found: math.inf if found[0] is None else found[0])
        if place in together and at is not None and self.windows:
            at = self.after_hours(job, at)
        for pool, (need, free, ends) in zip(together, rows, strict=True):
            wanted = job.devices if pool in self.places else frozenset()
            kept = Reservation(pool, job.id, need, at, left_over(free, need, ends, at, self.now), after, wanted)
            if pool == short:
                main = kept
            if not wanted:
                self.reserved.setdefault(pool, kept)
            elif wanted not in self.kept:  # else the same GPUs are kept, until the same moment
                self.kept[wanted] = kept
                self.kept_until.setdefault(at, (kept, set()))[1].update(wanted)
        for pool in quota:
            if pool in self.reserved:
                continue
            if not (draws := self.draws(job, pool)):
                continue
            over = self.limits[pool] - self.used[pool] - draws
            if at is not None:
                over += sum(count for ends, count, _ in self.releases(pool) if ends is not None and ends <= at)
            self.reserved[pool] = Reservation(pool, job.id, draws, at, max(0, over), after)
        return main

    def left(self, pool: str, job: WaitingJob) -> int:
        """How much of the pool is free; of GPUs, of those that ``job`` could have."""
        if pool in self.places:
            goal = self.goal(job)
            return sum(1 for gpu in self.free if gpu in goal)
        return (self.state.cpu_jobs if pool == JOBS else self.limits[pool]) - self.used[pool]

    def ends(self, pool: str, job: WaitingJob) -> Releases:
        """How much of the same is free when what runs has ended."""
        if pool not in self.places:
            return self.releases(pool)
        goal = self.goal(job)
        there = ((other, len(self.gpus_of(other) & goal)) for other in self.running)
        return [(other.ends, count, other.id) for other, count in there if count]

    def most(self, pool: str) -> int:
        """What a job could have of the pool if all others ended."""
        return self.most_of[pool] if pool in self.most_of else self.limits[pool]

    def releases(self, pool: str) -> Releases:
        if pool in self.supplies:
            found = ((job.ends, drawn(job, pool, self.state), job.id) for job in self.running)
            return [row for row in found if row[1]]
        if pool == JOBS:
            return [(job.ends, 1, job.id) for job in self.running if not job.gpus]
        return [(job.ends, self.takes(job.gpus, pool, job.ends), job.id) for job in self.running if pool in self.pools(job)]

    def after_hours(self, job: WaitingJob, at: float) -> float:
        """``at``, or the end of reserved hours into which it would run from then on, and for which too little would be left."""
        for pool in self.pools(job):
            window = self.windows.get(pool)
            if window is None or at >= window.ends or not window.is_reached(at + longest(job)) or not self.goal(job) <= self.whole:
                continue
            if self.used[pool] + job.gpus > self.limits[pool]:
                at = window.ends
        return at
