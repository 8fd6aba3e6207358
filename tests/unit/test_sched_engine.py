"""The engine's promises, step by step, with a launcher that starts nothing."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from support.stand_in import DEADLINE, Box, check, engine, left_running, plain, until

from dockless.errors import CommandNotFound, SchedError
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import State, clock
from dockless.sched.callers import Caller
from dockless.sched.config import Config
from dockless.sched.engine import attempts, outage, queue_state
from dockless.sched.engine import engine as engine_module
from dockless.sched.engine.lifecycle import ending
from dockless.sched.engine.lifecycle.ending import OVERDUE
from dockless.sched.jobs import Job
from dockless.sched.store import queries, queue, schema
from dockless.sched.store.lease import Lease, held
from dockless.sched.store.queries import Live

ME = Caller(0, "root", frozenset(), True)
pytestmark = pytest.mark.usefixtures("two_gpus")


def test_nothing_is_launched_before_its_lease_is_on_disk(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            await until(lambda: launcher.boxes)  # the way is known to work
            next(iter(launcher.boxes.values())).end(Exit(0, None))
            await until(lambda: not running.entries)
            launcher.boxes.clear()
            gate = threading.Event()
            try:
                (number,) = await running.submit(ME, [plain(gpus="1")], None)
                running._writer.write(lambda db: gate.wait(DEADLINE), asyncio.get_running_loop().create_future())
                await until(lambda: running.entries[number].job.state is State.STARTING)
                for _ in range(20):  # whatever was to be launched is with the launching threads now, and ahead of this
                    await asyncio.sleep(0)
                    await running.in_thread(running.launching_on_gpus, lambda: None)
                assert launcher.boxes == {}
            finally:
                gate.set()
            await until(lambda: launcher.boxes)

    asyncio.run(play())


@pytest.mark.parametrize("how", ["cancelled", "not started"])
def test_who_waits_for_a_program_hears_that_it_never_ran(tmp_path, launcher, monkeypatch, how):
    """A follower of its output, say: it waits until the program runs, or is known not to."""
    gate = threading.Event()

    def never(*_, **__):
        gate.wait(DEADLINE)
        raise CommandNotFound("no such program")

    monkeypatch.setattr(launcher, "start", never)

    async def play():
        async with engine(tmp_path, launcher, Config(cpu_jobs=1)) as running:
            first, second = await running.submit(ME, [plain(), plain()], None)
            await until(lambda: running.entries[first].job.state is State.STARTING)
            number = second if how == "cancelled" else first
            waiting = asyncio.get_running_loop().create_future()
            running.entries[number].up.append(waiting)
            if how == "cancelled":
                await running.cancel(second, "root", None)
            gate.set()
            await asyncio.wait_for(waiting, DEADLINE)
            await until(lambda: not running.entries)

    asyncio.run(play())


def test_the_daemon_ends_behind_what_is_being_launched(tmp_path, launcher, monkeypatch):
    """Or the next one would find a job that runs and that nobody recorded as running."""
    gate, asked, start = threading.Event(), threading.Event(), launcher.start

    def slowly(*args, **how):
        asked.set()
        assert gate.wait(DEADLINE)
        return start(*args, **how)

    async def let_go(running):
        await until(lambda: running.closing)
        gate.set()

    monkeypatch.setattr(launcher, "start", slowly)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            await until(asked.is_set)
            letting_go = asyncio.ensure_future(let_go(running))
        await letting_go
        return number

    number = asyncio.run(play())
    db = schema.open_queue(tmp_path / "jobs.db")
    assert queries.job(db, number).state is State.RUNNING
    db.close()


def test_a_lease_that_is_refused_launches_nothing(tmp_path, launcher, capfd):
    async def play():
        async with engine(tmp_path, launcher) as running:
            other = Lease(999, 1, running.gpus.uuids, 1.0)
            await running.write(lambda db: db.executemany(
                "INSERT INTO leases(gpu, job, attempt, since) VALUES(?,?,?,?)", [(gpu, other.job, 1, 1.0) for gpu in other.gpus]
            ))  # fmt: skip
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            await until(lambda: "cannot start" in capfd.readouterr().err)
            assert launcher.boxes == {}
            await running.write(lambda db: db.execute("DELETE FROM leases"))
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            assert len(launcher.boxes) == 1

    asyncio.run(play())


def test_a_start_that_cannot_be_recorded_is_none(tmp_path, launcher, monkeypatch):
    """The job waits as if nothing had been tried, and is started when the disk has room."""
    monkeypatch.setattr(outage, "LOOK", 0.05)

    def full(change):
        future = asyncio.get_running_loop().create_future()
        future.set_exception(SchedError("the queue cannot be written: disk full", subject="jobs.db"))
        return future

    async def play():
        async with engine(tmp_path, launcher) as running:
            for number in await running.submit(ME, [plain(gpus="1"), plain()], None):
                entry = running.entries[number]
                with monkeypatch.context() as patch:
                    patch.setattr(running, "write", full)
                    running.kick()
                    await until(lambda: running.outage.text)
                    await until(lambda entry=entry: entry.job.state is State.PENDING)
                    check(running)
                    assert entry.job.attempt == 0 and launcher.boxes == {}
            await until(lambda: all(entry.job.state is State.RUNNING for entry in running.active.values()) and not running.waiting)
            assert {entry.job.attempt for entry in running.entries.values()} == {1}

    asyncio.run(play())


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_job_that_waits_again_has_nothing(tmp_path, launcher, cancelled):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            entry = running.entries[number]
            await until(lambda: entry.job.state is State.RUNNING)
            assert entry.job.devices and entry.job.started
            await until(lambda: entry.pidfd >= 0)
            ending.unwatch(running, entry)
            entry.cancelled = cancelled
            await running.back(entry, lambda db: queue.requeue(db, number, 9.0, "the host was rebooted"))
            assert number not in running.active and entry.handle is None
            if cancelled:
                assert number not in running.entries and queries.job(running.reader, number).state is State.CANCELLED
                return
            assert list(running.waiting) == [entry.waiting]
            assert (entry.job.state, entry.job.started, entry.job.devices, entry.ends) == (State.PENDING, 0.0, (), None)
            await until(lambda: entry.job.state is State.RUNNING and entry.job.attempt == 2)

    asyncio.run(play())


@pytest.mark.parametrize("state", ["running", "exited"])
@pytest.mark.parametrize("was_running", [True, False])
def test_what_is_found_of_an_earlier_daemons_attempt(launcher, state, was_running):
    box = launcher.boxes["b"] = Box("b", launcher.place / "b", now=state)
    assert attempts.recover(launcher, "b", was_running, True) == attempts.AttemptEnd(state, box)
    assert attempts.recover(launcher, "gone", was_running, True).handle is None


def test_a_cancel_outlives_the_daemon(tmp_path, launcher):
    number, box = left_running(tmp_path, launcher, cancelled=True)

    async def play():
        async with engine(tmp_path, launcher) as running:
            await until(lambda: number not in running.entries)
            assert box.said[0] == "stop"
            assert queries.job(running.reader, number).state is State.CANCELLED

    asyncio.run(play())


def test_cancelled_more_than_once(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher, Config(cpu_jobs=1)) as running:
            first, number = await running.submit(ME, [plain(), plain()], None)
            await until(lambda: running.entries[first].job.state is State.RUNNING)
            await asyncio.gather(*(running.cancel(number, "root", None) for _ in range(3)))
            assert number not in running.entries and not running.waiting
            assert queries.job(running.reader, number).state is State.CANCELLED
            await running.cancel(number, "root", None)
            (box,) = launcher.boxes.values()
            await asyncio.gather(*(running.cancel(first, "root", None) for _ in range(3)))
            await until(lambda: first not in running.entries)
            assert box.said[0] == "stop" and queries.job(running.reader, first).state is State.CANCELLED

    asyncio.run(play())


def test_what_must_not_be_lost_is_written_when_the_disk_has_room_again(tmp_path, launcher, monkeypatch, capfd):
    async def play():
        async with engine(tmp_path, launcher) as running:
            errors = [SchedError("the queue cannot be written: disk full", subject="jobs.db"), None, SchedError("the queue is closed")]
            tried = []

            def write(change):
                tried.append(change)
                future = running.loop.create_future()
                error = errors[len(tried) - 1]
                future.set_exception(error) if error else future.set_result(None)
                return future

            with monkeypatch.context() as patch:
                patch.setattr(running, "write", write)
                await running.write_surely(len)
                assert tried == [len, len] and "can be written again" in capfd.readouterr().err
                with pytest.raises(SchedError, match="is closed"):
                    await running.write_surely(len)

    asyncio.run(play())


def test_a_time_limit_counts_from_the_start_and_not_from_the_restart(tmp_path, launcher):
    ticks = clock.ticks() - 1000
    number, _ = left_running(tmp_path, launcher, ticks=ticks, time_limit=3600.0)

    async def play():
        async with engine(tmp_path, launcher) as running:
            assert running.entries[number].job.state is State.RUNNING
            assert [job.ends for job in queue_state.state(running).running] == [ticks + 3600.0]

    asyncio.run(play())


@pytest.mark.parametrize(
    ("ago", "left"),
    [(0.0, 3600.0 + OVERDUE), (1800.0, 1800.0 + OVERDUE), (1e6, OVERDUE), (-1e6, 3600.0 + OVERDUE)],
    ids=["now", "half an hour ago", "long ago", "in the future"],
)
def test_a_keeper_that_forgets_the_time_limit_is_helped_a_little_later(tmp_path, launcher, monkeypatch, ago, left):
    """Counted from the job's start; a clock that was set changes it by no more than the limit itself."""
    monkeypatch.setattr(engine_module.time, "time", lambda: 1e9)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(time_limit=3600.0)], None)
            entry = running.entries[number]
            await until(lambda: entry.overdue is not None)
            entry.overdue.cancel()
            ending.unwatch(running, entry)
            entry.limit, entry.overdue = 3600.0, None
            entry.show(started=1e9 - ago)
            asked = []
            monkeypatch.setattr(running.loop, "call_later", lambda delay, *_: asked.append(delay) or running.loop.call_at(1e12, len, ""))
            await ending.watch(running, entry)
            monkeypatch.undo()
            assert asked == [left]

    asyncio.run(play())


def test_a_clock_of_another_boot_says_nothing(tmp_path, launcher):
    number, _ = left_running(tmp_path, launcher, ticks=5.0, time_limit=3600.0, boot="another")

    async def play():
        async with engine(tmp_path, launcher) as running:
            assert [job.ends for job in queue_state.state(running).running] == [None]
            assert number in running.entries

    asyncio.run(play())


def test_what_lives_on_after_its_keeper_is_killed_before_its_gpus_go_on(tmp_path, launcher):
    number, box = left_running(tmp_path, launcher)
    leased = []
    box.on_kill = lambda: leased.append([lease.job for lease in held(schema.connect(tmp_path / "jobs.db"))])

    async def play():
        async with engine(tmp_path, launcher) as running:
            box.end(None)
            await until(lambda: number not in running.entries)
            assert queries.job(running.reader, number).state is State.LOST
            assert held(running.reader) == []

    asyncio.run(play())
    assert "kill" in box.said and leased[0] == [number]


@pytest.mark.parametrize(("was_running", "started", "what"), [(False, False, "void"), (False, True, "lost"), (True, True, "lost")])
def test_what_ran_is_never_taken_for_what_did_not(launcher, tmp_path, was_running, started, what):
    """Its keeper is dead and there is no exit record: only where no program was ever exec'd may it run again."""
    box = launcher.boxes["one"] = Box("one", tmp_path / "one", now="vanished")
    if started:
        (box.directory / "started").touch()
    assert attempts.recover(launcher, "one", was_running, True).what == what


def test_a_job_that_ran_is_not_run_again(tmp_path, launcher):
    number, box = left_running(tmp_path, launcher, state="starting")
    (box.directory / "started").touch()
    box.now = "vanished"

    async def play():
        async with engine(tmp_path, launcher) as running:
            await until(lambda: number not in running.entries)
            job = queries.job(running.reader, number)
            assert (job.state, job.reason, len(job.attempts)) == (State.LOST, "its keeper was killed", 1)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("own", "of_the_queue", "expected"), [(5.0, 60.0, 5.0), (60.0, 5.0, 5.0), (0.0, 5.0, 5.0), (5.0, 0.0, 5.0), (0.0, 0.0, 0.0)]
)
def test_the_shorter_of_two_time_limits_holds(own, of_the_queue, expected):
    live = Live(Job(1, 0, "root", State.STARTING), (), (), False)
    spec = attempts.complete(Spec(argv=("true",), timeout=own), live, 1, ("GPU-0",), of_the_queue)
    assert spec.timeout == expected and spec.gpus == ("GPU-0",)


def test_a_commit_that_fails_answers_nobody_with_success(tmp_path):
    """A foreign key that is looked at only by COMMIT: every change of the transaction is lost, and each is told so."""
    from dockless.sched.store.writer import QueueWriter

    db = schema.open_queue(tmp_path / "jobs.db")
    db.execute("PRAGMA foreign_keys=ON")
    db.execute("CREATE TABLE parent(id INTEGER PRIMARY KEY)")
    db.execute("CREATE TABLE child(of INTEGER REFERENCES parent(id) DEFERRABLE INITIALLY DEFERRED)")
    writer = QueueWriter(db)
    busy, gate = threading.Event(), threading.Event()

    def hold(_):
        busy.set()
        gate.wait(DEADLINE)

    writer.write(hold)
    assert busy.wait(DEADLINE)  # what comes now waits for the next transaction, and shares it
    inserts = ("parent VALUES(1)", "child VALUES(77)", "parent VALUES(2)")
    together = [writer.write(lambda db, row=row: db.execute(f"INSERT INTO {row}")) for row in inserts]
    gate.set()
    for future in together:
        error = future.exception(DEADLINE)
        assert isinstance(error, SchedError) and "the queue cannot be written" in str(error) and error.subject == "jobs.db"
    assert writer.write(lambda db: db.execute("SELECT count(*) FROM parent").fetchone()).result(DEADLINE) == (0,)
    writer.close()


def test_deciding_takes_half_of_the_time_at_most(tmp_path, launcher, monkeypatch):
    """With a long queue each pass is long: what cancels a thousand jobs must not wait for a thousand passes."""
    began = []
    decide = engine_module.policy.decide

    def slow(*arguments):
        began.append(time.monotonic())
        time.sleep(0.3)
        return decide(*arguments)

    async def play():
        async with engine(tmp_path, launcher) as running:
            monkeypatch.setattr(engine_module.policy, "decide", slow)
            for passes in (1, 2):
                running.kick()
                running.kick()
                await until(lambda passes=passes: len(began) == passes)
            assert began[1] - began[0] >= 0.59

    asyncio.run(play())
