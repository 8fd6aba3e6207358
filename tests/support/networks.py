"""A network namespace for one test, so that its links, rules and ports are nobody else's. network_namespaces(7)"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from support.nets import OUTSIDE, Place

import dockless
from dockless.native.netns import NetworkNamespace
from dockless.sandbox.network import host, netlink, rtnetlink

_CLONE_NEWNET = 0x40000000


def _enter(fd: int) -> None:
    """Of this thread, and of the processes that it starts from now on."""
    from dockless import native

    number = {"x86_64": 308, "aarch64": 268}[os.uname().machine]
    if (result := native.syscall(number, fd, _CLONE_NEWNET)) < 0:
        raise OSError(-result, os.strerror(-result))


@contextlib.contextmanager
def own_network(*, forward: bool = True) -> Iterator[NetworkNamespace]:
    """This thread is in a network namespace of its own, with its loopback interface. ``forward``: whether it sends packets on."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    made = NetworkNamespace()
    try:
        _enter(made.fd)
        netlink.carry_out(netlink.prepare(made.route), [rtnetlink.set_up("lo", rtnetlink.LOOPBACK)])
        for name in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            if os.path.exists(f"/proc/sys/{name}"):
                with open(f"/proc/sys/{name}", "w") as setting:
                    setting.write(str(int(forward)))
        yield made
    finally:
        host.let_go()
        _enter(before)
        os.close(before)
        made.close()
        host._after_fork()  # a socket that it keeps is of the namespace that was


@contextlib.contextmanager
def starting() -> Iterator[Callable[..., dockless.Sandbox]]:
    """``dockless.start`` of these arguments; each sandbox is removed at the end."""
    made: list[dockless.Sandbox] = []

    def start(*args: str, **options: Any) -> dockless.Sandbox:
        made.append(dockless.start(list(args), **options))
        return made[-1]

    yield start
    for box in made:
        box.inner.remove()


def links() -> set[str]:
    """The names of the links here."""
    said = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return {line.split(": ")[1].partition("@")[0] for line in said.splitlines()}


@contextlib.contextmanager
def beside_the_world(here: NetworkNamespace) -> Iterator[Place]:
    """Somebody with the addresses ``nets.OUTSIDE``, by whom this thread's network, with ``nets.HOST`` on its link ``wan``, reaches the
    world."""
    other = Place()
    try:
        subprocess.run(
            f"ip link add wan type veth peer name eth0 netns /proc/self/fd/{other.namespace.fd}"
            + " && ip address add 192.0.2.1/24 dev wan && ip -6 address add 2001:db8:9::1/64 dev wan nodad && ip link set wan up"
            + f" && ip route add default via {OUTSIDE[0]} && ip -6 route add default via {OUTSIDE[1]}",
            shell=True,
            check=True,
            pass_fds=[other.namespace.fd],
        )
        other.run("ip", "link", "set", "lo", "up")
        other.run("ip", "link", "set", "eth0", "up")
        other.run("ip", "address", "add", f"{OUTSIDE[0]}/24", "dev", "eth0")
        other.run("ip", "-6", "address", "add", f"{OUTSIDE[1]}/64", "dev", "eth0", "nodad")
        other.run("ip", "route", "add", "10.0.0.0/8", "via", "192.0.2.1")
        yield other
    finally:
        other.close()
