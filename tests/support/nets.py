"""A host of its own with two bridges, sandboxes on them and somebody outside: network namespaces, linked by our own requests.

::

    outside 192.0.2.9, 2001:db8:9::9 ── wan ── host ── dl0 ── sandboxes of "one"
                                                  └── dl1 ── sandboxes of "two"

Nothing of it is in the machine's own network, and all of it goes when the descriptors are closed. An ordinary user's is in a user
namespace of her own. Sockets are opened inside; programs such as nft enter by nsenter(1).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from ipaddress import ip_interface

from dockless.native.netns import NetworkNamespace, socket_in
from dockless.sandbox.network import netlink, nftables, rtnetlink, table
from dockless.sandbox.network.model import Lease, Network
from dockless.sandbox.network.netlink import Request

OUTSIDE, HOST = ("192.0.2.9", "2001:db8:9::9"), ("192.0.2.1", "2001:db8:9::1")
NAME = "dockless"
BRIDGE_MAC = "02:00:00:00:00:{:02x}"
_SIOCGIFINDEX = 0x8933


def network(name: str, number: int, **options: object) -> Network:
    """The one with 10.113.NUMBER.0/24 and fd13:NUMBER::/64 on the bridge dlNUMBER."""
    subnets, gateways = (f"10.113.{number}.0/24", f"fd13:{number}::/64"), (f"10.113.{number}.1", f"fd13:{number}::1")
    return Network(name, subnets, gateways, f"dl{number}", **options)


def lease(network: Network, number: int, link: str = "", **options: object) -> Lease:
    """The one with the addresses of that number."""
    at = int(network.bridge[2:])
    addresses = (f"10.113.{at}.{number}", f"fd13:{at}::{number:x}")
    return Lease(
        network.name, addresses, f"02:42:0a:71:{at:02x}:{number:02x}", link or f"dlv{at}x{number}", f"/s{number}", number, **options
    )


class Place:
    """A network namespace, its sockets and its programs."""

    def __init__(self, user: int = -1) -> None:
        self.user = user
        self.namespace = NetworkNamespace(user)
        self.route = netlink.prepare(self.namespace.route)

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        return socket_in(self.namespace.fd, family, kind, protocol, user=self.user)

    def index(self, link: str) -> int:
        import fcntl

        with self.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            return struct.unpack_from("=16si", fcntl.ioctl(asking, _SIOCGIFINDEX, struct.pack("=16si20x", link.encode(), 0)))[1]

    def do(self, *requests: Request) -> None:
        netlink.carry_out(self.route, requests)

    def transact(self, requests: Sequence[Request]) -> None:
        with netlink.prepare(self.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETFILTER)) as asking:
            nftables.carry_out(asking, requests)

    def run(self, *argv: str, given: str = "") -> str:
        """What a program inside says. Its failure is the test's."""
        enter = ["nsenter", f"--net=/proc/self/fd/{self.namespace.fd}"]
        keep = [self.namespace.fd]
        if self.user >= 0:
            enter += [f"--user=/proc/self/fd/{self.user}", "--preserve-credentials"]
            keep.append(self.user)
        found = subprocess.run([*enter, *argv], input=given, capture_output=True, text=True, pass_fds=keep, timeout=60)
        assert found.returncode == 0, found.stderr
        return found.stdout

    def sysctl(self, **values: object) -> None:
        for name, value in values.items():
            self.run("tee", "/proc/sys/net/" + name.replace("__", "/"), given=str(value))

    def listed(self) -> list[object]:
        """``nft list ruleset``, but for numbers that differ each time, in an order of its own."""
        return listed(self.run("nft", "-j", "list", "ruleset"))

    def close(self) -> None:
        self.namespace.close()


def listed(text: str) -> list[object]:
    def plain(value: object) -> object:
        if isinstance(value, dict):
            kept = {key: plain(one) for key, one in value.items() if key not in ("handle", "expires")}
            if "elem" in kept and isinstance(kept["elem"], list):
                kept["elem"] = sorted(kept["elem"], key=json.dumps)
            return kept
        return [plain(one) for one in value] if isinstance(value, list) else value

    objects = [plain(one) for one in json.loads(text)["nftables"] if "metainfo" not in one]
    rules = [one for one in objects if "rule" in one]  # their order is what they mean
    rules.sort(key=lambda one: (one["rule"]["family"], one["rule"]["table"], one["rule"]["chain"]))
    return [*sorted((one for one in objects if "rule" not in one), key=json.dumps), *rules]


class World:
    """``host`` with the networks and ``outside``; ``start`` adds a sandbox. ``user``: a user namespace for all of it, -1 for none.
    ``calls``: what a bridge carries passes the tables of IP as well, where the kernel can (br_netfilter)."""

    def __init__(self, networks: Sequence[Network], user: int = -1, *, calls: bool = False) -> None:
        self.user, self.networks = user, list(networks)
        self.leases: list[Lease] = []
        self.places: dict[str, Place] = {}
        self.host, self.outside = Place(user), Place(user)
        self.host.do(rtnetlink.set_up("lo", rtnetlink.LOOPBACK))
        self.host.sysctl(ipv4__ip_forward=1, ipv6__conf__all__forwarding=1, ipv4__ping_group_range="0 0")
        if os.path.exists("/proc/sys/net/bridge"):
            self.host.sysctl(**{f"bridge__bridge-nf-call-{tables}": int(calls) for tables in ("iptables", "ip6tables")})
        self._wire(self.outside, "wan", "eth0")
        for one in networks:
            self._bridge(one)
        self.write()

    def _wire(self, other: Place, here: str, there: str) -> None:
        """A pair of links between the host and somebody who is on none of the networks."""
        self.host.run("ip", "link", "add", here, "type", "veth", "peer", "name", there)
        self.host.do(_moved(self.host.index(there), other.namespace.fd))
        for place, link, addresses in ((self.host, here, HOST), (other, there, OUTSIDE)):
            index = place.index(link)
            place.do(rtnetlink.set_up("lo", 1), rtnetlink.set_up(link, index), *_addresses(link, index, addresses, (24, 64)))

    def _bridge(self, one: Network) -> None:
        self.host.do(rtnetlink.new_bridge(one.bridge, BRIDGE_MAC.format(int(one.bridge[2:])), one.mtu))
        index = self.host.index(one.bridge)
        self.host.sysctl(**{f"ipv6__conf__{one.bridge}__accept_dad": 0, f"ipv4__conf__{one.bridge}__route_localnet": 1})
        lengths = [int(subnet.partition("/")[2]) for subnet in one.subnets]
        self.host.do(rtnetlink.set_up(one.bridge, index), *_addresses(one.bridge, index, one.gateways, lengths))

    def write(self) -> None:
        self.host.transact(table.requests_for(NAME, self.networks, self.leases))

    def start(self, one: Network, number: int, **options: object) -> Place:
        """A sandbox's place, with its link and its elements."""
        made = lease(one, number, **options)
        place = Place(self.user)
        bridge = self.host.index(one.bridge)
        self.host.do(rtnetlink.new_veth(made.link, bridge, place.namespace.fd, "eth0", made.mac, one.mtu, bridge_name=one.bridge))
        index = self.host.index(made.link)
        self.host.do(
            rtnetlink.set_port(made.link, index, isolated=one.isolated),
            rtnetlink.add_station(made.link, index, made.mac),
            rtnetlink.set_port_up(made.link, index),
        )
        inside = place.index("eth0")
        lengths = [int(subnet.partition("/")[2]) for subnet in one.subnets]
        place.sysctl(ipv6__conf__eth0__accept_dad=0)  # its link-local address is usable at once
        place.do(rtnetlink.set_up("lo", 1), rtnetlink.set_up("eth0", inside), *_addresses("eth0", inside, made.addresses, lengths))
        place.do(*(rtnetlink.add_default_route(gateway, "eth0", inside) for gateway in one.gateways))
        self.host.transact(table.requests_to_add(NAME, one, made))
        self.leases.append(made)
        self.places[made.link] = place
        return place

    def close(self) -> None:
        for place in (self.host, self.outside, *self.places.values()):
            place.close()


def _moved(index: int, netns: int) -> Request:
    return Request(16, 0, struct.pack("=BxHiII", 0, 0, index, 0, 0) + netlink.attribute(28, netns), "ip link set netns")


def _addresses(link: str, index: int, addresses: Sequence[str], lengths: Sequence[int]) -> list[Request]:
    return [
        rtnetlink.add_address(link, index, ip_interface(f"{address}/{length}")) for address, length in zip(addresses, lengths, strict=True)
    ]


@contextlib.contextmanager
def user_namespace() -> Iterator[int]:
    """A descriptor of a user namespace in which an ordinary user is root; -1 for root, who needs none."""
    if os.geteuid() == 0:
        yield -1
        return
    with subprocess.Popen(["unshare", "-Ur", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as waiting:
        assert waiting.stdin is not None and waiting.stdout is not None
        waiting.stdin.write(b"x")
        waiting.stdin.flush()
        waiting.stdout.read(1)
        fd = os.open(f"/proc/{waiting.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        waiting.stdin.close()
    try:
        yield fd
    finally:
        os.close(fd)


# ---- traffic --------------------------------------------------------------------------------------------------------------------------


def family_of(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Service:
    """Somebody who listens on all addresses of a place, answers, and keeps in ``asked`` who asked."""

    def __init__(self, place: Place, port: int, protocol: str = "tcp", family: int = socket.AF_INET) -> None:
        self.protocol = protocol
        self.asked: list[str] = []
        self.socket = place.socket(family, socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self.socket.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
        if protocol == "tcp":
            self.socket.listen(64)
        self.reader, self.writer = os.pipe()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while self.reader not in select.select([self.socket, self.reader], [], [])[0]:
            if self.protocol == "tcp":
                connected, address = self.socket.accept()
                self.asked.append(re.sub("%.*", "", address[0]))
                connected.close()
            else:
                said, address = self.socket.recvfrom(65536)
                self.asked.append(re.sub("%.*", "", address[0]))
                self.socket.sendto(said[:100], address)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.writer)
        self.thread.join()
        os.close(self.reader)
        self.socket.close()


def reach(place: Place, address: str, port: int, protocol: str = "tcp", *, source: str = "", seconds: float = 5, sent: bytes = b"x") -> str:
    """What comes of it: ``open``; ``refused`` and ``prohibited``, which a program is told at once; ``silence`` after some seconds."""
    family = family_of(address)
    with place.socket(family, socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM) as asking:
        if family == socket.AF_INET6 and protocol == "udp":
            asking.setsockopt(socket.IPPROTO_IPV6, 25, 1)  # IPV6_RECVERR
        if source:
            asking.bind((source, 0))
        asking.settimeout(seconds)
        to = (address, port, 0, place.index("eth0")) if address.startswith("fe80:") else (address, port)
        try:
            asking.connect(to)
            if protocol == "udp":
                asking.send(sent)
            asking.recv(2048)
        except TimeoutError:
            return "silence"
        except ConnectionRefusedError:
            return "refused"
        except PermissionError:
            return "prohibited"
        except OSError as error:
            return {113: "prohibited", 101: "prohibited"}.get(error.errno or 0, str(error))
    return "open"
