"""Named volumes: directories that dockless keeps between sandboxes, each user's out of reach of all others.

::

    <state>/volumes/        0711
        1000/               0700, owned by whoever made it: where root did, nobody else can put, replace or remove a name in it
            data/           0755, owned by the sandbox's root
            .new            a volume that is just being made
            .labels-data    its labels as JSON, where it has any

Root makes volumes for users who may be hostile, so nothing here acts on a path: each directory is opened below the one before and no link
is followed; only what was just made gets another owner (attack A59). openat2(2)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

from dockless import native
from dockless.base import paths
from dockless.base.idmaps import default_map
from dockless.base.path import Path
from dockless.errors import SandboxError
from dockless.sandbox.names import check_id

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW = ".new"  # no volume can be called so
LABELS = ".labels-"
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")


def volume_path(name: str, owner: int | None = None) -> str:
    """The directory of a named volume, made on first use and owned by the sandbox's root. ``owner``: the user for whom root asks.

    Errors: ``BadInput`` for the name, ``SandboxError`` where something else lies in its place.
    """
    check_id(name, "volume name")
    place = paths.make(paths.state() / "volumes", 0o711)
    home = place / str(owner or os.geteuid())
    idmap = default_map(owner)
    # A user's own file system (FUSE) can show root whatever she likes. Root's own volumes may be mounts.
    resolve = native.RESOLVE_NO_SYMLINKS | (native.RESOLVE_NO_XDEV if owner else 0)
    with paths.writing(f"the volume {name}", home / name), contextlib.ExitStack() as opened:
        volumes = os.open(place, _DIRECTORY)
        opened.callback(os.close, volumes)
        _require_own(volumes, place)
        with contextlib.suppress(FileExistsError):
            os.mkdir(home.name, 0o700, dir_fd=volumes)
        folder = _open(volumes, home, resolve)
        opened.callback(os.close, folder)
        fcntl.flock(volumes, fcntl.LOCK_EX)  # not the folder: of one that was a user's she may hold the lock for ever
        if os.geteuid() == 0:
            _take_over(folder)
        try:
            os.close(_open(folder, home / name, resolve))
        except FileNotFoundError:
            _make(folder, home / name, resolve, *idmap.root())
    return str(home / name)


def _open(parent: int, path: Path, resolve: int) -> int:
    """The directory ``path``, by its name in ``parent``."""
    try:
        return native.openat2(parent, path.name, _DIRECTORY, 0, resolve)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _in_the_way(path, error) from error


def _require_own(fd: int, path: Path) -> None:
    """The rights over everything below follow from those over this directory."""
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise SandboxError(
            f"{path} can be changed by others: it belongs to uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}",
            subject=str(path),
            hint="make it yours, mode 0711, or move DOCKLESS_HOME to a directory of your own",
        )


def _take_over(folder: int) -> None:
    """A folder that an older version gave to its user is root's again, and what she could set on it is gone."""
    found = os.fstat(folder)
    if found.st_uid == 0 and stat.S_IMODE(found.st_mode) == 0o700:
        return
    os.fchown(folder, 0, 0)
    os.fchmod(folder, 0o700)
    for acl in _ACLS:
        with contextlib.suppress(OSError):
            os.removexattr(folder, acl)


def _make(folder: int, path: Path, resolve: int, uid: int, gid: int) -> None:
    """The volume gets its name when it is whole. The caller holds the lock."""
    new = path.with_name(NEW)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(NEW, dir_fd=folder)  # of one that was killed here
        os.mkdir(NEW, 0o700, dir_fd=folder)
    except OSError as error:
        raise _in_the_way(new, error) from error
    fd = _open(folder, new, resolve)
    try:
        if os.geteuid() == 0:
            os.fchown(fd, uid, gid)
        os.fchmod(fd, 0o755)
        os.rename(NEW, path.name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(fd)


def _in_the_way(path: Path, error: OSError) -> SandboxError:
    return SandboxError(
        f"{path} cannot be used as the directory of a volume: {error.strerror}", subject=str(path), hint="look what it is, and remove it"
    )
