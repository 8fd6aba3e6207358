"""HTTP/1.1 as a client of registries needs it: a request goes out, the head of its answer comes back, then the body as it is framed.

::

    connection = Connection(sock, "registry.example", abort)
    connection.send("GET", "/v2/", {}, None)
    answer = connection.receive("GET", done)
    while data := answer.read1(256 << 10):
        ...

What can be understood in two ways is refused instead of guessed: lengths that contradict each other, chunk sizes that are no hexadecimal
number, header lines without a name. Deadlines and limits are those of the socket that is read (see ``deadline``). Redirects, passwords
and encodings are for others.

https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping

from dockless.base.typing import IO, Any
from dockless.base.url import quote

SEND_SIZE = 256 << 10
"""Bytes of a file that are read and sent at once."""
LINE_MAX = 64 << 10
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_UNPRINTABLE = frozenset("\0\r\n")
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE", "CONNECT"})
_SAFE = "!#$%&'()*+,/:;=?@[]~"

Body = bytes | IO[bytes] | None


class BadHttp(Exception):
    """What came is not HTTP, is ambiguous, or ends too early."""


class Headers:
    """The fields of an answer, in their order; names in any case."""

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self._fields = [(name.lower(), value) for name, value in fields]

    def get(self, name: str, default: str = "") -> str:
        """All values of a name, joined by commas. (RFC 9110, 5.3)"""
        found = self.getlist(name)
        return ", ".join(found) if found else default

    def getlist(self, name: str) -> list[str]:
        return [value for key, value in self._fields if key == name.lower()]


class Answer:
    """``status``, ``headers``, and the body by ``read1``. ``whole``: the body was read to its end and the connection given back."""

    def __init__(
        self, connection: Connection, status: int, headers: Headers, length: int | None, chunked: bool, done: Callable[[], None]
    ) -> None:
        """``length``: bytes of the body, None where it ends with the connection or is chunked. ``done`` is called at its end."""
        self.status = status
        self.headers = headers
        self.whole = False
        self._connection = connection
        self._left = 0 if chunked else length
        self._chunked = chunked
        self._begun = False
        self._done = done
        if length == 0 and not chunked:
            self._finish()

    def read1(self, size: int) -> bytes:
        """Up to ``size`` bytes, as they come; b"" at the end. ``BadHttp``, ``OSError``, ``TooSlow``"""
        if self.whole:
            return b""
        if self._chunked and not self._left:
            self._left = self._next_chunk()
            if not self._left:
                self._finish()
                return b""
        data = self._connection.reader.read1(size if self._left is None else min(size, self._left))
        if self._left is None:
            if not data:
                self._finish()
        elif not data:
            raise BadHttp(f"it ended {self._left} bytes early")
        else:
            self._left -= len(data)
            if not self._left and not self._chunked:
                self._finish()
        return data

    def close(self) -> None:
        """Done with it: the connection is closed where a part of the body is still to come."""
        if not self.whole:
            self._connection.close()

    def abort(self) -> None:
        """From any thread: who waits for the body finds out that it is over."""
        if not self.whole:
            self._connection.abort()

    def _next_chunk(self) -> int:
        if self._begun and self._connection.line() != b"":
            raise BadHttp("a chunk is longer than it says")
        self._begun = True
        line = self._connection.line()
        found = _chunk_size(line)
        while found == 0 and self._connection.line():
            pass  # trailers
        return found

    def _finish(self) -> None:
        self.whole = True
        self._done()


class Connection:
    """One connection, one request at a time. ``usable``: whether another request may follow once the body is read."""

    def __init__(self, sock: Any, host: str, abort: Callable[[], None]) -> None:
        """``sock``: connected, with TLS where there is to be. ``host``: for the ``Host`` field. ``abort``: ends all waits for the socket,
        from any thread."""
        self.sock = sock
        self.reader = io.BufferedReader(_Raw(sock))
        self.abort = abort
        self.usable = True
        self._host = host

    def send(self, method: str, target: str, headers: Mapping[str, str], body: Body) -> None:
        """Where the server hangs up in the middle of a body, its answer may still say why."""
        length = None if body is None else len(body) if isinstance(body, bytes) else -1
        head = _head(method, target, self._host, headers, length)
        try:
            if body is None or isinstance(body, bytes):
                self.sock.sendall(head + (body or b""))
                return
            self.sock.sendall(head)
            chunked = b"\r\nTransfer-Encoding: chunked\r\n" in head
            while data := body.read(SEND_SIZE):
                self.sock.sendall(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            if chunked:
                self.sock.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.usable = False

    def receive(self, method: str, done: Callable[[], None]) -> Answer:
        """The head of the answer; interim ones are passed over."""
        version, status = self._status()
        while 100 <= status < 200:
            if status == 101:
                raise BadHttp("it switches protocols, which nobody asked for")
            self._fields()
            version, status = self._status()
        headers = self._fields()
        length, chunked = _framing(method, status, headers)
        words = {word.strip().lower() for word in headers.get("Connection").split(",")}
        both = chunked and headers.getlist("Content-Length")
        if "close" in words or (version == 0 and "keep-alive" not in words) or both or (length is None and not chunked):
            self.usable = False
        return Answer(self, status, headers, length, chunked, done)

    def line(self) -> bytes:
        """A line without its end. ``BadHttp`` where the connection ends first."""
        line = self.reader.readline(LINE_MAX + 1)
        if not line.endswith(b"\n"):
            raise BadHttp("a line of it is too long" if len(line) > LINE_MAX else "the connection was closed before its end")
        return line[:-2] if line.endswith(b"\r\n") else line[:-1]

    def close(self) -> None:
        self.usable = False
        self.sock.close()

    def _status(self) -> tuple[int, int]:
        return _version_and_status(self.line().decode("latin-1"))

    def _fields(self) -> Headers:
        fields: list[tuple[str, str]] = []
        while line := self.line().decode("latin-1"):
            if line[0] in " \t" and fields:  # obs-fold
                fields[-1] = (fields[-1][0], f"{fields[-1][1]} {line.strip()}")
                continue
            name, colon, value = line.partition(":")
            if not colon or not name or not _TOKEN.issuperset(name) or not _UNPRINTABLE.isdisjoint(value):
                raise BadHttp(f"{line[:60]!r} is no header")
            fields.append((name, value.strip(" \t")))
        return Headers(fields)


class _Raw(io.RawIOBase):
    """The receiving side of a socket as a file."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self._sock.recv_into(buffer))


def _head(method: str, target: str, host: str, headers: Mapping[str, str], length: int | None) -> bytes:
    """``length``: of the body, None where there is none, -1 where it is not known."""
    fields = {"Host": host, "Accept-Encoding": "identity", **headers}
    if length is None and method not in _WITHOUT_BODY:
        length = 0
    if length is not None and not any(name.lower() == "content-length" for name in fields):
        fields |= {"Content-Length": str(length)} if length >= 0 else {"Transfer-Encoding": "chunked"}
    lines = [f"{method} {quote(target, safe=_SAFE)} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if not all(map(_UNPRINTABLE.isdisjoint, lines)):
        raise ValueError("a header of the request has more than one line")
    return "\r\n".join((*lines, "", "")).encode("latin-1")


def _version_and_status(line: str) -> tuple[int, int]:
    """(0, 200) of ``HTTP/1.0 200 OK``."""
    version, status = line[:9], line[9:12]
    digits = len(status) == 3 and status.isascii() and status.isdigit() and status[0] != "0"
    if version not in ("HTTP/1.0 ", "HTTP/1.1 ") or not digits or line[12:13] not in ("", " "):
        raise BadHttp(f"{line[:60]!r} is no HTTP")
    return int(version[7]), int(status)


def _chunk_size(line: bytes) -> int:
    size = line.partition(b";")[0].rstrip(b" \t")
    if not 0 < len(size) < 16 or not _HEX.issuperset(size):
        raise BadHttp(f"{line[:40]!r} is no size of a chunk")
    return int(size, 16)


def _framing(method: str, status: int, headers: Headers) -> tuple[int | None, bool]:
    """How long the body is, and whether it is chunked. (RFC 9112, 6.3)"""
    if method == "HEAD" or status in (204, 304):
        return 0, False
    coding = headers.get("Transfer-Encoding").strip().lower()
    if coding:
        if coding != "chunked":
            raise BadHttp(f"the transfer coding {coding[:40]!r} is not known here")
        return None, True
    lengths = {part.strip() for value in headers.getlist("Content-Length") for part in value.split(",")}
    if not lengths:
        return None, False
    text = lengths.pop()
    if lengths or not text.isascii() or not text.isdigit() or len(text) > 19:
        raise BadHttp("its Content-Length is ambiguous or no number")
    return int(text), False
