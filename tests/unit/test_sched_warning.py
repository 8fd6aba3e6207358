"""A signal before a job's time limit: once an attempt, whatever becomes of the daemon."""

from __future__ import annotations

import asyncio

import pytest
from support.stand_in import engine, left_running, until

from dockless.base.records import differences
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import State, clock
from dockless.sched.callers import Caller
from dockless.sched.engine.lifecycle import again
from dockless.sched.jobs import JobOptions, JobSpec
from dockless.sched.store import queries

ROOT = Caller(0, "root", frozenset(), True)
SOON = JobSpec(Spec(argv=("true",)), time_limit=3600.0, warn_signal=10, warn_before=3599.9, retries=1)


async def warned(running, launcher, number, attempt):
    name = running.name(number, attempt)
    await until(lambda: name in launcher.boxes and launcher.boxes[name].said)
    assert queries.job(running.reader, number).options.warned == attempt
    return launcher.boxes[name]


async def end(running, box, number, code):
    box.end(Exit(code, None))
    await until(lambda: number not in running.entries)


def test_each_attempt_is_warned_once(tmp_path, launcher, monkeypatch):
    monkeypatch.setattr(again, "LONGEST_PAUSE", 0.0)

    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [differences(SOON)], None)
            (await warned(running, launcher, number, 1)).end(Exit(7, None))
            box = await warned(running, launcher, number, 2)
        async with engine(tmp_path, launcher) as running:
            await until(lambda: running.entries[number].pidfd >= 0)
            assert all(task.done() for task in running._tasks) and box.said == ["signal 10"]
            await end(running, box, number, 0)

    asyncio.run(play())


@pytest.mark.parametrize(("ago", "said"), [(3550.0, ["signal 10"]), (3400.0, [])])
def test_a_daemon_that_comes_back(tmp_path, launcher, ago, said):
    """Where the time for it has passed meanwhile, and where it has not."""
    options = JobOptions(warn_signal=10, warn_before=100.0)
    number, box = left_running(tmp_path, launcher, ticks=clock.ticks() - ago, time_limit=3600.0, options=options)

    async def play():
        async with engine(tmp_path, launcher) as running:
            await until(lambda: running.entries[number].pidfd >= 0 and all(task.done() for task in running._tasks))
            assert box.said == said and running.entries[number].job.state is State.RUNNING
            await end(running, box, number, 0)

    asyncio.run(play())


def test_one_that_is_told_to_end_is_not_warned(tmp_path, launcher):
    options = JobOptions(warn_signal=10, warn_before=100.0)
    number, box = left_running(tmp_path, launcher, ticks=clock.ticks() - 3550.0, time_limit=3600.0, options=options, cancelled=True)

    async def play():
        async with engine(tmp_path, launcher) as running:
            await until(lambda: number not in running.entries)
            assert "stop" in box.said and "signal 10" not in box.said

    asyncio.run(play())
