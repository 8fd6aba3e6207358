"""Programs that outlive whoever starts them, and are nobody's children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dockless import native

SAYS = """import json, os
masks = [line.split()[1] for line in open("/proc/self/status") if line.startswith("SigBlk")]
fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))
print(json.dumps([os.getpid(), os.getsid(0), os.getppid(), fds, masks[0]]), flush=True)
os.read(5, 1)"""


def test_it_has_a_session_of_its_own_and_nothing_else_open():
    out, into = os.pipe()
    again, go = os.pipe()
    os.set_inheritable(go, True)  # as of a careless caller
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        native.start_apart(sys.executable, [sys.executable, "-I", "-S", "-c", SAYS], {1: into, 5: again})
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.close(into)
    os.close(again)
    with os.fdopen(out) as said:
        pid, session, parent, fds, blocked = json.loads(said.readline())
        assert session == pid != os.getpid() and parent != os.getpid() and fds == [1, 5] and not int(blocked, 16)
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        assert not Path(f"/proc/{pid}/environ").read_bytes()
        os.close(go)
        assert not said.read()


def test_it_goes_on_when_its_starter_is_killed(tmp_path):
    code = """import os, signal, sys
from dockless import native
native.start_apart(sys.executable, [sys.executable, "-I", "-S", "-c", "import os; os.read(0, 1); os.write(1, b'there')"], {0: 0, 1: 1})
os.kill(os.getpid(), signal.SIGKILL)"""
    with subprocess.Popen([sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdin is not None and starter.stdout is not None
        assert starter.wait() == -signal.SIGKILL
        starter.stdin.write(b"x")
        starter.stdin.close()
        assert starter.stdout.read() == b"there"


@pytest.mark.parametrize(("fds", "number"), [({}, 2), ({3: 999_999}, 9)])
def test_what_cannot_be_started_is_an_error(fds, number, tmp_path):
    with pytest.raises(OSError) as refused:
        native.start_apart(str(tmp_path / "none"), ["none"], fds)
    assert refused.value.errno == number
