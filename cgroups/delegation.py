"""Where on this host may we make groups, and with which controllers?

::

    root, and the mount is the real root      -> "root": <mount>/dockless/...      ("bare" where cgroup v1 holds the controllers)
    our own group or one above it is ours     -> "subtree": the delegated place
    a systemd user manager answers            -> "systemd": a scope with Delegate=yes, into which this process moves
    none of these                             -> "none", and ``why`` says what to do

Root makes its groups at the root also where systemd rules, as Docker's and Podman's cgroupfs drivers do: systemd leaves groups that it does
not know alone, and cannot switch a controller off again that is in use two levels down, which is why there is a ``dockless`` level.

All groups are made below ``<place>/dockless``. Controllers are switched on in ``<place>`` and ``<place>/dockless`` as they are needed.
A group with processes of its own cannot pass controllers on (the no-internal-process rule), so in a scope that we made, and in a
delegated place where this process is the only one, the process first steps aside into ``dockless/_caller``. Nobody else is ever moved.

Documentation/admin-guide/cgroup-v2.rst, "Delegation"; systemd.io/CGROUP_DELEGATION.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from dockless.base.dataclass import dataclass, replace
from dockless.base.later import re
from dockless.base.path import Path
from dockless.base.typing import Literal
from dockless.errors import CgroupError, LimitUnavailable

Kind = Literal["root", "systemd", "subtree", "bare", "none"]

HOME = "dockless"
CALLER = "_caller"
#: Controllers switched on for every group, because usage() counts with them.
ACCOUNTED = frozenset(("cpu", "memory", "io", "pids"))
#: A place that has none of these is "bare".
CORE = ACCOUNTED | {"cpuset"}

_UNIFIED_HINT = "boot with systemd.unified_cgroup_hierarchy=1 (without systemd: cgroup_no_v1=all, and mount cgroup2 on /sys/fs/cgroup)"
_SCOPE_HINT = "start it in a place of its own: systemd-run --user --scope -p Delegate=yes dockless ..."
_DELEGATE_HINT = "as root: systemctl edit user@.service, add [Service] Delegate=cpu cpuset io memory pids; then log in again"


@dataclass(frozen=True, slots=True)
class Delegation:
    """A place for our groups. ``path`` is None where there is none.

    controllers: those our groups can have. available: those this host has under cgroup v2. elsewhere: those held by cgroup v1.
    """

    path: Path | None
    controllers: frozenset[str]
    available: frozenset[str]
    kind: Kind
    why: str
    elsewhere: frozenset[str] = frozenset()
    hint: str = ""

    @property
    def home(self) -> Path:
        """The directory of our groups. Raises ``CgroupError`` where there is no place."""
        if self.path is None:
            raise CgroupError(f"no place for control groups: {self.why}", hint=self.hint)
        return self.path / HOME

    def missing(self, controller: str, what: str = "") -> LimitUnavailable:
        """The error that explains why ``controller`` cannot be had here."""
        subject = what or controller
        if self.path is None:
            text, hint = self.why, self.hint
        elif controller in self.elsewhere:
            text, hint = f"this host has the {controller} controller in cgroup v1 only", _UNIFIED_HINT
        elif controller not in self.available:
            text, hint = f"this kernel offers no {controller} controller in cgroup v2", "see /proc/cgroups and the kernel's command line"
        elif controller not in _words(self.path / "cgroup.controllers"):
            text, hint = f"the {controller} controller is not delegated to {self.path}", _DELEGATE_HINT
        elif controller not in self.controllers:
            text, hint = f"other processes live in {self.path}, so it cannot pass on the {controller} controller", _SCOPE_HINT
        else:
            text, hint = f"the kernel did not switch the {controller} controller on below {self.path}", _DELEGATE_HINT
        return LimitUnavailable(f"{subject} cannot be limited: {text}", controller=controller, subject=subject, hint=hint)


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """A cgroup2 mount: where it is, and which group its root shows."""

    point: str
    root: str


_found: dict[tuple[int, int, bool], Delegation] = {}
_enabled: dict[tuple[int, str], tuple[frozenset[str], frozenset[str]]] = {}  # (asked for, got)


def find_delegation(*, fresh: bool = False, ask_systemd: bool = True) -> Delegation:
    """Find the place, once per process. Never raises: a host without one gets kind "none".

    ``ask_systemd=False`` only looks; otherwise a user without a place of her own has this process moved into a new delegated scope.
    """
    key = (os.getpid(), os.geteuid(), ask_systemd)
    known = None if fresh else _found.get(key)
    if known is None:
        known = _found[key] = _find(ask_systemd)
        if ask_systemd:
            _found[(*key[:2], False)] = known
    return known


def find_mounts(mountinfo: str) -> tuple[list[CgroupMount], frozenset[str]]:
    """The cgroup2 mounts, the nearest to a whole hierarchy first, and the controllers that cgroup v1 mounts hold. proc_pid_mountinfo(5)"""
    mounts: list[CgroupMount] = []
    elsewhere: set[str] = set()
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind = right.partition(" ")[0]
        if kind == "cgroup2":
            fields = left.split(" ")
            mounts.append(CgroupMount(_unescape(fields[4]), _unescape(fields[3])))
        elif kind == "cgroup":
            elsewhere.update(option for option in right.split(" ")[-1].split(",") if "=" not in option)
    mounts.sort(key=lambda mount: (mount.root != "/", not mount.point.startswith("/sys/fs/cgroup"), len(mount.point)))
    v1_only = {"blkio": "io"}
    return mounts, frozenset(v1_only.get(name, name) for name in elsewhere) - {"rw", "ro", "xattr", "clone_children", "noprefix"}


def enable(place: Delegation, wanted: Iterable[str]) -> frozenset[str]:
    """Make ``<place>/dockless`` and switch controllers on down to it; those that groups in it now have. Raises ``CgroupError``."""
    home = place.home
    key = (os.getpid(), str(home))
    known = _enabled.get(key)
    asked = (ACCOUNTED | set(wanted)) & place.controllers
    if known is not None and asked <= known[0]:
        return known[1]  # what was refused once is not asked for at every group
    try:
        home.mkdir(mode=0o755, exist_ok=True)
    except OSError as error:
        raise CgroupError(
            f"cannot make {home}: {error.strerror}", subject=str(home), hint="the cgroup2 mount must be writable for this user"
        ) from error
    assert place.path is not None
    needed = asked - _words(home / "cgroup.subtree_control")
    directories = [place.path, home]
    if needed - _words(place.path / "cgroup.subtree_control") and not _step_aside(place.path, home):
        directories = [home]  # pids and cpu would be accepted even so, and turn every group below into one that can hold nobody
    for directory in directories:
        switch_on(str(directory), needed)
    if "invalid" in _text(home / "cgroup.type"):
        raise CgroupError(
            f"groups below {place.path} can hold no processes: it is the root of a threaded subtree", subject=str(home), hint=_SCOPE_HINT
        )
    have = _words(home / "cgroup.subtree_control")
    _enabled[key] = (asked | known[0] if known else asked, have)
    return have


def switch_on(directory: str, controllers: frozenset[str]) -> frozenset[str]:
    """Have a group pass these controllers on: those that groups in it now have."""
    switch = Path(directory) / "cgroup.subtree_control"
    have = _words(switch)
    if controllers <= have:
        return have
    for controller in sorted(controllers - have):
        # One by one: a controller that cannot be had (cpu beside realtime tasks) must not take the others with it.
        _try_write(switch, f"+{controller}")
    return _words(switch)


def forget(place: Delegation) -> None:
    """Look again next time: somebody removed ``<place>/dockless``."""
    if place.path is not None:
        _enabled.pop((os.getpid(), str(place.home)), None)


def release(place: Delegation) -> bool:
    """Remove ``<place>/dockless`` if no group is left in it. Controllers stay on: others may have come to count on them."""
    if place.path is None:
        return False
    forget(place)
    try:
        place.home.rmdir()
    except OSError:
        return False
    return True


def _find(ask_systemd: bool) -> Delegation:
    mounts, elsewhere = find_mounts(_text("/proc/self/mountinfo"))
    if not mounts:
        why = "no cgroup2 file system is mounted"
        hint = "mount -t cgroup2 none /sys/fs/cgroup, or boot with systemd.unified_cgroup_hierarchy=1"
        return Delegation(None, frozenset(), frozenset(), "none", why, elsewhere, hint)
    mount = mounts[0]
    available = _words(Path(mount.point) / "cgroup.controllers")
    nowhere = Delegation(None, frozenset(), available, "none", "", elsewhere)
    if os.geteuid() == 0 and _is_root_group(mount.point) and _writable(mount.point):
        return _root(replace(nowhere, path=Path(mount.point), controllers=available))
    own = own_directory(mount, _text("/proc/self/cgroup"))
    chain = _own_chain(mount, own)
    found = _subtree(nowhere, chain)
    if found is not None:
        return found
    why = "this user may not make groups here" if not chain else "a systemd user manager looks after this process's group"
    if os.geteuid() != 0 and ask_systemd:
        from dockless.cgroups.systemd import request_scope

        problem = request_scope()
        if problem is None:
            own = own_directory(mount, _text("/proc/self/cgroup"))
            found = _subtree(nowhere, _own_chain(mount, own))
            if found is not None:
                return found
            problem = "the new scope is not writable"
        why = f"{why}, and {problem}"
    if chain:
        # Groups beside systemd's own, below this process's: kill and freeze work, controllers do not pass.
        return replace(_at(nowhere, chain[0]), why=why)
    hint = "log in through a session with a systemd user manager, or have root delegate a group (chown it, its cgroup.procs and "
    hint += "cgroup.subtree_control) and start this process in it"
    return replace(nowhere, why=why, hint=hint)


def _root(place: Delegation) -> Delegation:
    if place.available & CORE:
        lacking = place.elsewhere & CORE
        why = f"root of cgroup v2 ({', '.join(sorted(lacking))} held by cgroup v1)" if lacking else "root of cgroup v2"
        return replace(place, kind="root", why=why)
    why = "hybrid host: cgroup v1 holds the controllers; the bare cgroup2 mount gives kill, freeze, clone-into and the device filter"
    return replace(place, kind="bare", why=why, hint=_UNIFIED_HINT)


def _own_chain(mount: CgroupMount, own: str | None) -> list[str]:
    """Our own group and those above it, as long as they are writable for us."""
    chain: list[str] = []
    directory = own
    while directory is not None and _writable(directory):
        chain.append(directory)
        directory = os.path.dirname(directory) if directory != mount.point else None
    return chain


def _subtree(nowhere: Delegation, chain: list[str]) -> Delegation | None:
    """The delegated place in our own chain, or None where only a systemd user manager's own groups are."""
    for directory in chain:
        if re.fullmatch(r"dockless-[0-9a-f-]+\.scope", os.path.basename(directory)):
            return replace(_at(nowhere, directory), kind="systemd", why=f"delegated scope {os.path.basename(directory)}")
    for directory in chain:
        if _is_delegated(directory) and not os.path.basename(directory).startswith("user@"):
            return replace(_at(nowhere, directory), why="the caller's own delegated unit")
    if not chain or any(part.startswith("user@") for part in chain[0].split("/")):
        return None
    return replace(_at(nowhere, chain[-1]), why="the caller's own delegated subtree")


def _at(nowhere: Delegation, directory: str) -> Delegation:
    path = Path(directory)
    there = _words(path / "cgroup.controllers")
    if not _is_root_group(directory) and set(_text(path / "cgroup.procs").split()) - {str(os.getpid())}:
        there &= _words(path / "cgroup.subtree_control")
    return replace(nowhere, path=path, controllers=there, kind="subtree")


def own_directory(mount: CgroupMount, own: str) -> str | None:
    """The directory of a process's own group, from its /proc/PID/cgroup; None where the mount does not show it."""
    for line in own.splitlines():
        if line.startswith("0::"):
            path = line[3:].removesuffix(" (deleted)")
            inside = path if mount.root == "/" else path.removeprefix(mount.root) if (path + "/").startswith(mount.root + "/") else None
            if inside is None or inside.startswith("/.."):
                return None
            return mount.point if inside in ("", "/") else mount.point + inside
    return None


def _step_aside(path: Path, home: Path) -> bool:
    """May ``path`` pass controllers on? If this process is the only one in it, move it into ``dockless/_caller``, and it may."""
    if _is_root_group(str(path)):
        return True
    if _text(path / "cgroup.procs").split() == [str(os.getpid())]:
        leaf = home / CALLER
        try:
            leaf.mkdir(exist_ok=True)
        except OSError:
            return False
        _try_write(leaf / "cgroup.procs", "0")
    return not _text(path / "cgroup.procs").split()


def _is_root_group(directory: str) -> bool:
    # Every group but the real root has a type; in a cgroup namespace "/" is an ordinary group with ordinary rules.
    return not os.path.exists(directory + "/cgroup.type")


def _writable(directory: str) -> bool:
    return all(
        os.access(directory + name, os.W_OK, effective_ids=True) for name in ("", "/cgroup.procs", "/cgroup.subtree_control")
    )  # fmt: skip


def _is_delegated(directory: str) -> bool:
    """systemd marks the units it has delegated (since 251)."""
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(directory, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _try_write(path: Path, value: str) -> None:
    """What is refused shows in the file itself."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


def _text(path: str | Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _words(path: Path) -> frozenset[str]:
    return frozenset(_text(path).split())


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text) if "\\" in text else text
