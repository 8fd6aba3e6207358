"""A network with its bridge, two sandboxes and the resolver, in network and mount namespaces that nobody else has: what programs find
there. Run as ``unshare -n -m python -m support.dns_inside DIRECTORY``; prints JSON."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from support.dns_peers import Upstream

from dockless.base import records
from dockless.native.netns import NetworkNamespace
from dockless.sandbox.network import netlink, nftables, resolver, rtnetlink, table
from dockless.sandbox.network.host import Host, index_of
from dockless.sandbox.network.model import Egress, Lease, Network, Rule

NETWORK = Network("web", ("10.77.0.0/16", "fd77::/64"), ("10.77.0.1", "fd77::1"), "br0")
TABLE = "dockless-inside"
EGRESS = {"two": Egress(allow=(Rule("a.example", ((443, 443),)), Rule("*.example", ((80, 80),))), host=False)}
PYTHON = "import socket; print(sorted({one[4][0] for one in socket.getaddrinfo('%s', 80)}))"
RULED = {
    "two of another": ["getent", "ahosts", "a.example"],
    "two of one below": ["busybox", "nslookup", "b.example"],
    "two of a private one": ["getent", "ahosts", "rebound.example"],
    "two of a stranger": ["getent", "ahosts", "a.stranger"],
    "two of a neighbour": ["getent", "ahosts", "one"],
    "two of a stranger, told": [sys.executable, "-I", "-c", PYTHON % "a.stranger"],
}
COMMANDS = {
    "getent": ["getent", "ahosts", "two"],
    "getent of itself": ["getent", "ahosts", "one"],
    "getent with the network": ["getent", "hosts", "two.web"],
    "getent of an address": ["getent", "hosts", "10.77.0.6"],
    "getent of another": ["getent", "ahostsv4", "a.example"],
    "getent of nobody": ["getent", "hosts", "nobody"],
    "getent of many": ["getent", "ahostsv4", "many.example"],
    "busybox": ["busybox", "nslookup", "two"],
    "busybox of another": ["busybox", "nslookup", "a.example"],
    "busybox of an address": ["busybox", "nslookup", "10.77.0.6"],
    "python": [sys.executable, "-I", "-c", PYTHON % "two"],
    "python of another": [sys.executable, "-I", "-c", PYTHON % "a.example"],
}


def sandbox(number: int, netns: int, inside: NetworkNamespace) -> None:
    link = f"v{number}"
    with Host().netlink(netlink.ROUTE) as opened:
        bridge = index_of(opened, NETWORK.bridge)
        mac = f"02:00:00:00:00:{number:02x}"
        netlink.carry_out(opened, [rtnetlink.new_veth(link, bridge, netns, "eth0", mac, 1500, bridge_name=NETWORK.bridge)])
        netlink.carry_out(opened, [rtnetlink.set_up(link, index_of(opened, link))])
    asking = netlink.prepare(inside.route)
    index = index_of(asking, "eth0")
    own = [ipaddress.ip_interface(f"10.77.0.{number}/16"), ipaddress.ip_interface(f"fd77::{number}/64")]
    netlink.carry_out(
        asking, [rtnetlink.set_up("lo", 1), *(rtnetlink.add_address("eth0", index, one) for one in own), rtnetlink.set_up("eth0", index)]
    )


def main(directory: Path) -> None:
    (directory / "leases").mkdir(parents=True)
    own = "nameserver 10.77.0.1\nnameserver fd77::1\n"
    files = {"hosts": "", "host.conf": "nameserver 127.0.0.1\n", "own.conf": own, "search.conf": own + "search corp\n"}
    for name, text in files.items():
        (directory / name).write_text(text)
    subprocess.run(["mount", "--bind", directory / "host.conf", "/etc/resolv.conf"], check=True)
    subprocess.run(["mount", "--bind", directory / "hosts", "/etc/hosts"], check=True)
    with Host().netlink(netlink.ROUTE) as opened:
        netlink.carry_out(opened, [rtnetlink.set_up("lo", 1), rtnetlink.new_bridge(NETWORK.bridge, "02:00:00:00:00:01", 1500)])
        index = index_of(opened, NETWORK.bridge)
        gateways = [ipaddress.ip_interface("10.77.0.1/16"), ipaddress.ip_interface("fd77::1/64")]
        netlink.carry_out(
            opened, [*(rtnetlink.add_address(NETWORK.bridge, index, one) for one in gateways), rtnetlink.set_up(NETWORK.bridge, index)]
        )
    upstream = Upstream(port=53, room=512)
    upstream.has("a.example", "203.0.113.9", "2001:db8::9")
    upstream.has("b.example", "203.0.113.10")
    upstream.has("a.stranger", "203.0.113.66")
    upstream.has("rebound.example", "169.254.169.254", "10.77.0.5")
    upstream.has("many.example", *(f"203.0.113.{number}" for number in range(1, 101)))
    said = {}
    with upstream.running(), contextlib.ExitStack() as opened:
        leases, inside = [], {}
        for number, name in ((5, "one"), (6, "two")):
            inside[name] = NetworkNamespace()
            opened.callback(inside[name].close)
            sandbox(number, inside[name].fd, inside[name])
            addresses = (f"10.77.0.{number}", f"fd77::{number}")
            lease = Lease(
                "web", addresses, f"02:00:00:00:00:{number:02x}", f"v{number}", "/nowhere", number, (name,), egress=EGRESS.get(name)
            )
            (directory / "leases" / addresses[0]).write_text(json.dumps(records.plain(lease)))
            leases.append(lease)
        with Host().netlink(netlink.NETFILTER) as asking:
            nftables.carry_out(asking, table.requests_for(TABLE, [NETWORK], leases))
        resolver.ensure(NETWORK, directory, Host(), TABLE)
        opened.callback(resolver.stop, directory)

        def run(commands: dict[str, list[str]], netns: int, conf: str) -> None:
            script = f'mount --bind {directory}/{conf} /etc/resolv.conf && exec "$@"'
            for name, command in commands.items():
                entering = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{netns}", "unshare", "-m", "sh", "-c", script, "sh", *command]
                done = subprocess.run(entering, capture_output=True, text=True, timeout=60)
                said[name] = [done.returncode, done.stdout, done.stderr]

        run(COMMANDS, inside["one"].fd, "own.conf")
        asked = sorted({f"{how}:{name}" for name, _, how in upstream.asked})
        run(RULED, inside["two"].fd, "search.conf")
        said["asked"] = [0, " ".join(asked), ""]
        said["rules"] = [0, subprocess.run(["nft", "list", "table", "inet", TABLE], capture_output=True, text=True).stdout, ""]
        said["log"] = [0, (directory / resolver.LOG).read_text(), ""]
    print(json.dumps(said))


if __name__ == "__main__":
    socket.setdefaulttimeout(10)
    main(Path(sys.argv[1]))
