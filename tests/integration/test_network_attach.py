"""Sandboxes on networks of their own, as root: addresses, links, ports, who reaches whom. In a network namespace of the test's own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from support.boxes import until
from support.networks import links, own_network, starting
from support.requires import requires

import dockless
from dockless import networks
from dockless.cli import main
from dockless.errors import AddressTaken, BadInput, NetworkError, NetworkInUse, SandboxGone, UnknownNetwork, Unwritable
from dockless.sandbox.network import attach, leases, records, resolver
from dockless.sandbox.network.host import Host
from dockless.sandbox.run.box import Box
from dockless.sandbox.run.documents import Document
from dockless.sandbox.run.joining import namespaces_of
from dockless.sandbox.run.reconcile import reconcile

pytestmark = requires("root", "netns")

SERVE = """import socket, sys
s = socket.create_server(('', int(sys.argv[1])))
while True:
    c = s.accept()[0]
    c.sendall(c.getpeername()[0].encode())
    c.close()
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
CALL = "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 2); print(s.recv(100).decode())"


@pytest.fixture(autouse=True)
def here(home):
    with own_network() as made:
        yield made


@pytest.fixture
def start():
    with starting() as start:
        yield start


def address(box, version=4):
    (lease,) = leases.of(box.inner.directory)
    return next(text for text in lease.addresses if (":" in text) == (version == 6))


def test_the_default_network_is_made_at_its_first_use(start):
    assert not records.every()
    box = start("sleep", "1000", network="bridge")
    said = box.exec("ip", "-o", "address").stdout.decode()
    assert address(box) in said and address(box, 6) in said and "eth0" in said
    (network,) = records.every()
    assert network.name == "bridge" and network.isolated and network.bridge in links()


def test_two_on_a_network_reach_each_other_and_two_on_the_default_one_do_not(start):
    networks.create("mine")
    for network, reached in (("mine", True), ("bridge", False)):
        server = start("python3", "-c", SERVE, "80", network=network)
        until(lambda box=server: b"0050" in box.exec("cat", "/proc/net/tcp").stdout, "it listens")
        client = start("sleep", "1000", network=network)
        called = client.exec("python3", "-c", CALL, address(server), "80")
        assert (called.exit_code == 0) is reached
        if reached:
            assert called.stdout.decode().strip() == address(client)


def test_addresses_are_given_in_turn_and_free_at_the_end(start):
    networks.create("mine", subnets=["10.20.0.0/29"])
    boxes = [start("sleep", "1000", network="mine") for _ in range(5)]
    assert [address(box) for box in boxes] == [f"10.20.0.{number}" for number in range(2, 7)]
    with pytest.raises(AddressTaken, match="no free address"):
        start("sleep", "1000", network="mine")
    boxes[1].kill()
    until(lambda: len(leases.living(Host(), "mine")) == 4, "its link is gone")
    assert address(start("sleep", "1000", network="mine")) == "10.20.0.3"


def test_what_waited_in_a_pool_has_no_address_at_its_end():
    networks.create("mine", subnets=["10.20.0.0/24"])
    with dockless.Pool("host", size=1, network="mine") as pool:
        pool.run(["true"], check=True)
        assert leases.read("mine")
    assert not leases.read("mine") and "10.20.0.2" not in table()


def test_an_address_that_is_asked_for(start):
    networks.create("mine", subnets=["10.20.0.0/24", "fd00:20::/64"])
    box = start("sleep", "1000", network="mine:ip=10.20.0.77,ip6=fd00:20::77,mac=02:00:00:00:00:77")
    assert (address(box), address(box, 6)) == ("10.20.0.77", "fd00:20::77")
    assert "02:00:00:00:00:77" in box.exec("cat", "/sys/class/net/eth0/address").stdout.decode()
    for asked, error, words in (
        ("mine:ip=10.20.0.77", AddressTaken, "is taken"), ("mine:ip6=fd00:20::77", AddressTaken, "is taken"),
        ("mine:ip=10.20.0.1", BadInput, "no sandbox can have"), ("mine:ip=10.21.0.5", BadInput, "no sandbox can have"),
        ("other", UnknownNetwork, "no network other"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            start("sleep", "1000", network=asked)
    assert len(leases.living(Host(), "mine")) == 1


def test_a_port_has_one_owner_who_loses_it_at_his_end(start):
    box = start("sleep", "1000", network="bridge", publish=["8080:80"])
    with pytest.raises(AddressTaken, match="port 8080/tcp of the host is in use"):
        start("sleep", "1000", network="bridge", publish=["8080:80"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 9090))
        with pytest.raises(AddressTaken, match="9090"):
            start("sleep", "1000", network="bridge", publish=["9090:80"])
    start("sleep", "1000", network="bridge", publish=["8080:80/udp"])
    os.kill(box.inner.pid, 9)
    until(lambda: not box.inner.alive, "its keeper is gone")
    start("sleep", "1000", network="bridge", publish=["8080:80"])


def test_a_keeper_that_is_killed_leaves_nothing_that_holds(start):
    networks.create("mine", subnets=["10.20.0.0/30"])
    box = start("sleep", "1000", network="mine")
    os.kill(box.inner.pid, 9)
    until(lambda: not leases.living(Host(), "mine"), "its link is gone")
    assert [lease.addresses[0] for lease in leases.read("mine")] == ["10.20.0.2"]
    assert "mine/10.20.0.2" in reconcile()
    assert not leases.read("mine") and not any(name.startswith("dv") for name in links())


def test_who_is_on_a_network_keeps_it_and_nothing_is_left_when_it_goes(start):
    before = links()
    networks.create("mine")
    box = start("sleep", "1000", network=["mine", "bridge"])
    with pytest.raises(NetworkInUse, match="1 sandbox is on network mine"):
        networks.remove("mine")
    box.kill()
    until(lambda: not leases.living(Host(), "mine"), "its links are gone")
    for name in ("mine", "bridge"):
        networks.remove(name)
    assert links() == before and not records.every()


def test_who_lets_go_of_an_address_late_takes_it_from_nobody(start):
    networks.create("mine", subnets=["10.20.0.0/24"])
    before = start("sleep", "1000", network="mine:ip=10.20.0.7")
    (gone,) = leases.of(before.inner.directory)
    os.kill(before.inner.pid, 9)
    until(lambda: not leases.alive(gone), "its link is gone")
    box = start("sleep", "1000", network="mine:ip=10.20.0.7")
    attach.release([gone])
    (lease,) = leases.living(Host(), "mine")
    assert lease.link != gone.link and leases.of(box.inner.directory) == [lease] and lease.link in table()


def test_a_port_whose_first_owners_link_is_still_there_leads_to_the_next_one(start):
    networks.create("mine", subnets=["10.20.0.0/24"])
    before = start("sleep", "1000", network="mine", publish=["8080:80"])
    (gone,) = leases.of(before.inner.directory)
    kept = os.open(f"/proc/{before.inner.init_pid}/ns/net", os.O_RDONLY)  # as long as the kernel takes it apart
    try:
        os.kill(before.inner.pid, 9)
        until(lambda: not before.inner.alive, "its keeper is gone")
        subprocess.run(["nft", "flush", "ruleset"], check=True)
        box = start("sleep", "1000", network="mine", publish=["8080:80"])
        assert leases.alive(gone)
        assert f"tcp . 8080 : {address(box)} . 80" in table() and f"{address(before)} . 80" not in table()
    finally:
        os.close(kept)


def test_a_lease_that_is_swept_just_when_it_is_taken_is_not_taken(start, monkeypatch):
    networks.create("mine", subnets=["10.20.0.0/29"])
    place, lock = leases.place("mine"), fcntl.flock

    def swept(fd: int, how: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place / "10.20.0.2")
        lock(fd, how)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", swept)
        box = start("sleep", "1000", network="mine")
    (lease,) = leases.of(box.inner.directory)
    assert lease.addresses == ("10.20.0.3",) and leases.living(Host(), "mine") == [lease]


def table() -> str:
    return subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout


def test_a_start_that_fails_on_its_second_network_has_no_address_on_the_first(start):
    for name, subnet in (("first", "10.20.0.0/24"), ("second", "10.30.0.0/24")):
        networks.create(name, subnets=[subnet])
    box = start("sleep", "1000", network="second:ip=10.30.0.9")
    with pytest.raises(AddressTaken):
        start("sleep", "1000", network=["first", "second:ip=10.30.0.9"])
    assert not leases.read("first") and len(leases.read("second")) == 1
    (lease,) = leases.of(box.inner.directory)
    assert lease.link in table()


def test_a_start_that_fails_when_it_is_connected_is_in_no_table(start, monkeypatch):
    """Somebody else has the port at which its names would be asked for."""
    networks.create("mine", subnets=["10.20.0.0/24"])
    monkeypatch.setattr(resolver, "_PATIENCE", 0.1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("0.0.0.0", 53))
        with pytest.raises(NetworkError, match="cannot listen on port 53"):
            start("sleep", "1000", network="mine")
    assert not leases.read("mine")
    assert "10.20.0.1" in table() and "10.20.0.2" not in table()


@pytest.mark.parametrize("asked", ["mine:ip=10.20.0.7", "mine:mac=02:00:00:00:00:07"])
def test_who_asks_for_a_number_waits_for_those_who_are_given_one(asked):
    networks.create("mine", subnets=["10.20.0.0/24"])
    command = [sys.executable, "-m", "dockless", "run", "--rm", "--network", asked, "host", "--", "true"]
    dockless.run(["true"], network="mine", check=True)  # the table is there
    with records.lock(shared=True):
        dockless.run(["true"], network="mine", check=True)  # who is given the next one waits for nobody
        waiting = subprocess.Popen(command)
        until(lambda: waits_for_a_lock(waiting.pid) or waiting.poll() is not None, "it waits")
        assert waiting.poll() is None
    assert waiting.wait(60) == 0


def waits_for_a_lock(pid: int) -> bool:
    with open("/proc/locks") as locks:
        return any(line.split()[1] == "->" and str(pid) in line.split() for line in locks)


def test_a_network_that_is_removed_just_when_one_starts_on_it(start, monkeypatch):
    networks.create("mine")
    lock = records.lock

    def late(*, shared: bool) -> contextlib.AbstractContextManager[None]:
        monkeypatch.setattr(records, "lock", lock)
        networks.remove("mine")
        return lock(shared=shared)

    monkeypatch.setattr(records, "lock", late)
    with pytest.raises(UnknownNetwork):
        start("sleep", "1000", network="mine")
    assert not records.every() and not leases.read("mine") and "table" not in table()


def test_a_sandbox_joins_and_leaves_while_it_runs(start):
    networks.create("mine")
    box = start("sleep", "1000")
    networks.connect("mine", box)
    assert box.exec("cat", "/proc/net/route").stdout.count(b"eth0") == 2
    (lease,) = leases.of(box.inner.directory)
    assert lease.link in table()
    networks.disconnect("mine", box)
    assert b"eth0" not in box.exec("cat", "/proc/net/dev").stdout
    assert lease.link not in table() and not leases.read("mine")


def test_one_that_began_without_a_network_has_the_same_rules_before_and_after_its_next_start(start):
    gateway = networks.create("mine", subnets=["10.20.0.0/24"]).gateways[0]
    box = start("sleep", "1000")
    networks.connect("mine", box)
    with socket.create_server((gateway, 8097)):
        assert box.exec("python3", "-c", CONNECT, gateway, "8097").exit_code == 0
        box.restart(grace=0)
        assert box.exec("python3", "-c", CONNECT, gateway, "8097").exit_code == 0


def routes(box):
    return [line.split()[2] for line in box.exec("ip", "route").stdout.decode().splitlines() if line.startswith("default")]


def test_a_way_out_moves_to_another_network_when_its_own_is_left(start):
    gateways = {name: networks.create(name).gateways[0] for name in ("one", "two")}
    networks.create("inner", internal=True)
    box = start("sleep", "1000", network=["one", "inner", "two"])
    assert routes(box) == [gateways["one"]]
    networks.disconnect("one", box)
    assert routes(box) == [gateways["two"]] and b"default" in box.exec("ip", "-6", "route").stdout
    networks.disconnect("two", box)
    assert routes(box) == [] and b"default" not in box.exec("ip", "-6", "route").stdout
    networks.connect("one", box)
    assert routes(box) == [gateways["one"]]


def test_a_way_out_that_was_lost_is_made_by_the_next_network(start):
    gateways = {name: networks.create(name).gateways[0] for name in ("one", "two")}
    box = start("sleep", "1000", network="one", cap_add=["NET_ADMIN"])
    assert box.exec("ip", "route", "delete", "default").exit_code == 0
    networks.connect("two", box)
    assert routes(box) == [gateways["two"]]


def test_the_network_of_the_published_ports_is_not_left_while_it_runs(start):
    for name in ("one", "two"):
        networks.create(name)
    box = start("python3", "-c", SERVE, "80", network=["one", "two"], publish=["8095:80"])
    until(lambda: b"0050" in box.exec("cat", "/proc/net/tcp").stdout, "it listens")
    with pytest.raises(BadInput, match=f"the published ports of sandbox {box.id} lead to network one") as refused:
        networks.disconnect("one", box)
    assert refused.value.hint.startswith(f"dockless stop {box.id} first")
    assert [one["name"] for one in box.inspect()["networks"]] == ["one", "two"], "nothing has changed"
    networks.disconnect("two", box)
    with socket.create_connection(("127.0.0.1", 8095), 5) as opened:
        assert opened.recv(100)
    networks.connect("two", box)
    box.stop(grace=0)
    networks.disconnect("one", box)
    box.start()

    def has() -> list[tuple[str, bool]]:
        return [(lease.network, bool(lease.ports)) for lease in leases.of(box.inner.directory) if leases.alive(lease)]

    until(lambda: has() == [("two", True)], "the links of its run before are gone")


def test_who_joins_where_it_cannot_be_written_down_has_not_joined(start, monkeypatch):
    networks.create("mine")
    box = start("sleep", "1000")

    def full(box: Box, change: Callable[[Document], Document]) -> None:
        change(box.document)
        raise Unwritable("the disk is full", subject="/")

    with monkeypatch.context() as patched, pytest.raises(Unwritable):
        patched.setattr(Box, "change", full)
        networks.connect("mine", box)
    assert not leases.read("mine") and b"eth0" not in box.exec("cat", "/proc/net/dev").stdout
    networks.connect("mine", box)
    assert b"eth0" in box.exec("cat", "/proc/net/dev").stdout


def test_many_join_at_once(start):
    names = [f"net{number}" for number in range(6)]
    for name in names:
        networks.create(name)
    box = start("sleep", "1000")
    command = [sys.executable, "-P", "-m", "dockless", "network", "connect"]
    joining = [subprocess.Popen([*command, name, box.id], stderr=subprocess.PIPE) for name in names]
    said = [(one.communicate(timeout=60)[1], one.returncode) for one in joining]
    assert all(code == 0 for _, code in said), said
    assert sorted(one["name"] for one in box.inspect()["networks"]) == names
    assert sorted(lease.inside for lease in leases.of(box.inner.directory)) == [f"eth{number}" for number in range(6)]


def test_a_bridge_that_somebody_removed_is_made_again(start):
    networks.create("mine")
    server = start("python3", "-c", SERVE, "80", network="mine")
    until(lambda: b"0050" in server.exec("cat", "/proc/net/tcp").stdout, "it listens")
    subprocess.run(["ip", "link", "delete", records.find("mine").bridge], check=True)
    client = start("sleep", "1000", network="mine")
    assert client.exec("python3", "-c", CALL, address(server), "80").exit_code == 0


def test_another_sandboxs_network(start):
    first = start("sleep", "1000", id="first", network="bridge")
    second = start("sleep", "1000", network="container:first")
    inside = [box.exec("readlink", "/proc/self/ns/net").stdout for box in (first, second)]
    third = start("sleep", "60", network=f"container:{second.id}")
    servers = [box.exec("cat", "/etc/resolv.conf").stdout for box in (first, second, third)]
    assert inside[0] == inside[1] and servers[0] == servers[1] == servers[2] and third.spec.network == f"container:{second.id}"
    first.kill()
    until(lambda: not first.inner.alive, "it has ended")
    with pytest.raises(dockless.SandboxGone, match="does not run"):
        start("sleep", "1000", network="container:first")
    with pytest.raises(dockless.SandboxGone, match="no sandbox nobody"):
        start("sleep", "1000", network="container:nobody")


def test_the_network_of_one_that_has_ended_is_not_that_of_whoever_has_its_number(start, monkeypatch):
    first = start("sleep", "1000", id="first", network="bridge")
    first.kill()
    until(lambda: not first.inner.alive, "it has ended")
    monkeypatch.setattr(Box, "init_pid", property(lambda box: os.getpid()))
    with pytest.raises(SandboxGone, match="does not run"), contextlib.ExitStack() as opened:
        namespaces_of(first.inner, opened)


def test_who_has_the_network_of_one_in_the_foreground_asks_its_server_for_names(start):
    (gateway, *_) = networks.create("mine").gateways
    with dockless.Sandbox(["sleep", "1000"], id="front", network="mine"):
        second = start("sleep", "1000", network="container:front")
        assert f"nameserver {gateway}" in second.exec("cat", "/etc/resolv.conf").stdout.decode()


def test_a_neighbours_name_is_asked_for_in_its_own_network_first(start):
    networks.create("mine")
    first = start("sleep", "1000", id="first", network="mine")
    others = [start("sleep", "1000", network=network) for network in ("mine", "container:first")]
    for box in others:
        assert b"search mine" in box.exec("cat", "/etc/resolv.conf").stdout
        assert address(first) in box.exec("getent", "ahostsv4", "first").stdout.decode()


def test_a_network_that_leads_out_needs_a_host_that_sends_on(start, home):
    with open("/proc/sys/net/ipv4/ip_forward", "w") as setting:
        setting.write("0")
    with pytest.raises(NetworkError, match="ip_forward is 0") as refused:
        start("sleep", "1000", network="bridge")
    assert "sysctl -w net.ipv4.ip_forward=1" in refused.value.hint
    networks.create("inner", internal=True)
    assert b"default" not in start("sleep", "1000", network="inner").exec("ip", "route").stdout
    (home / "dockless.toml").write_text('[networks]\nforward = "ipv4"\n')
    assert b"default" in start("sleep", "1000", network="bridge").exec("ip", "route").stdout


def test_a_rate_holds_each_way(start):
    box = start(
        "python3", "-c", "import socket\ns = socket.create_server(('', 80)); c = s.accept()[0]\nwhile True: c.recv(1 << 20)",
        network="bridge", net_rate="2M",
    )  # fmt: skip
    until(lambda: b"0050" in box.exec("cat", "/proc/net/tcp").stdout, "it listens")
    sent, began = 0, time.monotonic()
    with socket.create_connection((address(box), 80)) as out:
        out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        while time.monotonic() - began < 1.5:
            sent += out.send(bytes(65536))
    assert sent < 8 << 20
    assert b"tbf" in box.exec("tc", "qdisc", "show", "dev", "eth0").stdout


def commands_of(capfd, *options):
    """What ``run --explain`` says is asked of the kernel for networks."""
    capfd.readouterr()
    assert main(["run", "--explain", "--json", *options, "--", "true"]) == 0
    return [command for step in json.loads(capfd.readouterr().out)["networks"] for command in step["commands"]]


def test_what_is_explained_can_be_typed(start, capfd):
    """In order, on a host where nothing is yet; the sandbox's namespace is one that ip(8) knows by that name."""
    networks.create("mine", subnets=["10.20.0.0/24"])
    said = commands_of(capfd, "--network", "mine", "-p", "8080:80")
    assert any("add table" in command for command in said) and any("route_localnet" in command for command in said)
    inside = said.index("ip link set lo up")
    outside = [command for command in said[:inside] if "icmpv6 taddr" not in command]  # which nft knows since 1.0.9
    lines = [
        "mount -t tmpfs none /run",
        "ip netns add sandbox",
        *outside,
        *(f"ip netns exec sandbox {command}" for command in said[inside:]),
    ]
    script = "\n".join(["set -e", *lines, "ip netns exec sandbox ip -o address", "nft list ruleset"])
    done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "10.20.0.2/24" in done.stdout and "tcp . 8080 : 10.20.0.2 . 80" in done.stdout
    start("sleep", "1000", network="mine")
    again = commands_of(capfd, "--network", "mine", "-p", "8080:80")
    assert len(again) < len(said) and not any("add table" in command or "type bridge " in command for command in again)
