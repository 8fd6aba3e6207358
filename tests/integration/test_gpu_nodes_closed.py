"""GPUs' nodes that are closed on the host, to all users or to those of no group: who has a lease of root's opens them all the same."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.requires import requires
from support.scheduling import DaemonProcess, as_user

import dockless
from dockless import doctor
from dockless.base.idmaps import IdMap, Range
from dockless.errors import Unsupported
from dockless.sandbox import gpu_nodes
from dockless.sandbox.accounts import Account
from dockless.sandbox.gpus import gpu, nodes, own_nodes
from dockless.sandbox.gpus.nodes import DeviceNode
from dockless.sandbox.spec import Namespaces, Spec
from dockless.sched import JobSpec, State

pytestmark = [
    requires("userns"),
    requires("root"),
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has a real NVIDIA driver"),
]

ANNA = pwd.getpwnam("daemon").pw_uid
HOSTS = Namespaces(user="host")
OPEN = 'said=$(for name in nvidiactl nvidia1 nvidia-uvm nvidia-uvm-tools; do sh -c ": 3<>/dev/$name" 2>&1; done; ls /dev | grep -c nvidia)'
OPEN += '; echo "$said"'  # at once: a log has a row for each write
OPENED = ["No such device or address"] * 4 + ["4"]
"""What a stand-in without a driver says that may be opened."""


@pytest.fixture
def simulation(own_host) -> str:
    return own_host("2x80G")


@pytest.fixture(autouse=True)
def _nothing_left(simulation):
    before = {*os.listdir(own_nodes.PLACE)} if os.path.isdir(own_nodes.PLACE) else set()
    yield
    assert not os.path.isdir(own_nodes.PLACE) or not {*os.listdir(own_nodes.PLACE)} - before


def outcomes(text: str) -> list[str]:
    return [line.rpartition(": ")[2] for line in text.splitlines()]


@pytest.mark.parametrize("mode", [0o600, 0o660])
@pytest.mark.parametrize(
    "how", [{}, {"user": "1000"}, {"namespaces": HOSTS}, {"namespaces": HOSTS, "user": "1000"}], ids=["", "user", "host", "user-host"]
)
def test_root_gives_nodes_of_the_sandboxs_own(mode, how, monkeypatch):
    monkeypatch.setattr(nodes, "_MODE", mode)
    there = gpu.device_nodes(gpu.inventory()[:1])
    assert gpu_nodes.closed(there) == [node.source for node in there[:3]], there
    ran = dockless.run("host", ["sh", "-c", OPEN], gpus="device=0", capture_output=True, text=True, **how)
    assert outcomes(ran.stdout) == OPENED, ran
    assert [stat.S_IMODE(os.stat(node.source).st_mode) for node in there] == [mode] * 4, "the host's stay closed"


def test_a_users_job_opens_what_she_cannot(simulation, home):
    code = (
        "from dockless.sandbox.gpus import nodes; nodes._MODE = 0o600; from dockless.sched.daemon import main; raise SystemExit(main([]))"
    )
    daemon = DaemonProcess(home, gpus=simulation, program=("-P", "-c", code)).start()
    try:
        job = as_user(ANNA, daemon.socket.parent, lambda q: q.submit(JobSpec(Spec(argv=("sh", "-c", OPEN)), gpus="device=0")))
        assert job[0] == "ok", job
        with daemon.client() as queue:
            done = queue.wait(job[1], timeout=60)
            assert done.state is State.COMPLETED, done.reason
            assert outcomes("\n".join(line.text for line in queue.logs(job[1]))) == OPENED
    finally:
        daemon.end()


def made(folder: Path, mode: int, gid: int = 0) -> list[DeviceNode]:
    """Nodes as those of a GPU, and of a slice of it."""
    names = ("nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-modeset", "nvidia-caps/nvidia-cap1")
    (folder / "nvidia-caps").mkdir()
    for name in names:
        os.mknod(folder / name, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.chmod(folder / name, 0o444 if "caps" in name else mode)
        os.chown(folder / name, 0, gid)
    folder.chmod(0o755)
    return [DeviceNode(f"/dev/{name}", str(folder / name), 1, 3) for name in names]


def given(there: Sequence[DeviceNode], groups: tuple[int, ...] = ()) -> tuple[str, str]:
    """What a user is told who starts a sandbox with them."""

    def work(_) -> tuple[str, str]:
        try:
            gpu_nodes.given(there, IdMap((Range(0, ANNA, 1),), (Range(0, ANNA, 1),)), Account(0, 0, (), "/root"), rootful=False)
        except Unsupported as error:
            return str(error), error.hint
        return "", doctor._opened("2 GPUs", there)[1]

    outcome = as_user(ANNA, Path("/"), work, groups=groups)
    assert outcome[0] == "ok", outcome
    return outcome[1]


def test_a_user_is_told_why_and_what_to_do(tmp_path, passable):
    (folder := tmp_path / "open").mkdir()
    there = made(folder, 0o666)
    assert given(there) == ("", "2 GPUs; every user may open their nodes without a lease (docs/security.md says how to close them)")
    (folder := tmp_path / "closed").mkdir()
    there = made(folder, 0o600)
    assert given(there) == (
        f"GPU node {there[0].source}: nobody inside could open it for 'rw'",
        "its nodes are closed on this host: `dockless submit` asks root's daemon for GPUs",
    )
    assert given([there[3], there[4]])[0] == "", "nothing that CUDA needs"
    of_graphics = DeviceNode("/dev/dri/renderD128", there[0].source, 1, 3)
    assert given([of_graphics])[0] == "" and gpu_nodes.closed([of_graphics]) == []
    assert doctor._opened("2 GPUs", there) == ("ok", "2 GPUs; their nodes are closed: users get them by leases of root's daemon", "")
    (folder := tmp_path / "group").mkdir()
    there = made(folder, 0o660, 54321)
    assert given(there)[1] == "its nodes are closed on this host: `dockless submit` asks root's daemon for GPUs"
    assert (
        given(there, (54321,))[1] == f"you may by a group, which a sandbox does not keep: setfacl -m u:{ANNA}:rw {there[0].source}, as root"
    )
