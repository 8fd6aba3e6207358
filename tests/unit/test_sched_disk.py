"""Jobs that fill the host's disk: what is measured, and who is ended."""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.desk import ANN, BEN, play
from support.stand_in import until

from dockless.base import paths
from dockless.errors import BadInput, Refused
from dockless.sandbox.run import project
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State
from dockless.sched.config import Config
from dockless.sched.engine import reading
from dockless.sched.engine.host import disk

MIB = 1 << 20
JOB = JobSpec(Spec(argv=("true",)))


def fill(directory, size: int, name: str = "upper/data") -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


async def look(engine) -> None:
    for jobs in disk.running(engine).values():
        known: disk.Known = {}
        for one in disk.LOOKS:
            await disk.measure_once(engine, jobs, one, known)


def test_what_is_measured(tmp_path):
    """What takes room in a directory: once where it has several names, and nothing of where links lead."""
    first, second, gone = tmp_path / "first\n1", tmp_path / "second", tmp_path / "gone"
    fill(first, 3 * MIB), fill(first, 2 * MIB, "log"), fill(second, MIB)
    os.link(first / "upper/data", first / "upper/again")
    (second / "upper/link").symlink_to(first)
    with open(second / "upper/sparse", "wb") as stream:
        stream.truncate(1 << 40)
    found = asyncio.run(disk.measured([first, gone, second]))
    assert [*found] == [first, second]
    assert 5 * MIB <= found[first] < 5.5 * MIB and MIB <= found[second] < 1.5 * MIB


def test_a_job_that_has_written_too_much_is_ended_at_once(tmp_path):
    async def story(desk):
        small, large = await desk.submit(ANN, JOB, JOB)
        boxes = [await desk.runs(number) for number in (small, large)]
        await until(lambda: all(desk.engine.entries[number].pidfd >= 0 for number in (small, large)))
        fill(boxes[0].directory, MIB), fill(boxes[1].directory, 3 * MIB)
        await look(desk.engine)
        (size,) = (await disk.measured([boxes[1].directory])).values()
        desk.engine.config = Config(disk_per_job=size, disk_per_user=2 * size)
        await look(desk.engine)
        assert boxes[1].said == []
        desk.engine.config = Config(disk_per_job=2 * MIB)
        await look(desk.engine)
        ended = await desk(ANN, lambda queue: queue.wait(large))
        assert ended.state is State.CANCELLED and ended.reason.startswith("ended by the daemon: it had 3")
        assert "MiB on disk, more than the 2 MiB of a job (killed by signal" in ended.reason
        assert desk.engine.entries[small].job.state is State.RUNNING and boxes[0].said == []

    play(tmp_path, story)


def test_a_job_may_have_a_smaller_limit_of_its_own(tmp_path):
    """Which only root's daemon can hold."""

    async def story(desk):
        own = JobSpec(Spec(argv=("true",), disk=2 * MIB))
        if os.geteuid() != 0:
            with pytest.raises(Refused, match="only root's daemon can limit"):
                await desk.submit(ANN, own)
            return
        desk.engine.config = Config(disk_per_job=8 * MIB)
        (limited,), (other,) = await desk.submit(ANN, own), await desk.submit(ANN, JOB)
        for number in (limited, other):
            fill((await desk.runs(number)).directory, 3 * MIB)
        await until(lambda: all(desk.engine.entries[number].pidfd >= 0 for number in (limited, other)))
        desk.engine.config = Config()
        assert [*disk.running(desk.engine)[ANN].values()] == [desk.engine.entries[limited]]
        desk.engine.config = Config(disk_per_job=8 * MIB)
        await look(desk.engine)
        ended = await desk(ANN, lambda queue: queue.wait(limited))
        assert ended.state is State.CANCELLED and "MiB on disk, more than the 2 MiB of a job" in ended.reason
        assert desk.engine.entries[other].job.state is State.RUNNING

    play(tmp_path, story)


def test_of_several_limits_the_smallest_holds():
    assert [disk.smallest(*limits) for limits in ((0, 0), (5, 0), (5, 3, 0), (2, 7))] == [0, 5, 3, 2]


def test_what_holds_the_limits_is_told(tmp_path):
    """This disk may have project quotas or not."""

    async def story(desk):
        assert (await desk(ANN, lambda queue: queue.info())).disk == ""
        desk.engine.config = Config(disk_per_job=100 << 30, disk_per_user=500 << 30)
        told = (await desk(ANN, lambda queue: queue.info())).disk
        assert told.startswith("100 GiB a job, 500 GiB a user: ")
        why = project.lacking(paths.state())
        assert told.endswith(f": measured ({why})" if why else ": enforced by the kernel, with project quotas")

    play(tmp_path, story)


def test_of_a_user_with_too_much_the_largest_jobs_are_ended(tmp_path):
    """As many as need be; others' are not counted."""

    async def story(desk):
        numbers = [*await desk.submit(ANN, JOB, JOB, JOB), *await desk.submit(BEN, JOB)]
        for number, size in zip(numbers, (4, 1, 3, 4), strict=True):
            fill((await desk.runs(number)).directory, size * MIB)
        await until(lambda: all(desk.engine.entries[number].pidfd >= 0 for number in numbers))
        desk.engine.config = Config(disk_per_user=5 * MIB)
        await look(desk.engine)
        ended = await desk(ANN, lambda queue: queue.wait(numbers[0]))
        assert "its user's jobs had 8" in ended.reason and "more than the 5 MiB of a user, and it is one of the largest" in ended.reason
        await look(desk.engine)
        assert sorted(desk.engine.active) == numbers[1:]

    play(tmp_path, story)


def test_what_the_kernel_counts_is_not_measured(tmp_path, monkeypatch):
    async def story(desk):
        numbers = await desk.submit(ANN, JOB, JOB)
        boxes = [await desk.runs(number) for number in numbers]
        await until(lambda: all(desk.engine.entries[number].pidfd >= 0 for number in numbers))
        for box in boxes:
            fill(box.directory, 2 * MIB)
        monkeypatch.setattr(disk, "counted", lambda directory: 7 * MIB if directory == boxes[0].directory else None)
        desk.engine.config = Config(disk_per_user=8 * MIB)
        await look(desk.engine)
        assert "its user's jobs had 9" in (await desk(ANN, lambda queue: queue.wait(numbers[0]))).reason
        assert [*desk.engine.active] == [numbers[1]]

    play(tmp_path, story)


def test_one_that_is_being_ended_is_not_ended_again(tmp_path):
    """Its grace is not cut short for what it writes meanwhile."""

    async def story(desk):
        (number,) = await desk.submit(ANN, JOB)
        box = await desk.runs(number)
        await until(lambda: desk.engine.entries[number].pidfd >= 0)
        fill(box.directory, 3 * MIB)
        desk.engine.config = Config(disk_per_job=2 * MIB)
        box.send_stop = lambda: box.said.append("stop")
        there = disk.running(desk.engine)[ANN]
        await desk.engine.cancel(number, "ann", 500.0)
        await until(lambda: box.said == ["stop"])
        until_then = desk.engine.entries[number].stop_by
        known: disk.Known = {}
        for one in disk.LOOKS:
            await disk.measure_once(desk.engine, there, one, known)
        assert desk.engine.entries[number].stop_by == until_then
        box.end(Exit(None, 15))

    play(tmp_path, story)


@pytest.mark.parametrize("limit", ["disk_per_job", "disk_per_user"])
def test_a_user_with_endless_files_keeps_nobody_else_from_being_measured(tmp_path, monkeypatch, limit):
    """A tree that is not to be come to an end of; what du(1) says of it is as long as it likes. It ends with the daemon."""
    programs, begun = tmp_path / "programs", tmp_path / "begun"
    programs.mkdir()
    (programs / "du").write_text(f"""#!/bin/sh
        of=$(tr '\\0' '\\n')
        if grep -q endless "$of"/upper/* 2>/dev/null; then
            echo $$ >{shlex.quote(str(begun))}
            exec yes >&2
        fi
        printf %s "$of" | exec /usr/bin/du "$@"
    """)
    (programs / "du").chmod(0o755)
    monkeypatch.setitem(disk._ENVIRONMENT, "PATH", f"{programs}:{disk._ENVIRONMENT['PATH']}")
    monkeypatch.setattr(disk, "EVERY", 0.01)

    async def story(desk):
        desk.engine.config = Config(**{limit: 2 * MIB})
        (endless,) = await desk.submit(ANN, JOB)
        box = await desk.runs(endless)
        (box.directory / "upper").mkdir()
        (box.directory / "upper/name").write_text("endless")
        watching = asyncio.create_task(disk.watch(desk.engine))
        await until(begun.exists)
        (large,) = await desk.submit(BEN, JOB)
        fill((await desk.runs(large)).directory, 3 * MIB)
        ended = await desk(BEN, lambda queue: queue.wait(large))
        assert ended.state is State.CANCELLED and "MiB on disk, more than the 2 MiB of a " in ended.reason
        assert desk.engine.entries[endless].job.state is State.RUNNING
        watching.cancel()
        await until(lambda: not Path("/proc", begun.read_text().strip()).exists())

    play(tmp_path, story)


def test_neither_look_waits_for_the_other(tmp_path, monkeypatch):
    """Who has so many deleted files that looking at them takes long is ended for the others."""
    begun = asyncio.Event()

    async def deleted(groups):
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(disk, "deleted", deleted)
    monkeypatch.setattr(disk, "EVERY", 0.01)

    async def story(desk):
        desk.engine.config = Config(disk_per_job=2 * MIB)
        (number,) = await desk.submit(ANN, JOB)
        box = await desk.runs(number)
        watching = asyncio.create_task(disk.watch(desk.engine))
        await until(begun.is_set)
        fill(box.directory, 3 * MIB)
        assert "MiB on disk" in (await desk(ANN, lambda queue: queue.wait(number))).reason
        watching.cancel()

    play(tmp_path, story)


def test_the_next_measure_is_waited_for_twenty_times_as_long_as_the_last_took(tmp_path, monkeypatch):
    clock, looked, rounds = SimpleNamespace(now=1000.0), [], []

    async def look(engine, jobs, which, known):
        looked.append(clock.now)
        clock.now += 2.0

    running = disk.running
    monkeypatch.setattr(disk, "EVERY", 0.001)
    monkeypatch.setattr(disk, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(disk, "LOOKS", disk.LOOKS[:1])
    monkeypatch.setattr(disk, "measure_once", look)
    monkeypatch.setattr(disk, "running", lambda engine: rounds.append(1) or running(engine))

    async def story(desk):
        desk.engine.config = Config(disk_per_job=MIB)
        (number,) = await desk.submit(ANN, JOB)
        await desk.runs(number)
        watching = asyncio.create_task(disk.watch(desk.engine))
        await until(lambda: looked)
        clock.now += 39.0
        before = len(rounds)
        await until(lambda: len(rounds) > before + 3)
        assert len(looked) == 1
        clock.now += 2.0
        await until(lambda: len(looked) == 2)
        watching.cancel()

    play(tmp_path, story)


def test_what_could_not_be_measured_in_time(tmp_path, monkeypatch):
    """What was come to before counts."""
    (tmp_path / "du").write_text("#!/bin/sh\nprintf '7\\tfirst\\0008'; exec sleep 1000\n")
    (tmp_path / "du").chmod(0o755)
    monkeypatch.setitem(disk._ENVIRONMENT, "PATH", f"{tmp_path}:{disk._ENVIRONMENT['PATH']}")
    monkeypatch.setattr(disk, "LONGEST", 0.5)
    assert asyncio.run(disk.measured([Path("first"), Path("second")])) == {Path("first"): 7}


def test_a_users_own_daemon_says_that_it_cannot(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path))
    paths.config_file().write_text("[disk]\nper_job = '1G'\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    with pytest.raises(BadInput, match="only root's daemon can measure what jobs write"):
        reading.settings()
