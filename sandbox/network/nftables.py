"""The words of a table: what a rule compares and does, sets, maps, chains and rules, as requests of nftables in nfnetlink.

A rule is a row of words, each with its text in the language of nft(8) and the same as expressions of the kernel. Each request says the
command of nft that does the same; a test has nft carry out all of them and compares. No program and no library does this at run time:
151. linux/netfilter/nf_tables.h
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from zlib import crc32

from dockless.base.dataclass import dataclass
from dockless.sandbox.network import netlink
from dockless.sandbox.network.netlink import APPEND, CREATE, Request, attribute, attributes_of, nested

_FAMILIES = {"inet": 1, "bridge": 7}
_NEWTABLE, _DELTABLE, _NEWCHAIN, _GETCHAIN, _DELCHAIN, _NEWRULE, _DELRULE, _NEWSET, _DELSET = 0, 2, 3, 4, 5, 6, 8, 9, 11
_NEWELEMENT, _DELELEMENT = 12, 14
_SUBSYSTEM = 10
_WHOLE = struct.pack("!BBH", 0, 0, _SUBSYSTEM)
_BEGIN, _END = Request(16, 0, _WHOLE, "nft -f -"), Request(17, 0, _WHOLE)
_HOOKS = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}
_MAP, _TIMEOUT = 0x8, 0x10
_CODES = {"accept": 1, "drop": 0, "jump": -3, "goto": -4}
_VERDICT_TYPE = 0xFFFFFF00
_LINK, _NETWORK, _TRANSPORT = 0, 1, 2
_EQUAL, _UNEQUAL, _AT_MOST, _AT_LEAST = 0, 1, 3, 5
_WORD = 8
"""The number of the first register of four bytes; there are 16 of them."""
_MOST = 50_000
"""Bytes of elements in one request: the size of an attribute has 16 bits."""
_CHAIN_NAME, _CHAIN_USE = 3, 6


# ---- what rules and sets are made of --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """What keys and values of sets are made of. ``number``: by which nft lists it. ``size``: bytes."""

    name: str
    number: int
    size: int


IPV4, IPV6, ETHER = Kind("ipv4_addr", 7, 4), Kind("ipv6_addr", 8, 16), Kind("ether_addr", 9, 6)
PROTOCOL, SERVICE, LINK = Kind("inet_proto", 12, 1), Kind("inet_service", 13, 2), Kind("ifname", 41, 16)
_PROTOCOLS = {"tcp": 6, "udp": 17}


@dataclass(frozen=True, slots=True)
class Words:
    """Part of a rule. ``raw``: its expressions. ``needs``: protocols without which it means nothing: nft compares those before, unless a
    part of the rule did, and so do we. ``gives``: the protocol that it compares itself. ``chain``: the one it leads to."""

    text: str
    raw: bytes
    needs: tuple[str, ...] = ()
    gives: str = ""
    chain: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """What a rule can look at: ``load`` is the expression and its attributes, but for the register. ``size``: bytes."""

    text: str
    size: int
    load: tuple[str, bytes]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Set:
    """A set; with ``values``, or as one of verdicts, a map. ``timeout``: its elements end by themselves."""

    name: str
    keys: tuple[Kind, ...]
    values: tuple[Kind, ...] = ()
    verdicts: bool = False
    timeout: bool = False


@dataclass(frozen=True, slots=True)
class Element:
    """``key``: texts, one for each part of the set's key. ``value``: likewise. ``seconds``: until it ends, 0 for never."""

    key: tuple[str, ...]
    value: tuple[str, ...] = ()
    verdict: Words | None = None
    seconds: float = 0


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, (value & 0xFFFFFFFF).to_bytes(4, "big"))


def _native(value: int) -> bytes:
    return struct.pack("=I", value)


def _expression(name: str, attributes: bytes = b"") -> bytes:
    return nested(1, attribute(1, name) + nested(2, attributes))


def _load(field: Field, word: int = 0) -> bytes:
    name, attributes = field.load
    return _expression(name, _number(1, _WORD + word) + attributes)


def _compare(value: bytes, how: int = _EQUAL) -> bytes:
    return _expression("cmp", _number(1, _WORD) + _number(2, how) + nested(3, attribute(1, value)))


def _masked(mask: bytes) -> bytes:
    attributes = _number(1, _WORD) + _number(2, _WORD) + _number(3, len(mask))
    return _expression("bitwise", attributes + nested(4, attribute(1, mask)) + nested(5, attribute(1, bytes(len(mask)))))


def _payload(text: str, base: int, offset: int, size: int, *needs: str) -> Field:
    return Field(text, size, ("payload", _number(2, base) + _number(3, offset) + _number(4, size)), needs)


def _meta(text: str, key: int, size: int) -> Field:
    return Field(text, size, ("meta", _number(2, key)))


IIFNAME, OIFNAME, L4PROTO = _meta("iifname", 6, 16), _meta("oifname", 7, 16), _meta("meta l4proto", 16, 1)
IP_SOURCE, IP_DESTINATION = _payload("ip saddr", _NETWORK, 12, 4, "ip"), _payload("ip daddr", _NETWORK, 16, 4, "ip")
IP6_SOURCE, IP6_DESTINATION = _payload("ip6 saddr", _NETWORK, 8, 16, "ip6"), _payload("ip6 daddr", _NETWORK, 24, 16, "ip6")
PORT = _payload("th dport", _TRANSPORT, 2, 2)
ETHER_SOURCE = _payload("ether saddr", _LINK, 6, 6)
ARP_ETHER, ARP_IP = _payload("arp saddr ether", _NETWORK, 8, 6, "arp"), _payload("arp saddr ip", _NETWORK, 14, 4, "arp")
NEIGHBOUR = _payload("icmpv6 taddr", _TRANSPORT, 8, 16, "ip6", "icmpv6")
"""Whose address a message of neighbour discovery is about. nft knows the word from 1.0.9 on; older ones list ``@th,64,128``."""
_NFPROTO, _ETHER_TYPE = _meta("meta nfproto", 15, 1), _payload("ether type", _LINK, 12, 2)
_ICMPV6_TYPE, _UDP_SOURCE = _payload("icmpv6 type", _TRANSPORT, 0, 1), _payload("udp sport", _TRANSPORT, 0, 2)
_ARP_START = _payload("", _NETWORK, 0, 4), _payload("", _NETWORK, 4, 2)
_FIB_TYPE = Field("fib daddr type", 4, ("fib", _number(2, 3) + _number(3, 2)))
_CT_STATE, _CT_STATUS = Field("ct state", 4, ("ct", _number(2, 0))), Field("ct status", 4, ("ct", _number(2, 2)))

_NEEDED = {
    "ip": _load(_NFPROTO) + _compare(b"\2"),
    "ip6": _load(_NFPROTO) + _compare(b"\x0a"),
    "icmpv6": _load(L4PROTO) + _compare(b"\x3a"),
    "udp": _load(L4PROTO) + _compare(b"\x11"),
}


# ---- words: comparisons ---------------------------------------------------------------------------------------------------------------


def _match(field: Field, text: str, value: bytes, *needs: str, unequal: bool = False) -> Words:
    raw = _load(field) + _compare(value, _UNEQUAL if unequal else _EQUAL)
    return Words(f"{field.text} {'!= ' if unequal else ''}{text}", raw, (*field.needs, *needs))


def _flags(field: Field, text: str, bits: int) -> Words:
    return Words(f"{field.text} {text}", _load(field) + _masked(_native(bits)) + _compare(bytes(4), _UNEQUAL), field.needs)


ANSWERS = _flags(_CT_STATE, "established,related", 0x6)
DESTINATION_CHANGED = _flags(_CT_STATUS, "dnat", 0x20)
TO_HOST, NOT_TO_HOST = (_match(_FIB_TYPE, "local", _native(2), unequal=unequal) for unequal in (False, True))
TO_MANY, TO_GROUP = _match(_FIB_TYPE, "broadcast", _native(3)), _match(_FIB_TYPE, "multicast", _native(5))
IS_TCP, IS_ICMPV6 = _match(L4PROTO, "tcp", b"\x06"), _match(L4PROTO, "ipv6-icmp", b"\x3a")
IS_ARP = Words(
    "arp htype 1 arp ptype ip arp hlen 6 arp plen 4",
    _load(_ETHER_TYPE) + _compare(b"\x08\x06") + _load(_ARP_START[0]) + _compare(b"\0\1\x08\0") + _load(_ARP_START[1]) + _compare(b"\6\4"),
    gives="arp",
)
IS_IP = Words("ether type ip", _load(_ETHER_TYPE) + _compare(b"\x08\0"), gives="ip")
IS_IP6 = Words("ether type ip6", _load(_ETHER_TYPE) + _compare(b"\x86\xdd"), gives="ip6")
FAMILY_IP = Words("meta nfproto ipv4", _NEEDED["ip"], gives="ip")
FAMILY_IP6 = Words("meta nfproto ipv6", _NEEDED["ip6"], gives="ip6")
ROUTER_ADVERT, SOLICIT, ADVERT, REDIRECT = (
    _match(_ICMPV6_TYPE, text, bytes([number]), "ip6", "icmpv6")
    for text, number in (("nd-router-advert", 134), ("nd-neighbor-solicit", 135), ("nd-neighbor-advert", 136), ("nd-redirect", 137))
)
ROUTER_SOLICIT = _match(_ICMPV6_TYPE, "nd-router-solicit", b"\x85", "ip6", "icmpv6")


def from_udp_port(number: int) -> Words:
    return _match(_UDP_SOURCE, str(number), number.to_bytes(2, "big"), "udp")


def protocol_is(name: str) -> Words:
    """``tcp`` or ``udp``"""
    return _match(L4PROTO, name, bytes([_PROTOCOLS[name]]))


def link_is(field: Field, name: str, *, unequal: bool = False) -> Words:
    return _match(field, f'"{name}"', pack(LINK, name), unequal=unequal)


def address_in(field: Field, network: str, *, unequal: bool = False) -> Words:
    """``network``: an address, or one with the length of its prefix."""
    address, _, length = network.partition("/")
    raw = pack(IPV4 if field.size == 4 else IPV6, address)
    bits = 8 * len(raw)
    if not length or int(length) == bits:
        return _match(field, address, raw, unequal=unequal)
    if int(length) == 0:
        return FAMILY_IP if bits == 32 else FAMILY_IP6
    mask = ((1 << bits) - (1 << bits - int(length))).to_bytes(len(raw), "big")
    first = bytes(here & kept for here, kept in zip(raw, mask, strict=True))
    text = f"{socket.inet_ntop(socket.AF_INET if bits == 32 else socket.AF_INET6, first)}/{length}"
    compared = _load(field) + _masked(mask) + _compare(first, _UNEQUAL if unequal else _EQUAL)
    return Words(f"{field.text} {'!= ' if unequal else ''}{text}", compared, field.needs)


def port_in(first: int, last: int) -> Words:
    """Of what goes there by a protocol that has ports: the rule has to say that."""
    if first == last:
        return _match(PORT, str(first), first.to_bytes(2, "big"))
    compared = _compare(first.to_bytes(2, "big"), _AT_LEAST) + _compare(last.to_bytes(2, "big"), _AT_MOST)
    return Words(f"th dport {first}-{last}", _load(PORT) + compared)


def _loads(fields: Sequence[Field]) -> tuple[str, bytes, tuple[str, ...]]:
    raw, word = b"", 0
    for field in fields:
        raw += _load(field, word)
        word += (field.size + 3) // 4
    return " . ".join(field.text for field in fields), raw, tuple(dict.fromkeys(need for field in fields for need in field.needs))


def element_of(name: str, *fields: Field) -> Words:
    """The fields together are a key of the set."""
    text, raw, needs = _loads(fields)
    return Words(f"{text} @{name}", raw + _expression("lookup", attribute(1, name) + _number(2, _WORD)), needs)


# ---- words: what is done --------------------------------------------------------------------------------------------------------------


def _verdict(word: str, chain: str = "") -> bytes:
    return nested(2, _number(1, _CODES[word]) + (attribute(2, chain) if chain else b""))


def _decide(word: str, chain: str = "") -> Words:
    return Words(f"{word} {chain}".rstrip(), _expression("immediate", _number(1, 0) + nested(2, _verdict(word, chain))), chain=chain)


ACCEPT, DROP = _decide("accept"), _decide("drop")
RESET = Words("reject with tcp reset", _expression("reject", _number(1, 1) + attribute(2, b"\0")))
PROHIBITED = Words("reject with icmpx admin-prohibited", _expression("reject", _number(1, 2) + attribute(2, b"\3")))
MASQUERADE = Words("masquerade", _expression("masq"))


def jump(chain: str) -> Words:
    return _decide("jump", chain)


def goto(chain: str) -> Words:
    return _decide("goto", chain)


def verdict_of(name: str, *fields: Field) -> Words:
    """What the map says of this key."""
    text, raw, needs = _loads(fields)
    lookup = _expression("lookup", attribute(1, name) + _number(2, _WORD) + _number(3, 0))
    return Words(f"{text} vmap @{name}", raw + lookup, needs)


def destination_of(name: str, version: int, *fields: Field) -> Words:
    """To the address and the port that the map says of this key."""
    text, raw, needs = _loads(fields)
    family, words = (socket.AF_INET, 1) if version == 4 else (socket.AF_INET6, 4)
    lookup = _expression("lookup", attribute(1, name) + _number(2, _WORD) + _number(3, _WORD))
    nat = _expression("nat", _number(1, 1) + _number(2, family) + _number(3, _WORD) + _number(5, _WORD + words))
    return Words(f"dnat {'ip' if version == 4 else 'ip6'} to {text} map @{name}", raw + lookup + nat, needs)


def log(prefix: str, rate: int, burst: int) -> Words:
    """In the kernel's log, ``rate`` a second and no more."""
    limit = attribute(1, rate.to_bytes(8, "big")) + attribute(2, (1).to_bytes(8, "big")) + _number(3, burst) + _number(4, 0) + _number(5, 0)
    text = f'limit rate {rate}/second burst {burst} packets log prefix "{prefix}"'
    return Words(text, _expression("limit", limit) + _expression("log", attribute(2, prefix)))


# ---- requests -------------------------------------------------------------------------------------------------------------------------


def _request(kind: int, family: str, flags: int, body: bytes, command: str) -> Request:
    return Request(_SUBSYSTEM << 8 | kind, flags, struct.pack("=BBH", _FAMILIES[family], 0, 0) + body, command)


def add_table(family: str, table: str) -> Request:
    """Nothing where it is there."""
    return _request(_NEWTABLE, family, CREATE, attribute(1, table), f"nft add table {family} {table}")


def delete_table(family: str, table: str) -> Request:
    """With all that is in it."""
    return _request(_DELTABLE, family, 0, attribute(1, table), f"nft delete table {family} {table}")


def add_chain(family: str, table: str, name: str) -> Request:
    return _request(_NEWCHAIN, family, CREATE, attribute(1, table) + attribute(3, name), f"nft add chain {family} {table} {name}")


def add_hook(family: str, table: str, name: str, kind: str, hook: str, priority: int) -> Request:
    """A chain that the kernel itself calls. ``kind``: filter or nat. ``hook``: where. ``priority``: the lower, the earlier."""
    place = nested(4, _number(1, _HOOKS[hook]), _number(2, priority))
    body = attribute(1, table) + attribute(3, name) + place + _number(5, 1) + attribute(7, kind)
    words = f"'{{ type {kind} hook {hook} priority {priority}; policy accept; }}'"
    return _request(_NEWCHAIN, family, CREATE, body, f"nft add chain {family} {table} {name} {words}")


def delete_chain(family: str, table: str, name: str) -> list[Request]:
    """With its rules; nothing may lead to it."""
    body, what = attribute(1, table), f"{family} {table} {name}"
    return [
        _request(_DELRULE, family, 0, body + attribute(2, name), f"nft flush chain {what}"),
        _request(_DELCHAIN, family, 0, body + attribute(3, name), f"nft delete chain {what}"),
    ]


def add_rule(family: str, table: str, chain: str, words: Sequence[Words]) -> Request:
    """At the end of the chain."""
    known: set[str] = set()
    raw = b""
    for part in words:
        for need in part.needs:
            if need not in known:
                raw += _NEEDED[need]
                known.add(need)
        raw += part.raw
        known.add(part.gives)
    body = attribute(1, table) + attribute(2, chain) + nested(4, raw)
    said = " ".join(part.text for part in words)
    return _request(_NEWRULE, family, CREATE | APPEND, body, f"nft 'add rule {family} {table} {chain} {said}'")


def _type(kinds: Iterable[Kind]) -> tuple[str, int, int]:
    """As nft writes it, its number, and its size in registers."""
    kinds = tuple(kinds)
    number = 0
    for kind in kinds:
        number = number << 6 | kind.number
    size = kinds[0].size if len(kinds) == 1 else sum(kind.size + -kind.size % 4 for kind in kinds)
    return " . ".join(kind.name for kind in kinds), number, size


def add_set(family: str, table: str, made: Set) -> Request:
    text, number, size = _type(made.keys)
    word, flags, values = "set", _TIMEOUT if made.timeout else 0, b""
    if made.verdicts:
        word, flags, values, text = "map", flags | _MAP, _number(6, _VERDICT_TYPE), f"{text} : verdict"
    elif made.values:
        value_text, value_number, value_size = _type(made.values)
        word, flags, text = "map", flags | _MAP, f"{text} : {value_text}"
        values = _number(6, value_number) + _number(7, value_size)
    body = attribute(1, table) + attribute(2, made.name) + _number(3, flags) + _number(4, number) + _number(5, size) + values
    body += _number(10, crc32(made.name.encode()) | 1)
    if made.keys == (LINK,):
        body += attribute(13, b"\0\4" + _native(1))  # nft's note that the bytes of the key are in this machine's order, for its listing
    words = f"type {text};{' flags timeout;' if made.timeout else ''}"
    return _request(_NEWSET, family, CREATE, body, f"nft 'add {word} {family} {table} {made.name} {{ {words} }}'")


def delete_set(family: str, table: str, name: str) -> Request:
    return _request(_DELSET, family, 0, attribute(1, table) + attribute(2, name), f"nft delete set {family} {table} {name}")


def pack(kind: Kind, text: str) -> bytes:
    """A text as the kernel has it: an address, a port, the name of a link, of a protocol."""
    if kind is IPV4:
        return socket.inet_aton(text)
    if kind is IPV6:
        return socket.inet_pton(socket.AF_INET6, text)
    if kind is ETHER:
        return bytes.fromhex(text.replace(":", ""))
    if kind is SERVICE:
        return int(text).to_bytes(2, "big")
    if kind is PROTOCOL:
        return bytes([_PROTOCOLS[text]])
    return text.encode().ljust(16, b"\0")


def _joined(kinds: tuple[Kind, ...], texts: tuple[str, ...]) -> bytes:
    if len(kinds) == 1:
        return pack(kinds[0], texts[0])
    raw = b""
    for kind, text in zip(kinds, texts, strict=True):
        part = pack(kind, text)
        raw += part + bytes(-len(part) % 4)
    return raw


def _said(kinds: tuple[Kind, ...], texts: tuple[str, ...]) -> str:
    return " . ".join(f'"{text}"' if kind is LINK else text for kind, text in zip(kinds, texts, strict=True))


def _element(of: Set, one: Element) -> tuple[str, bytes]:
    text, raw = _said(of.keys, one.key), nested(1, attribute(1, _joined(of.keys, one.key)))
    if one.seconds:
        text += f" timeout {one.seconds:.3f}s".replace(".000s", "s")
        raw += attribute(4, round(1000 * one.seconds).to_bytes(8, "big"))
    if one.verdict is not None:
        word = one.verdict.text.partition(" ")[0]
        return f"{text} : {one.verdict.text}", raw + nested(2, _verdict(word, one.verdict.chain))
    if one.value:
        return f"{text} : {_said(of.values, one.value)}", raw + nested(2, attribute(1, _joined(of.values, one.value)))
    return text, raw


def add_elements(family: str, table: str, to: Set, elements: Iterable[Element]) -> list[Request]:
    """As many requests as they take; none for none. Of one that is there nothing changes, not even its time."""
    return _elements(_NEWELEMENT, "add", family, table, to, elements)


def delete_elements(family: str, table: str, of: Set, elements: Iterable[Element]) -> list[Request]:
    """All have to be there."""
    return _elements(_DELELEMENT, "delete", family, table, of, elements)


def _elements(kind: int, word: str, family: str, table: str, of: Set, elements: Iterable[Element]) -> list[Request]:
    requests: list[Request] = []
    texts: list[str] = []
    raw = b""
    for one in elements:
        text, body = _element(of, one)
        if len(raw) + len(body) > _MOST:
            requests.append(_element_request(kind, word, family, table, of.name, texts, raw))
            texts, raw = [], b""
        texts.append(text)
        raw += nested(1, body)
    if texts:
        requests.append(_element_request(kind, word, family, table, of.name, texts, raw))
    return requests


def _element_request(kind: int, word: str, family: str, table: str, name: str, texts: list[str], raw: bytes) -> Request:
    body = attribute(1, table) + attribute(2, name) + nested(3, raw)
    said = f"nft '{word} element {family} {table} {name} {{ {', '.join(texts)} }}'"
    return _request(kind, family, CREATE if kind == _NEWELEMENT else 0, body, said)


def carry_out(opened: socket.socket, requests: Sequence[Request]) -> None:
    """All of them, or none: one transaction. ``opened``: of ``netlink.open_socket(netlink.NETFILTER)``. ``NetworkError`` of the first that
    was refused."""
    if requests:
        netlink.carry_out_together(opened, [_BEGIN, *requests, _END])


def uses(opened: socket.socket, table: str, chains: Sequence[tuple[str, str]]) -> list[int]:
    """Of each chain, a family and a name, how many rules it has and how much leads to it, together; -1 where it is not there."""
    asked = [
        _request(_GETCHAIN, family, 0, attribute(1, table) + attribute(3, name), f"nft list chain {family} {table} {name}")
        for family, name in chains
    ]
    found = netlink.ask(opened, asked)
    return [-1 if answer is None else int.from_bytes(attributes_of(answer, 4).get(_CHAIN_USE, b""), "big") for answer in found]
