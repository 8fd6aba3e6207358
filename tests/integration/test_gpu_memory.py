"""Memory of a GPU that a sandbox or a job asks for: a MIG slice or a whole GPU that has it, and nobody else on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.requires import requires

import dockless
from dockless._options import gpus_wanted
from dockless.cli import main
from dockless.errors import BadInput, NotEnoughGpus
from dockless.sched.engine.gpus import sharing
from dockless.sched.engine.gpus.hostgpus import HostGpus
from dockless.sched.jobs import NO_OPTIONS

pytestmark = requires("userns")


@pytest.fixture
def simulated(monkeypatch):
    """A whole GPU of 80 GiB, and four slices of 20."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G,mig=4")


def test_each_gets_its_own(simulated):
    boxes = []
    try:
        for asked in ("20G", "20G", "21G"):
            boxes.append(dockless.start(["sleep", "100"], gpu_memory=asked))
        names = [box.gpus[0] for box in boxes]
        assert [name[:4] for name in names] == ["MIG-", "MIG-", "GPU-"] and len(set(names)) == 3
        with pytest.raises(NotEnoughGpus, match=r"1 GPU with 21 GiB asked for, 0 of 1 free"):
            dockless.run(["true"], gpu_memory="21G")
    finally:
        for box in boxes:
            box.rm(force=True)


def test_on_the_command_line(simulated, capfd):
    assert main(["run", "--gpu-memory", "10G", "--", "sh", "-c", "echo $DOCKLESS_GPUS"]) == 0
    assert capfd.readouterr().out.startswith("MIG-")
    assert main(["run", "--gpus", "device=0", "--gpu-memory", "90G", "--", "true"]) == 125
    assert "asked for, GPU-" in capfd.readouterr().err


def test_a_created_one_leases_when_it_is_started(simulated):
    box = dockless.create(["sh", "-c", "echo $DOCKLESS_GPUS"], gpu_memory="15G")
    box.start()
    box.wait()
    assert b"".join(line.text for line in box.logs()).startswith(b"MIG-")
    box.rm()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, None),
        ({"gpus": 2}, 2),
        ({"gpu_memory": "1G"}, "memory=1073741824"),
        ({"gpus": 2, "gpu_memory": 5}, "2,memory=5"),
        ({"gpus": "device=0,1", "gpu_memory": 5}, "device=0,1,memory=5"),
        ({"gpu_class": "1g.10gb"}, "class=1g.10gb"),
        ({"gpus": 2, "gpu_memory": "1K", "gpu_class": "H100"}, "2,memory=1024,class=H100"),
    ],
)
def test_what_the_keywords_say_together(options, text):
    assert gpus_wanted(options) == text


@pytest.mark.parametrize("options", [{"gpu_memory": 0}, {"gpu_memory": "1G", "gpus": "memory=2G"}, {"gpu_class": "a", "gpus": "class=b"}])
def test_what_does_not_go_together(options):
    with pytest.raises(BadInput):
        gpus_wanted(options)


def test_the_queue_gives_a_slice_or_a_whole_gpu(simulated):
    gpus = HostGpus()
    try:
        slices = tuple(unit.uuid for unit in gpus.gpus if unit.parent)
        (whole,) = (unit.uuid for unit in gpus.gpus if not unit.parent)
        assert gpus.resolve("memory=20G") == gpus.resolve("memory=80G") == (1, ())
        assert [gpus.may_have(gpus.class_of(f"memory={size}")) for size in ("20G", "20.5G", "80G")] == [
            (*slices, whole),
            (whole,),
            (whole,),
        ]
        assert gpus.resolve(f"device={slices[0]},memory=20G") == (1, (slices[0],)) and gpus.class_of(f"device={slices[0]},memory=20G") == ""
        with pytest.raises(NotEnoughGpus, match="the largest of this host has 80"):
            gpus.resolve("memory=81G")
    finally:
        gpus.close()


def test_only_what_asks_for_memory_is_kept_to_it_by_a_slice(simulated):
    gpus = HostGpus()
    try:
        slices = tuple(unit.uuid for unit in gpus.gpus if unit.parent)[:1]
        for wish, how in (
            ("memory=20G", "slice"),
            (f"device={slices[0]}, memory=5", "slice"),
            (f"device={slices[0]},options=memory=5", None),
        ):
            job: Any = SimpleNamespace(options=NO_OPTIONS, gpus=wish, devices=slices)
            assert sharing.enforced_by(cast(Any, SimpleNamespace(gpus=gpus)), job) == how
    finally:
        gpus.close()
