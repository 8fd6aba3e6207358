"""Whom a sandbox asks for names, and whether a network has a resolver of its own for that."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address

from dockless.sandbox.network import leases, records
from dockless.sandbox.network.asked import CONTAINER, Asked
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import DEFAULT, Egress, Network
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
    # A neighbour's name is asked for in its network first, and not as one of the host's domain, of servers elsewhere.
    networks, egress = _asked(spec)
    own = [network.name for network in networks if network.named] if not spec.dns else []
    return resolv_conf(_of(networks, egress), spec, (*own, *(search[-1] if search else ())))


def has_resolver(network: Network, egress: Egress | None) -> bool:
    """Whether a sandbox on it asks the network's own resolver: where the others have names, where names decide what may leave, or where no
    sandbox reaches those whom the host asks."""
    return network.named or bool(egress is not None and egress.names) or not reachable()


def knows(spec: Asked) -> bool:
    """Whether the one whom a sandbox asks has its hostname, with the address by which the others reach it."""
    return not spec.dns and any(network.named for network in _networks(spec))


def gateway(spec: Asked) -> str:
    """The host's own address on the first of its networks. Without root that is pasta's, which leads nowhere: the one by which the host
    itself leaves."""
    if os.geteuid() != 0 and (own := _by_which_it_leaves()):
        return own
    return records.find_or_make(spec.endpoints[0].network, Host()).gateways[0]


def reachable() -> list[str]:
    """The host's nameservers, but those on its own loopback."""
    for path in (OF_HOST, _OF_SYSTEMD):
        words = map(str.split, _read(path).splitlines())
        if found := [line[1] for line in words if line[:1] == ["nameserver"] and len(line) > 1 and _leads_out(line[1])]:
            return found
    return []


def kinds_asked_by_host() -> set[int]:
    """4, 6 or both: of which kind the addresses of the host's nameservers are, those on its own loopback too."""
    words = map(str.split, _read(OF_HOST).splitlines())
    named = [line[1] for line in words if line[:1] == ["nameserver"] and len(line) > 1 and _is_address(line[1])]
    return {ip_address(text.partition("%")[0]).version for text in named}


def _asked(spec: Asked) -> tuple[list[Network], Egress | None]:
    """Its networks, and what may leave: of the sandbox whose network it has, where it has another one's."""
    if not spec.network.startswith(CONTAINER):
        return _networks(spec), spec.egress
    own = leases.of_name(spec.network.removeprefix(CONTAINER))
    return [records.find(lease.network) for lease in own], own[0].egress if own else None


def _networks(spec: Asked) -> list[Network]:
    return [records.find_or_make(endpoint.network, Host()) for endpoint in spec.endpoints]


def _of(networks: Sequence[Network], egress: Egress | None) -> Sequence[str]:
    asked = next((network for network in networks if has_resolver(network, egress)), None)
    by_pasta = os.geteuid() != 0 and all(network.name == DEFAULT for network in networks)
    if asked is None and by_pasta and egress is not None and egress.is_limited:
        asked = networks[0]  # pasta asks for it whom it may not reach itself
    if asked is None:
        return reachable()
    if not by_pasta:
        return asked.gateways
    kinds = kinds_asked_by_host()
    return [gateway for gateway in asked.gateways if ip_address(gateway).version in kinds]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(_MOST)
    except OSError:
        return ""


def _leads_out(server: str) -> bool:
    return _is_address(server) and not ip_address(server.partition("%")[0]).is_loopback


def _is_address(server: str) -> bool:
    try:
        ip_address(server.partition("%")[0])
    except ValueError:
        return False
    return True


def _by_which_it_leaves() -> str:
    """An address of the host, empty where nothing leads out. No packet is sent: connect(2) of a datagram socket only looks for a route."""
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # addresses of documents, RFC 5737, RFC 3849
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as looking:
            looking.connect((far, 9))
            found: str = looking.getsockname()[0]
            return found
    return ""
