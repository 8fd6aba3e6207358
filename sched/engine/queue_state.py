"""What a decision sees: what runs and waits, the GPUs, leases that are not the queue's, and what was used before."""

from __future__ import annotations

import time
from itertools import chain

from dockless.base.typing import TYPE_CHECKING
from dockless.sched import clock
from dockless.sched.engine.gpus import sharing
from dockless.sched.engine.waiting.windows import can_be_kept, windows
from dockless.sched.policy.past_usage import PastUsage
from dockless.sched.policy.state import QueueState, RunningJob
from dockless.sched.store import queries, usage

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob


def state(engine: Engine) -> QueueState:
    """What a decision depends on now."""
    there = running(engine)
    past = _past_usage(engine).at(clock.ticks(), there) if engine.config.order == "fair" else None
    unusable: frozenset[str] = frozenset()
    shareable = engine.gpus.shareable if _shares(engine) else {}
    uids = set(engine.per_user.jobs) if engine.config.reservations else set[int]()
    if engine.waiting.wants_gpus:
        if others_may_have_some(engine):
            leases = elsewhere(engine)
            there += [_of_nobody(engine, *lease) for lease in leases]
            uids.update(uid for _, uid, _ in leases)
        unusable = engine.gpus.unusable({gpu for job in there for gpu in job.gpus})
    return QueueState(
        gpus=engine.gpus.uuids,
        waiting=engine.waiting,
        running=there,
        quotas=engine.config.quotas,
        links=engine.gpus.distances,
        unusable=unusable,
        slices=engine.gpus.not_whole,
        cpu_jobs=engine.config.cpu_jobs,
        usage=past,
        preemption=engine.config.preemption,
        out_of_service=engine.gpus.out_of_service,
        classes=engine.gpus.of_classes(engine.waiting.classes | engine.config.quotas.classes),
        shareable=shareable,
        company=engine.config.share,
        supplies=engine.supplies,
        nodes=engine.gpus.memory_nodes if engine.config.numa != "any" else (),
        windows=tuple(
            windows(
                *(engine.config.reservations, clock.ticks(), time.time(), lambda groups: engine.callers.members(groups, uids)),
                can_be_kept(engine.gpus.units, engine.supplies),
            )
        ),
    )


def running(engine: Engine) -> list[RunningJob]:
    """The queue's jobs that have started, as the policy sees them."""
    return [_running(engine, entry) for entry in engine.active.values() if entry is entry.first]


def _running(engine: Engine, entry: LiveJob) -> RunningJob:
    """As the policy sees it. Those that started together are one job, that of the first."""
    ends, stop = entry.ends, entry.stop_by
    if entry.gang is not None:
        every = [member.ends for member in entry.gang.members]
        ends = None if None in every else max(filter(None, every))
        stops = [member.stop_by for member in entry.going_on]
        stop = None if not stops or None in stops else max(filter(None, stops))
    return RunningJob(
        id=entry.job.id,
        user=entry.job.user,
        gpus=frozenset(entry.devices),
        groups=entry.live.quota_groups,
        ends=ends if stop is None else min(stop, ends or stop),
        since=entry.since,
        stopping=stop is not None,
        share=sharing.share_beside_others(engine, entry.job),
        cores=entry.waiting.cores,
        memory=entry.waiting.memory,
        width=entry.waiting.width,
        part=1.0 if entry.job.options.shared_place else sharing.part_of(engine, entry),
    )


def _past_usage(engine: Engine) -> PastUsage:
    """What the ended jobs had, and leases outside the queue; read from the queue when it is first wanted."""
    if engine.past is None:
        engine.past = PastUsage(engine.config.half_life)
        now, wall = clock.ticks(), time.time()
        since = wall - 10 * engine.config.half_life
        for user, groups, ended, gpu_seconds in queries.gpu_time(engine.reader, since):
            at = now - max(0.0, wall - ended)
            engine.past.add(user, groups, 1, at - gpu_seconds, at)
        for uid, ended, gpu_seconds in chain(usage.forgotten(engine.reader, since, wall), usage.outside(engine.reader, since, wall)):
            at = now - max(0.0, wall - ended)
            engine.past.add(*engine.callers.quota_of(uid), 1, at - gpu_seconds, at)
        for spell in engine.outside.unwritten:
            at = now - max(0.0, wall - spell.ended)
            engine.past.add(*engine.callers.quota_of(spell.uid), spell.count, at - (spell.ended - spell.began), at)
    return engine.past


def count_usage(engine: Engine, entry: LiveJob) -> None:
    """Count the GPU time of an attempt that has ended."""
    if engine.past is not None and entry.job.devices and entry.since:
        count = len(entry.job.devices) * sharing.part_of(engine, entry)
        engine.past.add(entry.job.user, entry.live.quota_groups, count, entry.since, clock.ticks())


def others(engine: Engine) -> list[RunningJob]:
    """Leases of GPUs that are not the queue's, as jobs without a number: they count in their users' quotas."""
    return [_of_nobody(engine, *lease) for lease in elsewhere(engine)]


def _of_nobody(engine: Engine, uuid: str, uid: int, share: int) -> RunningJob:
    user, groups = engine.callers.quota_of(uid)
    return RunningJob(0, user, frozenset({uuid}), groups, share=share)


def elsewhere(engine: Engine) -> list[tuple[str, int, int]]:
    """The leases that are not the queue's, as of the last reading: GPU, user id of the holder, and MiB, 0 for the whole GPU."""
    shares = engine.gpus.shares_of_others if _shares(engine) else ()
    whole = engine.gpus.leased_by_others(_devices(engine))
    return [*((uuid, uid, 0) for uuid, uid in whole.items()), *((one.uuid, one.uid, one.memory) for one in shares)]


def ours(engine: Engine) -> tuple[set[str], set[tuple[str, int, str]] | None]:
    """As ``HostGpus.ours``."""
    return _devices(engine), sharing.leased(engine) if _shares(engine) else None


def others_may_have_some(engine: Engine) -> bool:
    return _shares(engine) or len(_devices(engine)) < len(engine.gpus.uuids)


def _shares(engine: Engine) -> bool:
    return engine.config.share != "no"


def _devices(engine: Engine) -> set[str]:
    """The GPUs that our jobs have."""
    return {gpu for entry in engine.active.values() for gpu in entry.job.devices}
