"""Foreground sandboxes of other programs: listed, waited for, signalled and ended by whoever finds them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.boxes import running, until
from support.requires import requires

from dockless.base import paths
from dockless.errors import BadInput, SandboxGone, Unsupported
from dockless.sandbox.run import box as boxes
from dockless.sandbox.run import detached
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.run.reconcile import reconcile
from dockless.sandbox.spec import Spec

pytestmark = requires("userns")
OTHER = """
import sys
from dockless.sandbox.run.foreground import ForegroundSandbox
from dockless.sandbox.spec import Spec
with ForegroundSandbox(Spec(argv=("/bin/sh", "-c", sys.argv[1])), id="theirs", labels={"who": "they"}) as box:
    print("runs", flush=True)
    print(box.wait(), flush=True)
"""


@pytest.fixture
def theirs():
    """A function that has another program run a script in a sandbox ``theirs``."""
    programs = []

    def begin(script):
        program = subprocess.Popen([sys.executable, "-P", "-c", OTHER, script], stdout=subprocess.PIPE, text=True)
        programs.append(program)
        assert program.stdout.readline() == "runs\n"
        return program, boxes.get("theirs")

    yield begin
    for left in boxes.everything(kinds=(boxes.FOREGROUND,)):
        left.kill()
    for program in programs:
        program.communicate(timeout=20)


def test_it_is_found_and_known(theirs):
    program, box = theirs("sleep 1000")
    assert box.foreground and box.alive and box.state() == "running"
    assert box.labels == {"who": "they"} and box.spec.argv[-1] == "sleep 1000"
    assert os.path.exists(f"/proc/{box.init_pid}") and box.pid != box.init_pid
    assert [found.id for found in boxes.everything()] == ["theirs"] and detached.list_all() == []
    box.kill()
    assert "signal=9" in program.stdout.readline()
    program.communicate(timeout=20)
    assert boxes.find("theirs") is None and box.state() == "vanished"


def open_here(path):
    """How many descriptors of ours are of this file."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}") == str(path)
    return count


def test_its_end_is_told_to_all_who_wait(theirs):
    """By the keeper, though nothing of the sandbox is left by then."""
    program, box = theirs("sleep 1000 & trap 'exit 7' USR1; wait")
    ended = []
    waiting = [threading.Thread(target=lambda: ended.append(box.wait(20))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    until(lambda: open_here(box.directory / "exit.tmp") == 3, "all three wait")
    with pytest.raises(TimeoutError):
        box.wait(0)
    box.send_signal(signal.SIGUSR1)
    for thread in waiting:
        thread.join(20)
    assert [exit.code for exit in ended] == [7, 7, 7] and "code=7" in program.stdout.readline()
    with pytest.raises(SandboxGone):
        box.wait()


def test_its_stop_signal_and_then_by_force(theirs):
    program, box = theirs("trap '' TERM; while :; do sleep 0.05; done")
    until(lambda: int(next(line for line in _status(box) if line.startswith("SigIgn")).split()[1], 16) & 1 << 14, "its trap is set")
    box.stop(0.2)
    assert not box.alive and "signal=9" in program.stdout.readline()


def _status(box):
    """Of the shell, the only child of its init."""
    (child,) = Path(f"/proc/{box.init_pid}/task/{box.init_pid}/children").read_text().split()
    return Path(f"/proc/{child}/status").read_text().splitlines()


def test_it_has_ended_when_it_was_ended(theirs):
    """Also where its keeper is just removing its directory."""
    for _ in range(8):
        program, box = theirs("sleep 1000")
        box.stop(0)
        assert not box.alive
        program.communicate(timeout=20)


def test_its_name_stays_and_belongs_to_it_alone(theirs):
    _, box = theirs("sleep 1000")
    with pytest.raises(Unsupported, match="keeps its name"):
        box.rename("ours")
    with pytest.raises(BadInput, match="there is a sandbox theirs already"):
        detached.start(Spec(argv=("true",)), id="theirs")
    with pytest.raises(BadInput, match="a sandbox theirs runs already"):
        ForegroundSandbox(Spec(argv=("true",)), id="theirs").__enter__()
    other = detached.start(Spec(argv=("true",)), id="other")
    try:
        with pytest.raises(BadInput, match="there is a sandbox other already"):
            ForegroundSandbox(Spec(argv=("true",)), id="other").__enter__()
        with pytest.raises(BadInput, match="there is a sandbox theirs already"):
            other.rename("theirs")
    finally:
        other.remove()


def test_what_a_program_leaves_that_is_killed_with_its_keeper(theirs, monkeypatch):
    """A directory that says that it has vanished, until it is removed."""
    program, box = theirs("sleep 1000")
    keeper, init = box.pid, box.init_pid
    for number in (signal.SIGSTOP, signal.SIGKILL):  # neither gets to do anything about the end of the other
        for pid in (program.pid, keeper):
            os.kill(pid, number)
    until(lambda: not os.path.exists(f"/proc/{init}"), "init ends with its keeper")
    until(lambda: not box.alive, "the lock goes with the keeper")
    assert box.state() == "vanished" and "program that started it" in box.why_vanished()
    monkeypatch.setattr("dockless.sandbox.run.reconcile._SETTLED", 0.0)
    assert "theirs" in reconcile() and boxes.find("theirs") is None


def test_a_record_that_is_not_whole_yet():
    """Whoever looks while it is written finds one that is starting."""
    with running(Spec(argv=("sleep", "1000"))) as (box, _):
        (box.box.directory / "spec.json").write_text('{"spec": {"argv"')
        with pytest.raises(SandboxGone):
            _ = box.box.document
        assert box.box.alive and box.box.pid == 0
        os.unlink(box.box.directory / "spec.json")
        assert box.box.state() == "starting"


def test_nothing_is_left_of_those_that_ended():
    for _ in range(20):
        with running(Spec(argv=("true",))) as (box, _):
            box.wait(20)
    assert list((paths.state() / "running").iterdir()) == [] and list(boxes.everything()) == []
