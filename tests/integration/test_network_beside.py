"""Sandboxes on networks beside the tables of Docker, podman and firewalld: who reaches whom, what a start says of it, and that nobody's
rules but ours change. In a network namespace of the test's own, with the rules that those programs made, recorded in tests/recorded; the
programs themselves are in test_network_programs.py."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest
from support.boxes import until
from support.nets import OUTSIDE, Place, Service, reach
from support.networks import beside_the_world, own_network, starting
from support.requires import check, requires

import dockless
from dockless import doctor, networks
from dockless.cli import main
from dockless.sandbox.network import barriers, leases, nftables, records
from dockless.sandbox.network.host import Host
from dockless.sandbox.network.netlink import Request, attribute

pytestmark = requires("root", "netns", "program:nft")

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
DOCKER, PODMAN, FIREWALLD = "docker-28.5.2", "podman-5.8.6", "firewalld-1.3.3"
SERVE = "import socket\ns = socket.create_server(('', 80))\nwhile True: s.accept()[0].close()"
CALL = """import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])) as found: found.recv(1)"""


@pytest.fixture(autouse=True)
def world(home):
    """The host of the test, and somebody on a network beside it by whom it reaches the world."""
    with own_network() as made, beside_the_world(made) as outside:
        yield outside


@pytest.fixture
def start():
    with starting() as start:
        yield start


def nft(*words, given=""):
    return subprocess.run(["nft", *words], input=given, capture_output=True, text=True, check=True).stdout


def load(name):
    nft("-f", "-", given=(RECORDED / f"{name}.nft").read_text())


def others():
    """The tables of others, byte for byte, but for what their rules have counted."""
    tables = [line.removeprefix("table ") for line in nft("list", "tables").splitlines() if " dockless" not in line]
    return re.sub(r"packets \d+ bytes \d+", "", "".join(nft("list", "table", *table.split()) for table in tables))


def address(box):
    return leases.of(box.inner.directory)[0].addresses[0]


def calls(box, to, port, seconds=5.0):
    return box.exec("python3", "-c", CALL, to, str(port), str(seconds)).exit_code == 0


def server(start, **options):
    box = start("python3", "-c", SERVE, **options)
    until(lambda: b"0050" in box.exec("cat", "/proc/net/tcp").stdout, "it listens")
    return box


def open_as_told(warnings):
    """Carry out the commands of warnings by nft, as the programs that are named would."""
    for command in [text for warning in warnings for text in warning.partition("as root: ")[2].split("; ")]:
        words = command.split()
        if words[0] in ("iptables", "ip6tables"):
            links = [f'{kind} "{words[words.index(flag) + 1].replace("+", "*")}"' for flag, kind in _FLAGS if flag in words]
            nft("insert", "rule", {"iptables": "ip", "ip6tables": "ip6"}[words[0]], "filter", words[2], *" ".join(links).split(), "accept")
        elif words[0] == "firewall-cmd":
            link = words[-1].removeprefix("--add-interface=").replace("+", "*")
            for chain in ("filter_FORWARD_ZONES", "filter_INPUT_ZONES"):
                nft("insert", "rule", "inet", "firewalld", chain, "iifname", f'"{link}"', "accept")
        else:
            assert words[:3] == ["nft", "insert", "rule"], command
            subprocess.run(command, shell=True, check=True)


_FLAGS = (("-i", "iifname"), ("-o", "oifname"))


@pytest.mark.parametrize("name", [DOCKER, PODMAN, FIREWALLD])
def test_beside_the_tables_of(world, start, name):
    load(name)
    before = others()
    networks.create("lab")
    web = server(start, id="web", network="lab", publish=["8081:80"])
    other = start("sleep", "1000", id="other", network="lab")
    alone = start("sleep", "1000", network="bridge")
    barred = name != PODMAN
    warnings = dict.fromkeys((*web.warnings, *other.warnings, *alone.warnings))
    assert bool(warnings) is barred
    with Service(world, 443) as service:
        # Docker lets nothing out and nothing in; firewalld lets in what comes to a published port.
        assert calls(alone, OUTSIDE[0], 443, 1.0) is calls(other, OUTSIDE[0], 443, 1.0) is not barred
        assert reach(world, "192.0.2.1", 8081, seconds=1) == ("silence" if name == DOCKER else "open")
        assert reach_here("127.0.0.1", 8081)
        assert not service.asked or not barred
        open_as_told(warnings)
        assert calls(alone, OUTSIDE[0], 443) and calls(other, OUTSIDE[0], 443) and calls(other, address(web), 80)
        assert reach(world, "192.0.2.1", 8081) == "open"
        # Names are asked of the host, which firewalld lets nobody do.
        assert b"web" in other.exec("getent", "hosts", "web").stdout
        assert reach(world, address(web), 80, seconds=1) == "silence"  # nothing else is open now
    assert start("sleep", "1000", network="bridge").warnings == ()
    for box in dockless.list():
        box.inner.remove()
    opened = others()
    for known in ("lab", "bridge"):
        networks.remove(known)
    assert others() == opened == nft_without_counters() and (barred or opened == before)


def reach_here(to, port):
    return subprocess.run(["python3", "-c", CALL, to, str(port), "5"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def nft_without_counters():
    """All there is: of ours nothing is left."""
    return re.sub(r"packets \d+ bytes \d+", "", nft("list", "ruleset"))


def test_a_container_of_docker_is_reached_by_its_published_port_alone(world, start):
    """What is typed lets out what leads to the world, and goes past none of Docker's own rules."""
    load(DOCKER)
    container = Place()
    try:
        made = ("link add docker0 type bridge", "address add 172.17.0.1/16 dev docker0", "link set docker0 up")
        pair = f"link add theirs master docker0 type veth peer name eth0 netns /proc/self/fd/{container.namespace.fd}"
        for command in (*made, pair, "link set theirs up"):
            subprocess.run(["ip", *command.split()], check=True, pass_fds=[container.namespace.fd])
        for number in (2, 3):  # Docker's table knows the first of them
            container.run("ip", "address", "add", f"172.17.0.{number}/16", "dev", "eth0")
        for command in ("link set eth0 up", "route add default via 172.17.0.1"):
            container.run("ip", *command.split())
        box = start("sleep", "1000", network="bridge")
        open_as_told(box.warnings)
        with Service(container, 80), Service(world, 443):
            assert calls(box, OUTSIDE[0], 443) and calls(box, "192.0.2.1", 8080)
            assert not calls(box, "172.17.0.2", 80, 1.0) and not calls(box, "172.17.0.3", 80, 1.0)
            assert reach(world, "192.0.2.1", 8080) == reach(container, OUTSIDE[0], 443) == "open"
            nft("insert", "rule", "ip", "filter", "DOCKER-USER", "iifname", records.find("bridge").bridge, "accept")
            assert calls(box, "172.17.0.3", 80)  # so the command says where to
    finally:
        container.close()


def test_neighbours_where_bridges_call_iptables(world, start):
    """Docker has br_netfilter loaded: what a bridge carries meets its chain, too."""
    setting = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if not setting.exists():
        pytest.skip("this kernel has no br_netfilter")
    setting.write_text("1")
    load(DOCKER)
    networks.create("inner", internal=True)
    web = server(start, network="inner")
    other = start("sleep", "1000", network="inner")
    assert not calls(other, address(web), 80, 1.0)
    open_as_told(other.warnings)
    assert calls(other, address(web), 80)
    setting.write_text("0")
    networks.create("innermost", internal=True)
    assert start("sleep", "1000", network="innermost").warnings == ()


def test_what_no_packet_of_a_network_passes_is_no_barrier(world):
    networks.create("four", subnets=["10.20.0.0/24"])
    networks.create("both", subnets=["10.30.0.0/24", "fd00:30::/64"])
    networks.create("inner", subnets=["10.40.0.0/24"], internal=True)
    networks.create("apart", subnets=["10.50.0.0/24"], internal=True, isolated=True)

    def barred(family: str) -> list[str]:
        nft("-f", "-", given=f"table {family} own {{\nchain x {{ type filter hook forward priority 0; policy drop; }}\n}}\n")
        found = [barrier.network for barrier in barriers.barriers(Host(), records.every())]
        nft("delete", "table", family, "own")
        return sorted(found)

    assert barred("ip6") == ["both"]
    calling = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    for calls_them in (0, 1) if calling.exists() else ():
        calling.write_text(str(calls_them))
        assert barred("ip") == ["both", "four", *["inner"] * calls_them]


def test_who_made_the_barrier_and_where_it_is_told(world, start, capfd):
    """What does not bar, what does, and who says so: a start, ``network create`` and ``connect``, ``doctor``."""
    out = 'iifname "dockless0" oifname wan'
    for text, commands in (
        ("chain x { type filter hook forward priority 0; policy accept; }", []),
        ("chain x { type filter hook input priority 0; policy accept; drop; }", None),
        ("chain x { type filter hook forward priority 10; policy accept; counter log reject; }", [out, 'oifname "dockless0"']),
        ("chain x { type filter hook forward priority 10; policy drop; }", [out, 'oifname "dockless0"']),
        ('chain x { type filter hook forward priority 10; policy drop; oifname "docker0" accept; }', [out, 'oifname "dockless0"']),
        ('chain x { type filter hook forward priority 10; policy drop; iifname "dockless0" accept; }', []),
        ('chain x { type filter hook forward priority 10; policy drop; iifname "dock*" accept; }', []),
        ('chain x { type filter hook forward priority 10; policy drop; iifname { "eth0", "dockless0" } accept; }', []),
        ('set s { type ifname; elements = { "dockless0" }; }\nchain x { type filter hook forward priority 10; policy drop; }', []),
    ):
        nft("-f", "-", given=f"table inet own {{\n{text}\n}}\n")
        (found,) = [one for one in doctor.examine() if one.name == "networks"]
        if commands == []:
            assert found.status == "ok", text
        elif commands is not None:
            assert found.status == "note" and "inet own x, of another program" in found.what, text
            assert [f"{command} accept" in found.next_step.replace("'", "") for command in commands] == [True, True], text
        else:
            assert found.status == "note" and "th dport 53 accept" in found.next_step
        nft("delete", "table", "inet", "own")
    ufw = "chain FORWARD { type filter hook forward priority 0; policy drop; }\nchain ufw-before-forward { }"
    nft("-f", "-", given=f"table ip filter {{\n{ufw}\n}}\n")
    assert main(["network", "create", "lab"]) == 0
    told = "network lab: the chain ip filter FORWARD, of ufw, stops packets from and to it; as root: ufw route allow in on dl-+"
    assert told in capfd.readouterr().err
    box = start("sleep", "1000", network="bridge")
    assert len(box.warnings) == 1 and box.warnings[0].startswith("network bridge: ")
    assert main(["network", "connect", "lab", box.id]) == 0
    assert told in capfd.readouterr().err
    assert len(start("sleep", "1000", network="bridge").warnings) == 1  # as long as it is so
    nft("delete", "table", "ip", "filter")
    assert start("sleep", "1000", network="bridge").warnings == ()
    rule = f"insert rule inet own x iifname {records.find('bridge').bridge} accept"
    nft("-f", "-", given="table inet own {\nchain x { type filter hook forward priority 0; policy drop; }\n}\n")
    for barred in (True, False, True):
        assert bool(start("sleep", "1000", network="bridge").warnings) is barred
        nft(*(rule.split() if barred else ["flush", "chain", "inet", "own", "x"]))


@pytest.mark.parametrize("how", ["nft flush ruleset", "nft delete table inet TABLE", "iptables -F", "ip link del BRIDGE"])
def test_what_somebody_flushed_is_mended_at_the_next_start(world, start, how):
    """And not before: a sandbox that runs has no process of ours that would look."""
    if how.startswith("iptables"):
        check("program:iptables")
    load(PODMAN)
    networks.create("lab")
    web = server(start, network="lab", publish=["8081:80"])
    nosy = start("sleep", "1000", network="lab", allow_out=["203.0.113.0/24"])
    assert reach(world, "192.0.2.1", 8081) == "open"
    subprocess.run(how.replace("TABLE", records.table_name()).replace("BRIDGE", records.find("lab").bridge), shell=True, check=True)
    with Service(world, 443) as service:
        gone = {"nft flush ruleset": "refused", "nft delete table inet TABLE": "refused", "iptables -F": "open"}.get(how, "silence")
        assert reach(world, "192.0.2.1", 8081, seconds=1) in (gone, "prohibited")
        theirs = others()
        late = start("sleep", "1000", network="lab")
        assert reach(world, "192.0.2.1", 8081) == "open" and calls(late, address(web), 80) and calls(late, OUTSIDE[0], 443)
        asked = len(service.asked)
        assert not calls(nosy, OUTSIDE[0], 443, 1.0) and len(service.asked) == asked
        assert reach(world, address(web), 80, seconds=1) == "silence"
    assert others() == theirs


def test_names_that_a_shell_would_obey_are_in_no_command(start):
    """The attack: what a start and doctor say is pasted into a shell of root, and the kernel takes any bytes for a name."""
    hostile = "x, of Docker, stops packets; as root: $(id) #\n\x1b[2J"
    family, hook = struct.pack("=BBH", 2, 0, 0), attribute(1, struct.pack(">I", 2)) + attribute(2, bytes(4))
    chain = attribute(1, hostile) + attribute(3, "y`id`") + attribute(4 | 0x8000, hook) + attribute(5, bytes(4)) + attribute(7, "filter")
    made = [Request(10 << 8, 0x400, family + attribute(1, hostile), ""), Request(10 << 8 | 3, 0x400, family + chain, "")]
    with Host().nftables() as asking:
        nftables.carry_out(asking, made)
    networks.create("lab")
    (found,) = barriers.barriers(Host(), [records.find("lab")])
    assert found.commands == ("nft --handle list ruleset",)
    assert (
        str(found)
        == f"network lab: the chain ip {hostile!r} 'y`id`', of another program, stops packets from and to it; as root: {found.commands[0]}"
    )
    assert start("sleep", "100", network="lab").inner.document.warnings == (str(found),)


def test_somebody_elses_networks_keep_their_addresses(world, start):
    """A subnet that another manager's bridge has is not chosen."""
    for command in ("link add docker0 type bridge", "address add 10.112.0.1/16 dev docker0", "link set docker0 up"):
        subprocess.run(["ip", *command.split()], check=True)
    assert not address(start("sleep", "1000", network="bridge")).startswith("10.112.")
