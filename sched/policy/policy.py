"""Who starts now, on which GPUs, and why everybody else waits: a pure function.

``decide(state, now)`` has no clock, no database and no processes. The daemon, the property tests and the trace replays call the same one.

The rules, in the order they bind:

1. **Order.** Higher priority first; among equals, first come first served. Jobs without GPUs have places of their own, and there among
   equals the user comes first who has the fewest running (``turns``).
2. **Quota.** A user and each of her groups may hold so many GPUs, never more. A job that its own quota keeps waiting does not
   hold up other users; within the same user (group) it keeps its place.
3. **Packing.** Of the free GPUs those nearest to each other, and among equals those that leave the nearest behind (``packing``).
4. **No starvation** (EASY backfill). The first job that finds too few free GPUs gets a *reservation*: the moment at which, by the time
   limits of what runs, its GPUs will be free. A later job may start before it only if it cannot delay it: it ends by then (it has a
   time limit), or it takes only GPUs that are over even then. Where what runs has no time limit, the moment is unknown, and only what is
   over in the worst case may be taken. The same rule guards a job's place inside its quota.

Everything countable is a *pool* (the host's GPUs, a user's quota, a group's quota), so rule 4 is one piece of code for all of them. Time
limits are upper bounds: a job that ends early only makes the reservation come earlier.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from dockless.base.dataclass import dataclass, field
from dockless.sandbox.gpus.topology import FARTHEST
from dockless.sched.policy.packing import WHOLE, Node, Task, choose
from dockless.sched.policy.turns import in_turn
from dockless.sched.policy.waiting import Kind, Line, WaitingJob, WaitingList, longest, order

Links = Mapping[tuple[str, str], float]
"""Distance of each pair of GPUs, in both orders; a pair that is missing is as far as can be."""

HOST, JOBS = "host", "jobs"
"""Pools: the host's GPUs; its places for jobs without GPUs."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that holds GPUs (starting ones too). ``ends``: the moment its time limit ends it, None without one."""

    id: int
    user: str
    gpus: frozenset[str] = frozenset()
    groups: tuple[str, ...] = ()
    ends: float | None = None


@dataclass(frozen=True, slots=True)
class Quotas:
    """GPUs that may be held at once. ``default``: for users not named, None for no limit."""

    users: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    default: int | None = None

    def of(self, user: str) -> int | None:
        return self.users.get(user, self.default)


@dataclass(frozen=True, slots=True)
class QueueState:
    """All that a decision may depend on. ``waiting``: a plain sequence is made a ``WaitingList`` first, which takes longer than the
    decision; ``gpus`` in index order; ``outside``: GPUs that something else on the host uses; ``slices``: those of ``gpus`` that are
    given only by name (MIG); ``cpu_jobs``: how many jobs without GPUs may run at once."""

    gpus: tuple[str, ...]
    waiting: WaitingList | Sequence[WaitingJob]
    running: Sequence[RunningJob] = ()
    quotas: Quotas = field(default_factory=Quotas)
    links: Links = field(default_factory=dict)
    outside: frozenset[str] = frozenset()
    slices: frozenset[str] = frozenset()
    cpu_jobs: int = 64


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start this job on exactly these GPUs."""

    job: int
    gpus: tuple[str, ...]


@dataclass(slots=True)
class Reservation:
    """What is kept in one pool for ``job``. ``at``: when it can start at the latest, None if nobody can say; ``extra``: how much of
    the pool is over even then; ``after``: the running job whose end makes room."""

    pool: str
    job: int
    need: int
    at: float | None
    extra: int
    after: int
    devices: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits. ``code``: ``quota``, ``resources``, ``reserved``, ``jobs`` or ``order``; ``text``: with the numbers;
    ``starts_at``: when it starts at the latest, where that can be said."""

    code: str
    text: str
    starts_at: float | None = None


@dataclass(slots=True)
class _Hold:
    """``within``: jobs of the same kind that may run for longer, seconds, are held by it too."""

    code: str
    pool: str
    priority: int
    reservation: Reservation | None = None
    within: float = 0.0


@dataclass(slots=True)
class Decision:
    """``starts``, and with ``reason`` the answer to every waiting job's question."""

    starts: list[StartJob]
    now: float
    reservations: list[Reservation]
    _held: dict[Kind, dict[float, _Hold]]
    _used: Counter[str]
    _free: list[str]
    _state: QueueState
    _reasons: dict[tuple[Kind, float], Reason] = field(default_factory=dict)

    def held(self, job: WaitingJob) -> bool:
        """Whether a pass over the same state plus ``job`` at the end would leave it waiting: nothing was freed since."""
        hold = self._hold(job)
        return hold is not None and job.priority <= hold.priority

    def reason(self, job: WaitingJob) -> Reason:
        """Why ``job``, one of the waiting, does not start now."""
        hold = self._hold(job)
        if hold is not None and hold.reservation is not None and hold.reservation.job == job.id:
            return _reason(self, job, hold)
        found = self._reasons.get((job.kind, job.time_limit))
        if found is None:
            found = self._reasons[job.kind, job.time_limit] = _reason(self, job, hold)
        return found

    def _hold(self, job: WaitingJob) -> _Hold | None:
        holds = self._held.get(job.kind, {})
        found = holds.get(job.time_limit)
        return found if found is not None else next((hold for hold in holds.values() if longest(job) > hold.within), None)


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
    enough not to be in the way (``_Hold.within``). Of each kind, only the first job and then what may still start is looked at. One thing
    more a job that is held can do: keep a place in a pool where nobody has one. The later ones of its kind come to that only after another
    start from that pool, and are looked at then (``parked``).
    """

    def __init__(self, state: QueueState, now: float) -> None:
        self.state = state
        self.now = now
        self.waiting = state.waiting if isinstance(state.waiting, WaitingList) else WaitingList(state.waiting)
        held = frozenset().union(*(job.gpus for job in state.running)) if state.running else frozenset()
        usable = [gpu for gpu in state.gpus if gpu not in state.outside]
        self.whole = frozenset(usable) - state.slices
        self.free = [gpu for gpu in usable if gpu not in held]
        self.whole_there = sum(1 for gpu in self.free if gpu in self.whole) + sum(len(job.gpus & self.whole) for job in state.running)
        self.running = list(state.running)
        self.used: Counter[str] = Counter()
        for job in state.running:
            self.count(job.user, job.groups, len(job.gpus))
        self.reserved: dict[str, Reservation] = {}
        self.kept: list[Reservation] = []  # for jobs that insist on certain GPUs
        self.held: dict[Kind, dict[float, _Hold]] = {}
        self.within: dict[Kind, float] = {}
        self.parked: dict[str, list[_Parked]] = {}
        self.starts: list[StartJob] = []
        self.next: list[tuple[tuple[int, int], WaitingJob]] = []
        self.looked_at: dict[int, _Parked] = {}

    def run(self) -> Decision:
        lines = self.waiting.lines.values()
        self.start_in_turn([line for line in lines if not line.first().gpus])
        self.next = [(order(job), job) for job in (line.first() for line in lines) if job.gpus]
        heapify(self.next)
        while self.next:
            if not self.free and HOST in self.reserved:
                break  # nothing left to give, and the head has its reservation
            _, job = heappop(self.next)
            hold = self.blocked(job)
            if hold is None:
                self.start(job)
            else:
                self.held.setdefault(job.kind, {}).setdefault(job.time_limit, hold)
            line, within = self.waiting.lines[job.kind], self.within.get(job.kind, math.inf)
            parked = self.looked_at.pop(job.id, None)
            if parked is None and hold is not None:
                hold.within = self.within[job.kind] = min(hold.within, math.nextafter(longest(job), 0))
                parked = _Parked(line, job, hold.within, within)
                within = hold.within
                self.follow(line.after(job, within) if within else None)
            elif parked is None:
                self.follow(line.after(job, within))
            if parked is not None and hold is not None:
                self.park(parked, hold)
        return Decision(self.starts, self.now, [*self.reserved.values(), *self.kept], self.held, self.used, list(self.free), self.state)

    def start_in_turn(self, lines: Sequence[Line]) -> None:
        """Those without GPUs."""
        room = self.state.cpu_jobs - self.used[JOBS]
        starts, left = in_turn(lines, lambda user: self.used[f"{JOBS} {user}"], room)
        for job in starts:
            self.start(job)
        for job in left:
            self.held[job.kind] = {job.time_limit: _Hold("jobs", "jobs", job.priority)}

    def follow(self, job: WaitingJob | None) -> None:
        if job is not None:
            heappush(self.next, (order(job), job))

    def park(self, parked: _Parked, hold: _Hold) -> None:
        """They may keep a place in these pools, once something else has started from them."""
        job = parked.job
        if len(parked.line.limits) == 1:
            return
        for pool in (*self.pools(job.user, job.groups), HOST):
            limited = pool == HOST or self.capacity(pool) is not None
            if limited and (pool not in self.reserved or (pool == HOST and job.devices)):
                self.parked.setdefault(pool, []).append(parked)
            if pool == hold.pool:
                break  # they come no further either

    def look_at_parked(self, pool: str, started: WaitingJob) -> None:
        for parked in self.parked.pop(pool, ()):
            held = {parked.job.time_limit}
            for job in parked.line.behind(parked.job):
                if job.time_limit in held or not parked.above < longest(job) <= parked.below:
                    continue
                if order(job) > order(started):
                    if job.id not in self.looked_at:
                        self.looked_at[job.id] = parked
                        self.follow(job)
                    break
                held.add(job.time_limit)

    def count(self, user: str, groups: Sequence[str], gpus: int) -> None:
        """One more that runs."""
        for pool in self.pools(user, groups) if gpus else (JOBS, f"{JOBS} {user}"):
            self.used[pool] += gpus or 1

    def pools(self, user: str, groups: Iterable[str]) -> list[str]:
        """The quota pools that a job of ``user`` draws on, nearest first."""
        return [f"user {user}", *(f"group {group}" for group in groups)]

    def capacity(self, pool: str) -> int | None:
        kind, _, name = pool.partition(" ")
        return self.state.quotas.of(name) if kind == "user" else self.state.quotas.groups.get(name)

    # -- may it start?

    def blocked(self, job: WaitingJob) -> _Hold | None:
        """None if ``job`` may start; else what holds it, with reservations made where it is the first to be held."""
        quota = self.pools(job.user, job.groups)
        for level, pool in enumerate(quota):
            limit = self.capacity(pool)
            if limit is not None and self.used[pool] + job.gpus > limit:
                # Its own quota: it keeps its place among those who share that quota, and nobody else waits for it.
                return _Hold("quota", pool, job.priority, self.reserve(job, pool, quota[: level + 1]))
            if (reservation := self.in_the_way(job, pool)) is not None:
                return _Hold("reserved", pool, job.priority, reservation, self.time_until(reservation))
        if not self.enough(job, self.free):
            return _Hold("resources", HOST, job.priority, self.reserve(job, HOST, quota))
        if (reservation := self.in_the_way(job, HOST)) is not None:
            return _Hold("reserved", HOST, job.priority, reservation, self.time_until(reservation))
        if not self.enough(job, self.allowed(job)):
            late = [reservation for reservation in self.kept if not self.in_time(job, reservation)]
            return _Hold("reserved", HOST, job.priority, late[0], max(map(self.time_until, late)))
        return None

    def enough(self, job: WaitingJob, free: Sequence[str]) -> bool:
        return job.devices <= set(free) if job.devices else job.gpus <= sum(1 for gpu in free if gpu in self.whole)

    def draws(self, job: WaitingJob, pool: str) -> int:
        """How much of ``pool`` the job takes. A named MIG slice is none of the host's whole GPUs, but it counts in a quota."""
        return len(job.devices - self.state.slices) if job.devices and pool == HOST else job.gpus

    def in_time(self, job: WaitingJob, reservation: Reservation) -> bool:
        return bool(job.time_limit) and reservation.at is not None and self.now + job.time_limit <= reservation.at

    def time_until(self, reservation: Reservation) -> float:
        """A job that may run for longer than this is not ``in_time``; 0 where none is."""
        if reservation.at is None:
            return 0.0
        return reservation.at - self.now + 2 * math.ulp(max(abs(reservation.at), abs(self.now)))

    def in_the_way(self, job: WaitingJob, pool: str) -> Reservation | None:
        """The reservation in ``pool`` that ``job`` would delay."""
        reservation = self.reserved.get(pool)
        if reservation is None or self.draws(job, pool) <= reservation.extra or self.in_time(job, reservation):
            return None
        return reservation

    def allowed(self, job: WaitingJob) -> list[str]:
        """The free GPUs without those that somebody else insists on and would get too late."""
        taboo: set[str] = set()
        for reservation in self.kept:
            if not self.in_time(job, reservation):
                taboo |= reservation.devices
        return [gpu for gpu in self.free if gpu not in taboo]

    def start(self, job: WaitingJob) -> None:
        chosen: tuple[str, ...] = ()
        if job.gpus:
            free = self.allowed(job)
            chosen = tuple(g for g in free if g in job.devices) if job.devices else self.pack(job.gpus, free)
            self.free = [gpu for gpu in self.free if gpu not in chosen]
            quota = self.pools(job.user, job.groups)
            for pool in (*quota, HOST):
                reservation = self.reserved.get(pool)
                if reservation is not None and not self.in_time(job, reservation):
                    reservation.extra -= self.draws(job, pool)
            self.count(job.user, job.groups, job.gpus)
            for pool in (*quota, HOST):
                self.look_at_parked(pool, job)
        else:
            self.count(job.user, job.groups, 0)
        ends = self.now + job.time_limit if job.time_limit else None
        self.running.append(RunningJob(job.id, job.user, frozenset(chosen), job.groups, ends))
        self.starts.append(StartJob(job.id, chosen))

    def pack(self, count: int, free: Sequence[str]) -> tuple[str, ...]:
        whole = [gpu for gpu in free if gpu in self.whole]
        links = self.state.links
        distance = (lambda _, one, other: links.get((whole[one], whole[other]), FARTHEST)) if links else None
        place = choose((Node((WHOLE,) * len(whole)),), Task(count), distance=distance)
        return tuple(whole[gpu] for gpu in place.gpus) if place else ()

    # -- keeping a place

    def reserve(self, job: WaitingJob, short: str, quota: Sequence[str]) -> Reservation | None:
        """Keep ``job``'s place in the pool that is ``short`` and, so that its place is not lost elsewhere meanwhile, in its quotas up to
        there. Gives the reservation that stands: an earlier job's stays as it is. None where ``job`` could not start even if everything
        ended (a quota was lowered, a GPU is in use outside): nothing is kept idle for it."""
        wanted = job.devices if short == HOST else frozenset()
        if not wanted and short in self.reserved:
            stands = self.reserved[short]
            return stands if job.gpus <= self.most(short) else None
        if short == HOST:
            goal = wanted or self.whole
            free = sum(1 for gpu in self.free if gpu in goal)
            releases = [(other.ends, len(other.gpus & goal), other.id) for other in self.running if other.gpus & goal]
        else:
            free = max(0, (self.capacity(short) or 0) - self.used[short])
            releases = self.releases(short)
        if free + sum(count for _, count, _ in releases) < job.gpus:
            return None
        at, extra, after = shadow(free, job.gpus, releases, self.now)
        main = Reservation(short, job.id, job.gpus, at, extra, after, wanted)
        if not wanted:
            self.reserved[short] = main
        elif all(other.devices != wanted for other in self.kept):  # else the same GPUs are kept, until the same moment
            self.kept.append(main)
        for pool in quota:
            limit = self.capacity(pool)
            if limit is None or pool in self.reserved:
                continue
            over = limit - self.used[pool] - job.gpus
            if at is not None:
                over += sum(count for ends, count, _ in self.releases(pool) if ends is not None and ends <= at)
            self.reserved[pool] = Reservation(pool, job.id, job.gpus, at, max(0, over), after)
        return main

    def most(self, pool: str) -> int:
        """What a job could have of the pool if all others ended."""
        return self.whole_there if pool == HOST else max(self.capacity(pool) or 0, self.used[pool])

    def releases(self, pool: str) -> list[tuple[float | None, int, int]]:
        return [(job.ends, len(job.gpus), job.id) for job in self.running if job.gpus and pool in self.pools(job.user, job.groups)]


def shadow(free: int, need: int, releases: Sequence[tuple[float | None, int, int]], now: float) -> tuple[float | None, int, int]:
    """(when ``need`` will be there at the latest, what is over then, the job whose end makes it so), from ``(ends, count, job)``.

    Unknown ends: the moment is None, and what is over is the least that any order of those ends can leave over.
    """
    known = sorted((max(ends, now), count, job) for ends, count, job in releases if ends is not None)
    unknown = [count for ends, count, _ in releases if ends is None]
    there = free
    for place, (ends, count, job) in enumerate(known):
        there += count
        if there >= need:
            there += sum(other for later, other, _ in known[place + 1 :] if later == ends)
            return ends, there - need, job
    sums = 1  # bit n: some of the unknown add up to n
    for count in unknown:
        sums |= sums << count
    least: int | None = None
    there = free
    for count in (0, *(count for _, count, _ in known)):
        there += count
        above = sums >> need - there
        if above:
            over = (above & -above).bit_length() - 1
            least = over if least is None else min(least, over)
    after = next((job for ends, _, job in releases if ends is None), 0)
    return None, least or 0, after


# -- words


def _reason(decision: Decision, job: WaitingJob, hold: _Hold | None) -> Reason:
    state = decision._state
    if not job.gpus:
        all_, hers = decision._used[JOBS], decision._used[f"{JOBS} {job.user}"]
        return Reason("jobs", f"{all_} of {state.cpu_jobs} jobs without GPUs run already, {hers} of them {job.user}'s")
    parts = [f"needs {_gpus(job)}, {sum(1 for gpu in decision._free if gpu not in state.slices)} free"]
    if state.outside:
        parts[0] += f" ({len(state.outside)} in use outside dockless)"
    if others := sum(len(other.gpus) for other in state.running if not other.id):
        parts[0] += f" ({others} leased outside the queue)"
    for pool in (f"user {job.user}", *(f"group {group}" for group in job.groups)):
        kind, _, name = pool.partition(" ")
        limit = state.quotas.of(name) if kind == "user" else state.quotas.groups.get(name)
        used = decision._used[pool]
        if limit is not None and used + job.gpus > limit:
            parts.append(f"{pool} uses {used} of {limit}")
    if hold is None:
        return Reason("order", "; ".join([*parts, "other jobs come first"]))
    reservation = hold.reservation
    if reservation is None:
        return Reason(hold.code, "; ".join(parts))
    when = _when(reservation, decision.now)
    if reservation.job == job.id:
        return Reason(hold.code, "; ".join([*parts, when] if when else parts), reservation.at)
    place = "" if hold.pool == HOST else f" in the quota of {hold.pool}"
    parts.append(f"job {reservation.job} comes first{place}: it needs {reservation.need}{' and ' + when if when else ''}")
    if hold.code == "reserved" and reservation.at is not None:
        parts.append("a time limit that ends before then would let this one start")
    return Reason(hold.code, "; ".join(parts))


def _gpus(job: WaitingJob) -> str:
    if job.devices:
        return ", ".join(sorted(job.devices))
    return f"{job.gpus} GPU{'' if job.gpus == 1 else 's'}"


def _when(reservation: Reservation, now: float) -> str:
    if reservation.at is not None:
        return f"starts in about {duration(reservation.at - now)} when job {reservation.after} ends"
    if reservation.after:
        return f"waits for job {reservation.after}, which has no time limit"
    return ""


def duration(seconds: float) -> str:
    """A time span as people say it: ``1 h 20 min``, ``45 s``."""
    whole = max(0, math.ceil(seconds))
    if whole <= 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
