"""A daemon that comes back: what became of a job that an earlier one had started, and what its record then says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import replace
from operator import attrgetter

import pytest
from support.stand_in import StandIn, engine, left_running, plain, until

from dockless.cgroups import Limits
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import GRACE, Spec
from dockless.sched import State
from dockless.sched.callers import Caller
from dockless.sched.config import Config
from dockless.sched.engine.gpus import draining
from dockless.sched.jobs import Filter, JobOptions
from dockless.sched.store import queries, queue, schema
from dockless.sched.store.lease import held
from dockless.sched.wire.answers import Answers
from dockless.sched.wire.listed import Listed

REBOOTED = "the host was rebooted while it ran"
KILLED = "its keeper was killed"
ROOT = Caller(0, "root", frozenset(), True)
ANN = Caller(1001, "ann", frozenset(), False, account=True)
pytestmark = pytest.mark.usefixtures("two_gpus", "killed_again_soon")


@pytest.mark.parametrize(
    ("recorded", "found", "state", "reason", "code", "attempts", "events"),
    [
        ("running", "running", State.RUNNING, "", None, [("RUNNING", "")], []),
        ("starting", "running", State.RUNNING, "", None, [("RUNNING", "")], [("running", "adopted")]),
        ("running", 0, State.COMPLETED, "", 0, [("ENDED", "")], [("ended", "")]),
        ("running", 3, State.FAILED, "exit code 3", 3, [("ENDED", "exit code 3")], [("ended", "exit code 3")]),
        ("starting", 3, State.FAILED, "exit code 3", 3, [("ENDED", "exit code 3")], [("ended", "exit code 3")]),
        ("running", "vanished", State.LOST, KILLED, None, [("LOST", KILLED)], [("lost", KILLED)]),
        ("running", "none", State.LOST, "its sandbox is gone", None, [("LOST", "its sandbox is gone")], [("lost", "its sandbox is gone")]),
        ("starting", "none", State.RUNNING, "", None, [("VOID", "the daemon ended before the launch"), ("RUNNING", "")],
         [("void", "the daemon ended before the launch"), ("start", "GPU"), ("running", "")]),
        ("starting", "vanished", State.RUNNING, "", None, [("VOID", "the daemon ended during the launch"), ("RUNNING", "")],
         [("void", "the daemon ended during the launch"), ("start", "GPU"), ("running", "")]),
        ("starting cancelled", "none", State.CANCELLED, "cancelled before it ran", None, [("VOID", "the daemon ended before the launch")],
         [("cancel", "by root"), ("void", "the daemon ended before the launch"), ("cancelled", "cancelled before it ran")]),
        ("running cancelled", "vanished", State.CANCELLED, KILLED, None, [("ENDED", KILLED)], [("cancel", "by root"), ("ended", KILLED)]),
        ("running rebooted", "vanished", State.LOST, REBOOTED, None, [("LOST", REBOOTED)], [("lost", REBOOTED)]),
        ("running rebooted", "none", State.LOST, REBOOTED, None, [("LOST", REBOOTED)], [("lost", REBOOTED)]),
        ("running rebooted requeue", "vanished", State.RUNNING, "", None, [("LOST", "the host was rebooted"), ("RUNNING", "")],
         [("lost", "the host was rebooted"), ("start", "GPU"), ("running", "")]),
        ("running requeue", "vanished", State.LOST, KILLED, None, [("LOST", KILLED)], [("lost", KILLED)]),
        ("running rebooted requeue cancelled", "vanished", State.CANCELLED, REBOOTED, None, [("ENDED", REBOOTED)],
         [("cancel", "by root"), ("ended", REBOOTED)]),
    ],
)  # fmt: skip
def test_what_became_of_a_job(tmp_path, launcher, recorded, found, state, reason, code, attempts, events):
    number, box = left_running(
        tmp_path,
        launcher,
        state="running" if "running" in recorded else "starting",
        boot="another" if "rebooted" in recorded else None,
        on_reboot="requeue" if "requeue" in recorded else "fail",
        cancelled="cancelled" in recorded,
        box=found != "none",
    )
    if found in (0, 3):
        box.now, box.record = "exited", Exit(found, None)
    elif box is not None:
        box.now = found

    async def play():
        async with engine(tmp_path, launcher) as running:
            await until(lambda: queries.job(running.reader, number).state is state)
            job = queries.job(running.reader, number)
            assert (job.reason, job.exit_code, [(str(one.state), one.reason) for one in job.attempts]) == (reason, code, attempts)
            rows = list(running.reader.execute("SELECT event, detail FROM events ORDER BY seq"))[2 + recorded.startswith("running") :]
            assert [(what, "GPU" if detail.startswith("GPU") or detail.startswith("sim") else detail) for what, detail in rows] == events
            if state is State.RUNNING:
                entry = running.entries[number]
                await until(lambda: entry.job.state is State.RUNNING)
                assert entry.job.attempt == len(attempts) and len(entry.job.devices) == 1
            await until(lambda: box is None or found == "running" or box.said[-1:] == ["remove"])
            assert box is None or ("kill" in box.said) is (found == "vanished" and recorded.startswith("running"))

    asyncio.run(play())


def test_what_lives_on_without_its_keeper_is_killed_before_its_gpus_go_on(tmp_path, launcher):
    number, box = left_running(tmp_path, launcher)
    box.now = "vanished"
    leased = []
    box.on_kill = lambda: leased.extend(lease.job for lease in held(schema.connect(tmp_path / "jobs.db")))

    async def play():
        async with engine(tmp_path, launcher) as running:
            await until(lambda: number not in running.entries)

    asyncio.run(play())
    assert leased == [number] and box.said == ["kill", "remove"]


def test_what_waited_waits_in_its_order(tmp_path, launcher):
    db = schema.open_queue(tmp_path / "jobs.db")
    new = queue.NewJob(0, "root", "", "", "host", "true", "2", 2, (), (), 0, 0.0, "fail", "{}")
    queue.insert(db, [new, new, replace(new, priority=5)], False, 1.0)
    db.close()

    async def play():
        async with engine(tmp_path, launcher) as running:
            await until(lambda: running.entries[3].job.state is State.RUNNING)
            assert [one.id for one in running.waiting] == [1, 2] and running.per_user.jobs == {0: 3}

    asyncio.run(play())


@pytest.mark.parametrize(
    ("spec", "grace", "limit"),
    [
        ({}, GRACE, None),
        ({"spec": {"argv": ["true"], "grace": 3.0, "timeout": 50.0}}, 3.0, 53.0),
        ({"spec": {"argv": ["true"], "timeout": 50.0}}, GRACE, 50.0),
        ({"of an older dockless": 1}, GRACE, None),
        ("no object", GRACE, None),
    ],
)
def test_how_it_ends_is_known_again(tmp_path, launcher, spec, grace, limit):
    """What it was submitted with is read anew; one that cannot be read any more goes on all the same."""
    number, _ = left_running(tmp_path, launcher, spec=json.dumps(spec))

    async def play():
        async with engine(tmp_path, launcher) as running:
            entry = running.entries[number]
            assert (entry.grace, entry.limit, entry.overdue is not None) == (grace, limit, limit is not None)
            assert entry.job.state is State.RUNNING and entry.pidfd >= 0

    asyncio.run(play())


def test_one_that_cannot_be_taken_up_is_ended_and_the_others_are_taken_up(tmp_path, launcher, monkeypatch, capfd):
    first, box = left_running(tmp_path, launcher)
    box.on_kill = lambda: setattr(box, "now", "vanished")
    find, broken = launcher.find, [ValueError("hunter2")]

    def once(name):
        if name == box.id and broken:
            raise broken.pop()
        return find(name)

    monkeypatch.setattr(launcher, "find", once)

    async def play():
        async with engine(tmp_path, launcher) as running:
            await until(lambda: first not in running.entries)
            job = queries.job(running.reader, first)
            assert (job.state, job.reason) == (State.LOST, "the daemon could not follow it: ValueError")

    asyncio.run(play())
    assert box.said == ["kill", "remove"]
    said = capfd.readouterr().err
    assert said.startswith(f"dockless daemon: job {first} cannot be followed: ValueError in attempts.py:")
    assert said.endswith("; ending it\n") and "hunter2" not in said


@pytest.mark.parametrize(
    ("record", "on_reboot", "boot", "shutdown", "state"),
    [
        (Exit(None, 15, ended=2000.0), "requeue", "another", 1000.0, State.RUNNING),
        (Exit(143, None, ended=2000.0), "requeue", "another", 1000.0, State.RUNNING),
        (Exit(0, None, ended=2000.0), "requeue", "another", 1000.0, State.COMPLETED),
        (Exit(None, 9, ended=2000.0, timed_out=True), "requeue", "another", 1000.0, State.TIMEOUT),
        (Exit(None, 15, ended=999.0), "requeue", "another", 1000.0, State.FAILED),
        (Exit(None, 15, ended=2000.0), "requeue", "another", 0.0, State.FAILED),
        (Exit(None, 15, ended=2000.0), "requeue", None, 1000.0, State.FAILED),
        (Exit(None, 15, ended=2000.0), "fail", "another", 1000.0, State.FAILED),
    ],
)
def test_what_the_hosts_shutdown_ended(tmp_path, launcher, record, on_reboot, boot, shutdown, state):
    """It runs again if it says so, unless it had ended by itself: before, well, or by its time limit."""
    number, box = left_running(tmp_path, launcher, state="running", boot=boot, on_reboot=on_reboot)
    box.now, box.record = "exited", record
    if shutdown:
        with contextlib.closing(schema.open_queue(tmp_path / "jobs.db")) as db, db:
            queue.note_shutdown(db, shutdown)

    async def play():
        async with engine(tmp_path, launcher) as running:
            await until(lambda: queries.job(running.reader, number).state is state)
            job = queries.job(running.reader, number)
            if state is State.RUNNING:
                assert [(str(one.state), one.reason) for one in job.attempts] == [("ENDED", "the host was shut down"), ("RUNNING", "")]

    asyncio.run(play())


def test_a_shutdown_is_remembered(tmp_path, launcher):
    async def note():
        async with engine(tmp_path, launcher) as running:
            await running.note_shutdown()

    began = time.time()
    asyncio.run(note())
    with contextlib.closing(schema.open_queue(tmp_path / "jobs.db")) as db:
        assert began <= queries.shutdown(db) <= time.time()


def test_jobs_that_wait_are_made_whole_when_somebody_asks_and_are_what_they_were(tmp_path):
    """In line, held, kept aside by their array's limit, behind other jobs, together: each where it was, and counted as it was."""

    async def main():
        launcher, shown = StandIn(tmp_path), attrgetter("waiting.kind", "waiting.priority", "waiting.time_limit", "job", "live", "gang")
        limited = Spec(argv=("true",), limits=Limits(cpu_max=1.5, memory_max=1 << 30), best_effort=True)

        def places(running):
            aside = running.aside
            counts = running.per_user.jobs, running.per_user.size, running.per_user._of_spec
            arrays = {number: (array.inside, array.limited) for number, array in aside._arrays.items()}
            return [[job.id for job in running.waiting], aside.kept, aside._named, arrays, counts, aside._waited_for]

        async def listing(running):
            parts = Listed(Answers(running), Filter(until=5e9), False, 0, lambda: asyncio.sleep(0)).parts()
            return [(job, Answers(running).reasons()(job)) async for part in parts for job in part.jobs]

        async with engine(tmp_path, launcher, Config(share="user")) as running:
            running.admission._rights = lambda caller, job: None
            await draining.drain(running, ROOT, [], True, "")
            first, *_ = await running.submit(ROOT, [plain(name="x"), plain(gpus="1", time_limit=60.0), plain(name="x", spec=limited)], None)
            for caller, jobs, array in (
                (ANN, [plain(gpus="device=1", priority=-3)], None),
                (ANN, [plain(gpus="2", hold=True)], None),
                (ROOT, [plain(priority=2, name="many", array_limit=2)], 5),
                (ROOT, [plain(array_limit=1, hold=True)], 2),
                (ROOT, [plain(gpus="memory=30G")], None),
                (ROOT, [plain(begin=4e9), plain(after=(f"ok:{first}",)), plain(name="x", singleton=True)], None),
            ):
                await running.submit(caller, jobs, array)
            await running.submit(ROOT, [plain(role="a", gpus="1"), plain(role="b")], None, gang=True)
            shows, before, wholes = (
                await listing(running),
                places(running),
                {number: shown(entry) for number, entry in running.entries.items()},
            )
        async with engine(tmp_path, launcher, Config(share="user")) as running:
            assert places(running) == before and await listing(running) == shows
            outlined = {number for number in running.entries if running.entries.is_outline(number)}
            assert outlined == set(range(first, first + 13))
            for number, found in wholes.items():
                entry = running.entries[number]
                assert (*shown(entry)[:4],) == (*found[:4],) and replace(entry.live, boot="") == found[4]
                assert entry is running.entries[number] and not running.entries.is_outline(number)
            await running.cancel(first, "root", None)
            assert first not in running.entries and first not in [job.id for job in running.waiting]

    asyncio.run(main())


@pytest.mark.parametrize("others", [0, 2])
def test_what_was_cancelled_as_it_waited_is_made_whole_at_once(tmp_path, others):
    """Alone, and among others."""
    db = schema.open_queue(tmp_path / "jobs.db")
    one = queue.NewJob(0, "root", "", "", "host", "true", "3", 3, (), (), 0, 0.0, "fail", "{}", JobOptions())
    queue.insert(db, [one] * (1 + others), False, 1.0)
    db.execute("UPDATE jobs SET cancelled=1 WHERE id=1")
    db.close()

    async def play():
        async with engine(tmp_path, StandIn(tmp_path)) as running:
            assert [number for number in running.entries if not running.entries.is_outline(number)] == [1]
            assert len(running.entries) == 1 + others and running.entries[1].cancelled

    asyncio.run(play())


@pytest.mark.parametrize("rule", [{"retry_at": 4e9}, {"requeue": "asked"}, {"preempted_by": 7}])
def test_what_is_between_two_attempts_is_made_whole_at_once(tmp_path, rule):
    db = schema.open_queue(tmp_path / "jobs.db")
    queue.insert(
        db, [queue.NewJob(0, "root", "", "", "host", "true", "3", 3, (), (), 0, 0.0, "fail", "{}", JobOptions(**rule))], False, 1.0
    )
    db.close()

    async def play():
        async with engine(tmp_path, StandIn(tmp_path)) as running:
            assert not running.entries.is_outline(1)
            assert (1 in running.aside.kept) is ("retry_at" in rule)

    asyncio.run(play())
