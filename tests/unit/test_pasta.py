"""What pasta is told and what it says, without one that runs: options, ports, routes, errors."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from dockless.base import idmaps
from dockless.errors import BadInput, NetworkError, Unsupported
from dockless.sandbox.network import pasta
from dockless.sandbox.network.model import Egress, Endpoint, Network, Port, Rule
from dockless.sandbox.network.pasta import Address, Pasta, WayOut

OLD = Pasta("/usr/bin/pasta", frozenset({"--no-map-gw", "--no-netns-quit"}))
NEW = Pasta("/usr/bin/pasta", frozenset({"--map-host-loopback", "--map-guest-addr", "--no-netns-quit"}))
BOTH = (Address("10.113.0.2/20", "10.113.0.1"), Address("fd13::2/64", "fd13::1"))
NETWORK = Network("bridge", ("10.113.0.0/20", "fd13::/64"), ("10.113.0.1", "fd13::1"), "dl-1")
NET_ADMIN, NET_RAW, SYS_PTRACE = 1 << 12, 1 << 13, 1 << 19


LEADS_OUT = WayOut((4, 6))


def command(found=OLD, way=LEADS_OUT, addresses=BOTH, ports=(), asked=(4,)):
    return pasta.arguments(found, way, addresses, ports, asked)


def test_nothing_leads_to_the_hosts_loopback_with_any_version():
    assert "--no-map-gw" in command(OLD) and "--map-host-loopback" not in command(OLD)
    words = " ".join(command(NEW))
    assert "--map-host-loopback none" in words and "--map-guest-addr none" in words and "--no-map-gw" not in words
    for found in (OLD, NEW):
        assert " ".join(command(found)).endswith("--tcp-ports none --udp-ports none --tcp-ns none --udp-ns none"), "its defaults open ports"


def test_ports_as_pasta_writes_them():
    ports = (Port(80, 8080), Port(9000, 5000, "udp", "127.0.0.1", 10), Port(22, 22, address="::1"))
    words = command(ports=ports)
    told = list(itertools.pairwise(words))
    assert [value for option, value in told if option == "--tcp-ports"] == ["8080:80", "::1/22:22"]
    assert [value for option, value in told if option == "--udp-ports"] == ["127.0.0.1/5000-5009:9000-9009"]


def test_a_port_of_a_kind_that_the_host_has_not():
    ports = (Port(80, 8080), Port(81, 8081, address="::1"))
    pasta.check_published(ports, (4, 6))
    with pytest.raises(NetworkError, match="no port on ::1: this host has no IPv6 that leads out") as raised:
        pasta.check_published(ports, (4,))
    assert "-p 8081:81" in raised.value.hint
    with pytest.raises(NetworkError, match="no IPv4"):
        pasta.check_published((Port(80, 8080, address="127.0.0.1"),), (6,))


def test_only_what_the_host_has():
    assert "--ipv4-only" in command(way=WayOut((4,)), addresses=BOTH[:1]) and "fd13::1" not in command(addresses=BOTH[:1])
    assert "--ipv6-only" in command(way=WayOut((6,)), addresses=BOTH[1:])
    assert " ".join(command(way=WayOut((4,), "eth1"))).count("--interface eth1") == 1
    words = command(asked=(6,))
    assert words[words.index("--dns-forward") + 1] == "fd13::1" and words.count("--dns-forward") == 1


def test_addresses_of_a_sandbox():
    assert pasta.addresses_of(NETWORK, Endpoint(), (4, 6)) == BOTH
    assert pasta.addresses_of(NETWORK, Endpoint(), (6,)) == BOTH[1:]
    assert pasta.addresses_of(NETWORK, Endpoint(addresses=("10.113.0.9",)), (4,)) == (Address("10.113.0.9/20", "10.113.0.1"),)
    for wrong in ("10.1.0.9", "10.113.0.1", "10.113.0.0", "10.113.15.255"):
        with pytest.raises(BadInput, match="on network bridge"):
            pasta.addresses_of(NETWORK, Endpoint(addresses=(wrong,)), (4, 6))


def commands(egress, own=("192.0.2.5", "2001:db8::5")):
    return [request.command for request in pasta.settings(2, BOTH, "", egress, own)]


def test_routes_inside():
    open_to_all = commands(Egress())
    assert "ip route add default via 10.113.0.1 dev eth0" in open_to_all and "ip -6 route add default via fd13::1 dev eth0" in open_to_all
    assert [word for word in open_to_all if "prohibit" in word] == ["ip -6 route replace prohibit ::ffff:0:0/96"], (
        "never the host's loopback"
    )

    not_the_host = commands(Egress(host=False))
    for to in ("192.0.2.5/32", "169.254.0.0/16"):
        assert f"ip route replace prohibit {to}" in not_the_host
    for to in ("2001:db8::5/128", "fd00:ec2::254/128"):
        assert f"ip -6 route replace prohibit {to}" in not_the_host
    assert not any("-6 route add default" in word for word in not_the_host), "fe80::/10 has no route"

    rules = (Rule("198.51.100.0/24"), Rule("192.0.2.5"), Rule("169.254.169.254"), Rule("2001:db8:9::/48"))
    some = commands(Egress(allow=rules, host=False))
    assert [word for word in some if " route add " in word] == [
        "ip route add 198.51.100.0/24 via 10.113.0.1 dev eth0", "ip -6 route add 2001:db8:9::/48 via fd13::1 dev eth0",
    ], "a rule for what is refused changes nothing"  # fmt: skip
    assert not [word for word in commands(Egress(allow=())) if " route add " in word]


def test_the_link_gives_itself_no_address():
    words = commands(Egress())
    order = ["ip link set eth0 addrgenmode none", "ip address replace fe80::2/128 dev eth0 nodad", "ip link set eth0 up"]
    assert [word for word in words if word in order] == order, "the kernel gives one, and sends from ::, when it is set up"


@pytest.mark.parametrize(
    ("egress", "rights", "found", "message"),
    [
        (Egress(rate=1000), 0, NEW, "limits a rate"),
        (Egress(log=True), 0, NEW, "logs what is refused"),
        (Egress(allow=(Rule("pypi.org"),)), 0, NEW, "names cannot be allowed apart: pypi.org"),
        (Egress(allow=(Rule("10.0.0.0/8", ((443, 443),)),)), 0, NEW, "ports cannot be allowed apart: 10.0.0.0/8"),
        (Egress(host=False), NET_ADMIN, NEW, "NET_ADMIN gets round rules"),
        (Egress(allow=()), NET_RAW, NEW, "NET_RAW gets round rules"),
        (Egress(), NET_RAW, OLD, "with NET_RAW a sandbox would reach the host's loopback"),
        (Egress(), NET_ADMIN | NET_RAW, OLD, "with NET_ADMIN and NET_RAW"),
    ],
)
def test_what_pasta_cannot_hold_is_refused(egress, rights, found, message):
    with pytest.raises(Unsupported, match=message) as raised:
        pasta.check(egress, rights, found)
    assert raised.value.hint


def test_who_could_trace_it_is_refused():
    pasta.check(Egress(), SYS_PTRACE, NEW)
    pasta.check(Egress(), 0, NEW, sees_processes=True)
    with pytest.raises(Unsupported, match="SYS_PTRACE that sees pasta"):
        pasta.check(Egress(), SYS_PTRACE, NEW, sees_processes=True)


def test_what_it_can_hold():
    pasta.check(Egress(host=False, allow=(Rule("10.0.0.0/8"),)), 0, OLD)
    pasta.check(Egress(), NET_ADMIN | NET_RAW, NEW)


def test_its_error_is_told_without_its_noise():
    said = "Failed to send 51 bytes to syslog\nCan't run AVX2 build, using non-AVX2 version\nFailed to bind port 80 (Permission denied)\n"
    error = pasta.refusal(said)
    assert str(error) == "pasta did not start: Failed to bind port 80 (Permission denied)" and "ss -ln" in error.hint
    assert str(pasta.refusal("")) == "pasta did not start: it ended without a word"


def program(place, text="#!/bin/sh\necho '  -x, --some-option ARG  and --another'\n", mode=0o755):
    place.mkdir(exist_ok=True)
    (place / "pasta").write_text(text)
    (place / "pasta").chmod(mode)
    return str(place / "pasta")


def test_it_is_found_where_root_alone_can_write(tmp_path, monkeypatch):
    monkeypatch.setattr(idmaps, "_TOOL_PLACES", (str(tmp_path / "one"), str(tmp_path / "two")))
    assert idmaps.find_program("pasta") is None
    program(tmp_path / "one", mode=0o775)
    second = program(tmp_path / "two")
    assert idmaps.find_program("pasta") == (second if os.geteuid() == 0 else None), "the first could be anybody's, and a user's is none"


def test_its_options_are_read_once_for_each_program(tmp_path, monkeypatch):
    path = program(tmp_path / "one")
    monkeypatch.setattr(idmaps, "find_program", lambda _: path)
    monkeypatch.setattr(pasta, "_TUN", "/dev/null")
    started = []
    run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *words, **more: started.append((words[0], more["env"], more["cwd"])) or run(*words, **more)
    )
    assert pasta.installed().options == {"--some-option", "--another"}
    assert pasta.installed() is pasta.installed()
    assert started == [([path, "--help"], {}, "/")], "with nothing of the caller's"
    os.unlink(path)
    program(tmp_path / "one", "#!/bin/sh\necho --third\n")
    os.utime(path, ns=(1, 1))
    assert pasta.installed().options == {"--third"}, "another file is another program"


def test_it_runs_with_nothing_of_its_starters():
    from dockless.sandbox.run.pasta import _plan

    plan = _plan(command(), True)
    assert plan.command.envp == () and plan.command.candidates == ("/usr/bin/pasta",)
    names = [op.name for op in plan.ops]
    assert names.index("SETNS") < names.index("CLONE") < names.index("PDEATHSIG") < names.index("SPAWN") < names.index("CHDIR")
    assert names[-1] == "NO_NEW_PRIVS"  # and it gains nothing by what it is
    assert "SETNS" not in [op.name for op in _plan(command(), False).ops]


def test_nothing_is_imported_for_it_by_others():
    code = "import sys, dockless.sandbox.run.joining; print([name for name in sys.modules if 'pasta' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
