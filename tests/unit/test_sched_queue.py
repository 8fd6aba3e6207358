"""The queue on disk: what it refuses by itself, and what survives."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dockless.errors import SchedError, Unwritable
from dockless.sched import State, clock
from dockless.sched.jobs import NO_OPTIONS, Attempt, AttemptState, Filter, Job, JobOptions
from dockless.sched.store import queries, queue, schema
from dockless.sched.store import writer as writer_module
from dockless.sched.store.lease import Lease, held, take
from dockless.sched.store.writer import QueueWriter


def new_job(user: str = "anna", **changes) -> queue.NewJob:
    values = {
        "uid": 1000, "user": user, "name": "", "group": "", "image": "host", "command": "true", "gpus": "", "gpu_count": 0, "wanted": (),
        "quota_groups": ("vision",), "priority": 0, "time_limit": 0.0, "on_reboot": "fail", "spec": "{}",
    }  # fmt: skip
    return queue.NewJob(**(values | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def db(path: Path):
    db = schema.open_queue(path)
    yield db
    db.close()


def test_settings_of_the_promise(db, path):
    assert db.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
    assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert db.execute("PRAGMA journal_size_limit").fetchone()[0] == 16 << 20
    reader = schema.connect(path)
    assert [one.execute("PRAGMA busy_timeout").fetchone()[0] for one in (db, reader)] == [10_000, 10_000]  # milliseconds
    reader.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_ids_are_never_given_out_again(db):
    assert queue.insert(db, [new_job(), new_job()], False, 1.0) == [1, 2]
    db.execute("DELETE FROM jobs")
    assert queue.insert(db, [new_job()] * 3, True, 1.0) == [3, 4, 5]
    assert [(live.job.array, live.job.index) for live in queries.live(db)] == [(3, 0), (3, 1), (3, 2)]


def start(db, job: int, attempt: int = 1, gpus: tuple[str, ...] = ("g0",)) -> None:
    queue.begin_attempt(db, Lease(job, attempt, gpus, 5.0), f"job-{job}-{attempt}", "boot", 1.0)


def test_a_gpu_is_never_leased_twice(db):
    queue.insert(db, [new_job(), new_job()], False, 1.0)
    start(db, 1)
    with pytest.raises(SchedError, match="leased already, to job 1"):
        start(db, 2)


def test_at_most_one_live_attempt(db):
    queue.insert(db, [new_job()], False, 1.0)
    start(db, 1)
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("INSERT INTO attempts(job,number,state,sandbox,gpus,boot,started,ticks) VALUES(1,2,'STARTING','s','[]','b',0,0)")
    with pytest.raises(SchedError, match="not PENDING any more"):
        start(db, 1, 2, ("g1",))


def test_only_known_changes_of_state(db):
    queue.insert(db, [new_job()], False, 1.0)
    with pytest.raises(SchedError, match="not STARTING any more"):
        queue.set_running(db, 1, 1, 2.0)
    with pytest.raises(SchedError, match="cannot go from PENDING to COMPLETED"):
        queue.finish(db, 1, 0, State.COMPLETED, 2.0, "", None)
    queue.finish(db, 1, 0, State.CANCELLED, 2.0, "", None)
    with pytest.raises(SchedError, match="cannot go from CANCELLED"):
        queue.finish(db, 1, 0, State.FAILED, 2.0, "", None)


def test_a_life_in_the_database(db, path):
    queue.insert(db, [new_job(gpus="2", gpu_count=2, wanted=("g0", "g1"))], False, 1.0)
    start(db, 1, 1, ("g0", "g1"))
    assert held(db) == [Lease(1, 1, ("g0", "g1"), 5.0)]
    queue.void_attempt(db, 1, 1, 6.0, "the daemon ended before the launch")
    assert held(db) == []
    start(db, 1, 2)
    queue.set_running(db, 1, 2, 7.0)
    (live,) = queries.live(schema.connect(path))
    assert (live.job.state, live.job.attempt, live.wanted, live.boot) == (State.RUNNING, 2, ("g0", "g1"), "boot")
    queue.finish(db, 1, 2, State.FAILED, 9.0, "exit code 3", {"code": 3, "signal": None}, 3)
    job = queries.job(db, 1)
    assert job is not None and job.exit_code == 3 and [a.state for a in job.attempts] == [AttemptState.VOID, AttemptState.ENDED]
    assert job.attempts[1].exit == {"code": 3, "signal": None}
    assert held(db) == [] and queries.live(db) == []
    events = [row[0] for row in db.execute("SELECT event FROM events ORDER BY seq")]
    assert events == ["submit", "start", "void", "start", "running", "ended"]


def test_every_value_comes_back_as_itself(db):
    new = new_job(
        "ben", uid=1001, name="n", group="g", image="i", command="c", gpus="2", gpu_count=2, wanted=("a", "b"), quota_groups=("q", "r"),
        priority=-3, time_limit=4.5, on_reboot="requeue", spec="[1, 2]",
    )  # fmt: skip
    queue.insert(db, [new], False, 2.0)
    assert queue.insert(db, [new, new], True, 3.0) == [2, 3]
    shown = Job(
        3, 1001, "ben", State.PENDING, name="n", group="g", image="i", command="c", gpus="2", gpu_count=2, priority=-3, time_limit=4.5,
        on_reboot="requeue", submitted=3.0, array=2, index=1,
    )  # fmt: skip
    assert queries.live(db)[2] == queries.Live(shown, ("a", "b"), ("q", "r"), False, spec_size=6)
    assert queries.live(db)[0].job == replace(shown, id=1, submitted=2.0, array=0, index=0)
    assert [live.job.id for live in queries.live(db, [3, 1])] == [1, 3]
    assert queries.job(db, 3) == shown and queries.job(db, 4) is None
    queue.begin_attempt(db, Lease(3, 1, ("a", "b"), 5.0), "box", "this boot", 77.0)
    shown = replace(shown, state=State.STARTING, started=5.0, devices=("a", "b"), attempt=1)
    assert queries.live(db)[2] == queries.Live(shown, ("a", "b"), ("q", "r"), False, "this boot", 77.0, 6)
    first = Attempt(3, 1, AttemptState.STARTING, "box", ("a", "b"), 5.0)
    assert queries.attempts(db, 3) == (first,)
    queue.set_running(db, 3, 1, 6.0, "detail")
    queue.want_cancel(db, 3, 7.0, "by ann")
    assert queries.live(db)[2].cancelled and not queries.live(db)[1].cancelled
    queue.finish(db, 3, 1, State.CANCELLED, 9.0, "why", {"code": None, "signal": 15}, 143)
    attempt = replace(first, state=AttemptState.ENDED, ended=9.0, reason="why", exit={"code": None, "signal": 15})
    assert queries.job(db, 3) == replace(
        shown, state=State.CANCELLED, reason="why", ended=9.0, exit_code=143, signal=15, attempts=(attempt,)
    )  # fmt: skip
    assert list(db.execute("SELECT at, job, attempt, event, detail FROM events ORDER BY seq")) == [
        (2.0, 1, 0, "submit", ""), (3.0, 2, 0, "submit", "2 jobs, to 3"), (5.0, 3, 1, "start", "a b"), (6.0, 3, 1, "running", "detail"),
        (7.0, 3, 0, "cancel", "by ann"), (9.0, 3, 1, "ended", "why"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "stored"), [("tür", "tür"), ("a\udcff", "a\\xff"), ("t\udcc3\udcbcr", "tür"), ("\ud800\udcff", "\\ud800\\udcff")]
)
def test_any_text_can_be_stored(db, text, stored):
    """Bytes that are not UTF-8 come from command lines, and half a character from JSON."""
    assert schema.storable(text) == stored
    queue.insert(db, [new_job(name=text)], False, 1.0)
    queue.finish(db, 1, 0, State.CANCELLED, 2.0, text, None)
    job = queries.job(db, 1)
    assert (job.name, job.reason) == (stored, stored)


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("how", [queue.requeue, queue.void_attempt])
def test_a_job_that_goes_back_has_nothing(db, how, running):
    queue.insert(db, [new_job()], False, 1.0)
    start(db, 1, 1, ("g0", "g1"))
    if running:
        queue.set_running(db, 1, 1, 6.0)
        if how is queue.void_attempt:  # it ran
            with pytest.raises(SchedError, match="is not STARTING any more"):
                queue.void_attempt(db, 1, 1, 8.0, "why")
            return
    if how is queue.requeue:
        how(db, 1, 8.0, "why")
    else:
        how(db, 1, 1, 8.0, "why")
    job = queries.job(db, 1)
    assert (job.state, job.reason, job.started, job.devices, job.attempt) == (State.PENDING, "", 0.0, (), 1)
    state = AttemptState.LOST if how is queue.requeue else AttemptState.VOID
    assert job.attempts == (Attempt(1, 1, state, "job-1-1", ("g0", "g1"), 5.0, 8.0, "why"),)
    assert held(db) == []
    start(db, 1, 2, ("g0", "g1"))


def test_another_attempt_after_one_that_ended(db):
    """Its exit record stays with the attempt; a job that waits, or has ended, is not queued again."""
    queue.insert(db, [new_job()], False, 1.0)
    with pytest.raises(SchedError, match="cannot go from PENDING to PENDING"):
        queue.requeue(db, 1, 5.0, "why")
    start(db, 1)
    queue.set_running(db, 1, 1, 6.0)
    queue.requeue(db, 1, 8.0, "preempted", {"code": None, "signal": 15})
    assert held(db) == []
    start(db, 1, 2)
    queue.finish(db, 1, 2, State.COMPLETED, 9.0, "", {"code": 0}, 0)
    job = queries.job(db, 1)
    assert [(a.number, a.state, a.reason, a.exit) for a in job.attempts] == [
        (1, AttemptState.ENDED, "preempted", {"code": None, "signal": 15}), (2, AttemptState.ENDED, "", {"code": 0})
    ]  # fmt: skip


def test_options_are_stored_where_they_differ(db, path):
    """Nothing is read or written for the many jobs that have none."""
    queue.insert(db, [new_job(), new_job(options=JobOptions("ann"))], False, 1.0)
    assert [row[0] for row in db.execute("SELECT options FROM jobs")] == ["{}", '{"held": "ann"}']
    assert [live.job.options for live in queries.live(db)] == [JobOptions(), JobOptions("ann")]
    assert queries.live(db)[0].job.options is queries.job(db, 1).options is NO_OPTIONS
    queue.set_options(db, 1, JobOptions("ben"), 2.0, "hold", "by ben")
    queue.set_options(db, 2, NO_OPTIONS, 3.0, "release", "by ann")
    assert (queries.job(db, 1).options, queries.job(db, 2).options) == (JobOptions("ben"), NO_OPTIONS)
    db.execute("UPDATE jobs SET options='{\"of_a_newer_version\": 1}' WHERE id=2")
    assert queries.live(db)[1].job.options == NO_OPTIONS
    events = list(db.execute("SELECT at, job, event, detail FROM events WHERE at > 1 ORDER BY seq"))
    assert events == [(2.0, 1, "hold", "by ben"), (3.0, 2, "release", "by ann")]


def test_how_ends_are_recorded(db):
    """With an attempt and without one, and where nobody knows how."""
    queue.insert(db, [new_job()] * 2, False, 1.0)
    start(db, 1)
    queue.finish(db, 1, 1, State.LOST, 8.0, "nobody knows", None)
    queue.finish(db, 2, 0, State.CANCELLED, 9.0, "by ann", None)
    lost, cancelled = queries.job(db, 1), queries.job(db, 2)
    assert (lost.state, lost.exit_code, lost.signal, lost.attempts[0].state, lost.attempts[0].exit) == (
        State.LOST, None, None, AttemptState.LOST, None
    )  # fmt: skip
    assert (cancelled.state, cancelled.attempts) == (State.CANCELLED, ())
    events = db.execute("SELECT at, job, attempt, event, detail FROM events WHERE at > 7 ORDER BY seq")
    assert list(events) == [(8.0, 1, 1, "lost", "nobody knows"), (9.0, 2, 0, "cancelled", "by ann")]
    with pytest.raises(SchedError, match="job 3 is not in the queue"):
        queue.finish(db, 3, 0, State.CANCELLED, 9.0, "", None)


@pytest.mark.parametrize("page", [1, 2, 3, 200])
def test_ended_jobs_the_newest_first(db, monkeypatch, page):
    """Of the same moment the one with the larger number first; however many are read at once."""
    monkeypatch.setattr(queries, "_PAGE", page)
    queue.insert(db, [new_job("ann"), new_job("ben"), new_job("ann"), new_job("ann"), new_job("ann")], False, 1.0)
    for number, at in ((1, 5.0), (2, 7.0), (3, 7.0), (4, 6.0)):
        queue.finish(db, number, 0, State.CANCELLED, at, "", None)
    assert [job.id for job in queries.ended(db, Filter(), 10)] == [3, 2, 4, 1]
    assert [job.id for job in queries.ended(db, Filter("ann"), 10)] == [3, 4, 1]
    assert [[job.id for job in queries.ended(db, Filter(), limit)] for limit in (0, 1, 2, 3, 4)] == [
        [],
        [3],
        [3, 2],
        [3, 2, 4],
        [3, 2, 4, 1],
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        Filter("ann"), Filter(group="vision"), Filter(states=(State.FAILED, State.OOM)), Filter(since=7.0), Filter(until=2.0),
        Filter("ann", "vision", (State.CANCELLED,), 5.0, 3.0), Filter("nobody"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_filter_means_the_same_of_ended_jobs_and_of_others(db, wanted):
    for at, (user, group) in enumerate([("ann", ""), ("ann", "vision"), ("ben", "vision"), ("ann", "vision")], 1):
        (number,) = queue.insert(db, [new_job(user, group=group)], False, float(at))
        start(db, number)
        queue.finish(db, number, 1, (State.FAILED, State.CANCELLED, State.OOM, State.COMPLETED)[at - 1], 4.0 + at, "", {"code": 1})
    kept = [job.id for job in queries.ended(db, Filter(), 10) if wanted.keeps(job)]
    assert [job.id for job in queries.ended(db, wanted, 10)] == kept and queries.count_ended(db, wanted) == len(kept) < 4


def test_whose_jobs_and_which_sandboxes(db):
    queue.insert(db, [new_job(uid=7), new_job(uid=8), new_job(uid=9)], False, 1.0)
    start(db, 2)
    assert (
        queries.owners(db, [1, 2, 3]) == {1: 7, 2: 8, 3: 9}
        and queries.owners(db, [3, 1, 44]) == {1: 7, 3: 9}
        and queries.owners(db, []) == {}
    )
    assert queries.has_sandbox(db, "job-2-1") and not queries.has_sandbox(db, "job-1-1")


def test_the_clock_of_the_kernel():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= clock.ticks() <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert clock.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_newer_or_damaged_queue_is_refused(path, db, tmp_path):
    db.execute("PRAGMA user_version=99")
    with pytest.raises(SchedError, match="schema 99"):
        schema.open_queue(path)
    torn = tmp_path / "torn.db"
    torn.write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    with pytest.raises(SchedError, match="cannot be opened"):
        schema.open_queue(torn)


def test_a_link_in_place_of_the_queue_is_not_followed(tmp_path):
    (tmp_path / "jobs.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unwritable):
        schema.open_queue(tmp_path / "jobs.db")
    assert not (tmp_path / "elsewhere").exists()


def test_group_commit_acks_after_the_commit(path):
    writer = QueueWriter(schema.open_queue(path))
    seen: list[bool] = []

    def one() -> None:
        reader = schema.connect(path)
        for _ in range(40):
            (number,) = writer.write(lambda db: queue.insert(db, [new_job()], False, 1.0)).result()
            seen.append(queries.job(reader, number) is not None)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert len(seen) == 160 and all(seen)
    assert writer.transactions <= 160
    with pytest.raises(SchedError):
        writer.write(lambda db: None)


def test_so_many_changes_share_a_transaction_and_no_more(path, monkeypatch):
    monkeypatch.setattr(writer_module, "MOST", 3)
    settled = []
    writer = QueueWriter(schema.open_queue(path), lambda outcome: settled.append([result for _, result, _ in outcome]))
    gate, busy = threading.Event(), threading.Event()
    writer.write(lambda db: (busy.set(), gate.wait(10)), "a future of another kind")
    assert busy.wait(10)
    for number in range(7):
        writer.write(lambda db, number=number: number, number)
    gate.set()
    writer.close()
    assert settled[1:] == [[0, 1, 2], [3, 4, 5], [6]] and writer.transactions == 4
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        writer._db.execute("SELECT 1")


def test_one_change_that_fails_takes_nobody_along(path):
    writer = QueueWriter(schema.open_queue(path))
    gate = threading.Event()
    first = writer.write(lambda db: gate.wait(10))  # keeps the writer busy, so that the next three share a transaction
    good = writer.write(lambda db: queue.insert(db, [new_job()], False, 1.0))
    bad = writer.write(lambda db: (queue.insert(db, [new_job()], False, 1.0), 1 / 0))
    more = writer.write(lambda db: queue.insert(db, [new_job()], False, 1.0))
    gate.set()
    assert first.result() and good.result() == [1] and more.result() == [2]
    assert isinstance(bad.exception(), ZeroDivisionError)
    writer.close()


@pytest.mark.parametrize("first", [1, 9, 10**15])
@pytest.mark.parametrize(("had", "wanted", "free"), [(False, False, False), (False, True, False), (True, False, False), (True, True, True)])
def test_a_gpu_is_leased_whole_or_in_shares(db, first, had, wanted, free):
    """``had``, ``wanted``: as a share. GPUs whose names begin alike are others."""
    take(db, Lease(first, 1, ("GPU-1",), 1.0, had))
    take(db, Lease(first + 1, 1, ("GPU-10",), 1.0, wanted))
    with contextlib.nullcontext() if free else pytest.raises(SchedError, match="is leased already"):
        take(db, Lease(first + 2, 1, ("GPU-1",), 1.0, wanted))
