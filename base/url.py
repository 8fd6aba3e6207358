"""``urllib.parse``, quick to import: the same functions for plain URLs, ``http://host:port/path`` without a query. The standard module,
which imports ``re`` and ``ipaddress``, is asked about all others."""

from __future__ import annotations

from dockless.base.typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from urllib.parse import SplitResult as SplitResult
    from urllib.parse import quote as quote
    from urllib.parse import urljoin as urljoin
    from urllib.parse import urlsplit as urlsplit
else:
    _ALNUM = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
    _HOST = _ALNUM | set("-._")
    _UNRESERVED = _ALNUM | set("-._~")
    _PATH = _UNRESERVED | set("/:@%+,=")

    class SplitResult:
        """Of a plain URL."""

        __slots__ = ("netloc", "path", "scheme")
        query = fragment = ""
        username = password = None

        def __init__(self, scheme: str, netloc: str, path: str) -> None:
            self.scheme, self.netloc, self.path = scheme, netloc, path

        @property
        def hostname(self) -> str:
            return self.netloc.partition(":")[0].lower()

        @property
        def port(self) -> int | None:
            port = self.netloc.partition(":")[2]
            return int(port) if port else None

        def geturl(self) -> str:
            return f"{self.scheme}://{self.netloc}{self.path}"

    def urlsplit(url: str) -> Any:
        return _plain(url) or _standard().urlsplit(url)

    def urljoin(base: str, url: str) -> str:
        parts = _plain(base)
        # A path from the root, in which no "." or ".." leads elsewhere.
        if parts is None or url[:1] != "/" or url[:2] == "//" or "/." in url or not _PATH.issuperset(url):
            return _standard().urljoin(base, url)
        return f"{parts.scheme}://{parts.netloc}{url}"

    def quote(text: str, safe: str = "/") -> str:
        return text if _UNRESERVED.union(safe).issuperset(text) else _standard().quote(text, safe=safe)

    def _plain(url: str) -> SplitResult | None:
        scheme, _, rest = url.partition("://")
        netloc, slash, path = rest.partition("/")
        host, colon, port = netloc.partition(":")
        if scheme not in ("http", "https") or not host or not _HOST.issuperset(host) or not _PATH.issuperset(path):
            return None
        if colon and not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16):
            return None
        return SplitResult(scheme, netloc, slash + path)

    def _standard() -> Any:
        import urllib.parse

        return urllib.parse
