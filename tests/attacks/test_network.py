"""Sandboxes that lie on their network, and that try to get out of it: frames with others' addresses, and ways around what is limited."""

from __future__ import annotations

import os
import socket
import struct

import pytest
from support import frames
from support.frames import arp, arrives, ether, ip4, ip6, neighbour, send, udp
from support.nets import BRIDGE_MAC, HOST, NAME, OUTSIDE, Service, World, lease, network, reach, user_namespace
from support.requires import requires

from dockless.sandbox.network import table
from dockless.sandbox.network.model import Egress, Rule
from dockless.sandbox.network.table import link_local

pytestmark = requires("netns", "program:nsenter", "program:ip")

ALONE, FRIENDS = network("alone", 1, isolated=True), network("friends", 2)
MALLORY, VICTIM = lease(FRIENDS, 66), lease(FRIENDS, 10)
(OWN4, OWN6), (VICTIM4, VICTIM6), (GATEWAY4, GATEWAY6) = MALLORY.addresses, VICTIM.addresses, FRIENDS.gateways
LOCAL, GATEWAY_MAC = link_local(MALLORY.mac), BRIDGE_MAC.format(2)
IP, ARP, IP6, VLAN = 0x0800, 0x0806, 0x86DD, 0x8100
MARK = b"sent by mallory " + os.urandom(16)
DATA = udp(5000, 5000, MARK)
ADVERT = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + MARK


@pytest.fixture(scope="module")
def world():
    with user_namespace() as user:
        world = World([ALONE, FRIENDS], user)
        world.mallory, world.victim = world.start(FRIENDS, 66), world.start(FRIENDS, 10)
        world.lone, world.loner = world.start(ALONE, 10), world.start(ALONE, 11)
        world.guest = world.start(FRIENDS, 20, egress=Egress(host=False))
        world.closed = world.start(FRIENDS, 21, egress=Egress(allow=()))
        world.some = world.start(FRIENDS, 22, egress=Egress(allow=(Rule(OUTSIDE[0], ((5004, 5004),), "udp"),)))
        yield world
        world.close()


def mallory(kind, payload, *, to=frames.EVERYBODY, source=MALLORY.mac):
    return ether(to, source, kind, payload)


HONEST = {
    "IPv4": mallory(IP, ip4(OWN4, VICTIM4, DATA)),
    "ARP": mallory(ARP, arp(MALLORY.mac, OWN4, VICTIM4) + MARK),
    "IPv6": mallory(IP6, ip6(OWN6, VICTIM6, DATA)),
    "from the link's own address": mallory(IP6, ip6(LOCAL, VICTIM6, DATA)),
    "solicitation": mallory(IP6, ip6(OWN6, "ff02::1", neighbour(135, VICTIM6) + MARK, 58)),
    "solicitation from nowhere": mallory(IP6, ip6("::", "ff02::1", neighbour(135, OWN6) + MARK, 58)),
    "advertisement": mallory(IP6, ip6(OWN6, "ff02::1", neighbour(136, OWN6) + MARK, 58)),
    "advertisement of the link's own address": mallory(IP6, ip6(LOCAL, "ff02::1", neighbour(136, LOCAL) + MARK, 58)),
}
LIES = {
    "another's MAC": mallory(IP, ip4(OWN4, VICTIM4, DATA), source=VICTIM.mac),
    "the gateway's MAC": mallory(IP, ip4(OWN4, VICTIM4, DATA), source=GATEWAY_MAC),
    "a made-up MAC": mallory(IP, ip4(OWN4, VICTIM4, DATA), source="02:00:00:00:77:77"),
    "another's address": mallory(IP, ip4(VICTIM4, GATEWAY4, DATA)),
    "the gateway's address": mallory(IP, ip4(GATEWAY4, VICTIM4, DATA)),
    "an address of elsewhere": mallory(IP, ip4("198.51.100.1", VICTIM4, DATA)),
    "no address": mallory(IP, ip4("0.0.0.0", VICTIM4, DATA)),
    "the host's loopback": mallory(IP, ip4("127.0.0.1", VICTIM4, DATA)),
    "to the host's loopback": mallory(IP, ip4(OWN4, "127.0.0.1", DATA), to=GATEWAY_MAC),
    "a later fragment with another's address": mallory(IP, ip4(VICTIM4, GATEWAY4, MARK)[:6] + b"\0\x10" + ip4(VICTIM4, GATEWAY4, MARK)[8:]),
    "IPv6: another's address": mallory(IP6, ip6(VICTIM6, GATEWAY6, DATA)),
    "IPv6: the gateway's address": mallory(IP6, ip6(GATEWAY6, VICTIM6, DATA)),
    "IPv6: another's link-local address": mallory(IP6, ip6(link_local(VICTIM.mac), VICTIM6, DATA)),
    "IPv6: no address": mallory(IP6, ip6("::", GATEWAY6, DATA)),
    "IPv6: another's MAC": mallory(IP6, ip6(OWN6, VICTIM6, DATA), source=VICTIM.mac),
    "ARP: another's address": mallory(ARP, arp(MALLORY.mac, VICTIM4, GATEWAY4) + MARK),
    "ARP: the gateway's address": mallory(ARP, arp(MALLORY.mac, GATEWAY4, VICTIM4) + MARK),
    "ARP: asks in the gateway's name": mallory(ARP, arp(MALLORY.mac, GATEWAY4, VICTIM4, 1) + MARK),
    "ARP: another's MAC inside": mallory(ARP, arp(VICTIM.mac, OWN4, GATEWAY4) + MARK),
    "ARP: another's MAC outside": mallory(ARP, arp(MALLORY.mac, OWN4, GATEWAY4) + MARK, source=VICTIM.mac),
    "ARP: of another kind": mallory(ARP, b"\0\6" + arp(MALLORY.mac, OWN4, GATEWAY4)[2:] + MARK),
    "ND: another's address": mallory(IP6, ip6(OWN6, "ff02::1", neighbour(136, VICTIM6) + MARK, 58)),
    "ND: the gateway's address": mallory(IP6, ip6(LOCAL, "ff02::1", neighbour(136, GATEWAY6) + MARK, 58)),
    "ND: asks in another's name": mallory(IP6, ip6(VICTIM6, "ff02::1", neighbour(135, GATEWAY6) + MARK, 58)),
    "ND: behind options": mallory(IP6, ip6(OWN6, "ff02::1", b"\x3a\0\1\4\0\0\0\0" + neighbour(136, VICTIM6) + MARK, 60)),
    "router advertisement": mallory(IP6, ip6(LOCAL, "ff02::1", ADVERT, 58), to=frames.ALL_NODES),
    "router advertisement behind options": mallory(IP6, ip6(LOCAL, "ff02::1", b"\x3a\0\1\4\0\0\0\0" + ADVERT, 60)),
    "redirect": mallory(IP6, ip6(LOCAL, VICTIM6, struct.pack("!BBHI", 137, 0, 0, 0) + MARK, 58)),
    "DHCP server": mallory(IP, ip4(OWN4, "255.255.255.255", udp(67, 68, MARK))),
    "DHCPv6 server": mallory(IP6, ip6(LOCAL, "ff02::1", udp(547, 546, MARK))),
    "with a VLAN's tag": mallory(VLAN, struct.pack("!HH", 5, IP) + ip4(OWN4, VICTIM4, DATA)),
    "with two tags": mallory(0x88A8, struct.pack("!HHHH", 5, VLAN, 6, IP) + ip4(OWN4, VICTIM4, DATA)),
    "another protocol": mallory(0x88B5, MARK),
    "spanning tree": ether("01:80:c2:00:00:00", MALLORY.mac, 38, b"\x42\x42\x03" + bytes(35) + MARK),
}  # fmt: skip


def seen(world, frame, wanted=0):
    return arrives(MARK, [(world.victim, "eth0"), (world.host, FRIENDS.bridge)], lambda: send(world.mallory, frame), wanted=wanted)


@pytest.mark.parametrize("what", HONEST)
def test_what_is_true_arrives(world, what):
    assert seen(world, HONEST[what], wanted=2) == ["dl2", "eth0"]


@pytest.mark.parametrize("what", LIES)
def test_what_is_a_lie_does_not(world, what):
    assert seen(world, LIES[what]) == []


def test_without_the_table_lies_arrive(world):
    """So that what refuses them above is the table."""
    world.host.run("nft", "delete", "table", "bridge", NAME)
    try:
        arrived = {what for what, frame in LIES.items() if seen(world, frame, wanted=1)}
    finally:
        world.write()
    assert arrived == LIES.keys()


def test_flooded_addresses_take_no_ones_frames(world):
    stations = [f"02:00:00:01:{number >> 8:02x}:{number & 255:02x}" for number in range(500)]
    send(world.mallory, *(mallory(IP, ip4(OWN4, VICTIM4, DATA), source=station) for station in (*stations, VICTIM.mac)))
    known = world.host.run("bridge", "fdb", "show", "br", FRIENDS.bridge)
    assert "02:00:00:01" not in known
    with Service(world.victim, 5001) as service:
        assert reach(world.host, VICTIM4, 5001) == "open" and service.asked == [GATEWAY4]


def test_the_hosts_loopback_is_closed_even_with_half_of_the_table(world):
    """``route_localnet`` lets 127.0.0.1 in from the bridge; each half of the table keeps it out by itself."""
    frame = mallory(IP, ip4(OWN4, "127.0.0.1", udp(5000, 5003, MARK)), to=GATEWAY_MAC)
    asking = world.host.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with asking:
        asking.bind(("127.0.0.1", 5003))
        asking.settimeout(0.3)

        def heard() -> bool:
            send(world.mallory, frame)
            try:
                return MARK in asking.recv(2048)
            except TimeoutError:
                return False

        try:
            assert not heard()
            world.host.run("nft", "delete", "table", "bridge", NAME)
            assert not heard()
            world.write()
            world.host.run("nft", "delete", "table", "inet", NAME)
            assert not heard()
            world.host.run("nft", "delete", "table", "bridge", NAME)
            assert heard()
        finally:
            world.write()


@pytest.mark.parametrize(("own", "other", "kind", "packet"), [(0, 0, IP, ip4), (1, 1, IP6, ip6)])
def test_isolated_ones_do_not_reach_each_other_through_the_gateway(world, own, other, kind, packet):
    one, two = lease(ALONE, 10), lease(ALONE, 11)
    frame = ether(BRIDGE_MAC.format(1), one.mac, kind, packet(one.addresses[own], two.addresses[other], DATA))
    assert arrives(MARK, [(world.host, ALONE.bridge)], lambda: send(world.lone, frame), wanted=1) == [ALONE.bridge]
    assert arrives(MARK, [(world.loner, "eth0")], lambda: send(world.lone, frame)) == []


@pytest.mark.parametrize(("which", "kind", "packet"), [(0, IP, ip4), (1, IP6, ip6)])
def test_another_network_is_not_reached_through_its_gateway_or_ones_own(world, which, kind, packet):
    one, two = lease(ALONE, 10), FRIENDS
    for to in (lease(two, 10).addresses[which], two.gateways[which]):
        for station in (BRIDGE_MAC.format(1), BRIDGE_MAC.format(2)):
            frame = ether(station, one.mac, kind, packet(one.addresses[which], to, DATA))
            with Service(world.host, 5000, "udp", (socket.AF_INET, socket.AF_INET6)[which]) as service:
                assert arrives(MARK, [(world.victim, "eth0")], lambda frame=frame: send(world.lone, frame)) == []
                assert not service.asked


@pytest.mark.parametrize(("which", "family"), [(0, socket.AF_INET), (1, socket.AF_INET6)])
def test_fragments_do_not_pass_what_is_limited(world, which, family):
    big = b"x" * 6000
    with Service(world.outside, 5004, "udp", family) as service:
        assert reach(world.closed, OUTSIDE[which], 5004, "udp", sent=big) == "prohibited"
        assert reach(world.some, OUTSIDE[which], 5004, "udp", sent=big) == ("open", "prohibited")[which]
        if which == 0:  # ports in a first fragment that is as small as can be; the rest of it never comes
            closed = lease(FRIENDS, 21)
            first = ip4(closed.addresses[0], OUTSIDE[0], udp(5004, 5004, b""))
            send(world.closed, ether(GATEWAY_MAC, closed.mac, IP, first[:6] + b"\x20\0" + first[8:]))
            later = ip4(closed.addresses[0], OUTSIDE[0], MARK)
            frame = ether(GATEWAY_MAC, closed.mac, IP, later[:6] + b"\0\1" + later[8:])
            assert arrives(MARK, [(world.outside, "eth0")], lambda: send(world.closed, frame)) == []
        assert len(service.asked) == (1, 0)[which]


def test_a_link_local_address_leads_to_no_host(world):
    local = link_local(GATEWAY_MAC)
    with Service(world.host, 5005, "tcp", socket.AF_INET6) as service:
        assert reach(world.mallory, local, 5005) == "open"
        for place in (world.guest, world.closed):
            assert reach(place, local, 5005, seconds=0.4) == "silence"  # the kernel sends no answer from such an address
            assert reach(place, GATEWAY6, 5005) == "refused"
        assert service.asked == [link_local(MALLORY.mac)]


@pytest.mark.parametrize(("place", "hears"), [("mallory", True), ("guest", False), ("closed", False)])
def test_what_is_sent_to_many_is_not_for_the_host(world, place, hears):
    """A service of the host that listens to a group, as one for names on the local link does; and to the subnet's own address."""
    from_ = getattr(world, place)
    with world.host.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening, from_.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        listening.bind(("0.0.0.0", 5353))
        listening.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("224.0.0.251") + socket.inet_aton(GATEWAY4))
        listening.settimeout(10 if hears else 0.3)
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        for to in ("224.0.0.251", "10.113.2.255", "255.255.255.255"):
            sending.sendto(MARK, (to, 5353))
            if hears:
                assert listening.recv(2048) == MARK
            else:
                with pytest.raises(TimeoutError):
                    listening.recv(2048)
    anycast = "fd13:2::"  # the address that all routers of a subnet have
    reach(from_, GATEWAY6, 53, "udp")  # so that it knows its gateway
    with Service(world.host, 5006, "udp", socket.AF_INET6) as service:
        with from_.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sending:
            for to in (anycast, "2001:db8:9::"):
                sending.sendto(MARK, (to, 5006))
        reach(world.host, GATEWAY6, 5006, "udp")
        assert (len(service.asked) > 1) == hears


@pytest.mark.parametrize("to", [GATEWAY6, link_local(GATEWAY_MAC)])
def test_a_limited_one_may_ask_where_its_gateway_is(world, to):
    """By a message to the gateway alone, as the kernel does when it has known it for a while; and it may answer."""
    own = lease(FRIENDS, 21)
    asked = ether(GATEWAY_MAC, own.mac, IP6, frames.icmp6(own.addresses[1], to, neighbour(135, to)))
    answer = socket.inet_pton(socket.AF_INET6, to) + socket.inet_pton(socket.AF_INET6, own.addresses[1]) + b"\x88\0"
    assert arrives(answer, [(world.closed, "eth0")], lambda: send(world.closed, asked), wanted=1) == ["eth0"]
    world.host.run("ip", "neighbour", "flush", "dev", FRIENDS.bridge)
    with Service(world.closed, 5007, "tcp", socket.AF_INET6):
        assert reach(world.host, own.addresses[1], 5007) == "open"


@pytest.mark.parametrize(("place", "hears"), [("mallory", True), ("guest", False), ("closed", False)])
def test_nor_for_others_where_the_host_forwards_it(world, place, hears):
    """A host that forwards what is sent to all of another subnet; one that forwards to groups is asked the same way."""
    world.host.sysctl(ipv4__conf__all__bc_forwarding=1, ipv4__conf__dl2__bc_forwarding=1)
    from_ = getattr(world, place)
    with world.outside.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening, from_.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        listening.bind(("0.0.0.0", 5354))
        listening.settimeout(10 if hears else 0.3)
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sending.sendto(MARK, ("192.0.2.255", 5354))
        if hears:
            assert listening.recv(2048) == MARK
        else:
            with pytest.raises(TimeoutError):
                listening.recv(2048)


def test_discovery_is_no_way_out(world):
    """Messages of neighbour discovery have no state, and have to pass to the gateway; not further."""
    closed = lease(FRIENDS, 21)
    packet = ip6(closed.addresses[1], OUTSIDE[1], neighbour(135, OUTSIDE[1]) + MARK, 58)
    frame = ether(GATEWAY_MAC, closed.mac, IP6, packet)
    assert arrives(MARK, [(world.outside, "eth0")], lambda: send(world.closed, frame)) == []
    honest = ip6(OWN6, OUTSIDE[1], DATA)
    assert arrives(MARK, [(world.outside, "eth0")], lambda: send(world.mallory, ether(GATEWAY_MAC, MALLORY.mac, IP6, honest)), wanted=1)


def test_the_table_says_when_it_was_changed(world):
    """Rules that somebody flushed are noticed, though elements can still be added."""

    def intact() -> bool:
        with world.host.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as asking:
            return table.is_intact(asking, NAME, world.networks)

    assert intact()
    for change in (
        ("flush", "table", "inet", NAME),
        ("flush", "table", "bridge", NAME),
        ("flush", "chain", "inet", NAME, "forward"),
        ("flush", "chain", "inet", NAME, "from-dl1"),
        ("add", "rule", "inet", NAME, "input", "accept"),
        ("delete", "table", "inet", NAME),
        ("flush", "ruleset"),
    ):
        world.host.run("nft", *change)
        assert not intact(), change
        world.write()
        assert intact(), change
    assert reach(world.host, HOST[0], 1) == "refused"
