"""The name server of a network in a thread of the test, so that what it does with the firewall can be seen."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.dns_peers import A, Place, Said, Upstream, place

from dockless.errors import NetworkError
from dockless.sandbox.network import name_server
from dockless.sandbox.network.elsewhere import Elsewhere
from dockless.sandbox.network.model import Egress, Lease, Rule
from dockless.sandbox.network.name_server import NameServer
from dockless.sandbox.network.residents import Residents, Watches
from dockless.sandbox.network.upstreams import NameServers

ONE, OTHER, THIRD = "10.77.0.5", "10.77.0.6", "10.77.0.7"
SIX = "fd77::5"
PUBLIC = "203.0.113.9"


@dataclass
class Served:
    """What a server in a thread was asked to do. ``refuses``: the firewall takes nothing."""

    place: Place
    upstream: Upstream
    allowed: list[tuple[str, list[str], int]] = field(default_factory=list)
    ruled: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    refuses: bool = False

    def allow(self, lease: Lease, rules: Sequence[Rule], addresses: Sequence[str], seconds: int) -> None:
        if self.refuses:
            raise NetworkError("no such table", subject="table", hint="")
        self.ruled += [rule.to for rule in rules]
        self.allowed.append((lease.addresses[0], list(addresses), seconds))

    def ask(self, name: str, kind: int = A, source: str = ONE, **more: int) -> Said:
        return self.place.ask(source, name, kind, **more)


@contextlib.contextmanager
def serving(directory: Path, *, servers: Callable[[int], str] = lambda port: "nameserver 127.0.0.1\n", **more: bool) -> Iterator[Served]:
    """A server in a thread, with a name server of the host that the test writes. It ends as soon as nobody lives."""
    upstream = Upstream()
    with upstream.running(), place(directory / "web", ONE, OTHER, THIRD, SIX, **more) as made:
        known = Served(made, upstream)
        made.lease(ONE, "one", six=SIX)
        (directory / "resolv.conf").write_text(servers(upstream.port))
        asking = made.host.open(socket.AF_INET, socket.SOCK_DGRAM)
        leases = os.open(made.directory / "leases", os.O_RDONLY)
        watches = Watches()
        residents = Residents(made.network, leases, asking, watches)
        resolv = NameServers(str(directory / "resolv.conf"), upstream.port)
        running = os.open(directory, os.O_RDONLY)
        elsewhere = Elsewhere(running, directory / "home", "web", asking, watches)
        server = NameServer(made.network, residents, elsewhere, watches, resolv, allow=known.allow, say=known.lines.append)
        with contextlib.ExitStack() as opened:
            patched = opened.enter_context(pytest.MonkeyPatch.context())
            for name, seconds in (("LINGER", 0.1), ("_LIFE", 0.05), ("_TICK", 0.02)):
                patched.setattr(name_server, name, seconds)
            for gateway in made.network.gateways:
                family = socket.AF_INET6 if ":" in gateway else socket.AF_INET
                pair = [opened.enter_context(made.host.open(family, kind)) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)]
                for each in pair:
                    each.bind((gateway, 53))
                pair[1].listen()
                server.add(*pair)
            thread = threading.Thread(target=server.run, daemon=True)
            thread.start()
            try:
                yield known
            finally:
                for file in (made.directory / "leases").iterdir():
                    file.unlink()
                thread.join(20)
                assert not thread.is_alive()
                server.close()
                residents.close()
                elsewhere.close()
                watches.close()
                os.close(running)
                os.close(leases)
                asking.close()
        assert not [line for line in known.lines if "Error" in line and "no such table" not in line]


def only(*to: str, log: bool = False) -> Egress:
    return Egress(allow=tuple(map(Rule, to)), log=log)
