"""Image references: ``[domain/]path[:tag][@digest]``, the grammar of distribution/reference.

``busybox`` means ``docker.io/library/busybox:latest``. The first component is a domain if it is ``localhost``, contains ``.`` or ``:``,
or has an upper-case letter; 64 hex digits alone are refused because they look like an image id. Nothing here touches a network or a path.

https://github.com/distribution/reference (reference.go, normalize.go)
"""

from __future__ import annotations

from dockless.base.dataclass import dataclass
from dockless.errors import BadDigest, BadInput
from dockless.images.model.digest import Digest
from dockless.images.model.digest import parse as parse_digest

DEFAULT_DOMAIN = "docker.io"
DEFAULT_TAG = "latest"

_DIGITS = frozenset("0123456789")
_HEX = _DIGITS | frozenset("abcdef")
_LOWER = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyz")
_ALNUM = _LOWER | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ADDRESS = _HEX | frozenset("ABCDEF:")
_TAG = _ALNUM | frozenset("_.-")
_NAME_MAX, _TAG_MAX = 255, 128


def is_domain(text: str) -> bool:
    """Whether a registry can be called that: a name or address, with a port or without."""
    host, colon, port = text.rpartition(":") if text[-1:] != "]" and ":" in text else (text, "", "")
    if colon and not (port and _DIGITS.issuperset(port)):
        return False
    if host[:1] == "[":
        return len(host) > 2 and host[-1] == "]" and _ADDRESS.issuperset(host[1:-1])
    return all(_ALNUM.issuperset(label.replace("-", "")) and label[:1] not in ("", "-") and label[-1] != "-" for label in host.split("."))


def is_path(text: str) -> bool:
    """Whether a repository can be called that: components of lower-case letters and digits, between which stand ``.``, ``_``, ``__`` or
    hyphens."""
    while "--" in text:
        text = text.replace("--", "-")
    for between in ("__", "_", "-", "/"):
        text = text.replace(between, ".")
    return all(word and _LOWER.issuperset(word) for word in text.split("."))


def is_tag(text: str) -> bool:
    return 0 < len(text) <= _TAG_MAX and text[0] not in ".-" and _TAG.issuperset(text)


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed reference. ``tag`` is None only where a digest stands alone; where both are given, the digest wins."""

    domain: str
    path: str
    tag: str | None
    digest: Digest | None = None

    @property
    def name(self) -> str:
        return f"{self.domain}/{self.path}"

    def __str__(self) -> str:
        """The full form: domain and tag always written."""
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    @property
    def familiar(self) -> str:
        """The short form people type: without ``docker.io/library/`` where that still means the same; the tag is kept."""
        shorter = (self.name.removeprefix(prefix) for prefix in ("docker.io/library/", "docker.io/") if self.name.startswith(prefix))
        name = next((short for short in shorter if _split_domain(short) == (self.domain, self.path)), self.name)
        return name + str(self).removeprefix(self.name)


def parse(text: str) -> Reference:
    """``text`` as a reference, with the defaults filled in, else ``BadInput``."""
    if len(text) == 64 and _HEX.issuperset(text):
        raise _bad(text, "64 hexadecimal digits look like an image id", hint=f"write sha256:{text} for the id, or choose another name")
    rest, at, digest_text = text.partition("@")
    try:
        digest = parse_digest(digest_text) if at else None
    except BadDigest as error:
        raise _bad(text, str(error)) from None
    name, colon, tag = _split_tag(rest)
    if colon and not is_tag(tag):
        raise _bad(text, f"the tag {tag[:140]!r} is not up to 128 letters, digits, '_', '.' and '-'")
    domain, path = _split_domain(name)
    if not is_domain(domain):
        raise _bad(text, f"the registry {domain[:80]!r} is not a host name")
    if not is_path(path):
        lower = is_path(path.lower())
        raise _bad(text, "the repository name must be lower case" if lower else f"the repository name {path[:80]!r} is malformed")
    if len(domain) + 1 + len(path) > _NAME_MAX:
        raise _bad(text, f"the name is longer than {_NAME_MAX} characters")
    return Reference(domain, path, tag if colon else (None if digest else DEFAULT_TAG), digest)


def _split_tag(text: str) -> tuple[str, str, str]:
    """A colon after the last slash starts a tag; before it, it belongs to a port."""
    slash, colon = text.rfind("/"), text.rfind(":")
    return (text[:colon], ":", text[colon + 1 :]) if colon > slash else (text, "", "")


def _split_domain(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if not slash or not (first == "localhost" or "." in first or ":" in first or first != first.lower()):
        domain, path = DEFAULT_DOMAIN, name
    else:
        domain, path = first, rest
    if domain == "index.docker.io":
        domain = DEFAULT_DOMAIN
    if domain == DEFAULT_DOMAIN and "/" not in path:
        path = f"library/{path}"
    return domain, path


def _bad(text: str, why: str, hint: str = "write [registry/]name[:tag][@sha256:…], the name in lower case") -> BadInput:
    return BadInput(f"{text[:100]!r} is not an image reference: {why}", subject=text[:100], hint=hint)
