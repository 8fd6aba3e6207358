"""What a waiting job could ask for instead: whatever is said starts now, and nothing that was asked is left in the queue."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from unit.test_policy_properties import states

from dockless.sched.policy.policy import decide
from dockless.sched.policy.quotas import Quotas
from dockless.sched.policy.ranks import Ranks
from dockless.sched.policy.state import QueueState, RunningJob
from dockless.sched.policy.waiting import WaitingJob, WaitingList
from dockless.sched.policy.whatif import Sooner, sooner

EIGHT = tuple(f"g{number}" for number in range(8))


def on(*numbers: int) -> frozenset[str]:
    return frozenset(EIGHT[number] for number in numbers)


def asked(job, running, *others, **more):
    return sooner(QueueState(EIGHT, WaitingList([job, *others]), running, **more), job, 0.0)


def test_fewer_gpus():
    """The most that would do."""
    assert asked(WaitingJob(1, "a", 6), [RunningJob(9, "x", on(0, 1, 2))]) == Sooner(gpus=5)
    assert asked(WaitingJob(1, "a", 6), [RunningJob(9, "x", on(*range(7)))]) == Sooner(gpus=1)
    assert asked(WaitingJob(1, "a", 1), [RunningJob(9, "x", on(*range(8)))]) == Sooner()
    assert asked(WaitingJob(1, "a", 6), [RunningJob(9, "x", on(*range(8)))]) == Sooner()


def test_any_gpus_instead_of_these():
    wanted = WaitingJob(1, "a", 2, devices=on(0, 1))
    assert asked(wanted, [RunningJob(9, "x", on(0))]) == Sooner(any_gpus=True)
    assert asked(wanted, [RunningJob(9, "x", on(*range(7)))]) == Sooner()


def test_a_shorter_time_limit():
    """Before the moment at which what it would delay can start."""
    head, running = WaitingJob(1, "b", 8), [RunningJob(9, "x", on(0, 1), ends=4000.0)]
    for limit in (0.0, 5000.0):
        assert asked(WaitingJob(2, "a", 1, time_limit=limit), running, head) == Sooner(time_limit=3960.0), "whole minutes"
    assert asked(WaitingJob(2, "a", 1), [RunningJob(9, "x", on(0, 1), ends=70.5)], head) == Sooner(time_limit=70.0)
    assert asked(WaitingJob(2, "a", 1), [RunningJob(9, "x", on(0, 1))], head) == Sooner(), "nobody knows that moment"


@settings(max_examples=300, deadline=None)
@given(states())
def test_what_is_said_would_start_now(state):
    state = replace(state, waiting=WaitingList(state.waiting))
    before = list(state.waiting)
    starting = {start.job for start in decide(state, 0.0).starts}
    for job in before:
        if job.id in starting or not job.gpus:
            continue
        found = sooner(state, job, 0.0)
        assert list(state.waiting) == before
        changes = [{"gpus": found.gpus}] if found.gpus else []
        changes += [{"devices": frozenset()}] if found.any_gpus else []
        changes += [{"time_limit": found.time_limit}] if found.time_limit else []
        for change in changes:
            rest = [replace(other, **change) if other is job else other for other in before]
            assert job.id in {start.job for start in decide(replace(state, waiting=rest), 0.0).starts}, change


@settings(max_examples=100, deadline=None)
@given(states())
def test_how_many_stand_before_one(state):
    waiting = WaitingList(state.waiting)
    ranks = Ranks(Quotas(), (), None)
    assert [ranks.before(waiting, job) for job in waiting] == list(range(len(waiting)))
