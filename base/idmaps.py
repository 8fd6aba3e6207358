"""Which ids a sandbox has, and which ids of the host they are. user_namespaces(7), subuid(5)

Who asks decides the map::

    root                 0…65535 → one fixed range high above all users (or the subuid ranges of a user called "dockless")
    root for user U      0 → U, 1… → U's subuid ranges            (the daemon's jobs; root writes the map itself)
    an ordinary user     0 → herself, 1… → her subuid ranges      (by newuidmap and newgidmap)
                         0 → herself, nothing else                where there are no ranges or no newuidmap: ``single``

The namespaces that have such a map: ``native/userns.py``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from dockless.base.dataclass import dataclass
from dockless.errors import BadInput, IdMapError

ROOT_BASE = 0x6FFF0000
"""First host id of root's sandboxes: the last 65536 ids of the range that systemd sets aside for containers."""

ROOT_COUNT = 65536
SUBUID, SUBGID = "/etc/subuid", "/etc/subgid"
MAX_EXTENTS = 340
"""Lines that /proc/PID/uid_map takes (Linux 4.15)."""

_MAX_ID = 2**32 - 2
_MAX_FILE = 16 << 20
_TOOL_PLACES = ("/usr/bin", "/bin", "/run/wrappers/bin")  # not /usr/local/bin: a group may write there


@dataclass(frozen=True, slots=True)
class Range:
    """``count`` ids, from ``inside`` in the sandbox, from ``outside`` on the host: one line of a uid_map."""

    inside: int
    outside: int
    count: int


@dataclass(frozen=True, slots=True)
class IdMap:
    """A user namespace's two maps. ``single``: one uid and one gid only, so setgroups(2) is denied when a user writes it."""

    uids: tuple[Range, ...]
    gids: tuple[Range, ...]
    single: bool = False

    def maps_uid(self, uid: int) -> bool:
        return self.outside_uid(uid) is not None

    def maps_gid(self, gid: int) -> bool:
        return self.outside_gid(gid) is not None

    def outside_uid(self, uid: int) -> int | None:
        """The host's number for a uid of the sandbox; None if it has none."""
        return _outside(self.uids, uid)

    def outside_gid(self, gid: int) -> int | None:
        return _outside(self.gids, gid)

    def root(self) -> tuple[int, int]:
        """The host's numbers for the sandbox's root and its group, which every sandbox's map has."""
        uid, gid = self.outside_uid(0), self.outside_gid(0)
        assert uid is not None and gid is not None
        return uid, gid

    def inside_gid(self, gid: int) -> int | None:
        """The sandbox's number for a gid of the host; None if it has none."""
        return next((r.inside + gid - r.outside for r in self.gids if r.outside <= gid < r.outside + r.count), None)

    def with_groups(self, gids: Iterable[int]) -> IdMap:
        """And these groups of the host: each that it does not have yet at a number behind all others."""
        first = max(r.inside + r.count for r in self.gids)
        missing = [gid for gid in gids if self.inside_gid(gid) is None]
        return IdMap(self.uids, (*self.gids, *(Range(first + n, gid, 1) for n, gid in enumerate(missing))), self.single)

    def uid_text(self) -> str:
        """As written to /proc/PID/uid_map."""
        return _text(self.uids)

    def gid_text(self) -> str:
        return _text(self.gids)

    def require(self, uid: int, gid: int, groups: Iterable[int] = ()) -> None:
        """``IdMapError``, with the way to a larger map, if one of these ids does not exist in the sandbox."""
        for what, number, mapped in (("user", uid, self.maps_uid(uid)), *(("group", g, self.maps_gid(g)) for g in (gid, *groups))):
            if not mapped:
                size = sum(r.count for r in (self.uids if what == "user" else self.gids))
                raise IdMapError(
                    f"{what} id {number} does not exist in this sandbox: its map has {size} {'id' if size == 1 else 'ids'}",
                    subject=str(number),
                    hint=self._how_to_grow(),
                )

    def _how_to_grow(self) -> str:
        uid = self.outside_uid(0)
        if os.geteuid() == 0 and uid == ROOT_BASE:
            return f"give the user 'dockless' a larger range in {SUBUID} and {SUBGID}"
        return range_problem(uid if uid is not None else os.geteuid()) or f"add a larger range to {SUBUID} and {SUBGID}"


NOBODY = IdMap((Range(_MAX_ID, 0, 1),), (Range(_MAX_ID, 0, 1),))
"""A map with an id that no file has. Where it maps the owners of a mount, every file belongs to nobody: only what everybody may do is
allowed, also to root. mount_setattr(2), MOUNT_ATTR_IDMAP"""


def default_map(uid: int | None = None) -> IdMap:
    """The map of the caller's sandboxes, or (root only) of another user's; see the table above.

    Where the caller is in a user namespace herself, only ids that exist there are used. Errors: ``IdMapError``.
    """
    caller = os.geteuid()
    if uid is None or uid == caller:
        return _root_map() if caller == 0 else _user_map(caller, direct=False)
    if caller != 0:
        raise IdMapError(f"only root can start a sandbox for user {uid}", subject=str(uid), hint="run it as that user, or as root")
    if not 0 < uid <= _MAX_ID:
        raise BadInput(f"user id {uid} cannot be mapped", subject=str(uid))
    return _user_map(uid, direct=True)


def range_problem(uid: int) -> str | None:
    """What keeps user ``uid`` from having more than one id in her sandboxes, as the next thing to do; None if nothing does."""
    name = user_name(uid)
    for path in (SUBUID, SUBGID):
        if not subordinate_ranges(path, name, uid):
            start = _free_start()
            last = start + ROOT_COUNT - 1
            user = name or str(uid)
            return f"{user} has no range in {path}; as root: usermod --add-subuids {start}-{last} --add-subgids {start}-{last} {user}"
    if uid != 0 and os.geteuid() != 0:
        for tool in ("newuidmap", "newgidmap"):
            if find_tool(tool) is None:
                return f"{tool} is not installed or not set-user-id root; install it: apt install uidmap (Fedora: shadow-utils)"
    return None


def subordinate_ranges(path: str, name: str | None, uid: int) -> list[tuple[int, int]]:
    """(first id, count) of each line for this user, by name or number, in the file's order; overlaps and malformed lines left out."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE)
    except OSError:
        return []
    return parse_subordinate(data, name, uid)


def parse_subordinate(data: bytes, name: str | None, uid: int) -> list[tuple[int, int]]:
    """``subordinate_ranges`` on the bytes of such a file."""
    owners = {str(uid).encode()} | ({name.encode("utf-8", "surrogateescape")} if name else set())
    found: list[tuple[int, int]] = []
    for line in data.split(b"\n"):
        fields = line.strip().split(b":")
        if len(fields) != 3 or fields[0] not in owners:
            continue
        start, count = _number(fields[1]), _number(fields[2])
        if start is None or not count or start + count - 1 > _MAX_ID:
            continue
        if all(start + count <= other or start >= other + size for other, size in found):
            found.append((start, count))
    return found


def subordinate_owner(uid: int) -> int | None:
    """The user whose sandboxes have this id: the first to whom /etc/subuid gives it, root for those of root's sandboxes. None: nobody."""
    if ROOT_BASE <= uid < ROOT_BASE + ROOT_COUNT:
        return 0
    try:
        with open(SUBUID, "rb") as file:
            lines = file.read(_MAX_FILE).split(b"\n")
    except OSError:
        return None
    for line in lines:
        fields = line.strip().split(b":")
        if len(fields) == 3 and (start := _number(fields[1])) is not None and start <= uid < start + (_number(fields[2]) or 0):
            return _account(os.fsdecode(fields[0]))
    return None


def _account(name: str) -> int | None:
    """The user id of a line of /etc/subuid."""
    import pwd

    if name == "dockless":  # see _root_map
        return 0
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return _number(name.encode())


def _number(field: bytes) -> int | None:
    return int(field) if field.isdigit() and len(field) <= 10 else None


def _free_start() -> int:
    """A first id that no line of either file reaches, for the line we advise."""
    end = 100000
    for path in (SUBUID, SUBGID):
        try:
            with open(path, "rb") as file:
                lines = file.read(_MAX_FILE).split(b"\n")
        except OSError:
            continue
        for line in lines:
            fields = line.strip().split(b":")
            if len(fields) == 3:
                end = max(end, (_number(fields[1]) or 0) + (_number(fields[2]) or 0))
    return end if end + ROOT_COUNT < ROOT_BASE else 100000


def user_name(uid: int) -> str | None:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _primary_gid(uid: int) -> int:
    """The gid newgidmap lets this user map: the one in passwd."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        if uid == os.geteuid():
            return os.getegid()
        raise IdMapError(f"no user has the id {uid} on this host", subject=str(uid), hint="getent passwd lists the users") from None


def _root_map() -> IdMap:
    own_uids, own_gids = _own_map("uid"), _own_map("gid")
    named = subordinate_ranges(SUBUID, "dockless", -1), subordinate_ranges(SUBGID, "dockless", -1)
    candidates = [named] if all(named) else []
    candidates.append(([(ROOT_BASE, ROOT_COUNT)], [(ROOT_BASE, ROOT_COUNT)]))
    for uids, gids in candidates:
        usable_uids, usable_gids = _intersect(uids, own_uids), _intersect(gids, own_gids)
        if usable_uids == uids and usable_gids == gids:
            return IdMap(_lay_out(uids), _lay_out(gids))
    # Root of a user namespace that has other ids: take the top of what it has, and leave it its own 0.
    uids, gids = _top(own_uids), _top(own_gids)
    if uids and gids:
        return IdMap(_lay_out(uids), _lay_out(gids))
    return IdMap((Range(0, 0, 1),), (Range(0, 0, 1),), single=True)


def _user_map(uid: int, *, direct: bool) -> IdMap:
    """``direct``: root will write it, so no tools are needed."""
    gid = _primary_gid(uid)
    uids = _without(_intersect(subordinate_ranges(SUBUID, user_name(uid), uid), _own_map("uid")), uid)
    gids = _without(_intersect(subordinate_ranges(SUBGID, user_name(uid), uid), _own_map("gid")), gid)
    if uids and gids and (direct or (find_tool("newuidmap") and find_tool("newgidmap"))):
        return IdMap(_lay_out([(uid, 1), *uids]), _lay_out([(gid, 1), *gids]))
    own = gid if direct else os.getegid()
    return IdMap((Range(0, uid, 1),), (Range(0, own, 1),), single=True)


def _lay_out(pieces: list[tuple[int, int]]) -> tuple[Range, ...]:
    """Host ranges one after the other from inside id 0; never more lines or ids than the kernel takes."""
    laid = []
    inside = 0
    for start, count in pieces[:MAX_EXTENTS]:
        size = min(count, _MAX_ID + 1 - inside)
        if size > 0:
            laid.append(Range(inside, start, size))
            inside += size
    return tuple(laid)


def _own_map(kind: str) -> list[tuple[int, int]]:
    """(first id, count) of the ids that exist in our own user namespace."""
    try:
        with open(f"/proc/self/{kind}_map") as file:
            lines = [line.split() for line in file]
    except OSError:
        return [(0, _MAX_ID + 1)]
    return sorted((int(inside), int(count)) for inside, _, count in lines)


def _intersect(pieces: list[tuple[int, int]], own: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found = []
    for start, count in pieces:
        for first, size in own:
            low, high = max(start, first), min(start + count, first + size)
            if low < high:
                found.append((low, high - low))
    return _join(found)


def _join(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces that continue one another become one, so that a range cut by the lines of our own map is whole again."""
    joined: list[tuple[int, int]] = []
    for start, count in pieces:
        if joined and sum(joined[-1]) == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + count)
        else:
            joined.append((start, count))
    return joined


def _without(pieces: list[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    """The pieces less one id: an outside id can be in a map only once."""
    found = []
    for start, count in pieces:
        if start <= number < start + count:
            found += [(start, number - start), (number + 1, start + count - number - 1)]
        else:
            found.append((start, count))
    return [piece for piece in found if piece[1]]


def _top(own: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Up to 65536 ids from the upper end, 0 left out."""
    found: list[tuple[int, int]] = []
    missing = ROOT_COUNT
    for start, count in reversed(_without(own, 0)):
        size = min(count, missing)
        found.append((start + count - size, size))
        missing -= size
        if not missing:
            break
    return _join(sorted(found))


def _outside(ranges: tuple[Range, ...], number: int) -> int | None:
    for r in ranges:
        if r.inside <= number < r.inside + r.count:
            return r.outside + number - r.inside
    return None


def _text(ranges: tuple[Range, ...]) -> str:
    return "".join(f"{r.inside} {r.outside} {r.count}\n" for r in ranges)


def find_tool(name: str) -> str | None:
    """newuidmap or newgidmap: in a fixed place, root's, writable by root only, and with the right to write maps. Else None."""
    return next((path for path, mode in _in_fixed_places(name) if mode & stat.S_ISUID or _has_file_capability(path)), None)


def find_program(name: str) -> str | None:
    """A program that needs no rights of its own: in a fixed place, root's, writable by root only. Else None."""
    return next((path for path, _ in _in_fixed_places(name)), None)


def _in_fixed_places(name: str) -> Iterator[tuple[str, int]]:
    """Paths and modes of those that belong to root and that root alone can write to."""
    for place in _TOOL_PLACES:
        path = f"{place}/{name}"
        try:
            found = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield path, found.st_mode


def _has_file_capability(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False
