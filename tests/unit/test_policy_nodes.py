"""GPUs beside a memory node that has cores left, among sets that are packed alike."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from dockless.base.dataclass import replace
from dockless.sched.policy.policy import decide
from dockless.sched.policy.state import MemoryNode, QueueState, RunningJob
from dockless.sched.policy.waiting import WaitingJob

GPUS = ("a0", "a1", "b0", "b1")
NODES = (MemoryNode(frozenset(GPUS[:2]), 8000), MemoryNode(frozenset(GPUS[2:]), 8000))
NEAR = {(a, b): (1.0 if a[0] == b[0] else 100.0) for a in GPUS for b in GPUS if a != b}


def starts(*jobs: WaitingJob, running=(), **more) -> dict[int, tuple[str, ...]]:
    return {start.job: start.gpus for start in decide(QueueState(GPUS, jobs, running, nodes=NODES, **more), 0.0).starts}


def test_the_node_that_has_cores_left():
    busy = [RunningJob(9, "x", frozenset({"a0"}), cores=6000)]
    for links in ({}, NEAR):
        assert starts(WaitingJob(1, "a", 1, cores=2000), running=busy, links=links) == {1: ("a1",)}, "as without nodes"
    assert starts(WaitingJob(1, "a", 1, cores=4000), running=busy) == {1: ("b0",)}
    assert starts(WaitingJob(1, "a", 1), running=busy) == {1: ("a1",)}, "it names no cores"
    both = [RunningJob(9, "x", frozenset({"a0", "b0"}), cores=8000)]
    assert starts(WaitingJob(1, "a", 1, cores=4000), running=both) == {1: ("a1",)}, "half of them are on each"
    full = [*busy, RunningJob(8, "x", frozenset({"b0"}), cores=6000)]
    assert starts(WaitingJob(1, "a", 1, cores=4000), running=full) == {1: ("a1",)}, "neither has"


def test_those_that_start_together_count():
    found = starts(*(WaitingJob(number, "a", 1, cores=5000) for number in (1, 2)))
    assert found == {1: ("a0",), 2: ("b0",)}


def test_packing_comes_first():
    """The GPU of a broken pair, and the pair of neighbours, whatever cores are left there."""
    busy = [RunningJob(9, "x", frozenset({"a0"}), cores=8000)]
    assert starts(WaitingJob(1, "a", 1, cores=4000), running=busy, links=NEAR) == {1: ("a1",)}
    assert starts(WaitingJob(1, "a", 2, cores=4000), running=busy, links=NEAR) == {1: ("b0", "b1")}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_sets_are_packed_as_well_as_without(data):
    """The same jobs start, on GPUs that are as near to each other, and leave as near ones behind."""
    distances = {pair: data.draw(st.sampled_from((1.0, 10.0, 100.0))) for pair in combinations(GPUS, 2)}
    links = {**distances, **{(b, a): far for (a, b), far in distances.items()}}
    job = WaitingJob(1, "a", data.draw(st.integers(1, 3)), cores=data.draw(st.integers(1, 9000)))
    running = [RunningJob(9, "x", frozenset({data.draw(st.sampled_from(GPUS))}), cores=data.draw(st.integers(0, 9000)))]
    state = QueueState(GPUS, [job], running, links=links, nodes=NODES)

    def cost(gpus):
        return sum(distances[pair] for pair in combinations(sorted(gpus), 2))

    (one,), (other,) = decide(state, 0.0).starts, decide(replace(state, nodes=()), 0.0).starts
    free = set(GPUS) - running[0].gpus
    assert (cost(one.gpus), cost(free - set(one.gpus))) == (cost(other.gpus), cost(free - set(other.gpus)))
