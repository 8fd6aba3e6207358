"""Networks and the sandboxes that are on them: which there are, who has what, joining and leaving while a sandbox runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence

from dockless.base.dataclass import dataclass, replace
from dockless.base.locks import is_locked
from dockless.errors import BadInput, DocklessError, NetworkInUse, SandboxGone, Unsupported
from dockless.sandbox.filters import has_labels, is_named
from dockless.sandbox.network import admission, leases, own_host, records
from dockless.sandbox.network.asked import whose
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import DEFAULT, Endpoint, Lease, Network, Port
from dockless.sandbox.run.box import Box, everything
from dockless.sandbox.run.documents import Document
from dockless.sandbox.run.joining import JoinedNetwork, namespaces_of, wanted
from dockless.sandbox.run.on_network import by_pasta, what_ends_them
from dockless.sandbox.spec import Spec

_ENDED = "-"  # no sandbox's name
_TAKEN_APART = 2.0
"""Seconds that the kernel may take to remove the link of a sandbox that has ended; another sandbox on its network keeps it."""
_LOOK = 0.01
"""Seconds until that is looked at again."""
Leased = Mapping[int, Sequence[Lease]]
"""Leases that are alive, by the number of their sandbox's directory, in the order of its endpoints."""


@dataclass(frozen=True, slots=True)
class OnNetwork:
    """A sandbox on a network. ``id``: empty for one of which no more is known. ``names``: by which the others find it."""

    id: str
    addresses: tuple[str, ...]
    mac: str
    names: tuple[str, ...]
    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class NetworkInfo:
    """A network. ``subnets``: of IPv4, IPv6 or one of each, and ``gateways``: the bridge's own address in each. ``bridge``: the name of its
    link on the host. ``mtu``: bytes. ``internal``: nothing on it leads out. ``isolated``: those on it do not reach one another.
    ``labels``: those it was made with. ``created``: seconds since 1970. ``sandboxes``: that are on it now."""

    name: str
    subnets: tuple[str, ...]
    gateways: tuple[str, ...]
    bridge: str
    mtu: int
    internal: bool
    isolated: bool
    labels: dict[str, str]
    owner: int
    created: float
    sandboxes: tuple[OnNetwork, ...]


def create(
    name: str,
    *,
    subnets: Iterable[str] = (),
    gateways: Iterable[str] = (),
    mtu: int = 1500,
    internal: bool = False,
    isolated: bool = False,
    labels: Mapping[str, str] | None = None,
) -> NetworkInfo:
    """Write one down; its link is made at its first use. ``BadInput``, ``NetworkError``"""
    made = records.create(
        name,
        subnets=tuple(subnets),
        gateways=tuple(gateways),
        mtu=mtu,
        internal=internal,
        isolated=isolated,
        labels=tuple((labels or {}).items()),
        owner=os.geteuid(),
    )
    return _described(made, {})


def barred(names: Iterable[str]) -> tuple[str, ...]:
    """What stops packets of these networks now, as texts: tables of other programs."""
    from dockless.sandbox.network.barriers import barriers

    try:
        return tuple(map(str, barriers(Host(), [records.find(name) for name in names])))
    except OSError:
        return ()


def get(name: str) -> NetworkInfo:
    """``UnknownNetwork``"""
    return _described(records.find(name), _ids())


def chosen(*, names: Iterable[str] = (), labels: Iterable[tuple[str, str | None]] = (), dangling: bool | None = None) -> list[NetworkInfo]:
    """The networks by name, as ``volumes.chosen`` has volumes."""
    ids, texts, wanted = _ids(), tuple(names), tuple(labels)
    found = [_described(network, ids) for network in records.every()]
    return [one for one in found if is_named(one.name, texts) and has_labels(one.labels, wanted) and dangling in (None, not one.sandboxes)]


def remove(name: str) -> None:
    """With its link. ``UnknownNetwork``, ``NetworkInUse`` while a sandbox is on it. One that has ended keeps its name of it, and does not
    start again before there is such a network."""
    until = time.monotonic() + _TAKEN_APART
    while True:
        try:
            if there := by_pasta(records.find(name)):
                raise admission.in_use(name, len(there))
            return admission.remove(name)
        except NetworkInUse as error:
            if not get(name).sandboxes and time.monotonic() < until:
                time.sleep(_LOOK)
                continue
            if hint := what_ends_them(name):
                error.hint = hint
            raise


def leased() -> Leased:
    found: dict[int, list[Lease]] = {}
    with own_host.looking() as host:
        for network in records.every():
            for lease in leases.living(host, network.name):
                found.setdefault(lease.inode, []).append(lease)
    return {inode: sorted(those, key=lambda lease: lease.serial) for inode, those in found.items()}


def of(box: Box, known: Leased | None = None) -> Sequence[Lease]:
    """What a sandbox that runs has. ``known``: what ``leased`` gave."""
    try:
        inode = os.stat(box.directory).st_ino
    except OSError:
        return ()
    if known is not None:
        return known.get(inode, ())
    return [lease for lease in leases.of(box.directory) if leases.alive(lease)]


def connect(box: Box, endpoint: Endpoint) -> None:
    """Put a sandbox on one more network, at once while it runs, and at its starts from now on. ``BadInput`` where it is on it already,
    ``Unsupported`` where its network is the host's or another sandbox's, ``UnknownNetwork``, ``AddressTaken``"""
    if endpoint.network != DEFAULT:
        records.find(endpoint.network)
    spec = box.spec
    if whose(spec.network) or (spec.profile == "untrusted" and spec.network == "none"):
        what = "is untrusted and has no network" if spec.network == "none" else f"has the network {spec.network}"
        hint = f"start it with --network {endpoint.network} from the beginning"
        raise Unsupported(f"sandbox {box.id} {what}, and is put on no other", subject=box.id, hint=hint)
    _with(spec, endpoint)  # before the question whether it runs: this is the better answer
    joined = False

    def changed(known: Document) -> Document:
        """Nobody else changes it meanwhile: two who did would choose the same name for their links."""
        nonlocal joined
        document = replace(known, spec=_with(known.spec, endpoint))
        if box.alive:
            _connect(box, known, endpoint)
            joined = True
        return document

    try:
        box.change(changed)
    except BaseException:
        if joined:
            with contextlib.suppress(DocklessError):
                _disconnect(box, endpoint.network)
        raise


def disconnect(box: Box, network: str) -> None:
    """Take it off again. ``BadInput`` where it is not on it, or on no other and has ports or rules, which belong to a network; or where it
    runs, and its published ports lead to this one."""

    def changed(known: Document) -> Document:
        document = replace(known, spec=_without(known.spec, network, box.id))
        if box.alive:
            _disconnect(box, network)
        return document

    box.change(changed)


def names_wait(box: Box) -> bool:
    """Whether it runs, and asks another for names than its networks have: its /etc/resolv.conf is as its start made it, and who is on its
    networks is found by name when it has been started again. ``SandboxGone``"""
    spec = box.spec
    if spec.network != "private" or not box.alive:
        return False
    from dockless.sandbox.network.nameservers import text_for

    has = next((op.b for op in box.entrance().plan.ops if (op.name, op.a) == ("WRITE", "resolv.conf")), "")
    return _servers(has.decode() if isinstance(has, bytes) else str(has)) != _servers(text_for(spec))


def _servers(resolv_conf: str) -> list[str]:
    return [line for line in resolv_conf.splitlines() if line.startswith("nameserver")]


def _connect(box: Box, known: Document, endpoint: Endpoint) -> None:
    from dockless.sandbox.network import attach

    asked = replace(wanted(known.spec, box.present.directory, known.owner), endpoints=(endpoint,), ports=())
    with contextlib.ExitStack() as opened:
        inside, host = _inside(box, opened)
        if os.geteuid() != 0:
            from dockless.sandbox.run import own_networks

            asked, host = own_networks.joining(asked, opened)
        attach.connect(asked, inside.network, inside.user, of(box), host)


def _disconnect(box: Box, network: str) -> None:
    from dockless.sandbox.network import attach

    has = of(box)
    gone = next((lease for lease in has if lease.network == network), None)
    if gone is None:
        if os.geteuid() != 0:  # by pasta, which stays
            with contextlib.ExitStack() as opened:
                _inside(box, opened)
        return
    if gone.ports:
        hint = f"dockless stop {box.id} first: at its next start they lead to the next of its networks"
        raise BadInput(f"the published ports of sandbox {box.id} lead to network {network} while it runs", subject=network, hint=hint)
    with contextlib.ExitStack() as opened:
        inside, host = _inside(box, opened)
        attach.disconnect(gone, inside.network, inside.user, [lease for lease in has if lease is not gone], host)


def _inside(box: Box, opened: contextlib.ExitStack) -> tuple[JoinedNetwork, Host]:
    """The namespaces of one that runs, and where its bridges are. ``Unsupported`` where its networks are not ours to change."""
    host = opened.enter_context(own_host.looking())
    try:
        return namespaces_of(box, opened), host
    except Unsupported as error:
        hint = f"dockless stop {box.id} first: it has others at its next start"
        what = f"sandbox {box.id} runs, and is on no network that its user made: without root its networks stay"
        raise Unsupported(what, subject=box.id, hint=hint) from error


def _with(spec: Spec, endpoint: Endpoint) -> Spec:
    if any(one.network == endpoint.network for one in spec.endpoints):
        hint = f"disconnect it first: dockless network disconnect {endpoint.network} SANDBOX"
        raise BadInput(f"the sandbox is on network {endpoint.network} already", subject=endpoint.network, hint=hint)
    return replace(spec, network="private", endpoints=(*spec.endpoints, endpoint))


def _without(spec: Spec, network: str, id: str) -> Spec:
    left = tuple(one for one in spec.endpoints if one.network != network)
    if len(left) == len(spec.endpoints):
        hint = f"dockless inspect {id} shows where it is"
        raise BadInput(f"sandbox {id} is not on network {network}", subject=network, hint=hint)
    if left:
        return replace(spec, endpoints=left)
    if spec.ports or spec.egress is not None:
        what = "published ports" if spec.ports else "rules for what leaves it"
        hint = "connect it to another network before"
        raise BadInput(f"sandbox {id} has {what}, and would be on no network", subject=network, hint=hint)
    return replace(spec, network="none", endpoints=(), dns=(), dns_search=(), dns_options=())


def _described(network: Network, ids: Mapping[int, str]) -> NetworkInfo:
    with own_host.looking() as host:
        on_it = _running(leases.living(host, network.name), ids)
    attached = tuple(OnNetwork(ids.get(lease.inode, ""), lease.addresses, lease.mac, lease.names, lease.ports) for lease in on_it)
    attached += tuple(OnNetwork(one.id, one.addresses, "", (), one.ports) for one in by_pasta(network))
    return NetworkInfo(
        network.name, network.subnets, network.gateways, network.bridge, network.mtu, network.internal, network.isolated,
        dict(network.labels), network.owner, network.created, attached,
    )  # fmt: skip


def _running(living: Iterable[Lease], ids: Mapping[int, str]) -> list[Lease]:
    """Without those that have ended: the kernel takes a moment to remove their links."""
    return [lease for lease in living if ids.get(lease.inode) != _ENDED and (lease.inode in ids or os.path.isdir(lease.sandbox))]


def _ids() -> dict[int, str]:
    """The sandboxes by the numbers of their directories, ``_ENDED`` for one that does not run."""
    found = {}
    for box in everything():
        with contextlib.suppress(OSError, SandboxGone):
            found[os.stat(box.directory).st_ino] = box.id if is_locked(box.lock) else _ENDED
    return found
