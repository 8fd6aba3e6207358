"""Jobs with GPUs on the processors near them."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from support.desk import ANN, play

from dockless import cgroups
from dockless.cgroups import Limits
from dockless.sandbox.run.process import Exit
from dockless.sandbox.spec import Spec
from dockless.sched import JobSpec
from dockless.sched.config import Config
from dockless.sched.engine import queue_state
from dockless.sched.engine.gpus import numa
from dockless.sched.policy.state import MemoryNode


@pytest.fixture(autouse=True)
def _two_nodes(tmp_path, monkeypatch):
    for node, processors in enumerate(("0-3,8", "4-7", "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(processors + "\n")
    monkeypatch.setattr(numa, "NODES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cgroups, "unavailable", lambda limits, delegation: ())


def placed(how: str, *nodes: int | None, **limits) -> tuple[str | None, str | None]:
    found, kept = numa.near(Spec(limits=Limits(**limits)), gpus(*nodes), how)
    assert kept == (set(nodes) if found.limits.cpuset_cpus and "cpuset_cpus" not in limits else set())
    return found.limits.cpuset_cpus, found.limits.cpuset_mems


def gpus(*nodes: int | None) -> list[SimpleNamespace]:
    return [SimpleNamespace(numa_node=node, uuid=f"g{number}") for number, node in enumerate(nodes)]


def test_the_processors_of_the_gpus_nodes():
    assert placed("near", 0) == ("0-3", None) and placed("near", 1, 1) == ("4-7", None) and placed("near", 0, 1) == ("0-7", None)
    assert placed("strict", 1) == ("4-7", "1") and placed("strict", 1, 0) == ("0-7", "0-1")
    assert numa.near(Spec(limits=Limits(memory_max=1 << 20)), gpus(1), "near")[0].limits.memory_max == 1 << 20


def test_where_others_have_the_near_processors_it_may_use_all():
    """Of those that it names so many have to be left; ``strict`` keeps its memory there."""

    def kept(cores: float | None, how: str, *nodes: int, given: numa.Given) -> tuple[str | None, str | None, set[int]]:
        spec, at = numa.near(Spec(limits=Limits(cpu_max=cores)), gpus(*nodes), how, given)
        return spec.limits.cpuset_cpus, spec.limits.cpuset_mems, set(at)

    three = [(frozenset({0}), 2.0), (frozenset({0, 1}), 2.0)]  # on node 0
    assert kept(1.0, "near", 0, given=three) == ("0-3", None, {0})
    assert kept(1.5, "near", 0, given=three) == (None, None, set()) and kept(3.0, "near", 1, given=three) == ("4-7", None, {1})
    assert kept(1.5, "strict", 0, given=three) == (None, "0", set())
    assert kept(4.0, "near", 0, 1, given=three) == ("0-7", None, {0, 1}) and kept(4.5, "near", 0, 1, given=three)[0] is None
    assert kept(None, "near", 0, given=[*three, *three]) == ("0-3", None, {0}), "one that names no cores is as near as can be"


def test_the_nodes_that_the_policy_sees():
    assert numa.nodes(gpus(0, 1, None, 1)) == (MemoryNode(frozenset({"g0"}), 4000), MemoryNode(frozenset({"g1", "g3"}), 4000))
    for alike in (gpus(0, 0), gpus(None, None), gpus(0, 2), []):
        assert numa.nodes(alike) == ()


@pytest.mark.parametrize(
    ("how", "nodes", "limits"),
    [
        ("any", (0,), {}), ("near", (), {}), ("near", (None,), {}), ("near", (0, None), {}), ("near", (2,), {}), ("near", (7,), {}),
        ("near", (0,), {"cpu_max": 4.5}),
    ],
)  # fmt: skip
def test_anywhere(how, nodes, limits):
    """Also where the near ones are too few for the job."""
    assert placed(how, *nodes, **limits) == (None, None)


def test_who_says_where_it_runs_runs_there():
    assert placed("near", 0, cpuset_cpus="6") == ("6", None) and placed("strict", 0, cpuset_mems="1") == (None, "1")


def test_a_host_without_the_controller(monkeypatch):
    monkeypatch.setattr(cgroups, "unavailable", lambda limits, delegation: ("no cpuset",))
    assert placed("near", 0) == (None, None)


def test_jobs_of_a_daemon_beside_one_node(tmp_path, monkeypatch):
    """Three jobs that name cores, on GPUs of which two are at node 0: that has too few for both, and the later one may run anywhere."""
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "3x80G")
    monkeypatch.setattr("dockless.sandbox.gpus.nvml._numa_node", lambda nvml, handle, address: int(nvml.nvmlDeviceGetIndex(handle) == 2))

    async def story(desk):
        numbers = await desk.submit(ANN, *[JobSpec(Spec(argv=("x",), limits=Limits(cpu_max=3)), gpus="1") for _ in range(3)])
        boxes = [await desk.runs(number) for number in numbers]
        assert [desk.engine.entries[number].job.devices[0] for number in numbers] == [desk.engine.gpus.uuids[at] for at in (2, 0, 1)]
        assert [box.spec.limits.cpuset_cpus for box in boxes] == ["4-7", "0-3", None]
        boxes[1].end(Exit(0, None))
        assert [len(node.gpus) for node in queue_state.state(desk.engine).nodes] == [2, 1]
        (last,) = await desk.submit(ANN, JobSpec(Spec(argv=("x",), limits=Limits(cpu_max=3)), gpus="1"))
        assert (await desk.runs(last)).spec.limits.cpuset_cpus == "0-3", "they are free again"

    play(tmp_path, story, Config(numa="near", cores=9))
