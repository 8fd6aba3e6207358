"""The host of ``simulate``: its GPUs, of which class each is, and what the settings say of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from dockless.base.dataclass import dataclass, replace
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
_HINT = "write how many, 8, or how many of each class: H100:80G=4,A100=2,1g.10gb=7"


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
        return asked or (0 if job.gpus else self.state.supplies[pool].per_job)

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
    from dockless.sched.policy.state import QueueState
    from dockless.sched.policy.supplies import CORES, MEMORY, Supply

    if config is not None and not Path(config).exists():
        raise BadInput(f"{config} is not there", subject="--config", hint="name a file of settings: dockless config check FILE")
    settings = Config() if config is None else load(Path(config))
    supplies = {}
    if settings.cores is not None:
        supplies[CORES] = Supply(1000 * settings.cores, 1000 * settings.cores_per_gpu, 1000 * settings.cores_per_job)
    if settings.memory is not None:
        supplies[MEMORY] = Supply(settings.memory, settings.memory_per_gpu, settings.memory_per_job)
    names = {job.gpu_class for job in jobs if job.gpu_class} | settings.quotas.classes
    state = QueueState(
        tuple(unit.uuid for unit in units),
        (),
        quotas=settings.quotas,
        slices=frozenset(unit.uuid for unit in units if unit.parent),
        cpu_jobs=settings.cpu_jobs,
        usage={} if settings.order == "fair" else None,
        preemption=settings.preemption,
        classes={name: in_order_of_class(name, units) for name in names},
        supplies=supplies,
    )
    groups = {group for one in settings.reservations for group in one.groups}
    members = {group: frozenset(settings.groups.get(group, ())).union(job.user for job in jobs if group in job.groups) for group in groups}
    return SimulatedHost(state, _kinds(units), _with_groups(jobs, settings), settings.half_life, settings.reservations, members)


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


def units_here() -> tuple[Gpu, ...]:
    from dockless.sched.engine.gpus.hostgpus import HostGpus

    gpus = HostGpus()
    try:
        if not gpus.gpus:
            raise BadInput("this host has no GPUs", subject="--gpus", hint="say of which GPUs the host is: --gpus 8")
        return gpus.gpus
    finally:
        gpus.close()
