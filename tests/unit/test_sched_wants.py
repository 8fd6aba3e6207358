"""What a job must not suffer for: a host without descriptors, an output that cannot be kept, a sandbox that nobody can look at."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest
from support.stand_in import Box, engine, plain, until

from dockless.errors import LaunchFailed, Unwritable
from dockless.sandbox.run.process import Exit
from dockless.sched import State
from dockless.sched.callers import Caller
from dockless.sched.engine import outage, wants
from dockless.sched.engine.lifecycle import ending, housekeeping, starting
from dockless.sched.store import queries

ME = Caller(0, "root", frozenset(), True)
pytestmark = pytest.mark.usefixtures("two_gpus", "killed_again_soon")


@pytest.fixture(autouse=True)
def _again_at_once(monkeypatch):
    monkeypatch.setattr(wants, "AGAIN", 0.001)


def failed(index: int, code: int) -> LaunchFailed:
    return LaunchFailed("planted", index=index, step="planted", errno=code)


def from_cause(code: int) -> Unwritable:
    error = Unwritable("planted")
    error.__cause__ = OSError(code, "planted")
    return error


@pytest.mark.parametrize("error", [
    OSError(errno.EMFILE, "planted"), OSError(errno.ENFILE, "planted"), OSError(errno.ENOMEM, "planted"), MemoryError(),
    from_cause(errno.EMFILE), failed(-1, errno.ENOMEM), failed(-1, errno.EAGAIN), failed(7, errno.EMFILE), failed(7, errno.ENFILE),
])  # fmt: skip
def test_the_hosts_want(error):
    assert wants.is_the_hosts(error)


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "planted"), OSError(errno.EAGAIN, "planted"), failed(7, errno.ENOMEM), failed(7, errno.EAGAIN),
    failed(-1, errno.EPERM), from_cause(errno.EIO), ValueError(),
])  # fmt: skip
def test_the_jobs_own(error):
    """Its own limits of memory and processes refuse operations inside."""
    assert not wants.is_the_hosts(error)


@pytest.mark.parametrize(("error", "outside", "inside"), [
    (OSError(errno.ENOSPC, "planted"), True, True), (from_cause(errno.ENOSPC), True, True), (failed(-1, errno.ENOSPC), True, True),
    (failed(7, errno.ENOSPC), False, True), (from_cause(errno.EIO), False, False), (None, False, False),
])  # fmt: skip
def test_a_disk_without_room(error, outside, inside):
    assert (wants.lacks_room(error), wants.lacks_room(error, inside=True)) == (outside, inside)


def failing(launcher, monkeypatch, error, times):
    """The launcher's first ``times`` starts fail; how many there were."""
    start, calls = launcher.start, []

    def sometimes(*args, **how):
        calls.append(how["id"])
        if len(calls) <= times:
            raise error
        return start(*args, **how)

    monkeypatch.setattr(launcher, "start", sometimes)
    return calls


def test_a_start_that_fails_for_want_of_descriptors_is_tried_again(tmp_path, launcher, monkeypatch, capfd):
    calls = failing(launcher, monkeypatch, failed(-1, errno.EMFILE), 3)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            assert len(calls) == 4
            job = running.entries[number].job
            assert (job.attempt, job.reason) == (1, "")

    asyncio.run(play())
    assert capfd.readouterr().err.count("cannot start") == 1


def failing_late(launcher, monkeypatch, left):
    """The first start fails when its sandbox is there, which is then in the state ``left``; the sandboxes, by start."""
    start, started = launcher.start, []

    def late(*args, **how):
        box = start(*args, **how)
        started.append(box)
        if len(started) == 1:
            box.now, box.record = left, Exit(7, None) if left == "exited" else None
            raise failed(-1, errno.EMFILE)
        return box

    monkeypatch.setattr(launcher, "start", late)
    return started


@pytest.mark.parametrize(("left", "starts"), [("running", 1), ("exited", 1), ("starting", 2), ("created", 2), ("vanished", 2)])
def test_what_such_a_start_left_is_taken_or_removed_and_nothing_is_started_twice(tmp_path, launcher, monkeypatch, left, starts):
    started = failing_late(launcher, monkeypatch, left)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            await until(lambda: started)
            await until(lambda: started[0].record or running.entries[number].job.state is State.RUNNING)
            if starts == 2:
                assert started[0].said == ["remove"]
            if left != "exited":
                started[-1].end(Exit(7, None))
            await until(lambda: not running.entries)
            job = queries.job(running.reader, number)
            assert (job.state, job.exit_code, job.attempt) == (State.FAILED, 7, 1)
            assert len(started) == starts

    asyncio.run(play())


@pytest.mark.parametrize("left", ["running", "starting"])
def test_what_a_start_that_was_given_up_left_ends_before_its_gpus_are_free(tmp_path, launcher, monkeypatch, left):
    monkeypatch.setattr(starting, "LAUNCHES", 1)
    failing_late(launcher, monkeypatch, left)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            (box,) = await until(lambda: list(launcher.boxes.values()))
            await until(lambda: box.said.count("kill") > 1)
            assert running.entries[number].job.devices
            box.on_kill = lambda: box.now == "vanished" or box.end(None)
            await until(lambda: not running.entries)
            assert queries.job(running.reader, number).state is State.LOST
            await until(lambda: box.said[-1] == "remove")

    asyncio.run(play())


def test_a_sandbox_of_that_name_that_is_not_the_queues_is_left_alone(tmp_path, launcher, monkeypatch):
    failing(launcher, monkeypatch, failed(-1, errno.EPERM), 1)

    async def play():
        async with engine(tmp_path, launcher) as running:
            name = running.name(1, 1)
            theirs = launcher.boxes[name] = Box(name, launcher.place / name, {"queue": "another"})
            (number,) = await running.submit(ME, [plain()], None)
            await until(lambda: not running.entries)
            assert queries.job(running.reader, number).state is State.FAILED
            assert (number, theirs.said) == (1, [])

    asyncio.run(play())


@pytest.fixture
def full(monkeypatch):
    """The daemon's disk has no room, until it is called."""
    none = [True]

    def room(directory):
        if none:
            raise OSError(errno.ENOSPC, "planted")

    monkeypatch.setattr(outage, "_room", room)
    monkeypatch.setattr(outage, "LOOK", 0.001)
    return none.clear


def test_a_start_on_a_full_disk_waits_for_room_however_long_that_takes(tmp_path, launcher, monkeypatch, full, capfd):
    """Also one that met it inside of its sandbox, where the daemon's disk is full."""
    monkeypatch.setattr(starting, "LAUNCHES", 3)
    calls = failing(launcher, monkeypatch, failed(7, errno.ENOSPC), 1)
    looks = []

    async def play():
        async with engine(tmp_path, launcher) as running:
            watched = running.outage.full
            monkeypatch.setattr(running.outage, "full", lambda error: looks.append(1) or watched(error))
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            await until(lambda: len(looks) > 10)
            assert len(calls) == 1 and running.outage.text == "the daemon's disk has no room: planted"
            full()
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            assert (running.entries[number].job.attempt, len(calls), running.outage.text) == (1, 2, "")

    asyncio.run(play())
    assert capfd.readouterr().err.count("has no room") == 1


def test_a_job_whose_own_file_system_is_full_has_failed(tmp_path, launcher, monkeypatch, full):
    full()
    failing(launcher, monkeypatch, failed(7, errno.ENOSPC), 1)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            await until(lambda: not running.entries)
            assert queries.job(running.reader, number).state is State.FAILED

    asyncio.run(play())


def test_cancelled_while_the_disk_is_full(tmp_path, launcher, monkeypatch, full):
    calls = failing(launcher, monkeypatch, OSError(errno.ENOSPC, "planted"), 1_000_000)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            await until(lambda: running.outage.text)
            await running.cancel(number, "root", None)
            full()
            await until(lambda: not running.entries)
            assert (queries.job(running.reader, number).state, len(calls)) == (State.CANCELLED, 1)

    asyncio.run(play())


def test_not_for_ever(tmp_path, launcher, monkeypatch):
    monkeypatch.setattr(starting, "LAUNCHES", 3)
    calls = failing(launcher, monkeypatch, failed(-1, errno.EMFILE), 1000)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            await until(lambda: not running.entries)
            assert queries.job(running.reader, number).state is State.FAILED
            assert len(calls) == 3

    asyncio.run(play())


def test_cancelled_while_the_host_has_no_descriptors(tmp_path, launcher, monkeypatch):
    calls = failing(launcher, monkeypatch, failed(-1, errno.EMFILE), 1_000_000)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            await until(lambda: len(calls) > 1)
            await running.cancel(number, "root", None)
            await until(lambda: not running.entries)
            assert queries.job(running.reader, number).state is State.CANCELLED

    asyncio.run(play())


def test_the_daemon_ends_while_the_host_has_no_descriptors(tmp_path, launcher, monkeypatch):
    """The job then waits for the next one."""
    calls = failing(launcher, monkeypatch, failed(-1, errno.EMFILE), 1_000_000)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            await until(lambda: len(calls) > 1)
        monkeypatch.undo()
        monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
        async with engine(tmp_path, launcher) as running:
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            assert running.entries[number].job.attempt == 2

    asyncio.run(play())


@pytest.mark.parametrize("once", ["find", "list_all"])
def test_coming_back_without_descriptors(tmp_path, launcher, monkeypatch, once):
    """What an earlier daemon left is looked at again; nothing of it is ended or LOST for it."""
    numbers = []

    async def play():
        async with engine(tmp_path, launcher) as running:
            numbers.extend(await running.submit(ME, [plain()], None))
            await until(lambda: running.entries[numbers[0]].job.state is State.RUNNING)
        real, calls = getattr(launcher, once), []

        def want(*args):
            calls.append(args)
            if len(calls) < 4:
                raise OSError(errno.EMFILE, "planted")
            return real(*args)

        monkeypatch.setattr(launcher, once, want)
        async with engine(tmp_path, launcher) as running:
            assert running.entries[numbers[0]].job.state is State.RUNNING
            assert len(calls) >= 4
            (box,) = launcher.boxes.values()
            assert box.said == []

    asyncio.run(play())


def test_a_job_that_nobody_can_look_at_is_given_up(tmp_path, launcher, monkeypatch):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain(gpus="1")], None)
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            (box,) = launcher.boxes.values()
            looks = []

            def broken():
                looks.append(1)
                raise ValueError("planted")

            monkeypatch.setattr(box, "state", broken)
            monkeypatch.setattr(box, "exit", broken)
            box.end(None)
            await until(lambda: not running.entries)
            job = queries.job(running.reader, number)
            assert job.state is State.LOST
            assert "nor say whether it has ended (ValueError)" in job.reason
            assert len(looks) == ending.GIVE_UP + 1
            assert box.said.count("kill") == ending.GIVE_UP
            (second,) = await running.submit(ME, [plain(gpus="2")], None)  # both GPUs are free
            await until(lambda: running.entries[second].job.state is State.RUNNING)

    asyncio.run(play())


@pytest.fixture
def unkept(tmp_path, monkeypatch):
    """A directory of kept logs that takes nothing, until it is called."""
    real, refuse = os.rename, [True]

    def rename(source, target, **how):
        if refuse and str(target).startswith(str(tmp_path / "logs")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target, **how)

    monkeypatch.setattr(os, "rename", rename)
    return refuse.clear


@pytest.mark.parametrize("later", ["housekeeping", "the next daemon"])
def test_an_output_that_cannot_be_kept_is_said_and_kept_later(tmp_path, launcher, unkept, later):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            (box,) = launcher.boxes.values()
            box.labels["queue"] = running.queue_id
            (box.directory / "log").write_bytes(b"2026-01-31T12:00:00.123456789Z stdout F text\n")
            box.end(Exit(0, None))
            await until(lambda: not running.entries)
            job = queries.job(running.reader, number)
            assert (job.state, job.exit_code) == (State.COMPLETED, 0)
            assert job.reason == "its output is not kept yet: No space left on device"
            assert "remove" not in box.said
            await housekeeping.one_round(running)
            assert "remove" not in box.said
            kept = running.log_base(number, 1).with_name(box.id + ".log")
            assert not kept.exists()
            unkept()
            if later == "housekeeping":
                await housekeeping.one_round(running)
                assert running.kept._of_user[0]
        if later != "housekeeping":
            async with engine(tmp_path, launcher) as running:
                assert running.kept._of_user[0]
        assert kept.read_bytes().endswith(b"text\n")
        assert box.said[-1] == "remove"

    asyncio.run(play())


def test_a_directory_of_kept_logs_that_is_gone_loses_nothing(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            await until(lambda: running.entries[number].job.state is State.RUNNING)
            (box,) = launcher.boxes.values()
            (box.directory / "log").write_bytes(b"x")
            os.rmdir(running.logs)
            box.end(Exit(0, None))
            await until(lambda: not running.entries)
            assert "not kept yet: No such file or directory" in queries.job(running.reader, number).reason
            assert "remove" not in box.said

    asyncio.run(play())
