"""A description of this host's NVIDIA GPUs for other programs that make containers: a file of the Container Device Interface.

::

    description(inventory) ──► {"cdiVersion": …, "kind": "nvidia.com/gpu", "devices": [0, 0:1, GPU-…, MIG-…, all], "containerEdits": …}

The nodes and files are the same that dockless gives its own sandboxes (``nodes``, ``driver_files``), of all capabilities but ``compat32``.
Each library is mounted under each of its names, so no hook has to make links. Some things cannot be done by mounts: a newer CUDA of the
image, the linker's cache, the links of /dev/dri/by-path, the driver's parameters. Where the host has NVIDIA's nvidia-cdi-hook, the file
names it as the hook for those that it can do. Dockless reads no such file for ``nvidia.com/gpu``: it looks at the host anew.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import stat
from collections.abc import Iterable, Iterator, Sequence

from dockless.base.typing import Any
from dockless.errors import GpuError
from dockless.sandbox.gpus import driver_files, injection
from dockless.sandbox.gpus.driver_files import DriverFile
from dockless.sandbox.gpus.nodes import DeviceNode, device_nodes, links
from dockless.sandbox.gpus.nvml import Gpu
from dockless.sandbox.gpus.request import units

KIND = "nvidia.com/gpu"
_VERSION, _VERSION_OF_GIDS = "0.5.0", "0.7.0"
"""The first that has all that is written: hostPath, and names that begin with a digit; the first that has additionalGids, too. A program
that knows only older ones than a file names does not read it."""
_FILE = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "noexec", "rbind", "rprivate")
_HOOK = "usr/bin/nvidia-cdi-hook"


def description(inventory: Sequence[Gpu]) -> dict[str, Any]:
    """Of these GPUs and their MIG slices. ``GpuError`` for a host without any, and as ``device_nodes`` and ``driver_files.find``."""
    found = units(inventory)
    if not found:
        divided = " but such that MIG divides and that have no slices" if inventory else ""
        raise GpuError(f"this host has no GPUs{divided}", subject=KIND, hint="`dockless gpu list` shows what there is")
    nodes = {unit.uuid: device_nodes([unit], graphics=True) for unit in found}
    common = [node for node in nodes[found[0].uuid] if all(node in others for others in nodes.values()) and _is_shared(node)]
    root, version = injection.installed(simulated=any(unit.simulated for unit in found))
    hook = os.path.join(root, _HOOK)
    has_hook = bool(version) and os.path.isfile(hook)

    def own(units: Sequence[Gpu]) -> dict[str, Any]:
        edits = _edits(dict.fromkeys(node for unit in units for node in nodes[unit.uuid] if node not in common))
        made = [link for unit in units for link in links([unit], nodes[unit.uuid])]
        return edits | ({"hooks": [_links_hook(hook, made)]} if has_hook and made else {})

    devices = []
    for unit in found:
        devices += [{"name": name, "containerEdits": own([unit])} for name in (_name(unit, inventory), unit.uuid)]
    devices.append({"name": "all", "containerEdits": own(found)})
    edits: dict[str, Any] = {"env": ["NVIDIA_VISIBLE_DEVICES=void"], **_edits(common)}
    if version:
        mounts = list(_mounts(root, version))
        edits["mounts"] = mounts
        if hooks := list(_hooks(hook, mounts, version)):
            edits["hooks"] = hooks
    every_edits = [edits, *(device["containerEdits"] for device in devices)]
    cdi_version = _VERSION_OF_GIDS if any("additionalGids" in one for one in every_edits) else _VERSION
    return {"cdiVersion": cdi_version, "kind": KIND, "devices": devices, "containerEdits": edits}


def _name(unit: Gpu, inventory: Sequence[Gpu]) -> str:
    """As people write it: the GPU's index, and the slice's behind it."""
    if not unit.parent:
        return str(unit.index)
    whole = next(gpu for gpu in inventory if gpu.uuid == unit.parent)
    return f"{unit.index}:{[part.uuid for part in whole.mig].index(unit.uuid)}"


def _is_shared(node: DeviceNode) -> bool:
    """Whether it is no GPU's own: with one GPU all nodes are those of all GPUs."""
    name = node.target.rpartition("/")[2]
    return not name.removeprefix("nvidia").isdecimal() and "nvidia-cap" not in name and not node.target.startswith("/dev/dri/")


def _edits(nodes: Iterable[DeviceNode]) -> dict[str, Any]:
    nodes = list(nodes)
    found = {"deviceNodes": [{"path": node.target} | ({"hostPath": node.source} if node.source != node.target else {}) for node in nodes]}
    gids = sorted({gid for node in nodes if (gid := _group(node.source))})
    return found | ({"additionalGids": gids} if gids else {})


def _group(path: str) -> int:
    """The id of the group that may use a node which is not open to everybody; 0 for none."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if found.st_mode & (stat.S_IROTH | stat.S_IWOTH) != stat.S_IROTH | stat.S_IWOTH and found.st_mode & stat.S_IRGRP:
            return found.st_gid
    return 0


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


def _hooks(path: str, mounts: list[dict[str, Any]], version: str) -> Iterator[dict[str, Any]]:
    """The hooks, in the order in which they have to run. A hook that this program does not have is left out: it would fail each start."""
    folders = dict.fromkeys(os.path.dirname(mount["containerPath"]) for mount in mounts if ".so" in mount["containerPath"])
    folders = {folder: None for folder in folders if not folder.endswith("/gbm") and "/xorg/" not in folder}  # where no linker looks
    wanted = {
        "enable-cuda-compat": [f"--host-driver-version={version}"],
        "update-ldcache": [word for folder in folders for word in ("--folder", folder)],
        "disable-device-node-modification": [],
    }
    for name, args in wanted.items():
        if _knows(path, name) or (name == "update-ldcache" and os.path.isfile(path)):
            yield _hook(path, name, args)


def _links_hook(path: str, made: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return _hook(path, "create-symlinks", [word for link, target in made for word in ("--link", f"{target}::{link}")])


def _hook(path: str, name: str, args: Sequence[str]) -> dict[str, Any]:
    return {"hookName": "createContainer", "path": path, "args": [os.path.basename(path), name, *args]}


def _knows(path: str, name: str) -> bool:
    """Whether the program has a hook of that name: whether the name is in its file. The program is not run."""
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError, ValueError):  # ValueError: it is empty
        stream = opened.enter_context(open(path, "rb"))
        return opened.enter_context(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)).find(name.encode()) >= 0
    return False
