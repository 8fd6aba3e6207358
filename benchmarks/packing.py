"""How much of a cluster's GPUs is allocated: the packing of the daemon's policy on the openb traces (Alibaba, 2023).

All pods of a trace, and random copies until they ask for 1.3 times the GPUs there are, shuffled, placed one at a time; nothing leaves,
and what does not fit is dropped. Cores and memory limit as GPUs do. Shown is the part of all GPUs that is allocated when as many have been
asked for as there are, and at the end: the mean of the seeds. ``declared``: the mix of tasks is known beforehand, as FGD has it;
``learnt``: it is what has arrived so far, looked at again whenever twice as many have.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dockless.sched.policy.packing import WHOLE, Demand, Node, Task, choose, take

TRACES = ("default", "multigpu20", "gpushare100")
SEEDS = range(42, 52)
DEMAND = 1.3
PUBLISHED = {  # Weng et al., "Beware of Fragmentation", USENIX ATC 2023: at 100 % and 130 % of demand, in percent
    "Random": ((86.30, 87.47), (86.92, 88.69), (78.90, 79.44)),
    "DotProd": ((90.62, 90.85), (91.85, 92.06), (81.98, 82.42)),
    "GpuClustering": ((91.65, 91.88), (93.34, 93.56), (82.22, 82.65)),
    "GpuPacking": ((91.78, 92.00), (93.50, 93.71), (82.13, 82.57)),
    "BestFit": ((92.86, 93.08), (93.73, 93.93), (84.62, 85.01)),
    "FGD": ((95.23, 95.39), (95.53, 95.65), (86.64, 86.90)),
}


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: tuple[Node, ...]
    pods: tuple[Task, ...]

    @property
    def capacity(self) -> int:
        return sum(sum(node.gpus) for node in self.nodes)


def read(place: Path, trace: str) -> Cluster:
    """The nodes, and the pods of ``openb_pods_TRACE.csv``."""
    with open(place / "openb_nodes.csv") as file:
        nodes = tuple(
            Node((WHOLE,) * int(row["gpu"]), int(row["cpu_milli"]), int(row["memory_mib"]), row["model"]) for row in csv.DictReader(file)
        )
    with open(place / f"openb_pods_{trace}.csv") as file:
        pods = tuple(map(_task, csv.DictReader(file)))
    return Cluster(nodes, pods)


def _task(row: dict[str, str]) -> Task:
    gpus = int(row["num_gpu"])
    models = frozenset(filter(None, (row.get("gpu_spec") or "").split("|"))) if gpus else frozenset()
    share = int(row["gpu_milli"]) if gpus == 1 else WHOLE
    return Task(gpus, share, int(row["cpu_milli"]), int(row["memory_mib"]), models)


def size(task: Task) -> int:
    return task.gpus * task.share


def arrivals(cluster: Cluster, seed: int) -> list[Task]:
    """The pods and their copies in the order in which they come."""
    dice = random.Random(seed)
    tasks = list(cluster.pods)
    wanted = sum(map(size, tasks))
    enough = DEMAND * cluster.capacity
    while wanted < enough:
        tasks.append(dice.choice(cluster.pods))
        wanted += size(tasks[-1])
    dice.shuffle(tasks)
    return tasks


def allocated(cluster: Cluster, tasks: Sequence[Task], learnt: bool) -> tuple[float, float]:
    """The part of the GPUs that is allocated at 100 % of demand, and at the end."""
    capacity = cluster.capacity
    alike = Counter(cluster.nodes)  # nodes of which the same is free are one to the policy
    demand = Demand({} if learnt else Counter(cluster.pods), cluster.nodes)
    seen: Counter[Task] = Counter()
    asked = held = 0
    at_capacity: int | None = None
    for number, task in enumerate(tasks, 1):
        seen[task] += 1
        if learnt and number >= 16 and number & (number - 1) == 0:
            demand = Demand(seen, alike.elements())
        asked += size(task)
        states = list(alike)
        place = choose(states, task, demand)
        if place is not None:
            node = states[place.node]
            alike[node] -= 1
            if not alike[node]:
                del alike[node]
            left = take(node, task, place.gpus)
            alike[left._replace(gpus=tuple(sorted(left.gpus)))] += 1
            held += size(task)
        if at_capacity is None and asked >= capacity:
            at_capacity = held
    return (held if at_capacity is None else at_capacity) / capacity, held / capacity
