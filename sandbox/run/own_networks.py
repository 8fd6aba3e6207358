"""A sandbox of an ordinary user on networks that she made: bridges in a network namespace of hers, network/own_host.py.

::

    a user namespace of hers, in which nothing of hers runs
        network namespace    bridges, the table, out0: a pasta(1) for all
    the user namespace of a sandbox
        network namespace    eth0, the other end of a port of a bridge; out0: a pasta of its own where it publishes ports

Both user namespaces are hers: processes of hers outside may put a pair of links into the two network namespaces. A sandbox has rights in
its own alone. As root it all is the same with the host's own network namespace: network/attach.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from functools import cache

from dockless.base import idmaps, paths
from dockless.base.dataclass import replace
from dockless.base.path import Path
from dockless.errors import BadInput, DocklessError, NetworkError, Unsupported
from dockless.native import start_apart
from dockless.native.userns import own_namespace
from dockless.sandbox.network import netlink, nftables, own_host, pasta, records, resolver, rtnetlink, sysctls, table
from dockless.sandbox.network.attach import Wanted, attach_to, namespace_of
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Egress
from dockless.sandbox.network.own_host import OwnHost
from dockless.sandbox.resolved import Resolved
from dockless.sandbox.run.joining import JoinedNetwork
from dockless.sandbox.run.pasta import lead_out, publish

_NAME = "the networks of a user"


def connect(wanted: Wanted, resolved: Resolved, user: int, opened: contextlib.ExitStack) -> JoinedNetwork:
    """Make the network namespace of a sandbox, which belongs to the user namespace ``user``, and connect it. Errors: those of
    ``attach.attach`` and of ``pasta.connect``."""
    if wanted.egress.log:
        raise Unsupported(
            "without root the kernel does not log what is refused", subject="log_denied", hint="run it as root, or leave it out"
        )
    networks = [records.find_or_make(endpoint.network, Host()) for endpoint in wanted.endpoints]
    if wanted.ports and networks[0].internal:
        hint = "name another network first, or publish nothing"
        raise BadInput(f"network {networks[0].name} is internal: nothing leads into it", subject="ports", hint=hint)
    held: tuple[int, ...] = ()
    routed: tuple[int, ...] = ()
    own = ensure(opened, leads_out=not wanted.ports and not all(network.internal for network in networks))
    namespace = namespace_of(user)
    opened.callback(namespace.close)
    netlink.carry_out(namespace.route, [rtnetlink.set_up("lo", rtnetlink.LOOPBACK)])
    if wanted.ports:
        published = publish(wanted, resolved, namespace, user, opened)
        held, routed = (published.leash,), published.versions
    made = attach_to(_with_host(wanted), namespace, user, (), own.host, routed=routed)
    tell(own.connection.fileno(), wanted.directory, namespace.fd, user)
    return JoinedNetwork(namespace.fd, user, (own.connection.fileno(), *held), made.leases)


def joining(wanted: Wanted, opened: contextlib.ExitStack) -> tuple[Wanted, Host]:
    """What a sandbox that runs asks for of further networks, and where these are. Errors: as ``ensure``, and ``UnknownNetwork``."""
    networks = [records.find_or_make(endpoint.network, Host()) for endpoint in wanted.endpoints]
    own = ensure(opened, leads_out=not all(network.internal for network in networks))
    return _with_host(wanted), own.host


def _with_host(wanted: Wanted) -> Wanted:
    """Rules of the table know the addresses of the namespace in which the bridges are; the host's are named to them."""
    return replace(wanted, ports=(), of_host=() if wanted.egress.host else tuple(pasta.own_addresses(Host())))


def tell(connection: int, directory: Path, network: int, user: int) -> None:
    """Let others of her sandboxes find the namespaces of the one whose directory this is. ``NetworkError``"""
    try:
        with socket.socket(fileno=os.dup(connection)) as asking:
            own_host.tell(asking, os.stat(directory).st_ino, network, user)
    except OSError as error:
        raise _gone(error) from error


def namespaces_of(directory: Path, opened: contextlib.ExitStack) -> JoinedNetwork | None:
    """Of a sandbox that is on networks which she made: its network namespace, its user namespace and the connection by which the bridges
    stay, closed with ``opened``; None for any other one. ``NetworkError``"""
    own = own_host.connected(opened)
    if own is None:
        return None
    try:
        found = own_host.find(own.connection, os.stat(directory).st_ino, opened)
    except OSError as error:
        raise _gone(error) from error
    return JoinedNetwork(*found, (own.connection.fileno(),)) if found is not None else None


def ensure(opened: contextlib.ExitStack, *, leads_out: bool) -> OwnHost:
    """Where her networks are, made where it is not; it lasts until ``opened`` is closed, or as long as a copy of its connection is open.
    ``leads_out``: it has a way out. Errors: ``NetworkError``, ``Unsupported``, ``Unwritable``, ``IdMapError``, ``LaunchFailed``"""
    with contextlib.ExitStack() as held:
        with paths.writing("the lock of a user's networks", own_host.place()):
            path = paths.make(own_host.place()) / own_host.LOCK
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            own = own_host.connected(opened) or _made(opened)
            if leads_out and not own.host.index_of(pasta.OUT):
                _lead_out(own)
        except OSError as error:
            raise _gone(error) from error
        return own


def _made(opened: contextlib.ExitStack) -> OwnHost:
    for network in records.every():  # one that has not noticed yet that its links are gone
        resolver.stop(records.running(network.name))
    with contextlib.ExitStack() as ours:
        user = own_namespace(idmaps.default_map())
        ours.callback(os.close, user)
        namespace = namespace_of(user)
        ours.callback(namespace.close)
        netlink.carry_out(namespace.route, [rtnetlink.set_up("lo", rtnetlink.LOOPBACK)])
        sysctls.forward_alone((), Host(namespace.fd, user))
        listening = ours.enter_context(own_host.bound())
        first = own_host.connecting(opened)  # before the holder begins: it ends when nobody is there
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        ours.callback(os.close, null)
        fds = {own_host.NULL_FD: null, 1: null, 2: null, own_host.LISTENING_FD: listening.fileno()}
        fds |= {own_host.NETWORK_FD: namespace.fd, own_host.USER_FD: user}
        if not sys.executable:
            hint = "start the sandbox from a program whose sys.executable is Python, or by the command line"
            raise NetworkError("which Python could hold this user's networks is not known", subject="network", hint=hint)
        start_apart(sys.executable, own_host.command(sys.executable), fds)
    return own_host.answered(first, opened)


@cache
def why_none() -> str:
    """Why an ordinary user cannot have networks of her own here; empty where she can. Tried in namespaces that are gone at once."""
    try:
        with contextlib.ExitStack() as ours:
            user = own_namespace(idmaps.default_map())
            ours.callback(os.close, user)
            namespace = namespace_of(user)
            ours.callback(namespace.close)
            host = Host(namespace.fd, user)
            if not host.can_bridge():
                return "this kernel, or a container around this process, has no bridges"
            with host.nftables() as asking:
                nftables.carry_out(asking, table.requests_for(records.table_name(), (), ()))
    except (DocklessError, OSError) as error:
        return str(error)
    return ""


def _lead_out(own: OwnHost) -> None:
    program, way = pasta.installed(), pasta.way_out(Host())
    if not way.versions:
        return
    with own.host.netlink(netlink.ROUTE) as route:
        leash = lead_out(program, way, (), own.host.netns, route, own.host.user, _NAME, Egress())
    try:
        own_host.keep(own.connection, leash)
    finally:
        os.close(leash)
    sysctls.forward_alone(way.versions, own.host)


def _gone(error: OSError) -> NetworkError:
    hint = "look at the limits of this host: processes, open files, memory"
    return NetworkError(f"cannot hold this user's networks: {error.strerror}", subject="network", hint=hint)
