"""NVIDIA's Multi-Process Service for jobs of one user that share a GPU: its real control daemon, of Debian's packages. The GPUs are
simulated, so no program of CUDA is limited here, and the service's server cannot start."""

from __future__ import annotations

import os
import pwd
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import driver_roots, glibc_images
from support.boxes import load, until
from support.requires import requires
from support.scheduling import DaemonProcess, as_user

from dockless.sandbox.gpus import lease
from dockless.sandbox.run import box, detached, seen
from dockless.sandbox.spec import Spec, Tmpfs
from dockless.sched import JobSpec, State
from dockless.sched.engine.gpus import mps, mps_places, sharing
from dockless.sched.engine.gpus.hostgpus import HostGpus

pytestmark = [
    requires("userns", "overlay", "cgroup2"),
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has a real NVIDIA driver"),
]
ASK = "echo get_default_device_pinned_mem_limit 0 | nvidia-cuda-mps-control; echo answered $?"


@pytest.fixture
def image(tmp_path, home) -> str:
    if why := driver_roots.missing("mps"):
        pytest.skip(why)
    return glibc_images.load(tmp_path, "debian")


@pytest.fixture
def daemon(image, simulation, home) -> Iterator[DaemonProcess]:
    settings = f'[gpus]\nshare = "user"\nmps = "yes"\ndriver_root = "{driver_roots.root("mps")}"\n'
    process = DaemonProcess(home, gpus=simulation, settings=settings)
    process.start()
    yield process
    process.end()
    assert not services() and not lease.holders() and not mps_places.names()


def services() -> list[box.Box]:
    return [one for one in detached.list_all() if one.id.startswith("mps-")]


def submit(queue, image: str, script: str = "sleep 1000", memory: str = "20G", **spec) -> int:
    return queue.submit(JobSpec(Spec(("sh", "-c", script), image, **spec), gpus=f"memory={memory}"))


def running(queue, number: int):
    until(lambda: queue.job(number).state is not State.PENDING and queue.job(number).state is not State.STARTING, f"job {number} runs")
    job = queue.job(number)
    assert job.state is State.RUNNING, job.reason
    return job


def test_jobs_of_one_gpu_have_one_service_with_a_limit_each(daemon, image, uuids):
    with daemon.client() as queue:
        first = running(queue, submit(queue, image))
        (service,) = services()
        talk = submit(
            queue,
            image,
            f"env | grep ^CUDA_MPS | sort; {ASK}; echo set_default_device_pinned_mem_limit 0 3G | nvidia-cuda-mps-control; {ASK}",
        )
        starting = replace(first, options=replace(first.options, enforced_by=""))
        engine: Any = SimpleNamespace(gpus=HostGpus())
        assert sharing.taken_over(engine, starting, box.get(first.attempts[-1].sandbox)) == "mps"
        assert first.options.enforced_by == queue.wait(talk).options.enforced_by == "mps"
        said = "".join(line.text + "\n" for line in queue.logs(talk))
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M\nCUDA_MPS_PIPE_DIRECTORY=/dev/nvidia-mps\n" in said, said
        assert "3G\nanswered 0" in said
        assert [one.id for one in services()] == [service.id] and service.alive
        shares = sorted((one.memory, one.company) for one in lease.shares([uuids[0]]))
        assert shares == [(mps.SERVICE_MEMORY, "user"), (20 << 10, "user")]
        whole = [queue.submit(JobSpec(Spec(("sleep", "1000")), gpus="1")) for _ in range(2)]
        assert running(queue, whole[0]).devices == (uuids[1],)
        queue.cancel(first.id)
        assert (running(queue, whole[1]).devices, queue.job(whole[1]).attempt) == ((uuids[0],), 1)
        assert not services() and not mps_places.names()


def test_it_outlives_a_daemon_that_is_killed_and_goes_with_the_last_job(daemon, image):
    with daemon.client() as queue:
        running(queue, submit(queue, image))
        (service,) = services()
        before = service.pid
    daemon.kill9()
    daemon.start()
    with daemon.client() as queue:
        assert running(queue, submit(queue, image)).options.enforced_by == "mps"
        assert [one.pid for one in services()] == [before]
        daemon.kill9()
        for one in detached.list_all():
            if one.id.startswith("job-"):
                one.kill()
        daemon.start()
        until(lambda: not services(), "the service is ended")


def test_its_jobs_are_watched_when_it_dies_and_the_next_one_starts_another(daemon, image):
    with daemon.client() as queue:
        job = running(queue, submit(queue, image)).id
        (service,) = services()
        for program in seen.processes(service):
            os.kill(program.pid, signal.SIGKILL)
        until(lambda: queue.job(job).options.enforced_by == "watchdog", "it is seen")
        assert re.search("mps-.* has ended: its jobs get errors of CUDA", daemon.errors())
        assert running(queue, submit(queue, image)).options.enforced_by == "mps"
        assert [one.alive for one in services()] == [True]
        assert queue.job(job).state is State.RUNNING


def test_who_cannot_have_it_is_watched(daemon, image):
    with daemon.client() as queue:
        other = running(queue, submit(queue, image, user="1000"))
        own = running(queue, submit(queue, image, mounts=(Tmpfs("/dev/shm"),)))
        assert other.options.enforced_by == own.options.enforced_by == "watchdog" and not services()


def test_its_programs_are_the_drivers_and_the_hosts(daemon, image, tmp_path):
    """Whatever the images of the jobs have: Alpine has none that it could run."""
    musl = load(tmp_path, name="musl:latest")
    with daemon.client() as queue:
        jobs = [running(queue, submit(queue, name, memory="10G")) for name in (musl, image, "host")]
        assert {job.options.enforced_by for job in jobs} == {"mps"}, daemon.errors()
        (service,) = services()
        (program,) = seen.processes(service)
        root = f"/proc/{program.pid}/root"
        assert os.path.samefile(f"{root}/usr", "/usr") and not os.access(f"{root}/var/tmp/x", os.F_OK)
        assert os.readlink(f"/proc/{program.pid}/exe") == "/run/nvidia-driver/nvidia-cuda-mps-control"
        assert {"libcuda.so.1", "nvidia-cuda-mps-server"} <= {*os.listdir(f"{root}/run/nvidia-driver")}
        said = queue.wait(submit(queue, "host", ASK, memory="10G"))
        assert "answered 127" in [line.text for line in queue.logs(said.id)]  # its own PATH, which does not name that directory


def test_a_driver_that_lacks_it(image, simulation, home):
    process = DaemonProcess(home, gpus=simulation, settings='[gpus]\nshare = "user"\nmps = "yes"\n')
    process.start()
    try:
        with process.client() as queue:
            assert running(queue, submit(queue, image)).options.enforced_by == "watchdog" and not services()
        assert re.search("no MPS for user .* nvidia-cuda-mps-control cannot be run: it comes with NVIDIA's driver", process.errors())
    finally:
        process.end()


@requires("root")
def test_each_user_has_a_service_that_runs_as_that_user(daemon, image, uuids, passable):
    users = [pwd.getpwnam(name).pw_uid for name in ("daemon", "bin")]
    jobs = [as_user(uid, daemon.socket.parent, lambda queue: submit(queue, image))[1] for uid in users]
    with daemon.client() as queue:
        found = [running(queue, job) for job in jobs]
        assert [job.options.enforced_by for job in found] == ["mps", "mps"], daemon.errors()
        assert [job.devices for job in found] == [(uuid,) for uuid in uuids]
        programs = [program for service in services() for program in seen.processes(service)]
        assert sorted(os.stat(f"/proc/{program.pid}").st_uid for program in programs) == sorted(users)
        talk = as_user(users[0], daemon.socket.parent, lambda queue: submit(queue, image, ASK))[1]
        queue.wait(talk)
        assert [line.text for line in queue.logs(talk)][-1] == "answered 0"
