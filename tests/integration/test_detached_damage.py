"""Detached sandboxes on a disk that is full, and records that are torn or garbage: lost with a reason, and nothing else is disturbed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.boxes import alive, children_of, until
from support.disks import fill, small
from support.requires import requires
from support.scheduling import DaemonProcess

from dockless.base import paths
from dockless.cli import main
from dockless.errors import SandboxGone, Unwritable
from dockless.sandbox.run import detached
from dockless.sandbox.run.reconcile import reconcile
from dockless.sandbox.spec import Bind, Spec
from dockless.sched import JobSpec, State

pytestmark = requires("userns")
SOUND, DAMAGED = f"sound-{os.getpid()}", f"damaged-{os.getpid()}"


def _remove(path: Path) -> None:
    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


def _bytes(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        _remove(path)
        path.write_bytes(content)

    return write


def _made(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        _remove(path)
        make(path)

    return replace


DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": _bytes(b""),
    "garbage": _bytes(b"\xff\x00[garbage\n" * 9),
    "zeros": _bytes(bytes(4096)),
    "a number too many": _bytes(b"status 99999999999999999999\nkeeper 99999999999\n"),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "a directory": _made(Path.mkdir),
    "a pipe": _made(os.mkfifo),
    "a loop": _made(lambda path: path.symlink_to(path.name)),
    "a terabyte": lambda path: os.truncate(path, 1 << 40),
}


@pytest.fixture
def sound():
    """One that has ended well, beside the damaged one."""
    box = detached.start(Spec(argv=("true",)), id=SOUND)
    box.wait(20)
    yield box
    box.remove()


@pytest.mark.parametrize("damage", [*DAMAGE, "none"])
@pytest.mark.parametrize("record", ["exit", "started", "spec.json", "lock", "log"])
def test_a_damaged_record(sound, capfd, record: str, damage: str):
    """Listings show it beside the others; who waits for it learns why; it can be removed."""
    box = detached.start(Spec(argv=("/bin/sh", "-c", "echo said; exit 3")), id=DAMAGED)
    assert box.wait(20).code == 3
    place = box.directory / record
    DAMAGE.get(damage, _remove)(place)
    lost = record == "exit"
    assert box.state() == ("vanished" if lost else "exited")
    if lost:
        assert box.exit() is None and box.why_vanished()
        with pytest.raises(SandboxGone) as caught:
            box.wait(20)
        assert box.why_vanished() in str(caught.value) and caught.value.hint
    capfd.readouterr()
    assert main(["ps", "-a", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capfd.readouterr().out)}
    assert rows[SOUND]["exit_code"] == 0 and rows[DAMAGED]["state"] == box.state() and bool(rows[DAMAGED]["reason"]) == lost
    assert main(["ps", "-a"]) == 0 and main(["ps"]) == 0
    assert main(["doctor"]) in (0, 1)
    assert reconcile() == []
    box.remove()
    assert [found.id for found in detached.list_all()] == [SOUND]


@pytest.mark.parametrize("created", ["1e400", "-1e400", "NaN", "1e300", "-1", "9" * 400, "9" * 5000])
def test_a_document_that_says_no_possible_time(sound, capfd, created: str):
    box = detached.start(Spec(argv=("true",)), id=DAMAGED)
    box.wait(20)
    place = box.directory / "spec.json"
    place.write_text(re.sub(r'"created":[^,]+', f'"created":{created}', place.read_text(), count=1))
    with pytest.raises(SandboxGone, match=r"spec\.json cannot be read"):
        _ = box.document
    capfd.readouterr()
    assert main(["ps", "-a"]) == 0
    listed = capfd.readouterr().out
    assert SOUND in listed and DAMAGED in listed
    box.remove()


@pytest.mark.parametrize("damage", ["empty", "garbage", "a directory", "none"])
@pytest.mark.parametrize("record", ["started", "spec.json", "exit"])
def test_a_damaged_record_of_a_living_one(record: str, damage: str):
    """It is still known to live; it can still be ended and removed, and nothing inside lives on."""
    box = detached.start(Spec(argv=("sleep", "1000")), id=DAMAGED)
    tree = {box.pid, *children_of(box.pid)}
    DAMAGE.get(damage, _remove)(box.directory / record)
    assert box.state() in ("running", "starting")
    box.remove()
    until(lambda: not any(map(alive, tree)), "everything inside is dead")
    assert detached.list_all() == []


@pytest.mark.parametrize("damage", ["empty", "garbage", "a directory"])
def test_a_job_with_a_damaged_record_is_lost_and_its_gpu_free(home: Path, damage: str):
    """Without a word of the keeper the job has ended: LOST with the reason, at once for who waits, and the GPU goes to the next."""
    daemon = DaemonProcess(home, gpus="1x80G").start()
    with daemon.client() as queue:
        number = queue.submit(JobSpec(Spec(argv=("sleep", "1000")), gpus="1"))
        until(lambda: queue.job(number).state is State.RUNNING, "the job runs")
        box = detached.find(queue.job(number).attempts[-1].sandbox)
        assert box is not None
        daemon.kill9()
        box.kill()
        until(lambda: box.state() == "exited", "it has ended")
        DAMAGE[damage](box.directory / "exit")
        daemon.start()
        job = queue.wait(number, timeout=30)
        assert job.state is State.LOST and "exit record cannot be read" in job.reason
        assert queue.info().gpus[0].job == 0
        again = queue.submit(JobSpec(Spec(argv=("true",)), gpus="1"))
        assert queue.wait(again, timeout=30).state is State.COMPLETED
    daemon.stop()


# ---- a disk that is full ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(home: Path):
    """The state directory on 8 MB of their own, with 200 files at most."""
    with small(paths.state(), "size=8m,nr_inodes=200,mode=711") as place:
        yield place
        for box in detached.list_all():
            box.remove()


def _use_up_inodes(disk: Path) -> Path:
    place = disk / "many"
    place.mkdir()
    try:
        for number in range(1000):
            (place / str(number)).touch()
    except OSError:
        return place
    raise AssertionError("there is no end of inodes")


@requires("root")
@pytest.mark.parametrize("fill", [fill, _use_up_inodes])
def test_how_it_ended_has_its_room(disk: Path, tmp_path: Path, fill: Callable[[Path], Path]):
    """The disk is full when the program ends: the exit record is whole."""
    gate = tmp_path / "gate"
    gate.mkdir()
    box = detached.start(
        Spec(argv=("/bin/sh", "-c", "until [ -e /gate/go ]; do sleep 0.01; done; exit 7"), mounts=(Bind(str(gate), "/gate"),))
    )
    assert box.state() == "running"
    fill(disk)
    (gate / "go").touch()
    assert box.wait(20).code == 7 and box.state() == "exited"
    assert not (box.directory / "exit.tmp").exists()


@requires("root")
def test_a_job_that_fills_the_disk_through_its_log(disk: Path):
    box = detached.start(Spec(argv=("/bin/sh", "-c", "yes $(head -c 3000 /dev/zero | tr '\\0' x) | head -c 20000000; exit 5")))
    assert box.wait(60).code == 5 and box.state() == "exited"


@requires("root")
@pytest.mark.parametrize("fill", [fill, _use_up_inodes])
def test_no_start_without_room_for_its_records(disk: Path, fill: Callable[[Path], Path]):
    """Refused with the next step, nothing has run, nothing is left; with room again it starts."""
    paths.make(disk / "sandboxes")
    ballast = fill(disk)
    with pytest.raises(Unwritable) as caught:
        detached.start(Spec(argv=("true",)))
    assert caught.value.hint and detached.list_all() == []
    subprocess.run(["rm", "-r", ballast], check=True)
    assert detached.start(Spec(argv=("true",))).wait(20).code == 0


def test_a_keeper_that_is_killed_says_so():
    box = detached.start(Spec(argv=("sleep", "1000")))
    os.kill(box.pid, signal.SIGKILL)
    until(lambda: box.state() == "vanished", "it has vanished")
    assert "keeper was killed" in box.why_vanished()
    box.remove()
