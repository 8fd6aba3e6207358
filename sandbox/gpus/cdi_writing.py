"""A description of this host's NVIDIA GPUs for other programs that make containers: a file of the Container Device Interface.

::

    description(inventory) ──► {"cdiVersion": …, "kind": "nvidia.com/gpu", "devices": [0, 0:1, GPU-…, MIG-…, all], "containerEdits": …}

Nodes and files are those that dockless itself shows (``nodes``, ``driver_files``), of all capabilities but ``compat32``. Each library is
mounted by each of its names, so no hook has to make links; where the host has NVIDIA's nvidia-cdi-hook, that is named for the linker's
cache. Dockless reads no such file for ``nvidia.com/gpu``: it collects anew at each start.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence

from dockless.base.typing import Any
from dockless.errors import GpuError
from dockless.sandbox.gpus import driver_files, injection
from dockless.sandbox.gpus.driver_files import DriverFile
from dockless.sandbox.gpus.nodes import DeviceNode, device_nodes
from dockless.sandbox.gpus.nvml import Gpu
from dockless.sandbox.gpus.request import units

KIND = "nvidia.com/gpu"
_VERSION = "0.5.0"
"""The first that has all that is written: hostPath, and names that begin with a digit."""
_FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
_HOOK = "usr/bin/nvidia-cdi-hook"


def description(inventory: Sequence[Gpu]) -> dict[str, Any]:
    """Of these GPUs and their MIG slices. ``GpuError`` for a host without any, and as ``device_nodes`` and ``driver_files.find``."""
    found = units(inventory)
    if not found:
        divided = " but such that MIG divides and that have no slices" if inventory else ""
        raise GpuError(f"this host has no GPUs{divided}", subject=KIND, hint="`dockless gpu list` shows what there is")
    nodes = {unit.uuid: device_nodes([unit]) for unit in found}
    common = [node for node in nodes[found[0].uuid] if all(node in others for others in nodes.values()) and _is_shared(node)]
    devices = []
    for unit in found:
        own = [node for node in nodes[unit.uuid] if node not in common]
        devices += [{"name": name, "containerEdits": _edits(own)} for name in (_name(unit, inventory), unit.uuid)]
    every = dict.fromkeys(node for own in nodes.values() for node in own if node not in common)
    devices.append({"name": "all", "containerEdits": _edits(every)})
    edits: dict[str, Any] = {"env": ["NVIDIA_VISIBLE_DEVICES=void"], **_edits(common)}
    root, version = injection.installed(simulated=any(unit.simulated for unit in found))
    if version:
        mounts = list(_mounts(root, version))
        edits["mounts"] = mounts
        if os.path.isfile(os.path.join(root, _HOOK)):
            edits["hooks"] = [_cache_hook(mounts)]
    return {"cdiVersion": _VERSION, "kind": KIND, "devices": devices, "containerEdits": edits}


def _name(unit: Gpu, inventory: Sequence[Gpu]) -> str:
    """As people write it: the GPU's index, and the slice's behind it."""
    if not unit.parent:
        return str(unit.index)
    whole = next(gpu for gpu in inventory if gpu.uuid == unit.parent)
    return f"{unit.index}:{[part.uuid for part in whole.mig].index(unit.uuid)}"


def _is_shared(node: DeviceNode) -> bool:
    """Whether it is no GPU's own: with one GPU all nodes are those of all GPUs."""
    name = node.target.rpartition("/")[2]
    return not name.removeprefix("nvidia").isdecimal() and "nvidia-cap" not in name


def _edits(nodes: Any) -> dict[str, Any]:
    return {"deviceNodes": [{"path": node.target} | ({"hostPath": node.source} if node.source != node.target else {}) for node in nodes]}


def _mounts(root: str, version: str) -> Iterator[dict[str, Any]]:
    found = driver_files.find(root, version)
    for file in (*found, *driver_files.sockets(root)):
        if file.place == "lib32":
            continue
        socket = file.capabilities == ("utility",) and file.name.endswith("/socket")
        for target in _targets(root, file):
            yield {"hostPath": file.source, "containerPath": target, "options": list(_SOCKET if socket else _FILE)}


def _targets(root: str, file: DriverFile) -> Iterator[str]:
    if not file.place:
        yield f"/{file.name}"
    elif file.place == "bin":
        yield f"/usr/bin/{file.name}"
    else:
        multiarch = f"usr/lib/{driver_files.MULTIARCH.get(platform.machine(), platform.machine())}"
        lies = os.path.relpath(file.source, os.path.realpath(root))
        if file.place == "xorg":
            folder = "usr/lib64/xorg/modules" if lies.startswith("usr/lib64/") else "usr/lib/xorg/modules"
        else:
            folder = multiarch if lies.startswith(multiarch) else "usr/lib64"
        folder, name = os.path.split(f"/{folder}/{file.name}")
        for one in (name, *file.links):
            yield f"{folder}/{one}"
        if name.startswith("libnvidia-allocator.so."):
            yield f"{folder}/gbm/nvidia-drm_gbm.so"


def _cache_hook(mounts: list[dict[str, Any]]) -> dict[str, Any]:
    folders = dict.fromkeys(os.path.dirname(mount["containerPath"]) for mount in mounts if ".so" in mount["containerPath"])
    args = ["nvidia-cdi-hook", "update-ldcache"]
    for folder in folders:
        args += ["--folder", folder]
    return {"hookName": "createContainer", "path": f"/{_HOOK}", "args": args}
