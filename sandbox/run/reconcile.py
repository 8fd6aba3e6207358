"""What a host that was killed together with its keepers left behind: found by its name, known to be nobody's by its lock, removed.

A foreground sandbox has a cgroup ``run-<id>`` and, with an image, a directory ``<state>/running/<id>``. Its host takes a lock on
both before anything runs, and the keeper inherits it: as long as either lives, the lock is held. flock(2)

The cgroup of a detached one has its directory's number and that of the state directory in its name: where there is no such directory,
its keeper was killed between removing the one and the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from dockless.base import paths
from dockless.base.path import Path
from dockless.cgroups import Cgroup, find_delegation, users
from dockless.errors import CgroupError, DocklessError
from dockless.sandbox.run.host_names import directory_of
from dockless.sandbox.run.places import DETACHED, FOREGROUND, GROUP, root
from dockless.sandbox.run.removal import remove_cgroup, remove_tree

_SETTLED = 10.0
"""Seconds after which a sandbox that is being started has taken its locks."""


def reconcile() -> list[str]:
    """Remove leftovers of this user's sandboxes: the names of what was removed, and of the networks' table where
    another program had changed it. Whatever still runs, or has records, is left alone."""
    _notes_of_layers()
    return _groups() + _directories() + _addresses()


def _notes_of_layers() -> None:
    if os.geteuid() == 0:
        from dockless.images.layers import mounts

        with contextlib.suppress(OSError):
            mounts.sweep()


def _addresses() -> list[str]:
    if not os.path.lexists(paths.state() / "networks"):
        return []
    from dockless.sandbox.network import admission

    try:
        return admission.sweep()
    except DocklessError:  # a kernel or a disk that refuses it: the next start on a network says so
        return []


def _settled(path: str | Path) -> bool:
    try:
        return time.time() - os.stat(path).st_ctime >= _SETTLED
    except OSError:
        return False


def _abandoned(path: str | Path) -> bool:
    if not _settled(path):
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _groups() -> list[str]:
    place = find_delegation(ask_systemd=False)
    if place.path is None or not place.home.is_dir():
        return []
    removed = []
    unheld = [path for path in place.home.glob(f"{GROUP}*") if _abandoned(path)]
    for path in [*unheld, *_without_directory(place.home)]:
        try:
            with Cgroup.open(path) as group:
                remove_cgroup(group)
        except CgroupError:
            continue
        removed.append(path.name)
    for above in filter(_settled, users.all_of(os.fspath(place.home))):
        if users.remove_empty(above):
            removed.append(os.path.basename(above))
    return removed


def _without_directory(home: Path) -> list[Path]:
    """Cgroups of detached sandboxes of this state directory of which nothing else is left."""
    kept = root(DETACHED)
    places = (home, *map(Path, users.all_of(os.fspath(home))))
    groups = [path for place in places for path in _inside(place) if _settled(path)]
    there = _numbers(kept)  # after them: a group is made after its directory
    return [path for path in groups if (number := directory_of(path.name, kept)) and number not in there]


def _inside(place: Path) -> list[Path]:
    try:
        return list(place.iterdir())
    except FileNotFoundError:  # a user's group, whose last sandbox has gone
        return []


def _numbers(place: Path) -> set[int]:
    try:
        return {entry.inode() for entry in os.scandir(place)}
    except FileNotFoundError:
        return set()


def _directories() -> list[str]:
    running = root(FOREGROUND)
    removed = []
    for path in sorted(running.iterdir()) if running.is_dir() else ():
        if _abandoned(path):
            try:
                remove_tree(path)
            except DocklessError:  # a disk that refuses it: the others still go, and this one the next time
                continue
            removed.append(path.name)
    return removed
