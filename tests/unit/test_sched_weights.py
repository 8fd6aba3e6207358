"""What the group of a user weighs while jobs of hers start and end: written when it may have changed, and not at each end."""

from __future__ import annotations

import pytest
from support.desk import ANN, play
from support.requires import requires
from support.stand_in import until

from dockless.cgroups import Delegation, users
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec
from dockless.sched.config import Config
from dockless.sched.engine.host import weights

pytestmark = requires("root")

JOB = JobSpec(Spec(argv=("true",)))


@pytest.fixture
def weight(tmp_path, monkeypatch):
    """The file, in a directory in the place of her group."""
    place = Delegation(tmp_path, frozenset(), frozenset(), "root", "")
    monkeypatch.setattr(users, "find_delegation", lambda **_: place)
    file = place.home / users.group_of(ANN) / "cpu.weight"
    file.parent.mkdir(parents=True)
    return file


async def runs(desk):
    """A job of hers, weighed."""
    (number,) = await desk.submit(ANN, JOB)
    box = await desk.runs(number)
    await until(lambda: desk.engine.entries[number].pidfd >= 0)
    return number, box


async def ends(desk, number, box):
    box.end(Exit(0, None))
    await until(lambda: number not in desk.engine.entries)


def test_each_start_and_what_differs_is_written(tmp_path, weight):
    async def story(desk):
        one, two = await runs(desk), await runs(desk)
        assert weight.read_text() == "200"
        await ends(desk, *one)
        assert weight.read_text() == "100" and desk.engine.weights == {ANN: 100}
        await ends(desk, *two)
        assert weight.read_text() == "10" and not desk.engine.weights, "it may be removed now"

    play(tmp_path, story, Config(cores=4, cores_per_job=1))


def test_what_is_the_same_is_not_written_at_an_end(tmp_path, weight):
    """At each start it is: the group may be a new one."""

    async def story(desk):
        one, two = await runs(desk), await runs(desk)
        weight.write_text("anything")
        three = await runs(desk)
        assert weight.read_text() == "10"
        weight.write_text("anything")
        for job in (one, two, three):
            await ends(desk, *job)
        assert weight.read_text() == "anything" and not desk.engine.weights

    play(tmp_path, story, Config(cores=4, cores_per_job=0))


def test_of_jobs_that_were_never_weighed_nothing_is_written(tmp_path, weight):
    async def story(desk):
        weights.ended(desk.engine, ANN)
        assert not weight.exists() and not desk.engine.weights

    play(tmp_path, story)
