"""A view of the machine for root's hunt in which a true finding hurts nothing but the hunt's own files.

A mount namespace of its own; device nodes of its own in it; and secrets in an /etc and an /opt that only it sees.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_NEWNS, _BIND, _REC, _PRIVATE, _MOVE = 0x20000, 4096, 16384, 1 << 18, 8192
_NODES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
SECRETS = ("/etc/hunt-secret", "/opt/hunt/secret")


def _mount(source: str, target: Path | str, kind: str, flags: int = 0, data: str = "") -> None:
    if _libc.mount(source.encode(), os.fsencode(target), kind.encode(), flags, data.encode()):
        error = ctypes.get_errno()
        raise OSError(error, f"mount {kind or source} on {target}: {os.strerror(error)}")


def enter(base: Path) -> None:
    """Leave the machine's mounts for a private copy of them. ``base``: where the changes to /etc and /opt are kept."""
    if _libc.unshare(_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    _mount("none", "/", "", _PRIVATE | _REC)
    _devices(base / "dev")
    for place in ("/etc", "/opt"):
        upper, work = (base / "over" / place[1:] / name for name in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir()
        _mount("overlay", place, "overlay", data=f"lowerdir={place},upperdir={upper},workdir={work}")


def _devices(new: Path) -> None:
    new.mkdir()
    _mount("tmpfs", new, "tmpfs", data="mode=0755")
    for name, (major, minor) in _NODES.items():
        os.mknod(new / name, 0o020666, os.makedev(major, minor))
        os.chmod(new / name, 0o666)
    for name, target in _LINKS.items():
        os.symlink(target, new / name)
    for name in ("pts", "shm"):
        (new / name).mkdir()
        _mount(f"/dev/{name}", new / name, "", _BIND | _REC)
    _mount(str(new), "/dev", "", _MOVE)


def put_secret(place: str, text: str) -> None:
    """A new file, with the rights of a secret, where the old one was: what a package or an administrator does."""
    Path(place).parent.mkdir(exist_ok=True)
    new = f"{place}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        stream.write(text)
    os.replace(new, place)
