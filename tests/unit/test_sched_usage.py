"""What was used: the daily sums against the attempts they are made of, whatever happens to jobs."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sqlite3
import threading
from collections import defaultdict
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.desk import ANN, BEN, play
from support.stand_in import until

from dockless.base.records import plain
from dockless.cli import main
from dockless.errors import BadInput
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State
from dockless.sched.jobs import AttemptState
from dockless.sched.store import queries, queue, schema, usage
from dockless.sched.store.lease import Lease
from dockless.sched.used import BY, Used

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp()
MODELS = {"g0": "H100", "g1": "H100", "g2": "A100"}
VALUES = {
    "name": "", "image": "host", "command": "true", "gpus": "", "gpu_count": 0, "wanted": (), "quota_groups": (), "priority": 0,
    "time_limit": 0.0, "on_reboot": "fail", "spec": "{}",
}  # fmt: skip


def opened(path) -> sqlite3.Connection:
    db = schema.open_queue(path)
    usage.know(db, MODELS)
    return db


def new(db, uid: int = 1, group: str = "", now: float = NOON) -> int:
    (number,) = queue.insert(db, [queue.NewJob(uid=uid, user=f"u{uid}", group=group, **VALUES)], False, now)
    return number


def start(db, job: int, attempt: int, at: float, gpus: tuple[str, ...]) -> None:
    queue.begin_attempt(db, Lease(job, attempt, gpus, at), f"box-{job}-{attempt}", "boot", 1.0)
    queue.set_running(db, job, attempt, at)


def test_what_is_forgotten_is_still_known_by_day(tmp_path):
    """Of each user and day what no remembered attempt accounts for, also where attempts go over midnight."""
    db = opened(tmp_path / "jobs.db")

    def ran(uid: int, began: float, seconds: float, gpus: int = 1) -> int:
        (job,) = queue.insert(db, [queue.NewJob(**VALUES | {"uid": uid, "user": f"u{uid}", "group": "", "gpu_count": gpus})], False, began)
        start(db, job, 1, began, ("g0", "g1")[:gpus])
        queue.finish(db, job, 1, State.COMPLETED, began + seconds, "", {"code": 0}, 0)
        return job

    gone = [ran(1, NOON, 600), ran(1, NOON, 86400, 2), ran(2, NOON + 86400, 50)]
    kept = [ran(1, NOON + 700, 300), ran(2, NOON, 86400 + 60, 2), ran(3, NOON, 5)]
    assert [*usage.forgotten(db, NOON, NOON + 99 * 86400)] == []
    for number in gone:
        for table, column in (("attempts", "job"), ("jobs", "id")):
            db.execute(f"DELETE FROM {table} WHERE {column}=?", (number,))
    midnight = NOON + 43200
    now = NOON + 86400 + 100
    assert sorted(usage.forgotten(db, NOON - 86400, now)) == [(1, midnight, 600 + 2 * 43200), (1, now, 2 * 43200), (2, now, 50)]
    assert sorted(usage.forgotten(db, NOON + 86400, now)) == [(1, now, 2 * 43200), (2, now, 50)]
    assert all(queries.job(db, number) for number in kept)


def test_an_attempt_over_midnight(tmp_path):
    """Each day has its part, each model its GPUs; the job and the attempt count on the day on which it began."""
    db = opened(tmp_path / "jobs.db")
    job = new(db, group="vision")
    start(db, job, 1, NOON, ("g0", "g1", "g2"))
    queue.finish(db, job, 1, State.COMPLETED, NOON + 1.5 * 86400 + 0.25, "", {"code": 0}, 0)

    def by(what):
        return [(used.key, used.gpu_seconds, used.cpu_seconds, used.jobs, used.attempts) for used in usage.report(db, 0, 9e9, NOON, what)]

    assert by("day") == [("2026-11-23", 3 * 43200, 0, 1, 1), ("2026-11-24", 3 * 86400, 0, 0, 0), ("2026-11-25", 0.75, 0, 0, 0)]
    assert by("gpu") == [("H100", 2 * 129600.25, 0, 0, 0), ("A100", 129600.25, 0, 1, 1)]
    assert by("user") == [("u1", 3 * 129600.25, 0, 1, 1)] and by("group") == [("vision", 3 * 129600.25, 0, 1, 1)]
    assert by("week") == [("2026-W48", 3 * 129600.25, 0, 1, 1)] and by("month") == [("2026-11", 3 * 129600.25, 0, 1, 1)]
    only = usage.report(db, NOON + 86400, NOON + 86400, NOON, "user")
    assert only == [Used("u1", 3 * 86400, 0, 0, 0)]
    start(db, new(db), 1, NOON, ())
    assert usage.report(db, NOON - 86400, NOON - 86400, NOON + 5, "user") == []  # nor what began after, and runs


def test_what_a_daemon_finds_when_it_comes_back(tmp_path):
    """Its program ended before; a clock that was set back takes nothing away, and what never ran is not counted."""
    db = opened(tmp_path / "jobs.db")
    ends = [(NOON + 100, {"ended": NOON + 40}, 40), (NOON + 100, {"ended": NOON - 9}, 0), (NOON + 30, {"ended": NOON + 40}, 30),
            (NOON - 50, None, 0), (NOON + 7, {"ended": 0.0}, 7)]  # fmt: skip
    for now, record, seconds in ends:
        job = new(db)
        start(db, job, 1, NOON, ())
        queue.finish(db, job, 1, State.FAILED, now, "", record)
        (attempt,) = queries.attempts(db, job)
        assert attempt.ended - attempt.started == seconds
    job = new(db)
    queue.begin_attempt(db, Lease(job, 1, (), NOON), "box", "boot", 1.0)
    queue.void_attempt(db, job, 1, NOON + 1000, "why")
    assert usage.report(db, NOON, NOON, NOON, "user") == [Used("u1", 0, 77, 5, 5)]
    start(db, job, 2, NOON + 2000, ())
    assert usage.report(db, NOON, NOON, NOON + 2001.5, "user") == [Used("u1", 0, 78.5, 6, 6)]
    queue.requeue(db, job, NOON + 2002, "why")
    assert usage.report(db, NOON, NOON, NOON + 9999, "user") == [Used("u1", 0, 79, 6, 6)]
    start(db, job, 3, NOON + 3000, ())
    assert usage.report(db, NOON, NOON, NOON + 3000, "user") == [Used("u1", 0, 79, 6, 7)]


def test_a_part_of_a_gpu(tmp_path):
    """Counts as that, day by day, also for what is forgotten."""
    db = opened(tmp_path / "jobs.db")
    for uid, part in ((1, 0.25), (1, 0.75), (2, 1 / 3)):
        (job,) = queue.insert(db, [queue.NewJob(**VALUES | {"uid": uid, "user": f"u{uid}", "group": "", "gpu_count": 1})], False, NOON)
        queue.begin_attempt(db, Lease(job, 1, (f"g{uid}",), NOON, True, part), f"box-{job}", "boot", 1.0)
        queue.set_running(db, job, 1, NOON)
        if uid == 2:
            now = usage.report(db, NOON, NOON, NOON + 10, "user")
            assert [(used.key, used.gpu_seconds) for used in now] == [("u1", 43200), ("u2", 3.333)]
        queue.finish(db, job, 1, State.COMPLETED, NOON + 86400, "", None)
    assert [(used.key, used.gpu_seconds) for used in usage.report(db, NOON, NOON, NOON, "user")] == [("u1", 43200), ("u2", 14400)]
    assert sum(seconds for *_, seconds in queries.gpu_time(db, NOON)) == pytest.approx(86400 * 4 / 3)
    assert [*usage.forgotten(db, NOON, NOON + 2 * 86400)] == []
    db.execute("DELETE FROM attempts WHERE job=1")
    assert sum(seconds for _, _, seconds in usage.forgotten(db, NOON, NOON + 2 * 86400)) == 86400 / 4


def test_leases_outside_the_queue_over_midnight(tmp_path):
    """They are a part of the GPU time, told apart; each day has its own, and a fair order that begins later knows them."""
    db = opened(tmp_path / "jobs.db")
    job = new(db)
    start(db, job, 1, NOON, ("g0",))
    queue.finish(db, job, 1, State.COMPLETED, NOON + 10, "", None)
    midnight = NOON + 43200
    for _ in range(2):
        usage.count_outside(db, [(1, "u1", "lab", midnight - 2, midnight + 3, (("g1", 1.0), ("g2", 0.25)))])
    usage.count_outside(db, [(2, "u2", "", NOON, NOON + 1, (("gone", 1.0),))])
    db.execute("INSERT INTO outside VALUES(?,3,'u3','H100',2000)", (int(NOON // 86400),))  # of an older daemon

    def by(what):
        return {used.key: (used.gpu_seconds, used.outside_seconds, used.jobs) for used in usage.report(db, 0, 9e9, NOON, what)}

    assert by("user") == {"u1": (22.5, 12.5, 1), "u2": (1, 1, 0), "u3": (2, 2, 0)}
    assert by("group") == {"lab": (12.5, 12.5, 0), "": (13, 3, 1)}
    assert by("day") == {"2026-11-23": (18, 8, 1), "2026-11-24": (7.5, 7.5, 0)}
    assert by("gpu") == {"H100": (22, 12, 1), "A100": (2.5, 2.5, 0), "unknown": (1, 1, 0)}
    assert sorted(usage.outside(db, NOON, midnight + 4)) == [(1, midnight, 5), (1, midnight + 4, 7.5), (2, midnight, 1), (3, midnight, 2)]


def test_it_stays_when_jobs_are_forgotten(tmp_path):
    """And when a GPU is there no more; one that nobody has ever seen is of an unknown model."""
    db = opened(tmp_path / "jobs.db")
    for gpu in ("g2", "gone"):
        job = new(db)
        start(db, job, 1, NOON, (gpu,))
        queue.finish(db, job, 1, State.COMPLETED, NOON + 10, "", None)
    usage.know(db, {"g0": "B200"})
    assert queue.forget(db, NOON + 100, 10, 10)[0] == 2 and queries.job(db, 1) is None
    assert usage.report(db, NOON, NOON, NOON, "gpu") == [Used("A100", 10, 0, 1, 1), Used("unknown", 10, 0, 1, 1)]


def test_a_queue_that_did_not_count(tmp_path):
    """What it remembers is counted when it is opened."""
    db = opened(tmp_path / "jobs.db")
    first, second = new(db), new(db)
    start(db, first, 1, NOON, ("g0",))
    queue.finish(db, first, 1, State.COMPLETED, NOON + 10, "", None)
    start(db, second, 1, NOON, ("g1",))
    queue.requeue(db, second, NOON + 3, "the host was rebooted")
    start(db, second, 2, NOON + 3, ("g1",))
    for statement in (
        "DROP TABLE outside",
        "DROP TABLE outside_by_group",
        "ALTER TABLE attempts DROP COLUMN part",
        "DROP TABLE usage",
        "DROP TABLE gpu_models",
        "ALTER TABLE jobs DROP COLUMN options",
        "PRAGMA user_version=2",
    ):
        db.execute(statement)
    db.close()
    again = opened(tmp_path / "jobs.db")
    assert usage.report(again, NOON, NOON, NOON + 5, "user") == [Used("u1", 15, 0, 2, 3)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("new", "start", "finish", "void", "requeue", "forget")),
        st.integers(0, 5),
        st.floats(0, 2.6e5, allow_nan=False),
        st.sampled_from([(), ("g0",), ("g1", "g2"), ("g0", "g1", "g2"), ("other",)]),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_the_sums_are_those_of_the_attempts(steps):
    """To the millisecond, and by everything; what runs is counted the same as what ended at this moment."""
    db = _in_memory()
    now, spans, numbers = NOON, {}, []
    for what, which, pause, gpus in steps:
        now += pause
        job = numbers[which % len(numbers)] if numbers else 0
        if what == "new":
            numbers.append(new(db, which % 3, ("", "vision")[which % 2], now))
            continue
        found = queries.job(db, job) if job else None
        if found is None:
            continue
        if what == "start" and found.state is State.PENDING and not _taken(db, gpus):
            start(db, job, found.attempt + 1, now, gpus)
            spans[job, found.attempt + 1] = (now, None, gpus, found.user, found.group)
        elif what == "void" and found.state is State.PENDING and not _taken(db, gpus):
            queue.begin_attempt(db, Lease(job, found.attempt + 1, gpus, now), "box", "boot", 1.0)
            queue.void_attempt(db, job, found.attempt + 1, now, "why")
        elif what in ("finish", "requeue") and found.state is State.RUNNING:
            if what == "finish":
                queue.finish(db, job, found.attempt, State.FAILED, now, "why", None)
            else:
                queue.requeue(db, job, now, "why")
            spans[job, found.attempt] = (spans[job, found.attempt][0], now, *spans[job, found.attempt][2:])
        elif what == "forget":
            queue.forget(db, now, 100, 100)
    expected = defaultdict(lambda: [0, 0])
    for began, ended, gpus, user, group in spans.values():
        length = round((now if ended is None else ended) * 1000) - round(began * 1000)
        for key in (("user", user), ("group", group)):
            expected[key][0] += length * len(gpus)
            expected[key][1] += 0 if gpus else length
    for kind in ("user", "group"):
        rows = usage.report(db, NOON, now, now, kind)
        assert {(kind, used.key): [round(used.gpu_seconds * 1000), round(used.cpu_seconds * 1000)] for used in rows} == {
            key: value for key, value in expected.items() if key[0] == kind
        }
    sums = [[sum(getattr(used, name) for used in usage.report(db, NOON, now, now, kind)) for name in ("jobs", "attempts")] for kind in BY]
    assert sums == [[len({job for job, _ in spans}), len(spans)]] * len(BY)
    whole = [round(sum(used.gpu_seconds * 1000 for used in usage.report(db, NOON, now, now, kind))) for kind in BY]
    assert len(set(whole)) == 1
    db.close()


def _taken(db, gpus) -> bool:
    held = {row[0] for row in db.execute("SELECT gpu FROM leases")}
    return bool(held.intersection(gpus))


def _in_memory() -> sqlite3.Connection:
    db = schema.connect(":memory:")
    for statement in schema.SCHEMA:
        db.execute(statement)
    usage.know(db, MODELS)
    return db


def test_reports_keep_no_job_from_ending(tmp_path, monkeypatch):
    """Whoever asks for as many as she has connections."""
    may = threading.Event()
    monkeypatch.setattr(usage, "report", lambda *_: may.wait() and [])

    async def story(desk):
        asked = [asyncio.ensure_future(desk.engine.used(0.0, 1.0, "user")) for _ in range(40)]
        try:
            (number,) = await desk.submit(ANN, JobSpec(Spec(argv=("true",))))
            box = await desk.runs(number)
            box.end(Exit(0, None))
            await until(lambda: number not in desk.engine.entries)
        finally:
            may.set()
        assert await asyncio.gather(*asked) == [[]] * 40

    play(tmp_path, story)


def test_how_it_is_asked_and_shown(tmp_path, monkeypatch, capfd):
    """Everybody may ask, as everybody sees the queue; in hours for people, in seconds for programs."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")

    async def story(desk):
        jobs = await desk.submit(ANN, JobSpec(Spec(argv=("true",)), gpus="1", group="vision"), JobSpec(Spec(argv=("true",))))
        boxes = [await desk.runs(number) for number in jobs]
        for box in boxes:
            box.end(None)
        await desk(ANN, lambda client: client.wait_many(jobs))
        usage_of = {by: await desk(BEN, lambda client, by=by: client.usage(by=by)) for by in BY}
        assert [(used.key, used.jobs, used.attempts) for used in usage_of["user"]] == [("ann", 2, 2)]
        assert {used.key for used in usage_of["gpu"]} == {"Simulated GPU", ""}
        assert {used.key for used in usage_of["group"]} == {"vision", ""}
        assert len(usage_of["day"]) in (1, 2) and usage_of["user"][0].gpu_seconds > 0 < usage_of["user"][0].cpu_seconds
        assert await desk(BEN, lambda client: client.usage(since=0.0, until=86400.0)) == []
        assert "'moon'" in await desk.refused(BadInput, BEN, lambda client: client.usage(by="moon"))
        assert "'since'" in await desk.refused(BadInput, BEN, lambda client: client.usage(since=1e12))
        state = {row[0] for row in desk.engine.reader.execute("SELECT state FROM attempts")}
        assert state == {str(AttemptState.LOST)}

    play(tmp_path, story)
    found = [Used("ann,b", 5400.5, 0.0, 1, 2, 1800.0), Used("", 0.0, 36.0, 1, 1)]
    monkeypatch.setattr("dockless.sched.wire.client.Client._open", lambda self: None)
    monkeypatch.setattr("dockless.sched.wire.client.Client.usage", lambda self, **how: found)
    assert main(["usage", "--by", "group", "--since", "7d"]) == 0
    assert [line.split() for line in capfd.readouterr().out.splitlines()] == [
        ["GROUP", "GPU-HOURS", "OUTSIDE", "CPU-JOB-HOURS", "JOBS", "ATTEMPTS"],
        ["ann,b", "1.50", "0.50", "0.00", "1", "2"],
        ["-", "0.00", "0.00", "0.01", "1", "1"],
    ]
    assert main(["usage", "--csv"]) == 0
    rows = [*csv.reader(io.StringIO(capfd.readouterr().out))]
    assert rows == [
        ["user", "gpu_seconds", "cpu_seconds", "jobs", "attempts", "outside_seconds"],
        ["ann,b", "5400.5", "0.0", "1", "2", "1800.0"],
        ["", "0.0", "36.0", "1", "1", "0.0"],
    ]
    assert main(["usage", "--json"]) == 0 and json.loads(capfd.readouterr().out) == plain(found)
    assert main(["usage", "--json", "--csv"]) == 125
    assert main(["usage", "--by", "moon"]) == 125
