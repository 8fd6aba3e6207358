"""The name servers of this host, and one question to them: to each in turn, twice, until one answers. resolv.conf(5)"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable

from dockless.sandbox.network import dns

Address = tuple[str, int] | tuple[str, int, int, int]
WAIT = 1.5
"""Seconds for an answer of one server."""
_ROUNDS = 2
_EVERYBODY = b""
_MOST_SERVERS = 3
_MOST_FILE = 1 << 16
_AVOIDED = 30.0
"""Seconds that a server which did not answer comes after the others."""
_UNREACHABLE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""Errors that do not depend on the name that is asked for."""
_BAD = (dns.SERVER_FAILURE, dns.NOT_IMPLEMENTED, dns.REFUSED)
"""Codes after which the next server is asked."""


class NameServers:
    """Those that a file names; read again when it has changed. With none there it is the one on this host, as for everybody.

    A name may be one to which no server ever gets an answer. So silence counts for the sandbox alone that asked, and takes no server from
    the others.
    """

    def __init__(self, path: str = "/etc/resolv.conf", port: int = 53) -> None:
        self._path, self._port = path, port
        self._read: object = None
        self._known: list[Address] = []
        self._failed: dict[tuple[bytes, Address], float] = {}

    def in_order(self, asker: bytes) -> list[Address]:
        """In the order in which they are to be asked for the sandbox that has this address."""
        try:
            found = os.stat(self._path)
            state = (found.st_ino, found.st_mtime_ns, found.st_size)
            if state != self._read:
                self._known, self._read = self._parsed(), state
        except OSError:
            self._known, self._read = [], None
        if not self._failed:
            return self._known or [("127.0.0.1", self._port)]
        now = time.monotonic()

        def is_avoided(server: Address) -> bool:
            return max(self._failed.get((asker, server), 0.0), self._failed.get((_EVERYBODY, server), 0.0)) > now

        return sorted(self._known, key=is_avoided) or [("127.0.0.1", self._port)]

    def failed(self, server: Address, asker: bytes, error: OSError | None = None) -> None:
        """It did not answer ``asker``; ``error``: why it could not be asked."""
        key = (_EVERYBODY if error is not None and error.errno in _UNREACHABLE else asker, server)
        now = time.monotonic()
        while self._failed and self._failed[first := next(iter(self._failed))] <= now:
            del self._failed[first]
        self._failed.pop(key, None)
        self._failed[key] = now + _AVOIDED  # behind all others, so that the first one is over first

    def _parsed(self) -> list[Address]:
        with open(self._path, "rb") as file:
            lines = file.read(_MOST_FILE).splitlines()
        words = [line.split() for line in lines]
        texts = [line[1].decode("ascii", "replace") for line in words if len(line) > 1 and line[0] == b"nameserver"]
        return [server for text in texts[:_MOST_SERVERS] if (server := self._address(text)) is not None]

    def _address(self, text: str) -> Address | None:
        address, _, scope = text.partition("%")
        try:
            if ":" not in address:
                return (socket.inet_ntop(socket.AF_INET, socket.inet_aton(address)), self._port)
            socket.inet_pton(socket.AF_INET6, address)
            return (address, self._port, 0, 0 if not scope else int(scope) if scope.isdigit() else socket.if_nametoindex(scope))
        except (OSError, ValueError):
            return None


class Exchange:
    """One question that is on its way. ``asker``: the address that it comes from. ``done``: called once, with the answer or None.
    ``watch``: has a socket's events handled by a function, or by None no more."""

    def __init__(
        self,
        query: dns.Query,
        servers: NameServers,
        asker: bytes,
        watch: Callable[[socket.socket, int, Callable[[int], None] | None], None],
        done: Callable[[bytes | None], None],
        *,
        stream: bool,
        plain: bool,
    ) -> None:
        self._query, self._servers, self._asker, self._watch, self._done = query, servers, asker, watch, done
        self._stream, self._plain = stream, plain
        self._left: list[Address] = servers.in_order(asker) * _ROUNDS
        self._socket: socket.socket | None = None
        self._server: Address = ("", 0)
        self._number = 0
        self._to_send = self._received = b""
        self._last: bytes | None = None
        self.until = 0.0
        """When ``late`` is to be called."""

    def begin(self) -> None:
        """Ask the next server, or be done."""
        self._drop()
        while self._left:
            self._server = self._left.pop(0)
            self._number = int.from_bytes(os.urandom(2), "big")
            message = dns.forwarded(self._query, self._number, plain=self._plain)
            try:
                self._ask(message)
            except OSError as error:
                self._servers.failed(self._server, self._asker, error)
                self._drop()
                continue
            self.until = time.monotonic() + WAIT
            return
        self._done(self._last)

    def late(self, error: OSError | None = None) -> None:
        self._servers.failed(self._server, self._asker, error)
        self.begin()

    def end(self) -> None:
        """Nobody waits for it any more."""
        self._drop()

    def _ask(self, message: bytes) -> None:
        kind = (socket.SOCK_STREAM if self._stream else socket.SOCK_DGRAM) | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        opened = self._socket = socket.socket(socket.AF_INET if len(self._server) == 2 else socket.AF_INET6, kind)
        try:
            opened.connect(self._server)
        except BlockingIOError:
            pass
        if not self._stream:
            opened.send(message)
            return self._watch(opened, select.EPOLLIN, self._datagram)
        self._to_send, self._received = len(message).to_bytes(2, "big") + message, b""
        self._watch(opened, select.EPOLLOUT, self._flow)

    def _datagram(self, events: int) -> None:
        assert self._socket is not None
        try:
            raw = self._socket.recv(dns.MOST)
        except BlockingIOError:
            return
        except OSError as error:  # it refuses, or cannot be reached
            return self.late(error)
        self._take(raw)

    def _flow(self, events: int) -> None:
        assert self._socket is not None
        try:
            if self._to_send:
                error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error))
                self._to_send = self._to_send[self._socket.send(self._to_send) :]
                if not self._to_send:
                    self._watch(self._socket, select.EPOLLIN, self._flow)
                return
            came = self._socket.recv(dns.MOST)
            if not came:
                raise OSError(errno.ECONNRESET, "closed")
        except BlockingIOError:
            return
        except OSError as error:
            return self.late(error)
        self._received += came
        length = 2 + int.from_bytes(self._received[:2], "big")
        if len(self._received) >= max(2, length):
            self._take(self._received[2:length])

    def _take(self, raw: bytes) -> None:
        if not dns.answers(raw, self._number, self._query):
            return None if not self._stream else self.late()  # anybody's, or too late; a stream has nothing else
        if dns.code_of(raw) in _BAD and self._left:
            self._last = raw
            return self.begin()
        self._drop()
        self._done(raw)

    def _drop(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None:
            self._watch(opened, 0, None)
            opened.close()
