"""What a sandbox takes on its disk by files that have no name any more."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.boxes import load
from support.requires import requires

from dockless.sandbox.run import detached
from dockless.sandbox.spec import Bind, Spec, Tmpfs
from dockless.sched.engine import disk

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
    from support.make_image import file

    (tmp_path / "bound").mkdir(mode=0o777)
    (tmp_path / "bound").chmod(0o777)
    ref = load(tmp_path, [file("etc/image", "x" * MIB)])
    mounts = (Tmpfs("/memory"), Bind(str(tmp_path / "bound"), "/bound", idmap=True))
    box = detached.start(Spec(argv=("/bin/sh", "-c", WRITES), image=ref, mounts=mounts))
    deadline = time.monotonic() + 30
    while not (box.directory / "upper/done").exists():
        assert box.alive and time.monotonic() < deadline
        time.sleep(0.01)
    yield box
    box.remove()


def test_deleted_files_that_are_open_count(box):
    """Each once, whoever has it open; not what is in memory, of the image, in a directory of the host, or has a name that looks so."""
    found = asyncio.run(disk.deleted(disk.groups_of([box])))
    assert [*found] == [box.directory] and 6 * MIB <= found[box.directory] < 6.1 * MIB
    assert box.alive


def test_of_what_has_ended_nothing_is_said(box):
    box.kill()
    box.wait(30)
    assert asyncio.run(disk.deleted(disk.groups_of([box]))).get(box.directory, 0) == 0
