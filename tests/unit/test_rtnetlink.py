"""Requests of rtnetlink, as pyroute2 reads them: an independent witness that the bytes say what the command beside them says."""

from __future__ import annotations

import socket
import struct
from ipaddress import ip_interface
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from dockless.sandbox.network import rtnetlink
from dockless.sandbox.network.netlink import Request, attribute, attributes_of, each_attribute, nested

MAC = "02:00:0a:70:00:02"


def read(kind: Any, request: Request) -> Any:
    """As pyroute2 has it."""
    message = kind(struct.pack("=IHHII", 16 + len(request.body), request.kind, request.flags, 1, 0) + request.body)
    message.decode()
    return message


def test_a_bridge():
    request = rtnetlink.new_bridge("dl0", MAC, 1400)
    found = read(ifinfmsg, request)
    assert (found.get("ifname"), found.get("address"), found.get("mtu")) == ("dl0", MAC, 1400)
    assert found.get(("linkinfo", "kind")) == "bridge" and found.get(("linkinfo", "data", "br_forward_delay")) == 0
    assert request.command == f"ip link add dl0 address {MAC} mtu 1400 type bridge forward_delay 0"


def test_a_pair_of_links():
    found = read(ifinfmsg, rtnetlink.new_veth("dv0", 7, 9, "eth0", MAC, 1500, bridge_name="dl0"))
    peer = found.get(("linkinfo", "data", "veth_info_peer"))
    assert (found.get("ifname"), found.get("master"), found.get(("linkinfo", "kind"))) == ("dv0", 7, "veth")
    assert (peer.get("ifname"), peer.get("address"), peer.get("net_ns_fd")) == ("eth0", MAC, 9)


@pytest.mark.parametrize("isolated", [True, False])
def test_a_port_of_a_bridge(isolated):
    request = rtnetlink.set_port("dv0", 5, isolated=isolated)
    found = read(ifinfmsg, request)
    assert found["family"] == socket.AF_BRIDGE and found["index"] == 5
    port = {name.lower(): value for name, value in found.get("protinfo")["attrs"]}
    assert port["ifla_brport_learning"] == port["ifla_brport_unicast_flood"] == 0 and port["ifla_brport_guard"] == 1
    assert port["ifla_brport_isolated"] == int(isolated) and ("isolated on" in request.command) is isolated


def test_who_is_behind_a_port():
    found = read(ndmsg, rtnetlink.add_station("dv0", 5, MAC))
    assert (found["family"], found["ifindex"], found.get("lladdr")) == (socket.AF_BRIDGE, 5, MAC)
    assert found["state"] == 0x40 and found["flags"] == 0x04  # NUD_NOARP, NTF_MASTER: static, and not the host's own


def test_a_port_that_is_up_has_no_address_of_its_own():
    found = read(ifinfmsg, rtnetlink.set_port_up("dv0", 5))
    assert found["flags"] & found["change"] & 1
    ((_, six),) = found.get("af_spec")["attrs"]
    assert dict(six["attrs"])["IFLA_INET6_ADDR_GEN_MODE"] == 1


@pytest.mark.parametrize(("text", "family", "length"), [("10.1.2.3/20", socket.AF_INET, 20), ("fd00::5/64", socket.AF_INET6, 64)])
def test_an_address(text, family, length):
    request = rtnetlink.add_address("eth0", 2, ip_interface(text))
    found = read(ifaddrmsg, request)
    assert (found["family"], found["prefixlen"], found["index"]) == (family, length, 2)
    assert found.get("local") == found.get("address") == text.partition("/")[0]
    assert bool(found["flags"] & 0x02) is (family == socket.AF_INET6) is ("nodad" in request.command)


@pytest.mark.parametrize(("gateway", "family"), [("10.1.0.1", socket.AF_INET), ("fd00::1", socket.AF_INET6)])
def test_a_way_out(gateway, family):
    found = read(rtmsg, rtnetlink.add_default_route(gateway, "eth0", 2))
    assert (found["family"], found["dst_len"], found["table"]) == (family, 0, 254)
    assert (found.get("gateway"), found.get("oif")) == (gateway, 2)


@pytest.mark.parametrize("rate", [1000, 10 << 20, 5 << 30])
def test_a_rate(rate):
    found = read(tcmsg, rtnetlink.limit_rate("dv0", 5, rate))
    assert (found["index"], found["parent"], found.get("kind")) == (5, 0xFFFFFFFF, "tbf")
    options = dict(found.get("options")["attrs"])
    assert options["TCA_TBF_PARMS"]["rate"] == min(rate, 2**32 - 1)
    assert (options.get("UNKNOWN", {}).get("header", {}).get("type") == 4) is (rate >= 2**32)  # TCA_TBF_RATE64, which it has no name for


def test_attributes_of_others_end_where_they_are_torn():
    whole = attribute(1, b"abcde") + nested(2, attribute(3, 7))
    assert attributes_of(whole) == {1: b"abcde", 2: attribute(3, 7)}
    for cut in range(len(whole)):
        assert len(list(each_attribute(whole[:cut]))) <= 2
    assert attributes_of(struct.pack("=HH", 3, 1) + b"x") == {} == attributes_of(struct.pack("=HH", 400, 1))
