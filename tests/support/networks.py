"""A network namespace for one test, so that its links, rules and ports are nobody else's. network_namespaces(7)"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

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
