"""An HTTP server that says exactly what a test has written, byte by byte, and keeps what it was asked.

::

    with ScriptedHttp(in_turn(answer(503), answer(200, b"{}"))) as server:
        … f"http://{server.netloc}/v2/" …
    assert [request.method for request in server.requests] == ["GET", "GET"]

A script is a function from a ``Request`` to a ``Reply``. Each connection has a thread; all end with the ``with``.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import BinaryIO

from support.threaded_server import ThreadedServer


@dataclass(frozen=True)
class Request:
    """``headers`` in lower case; of equal names the last."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    head: bytes = field(repr=False)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass(frozen=True)
class Reply:
    """``data`` goes out as it is. ``then``: "keep" the connection, "close" it, "reset" it, or "stall" until the server ends."""

    data: bytes
    then: str = "keep"


Script = Callable[[Request], Reply]


def answer(
    status: int = 200,
    body: bytes = b"",
    *headers: tuple[str, str],
    version: str = "1.1",
    length: int | None = -1,
    then: str = "keep",
) -> Reply:
    """A well-formed answer. ``length``: what Content-Length says, -1 for the truth, None for none (then it ends with the connection)."""
    fields = list(headers)
    if length is not None:
        fields.append(("Content-Length", str(len(body) if length < 0 else length)))
    head = f"HTTP/{version} {status} Said\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields)
    return Reply(head.encode("latin-1") + b"\r\n" + body, "close" if length is None and then == "keep" else then)


def chunked(body: bytes, *headers: tuple[str, str], size: int = 7) -> Reply:
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[at : at + size] for at in range(0, len(body), size)))
    return Reply(answer(200, b"", *headers, ("Transfer-Encoding", "chunked"), length=None).data + pieces + b"0\r\n\r\n")


def in_turn(*replies: Reply | Script) -> Script:
    """One after the other; the last again and again."""
    left, lock = list(replies), threading.Lock()

    def script(request: Request) -> Reply:
        with lock:
            one = left.pop(0) if len(left) > 1 else left[0]
        return one if isinstance(one, Reply) else one(request)

    return script


def routes(table: Mapping[str, Reply | Script], otherwise: Reply | None = None) -> Script:
    """By path, without the query."""

    def script(request: Request) -> Reply:
        one = table.get(request.path, otherwise or answer(404))
        return one if isinstance(one, Reply) else one(request)

    return script


class ScriptedHttp:
    """Listens on loopback. ``requests``: what came, in order; ``connections``: how many were made, those too that never asked anything;
    ``certificates``: with TLS, what each client said who it is (empty for nobody)."""

    def __init__(self, script: Script, *, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.script = script
        self.requests: list[Request] = []
        self.certificates: list[object] = []
        self._context = context
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=32)
        self.host, self.port = host, listener.getsockname()[1]
        self._ended = threading.Event()
        self._server = ThreadedServer(listener, self._serve)

    @property
    def connections(self) -> int:
        return self._server.accepted

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def headers(self, name: str) -> list[str]:
        """The values of a header in all requests that had it."""
        return [request.headers[name.lower()] for request in self.requests if name.lower() in request.headers]

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def __enter__(self) -> ScriptedHttp:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._server.end()

    def _serve(self, connection: socket.socket) -> None:
        self._server.open.add(connection)
        try:
            if self._context is not None:
                wrapped = self._context.wrap_socket(connection, server_side=True)
                self.certificates.append(wrapped.getpeercert())
                self._server.open.discard(connection)
                connection = wrapped
                self._server.open.add(connection)
            with connection.makefile("rb") as stream:
                while (request := _read(stream)) is not None:
                    self.requests.append(request)
                    reply = self.script(request)
                    connection.sendall(reply.data)
                    if reply.then == "stall":
                        self._ended.wait(30)
                    if reply.then == "reset":
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    if reply.then != "keep":
                        return
        except (OSError, ValueError):
            pass  # the client hung up, or spoke no HTTP
        finally:
            self._server.open.discard(connection)
            connection.close()


def _read(stream: BinaryIO) -> Request | None:
    """One request, None at the end of the connection."""
    lines: list[bytes] = []
    while True:
        line = stream.readline(65536)
        if not line or (not lines and not line.endswith(b"\n")):
            return None
        if line in (b"\r\n", b"\n"):
            break
        lines.append(line)
    method, target, _ = lines[0].decode("latin-1").split(" ", 2)
    headers = {}
    for line in lines[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    body = b""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int(stream.readline().split(b";")[0], 16):
            body += stream.read(size)
            stream.readline()
        stream.readline()
    elif "content-length" in headers:
        body = stream.read(int(headers["content-length"]))
    return Request(method, target, headers, body, b"".join(lines))
