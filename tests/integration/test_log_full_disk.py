"""The log of a sandbox whose disk is full for a while: every byte of output is there or counted, and what is there is whole."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios
from pathlib import Path

import pytest
from support.boxes import until
from support.disks import fill, small
from support.requires import requires

from dockless.cli import main
from dockless.sandbox.run import detached
from dockless.sandbox.run.logfile import Log, Row, open_log
from dockless.sandbox.spec import Bind, Spec

pytestmark = requires("root", "userns")


@pytest.fixture
def state(home: Path):
    """The state directory on 2 MB and 60 inodes of their own."""
    with small(home / "state", "size=2m,nr_inodes=60,mode=711") as place:
        yield place


@pytest.fixture
def marks(home: Path) -> Path:
    place = home / "marks"
    place.mkdir()
    place.chmod(0o777)
    return place


def start(marks: Path, script: str, **fields) -> detached.Box:
    """``step N`` in the script: waits for our ``N``, after it has said that all before is written."""
    step = "step() { touch /marks/at$1; until [ -e /marks/$1 ]; do sleep 0.01; done; }; "
    return detached.start(Spec(argv=("/bin/sh", "-c", step + script), mounts=(Bind(str(marks), "/marks"),), **fields))


def arrive(marks: Path, step: int) -> None:
    until((marks / f"at{step}").exists, f"step {step}")


def drain(box: detached.Box, marks: Path, step: int) -> None:
    """Wait until the script is at this step and all that it said is written."""
    arrive(marks, step)
    drained(box)


def rows_of(box: detached.Box) -> list[Row]:
    log = Log(lambda name: open_log(box.directory, name))
    rows: list[Row] = []
    while more := log.read():
        rows += more
    log.close()
    return rows


def size(row: Row) -> int:
    return row.dropped or len(row.text) + (not row.partial)


def drained(box: detached.Box) -> None:
    """The keeper has read everything that the job has written so far."""
    until(lambda: _pipes_are_empty(box.pid) and _sleeps(box.pid), "the keeper has read it all")


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def _pipes_are_empty(pid: int) -> bool:
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("pipe:"):
                continue
            fd = os.open(f"/proc/{pid}/fd/{name}", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        waiting = array.array("i", [0])
        fcntl.ioctl(fd, termios.FIONREAD, waiting)
        os.close(fd)
        if waiting[0]:
            return False
    return True


BEFORE = "".join(f"before {i}\n" for i in range(50))
DURING = "".join(f"during {i}\n" for i in range(3000))


@pytest.mark.parametrize("at", [0, 1, 7, 20, 33, 39, 40, 41, 45])
def test_lines_that_are_lost_are_counted(home: Path, state: Path, marks: Path, capfd, at: int):
    """``at``: where the last page that the disk still took ends within a record."""
    script = f"i=0; while [ $i -lt 50 ]; do echo before $i; i=$((i+1)); done; step 1; printf %{4000 + at}s; echo; step 2; "
    script += "i=0; while [ $i -lt 3000 ]; do echo during $i; i=$((i+1)); done; step 3; echo after 1; echo after 2 >&2"
    box = start(marks, script)
    try:
        arrive(marks, 1)
        (marks / "1").touch()
        drain(box, marks, 2)
        ballast = fill(state)
        (marks / "2").touch()
        drain(box, marks, 3)
        os.unlink(ballast)
        (marks / "3").touch()
        assert box.wait(60).code == 0
        rows = rows_of(box)
        total = len(BEFORE) + 4001 + at + len(DURING) + len("after 1\nafter 2\n")
        assert sum(map(size, rows)) == total
        assert any(row.dropped for row in rows)
        texts = {row.text.decode() for row in rows if not row.dropped}
        assert {"before 0", "before 49", "after 1", "after 2"} <= texts
        strange = [text for text in texts if not text.startswith(("before ", "during ", "after ", " "))]
        assert all("during".startswith(text) for text in strange), strange  # the one line that was cut short
        assert main(["logs", box.id]) == 0
        said = capfd.readouterr()
        assert said.out.endswith("after 1\n") and "bytes of output" in said.err
    finally:
        box.remove()


def test_nothing_comes_after_the_lost_lines(home: Path, state: Path, marks: Path):
    box = start(marks, "echo before; step 1; yes | head -n 5000; step 2")
    try:
        drain(box, marks, 1)
        ballast = fill(state)
        (marks / "1").touch()
        drain(box, marks, 2)
        os.unlink(ballast)
        (marks / "2").touch()
        assert box.wait(60).code == 0
        rows = rows_of(box)
        assert rows[0].text == b"before"
        assert rows[-1].dropped
        assert sum(map(size, rows)) == len("before\n") + 10000
    finally:
        box.remove()


def test_a_log_that_could_not_be_made_at_first(home: Path, state: Path, marks: Path):
    """No inode was left for it."""
    box = start(marks, "step 1; echo lost; step 2; echo kept")
    try:
        arrive(marks, 1)
        taken = []
        with contextlib.suppress(OSError):
            for at in range(100):
                (state / f"inode{at}").touch()
                taken.append(state / f"inode{at}")
        assert len(taken) < 100
        (marks / "1").touch()
        drain(box, marks, 2)
        for path in taken:
            path.unlink()
        (marks / "2").touch()
        assert box.wait(60).code == 0
        assert [(row.text, row.dropped) for row in rows_of(box)] == [(b"", len("lost\n")), (b"kept", 0)]
    finally:
        box.remove()
