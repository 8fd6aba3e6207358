"""What a waiting job could ask for instead: whatever is said starts now, and nothing that was asked is left in the queue."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from unit.test_policy_properties import states

from dockless.sched.policy.forecast import forecast
from dockless.sched.policy.policy import decide
from dockless.sched.policy.ranks import Ranks
from dockless.sched.policy.state import QueueState, RunningJob
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
from dockless.sched.policy.waiting import WaitingJob, WaitingList
from dockless.sched.policy.whatif import Sooner, earlier, sooner

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


def rather(job, running, *others, models=(), goes_on=lambda: True, **more):
    state = QueueState(EIGHT, WaitingList([job, *others]), running, **more)
    before = list(state.waiting)
    copied = WaitingList(before)
    found = earlier(state, job, 0.0, None, goes_on, (), forecast(replace(state, waiting=copied), 0.0, None, lambda: True), dict(models))
    assert list(state.waiting) == before
    return [(one.what, one.instead, one.starts) for one in found]


def test_what_starts_earlier_though_not_now():
    """The earliest first, of each kind the best; what is hardly earlier is not said."""
    runs = [RunningJob(8, "x", on(*range(4)), ends=7200.0), RunningJob(9, "x", on(*range(4, 8)), ends=600.0)]
    job = WaitingJob(1, "a", 8, time_limit=3600.0)
    assert rather(job, runs) == [("gpus", replace(job, gpus=4), 600.0)], "more of them are as early"
    assert rather(replace(job, gpus=1), runs) == [], "it starts at the same moment with a shorter limit"
    assert rather(job, [RunningJob(8, "x", on(0), ends=100.0)]) == [("gpus", replace(job, gpus=4), 0.0)]
    assert rather(job, [RunningJob(8, "x", on(0, 1, 2, 3), ends=100.0), RunningJob(9, "x", on(*range(4, 8)), ends=90.0)]) == []
    named = WaitingJob(1, "a", 2, devices=on(0, 1), time_limit=60.0)
    assert rather(named, runs) == [("any", replace(named, devices=frozenset()), 600.0)]
    assert rather(job, runs, goes_on=lambda: False) == []


def test_a_shorter_time_limit_lets_it_pass_later():
    """When the next GPUs are free, before what comes first has its own."""
    runs = [RunningJob(8, "x", on(*range(6)), ends=7200.0), RunningJob(9, "x", on(6, 7), ends=600.0)]
    head = WaitingJob(1, "b", 8, time_limit=7200.0)
    job = WaitingJob(2, "a", 1, time_limit=7200.0)
    assert rather(job, runs, head) == [("limit", replace(job, time_limit=3600.0), 600.0)]
    endless = WaitingJob(2, "a", 1)
    assert rather(endless, runs, head) == [("limit", replace(endless, time_limit=3600.0), 600.0)]


def test_another_model_and_less_of_a_gpu():
    classes = {"H100": EIGHT[:4], "A100": EIGHT[4:]}
    runs = [RunningJob(8, "x", on(*range(4)), ends=7200.0), RunningJob(9, "x", on(*range(4, 8)), ends=600.0)]
    job = WaitingJob(1, "a", 2, gpu_class="H100", time_limit=3600.0)
    found = rather(job, runs, classes={"H100": EIGHT[:4]}, models={"A100": EIGHT[4:], "L4": EIGHT[4:5]})
    assert found == [("class", replace(job, gpu_class="A100"), 600.0)] and classes
    shares = [RunningJob(8, "a", frozenset({gpu}), ends=7200.0, share=40000) for gpu in EIGHT]
    shares += [RunningJob(9, "a", on(0), ends=600.0, share=30000)]
    job = WaitingJob(1, "a", 1, share=60000, time_limit=7200.0)
    found = rather(job, shares, shareable=dict.fromkeys(EIGHT, 80000))
    assert found == [("share", replace(job, share=30000), 0.0)]


def test_without_an_end_in_sight_anything_is_earlier():
    runs = [RunningJob(8, "x", on(*range(4))), RunningJob(9, "x", on(*range(4, 8)), ends=600.0)]
    job = WaitingJob(1, "a", 8)
    assert rather(job, runs) == [("gpus", replace(job, gpus=4), 600.0)]


@settings(max_examples=100, deadline=None)
@given(states())
def test_what_is_said_is_foretold(state):
    """A forecast of the queue with that job instead says the same moment, which is earlier than the first."""
    state = replace(state, waiting=list(state.waiting))
    first = forecast(replace(state, waiting=WaitingList(state.waiting)), 0.0, None, lambda: True)
    for job in [job for job in state.waiting if first.starts.get(job.id) != 0.0][:3]:
        mine = replace(state, waiting=WaitingList(state.waiting))
        for one in earlier(mine, job, 0.0, None, lambda: True, (), first, {}):
            rest = WaitingList([one.instead if other is job else other for other in state.waiting])
            assert forecast(replace(state, waiting=rest), 0.0, None, lambda: True).starts[job.id] == one.starts
            assert one.starts < first.starts.get(job.id, float("inf"))
