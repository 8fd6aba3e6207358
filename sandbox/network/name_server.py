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
from dockless.sandbox.network.dns_tcp import Connection
from dockless.sandbox.network.elsewhere import Elsewhere
from dockless.sandbox.network.model import Lease, Network, Rule
from dockless.sandbox.network.rate_limit import RateLimit, Source
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
_MOST_PENDING, _MOST_PENDING_EACH = 512, 64
"""Questions to the host's name servers on their way, in all and of one address. Where there are as many as there may be in all, each who
asks has an equal share of them."""
_MOST_CONNECTIONS, _MOST_CONNECTIONS_EACH = 128, 8
"""Connections."""
_TICK, _LIFE = 0.25, 2.0
"""Seconds between looks at what is late, and at whether anybody lives."""
_ANY, _TRANSFERS = 255, range(248, 255)
"""ANY, and types that ask for a zone or are about the message itself. RFC 8482, RFC 5936"""
_MOST_LINES = 20
"""Of the log, in ten seconds."""


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
        self._connections: set[Connection] = set()
        self._waiting: set[Source] = set()
        self._rates = RateLimit()
        self._lines, self._lines_since = 0, 0.0
        self._nets = [net for net in map(name_rules.net_of, network.subnets) if net is not None]
        self._seen = time.monotonic()
        self._polled.register(watches.fileno(), select.EPOLLIN)

    def add(self, datagrams: socket.socket, connections: socket.socket) -> None:
        """Answer what comes to these two sockets, of one address."""
        for opened in (datagrams, connections):
            opened.setblocking(False)
            self._rates.add(opened)
        self.watch(datagrams, select.EPOLLIN, lambda events: self._datagram(datagrams))
        self.watch(connections, select.EPOLLIN, lambda events: self._accept(connections))

    def run(self) -> None:
        """Until nobody has lived on the network for ``LINGER`` seconds."""
        self._seen = time.monotonic()
        looked = 0.0
        while True:
            busy = self._exchanges or self._connections or self._rates.shuts_out
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
        for connection in tuple(self._connections):
            connection.end()
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
        if resident is None or len(raw) > dns.MOST_QUERY:
            return reply(None)
        kept = self._rates.source(address)
        if not self._rates.take_turn(address, kept):
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

    def _has_room(self, kept: Source) -> bool:
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

    def _is_over(self, exchange: Exchange, kept: Source) -> None:
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
        kept: Source,
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
            raw, address = opened.recvfrom(dns.MOST_QUERY + 1)
        except OSError:
            return

        def reply(answer: bytes | None) -> None:
            if answer is not None:
                try:
                    opened.sendto(answer, address)
                except OSError:  # it is gone, or takes none
                    pass

        self.ask(raw, address[0], reply, stream=False)

    def _accept(self, listening: socket.socket) -> None:
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
        if self._residents.at(source) is None or len(self._connections) >= _MOST_CONNECTIONS:
            return opened.close()
        kept = self._rates.source(source)
        if kept.connections >= _MOST_CONNECTIONS_EACH or not self._rates.take_turn(source, kept):
            return opened.close()
        opened.setblocking(False)
        kept.connections += 1
        self._connections.add(Connection(self, opened, address[0], kept))

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._connections.discard(connection)

    def _end_late(self, now: float) -> None:
        self._rates.let_in(now)
        for exchange in [one for one in self._exchanges if one.until <= now]:
            exchange.late()
        for connection in [one for one in self._connections if one.until <= now]:
            connection.end()
        self._rates.forget(now)

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


def _text(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
