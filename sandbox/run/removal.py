"""Removing what a sandbox had: its directory, with the rights over every owner in it, and its cgroup."""

from __future__ import annotations

import os

from dockless.base.idmaps import default_map
from dockless.base.path import Path
from dockless.cgroups import Cgroup, find_delegation, users
from dockless.errors import CgroupError
from dockless.native.userns import namespace_fd
from dockless.sandbox.plan.builder import NEW_NS, Section
from dockless.sandbox.plan.plan import SLOT_FREE, Plan
from dockless.sandbox.run import process
from dockless.sandbox.run.host_names import group_name


def remove_tree(directory: Path) -> None:
    """Remove a sandbox's directory with the rights over every owner in it: an errand for the launcher, in the user namespace where we are
    not root. Where it holds no directory, all of it is ours and goes at once: also where there is no process to be had."""
    if not os.path.lexists(directory) or _removed_flat(directory):
        return
    section = Section()
    fds = {}
    if os.geteuid() != 0:
        section.add("SETNS", SLOT_FREE, x=NEW_NS["user"])
        fds[SLOT_FREE] = namespace_fd(default_map())
    section.add("REMOVE", a=str(directory))
    process.errand(Plan(tuple(section.ops), None, {SLOT_FREE: "user namespace"}), fds)


def _removed_flat(directory: Path) -> bool:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with os.scandir(fd) as entries:
            names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        if any(names.values()):
            return False
        for name in names:
            os.unlink(name, dir_fd=fd)
        os.rmdir(directory)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def remove_cgroup(group: Cgroup) -> None:
    """Remove a sandbox's cgroup, and its user's if nothing is left in that. What still lives in it, in a shared PID namespace, is killed
    first."""
    try:
        group.remove(0)
    except CgroupError:
        group.kill()
        group.remove()
    if users_group := users.above(group.text):
        users.remove_empty(users_group)


def unnamed_cgroup(directory: Path) -> Cgroup | None:
    """The cgroup of a start that was killed before its document named one."""
    place = find_delegation(ask_systemd=False)
    if place.path is None or not directory.is_dir():
        return None
    name, home = group_name(directory), os.fspath(place.home)
    found = next((path for above in (home, *users.all_of(home)) if os.path.isdir(path := f"{above}/{name}")), "")
    return Cgroup.open(found) if found else None
