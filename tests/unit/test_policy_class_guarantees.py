"""Guarantees and weights of classes of GPUs: by example, and beside a second version of the rule in any state."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from support.plain_policy import decide_plainly, supplied
from support.policy_states import CLASSES, GPUS, SLICES, guaranteed, play, state
from support.quotas import limits

from dockless.sched.policy.policy import QueueState, RunningJob, StartJob, WaitingJob, _Pass, decide, order
from dockless.sched.policy.quotas import ClassQuota, Quota, Quotas
from dockless.sched.policy.state import Preemption, PreemptJob

HOST = QueueState(GPUS, (), slices=SLICES, classes=CLASSES, preemption=Preemption(0.0, 30.0))
"""Two H100 (g0, g1), two A100 (g2, g3), and slices."""


def job(number: int, count: int, gpu_class: str = "", user: str = "anna", **more) -> WaitingJob:
    return WaitingJob(number, user, count, gpu_class=gpu_class, **more)


def has(number: int, *gpus: str, user: str = "bob", since: float = -100.0, **more) -> RunningJob:
    return RunningJob(number, user, frozenset(gpus), since=since, **more)


def given(*waiting: WaitingJob, running=(), quotas: Quotas | None = None, **more):
    return decide(replace(HOST, waiting=waiting, running=running, quotas=quotas or Quotas(), **more), 0.0)


def of(user: str = "anna", general: int | None = None, **classes: int) -> Quotas:
    return limits({user: Quota(guarantee=general, classes={name: ClassQuota(guarantee=count) for name, count in classes.items()})})


ALL = has(7, "g0", since=-90.0), has(8, "g1", since=-80.0), has(9, "g2", "g3", since=-70.0)


def test_gpus_of_the_class_are_given_back():
    """The youngest job that has one: what is younger has others."""
    one = job(10, 1, "H100")
    decision = given(one, running=ALL, quotas=of(H100=1))
    assert decision.preempts == [PreemptJob(8, 10)] and not decision.starts
    words = "needs 1 GPU of class H100, 0 free; gets them back within the guarantee of user anna for class H100; "
    assert decision.reason(one).text == words + "starts in about 30 s when job 8 ends" and decision.reason(one).code == "guarantee"
    assert given(one, running=ALL, quotas=of(general=1)).preempts == [PreemptJob(8, 10)]  # a guarantee of any GPUs, too
    group = limits(groups={"lab": Quota(classes={"H100": ClassQuota(guarantee=1)})})
    assert given(replace(one, groups=("lab",)), running=ALL, quotas=group).preempts == [PreemptJob(8, 10)]
    young = replace(HOST.preemption, after=300.0)
    decision = given(one, running=ALL, quotas=of(H100=1), preemption=young)
    assert decision.preempts == [] and decision.again == 220.0


@pytest.mark.parametrize(
    "other", [job(10, 1, "A100"), job(10, 1), job(10, 2, "H100"), job(10, 1, devices=frozenset(("g2",))), job(10, 1, "whole")]
)
def test_what_is_not_within_the_guarantee_borrows(other):
    """Of another class, of any, more than is guaranteed."""
    assert given(other, running=ALL, quotas=of(H100=1)).preempts == []
    assert given(other, job(11, 1, "H100"), quotas=of(H100=1)).starts[0].job == 11


def test_who_asks_for_any_is_within_a_class_of_all_whole_ones():
    """Slices are none of what such a job may get."""
    assert given(job(10, 1), running=ALL, quotas=of(whole=1)).preempts == [PreemptJob(9, 10)]


def test_who_names_one_of_the_class_is_within_it():
    named = job(10, 1, devices=frozenset(("g0",)))
    assert given(named, running=ALL, quotas=of(H100=1)).preempts == [PreemptJob(7, 10)]
    assert given(named, running=ALL[:1], quotas=of(H100=1)).preempts == []  # the other one is as good
    part = "H100,memory=60G"
    classes = CLASSES | {part: ("g1",)}
    assert given(job(10, 1, part), running=ALL, quotas=of(H100=1), classes=classes).preempts == [PreemptJob(8, 10)]


def test_free_gpus_of_others_do_not_replace_the_class():
    """With a guarantee of any GPUs they do: it is one of so many."""
    one, two = job(10, 1, "H100"), ALL[:2]
    assert given(one, running=two, quotas=of(general=1)).preempts == []
    assert given(one, running=two, quotas=of(H100=1)).preempts == [PreemptJob(8, 10)]
    assert given(one, running=two, quotas=of(general=1, H100=1)).preempts == [PreemptJob(8, 10)]


def test_it_covers_what_its_user_has_of_the_class_whatever_was_asked_for():
    """As a limit counts it. A job that has others, too, it does not cover, and counts all the same."""
    quotas = Quotas(of("bob", H100=1).users | of("anna", H100=2).users)
    two = job(10, 1, "H100"), job(11, 1, "H100")
    assert given(*two, running=ALL[:2], quotas=quotas).preempts == [PreemptJob(8, 10)]
    assert given(two[0], running=[has(7, "g0", user="anna"), ALL[1]], quotas=of(H100=1)).preempts == []
    mixed = has(8, "g0", "g2", user="bob")
    assert given(two[0], running=[mixed, has(9, "g1")], quotas=quotas).preempts == [PreemptJob(8, 10)]
    assert given(job(12, 1, "H100", "bob"), running=[mixed, has(9, "g1", user="carl")], quotas=quotas).preempts == []


def test_any_pool_that_covers_a_job_is_enough():
    """Bob's pair of A100 fits into what he is guaranteed of any; the H100 beside it does not, but into that of the class."""
    quotas = Quotas(of("bob", general=2, H100=1).users | of("anna", H100=2).users)
    running = [has(7, "g2", "g3", since=-90.0), has(8, "g0", since=-80.0)]
    assert given(job(10, 2, "H100"), running=running, quotas=quotas).preempts == []
    bobs = Quotas(of("bob", general=2).users | of("anna", H100=2).users)
    assert given(job(10, 2, "H100"), running=running, quotas=bobs).preempts == [PreemptJob(8, 10)]


def test_a_covered_job_counts_in_the_class_of_which_it_has_some():
    """Bob's pair is covered by what he is guaranteed of any, and its H100 uses up that of the class."""
    quotas = Quotas(of("bob", general=2, H100=1).users | of("anna", H100=2).users)
    running = [has(7, "g0", "g2", since=-90.0), has(8, "g1", since=-80.0)]
    assert given(job(10, 1, "H100"), running=running, quotas=quotas).preempts == [PreemptJob(8, 10)]


def test_nobody_ends_a_job_of_her_own_for_it():
    """Her job with one of each is borrowed, and has what her guarantee counts already."""
    running = [has(7, "g1", since=-90.0), has(8, "g0", "g2", user="anna", since=-80.0)]
    assert given(job(10, 1, "H100"), running=running, quotas=of(H100=2)).preempts == [PreemptJob(7, 10)]


def test_who_may_have_others_gets_those_first():
    """Of a covered job nothing could be given back."""
    quotas = of(H100=2)
    assert given(job(1, 2, user="bob"), quotas=quotas).starts == [StartJob(1, ("g2", "g3"))]
    assert given(job(1, 3, user="bob"), quotas=quotas).starts[0].gpus == ("g0", "g1", "g2")
    assert given(job(1, 2, "H100", "bob"), quotas=quotas).starts == [StartJob(1, ("g0", "g1"))]
    assert given(job(1, 2, user="bob")).starts == [StartJob(1, ("g0", "g1"))]
    part = "H100,memory=60G"  # within the class another, of which somebody is guaranteed some, too
    more = {"quotas": of(**{"H100": 2, part: 1}), "classes": CLASSES | {part: ("g0",)}}
    assert given(job(1, 1, "H100", "bob"), **more).starts == [StartJob(1, ("g1",))]


def test_a_class_has_a_weight_of_its_own():
    """For the jobs that get nothing else; of several classes that of the smallest."""
    had = {"user anna": 1000.0, "user bob": 900.0}
    quotas = limits({"anna": Quota(classes={"H100": ClassQuota(weight=2), "whole": ClassQuota(weight=1)})})

    def first(gpu_class, quotas, **more):
        waiting = [job(1, 2, gpu_class, "bob", **more), job(2, 2, gpu_class, **more)]
        return given(*waiting, quotas=quotas, usage=had, running=[has(9, "g2", "g3")] if gpu_class != "H100" else ()).starts[0].job

    assert [first(name, quotas) for name in ("H100", "whole", "")] == [2, 1, 1]
    assert first("H100", limits({"anna": Quota(weight=1)})) == 1
    assert first("H100", limits({"anna": Quota(weight=2, classes={"H100": ClassQuota(weight=1)})})) == 1
    lab = limits(groups={"lab": Quota(classes={"H100": ClassQuota(weight=9)}), "one": Quota(weight=1)})
    waiting = [job(1, 2, "H100", "bob", groups=("one",)), job(2, 2, "H100", groups=("lab",))]
    had = {"user anna": 9.0, "user bob": 0.0, "group lab": 900.0, "group one": 200.0}
    assert given(*waiting, quotas=lab, usage=had).starts[0].job == 2
    assert given(*waiting, quotas=lab, usage=had | {"group one": 50.0}).starts[0].job == 1


@pytest.mark.parametrize("lent", [(), ("g0",)])
def test_those_to_whom_nothing_can_be_given_back_are_not_looked_at(monkeypatch, lent):
    """Of all whose guarantees are not used up the first keeps its place, or gets what is ``lent``; of the others nobody is asked what each
    could take back."""
    looks = []
    look = _Pass.look
    monkeypatch.setattr(_Pass, "look", lambda self, job: looks.append(job.id) or look(self, job))
    users = [f"u{number}" for number in range(50)]
    quotas = limits({user: Quota(guarantee=2, classes={"H100": ClassQuota(guarantee=1)}) for user in users} | {"dora": Quota(guarantee=4)})
    waiting = [job(1 + number, 1 + number % 2, "H100" if number % 4 < 2 else "", users[number % 50]) for number in range(200)]
    full = [has(7, *sorted({"g0", "g1", "g2", "g3"}.difference(lent)), user="dora", ends=50.0), *(has(8, gpu) for gpu in lent)]
    decision = given(*waiting, running=full, quotas=quotas)
    assert decision.preempts == [PreemptJob(8, 1) for _ in lent] and len(looks) <= 12
    plain = decide_plainly(replace(HOST, waiting=waiting, running=full, quotas=quotas), 0.0)
    assert (decision.starts, decision.preempts) == (plain.starts, plain.preempts)
    assert all(decision.held(one) and decision.reason(one).code in ("resources", "guarantee", "reserved") for one in waiting)


def test_what_is_free_and_what_is_given_back_are_enough_together():
    """For one that ends before the GPUs are kept for the first, who cannot get back as many."""
    quotas = limits({"zoe": Quota(guarantee=4), "dora": Quota(guarantee=2), "anna": Quota(guarantee=2)})
    there = [has(7, "g0", ends=1000.0), has(8, "g1", "g2", user="dora", ends=1000.0)]
    assert given(job(1, 4, user="zoe"), job(2, 2, time_limit=500.0), running=there, quotas=quotas).preempts == [PreemptJob(7, 2)]


# -- in any state


def test_in_any_state():
    """The same as when all jobs are looked at, and each time; only what nothing covers is taken, when it has run long enough, for a job
    that something covers and that can use it."""
    taken = back = 0
    for number in range(3000):
        now = guaranteed(state(random.Random(number)), random.Random(-number))
        if number % 3 == 0:
            now = supplied(now, random.Random(number))
        found, plain, again = decide(now, 0.0), decide_plainly(now, 0.0), decide(now, 0.0)
        assert (found.starts, found.preempts, found.again) == (plain.starts, plain.preempts, plain.again), number
        assert (found.starts, found.preempts, found.again) == (again.starts, again.preempts, again.again), number
        assert sorted(map(repr, found.reservations)) == sorted(map(repr, plain.reservations)), number
        jobs, running = {job.id: job for job in now.waiting}, {job.id: job for job in now.running}
        gpus = [gpu for job in now.running for gpu in job.gpus] + [gpu for start in found.starts for gpu in start.gpus]
        assert len(gpus) == len(set(gpus)) and len({one.job for one in found.preempts}) == len(found.preempts), number
        loose = uncovered(now)
        for one in found.preempts:
            job, by = running[one.job], jobs[one.by]
            assert job.id in loose and not job.stopping and job.since <= -now.preemption.after, number
            assert job.gpus & goal(now, by) and by.id not in {start.job for start in found.starts}, number
            assert any(held(now, now.running, *pool) + by.gpus <= count for pool, count in pools(now, by, goal(now, by))), number
            taken += 1
        back += first_has_its_own(replace(now, quotas=without_limits(now.quotas), usage=None, supplies={}))
    assert taken > 200 and back > 100


def test_everybody_comes_to_an_end():
    """Whoever gives GPUs back runs again later; never more is held than there is, nor than a limit of a class."""
    again = 0
    for number in range(250):
        dice = random.Random(number)
        now = guaranteed(replace(state(dice), running=(), unusable=frozenset()), dice)
        now = replace(now, quotas=without_limits(now.quotas), preemption=Preemption(2.0, 1.0))
        capped = now.quotas.of("user", "anna").classes
        if "H100" in capped:
            anna = replace(now.quotas.users["anna"], classes={**capped, "H100": replace(capped["H100"], limit=2)})
            now = replace(now, quotas=replace(now.quotas, users={**now.quotas.users, "anna": anna}))
        waiting = [job for job in now.waiting if len(goal(now, job)) >= job.gpus]
        length = {job.id: dice.choice((1.0, 7.0, 80.0)) for job in waiting}
        ended: set[int] = set()
        for _, running in play(replace(now, waiting=waiting), length):
            gpus = [gpu for job in running for gpu in job.gpus]
            assert len(gpus) == len(set(gpus)), number
            assert "H100" not in capped or held(now, running, "user", "anna", "H100") <= 2, number
            ended |= {job.id for job in running}
            again += sum(job.stopping for job in running)
        assert ended == set(length), number
    assert again > 4


def goal(now: QueueState, job: WaitingJob) -> frozenset[str]:
    return job.devices or frozenset(now.classes[job.gpu_class] if job.gpu_class else set(now.gpus) - now.slices)


def pools(now: QueueState, job, gpus: frozenset[str]):
    """The guarantees that may cover it, where it gets or has these: (kind, name, class) and of how many GPUs."""
    for kind, name, quota in [
        ("user", job.user, now.quotas.users.get(job.user)),
        *(("group", g, now.quotas.groups.get(g)) for g in job.groups),
    ]:
        if quota is not None and quota.guarantee is not None:
            yield (kind, name, ""), quota.guarantee
        for gpu_class, one in quota.classes.items() if quota is not None else ():
            if one.guarantee is not None and gpus and gpus <= set(now.classes[gpu_class]):
                yield (kind, name, gpu_class), one.guarantee


def held(now: QueueState, jobs, kind: str, name: str, gpu_class: str) -> int:
    theirs = [job for job in jobs if (job.user == name if kind == "user" else name in job.groups)]
    return sum(len(job.gpus & set(now.classes[gpu_class])) if gpu_class else len(job.gpus) for job in theirs)


def uncovered(now: QueueState) -> set[int]:
    covered: list[RunningJob] = []
    loose = set()
    for job in sorted(now.running, key=lambda job: (job.since, job.id)):
        if not job.gpus:
            continue
        if any(held(now, covered, *pool) + len(job.gpus) <= count for pool, count in pools(now, job, job.gpus)):
            covered.append(job)
        else:
            loose.add(job.id)
    return loose


def first_has_its_own(now: QueueState) -> bool:
    """Without limits: the first that a guarantee covers starts, or gets what is free, what comes free, and what those have who borrowed and
    have run for long enough, but for those whom the guarantee counts itself; unless that is too little, or as many others of the guarantee
    are free. Whether such a one had to be given back."""
    found, running, loose = decide(now, 0.0), [job for job in now.running if job.gpus], uncovered(now)
    free = set(now.gpus) - now.unusable - {gpu for job in running for gpu in job.gpus}
    covering = {job.id: [pool for pool, count in pools(now, job, goal(now, job)) if held(now, running, *pool) + job.gpus <= count]
                for job in now.waiting if job.gpus}  # fmt: skip
    first = min((job for job in now.waiting if covering.get(job.id)), key=order, default=None)
    if first is None:
        return False
    may = goal(now, first) - now.unusable
    if len(may & free) >= first.gpus:
        assert first.id in {start.job for start in found.starts}
        return False
    for pool in covering[first.id]:
        guaranteed = set(now.classes[pool[2]]) if pool[2] else set(now.gpus) - now.slices
        if may <= guaranteed and len(free & guaranteed) >= first.gpus:
            continue
        ready = [job for job in running if job.id in loose and job.since <= -now.preemption.after and not held(now, [job], *pool)]
        if len(may & free.union(*(job.gpus for job in running if job.stopping), *(job.gpus for job in ready))) >= first.gpus:
            assert first.id in found._promised
            return any(one.by == first.id for one in found.preempts)
    return False


def without_limits(quotas: Quotas) -> Quotas:
    def of(quota: Quota) -> Quota:
        classes = {name: replace(one, limit=None) for name, one in quota.classes.items()}
        return replace(quota, limit=None, classes=classes)

    return Quotas({user: of(quota) for user, quota in quotas.users.items()}, {group: of(quota) for group, quota in quotas.groups.items()})
