"""The device nodes that open a GPU, and no other: what a sandbox with a lease is shown.

::

    /dev/nvidiactl                   195:255            any GPU
    /dev/nvidia<minor>               195:<minor>        each GPU; of a MIG slice the GPU it is part of
    /dev/nvidia-uvm, -uvm-tools      <nvidia-uvm>:0, 1  CUDA's memory; the major is in /proc/devices
    /dev/nvidia-modeset              195:254            where present
    /dev/nvidia-caps/nvidia-cap<N>   <nvidia-caps>:N    a MIG slice: its GPU instance and its compute instance
    /dev/dri/card<N>, renderD<N>     226:N              graphics, where present: each whole GPU's, by its address in /sys/bus/pci/devices

A source is used only if it is a character device with exactly the number expected, not a link to one (attack A51): the device filter
is made from the same numbers, so what is shown and what opens cannot differ. NVIDIA's driver ignores file permissions on its nodes
(CVE-2021-1056): nothing but that filter keeps the other GPUs shut.

Simulated GPUs get stand-in nodes with the real numbers and no driver behind them: one that was granted answers ENXIO when opened, one
that was not answers EPERM. Where they cannot be made (no CAP_MKNOD, only nodev file systems) or must not be (a real NVIDIA driver
owns the numbers) the source is /dev/null, and ``DeviceNode.note`` says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from dockless.base import paths
from dockless.base.dataclass import dataclass
from dockless.errors import GpuError
from dockless.sandbox.gpus.nvml import Gpu

NVIDIA_MAJOR = 195  # fixed, Documentation/admin-guide/devices.txt
CTL_MINOR, MODESET_MINOR = 255, 254
_DRM_MAJOR, _FIRST_RENDER = 226, 128

_OPTIONAL = ("/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")

_DEV = Path("/dev")
_PCI = Path("/sys/bus/pci/devices")
_DRM = re.compile(r"(?:card|renderD)[0-9]+\Z")
_PROC_DEVICES = Path("/proc/devices")
_EXPERIMENTAL = range(254, 239, -1)  # majors 240-254 are for local use, devices.txt
_NULL = (1, 3)
_MODE = 0o666
"""Of stand-ins: as the driver's are where no parameter of its says otherwise."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """``target``: path inside the sandbox; ``source``: path on the host; ``major``, ``minor``: what the source is and the filter allows.
    ``note``: why the source is not what the name says ("" for a real node)."""

    target: str
    source: str
    major: int
    minor: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str  # below /dev
    major: int
    minor: int
    required: bool = True


def is_optional(target: str) -> bool:
    """Whether programs can do without the node."""
    return target in _OPTIONAL or target.startswith("/dev/dri/")


def device_nodes(gpus: Sequence[Gpu], *, graphics: bool = False) -> tuple[DeviceNode, ...]:
    """The nodes that exactly these leased units need; () for none. ``graphics``: those of the Direct Rendering Manager with them.

    Errors: ``GpuError`` for a node that is missing, a link, or another device than its name says.
    """
    if not gpus:
        return ()
    if any(gpu.simulated for gpu in gpus):
        return _simulated_nodes(gpus, graphics)
    if (_DEV / "dxg").exists() and not (_DEV / "nvidiactl").exists():
        raise GpuError(
            "this is Windows Subsystem for Linux: its GPUs are behind /dev/dxg, shared by all and not leased one by one",
            subject="/dev/dxg",
            hint="run dockless on Linux itself; without GPUs it works here, too",
        )
    majors = character_majors(_PROC_DEVICES.read_text())
    nodes = []
    for wanted in (*_wanted(gpus, majors.get("nvidia-uvm"), majors.get("nvidia-caps")), *(_of_graphics(gpus) if graphics else ())):
        node = verify(wanted.name, _DEV / wanted.name, wanted.major, wanted.minor, required=wanted.required)
        if node is not None:
            nodes.append(node)
    return tuple(nodes)


def links(gpus: Iterable[Gpu], nodes: Collection[DeviceNode]) -> tuple[tuple[str, str], ...]:
    """The links to ``nodes`` of graphics, as udev makes them: ``/dev/dri/by-path/pci-0000:17:00.0-card``, ``../card0``."""
    there = {node.target for node in nodes}
    return tuple(
        (f"/dev/dri/by-path/pci-{gpu.pci_bus_id}-{'render' if 'renderD' in wanted.name else 'card'}", f"../{wanted.name[4:]}")
        for gpu in gpus
        for wanted in _of_graphics([gpu])
        if f"/dev/{wanted.name}" in there
    )


def other_nodes(gpus: Sequence[Gpu], inventory: Iterable[Gpu]) -> tuple[DeviceNode, ...]:
    """The host's NVIDIA nodes that a lease of ``gpus`` does **not** grant: for ``--explain`` and for tests that try to open them.

    The device filter does not need it; it refuses whatever is not granted.
    """
    granted = {(node.major, node.minor, node.target) for node in device_nodes(gpus)}
    inventory = tuple(inventory)
    if any(gpu.simulated for gpu in inventory):
        present: Iterable[DeviceNode] = device_nodes([*inventory])
    else:
        names = sorted(p for pattern in ("nvidia*", "nvidia-caps*/*", "nvidia-nvswitch*") for p in _DEV.glob(pattern))
        present = [_as_found(path) for path in dict.fromkeys(names) if stat.S_ISCHR(os.lstat(path).st_mode)]
    return tuple(node for node in present if (node.major, node.minor, node.target) not in granted)


def character_majors(text: str) -> dict[str, int]:
    """Name to major of the character devices in ``/proc/devices``."""
    majors: dict[str, int] = {}
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit():
            majors.setdefault(name, int(number))
    return majors


def verify(name: str, source: Path, major: int, minor: int, *, required: bool = True) -> DeviceNode | None:
    """The node for /dev/``name``, if ``source`` itself (no link followed) is character device ``major``:``minor``.

    None if it is absent and not ``required``. Errors: ``GpuError``.
    """
    try:
        found = os.lstat(source)
    except FileNotFoundError:
        if not required:
            return None
        raise GpuError(
            f"device node {source} is missing",
            subject=str(source),
            hint="'nvidia-modprobe -u -c 0' (or running nvidia-smi once as root) loads the modules and makes the nodes",
        ) from None
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != os.makedev(major, minor):
        what = (
            "a symbolic link"
            if stat.S_ISLNK(found.st_mode)
            else "not a device"
            if not stat.S_ISCHR(found.st_mode)
            else _number(found.st_rdev)
        )
        raise GpuError(
            f"{source} is {what}, not the character device {major}:{minor}",
            subject=str(source),
            hint="somebody replaced it: remove it, then 'nvidia-modprobe -u -c 0' makes it anew"
            if major != _DRM_MAJOR
            else "somebody replaced it: remove it, then `udevadm trigger --subsystem-match=drm` makes it anew",
        )
    return DeviceNode(f"/dev/{name}", str(source), major, minor)


def _wanted(gpus: Iterable[Gpu], uvm: int | None, caps: int | None) -> list[_Wanted]:
    gpus = tuple(gpus)
    nodes = [_Wanted("nvidiactl", NVIDIA_MAJOR, CTL_MINOR)]
    nodes += [_Wanted(f"nvidia{minor}", NVIDIA_MAJOR, minor) for minor in sorted({gpu.minor for gpu in gpus})]
    if uvm is None:
        raise GpuError(
            "the kernel module nvidia-uvm is not loaded: CUDA cannot start",
            subject="/dev/nvidia-uvm",
            hint="'modprobe nvidia-uvm' or 'nvidia-modprobe -u -c 0'",
        )
    nodes += [_Wanted("nvidia-uvm", uvm, 0), _Wanted("nvidia-uvm-tools", uvm, 1, required=False)]
    nodes.append(_Wanted("nvidia-modeset", NVIDIA_MAJOR, MODESET_MINOR, required=False))
    for part in (part for gpu in gpus for part in gpu.mig):
        if caps is None or part.gi_cap is None or part.ci_cap is None:
            raise GpuError(
                f"no /dev/nvidia-caps nodes for MIG slice {part.uuid}",
                subject=part.uuid,
                hint="'nvidia-modprobe -f /proc/driver/nvidia/capabilities/…' makes them; is nvidia-caps in /proc/devices?",
            )
        nodes += [_Wanted(f"nvidia-caps/nvidia-cap{number}", caps, number) for number in (part.gi_cap, part.ci_cap)]
    return list(dict.fromkeys(nodes))


def _of_graphics(gpus: Iterable[Gpu]) -> list[_Wanted]:
    """A MIG slice has none. That they are missing is no error: the module nvidia-drm need not be loaded."""
    found: dict[str, int] = {}
    for gpu in gpus:
        if gpu.simulated and not gpu.parent:
            found |= {f"card{gpu.minor}": gpu.minor, f"renderD{_FIRST_RENDER + gpu.minor}": _FIRST_RENDER + gpu.minor}
        elif gpu.pci_bus_id and not gpu.parent:
            found |= _drm_minors(_PCI / gpu.pci_bus_id / "drm")
    return [_Wanted(f"dri/{name}", _DRM_MAJOR, minor, required=False) for name, minor in found.items()]


def _drm_minors(folder: Path) -> dict[str, int]:
    found = {}
    with contextlib.suppress(OSError):
        for name in sorted(filter(_DRM.match, os.listdir(folder))):
            found[name] = int((folder / name / "dev").read_text().partition(":")[2])
    return found


def _as_found(path: Path) -> DeviceNode:
    device = os.lstat(path).st_rdev
    return DeviceNode(str(path), str(path), os.major(device), os.minor(device))


def _number(device: int) -> str:
    return f"character device {os.major(device)}:{os.minor(device)}"


# ---- simulated GPUs -------------------------------------------------------------------------------------------------------------------


def _simulated_nodes(gpus: Sequence[Gpu], graphics: bool) -> tuple[DeviceNode, ...]:
    taken = character_majors(_PROC_DEVICES.read_text())
    uvm, caps = _free_majors(taken)
    wanted = [w for w in _wanted(gpus, uvm, caps) if w.name != "nvidia-modeset"]
    wanted += _of_graphics(gpus) if graphics else []
    folder, why = _stand_in_folder(taken)
    nodes = []
    for w in wanted:
        if folder is None or w.major in taken.values():
            why_null = why or "because the numbers belong to a real driver of this host"
            nodes.append(DeviceNode(f"/dev/{w.name}", "/dev/null", *_NULL, note=f"simulated: stands in as /dev/null, {why_null}"))
            continue
        node = verify(w.name, _make(folder, w), w.major, w.minor)
        assert node is not None
        nodes.append(DeviceNode(node.target, node.source, node.major, node.minor, note="simulated: no driver behind it"))
    return tuple(nodes)


def _free_majors(taken: Mapping[str, int]) -> tuple[int, int]:
    """Two majors for nvidia-uvm and nvidia-caps that no driver of this kernel has: opening them must give ENXIO, never a real device."""
    free = [major for major in _EXPERIMENTAL if major not in taken.values()]
    if len(free) < 2:
        raise GpuError(
            "no character device major is free for simulated GPUs", subject="/proc/devices", hint="unload a driver, or use real GPUs"
        )
    return free[0], free[1]


def _stand_in_folder(taken: Mapping[str, int]) -> tuple[Path | None, str]:
    """A folder of ours where device nodes can be made and opened, or None and the reason."""
    if NVIDIA_MAJOR in taken.values():
        return None, "because the numbers belong to this host's real NVIDIA driver"
    if os.geteuid() != 0:
        return None, "because only root can make device nodes"
    why = "because no folder of dockless may hold device nodes"
    for folder in (paths.runtime() / "simulated-dev", paths.state() / "simulated-dev", _DEV / "dockless-simulated"):
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            if os.statvfs(folder).f_flag & os.ST_NODEV:  # a node there exists but never opens
                continue
            _make(folder, _Wanted("nvidiactl", NVIDIA_MAJOR, CTL_MINOR))
        except OSError as error:
            why = f"because a device node cannot be made ({error.strerror})"
            continue
        return folder, ""
    return None, why


def _make(folder: Path, wanted: _Wanted) -> Path:
    """The stand-in node, made unless it is there already; made under another name first, so that nobody sees half of it."""
    path = folder / wanted.name
    number = os.makedev(wanted.major, wanted.minor)
    if _stands(path, number):
        return path
    path.parent.mkdir(mode=0o755, exist_ok=True)
    fresh = path.parent / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
    os.mknod(fresh, stat.S_IFCHR | 0o600, number)
    try:
        os.chmod(fresh, _MODE)  # not by mknod: the umask would take bits away
        try:
            # Who comes second takes the first one's: that may just be being mounted, and a mount of what was replaced fails.
            os.link(fresh, path)
        except FileExistsError:
            if not _stands(path, number):
                os.rename(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    return path


def _stands(path: Path, number: int) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == number and stat.S_IMODE(found.st_mode) == _MODE
