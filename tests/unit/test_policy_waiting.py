"""The line of waiting jobs, and that a pass which looks at few of them decides as one that looks at all."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plain_policy import decide_plainly, supplied, wider

from dockless.sched.clock import ticks
from dockless.sched.engine.entry import live_jobs
from dockless.sched.jobs import Job, State
from dockless.sched.policy import waiting
from dockless.sched.policy.decision import Decision
from dockless.sched.policy.policy import _Pass, decide
from dockless.sched.policy.quotas import Quota, Quotas
from dockless.sched.policy.ranks import ENTRY
from dockless.sched.policy.state import Preemption, QueueState, RunningJob
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
from dockless.sched.policy.waiting import KINDS, Line, WaitingJob, WaitingList, length, longest, order, patience
from dockless.sched.store.queries import Live


def state(dice: random.Random, wide: bool = False) -> QueueState:
    """A crowded one: few users, and of each kind of job several with time limits of their own. ``wide``: more GPUs, and small jobs that
    have waited for long beside a large one."""
    gpus = tuple(f"g{i}" for i in range(dice.randint(8, 16) if wide else dice.randint(1, 6)))
    groups = {"anna": ("vision",), "bob": ("vision", "speech"), "carl": ()}
    users = dice.sample(sorted(groups), dice.randint(1, 3))
    limits = [0.0, *(dice.choice((1.0, 5.0, 10.0, 20.0, 50.0, dice.random() * 100)) for _ in range(dice.randint(1, 9)))]
    named = dice.random() < 0.4
    jobs = []
    age = dice.choice((100.0, 1000.0)) if wide else 0.0
    for number in range(1, dice.choice((8, 20, 40))):
        age *= dice.choice((1.0, 0.9, 0.3)) if wide else 1.0
        devices = frozenset(dice.sample(gpus, dice.randint(1, min(2, len(gpus))))) if named and dice.random() < 0.3 else frozenset()
        user = dice.choice(users)
        count = len(devices) or dice.randint(0, 3 if wide and dice.random() < 0.85 else len(gpus))
        jobs.append(WaitingJob(number, user, count, groups[user], devices, dice.choice((0, 0, 0, 1, -1)), dice.choice(limits), -age))
    free, running = dice.sample(gpus, len(gpus)), []
    for number in range(dice.randint(0, 4)):
        count = dice.randint(0, min(len(free), 5 if wide else 3))
        user = dice.choice(users)
        running.append(RunningJob(100 + number, user, frozenset(free[:count]), groups[user], dice.choice((None, 3.0, 7.0, 30.0, 60.0))))
        free = free[count:]
    jobs_too, ranked = dice.random() < 0.4, dice.random() < 0.4

    def quota() -> Quota:
        counts = [dice.choice((None, dice.randint(0, 4))) for _ in range(2)] if jobs_too else []
        moving = {"guarantee": dice.choice((None, 1, 2, 4)), "weight": dice.choice((None, 1, 2))} if ranked else {}
        return Quota(dice.choice((None, dice.randint(0, len(gpus) if wide else 8))), *counts, **moving)

    quotas = Quotas(
        {user: quota() for user in users if dice.random() < 0.7},
        {group: quota() for group in ("vision", "speech") if dice.random() < 0.7},
        dice.choice((Quota(), Quota(), Quota(3))),
    )
    outside, slices = (frozenset(dice.sample(gpus, 1)) if dice.random() < 0.15 else frozenset() for _ in range(2))
    usage = {f"user {user}": dice.choice((0.0, 600.0, 1000.0)) for user in users} if dice.random() < 0.4 else None
    preemption = Preemption(dice.choice((0.0, 5.0)), 10.0)
    if ranked:
        running = [
            replace(job, since=-10.0 * dice.random(), **({"stopping": True, "ends": 4.0} if dice.random() < 0.2 else {})) for job in running
        ]
    return QueueState(gpus, sorted(jobs, key=order), running, quotas, {}, outside, slices, dice.randint(0, 3), usage, preemption)


RARE = (2154, 7465, 23010)
"""States that a wrong step changes which few others do: each of these was one."""


@pytest.mark.parametrize("number", RARE)
def test_rare_states(number):
    _same(number)


def test_looking_at_few_decides_as_looking_at_all():
    for number in range(1500):
        _same(number, wide=number % 3 == 0)


def test_looking_at_few_decides_as_looking_at_all_where_cores_and_memory_are_counted():
    for number in range(1500):
        _same(number, wide=number % 3 == 0, counted=True)


def test_looking_at_few_decides_as_looking_at_all_where_several_start_together():
    for number in range(3000):
        _same(number, wide=number % 3 == 0, counted=number % 4 == 0, several=True)


def _same(number: int, wide: bool = False, counted: bool = False, several: bool = False) -> None:
    given = state(random.Random(number), wide)
    if several:
        given = wider(given, random.Random(number + 10_000))
    if counted:
        given = supplied(given, random.Random(-number))
    found, plain = decide(given, 0.0), decide_plainly(given, 0.0)
    assert (found.starts, found.preempts, found.again) == (plain.starts, plain.preempts, plain.again), number
    assert sorted(map(repr, found.reservations)) == sorted(map(repr, plain.reservations)), number


def test_one_of_a_kind_that_ends_before_one_of_two_kept_gpus_is_wanted():
    """g2 is kept for a job that starts in 10 s, g3 for one that starts in 100 s: what runs for 50 s can have g3."""
    running = [RunningJob(1, "anna", frozenset(("g0",)), ends=10.0), RunningJob(2, "anna", frozenset(("g1",)), ends=100.0)]
    jobs = [
        WaitingJob(3, "bob", 2, devices=frozenset(("g0", "g2"))),
        WaitingJob(4, "bob", 2, devices=frozenset(("g1", "g3"))),
        WaitingJob(5, "carl", 1),
        WaitingJob(6, "carl", 1, time_limit=50.0),
    ]
    decision = decide(QueueState(("g0", "g1", "g2", "g3"), jobs, running), 0.0)
    assert [(start.job, start.gpus) for start in decision.starts] == [(6, ("g3",))]


def test_one_more_job_that_is_held_would_not_start():
    """Neither beside those that wait still, once what was decided is done."""
    dice, held = random.Random(7), 0
    for number in range(600):
        given = state(dice, wide=number % 2 == 0)
        decision = decide(given, 0.0)
        like = dice.choice(given.waiting)
        limit = dice.choice((0.0, like.time_limit, dice.random() * 100))
        more = WaitingJob(1000, like.user, like.gpus, like.groups, like.devices, -1, limit)
        if decision.held(more):
            held += 1
            again = decide_plainly(done(given, decision, more), 0.0)
            assert 1000 not in {start.job for start in again.starts}, given
    assert held > 100


def done(given: QueueState, decision: Decision, more: WaitingJob) -> QueueState:
    """The state after the decision, with one more job."""
    jobs, given_back = {job.id: job for job in given.waiting}, {one.job for one in decision.preempts}
    running = [replace(job, stopping=True, ends=given.preemption.grace) if job.id in given_back else job for job in given.running]
    usage = None if given.usage is None else Counter(given.usage)
    for start in decision.starts:
        job = jobs.pop(start.job)
        running.append(RunningJob(job.id, job.user, frozenset(start.gpus), job.groups, job.time_limit or None))
        if usage is not None:
            usage[f"user {job.user}"] += job.gpus * ENTRY
    return replace(given, waiting=sorted([*jobs.values(), more], key=order), running=running, usage=usage)


def test_many_are_put_in_order_once(monkeypatch):
    """Also where each has a kind of its own that is equal to the others', as jobs have that differ in what the policy does not see."""
    sorted_rows, add_all = [], waiting.Row.add_all
    monkeypatch.setattr(waiting.Row, "add_all", lambda row, jobs: sorted_rows.append(row) or add_all(row, jobs))
    jobs = [WaitingJob(number, "anna", 1 + number % 2) for number in range(1, 9)]
    assert [*WaitingList(jobs)] == jobs and len(sorted_rows) == 2


LIMITS = st.sampled_from((0.0, 1.0, 2.0, 3.0))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), LIMITS), max_size=60), st.data())
def test_a_line_is_a_sorted_list(rows, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "PIECE", 4)
        jobs = [WaitingJob(number, "anna", 1, priority=priority, time_limit=limit) for number, (priority, limit) in enumerate(rows)]
        line, model = Line(), []
        for _ in range(2):
            together = [jobs.pop(0) for _ in range(data.draw(st.integers(0, len(jobs))))]
            line.add_all(together)
            model += together
        for job in data.draw(st.permutations(jobs)):
            line.add(job)
            model.append(job)
            if data.draw(st.integers(0, 2)) == 0:
                gone = data.draw(st.sampled_from(model))
                line.remove(gone)
                model.remove(gone)
            model.sort(key=order)
            assert list(line) == model and line.limits == waiting.Counter(job.time_limit for job in model)
            if not model:
                continue
            at = data.draw(st.sampled_from(model))
            within = data.draw(st.sampled_from((0.0, 1.0, 2.5, math.inf)))
            behind = model[model.index(at) + 1 :]
            assert line.first() is model[0] and list(line.behind(at)) == behind
            assert line.after(at, within) is next((job for job in behind if longest(job) <= within), None)
            above = data.draw(st.sampled_from((0.0, 1.0, 2.5)))
            long = [job for job in behind if above < longest(job) <= within]
            assert line.after_of_length(at, within, above) is next((job for job in long if length(job) == length(at)), None)
            others = {length(job): job for job in long[::-1] if length(job) != length(at)}
            assert {length(job): job for job in line.after_of_other_lengths(at, within, above)} == others


def test_patience():
    """Of what may run sixteen times as long, the wait counts half; of what may run for ever, nothing."""
    jobs = [WaitingJob(1, "anna", 1, time_limit=limit, since=20.0) for limit in (10.0, 11.0, 160.0, 0.0)]
    ten, eleven, long, endless = (patience(job, 100.0) for job in jobs)
    assert ten == eleven == pytest.approx(80 / 11.3**0.25, rel=0.001) and long == ten / 2 and endless == 0.0
    assert patience(jobs[0], 10.0) == 0.0
    lengths = [length(WaitingJob(1, "anna", 1, time_limit=limit)) for limit in (1e-3, 1.0, 1.3, 1.5, 3600.0, 1e8)]
    assert lengths == pytest.approx([2**-9.5, 2**0.5, 2**0.5, 2, 4096, 2**27], rel=1e-9)


def test_a_list_is_in_the_order_of_the_queue():
    dice = random.Random(3)
    jobs = [WaitingJob(n, dice.choice("abc"), dice.randint(0, 2), priority=dice.randint(-1, 1)) for n in range(1, 300)]
    found = WaitingList(dice.sample(jobs, len(jobs)))
    assert list(found) == sorted(jobs, key=order) and len(found) == 299 and found.wants_gpus
    for job in jobs[:-1]:
        found.remove(job)
    assert list(found) == jobs[-1:] and len(found) == 1 and list(found.lines) == [jobs[-1].kind]
    found.remove(jobs[-1])
    assert not found and not found.wants_gpus


def test_who_asks_for_something_else_with_each_of_thousands_of_jobs_delays_her_own_alone():
    """A pass looks at the first of a user's kinds, wherever they stand in the list; the others' turn comes when those have gone."""
    hers = [WaitingJob(n, "anna", cores=1000, memory=n, priority=n == 2 * KINDS) for n in range(1, 2 * KINDS + 1)]
    one = WaitingJob(1_000_000, "ben", cores=1000)
    there = WaitingList([*reversed(hers), one])
    decision = decide(QueueState((), there, supplies={CORES: Supply(1000)}), 0.0)
    assert [start.job for start in decision.starts] == [2 * KINDS]
    assert {job.id for job in there if decision.reason(job).code != "jobs"} == {job.id for job in (*hers[: KINDS - 1], one)}
    for job in hers[: KINDS - 1]:
        there.remove(job)
    later = decide(QueueState((), there, supplies={CORES: Supply(1000)}), 0.0)
    assert all(later.reason(job).code != "jobs" for job in hers[KINDS - 1 : -2])


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("quotas", [Quotas(), Quotas(groups={"lab": Quota(limit=3, jobs=3)})])
def test_kinds_for_which_too_little_is_left_are_not_looked_at(monkeypatch, gpus, quotas):
    """Only the first of them, which keeps a place there; and after each start those that are short of something else now."""
    looks = []
    asked = _Pass.no_supply
    monkeypatch.setattr(_Pass, "no_supply", lambda self, job, keep: looks.append(job.id) or asked(self, job, keep))
    jobs = [WaitingJob(number, f"user {number % 7}", gpus, ("lab",), cores=1000, memory=number) for number in range(1, 400)]
    supplies = {CORES: Supply(8000), MEMORY: Supply(1 << 30)}
    given = QueueState(("g0", "g1", "g2", "g3"), jobs, [RunningJob(500, "anna", cores=8000, ends=50.0)], quotas, supplies=supplies)
    decision = decide(given, 0.0)
    assert not decision.starts and looks == [1]
    assert "needs 1 core, 0 free; job 1 comes first" in decision.reason(jobs[-1]).text and decision.held(jobs[-1])
    looks.clear()
    some = decide(replace(given, running=[RunningJob(500, "anna", cores=6000, ends=50.0)]), 0.0)
    assert [start.job for start in some.starts] == [1, 2] and len(looks) < 6


def test_many_jobs_that_name_gpus_cost_no_more_each(monkeypatch):
    """Of the places kept for them, only one of each moment is looked at."""
    looks = []
    asked = _Pass.in_time
    monkeypatch.setattr(_Pass, "in_time", lambda self, job, kept: looks.append(job) or asked(self, job, kept))
    gpus = tuple(f"g{i}" for i in range(9))
    sets = sorted((frozenset(some) for size in (3, 4) for some in combinations(gpus, size)), key=lambda devices: "g0" not in devices)
    jobs = [WaitingJob(number, "eve", len(devices), devices=devices) for number, devices in enumerate(sets, 1)]
    decision = decide(QueueState(gpus, jobs, [RunningJob(500, "anna", frozenset({"g0"}))]), 0.0)
    assert not decision.starts and len(decision.reservations) == 84 and len(looks) < 3 * len(jobs)


def test_the_policy_sees_when_a_job_was_submitted(monkeypatch):
    """On its own clock; a job of before the boot has waited, too, and one of a clock that was set back has not."""
    monkeypatch.setattr("time.time", lambda: 1000.0)
    lives = [Live(Job(number, 0, "root", State.PENDING, submitted=at), (), (), False) for number, at in enumerate((990.0, 400.0, 2000.0))]
    now = ticks()
    waited = [now - entry.waiting.since for entry in live_jobs(lives)]
    assert waited == pytest.approx([10.0, 600.0, 0.0], abs=5.0)
