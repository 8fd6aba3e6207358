"""Connections that are judged before they are made and that end in bounded time.

``Network.send`` is one exchange with one URL: no redirect, no retry, no authentication. A name is resolved here, every address is shown to
the ``AddressGuard``, and the first allowed one that answers is connected to (attack A19). Connecting (with a proxy's answer and the TLS
handshake) and the answer's head (with all its ``100 Continue``) have a deadline each; see ``deadline.py``. A connection whose answer was
read to its end is kept for the next request.
"""

from __future__ import annotations

import _socket
import _thread
import contextlib
import select
from _weakrefset import WeakSet
from collections.abc import Mapping

from dockless.base.dataclass import dataclass
from dockless.base.later import base64
from dockless.base.typing import TYPE_CHECKING, Any
from dockless.base.url import SplitResult, urlsplit
from dockless.errors import UnsafeRequest
from dockless.images.registry.addresses import AddressGuard, address
from dockless.images.registry.deadline import TimedSocket, TooSlow, look_up, within
from dockless.images.registry.http import Answer, BadHttp, Body, Connection

if TYPE_CHECKING:
    from ssl import SSLContext

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
_ADDRESSES_MAX = 8
_HELLO = bytes.fromhex("16 0301 0031  01 00002d  0303") + b"\r\n" * 16 + bytes.fromhex("00  0006 1301 c02f 00ff  01 00")
"""A TLS ClientHello (RFC 8446, 4.1.2), for any three cipher suites. Its random bytes are ends of lines, so that a server of HTTP need not
wait for one."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. ``connect``: for one address to accept, and for a TLS handshake. ``read``: without a byte, or without progress in the body.
    ``head``: for the whole head of an answer, in however many pieces; a registry may think for long after an upload. ``answer``: for all
    that one request may lead to, tries, waits, tokens and redirects, and for a whole small document."""

    connect: float = 15.0
    read: float = 60.0
    head: float = 120.0
    answer: float = 180.0


class NotConnected(OSError):
    """No address of the host could be connected to; nothing was sent."""


class NoSuchHost(NotConnected):
    """The name has no address."""


class NotTls(Exception):
    """The server was reached and speaks no TLS: plain HTTP may be tried where it is allowed. ``sure``: it said so, else it hung up."""

    def __init__(self, message: str, *, sure: bool) -> None:
        super().__init__(message)
        self.sure = sure


class Untrusted(Exception):
    """The certificate of ``who`` is not one to trust; the message says why."""

    def __init__(self, who: str, why: str) -> None:
        super().__init__(why)
        self.who = who


class Network:
    """The connections to one registry and to the hosts it leads to. Thread-safe."""

    def __init__(self, guard: AddressGuard, certificates: Certificates, proxies: Proxies, timeouts: Timeouts) -> None:
        self._guard = guard
        self._certificates = certificates
        self._proxies = proxies
        self._timeouts = timeouts
        self._lock = _thread.allocate_lock()
        self._idle: dict[_Way, list[Connection]] = {}
        self._open: WeakSet[_socket.socket] = WeakSet()

    def send(self, method: str, url: str, headers: Mapping[str, str], body: Body, *, insecure: bool = False, probe: bool = False) -> Answer:
        """One request; the answer's body is not read yet. Raises ``NotConnected``, ``BadHttp``, ``OSError``, ``TooSlow``, ``NotTls``,
        ``Untrusted``, ``UnsafeRequest``.

        ``probe``: something else is tried next, so give up soon; and no CA is trusted, since what counts is whether TLS is spoken.
        """
        parts = urlsplit(url)
        way = _Way(parts.scheme, parts.hostname or "", _port(parts), insecure)
        proxy = self._proxies.choose(way.scheme, way.host, way.port)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if proxy:
            self._guard.check_name(way.host)
            if way.scheme == "http":
                target, headers = url, {**headers, **_proxy_login(proxy)}
        connection = self._kept(way) or self._connect(way, proxy, probe)
        try:
            connection.send(method, target, headers, body)
            with within(self._timeouts.head, "the head of its answer", most=HEAD_MAX):
                return connection.receive(method, lambda: self._keep(way, connection))
        except BaseException:
            connection.close()
            raise

    def abort(self) -> None:
        """From any thread: whatever waits for bytes, or to be rid of some, fails at once."""
        for sock in tuple(self._open):
            shut(sock)

    def close(self) -> None:
        self.abort()
        with self._lock:
            kept, self._idle = [one for some in self._idle.values() for one in some], {}
        for connection in kept:
            connection.close()

    def _kept(self, way: _Way) -> Connection | None:
        """One that has been used before and that the server has not closed since."""
        while True:
            with self._lock:
                kept = self._idle.get(way)
                if not kept:
                    return None
                connection = kept.pop()
            waiting = select.poll()
            waiting.register(connection.sock, select.POLLIN)
            if not waiting.poll(0):
                return connection
            connection.close()

    def _keep(self, way: _Way, connection: Connection) -> None:
        with self._lock:
            kept = self._idle.setdefault(way, [])
            if connection.usable and len(kept) < POOL_SIZE:
                kept.append(connection)
                return
        connection.close()

    def _connect(self, way: _Way, proxy: str, probe: bool) -> Connection:
        seconds = min(self._timeouts.connect, PROBE_TIMEOUT) if probe else self._timeouts.connect
        with within(_CONNECTS * seconds, "the connection", most=HEAD_MAX):
            if proxy:
                sock = self._through(proxy, way, seconds)
            else:
                sock = _dial(way.host, way.port, self._guard, seconds)
                self._open.add(sock)
                if probe and way.scheme == "https":
                    _check_for_tls(sock, way)
                    sock = _dial(way.host, way.port, self._guard, seconds)
                    self._open.add(sock)
                if way.scheme == "https":
                    sock = self._encrypted(sock, way, probe)
        own = beneath(sock)
        own.idle = self._timeouts.read
        self._open.add(own)
        return Connection(sock, way.netloc, lambda: shut(own))

    def _encrypted(self, sock: _socket.socket, way: _Way, probe: bool) -> Any:
        import ssl

        context = self._certificates.context(way.host, way.port, insecure=way.insecure, probe=probe)
        try:
            return _wrapped(context, sock, way.host, way.netloc)
        except (ssl.SSLError, ConnectionError, TooSlow) as error:
            sure = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
            raise NotTls(str(error), sure=sure) from None

    def _through(self, proxy: str, way: _Way, seconds: float) -> Any:
        """A proxy is where the user's environment says, and may be anywhere."""
        parts = urlsplit(proxy)
        host = parts.hostname or ""
        sock: Any = _dial(host, _port(parts), None, seconds)
        self._open.add(sock)
        try:
            if parts.scheme == "https":
                sock = _wrapped(self._certificates.context(host, _port(parts)), sock, host, parts.netloc.rpartition("@")[2])
            if way.scheme == "http":
                return sock
            there = f"{way.bare}:{way.port}"
            tunnel = Connection(sock, there, lambda: None)
            tunnel.send("CONNECT", there, _proxy_login(proxy), None)
            status = tunnel.receive("CONNECT", lambda: None).status
            if status != 200:
                raise BadHttp(f"the proxy does not lead there: it answers {status}")
            return _wrapped(self._certificates.context(way.host, way.port, insecure=way.insecure), sock, way.host, way.netloc)
        except BaseException:
            sock.close()
            raise


@dataclass(frozen=True, slots=True)
class _Way:
    """What two requests must have in common to go over one connection."""

    scheme: str
    host: str
    port: int
    insecure: bool

    @property
    def bare(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def netloc(self) -> str:
        usual = self.port == (443 if self.scheme == "https" else 80)
        return self.bare if usual else f"{self.bare}:{self.port}"


def _wrapped(context: SSLContext, sock: Any, host: str, who: str) -> Any:
    """TLS over a socket, or over TLS. ``Untrusted``"""
    import ssl

    try:
        if isinstance(sock, ssl.SSLSocket):
            from dockless.images.registry.nested_tls import NestedTls

            return NestedTls(sock, context, host.rstrip("."))
        return context.wrap_socket(sock, server_hostname=host.rstrip("."))
    except ssl.SSLCertVerificationError as error:
        raise Untrusted(who, error.verify_message or str(error)) from None


def _check_for_tls(sock: _socket.socket, way: _Way) -> None:
    """``NotTls`` where the server answers the beginning of TLS in HTTP: then ``ssl`` need not be imported, which takes longer than asking a
    registry. Any other answer says nothing. The connection is of no use afterwards."""
    with contextlib.closing(sock), contextlib.suppress(OSError, TooSlow):
        sock.sendall(_HELLO)
        if sock.recv(5) == b"HTTP/":
            raise NotTls(f"{way.netloc} answers in HTTP", sure=True)


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _proxy_login(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy)
    if not parts.username:
        return {}
    from urllib.parse import unquote

    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(login.encode()).decode()}


def beneath(sock: Any) -> Any:
    """The socket itself: below TLS that runs inside a proxy's TLS there is another."""
    while not isinstance(sock, _socket.socket):
        sock = sock.beneath
    return sock


def shut(sock: _socket.socket) -> None:
    """From any thread: the connection is over, and who waits for it finds out."""
    with contextlib.suppress(OSError):
        # Not the TLS object's own method, which would pull its state from under the thread that reads.
        _socket.socket.shutdown(sock, _socket.SHUT_RDWR)


def _dial(host: str, port: int, guard: AddressGuard | None, seconds: float) -> TimedSocket:
    """Connect to the first address of a host that the guard allows and that answers, each within ``seconds``."""
    try:
        found = look_up(host, port)
    except (_socket.gaierror, UnicodeError):
        raise NoSuchHost(f"{host}: no such host") from None
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
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            sock.idle = seconds
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
    raise NotConnected(str(failed or "it has no address"))
