"""What there is of everything countable, what is used, and what each job takes of it, as the starts of a pass change it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable

from dockless.sched.policy.quotas import counts_jobs
from dockless.sched.policy.reservations import Releases, Reservation
from dockless.sched.policy.sharing import SharedGpus
from dockless.sched.policy.state import CLASS, HOST, JOBS, QueueState, RunningJob, Window, drawn
from dockless.sched.policy.waiting import WaitingJob, WaitingList, longest


class Pools:
    """``used`` counts what is taken of each pool, ``limits`` what there is; ``free`` are the GPUs nobody has."""

    def __init__(self, state: QueueState, now: float) -> None:
        self.state = state
        self.now = now
        self.waiting = state.waiting if isinstance(state.waiting, WaitingList) else WaitingList(state.waiting)
        held = frozenset().union(*(job.gpus for job in state.running)) if state.running else frozenset()
        usable = [gpu for gpu in state.gpus if gpu not in state.unusable]
        self.whole = frozenset(usable) - state.slices
        free = [gpu for gpu in usable if gpu not in held]
        self.shared = SharedGpus(state, self.waiting)
        self.running = list(state.running)
        self.promised_to: dict[str, int] = {}
        self.used: dict[str, int] = defaultdict(int)
        self.limits: dict[str, int] = {}
        self.sets: dict[str, frozenset[str]] = {HOST: self.whole}  # the GPUs that a pool counts, where it counts certain ones
        self.pool_of_class = self.pools_of_classes(usable)
        self.places = list(self.sets)  # the host and its classes: where a job that needs GPUs keeps its place
        self.free_of: dict[str, int] = {}  # of what somebody asks for, how much nobody has
        self.leave_free(free)
        there = held.union(free)
        self.most_of = {pool: sum(1 for gpu in there if gpu in self.sets[pool]) for pool in self.places}
        self.windows = {pool: window for window in state.windows for pool in window.pools}
        self.pools_of: dict[tuple[str, tuple[str, ...], bool, bool], list[str]] = {}
        self.supplies = state.supplies
        self.supply_of = {pool: pool for pool in state.supplies}  # and of the pools that are a part of one
        for pool, supply in self.supplies.items():
            self.limits[pool] = self.free_of[pool] = supply.common(len(state.gpus) - len(state.slices))
        hours = [(window.users, window.pools) for window in state.windows]
        host = tuple(state.supplies.items()), tuple(state.classes.items()), tuple(state.shareable.values()), tuple(usable), state.slices
        self.reckoned = self.waiting.reckoned((state.quotas, self.waiting.classes, hours, host))
        for job in state.running:
            self.count(job, job.gpus, job.ends)
        for whose in self.waiting.whose:
            self.pools_of_user(*whose)

    def leave_free(self, gpus: list[str]) -> None:
        """These are the GPUs that nobody has."""
        self.free = gpus
        for place in self.places:
            there = self.sets[place]
            self.free_of[place] = sum(1 for gpu in gpus if gpu in there)

    def pools(self, job: WaitingJob | RunningJob) -> list[str]:
        """The limited quota pools that ``job`` draws on, nearest first."""
        return self.pools_of_user(job.user, job.groups, bool(job.gpus), bool(job.id))

    def pools_of_user(self, user: str, groups: tuple[str, ...], gpus: bool, job: bool = True) -> list[str]:
        key = user, groups, gpus, job
        found = self.pools_of.get(key)
        if found is None:
            quotas = self.state.quotas
            limits = quotas.pools(user, groups, gpus=gpus, job=job)
            for pool, (name, limit) in quotas.of_classes(user, groups).items() if gpus else ():
                limits[pool] = limit
                self.sets[pool] = frozenset(self.state.classes.get(name, ()))
            for window in self.state.windows:
                if user not in window.users:
                    limits |= self.beside(window, gpus)
            for pool in limits:
                if pool not in self.limits:
                    self.limits[pool] = self.free_of[pool] = limits[pool]
            found = self.pools_of[key] = list(limits)
        return found

    def beside(self, window: Window, gpus: bool) -> dict[str, int]:
        """What those for whom it is not kept may have beside it, in jobs with or without GPUs."""
        found = {}
        for pool, (of, kept) in window.pools.items():
            if of in self.supplies:
                self.supply_of[pool] = of
                found[pool] = max(0, self.limits[of] - kept)
            elif of == HOST and gpus:
                self.sets[pool] = self.whole
                found[pool] = max(0, self.most_of[HOST] - kept)
        return found

    def pools_of_classes(self, usable: Iterable[str]) -> dict[str, str]:
        """The pool of each class that somebody waits for: classes of the same GPUs have one."""
        pools = {self.whole: HOST}
        found = {}
        for name in sorted(self.waiting.classes):
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

    def draws(self, job: WaitingJob, pool: str) -> int:
        """How much of ``pool`` the job takes. Where it may have GPUs that this counts and others (``bounds``): of a place what it cannot do
        without, of a quota nothing. A named MIG slice is none of the host's whole GPUs, but it counts in a quota."""
        return self.draws_at_most(job, pool) if self.reaches(job, pool) else 0

    def draws_at_most(self, job: WaitingJob, pool: str) -> int:
        """The same of any job of its kind, however long it may run."""
        if pool in self.supply_of:
            return self.drawn(job).get(self.supply_of[pool], 0)
        if pool == JOBS or counts_jobs(pool):
            return job.width
        counted = self.sets.get(pool)
        if counted is None:
            return job.gpus
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
        found = self.reckoned.drawn.get(job.kind)
        if found is None:
            each = {pool: drawn(job, pool, self.state) for pool in self.supplies}
            found = {pool: draws for pool, draws in each.items() if draws}
            if job.kind in self.waiting.lines:
                self.reckoned.drawn[job.kind] = found
        return found

    def asked(self, job: WaitingJob) -> tuple[tuple[str, int], ...]:
        """The pools that all of its kind need, in the order in which they are looked at, and how much of each."""
        found = self.reckoned.asked.get(job.kind)
        if found is None:
            draws = {pool: self.draws_at_most(job, pool) for pool in self.pools(job)}
            if not job.devices and not job.share:  # which may get others than those that nobody has
                draws |= {self.place(job): job.gpus, **self.drawn(job)} if job.gpus else self.drawn(job)
            found = tuple((pool, needs) for pool, needs in draws.items() if needs)
            if job.kind in self.waiting.lines:
                self.reckoned.asked[job.kind] = found
        return found

    def reaches(self, job: WaitingJob, pool: str) -> bool:
        """Whether it draws on the pool at all: from that of reserved hours only if it would run into them."""
        window = self.windows.get(pool)
        return window is None or window.is_reached(self.now + longest(job))

    def takes(self, job: WaitingJob | RunningJob, gpus: Collection[str], pool: str, ends: float | None) -> int:
        """What ``job`` has of ``pool`` with these GPUs, until ``ends``."""
        counted = self.sets.get(pool)
        window = self.windows.get(pool)
        if window is not None and not window.is_reached(None if ends is None else max(ends, math.nextafter(self.now, math.inf))):
            return 0
        if pool in self.supply_of:
            return drawn(job, self.supply_of[pool], self.state)
        return job.width if counts_jobs(pool) else len(gpus) if counted is None else len(counted.intersection(gpus))

    def count(self, job: WaitingJob | RunningJob, gpus: Collection[str], ends: float | None) -> None:
        """One more that runs."""
        for pool in self.pools(job):
            takes = self.takes(job, gpus, pool, ends)
            self.used[pool] += takes
            self.free_of[pool] -= takes
        if not gpus:
            self.used[JOBS] += job.width
            self.used[f"{JOBS}/{job.user}"] += job.width
        for pool in self.supplies:
            draws = drawn(job, pool, self.state)
            self.used[pool] += draws
            self.free_of[pool] -= draws

    def in_time(self, job: WaitingJob, reservation: Reservation) -> bool:
        return bool(job.time_limit) and reservation.at is not None and self.now + job.time_limit <= reservation.at

    def time_until(self, reservation: Reservation) -> float:
        """A job that may run for longer than this is not ``in_time``; 0 where none is."""
        return 0.0 if reservation.at is None else self.time_to(reservation.at)

    def time_to(self, moment: float) -> float:
        """A job that may run for longer than this still runs then; 0 for one that is past."""
        return max(0.0, moment - self.now + 2 * math.ulp(max(abs(moment), abs(self.now)))) if moment > self.now else 0.0

    def gpus_of(self, job: RunningJob) -> frozenset[str]:
        """Those that are free with its end: neither promised to another, nor shared with one that ends later."""
        gpus = job.gpus
        if self.promised_to:
            gpus = frozenset(gpu for gpu in gpus if self.promised_to.get(gpu, job.id) == job.id)
        return frozenset(gpu for gpu in gpus if self.shared.frees(job, gpu)) if job.share else gpus

    def left(self, pool: str, job: WaitingJob) -> int:
        """How much of the pool is free; of GPUs, of those that ``job`` could have."""
        if pool in self.places:
            goal = self.goal(job)
            return sum(1 for gpu in self.free if gpu in goal)
        return self.most(pool) - self.used[pool]

    def ends(self, pool: str, job: WaitingJob) -> Releases:
        """How much of the same is free when what runs has ended."""
        if pool not in self.places:
            return self.releases(pool)
        goal = self.goal(job)
        there = ((other, len(self.gpus_of(other) & goal)) for other in self.running)
        return [(other.ends, count, other.id) for other, count in there if count]

    def most(self, pool: str) -> int:
        """What a job could have of the pool if all others ended."""
        if pool == JOBS:
            return self.state.cpu_jobs
        return self.most_of[pool] if pool in self.most_of else self.limits[pool]

    def releases(self, pool: str) -> Releases:
        if pool in self.supplies:
            found = ((job.ends, drawn(job, pool, self.state), job.id) for job in self.running)
            return [row for row in found if row[1]]
        if pool == JOBS:
            return [(job.ends, job.width, job.id) for job in self.running if not job.gpus]
        return [(job.ends, self.takes(job, job.gpus, pool, job.ends), job.id) for job in self.running if pool in self.pools(job)]

    def freed(self, pool: str, ending: Iterable[RunningJob]) -> int:
        return sum(drawn(other, pool, self.state) for other in ending)
