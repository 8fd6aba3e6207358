"""What a spec says of networks, judged before anything is made: fields that belong together, addresses, ports, names."""

from __future__ import annotations

from collections.abc import Sequence

from dockless.base.later import re
from dockless.base.text import shown
from dockless.base.typing import Protocol
from dockless.errors import BadInput
from dockless.sandbox.hosts import address_version, check_name
from dockless.sandbox.names import check_id
from dockless.sandbox.network.model import DEFAULT, NOT_NAMES, Egress, Endpoint, Port, Rule, is_name


class Asked(Protocol):
    """What a ``Spec`` says of networks."""

    @property
    def network(self) -> str: ...
    @property
    def endpoints(self) -> tuple[Endpoint, ...]: ...
    @property
    def ports(self) -> tuple[Port, ...]: ...
    @property
    def dns(self) -> tuple[str, ...]: ...
    @property
    def dns_search(self) -> tuple[str, ...]: ...
    @property
    def dns_options(self) -> tuple[str, ...]: ...
    @property
    def egress(self) -> Egress | None: ...
    @property
    def hosts(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def hostname(self) -> str: ...
    @property
    def domainname(self) -> str: ...
    @property
    def profile(self) -> str: ...


CONTAINER = "container:"
"""How ``Spec.network`` begins that names a sandbox whose network it enters."""
_MOST_SERVERS = 3  # resolv.conf(5), MAXNS
_MOST = 100
_OPTION = r"[a-z][a-z0-9-]{0,30}(:[0-9]{1,6})?\Z"


def whose(network: str) -> str:
    """Whose network namespace such a sandbox has: ``the host's``, ``another sandbox's``, empty for its own."""
    return "the host's" if network == "host" else "another sandbox's" if network.startswith(CONTAINER) else ""


def reaches_host(spec: Asked) -> bool:
    """Whether the host's own address is of use to it."""
    if spec.network != "private":
        return spec.network == "host" and spec.profile != "untrusted"
    return what_may_leave(spec).host


def what_may_leave(spec: Asked) -> Egress:
    """Its rules, on whatever network it is: everything where it has none, with the profile untrusted not to the host."""
    return spec.egress if spec.egress is not None else Egress(host=spec.profile != "untrusted")


def check_network(spec: Asked) -> None:
    """``BadInput``"""
    if spec.network.startswith(CONTAINER):
        check_id(spec.network.removeprefix(CONTAINER))
        _check_joined(spec)
    elif spec.network not in ("none", "host", "private"):
        hint = "it is none, host, private (with endpoints), or container:ID"
        raise BadInput(f"network {shown(spec.network)} is unknown", subject="network", hint=hint)
    if spec.network == "private" and not spec.endpoints:
        hint = f'name the networks: --network {DEFAULT} (network="{DEFAULT}")'
        raise BadInput("a private network without an endpoint", subject="network", hint=hint)
    if spec.network != "private":
        _refuse_alone(spec)
    if spec.network == "none" and (spec.dns or spec.dns_search or spec.dns_options):
        hint = f"give it one: --network {DEFAULT}, or leave --dns out"
        raise BadInput("DNS servers need a network, and the sandbox has none", subject="dns", hint=hint)
    _check_endpoints(spec.endpoints)
    _check_ports(spec.ports)
    _check_dns(spec)
    if spec.egress is not None:
        _check_egress(spec.egress)


def _check_joined(spec: Asked) -> None:
    """What the other sandbox has decided is not to be said again. Its files name the hosts that it knows."""
    for name, word, value in (
        ("hostname", "hostname", spec.hostname), ("domainname", "domainname", spec.domainname), ("hosts", "add_hosts", spec.hosts),
        ("dns", "dns", spec.dns or spec.dns_search or spec.dns_options),
    ):  # fmt: skip
        if value:
            hint = f"leave --{word.replace('_', '-').removesuffix('s') if word != 'dns' else word} out ({word}=): the other one has said it"
            raise BadInput(f"{name} cannot be set for a sandbox that has another one's network", subject=word, hint=hint)


def _refuse_alone(spec: Asked) -> None:
    """Fields that say something of a private network alone."""
    where = f"{whose(spec.network)} network" if whose(spec.network) else "no network"
    for field, keyword, value in (("endpoints", "network", spec.endpoints), ("ports", "publish", spec.ports)):
        if value:
            hint = f"give it a network of its own: --network {DEFAULT}"
            if field == "ports" and spec.network != "none":
                hint = "leave -p out (publish=): " + (
                    "its program listens on the host itself" if spec.network == "host" else "ports are published by the other sandbox"
                )
            raise BadInput(f"{field} need a network of the sandbox's own, and it has {where}", subject=keyword, hint=hint)
    if spec.egress is not None:
        hint = f"give it a network of its own, --network {DEFAULT}, or leave out what says where it may connect to"
        raise BadInput(f"rules for what may leave need a network of the sandbox's own, and it has {where}", subject="allow_out", hint=hint)


def _check_endpoints(endpoints: Sequence[Endpoint]) -> None:
    seen: set[str] = set()
    taken: set[str] = set()
    for endpoint in endpoints:
        check_network_name(endpoint.network)
        if endpoint.network in seen:
            raise BadInput(f"network {endpoint.network} is named twice", subject="network", hint="say all of it once: NAME:ip=…,alias=…")
        seen.add(endpoint.network)
        versions = [address_version(address) for address in endpoint.addresses]
        for address, version in zip(endpoint.addresses, versions, strict=True):
            if not version:
                hint = "write 10.1.0.5 or fd00::5, without the length of the network"
                raise BadInput(f"network {endpoint.network}: {shown(address)} is no address", subject="network", hint=hint)
            if versions.count(version) > 1:
                hint = "one of each kind at most, and one of IPv6 beside it"
                raise BadInput(f"network {endpoint.network}: two addresses of IPv{version}", subject="network", hint=hint)
            if address in taken:
                raise BadInput(f"address {address} is said of two networks", subject="network", hint="no two networks have one address")
            taken.add(address)
        if endpoint.aliases and endpoint.network == DEFAULT:
            hint = "make a network: dockless network create NAME"
            raise BadInput(f"aliases on the network {DEFAULT}, which has no names", subject="network", hint=hint)
        if len(endpoint.aliases) > _MOST:
            raise BadInput(f"{len(endpoint.aliases)} aliases are more than {_MOST}", subject="network", hint="leave some out")
        for alias in endpoint.aliases:
            check_name(alias, "alias")


def check_network_name(name: str) -> str:
    """A name that a network can have, or is made with. ``BadInput``"""
    check_id(name, "network name")
    if name in NOT_NAMES:
        raise BadInput(f"no network can be called {name}", subject=name, hint=f"{name} means something else: choose another name")
    return name


def _check_ports(ports: Sequence[Port]) -> None:
    for port in ports:
        if port.address and not address_version(port.address):
            hint = "write [ADDRESS:]HOST:INSIDE, as 127.0.0.1:8080:80 or [fd00::5]:8080:80"
            raise BadInput(f"{shown(port.address)} is no address of the host", subject="publish", hint=hint)
    for at, port in enumerate(ports):
        for other in ports[:at]:
            if overlap(port, other):
                first = max(port.outside, other.outside)
                hint = "each port of the host leads to one place: leave one out"
                raise BadInput(f"port {first}/{port.protocol} of the host is published twice", subject="publish", hint=hint)


def check_routed(ports: Sequence[Port]) -> None:
    """Refuse ports that root's networks do not lead inside: the kernel sends nothing from ::1 over another link. ``BadInput``"""
    from ipaddress import ip_address

    for port in ports:
        if port.address and ip_address(port.address) == ip_address("::1"):
            hint = f"127.0.0.1:{port.outside}:{port.inside} is the host's own, {port.outside}:{port.inside} all of its addresses"
            raise BadInput(f"published ports are not reached by {port.address}, IPv6's loopback", subject="publish", hint=hint)


def overlap(one: Port, other: Port) -> bool:
    """Whether some port of the host would be both's."""
    if one.protocol != other.protocol or one.outside >= other.outside + other.count or other.outside >= one.outside + one.count:
        return False
    versions = [address_version(port.address) for port in (one, other)]
    if 0 in versions:
        return True
    every = {4: "0.0.0.0", 6: "::"}[versions[0]]
    return versions[0] == versions[1] and (one.address == other.address or every in (one.address, other.address))


def _check_dns(spec: Asked) -> None:
    if len(spec.dns) > _MOST_SERVERS:
        raise BadInput(f"{len(spec.dns)} DNS servers are more than {_MOST_SERVERS}", subject="dns", hint="no program asks more")
    for server in spec.dns:
        if not address_version(server):
            raise BadInput(f"{shown(server)} is not the address of a DNS server", subject="dns", hint="write 10.0.0.1 or fd00::1")
    for texts, subject in ((spec.dns_search, "dns_search"), (spec.dns_options, "dns_options")):
        if len(texts) > _MOST:
            raise BadInput(f"{len(texts)} {subject} are more than {_MOST}", subject=subject, hint="leave some out")
    for domain in spec.dns_search:
        if domain != ".":
            check_name(domain, "domain to search")
    for option in spec.dns_options:
        if not re.match(_OPTION, option):
            hint = "write one of resolv.conf(5): ndots:2, timeout:1, use-vc"
            raise BadInput(f"{shown(option)} is no option of resolv.conf", subject="dns_options", hint=hint)


def _check_egress(egress: Egress) -> None:
    if len(egress.allow or ()) > _MOST:
        raise BadInput(f"{len(egress.allow or ())} rules are more than {_MOST}", subject="allow_out", hint="allow a larger network")
    for rule in egress.allow or ():
        _check_rule(rule)
    if egress.rate < 0:
        raise BadInput(f"a rate of {egress.rate} bytes a second", subject="net_rate", hint="write 10M, or leave it out for any")


def _check_rule(rule: Rule) -> None:
    if is_name(rule.to):
        check_name(rule.to.removeprefix("*."), "name to allow")
    else:
        address, slash, length = rule.to.partition("/")
        most = {4: 32, 6: 128}.get(address_version(address), -1)
        if most < 0 or (slash and not (length.isascii() and length.isdecimal() and len(length) < 4 and int(length) <= most)):
            hint = "write 10.0.0.0/8, fd00::/8, pypi.org or *.pypi.org, with :443 for one port"
            raise BadInput(f"{shown(rule.to)} is neither a network nor a name", subject="allow_out", hint=hint)
    for first, last in rule.ports:
        if not 1 <= first <= last <= 65535:
            raise BadInput(f"{rule.to}: ports {first} to {last}", subject="allow_out", hint="ports are 1 to 65535, the lower one first")
    if rule.protocol and not rule.ports:
        raise BadInput(f"{rule.to}: {rule.protocol} without a port", subject="allow_out", hint=f"write {rule.to}:443/{rule.protocol}")
