"""The policy by example: each rule of its docstring, with the words users read."""

from __future__ import annotations

from dataclasses import replace

from support.quotas import limits

from dockless.sched.policy import packing
from dockless.sched.policy.decision import duration
from dockless.sched.policy.policy import decide
from dockless.sched.policy.quotas import Quota
from dockless.sched.policy.reservations import left_over, moment
from dockless.sched.policy.state import QueueState, RunningJob, StartJob
from dockless.sched.policy.waiting import WaitingJob

EIGHT = tuple(f"g{i}" for i in range(8))


def on(*indices: int) -> frozenset[str]:
    return frozenset(EIGHT[i] for i in indices)


def started(decision) -> dict[int, tuple[str, ...]]:
    return {start.job: start.gpus for start in decision.starts}


def test_starts_in_order_while_there_is_room():
    waiting = [WaitingJob(1, "anna", 4), WaitingJob(2, "bob", 4), WaitingJob(3, "anna", 1)]
    decision = decide(QueueState(EIGHT, waiting), now=0)
    assert decision.starts == [StartJob(1, EIGHT[:4]), StartJob(2, EIGHT[4:])]
    assert decision.reason(waiting[2]).text == "needs 1 GPU, 0 free; waits for job 1, which has no time limit"


def test_who_comes_first_is_named():
    """Also to whom nobody looked at, as nothing is left."""
    waiting = [WaitingJob(1, "anna", 8), WaitingJob(2, "bob", 1), WaitingJob(3, "carl", 3)]
    decision = decide(QueueState(EIGHT, waiting), now=0)
    reason = decision.reason(waiting[2])
    assert (reason.code, reason.text) == ("order", "needs 3 GPUs, 0 free; job 2 of bob, which needs 1 GPU, comes first")


def test_reason_with_numbers_quota_and_estimate():
    running = [RunningJob(17, "anna", on(0, 1, 2, 3), ends=4800.0), RunningJob(16, "anna", on(4, 5), ends=9000.0)]
    job = WaitingJob(20, "anna", 4)
    decision = decide(QueueState(EIGHT, [job], running, limits(users={"anna": 6})), now=0)
    reason = decision.reason(job)
    assert reason.code == "quota"
    assert reason.text == "needs 4 GPUs, 2 free; user anna uses 6 of 6; starts in about 1 h 20 min when job 17 ends"
    assert reason.starts_at == 4800.0 and not reason.latest, "its GPUs may be in use then"


def test_own_quota_does_not_hold_up_others():
    waiting = [WaitingJob(1, "anna", 2), WaitingJob(2, "anna", 1), WaitingJob(3, "bob", 4)]
    state = QueueState(EIGHT, waiting, [RunningJob(8, "anna", on(0, 1)), RunningJob(9, "anna", on(2))], limits(users={"anna": 4}))
    decision = decide(state, 0)
    assert list(started(decision)) == [3]
    assert "user anna uses 3 of 4" in decision.reason(waiting[0]).text
    # Job 2 would fit the quota, but it would take what job 1 of the same user waits for.
    assert "job 1 comes first in the quota of user anna" in decision.reason(waiting[1]).text


def test_group_quota_counts_all_members():
    waiting = [WaitingJob(1, "bob", 3, groups=("vision",)), WaitingJob(2, "carl", 3)]
    state = QueueState(EIGHT, waiting, [RunningJob(9, "anna", on(0, 1, 2, 3), groups=("vision",))], limits(groups={"vision": 6}))
    decision = decide(state, 0)
    assert list(started(decision)) == [2]
    assert "group vision uses 4 of 6" in decision.reason(waiting[0]).text


def test_default_quota_and_named_user():
    waiting = [WaitingJob(1, "anna", 2), WaitingJob(2, "bob", 2)]
    assert list(started(decide(QueueState(EIGHT, waiting, quotas=limits(users={"bob": 8}, default=1)), 0))) == [2]


def test_wide_job_is_not_starved():
    """8 GPUs, 6 busy for an hour: the wide job reserves; only what ends by then may pass it."""
    running = [RunningJob(1, "a", on(0, 1, 2, 3, 4, 5), ends=3600.0)]
    wide, limitless, late, quick = (
        WaitingJob(2, "b", 8),
        WaitingJob(3, "c", 1),
        WaitingJob(4, "c", 1, time_limit=7200),
        WaitingJob(5, "c", 1, time_limit=600),
    )
    decision = decide(QueueState(EIGHT, [wide, limitless, late, quick], running), 0)
    assert list(started(decision)) == [5]
    assert decision.reason(wide).text == "needs 8 GPUs, 1 free; starts in about 1 h when job 1 ends"
    assert decision.reason(wide, 1800.0).text.endswith("starts in about 30 min when job 1 ends")
    assert "it needs 8 and starts in about 30 min when job 1 ends" in decision.reason(limitless, 1800.0).text
    assert "job 2 comes first: it needs 8" in decision.reason(limitless).text
    assert decision.reason(late).code == "reserved"


def test_backfill_beside_the_reservation():
    """The case that Slurm 22.05 holds for two hours: A=4 runs 60 min, B=6 waits, C=2 for 120 min cannot delay B."""
    running = [RunningJob(1, "a", on(0, 1, 2, 3), ends=3600.0)]
    waiting = [WaitingJob(2, "b", 6), WaitingJob(3, "c", 2, time_limit=7200), WaitingJob(4, "d", 2, time_limit=7200)]
    decision = decide(QueueState(EIGHT, waiting, running), 0)
    assert list(started(decision)) == [3]
    assert decision.reason(waiting[2]).code == "reserved"


def test_no_time_limits_anywhere_still_no_starvation():
    running = [RunningJob(1, "a", on(0, 1)), RunningJob(2, "a", on(2, 3))]
    waiting = [WaitingJob(3, "b", 6), WaitingJob(4, "c", 2)]
    # When either of the running ends, 6 are free; job 4 would take two of them.
    assert not started(decide(QueueState(EIGHT, waiting, running), 0))
    # With one runner of four, B leaves two over whatever happens.
    assert list(started(decide(QueueState(EIGHT, waiting, [RunningJob(1, "a", on(0, 1, 2, 3))]), 0))) == [4]


def test_a_held_place_in_the_group_quota():
    """While the wide group job waits for the host, its group's quota is not given away behind its back."""
    running = [RunningJob(1, "x", on(0, 1, 2, 3), ends=100.0)]
    waiting = [WaitingJob(2, "anna", 6, groups=("g",)), WaitingJob(3, "bob", 2, groups=("g",)), WaitingJob(4, "carl", 2)]
    decision = decide(QueueState(EIGHT, waiting, running, limits(groups={"g": 6})), 0)
    assert list(started(decision)) == [4]


def test_named_devices():
    running = [RunningJob(1, "a", on(0), ends=50.0)]
    wants, any_one, six = WaitingJob(2, "b", 2, devices=on(0, 1)), WaitingJob(3, "c", 1), WaitingJob(4, "c", 6)
    decision = decide(QueueState(EIGHT, [wants, any_one, six], running), 0)
    assert decision.starts == [StartJob(3, ("g2",))]  # GPU 1 is kept for job 2
    assert decision.reason(wants).text == "needs g0, g1, 1 free; starts in about 50 s when job 1 ends"
    brief = WaitingJob(5, "c", 7, time_limit=50)
    assert decide(QueueState(EIGHT, [wants, brief], running), 0).starts == [StartJob(5, EIGHT[1:])]


def test_outside_gpus_are_left_alone_and_reserve_nothing():
    waiting = [WaitingJob(1, "a", 8), WaitingJob(2, "b", 2)]
    decision = decide(QueueState(EIGHT, waiting, unusable=on(7)), 0)
    assert list(started(decision)) == [2]
    assert decision.reason(waiting[0]).text.startswith("needs 8 GPUs, 5 free (1 in use outside dockless)")
    decision = decide(QueueState(EIGHT, waiting, unusable=on(6, 7), out_of_service=on(6, 7)), 0)
    assert decision.reason(waiting[0]).text == "needs 8 GPUs, 4 free"


def test_priority_first():
    waiting = sorted([WaitingJob(1, "a", 8), WaitingJob(2, "b", 8, priority=5)], key=lambda j: (-j.priority, j.id))
    assert list(started(decide(QueueState(EIGHT, waiting), 0))) == [2]


def test_jobs_without_gpus_run_up_to_their_number_and_wait_for_no_gpu():
    waiting = [WaitingJob(1, "a", 8), WaitingJob(2, "a", 2), WaitingJob(3, "a"), WaitingJob(4, "a"), WaitingJob(5, "a")]
    decision = decide(QueueState(EIGHT, waiting, cpu_jobs=2), 0)
    assert started(decision).keys() == {1, 3, 4}
    assert decision.reason(waiting[4]).text == "2 of 2 jobs without GPUs run already, 2 of them a's"
    assert list(started(decide(QueueState((), [WaitingJob(1, "a")]), 0))) == [1]
    assert len(started(decide(QueueState((), [WaitingJob(number, "a") for number in range(1, 70)]), 0))) == 64


def test_what_runs_without_gpus_counts_among_its_like_alone():
    waiting = [WaitingJob(1, "a"), WaitingJob(2, "b")]
    decision = decide(
        QueueState(EIGHT, waiting, [RunningJob(8, "c"), RunningJob(9, "a", on(0)), RunningJob(10, "a", on(1))], cpu_jobs=2), 0
    )
    assert list(started(decision)) == [1]
    assert decision.reason(waiting[1]).text == "2 of 2 jobs without GPUs run already, 0 of them b's"


def test_so_many_jobs_at_once():
    """With and without GPUs together, or those without alone, of a user and of a group."""
    anna = [WaitingJob(1, "anna"), WaitingJob(2, "anna", 1), WaitingJob(3, "anna"), WaitingJob(4, "bob")]
    _, two, three, bobs = anna
    running = [RunningJob(9, "anna", on(0))]
    decision = decide(QueueState(EIGHT, anna, running, limits(default=Quota(jobs=3))), 0)
    assert list(started(decision)) == [1, 4, 2]
    reason = decision.reason(three)
    assert (reason.code, reason.text) == ("quota", "user anna runs 3 of 3 jobs; job 2 comes first among the jobs of user anna")
    decision = decide(QueueState(EIGHT, anna, running, limits(default=Quota(cpu_jobs=1))), 0)
    assert list(started(decision)) == [1, 4, 2]
    assert decision.reason(three).text.startswith("user anna runs 1 of 1 jobs without GPUs; waits for job 1")
    decision = decide(QueueState(EIGHT, anna, running, limits({"anna": Quota(jobs=0)})), 0)
    assert list(started(decision)) == [4]
    assert decision.reason(two).text == "needs 1 GPU, 7 free; user anna runs 1 of 0 jobs"
    grouped = [WaitingJob(1, "bob", 1, groups=("g",)), WaitingJob(2, "carl", 0, groups=("g",)), bobs]
    decision = decide(QueueState(EIGHT, grouped, [RunningJob(9, "anna", on(0), ("g",), 60.0)], limits(groups={"g": Quota(jobs=2)})), 0)
    assert list(started(decision)) == [4, 1]
    assert decision.reason(grouped[1]).text == "group g runs 2 of 2 jobs; job 1 comes first among the jobs of group g"


def test_what_holds_gpus_outside_the_queue_is_no_job():
    outside = [RunningJob(0, "anna", on(0)), RunningJob(0, "anna", on(1))]
    quotas = limits({"anna": Quota(limit=3, jobs=1)})
    assert list(started(decide(QueueState(EIGHT, [WaitingJob(1, "anna", 1)], outside, quotas), 0))) == [1]
    assert not started(decide(QueueState(EIGHT, [WaitingJob(1, "anna", 2)], outside, quotas), 0))


def test_a_place_among_the_jobs_of_a_group_is_kept():
    """For the first with GPUs, which waits for the host: those without, and smaller ones that come later, do not keep it from starting."""
    running = [RunningJob(8, "x", frozenset(EIGHT), ends=50.0), RunningJob(9, "anna", groups=("g",))]
    wide = WaitingJob(1, "bob", 8, groups=("g",))
    waiting = [wide, WaitingJob(2, "anna", groups=("g",)), WaitingJob(3, "anna", groups=("g",))]
    quotas = limits(groups={"g": Quota(jobs=3)})
    assert list(started(decide(QueueState(EIGHT, waiting, running, quotas), 0))) == [2]
    decision = decide(QueueState(EIGHT, waiting[:1] + waiting[2:], [*running, RunningJob(2, "anna", groups=("g",))], quotas), 0)
    assert not started(decision) and decision.reason(wide).starts_at == 50.0
    older = WaitingJob(1, "anna", groups=("g",))
    behind = WaitingJob(2, "bob", 1, groups=("g",))
    full = [RunningJob(7 + n, "anna", groups=("g",), ends=10.0 + n) for n in range(3)]
    decision = decide(QueueState(EIGHT, [older, behind], full, quotas), 0)
    assert decision.reason(older).starts_at == 10.0 and "job 1 comes first" in decision.reason(behind).text


def test_whoever_has_fewest_running_without_gpus_is_next():
    """One user's thousand do not keep another's single job waiting; a priority does, and among equals the first."""
    waiting = [*(WaitingJob(number, "a") for number in range(1, 1000)), WaitingJob(1000, "b"), WaitingJob(1001, "b"), WaitingJob(1002, "c")]
    running = [RunningJob(2000 + number, "a") for number in range(3)] + [RunningJob(3000, "b")]

    def starts(places, *more):
        return list(started(decide(QueueState((), [*waiting, *more], running, cpu_jobs=4 + places), 0)))

    assert [starts(places) for places in range(4)] == [[], [1002], [1002, 1000], [1002, 1000, 1001]]
    assert starts(5) == [1002, 1000, 1001, 1, 2]
    assert starts(2, WaitingJob(1003, "a", priority=1)) == [1003, 1002]
    assert starts(2, WaitingJob(1003, "d", groups=("g",))) == [1002, 1003]


def test_held_says_when_a_pass_is_needless():
    waiting = [WaitingJob(1, "a", 8), WaitingJob(2, "b", 4)]
    decision = decide(QueueState(EIGHT, waiting), 0)
    assert decision.held(WaitingJob(3, "b", 4))
    assert not decision.held(WaitingJob(3, "b", 4, priority=1))
    assert not decision.held(WaitingJob(3, "c", 0))
    waiting = [WaitingJob(1, "a", 9, priority=5), WaitingJob(2, "a", 9)]
    assert decide(QueueState(EIGHT, waiting), 0).held(WaitingJob(3, "a", 9, priority=4))  # the first of its shape tells


def shadow(free, need, releases, now):
    """When it will be there, what is over then, the job whose end makes it so."""
    at, after = moment(free, need, releases, now)
    return at, left_over(free, need, releases, at, now), after


def test_shadow():
    assert shadow(2, 4, [(10.0, 1, 7), (20.0, 3, 8), (30.0, 2, 9)], 0) == (20.0, 2, 8)
    assert shadow(0, 4, [(10.0, 4, 1), (10.0, 2, 2)], 0) == (10.0, 2, 1)
    assert shadow(0, 1, [(5.0, 1, 1)], 50.0) == (50.0, 0, 1)  # past its limit: any moment now
    assert shadow(0, 3, [(None, 4, 1)], 0) == (None, 1, 1)
    # Of 2 and 5 that end some day either can be the first: 3 are there with the 5 alone, or with the 2 when the 1 has ended.
    assert shadow(0, 3, [(10.0, 1, 1), (None, 2, 2), (None, 5, 3)], 0) == (None, 0, 2)
    assert shadow(0, 5, [(None, 1, 7)], 0) == (None, 0, 7) and shadow(0, 5, [], 0) == (None, 0, 0)  # never


NVLINKED = {(f"g{a}", f"g{b}"): 0.0 for a in range(8) for b in range(8) if a != b and a // 4 == b // 4}


def packed(count: int, *busy: int) -> tuple[str, ...]:
    return decide(QueueState(EIGHT, [WaitingJob(1, "a", count)], [RunningJob(9, "b", on(*busy))], links=NVLINKED), 0).starts[0].gpus


def test_packing_keeps_islands_whole():
    assert packed(2) == ("g0", "g1")
    assert packed(1, 0) == ("g1",)  # from the broken island
    assert packed(4, 0) == EIGHT[4:]
    assert packed(3, 0, 1) == ("g4", "g5", "g6")
    assert packed(2, 0, 1) == ("g2", "g3")


def test_slices_are_given_by_name_only():
    state = QueueState(
        ("g0", "m0", "m1"),
        [WaitingJob(1, "a", 2), WaitingJob(2, "a", 1), WaitingJob(3, "b", 1, devices=frozenset({"m1"}))],
        slices=frozenset({"m0", "m1"}),
    )
    assert decide(state, 0).starts == [StartJob(2, ("g0",)), StartJob(3, ("m1",))]


def test_durations_as_people_say_them():
    assert [duration(s) for s in (0, 45, 89.2, 600, 4800, 5400, 7260, 3 * 86400)] == [
        "0 s",
        "45 s",
        "90 s",
        "10 min",
        "1 h 20 min",
        "1 h 30 min",
        "2 h 1 min",
        "3 d",
    ]
    assert [duration(s) for s in (91, 47 * 3600, 48 * 3600, 49 * 3600)] == ["2 min", "47 h", "2 d", "2 d 1 h"]


def test_what_ends_at_the_same_moment_counts_together():
    """Of two that end at once the first makes room enough; what the second frees is over at that moment, too."""
    assert shadow(0, 2, [(10.0, 2, 1), (10.0, 3, 2), (11.0, 4, 3)], 0) == (10.0, 3, 1)
    running = [
        RunningJob(1, "a", on(0, 1), ends=10.0),
        RunningJob(2, "a", on(2, 3, 4), ends=10.0),
        RunningJob(3, "a", on(5, 6), ends=3600.0),
    ]
    waiting = [WaitingJob(4, "b", 3), WaitingJob(5, "c", 1)]
    assert list(started(decide(QueueState(EIGHT, waiting, running), 0))) == [5]  # at 10 six are free, and the wide one needs three


def test_a_quota_may_be_used_to_its_end():
    quotas = limits(users={"anna": 4}, groups={"g": 4})
    for waiting in ([WaitingJob(1, "anna", 4)], [WaitingJob(1, "anna", 2), WaitingJob(2, "anna", 2)]):
        assert len(started(decide(QueueState(EIGHT, waiting, quotas=quotas), 0))) == len(waiting)
    for waiting in (
        [WaitingJob(1, "anna", 3), WaitingJob(2, "anna", 2)],
        [WaitingJob(1, "anna", 3, groups=("g",)), WaitingJob(2, "bob", 2, groups=("g",))],
    ):
        assert list(started(decide(QueueState(EIGHT, waiting, quotas=quotas), 0))) == [1]


def test_when_there_is_room_in_a_quota_again():
    """What is free of it counts, then what ends, one after the other; other users' jobs and those without GPUs do not."""
    running = [
        RunningJob(6, "anna"),
        RunningJob(7, "bob", on(6), ends=5.0),
        RunningJob(8, "anna", on(0), ends=10.0),
        RunningJob(9, "anna", on(1), ends=20.0),
    ]
    for limit, need, at in ((2, 1, 10.0), (2, 2, 20.0), (3, 2, 10.0), (3, 3, 20.0)):
        job = WaitingJob(1, "anna", need)
        reason = decide(QueueState(EIGHT, [job], running, limits(users={"anna": limit})), 0).reason(job)
        assert (reason.code, reason.starts_at) == ("quota", at), (limit, need)
    job = WaitingJob(1, "anna", 1)
    endless = [RunningJob(6, "anna"), RunningJob(7, "bob", on(6)), RunningJob(8, "anna", on(0))]
    reason = decide(QueueState(EIGHT, [job], endless, limits(users={"anna": 1})), 0).reason(job)
    assert reason.text.endswith("; waits for job 8, which has no time limit")


def test_who_can_never_start_keeps_nothing_from_others():
    for quotas, devices, gpus in ((limits(users={"anna": 0}), frozenset(), 1), (limits(default=1), frozenset(), 2), (limits(), on(0), 1)):
        never, other = WaitingJob(1, "anna", gpus, devices=devices), WaitingJob(2, "bob", 1)
        decision = decide(QueueState(EIGHT, [never, other], quotas=quotas, unusable=on(0)), 0)
        assert decision.reservations == [] and list(started(decision)) == [2]


def test_a_place_in_a_quota_is_kept_in_those_before_it_and_in_no_other():
    """Held by her group's quota, anna's job keeps its place in her own, too; held by her own, it keeps none in the group's."""
    grouped = WaitingJob(1, "anna", 4, groups=("g",))
    decision = decide(
        QueueState(EIGHT, [grouped, WaitingJob(2, "anna", 1)], [RunningJob(9, "bob", on(0), groups=("g",))], limits({"anna": 4}, {"g": 4})),
        0,
    )
    assert not started(decision) and decision.reason(grouped).code == "quota"
    waiting = [WaitingJob(1, "anna", 2, groups=("g",)), WaitingJob(2, "bob", 4, groups=("g",))]
    assert list(started(decide(QueueState(EIGHT, waiting, [RunningJob(9, "anna", on(0))], limits({"anna": 2}, {"g": 4})), 0))) == [2]


def test_what_is_over_in_a_quota_when_its_wide_job_starts():
    """Kept for the job that waits for the host: what the quota has left then, with all of it that ends by then."""
    running = [RunningJob(1, "x", on(0, 1, 2), ends=100.0)]
    waiting = [WaitingJob(4, "anna", 5, groups=("g",)), WaitingJob(5, "bob", 1, groups=("g",))]

    def passes(limit: int, ends: float | None) -> bool:
        mine = RunningJob(2, "carl", on(3), groups=("g",), ends=ends)
        decision = decide(QueueState(EIGHT, waiting, [*running, mine, RunningJob(3, "x", on(4))], limits(groups={"g": limit})), 0)
        assert decision.reason(waiting[0]).code == "resources"
        assert {r.pool: r.job for r in decision.reservations} == {"host": 4, "group g": 4}
        return list(started(decision)) == [5]

    assert [passes(6, ends) for ends in (None, 200.0, 100.0, 50.0)] == [False, False, True, True]
    assert passes(7, None)
    # Nothing is said about when: only what is left now is over.
    running = [RunningJob(1, "x", on(0, 1, 2, 3, 4, 5, 6))]
    assert not started(decide(QueueState(EIGHT, waiting, running, limits(groups={"g": 5})), 0))


def test_the_first_reservation_stands():
    """Of two that wait for the host, and of two in one quota, the later one takes nothing of what is kept for the first."""
    running = [RunningJob(1, "x", on(0, 1, 2, 3), ends=100.0), RunningJob(9, "x", on(4, 5), ends=300.0)]
    wide, wider, small = WaitingJob(2, "a", 4), WaitingJob(3, "b", 8), WaitingJob(4, "c", 3)
    decision = decide(QueueState(EIGHT, [wide, wider, small], running), 0)
    assert [(r.job, r.at, r.extra) for r in decision.reservations] == [(2, 100.0, 2)]
    assert decision.reason(wider).text.startswith("needs 8 GPUs, 2 free; job 2 comes first: it needs 4 and starts in about 2 min")
    running = [RunningJob(8, "bob", on(0, 1, 2, 3, 4, 5), ends=1000.0), RunningJob(9, "anna", on(6), ends=100.0)]
    waiting = [WaitingJob(1, "anna", 3), WaitingJob(2, "anna", 2, time_limit=50), WaitingJob(3, "anna", 1)]
    decision = decide(QueueState(EIGHT, waiting, running, limits(users={"anna": 3})), 0)
    assert not started(decision)
    assert {r.pool: r.job for r in decision.reservations} == {"user anna": 1, "host": 2}
    assert "job 1 comes first in the quota of user anna: it needs 3" in decision.reason(waiting[2]).text


def test_named_devices_are_kept_behind_a_reservation_of_the_host():
    running = [RunningJob(1, "x", on(0), ends=50.0), RunningJob(2, "x", on(1, 2, 3, 4, 5, 6), ends=100.0)]
    wide, named, brief = WaitingJob(3, "a", 8), WaitingJob(4, "b", 2, devices=on(0, 7)), WaitingJob(5, "c", 1, time_limit=80)
    decision = decide(QueueState(EIGHT, [wide, named, brief], running), 0)
    assert not started(decision)  # in time for the wide one, too late for the named GPUs
    assert {r.job: r.at for r in decision.reservations} == {3: 100.0, 4: 50.0}
    reason = decision.reason(brief)
    assert reason.code == "reserved" and "job 4 comes first: it needs 2" in reason.text
    assert decision.reason(named).code == "resources"


def test_only_the_named_devices_are_waited_for():
    job = WaitingJob(3, "a", 1, devices=on(0))
    for ends, text in ((50.0, "starts in about 50 s when job 2 ends"), (None, "waits for job 2, which has no time limit")):
        running = [RunningJob(1, "x", on(1), ends=ends and ends - 40), RunningJob(2, "x", on(0), ends=ends)]
        assert decide(QueueState(EIGHT, [job], running), 0).reason(job).text == f"needs g0, 0 free; {text}"
    assert started(decide(QueueState(EIGHT[:2], [WaitingJob(1, "a", 2, devices=on(0, 1))]), 0)) == {1: EIGHT[:2]}  # all there are


def test_a_slice_is_none_of_the_hosts_gpus_but_one_of_a_quotas():
    state = QueueState(
        ("g0", "m1"),
        [WaitingJob(1, "a", 1), WaitingJob(2, "b", 1, devices=frozenset({"m1"}))],
        [RunningJob(9, "x", on(0))],
        slices=frozenset({"m1"}),
    )
    assert list(started(decide(state, 0))) == [2]
    waiting = [WaitingJob(1, "a", 2), WaitingJob(2, "a", 1, devices=frozenset({"m1"}))]
    state = QueueState(("g0", "g1", "m1"), waiting, [RunningJob(9, "a", on(0))], limits(users={"a": 2}), slices=frozenset({"m1"}))
    assert not started(decide(state, 0))


def test_who_ends_in_time_takes_nothing_of_what_is_over():
    running = [RunningJob(1, "a", on(0, 1, 2, 3), ends=3600.0)]
    waiting = [WaitingJob(2, "b", 6), WaitingJob(3, "c", 2, time_limit=600), WaitingJob(4, "c", 2)]
    assert list(started(decide(QueueState(EIGHT, waiting, running), 0))) == [3, 4]
    # Where nobody knows when, no time limit is short enough.
    assert not started(
        decide(QueueState(EIGHT, [WaitingJob(2, "b", 8), WaitingJob(3, "c", 1, time_limit=1)], [RunningJob(1, "a", on(0))]), 0)
    )


TWO_OVER = [RunningJob(1, "x", on(0, 1, 2, 3), ends=3600.0)]
"""Who needs six waits an hour; four are free, and two of them are over even then."""


def beside(*waiting: WaitingJob, **more) -> list[int]:
    """Who starts, in this order, beside a job that needs six GPUs."""
    return list(started(decide(QueueState(EIGHT, [WaitingJob(2, "x", 6, priority=9), *waiting], TWO_OVER, **more), 1000.0)))


def test_who_ends_in_time_comes_before_who_does_not():
    """Also where it came later; but not before a higher priority."""
    late, brief = WaitingJob(3, "a", 2, time_limit=7200), WaitingJob(4, "b", 3, time_limit=600)
    assert beside(late) == [3]
    assert beside(late, brief) == [4]
    assert beside(late, WaitingJob(4, "b", 2, time_limit=600)) == [4, 3]
    assert beside(replace(late, priority=1), brief) == [3]
    assert beside(late, WaitingJob(4, "b", 3, time_limit=2700)) == [3]  # nor is this one


def test_of_those_that_do_not_who_has_waited_long_for_short():
    def first(*rows: tuple[float, float]) -> int:
        """Of jobs that have waited so long, and may run so long."""
        (found,) = beside(
            *(
                WaitingJob(number, f"u{number}", 2, time_limit=limit, since=1000.0 - waited)
                for number, (waited, limit) in enumerate(rows, 3)
            )
        )
        return found

    assert first((100, 1e4), (99, 1e4)) == 3
    assert first((100, 1e4), (99, 5e3)) == 4
    assert first((100, 1e5), (51, 1e5 / 16), (80, 1e5)) == 4
    assert first((100, 1e5), (49, 1e5 / 16), (80, 1e5)) == 3
    assert first((900, 0), (1, 1e6)) == 4
    assert first((900, 0), (999, 0)) == 3


def test_nobody_within_a_guarantee_is_put_off():
    late, brief = WaitingJob(3, "anna", 2, time_limit=7200), WaitingJob(4, "bob", 3, time_limit=600)
    assert beside(late, brief, quotas=limits({"anna": Quota(guarantee=2)})) == [3]


def test_a_fair_order_holds_for_them_too():
    late, brief = WaitingJob(3, "anna", 2, time_limit=7200), WaitingJob(4, "bob", 3, time_limit=600)
    assert beside(late, brief, usage={"user bob": 10.0}) == [3]
    assert beside(late, brief, usage={"user anna": 10.0}) == [4]


def test_what_starts_now_is_waited_for_like_the_rest():
    waiting = [WaitingJob(1, "a", 8, time_limit=100), WaitingJob(2, "b", 1)]
    reason = decide(QueueState(EIGHT, waiting), 50.0).reason(waiting[1])
    assert (reason.starts_at, reason.text) == (150.0, "needs 1 GPU, 0 free; starts in about 2 min when job 1 ends")


def test_when_nothing_is_left_nobody_else_is_looked_at():
    """The head gets its reservation first, and while a GPU is free somebody may pass it."""
    full = [RunningJob(9, "x", frozenset(EIGHT), ends=100.0)]
    head, behind = WaitingJob(1, "a", 4), WaitingJob(2, "b", 1)
    decision = decide(QueueState(EIGHT, [head, behind], full, cpu_jobs=0), 0)
    assert decision.reason(head).starts_at == 100.0
    reason = decision.reason(behind)
    first = "job 1 comes first: it needs 4 and starts in about 2 min when job 9 ends"
    assert (reason.code, reason.text) == ("resources", f"needs 1 GPU, 0 free; {first}")
    assert list(
        started(
            decide(QueueState(EIGHT, [WaitingJob(1, "a", 6), WaitingJob(2, "b", 2)], [RunningJob(9, "x", on(0, 1, 2, 3))], cpu_jobs=0), 0)
        )
    ) == [2]


def test_the_words_for_who_comes_first():
    hint = "; a time limit that ends before then would let this one start"
    wide, small, wider = WaitingJob(2, "a", 6), WaitingJob(3, "b", 4), WaitingJob(4, "c", 8)
    for ends, when, more in (
        (100.0, "starts in about 2 min when job 1 ends", hint),
        (None, "waits for job 1, which has no time limit", ""),
    ):
        decision = decide(QueueState(EIGHT, [wide, small, wider], [RunningJob(1, "x", on(0, 1, 2, 3), ends=ends)]), 0)
        reasons = [decision.reason(job) for job in (wide, small, wider)]
        assert [reason.code for reason in reasons] == ["resources", "reserved", "resources"]
        assert [reason.text for reason in reasons] == [
            f"needs 6 GPUs, 4 free; {when}",
            f"needs 4 GPUs, 4 free; job 2 comes first: it needs 6 and {when}{more}",
            f"needs 8 GPUs, 4 free; job 2 comes first: it needs 6 and {when}",
        ]
        assert [reason.starts_at for reason in reasons] == [ends, None, None]


def test_a_quota_is_named_where_it_is_too_small():
    running = [RunningJob(9, "anna", on(0, 1, 2, 3))]
    for need, parts in ((5, ""), (6, "; user anna uses 4 of 9")):
        job = WaitingJob(1, "anna", need)
        text = decide(QueueState(EIGHT, [job], running, limits(default=9)), 0).reason(job).text
        assert text == f"needs {need} GPUs, 4 free{parts}; waits for job 9, which has no time limit"


def test_gpus_are_not_compared_where_there_is_nothing_to_choose(monkeypatch):
    monkeypatch.setattr(packing, "best_set", None)
    assert started(decide(QueueState(EIGHT, [WaitingJob(1, "a", 2)]), 0)) == {1: EIGHT[:2]}
    assert started(decide(QueueState(EIGHT, [WaitingJob(1, "a", 8)], links=NVLINKED), 0)) == {1: EIGHT}
