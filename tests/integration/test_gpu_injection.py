"""All that a sandbox is shown for its GPUs, of whole drivers in images of two layouts: mounts, nodes, links, variables, the linker's cache.

The trees have the names of the real packages (``support.driver_trees``).
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from support import boxes, driver_trees
from support.make_image import directory, file

from dockless.images import Store
from dockless.sandbox.gpus import driver_files, gpu, injection, linker_cache
from dockless.sandbox.gpus.environment import environment
from dockless.sandbox.gpus.nodes import DeviceNode, _wanted

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the trees are those of x86-64"),
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has a real NVIDIA driver"),
]

LAYOUTS = {
    "debian": [file("etc/debian_version", "12.0\n"), directory("usr/lib/x86_64-linux-gnu")],
    "rpm": [directory("usr/lib64"), directory("usr/lib")],
}


@pytest.mark.parametrize(
    ("version", "tree", "simulated", "layout", "said", "wanted"),
    [
        ("535.261.03", "debian-535", "2x80G", "debian", "all", "device=0"),
        ("535.261.03", "debian-535", "2x80G", "rpm", "", "device=0"),
        ("550.163.01", "debian-550", "2x80G", "rpm", "all", "all"),
        ("580.119.02", "rpm-580", "2x80G", "debian", "all", "device=1"),
        ("580.119.02", "rpm-580", "2x80G", "rpm", "video", "device=1"),
        ("615.71.09", "rpm-615", "2x80G", "rpm", "all", "all"),
        ("615.71.09", "rpm-615", "2x40G,mig=2", "debian", "graphics,utility", "device=1:1"),
        ("615.71.09", "rpm-615", "2x40G,mig=2", "rpm", "", "device=0"),
    ],
)
def test_all_that_is_shown(version, tree, simulated, layout, said, wanted, tmp_path, monkeypatch, golden):
    root = driver_trees.make(tmp_path / "root", version, tree)
    icd = root / "usr/share/vulkan/icd.d/nvidia_icd.x86_64.json"
    if icd.exists():
        icd.write_text('{"ICD": {"library_path": "/usr/lib64/libGLX_nvidia.so.0"}}')
    _make_proc(root)
    monkeypatch.setenv("DOCKLESS_SIMULATED_GPUS", simulated)
    monkeypatch.setattr(driver_files, "_FIRMWARE_PATH", tmp_path / "none")
    home = Path(os.environ["DOCKLESS_HOME"])
    home.mkdir(exist_ok=True)
    (home / "dockless.toml").write_text(f'[gpus]\ndriver_root = "{root}"\n')
    image = Store().get(boxes.load(tmp_path, LAYOUTS[layout]))
    with gpu.session():
        gpus = gpu.choose(gpu.parse_request(wanted), gpu.inventory())
        found = injection.inject(image, {"NVIDIA_DRIVER_CAPABILITIES": said} if said else {}, gpus)
    text = "".join(f"{line}\n" for line in _lines(gpus, found)).replace(str(root), "DRIVER")
    parts = "-mig" if "mig" in simulated else ""
    golden(f"injection/{tree}{parts}-in-{layout}-{said.replace(',', '-') or 'default'}.txt", text)


def _make_proc(root: Path) -> None:
    """/proc/driver/nvidia as the simulated GPUs have it."""
    proc = root / "proc/driver/nvidia"
    for number in (0, 1):
        (proc / f"gpus/d0c1:1{number}:00.0").mkdir(parents=True)
        for instance in (1, 2):
            instances = proc / f"capabilities/gpu{number}/mig/gi{instance}/ci0"
            instances.mkdir(parents=True)
            (instances / "access").touch()
            (instances.parent / "access").touch()
    (proc / "params").write_text("ModifyDeviceFiles: 1\nDeviceFileMode: 438\n")


def _lines(gpus, found: injection.Injection):
    layer = found.layer.path
    for wanted in _wanted(gpus, 511, 236):
        node = DeviceNode(f"/dev/{wanted.name}", f"/dev/{wanted.name}", wanted.major, wanted.minor)
        yield f"node {node.target} {node.major}:{node.minor}"
    yield from (f"variable {name}={value}" for name, value in environment(gpus).items())
    bound = {mount.target for mount in found.files}
    for mount in sorted(found.files, key=lambda mount: mount.target):
        yield f"mount {mount.target} {'' if mount.readonly else 'rw '}of {mount.source}"
    paths = sorted(path for path in layer.rglob("*") if path.is_symlink() or path.is_file())
    for path in (path for path in paths if path.is_symlink()):
        yield f"link /{path.relative_to(layer)} -> {os.readlink(path)}"
    for path in (path for path in paths if not path.is_symlink() and f"/{path.relative_to(layer)}" not in bound):
        name = f"/{path.relative_to(layer)}"
        if name == "/etc/ld.so.cache":
            entries = linker_cache.parse(path.read_bytes()).entries
            yield from (f"linker {entry.name.decode()} => {entry.path.decode()} {entry.flags:#x}" for entry in entries)
        else:
            yield f"file {name} {path.read_text()}"
    yield from (f"proc {name} {text!r}" for name, text in found.proc)
    yield from (f"proc {mount.target} of {mount.source}" for mount in found.proc_files)
    yield from (f"warning {line}" for line in found.warnings)
