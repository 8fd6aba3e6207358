"""The network of jobs that start together: one that is made for them, where each has an address and is found by the name of its role. It
leads nowhere else; who also wants the world names a network for that.

Where the kernel has no bridges they share a network namespace with nothing in it but loopback.
"""

from __future__ import annotations

import contextlib
import os
from ipaddress import ip_network

from dockless.base import paths
from dockless.base.dataclass import replace
from dockless.errors import NetworkError, UnknownNetwork
from dockless.sandbox.network.model import Egress, Endpoint, Network
from dockless.sandbox.spec import Spec

LABEL = "dockless.job"
_FIRST = 2
_APART = 60
"""Seconds between the starts of two of them in which the earlier one waits for the later one, and is not told that there is no route."""


def make(first: int, uid: int) -> Network | None:
    """That of the jobs of which the first has this number, of an earlier attempt or a new one. Blocking. None where this daemon, or this
    kernel, has no such networks. ``NetworkError``, ``Unwritable``"""
    from dockless.sandbox.network import records

    with contextlib.suppress(UnknownNetwork):
        return records.find(_name(first))
    if not can_make():
        return None
    label = (LABEL, str(first))
    return records.create(_name(first), internal=True, named=False, labels=(label,), owner=uid, patience=_APART)


def can_make() -> bool:
    """Whether this daemon, on this kernel, has such networks. Blocking."""
    if os.geteuid() != 0:
        from dockless.sandbox.run import own_networks

        return not own_networks.why_none()
    from dockless.sandbox.network.host import Host

    return Host().can_bridge()


def addresses(network: Network, count: int) -> list[str]:
    """The address of each of so many, by rank."""
    subnet = ip_network(network.subnets[0])
    return [str(subnet[_FIRST + rank]) for rank in range(count)]


def joined(spec: Spec, network: Network, address: str, name: str) -> Spec:
    """``spec`` on it, besides the networks that it has. ``name``: its host name, where it has none. By its host name it finds its address
    there, for programs that tell the others where they are: gloo's do, and loopback would be each other's own."""
    endpoints = (*spec.endpoints, Endpoint(network.name, (address,)))
    hostname = spec.hostname or name
    known = any(known == hostname for known, _ in spec.hosts)
    hosts = spec.hosts if known else ((hostname, address), *spec.hosts)
    # Who asked for no network reaches the others, and not the host.
    egress = spec.egress if spec.network == "private" else Egress(host=False)
    return replace(spec, network="private", endpoints=endpoints, egress=egress, hostname=hostname, hosts=hosts)


def forget(first: int) -> None:
    """They have ended. Blocking. What cannot go yet goes with the next housekeeping."""
    from dockless.sandbox.run.networks import remove

    with contextlib.suppress(NetworkError):
        remove(_name(first))


def has(first: int) -> bool:
    """Whether there is one of the jobs of which the first has this number."""
    return os.path.lexists(paths.state() / "networks" / _name(first))


def every() -> list[int]:
    """The numbers of the first jobs of those for whom there is one. Blocking."""
    if not os.path.lexists(paths.state() / "networks"):
        return []
    from dockless.sandbox.network import records

    found = [dict(network.labels).get(LABEL, "") for network in records.every()]
    return [int(number) for number in found if number.isdecimal() and has(int(number))]


def _name(first: int) -> str:
    return f"job-{first}"
