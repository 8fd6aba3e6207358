"""A sandbox on its networks.

::

    attach
        lease         an address on each network: leases.py
        admit         the table knows what it may send: table.py
        wire          a pair of links for each, one end in the sandbox's network namespace, the other a port of the network's bridge
        configure     inside: loopback, addresses, routes

At its end links, addresses and routes go with the namespace, whatever ended it. What is left, elements of the table and connections, goes
by ``release``, or when the next one wants the address. docs/networks.md
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Sequence
from ipaddress import ip_address, ip_interface, ip_network

from dockless.base.dataclass import dataclass, field
from dockless.base.path import Path
from dockless.errors import BadInput, NetworkError
from dockless.native.netns import NetworkNamespace, socket_in
from dockless.sandbox.network import admission, barriers, bridges, leases, netlink, own_host, ports, records, resolver, rtnetlink, sysctls
from dockless.sandbox.network.host import Host, index_of, leads_out
from dockless.sandbox.network.leases import Taken
from dockless.sandbox.network.model import Egress, Endpoint, Lease, Network, Port
from dockless.sandbox.network.nameservers import has_resolver
from dockless.sandbox.network.netlink import Request


@dataclass(frozen=True, slots=True)
class Wanted:
    """``names``: by which others on its networks find it, besides the aliases of each; ``directory``: the sandbox's. ``of_host``: as of a
    ``Lease``."""

    endpoints: tuple[Endpoint, ...]
    names: tuple[str, ...]
    directory: Path
    ports: tuple[Port, ...] = ()
    egress: Egress = field(default_factory=Egress)
    owner: int = 0
    of_host: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attached:
    """``network``, ``user``: descriptors of its network namespace and of the user namespace that this belongs to, -1 for ours. ``held``:
    sockets that hold its ports of the host, for its keeper. ``warnings``: of tables of others that stop what it sends."""

    network: int
    user: int
    leases: tuple[Lease, ...]
    held: tuple[int, ...]
    warnings: tuple[str, ...] = ()


def attach(wanted: Wanted, user: int, opened: contextlib.ExitStack) -> Attached:
    """Make the network namespace of a sandbox, which belongs to the user namespace ``user``, and connect it. It lasts until ``opened`` is
    closed, or as long as its keeper lives that has entered it. Errors: ``UnknownNetwork``, ``AddressTaken``, ``BadInput``,
    ``NetworkError``, ``Unwritable``."""
    held = ports.hold(wanted.ports, opened)
    namespace = namespace_of(user)
    opened.callback(namespace.close)
    return attach_to(wanted, namespace, user, held, Host())


def attach_to(
    wanted: Wanted, namespace: NetworkNamespace, user: int, held: tuple[int, ...], host: Host, *, routed: Sequence[int] = ()
) -> Attached:
    """The same of one that is made, with bridges that ``host`` has. ``routed``: the kinds of addresses for which it has a way out."""
    netlink.carry_out(namespace.route, [rtnetlink.set_up("lo", rtnetlink.LOOPBACK)])
    made = _connect(wanted, Inside(namespace.fd, namespace.route), (), set(routed), host)
    return Attached(namespace.fd, user, made, held, _warnings(made, host))


def _warnings(made: Sequence[Lease], host: Host) -> tuple[str, ...]:
    return barriers.warnings(host, [records.find(lease.network) for lease in made])


def connect(wanted: Wanted, network: int, user: int, known: Sequence[Lease], host: Host) -> tuple[Lease, ...]:
    """Put a sandbox that runs on further networks: those of ``wanted``. ``network``, ``user``: descriptors of its namespaces; ``known``:
    what it has; ``host``: where the bridges are. Errors: as ``attach``."""
    with contextlib.closing(netlink.prepare(_socket_in(network, user))) as route:
        return _connect(wanted, Inside(network, route), known, _routed(route), host)


def disconnect(gone: Lease, network: int, user: int, left: Sequence[Lease], host: Host) -> None:
    """Take a sandbox that runs off a network. ``network``, ``user``, ``host``: as for ``connect``; ``left``: what it has besides, by which
    it finds a way out where it has none any more. ``NetworkError``"""
    with contextlib.closing(netlink.prepare(_socket_in(network, user))) as route:
        with host.netlink(netlink.ROUTE) as asking:
            netlink.carry_out(asking, [rtnetlink.delete_link(gone.link)], known=(errno.ENODEV,))
        admission.expel(host, [gone])
        routed = _routed(route)
        for lease in left:
            index = index_of(route, lease.inside)  # 0 where the sandbox removed it: it may have NET_ADMIN
            if index and (requests := _way_out(records.find(lease.network), lease, index, routed, host)):
                netlink.carry_out(route, requests)


def release(attached: Sequence[Lease]) -> None:
    """What a sandbox that has ended had: its addresses are free at once, and not only when somebody looks."""
    if attached:
        with own_host.looking() as host:
            admission.expel(host, attached)


@dataclass(frozen=True, slots=True)
class Inside:
    """A sandbox's network namespace, and a socket of rtnetlink(7) in it."""

    fd: int
    route: socket.socket


def _routed(route: socket.socket) -> set[int]:
    """The kinds of addresses for which a sandbox has a way out: the kernel knows, whatever its networks say or it did itself."""
    return {version for version in (4, 6) if leads_out(route, version)}


def _connect(wanted: Wanted, into: Inside, known: Sequence[Lease], routed: set[int], host: Host) -> tuple[Lease, ...]:
    networks = [records.find_or_make(endpoint.network, Host()) for endpoint in wanted.endpoints]
    sysctls.need_forwarding(networks, host)
    first = max((lease.serial for lease in known), default=-1) + 1
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as making:
        taken: list[Taken] = []
        # What is asked for by its number can be asked for by another one at the same time.
        with records.lock(shared=not any(endpoint.addresses or endpoint.mac for endpoint in wanted.endpoints)):
            for serial, (network, endpoint) in enumerate(zip(networks, wanted.endpoints, strict=True), first):
                records.find(network.name)  # it may have been removed before we had the lock
                found = _take(wanted, network, endpoint, serial, host)
                making.callback(os.close, found.fd)
                if found.before is None:  # what the dead one left is for the next who wants the address
                    undo.callback(leases.release, found.lease)
                taken.append(found)
            made = tuple(one.lease for one in taken)
            # Before there is a link: of one that the table does not know nothing is checked.
            whole = admission.admit(host, networks, taken)
        undo.callback(admission.expel, host, made)
        if not whole:
            admission.write_all(host)
        admission.forget_before(host, taken, whole)
        asking = making.enter_context(host.netlink(netlink.ROUTE))
        _wire(networks, made, into, host, asking)
        _configure(networks, made, into, routed, host)
        for network in networks:
            if has_resolver(network, wanted.egress):
                resolver.ensure(network, records.running(network.name), host, records.table_name())
        undo.pop_all()
    return made


def _socket_in(network: int, user: int) -> socket.socket:
    try:
        return socket_in(network, socket.AF_NETLINK, socket.SOCK_RAW, netlink.ROUTE, user=user if os.geteuid() else -1)
    except OSError as error:
        raise NetworkError(f"cannot enter the sandbox's network: {error.strerror}", subject="network", hint="does it still run?") from error


def namespace_of(user: int) -> NetworkNamespace:
    """A new network namespace, which belongs to that user namespace, -1 for ours; the caller closes it. ``NetworkError``"""
    try:
        made = NetworkNamespace(user)
    except OSError as error:
        hint = "too many network namespaces: sysctl user.max_net_namespaces" if error.errno == 28 else "dockless doctor checks namespaces"
        raise NetworkError(f"cannot make a network namespace: {error.strerror}", subject="network namespace", hint=hint) from error
    netlink.prepare(made.route)
    return made


def _take(wanted: Wanted, network: Network, endpoint: Endpoint, serial: int, host: Host) -> Taken:
    names = tuple(dict.fromkeys((*wanted.names, *endpoint.aliases))) if network.named else ()
    published = wanted.ports if serial == 0 else ()  # the first endpoint has them
    _check_published(published, network)
    link = f"dv{os.urandom(6).hex()}"
    inode = os.stat(wanted.directory).st_ino

    def lease(addresses: tuple[str, ...], mac: str) -> Lease:
        return Lease(
            network.name, addresses, mac, link, str(wanted.directory), inode, names, published, wanted.egress, wanted.owner, serial,
            time.time(), wanted.of_host,
        )  # fmt: skip

    return leases.take(network, endpoint, lease, host)


def _check_published(ports: Sequence[Port], network: Network) -> None:
    if ports and network.internal:
        hint = "name another network first, or publish nothing"
        raise BadInput(f"network {network.name} is internal: nothing leads into it", subject="ports", hint=hint)


def _wire(networks: Sequence[Network], made: Sequence[Lease], inside: Inside, host: Host, asking: socket.socket) -> None:
    indices = [bridges.ensure(network, host, asking) for network in networks]
    netlink.carry_out(
        asking, [pair(network, lease, index, inside.fd) for network, lease, index in zip(networks, made, indices, strict=True)]
    )
    for network, lease in zip(networks, made, strict=True):
        netlink.carry_out(asking, outside(network, lease, index_of(asking, lease.link)))
        if lease.ports:
            sysctls.lead_from_loopback(network.bridge)


def _configure(networks: Sequence[Network], made: Sequence[Lease], into: Inside, routed: set[int], host: Host) -> None:
    """``routed``: the kinds of addresses for which there is a way out already."""
    for network, lease in zip(networks, made, strict=True):
        netlink.carry_out(into.route, inside(network, lease, index_of(into.route, lease.inside), routed, host))


def pair(network: Network, lease: Lease, bridge: int, namespace: int) -> Request:
    """The two links of a lease. ``bridge``: the number of the network's; ``namespace``: a descriptor of the sandbox's."""
    return rtnetlink.new_veth(lease.link, bridge, namespace, lease.inside, lease.mac, network.mtu, bridge_name=network.bridge)


def outside(network: Network, lease: Lease, index: int) -> list[Request]:
    """What its link on the host needs, which has this number."""
    limited = [rtnetlink.limit_rate(lease.link, index, lease.egress.rate)] if lease.egress is not None and lease.egress.rate else []
    return bridges.port(lease.link, index, network, lease.mac) + limited


def inside(network: Network, lease: Lease, index: int, routed: set[int], host: Host) -> list[Request]:
    """The same inside. ``routed``: the kinds of addresses for which there is a way out; gets those of this network."""
    name, subnets = lease.inside, [ip_network(subnet) for subnet in network.subnets]
    requests = [
        rtnetlink.add_address(name, index, ip_interface(f"{address}/{subnet.prefixlen}"))
        for address, subnet in zip(lease.addresses, subnets, strict=True)
    ]
    requests.append(rtnetlink.set_up(name, index))
    if network.patience:
        requests.append(rtnetlink.set_patience(name, index, network.patience))
    if lease.egress is not None and lease.egress.rate:
        requests.append(rtnetlink.limit_rate(name, index, lease.egress.rate))
    return requests + _way_out(network, lease, index, routed, host)


def _way_out(network: Network, lease: Lease, index: int, routed: set[int], host: Host) -> list[Request]:
    requests = []
    for gateway in network.gateways:
        version = ip_address(gateway).version
        if not network.internal and version not in routed and sysctls.forwards(version, host):
            requests.append(rtnetlink.add_default_route(gateway, lease.inside, index))
            routed.add(version)
    return requests
