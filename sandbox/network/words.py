"""The words of rules: what a rule compares and does. Each has its text in the language of nft(8), and the same as the kernel's expressions.

Made when a rule is: a start that adds elements alone does without. linux/netfilter/nf_tables.h, nft(8)
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from dockless.base.dataclass import dataclass
from dockless.sandbox.network.netlink import attribute, nested
from dockless.sandbox.network.nftables import IPV4, IPV6, LINK, PROTOCOL, SERVICE, number, pack, verdict

_LINK, _NETWORK, _TRANSPORT = 0, 1, 2
_EQUAL, _UNEQUAL, _AT_MOST, _AT_LEAST = 0, 1, 3, 5
_WORD = 8
"""The number of the first register of four bytes; there are 16 of them."""


@dataclass(frozen=True, slots=True)
class Words:
    """Part of a rule. ``raw``: its expressions. ``needs``: protocols without which it means nothing: nft compares those before, unless a
    part of the rule did, and so do we. ``gives``: the protocol that it compares itself."""

    text: str
    raw: bytes
    needs: tuple[str, ...] = ()
    gives: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """What a rule can look at: ``load`` is the expression and its attributes, but for the register. ``size``: bytes."""

    text: str
    size: int
    load: tuple[str, bytes]
    needs: tuple[str, ...] = ()


def written(words: Sequence[Words]) -> tuple[str, bytes]:
    """The text of a rule, and its expressions."""
    known: set[str] = set()
    raw = b""
    for part in words:
        raw += b"".join(_NEEDED[need] for need in part.needs if need not in known)
        raw += part.raw
        known.update(part.needs, (part.gives,))
    return " ".join(part.text for part in words), raw


# ---- what can be looked at ------------------------------------------------------------------------------------------------------------


def _native(value: int) -> bytes:
    return struct.pack("=I", value)


def _expression(name: str, attributes: bytes = b"") -> bytes:
    return nested(1, attribute(1, name) + nested(2, attributes))


def _load(field: Field, word: int = 0) -> bytes:
    name, attributes = field.load
    return _expression(name, number(1, _WORD + word) + attributes)


def _compare(value: bytes, how: int = _EQUAL) -> bytes:
    return _expression("cmp", number(1, _WORD) + number(2, how) + nested(3, attribute(1, value)))


def _masked(mask: bytes) -> bytes:
    attributes = number(1, _WORD) + number(2, _WORD) + number(3, len(mask))
    return _expression("bitwise", attributes + nested(4, attribute(1, mask)) + nested(5, attribute(1, bytes(len(mask)))))


def _payload(text: str, base: int, offset: int, size: int, *needs: str) -> Field:
    return Field(text, size, ("payload", number(2, base) + number(3, offset) + number(4, size)), needs)


def _meta(text: str, key: int, size: int) -> Field:
    return Field(text, size, ("meta", number(2, key)))


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
_FIB_TYPE = Field("fib daddr type", 4, ("fib", number(2, 3) + number(3, 2)))
_SENDING_USER = _meta("meta skuid", 10, 4)
_CT_STATE, _CT_STATUS = Field("ct state", 4, ("ct", number(2, 0))), Field("ct status", 4, ("ct", number(2, 2)))

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


def user_is_not(uid: int) -> Words:
    """Whose process of the host sends it; what none sends is nobody's, and no match."""
    return _match(_SENDING_USER, str(uid), _native(uid), unequal=True)


def _flags(field: Field, text: str, bits: int) -> Words:
    return Words(f"{field.text} {text}", _load(field) + _masked(_native(bits)) + _compare(bytes(4), _UNEQUAL), field.needs)


ANSWERS = _flags(_CT_STATE, "established,related", 0x6)
DESTINATION_CHANGED = _flags(_CT_STATUS, "dnat", 0x20)
TO_HOST, NOT_TO_HOST = (_match(_FIB_TYPE, "local", _native(2), unequal=unequal) for unequal in (False, True))
NOT_TO_ONE = _match(_FIB_TYPE, "unicast", _native(1), unequal=True)
TO_MANY, TO_GROUP = _match(_FIB_TYPE, "broadcast", _native(3)), _match(_FIB_TYPE, "multicast", _native(5))
IS_TCP, IS_ICMPV6 = _match(L4PROTO, "tcp", b"\x06"), _match(L4PROTO, "icmpv6", b"\x3a")
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
    _match(_ICMPV6_TYPE, text, bytes([kind]), "ip6", "icmpv6")
    for text, kind in (("nd-router-advert", 134), ("nd-neighbor-solicit", 135), ("nd-neighbor-advert", 136), ("nd-redirect", 137))
)


def from_udp_port(port: int) -> Words:
    return _match(_UDP_SOURCE, str(port), pack(SERVICE, str(port)), "udp")


def protocol_is(name: str) -> Words:
    """``tcp`` or ``udp``"""
    return _match(L4PROTO, name, pack(PROTOCOL, name))


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
    return Words(f"{text} @{name}", raw + _expression("lookup", attribute(1, name) + number(2, _WORD)), needs)


# ---- words: what is done --------------------------------------------------------------------------------------------------------------


def _decide(word: str, chain: str = "") -> Words:
    return Words(f"{word} {chain}".rstrip(), _expression("immediate", number(1, 0) + nested(2, verdict(word, chain))))


ACCEPT, DROP = _decide("accept"), _decide("drop")
RESET = Words("reject with tcp reset", _expression("reject", number(1, 1) + attribute(2, b"\0")))
PROHIBITED = Words("reject with icmpx admin-prohibited", _expression("reject", number(1, 2) + attribute(2, b"\3")))
MASQUERADE = Words("masquerade", _expression("masq"))


def jump(chain: str) -> Words:
    return _decide("jump", chain)


def goto(chain: str) -> Words:
    return _decide("goto", chain)


def verdict_of(name: str, *fields: Field) -> Words:
    """What the map says of this key."""
    text, raw, needs = _loads(fields)
    lookup = _expression("lookup", attribute(1, name) + number(2, _WORD) + number(3, 0))
    return Words(f"{text} vmap @{name}", raw + lookup, needs)


def destination_of(name: str, version: int, *fields: Field) -> Words:
    """To the address and the port that the map says of this key."""
    text, raw, needs = _loads(fields)
    family, words = (socket.AF_INET, 1) if version == 4 else (socket.AF_INET6, 4)
    lookup = _expression("lookup", attribute(1, name) + number(2, _WORD) + number(3, _WORD))
    nat = _expression("nat", number(1, 1) + number(2, family) + number(3, _WORD) + number(5, _WORD + words))
    return Words(f"dnat {'ip' if version == 4 else 'ip6'} to {text} map @{name}", raw + lookup + nat, needs)


def log(prefix: str, rate: int, burst: int) -> Words:
    """In the kernel's log, ``rate`` a second and no more."""
    limit = attribute(1, rate.to_bytes(8, "big")) + attribute(2, (1).to_bytes(8, "big")) + number(3, burst) + number(4, 0) + number(5, 0)
    text = f'limit rate {rate}/second burst {burst} packets log prefix "{prefix}"'
    return Words(text, _expression("limit", limit) + _expression("log", attribute(2, prefix)))
