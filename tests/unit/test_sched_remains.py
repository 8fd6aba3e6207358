"""What an ended job leaves, kept and removed at once, later or by the next daemon; and how a running one is ended."""

from __future__ import annotations

import asyncio
import os
import threading
from types import SimpleNamespace

import pytest
from support.stand_in import DEADLINE, Box, engine, plain, until

from dockless.errors import SandboxGone
from dockless.sandbox.run.process import Exit
from dockless.sched import State, clock
from dockless.sched.callers import Caller
from dockless.sched.config import Config
from dockless.sched.engine import stopping
from dockless.sched.engine.lifecycle import remains
from dockless.sched.store import queries

ME = Caller(0, "root", frozenset(), True)
pytestmark = pytest.mark.usefixtures("two_gpus", "killed_again_soon")


async def run(running, launcher):
    """A job that runs: its number and its sandbox."""
    (number,) = await running.submit(ME, [plain()], None)
    await until(lambda: running.entries[number].pidfd >= 0)
    return number, launcher.boxes[running.name(number, 1)]


def kept(running):
    return {path.name: path.read_text() for path in running.logs.iterdir()}


def test_output_is_kept_up_to_so_much(tmp_path, launcher):
    """The newest of each user: an older one's makes room at the moment another comes."""

    async def play():
        async with engine(tmp_path, launcher, Config(logs_per_user=9)) as running:
            names = []
            for text in ("first", "second", "x"):
                _, box = await run(running, launcher)
                names.append(box.id)
                (box.directory / "log").write_text(text)
                box.end(Exit(0, None))
                await until(lambda box=box: box.said == ["remove"])
            assert kept(running) == {f"{names[1]}.log": "second", f"{names[2]}.log": "x"}

    asyncio.run(play())


def test_what_cannot_be_removed_is_said_and_tried_again(tmp_path, launcher, capfd):
    async def play():
        async with engine(tmp_path, launcher) as running:
            number, box = await run(running, launcher)
            real = box.remove
            box.remove = lambda: (_ for _ in ()).throw(ValueError("hunter2"))
            box.end(Exit(0, None))
            await until(lambda: running.left == [box])
            assert queries.job(running.reader, number).state is State.COMPLETED
            await remains.clear_left(running)
            assert running.left == [box]
            box.remove = real
            await remains.clear_left(running)
            assert running.left == [] and box.said == ["remove"]
            box.lighten = lambda: (_ for _ in ()).throw(ValueError("hunter2"))
            await remains.lighten(running, box)

    asyncio.run(play())
    said = capfd.readouterr().err
    assert said.count(" is not removed yet: ValueError in ") == 2 and ": its files are not removed yet: ValueError in " in said
    assert "hunter2" not in said


def test_what_an_earlier_daemon_left(tmp_path, launcher):
    """Of jobs that ended its output is kept, unless its time is over; of what no job is known it is not; what lives, and what is not of
    this queue, is left alone."""
    boxes = {}

    async def play():
        async with engine(tmp_path, launcher, Config(keep_days=1.0)) as running:
            for _ in range(2):
                _, box = await run(running, launcher)
                box.end(Exit(0, None))
                await until(lambda box=box: box.said == ["remove"])
            _, living = await run(running, launcher)
            labels = {"queue": running.queue_id}
            for what, name in (("ended", "job-1-7"), ("old", "job-2-7"), ("unknown", "job-99-1"), ("odd", "job-x-1"), ("other", "box")):
                box = boxes[what] = Box(
                    f"{name}-{running.queue_id[:8]}", launcher.place / name, labels if what != "other" else {}, now="exited"
                )
                (box.directory / "log").write_text(what)
                launcher.boxes[box.id] = box
            os.utime(boxes["old"].directory, (1.0, 1.0))
            (running.logs / "of-another-queue.log").write_text("older than a day")
            os.utime(running.logs / "of-another-queue.log", (1.0, 1.0))
        async with engine(tmp_path, launcher, Config(keep_days=1.0)) as running:
            assert kept(running) == {f"{boxes['ended'].id}.log": "ended"}
            assert {what: box.said for what, box in boxes.items()} == {
                "ended": ["remove"], "old": ["remove"], "unknown": ["remove"], "odd": ["remove"], "other": [],
            }  # fmt: skip
            assert living.said == [] and running.kept._uids == {boxes["ended"].id: 0}

    asyncio.run(play())


def test_a_directory_that_is_gone_is_not_old(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            box = Box("job-1-1-x", tmp_path / "gone")
            assert not remains._is_old(running, box)
            os.utime(box.directory, (1.0, 1.0))
            assert remains._is_old(running, box)
            box.directory.rmdir()
            assert not remains._is_old(running, box)

    asyncio.run(play())


# -- how a running one is ended


def test_who_asks_again_can_only_make_it_shorter(tmp_path, launcher, monkeypatch):
    async def play():
        async with engine(tmp_path, launcher) as running:
            number, box = await run(running, launcher)
            entry = running.entries[number]
            box.send_stop = lambda: box.said.append("stop")
            with monkeypatch.context() as patch:
                patch.setattr(clock, "ticks", lambda: 1e9)
                entry.grace = 500.0
                times = []
                for grace in (None, 700.0, 300.0, None):
                    stopping.stop(running, entry, grace)
                    times.append(entry.stop_by - 1e9)
                assert times == [500.0, 500.0, 300.0, 300.0]
                await until(lambda: box.said == ["stop"])
                stopping.stop(running, entry, 0.0)
                await until(lambda: box.said.count("kill") > 2)
            assert box.said.count("stop") == 1
            box.end(Exit(None, 9))
            await until(lambda: number not in running.entries)
            entry.stop_by = None
            stopping.stop(running, entry, 0.0)  # it has ended
            assert entry.stop_by is None

    asyncio.run(play())


def test_the_daemons_own_end_stops_nothing(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            number, _ = await run(running, launcher)
            running.closing = True
            stopping.stop(running, running.entries[number], 0.0)
            assert running.entries[number].stop_by is None and running.entries[number].hurry is None
            running.closing = False

    asyncio.run(play())


@pytest.mark.parametrize("error", [ValueError("hunter2"), SandboxGone("it is just ending")])
def test_a_stop_signal_that_cannot_be_sent_keeps_nothing_from_its_end(tmp_path, launcher, capfd, error):
    async def play():
        async with engine(tmp_path, launcher) as running:
            number, box = await run(running, launcher)
            box.send_stop = lambda: (_ for _ in ()).throw(error)
            box.on_kill = lambda: box.end(Exit(None, 9))
            await running.cancel(number, "root", 0.0)
            await until(lambda: number not in running.entries)
            assert queries.job(running.reader, number).state is State.CANCELLED

    asyncio.run(play())
    said = capfd.readouterr().err
    if isinstance(error, ValueError):
        assert said.startswith("dockless daemon: job 1 cannot be sent its stop signal: ValueError in ") and said.endswith("; going on\n")
    else:
        assert said == ""


def test_one_that_is_just_being_launched_is_found_by_its_name(tmp_path, launcher, monkeypatch):
    """It is killed when its time is over, though nobody has been given a hold of it yet."""
    gate, start = threading.Event(), launcher.start

    def slowly(*args, **how):
        box = start(*args, **how)
        assert gate.wait(DEADLINE)
        return box

    monkeypatch.setattr(launcher, "start", slowly)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            try:
                await until(lambda: launcher.boxes)
                (box,) = launcher.boxes.values()
                await running.cancel(number, "root", 0.0)
                await until(lambda: "kill" in box.said)
                assert running.entries[number].handle is None and "stop" not in box.said
            finally:
                gate.set()
            await until(lambda: number not in running.entries)
            assert "stop" in box.said

    asyncio.run(play())


def test_one_that_is_nowhere_yet_is_not_killed(tmp_path, launcher, monkeypatch, capfd):
    gate, asked, looked, start, find = threading.Event(), threading.Event(), [], launcher.start, launcher.find

    def slowly(*args, **how):
        asked.set()
        assert gate.wait(DEADLINE)
        return start(*args, **how)

    monkeypatch.setattr(launcher, "start", slowly)
    monkeypatch.setattr(launcher, "find", lambda name: looked.append(name) or find(name))

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ME, [plain()], None)
            try:
                await until(asked.is_set)
                await running.cancel(number, "root", 0.0)
                await until(lambda: len(looked) > 2)
                assert set(looked) == {running.name(number, 1)}
            finally:
                gate.set()
            await until(lambda: number not in running.entries)

    asyncio.run(play())
    assert capfd.readouterr().err == ""


def test_removals_are_done_behind_by_as_few_threads_as_it_takes(tmp_path, launcher, monkeypatch):
    """What takes long keeps neither the others nor the ends of jobs; the daemon's own end waits for what has been begun."""
    monkeypatch.setattr(remains, "MANY", 2)
    held, by = threading.Event(), {}

    def box(name):
        def remove():
            by[name] = threading.get_ident()
            if name == "long":
                held.wait(DEADLINE)

        return SimpleNamespace(id=name, remove=remove)

    async def play():
        async with engine(tmp_path, launcher) as running:
            running.removals.add(box("long"))
            await until(lambda: "long" in by)
            for name in ("a", "b"):
                running.removals.add(box(name))
            assert len(by) == 1  # few enough to wait
            running.removals.add(box("c"))
            await until(lambda: len(by) == 4)
            assert by["long"] not in (by["a"], by["b"], by["c"]) and len({by["a"], by["b"], by["c"]}) == 1
            held.set()
            running.removals.add(box("last"))
        assert "last" in by

    asyncio.run(play())


def test_the_daemons_own_end_waits_for_what_is_being_removed_but_not_for_ever(tmp_path, launcher):
    held, removed = threading.Event(), []

    def remove():
        held.wait(DEADLINE)
        removed.append(1)

    async def play():
        async with engine(tmp_path, launcher) as running:
            over = running.removals.over
            running.removals.add(SimpleNamespace(id="held", remove=remove))
            try:
                await asyncio.wait_for(over(0.001), DEADLINE / 10)
            except TimeoutError:
                held.set()
                raise
            assert not removed
            running.removals.over = lambda seconds: held.set() or over(seconds)
        assert removed

    try:
        asyncio.run(play())
    finally:
        held.set()
