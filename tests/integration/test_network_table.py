"""What the table lets through, with real traffic between a host of its own, its sandboxes and somebody outside."""

from __future__ import annotations

import os
import socket

import pytest
from support.nets import HOST, NAME, OUTSIDE, Service, World, lease, network, reach, user_namespace
from support.requires import requires

from dockless.sandbox.network import table
from dockless.sandbox.network.model import Egress, Port, Rule

pytestmark = requires("netns", "program:nsenter", "program:ip")

ALONE, FRIENDS, INNER = network("alone", 1, isolated=True), network("friends", 2), network("inner", 3, internal=True)
VERSIONS = ((0, socket.AF_INET), (1, socket.AF_INET6))


@pytest.fixture(scope="module", params=["0", "1"], ids=["plain", "bridge-nf-call"])
def world(request):
    calls = request.param == "1"
    if calls and not os.path.exists("/proc/sys/net/bridge"):
        pytest.skip("no br_netfilter")
    with user_namespace() as user:
        world = World([ALONE, FRIENDS, INNER], user, calls=calls)
        world.calls = calls
        world.one = world.start(FRIENDS, 10, ports=(Port(80, 8080), Port(9000, 8000, "udp", "", 10), Port(81, 8081, address="127.0.0.1")))
        world.two = world.start(
            FRIENDS, 11, ports=(*(Port(80, 8090, address=address) for address in HOST), Port(9000, 8100, "tcp", "", 10))
        )
        world.lone, world.loner = world.start(ALONE, 10, ports=(Port(80, 8070),)), world.start(ALONE, 11)
        world.inner, world.innermost = world.start(INNER, 10), world.start(INNER, 11)
        yield world
        world.close()


@pytest.mark.parametrize(("which", "family"), VERSIONS)
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_who_leaves_a_network_has_the_hosts_address(world, which, family, protocol):
    with Service(world.outside, 5000, protocol, family) as service:
        assert reach(world.one, OUTSIDE[which], 5000, protocol) == reach(world.lone, OUTSIDE[which], 5000, protocol) == "open"
        assert service.asked == [HOST[which]] * 2


@pytest.mark.parametrize(("which", "family"), VERSIONS)
def test_who_reaches_whom(world, which, family):
    one, two, lone, loner, inner, innermost = (lease(on, number).addresses[which] for on in (FRIENDS, ALONE, INNER) for number in (10, 11))
    with (
        Service(world.two, 5001, "tcp", family) as two_,
        Service(world.loner, 5001, "tcp", family) as loner_,
        Service(world.innermost, 5001, "tcp", family) as inner_,
    ):
        assert reach(world.one, two, 5001) == "open" and two_.asked == [one]
        assert reach(world.inner, innermost, 5001) == "open" and inner_.asked == [inner]
        if which == 1:
            assert reach(world.inner, table.link_local(lease(INNER, 11).mac), 5001) == "open"
        assert reach(world.lone, loner, 5001, seconds=0.5) != "open"  # their ports are isolated
        for place in (world.lone, world.inner):
            assert reach(place, two, 5001) == "refused"
        for place in (world.one, world.lone):
            assert reach(place, innermost, 5001) == "refused"
        assert reach(world.inner, OUTSIDE[which], 5001) == reach(world.inner, HOST[which], 8080) == "refused"
        assert reach(world.inner, OUTSIDE[which], 5001, "udp") == "prohibited"
        assert reach(world.host, two, 5001) == reach(world.host, innermost, 5001) == "open"
        assert two_.asked == [one, FRIENDS.gateways[which]] and not loner_.asked
        assert lone != loner


@pytest.mark.parametrize(("which", "family"), VERSIONS)
def test_from_outside_only_what_is_published(world, which, family):
    one, two = lease(FRIENDS, 10).addresses[which], lease(FRIENDS, 11).addresses[which]
    world.outside.run("ip", "route", "replace", FRIENDS.subnets[which], "via", HOST[which])
    with Service(world.one, 80, "tcp", family) as first, Service(world.two, 80, "tcp", family) as second:
        assert reach(world.outside, one, 80, seconds=0.4) == "silence"
        assert reach(world.outside, HOST[which], 8080) == "open" and first.asked == [OUTSIDE[which]]
        assert reach(world.outside, HOST[which], 8081) == "refused"
        assert reach(world.outside, HOST[which], 8090) == "open" and second.asked == [OUTSIDE[which]]
        assert reach(world.host, FRIENDS.gateways[which], 8090) == "refused"
        assert reach(world.outside, two, 80, seconds=0.4) == "silence"
    world.outside.run("ip", "route", "delete", FRIENDS.subnets[which])


@pytest.mark.parametrize(("which", "family"), VERSIONS)
def test_ranges_keep_their_offset(world, which, family):
    with Service(world.one, 9007, "udp", family) as udp, Service(world.two, 9009, "tcp", family) as tcp:
        assert reach(world.outside, HOST[which], 8007, "udp") == reach(world.outside, HOST[which], 8109) == "open"
        assert udp.asked == tcp.asked == [OUTSIDE[which]]
        assert reach(world.outside, HOST[which], 8110) == "refused"
        assert reach(world.outside, HOST[which], 8006, "udp") == "refused"


@pytest.mark.parametrize(("which", "family"), VERSIONS)
def test_the_host_reaches_its_own_ports(world, which, family):
    with Service(world.one, 80, "tcp", family) as service, Service(world.one, 9000, "udp", family):
        assert reach(world.host, HOST[which], 8080) == reach(world.host, FRIENDS.gateways[which], 8080) == "open"
        assert service.asked == [HOST[which], FRIENDS.gateways[which]]
        if which == 0:
            assert reach(world.host, "127.0.0.1", 8080) == reach(world.host, "127.0.0.1", 8000, "udp") == "open"
            assert service.asked[2:] == [FRIENDS.gateways[0]]
        else:
            assert reach(world.host, "::1", 8080) == "refused"  # so that a program goes on to 127.0.0.1
    with Service(world.one, 81, "tcp", family):
        assert reach(world.host, "127.0.0.1", 8081) == ("open" if which == 0 else "refused")


@pytest.mark.parametrize(("which", "family"), VERSIONS)
def test_a_port_of_the_host_from_inside(world, which, family):
    with Service(world.one, 80, "tcp", family) as service:
        assert reach(world.two, HOST[which], 8080) == reach(world.two, FRIENDS.gateways[which], 8080) == "open"
        assert service.asked == [FRIENDS.gateways[which]] * 2
        own = reach(world.one, HOST[which], 8080, seconds=1)  # a bridge that calls sends nothing back to where it came from
        assert own == ("silence" if world.calls else "open")
        assert reach(world.lone, HOST[which], 8080) == "prohibited"
    with Service(world.lone, 80, "tcp", family) as service:
        assert reach(world.outside, HOST[which], 8070) == "open"
        assert reach(world.loner, HOST[which], 8070, seconds=1) == ("silence" if world.calls else "refused")
        assert reach(world.one, HOST[which], 8070) == "prohibited"
        assert service.asked == [OUTSIDE[which]]


@pytest.mark.parametrize(("which", "family"), VERSIONS)
def test_the_gateways_of_others_are_not_reached(world, which, family):
    with Service(world.host, 53, "tcp", family), Service(world.host, 5002, "tcp", family):
        for port in (53, 5002):
            assert reach(world.one, FRIENDS.gateways[which], port) == reach(world.inner, INNER.gateways[which], port) == "open"
            assert reach(world.one, ALONE.gateways[which], port) == reach(world.lone, FRIENDS.gateways[which], port) == "refused"
            assert reach(world.inner, FRIENDS.gateways[which], port) == "refused"
        assert reach(world.one, HOST[which], 5002) == "open"


@pytest.mark.parametrize(("from_", "to", "on"), [("one", "two", FRIENDS), ("inner", "innermost", INNER)])
def test_neighbours_hear_what_is_sent_to_all(world, from_, to, on):
    speaker, hearer = getattr(world, from_), getattr(world, to)
    with hearer.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening, speaker.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        listening.bind(("0.0.0.0", 5353))
        own = socket.inet_aton(lease(on, 11).addresses[0])
        listening.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("224.0.0.251") + own)
        listening.settimeout(10)
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        for address in ("224.0.0.251", on.gateways[0][:-1] + "255", "255.255.255.255"):
            sending.sendto(address.encode(), (address, 5353))
            assert listening.recv(100) == address.encode()


def test_no_table_is_left(world):
    before = world.host.run("nft", "list", "tables")
    world.host.transact(table.requests_to_delete("dockless-0badcafe"))
    assert world.host.run("nft", "list", "tables") == before == f"table bridge {NAME}\ntable inet {NAME}\n"


# ---- egress ---------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limited():
    """Sandboxes whose egress is limited, each in its own way."""
    with user_namespace() as user:
        world = World([FRIENDS, ALONE], user)
        some = (Rule("192.0.2.0/24", ((443, 443), (5000, 5010)), "tcp"), Rule("2001:db8:9::/64", ((443, 443), (5000, 5010)), "tcp"))
        for_udp = (Rule("192.0.2.9", ((53, 53),)), Rule("2001:db8:9::9", ((53, 53),)))
        world.free = world.start(FRIENDS, 10, ports=(Port(80, 8080), Port(53, 53), Port(53, 53, "udp")))
        world.none = world.start(FRIENDS, 11, egress=Egress(allow=()))
        world.some = world.start(FRIENDS, 12, egress=Egress(allow=some + for_udp, log=True))
        world.guest = world.start(FRIENDS, 13, egress=Egress(host=False))
        world.named = world.start(ALONE, 14, egress=Egress(allow=(Rule("x.test", ((443, 443),)), Rule("y.test")), host=False))
        world.host.run("ip", "address", "add", "169.254.169.254/32", "dev", "wan")
        world.outside.run("ip", "address", "add", "fd00:ec2::254/128", "dev", "eth0")
        world.host.run("ip", "route", "add", "fd00:ec2::254", "via", OUTSIDE[1])
        yield world
        world.close()


@pytest.mark.parametrize(("which", "family"), VERSIONS)
def test_nothing_is_allowed(limited, which, family):
    world = limited
    with Service(world.outside, 5000, "tcp", family), Service(world.free, 5000, "tcp", family), Service(world.host, 53, "udp", family):
        assert reach(world.none, OUTSIDE[which], 5000) == reach(world.none, HOST[which], 5000) == "refused"
        assert reach(world.none, OUTSIDE[which], 5000, "udp") == "prohibited"
        assert reach(world.none, lease(FRIENDS, 10).addresses[which], 5000) == "open"  # on its own network
        assert reach(world.none, FRIENDS.gateways[which], 53, "udp") == "open"
        assert reach(world.none, HOST[which], 53, "udp") == "prohibited"
        assert reach(world.free, OUTSIDE[which], 5000) == "open"


@pytest.mark.parametrize(("which", "family"), VERSIONS)
def test_networks_and_ports_are_allowed(limited, which, family):
    world = limited
    with (
        Service(world.outside, 5010, "tcp", family),
        Service(world.outside, 53, "udp", family),
        Service(world.outside, 5011, "tcp", family),
    ):
        assert reach(world.some, OUTSIDE[which], 5010) == reach(world.some, OUTSIDE[which], 53, "udp") == "open"
        assert reach(world.some, OUTSIDE[which], 5011) == "refused"
        assert reach(world.some, OUTSIDE[which], 5010, "udp") == "prohibited"
    listed = world.host.run("nft", "list", "chain", "inet", NAME, "refused-dlv2x12")
    assert 'limit rate 10/second burst 20 packets log prefix "dockless dlv2x12 refused: "' in listed


@pytest.mark.parametrize(("which", "family"), VERSIONS)
def test_the_host_and_the_metadata_are_not_reached(limited, which, family):
    world = limited
    metadata = ("169.254.169.254", "fd00:ec2::254")[which]
    with (
        Service(world.outside, 80, "tcp", family),
        Service(world.host, 80, "tcp", family),
        Service(world.host, 53, "tcp", family),
        Service(world.host, 53, "udp", family),
        Service(world.free, 80, "tcp", family),
    ):
        assert reach(world.free, HOST[which], 80) == reach(world.free, metadata, 80) == "open"
        assert reach(world.guest, OUTSIDE[which], 80) == "open"
        for address in (HOST[which], FRIENDS.gateways[which], metadata, ALONE.gateways[which]):
            assert reach(world.guest, address, 80) == "refused"
        assert reach(world.guest, HOST[which], 8080) == "refused"  # another's port, which the host has published
        assert reach(world.guest, lease(FRIENDS, 10).addresses[which], 80) == "open"
        assert reach(world.guest, FRIENDS.gateways[which], 53) == reach(world.guest, FRIENDS.gateways[which], 53, "udp") == "open"
        assert reach(world.guest, HOST[which], 53) == "refused"


@pytest.mark.parametrize(("which", "family"), VERSIONS)
def test_a_name_is_allowed_until_its_time_is_over(limited, which, family):
    world, (x, y) = limited, limited.leases[-1].egress.allow
    one = world.leases[-1]
    with Service(world.outside, 443, "tcp", family), Service(world.outside, 444, "tcp", family), Service(world.outside, 444, "udp", family):
        assert reach(world.named, OUTSIDE[which], 443) == "refused"
        world.host.transact(table.allow_address(NAME, one, x, OUTSIDE[which], 600))
        world.host.transact(table.allow_address(NAME, one, x, OUTSIDE[which], 1))
        assert reach(world.named, OUTSIDE[which], 443) == "open"
        assert reach(world.named, OUTSIDE[which], 444) == "refused"
        while reach(world.named, OUTSIDE[which], 443) == "open":
            pass
        world.host.transact(table.allow_address(NAME, one, y, OUTSIDE[which], 600))
        assert reach(world.named, OUTSIDE[which], 444) == reach(world.named, OUTSIDE[which], 444, "udp") == "open"
        world.host.transact(table.allow_address(NAME, one, y, HOST[which], 600))  # a name that leads to the host
        assert reach(world.named, HOST[which], 443) == "refused"
        world.host.transact(table.allow_address(NAME, one, y, OUTSIDE[which], 1))
        while reach(world.named, OUTSIDE[which], 444) == "open":
            pass
