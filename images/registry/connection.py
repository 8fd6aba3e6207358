"""Connections that are judged before they are made and that end in bounded time: urllib3 pools with sockets of our own.

``Network.send`` is one exchange with one URL: no redirect, no retry, no authentication. A name is resolved here, every address is shown to
the ``Guard``, and the first allowed one that answers is connected to (attack A19). While the answer's head is read, a deadline over all
reads holds, so that a server which drips one byte a minute cannot hold us (an answer may have any number of ``100 Continue``).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dockless.errors import UnsafeRequest
from dockless.images.registry.addresses import Guard, address

if TYPE_CHECKING:
    from typing import IO

    from urllib3 import PoolManager
    from urllib3.connection import HTTPConnection
    from urllib3.response import BaseHTTPResponse

    from dockless.images.registry.certificates import Certificates
    from dockless.images.registry.proxies import Proxies

CONNECT_TIMEOUT = 15.0
"""Seconds for one address to accept a connection."""
PROBE_TIMEOUT = 3.0
"""Seconds for the same where plain HTTP is next: some servers wait for the end of what they take for a request."""
READ_TIMEOUT = 60.0
"""Seconds without a single byte before a transfer counts as stalled."""
HEAD_TIMEOUT = 120.0
"""Seconds for the whole head of an answer, however many pieces it comes in. A registry may think for long after an upload."""
POOL_SIZE = 32
"""Connections to one host that are kept; more may be open."""
SEND_SIZE = 256 << 10
"""Bytes of a file that are read and sent at once."""
_ADDRESSES_MAX = 8


class NotTls(Exception):
    """The server was reached and speaks no TLS: plain HTTP may be tried where it is allowed. ``sure``: it said so, else it hung up."""

    def __init__(self, message: str, *, sure: bool) -> None:
        super().__init__(message)
        self.sure = sure


class Untrusted(Exception):
    """Its certificate is not one to trust; the message says why."""


class Network:
    """Pools of one registry and of the hosts it leads to. Thread-safe."""

    def __init__(
        self,
        guard: Guard,
        certificates: Certificates,
        proxies: Proxies,
        *,
        connect: float = CONNECT_TIMEOUT,
        read: float = READ_TIMEOUT,
        head: float = HEAD_TIMEOUT,
    ) -> None:
        self._guard = guard
        self._certificates = certificates
        self._proxies = proxies
        self._connect, self._read, self._head = connect, read, head
        self._managers: dict[str, PoolManager] = {}

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
        """One request; the answer's body is not read yet. Besides urllib3's errors: ``NotTls``, ``Untrusted``, ``UnsafeRequest``.

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
            decode_content=False, timeout=Timeout(connect=min(self._connect, PROBE_TIMEOUT) if probe else self._connect, read=self._read),
        )  # fmt: skip

    def close(self) -> None:
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
                found = ProxyManager(proxy, proxy_headers=make_headers(proxy_basic_auth=login) if login else None, **common)
            else:
                found = PoolManager(**common)
            found.pool_classes_by_scheme = _pool_classes(self._guard, self._read, self._head)
            found = self._managers.setdefault(proxy, found)
        return found


def _pool_classes(guard: Guard, read: float, head: float) -> dict[str, Any]:
    """urllib3's two pools, with connections that ask the guard. Made here so that importing this module does not import urllib3."""
    import ssl

    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.response import HTTPResponse

    def open_socket(connection: HTTPConnection) -> socket.socket:
        # A proxy is where the user's environment says, and may be anywhere.
        sock = _dial(connection, None if connection.proxy else guard)
        sock.settimeout(connection.timeout)
        return sock

    def bounded_head(connection: HTTPConnection, receive: Callable[[], HTTPResponse]) -> HTTPResponse:
        sock: Any = connection.sock
        sock.deadline = time.monotonic() + head
        try:
            response = receive()
        finally:
            sock.deadline = None
        response.dockless_socket = sock  # type: ignore[attr-defined]  # for deadlines over small bodies
        return response

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return open_socket(self)

        def connect(self) -> None:
            super().connect()
            # Sending may take as long as receiving; connecting may not.
            self.sock.settimeout(read)

        def getresponse(self) -> HTTPResponse:  # type: ignore[override]
            return bounded_head(self, super().getresponse)

    class Tls(HTTPSConnection):
        reached = False

        def _new_conn(self) -> socket.socket:
            sock = open_socket(self)
            self.reached = True
            return sock

        def connect(self) -> None:
            try:
                super().connect()
            except ssl.SSLCertVerificationError as error:
                raise Untrusted(error.verify_message or str(error)) from None
            except (ssl.SSLError, ConnectionError, TimeoutError) as error:
                if self.reached and not self.proxy:
                    sure = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
                    raise NotTls(str(error), sure=sure) from None
                raise
            # urllib3 warns of every unverified connection; ours are unverified only where registries.conf says insecure.
            self.is_verified = True
            self.sock.settimeout(read)

        def getresponse(self) -> HTTPResponse:  # type: ignore[override]
            return bounded_head(self, super().getresponse)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}


class _Bounded(socket.socket):
    """A socket whose reads fail once ``deadline`` (monotonic seconds) is over. http.client reads through ``recv_into`` alone."""

    deadline: float | None = None

    def recv_into(self, *args: Any, **options: Any) -> int:
        in_time(self.deadline)
        return super().recv_into(*args, **options)


def in_time(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise TimeoutError("the answer takes too long")


def _dial(connection: HTTPConnection, guard: Guard | None) -> socket.socket:
    """Connect to the first address of a host that the guard allows and that answers."""
    from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

    host, port = connection.host.strip("[]"), connection.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
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
        sock = _Bounded(family, kind, protocol)
        try:
            for option in connection.socket_options or ():
                sock.setsockopt(*option)
            sock.settimeout(connection.timeout)
            sock.connect(target)
        except OSError as error:
            sock.close()
            failed = error
            continue
        if guard is not None and where is not None:
            guard.connected(host, where)
        return sock
    if refused is not None and failed is None:
        raise refused
    if isinstance(failed, TimeoutError):
        raise ConnectTimeoutError(connection, f"{host} does not answer within {connection.timeout} s")
    raise NewConnectionError(connection, str(failed or "it has no address"))
