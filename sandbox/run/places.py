"""Where sandboxes are: the directories of each kind, and in the one of each sandbox its door."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator

from dockless import native
from dockless.base import paths
from dockless.base.path import Path
from dockless.base.typing import TypeVar
from dockless.errors import BadInput

T = TypeVar("T")
DETACHED, FOREGROUND = "sandboxes", "running"
"""The directories of detached and foreground sandboxes, below the state directory."""
DESCRIPTORS = "/proc/self/fd"
GROUP = "run-"
"""What the cgroups of foreground sandboxes begin with."""
DOOR = "door"
WAITS = "waits"
"""In the directory of one that waits for its program: nobody can name it, and no list has it."""
leaving: set[Path] = set()
"""Directories of sandboxes that have ended, and that this process is just removing: they are in no list."""
_ADDRESS = 108
"""Bytes of an address, with its NUL. unix(7)"""


def root(kind: str, state_root: Path | None = None) -> Path:
    """The directory of all detached or foreground ones."""
    return (state_root or paths.state()) / kind


def by_name(directory: Path) -> Path:
    """The path of a sandbox's directory, also of one that is given by a descriptor, ``/proc/self/fd/N``: by the name that it has now. What
    is removed has one that no sandbox can have. proc_pid_fd(5)"""
    return Path(os.readlink(directory)) if os.fspath(directory.parent) == DESCRIPTORS else directory


def open_directory(directory: Path, how: int = 0) -> int:
    """Of a sandbox, also by a descriptor; a link that somebody put in its place is not followed. ``OSError``"""
    follow = 0 if os.fspath(directory.parent) == DESCRIPTORS else os.O_NOFOLLOW
    return os.open(directory, os.O_DIRECTORY | os.O_CLOEXEC | follow | how)


@contextlib.contextmanager
def names_stay(parent: Path, how: int = fcntl.LOCK_SH) -> Iterator[None]:
    """Nobody renames a sandbox meanwhile. ``how``: ``LOCK_EX`` for who does. ``OSError``"""
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def taken(id: str) -> BadInput:
    """The error of a name that another sandbox has."""
    return BadInput(f"there is a sandbox {id} already", subject=id, hint=f"choose another name, or remove that one: dockless rm {id}")


def make_door(directory: Path) -> int:
    """The socket of a new sandbox's door, for ``SLOT_DOOR`` of its keeper. ``Unwritable``"""
    with paths.writing("the door of a sandbox", directory):
        return at_its_door(directory, native.door)


def at_its_door(directory: Path, request: Callable[[str], T]) -> T:
    """What ``request`` says, called with the path of the door in so few bytes that an address can hold it. unix(7)"""
    path = f"{directory}/{DOOR}"
    if len(os.fsencode(path)) < _ADDRESS:
        return request(path)
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return request(f"/proc/self/fd/{fd}/{DOOR}")
    finally:
        os.close(fd)
