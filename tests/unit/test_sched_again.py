"""Another attempt of a job: asked for while it runs, or because it failed and has tries left."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
from support.stand_in import engine, plain, until, unwritable, why_waits

from dockless.errors import BadInput, LaunchFailed, NotEnoughGpus, Refused
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import State
from dockless.sched.callers import Caller
from dockless.sched.engine.admission.admitting import next_round
from dockless.sched.engine.lifecycle import again
from dockless.sched.engine.waiting import aside
from dockless.sched.jobs import JobOptions, JobSpec
from dockless.sched.store import queries, queue
from dockless.sched.wire.answers import Answers

ROOT = Caller(0, "root", frozenset(), True)
pytestmark = pytest.mark.usefixtures("two_gpus")


async def running_box(running, launcher, number, attempt):
    name = running.name(number, attempt)
    await until(lambda: number in running.entries and running.entries[number].job.state is State.RUNNING and name in launcher.boxes)
    return launcher.boxes[name]


def next_start_fails(launcher, error):
    """Once the event that is returned is set; those after it are as before."""
    go, start = threading.Event(), launcher.start

    def fails(*args, **how):
        launcher.start = start
        assert go.wait(30)
        raise error

    launcher.start = fails
    return go


def tries(running, number):
    return [(a.number, str(a.state), a.reason) for a in queries.attempts(running.reader, number)]


async def ended(running, number):
    await until(lambda: number not in running.entries)
    return queries.job(running.reader, number)


def test_a_job_that_fails_is_tried_again(tmp_path, launcher, monkeypatch):
    """After pauses that double; what it wrote is kept of each attempt. It is over when it succeeds, or when no try is left."""
    clock = [time.time()]
    monkeypatch.setattr(again.time, "time", lambda: clock[0])
    monkeypatch.setattr(aside, "LOOK", 0.001)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(retries=2, gpus="1")], None)
            for attempt in (1, 2, 3):
                box = await running_box(running, launcher, number, attempt)
                (box.directory / "log").write_text(f"attempt {attempt}\n")
                box.end(Exit(7, None))
                if attempt < 3:
                    await until(lambda: running.entries[number].job.state is State.PENDING)
                    assert why_waits(running, number).startswith(f"retry {attempt} of 2 begins at 2")
                    clock[0] += attempt - 0.01
                    await asyncio.sleep(0.01)
                    assert number in running.aside.kept
                    clock[0] += 0.02
            job = await ended(running, number)
            assert (job.state, job.reason, job.exit_code, job.attempt) == (State.FAILED, "exit code 7", 7, 3)
            assert tries(running, number) == [(n, "ENDED", "exit code 7") for n in (1, 2, 3)]
            assert [running.log_base(number, n).with_suffix(".log").read_text() for n in (1, 2, 3)] == [f"attempt {n}\n" for n in (1, 2, 3)]

    asyncio.run(play())


def test_no_pause_is_longer_than_the_longest():
    options = JobOptions(retries=1000, tried=999)
    entry = SimpleNamespace(cancelled=False, job=SimpleNamespace(options=options))
    now = time.time()
    _, later = again.wanted(entry, State.FAILED, "exit code 1", 1)
    assert now + again.LONGEST_PAUSE <= later.retry_at <= time.time() + again.LONGEST_PAUSE and later.tried == 1000


def test_a_time_limit_ends_also_who_was_to_be_requeued(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(time_limit=3600.0)], None)
            box = await running_box(running, launcher, number, 1)
            box.send_stop = lambda: None
            for who in "ann", "root":
                await again.ask(running, number, who, 100.0, next_round)
            asked = running.reader.execute("SELECT detail FROM events WHERE job=? AND event='requeue'", (number,)).fetchall()
            assert asked == [("by ann",)]
            box.end(Exit(None, 9, timed_out=True))
            assert (await ended(running, number)).state is State.TIMEOUT

    asyncio.run(play())


def test_a_pause_is_kept_by_jobs_that_had_to_wait_before(tmp_path, launcher):
    """Whatever kept them from starting: their own time, or the limit of their array, in which another one runs meanwhile."""

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(retries=1, begin=time.time() - 60)], None)
            first, second = await running.submit(ROOT, [plain(retries=1, array_limit=1)], 2)
            assert why_waits(running, second) == "of its array 1 may run at once"
            for one in number, first:
                (await running_box(running, launcher, one, 1)).end(Exit(7, None))
                await until(lambda one=one: running.entries[one].job.state is State.PENDING)
                assert why_waits(running, one).startswith("retry 1 of 1 begins at 2")
            box = await running_box(running, launcher, second, 1)
            for one in number, first:
                await running.cancel(one, "root", None)
            box.end(Exit(0, None))
            assert (await ended(running, second)).state is State.COMPLETED

    asyncio.run(play())


@pytest.mark.parametrize(
    ("fields", "record", "state"),
    [
        ({"retries": 1}, Exit(0, None), State.COMPLETED),
        ({"retries": 1, "retry_on": (75, 2)}, Exit(3, None), State.FAILED),
        ({"retries": 1}, Exit(None, 9, timed_out=True), State.TIMEOUT),
        ({"retries": 1}, None, State.LOST),
        ({}, Exit(3, None), State.FAILED),
    ],
)
def test_ends_that_are_final(tmp_path, launcher, fields, record, state):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(**fields)], None)
            (await running_box(running, launcher, number, 1)).end(record)
            assert (await ended(running, number)).state is state

    asyncio.run(play())


@pytest.mark.parametrize("record", [Exit(75, None), Exit(2, None)])
def test_these_codes_are_tried_again(tmp_path, launcher, monkeypatch, record):
    monkeypatch.setattr(again, "LONGEST_PAUSE", 0.0)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(retries=9, retry_on=(75, 2))], None)
            for attempt in (1, 2):
                (await running_box(running, launcher, number, attempt)).end(record)
            (await running_box(running, launcher, number, 3)).end(Exit(0, None))
            assert (await ended(running, number)).state is State.COMPLETED

    asyncio.run(play())


def test_a_job_that_is_requeued(tmp_path, launcher):
    """Its attempt is told to end and the job waits at its place; the next attempt has nothing of the wish."""

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(gpus="2")], None)
            box = await running_box(running, launcher, number, 1)
            (other,) = await running.submit(ROOT, [plain(gpus="2")], None)
            following = Answers(running).gone(running.entries[number])
            await again.ask(running, number, "root", None, next_round)
            second = await running_box(running, launcher, number, 2)
            assert following.done() and box.said[0] == "stop" and "kill" not in box.said
            assert running.entries[number].job.options.requeue == "" and running.entries[other].job.state is State.PENDING
            assert tries(running, number)[0] == (1, "ENDED", "requeued by root")
            assert not Answers(running).gone(running.entries[number]).done() and second.said == []
            second.end(Exit(0, None))
            assert (await ended(running, number)).state is State.COMPLETED
            (await running_box(running, launcher, other, 1)).end(Exit(0, None))
            await ended(running, other)

    asyncio.run(play())


def test_one_that_is_requeued_while_it_is_being_started(tmp_path, launcher):
    """The start is ended for it. The job had failed: "not started: the launcher was killed"."""
    error = LaunchFailed("the launcher was killed", index=36, step="start the sandbox", errno=0)

    async def play():
        go = next_start_fails(launcher, error)
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(gpus="1")], None)
            await until(lambda: running.entries[number].job.state is State.STARTING)
            assert await again.ask(running, number, "root", 0.0, next_round) == number
            go.set()
            box = await running_box(running, launcher, number, 2)
            assert tries(running, number) == [(1, "VOID", "requeued by root"), (2, "RUNNING", "")]
            assert not running.entries[number].job.options.requeue and not box.said
            box.end(Exit(0, None))
            assert (await ended(running, number)).state is State.COMPLETED

    asyncio.run(play())


def test_a_second_wish_while_the_first_is_met(tmp_path, launcher, monkeypatch):
    """It came too late for the attempt that had ended, and made the next one run twice, whatever its end."""
    keep, reached, go = again.remains.keep, asyncio.Event(), asyncio.Event()

    async def slowly(*args):
        reached.set()
        await go.wait()
        return await keep(*args)

    async def play():
        monkeypatch.setattr(again.remains, "keep", slowly)
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(gpus="1")], None)
            await running_box(running, launcher, number, 1)
            await again.ask(running, number, "root", 0.0, next_round)
            await reached.wait()
            with pytest.raises(Refused, match="attempt 1 of job 1 has just ended"):
                await again.ask(running, number, "root", 0.0, next_round)
            go.set()
            (await running_box(running, launcher, number, 2)).end(Exit(0, None))
            job = await ended(running, number)
            assert (job.state, job.attempt, job.options.requeue) == (State.COMPLETED, 2, "")

    asyncio.run(play())


def test_a_wish_that_is_written_down_as_its_attempt_ends(tmp_path, launcher, monkeypatch):
    """The job has ended, and is not said to run again."""

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(gpus="1")], None)
            box = await running_box(running, launcher, number, 1)
            entry, written = running.entries[number], running.write

            async def late(change):
                await written(change)
                box.end(Exit(0, None))
                await until(lambda: entry.silent)

            monkeypatch.setattr(running, "write", late)
            with pytest.raises(Refused, match="has just ended"):
                await again.ask(running, number, "root", 0.0, next_round)
            monkeypatch.setattr(running, "write", written)
            assert (await ended(running, number)).state is State.COMPLETED

    asyncio.run(play())


def test_a_wish_is_met_by_a_start_that_found_no_gpu(tmp_path, launcher):
    """The job waits again, as it was to: its next attempt is not ended for it, nor run a second time."""

    async def play():
        go = next_start_fails(launcher, NotEnoughGpus("somebody has it"))
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(gpus="1")], None)
            await until(lambda: running.entries[number].job.state is State.STARTING)
            await again.ask(running, number, "root", 0.0, next_round)
            go.set()
            (await running_box(running, launcher, number, 2)).end(Exit(0, None))
            job = await ended(running, number)
            assert (job.state, job.attempt, job.options.requeue) == (State.COMPLETED, 2, "")

    asyncio.run(play())


def test_a_job_that_has_ended_is_submitted_again(tmp_path, launcher):
    """As a new job of the same owner, behind all that wait; it waits for nothing that the first one waited for."""

    async def play():
        async with engine(tmp_path, launcher) as running:
            running.admission._rights = lambda caller, job: None
            running.callers._look_up = lambda uid: (f"user{uid}", frozenset(), True)
            caller = Caller(1001, "ann", frozenset(), False, account=True)
            (number,) = await running.submit(caller, [plain(gpus="1", retries=2, begin=1.0, name="n")], None)
            (await running_box(running, launcher, number, 1)).end(Exit(0, None))
            await ended(running, number)
            new = await again.ask(running, number, "root", None, next_round)
            box = await running_box(running, launcher, new, 1)
            job = running.entries[new].job
            assert new == number + 1 and (job.uid, job.name, job.gpus, job.options) == (1001, "n", "1", JobOptions(retries=2))
            assert queries.job(running.reader, number).state is State.COMPLETED
            box.end(Exit(0, None))
            await ended(running, new)
            await running.write(lambda db: queue.shed(db, 1001, 0))
            with pytest.raises(Refused, match=f"job {new} has ended, and what it asked for is not kept any more"):
                await again.ask(running, new, "root", None, next_round)

    asyncio.run(play())


def test_a_job_of_an_array_keeps_its_place_in_it(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            ids = await running.submit(ROOT, [plain(array_limit=2)], 3)
            for number in ids:
                (await running_box(running, launcher, number, 1)).end(Exit(1, None))
                await ended(running, number)
            new = await again.ask(running, ids[1], "root", None, next_round)
            box = await running_box(running, launcher, new, 1)
            job = running.entries[new].job
            assert (job.array, job.index, job.options.array_limit) == (ids[0], 1, 2)
            assert box.spec.env and dict(box.spec.env)["DOCKLESS_ARRAY_INDEX"] == "1"
            box.end(Exit(0, None))
            await ended(running, new)
            assert (queries.job(running.reader, new).array, queries.job(running.reader, new).index) == (ids[0], 1)

    asyncio.run(play())


def test_nobody_can_ask_for_attempts_without_end(tmp_path, launcher, monkeypatch):
    monkeypatch.setattr(again, "MOST", 2)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain()], None)
            await running_box(running, launcher, number, 1)
            await again.ask(running, number, "root", None, next_round)
            box = await running_box(running, launcher, number, 2)
            with pytest.raises(Refused, match="has had 2 attempts"):
                await again.ask(running, number, "root", None, next_round)
            box.end(Exit(0, None))
            assert (await ended(running, number)).state is State.COMPLETED

    asyncio.run(play())


def test_a_wish_that_a_daemon_could_not_carry_out(tmp_path, launcher):
    """It is on disk before the signal: the next daemon goes on with it."""

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain()], None)
            box = await running_box(running, launcher, number, 1)
            options = JobOptions(requeue="requeued by ann")
            await running.write(lambda db: queue.set_options(db, number, options, 1.0, "requeue", "by ann"))
        assert box.said == []
        async with engine(tmp_path, launcher) as running:
            (await running_box(running, launcher, number, 2)).end(Exit(0, None))
            assert box.said[0] == "stop" and (await ended(running, number)).state is State.COMPLETED
            assert tries(running, number)[0] == (1, "ENDED", "requeued by ann")

    asyncio.run(play())


def test_a_failure_that_nobody_saw_is_tried_again(tmp_path, launcher, monkeypatch):
    """The daemon was gone when it ended."""
    monkeypatch.setattr(again, "LONGEST_PAUSE", 0.0)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(retries=1)], None)
            box = await running_box(running, launcher, number, 1)
        box.end(Exit(1, None))
        async with engine(tmp_path, launcher) as running:
            (await running_box(running, launcher, number, 2)).end(Exit(1, None))
            assert (await ended(running, number)).state is State.FAILED and len(tries(running, number)) == 2

    asyncio.run(play())


def test_a_cancel_ends_it_for_good(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            first, second = await running.submit(ROOT, [plain(retries=5), plain()], None)
            await running_box(running, launcher, first, 1)
            box = await running_box(running, launcher, second, 1)
            await running.cancel(first, "root", None)
            assert (await ended(running, first)).state is State.CANCELLED
            box.send_stop = lambda: None  # it takes its time
            await again.ask(running, second, "root", 60.0, next_round)
            await running.cancel(second, "root", 60.0)
            box.end(Exit(None, 15))
            assert (await ended(running, second)).state is State.CANCELLED

    asyncio.run(play())


def test_a_wish_that_cannot_be_written_ends_nothing(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain()], None)
            box = await running_box(running, launcher, number, 1)
            with unwritable(running):
                await again.ask(running, number, "root", None, next_round)
            assert box.said == [] and running.entries[number].job.options.requeue == ""
            box.end(Exit(0, None))
            assert (await ended(running, number)).state is State.COMPLETED

    asyncio.run(play())


@pytest.mark.parametrize(
    "fields", [{"retries": -1}, {"retries": 1001}, {"retries": 1, "retry_on": (0,)}, {"retries": 1, "retry_on": (256,)}]
)
def test_retries_that_cannot_be_meant(fields):
    with pytest.raises(BadInput, match="out of range"):
        JobSpec(Spec(), **fields)
