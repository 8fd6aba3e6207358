"""A sandbox of an ordinary user on the default network: pasta(1), which carries what leaves and what comes as a process of hers.

::

    the host's network namespace          the sandbox's
        pasta ── sockets of hers              eth0, a tap device whose other end pasta has

No root is needed, and no bridge: two sandboxes have the same addresses and do not see each other. pasta is started with no way from
inside to the host's loopback. What a sandbox may reach besides is a matter of routes inside, which it cannot change without NET_ADMIN.

The options of pasta differ from version to version. What the installed one has is read from its ``--help``, once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from ipaddress import ip_address, ip_interface, ip_network

from dockless.base import idmaps
from dockless.base.dataclass import dataclass
from dockless.errors import BadInput, NetworkError, Unsupported
from dockless.sandbox.network import netlink, rtnetlink
from dockless.sandbox.network.host import Host, leads_out
from dockless.sandbox.network.model import METADATA, Egress, Endpoint, Network, Port, is_name
from dockless.sandbox.network.netlink import Request
from dockless.sandbox.network.rtnetlink import Subnet

LINK = "eth0"
OUT = "out0"
"""The same where there are links of other networks besides."""
NAMESPACE_FD, READY_FD, ERRORS_FD = 0, 1, 2
"""What pasta finds on its standard streams. Newer versions close all other descriptors before they read an option."""
_TUN = "/dev/net/tun"
_MTU = 65520
"""Of the tap: the largest that pasta takes, so that few packets carry much."""
_HELP_TIMEOUT = 10.0  # seconds
_LINK_LOCAL = "fe80::2/128"
"""Its own, with no route to others of the kind, before the link is up: what the kernel sends then it would send from ::, and versions of
pasta take that for the sandbox's address."""
_OF_THE_WORLD = ("2000::/3", "fc00::/7", "64:ff9b::/96")
"""All of IPv6 that leads beyond a link. Without a route to fe80::/10 the host's own addresses there are out of reach."""
_NET_ADMIN, _NET_RAW, _SYS_PTRACE = 1 << 12, 1 << 13, 1 << 19
_INSTALL = "apt install passt (Fedora, Arch: passt), or --network host or none"


@dataclass(frozen=True, slots=True)
class Pasta:
    """The installed one: its path, and the options that it has."""

    path: str
    options: frozenset[str]

    @property
    def drops_loopback(self) -> bool:
        """Whether packets for 127.0.0.1 that somebody writes to the link by hand are dropped, and not sent to the host's loopback. It does
        since the release that has this option (August 2024)."""
        return "--map-host-loopback" in self.options


@dataclass(frozen=True, slots=True)
class WayOut:
    """What the host has: ``versions`` of IP that lead out, 4 and 6, and the ``link`` for pasta to look at where no route does."""

    versions: tuple[int, ...]
    link: str = ""


_known: dict[tuple[str, int, int], Pasta] = {}


def installed() -> Pasta:
    """``Unsupported`` where there is none, or no device for it."""
    path = idmaps.find_program("pasta")
    if path is None:
        raise Unsupported("networks of an ordinary user need pasta, which is not installed", subject="pasta", hint=_INSTALL)
    if not os.access(_TUN, os.R_OK | os.W_OK):
        hint = f"as root: modprobe tun && chmod 666 {_TUN}"
        raise Unsupported(f"pasta needs {_TUN}, which this user cannot open", subject=_TUN, hint=hint)
    found = os.stat(path)
    stamp = path, found.st_ino, found.st_mtime_ns
    known = _known.get(stamp)
    if known is None:
        known = _known[stamp] = Pasta(path, frozenset(_options(path)))
    return known


def _options(path: str) -> Iterable[str]:
    import subprocess

    try:
        said = subprocess.run(
            [path, "--help"],
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_HELP_TIMEOUT,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"{path} --help: {error}", subject=path, hint="reinstall the package passt") from error
    words = said.decode("utf-8", "replace").replace(",", " ").split()
    return (word for word in words if word.startswith("--"))


def check(egress: Egress, rights: int, pasta: Pasta, *, sees_processes: bool = False) -> None:
    """Refuse what pasta cannot hold. ``rights``: the capabilities of the sandbox, as a mask; ``sees_processes``: those of the host, and so
    pasta itself. ``Unsupported``"""
    if egress.rate or egress.log:
        word = "net_rate" if egress.rate else "log_denied"
        raise Unsupported("pasta neither limits a rate nor logs what is refused", subject=word, hint="run it as root, or leave it out")
    for rule in egress.allow or ():
        if is_name(rule.to) or rule.ports:
            what = "names" if is_name(rule.to) else "ports"
            hint = "allow a network, 10.0.0.0/8, or run it as root"
            raise Unsupported(f"without root {what} cannot be allowed apart: {rule.to}", subject="allow_out", hint=hint)
    has = " and ".join(name for name, bit in (("NET_ADMIN", _NET_ADMIN), ("NET_RAW", _NET_RAW)) if rights & bit)
    if has and egress.is_limited:
        raise Unsupported(
            f"a sandbox with {has} gets round rules for what leaves it", subject="cap_add", hint=f"drop {has}, or run it as root"
        )
    if sees_processes and rights & _SYS_PTRACE:
        hint = "drop SYS_PTRACE, or give it no view of the host's processes"
        raise Unsupported("a sandbox with SYS_PTRACE that sees pasta has what pasta has, the host's loopback", subject="cap_add", hint=hint)
    if has and not pasta.drops_loopback:
        hint = f"drop {has}, or install passt of August 2024 or newer"
        raise Unsupported(f"with {has} a sandbox would reach the host's loopback through this pasta", subject="cap_add", hint=hint)


def way_out(host: Host) -> WayOut:
    """``OSError``"""
    with host.netlink(netlink.ROUTE) as asking:
        versions = tuple(version for version in (4, 6) if leads_out(asking, version))
        if versions:
            return WayOut(versions)
        of_links = dict(rtnetlink.link_of(answer) for answer in netlink.dump(asking, rtnetlink.all_links()))
        for version in (4, 6):
            for index, address in _addresses(asking, version):
                found = ip_address(address)
                if not found.is_loopback and not found.is_link_local and of_links.get(index, "lo") != "lo":
                    return WayOut((version,), of_links[index])
    return WayOut(())


def _addresses(asking: socket.socket, version: int) -> list[tuple[int, str]]:
    try:
        answers = netlink.dump(asking, rtnetlink.all_addresses(version))
    except OSError:
        return []
    return [rtnetlink.address_of(answer) for answer in answers]


def own_addresses(host: Host) -> list[str]:
    """All that are local to the host, but those of its loopback."""
    with host.netlink(netlink.ROUTE) as asking:
        found = [address for version in (4, 6) for _, address in _addresses(asking, version) if address]
    return [address for address in found if not ip_address(address).is_loopback]


@dataclass(frozen=True, slots=True)
class Address:
    """What a sandbox has of one kind: its own address with the prefix, and the gateway, which is pasta."""

    own: str
    gateway: str

    @property
    def version(self) -> int:
        return ip_interface(self.own).version


_BETWEEN = (Address("192.0.0.2/29", "192.0.0.1"), Address("fd64:6f63:6b6c::2/64", "fd64:6f63:6b6c::1"))
"""RFC 7335: for what translates addresses on a host itself; and one of RFC 4193."""


def between(versions: Sequence[int]) -> tuple[Address, ...]:
    """What one has that is on other networks besides: addresses that no network of hers can have."""
    return tuple(address for address in _BETWEEN if address.version in versions)


def addresses_of(network: Network, endpoint: Endpoint, versions: Sequence[int]) -> tuple[Address, ...]:
    """Of the kinds that lead out. ``BadInput`` for an address that is not of the network."""
    found = []
    asked = {ip_address(text).version: ip_address(text) for text in endpoint.addresses}
    for text, gateway in zip(network.subnets, network.gateways, strict=True):
        subnet = ip_network(text)
        own = asked.pop(subnet.version, None)
        if own is not None and (own not in subnet or str(own) == gateway or own in (subnet.network_address, subnet.broadcast_address)):
            hint = f"its subnets are {', '.join(network.subnets)}, its own addresses {', '.join(network.gateways)}"
            raise BadInput(f"no sandbox can have the address {own} on network {network.name}", subject="network", hint=hint)
        if subnet.version in versions:
            found.append(Address(f"{own or ip_address(gateway) + 1}/{subnet.prefixlen}", gateway))
    if asked:
        raise BadInput(f"network {network.name} has no subnet for {next(iter(asked.values()))}", subject="network", hint="leave it out")
    return tuple(found)


def check_published(ports: Sequence[Port], versions: Sequence[int]) -> None:
    """Refuse addresses of a kind that does not lead out of the host: pasta opens no port on these. ``NetworkError``"""
    for port in ports:
        if port.address and ip_address(port.address).version not in versions:
            kind = f"IPv{ip_address(port.address).version}"
            why = f"pasta publishes no port on {port.address}: this host has no {kind} that leads out"
            raise NetworkError(why, subject="ports", hint=f"leave the address out (-p {port.outside}:{port.inside}), or run it as root")


def arguments(
    pasta: Pasta, way: WayOut, addresses: Sequence[Address], ports: Sequence[Port], asked: Iterable[int], link: str = LINK
) -> list[str]:
    """The command line. ``asked``: kinds of which the host's /etc/resolv.conf has a DNS server; what the sandbox asks at its gateway
    goes to the first of the same kind, by UDP, and with newer versions of pasta by TCP. ``link``: the name of the one that it makes."""
    words = [pasta.path, "--foreground", "--quiet", "--no-dhcp", "--no-dhcpv6", "--no-ra"]
    words += ["--no-map-gw"] if "--no-map-gw" in pasta.options else ["--map-host-loopback", "none"]
    words += ["--map-guest-addr", "none"] if "--map-guest-addr" in pasta.options else []
    words += ["--no-netns-quit"] if "--no-netns-quit" in pasta.options else []
    words += ["--netns-only", "--netns", f"/proc/self/fd/{NAMESPACE_FD}", "--pid", f"/proc/self/fd/{READY_FD}", "--ns-ifname", link]
    words += ["--interface", way.link] if way.link else []
    words += [f"--ipv{way.versions[0]}-only"] if len(way.versions) == 1 else []
    for address in addresses:
        own = ip_interface(address.own)
        words += ["--address", str(own.ip), "--gateway", address.gateway]
        words += ["--netmask", str(own.network.prefixlen)] if own.version == 4 else []
        words += ["--dns-forward", address.gateway] if own.version in asked else []
    for option, protocol in (("--tcp-ports", "tcp"), ("--udp-ports", "udp")):
        published = [_published(port) for port in ports if port.protocol == protocol]
        for text in published or ["none"]:
            words += [option, text]
    return [*words, "--tcp-ns", "none", "--udp-ns", "none"]


def _published(port: Port) -> str:
    """As pasta writes it: 127.0.0.1/8000-8009:80-89."""
    outside, inside = (f"{first}-{first + port.count - 1}" if port.count > 1 else str(first) for first in (port.outside, port.inside))
    return f"{port.address}/{outside}:{inside}" if port.address else f"{outside}:{inside}"


def settings(index: int, addresses: Sequence[Address], mac: str, egress: Egress, own: Sequence[str], link: str = LINK) -> list[Request]:
    """What is set up inside when pasta has made its link, of that ``index``. ``own``: the host's addresses."""
    requests = [rtnetlink.set_up("lo", rtnetlink.LOOPBACK)]
    if not addresses:
        return requests
    requests += [rtnetlink.set_mac(link, index, mac)] if mac else []
    if any(address.version == 6 for address in addresses):
        requests += [rtnetlink.no_own_address(link, index), rtnetlink.add_address(link, index, ip_interface(_LINK_LOCAL))]
    requests += [rtnetlink.set_mtu(link, index, _MTU), rtnetlink.set_up(link, index)]
    requests += [rtnetlink.add_address(link, index, ip_interface(address.own)) for address in addresses]
    for address in addresses:
        refused = [] if egress.host else [net for net in map(ip_network, (*own, *METADATA.values())) if net.version == address.version]
        requests += [rtnetlink.refuse_route(net) for net in refused]
        requests += [rtnetlink.add_route(net, address.gateway, link, index) for net in _allowed(egress, address.version, refused)]
    return requests


def _allowed(egress: Egress, version: int, refused: Sequence[Subnet]) -> Sequence[Subnet | None]:
    """Where routes lead; None: everywhere. Of what is refused nothing is allowed, not even by a rule of its own."""
    if egress.allow is None:
        return [None] if egress.host or version == 4 else [ip_network(text) for text in _OF_THE_WORLD]
    asked = [ip_network(rule.to, strict=False) for rule in egress.allow]
    return list(dict.fromkeys(net for net in asked if net.version == version and not any(_within(net, other) for other in refused)))


def _within(net: Subnet, other: Subnet) -> bool:
    return net.version == other.version and net.prefixlen >= other.prefixlen and net.network_address in other


def refusal(said: str) -> NetworkError:
    """The error of a pasta that has ended at once. ``said``: on its standard error."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and "to syslog" not in line and "AVX2" not in line]
    why = "; ".join(lines)[:400] or "it ended without a word"
    hint = "see ss -ln for who has the port" if "bind" in why else "dockless doctor checks networks; --network host or none need no pasta"
    return NetworkError(f"pasta did not start: {why}", subject="pasta", hint=hint)
