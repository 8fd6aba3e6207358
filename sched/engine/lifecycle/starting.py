"""The way of an attempt until it runs: its GPUs are leased and it is launched, or a daemon that comes back finds it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import partial

from dockless.base import exit_codes
from dockless.base.dataclass import copied
from dockless.base.records import read
from dockless.base.settings import GROUP
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.errors import DocklessError, NotEnoughGpus, SchedError
from dockless.sandbox.spec import GRACE, Spec
from dockless.sandbox.state import RUNNING
from dockless.sched.engine import attempts
from dockless.sched.engine.entry import wake
from dockless.sched.engine.faults import describe, say
from dockless.sched.engine.gpus import numa, sharing
from dockless.sched.engine.host import disk, host_supplies, processors
from dockless.sched.engine.host.volumes import explained, with_volumes
from dockless.sched.engine.lifecycle import again, ending, gangs
from dockless.sched.engine.wants import AGAIN, is_the_hosts, lacks_room, waited_out
from dockless.sched.jobs import Job, JobSpec, State
from dockless.sched.store import queries, queue
from dockless.sched.store.lease import Lease

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

LAUNCHES = 300
"""Starts of an attempt, a second apart, that may fail for want of the host's descriptors, memory or processes."""


def start(engine: Engine, entry: LiveJob, gpus: tuple[str, ...], now: float) -> None:
    """A job that waits starts with these GPUs. ``now``: on the policy's clock."""
    engine.waiting.remove(entry.waiting)
    if entry.gang is not None:
        gangs.start(engine, entry.gang, gpus, now)
    else:
        engine.spawn(ending.surely(engine, entry, _launch(engine, entry, occupy(engine, entry, gpus, now), now)))


def occupy(engine: Engine, entry: LiveJob, gpus: tuple[str, ...], now: float) -> Lease:
    """From ``now`` on it has these."""
    engine.active[entry.job.id] = entry
    entry.kept = False
    entry.ends = now + entry.job.time_limit if entry.job.time_limit else None
    entry.since = now
    entry.show(state=State.STARTING, attempt=entry.job.attempt + 1, devices=gpus, started=time.time(), reason="")
    shared, part = bool(sharing.share(engine, entry.job)), sharing.part_of(engine, entry)
    return Lease(entry.job.id, entry.job.attempt, gpus, entry.job.started, shared, part)


def _spec(engine: Engine, entry: LiveJob, attempt: int, gpus: tuple[str, ...]) -> Spec:
    """What is launched; notes what of it concerns the end."""
    submitted = asked_for(engine, entry.job)
    submitted = copied(submitted, log_size=submitted.log_size or engine.config.log_size)
    submitted = with_volumes(submitted, engine.config.volumes, entry.job.user, _groups(engine, entry))
    if entry.gang is not None:
        submitted = gangs.told_of_the_others(entry.gang, entry, submitted)
    entry.disk = submitted.disk
    submitted = disk.bounded(engine, submitted)
    units = [unit for unit in engine.gpus.gpus if unit.uuid in gpus]
    submitted, entry.nodes = numa.near(submitted, units, engine.config.numa, host_supplies.near_gpus(engine, entry))
    spec = attempts.complete(submitted, entry.live, attempt, gpus, entry.job.time_limit)
    entry.grace = spec.grace or GRACE
    entry.limit = spec.timeout + spec.grace if spec.timeout else None
    return spec


def _groups(engine: Engine, entry: LiveJob) -> Mapping[str, int]:
    """Those of the host that its user is in, where something depends on it; of root's own jobs none, which may mount what they want."""
    if entry.job.uid == os.geteuid() or not any(GROUP in source for source in engine.config.volumes.values()):
        return {}
    return engine.callers.groups(entry.job.uid)


def asked_for(engine: Engine, job: Job) -> Spec:
    """The sandbox as it was asked for, with its secrets; the jobs of an array, which start one after the other, share one."""
    key = job.id if job.gang else job.array or job.id
    if engine.newest[0] != key:
        asked = read(JobSpec, json.loads(queries.spec(engine.reader, job.id)), "job")
        engine.newest = key, _with_secrets(asked) if asked.secrets else asked.spec
    return engine.newest[1]


def _with_secrets(asked: JobSpec) -> Spec:
    from dockless.sched.formats.templates import with_values

    return copied(asked.spec, env=with_values(asked.spec.env, dict(asked.secrets)))


async def _launch(engine: Engine, entry: LiveJob, lease: Lease, now: float) -> None:
    job = entry.job
    try:
        await engine.write(lambda db: queue.begin_attempt(db, lease, engine.name(job.id, lease.attempt), engine.boot, now))
    except SchedError as error:
        await not_begun(engine, [entry], error)
        return
    await launch(engine, entry, lease)


async def not_begun(engine: Engine, entries: Sequence[LiveJob], error: Exception) -> None:
    """Their start could not be put down: they wait again, the first of them for all."""
    if isinstance(error, SchedError) and error.subject == "jobs.db":
        engine.outage.begins(error)
    else:
        say(f"job {entries[0].job.id} cannot start: {describe(error)}; trying again")
        await asyncio.sleep(AGAIN)
    for entry in entries:
        engine.active.pop(entry.job.id, None)
        entry.show(state=State.PENDING, attempt=entry.job.attempt - 1, devices=(), started=0.0)
    if entries[0].cancelled:
        await ending.end_jobs(engine, [(entry, ending.Ending(State.CANCELLED, "cancelled before it ran")) for entry in entries])
        return
    engine.line_up(entries[0])
    engine.kick()


async def launch(engine: Engine, entry: LiveJob, lease: Lease) -> None:
    """Its start is put down: start it."""
    job, gang = entry.job, entry.gang
    if entry.cancelled or (gang is not None and gang.unwanted):
        await ending.end(engine, entry, State.CANCELLED, "cancelled before it ran", None, None)
        return
    name = engine.name(job.id, lease.attempt)
    try:
        spec = _spec(engine, entry, lease.attempt, lease.gpus)
        how: dict[str, Any] = {"owner": job.uid or None, "user": job.uid} if os.geteuid() == 0 else {"owner": None}
        spec = await sharing.with_service(engine, job, spec, how["owner"], how.get("user"))
        launcher = sharing.launcher(engine, job)
        labels = {"queue": engine.queue_id, "job": str(job.id), "attempt": str(lease.attempt), "user": job.user}
        kept, patience = (engine.logs, ending.SOON if engine.end_soon else 0.0) if gang is None else (None, 0.0)
        pool = engine.launching_on_gpus if lease.gpus else engine.launching
        first, once_more = (
            partial(engine.in_thread, pool, attempts.started, partial(begin, spec, id=name, labels=labels, **how), kept, patience)
            for begin in (
                begin if gang is None else partial(gang.start, begin)
                for begin in (launcher.start, partial(attempts.launch_again, launcher))
            )
        )
        started: attempts.Started = await waited_out(
            first, f"job {job.id} cannot start", lambda: not engine.closing and not entry.cancelled, LAUNCHES, once_more, engine.outage.full
        )
        entry.handle = started.handle
        engine.end_soon &= started.over is not None
    except NotEnoughGpus as error:
        await asyncio.sleep(AGAIN)  # who holds a GPU in a way that no decision sees must not make this go round and round
        reason, now = str(error), time.time()
        await engine.back(entry, lambda db: queue.void_attempt(db, job.id, job.attempt, now, reason))
        return
    except Exception as error:
        if engine.closing and (is_the_hosts(error) or lacks_room(error) or engine.outage.full(error)):
            return  # the next daemon finds that nothing ran
        entry.handle = await engine.looked_at(attempts.left_behind, engine.launcher, name, engine.queue_id)
        if entry.handle is not None and await engine.looked_at(entry.handle.state) in RUNNING:
            await ending.give_up(engine, entry, error)
            return
        if gang is None and entry.job.options.requeue and (found := again.wanted(entry, State.FAILED, "", None)) is not None:
            await again.not_started(engine, entry, *found)
            return
        # Whatever it was, it is this job's end and not the daemon's.
        text = str(error) if isinstance(error, DocklessError) else describe(error)
        code = error.exit_code if isinstance(error, DocklessError) else exit_codes.ERROR
        hint = f" ({error.hint})" if isinstance(error, DocklessError) and error.hint else ""
        why = explained(error, engine.config.volumes, job.user) or f"{text}{hint}"
        state = State.CANCELLED if entry.cancelled else State.FAILED
        await ending.end(engine, entry, state, f"not started: {why}", None, code)
        return
    running_at = time.time()
    enforced_by = sharing.enforced_by(engine, job, launcher)

    def running(db: sqlite3.Connection) -> None:
        queue.set_running(db, job.id, lease.attempt, running_at, "", enforced_by)

    if started.over is not None and (end := ending.for_good(engine, entry, *started.over)) is not None:
        sharing.runs(entry, enforced_by)
        engine.tell(entry, "start")
        await ending.end_jobs(engine, [(entry, end)], running)
        return
    try:
        await engine.write_surely(running)
    except BaseException:
        if started.pidfd >= 0:
            os.close(started.pidfd)
        raise
    sharing.runs(entry, enforced_by)
    processors.started(engine, job.uid)
    engine.tell(entry, "start")
    wake(entry.up)
    if started.over is not None:
        await ending.finish(engine, entry)
    else:
        await ending.watch(engine, entry, started.pidfd)


async def take_up(engine: Engine, entry: LiveJob) -> None:
    """An attempt that an earlier daemon began: it is watched, or its end is recorded, or its job waits again."""
    job, live = entry.job, entry.live
    with contextlib.suppress(DocklessError, ValueError):  # a job that an older dockless accepted
        _spec(engine, entry, job.attempt, job.devices)
    same_boot = live.boot == engine.boot
    was_running = job.state is State.RUNNING
    found = await engine.looked_at(attempts.recover, engine.launcher, engine.name(job.id, job.attempt), was_running, same_boot)
    entry.handle = found.handle
    now = time.time()
    if found.what == "running":
        if not was_running:
            assert found.handle is not None
            enforced_by = await engine.looked_at(sharing.taken_over, engine, job, found.handle)
            await engine.write_surely(lambda db: queue.set_running(db, job.id, job.attempt, now, "adopted", enforced_by))
            sharing.runs(entry, enforced_by)
        processors.started(engine, job.uid)
        await ending.watch(engine, entry)
    elif found.what == "exited":
        record = None
        if not same_boot and job.on_reboot == "requeue" and not entry.cancelled:
            record = await engine.looked_at(attempts.ended_by_shutdown, found.handle, engine.shutdown)
        if record is None:
            await ending.finish(engine, entry)
        else:
            await engine.back(entry, lambda db: queue.requeue(db, job.id, now, "the host was shut down", record))
    elif found.what == "void":
        await engine.back(entry, lambda db: queue.void_attempt(db, job.id, job.attempt, now, found.reason))
    elif not same_boot and job.on_reboot == "requeue" and not entry.cancelled:
        await engine.back(entry, lambda db: queue.requeue(db, job.id, now, "the host was rebooted"))
    else:
        reason = found.reason if same_boot else "the host was rebooted while it ran"
        await ending.end(engine, entry, State.CANCELLED if entry.cancelled else State.LOST, reason, None, None)
