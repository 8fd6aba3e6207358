"""GPUs, or the host, on which nothing new is started."""

from __future__ import annotations

import asyncio

import pytest
from support.stand_in import engine, plain, until, unwritable, why_waits

from dockless.errors import BadInput, NotPermitted, UnknownGpu
from dockless.sandbox.run.process import Exit
from dockless.sched import State
from dockless.sched.callers import Caller
from dockless.sched.engine.gpus.draining import drain, undrain
from dockless.sched.wire.answers import Answers

ROOT = Caller(0, "root", frozenset(), True)
ANN = Caller(1001, "ann", frozenset(), False)
pytestmark = pytest.mark.usefixtures("two_gpus")


async def runs(running, *numbers):
    await until(lambda: all(running.entries[number].job.state is State.RUNNING for number in numbers))


async def at_rest(running):
    await until(lambda: not running._kicked and all(task.done() for task in running._tasks))


def test_a_drained_gpu_gets_no_new_jobs(tmp_path, launcher):
    """What runs on it goes on; after a restart it is drained still."""

    async def play():
        async with engine(tmp_path, launcher) as running:
            (first,) = await running.submit(ROOT, [plain(gpus="device=0")], None)
            await runs(running, first)
            await drain(running, ROOT, ["0", running.gpus.uuids[1]], False, "disk change")
            (second,) = await running.submit(ROOT, [plain(gpus="1")], None)
            await at_rest(running)
            assert running.entries[first].job.state is State.RUNNING and running.entries[second].job.state is State.PENDING
            why = why_waits(running, second)
            assert why.endswith("GPU 1 is out of service: drained by root: disk change") and "outside" not in why
            assert [gpu.trouble for gpu in Answers(running).info().gpus] == ["drained by root: disk change"] * 2
        async with engine(tmp_path, launcher) as running:
            await at_rest(running)
            assert running.entries[second].job.state is State.PENDING
            await undrain(running, ROOT, ["1"], False)
            await runs(running, second)
            assert [gpu.trouble for gpu in Answers(running).info().gpus] == ["drained by root: disk change", ""]
            await undrain(running, ROOT, [], True)
            assert running.drained == {} and [gpu.trouble for gpu in Answers(running).info().gpus] == ["", ""]

    asyncio.run(play())


def test_a_drained_host_starts_nothing(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (first,) = await running.submit(ROOT, [plain()], None)
            await runs(running, first)
            await drain(running, ROOT, [], True, "")
            (second,) = await running.submit(ROOT, [plain()], None)
        async with engine(tmp_path, launcher) as running:
            await at_rest(running)
            answers = Answers(running)
            assert len(launcher.boxes) == 1 and answers.info().drained == "drained by root"
            assert running.gpus.reasons == dict.fromkeys(running.gpus.uuids, "drained by root"), "nobody else leases them meanwhile"
            assert why_waits(running, second) == "nothing is started: the host was drained by root"
            assert (await answers.why(ROOT, second, lambda: asyncio.sleep(0))).reason == why_waits(running, second)
            launcher.boxes[running.name(first, 1)].end(Exit(0, None))
            await until(lambda: first not in running.entries)
            await undrain(running, ROOT, [], True)
            await runs(running, second)
            assert answers.info().drained == ""

    asyncio.run(play())


def test_who_may_drain_what(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            for order in (drain(running, ANN, ["0"], False, ""), undrain(running, ANN, [], True)):
                with pytest.raises(NotPermitted, match="for administrators"):
                    await order
            with pytest.raises(UnknownGpu, match="no GPU 7"):
                await drain(running, ROOT, ["0", "7"], False, "")
            with pytest.raises(BadInput, match="too long or not printable"):
                await drain(running, ROOT, ["0"], False, "a\nb")
            with unwritable(running):
                await drain(running, ROOT, ["0"], False, "")
            assert running.drained == {}

    asyncio.run(play())
