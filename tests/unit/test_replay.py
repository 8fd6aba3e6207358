"""Replays of traces: what is asked of the policy, and what is made of its answers."""

from __future__ import annotations

import json
import random

import pytest

from dockless.errors import BadInput
from dockless.sched.policy import replay as replays
from dockless.sched.policy.policy import decide
from dockless.sched.policy.quotas import Quota, Quotas
from dockless.sched.policy.replay import TraceJob, replay
from dockless.sched.policy.state import Preemption, QueueState, RunningJob, Window
from dockless.sched.policy.supplies import CORES, MEMORY, Supply
from dockless.sched.policy.waiting import WaitingJob
from dockless.sched.traces import parse


def host(gpus: int, **more) -> QueueState:
    return QueueState(tuple(f"g{number}" for number in range(gpus)), (), **more)


def jobs_of(seed: int, count: int = 120) -> list[TraceJob]:
    dice = random.Random(seed)
    made = []
    for _ in range(count):
        run = dice.choice([1.0, 5.0, 30.0, 200.0])
        limit = dice.choice([0.0, run, run, 2 * run, run / 2])
        made.append(
            TraceJob(float(dice.randrange(600)), run, dice.choice([0, 1, 1, 2, 4]), dice.choice("abc"), (), dice.choice([0, 0, -1]), limit)
        )
    return made


@pytest.mark.parametrize("seed", range(12))
def test_a_replay_is_a_pass_at_every_moment(seed):
    """It makes as few passes as the daemon; with one at every moment the jobs start at the same times."""
    jobs = sorted(jobs_of(seed), key=lambda job: job.submitted)
    state = host(4, quotas=Quotas({"a": Quota(3), "b": Quota(jobs=3)}), cpu_jobs=3)
    possible = [number for number, job in enumerate(jobs) if not (job.user == "a" and job.gpus > 3)]
    moments = {job.submitted for job in jobs}
    started: dict[int, float] = {}
    running: dict[int, RunningJob] = {}
    while moments:
        now = min(moments)
        moments.remove(now)
        running = {number: one for number, one in running.items() if started[number] + jobs[number].length > now}
        waiting = [
            WaitingJob(number + 1, job.user, job.gpus, priority=job.priority, time_limit=job.time_limit, since=job.submitted)
            for number in possible
            if (job := jobs[number]).submitted <= now and number not in started
        ]
        for start in decide(QueueState(state.gpus, waiting, [*running.values()], state.quotas, cpu_jobs=3), now).starts:
            number = start.job - 1
            job = jobs[number]
            started[number] = now
            ends = now + job.time_limit if job.time_limit else None
            running[number] = RunningJob(start.job, job.user, frozenset(start.gpus), (), ends)
            moments.add(now + job.length)
    got = replay(jobs, state)
    assert got.never == len(jobs) - len(possible)
    assert list(got.started) == [started[number] for number in sorted(started)] and len(started) == len(possible)


def test_what_is_borrowed_is_given_back():
    """Ben has run for 20 s at 20, and has 5 s to end; his job then starts again. What is near its end may end within those 5 s, too: only
    its own time limit ends it for good."""
    state = host(4, quotas=Quotas({"anna": Quota(guarantee=2)}), preemption=Preemption(20.0, 5.0))
    found = replay([TraceJob(0, 100, 4, "ben"), TraceJob(10, 10, 1, "anna")], state)
    assert found.started == (35, 25) and found.lost == ((0, 0, 25),) and found.waits == [35, 15]
    assert found.ends == 135 and found.utilisation == pytest.approx(410 / 540)
    assert [sum(pieces) * 135 / 27 for pieces in found.over_time(27).values()] == pytest.approx([500, 10])
    assert (found.had, found.lost_had) == ((("g0", "g1", "g2", "g3"), ("g0",)), (("g0", "g1", "g2", "g3"),))
    one_of_them = replay([TraceJob(0, 1, 0, "eve"), TraceJob(0, 100, 4, "ben"), TraceJob(10, 10, 1, "anna")], state)
    names = one_of_them.over_time(27, lambda job, gpus: len(gpus))
    assert [sum(pieces) * 135 / 27 for pieces in names.values()] == pytest.approx([500, 10, 0])
    assert replay([TraceJob(0, 23, 4, "ben"), TraceJob(10, 10, 1, "anna")], state).lost == ((0, 0, 23),)
    assert replay([TraceJob(0, 30, 4, "ben", time_limit=23), TraceJob(10, 10, 1, "anna")], state).lost == ()
    twice = [TraceJob(0, 100, 4, "ben"), TraceJob(10, 10, 1, "anna"), TraceJob(36, 10, 1, "anna")]
    assert replay(twice, state).lost == ((0, 0, 25), (0, 35, 60))
    strictly = replay([TraceJob(0, 100, 4, "ben"), TraceJob(5, 50, 1, "carl"), TraceJob(10, 10, 1, "anna")], state, "fifo")
    assert strictly.started == (35, 135, 25)


def test_hours_that_begin_again_and_again_are_waited_for_as_long_as_somebody_starts_between_them(monkeypatch):
    """How many are looked at while nothing runs is counted anew with each start."""
    monkeypatch.setattr(replays, "_HOURS", 3)

    def hours(now):
        begins = 100.0 * max(1, (now - 60) // 100 + 1)
        return (Window("x", 1, frozenset(), begins, begins + 60.0),)

    found = replay([TraceJob(0, 30, 1, "anna", time_limit=40)] * 8, host(1), hours=hours)
    assert found.started == (0, 30, 60, 160, 260, 360, 460, 560)


def test_a_fair_order():
    """Who has had least comes first; what was long ago counts less."""
    trace = [TraceJob(0, 1000, 1, "anna"), TraceJob(1, 10, 1, "anna"), TraceJob(2, 10, 1, "ben")]
    assert replay(trace, host(1)).started == (0, 1000, 1010)
    for policy in ("backfill", "fifo"):
        assert replay(trace, host(1, usage={}), policy).started == (0, 1010, 1000)
    later = [TraceJob(5000, 900, 1, "ben"), TraceJob(5001, 700, 1, "ben"), TraceJob(5002, 10, 1, "anna")]
    assert replay([trace[0], *later], host(1, usage={})).started == (0, 5000, 5900, 6600)
    assert replay([trace[0], *later], host(1, usage={}), half_life=1000.0).started == (0, 5000, 5910, 5900)


def test_policies():
    """The second job is too large for now; the third would delay nobody; the fourth is shorter than the second."""
    trace = [
        TraceJob(0, 100, 3, time_limit=100),
        TraceJob(1, 50, 4, time_limit=50),
        TraceJob(2, 98, 1, time_limit=98),
        TraceJob(3, 10, 4, time_limit=10),
    ]
    assert replay(trace, host(4)).started == (0, 100, 2, 150)
    assert replay(trace, host(4), "fifo").started == (0, 100, 150, 248)
    assert replay(trace, host(4), "shortest").started == (0, 110, 2, 100)


def test_a_job_that_cannot_be_started_is_in_nobodys_way():
    trace = [TraceJob(0, 10, 5), TraceJob(0, 10, 2, "anna"), TraceJob(1, 10, 1, "ben", ("vision",))]
    state = host(4, quotas=Quotas({"anna": Quota(1)}, {"vision": Quota(0)}))
    for policy in ("backfill", "fifo", "shortest"):
        found = replay([*trace, TraceJob(2, 10, 4, "carl")], state, policy)
        assert (found.never, found.started, [job.user for job in found.jobs]) == (3, (2.0,), ["carl"])


def test_figures():
    """Two GPUs for 20 seconds: 10 and 20 of the 40 GPU-seconds are used."""
    found = replay([TraceJob(10, 10, 1, "anna"), TraceJob(10, 10, 2, "ben", time_limit=10)], host(2))
    assert found.waits == [0, 10] and found.utilisation == 0.75 and (found.begins, found.ends) == (10, 30)
    assert found.gpu_seconds() == {"anna": 10, "ben": 20} and [*found.by_user()] == ["ben", "anna"]
    assert found.wait().mean == 5 and found.wait().longest == found.wait().p95 == 10 and found.wait().jobs == 2
    assert found.slowdown == 1.5
    assert found.over_time(4) == {"ben": [0, 0, 2, 2], "anna": [1, 1, 0, 0]}
    third = found.over_time(3)
    assert [sum(pieces) * 20 / 3 for pieces in third.values()] == pytest.approx([20, 10])
    assert third["anna"] == pytest.approx([1, 0.5, 0])


def test_progress_is_told():
    told: list[int] = []
    replay([TraceJob(float(number), 1, 1) for number in range(2500)], host(1), progress=told.append)
    assert told == [1000, 2000]


CSV = """\
submitted,run,gpus,user,group,priority,time_limit,other
2026-11-02T09:00:00+00:00,60,2,anna,vision,-3,120,x
1793610060,30,,ben,,,
5,,1,carl,,0,
"""


def test_a_csv():
    found = parse(CSV, "jobs.csv")
    assert found.jobs == (
        TraceJob(1793610000, 60, 2, "anna", ("vision",), -3, 120),
        TraceJob(1793610060, 30, 0, "ben", (), 0, 0),
    )
    assert found.left_out == 1


@pytest.mark.parametrize(
    "text",
    [
        "submitted,run,cores,memory\n0,10,2.5,3G\n0,10,2,\n",
        "submitted,run,cpu_milli,memory_mib\n0,10,2500,3072\n0,10,2000,\n",
        '[{"submitted": 0, "started": 1, "ended": 11, "options": {"millicores": 2500, "memory": 3221225472}},'
        ' {"submitted": 0, "started": 1, "ended": 11, "options": {"millicores": 2000}}]',
    ],
)
def test_cores_and_memory_of_a_trace(text):
    """They are used where the host's are counted."""
    jobs = parse(text, "x").jobs
    assert [(job.cores, job.memory) for job in jobs] == [(2500, 3 << 30), (2000, 0)]
    assert replay(jobs, host(1)).started == (0, 0)
    assert replay(jobs, host(1, supplies={CORES: Supply(4000)})).started == (0, 10)
    assert replay(jobs, host(1, supplies={MEMORY: Supply(2 << 30)})).never == 1


@pytest.mark.parametrize(
    "text",
    [
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,2,7,606,vgg19,164,30\n",
        "job_id,submit_s,run_s,gpus\n0,7.0,164,2\n",
        '[{"id": 3, "gpu_count": 2, "gpus": "device=0,1", "submitted": 7.0, "started": 10.0, "ended": 174.0}]',
        "; Version: 2\n1 7 -1 164 2 -1 -1 2 -1 -1 1 -1 -1 -1 0 -1 -1 -1\n",
        "1 7 -1 164 -1 -1 -1 2 -1 -1 1 -1 -1 -1 0 -1 -1 -1\n",
    ],
)
def test_forms_of_others(text):
    """Without time limits, each is what its job runs."""
    name = "x.swf" if "," not in text else "x"
    assert parse(text, name).jobs == (TraceJob(7, 164, 2, time_limit=164),)


def test_what_the_queue_prints():
    known = '"user": "anna", "group": "", "gpu_count": 1, "submitted": 7.5, "time_limit": 0.0, "priority": 0'
    ended = f'{{"id": 1, {known}, "started": 8.0, "ended": 9.5}}'
    waits = f'{{"id": 2, {known}, "started": 0.0, "ended": 0.0}}'
    assert parse(f"[{ended}, {waits}]", "-").jobs == (TraceJob(7.5, 1.5, 1, "anna"),)
    assert parse(f"[{ended}, {waits}]", "-").left_out == 1


@pytest.mark.parametrize(
    ("gpus", "options", "found"),
    [
        ("2,class=H100", {"gpu_class": "H100"}, "H100"),
        ("1,memory=20G", {"gpu_class": "memory=20G", "gpu_share": 20480}, "memory=20G"),
        ("1,memory=20G", {"role": "worker", "gpu_share": 20480, "shared_place": 1}, "memory=20G"),
        ("device=amd.com/gpu=0", {}, "amd.com/gpu"),
        ("2,class=amd.com/gpu", {"gpu_class": "amd.com/gpu"}, "amd.com/gpu"),
        ("device=0", {}, ""),
        ("2", {}, ""),
        ("what is this", {}, ""),
    ],
)
def test_the_class_of_a_job_of_the_queue(gpus, options, found):
    """Also where its options do not say it: who names devices, and who has a part of a GPU of those that it starts together with."""
    row = {"id": 3, "gpu_count": 2, "gpus": gpus, "options": options, "submitted": 7.0, "started": 10.0, "ended": 174.0}
    assert parse(json.dumps([row]), "-").jobs[0].gpu_class == found
    assert parse(json.dumps([row | {"class": "A100"}]), "-").jobs[0].gpu_class == (options.get("gpu_class") or "A100")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column 'run'"),
        ("run,gpus\n1,2\n", "has no column 'submitted'"),
        ("submitted,run\n", "has no jobs"),
        ("submitted,run\n1,-\n", "has no jobs"),
        ("submitted,run\n1,x\n", "x.csv: line 2: run is 'x', not a number of 0 or more"),
        ("submitted,run\n1,nan\n", "line 2: run is 'nan'"),
        ("submitted,run\n1,1e400\n", "line 2: run is"),
        ("submitted,run\n1,1\n10:99,1\n", "line 3"),
        ("submitted,run,memory\n1,1,much\n", "memory is 'much', not a size"),
        ("submitted,run,gpus\n1,1,-1\n", "gpus is '-1'"),
        ("submitted,run,gpus\n1,1,1.5\n", "gpus is '1.5', not a whole number"),
        ('submitted,run\n"1', "x.csv"),
        ("[1]", "is not a list of jobs"),
        ("{}", "is not a list of jobs"),
        ("[{", "is not JSON"),
        ("[" * 100000, "is not JSON"),
        ('[{"id": 7, "run": 1}]', "job 7: submitted is '', not a number"),
        ("; x\n1 2 3\n", "line 2: 3 fields"),
    ],
)
def test_a_trace_that_cannot_be_read(text, said):
    with pytest.raises(BadInput) as caught:
        parse(text, "x.csv")
    assert said in str(caught.value) and str(caught.value).startswith("x.csv") and caught.value.hint
