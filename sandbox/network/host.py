"""Where bridges and tables are: this process's own network namespace, or that of a user who has networks without root."""

from __future__ import annotations

import _thread
import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator

from dockless.base.dataclass import dataclass
from dockless.errors import NetworkError
from dockless.sandbox.network import netlink, rtnetlink

_SIOCGIFINDEX = 0x8933
_IFREQ = struct.Struct("=16si20x")


_kept: dict[int, socket.socket] = {}
"""By the network namespace that it is of."""
_lock = _thread.allocate_lock()


def let_go() -> None:
    """Close what is kept: it would keep its network namespace."""
    for one in _kept.values():
        one.close()
    _kept.clear()


def _after_fork() -> None:
    """What the parent asks is not the child's to hear."""
    global _lock
    _lock = _thread.allocate_lock()
    let_go()


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True)
class Host:
    """``netns``, ``user``: descriptors of the network namespace and of the user namespace through which it is entered; -1: our own.
    ``life``: of a user's, a pipe that has ended when the process which holds it has."""

    netns: int = -1
    user: int = -1
    life: int = -1

    def open(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket there. ``OSError``"""
        if self.netns < 0:
            return socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        from dockless.native.netns import socket_in

        return socket_in(self.netns, family, kind, protocol, user=self.user)

    def setting(self, path: str, flags: int) -> int:
        """A descriptor of a file of /proc/sys/net, as it is there. ``OSError``"""
        if self.netns < 0:
            return os.open(path, flags | os.O_CLOEXEC)
        from dockless.native.netns import setting_in

        return setting_in(self.netns, path, flags, user=self.user)

    def netlink(self, protocol: int) -> socket.socket:
        """One for ``netlink.carry_out`` and ``netlink.dump``. ``OSError``"""
        return netlink.prepare(self.open(socket.AF_NETLINK, socket.SOCK_RAW, protocol))

    @contextlib.contextmanager
    def nftables(self) -> Iterator[socket.socket]:
        """One of nfnetlink for ``nftables``. That of our own network namespace is kept for as long as this process lives, for one thread at
        a time: closing one waits until the kernel has forgotten what was deleted last, some 10 ms. ``OSError``"""
        if self.netns >= 0:
            with self.netlink(netlink.NETFILTER) as opened:
                yield opened
            return
        with _lock:
            here = os.stat("/proc/thread-self/ns/net").st_ino
            if here not in _kept:
                let_go()
                _kept[here] = self.netlink(netlink.NETFILTER)
            try:
                yield _kept[here]
            except BaseException:
                _kept.pop(here).close()  # there may be answers in it that nobody has read
                raise

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


def leads_out(asking: socket.socket, version: int) -> bool:
    """Whether there is a default route of IPv4 or IPv6, by a socket of rtnetlink(7)."""
    try:
        answers = netlink.dump(asking, rtnetlink.all_routes(version))
    except OSError:  # a host without IPv6
        return False
    return any(rtnetlink.leads_out(answer) for answer in answers)


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
