"""What the daemon answers: jobs as a caller may see them, who holds what, and waiting for an end. Changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from dockless.base.dataclass import replace
from dockless.base.records import plain
from dockless.base.typing import Any
from dockless.base.units import format_size
from dockless.errors import NotPermitted, UnknownJob
from dockless.sched import clock
from dockless.sched.callers import Caller
from dockless.sched.engine import queue_state
from dockless.sched.engine.engine import Engine
from dockless.sched.engine.entry import LiveJob
from dockless.sched.engine.gpus import sharing
from dockless.sched.engine.gpus.hostgpus import HOST
from dockless.sched.engine.host import disk, host_supplies
from dockless.sched.engine.waiting.windows import said
from dockless.sched.jobs import NO_OPTIONS, Job, State
from dockless.sched.policy.decision import Reason, duration
from dockless.sched.policy.forecast import Forecast
from dockless.sched.policy.quotas import Quota
from dockless.sched.policy.supplies import CORES, MEMORY, amount, bare
from dockless.sched.policy.waiting import WaitingJob, grouped
from dockless.sched.policy.whatif import Earlier, Sooner
from dockless.sched.store import queries
from dockless.sched.wire import why_aside
from dockless.sched.wire.listing import Part, page
from dockless.sched.wire.outlook import Outlook
from dockless.sched.wire.protocol import Ahead, ClassInfo, GpuInfo, HostInfo, JobEvent, QuotaInfo, ReservationInfo, Why
from dockless.sched.wire.top import GpuShare

MAX_EVENTS = 1000
"""Of one job, in an answer."""
CHANGES = 3
"""Things that a job could ask for instead which are said."""
_AT_ONCE = 500
"""Job ids looked up together."""


class Answers:
    """Reads the engine's memory and, for what has ended, its database."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outlook = Outlook(engine)
        self._shown = lru_cache(1000)(self._by_index)

    def own(self, caller: Caller, number: int) -> Job:
        """The job, if it is the caller's to deal with. Raises UnknownJob, NotPermitted."""
        entry = self.engine.entries.get(number)
        job = entry.job if entry is not None else queries.job(self.engine.reader, number)
        if job is None:
            raise UnknownJob(
                f"there is no job {number}", subject=str(number), hint="`dockless queue --all` lists them; old ones are forgotten"
            )
        if not caller.may_manage(job.uid):
            raise NotPermitted(f"job {number} belongs to {job.user}", subject=str(number), hint="ask its owner or the administrator")
        return self.view(caller, job)

    def enterable(self, caller: Caller, number: int) -> Job:
        """The job, if the caller may enter it. Raises UnknownJob, NotPermitted."""
        job = self.own(caller, number)
        if not caller.may_enter(job.uid):
            raise NotPermitted(f"job {number} belongs to {job.user}", subject=str(number), hint="its owner and root can enter it")
        return job

    def job(self, caller: Caller, number: int) -> Job:
        """One job in full."""
        self.own(caller, number)
        stored = queries.job(self.engine.reader, number)
        assert stored is not None
        entry = self.engine.entries.get(number)
        return self.view(caller, stored if entry is None else replace(entry.job, attempts=stored.attempts))

    def events(self, caller: Caller, number: int) -> list[JobEvent]:
        """What happened to a job, the newest ``MAX_EVENTS``. Raises UnknownJob, NotPermitted."""
        self.own(caller, number)
        return [JobEvent(*one) for one in queries.events(self.engine.reader, number, MAX_EVENTS)]

    def view(self, caller: Caller, job: Job) -> Job:
        """The job as ``caller`` may see it, with the reason it waits. Why another's job ended can hold words of its command."""
        if job.state is State.PENDING and not job.reason:
            job = replace(job, reason=self.reasons()(job))
        if not caller.may_manage(job.uid):
            job = replace(job, name="", image="", command="", options=NO_OPTIONS, reason=job.reason if job.state is State.PENDING else "")
        return job

    async def why(self, caller: Caller, number: int, turn: Callable[[], Awaitable[None]]) -> Why:
        """``turn``: awaited between pieces of work. Raises UnknownJob, NotPermitted."""
        engine = self.engine
        job = self.own(caller, number)
        entry, seen, foretold = engine.entries.get(number), None, Forecast()
        if entry is not None and job.state is State.PENDING and entry.first.job.id in engine.aside.kept:
            foretold = await self.foretold(turn)
            job = self.own(caller, number)
        elif entry is not None and job.state is State.PENDING:
            waiting = entry.first.waiting
            asks = waiting.gpus or waiting.cores or waiting.memory
            seen = await self.outlook.of(waiting, bool(asks and entry.gang is None and self._held(waiting)), turn)
            job = self.own(caller, number)  # it may have started meanwhile
        if job.state is not State.PENDING or entry is None or entry.cancelled:
            errors = queries.gpu_errors(engine.reader, number).get(job.attempt, ())
            return Why(number, str(job.state), "; ".join(filter(None, (job.reason, *errors))))
        waiting = entry.first.waiting
        if waiting.id in engine.aside.kept and job.reason == engine.aside.why(entry.first.job):
            return why_aside.why(engine, entry.first, number, foretold, self.outlook.places())
        if waiting.id in engine.aside.kept or seen is None:
            return Why(number, str(job.state), job.reason, 0, len(engine.waiting))
        found = Why(
            *(number, str(job.state), job.reason, seen.place, seen.waiting),
            ahead=tuple(Ahead(other.id, other.user, other.gpus) for other in seen.ahead),
        )
        if engine.decision is None or not self._held(waiting):
            return found
        reason, now = engine.decision.reason(waiting), clock.ticks()
        latest = reason.latest and seen.place == 1 and not reason.slips(seen.starts)
        starts_at = reason.starts_at if latest else _starts_at(reason, seen.starts, seen.whole)
        sooner = tuple(_words(seen.sooner, job))
        now_with = {"gpus": seen.sooner.gpus, "any": seen.sooner.any_gpus, "limit": seen.sooner.time_limit}
        later = starts_at is None and not seen.whole and seen.until is not None
        return replace(
            found,
            starts_in=None if starts_at is None else max(0.0, starts_at - now),
            sooner=sooner,
            earlier=tuple(_instead(one, job, now) for one in seen.earlier if not now_with.get(one.what))[: max(0, CHANGES - len(sooner))],
            rule=reason.code,
            at_latest=latest,
            endless=seen.endless if starts_at is None else (),
            starts_after=max(0.0, seen.until - now) if later and seen.until is not None else None,
        )

    def _held(self, job: WaitingJob) -> bool:
        """The last pass has left it waiting, by the rules of the policy."""
        engine = self.engine
        return not engine.outage.text and HOST not in engine.drained and engine.decision is not None and engine.decision.held(job)

    async def foretold(self, turn: Callable[[], Awaitable[None]]) -> Forecast:
        """Of all that wait; of nobody while nothing is started. ``turn``: awaited between pieces of work."""
        engine = self.engine
        if engine.closing or engine.outage.text or HOST in engine.drained or engine.decision is None:
            return Forecast()
        return await self.outlook.starts(turn)

    def starts(self, waiting: Mapping[int, WaitingJob], found: Forecast) -> tuple[dict[int, float], dict[int, float]]:
        """In how many seconds some of those that wait start, as ``why`` says it, and of which others no more is foretold than that they
        start no earlier than in so many; those of which nobody can say are left out. ``waiting``: as ``Entries.seen_of`` has them."""
        engine, now, decision = self.engine, clock.ticks(), self.engine.decision
        starts, after = dict[int, float](), dict[int, float]()
        if decision is None:
            return starts, after
        seen = waiting.items()
        if found.whole:  # of all others nobody can say
            seen = {number: job for number, job in seen if job.id in found.starts}.items()
        told = {job.id for _, job in seen if job.id in engine.aside.kept and engine.aside.follows(job.id)}
        line = [job for _, job in seen if job.id not in engine.aside.kept]
        for alike in grouped(line, [(id(job.kind), job.time_limit, job.priority) for job in line]).values():
            if self._held(alike[0]):  # else it may not start yet by settings that are new, or does now
                told |= engine.waiting.those(alike)
        until = None if found.whole or found.until is None else max(0.0, found.until - now)
        for number, job in seen:
            if job.id not in told:
                continue
            at = found.starts.get(job.id)
            if at is None and job.id in decision.firsts and job.id not in engine.aside.kept:
                at = _starts_at(decision.reason(job, now), at, found.whole)
            if at is not None:
                starts[number] = max(0.0, at - now)
            elif until is not None:
                after[number] = until
        return starts, after

    def reasons(self, seen: Callable[[int], WaitingJob | None] | None = None) -> Callable[[Job], str]:
        """What says of a job that waits why it does, as things are at this moment: nothing may happen in between. ``seen``: as
        ``Entries.seen`` says it."""
        find = seen or self.engine.entries.seen
        engine, decision, now = self.engine, self.engine.decision, clock.ticks()
        if engine.outage.text:
            return lambda _: f"nothing can be started: {engine.outage.text}"
        if HOST in engine.drained:
            return lambda _: f"nothing is started: the host was {engine.drained[HOST]}"
        aside = engine.aside.kept
        firsts = decision.firsts if decision is not None else frozenset()
        texts: dict[tuple[int, float], str] = {}

        def why(job: Job) -> str:
            waiting = find(job.id)
            if waiting is None or decision is None:
                return "just submitted"
            number = waiting.id
            if number in aside:
                return engine.aside.why(job if number == job.id else engine.entries[number].job)
            text = texts.get((id(waiting.kind), waiting.time_limit)) if number not in firsts else None
            if text is None:
                text = self._shown(decision.reason(waiting, now).text + (self._troubles() if waiting.gpus else ""))
                if number not in firsts:
                    texts[id(waiting.kind), waiting.time_limit] = text
            return text

        return why

    def _troubles(self) -> str:
        return "".join(f"; {gpu.uuid} is out of service: {gpu.trouble}" for gpu in self.engine.gpus.everything if gpu.trouble)

    def _by_index(self, text: str) -> str:
        for gpu in self.engine.gpus.gpus:
            if gpu.uuid in text:
                text = text.replace(gpu.uuid, gpu.uuid if gpu.parent else f"GPU {gpu.index}")
        return text

    def page(self, caller: Caller, part: Part) -> dict[str, Any]:
        """The same as ``view`` shows them, with their places and when they start."""
        return page(part, self.reasons(part.seen.get), lambda uid: not caller.may_manage(uid))

    async def wait(self, caller: Caller, numbers: Sequence[int], timeout: float | None, turn: Callable[[], Awaitable[None]]) -> int:
        """Until all have ended: 0, or (timeout) how many have not. ``turn``: awaited between pieces of work. Raises UnknownJob,
        NotPermitted."""
        await self.all_own(caller, numbers, turn)
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        for number in numbers:  # the end of all is the end of the last, so one after the other will do
            entry = self.engine.entries.get(number)
            if entry is None:
                continue
            future: asyncio.Future[Job] = loop.create_future()
            entry.ended.append(future)
            try:
                await asyncio.wait([future], timeout=None if deadline is None else max(0.0, deadline - loop.time()))
            finally:
                if not future.done():
                    entry.ended.remove(future)
            if not future.done():
                return sum(number in self.engine.entries for number in numbers)
        return 0

    async def all_own(self, caller: Caller, numbers: Sequence[int], turn: Callable[[], Awaitable[None]]) -> None:
        """All of them are the caller's to deal with. ``turn``: awaited between pieces of work. Raises UnknownJob, NotPermitted."""
        entries = self.engine.entries
        for part in (numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE)):
            await turn()
            whole = {number: job.uid for number, job in entries.jobs(part)[0].items()}
            owners = whole | queries.owners(self.engine.reader, [number for number in part if number not in whole])
            for number in part:
                if owners.get(number) != caller.uid:
                    self.own(caller, number)

    def all_of(self, caller: Caller, numbers: Sequence[int]) -> Iterator[Job]:
        """Those of them that are remembered."""
        for number in numbers:
            with contextlib.suppress(UnknownJob):
                yield self.own(caller, number)

    async def started(self, entry: LiveJob) -> None:
        """Until the job's program runs, or it never will."""
        while entry.job.state in (State.PENDING, State.STARTING):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry.up.append(future)
            await future

    def gone(self, entry: LiveJob) -> asyncio.Future[None]:
        """Resolved when nothing more will be written by the running attempt."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if entry.silent:  # its end is being written down
            future.set_result(None)
        else:
            entry.gone.append(future)
        return future

    def info(self) -> HostInfo:
        """The host and who holds what of it, as of the last look at its GPUs."""
        holder: dict[str, LiveJob] = {}
        shares: dict[str, list[GpuShare]] = {}
        for one in sorted(self.engine.active.values(), key=lambda one: one.job.id):
            memory = sharing.share(self.engine, one.job)
            for uuid in one.job.devices:
                holder.setdefault(uuid, one)
                if memory:
                    shares.setdefault(uuid, []).append(GpuShare(one.job.user, memory << 20, one.job.id))
        others = queue_state.others(self.engine)
        for job in others:
            for uuid in job.gpus if job.share else ():
                shares.setdefault(uuid, []).append(GpuShare(job.user, job.share << 20))
        user_of = {gpu: job.user for job in others for gpu in job.gpus}
        rows = []
        for gpu in self.engine.gpus.everything:
            row = GpuInfo(
                gpu.index,
                gpu.uuid,
                gpu.model,
                gpu.memory,
                -1 if gpu.numa_node is None else gpu.numa_node,
                gpu.simulated,
                gpu.uuid not in holder and (gpu.uuid in user_of or bool(gpu.used_by)),
                user=user_of.get(gpu.uuid, ""),
                trouble=gpu.trouble,
                shares=tuple(shares.get(gpu.uuid, ())),
            )
            if (entry := holder.get(gpu.uuid)) is not None:
                row = replace(row, job=entry.job.id, attempt=entry.job.attempt, user=entry.job.user, since=entry.job.started)
            rows.append(row)
        used: dict[tuple[str, str], int] = {}
        firsts = [entry for entry in self.engine.active.values() if entry is entry.first]
        holdings = [(entry.job.user, entry.live.quota_groups, len(entry.devices)) for entry in firsts]
        for user, groups, count in (*holdings, *((job.user, job.groups, len(job.gpus)) for job in others)):
            for key in (("user", user), *(("group", name) for name in groups)):
                used[key] = used.get(key, 0) + count
        quotas = self.engine.config.quotas
        users = sorted({*quotas.users, *(name for kind, name in used if kind == "user")})
        table = [("user", name, used.get(("user", name), 0), quotas.of("user", name).limit) for name in users]
        table += [("group", name, used.get(("group", name), 0), quotas.of("group", name).limit) for name in sorted(quotas.groups)]
        cores, cores_used = host_supplies.in_use(self.engine, CORES)
        memory, memory_used = host_supplies.in_use(self.engine, MEMORY)
        return HostInfo(
            tuple(rows),
            len(self.engine.waiting) + len(self.engine.aside.kept),
            len(self.engine.active),
            self.engine.config.cpu_jobs,
            self.engine.gpus.error,
            tuple(table),
            self.engine.drained.get(HOST, ""),
            tuple(self._reservations()),
            cores=cores / 1000,
            cores_used=cores_used / 1000,
            memory=memory,
            memory_used=memory_used,
            disk=disk.limits(self.engine),
            unleased=tuple(self.engine.gpus.unleased.items()),
        )

    def _reservations(self) -> Iterator[ReservationInfo]:
        wall = time.time()
        for one in self.engine.config.reservations:
            if (hours := one.start.next(one.duration, wall)) is not None:
                yield ReservationInfo(
                    *(one.name, one.gpus, tuple(sorted(one.users)), tuple(sorted(one.groups)), *hours, said(*hours), one.cores, one.memory)
                )

    def quotas(self) -> list[QuotaInfo]:
        """The default, where the settings have one; of each user with a quota or a job, then of each group with a quota."""
        quotas = self.engine.config.quotas
        counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for name in quotas.users:
            counts["user", name]
        held: dict[tuple[str, str], set[str]] = defaultdict(set)
        firsts = [entry for entry in self.engine.active.values() if entry is entry.first]
        running = ((e.job.user, e.live.quota_groups, e.devices, e.waiting.width) for e in firsts)
        others = ((job.user, job.groups, job.gpus, 0) for job in queue_state.others(self.engine))
        for user, groups, gpus, jobs in (*running, *others):
            for key in (("user", user), *(("group", group) for group in groups)):
                counts[key].update(gpus=len(gpus), running=jobs, running_without_gpus=jobs if not gpus else 0)
                held[key].update(gpus)
        of_classes = self.engine.gpus.of_classes(quotas.classes)
        in_line = (((first := line.first()).user, first.groups, len(line)) for line in self.engine.waiting.lines.values())
        aside = ((*key, count) for key, count in self.engine.aside.counts.items())
        for user, groups, count in (*in_line, *aside):
            for key in (("user", user), *(("group", group) for group in groups)):
                counts[key]["waiting"] += count
        per_user = self.engine.per_user
        for uid, jobs in per_user.jobs.items():
            user, groups = self.engine.callers.quota_of(uid)
            for key in (("user", user), *(("group", group) for group in groups)):
                counts[key].update(in_queue=jobs, submitting=per_user.submitting[uid])
        for name in quotas.groups:
            counts["group", name]
        found = []
        if quotas.default != Quota():
            classes = tuple(ClassInfo(of, 0, **plain(said)) for of, said in quotas.default.classes.items())
            found.append(QuotaInfo("default", "", **{**plain(quotas.default), "classes": classes}))
        for kind, name in sorted(counts, key=lambda key: (key[0] != "user", key[1])):
            if kind == "user" or name in quotas.groups:
                quota, used = quotas.of(kind, name), held[kind, name]
                classes = tuple(ClassInfo(of, len(used.intersection(of_classes[of])), **plain(said)) for of, said in quota.classes.items())
                values: dict[str, Any] = {**counts[kind, name], **plain(quota), "classes": classes}
                found.append(QuotaInfo(kind, name, **values))
        return found


def _starts_at(reason: Reason, foretold: float | None, whole: bool) -> float | None:
    """What is foretold, or, where that did not look so far, the moment for which the policy keeps a place."""
    return reason.starts_at if foretold is None and not whole else foretold


def _words(found: Sooner, job: Job) -> Iterator[str]:
    if found.gpus is not None:
        yield _fewer(found.gpus, job)
    if found.any_gpus:
        yield _any(job)
    for pool, less, asked in ((CORES, found.cores, job.options.millicores), (MEMORY, found.memory, job.options.memory)):
        if less is not None:
            yield f"with {amount(pool, less)} instead of {bare(pool, asked)}"
    if found.time_limit is not None:
        yield f"with a time limit of {duration(found.time_limit)} or less"


def _instead(found: Earlier, job: Job, now: float) -> str:
    wait, asks = found.starts - now, found.instead
    if found.what == "any":
        words = _any(job)
    elif found.what == "gpus":
        words = _fewer(asks.gpus, job)
    elif found.what == "class":
        words = f"with {_count(asks.gpus)} of model {asks.gpu_class}"
    elif found.what == "share":
        words = f"with {format_size(asks.share << 20)} of a GPU instead of {format_size(job.options.gpu_share << 20)}"
    else:
        words = f"with a time limit of {duration(asks.time_limit)}"
    return f"at once {words}" if wait < 1 else f"in about {duration(wait)} {words}"


def _count(gpus: int) -> str:
    return f"{gpus} GPU{'' if gpus == 1 else 's'}"


def _fewer(gpus: int, job: Job) -> str:
    return f"with {_count(gpus)} instead of {job.gpu_count}"


def _any(job: Job) -> str:
    return f"with any {job.gpu_count} GPUs instead of these" if job.gpu_count > 1 else "with any GPU instead of this one"
