"""May a job start? What holds it, and the places that are kept for those who are held."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dockless.sandbox.gpus.topology import FARTHEST
from dockless.sched.policy.packing import WHOLE, Node, Task, choose
from dockless.sched.policy.pools import Pools
from dockless.sched.policy.reservations import Hold, Reservation, left_over, moment
from dockless.sched.policy.state import HOST, JOBS, QueueState
from dockless.sched.policy.waiting import WaitingJob, longest, order


class Room(Pools):
    """``reserved``: the reservation in each pool, of the first that was held there. ``guaranteed``: the GPUs of each class of which
    somebody has a guarantee: who may have others gets those."""

    def __init__(self, state: QueueState, now: float) -> None:
        super().__init__(state, now)
        self.guaranteed = [frozenset(state.classes.get(name, ())) for name in state.quotas.guaranteed_classes]
        self.reserved: dict[str, Reservation] = {}
        self.kept: dict[frozenset[str], Reservation] = {}  # for jobs that insist on certain GPUs
        self.kept_until: dict[float | None, tuple[Reservation, set[str]]] = {}  # the first of them for each moment, and all GPUs

    def hold(self, job: WaitingJob) -> Hold | None:
        """What holds a job, as things are; nothing is kept for it."""
        if not job.gpus:
            return self.full(job, {}, keep=False)
        return self.over_quota(job, keep=False) or self.no_room(job, keep=False)

    def over_quota(self, job: WaitingJob, keep: bool) -> Hold | None:
        """What of its quotas holds ``job``. ``keep``: it makes reservations where it is the first to be held."""
        for level in range(len(self.pools(job))):
            if (hold := self.over_one(job, level, keep)) is not None:
                return hold
        return None

    def over_one(self, job: WaitingJob, level: int, keep: bool) -> Hold | None:
        """Whether the one at that place of its quotas does, or what others may have beside reserved hours."""
        quota = self.pools(job)
        pool = quota[level]
        if (draws := self.draws(job, pool)) and self.used[pool] + draws > self.limits[pool]:
            kept = self.reserve(job, pool, quota[: level + 1]) if keep else self.reserved.get(pool)
            if (window := self.windows.get(pool)) is not None:
                return Hold("reserved", pool, job.priority, kept, self.time_to(window.starts))
            # Its own quota: it keeps its place among those who share that quota, and nobody else waits for it.
            return Hold("quota", pool, job.priority, kept)
        if (reservation := self.in_the_way(job, pool)) is not None:
            return Hold("reserved", pool, job.priority, reservation, self.time_until(reservation))
        return None

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

    def full(self, job: WaitingJob, first: Mapping[str, WaitingJob], keep: bool = True) -> Hold | None:
        """What holds a job without GPUs, but for want of places. ``first``: of each quota of jobs the first job with GPUs that wants
        places there, which are kept for it from those that come later."""
        for level, pool in enumerate(self.pools(job)):
            ahead = first.get(pool)
            if ahead is not None and order(ahead) < order(job) and self.limits[pool] - self.used[pool] - job.width < ahead.width:
                return Hold("quota", pool, job.priority, Reservation(pool, ahead.id, ahead.width, None, 0, 0))
            if (hold := self.over_one(job, level, keep)) is not None:
                return hold
        if (reservation := self.in_the_way(job, JOBS)) is not None:
            return Hold("reserved", JOBS, job.priority, reservation, self.time_until(reservation))
        return self.no_supply(job, keep)

    def no_place(self, job: WaitingJob) -> Hold | None:
        """Whether too few of the host's places for jobs without GPUs are left for it: those that are stay free for it."""
        if self.used[JOBS] + job.width <= self.state.cpu_jobs:
            return None
        return Hold("jobs", JOBS, job.priority, self.reserve(job, JOBS, self.pools(job)))

    def short(self, job: WaitingJob) -> str:
        """The first pool of which too little is left for any job of its kind, empty where there is none. Of reserved hours only those where
        nobody has a place yet: who ends before is not held by them."""
        for pool, needs in self.asked(job):
            if needs > self.free_of[pool] and not (pool in self.windows and pool in self.reserved):
                return pool
        return ""

    def lacks(self, job: WaitingJob) -> bool:
        """Whether the host has too few cores or too little memory left for it."""
        return any(self.used[pool] + draws > self.limits[pool] for pool, draws in self.drawn(job).items())

    def in_the_way(self, job: WaitingJob, pool: str) -> Reservation | None:
        """The reservation in ``pool`` that ``job`` would delay."""
        reservation = self.reserved.get(pool)
        if reservation is None or not 0 < self.draws(job, pool) > reservation.extra or self.in_time(job, reservation):
            return None
        return reservation

    def enough(self, job: WaitingJob, free: Sequence[str]) -> bool:
        if job.devices:
            return job.devices <= set(free)
        if free is self.free:
            return job.gpus <= self.free_of[self.place(job)]
        goal = self.goal(job)
        return job.gpus <= sum(1 for gpu in free if gpu in goal)

    def allowed(self, job: WaitingJob) -> list[str]:
        """The free GPUs without those that somebody else insists on and would get too late."""
        if not self.kept_until:
            return self.free
        taboo: set[str] = set()
        for first, devices in self.kept_until.values():
            if not self.in_time(job, first):
                taboo |= devices
        return [gpu for gpu in self.free if gpu not in taboo]

    def of_goal(self, job: WaitingJob) -> list[str]:
        """Those that it may have of the free ones; of a class with slices, in the order in which they are to be given."""
        goal, free = self.goal(job), self.allowed(job)
        if job.gpu_class and goal & self.state.slices:
            there = set(free)
            return [gpu for gpu in self.state.classes[job.gpu_class] if gpu in there]
        return [gpu for gpu in free if gpu in goal]

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

    def none_together(self, job: WaitingJob) -> Hold | None:
        """It may have GPUs of several sets, and what is left of each alone is enough, but not of all together."""
        bounds = self.bounds(job)
        if not bounds or len(self.within_bounds(job, bounds)) >= job.gpus:
            return None
        late = [self.reserved[pool] for pool in bounds if pool in self.reserved and not self.in_time(job, self.reserved[pool])]
        within = max(map(self.time_until, late), default=0.0)
        hours = [pool for pool in bounds if pool in self.windows]
        within = max([within, *(self.time_to(self.windows[pool].starts) for pool in hours)])
        if any(pool in self.limits for pool in bounds):
            code = "reserved" if hours else "quota"
            return Hold(code, hours[0] if hours else self.place(job), job.priority, None, within)
        return Hold("reserved", late[0].pool, job.priority, late[0], within)

    def joins(self, job: WaitingJob) -> str:
        """The shared GPU that it may join now, empty for none: rather one that it keeps from nobody for longer. A slice that it may have is
        better than any."""
        room = [gpu for gpu in self.shared.room(job, self.goal(job)) if gpu not in self.promised_to and self.quotas_let(job, gpu)]
        if not room or (not self.state.slices.isdisjoint(self.of_goal(job)) and self.no_gpu(job, keep=False) is None):
            return ""
        free = [gpu for gpu in room if not self.delayed(job, gpu)]
        free = free or [gpu for gpu in room if all(kept.extra > 0 for kept in self.delayed(job, gpu))]
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

    def choose(self, job: WaitingJob) -> tuple[str, ...]:
        """Which of the free ones it gets; there are enough."""
        free = self.of_goal(job)
        bounds = self.bounds(job) if len(self.sets) > 1 else {}
        if bounds:
            within = self.within_bounds(job, bounds)
            of_no_pool = [gpu for gpu in within if not any(gpu in self.sets[pool] for pool in bounds)]
            free = of_no_pool if len(of_no_pool) >= job.gpus else within[: job.gpus]
        goal = self.goal(job)
        if job.devices or goal & self.state.slices:
            return tuple(free[: job.gpus])
        others = [gpus for gpus in self.guaranteed if not goal <= gpus]
        spare = [gpu for gpu in free if not any(gpu in gpus for gpus in others)] if others else free
        free = spare if len(spare) >= job.gpus else free
        return self.pack(job.gpus, self.with_cores(job, free) if job.cores and self.state.nodes else free)

    def with_cores(self, job: WaitingJob, free: Sequence[str]) -> Sequence[str]:
        """First those of the nodes that have as many cores left as it asks for, which is what decides among sets that are packed alike."""
        crowded: set[str] = set()
        for node in self.state.nodes:
            given = sum(other.cores * len(node.gpus & other.gpus) / len(other.gpus) for other in self.running if other.gpus and other.cores)
            if node.cores - given < job.cores:
                crowded |= node.gpus
        return sorted(free, key=crowded.__contains__)

    def pack(self, count: int, whole: Sequence[str]) -> tuple[str, ...]:
        links = self.state.links
        distance = (lambda _, one, other: links.get((whole[one], whole[other]), FARTHEST)) if links else None
        place = choose((Node((WHOLE,) * len(whole)),), Task(count), distance=distance)
        return tuple(whole[gpu] for gpu in place.gpus) if place else ()

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
        if short not in quota and at is not None and self.windows:
            at = self.after_hours(job, at)
        for pool, (need, free, ends) in zip(together, rows, strict=True):
            wanted = job.devices if pool in self.places else frozenset()
            kept = Reservation(pool, job.id, need, at, left_over(free, need, ends, at, self.now), after, wanted, job.user, job.gpus)
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

    def after_hours(self, job: WaitingJob, at: float) -> float:
        """``at``, or the end of reserved hours into which it would run from then on, and for which too little would be left."""
        hours = [(self.windows[pool], pool) for pool in self.pools(job) if pool in self.windows]
        for window, pool in sorted(hours, key=lambda row: row[0].starts):
            if at >= window.ends or not window.is_reached(at + longest(job)):
                continue
            if pool in self.sets and not self.goal(job) <= self.whole:
                continue  # it may have others
            if self.used[pool] + self.draws_at_most(job, pool) > self.limits[pool]:
                at = window.ends
        return at
