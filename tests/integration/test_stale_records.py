"""Records of a detached sandbox that are older than what they speak of: pids and cgroups that are somebody else's by now."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from dataclasses import replace

import pytest
from support.boxes import until
from support.requires import requires

from dockless.cgroups import Cgroup, find_delegation
from dockless.errors import SandboxGone
from dockless.sandbox.run import detached, documents
from dockless.sandbox.spec import Spec

pytestmark = requires("userns")


@pytest.fixture
def stranger():
    """A process that has nothing to do with any sandbox."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.fixture
def ended():
    box = detached.start(Spec(argv=("true",)))
    box.wait(20)
    record = (box.directory / "spec.json").read_bytes()
    yield box
    if box.directory.exists():
        (box.directory / "spec.json").write_bytes(record)
    box.remove()


def unharmed(process: subprocess.Popen[bytes]) -> bool:
    """Whether nobody killed it a moment ago: one that is ending does not stop any more."""
    process.send_signal(signal.SIGSTOP)
    stopped = os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    process.send_signal(signal.SIGCONT)
    return stopped


def rename_pids(box: detached.Box, pid: int) -> None:
    (box.directory / "started").write_text(f"keeper {pid}\ninit {pid}\n")


def no_cgroup(box: detached.Box) -> None:
    document = replace(box.document, cgroup="")
    documents.write(box.directory, document)


def test_a_pid_that_was_reused_is_not_taken_for_the_keeper(ended, stranger):
    (ended.directory / "exit").unlink()
    rename_pids(ended, stranger.pid)
    with pytest.raises(SandboxGone):
        ended.pidfd()
    with pytest.raises(SandboxGone):
        ended.send_signal(15)
    with pytest.raises(SandboxGone):
        ended.wait(5)
    ended.stop(0.1)
    assert unharmed(stranger)


def test_a_pid_that_was_reused_is_not_killed(ended, stranger):
    rename_pids(ended, stranger.pid)
    no_cgroup(ended)
    ended.kill()
    ended.stop(0.1)
    assert unharmed(stranger)


def test_a_keeper_that_is_there_is_reached(ended, stranger):
    """The same, with the lock held: what the two above would look like if the record were true."""
    (ended.directory / "exit").unlink()
    rename_pids(ended, stranger.pid)
    no_cgroup(ended)
    lock = os.open(ended.directory / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(ended.pidfd())
    ended.kill()
    until(lambda: stranger.poll() is not None, "what the record names is killed")
    os.close(lock)


@requires("cgroup2")
def test_a_cgroup_of_another_boot_is_somebody_elses(ended, stranger):
    if find_delegation(ask_systemd=False).path is None:
        pytest.skip("no place for cgroups here")
    with Cgroup.create(f"test-{os.getpid()}-stale") as group:
        group.add(stranger.pid)
        document = replace(ended.document, cgroup=str(group.path))
        for boot, dies in (("00000000-0000-0000-0000-000000000000", False), (documents.boot_id(), True)):
            documents.write(ended.directory, replace(document, boot_id=boot))
            ended.kill()
            if dies:
                until(lambda: stranger.poll() is not None, "its own group is killed")
            else:
                assert unharmed(stranger)
