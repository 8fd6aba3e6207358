"""A hostile sandbox, and hostile owners of names, against the resolver of a network."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.dns_peers import AAAA, ANY, AXFR, TXT, A, Upstream, parsed, question
from support.dns_served import ONE, OTHER, PUBLIC, SIX, THIRD, Served, only, serving
from support.requires import requires

from dockless.native.netns import socket_in
from dockless.sandbox.network import dns_tcp, name_server, rate_limit

pytestmark = requires("root", "netns")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as known:
        yield known


def test_dns_rebinding_leads_nowhere(served):
    served.place.lease(OTHER, "two", egress=only("evil.example", log=True))
    own = _own_address()
    for address in ("127.0.0.1", "169.254.169.254", "10.77.0.1", "10.77.0.5", "192.168.0.1", "fd00:ec2::254", "::1", "fe80::1", *own):
        kind = AAAA if ":" in address else A
        served.upstream.records.pop(("evil.example", kind), None)
        served.upstream.has("evil.example", address)
        said = served.ask("evil.example", kind, source=OTHER)
        assert (said.code, said.records) == (0, [])
    assert not served.allowed
    assert "its addresses are not public, and no rule allows them: 127.0.0.1" in served.lines[0]


def _own_address() -> list[str]:
    """Of this host, of an interface that leads somewhere."""
    with socket.socket(type=socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("203.0.113.1", 9))
        except OSError:
            return []
        return [asking.getsockname()[0]]


def test_who_has_no_lease_gets_no_answer(served):
    with pytest.raises(TimeoutError):
        served.place.send(THIRD, question("one"), wait=0.3)
    with served.place.client(THIRD, stream=True) as opened:
        assert opened.recv(9) == b""
    with socket_in(served.place.host.netns, socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.settimeout(0.3)
        opened.sendto(question("one"), ("10.77.0.1", 53))
        with pytest.raises(TimeoutError):
            opened.recv(99)


def test_zones_and_all_there_is_are_not_given(served):
    served.upstream.has("a.example", PUBLIC)
    for kind in (ANY, AXFR, 251):
        assert served.ask("one", kind).code == 5 and served.ask("a.example", kind, stream=True).code == 5
    assert served.ask("version.bind", TXT, group=3).code == 5
    assert served.ask("one", flags=0x2900).code == 4
    assert not served.upstream.asked


def test_garbage_gets_an_error_or_nothing_and_the_next_one_its_answer(served):
    with served.place.client(ONE) as opened:
        for raw in (
            b"",
            b"x",
            bytes(12),
            bytes(4096),
            b"\xff" * 600,
            question("one")[:-1],
            b"\xc0\x0c" * 300,
            question("a" * 63) * 60,
            bytes(60000),
        ):
            opened.send(raw)
    assert served.ask("one").texts == [ONE]


def test_the_log_has_a_bound(served):
    served.place.lease(OTHER, "two", egress=only(log=True))
    for number in range(100):
        served.ask(f"x{number}.example", source=OTHER)
    assert len(served.lines) == 20


def test_connections_that_say_nothing_are_closed_and_others_have_room(served, monkeypatch):
    monkeypatch.setattr(dns_tcp, "_WAIT", 0.5)
    served.place.lease(OTHER, "two")
    with contextlib.ExitStack() as opened:
        many = [opened.enter_context(served.place.client(ONE, stream=True)) for _ in range(12)]
        many[0].sendall(b"\0")  # one byte now and then does not help
        assert served.ask("one", source=OTHER, stream=True).texts == [ONE]
        begin = time.monotonic()
        assert [each.recv(9) for each in many] == [b""] * 12
        assert time.monotonic() - begin < 5
    assert served.ask("one", stream=True).texts == [ONE]


def test_a_question_has_a_bound(served):
    for size, is_answered in ((1000, True), (1300, False)):
        option = struct.pack("!HH", 12, size) + bytes(size)
        raw = question("one", room=4096)[:-2] + len(option).to_bytes(2, "big") + option
        if is_answered:
            assert parsed(served.place.send(ONE, raw)).texts == parsed(served.place.send(ONE, raw, stream=True)).texts == [ONE]
        else:
            with pytest.raises(TimeoutError):
                served.place.send(ONE, raw, wait=0.3)
            with contextlib.suppress(ConnectionResetError):
                assert not served.place.send(ONE, raw, stream=True)


def test_a_connection_with_a_length_of_nothing_or_too_much_is_closed(served):
    for raw in (b"\0\0", b"\xff\xff" + bytes(99), b"\x00\x01x"):
        with served.place.client(ONE, stream=True) as opened:
            opened.sendall(raw)
            assert opened.recv(99) == b""


def test_who_takes_no_answer_keeps_no_connection(served, monkeypatch):
    monkeypatch.setattr(dns_tcp, "_WAIT", 0.5)
    for number in range(2000):
        served.place.lease(f"10.77.{4 + number // 250}.{number % 250}", "all")
    raw = question("all")
    with served.place.client(ONE, stream=True) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.settimeout(0.2)
        with contextlib.suppress(OSError):
            for _ in range(100_000):
                opened.sendall(len(raw).to_bytes(2, "big") + raw)
        time.sleep(1)
        opened.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while opened.recv(1 << 16):
                pass


def test_questions_on_their_way_have_a_bound_for_each(tmp_path, monkeypatch):
    monkeypatch.setattr("dockless.sandbox.network.upstreams.WAIT", 1.0)
    with serving(tmp_path) as served, served.place.client(ONE) as opened:
        served.place.lease(OTHER, "two")
        served.upstream.raw = lambda raw: []  # it never answers
        for number in range(300):
            opened.send(question(f"x{number}.example", number=number))
        until = time.monotonic() + 5
        while len(served.upstream.asked) < 64 and time.monotonic() < until:
            time.sleep(0.01)
        assert served.ask("one").texts == [ONE]
        assert len(served.upstream.asked) == 64
        served.upstream.raw = None
        served.upstream.has("a.example", PUBLIC)
        assert served.ask("a.example", source=OTHER).texts == [PUBLIC]


def test_many_who_ask_for_silent_names_leave_others_room(tmp_path, monkeypatch):
    monkeypatch.setattr(name_server, "_MOST_PENDING", 12)
    with serving(tmp_path) as served, contextlib.ExitStack() as opened:
        silently = served.upstream.answer

        def answer(raw: bytes, how: str) -> list[bytes]:
            said = silently(raw, how)
            return [] if b"silent" in raw else said

        monkeypatch.setattr(served.upstream, "answer", answer)
        served.place.lease(THIRD, "three")
        served.place.lease(OTHER, "two")
        served.upstream.has("a.example", PUBLIC)
        one, other, third = (opened.enter_context(served.place.client(source)) for source in (ONE, OTHER, THIRD))
        for number in range(40):
            one.send(question(f"x{number}.silent", number=number))
            third.send(question(f"y{number}.silent", number=number))
        until = time.monotonic() + 5
        while len(served.upstream.asked) < 12 and time.monotonic() < until:
            time.sleep(0.01)
        other.send(question("b.silent"))  # its own, which waits, too
        assert [served.ask("a.example", source=OTHER).texts for _ in range(5)] == [[PUBLIC]] * 5
        asked = [name[0] for name, *_ in served.upstream.asked]
        assert asked.count("x") + asked.count("y") < 25  # who has his share has no more


def test_silent_names_take_no_server_from_others(tmp_path, monkeypatch):
    monkeypatch.setattr("dockless.sandbox.network.upstreams.WAIT", 0.2)
    with serving(tmp_path, servers=lambda port: "nameserver 127.0.0.1\nnameserver 127.0.0.2\n") as served:
        second = Upstream("127.0.0.2", served.upstream.port)
        with second.running():
            served.place.lease(OTHER, "two")
            served.upstream.raw = lambda raw: []
            assert served.ask("a.silent").code == 3  # as the second one says
            served.upstream.raw = None
            served.upstream.has("inside.example", PUBLIC)  # the first server alone knows it
            assert served.ask("inside.example", source=OTHER).texts == [PUBLIC]


def test_who_asks_without_end_is_shut_out_for_a_while(served, monkeypatch):
    monkeypatch.setattr(rate_limit, "_RATE", 100.0)
    monkeypatch.setattr(rate_limit, "_BURST", 200.0)
    served.place.lease(OTHER, "two")
    with served.place.client(ONE) as opened:
        answered = 0
        opened.settimeout(0.1)
        for _ in range(300):
            opened.send(question("one"))
            try:
                opened.recv(999)
                answered += 1
            except TimeoutError:
                break
        assert 190 <= answered <= 280
        assert served.ask("one", source=OTHER).texts == [ONE]
        assert served.ask("one", source=SIX).texts == [ONE]  # it has two
    until = time.monotonic() + 5
    while True:
        with contextlib.suppress(TimeoutError):
            assert parsed(served.place.send(ONE, question("one"), wait=0.1)).texts == [ONE]
            break
        assert time.monotonic() < until


def test_a_flood_takes_neither_time_nor_room_of_the_others(served):
    served.place.lease(OTHER, "two")
    code = """import socket, select
with socket.socket(fileno=3) as opened:
    opened.setblocking(False)
    while not select.select([0], [], [], 0)[0]:
        for _ in range(200):
            try:
                opened.send(%r)
            except OSError:
                pass"""
    with served.place.client(ONE) as opened, contextlib.ExitStack() as ends:
        fd = os.dup(opened.fileno())
        ends.callback(os.close, fd)
        program = code.replace("fileno=3", f"fileno={fd}") % question("one")
        flood = ends.enter_context(subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, pass_fds=[fd]))
        try:
            time.sleep(1)
            lost = 0
            for _ in range(100):
                try:
                    served.place.send(OTHER, question("one"), wait=0.3)
                except TimeoutError:
                    lost += 1
            assert lost < 6
        finally:
            flood.communicate(b"x")
