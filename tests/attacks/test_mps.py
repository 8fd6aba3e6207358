"""A job of a shared GPU that has the Multi-Process Service, which sees the host's processes, do what the job may not.

Row A79 of the list of attacks. The driver here is a stand-in: its control daemon listens, and then does what a program does that was
broken into by its clients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import boxes
from support.elf_files import library
from support.make_image import file
from support.requires import requires
from support.scheduling import DaemonProcess

from dockless.sandbox.run import box, detached
from dockless.sandbox.spec import Spec
from dockless.sched import Job, JobSpec, State

pytestmark = [
    requires("root", "userns", "overlay", "cgroup2"),
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has a real NVIDIA driver"),
]

MEMORY = 128 << 20
SERVICE = """#!/usr/bin/python3
import errno, os, signal, socket
listening = socket.socket(socket.AF_UNIX)
listening.bind(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control")
listening.listen()
def taken(directory):
    block, sizes = bytes(1 << 20), []
    for number in range(400):
        try:
            file = os.open(f"{directory}/left", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            sizes.append(os.write(file, block))
            os.close(file)
        except OSError as error:
            return sum(sizes), errno.errorcode[error.errno]
    return sum(sizes), "no end"
places = {line.split()[4] for line in open("/proc/self/mountinfo")}
places |= {"/" + name for name in os.listdir("/")} | {"/var/tmp", "/dev/shm/below"}
for place in sorted(places - {"/dev/nvidia-mps"}):
    if place.startswith("/proc") or place.startswith("/sys") or not os.path.isdir(place):
        continue
    size, end = taken(place)
    if size:
        print("TOOK", place, size >> 20, end, flush=True)
print("done", flush=True)
signal.pause()
"""


def stand_in(where: Path) -> Path:
    """A driver with a control daemon that means harm."""
    root = where / "driver"
    library(root / "usr/lib64/libcuda.so.600.10", "libcuda.so.1")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/nvidia-cuda-mps-control").write_text(SERVICE)
    (root / "usr/bin/nvidia-cuda-mps-control").chmod(0o755)
    return root


@pytest.fixture
def start(home: Path, own_host: Callable[[str], str]) -> Iterator[Callable[[str], DaemonProcess]]:
    """A daemon, after it was said where the driver is."""
    started: list[DaemonProcess] = []

    def start(driver_root: str) -> DaemonProcess:
        settings = f'[gpus]\nshare = "user"\nmps = "yes"\ndriver_root = "{driver_root}"\n[host]\nmemory = {MEMORY}\n'
        started.append(DaemonProcess(home, gpus=own_host("2x80G"), settings=settings))
        started[0].start()
        return started[0]

    yield start
    for daemon in started:
        daemon.end()
    assert not services()


def services() -> list[box.Box]:
    return [one for one in detached.list_all() if one.id.startswith("mps-")]


def ran(daemon: DaemonProcess, image: str, script: str) -> tuple[Job, list[str]]:
    with daemon.client() as queue:
        number = queue.submit(JobSpec(Spec(("sh", "-c", script), image), gpus="memory=20G"))
        job = queue.wait(number)
        assert job.state is State.COMPLETED, (job, daemon.errors())
        return job, [line.text for line in queue.logs(number)]


HOSTILE = "#!/bin/sh\necho of the image > /dev/shm/canary; echo of the image\n"


def hostile_image(where: Path) -> str:
    places = [f"{place}/nvidia-cuda-mps-{name}" for place in ("usr/local/sbin", "usr/bin", "bin") for name in ("control", "server")]
    return boxes.load(where, [file(place, HOSTILE, mode=0o755) for place in (*places, "lib64/ld-linux-x86-64.so.2")], name="hostile:latest")


def test_no_program_of_a_jobs_image_is_the_service(start, tmp_path: Path) -> None:
    daemon = start("/")
    job, said = ran(daemon, hostile_image(tmp_path), "ls /dev/shm")
    assert job.options.enforced_by == "watchdog" and said == []
    assert not services() and "nvidia-cuda-mps-control cannot be run" in daemon.errors()


@pytest.mark.skipif(not Path("/usr/bin/python3").exists() or sys.platform != "linux", reason="the stand-in needs /usr/bin/python3")
def test_what_a_service_and_its_jobs_write_is_bounded(start, tmp_path: Path) -> None:
    """The programs are the driver's whatever the image has, and no limit of a job's memory or disk holds them."""
    daemon = start(str(stand_in(tmp_path)))
    image = hostile_image(tmp_path)
    with daemon.client() as queue:
        first = queue.submit(JobSpec(Spec(("sleep", "1000"), image), gpus="memory=20G"))
        boxes.until(lambda: queue.job(first).state is State.RUNNING, "it runs")
        assert queue.job(first).options.enforced_by == "mps", daemon.errors()
        (service,) = services()
        said = boxes.until(lambda: (found := [row.text.strip() for row in service.logs()])[-1:] == [b"done"] and found, "it has tried")
        took = {place.decode(): (int(size), end) for _, place, size, end in map(bytes.split, said[:-1])}
        room = MEMORY // 2 // 2 >> 20
        assert took == {"/dev": (64, b"ENOSPC"), "/dev/shm": (room, b"ENOSPC"), "/tmp": (16, b"ENOSPC")}
    script = "dd if=/dev/zero of=/dev/shm/more bs=1M count=1 2> /dev/null || echo full; stat -f -c %c /dev/shm; ls /dev/shm"
    job, said = ran(daemon, image, script)
    assert job.options.enforced_by == "mps" and said == ["full", "65536", "left", "more"]
