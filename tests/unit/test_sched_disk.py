"""Jobs that fill the host's disk: what is measured, and who is ended."""

from __future__ import annotations

import os

import pytest
from support.desk import ANN, BEN, play
from support.stand_in import until

from dockless.base import paths
from dockless.errors import BadInput
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State
from dockless.sched.config import Config
from dockless.sched.engine import disk, reading

MIB = 1 << 20
JOB = JobSpec(Spec(argv=("true",)))


def fill(directory, size: int, name: str = "upper/data") -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_what_is_measured(tmp_path):
    """What takes room in a directory: once where it has several names, and nothing of where links lead."""
    first, second, gone = tmp_path / "first\n1", tmp_path / "second", tmp_path / "gone"
    fill(first, 3 * MIB), fill(first, 2 * MIB, "log"), fill(second, MIB)
    os.link(first / "upper/data", first / "upper/again")
    (second / "upper/link").symlink_to(first)
    with open(second / "upper/sparse", "wb") as stream:
        stream.truncate(1 << 40)
    found = disk.measured([first, gone, second])
    assert [*found] == [first, second]
    assert 5 * MIB <= found[first] < 5.5 * MIB and MIB <= found[second] < 1.5 * MIB


def test_a_job_that_has_written_too_much_is_ended_at_once(tmp_path):
    async def story(desk):
        small, large = await desk.submit(ANN, JOB, JOB)
        boxes = [await desk.runs(number) for number in (small, large)]
        await until(lambda: all(desk.engine.entries[number].pidfd >= 0 for number in (small, large)))
        fill(boxes[0].directory, MIB), fill(boxes[1].directory, 3 * MIB)
        await disk.look(desk.engine)
        desk.engine.config = Config(disk_per_job=2 * MIB)
        await disk.look(desk.engine)
        ended = await desk(ANN, lambda queue: queue.wait(large))
        assert ended.state is State.CANCELLED and ended.reason.startswith("ended by the daemon: it had 3")
        assert "MiB on disk, more than the 2 MiB of a job (killed by signal" in ended.reason
        assert desk.engine.entries[small].job.state is State.RUNNING and boxes[0].said == []

    play(tmp_path, story)


def test_of_a_user_with_too_much_the_largest_jobs_are_ended(tmp_path):
    """As many as need be; others' are not counted."""

    async def story(desk):
        numbers = [*await desk.submit(ANN, JOB, JOB, JOB), *await desk.submit(BEN, JOB)]
        for number, size in zip(numbers, (3, 1, 4, 4), strict=True):
            fill((await desk.runs(number)).directory, size * MIB)
        await until(lambda: all(desk.engine.entries[number].pidfd >= 0 for number in numbers))
        desk.engine.config = Config(disk_per_user=5 * MIB)
        await disk.look(desk.engine)
        ended = await desk(ANN, lambda queue: queue.wait(numbers[2]))
        assert "its user's jobs had 8" in ended.reason and "more than the 5 MiB of a user, and it is one of the largest" in ended.reason
        await disk.look(desk.engine)
        assert sorted(desk.engine.active) == [numbers[0], numbers[1], numbers[3]]

    play(tmp_path, story)


def test_a_users_own_daemon_says_that_it_cannot(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path))
    paths.config_file().write_text("[disk]\nper_job = '1G'\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    with pytest.raises(BadInput, match="only root's daemon can measure what jobs write"):
        reading.settings()
