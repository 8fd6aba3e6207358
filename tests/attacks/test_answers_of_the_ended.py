"""An address that another sandbox had: what it began is not the next one's. Real traffic, UDP and TCP, of both kinds of addresses."""

from __future__ import annotations

import os
import socket
import struct
import subprocess

import pytest
from support.boxes import until
from support.nets import HOST, OUTSIDE, World, family_of, network, user_namespace
from support.networks import own_network
from support.requires import requires

import dockless
from dockless import networks
from dockless.sandbox.network import conntrack, leases, rtnetlink, table
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.model import Egress, Lease
from dockless.sandbox.run.reconcile import reconcile

pytestmark = requires("netns", "program:nsenter", "program:ip", "program:nft")

MINE = network("mine", 1)
CLOSED = Egress(allow=())
PORT, SERVED = 5555, 7000
BOTH = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture
def world():
    with user_namespace() as user:
        made = World([MINE], user)
        yield made
        made.close()


def end(world, place):
    """What is left when a sandbox has ended: its link and its elements are gone."""
    (lease,) = world.leases
    world.host.do(rtnetlink.delete_link(lease.link))
    world.host.transact(table.requests_to_remove("dockless", MINE, lease))
    world.leases.clear()
    world.places.pop(lease.link)
    place.close()
    return lease


def asks(place, version, kind=socket.SOCK_DGRAM):
    made = place.socket(socket.AF_INET if version == 4 else socket.AF_INET6, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("", PORT))
    made.settimeout(2)
    return made


def outside_of(world, version, kind=socket.SOCK_DGRAM):
    made = world.outside.socket(family_of(OUTSIDE[version == 6]), kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((OUTSIDE[version == 6], SERVED))
    made.settimeout(2)
    return made


def arrives(receiver):
    try:
        return receiver.recv(99)
    except TimeoutError:
        return b""


def tries(sender, said, to):
    """Send it, whatever the table says of it."""
    try:
        sender.sendto(said, to)
    except OSError:
        pass


@BOTH
@pytest.mark.parametrize("forgotten", [True, False])
def test_a_udp_flow_ends_with_its_sandbox(world, version, forgotten):
    """And without what forgets it, it does not: the attack is one."""
    served = outside_of(world, version)
    to = served.getsockname()
    first = world.start(MINE, 10)
    with asks(first, version) as asking:
        asking.sendto(b"question", to)
        said, back = served.recvfrom(99)
        served.sendto(b"answer", back)
        assert (said, asking.recv(99)) == (b"question", b"answer")
    gone = end(world, first)
    if forgotten:
        conntrack.forget(Host(world.host.namespace.fd, world.user), gone.addresses)
    with asks(world.start(MINE, 10, egress=CLOSED), version) as next_one, served:
        times = 1 if forgotten else 5
        assert arrives_of(served, b"secret", back, next_one, times) == (b"" if forgotten else b"secret")
        assert arrives_of(next_one, b"past its rules", to, served, times) == (b"" if forgotten else b"past its rules")


def arrives_of(sender, said, to, receiver, times):
    """What arrives of what is sent so often: a first packet may be lost while its address is looked for."""
    for _ in range(times):
        tries(sender, said, to)
        if got := arrives(receiver):
            return got
    return b""


def segment(version, source, to, numbers):
    """A TCP segment with data that goes on with a connection, from PORT. ``numbers``: its next bytes, as who had it knows them."""
    data = b"past its rules"
    head = struct.pack("!HHIIBBHHH", PORT, to[1], *numbers, 0x50, 0x18, 1000, 0, 0)
    family = family_of(source)
    about = socket.inet_pton(family, source) + socket.inet_pton(family, to[0])
    about += struct.pack("!BBH", 0, 6, 34) if version == 4 else struct.pack("!IHBB", 34, 0, 0, 6)
    total = sum(struct.unpack(f"!{len(about + head + data) // 2}H", about + head + data))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return head[:16] + struct.pack("!H", ~total & 0xFFFF) + head[18:] + data


@BOTH
@pytest.mark.parametrize("forgotten", [True, False])
def test_a_tcp_connection_ends_with_its_sandbox(world, version, forgotten):
    listening = outside_of(world, version, socket.SOCK_STREAM)
    listening.listen()
    to = listening.getsockname()
    first = world.start(MINE, 10)
    with asks(first, version, socket.SOCK_STREAM) as asking, first.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as watching:
        asking.connect(to)
        served, _ = listening.accept()
        served.settimeout(2)
        asking.send(b"question")
        assert served.recv(99) == b"question"
        while b"question" not in (frame := watching.recv(2048)):
            pass
        sent, received = struct.unpack_from("!II", frame, (34 if version == 4 else 54) + 4)
        gone = end(world, first)  # its link first: nothing says that the connection ends
    if forgotten:
        conntrack.forget(Host(world.host.namespace.fd, world.user), gone.addresses)
    place = world.start(MINE, 10, egress=CLOSED)
    # The next one's kernel knows no such connection, and would end it.
    rule = "add rule inet own out tcp flags & rst == rst drop"
    place.run("nft", f"add table inet own; add chain inet own out {{ type filter hook output priority 0; }}; {rule}")
    with place.socket(family_of(to[0]), socket.SOCK_RAW, socket.IPPROTO_TCP) as raw, served, listening:
        raw.settimeout(2)
        tries(raw, segment(version, gone.addresses[version == 6], to, (sent + 8 & 0xFFFFFFFF, received)), (to[0], 0))
        assert arrives(served) == (b"" if forgotten else b"past its rules")
        served.send(b"secret")
        assert any(b"secret" in said for said in iter(lambda: arrives(raw), b"")) is not forgotten


@BOTH
def test_who_was_reached_is_forgotten_and_others_are_not(world, version, monkeypatch):
    """Of a published port the address is not where the connection began. Also by a kernel that cannot forget all of an address at once."""
    host = Host(world.host.namespace.fd, world.user)
    for number, at_once in ((10, True), (20, False)):
        if not at_once:
            monkeypatch.setattr(conntrack, "_forget_at_once", lambda *_: False)
        pairs = [(world.start(MINE, number), number), (world.start(MINE, number + 1), number + 1)]
        for place, _ in pairs:
            with asks(place, version) as asking, world.host.socket(asking.family, socket.SOCK_DGRAM) as calling:
                address = world.leases[-1 if place is pairs[1][0] else -2].addresses[version == 6]
                tries(calling, b"question", (address, PORT))
                said, back = asking.recvfrom(99)
                asking.sendto(b"answer", back)
                assert said == b"question"
                tries(asking, b"x", (OUTSIDE[version == 6], 9))
        gone, stays = world.leases[-2:]
        conntrack.forget(host, gone.addresses)
        assert known(host, gone, version) == 0 and known(host, stays, version) >= 2


def known(host, lease, version):
    with host.nftables() as asking:
        address = socket.inet_pton(family_of(lease.addresses[version == 6]), lease.addresses[version == 6])
        return len(conntrack._connections(asking, version, [address]))


SEND = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('198.51.100.9', 7000)); print(1)"


def lead_out() -> None:
    """A way into the world from here, where nobody answers."""
    subprocess.run("ip link add wan type veth peer name far; ip link set wan up; ip link set far up", shell=True, check=True)
    subprocess.run(f"ip address add {HOST[0]}/24 dev wan; ip route add 198.51.100.0/24 via {OUTSIDE[0]}", shell=True, check=True)
    subprocess.run(f"ip neighbour add {OUTSIDE[0]} lladdr 02:00:00:00:00:09 dev wan", shell=True, check=True)


@requires("root")
def test_who_is_given_an_address_in_turn_has_nothing_of_an_earlier_turn(home):
    """And who has it still keeps what it began."""
    with own_network():
        lead_out()
        networks.create("mine", subnets=["10.20.0.0/29"])

        def started(network: str) -> tuple[dockless.Sandbox, Lease]:
            box = dockless.start(["sleep", "1000"], network=network)
            (lease,) = leases.of(box.inner.directory)
            assert known(Host(), lease, 4) == 0
            box.exec("python3", "-c", SEND)
            assert known(Host(), lease, 4) == 1
            return box, lease

        stays, kept = started("mine")
        given = []
        for _ in range(7):
            box, lease = started("mine")
            given.append(lease.addresses[0])
            box.inner.remove()
        assert given[:4] == given[4:] + given[3:4] == [f"10.20.0.{number}" for number in (3, 4, 5, 6)]
        assert known(Host(), kept, 4) == 1
        for network in ("mine:ip=10.20.0.5", "mine:ip=10.20.0.6"):  # given before in this turn, or to be given yet
            box, _ = started(network)
            box.inner.remove()
        stays.inner.remove()
        assert known(Host(), kept, 4) == 1  # as long as nobody else can have it
        networks.remove("mine")
        networks.create("mine", subnets=["10.20.0.0/29"])
        box, lease = started("mine")
        assert lease.addresses[0] == kept.addresses[0]
        box.inner.remove()


@requires("root")
@pytest.mark.parametrize(
    "how", ["removed", "taken over", "swept", "the table was flushed", "nobody knows of it", "its network was removed"]
)
def test_whatever_way_an_address_comes_to_the_next_one(home, how):
    with own_network():
        lead_out()
        networks.create("mine", subnets=["10.20.0.0/24"])
        box = dockless.start(["sleep", "1000"], network="mine:ip=10.20.0.77")
        box.exec("python3", "-c", SEND)
        (lease,) = leases.read("mine")
        assert known(Host(), lease, 4) == 1
        if how == "removed":
            box.inner.remove()
        else:
            os.kill(box.inner.pid, 9)
            until(lambda: not leases.alive(lease), "its link is gone")
        if how == "swept":
            reconcile()
        if how == "nobody knows of it":
            os.unlink(leases.place("mine") / "10.20.0.77")
        if how in ("the table was flushed", "nobody knows of it"):
            subprocess.run(["nft", "flush", "ruleset"], check=True)
        if how == "its network was removed":
            networks.remove("mine")
            networks.create("mine", subnets=["10.20.0.0/24"])
            dockless.run(["true"], network="mine:ip=10.20.0.5", check=True)  # its table is whole again, and knows nobody of before
        after = dockless.start(["sleep", "1000"], network="mine:ip=10.20.0.77", allow_out=[])
        try:
            assert known(Host(), lease, 4) == 0
        finally:
            after.inner.remove()
            if how != "removed":
                box.inner.remove()


@requires("root", "ipv6")
def test_a_second_address_that_comes_to_one_with_another_first_address(home):
    with own_network():
        subprocess.run("ip link add wan type veth peer name far; ip link set wan up; ip link set far up", shell=True, check=True)
        subprocess.run(f"ip address add {HOST[1]}/64 dev wan nodad; ip route add 2001:db8:77::/64 via {OUTSIDE[1]}", shell=True, check=True)
        subprocess.run(f"ip neighbour add {OUTSIDE[1]} lladdr 02:00:00:00:00:09 dev wan", shell=True, check=True)
        networks.create("mine", subnets=["10.20.0.0/24", "fd00:20::/64"])
        send = "import socket; s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.sendto(b'x', ('2001:db8:77::9', 7000))"
        box = dockless.start(["sleep", "1000"], network="mine:ip=10.20.0.77,ip6=fd00:20::77")
        box.exec("python3", "-c", send, check=True)
        (lease,) = leases.read("mine")
        assert known(Host(), lease, 6) == 1
        os.kill(box.inner.pid, 9)
        until(lambda: not leases.alive(lease), "its link is gone")
        after = dockless.start(["sleep", "1000"], network="mine:ip=10.20.0.78,ip6=fd00:20::77", allow_out=[])
        try:
            assert known(Host(), lease, 6) == 0
        finally:
            after.inner.remove()
            box.inner.remove()


class _Killed(BaseException):
    pass


@requires("root")
def test_a_lease_is_there_until_its_connections_are_forgotten(home, monkeypatch):
    """Else whoever is killed between the two leaves them to the next one."""

    def killed(*_):
        raise _Killed

    with own_network():
        lead_out()
        networks.create("mine", subnets=["10.20.0.0/24"])
        box = dockless.start(["sleep", "1000"], network="mine:ip=10.20.0.77")
        box.exec("python3", "-c", SEND)
        (lease,) = leases.read("mine")
        os.kill(box.inner.pid, 9)
        until(lambda: not leases.alive(lease), "its link is gone")
        with monkeypatch.context() as patch, pytest.raises(_Killed):
            patch.setattr(conntrack, "forget", killed)
            reconcile()
        after = dockless.start(["sleep", "1000"], network="mine:ip=10.20.0.77")
        assert known(Host(), lease, 4) == 0
        after.inner.remove()
        box.inner.remove()
