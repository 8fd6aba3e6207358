"""What a Multi-Process Service has in common with its jobs: directories in memory that nobody else can make, name or fill.

::

    <runtime>/mps/              0711, as all above it nobody else's
        mps-g…-1001-…/          root's daemon: a tmpfs of the service's own. A user's: a link to a directory of a random name in /dev/shm
            pipe/               its user's alone; root's, before Linux 6.3, that of root's sandboxes
            shm/                /dev/shm of the service and of its jobs
        .mps-g…-1001-…          a link that leads nowhere: what directory that is, of whom

A tmpfs for each, so that what one user's jobs put there fills no file system that others need, and logind, which empties /dev/shm of what
belongs to a user who logs out (RemoveIPC of logind.conf(5)), leaves it alone. It has a size: what a job leaves in it, which no limit of
memory holds then, stays until the service ends. From /dev/shm logind may remove a user's, and somebody else may make one of that name: so
it is looked at each time whether it is still the one that was made. A reboot removes all of it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets

from dockless import native
from dockless.base import paths, syscalls
from dockless.base.path import Path
from dockless.base.paths import StrPath
from dockless.errors import GpuError

_SHARED = "/dev/shm"
_INODES = 1 << 16
"""Files and directories in one of them: each takes some memory besides its bytes."""
_NOSUID, _NODEV = 2, 4
_DETACH, _NOFOLLOW = 2, 8
"""Of mount(2) and umount2(2)."""


def above() -> Path:
    return paths.runtime() / "mps"


def names() -> list[str]:
    """What is there, and what an earlier daemon left."""
    try:
        return [name for name in os.listdir(above()) if not name.startswith(".")]
    except FileNotFoundError:
        return []


def place(name: str) -> Path | None:
    """The directory of a service, without links; None where it is not there, or is not the one that was made."""
    try:
        found = Path(_leads_to(name))
        return found if os.readlink(_record(name)) == _identity(found) else None
    except OSError:
        return None


def _record(name: str) -> Path:
    return above() / f".{name}"


def _leads_to(name: str) -> str:
    here = above() / name
    return os.readlink(here) if os.path.islink(here) else str(here)


def _identity(path: StrPath) -> str:
    found = os.lstat(path)
    return f"{found.st_dev}:{found.st_ino}:{found.st_uid}:{found.st_mode:o}"


def make(name: str, owner: int | None, room: int) -> Path:
    """New and empty. ``owner``: the user whose root's daemon it is made for, None for our own. ``room``: bytes that it may take, where it
    is a file system of its own. ``GpuError``, ``Unwritable``"""
    clear(name)
    here = paths.make(above(), 0o711) / name
    if os.geteuid() == 0:
        here.mkdir(0o700)
        _mount(here, room)
        made = here
    else:
        made = Path(f"{_SHARED}/dockless-mps-{secrets.token_hex(8)}")
        os.symlink(made, here)
        os.mkdir(made, 0o700)
    for part, mode in (("pipe", 0o700), ("shm", 0o1777)):
        (made / part).mkdir()
        (made / part).chmod(mode)
    if owner is not None:
        for path in (made / "pipe", made / "shm", made):
            os.chown(path, owner, -1)
    elif os.geteuid() == 0:
        _open_to_root(made / "pipe")
    os.symlink(_identity(made), _record(name))
    return made


def _open_to_root(pipe: Path) -> None:
    """Root's service and root's jobs are root of a user namespace. Before Linux 6.3 the kernel cannot map the owners in a tmpfs."""
    from dockless.base.idmaps import default_map
    from dockless.native.userns import namespace_fd
    from dockless.sandbox.features import accepts_idmap

    idmap = default_map()
    if not accepts_idmap(str(pipe), namespace_fd(idmap)):
        os.chown(pipe, *idmap.root())


def clear(name: str) -> None:
    """Remove it, if it is there. ``OSError``"""
    here = above() / name
    if os.path.islink(here):
        from dockless.sandbox.run.removal import remove_tree

        with contextlib.suppress(FileNotFoundError):
            made = os.readlink(here)
            if os.lstat(made).st_uid == os.geteuid():
                remove_tree(Path(made))
        os.unlink(here)
    elif os.path.isdir(here):
        while _call("umount2", os.fsencode(here), _DETACH | _NOFOLLOW) == 0:
            pass
        os.rmdir(here)
    _record(name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        above().rmdir()


def _mount(here: Path, room: int) -> None:
    options = f"mode=0700,size={room},nr_inodes={_INODES}".encode()
    code = _call("mount", b"dockless-mps", os.fsencode(here), b"tmpfs", _NOSUID | _NODEV, options)
    if code < 0:
        os.rmdir(here)
        raise GpuError(f"cannot mount {here}: {os.strerror(-code)}", subject=str(here), hint="its jobs are watched instead")


def _call(name: str, *arguments: int | bytes) -> int:
    return native.syscall(syscalls.table(platform.machine())[name], *arguments)
