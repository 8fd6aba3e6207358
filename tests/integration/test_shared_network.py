"""Sandboxes that share a network: each reaches the others over its loopback interface, and nobody else does."""

from __future__ import annotations

import contextlib
import os

import pytest
from support.requires import requires

from dockless.base.idmaps import default_map
from dockless.errors import SandboxGone
from dockless.native.userns import SharedNetwork
from dockless.sandbox.enter import Entry
from dockless.sandbox.run import detached, door
from dockless.sandbox.spec import Spec

pytestmark = requires("userns")

SERVE = "import socket; s = socket.create_server(('127.0.0.1', 7000)); print('up', flush=True); c, _ = s.accept(); c.sendall(b'hello')"
CALL = """
import socket, time
for _ in range(200):
    try:
        print(socket.create_connection(('127.0.0.1', 7000)).recv(9))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
"""


@pytest.fixture
def start():
    with contextlib.ExitStack() as opened:

        def start(*argv, network=None, host=False, **options):
            box = detached.start(Spec(argv, network="host" if host else "none", **options), network=network)
            opened.callback(end, box)
            return box

        yield start


@pytest.fixture
def network():
    found = SharedNetwork(default_map())
    yield found
    found.close()


def end(box):
    with contextlib.suppress(SandboxGone):
        box.kill()
        box.wait(30)
    box.remove()


def said(box):
    assert box.wait(30).exit_code == 0
    return (box.directory / "log").read_bytes()


def test_one_reaches_the_other(start, network):
    server = start("python3", "-c", SERVE, network=network)
    client = start("python3", "-c", CALL, network=network)
    assert b"hello" in said(client)
    assert b"up" in said(server)


def test_nobody_else_is_in_it(start, network):
    inside = start("readlink", "/proc/self/ns/net", network=network)
    beside = start("readlink", "/proc/self/ns/net")
    assert said(inside) != said(beside)


def test_there_is_nothing_in_it_but_loopback(start, network):
    assert said(start("ls", "/sys/class/net", network=network)).count(b"lo") == 1
    assert b"eth" not in said(start("cat", "/proc/net/dev", network=network))


def test_who_has_the_hosts_network_keeps_it(start, network):
    assert os.readlink("/proc/self/ns/net").encode() in said(start("readlink", "/proc/self/ns/net", network=network, host=True))


def test_what_nobody_trusts_may_enter_it(start, network):
    server = start("python3", "-c", SERVE, network=network, profile="untrusted")
    client = start("python3", "-c", CALL, network=network, profile="untrusted")
    assert b"hello" in said(client)
    assert b"up" in said(server)


def test_a_program_that_enters_such_a_sandbox_is_in_the_same_network(start, network):
    box = start("sleep", "60", network=network)
    other = start("readlink", "/proc/self/ns/net", network=network)
    same = ("sh", "-c", "echo $0 | grep -qF $(readlink /proc/self/ns/net)", said(other).decode(errors="replace"))
    with contextlib.closing(door.enter(box.entrance(), Entry(same), (0, 1, 2))) as entered:
        assert entered.wait().exit_code == 0
