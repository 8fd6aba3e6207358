"""Where bridges and tables are: this process's own network namespace, or that of a user who has networks without root."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from dockless.base.dataclass import dataclass
from dockless.errors import NetworkError
from dockless.sandbox.network import netlink, rtnetlink

_SIOCGIFINDEX = 0x8933
_IFREQ = struct.Struct("=16si20x")


@dataclass(frozen=True, slots=True)
class Host:
    """``netns``, ``user``: descriptors of the network namespace and of the user namespace through which it is entered; -1: our own."""

    netns: int = -1
    user: int = -1

    def open(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket there. ``OSError``"""
        if self.netns < 0:
            return socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        from dockless.native.netns import socket_in

        return socket_in(self.netns, family, kind, protocol, user=self.user)

    def netlink(self, protocol: int) -> socket.socket:
        """One for ``netlink.carry_out`` and ``netlink.dump``. ``OSError``"""
        return netlink.prepare(self.open(socket.AF_NETLINK, socket.SOCK_RAW, protocol))

    def can_bridge(self) -> bool:
        """Whether this process may make bridges there, and this kernel has them: ENODEV and the like say no, EEXIST yes."""
        request = rtnetlink.new_bridge("lo", "02:00:00:00:00:00", 1500)
        with self.netlink(netlink.ROUTE) as asking:
            try:
                netlink.carry_out(asking, [request], known=(errno.EEXIST,))
            except NetworkError:
                return False
        return True

    def index_of(self, link: str) -> int:
        """The number of a link, 0 where there is none of that name. netdevice(7)"""
        with self.open(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            return index_of(asking, link)


def index_of(asking: socket.socket, link: str) -> int:
    """The same by a socket that is open. ``OSError`` for what is no answer."""
    try:
        answer = fcntl.ioctl(asking, _SIOCGIFINDEX, _IFREQ.pack(os.fsencode(link), 0))
    except OSError as error:
        if error.errno == errno.ENODEV:
            return 0
        raise
    number: int = _IFREQ.unpack(answer)[1]
    return number
