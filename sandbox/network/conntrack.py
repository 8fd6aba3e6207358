"""The kernel's connections of addresses, forgotten.

What the table lets through as an answer is what the kernel keeps a connection of, and it keeps one of UDP for minutes and a closed one of
TCP too, longer than a sandbox lasts. Whoever has the address next would get the answers, and could send in it past its own rules.

Those of an IPv4 address a newer kernel forgets at once. All others are listed and compared here: by CTA_FILTER the kernel lists, and
forgets, of IPv6 those that are not asked for (``ctnetlink_filter_match_tuple``, seen in Linux 6.18). conntrack(8),
linux/netfilter/nfnetlink_conntrack.h
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from dockless.errors import NetworkError
from dockless.sandbox.network import netlink
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.netlink import Request, attribute, attributes_of, nested

_GET, _DELETE, _GET_STATS = 1 << 8 | 1, 1 << 8 | 2, 1 << 8 | 5
_ORIGINAL, _REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_IP = 1
_SOURCE = {4: 1, 6: 3}
"""CTA_IP_V4_SRC, CTA_IP_V6_SRC"""
_ONLY_SOURCE = 1
"""In a CTA_FILTER: of that part the source address alone counts."""
_FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
_COUNT = 1
"""CTA_STATS_GLOBAL_ENTRIES"""
_UNKNOWN = (errno.EINVAL, errno.EOPNOTSUPP)
"""What a kernel says that does not know how, or is without nf_conntrack_netlink."""
_AT_ONCE = 100
"""Requests whose answers find room in a socket."""


def forget(host: Host, addresses: Sequence[str]) -> None:
    """Forget the connections that these addresses began, and those that lead to them. Nothing where the kernel has no nf_conntrack_netlink.
    ``NetworkError``"""
    if not addresses:
        return
    with host.nftables() as asking:
        for version in (4, 6):
            asked = [one.packed for one in map(ip_address, addresses) if one.version == version]
            if asked and _are_any(asking) and not (version == 4 and _forget_at_once(asking, asked)):
                _in_parts(asking, _connections(asking, version, asked))


def _in_parts(asking: socket.socket, requests: Sequence[Request], known: Sequence[int] = (errno.ENOENT,)) -> None:
    for first in range(0, len(requests), _AT_ONCE):
        netlink.carry_out(asking, requests[first : first + _AT_ONCE], known=known)


def _are_any(asking: socket.socket) -> bool:
    """Whether the kernel has connections at all: to list none takes it as long as to list some."""
    request = Request(_GET_STATS, 0, bytes(4), "conntrack -C")
    try:
        (said,) = netlink.ask(asking, [request])
    except OSError as error:
        if error.errno in _UNKNOWN:
            return False
        raise netlink.refusal(request, error.errno or errno.EIO) from error
    return attributes_of(said or b"", 4).get(_COUNT) != bytes(4)


def _forget_at_once(asking: socket.socket, asked: Sequence[bytes]) -> bool:
    """False where the kernel does not know how: then it refuses what has no whole tuple, and forgets none. Those of IPv4 addresses."""
    requests = [
        Request(
            _DELETE,
            0,
            struct.pack("!BBH", socket.AF_INET, 0, 0)
            + nested(part, nested(_IP, attribute(_SOURCE[4], address)))
            + nested(_FILTER, attribute(part, _ONLY_SOURCE)),
            f"conntrack -D {'--orig-src' if part == _ORIGINAL else '--reply-src'} {socket.inet_ntoa(address)}",
        )
        for address in asked
        for part in (_ORIGINAL, _REPLY)
    ]
    try:
        _in_parts(asking, requests, ())
    except NetworkError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _UNKNOWN:
            return False
        raise
    return True


def forget_all_but(host: Host, subnets: Sequence[str], kept: Collection[str]) -> None:
    """The same of all addresses of these subnets but those that are ``kept``. ``NetworkError``"""
    but = {ip_address(address).packed for address in kept}
    with host.nftables() as asking:
        for subnet in map(ip_network, subnets):
            if not _are_any(asking):
                return
            begin = subnet.network_address.packed[: subnet.prefixlen // 8]
            found = _listed(asking, subnet.version, (begin,))

            def gone(source: bytes | None, subnet: IPv4Network | IPv6Network = subnet) -> bool:
                return source is not None and source not in but and ip_address(source) in subnet

            _in_parts(asking, _to_forget(found, subnet.version, gone))


def _connections(asking: socket.socket, version: int, asked: Sequence[bytes]) -> list[Request]:
    """Requests to forget those of these addresses, one each."""
    return _to_forget(_listed(asking, version, asked), version, lambda source: source in asked)


def _listed(asking: socket.socket, version: int, having: Sequence[bytes]) -> Iterator[bytes]:
    """Those of this kind in which these bytes are: most are others', and to look for some bytes is the quicker way to see that."""
    request = Request(_GET, 0, struct.pack("!BBH", _FAMILY[version], 0, 0), f"conntrack -L -f ipv{version}")
    try:
        listed = netlink.dump(asking, request)
    except OSError as error:
        raise netlink.refusal(request, error.errno or errno.EIO) from error
    return (entry for entry in listed if any(some in entry for some in having))


def _to_forget(entries: Iterable[bytes], version: int, asked: Callable[[bytes | None], bool]) -> list[Request]:
    return [
        Request(_DELETE, 0, entry[:4] + b"".join(_which(entry)), f"conntrack -D -f ipv{version}")
        for entry in entries
        if any(asked(_source(entry, part, version)) for part in (_ORIGINAL, _REPLY))
    ]


def _source(entry: bytes, part: int, version: int) -> bytes | None:
    """From where packets of a part of a connection come: of the original one who began it, of the reply who was reached in the end."""
    return attributes_of(attributes_of(attributes_of(entry, 4).get(part, b"")).get(_IP, b"")).get(_SOURCE[version])


def _which(entry: bytes) -> Iterator[bytes]:
    """What tells a connection from all others."""
    said = attributes_of(entry, 4)
    for kind, flag in ((_ORIGINAL, netlink.NESTED), (_ID, 0), (_ZONE, 0)):
        if kind in said:
            yield attribute(kind | flag, said[kind])
