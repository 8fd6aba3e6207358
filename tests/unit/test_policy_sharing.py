"""Jobs that share GPUs by memory: packed, within what there is, in nobody's way."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from support.plain_policy import decide_plainly, supplied

from dockless.sched.policy.decision import Decision
from dockless.sched.policy.policy import _Pass, decide
from dockless.sched.policy.quotas import ClassQuota, Quota, Quotas
from dockless.sched.policy.state import CLASS, HOST, Preemption, QueueState, RunningJob, Window
from dockless.sched.policy.supplies import CORES, Supply
from dockless.sched.policy.waiting import WaitingJob, order

GB = 1024  # MiB


def state(dice: random.Random) -> QueueState:
    """A crowded one, of jobs with GPUs of their own and jobs with a share of one."""
    gpus = tuple(f"g{i}" for i in range(dice.randint(1, 5)))
    capacity = {gpu: dice.choice((40, 80)) * GB for gpu in gpus}
    slices = frozenset(dice.sample(gpus, 1)) if dice.random() < 0.3 else frozenset[str]()
    capacity = {gpu: memory for gpu, memory in capacity.items() if gpu not in slices}
    classes = {"memory=20G": tuple(sorted(gpus, key=lambda gpu: (gpu not in slices, gpu))), "A": gpus[:2]}
    limits_of_classes = {"A": ClassQuota(1)} if dice.random() < 0.3 else {}
    supplies = {CORES: Supply(16_000, dice.choice((0, 2000)))} if dice.random() < 0.3 else {}
    hours = Window("w", dice.randint(1, 2), frozenset(("bob",)), dice.choice((-1.0, 4.0, 15.0)), 40.0)
    windows = (hours,) if dice.random() < 0.25 else ()
    users = ["anna", "bob", "carl"][: dice.randint(1, 3)]
    company = dice.choice(("user", "all"))
    limits = [0.0, *(dice.choice((1.0, 5.0, 10.0, 20.0, 50.0)) for _ in range(dice.randint(1, 5)))]
    jobs = []
    for number in range(1, dice.choice((4, 12, 30))):
        user, devices, share = dice.choice(users), frozenset[str](), 0
        if dice.random() < 0.6:
            share = dice.choice((4, 10, 20, 40)) * GB
        elif dice.random() < 0.2:
            devices = frozenset(dice.sample(gpus, 1))
        count = 1 if share or devices else dice.randint(0, len(gpus))
        one = WaitingJob(number, user, count, (), devices, dice.choice((0, 0, 0, 1)), dice.choice(limits), -100 * dice.random())
        if share or (not devices and dice.random() < 0.2):
            one = replace(
                one, cores=dice.choice((0, 2000, 6000)), gpu_class=dice.choice(("memory=20G", "memory=20G", "A")), gpus=1, share=share
            )
        jobs.append(one)
    running, number = [], 100
    for gpu in gpus:
        kind, ends = dice.random(), dice.choice((None, 3.0, 7.0, 30.0))
        if kind < 0.3:
            running.append(RunningJob(number, dice.choice(users), frozenset((gpu,)), ends=ends, since=-10 * dice.random()))
        elif kind < 0.8 and gpu not in slices:
            left, user = capacity[gpu], dice.choice(users)
            for more in range(dice.randint(1, 3)):
                share = dice.choice((4, 10, 20)) * GB
                if share <= left:
                    left -= share
                    one = RunningJob(number + more, user, frozenset((gpu,)), ends=dice.choice((None, 3.0, 7.0, 30.0)), share=share)
                    running.append(replace(one, id=0) if dice.random() < 0.1 else one)
                    user = user if company == "user" else dice.choice(users)
        number += 10
    quotas = Quotas(
        {user: Quota(dice.choice((None, 2)), guarantee=dice.choice((None, None, 1)), classes=limits_of_classes) for user in users}
    )
    broken = frozenset(dice.sample(gpus, 1)) if dice.random() < 0.15 else frozenset[str]()
    outside = broken - {gpu for job in running for gpu in job.gpus}
    usage = {f"user {user}": dice.choice((0.0, 600.0)) for user in users} if dice.random() < 0.3 else None
    shareable = capacity if dice.random() < 0.9 else {}
    return QueueState(
        gpus, sorted(jobs, key=order), running, quotas, {}, outside, slices, usage=usage, preemption=Preemption(0.0, 10.0),
        out_of_service=broken, classes=classes, supplies=supplies, windows=windows, shareable=shareable, company=company,
    )  # fmt: skip


def after(given: QueueState, decision: Decision) -> list[RunningJob]:
    """What runs once its starts are done."""
    running, jobs = [*given.running], {job.id: job for job in given.waiting}
    for start in decision.starts:
        job, gpus = jobs[start.job], frozenset(start.gpus)
        share = job.share if gpus <= given.shareable.keys() else 0
        running.append(RunningJob(job.id, job.user, gpus, (), job.time_limit or None, share=share, cores=job.cores, memory=job.memory))
    return running


def test_looking_at_few_decides_as_looking_at_all():
    joined = 0
    for number in range(1500):
        given = state(random.Random(number))
        given = supplied(given, random.Random(-number)) if number % 3 == 2 else given
        found, plain = decide(given, 0.0), decide_plainly(given, 0.0)
        assert (found.starts, found.preempts, found.again) == (plain.starts, plain.preempts, plain.again), number
        assert sorted(map(repr, found.reservations)) == sorted(map(repr, plain.reservations)), number
        joined += sum(bool({gpu for job in given.running for gpu in job.gpus}.intersection(start.gpus)) for start in found.starts)
    assert joined > 200


def test_never_more_than_there_is_and_never_whole_and_shared():
    for number in range(1500):
        given = state(random.Random(number))
        running = after(given, decide(given, 0.0))
        for gpu in given.gpus:
            there = [job for job in running if gpu in job.gpus]
            new = there[sum(gpu in job.gpus for job in given.running) :]
            if new and len(there) > 1:
                assert all(job.share for job in there), number
                assert sum(job.share for job in there) <= given.shareable[gpu], number
                assert given.company == "all" or len({job.user for job in there}) == 1, number
            assert not new or gpu not in given.out_of_service, number


def test_whoever_comes_first_gets_its_gpus_by_the_moment_said():
    """Whatever joins a shared GPU meanwhile."""
    looked = 0
    for number in range(3000):
        given = state(random.Random(number))
        if given.quotas.guarantee_any:
            continue  # what is given back is free at another moment
        decision = decide(given, 0.0)
        ends: dict[str, float] = dict.fromkeys(given.gpus, 0.0)
        for job in after(given, decision):
            for gpu in job.gpus:
                ends[gpu] = max(ends[gpu], math.inf if job.ends is None else job.ends)
        for kept in decision.reservations:
            if (kept.pool == HOST or kept.pool.startswith(CLASS)) and kept.at is not None:
                there = set(given.classes[kept.pool.removeprefix(CLASS)]) if kept.pool != HOST else set(given.gpus) - given.slices
                free = {gpu for gpu in kept.devices or there if ends[gpu] <= kept.at} - given.unusable
                assert len(free) >= kept.need, number
                looked += 1
    assert looked > 300


def test_one_more_job_that_is_held_would_not_start():
    dice, held = random.Random(7), 0
    for _ in range(800):
        given = state(dice)
        decision = decide(given, 0.0)
        like = dice.choice(given.waiting)
        more = replace(like, id=1000, priority=-1, time_limit=dice.choice((0.0, like.time_limit, 2.0)))
        if decision.held(more) and not decision.preempts:
            held += 1
            started = {start.job for start in decision.starts}
            rest = [*(job for job in given.waiting if job.id not in started), more]
            again = decide_plainly(replace(given, waiting=rest, running=after(given, decision)), 0.0)
            assert 1000 not in {start.job for start in again.starts}
    assert held > 50


def shared(*jobs: WaitingJob, running: tuple[RunningJob, ...] = (), gpus: int = 2, company: str = "user", **more) -> Decision:
    names = tuple(f"g{i}" for i in range(gpus))
    return decide(QueueState(names, jobs, running, shareable=dict.fromkeys(names, 80 * GB), company=company, **more), 0.0)


def share(number: int, memory: int, user: str = "anna", limit: float = 0.0, priority: int = 0) -> WaitingJob:
    return WaitingJob(number, user, 1, time_limit=limit, share=memory * GB, priority=priority)


def had(number: int, gpu: str, memory: int, user: str = "anna", ends: float | None = None) -> RunningJob:
    return RunningJob(number, user, frozenset((gpu,)), ends=ends, share=memory * GB)


def placed(decision: Decision) -> dict[int, str]:
    return {start.job: ",".join(start.gpus) for start in decision.starts}


def test_they_fill_one_gpu_before_the_next():
    assert placed(shared(share(1, 20), share(2, 40), share(3, 20), share(4, 10))) == {1: "g0", 2: "g0", 3: "g0", 4: "g1"}


def test_of_two_the_one_that_it_fills_best():
    running = (had(1, "g0", 30), had(2, "g1", 60))
    assert placed(shared(share(3, 20), share(4, 40), running=running)) == {3: "g1", 4: "g0"}


def test_what_is_left_fits_those_that_wait():
    """By best fit the first would leave 20 and 60 GiB, and one of the others would wait."""
    running = (had(1, "g0", 40), had(2, "g1", 20))
    assert placed(shared(share(3, 20), share(4, 40), share(5, 40), running=running)) == {3: "g1", 4: "g0", 5: "g1"}


@pytest.mark.parametrize(("company", "where"), [("user", "g1"), ("all", "g0")])
def test_with_whom(company, where):
    assert placed(shared(share(2, 20, "bob"), running=(had(1, "g0", 20),), company=company)) == {2: where}


def test_nobody_joins_what_strangers_share_since_a_setting_changed():
    running = (had(1, "g0", 20, "bob"), had(2, "g0", 20, "anna"))
    assert placed(shared(share(3, 20), running=running)) == {3: "g1"}
    assert placed(shared(share(3, 20), running=running, company="all")) == {3: "g0"}


def test_nobody_joins_a_gpu_that_is_given_back_to_another():
    running = (replace(had(1, "g0", 20, "bob"), since=-999.0),)
    given = {"quotas": Quotas({"anna": Quota(guarantee=1)}), "preemption": Preemption(0.0, 1.0), "gpus": 1}
    decision = shared(WaitingJob(3, "anna", 1), share(4, 20, "bob", limit=0.5), running=running, **given)
    assert [one.job for one in decision.preempts] == [1] and placed(decision) == {}


def test_nobody_joins_a_gpu_of_a_class_of_which_she_has_enough():
    quotas = Quotas({"anna": Quota(classes={"A": ClassQuota(1)})})
    given = {"running": (had(1, "g0", 20),), "classes": {"A": ("g0",)}}
    assert placed(shared(share(2, 20), **given)) == {2: "g0"}
    assert placed(shared(share(2, 20), **given, quotas=quotas)) == {2: "g1"}


def test_nobody_joins_a_gpu_that_is_out_of_service():
    assert placed(shared(share(2, 20), running=(had(1, "g0", 20),), gpus=1, out_of_service=frozenset(("g0",)))) == {}


def test_a_job_that_stays_no_longer_than_the_others_joins_though_the_gpu_is_waited_for():
    running = (had(1, "g0", 20, ends=50.0),)
    head = WaitingJob(2, "bob", 1)
    decision = shared(head, share(3, 20, limit=60.0), share(4, 20, limit=40.0), share(5, 10), running=running, gpus=1)
    assert placed(decision) == {4: "g0"}
    assert decision.reason(head).starts_at == 50.0
    assert "needs 20 GiB of a GPU, 0 free, 40 GiB left on a shared one" in decision.reason(share(3, 20, limit=60.0)).text


def test_a_gpu_that_the_first_does_not_count_on_may_be_joined():
    running = (had(1, "g0", 20), RunningJob(2, "bob", frozenset(("g1",)), ends=10.0))
    assert placed(shared(WaitingJob(3, "bob", 1), share(4, 20), running=running)) == {4: "g0"}
    running = (had(1, "g0", 20, ends=5.0), had(5, "g0", 20, ends=50.0), running[1])
    assert placed(shared(WaitingJob(3, "bob", 1), share(4, 20), running=running)) == {4: "g0"}, "it is free with the end of the last"


def test_a_gpu_that_the_first_has_named_is_joined_by_nobody_who_stays_longer():
    """However many others are free by then."""
    running = (had(1, "g0", 20, ends=20.0), RunningJob(2, "bob", frozenset(("g1",)), ends=10.0))
    named = WaitingJob(3, "bob", 1, devices=frozenset(("g0",)))
    assert placed(shared(named, share(4, 20), running=running)) == {}
    assert placed(shared(named, share(4, 20, limit=15.0), running=running)) == {4: "g0"}


def test_nobody_waits_for_ever_behind_small_shares():
    """g0 is never free by what one knows, so nobody joins it once somebody waits for a GPU."""
    running = (had(1, "g0", 20),)
    assert placed(shared(WaitingJob(3, "bob", 1), share(4, 20), running=running, gpus=1)) == {}
    assert placed(shared(share(3, 70), share(4, 20), running=running, gpus=1)) == {}


def test_a_share_counts_as_a_gpu_in_a_quota():
    decision = shared(share(1, 20), share(2, 20), share(3, 20), quotas=Quotas({"anna": Quota(2)}))
    assert Counter(placed(decision).values()) == {"g0": 2}
    assert "user anna uses 2 of 2" in decision.reason(share(3, 20)).text


def test_a_shared_gpu_is_not_taken_back_for_a_guarantee():
    """The end of one of its jobs would free nothing."""
    running = (replace(had(1, "g0", 20, "bob"), since=-999.0), replace(had(2, "g0", 20, "bob"), since=-999.0))
    given = {"quotas": Quotas({"anna": Quota(guarantee=1)}), "preemption": Preemption(0.0, 1.0), "gpus": 1}
    assert shared(WaitingJob(3, "anna", 1), running=running, **given).preempts == []
    assert [one.job for one in shared(WaitingJob(3, "anna", 1), running=running[:1], **given).preempts] == [1]


def test_what_is_too_little_for_anybody_keeps_nobody_in_the_pass(monkeypatch):
    looks = []
    look = _Pass.look
    monkeypatch.setattr(_Pass, "look", lambda self, job: looks.append(job) or look(self, job))
    on_it = [RunningJob(900, "anna", frozenset(("g0",)), ends=50.0, share=75 * GB)]
    wants = [WaitingJob(n, "anna", 1, gpu_class="memory=20G", share=(10 + n) * GB) for n in range(1, 100)]
    one = QueueState(("g0",), wants, on_it, classes={"memory=20G": ("g0",)}, shareable={"g0": 80 * GB}, company="user")
    assert decide(one, 0.0).starts == [] and len(looks) == 1
    assert decide(replace(one, shareable={"g0": 90 * GB}), 0.0).starts and len(looks) > 1
