"""The device nodes a lease becomes: exactly those, exactly what they say they are."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.requires import requires

from dockless.base import paths
from dockless.base.dataclass import replace
from dockless.errors import GpuError
from dockless.sandbox.gpus import nodes as gpu_nodes
from dockless.sandbox.gpus.gpu import UNSET_IN_SANDBOX, Gpu, device_nodes, environment, find, inventory, other_nodes

without_driver = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has a real NVIDIA driver")


@pytest.fixture
def simulate(monkeypatch):
    return lambda text: monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", text)


def names(nodes) -> list[str]:
    return [node.target for node in nodes]


def test_no_gpus_no_nodes():
    assert device_nodes(()) == ()
    assert environment(()) == {"NVIDIA_VISIBLE_DEVICES": "void"}


@requires("root")
@without_driver
def test_nodes_by_minor_and_nothing_else(simulate):
    simulate("4x80G")
    gpus = inventory()
    nodes = device_nodes(gpus[:1])
    assert names(nodes) == ["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    for node in nodes:
        found = os.lstat(node.source)
        assert stat.S_ISCHR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o666
        assert found.st_rdev == os.makedev(node.major, node.minor)
        assert "simulated" in node.note
    assert (nodes[0].major, nodes[0].minor, nodes[1].major, nodes[1].minor) == (195, 255, 195, 1)
    assert names(other_nodes(gpus[:1], gpus)) == ["/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia3"]
    assert other_nodes(gpus, gpus) == ()


@requires("root")
@without_driver
def test_a_stand_in_answers_enxio_when_opened(simulate):
    """Granted but no driver: tests tell it apart from a node that the device filter keeps shut (EPERM)."""
    simulate("1x80G")
    for node in device_nodes(inventory()):
        with pytest.raises(OSError) as error:
            os.close(os.open(node.source, os.O_RDWR))
        assert error.value.errno == errno.ENXIO


@requires("root")
@without_driver
def test_mig_slices_open_their_own_caps_only(simulate):
    simulate("2x80G,mig=2")
    gpus = inventory()
    first, second = (find([part.uuid], gpus) for part in gpus[1].mig)
    assert names(device_nodes(first)) == [
        *("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
        *("/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"),
    ]
    assert {"/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidia1"} == set(names(other_nodes(first, gpus)))
    assert names(device_nodes(second))[-2:] == ["/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"]


@requires("root")
@without_driver
def test_majors_of_the_stand_ins_belong_to_no_driver(simulate):
    simulate("1x80G")
    taken = gpu_nodes.character_majors(Path("/proc/devices").read_text()).values()
    majors = {node.major for node in device_nodes(inventory())}
    assert majors.isdisjoint(taken)


@requires("root")
@without_driver
def test_nodes_are_made_once_and_a_replaced_one_is_made_anew(simulate):
    simulate("1x80G")
    nodes = device_nodes(inventory())
    before = [os.lstat(node.source).st_ino for node in nodes]
    assert device_nodes(inventory()) == nodes
    assert [os.lstat(node.source).st_ino for node in nodes] == before
    place = Path(nodes[1].source)
    place.unlink()
    place.symlink_to("/dev/zero")
    assert device_nodes(inventory()) == nodes
    assert os.lstat(place).st_rdev == os.makedev(195, 0)
    assert not [entry for entry in place.parent.iterdir() if entry.name.startswith(".")]


@requires("root")
@without_driver
def test_an_ordinary_user_gets_dev_null_with_a_note(tmp_path_factory):
    code = (
        "from dockless.sandbox.gpus.gpu import *\nfor n in device_nodes(inventory()): print(n.target, n.source, n.major, n.minor, n.note)"
    )
    probe = ["import dockless.sandbox.gpus.gpu, pynvml"]
    env = {**os.environ, "DOCKLESS_SIMULATED_GPUS": "1x80G", "DOCKLESS_HOME": "/nonexistent"}
    run = {"user": 65534, "group": 65534, "extra_groups": [], "env": env, "capture_output": True, "text": True, "timeout": 60, "cwd": "/"}
    try:
        readable = subprocess.run([sys.executable, "-P", "-c", *probe], **run).returncode == 0
    except OSError:
        readable = False
    if not readable:
        pytest.skip("this Python or the package lies where an ordinary user cannot read it")
    done = subprocess.run([sys.executable, "-P", "-c", code], **run)
    lines = done.stdout.splitlines()
    assert [line.split()[:4] for line in lines] == [
        [name, "/dev/null", "1", "3"] for name in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    ], done
    assert all("simulated" in line and "only root" in line for line in lines)


@requires("root")
@without_driver
def test_starts_at_once_agree_on_the_stand_ins(simulate):
    """What one is about to mount is not replaced by another: a mount of a file that is gone fails."""
    simulate("1x80G")
    gpus = inventory()
    for _ in range(50):
        shutil.rmtree(paths.runtime() / "simulated-dev", ignore_errors=True)
        together = threading.Barrier(4)

        def seen(together: threading.Barrier = together) -> tuple[int, ...]:
            together.wait()
            return tuple(os.lstat(node.source).st_ino for node in device_nodes(gpus))

        with ThreadPoolExecutor(4) as pool:
            assert len({future.result() for future in [pool.submit(seen) for _ in range(4)]}) == 1
    assert sorted(os.listdir(paths.runtime() / "simulated-dev")) == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidiactl"]


@requires("user")
@without_driver
def test_as_an_ordinary_user_the_source_is_dev_null(simulate):
    simulate("1x80G")
    for node in device_nodes(inventory()):
        assert (node.source, node.major, node.minor) == ("/dev/null", 1, 3) and "simulated" in node.note
    assert not (paths.runtime() / "simulated-dev").exists()


# ---- what real nodes must be ----------------------------------------------------------------------------------------------------------


@requires("root")
def test_nodes_for_graphics_are_found_by_the_address(tmp_path, monkeypatch):
    """Of a made-up host: which nodes are a GPU's, sysfs says; another GPU's, and those of a slice, are none of its."""
    numbers = {"nvidiactl": (195, 255), "nvidia0": (195, 0), "nvidia-uvm": (511, 0), "dri/card2": (226, 2), "dri/renderD129": (226, 129)}
    numbers |= {"dri/card0": (226, 0), "dri/renderD128": (226, 128)}
    (tmp_path / "dev/dri").mkdir(parents=True)
    for name, number in numbers.items():
        os.mknod(tmp_path / "dev" / name, stat.S_IFCHR | 0o660, os.makedev(*number))
    for address, names_there in (("0000:17:00.0", ("card2", "renderD129", "card2-DP-1")), ("0000:65:00.0", ("card0", "renderD128"))):
        for name in names_there:
            folder = tmp_path / "pci" / address / "drm" / name
            folder.mkdir(parents=True)
            if "DP" not in name:
                (folder / "dev").write_text("226:{}\n".format(numbers[f"dri/{name}"][1]))
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n")
    for name, place in (("_DEV", "dev"), ("_PCI", "pci"), ("_PROC_DEVICES", "devices")):
        monkeypatch.setattr(gpu_nodes, name, tmp_path / place)
    mine = Gpu(0, "GPU-1", 0, "a real one", 1, pci_bus_id="0000:17:00.0")
    assert names(device_nodes([mine])) == ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"]
    found = device_nodes([mine], graphics=True)
    assert [(node.target, node.major, node.minor) for node in found[3:]] == [("/dev/dri/card2", 226, 2), ("/dev/dri/renderD129", 226, 129)]
    path = "/dev/dri/by-path/pci-0000:17:00.0"
    assert gpu_nodes.links([mine], found) == ((f"{path}-card", "../card2"), (f"{path}-render", "../renderD129"))
    assert names(device_nodes([replace(mine, parent="GPU-0")], graphics=True)) == names(found[:3])
    (tmp_path / "dev/dri/card2").unlink()
    found = device_nodes([mine], graphics=True)
    assert names(found[3:]) == ["/dev/dri/renderD129"] and gpu_nodes.links([mine], found) == ((f"{path}-render", "../renderD129"),)
    assert names(device_nodes([replace(mine, pci_bus_id="0000:99:00.0")], graphics=True)) == names(found[:3])
    (tmp_path / "dev/dri/card2").symlink_to("card0")
    with pytest.raises(GpuError, match="card2 is a symbolic link") as error:
        device_nodes([mine], graphics=True)
    assert "udevadm" in error.value.hint


def test_a_link_is_refused_even_to_the_right_device(tmp_path):
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    with pytest.raises(GpuError, match="symbolic link") as error:
        gpu_nodes.verify("nvidia0", tmp_path / "nvidia0", 1, 3)
    assert error.value.hint


def test_another_device_is_refused():
    with pytest.raises(GpuError, match="character device 1:3, not the character device 195:0"):
        gpu_nodes.verify("nvidia0", Path("/dev/null"), 195, 0)


def test_a_file_is_refused(tmp_path):
    (tmp_path / "nvidia0").write_bytes(b"")
    with pytest.raises(GpuError, match="not a device"):
        gpu_nodes.verify("nvidia0", tmp_path / "nvidia0", 195, 0)


def test_a_missing_node_is_an_error_or_nothing(tmp_path):
    with pytest.raises(GpuError, match="missing") as error:
        gpu_nodes.verify("nvidia0", tmp_path / "nvidia0", 195, 0)
    assert "nvidia-modprobe" in error.value.hint
    assert gpu_nodes.verify("nvidia-modeset", tmp_path / "nvidia-modeset", 195, 254, required=False) is None


def test_the_right_device_is_taken():
    node = gpu_nodes.verify("nvidia0", Path("/dev/null"), 1, 3)
    assert (node.target, node.source, node.major, node.minor, node.note) == ("/dev/nvidia0", "/dev/null", 1, 3, "")


def test_proc_devices():
    text = (
        "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n236 nvidia-uvm\n237 nvidia-caps\n\nBlock devices:\n  7 loop\n236 other\n"
    )
    assert gpu_nodes.character_majors(text) == {"mem": 1, "nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 236, "nvidia-caps": 237}


@without_driver
def test_the_environment_says_simulated(simulate):
    simulate("2x80G")
    gpus = inventory()
    assert environment(gpus) == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "DOCKLESS_GPUS": f"{gpus[0].uuid},{gpus[1].uuid}",
        "DOCKLESS_GPUS_SIMULATED": "1",
    }
    assert "CUDA_VISIBLE_DEVICES" in UNSET_IN_SANDBOX


@requires("gpu")
def test_the_nodes_of_a_real_gpu_open():
    code = """
import os
from dockless.sandbox.gpus.gpu import device_nodes, inventory, other_nodes
gpus = inventory()
for node in device_nodes(gpus[:1]):
    assert os.lstat(node.source).st_rdev == os.makedev(node.major, node.minor) and not node.note
    os.close(os.open(node.source, os.O_RDWR | os.O_CLOEXEC))
print(len(other_nodes(gpus[:1], gpus)))
"""
    env = {key: value for key, value in os.environ.items() if key != "DOCKLESS_SIMULATED_GPUS"}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
