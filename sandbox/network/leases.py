"""Addresses: a file each, which lasts as long as its sandbox does.

A lease is made by making the file ``<runtime>/networks/<network>/leases/<address>``, which one alone can do. It lives as long as its link,
whose name was never used before: that goes with the sandbox's network namespace, and that with its last process, however it ends. Until
there is a link, whoever is starting the sandbox holds the file's lock. So nothing has to be told at the end, and no address is held by a
sandbox that has ended. What it left is taken over by the next one that wants the address (``take``), or removed
(``admission.sweep``). flock(2)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from dockless.base import paths, records
from dockless.base.dataclass import dataclass, replace
from dockless.base.json import dumps, loads
from dockless.base.locks import is_locked
from dockless.base.path import Path
from dockless.errors import AddressTaken, BadInput
from dockless.sandbox.network import conntrack, netlink, own_host, rtnetlink
from dockless.sandbox.network import records as networks
from dockless.sandbox.network.host import Host, index_of
from dockless.sandbox.network.model import Endpoint, Lease, Network

Address = IPv4Address | IPv6Address
_CHOSEN = 1 << 32
"""Where the addresses begin that are chosen in a second subnet, which is one of IPv6."""
_NEXT = "next"
"""The file with the place of the address that is tried first."""
_MOST = 1 << 20
"""Bytes of a lease that is read."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A lease that was just made: ``fd`` holds its lock, and is the caller's to close when its link is there. ``before``: the dead one that
    had the address. ``used``: others may have had it whose connections the kernel has still."""

    lease: Lease
    fd: int
    before: Lease | None
    used: bool = False


def place(network: str) -> Path:
    """The directory of its leases, which a reboot may lose: whoever had them is gone."""
    return networks.running(network) / "leases"


def read(network: str) -> list[Lease]:
    """All of a network, dead ones too, by their addresses. What is torn is left out."""
    try:
        names = os.listdir(place(network))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [lease for name in names if (lease := _parsed(place(network) / name)) is not None]
    return sorted(found, key=lambda lease: ip_address(lease.addresses[0]).packed)


def of(directory: Path) -> list[Lease]:
    """Those of the sandbox that lives in a directory, in the order of its endpoints; and dead ones of sandboxes whose directory had the
    same number. ``FileNotFoundError``"""
    number = os.stat(directory).st_ino
    found = [lease for known in networks.every() for lease in read(known.name) if lease.inode == number]
    return sorted(found, key=lambda lease: lease.serial)


def of_name(sandbox: str) -> list[Lease]:
    """Those of the sandbox that has this id now, as far as they are alive, in the order of its endpoints."""
    found = [lease for known in networks.every() for lease in read(known.name) if os.path.basename(lease.sandbox) == sandbox]
    return sorted(filter(alive, found), key=lambda lease: lease.serial)


def alive(lease: Lease, host: Host | None = None) -> bool:
    """Whether its sandbox has it still. ``host``: where its link is."""
    if host is None:
        with own_host.looking() as found:
            return alive(lease, found)
    return bool(host.index_of(lease.link)) or is_locked(_path(lease))


def living(host: Host, network: str) -> list[Lease]:
    """Those of a network that are alive."""
    return _parted(host, network)[0]


def _parted(host: Host, network: str) -> tuple[list[Lease], list[Lease]]:
    """Those that are alive, and the dead ones."""
    import socket

    parts: tuple[list[Lease], list[Lease]] = ([], [])
    with host.open(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for lease in read(network):
            lives = index_of(asking, lease.link) or is_locked(_path(lease))
            parts[0 if lives else 1].append(lease)
    return parts


def take(network: Network, endpoint: Endpoint, make: Callable[[tuple[str, ...], str], Lease], host: Host) -> Taken:
    """An address of a network, of each kind that it has: the one that is asked for, or the next one. ``make``: the lease of these addresses
    with this MAC. The caller holds the lock of the networks. ``AddressTaken``, ``BadInput``, ``Unwritable``"""
    asked = _asked(network, endpoint)
    subnets = [ip_network(text) for text in network.subnets]
    first = subnets[0]
    if endpoint.addresses:
        _end_earlier(network, make((), "").inode, host)
    if endpoint.mac and any(lease.mac == endpoint.mac for lease in living(host, network.name)):
        raise AddressTaken(f"MAC address {endpoint.mac} is taken on network {network.name}", subject="mac", hint="choose another")
    _check_second(network, asked.get(subnets[-1].version) if len(subnets) > 1 else None, host)
    paths.make(place(network.name))
    with paths.writing("the lease of an address", place(network.name)), _turn(network) as turn:
        for offset in _candidates(network, asked.get(first.version), turn.place):
            addresses = tuple(asked.get(subnet.version) or at(subnet, offset, subnet is first) for subnet in subnets)
            lease = make(tuple(map(str, addresses)), endpoint.mac or mac_of(addresses[0]))
            taken = _take_one(lease, host)
            if taken is None:
                continue
            if endpoint.addresses:
                return replace(taken, used=offset < turn.place)
            began_anew = offset < turn.place
            turn.go_on(offset + 1)
            if began_anew:
                has = {address for one in living(host, network.name) if one != lease for address in one.addresses}
                conntrack.forget_all_but(host, network.subnets, has)
            return taken
    if endpoint.addresses:
        raise AddressTaken(f"address {endpoint.addresses[0]} is taken on network {network.name}", subject="ip", hint="choose another")
    hint = f"dockless network inspect {network.name} shows who has them; make one with a larger subnet"
    raise AddressTaken(f"network {network.name} has no free address in {first}", subject=network.name, hint=hint)


def _end_earlier(network: Network, inode: int, host: Host) -> None:
    """Remove the link of an earlier run of the same sandbox, which the kernel is still taking apart. It has ended: who starts it again
    holds its lock."""
    for lease in read(network.name):
        if lease.inode == inode and host.index_of(lease.link):
            with host.netlink(netlink.ROUTE) as asking:
                netlink.carry_out(asking, [rtnetlink.delete_link(lease.link)], known=(errno.ENODEV,))


def at(subnet: IPv4Network | IPv6Network, offset: int, is_first: bool) -> Address:
    """The address of that place in the first subnet, and its like in the second, where it lies apart from those that can be asked for."""
    return subnet[offset] if is_first else subnet[offset + _CHOSEN]


def is_chosen(address: str) -> bool:
    """Whether dockless chose it, an address of a second subnet: then who has the one of the first subnet has it, and nobody else."""
    return bool(int(ip_address(address)) & _CHOSEN)


def _check_second(network: Network, asked: Address | None, host: Host) -> None:
    """``AddressTaken`` for an address of the second subnet, by which no file is named."""
    if asked is None:
        return
    if int(asked) - int(ip_network(network.subnets[1]).network_address) >= _CHOSEN:
        raise BadInput(
            f"address {asked} is one of those that dockless chooses", subject="ip", hint="ask for one whose last 32 bits alone are set"
        )
    if any(str(asked) in lease.addresses for lease in living(host, network.name)):
        raise AddressTaken(f"address {asked} is taken on network {network.name}", subject="ip", hint="choose another")


def release(lease: Lease) -> None:
    """Forget one: its sandbox has ended, or never began."""
    _if_it_is(lease, lambda fd: os.unlink(_path(lease)))


def rename(lease: Lease, sandbox: Path, names: tuple[str, ...]) -> None:
    """Write down that the sandbox which has it is found elsewhere, and by other names."""
    _if_it_is(lease, lambda fd: _write(fd, replace(lease, sandbox=str(sandbox), names=names)))


def _if_it_is(lease: Lease, do: Callable[[int], None]) -> None:
    """Do it to the file of a lease, unless somebody has taken the address over, or is just doing so."""
    with contextlib.suppress(FileNotFoundError, BlockingIOError):
        fd = os.open(_path(lease), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _read(fd) == lease:
                do(fd)
        finally:
            os.close(fd)


def _write(fd: int, lease: Lease) -> None:
    """In one write over what is there: a file system is slow with files that it truncates."""
    os.pwrite(fd, dumps(records.plain(lease)).encode().ljust(os.fstat(fd).st_size), 0)


def dead(host: Host, network: str) -> list[Lease]:
    """Those of a network whose sandboxes have ended."""
    return _parted(host, network)[1]


def _path(lease: Lease) -> Path:
    return place(lease.network) / lease.addresses[0]


def next_free(network: Network) -> int:
    """The place in its first subnet of an address that nobody has now."""
    taken = {lease.addresses[0] for lease in read(network.name)}
    first = ip_network(network.subnets[0])
    return next((offset for offset in _candidates(network, None, _next(network)) if str(first[offset]) not in taken), 2)


def _asked(network: Network, endpoint: Endpoint) -> dict[int, Address]:
    """Those addresses that an endpoint names, by their kind."""
    found: dict[int, Address] = {}
    for text in endpoint.addresses:
        try:
            address = ip_address(text)
        except ValueError:
            raise BadInput(f"{text[:60]!r} is not an address", subject="ip", hint="write 10.20.0.5 or fd00:1::5") from None
        subnet = next((one for one in map(ip_network, network.subnets) if address.version == one.version and address in one), None)
        reserved = subnet is not None and address in (subnet.network_address, subnet.broadcast_address)
        if subnet is None or reserved or str(address) in network.gateways:
            hint = f"its subnets are {', '.join(network.subnets)}, its own addresses {', '.join(network.gateways)}"
            raise BadInput(f"no sandbox can have the address {address} on network {network.name}", subject="ip", hint=hint)
        found[address.version] = address
    return found


def comes_again(network: Network, lease: Lease) -> bool:
    """Whether its address may be given to another one before a turn begins anew, with which the kernel forgets what it knows of those that
    nobody has. Where nobody was given one in turn it may."""
    first = ip_network(network.subnets[0])
    return int(ip_address(lease.addresses[0])) - int(first.network_address) >= _next(network)


def were_given(network: Network) -> bool:
    """Whether somebody was given an address in turn."""
    return _next(network) > 0


def _candidates(network: Network, asked: Address | None, begin: int) -> Iterator[int]:
    """Which addresses of the first subnet are tried, as their places in it: the one that was asked for, or all from ``begin`` on, which
    follows the last one that was given: an address is not given again at once, since others may still send to it."""
    subnet = ip_network(network.subnets[0])
    if asked is not None:
        yield int(asked) - int(subnet.network_address)
        return
    gateway = int(ip_address(network.gateways[0])) - int(subnet.network_address)
    count = min(subnet.num_addresses - 2, 65533)
    first = max(2, begin)
    for step in range(count):
        offset = 1 + (first - 1 + step) % count
        if offset != gateway:
            yield offset


class _Turn:
    """``place``: of the address that is tried first; 0 where none was given yet."""

    def __init__(self, fd: int) -> None:
        self._fd, self.place = fd, _number(os.pread(fd, 20, 0))

    def go_on(self, place: int) -> None:
        os.pwrite(self._fd, b"%10d" % place, 0)  # over what is there: a file system is slow with files that it truncates


@contextlib.contextmanager
def _turn(network: Network) -> Iterator[_Turn]:
    """Addresses are given one after the other, by one process at a time. Lost at a crash of the host, as its connections are."""
    fd = os.open(networks.running(network.name) / _NEXT, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield _Turn(fd)
    finally:
        os.close(fd)


def _next(network: Network) -> int:
    """As ``_Turn.place``."""
    try:
        return _number((networks.running(network.name) / _NEXT).read_bytes())
    except OSError:
        return 0


def _number(text: bytes) -> int:
    return int(text) if text.strip().isdigit() else 0


def mac_of(address: Address) -> str:
    """One that nobody made, which follows from the address: who keeps addresses by MAC is not surprised. IEEE 802, locally administered"""
    return "02:" + ":".join(f"{byte:02x}" for byte in (b"\0" + address.packed)[-5:])


def _take_one(lease: Lease, host: Host) -> Taken | None:
    """None where somebody has it."""
    path = _path(lease)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    kept = False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(fd).st_nlink:  # swept, after it was opened
            return None
        before = _read(fd)
        if before is not None and host.index_of(before.link):
            return None
        _write(fd, lease)
        kept = True
        return Taken(lease, fd, before)
    except BlockingIOError:
        return None
    finally:
        if not kept:
            os.close(fd)


def _parsed(path: Path) -> Lease | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _read(fd)
    finally:
        os.close(fd)


def _read(fd: int) -> Lease | None:
    try:
        return records.read(Lease, loads(os.pread(fd, _MOST, 0)), "lease")
    except (BadInput, OSError, ValueError, RecursionError):
        return None
