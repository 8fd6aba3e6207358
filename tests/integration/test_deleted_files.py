"""What a sandbox takes on its disk by files that have no name any more."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import time
from pathlib import Path

import pytest
from support.boxes import load
from support.desk import ANN, play
from support.make_image import file
from support.requires import requires
from support.stand_in import until

from dockless.base.units import format_size
from dockless.sandbox.run import detached
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Bind, Spec, Tmpfs
from dockless.sched import JobSpec
from dockless.sched.config import Config
from dockless.sched.engine.host import deleted_files, disk

pytestmark = requires("root", "cgroup2", "overlay")
MIB = 1 << 20
WRITES = """
exec 3>/gone 4>/gone2 5>/memory/gone 6>/bound/gone 7<>"/named (deleted)" 8</etc/image
rm /gone /gone2 /memory/gone /bound/gone /etc/image
for fd in 3 4 5 6 7; do dd if=/dev/zero bs=1M count=3 >&$fd; done
(exec sleep 1000) & sync; touch /done; exec sleep 1000
"""


@pytest.fixture
def box(tmp_path):
    (tmp_path / "bound").mkdir(mode=0o777)
    (tmp_path / "bound").chmod(0o777)
    ref = load(tmp_path, [file("etc/image", "x" * MIB)])
    mounts = (Tmpfs("/memory"), Tmpfs(os.fsdecode(b"/n\xe4me")), Bind(str(tmp_path / "bound"), "/bound", idmap=True))
    box = detached.start(Spec(argv=("/bin/sh", "-c", WRITES), image=ref, mounts=mounts))
    _until_done(box)
    yield box
    box.remove()


def _until_done(box) -> None:
    deadline = time.monotonic() + 30
    while not (box.directory / "upper/done").exists():
        assert box.alive and time.monotonic() < deadline
        time.sleep(0.01)


async def look(engine, jobs) -> None:
    known: disk.Known = {}
    for one in disk.LOOKS:
        await disk.measure_once(engine, jobs, one, known)


def test_deleted_files_that_are_open_count(box):
    """Each once, whoever has it open; not what is in memory, of the image, in a directory of the host, or has a name that looks so."""
    found = asyncio.run(disk.deleted(disk.groups_of([box])))
    assert [*found] == [box.directory] and 6 * MIB <= found[box.directory] < 6.01 * MIB
    assert box.alive


def test_deleted_files_count_beside_the_others(box, tmp_path):
    async def story(desk):
        (number,) = await desk.submit(ANN, JobSpec(Spec(argv=("true",))))
        stand_in, entry = await desk.runs(number), desk.engine.entries[number]
        await until(lambda: entry.pidfd >= 0)
        (others,) = (await disk.measured([box.directory])).values()
        entry.handle = box
        desk.engine.config = Config(disk_per_job=others + 7 * MIB)
        await look(desk.engine, {box.directory: entry})
        assert not entry.verdict
        desk.engine.config = Config(disk_per_job=others + 5 * MIB)
        await look(desk.engine, {box.directory: entry})
        assert f"more than the {format_size(others + 5 * MIB)} of a job" in entry.verdict
        await until(lambda: not box.alive)
        entry.handle = stand_in
        stand_in.end(Exit(None, 9))
        await desk(ANN, lambda queue: queue.wait(number))
        os.close(stand_in._reader), os.close(stand_in._writer)

    play(tmp_path, story)


@pytest.fixture
def holding(tmp_path):
    """A sandbox that holds three MiB of a deleted file in a way of ``deleted.c``."""
    boxes = []

    def start(how):
        source = Path(__file__).with_name("deleted.c")
        subprocess.run(["gcc", "-O1", "-static", "-o", str(tmp_path / "hold"), source], check=True)
        ref = load(tmp_path, [file("hold", (tmp_path / "hold").read_bytes(), mode=0o755)])
        boxes.append(detached.start(Spec(argv=("/hold", how), image=ref)))
        _until_done(boxes[0])
        return boxes[0]

    yield start
    for box in boxes:
        box.remove()


@requires("gcc", "kernel>=6.8")
def test_deleted_files_that_are_mapped_count(holding):
    """Of an overlay since Linux 6.8: before, a mapping is of the file below."""
    box = holding("mapped")
    assert 3 * MIB <= asyncio.run(disk.deleted(disk.groups_of([box])))[box.directory] < 3.1 * MIB


@requires("gcc")
def test_a_table_of_descriptors_that_many_share_is_looked_at_once(holding, monkeypatch):
    """Sixty processes with the same nine hundred descriptors kept the look from a larger file of another."""
    listed, looked = os.listdir, []
    monkeypatch.setattr(os, "listdir", lambda place: looked.append(str(place)) or listed(place))
    monkeypatch.setattr(deleted_files, "LONGEST", 60.0)
    with holding("shared").cgroup() as group:
        assert 3 * MIB <= deleted_files.room(str(group.path)) < 3.1 * MIB
    assert len([place for place in looked if place.endswith("/map_files")]) > 60
    assert len([place for place in looked if place.endswith("/fd")]) <= 2  # theirs, and init's


@requires("gcc")
def test_a_look_has_an_end(holding, monkeypatch):
    monkeypatch.setattr(deleted_files, "LONGEST", 0.0)
    with holding("shared").cgroup() as group:
        assert deleted_files.room(str(group.path)) == 0


def test_what_was_looked_at_is_told_before_all_is(tmp_path):
    """Looking is given up after some time, and what was found until then counts."""
    done, endless = tmp_path / "done", tmp_path / "endless"
    done.mkdir(), endless.mkdir()
    os.mkfifo(endless / "cgroup.procs")
    with subprocess.Popen(disk._DELETED, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as looking:
        try:
            looking.stdin.write(b"".join(os.fsencode(group) + b"\0" for group in (done, endless)))
            looking.stdin.close()
            assert select.select([looking.stdout], [], [], 30)[0] and looking.stdout.readline() == b"0\n"
        finally:
            looking.kill()


def test_of_what_has_ended_nothing_is_said(box):
    box.kill()
    box.wait(30)
    assert asyncio.run(disk.deleted(disk.groups_of([box]))).get(box.directory, 0) == 0
