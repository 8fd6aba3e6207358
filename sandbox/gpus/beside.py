"""Device nodes of NVIDIA's drivers that belong to no GPU. An image can ask for them beside its leased GPUs, where a setting allows it::

    NVIDIA_GDS=enabled            gds        /dev/nvidia-fs<N>; /etc/cufile.json and /run/udev, read-only
    NVIDIA_GDRCOPY=enabled        gdrcopy    /dev/gdrdrv
    NVIDIA_IMEX_CHANNELS=0,3      imex       /dev/nvidia-caps-imex-channels/channel<N>

These drivers do not look at leases, so the setting ``gpus.beside`` names those that sandboxes may have; by default none (decision 104).
What it does not name is ignored, and so is what the host does not have. The nodes of NVSwitches control the links of every GPU of the host,
and are never given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dockless.base import settings
from dockless.errors import BadInput, GpuError
from dockless.sandbox.gpus.nodes import DeviceNode, character_majors, verify

_DEV, _PROC_DEVICES = Path("/dev"), Path("/proc/devices")
_VARIABLES = {"gds": "NVIDIA_GDS", "gdrcopy": "NVIDIA_GDRCOPY", "imex": "NVIDIA_IMEX_CHANNELS"}
_CHANNEL = re.compile(r"[0-9]{1,7}\Z")
_CHANNEL_MAX, _MOST_CHANNELS = 1_048_575, 64
_FS = re.compile(r"nvidia-fs([0-9]{1,3})\Z")


def asked(variables: Mapping[str, str]) -> frozenset[str]:
    """Those of ``gds``, ``gdrcopy`` and ``imex`` that the variables ask for and the settings allow. ``BadInput`` for wrong settings."""
    wanted = {name for name, variable in _VARIABLES.items() if variables.get(variable, "").strip()}
    wanted -= {name for name in wanted - {"imex"} if variables[_VARIABLES[name]].strip() != "enabled"}
    return frozenset(wanted.intersection(settings.load()["gpus.beside"])) if wanted else frozenset()


def device_nodes(variables: Mapping[str, str]) -> tuple[DeviceNode, ...]:
    """The nodes of what is ``asked`` for, as far as this host has them. ``GpuError`` for a channel that is not there, and for a node whose
    numbers are those of another device; ``BadInput`` for what is no channel."""
    wanted = asked(variables)
    return tuple(_nodes(wanted, variables)) if wanted else ()


def _nodes(wanted: frozenset[str], variables: Mapping[str, str]) -> Iterator[DeviceNode]:
    majors = character_majors(_PROC_DEVICES.read_text())
    found: list[DeviceNode | None] = []
    if "gds" in wanted and "nvidia-fs" in majors:
        named = sorted((int(match[1]), path) for path in _DEV.glob("nvidia-fs*") if (match := _FS.match(path.name)))
        found += [verify(path.name, path, majors["nvidia-fs"], minor, required=False) for minor, path in named]
    if "gdrcopy" in wanted and "gdrdrv" in majors:
        found.append(verify("gdrdrv", _DEV / "gdrdrv", majors["gdrdrv"], 0, required=False))
    if "imex" in wanted:
        for channel in _channels(variables[_VARIABLES["imex"]]):
            found.append(_channel(channel, majors.get("nvidia-caps-imex-channels")))
    yield from (node for node in found if node is not None)


def _channels(text: str) -> list[int]:
    names = list(dict.fromkeys(name.strip().removeprefix("channel") for name in text.split(",") if name.strip()))
    wrong = [name for name in names if not _CHANNEL.match(name) or int(name) > _CHANNEL_MAX]
    if wrong or len(names) > _MOST_CHANNELS:
        what = f"{wrong[0][:40]!r} is no channel" if wrong else f"{len(names)} channels are more than {_MOST_CHANNELS}"
        hint = f"write numbers from 0 to {_CHANNEL_MAX} with commas between them; -e NVIDIA_IMEX_CHANNELS= asks for none"
        raise BadInput(f"NVIDIA_IMEX_CHANNELS: {what}", subject="NVIDIA_IMEX_CHANNELS", hint=hint)
    return [int(name) for name in names]


def _channel(number: int, major: int | None) -> DeviceNode | None:
    name = f"nvidia-caps-imex-channels/channel{number}"
    node = None if major is None else verify(name, _DEV / name, major, number, required=False)
    if node is None:
        hint = "-e NVIDIA_IMEX_CHANNELS= asks for none; `nvidia-modprobe -i 0` makes channel 0 where the driver has channels"
        raise GpuError(f"this host has no IMEX channel {number}", subject=f"/dev/{name}", hint=hint)
    return node
