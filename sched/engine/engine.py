"""The daemon's middle: what is in the queue, who starts next, what has ended. One asyncio loop, no locks.

Memory mirrors the database: every change is committed first (by ``writer``), then shown. Work that blocks (launching, stopping,
removing) is done in threads; the end of a job is seen through a pidfd in the loop, so nothing here polls.

The order of writes is the promise of the house::

    lease + attempt STARTING committed ─► launch ─► RUNNING committed ─► exit committed, lease gone ─► sandbox removed

Where the program ends at once, RUNNING and its exit are one commit: until then the sandbox's own record tells how it ended. Nobody waits
for the removal; what is left of it the next daemon finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from dockless.base import paths
from dockless.base.dataclass import copied
from dockless.base.settings import DEFAULTS
from dockless.base.typing import Any
from dockless.errors import BadInput, SchedError
from dockless.sandbox.spec import GRACE, Spec
from dockless.sched import clock
from dockless.sched.callers import Caller, Callers
from dockless.sched.config import Config
from dockless.sched.engine import outside, queue_state, stopping
from dockless.sched.engine.admission.admission import Admission
from dockless.sched.engine.admission.admitting import admitted, next_round
from dockless.sched.engine.admission.per_user import PerUser, taken
from dockless.sched.engine.attempts import Handle, Launcher
from dockless.sched.engine.entries import Entries, outlines
from dockless.sched.engine.entry import LiveJob, just_submitted, live_jobs, quiet_collector, wake
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.gpus import draining, kept_out, mps, sharing
from dockless.sched.engine.gpus.figures import Watch
from dockless.sched.engine.gpus.hostgpus import HOST, HostGpus
from dockless.sched.engine.host import host_supplies, own_cores, processors
from dockless.sched.engine.lifecycle import ending, gang_ends, gangs, preempting, remains, starting
from dockless.sched.engine.notices import Notice, Notices
from dockless.sched.engine.outage import Outage
from dockless.sched.engine.waiting.aside import Aside
from dockless.sched.engine.waiting.regrouping import regroup
from dockless.sched.engine.wants import waited_out
from dockless.sched.jobs import NO_OPTIONS, JobOptions, State, sandbox_id
from dockless.sched.policy import policy
from dockless.sched.policy.decision import Decision
from dockless.sched.policy.past_usage import PastUsage
from dockless.sched.policy.waiting import WaitingJob, WaitingList
from dockless.sched.store import queries, queue, schema, usage
from dockless.sched.store.kept import Kept
from dockless.sched.store.queries import Live
from dockless.sched.store.writer import Change, QueueWriter
from dockless.sched.used import By, Used

LAUNCHERS = 4
LAUNCHERS_ON_GPUS = 16
AT_A_TIME = 50
"""Jobs of one request that are looked at before somebody else's turn."""
SHOWN_AT_ONCE = 500
"""Jobs that are on disk and come into memory before somebody else's turn."""
MOST_NAMED = 1_000_000
"""Jobs that those of an array wait for, counted for each of them: each has them on disk."""
LOOK_AGAIN = 5.0
"""Seconds until GPUs in use outside dockless are looked at again, while a job waits."""


class Engine:
    """``directory``: holds jobs.db and the kept logs. Call ``recover`` before anything else, ``close`` at the end."""

    def __init__(self, directory: Path, launcher: Launcher, gpus: HostGpus, config: Config, check_image: Callable[[str], None]) -> None:
        self.launcher = launcher
        self.gpus = gpus
        self.logs = directory / "logs"
        paths.make(self.logs)
        database = directory / "jobs.db"
        writing = schema.open_queue(database)
        self.queue_id = queries.queue_id(writing)
        gpus.changed = self.kick
        gpus.ours = partial(queue_state.ours, self)
        gpus.hand_out(config.devices)
        usage.know(writing, {unit.uuid: unit.model for unit in gpus.everything})
        self.database = database
        self.shutdown = queries.shutdown(writing)
        self.reader = schema.connect(database)
        self._writer = QueueWriter(writing, self._committed)
        self.loop = asyncio.get_running_loop()
        self.outage = Outage(directory, self.write, self.kick)
        self.launching = ThreadPoolExecutor(LAUNCHERS, "dockless-launch")
        # Apart, so that starts that wait for a driver that hangs keep none from starting that wants no GPU.
        self.launching_on_gpus = ThreadPoolExecutor(LAUNCHERS_ON_GPUS, "dockless-launch-gpu")
        # Apart, so that removing a user's million files delays neither another job's end nor its signals.
        self.looking = ThreadPoolExecutor(16, "dockless-end")
        self.removing = ThreadPoolExecutor(8, "dockless-remove")
        self.serving = ThreadPoolExecutor(32, "dockless-mps")
        self.signalling = ThreadPoolExecutor(4, "dockless-signal")
        self.slicing = ThreadPoolExecutor(1, "dockless-mig")
        # Anybody may ask for reports, which read years: nobody's job waits for that to end.
        self._reporting = ThreadPoolExecutor(2, "dockless-report")
        self._tasks: set[asyncio.Task[None]] = set()
        self.boot = clock.boot_id()
        self.entries = Entries(self._whole)
        self.waiting = WaitingList()
        self.aside = Aside(self)
        self.drained: dict[str, str] = {}
        self.active: dict[int, LiveJob] = {}
        self.per_user = PerUser()
        self.weights: dict[int, int] = {}  # what the group of each user weighs, while jobs of hers run
        self.alone: dict[int, frozenset[int]] = {}  # the processors that no other user's jobs run on, by user (host.own_cores)
        self.confined: dict[int, frozenset[int]] = {}  # those that the group of each user was kept to, while jobs of hers run
        self.confining = False
        self.kept = Kept(self.logs)
        self.watch = Watch(self)
        self.xids: Counter[tuple[str, int]] = Counter()  # how often each Xid error was heard, by GPU or slice
        self.mps = mps.ControlDaemons(launcher, self.queue_id)
        self.mps_turns: dict[str, asyncio.Lock] = {}
        self.notices = Notices()
        self.left: list[Handle] = []
        self.removals = remains.Removals(self.loop, self.removing, lambda handle: self.left.append(handle))
        self.ends = 0
        self.end_soon = False  # whether the newest program to end had ended within ``ending.SOON``
        self.left_specs: Counter[int] = Counter()  # characters that ended jobs of each user leave, since that was looked after
        self.many_ended = asyncio.Event()
        self.decision: Decision | None = None
        self.past: PastUsage | None = None
        self.outside = outside.Outside()
        self.said: Mapping[str, Any] = DEFAULTS  # the settings as they were read last
        self._took = 0.0
        self.newest: tuple[int, Spec] = 0, Spec()
        self._kicked = False
        self._undecided: list[asyncio.Future[None]] = []
        self._look_again: asyncio.TimerHandle | None = None
        self._time_comes: asyncio.TimerHandle | None = None
        self.settles_again: asyncio.TimerHandle | None = None
        self._settled = False
        self.closing = False
        gpus.settle = partial(kept_out.settle, self)
        self._check_image = check_image
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Take new settings; quotas bind what starts from now on."""
        self.config = config
        self.notices.ways = config.notify
        self.gpus.keep_back(mps.SERVICE_MEMORY if config.has_mps else 0)
        self.callers = Callers(config)
        regroup(self)
        self.supplies = host_supplies.here(config)
        own_cores.apply(self)
        self.admission = Admission(config, self.gpus, self.callers, self._check_image, self.supplies)
        self.decision = None
        if self.past is not None and self.past.half_life != config.half_life:
            self.past = None  # else it stays: it has also what jobs had that are forgotten
        self.kick()

    # -- the database

    def _committed(self, outcome: list[tuple[Any, Any, BaseException | None]]) -> None:
        # One wake-up of the loop for a whole transaction, not one per change.
        self.loop.call_soon_threadsafe(_settle, outcome)

    def write(self, change: Change[Any]) -> asyncio.Future[Any]:
        """Commit ``change``; the future is resolved in the loop, in commit order."""
        future: asyncio.Future[Any] = self.loop.create_future()
        self._writer.write(change, future)
        return future

    async def write_surely(self, change: Change[Any], meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Commit what must not be lost: a full disk is waited out, for as long as it takes. ``meanwhile``: done once, if it takes."""
        while True:
            try:
                await self.write(change)
                return
            except SchedError as error:
                if error.subject != "jobs.db":
                    raise
                self.outage.begins(error)
            if meanwhile is not None:
                await meanwhile()
                meanwhile = None
            await self.outage.over()

    def spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            say(f"unexpected error: {describe(error)}")

    # -- coming back

    async def recover(self) -> None:
        """Take up what an earlier daemon left: nothing lost, nothing run twice."""
        with quiet_collector():
            others, limited = outlines(self)
            entries = self._enter(queries.live(self.reader, others))
            unsettled = [entry for entry in entries if entry.job.state is not State.PENDING]
            self.active |= {entry.job.id: entry for entry in unsettled}
            draining.take_over(self, queries.drained(self.reader))
            back = {entry.job.id: entry for entry in entries if entry.job.state is State.PENDING}
            limits = {number: (array, limit) for number, array, limit in limited}
            for number in sorted([*back, *limits]):  # of an array the first come first
                if number in back:
                    self.line_up(back[number])
                elif (waiting := self.entries.seen(number)) is not None and not self.aside.limit_keeps(waiting, *limits[number]):
                    self.waiting.add(waiting)
        regroup(self)  # the settings may be others
        for entry, error in zip(
            unsettled, await asyncio.gather(*(starting.take_up(self, entry) for entry in unsettled), return_exceptions=True), strict=True
        ):
            if error is not None:
                self.spawn(ending.give_up(self, entry, error))
        own_cores.taken_up(self)
        await remains.sweep(self)
        await sharing.take_up(self)
        # Not a moment earlier: what starts while the above looks around would be taken for something left behind.
        self._settled = True
        self.kick()

    async def note_shutdown(self) -> None:
        """The host is going down: what ends from now on may have been ended by that."""
        now = time.time()
        with contextlib.suppress(SchedError):  # a disk that is full keeps nobody from ending
            await self.write(lambda db: queue.note_shutdown(db, now))

    async def back(self, entry: LiveJob, change: Change[Any], options: JobOptions | None = None) -> None:
        """The job waits again. ``options``: that it has from then on, and not before: who looks meanwhile sees why its attempt ends."""
        if entry.gang is not None:
            await gang_ends.over(self, entry, change)
            return
        entry.silent = True
        if options is None and (entry.job.options.preempted_by or entry.job.options.requeue):
            change = preempting.unmarked(entry, change)
        await self.write_surely(change)
        await self.take_down(entry)
        if options is not None:
            entry.show(options=options)
        self.active.pop(entry.job.id, None)
        processors.ended(self, entry.job.uid)
        entry.silent = False
        if entry.cancelled:
            await ending.end(self, entry, State.CANCELLED, "cancelled before it ran", None, None)
            return
        self.line_up(entry)
        self.kick()

    async def take_down(self, entry: LiveJob) -> None:
        """Its attempt is over on disk, and it waits again: so it is here, and of its sandbox nothing is left."""
        queue_state.count_usage(self, entry)
        if entry.job.state is State.RUNNING:
            self.tell(entry, "preempt")
        if entry.handle is not None:
            await remains.clear(self, entry.handle)
            entry.handle = None
        entry.ends = None
        entry.show(state=State.PENDING, started=0.0, devices=(), reason="")

    # -- submit

    async def submit(
        self,
        caller: Caller,
        specs: Sequence[Any],
        array: int | None,
        in_array: tuple[int, int] = (0, 0),
        gang: bool = False,
        turn: Callable[[], Awaitable[None]] = next_round,
    ) -> list[int]:
        """Queue jobs given as plain JSON values, all or none. ``array``: that many copies of the one given. ``in_array``: their place in an
        older array, see ``NewJob``. ``gang``: they start together, or not at all. ``turn``: awaited between pieces of
        work; for a request, until it is its user's."""
        if gang and array is not None:
            raise BadInput("jobs that start together are no array", subject="array", hint="submit them without a count")
        if array is not None and len(specs) != 1:
            raise BadInput("an array is made of one job", subject="array", hint="submit several jobs without a count")
        if self.closing:
            raise SchedError("the daemon is ending", hint="try again when it is back")
        count = len(specs) if array is None else array
        self.admission.refuse_too_many(caller, self.per_user, count)
        with self.per_user.coming(caller.uid, count, 0):
            new = await admitted(self, caller, specs, turn, array=array is not None, in_array=in_array, gang=gang)
            if array is not None and array * len(new[0].options.after) > MOST_NAMED:
                hint = "let one job wait for them, and the array for that job"
                raise BadInput(
                    f"{array} jobs that each wait for {len(new[0].options.after)} others are too many", subject="after", hint=hint
                )
            size = sum({job.spec: taken(len(job.spec), job.options) for job in new}.values())
            self.admission.refuse_too_large(caller, self.per_user, size)
            if array is not None:
                new *= array
            now = time.time()
            together = array is not None or gang
            with self.per_user.coming(caller.uid, 0, size):
                ids: list[int] = await self.write(lambda db: queue.insert(db, new, together, now))
            await self.show_all(ids, new, now, ids[0] if together else 0, turn)
        return ids

    async def show_all(
        self, ids: Sequence[int], new: Sequence[queue.NewJob], now: float, array: int, turn: Callable[[], Awaitable[None]]
    ) -> None:
        """Jobs that are on disk now: in memory, too, in turns. Whoever calls has them counted as ``coming``. ``array``: as in
        ``just_submitted``."""
        for start in range(0, len(ids), SHOWN_AT_ONCE):
            if start:
                await turn()
            end = start + SHOWN_AT_ONCE
            self._show(just_submitted(ids[start:end], new[start:end], now, array))

    def _show(self, lives: Sequence[Live]) -> None:
        held = True
        for entry in self._enter(lives):
            self.line_up(entry)
            entry = entry.first
            held = held and (entry.job.id in self.aside.kept or (self.decision is not None and self.decision.held(entry.waiting)))
        if not held:
            self.kick()

    def _enter(self, lives: Sequence[Live]) -> list[LiveJob]:
        entries = self._made(lives)
        for entry in entries:
            self.entries[entry.job.id] = entry
            self.per_user.enter(entry.live)
            self.aside.enter(entry.job)
        gangs.form(entries, self.supplies)
        return entries

    def _made(self, lives: Sequence[Live]) -> list[LiveJob]:
        entries = live_jobs(lives)
        for entry in entries:
            live, job = entry.live, entry.live.job
            if live.boot == self.boot:
                entry.since = live.ticks
            if job.time_limit and live.boot == self.boot:
                entry.ends = live.ticks + job.time_limit
        return entries

    def _whole(self, waiting: WaitingJob) -> LiveJob:
        """Of a job that waits, by what the policy sees of it."""
        (entry,) = self._made(queries.live(self.reader, [waiting.id]))
        entry.waiting = waiting
        entry.live = copied(entry.live, quota_groups=waiting.groups)  # the queue on disk may not have them yet
        return entry

    def line_up(self, entry: LiveJob) -> None:
        """It waits: in line, or aside while it may not start. The first of a gang does it for all."""
        if entry is not entry.first:
            return
        if entry.job.options is NO_OPTIONS or not self.aside.keeps(entry):
            self.waiting.add(entry.waiting)

    def step_back(self, entry: LiveJob) -> None:
        """It waits no more, for now."""
        entry = entry.first
        if not self.aside.drop(entry):
            self.waiting.remove(entry.waiting)
        self.aside.leaves(entry.job)

    # -- deciding and starting

    def kick(self) -> None:
        """Something changed that may let a job start: decide once, soon. A pass that takes long gets half of the time."""
        if self._settled and not self._kicked and not self.closing:
            self._kicked = True
            self.loop.call_later(self._took, self._pass)

    def _pass(self, looked: bool = False) -> None:
        if not looked and self.waiting.wants_gpus and (self.gpus.is_old or queue_state.others_may_have_some(self)) and not self.closing:
            self.spawn(self._look_and_pass())
            return
        self._kicked = False
        wake(self._undecided)
        if self.closing or self.outage.text or HOST in self.drained:  # the end of either kicks again
            return
        now, began = clock.ticks(), self.loop.time()
        decision = self.decision = policy.decide(queue_state.state(self), now)
        self._took = self.loop.time() - began
        for start in decision.starts:
            starting.start(self, self.entries[start.job], start.gpus, now)
        for one in decision.preempts:
            preempting.preempt(self, self.entries[one.job], one.by)
        if self._time_comes is not None:
            self._time_comes.cancel()
            self._time_comes = None
        if decision.again is not None:
            self._time_comes = self.loop.call_later(max(0.0, decision.again - now), self.kick)
        if self.waiting and decision.others_have_gpus and self._look_again is None:
            self._look_again = self.loop.call_later(LOOK_AGAIN, self._looked)

    async def _look_and_pass(self) -> None:
        try:
            await self.gpus.look()
        finally:
            self._pass(looked=True)

    async def decided(self) -> None:
        """Until what has changed so far is known to the reasons for which jobs wait."""
        if self._kicked:
            future: asyncio.Future[None] = self.loop.create_future()
            self._undecided.append(future)
            await future

    def _looked(self) -> None:
        self._look_again = None
        self.kick()

    async def each(self, numbers: Sequence[int], work: Callable[[int], Awaitable[None]], turn: Callable[[], Awaitable[None]]) -> None:
        """``work`` on each, whatever goes wrong with another. ``turn``: awaited between pieces of work."""
        wrong: list[BaseException] = []
        for start in range(0, len(numbers), AT_A_TIME):
            await turn()
            part = map(work, numbers[start : start + AT_A_TIME])
            wrong += [error for error in await asyncio.gather(*part, return_exceptions=True) if error is not None]
        if wrong:
            if len(wrong) < len(numbers):
                wrong[0].add_note(f"it was done for {len(numbers) - len(wrong)} of the {len(numbers)} jobs that were named")
            raise wrong[0]

    async def cancel(self, number: int, who: str, grace: float | None) -> None:
        """End a job; returns when the wish is on disk. One that has ended stays as it is."""
        entry = self.entries.get(number)
        if entry is None:
            return
        first, now = not entry.cancelled, time.time()
        with_it = entry.ended_with
        if entry.job.state is State.PENDING and first:
            await self.withdraw(entry, f"cancelled by {who}")
        elif (with_it or (entry.gang is not None and entry.gang.settling)) and not entry.job.state.ended:
            for one in (entry, *with_it):
                one.cancelled = True
            try:
                if first:
                    await self.write(lambda db: queue.want_cancel(db, number, now, f"by {who}"))
            finally:  # a disk that is full is no reason to let it go on
                for one in with_it:
                    stopping.stop(self, one, grace)

    async def withdraw(self, entry: LiveJob, reason: str) -> None:
        """End a job that waits."""
        if entry.gang is not None:
            await gang_ends.withdraw(self, entry.gang, reason)
            return
        entry.cancelled = True
        self.step_back(entry)
        try:
            await ending.end(self, entry, State.CANCELLED, reason, None, None)
        except SchedError:
            entry.cancelled = False
            self.line_up(entry)
            raise

    def name(self, number: int, attempt: int) -> str:
        return sandbox_id(number, attempt, self.queue_id)

    def log_base(self, number: int, attempt: int) -> Path:
        """Where an ended attempt's output is kept, without the suffix."""
        return self.logs / self.name(number, attempt)

    async def used(self, since: float, until: float, by: By) -> list[Used]:
        """See ``usage.report``."""

        def read() -> list[Used]:
            with contextlib.closing(schema.connect(self.database)) as db:
                return usage.report(db, since, until, time.time(), by)

        found: list[Used] = await self.reported(read)
        return found

    async def reported(self, work: Callable[..., Any], *args: Any) -> Any:
        """``work``, which may read all that is remembered, with a connection of its own."""
        return await self.in_thread(self._reporting, work, *args)

    def tell(self, entry: LiveJob, event: str) -> None:
        """Its owner, who asked to be told of such events."""
        if event in entry.job.options.notify:
            self.notices.tell(Notice(event, entry.job, entry.job.options.notify_to))

    # -- the end of the daemon

    async def close(self) -> None:
        """Start nothing more, let what is being launched or recorded come to its end, close the database. Running jobs go on."""
        self.closing = True
        for timer in (self._look_again, self._time_comes, self.settles_again):
            if timer is not None:
                timer.cancel()
        self.aside.close()
        for entry in self.active.values():
            if entry.pidfd >= 0:
                ending.unwatch(self, entry)
            if entry.overdue is not None:
                entry.overdue.cancel()
            if entry.hurry is not None:
                entry.hurry.set()
        under_way = [task for task in self._tasks if not task.done()]
        if under_way:
            await asyncio.wait(under_way, timeout=GRACE)
        await self.removals.over(GRACE)
        await sharing.end_services(self, self.mps.known)
        self.notices.close()
        self.outage.close()
        await self.loop.run_in_executor(None, self._writer.close)
        pools = (self.launching, self.launching_on_gpus, self.looking, self.removing, self.serving, self.signalling)
        for pool in (*pools, self.slicing, self._reporting):
            pool.shutdown(wait=False)
        self.reader.close()
        self.gpus.close()

    async def looked_at(self, work: Callable[..., Any], *args: Any) -> Any:
        """``work``, again until the daemon has the descriptors and the memory for it: a job is not LOST for want of them."""
        return await waited_out(partial(self.in_thread, self.looking, work, *args), "a job cannot be looked at", lambda: not self.closing)

    async def in_thread(self, pool: ThreadPoolExecutor, work: Callable[..., Any], *args: Any) -> Any:
        return await self.loop.run_in_executor(pool, work, *args)


def _settle(outcome: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, result, error in outcome:
        if future.done():  # its caller went away
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
