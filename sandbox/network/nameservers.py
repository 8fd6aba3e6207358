"""Whom a sandbox asks for names: its /etc/resolv.conf, and whether a network needs a resolver of its own. resolv.conf(5)"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from dockless.base.typing import TYPE_CHECKING
from dockless.sandbox.network import records
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import DEFAULT, Network

if TYPE_CHECKING:
    from dockless.sandbox.spec import Spec

_OF_HOST = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf")
"""The second is what systemd-resolved asks, where the first says to ask that on the host's loopback, which no sandbox reaches."""
_MOST = 65536


def resolv_conf(spec: Spec) -> str:
    """The text of the file for a sandbox on networks of its own."""
    said = _said(_OF_HOST[0])
    servers = list(spec.dns) or _servers(spec)
    search = list(spec.dns_search) or next((words[1:] for words in said if words[:1] in (["search"], ["domain"])), [])
    options = list(spec.dns_options)
    lines = [f"nameserver {server}" for server in servers]
    lines += [f"search {' '.join(search)}"] if search and search != ["."] else []
    lines += [f"options {' '.join(options)}"] if options else []
    return "".join(f"{line}\n" for line in lines)


def of_host(text: str, spec: Spec) -> str:
    """The host's own file with what the spec says in the place of what that does."""
    replaced = {
        "nameserver": [f"nameserver {server}" for server in spec.dns],
        "search": [f"search {' '.join(spec.dns_search)}"] if spec.dns_search else [],
        "options": [f"options {' '.join(spec.dns_options)}"] if spec.dns_options else [],
    }
    replaced["domain"] = replaced["search"]
    kept = [line for line in text.splitlines() if not replaced.get((line.split() or [""])[0])]
    return "".join(f"{line}\n" for line in (*kept, *replaced["nameserver"], *replaced["search"], *replaced["options"]))


def has_resolver(network: Network, spec: Spec) -> bool:
    """Whether a sandbox of this spec asks the network's own resolver: where others have names, or where names decide what may leave, or
    where no sandbox reaches those whom the host asks."""
    return network.name != DEFAULT or bool(spec.egress is not None and spec.egress.names) or not reachable()


def reachable() -> list[str]:
    """The host's nameservers, but those on its own loopback."""
    for path in _OF_HOST:
        found = [words[1] for words in _said(path) if words[:1] == ["nameserver"] and len(words) > 1 and _leads_out(words[1])]
        if found:
            return found
    return []


def _servers(spec: Spec) -> Sequence[str]:
    networks = [records.find_or_make(endpoint.network, Host()) for endpoint in spec.endpoints]
    own = next((network for network in networks if has_resolver(network, spec)), None)
    return own.gateways if own is not None else reachable()


def _said(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return [line.split() for line in stream.read(_MOST).splitlines() if line.strip()[:1] not in ("", "#", ";")]
    except OSError:
        return []


def _leads_out(server: str) -> bool:
    try:
        return not ip_address(server.partition("%")[0]).is_loopback
    except ValueError:
        return False
