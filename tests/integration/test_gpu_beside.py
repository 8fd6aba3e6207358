"""Nodes of NVIDIA's that are no GPU's: who may ask for them, and what of the host's is given then."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support import boxes
from support.requires import requires

import dockless
from dockless.errors import BadInput, GpuError
from dockless.sandbox.gpus import beside

pytestmark = [
    requires("root", "userns", "overlay"),
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has a real NVIDIA driver"),
]
FS, GDR, IMEX = 251, 250, 249
EVERYTHING = {"NVIDIA_GDS": "enabled", "NVIDIA_GDRCOPY": "enabled", "NVIDIA_IMEX_CHANNELS": "0,channel3"}


@pytest.fixture
def host(tmp_path, monkeypatch) -> Path:
    """A /dev with these nodes, and a kernel that has their drivers."""
    dev, majors = tmp_path / "dev", tmp_path / "devices"
    (dev / "nvidia-caps-imex-channels").mkdir(parents=True)
    nodes = [
        ("nvidia-fs0", FS, 0),
        ("nvidia-fs1", FS, 1),
        ("gdrdrv", GDR, 0),
        ("nvidia-nvswitch0", 248, 0),
        ("nvidia-nvswitchctl", 248, 255),
    ]
    nodes += [(f"nvidia-caps-imex-channels/channel{number}", IMEX, number) for number in (0, 3)]
    for name, major, minor in nodes:
        os.mknod(dev / name, stat.S_IFCHR | 0o600, os.makedev(major, minor))
        (dev / name).chmod(0o666)
    majors.write_text(
        f"Character devices:\n{FS} nvidia-fs\n{GDR} gdrdrv\n{IMEX} nvidia-caps-imex-channels\n248 nvidia-nvswitch\n\nBlock devices:\n"
    )
    monkeypatch.setattr(beside, "_DEV", dev)
    monkeypatch.setattr(beside, "_PROC_DEVICES", majors)
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "1x80G")
    return dev


def allow(*names: str) -> None:
    home = Path(os.environ["DOCKLESS_HOME"])
    home.mkdir(exist_ok=True)
    (home / "dockless.toml").write_text(f"[gpus]\nbeside = {list(names)}\n")


def names(variables: dict[str, str]) -> list[str]:
    return [node.target.removeprefix("/dev/") for node in beside.device_nodes(variables)]


def test_nothing_unless_the_settings_allow_it(host):
    assert names(EVERYTHING) == []
    allow("gdrcopy")
    assert names(EVERYTHING) == ["gdrdrv"]
    allow("gds", "gdrcopy", "imex")
    channels = ["nvidia-caps-imex-channels/channel0", "nvidia-caps-imex-channels/channel3"]
    assert names(EVERYTHING) == ["nvidia-fs0", "nvidia-fs1", "gdrdrv", *channels]
    assert names({}) == names({"NVIDIA_GDS": "", "NVIDIA_GDRCOPY": "yes", "NVIDIA_IMEX_CHANNELS": " "}) == []


def test_a_node_that_is_not_there_is_not_given(host):
    allow("gds", "gdrcopy", "imex")
    (host / "gdrdrv").unlink()
    (host / "nvidia-fs0").unlink()
    assert names({"NVIDIA_GDS": "enabled", "NVIDIA_GDRCOPY": "enabled"}) == ["nvidia-fs1"]
    with pytest.raises(GpuError, match="no IMEX channel 4"):
        beside.device_nodes({"NVIDIA_IMEX_CHANNELS": "3,4"})


@pytest.mark.parametrize("said", ["all", "-1", "1048576", "0;1", "channel", ",".join(map(str, range(65)))])
def test_what_is_no_channel_is_an_error(said, host):
    allow("imex")
    with pytest.raises(BadInput, match="NVIDIA_IMEX_CHANNELS: "):
        beside.device_nodes({"NVIDIA_IMEX_CHANNELS": said})


@pytest.mark.parametrize("name", ["nvidia-fs0", "gdrdrv", "nvidia-caps-imex-channels/channel0"])
def test_another_device_by_such_a_name_is_an_error(name, host):
    allow("gds", "gdrcopy", "imex")
    (host / name).unlink()
    os.mknod(host / name, stat.S_IFCHR | 0o600, os.makedev(1, 1))
    with pytest.raises(GpuError, match="not the character device"):
        beside.device_nodes(EVERYTHING)
    (host / name).unlink()
    (host / name).symlink_to("/dev/null")
    with pytest.raises(GpuError, match="a symbolic link"):
        beside.device_nodes(EVERYTHING)


def test_a_sandbox_has_them_with_a_gpu_alone(host, tmp_path):
    image = boxes.load(tmp_path, [], env=EVERYTHING)
    look = ["sh", "-c", "cd /dev; ls -d nvidia-* gdrdrv nvidia-caps-imex-channels/* 2> /dev/null || true"]
    plain = dockless.run(image, look, gpus=1, capture_output=True, text=True, check=True).stdout
    assert "fs" not in plain and "gdrdrv" not in plain and "channel" not in plain
    allow("gds", "gdrcopy", "imex")
    found = dockless.run(image, look, gpus=1, capture_output=True, text=True, check=True).stdout.split()
    assert {"nvidia-fs0", "nvidia-fs1", "gdrdrv", "nvidia-caps-imex-channels/channel3"} <= set(found)
    assert not any("nvswitch" in name for name in found)
    assert dockless.run(image, look, capture_output=True, text=True, check=True).stdout == ""
