"""A daemon without descriptors, or without a place for its kept logs: no job and no output is lost for that."""

from __future__ import annotations

import os
import resource
import select
from pathlib import Path

from support.boxes import until
from support.requires import requires
from support.scheduling import DaemonProcess

from dockless.sandbox.run import detached
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State

pytestmark = requires("userns")


def test_a_start_without_descriptors_waits(home: Path):
    daemon = DaemonProcess(home, gpus="1x80G").start()
    try:
        with daemon.client() as queue:
            first = queue.submit(JobSpec(Spec(argv=("true",)), gpus="1"))
            assert queue.wait(first, timeout=60).state is State.COMPLETED
            pid = daemon.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            highest = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 3, before[1]))
            second = queue.submit(JobSpec(Spec(argv=("true",)), gpus="1"))
            until(lambda: f"job {second} cannot start" in daemon.errors(), "the daemon has no descriptors for a start")
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            job = queue.wait(second, timeout=60)
            assert (job.state, job.attempt) == (State.COMPLETED, 1)
    finally:
        daemon.stop()


HASTY = """
import sys
from dockless.sched.engine import wants
wants.AGAIN = 0.01
from dockless.sched.daemon import main
sys.exit(main([]))
"""


def test_a_start_that_fails_at_each_of_its_descriptors_is_one_start(home: Path):
    """The limit grows by one until the job has ended: each step fails, with what it has made, one step further on its way."""
    daemon = DaemonProcess(home, program=("-c", HASTY)).start()
    try:
        with daemon.client() as queue:
            assert queue.wait(queue.submit(JobSpec(Spec(argv=("true",)))), timeout=60).state is State.COMPLETED
            pid = daemon.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            highest = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1, before[1]))
            number = queue.submit(JobSpec(Spec(argv=("sh", "-c", "echo once; exit 7"))))
            until(lambda: f"job {number} cannot start" in daemon.errors(), "the daemon has no descriptors for a start")
            for limit in range(highest + 1, highest + 60):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
                if queue.job(number).state.ended:
                    break
                select.select([], [], [], 0.05)  # some tries each
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            job = queue.wait(number, timeout=60)
            assert (job.state, job.exit_code, job.attempt) == (State.FAILED, 7, 1), job
            assert [line.text for line in queue.logs(number)] == ["once"]
            until(lambda: not detached.list_all(), "its sandbox is removed")
    finally:
        daemon.stop()


def test_output_that_cannot_be_kept(home: Path):
    daemon = DaemonProcess(home).start()
    (logs,) = home.glob("**/logs")
    logs.rmdir()
    try:
        with daemon.client() as queue:
            number = queue.submit(JobSpec(Spec(argv=("echo", "text"))))
            job = queue.wait(number, timeout=60)
            assert job.state is State.COMPLETED
            assert "not kept yet" in job.reason
            assert [line.text for line in queue.logs(number)] == ["text"]
            name = job.attempts[-1].sandbox
        daemon.stop()
        daemon.start()  # makes its place again
        with daemon.client() as queue:
            assert detached.find(name) is None
            assert (logs / f"{name}.log").exists()
            assert [line.text for line in queue.logs(number)] == ["text"]
    finally:
        daemon.stop()
