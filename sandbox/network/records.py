"""Networks on disk.

::

    <state>/networks/           0700
        lock                    shared: somebody takes or gives an address; exclusive: writes the whole table, makes or removes a network
        bridge/                 one directory for each network
            network.json        a Network

A record is all that a network is: its bridge is made at its first use, and again when somebody removed it or the host was booted.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from dockless.base import paths, records
from dockless.base.json import dumps, loads
from dockless.base.later import zlib
from dockless.base.path import Path
from dockless.errors import BadInput, NetworkError, UnknownNetwork
from dockless.images.files import locked, write_atomic
from dockless.sandbox.names import check_id
from dockless.sandbox.network import netlink, rtnetlink
from dockless.sandbox.network.asked import check_network_name
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import DEFAULT, Network

Subnet = IPv4Network | IPv6Network
_POOL = (ip_network("10.112.0.0/12"), 20)
"""Where subnets of IPv4 are chosen, and how long the prefix of each is: 256 networks of some 4,000 sandboxes."""
_RECORD = "network.json"
_BELOW = tuple(map(ip_network, ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "fe80::/10")))
_MTU = (1280, 65535)


def home() -> Path:
    """The directory of all networks of this user."""
    return paths.state() / "networks"


def running(name: str) -> Path:
    """The directory of what a reboot may lose of a network: leases, and what its resolver has."""
    return paths.runtime() / "networks" / name


def lock(*, shared: bool) -> AbstractContextManager[None]:
    """Hold the lock of all networks. ``Unwritable``"""
    return locked(paths.make(home()) / "lock", shared=shared)


def table_name() -> str:
    """What the table and the bridges of this state directory are named by on the host: two of them do not know each other's networks."""
    place = os.path.realpath(paths.state())
    return "dockless" if place == "/var/lib/dockless" else f"dockless-{zlib.crc32(os.fsencode(place)):08x}"


def find(name: str) -> Network:
    """``UnknownNetwork``, ``BadInput`` for what cannot be a name, ``NetworkError`` for a record that cannot be read."""
    check_id(name, "network name")
    place = home() / name / _RECORD
    try:
        found = os.stat(place)
        return _read(place, found.st_ino, found.st_mtime_ns)
    except (FileNotFoundError, NotADirectoryError):
        raise UnknownNetwork(f"there is no network {name}", subject=name, hint="dockless network ls lists them") from None
    except (BadInput, ValueError, RecursionError) as error:
        raise NetworkError(f"the record of network {name} cannot be read: {error}", subject=str(place), hint=f"rm {place}") from error


@lru_cache(maxsize=256)
def _read(place: Path, _inode: int, _changed: int) -> Network:
    """A record is never changed, and another one of its name is another file."""
    return records.read(Network, loads(place.read_bytes()), "network")


def every() -> list[Network]:
    """All of them, by name. One whose record cannot be read is left out."""
    found = []
    for name in _names():
        try:
            found.append(find(name))
        except NetworkError:
            continue
    return found


def torn() -> list[NetworkError]:
    """What is wrong with the records that ``every`` leaves out."""
    found = []
    for name in _names():
        try:
            find(name)
        except NetworkError as error:
            found.append(error)
    return found


def _names() -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(home()) if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."))
    except FileNotFoundError:
        return []


def find_or_make(name: str, host: Host) -> Network:
    """The default network is made at its first use; any other is there, or ``UnknownNetwork``."""
    try:
        return find(name)
    except UnknownNetwork:
        if name != DEFAULT:
            raise
    try:
        return create(DEFAULT, host=host, isolated=True, named=False)
    except BadInput:  # somebody was quicker
        return find(name)


def create(
    name: str,
    *,
    host: Host | None = None,
    subnets: Iterable[str] = (),
    gateways: Iterable[str] = (),
    mtu: int = 1500,
    internal: bool = False,
    isolated: bool = False,
    named: bool = True,
    labels: Iterable[tuple[str, str]] = (),
    owner: int = 0,
    patience: int = 0,
) -> Network:
    """Write one down. ``subnets``: as in ``Network``, chosen where there are none; ``gateways``: the first address of each where there are
    none. ``BadInput``: the name is taken, or a subnet is no subnet or in use on this host."""
    check_network_name(name)
    if not _MTU[0] <= mtu <= _MTU[1]:
        raise BadInput(f"an MTU of {mtu} bytes is out of range", subject="mtu", hint=f"it goes from {_MTU[0]} to {_MTU[1]}")
    with lock(shared=False):
        if (home() / name).exists():
            raise BadInput(f"there is a network {name} already", subject=name, hint=f"choose another name, or: dockless network rm {name}")
        chosen = [_subnet(text) for text in subnets] or _chosen(host or Host())
        _check_together(chosen, host or Host())
        own = _gateways(chosen, tuple(gateways))
        network = Network(
            name, tuple(map(str, chosen)), own, _bridge_name(name), mtu, internal, isolated, named, tuple(labels), owner, time.time(),
            patience,
        )  # fmt: skip
        with paths.writing("the record of a network", home() / name):
            new = home() / f".{name}"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(0o700)
            write_atomic(new / _RECORD, dumps(records.plain(network)).encode())
            new.rename(home() / name)
    return network


def forget(name: str) -> None:
    """Its record, without its bridge; the caller holds the lock, exclusive. ``Unwritable``"""
    with paths.writing("the record of a network", home() / name):
        (home() / name).rename(home() / f".{name}")
        shutil.rmtree(home() / f".{name}")
        shutil.rmtree(running(name), ignore_errors=True)


def _bridge_name(name: str) -> str:
    """15 bytes at most; that of the default network of root says whose it is. netdevice(7)"""
    return "dockless0" if name == DEFAULT and table_name() == "dockless" else f"dl-{os.urandom(5).hex()}"


def _subnet(text: str) -> Subnet:
    try:
        return ip_network(text)
    except ValueError as error:
        hint = "write a network, 10.20.0.0/16 or fd00:1::/64, with no bit set behind the prefix"
        raise BadInput(f"subnet {text[:60]!r}: {error}", subject="subnet", hint=hint) from None


def _check_together(chosen: list[Subnet], host: Host) -> None:
    if len({subnet.version for subnet in chosen}) < len(chosen):
        raise BadInput("two subnets of one kind", subject="subnet", hint="a network has one of IPv4, one of IPv6, or one of each")
    chosen.sort(key=lambda subnet: subnet.version)
    taken = _taken(host)
    for subnet in chosen:
        smallest = 30 if subnet.version == 4 else 126 if len(chosen) == 1 else 80
        if subnet.prefixlen > smallest:
            raise BadInput(f"subnet {subnet} has no room for a gateway and a sandbox", subject="subnet", hint=f"/{smallest} at least")
        if any(subnet.version == below.version and subnet.overlaps(below) for below in _BELOW):
            raise BadInput(f"subnet {subnet} has addresses that no host may have", subject="subnet", hint="10.20.0.0/16 or fd00:1::/64")
        for what, other in taken:
            if subnet.version == other.version and subnet.overlaps(other):
                hint = "choose another, or leave it out"
                raise BadInput(f"subnet {subnet} overlaps {other}, which {what} has", subject="subnet", hint=hint)


def _gateways(chosen: Sequence[Subnet], asked: tuple[str, ...]) -> tuple[str, ...]:
    found: dict[int, str] = {}
    for text in asked:
        try:
            address = ip_address(text)
        except ValueError:
            raise BadInput(f"gateway {text[:60]!r} is not an address", subject="gateway", hint="write 10.20.0.1 or fd00:1::1") from None
        within = next((subnet for subnet in chosen if subnet.version == address.version), None)
        if within is None or address not in within or address in (within.network_address, within.broadcast_address):
            raise BadInput(f"gateway {address} is not an address of the network's subnet", subject="gateway", hint="leave it out")
        found[address.version] = str(address)
    return tuple(found.get(subnet.version) or str(subnet.network_address + 1) for subnet in chosen)


def _chosen(host: Host) -> list[Subnet]:
    """One of IPv4 that nothing here has, and one of IPv6 where this host has that. RFC 1918, RFC 4193"""
    pool, length = _POOL
    taken = [other for _, other in _taken(host) if other.version == 4]
    free = next((subnet for subnet in pool.subnets(new_prefix=length) if not any(subnet.overlaps(other) for other in taken)), None)
    if free is None:
        raise NetworkError(f"no subnet of {pool} is free", subject="subnet", hint="name one: --subnet, or remove networks that nobody uses")
    with_six = os.path.exists("/proc/sys/net/ipv6")
    return [free, IPv6Network((b"\xfd" + os.urandom(7) + bytes(8), 64))] if with_six else [free]


def _taken(host: Host) -> list[tuple[str, Subnet]]:
    """What other networks have, and where routes of this host lead to."""
    found: list[tuple[str, Subnet]] = [(f"network {known.name}", ip_network(text)) for known in every() for text in known.subnets]
    bridges = {gateway for known in every() for gateway in known.gateways}
    with host.netlink(netlink.ROUTE) as asking:
        for version in (4, 6):
            try:
                answers = netlink.dump(asking, rtnetlink.all_routes(version))
            except OSError:  # a host without IPv6
                continue
            for answer in answers:
                address, length = rtnetlink.destination_of(answer)
                if address and length and answer[0] == (socket.AF_INET if version == 4 else socket.AF_INET6):
                    route = ip_network(f"{address}/{length}", strict=False)
                    if route.prefixlen >= 8 and not route.is_link_local and not route.is_multicast and address not in bridges:
                        found.append(("a route of this host", route))
    return found
