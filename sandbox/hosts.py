"""/etc/hosts of a sandbox, and the names that its caller adds to it."""

from __future__ import annotations

import contextlib

from dockless.base.later import re
from dockless.errors import BadInput

GATEWAY = "host-gateway"
"""Docker's word for the host's own address."""

_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = rf"{_LABEL}(\.{_LABEL})*\Z"
_MOST = 1000


def check_name(name: str, what: str) -> None:
    """``BadInput`` for what cannot be the name of a host or a domain, RFC 1123; it is going to be a word of a file."""
    if len(name) > 253 or not re.match(_NAME, name):
        hint = "use letters, digits, '-' and '_', with dots between"
        raise BadInput(f"{what} {name[:80]!r} is not usable", subject=name[:80], hint=hint)


def check_hosts(hosts: tuple[tuple[str, str], ...], *, has_network: bool) -> None:
    """``BadInput`` unless each is a name and an address, of IPv4 or IPv6 or ``GATEWAY``. ``has_network``: one from which the host itself is
    reached."""
    if len(hosts) > _MOST:
        raise BadInput(f"{len(hosts)} hosts are more than {_MOST}", subject="add_hosts", hint="bind a file: -v ./hosts:/etc/hosts:ro")
    for name, address in hosts:
        check_name(name, "host name")
        if address == GATEWAY and not has_network:
            hint = "give it a network from which the host is reached (--network bridge), or the address itself"
            raise BadInput(f"{name}:{GATEWAY}: without such a network the host cannot be reached", subject="add_hosts", hint=hint)
        if address != GATEWAY and not address_version(address):
            hint = "write NAME:ADDRESS: db:10.0.0.5, db:fd00::5"
            raise BadInput(f"host {name}: {address[:60]!r} is not an address", subject="add_hosts", hint=hint)


def address_version(text: str) -> int:
    """4 or 6, and 0 for what is no address."""
    import socket

    for kind, version in ((socket.AF_INET, 4), (socket.AF_INET6, 6)):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(kind, text)
            return version
    return 0


def hosts_file(hostname: str, domainname: str, hosts: tuple[tuple[str, str], ...], gateway: str = "127.0.0.1") -> str:
    """hosts(5). ``hostname`` empty: others answer for it; one that is among ``hosts`` has its address there. ``gateway``: the host's own
    address; with the host's network its loopback is the host's own."""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    said = [(gateway if address == GATEWAY else address, name) for name, address in hosts]
    own = next((address for address, name in said if name == hostname), "127.0.1.1")
    lines += [f"{own}\t{hostname}.{domainname} {hostname}" if domainname else f"{own}\t{hostname}"] if hostname else []
    lines += [f"{address}\t{name}" for address, name in said if (address, name) != (own, hostname)]
    return "".join(f"{line}\n" for line in lines)
