"""Where a registry may send us (attack A19), decided by the address that is connected to, not by a name.

A registry speaks through redirects, token realms, upload locations, ``Link`` headers and the ``urls`` of foreign layers. Each is a request
that somebody else words and this machine sends from inside its network. So every address falls in one class, and what a registry asks for
may only reach the open internet and addresses of the registry's own class:

=========  =====================================================  ==========================================
class      addresses                                              reached at a registry's bidding
=========  =====================================================  ==========================================
public     the internet                                           by every registry
private    10/8, 172.16/12, 192.168/16, 100.64/10, fc00::/7 …     by a registry that is at a private address
loopback   127/8, ::1                                             by a registry that is at a loopback address
never      link-local, metadata services, multicast, 0/8 …        only where the user named that very host
=========  =====================================================  ==========================================

Hosts that the user named are free: the registry of the reference and all locations in registries.conf. A registry's class is that of the
first address that answered; a name which later leads to another class is refused (DNS rebinding). Names are resolved once and the resolved
address is the one connected to, so there is no second look-up to poison.
"""

from __future__ import annotations

import _socket
import _thread

from dockless.errors import UnsafeRequest

PUBLIC, PRIVATE, LOOPBACK, NEVER = "public", "private", "loopback", "never"
_KINDS = {
    PRIVATE: "an address of a private network",
    LOOPBACK: "an address of this machine itself",
    NEVER: "an address that no registry may ask for",
}

# Metadata services of clouds that are not link-local: Azure, Alibaba, AWS and Google over IPv6. They hand out the machine's credentials.
_METADATA = frozenset({"168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"})
_NAT64 = "64:ff9b::/96"
_THIS_NETWORK = "0.0.0.0/8"


def address(text: str) -> str | None:
    """The address that is meant by a literal as it stands in a URL (``[::1]``, with or without a zone), None for a name. One address is
    always the same text."""
    bare = text.strip("[]").partition("%")[0]
    for family in (_socket.AF_INET, _socket.AF_INET6):
        try:
            return _socket.inet_ntop(family, _socket.inet_pton(family, bare))
        except (OSError, ValueError):
            pass
    return None


def classify(text: str) -> str:
    """The class of an address, as ``address`` writes it. IPv4 inside IPv6 (mapped, 6to4, NAT64, Teredo) counts as what it leads to."""
    if text == "::1" or text.startswith("127."):
        return LOOPBACK
    import ipaddress

    where = ipaddress.ip_address(text)
    if isinstance(where, ipaddress.IPv6Address):
        inner = where.ipv4_mapped or where.sixtofour or (where.teredo[1] if where.teredo else None)
        if inner is None and where in ipaddress.ip_network(_NAT64):
            inner = ipaddress.IPv4Address(int(where) & 0xFFFFFFFF)
        if inner is not None:
            return classify(str(inner))
    if (
        text in _METADATA
        or where.is_link_local
        or where.is_multicast
        or where.is_unspecified
        or where.is_reserved
        or where in ipaddress.ip_network(_THIS_NETWORK)
    ):
        return NEVER
    return PUBLIC if where.is_global else PRIVATE


class AddressGuard:
    """The judge of one registry's requests. Thread-safe."""

    def __init__(self, host: str, named: frozenset[str] = frozenset()) -> None:
        """``host``: the registry's, without a port; ``named``: other hosts that the user's configuration names."""
        self.host = host
        self.named = named
        self._lock = _thread.allocate_lock()
        self._home: str | None = None

    def check(self, host: str, where: str) -> None:
        """``UnsafeRequest`` unless ``host``, which resolved to ``where``, may be connected to."""
        found = classify(where)
        home = self._home
        if host == self.host:
            # The first connection settles the class; before that, whatever the user's word leads to is right.
            if home is None or found == classify(home):
                return
            raise UnsafeRequest(
                f"{host} was at a {classify(home)} address ({home}) and is now at a {found} one ({where})",
                subject=host,
                hint="this is what DNS rebinding looks like; if the registry really moved, run the command again",
            )
        if host in self.named or found == PUBLIC or (home is not None and (where == home or (found != NEVER and found == classify(home)))):
            return
        raise UnsafeRequest(
            f"registry {self.host} sends us to {host} at {where}: {_KINDS[found]}",
            subject=host,
            hint=f'if {host} belongs to this registry, name it in registries.conf: [[registry]] location = "{host}"',
        )

    def connected(self, host: str, where: str) -> None:
        """The registry answered at this address."""
        if host == self.host:
            with self._lock:
                if self._home is None:
                    self._home = where

    def check_name(self, host: str) -> None:
        """The same for a host that a proxy will look up: judged by its literal address, else by what it resolves to here, if it does."""
        literal = address(host)
        if literal is not None:
            self.check(host, literal)
        elif host != self.host:
            from dockless.images.registry.deadline import TooSlow, look_up

            try:
                found = look_up(host, None)
            except (OSError, UnicodeError, TooSlow):
                return  # only the proxy knows this name
            for entry in found:
                where = address(str(entry[4][0]))
                if where is not None:
                    self.check(host, where)
