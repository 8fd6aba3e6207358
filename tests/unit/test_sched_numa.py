"""Jobs with GPUs on the processors near them."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from dockless import cgroups
from dockless.cgroups import Limits
from dockless.sandbox.spec import Spec
from dockless.sched.engine.gpus import numa


@pytest.fixture(autouse=True)
def _two_nodes(tmp_path, monkeypatch):
    for node, processors in enumerate(("0-3,8", "4-7", "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(processors + "\n")
    monkeypatch.setattr(numa, "NODES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(cgroups, "unavailable", lambda limits, delegation: ())


def placed(how: str, *nodes: int | None, **limits) -> tuple[str | None, str | None]:
    found = numa.near(Spec(limits=Limits(**limits)), [SimpleNamespace(numa_node=node) for node in nodes], how).limits
    return found.cpuset_cpus, found.cpuset_mems


def test_the_processors_of_the_gpus_nodes():
    assert placed("near", 0) == ("0-3", None) and placed("near", 1, 1) == ("4-7", None) and placed("near", 0, 1) == ("0-7", None)
    assert placed("strict", 1) == ("4-7", "1") and placed("strict", 1, 0) == ("0-7", "0-1")
    assert numa.near(Spec(limits=Limits(memory_max=1 << 20)), [SimpleNamespace(numa_node=1)], "near").limits.memory_max == 1 << 20


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
