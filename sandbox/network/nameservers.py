"""Whom a sandbox asks for names, and whether a network has a resolver of its own for that."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from ipaddress import ip_address

from dockless.base import paths
from dockless.sandbox.network import leases, records
from dockless.sandbox.network.asked import CONTAINER, Asked
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Egress, Network
from dockless.sandbox.network.resolv_conf import of_host, resolv_conf

OF_HOST = "/etc/resolv.conf"
_OF_SYSTEMD = "/run/systemd/resolve/resolv.conf"
"""What systemd-resolved asks, where the host's own file says to ask that on the host's loopback, which no sandbox reaches."""
_MOST = 65536


def text_for(spec: Asked) -> str:
    """/etc/resolv.conf of a sandbox. resolv.conf(5)"""
    if spec.network == "none":
        return ""
    of_the_host = _read(OF_HOST)
    if spec.network == "host":
        return of_host(of_the_host, spec)
    search = [words[1:] for line in of_the_host.splitlines() if (words := line.split())[:1] in (["search"], ["domain"])]
    return resolv_conf(_servers(spec), spec, search[-1] if search else ())


def has_resolver(network: Network, egress: Egress | None) -> bool:
    """Whether a sandbox on it asks the network's own resolver: where the others have names, where names decide what may leave, or where no
    sandbox reaches those whom the host asks."""
    return network.named or bool(egress is not None and egress.names) or not reachable()


def knows(spec: Asked) -> bool:
    """Whether the one whom a sandbox asks has its hostname, with the address by which the others reach it."""
    return not spec.dns and any(network.named for network in _networks(spec))


def gateway(spec: Asked) -> str:
    """The host's own address on the first of its networks."""
    return records.find_or_make(spec.endpoints[0].network, Host()).gateways[0]


def reachable() -> list[str]:
    """The host's nameservers, but those on its own loopback."""
    for path in (OF_HOST, _OF_SYSTEMD):
        words = map(str.split, _read(path).splitlines())
        if found := [line[1] for line in words if line[:1] == ["nameserver"] and len(line) > 1 and _leads_out(line[1])]:
            return found
    return []


def _servers(spec: Asked) -> Sequence[str]:
    if spec.network.startswith(CONTAINER):
        with contextlib.suppress(FileNotFoundError):
            there = paths.state() / "sandboxes" / spec.network.removeprefix(CONTAINER)
            own = [lease for lease in leases.of(there) if leases.alive(lease)]
            networks, egress = [records.find(lease.network) for lease in own], next((lease.egress for lease in own), None)
            return _of(networks, egress)
        return reachable()
    return _of(_networks(spec), spec.egress)


def _networks(spec: Asked) -> list[Network]:
    return [records.find_or_make(endpoint.network, Host()) for endpoint in spec.endpoints]


def _of(networks: Sequence[Network], egress: Egress | None) -> Sequence[str]:
    asked = next((network for network in networks if has_resolver(network, egress)), None)
    return asked.gateways if asked is not None else reachable()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(_MOST)
    except OSError:
        return ""


def _leads_out(server: str) -> bool:
    try:
        return not ip_address(server.partition("%")[0]).is_loopback
    except ValueError:
        return False
