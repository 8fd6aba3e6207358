"""The driver's limit of a GPU's memory, over made-up hierarchies of groups: a kernel limits a group that has the files of ``dmem`` alone.

With real groups, of kernels that do not have that controller: test_gpu_shares.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.requires import requires

from dockless.cgroups import Delegation, delegation
from dockless.errors import CgroupError
from dockless.sandbox.gpus import limits
from dockless.sandbox.gpus.gpu import inventory
from dockless.sandbox.run import detached, start
from dockless.sandbox.spec import Spec
from dockless.sched.engine.gpus.sharing import SharingLauncher

GB = 1 << 30


@pytest.fixture
def gpu(monkeypatch) -> str:
    """The UUID of the one that there is."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has a real NVIDIA driver; this process may have loaded it")
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G,limits")
    return inventory()[0].uuid


@pytest.fixture
def state(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("DOCKLESS_SIMULATED_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def hierarchy(top: Path, monkeypatch, controllers: str) -> Delegation:
    """A place in which groups have these controllers, once they are passed on."""

    def passed_on(path: Path, value: str) -> None:
        with open(path, "a") as file:
            file.write(value.replace("+", " "))

    top.mkdir()
    (top / "cgroup.controllers").write_text(controllers)
    for above in (top, top / "dockless", top / "dockless" / "user-1001"):
        above.mkdir(exist_ok=True)
        (above / "cgroup.controllers").write_text(controllers)
    monkeypatch.setattr(delegation, "_try_write", passed_on)
    monkeypatch.setattr(delegation, "_enabled", {})
    have = frozenset(controllers.split())
    return Delegation(top, have, have, "root", "a test")


def as_the_kernel_does(group: Path) -> None:
    """The files that a new group has."""
    if all("dmem" in (above / "cgroup.subtree_control").read_text() for above in (group.parent, *list(group.parents)[1:3])):
        (group / "dmem.max").write_text("max\n")


@requires("root")
@pytest.mark.parametrize(("controllers", "asked", "limited"), [("cpu dmem", ("dmem",), True), ("cpu dmem", (), False), ("cpu", (), True)])
def test_a_group_is_limited_where_its_kernel_can(gpu, state, tmp_path, monkeypatch, controllers, asked, limited):
    """Those that did not ask for the controller do not have it, and without it in the kernel the driver does it all."""
    place = hierarchy(tmp_path / "cgroup", monkeypatch, controllers)
    monkeypatch.setattr(start, "find_delegation", lambda **how: place)
    group = start.make_cgroup(Spec(argv=("true",)), "job-1", 1001, asked)
    assert group is not None
    group.close()
    assert group.path.parent.name == "user-1001"
    as_the_kernel_does(group.path)
    assert (group.path / "dmem.max").exists() == (limited and "dmem" in controllers)
    assert limits.set_limit(gpu, str(group.path), 20 * GB) == limited
    assert state.exists() == limited and (not limited or state.read_text() == f"limit 0 {20 * GB} {group.path}\n")
    assert not limits.set_limit(gpu, f"{group.path}-that-is-gone", 20 * GB)


def test_a_job_that_shares_a_gpu_has_the_controller_asked_for(gpu, monkeypatch, tmp_path):
    asked = []

    def make(spec: Spec, name: str, user: int | None, controllers: tuple[str, ...]) -> None:
        asked.append((user, controllers))
        raise CgroupError("asked")

    monkeypatch.setenv("DOCKLESS_HOME", str(tmp_path))
    monkeypatch.setattr(detached, "make_cgroup", make)
    spec = Spec(argv=("true",), gpus=(gpu,))
    with pytest.raises(CgroupError, match="asked"):
        SharingLauncher(detached, 1024, 2048, "user").start(spec, id="job-1", user=7)
    with pytest.raises(CgroupError, match="asked"):
        detached.start(spec, id="job-2")
    assert asked == [(7, ("dmem",)), (None, ())]
