"""Mounts of layers that other processes have: who mounts an index notes where its mount is, and who comes next makes a clone of that.

::

    <runtime>/layers/lock                               held for as long as it takes to look for a mount, or to make and note one
    <runtime>/layers/BOOT.FILES/PID-BORN-FD-PLACE-MOUNT a note: an empty file

FILES are the index and its tar by their numbers: a layer that was removed and made again is another one. The process PID has the mount at
its descriptor FD; or, where PLACE is not 0, FD is a socket, and the mount is at that place among the descriptors that wait in it, which is
how a sandbox's keeper has what it holds. BORN is the kernel's own number of that process. Another one that has its PID now is left alone:
it may be anybody's, and to close what it has may take for ever. MOUNT is the kernel's own number of the mount, which no other gets before
the next boot: whatever has become of that process, what is found is that mount, or nothing.

A note counts no users and keeps nothing alive: the kernel takes a mount away with the last process that has it, or a clone of it, however
that ends. The note then leads nowhere, and who comes next removes it. proc_pid_fd(5), pidfd_open(2), pidfd_getfd(2), statx(2)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import time
from collections.abc import Iterator

from dockless import native
from dockless.base import paths
from dockless.base.path import Path
from dockless.base.pidfds import hold
from dockless.errors import Unwritable

OPEN_TREE, PIDFD_GETFD = 428, 438
_STATX = {"x86_64": 332, "aarch64": 291}
_CLONE, _EMPTY_PATH, _DONT_SYNC = 1 | os.O_CLOEXEC, 0x1000, 0x4000
_UNIQUE, _MOUNT_AT = 0x4000, 144
"""STATX_MNT_ID_UNIQUE, and where struct statx has it. Linux 6.8"""
_WAIT = 0.05
"""Seconds to wait for another process that looks for a mount or makes one: one that was stopped meanwhile keeps nobody from starting."""
_MOST = 253
"""Descriptors of one message. unix(7)"""
_GONE = (errno.ENOENT, errno.ESRCH, errno.EBADF, errno.ENOTSOCK, errno.EAGAIN, errno.EINVAL)
"""Errors that say that a process does not have what was noted; others say that we cannot tell."""


def _root() -> Path:
    return paths.runtime() / "layers"


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _notes_of(files: str) -> Path:
    return _root() / f"{_boot()}.{files}"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """No other process looks for a mount or makes one meanwhile, so that no two make the same. In vain where that cannot be, or takes too
    long."""
    fd = -1
    try:
        with contextlib.suppress(OSError, Unwritable):
            fd = _made(_root() / "lock")
            until = time.monotonic() + _WAIT
            while not _locked(fd) and time.monotonic() < until:
                time.sleep(0.0005)
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find(files: str) -> int:
    """A clone of the mount of ``files`` that another process has, which the caller closes; -1 where none has one."""
    directory = _notes_of(files)
    names = _names(directory)
    first = os.getpid() % max(1, len(names))  # another one each time: so all that lead nowhere are found by and by
    for name in names[first:] + names[:first]:
        try:
            if (fd := _cloned(name)) >= 0:
                return fd
        except OSError as error:
            if error.errno in _GONE:
                forget(directory / name)
    return -1


def note(files: str, fd: int, *, keeper: int = 0, socket: int = 0, place: int = 0) -> Path | None:
    """Others find the mount of ``files``, which ``fd`` is. ``keeper``: who has it, at this ``place`` in its ``socket``, if not we at
    ``fd``. The note, for ``forget``; None where there can be none."""
    with contextlib.suppress(OSError, Unwritable):
        made = _notes_of(files) / "-".join(map(str, (*_named(keeper or os.getpid()), socket if keeper else fd, place, _number(fd))))
        os.close(_made(made))
        return made
    return None


def _made(file: Path) -> int:
    """A descriptor of a file of ours. Its directory may be missing, or be removed just now for being empty. ``OSError``, ``Unwritable``"""
    for _ in range(3):
        with contextlib.suppress(FileNotFoundError):
            return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        paths.make(file.parent)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file))


def forget(note: Path) -> None:
    """Take a note away, and its directory with the last one."""
    with contextlib.suppress(OSError):
        os.unlink(note)
    with contextlib.suppress(OSError):
        os.rmdir(note.parent)


def sweep() -> None:
    """Take all notes away that lead nowhere."""
    boot = _boot()
    for directory in (_root() / name for name in _names(_root())):
        for name in _names(directory):
            if not directory.name.startswith(boot) or not _leads_somewhere(name):
                forget(directory / name)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _leads_somewhere(name: str) -> bool:
    try:
        os.close(_noted(name))
    except OSError as error:
        return error.errno not in _GONE
    return True


def _cloned(name: str) -> int:
    fd = _noted(name)
    try:
        return _checked(native.syscall(OPEN_TREE, fd, b"", _CLONE | _EMPTY_PATH))  # EINVAL: the last who had it has just let go of it
    finally:
        os.close(fd)


def _noted(name: str) -> int:
    """A descriptor of the mount that a note tells of. ``OSError``"""
    try:
        process, born, at, place, mount = map(int, name.split("-"))
    except ValueError:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT)) from None
    pidfd = hold(process)
    try:
        if os.fstat(pidfd).st_ino != born:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        fd = _waiting(pidfd, at, place) if place else os.open(f"/proc/{process}/fd/{at}", os.O_PATH | os.O_CLOEXEC)
    finally:
        os.close(pidfd)
    try:
        if _number(fd) != mount:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    except OSError:
        os.close(fd)
        raise
    return fd


def _named(process: int) -> tuple[int, int]:
    """Its number, and the one that no other process gets before the next boot: that of its pidfd, Linux 6.9. ``OSError``"""
    pidfd = hold(process)
    try:
        return process, os.fstat(pidfd).st_ino
    finally:
        os.close(pidfd)


def _waiting(pidfd: int, at: int, place: int) -> int:
    """Of the descriptors that wait in a socket of another process, and go on to wait there. ``OSError``"""
    from _socket import MSG_DONTWAIT, MSG_PEEK, socket

    from dockless.base.descriptors import received

    taken = _checked(native.syscall(PIDFD_GETFD, pidfd, at, 0))
    try:
        ours = socket(fileno=taken)
    except OSError:  # whatever else has the number now
        os.close(taken)
        raise
    with contextlib.closing(ours):
        fds = received(ours, 1, _MOST, MSG_PEEK | MSG_DONTWAIT)[1]
    found = fds.pop(place - 1) if place <= len(fds) else -errno.EBADF
    for fd in fds:
        os.close(fd)
    return _checked(found)


def _number(fd: int) -> int:
    """The kernel's own number of the mount on which ``fd`` lies. ``OSError``"""
    facts = bytearray(256)
    _checked(native.syscall(_STATX[os.uname().machine], fd, b"", _EMPTY_PATH | _DONT_SYNC, _UNIQUE, facts))
    if not int.from_bytes(facts[:4], "little") & _UNIQUE:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    return int.from_bytes(facts[_MOUNT_AT : _MOUNT_AT + 8], "little")


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
