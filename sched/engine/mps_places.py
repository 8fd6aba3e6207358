"""What a Multi-Process Service has in common with its jobs: directories in memory that nobody else can make, name or fill.

::

    <runtime>/mps/              0711, as all above it nobody else's
        mps-g…-1001-…/          root's daemon: a tmpfs of the service's own. A user's: a link to a directory of a random name in /dev/shm
            pipe/               its user's alone
            shm/                /dev/shm of the service and of its jobs

A tmpfs for each, so that what one user's jobs put there fills no file system that others need, and logind, which empties /dev/shm of what
belongs to a user who logs out (RemoveIPC of logind.conf(5)), leaves it alone. A reboot removes all of it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets

from dockless import native
from dockless.base import paths, syscalls
from dockless.base.path import Path
from dockless.errors import GpuError

_SHARED = "/dev/shm"
_NOSUID, _NODEV = 2, 4
_DETACH, _NOFOLLOW = 2, 8
"""Of mount(2) and umount2(2)."""


def above() -> Path:
    return paths.runtime() / "mps"


def names() -> list[str]:
    """What is there, and what an earlier daemon left."""
    try:
        return os.listdir(above())
    except FileNotFoundError:
        return []


def place(name: str) -> Path:
    """The directory of a service, without links."""
    return Path(os.path.realpath(above() / name))


def make(name: str, owner: int | None) -> Path:
    """New and empty. ``owner``: the user whose root's daemon it is made for, None for our own. ``GpuError``, ``Unwritable``"""
    clear(name)
    here = paths.make(above(), 0o711) / name
    if os.geteuid() == 0:
        here.mkdir(0o700)
        _mount(here)
    else:
        target = f"{_SHARED}/dockless-mps-{secrets.token_hex(8)}"
        os.symlink(target, here)
        os.mkdir(target, 0o700)
    made = place(name)
    for part, mode in (("pipe", 0o700), ("shm", 0o1777)):
        (made / part).mkdir()
        (made / part).chmod(mode)
    if owner is not None:
        for path in (made / "pipe", made / "shm", made):
            os.chown(path, owner, -1)
    return made


def clear(name: str) -> None:
    """Remove it, if it is there. ``OSError``"""
    here = above() / name
    if os.path.islink(here):
        from dockless.sandbox.run.removal import remove_tree

        remove_tree(place(name))
        os.unlink(here)
    elif os.path.isdir(here):
        while _call("umount2", os.fsencode(here), _DETACH | _NOFOLLOW) == 0:
            pass
        os.rmdir(here)
    with contextlib.suppress(OSError):
        above().rmdir()


def _mount(here: Path) -> None:
    code = _call("mount", b"dockless-mps", os.fsencode(here), b"tmpfs", _NOSUID | _NODEV, b"mode=0700")
    if code < 0:
        os.rmdir(here)
        raise GpuError(f"cannot mount {here}: {os.strerror(-code)}", subject=str(here), hint="its jobs are watched instead")


def _call(name: str, *arguments: int | bytes) -> int:
    return native.syscall(syscalls.table(platform.machine())[name], *arguments)
