"""Ports of the host that lead into a sandbox: bound here, and held by the sandbox's keeper for as long as it lives.

Nothing listens on these sockets: the table sends what comes elsewhere before it gets there. By them a port has one owner at a time, who
loses it when he dies: nobody looks through lists, and no other program of the host takes it meanwhile. bind(2)
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address

from dockless.errors import AddressTaken, BadInput, NetworkError
from dockless.sandbox.network.model import Port

MOST = 200
"""Of one sandbox: a descriptor each, in the message that the keeper is given."""


def hold(ports: Sequence[Port], opened: contextlib.ExitStack, *, again: bool = False) -> tuple[int, ...]:
    """A bound socket for each, closed with ``opened``. ``again``: also one on which nobody listens any more, and of which connections that
    have ended are still known. ``AddressTaken``: somebody has it; ``BadInput``, ``NetworkError``"""
    if sum(port.count for port in ports) > MOST:
        raise BadInput(f"more than {MOST} published ports", subject="ports", hint="publish fewer, or use the host's network")
    found = []
    for port in ports:
        for number in range(port.outside, port.outside + port.count):
            found.append(opened.enter_context(_bound(port, number, again)).fileno())
    return tuple(found)


def _bound(port: Port, number: int, again: bool) -> socket.socket:
    kind = socket.SOCK_STREAM if port.protocol == "tcp" else socket.SOCK_DGRAM
    shown = f"port {f'{port.address}:' if port.address else ''}{number}/{port.protocol}"
    last: OSError | None = None
    for family, address in _addresses(port.address):
        opened = None
        try:
            opened = socket.socket(family, kind | socket.SOCK_CLOEXEC)
            if family == socket.AF_INET6 and not port.address:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            if again and port.protocol == "tcp":
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((address, number))
            return opened
        except OSError as error:
            if opened is not None:
                opened.close()
            last = error
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) or port.address:
                break
    assert last is not None
    if last.errno == errno.EADDRINUSE:
        hint = f"see who has it (ss -lnp sport = {number}; dockless ps), or publish another"
        raise AddressTaken(f"{shown} of the host is in use", subject="ports", hint=hint)
    if last.errno == errno.EADDRNOTAVAIL:
        raise BadInput(f"{port.address} is no address of this host", subject="ports", hint="see ip address, or leave it out for all")
    hint = "only root may publish ports below 1024" if last.errno == errno.EACCES else "publish another"
    raise NetworkError(f"{shown} of the host cannot be opened: {os.strerror(last.errno or 0)}", subject="ports", hint=hint)


def _addresses(address: str) -> list[tuple[socket.AddressFamily, str]]:
    """All of the host's by one socket of IPv6, which has those of IPv4 too; where there is no IPv6, by one of IPv4."""
    if not address:
        return [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
    return [(socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6, address)]
