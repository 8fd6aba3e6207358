"""The rules of the table: those that are always there, those of a network, and those of a lease whose egress is limited. 151"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dockless.sandbox.network import words as w
from dockless.sandbox.network.model import METADATA, Egress, Lease, Network, Rule, is_name
from dockless.sandbox.network.nftables import Set, version_of
from dockless.sandbox.network.words import Field, Words

_LOG_RATE, _LOG_BURST = 10, 20
_INET, _BRIDGE = "inet", "bridge"
_SOURCE: dict[int, Field] = {4: w.IP_SOURCE, 6: w.IP6_SOURCE}
_DESTINATION: dict[int, Field] = {4: w.IP_DESTINATION, 6: w.IP6_DESTINATION}
_FAMILY = {4: w.FAMILY_IP, 6: w.FAMILY_IP6}

Shape = tuple[str, tuple[tuple[int, int], ...]]
"""The protocol and the ports of a rule of an egress."""
Row = tuple[Words, ...]
Rules = dict[tuple[str, str], list[Row]]
"""By the family and the name of their chain."""


# ---- rules that are always there ------------------------------------------------------------------------------------------------------


def always() -> Rules:
    sent = (w.IIFNAME, w.ETHER_SOURCE)
    return {
        (_BRIDGE, "prerouting"): [(w.element_of("links", w.IIFNAME), w.jump("from_sandbox"))],
        (_BRIDGE, "from_sandbox"): [
            (
                w.IS_ARP,
                w.element_of("senders4", w.IIFNAME, w.ARP_ETHER, w.ARP_IP),
                w.element_of("senders4", *sent, w.ARP_IP),
                w.ACCEPT,
            ),
            (w.IS_IP, w.element_of("senders4", *sent, w.IP_SOURCE), w.goto("from_sandbox4")),
            (w.IS_IP6, w.element_of("senders6", *sent, w.IP6_SOURCE), w.goto("from_sandbox6")),
            (w.DROP,),
        ],
        (_BRIDGE, "from_sandbox4"): [
            (w.IS_IP, w.address_in(w.IP_DESTINATION, "127.0.0.0/8"), w.DROP),
            (w.IS_IP, w.from_udp_port(67), w.DROP),  # answers of a DHCP server
        ],
        (_BRIDGE, "from_sandbox6"): [
            (w.IS_IP6, w.ROUTER_ADVERT, w.DROP),
            (w.IS_IP6, w.REDIRECT, w.DROP),
            (w.IS_IP6, w.ADVERT, w.element_of("senders6", *sent, w.NEIGHBOUR), w.ACCEPT),
            (w.IS_IP6, w.ADVERT, w.DROP),
            (w.IS_IP6, w.address_in(w.IP6_SOURCE, "::"), w.SOLICIT, w.ACCEPT),  # whether an address is free
            (w.IS_IP6, w.address_in(w.IP6_SOURCE, "::"), w.DROP),
            (w.IS_IP6, w.from_udp_port(547), w.DROP),
        ],
        (_INET, "prerouting"): [
            (
                w.element_of("links", w.IIFNAME),
                w.DROP,
            ),  # frames to 01:80:c2:00:00:0x, which a bridge hands to the host from the port itself
            (w.verdict_of("networks", w.IIFNAME),),
        ],
        (_INET, "input"): [(w.element_of("bridges", w.IIFNAME), w.NOT_TO_HOST, w.jump("to_many"))],
        (_INET, "forward"): [
            (w.element_of("bridges", w.OIFNAME), w.goto("to_sandbox")),
            (w.element_of("bridges", w.IIFNAME), w.NOT_TO_ONE, w.jump("to_many")),
        ],
        (_INET, "to_sandbox"): [
            (w.ANSWERS, w.ACCEPT),
            (w.element_of("neighbours", w.IIFNAME, w.OIFNAME), w.ACCEPT),
            (w.element_of("isolated", w.IIFNAME, w.OIFNAME), w.goto("refuse")),
            # A reset would come from the changed address where bridges call iptables.
            (w.element_of("bridges", w.IIFNAME), w.DESTINATION_CHANGED, w.PROHIBITED),
            (w.element_of("bridges", w.IIFNAME), w.goto("refuse")),
            (w.DESTINATION_CHANGED, w.ACCEPT),
            (w.DROP,),
        ],
        (_INET, "to_many"): [
            (w.SOLICIT, w.ACCEPT),
            *((w.element_of(f"limited{version}", w.IIFNAME, _SOURCE[version]), w.DROP) for version in (4, 6)),
        ],
        (_INET, "discovery"): [(w.SOLICIT, w.ACCEPT), (w.ADVERT, w.ACCEPT)],
        (_INET, "refuse"): [(w.IS_TCP, w.RESET), (w.PROHIBITED,)],
        (_INET, "nat_prerouting"): [(w.TO_HOST, w.jump("ports"))],
        (_INET, "nat_output"): [(w.TO_HOST, w.jump("ports"))],
        (_INET, "ports"): [
            (w.address_in(w.IP6_DESTINATION, "::1"), w.ACCEPT),  # stays on its link: what is sent elsewhere from it is not answered
            *((w.element_of(f"gateways{version}", _DESTINATION[version]), *_dns()) for version in (4, 6)),  # nobody takes others' names
            *((w.destination_of(f"ports_at{version}", version, _DESTINATION[version], w.L4PROTO, w.PORT),) for version in (4, 6)),
            *((_FAMILY[version], w.destination_of(f"ports{version}", version, w.L4PROTO, w.PORT)) for version in (4, 6)),
        ],
    }


def _dns() -> Row:
    return w.element_of("ported", w.L4PROTO), w.port_in(53, 53), w.ACCEPT


# ---- what a network has ---------------------------------------------------------------------------------------------------------------


def of_networks(networks: Sequence[Network]) -> Rules:
    rules: Rules = {(_INET, f"from-{network.bridge}"): _judged(network) for network in networks}
    leaving = rules[_INET, "nat_postrouting"] = [
        (w.address_in(w.IP_SOURCE, "127.0.0.0/8"), w.element_of("bridges", w.OIFNAME), w.MASQUERADE)
    ]
    # What jobs of one user say to one another is not for the processes of others, who reach a bridge as the host does.
    rules[_INET, "output"] = [
        (w.link_is(w.OIFNAME, network.bridge), w.user_is_not(0), w.user_is_not(network.owner), w.goto("refuse"))
        for network in networks
        if network.owner
    ]
    for network in networks:
        for subnet in () if network.internal else network.subnets:
            source = w.address_in(_SOURCE[version_of(subnet)], subnet)
            leaving.append((source, w.link_is(w.OIFNAME, network.bridge, unequal=True), w.MASQUERADE))
            if not network.isolated:  # to a port of the host, and back: the answer has to pass the host, too
                back = (source, w.link_is(w.OIFNAME, network.bridge), w.DESTINATION_CHANGED, w.MASQUERADE)
                leaving.append(back)
    return rules


def _judged(network: Network) -> list[Row]:
    """What comes from its sandboxes."""
    own = {version_of(gateway): (gateway, subnet) for gateway, subnet in zip(network.gateways, network.subnets, strict=True)}
    rules: list[Row] = [
        (w.address_in(w.IP_DESTINATION, "127.0.0.0/8"), w.DROP),
        (w.ANSWERS, w.ACCEPT),
        *((w.address_in(_DESTINATION[version], gateway), *_dns()) for version, (gateway, _) in own.items()),
        (w.TO_GROUP, w.ACCEPT),
        (w.TO_MANY, w.ACCEPT),
        *((w.NOT_TO_HOST, w.address_in(_DESTINATION[version], subnet), w.ACCEPT) for version, (_, subnet) in own.items()),
    ]
    if 6 in own:
        local = w.address_in(w.IP6_DESTINATION, "fe80::/10")
        rules += [
            (w.NOT_TO_HOST, local, w.ACCEPT),
            (local, w.IS_ICMPV6, w.jump("discovery")),
            (w.address_in(w.IP6_DESTINATION, own[6][0]), w.IS_ICMPV6, w.jump("discovery")),
        ]
    for version, field in _DESTINATION.items():  # an address of the host, and for who is inside alone any other
        others = () if network.internal else (w.element_of(f"gateways{version}", field),)
        if version in own:
            rules.append((*others, w.address_in(field, own[version][0], unequal=True), w.goto("refuse")))
        else:
            rules.append((*(others or (_FAMILY[version],)), w.goto("refuse")))
    return rules + [(w.verdict_of(f"egress{version}", w.IIFNAME, _SOURCE[version]),) for version in (4, 6)]


# ---- what a limited lease has ---------------------------------------------------------------------------------------------------------


def of_lease(lease: Lease, named: Mapping[Shape, Mapping[int, Set]]) -> list[tuple[str, list[Row]]]:
    """Its chains: of each the name and the rules, those that others lead to first. ``named``: the sets of the addresses of names."""
    egress = lease.egress or Egress()
    chains: list[tuple[str, list[Row]]] = []
    refuse = w.goto("refuse")
    if egress.log:
        chains.append((f"refused-{lease.link}", [(w.log(f"dockless {lease.link} refused: ", _LOG_RATE, _LOG_BURST),), (refuse,)]))
        refuse = w.goto(f"refused-{lease.link}")
    rows: list[Row] = []
    if not egress.host:
        rows.append((w.TO_HOST, refuse))
        rows += [(w.address_in(_DESTINATION[version_of(address)], address), refuse) for address in lease.of_host]
        rows += [(w.address_in(_DESTINATION[version], metadata), refuse) for version, metadata in METADATA.items()]
    if egress.allow is not None:
        rows += [row for rule in egress.allow for row in _allowed(rule, named)]
        rows.append((refuse,))
    return [*chains, (f"egress-{lease.link}", rows)]


def _allowed(rule: Rule, named: Mapping[Shape, Mapping[int, Set]]) -> Iterator[Row]:
    if is_name(rule.to):
        to = [w.element_of(made.name, _DESTINATION[version]) for version, made in named[rule.protocol, rule.ports].items()]
    else:
        to = [w.address_in(_DESTINATION[version_of(rule.to)], rule.to)]
    by = (w.protocol_is(rule.protocol),) if rule.protocol else (w.element_of("ported", w.L4PROTO),) if rule.ports else ()
    for destination in to:
        if not rule.ports:
            yield destination, *by, w.ACCEPT
        for first, last in rule.ports:
            yield destination, *by, w.port_in(first, last), w.ACCEPT
