"""Names on a network, by real sockets in a network namespace of the test's own: neighbours, the host's name servers, and rules by name."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.dns_peers import AAAA, ANY, AXFR, HTTPS, PTR, TXT, A, Place, Upstream, parsed, place, question, received
from support.requires import requires

from dockless.errors import NetworkError
from dockless.native.netns import socket_in
from dockless.sandbox.network import name_server
from dockless.sandbox.network.model import Egress, Lease, Rule
from dockless.sandbox.network.name_server import NameServer
from dockless.sandbox.network.residents import Residents
from dockless.sandbox.network.upstreams import NameServers

pytestmark = requires("root", "netns")

ONE, OTHER, THIRD = "10.77.0.5", "10.77.0.6", "10.77.0.7"
SIX = "fd77::5"
PUBLIC = "203.0.113.9"


@dataclass
class Served:
    place: Place
    upstream: Upstream
    allowed: list[tuple[str, list[str], int]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    dead: list[Lease] = field(default_factory=list)
    refuses: bool = False

    def allow(self, lease: Lease, addresses: list[str], seconds: int) -> None:
        if self.refuses:
            raise NetworkError("no such table", subject="table", hint="")
        self.allowed.append((lease.addresses[0], list(addresses), seconds))

    def ask(self, name: str, kind: int = A, source: str = ONE, **more):
        return self.place.ask(source, name, kind, **more)


@contextlib.contextmanager
def serving(directory: Path, *, servers: Callable[[int], str] = lambda port: "nameserver 127.0.0.1\n", **more: bool) -> Iterator[Served]:
    """A server in a thread, with a name server of the host that the test writes."""
    upstream = Upstream()
    with upstream.running(), place(directory / "web", ONE, OTHER, THIRD, SIX, **more) as made:
        known = Served(made, upstream)
        made.lease(ONE, "one", six=SIX)
        (directory / "resolv.conf").write_text(servers(upstream.port))
        asking = made.host.open(socket.AF_INET, socket.SOCK_DGRAM)
        leases = os.open(made.directory / "leases", os.O_RDONLY)
        residents = Residents(made.network, leases, asking)
        resolv = NameServers(str(directory / "resolv.conf"), upstream.port)
        server = NameServer(made.network, residents, resolv, allow=known.allow, say=known.lines.append, swept=known.dead.extend)
        with contextlib.ExitStack() as opened:
            for gateway in made.network.gateways:
                family = socket.AF_INET6 if ":" in gateway else socket.AF_INET
                pair = [opened.enter_context(made.host.open(family, kind)) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)]
                for each in pair:
                    each.bind((gateway, 53))
                pair[1].listen()
                server.add(*pair)
            thread = threading.Thread(target=server.run, daemon=True)
            thread.start()
            try:
                yield known
            finally:
                for file in (made.directory / "leases").iterdir():
                    file.unlink()
                thread.join(20)
                assert not thread.is_alive()
                server.close()
                residents.close()
                os.close(leases)
                asking.close()
        assert not [line for line in known.lines if "Error" in line and "no such table" not in line]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "LINGER", 0.1)
    monkeypatch.setattr(name_server, "_LIFE", 0.05)
    monkeypatch.setattr(name_server, "_TICK", 0.02)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as known:
        yield known


# ---- neighbours --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["two", "TWO", "two.", "two.web", "Two.Web.", "db", "db.web", "data.base"])
def test_a_neighbour_is_found_by_its_names(served, name):
    served.place.lease(OTHER, "two", "DB", "data.base")
    said = served.ask(name)
    assert said.code == 0 and said.own and said.texts == [OTHER] and said.records[0][2] <= 2
    assert not served.upstream.asked


def test_a_sandbox_finds_itself(served):
    assert served.ask("one").texts == [ONE] and served.ask("one", AAAA).texts == [SIX]
    assert served.ask("one", AAAA, source=SIX).texts == [SIX]


def test_types_that_a_neighbour_has_not_are_no_error(served):
    served.place.lease(OTHER, "two")
    for kind in (AAAA, TXT, HTTPS, PTR):
        said = served.ask("two", kind)
        assert said.code == 0 and not said.records
    assert not served.upstream.asked


def test_who_is_not_there_yet_is_no_name_and_then_found_at_once(served):
    for _ in range(20):
        assert served.ask("worker-1").code == 3
        served.place.lease(OTHER, "worker-1")
        assert served.ask("worker-1").texts == [OTHER]
        served.place.leave(OTHER)
    assert served.ask("worker-1").code == 3 and not served.upstream.asked


def test_a_lease_that_is_written_again_in_its_place_is_read_again(served):
    """As leases.take does where a dead one had the address."""
    served.place.lease(OTHER, "old")
    assert served.ask("old").texts == [OTHER]
    path = served.place.directory / "leases" / OTHER
    text = path.read_text()
    for before, after in (("old", "new"), ("new", "newer")):
        with path.open("r+") as file:
            file.truncate(0)
            file.flush()
            assert served.ask("old").code == 3
            text = text.replace(before, after)
            file.write(text)
        assert served.ask(after).texts == [OTHER] and served.ask(before).code == 3


def test_the_dead_have_no_names_and_are_told_of(served):
    dead = served.place.lease(OTHER, "gone", "shared", link="gone0")
    served.place.lease(THIRD, "here", "shared")
    assert served.ask("gone").code == 3 and served.ask("shared").texts == [THIRD]
    until = time.monotonic() + 10
    while dead not in served.dead:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert {lease.addresses[0] for lease in served.dead} == {OTHER}


def test_who_is_being_made_has_its_names(served):
    import fcntl

    served.place.lease(OTHER, "soon", link="soon0")
    with (served.place.directory / "leases" / OTHER).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert served.ask("soon").texts == [OTHER]
    assert served.ask("soon").code == 3


def test_several_with_one_alias_take_turns(served):
    served.place.lease(OTHER, "two", "all")
    served.place.lease(THIRD, "three", "all")
    seen = [served.ask("all").texts for _ in range(4)]
    assert all(sorted(texts) == [OTHER, THIRD] for texts in seen)
    assert {texts[0] for texts in seen} == {OTHER, THIRD}


def test_addresses_have_names(served):
    served.place.lease(OTHER, "two", "alias")
    assert served.ask("6.0.77.10.in-addr.arpa", PTR).texts == ["two"]
    digits = ".".join(reversed(socket.inet_pton(socket.AF_INET6, SIX).hex()))
    assert served.ask(f"{digits}.ip6.arpa", PTR).texts == ["one"]
    assert served.ask("99.0.77.10.in-addr.arpa", PTR).code == 3
    assert not served.upstream.asked
    assert served.ask("8.8.8.8.in-addr.arpa", PTR).code == 3 and served.upstream.asked


def test_on_an_isolated_network_everybody_finds_itself_alone(tmp_path):
    with serving(tmp_path, isolated=True) as served:
        served.place.lease(OTHER, "two")
        assert served.ask("one").texts == [ONE] and served.ask("two").code == 3
        assert served.ask("two", source=OTHER).texts == [OTHER]
        assert served.ask("6.0.77.10.in-addr.arpa", PTR).code == 3


def test_very_many_neighbours_with_one_name_need_a_connection(served):
    for number in range(100):
        served.place.lease(f"10.77.1.{number}", "all")
    said = served.ask("all")
    assert said.cut and 0 < len(said.records) < 100
    assert len(served.ask("all", room=4096).records) == 100
    said = served.ask("all", stream=True)
    assert not said.cut and len(said.records) == 100


# ---- all others --------------------------------------------------------------------------------------------------------------------------


def test_other_names_are_asked_of_the_hosts_servers(served):
    served.upstream.has("a.example", PUBLIC, "2001:db8::9")
    assert served.ask("a.example").texts == [PUBLIC] and served.ask("A.Example", AAAA).texts == ["2001:db8::9"]
    assert served.ask("none.example").code == 3
    assert not served.allowed


def test_of_one_label_only_addresses_are_never_asked_of_others(served):
    assert served.ask("printer").code == 3 and not served.upstream.asked
    served.ask("com", TXT)
    assert served.upstream.asked


def test_a_name_below_one_like_the_network_is_asked_of_others_where_nobody_here_has_it(served):
    served.upstream.has("go.web", PUBLIC)
    assert served.ask("go.web").texts == [PUBLIC]


def test_on_an_internal_network_there_are_no_others(tmp_path):
    with serving(tmp_path, internal=True) as served:
        served.place.lease(OTHER, "two")
        served.upstream.has("a.example", PUBLIC)
        assert served.ask("two").texts == [OTHER] and served.ask("a.example").code == 3
        assert not served.upstream.asked


def test_what_is_too_long_is_asked_by_a_connection(served):
    served.upstream.room = 512
    served.upstream.has("many.example", *(f"203.0.113.{number}" for number in range(100)))
    said = served.ask("many.example")
    assert said.cut and not said.records
    assert len(served.ask("many.example", stream=True).records) == 100
    assert [how for *_, how in served.upstream.asked] == ["udp", "tcp"]


def test_what_is_longer_than_asked_for_is_cut(served):
    served.upstream.has("many.example", *(f"203.0.113.{number}" for number in range(100)))
    assert served.ask("many.example").cut
    assert len(served.ask("many.example", room=4096).records) == 100


def test_a_connection_takes_one_question_after_the_other(served):
    served.place.lease(OTHER, "two")
    served.upstream.has("a.example", PUBLIC)
    messages = [question(name, number=number) for number, name in enumerate(["two", "a.example", "one", "a.example"])]
    with served.place.client(ONE, stream=True) as opened:
        whole = b"".join(len(raw).to_bytes(2, "big") + raw for raw in messages)
        for at in range(0, len(whole), 7):  # in small pieces
            opened.sendall(whole[at : at + 7])
        opened.shutdown(socket.SHUT_WR)
        said = [parsed(received(opened)) for _ in messages]
        assert [(one.number, *one.texts) for one in said] == [(0, OTHER), (1, PUBLIC), (2, ONE), (3, PUBLIC)]
        assert received(opened) == b""


def test_the_next_server_is_asked_where_one_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("dockless.sandbox.network.upstreams.WAIT", 0.2)
    with serving(tmp_path, servers=lambda port: "nameserver 127.0.0.2\nnameserver 127.0.0.3\nnameserver 127.0.0.1\n") as served:
        silent = socket.socket(type=socket.SOCK_DGRAM)  # 127.0.0.2 refuses, and this one says nothing
        with silent:
            silent.bind(("127.0.0.3", served.upstream.port))
            served.upstream.has("a.example", PUBLIC)
            begin = time.monotonic()
            assert served.ask("a.example").texts == [PUBLIC]
            assert time.monotonic() - begin >= 0.2
            assert silent.recv(999)
            assert served.ask("a.example").texts == [PUBLIC]  # those that failed come last for a while
            silent.setblocking(False)
            with pytest.raises(BlockingIOError):
                silent.recv(999)


def test_the_next_server_is_asked_where_one_says_that_it_cannot(tmp_path):
    with serving(tmp_path, servers=lambda port: "nameserver 127.0.0.2\nnameserver 127.0.0.1\n") as served:
        broken = Upstream("127.0.0.2", served.upstream.port, codes={"a.example": 2, "b.example": 3})
        with broken.running():
            served.upstream.has("a.example", PUBLIC)
            served.upstream.has("b.example", PUBLIC)
            assert served.ask("a.example").texts == [PUBLIC]
            assert served.ask("b.example").code == 3


def test_where_no_server_answers_it_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr("dockless.sandbox.network.upstreams.WAIT", 0.1)
    with serving(tmp_path, servers=lambda port: "nameserver 127.0.0.2\n") as served:
        assert served.ask("a.example").code == 2
        assert served.ask("a.example", stream=True).code == 2
        (tmp_path / "resolv.conf").write_text("# nobody\nsearch lan\nnameserver\nnameserver x.y\noptions edns0\n")
        served.upstream.has("a.example", PUBLIC)
        assert served.ask("a.example").texts == [PUBLIC]  # as resolv.conf(5) says, the one on this host
        (tmp_path / "resolv.conf").unlink()
        assert served.ask("a.example").texts == [PUBLIC]


def test_what_does_not_answer_our_question_is_passed_over(served):
    served.upstream.has("a.example", PUBLIC)
    served.upstream.has("b.example", "203.0.113.66")
    honest = Upstream(records=served.upstream.records)

    def lies(raw: bytes) -> list[bytes]:
        right = honest.answer(raw, "udp")[0]
        wrong = honest.answer(raw.replace(b"\1a", b"\1b"), "udp")[0]
        other_number = bytes([right[0] ^ 1]) + right[1:]
        return [b"", b"x", wrong, other_number, raw, right]

    served.upstream.raw = lies
    assert served.ask("a.example").texts == [PUBLIC]


# ---- rules -------------------------------------------------------------------------------------------------------------------------------


def only(*to: str, log: bool = False) -> Egress:
    return Egress(allow=tuple(map(Rule, to)), log=log)


def test_a_name_that_a_rule_allows_is_let_through_before_it_is_told(served):
    served.place.lease(OTHER, "two", egress=only("a.example", "*.b.example"))
    served.upstream.alias("a.example", "cdn.example", PUBLIC, seconds=100)
    served.upstream.has("x.b.example", "203.0.113.10", seconds=5)
    order = []
    served.allowed = order
    assert served.ask("a.example", source=OTHER).texts == ["cdn.example", PUBLIC]
    assert served.ask("x.b.example", source=OTHER).texts == ["203.0.113.10"]
    assert order == [(OTHER, [PUBLIC], 100), (OTHER, ["203.0.113.10"], 30)]


def test_by_a_connection_the_same_rules_hold(served):
    served.place.lease(OTHER, "two", egress=only("a.example"))
    served.upstream.has("a.example", PUBLIC)
    assert served.ask("a.example", source=OTHER, stream=True).texts == [PUBLIC]
    assert served.ask("b.example", source=OTHER, stream=True).code == 5
    assert served.allowed == [(OTHER, [PUBLIC], 300)]


def test_other_names_are_refused_and_told_in_the_log(served):
    served.place.lease(OTHER, "two", egress=only("a.example", log=True))
    served.upstream.has("b.example", PUBLIC)
    served.upstream.has("b.a.example", PUBLIC)
    for name in ("b.example", "b.a.example", "8.8.8.8.in-addr.arpa"):
        assert served.ask(name, source=OTHER).code == 5
    assert served.ask("b\x1b[2J.example", source=OTHER).code == 5
    assert not served.upstream.asked and not served.allowed
    assert served.lines[0] == "dockless: network web: two asked for b.example: no rule allows it"
    assert "b\\x1b[2j.example" in served.lines[3]
    served.place.lease(THIRD, "three", egress=only())
    assert served.ask("b.example", source=THIRD).code == 5 and len(served.lines) == 4  # its rules do not say log


def test_neighbours_are_found_whatever_the_rules(served):
    served.place.lease(OTHER, "two", egress=only())
    assert served.ask("one", source=OTHER).texts == [ONE] and served.ask("nobody", source=OTHER).code == 3


def test_a_rule_of_one_sandbox_opens_nothing_for_another(served):
    served.place.lease(OTHER, "two", egress=only("a.example"))
    served.place.lease(THIRD, "three", egress=only("b.example"))
    served.upstream.has("a.example", PUBLIC)
    assert served.ask("a.example", source=OTHER).texts == [PUBLIC]
    assert served.ask("a.example", source=THIRD).code == 5
    assert {who for who, *_ in served.allowed} == {OTHER}


def test_where_the_firewall_refuses_nobody_is_told_an_address(served):
    served.place.lease(OTHER, "two", egress=only("a.example"))
    served.upstream.has("a.example", PUBLIC)
    served.refuses = True
    assert served.ask("a.example", source=OTHER).code == 2
    assert served.lines == ["dockless: network web: no such table"]


def test_records_with_addresses_of_their_own_are_not_there(served):
    served.place.lease(OTHER, "two", egress=only("a.example"))
    said = served.ask("a.example", HTTPS, source=OTHER)
    assert said.code == 0 and not said.records and not served.upstream.asked


def test_an_answer_that_comes_after_the_sandbox_opens_nothing_for_the_next_one(served):
    """The address is given again while the question is on its way."""
    served.place.lease(OTHER, "two", egress=only("a.example"))
    served.upstream.has("a.example", PUBLIC)
    honest = Upstream(records=served.upstream.records)

    def slow(raw: bytes) -> list[bytes]:
        served.place.leave(OTHER)
        served.place.lease(OTHER, "next", egress=only("b.example"), inode=99)
        assert served.ask("next").texts == [OTHER]  # it has been read
        return honest.answer(raw, "udp")

    served.upstream.raw = slow
    assert served.ask("a.example", source=OTHER).code == 2 and not served.allowed


# ---- attacks -----------------------------------------------------------------------------------------------------------------------------


def test_dns_rebinding_leads_nowhere(served):
    served.place.lease(OTHER, "two", egress=only("evil.example", log=True))
    own = _own_address()
    for address in ("127.0.0.1", "169.254.169.254", "10.77.0.1", "10.77.0.5", "192.168.0.1", "fd00:ec2::254", "::1", "fe80::1", *own):
        kind = AAAA if ":" in address else A
        served.upstream.records.pop(("evil.example", kind), None)
        served.upstream.has("evil.example", address)
        said = served.ask("evil.example", kind, source=OTHER)
        assert (said.code, said.records) == (5, [])
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


def test_connections_that_say_nothing_are_closed_and_others_have_room(served, monkeypatch):
    monkeypatch.setattr(name_server, "_STREAM_WAIT", 0.5)
    served.place.lease(OTHER, "two")
    with contextlib.ExitStack() as opened:
        many = [opened.enter_context(served.place.client(ONE, stream=True)) for _ in range(12)]
        many[0].sendall(b"\0")  # one byte now and then does not help
        assert served.ask("one", source=OTHER, stream=True).texts == [ONE]
        begin = time.monotonic()
        assert [each.recv(9) for each in many] == [b""] * 12
        assert time.monotonic() - begin < 5
    assert served.ask("one", stream=True).texts == [ONE]


def test_a_connection_with_a_length_of_nothing_or_too_much_is_closed(served):
    for raw in (b"\0\0", b"\xff\xff" + bytes(99), b"\x00\x01x"):
        with served.place.client(ONE, stream=True) as opened:
            opened.sendall(raw)
            assert opened.recv(99) == b""


def test_who_takes_no_answer_keeps_no_connection(served, monkeypatch):
    monkeypatch.setattr(name_server, "_STREAM_WAIT", 0.5)
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


def test_a_flood_of_one_sandbox_leaves_room_for_the_others(served, monkeypatch):
    monkeypatch.setattr(name_server, "_RATE", 100.0)
    monkeypatch.setattr(name_server, "_BURST", 200.0)
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
