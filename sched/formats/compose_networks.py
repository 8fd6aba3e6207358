"""What a Compose service says of networks. Services have one network of their own anyway; who publishes ports is on the default network
besides. https://github.com/compose-spec/compose-spec, 05-services.md and 06-networks.md"""

from __future__ import annotations

from collections.abc import Mapping

from dockless.base.text import shown
from dockless.base.typing import Any
from dockless.sandbox.hosts import address_version
from dockless.sandbox.network.model import DEFAULT
from dockless.sched.formats.tables import Table, shown_value

_TOGETHER = "services have one network, on which each is found by its name; the host's own is network_mode: host"
_NO_PORTS = {
    "host": "no ports are published: with network_mode: host the program listens on the host itself",
    "none": "no ports are published: with network_mode: none nobody reaches the service from the host",
}
_SEVERAL = "no ports are published of a service of several instances: they cannot have one port of the host"
_LINKS = ("links", "external_links")
_DNS = {"dns": "dns", "dns_search": "dns_search", "dns_opt": "dns_options"}


def known_networks(top: Table) -> dict[str, str]:
    """All that the file names, and ``default``: what those are called that are there already, ``external``. What is not made is empty, and
    noted."""
    found = {"default": ""}
    for name, table in top.tables("networks"):
        nested = table.table("external") if isinstance(table.value("external"), dict) else table
        if isinstance(table.value("external"), dict) or table.flag("external"):
            found[name] = nested.text("name", table.text("name", name))
        else:
            found[name] = ""
            for key in table.values:
                table.value(key)
            top.note("networks", f"{name[:60]} is not made: {_TOGETHER}")
        table.done_but("x-")
    return found


def networks_of(table: Table, options: dict[str, Any], known: Mapping[str, str], count: int) -> None:
    """Add to ``options`` what the service says. ``known``: see ``known_networks``; ``count``: of its instances."""
    table.unused(dict.fromkeys(_LINKS, _TOGETHER) | {"expose": "services reach each other's ports anyway"})
    mode = table.text("network_mode", "none") if table.has("network_mode") else ""
    if mode not in ("", "host", "none", DEFAULT):
        table.wrong("network_mode", f"is {mode[:40]!r}", f"there are the host's own network, {DEFAULT} and none")
    elif mode and table.has("networks"):
        table.wrong("network_mode", "stands beside networks", "leave one of them out")
    if mode in ("host", "none", DEFAULT):
        options["network"] = mode
    joined = _joined(table, known)
    if table.has("ports") and (mode in _NO_PORTS or count > 1):
        table.note("ports", _NO_PORTS.get(mode, _SEVERAL))
    elif ports := _ports(table):
        options["publish"] = ports
        options["network"] = DEFAULT
    if joined:
        options["network"] = joined if len(joined) > 1 else joined[0]
    for server in table.texts("dns") if table.has("dns") else ():
        if not address_version(server):
            table.wrong("dns", f"has {shown(server)}, which is no address", "write 10.0.0.1 or fd00::1")
    for key, keyword in _DNS.items():
        if table.has(key) and options.get("network", "none") == "none":
            table.note(key, _TOGETHER)
        elif table.has(key):
            options[keyword] = table.texts(key)
    table.unused({"mac_address": "each sandbox has an address of its own"})


def _joined(table: Table, known: Mapping[str, str]) -> list[str]:
    """The networks that are there already, as ``network`` takes them."""
    if not table.has("networks"):
        return []
    said = table.value("networks")
    entries = table.tables("networks") if isinstance(said, dict) else ((name, Table(table.source, {})) for name in table.texts("networks"))
    found = []
    for name, entry in entries:
        settings = [
            f"{word}={entry.text(key)}"
            for key, word in (("ipv4_address", "ip"), ("ipv6_address", "ip"), ("mac_address", "mac"))
            if entry.has(key)
        ]
        settings += [f"alias={alias}" for alias in entry.texts("aliases")]
        entry.unused(dict.fromkeys(("link_local_ips", "priority", "gw_priority", "interface_name", "driver_opts"), "it has no effect"))
        entry.done_but("x-")
        if name not in known:
            hint = f"name it in the networks of the file: networks: {{{name[:60]}: {{external: true}}}}"
            table.wrong("networks", f"has {shown(name)}, which the file does not name", hint)
        elif known[name]:
            found.append(f"{known[name]}:{','.join(settings)}" if settings else known[name])
    if not found:
        table.note("networks", _TOGETHER)
    return found


def _ports(table: Table) -> list[str]:
    """As ``publish`` takes them. Compose chooses the port of the host where none is said; here such a one is not published."""
    found = []
    for at, item in enumerate(table.items("ports")):
        place = (*table.path, "ports", at)
        if isinstance(item, dict):
            text = _long_port(Table(table.source, item, place))
        elif isinstance(item, (str, int)) and not isinstance(item, bool):
            text = str(item)
        else:
            table.source.wrong(place, f"is {shown_value(item)}, not a port", "write HOST:INSIDE, as 8080:80")
            continue
        if ":" in text:
            found.append(text)
        elif text:
            table.source.note(place, f"{shown(text)} is not published: say which port of the host leads there, as 8080:{text}")
    return found


def _long_port(port: Table) -> str:
    port.required("target")
    address, protocol = port.text("host_ip"), port.text("protocol", "tcp")
    port.unused({"mode": "there is one host"})
    for key in ("name", "app_protocol"):
        port.value(key)
    target, published = port.text("target"), port.text("published")
    port.done_but("x-")
    if not published:
        return f"{target}/{protocol}"
    return f"{f'[{address}]:' if ':' in address else f'{address}:' if address else ''}{published}:{target}/{protocol}"
