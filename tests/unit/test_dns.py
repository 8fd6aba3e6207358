"""Messages of the DNS: what is read of anybody's bytes, and what is written."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as some
from support.dns_peers import AAAA, CNAME, MX, PTR, A, encoded, parsed, question

from dockless.sandbox.network import dns

LABELS = some.lists(some.binary(min_size=1, max_size=63), max_size=4).map(tuple)
HOSTILE = some.one_of(
    some.binary(max_size=600),
    some.tuples(some.sampled_from([question("a.b"), question("x", room=4096)]), some.binary(max_size=200)).map(b"".join),
    # pointers here and there, and lengths that promise too much
    some.lists(
        some.sampled_from([b"\xc0\x0c", b"\xc0\x00", b"\xff\xff", b"\x3f", b"\x01a", b"\0", b"\0\1\0\1", struct.pack("!I", 1)]), max_size=60
    )
    .map(b"".join)
    .map(lambda tail: struct.pack("!6H", 1, 0x8180, 1, 40, 0, 2) + tail),
)


@given(HOSTILE)
def test_what_is_no_question_is_refused_and_nothing_else_happens(raw):
    try:
        query = dns.read_query(raw)
    except dns.Malformed:
        answer = dns.failure(raw)
        assert answer is None or (len(answer) == 12 and parsed(answer).code in (1, 4))
        return
    assert raw[12:].startswith(query.question) and 512 <= query.room <= 4096


@given(HOSTILE)
def test_what_is_no_answer_is_refused_and_nothing_else_happens(raw):
    query = dns.read_query(question("a.b"))
    if not dns.answers(raw, int.from_bytes(raw[:2], "big"), query):
        raw = raw[:2] + struct.pack("!5H", 0x8180, 1, 40, 0, 0) + query.question + raw[12:]
    try:
        found = dns.read_answer(raw, query)
    except dns.Malformed:
        return
    assert len(found.records) <= 256


@example((b"A" * 63,) * 3 + (b"b" * 61,))
@given(LABELS)
def test_a_name_is_read_as_it_was_written(name):
    if len(dns.wire(name)) > 255:
        return
    raw = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + dns.wire(name) + b"\0\1\0\1"
    query = dns.read_query(raw)
    assert query.spelled == name and query.name == tuple(label.lower() for label in name)


def test_pointers_lead_back_and_never_round():
    query = dns.read_query(question("a.b"))
    head = struct.pack("!6H", 1, 0x8180, 1, 1, 0, 0) + query.question
    record = struct.pack("!HHIH", A, 1, 60, 4) + bytes(4)
    assert dns.read_answer(head + b"\xc0\x0c" + record, query).records[0].name == (b"a", b"b")
    assert dns.read_answer(head + b"\1x\xc0\x0e" + record, query).records[0].name == (b"x", b"b")
    at = len(head)
    for where in (at, at + 2, 0, 11, 0x3FFF):
        with pytest.raises(dns.Malformed):
            dns.read_answer(head + b"\1x" + struct.pack("!H", 0xC000 | where) + record, query)
    with pytest.raises(dns.Malformed):  # to itself
        dns.read_answer(head + struct.pack("!H", 0xC000 | at) + record, query)


class Counted(bytes):
    """A message that counts what of it is looked at, one byte or slice at a time."""

    looked = 0

    def __getitem__(self, at):
        self.looked += 1
        return super().__getitem__(at)


def pointers(at: int, count: int, to: int) -> bytes:
    """Each to the one before it, the first one to ``to``; ``at``: where they stand."""
    return b"".join(struct.pack("!H", 0xC000 | (at + 2 * (number - 1) if number else to)) for number in range(count))


def test_a_question_has_no_pointers():
    begin = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 2) + encoded("a") + b"\0\1\0\1"
    chain = pointers(len(begin) + 11, 1900, 12)
    data = b"\0" + struct.pack("!HHIH", 99, 1, 0, len(chain)) + chain
    last = struct.pack("!H", 0xC000 | len(begin + data) - 2) + struct.pack("!HHIH", 99, 1, 0, 0)
    raw = Counted(begin + data + last)
    with pytest.raises(dns.Malformed):
        dns.read_query(raw)
    assert raw.looked < 20
    with pytest.raises(dns.Malformed):
        dns.read_query(begin[:-5] + b"\xc0\x0c" + begin[-4:])
    with pytest.raises(dns.Malformed):
        dns.read_query(begin + (b"\xc0\x0c" + struct.pack("!HHIH", 99, 1, 0, 0)) * 2)


def test_a_question_has_two_records_behind_it_at_most():
    signature = encoded("key") + struct.pack("!HHIH", 250, 255, 0, 3) + b"abc"
    raw = question("a", room=1232)
    assert dns.read_query(raw[:10] + b"\0\2" + raw[12:] + signature).room == 1232
    with pytest.raises(dns.Malformed):
        dns.read_query(raw[:10] + b"\0\3" + raw[12:] + signature * 2)


def test_pointers_of_one_name_have_a_bound():
    query = dns.read_query(question("a.b"))
    head = struct.pack("!6H", 1, 0x8180, 1, 2, 0, 0) + query.question
    for count, is_read in ((15, True), (16, False), (2000, False)):
        chain = pointers(len(head) + 11, count, 12)
        first = b"\0" + struct.pack("!HHIH", 99, 1, 60, len(chain)) + chain
        last = struct.pack("!H", 0xC000 | len(head + first) - 2) + struct.pack("!HHIH", A, 1, 60, 4) + bytes(4)
        raw = Counted(head + first + last)
        if is_read:
            assert dns.read_answer(raw, query).records[1].name == (b"a", b"b")
        else:
            with pytest.raises(dns.Malformed):
                dns.read_answer(raw, query)
        assert raw.looked < 60


def test_a_name_of_more_than_255_bytes_is_refused():
    with pytest.raises(dns.Malformed):
        dns.read_query(question(".".join(["a" * 63] * 4)))
    assert dns.read_query(question(".".join(["a" * 63] * 3 + ["b" * 61])))


def test_pointers_in_data_are_resolved():
    query = dns.read_query(question("a.example", CNAME))
    body = b"\xc0\x0c" + struct.pack("!HHIH", CNAME, 1, 60, 4) + b"\1b\xc0\x0e"
    body += b"\xc0\x0c" + struct.pack("!HHIH", MX, 1, 60, 6) + b"\0\5\1m\xc0\x0e"
    raw = struct.pack("!6H", 1, 0x8180, 1, 2, 0, 0) + query.question + body
    one, other = dns.read_answer(raw, query).records
    assert one.data == encoded("b.example") and other.data == b"\0\5" + encoded("m.example")
    again = parsed(dns.answer(query, 0, (one, other)))
    assert again.texts == ["b.example", "m.example"]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (question("a", flags=0x0100 | 5 << 11), 4),  # an update
        (struct.pack("!6H", 9, 0x0100, 0, 0, 0, 0), 1),
        (struct.pack("!6H", 9, 0x0100, 2, 0, 0, 0) + (encoded("a") + b"\0\1\0\1") * 2, 1),
        (struct.pack("!6H", 9, 0x0100, 1, 1, 0, 0) + encoded("a") + b"\0\1\0\1", 1),
        (struct.pack("!6H", 9, 0x0100, 1, 0, 0, 9) + encoded("a") + b"\0\1\0\1", 1),
        (question("a")[:-1], 1),
    ],
)
def test_what_is_not_one_question_gets_its_error(raw, code):
    with pytest.raises(dns.Malformed):
        dns.read_query(raw)
    answer = dns.failure(raw)
    assert answer is not None and answer[:2] == raw[:2] and parsed(answer).code == code


def test_an_answer_is_not_answered():
    raw = question("a", flags=0x8180)
    with pytest.raises(dns.Malformed):
        dns.read_query(raw)
    assert dns.failure(raw) is None and dns.failure(raw[:11]) is None


def test_what_has_no_room_is_left_out():
    query = dns.read_query(question("many", room=0))
    records = [dns.Record((b"many",), A, 1, bytes(4))] * 100
    raw = dns.answer(query, 0, records)
    assert len(raw) <= 512 and parsed(raw).cut and len(parsed(raw).records) == 30  # a pointer, 10 bytes and 4 each
    raw = dns.answer(query, 0, records, limit=dns.MOST)
    assert not parsed(raw).cut and len(parsed(raw).records) == 100


def test_edns_is_taken_and_bounded():
    assert dns.read_query(question("a")).room == 512
    for said, room in ((100, 512), (1232, 1232), (65535, 4096)):
        query = dns.read_query(question("a", room=said))
        assert query.room == room
        raw = dns.forwarded(query, 5, plain=False)
        assert struct.unpack_from("!H", raw, len(raw) - 8)[0] == room
        assert dns.answer(query, 0)[-11:-8] == b"\0\0\x29"  # ours, where it had one
    signed = question("a", room=1232)[:-4] + struct.pack("!HH", 0x8000, 5) + b"\0\3\0\1x"
    query = dns.read_query(signed)
    assert dns.forwarded(query, 5, plain=False).endswith(struct.pack("!HH", 0x8000, 5) + b"\0\3\0\1x")
    assert dns.forwarded(query, 5, plain=True).endswith(bytes(6))


def test_an_answer_belongs_to_its_question():
    query = dns.read_query(question("Some.Name", AAAA))
    sent = dns.forwarded(query, 77, plain=False)
    answer = sent[:2] + b"\x81\x80" + sent[4:]
    assert dns.answers(answer, 77, query)
    assert dns.answers(answer[:12] + answer[12:].lower(), 77, query)
    assert not dns.answers(answer, 78, query)
    assert not dns.answers(sent, 77, query)  # no answer
    assert not dns.answers(answer.replace(b"Some", b"Same"), 77, query)
    assert not dns.answers(answer[:-3] + b"\1" + answer[-2:], 77, query)  # another type
    assert not dns.answers(answer[:20], 77, query)


def test_what_another_server_said_is_returned_with_our_number():
    query = dns.read_query(question("a", number=5))
    raw = question("a", number=99, flags=0x8180) + bytes(100)
    assert dns.returned(raw, query, 512) == b"\0\5" + raw[2:]
    assert dns.returned(raw, query, 60) == b"\0\5" + b"\x83\x80\0\1" + bytes(6) + query.question


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Db", (b"db",)),
        ("a.B.c.", (b"a", b"b", b"c")),
        ("", None),
        ("a..b", None),
        ("ä", None),
        ("x" * 64, None),
        (".".join(["a" * 63] * 4), None),
    ],
)
def test_a_text_is_a_name(text, name):
    assert dns.name_of(text) == name


def test_names_that_mean_addresses():
    four, six = socket.inet_pton(socket.AF_INET, "10.1.2.3"), socket.inet_pton(socket.AF_INET6, "fd00::a1")
    assert dns.address_of(dns.name_of("3.2.1.10.in-addr.arpa")) == four
    assert dns.address_of(dns.name_of(".".join(reversed(six.hex())) + ".ip6.arpa")) == six
    for text in (
        "2.1.10.in-addr.arpa",
        "x.2.1.10.in-addr.arpa",
        "1.ip6.arpa",
        "3.2.1.10.example.org",
        ".".join("ab" for _ in range(32)) + ".ip6.arpa",
    ):
        assert dns.address_of(dns.name_of(text)) is None
    assert PTR == dns.PTR
