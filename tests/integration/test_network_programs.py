"""Sandboxes on networks beside dockerd, podman and firewalld that run, where they are installed: as test_network_beside.py, which has their
rules recorded, and what a start says is typed as it stands."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from support import managers
from support.boxes import until
from support.make_image import static_busybox
from support.nets import OUTSIDE, Service, reach
from support.networks import beside_the_world, own_network, starting
from support.requires import check, requires

from dockless import networks
from dockless.sandbox.network import leases, records

pytestmark = requires("root", "netns", "program:nft", "program:iptables")

SERVE = "import socket\ns = socket.create_server(('', 80))\nwhile True: s.accept()[0].close()"
CALL = """import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])) as found: found.recv(1)"""


@pytest.fixture(autouse=True)
def world(home):
    with own_network(forward=False) as made, beside_the_world(made) as outside:
        yield outside


@pytest.fixture
def start():
    with starting() as start:
        yield start


def forward():
    for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        with open(f"/proc/sys/net/{name}", "w") as setting:
            setting.write("1")


def rules(*, ours=False):
    """The tables of others, without what their rules have counted; with ``ours`` all there are."""
    listed = subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout
    tables = re.findall(r"^table .*?^}$", listed, re.DOTALL | re.MULTILINE)
    kept = sorted(table for table in tables if ours or " dockless" not in table.partition("{")[0])
    return re.sub(r"packets \d+ bytes \d+", "", "\n".join(kept))


def reaches(box, to, port, seconds=5.0):
    return box.exec("python3", "-c", CALL, to, str(port), str(seconds)).exit_code == 0


def beside(world, start, typed):
    """Two on a network and one on the default one, before and after what the start said is typed. What remains when all has gone."""
    networks.create("lab")
    web = start("python3", "-c", SERVE, id="web", network="lab", publish=["8081:80"])
    until(lambda: b"0050" in web.exec("cat", "/proc/net/tcp").stdout, "it listens")
    other, alone = (start("sleep", "1000", network=network) for network in ("lab", "bridge"))
    warnings = dict.fromkeys((*web.warnings, *other.warnings, *alone.warnings))
    with Service(world, 443) as service:
        assert reaches(alone, OUTSIDE[0], 443, 1.0) is not warnings
        for warning in warnings:
            for command in warning.partition("as root: ")[2].split("; "):
                typed(command)
        opened = rules()
        assert reaches(alone, OUTSIDE[0], 443) and reaches(other, OUTSIDE[0], 443) and reaches(other, leases_of(web), 80)
        assert reach(world, "192.0.2.1", 8081) == "open" and reach(world, leases_of(web), 80, seconds=1) == "silence"
        assert b"web" in other.exec("getent", "hosts", "web").stdout and service.asked
    last = start("sleep", "1000", network="lab")
    assert last.warnings == () and rules() == opened
    return warnings, (web, other, alone, last)


def leases_of(box):
    return leases.of(box.inner.directory)[0].addresses[0]


def away(boxes):
    for box in boxes:
        box.inner.remove()
    for name in ("lab", "bridge"):
        networks.remove(name)
    assert rules(ours=True) == rules() and " dockless" not in rules()


def shell(command):
    subprocess.run(command.split(), check=True, capture_output=True)


def test_beside_dockerd(world, start, tmp_path):
    check("program:dockerd", "program:docker")
    with managers.docker(tmp_path) as docker:
        docker.do("network", "create", "theirs")
        forward()
        before = rules()
        warnings, boxes = beside(world, start, shell)
        assert warnings and all("of Docker" in text and "iptables -I DOCKER-USER" in text for text in warnings)
        subprocess.run(["iptables", "-F", "DOCKER-USER"], check=True)
        docker.do("network", "rm", "theirs")  # it writes its rules again
        docker.do("network", "create", "theirs")
        assert reach(world, "192.0.2.1", 8081, seconds=1) == "silence"
        again = start("sleep", "1000", network="lab")
        for command in again.warnings[0].partition("as root: ")[2].split("; "):
            shell(command)
        assert reach(world, "192.0.2.1", 8081) == "open"
        away([*boxes, again])
        assert "DOCKER-USER" in before


def test_beside_podman(world, start, tmp_path):
    check("program:podman", "program:crun", "busybox")
    forward()
    root = tmp_path / "rootfs" / "bin"
    root.mkdir(parents=True)
    shutil.copy(static_busybox(), root / "busybox")
    (root / "sh").symlink_to("busybox")
    with managers.podman(tmp_path) as podman:
        limits = ["--cgroups=disabled", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        serve = "while true; do busybox nc -l -p 80 -e busybox true; done"
        theirs = ["--name", "theirs", *limits, "--network", "bridge", "-p", "8090:80", "--rootfs", str(root.parent)]
        podman.do("run", "-d", *theirs, "/bin/sh", "-c", serve)
        try:
            before = rules()
            until(lambda: reach(world, "192.0.2.1", 8090, seconds=1) == "open", "podman's port is open")
            warnings, boxes = beside(world, start, shell)
            assert not warnings and rules() == before
            assert reach(world, "192.0.2.1", 8090) == "open" and reaches(boxes[1], "192.0.2.1", 8090)
            with Service(world, 443) as service:
                podman.do("exec", "theirs", "/bin/busybox", "nc", "-w", "2", OUTSIDE[0], "443")
                assert service.asked
            away(boxes)
            assert rules() == before and reach(world, "192.0.2.1", 8090) == "open"
        finally:
            podman.do("rm", "-f", "-t", "0", "theirs")


def test_beside_firewalld(world, start, tmp_path):
    check("program:firewalld", "program:firewall-cmd", "program:dbus-daemon")
    forward()
    with managers.firewalld(tmp_path) as firewalld:

        def typed(command):
            firewalld.do(*command.split()[1:])

        warnings, boxes = beside(world, start, typed)
        assert warnings and all("of firewalld" in text and "--add-interface=" in text for text in warnings)
        ours = subprocess.run(["nft", "list", "table", "inet", records.table_name()], capture_output=True, text=True, check=True).stdout
        firewalld.do("--reload")
        listed = subprocess.run(["nft", "list", "table", "inet", records.table_name()], capture_output=True, text=True, check=True).stdout
        assert listed == ours
        with Service(world, 443):
            assert reach(world, "192.0.2.1", 8081) == "open" and reaches(boxes[2], OUTSIDE[0], 443)
        away(boxes)
