"""What a start does about a sandbox's networks, as commands of ip(8) and bridge(8) and in plain words, without doing anything. Addresses are
leased at the start: where the sandbox asks for none, ADDRESS stands for it."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from dockless.base.dataclass import dataclass
from dockless.base.units import exact_size
from dockless.sandbox.network import records
from dockless.sandbox.network.asked import CONTAINER, Asked
from dockless.sandbox.network.model import Egress, Endpoint, Network, Port, Rule
from dockless.sandbox.network.sysctls import forwards


@dataclass(frozen=True, slots=True)
class Step:
    """``command``: that does the same, empty where there is none in one line."""

    words: str
    command: str = ""


def steps(spec: Asked) -> list[Step]:
    """``spec``: with what its profile implies. Nothing for one that has the host's network, or none. ``UnknownNetwork``"""
    if spec.network.startswith(CONTAINER):
        other = spec.network.removeprefix(CONTAINER)
        return [Step(f"enter the network namespace of sandbox {other}, and the user namespace that it belongs to")]
    if spec.network != "private":
        return []
    said = [Step("make a network namespace", "ip netns add SANDBOX"), Step("loopback up", "ip -n SANDBOX link set lo up")]
    routed: set[int] = set()
    for number, endpoint in enumerate(spec.endpoints):
        said += _connected(records.find(endpoint.network), endpoint, f"eth{number}", routed)
    said += [Step(_published(port)) for port in spec.ports]
    return said + [Step(words) for words in _egress(spec.egress or Egress())]


def _connected(network: Network, endpoint: Endpoint, inside: str, routed: set[int]) -> list[Step]:
    addresses = _addresses(network, endpoint)
    said = [
        Step(f"lease {' and '.join(addresses)} of network {network.name}"),
        Step(
            f"a pair of links, one end a port of the network's bridge, the other {inside}",
            f"ip link add LINK mtu {network.mtu} master {network.bridge} type veth peer name {inside} netns SANDBOX",
        ),
        Step(
            "the bridge learns nothing from it, and sends it what is its own",
            f"bridge link set dev LINK isolated {'on' if network.isolated else 'off'} learning off flood off; "
            "bridge fdb replace MAC dev LINK master static",
        ),
        *(Step("its address", f"ip -n SANDBOX address replace {address} dev {inside}") for address in addresses),
        Step(f"{inside} up", f"ip -n SANDBOX link set {inside} up"),
    ]
    for gateway in network.gateways:
        version = ip_address(gateway).version
        if not network.internal and version not in routed and forwards(version):
            said.append(Step("the way out", f"ip -n SANDBOX -{version} route add default via {gateway} dev {inside}"))
            routed.add(version)
    leads = "and nowhere else" if network.internal else "and out by NAT"
    return [*said, Step(f"in table inet {records.table_name()}: let through what comes from its address and MAC, to the network {leads}")]


def _addresses(network: Network, endpoint: Endpoint) -> list[str]:
    asked = {ip_address(address).version: address for address in endpoint.addresses}
    subnets = [ip_network(subnet) for subnet in network.subnets]
    return [f"{asked[one.version]}/{one.prefixlen}" if one.version in asked else f"ADDRESS/{one.prefixlen}" for one in subnets]


def _published(port: Port) -> str:
    address = f"[{port.address}]" if ":" in port.address else port.address or "all addresses"
    outside, inside = (f"{first}-{first + port.count - 1}" if port.count > 1 else str(first) for first in (port.outside, port.inside))
    return f"hold port {outside}/{port.protocol} on {address} of the host: what comes there goes to port {inside} inside"


def _egress(egress: Egress) -> list[str]:
    said = []
    if egress.allow is not None:
        words = ", ".join(map(_rule, egress.allow)) or "nothing"
        said.append(f"beyond its networks it may connect to {words}")
    if not egress.host:
        said.append("it reaches neither the host's own addresses nor metadata addresses (169.254.0.0/16, fd00:ec2::254)")
    if egress.rate:
        said.append(f"{exact_size(egress.rate)} a second at most, in and out each")
    if egress.log:
        said.append("what is refused is told to the kernel's log")
    return said


def _rule(rule: Rule) -> str:
    ports = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in rule.ports)
    return rule.to + (f" (port {ports}{f', {rule.protocol}' if rule.protocol else ''})" if ports else "")
