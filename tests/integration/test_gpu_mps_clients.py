"""A job that has the Multi-Process Service is killed after the service has ended its work on the GPU.

The driver here is a stand-in, whose control daemon knows its clients by their connections and understands the commands of
nvidia-cuda-mps-control(1) that ask for them. That a client which is ended by ``terminate_client`` breaks no other one was not seen here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.boxes import until
from support.elf_files import library
from support.requires import requires
from support.scheduling import DaemonProcess

from dockless.sandbox.run import box, detached, seen
from dockless.sandbox.spec import Spec, Tmpfs
from dockless.sched import JobSpec, State
from dockless.sched.engine import mps_clients

pytestmark = [
    requires("userns", "overlay", "cgroup2"),
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has a real NVIDIA driver"),
    pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the stand-in needs /usr/bin/python3"),
]

CONTROL = """#!/usr/bin/python3
import os, socket, struct, sys, threading, time
place = os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control"
if sys.argv[1:] != ["-f"]:
    asking = socket.socket(socket.AF_UNIX)
    asking.connect(place)
    for line in sys.stdin:
        asking.sendall(line.encode())
        print(asking.recv(10000).decode().strip(), flush=True)
    sys.exit()
listening = socket.socket(socket.AF_UNIX)
listening.bind(place)
listening.listen()
clients, server, hangs = [], os.getpid(), False
def state(pid):
    return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] if os.path.exists(f"/proc/{pid}") else "gone"
def serve(connection):
    global hangs
    for line in connection.makefile():
        words = line.split()
        if words[0] == "client":
            pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            clients.append(pid)
            hangs |= words[1] == "hang"
            print("client", pid, flush=True)
            connection.sendall(b"ok\\n")
            continue
        print(*words, flush=True)
        if hangs:
            time.sleep(1000)
        said = {"get_server_list": [server], "get_client_list": clients}.get(words[0], ["done"])
        if words[0] == "terminate_client":
            print("which is", state(words[2]), flush=True)
        connection.sendall("".join(f"{one}\\n" for one in said).encode())
while True:
    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""
CLIENT = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
service = socket.socket(socket.AF_UNIX)
service.connect(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control")
service.sendall(f"client {sys.argv[1]}\\n".encode())
service.recv(10)
print("computes", flush=True)
time.sleep(1000)
"""


PROGRAM = """
from dockless.sandbox import binds, features
from dockless.sandbox.gpus import lease
from dockless.sched.daemon import main
from dockless.sched.engine import mps_clients

def no_handler(*arguments):
    raise FileNotFoundError(2, "No such file or directory")

{}
raise SystemExit(main([]))
"""
PATIENT = "mps_clients.WITHIN = 60.0"
"""The stand-in is a Python program, started three times: an emulated processor needs more than two seconds."""
UNTOLD = "lease._answers = no_handler"
"""A kernel without unix_diag: it does not tell whose a lease is."""
UNMAPPED = "features.accepts_idmap = binds.accepts_idmap = lambda *given: False"
"""A kernel before 6.3: it cannot map the owners in a tmpfs."""


@pytest.fixture
def change(request: pytest.FixtureRequest) -> str:
    """Of the daemon."""
    return getattr(request, "param", "")


@pytest.fixture
def daemon(tmp_path: Path, own_host, home: Path, change: str) -> Iterator[DaemonProcess]:
    root = tmp_path / "driver"
    library(root / "usr/lib64/libcuda.so.600.10", "libcuda.so.1")
    control = root / "usr/bin/nvidia-cuda-mps-control"
    control.parent.mkdir()
    control.write_text(CONTROL)
    control.chmod(0o755)
    settings = f'[gpus]\nshare = "user"\nmps = "yes"\ndriver_root = "{root}"\n'
    process = DaemonProcess(home, gpus=own_host("1x80G"), settings=settings, program=("-P", "-c", PROGRAM.format(change)))
    process.start()
    yield process
    process.end()


def compute(queue, how: str = "answer") -> int:
    """A job, when it is a client."""
    number = queue.submit(JobSpec(Spec(("/usr/bin/python3", "-c", CLIENT, how)), gpus="memory=20G"))
    until(lambda: queue.job(number).state.ended or any(line.text == "computes" for line in queue.logs(number)), "it computes")
    until(lambda: queue.job(number).options.enforced_by, "it is on record")
    assert queue.job(number).options.enforced_by == "mps"
    return number


def service() -> box.Box:
    (found,) = (one for one in detached.list_all() if one.id.startswith("mps-"))
    return found


def said() -> list[str]:
    """Of the control daemon, once it has said more than who its clients are."""
    return [row.text.decode() for row in service().logs()]


@pytest.mark.parametrize("change", [PATIENT], indirect=True)
def test_the_work_of_a_job_on_the_gpu_is_ended_before_it_is_killed_and_its_neighbours_is_not(daemon):
    with daemon.client() as queue:
        neighbour, ended = compute(queue), compute(queue)
        theirs, its = (line.split()[1] for line in said() if line.startswith("client "))
        (control,) = seen.processes(service())
        queue.cancel(ended, grace=0)
        assert queue.wait(ended, timeout=60).state is State.CANCELLED
        asked = [line for line in said() if not line.startswith("client ")]
        assert asked == ["get_server_list", f"get_client_list {control.pid}", f"terminate_client {control.pid} {its}", "which is S"]
        assert queue.job(neighbour).state is State.RUNNING and os.path.exists(f"/proc/{theirs}")
    assert "did not end its work" not in daemon.errors()


@pytest.mark.parametrize("change", [UNTOLD], indirect=True)
def test_where_the_kernel_does_not_tell_whose_leases_are_they_have_it_too(daemon):
    """Beside a job that has none: the service's share, and theirs, are this queue's."""
    with daemon.client() as queue:
        own = queue.submit(JobSpec(Spec(("sleep", "1000"), mounts=(Tmpfs("/dev/shm"),)), gpus="memory=20G"))
        until(lambda: queue.job(own).options.enforced_by == "watchdog", "it is watched")
        assert [queue.job(compute(queue)).attempt for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("change", [UNMAPPED], indirect=True)
def test_where_the_kernel_cannot_map_owners_root_has_it_too(daemon):
    with daemon.client() as queue:
        compute(queue)


def test_one_that_ends_by_itself_is_not_asked_for(daemon):
    with daemon.client() as queue:
        compute(queue)
        brief = queue.submit(JobSpec(Spec(("sleep", "1000")), gpus="memory=20G"))
        until(lambda: queue.job(brief).state is State.RUNNING, "it runs")
        queue.cancel(brief, grace=20)
        assert queue.wait(brief, timeout=20).state is State.CANCELLED
        assert not any(line.startswith(("get_", "terminate_")) for line in said())


def test_a_service_that_hangs_keeps_no_job_alive(daemon):
    with daemon.client() as queue:
        compute(queue)
        hung = compute(queue, "hang")
        began = time.monotonic()
        queue.cancel(hung, grace=0)
        assert queue.wait(hung, timeout=20).state is State.CANCELLED
        assert time.monotonic() - began >= mps_clients.WITHIN
        assert "did not end its work on the GPU: no answer in 2 seconds; killing the job" in daemon.errors()


def test_nor_does_one_that_is_gone(daemon):
    with daemon.client() as queue:
        job = compute(queue)
        found = service()
        found.kill()
        found.wait(20)
        queue.cancel(job, grace=0)
        assert queue.wait(job, timeout=20).state is State.CANCELLED
        assert "mps-g" in daemon.errors() and "did not end its work on the GPU: " in daemon.errors()
