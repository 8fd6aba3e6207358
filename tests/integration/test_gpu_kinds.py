"""A host with GPUs of several kinds, and a driver for a CUDA of some version: what is asked by class, and what images ask."""

from __future__ import annotations

import pytest
from support.boxes import until
from support.requires import requires
from support.scheduling import DaemonProcess

import dockless
from dockless.cli import main
from dockless.errors import GpuError, NotEnoughGpus
from dockless.sandbox.gpus import gpu
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec, State

pytestmark = requires("userns")

FOREVER = Spec(argv=("sleep", "1000"))


@pytest.fixture
def kinds(own_host) -> str:
    return own_host("2x40G:A100-SXM4+1x80G:H100,cuda=12.4")


def test_a_run_gets_a_gpu_of_its_class(kinds, capfd):
    assert [unit.model for unit in gpu.inventory()] == ["Simulated A100-SXM4", "Simulated A100-SXM4", "Simulated H100"]
    (hopper,) = (unit.uuid for unit in gpu.inventory() if unit.memory == 80 << 30)
    box = dockless.start("host", ["sleep", "1000"], gpus=1, gpu_class="H100")
    try:
        assert box.gpus == (hopper,)
        with pytest.raises(NotEnoughGpus, match=r"1 GPU of class H100 asked for, 0 of 1 free \(simulated\)"):
            dockless.run("host", ["true"], gpus=1, gpu_class="H100")
    finally:
        box.rm(force=True)
    assert main(["run", "--gpus", "2", "--gpu-class", "h100", "--", "true"]) == 125
    shown = capfd.readouterr().err
    assert "this host has 1 of it (simulated)" in shown and "its GPUs are 2 Simulated A100-SXM4, 1 Simulated H100" in shown


def test_jobs_wait_for_gpus_of_their_class(kinds, home):
    daemon = DaemonProcess(home, gpus=kinds).start()
    with daemon.client() as queue:
        model = {one.uuid: one.model for one in queue.info().gpus}
        first, second, small = (queue.submit(JobSpec(FOREVER, gpus=f"1,class={name}")) for name in ("H100", "H100", "A100"))
        until(lambda: queue.job(small).state is State.RUNNING and queue.job(first).state is State.RUNNING, "each has one of its class")
        assert [model[queue.job(job).devices[0]] for job in (first, small)] == ["Simulated H100", "Simulated A100-SXM4"]
        assert queue.job(second).state is State.PENDING
        queue.cancel(first, grace=0)
        until(lambda: queue.job(second).state is State.RUNNING, "the next has it")
        assert queue.job(second).devices == queue.job(first).devices
    daemon.end()


@pytest.mark.parametrize(("asked", "holds"), [("cuda>=12.4", True), ("cuda>=12.5", False), ("cuda>=11,cuda<12 cuda>=13", False)])
def test_what_an_image_asks_of_cuda(kinds, asked, holds):
    assert gpu.driver().cuda == "12.4"
    how = {"gpus": 1, "env": {"NVIDIA_REQUIRE_CUDA": asked}}
    if holds:
        assert dockless.run("host", ["true"], **how).returncode == 0
        return
    with pytest.raises(GpuError, match=r"\(NVIDIA_REQUIRE_CUDA\); this host has cuda 12\.4.* \(simulated\)"):
        dockless.run("host", ["true"], **how)
