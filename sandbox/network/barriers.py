"""Tables of others that stop what our networks send and get. 160

A packet passes when every table lets it: that ours accepts it counts for ours alone. Docker drops what is forwarded and not its own,
firewalld and ufw refuse it, and so do many tables that administrators write. Theirs are never changed here: who looks is told which chain
it is and what lets a network pass.

A chain counts as such a barrier when it drops or refuses whatever none of its rules has decided, and no rule and no set of its table names
the network's bridge. What its rules say of addresses is not judged. linux/netfilter/nf_tables.h
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Sequence

from dockless.base.dataclass import dataclass
from dockless.base.later import zlib
from dockless.base.path import Path
from dockless.images.files import write_atomic
from dockless.sandbox.network import netlink, records, rtnetlink, sysctls
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Network
from dockless.sandbox.network.netlink import Request, attribute, attributes_of, each_attribute

_GETTABLE, _GETCHAIN, _GETRULE, _GETSET, _GETELEMENT = 1, 4, 7, 10, 13
_SUBSYSTEM = 10
_FAMILIES = {1: "inet", 2: "ip", 10: "ip6"}
_INPUT, _FORWARD = 1, 2
_TABLE, _NAME, _HOOK, _POLICY, _USE, _KIND = 1, 3, 4, 5, 6, 7
_TOLD = (_TABLE, _NAME, _HOOK, _POLICY, _USE)
_RULE_CHAIN, _EXPRESSIONS = 2, 4
_SET_NAME, _KEY_TYPE = 2, 4
_LINK_TYPE = 41
_DROP = bytes(4)
_SHORTEST = 2
"""Bytes of a name that ends in ``*`` from which on it means somebody."""
_NOTE = "passes"


@dataclass(frozen=True, slots=True)
class Chain:
    """One that the kernel calls. ``hook``: where; ``drops``: whatever no rule of it decides."""

    family: str
    table: str
    name: str
    hook: int
    drops: bool


@dataclass(frozen=True, slots=True)
class Barrier:
    """``where``: the table and its chain, as nft(8) names them. ``by``: who made it, as far as can be told. ``commands``: what lets the
    network pass, in the order in which to type them."""

    network: str
    where: str
    by: str
    commands: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"network {self.network}: the chain {self.where}, {self.by}, stops packets from and to it; as root: {'; '.join(self.commands)}"
        )


# ---- what callers ask for -------------------------------------------------------------------------------------------------------------


def barriers(host: Host, networks: Sequence[Network]) -> list[Barrier]:
    """Those that stop these networks now. ``OSError`` where the kernel has no nftables."""
    wanted = [network for network in networks if _is_forwarded(network)]
    if not wanted:
        return []
    with host.netlink(netlink.NETFILTER) as asking:
        return _found(asking, host, _of_others(asking), wanted) if _are_others(asking) else []


def warnings(host: Host, networks: Sequence[Network]) -> tuple[str, ...]:
    """The same for a start, as texts. That there are none is kept with each network, and holds as long as others have as many chains and
    rules as then: to look at all of them takes milliseconds."""
    wanted = [network for network in networks if _is_forwarded(network)]
    if not wanted:
        return ()
    try:
        with host.nftables() as asking:
            if not _are_others(asking):
                return ()
            known = _of_others(asking)
            state = _state(known)
            unknown = [network for network in wanted if _passed(network) != state]
            found = _found(asking, host, known, unknown) if unknown else []
            for network in unknown:
                if not any(barrier.network == network.name for barrier in found):
                    write_atomic(records.running(network.name) / _NOTE, state.encode())
    except OSError:  # no nftables, or the network is being removed
        return ()
    return tuple(map(str, found))


def _passed(network: Network) -> str:
    """What others had when nothing stopped it."""
    try:
        return (records.running(network.name) / _NOTE).read_text()
    except OSError:
        return ""


def _found(asking: socket.socket, host: Host, known: Known, wanted: Sequence[Network]) -> list[Barrier]:
    found: list[Barrier] = []
    closed = [chain for chain in _judged(known) if chain.drops or _ends_closed(asking, chain)]
    for table in dict.fromkeys((chain.family, chain.table) for chain in closed):
        of_table = [chain for chain in closed if (chain.family, chain.table) == table]
        named = _links_named(asking, *table)
        for network in wanted:
            if not any(_means(name, network.bridge) for name in named):
                found += _of_table(asking, host, of_table, network)
    return found


def _is_forwarded(network: Network) -> bool:
    """Whether what is sent on it passes the hook of what is forwarded: what leaves it, and all where bridges call iptables."""
    if not network.internal:
        return True
    try:
        return not network.isolated and Path("/proc/sys/net/bridge/bridge-nf-call-iptables").read_text().strip() == "1"
    except OSError:
        return False


# ---- what is in the kernel ------------------------------------------------------------------------------------------------------------


def _request(kind: int, family: int, body: bytes, command: str) -> Request:
    return Request(_SUBSYSTEM << 8 | kind, 0, struct.pack("=BBH", family, 0, 0) + body, command)


def _number(of: str) -> int:
    return next(number for number, name in _FAMILIES.items() if name == of)


def _text(raw: bytes | None) -> str:
    return (raw or b"").rstrip(b"\0").decode("utf-8", "replace")


def _are_others(asking: socket.socket) -> bool:
    """Whether there is any table but dockless's."""
    return any(b"\0dockless" not in answer for answer in netlink.dump(asking, _request(_GETTABLE, 0, b"", "nft list tables")))


Known = list[tuple[int, dict[int, bytes]]]
"""The family of each chain, and what the kernel says of it."""


def _of_others(asking: socket.socket) -> Known:
    """All their chains for IP."""
    answers = netlink.dump(asking, _request(_GETCHAIN, 0, b"", "nft list chains"))
    return [(answer[0], attributes_of(answer, 4)) for answer in answers if answer[0] in _FAMILIES and b"\0dockless" not in answer]


def _state(known: Known) -> str:
    """Another one when a chain or a rule has come or gone. What rules have counted is not in it."""
    found = 0
    for family, of in known:
        for kind in _TOLD:
            found = zlib.crc32(of.get(kind, b""), found + family)
    return f"{found:08x}"


def _judged(known: Known) -> list[Chain]:
    """Those that the kernel calls for what comes in, or is sent on."""
    chains = []
    for family, of in known:
        hook = int.from_bytes(attributes_of(of.get(_HOOK, b"")).get(1, b""), "big")
        if hook in (_INPUT, _FORWARD) and _text(of.get(_KIND)) == "filter":
            chains.append(Chain(_FAMILIES[family], _text(of.get(_TABLE)), _text(of.get(_NAME)), hook, of.get(_POLICY) == _DROP))
    return chains


def _rules(asking: socket.socket, family: str, table: str, chain: str = "") -> list[list[tuple[str, dict[int, bytes]]]]:
    """The expressions of each rule: their names and what they are made of."""
    body = attribute(1, table) + (attribute(2, chain) if chain else b"")
    found = []
    for answer in netlink.dump(asking, _request(_GETRULE, _number(family), body, f"nft list chain {family} {table} {chain}")):
        of_rule = attributes_of(answer, 4)
        if _text(of_rule.get(1)) == table and (not chain or _text(of_rule.get(_RULE_CHAIN)) == chain):
            parts = [attributes_of(part) for _, part in each_attribute(of_rule.get(_EXPRESSIONS, b""))]
            found.append([(_text(part.get(1)), attributes_of(part.get(2, b""))) for part in parts])
    return found


def _ends_closed(asking: socket.socket, chain: Chain) -> bool:
    """Whether its last rule refuses whatever comes to it, as firewalld's and those of an iptables list that ends with REJECT."""
    rules = _rules(asking, chain.family, chain.table, chain.name)
    verdicts = [one for one in rules[-1] if one[0] not in ("counter", "log", "limit")] if rules else []
    if len(verdicts) != 1:
        return False
    ((name, of),) = verdicts
    if name == "immediate":
        return attributes_of(attributes_of(of.get(2, b"")).get(2, b"")).get(1) == _DROP
    return name == "reject" or (name == "target" and _text(of.get(1)) == "REJECT")


def _links_named(asking: socket.socket, family: str, table: str) -> set[bytes]:
    """The links that a table knows by name: whole ones end with a zero byte, others stand for all that begin so."""
    named = set()
    for rule in _rules(asking, family, table):
        for name, of in rule:
            if name == "cmp" and of.get(2) == bytes(4):
                named.add(attributes_of(of.get(3, b"")).get(1, b""))
    for answer in netlink.dump(asking, _request(_GETSET, _number(family), attribute(1, table), f"nft list sets table {family} {table}")):
        of_set = attributes_of(answer, 4)
        if _text(of_set.get(1)) == table and _has_links(int.from_bytes(of_set.get(_KEY_TYPE, b""), "big")):
            named |= set(_elements(asking, family, table, of_set[_SET_NAME]))
    return named


def _has_links(key: int) -> bool:
    return any(key >> bits & 63 == _LINK_TYPE for bits in range(0, 32, 6))


def _elements(asking: socket.socket, family: str, table: str, name: bytes) -> Iterator[bytes]:
    """Each 16 bytes of each key: a link's name is one of the parts."""
    body = attribute(1, table) + attribute(2, _text(name))
    for answer in netlink.dump(asking, _request(_GETELEMENT, _number(family), body, f"nft list set {family} {table} {_text(name)}")):
        for _, element in each_attribute(attributes_of(answer, 4).get(3, b"")):
            key = attributes_of(attributes_of(element).get(1, b"")).get(1, b"")
            yield from (key[at : at + 16] for at in range(0, len(key), 4))


def _means(named: bytes, bridge: str) -> bool:
    whole, end, _ = named.partition(b"\0")
    return whole == bridge.encode() if end else len(named) >= _SHORTEST and bridge.encode().startswith(named)


# ---- what to do about it --------------------------------------------------------------------------------------------------------------


def _of_table(asking: socket.socket, host: Host, chains: Iterable[Chain], network: Network) -> Iterator[Barrier]:
    """One for what is sent on, or else for what comes in: the resolver of the network listens on the host."""
    by_hook = {chain.hook: chain for chain in chains}
    chain = by_hook.get(_FORWARD) or by_hook[_INPUT]
    versions = {"ip": (4,), "ip6": (6,), "inet": (4, 6)}[chain.family]
    has = {version for version in {6 if ":" in subnet else 4 for subnet in network.subnets} if sysctls.forwards(version)}
    if has.isdisjoint(versions):
        return
    rules_of = {one for one in _KNOWN if _has_chain(asking, chain, one)}
    by, commands = _commands(host, chain, network, rules_of)
    if chain.hook == _FORWARD and _INPUT in by_hook:
        commands += [text for text in _commands(host, by_hook[_INPUT], network, rules_of)[1] if text not in commands]
    yield Barrier(network.name, f"{chain.family} {chain.table} {chain.name}", by, tuple(commands))


_KNOWN = ("DOCKER-USER", "ufw-before-forward", "ufw6-before-forward")


def _has_chain(asking: socket.socket, chain: Chain, name: str) -> bool:
    body = attribute(1, chain.table) + attribute(3, name)
    return netlink.ask(asking, [_request(_GETCHAIN, _number(chain.family), body, "")]) != [None]


def _commands(host: Host, chain: Chain, network: Network, known: set[str]) -> tuple[str, list[str]]:
    """Who made it, and what lets the network pass."""
    # The networks that a user makes, and those of jobs, come and go under names that nobody knows beforehand.
    bridge, family = network.bridge, chain.family
    several = f"{bridge[:3]}+" if bridge.startswith("dl-") else bridge
    out = _way_out(host, 6 if family == "ip6" else 4)
    iptables = "ip6tables" if family == "ip6" else "iptables"
    if chain.table == "firewalld":
        command = f"firewall-cmd --zone=trusted --add-interface={several}"
        return "of firewalld", [command, command.replace("cmd ", "cmd --permanent ")]
    if known & {"ufw-before-forward", "ufw6-before-forward"}:
        ways = [f"ufw route allow in on {several}", f"ufw route allow out on {several}"]
        return "of ufw", ways if chain.hook == _FORWARD else [f"ufw allow in on {several} to any port 53"]
    if family != "inet" and chain.name in ("FORWARD", "INPUT"):
        into = "DOCKER-USER" if "DOCKER-USER" in known and chain.hook == _FORWARD else chain.name
        by = "of Docker" if into == "DOCKER-USER" else "of iptables"
        if chain.hook == _INPUT:
            return by, [f"{iptables} -I INPUT -i {several} -p {protocol} --dport 53 -j ACCEPT" for protocol in ("udp", "tcp")]
        way = f" -o {out}" if out else ""
        return by, [f"{iptables} -I {into} -i {several}{way} -j ACCEPT", f"{iptables} -I {into} -o {several} -j ACCEPT"]
    link, into = several.replace("+", "*"), f"nft insert rule {family} {chain.table} {chain.name}"
    if chain.hook == _INPUT:
        return "of another program", [f"{into} iifname '\"{link}\"' meta l4proto '{{ tcp, udp }}' th dport 53 accept"]
    way = f" oifname {out}" if out else ""
    return "of another program", [f"{into} iifname '\"{link}\"'{way} accept", f"{into} oifname '\"{link}\"' accept"]


def _way_out(host: Host, version: int) -> str:
    """The link by which the host reaches the world, empty for none: containers of others are on the host, too, and what they do not publish
    is nobody's."""
    with host.netlink(netlink.ROUTE) as asking:
        try:
            routes = [answer for answer in netlink.dump(asking, rtnetlink.all_routes(version)) if rtnetlink.leads_out(answer)]
            links = dict(rtnetlink.link_of(answer) for answer in netlink.dump(asking, rtnetlink.all_links())) if routes else {}
        except OSError:
            return ""
    return next((links[index] for answer in routes if (index := rtnetlink.link_of_route(answer)) in links), "")
