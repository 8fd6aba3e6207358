"""Why a job that may not start yet waits: the rule, whom it waits for, when that ends, and what would make it sooner."""

from __future__ import annotations

import time

import pytest
from support.desk import ANN, BEN, play

from dockless.base.dataclass import replace
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec
from dockless.sched.wire import outlook

pytestmark = pytest.mark.usefixtures("two_gpus")


def job(**fields) -> JobSpec:
    return JobSpec(Spec(argv=("true",)), **fields)


def hours(seconds):
    return None if seconds is None else round(seconds / 3600, 1)


def seen(awaited):
    return [(one.job, one.state, hours(one.ends_in)) for one in awaited]


async def why(desk, who, number):
    return await desk(who, lambda queue: queue.why(number))


def test_a_hold(tmp_path):
    async def story(desk):
        (hers,) = await desk.submit(ANN, job(hold=True))
        (theirs,) = await desk.submit(ANN, job(begin=time.time() + 7200))
        await desk(0, lambda queue: queue.hold(theirs))
        found = await why(desk, ANN, hers)
        assert (found.rule, found.reason, found.starts_in, found.place) == ("held", "held by ann", None, 0)
        assert found.earlier == (f"after `dockless release {hers}`",)
        found = await why(desk, ANN, theirs)
        assert found.rule == "held" and found.reason.startswith("held by root; begins at 2") and found.starts_in is None
        assert found.earlier[0] == f"after `dockless release {theirs}` by root, an administrator" and len(found.earlier) == 2
        await desk(0, lambda queue: queue.release(theirs))
        found = await why(desk, ANN, theirs)
        assert (found.rule, hours(found.starts_in), found.earlier) == ("begin", 2.0, ("submitted again with an earlier --begin",))

    play(tmp_path, story)


def test_the_ends_of_others(tmp_path):
    async def story(desk):
        runs, waits = await desk.submit(ANN, job(gpus="2", time_limit=3600.0), job(gpus="1", time_limit=7200.0))
        await desk.runs(runs)
        last, held = await desk.submit(ANN, job(after=(f"any:{runs}", f"ok:{waits}")), job(hold=True, name="n"))
        endless, behind, second = await desk.submit(ANN, job(), job(singleton=True, name="n"), job(begin=time.time() + 5 * 3600))
        await desk.runs(endless)
        found = await why(desk, ANN, last)
        assert (found.rule, seen(found.awaited), found.awaiting) == ("after", [(runs, "RUNNING", 1.0), (waits, "PENDING", 3.0)], 2)
        assert hours(found.starts_in) == 3.0 and found.earlier == ("submitted again without --after",) and not found.endless
        found = await why(desk, ANN, behind)
        assert (found.rule, seen(found.awaited), found.starts_in) == ("singleton", [(held, "PENDING", None)], None)
        assert found.earlier == (f"after `dockless release {held}`, for it waits for what is held",)
        (third,) = await desk.submit(ANN, job(after=(f"any:{endless}", f"any:{second}")))
        found = await why(desk, ANN, third)
        assert (found.starts_in, found.endless) == (None, (endless,))

    play(tmp_path, story)


def test_a_pause_before_a_retry(tmp_path):
    async def story(desk):
        (number,) = await desk.submit(ANN, job(retries=3, begin=time.time() + 3600))
        entry = desk.engine.entries[number]
        entry.show(options=replace(entry.job.options, tried=1, retry_at=time.time() + 7200))
        found = await why(desk, ANN, number)
        assert (found.rule, hours(found.starts_in)) == ("retry", 2.0) and found.reason.startswith("retry 1 of 3 begins at 2")
        assert found.earlier == ("submitted again: a new job has no pause before it",)

    play(tmp_path, story)


def test_the_limit_of_an_array(tmp_path):
    """Its jobs have places and are foretold as if they came one after the other, with all others that want the same."""

    async def story(desk):
        numbers = await desk(ANN, lambda queue: queue.submit_array(job(gpus="1", time_limit=3600.0, array_limit=1), 5))
        (other,) = await desk.submit(BEN, job(gpus="2", time_limit=7200.0))
        await desk.runs(numbers[0])
        await desk.engine.decided()
        found = await why(desk, ANN, numbers[2])
        assert (found.rule, found.reason) == ("array", "of its array 1 may run at once")
        assert (seen(found.awaited), found.awaiting) == ([(numbers[0], "RUNNING", 1.0)], 1)
        assert (found.place, found.waiting, hours(found.starts_in)) == (2, 5, 2.0)
        assert found.earlier == ("submitted again with a higher limit than %1",)
        rows = {row.id: (row.place, hours(row.starts_in)) for row in await desk(0, lambda queue: queue.queue())}
        assert rows == {
            numbers[0]: (0, None), other: (1, 5.0),
            numbers[1]: (1, 1.0), numbers[2]: (2, 2.0), numbers[3]: (3, 3.0), numbers[4]: (4, 4.0),
        }  # fmt: skip
        found = await why(desk, BEN, other)
        assert (found.at_latest, hours(found.starts_in)) == (False, 5.0), "those of the array come before it"
        users = {row.user: row for row in (await desk(0, lambda queue: queue.top())).users}
        assert (users["ben"].next, users["ben"].place, users["ben"].starts_in) == (other, 1, None)
        await desk(ANN, lambda queue: queue.hold(numbers[2]))
        await desk(ANN, lambda queue: queue.cancel(numbers[1]))
        rows = {row.id: (row.place, hours(row.starts_in)) for row in await desk(0, lambda queue: queue.queue())}
        assert (rows[numbers[2]], rows[numbers[3]], rows[numbers[4]]) == ((0, None), (1, 1.0), (2, 2.0))

    play(tmp_path, story)


def test_no_further_than_is_foretold(tmp_path, monkeypatch):
    async def story(desk):
        numbers = await desk.submit(ANN, *[job(gpus="2", time_limit=3600.0) for _ in range(5)])
        await desk.runs(numbers[0])
        array = await desk(BEN, lambda queue: queue.submit_array(job(gpus="1", time_limit=3600.0, array_limit=1), 4))
        await desk.engine.decided()
        monkeypatch.setattr("dockless.sched.policy.forecast.STARTS", 2)
        rows = {row.id: (hours(row.starts_in), hours(row.starts_after)) for row in await desk(0, lambda queue: queue.queue())}
        assert rows == {
            numbers[0]: (None, None), numbers[1]: (1.0, None), numbers[2]: (2.0, None), numbers[3]: (None, 3.0), numbers[4]: (None, 3.0),
            **dict.fromkeys(array, (None, 3.0)),
        }  # fmt: skip
        for who, number in ((ANN, numbers[4]), (BEN, array[2])):
            found = await why(desk, who, number)
            assert (found.starts_in, hours(found.starts_after)) == (None, 3.0)
        monkeypatch.setattr(outlook, "KINDS", 0)
        await desk.submit(ANN, job(gpus="2"))
        await desk.engine.decided()
        found = await why(desk, ANN, numbers[4])
        assert found.starts_in is None and found.starts_after < 1

    play(tmp_path, story)


def test_while_nothing_is_started_that_is_the_reason(tmp_path):
    async def story(desk):
        (held,) = await desk.submit(ANN, job(hold=True))
        await desk(0, lambda queue: queue.drain(everything=True, reason="repairs"))
        found = await why(desk, ANN, held)
        assert found.reason.startswith("nothing is started: the host was") and not found.rule

    play(tmp_path, story)
