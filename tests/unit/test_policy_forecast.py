"""When jobs start, if each takes its whole time limit: what a replay of the same jobs says, too."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest

from dockless.base.dataclass import replace
from dockless.sched.policy import forecast as module
from dockless.sched.policy.forecast import forecast
from dockless.sched.policy.past_usage import PastUsage
from dockless.sched.policy.places import Places
from dockless.sched.policy.policy import decide
from dockless.sched.policy.quotas import Quota, Quotas
from dockless.sched.policy.replay import TraceJob, replay
from dockless.sched.policy.state import Preemption, QueueState, RunningJob, Window
from dockless.sched.policy.waiting import WaitingJob, WaitingList

EIGHT = tuple(f"g{number}" for number in range(8))
HOUR = 3600.0


def foretold(jobs, running=(), past=None, goes_on=lambda: True, **more):
    waiting = jobs if isinstance(jobs, WaitingList) else WaitingList(jobs)
    return forecast(QueueState(EIGHT, waiting, running, **more), 0.0, past, goes_on)


def test_all_that_wait_behind_one_another():
    jobs = [WaitingJob(2, "b", 8, time_limit=HOUR), WaitingJob(3, "c", 4, time_limit=HOUR), WaitingJob(4, "d", 4, time_limit=2 * HOUR)]
    jobs.append(WaitingJob(5, "e", 8, time_limit=HOUR))
    found = foretold(jobs, [RunningJob(1, "a", frozenset(EIGHT), ends=HOUR)])
    assert found.starts == {2: HOUR, 3: 2 * HOUR, 4: 2 * HOUR, 5: 4 * HOUR} and found.whole


def test_who_has_no_time_limit_is_named():
    jobs = [WaitingJob(2, "b", 8), WaitingJob(3, "c", 4, time_limit=HOUR)]
    found = foretold(jobs, [RunningJob(1, "a", frozenset(EIGHT[:4]), ends=HOUR), RunningJob(0, "x", frozenset(EIGHT[4:]))])
    assert found.starts == {} and found.whole and found.endless == (), "what is leased outside the queue has no number"
    found = foretold(jobs, [RunningJob(1, "a", frozenset(EIGHT), ends=HOUR)])
    assert found.starts == {2: HOUR} and [job.id for job in found.endless] == [2]


def test_it_is_bounded(monkeypatch):
    jobs = [WaitingJob(number, "a", 8, time_limit=HOUR) for number in range(1, 20)]
    times = iter([True] * 3 + [False])
    found = foretold(jobs, goes_on=lambda: next(times))
    assert found.starts == {1: 0.0, 2: HOUR, 3: 2 * HOUR} and not found.whole
    monkeypatch.setattr(module, "STARTS", 5)
    assert len(foretold(jobs).starts) == 5


def test_no_further_than_the_reserved_hours_that_are_known():
    jobs = [WaitingJob(number, "a", 8, time_limit=HOUR) for number in range(1, 9)]
    found = foretold(jobs, windows=(Window("course", 8, frozenset("x"), 2 * HOUR, 3 * HOUR),))
    assert found.starts == {1: 0.0, 2: HOUR} and not found.whole


def test_borrowed_gpus_are_given_back_and_wanted_again():
    jobs = [WaitingJob(1, "a", 8, time_limit=HOUR), WaitingJob(2, "b", 8, time_limit=HOUR)]
    quotas = Quotas({"b": Quota(guarantee=8)})
    found = foretold(jobs[1:], [RunningJob(1, "a", frozenset(EIGHT), ends=HOUR)], quotas=quotas, preemption=Preemption(300.0, 30.0))
    assert found.starts == {2: 330.0}


def test_a_fair_order_goes_on_with_what_they_have_then():
    past = PastUsage(7 * 86400.0)
    past.add("a", (), 8, -500.0, 0.0)
    jobs = [WaitingJob(number, user, 8, time_limit=HOUR) for number, user in ((1, "a"), (2, "b"), (3, "b"))]
    assert foretold(jobs, past=past, usage=past.at(0.0)).starts == {2: 0.0, 1: HOUR, 3: 2 * HOUR}


def random_jobs(dice: random.Random) -> list[WaitingJob]:
    return [
        WaitingJob(
            number, dice.choice("abc"), dice.randint(1, 8), time_limit=float(dice.randint(1, 20) * 60), priority=dice.choice((0, 0, 1))
        )
        for number in range(1, dice.randint(3, 25))
    ]


@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_a_replay_does(seed):
    dice = random.Random(seed)
    jobs = random_jobs(dice)
    quotas = Quotas({user: Quota(limit=dice.randint(4, 8)) for user in "ab"}) if dice.random() < 0.4 else Quotas()
    host = QueueState(EIGHT, (), quotas=quotas)
    trace = [TraceJob(0.0, job.time_limit, job.gpus, job.user, priority=job.priority, time_limit=job.time_limit) for job in jobs]
    done = replay(trace, host)
    if done.never:
        return  # one that its quota never lets start
    assert foretold(jobs, quotas=quotas).starts == dict(enumerate(done.started, 1))


@pytest.mark.parametrize("seed", range(40))
def test_the_first_starts_no_later_than_is_said(seed):
    """However early the others end, where nobody else comes."""
    dice = random.Random(seed)
    jobs = [replace(job, devices=frozenset(EIGHT[: job.gpus])) if dice.random() < 0.2 else job for job in random_jobs(dice)]
    quotas = Quotas({user: Quota(limit=8, jobs=dice.randint(1, 4)) for user in "ab"}) if dice.random() < 0.5 else Quotas()
    runs = {job.id: job.time_limit * dice.choice((0.01, 0.3, 0.9, 1.0)) for job in jobs}
    waiting, by_id = WaitingList(jobs), {job.id: job for job in jobs}
    running: dict[int, RunningJob] = {}
    ends: list[tuple[float, int]] = []
    now, latest, began = 0.0, dict[int, float](), dict[int, float]()
    while waiting:
        state = QueueState(EIGHT, waiting, [*running.values()], quotas)
        decision = decide(state, now)
        for start in decision.starts:
            job = by_id[start.job]
            waiting.remove(job)
            began[job.id] = now
            running[job.id] = RunningJob(job.id, job.user, frozenset(start.gpus), ends=now + job.time_limit, since=now)
            heappush(ends, (now + runs[job.id], job.id))
        for job in waiting:
            reason = decision.reason(job)
            if reason.latest and Places(state, one_queue=False).place(job)[0] == 1:
                latest.setdefault(job.id, reason.starts_at)
        if waiting:
            now, ended = heappop(ends)
            del running[ended]
    assert all(began[number] <= said + 1e-6 for number, said in latest.items())
