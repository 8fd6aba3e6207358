"""Cores and memory: jobs that ask too much of them together wait for each other, in the queue's order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dockless.sched.policy.policy import decide
from dockless.sched.policy.quotas import Quota, Quotas
from dockless.sched.policy.reservations import left_over, moment
from dockless.sched.policy.state import Preemption, QueueState, RunningJob, drawn
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
from dockless.sched.policy.waiting import WaitingJob, order

GIB = 1 << 30
FOUR = ("g0", "g1", "g2", "g3")


def host(waiting, running=(), cores=32, *, per_gpu=0, per_job=0, memory=None, gpus=FOUR, **rest):
    supplies = {CORES: Supply(cores * 1000, per_gpu * 1000, per_job * 1000)}
    if memory is not None:
        supplies[MEMORY] = Supply(memory * GIB)
    return QueueState(gpus, sorted(waiting, key=order), running, supplies=supplies, **rest)


def job(number, gpus=0, cores=0.0, user="anna", memory=0, **rest):
    return WaitingJob(number, user, gpus, cores=round(cores * 1000), memory=memory * GIB, **rest)


def runs(number, gpus=(), cores=0.0, user="anna", memory=0, **rest):
    return RunningJob(number, user, frozenset(gpus), cores=round(cores * 1000), memory=memory * GIB, **rest)


def started(state, now=0.0):
    return sorted(start.job for start in decide(state, now).starts)


def test_two_jobs_of_all_cores_run_one_after_the_other():
    """Also one with and one without GPUs, and for memory."""
    assert started(host([job(1, cores=32), job(2, cores=32, user="bob")])) == [1]
    assert started(host([job(1, 1, 32), job(2, cores=32)])) == [1]
    assert started(host([job(1, cores=32), job(2, 1, 32)])) == [1]
    assert started(host([job(1, 2, 16), job(2, 2, 16), job(3, cores=0.001)])) == [1, 2]
    assert started(host([job(1, memory=40), job(2, memory=30), job(3, 1, memory=24)], memory=64)) == [1, 3]


def test_who_asks_for_none_needs_none():
    full = [runs(9, cores=32)]
    assert started(host([job(1), job(2, 1), job(3, cores=1)], full)) == [1, 2]
    assert started(host([job(1), job(2, 1)], full, per_job=1)) == [2]
    assert started(host([job(number) for number in range(1, 9)], cores=6, per_job=2)) == [1, 2, 3]
    assert started(host([job(1), job(2, 1)], [runs(9, cores=32)], cores=8)) == [1, 2], "more in use than there is, since a setting changed"


def test_each_gpu_keeps_its_cores():
    """Four GPUs with four cores each leave sixteen of 32 to others; a job has those of its own GPUs beside."""
    state = host([job(1, cores=17), job(2, cores=16), job(3, cores=1), job(4, 1, 4), job(5, 2, 8), job(6, 1, 5)], per_gpu=4)
    assert started(state) == [2, 4, 5]
    assert started(host([job(1, 1, 20)], [runs(9, ("g0", "g1", "g2"))], per_gpu=4)) == [1]
    assert started(host([job(1, 1, 21)], per_gpu=4)) == []
    named = replace(host([replace(job(1, 1, 4), devices=frozenset(("g3",)))], [runs(9, cores=20)], per_gpu=4), slices=frozenset(("g3",)))
    assert not decide(named, 0.0).starts, "a slice has no cores of its own"
    slices = replace(state, slices=frozenset(("g2", "g3")), classes={"10g": ("g2", "g3", "g0")})
    assert drawn(job(1, 2, 9, gpu_class="10g"), CORES, slices) == 9000, "it may get slices alone"
    assert drawn(job(1, 2, 9), CORES, state) == 1000 and drawn(runs(1, ("g0", "g1"), 9), CORES, state) == 1000


def test_reasons_have_the_numbers():
    running = [runs(9, cores=28, ends=600.0)]
    waiting = [job(1, cores=16), job(2, 1, 4.5, "bob"), job(3, cores=2, user="carl"), job(4, cores=2, user="dora", time_limit=60)]
    decision = decide(host(waiting, running), 0.0)
    assert [start.job for start in decision.starts] == [3, 4]  # sixteen cores are over when job 9 ends
    texts = [decision.reason(one).text for one in waiting[:2]]
    assert texts[0] == "needs 16 cores, 0 free; starts in about 10 min when job 9 ends"
    assert texts[1].startswith("needs 1 GPU, 4 free; needs 4.5 cores, 0 free; job 1 comes first: it needs 16 cores and starts in about")
    kept = decide(host([job(1, 1, 6)], [runs(9, cores=15)], per_gpu=4), 0.0)
    assert kept.reason(job(1, 1, 6)).text == "needs 1 GPU, 4 free; needs 6 cores, 5 free; waits for job 9, which has no time limit"
    memory = decide(host([job(1, memory=40)], [runs(9, memory=30, ends=60.0)], memory=64), 0.0)
    assert memory.reason(job(1, memory=40)).text == "needs 40 GiB of memory, 34 GiB free; starts in about 60 s when job 9 ends"
    never = decide(host([job(1, cores=40)]), 0.0)
    assert never.reason(job(1, cores=40)).text == "needs 40 cores, 32 free" and not never.reservations


def test_the_first_that_lacks_cores_is_passed_by_none_that_delays_it():
    """Whoever has GPUs, and whoever has none. Two cores are over when it starts."""
    running = [runs(9, cores=24, ends=100.0)]
    first, others = job(1, cores=30), [job(2, cores=2), job(3, 1, 2, "bob"), job(4, cores=8, time_limit=100), job(5, 1, 8, time_limit=101)]
    assert started(host([first, others[0], others[1]], running)) == [2]
    assert started(host([first, *others[1:]], running)) == [3]
    assert started(host([first, others[2], others[3]], running)) == [4]
    assert started(host([job(1, 2, 30), job(2, cores=8), job(3, cores=8, time_limit=90), job(4, 3)], running)) == [3]


def test_a_job_of_another_time_limit_passes_where_the_first_of_its_kind_cannot():
    running = [runs(9, cores=24, ends=100.0)]
    assert started(host([job(1, cores=32), job(2, cores=4, user="bob"), job(3, cores=4, user="bob", time_limit=50)], running)) == [3]


def test_cores_are_kept_for_a_job_that_waits_for_gpus():
    """When its GPUs come free, its cores are there."""
    running = [runs(9, FOUR, 4, ends=100.0)]
    first = job(1, 4, 16)
    assert started(host([first, job(2, cores=20, user="bob"), job(3, cores=16, user="carl")], running)) == [3]
    assert started(host([first, job(2, cores=20, user="bob", time_limit=100)], running)) == [2]
    decision = decide(host([first, job(2, cores=20, user="bob")], running), 0.0)
    reason = decision.reason(job(2, cores=20, user="bob")).text
    assert reason.startswith("job 1 comes first: it needs 16 cores and starts in about 2 min when job 9 ends; a time limit")
    # Cores later than GPUs: the GPUs are kept until then.
    running = [runs(8, FOUR, ends=10.0), runs(9, cores=30, ends=100.0)]
    decision = decide(host([first, job(2, 1, user="bob")], running), 0.0)
    assert {(one.pool, one.at) for one in decision.reservations} == {("host", 100.0), ("cores", 100.0)}


def test_a_place_is_kept_with_the_cores():
    """Else small jobs had the place whenever the cores are free."""
    running = [runs(8, cores=30, ends=10.0), runs(9, user="bob")]
    assert started(host([job(1, cores=30), job(2, user="carl"), job(3, user="dora")], running, cpu_jobs=3)) == [2]
    assert started(host([job(1, cores=30), job(2, user="carl")], [runs(8, cores=30, ends=10.0), runs(9, ends=20.0)], cpu_jobs=2)) == []


def test_the_oldest_that_lacks_cores_is_first_even_if_its_user_has_jobs_that_run():
    """A stream of others' small jobs does not starve it."""
    running = [runs(9, cores=8), runs(10, cores=20, user="bob", ends=50.0)]
    assert started(host([job(1, cores=24), job(2, cores=4, user="carl")], running)) == []


def test_those_with_and_without_gpus_come_in_the_order_of_the_queue():
    assert started(host([job(1, 1, 20), job(2, cores=20, user="bob")])) == [1]
    assert started(host([job(1, cores=20), job(2, 1, 20, "bob")])) == [1]
    assert started(host([job(1, cores=20, priority=-1), job(2, 1, 20, "bob")])) == [2]
    assert started(host([job(1, 1, 20), job(2, cores=20, user="bob", priority=1)])) == [2]


def test_no_job_is_ended_for_gpus_of_which_there_would_be_no_use():
    quotas = Quotas({"anna": Quota(guarantee=2), "bob": Quota(guarantee=0)})
    running = [runs(8, FOUR, 2, "bob", since=-100.0), runs(9, cores=20, user="carl")]
    state = host([job(1, 2, 12)], running, quotas=quotas, preemption=Preemption(0.0, 10.0))
    assert [one.job for one in decide(state, 0.0).preempts] == [8], "its two cores are enough with the ten that are free"
    assert not decide(replace(state, waiting=[job(1, 2, 13)]), 0.0).preempts


def test_unknown_ends_of_odd_sizes_take_no_longer():
    """Exactly what is over where that can be said, and nothing where there are too many sums."""
    assert left_over(0, 3000, [(None, 2500, 1), (None, 1500, 2), (None, 1000, 3)], None, 0.0) == 500
    assert left_over(4000, 3000, [(None, 2500, 1)], None, 0.0) == 1000
    assert moment(4000, 3000, [(None, 2500, 1)], 7.0) == (7.0, 0)
    odd = [(None, 8 * GIB + 4096 * number + 1, number) for number in range(200)]
    assert left_over(0, 64 * GIB, odd, None, 0.0) == 0
    even = [(None, 8 * GIB, number) for number in range(200)]
    assert left_over(0, 60 * GIB, even, None, 0.0) == 4 * GIB


def test_what_a_job_draws():
    """Who shares a GPU has as much of its cores as of its memory."""
    state = host([], cores=32, per_gpu=4, per_job=1, shareable={"g0": 8000, "g1": 16000})
    asked = [job(1), job(1, 2), job(1, 2, 8.5), job(1, cores=0.1), replace(job(1, 1, 3), share=4000), replace(job(1, 1, 0.5), share=4000)]
    assert [drawn(one, CORES, state) for one in asked] == [1000, 0, 500, 100, 2000, 0]
    assert drawn(replace(runs(1, ("g0",), 3), share=4000), CORES, state) == 2000
    assert drawn(replace(runs(1, ("g0",), 3), share=4000), CORES, replace(state, shareable={})) == 0


AMOUNTS = st.sampled_from((0, 500, 1000, 2500, 4000))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nothing_is_exceeded_and_all_run(data):
    """With any limits, ends that come early, and both kinds of jobs: whatever could run alone has run at the end."""
    per_gpu = data.draw(st.sampled_from((0, 500)))
    supplies = {CORES: Supply(6000, per_gpu, data.draw(st.sampled_from((0, 1000)))), MEMORY: Supply(8 * GIB)}
    waiting = []
    for number in range(1, data.draw(st.integers(1, 14)) + 1):
        gpus, limit = data.draw(st.sampled_from((0, 0, 1, 2, 4))), data.draw(st.sampled_from((0.0, 10.0, 50.0)))
        memory = data.draw(st.sampled_from((0, 2, 8)))
        waiting.append(
            WaitingJob(number, data.draw(st.sampled_from("ab")), gpus, time_limit=limit, cores=data.draw(AMOUNTS), memory=memory * GIB)
        )
    state = QueueState(FOUR, (), supplies=supplies, cpu_jobs=data.draw(st.integers(1, 4)))
    lengths = {one.id: data.draw(st.integers(1, 20)) for one in waiting}
    left, running, now = list(waiting), [], 0.0
    while left or running:
        decision = decide(replace(state, waiting=left, running=[one for one, _ in running]), now)
        for start in decision.starts:
            one = next(other for other in left if other.id == start.job)
            ends = now + one.time_limit if one.time_limit else None
            there = RunningJob(one.id, one.user, frozenset(start.gpus), ends=ends, since=now, cores=one.cores, memory=one.memory)
            running.append((there, now + min(lengths[one.id], one.time_limit or 100)))
            left.remove(one)
        assert running, "a host with nothing running must start something"
        for pool, supply in supplies.items():
            assert sum(drawn(one, pool, state) for one, _ in running) <= supply.common(len(FOUR))
            assert sum(one.cores if pool == CORES else one.memory for one, _ in running) <= supply.total
        now = min(end for _, end in running)
        running = [(one, end) for one, end in running if end > now]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_first_never_slips(data):
    """Once it was told when it starts at the latest, it does, whatever comes behind it with each pass."""
    supplies = {CORES: Supply(8000)}
    first = WaitingJob(1, "anna", data.draw(st.sampled_from((0, 1))), cores=data.draw(st.sampled_from((4000, 8000))))
    running = [
        (RunningJob(100 + number, "bob", ends=10.0 * number, cores=2000), 10.0 * number)
        for number in range(1, data.draw(st.integers(2, 4)) + 1)
    ]
    left, now, number, told = [first], 0.0, 1, None
    while True:
        for _ in range(data.draw(st.integers(0, 3))):
            number += 1
            limit, gpus = data.draw(st.sampled_from((0.0, 5.0, 15.0))), data.draw(st.sampled_from((0, 0, 1)))
            left.append(WaitingJob(number, data.draw(st.sampled_from("bc")), gpus, time_limit=limit, cores=data.draw(AMOUNTS)))
        decision = decide(QueueState(FOUR, left, [one for one, _ in running], supplies=supplies), now)
        starts = {start.job: start.gpus for start in decision.starts}
        if 1 in starts:
            assert told is None or now <= told
            return
        at = decision.reason(first).starts_at
        assert at is not None and (told is None or at <= told)
        told = at
        for one in [one for one in left if one.id in starts]:
            ends = now + one.time_limit if one.time_limit else None
            there = RunningJob(one.id, one.user, frozenset(starts[one.id]), ends=ends, since=now, cores=one.cores)
            running.append((there, ends or 1000.0))
            left.remove(one)
        now = min(end for _, end in running)
        running = [(one, end) for one, end in running if end > now]
