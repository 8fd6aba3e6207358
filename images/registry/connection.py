"""Connections that are judged before they are made and that end in bounded time: urllib3 pools with sockets of our own.

``Network.send`` is one exchange with one URL: no redirect, no retry, no authentication. A name is resolved here, every address is shown to
the ``Guard``, and the first allowed one that answers is connected to (attack A19). Connecting (with a proxy's answer and the TLS handshake)
and the answer's head (with all its ``100 Continue``) have a deadline each; see ``deadline.py``.
"""

from __future__ import annotations

import contextlib
import socket
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dockless.errors import UnsafeRequest
from dockless.images.registry.addresses import Guard, address
from dockless.images.registry.deadline import TimedSocket, TooSlow, look_up, within

if TYPE_CHECKING:
    from typing import IO

    from urllib3 import PoolManager
    from urllib3.connection import HTTPConnection
    from urllib3.response import BaseHTTPResponse

    from dockless.images.registry.certificates import Certificates
    from dockless.images.registry.proxies import Proxies

PROBE_TIMEOUT = 3.0
"""Seconds to connect where plain HTTP is next: some servers wait for the end of what they take for a request."""
_CONNECTS = 3
"""How many times the time for one address all of connecting may take: several addresses, a proxy's answer, TLS."""
HEAD_MAX = 256 << 10
"""Bytes of a head, all its lines and ``100 Continue`` together."""
POOL_SIZE = 32
"""Connections to one host that are kept; more may be open."""
SEND_SIZE = 256 << 10
"""Bytes of a file that are read and sent at once."""
_ADDRESSES_MAX = 8


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. ``connect``: for one address to accept, and for a TLS handshake. ``read``: without a byte, or without progress in the body.
    ``head``: for the whole head of an answer, in however many pieces; a registry may think for long after an upload. ``answer``: for all
    that one request may lead to, tries, waits, tokens and redirects, and for a whole small document."""

    connect: float = 15.0
    read: float = 60.0
    head: float = 120.0
    answer: float = 180.0


class NotTls(Exception):
    """The server was reached and speaks no TLS: plain HTTP may be tried where it is allowed. ``sure``: it said so, else it hung up."""

    def __init__(self, message: str, *, sure: bool) -> None:
        super().__init__(message)
        self.sure = sure


class Untrusted(Exception):
    """Its certificate is not one to trust; the message says why."""


class Network:
    """Pools of one registry and of the hosts it leads to. Thread-safe."""

    def __init__(self, guard: Guard, certificates: Certificates, proxies: Proxies, timeouts: Timeouts) -> None:
        self._guard = guard
        self._certificates = certificates
        self._proxies = proxies
        self._timeouts = timeouts
        self._managers: dict[str, PoolManager] = {}
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | IO[bytes] | None,
        *,
        insecure: bool = False,
        probe: bool = False,
    ) -> BaseHTTPResponse:
        """One request; the answer's body is not read yet. Besides urllib3's errors: ``TooSlow``, ``NotTls``, ``Untrusted``,
        ``UnsafeRequest``.

        ``probe``: something else is tried next, so give up soon.
        """
        from urllib3 import Timeout

        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        proxy = self._proxies.choose(parts.scheme, host, port)
        if proxy:
            self._guard.check_name(host)
        options: dict[str, Any] = {}
        if parts.scheme == "https":
            options["ssl_context"] = self._certificates.context(host, port, insecure=insecure)
        pool = self._manager(proxy).connection_from_host(host, port, parts.scheme, pool_kwargs=options)
        target = url if proxy and parts.scheme == "http" else (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return pool.urlopen(
            method, target, body=body, headers=headers, retries=False, redirect=False, assert_same_host=False, preload_content=False,
            decode_content=False, timeout=Timeout(min(self._timeouts.connect, PROBE_TIMEOUT) if probe else self._timeouts.connect),
        )  # fmt: skip

    def abort(self) -> None:
        """From any thread: whatever waits for bytes, or to be rid of some, fails at once."""
        for sock in tuple(self._open):
            shut(sock)

    def close(self) -> None:
        self.abort()
        for manager in self._managers.values():
            manager.clear()

    def _manager(self, proxy: str) -> PoolManager:
        from urllib3 import PoolManager, ProxyManager, make_headers

        found = self._managers.get(proxy)
        if found is None:
            common: dict[str, Any] = {"num_pools": 16, "maxsize": POOL_SIZE, "block": False, "blocksize": SEND_SIZE}
            if proxy:
                parts = urlsplit(proxy)
                login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
                if parts.scheme == "https":
                    common["proxy_ssl_context"] = self._certificates.context(parts.hostname or "", parts.port or 443)
                found = ProxyManager(proxy, proxy_headers=make_headers(proxy_basic_auth=login) if login else None, **common)
            else:
                found = PoolManager(**common)
            found.pool_classes_by_scheme = _pool_classes(self._guard, self._timeouts, self._open)
            found = self._managers.setdefault(proxy, found)
        return found


def _pool_classes(guard: Guard, timeouts: Timeouts, known: weakref.WeakSet[socket.socket]) -> dict[str, Any]:
    """urllib3's two pools, with connections that ask the guard and keep deadlines. ``known`` gets every socket. Made here so that importing
    this module does not import urllib3."""
    import ssl

    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.response import HTTPResponse

    def open_socket(connection: HTTPConnection) -> socket.socket:
        # A proxy is where the user's environment says, and may be anywhere.
        sock = _dial(connection, None if connection.proxy else guard)
        known.add(sock)
        return sock

    def connecting(connection: HTTPConnection, connect: Callable[[], None]) -> None:
        with within(_CONNECTS * float(connection.timeout or timeouts.connect), "the connection", most=HEAD_MAX):
            connect()
        sock = beneath(connection.sock)
        sock.idle = timeouts.read
        known.add(sock)

    def receiving(connection: HTTPConnection, receive: Callable[[], HTTPResponse]) -> HTTPResponse:
        sock = connection.sock
        with within(timeouts.head, "the head of its answer", most=HEAD_MAX):
            response = receive()
        response.dockless_socket = beneath(sock)  # type: ignore[attr-defined]  # to end the transfer from another thread
        return response

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return open_socket(self)

        def connect(self) -> None:
            connecting(self, super().connect)

        def getresponse(self) -> HTTPResponse:  # type: ignore[override]
            return receiving(self, super().getresponse)

    class Tls(HTTPSConnection):
        reached = False

        def _new_conn(self) -> socket.socket:
            sock = open_socket(self)
            self.reached = True
            return sock

        def connect(self) -> None:
            try:
                connecting(self, super().connect)
            except ssl.SSLCertVerificationError as error:
                raise Untrusted(error.verify_message or str(error)) from None
            except (ssl.SSLError, ConnectionError, TooSlow) as error:
                if self.reached and not self.proxy:
                    sure = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
                    raise NotTls(str(error), sure=sure) from None
                raise
            # urllib3 warns of every unverified connection; ours are unverified only where registries.conf says insecure.
            self.is_verified = True

        def getresponse(self) -> HTTPResponse:  # type: ignore[override]
            return receiving(self, super().getresponse)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}


def beneath(sock: Any) -> Any:
    """The socket itself: below TLS that runs inside a proxy's TLS there is another."""
    while not isinstance(sock, socket.socket):
        sock = sock.socket
    return sock


def shut(sock: socket.socket) -> None:
    """From any thread: the connection is over, and who waits for it finds out."""
    with contextlib.suppress(OSError):
        # Not the TLS object's own method, which would pull its state from under the thread that reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _dial(connection: HTTPConnection, guard: Guard | None) -> socket.socket:
    """Connect to the first address of a host that the guard allows and that answers."""
    from urllib3.exceptions import NameResolutionError, NewConnectionError

    host, port = connection.host.strip("[]"), connection.port
    try:
        found = look_up(host, port)
    except (socket.gaierror, UnicodeError) as error:
        reason = error if isinstance(error, socket.gaierror) else socket.gaierror(str(error))
        raise NameResolutionError(host, connection, reason) from None
    refused: UnsafeRequest | None = None
    failed: Exception | None = None
    for family, kind, protocol, _, target in found[:_ADDRESSES_MAX]:
        where = address(str(target[0]))
        if guard is not None:
            if where is None:
                continue
            try:
                guard.check(host, where)
            except UnsafeRequest as error:
                refused = error
                continue
        sock = TimedSocket(family, kind, protocol)
        try:
            for option in connection.socket_options or ():
                sock.setsockopt(*option)
            sock.idle = float(connection.timeout or sock.idle)
            sock.connect(target)
        except (OSError, TooSlow) as error:
            sock.close()
            failed = error
            continue
        if guard is not None and where is not None:
            guard.connected(host, where)
        return sock
    if refused is not None and failed is None:
        raise refused
    if isinstance(failed, TooSlow):
        raise failed
    raise NewConnectionError(connection, str(failed or "it has no address"))
