"""What a waiting job could ask for instead: whatever is said starts now, and nothing that was asked is left in the queue."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from unit.test_policy_properties import states

from dockless.sched.policy.policy import decide
from dockless.sched.policy.ranks import Ranks
from dockless.sched.policy.state import QueueState, RunningJob
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
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
    assert asked(wanted, [RunningJob(9, "x", on(0))], slices=on(0, 1)) == Sooner(), "others are of another class"


def test_a_shorter_time_limit():
    """Before the moment at which what it would delay can start."""
    head, running = WaitingJob(1, "b", 8), [RunningJob(9, "x", on(0, 1), ends=4000.0)]
    for limit in (0.0, 5000.0):
        assert asked(WaitingJob(2, "a", 1, time_limit=limit), running, head) == Sooner(time_limit=3960.0), "whole minutes"
    assert asked(WaitingJob(2, "a", 1), [RunningJob(9, "x", on(0, 1), ends=70.5)], head) == Sooner(time_limit=70.0)
    assert asked(WaitingJob(2, "a", 1), [RunningJob(9, "x", on(0, 1))], head) == Sooner(), "nobody knows that moment"


def test_fewer_cores_and_less_memory():
    """The most that would do, of what is counted; whole ones."""
    supplies = {CORES: Supply(8000), MEMORY: Supply(32 << 30)}
    runs = [RunningJob(9, "x", cores=2500, memory=20 << 30)]
    assert asked(WaitingJob(1, "a", cores=7200), runs, supplies=supplies) == Sooner(cores=5000)
    assert asked(WaitingJob(1, "a", memory=30 << 30), runs, supplies=supplies) == Sooner(memory=12 << 30)
    assert asked(WaitingJob(1, "a", cores=7200), runs) == Sooner(), "it starts anyway"
    assert asked(WaitingJob(1, "a", cores=7200, memory=30 << 30), runs, supplies=supplies) == Sooner(), "either alone would not do"
    small = {MEMORY: Supply(2 << 30)}
    assert asked(WaitingJob(1, "a", memory=1 << 30), [RunningJob(9, "x", memory=(1 << 30) + 1)], supplies=small) == Sooner(memory=960 << 20)
    full = [RunningJob(9, "x", cores=8000, memory=32 << 30)]
    assert asked(WaitingJob(1, "a", cores=1000, memory=1 << 30), full, supplies=supplies) == Sooner()
    parts = {CORES: Supply(16000, per_gpu=1000)}
    assert asked(WaitingJob(1, "a", 1, cores=9000), [RunningJob(9, "x", cores=4000)], supplies=parts) == Sooner(cores=5000), (
        "one is its GPU's"
    )


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
    ranks = Ranks(QueueState((), ()))
    assert [ranks.before(waiting.lines.values(), job) for job in waiting] == list(range(len(waiting)))
