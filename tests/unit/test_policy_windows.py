"""Reserved hours: their GPUs are free when they begin, stay so for their members, and nobody else waits longer than that needs."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from support.plain_policy import decide_plainly, supplied, wider
from support.policy_states import state

from dockless.sched.policy.policy import QueueState, RunningJob, StartJob, WaitingJob, decide, order
from dockless.sched.policy.state import Window
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
from dockless.sched.policy.waiting import WaitingList
from dockless.sched.policy.whatif import sooner

FOUR = ("g0", "g1", "g2", "g3")
ML = Window("ml101", 3, frozenset({"prof"}), 100.0, 200.0, "from 10:00 to 12:00")


def job(number: int, count: int, user: str = "anna", limit: float = 0.0, **more) -> WaitingJob:
    return WaitingJob(number, user, count, time_limit=limit, **more)


def given(now: float, *waiting: WaitingJob, running=(), windows=(ML,), **more):
    return decide(QueueState(FOUR, waiting, running, windows=windows, **more), now)


def test_before_they_begin():
    """Who ends in time has all GPUs, who does not what is left over; it is kept for nobody but those who need it."""
    endless, late, brief = job(1, 2), job(2, 1, limit=101.0), job(3, 3, limit=100.0)
    decision = given(0.0, endless, late, brief, job(4, 1))
    assert decision.starts == [StartJob(2, ("g0",)), StartJob(3, ("g1", "g2", "g3"))]
    words = "needs 2 GPUs, 0 free; 3 are kept for ml101 from 10:00 to 12:00; a time limit that ends before then would let this one start"
    assert decision.reason(endless).text == words
    assert decision.again == 200.0
    state = QueueState(FOUR, WaitingList([endless]), windows=[ML])
    assert sooner(state, endless, 0.0).time_limit == 60.0 and sooner(state, endless, 0.0).gpus == 1


def test_members_have_them():
    two = [replace(ML, users=frozenset({"prof", "carl"}))]
    members = [job(1, 2, "prof"), job(2, 1, "carl"), job(3, 1, "anna")]
    assert [start.job for start in given(150.0, *members, windows=two).starts] == [1, 2, 3]
    decision = given(150.0, job(1, 2, "anna", 1.0), job(2, 3, "prof", 500.0))
    assert [start.job for start in decision.starts] == [2]
    assert decision.reason(job(1, 2, "anna", 1.0)).text == "needs 2 GPUs, 1 free; 3 are kept for ml101 from 10:00 to 12:00"


def test_what_runs_into_them_counts():
    """As long as it may run. Of those who want the rest the first keeps its place, and gets it when the other ends."""
    running = [RunningJob(9, "bob", frozenset({"g0"}), ends=120.0)]
    decision = given(0.0, job(1, 1), job(2, 1, "carl"), running=running)
    assert not decision.starts
    assert decision.reason(job(1, 1)).starts_at == 120.0 and "job 1 comes first among the others" in decision.reason(job(2, 1, "carl")).text
    assert given(0.0, job(1, 1), running=[replace(running[0], ends=100.0)]).starts
    assert given(0.0, job(1, 1), running=[replace(running[0], user="prof")]).starts
    for ends in (100.0, 140.0):
        overdue = [replace(running[0], ends=ends)]
        assert not given(150.0, job(1, 1), running=overdue).starts  # it is still there


def test_a_promise_that_leads_into_them_is_for_afterwards():
    """At 50 its GPUs are free, but it would run for 60 seconds then."""
    running = [RunningJob(9, "bob", frozenset({"g0", "g1", "g2"}), ends=50.0)]
    first = job(1, 2, limit=60.0)
    assert given(0.0, first, running=running).reason(first).starts_at == 200.0
    assert given(0.0, replace(first, time_limit=50.0), running=running).reason(first).starts_at == 50.0


def test_memory_may_be_a_slice_then():
    """Who may have a slice gets that, and waits only where there is none."""
    state = QueueState((*FOUR, "s0"), (), slices=frozenset({"s0"}), classes={"memory=10G": ("s0", *FOUR)}, windows=[replace(ML, gpus=4)])
    wants = [job(number, 1, gpu_class="memory=10G") for number in (1, 2)]
    decision = decide(replace(state, waiting=wants), 0.0)
    assert decision.starts == [StartJob(1, ("s0",))] and "4 are kept for ml101" in decision.reason(wants[1]).text
    assert decide(replace(state, waiting=[replace(wants[0], time_limit=99.0), replace(wants[1], time_limit=99.0)]), 0.0).starts[1:]


GIB = 1 << 30
SUPPLIES = {CORES: Supply(32_000, 4_000, 1_000), MEMORY: Supply(64 * GIB)}
LAB = Window("lab", 0, frozenset({"prof"}), 100.0, 200.0, "from 10:00 to 12:00", cores=12_000, memory=16 * GIB)


def test_cores_and_memory_are_kept_too():
    """Of what is common to all: sixteen of the 32 cores go with the four GPUs. With and without GPUs, and of who runs into them alone."""

    def starts(*waiting: WaitingJob, now: float = 150.0, running=()) -> list[int]:
        return [start.job for start in given(now, *waiting, windows=(LAB,), supplies=SUPPLIES, running=running).starts]

    assert starts(job(1, 0, cores=4_000), job(2, 0, cores=1_000), job(3, 0, "prof", cores=12_000)) == [1, 3]
    assert starts(job(1, 1, cores=8_000), job(2, 1, cores=5_000), job(3, 1), job(4, 2, "prof", cores=20_000)) == [1, 3, 4]
    assert starts(job(1, 0, memory=48 * GIB), job(2, 0, memory=GIB), job(3, 1, "prof", memory=16 * GIB)) == [1, 3]
    assert starts(job(1, 0), job(2, 0), job(3, 0), job(4, 0), job(5, 0)) == [1, 2, 3, 4]  # a core each, though they do not say so
    assert starts(job(1, 0, cores=8_000, limit=100.0), job(2, 0, cores=8_000, limit=100.0), now=0.0) == [1, 2]
    assert starts(job(1, 0, cores=8_000, limit=101.0), job(2, 0, cores=4_000), now=0.0) == [2]
    overdue = [RunningJob(9, "bob", ends=140.0, cores=8_000)]
    assert starts(job(1, 0, cores=1_000), running=overdue) == []
    assert starts(job(1, 0, cores=1_000), running=[replace(overdue[0], ends=90.0)], now=0.0) == [1]


def test_what_is_said_of_kept_cores():
    waits = job(1, 0, cores=8_000, limit=300.0)
    decision = given(0.0, waits, job(2, 1, memory=50 * GIB), windows=(LAB,), supplies=SUPPLIES)
    words = "12 cores are kept for lab from 10:00 to 12:00; a time limit that ends before then would let this one start"
    assert decision.reason(waits).text == f"needs 8 cores, 16 free; {words}"
    words = words.replace("12 cores", "16 GiB of memory")
    assert decision.reason(job(2, 1, memory=50 * GIB)).text == f"needs 1 GPU, 4 free; needs 50 GiB of memory, 64 GiB free; {words}"
    state = QueueState(FOUR, WaitingList([waits]), windows=[LAB], supplies=SUPPLIES)
    assert (sooner(state, waits, 0.0).cores, sooner(state, waits, 0.0).time_limit) == (4_000, 60.0)
    running = [RunningJob(9, "bob", ends=130.0, cores=4_000)]
    decision = given(0.0, job(1, 0, cores=4_000), job(2, 0, "carl", cores=2_000), windows=(LAB,), supplies=SUPPLIES, running=running)
    assert not decision.starts and decision.reason(job(1, 0, cores=4_000)).starts_at == 130.0
    assert "job 1 comes first among the others: it needs 4 cores" in decision.reason(job(2, 0, "carl", cores=2_000)).text


def test_a_promise_of_cores_that_leads_into_them_is_for_afterwards():
    running = [RunningJob(9, "bob", ends=50.0, cores=16_000)]
    first = job(1, 0, cores=8_000, limit=60.0)
    assert given(0.0, first, running=running, windows=(LAB,), supplies=SUPPLIES).reason(first).starts_at == 200.0
    small = replace(first, cores=4_000)
    assert given(0.0, small, running=running, windows=(LAB,), supplies=SUPPLIES).reason(small).starts_at == 50.0


def test_so_is_that_of_who_shares_a_gpu():
    running = [RunningJob(9, "bob", ends=50.0, cores=16_000)]
    first = job(1, 1, limit=60.0, cores=16_000, share=500)
    more = {"running": running, "windows": (replace(ML, gpus=4),), "supplies": SUPPLIES, "shareable": dict.fromkeys(FOUR, 1000)}
    assert given(0.0, first, **more).reason(first).starts_at == 200.0
    brief = replace(first, time_limit=50.0)
    assert given(0.0, brief, **more).reason(brief).starts_at == 50.0


def test_who_ends_before_them_joins_a_shared_gpu_though_others_have_all_that_is_left():
    running = [RunningJob(9, "anna", frozenset({"g0"}), share=300)]
    more = {"running": running, "shareable": dict.fromkeys(FOUR, 1000)}
    assert given(0.0, job(1, 1, limit=100.0, share=300), **more).starts == [StartJob(1, ("g0",))]
    assert not given(0.0, job(1, 1, limit=101.0, share=300), **more).starts


def windows(dice: random.Random, users, supplies=()) -> list[Window]:
    found = []
    for name in ("one", "two")[: dice.randint(1, 2)]:
        starts = dice.choice((-5.0, 2.0, 10.0, 40.0))
        members = frozenset(dice.sample(users, dice.randint(0, min(2, len(users)))))
        hours = Window(name, dice.randint(1, 6), members, starts, max(starts, 0.0) + dice.choice((1.0, 20.0, 60.0)))
        if supplies:
            cores = dice.choice((0, 2000, 6000))
            hours = replace(hours, gpus=dice.choice((0, hours.gpus)), cores=cores, memory=dice.choice((0, 4 * GIB, 16 * GIB)))
        found.append(hours)
    return found


def test_looking_at_few_decides_as_looking_at_all():
    for number in range(1200):
        dice = random.Random(number)
        now = replace(state(dice), windows=windows(dice, ("anna", "bob", "carl")))
        found, plain = decide(now, 0.0), decide_plainly(now, 0.0)
        assert (found.starts, found.preempts, found.again) == (plain.starts, plain.preempts, plain.again), number
        assert sorted(map(repr, found.reservations)) == sorted(map(repr, plain.reservations)), number


def test_looking_at_few_decides_as_looking_at_all_with_cores():
    """And with memory, and of several that start together."""
    held = 0
    for number in range(1500):
        dice = random.Random(number)
        now = supplied(state(dice), dice)
        now = replace(wider(now, dice) if number % 3 == 0 else now, windows=windows(dice, ("anna", "bob", "carl"), now.supplies))
        found, plain = decide(now, 0.0), decide_plainly(now, 0.0)
        assert (found.starts, found.preempts, found.again) == (plain.starts, plain.preempts, plain.again), number
        assert sorted(map(repr, found.reservations)) == sorted(map(repr, plain.reservations)), number
        held += any("are kept for" in found.reason(one).text for one in now.waiting if one.id not in {start.job for start in found.starts})
    assert held > 500


@pytest.mark.parametrize("of", ["gpus", CORES, MEMORY])
def test_the_hours_are_kept_and_nobody_starves(of):
    """Queues to their end, with jobs that come meanwhile: whatever others do, a member's jobs that fit into what is reserved start at once
    in these hours; before them nobody waits for more than those who come first; and in the end all have run."""
    at_once = 0
    for number in range(150):
        dice = random.Random(number)
        kept = dice.randint(1, 4)
        starts = dice.choice((10.0, 30.0, 60.0))
        window = Window("x", 0, frozenset({"prof"}), starts, starts + dice.choice((10.0, 50.0)))
        window = replace(window, **{of: kept})
        jobs = []
        for one in range(1, 25):
            user = dice.choice(("anna", "bob", "prof"))
            limit = dice.choice((0.0, 5.0, 20.0, 80.0))
            need = dice.randint(1, kept) if user == "prof" else dice.randint(1, 4)
            wants = replace(job(one, number % 2, user, limit), **{of: need})
            jobs.append((dice.choice((0.0, 0.0, 20.0, 35.0, 65.0)), dice.uniform(1.0, limit or 40.0), wants))
        at_once += _play(jobs, window, number, of)
    assert at_once > 100


def _play(jobs, window: Window, number: int, of: str) -> int:
    """Of four GPUs, or four times the least of a supply, of which there is a GPU for each job or none."""
    host = QueueState(FOUR, ()) if of == "gpus" else QueueState(tuple(f"g{one}" for one in range(24)), (), supplies={of: Supply(4)})

    def has(one: RunningJob) -> int:
        return len(one.gpus) if of == "gpus" else getattr(one, of)

    now, waiting, running, coming, at_once = 0.0, {}, {}, sorted(jobs, key=lambda row: row[0]), 0
    runs = {one.id: seconds for _, seconds, one in jobs}
    for _ in range(1000):
        while coming and coming[0][0] <= now:
            _, _, one = coming.pop(0)
            waiting[one.id] = one
        there = [window] if now < window.ends else []
        queue = sorted(waiting.values(), key=order)
        decision = decide(replace(host, waiting=queue, running=[one for one, _ in running.values()], windows=there), now)
        for start in decision.starts:
            one = waiting.pop(start.job)
            ends = now + one.time_limit if one.time_limit else None
            began = RunningJob(one.id, one.user, frozenset(start.gpus), (), ends, now, cores=one.cores, memory=one.memory)
            running[one.id] = began, now + runs[one.id]
        others = [one for one, _ in running.values() if one.user != "prof"]
        into = sum(has(one) for one in others if (math.inf if one.ends is None else one.ends) > window.starts)
        if now < window.ends:
            assert into <= 4 - getattr(window, of), number
        if window.starts <= now < window.ends:
            having = sum(has(one) for one, _ in running.values() if one.user == "prof")
            own = [one for one in sorted(waiting.values(), key=order) if one.user == "prof"]
            assert not own or not own[0].gpus or having + getattr(own[0], of) > getattr(window, of), number
            at_once += any(start.job == one.id for start in decision.starts for one, _ in running.values() if one.user == "prof")
        if not running and not coming:
            assert not waiting or decision.again is not None, number
        moments = [end for _, end in running.values()] + [row[0] for row in coming[:1]]
        moments += [decision.again] if decision.again is not None and waiting else []
        if not moments:
            assert not waiting, number
            return at_once
        now = min(moments)
        running = {one: row for one, row in running.items() if row[1] > now}
    raise AssertionError(f"{number} does not come to an end")
