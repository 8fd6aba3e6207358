"""Questions over TCP. RFC 7766"""

from __future__ import annotations

import select
import socket
import time

from dockless.base.typing import TYPE_CHECKING
from dockless.sandbox.network import dns

if TYPE_CHECKING:
    from dockless.sandbox.network.name_server import NameServer
    from dockless.sandbox.network.rate_limit import Source

_WAIT = 5.0
"""Seconds in which a question has to come over a connection, and its answer to be taken."""
_FORWARDED = 15.0
"""Seconds in which all name servers of the host have been asked."""


class Connection:
    """One connection: one question after the other, each with its length before it. ``until``: it is ended then."""

    def __init__(self, server: NameServer, opened: socket.socket, source: str, kept: Source) -> None:
        self._server, self._socket, self._source, self._kept = server, opened, source, kept
        self._received, self._to_send = b"", b""
        self._is_asking = False
        self.until = time.monotonic() + _WAIT
        server.watch(opened, select.EPOLLIN, self._flow)

    def end(self) -> None:
        if self._socket.fileno() >= 0:
            self._server.watch(self._socket, 0, None)
            self._socket.close()
            self._kept.connections -= 1
            self._server.forget(self)

    def _flow(self, events: int) -> None:
        if self._is_asking:  # nothing is read: its other end is gone
            return self.end()
        try:
            if self._to_send:
                self._to_send = self._to_send[self._socket.send(self._to_send) :]
                if self._to_send:
                    return
                self.until = time.monotonic() + _WAIT
            else:
                came = self._socket.recv(dns.MOST_QUERY)
                if not came:
                    return self.end()
                self._received += came
        except BlockingIOError:
            return
        except OSError:
            return self.end()
        self._next()

    def _next(self) -> None:
        """Ask what has come in full; what comes behind it waits."""
        length = int.from_bytes(self._received[:2], "big")
        if len(self._received) >= 2 and not 0 < length <= dns.MOST_QUERY:
            return self.end()
        if len(self._received) < 2 + length or len(self._received) < 2:
            return self._server.watch(self._socket, select.EPOLLIN, self._flow)
        raw, self._received = self._received[2 : 2 + length], self._received[2 + length :]
        self.until = time.monotonic() + _FORWARDED
        self._is_asking = True
        self._server.watch(self._socket, 0, self._flow)  # nothing is read until it is answered
        self._server.ask(raw, self._source, self._reply, stream=True)

    def _reply(self, answer: bytes | None) -> None:
        if self._socket.fileno() < 0:
            return
        self._is_asking = False
        if answer is None:
            return self.end()
        self.until = time.monotonic() + _WAIT
        self._to_send = len(answer).to_bytes(2, "big") + answer
        self._server.watch(self._socket, select.EPOLLOUT, self._flow)
