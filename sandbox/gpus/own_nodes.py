"""Nodes of leased GPUs and devices that a sandbox's ids could not open, as those of mode 0660: made anew while it starts.

The new node is open to all, in a directory of /dev that is root's alone. The launcher clones it, and then its name is removed: so only the
sandbox has it, and it goes with the sandbox. What a starter that was killed has left nobody else can reach; a later one removes it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time

from dockless.base.dataclass import replace
from dockless.errors import GpuError
from dockless.sandbox.resolved import Device

PLACE = "/dev/.dockless"
_OLD = 600.0
"""Seconds after which nobody starts with it any more."""


def named_anew(device: Device) -> Device:
    """The same device by the name of a node of ours, which ``make`` makes."""
    return replace(device, source=f"{PLACE}/{secrets.token_hex(8)}")


def make(device: Device, opened: contextlib.ExitStack) -> None:
    """Its node, until ``opened`` is closed; nothing for a device that has no node of ours. ``GpuError`` where nodes cannot be made."""
    if not device.source.startswith(f"{PLACE}/"):
        return
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(PLACE, 0o700)
        place = os.open(PLACE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, place)
        about = os.fstat(place)
        if about.st_uid != 0 or stat.S_IMODE(about.st_mode) != 0o700:
            raise PermissionError(1, "it is not root's alone")
        _sweep(place)
        name = os.path.basename(device.source)
        mode = (0o444 if "r" in device.access else 0) | (0o222 if "w" in device.access else 0)
        kind = stat.S_IFBLK if device.block else stat.S_IFCHR
        os.mknod(name, kind, os.makedev(device.major, device.minor), dir_fd=place)
        opened.callback(os.unlink, name, dir_fd=place)
        os.chmod(name, mode, dir_fd=place)
    except OSError as error:
        hint = "make the devices' own nodes accessible with chmod(1): the lease still says who gets them"
        raise GpuError(f"cannot make the node of a leased device in {PLACE}: {error.strerror}", subject=PLACE, hint=hint) from error


def _sweep(place: int) -> None:
    for name in os.listdir(place):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - os.stat(name, dir_fd=place, follow_symlinks=False).st_ctime > _OLD:
                os.unlink(name, dir_fd=place)
