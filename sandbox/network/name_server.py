"""Answers to the sandboxes of one network: names of their neighbours, and what this host's name servers say of all others.

::

    sandbox            name server                           name servers of the host
       │ name? ───────────►│ a lease has that address? no: silence
       │ ◄── addresses ────│ a neighbour's name
       │ ◄── no such name ─│ no rule of the sandbox allows it
       │                   │ name? ──────────────────────────────►│
       │                   │ ◄──────────────────────── addresses ─│
       │                   │ rules: the firewall lets those through, then
       │ ◄── addresses ────│

Whoever asks may be hostile: all that is kept for one sandbox has a bound, and what is over it is dropped, so that the others are answered.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Sequence

from dockless.base.text import escaped
from dockless.base.typing import TYPE_CHECKING
from dockless.errors import DocklessError
from dockless.sandbox.network import dns, name_rules
from dockless.sandbox.network.elsewhere import Elsewhere
from dockless.sandbox.network.model import Lease, Network, Rule
from dockless.sandbox.network.packet_filter import drop_from
from dockless.sandbox.network.residents import Resident, Residents, Watches, packed
from dockless.sandbox.network.upstreams import Exchange, NameServers

if TYPE_CHECKING:
    from io import FileIO

Allow = Callable[[Lease, Sequence[Rule], Sequence[str], int], None]
"""Let the packets of a lease through to addresses, as each of these rules says, for so many seconds. ``DocklessError``, ``OSError``"""
LINGER = 5.0
"""Seconds that it stays after the last sandbox."""
_KEPT = 1
"""Seconds that an answer about a neighbour may be kept."""
_MOST_QUERY = 1232
"""Bytes of a question: a name has 255 at most. What comes over Ethernet in one piece. RFC 9715"""
_MOST_PENDING, _MOST_PENDING_EACH = 512, 64
"""Questions to the host's name servers on their way, in all and of one address. Where there are as many as there may be in all, each who
asks has an equal share of them."""
_MOST_STREAMS, _MOST_STREAMS_EACH = 128, 8
"""Connections."""
_STREAM_WAIT = 5.0
"""Seconds in which a question has to come over a connection, and its answer to be taken."""
_FORWARDED = 15.0
"""Seconds in which all name servers of the host have been asked."""
_RATE, _BURST = 2000.0, 4000.0
"""Questions and connections a second of one sandbox, and how many at once."""
_SHUT_OUT, _AFTER = 0.25, 50.0
"""Seconds for which nothing is taken of who asks for more, and how many questions it may ask then."""
_TICK, _LIFE = 0.25, 2.0
"""Seconds between looks at what is late, and at whether anybody lives."""
_ANY, _TRANSFERS = 255, range(248, 255)
"""ANY, and types that ask for a zone or are about the message itself. RFC 8482, RFC 5936"""
_MOST_LINES = 20
"""Of the log, in ten seconds."""


class _Source:
    """What is kept of one address: ``left`` questions of its rate at the time ``at``, until when nothing is taken from it, and what is on
    its way to others, with the end of it, the oldest first."""

    __slots__ = ("at", "left", "out_until", "pending", "streams")

    def __init__(self) -> None:
        self.left, self.at, self.out_until, self.streams = _BURST, time.monotonic(), 0.0, 0
        self.pending: dict[Exchange, Callable[[bytes | None], None]] = {}


class NameServer:
    """``allow``: see there; ``say``: takes a line for the log."""

    def __init__(
        self,
        network: Network,
        residents: Residents,
        elsewhere: Elsewhere,
        watches: Watches,
        servers: NameServers,
        *,
        allow: Allow,
        say: Callable[[str], None],
    ) -> None:
        self._network, self._residents, self._elsewhere, self._servers = network, residents, elsewhere, servers
        self._allow, self._say_now = allow, say
        self._watches = watches
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._polled = select.epoll()
        self._exchanges: set[Exchange] = set()
        self._streams: set[_Stream] = set()
        self._sources: dict[bytes, _Source] = {}
        self._waiting: set[_Source] = set()
        self._out: list[bytes] = []
        self._given: list[socket.socket] = []
        self._lines, self._lines_since = 0, 0.0
        self._nets = [net for net in map(name_rules.net_of, network.subnets) if net is not None]
        self._seen = time.monotonic()
        self._polled.register(watches.fileno(), select.EPOLLIN)

    def add(self, datagrams: socket.socket, connections: socket.socket) -> None:
        """Answer what comes to these two sockets, of one address."""
        for opened in (datagrams, connections):
            opened.setblocking(False)
            self._given.append(opened)
        self.watch(datagrams, select.EPOLLIN, lambda events: self._datagram(datagrams))
        self.watch(connections, select.EPOLLIN, lambda events: self._connection(connections))

    def run(self) -> None:
        """Until nobody has lived on the network for ``LINGER`` seconds."""
        self._seen = time.monotonic()
        looked = 0.0
        while True:
            busy = self._exchanges or self._streams or self._out
            ready = self._polled.poll(_TICK if busy else _LIFE)
            changed = self._watches.fileno()
            if any(fd == changed for fd, _ in ready):  # before anything is answered
                self._watches.refresh()
            for fd, events in ready:
                handler = self._handlers.get(fd)
                if handler is not None:
                    self._guarded(handler, events)
            now = time.monotonic()
            if now - looked >= (_TICK if busy else _LIFE):
                looked = now
                self._end_late(now)
                if not self._is_needed(now):
                    return

    def _guarded(self, handler: Callable[[int], None], events: int) -> None:
        try:
            handler(events)
        except Exception as error:  # of one message; the next one may be another's
            self._write(f"dockless: network {self._network.name}: {type(error).__name__}: {escaped(str(error))}")

    def close(self) -> None:
        """All but the sockets that were given."""
        for exchange in self._exchanges:
            exchange.end()
        for stream in tuple(self._streams):
            stream.end()
        self._polled.close()

    def watch(self, opened: socket.socket | FileIO, events: int, handler: Callable[[int], None] | None) -> None:
        """Have events of a socket handled; by None: no more."""
        fd = opened.fileno()
        if handler is None:
            if self._handlers.pop(fd, None) is not None:
                self._polled.unregister(fd)
        elif fd in self._handlers:
            self._handlers[fd] = handler
            self._polled.modify(fd, events)
        else:
            self._handlers[fd] = handler
            self._polled.register(fd, events)

    def ask(self, raw: bytes, source: str, reply: Callable[[bytes | None], None], *, stream: bool) -> None:
        """Answer one message, now or later. ``reply`` is called once, with None for silence."""
        try:
            address = packed(source)
        except OSError:  # a link's own address, which is nobody's
            return reply(None)
        resident = self._residents.at(address)
        if resident is None or len(raw) > _MOST_QUERY:
            return reply(None)
        kept = self._source(address)
        if not self._take_turn(address, kept):
            return reply(None)
        try:
            query = dns.read_query(raw)
        except dns.Malformed:
            return reply(dns.failure(raw))
        limit = dns.MOST if stream else query.room
        answer = self._own(query, resident, limit)
        if answer is not None:
            return reply(answer)
        if not self._has_room(kept):
            return reply(None)
        self._forward(query, resident, address, kept, reply, limit, stream)

    def _has_room(self, kept: _Source) -> bool:
        """For one more question on its way. Where all is taken, somebody who has more than his share loses the oldest."""
        if len(kept.pending) >= _MOST_PENDING_EACH:
            return False
        if len(self._exchanges) < _MOST_PENDING:
            return True
        if len(kept.pending) >= _MOST_PENDING // (len(self._waiting) + (kept not in self._waiting)):
            return False
        most = max(self._waiting, key=lambda one: len(one.pending))
        exchange, reply = next(iter(most.pending.items()))
        exchange.end()
        self._is_over(exchange, most)
        reply(None)
        return True

    def _is_over(self, exchange: Exchange, kept: _Source) -> None:
        self._exchanges.discard(exchange)
        del kept.pending[exchange]
        if not kept.pending:
            self._waiting.discard(kept)

    def _own(self, query: dns.Query, resident: Resident, limit: int) -> bytes | None:
        """The answer that needs nobody else; None where one does."""
        kind, name = query.kind, query.name
        if query.group != dns.INTERNET or kind == _ANY or kind in _TRANSFERS or kind == dns.OPT:
            return dns.answer(query, dns.REFUSED, limit=limit)
        named = self._residents.named(name, resident) or self._elsewhere.named(name, resident)
        if named:
            size = 4 if kind == dns.A else 16 if kind == dns.AAAA else 0
            found = [dns.Record(query.spelled, kind, _KEPT, each) for one in named for each in one.addresses if len(each) == size]
            return dns.answer(query, dns.NO_ERROR, found, limit=limit, own=True)
        if kind == dns.PTR and (address := dns.address_of(name)) is not None:
            one = self._residents.at(address)
            if one is None or not self._residents.is_visible(one, resident) or not self._residents.lives(one):
                one = self._elsewhere.at(address, resident)
            if one is not None and one.names:
                record = dns.Record(query.spelled, dns.PTR, _KEPT, dns.wire(one.names[0]))
                return dns.answer(query, dns.NO_ERROR, [record], limit=limit, own=True)
            if any(name_rules.within(address, net) for net in self._nets):  # nobody else knows better
                return dns.answer(query, dns.NO_NAME, limit=limit)
        if self._network.internal and not self._elsewhere.leads_out(resident):
            return dns.answer(query, dns.NO_NAME, limit=limit)
        allowed = resident.rules is None or name_rules.allowing(resident.rules, name)
        if len(name) == 1 and kind in (dns.A, dns.AAAA) and not (allowed and resident.rules):
            return dns.answer(query, dns.NO_NAME, limit=limit)  # it can only be a neighbour's, who is not there yet
        if not allowed:
            self._say(resident.lease, name, "no rule allows it")
            return dns.answer(query, dns.NO_NAME, limit=limit)  # musl waits in vain after a refusal
        if resident.rules is not None and not name_rules.has_answer(kind):
            return dns.answer(query, dns.NO_ERROR, limit=limit)
        return None

    def _forward(
        self,
        query: dns.Query,
        resident: Resident,
        address: bytes,
        kept: _Source,
        reply: Callable[[bytes | None], None],
        limit: int,
        stream: bool,
    ) -> None:
        def done(raw: bytes | None) -> None:
            self._is_over(exchange, kept)
            reply(dns.answer(query, dns.SERVER_FAILURE, limit=limit) if raw is None else self._passed(query, resident, raw, limit))

        plain = resident.rules is not None
        exchange = Exchange(query, self._servers, address, self.watch, done, stream=stream, plain=plain)
        self._exchanges.add(exchange)
        kept.pending[exchange] = reply
        self._waiting.add(kept)
        exchange.begin()

    def _passed(self, query: dns.Query, resident: Resident, raw: bytes, limit: int) -> bytes:
        """What the sandbox is told of another server's answer. The firewall is told first."""
        if resident.rules is None:
            return dns.returned(raw, query, limit)
        failed = dns.answer(query, dns.SERVER_FAILURE, limit=limit)
        if self._residents.at(resident.addresses[0]) is not resident:  # it has ended, and another one may have its address
            return failed
        try:
            verdict = name_rules.judge(resident.rules, query, raw, limit)
        except dns.Malformed:
            return failed
        if verdict.refused:
            shown = ", ".join(map(_text, verdict.refused[:4]))
            self._say(resident.lease, query.name, f"its addresses are not public, and no rule allows them: {shown}")
        if verdict.admitted:
            try:
                rules = name_rules.allowing(resident.rules, query.name)
                for lease in (resident.lease, *self._elsewhere.leases(resident)):  # its packets may take any of its networks
                    self._allow(lease, rules, [*map(_text, verdict.admitted)], verdict.seconds)
            except (DocklessError, OSError) as error:
                self._write(f"dockless: network {self._network.name}: {escaped(str(error))}")
                return failed
        return verdict.answer

    def _datagram(self, opened: socket.socket) -> None:
        try:
            raw, address = opened.recvfrom(_MOST_QUERY + 1)
        except OSError:
            return

        def reply(answer: bytes | None) -> None:
            if answer is not None:
                try:
                    opened.sendto(answer, address)
                except OSError:  # it is gone, or takes none
                    pass

        self.ask(raw, address[0], reply, stream=False)

    def _connection(self, listening: socket.socket) -> None:
        try:
            opened, address = listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                time.sleep(0.01)
            return
        try:
            source = packed(address[0])
        except OSError:
            return opened.close()
        if self._residents.at(source) is None or len(self._streams) >= _MOST_STREAMS:
            return opened.close()
        kept = self._source(source)
        if kept.streams >= _MOST_STREAMS_EACH or not self._take_turn(source, kept):
            return opened.close()
        opened.setblocking(False)
        kept.streams += 1
        self._streams.add(_Stream(self, opened, address[0], kept))

    def forget(self, stream: _Stream) -> None:
        self._streams.discard(stream)

    def _source(self, address: bytes) -> _Source:
        kept = self._sources.get(address)
        if kept is None:
            kept = self._sources[address] = _Source()
        return kept

    def _take_turn(self, address: bytes, kept: _Source) -> bool:
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

    def _shut_out(self, addresses: list[bytes]) -> None:
        """Nothing of these is taken from now on: what one sends without end would leave no room for the others, nor time."""
        self._out = addresses
        for opened in self._given:
            size = 4 if opened.family == socket.AF_INET else 16
            drop_from(opened, [each for each in addresses if len(each) == size])

    def _let_in(self, now: float) -> None:
        left = [address for address in self._out if self._sources[address].out_until > now]
        if len(left) < len(self._out):
            for address in set(self._out).difference(left):
                kept = self._sources[address]
                kept.out_until, kept.left, kept.at = 0.0, _AFTER, now  # it may still be at it
            self._shut_out(left)

    def _end_late(self, now: float) -> None:
        self._let_in(now)
        for exchange in [one for one in self._exchanges if one.until <= now]:
            exchange.late()
        for stream in [one for one in self._streams if one.until <= now]:
            stream.end()
        for address in [each for each, kept in self._sources.items() if now - kept.at > _BURST / _RATE]:
            kept = self._sources[address]
            if not kept.pending and not kept.streams and not kept.out_until:
                del self._sources[address]

    def _is_needed(self, now: float) -> bool:
        if self._residents.anybody():
            self._seen = now
        return now - self._seen < LINGER

    def _say(self, lease: Lease, name: dns.Name, why: str) -> None:
        if lease.egress is not None and lease.egress.log:
            asked = escaped(b".".join(name).decode("latin-1"))
            own = lease.names[0] if lease.names else lease.addresses[0]
            self._write(f"dockless: network {self._network.name}: {own} asked for {asked}: {why}")

    def _write(self, line: str) -> None:
        now = time.monotonic()
        if now - self._lines_since > 10:
            self._lines, self._lines_since = 0, now
        self._lines += 1
        if self._lines <= _MOST_LINES:
            self._say_now(line)


class _Stream:
    """One connection: one question after the other, each with its length before it. ``until``: it is ended then."""

    def __init__(self, server: NameServer, opened: socket.socket, source: str, kept: _Source) -> None:
        self._server, self._socket, self._source, self._kept = server, opened, source, kept
        self._received, self._to_send = b"", b""
        self._is_asking = False
        self.until = time.monotonic() + _STREAM_WAIT
        server.watch(opened, select.EPOLLIN, self._flow)

    def end(self) -> None:
        if self._socket.fileno() >= 0:
            self._server.watch(self._socket, 0, None)
            self._socket.close()
            self._kept.streams -= 1
            self._server.forget(self)

    def _flow(self, events: int) -> None:
        if self._is_asking:  # nothing is read: its other end is gone
            return self.end()
        try:
            if self._to_send:
                self._to_send = self._to_send[self._socket.send(self._to_send) :]
                if self._to_send:
                    return
                self.until = time.monotonic() + _STREAM_WAIT
            else:
                came = self._socket.recv(_MOST_QUERY)
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
        if len(self._received) >= 2 and not 0 < length <= _MOST_QUERY:
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
        self.until = time.monotonic() + _STREAM_WAIT
        self._to_send = len(answer).to_bytes(2, "big") + answer
        self._server.watch(self._socket, select.EPOLLOUT, self._flow)


def _text(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
