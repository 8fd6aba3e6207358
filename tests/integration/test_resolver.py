"""Names on a network, by real sockets in a network namespace of the test's own: neighbours, the host's name servers, and rules by name."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from support.dns_peers import AAAA, HTTPS, PTR, TXT, Place, Upstream, parsed, question, received
from support.dns_served import ONE, OTHER, PUBLIC, SIX, THIRD, Served, only, serving
from support.requires import requires

from dockless.base import records
from dockless.sandbox.network.model import Network
from dockless.sandbox.network.residents import Residents, Watches, packed

pytestmark = requires("root", "netns")


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


@pytest.mark.parametrize("changes", [0, 20_000])
def test_thousands_of_leases_that_change_at_once_are_all_read(served, changes):
    """``changes``: of other files, more than the kernel keeps."""
    directory = served.place.directory / "leases"
    with served.place.host.open(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.ExitStack() as opened:
        leases = os.open(directory, os.O_RDONLY)
        opened.callback(os.close, leases)
        watches = Watches()
        opened.callback(watches.close)
        residents = Residents(served.place.network, leases, asking, watches)
        files = [opened.enter_context((directory / name).open("wb", buffering=0)) for name in ("x", "y")]
        for number in range(changes):
            files[number % 2].write(b" ")
        for number in range(3000):
            served.place.lease(f"10.77.{10 + number // 250}.{number % 250}", f"n{number}")
        watches.refresh()
        one = residents.at(packed(ONE))
        assert one is not None and all(residents.named((b"n%d" % number,), one) for number in range(3000))


def test_the_dead_have_no_names(served):
    served.place.lease(OTHER, "gone", "shared", link="gone0")
    served.place.lease(THIRD, "here", "shared")
    assert served.ask("gone").code == 3 and served.ask("shared").texts == [THIRD]


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


@pytest.mark.parametrize("kind", [{"isolated": True}, {"named": False}])
def test_where_others_cannot_be_reached_everybody_finds_itself_alone(tmp_path, kind):
    with serving(tmp_path, **kind) as served:
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


# ---- on other networks of the one who asks -----------------------------------------------------------------------------------------------


def other_network(served: Served, directory: Path, name: str = "lab", **more: bool) -> Place:
    """A network beside that of ``served``, of which only the leases are there."""
    made = Place(Network(name, ("10.88.0.0/16",), ("10.88.0.1",), "lo", **more), directory / name, served.place.host)
    (directory / "home" / name).mkdir(parents=True)
    (directory / "home" / name / "network.json").write_text(json.dumps(records.plain(made.network)))
    (directory / name / "leases").mkdir(parents=True)
    return made


def test_who_is_on_another_network_as_well_finds_its_names(served, tmp_path):
    served.place.lease(OTHER, "two")
    assert served.ask("db").code == 3
    lab = other_network(served, tmp_path)
    lab.lease("10.88.0.9", "db")
    assert served.ask("db").code == 3  # it is not on it yet
    lab.lease("10.88.0.5", "one", inode=int(ip_address(ONE)))
    assert served.ask("db").texts == served.ask("db.lab").texts == ["10.88.0.9"]
    assert served.ask("9.0.88.10.in-addr.arpa", PTR).texts == ["db"]
    assert served.ask("one").texts == [ONE]  # of the first network
    assert served.ask("db", source=OTHER).code == 3 and not served.ask("9.0.88.10.in-addr.arpa", PTR, source=OTHER).texts
    lab.lease("10.88.0.9", "db", link="gone0")
    assert served.ask("db").code == 3
    lab.lease("10.88.0.9", "db")
    assert served.ask("db").texts
    lab.lease("10.88.0.5", "one", inode=int(ip_address(ONE)), link="gone0")
    assert served.ask("db").code == 3
    lab.lease("10.88.0.5", "one", inode=int(ip_address(ONE)))
    assert served.ask("db").texts
    lab.leave("10.88.0.5")
    assert served.ask("db").code == 3


@pytest.mark.parametrize("kind", [{"isolated": True}, {"named": False}])
def test_who_cannot_reach_others_there_does_not_find_them(served, tmp_path, kind):
    lab = other_network(served, tmp_path, **kind)
    lab.lease("10.88.0.9", "db")
    lab.lease("10.88.0.5", "me", inode=int(ip_address(ONE)))
    assert served.ask("db").code == 3 and served.ask("me").texts == ["10.88.0.5"]


def test_a_network_that_is_made_again_is_read_again(served, tmp_path):
    for address in ("10.88.0.9", "10.88.0.10"):
        lab = other_network(served, tmp_path)
        lab.lease("10.88.0.5", "one", inode=int(ip_address(ONE)))
        lab.lease(address, "db")
        assert served.ask("db").texts == [address]
        shutil.rmtree(tmp_path / "lab")
        assert served.ask("db").code == 3
        shutil.rmtree(tmp_path / "home")


def test_from_an_internal_network_another_one_may_lead_out(tmp_path):
    with serving(tmp_path, internal=True) as served:
        served.upstream.has("a.example", PUBLIC)
        lab = other_network(served, tmp_path)
        assert served.ask("a.example").code == 3
        lab.lease("10.88.0.5", "one", inode=int(ip_address(ONE)))
        assert served.ask("a.example").texts == [PUBLIC]


def test_what_a_rule_allows_is_let_through_on_all_networks(served, tmp_path):
    served.place.lease(OTHER, "two", egress=only("a.example"))
    served.upstream.has("a.example", PUBLIC)
    other_network(served, tmp_path).lease("10.88.0.6", "two", egress=only("a.example"), inode=int(ip_address(OTHER)))
    assert served.ask("a.example", source=OTHER).texts == [PUBLIC]
    assert served.allowed == [(OTHER, [PUBLIC], 300), ("10.88.0.6", [PUBLIC], 300)]


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


def test_a_name_that_a_rule_allows_is_let_through_before_it_is_told(served):
    served.place.lease(OTHER, "two", egress=only("a.example", "*.b.example"))
    served.upstream.alias("a.example", "cdn.example", PUBLIC, seconds=100)
    served.upstream.has("x.b.example", "203.0.113.10", seconds=5)
    order = []
    served.allowed = order
    assert served.ask("a.example", source=OTHER).texts == ["cdn.example", PUBLIC]
    assert served.ask("x.b.example", source=OTHER).texts == ["203.0.113.10"]
    assert order == [(OTHER, [PUBLIC], 100), (OTHER, ["203.0.113.10"], 30)]
    assert served.ruled == ["a.example", "*.b.example"]


def test_by_a_connection_the_same_rules_hold(served):
    served.place.lease(OTHER, "two", egress=only("a.example"))
    served.upstream.has("a.example", PUBLIC)
    assert served.ask("a.example", source=OTHER, stream=True).texts == [PUBLIC]
    assert served.ask("b.example", source=OTHER, stream=True).code == 3
    assert served.allowed == [(OTHER, [PUBLIC], 300)]


def test_other_names_are_refused_and_told_in_the_log(served):
    served.place.lease(OTHER, "two", egress=only("a.example", log=True))
    served.upstream.has("b.example", PUBLIC)
    served.upstream.has("b.a.example", PUBLIC)
    for name in ("b.example", "b.a.example", "8.8.8.8.in-addr.arpa"):
        assert served.ask(name, source=OTHER).code == 3
    assert served.ask("b\x1b[2J.example", source=OTHER).code == 3
    assert not served.upstream.asked and not served.allowed
    assert served.lines[0] == "dockless: network web: two asked for b.example: no rule allows it"
    assert "b\\x1b[2j.example" in served.lines[3]
    served.place.lease(THIRD, "three", egress=only())
    assert served.ask("b.example", source=THIRD).code == 3 and len(served.lines) == 4  # its rules do not say log


def test_neighbours_are_found_whatever_the_rules(served):
    served.place.lease(OTHER, "two", egress=only())
    assert served.ask("one", source=OTHER).texts == [ONE] and served.ask("nobody", source=OTHER).code == 3


def test_a_rule_of_one_sandbox_opens_nothing_for_another(served):
    served.place.lease(OTHER, "two", egress=only("a.example"))
    served.place.lease(THIRD, "three", egress=only("b.example"))
    served.upstream.has("a.example", PUBLIC)
    assert served.ask("a.example", source=OTHER).texts == [PUBLIC]
    assert served.ask("a.example", source=THIRD).code == 3
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
