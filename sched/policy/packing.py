"""Where a task goes: which node, and which of its GPUs. A pure function: the daemon calls it for its one host, the replays for thousands.

A node that can hold the task is judged by what placing it there costs all others. ``Demand`` puts that cost in numbers:

* **What will be left.** A few futures are drawn from the mix of the demand, and each is played on the node alone: tasks come, those that
  fit are taken, each on the fullest GPU that holds it. What of the GPUs is free at the end is lost: to fragments too small for anything,
  or because the node's cores or memory were used up first.
* **Who can still come.** Each kind of task fits so often into what is free on the node. Every place that is lost costs the kind's size in
  GPUs, as far as places for it are scarce: by how often it will come before the nodes are full.

The task goes where both together grow least; among equals to the first. Without a demand it goes where it leaves the least of its GPUs,
then of the cores: best fit. Of whole GPUs of one node, those nearest to each other are taken, and among equals those that leave the nearest
behind (``best_set``).

The futures are no random numbers: the same mix has the same futures, so the same question has the same answer.
"""

from __future__ import annotations

from bisect import bisect, bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from dockless.base.dataclass import dataclass
from dockless.sandbox.gpus.topology import best_set

WHOLE = 1000
"""Shares of a GPU are counted in thousandths."""

FUTURES = 8
ARRIVALS = 20  # tasks in each future: about twice what a node of eight GPUs can hold
SCARCITY = 0.2  # what a place that is lost weighs beside as much of a GPU that stays free
_GOLDEN = 0.6180339887498949  # its multiples spread evenly: any few in a row cover the whole mix


class Node(NamedTuple):
    """What is free on a node. ``gpus``: thousandths of each GPU; ``cores``: thousandths; ``memory``: MiB; ``model``: of all its GPUs."""

    gpus: tuple[int, ...]
    cores: int = 0
    memory: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """What a task wants. ``gpus``: how many; ``share``: thousandths of each, and less than a whole one only of a single GPU; ``cores`` and
    ``memory``: as in ``Node``; ``models``: those it can use, empty for any. ValueError for a share that is none."""

    gpus: int = 0
    share: int = WHOLE
    cores: int = 0
    memory: int = 0
    models: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.gpus < 0 or not 0 < self.share <= WHOLE or (self.gpus > 1 and self.share < WHOLE):
            raise ValueError(f"{self.gpus} GPUs, of each {self.share} of {WHOLE}: a share is a part of one GPU")


@dataclass(frozen=True, slots=True)
class Placement:
    """``node``: its place in the sequence; ``gpus``: their places in ``Node.gpus``."""

    node: int
    gpus: tuple[int, ...]


Distance = Callable[[int, int, int], float]
"""``(node, one, other)``: how far apart two GPUs of a node are."""


def choose(nodes: Sequence[Node], task: Task, demand: Demand | None = None, distance: Distance | None = None) -> Placement | None:
    """Where ``task`` goes, None if it fits nowhere. ``demand``: what else is to be expected; ``distance``: of the GPUs of a node, all
    equally near without it."""
    demand = demand or Demand()
    costs = demand.costs(task)
    cost, number = min(zip(map(costs.__getitem__, nodes), range(len(nodes)), strict=True), default=(_NOWHERE, 0))
    if cost == _NOWHERE:
        return None
    level = min(demand.levels(nodes[number], task))[1]
    alike = [place for place, free in enumerate(nodes[number].gpus) if free == level]
    if distance is None or len(alike) <= task.gpus or not task.gpus:
        return Placement(number, tuple(alike[: task.gpus]))
    return Placement(number, best_set(alike, task.gpus, lambda one, other: distance(number, one, other)))


def take(node: Node, task: Task, gpus: Iterable[int]) -> Node:
    """What is free on ``node`` once ``task`` has these of its GPUs."""
    taken = frozenset(gpus)
    left = tuple(free - task.share if place in taken else free for place, free in enumerate(node.gpus))
    return Node(left, node.cores - task.cores, node.memory - task.memory, node.model)


def fits(node: Node, task: Task) -> int:
    """How many such tasks ``node`` can hold beside each other; of tasks that want nothing, one."""
    if task.models and node.model not in task.models:
        return 0
    limits = [free // wanted for free, wanted in ((node.cores, task.cores), (node.memory, task.memory)) if wanted]
    if task.gpus:
        limits.append(sum(free // task.share for free in node.gpus) // task.gpus)
    return min(limits, default=1)


_Cost = tuple[float, ...]
_NOWHERE: _Cost = (inf,)


class _Costs(dict[Node, _Cost]):
    """What it costs to place one task, of each node that was asked for."""

    __slots__ = ("demand", "task")

    def __init__(self, demand: Demand, task: Task) -> None:
        self.demand, self.task = demand, task

    def __missing__(self, node: Node) -> _Cost:
        cost = self[node] = min(self.demand.levels(node, self.task))[0] if fits(node, self.task) else _NOWHERE
        return cost


_Arrival = tuple[int, int, int]  # cores, memory, share of one GPU, 0 for none
_Kinds = tuple[int, int, list[tuple[int, int, float]]]  # share, GPUs: cores, memory, price


class Demand:
    """The tasks to be expected. ``mix``: how often each kind comes, in any unit; ``nodes``: what is free there. Without a mix nothing
    is known, and tasks are placed by best fit.

    It remembers what it has worked out, which changes no answer.
    """

    def __init__(self, mix: Mapping[Task, float] | None = None, nodes: Iterable[Node] = ()) -> None:
        weights = {task: weight for task, weight in (mix or {}).items() if weight > 0}
        self._mix = sorted(weights.items(), key=lambda kind: (_size(kind[0]), kind[0].cores, kind[0].memory, sorted(kind[0].models)))
        self._prices = self._priced(Counter(nodes))
        self._models: dict[str, tuple[list[list[_Arrival]], list[_Kinds]]] = {}
        self._losses: dict[Node, float] = {}
        self._costs: dict[Task, _Costs] = {}

    def costs(self, task: Task) -> Mapping[Node, _Cost]:
        """What placing ``task`` costs, by node; to be compared with each other only."""
        if task not in self._costs:
            self._costs[task] = _Costs(self, task)
        return self._costs[task]

    def levels(self, node: Node, task: Task) -> list[tuple[_Cost, int]]:
        """The cost of placing ``task``, which fits, on GPUs of ``node`` with so much free: for each amount that will do."""
        levels = sorted({free for free in node.gpus if free >= task.share}) if task.gpus else [0]
        found = []
        for level in levels:
            rest = take(node, task, [place for place, free in enumerate(node.gpus) if free == level][: task.gpus])
            if self._mix:
                cost: _Cost = (self._loss(rest) - self._loss(node),)
            else:
                cost = (level - task.share if task.gpus else 0, sum(rest.gpus), rest.cores)
            found.append((cost, level))
        return found

    def _loss(self, node: Node) -> float:
        """Thousandths of GPUs that will stay free, less the worth of the places that are left."""
        state = Node(tuple(sorted(filter(None, node.gpus))), node.cores, node.memory, node.model)
        loss = self._losses.get(state)
        if loss is None:
            futures, places = self._of(node.model)
            left = sum(_left(state, future) for future in futures) / FUTURES
            loss = self._losses[state] = left - SCARCITY * _worth(state, places)
        return loss

    def _priced(self, nodes: Mapping[Node, int]) -> dict[Task, float]:
        """What one place for each kind is worth: its size, if at least as many will come as there are places, else in proportion."""
        free = sum(sum(node.gpus) * count for node, count in nodes.items())
        wanted = sum(_size(task) * weight for task, weight in self._mix)
        prices = {}
        for task, weight in self._mix:
            places = sum(fits(node, task) * count for node, count in nodes.items()) if task.gpus else 0
            if places:
                prices[task] = _size(task) * min(1.0, free / wanted * weight / places)
        return prices

    def _of(self, model: str) -> tuple[list[list[_Arrival]], list[_Kinds]]:
        """The futures of a node with GPUs of ``model``, and the kinds of tasks that have a price there."""
        if model not in self._models:
            mix = [(task, weight) for task, weight in self._mix if not task.models or model in task.models]
            kinds: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
            for task, _ in mix:
                if task in self._prices:
                    kinds.setdefault((task.share, task.gpus), []).append((task.cores, task.memory, self._prices[task]))
            self._models[model] = _futures(mix), [(*shape, rows) for shape, rows in kinds.items()]
        return self._models[model]


def _size(task: Task) -> int:
    return task.gpus * task.share


def _futures(mix: Iterable[tuple[Task, float]]) -> list[list[_Arrival]]:
    """Sequences of arrivals, in each the whole mix as evenly as so few can have it. Tasks of several GPUs are left out: they are rare and
    large, and by chance in one future and not in the next they would outweigh all else. What they need is priced."""
    single = [(task, weight) for task, weight in mix if task.gpus <= 1]
    if not single:
        return []
    bounds = list(accumulate(weight for _, weight in single))
    arrivals = [(task.cores, task.memory, task.share * task.gpus) for task, _ in single]
    return [
        [
            arrivals[bisect(bounds, ((first + 0.5) / FUTURES + step * _GOLDEN) % 1 * bounds[-1], hi=len(single) - 1)]
            for step in range(ARRIVALS)
        ]
        for first in range(FUTURES)
    ]


def _left(node: Node, future: Iterable[_Arrival]) -> int:
    """Thousandths of GPUs that are free on ``node`` (its ``gpus`` ascending) after ``future``."""
    free, cores, memory = list(node.gpus), node.cores, node.memory
    if not free:
        return 0
    most = free[-1]
    for wants, needs, share in future:
        if wants > cores or share > most or needs > memory:
            continue
        cores -= wants
        memory -= needs
        if share:
            rest = free.pop(bisect_left(free, share)) - share
            if rest:
                insort(free, rest)
            elif not free:
                return 0
            most = free[-1]
    return sum(free)


def _worth(node: Node, kinds: Iterable[_Kinds]) -> float:
    """The places on ``node`` at their prices."""
    worth = 0.0
    for share, gpus, rows in kinds:
        most = sum([free // share for free in node.gpus]) // gpus
        if most:
            for cores, memory, price in rows:
                worth += price * min(most, node.cores // cores if cores else most, node.memory // memory if memory else most)
    return worth
