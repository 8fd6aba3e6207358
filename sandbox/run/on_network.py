"""Who keeps a network: the sandboxes that no lease tells of, and what ends each of those that are on it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from dockless.base.dataclass import dataclass
from dockless.errors import BadInput, SandboxGone
from dockless.sandbox.network import leases, own_host
from dockless.sandbox.network.asked import CONTAINER
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import DEFAULT, Network, Port
from dockless.sandbox.run.box import Box, everything, find
from dockless.sandbox.run.places import WAITS

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class ByPasta:
    """A sandbox of an ordinary user that runs on a network: it has no lease."""

    id: str
    addresses: tuple[str, ...]
    ports: tuple[Port, ...]


def by_pasta(network: Network) -> list[ByPasta]:
    """Those on a network, none for root."""
    if os.geteuid() == 0:
        return []
    from dockless.sandbox.network import pasta

    found: list[ByPasta] = []
    for box in _running() if network.name == DEFAULT else ():
        with contextlib.suppress(SandboxGone, OSError):
            spec = box.spec
            if any(leases.alive(lease) for lease in leases.of(box.directory)):
                continue  # it is on others besides, or was
            for endpoint in (one for one in spec.endpoints if one.network == network.name):
                has: tuple[pasta.Address, ...] = ()
                with contextlib.suppress(BadInput, OSError):  # of a network of this name that was removed
                    has = pasta.addresses_of(network, endpoint, pasta.way_out(Host()).versions)
                found.append(ByPasta(box.id, tuple(one.own.partition("/")[0] for one in has), spec.ports))
    return found


def what_ends_them(network: str) -> str:
    """The commands that end all who are on a network, empty where nobody is known. One that has ended is on it as long as another one runs
    that has its network namespace."""
    stop: list[str] = []
    joined: list[str] = []
    jobs: list[str] = []
    with own_host.looking() as host:
        has = leases.living(host, network)
    numbers = {lease.inode for lease in has}
    names = {os.path.basename(lease.sandbox) for lease in has}
    for box in _running():
        with contextlib.suppress(SandboxGone, OSError):
            known = box.document
            owner = _whose_network(box)
            is_on_it = os.stat(owner.directory).st_ino in numbers if owner.directory.exists() else owner.id in names
            if not is_on_it and not (os.geteuid() != 0 and any(one.network == network for one in known.spec.endpoints)):
                continue
            if "job" in known.labels:
                jobs.append(known.labels["job"])
            elif owner.id != box.id:
                joined.append(f"dockless stop {box.id} (it has the network of {owner.id})")
            else:
                stop.append(box.id)
    steps = [f"dockless stop {_named(stop)}"] if stop else []
    steps += joined[:_MOST_NAMED]
    steps += [f"dockless cancel {_named(jobs)}"] if jobs else []
    return "; ".join([*steps, *_pools(network, any(os.path.lexists(os.path.join(lease.sandbox, WAITS)) for lease in has))])


def _pools(network: str, waits: bool) -> list[str]:
    """``waits``: whether a sandbox is on it that waits in a pool."""
    if not waits:
        return []
    from dockless.sandbox.run import named_pools

    known = named_pools.on_network(network)
    return [f"dockless pool rm {_named(known)}"] if known else ["end the program that has a dockless.Pool on it"]


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return " ".join(names[:_MOST_NAMED]) + more


def _running() -> Iterator[Box]:
    return (box for box in everything() if box.alive)


def whose_network(id: str) -> str:
    """Which sandbox has the network of a sandbox that runs: itself, or the one whose network it has. One that does not run: itself."""
    box = find(id)
    return _whose_network(box).id if box is not None and box.alive else id


def _whose_network(box: Box) -> Box:
    """Whose network namespace it has: its own, or that of another, which may have ended or be removed."""
    for _ in range(100):
        network = box.spec.network
        if not network.startswith(CONTAINER):
            break
        name = network.removeprefix(CONTAINER)
        found = find(name)
        if found is None:
            return Box(name, box.directory.with_name(name))
        box = found
    return box
