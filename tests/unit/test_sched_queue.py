"""The queue on disk: what it refuses by itself, and what survives."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from dockless.errors import SchedError, Unwritable
from dockless.sched import State, queue
from dockless.sched.jobs import AttemptState
from dockless.sched.lease import Lease, held
from dockless.sched.writer import Writer


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
    db = queue.open_queue(path)
    yield db
    db.close()


def test_settings_of_the_promise(db, path):
    assert db.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL
    assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert path.stat().st_mode & 0o777 == 0o600


def test_ids_are_never_given_out_again(db):
    assert queue.insert(db, [new_job(), new_job()], False, 1.0) == [1, 2]
    db.execute("DELETE FROM jobs")
    assert queue.insert(db, [new_job()] * 3, True, 1.0) == [3, 4, 5]
    assert [(live.job.array, live.job.index) for live in queue.live(db)] == [(3, 0), (3, 1), (3, 2)]


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
    (live,) = queue.live(queue.connect(path))
    assert (live.job.state, live.job.attempt, live.wanted, live.boot) == (State.RUNNING, 2, ("g0", "g1"), "boot")
    queue.finish(db, 1, 2, State.FAILED, 9.0, "exit code 3", {"code": 3, "signal": None}, 3)
    job = queue.job(db, 1)
    assert job is not None and job.exit_code == 3 and [a.state for a in job.attempts] == [AttemptState.VOID, AttemptState.ENDED]
    assert job.attempts[1].exit == {"code": 3, "signal": None}
    assert held(db) == [] and queue.live(db) == []
    events = [row[0] for row in db.execute("SELECT event FROM events ORDER BY seq")]
    assert events == ["submit", "start", "void", "start", "running", "ended"]


def test_a_newer_or_damaged_queue_is_refused(path, db, tmp_path):
    db.execute("PRAGMA user_version=99")
    with pytest.raises(SchedError, match="schema 99"):
        queue.open_queue(path)
    torn = tmp_path / "torn.db"
    torn.write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    with pytest.raises(SchedError, match="cannot be opened"):
        queue.open_queue(torn)


def test_a_link_in_place_of_the_queue_is_not_followed(tmp_path):
    (tmp_path / "jobs.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unwritable):
        queue.open_queue(tmp_path / "jobs.db")
    assert not (tmp_path / "elsewhere").exists()


def test_group_commit_acks_after_the_commit(path):
    writer = Writer(queue.open_queue(path))
    seen: list[bool] = []

    def one() -> None:
        reader = queue.connect(path)
        for _ in range(40):
            (number,) = writer.write(lambda db: queue.insert(db, [new_job()], False, 1.0)).result()
            seen.append(queue.job(reader, number) is not None)

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


def test_one_change_that_fails_takes_nobody_along(path):
    writer = Writer(queue.open_queue(path))
    gate = threading.Event()
    first = writer.write(lambda db: gate.wait(10))  # keeps the writer busy, so that the next three share a transaction
    good = writer.write(lambda db: queue.insert(db, [new_job()], False, 1.0))
    bad = writer.write(lambda db: (queue.insert(db, [new_job()], False, 1.0), 1 / 0))
    more = writer.write(lambda db: queue.insert(db, [new_job()], False, 1.0))
    gate.set()
    assert first.result() and good.result() == [1] and more.result() == [2]
    assert isinstance(bad.exception(), ZeroDivisionError)
    writer.close()
