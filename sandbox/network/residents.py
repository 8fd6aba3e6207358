"""Who is on a network, by name and by address: its leases, read again when the kernel says that one of their files has changed. inotify(7)

Whoever takes a lease has written it before the sandbox can ask anything, so that nothing older is answered.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from dockless.base import locks, records
from dockless.base.json import loads
from dockless.base.path import Path
from dockless.errors import BadInput
from dockless.native import inotify
from dockless.sandbox.network import dns, name_rules
from dockless.sandbox.network.host import index_of
from dockless.sandbox.network.model import Lease, Network

_EVENTS = inotify.MODIFIED | inotify.CREATED | inotify.DELETED | inotify.MOVED_FROM | inotify.MOVED_TO
_MOST = 1 << 20
"""Bytes of a lease that is read."""


class Resident:
    """One lease: ``file``: its name; ``rules``: what it lets the sandbox ask for; ``addresses``: of 4 bytes and of 16."""

    __slots__ = ("addresses", "file", "lease", "names", "rules")

    def __init__(self, file: str, lease: Lease) -> None:
        self.file, self.lease = file, lease
        self.names = [name for name in map(dns.name_of, lease.names) if name is not None]
        self.rules = name_rules.rules_of(lease.egress)
        self.addresses = tuple(map(packed, lease.addresses))


class Watches:
    """All directories that this process looks at, with one queue of events: a user has 128 (sysctl fs.inotify.max_user_instances)."""

    def __init__(self) -> None:
        self._events = inotify.Inotify()
        self._told: dict[int, Callable[[str], None]] = {}

    def fileno(self) -> int:
        """Readable when something has changed; ``refresh`` then."""
        return self._events.fileno()

    def close(self) -> None:
        self._events.close()

    def add(self, directory: int, told: Callable[[str], None]) -> int:
        """``told`` is called with each name that changes there, and with none where nobody knows which. ``OSError``"""
        watch = self._events.add(f"/proc/self/fd/{directory}", _EVENTS)
        self._told[watch] = told
        return watch

    def remove(self, watch: int) -> None:
        self._told.pop(watch, None)
        self._events.remove(watch)

    def refresh(self) -> None:
        """Tell of all that has changed, also where it is more than the kernel tells at once."""
        while happened := [*self._events.read()]:
            if any(one.mask & inotify.OVERFLOW for one in happened):
                for told in [*self._told.values()]:
                    told("")
            for watch, name in dict.fromkeys((one.watch, one.name) for one in happened if one.name):
                if watch in self._told:
                    self._told[watch](name)


class Residents:
    """``directory``: a descriptor of that of the leases. ``asking``: a socket of the network namespace that has their links. All three stay
    the caller's."""

    def __init__(self, network: Network, directory: int, asking: socket.socket, watches: Watches) -> None:
        self.network, self._directory, self._asking, self._watches = network, directory, asking, watches
        self._suffix = dns.name_of(network.name) or ()
        self._files: dict[str, Resident] = {}
        self._by_address: dict[bytes, Resident] = {}
        self._by_name: dict[dns.Name, list[Resident]] = {}
        self._by_sandbox: dict[int, Resident] = {}
        self._turn = 0
        self._watch = watches.add(directory, self._changed)
        self._changed("")

    def close(self) -> None:
        self._watches.remove(self._watch)

    def at(self, address: bytes) -> Resident | None:
        """Whose address it is."""
        return self._by_address.get(address)

    def of(self, sandbox: int) -> Resident | None:
        """What the sandbox has whose directory has that number."""
        return self._by_sandbox.get(sandbox)

    def named(self, name: dns.Name, asker: Resident) -> list[Resident]:
        """Those that live and have a name, each time beginning with another one. Who cannot reach the others finds itself alone."""
        found = self._by_name.get(name)
        if found is None and self._suffix and len(name) > len(self._suffix) and name[-len(self._suffix) :] == self._suffix:
            found = self._by_name.get(name[: -len(self._suffix)])
        if not found:
            return []
        living = [one for one in found if self.is_visible(one, asker) and self.lives(one)]
        if len(living) < 2:
            return living
        self._turn += 1
        first = self._turn % len(living)
        return living[first:] + living[:first]

    def is_visible(self, one: Resident, asker: Resident) -> bool:
        return (self.network.named and not self.network.isolated) or one.lease.inode == asker.lease.inode

    def lives(self, one: Resident) -> bool:
        """As ``leases.alive``: its link is there, or its sandbox is being made."""
        return bool(index_of(self._asking, one.lease.link)) or locks.is_locked(Path(f"/proc/self/fd/{self._directory}/{one.file}"))

    def anybody(self) -> bool:
        return any(map(self.lives, self._files.values()))

    def _changed(self, file: str) -> None:
        for each in (file,) if file else {*self._files, *os.listdir(self._directory)}:
            self._read(each)

    def _read(self, file: str) -> None:
        old = self._files.pop(file, None)
        if old is not None:
            for address in old.addresses:
                if self._by_address.get(address) is old:
                    del self._by_address[address]
            if self._by_sandbox.get(old.lease.inode) is old:
                del self._by_sandbox[old.lease.inode]
            for name in old.names:
                left = [one for one in self._by_name.get(name, ()) if one is not old]
                if left:
                    self._by_name[name] = left
                else:
                    self._by_name.pop(name, None)
        new = self._parsed(file)
        if new is None:
            return
        self._files[file] = self._by_sandbox[new.lease.inode] = new
        for address in new.addresses:
            self._by_address[address] = new
        for name in new.names:
            self._by_name.setdefault(name, []).append(new)

    def _parsed(self, file: str) -> Resident | None:
        """None where it is gone, or just being written: another event follows."""
        try:
            fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._directory)
        except OSError:
            return None
        try:
            return Resident(file, records.read(Lease, loads(os.pread(fd, _MOST, 0)), "lease"))
        except (BadInput, OSError, ValueError, RecursionError):
            return None
        finally:
            os.close(fd)


def packed(address: str) -> bytes:
    """Of 4 bytes or 16."""
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
