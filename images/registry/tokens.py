"""Authentication towards one registry: Basic, and Bearer tokens from the realm its challenge names (behaviours R1, R3).

A token is kept per set of scopes and renewed before it expires; ``issued_at`` is ignored, as clocks differ, and a token without
``expires_in`` lives 60 seconds. Many threads that need a token wait for the one that fetches it. Credentials go to the registry and to the
realm of the registry's *own* challenge, never anywhere else: a redirect's target may ask as it likes (attack A18).

https://distribution.github.io/distribution/spec/auth/token/ and …/spec/auth/oauth/
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable

from dockless.base import json
from dockless.base.dataclass import dataclass
from dockless.base.later import base64
from dockless.base.typing import TYPE_CHECKING
from dockless.base.url import urlsplit
from dockless.errors import RegistryError, Unauthorized, UnsafeRequest
from dockless.images.registry.endpoint import Scope
from dockless.images.registry.errors import printable

if TYPE_CHECKING:
    from dockless.images.registry.challenge import Challenge
    from dockless.images.registry.credentials import Login

LIFE_DEFAULT = 60.0
"""Seconds that a token lives where its server does not say, and at least."""
MARGIN = 10.0
"""Seconds before its end that a token is renewed."""
ANSWER_MAX = 256 << 10
TOKEN_MAX = 64 << 10
_CLIENT = "dockless"

Fetch = Callable[[str, str, dict[str, str], bytes | None], tuple[int, bytes]]
"""(method, URL, headers, body) → (status, the answer's body, bounded); never redirected to another origin."""


@dataclass(frozen=True, slots=True)
class _Token:
    header: str
    until: float


class Authenticator:
    """Makes ``Authorization`` headers for one registry. Thread-safe."""

    def __init__(self, subject: str, find: Callable[[], Login | None], fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._subject = subject
        self._find = find
        self._fetch = fetch
        self._clock = clock
        self._lock = _thread.RLock()
        self._login: Login | None = None
        self._searched = False
        self._challenge: Challenge | None = None
        self._tokens: dict[frozenset[str], _Token] = {}

    def header(self, scopes: tuple[Scope, ...]) -> str | None:
        """The header to send at once, None while nothing is known of this registry."""
        with self._lock:
            if self._challenge is None:
                return None
            if self._challenge.scheme == "basic":
                return self._basic()
            key = frozenset(map(str, scopes))
            token = self._tokens.get(key)
            if token is None or token.until <= self._clock():
                token = self._tokens[key] = self._token(self._challenge, key)
            return token.header

    @property
    def logged_in(self) -> bool:
        return self._login is not None

    def learn(self, challenges: tuple[Challenge, ...]) -> None:
        """A challenge to a request that needed no answer."""
        from dockless.images.registry.challenge import supported

        with self._lock:
            self._challenge = self._challenge or supported(challenges)

    def answer(self, challenges: tuple[Challenge, ...], scopes: tuple[Scope, ...], rejected: str | None) -> str:
        """The header for a second try, after the registry refused ``rejected``; ``Unauthorized`` where there is nothing better to offer."""
        from dockless.images.registry.challenge import supported

        challenge = supported(challenges)
        if challenge is None:
            schemes = ", ".join(printable(one.scheme, 40) for one in challenges) or "none"
            raise Unauthorized(
                f"{self._subject} asks for a login of a kind that is not supported ({schemes})",
                status=401,
                subject=self._subject,
                hint="Basic and Bearer are; is this a registry?",
            )
        with self._lock:
            self._challenge = challenge
            if challenge.scheme == "basic":
                header = self._basic()
                if header is None or header == rejected:
                    raise self._no_login(rejected is not None)
                return header
            key = frozenset(map(str, scopes))
            known = self._tokens.get(key)
            if known is not None and known.header != rejected and known.until > self._clock():
                return known.header  # another thread was faster
            token = self._tokens[key] = self._token(challenge, key | _wanted(challenge))
            return token.header

    def _credentials(self) -> Login | None:
        if not self._searched:
            self._login, self._searched = self._find(), True
        return self._login

    def _basic(self) -> str | None:
        login = self._credentials()
        return login.basic() if login is not None else None

    def _no_login(self, refused: bool) -> Unauthorized:
        host = self._subject.partition("/")[0]
        login = self._credentials()
        said = f"the login for {host} from {login.source} is refused" if refused and login else f"{host} wants a login"
        return Unauthorized(said, status=401, subject=self._subject, hint=f"dockless login {host}")

    def _token(self, challenge: Challenge, scopes: frozenset[str]) -> _Token:
        login = self._credentials()
        if login is not None and login.registry_token:
            return _Token(f"Bearer {login.registry_token}", float("inf"))
        from urllib.parse import urlencode

        realm = challenge.get("realm")
        try:
            glue = "&" if urlsplit(realm).query else "?"
        except ValueError:
            raise RegistryError(
                f"{self._subject}: its token server's address is malformed: {printable(realm, 100)}",
                subject=self._subject,
                hint="is this a registry?",
            ) from None
        query = [("service", challenge.get("service"))] if challenge.get("service") else []
        query += [("scope", scope) for scope in sorted(scopes)]
        headers = {"Accept": "application/json"}
        if login is not None and login.identity_token:
            form = [("grant_type", "refresh_token"), ("refresh_token", login.identity_token), ("client_id", _CLIENT)]
            form += [(name, value) for name, value in query if name == "service"]
            if scopes:
                form.append(("scope", " ".join(sorted(scopes))))
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            status, answer = self._fetch("POST", realm, headers, urlencode(form).encode())
        else:
            if login is not None:
                headers["Authorization"] = login.basic()
                query.append(("account", login.username))
            status, answer = self._fetch("GET", realm + (glue + urlencode(query) if query else ""), headers, None)
        if status in (400, 401, 403):
            raise self._no_login(True)
        if status != 200:
            raise RegistryError(
                f"{self._subject}: its token server answers {status}", status=status, subject=self._subject, hint="try again later"
            )
        return self._read(answer)

    def _read(self, answer: bytes) -> _Token:
        start = self._clock()
        try:
            document = json.loads(answer)
            # Both names mean the same; some servers send one of them empty.
            text = document.get("token") or document.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            text = None
        if not isinstance(text, str) or not 0 < len(text) <= TOKEN_MAX or not text.isascii() or not text.isprintable() or " " in text:
            raise RegistryError(
                f"{self._subject}: its token server's answer holds no token", subject=self._subject, hint="is this a registry?"
            )
        try:
            life = float(document.get("expires_in") or 0)
        except (TypeError, ValueError):
            life = 0.0
        life = max(LIFE_DEFAULT, life) if life == life else LIFE_DEFAULT
        return _Token(f"Bearer {text}", start + life - MARGIN)


def _wanted(challenge: Challenge) -> frozenset[str]:
    """The scopes a challenge names: what the registry itself calls the thing, which is not always our name for it."""
    return frozenset(challenge.get("scope").split()[:16])


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


def check_realm(realm: str, registry: str, *, registry_is_plain: bool) -> str:
    """A realm that may be asked, else ``UnsafeRequest``."""
    parts = urlsplit(realm)
    if parts.scheme == "http" and not registry_is_plain:
        raise UnsafeRequest(
            f"{registry} asks us to log in without encryption at {printable(realm, 100)}",
            subject=registry,
            hint="a registry with https needs a token server with https",
        )
    return realm
