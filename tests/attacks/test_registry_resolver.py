"""A resolver that never answers: getaddrinfo(3) cannot be interrupted, and yet nobody waits for it longer than for anything else."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.requires import requires

pytestmark = requires("root")

PROGRAM = """
import socket, sys, threading
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.1", 53))
from dockless.errors import RegistryUnavailable
from dockless.images.registry import Endpoint, Registry
from dockless.images.registry.transport import Timeouts

class Asked(threading.Thread):
    def run(self):
        silent.recv(4096)
        print("asked", flush=True)

Asked(daemon=True).start()
timeouts = Timeouts(connect=float(sys.argv[1]), read=0.5, head=0.8, answer=float(sys.argv[2]))
with Registry(Endpoint("registry.test", "team/app"), env={}, timeouts=timeouts) as client:
    try:
        client.request("GET", client.endpoint.path("tags", "list"))
    except RegistryUnavailable as error:
        print("error", error, flush=True)
"""


@pytest.fixture
def start(tmp_path: Path):
    """The program in a network where one name server is there, which is silent; its resolver asks it for hours."""
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:5\n")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    setup = f'ip link set lo up && mount --bind {resolver} /etc/resolv.conf && exec "$@"'
    started: list[subprocess.Popen[str]] = []

    def begin(connect: float, answer: float) -> subprocess.Popen[str]:
        command = ["unshare", "-m", "-n", "sh", "-c", setup, "sh", sys.executable, "-P", str(program), str(connect), str(answer)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for one in started:
        one.kill()
        one.communicate()


def test_a_name_that_is_never_answered(start):
    child = start(0.3, 2.0)
    said, _ = child.communicate(timeout=60)
    asked, _, error = said.partition("\n")
    assert asked == "asked", said
    assert "error" in error
    assert "registry.test" in error
    assert child.returncode == 0  # the thread that still waits does not hold the end of the program


def test_ctrl_c_meanwhile(start):
    child = start(1000.0, 1000.0)
    assert child.stdout.readline() == "asked\n"
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors
