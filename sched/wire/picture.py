"""The host at one moment: GPUs and what they do, running jobs, users and what they wait for.

Made at most once a second, however many look, and bounded however long the queue is: the waiting are counted by line, and only the first
of each user is looked up.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import partial

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING
from dockless.sched import clock
from dockless.sched.callers import Caller
from dockless.sched.engine.gpus import sharing
from dockless.sched.engine.gpus.figures import FRESH, Figures
from dockless.sched.policy.forecast import Forecast
from dockless.sched.policy.waiting import WaitingJob, order
from dockless.sched.wire.top import GpuProgram, GpuUse, JobUse, Top, UserUse

if TYPE_CHECKING:
    from dockless.sched.engine.entry import LiveJob
    from dockless.sched.wire.answers import Answers
    from dockless.sched.wire.protocol import GpuInfo

PROGRAMS = 8
"""Of one GPU."""
JOBS = 200
USERS = 100
PLACES = 20
"""Users whose first job's place in the queue is looked up."""
LOOKS = 10_000
"""Lines of jobs that are looked at for these: one user alone can have thousands."""


class Picture:
    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.engine = answers.engine
        self._made = -FRESH
        self._top = Top(0.0)
        self._owners: dict[int, int] = {}

    async def seen_by(self, caller: Caller) -> Top:
        """Names of jobs are their owners' and the administrators' to see."""
        await self.engine.gpus.look()
        await self.engine.watch.look()
        if self._is_old():
            foretold = await self.answers.foretold(partial(asyncio.sleep, 0)) if self.engine.waiting else Forecast()
            if self._is_old():  # else somebody else has made it meanwhile
                self._make(foretold)
        owners = self._owners
        return replace(
            self._top, jobs=tuple(job if caller.may_manage(owners[job.job]) else replace(job, name="") for job in self._top.jobs)
        )

    def _is_old(self) -> bool:
        return time.monotonic() - self._made >= FRESH

    def _make(self, foretold: Forecast) -> None:
        self._top, self._made = self._whole(foretold), time.monotonic()
        self._owners = {entry.job.id: entry.job.uid for entry in self.engine.active.values()}  # a job may end while it is shown

    def _whole(self, foretold: Forecast) -> Top:
        info = self.answers.info()
        figures = self.engine.watch.figures
        active = sorted(self.engine.active.values(), key=lambda entry: (not entry.job.devices, entry.job.id))
        users = self._users(info.gpus, foretold)
        return Top(
            time.time(),
            tuple(self._gpu(row, figures.get(row.uuid)) for row in info.gpus),
            tuple(self._job(entry) for entry in active[:JOBS]),
            tuple(users[:USERS]),
            info.running,
            info.waiting,
            max(0, len(active) - JOBS),
            max(0, len(users) - USERS),
            info.gpu_error,
            info.cores,
            info.cores_used,
            info.memory,
            info.memory_used,
        )

    def _gpu(self, row: GpuInfo, figures: Figures | None) -> GpuUse:
        held = GpuUse(
            row.index, row.uuid, row.model, row.memory, row.simulated, row.job, row.user, row.since, row.outside, row.trouble,
            xids=tuple(sorted((xid, count) for (uuid, xid), count in self.engine.xids.items() if uuid == row.uuid)),
        )  # fmt: skip
        if figures is None:
            return held
        reading, programs = figures.reading, figures.programs
        return replace(
            held,
            busy=reading.busy,
            used=reading.used,
            shares=row.shares,
            temperature=reading.temperature,
            power=reading.power,
            programs=tuple(
                GpuProgram(one.pid, "" if one.uid < 0 else self.engine.callers.quota_of(one.uid)[0], one.job, one.memory, one.busy)
                for one in programs[:PROGRAMS]
            ),
            more=max(0, len(programs) - PROGRAMS),
            ecc_corrected=reading.ecc_corrected,
            ecc_uncorrected=reading.ecc_uncorrected,
        )

    def _job(self, entry: LiveJob) -> JobUse:
        job = entry.job
        index = {gpu.uuid: gpu.index for gpu in self.engine.gpus.everything}
        figures = [found for uuid in job.devices if (found := self.engine.watch.figures.get(uuid)) is not None]
        share = sharing.share(self.engine, job)
        busy = [one for figure in figures if (one := figure.busy(job.id, alone=not share)) is not None]
        used = [program.memory for figure in figures for program in figure.programs if program.job == job.id]
        return JobUse(
            job.id,
            job.user,
            job.name or job.command or job.image,
            tuple(sorted(index.get(uuid, -1) for uuid in job.devices)),
            job.started,
            job.time_limit,
            sum(busy) / len(busy) if busy else None,
            None if not figures or None in used else sum(memory or 0 for memory in used),
            share << 20,
        )

    def _users(self, gpus: tuple[GpuInfo, ...], foretold: Forecast) -> list[UserUse]:
        """Who has most GPUs comes first, then who waits with most jobs."""
        running = Counter(entry.job.user for entry in self.engine.active.values())
        held = Counter(user for row in gpus for user in {share.user for share in row.shares} or {row.user} if user)
        waiting: Counter[str] = Counter()
        first: dict[str, WaitingJob] = {}
        for line in self.engine.waiting.lines.values():
            job = line.first()
            waiting[job.user] += len(line)
            first[job.user] = min(first.get(job.user, job), job, key=order)
        for (user, _), count in self.engine.aside.counts.items():
            waiting[user] += count
        next_ones = dict(sorted(first.items(), key=lambda item: order(item[1])))
        standing = self.answers.outlook.places()
        most = min(PLACES, LOOKS // max(1, len(self.engine.waiting.lines)))
        places = {user: standing.place(job)[0] for user, job in list(next_ones.items())[:most]}
        now, decision = clock.ticks(), self.engine.decision
        found = []
        for user in {*running, *held, *waiting}:
            head = first.get(user)
            reason = None if head is None or decision is None or places.get(user) != 1 else decision.reason(head)
            later = None if head is None else foretold.starts.get(head.id)
            starts = None if reason is None or not reason.latest or reason.slips(later) else reason.starts_at
            found.append(
                UserUse(
                    user,
                    running[user],
                    held[user],
                    waiting[user],
                    0 if head is None else head.id,
                    places.get(user, 0),
                    None if starts is None else max(0.0, starts - now),
                )
            )
        return sorted(found, key=lambda row: (-row.gpus, -row.waiting, -row.running, row.user))
