"""Networks of an ordinary user: bridges in a network namespace of hers, with real traffic. Most are on a host of their own, see
support/pasta.py; where this is an ordinary user, one here, with her subordinate ids."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

import pytest
from support import pasta
from support.boxes import until
from support.requires import requires

import dockless
from dockless import networks
from dockless.sandbox.network import own_host


@requires("pasta")
@pytest.mark.parametrize(
    "case",
    [
        "two_meet",
        "ends_with_its_sandboxes",
        "the_starter_is_killed",
        "the_holder_is_killed",
        "a_pasta_is_killed",
        "a_resolver_is_killed",
        "apart",
        "addresses",
        "ports",
        "rules",
        "joins_and_leaves",
        "of_another",
        "images_and_ids",
        "no_pasta",
    ],
)
def test_with_a_network_beside(home, case):
    pasta.run(home, case, cases="own_networks_cases")


@requires("pasta")
def test_rules_by_name(home):
    pasta.run(home, "rules_by_name", cases="own_networks_cases", resolv_conf="nameserver 203.0.113.1")


@requires("pasta")
def test_without_a_network(home):
    pasta.run(home, "no_network", network=False, cases="own_networks_cases")


@requires("user", "userns", "program:getent")
def test_here_on_an_internal_one(home):
    """With the ids of /etc/subuid, and no pasta: it leads nowhere."""
    networks.create("inner", internal=True)
    assert networks.get("inner").owner == os.geteuid()
    listens = "import socket; s = socket.create_server(('', 8000)); print(s.accept()[1][0], flush=True)"
    one = dockless.start(["python3", "-c", listens], id="one", network="inner:alias=db")
    two = dockless.start(["sleep", "1000"], id="two", network="inner")
    try:
        until(lambda: ":1F40 " in one.exec("cat", "/proc/net/tcp", text=True).stdout, "it listens")
        two.exec("python3", "-c", "import socket; socket.create_connection(('db', 8000), 5)", check=True)
        one.wait()
        (left,) = networks.get("inner").sandboxes
        assert (left.id, left.addresses[0]) == ("two", b"".join(row.text for row in one.logs()).decode().strip())
        assert two.exec("cat", "/proc/self/uid_map", text=True).stdout.split()[:2] == ["0", str(os.geteuid())]
    finally:
        for box in (one, two):
            box.inner.remove()
    until(lambda: not _holder_lives(), "the holder has ended")
    networks.remove("inner")


def _holder_lives() -> bool:
    with contextlib.ExitStack() as opened:
        return own_host.connected(opened) is not None


def _served(listening: socket.socket, given: list[int]) -> threading.Thread:
    thread = threading.Thread(target=own_host.Holder(listening, given).run)
    thread.start()
    return thread


def test_a_holder_ends_with_the_last_who_is_connected_and_drops_what_it_was_told(home, tmp_path):
    os.makedirs(own_host.place())
    reader, writer = os.pipe()
    with own_host.bound() as listening, contextlib.ExitStack() as opened:
        first = own_host.connecting(opened)
        thread = _served(listening, [reader, reader, reader])
        own = own_host.answered(first, opened)
        with contextlib.ExitStack() as leaving:
            other = own_host.connected(leaving)
            own_host.tell(other.connection, 7, reader, reader)
            found = own_host.find(own.connection, 7, opened)
            assert found is not None and os.fstat(found[0]).st_ino == os.fstat(reader).st_ino
            assert own_host.find(own.connection, 8, opened) is None
        until(lambda: own_host.find(own.connection, 7, opened) is None, "who is gone is not found")
        own.connection.send(b"mine x")  # nonsense ends the connection, and nothing else
        thread.join(10)
        assert not thread.is_alive()
    os.close(reader)
    os.close(writer)
    with contextlib.ExitStack() as opened:
        assert own_host.connected(opened) is None


@pytest.mark.parametrize("said", [b"mine 8", b"find x", b"nonsense"])
def test_what_makes_no_sense_ends_the_connection_and_leaves_no_descriptor(home, tmp_path, said):
    os.makedirs(own_host.place())
    file, null = tmp_path / "told", os.open(os.devnull, os.O_RDWR)
    told = os.open(file, os.O_RDWR | os.O_CREAT)

    def held() -> int:
        found = 0
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found += os.readlink(f"/proc/self/fd/{name}") == str(file)
        return found

    with own_host.bound() as listening, contextlib.ExitStack() as opened:
        first = own_host.connecting(opened)
        thread = _served(listening, [null, null, null])
        own = own_host.answered(first, opened)
        with contextlib.ExitStack() as leaving:
            other = own_host.connected(leaving)
            own_host.tell(other.connection, 7, told, told)
            assert held() == 3
            socket.send_fds(other.connection, [said], [told, told])  # who has told of itself does so once
            with contextlib.suppress(ConnectionResetError):
                assert other.connection.recv(64) == b""
        assert own_host.find(own.connection, 7, opened) is None and own_host.find(own.connection, 8, opened) is None
        until(lambda: held() == 1, "what was sent is closed")
    thread.join(10)
    for fd in (told, null):
        os.close(fd)


@requires("root", "two-accounts")
def test_another_user_is_given_nothing(home):
    """The attack: her directory is hers alone; and who would come to the socket all the same is asked by the kernel who he is."""
    os.makedirs(own_host.place())
    reader, writer = os.pipe()
    with own_host.bound() as listening, contextlib.ExitStack() as opened:
        first = own_host.connecting(opened)
        thread = _served(listening, [reader, reader, reader])
        own_host.answered(first, opened)
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if (pid := os.fork()) == 0:
            directory = os.open(own_host.place(), os.O_RDONLY)
            os.chmod(f"/proc/self/fd/{directory}/{own_host.SOCKET}", 0o666)
            os.chmod(f"/proc/self/fd/{directory}", 0o755)
            os.fchdir(directory)
            os.setresgid(1, 1, 1)
            os.setresuid(1, 1, 1)
            client.connect(own_host.SOCKET)
            client.settimeout(10)
            said, fds, _, _ = socket.recv_fds(client, 64, 3)
            os._exit(0 if (said, fds) == (b"", []) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        client.close()
    thread.join(10)
    for fd in (reader, writer):
        os.close(fd)
