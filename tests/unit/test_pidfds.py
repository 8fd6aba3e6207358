"""Processes that are held by a descriptor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from dockless.base.pidfds import hold
from dockless.base.waits import readable

LEADER = """
import os, signal
os.setsid()
if not (child := os.fork()):
    signal.pause()
print(child)
"""


def test_one_that_lives():
    with subprocess.Popen(["sleep", "1000"]) as process:
        fd = hold(process.pid)
        try:
            assert not readable(fd, 0)
            process.kill()
            assert readable(fd, 60)
        finally:
            os.close(fd)


def test_a_number_that_only_a_session_has_is_nobodys():
    """Linux 6.1 says EINVAL there: a sandbox whose init had just ended could not be removed."""
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, text=True)
    child = int(leader.stdout.readline())
    try:
        assert leader.wait(60) == 0 and os.getsid(child) == leader.pid
        with pytest.raises(ProcessLookupError):
            hold(leader.pid)
    finally:
        os.kill(child, signal.SIGKILL)
        leader.stdout.close()


def test_other_errors_are_what_they_are(monkeypatch):
    for error in (OSError(22, "no"), OSError(24, "too many")):
        monkeypatch.setattr(os, "pidfd_open", lambda pid, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(ProcessLookupError if error.errno == 22 else OSError) as told:
            hold(1)
        assert told.value.errno == (3 if error.errno == 22 else 24)
