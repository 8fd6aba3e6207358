"""The host's cores and memory as the daemon may use them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dockless.base.typing import TYPE_CHECKING
from dockless.sched.config import Config
from dockless.sched.engine.gpus import numa, sharing
from dockless.sched.policy.supplies import CORES, MEMORY, Supply

if TYPE_CHECKING:
    from dockless.sched.engine.engine import Engine
    from dockless.sched.engine.entry import LiveJob

MOST_KEPT = 8 << 30
"""Bytes that are left to the host itself at most, where no setting says what jobs may have."""


def here(config: Config) -> Mapping[str, Supply]:
    """What jobs may have of both: what the settings say, or else what this process may use."""
    return as_set(config, None if config.cores is not None else cores_here(), None if config.memory is not None else memory_here())


def as_set(config: Config, cores: int | None = None, memory: int | None = None) -> dict[str, Supply]:
    """What the settings say. ``cores``, in thousandths, and ``memory``: where they do not; what is None then is not counted."""
    cores = 1000 * config.cores if config.cores is not None else cores
    memory = config.memory if config.memory is not None else memory
    found = {} if cores is None else {CORES: Supply(cores, 1000 * config.cores_per_gpu, 1000 * config.cores_per_job)}
    return found if memory is None else found | {MEMORY: Supply(memory, config.memory_per_gpu, config.memory_per_job)}


def in_use(engine: Engine, pool: str) -> tuple[int, int]:
    """How much of it the host has for jobs, and how much running jobs use up."""
    return engine.supplies[pool].total, sum(had(engine, entry, pool) for entry in engine.active.values() if entry is entry.first)


def had(engine: Engine, entry: LiveJob, pool: str) -> int:
    """How much a running job uses up, as the policy counts it. Of jobs that start together the first counts for all of them."""
    supply, waiting = engine.supplies[pool], entry.waiting
    share = sharing.share_beside_others(engine, entry.job)
    own = supply.own(len(set(entry.devices) - engine.gpus.not_whole), share, engine.gpus.shareable.values())
    return supply.counts(waiting.cores if pool == CORES else waiting.memory, has_gpus=bool(entry.devices), own=own)


def near_gpus(engine: Engine, entry: LiveJob) -> numa.Given:
    """The other running jobs that are kept to the processors near their GPUs: the nodes of each, and the cores that it asked for or counts
    for."""
    others = (one for one in engine.active.values() if one.nodes and one is not entry)
    return [(one.nodes, (one.job.options.millicores or (0 if one.gang else had(engine, one, CORES))) / 1000) for one in others]


def cores_here() -> int:
    """In thousandths, as its affinity and the cpu.max of its groups allow."""
    found = 1000 * len(os.sched_getaffinity(0))
    for text in _of_own_groups("cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit():
            found = min(found, max(1, 1000 * int(quota) // int(period)))
    return found


def memory_here() -> int:
    """Bytes: a sixteenth of the host's, or ``MOST_KEPT``, is left out; and not more than the memory.max of its groups."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    bounds = [int(text) for text in _of_own_groups("memory.max") if text.isdigit()]
    return min(whole - min(whole // 16, MOST_KEPT), *bounds) if bounds else whole - min(whole // 16, MOST_KEPT)


def _of_own_groups(file: str) -> list[str]:
    """What a file of cgroup v2 says in this process's group and those above it."""
    from dockless.cgroups.delegation import find_mounts, own_directory

    try:
        mounts, _ = find_mounts(Path("/proc/self/mountinfo").read_text())
        own = Path("/proc/self/cgroup").read_text()
    except OSError:
        return []
    found = []
    for mount in mounts[:1]:
        directory = own_directory(mount, own)
        while directory is not None:
            try:
                found.append(Path(directory, file).read_text().strip())
            except OSError:
                pass  # the root of the hierarchy has no limits, and v1 may hold the controller
            directory = os.path.dirname(directory) if directory != mount.point else None
    return found
