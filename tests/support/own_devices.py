"""A mount namespace of our own with device nodes of its own: what is tried as root there changes no node of the machine."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_NEWNS, _BIND, _REC, _PRIVATE, _MOVE = 0x20000, 4096, 16384, 1 << 18, 8192
_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LOOPS = range(64)
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}


def mount(source: str, target: Path | str, kind: str, flags: int = 0, data: str = "") -> None:
    if _libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, data.encode()):
        error = ctypes.get_errno()
        raise OSError(error, f"mount {kind or source} on {target}: {os.strerror(error)}")


def enter(devices: Path) -> None:
    """Leave the machine's mounts for a private copy of them, with new nodes in /dev. ``devices``: an empty place to make them in."""
    if _libc.unshare(_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", "", _PRIVATE | _REC)
    devices.mkdir()
    mount("tmpfs", devices, "tmpfs", data="mode=0755")
    for name, (major, minor) in _NODES.items():
        os.mknod(devices / name, 0o020666, os.makedev(major, minor))
        os.chmod(devices / name, 0o666)
    os.mknod(devices / "loop-control", 0o020660, os.makedev(10, 237))
    for number in _LOOPS:
        os.mknod(devices / f"loop{number}", 0o060660, os.makedev(7, number))
    if os.path.exists("/dev/net/tun"):  # as root is shown it: tests that need it for users make it anew
        (devices / "net").mkdir()
        os.mknod(devices / "net" / "tun", 0o020600, os.makedev(10, 200))
    for name, target in _LINKS.items():
        os.symlink(target, devices / name)
    for name in ("pts", "shm"):
        (devices / name).mkdir()
        mount(f"/dev/{name}", devices / name, "", _BIND | _REC)
    mount(str(devices), "/dev", "", _MOVE)
