"""Jobs that wait and may not start yet: held, before their time, behind other jobs."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.stand_in import engine, plain, until, unwritable, why_waits

from dockless.errors import BadInput, NotPermitted, Refused, UnknownJob
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import State
from dockless.sched.callers import Caller
from dockless.sched.engine.waiting import aside, holding
from dockless.sched.jobs import JobSpec
from dockless.sched.parsing import parse_after
from dockless.sched.store import queries

ROOT = Caller(0, "root", frozenset(), True)
ANN = Caller(1001, "ann", frozenset(), False, account=True)


@asynccontextmanager
async def serving(directory, launcher):
    async with engine(directory, launcher) as running:
        running.admission._rights = lambda caller, job: None
        yield running
        for box in launcher.boxes.values():
            if box.state() == "running":
                box.end(Exit(0, None))
        for number in [*running.aside.kept]:
            await running.cancel(number, "root", None)


def box_of(running, launcher, number):
    return launcher.boxes[running.name(number, running.entries[number].job.attempt)]


async def runs(running, *numbers):
    await until(lambda: all(running.entries[number].job.state is State.RUNNING for number in numbers))


def stored(running, number):
    return queries.job(running.reader, number)


async def gone(running, launcher, number, code=0):
    box_of(running, launcher, number).end(Exit(code, None))
    await until(lambda: number not in running.entries)


async def at_rest(running):
    """Whatever could start has been started."""
    await until(lambda: not running._kicked and all(task.done() for task in running._tasks))


def test_a_held_job_starts_when_it_is_released(tmp_path, launcher):
    async def play():
        async with serving(tmp_path, launcher) as running:
            (number,) = await running.submit(ANN, [plain(hold=True)], None)
            await at_rest(running)
            assert why_waits(running, number) == "held by ann" and stored(running, number).options.held == "ann"
            await holding.release(running, number, ANN)
            await runs(running, number)
            assert stored(running, number).options.held == ""

    asyncio.run(play())


def test_tries_that_are_limited_to_exit_codes_need_a_number(tmp_path, launcher):
    async def story():
        async with serving(tmp_path, launcher) as running:
            with pytest.raises(BadInput, match="'retry_on' without 'retries'"):
                await running.submit(ANN, [plain(retry_on=(75,))], None)

    asyncio.run(story())


def test_a_hold_outlives_the_daemon(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            (number,) = await running.submit(ROOT, [plain(hold=True, begin=time.time() + 3600)], None)
        async with engine(tmp_path, launcher) as running:
            assert why_waits(running, number) == "held by root"
            await holding.release(running, number, ROOT)
            assert why_waits(running, number).startswith("begins at 2")
            await running.cancel(number, "root", None)
            assert stored(running, number).state is State.CANCELLED and not running.aside.kept

    asyncio.run(play())


def test_what_an_administrator_holds_its_owner_cannot_release(tmp_path, launcher):
    async def play():
        async with serving(tmp_path, launcher) as running:
            (number,) = await running.submit(ANN, [plain(hold=True)], None)
            await holding.hold(running, number, ROOT)
            assert why_waits(running, number) == "held by root"
            await holding.hold(running, number, ANN)
            with pytest.raises(NotPermitted, match="held by root, an administrator"):
                await holding.release(running, number, ANN)
            await holding.release(running, number, ROOT)
            await runs(running, number)
            for order in (holding.hold, holding.release):
                with pytest.raises(Refused, match="does not wait"):
                    await order(running, number, ANN)

    asyncio.run(play())


def test_a_hold_that_cannot_be_written_holds_nothing(tmp_path, launcher):
    async def play():
        async with serving(tmp_path, launcher) as running:
            first, second = await running.submit(ANN, [plain(), plain(begin=time.time() + 3600)], None)
            with unwritable(running):
                await holding.hold(running, second, ANN)
            assert why_waits(running, second).startswith("begins at ")
            await runs(running, first)

    asyncio.run(play())


def test_begin(tmp_path, launcher, monkeypatch):
    """By the clock of the wall, which is looked at again: somebody may set it."""
    clock = [1_800_000_000.0]
    monkeypatch.setattr(aside.time, "time", lambda: clock[0])
    monkeypatch.setattr(aside, "LOOK", 0.001)

    async def play():
        async with serving(tmp_path, launcher) as running:
            late, soon, now = await running.submit(ANN, [plain(begin=1_800_000_100.0 - n) for n in (0, 50, 200)], None)
            await runs(running, now)
            assert [why_waits(running, n) for n in (late, soon)] == ["begins at 2027-01-15T08:01:40Z", "begins at 2027-01-15T08:00:50Z"]
            clock[0] += 60
            await runs(running, soon)
            clock[0] -= 60
            await holding.hold(running, late, ANN)
            await holding.release(running, late, ANN)
            assert why_waits(running, late) == "begins at 2027-01-15T08:01:40Z" and len(running.aside._times) == 1
            clock[0] += 100
            await runs(running, late)

    asyncio.run(play())


def test_a_clock_that_was_set_back_is_waited_for_again(tmp_path, launcher, monkeypatch):
    """By a job whose time had come while it was held."""
    clock = [1_800_000_000.0]
    monkeypatch.setattr(aside.time, "time", lambda: clock[0])
    monkeypatch.setattr(aside, "LOOK", 0.001)

    async def play():
        async with serving(tmp_path, launcher) as running:
            (number,) = await running.submit(ANN, [plain(begin=1_800_000_100.0, hold=True)], None)
            clock[0] += 200
            await until(lambda: not running.aside._times)
            clock[0] -= 200
            await holding.release(running, number, ANN)
            assert why_waits(running, number) == "begins at 2027-01-15T08:01:40Z"
            clock[0] += 200
            await runs(running, number)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("how", "code", "outcome"),
    [("ok", 0, "runs"), ("ok", 3, "FAILED"), ("not-ok", 3, "runs"), ("not-ok", 0, "COMPLETED"), ("any", 0, "runs"), ("any", 3, "runs")],
)
@pytest.mark.parametrize("when", ["before", "after", "later"])
def test_after(tmp_path, launcher, how, code, outcome, when):
    """The other job has ended before, ends while it waits, or ended and a new daemon finds both."""

    async def play():
        async with engine(tmp_path, launcher) as running:
            running.admission._rights = lambda caller, job: None
            (other,) = await running.submit(ANN, [plain()], None)
            await runs(running, other)
            if when == "before":
                await gone(running, launcher, other, code)
            (number,) = await running.submit(ANN, [plain(after=(f"{how}:{other}",))], None)
            if when != "before":
                assert why_waits(running, number) == f"waits for the end of job {other}"
                if when == "later":  # this daemon does nothing more about it
                    running.aside.ended = lambda job: None
                await gone(running, launcher, other, code)
            if when != "later":
                await end(running, number)
        if when == "later":
            async with engine(tmp_path, launcher) as running:
                await end(running, number)

    async def end(running, number):
        if outcome == "runs":
            await runs(running, number)
            await gone(running, launcher, number)
        else:
            await until(lambda: number not in running.entries)
            found = stored(running, number)
            other = number - 1
            assert (found.state, found.reason) == (State.CANCELLED, f"dependency failed: job {other} ended {outcome}")

    asyncio.run(play())


def test_a_chain_fails_as_a_whole_and_an_array_waits_as_one(tmp_path, launcher):
    async def play():
        async with serving(tmp_path, launcher) as running:
            first, second = await running.submit(ANN, [plain(), plain()], None)
            await runs(running, first, second)
            array = await running.submit(ANN, [plain(after=(f"ok:{first}", f"any:{second}"))], 50)
            (last,) = await running.submit(ANN, [plain(after=(f"ok:{array[49]}",))], None)
            assert len(running.aside._after) == 2 and len(running.aside._waited_for) == 3
            assert why_waits(running, array[7]) == f"waits for the end of job {first} and 1 more"
            await gone(running, launcher, second, 1)
            assert why_waits(running, array[7]) == f"waits for the end of job {first}"
            await gone(running, launcher, first, 1)
            await until(lambda: not running.entries)
            assert stored(running, array[0]).reason == f"dependency failed: job {first} ended FAILED"
            assert stored(running, last).reason == f"dependency failed: job {array[49]} ended CANCELLED"
            assert not running.aside._after and not running.aside._waited_for and not running.aside.kept

    asyncio.run(play())


def test_jobs_that_cannot_be_waited_for(tmp_path, launcher):
    async def play():
        async with serving(tmp_path, launcher) as running:
            (roots,) = await running.submit(ROOT, [plain()], None)
            with pytest.raises(UnknownJob, match="no job 2 to wait for"):  # it would be its own number
                await running.submit(ANN, [plain(after=("ok:2",))], None)
            with pytest.raises(NotPermitted, match=f"job {roots} belongs to another user"):
                await running.submit(ANN, [plain(after=(f"any:{roots}",))], None)
            (mine,) = await running.submit(ROOT, [plain(after=(f"any:{roots}",))], None)
            assert why_waits(running, mine) == f"waits for the end of job {roots}"

    asyncio.run(play())


def test_one_job_of_a_name_at_a_time(tmp_path, launcher):
    async def play():
        async with serving(tmp_path, launcher) as running:
            first, second, third, other = await running.submit(
                ANN,
                [plain(name="n"), plain(name="n", singleton=True), plain(name="n", singleton=True), plain(name="m", singleton=True)],
                None,
            )
            (roots,) = await running.submit(ROOT, [plain(name="n", singleton=True)], None)
            await runs(running, first, other, roots)
            assert why_waits(running, second) == why_waits(running, third) == f"waits for the end of job {first}, which has the same name"
            await gone(running, launcher, first, 1)
            await runs(running, second)
            assert why_waits(running, third) == f"waits for the end of job {second}, which has the same name"
            await running.cancel(second, "ann", None)
            await runs(running, third)
            await gone(running, launcher, third)
            await gone(running, launcher, other)
            assert list(running.aside._named) == [(0, "n")]

    asyncio.run(play())


def test_jobs_that_are_cancelled_leave_nothing_in_memory(tmp_path, launcher, monkeypatch):
    """A user who submits and cancels all day, beside a job of hers that stays."""
    monkeypatch.setattr(aside, "AT_ONCE", 4)

    async def play():
        async with serving(tmp_path, launcher) as running:
            (stays,) = await running.submit(ROOT, [plain(name="x", hold=True)], None)
            orders = [plain(name="x", singleton=True), plain(begin=time.time() + 1e6), plain(after=(f"any:{stays}",))]
            for _ in range(30):
                numbers = [*await running.submit(ROOT, orders * 2, None), *await running.submit(ROOT, orders[2:], 3)]
                for number in numbers:
                    await running.cancel(number, "root", None)
            kept = running.aside
            assert (kept._after, kept._waited_for, kept._named) == ({}, {}, {(0, "x"): [stays]})
            assert len(kept._times) < 30 and [*kept.kept] == [stays]

    asyncio.run(play())


def test_the_number_of_an_array_stands_for_all_of_it(tmp_path, launcher):
    async def play():
        async with serving(tmp_path, launcher) as running:
            ids = await running.submit(ROOT, [plain(hold=True)], 3)
            whole, last, some = await running.submit(
                ROOT, [plain(after=("ok:1",)), plain(after=("any:3",)), plain(after=("ok:1", "any:2"))], None
            )
            assert [stored(running, number).options.after for number in (whole, last, some)] == [
                ("ok:1", "ok:2", "ok:3"), ("any:3",), ("ok:1", "any:2"),
            ]  # fmt: skip
            for number in ids[:2]:
                await holding.release(running, number, ROOT)
                await runs(running, number)
                await gone(running, launcher, number)
            await runs(running, some)
            assert why_waits(running, whole) == "waits for the end of job 3"
            await running.cancel(3, "root", None)
            await runs(running, last)
            await until(lambda: whole not in running.entries)
            assert stored(running, whole).reason == "dependency failed: job 3 ended CANCELLED"
            for count in (1000, 1001):
                (first, *_) = await running.submit(ROOT, [plain(hold=True)], count)
                if count == 1000:
                    await running.submit(ROOT, [plain(after=(f"ok:{first}",))], None)
                    with pytest.raises(BadInput, match="1001 jobs that each wait for 1000 others are too many"):
                        await running.submit(ROOT, [plain(after=(f"ok:{first}",))], 1001)
                    continue
                with pytest.raises(BadInput, match=f"with all jobs of array {first} these are more than the 1000"):
                    await running.submit(ROOT, [plain(after=(f"ok:{first}",))], None)
                await running.submit(ROOT, [plain(after=(f"ok:{first}", f"ok:{first + 1}"))], None)

    asyncio.run(play())


def test_dependencies_count_in_what_a_user_may_have(tmp_path, launcher):
    async def play():
        async with serving(tmp_path, launcher) as running:
            firsts = await running.submit(ROOT, [plain(hold=True)], 1000)
            before = running.per_user.size[0]
            (last,) = await running.submit(ROOT, [plain(after=tuple(f"any:{number}" for number in firsts))], None)
            assert running.per_user.size[0] - before > 200_000
            await running.cancel(last, "root", None)
            assert running.per_user.size[0] == before
            config = running.config
            running.configure(replace(config, per_user_size=200_000))
            with pytest.raises(Refused, match="of jobs in the queue"):
                await running.submit(ROOT, [plain(after=tuple(f"any:{number}" for number in firsts))], None)
            running.configure(config)

    asyncio.run(play())


def test_the_log_of_events_does_not_grow_with_holds(tmp_path, launcher):
    async def play():
        async with serving(tmp_path, launcher) as running:
            (number,) = await running.submit(ANN, [plain(hold=True)], None)
            for _ in range(20):
                await holding.release(running, number, ANN)
                await holding.hold(running, number, ANN)
            events = [row[0] for row in running.reader.execute("SELECT event FROM events WHERE job=? ORDER BY seq", (number,))]
            assert events.count("hold") == events.count("release") == 1 and events[-1] == "hold"

    asyncio.run(play())


def test_so_many_of_an_array_at_once(tmp_path, launcher):
    async def play():
        async with serving(tmp_path, launcher) as running:
            ids = await running.submit(ANN, [plain(array_limit=2)], 6)
            await runs(running, *ids[:2])
            await at_rest(running)
            assert len(launcher.boxes) == 2 and why_waits(running, ids[2]) == "of its array 2 may run at once"
            await holding.hold(running, ids[2], ANN)
            await running.cancel(ids[3], "ann", None)
            await gone(running, launcher, ids[0])
            await runs(running, ids[1], ids[4])
            await at_rest(running)
            await holding.release(running, ids[2], ANN)
            assert why_waits(running, ids[2]) == why_waits(running, ids[5]) == "of its array 2 may run at once"
            await gone(running, launcher, ids[1])
            await runs(running, ids[2], ids[4])
            await at_rest(running)
            assert why_waits(running, ids[5]) == "of its array 2 may run at once"
            for number in ids[2], ids[4]:
                await gone(running, launcher, number)
            await runs(running, ids[5])
            await gone(running, launcher, ids[5])
            assert not running.aside._arrays
            with pytest.raises(BadInput, match="is for arrays"):
                await running.submit(ANN, [plain(array_limit=2)], None)

    asyncio.run(play())


def test_a_daemon_that_comes_back_counts_what_runs_of_an_array(tmp_path, launcher):
    async def play():
        async with engine(tmp_path, launcher) as running:
            running.admission._rights = lambda caller, job: None
            ids = await running.submit(ANN, [plain(array_limit=2)], 4)
            await runs(running, *ids[:2])
        async with serving(tmp_path, launcher) as running:
            await at_rest(running)
            assert len(running.active) == 2 and len(running.aside.kept) == 2
            await gone(running, launcher, ids[0])
            await runs(running, ids[2])
            assert len(running.aside.kept) == 1

    asyncio.run(play())


@pytest.mark.parametrize(
    ("text", "after", "singleton"),
    [
        ("", (), False),
        ("ok:12", ("ok:12",), False),
        ("ok:12,any:13,not-ok:14", ("ok:12", "any:13", "not-ok:14"), False),
        ("afterok:12:13,afterany:14,afternotok:15,singleton", ("ok:12", "ok:13", "any:14", "not-ok:15"), True),
        ("ok:20-22:30", ("ok:20", "ok:21", "ok:22", "ok:30"), False),
    ],
)
def test_words_for_what_a_job_waits_for(text, after, singleton):
    assert parse_after(text) == (after, singleton)


@pytest.mark.parametrize(
    "text",
    ["12", "ok", "ok:", "ok:x", "after:12", "aftercorr:12", "afterok:12?afterok:13", "ok:5-4", "ok:1-2000", "ok:-3", "ok:0x1", "ok:١"],
)
def test_words_that_cannot_be_read(text):
    with pytest.raises(BadInput):
        parse_after(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"singleton": True}, {"after": ("ok:1", "any:1")}, {"after": tuple(f"ok:{n}" for n in range(1, 1002))}, {"after": ("12",)},
        {"begin": -1.0}, {"begin": float("nan")}, {"begin": 1e12}, {"array_limit": -1},
    ],
)  # fmt: skip
def test_orders_that_cannot_be_meant(fields):
    with pytest.raises(BadInput):
        JobSpec(Spec(), **fields)
