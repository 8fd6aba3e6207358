"""What a start would ask of the kernel for its networks, without asking: for ``run --explain``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from dockless.sandbox.network import attach, bridges, leases, records, rtnetlink, table
from dockless.sandbox.network.asked import Asked
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Egress, Endpoint, Lease, Network
from dockless.sandbox.network.netlink import Request

Steps = Sequence[tuple[str, Sequence[str]]]
"""What they are for, in plain words, and the command for each that does the same in a shell."""


def preview(spec: Asked) -> Steps:
    """The steps of a start on the networks of a spec. Addresses are those that are free now. ``UnknownNetwork``"""
    host, routed = Host(), set[int]()
    found: list[tuple[str, Sequence[Request]]] = []
    name = records.table_name()
    inside: list[Request] = [rtnetlink.set_up("lo", rtnetlink.LOOPBACK)]
    for serial, endpoint in enumerate(spec.endpoints):
        network = records.find_or_make(endpoint.network, host)
        lease = _lease(network, endpoint, serial, spec)
        found.append((f"what may pass on network {network.name}", table.requests_to_add(name, network, lease)))
        if not host.index_of(network.bridge):
            found.append((f"the bridge of network {network.name}, which is not there yet", bridges.making(network, 0)))
        links = [attach.pair(network, lease, 0, 0), *attach.outside(network, lease, 0)]
        found.append((f"a pair of links: a port of network {network.name}, and {lease.inside} in the sandbox's network namespace", links))
        inside += attach.inside(network, lease, 0, routed)
    found.append(("in the sandbox's network namespace", inside))
    return [(what, [request.command for request in requests if request.command]) for what, requests in found]


def _lease(network: Network, endpoint: Endpoint, serial: int, spec: Asked) -> Lease:
    asked = {ip_address(text).version: text for text in endpoint.addresses}
    subnets = [ip_network(text) for text in network.subnets]
    free = leases.next_free(network)
    addresses = tuple(asked.get(subnet.version) or str(leases.at(subnet, free, subnet is subnets[0])) for subnet in subnets)
    mac = endpoint.mac or leases.mac_of(ip_address(addresses[0]))
    ports = spec.ports if serial == 0 else ()
    return Lease(network.name, addresses, mac, "dv0123456789ab", os.devnull, 0, (), ports, spec.egress or Egress(), 0, serial)
