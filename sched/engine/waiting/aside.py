"""Jobs that wait and may not start yet, whatever is free: held, before their time, behind other jobs. The policy does not see them.

What keeps a job aside is told by its options and by the jobs that have not ended, so a daemon that comes back finds the same. A job of
those named by ``after`` that is not remembered any more ended as was wanted: else the one that waits for it had been cancelled then.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from dockless.base.dataclass import dataclass, field, replace
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput, NotPermitted, UnknownJob
from dockless.sched.callers import Caller
from dockless.sched.engine.entry import LiveJob
from dockless.sched.jobs import Job, State, meets
from dockless.sched.parsing import MAX_AFTER, parse_dependency
from dockless.sched.policy.waiting import Kind, WaitingJob
from dockless.sched.store import queries
from dockless.sched.store.queue import NewJob

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine

AT_ONCE = 500
"""Jobs whose time has come that are looked at before somebody else's turn."""
LOOK = 60.0
"""Seconds until the clock is looked at again: somebody may have set it."""


@dataclass(slots=True, eq=False)
class _After:
    """What a job, or the jobs of an array, wait for. ``left``: jobs that have not ended, and how they have to; ``failed``: why it can never
    be met; ``jobs``: those that wait, by number."""

    left: dict[int, str]
    failed: str = ""
    jobs: dict[int, LiveJob] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Array:
    """``inside``: its jobs that run or could; ``limited``: numbers of those that its limit keeps aside, in ``next`` as a heap."""

    inside: set[int] = field(default_factory=set)
    limited: set[int] = field(default_factory=set)
    next: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Following:
    """``numbers``: of the jobs that the limit of their array keeps aside, in their order. Each follows when one of those before it,
    or of its ``inside``, has ended; ``all``: no others follow."""

    inside: frozenset[int]
    numbers: Sequence[int]
    all: bool


class Aside:
    """``kept``: the jobs that are kept aside, by number; ``counts``: how many, by their users' names and groups with a quota."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.kept: dict[int, Kind] = {}
        self.counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self._times: list[tuple[float, int]] = []  # a heap
        self._timer: asyncio.TimerHandle | None = None
        self._after: dict[int, _After] = {}  # by the array's number or the job's
        self._newest = 0, _After({})  # the same, of one that nothing is left of: an array's jobs come one after the other
        self._waited_for: dict[int, set[int]] = {}  # numbers of jobs, and the keys above that wait for them
        self._named: dict[tuple[int, str], list[int]] = {}  # jobs of a user's that have this name and have not ended, the oldest first
        self._arrays: dict[int, _Array] = {}
        self._limited: set[int] = set()  # the numbers of those that the limit of any array keeps aside

    def enter(self, job: Job) -> None:
        """A job that has not ended, before anything else is asked of it."""
        self.enter_names([job.id], [job.uid], [job.name])
        if job.options.array_limit and job.state is not State.PENDING:
            self._arrays.setdefault(job.array, _Array()).inside.add(job.id)

    def enter_names(self, ids: Iterable[int], uids: Iterable[int], names: Iterable[str | None]) -> None:
        """The same of jobs that wait and are not named otherwise."""
        for number, uid, name in zip(ids, uids, names, strict=True):
            if name:
                insort(self._named.setdefault((uid, name), []), number)

    def keep(self, job: WaitingJob) -> None:
        """Keep a job aside from now on."""
        if job.id not in self.kept:
            self.kept[job.id] = job.kind
            self.counts[job.user, job.groups] += 1

    def _let_go(self, number: int) -> bool:
        """Keep a job aside no longer; whether it was kept."""
        kind = self.kept.pop(number, None)
        if kind is None:
            return False
        key = kind.user, kind.groups
        self.counts[key] -= 1
        if not self.counts[key]:
            del self.counts[key]
        return True

    def regrouped(self, jobs: Mapping[int, WaitingJob]) -> None:
        """Count jobs whose groups with a quota have changed for the new ones. ``jobs``: these jobs, by number."""
        self.kept = {number: jobs[number].kind if number in jobs else kind for number, kind in self.kept.items()}
        self.counts = Counter((kind.user, kind.groups) for kind in self.kept.values())

    def keeps(self, entry: LiveJob) -> bool:
        """Whether it is kept aside, from now on; else it may stand in line."""
        job, options = entry.job, entry.job.options
        kept = bool(options.held)
        if (at := self.not_before(job)) > time.time():
            if at != entry.alarm:
                entry.alarm = at
                if len(self._times) > 2 * len(self.kept) + AT_ONCE:  # most are of jobs that have been cancelled
                    self._times = sorted({one for one in self._times if one[1] in self.kept})
                heapq.heappush(self._times, (at, job.id))
                self._arm()
            kept = True
        if options.after and not self._dependencies_met(entry):
            kept = True
        kept = kept or (options.singleton and self._oldest(job) != job.id)
        if options.array_limit:
            if kept and job.id in self._arrays.get(job.array, _Array()).inside:
                self.leaves(job)
            kept = kept or self.limit_keeps(entry.waiting, job.array, options.array_limit)
        if kept:
            self.keep(entry.waiting)
        return kept

    def limit_keeps(self, job: WaitingJob, of: int, limit: int) -> bool:
        """Whether the limit of its array keeps it aside, from now on."""
        array, number = self._arrays.setdefault(of, _Array()), job.id
        if number in array.inside or len(array.inside) < limit:
            array.inside.add(number)
            return False
        if number not in array.limited:
            array.limited.add(number)
            self._limited.add(number)
            heapq.heappush(array.next, number)
        self.keep(job)
        return True

    def drop(self, entry: LiveJob) -> bool:
        """It is no more kept aside; whether it was."""
        return self._let_go(entry.job.id)

    def again(self, number: int) -> None:
        """What kept this job aside may be over."""
        if self._let_go(number):
            self.engine.line_up(self.engine.entries[number])

    def leaves(self, job: Job) -> None:
        """It neither runs nor stands in line any more: the next of its array may."""
        array = self._arrays.get(job.array) if job.options.array_limit else None
        if array is None:
            return
        array.inside.discard(job.id)
        while array.next and len(array.inside) < job.options.array_limit:
            number = heapq.heappop(array.next)
            array.limited.discard(number)
            self._limited.discard(number)
            self.again(number)
        if not array.inside and not array.next:
            self._arrays.pop(job.array, None)

    def ended(self, job: Job) -> None:
        """It has ended, and is none of the engine's any more."""
        self.leaves(job)
        self._wait_no_more(job)
        for key in self._waited_for.pop(job.id, ()):
            found = self._after[key]
            how = found.left.pop(job.id)
            if not meets(how, job.state):
                self._fail(key, found, f"job {job.id} ended {job.state}")
            elif not found.left:
                del self._after[key]
                for number, waiting in found.jobs.items():
                    waiting.met = True
                    self.again(number)
        if job.name:
            named = self._named[job.uid, job.name]
            del named[bisect_left(named, job.id)]
            if named:
                self.again(self._oldest(job))
            else:
                del self._named[job.uid, job.name]

    def why(self, job: Job) -> str:
        """What keeps it aside, the first of it."""
        return next(self.rules(job), ("", "just submitted"))[1]

    def rules(self, job: Job) -> Iterator[tuple[str, str]]:
        """All that keeps it aside: ``held``, ``begin``, ``retry``, ``after``, ``singleton`` or ``array``, each in words."""
        options = job.options
        if options.held:
            yield "held", f"held by {options.held}"
        if (at := self.not_before(job)) > time.time():
            retry = f"retry {options.tried} of {options.retries} " if options.tried else "it could not start, and "
            again = at == options.retry_at
            yield "retry" if again else "begin", f"{retry if again else ''}begins at {_stamp(at)}"
        if (found := self._after.get(job.array or job.id)) is not None:
            more = f" and {len(found.left) - 1} more" if len(found.left) > 1 else ""
            yield "after", f"waits for the end of job {next(iter(found.left))}{more}"
        if options.singleton and (first := self._oldest(job)) != job.id:
            yield "singleton", f"waits for the end of job {first}, which has the same name"
        if options.array_limit and job.id in self._limited:
            yield "array", f"of its array {options.array_limit} may run at once"

    def awaited(self, job: Job, rule: str) -> Sequence[int]:
        """The jobs for whose ends it waits by one of ``rules``; of its array those of which one has to end."""
        if rule == "after":
            found = self._after.get(job.array or job.id)
            return [*found.left] if found is not None else []
        if rule == "singleton":
            named = self._named[job.uid, job.name]
            return named[: bisect_left(named, job.id)]
        return sorted(self._arrays.get(job.array, _Array()).inside) if rule == "array" else []

    def next_of_arrays(self, most: int) -> list[Following]:
        """Of each array whose limit keeps jobs aside, as long as these are not more than ``most`` in all; of the last only some."""
        found: list[Following] = []
        for array in self._arrays.values():
            heap, numbers = array.next.copy() if array.limited else [], list[int]()
            while heap and len(numbers) < most:
                if self.follows(number := heapq.heappop(heap)):
                    numbers.append(number)
            most -= len(numbers)
            if numbers:
                found.append(Following(frozenset(array.inside), numbers, not heap))
            if not most:
                break
        return found

    def follows(self, number: int) -> bool:
        """Whether the limit of its array keeps it aside, and nobody holds it."""
        entries = self.engine.entries
        return number in self._limited and number in self.kept and (entries.is_outline(number) or not entries[number].job.options.held)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # -- times

    def not_before(self, job: Job) -> float:
        """Seconds since 1970, 0 where it may begin at any time."""
        return max(job.options.begin, job.options.retry_at)

    def _arm(self) -> None:
        self.close()
        self._timer = None
        if self._times and not self.engine.closing:
            left = self._times[0][0] - time.time()
            self._timer = asyncio.get_running_loop().call_later(min(max(0.0, left), LOOK), self._due)

    def _due(self) -> None:
        now = time.time()
        for _ in range(AT_ONCE):
            if not self._times or self._times[0][0] > now:
                break
            number = heapq.heappop(self._times)[1]
            if number in self.kept:
                self.engine.entries[number].alarm = 0.0
                self.again(number)
        self._arm()
        self.engine.kick()

    # -- other jobs

    def _dependencies_met(self, entry: LiveJob) -> bool:
        if entry.met:
            return True
        key = entry.job.array or entry.job.id
        found = self._after.get(key)
        if found is None and self._newest[0] == key:
            found = self._newest[1]
        if found is None:
            found = self._look_up(key, dict(map(parse_dependency, entry.job.options.after)))
        if found.failed:
            self.engine.spawn(self._never([entry], found.failed))
        elif found.left:
            found.jobs[entry.job.id] = entry
        else:
            entry.met = True
        return entry.met

    def _look_up(self, key: int, wanted: dict[int, str]) -> _After:
        found = _After({number: how for number, how in wanted.items() if number in self.engine.entries})
        for number, state in queries.states(self.engine.reader, [*(wanted.keys() - found.left.keys())]).items():
            if not meets(wanted[number], state):
                found = _After({}, f"job {number} ended {state}")
                break
        if found.left:
            self._after[key] = found
        else:
            self._newest = key, found
        for number in found.left:
            self._waited_for.setdefault(number, set()).add(key)
        return found

    def _wait_no_more(self, job: Job) -> None:
        """It has ended: nothing of what it waited for is kept for it."""
        key = job.array or job.id
        found = self._after.get(key) if job.options.after else None
        if found is not None and found.jobs.pop(job.id, None) is not None and not found.jobs:
            self._forget(key, found)

    def _forget(self, key: int, found: _After) -> None:
        for number in found.left:
            keys = self._waited_for[number]
            keys.discard(key)
            if not keys:
                del self._waited_for[number]
        del self._after[key]

    def _fail(self, key: int, found: _After, why: str) -> None:
        self._forget(key, found)
        self.engine.spawn(self._never(list(found.jobs.values()), why))

    async def _never(self, entries: Sequence[LiveJob], why: str) -> None:
        for start in range(0, len(entries), AT_ONCE):
            part = [entry for entry in entries[start : start + AT_ONCE] if entry.job.id in self.kept and not entry.cancelled]
            await asyncio.gather(*(self.engine.withdraw(entry, f"dependency failed: {why}") for entry in part))

    def _oldest(self, job: Job) -> int:
        """Of the jobs of its user that have its name and have not ended."""
        return self._named[job.uid, job.name][0]


async def refused(
    engine: Engine, caller: Caller, after: Collection[str], turn: Callable[[], Awaitable[None]]
) -> dict[str, UnknownJob | NotPermitted]:
    """Of the words of ``after`` those that name a job which cannot be waited for, and why. A job can wait for jobs of its owner, a job of
    an administrator for any. ``turn``: awaited between pieces of work."""
    found: dict[str, UnknownJob | NotPermitted] = {}
    named = [(text, parse_dependency(text)[0]) for text in after]
    for start in range(0, len(named), AT_ONCE):
        if start:
            await turn()
        part = named[start : start + AT_ONCE]
        owners = queries.owners(engine.reader, [number for _, number in part])
        for text, number in part:
            if number not in owners:
                hint = "`dockless queue --all` lists them; old ones are forgotten"
                found[text] = UnknownJob(f"there is no job {number} to wait for", subject=str(number), hint=hint)
            elif not caller.may_manage(owners[number]):
                hint = "wait for jobs of your own"
                found[text] = NotPermitted(f"job {number} belongs to another user", subject=str(number), hint=hint)
    return found


def name_whole_arrays(engine: Engine, new: Sequence[NewJob]) -> list[NewJob]:
    """An array has the number of its first job: where that is named to be waited for, and no other of its jobs, all of them are meant.
    ``BadInput`` where those are more than a job may wait for."""
    known: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}
    for job in new:
        if job.options.after not in known:
            known[job.options.after] = _with_arrays(engine, job.options.after)
    return [
        job if known[job.options.after] == job.options.after else replace(job, options=replace(job.options, after=known[job.options.after]))
        for job in new
    ]


def _with_arrays(engine: Engine, after: tuple[str, ...]) -> tuple[str, ...]:
    wanted = dict(map(parse_dependency, after))
    arrays = Counter(queries.arrays(engine.reader, [*wanted]).values())
    found = list[str]()
    for number, how in wanted.items():
        members = queries.members(engine.reader, number, MAX_AFTER + 1) if arrays[number] == 1 else []
        found += [f"{how}:{member}" for member in members or [number]]
        if len(found) > MAX_AFTER:
            message = f"with all jobs of array {number} these are more than the {MAX_AFTER} that a job may wait for"
            raise BadInput(message, subject="after", hint="name some of its jobs: ok:FIRST-LAST")
    return tuple(found)


@lru_cache(1000)
def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
