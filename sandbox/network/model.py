"""What is asked of networks, and what is known of them: frozen records, JSON in and out, without a side effect.

::

    Endpoint, Port, Egress     what a sandbox asks for: fields of its Spec
    Network                    one that was made, in <state>/networks/<name>/network.json
    Lease                      what a sandbox has on one, in <runtime>/networks/<name>/leases/<address>

Addresses are texts: ``10.113.0.5``, ``fd13:…::5``, with ``/24`` where a network is meant. Rates are bytes a second.
"""

from __future__ import annotations

from dockless.base.checks import check_record
from dockless.base.dataclass import dataclass
from dockless.base.later import re
from dockless.base.text import shown
from dockless.base.typing import Literal
from dockless.errors import BadInput

DEFAULT = "bridge"
"""The network that is made at its first use, for whoever names no other. Nobody on it reaches another one on it."""
NOT_NAMES = ("none", "host", "private", "container", "pasta", "default")
METADATA = {4: "169.254.0.0/16", 6: "fd00:ec2::254"}
"""Where clouds tell a host its secrets."""
_MAC = r"([0-9a-f]{2}:){5}[0-9a-f]{2}\Z"
_MOST_PORTS = 200


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A network that a sandbox is on. ``addresses``: its own there, one of each kind at most; what is left out is chosen. ``mac``: empty
    for one that follows from the address. ``aliases``: names by which the others on the network find it, besides its own."""

    network: str = DEFAULT
    addresses: tuple[str, ...] = ()
    mac: str = ""
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_record(self)
        if self.mac and (not re.match(_MAC, self.mac) or int(self.mac[:2], 16) & 1):
            hint = "write six pairs of digits, 02:42:ac:11:00:02; the first pair is even, or it would be a group"
            raise BadInput(f"MAC address {shown(self.mac)} is not usable", subject="mac", hint=hint)


@dataclass(frozen=True, slots=True)
class Port:
    """Ports of the host that lead into the sandbox, ``count`` of them from ``outside`` and ``inside`` on. ``address``: of the host, empty
    for all that it has."""

    inside: int
    outside: int
    protocol: Literal["tcp", "udp"] = "tcp"
    address: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        check_record(self)
        if not 1 <= self.count <= _MOST_PORTS:
            raise BadInput(f"{self.count} ports in one range", subject="ports", hint=f"1 to {_MOST_PORTS}")
        for number in (self.inside, self.outside):
            if not 1 <= number <= 65536 - self.count:
                raise BadInput(f"port {number} is out of range", subject="ports", hint="ports are 1 to 65535")


@dataclass(frozen=True, slots=True)
class Rule:
    """Where a sandbox may connect to. ``to``: a network, ``10.1.0.0/16``, an address, a name, ``pypi.org``, or all names below one,
    ``*.pypi.org``. ``ports``: pairs of the first and the last; none for all. ``protocol``: empty for tcp and udp, and with no ports all."""

    to: str
    ports: tuple[tuple[int, int], ...] = ()
    protocol: Literal["", "tcp", "udp"] = ""

    def __post_init__(self) -> None:
        check_record(self)


@dataclass(frozen=True, slots=True)
class Egress:
    """What may leave a sandbox for beyond its own networks. ``allow`` None: everywhere. ``host``: also, where ``allow`` has them, the
    host's own addresses and the metadata addresses of clouds. ``rate``: bytes a second, in and out each, 0 for any. ``log``: what is
    refused is in the kernel's log."""

    allow: tuple[Rule, ...] | None = None
    host: bool = True
    rate: int = 0
    log: bool = False

    def __post_init__(self) -> None:
        check_record(self)

    @property
    def is_limited(self) -> bool:
        """Whether some address is out of reach."""
        return self.allow is not None or not self.host

    @property
    def names(self) -> tuple[Rule, ...]:
        """The rules that name hosts, which the resolver has to look up."""
        return tuple(rule for rule in self.allow or () if is_name(rule.to))


@dataclass(frozen=True, slots=True)
class Network:
    """One that was made. ``subnets``: one of IPv4 or IPv6, or one of each, and ``gateways``: the bridge's own address in each. ``bridge``:
    the name of the link. ``internal``: nothing on it leads out. ``isolated``: those on it do not reach one another. ``named``: they
    find one another by their names. ``owner``: the host user for whom it was made. ``created``: seconds since 1970. ``patience``: seconds
    that one on it looks for an address which nobody has yet; 0: three, as the kernel does."""

    name: str
    subnets: tuple[str, ...]
    gateways: tuple[str, ...]
    bridge: str
    mtu: int = 1500
    internal: bool = False
    isolated: bool = False
    named: bool = True
    labels: tuple[tuple[str, str], ...] = ()
    owner: int = 0
    created: float = 0.0
    patience: int = 0

    def __post_init__(self) -> None:
        check_record(self)


@dataclass(frozen=True, slots=True)
class Lease:
    """What a sandbox has on a network: ``addresses`` in the order of the network's subnets, ``mac``, ``link``: its end on the host, which
    never had this name before. ``names``: by which the others find it; the first is its own. ``sandbox``: its directory, and ``inode``
    the number of that, which stays when it is renamed. ``serial``: its endpoint's place among its endpoints. ``since``: when it was
    taken, in seconds since 1970. ``of_host``: addresses that its rules count as the host's, where its links are in another namespace."""

    network: str
    addresses: tuple[str, ...]
    mac: str
    link: str
    sandbox: str
    inode: int
    names: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    egress: Egress | None = None
    owner: int = 0
    serial: int = 0
    since: float = 0.0
    of_host: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_record(self)

    @property
    def inside(self) -> str:
        """The name of its link in the sandbox."""
        return f"eth{self.serial}"


def is_name(text: str) -> bool:
    """Whether a rule's ``to`` is a name and not an address or a network."""
    return ":" not in text and not re.match(r"[0-9.]+(/[0-9]+)?\Z", text)
