"""Network namespaces, and sockets in them. network_namespaces(7)

The caller's thread never leaves its own namespace: a short-lived child that shares our descriptors enters the other one. ``netns.c``
"""

from __future__ import annotations

import os
import socket

from dockless.native import _check, _extension, _lib


class NetworkNamespace:
    """A new network namespace with nothing in it but its loopback interface, which is down. It lasts as long as ``fd`` is open or something
    is in it. ``user``: a descriptor of the user namespace that it belongs to, which stays the caller's; -1 for ours. ``route``: a socket of
    rtnetlink(7) inside. Errors: ``OSError``."""

    __slots__ = ("fd", "route")

    def __init__(self, user: int = -1) -> None:
        made = _extension().ffi.new("int *", -1)
        opened = _check(_lib().shim_netns(user, made), "unshare")
        self.fd: int = made[0]
        self.route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0, opened)

    def close(self) -> None:
        self.route.close()
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def socket_in(netns: int, family: int, kind: int, protocol: int = 0, *, user: int = -1) -> socket.socket:
    """A socket of the network namespace ``netns``. ``user``: the user namespace in which this process has the right to enter it; -1: ours.
    ``OSError``"""
    fd = _check(_lib().shim_socket_in(user, netns, family, kind, protocol), "setns")
    return socket.socket(family, kind, protocol, fd)


def setting_in(netns: int, path: str, flags: int, *, user: int = -1) -> int:
    """A descriptor of a file of /proc/sys/net, as the network namespace ``netns`` has it. ``user``: as of ``socket_in``. ``OSError``"""
    return _check(_lib().shim_setting_in(user, netns, os.fsencode(path), flags), path)
