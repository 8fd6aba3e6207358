"""How much a sandbox may write to its private layer: a project of the file system's quotas. quotactl(2), xfs_quota(8), ext4(5)

::

    sandboxes/ID/          no project: records and output have bounds of their own
        upper/ work/       a project with a limit, which all that is made in them inherits

XFS and ext4 that are mounted with ``prjquota`` count the bytes and files of each project and refuse what passes its limit, also for files
that are deleted and still open. No program leaves its project: only the host's root can change that of a file. The kernel's own account
says which numbers are in use: that of a sandbox is free when its last file is. So nothing is written down, and nothing can be left
behind but a limit for which nobody counts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator

from dockless import native
from dockless.base import paths
from dockless.base.dataclass import dataclass
from dockless.base.path import Path
from dockless.errors import LimitUnavailable, SandboxError
from dockless.sandbox.spec import Spec

FIRST, COUNT = 0x444B0000, 1 << 16
"""The numbers of our projects."""
LAYER = {"upper": 0o755, "work": 0o700}
"""The private layer as the launcher makes it."""
BYTES_PER_FILE = 16384
FEWEST_FILES = 1 << 16
_GETXATTR, _SETXATTR = 0x801C581F, 0x401C5820
"""FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR. ioctl_xfs_fsgetxattr(2)"""
_INHERIT = 0x200
_FSXATTR = struct.Struct("=5I8x")
_QUOTACTL_FD = 443
_GET, _SET, _STATE = (command << 8 | 2 for command in (0x800007, 0x800008, 0x5808))
"""Q_GETQUOTA, Q_SETQUOTA and Q_XGETQSTATV of project quotas."""
_DQBLK = struct.Struct("=8QI4x")
_LIMITS = 5
"""QIF_LIMITS: of blocks and of files."""
_STATE_SIZE = 160
_COUNTED, _ENFORCED = 1 << 4, 1 << 5
_NONE = "has no project quotas"
_MOUNT = "mount it with the option prjquota (ext4: mkfs or tune2fs -O quota,project first), or say --best-effort"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ABSENT = (errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY, errno.EINVAL, errno.ESRCH, errno.ENODEV, errno.ENOTBLK, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Account:
    """What the file system counts for a sandbox. ``limit``: bytes, 0 for none; ``size``: bytes on disk."""

    limit: int
    size: int
    files: int


def lacking(place: Path) -> str:
    """What keeps sandboxes below ``place`` from having a limit on their disk, in words; empty where nothing does."""
    if os.geteuid() != 0:
        return "only root can set project quotas"
    try:
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"{place}: {error.strerror}"
    try:
        return _lacking(fd, place)
    finally:
        os.close(fd)


def _lacking(fd: int, place: Path) -> str:
    state = bytearray(_STATE_SIZE)
    state[0] = 1  # FS_QSTATV_VERSION1
    if native.syscall(_QUOTACTL_FD, fd, _STATE, 0, state) == 0:
        flags = struct.unpack_from("=H", state, 2)[0]
        if flags & _ENFORCED and flags & _COUNTED:
            return ""
    return f"the file system of {place} {_NONE}"


def bound(spec: Spec, directory: Path) -> tuple[str, ...]:
    """Give the private layer of a sandbox, in ``directory``, the limit of its spec, before anything is written to it. Under
    ``best_effort`` a warning where it can have none; else ``LimitUnavailable``. ``Unwritable``"""
    if not spec.disk or spec.image == "host" or spec.root != "disk":
        return ()  # nothing of it is on disk
    why = unenforced(spec, directory)
    if why and spec.best_effort:
        return (f"no limit on its disk is enforced: {why}",)
    if why:
        hint = _MOUNT if why.endswith(_NONE) else "leave the limit out, or say --best-effort"
        raise LimitUnavailable(f"a limit on its disk cannot be enforced: {why}", controller="project quotas", subject="disk", hint=hint)
    with paths.writing("the private layer of a sandbox", directory), contextlib.ExitStack() as opened:
        fds = []
        for name, mode in LAYER.items():
            with contextlib.suppress(FileExistsError):
                (directory / name).mkdir(0o700)
                (directory / name).chmod(mode)
            fds.append(os.open(directory / name, _DIRECTORY))
            opened.callback(os.close, fds[-1])
        number = _own(fds[0]) or _free(fds[0])
        _limit(fds[0], number, spec.disk)
        _put(fds[1], number)
    return ()


def unenforced(spec: Spec, place: Path) -> str:
    """Why such a sandbox, below ``place``, can have no limit on its disk; empty where it can."""
    if spec.profile == "privileged" or spec.namespaces.user == "host":
        return "without a user namespace of its own it is the host's root, who can take files out of a project"
    return lacking(place)


@contextlib.contextmanager
def given_back(directory: Path) -> Iterator[None]:
    """Take the limit away before the block removes the private layer in ``directory``: afterwards its number may be another's."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            fd = os.open(directory / "upper", _DIRECTORY)
            try:
                if number := _own(fd):
                    _limit(fd, number, 0)
            finally:
                os.close(fd)
    yield


def account(directory: Path) -> Account | None:
    """Of the private layer in ``directory``; None where it is not bounded, or is not there. ``OSError``"""
    try:
        fd = os.open(directory / "upper", _DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        number = _own(fd)
        return _account(fd, number) if number else None
    finally:
        os.close(fd)


def _own(fd: int) -> int:
    """The project of ours that a directory is in; 0 if it is in none."""
    try:
        raw = fcntl.ioctl(fd, _GETXATTR, bytes(_FSXATTR.size))
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise
    number: int = _FSXATTR.unpack(raw)[3]
    return number if FIRST <= number < FIRST + COUNT else 0


def _put(fd: int, number: int) -> None:
    """A directory, with all that will be made in it, into a project; 0: out of each."""
    flags, extent, count, _, cow = _FSXATTR.unpack(fcntl.ioctl(fd, _GETXATTR, bytes(_FSXATTR.size)))
    flags = flags | _INHERIT if number else flags & ~_INHERIT
    fcntl.ioctl(fd, _SETXATTR, _FSXATTR.pack(flags, extent, count, number, cow))


def _free(fd: int) -> int:
    """Take a number for which nothing else is counted. Two who try the same at once both see it, and both go on."""
    begin, taken = os.fstat(fd).st_ino, _registered()
    for number in (FIRST + (begin + step) % COUNT for step in range(COUNT)):
        if number in taken or _account(fd, number).files:
            continue
        _put(fd, number)
        if _account(fd, number).files == 1:
            return number
        _put(fd, 0)
    raise SandboxError(
        f"all {COUNT} projects of sandboxes are in use", subject="disk", hint="remove sandboxes that have ended: dockless rm"
    )


def _registered() -> set[int]:
    """The numbers that the administrator uses. projid(5)"""
    try:
        lines = Path("/etc/projid").read_text().splitlines()
    except OSError:
        return set()
    return {int(number) for line in lines if (number := line.rpartition(":")[2].strip()).isdecimal()}


def _account(fd: int, number: int) -> Account:
    raw = bytearray(_DQBLK.size)
    code = native.syscall(_QUOTACTL_FD, fd, _GET, number, raw)
    if code == -errno.ENOENT:  # XFS has none yet
        return Account(0, 0, 0)
    if code < 0:
        raise OSError(-code, os.strerror(-code))
    blocks, _, size, _, _, files, *_ = _DQBLK.unpack(raw)
    return Account(blocks << 10, size, files)


def _limit(fd: int, number: int, size: int) -> None:
    """0: none."""
    blocks, files = -(-size >> 10), max(size // BYTES_PER_FILE, FEWEST_FILES) if size else 0
    raw = bytearray(_DQBLK.pack(blocks, 0, 0, files, 0, 0, 0, 0, _LIMITS))
    code = native.syscall(_QUOTACTL_FD, fd, _SET, number, raw)
    if code < 0:
        raise OSError(-code, os.strerror(-code))
