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

5. **Guarantees.** A job that stays within a guarantee, of GPUs or of those of a class, comes before all that would borrow. Where too few
   GPUs are free for it, jobs that borrowed give theirs back: the youngest, as few as possible, after a while (``borrowing``).

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
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain, count

from dockless.base.dataclass import dataclass, replace
from dockless.sched.policy.borrowing import borrowers, fewest
from dockless.sched.policy.decision import Decision
from dockless.sched.policy.lined_up import LinedUp, Turn
from dockless.sched.policy.quotas import counts_jobs
from dockless.sched.policy.ranks import IN_ORDER, Place, Ranks
from dockless.sched.policy.reservations import Hold, Reservation
from dockless.sched.policy.room import Room
from dockless.sched.policy.state import HOST, JOBS, PreemptJob, QueueState, RunningJob, StartJob
from dockless.sched.policy.turns import Turns
from dockless.sched.policy.waiting import Kind, Line, WaitingJob, longest, order, patience


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


class _Pass(Room):
    """One walk down the queue.

    In a pass things only get scarcer, so a job that is held stays held, and with it all later ones of its kind but those that end soon
    enough not to be in the way (``Hold.within``). Of each kind, only the first job and then what may still start is looked at. One thing
    more a job that is held can do: keep a place in a pool where nobody has one. The later ones of its kind come to that only after another
    start from that pool, and are looked at then (``parked``).

    A job that could start, but would still run when the first of the queue gets its GPUs, is *put off*, and with it all later ones of its
    kind that would: until those of its rank that end in time have started. Then they start by patience, and keep no places.
    """

    def __init__(self, state: QueueState, now: float) -> None:
        super().__init__(state, now)
        self.least_share = min(filter(None, (kind.share for kind in self.waiting.lines)), default=0) if state.shareable else 0
        self.held: dict[Kind, dict[float, Hold]] = {}
        self.within: dict[Kind, float] = {}
        self.parked: dict[str, list[tuple[float, int, _Parked | WaitingJob]]] = defaultdict(list)
        self.rested: list[tuple[WaitingJob, str]] = []
        self.numbers = count()
        self.resting: dict[Kind, int] = {}
        self.starts: list[StartJob] = []
        self.ranks = Ranks(state)
        self.preempts: list[PreemptJob] = []
        self.promised: dict[int, Hold] = {}
        self.have_borrowed: Sequence[RunningJob] | None = None
        self.coming: dict[str, int] = {}
        self.again: float | None = None
        self.closed: int | None = None
        self.next = LinedUp()
        self.lined_up = False
        self.looked_at: dict[int, _Parked] = {}
        self.put_off_kinds: set[Kind] = set()
        self.furthest: Place = False, -sys.maxsize, (), IN_ORDER, 0
        heads = [line.first() for line in self.waiting.looked_at()]
        self.with_gpus = [job for job in heads if job.gpus]
        self.without = [job for job in heads if not job.gpus]
        self.one_queue = bool(self.supplies) and any(map(self.drawn, heads))

    def run(self) -> Decision:
        aside = [job for job in self.without if self.one_queue and self.lacks(job)]
        aside.sort(key=order, reverse=True)
        kinds = {job.kind for job in aside}
        lines = [self.waiting.lines[job.kind] for job in self.without if job.kind not in kinds]
        turns = Turns(lines, lambda user: self.used[f"{JOBS}/{user}"])
        first = self.first_of_each_pool()
        while True:
            turn = turns.next() if self.used[JOBS] < self.state.cpu_jobs else None
            heads = [job for job in (aside[-1] if aside else None, turn) if job is not None]
            job = min(heads, key=self.ranks.place) if len(heads) > 1 else heads[0] if heads else None
            if (not heads or self.one_queue) and self.look_at_next(job):
                continue
            if job is None:
                break
            if job is turn:
                self.look_in_turn(job, turns, first)
            else:
                self.hold_without_gpus(aside.pop(), first)
        for job in turns:
            self.held.setdefault(job.kind, {})[job.time_limit] = Hold("jobs", JOBS, job.priority)
        return self.decision()

    def look_at_next(self, other: WaitingJob | None) -> bool:
        """Look at the first of those with GPUs, unless ``other`` comes before it; whether there was one."""
        if not self.lined_up:
            self.lined_up, self.next = True, LinedUp(map(self.line_up, self.with_gpus))
        while self.next:
            was, job, _ = self.next.first()
            place = self.ranks.place(job, turn=was[3]) if self.ranks.moving else was
            if place == was:
                break
            self.next.put_back(place)  # something that started has made it later
        before = None if other is None else self.ranks.place(other)
        if not self.next or (before is not None and before < place):
            if before is not None and self.one_queue:
                self.furthest = max(self.furthest, before)
            return False
        pool = self.next.take()[2]
        if pool in self.reserved:
            others = self.next.disband(pool)
            for one in others if pool in self.windows else ():
                self.next.add(self.ranks.place(one), one)
        if self.nothing_left(place):
            self.next.clear()
            return True
        if self.closed is not None and not job.share:
            return True
        self.furthest = max(self.furthest, place)
        short = self.short_of(job, borrows=place[0])
        if was[3] != IN_ORDER:
            if not short or short in self.windows:
                self.look_again(job)
        elif short in self.reserved:
            self.resting.setdefault(job.kind, job.priority)
            if len((line := self.waiting.lines[job.kind]).limits) > 1:
                self.park(_Parked(line, job, 0.0, math.inf), short)
        elif job.kind in self.put_off_kinds and self.late(job):
            self.looked_at.pop(job.id, None)
        else:
            self.look(job)
        if self.closed is None and not self.ranks.guarantee_any and self.no_gpu_left(place):
            self.closed = job.priority
        return True

    def line_up(self, job: WaitingJob) -> Turn:
        """The first of its kind. Where too little of a pool is left, it and all of its kind are held, and need be looked at only as long as
        nobody has a place there, and when there is too little of a pool that is asked before."""
        place = self.ranks.place(job)
        pool = self.short_of(job, borrows=place[0])
        if pool and pool not in self.windows:
            self.resting[job.kind] = job.priority
            self.rested.append((job, pool))
        return place, job, pool

    def short_of(self, job: WaitingJob, *, borrows: bool) -> str:
        """The first pool of which too little is left for any job of its kind, empty where that does not hold it."""
        pool = self.short(job)
        if not pool or not self.ranks.guarantee_any or borrows or not (pool in self.places or pool in self.supplies):
            return pool
        place = self.place(job)
        coming = self.coming_back(place)  # it may get what others have borrowed
        return "" if coming and job.gpus <= self.free_of[place] + coming else pool

    def coming_back(self, place: str) -> int:
        """How many of these GPUs at most are promised to nobody, and given back by jobs that are being ended or may be."""
        if not self.coming:
            candidates = {other.id for other in self.borrowed()}
            gpus = (self.gpus_of(other) if other.stopping else other.gpus if other.id in candidates else () for other in self.running)
            there = frozenset[str]().union(*gpus)
            self.coming = {pool: len(there & self.sets[pool]) for pool in self.places}
        return self.coming[place]

    def decision(self) -> Decision:
        return Decision(
            starts=self.starts,
            preempts=self.preempts,
            again=min((moment for moment in (self.again, *(window.ends for window in self.state.windows)) if moment), default=None),
            now=self.now,
            reservations=[*self.reserved.values(), *self.kept.values()],
            _room=self,
            _held=self.held,
            _resting=self.resting,
            _promised=self.promised,
            one_queue=self.one_queue,
            _closed=self.closed,
        )

    def nothing_left(self, place: Place) -> bool:
        """Neither GPUs nor parts of any."""
        return self.no_gpu_left(place) and not (self.least_share and self.shared.has_left(self.least_share))

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
            above = self.hold_longer(job, hold) if parked is None else 0.0
            if parked is None and len(line.limits) > 1:  # else all of the line are held, too
                parked = _Parked(line, job, above, within)
                self.follow(job)
                for pool in self.windows:
                    if pool in self.pools(job) and not self.reaches(job, pool):
                        self.look_at_longer(parked, self.time_to(self.windows[pool].starts))
            if parked is not None:
                self.park(parked, hold.pool)
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
        borrows = not self.ranks.guarantee_any or self.ranks.rank(job)[0]
        late = [] if borrows or hold is not None else self.all_in_the_way(job)
        if hold is None and not borrows and not late and not self.enough(job, self.free) and self.take_back(job):
            return None
        if hold is None and (hold := self.no_room(job, keep=not put_off)) and not borrows:
            if hold.reservation is not None and hold.reservation.job == job.id:
                late = self.all_in_the_way(job)
            hold.within = max([hold.within, *map(self.time_until, late)])  # who ends by then may get what others have borrowed
        if hold is None:
            if put_off or not self.late(job) or not borrows:
                self.start(job)
            else:
                self.put_off(job)
        return hold

    def all_in_the_way(self, job: WaitingJob) -> list[Reservation]:
        """The reservations of GPUs that it would delay."""
        return [kept for pool in self.places if (kept := self.in_the_way(job, pool)) is not None]

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
            self.next.add(self.ranks.place(job, turn=-patience(job, self.now)), job)

    def first_of_each_pool(self) -> Mapping[str, WaitingJob]:
        """Of the quotas of jobs, the first job with GPUs that wants places there and can ever have them."""
        first: dict[str, WaitingJob] = {}
        if self.state.quotas.limit_jobs:
            for head in sorted(self.with_gpus, key=order):
                for pool in self.pools(head):
                    if counts_jobs(pool) and head.width <= self.limits[pool]:
                        first.setdefault(pool, head)
        return first

    def look_in_turn(self, job: WaitingJob, turns: Turns, first: Mapping[str, WaitingJob]) -> None:
        """It has no GPUs, and at least one of the places for such jobs is free."""
        short = self.short(job)
        if short in self.reserved:
            self.resting.setdefault(job.kind, job.priority)
            turns.put_aside(0.0)
            return
        hold = self.full(job, first) or self.no_place(job)
        if hold is None:
            self.start(job)
            turns.take()
        else:
            self.held.setdefault(job.kind, {})[job.time_limit] = hold
            turns.put_aside(self.hold_longer(job, hold))

    def hold_without_gpus(self, job: WaitingJob, first: Mapping[str, WaitingJob]) -> None:
        """What it asks of cores and memory is not there, so it waits, whoever's turn it is; it keeps its place among those."""
        if self.short(job) in self.reserved:
            self.resting.setdefault(job.kind, job.priority)
            return
        hold = self.full(job, first)
        assert hold is not None
        self.held[job.kind] = {job.time_limit: hold}

    def follow(self, job: WaitingJob) -> None:
        """The next one of its line that may start in order."""
        within = self.within.get(job.kind, math.inf)
        if job.kind in self.put_off_kinds:
            within = min(within, self.time_until(self.reserved[self.place(job)]))
        following = self.waiting.lines[job.kind].after(job, within) if within else None
        if following is not None:
            self.wait_in_order(following)

    def wait_in_order(self, job: WaitingJob) -> None:
        self.next.add(self.ranks.place(job), job)

    def park(self, parked: _Parked, short: str) -> None:
        """They may keep a place in the pools that are asked before ``short``, and in that, once something else has started from them."""
        job = parked.job
        if len(parked.line.limits) == 1:
            return
        for pool in (*self.pools(job), self.place(job), *self.drawn(job)):
            draws = self.draws_at_most(job, pool)  # 0 of a pool that counts some of the GPUs that it may have
            if pool not in self.reserved or (pool == HOST and job.devices):
                least = math.inf if job.devices else draws or math.inf
                heappush(self.parked[pool], (-least, next(self.numbers), parked))
            if pool == short and draws:
                break  # they come no further either

    def park_rested(self) -> None:
        """The same of those that had not been looked at; put off until something starts."""
        for job, short in self.rested:
            for pool, needs in self.asked(job):
                if pool == short:
                    break
                if pool not in self.reserved:
                    heappush(self.parked[pool], (-needs, next(self.numbers), job))
        self.rested.clear()

    def look_at_longer(self, parked: _Parked, above: float) -> None:
        """The first of them that runs into reserved hours which the held job does not reach: it keeps its place among those that do."""
        job = parked.line.after(parked.job, parked.below, max(above, parked.above))
        if job is not None and job.id not in self.looked_at and not (job.kind in self.put_off_kinds and self.late(job)):
            self.looked_at[job.id] = parked
            self.wait_in_order(job)

    def look_at_parked(self, pool: str, furthest: Place) -> None:
        """Those for which too little is left of it now."""
        if self.rested:
            self.park_rested()
        if pool not in self.parked:
            return
        waiting, left, found = self.parked[pool], self.free_of[pool], []
        while waiting and -waiting[0][0] > left:
            found.append(heappop(waiting)[-1])
        for one in found:
            if isinstance(one, WaitingJob):
                parked = _Parked(self.waiting.lines[one.kind], one, 0.0, math.inf)
                held, jobs = set[float](), chain((one,), parked.line.behind(one))
            else:
                parked, held, jobs = one, {one.job.time_limit}, chain(one.line.behind(one.job))
            for job in jobs:
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
        return self.ranks.place(job) < place or self.ranks.came_before(job)

    def start(self, job: WaitingJob, shared: str = "") -> None:
        """``shared``: the GPU that it joins."""
        chosen: tuple[str, ...] = (shared,) if shared else ()
        if job.gpus and not shared:
            chosen = self.choose(job)
            self.leave_free([gpu for gpu in self.free if gpu not in chosen])
        self.occupy(job, chosen, self.now, shared)
        if job.share and chosen[0] in self.state.shareable:
            self.running[-1] = replace(self.running[-1], share=job.share)
            self.shared.add(self.running[-1])
        self.starts.append(StartJob(job.id, chosen))

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
                reservation.extra -= drawn[pool] if pool in drawn else job.width if pool == JOBS else self.takes(job, gpus, pool, ends)
        self.count(job, gpus, ends)
        if job.gpus and self.ranks.moving:
            self.ranks.started(job, gpus, furthest)
        for pool in pools:
            self.look_at_parked(pool, furthest)
        self.running.append(
            RunningJob(job.id, job.user, frozenset(gpus), job.groups, ends, at, cores=job.cores, memory=job.memory, width=job.width)
        )

    def take_back(self, job: WaitingJob) -> bool:
        """Promise ``job``, which stays within a guarantee and delays no reservation, the GPUs that are free, those that are just coming
        free, and what others have borrowed. Nobody else gets them meanwhile. A guarantee is one of so many GPUs, of a class or any: who
        insists on certain ones, while as many others are free, ends nobody's job for them."""
        pools = self.ranks.guarantees(job).items()
        pool = next((pool for pool, of in pools if not self.others_free(job, self.ranks.sets[of] if of else self.whole)), "")
        if not pool:
            return False
        goal = self.goal(job)
        there = [gpu for gpu in self.allowed(job) if gpu in goal]
        stopping = sorted((other for other in self.running if other.stopping), key=lambda other: (other.ends or 0.0, other.id))
        there += [gpu for other in stopping for gpu in sorted(self.gpus_of(other) & goal)]
        taken: Sequence[RunningJob] = ()
        if len(there) < job.gpus:
            taken = self.from_borrowers(pool, goal.difference(there), job.gpus - len(there))
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

    def others_free(self, job: WaitingJob, guaranteed: frozenset[str]) -> bool:
        """Whether as many GPUs as it needs are free of those that are ``guaranteed``; of all but slices."""
        return self.goal(job) <= guaranteed and sum(1 for gpu in self.free if gpu in guaranteed) >= job.gpus

    def from_borrowers(self, pool: str, wanted: frozenset[str], short: int) -> Sequence[RunningJob]:
        """The jobs that give back ``short`` of the ``wanted`` GPUs, none where they cannot yet. None is taken that uses up this guarantee
        itself: what it has of a class beside other GPUs."""
        ready = self.now - self.state.preemption.after
        candidates = [other for other in self.borrowed() if not self.ranks.counts(other, pool)]
        taken = fewest((other for other in candidates if other.since <= ready), wanted, short)
        if not taken:
            soon = [other.since - ready for other in fewest(candidates, wanted, short) if other.since > ready]
            if soon:
                self.again = min(self.now + max(soon), self.again or math.inf)
        return taken

    def borrowed(self) -> list[RunningJob]:
        """The jobs that may have to give back what they have, the youngest first."""
        if self.have_borrowed is None:
            found = borrowers(self.state.running, self.state.quotas, self.ranks.sets)
            self.have_borrowed = [other for other in found if not other.stopping]
        taken_already = {preempted.job for preempted in self.preempts}
        return [other for other in self.have_borrowed if other.id not in taken_already and not self.shared.has_neighbours(other)]

    def promise(self, job: WaitingJob, pool: str, gpus: frozenset[str]) -> None:
        """``gpus``, of which some are still held by jobs that are being ended, go to ``job``."""
        last = max((other for other in self.running if self.gpus_of(other) & gpus), key=lambda other: other.ends or 0.0, default=None)
        at = max(self.now, last.ends or 0.0) if last is not None else self.now
        self.promised[job.id] = Hold(
            "guarantee", pool, job.priority, Reservation(self.place(job), job.id, job.gpus, at, 0, last.id if last else 0)
        )
        self.promised_to |= dict.fromkeys(gpus, job.id)
        self.coming = {}
        self.leave_free([gpu for gpu in self.free if gpu not in gpus])
        self.occupy(job, gpus, at)
