"""How much of a request is read before it is somebody else's turn."""

from __future__ import annotations

import asyncio

import pytest
from support.desk import ANN, PEOPLE, play
from support.stand_in import plain, until

from dockless.base import findings
from dockless.errors import BadInput, UnknownJob
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State
from dockless.sched.config import Config
from dockless.sched.engine import engine as engine_module
from dockless.sched.engine.admission import admitting, amounts
from dockless.sched.engine.admission.amounts import MOST_VALUES, Turns, check_values, count_values

ONE = Config(cpu_jobs=1)


@pytest.mark.parametrize(
    ("value", "count"),
    [("text", 1), (7, 1), ([], 1), ({}, 1), (["a", "b"], 3), ({"a": 1}, 3), ({"env": [["a", "b"], ["c", "d"]]}, 9)],
)
def test_each_value_counts_and_so_does_what_it_is_in(value, count):
    assert count_values(value) == count


def test_no_more_is_counted_than_is_too_much():
    class Long(list):
        def __iter__(self):
            raise AssertionError("looked into")

    assert count_values([[], Long([0] * MOST_VALUES)]) > MOST_VALUES
    assert check_values([0] * (MOST_VALUES - 1), "job") == MOST_VALUES
    with pytest.raises(BadInput, match=f"job has more than {MOST_VALUES} values") as caught:
        check_values([0] * MOST_VALUES, "job")
    assert caught.value.subject == "job" and "file" in caught.value.hint


@pytest.mark.parametrize(
    ("words", "turns"),
    [
        ([1, 1, 1, 1, 1], ["xx", "xx", "x"]),
        ([60, 60, 10], ["x", "xx"]),
        ([500], ["x", "admitted"]),
        ([500, 1, 500], ["x", "x", "x", "admitted"]),
    ],
)
def test_a_turn_has_some_jobs_or_some_values(monkeypatch, words, turns):
    """What is done with a large one after it has been read is a turn of its own."""
    monkeypatch.setattr(amounts, "JOBS_A_TURN", 2)
    monkeypatch.setattr(amounts, "VALUES_A_TURN", 100)
    monkeypatch.setattr(amounts, "read", lambda *given: seen.append("x"))
    seen = []

    async def turn():
        seen.append(" ")

    async def play_it():
        it = Turns(turn)
        for count in words:
            await it.read({"spec": {"argv": ["word"] * count}})

    asyncio.run(play_it())
    if words[-1] > 100:
        seen.append("admitted")
    assert "".join(seen).split() == turns


@pytest.mark.parametrize("gang", [False, True])
def test_a_job_of_too_many_values_is_refused_before_it_is_read(tmp_path, monkeypatch, gang):
    async def story(desk):
        monkeypatch.setattr(amounts, "read", lambda *given: pytest.fail("it is read"))
        job = JobSpec(Spec(argv=("true",), env=(("A", "b"),) * MOST_VALUES), role="a" if gang else "")
        await desk.refused(BadInput, ANN, lambda queue: queue.submit_gang([job]) if gang else queue.submit(job))

    play(tmp_path, story)


def test_what_enters_a_job_has_no_more_values(tmp_path):
    async def story(desk):
        (number,) = await desk.submit(ANN, JobSpec(Spec(argv=("true",))))
        await desk.runs(number)
        program = {"argv": ["true"], "env": [["A", "b"]] * MOST_VALUES}
        said = await desk.refused(BadInput, ANN, lambda queue: queue._call("exec", job=number, program=program))
        assert said == f"program has more than {MOST_VALUES} values"

    play(tmp_path, story)


def test_no_more_are_asked_about_than_are_told(tmp_path, monkeypatch):
    """A list of ten thousand that wait for jobs which are not there."""

    async def story(desk):
        asked, real = [], admitting.refused
        monkeypatch.setattr(
            admitting, "refused", lambda engine, caller, names, turn: asked.extend(names) or real(engine, caller, names, turn)
        )
        jobs = [JobSpec(Spec(argv=("true",)), after=(f"ok:{number}",)) for number in range(1000, 2000)]
        with pytest.raises(UnknownJob) as caught:
            await desk.submit(ANN, *jobs)
        told = [str(caught.value), *caught.value.__notes__]
        assert [line.partition(" of 1000: ")[0] for line in told[: findings.MOST]] == [f"job {at}" for at in range(1, findings.MOST + 1)]
        assert len(asked) == amounts.JOBS_A_TURN

    play(tmp_path, story)


def test_only_the_last_of_a_list_waits_for_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(admitting, "JOBS_A_TURN", 2)

    async def story(desk):
        (first,) = await desk.submit(ANN, JobSpec(Spec(argv=("true",))))
        right = [JobSpec(Spec(argv=("true",)), after=(f"any:{first}",)) for _ in range(4)]
        wrong = JobSpec(Spec(argv=("true",)), after=(f"any:{first}", "ok:77"))
        assert len(await desk.submit(ANN, *right)) == 4
        with pytest.raises(UnknownJob, match="job 5 of 5: there is no job 77 to wait for"):
            await desk.submit(ANN, *right, wrong)

    play(tmp_path, story)


def test_an_array_comes_into_memory_in_turns(tmp_path, monkeypatch):
    """With its limit, and with what it waits for; it counts as a whole from the start."""
    monkeypatch.setattr(engine_module, "SHOWN_AT_ONCE", 3)

    async def story(desk):
        engine, seen = desk.engine, []
        (first,) = await desk.submit(ANN, JobSpec(Spec(argv=("sleep", "9"))))
        box = await desk.runs(first)

        async def turn():
            seen.append((len(engine.entries) - 1, engine.per_user.jobs[ANN] >= 9))
            if len(seen) == 1:
                box.end(None)  # what it waits for
                await until(lambda: first not in engine.entries)

        asked = plain(Spec(argv=("true",)), after=(f"any:{first}",), array_limit=2)
        ids = await engine.submit(PEOPLE[ANN], [asked], 8, turn=turn)
        assert [count for count, _ in seen] == [3, 5] and all(whole for _, whole in seen)
        assert [engine.entries[number].job.index for number in ids] == [*range(8)]
        assert {engine.entries[number].job.array for number in ids} == {ids[0]} and engine.per_user.jobs[ANN] == 8
        for _ in ids:
            await until(lambda: any(entry.job.state is State.RUNNING for entry in engine.entries.values()))
            running = next(entry.job for entry in engine.entries.values() if entry.job.state is State.RUNNING)
            engine.launcher.boxes[engine.name(running.id, 1)].end(None)
            await until(lambda number=running.id: number not in engine.entries)
        assert not engine.entries and not engine.per_user.jobs

    play(tmp_path, story, ONE)
