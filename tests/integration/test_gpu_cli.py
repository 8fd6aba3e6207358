"""``dockless gpu``: what there is, and the description of it for other programs."""

from __future__ import annotations

import json
import os
import platform
import pwd
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support import driver_trees

from dockless.cli import main
from dockless.errors import GpuError
from dockless.sandbox.gpus import cdi, cdi_files, cdi_writing, gpu, lease, nodes
from dockless.sandbox.gpus.nodes import DeviceNode


def as_on_a_real_host(gpus, *, graphics):
    """The nodes that these GPUs would have."""
    assert graphics
    wanted = (*nodes._wanted(gpus, 511, 236), *nodes._of_graphics(gpus))
    return tuple(DeviceNode(f"/dev/{w.name}", f"/dev/{w.name}", w.major, w.minor) for w in wanted)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the trees are those of x86-64")
@pytest.mark.parametrize(
    ("name", "version", "layout", "simulated", "hook"),
    [
        ("580-rpm", "580.119.02", "rpm-580", "2x80G", "an old one"),
        ("550-debian", "550.163.01", "debian-550", "1x80G", ""),
        ("615-mig", "615.71.09", "rpm-615", "2x40G,mig=2", "\0enable-cuda-compat\0disable-device-node-modification\0"),
    ],
)
def test_the_description_of_a_whole_driver(name, version, layout, simulated, hook, tmp_path, monkeypatch, golden):
    root = driver_trees.make(tmp_path / "root", version, layout)
    if hook:
        (root / "usr/bin").mkdir(exist_ok=True)
        (root / "usr/bin/nvidia-cdi-hook").write_text(hook)
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", simulated)
    monkeypatch.setattr(cdi_writing, "device_nodes", as_on_a_real_host)
    (Path(os.environ["DOCKLESS_HOME"])).mkdir(exist_ok=True)
    (Path(os.environ["DOCKLESS_HOME"]) / "dockless.toml").write_text(f'[gpus]\ndriver_root = "{root}"\n')
    with gpu.session():
        found = cdi_writing.description(gpu.inventory(processes=False, links=False))
    assert all(one["path"] == f"{root}/usr/bin/nvidia-cdi-hook" for one in found["containerEdits"].get("hooks", ()))
    text = yaml.safe_dump(found, sort_keys=False, width=1000, default_flow_style=None).replace(str(root), "")
    golden(f"cdi-{name}.yaml", text)
    read = cdi_files.parse("/etc/cdi/nvidia.yaml", yaml.safe_dump(found))
    assert read.kind == "nvidia.com/gpu" and len(read.devices) == len(found["devices"])
    everywhere = [node.target for node in read.devices["all"].nodes]
    for device, edits in read.devices.items():
        assert device == "all" or set(everywhere) >= {node.target for node in edits.nodes}


def test_groups_that_may_use_the_nodes(tmp_path, monkeypatch):
    """A program that is not root has the GPU by them, and they need a newer version of the specification than the rest."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files to other groups")
    modes = {
        "nvidiactl": (0o666, 44),
        "nvidia1": (0o660, 44),
        "nvidia0": (0o640, 105),
        "nvidia-uvm": (0o660, 0),
        "nvidia-uvm-tools": (0o600, 7),
    }
    for name, (mode, gid) in modes.items():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
        os.chown(tmp_path / name, -1, gid)
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x80G")
    monkeypatch.setattr(
        cdi_writing,
        "device_nodes",
        lambda gpus, graphics: tuple(
            replace(node, source=str(tmp_path / node.target[5:])) for node in as_on_a_real_host(gpus, graphics=graphics)
        ),
    )
    with gpu.session():
        found = cdi_writing.description(gpu.inventory(processes=False, links=False))
    assert found["cdiVersion"] == "0.7.0" and "additionalGids" not in found["containerEdits"]
    assert {device["name"]: device["containerEdits"]["additionalGids"] for device in found["devices"][::2]} == {
        "0": [44],
        "1": [105],
        "all": [44, 105],
    }
    read = cdi_files.parse("/etc/cdi/nvidia.yaml", yaml.safe_dump(found))
    assert read.devices["all"].gids == (44, 105)


@pytest.fixture
def simulated(monkeypatch):
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", "2x40G,mig=2")


def test_list(simulated, capsys):
    assert main(["gpu", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["index"], bool(one["slice_of"]), one["user"]) for one in found["gpus"]] == [(0, False, ""), (1, True, ""), (1, True, "")]
    with lease.lease(gpu.parse_request("device=0")):
        assert main(["gpu", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert pwd.getpwuid(os.geteuid()).pw_name in lines[1] and "free" in lines[2]


def test_list_without_a_driver(capsys):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has a driver")
    assert main(["gpu", "list"]) == 0
    assert capsys.readouterr().out.startswith("There are no GPUs: no NVIDIA driver on this host")


@pytest.mark.parametrize(
    ("words", "file", "read"),
    [
        ([], "", yaml.safe_load),
        (["--format", "json"], "", json.loads),
        (["--json"], "", json.loads),
        ([], "a.yaml", yaml.safe_load),
        ([], "a.json", json.loads),
    ],
)
def test_where_it_goes_and_how(words, file, read, simulated, capsys, tmp_path):
    if file:
        words = [*words, "-o", str(tmp_path / file)]
    assert main(["gpu", "cdi", *words]) == 0
    text = (tmp_path / file).read_text() if file else capsys.readouterr().out
    assert [device["name"] for device in read(text)["devices"]][::2] == ["0", "1:0", "1:1", "all"]
    if file:
        assert (tmp_path / file).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["list", "-o", "x"], "gpu list takes no --output"),
        (["cdi", "-o", "a.txt"], "is not the name of a yaml file"),
        (["cdi", "-o", "a.json", "--format", "yaml"], "is not the name of a yaml file"),
    ],
)
def test_what_does_not_go_together(words, why, simulated, capsys):
    assert main(["gpu", *words]) == 125
    assert why in capsys.readouterr().err


def test_windows_subsystem_for_linux_is_refused(tmp_path, monkeypatch):
    (tmp_path / "dxg").touch()
    monkeypatch.setattr(nodes, "_DEV", tmp_path)
    with pytest.raises(GpuError, match="this is Windows Subsystem for Linux"):
        nodes.device_nodes([gpu.Gpu(0, "GPU-1", 0, "a real one", 1)])


def test_other_runtimes_get_what_dockless_reads(simulated, tmp_path, monkeypatch):
    """A description of ours is sound to our own reader, by the same names as --device takes."""
    monkeypatch.setattr(cdi, "DIRECTORIES", (str(tmp_path),))
    assert main(["gpu", "cdi", "-o", str(tmp_path / "nvidia.yaml")]) == 0
    assert [name for _, names in cdi.find(["nvidia.com/gpu=0", "nvidia.com/gpu=1:1"]) for name in names] == ["0", "1:1"]
