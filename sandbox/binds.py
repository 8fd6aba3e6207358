"""Whose rights the sandbox's root has over a host path that root binds in. docs/decisions/006

::

    everybody may do what is asked      nothing is mapped: the kernel's answer is enough
    it belongs to a user, read-only     the sandbox's root acts there as that user and her own group, if nobody but she and root can change
                                        which directory the path leads to; no other id of the sandbox is mapped
    it belongs to a user, writable      the same, if besides nobody else can reach it: what is made there may be a set-user-id program of
                                        that user's
    it belongs to root, read-only       the sandbox's root acts there as root, if nobody else can change which directory the path leads to
    it belongs to root, writable        the same, if besides nobody else can reach it: what is made there may be a set-user-id program of
                                        the host's root
    anything else, profile untrusted    nothing is mapped, and a warning says so

What is mounted below it is not mapped. mount_setattr(2), MOUNT_ATTR_IDMAP
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from dockless.base.dataclass import dataclass
from dockless.base.idmaps import IdMap, Range, default_map
from dockless.native.userns import namespace_fd
from dockless.sandbox.features import accepts_idmap, probe
from dockless.sandbox.spec import Mount, Spec


@dataclass(frozen=True, slots=True)
class Grant:
    """``idmap``: what the owners on disk are mapped by, if they are. ``warning``: what the sandbox's root cannot do, and what helps."""

    idmap: IdMap | None = None
    warning: str = ""


_NOTHING = Grant()


def grants(spec: Spec, owner: int | None) -> tuple[Grant, ...]:
    """What each of ``spec.mounts`` gets; empty where nothing can be mapped: for another user, and without a user namespace of its own."""
    if owner or not spec.mounts or os.geteuid() or spec.namespaces.user == "host" or spec.profile == "privileged" or not probe().sys_admin:
        return ()
    idmap = default_map()
    return tuple(grant(mount, idmap, untrusted=spec.profile == "untrusted") for mount in spec.mounts)


def grant(mount: Mount, idmap: IdMap, *, untrusted: bool) -> Grant:
    """What one of root's own gets. ``idmap``: the sandbox's map."""
    if mount.kind != "bind" or mount.idmap is not None:
        return _NOTHING
    try:
        found = os.stat(mount.source)
    except OSError:
        return _NOTHING  # the start says it
    inside = any(r.outside <= found.st_uid < r.outside + r.count for r in idmap.uids)
    if inside or _everybody_may(found.st_mode, mount.readonly):
        return _NOTHING
    if untrusted:
        return Grant(warning=_warning(mount, found, "the untrusted profile gives no rights over it"))
    if not accepts_idmap(mount.source, namespace_fd(idmap)):
        return Grant(warning=_warning(mount, found, "its file system cannot map owners"))
    owner = _person(found.st_uid)
    if owner is None:
        return Grant(warning=_warning(mount, found, "its owner is no user of this host", helps=True))
    if not _theirs(mount.source, owner):
        return Grant(warning=_warning(mount, found, "others may decide what lies at this path", helps=True))
    if not mount.readonly and not _closed(mount.source, owner):
        why = "no directory above it keeps others out, to whom the sandbox could open it, with a set-user-id program of its owner's in it"
        return Grant(warning=_warning(mount, found, why, helps=True, closed=False))
    return Grant(_only(owner, idmap) if owner.uid else idmap)


def _everybody_may(mode: int, readonly: bool) -> bool:
    wanted = 0o4 | (0o1 if stat.S_ISDIR(mode) else 0) | (0 if readonly else 0o2)
    return mode & wanted == wanted


@dataclass(frozen=True, slots=True)
class _Person:
    """An account of the host and its own group."""

    uid: int
    gid: int
    name: str

    def is_alone(self) -> bool:
        """Whether nobody else is in that group. It looks through all accounts: asked only where a directory's group could do something."""
        import grp
        import pwd

        try:
            members = grp.getgrgid(self.gid).gr_mem
        except KeyError:
            members = []
        return set(members) <= {self.name} and all(other.pw_gid != self.gid or other.pw_uid == self.uid for other in pwd.getpwall())


def _person(uid: int) -> _Person | None:
    import pwd

    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return None
    return _Person(uid, entry.pw_gid, entry.pw_name)


def _only(owner: _Person, idmap: IdMap) -> IdMap:
    """The owner is the sandbox's root, with her own group, not the directory's, which she need not be in; no other id is there."""
    uid, gid = idmap.root()
    return IdMap((Range(owner.uid, uid, 1),), (Range(owner.gid, gid, 1),))


def _above(path: str) -> Iterator[os.stat_result]:
    while path != "/":
        path = os.path.dirname(path)
        yield os.lstat(path)


def _theirs(path: str, owner: _Person) -> bool:
    """Whether only its owner and root can put something else at this path: no link on the way, no directory that others may write."""
    path = os.path.normpath(path)

    def safe(above: os.stat_result) -> bool:
        forbidden = 0o022 & ~_own_bits(above, owner)
        return above.st_uid in (0, owner.uid) and (not above.st_mode & forbidden or bool(above.st_mode & stat.S_ISVTX))

    return os.path.realpath(path) == path and all(map(safe, _above(path)))


def _closed(path: str, owner: _Person) -> bool:
    """Whether a directory above it lets nobody but its owner and root through. Its own mode does not count: the sandbox may change that."""
    return any(
        above.st_uid in (0, owner.uid) and not above.st_mode & 0o011 & ~_own_bits(above, owner) for above in _above(os.path.normpath(path))
    )


def _own_bits(above: os.stat_result, owner: _Person) -> int:
    """The bits of a directory's group where nobody else is in that group."""
    return 0o070 if above.st_mode & 0o030 and above.st_gid == owner.gid and owner.is_alone() else 0


def _warning(mount: Mount, found: os.stat_result, why: str, *, helps: bool = False, closed: bool = True) -> str:
    """``helps``: ``:idmap`` does. ``closed``: False where that is all that is missing, so that it could be read, and changed elsewhere."""
    readable = _everybody_may(found.st_mode, readonly=True)
    cannot = "changed" if readable else "read" if mount.readonly else "read or changed"
    ways = [f"{mount.source}:{mount.target}:idmap gives the sandbox root's rights over it"] if helps else []
    ways += [] if closed else ["so does lying in a directory that only its owner can enter (mode 0700)"]
    ways += [f"{mount.source}:{mount.target}:ro lets it be read"] if not closed and not readable else []
    ways += [f"{mount.source}:{mount.target}:ro says that it is to be read only"] if readable else []
    ways += ["a named volume belongs to the sandbox"]
    return f"{mount.source} belongs to {found.st_uid}:{found.st_gid} and cannot be {cannot} inside: {why}; {', '.join(ways)}"
