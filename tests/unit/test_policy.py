"""The policy by example: each rule of its docstring, with the words users read."""

from __future__ import annotations

from dockless.sched.policy import Quotas, Running, Start, State, Waiting, decide, duration, shadow

EIGHT = tuple(f"g{i}" for i in range(8))


def on(*indices: int) -> frozenset[str]:
    return frozenset(EIGHT[i] for i in indices)


def started(decision) -> dict[int, tuple[str, ...]]:
    return {start.job: start.gpus for start in decision.starts}


def test_starts_in_order_while_there_is_room():
    waiting = [Waiting(1, "anna", 4), Waiting(2, "bob", 4), Waiting(3, "anna", 1)]
    decision = decide(State(EIGHT, waiting), now=0)
    assert decision.starts == [Start(1, EIGHT[:4]), Start(2, EIGHT[4:])]
    assert decision.reason(waiting[2]).text == "needs 1 GPU, 0 free; waits for job 1, which has no time limit"


def test_reason_with_numbers_quota_and_estimate():
    running = [Running(17, "anna", on(0, 1, 2, 3), ends=4800.0), Running(16, "anna", on(4, 5), ends=9000.0)]
    job = Waiting(20, "anna", 4)
    decision = decide(State(EIGHT, [job], running, Quotas(users={"anna": 6})), now=0)
    reason = decision.reason(job)
    assert reason.code == "quota"
    assert reason.text == "needs 4 GPUs, 2 free; user anna uses 6 of 6; starts in about 1 h 20 min when job 17 ends"
    assert reason.starts_at == 4800.0


def test_own_quota_does_not_hold_up_others():
    waiting = [Waiting(1, "anna", 2), Waiting(2, "anna", 1), Waiting(3, "bob", 4)]
    state = State(EIGHT, waiting, [Running(8, "anna", on(0, 1)), Running(9, "anna", on(2))], Quotas(users={"anna": 4}))
    decision = decide(state, 0)
    assert list(started(decision)) == [3]
    assert "user anna uses 3 of 4" in decision.reason(waiting[0]).text
    # Job 2 would fit the quota, but it would take what job 1 of the same user waits for.
    assert "job 1 comes first in the quota of user anna" in decision.reason(waiting[1]).text


def test_group_quota_counts_all_members():
    waiting = [Waiting(1, "bob", 3, groups=("vision",)), Waiting(2, "carl", 3)]
    state = State(EIGHT, waiting, [Running(9, "anna", on(0, 1, 2, 3), groups=("vision",))], Quotas(groups={"vision": 6}))
    decision = decide(state, 0)
    assert list(started(decision)) == [2]
    assert "group vision uses 4 of 6" in decision.reason(waiting[0]).text


def test_default_quota_and_named_user():
    waiting = [Waiting(1, "anna", 2), Waiting(2, "bob", 2)]
    assert list(started(decide(State(EIGHT, waiting, quotas=Quotas(users={"bob": 8}, default=1)), 0))) == [2]


def test_wide_job_is_not_starved():
    """8 GPUs, 6 busy for an hour: the wide job reserves; only what ends by then may pass it."""
    running = [Running(1, "a", on(0, 1, 2, 3, 4, 5), ends=3600.0)]
    wide, limitless, late, quick = (
        Waiting(2, "b", 8),
        Waiting(3, "c", 1),
        Waiting(4, "c", 1, time_limit=7200),
        Waiting(5, "c", 1, time_limit=600),
    )
    decision = decide(State(EIGHT, [wide, limitless, late, quick], running), 0)
    assert list(started(decision)) == [5]
    assert decision.reason(wide).text == "needs 8 GPUs, 1 free; starts in about 1 h when job 1 ends"
    assert "job 2 comes first: it needs 8" in decision.reason(limitless).text
    assert decision.reason(late).code == "reserved"


def test_backfill_beside_the_reservation():
    """The case that Slurm 22.05 holds for two hours: A=4 runs 60 min, B=6 waits, C=2 for 120 min cannot delay B."""
    running = [Running(1, "a", on(0, 1, 2, 3), ends=3600.0)]
    waiting = [Waiting(2, "b", 6), Waiting(3, "c", 2, time_limit=7200), Waiting(4, "d", 2, time_limit=7200)]
    decision = decide(State(EIGHT, waiting, running), 0)
    assert list(started(decision)) == [3]
    assert decision.reason(waiting[2]).code == "reserved"


def test_no_time_limits_anywhere_still_no_starvation():
    running = [Running(1, "a", on(0, 1)), Running(2, "a", on(2, 3))]
    waiting = [Waiting(3, "b", 6), Waiting(4, "c", 2)]
    # When either of the running ends, 6 are free; job 4 would take two of them.
    assert not started(decide(State(EIGHT, waiting, running), 0))
    # With one runner of four, B leaves two over whatever happens.
    assert list(started(decide(State(EIGHT, waiting, [Running(1, "a", on(0, 1, 2, 3))]), 0))) == [4]


def test_a_held_place_in_the_group_quota():
    """While the wide group job waits for the host, its group's quota is not given away behind its back."""
    running = [Running(1, "x", on(0, 1, 2, 3), ends=100.0)]
    waiting = [Waiting(2, "anna", 6, groups=("g",)), Waiting(3, "bob", 2, groups=("g",)), Waiting(4, "carl", 2)]
    decision = decide(State(EIGHT, waiting, running, Quotas(groups={"g": 6})), 0)
    assert list(started(decision)) == [4]


def test_named_devices():
    running = [Running(1, "a", on(0), ends=50.0)]
    wants, any_one, six = Waiting(2, "b", 2, devices=on(0, 1)), Waiting(3, "c", 1), Waiting(4, "c", 6)
    decision = decide(State(EIGHT, [wants, any_one, six], running), 0)
    assert decision.starts == [Start(3, ("g2",))]  # GPU 1 is kept for job 2
    assert decision.reason(wants).text == "needs g0, g1, 6 free; starts in about 50 s when job 1 ends"
    brief = Waiting(5, "c", 7, time_limit=50)
    assert decide(State(EIGHT, [wants, brief], running), 0).starts == [Start(5, EIGHT[1:])]


def test_outside_gpus_are_left_alone_and_reserve_nothing():
    waiting = [Waiting(1, "a", 8), Waiting(2, "b", 2)]
    decision = decide(State(EIGHT, waiting, outside=on(7)), 0)
    assert list(started(decision)) == [2]
    assert decision.reason(waiting[0]).text.startswith("needs 8 GPUs, 5 free (1 in use outside dockless)")


def test_priority_first():
    waiting = sorted([Waiting(1, "a", 8), Waiting(2, "b", 8, priority=5)], key=lambda j: (-j.priority, j.id))
    assert list(started(decide(State(EIGHT, waiting), 0))) == [2]


def test_jobs_without_gpus_run_up_to_their_number_and_wait_for_no_gpu():
    waiting = [Waiting(1, "a", 8), Waiting(2, "a", 2), Waiting(3, "a"), Waiting(4, "a"), Waiting(5, "a")]
    decision = decide(State(EIGHT, waiting, cpu_jobs=2), 0)
    assert list(started(decision)) == [1, 3, 4]
    assert decision.reason(waiting[4]).text == "2 of 2 jobs without GPUs run already"
    assert list(started(decide(State((), [Waiting(1, "a")]), 0))) == [1]


def test_held_says_when_a_pass_is_needless():
    waiting = [Waiting(1, "a", 8), Waiting(2, "b", 4)]
    decision = decide(State(EIGHT, waiting), 0)
    assert decision.held(Waiting(3, "b", 4))
    assert not decision.held(Waiting(3, "b", 4, priority=1))
    assert not decision.held(Waiting(3, "c", 0))


def test_shadow():
    assert shadow(2, 4, [(10.0, 1, 7), (20.0, 3, 8), (30.0, 2, 9)], 0) == (20.0, 2, 8)
    assert shadow(0, 4, [(10.0, 4, 1), (10.0, 2, 2)], 0) == (10.0, 2, 1)
    assert shadow(0, 1, [(5.0, 1, 1)], 50.0) == (50.0, 0, 1)  # past its limit: any moment now
    assert shadow(0, 3, [(None, 4, 1)], 0) == (None, 1, 1)


NVLINKED = {(f"g{a}", f"g{b}"): 0.0 for a in range(8) for b in range(8) if a != b and a // 4 == b // 4}


def packed(count: int, *busy: int) -> tuple[str, ...]:
    return decide(State(EIGHT, [Waiting(1, "a", count)], [Running(9, "b", on(*busy))], links=NVLINKED), 0).starts[0].gpus


def test_packing_keeps_islands_whole():
    assert packed(2) == ("g0", "g1")
    assert packed(1, 0) == ("g1",)  # from the broken island
    assert packed(4, 0) == EIGHT[4:]
    assert packed(3, 0, 1) == ("g4", "g5", "g6")
    assert packed(2, 0, 1) == ("g2", "g3")


def test_slices_are_given_by_name_only():
    state = State(
        ("g0", "m0", "m1"),
        [Waiting(1, "a", 2), Waiting(2, "a", 1), Waiting(3, "b", 1, devices=frozenset({"m1"}))],
        slices=frozenset({"m0", "m1"}),
    )
    assert decide(state, 0).starts == [Start(2, ("g0",)), Start(3, ("m1",))]


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


def test_what_ends_at_the_same_moment_counts_together():
    """Of two that end at once the first makes room enough; what the second frees is over at that moment, too."""
    assert shadow(0, 2, [(10.0, 2, 1), (10.0, 3, 2), (11.0, 4, 3)], 0) == (10.0, 3, 1)
    running = [Running(1, "a", on(0, 1), ends=10.0), Running(2, "a", on(2, 3, 4), ends=10.0), Running(3, "a", on(5, 6), ends=3600.0)]
    waiting = [Waiting(4, "b", 3), Waiting(5, "c", 1)]
    assert list(started(decide(State(EIGHT, waiting, running), 0))) == [5]  # at 10 six are free, and the wide one needs three
