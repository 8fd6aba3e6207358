"""Leases belong to a network namespace: who would lease GPUs in another one than the host's is told so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.requires import requires
from support.scheduling import DaemonProcess

from dockless.sandbox.gpus import gpu, lease, tables

pytestmark = [
    requires("userns", "netns"),
    pytest.mark.skipif(bool(tables.of_first_process()), reason="the first process is in another network namespace"),
]

ALONE = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
RUN = [sys.executable, "-P", "-m", "dockless", "run", "--gpus", "1", "host", "--", "true"]


@pytest.fixture
def one(own_host) -> str:
    return own_host("2x80G")


@pytest.fixture
def daemon(one, home) -> Iterator[DaemonProcess]:
    process = DaemonProcess(home, gpus=one).start()
    yield process
    process.end()


def ran(*before: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*before, *RUN], capture_output=True, text=True, timeout=60)


def test_beside_a_daemon(daemon):
    assert ran().returncode == 0
    apart = ran(*ALONE)
    assert apart.returncode == 125, apart
    assert f"process {daemon.process.pid}, leases GPUs in another network namespace than this one" in apart.stderr
    assert "dockless submit" in apart.stderr


@requires("root")  # a user maps no ids there
def test_while_the_first_process_s_namespace_has_leases(one):
    with lease.lease(gpu.parse_request("1")):
        apart = ran(*ALONE)
        assert apart.returncode == 125 and "are leased in the network namespace of process 1" in apart.stderr, apart
        assert ran().returncode == 0, "the other GPU"
    assert ran(*ALONE).returncode == 0, "nobody else leases GPUs: as in a container that has all of dockless"


@requires("root")  # a user maps no ids there
def test_all_of_it_in_one_of_its_own(one, home):
    """A daemon, and what is started beside it."""
    code = (
        "import subprocess, sys; d = subprocess.Popen([sys.executable, '-P', '-m', 'dockless.sched.daemon'])\n"
        "import time; from dockless.sched import connect\n"
        "from dockless.errors import DaemonUnavailable\n"
        "for _ in range(300):\n"
        "    try: connect().close(); break\n"
        "    except DaemonUnavailable: time.sleep(0.05)\n"
        f"try: raise SystemExit(subprocess.run({RUN!r}).returncode)\n"
        "finally: d.terminate(); d.wait()"
    )
    done = subprocess.run([*ALONE, sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "2 simulated GPUs" in done.stderr, done


def test_a_daemon_apart_from_them(one, home):
    """It gives out none, and says why."""
    code = "from dockless.sched.engine.gpus.hostgpus import HostGpus; gpus = HostGpus(); print(len(gpus.uuids), gpus.error); gpus.close()"
    with lease.lease(gpu.parse_request("1")):
        done = subprocess.run([*ALONE, sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("0 GPUs of this host are leased in the network namespace of process 1"), done
