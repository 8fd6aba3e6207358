"""What the queue keeps and for how long: shared specs, ended jobs, their output; and how an older queue becomes one of these."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.stand_in import until

from dockless.sched import State
from dockless.sched.engine.admission.per_user import PerUser
from dockless.sched.engine.lifecycle import housekeeping
from dockless.sched.jobs import NO_OPTIONS, Filter
from dockless.sched.store import queries, queue, schema
from dockless.sched.store.kept import Kept
from dockless.sched.store.queue import NewJob

BIG = json.dumps({"spec": {"env": [["X", "x" * 100_000]]}})


def new(uid: int = 1000, spec: str = "{}") -> NewJob:
    return NewJob(uid, f"user-{uid}", "", "", "host", "true", "", 0, (), (), 0, 0.0, "fail", spec)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def db(path: Path):
    db = schema.open_queue(path)
    db.execute("PRAGMA synchronous=OFF")
    yield db
    db.close()


def specs(db) -> int:
    return int(db.execute("SELECT COUNT(*) FROM specs").fetchone()[0])


def end(db, number: int, at: float) -> None:
    queue.finish(db, number, 0, State.CANCELLED, at, "", None)


def test_an_array_has_one_spec(db, path):
    ids = queue.insert(db, [new(spec=BIG)] * 1000, True, 1.0)
    assert specs(db) == 1 and path.stat().st_size + Path(f"{path}-wal").stat().st_size < 60 * len(BIG)
    assert queries.spec(db, ids[0]) == queries.spec(db, ids[-1]) == BIG
    assert {live.spec_size for live in queries.live(db)} == {len(BIG)}
    for number in ids[:-1]:
        end(db, number, 2.0)
    queue.forget(db, 3.0, 1000, 1000)
    assert queries.spec(db, ids[-1]) == BIG
    end(db, ids[-1], 2.0)
    assert specs(db) == 1
    queue.forget(db, 3.0, 1000, 1000)
    assert specs(db) == 0


def test_of_ended_jobs_the_newest_specs_are_kept(db):
    """As many as fit; one that a job needs which has not ended stays in any case."""
    first, second, third = (queue.insert(db, [new(1, spec=letter * 10)], False, 1.0)[0] for letter in "abc")
    array = queue.insert(db, [new(1, spec="d" * 10)] * 3, True, 1.0)
    others = queue.insert(db, [new(2, spec="e" * 10)], False, 1.0)[0]
    for at, number in enumerate((first, third, second, *array[:2], others), 10):
        end(db, number, float(at))
    queue.shed(db, 1, 30)
    assert [queries.spec(db, number)[:1] for number in (first, second, third, *array, others)] == ["", "b", "c", "d", "d", "d", "e"]
    queue.shed(db, 1, 5)
    assert [queries.spec(db, number)[:1] for number in (second, third, *array, others)] == ["", "", "", "", "d", "e"] and specs(db) == 2


def test_equal_jobs_of_one_submit_share_and_others_do_not(db):
    queue.insert(db, [new(spec="a"), new(spec="b"), new(spec="a")], False, 1.0)
    queue.insert(db, [new(spec="a")], False, 1.0)
    assert specs(db) == 3 and [queries.spec(db, number) for number in (1, 2, 3, 4)] == ["a", "b", "a", "a"]
    end(db, 1, 2.0)
    assert queries.spec(db, 3) == "a"


def test_old_jobs_are_forgotten_and_nothing_else(db):
    ids = queue.insert(db, [new()] * 5, False, 1.0)
    for number, at in zip(ids[:4], (10.0, 20.0, 30.0, 40.0), strict=True):
        end(db, number, at)
    assert queue.forget(db, 25.0, 1000, 500) == (2, [])
    assert [number for number in ids if queries.job(db, number)] == [3, 4, 5]
    assert {row[0] for row in db.execute("SELECT job FROM events")} == {3, 4}
    assert queue.forget(db, 25.0, 1000, 500) == (0, [])
    assert queue.insert(db, [new()], False, 1.0) == [6]


def test_of_each_user_so_many_are_remembered(db):
    many = queue.insert(db, [new(1)] * 20, False, 1.0)
    few = queue.insert(db, [new(2)] * 4, False, 1.0)
    for at, number in enumerate([*few, *many], 100):
        end(db, number, float(at))
    rounds = []
    while (count := queue.forget(db, 0.0, 5, 7)[0]) > 0:
        rounds.append(count)
    assert rounds == [7, 7, 1]
    assert [number for number in many if queries.job(db, number)] == many[-5:] and all(queries.job(db, number) for number in few)


def test_so_many_are_forgotten_at_once_and_no_more(db):
    """Whether they are too old or too many, of however many users; each counts once."""
    for uid in (1, 2, 3):
        for number in queue.insert(db, [new(uid)] * 4, False, 1.0):
            end(db, number, float(number))
    rounds = []
    while (count := queue.forget(db, 3.0, 2, 3)[0]) > 0:
        rounds.append((count, [number for number in range(1, 13) if queries.job(db, number)]))
    assert rounds == [(3, [3, 4, 6, 7, 8, 9, 10, 11, 12]), (3, [3, 4, 7, 8, 11, 12])]


def test_the_sandboxes_of_the_forgotten_are_named(db):
    from dockless.sched.store.lease import Lease

    (number,) = queue.insert(db, [new()], False, 1.0)
    queue.begin_attempt(db, Lease(number, 1, (), 2.0), "job-1-1-abc", "boot", 1.0)
    queue.finish(db, number, 1, State.FAILED, 3.0, "", {"code": 1})
    assert queue.forget(db, 100.0, 0, 500) == (1, ["job-1-1-abc"])
    assert queries.attempts(db, number) == ()


def test_room_goes_back_to_the_disk(db, path):
    ids = queue.insert(db, [new(spec=f"{i:200000}") for i in range(40)], False, 1.0)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    full = path.stat().st_size
    for number in ids:
        end(db, number, 2.0)
    queue.forget(db, 3.0, 1000, 1000)
    while queue.give_back(db, 100):
        pass
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size < full / 10


# As of version 1, where each job had a copy of its spec.
V1 = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs(id INTEGER PRIMARY KEY AUTOINCREMENT, uid INTEGER NOT NULL, user TEXT NOT NULL, state TEXT NOT NULL,
 reason TEXT NOT NULL DEFAULT '', name TEXT NOT NULL, grp TEXT NOT NULL, image TEXT NOT NULL, command TEXT NOT NULL,
 gpus TEXT NOT NULL, gpu_count INTEGER NOT NULL, wanted TEXT NOT NULL, quota_groups TEXT NOT NULL, priority INTEGER NOT NULL,
 time_limit REAL NOT NULL, on_reboot TEXT NOT NULL, submitted REAL NOT NULL, started REAL NOT NULL DEFAULT 0,
 ended REAL NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0, exit_code INTEGER, signal INTEGER, array INTEGER NOT NULL,
 idx INTEGER NOT NULL, devices TEXT NOT NULL DEFAULT '[]', cancelled INTEGER NOT NULL DEFAULT 0, spec TEXT NOT NULL);
CREATE INDEX jobs_live ON jobs(state) WHERE state IN ('PENDING','STARTING','RUNNING');
CREATE INDEX jobs_ended ON jobs(ended) WHERE ended > 0;
CREATE TABLE attempts(job INTEGER NOT NULL, number INTEGER NOT NULL, state TEXT NOT NULL, sandbox TEXT NOT NULL, gpus TEXT NOT NULL,
 boot TEXT NOT NULL, started REAL NOT NULL, ticks REAL NOT NULL, ended REAL NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '', exit TEXT,
 PRIMARY KEY(job, number)) WITHOUT ROWID;
CREATE UNIQUE INDEX one_live_attempt ON attempts(job) WHERE state IN ('STARTING','RUNNING');
CREATE TABLE leases(gpu TEXT PRIMARY KEY, job INTEGER NOT NULL, attempt INTEGER NOT NULL, since REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE events(seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, job INTEGER NOT NULL, attempt INTEGER NOT NULL,
 event TEXT NOT NULL, detail TEXT NOT NULL DEFAULT '');
INSERT INTO meta VALUES('queue', 'cafe');
PRAGMA user_version=1;
"""


def old_queue(path: Path) -> None:
    old = sqlite3.connect(path, isolation_level=None)
    old.execute("PRAGMA synchronous=OFF")
    old.execute("PRAGMA journal_mode=WAL")
    old.executescript(V1)
    columns = (
        "uid, user, state, name, grp, image, command, gpus, gpu_count, wanted, quota_groups, priority, time_limit, on_reboot, submitted,"
        " ended, array, idx, spec"
    )
    rows = [("COMPLETED", 5.0, 0, 0, BIG)] * 3 + [("PENDING", 0.0, 4, i, BIG) for i in range(50)] + [("PENDING", 0.0, 0, 0, "own")] * 2
    for state, ended, array, index, spec in rows:
        old.execute(
            f"INSERT INTO jobs({columns}) VALUES(1, 'u', ?, '', '', 'host', 'true', '', 0, '[]', '[]', 0, 0, 'fail', 1.0, ?, ?, ?, ?)",
            (state, ended, array, index, spec),
        )
    old.close()


def test_a_round(monkeypatch):
    """In small steps: others' changes come in between."""
    monkeypatch.setattr(housekeeping.time, "time", lambda: 100 * 86400.0)
    forgotten = [(500, ["job-1-1-cafe", "job-2-1-cafe"]), (3, ["job-3-1-cafe"]), (0, [])]
    steps, more = [], [True, True, False]

    async def write(change):
        return change("db")

    async def clear_left(engine):
        steps.append(("clear", engine))

    kept = SimpleNamespace(remove=lambda name: steps.append(("remove", name)), prune=lambda before: steps.append(("prune", before)))
    config = SimpleNamespace(keep_jobs_days=10.0, keep_jobs=7, kept_since=lambda: 55.0, per_user_size=9)
    keeper = SimpleNamespace(config=config, write=write, kept=kept, left_specs={1001: 30})
    monkeypatch.setattr(queue, "shed", lambda *how, **more: steps.append(("shed", *how, *more.values())))
    monkeypatch.setattr(queue, "forget", lambda *how: steps.append(("forget", *how)) or forgotten.pop(0))
    monkeypatch.setattr(queue, "give_back", lambda *how: steps.append(("give back", *how)) or more.pop(0))
    monkeypatch.setattr(housekeeping.remains, "clear_left", clear_left)
    asyncio.run(housekeeping.one_round(keeper))
    forget = ("forget", "db", 90 * 86400.0, 7, 500)
    assert steps == [
        forget, ("remove", "job-1-1-cafe"), ("remove", "job-2-1-cafe"), forget, ("remove", "job-3-1-cafe"), forget,
        ("shed", "db", 1001, 9), *[("give back", "db", 256)] * 3, ("prune", 55.0), ("clear", keeper),
    ]  # fmt: skip
    assert not keeper.left_specs


def test_a_round_every_hour_and_after_many_ends(monkeypatch, capfd):
    """One that fails is said, and the next comes all the same."""
    rounds = []
    keeper = SimpleNamespace(ends=5, many_ended=asyncio.Event())

    async def one_round(engine):
        rounds.append(engine.ends)
        if len(rounds) == 2:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(housekeeping, "one_round", one_round)

    async def resting(count):
        await until(lambda: len(rounds) >= count)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(rounds) == count and keeper.ends == 0 and not keeper.many_ended.is_set()

    async def play():
        task = asyncio.ensure_future(housekeeping.keep_house(keeper))
        await resting(1)
        keeper.ends = 7
        keeper.many_ended.set()
        await resting(2)
        assert rounds == [5, 7] and "trying again in an hour" in capfd.readouterr().err
        monkeypatch.setattr(housekeeping, "EVERY", 0.001)
        keeper.many_ended.set()
        await until(lambda: len(rounds) > 5)
        task.cancel()

    asyncio.run(play())


def to_version_2(path: Path) -> None:
    db = schema.connect(path)
    db.execute("PRAGMA auto_vacuum=INCREMENTAL")
    schema._upgrade_1(db)
    assert db.execute("PRAGMA user_version").fetchone()[0] == 2
    db.close()


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_queue_is_taken_over(path, version):
    old_queue(path)
    before = path.stat().st_size
    if version == 2:
        to_version_2(path)
    db = schema.open_queue(path)
    assert db.execute("PRAGMA user_version").fetchone()[0] == schema.VERSION and queries.queue_id(db) == "cafe"
    assert specs(db) == 3 and len(queries.live(db)) == 52 and len(list(queries.ended(db, Filter(), 100))) == 3
    assert [queries.spec(db, number) for number in (4, 53, 54, 55)] == [BIG, BIG, "own", "own"]
    assert db.execute("PRAGMA auto_vacuum").fetchone()[0] == 2
    fresh = sqlite3.connect(":memory:")
    for statement in schema.SCHEMA:
        fresh.execute(statement)

    def shape(db: sqlite3.Connection) -> dict[str, set[str]]:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'index')")]
        return {name: {row[1] or row[2] for row in db.execute(f"PRAGMA table_info({name})")} for name in names}

    assert shape(db) == shape(fresh)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size < before / 10
    assert queue.insert(db, [new()], False, 1.0) == [56]
    assert {live.job.options for live in queries.live(db)} == {NO_OPTIONS}
    db.close()
    schema.open_queue(path).close()


def test_an_older_queue_keeps_its_size_where_there_is_no_room_for_a_copy(path):
    class Full(schema._Connection):
        def execute(self, sql, parameters=(), /):
            if sql == "VACUUM":
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, parameters)

    old_queue(path)
    db = sqlite3.connect(path, isolation_level=None, factory=Full)
    schema._upgrade_1(db)
    assert db.execute("PRAGMA user_version").fetchone()[0] == 2 and specs(db) == 3
    db.close()


def test_per_user(db):
    per_user = PerUser()
    queue.insert(db, [new(1, "x" * 100)] * 3, True, 1.0)
    queue.insert(db, [new(1, "y" * 7), new(2, "z")], False, 1.0)
    lives = queries.live(db)
    for live in lives:
        per_user.enter(live)
    assert (per_user.jobs, per_user.size) == ({1: 4, 2: 1}, {1: 107, 2: 1})
    with per_user.coming(2, 10, 20):
        assert (per_user.jobs[2], per_user.size[2]) == (11, 21)
    assert (per_user.jobs, per_user.size) == ({1: 4, 2: 1}, {1: 107, 2: 1})
    for live in lives[:2]:
        per_user.leave(live)
    assert (per_user.jobs[1], per_user.size[1]) == (2, 107)
    for live in lives[2:]:
        per_user.leave(live)
    assert not per_user.jobs and not per_user.size and not per_user._of_spec


def write(directory: Path, name: str, size: int, at: float) -> None:
    for suffix in (".log.1", ".log"):
        (directory / (name + suffix)).write_bytes(b"x" * (size // 2))
        os.utime(directory / (name + suffix), (at, at))


def names(directory: Path) -> set[str]:
    return {path.name.split(".")[0] for path in directory.iterdir() if path.is_file()}


def test_a_users_oldest_output_goes_first(tmp_path):
    kept = Kept(tmp_path)
    for number in range(1, 6):
        write(tmp_path, f"job-{number}-1-cafe", 1000, number)
    kept.look(lambda numbers: {number: 8 if number == 2 else 7 for number in numbers}, "cafe", 0.0)
    assert kept.trim(7, 2000) == 2 and names(tmp_path) == {"job-2-1-cafe", "job-4-1-cafe", "job-5-1-cafe"}
    write(tmp_path, "job-6-1-cafe", 9000, 6)
    kept.add(7, "job-6-1-cafe")
    assert kept.trim(7, 2000) == 2 and names(tmp_path) == {"job-2-1-cafe", "job-6-1-cafe"}
    assert kept.prune(5.0) == 1 and names(tmp_path) == {"job-6-1-cafe"}


def test_what_a_user_may_have_kept(tmp_path):
    """So much and no more; the newest whatever it takes; each counts once, and what is empty not at all."""
    kept = Kept(tmp_path)
    for number in (1, 2, 3):
        write(tmp_path, f"job-{number}-1-cafe", 1000, number)
        kept.add(7, f"job-{number}-1-cafe", float(number))
        kept.add(7, f"job-{number}-1-cafe")
    (tmp_path / "job-4-1-cafe.log").touch()
    kept.add(8, "job-4-1-cafe")
    kept.add(8, "job-5-1-cafe")
    assert (kept.trim(8, 0), kept.trim(9, 0), kept.trim(7, 3000)) == (0, 0, 0)
    assert kept.trim(7, 2999) == 1 and kept.trim(7, 2000) == 0
    assert kept.prune(2.0) == 0 and kept.prune(2.5) == 1 and kept.trim(7, 0) == 0
    assert names(tmp_path) == {"job-3-1-cafe", "job-4-1-cafe"}
    kept.remove("job-3-1-cafe")
    kept.remove("job-3-1-cafe")
    assert names(tmp_path) == {"job-4-1-cafe"} and not kept._bytes and not kept._of_user


def test_when_it_came_is_when_it_was_added(tmp_path, monkeypatch):
    monkeypatch.setattr("dockless.sched.store.kept.time.time", lambda: 50.0)
    kept = Kept(tmp_path)
    write(tmp_path, "job-1-1-cafe", 10, 1.0)
    kept.add(7, "job-1-1-cafe")
    assert kept.prune(50.0) == 0 and kept.prune(50.5) == 1


def test_output_of_the_forgotten_and_of_old_queues_goes(tmp_path):
    for name, at in (("job-1-1-cafe", 9.0), ("job-2-1-cafe", 9.0), ("job-1-1-dead", 4.9), ("job-2-1-dead", 5.0)):
        write(tmp_path, name, 10, at)
    for name in ("job-x-1-cafe", "note-2-1-cafe"):
        write(tmp_path, name, 10, 9.0)
    kept = Kept(tmp_path)
    asked = []
    kept.look(lambda numbers: asked.append(numbers) or {2: 7}, "cafe", 5.0)
    assert asked == [{1, 2}]  # of a million jobs only those whose output is here
    assert names(tmp_path) == {"job-2-1-cafe", "job-2-1-dead", "note-2-1-cafe"}
    assert kept.prune(100.0) == 1 and names(tmp_path) == {"job-2-1-dead", "note-2-1-cafe"}
