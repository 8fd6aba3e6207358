"""``dockless.networks``: networks that sandboxes are on, and reach one another by name. docs/networks.md

::

    networks.create("lab", subnets=["10.20.0.0/24"], labels={"team": "a"})
    dockless.start("nginx", id="web", network="lab", publish=["127.0.0.1:8080:80"])
    networks.get("lab").sandboxes, networks.list(labels={"team": "a"})
    networks.connect("lab", "web2", aliases=["db"]); networks.disconnect("lab", "web2")
    networks.remove("lab")                                                   when nobody is on it any more
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dockless._life import check_labels, refuse_job
from dockless.base.checks import checked
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import BadInput, NetworkInUse, UnknownNetwork

if TYPE_CHECKING:
    from dockless._box import Sandbox
    from dockless.base.typing import Any
    from dockless.sandbox.run.box import Box
    from dockless.sandbox.run.networks import NetworkInfo

__all__ = ["connect", "create", "disconnect", "get", "list", "prune", "remove"]


@checked
def create(
    name: str,
    *,
    subnets: str | Iterable[str] = (),
    gateways: str | Iterable[str] = (),
    mtu: int = 1500,
    internal: bool = False,
    isolated: bool = False,
    labels: Mapping[str, str] | None = None,
) -> NetworkInfo:
    """Make a network. ``subnets``: one of IPv4, one of IPv6, or one of each, ``10.20.0.0/24``; left out: free ones are chosen.
    ``gateways``: the host's own address in each, left out: the first one. ``mtu``: bytes of a packet. ``internal``: nothing on it leads
    out. ``isolated``: those on it do not reach one another. ``BadInput`` for a name that is taken, or a subnet that is in use;
    ``Unsupported`` without root."""
    from dockless.sandbox.run import networks

    return networks.create(
        name, subnets=_texts(subnets), gateways=_texts(gateways), mtu=mtu, internal=internal, isolated=isolated, labels=check_labels(labels)
    )


@checked
def get(name: str) -> NetworkInfo:
    """What there is to know about a network, and who is on it. ``UnknownNetwork``"""
    from dockless.sandbox.run import networks

    return networks.get(name)


@checked
def list(
    *, names: str | Iterable[str] = (), labels: Mapping[str, str | None] | None = None, dangling: bool | None = None
) -> Sequence[NetworkInfo]:
    """The networks of this user, by name. ``names``: those with this text, or one of several, in their name. ``labels``: those that have
    all of them, None for any value. ``dangling``: those that no sandbox is on, or, if False, that one is on."""
    from dockless.sandbox.run import networks

    return networks.chosen(names=_texts(names), labels=(labels or {}).items(), dangling=dangling)


@checked
def remove(name: str) -> None:
    """Remove a network and its link. ``UnknownNetwork``, ``NetworkInUse`` while a sandbox is on it."""
    from dockless.sandbox.run import networks

    networks.remove(name)


@checked
def prune(*, names: str | Iterable[str] = (), labels: Mapping[str, str | None] | None = None) -> Sequence[str]:
    """Remove the networks that no sandbox is on, of those that ``list`` gives for the same keywords, but never ``bridge``, the default; the
    names of those that were removed."""
    from dockless.sandbox.network.model import DEFAULT

    removed = []
    for network in list(names=names, labels=labels, dangling=True):
        if network.name == DEFAULT:
            continue
        try:
            remove(network.name)
        except (UnknownNetwork, NetworkInUse):
            continue  # somebody removed it meanwhile, or a sandbox is on it now
        removed.append(network.name)
    return removed


def connect(
    name: str, sandbox: str | Sandbox[Any], *, addresses: str | Iterable[str] = (), mac: str = "", aliases: str | Iterable[str] = ()
) -> None:
    """Put a sandbox on one more network, at once while it runs, and at its later starts. ``addresses``: its own there, of each kind one at
    most. ``BadInput`` where it is on it already, ``Unsupported`` where it has the host's network or another sandbox's, ``UnknownNetwork``,
    ``AddressTaken``, ``SandboxGone``"""
    from dockless.sandbox.network.model import Endpoint
    from dockless.sandbox.run import networks

    if name in ("host", "none"):
        what = "the host's own network" if name == "host" else "having no network"
        hint = f"say it at the start of another one: dockless run --network {name}"
        raise BadInput(f"{name} means {what}, and no sandbox is connected to that later", subject=name, hint=hint)
    networks.connect(_box(sandbox), Endpoint(name, tuple(_texts(addresses)), mac, tuple(_texts(aliases))))


def disconnect(name: str, sandbox: str | Sandbox[Any]) -> None:
    """Take a sandbox off a network. ``BadInput`` where it is not on it; ``SandboxGone``"""
    from dockless.sandbox.run import networks

    networks.disconnect(_box(sandbox), name)


def _box(sandbox: str | Sandbox[Any]) -> Box:
    from dockless.sandbox.run.box import get

    found = get(sandbox if isinstance(sandbox, str) else sandbox.id)
    refuse_job(found)
    return found


def _texts(value: str | Iterable[str]) -> Iterable[str]:
    return (value,) if isinstance(value, str) else value
