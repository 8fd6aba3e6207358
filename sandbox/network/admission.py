"""The table of this state directory, kept as its networks and leases are: a start adds elements to it; when that cannot be, all of it is
written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from dockless.base.dataclass import replace
from dockless.errors import NetworkError, NetworkInUse
from dockless.sandbox.network import bridges, conntrack, leases, netlink, nftables, own_host, records, resolver, table
from dockless.sandbox.network.asked import overlap
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.leases import Taken
from dockless.sandbox.network.model import Lease, Network
from dockless.sandbox.network.netlink import Request


def admit(host: Host, networks: Sequence[Network], taken: Sequence[Taken]) -> bool:
    """Add what new leases need; the caller holds the lock, shared. False: the table is not as it was left, and has to be written as a
    whole."""
    name = records.table_name()
    requests: list[Request] = []
    for network, one in zip(networks, taken, strict=True):
        if one.before is not None:
            requests += table.requests_to_remove(name, network, one.before)
        requests += table.requests_to_add(name, network, one.lease)
    try:
        with host.nftables() as asking:
            if not table.is_intact(asking, name, records.every()):
                return False
            nftables.carry_out(asking, requests)
    except (NetworkError, OSError):
        return False
    return True


def write_all(host: Host) -> None:
    """The whole table, of all networks and of the leases that live; dead ones are forgotten. ``NetworkError``"""
    with records.lock(shared=False):
        networks = records.every()
        dead = [lease for network in networks for lease in leases.dead(host, network.name)]
        _write(host, networks, _living(host, networks))
        _forget(host, dead)
        _release(dead)


def _write(host: Host, networks: Sequence[Network], living: Sequence[Lease]) -> None:
    """The whole table; without a network there is none. ``NetworkError``"""
    name = records.table_name()
    requests = table.requests_for(name, networks, living) if networks else table.requests_to_delete(name)
    with host.nftables() as asking:
        nftables.carry_out(asking, requests)


def forget_before(host: Host, taken: Sequence[Taken], whole: bool) -> None:
    """Forget the connections of those who had the addresses of new leases, which the table has by now. ``whole``: what ``admit`` said;
    False where nobody knows who they were. ``NetworkError``"""
    _forget(host, [one.lease for one in taken if one.before is not None or one.used or not whole])
    conntrack.forget(host, [address for one in taken for address in one.lease.addresses[1:] if not leases.is_chosen(address)])


def _forget(host: Host, gone: Sequence[Lease]) -> None:
    conntrack.forget(host, [address for lease in gone for address in lease.addresses])


def _living(host: Host, networks: Sequence[Network]) -> list[Lease]:
    """All leases that live. A port is the newest one's: the keeper of an earlier one is gone, or it could not have been bound, and the
    kernel is still taking its link apart."""
    found: list[Lease] = []
    each = (lease for network in networks for lease in leases.living(host, network.name))
    for lease in sorted(each, key=lambda lease: lease.since, reverse=True):
        newer = [port for one in found for port in one.ports] if lease.ports else []
        kept = tuple(port for port in lease.ports if not any(overlap(port, other) for other in newer))
        found.append(lease if kept == lease.ports else replace(lease, ports=kept))
    return found


def sweep() -> list[str]:
    """Forget the leases of the dead, and put right what somebody else did to the table or to a bridge that is in use. What was done, as
    names. ``NetworkError``, ``Unwritable``"""
    if not records.every():
        return []
    with own_host.looking() as host, records.lock(shared=False):
        networks = records.every()
        dead = [lease for network in networks for lease in leases.dead(host, network.name)]
        if os.geteuid() != 0 and host.netns < 0:  # the table of a user is gone with her last sandbox
            return _release(dead)
        with host.nftables() as asking:
            if not dead and table.is_intact(asking, records.table_name(), networks):
                return []
        living = _living(host, networks)
        if not dead and not living:
            return []  # nobody has used them since the host was booted
        _write(host, networks, living)
        _forget(host, dead)
        return _release(dead) or [records.table_name()]


def _release(dead: Sequence[Lease]) -> list[str]:
    """Last: who is killed before has left them to be found again."""
    for lease in dead:
        leases.release(lease)
    return [f"{lease.network}/{lease.addresses[0]}" for lease in dead]


def remove(name: str) -> None:
    """Forget a network: its bridge goes, and with the last one the table. ``UnknownNetwork``, ``NetworkInUse``, ``NetworkError``"""
    with own_host.looking() as host, records.lock(shared=False):
        network = records.find(name)
        if lives := leases.living(host, name):
            raise in_use(name, len(lives))
        resolver.stop(records.running(name))
        if os.geteuid() != 0 and host.netns < 0:  # nobody of hers is on one: all that there is of it is its record
            return records.forget(name)
        dead, given = leases.read(name), leases.were_given(network)
        with host.netlink(netlink.ROUTE) as asking:
            bridges.remove(network, asking)
        records.forget(name)
        left = records.every()
        _write(host, left, _living(host, left))
        if given:
            conntrack.forget_all_but(host, network.subnets, ())
        else:
            _forget(host, dead)


def in_use(name: str, sandboxes: int) -> NetworkInUse:
    count = "1 sandbox is" if sandboxes == 1 else f"{sandboxes} sandboxes are"
    return NetworkInUse(f"{count} on network {name}", subject=name, hint=f"dockless network inspect {name} lists them")


def expel(host: Host, gone: Sequence[Lease]) -> None:
    """Take from the table what the leases of a sandbox that has ended had, and forget them. Their connections too, where it is not enough
    that these are forgotten when the turn begins anew: to list those of IPv6 takes the kernel longer than all the rest."""
    name = records.table_name()
    with records.lock(shared=True):
        requests: list[Request] = []
        of = {lease.network: records.find(lease.network) for lease in gone}
        for lease in gone:
            requests += table.requests_to_remove(name, of[lease.network], lease)
        with contextlib.suppress(NetworkError), host.nftables() as asking:  # else the next start writes the whole table
            nftables.carry_out(asking, requests)
        again = [lease for lease in gone if leases.comes_again(of[lease.network], lease)]
        with contextlib.suppress(NetworkError):
            _forget(host, again)
        for lease in gone:
            leases.release(lease)
        with contextlib.suppress(NetworkError):  # of those whose turn began anew while they had their lease
            _forget(host, [lease for lease in gone if lease not in again and leases.comes_again(of[lease.network], lease)])
