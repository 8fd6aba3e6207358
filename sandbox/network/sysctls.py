"""Settings of the kernel that networks need. Those of the host itself are changed only where its administrator says so; those of our own
bridges are ours. ip-sysctl"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from ipaddress import ip_network

from dockless.base import paths
from dockless.errors import NetworkError
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Network

FORWARDING = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}
_ROUTERS, _FROM_LOOPBACK = "net.ipv6.conf.{}.accept_ra", "net.ipv4.conf.{}.route_localnet"
_HERE = Host()
_ALLOWED = {"no": (), "ipv4": (4,), "both": (4, 6)}


def forwards(version: int, host: Host = _HERE) -> bool:
    """Whether a host forwards packets from one link to another."""
    with contextlib.suppress(OSError):
        return _read(FORWARDING[version], host) != "0"
    return False


def forward_alone(versions: Sequence[int], host: Host) -> None:
    """Have a user's network namespace forward packets of these kinds and no others. ``NetworkError``"""
    for version, name in FORWARDING.items():
        if version in versions or forwards(version, host):
            _set(name, str(int(version in versions)), host)


def need_forwarding(networks: Sequence[Network], host: Host) -> None:
    """Of networks that lead out: see to it that the host forwards packets, if the setting ``networks.forward`` says so. ``NetworkError``
    where it does not for IPv4; where it does not for IPv6, that is left out. That of a user was set up when it was made."""
    if host.netns >= 0:
        return
    leading = {ip_network(subnet).version for network in networks if not network.internal for subnet in network.subnets}
    missing = [version for version in sorted(leading) if not forwards(version)]
    if not missing:
        return
    from dockless.base import settings

    for version in missing:
        if version in _ALLOWED[settings.load()["networks.forward"]]:
            _set(FORWARDING[version], "1")
        elif version == 4:
            name = next(network.name for network in networks if not network.internal)
            hint = f'as root: sysctl -w {FORWARDING[4]}=1, or [networks] forward = "ipv4" in {paths.config_file()}'
            why = f"network {name} leads out, and this host does not forward packets: {FORWARDING[4]} is 0"
            raise NetworkError(why, subject=FORWARDING[4], hint=f"{hint}; or use an internal network")


def commands(bridge: str, *, routers: bool = False, from_loopback: bool = False) -> list[str]:
    """What does the same as ``refuse_routers`` and ``lead_from_loopback`` in a shell."""
    found = [f"sysctl -w {_ROUTERS.format(bridge)}=0"] if routers else []
    return found + ([f"sysctl -w {_FROM_LOOPBACK.format(bridge)}=1"] if from_loopback else [])


def refuse_routers(bridge: str, host: Host = _HERE) -> None:
    """The host takes no routes from what is on a bridge of ours, which may be hostile (CVE-2020-13401)."""
    with contextlib.suppress(OSError):  # a host without IPv6
        _write(_ROUTERS.format(bridge), "0", host)


def lead_from_loopback(bridge: str) -> None:
    """What the host itself sends to a published port by 127.0.0.1 may leave by our bridge. The table refuses what comes from there."""
    _set(_FROM_LOOPBACK.format(bridge), "1")


def _set(name: str, value: str, host: Host = _HERE) -> None:
    try:
        if _read(name, host) != value:
            _write(name, value, host)
    except OSError as error:
        raise NetworkError(f"cannot set {name} to {value}: {error.strerror}", subject=name, hint=f"sysctl -w {name}={value}") from error


def _read(name: str, host: Host) -> str:
    with open(host.setting(_path(name), os.O_RDONLY)) as file:
        return file.read().strip()


def _write(name: str, value: str, host: Host) -> None:
    with open(host.setting(_path(name), os.O_WRONLY), "w") as file:
        file.write(value)


def _path(name: str) -> str:
    return "/proc/sys/" + name.replace(".", "/")
