"""The host of ``simulate``: its GPUs, of which class each is, and what the settings say of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial

from dockless.base.dataclass import dataclass, replace
from dockless.base.device_names import KIND
from dockless.base.later import re
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput

if TYPE_CHECKING:
    from dockless.sandbox.gpus.nvml import Gpu
    from dockless.sched.config import Config, Reserved
    from dockless.sched.policy.replay import TraceJob
    from dockless.sched.policy.state import QueueState, Window

MOST = 4096
"""GPUs of a host."""
_HOURS = 2000
"""Reserved hours that are shown."""
_HINT = "write how many, 8, or how many of each class: H100:80G=4,A100=2,1g.10gb=7,amd.com/gpu=2"


@dataclass(frozen=True, slots=True)
class SimulatedHost:
    """``state``: with nothing on it, and nobody waiting; ``kinds``: what its GPUs are, and which; ``jobs``: with the groups that the
    settings name; ``half_life``: of a fair order, seconds; ``reservations``: of the settings; ``members``: of the groups in these."""

    state: QueueState
    kinds: Mapping[str, frozenset[str]]
    jobs: Sequence[TraceJob]
    half_life: float
    reservations: Sequence[Reserved]
    members: Mapping[str, frozenset[str]]

    def hours(self, now: float) -> tuple[Window, ...]:
        """The reserved hours that are next at that moment of the trace, seconds since 1970."""
        from dockless.sched.engine.waiting.windows import can_be_kept, windows

        there = can_be_kept(len(self.state.gpus) - len(self.state.slices), self.state.supplies)
        return tuple(windows(self.reservations, now, now, lambda groups: {user for group in groups for user in self.members[group]}, there))

    def asked(self, pool: str, job: TraceJob) -> int:
        """What it counts for while it runs, of cores in thousandths or of memory in bytes: where it has GPUs, what it says."""
        asked: int = getattr(job, pool)
        return self.state.supplies[pool].counts(asked, has_gpus=job.gpus > 0)

    def hours_between(self, begins: float, ends: float) -> list[Window]:
        """All, each once; of very many the first."""
        found: dict[tuple[str, float], Window] = {}
        now = begins
        while len(found) < _HOURS and (there := [window for window in self.hours(now) if window.starts < ends]):
            found |= {(window.name, window.starts): window for window in there}
            now = min(window.ends for window in there)
        return [*found.values()]


def simulated_host(config: str | None, units: Sequence[Gpu], jobs: Sequence[TraceJob]) -> SimulatedHost:
    """``config``: a file of settings, None for the defaults. ``BadInput``, also for a class of a job that is none."""
    from dockless.base.path import Path
    from dockless.sched.config import Config, load
    from dockless.sched.engine.gpus.hostgpus import in_order_of_class
    from dockless.sched.engine.gpus.mps import SERVICE_MEMORY
    from dockless.sched.engine.gpus.seats import room_of
    from dockless.sched.engine.host import host_supplies
    from dockless.sched.policy.state import QueueState

    if config is not None and not Path(config).exists():
        raise BadInput(f"{config} is not there", subject="--config", hint="name a file of settings: dockless config check FILE")
    settings = Config() if config is None else load(Path(config))
    every_one = (one for job in jobs for one in job.members or (job,))
    names = {one.gpu_class for one in every_one if one.gpu_class} | settings.quotas.classes
    gpus, devices = ([unit for unit in units if _is_device(unit) is device] for device in (False, True))
    kept = SERVICE_MEMORY if settings.has_mps else 0
    shareable = {} if settings.share == "no" else {one.uuid: (one.memory >> 20) - kept for one in gpus if not one.parent and one.memory}

    def of_class(name: str) -> tuple[str, ...]:
        return in_order_of_class(name, devices if "/" in name else gpus)

    @cache
    def room(gpu_class: str) -> Collection[int]:
        return room_of(of_class(gpu_class) if gpu_class else state.gpus, shareable, state.slices)

    state = QueueState(
        tuple(unit.uuid for unit in units),
        (),
        quotas=settings.quotas,
        slices=frozenset(unit.uuid for unit in units if unit.parent or unit in devices),
        cpu_jobs=settings.cpu_jobs,
        usage={} if settings.order == "fair" else None,
        preemption=settings.preemption,
        classes={name: of_class(name) for name in names},
        supplies=host_supplies.as_set(settings),
        shareable=shareable,
        company=settings.share if shareable else "user",
    )
    groups = {group for one in settings.reservations for group in one.groups}
    members = {group: frozenset(settings.groups.get(group, ())).union(job.user for job in jobs if group in job.groups) for group in groups}
    here = [_as_here(job, state, room) for job in _with_groups(jobs, settings)]
    more = {job.gpu_class for job in here if job.gpu_class and job.gpu_class not in names}
    state = replace(state, classes={**state.classes, **{name: of_class(name) for name in more}})
    return SimulatedHost(state, _kinds(units), here, settings.half_life, settings.reservations, members)


def _is_device(unit: Gpu) -> bool:
    """Whether it is of another kind, as ``gpus.devices`` names them."""
    return re.fullmatch(KIND, unit.model) is not None


def _as_here(job: TraceJob, state: QueueState, room: Callable[[str], Collection[int]]) -> TraceJob:
    """With its share of a GPU where GPUs are shared; those that start together share with each other, and each counts for what it needs.
    ``room``: the MiB of each GPU of a class that jobs can share. ``BadInput`` where the daemon would refuse them."""
    from dockless.sched.engine.gpus.seats import seated
    from dockless.sched.engine.lifecycle.gangs import counts_for
    from dockless.sched.policy.supplies import CORES, MEMORY

    if not job.members:
        share = _share(job, room)
        return replace(job, share=share) if share else job
    places, shared = seated([(_share(one, room), one.gpu_class) for one in job.members], room)
    own = [one for one, place in zip(job.members, places, strict=True) if not place]
    classes = {one.gpu_class or shared * any(places) for one in own if one.gpus} | {shared for place in places if place}
    if len(classes) > 1:
        raise BadInput(
            f"jobs of {job.user or 'a user'} that start together ask for GPUs of different classes: {', '.join(sorted(classes))}",
            subject="class",
            hint="give all of them one class: the queue refuses others",
        )
    return replace(
        job,
        gpus=sum(one.gpus for one in own) + len({*places} - {0}),
        gpu_class=next(iter(classes), ""),
        cores=sum(counts_for(state.supplies, CORES, one.cores, one.gpus) for one in job.members),
        memory=sum(counts_for(state.supplies, MEMORY, one.memory, one.gpus) for one in job.members),
    )


def _share(job: TraceJob, room: Callable[[str], Collection[int]]) -> int:
    """The MiB that it has of one GPU; 0 where it has GPUs of its own."""
    from dockless.sandbox.gpus.request import parse_request
    from dockless.sched.engine.gpus.seats import share_of
    from dockless.sched.policy.classes import request

    memory = parse_request(request(job.gpu_class)).memory if job.gpus == 1 and job.gpu_class else 0
    return share_of(memory, room(job.gpu_class))


def _with_groups(jobs: Sequence[TraceJob], settings: Config) -> Sequence[TraceJob]:
    members: dict[str, set[str]] = {}
    for group, users in settings.groups.items():
        for user in users if group in settings.quotas.groups else ():
            members.setdefault(user, set()).add(group)
    if not members:
        return jobs
    return [replace(job, groups=tuple(sorted(members.get(job.user, set()).union(job.groups)))) for job in jobs]


def _kinds(units: Iterable[Gpu]) -> dict[str, frozenset[str]]:
    from dockless.sandbox.gpus.request import profile

    found: dict[str, set[str]] = {}
    for unit in units:
        found.setdefault(profile(unit) or unit.model or "GPUs", set()).add(unit.uuid)
    return {kind: frozenset(of) for kind, of in found.items()}


def units_of(text: str) -> tuple[Gpu, ...]:
    """``8``, or ``H100:80G=4,1g.10gb=7``: the GPUs and slices of a host. ``BadInput``"""
    found: list[Gpu] = []
    for part in text.split(","):
        match = re.fullmatch(r"(?:([A-Za-z0-9][A-Za-z0-9 ./_+-]{0,63})(?::([^=]+))?=)?([0-9]{1,6})", part.strip())
        if match is None or not int(match[3]):
            raise BadInput(f"--gpus {text[:80]!r} cannot be read at {part[:40]!r}", subject="--gpus", hint=_HINT)
        if len(found) + int(match[3]) > MOST:
            raise BadInput(f"{text[:80]} GPUs are more than one host has", subject="--gpus", hint=f"at most {MOST}")
        found += map(partial(_unit, match[1] or "", match[2] or ""), range(len(found), len(found) + int(match[3])))
    return tuple(found)


def _unit(model: str, memory: str, number: int) -> Gpu:
    """A name that is a MIG profile makes a slice, which says itself how much memory it has."""
    from dockless.base.units import parse_size
    from dockless.sandbox.gpus.nvml import Gpu
    from dockless.sandbox.gpus.request import is_profile

    part = is_profile(model)
    size = memory or (f"{model.lower().rpartition('.')[2].partition('gb')[0]}G" if part else "0")
    name = f"MIG {model.lower()}" if part else model
    return Gpu(number, f"gpu{number}", number, name, parse_size(size, "memory of a GPU"), parent="divided" if part else "")


def units_here(configs: Iterable[str | None]) -> tuple[Gpu, ...]:
    """Those of this host, with the devices of the kinds that these settings name."""
    from dockless.base import settings
    from dockless.base.path import Path
    from dockless.sched.engine.gpus.hostgpus import HostGpus

    kinds = dict.fromkeys(kind for config in configs if config is not None for kind in settings.load(Path(config))["gpus.devices"])
    gpus = HostGpus()
    try:
        gpus.hand_out(tuple(kinds))
        if not gpus.everything:
            raise BadInput("this host has no GPUs", subject="--gpus", hint="say of which GPUs the host is: --gpus 8")
        return gpus.everything
    finally:
        gpus.close()
