"""What a start would ask of the kernel for its networks, without asking: for ``run --explain``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from dockless.sandbox.network import attach, bridges, leases, records, rtnetlink, sysctls, table
from dockless.sandbox.network.asked import Asked, what_may_leave
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Endpoint, Lease, Network
from dockless.sandbox.network.netlink import Request

Steps = Sequence[tuple[str, Sequence[str]]]
"""What they are for, in plain words, and the command for each that does the same in a shell."""


def preview(spec: Asked) -> Steps:
    """The steps of a start on the networks of a spec. Addresses are those that are free now. ``UnknownNetwork``"""
    host, routed = Host(), set[int]()
    networks = [records.find_or_make(endpoint.network, host) for endpoint in spec.endpoints]
    each = [
        (network, _lease(network, endpoint, serial, spec))
        for serial, (network, endpoint) in enumerate(zip(networks, spec.endpoints, strict=True))
    ]
    found = _table(host, each)
    inside = [rtnetlink.set_up("lo", rtnetlink.LOOPBACK)]
    for network, lease in each:
        if not host.index_of(network.bridge):
            made = [*_said(bridges.making(network, 0)), *sysctls.commands(network.bridge, routers=True)]
            found.append((f"the bridge of network {network.name}, which is not there yet", made))
        links = _said([attach.pair(network, lease, 0, 0), *attach.outside(network, lease, 0)])
        links += sysctls.commands(network.bridge, from_loopback=bool(lease.ports))
        found.append((f"a pair of links: a port of network {network.name}, and {lease.inside} in the sandbox's network namespace", links))
        inside += attach.inside(network, lease, 0, routed, host)
    return [*found, ("in the sandbox's network namespace", _said(inside))]


def _table(host: Host, each: Sequence[tuple[Network, Lease]]) -> list[tuple[str, list[str]]]:
    """All of the table where it is not as the networks need it, as at the first start after a boot; else what a start adds to it."""
    name, networks = records.table_name(), records.every()
    with host.nftables() as asking:
        intact = table.is_intact(asking, name, networks)
    if intact:
        return [(f"what may pass on network {network.name}", _said(table.requests_to_add(name, network, lease))) for network, lease in each]
    known = [lease for network in networks for lease in leases.living(host, network.name)]
    whole = table.requests_for(name, networks, [*known, *(lease for _, lease in each)])
    return [("the table of all networks, which is not there or not as they need it: what may pass, with this sandbox in it", _said(whole))]


def _said(requests: Sequence[Request]) -> list[str]:
    return [request.command for request in requests if request.command]


def _lease(network: Network, endpoint: Endpoint, serial: int, spec: Asked) -> Lease:
    asked = {ip_address(text).version: text for text in endpoint.addresses}
    subnets = [ip_network(text) for text in network.subnets]
    free = leases.next_free(network)
    addresses = tuple(asked.get(subnet.version) or str(leases.at(subnet, free, subnet is subnets[0])) for subnet in subnets)
    mac = endpoint.mac or leases.mac_of(ip_address(addresses[0]))
    ports = spec.ports if serial == 0 else ()
    return Lease(network.name, addresses, mac, "dv0123456789ab", os.devnull, 0, (), ports, what_may_leave(spec), 0, serial)
