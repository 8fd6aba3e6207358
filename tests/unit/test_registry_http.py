"""HTTP/1.1 on the wire: what is sent, how an answer is framed, and what is refused because it could be understood in two ways."""

import io
import socket

import pytest

from dockless.images.registry.http import LINE_MAX, BadHttp, Connection


class Wire:
    """A connection whose other end says what a test has written."""

    def __init__(self, said: bytes, end: bool = True) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.sendall(said)
        if end:
            self._theirs.shutdown(socket.SHUT_WR)
        self.given_back = 0
        self.connection = Connection(ours, "registry.test", lambda: None)

    def ask(self, method="GET"):
        return self.connection.receive(method, self._count)

    def _count(self):
        self.given_back += 1

    def heard(self) -> bytes:
        self.connection.close()
        return b"".join(iter(lambda: self._theirs.recv(65536), b""))


def body(answer, size=5) -> bytes:
    return b"".join(iter(lambda: answer.read1(size), b""))


@pytest.mark.parametrize(
    ("said", "expected", "usable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ncontentX", b"content", True),
        (b"HTTP/1.1 200\r\ncontent-length:7\r\n\r\ncontent", b"content", True),
        (b"HTTP/1.1 200 OK\nContent-Length: 7, 7\nContent-Length: 7\n\ncontent", b"content", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nX", b"", True),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", b"a", False),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 1\r\n\r\na", b"a", True),
        (b"HTTP/1.1 200 OK\r\nConnection: x, close\r\nContent-Length: 1\r\n\r\na", b"a", False),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n",
            b"abc0123456789",
            True,
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", b"a", True),
        (b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", b"", True),
    ],
)
def test_how_an_answer_is_framed(said, expected, usable):
    wire = Wire(said)
    answer = wire.ask()
    assert body(answer) == expected and answer.whole
    assert wire.given_back == 1 and wire.connection.usable is usable


def test_the_answer_to_head_has_no_body_whatever_it_says():
    wire = Wire(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert [wire.ask("HEAD").status, wire.ask("HEAD").status] == [200, 404]


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: no name\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\na",
        b"HTTP/1.1 200 OK\r\n folded: from nothing\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName: a\0b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\na",
        b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\na",
        "HTTP/1.1 200 OK\r\nContent-Length: \u00b2\r\n\r\naa".encode("latin-1"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * LINE_MAX + b"\r\n\r\n",
    ],
)
def test_a_head_that_is_none_or_ambiguous(head):
    with pytest.raises(BadHttp):
        Wire(head).ask()


@pytest.mark.parametrize(
    "rest",
    [
        b"", b"\r\n", b"5\r\nab", b"5\r\nabcdefg\r\n0\r\n\r\n", b"+5\r\nabcde\r\n0\r\n\r\n", b"0x5\r\nabcde\r\n0\r\n\r\n",
        b"5 5\r\nabcde\r\n0\r\n\r\n", b"1" * 16 + b"\r\n", b"0\r\n", b"0\r\nTrailer: x\r\n",
    ],
)  # fmt: skip
def test_chunks_that_are_none_or_cut(rest):
    wire = Wire(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + rest)
    answer = wire.ask()
    with pytest.raises(BadHttp):
        body(answer)
    assert not answer.whole and not wire.given_back


def test_a_body_that_is_cut():
    answer = Wire(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut").ask()
    assert answer.read1(100) == b"cut"
    with pytest.raises(BadHttp, match="6 bytes early"):
        answer.read1(100)


def test_what_has_come_of_a_chunk_is_given_before_the_rest_is_waited_for():
    answer = Wire(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc", end=False).ask()
    assert answer.read1(100) == b"abc"


def test_headers_in_any_case_folded_and_several_times():
    headers = Wire(b"HTTP/1.1 200 OK\r\nX-a: 1\r\nx-A:  two\r\n\tlines \r\nEmpty:\r\nContent-Length: 0\r\n\r\n").ask().headers
    assert headers.getlist("x-a") == ["1", "two lines"] and headers.get("X-A") == "1, two lines"
    assert (headers.get("empty", "x"), headers.get("nothing"), headers.get("nothing", "x")) == ("", "", "x")


class Unsized(io.RawIOBase):
    def __init__(self) -> None:
        self.left = [b"one", b"more"]

    def read(self, size: int = -1) -> bytes:
        return self.left.pop(0) if self.left else b""


@pytest.mark.parametrize(
    ("method", "headers", "content", "fields", "sent"),
    [
        ("GET", {"A": "b"}, None, "Accept-Encoding: identity\r\nA: b", b""),
        ("PUT", {}, None, "Accept-Encoding: identity\r\nContent-Length: 0", b""),
        ("PUT", {}, b"abc", "Accept-Encoding: identity\r\nContent-Length: 3", b"abc"),
        ("PUT", {"content-length": "3"}, io.BytesIO(b"abc"), "Accept-Encoding: identity\r\ncontent-length: 3", b"abc"),
        ("PUT", {}, Unsized(), "Accept-Encoding: identity\r\nTransfer-Encoding: chunked", b"3\r\none\r\n4\r\nmore\r\n0\r\n\r\n"),
    ],
)
def test_what_is_sent(method, headers, content, fields, sent):
    wire = Wire(b"", end=False)
    wire.connection.send(method, "/v2/a b?c=%2F&d=\u00e4", headers, content)
    head = f"{method} /v2/a%20b?c=%2F&d=%C3%A4 HTTP/1.1\r\nHost: registry.test\r\n{fields}\r\n\r\n"
    assert wire.heard() == head.encode() + sent


def test_a_header_of_two_lines_is_never_sent():
    wire = Wire(b"", end=False)
    with pytest.raises(ValueError, match="more than one line"):
        wire.connection.send("GET", "/", {"A": "b\r\nC: d"}, None)
    assert wire.heard() == b""


def test_the_answer_to_a_body_that_the_server_did_not_want():
    ours, theirs = socket.socketpair()
    theirs.sendall(b"HTTP/1.1 413 Too large\r\nContent-Length: 0\r\n\r\n")
    theirs.shutdown(socket.SHUT_RD)
    connection = Connection(ours, "registry.test", lambda: None)
    connection.send("PUT", "/", {}, b"x" * (1 << 20))
    assert connection.receive("PUT", lambda: None).status == 413 and not connection.usable
