"""What a pull or push talks to: an ``Endpoint`` is one registry (a mirror, or the registry itself) and one repository in it."""

from __future__ import annotations

from dockless.base.dataclass import dataclass
from dockless.images.registry.addresses import LOOPBACK, address, classify

HUB = "docker.io"
HUB_HOST = "registry-1.docker.io"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``location`` is the registry as configuration files write it, with a port where it has one.

    ``repository``: its name *there*, after rewriting. ``named``: hosts that the user's configuration names, which may be reached wherever
    they are. ``schemes``: what is tried, in order; by default https, then http where the endpoint is insecure or on this machine.
    """

    location: str
    repository: str
    insecure: bool = False
    mirror: bool = False
    named: frozenset[str] = frozenset()
    schemes: tuple[str, ...] = ()

    @property
    def netloc(self) -> str:
        """Host and port that are connected to: the Hub's registry is not at the name it is known by."""
        return HUB_HOST if self.location == HUB else self.location

    @property
    def host(self) -> str:
        return split_port(self.netloc)[0].lower()

    @property
    def tried(self) -> tuple[str, ...]:
        return self.schemes or (("https", "http") if self.insecure or is_local(self.host) else ("https",))

    def path(self, *parts: str) -> str:
        """The path of something in this repository: ``path("blobs", "sha256:…")`` is ``/v2/<repository>/blobs/sha256:…``."""
        return "/".join(("", "v2", self.repository, *parts))

    def __str__(self) -> str:
        return f"{self.location}/{self.repository}"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a request wants to do with a repository: ``Scope("library/busybox", ("pull",))``."""

    repository: str
    actions: tuple[str, ...] = ("pull",)

    def __str__(self) -> str:
        return f"repository:{self.repository}:{','.join(self.actions)}"


def split_port(netloc: str) -> tuple[str, str]:
    """("::1", "5000") of ``[::1]:5000``; the port is "" where there is none."""
    host, colon, port = netloc.rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.endswith("]")):
        host, port = netloc, ""
    return host.strip("[]"), port


def is_local(host: str) -> bool:
    """A name or address of this machine itself."""
    literal = address(host)
    return host == "localhost" or host.endswith(".localhost") or (literal is not None and classify(literal) == LOOPBACK)
