"""The table of a state directory, as a function of its networks and leases: who may send what, and where it leads. 151

Two tables of one name, with nobody else's rules in them::

    bridge  prerouting       a frame from a sandbox's link has its own addresses, or it is dropped
    inet    prerouting       what a sandbox asks for, before its destination is changed: its network, its gateway, what is beyond
            nat_prerouting   ports of the host that lead into sandboxes; nat_output: for the host itself
            input            what is sent to many, by those who may not reach the host
            forward          nothing from one network to another, nothing from elsewhere but to ports of the host
            nat_postrouting  what leaves a network has the host's address

What a network has are rules. What a lease has are elements of sets and maps, so that a start adds elements and no more; a lease whose
egress is limited has a chain of its own, too. Of what is refused a sandbox is told, so that its programs fail at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence

from dockless.sandbox.network import nftables as nft
from dockless.sandbox.network.model import Egress, Lease, Network, Rule, is_name
from dockless.sandbox.network.netlink import Request
from dockless.sandbox.network.nftables import ETHER, IPV4, IPV6, LINK, PROTOCOL, SERVICE, Element, Field, Set, Words

_INET, _BRIDGE = "inet", "bridge"
_METADATA = {4: "169.254.0.0/16", 6: "fd00:ec2::254"}
_LOG_RATE, _LOG_BURST = 10, 20

_LINKS = Set("links", (LINK,))
_BRIDGES, _INTERNAL = Set("bridges", (LINK,)), Set("internal", (LINK,))
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
    *((_INET, made) for made in (_BRIDGES, _INTERNAL, _NEIGHBOURS, _ISOLATED, _NETWORKS, _PORTED)),
    *((_INET, made) for both in _ALL[1:] for made in both.values()),
)
_HOOKS = (
    (_BRIDGE, ("prerouting", "filter", "prerouting", -200)),
    (_INET, ("prerouting", "filter", "prerouting", -150)),  # conntrack is at -200, and destinations are changed at -100
    (_INET, ("input", "filter", "input", 0)),
    (_INET, ("forward", "filter", "forward", 0)),
    (_INET, ("nat_prerouting", "nat", "prerouting", -100)),
    (_INET, ("nat_output", "nat", "output", -100)),
    (_INET, ("nat_postrouting", "nat", "postrouting", 100)),
)
_SOURCE: dict[int, Field] = {4: nft.IP_SOURCE, 6: nft.IP6_SOURCE}
_DESTINATION: dict[int, Field] = {4: nft.IP_DESTINATION, 6: nft.IP6_DESTINATION}
_FAMILY = {4: nft.FAMILY_IP, 6: nft.FAMILY_IP6}

_FIXED_COUNTS = {
    (_BRIDGE, "prerouting"): 1,
    (_BRIDGE, "from_sandbox"): 5,
    (_BRIDGE, "from_sandbox4"): 3,
    (_BRIDGE, "from_sandbox6"): 8,
    (_INET, "prerouting"): 1,
    (_INET, "input"): 1,
    (_INET, "forward"): 2,
    (_INET, "to_sandbox"): 8,
    (_INET, "from_sandbox"): 5,
    (_INET, "to_many"): 7,
    (_INET, "nat_prerouting"): 1,
    (_INET, "nat_output"): 1,
    (_INET, "ports"): 7,
}

Rules = dict[tuple[str, str], list[tuple[Words, ...]]]
"""By the family and the name of their chain."""
Elements = Iterator[tuple[str, Set, Element]]


# ---- what callers ask for -------------------------------------------------------------------------------------------------------------


def requests_for(name: str, networks: Sequence[Network], leases: Sequence[Lease]) -> list[Request]:
    """All of it, in place of what is there."""
    by_name = {network.name: network for network in networks}
    rules = {**_fixed_rules(), **_network_rules(networks)}
    hooks = {(family, hook[0]) for family, hook in _HOOKS}
    requests = requests_to_delete(name)
    requests += [nft.add_table(family, name) for family in (_BRIDGE, _INET)]
    requests += [nft.add_set(family, name, made) for family, made in _SETS]
    requests += [nft.add_hook(family, name, *hook) for family, hook in _HOOKS]
    requests += [nft.add_chain(family, name, chain) for family, chain in rules if (family, chain) not in hooks]
    requests += [nft.add_rule(family, name, chain, words) for (family, chain), rows in rules.items() for words in rows]
    elements = [*_network_elements(networks)]
    for lease in leases:
        requests += _own_chains(name, by_name[lease.network], lease)
        elements += _lease_elements(by_name[lease.network], lease)
    return requests + _changes(nft.add_elements, name, elements)


def requests_to_add(name: str, network: Network, lease: Lease) -> list[Request]:
    """What a lease has, beside what is there."""
    return _own_chains(name, network, lease) + _changes(nft.add_elements, name, _lease_elements(network, lease))


def requests_to_remove(name: str, network: Network, lease: Lease) -> list[Request]:
    """The opposite; all of it has to be there."""
    requests = _changes(nft.delete_elements, name, _lease_elements(network, lease))
    for _, chain in reversed(_own_rules(network, lease)):
        requests += nft.delete_chain(_INET, name, chain)
    return requests + [nft.delete_set(_INET, name, made.name) for made in _own_sets(lease)]


def requests_to_delete(name: str) -> list[Request]:
    """All of it, and nothing where there is none."""
    return [make(family, name) for family in (_BRIDGE, _INET) for make in (nft.add_table, nft.delete_table)]


def allow_address(name: str, lease: Lease, rule: Rule, address: str, seconds: float) -> list[Request]:
    """What a name of the lease's egress resolved to, until its time is over. ``rule``: the one that allows the name. Where the address is
    allowed already its time begins anew."""
    version = _version(address)
    into = _name_sets(lease)[_shape(rule)][version]
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
    versions = [_version(subnet) for network in networks for subnet in network.subnets]
    changed = sum(len(network.subnets) * (1 if network.isolated else 2) for network in networks if not network.internal)
    counts = {(_INET, "discovery"): 2 + 2 * versions.count(6), (_INET, "nat_postrouting"): 1 + changed}
    for network in networks:
        counts[_INET, f"from-{network.bridge}"] = 9 + sum(2 if _version(subnet) == 4 else 5 for subnet in network.subnets)
    return _FIXED_COUNTS | counts


def _changes(
    make: Callable[[str, str, Set, Iterable[Element]], list[Request]], name: str, elements: Iterable[tuple[str, Set, Element]]
) -> list[Request]:
    grouped: dict[tuple[str, str], tuple[Set, list[Element]]] = {}
    for family, into, element in elements:
        grouped.setdefault((family, into.name), (into, []))[1].append(element)
    return [request for (family, _), (into, some) in grouped.items() for request in make(family, name, into, some)]


# ---- rules that are always there ------------------------------------------------------------------------------------------------------


def _fixed_rules() -> Rules:
    sent = (nft.IIFNAME, nft.ETHER_SOURCE)
    return {
        (_BRIDGE, "prerouting"): [(nft.element_of("links", nft.IIFNAME), nft.jump("from_sandbox"))],
        (_BRIDGE, "from_sandbox"): [
            (
                nft.IS_ARP,
                nft.element_of("senders4", nft.IIFNAME, nft.ARP_ETHER, nft.ARP_IP),
                nft.element_of("senders4", *sent, nft.ARP_IP),
                nft.ACCEPT,
            ),
            (nft.IS_IP, nft.element_of("senders4", *sent, nft.IP_SOURCE), nft.goto("from_sandbox4")),
            (nft.IS_IP6, nft.element_of("senders6", *sent, nft.IP6_SOURCE), nft.goto("from_sandbox6")),
            (nft.DROP,),
        ],
        (_BRIDGE, "from_sandbox4"): [
            (nft.IS_IP, nft.address_in(nft.IP_DESTINATION, "127.0.0.0/8"), nft.DROP),
            (nft.IS_IP, nft.from_udp_port(67), nft.DROP),  # answers of a DHCP server
        ],
        (_BRIDGE, "from_sandbox6"): [
            (nft.IS_IP6, nft.ROUTER_ADVERT, nft.DROP),
            (nft.IS_IP6, nft.REDIRECT, nft.DROP),
            (nft.IS_IP6, nft.ADVERT, nft.element_of("senders6", *sent, nft.NEIGHBOUR), nft.ACCEPT),
            (nft.IS_IP6, nft.ADVERT, nft.DROP),
            (nft.IS_IP6, nft.address_in(nft.IP6_SOURCE, "::"), nft.SOLICIT, nft.ACCEPT),  # whether an address is free
            (nft.IS_IP6, nft.address_in(nft.IP6_SOURCE, "::"), nft.DROP),
            (nft.IS_IP6, nft.from_udp_port(547), nft.DROP),
        ],
        (_INET, "prerouting"): [(nft.verdict_of("networks", nft.IIFNAME),)],
        (_INET, "input"): [(nft.element_of("bridges", nft.IIFNAME), nft.NOT_TO_HOST, nft.jump("to_many"))],
        (_INET, "forward"): [
            (nft.element_of("bridges", nft.OIFNAME), nft.goto("to_sandbox")),
            (nft.element_of("bridges", nft.IIFNAME), nft.goto("from_sandbox")),
        ],
        (_INET, "to_sandbox"): [
            (nft.ANSWERS, nft.ACCEPT),
            (nft.element_of("neighbours", nft.IIFNAME, nft.OIFNAME), nft.ACCEPT),
            (nft.element_of("isolated", nft.IIFNAME, nft.OIFNAME), nft.goto("refuse")),
            # A reset would come from the changed address where bridges call iptables.
            (nft.element_of("bridges", nft.IIFNAME), nft.DESTINATION_CHANGED, nft.PROHIBITED),
            (nft.element_of("bridges", nft.IIFNAME), nft.goto("refuse")),
            (nft.DESTINATION_CHANGED, nft.ACCEPT),
            (nft.DROP,),
        ],
        (_INET, "from_sandbox"): [
            (nft.ANSWERS, nft.ACCEPT),
            (nft.element_of("internal", nft.IIFNAME), nft.goto("refuse")),
            (nft.TO_GROUP, nft.jump("to_many")),
            (nft.TO_MANY, nft.jump("to_many")),
        ],
        (_INET, "to_many"): [
            (nft.SOLICIT, nft.ACCEPT),
            (nft.ADVERT, nft.ACCEPT),
            *((nft.element_of(f"limited{version}", nft.IIFNAME, _SOURCE[version]), nft.DROP) for version in (4, 6)),
        ],
        (_INET, "discovery"): [(nft.SOLICIT, nft.ACCEPT), (nft.ADVERT, nft.ACCEPT)],
        (_INET, "refuse"): [(nft.IS_TCP, nft.RESET), (nft.PROHIBITED,)],
        (_INET, "nat_prerouting"): [(nft.TO_HOST, nft.jump("ports"))],
        (_INET, "nat_output"): [(nft.TO_HOST, nft.jump("ports"))],
        (_INET, "ports"): [
            (nft.address_in(nft.IP6_DESTINATION, "::1"), nft.ACCEPT),  # stays on its link: what is sent elsewhere from it is not answered
            *((nft.destination_of(f"ports_at{version}", version, _DESTINATION[version], nft.L4PROTO, nft.PORT),) for version in (4, 6)),
            *((_FAMILY[version], nft.destination_of(f"ports{version}", version, nft.L4PROTO, nft.PORT)) for version in (4, 6)),
        ],
    }


# ---- what a network has ---------------------------------------------------------------------------------------------------------------


def _network_rules(networks: Sequence[Network]) -> Rules:
    rules: Rules = {(_INET, f"from-{network.bridge}"): _judged(network) for network in networks}
    leaving = rules[_INET, "nat_postrouting"] = [
        (nft.address_in(nft.IP_SOURCE, "127.0.0.0/8"), nft.element_of("bridges", nft.OIFNAME), nft.MASQUERADE)
    ]
    for network in networks:
        for subnet in () if network.internal else network.subnets:
            source = nft.address_in(_SOURCE[_version(subnet)], subnet)
            leaving.append((source, nft.link_is(nft.OIFNAME, network.bridge, unequal=True), nft.MASQUERADE))
            if not network.isolated:  # to a port of the host, and back: the answer has to pass the host, too
                back = (source, nft.link_is(nft.OIFNAME, network.bridge), nft.DESTINATION_CHANGED, nft.MASQUERADE)
                leaving.append(back)
    return rules


def _judged(network: Network) -> list[tuple[Words, ...]]:
    """What comes from its sandboxes."""
    own = {_version(gateway): (gateway, subnet) for gateway, subnet in zip(network.gateways, network.subnets, strict=True)}
    dns = (nft.element_of("ported", nft.L4PROTO), nft.port_in(53, 53), nft.ACCEPT)
    rules: list[tuple[Words, ...]] = [
        (nft.address_in(nft.IP_DESTINATION, "127.0.0.0/8"), nft.DROP),
        (nft.ANSWERS, nft.ACCEPT),
        *((nft.address_in(_DESTINATION[version], gateway), *dns) for version, (gateway, _) in own.items()),
        (nft.TO_GROUP, nft.ACCEPT),
        (nft.TO_MANY, nft.ACCEPT),
        *((nft.NOT_TO_HOST, nft.address_in(_DESTINATION[version], subnet), nft.ACCEPT) for version, (_, subnet) in own.items()),
    ]
    if 6 in own:
        local = nft.address_in(nft.IP6_DESTINATION, "fe80::/10")
        rules += [
            (nft.NOT_TO_HOST, local, nft.ACCEPT),
            (local, nft.IS_ICMPV6, nft.jump("discovery")),
            (nft.address_in(nft.IP6_DESTINATION, own[6][0]), nft.IS_ICMPV6, nft.jump("discovery")),
        ]
    for version, field in _DESTINATION.items():  # an address of the host, and for who is inside alone any other
        others = () if network.internal else (nft.element_of(_GATEWAYS[version].name, field),)
        if version in own:
            rules.append((*others, nft.address_in(field, own[version][0], unequal=True), nft.goto("refuse")))
        else:
            rules.append((*(others or (_FAMILY[version],)), nft.goto("refuse")))
    return rules + [(nft.verdict_of(_EGRESS[version].name, nft.IIFNAME, _SOURCE[version]),) for version in (4, 6)]


def _network_elements(networks: Sequence[Network]) -> Elements:
    yield from ((_INET, _PORTED, Element((protocol,))) for protocol in ("tcp", "udp"))
    for network in networks:
        bridge = network.bridge
        yield _INET, _BRIDGES, Element((bridge,))
        yield _INET, _NETWORKS, Element((bridge,), verdict=nft.goto(f"from-{bridge}"))
        if network.internal:
            yield _INET, _INTERNAL, Element((bridge,))
        yield _INET, _ISOLATED if network.isolated else _NEIGHBOURS, Element((bridge, bridge))
        for gateway in network.gateways:
            yield _INET, _GATEWAYS[_version(gateway)], Element((gateway,))


# ---- what a lease has -----------------------------------------------------------------------------------------------------------------


def _lease_elements(network: Network, lease: Lease) -> Elements:
    yield _BRIDGE, _LINKS, Element((lease.link,))
    sources = [(_version(address), address) for address in lease.addresses]
    if any(version == 6 for version, _ in sources):
        sources.append((6, link_local(lease.mac)))
    for version, address in sources:
        yield _BRIDGE, _SENDERS[version], Element((lease.link, lease.mac, address))
        if _is_limited(lease.egress):
            yield _INET, _LIMITED[version], Element((network.bridge, address))
            yield _INET, _EGRESS[version], Element((network.bridge, address), verdict=nft.goto(f"egress-{lease.link}"))
    if any(version == 6 for version, _ in sources):
        yield _BRIDGE, _SENDERS[6], Element((lease.link, lease.mac, "::"))
    if not network.internal:
        yield from _port_elements(lease)


def _port_elements(lease: Lease) -> Elements:
    for port in lease.ports:
        for target in lease.addresses:
            version = _version(target)
            if port.address and _version(port.address) != version:
                continue
            at = () if port.address in ("", "0.0.0.0", "::") else (port.address,)
            into = _PORTS_AT[version] if at else _PORTS[version]
            for number in range(port.count):
                key = (*at, port.protocol, str(port.outside + number))
                yield _INET, into, Element(key, (target, str(port.inside + number)))


def _own_chains(name: str, network: Network, lease: Lease) -> list[Request]:
    requests = [nft.add_set(_INET, name, made) for made in _own_sets(lease)]
    for rules, chain in _own_rules(network, lease):
        requests.append(nft.add_chain(_INET, name, chain))
        requests += [nft.add_rule(_INET, name, chain, words) for words in rules]
    return requests


def _own_rules(network: Network, lease: Lease) -> list[tuple[list[tuple[Words, ...]], str]]:
    """The chains of a lease whose egress is limited, with their rules, those that others lead to first."""
    egress = lease.egress
    if egress is None or not _is_limited(egress):
        return []
    chains: list[tuple[list[tuple[Words, ...]], str]] = []
    refuse = nft.goto("refuse")
    if egress.log:
        chains.append(([(nft.log(f"dockless {lease.link} refused: ", _LOG_RATE, _LOG_BURST),), (refuse,)], f"refused-{lease.link}"))
        refuse = nft.goto(f"refused-{lease.link}")
    rules: list[tuple[Words, ...]] = []
    if not egress.host:
        rules.append((nft.TO_HOST, refuse))
        rules += [(nft.address_in(_DESTINATION[version], network_), refuse) for version, network_ in _METADATA.items()]
    if egress.allow is not None:
        named = _name_sets(lease)
        rules += [row for rule in egress.allow for row in _allowed(rule, named)]
        rules.append((refuse,))
    return [*chains, (rules, f"egress-{lease.link}")]


def _allowed(rule: Rule, named: dict[tuple[object, ...], dict[int, Set]]) -> Iterator[tuple[Words, ...]]:
    if is_name(rule.to):
        to = [nft.element_of(made.name, _DESTINATION[version]) for version, made in named[_shape(rule)].items()]
    else:
        to = [nft.address_in(_DESTINATION[_version(rule.to)], rule.to)]
    by = (nft.protocol_is(rule.protocol),) if rule.protocol else (nft.element_of("ported", nft.L4PROTO),) if rule.ports else ()
    for destination in to:
        if not rule.ports:
            yield destination, *by, nft.ACCEPT
        for first, last in rule.ports:
            yield destination, *by, nft.port_in(first, last), nft.ACCEPT


def _shape(rule: Rule) -> tuple[object, ...]:
    return rule.protocol, rule.ports


def _name_sets(lease: Lease) -> dict[tuple[object, ...], dict[int, Set]]:
    """The sets of addresses of names, for each choice of ports that the rules have for them."""
    shapes = dict.fromkeys(_shape(rule) for rule in (lease.egress.names if lease.egress else ()))
    return {shape: _of_each(f"names-{lease.link}-{number}-", (), timeout=True) for number, shape in enumerate(shapes)}


def _own_sets(lease: Lease) -> list[Set]:
    return [made for both in _name_sets(lease).values() for made in both.values()]


def _is_limited(egress: Egress | None) -> bool:
    return egress is not None and (egress.allow is not None or not egress.host)


def link_local(mac: str) -> str:
    """The address that the kernel gives a link of this MAC by itself: RFC 4291, appendix A."""
    raw = bytes.fromhex(mac.replace(":", ""))
    return socket.inet_ntop(socket.AF_INET6, b"\xfe\x80" + bytes(6) + bytes([raw[0] ^ 2]) + raw[1:3] + b"\xff\xfe" + raw[3:])


def _version(text: str) -> int:
    return 6 if ":" in text else 4
