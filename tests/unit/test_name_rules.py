"""Egress by name: which names may be asked for, and which addresses are told."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as some
from support.dns_peers import AAAA, CNAME, HTTPS, MX, A, encoded, parsed, question

from dockless.sandbox.network import dns, name_rules
from dockless.sandbox.network.model import Egress, Rule


def rules(*to: str) -> name_rules.Rules:
    found = name_rules.rules_of(Egress(allow=tuple(map(Rule, to))))
    assert found is not None
    return found


def raw_answer(name: str, *records: tuple[str, int, int, bytes], kind: int = A, code: int = 0) -> tuple[dns.Query, bytes]:
    query = dns.read_query(question(name, kind))
    body = b"".join(encoded(owner) + struct.pack("!HHIH", each, 1, seconds, len(data)) + data for owner, each, seconds, data in records)
    return query, struct.pack("!6H", 1, 0x8180 | code, 1, len(records), 0, 0) + query.question + body


def four(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET, text)


def six(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6, text)


def judged(to: tuple[str, ...], name: str, *records: tuple[str, int, int, bytes], kind: int = A) -> name_rules.Verdict:
    return name_rules.judge(rules(*to), *raw_answer(name, *records, kind=kind), 512)


def test_without_a_list_every_name_may_be_asked_for():
    assert name_rules.rules_of(None) is None and name_rules.rules_of(Egress()) is None
    assert name_rules.rules_of(Egress(allow=())) is not None


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("pypi.org", True),
        ("PyPI.org.", True),
        ("www.pypi.org", False),
        ("xpypi.org", False),
        ("org", False),
        ("files.pythonhosted.org", True),
        ("a.b.pythonhosted.org", True),
        ("pythonhosted.org", False),
        ("evilpythonhosted.org", False),
        ("pythonhosted.org.evil.example", False),
    ],
)
def test_a_rule_allows_a_name_or_all_below_it(name, allowed):
    found = dns.name_of(name)
    assert found is not None
    assert bool(name_rules.allowing(rules("pypi.org", "*.PythonHosted.org", "10.0.0.0/8"), found)) is allowed


def test_of_several_rules_for_a_name_all_count():
    given = [
        Rule("a.b.example", ((443, 443),)),
        Rule("*.example", ((80, 80),)),
        Rule("a.b.example", ((22, 22),)),
        Rule("*.b.example"),
        Rule("b.example"),
    ]
    found = name_rules.rules_of(Egress(allow=tuple(given)))
    assert found is not None and name_rules.allowing(found, (b"a", b"b", b"example")) == [given[0], given[2], given[3], given[1]]


def test_a_label_with_a_dot_in_it_is_not_two():
    assert not name_rules.allowing(rules("pypi.org", "*.pypi.org"), (b"pypi.org",))
    assert not name_rules.allowing(rules("*.pypi.org"), (b"x.pypi.org",))


def test_addresses_of_a_name_are_admitted_and_told():
    verdict = judged(("a.example",), "a.example", ("a.example", A, 300, four("203.0.113.1")), ("A.example", A, 200, four("203.0.113.2")))
    assert verdict.admitted == (four("203.0.113.1"), four("203.0.113.2")) and verdict.seconds == 200 and not verdict.refused
    assert [(kind, seconds, text) for _, kind, seconds, text in parsed(verdict.answer).records] == [
        (A, 200, "203.0.113.1"),
        (A, 200, "203.0.113.2"),
    ]


@pytest.mark.parametrize(("said", "kept", "told"), [(0, 30, 0), (5, 30, 5), (86400, 3600, 3600), (1 << 31, 30, 0)])
def test_no_answer_is_kept_longer_than_its_address_is_let_through(said, kept, told):
    verdict = judged(("a.example",), "a.example", ("a.example", A, said, four("203.0.113.1")))
    assert verdict.seconds == kept and parsed(verdict.answer).records[0][2] == told <= kept


def test_names_that_stand_for_others_are_followed():
    chain = (
        ("c.cdn.example", A, 100, four("203.0.113.9")),
        ("b.cdn.example", CNAME, 20, encoded("C.cdn.example")),
        ("a.example", CNAME, 300, encoded("b.cdn.example")),
    )
    verdict = judged(("a.example",), "a.example", *chain)
    assert verdict.admitted == (four("203.0.113.9"),) and verdict.seconds == 30
    assert parsed(verdict.answer).texts == ["b.cdn.example", "C.cdn.example", "203.0.113.9"]
    assert {seconds for _, _, seconds, _ in parsed(verdict.answer).records} == {20}


def test_what_the_question_does_not_lead_to_is_left_out():
    stray = (
        ("a.example", A, 60, four("203.0.113.1")),
        ("other.example", A, 60, four("203.0.113.66")),
        ("a.example", AAAA, 60, six("2001:db8::66")),
        ("a.example", 99, 60, b"x"),
    )
    verdict = judged(("a.example",), "a.example", *stray)
    assert verdict.admitted == (four("203.0.113.1"),) and parsed(verdict.answer).texts == ["203.0.113.1"]


def test_names_that_stand_for_each_other_end():
    verdict = judged(
        ("a.example",), "a.example", ("a.example", CNAME, 60, encoded("b.example")), ("b.example", CNAME, 60, encoded("a.example"))
    )
    assert not verdict.admitted and len(parsed(verdict.answer).records) <= 16


BAD = """
    0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 127.9.9.9 169.254.169.254
    172.16.0.1 172.31.255.255 192.0.0.8 192.168.1.1 198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255
    :: ::1 ::ffff:10.0.0.1 ::ffff:203.0.113.1 fc00::1 fd00:ec2::254 fe80::1
    ff02::1 64:ff9b::10.0.0.1 64:ff9b::169.254.169.254 64:ff9b:1::1 2002:a00:1::1 2001::1
"""


@pytest.mark.parametrize("address", BAD.split())
def test_addresses_that_are_not_public_are_refused(address):
    data, kind = (six(address), AAAA) if ":" in address else (four(address), A)
    verdict = judged(("a.example",), "a.example", ("a.example", kind, 60, data), kind=kind)
    assert not verdict.admitted and verdict.refused == (data,)
    assert parsed(verdict.answer).code == 0 and not parsed(verdict.answer).records


@pytest.mark.parametrize(
    "address", ["203.0.113.1", "8.8.8.8", "172.32.0.1", "100.128.0.1", "2001:db8::1", "2606:4700::1", "64:ff9b::203.0.113.1"]
)
def test_addresses_that_are_public_are_told(address):
    data, kind = (six(address), AAAA) if ":" in address else (four(address), A)
    assert judged(("a.example",), "a.example", ("a.example", kind, 60, data), kind=kind).admitted == (data,)


def test_of_several_addresses_those_that_are_not_public_are_left_out():
    mixed = (("a.example", A, 60, four("10.0.0.1")), ("a.example", A, 60, four("203.0.113.1")))
    verdict = judged(("a.example",), "a.example", *mixed)
    assert parsed(verdict.answer).texts == ["203.0.113.1"] and verdict.refused == (four("10.0.0.1"),)


def test_a_rule_for_their_network_allows_them_and_opens_nothing_more():
    verdict = judged(("a.example", "10.1.0.0/16"), "a.example", ("a.example", A, 60, four("10.1.2.3")))
    assert parsed(verdict.answer).texts == ["10.1.2.3"] and not verdict.admitted
    assert judged(("a.example", "10.2.0.0/16"), "a.example", ("a.example", A, 60, four("10.1.2.3"))).refused
    assert judged(("a.example", "10.1.2.3"), "a.example", ("a.example", A, 60, four("10.1.2.3"))).refused == ()
    assert judged(("a.example", "fd00::/8"), "a.example", ("a.example", AAAA, 60, six("fd12::1")), kind=AAAA).refused == ()


def test_addresses_of_this_host_are_refused(monkeypatch):
    monkeypatch.setattr(name_rules, "is_public", lambda address: True)
    verdict = judged(("a.example",), "a.example", ("a.example", A, 60, four("127.0.0.1")))
    assert verdict.refused == (four("127.0.0.1"),)


def test_an_answer_with_very_many_addresses_admits_some():
    many = [("a.example", A, 60, four(f"203.0.113.{number}")) for number in range(200)]
    query, raw = raw_answer("a.example", *many)
    verdict = name_rules.judge(rules("a.example"), query, raw, 65535)
    assert len(verdict.admitted) == 64 and [four(text) for text in parsed(verdict.answer).texts] == [*verdict.admitted]


def test_other_types_are_told_and_admit_nothing():
    verdict = judged(("a.example",), "a.example", ("a.example", MX, 60, b"\0\5" + encoded("mail.example")), kind=MX)
    assert parsed(verdict.answer).texts == ["mail.example"] and not verdict.admitted
    assert name_rules.has_answer(MX) and not name_rules.has_answer(HTTPS)


def test_errors_are_told():
    query, raw = raw_answer("a.example", code=3)
    assert parsed(name_rules.judge(rules("a.example"), query, raw, 512).answer).code == 3


@pytest.mark.parametrize("data", [b"", b"\1\2\3", bytes(16)])
def test_an_address_of_the_wrong_length_is_none(data):
    verdict = judged(("a.example",), "a.example", ("a.example", A, 60, data))
    assert not verdict.admitted and not parsed(verdict.answer).records


@given(some.binary(max_size=400))
def test_anybodys_bytes_admit_nothing_private(tail):
    query = dns.read_query(question("a.example"))
    raw = struct.pack("!6H", 1, 0x8180, 1, 20, 0, 0) + query.question + tail
    try:
        verdict = name_rules.judge(rules("a.example"), query, raw, 512)
    except dns.Malformed:
        return
    assert all(name_rules.is_public(address) for address in verdict.admitted)
