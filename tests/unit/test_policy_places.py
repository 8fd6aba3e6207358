"""Who stands before whom: places in the queues of those that compete for the same."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from support import policy_states
from unit.test_policy_properties import states

from dockless.base.dataclass import replace
from dockless.sched.policy.places import InOrder, Places
from dockless.sched.policy.policy import decide
from dockless.sched.policy.quotas import Quota, Quotas
from dockless.sched.policy.state import QueueState, RunningJob
from dockless.sched.policy.supplies import CORES, Supply
from dockless.sched.policy.waiting import WaitingJob, WaitingList

FOUR = ("g0", "g1", "g2", "g3")


def standing(state: QueueState, one: bool | None = None) -> Places:
    state = replace(state, waiting=WaitingList(state.waiting))
    return Places(state, decide(state, 0.0).one_queue if one is None else one)


def listed(places: Places, jobs) -> list[tuple[int, int]]:
    line = InOrder(places)
    line.add_all((job.id, job) for job in sorted(jobs, key=lambda job: job.id))
    return list(line)


def agree(state: QueueState) -> None:
    """One job's place, those of a listing, and those who stand ahead."""
    places = standing(state)
    jobs = {job.id: job for job in state.waiting}
    found = listed(places, state.waiting)
    assert sorted(number for number, _ in found) == sorted(jobs)
    queues: dict[str, list[int]] = {}
    for number, place in found:
        queue = queues.setdefault(places.queues.of(jobs[number].kind), [])
        queue.append(number)
        assert place == len(queue)
    for queue in queues.values():
        for index, number in enumerate(queue):
            assert places.place(jobs[number]) == (index + 1, len(queue))
            assert [job.id for job in places.ahead(jobs[number], 5)] == queue[:index][:5]


@settings(max_examples=200, deadline=None)
@given(states())
def test_a_listing_and_a_place_agree(state):
    agree(state)


@pytest.mark.parametrize("seed", range(60))
def test_they_agree_with_classes(seed):
    agree(policy_states.state(random.Random(seed)))


def test_who_competes_for_nothing_is_not_counted():
    wide = [WaitingJob(number, "ann", 4) for number in (1, 2, 3)]
    small = WaitingJob(4, "ben")
    assert standing(QueueState(FOUR, [*wide, small])).place(small) == (1, 1)
    assert standing(QueueState(FOUR, [*wide, small])).place(wide[2]) == (3, 3)
    assert standing(QueueState(FOUR, [*wide, small]), one=True).place(small) == (4, 4)


def test_it_is_one_queue_where_cores_are_short_for_both():
    counted = {CORES: Supply(4000, per_job=1000)}
    jobs = [WaitingJob(1, "ann", 4, cores=4000), WaitingJob(2, "ben")]
    running = [RunningJob(9, "eve", frozenset(FOUR), cores=4000)]
    assert standing(QueueState(FOUR, jobs, running, supplies=counted)).place(jobs[1]) == (2, 2)


def test_classes_that_have_no_gpu_in_common():
    """Nor through others: who may have some of either makes it one queue."""
    classes = {"H100": FOUR[:2], "A100": FOUR[2:]}
    h100, a100 = WaitingJob(1, "ann", 1, gpu_class="H100"), WaitingJob(2, "ann", 1, gpu_class="A100")
    named = WaitingJob(3, "ben", 1, devices=frozenset(("g3",)))
    places = standing(QueueState(FOUR, [h100, a100, named], classes=classes))
    assert [places.place(job) for job in (h100, a100, named)] == [(1, 1), (1, 2), (2, 2)]
    places = standing(QueueState(FOUR, [h100, a100, named, WaitingJob(4, "eve", 4)], classes=classes))
    assert [places.place(job) for job in (h100, a100, named)] == [(1, 4), (2, 4), (3, 4)]


def test_jobs_without_gpus_take_turns():
    """Of equal priority who has the fewest running is next, and one user's many do not stand before another's one."""
    many, other = [WaitingJob(number, "ann") for number in range(1, 9)], WaitingJob(9, "ben")
    places = standing(QueueState(FOUR, [*many, other]))
    assert places.place(other) == (2, 9) and [job.id for job in places.ahead(other, 5)] == [1]
    assert [number for number, _ in listed(places, [*many, other])] == [1, 9, *range(2, 9)]
    places = standing(QueueState(FOUR, [*many, other], [RunningJob(20, "ann"), RunningJob(21, "ann")]))
    assert places.place(other) == (1, 9) and places.place(many[0]) == (2, 9)


def test_a_listing_is_in_the_order_of_the_rules():
    jobs = [WaitingJob(1, "ann", 1), WaitingJob(2, "ben", 1), WaitingJob(3, "eve", 1)]
    fair = {"user ann": 900.0, "user ben": 60.0}
    assert [number for number, _ in listed(standing(QueueState(FOUR, jobs, usage=fair)), jobs)] == [3, 2, 1]
    guaranteed = Quotas({"eve": Quota(guarantee=1)})
    assert [number for number, _ in listed(standing(QueueState(FOUR, jobs, quotas=guaranteed)), jobs)] == [3, 1, 2]


def test_those_that_start_together_have_one_place():
    gang, other = WaitingJob(1, "ann", width=3), WaitingJob(4, "ann")
    line = InOrder(standing(QueueState(FOUR, [gang, other])))
    line.add_all([*((number, gang) for number in (1, 2, 3)), (4, other)])
    assert list(line) == [(1, 1), (2, 1), (3, 1), (4, 2)]


def test_two_queues_in_one_listing():
    """Higher priority first, then the older of the first of each."""
    jobs = [WaitingJob(1, "ann", 1), WaitingJob(2, "ann", priority=1), WaitingJob(3, "ann", 1, priority=1), WaitingJob(4, "ann")]
    jobs += [WaitingJob(5, "ann", 1, priority=-1), WaitingJob(6, "ann", 1)]
    assert listed(standing(QueueState(FOUR, jobs)), jobs) == [(2, 1), (3, 1), (1, 2), (4, 2), (6, 3), (5, 4)]
