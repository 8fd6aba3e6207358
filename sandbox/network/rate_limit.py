"""How much each address may ask of the name server. Who asks for more is shut out for a while: the kernel drops what it sends, which leaves
room and time for the others."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from dockless.base.typing import TYPE_CHECKING
from dockless.sandbox.network.packet_filter import drop_from

if TYPE_CHECKING:
    from dockless.sandbox.network.upstreams import Exchange

_RATE, _BURST = 2000.0, 4000.0
"""Questions and connections a second of one sandbox, and how many at once."""
_SHUT_OUT, _AFTER = 0.25, 50.0
"""Seconds for which nothing is taken of who asks for more, and how many questions it may ask then."""


class Source:
    """What is kept of one address: ``left`` questions of its rate at the time ``at``, until when nothing is taken from it, how many
    connections it has, and what is on its way to others, with the end of it, the oldest first."""

    __slots__ = ("at", "connections", "left", "out_until", "pending")

    def __init__(self) -> None:
        self.left, self.at, self.out_until, self.connections = _BURST, time.monotonic(), 0.0, 0
        self.pending: dict[Exchange, Callable[[bytes | None], None]] = {}


class RateLimit:
    """That of all who ask."""

    def __init__(self) -> None:
        self._sources: dict[bytes, Source] = {}
        self._out: list[bytes] = []
        self._sockets: list[socket.socket] = []

    @property
    def shuts_out(self) -> bool:
        """Whether anybody is shut out."""
        return bool(self._out)

    def add(self, opened: socket.socket) -> None:
        """Who is shut out is shut out of this socket, too."""
        self._sockets.append(opened)

    def source(self, address: bytes) -> Source:
        """What is kept of it."""
        kept = self._sources.get(address)
        if kept is None:
            kept = self._sources[address] = Source()
        return kept

    def take_turn(self, address: bytes, kept: Source) -> bool:
        """Whether it may ask once more. If not, it is shut out."""
        now = time.monotonic()
        kept.left = min(_BURST, kept.left + (now - kept.at) * _RATE)
        kept.at = now
        if kept.left < 1:
            if not kept.out_until:
                kept.out_until = now + _SHUT_OUT
                self._shut_out([*self._out, address])
            return False
        kept.left -= 1
        return True

    def let_in(self, now: float) -> None:
        """Those whose time is over."""
        left = [address for address in self._out if self._sources[address].out_until > now]
        if len(left) < len(self._out):
            for address in set(self._out).difference(left):
                kept = self._sources[address]
                kept.out_until, kept.left, kept.at = 0.0, _AFTER, now  # it may still be at it
            self._shut_out(left)

    def forget(self, now: float) -> None:
        """Those of whom nothing is on its way, and who have all of their rate again."""
        for address in [each for each, kept in self._sources.items() if now - kept.at > _BURST / _RATE]:
            kept = self._sources[address]
            if not kept.pending and not kept.connections and not kept.out_until:
                del self._sources[address]

    def _shut_out(self, addresses: list[bytes]) -> None:
        """Nothing of these is taken from now on: what one sends without end would leave no room for the others, nor time."""
        self._out = addresses
        for opened in self._sockets:
            size = 4 if opened.family == socket.AF_INET else 16
            drop_from(opened, [each for each in addresses if len(each) == size])
