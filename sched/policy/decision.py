"""What a pass decided, and why everybody else waits, in words."""

from __future__ import annotations

import math
from collections.abc import Set

from dockless.base.dataclass import dataclass, field
from dockless.base.units import format_size
from dockless.sched.policy import classes
from dockless.sched.policy.quotas import CPU_JOBS_OF, JOBS_OF, counts_jobs
from dockless.sched.policy.reservations import Hold, Reservation
from dockless.sched.policy.room import Room
from dockless.sched.policy.state import CLASS, HOST, JOBS, PreemptJob, StartJob, drawn
from dockless.sched.policy.supplies import CORES, amount, bare
from dockless.sched.policy.waiting import Kind, WaitingJob, longest


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits. ``code``: ``quota``, ``resources``, ``guarantee``, ``reserved``, ``jobs`` or ``order``; ``text``: with the numbers;
    ``starts_at``: when there is what it waits for, where that can be said; ``latest``: and if it has the first place then it starts at the
    latest, however early others end. Who waits for a quota, for certain GPUs or for a turn may find others before it then, and so may who
    is not the first: those whom their quota held."""

    code: str
    text: str
    starts_at: float | None = None
    latest: bool = False

    def slips(self, foretold: float | None) -> bool:
        """Whether by a forecast it starts later than ``starts_at``: after jobs that a quota or the limit of their array held."""
        return foretold is not None and self.starts_at is not None and foretold > self.starts_at + 1


@dataclass(slots=True)
class Decision:
    """``starts``, ``preempts``, and with ``reason`` the answer to every waiting job's question. ``again``: when the same state would be
    decided otherwise, only because time has passed; None for never. ``one_queue``: cores or memory are short, so that jobs with and without
    GPUs wait for each other."""

    starts: list[StartJob]
    preempts: list[PreemptJob]
    again: float | None
    now: float
    reservations: list[Reservation]
    _room: Room
    _held: dict[Kind, dict[float, Hold]]
    _resting: dict[Kind, int]  # the kinds that were not looked at, as a pool was used up, and the priority of the first of each
    _promised: dict[int, Hold]
    one_queue: bool = False
    _closed: int | None = None  # no GPU is left for jobs of this priority or less that come later
    _reasons: dict[int, dict[tuple[Kind, float], Reason]] = field(default_factory=dict)  # as of so many seconds later
    _firsts: Set[int] | None = None

    @property
    def others_have_gpus(self) -> bool:
        """Whether something that is none of the queue's has some: nobody tells when they are free."""
        state = self._room.state
        return bool(state.unusable) or any(not job.id for job in state.running)

    @property
    def firsts(self) -> Set[int]:
        """The jobs that have a place kept for them: of no others ``reason`` says when they start."""
        if self._firsts is None:
            kept = [hold.reservation for holds in self._held.values() for hold in holds.values() if hold.reservation is not None]
            self._firsts = {*self._promised, *(one.job for one in (*kept, *self.reservations))}
        return self._firsts

    def held(self, job: WaitingJob) -> bool:
        """Whether a pass over the same state plus ``job`` at the end would leave it waiting: nothing was freed since."""
        if job.gpus and not job.share and self._closed is not None and job.priority <= self._closed:
            return True
        hold = self._hold(job)
        return hold is not None and job.priority <= hold.priority

    def reason(self, job: WaitingJob, now: float | None = None) -> Reason:
        """Why ``job``, one of the waiting, does not start. ``now``: the moment at which that is asked, on the clock of ``decide``."""
        now = self.now if now is None else now
        hold = self._promised.get(job.id) or self._hold(job)
        if hold is not None and hold.reservation is not None and hold.reservation.job == job.id:
            return _reason(self, job, hold, now)
        seconds = int(now - self.now)
        if seconds not in self._reasons:
            self._reasons.clear()
            self._reasons[seconds] = {}
        reasons = self._reasons[seconds]
        found = reasons.get((job.kind, job.time_limit))
        if found is None:
            found = reasons[job.kind, job.time_limit] = _reason(self, job, hold, now)
        return found

    def _hold(self, job: WaitingJob) -> Hold | None:
        holds = self._held.get(job.kind, {})
        found = holds.get(job.time_limit)
        if found is None:
            found = next((hold for hold in holds.values() if longest(job) > hold.within), None)
        if found is None and job.kind in self._resting and (found := self._room.hold(job)) is not None:
            found.priority = self._resting[job.kind]
            self._held.setdefault(job.kind, {})[job.time_limit] = found
        return found


def _reason(decision: Decision, job: WaitingJob, hold: Hold | None, now: float) -> Reason:
    state = decision._room.state
    quotas = [_full(decision, job, *pool) for pool in state.quotas.pools(job.user, job.groups, gpus=bool(job.gpus)).items()]
    quotas += [_full_of(decision, job, pool, *of) for pool, of in state.quotas.of_classes(job.user, job.groups).items() if job.gpus]
    if not job.gpus and (hold is None or (hold.pool == JOBS and hold.reservation is None)):
        return Reason("jobs", _places(decision, job))
    free = frozenset(decision._room.free)
    if job.devices:
        free &= job.devices
    else:
        free = free.intersection(state.classes.get(job.gpu_class, ())) if job.gpu_class else free - state.slices
    parts = [f"needs {_gpus(job)}, {len(free)} free"]
    if used := len(state.unusable - state.out_of_service):
        parts[0] += f" ({used} in use outside dockless)"
    if others := sum(len(other.gpus) for other in state.running if not other.id):
        parts[0] += f" ({others} leased outside the queue)"
    if job.share and (left := decision._room.shared.most_left(job)) > 0:
        parts[0] += f", {format_size(left << 20)} left on a shared one"
    if not job.gpus:
        parts = []
    window = decision._room.windows.get(hold.pool) if hold is not None else None
    of, kept = window.pools[hold.pool] if hold is not None and window is not None else ("", 0)
    lacks = [pool for pool in state.supplies if pool == of or drawn(job, pool, state) > decision._room.left(pool, job)]
    parts += [_lack(decision, job, pool) for pool in lacks]
    if not job.gpus and decision._room.used[JOBS] + job.width > state.cpu_jobs and job.width > 1:
        parts.append(_places(decision, job))
    parts += filter(None, quotas)
    if window is not None:
        what = kept if of == HOST else amount(of, kept)
        parts.append(f"{what} are kept for {window.name} {window.text}".rstrip())
        if window.starts > now:
            parts.append("a time limit that ends before then would let this one start")
    if hold is None:
        return Reason("order", "; ".join([*parts, _first(decision, job)]))
    reservation = hold.reservation
    if reservation is None:
        return Reason(hold.code, "; ".join(parts))
    when = _when(reservation, now)
    if hold.code == "guarantee":
        name, _ = state.quotas.guarantees(job.user, job.groups).get(hold.pool, ("", 0))  # her groups may be others by now
        who = hold.pool.removeprefix(f"{name} of ") if name else hold.pool
        when = f"gets them back within the guarantee of {who}{f' for class {name}' if name else ''}; {when}"
    if reservation.job == job.id:
        latest = reservation.at is not None and hold.code in ("resources", "guarantee") and not job.devices
        return Reason(hold.code, "; ".join([*parts, when] if when else parts), reservation.at, latest)
    jobs, supply = counts_jobs(hold.pool) or hold.pool == JOBS, decision._room.supply_of.get(hold.pool, "")
    place = f" among the {hold.pool}" if jobs else f" in the quota of {hold.pool}"
    if window is not None:
        place = " among the others"
    elif supply or hold.pool in (HOST, JOBS) or hold.pool.startswith(CLASS):
        place = f" for {hold.pool}" if hold.pool.startswith(CLASS) else ""
    needs = [] if jobs else [f"needs {amount(supply, reservation.need) if supply else reservation.need}"]
    what = f": it {' and '.join(filter(None, (*needs, when)))}" if needs or when else ""
    parts.append(f"job {reservation.job} comes first{place}{what}")
    if hold.code == "reserved" and reservation.at is not None and window is None:
        parts.append("a time limit that ends before then would let this one start")
    return Reason(hold.code, "; ".join(parts))


def _first(decision: Decision, job: WaitingJob) -> str:
    """Who comes first where what ``job`` needs comes from."""
    room = decision._room
    place = room.pool_of_class.get(job.gpu_class, HOST) if job.gpus else JOBS  # a class may be younger than the pass
    first = room.reserved.get(place) or room.reserved.get(HOST)
    if first is None or not first.user or first.job == job.id:
        return "other jobs come first"
    gpus = f", which needs {first.gpus} GPU{'' if first.gpus == 1 else 's'}" if first.gpus else ""
    return f"job {first.job} of {first.user}{gpus}{',' if gpus else ''} comes first"


def _full(decision: Decision, job: WaitingJob, pool: str, limit: int) -> str:
    """That there is not enough for ``job`` in one of its quotas; empty where there is."""
    used = decision._room.used[pool]
    if not counts_jobs(pool):
        return f"{pool} uses {used} of {limit}" if used + job.gpus > limit else ""
    if used + job.width <= limit:
        return ""
    what = "jobs without GPUs" if pool.startswith(CPU_JOBS_OF) else "jobs"
    return f"{pool.removeprefix(CPU_JOBS_OF).removeprefix(JOBS_OF)} runs {used} of {limit} {what}{_together(job)}"


def _places(decision: Decision, job: WaitingJob) -> str:
    """Who has the host's places for jobs without GPUs."""
    used, hers = decision._room.used[JOBS], decision._room.used[f"{JOBS}/{job.user}"]
    return f"{used} of {decision._room.state.cpu_jobs} jobs without GPUs run already, {hers} of them {job.user}'s{_together(job)}"


def _together(job: WaitingJob) -> str:
    return f", and {job.width} more start together" if job.width > 1 else ""


def _full_of(decision: Decision, job: WaitingJob, pool: str, name: str, limit: int) -> str:
    """The same of a quota of a class."""
    state = decision._room.state
    counted = frozenset(state.classes.get(name, ()))
    goal = job.devices or (frozenset(state.classes.get(job.gpu_class, ())) if job.gpu_class else frozenset(state.gpus) - state.slices)
    used, wants = decision._room.used[pool], job.gpus if goal <= counted else 1
    return f"{pool.removeprefix(f'{name} of ')} uses {used} of {limit} of class {name}" if goal & counted and used + wants > limit else ""


def _lack(decision: Decision, job: WaitingJob, pool: str) -> str:
    supply = decision._room.state.supplies[pool]
    asked = (job.cores if pool == CORES else job.memory) or supply.per_job
    own = asked - drawn(job, pool, decision._room.state)
    return f"needs {amount(pool, asked)}, {bare(pool, max(0, decision._room.left(pool, job)) + own)} free"


def _gpus(job: WaitingJob) -> str:
    if job.devices:
        return ", ".join(sorted(job.devices))
    if job.share:
        return f"{format_size(job.share << 20)} of a GPU" + classes.in_words(classes.model(job.gpu_class))
    return f"{job.gpus} GPU{'' if job.gpus == 1 else 's'}" + classes.in_words(job.gpu_class)


def _when(reservation: Reservation, now: float) -> str:
    if reservation.at is not None:
        return f"starts in about {duration(max(0.0, reservation.at - now))} when job {reservation.after} ends"
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
