"""A server that never ends: it keeps a connection alive, byte by byte, until the client hangs up.

::

    with LyingServer(talk) as server:
        …
        server.left_alone()        # the client hung up on it while it was still talking

``talk`` gets a ``Line`` for each connection: ``ask()`` reads the head of a request, ``say`` sends, ``drip`` sends for ever, ``silence``
waits for ever. "For ever" ends with the client, or with the test: a client that waited for ever would fail on the answer being cut.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterable

from support.threaded_server import ThreadedServer

PATIENCE = 30.0
"""Seconds after which the server gives up: by then the client has failed the test."""


class Line:
    """One connection."""

    def __init__(self, server: LyingServer, sock: socket.socket) -> None:
        self._server = server
        self._sock = sock
        self._left = b""

    def ask(self) -> bytes:
        """The head of the next request; ``ConnectionError`` where there is none."""
        while b"\r\n\r\n" not in self._left:
            piece = self._sock.recv(65536)
            if not piece:
                raise ConnectionError
            self._left += piece
        head, _, self._left = self._left.partition(b"\r\n\r\n")
        self._server.heads.append(head)
        return head

    def say(self, data: bytes) -> None:
        self._sock.sendall(data)

    def answer(self, body: bytes = b"", *headers: str, status: int = 200) -> None:
        lines = [f"HTTP/1.1 {status} Said", *headers, f"Content-Length: {len(body)}", "", ""]
        self.say("\r\n".join(lines).encode() + body)

    def drip(self, pieces: bytes | Iterable[bytes], pause: float = 0.05) -> None:
        """Send piece after piece (of bytes: each byte; both again and again) with a pause between, until the client hangs up."""
        self._server.talking.set()
        for piece in itertools.cycle([pieces[at : at + 1] for at in range(len(pieces))] if isinstance(pieces, bytes) else pieces):
            self.say(piece)
            if pause and self._gone(pause):
                return

    def silence(self) -> None:
        """Nothing more, until the client hangs up."""
        while not self._gone(0.05):
            pass

    def _gone(self, seconds: float) -> bool:
        self._server.talking.set()
        if self._server.ended.wait(seconds):
            return True
        if self._server.patience.is_set():
            raise TimeoutError
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            self._sock.setblocking(False)
            try:
                if not self._sock.recv(65536):
                    raise ConnectionResetError
            finally:
                self._sock.settimeout(PATIENCE)
        return False


class LyingServer:
    """Listens on loopback. ``heads``: those of the requests that came; ``talking``: it has come to where it does not end; ``hung_up``: a
    client left it there."""

    def __init__(self, talk: Callable[[Line], None], *, context: ssl.SSLContext | None = None) -> None:
        self.heads: list[bytes] = []
        self.talking, self.hung_up, self.ended, self.patience = (threading.Event() for _ in range(4))
        self._talk = talk
        self._context = context
        listener = socket.create_server(("127.0.0.1", 0), backlog=32)
        self.netloc = f"127.0.0.1:{listener.getsockname()[1]}"
        self._timer = threading.Timer(PATIENCE, self.patience.set)
        self._server = ThreadedServer(listener, self._serve)

    def left_alone(self) -> bool:
        """Has a client hung up while the server was talking?"""
        return self.hung_up.wait(5.0)

    def __enter__(self) -> LyingServer:
        self._server.start()
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._timer.cancel()
        self._server.end()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.closing(sock), contextlib.suppress(TimeoutError):
            sock.settimeout(PATIENCE)
            try:
                if self._context is not None:
                    sock = self._context.wrap_socket(sock, server_side=True)
                self._server.open.add(sock)
                self._talk(Line(self, sock))
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise
                if self.talking.is_set():
                    self.hung_up.set()
            finally:
                sock.close()
