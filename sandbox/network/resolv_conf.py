"""/etc/resolv.conf of a sandbox. resolv.conf(5)"""

from __future__ import annotations

from collections.abc import Sequence

from dockless.sandbox.network.asked import Asked


def resolv_conf(servers: Sequence[str], spec: Asked, search: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """``servers``, ``search`` and ``options``: where the spec says none."""
    lines = [f"nameserver {server}" for server in spec.dns or servers]
    if domains := spec.dns_search or search:
        lines.append(f"search {' '.join(domains)}")
    if words := spec.dns_options or options:
        lines.append(f"options {' '.join(words)}")
    return "".join(f"{line}\n" for line in lines)


def of_host(text: str, spec: Asked) -> str:
    """The host's own file, with what the spec says in the place of what that does."""
    if not (spec.dns or spec.dns_search or spec.dns_options):
        return text
    said: dict[str, list[str]] = {"nameserver": [], "search": [], "options": []}
    for word, *rest in (line.split() for line in text.splitlines() if line.strip()):
        if word in ("search", "domain"):
            said["search"] = rest  # the last one holds
        elif word in said:
            said[word] += rest[:1] if word == "nameserver" else rest
    return resolv_conf(said["nameserver"], spec, said["search"], said["options"])
