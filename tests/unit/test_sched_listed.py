"""When each job of a listing starts: for many at once, and as it is found for one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import pytest
from support.desk import ANN, BEN, PEOPLE, play
from support.quotas import limits
from support.stand_in import until

from dockless.base.dataclass import replace
from dockless.errors import Refused
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State, clock
from dockless.sched.config import Config
from dockless.sched.policy import forecast
from dockless.sched.policy.waiting import WaitingJob, WaitingList, order


@pytest.fixture(autouse=True)
def _gpus(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "4x80G")


def plainly(answers, numbers, found):
    """``Answers.starts`` as one would write it: each job is looked for, and asked about, alone."""
    engine, now, decision = answers.engine, clock.ticks(), answers.engine.decision
    starts, after = {}, {}
    for number in numbers:
        job = engine.entries.seen(number)
        if job is None:
            continue
        at = found.starts.get(job.id)
        if job.id in engine.aside.kept:
            foretold = engine.aside.follows(job.id)
        else:
            foretold = job in engine.waiting and answers._held(job)
            kept = decision.reason(job, now).starts_at
            at = kept if at is None and not found.whole else at
        if foretold and at is not None:
            starts[number] = max(0.0, at - now)
        elif foretold and not found.whole and found.until is not None:
            after[number] = max(0.0, found.until - now)
    return starts, after


def some_job(dice: random.Random, **fields) -> JobSpec:
    gpus = dice.choice(("", "1", "1", "2", "3", "4", "device=0", "device=1,2"))
    limit = dice.choice((0.0, 60.0, 61.0, 600.0, 7200.0, 7200.0 * dice.random() + 1))
    return JobSpec(Spec(argv=("true",)), gpus=gpus, time_limit=limit, priority=dice.choice((0, 0, 0, -1)), **fields)


async def fill(desk, dice: random.Random) -> None:
    for _ in range(dice.randint(2, 5)):
        who = dice.choice((ANN, BEN))
        with contextlib.suppress(Refused):  # for more GPUs than the quota has
            await some(desk, dice, who)
    await desk.submit(BEN, *[JobSpec(Spec(argv=("true",)), gpus="4", time_limit=600.0, priority=priority) for priority in (0, -1, 0, -1)])


async def some(desk, dice: random.Random, who: int) -> None:
    match dice.randint(0, 5):
        case 0:
            many, limit = some_job(dice, array_limit=dice.choice((0, 1, 2))), dice.randint(2, 12)
            await desk(who, lambda queue, many=many, limit=limit: queue.submit_array(many, limit))
        case 1:
            roles = [some_job(dice, role=role) for role in "abc"[: dice.randint(1, 3)]]
            roles = [JobSpec(one.spec, gpus="1", time_limit=one.time_limit, role=one.role) for one in roles]
            await desk(who, lambda queue, roles=roles: queue.submit_gang(roles))
        case 2:
            await desk.submit(who, some_job(dice, hold=True), some_job(dice, begin=time.time() + 3600))
        case _:
            await desk.submit(who, *[some_job(dice) for _ in range(dice.randint(1, 8))])


@pytest.mark.parametrize("starts", [1, 3, 500])
@pytest.mark.parametrize("seed", range(8))
def test_they_are_as_found_one_by_one(tmp_path, monkeypatch, seed, starts):
    """Beyond what is foretold, too. One that is being cancelled is in the queue, and waits no more."""
    dice = random.Random(seed)
    monkeypatch.setattr(forecast, "STARTS", starts)
    config = Config(limits({"ann": dice.choice((2, 4))}), cpu_jobs=2, order=dice.choice(("fifo", "fair")))

    async def story(desk):
        engine, answers = desk.engine, desk.server.answers
        await fill(desk, dice)
        await engine.decided()
        await until(lambda: not engine._kicked and all(entry.job.state is State.RUNNING for entry in engine.active.values()))
        engine._settled = False  # no pass changes anything from now on
        now = clock.ticks()
        monkeypatch.setattr(clock, "ticks", lambda: now)
        for entry in [*engine.entries.values()]:
            if entry.job.id in engine.active and dice.random() < 0.3:
                engine.active[entry.job.id].ends = None
        gone = [entry for entry in engine.entries.values() if entry is entry.first and entry.waiting in engine.waiting]
        gone = [entry.waiting for entry in gone if dice.random() < 0.1]
        engine.decision._closed = dice.choice((engine.decision._closed, None))
        engine.decision._resting |= {kind: dice.choice((0, -1)) for kind in engine.decision._resting}
        for hold in [hold for holds in engine.decision._held.values() for hold in holds.values()]:
            if dice.random() < 0.7:
                hold.priority = dice.choice((-1, -1, -2))  # as where something has come free since: some, or all, are not held any more
        found = await answers.foretold(lambda: asyncio.sleep(0))
        for job in gone:
            engine.waiting.remove(job)
        numbers = [*engine.entries, 4711]
        for _ in range(5):
            assert answers.starts(engine.entries.seen_of(numbers), found) == plainly(answers, numbers, found)
            dice.shuffle(numbers)
        for job in gone:
            engine.waiting.add(job)
        found = await answers.foretold(lambda: asyncio.sleep(0))
        jobs, why = [engine.entries[number].job for number in numbers if number in engine.entries], answers.reasons()
        for job in jobs:
            assert job.state is not State.PENDING or why(job) == answers.reasons()(job)
        rows = await desk(0, lambda queue: queue.queue())
        places, nothing = answers.outlook.places(), {"place": 0, "starts_in": None, "starts_after": None}
        for row in rows:
            entry = engine.entries[row.id]
            assert replace(row, **nothing) == answers.view(PEOPLE[0], entry.job)
            if entry.first.waiting in engine.waiting:
                assert row.place == places.place(entry.first.waiting)[0]
        starts, after = plainly(answers, [row.id for row in rows if row.state is State.PENDING], found)
        assert {row.id: row.starts_in for row in rows if row.starts_in is not None} == starts
        assert {row.id: row.starts_after for row in rows if row.starts_after is not None} == after

    play(tmp_path, story, config)


def test_those_that_start_together_have_the_place_and_the_start_of_the_first(tmp_path):
    async def story(desk):
        await desk.submit(ANN, JobSpec(Spec(argv=("true",)), gpus="4", time_limit=600.0))
        await until(lambda: desk.engine.active)
        gang = [JobSpec(Spec(argv=("true",)), gpus=gpus, time_limit=60.0, role="a") for gpus in ("2", "1")]
        numbers = await desk(ANN, lambda queue: queue.submit_gang(gang))
        await desk.submit(ANN, JobSpec(Spec(argv=("true",)), gpus="4"))
        await desk.engine.decided()
        rows = {row.id: row for row in await desk(ANN, lambda queue: queue.queue())}
        first, second = (rows[number] for number in numbers)
        assert (first.place, second.place, max(row.place for row in rows.values())) == (1, 1, 2)
        assert first.starts_in == second.starts_in is not None and first.reason == second.reason

    play(tmp_path, story)


@pytest.mark.parametrize("seed", range(20))
def test_which_of_them_wait(seed):
    """Of jobs that are asked for together, in any order and more than once, those that are there; not others of their numbers."""
    dice = random.Random(seed)
    jobs = [WaitingJob(number, "ann", priority=dice.choice((0, 0, 1))) for number in range(1, dice.choice((3, 700, 3000)))]
    waiting = WaitingList(jobs)
    gone = {job.id for job in jobs if dice.random() < dice.choice((0.0, 0.1, 0.9))}
    for job in jobs:
        if job.id in gone:
            waiting.remove(job)
    others = [WaitingJob(job.id, "ann", priority=job.priority) for job in dice.sample(jobs, 2)]
    for asked in (sorted(jobs, key=order), jobs, [*others, *jobs[:5], *jobs[:5]], others, [WaitingJob(9999, "ann"), WaitingJob(5, "ben")]):
        assert waiting.those(asked) == {job.id for job in asked if job in waiting}
    assert WaitingList().those(jobs) == set()
