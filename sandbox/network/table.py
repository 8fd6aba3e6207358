"""The table of a state directory, as a function of its networks and leases: who may send what, and where it leads. 151

Two tables of one name, with nobody else's rules in them::

    bridge  prerouting       a frame from a sandbox's link has its own addresses, or it is dropped
    inet    prerouting       what a sandbox asks for, before its destination is changed: its network, its gateway, what is beyond
            nat_prerouting   ports of the host that lead into sandboxes; nat_output: for the host itself
            input            what is sent to many, by those whose egress is limited
            forward          the same; nothing from one network to another, nothing from elsewhere but to ports of the host
            output           what the host's own processes send to the network of a user's jobs: root's and hers alone
            nat_postrouting  what leaves a network has the host's address

What a network has are rules. What a lease has are elements of sets and maps, so that a start adds elements and no more; a lease whose
egress is limited has a chain of its own, too. Of what is refused a sandbox is told, so that its programs fail at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence

from dockless.sandbox.network import nftables as nft
from dockless.sandbox.network.model import Lease, Network, Rule
from dockless.sandbox.network.netlink import Request
from dockless.sandbox.network.nftables import ETHER, IPV4, IPV6, LINK, PROTOCOL, SERVICE, Element, Set, version_of

_INET, _BRIDGE = "inet", "bridge"

_LINKS = Set("links", (LINK,))
_BRIDGES = Set("bridges", (LINK,))
_NEIGHBOURS, _ISOLATED = Set("neighbours", (LINK, LINK)), Set("isolated", (LINK, LINK))
_NETWORKS, _PORTED = Set("networks", (LINK,), verdicts=True), Set("ported", (PROTOCOL,))


def _of_each(name: str, before: tuple[nft.Kind, ...], *, verdicts: bool = False, timeout: bool = False) -> dict[int, Set]:
    """One for IPv4 and one for IPv6. ``before``: what stands before the address in its key."""
    kinds = ((4, IPV4), (6, IPV6))
    return {version: Set(f"{name}{version}", (*before, kind), verdicts=verdicts, timeout=timeout) for version, kind in kinds}


_SENDERS = _of_each("senders", (LINK, ETHER))
_GATEWAYS = _of_each("gateways", ())
_EGRESS, _LIMITED = _of_each("egress", (LINK,), verdicts=True), _of_each("limited", (LINK,))
_PORTS = {version: Set(f"ports{version}", (PROTOCOL, SERVICE), (kind, SERVICE)) for version, kind in ((4, IPV4), (6, IPV6))}
_PORTS_AT = {version: Set(f"ports_at{version}", (kind, PROTOCOL, SERVICE), (kind, SERVICE)) for version, kind in ((4, IPV4), (6, IPV6))}
_ALL = (_SENDERS, _GATEWAYS, _EGRESS, _LIMITED, _PORTS, _PORTS_AT)
_SETS = (
    *((_BRIDGE, made) for made in (_LINKS, *_SENDERS.values())),
    *((_INET, made) for made in (_LINKS, _BRIDGES, _NEIGHBOURS, _ISOLATED, _NETWORKS, _PORTED)),
    *((_INET, made) for both in _ALL[1:] for made in both.values()),
)
_HOOKS = (
    (_BRIDGE, ("prerouting", "filter", "prerouting", -200)),
    (_INET, ("prerouting", "filter", "prerouting", -150)),  # conntrack is at -200, and destinations are changed at -100
    (_INET, ("input", "filter", "input", 0)),
    (_INET, ("forward", "filter", "forward", 0)),
    (_INET, ("output", "filter", "output", 0)),
    (_INET, ("nat_prerouting", "nat", "prerouting", -100)),
    (_INET, ("nat_output", "nat", "output", -100)),
    (_INET, ("nat_postrouting", "nat", "postrouting", 100)),
)
_FIXED_COUNTS = {
    (_BRIDGE, "prerouting"): 1,
    (_BRIDGE, "from_sandbox"): 5,
    (_BRIDGE, "from_sandbox4"): 3,
    (_BRIDGE, "from_sandbox6"): 8,
    (_INET, "prerouting"): 2,
    (_INET, "input"): 1,
    (_INET, "forward"): 2,
    (_INET, "to_sandbox"): 8,
    (_INET, "to_many"): 5,
    (_INET, "nat_prerouting"): 1,
    (_INET, "nat_output"): 1,
    (_INET, "ports"): 9,
}

Elements = Iterator[tuple[str, Set, Element]]


# ---- what callers ask for -------------------------------------------------------------------------------------------------------------


def requests_for(name: str, networks: Sequence[Network], leases: Sequence[Lease]) -> list[Request]:
    """All of it, in place of what is there."""
    from dockless.sandbox.network import rules, words  # which a start without them does not read

    by_name = {network.name: network for network in networks}
    chains = {**rules.always(), **rules.of_networks(networks)}
    hooks = {(family, hook[0]) for family, hook in _HOOKS}
    requests = requests_to_delete(name)
    requests += [nft.add_table(family, name) for family in (_BRIDGE, _INET)]
    requests += [nft.add_set(family, name, made) for family, made in _SETS]
    requests += [nft.add_hook(family, name, *hook) for family, hook in _HOOKS]
    requests += [nft.add_chain(family, name, chain) for family, chain in chains if (family, chain) not in hooks]
    requests += [nft.add_rule(family, name, chain, *words.written(row)) for (family, chain), rows in chains.items() for row in rows]
    elements = [*_network_elements(networks)]
    for lease in leases:
        requests += _own_chains(name, lease)
        elements += _lease_elements(by_name[lease.network], lease)
    return requests + _changes(nft.add_elements, name, elements)


def requests_to_add(name: str, network: Network, lease: Lease) -> list[Request]:
    """What a lease has, beside what is there."""
    return _own_chains(name, lease) + _changes(nft.add_elements, name, _lease_elements(network, lease))


def requests_to_remove(name: str, network: Network, lease: Lease) -> list[Request]:
    """The opposite; all of it has to be there."""
    requests = _changes(nft.delete_elements, name, _lease_elements(network, lease))
    for chain in _own_chain_names(lease):
        requests += nft.delete_chain(_INET, name, chain)
    return requests + [nft.delete_set(_INET, name, made.name) for made in _own_sets(lease)]


def requests_to_delete(name: str) -> list[Request]:
    """All of it, and nothing where there is none."""
    return [make(family, name) for family in (_BRIDGE, _INET) for make in (nft.add_table, nft.delete_table)]


def allow_address(name: str, lease: Lease, rule: Rule, address: str, seconds: float) -> list[Request]:
    """What a name of the lease's egress resolved to, until its time is over. ``rule``: the one that allows the name. Where the address is
    allowed already its time begins anew."""
    version = version_of(address)
    into = _name_sets(lease)[rule.protocol, rule.ports][version]
    one = (Element((address,), seconds=max(seconds, 1)),)
    add = nft.add_elements(_INET, name, into, one)
    return add + nft.delete_elements(_INET, name, into, one) + add  # older kernels leave the time of one that is there as it is


def is_intact(opened: socket.socket, name: str, networks: Sequence[Network]) -> bool:
    """Whether the rules in the kernel are as many as these networks have: nobody flushed, removed or added some. Elements are not looked
    at: what cannot be added or removed tells by itself. 0.1 ms. ``OSError``"""
    wanted = _counts(networks)
    return nft.uses(opened, name, list(wanted)) == list(wanted.values())


def _counts(networks: Sequence[Network]) -> dict[tuple[str, str], int]:
    """Of each chain but ``refuse``, to which leases lead as well, how many rules it has and how much leads to it. Numbers, since making
    the rules to count them takes longer than the rest of a start's requests; a test counts."""
    versions = [version_of(subnet) for network in networks for subnet in network.subnets]
    changed = sum(len(network.subnets) * (1 if network.isolated else 2) for network in networks if not network.internal)
    counts = {
        (_INET, "discovery"): 2 + 2 * versions.count(6),
        (_INET, "nat_postrouting"): 1 + changed,
        (_INET, "output"): sum(1 for network in networks if network.owner),
    }
    for network in networks:
        counts[_INET, f"from-{network.bridge}"] = 9 + sum(2 if version_of(subnet) == 4 else 5 for subnet in network.subnets)
    return _FIXED_COUNTS | counts


def _changes(
    make: Callable[[str, str, Set, Iterable[Element]], list[Request]], name: str, elements: Iterable[tuple[str, Set, Element]]
) -> list[Request]:
    grouped: dict[tuple[str, str], tuple[Set, list[Element]]] = {}
    for family, into, element in elements:
        grouped.setdefault((family, into.name), (into, []))[1].append(element)
    return [request for (family, _), (into, some) in grouped.items() for request in make(family, name, into, some)]


def _network_elements(networks: Sequence[Network]) -> Elements:
    yield from ((_INET, _PORTED, Element((protocol,))) for protocol in ("tcp", "udp"))
    for network in networks:
        bridge = network.bridge
        yield _INET, _BRIDGES, Element((bridge,))
        yield _INET, _NETWORKS, Element((bridge,), goto=f"from-{bridge}")
        yield _INET, _ISOLATED if network.isolated else _NEIGHBOURS, Element((bridge, bridge))
        for gateway in network.gateways:
            yield _INET, _GATEWAYS[version_of(gateway)], Element((gateway,))


# ---- what a lease has -----------------------------------------------------------------------------------------------------------------


def _lease_elements(network: Network, lease: Lease) -> Elements:
    for family in (_BRIDGE, _INET):
        yield family, _LINKS, Element((lease.link,))
    sources = [(version_of(address), address) for address in lease.addresses]
    if any(version == 6 for version, _ in sources):
        sources.append((6, link_local(lease.mac)))
    for version, address in sources:
        yield _BRIDGE, _SENDERS[version], Element((lease.link, lease.mac, address))
        if lease.egress is not None and lease.egress.is_limited:
            yield _INET, _LIMITED[version], Element((network.bridge, address))
            yield _INET, _EGRESS[version], Element((network.bridge, address), goto=f"egress-{lease.link}")
    if any(version == 6 for version, _ in sources):
        yield _BRIDGE, _SENDERS[6], Element((lease.link, lease.mac, "::"))
    if not network.internal:
        yield from _port_elements(lease)


def _port_elements(lease: Lease) -> Elements:
    for port in lease.ports:
        for target in lease.addresses:
            version = version_of(target)
            if port.address and version_of(port.address) != version:
                continue
            at = () if port.address in ("", "0.0.0.0", "::") else (port.address,)
            into = _PORTS_AT[version] if at else _PORTS[version]
            for number in range(port.count):
                key = (*at, port.protocol, str(port.outside + number))
                yield _INET, into, Element(key, (target, str(port.inside + number)))


def _own_chains(name: str, lease: Lease) -> list[Request]:
    if lease.egress is None or not lease.egress.is_limited:
        return []
    from dockless.sandbox.network import rules, words

    requests = [nft.add_set(_INET, name, made) for made in _own_sets(lease)]
    for chain, rows in rules.of_lease(lease, _name_sets(lease)):
        requests.append(nft.add_chain(_INET, name, chain))
        requests += [nft.add_rule(_INET, name, chain, *words.written(row)) for row in rows]
    return requests


def _own_chain_names(lease: Lease) -> list[str]:
    """Those that others lead to last."""
    if lease.egress is None or not lease.egress.is_limited:
        return []
    return [f"egress-{lease.link}", *([f"refused-{lease.link}"] if lease.egress.log else [])]


def _name_sets(lease: Lease) -> dict[tuple[str, tuple[tuple[int, int], ...]], dict[int, Set]]:
    """The sets of addresses of names, for each protocol and ports that the rules of an egress have for them."""
    shapes = dict.fromkeys((rule.protocol, rule.ports) for rule in (lease.egress.names if lease.egress else ()))
    return {shape: _of_each(f"names-{lease.link}-{number}-", (), timeout=True) for number, shape in enumerate(shapes)}


def _own_sets(lease: Lease) -> list[Set]:
    return [made for both in _name_sets(lease).values() for made in both.values()]


def link_local(mac: str) -> str:
    """The address that the kernel gives a link of this MAC by itself: RFC 4291, appendix A."""
    raw = bytes.fromhex(mac.replace(":", ""))
    return socket.inet_ntop(socket.AF_INET6, b"\xfe\x80" + bytes(6) + bytes([raw[0] ^ 2]) + raw[1:3] + b"\xff\xfe" + raw[3:])
