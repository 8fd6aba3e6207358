"""Cores and memory in a daemon whose jobs have real limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scheduling import DaemonProcess

from dockless.cgroups import Limits
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State

pytestmark = pytest.mark.requires("userns", "cgroup2:cpu", "cgroup2:memory", "cgroup2:cpuset")

# Simulated GPUs are at no memory node: here they are at the first.
NEAR = "from dockless.sandbox.gpus import nvml\nnvml._numa_node = lambda *_: 0\nfrom dockless.sched.daemon import main\nmain()"


def asking(script: str, gpus: str = "", **limits) -> JobSpec:
    return JobSpec(Spec(argv=("sh", "-c", script), limits=Limits(**limits)), gpus=gpus)


def test_jobs_of_too_many_cores_run_one_after_the_other(home: Path):
    daemon = DaemonProcess(home, settings='[host]\ncores = 2\nmemory = "1G"\n').start()
    with daemon.client() as queue:
        first, second, third = queue.submit_many(
            [asking("sleep 2", cpu_max=1.5), asking("true", cpu_max=1.0), asking("true", memory_max=64 << 20)]
        )
        assert queue.wait(third, timeout=60).state is State.COMPLETED
        assert queue.wait(second, timeout=60).state is State.COMPLETED
        ran = [queue.job(number).attempts[-1] for number in (first, second)]
        assert ran[0].ended <= ran[1].started and queue.job(first).state is State.COMPLETED
    daemon.end()


def test_a_job_with_a_gpu_runs_near_it(home: Path):
    daemon = DaemonProcess(home, gpus="1x80G", settings='[host]\nnuma = "strict"\n', program=("-c", NEAR)).start()
    near = Path("/sys/devices/system/node/node0/cpulist").read_text()
    script = "grep -E '^(Cpus|Mems)_allowed_list' /proc/self/status"
    with daemon.client() as queue:
        job = queue.wait(queue.submit(asking(script, "1", cpu_max=0.5)), timeout=60)
        assert job.state is State.COMPLETED, job.reason
        said = dict(line.text.split(":\t") for line in queue.logs(job.id))
    assert said == {"Cpus_allowed_list": near.strip(), "Mems_allowed_list": "0"}
    daemon.end()
