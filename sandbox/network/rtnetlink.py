"""Links, addresses and routes, as requests of rtnetlink(7). Each says the command of ip(8) or bridge(8) that does the same."""

from __future__ import annotations

import socket
import struct
import sys
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_address

from dockless.sandbox.network.netlink import CREATE, EXCL, REPLACE, Request, attribute, attributes_of, nested

Interface = IPv4Interface | IPv6Interface
Subnet = IPv4Network | IPv6Network
_NEWLINK, _DELLINK, _GETLINK, _SETLINK, _NEWADDR, _NEWROUTE, _GETROUTE, _NEWNEIGH = 16, 17, 18, 19, 20, 24, 26, 28
_GETADDR, _PROHIBIT, _UNICAST, _MAIN = 22, 8, 1, 254
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_UP = 1
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_MASTER, _IFLA_PROTINFO, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 1, 3, 4, 10, 12, 18, 28
_IFLA_AF_SPEC = 26
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_BR_FORWARD_DELAY = 1
_BRPORT_GUARD, _BRPORT_LEARNING, _BRPORT_UNICAST_FLOOD, _BRPORT_ISOLATED = 5, 8, 9, 33
_ADDR_GEN_MODE, _NO_LINK_LOCAL = 8, 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST, _NODAD = 1, 2, 4, 0x02
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5
_NDA_LLADDR, _NO_ARP, _MASTER_FLAG = 2, 0x40, 0x04
_NEWQDISC, _ROOT, _TCA_KIND, _TCA_OPTIONS = 36, 0xFFFFFFFF, 1, 2
_TBF_PARMS, _TBF_RATE64, _TBF_BURST, _ETHERNET, _LEAST_BURST = 1, 4, 6, 1, 16384
_SETNEIGHTBL, _NDTA_NAME, _NDTA_PARMS, _NDTPA_IFINDEX, _NDTPA_MCAST_PROBES = 67, 1, 6, 1, 11
_RATE = struct.Struct("=BBHhHI")
LOOPBACK = 1
"""The number of the loopback interface, which is the first of each namespace."""


def _link(kind: int, flags: int, body: bytes, command: str, *, index: int = 0, set_flags: int = 0, family: int = 0) -> Request:
    return Request(kind, flags, _LINK.pack(family, 0, index, set_flags, set_flags) + body, command)


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def new_bridge(name: str, mac: str, mtu: int) -> Request:
    """Without spanning tree, so that a new port forwards at once."""
    data = attribute(_BR_FORWARD_DELAY, 0)
    info = nested(_IFLA_LINKINFO, attribute(_INFO_KIND, "bridge"), nested(_INFO_DATA, data))
    body = attribute(_IFLA_IFNAME, name) + attribute(_IFLA_ADDRESS, _mac(mac)) + attribute(_IFLA_MTU, mtu) + info
    return _link(_NEWLINK, CREATE | EXCL, body, f"ip link add {name} address {mac} mtu {mtu} type bridge forward_delay 0")


def new_veth(name: str, bridge: int, netns: int, inside: str, mac: str, mtu: int, *, bridge_name: str) -> Request:
    """A pair of links: ``name`` here, a port of the bridge with that number, and ``inside`` in the namespace of that descriptor."""
    peer = _LINK.pack(0, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, inside) + attribute(_IFLA_ADDRESS, _mac(mac)) + attribute(_IFLA_MTU, mtu)
    peer += attribute(_IFLA_NET_NS_FD, netns)
    info = nested(_IFLA_LINKINFO, attribute(_INFO_KIND, "veth"), nested(_INFO_DATA, attribute(_VETH_PEER, peer)))
    body = attribute(_IFLA_IFNAME, name) + attribute(_IFLA_MTU, mtu) + attribute(_IFLA_MASTER, bridge) + info
    pair = f"type veth peer name {inside} address {mac} mtu {mtu} netns sandbox"
    return _link(_NEWLINK, CREATE | EXCL, body, f"ip link add {name} mtu {mtu} master {bridge_name} {pair}")


def set_master(name: str, index: int, bridge: int, bridge_name: str) -> Request:
    """Make it a port of a bridge."""
    return _link(_NEWLINK, 0, attribute(_IFLA_MASTER, bridge), f"ip link set {name} master {bridge_name}", index=index)


def set_port(name: str, index: int, *, isolated: bool) -> Request:
    """A port of a bridge that learns nothing, so that nobody behind it takes another's frames; ``isolated``: and that reaches the bridge
    itself alone, none of its ports."""
    values = ((_BRPORT_LEARNING, 0), (_BRPORT_UNICAST_FLOOD, 0), (_BRPORT_GUARD, 1), (_BRPORT_ISOLATED, int(isolated)))
    body = nested(_IFLA_PROTINFO, *(attribute(kind, bytes([value])) for kind, value in values))
    words = f"learning off flood off guard on{' isolated on' if isolated else ''}"
    return _link(_SETLINK, 0, body, f"bridge link set dev {name} {words}", index=index, family=socket.AF_BRIDGE)


def add_station(name: str, index: int, mac: str) -> Request:
    """Who is behind a port of a bridge."""
    body = _NEIGHBOUR.pack(socket.AF_BRIDGE, index, _NO_ARP, _MASTER_FLAG, 0) + attribute(_NDA_LLADDR, _mac(mac))
    return Request(_NEWNEIGH, CREATE | REPLACE, body, f"bridge fdb replace {mac} dev {name} master static")


def set_port_up(name: str, index: int) -> Request:
    """Without an address of its own, which a port of a bridge has no use for."""
    no_address = nested(_IFLA_AF_SPEC, nested(socket.AF_INET6, attribute(_ADDR_GEN_MODE, bytes([_NO_LINK_LOCAL]))))
    return _link(_NEWLINK, 0, no_address, f"ip link set {name} up addrgenmode none", index=index, set_flags=_UP)


def no_own_address(name: str, index: int) -> Request:
    """Of IPv6, which a link gives itself when it is set up: before that, and in a request of its own."""
    none = nested(_IFLA_AF_SPEC, nested(socket.AF_INET6, attribute(_ADDR_GEN_MODE, bytes([_NO_LINK_LOCAL]))))
    return _link(_NEWLINK, 0, none, f"ip link set {name} addrgenmode none", index=index)


def set_up(name: str, index: int) -> Request:
    return _link(_NEWLINK, 0, b"", f"ip link set {name} up", index=index, set_flags=_UP)


def set_mtu(name: str, index: int, mtu: int) -> Request:
    return _link(_NEWLINK, 0, attribute(_IFLA_MTU, mtu), f"ip link set {name} mtu {mtu}", index=index)


def set_mac(name: str, index: int, mac: str) -> Request:
    return _link(_NEWLINK, 0, attribute(_IFLA_ADDRESS, _mac(mac)), f"ip link set {name} address {mac}", index=index)


def delete_link(name: str) -> Request:
    return _link(_DELLINK, 0, attribute(_IFLA_IFNAME, name), f"ip link delete {name}")


def add_address(name: str, index: int, address: Interface) -> Request:
    """Usable at once: nobody else can have it, so nobody is asked."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    flags = _NODAD if address.version == 6 else 0
    raw = address.ip.packed
    body = _ADDRESS.pack(family, address.network.prefixlen, flags, 0, index) + attribute(_IFA_LOCAL, raw) + attribute(_IFA_ADDRESS, raw)
    if isinstance(address, IPv4Interface):
        body += attribute(_IFA_BROADCAST, address.network.broadcast_address.packed)
    return Request(_NEWADDR, CREATE | REPLACE, body, f"ip address replace {address} dev {name}{' nodad' if flags else ''}")


def add_default_route(gateway: str, name: str, index: int) -> Request:
    return add_route(None, gateway, name, index)


def add_route(to: Subnet | None, gateway: str, name: str, index: int) -> Request:
    """``to`` None: everywhere."""
    address = ip_address(gateway)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    length, destination = (0, b"") if to is None else (to.prefixlen, attribute(_RTA_DST, to.network_address.packed))
    fixed = _ROUTE.pack(family, length, 0, 0, 254, 3, 0, 1, 0)  # table main, protocol boot, scope universe, unicast
    body = fixed + destination + attribute(_RTA_GATEWAY, address.packed) + attribute(_RTA_OIF, index)
    family_word = " -6" if address.version == 6 else ""
    return Request(_NEWROUTE, CREATE | EXCL, body, f"ip{family_word} route add {to or 'default'} via {gateway} dev {name}")


def refuse_route(to: Subnet) -> Request:
    """Who connects there gets EACCES at once."""
    family = socket.AF_INET if to.version == 4 else socket.AF_INET6
    fixed = _ROUTE.pack(family, to.prefixlen, 0, 0, 254, 3, 0, _PROHIBIT, 0)
    body = fixed + attribute(_RTA_DST, to.network_address.packed)
    return Request(_NEWROUTE, CREATE | REPLACE, body, f"ip{' -6' if to.version == 6 else ''} route replace prohibit {to}")


def set_patience(name: str, index: int, seconds: int) -> Request:
    """How often, once a second, a link asks who has an address of its subnet before "No route to host"; three times otherwise. arp(7)"""
    parameters = nested(_NDTA_PARMS, attribute(_NDTPA_IFINDEX, index), attribute(_NDTPA_MCAST_PROBES, seconds))
    body = struct.pack("=Bxxx", socket.AF_INET) + attribute(_NDTA_NAME, "arp_cache") + parameters
    return Request(_SETNEIGHTBL, 0, body, f"ip ntable change name arp_cache dev {name} mcast_probes {seconds}")


def limit_rate(name: str, index: int, rate: int) -> Request:
    """No more than ``rate`` bytes a second leave by a link, after a burst of an eighth of that; what is too much waits, up to a fifth of a
    second. tc-tbf(8)"""
    burst, limit = max(rate // 8, _LEAST_BURST), max(rate // 8, _LEAST_BURST) + rate // 5
    spec = _RATE.pack(0, _ETHERNET, 0, 0, 0, min(rate, 2**32 - 1))
    parameters = spec + _RATE.pack(0, 0, 0, 0, 0, 0) + struct.pack("=III", min(limit, 2**32 - 1), 0, 0)
    values = [attribute(_TBF_PARMS, parameters), attribute(_TBF_BURST, min(burst, 2**31))]
    values += [attribute(_TBF_RATE64, struct.pack("=Q", rate))] if rate >= 2**32 else []
    body = struct.pack("=BxxxiIII", 0, index, 0, _ROOT, 0) + attribute(_TCA_KIND, "tbf") + nested(_TCA_OPTIONS, *values)
    return Request(_NEWQDISC, CREATE | REPLACE, body, f"tc qdisc replace dev {name} root tbf rate {rate}bps burst {burst} limit {limit}")


def all_links() -> Request:
    """For ``dump``: ``link_of`` reads each answer."""
    return _link(_GETLINK, 0, b"", "ip link")


def all_routes(version: int) -> Request:
    """For ``dump``: ``destination_of`` reads each answer. ``version``: 4 or 6."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    return Request(_GETROUTE, 0, _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0), f"ip -{version} route")


def all_addresses(version: int) -> Request:
    """For ``dump``: ``address_of`` reads each answer. ``version``: 4 or 6."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    return Request(_GETADDR, 0, _ADDRESS.pack(family, 0, 0, 0, 0), f"ip -{version} address")


def address_of(answer: bytes) -> tuple[int, str]:
    """The number of its link, and the address."""
    found = attributes_of(answer, _ADDRESS.size)
    raw = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS, b"")
    return _ADDRESS.unpack_from(answer)[4], str(ip_address(raw)) if raw else ""


def link_of(answer: bytes) -> tuple[int, str]:
    """Its number and its name."""
    name = attributes_of(answer, _LINK.size).get(_IFLA_IFNAME, b"")
    return _LINK.unpack_from(answer)[2], name.rstrip(b"\0").decode("utf-8", "replace")


def destination_of(answer: bytes) -> tuple[str, int]:
    """What a route leads to: an address, empty for everywhere, and the length of its prefix."""
    raw = attributes_of(answer, _ROUTE.size).get(_RTA_DST, b"")
    return (str(ip_address(raw)) if raw else ""), answer[1]


def link_of_route(answer: bytes) -> int:
    """The number of the link over which a route leads, 0 where it names none, or several."""
    return int.from_bytes(attributes_of(answer, _ROUTE.size).get(_RTA_OIF, b""), "little" if sys.byteorder == "little" else "big")


def leads_out(answer: bytes) -> bool:
    """Whether it is a default route that leads somewhere: not one that refuses."""
    return not destination_of(answer)[0] and answer[1] == 0 and answer[4] == _MAIN and answer[7] == _UNICAST
