"""Processors near a job's GPUs: those of the GPUs' memory nodes. See the kernel's cgroup-v2.rst, cpuset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING
from dockless.sandbox.spec import Spec

if TYPE_CHECKING:
    from dockless.sandbox.gpus.gpu import Gpu

NODES = Path("/sys/devices/system/node")


def near(spec: Spec, gpus: Sequence[Gpu], how: str) -> Spec:
    """``spec`` on the processors near ``gpus``; ``how``: ``near``, or ``strict`` for the memory of their nodes, too. It stays as it was on
    a host that has no cpuset controller or does not say where the GPUs are, where those nodes have fewer processors than the job's cores,
    and where the job says itself where it runs."""
    from dockless.cgroups import Limits, find_delegation, unavailable
    from dockless.cgroups.limits import format_list

    limits, nodes = spec.limits, {unit.numa_node for unit in gpus}
    if how == "any" or not nodes or None in nodes or spec.cpus or limits.cpuset_cpus is not None or limits.cpuset_mems is not None:
        return spec
    processors = _processors({node for node in nodes if node is not None})
    if not processors or len(processors) < (limits.cpu_max or 0):
        return spec
    memory = format_list(node for node in nodes if node is not None) if how == "strict" else None
    wanted = Limits(cpuset_cpus=format_list(processors), cpuset_mems=memory)
    if unavailable(wanted, find_delegation()):
        return spec
    return replace(spec, limits=replace(limits, cpuset_cpus=wanted.cpuset_cpus, cpuset_mems=wanted.cpuset_mems))


def _processors(nodes: set[int]) -> frozenset[int]:
    """Those of these nodes that the daemon may use."""
    from dockless.cgroups.limits import parse_list

    found: set[int] = set()
    for node in nodes:
        try:
            text = (NODES / f"node{node}" / "cpulist").read_text().strip()
        except OSError:
            return frozenset()
        found |= parse_list(text) if text else frozenset()
    return frozenset(found & os.sched_getaffinity(0))
