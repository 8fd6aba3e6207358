"""Who asks: what the kernel says about the other end of the socket, and what follows from it.

Only SO_PEERCRED counts (unix(7)): the ids of the process at the moment it connected. Groups come from the system's own list for that user
(getgrouplist(3)) or from the settings, never from the caller.
"""

from __future__ import annotations

import grp
import os
import pwd
import socket
import struct
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from dockless.base.dataclass import dataclass, replace
from dockless.base.idmaps import subordinate_owner
from dockless.errors import NotPermitted
from dockless.sched.config import Config

_REMEMBER = 60.0
"""Seconds for which a user's groups are kept: looking them up may ask a directory server."""


@dataclass(frozen=True, slots=True)
class Caller:
    """``admin``: may do everything: root, the daemon's own user, who is named in ``host.admins`` and the members of ``host.admin_groups``.
    ``account``: she is in the system's list of users."""

    uid: int
    user: str
    groups: frozenset[str]
    admin: bool
    account: bool = True

    @property
    def root(self) -> bool:
        return self.uid == 0

    def may_manage(self, uid: int) -> bool:
        """Whether she may see all of that user's jobs, and end them."""
        return self.uid == uid or self.admin

    def may_enter(self, uid: int) -> bool:
        """Whether she may run what she likes in that user's jobs: what enters has their owner's rights, which an administrator who is not
        root has not."""
        return self.uid == uid or self.root


class Callers:
    """Turns connected sockets into callers."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._owner = os.geteuid()
        self._known: dict[int, tuple[float, str, Mapping[str, int], bool]] = {}
        with open("/proc/sys/kernel/overflowuid") as file:
            self._overflow = int(file.read())

    def peer_uid(self, connection: socket.socket) -> int:
        """The user id at the other end."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", raw)[1])

    def caller(self, uid: int) -> Caller:
        """Raises NotPermitted for those this daemon does not serve."""
        if self._owner != 0 and uid not in (0, self._owner):
            raise NotPermitted(
                "this daemon serves one user, and it is not you", subject=f"uid {uid}", hint="start your own with `dockless daemon`"
            )
        if uid == self._overflow and uid != self._owner:
            # All ids that a foreign user namespace does not map look like this one: nobody in particular.
            raise NotPermitted(f"uid {uid} stands for ids that are not mapped here", subject=f"uid {uid}", hint="call from the host itself")
        user, groups, account = self._look_up(uid)
        if not account and uid not in (0, self._owner):
            # Each user has thousands of subordinate ids, subuid(5): limits that hold for each id would not hold for her.
            raise NotPermitted(f"uid {uid} has no account on this host", subject=f"uid {uid}", hint="see `getent passwd`")
        found = Caller(uid, user, frozenset(groups), uid in (0, self._owner) or user in self.config.admins, account)
        return replace(found, admin=found.admin or any(self.member(found, group) for group in self.config.admin_groups))

    def groups(self, uid: int) -> Mapping[str, int]:
        """The groups of the host that ``caller(uid)`` is in, with their numbers, 0 for one without a name. ``NotPermitted``"""
        self.caller(uid)
        return self._look_up(uid)[1]

    def quota_groups(self, caller: Caller) -> tuple[str, ...]:
        """The groups with a quota that the caller is in: her jobs count against all of them, whichever she names."""
        return tuple(name for name in self.config.quotas.groups if self.member(caller, name))

    def quota_of(self, uid: int) -> tuple[str, tuple[str, ...]]:
        """The name of a user, who need not be one that this daemon serves, and the groups with a quota that she is in."""
        user, groups, account = self._whose(uid)
        return user, self.quota_groups(Caller(uid, user, frozenset(groups), False, account))

    def owner(self, uid: int) -> int:
        """Whose user id this is: a user's, where it is one of those that her sandboxes have, else the same."""
        owner = None if self._look_up(uid)[2] else subordinate_owner(uid)
        return uid if owner is None else owner

    def members(self, groups: Collection[str], uids: Iterable[int]) -> frozenset[str]:
        """Who is in one of the groups now: all that the settings list, and of the system's groups those with one of these ids, who need not
        be users that this daemon serves."""
        found = frozenset(name for group in groups for name in self.config.groups.get(group, ()))
        system = frozenset(groups).difference(self.config.groups)
        return found.union(user for user, of, _ in map(self._whose, uids) if not system.isdisjoint(of)) if system else found

    def _whose(self, uid: int) -> tuple[str, Mapping[str, int], bool]:
        """Those of the user to whom this id belongs."""
        return self._look_up(self.owner(uid))

    def member(self, caller: Caller, group: str) -> bool:
        listed = self.config.groups.get(group)
        return caller.user in listed if listed is not None else group in caller.groups

    def _look_up(self, uid: int) -> tuple[str, Mapping[str, int], bool]:
        now = time.monotonic()
        known = self._known.get(uid)
        if known is not None and now - known[0] < _REMEMBER:
            return known[1:]
        groups: dict[str, int] = {}
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            user, account = f"uid-{uid}", False
        else:
            user, account = entry.pw_name, True
            groups.update(map(_named, os.getgrouplist(user, entry.pw_gid)))
        if len(self._known) > 10_000:
            self._known.clear()
        self._known[uid] = (now, user, groups, account)
        return user, groups, account


def default_group(groups: Sequence[str]) -> str:
    """The group that a job or a lease without a label counts for in reports of use. ``groups``: those with a quota that its user is in; of
    several none is chosen."""
    return groups[0] if len(groups) == 1 else ""


def _named(gid: int) -> tuple[str, int]:
    try:
        return grp.getgrgid(gid).gr_name, gid
    except KeyError:
        return f"gid-{gid}", 0
