"""The bridge of a network: made at its first use, and again when it is gone."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address, ip_interface, ip_network

from dockless.errors import NetworkError
from dockless.sandbox.network import leases, netlink, rtnetlink, sysctls
from dockless.sandbox.network.host import Host, index_of
from dockless.sandbox.network.model import Network
from dockless.sandbox.network.netlink import Request

_THERE = (errno.EEXIST,)


def ensure(network: Network, host: Host, asking: socket.socket) -> int:
    """The number of its link. ``asking``: a socket of ``host``. ``NetworkError``"""
    index = index_of(asking, network.bridge)
    if index:
        return index
    new = making(network, 0)[0]
    netlink.carry_out(asking, [new], known=_THERE)
    index = index_of(asking, network.bridge)
    if not index:
        raise NetworkError(
            f"the bridge {network.bridge} of network {network.name} was removed just now", subject=network.name, hint="try again"
        )
    sysctls.refuse_routers(network.bridge, host)
    netlink.carry_out(asking, making(network, index)[1:])
    _put_back(network, index, host, asking)
    return index


def making(network: Network, index: int) -> list[Request]:
    """How it is made: the link, its addresses, up. ``index``: its number, for all but the first."""
    own = [f"{gateway}/{ip_network(subnet).prefixlen}" for gateway, subnet in zip(network.gateways, network.subnets, strict=True)]
    addresses = [rtnetlink.add_address(network.bridge, index, ip_interface(text)) for text in own]
    mac = leases.mac_of(ip_address(network.gateways[0]))  # so that it stays when a port comes or goes
    link = rtnetlink.new_bridge(network.bridge, mac, network.mtu)
    return [link, *addresses, rtnetlink.set_up(network.bridge, index)]


def remove(network: Network, asking: socket.socket) -> None:
    """Its link, if there is one. ``NetworkError``"""
    if index_of(asking, network.bridge):
        netlink.carry_out(asking, [rtnetlink.delete_link(network.bridge)], known=(errno.ENODEV,))


def _put_back(network: Network, index: int, host: Host, asking: socket.socket) -> None:
    """The links of those who were on a bridge that somebody removed."""
    for lease in leases.living(host, network.name):
        if link := index_of(asking, lease.link):
            netlink.carry_out(
                asking, [rtnetlink.set_master(lease.link, link, index, network.bridge), *port(lease.link, link, network, lease.mac)]
            )


def port(link: str, index: int, network: Network, mac: str) -> list[Request]:
    """What a link needs to be a port of the network's bridge."""
    return [
        rtnetlink.set_port_up(link, index),
        rtnetlink.set_port(link, index, isolated=network.isolated),
        rtnetlink.add_station(link, index, mac),
    ]
