"""The other networks of a sandbox: it asks the resolver of its first one alone, and finds the names of all. They are read when a name is
asked for that nobody on the first one has, and from then on as they change."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from dockless.base import records
from dockless.base.json import loads
from dockless.base.path import Path
from dockless.errors import BadInput
from dockless.sandbox.network import dns
from dockless.sandbox.network.model import Lease, Network
from dockless.sandbox.network.residents import Resident, Residents, Watches


class Elsewhere:
    """``running``: a descriptor of the directory in which each network has its leases; ``home``: where each has its record; ``own``: the
    network that is not meant. ``asking``, ``watches``: as of ``Residents``."""

    def __init__(self, running: int, home: Path, own: str, asking: socket.socket, watches: Watches) -> None:
        self._running, self._home, self._own, self._asking, self._watches = running, home, own, asking, watches
        self._read: dict[str, tuple[int, int, Residents]] = {}
        self._is_whole = False
        """Whether nothing was left out when the networks were looked for, and none has come or gone."""
        self._watch = watches.add(running, self._changed)

    def close(self) -> None:
        for name in [*self._read]:
            self._forget(name)
        self._watches.remove(self._watch)

    def named(self, name: dns.Name, asker: Resident) -> list[Resident]:
        """Who has a name on another network of the one who asks."""
        return next((found for known, one in self._of(asker) if (found := known.named(name, one))), [])

    def at(self, address: bytes, asker: Resident) -> Resident | None:
        """Whose address it is there, if that may be known and he lives."""
        for known, one in self._of(asker):
            found = known.at(address)
            if found is not None and known.is_visible(found, one) and known.lives(found):
                return found
        return None

    def leads_out(self, asker: Resident) -> bool:
        """Whether one of them does."""
        return any(not known.network.internal for known, _ in self._of(asker))

    def leases(self, asker: Resident) -> list[Lease]:
        """What the one who asks has there."""
        return [one.lease for _, one in self._of(asker)]

    def _of(self, asker: Resident) -> Iterator[tuple[Residents, Resident]]:
        if not self._is_whole:
            self._look()
        for _, _, known in [*self._read.values()]:
            one = known.of(asker.lease.inode)
            if one is not None and known.lives(one):  # its number may have been another's, who left a lease
                yield known, one

    def _changed(self, name: str) -> None:
        self._is_whole = False

    def _look(self) -> None:
        self._is_whole = True
        found = {}
        for name in os.listdir(self._running):
            if name != self._own and not name.startswith("."):
                try:
                    found[name] = os.stat(f"{name}/leases", dir_fd=self._running).st_ino
                except OSError:
                    self._is_whole = False
        for name in [*self._read]:
            if self._read[name][0] != found.get(name):
                self._forget(name)
        for name in found.keys() - self._read.keys():
            self._add(name)

    def _add(self, name: str) -> None:
        """Where it is just being made or removed it is looked for again."""
        with contextlib.ExitStack() as failed:
            try:
                network = records.read(Network, loads((self._home / name / "network.json").read_bytes()), "network")
                leases = os.open(f"{name}/leases", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._running)
                failed.callback(os.close, leases)
                residents = Residents(network, leases, self._asking, self._watches)
                self._read[name] = (os.fstat(leases).st_ino, leases, residents)
            except (BadInput, OSError, ValueError, RecursionError):
                self._is_whole = False
                return
            failed.pop_all()

    def _forget(self, name: str) -> None:
        _, leases, residents = self._read.pop(name)
        residents.close()
        os.close(leases)
