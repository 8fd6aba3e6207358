"""What a host that was killed together with its keepers left behind: found by its name, known to be nobody's by its lock, removed.

An attached sandbox has a cgroup ``run-<id>`` and, with an image, a directory ``<state>/running/<id>``. Its host takes a lock on
both before anything runs, and the keeper inherits it: as long as either lives, the lock is held. flock(2)
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from dockless.base import paths
from dockless.cgroups import Cgroup, find_delegation
from dockless.errors import CgroupError, DocklessError

PREFIX = "run-"
_SETTLED = 10.0
"""Seconds after which a sandbox that is being started has taken its locks."""


def reconcile() -> list[str]:
    """Remove leftovers of attached sandboxes of this user: the names of what was removed. Whatever still runs is left alone."""
    return _groups() + _directories()


def _abandoned(path: str | Path) -> bool:
    try:
        if time.time() - os.stat(path).st_ctime < _SETTLED:
            return False
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
    for path in place.home.glob(f"{PREFIX}*"):
        if _abandoned(path):
            try:
                with Cgroup.open(path) as group:
                    end(group)
            except CgroupError:
                continue
            removed.append(path.name)
    return removed


def _directories() -> list[str]:
    from dockless.sandbox.run.attached import remove_tree

    running = paths.state() / "running"
    removed = []
    for path in sorted(running.iterdir()) if running.is_dir() else ():
        if _abandoned(path):
            try:
                remove_tree(path)
            except DocklessError:  # a disk that refuses it: the others still go, and this one the next time
                continue
            removed.append(path.name)
    return removed


def end(group: Cgroup) -> None:
    """Remove a sandbox's cgroup. What still lives in it, in a shared PID namespace, is killed first."""
    try:
        group.remove(0)
    except CgroupError:
        group.kill()
        group.remove()
