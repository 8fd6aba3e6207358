"""Tables, chains, rules, sets and their elements, as requests of nftables in nfnetlink, and one transaction of them.

Each request says the command of nft(8) that does the same; a test has nft carry out all of them, and compares. No program and no library
does this at run time: 151. What rules are made of is in ``words``. linux/netfilter/nf_tables.h
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence

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
_MOST = 50_000
"""Bytes of elements in one request: the size of an attribute has 16 bits."""
_CHAIN_USE = 6
_LISTED_AS_TEXT = attribute(13, b"\0\4" + struct.pack("=I", 1))
"""What nft notes for itself of a set whose key is in this machine's order: without it its listing has no names of links."""


# ---- what sets are made of ------------------------------------------------------------------------------------------------------------


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
class Set:
    """A set; with ``values``, or as one of verdicts, a map. ``timeout``: its elements end by themselves."""

    name: str
    keys: tuple[Kind, ...]
    values: tuple[Kind, ...] = ()
    verdicts: bool = False
    timeout: bool = False


@dataclass(frozen=True, slots=True)
class Element:
    """``key``: texts, one for each part of the set's key. ``value``: likewise; ``goto``: of a map of verdicts, the chain that decides.
    ``seconds``: until it ends, 0 for never."""

    key: tuple[str, ...]
    value: tuple[str, ...] = ()
    goto: str = ""
    seconds: float = 0


def number(kind: int, value: int) -> bytes:
    """An attribute of 32 bits; nftables has the highest byte first."""
    return attribute(kind, (value & 0xFFFFFFFF).to_bytes(4, "big"))


def verdict(word: str, chain: str = "") -> bytes:
    """``accept``, ``drop``, ``jump`` and ``goto`` with their chain: as the value of an element, or of an expression."""
    return nested(2, number(1, _CODES[word]) + (attribute(2, chain) if chain else b""))


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
    place = nested(4, number(1, _HOOKS[hook]), number(2, priority))
    body = attribute(1, table) + attribute(3, name) + place + number(5, 1) + attribute(7, kind)
    words = f"'{{ type {kind} hook {hook} priority {priority}; policy accept; }}'"
    return _request(_NEWCHAIN, family, CREATE, body, f"nft add chain {family} {table} {name} {words}")


def delete_chain(family: str, table: str, name: str) -> list[Request]:
    """With its rules; nothing may lead to it."""
    body, what = attribute(1, table), f"{family} {table} {name}"
    return [
        _request(_DELRULE, family, 0, body + attribute(2, name), f"nft flush chain {what}"),
        _request(_DELCHAIN, family, 0, body + attribute(3, name), f"nft delete chain {what}"),
    ]


def add_rule(family: str, table: str, chain: str, text: str, expressions: bytes) -> Request:
    """At the end of the chain. ``words.written`` has both."""
    body = attribute(1, table) + attribute(2, chain) + nested(4, expressions)
    return _request(_NEWRULE, family, CREATE | APPEND, body, f"nft 'add rule {family} {table} {chain} {text}'")


def _type(kinds: Iterable[Kind]) -> tuple[str, int, int]:
    """As nft writes it, its number, and its size in registers."""
    kinds = tuple(kinds)
    joined = 0
    for kind in kinds:
        joined = joined << 6 | kind.number
    size = kinds[0].size if len(kinds) == 1 else sum(kind.size + -kind.size % 4 for kind in kinds)
    return " . ".join(kind.name for kind in kinds), joined, size


def add_set(family: str, table: str, made: Set) -> Request:
    text, key_number, size = _type(made.keys)
    word, flags, values = "set", _TIMEOUT if made.timeout else 0, b""
    if made.verdicts:
        word, flags, values, text = "map", flags | _MAP, number(6, _VERDICT_TYPE), f"{text} : verdict"
    elif made.values:
        value_text, value_number, value_size = _type(made.values)
        word, flags, text = "map", flags | _MAP, f"{text} : {value_text}"
        values = number(6, value_number) + number(7, value_size)
    body = attribute(1, table) + attribute(2, made.name) + number(3, flags) + number(4, key_number) + number(5, size) + values
    body += number(10, 1)  # one that nothing refers to: sets have names
    if made.keys == (LINK,):
        body += _LISTED_AS_TEXT
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


def version_of(address: str) -> int:
    """4 or 6, of an address or a network."""
    return 6 if ":" in address else 4


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
    if one.goto:
        return f"{text} : goto {one.goto}", raw + nested(2, verdict("goto", one.goto))
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
    """All of them, or none: one transaction. ``opened``: ``Host.nftables``. ``NetworkError`` of the first that was refused."""
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
