"""The table of a state directory, as a function of its networks and leases."""

from __future__ import annotations

from collections.abc import Sequence

from dockless.sandbox.network.model import Lease, Network
from dockless.sandbox.network.netlink import Request


def requests_for(name: str, networks: Sequence[Network], living: Sequence[Lease]) -> list[Request]:
    return []


def requests_to_add(name: str, network: Network, lease: Lease) -> list[Request]:
    return []


def requests_to_remove(name: str, network: Network, lease: Lease) -> list[Request]:
    return []


def requests_to_delete(name: str) -> list[Request]:
    return []


def is_intact(opened: object, name: str, networks: Sequence[Network]) -> bool:
    return True
