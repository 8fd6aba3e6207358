"""GPUs of classes: each has its line and its reservation, quotas count them, and who may have several gets those nobody waits for."""

from __future__ import annotations

import random
from dataclasses import replace

from support.plain_policy import decide_plainly, supplied
from support.policy_states import CLASSES, GPUS, SLICES, state
from support.quotas import limits

from dockless.sched.policy.policy import QueueState, RunningJob, StartJob, WaitingJob, decide
from dockless.sched.policy.quotas import ClassQuota, Quota, Quotas

HOST = QueueState(GPUS, (), slices=SLICES, classes=CLASSES)


def job(number: int, count: int, gpu_class: str = "", user: str = "anna", **more) -> WaitingJob:
    return WaitingJob(number, user, count, gpu_class=gpu_class, **more)


def given(*waiting: WaitingJob, running=(), quotas: Quotas | None = None):
    return decide(replace(HOST, waiting=waiting, running=running, quotas=quotas or Quotas()), 0.0)


def has(number: int, *gpus: str, ends: float | None = None, user: str = "bob") -> RunningJob:
    return RunningJob(number, user, frozenset(gpus), ends=ends)


def test_each_class_has_its_own_gpus():
    waiting = [job(1, 2, "1g.10gb"), job(2, 1, "A100"), job(3, 1, "3g.40gb"), job(4, 3), job(5, 1, "none"), job(6, 1, "unknown")]
    decision = given(*waiting)
    starts = [StartJob(1, ("s0", "s1")), StartJob(2, ("g2",)), StartJob(3, ("t0",)), StartJob(4, ("g0", "g1", "g3"))]
    assert decision.starts == starts
    assert decision.reason(waiting[4]).text == "needs 1 GPU of class none, 0 free"


def test_a_class_that_is_younger_than_the_pass():
    assert given(job(1, 2, "H100")).reason(job(2, 1, "3g.40gb")).text.endswith("other jobs come first")


def test_jobs_of_another_class_are_not_held_up():
    """The wide job of slices waits for hours, and so does that of H100; the others start, and behind the first of a class its like wait."""
    running = [has(9, "s0", ends=3600.0), has(8, "g0", ends=7200.0)]
    first, wide = job(1, 3, "1g.10gb"), job(2, 2, "H100")
    behind = job(3, 1, "1g.10gb")
    decision = given(first, wide, behind, job(4, 2), job(5, 1, "3g.40gb"), running=running)
    assert decision.starts == [StartJob(4, ("g2", "g3")), StartJob(5, ("t0",))]
    assert decision.reason(first).text == "needs 3 GPUs of class 1g.10gb, 2 free; starts in about 1 h when job 9 ends"
    assert decision.reason(wide).starts_at == 7200.0
    words = (
        "needs 1 GPU of class 1g.10gb, 2 free; job 1 comes first for class 1g.10gb: it needs 3 and starts in about 1 h when job 9 ends; "
    )
    assert decision.reason(behind).text == words + "a time limit that ends before then would let this one start"


def test_what_is_kept_for_a_class_is_kept_from_all():
    """g1 is kept for the wide H100 job: who may have others gets those, and who needs it as well waits, unless she ends in time."""
    running = [has(9, "g0", ends=100.0)]
    assert given(job(1, 2, "H100"), job(2, 2), running=running).starts == [StartJob(2, ("g2", "g3"))]
    decision = given(job(1, 2, "H100"), job(2, 3), running=running)
    assert not decision.starts and "job 1 comes first for class H100" in decision.reason(job(2, 3)).text
    assert given(job(1, 2, "H100"), job(2, 3, time_limit=90.0), running=running).starts == [StartJob(2, ("g1", "g2", "g3"))]
    named = job(2, 1, devices=frozenset(("g1",)))
    assert not given(job(1, 2, "H100"), named, running=running).starts


def test_memory_is_a_slice_before_a_whole_gpu():
    jobs = [job(number, 1, "memory=10G") for number in range(1, 7)]
    assert [start.gpus[0] for start in given(*jobs).starts][:5] == ["s0", "s1", "s2", "t0", "g0"]
    # Kept for others are the last slice of one kind and the whole GPUs: together nothing is left, though each alone would leave some.
    running = [has(9, "s0", "s1", "t0", ends=50.0), has(8, "g0", ends=60.0)]
    waiting = [job(1, 4, "whole"), job(2, 3, "1g.10gb"), job(3, 1, "memory=10G")]
    decision = given(*waiting, running=running)
    assert not decision.starts and decision.reason(waiting[2]).code == "reserved"
    assert given(*waiting[:2], job(3, 1, "memory=10G", time_limit=55.0), running=running).starts == [StartJob(3, ("g1",))]


def test_a_quota_of_a_class():
    """It counts what a job has, whatever it asked for; who may have others gets those."""
    quotas = limits({"anna": Quota(classes={"H100": ClassQuota(1), "1g.10gb": ClassQuota(2)})})
    held = [has(9, "g0", user="anna")]
    decision = given(job(1, 1, "H100"), job(2, 2), job(3, 2, "1g.10gb"), job(4, 1, "1g.10gb"), running=held, quotas=quotas)
    assert decision.starts == [StartJob(2, ("g2", "g3")), StartJob(3, ("s0", "s1"))]
    assert decision.reason(job(1, 1, "H100")).text.startswith("needs 1 GPU of class H100, 1 free; user anna uses 1 of 1 of class H100")
    wide = job(5, 3)
    decision = given(wide, running=held, quotas=quotas)
    assert not decision.starts and decision.reason(wide).code == "quota"
    assert given(job(5, 3), running=held).starts  # without a quota


def test_in_any_state():
    """The same as when all jobs are looked at; each gets what it asked for, no quota is broken, and nobody who has a place loses it."""
    starts = kept = 0
    for number in range(1500):
        now = state(random.Random(number))
        found, plain = decide(now, 0.0), decide_plainly(now, 0.0)
        assert (found.starts, found.preempts, found.again) == (plain.starts, plain.preempts, plain.again), number
        assert sorted(map(repr, found.reservations)) == sorted(map(repr, plain.reservations)), number
        jobs = {job.id: job for job in now.waiting}
        taken = [gpu for job in now.running for gpu in job.gpus] + [gpu for start in found.starts for gpu in start.gpus]
        assert len(taken) == len(set(taken))
        held = [(job.user, job.groups, job.gpus, job.ends) for job in now.running]
        before = list(held)
        for start in found.starts:
            job = jobs[start.job]
            goal = job.devices or (now.classes[job.gpu_class] if job.gpu_class else set(now.gpus) - now.slices)
            assert len(start.gpus) == job.gpus and set(start.gpus) <= set(goal) - now.unusable, number
            held.append((job.user, job.groups, frozenset(start.gpus), job.time_limit or None))
            starts += bool(job.gpu_class)
        assert all(_broken(now, held, *pool) <= _broken(now, before, *pool) for pool in _limits(now)), number
        for place in found.reservations:
            job = jobs[place.job]
            if place.at is None or place.pool.startswith(("user", "group")) or " of " in place.pool or found._promised:
                continue
            goal = set(job.devices or (now.classes[job.gpu_class] if job.gpu_class else set(now.gpus) - now.slices)) - now.unusable
            late = {gpu for _, _, gpus, ends in held if ends is None or ends > place.at for gpu in gpus}
            assert len(goal - late) >= place.need, (number, place)
            kept += bool(job.gpu_class)
    assert starts > 500 and kept > 150


def test_in_any_state_where_cores_and_memory_are_counted():
    for number in range(500):
        now = supplied(state(random.Random(number)), random.Random(-number))
        found, plain = decide(now, 0.0), decide_plainly(now, 0.0)
        assert (found.starts, found.preempts, found.again) == (plain.starts, plain.preempts, plain.again), number
        assert sorted(map(repr, found.reservations)) == sorted(map(repr, plain.reservations)), number


def _limits(now: QueueState):
    for kind, quotas in (("user", now.quotas.users), ("group", now.quotas.groups)):
        for name, quota in quotas.items():
            yield from ((kind, name, gpu_class, of.limit) for gpu_class, of in quota.classes.items() if of.limit is not None)


def _broken(now: QueueState, held, kind: str, name: str, gpu_class: str, limit: int) -> int:
    """By how much more than ``limit``."""
    theirs = [gpus for user, groups, gpus, _ in held if (user == name if kind == "user" else name in groups)]
    return max(0, sum(len(gpus.intersection(now.classes[gpu_class])) for gpus in theirs) - limit)
