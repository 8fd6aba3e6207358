"""Packets of some senders are dropped by the kernel."""

from __future__ import annotations

import socket

import pytest
from support.requires import requires

from dockless.sandbox.network.packet_filter import MOST, drop_from


def packed(*texts: str) -> list[bytes]:
    return [socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text) for text in texts]


def gets_through(receiver: socket.socket, source: str) -> bool:
    with socket.socket(receiver.family, socket.SOCK_DGRAM) as sender:
        sender.bind((source, 0))
        sender.sendto(b"x", receiver.getsockname())
    try:
        return receiver.recv(9) == b"x"
    except BlockingIOError:
        return False


@pytest.fixture
def receiver():
    with socket.socket(type=socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        opened.setblocking(False)
        yield opened


def test_only_those_that_are_named_are_dropped(receiver):
    drop_from(receiver, [])
    sources = [f"127.0.0.{number}" for number in range(2, 7)]
    assert all(gets_through(receiver, source) for source in sources)
    drop_from(receiver, packed("127.0.0.3", "127.0.0.5"))
    assert [source for source in sources if not gets_through(receiver, source)] == ["127.0.0.3", "127.0.0.5"]
    drop_from(receiver, packed("127.0.0.2"))
    assert [source for source in sources if not gets_through(receiver, source)] == ["127.0.0.2"]
    drop_from(receiver, [])
    drop_from(receiver, [])
    assert all(gets_through(receiver, source) for source in sources)


def test_a_long_datagram_comes_whole(receiver):
    drop_from(receiver, packed("127.0.0.9"))
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.sendto(bytes(60_000), receiver.getsockname())
    assert len(receiver.recv(65535)) == 60_000


def test_as_many_as_there_is_room_for(receiver):
    drop_from(receiver, packed(*(f"127.1.{number // 250}.{number % 250}" for number in range(MOST + 50))))
    assert not gets_through(receiver, f"127.1.0.{MOST - 1}") and gets_through(receiver, f"127.1.0.{MOST}")


@requires("root")  # who may do it on a socket that listens; the resolver is root's
def test_connections_are_dropped_as_well():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        drop_from(listening, packed("127.0.0.2"))
        for source, comes in (("127.0.0.3", True), ("127.0.0.2", False)):
            with socket.socket() as opened:
                opened.settimeout(0.3)
                opened.bind((source, 0))
                assert (opened.connect_ex(listening.getsockname()) == 0) is comes


@requires("ipv6")
def test_of_ipv6_all_of_an_address_counts():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as opened:
        opened.bind(("::1", 0))
        opened.setblocking(False)
        for other in ("::2", "1::1", "0:0:1::1", "0:0:0:0:1::1"):
            drop_from(opened, packed(other))
            assert gets_through(opened, "::1")
        drop_from(opened, packed("::5", "::1"))
        assert not gets_through(opened, "::1")
