"""What the rules of a sandbox let it know of names: whether it may ask for one, and which addresses it is told.

Whoever owns a name chooses its addresses, also those of our own network, after the rule was written (DNS rebinding). So a name leads to
addresses of the public Internet alone, unless a rule names the network that they are of.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from dockless.base.dataclass import dataclass
from dockless.sandbox.network import dns
from dockless.sandbox.network.model import Egress, Rule

Net = tuple[int, int, int]
"""Bytes of its addresses, those bits of them that it has, as a number, and how many bits are left to its addresses."""
LEAST, LONGEST = 30, 3600
"""Seconds that an address of a name can be reached at least, and that an answer may be kept at most."""
_MOST_ADDRESSES = 64
"""Of one answer."""
_MOST_STEPS = 16
"""From a name to the one that it stands for, to the one that this stands for, and on."""
_NOT_FORWARDED = (dns.SVCB, dns.HTTPS)
"""They have addresses of their own, which nobody would let through; who finds none asks for A and AAAA."""


@dataclass(frozen=True, slots=True)
class Rules:
    """``exact``, ``below``: the rules for a name, and for all below it. ``nets``: the networks that others name."""

    exact: dict[dns.Name, list[Rule]]
    below: dict[dns.Name, list[Rule]]
    nets: tuple[Net, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``answer``: what the sandbox is told; its ``admitted`` addresses are let through for so many ``seconds`` before. ``refused``:
    addresses that were left out."""

    answer: bytes
    admitted: tuple[bytes, ...] = ()
    seconds: int = 0
    refused: tuple[bytes, ...] = ()


def rules_of(egress: Egress | None) -> Rules | None:
    """None where every name may be asked for."""
    if egress is None or egress.allow is None:
        return None
    exact: dict[dns.Name, list[Rule]] = {}
    below: dict[dns.Name, list[Rule]] = {}
    nets: list[Net] = []
    for rule in egress.allow:
        net = net_of(rule.to)
        if net is not None:
            nets.append(net)
            continue
        wildcard = rule.to.startswith("*.")
        name = dns.name_of(rule.to[2:] if wildcard else rule.to)
        if name is not None:
            (below if wildcard else exact).setdefault(name, []).append(rule)
    return Rules(exact, below, tuple(nets))


def allowing(rules: Rules, name: dns.Name) -> list[Rule]:
    """The rules that allow a name: they name it, or one above it with ``*.``; none where it may not be asked for."""
    return rules.exact.get(name, []) + [rule for at in range(1, len(name)) for rule in rules.below.get(name[at:], ())]


def has_answer(kind: int) -> bool:
    return kind not in _NOT_FORWARDED


def judge(rules: Rules, query: dns.Query, raw: bytes, limit: int) -> Verdict:
    """What becomes of another server's answer. ``dns.Malformed``"""
    found = dns.read_answer(raw, query)
    if found.code != dns.NO_ERROR:
        return Verdict(dns.answer(query, found.code, limit=limit))
    kept = _followed(query, found.records)
    seconds = min([LONGEST, *(record.seconds for record in kept)])
    told: list[dns.Record] = []
    admitted: list[bytes] = []
    refused: list[bytes] = []
    for record in kept:
        if record.kind in (dns.A, dns.AAAA):
            if len(record.data) != (4 if record.kind == dns.A else 16):
                continue
            public = is_public(record.data) and not is_own(record.data)
            if not public and not any(within(record.data, net) for net in rules.nets):
                refused.append(record.data)
                continue
            if public:  # the others are let through by the rule that names their network, and by its ports alone
                if len(admitted) == _MOST_ADDRESSES:
                    continue
                admitted.append(record.data)
        told.append(dns.Record(record.name, record.kind, min(record.seconds, seconds), record.data))
    answer = dns.answer(query, dns.NO_ERROR, told, limit=limit, cut=found.cut)
    return Verdict(answer, tuple(admitted), max(LEAST, seconds), tuple(refused))


def _followed(query: dns.Query, records: Iterable[dns.Record]) -> list[dns.Record]:
    """Those that the question leads to: what its name stands for, and what that one has of the type that was asked for."""
    stands_for: dict[dns.Name, dns.Record] = {}
    of_kind: dict[dns.Name, list[dns.Record]] = {}
    for record in records:
        if record.kind == query.kind:
            of_kind.setdefault(dns.lower(record.name), []).append(record)
        elif record.kind == dns.CNAME:
            stands_for.setdefault(dns.lower(record.name), record)
    name, kept = query.name, []
    for _ in range(_MOST_STEPS):
        step = stands_for.get(name)
        if step is None or name in of_kind:
            break
        kept.append(step)
        name = _target(step)
    return kept + of_kind.get(name, [])


def _target(record: dns.Record) -> dns.Name:
    labels, at = [], 0
    while record.data[at]:
        size = record.data[at]
        labels.append(record.data[at + 1 : at + 1 + size].lower())
        at += 1 + size
    return tuple(labels)


def net_of(text: str) -> Net | None:
    """None for what is a name, and no network or address."""
    address, slash, length = text.partition("/")
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
        rest = 8 * len(packed) - int(length) if slash else 0
    except (OSError, ValueError):
        return None
    return (len(packed), int.from_bytes(packed, "big") >> rest, rest) if 0 <= rest <= 8 * len(packed) else None


def within(address: bytes, net: Net) -> bool:
    """Whether a network has an address of 4 bytes or 16."""
    size, bits, rest = net
    return len(address) == size and int.from_bytes(address, "big") >> rest == bits


def _nets(words: str) -> tuple[Net, ...]:
    return tuple(net for net in map(net_of, words.split()) if net is not None)


_NOT_PUBLIC = _nets(
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.168.0.0/16 198.18.0.0/15 224.0.0.0/3"
)
_PUBLIC_SIX = _nets("2000::/3")
_NOT_PUBLIC_SIX = _nets("2001::/32 2002::/16")
"""Teredo and 6to4: each has an address of IPv4 in it."""
_TRANSLATED = _nets("64:ff9b::/96")
"""Its last four bytes are an address of IPv4. RFC 6052"""


def is_public(address: bytes) -> bool:
    """Whether it is one of the public Internet, of 4 bytes or 16. RFC 6890"""
    if len(address) == 4:
        return not any(within(address, net) for net in _NOT_PUBLIC)
    if any(within(address, net) for net in _TRANSLATED):
        return is_public(address[12:])
    return any(within(address, net) for net in _PUBLIC_SIX) and not any(within(address, net) for net in _NOT_PUBLIC_SIX)


def is_own(address: bytes) -> bool:
    """Whether it is one of this host: what is sent there would come from the same one. Nothing is sent. A broadcast address counts."""
    family = socket.AF_INET if len(address) == 4 else socket.AF_INET6
    text = socket.inet_ntop(family, address)
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
            asking.connect((text, 53))
            return bool(asking.getsockname()[0] == text)
    except PermissionError:
        return True
    except OSError:  # nothing leads there
        return False
