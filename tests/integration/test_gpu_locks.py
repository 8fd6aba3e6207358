"""The queue and `dockless run` never give the same GPU away: both respect the lock files of ``sandbox.gpus.lease``."""

import pytest

from dockless.errors import NotEnoughGpus
from dockless.sandbox.gpus import gpu
from dockless.sandbox.gpus import lease as gpu_lease
from dockless.sandbox.spec import Spec
from dockless.sched.engine import attempts
from dockless.sched.engine.hostgpus import HostGpus


@pytest.fixture
def four(monkeypatch, home):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "4x80G")


def test_the_queue_sees_what_a_run_holds(four):
    gpus = HostGpus()
    try:
        assert gpus.outside(()) == frozenset()
        with gpu_lease.lease(gpu.parse_request("2")) as lease:
            assert gpus.outside(()) == frozenset(lease.uuids)
            assert gpus.outside(lease.uuids[:1]) == frozenset(lease.uuids[1:])
        assert gpus.outside(()) == frozenset()
    finally:
        gpus.close()


def test_a_launch_does_not_take_what_a_run_was_faster_to_take(four):
    launched = []

    class Launcher:
        def start(self, spec, **how):
            launched.append(gpu_lease.held(spec.gpus))

    with gpu_lease.lease(gpu.parse_request("1")) as lease:
        with pytest.raises(NotEnoughGpus):
            attempts.launch(Launcher(), Spec(argv=("true",), gpus=lease.uuids), id="job-1-1")
        uuids = lease.uuids
    attempts.launch(Launcher(), Spec(argv=("true",), gpus=uuids), id="job-1-1")
    assert launched == [frozenset(uuids)]
    assert gpu_lease.held(uuids) == frozenset()
