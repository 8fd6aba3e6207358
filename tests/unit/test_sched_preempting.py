"""A job that borrowed GPUs is told to end, and runs again: seen from its first signal to its second attempt."""

from __future__ import annotations

import asyncio

import pytest
from support.quotas import limits
from support.stand_in import StandIn, engine, plain, until

from dockless.errors import SchedError
from dockless.sandbox.run.process import Exit
from dockless.sched import State, clock
from dockless.sched.callers import Caller
from dockless.sched.config import Config
from dockless.sched.engine import outage, queue_state
from dockless.sched.engine.lifecycle import preempting, remains
from dockless.sched.policy.quotas import ClassQuota, Quota
from dockless.sched.policy.state import Preemption
from dockless.sched.store import queries, queue

ROOT = Caller(0, "root", frozenset(), True)
ANN = Caller(1001, "ann", frozenset(), False)
CONFIG = Config(limits({"ann": Quota(guarantee=1)}), preemption=Preemption(0.0, 3600.0))
pytestmark = pytest.mark.usefixtures("two_gpus", "killed_again_soon")


async def running_again(running, launcher, number, attempt):
    await until(lambda: running.entries[number].job.attempt == attempt and running.entries[number].pidfd >= 0)
    return launcher.boxes[running.name(number, attempt)]


async def borrowed(running, launcher, **fields):
    """A job on all GPUs, and one of another user's with a guarantee of one of them, for which it has been told to end."""
    (wide,) = await running.submit(ROOT, [plain(gpus="2", **fields)], None)
    box = await running_again(running, launcher, wide, 1)
    box.send_stop = lambda: box.said.append("stop")
    (small,) = await running.submit(ANN, [plain(gpus="1")], None)
    await until(lambda: box.said)
    return wide, small, box


def tries(running, number):
    return [(str(one.state), one.reason) for one in queries.job(running.reader, number).attempts]


def test_a_guarantee_of_a_class(tmp_path, monkeypatch):
    """The A100 that is free does not do, and the job that has the other H100 is within a guarantee itself."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G:H100+1x40G:A100")
    launcher = StandIn(tmp_path / "boxes")
    one = Quota(classes={"H100": ClassQuota(guarantee=1)})
    config = Config(limits({"ann": one, "root": one}), preemption=Preemption(0.0, 3600.0))

    async def play():
        async with engine(tmp_path, launcher, config) as running:
            boxes = []
            for _ in range(2):
                (number,) = await running.submit(ROOT, [plain(gpus="class=H100")], None)
                boxes.append(await running_again(running, launcher, number, 1))
                boxes[-1].send_stop = lambda box=boxes[-1]: box.said.append("stop")
            (small,) = await running.submit(ANN, [plain(gpus="class=H100")], None)
            await until(lambda: boxes[1].said)
            assert boxes[0].said == []
            reason = running.decision.reason(running.entries[small].waiting)
            assert reason.code == "guarantee" and "within the guarantee of user ann for class H100; starts in about " in reason.text

    asyncio.run(play())


@pytest.mark.parametrize("code", [0, 1])
def test_what_is_borrowed_is_given_back_and_runs_again(tmp_path, code):
    """Whatever it says when it ends: of many programs that are told to end the exit code is 0."""
    launcher = StandIn(tmp_path / "boxes")

    async def play():
        async with engine(tmp_path, launcher, CONFIG) as running:
            wide, small, box = await borrowed(running, launcher)
            entry = running.entries[wide]
            assert box.said == ["stop"] and running.entries[small].job.state is State.PENDING
            assert entry.stop_by > clock.ticks() + 3000  # the grace of a preemption, not the job's own
            assert queries.job(running.reader, wide).options.preempted_by == small
            passed = running.decision
            running.kick()
            await until(lambda: running.decision is not passed)
            assert box.said == ["stop"] and running.decision.preempts == []  # told once
            reason = running.decision.reason(running.entries[small].waiting)
            assert reason.code == "guarantee" and "within the guarantee of user ann; starts in about " in reason.text
            box.end(Exit(code, None))
            first = await running_again(running, launcher, small, 1)
            assert entry.job.state is State.PENDING and tries(running, wide) == [("ENDED", f"preempted for job {small}")]
            assert entry.job.options.preempted_by == 0 == queries.job(running.reader, wide).options.preempted_by
            first.end(Exit(0, None))
            again = await running_again(running, launcher, wide, 2)
            assert entry.stop_by is None and again.said == []
            again.end(Exit(0, None))
            await until(lambda: wide not in running.entries)
            assert queries.job(running.reader, wide).state is State.COMPLETED

    asyncio.run(play())


def test_a_mark_that_cannot_be_written_waits_for_the_disk(tmp_path, monkeypatch):
    """Which is told once, and nothing is tried until there is room; the job runs on unmarked."""
    monkeypatch.setattr(outage, "LOOK", 0.01)
    launcher = StandIn(tmp_path / "boxes")

    written = None

    def full(*_):
        raise SchedError("disk is full", subject="jobs.db")

    def write(change):
        return asyncio.ensure_future(asyncio.to_thread(full)) if "set_options" in change.__code__.co_names else written(change)

    async def play():
        nonlocal written
        async with engine(tmp_path, launcher, CONFIG) as running:
            (wide,) = await running.submit(ROOT, [plain(gpus="2")], None)
            box = await running_again(running, launcher, wide, 1)
            box.send_stop = lambda: box.said.append("stop")
            entry = running.entries[wide]
            with monkeypatch.context() as patch:
                written = running.write
                patch.setattr(running, "write", write)
                patch.setattr(outage, "_touch", full)
                (small,) = await running.submit(ANN, [plain(gpus="1")], None)
                await until(lambda: "disk is full" in running.outage.text)
                await until(lambda: entry.stop_by is None)
                assert entry.job.options.preempted_by == 0 and not running._kicked
            await until(lambda: "stop" in box.said)
            assert running.outage.text == "" and queries.job(running.reader, wide).options.preempted_by == small
            box.end(Exit(0, None))

    asyncio.run(play())


def test_whose_end_is_being_written_down_gives_back_nothing_more(tmp_path, monkeypatch):
    """The mark was taken over by the next attempt, which ran twice, whatever its end."""
    launcher = StandIn(tmp_path / "boxes")
    keep, reached, go = remains.keep, asyncio.Event(), asyncio.Event()

    async def slowly(*args):
        reached.set()
        await go.wait()
        return await keep(*args)

    async def play():
        monkeypatch.setattr(remains, "keep", slowly)
        async with engine(tmp_path, launcher, CONFIG) as running:
            (wide,) = await running.submit(ROOT, [plain(gpus="2")], None)
            (await running_again(running, launcher, wide, 1)).end(Exit(0, None))
            await reached.wait()
            (small,) = await running.submit(ANN, [plain(gpus="1")], None)
            await until(lambda: running.decision is not None and running.decision.preempts)
            assert not running.entries[wide].job.options.preempted_by
            go.set()
            (await running_again(running, launcher, small, 1)).end(Exit(0, None))
            await until(lambda: not running.entries)
            assert queries.job(running.reader, wide).state is State.COMPLETED

    asyncio.run(play())


def test_its_own_signal_and_the_end_of_its_grace(tmp_path):
    launcher = StandIn(tmp_path / "boxes")

    async def play():
        config = Config(CONFIG.quotas, preemption=Preemption(0.0, 0.0), preempt_signal=10)
        async with engine(tmp_path, launcher, config) as running:
            (wide,) = await running.submit(ROOT, [plain(gpus="2")], None)
            box = await running_again(running, launcher, wide, 1)
            box.on_kill = lambda: box.end(Exit(None, 9))
            (small,) = await running.submit(ANN, [plain(gpus="1")], None)
            await running_again(running, launcher, small, 1)
            assert box.said[:2] == ["signal 10", "kill"] and tries(running, wide) == [("ENDED", f"preempted for job {small}")]

    asyncio.run(play())


def test_a_cancel_and_its_time_limit_end_it_for_good(tmp_path):
    launcher = StandIn(tmp_path / "boxes")

    async def play():
        async with engine(tmp_path, launcher, CONFIG) as running:
            wide, small, box = await borrowed(running, launcher)
            await running.cancel(wide, "root", None)
            box.end(Exit(None, 15))
            first = await running_again(running, launcher, small, 1)
            assert queries.job(running.reader, wide).state is State.CANCELLED
            first.end(Exit(0, None))
            await until(lambda: not running.entries)
            wide, _, box = await borrowed(running, launcher, time_limit=3600.0)
            box.end(Exit(None, 9, timed_out=True))
            await until(lambda: wide not in running.entries)
            assert queries.job(running.reader, wide).state is State.TIMEOUT

    asyncio.run(play())


def test_a_daemon_that_comes_back_goes_on_with_it(tmp_path):
    """Ended between the mark and the signal: the next one sends it."""
    launcher = StandIn(tmp_path / "boxes")

    async def first(monkeypatch):
        async with engine(tmp_path, launcher, CONFIG) as running:
            (wide,) = await running.submit(ROOT, [plain(gpus="2")], None)
            box = await running_again(running, launcher, wide, 1)
            monkeypatch.setattr(preempting, "go_on", lambda *_: None)
            (small,) = await running.submit(ANN, [plain(gpus="1")], None)
            await until(lambda: queries.job(running.reader, wide).options.preempted_by == small)
            assert not box.said
            return wide, small, box

    async def second(wide, small, box):
        async with engine(tmp_path, launcher, CONFIG) as running:
            await running_again(running, launcher, small, 1)
            assert box.said[0] == "stop" and tries(running, wide) == [("ENDED", f"preempted for job {small}")]

    with pytest.MonkeyPatch.context() as patch:
        found = asyncio.run(first(patch))
    asyncio.run(second(*found))


def test_nobody_gives_back_where_nothing_is_guaranteed(tmp_path):
    launcher = StandIn(tmp_path / "boxes")

    async def play():
        async with engine(tmp_path, launcher, Config(preemption=Preemption(0.0, 0.0))) as running:
            (wide,) = await running.submit(ROOT, [plain(gpus="2")], None)
            box = await running_again(running, launcher, wide, 1)
            (small,) = await running.submit(ANN, [plain(gpus="1")], None)
            await until(lambda: running.decision is not None and running.decision.held(running.entries[small].waiting))
            assert box.said == [] and running.decision.preempts == []

    asyncio.run(play())


def test_a_fair_order_knows_what_was_before(tmp_path):
    """Who had both GPUs until now waits behind who had none, also for a daemon that has just come back."""
    launcher = StandIn(tmp_path / "boxes")
    config = Config(order="fair")

    async def first():
        async with engine(tmp_path, launcher, config) as running:
            (wide,) = await running.submit(ROOT, [plain(gpus="2")], None)
            (await running_again(running, launcher, wide, 1)).end(Exit(0, None))
            await until(lambda: not running.entries)
            found = queue_state.state(running).usage
            assert set(found) == {"user root"} and 0 < found["user root"] < 600
            return found["user root"]

    async def second(before):
        async with engine(tmp_path, launcher, config) as running:
            assert abs(queue_state.state(running).usage["user root"] - before) < 1.0
            blocker = await running.submit(ROOT, [plain(gpus="2")], None)
            box = await running_again(running, launcher, blocker[0], 1)
            (mine,) = await running.submit(ROOT, [plain(gpus="2")], None)
            (theirs,) = await running.submit(ANN, [plain(gpus="2")], None)
            box.end(Exit(0, None))
            await running_again(running, launcher, theirs, 1)
            assert running.entries[mine].job.state is State.PENDING

    before = asyncio.run(first())
    asyncio.run(second(before))


def test_settings_that_are_read_again_forget_nothing_of_a_fair_order(tmp_path):
    """Whoever has ten thousand short jobs after a long one has it forgotten by the queue, and not by the order."""
    launcher = StandIn(tmp_path / "boxes")

    async def play():
        async with engine(tmp_path, launcher, Config(order="fair")) as running:
            (number,) = await running.submit(ROOT, [plain(gpus="1")], None)
            box = await running_again(running, launcher, number, 1)
            assert queue_state.state(running).usage
            box.end(Exit(0, None))
            await until(lambda: number not in running.entries)
            had = queue_state.state(running).usage["user root"]
            await running.write(lambda db: queue.forget(db, 1e12, 0, 100))
            running.configure(Config(order="fair", keep_jobs=0))
            assert queue_state.state(running).usage["user root"] == pytest.approx(had, rel=0.01) and had > 0
            running.configure(Config(order="fair", half_life=60.0))  # read again from the queue, which has less than a second of it
            assert not queue_state.state(running).usage

    asyncio.run(play())


def test_a_fair_order_forgets_by_and_by(tmp_path):
    """A daemon that comes back counts what both GPUs were used for one half-life ago as half of it."""
    launcher = StandIn(tmp_path / "boxes")
    config = Config(order="fair", half_life=3600.0)

    async def first():
        async with engine(tmp_path, launcher, config) as running:
            (wide,) = await running.submit(ROOT, [plain(gpus="2")], None)
            (await running_again(running, launcher, wide, 1)).end(Exit(0, None))
            await until(lambda: not running.entries)
            await running.write(lambda db: db.execute("UPDATE attempts SET started = ended - 3600 - 100, ended = ended - 3600"))

    async def second():
        async with engine(tmp_path, launcher, config) as running:
            assert queue_state.state(running).usage["user root"] == pytest.approx(100, rel=0.05)

    asyncio.run(first())
    asyncio.run(second())
