"""The resolver's process: it is there from the first sandbox to some seconds after the last one, whoever dies."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.dns_peers import GATEWAYS, Place, place, question
from support.requires import requires

from dockless.base.pidfds import hold
from dockless.base.waits import readable
from dockless.errors import NetworkError, Unwritable
from dockless.sandbox.network import nameservers, resolver
from dockless.sandbox.network.model import Egress, Network, Rule

pytestmark = requires("root", "netns")

ONE, OTHER = "10.77.0.5", "10.77.0.6"
QUICK = "from dockless.sandbox.network import name_server as n; n.LINGER, n._LIFE, n._TICK = {}, 0.001, 0.001; main("


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path / "web", ONE, OTHER) as made:
        try:
            yield made
        finally:
            resolver.stop(made.directory)


def quick(monkeypatch: pytest.MonkeyPatch, linger: float) -> None:
    monkeypatch.setattr(resolver, "_CODE", resolver._CODE.replace("main(", QUICK.format(linger)))


def ensure(net: Place) -> None:
    resolver.ensure(net.network, net.directory, net.host, "dockless-none")


def pid_of(net: Place) -> int:
    until = time.monotonic() + 10
    while True:
        text = (net.directory / resolver.LOCK).read_text()
        if text:
            return int(text)
        assert time.monotonic() < until
        time.sleep(0.002)


def test_it_answers_and_is_started_once(net, monkeypatch):
    tests = Path(__file__).parent
    monkeypatch.syspath_prepend(tests)
    net.lease(ONE, "one")
    ensure(net)
    assert net.ask(ONE, "one").texts == [ONE]  # whoever asks before it is there waits
    pid = pid_of(net)
    for _ in range(3):
        ensure(net)
    assert pid_of(net) == pid
    assert os.getsid(pid) == pid
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    links = {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert links.pop(0) == links.pop(1) == "/dev/null" and links.pop(2).endswith(resolver.LOG)
    assert links.pop(3).endswith(resolver.LOCK) and links.pop(4).endswith("leases")
    assert links.pop(7) == str(net.directory.parent)
    assert links.pop(8) == "/dev/null"  # as root there is no process that holds the network namespace
    assert sorted(link.partition(":")[0] for link in links.values()) == ["anon_inode"] * 2 + ["socket"] * (2 + 2 * len(GATEWAYS))
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    assert words[1:4] == [b"-I", b"-S", b"-c"] and len(words) == 8 and str(tests).encode() not in words
    assert Path(f"/proc/{pid}/environ").read_bytes() == b"" and os.readlink(f"/proc/{pid}/cwd") == "/"
    assert net.ask(ONE, "one", stream=True).texts == [ONE]
    assert not (net.directory / resolver.LOG).read_text()


def test_questions_of_hundreds_who_start_at_once_wait_for_it(net):
    net.lease(ONE, "one")
    ensure(net)
    pid = pid_of(net)
    assert net.ask(ONE, "one").texts == [ONE]
    os.kill(pid, signal.SIGSTOP)
    with net.client(ONE) as opened:
        opened.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)  # SO_RCVBUFFORCE, for the answers
        for number in range(600):
            opened.send(question("one", number=number))
        os.kill(pid, signal.SIGCONT)
        assert {int.from_bytes(opened.recv(999)[:2], "big") for _ in range(600)} == set(range(600))


def test_it_outlives_whoever_started_it(net):
    net.lease(ONE, "one")
    pid = os.fork()
    if pid == 0:
        try:
            ensure(net)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert net.ask(ONE, "one").texts == [ONE]


def test_after_a_kill_the_next_start_mends_it(net):
    net.lease(ONE, "one")
    for _ in range(3):
        ensure(net)
        assert net.ask(ONE, "one").texts == [ONE]
        before = hold(pid_of(net))
        os.kill(pid_of(net), signal.SIGKILL)
        readable(before, 10)
        os.close(before)
    with pytest.raises(OSError):
        net.send(ONE, question("one"), wait=0.3)
    ensure(net)
    assert net.ask(ONE, "one").texts == [ONE]


def test_it_ends_some_time_after_the_last_sandbox(net, monkeypatch):
    quick(monkeypatch, 0.3)
    net.lease(ONE, "one")
    ensure(net)
    assert net.ask(ONE, "one").texts == [ONE]
    process = hold(pid_of(net))
    try:
        assert not readable(process, 1)
        begin = time.monotonic()
        net.lease(ONE, "one", link="gone0")
        assert readable(process, 10) and time.monotonic() - begin >= 0.25
    finally:
        os.close(process)


def test_it_ends_when_the_network_is_removed(net, monkeypatch):
    quick(monkeypatch, 0.05)
    net.lease(ONE, "one")
    ensure(net)
    process = hold(pid_of(net))
    try:
        net.directory.rename(net.directory.parent / ".web")
        (net.directory.parent / ".web/leases" / ONE).unlink()
        (net.directory.parent / ".web/leases").rmdir()
        assert readable(process, 10)
    finally:
        os.close(process)
        (net.directory.parent / ".web").rename(net.directory)


def test_who_finds_it_ending_is_not_left_without(net, monkeypatch):
    """It ends all the time here, and each start has to find one that stays, or to start it."""
    quick(monkeypatch, 0.0)
    chance, pids = random.Random(7), set()
    for _ in range(60):
        net.lease(ONE, "one")
        ensure(net)
        assert net.ask(ONE, "one").texts == [ONE]
        pids.add(pid_of(net))
        net.leave(ONE)
        time.sleep(chance.choice((0, 0.001, 0.002, 0.005, 0.02)))
    assert len(pids) > 3


def test_it_can_be_ended_and_started_again_at_once(net):
    net.lease(ONE, "one")
    for _ in range(3):
        ensure(net)
        resolver.stop(net.directory)
        with (net.directory / resolver.LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    ensure(net)
    assert net.ask(ONE, "one").texts == [ONE]


def test_only_the_holder_of_the_lock_is_ended(net):
    resolver.stop(net.directory)  # there is none
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (net.directory / resolver.LOCK).write_text(str(stranger.pid))
        resolver.stop(net.directory)
        assert stranger.poll() is None
        stranger.communicate(b"\n")
        assert stranger.returncode == 0


def test_a_port_that_somebody_has_is_an_error_that_says_so(net, monkeypatch):
    monkeypatch.setattr(resolver, "_PATIENCE", 0.1)
    net.lease(ONE, "one")
    with net.host.open(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("0.0.0.0", 53))
        with pytest.raises(
            NetworkError, match=r"cannot listen on port 53 of 10\.77\.0\.1, where names are asked for: Address already in use"
        ) as error:
            ensure(net)
        assert "bind-interfaces" in error.value.hint
    ensure(net)
    assert net.ask(ONE, "one").texts == [ONE]


def test_a_gateway_that_is_not_there_is_an_error(net):
    network = Network("web", net.network.subnets, ("10.99.0.1",), "lo")
    with pytest.raises(NetworkError, match="Cannot assign requested address"):
        resolver.ensure(network, net.directory, net.host, "x")


def test_where_nothing_can_be_written_it_is_an_error(net):
    with pytest.raises(Unwritable):
        resolver.ensure(net.network, net.directory / "none", net.host, "x")


def test_garbage_from_all_sides_does_not_end_it(net):
    net.lease(ONE, "one")
    ensure(net)
    chance = random.Random(3)
    with net.client(ONE) as opened:
        for _ in range(2000):
            opened.send(chance.randbytes(chance.randrange(0, 80)))
            opened.send(question("one")[: chance.randrange(0, 21)] + chance.randbytes(chance.randrange(0, 9)))
    for _ in range(100):
        with net.client(ONE, stream=True) as opened:
            opened.send(chance.randbytes(chance.randrange(1, 80)))
    (net.directory / "leases" / "10.77.0.9").write_text("{" * 5000)
    (net.directory / "leases" / "10.77.0.10").mkdir()
    (net.directory / "leases" / "10.77.0.11").symlink_to("/etc/passwd")
    (net.directory / "leases" / "10.77.0.12").write_text(
        '{"network": "web", "addresses": ["x"], "mac": "", "link": "lo", "sandbox": "", "inode": 1}'
    )
    assert net.ask(ONE, "one").texts == [ONE]
    assert not (net.directory / resolver.LOG).read_text()


@pytest.mark.parametrize("reachable", [("10.0.0.53",), ()])
def test_who_needs_it(monkeypatch, reachable):
    """``reachable``: nameservers of the host that a sandbox reaches."""
    monkeypatch.setattr(nameservers, "reachable", lambda: list(reachable))
    web, default = (Network(name, ("10.77.0.0/16",), ("10.77.0.1",), "lo", named=name == "web") for name in ("web", "bridge"))
    by_name, by_address = (Egress(allow=(Rule(to),)) for to in ("a.example", "10.0.0.0/8"))
    assert nameservers.has_resolver(web, None) and nameservers.has_resolver(default, by_name)
    assert nameservers.has_resolver(default, by_address) is nameservers.has_resolver(default, None) is (not reachable)
