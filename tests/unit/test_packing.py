"""Where a task goes: never more than there is, the same answer to the same question, and what is left stays of use."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dockless.sched.policy.packing import WHOLE, Demand, Node, Placement, Task, choose, fits, take

SHARES = st.sampled_from((50, 190, 250, 500, 810, WHOLE))
tasks = st.one_of(
    st.builds(Task, st.integers(0, 1), SHARES, st.integers(0, 4000), st.integers(0, 64), st.sampled_from((frozenset(), frozenset("a")))),
    st.builds(Task, st.integers(2, 4), st.just(WHOLE), st.integers(0, 4000), st.integers(0, 64)),
)
nodes = st.builds(
    Node,
    st.lists(st.sampled_from((0, 190, 500, 700, WHOLE)), max_size=4).map(tuple),
    st.integers(0, 16000),
    st.integers(0, 256),
    st.sampled_from("ab"),
)
mixes = st.one_of(st.none(), st.dictionaries(tasks, st.integers(0, 9), max_size=5))


@settings(max_examples=300, deadline=None)
@given(st.lists(nodes, max_size=4), st.lists(tasks, min_size=1, max_size=8), mixes)
def test_never_over_capacity_and_never_refused_without_reason(there, wanted, mix):
    there = list(there)
    demand = None if mix is None else Demand(mix, there)
    for task in wanted:
        place = choose(there, task, demand)
        assert place == choose(tuple(there), task, None if mix is None else demand)
        if place is None:
            assert not any(fits(node, task) for node in there)
            continue
        node = there[place.node]
        assert len(set(place.gpus)) == len(place.gpus) == task.gpus
        assert not task.models or node.model in task.models
        left = take(node, task, place.gpus)
        assert left.cores >= 0 and left.memory >= 0 and all(free >= 0 for free in left.gpus)
        assert sum(node.gpus) - sum(left.gpus) == task.gpus * task.share
        there[place.node] = left


@settings(max_examples=100, deadline=None)
@given(
    st.lists(nodes, min_size=1, max_size=4), st.lists(tasks, min_size=1, max_size=6), st.dictionaries(tasks, st.integers(1, 9), max_size=5)
)
def test_the_same_question_has_the_same_answer_whatever_was_asked_before(there, wanted, mix):
    used = Demand(mix, there)
    answers = [choose(there, task, used) for task in wanted]
    fresh = [choose(there, task, Demand(dict(reversed(mix.items())), there)) for task in reversed(wanted)]
    assert answers == fresh[::-1]


@settings(max_examples=200, deadline=None)
@given(st.lists(nodes, min_size=1, max_size=4), tasks)
def test_fits_counts_how_often_it_can_be_placed(there, task):
    node, count = there[0], 0
    bound = fits(node, task)
    while count <= bound and (place := choose((node,), task)) and (task.gpus or task.cores or task.memory):
        node, count = take(node, task, place.gpus), count + 1
    assert count == bound or not (task.gpus or task.cores or task.memory)


@settings(max_examples=200, deadline=None)
@given(st.sets(st.integers(0, 7), min_size=2), st.integers(2, 4), mixes)
def test_whole_gpus_are_joined_by_nvlink_where_such_a_set_is_free(free, count, mix):
    def distance(_, one, other):
        return 0.0 if one // 4 == other // 4 else 6.0

    node = Node(tuple(WHOLE if gpu in free else 400 for gpu in range(8)))
    place = choose((node,), Task(count), None if mix is None else Demand(mix, [node]), distance)
    if len(free) < count:
        assert place is None
        return
    joined = [one for one in combinations(sorted(free), count) if len({gpu // 4 for gpu in one}) == 1]
    assert set(place.gpus) <= free and (not joined or place.gpus in joined)


PAIRS = {frozenset((0, 1)), frozenset((2, 3))}


def test_one_whole_gpu_or_a_share_of_one_breaks_no_pair():
    def distance(_, one, other):
        return 0.0 if {one, other} in PAIRS else 6.0

    node = Node((WHOLE, WHOLE, 0, WHOLE))
    for share in (WHOLE, 300):
        assert choose((node,), Task(1, share), None, distance) == Placement(0, (3,))
        assert choose((node,), Task(1, share), Demand({Task(1, share): 1}, [node]), distance) == Placement(0, (3,))
    assert choose((node,), Task(2), None, distance) == Placement(0, (0, 1))


def test_a_share_goes_where_it_leaves_the_least():
    assert choose([Node((WHOLE, 500)), Node((700, 0))], Task(1, 500)) == Placement(0, (1,))
    assert choose([Node((WHOLE, WHOLE)), Node((700, 0))], Task(1, 500)) == Placement(1, (0,))


def test_with_a_demand_a_share_goes_where_the_rest_is_of_use():
    """Best fit takes the GPU with 600 free, and nothing that needs 600 finds room any more."""
    node = Node((600, 750))
    quarter, wide = Task(1, 250), Task(1, 600)
    assert choose([node], quarter) == Placement(0, (0,))
    assert choose([node], quarter, Demand({quarter: 1, wide: 1}, [node])) == Placement(0, (1,))


def test_cores_are_left_for_the_gpus():
    """A task without GPUs goes where there are more cores than the GPUs' tasks can use; best fit goes to the fewest."""
    few, many = Node((WHOLE,), 8000), Node((WHOLE,), 50_000)
    training, without = Task(1, WHOLE, 8000), Task(0, WHOLE, 4000)
    assert choose([few, many], without) == Placement(0, ())
    assert choose([few, many], without, Demand({training: 9, without: 1}, [few, many])) == Placement(1, ())


def test_a_node_of_many_free_gpus_is_kept_for_a_job_that_needs_them():
    nodes = [Node((WHOLE,) * 8, 64_000), Node((WHOLE,) * 2, 64_000)]
    one, eight = Task(1, WHOLE, 1000), Task(8, WHOLE, 8000)
    assert choose(nodes, one, Demand({one: 5, eight: 5}, nodes)) == Placement(1, (0,))


def test_only_the_models_that_a_task_can_use():
    nodes = [Node((WHOLE,), model="T4"), Node((WHOLE,), model="A10")]
    assert choose(nodes, Task(1, models=frozenset({"A10"}))) == Placement(1, (0,))
    assert choose(nodes, Task(1, models=frozenset({"H100"}))) is None
    # What only A10 can hold is kept there: the others go elsewhere.
    mix = {Task(1): 1, Task(1, models=frozenset({"A10"})): 9}
    assert choose(nodes[::-1], Task(1), Demand(mix, nodes)) == Placement(1, (0,))


@pytest.mark.parametrize("gpus, share", [(-1, WHOLE), (1, 0), (1, WHOLE + 1), (2, 500)])
def test_a_share_is_a_part_of_one_gpu(gpus, share):
    with pytest.raises(ValueError, match="a part of one GPU"):
        Task(gpus, share)
