"""Processors near a job's GPUs: those of the GPUs' memory nodes. See the kernel's cgroup-v2.rst, cpuset."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from pathlib import Path

from dockless.base.dataclass import replace
from dockless.base.typing import TYPE_CHECKING
from dockless.sandbox.spec import Spec
from dockless.sched.policy.state import MemoryNode

if TYPE_CHECKING:
    from dockless.sandbox.gpus.gpu import Gpu

NODES = Path("/sys/devices/system/node")


Given = Sequence[tuple[Set[int], float]]
"""The nodes to whose processors running jobs are kept, and how many cores each of them has."""


def near(spec: Spec, gpus: Sequence[Gpu], how: str, given: Given = ()) -> tuple[Spec, Set[int]]:
    """``spec`` on the processors near ``gpus``, and the nodes of these; ``how``: ``near``, or ``strict`` for the memory of their nodes,
    too. It stays as it was on a host that has no cpuset controller or does not say where the GPUs are, where those nodes have fewer
    processors than the job's cores, and where the job says itself where it runs. Where others have been ``given`` so many of the processors
    that fewer cores are left than it asks for, it may use those of all nodes, and ``strict`` binds its memory alone."""
    from dockless.cgroups import Limits, find_delegation, unavailable
    from dockless.cgroups.limits import format_list

    limits, at = spec.limits, {unit.numa_node for unit in gpus}
    nodes = frozenset(node for node in at if node is not None)
    if how == "any" or not at or None in at or spec.cpus or limits.cpuset_cpus is not None or limits.cpuset_mems is not None:
        return spec, frozenset()
    processors, wants = _processors(nodes), limits.cpu_max or 0
    if not processors or len(processors) < wants:
        return spec, frozenset()
    crowded = bool(wants) and len(processors) - _taken(nodes, given) < wants
    wanted = Limits(cpuset_cpus=None if crowded else format_list(processors), cpuset_mems=format_list(nodes) if how == "strict" else None)
    if (crowded and how != "strict") or unavailable(wanted, find_delegation()):
        return spec, frozenset()
    found = replace(spec, limits=replace(limits, cpuset_cpus=wanted.cpuset_cpus, cpuset_mems=wanted.cpuset_mems))
    return found, frozenset() if crowded else nodes


def nodes(gpus: Iterable[Gpu]) -> tuple[MemoryNode, ...]:
    """Those at which GPUs are, as the policy sees them; none where they are all at one, or the host does not say where."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for unit in gpus:
        if unit.numa_node is not None:
            found[unit.numa_node].add(unit.uuid)
    cores = {node: 1000 * len(_processors({node})) for node in found}
    if len(found) < 2 or not all(cores.values()):
        return ()
    return tuple(MemoryNode(frozenset(found[node]), cores[node]) for node in sorted(found))


def _taken(nodes: Set[int], given: Given) -> float:
    """The cores of these nodes that others have been given; of one that is kept to more nodes as much on each."""
    return sum(cores * len(nodes & theirs) / len(theirs) for theirs, cores in given)


def _processors(nodes: Set[int]) -> frozenset[int]:
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
