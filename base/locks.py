"""Locks that say whether something is alive: they go with the last process that holds them, however it ends. flock(2)

Pids can be reused and files can be left behind; a lock on an open file can be neither.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

from dockless.base.path import Path

CANNOT_TELL = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of us who ask, which say nothing about what is asked."""


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[int]:
    """A descriptor of it, to lock. A link in its place is not followed. ``OSError``"""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def mark_in_use(fd: int) -> None:
    """Mark what ``fd`` is open on as in use for as long as any copy of this open file lives, here or in a child."""
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether somebody holds an exclusive lock. Asked with a shared one, for microseconds: two who ask do not see each other.

    What is damaged or no lock file at all is held by nobody. ``OSError`` where we cannot tell, such as too many open files."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in CANNOT_TELL:
            raise
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def in_use(path: Path) -> int:
    """A descriptor: no sweeper takes the directory ``path`` while it, or a copy of it, is open. ``BlockingIOError``: one has it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mark_in_use(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd
