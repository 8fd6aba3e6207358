"""Jobs are kept to the processors near their GPUs: those of the GPUs' memory nodes. See the kernel's cgroup-v2.rst, cpuset."""

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
"""Of each running job the memory nodes to whose processors it is kept, and the number of its cores."""


def near(spec: Spec, gpus: Sequence[Gpu], how: str, given: Given = ()) -> tuple[Spec, Set[int]]:
    """``spec``, limited to the processors near ``gpus``, and the memory nodes of these GPUs. ``how``: ``near``, or ``strict`` to limit its
    memory to these nodes, too. ``given``: what other jobs have. The spec is unchanged, and there are no nodes, where the host has no cpuset
    controller or does not say at which nodes the GPUs are, where these nodes have fewer processors than the job asks cores, and where the
    job itself says on which processors it runs. Where other jobs leave fewer cores on these nodes than it asks for, it may use the
    processors of all nodes; ``strict`` then limits only its memory."""
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
    """The memory nodes that have GPUs, as the policy sees them; none where all GPUs are at one node, or the host does not say where."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for unit in gpus:
        if unit.numa_node is not None:
            found[unit.numa_node].add(unit.uuid)
    cores = {node: 1000 * len(_processors({node})) for node in found}
    if len(found) < 2 or not all(cores.values()):
        return ()
    return tuple(MemoryNode(frozenset(found[node]), cores[node]) for node in sorted(found))


def _taken(nodes: Set[int], given: Given) -> float:
    """The cores of these nodes that other jobs have. The cores of a job on several nodes count in equal parts on each."""
    return sum(cores * len(nodes & theirs) / len(theirs) for theirs, cores in given)


def _processors(nodes: Set[int]) -> frozenset[int]:
    """The processors of these nodes that the daemon may use; none where the host does not list them."""
    from dockless.cgroups.limits import parse_list

    found: set[int] = set()
    for node in nodes:
        try:
            text = (NODES / f"node{node}" / "cpulist").read_text().strip()
        except OSError:
            return frozenset()
        found |= parse_list(text) if text else frozenset()
    return frozenset(found & os.sched_getaffinity(0))
