"""Messages of the Domain Name System: questions read, answers written. RFC 1035, RFC 6891

What is read comes from sandboxes and from servers of anybody: each length is checked before it is used, and ``Malformed`` says that a
message is none. A name is a tuple of labels; those of ``Query.name`` are in lower case, as all are that are compared.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

from dockless.base.dataclass import dataclass

Name = tuple[bytes, ...]
A, NS, CNAME, SOA, PTR, MX, AAAA, SRV, DNAME, OPT, SVCB, HTTPS = 1, 2, 5, 6, 12, 15, 28, 33, 39, 41, 64, 65
INTERNET = 1
NO_ERROR, FORMAT_ERROR, SERVER_FAILURE, NO_NAME, NOT_IMPLEMENTED, REFUSED = 0, 1, 2, 3, 4, 5
MOST = 65535
"""Bytes of a message, which its length before it over TCP has room for."""
MOST_QUERY = 1232
"""Bytes of a question: a name has 255 at most. What comes over Ethernet in one piece. RFC 9715"""
LEAST_ROOM = 512
"""Bytes that an answer over UDP may have where nothing else is said."""
_OWN_ROOM, _MOST_ROOM = 1232, 4096
"""What is said of us, and the most that we take from others: RFC 9715"""
_RESPONSE, _OPCODE, _AUTHORITATIVE, _TRUNCATED, _DESIRED, _AVAILABLE = 0x8000, 0x7800, 0x0400, 0x0200, 0x0100, 0x0080
_AUTHENTIC, _UNCHECKED = 0x0020, 0x0010
_HEADER = struct.Struct("!6H")
_QUESTION = struct.Struct("!HH")
_RECORD = struct.Struct("!HHIH")
_NAMES_IN = {NS: (0, 1), CNAME: (0, 1), PTR: (0, 1), DNAME: (0, 1), SOA: (0, 2), MX: (2, 1), SRV: (6, 1)}
"""Types whose data has names, which may point elsewhere in the message: behind how many bytes, and how many. RFC 3597"""
_MOST_RECORDS = 256
_MOST_EXTRA = 2
"""Records behind a question: that of EDNS, and a signature. RFC 8945"""
_MOST_HOPS = 16
"""Pointers that one name leads along. Go's resolver follows 10."""
_POINTER = 0xC0


class Malformed(ValueError):
    """No message, or none of those that are answered."""


@dataclass(frozen=True, slots=True)
class Query:
    """``spelled``: the name as it was written; ``group``: its class; ``question``: the bytes of all that; ``extension``: the record of
    EDNS, empty for none; ``room``: bytes that its answer over UDP may have."""

    number: int
    flags: int
    name: Name
    spelled: Name
    kind: int
    group: int
    question: bytes
    extension: bytes
    room: int


@dataclass(frozen=True, slots=True)
class Record:
    """``seconds``: how long it may be kept. ``data``: without pointers."""

    name: Name
    kind: int
    seconds: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What another server says, of its answer section alone. ``cut``: there would be more."""

    code: int
    cut: bool
    records: tuple[Record, ...]


def name_of(text: str) -> Name | None:
    """The name that a text says, in lower case; None where it is none."""
    try:
        labels = tuple(text.rstrip(".").lower().encode("ascii").split(b"."))
    except UnicodeEncodeError:
        return None
    return labels if all(0 < len(label) < 64 for label in labels) and sum(map(len, labels)) + len(labels) < 255 else None


def address_of(name: Name) -> bytes | None:
    """The address that a name below ``in-addr.arpa`` or ``ip6.arpa`` means."""
    try:
        if name[-2:] == (b"in-addr", b"arpa") and len(name) == 6:
            return socket.inet_pton(socket.AF_INET, b".".join(name[-3::-1]).decode())
        if name[-2:] == (b"ip6", b"arpa") and len(name) == 34:
            digits = b"".join(name[-3::-1])
            return bytes.fromhex(digits.decode()) if len(digits) == 32 else None
    except (ValueError, OSError):
        pass
    return None


def wire(name: Name) -> bytes:
    """As it is in a message, in full."""
    return b"".join(bytes([len(label)]) + label for label in name) + b"\0"


def read_query(raw: bytes) -> Query:
    """``Malformed`` for what gets no answer, or the one that ``failure`` gives."""
    if len(raw) < _HEADER.size:
        raise Malformed("too short")
    number, flags, questions, answers, authorities, extra = _HEADER.unpack_from(raw)
    if flags & (_RESPONSE | _OPCODE) or questions != 1 or answers or authorities or extra > _MOST_EXTRA:
        raise Malformed("not one question")
    spelled, at = _read_name(raw, _HEADER.size, hops=0)  # there is nothing before it to point to
    if len(raw) < at + _QUESTION.size:
        raise Malformed("the question is cut off")
    kind, group = _QUESTION.unpack_from(raw, at)
    at += _QUESTION.size
    question, extension, room = raw[_HEADER.size : at], b"", LEAST_ROOM
    for _ in range(extra):
        begin = at
        owner, at = _read_name(raw, at, hops=0)
        found, size, _, length = _read_record(raw, at)
        at += _RECORD.size + length
        if found == OPT and not owner:
            extension, room = raw[begin:at], min(max(size, LEAST_ROOM), _MOST_ROOM)
    return Query(number, flags, lower(spelled), spelled, kind, group, question, extension, room)


def failure(raw: bytes) -> bytes | None:
    """What to say to that which ``read_query`` refused; None for nothing, so that no two servers answer each other's answers."""
    if len(raw) < _HEADER.size:
        return None
    number, flags, *_ = _HEADER.unpack_from(raw)
    if flags & _RESPONSE:
        return None
    code = NOT_IMPLEMENTED if flags & _OPCODE else FORMAT_ERROR
    return _HEADER.pack(number, _RESPONSE | flags & (_OPCODE | _DESIRED) | code, 0, 0, 0, 0)


def forwarded(query: Query, number: int, *, plain: bool) -> bytes:
    """The same question, to another server. ``plain``: without what asks for signatures, and other extensions."""
    flags = query.flags & (_DESIRED | _AUTHENTIC | _UNCHECKED)
    extension = query.extension
    if extension:
        extension = extension[:3] + struct.pack("!H", query.room) + (bytes(6) if plain else extension[5:])
    return _HEADER.pack(number, flags, 1, 0, 0, int(bool(extension))) + query.question + extension


def answers(raw: bytes, number: int, query: Query) -> bool:
    """Whether a message is the answer to what ``forwarded`` made."""
    if len(raw) < _HEADER.size + len(query.question):
        return False
    theirs, flags, questions, *_ = _HEADER.unpack_from(raw)
    asked = raw[_HEADER.size : _HEADER.size + len(query.question)]
    return theirs == number and flags & (_RESPONSE | _OPCODE) == _RESPONSE and questions == 1 and asked.lower() == query.question.lower()


def code_of(raw: bytes) -> int:
    return raw[3] & 0xF


def returned(raw: bytes, query: Query, limit: int) -> bytes:
    """What another server said, as the answer to ``query``: the same, with its number; empty and marked so where it is too long."""
    if len(raw) <= limit:
        return query.number.to_bytes(2, "big") + raw[2:]
    flags = _HEADER.unpack_from(raw)[1] | _TRUNCATED
    return _HEADER.pack(query.number, flags, 1, 0, 0, 0) + query.question


def read_answer(raw: bytes, query: Query) -> Answer:
    """Of what ``answers`` says that it is one. ``Malformed``"""
    _, flags, _, count, _, _ = _HEADER.unpack_from(raw)
    at, found = _HEADER.size + len(query.question), []
    for _ in range(min(count, _MOST_RECORDS)):
        owner, at = _read_name(raw, at)
        kind, group, seconds, length = _read_record(raw, at)
        at += _RECORD.size
        if group == INTERNET:
            found.append(Record(owner, kind, seconds if seconds < 1 << 31 else 0, _read_data(raw, at, length, kind)))
        at += length
    return Answer(flags & 0xF, bool(flags & _TRUNCATED) or count > _MOST_RECORDS, tuple(found))


def answer(
    query: Query, code: int, records: Iterable[Record] = (), *, limit: int = LEAST_ROOM, own: bool = False, cut: bool = False
) -> bytes:
    """Of so many bytes at most, ``limit``; what has no room is left out, and the answer marked as cut. ``own``: we are the authority."""
    out = bytearray(_HEADER.size) + query.question
    seen = {query.spelled: _HEADER.size}
    extension = b"\0" + _RECORD.pack(OPT, _OWN_ROOM, 0, 0) if query.extension else b""
    count = 0
    for record in records:
        end = len(out)
        _write_name(out, record.name, seen)
        out += _RECORD.pack(record.kind, INTERNET, record.seconds, len(record.data))
        out += record.data
        if len(out) + len(extension) > limit:
            del out[end:]
            cut = True
            break
        count += 1
    flags = _RESPONSE | _AVAILABLE | query.flags & (_DESIRED | _UNCHECKED) | code
    flags |= (_AUTHORITATIVE if own else 0) | (_TRUNCATED if cut else 0)
    _HEADER.pack_into(out, 0, query.number, flags, 1, count, 0, int(bool(extension)))
    return bytes(out + extension)


def lower(name: Name) -> Name:
    return tuple([label.lower() for label in name])


def _read_record(raw: bytes, at: int) -> tuple[int, int, int, int]:
    """What stands behind its name: type, class, seconds, and the length of the data, which is there."""
    if at + _RECORD.size > len(raw):
        raise Malformed("a record is cut off")
    kind, group, seconds, length = _RECORD.unpack_from(raw, at)
    if at + _RECORD.size + length > len(raw):
        raise Malformed("a record is cut off")
    return kind, group, seconds, length


def _read_name(raw: bytes, at: int, *, hops: int = _MOST_HOPS) -> tuple[Name, int]:
    """The name, and where what follows begins. A pointer leads to before the part that it ends, so none leads round; ``hops``: how many are
    followed."""
    labels: list[bytes] = []
    begin, behind, total = at, -1, 0
    while True:
        if at >= len(raw):
            raise Malformed("a name is cut off")
        size = raw[at]
        if size & _POINTER == _POINTER:
            if at + 1 >= len(raw):
                raise Malformed("a name is cut off")
            behind = at + 2 if behind < 0 else behind
            to = (size & 0x3F) << 8 | raw[at + 1]
            if not _HEADER.size <= to < begin:
                raise Malformed("a pointer leads nowhere")
            if not hops:
                raise Malformed("too many pointers")
            hops -= 1
            at = begin = to
            continue
        at += 1
        if not size:
            return tuple(labels), at if behind < 0 else behind
        total += size + 1
        if size > 63 or total > 254 or at + size > len(raw):
            raise Malformed("a name is too long")
        labels.append(raw[at : at + size])
        at += size


def _read_data(raw: bytes, at: int, length: int, kind: int) -> bytes:
    end = at + length
    if kind not in _NAMES_IN:
        return raw[at:end]
    before, count = _NAMES_IN[kind]
    parts = [raw[at : at + before]]
    at += before
    for _ in range(count):
        found, at = _read_name(raw, at)
        parts.append(wire(found))
    if at > end:
        raise Malformed("a name is longer than its record")
    return b"".join(parts) + raw[at:end]


def _write_name(out: bytearray, name: Name, seen: dict[Name, int]) -> None:
    for at in range(len(name)):
        known = seen.get(name[at:])
        if known is not None:
            out += (_POINTER << 8 | known).to_bytes(2, "big")
            return
        if len(out) < 0x4000:
            seen[name[at:]] = len(out)
        out.append(len(name[at]))
        out += name[at]
    out.append(0)
