"""A fair order, guarantees and what is borrowed, by example."""

from __future__ import annotations

import pytest
from support.quotas import limits

from dockless.sched.policy.past_usage import PastUsage
from dockless.sched.policy.policy import decide
from dockless.sched.policy.quotas import Quota
from dockless.sched.policy.ranks import Ranks
from dockless.sched.policy.state import Preemption, PreemptJob, QueueState, RunningJob
from dockless.sched.policy.waiting import WaitingJob, WaitingList

FOUR = tuple(f"g{i}" for i in range(4))
AT_ONCE = Preemption(0.0, 30.0)


def on(*indices: int) -> frozenset[str]:
    return frozenset(FOUR[i] for i in indices)


def starts(waiting, usage, quotas=None, gpus=FOUR[:1]):
    return [start.job for start in decide(QueueState(gpus, waiting, (), quotas or limits(), usage=usage), 0).starts]


def test_who_has_had_least_for_the_weight_comes_first():
    waiting = [WaitingJob(1, "anna", 1), WaitingJob(2, "bob", 1)]
    assert starts(waiting, None) == [1]
    assert starts(waiting, {}) == [1]
    assert starts(waiting, {"user anna": 10.0, "user bob": 9.0}) == [2]
    assert starts(waiting, {"user anna": 10.0, "user bob": 9.0}, limits({"anna": Quota(weight=2)})) == [1]
    assert starts([*waiting, WaitingJob(3, "anna", 1, priority=1)], {"user anna": 10.0}) == [3]


def test_how_many_come_before_one():
    """By the order that holds: who would borrow comes last, then priorities, then who has had most."""
    jobs = [WaitingJob(1, "anna", 1), WaitingJob(2, "anna", 2), WaitingJob(3, "bob", 1), WaitingJob(4, "bob", 2), WaitingJob(5, "cleo", 1)]
    jobs += [WaitingJob(6, "anna", 1, priority=1), WaitingJob(7, "cleo", 1, priority=1)]
    had = {"user anna": 10.0, "user bob": 9.0, "user cleo": 10.0}

    def places(usage, quotas=None, running=()):
        ranks = Ranks(QueueState(FOUR, (), running, quotas or limits(), usage=usage))
        found = {job.id: ranks.before(WaitingList(jobs).lines.values(), job) for job in jobs}
        assert sorted(jobs, key=ranks.place) == sorted(jobs, key=lambda job: found[job.id])
        return sorted(found, key=found.__getitem__)

    assert places(None) == [6, 7, 1, 2, 3, 4, 5]
    assert places(had) == [6, 7, 3, 4, 1, 2, 5]
    guarantees = limits({"cleo": Quota(guarantee=1), "bob": Quota(guarantee=1)})
    assert places(None, guarantees) == [7, 3, 5, 6, 1, 2, 4]
    assert places(had, guarantees, [RunningJob(9, "cleo", on(0))]) == [3, 6, 7, 4, 1, 2, 5]


def test_a_burst_takes_turns():
    """A start counts at once for ten minutes."""
    waiting = [*(WaitingJob(number, "anna", 1) for number in range(1, 5)), WaitingJob(5, "bob", 1), WaitingJob(6, "bob", 1)]
    assert starts(waiting, {}, gpus=FOUR) == [1, 5, 2, 6]
    assert starts(waiting, {"user bob": 1199.0}, gpus=FOUR) == [1, 2, 5, 3]

    wide = [WaitingJob(1, "anna", 2), WaitingJob(2, "anna", 1), WaitingJob(3, "bob", 1)]
    assert starts(wide, {"user bob": 900.0}, gpus=FOUR) == [1, 3, 2]  # for each of its GPUs


def test_groups_with_a_weight_come_before_their_users():
    """Two groups share by their weights, however many members they have; a group without one is none."""
    waiting = [WaitingJob(1, "anna", 1, ("large",)), WaitingJob(2, "bob", 1, ("small",))]
    usage = {"user anna": 0.0, "group large": 100.0, "user bob": 50.0, "group small": 50.0}
    assert starts(waiting, usage) == [1]
    assert starts(waiting, usage, limits(groups={"large": Quota(weight=1), "small": Quota(weight=1)})) == [2]
    assert starts(waiting, usage, limits(groups={"large": Quota(weight=3), "small": Quota(weight=1)})) == [1]

    both = [WaitingJob(1, "anna", 1, ("large", "small")), WaitingJob(2, "bob", 1, ("small",))]
    quotas = limits(groups={"large": Quota(weight=1), "small": Quota(weight=1)})
    assert starts(both, usage, quotas) == [2]  # by the group that had most
    mates = [WaitingJob(1, "anna", 1, ("lab",)), WaitingJob(2, "bob", 1, ("lab",))]
    assert starts(mates, {"user anna": 2.0, "user bob": 1.0, "group lab": 3.0}, limits(groups={"lab": Quota(weight=1)})) == [2]


def test_usage_fades():
    usage = PastUsage(100.0)
    usage.add("anna", ("g",), 2, 0.0, 10.0)
    short = usage.at(10.0)["user anna"]
    assert 19.0 < short < 20.0 and usage.at(10.0)["group g"] == short
    assert usage.at(110.0)["user anna"] == pytest.approx(short / 2)
    usage.add("anna", (), 2, 100.0, 110.0)
    assert usage.at(110.0)["user anna"] == pytest.approx(short * 1.5)
    usage.add("anna", (), 2, 0.0, 10.0)  # read late
    assert usage.at(110.0)["user anna"] == pytest.approx(short * 2)
    assert usage.at(1e9)["user anna"] == 0.0


def test_what_runs_counts():
    """For ten minutes at least; and what runs for ever comes to no more than one half-life and a half."""
    running = [RunningJob(1, "anna", on(0, 1), since=900.0), RunningJob(2, "bob", on(2), since=0.0), RunningJob(3, "carl")]
    found = PastUsage(1e9).at(1000.0, [*running, RunningJob(0, "dora", on(3))])
    assert found["user anna"] == 1200.0 and found["user bob"] == pytest.approx(1000.0)
    assert set(found) == {"user anna", "user bob"}
    assert PastUsage(1e9).at(1000.0, [RunningJob(4, "emil", on(3), since=0.0, share=20, part=0.25)])["user emil"] == pytest.approx(250.0)
    assert PastUsage(10_000.0).at(1e9, running[1:2])["user bob"] == pytest.approx(14_427, rel=0.001)


# -- guarantees


def given(waiting, running, quotas, now=1000.0, preemption=AT_ONCE):
    return decide(QueueState(FOUR, waiting, running, quotas, preemption=preemption), now)


ANNAS = limits({"anna": Quota(guarantee=2)})


def test_what_is_borrowed_is_taken_from_the_youngest():
    running = [RunningJob(7, "bob", on(0), since=1.0), RunningJob(8, "bob", on(1), since=3.0), RunningJob(9, "bob", on(2, 3), since=2.0)]
    job = WaitingJob(10, "anna", 1)
    decision = given([job], running, ANNAS)
    assert decision.preempts == [PreemptJob(8, 10)] and not decision.starts
    text = "needs 1 GPU, 0 free; gets them back within the guarantee of user anna; starts in about 30 s when job 8 ends"
    assert (decision.reason(job).code, decision.reason(job).text) == ("guarantee", text)
    assert given([WaitingJob(10, "anna", 2)], running, ANNAS).preempts == [PreemptJob(9, 10)]  # one is fewer than two
    assert given([WaitingJob(10, "anna", 3)], running, ANNAS).preempts == []  # more than is guaranteed


def test_no_more_is_taken_than_is_wanted():
    """Of those that would have to go the older ones stay, where the younger are enough."""
    running = [RunningJob(7, "bob", on(0, 1), since=1.0), RunningJob(8, "bob", on(2), since=2.0), RunningJob(9, "bob", on(3), since=3.0)]
    decision = given([WaitingJob(10, "anna", 3)], running, limits({"anna": Quota(guarantee=3)}))
    assert decision.preempts == [PreemptJob(9, 10), PreemptJob(7, 10)]


def test_each_job_gets_gpus_of_its_own():
    """What one job is promised no other is, whether it is taken now or was being ended already."""
    running = [RunningJob(7, "bob", on(0), since=1.0), RunningJob(8, "bob", on(1), since=2.0), RunningJob(9, "carl", on(2, 3), since=0.0)]
    waiting = [WaitingJob(10, "anna", 1), WaitingJob(11, "anna", 1)]
    assert given(waiting, running, ANNAS).preempts == [PreemptJob(8, 10), PreemptJob(7, 11)]
    running[1] = RunningJob(8, "bob", on(1), since=2.0, ends=1010.0, stopping=True)
    decision = given(waiting, running, ANNAS)
    assert decision.preempts == [PreemptJob(7, 11)]
    assert [decision.reason(job).starts_at for job in waiting] == [1010.0, 1030.0]


def test_what_comes_free_first_is_promised_first():
    """Her own that are ending, too."""
    running = [RunningJob(7, "anna", on(0), since=1.0, ends=1005.0, stopping=True), RunningJob(8, "bob", on(1), ends=1002.0, stopping=True)]
    running.append(RunningJob(9, "bob", on(2, 3), since=2.0))
    job = WaitingJob(10, "anna", 1)
    decision = given([job], running, ANNAS)
    assert decision.preempts == [] and decision.reason(job).starts_at == 1002.0
    decision = given([job], [running[0], running[2], RunningJob(11, "bob", on(1), since=3.0)], ANNAS)
    assert decision.preempts == [] and decision.reason(job).starts_at == 1005.0


def test_a_promised_job_runs_from_then_on():
    """Who waits for its end counts from the moment at which it gets its GPUs."""
    last = WaitingJob(11, "carl", 4)
    running = [RunningJob(8, "bob", frozenset(FOUR), since=1.0)]
    decision = given([WaitingJob(10, "anna", 4, time_limit=100.0), last], running, limits({"anna": Quota(guarantee=4)}))
    assert decision.preempts == [PreemptJob(8, 10)] and decision.reason(last).starts_at == 1130.0


def test_who_comes_first_within_guarantees_is_not_delayed():
    """The wide job waits until what it needs may be taken; a smaller one behind it takes none of that meanwhile."""
    running = [RunningJob(8, "bob", on(0), since=1.0), RunningJob(9, "bob", on(1), since=999.0)]
    waiting = [WaitingJob(10, "anna", 4), WaitingJob(11, "anna", 3)]
    decision = given(waiting, running, limits({"anna": Quota(guarantee=4)}), preemption=Preemption(300.0, 30.0))
    assert decision.preempts == decision.starts == [] and decision.again == 1299.0


def test_a_job_that_is_being_ended_is_not_followed_by_another():
    running = [RunningJob(8, "bob", on(0, 1), since=1.0, ends=1010.0, stopping=True), RunningJob(9, "bob", on(2, 3), since=2.0)]
    job = WaitingJob(10, "anna", 2)
    decision = given([job, WaitingJob(11, "bob", 1, time_limit=1.0)], running, ANNAS)
    assert decision.preempts == decision.starts == [] and decision.reason(job).starts_at == 1010.0


def test_a_guarantee_is_nobody_elses_to_take():
    """Of a job that the guarantee of its user covers, nothing is taken; what it holds above is."""
    quotas = limits({"anna": Quota(guarantee=2), "bob": Quota(guarantee=2)})
    running = [RunningJob(7, "bob", on(0, 1), since=1.0), RunningJob(8, "bob", on(2, 3), since=2.0)]
    waiting = [WaitingJob(10, "anna", 1), WaitingJob(11, "anna", 1), WaitingJob(12, "anna", 1)]
    assert given(waiting, running, quotas).preempts == [PreemptJob(8, 10)]
    assert given(waiting, [running[0], RunningJob(9, "anna", on(2, 3), since=3.0)], quotas).preempts == []
    wide = [RunningJob(7, "bob", frozenset(FOUR), since=1.0)]  # it does not fit into the guarantee: all of it is borrowed
    assert given(waiting, wide, quotas).preempts == [PreemptJob(7, 10)]


def test_nobody_else_gets_what_is_on_its_way():
    """Of the two that it needs one is free already, and is kept for it."""
    running = [RunningJob(8, "bob", on(0), since=1.0), RunningJob(9, "bob", on(1, 2), since=2.0)]
    decision = given([WaitingJob(3, "carl", 1, time_limit=5.0), WaitingJob(10, "anna", 2)], running, ANNAS)
    assert (decision.preempts, decision.starts) == ([PreemptJob(9, 10)], [])


def test_only_after_a_while():
    running = [RunningJob(8, "bob", frozenset(FOUR), since=900.0)]
    decision = given([WaitingJob(10, "anna", 1)], running, ANNAS, preemption=Preemption(300.0, 30.0))
    assert decision.preempts == [] and decision.again == 1200.0
    assert given([WaitingJob(10, "anna", 1)], running, ANNAS, 1200.0, Preemption(300.0, 30.0)).preempts == [PreemptJob(8, 10)]

    two = [RunningJob(8, "bob", on(0, 1), since=900.0), RunningJob(9, "bob", on(2, 3), since=950.0)]
    quotas = limits({"anna": Quota(guarantee=3)})
    assert given([WaitingJob(10, "anna", 3)], two, quotas, preemption=Preemption(300.0, 30.0)).again == 1250.0  # of both
    either = [WaitingJob(10, "anna", 1, devices=on(0)), WaitingJob(11, "anna", 1, devices=on(2))]
    assert given(either, two, quotas, preemption=Preemption(300.0, 30.0)).again == 1200.0  # of the first of them


def test_a_groups_guarantee():
    quotas = limits(groups={"lab": Quota(guarantee=2)})
    running = [RunningJob(7, "anna", on(0), ("lab",), since=5.0), RunningJob(8, "bob", on(1, 2, 3), since=1.0)]
    assert given([WaitingJob(10, "carl", 1, ("lab",))], running, quotas).preempts == [PreemptJob(8, 10)]
    assert given([WaitingJob(10, "carl", 2, ("lab",))], running, quotas).preempts == []


def test_within_a_guarantee_comes_before_borrowing():
    """Also before a higher priority: a guarantee holds against all who borrow."""
    waiting = [WaitingJob(1, "bob", 4, priority=5), WaitingJob(2, "anna", 1)]
    assert [start.job for start in given(waiting, [], ANNAS).starts] == [2]


def test_the_very_gpus_that_are_named():
    running = [RunningJob(8, "bob", on(0), since=1.0), RunningJob(9, "bob", on(1, 2), since=2.0)]
    assert given([WaitingJob(10, "anna", 1, devices=on(0))], running, ANNAS).preempts == []  # GPU 3 is as good
    running.append(RunningJob(0, "carl", on(3)))  # a sandbox of `dockless run`
    assert given([WaitingJob(10, "anna", 1, devices=on(0))], running, ANNAS).preempts == [PreemptJob(8, 10)]
    assert given([WaitingJob(10, "anna", 1, devices=on(3))], running, ANNAS).preempts == []
