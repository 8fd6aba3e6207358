"""The process of pasta beside a sandbox of an ordinary user: started before it, ended with it.

::

    sandbox's keeper ── holds the leash ──► pasta's keeper ──► init of a PID namespace ──► pasta

pasta does not see when a network namespace has no other user, and it would hold it for ever. So it runs as a sandbox does, below a keeper
and an init of its own. Its leash is a pipe, whose other end only the sandbox's keeper has: when that ends, however it ends, pasta's keeper
reads the end of the pipe and ends pasta. When pasta's keeper is killed the kernel kills its init, and with that all of its PID namespace.
A sandbox sees neither: they are outside of its PID namespace. They are in its user namespace, where pasta needs its rights.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from functools import partial

from dockless import native
from dockless.base.dataclass import dataclass
from dockless.base.waits import readable
from dockless.errors import AddressTaken, NetworkError, SandboxError
from dockless.native.netns import NetworkNamespace
from dockless.sandbox.network import netlink, pasta, ports, records
from dockless.sandbox.network.attach import Wanted, namespace_of
from dockless.sandbox.network.host import Host, index_of
from dockless.sandbox.network.model import Egress, Port
from dockless.sandbox.network.nameservers import kinds_asked_by_host
from dockless.sandbox.network.pasta import ERRORS_FD, NAMESPACE_FD, READY_FD
from dockless.sandbox.plan.builder import NEW_NS, PRIVATE, RECURSIVE
from dockless.sandbox.plan.plan import SLOT_FREE, SLOT_HELD, Command, Op, Plan, encode, filled_in
from dockless.sandbox.resolved import Resolved
from dockless.sandbox.run import children, process

_READY_TIMEOUT = 20.0
"""Seconds that pasta has to open its ports."""
_LETS_GO = 1.0
"""Seconds until a pasta has ended whose sandbox has."""
_SIGKILL = 9
_MOST_SAID = 65536


@dataclass(frozen=True, slots=True)
class Connected:
    """``network``: a descriptor of the sandbox's network namespace. ``held``: what its keeper holds; when that is closed pasta ends."""

    network: int
    held: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """``leash``: as ``Connected.held``. ``versions``: the kinds of addresses for which it leads out."""

    leash: int
    versions: tuple[int, ...]


def connect(wanted: Wanted, resolved: Resolved, user: int, opened: contextlib.ExitStack) -> Connected:
    """Make the network namespace of a sandbox, which belongs to the user namespace ``user``, and give it a way out by pasta. All is closed,
    and pasta ended, with ``opened``, unless somebody else has ``held``. Errors: ``Unsupported``, ``AddressTaken``, ``BadInput``,
    ``NetworkError``, ``LaunchFailed``."""
    host = Host()
    program = _checked(wanted, resolved)
    (endpoint,) = wanted.endpoints
    network = records.find_or_make(endpoint.network, host)
    way = pasta.way_out(host)
    addresses = pasta.addresses_of(network, endpoint, way.versions)
    _check_published(wanted, way, addresses)
    namespace = namespace_of(user)
    opened.callback(namespace.close)
    held: tuple[int, ...] = ()
    index = 0
    if addresses:
        command = pasta.arguments(program, way, addresses, wanted.ports, kinds_asked_by_host())
        held = (_start(command, namespace.fd, user, wanted.directory.name),)
        opened.callback(os.close, held[0])
        index = index_of(namespace.route, pasta.LINK)
    own = [] if wanted.egress.host else pasta.own_addresses(host)
    netlink.carry_out(namespace.route, pasta.settings(index, addresses, endpoint.mac, wanted.egress, own))
    return Connected(namespace.fd, held)


def publish(wanted: Wanted, resolved: Resolved, namespace: NetworkNamespace, user: int, opened: contextlib.ExitStack) -> Published:
    """A way out of its own for a sandbox that is on other networks besides, by which its ports are reached. Errors: as ``connect``."""
    program, way = _checked(wanted, resolved), pasta.way_out(Host())
    addresses = pasta.between(way.versions)
    _check_published(wanted, way, addresses)
    leash = lead_out(program, way, wanted.ports, namespace.fd, namespace.route, user, wanted.directory.name, wanted.egress)
    opened.callback(os.close, leash)
    return Published(leash, way.versions)


def lead_out(
    program: pasta.Pasta,
    way: pasta.WayOut,
    published: Sequence[Port],
    network: int,
    route: socket.socket,
    user: int,
    name: str,
    egress: Egress,
) -> int:
    """Give a network namespace with links of other networks one that leads out: the leash of the pasta behind it. ``way``: not empty;
    ``route``: a socket of rtnetlink(7) there. Errors: ``NetworkError``, ``LaunchFailed``"""
    addresses = pasta.between(way.versions)
    leash = _start(pasta.arguments(program, way, addresses, published, (), pasta.OUT), network, user, name)
    try:
        own = [] if egress.host else pasta.own_addresses(Host())
        index = index_of(route, pasta.OUT)
        netlink.carry_out(route, pasta.settings(index, addresses, "", egress, own, pasta.OUT))
    except BaseException:
        os.close(leash)
        raise
    return leash


def _checked(wanted: Wanted, resolved: Resolved) -> pasta.Pasta:
    children.collect_ended()  # those of sandboxes that have ended
    program = pasta.installed()
    pasta.check(wanted.egress, resolved.capabilities, program, sees_processes=resolved.reaches_others)
    return program


def _check_published(wanted: Wanted, way: pasta.WayOut, addresses: Sequence[pasta.Address]) -> None:
    if wanted.ports and not addresses:
        hint = "give the host an address besides its loopback, or publish nothing"
        raise NetworkError("pasta publishes no ports on a host that has no network", subject="ports", hint=hint)
    pasta.check_published(wanted.ports, way.versions)
    _check_ports(wanted)


def _check_ports(wanted: Wanted) -> None:
    """pasta opens those ports that are free and says nothing of others, so they are tried here; another program may take one in between.
    The pasta of a sandbox that has just ended has them for a moment more. ``AddressTaken``, ``BadInput``, ``NetworkError``"""
    end = time.monotonic() + _LETS_GO
    while True:
        try:
            with contextlib.ExitStack() as tried:
                ports.hold(wanted.ports, tried, again=True)
            return
        except AddressTaken:
            if time.monotonic() >= end:
                raise
        time.sleep(0.01)


def _start(command: Sequence[str], network: int, user: int, name: str) -> int:
    """pasta, with its ports open: the leash by which it lives. Errors: ``NetworkError``, ``LaunchFailed``"""
    with contextlib.ExitStack() as opened:
        ready, says_ready = _pipe(opened)
        errors, says_errors = _pipe(opened)
        os.fchmod(says_ready.fd, 0o622)  # pasta opens it anew; started by root it is another user's then
        os.set_blocking(says_errors.fd, False)  # nobody reads on: what does not fit is lost
        plan = _plan(command, user >= 0)
        fds = {NAMESPACE_FD: network, READY_FD: says_ready.fd, ERRORS_FD: says_errors.fd, SLOT_HELD: errors.fd}
        fds |= {SLOT_FREE: user} if user >= 0 else {}
        launch = partial(native.launch, name=f"dockless pasta of {name}")
        started = process.start(plan, filled_in(encode(plan)), fds, launch)
        try:
            says_ready.close()
            _await(ready.fd, errors.fd)
        except BaseException:
            with contextlib.suppress(SandboxError):
                started.close()
            raise
        children.collect_later(started.keeper_pid)
        return started.entrust()


def _plan(command: Sequence[str], enters: bool) -> Plan:
    """``enters``: a user namespace, which is in the first free slot. Its root is the user, whose sockets pasta opens."""
    ops = [Op("SETSID")]
    ops += [Op("SETNS", SLOT_FREE, x=NEW_NS["user"])] if enters else []
    ops += [Op("CLONE", x=NEW_NS["mount"] | NEW_NS["pid"])]
    ops += [Op("SET_IDS", a=1), Op("PDEATHSIG", x=_SIGKILL), Op("MOUNT_ATTR", a="/", b=PRIVATE, c=RECURSIVE), Op("SPAWN")]
    ops += [Op("SIGNALS"), Op("CHDIR", a="/"), Op("SET_IDS", a=1), Op("NO_NEW_PRIVS")]
    return Plan(tuple(ops), Command((command[0],), tuple(command), ()))


def _await(ready: int, errors: int) -> None:
    """Until pasta has written its process id. ``NetworkError``"""
    if not readable(ready, _READY_TIMEOUT):
        hint = "is the host busy? dockless doctor checks networks"
        raise NetworkError(f"pasta was not ready within {_READY_TIMEOUT:g} seconds", subject="pasta", hint=hint)
    if os.read(ready, 64):
        return
    said = os.read(errors, _MOST_SAID) if readable(errors, 0) else b""
    raise pasta.refusal(said.decode("utf-8", "replace"))


class _End:
    """One end of a pipe, closed once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _pipe(opened: contextlib.ExitStack) -> tuple[_End, _End]:
    """What is read, and what is written."""
    ends = tuple(map(_End, os.pipe2(os.O_CLOEXEC)))
    for end in ends:
        opened.callback(end.close)
    return ends[0], ends[1]
