"""Requests to one registry: who we are, where it sends us, how often we try.

::

    registry.request("GET", endpoint.path("manifests", "latest"), scope=Scope(endpoint.repository))
      Authorization if one is known ── send ── 401, 403 insufficient_scope? ── token or Basic, once ── send again
                                        │
                                        ├─ 3xx? ── judged (scheme, address), Authorization only to the same origin ── send there
                                        ├─ 429, 5xx, no connection? ── wait with jitter or as Retry-After says, bounded ── send again
                                        └─ a status of ``ok`` → Response; another → an error in the registry's own words

The rules behind it are R1–R6, R19, R20 of the registry behaviours and the attacks A18 (credentials sent elsewhere) and A19 (requests to
where only this machine can reach). What a request body is decides how often it may be sent: bytes and seekable files again after a refusal,
and only methods that may be repeated after a connection broke. A blob that breaks while it is read is the caller's: he knows the offset.
All of it together, tries and waits and tokens and redirects, has one deadline (``Timeouts.answer``).
"""

from __future__ import annotations

import _thread
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from dockless._version import __version__
from dockless.base.later import re
from dockless.base.typing import TYPE_CHECKING
from dockless.base.url import SplitResult, urljoin, urlsplit
from dockless.errors import RegistryError, RegistryUnavailable, UnsafeRequest
from dockless.images.registry import errors, retrying
from dockless.images.registry.addresses import AddressGuard
from dockless.images.registry.certificates import Certificates, places
from dockless.images.registry.connection import Network, NoSuchHost, NotConnected, NotTls, Timeouts, Untrusted
from dockless.images.registry.deadline import TooSlow, within
from dockless.images.registry.endpoint import HUB, HUB_HOST, Endpoint, Scope
from dockless.images.registry.errors import printable
from dockless.images.registry.http import Answer, BadHttp, Body
from dockless.images.registry.proxies import Proxies
from dockless.images.registry.response import Response
from dockless.images.registry.retrying import Patience
from dockless.images.registry.tokens import ANSWER_MAX, Authenticator, check_realm

if TYPE_CHECKING:
    from dockless.images.registry.challenge import Challenge
    from dockless.images.registry.credentials import Credentials, Login

__all__ = ["Endpoint", "Registry", "Response", "Scope", "Timeouts"]

REDIRECTS_MAX = 8
URL_MAX = 16 << 10
_AGENT = f"dockless/{__version__}"
_REST = 10.0
"""Seconds for the body of an answer that only its head matters of."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ADDRESS = frozenset("0123456789abcdefABCDEF:.")
_LABEL = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-")
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})

Origin = tuple[str, str, int]


class Registry:
    """One endpoint; keeps its connections and tokens. Thread-safe, also for parallel blobs. Close it, or use it as a context manager."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        credentials: Credentials | None = None,
        timeouts: Timeouts | None = None,
        tries: int = retrying.TRIES,
        env: Mapping[str, str] | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """``credentials`` None: anonymous. ``env``: where proxies and ``certs.d`` are looked up. ``pause``: how to wait."""
        env = os.environ if env is None else env
        self.timeouts = timeouts or Timeouts()
        self.endpoint = endpoint
        self._tries = tries
        self._pause = pause
        self._credentials = credentials
        self._lock = _thread.allocate_lock()
        self._scheme = endpoint.tried[0] if len(endpoint.tried) == 1 else ""
        certificates = Certificates(endpoint.netloc, (HUB,) if endpoint.netloc == HUB_HOST else (), places(env))
        guard = AddressGuard(endpoint.host, endpoint.named)
        self._network = Network(guard, certificates, Proxies(env), self.timeouts)
        self._authenticator = Authenticator(str(endpoint), self._login, self._fetch)

    def request(
        self,
        method: str,
        path: str,
        *,
        scope: Scope | Sequence[Scope] = (),
        headers: Mapping[str, str] | None = None,
        body: Body = None,
        follow: bool = True,
        ok: Sequence[int] = (200,),
        patient: bool = True,
        what: str = "",
    ) -> Response:
        """One request and everything that belongs to it, up to the head of an answer with a status of ``ok``.

        ``path`` begins with ``/v2/``, or is a whole URL that this registry gave (an upload location, a page, a foreign layer): then it is
        judged like a redirect. ``patient`` False: 429 and failures come back at once, for where a mirror is next. ``what`` names the thing
        in errors.
        """
        what = what or str(self.endpoint)
        scopes = (scope,) if isinstance(scope, Scope) else tuple(scope)
        with within(self.timeouts.answer, "the answer"):
            return self._request(method, path, scopes, headers or {}, body, follow, ok, patient, what)

    def abort(self) -> None:
        """From any thread: end what is under way here. Requests that come later are sent."""
        self._network.abort()

    def close(self) -> None:
        self._network.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _request(
        self,
        method: str,
        path: str,
        scopes: tuple[Scope, ...],
        headers: Mapping[str, str],
        body: Body,
        follow: bool,
        ok: Sequence[int],
        patient: bool,
        what: str,
    ) -> Response:
        patience = Patience(tries=self._tries if patient else 1, pause=self._pause)
        base = f"{self._settled(what)}://{self.endpoint.netloc}"
        url = self._judged(base, path, what)
        home = _origin(urlsplit(base))
        sent = _Body(body)
        authorization = self._authenticator.header(scopes) if _origin(urlsplit(url)) == home else None
        again, own, hops = True, True, 0
        while True:
            # A chain that has left the registry once is somebody else's, also where it comes back.
            own = own and _origin(urlsplit(url)) == home
            fields = {"User-Agent": _AGENT, **headers}
            if sent.length is not None and not any(name.lower() == "content-length" for name in fields):
                fields["Content-Length"] = str(sent.length)  # many registries take no chunked transfer
            if own and authorization:
                fields["Authorization"] = authorization
            raw = self._send(method, url, fields, sent, patience, what)
            if own and again and sent.rewind_possible and _wants_login(raw):
                again = False
                challenges = _challenges(raw)
                self._rest(raw)
                authorization = self._authenticator.answer(challenges, scopes, authorization)
                continue
            if raw.status in ok:
                return Response(raw, url, what, self.timeouts)
            location = raw.headers.get("Location")
            if not follow or raw.status not in _REDIRECTS or not location:
                raise self._refusal(raw, method, url, what)
            self._rest(raw)
            hops += 1
            if hops > REDIRECTS_MAX:
                raise RegistryError(f"{what}: more than {REDIRECTS_MAX} redirects", subject=what, hint="the registry leads in a circle")
            target = self._judged(url, location, what)
            if method not in ("GET", "HEAD") and (
                raw.status not in (307, 308) or not sent.rewind_possible or _origin(urlsplit(target)) != home
            ):
                raise RegistryError(f"{what}: {method} is redirected, which is not followed", status=raw.status, subject=what)
            url = target

    def _login(self) -> Login | None:
        return self._credentials.find(self.endpoint.location, self.endpoint.repository) if self._credentials is not None else None

    def _settled(self, what: str) -> str:
        """https or http, found out once: plain HTTP is tried only where it is allowed, and only when the other side speaks no TLS."""
        if self._scheme:
            return self._scheme
        with self._lock:
            tried = () if self._scheme else self.endpoint.tried
            for scheme in tried[:-1]:
                try:
                    raw = self._send(
                        "GET", f"{scheme}://{self.endpoint.netloc}/v2/", {"User-Agent": _AGENT}, _Body(None), Patience(1), what
                    )
                except RegistryUnavailable as error:
                    if not isinstance(error.__cause__, Untrusted):
                        continue
                    # It speaks TLS. Whether its certificate is to be trusted is asked again, with all CAs at hand.
                else:
                    if raw.status == 401:
                        self._authenticator.learn(_challenges(raw))
                    self._rest(raw)
                self._scheme = scheme
                break
            self._scheme = self._scheme or self.endpoint.tried[-1]
            return self._scheme

    def _judged(self, base: str, location: str, what: str) -> str:
        """Where ``location`` leads, as a clean URL; ``UnsafeRequest`` if no client may be sent there. Addresses are judged later."""
        hint = "the registry, or someone between, tries to lead this client astray"
        if len(location) > URL_MAX:
            raise UnsafeRequest(f"{what}: a location of {len(location)} characters", subject=what, hint=hint)
        try:
            parts = urlsplit(urljoin(base, location))
            usable = parts.scheme in ("http", "https") and "@" not in parts.netloc and parts.port != 0
            bare = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        except ValueError:
            usable, bare = False, ""
        if not usable or not _is_host(bare) or not location.isascii() or not location.isprintable():
            raise UnsafeRequest(
                f"{what}: sent to {printable(location, 100)}, which is no address that a registry may send a client to",
                subject=what,
                hint=hint,
            )
        if parts.scheme == "http" and urlsplit(base).scheme == "https":
            raise UnsafeRequest(f"{what}: sent from https to http at {parts.netloc}", subject=what, hint=hint)
        return (parts._replace(fragment="") if parts.fragment else parts).geturl()

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: _Body, patience: Patience, what: str) -> Answer:
        """Send until there is an answer that waiting will not better, or patience is at its end."""
        parts = urlsplit(url)
        insecure = self.endpoint.insecure and (parts.hostname or "") == self.endpoint.host
        while True:
            try:
                raw = self._network.send(
                    method, url, headers, body.start(), insecure=insecure, probe=patience.tries == 1 and not self._scheme
                )
            except Untrusted as error:
                raise RegistryUnavailable(
                    f"{what}: the certificate of {error.who} is not to be trusted: {error}",
                    subject=what,
                    hint=f"put the CA that signed it in /etc/containers/certs.d/{error.who}/ca.crt",
                ) from error
            except NotTls as error:
                if not error.sure and body.rewind_possible and patience.again():
                    continue
                raise RegistryUnavailable(
                    f"{what}: {parts.netloc} does not speak TLS: {error}",
                    subject=what,
                    hint="plain HTTP is used on this machine only, or where registries.conf says insecure = true",
                ) from None
            except (BadHttp, OSError, TooSlow) as error:
                unsent = isinstance(error, NotConnected)
                if isinstance(error, NoSuchHost):
                    patience.tries = min(patience.tries, 2)  # a resolver has patience of its own; offline, more of it helps nobody
                if (unsent or method in _REPEATABLE or body.empty) and body.rewind_possible and patience.again():
                    continue
                said = "no such host" if isinstance(error, NoSuchHost) else _words(error)
                hint = errors.TOO_SLOW if isinstance(error, TooSlow) else "check the network and the registry's name"
                raise RegistryUnavailable(f"{what}: {parts.netloc}: {said}", subject=what, hint=hint) from None
            if raw.status in retrying.RETRIED and (raw.status == 429 or method in _REPEATABLE or body.empty) and body.rewind_possible:
                wait = retrying.retry_after(raw.headers.get("Retry-After"))
                if patience.may_wait(wait):
                    self._rest(raw)
                    patience.wait(wait)
                    continue
            return raw

    def _rest(self, raw: Answer) -> bytes:
        """The body of an answer that is about to be forgotten, so that its connection can be used again; closed where it is long."""
        body = b""
        with (
            contextlib.suppress(BadHttp, OSError, TooSlow),
            within(min(_REST, self.timeouts.read), "the rest of the answer"),
        ):
            while len(body) <= errors.BODY_MAX and (piece := raw.read1(errors.BODY_MAX)):
                body += piece
        raw.close()
        return body[: errors.BODY_MAX]

    def _refusal(self, raw: Answer, method: str, url: str, what: str) -> RegistryError:
        wait = retrying.retry_after(raw.headers.get("Retry-After"))
        status, host = raw.status, urlsplit(url).netloc
        login = errors.LOGIN_REFUSED if self._authenticator.logged_in else errors.LOGIN_MISSING
        if host == self.endpoint.netloc:
            host = self.endpoint.location
        else:
            login = errors.NO_LOGIN_GOES_THERE
        return errors.refusal(status, self._rest(raw), method=method, what=what, host=host, login=login, retry_after=wait)

    def _fetch(self, method: str, realm: str, headers: dict[str, str], body: bytes | None) -> tuple[int, bytes]:
        """A token server's answer. Only redirects within its origin are followed: what we send there may be a password."""
        what = f"{self.endpoint}: token server"
        base = f"{self._scheme}://{self.endpoint.netloc}"
        check_realm(realm, str(self.endpoint), registry_is_plain=self._scheme == "http")
        url = self._judged(base, realm, what)
        patience = Patience(tries=self._tries, pause=self._pause)
        for _ in range(REDIRECTS_MAX):
            raw = self._send(method, url, {"User-Agent": _AGENT, **headers}, _Body(body), patience, what)
            location = raw.headers.get("Location")
            if raw.status not in _REDIRECTS or not location:
                return raw.status, Response(raw, url, what, self.timeouts).read_all(ANSWER_MAX)
            self._rest(raw)
            target = self._judged(url, location, what)
            if _origin(urlsplit(target)) != _origin(urlsplit(url)):
                raise UnsafeRequest(
                    f"{what}: redirected to {urlsplit(target).netloc}", subject=what, hint="credentials do not change hosts"
                )
            url = target
        raise RegistryError(f"{what}: more than {REDIRECTS_MAX} redirects", subject=what)


class _Body:
    """What a request sends: nothing, bytes, or an open file from where it stands."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._sent = False
        self._offset = 0
        self.empty = body is None
        self.rewind_possible = body is None or isinstance(body, bytes) or body.seekable()
        self.length = len(body) if isinstance(body, bytes) else None
        if body is not None and not isinstance(body, bytes) and self.rewind_possible:
            self._offset = body.tell()
            self.length = body.seek(0, os.SEEK_END) - self._offset
            body.seek(self._offset)

    def start(self) -> Body:
        """The body from its beginning."""
        if self._sent and self._body is not None and not isinstance(self._body, bytes):
            self._body.seek(self._offset)
        self._sent = True
        return self._body


def _wants_login(raw: Answer) -> bool:
    if raw.status == 401:
        return True
    if raw.status != 403:
        return False
    return any(challenge.get("error") == "insufficient_scope" for challenge in _challenges(raw))


def _challenges(raw: Answer) -> tuple[Challenge, ...]:
    from dockless.images.registry.challenge import parse

    return parse(raw.headers.getlist("WWW-Authenticate"))


def _is_host(text: str) -> bool:
    """Whether it is a name, which may end with a dot, or an address of IPv6 in brackets."""
    if text[:1] == "[":
        return text[-1:] == "]" and len(text) > 2 and _ADDRESS.issuperset(text[1:-1])
    return all(label and _LABEL.issuperset(label) for label in text.removesuffix(".").split("."))


def _origin(parts: SplitResult) -> Origin:
    return parts.scheme, (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)


def _words(error: Exception) -> str:
    """Its sentence without the number it begins with."""
    return printable(re.sub(r"^\[Errno -?\d+\] ", "", str(error)), 200)
